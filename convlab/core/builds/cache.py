"""Keep builds on disk: each has a key, and is complete or absent.

The key is a hash of all that determines a build: the texts of the source and of its headers, the
flags, the compiler. A build takes place in its own folder, which is renamed into the cache when it
is complete. So two processes can build at the same time, and a killed build does not disturb later
ones. A checksum is stored next to each library.
"""

import contextlib
import errno
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

from ..errors import BuildError
from ..machine import interrupt, toolchain

# The size limit of the cache in bytes; beyond it, the oldest builds are removed.
LIMIT_BYTES = 2 << 30
_LIBRARY = "kernel.so"
_RECORD = "made.json"
# Builds that were used within this time, and unfinished ones of this age, are kept. In seconds.
_YOUNG = 3600.0
# A compiler's log is kept for a week. In seconds.
_OLD_LOG = 7 * 24 * 3600.0


class Key(NamedTuple):
    """The name of a build in the cache, and the paths where an edit may change it."""

    name: str
    # The headers, and the folders in which the compiler looks for them.
    watched: tuple[Path, ...] = ()


class BuildOutput(NamedTuple):
    """The result of a build: the library, and whether other processes may use it."""

    library: Path
    lasting: bool = True


@dataclass(frozen=True)
class Build:
    """A library in the cache. It is current as long as the `stamp` of `watched` does not change."""

    library: Path
    # The time that the build took, in seconds; 0.0 if it was in the cache.
    seconds: float
    watched: tuple[Path, ...] = ()
    # The compiler's flags.
    flags: tuple[str, ...] = ()


class CachedBuild(NamedTuple):
    """An entry of `contents`: a build's folder, its size in bytes, and when it was last used."""

    name: str
    bytes: int
    # The time of the last use, in seconds since 1970.
    used: float


_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
# The builds that this process has used, each with the stamp of its library.
_known: dict[str, tuple[object, Build]] = {}


def build(find_key: Callable[[], Key], make: Callable[[Path], BuildOutput]) -> Build:
    """Return the build for a key; build it in a new folder if it is not in the cache.

    Parameters
    ----------
    find_key
        Returns the key for the present state of the files. A different key after `make` means that
        a header was edited while the compiler read it; then the build is repeated.
    make
        Builds in an empty folder, its argument.
    """
    while True:
        key = find_key()
        # Threads of one process wait for each other; processes do not need to.
        with interrupt.held(), _locks[key.name]:
            seen, known = _known.get(key.name, (None, None))
            if known is not None and seen == stamp([known.library]):
                return replace(known, watched=(known.library, *key.watched))
            library_build = _find(key) or _make(key, find_key, make)
            if library_build is not None:
                entry = replace(library_build, seconds=0.0)
                _known[key.name] = stamp([library_build.library]), entry
                return library_build


def has(key: Key) -> bool:
    """Return whether the cache has an entry for a key; it may be damaged."""
    return key.name in _known or os.path.lexists(toolchain.cache_dir() / key.name)


def stamp(paths: Iterable[Path]) -> tuple[object, ...]:
    """Return the times and sizes of files and folders, which change with an edit.

    The time of the last change of the entry itself (ctime) counts too: a tool that restores the time
    of an edit cannot restore it.
    """
    stamps: list[object] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _find(key: Key) -> Build | None:
    """Return the build for a key from the cache, or None; remove a damaged or planted build."""
    folder = toolchain.cache_dir() / key.name
    if not os.path.lexists(folder):
        return None
    if not _is_sound(folder):
        _remove(folder)
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return _build_of(folder, key, 0.0)


def _is_sound(folder: Path) -> bool:
    """Return whether a folder has a complete build, which this user made."""
    files = [folder / _RECORD, folder / _LIBRARY]
    try:
        if not all(map(toolchain.is_yours, (folder, *files))):
            return False
        record = json.loads(files[0].read_text())
        return record["library"] == _digest(files[1])
    # RecursionError: a record of many brackets.
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link, if possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def _make(
    key: Key, find_key: Callable[[], Key], make: Callable[[Path], BuildOutput]
) -> Build | None:
    """Build, and rename the folder into the cache; return None if the key changed meanwhile.

    Raises BuildError if the cache's file system is full, or something else cannot be written.
    """
    root = toolchain.cache_dir()
    _tidy(root)
    try:
        return _make_in(toolchain.unfinished(root), root, key, find_key, make)
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> BuildError:
    """Return the error for a build that could not be stored, or whose tools did not start."""
    root = toolchain.cache_dir()
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(root).free >> 20
        advice = (
            f"free some space ({free:,} MiB are free), or set {toolchain.CACHE} to another folder"
        )
    elif error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
        advice = "a limit of this shell or container is too low: raise `ulimit -n`, `-u` or `-v`"
    else:
        advice = f"set {toolchain.CACHE} to a writable folder of your own"
    name = f" {error.filename}" if error.filename else ""
    text = f"cannot build in {root}: {error.strerror or error}{name}; {advice}"
    return BuildError(text, kind="not run")


def _make_in(
    folder: Path,
    root: Path,
    key: Key,
    find_key: Callable[[], Key],
    make: Callable[[Path], BuildOutput],
) -> Build | None:
    """Build in a new folder of the cache, as `_make` does."""
    started = time.perf_counter()
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
            # No other process looks for this name.
            name += "-" + folder.name.removeprefix(toolchain.UNFINISHED)
        try:
            folder.rename(root / name)
        except OSError as error:
            # If another process was faster, the folder exists, with an equivalent build.
            if not _is_sound(root / name):
                raise BuildError(
                    f"{root / name} cannot be replaced by a build ({error.strerror}): remove it",
                    kind="not run",
                ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _build_of(root / name, key, time.perf_counter() - started)


def _remove_all_but(folder: Path, names: tuple[str, ...]) -> None:
    """Remove a compiler's other files from a folder."""
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


# ---- the contents of the cache -----------------------------------------------------------------


def contents() -> list[CachedBuild]:
    """Return all builds in the cache, the most recently used first."""
    builds = []
    for folder in toolchain.cache_dir().iterdir():
        # Another process may remove a folder meanwhile, and some entries are files.
        with contextlib.suppress(OSError):
            sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
            if _RECORD in sizes:
                used = folder.stat().st_mtime
                builds.append(CachedBuild(folder.name, sum(sizes.values()), used))
    return sorted(builds, key=lambda build: build.used, reverse=True)


def clear() -> int:
    """Remove all builds, unfinished builds, logs and saved choices; return the builds' bytes."""
    root = toolchain.cache_dir()
    builds = contents()
    names = [*(build.name for build in builds), "logs", "best"]
    for folder in [*map(root.joinpath, names), *root.glob(f"{toolchain.UNFINISHED}*")]:
        shutil.rmtree(folder, ignore_errors=True)
    return sum(build.bytes for build in builds)


# Once in a process, because listing 2,000 builds takes a fifth of the time of one build.
@functools.cache
def _tidy(root: Path) -> None:
    """Remove the remains of killed builds, logs of a week ago, and the oldest builds over the limit."""
    now = time.time()
    for log in root.glob("logs/*"):
        with contextlib.suppress(OSError):
            if now - log.stat().st_mtime > _OLD_LOG:
                log.unlink()
    for folder in root.glob(f"{toolchain.UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if now - folder.stat().st_mtime > _YOUNG:
                shutil.rmtree(folder, ignore_errors=True)
    total = 0
    for build in contents():
        total += build.bytes
        if total > LIMIT_BYTES and now - build.used > _YOUNG:
            shutil.rmtree(root / build.name, ignore_errors=True)
