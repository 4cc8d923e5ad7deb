"""Run a command in two processes: one does the work, the other waits for it and for Ctrl-C.

Python runs no signal handler while its main thread is in C code. That lasts for seconds while
torch's libraries are loaded. And KeyboardInterrupt may come between any two instructions, so that
work is left half done. So the process that the shell started forks, and does none of the work. On
Ctrl-C it kills the fork and all processes below it, removes their temporary files, prints one line
and exits with status 130. Otherwise it ends as the fork did.

The fork and the programs that it starts ignore SIGINT, because a terminal sends it to all of them.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

INTERRUPTED = 130
# The seconds that killed processes have to end: a GPU's driver may delay one.
_SECONDS = 1.5


def supervise() -> None:
    """Fork; return in the fork, which does the work. This process ends when the fork ends."""
    # nohup's SIGHUP stays ignored. SIGINT also ends a command in the background.
    ends = {signal.SIGINT}
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            ends.add(each)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    awaited = {signal.SIGCHLD, *ends}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        _die_with(parent)
        return
    _adopt()
    while True:
        came = signal.sigwait(awaited)
        if came != signal.SIGCHLD:
            _interrupted(came)
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            _end_as(os.waitstatus_to_exitcode(status))


def _interrupted(came: int) -> None:
    """Kill all processes of the command, print a line, and exit."""
    _kill_all()
    _remove_temporary()
    if came != signal.SIGINT:
        _die(came)
    with contextlib.suppress(OSError):
        # This clears the line of a progress bar.
        start = "\r\x1b[K" if os.isatty(2) else ""
        os.write(2, f"{start}convlab: interrupted\n".encode())
    os._exit(INTERRUPTED)


def _end_as(code: int) -> None:
    """Exit as the fork did; if it crashed, remove its temporary files."""
    _kill_all()
    if code >= 0:
        os._exit(code)
    _remove_temporary()
    _die(-code)


def _die(number: int) -> None:
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _kill_all() -> None:
    """Kill all children, and the processes that then become children of this one."""
    until = time.monotonic() + _SECONDS
    with contextlib.suppress(ChildProcessError):  # raised when no child is left
        while time.monotonic() < until:
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)


def _remove_temporary() -> None:
    from ..core.machine import toolchain

    for folder in toolchain.temporaries():
        shutil.rmtree(folder, ignore_errors=True)


def _adopt() -> None:
    """Make this process the parent of processes that a descendant leaves behind."""
    from ..core.machine.child_process import adopt

    adopt()


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    from ..core.machine.child_process import die_with_parent

    die_with_parent()
    if os.getppid() != parent:
        sys.exit(INTERRUPTED)
