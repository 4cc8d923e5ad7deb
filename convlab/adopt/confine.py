"""Confine this process before it runs somebody's code: files, network, sizes. Linux only.

Landlock limits the process, and all that it starts, to writing below some folders. What a machine
cannot do is returned, for a note.
"""

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from ..core.machine import landlock

_CHANGES = landlock.WRITE_FILE | landlock.CHANGE_FOLDER | landlock.REFER | landlock.TRUNCATE
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "COOKIE")
# The processes and threads that the user may have beyond those of now.
_MORE_PROCESSES = 2048
# The largest file, in bytes.
_LARGEST_FILE = 1 << 30


def confine(writable: Sequence[Path]) -> list[str]:
    """Confine this process and its children; return what could not be confined.

    Parameters
    ----------
    writable : the folders and devices to which it may write.
    """
    for name in list(os.environ):
        if any(word in name.upper() for word in _SECRET):
            del os.environ[name]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_processes()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    size = _LARGEST_FILE if hard == resource.RLIM_INFINITY else min(_LARGEST_FILE, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        rules = [(path, _CHANGES) for path in writable]
        no_network = landlock.restrict(_CHANGES, rules, scopes=True)
    except OSError as error:
        return [f"writing to files, and the network ({error.strerror})"]
    return [] if no_network else ["the network (Landlock of this Linux is older than 6.7)"]


def _limit_processes() -> None:
    """Limit the processes and threads of this user, and so of a fork bomb; Linux exempts root."""
    own = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                own += len(os.listdir(folder / "task"))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = own + _MORE_PROCESSES
    if hard == resource.RLIM_INFINITY or most < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def descendants(process: int, most: int) -> list[int]:
    """Return the processes below a process, itself included; of a fork bomb, `most` and some more."""
    found = [process]
    for each in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                text = Path(f"/proc/{each}/task/{task}/children").read_text()
                found += [int(word) for word in text.split() if int(word) not in found]
                if len(found) > most:
                    return found
    return found


def resident_bytes(processes: Sequence[int]) -> int:
    """Return the memory that processes use together; memory that they share counts once each."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{process}/statm").read_text().split()
            total += (int(fields[1]) - int(fields[2])) * resource.getpagesize()
    return total
