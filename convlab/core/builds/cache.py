"""Builds on disk: each is found by what decided it, and is there whole or not at all.

A build is named by a hash of its text, flags and compiler, and by one of what the compiler read:
the same text may have been built before with other headers. It is made in a folder of its own and
renamed into the cache when it is whole, so that two processes may build at once, and a build that
is killed leaves nothing that a later one would trip over. Beside each library stand its checksum,
what was read, and what else might have been: the headers that a folder searched earlier now has.
"""

import contextlib
import functools
import glob
import hashlib
import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..machine import interrupt, toolchain

LIMIT_BYTES = 2 << 30  # that builds may take together; the oldest go first
_LIBRARY = "kernel.so"
_RECORD = "made.json"
_YOUNG = 3600.0  # seconds for which a build, or an unfinished one, is left alone


class Made(NamedTuple):
    """What a compiler made: the library, the headers it read, the folders it looked for them in."""

    library: Path
    read: tuple[Path, ...]
    searched: tuple[Path, ...]


@dataclass(frozen=True)
class Build:
    """A library in the cache: the build of its source while the `stamp` of what is `watched` stays."""

    library: Path
    seconds: float  # that this build took; 0.0 when it was there before
    watched: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()  # that the compiler was told


class CachedBuild(NamedTuple):
    """One build as `contents` lists it: its folder's name, its bytes, when it was last used."""

    name: str
    bytes: int
    used: float  # seconds since 1970


_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_known: dict[str, tuple[object, Build]] = {}  # what this process found, with its stamp


def build(name: str, make: Callable[[Path], Made]) -> Build:
    """Return the build of that name, made in a fresh folder if there is none that still holds."""
    with (
        interrupt.held(),
        _locks[name],
    ):  # threads of one process wait for each other; processes need not
        seen, found = _known.get(name, (None, None))
        if found is None or seen != stamp(found.watched):
            found = _find(name) or _make(name, make)
            _known[name] = stamp(found.watched), replace(found, seconds=0.0)
        return found


def stamp(paths: Iterable[Path]) -> tuple[object, ...]:
    """Return the times and sizes of files and folders: differs after an edit."""
    found = []
    for path in paths:
        try:
            seen = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)


def _find(name: str) -> Build | None:
    """The newest build of that name that is sound, and whose headers are as they were."""
    for folder in _newest_first(f"{glob.escape(name)}-*"):
        try:
            record = json.loads((folder / _RECORD).read_text())
            sound = record["library"] == _digest(folder / _LIBRARY)
            holds = all(_digest(Path(path)) == was for path, was in record["read"].items())
            holds = holds and record["searched"] == _visible(record["searched"], record["read"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            sound = holds = False
        if not sound:  # cut short, or not ours: never loaded
            shutil.rmtree(folder, ignore_errors=True)
        elif holds:
            with contextlib.suppress(OSError):
                os.utime(folder)
            return _build_of(folder, record, 0.0)
    return None


def _make(name: str, make: Callable[[Path], Made]) -> Build:
    root = toolchain.cache_dir()
    _tidy(root)
    started = time.perf_counter()
    began = time.time_ns()
    folder = toolchain.unfinished(root)
    try:
        made = make(folder)
        # one that changed while it was read is never found again
        read = {
            str(path): _digest(path) if os.stat(path).st_mtime_ns <= began else str(began)
            for path in made.read
        }
        searched = _visible(map(str, made.searched), read)
        record = {"library": _digest(made.library), "read": read, "searched": searched}
        made.library.rename(folder / _LIBRARY)
        (folder / _RECORD).write_text(json.dumps(record))
        for other in folder.iterdir():
            if other.is_dir():
                shutil.rmtree(other)
            elif other.name not in (_LIBRARY, _RECORD):
                other.unlink()
        key = repr((read, searched)).encode(errors="surrogateescape")
        final = root / f"{name}-{_hash(key)[:16]}"
        with contextlib.suppress(OSError):  # another process was quicker: theirs will do
            folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _build_of(final, record, time.perf_counter() - started)


def _build_of(folder: Path, record: dict, seconds: float) -> Build:
    watched = [folder / _LIBRARY, *record["read"], *record["searched"]]
    return Build(folder / _LIBRARY, seconds, tuple(map(Path, watched)))


def _visible(folders: Iterable[str], read: Iterable[str]) -> dict[str, list[str]]:
    """For each folder, the ends of the headers' paths by which something is found in it."""
    # more than was there when the compiler looked: an #include may now mean another file
    parts = [Path(path).parts for path in read]
    ends = sorted({"/".join(path[i:]) for path in parts for i in range(1, len(path))})
    return {
        folder: [end for end in ends if os.path.exists(f"{folder}/{end}")] for folder in folders
    }


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(path: Path) -> str:
    return _hash(path.read_bytes())


def _newest_first(pattern: str) -> list[Path]:
    """The folders in the cache, the last used first."""
    aged = []
    for folder in toolchain.cache_dir().glob(pattern):
        with contextlib.suppress(OSError):  # removed meanwhile
            aged.append((folder.stat().st_mtime_ns, folder))
    return [folder for _, folder in sorted(aged, reverse=True)]


# ---- what is kept ------------------------------------------------------------------------------


def contents() -> list[CachedBuild]:
    """Return all builds in the cache, the last used first."""
    found = []
    for folder in _newest_first("*"):
        with contextlib.suppress(OSError):
            sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
            if _RECORD in sizes:
                found.append(CachedBuild(folder.name, sum(sizes.values()), folder.stat().st_mtime))
    return found


def clear() -> int:
    """Remove all builds, unfinished ones, logs and choices; return the bytes that builds took."""
    root = toolchain.cache_dir()
    builds = contents()
    names = [*(entry.name for entry in builds), "logs", "best"]
    for folder in [*map(root.joinpath, names), *root.glob(f"{toolchain.UNFINISHED}*")]:
        shutil.rmtree(folder, ignore_errors=True)
    return sum(entry.bytes for entry in builds)


@functools.cache  # a look at 2,000 builds takes as long as a fifth of one
def _tidy(root: Path) -> None:
    """Remove what killed builds left an hour ago, and the oldest builds beyond `LIMIT_BYTES`."""
    now = time.time()
    total = 0
    for folder in root.glob(f"{toolchain.UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if now - folder.stat().st_mtime > _YOUNG:
                shutil.rmtree(folder, ignore_errors=True)
    for entry in contents():
        total += entry.bytes
        if total > LIMIT_BYTES and now - entry.used > _YOUNG:
            shutil.rmtree(root / entry.name, ignore_errors=True)
