"""What `machine.child` starts: a process that does the work, and one that outlives it.

    child_process.py LINE serve SCRIPT ARGUMENT...    the script's ``serve(server, *arguments)``
    child_process.py LINE run COMMAND...              the program

The process that was started forks. The fork does the work; it itself waits until that has ended, or
the socket LINE hangs up, ends all that the work left behind, and ends as it did. Nothing of convlab's
is imported, for this starts where there is no path to it; a script finds it as ``child_process``.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import resource
import select
import signal
import sys
from pathlib import Path
from types import ModuleType

ID_BYTES = 8  # of a request's number, before each message
OUT_OF_REACH = 200  # descriptors from here on: not what stray writes to 3, 4, ... meet
# of prctl
_PDEATHSIG = 1
_SUBREAPER = 36


class Server:
    """The script's side of the socket, whose descriptor is `line`: request, begun, reply, again."""

    def __init__(self, descriptor: int) -> None:
        # slow to import, and a program that is run needs none of it
        from multiprocessing.connection import Connection

        # no child of this process's inherits it, and no stray write finds it
        self.line = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_REACH)
        os.close(descriptor)
        self._connection = Connection(self.line)

    def request(self) -> bytes:
        """Wait for a request; EOFError when the other side is gone."""
        message = self._connection.recv_bytes()
        self._number = message[:ID_BYTES]
        return message[ID_BYTES:]

    def begun(self) -> None:
        """Say that the request's time begins."""
        self.reply(b"")

    def reply(self, message: bytes) -> None:
        """Answer the request; an answer is not empty."""
        self._connection.send_bytes(self._number + message)


def die_with_parent() -> None:
    """Have this process killed when the one that forked it ends."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def adopt() -> None:
    """Have what a descendant leaves behind become this process's child."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def end_children() -> None:
    """End all children, and those that are adopted then."""
    with contextlib.suppress(ChildProcessError):  # raised when there is none any more
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGKILL)
                os.waitpid(-1, 0)


def outlive(process: int, line: int) -> None:
    """Wait for a fork, or the end of the socket; end what is left, and end as the fork did."""
    os.closerange(0, 3)  # whoever reads them sees their end when the fork has ended
    ended = os.pidfd_open(process)
    watch = select.poll()
    watch.register(ended, select.POLLIN)
    watch.register(line, 0)
    code = -signal.SIGTERM
    if ended in dict(watch.poll()):
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    end_children()
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def load(path: Path) -> ModuleType:
    """Import a file as a module of its own, whatever package it is in."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Do what the command line says, see above."""
    line = int(sys.argv[1])
    (what, *words) = sys.argv[2:]
    os.set_inheritable(line, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    adopt()
    if process := os.fork():
        outlive(process, line)
    die_with_parent()
    if what == "run":
        os.execvp(words[0], words)
    script, *arguments = words
    server = Server(line)
    sys.modules["child_process"] = sys.modules["__main__"]
    module = load(Path(script))
    with contextlib.suppress(EOFError, ConnectionError):
        module.serve(server, *arguments)


if __name__ == "__main__":
    main()
