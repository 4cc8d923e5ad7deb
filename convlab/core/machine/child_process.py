"""The script that `machine.child` starts: one process does the work, the other one outlives it.

    child_process.py LINE serve SCRIPT ARGUMENT...    run the script's ``serve(server, *arguments)``
    child_process.py LINE run COMMAND...              run a program

The started process forks, and the fork does the work. The first process waits until the fork ends,
or until the socket LINE closes. It then ends all remaining descendants, and exits with the fork's
status. This file imports nothing from convlab, because the child starts without a path to it. A
script can import this file as ``child_process``.
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

# The length of a request's number, which precedes each message, in bytes.
ID_BYTES = 8
# Descriptors from this number on are safe from stray writes to 3, 4, ... With a smaller `ulimit -n`
# they are the last ones that are allowed.
OUT_OF_REACH = max(3, min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 8))
# Options of prctl.
_PDEATHSIG = 1
_SUBREAPER = 36


class Server:
    """The script's side of the socket. Call `request`, `begun` and `reply` in turn.

    `line` is the socket's descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        # This import is slow, and `run` does not need it.
        from multiprocessing.connection import Connection

        # Children do not inherit this descriptor, and stray writes do not reach it.
        self.line = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_REACH)
        os.close(descriptor)
        self._connection = Connection(self.line)

    def request(self) -> bytes:
        """Wait for a request and return it; raise EOFError if the other side has ended."""
        message = self._connection.recv_bytes()
        self._number = message[:ID_BYTES]
        return message[ID_BYTES:]

    def begun(self) -> None:
        """Report that the work begins; the time limit starts now."""
        self.reply(b"")

    def reply(self, message: bytes) -> None:
        """Reply to the request; the message must not be empty."""
        self._connection.send_bytes(self._number + message)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def adopt() -> None:
    """Make orphaned descendants children of this process."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def end_children() -> None:
    """End all children, including those that are adopted meanwhile."""
    # ChildProcessError means that no child is left.
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGKILL)
                os.waitpid(-1, 0)


def outlive(process: int, line: int) -> None:
    """Wait for the fork or the end of the socket; end what is left, and exit with its status."""
    # Close the standard streams, so that their readers see the end when the fork ends.
    os.closerange(0, 3)
    ended = os.pidfd_open(process)
    watch = select.poll()
    watch.register(ended, select.POLLIN)
    watch.register(line, 0)
    code = -signal.SIGTERM
    if ended in dict(watch.poll()):
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    end_children()
    if code < 0:
        # SIGKILL has no handler to reset.
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def load(path: Path) -> ModuleType:
    """Import a file as a top-level module, whatever package contains it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run the command line described in this module's docstring."""
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
