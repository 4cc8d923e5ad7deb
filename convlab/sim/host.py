"""The host process of simulated kernels. `machine.child` starts it; it never imports torch.

It forks a child for each request. The child loads the kernel's library and runs it. So the next
request gets a fresh process, whatever the kernel did. Requests and replies are JSON. A reply has
the child's exit status and its report, which the runtime writes (see ``runtime/``).
"""

import contextlib
import ctypes
import fcntl
import functools
import json
import mmap
import os
import select
import signal
import time
from ctypes import c_double, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import child_process as child  # ../core/machine/child_process.py, which runs this file

# The exit status of a run in parallel that depends on the order of blocks; see runtime/findings.h.
_NEEDS_SERIAL = 79
# The most bytes of tensors that are kept for a second run.
_MOST_RESTORED = 64 << 20
# A stream other than the default one.
_STREAM = 1 << 40
# The stream of a call that runs at the same time.
_OTHER_STREAM = _STREAM + 64
# What a workspace holds when a kernel gets it, by the number of the schedule: a NaN or -1; a large
# integer or a small number; zeros. At most so many bytes of it are filled.
_LEFT_IN_WORKSPACE = (0xFF, 0x01, 0x00)
_MOST_FILLED = 1 << 20
# A run ends itself at its time limit, unless the signal arrived where it may not report anything. The
# host process ends it after so many more seconds.
_GRACE = 2.0
# A run's memory is measured every so many seconds. A run that has more than the first share of the machine's memory
# is ended when less than the second share is left.
_MEMORY_SECONDS = 0.25
_LARGE_SHARE = 0.25
_LEAST_LEFT = 0.08
# Address and bytes of the workspace and the plan, by name. All calls of a request share them.
_own_memory: dict[bytes, tuple[int, int]] = {}
# The byte that new memory of these is filled with.
_left_over = 0
abi = child.load(Path(__file__).parents[1] / "core" / "kernel" / "abi.py")
# If this variable is set, an untrusted kernel runs: see ``confine.py``.
_IS_CONFINED = bool(os.environ.get("CONVLAB_CONFINED"))


def serve(server) -> None:
    """Serve requests; the kernels' output goes to this process's stdout."""
    child.adopt()
    os.dup2(1, 2)
    while True:
        request = json.loads(server.request())
        server.begun()
        try:
            status, text = _run_in_child(server, request)
            if status == _NEEDS_SERIAL:
                status, text = _run_in_child(server, request | {"serial": True})
        except OSError as error:
            # The kernel did not start, so this says nothing about it.
            status = 1
            text = _line("missing", f"a process did not start: {error}")
        reply = {"status": status, "report": text}
        server.reply(json.dumps(reply).encode())


def _run_in_child(server, request: dict) -> tuple[int, str]:
    """Run a request in a forked process; return its exit status and its report.

    Blocks run in parallel at first. If they turn out to depend on one another, or if there is
    something to report, the process exits with `_NEEDS_SERIAL`, and its effects are undone.
    """
    written = _written_by(request)
    if written is None:
        request = request | {"serial": True}
    is_tried = not request.get("serial")
    _load_runtime(request["runtime"])
    report = _in_memory("report")
    output = _in_memory("output") if is_tried else 1
    try:
        process = os.fork()
    except OSError:
        os.close(report)
        if is_tried:
            os.close(output)
        raise
    if process == 0:
        os.close(server.line)
        child.die_with_parent()
        if is_tried:
            os.dup2(output, 1)
            os.dup2(output, 2)
        _run_and_exit(request, report)
    reason = _wait(process, request["time_limit"] + _GRACE)
    if reason:
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status == -signal.SIGKILL and not reason:
        # Nobody but the system ends it so.
        reason = "out of memory"
    child.end_children()
    if is_tried:
        printed = _contents(output)
        if status == _NEEDS_SERIAL:
            _restore(request, written)
        elif printed:
            os.write(1, printed)
    text = _contents(report).decode(errors="replace")
    return status, f"{text}{reason}\t\n" if reason else text


@functools.cache
def _load_runtime(path: str) -> None:
    """Load the simulator's runtime here, once, so that the child processes have it at their start.

    Its symbols become global only in a child, because this process may load several runtimes. If it cannot be
    loaded, the child reports that.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)


def _wait(process: int, seconds: float) -> str:
    """Wait for the end of a child; return why it must be ended, "late" or "out of memory", or "" if it ended."""
    end = time.monotonic() + seconds
    ended = os.pidfd_open(process)
    watch = select.poll()
    watch.register(ended, select.POLLIN)
    try:
        while (left := end - time.monotonic()) > 0:
            if watch.poll(1e3 * min(left, _MEMORY_SECONDS)):
                return ""
            if _exhausts_memory(process):
                return "out of memory"
        return "late"
    finally:
        os.close(ended)


def _exhausts_memory(process: int) -> bool:
    """Return whether little memory is left on this machine because a process has much of it."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {row[0]: int(row[1]) for row in rows}
    taken = pages * mmap.PAGESIZE >> 10
    total = kib["MemTotal:"]
    return taken > _LARGE_SHARE * total and kib["MemAvailable:"] < _LEAST_LEFT * total


