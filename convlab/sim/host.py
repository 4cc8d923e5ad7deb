"""The process that simulated kernels die in: `machine.child` starts it, and it never imports torch.

It forks for each request, and lets the child load the kernel's library and run it, so that whatever
the kernel does to its process, the next request finds a fresh one. Requests and replies are JSON; a
reply tells how the child ended, and what it wrote to its report (see ``runtime/``).
"""

import ctypes
import fcntl
import json
import mmap
import os
from ctypes import c_double, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import child_process as child  # ../core/machine/child_process.py, which runs this

_STREAM = 1 << 40  # not the default one
_own: dict[bytes, tuple[int, int]] = {}  # address and bytes of the workspace and the plan
abi = child.load(Path(__file__).parents[1] / "core" / "kernel" / "abi.py")


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
        status = os.waitpid(process, 0)[1]
        child.end_children()
        with open(report, errors="replace", newline="") as file:
            file.seek(0)
            text = file.read()
        reply = {"status": os.waitstatus_to_exitcode(status), "report": text}
        server.reply(json.dumps(reply).encode())


def _apart(request: dict, report: int) -> None:
    """Carry out a request in this (forked) process, which ends with it."""
    status = 0

    def tell(key: str, value: object) -> None:
        os.write(report, f"{key}\t{value}\n".encode())

    try:
        _run(request, report, tell)
        ctypes.CDLL(None).fflush(None)
    except BaseException as error:  # whatever it is, the caller must hear of it
        tell("error", f"{type(error).__name__}: {error}")
        status = 1
    finally:
        os._exit(status)


def _run(request: dict, report: int, tell) -> None:
    """Run one launch; the runtime and `tell` write to the report."""
    runtime = ctypes.CDLL(request["runtime"], mode=ctypes.RTLD_GLOBAL)
    runtime.sim_map.restype = c_void_p
    runtime.sim_map.argtypes = [ctypes.c_char_p, c_int, c_size_t, c_size_t, c_int]
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    runtime.sim_begin(request["threads"], int(request["trace"]), report)
    runtime.sim_schedule(request["schedule"])
    runtime.sim_time_limit(c_double(request["time_limit"]), c_double(request["stall_limit"]))
    if request.get("sample"):
        runtime.sim_sample(*map(c_uint64, request["sample"]))
    if request.get("record"):
        *place, limit = request["record"]
        runtime.sim_record(*place, c_size_t(limit))
    library = ctypes.CDLL(request["library"])  # static initialisers run here

    def buffer(name: str, access: int) -> int | None:
        """Map one of the caller's buffers; no descriptor of it is left for the kernel to find."""
        if name not in request["buffers"]:
            return None
        memory = os.open(request["memory"], os.O_RDWR)
        try:
            return runtime.sim_map(name.encode(), memory, *request["buffers"][name], access)
        finally:
            os.close(memory)

    with open("/proc/self/maps") as maps:  # code addresses minus this are offsets in the file
        loaded = [line.split("-")[0] for line in maps if line.rstrip().endswith(request["library"])]
    tell("base", next(iter(loaded), "0"))
    runtime.sim_code(library["sim_entry" if "arguments" in request else "conv2d"])
    if "arguments" in request:
        error = _any_kernel(request, library, buffer)
    else:
        limit = request["workspace_limit"]
        tensors = {name: buffer(name, name == "y") for name in ("x", "w", "bias", "y")}
        for problem, sizes in request.get("earlier", ()):
            _earlier(problem, sizes, request, runtime, tensors)
        entry = abi.EntryPoints(request["library"], request["problem"])
        need = entry.workspace(limit)
        tell("workspace", need)
        if need > limit:
            return
        error = _convolution(entry, need, runtime, *tensors.values())
    if not error and (code := runtime.cudaPeekAtLastError()):
        error = runtime.cudaGetErrorString(code).decode()
    if error:
        tell("error", error)
    runtime.sim_finish()


