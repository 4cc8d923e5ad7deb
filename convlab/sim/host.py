"""The process that simulated kernels die in: it never imports torch, and is run as a script.

It reads one JSON request a line, forks, and lets the child load the kernel's library and run it,
so that whatever the kernel does to its process, the next request finds a fresh one. The reply is
one JSON line: how the child ended, and what it wrote to its report (see ``runtime/``).
"""

import ctypes
import json
import os
import signal
import sys


def run(request: dict, report: int) -> None:
    """Run one launch in this (forked) process and write its outcome to ``report``."""
    runtime = ctypes.CDLL(request["runtime"], mode=ctypes.RTLD_GLOBAL)
    runtime.sim_map.restype = ctypes.c_void_p
    size = ctypes.c_size_t
    runtime.sim_map.argtypes = [ctypes.c_char_p, ctypes.c_int, size, size, ctypes.c_int]
    runtime.sim_begin(request["threads"], int(request["trace"]), report)
    runtime.sim_schedule(request["schedule"])
    for offset, size in request.get("joined", []):
        runtime.sim_joined(ctypes.c_size_t(offset), size)
    if request.get("sample"):
        runtime.sim_sample(*map(ctypes.c_uint64, request["sample"]))
    if request.get("record"):
        *place, limit = request["record"]
        runtime.sim_record(*place, ctypes.c_size_t(limit))
    library = ctypes.CDLL(request["library"])

    def tell(key: str, value: object) -> None:
        os.write(report, f"{key}\t{value}\n".encode())

    tell("base", _base_address(request["library"]))
    memory = os.open(request["memory"], os.O_RDWR)

    def buffer(name: str, access: int) -> int | None:
        if name not in request["buffers"]:
            return None
        offset, size = request["buffers"][name]
        return runtime.sim_map(name.encode(), memory, offset, size, access)

    runtime.sim_time_limit.argtypes = [ctypes.c_double]
    runtime.sim_time_limit(request["time_limit"])
    call = _any_kernel if "arguments" in request else _convolution
    error = call(request, runtime, library, buffer, tell)
    if error is False:
        return
    if error:
        tell("error", error.decode(errors="replace"))
    elif runtime.cudaPeekAtLastError():
        runtime.cudaGetErrorString.restype = ctypes.c_char_p
        code = runtime.cudaPeekAtLastError()
        tell("error", runtime.cudaGetErrorString(code).decode())
    runtime.sim_finish()
    count = ctypes.c_int()
    runtime.sim_counters.restype = ctypes.POINTER(ctypes.c_uint64)
    counters = runtime.sim_counters(ctypes.byref(count))
    tell("counters", json.dumps([counters[i] for i in range(count.value)]))


def _convolution(request: dict, runtime, library, buffer, tell) -> bytes | None | bool:
    """Call ``conv2d``; its error, None, or False where the workspace would be too large."""
    dims = (ctypes.c_int * len(request["problem"]))(*request["problem"])
    x, w, bias, y = (buffer(name, name == "y") for name in ("x", "w", "bias", "y"))
    need, workspace = 0, None
    if hasattr(library, "conv2d_workspace"):
        library.conv2d_workspace.restype = ctypes.c_size_t
        need = library.conv2d_workspace(dims, ctypes.c_size_t(request["workspace_limit"]))
    tell("workspace", need)
    if need > request["workspace_limit"]:
        return False
    if need:
        workspace = runtime.sim_map(b"workspace", -1, 0, need, 1)
    args = [ctypes.c_void_p(a) for a in (x, w, bias, y, workspace)]
    library.conv2d.restype = ctypes.c_char_p
    return library.conv2d(dims, *args, ctypes.c_size_t(need), None)


class _Argument(ctypes.Structure):  # as sim::Argument in include/sim.h
    _fields_ = (
        ("pointer", ctypes.c_void_p),
        ("real", ctypes.c_double),
        ("whole", ctypes.c_longlong),
        ("is_real", ctypes.c_int),
    )


def _any_kernel(request: dict, runtime, library, buffer, tell) -> bytes | None:
    """Call ``sim_entry`` with what was given for each parameter: a buffer's name or a number."""
    given = [
        _Argument(pointer=buffer(a, 2)) if isinstance(a, str)
        else _Argument(real=a, is_real=1) if isinstance(a, float)
        else _Argument(whole=a or 0)
        for a in request["arguments"]
    ]  # fmt: skip
    shape = (ctypes.c_uint * 8)(*request["shape"], len(given))
    library.sim_entry.restype = ctypes.c_char_p
    return library.sim_entry((_Argument * len(given))(*given), shape)


def _base_address(library: str) -> str:
    """Where the library was loaded (hex): code addresses minus this are offsets in the file."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(library):
                return line.split("-")[0]
    return "0"


def main() -> None:
    """Serve requests from standard input until it closes."""
    replies = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 0
            try:
                os.close(read)
                # should the caller be gone by then, nobody else ends an endless loop
                signal.alarm(int(min(request["time_limit"], 1e6)) + 5)
                output = os.open(request["output"], os.O_RDWR | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                run(request, write)
                ctypes.CDLL(None).fflush(None)
            except BaseException as error:  # whatever it is, the caller must hear of it
                os.write(write, f"error\t{type(error).__name__}: {error}\n".encode())
                status = 1
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read, errors="replace") as pipe:
            report = pipe.read()
        _, status = os.waitpid(child, 0)
        reply = {"status": os.waitstatus_to_exitcode(status), "report": report}
        os.write(replies, (json.dumps(reply) + "\n").encode())


if __name__ == "__main__":
    main()