def _in_memory(name: str) -> int:
    """Return a file in memory, with a descriptor that a kernel does not close by accident."""
    memory = os.memfd_create(name)
    descriptor = fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, child.OUT_OF_REACH)
    os.close(memory)
    return descriptor


def _contents(descriptor: int) -> bytes:
    """Return the contents of a file in memory, and close it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _written_by(request: dict) -> list[tuple[int, bytes]] | None:
    """Return offset and contents of the tensors that a run may write; None if they are too large.

    Calls for other problems also exchange inputs. Such a request is run once, with blocks in order.
    """
    if any(request.get(key) for key in ("serial", "earlier", "beside", "again")):
        return None
    tensors = [
        where
        for name, where in request["buffers"].items()
        if "arguments" in request or name == request["tensors"][-1]
    ]
    if sum(size for _, size in tensors) > _MOST_RESTORED:
        return None
    memory = os.open(request["memory"], os.O_RDONLY)
    try:
        return [(offset, os.pread(memory, size, offset)) for offset, size in tensors]
    finally:
        os.close(memory)


def _restore(request: dict, written: list[tuple[int, bytes]]) -> None:
    """Write back what `_written_by` returned."""
    memory = os.open(request["memory"], os.O_WRONLY)
    try:
        for offset, contents in written:
            os.pwrite(memory, contents, offset)
    finally:
        os.close(memory)


def _line(key: str, value: object) -> str:
    """Return one line of the report; a text is written as JSON, because it may have several lines."""
    return f"{key}\t{json.dumps(value) if isinstance(value, str) else value}\n"


def _write(report: int, key: str, value: object) -> None:
    """Write one line to the report."""
    rest = _line(key, value).encode()
    while rest:
        rest = rest[os.write(report, rest) :]


def _run_and_exit(request: dict, report: int) -> None:
    """Run a request in this (forked) process, and end the process."""
    status = 0
    try:
        _run(request, report)
        ctypes.CDLL(None).fflush(None)
    except (OSError, MemoryError) as error:
        # A library or a buffer could not be mapped: the machine lacks something.
        _write(report, "missing", f"{type(error).__name__}: {error}")
        status = 1
    except BaseException as error:
        # Report any error to the caller.
        _write(report, "error", f"{type(error).__name__}: {error}")
        status = 1
    finally:
        os._exit(status)


def _run(request: dict, report: int) -> None:
    """Run one request; the runtime and `_write` write to the report."""
    global _left_over
    runtime = _start_runtime(request, report)
    _left_over = _LEFT_IN_WORKSPACE[request["schedule"] % len(_LEFT_IN_WORKSPACE)]
    if _IS_CONFINED:
        request = _confined(request)
    # Loading the library runs its static initialisers.
    library = ctypes.CDLL(request["library"])
    _write(report, "base", _base_address(request["library"]))
    if "arguments" in request:
        runtime.sim_code(library["sim_entry"])
        error = _call_any_kernel(request, library, runtime)
    else:
        entry = abi.EntryPoints(request["library"], request["problem"])
        runtime.sim_code(library[entry.computing])
        output = request["tensors"][-1]
        tensors = {
            name: _map_buffer(request, runtime, name, name == output) for name in request["tensors"]
        }
        if request.get("beside"):
            _call_beside(entry, request, runtime, tensors)
            runtime.sim_other_call()
        for problem, sizes in request.get("earlier", ()):
            _call_earlier(problem, sizes, request, runtime, tensors)
        limit = request["workspace_limit"]
        workspace_bytes = entry.workspace(limit)
        _write(report, "workspace", workspace_bytes)
        if workspace_bytes > limit:
            return
        shift = request.get("workspace_shift", 0)
        again = bool(request.get("again"))
        error = None
        if again:
            error = _convolve(entry, workspace_bytes, runtime, shift, *tensors.values())
            runtime.sim_follows()
        if not error:
            error = _convolve(entry, workspace_bytes, runtime, shift, *tensors.values(), is_prepared=again)
    if not error and (code := runtime.cudaPeekAtLastError()):
        error = runtime.cudaGetErrorString(code).decode()
        # conv2d did not return this error.
        _write(report, "ignored", error)
    if error:
        _write(report, "error", error)
    runtime.sim_finish()


def _confined(request: dict) -> dict:
    """Confine this process, and return the request with the tensors' memory as it can still open it."""
    confine = child.load(Path(__file__).with_name("confine.py"))
    memory = os.open(request["memory"], os.O_RDWR)
    libraries = [str(Path(request[name]).parent) for name in ("library", "runtime")]
    system = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", f"/proc/{os.getpid()}"]
    confine.confine([*libraries, *system], request["threads"] * (request["time_limit"] + _GRACE))
    return request | {"memory": f"/proc/self/fd/{memory}"}


