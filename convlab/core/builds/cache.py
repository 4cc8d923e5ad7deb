"""Keep builds on disk: each is found by its key, and is there whole or not at all.

A key names what decides a build: the text of the source and of its headers, the flags, the
compiler. A build is made in a folder of its own and renamed into the cache when it is complete. So
two processes may build at once, and a build that is killed leaves nothing that a later one would
trip over. Next to each library is its checksum.
"""

import contextlib
import functools
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

# Builds together may take this many bytes; then the oldest are removed.
LIMIT_BYTES = 2 << 30
_LIBRARY = "kernel.so"
_RECORD = "made.json"
# Seconds for which a build, or an unfinished one, is left alone.
_YOUNG = 3600.0


class Key(NamedTuple):
    """The name of a build in the cache, and where an edit may change that name."""

    name: str
    watched: tuple[Path, ...] = ()  # headers, and the folders where they are looked for


class BuildOutput(NamedTuple):
    """What a function that builds returns: the library, and whether other processes may use it."""

    library: Path
    lasting: bool = True


@dataclass(frozen=True)
class Build:
    """A library in the cache: the build of its source while the `stamp` of `watched` stays."""

    library: Path
    seconds: float  # that this build took; 0.0 when it was there before
    watched: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()  # of the compiler


class CachedBuild(NamedTuple):
    """One build as `contents` lists it: its folder's name, its bytes, when it was last used."""

    name: str
    bytes: int
    used: float  # seconds since 1970


_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
# The builds that this process found or made, each with the stamp of its library.
_known: dict[str, tuple[object, Build]] = {}


def build(find_key: Callable[[], Key], make: Callable[[Path], BuildOutput]) -> Build:
    """Return the build of a key; make it in a fresh folder if there is none.

    Parameters
    ----------
    find_key
        Returns the key of the files as they are now. If it has changed when `make` returns, a
        header was edited while the compiler read it, and the build is made again.
    make
        Builds into an empty folder, which is given.
    """
    while True:
        key = find_key()
        # Threads of one process wait for each other; processes need not.
        with interrupt.held(), _locks[key.name]:
            seen, found = _known.get(key.name, (None, None))
            if found is not None and seen == stamp([found.library]):
                return replace(found, watched=(found.library, *key.watched))
            found = _find(key) or _make(key, find_key, make)
            if found is not None:
                _known[key.name] = stamp([found.library]), replace(found, seconds=0.0)
                return found


def stamp(paths: Iterable[Path]) -> tuple[object, ...]:
    """Return the times and sizes of files and folders: they differ after an edit."""
    stamps: list[object] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _find(key: Key) -> Build | None:
    """Return the build of that key in the cache; remove one that is damaged."""
    folder = toolchain.cache_dir() / key.name
    if not folder.exists():
        return None
    try:
        record = json.loads((folder / _RECORD).read_text())
        sound = record["library"] == _digest(folder / _LIBRARY)
    except (OSError, ValueError, LookupError, TypeError):
        sound = False
    if not sound:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return _build_of(folder, key, 0.0)


def _make(
    key: Key, find_key: Callable[[], Key], make: Callable[[Path], BuildOutput]
) -> Build | None:
    """Make a build and rename it into the cache; None if its key has changed meanwhile."""
    root = toolchain.cache_dir()
    _tidy(root)
    started = time.perf_counter()
    folder = toolchain.unfinished(root)
    try:
        output = make(folder)
        if find_key().name != key.name:
            return None
        output.library.rename(folder / _LIBRARY)
        record = {"library": _digest(folder / _LIBRARY)}
        (folder / _RECORD).write_text(json.dumps(record))
        _remove_all_but(folder, (_LIBRARY, _RECORD))
        name = key.name
        if not output.lasting:
            # No other process finds it under this name.
            name += "-" + folder.name.removeprefix(toolchain.UNFINISHED)
        # If another process was quicker, the folder is there, and its build is as good.
        with contextlib.suppress(OSError):
            folder.rename(root / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _build_of(root / name, key, time.perf_counter() - started)


def _remove_all_but(folder: Path, names: tuple[str, ...]) -> None:
    """Remove what a compiler left in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in names:
            path.unlink()


def _build_of(folder: Path, key: Key, seconds: float) -> Build:
    library = folder / _LIBRARY
    return Build(library, seconds, (library, *key.watched))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- what is kept ------------------------------------------------------------------------------


def contents() -> list[CachedBuild]:
    """Return all builds in the cache, the last used first."""
    builds = []
    for folder in toolchain.cache_dir().iterdir():
        # A folder may be removed meanwhile; other files are no folders.
        with contextlib.suppress(OSError):
            sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
            if _RECORD in sizes:
                used = folder.stat().st_mtime
                builds.append(CachedBuild(folder.name, sum(sizes.values()), used))
    return sorted(builds, key=lambda build: build.used, reverse=True)


def clear() -> int:
    """Remove all builds, unfinished ones, logs and choices; return the bytes that builds took."""
    root = toolchain.cache_dir()
    builds = contents()
    names = [*(build.name for build in builds), "logs", "best"]
    for folder in [*map(root.joinpath, names), *root.glob(f"{toolchain.UNFINISHED}*")]:
        shutil.rmtree(folder, ignore_errors=True)
    return sum(build.bytes for build in builds)


# Once in a process: a look at 2,000 builds takes as long as a fifth of one.
@functools.cache
def _tidy(root: Path) -> None:
    """Remove what killed builds left an hour ago, and the oldest builds beyond `LIMIT_BYTES`."""
    now = time.time()
    for folder in root.glob(f"{toolchain.UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if now - folder.stat().st_mtime > _YOUNG:
                shutil.rmtree(folder, ignore_errors=True)
    total = 0
    for build in contents():
        total += build.bytes
        if total > LIMIT_BYTES and now - build.used > _YOUNG:
            shutil.rmtree(root / build.name, ignore_errors=True)
