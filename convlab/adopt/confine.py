"""Confine this process before it runs somebody's code: files, network, sizes. Linux only.

Landlock (a part of the Linux kernel since 5.13) limits a process, and all that it starts, to writing
below some folders. It needs no privilege. What a machine cannot do is returned, for a note.
"""

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Sequence
from pathlib import Path

# The numbers of Landlock's system calls, the same on all architectures.
_CREATE = 444
_ADD_RULE = 445
_RESTRICT = 446
_NO_NEW_PRIVILEGES = 38
_BENEATH = 1
# Bits of access to files: execute, write, read, list; remove, make and so on; truncate; ioctl.
_WRITE = 1 << 1
_CHANGES = _WRITE | sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_TRUNCATE = 1 << 14
# Bits of access to the network: bind and connect TCP sockets.
_NETWORK = 3
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "COOKIE")
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
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    size = _LARGEST_FILE if hard == resource.RLIM_INFINITY else min(_LARGEST_FILE, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return _landlock(writable)


def _landlock(writable: Sequence[Path]) -> list[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return ["writing to files, and the network (this Linux has no Landlock)"]
    changes = _CHANGES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    network = _NETWORK if version >= 4 else 0
    rules = struct.pack("=QQ", changes, network)
    size = 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE, rules, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return ["writing to files, and the network (Landlock is turned off)"]
    for path in writable:
        _allow(libc, ruleset, path, changes)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    failed = libc.syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)
    if failed:
        return ["writing to files, and the network (Landlock refused)"]
    return [] if network else ["the network (Landlock of this Linux is older than 6.7)"]


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, changes: int) -> None:
    """Add a rule that allows changes below a folder, or writing to a device."""
    if not path.exists():
        return
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = changes if path.is_dir() else changes & (_WRITE | _TRUNCATE)
        rule = struct.pack("=Qi", allowed, place)
        libc.syscall(_ADD_RULE, ruleset, _BENEATH, rule, 0)
    finally:
        os.close(place)


def descendants(process: int) -> list[int]:
    """Return the processes below a process, itself included."""
    found = [process]
    for each in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                text = Path(f"/proc/{each}/task/{task}/children").read_text()
                found += [int(word) for word in text.split() if int(word) not in found]
    return found


def resident_bytes(processes: Sequence[int]) -> int:
    """Return the memory that processes use together; memory that they share counts once each."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{process}/statm").read_text().split()
            total += (int(fields[1]) - int(fields[2])) * resource.getpagesize()
    return total