def _start_runtime(request: dict, report: int) -> ctypes.CDLL:
    """Load the simulator's runtime, and apply the settings of a request."""
    runtime = ctypes.CDLL(request["runtime"], mode=ctypes.RTLD_GLOBAL)
    runtime.sim_map.restype = c_void_p
    runtime.sim_map.argtypes = [ctypes.c_char_p, c_int, c_size_t, c_size_t, c_int]
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    numbers = (ctypes.c_int64 * len(request["gpu"]))(*request["gpu"])
    runtime.sim_set_device(numbers, request["gpu_name"].encode())
    runtime.sim_begin(request["threads"], int(request["trace"]), report)
    runtime.sim_schedule(request["schedule"])
    if request.get("serial"):
        runtime.sim_serial()
    # Without counts, only schedule 0 knows how many accesses a block has made.
    limited = request.get("sample") or request.get("watch") and request["schedule"]
    if not request.get("counts", True) and not limited:
        runtime.sim_uncounted()
    if request.get("forgives"):
        runtime.sim_forgives()
    runtime.sim_time_limit(c_double(request["time_limit"]), c_double(request["stall_limit"]))
    runtime.sim_watch(c_uint64(request.get("watch", 0)))
    runtime.sim_most_threads(c_uint64(request.get("most_threads", 0)))
    if request.get("sample"):
        runtime.sim_sample(*map(c_uint64, request["sample"]))
    if request.get("record"):
        *place, limit = request["record"]
        runtime.sim_record(*place, c_size_t(limit))
    return runtime


def _base_address(library: str) -> str:
    """Return the address at which a library was loaded, in hexadecimal; "0" if it is not known."""
    with open("/proc/self/maps") as maps:
        addresses = [line.split("-")[0] for line in maps if line.rstrip().endswith(library)]
    return addresses[0] if addresses else "0"


def _map_buffer(request: dict, runtime, name: str, access: int) -> int | None:
    """Map one of the caller's buffers, and return its address.

    Close the descriptor again, so that the kernel cannot use it.
    """
    if name not in request["buffers"]:
        return None
    memory = os.open(request["memory"], os.O_RDWR)
    try:
        address = runtime.sim_map(name.encode(), memory, *request["buffers"][name], access)
        if not address:
            raise MemoryError(f"{name} could not be mapped")
        return address
    finally:
        os.close(memory)


def _call_earlier(
    problem: list[int], sizes: dict[str, int], request: dict, runtime, tensors: dict
) -> None:
    """Call the kernel for another problem, with other data, at the same addresses if it fits.

    For the same problem, only two words of each tensor are exchanged. `sizes` are in bytes.
    """
    entry = abi.EntryPoints(request["library"], problem)
    workspace_bytes = entry.workspace(request["workspace_limit"])
    if workspace_bytes > request["workspace_limit"]:
        return
    addresses = dict(tensors)
    originals = []
    for name, address in tensors.items():
        if address is None:
            continue
        size = request["buffers"][name][1]
        if sizes[name] > size:
            label = b"%s of another call" % name.encode()
            addresses[name] = runtime.sim_map(label, -1, 0, sizes[name], 2)
            continue
        is_constant = name != request["tensors"][-1]
        numbers = ctypes.string_at(address, size)
        originals.append((address, numbers, is_constant))
        if problem == request["problem"]:
            changed = _exchange_two_words(numbers)
        else:
            # Exchange the halves.
            half = size // 8 * 4
            changed = numbers[half:] + numbers[:half]
        _store(address, changed, is_constant)
    shift = request.get("workspace_shift", 0)
    _convolve(entry, workspace_bytes, runtime, shift, *addresses.values())
    for original in originals:
        _store(*original)


def _call_beside(entry, request: dict, runtime, tensors: dict) -> None:
    """Call the kernel for the same inputs on another stream, which nothing joins with the main one.

    The call has its own output, workspace and plan. All else that both calls access is shared by
    mistake, and the runtime reports that nothing orders their accesses.
    """
    workspace_bytes = entry.workspace(request["workspace_limit"])
    if workspace_bytes > request["workspace_limit"]:
        return
    output = request["tensors"][-1]
    name = b"%s of another call" % output.encode()
    own = runtime.sim_map(name, -1, 0, request["buffers"][output][1], 1)
    addresses = [*(tensors | {output: own}).values()]
    memory = dict(_own_memory)
    _own_memory.clear()
    shift = request.get("workspace_shift", 0)
    _convolve(entry, workspace_bytes, runtime, shift, *addresses, stream=_OTHER_STREAM)
    _own_memory.clear()
    _own_memory.update(memory)


