"""What runs in a child of `machine.child`'s: serve a script's requests, or outlive a program.

    child_process.py serve SOCKET SCRIPT ARGUMENT...    the script's ``serve(server, *arguments)``
    child_process.py keep LINE COMMAND...               the program, and then the end of all it left

It imports nothing of convlab's, for it starts where there is no path to it; a script that it serves
finds it as the module ``child_process``.
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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

ID_BYTES = 8  # of a request's number, before each message
OUT_OF_REACH = 200  # descriptors from here on: not what stray writes to 3, 4, ... meet
_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl


class Server:
    """The script's side of the socket, whose descriptor is `line`: request, begun, reply, again."""

    def __init__(self, descriptor: int) -> None:
        # no child of this process's inherits it, and no stray write finds it
        self.line = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_REACH)
        os.close(descriptor)
        self._connection = Connection(self.line)

    def request(self) -> bytes:
        """Wait for a request; EOFError when the other side is gone."""
        message = self._connection.recv_bytes()
        self._number, self._began = message[:ID_BYTES], False
        return message[ID_BYTES:]

    def begun(self) -> None:
        """Say that the request's time begins; else it does with the reply."""
        self._began = True
        self._connection.send_bytes(self._number)

    def reply(self, message: bytes) -> None:
        """Answer the request."""
        if not self._began:
            self.begun()
        self._connection.send_bytes(self._number + message)


def die_with_parent() -> None:
    """Have this process killed when the one that forked it ends."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def adopt() -> None:
    """Have what a descendant leaves behind become this process's child."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def outlive(process: int, line: int) -> int | None:
    """Return a child's wait status, None where the socket hung up before; end all it adopted."""
    ended = os.pidfd_open(process)
    watch = select.poll()
    watch.register(ended, select.POLLIN)
    watch.register(line, 0)
    ready = dict(watch.poll())
    os.close(ended)
    status = os.waitpid(process, 0)[1] if ended in ready else None
    with contextlib.suppress(ChildProcessError):  # raised when there is none any more
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGKILL)
                os.waitpid(-1, 0)
    return status


def keep(line: int, command: Sequence[str]) -> None:
    """Run a program, end what it leaves, and end as it did."""
    adopt()
    os.set_inheritable(line, False)
    process = os.fork()
    if process == 0:
        die_with_parent()
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        finally:
            sys.stderr.flush()
            os._exit(127)
    for stream in (0, 1, 2):  # whoever reads them sees the end of them when the program has ended
        os.close(stream)
    status = outlive(process, line)
    code = -signal.SIGTERM if status is None else os.waitstatus_to_exitcode(status)
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
    what, descriptor, *rest = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if what == "keep":
        keep(int(descriptor), rest)
    script, *arguments = rest
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other side's to act on
    server = Server(int(descriptor))
    sys.modules["child_process"] = sys.modules["__main__"]
    module = load(Path(script))
    with contextlib.suppress(EOFError, ConnectionError):
        module.serve(server, *arguments)


if __name__ == "__main__":
    main()