def _earlier(
    problem: list[int], sizes: dict[str, int], request: dict, runtime, tensors: dict
) -> None:
    """Call it for another problem, with other numbers at the same addresses where they fit.

    For the same problem they are the same but for two words of each tensor. `sizes` are in bytes.
    """
    entry = abi.EntryPoints(request["library"], problem)
    need = entry.workspace(request["workspace_limit"])
    if need > request["workspace_limit"]:
        return
    given = dict(tensors)
    kept = []
    for name, address in tensors.items():
        if address is None:
            continue
        size = request["buffers"][name][1]
        if sizes[name] > size:
            other = b"%s of another call" % name.encode()
            given[name] = runtime.sim_map(other, -1, 0, sizes[name], 2)
            continue
        numbers = ctypes.string_at(address, size)
        kept.append((address, numbers, name != "y"))
        others = numbers[size // 8 * 4 :] + numbers[: size // 8 * 4]
        if problem == request["problem"]:  # two change places: the ends, and the sum, stay
            i, j = (size // 4 * part // 7 * 4 for part in (3, 5))
            one = numbers[i : i + 4]
            other = numbers[j : j + 4]
            others = numbers[:i] + other + numbers[i + 4 : j] + one + numbers[j + 4 :]
        _put(address, others, name != "y")
    _convolution(entry, need, runtime, *given.values())
    for place in kept:
        _put(*place)


def _put(address: int, numbers: bytes, constant: bool) -> None:
    """Write to a buffer; one that is `constant` for the kernel can be written to only here."""
    protect = ctypes.CDLL(None).mprotect
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    pages = c_void_p(first), c_size_t(address - first + len(numbers))
    protect(*pages, mmap.PROT_READ | mmap.PROT_WRITE)
    ctypes.memmove(address, numbers, len(numbers))
    if constant:
        protect(*pages, mmap.PROT_READ)


def _convolution(entry, need: int, runtime, x, w, bias, y) -> str | None:
    """Call the entry points; an error's text, or None."""

    def own(name: bytes, size: int) -> int | None:
        """Memory of the kernel's: a later call has the same, with what the last one left there."""
        if size > _own.get(name, (0, 0))[1]:
            _own[name] = runtime.sim_map(name, -1, 0, size, 1), size
        return _own[name][0] if size else None

    laid_out = own(b"plan", entry.plan())
    workspace = own(b"workspace", need)
    error = None
    runtime.sim_host(c_void_p(_STREAM))  # the host's code, which may not touch the device's memory
    if laid_out:
        error = entry.prepare(w, laid_out, _STREAM)
        runtime.sim_hide(c_void_p(w), 1)  # it may be gone by the time of the call
    given = laid_out or w
    null = [] if bias else ["bias (the problem has none)"]
    null += [] if need else ["the workspace (no bytes were asked for)"]
    said = f"null here: {', '.join(null)}" if null else "bias and the workspace are not null here"
    runtime.sim_null(f"; {said}".encode())
    error = error or entry.conv2d(x, given, bias, y, workspace, need, _STREAM)
    if laid_out:
        runtime.sim_hide(c_void_p(w), 0)
    runtime.sim_host(None)
    return error


class _Argument(ctypes.Structure):  # as sim::Argument in include/sim.h
    _fields_ = (
        ("pointer", c_void_p),
        ("real", c_double),
        ("whole", ctypes.c_longlong),
        ("is_real", c_int),
    )


def _any_kernel(request: dict, library, buffer) -> str | None:
    """Call ``sim_entry`` with what was given for each parameter: a buffer's name or a number."""
    given = [
        _Argument(pointer=buffer(a, 2))
        if isinstance(a, str)
        else _Argument(real=a, is_real=1)
        if isinstance(a, float)
        else _Argument(whole=a or 0)
        for a in request["arguments"]
    ]
    shape = (ctypes.c_uint * 8)(*request["shape"], len(given))
    library.sim_entry.restype = ctypes.c_char_p
    error = library.sim_entry((_Argument * len(given))(*given), shape)
    return error.decode(errors="replace") if error else None