def _exchange_two_words(numbers: bytes) -> bytes:
    """Return the bytes with two 4-byte words exchanged; both ends and the sum stay the same."""
    words = len(numbers) // 4
    i = words * 3 // 7 * 4
    j = words * 5 // 7 * 4
    if i == j:
        return numbers
    first = numbers[i : i + 4]
    second = numbers[j : j + 4]
    return numbers[:i] + second + numbers[i + 4 : j] + first + numbers[j + 4 :]


def _store(address: int, numbers: bytes, is_constant: bool) -> None:
    """Write to a buffer; protect a constant buffer again, so that the kernel cannot write to it."""
    protect = ctypes.CDLL(None).mprotect
    first_page = address // mmap.PAGESIZE * mmap.PAGESIZE
    pages = c_void_p(first_page), c_size_t(address - first_page + len(numbers))
    protect(*pages, mmap.PROT_READ | mmap.PROT_WRITE)
    ctypes.memmove(address, numbers, len(numbers))
    if is_constant:
        protect(*pages, mmap.PROT_READ)


def _convolve(
    entry,
    workspace_bytes: int,
    runtime,
    shift: int,
    x,
    w,
    bias,
    y,
    stream: int = _STREAM,
    is_prepared: bool = False,
) -> str | None:
    """Call the kernel's entry points; return the text of an error, or None.

    The workspace and the plan begin `shift` bytes after the start of a page. `is_prepared` says that the plan
    has its contents from an earlier call. As on a GPU, `conv2d` is not
    called for a y without elements, whose address is None.
    """
    plan = _own_buffer(runtime, b"plan", entry.plan(), shift)
    workspace = _own_buffer(runtime, b"workspace", workspace_bytes, shift)
    error = None
    # Host code runs from here on. It may not access device memory.
    runtime.sim_host(c_void_p(stream))
    if plan:
        if not is_prepared:
            error = entry.prepare(w, plan, stream)
        # The caller may free the filter before it calls conv2d with the plan.
        runtime.sim_hide(c_void_p(w), 1)
    runtime.sim_null(f"; {_null_arguments(bias, workspace_bytes)}".encode())
    if error is None and y is not None:
        error = entry.compute(x, plan or w, bias, y, workspace, workspace_bytes, stream)
    if plan:
        runtime.sim_hide(c_void_p(w), 0)
    runtime.sim_host(None)
    return error


def _own_buffer(runtime, name: bytes, size: int, shift: int) -> int | None:
    """Return memory for the kernel. A later call gets the same memory, with its contents."""
    if size > _own_memory.get(name, (0, 0))[1]:
        address = runtime.sim_map(name, -1, shift, size, 1)
        if not address:
            raise MemoryError(f"{size:,} bytes of {name.decode()} could not be mapped")
        ctypes.memset(address, _left_over, min(size, _MOST_FILLED))
        _own_memory[name] = address, size
    return _own_memory[name][0] if size else None


def _null_arguments(bias: int | None, workspace_bytes: int) -> str:
    """Return a note that says which arguments of `conv2d` are null."""
    null = [] if bias else ["bias (the problem has none)"]
    null += [] if workspace_bytes else ["workspace (the kernel requested 0 bytes)"]
    if null:
        return f"null arguments of conv2d: {', '.join(null)}"
    return "bias and workspace are not null"


class _Argument(ctypes.Structure):
    """An argument of any kernel, as sim::Argument in include/sim.h."""

    _fields_ = (
        ("pointer", c_void_p),
        ("real", c_double),
        ("whole", ctypes.c_longlong),
        ("is_real", c_int),
    )


def _call_any_kernel(request: dict, library, runtime) -> str | None:
    """Call ``sim_entry`` with an argument for each parameter; return an error text, or None."""
    arguments = [_argument(value, request, runtime) for value in request["arguments"]]
    shape = (ctypes.c_uint * 8)(*request["shape"], len(arguments))
    library.sim_entry.restype = ctypes.c_char_p
    error = library.sim_entry((_Argument * len(arguments))(*arguments), shape)
    return error.decode(errors="replace") if error else None


def _argument(value: str | float | int | None, request: dict, runtime) -> _Argument:
    """Return an argument from a buffer's name, a number, or None for a null pointer."""
    if isinstance(value, str):
        return _Argument(pointer=_map_buffer(request, runtime, value, 2))
    if isinstance(value, float):
        return _Argument(real=value, is_real=1)
    return _Argument(whole=value or 0)
