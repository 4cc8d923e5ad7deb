"""Confine the process that runs an untrusted kernel: what Linux lets it do, from here on.

The host process (``host.py``) calls `confine` in the forked child, before it loads the kernel's
library, if the variable CONVLAB_CONFINED is set. The kernel's code then cannot write files, read
files outside of the given folders, reach the network or other processes, start a process, or take
unlimited memory. It needs no rights of root. Three parts of Linux do this: limits (setrlimit), a
filter of system calls (seccomp) and a filter of files (Landlock, Linux 5.13 and later). This file
imports nothing from the package, because the host process has no path to it.
"""

import ctypes
import errno
import importlib.util
import os
import platform
import resource
import struct
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

# The most private memory of the process, and the largest file, in bytes.
MOST_MEMORY = 6 << 30
MOST_WRITTEN = 64 << 20
# ---- prctl
_SET_SECCOMP = 22
_NO_NEW_PRIVILEGES = 38
_FILTER = 2
# ---- the numbers of system calls, of an architecture and its audit number
_X86_64 = (
    0xC000003E,
    (
        "read 0 write 1 close 3 fstat 5 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12 rt_sigaction 13 "
        "rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 pwrite64 18 readv 19 writev 20 access 21 "
        "sched_yield 24 mremap 25 madvise 28 dup 32 dup2 33 nanosleep 35 getitimer 36 setitimer 38 "
        "getpid 39 clone 56 exit 60 uname 63 fcntl 72 readlink 89 getrusage 98 sysinfo 99 getuid 102 "
        "sigaltstack 131 arch_prctl 158 gettid 186 futex 202 sched_getaffinity 204 set_tid_address 218 "
        "clock_gettime 228 clock_getres 229 clock_nanosleep 230 exit_group 231 tgkill 234 openat 257 "
        "newfstatat 262 readlinkat 267 set_robust_list 273 dup3 292 getrandom 318 membarrier 324 "
        "statx 332 rseq 334 clone3 435"
    ),
)
_AARCH64 = (
    0xC00000B7,
    (
        "dup 23 dup3 24 fcntl 25 ioctl 29 faccessat 48 openat 56 close 57 lseek 62 read 63 write 64 "
        "readv 65 writev 66 pread64 67 pwrite64 68 readlinkat 78 newfstatat 79 fstat 80 exit 93 "
        "exit_group 94 set_tid_address 96 futex 98 set_robust_list 99 nanosleep 101 getitimer 102 "
        "setitimer 103 clock_gettime 113 clock_getres 114 clock_nanosleep 115 sched_getaffinity 123 "
        "sched_yield 124 tgkill 131 sigaltstack 132 rt_sigaction 134 rt_sigprocmask 135 rt_sigreturn 139 "
        "uname 160 getrusage 165 getpid 172 getuid 174 gettid 178 sysinfo 179 brk 214 munmap 215 "
        "mremap 216 clone 220 mmap 222 mprotect 226 madvise 233 getrandom 278 membarrier 283 statx 291 "
        "rseq 293 clone3 435"
    ),
)
_CALLS = {"x86_64": _X86_64, "aarch64": _AARCH64}
# clone with this flag starts a thread; without it, a process.
_THREAD = 0x00010000
# ---- instructions and answers of a filter (linux/bpf_common.h, linux/seccomp.h)
_LOAD = 0x20
_EQUAL = 0x15
_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
# Offsets in struct seccomp_data: the call, the architecture, the low half of the first argument.
_NUMBER = 0
_ARCHITECTURE = 4
_FIRST_ARGUMENT = 16


def _landlock() -> ModuleType:
    """Return convlab/core/machine/landlock.py: the process has no path to the package."""
    path = Path(__file__).parents[1] / "core" / "machine" / "landlock.py"
    spec = importlib.util.spec_from_file_location("landlock", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def available() -> list[str]:
    """Return which parts this system has: "limits", "system calls", "files"."""
    parts = ["limits"]
    libc = ctypes.CDLL(None, use_errno=True)
    # Where filters exist, an invalid pointer is refused as such.
    libc.prctl(_SET_SECCOMP, _FILTER, None, 0, 0)
    if platform.machine() in _CALLS and ctypes.get_errno() == errno.EFAULT:
        parts.append("system calls")
    if _landlock().version():
        parts.append("files")
    return parts


def confine(readable: Iterable[str], seconds: float) -> None:
    """Confine this process for good, as far as the system allows; see `available`.

    Parameters
    ----------
    readable : the files and folders that it may still read.
    seconds : the time limit of the processor, for all threads together.
    """
    parts = available()
    limits = {
        resource.RLIMIT_DATA: MOST_MEMORY,
        resource.RLIMIT_FSIZE: MOST_WRITTEN,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(seconds) + 1,
    }
    for limit, most in limits.items():
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    libc = ctypes.CDLL(None, use_errno=True)
    _require(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if "files" in parts:
        _restrict_files(readable)
    if "system calls" in parts:
        _restrict_calls(libc)


def _require(status: int) -> int:
    """Return the status of a system call; raise OSError if it failed."""
    if status < 0:
        raise OSError(ctypes.get_errno(), "the kernel's process could not be confined")
    return status


def _restrict_files(readable: Iterable[str]) -> None:
    """Allow no access to files but reading the given ones, and no access to other processes."""
    landlock = _landlock()
    allowed = landlock.EXECUTE | landlock.READ_FILE | landlock.READ_FOLDER
    landlock.restrict(landlock.ALL, [(path, allowed) for path in readable], scopes=True)


def _restrict_calls(libc: ctypes.CDLL) -> None:
    """Allow only the system calls that a simulated kernel needs."""
    architecture, text = _CALLS[platform.machine()]
    words = text.split()
    numbers = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    # glibc tries clone3 first, whose flags a filter cannot see, and then clone.
    clone3 = numbers.pop("clone3")
    clone = numbers.pop("clone")
    tgkill = numbers.pop("tgkill")
    refuse = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 1, clone3),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
    ]
    for number in numbers.values():
        code += [(_EQUAL, 0, 1, number), allow]
    # Threads, but no processes.
    code += [(_EQUAL, 0, 4, clone), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_ANY_BIT, 0, 1, _THREAD), allow, refuse]
    # Signals to this process only.
    code += [(_EQUAL, 0, 3, tgkill), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_EQUAL, 0, 1, os.getpid()), allow, refuse]
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    kept = ctypes.create_string_buffer(program)
    # struct sock_fprog: the number of instructions, and their address.
    filter_ = struct.pack("@HP", len(code), ctypes.addressof(kept))
    _require(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(filter_), 0, 0))
