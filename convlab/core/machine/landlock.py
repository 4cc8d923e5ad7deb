"""Restrict what this process may do with files, by Landlock, a part of the Linux kernel since 5.13.

It needs no privilege, holds for all processes that this one starts, and cannot be undone. This file
imports nothing from convlab, because processes with no path to the package use it, too.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

# Rights (linux/landlock.h).
EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_FOLDER = 1 << 3
# To remove and make files, folders and other nodes.
CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
REFER = 1 << 13
TRUNCATE = 1 << 14
ALL = (1 << 16) - 1
# The rights that a file can have; the others are those of a folder.
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | 1 << 15
# The system calls have the same numbers on all architectures.
_CREATE = 444
_ADD_RULE = 445
_RESTRICT = 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
# How many rights each version knows; later ones know all.
_KNOWN = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_KNOWN = 16
# To bind and to connect TCP sockets, since version 4; signals and abstract sockets, since version 6.
_BOTH_NETWORKS = 3
_BOTH_SCOPES = 3


def version() -> int:
    """Return Landlock's version; 0 if this Linux has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG), 0)


def restrict(
    handled: int, rules: Iterable[tuple[str | Path, int]], *, scopes: bool = False
) -> bool:
    """Take the `handled` rights from this process, and TCP, except for what the rules allow.

    Parameters
    ----------
    handled : the rights that are taken away, as far as this version knows them.
    rules : files and folders with the rights that remain below them. Those that do not exist are
        left out.
    scopes : whether to forbid signals and abstract sockets to processes outside, too.

    Returns
    -------
    bool
        Whether TCP is forbidden: older versions cannot do that.

    Raises
    ------
    OSError
        This Linux has no Landlock, or it is turned off.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    known = version()
    if not known:
        raise OSError(errno.ENOSYS, "this Linux has no Landlock")
    rights = handled & (1 << _KNOWN.get(known, _ALL_KNOWN)) - 1
    networks = _BOTH_NETWORKS if known >= 4 else 0
    # Later versions read more of the structure.
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    given = struct.pack("=QQQ", rights, networks, _BOTH_SCOPES if scopes and known >= 6 else 0)
    ruleset = _require(libc.syscall(_CREATE, given, ctypes.c_size_t(size), 0))
    try:
        for path, allowed in rules:
            _allow(libc, ruleset, path, allowed & rights)
        _require(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _require(libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)
    return networks != 0


def _allow(libc: ctypes.CDLL, ruleset: int, path: str | Path, allowed: int) -> None:
    """Add a rule that allows rights on a file, or below a folder."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # Systems differ in which of these files they have.
        return
    try:
        if not os.path.isdir(path):
            allowed &= _OF_FILES
        rule = struct.pack("=Qi", allowed, place)
        _require(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(place)


def _require(status: int) -> int:
    """Return the status of a system call; raise OSError if it failed."""
    if status < 0:
        raise OSError(ctypes.get_errno(), "the process could not be confined")
    return status
