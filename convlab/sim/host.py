"""The process that simulated kernels die in: `machine.child` starts it, and it never imports torch.

It forks for each request, and lets the child load the kernel's library and run it, so that whatever
the kernel does to its process, the next request finds a fresh one. Requests and replies are JSON; a
reply tells how the child ended, and what it wrote to its report (see ``runtime/``).
"""

import ctypes
import fcntl
import json
import os
from pathlib import Path

import child_process as child  # ../machine/child_process.py, which runs this

abi = child.load(Path(__file__).parents[1] / "machine" / "abi.py")


def serve(server) -> None:
    """Serve requests; what the kernels print goes to this process's stdout."""
    child.adopt()
    os.dup2(1, 2)
    while True:
        request = json.loads(server.request())
        server.begun()
        memory = os.memfd_create("report")
        report = fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, child.OUT_OF_REACH)
        os.close(memory)
        process = os.fork()
        if process == 0:
            os.close(server.line)
            child.die_with_parent()
            _apart(request, report)
        status = child.outlive(process, server.line)
        if status is None:
            return
        with open(report, errors="replace", newline="") as file:
            file.seek(0)
            text = file.read()
        reply = {"status": os.waitstatus_to_exitcode(status), "report": text}
        server.reply(json.dumps(reply).encode())


def _apart(request: dict, report: int) -> None:
    """Carry out a request in this (forked) process, which ends with it."""
    status = 0
    try:
        _run(request, report)
        ctypes.CDLL(None).fflush(None)
    except BaseException as error:  # whatever it is, the caller must hear of it
        os.write(report, f"error\t{type(error).__name__}: {error}\n".encode())
        status = 1
    finally:
        os._exit(status)


def _run(request: dict, report: int) -> None:
    """Run one launch and write its outcome to ``report``."""
    runtime = ctypes.CDLL(request["runtime"], mode=ctypes.RTLD_GLOBAL)
    size, real = ctypes.c_size_t, ctypes.c_double
    runtime.sim_map.restype = ctypes.c_void_p
    runtime.sim_map.argtypes = [ctypes.c_char_p, ctypes.c_int, size, size, ctypes.c_int]
    runtime.sim_begin(request["threads"], int(request["trace"]), report)
    runtime.sim_schedule(request["schedule"])
    runtime.sim_time_limit(real(request["time_limit"]), real(request["stall_limit"]))
    for offset, width in request.get("joined", []):
        runtime.sim_joined(size(offset), width)
    if request.get("sample"):
        runtime.sim_sample(*map(ctypes.c_uint64, request["sample"]))
    if request.get("record"):
        *place, limit = request["record"]
        runtime.sim_record(*place, size(limit))
    library = ctypes.CDLL(request["library"])  # static initialisers run here

    def tell(key: str, value: object) -> None:
        os.write(report, f"{key}\t{value}\n".encode())

    def buffer(name: str, access: int) -> int | None:
        """Map one of the caller's buffers; no descriptor of it is left for the kernel to find."""
        if name not in request["buffers"]:
            return None
        memory = os.open(request["memory"], os.O_RDWR)
        try:
            return runtime.sim_map(name.encode(), memory, *request["buffers"][name], access)
        finally:
            os.close(memory)

    tell("base", _base_address(request["library"]))
    call = _any_kernel if "arguments" in request else _convolution
    if not call(request, runtime, library, buffer, tell):
        return
    runtime.sim_finish()
    count = ctypes.c_int()
    runtime.sim_counters.restype = ctypes.POINTER(ctypes.c_uint64)
    counters = runtime.sim_counters(ctypes.byref(count))
    tell("counters", json.dumps([counters[i] for i in range(count.value)]))


def _convolution(request: dict, runtime, library, buffer, tell) -> bool:
    """Call the entry points; False where the workspace would be too large."""
    entry = abi.Entry(request["library"], request["problem"])
    x, w, bias, y = (buffer(name, name == "y") for name in ("x", "w", "bias", "y"))
    need, plan = entry.workspace(request["workspace_limit"]), entry.plan()
    tell("workspace", need)
    if need > request["workspace_limit"]:
        return False
    workspace = runtime.sim_map(b"workspace", -1, 0, need, 1) if need else None
    error = None
    if plan:
        laid_out = runtime.sim_map(b"plan", -1, 0, plan, 1)
        error, w = entry.prepare(w, laid_out), laid_out
    error = error or entry.conv2d(x, w, bias, y, workspace, need)
    _tell_error(error, runtime, tell)
    return True


class _Argument(ctypes.Structure):  # as sim::Argument in include/sim.h
    _fields_ = (
        ("pointer", ctypes.c_void_p),
        ("real", ctypes.c_double),
        ("whole", ctypes.c_longlong),
        ("is_real", ctypes.c_int),
    )


def _any_kernel(request: dict, runtime, library, buffer, tell) -> bool:
    """Call ``sim_entry`` with what was given for each parameter: a buffer's name or a number."""
    given = [
        _Argument(pointer=buffer(a, 2)) if isinstance(a, str)
        else _Argument(real=a, is_real=1) if isinstance(a, float)
        else _Argument(whole=a or 0)
        for a in request["arguments"]
    ]  # fmt: skip
    shape = (ctypes.c_uint * 8)(*request["shape"], len(given))
    library.sim_entry.restype = ctypes.c_char_p
    error = library.sim_entry((_Argument * len(given))(*given), shape)
    _tell_error(error and error.decode(errors="replace"), runtime, tell)
    return True


def _tell_error(error: str | None, runtime, tell) -> None:
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    if not error and (code := runtime.cudaPeekAtLastError()):
        error = runtime.cudaGetErrorString(code).decode()
    if error:
        tell("error", error)


def _base_address(library: str) -> str:
    """Where the library was loaded (hex): code addresses minus this are offsets in the file."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(library):
                return line.split("-")[0]
    return "0"
