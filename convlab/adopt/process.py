"""The process that runs answers: it imports torch once, and forks a confined child for each answer.

`machine.child` starts this file. A request is a pickled ``(sys.path, variables, limits, payload)``; the
payload is a pickled ``(function, arguments)``. The child calls ``function(emit, *arguments)``; what it
emits is in the reply even if the child crashes or exceeds a limit.
"""

import contextlib
import ctypes
import os
import pickle
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

import child_process as child  # ../core/machine/child_process.py, which runs this file

# The seconds between two looks at a child's memory and processes.
_TICK = 0.1


def serve(server, path: str) -> None:
    """Answer requests, each in a fork; `path` is the sys.path of the imports, as JSON."""
    import json

    child.adopt()
    sys.path[:] = json.loads(path)
    # Without this, torch asks the driver for GPUs in this process, and a fork then cannot use CUDA.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # The imports are shared by all children. They take seconds, and begin before the first request.
    import torch  # noqa: F401

    from convlab.adopt import judge  # noqa: F401

    while True:
        path, variables, limits, payload = pickle.loads(server.request())
        sys.path[:] = path
        os.environ |= variables
        server.begun()
        server.reply(pickle.dumps(_run(server, limits, payload)))


def _run(server, limits: dict, payload: bytes) -> dict:
    """Run a payload in a fork; return what it emitted, and how it ended."""
    from convlab.adopt import confine

    scratch = Path(tempfile.mkdtemp(prefix="convlab_adopt_", dir=limits["temporary"]))
    incoming, outgoing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    # Both processes do it, so that it is done when either goes on.
    with contextlib.suppress(OSError):
        os.setpgid(process, process)
    if process == 0:
        os.close(incoming)
        os.close(server.line)
        _work(outgoing, scratch, payload)
    os.close(outgoing)
    try:
        data, stopped = _collect(incoming, process, limits, confine)
    finally:
        os.close(incoming)
        # All at once: a fork bomb grows faster than its processes can be ended one by one.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        status = _ended(process)
        child.end_children()
        shutil.rmtree(scratch, ignore_errors=True)
    return {"pieces": _pieces(data), "stopped": stopped, "status": status}


def _ended(process: int) -> int | None:
    """Kill a child if it still runs; return its exit status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return None


def _collect(incoming: int, process: int, limits: dict, confine) -> tuple[bytes, str]:
    """Read what a child emits until it ends; return it, and the limit that it exceeded, or ""."""
    data = b""
    shown = 0
    until = time.monotonic() + limits["seconds"]
    watch = select.poll()
    watch.register(incoming, select.POLLIN)
    while True:
        if watch.poll(1e3 * _TICK):
            more = os.read(incoming, 1 << 20)
            if not more:
                return data, ""
            data += more
            found = _pieces(data)
            for piece in found[shown:]:
                if isinstance(piece, dict) and isinstance(piece.get("told"), str):
                    # The parent process shows it while the judgement goes on.
                    print(piece["told"][:300], file=sys.stderr, flush=True)
            shown = len(found)
        processes = confine.descendants(process, limits["processes"])
        if time.monotonic() > until:
            return data, f"it did not end within {limits['seconds']:g} s"
        if len(processes) > limits["processes"]:
            return data, f"it started more than {limits['processes']} processes"
        if confine.resident_bytes(processes) > limits["bytes"]:
            return data, f"it used more than {limits['bytes'] / 2**30:.1f} GiB of memory"


def _pieces(data: bytes) -> list:
    """Return the complete pieces that a child emitted."""
    found = []
    while len(data) >= 8:
        (size,) = struct.unpack_from("<Q", data)
        if len(data) < 8 + size:
            break
        with contextlib.suppress(Exception):
            found.append(_plain(data[8 : 8 + size]))
        data = data[8 + size :]
    return found


def _plain(data: bytes) -> object:
    """Return a piece; it is JSON, because a pickle of somebody's code could run code here."""
    import json

    return json.loads(data)


def _work(outgoing: int, scratch: Path, payload: bytes) -> None:
    """Run a payload in this (forked) process, confined, and end the process."""
    import json

    from convlab.adopt import confine

    def emit(piece: object) -> None:
        data = json.dumps(piece).encode()
        data = struct.pack("<Q", len(data)) + data
        while data:
            data = data[os.write(outgoing, data) :]

    status = 0
    try:
        child.die_with_parent()
        # What the answer prints is no part of the report, or of a JSON document.
        os.dup2(2, 1)
        os.chdir(scratch)
        os.environ |= {"TMPDIR": str(scratch), "HOME": str(scratch)}
        tempfile.tempdir = str(scratch)
        devices = [Path("/dev/null"), Path("/dev/zero"), Path("/dev/tty")]
        devices += [path for path in Path("/dev").glob("nvidia*")]
        # CUDA names its threads there, and does not start (error 304) if it may not.
        devices.append(Path("/proc/self/task"))
        unconfined = confine.confine([scratch, *devices])
        emit({"unconfined": unconfined})
        function, arguments = pickle.loads(payload)
        function(emit, *arguments)
    except BaseException as error:
        emit({"crash": "".join(traceback.format_exception(error))[-4000:]})
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
        os._exit(status)
