"""Run a built kernel once on the simulator: the shared memory, the request, the reply."""

import json
import math
import mmap
import os
import queue
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch

from ..core.errors import LaunchError, TooManyThreads
from ..core.faults import MOST_WORKSPACE
from ..core.kernel import abi
from ..core.machine import child, interrupt
from ..core.machine.device import available_bytes
from ..core.machine.gpus import DEFAULT_GPU, Gpu
from ..core.problem.computation import FORWARD, Computation
from ..core.problem.format import FLOAT32, Format
from ..core.show.long_text import shortened
from .arrays import Array
from .library import runtime
from .report_text import describe_findings, quote_line
from .trace import Trace

# Default limits of a run in seconds: in all, and without a finished block.
TIME_LIMIT = 120.0
STALL_LIMIT = 20.0
# Multiply-adds that the slowest kernels simulate in a second. A block that has run for longer than
# the whole convolution takes at this speed makes no progress. A block may compute a tile of this many
# outputs, even if the problem has fewer.
_SLOWEST_MACS = 1_000_000
_TILE = 64 * 64
# The exit status of a run that exceeded a limit.
_OUT_OF_TIME = 78
# The names of the indices of a convolution's tensors and of their gradients, in torch's order.
_DIMENSIONS = {"x": "nchw", "w": "kcrs", "bias": "k", "y": "nkpq"}
_DIMENSIONS |= {"dx": "nchw", "dw": "kcrs", "dy": "nkpq"}
# How many runs may be simulated at the same time.
AT_ONCE = min(4, len(os.sched_getaffinity(0)))
_hosts = [
    child.Child(Path(__file__).with_name("host.py"), options=["-I", "-S"]) for _ in range(AT_ONCE)
]
# The hosts without a request, last in, first out: the last one has started already.
_free_hosts: queue.LifoQueue[child.Child]


def _free_all_hosts() -> None:
    global _free_hosts
    _free_hosts = queue.LifoQueue()
    for host in _hosts:
        _free_hosts.put(host)


_free_all_hosts()
os.register_at_fork(after_in_child=_free_all_hosts)


def end_launches() -> None:
    """End all simulated launches; the threads that wait for them raise a LaunchError."""
    for host in _hosts:
        host.interrupt()


class Arena:
    """The tensors of one problem, in memory that this process and the simulator's processes share.

    Each tensor starts on its own page, so that the child can map it with unmapped memory around it.
    The memory is zero, and takes no space until it is accessed.

    Parameters
    ----------
    shapes : each tensor's shape, in torch's order, or its size in bytes.
    sparse : names of tensors that may be larger than the machine's memory, because the kernel
        accesses only a small part of them.
    format : data types and memory orders of the tensors.
    shifts : bytes from the start of a page to the tensor's start.
    computes : what the tensors are for. They are x, w, bias and y here, whatever it is; reports
        have the names of the computation.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...] | int],
        sparse: Collection[str] = (),
        format: Format = FLOAT32,
        shifts: Mapping[str, int] = MappingProxyType({}),
        computes: Computation = FORWARD,
    ) -> None:
        self.names = computes.names
        # Of each tensor: its offset and bytes, its shape and element names, and a view of it.
        self.buffers: dict[str, tuple[int, int]] = {}
        self.arrays: dict[str, Array] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        storages = dict(format)
        total = 0
        needed = 0
        for name, shape in shapes.items():
            size = shape if isinstance(shape, int) else storages[name].itemsize * math.prod(shape)
            shift = shifts.get(name, 0)
            self.buffers[name] = (total + shift, size)
            pages = -(-max(shift + size, 1) // mmap.PAGESIZE)
            total += pages * mmap.PAGESIZE
            if name not in sparse:
                needed += size
        self._fd = os.memfd_create("convlab")
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        memory = _allocate(self._fd, max(total, mmap.PAGESIZE), needed)
        for name, shape in shapes.items():
            offset, size = self.buffers[name]
            whole = torch.frombuffer(memory, dtype=torch.uint8, count=max(size, 1), offset=offset)
            tensor = whole[:size]
            if not isinstance(shape, int):
                storage = storages[name]
                in_memory = storage.in_memory(shape)
                shown = self.names[name]
                names = "".join(storage.in_memory(tuple(_DIMENSIONS[shown])))
                self.arrays[shown] = Array(in_memory, storage.itemsize, names)
                tensor = storage.logical(tensor.view(storage.torch_dtype).view(in_memory))
            self.tensors[name] = tensor

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            # The mapping itself exists as long as the tensors.
            os.close(self._fd)


def _allocate(fd: int, total: int, needed: int) -> mmap.mmap:
    """Map `total` bytes of a file in memory; the kernel will access `needed` of them."""
    try:
        # Linux grants more memory than the machine has, and kills this process later.
        if needed > available_bytes("cpu"):
            raise MemoryError
        os.ftruncate(fd, total)
        return mmap.mmap(fd, total)
    except (OSError, MemoryError) as error:
        raise LaunchError(
            f"not enough memory: the simulator needs {needed / 2**30:.2f} GiB for x, w and y; "
            "use a smaller problem (Problem.scaled)",
            kind="memory",
        ) from error


def simulate(
    library: Path,
    problem: Sequence[int] | None,
    arena: Arena,
    *,
    label: str,
    source: Path | str,
    trace: bool = True,
    time_limit: float = TIME_LIMIT,
    gpu: Gpu = DEFAULT_GPU,
    **more: object,
) -> Trace:
    """Run a built kernel once on the tensors of an arena; y is written.

    Parameters
    ----------
    library : the kernel's library.
    problem : the integers of ``ConvProblem``, in its order; None for `any_kernel`.
    arena : the tensors.
    label, source : the kernel's name, and its file or text, for messages.
    trace : whether to count and check accesses. A run without it is several times as fast.
    time_limit : in seconds.
    gpu : the GPU that the simulator is: its limits and properties.
    more : workspace_limit, in bytes, and any of these:

        - schedule: 0 (the default) runs threads and blocks from the first to the last, each until
          it must wait. With another number, threads also switch before some accesses, which the
          number selects; an odd number runs from the last to the first. If the result depends on
          the schedule, the kernel has a race.
        - earlier: problems in the form of `problem`, each with the bytes of its tensors by name.
          The kernel is called for them first, in the same process, with other data, at the same
          addresses if it fits.
        - beside: True first calls the kernel for the same inputs on another stream, which nothing
          joins with the main one. That call has its own output, workspace and plan. Other memory
          that both calls access, and one writes, is a race.
        - again: True calls the kernel twice on one stream, with nothing between the two calls. The first
          kernel of the second call may then start before the first call's last kernel has ended, if both
          use programmatic dependent launch.
        - watch: of a launch with more accesses than this, only a part of the blocks is watched for
          races and uninitialised reads; 0 (the default) watches all blocks. Bounds are always
          checked. With `sample`, after so many accesses only two blocks of a launch run, and only some
          launches. ``Trace.watched_in_part`` says whether that happened. The counts are then
          incomplete.
        - most_threads: the run ends before its launches start more threads than this, with
          TooManyThreads; 0 (the default) is no limit.
        - counts: False looks for errors only, and counts nothing, which is faster. With `watch` and
          schedule 0, a block with very many accesses is then watched only up to a barrier, or until
          an mbarrier completes a phase. It has no effect with `sample`.
        - forgives: True makes a read of shared memory that nothing wrote a warning, because its value may
          not matter. Such memory holds NaN, or 3.4e38 in odd schedules.
        - workspace_shift: bytes from the start of a page to the workspace and the plan.
        - sample: (blocks, seed) runs only this many blocks of each launch, chosen at random. Counts
          are scaled to all blocks, and ``Trace.sampling`` has their standard errors. y and the
          workspace are then incomplete.
        - record: (block x, y, z, warp, limit) runs only one block of each kernel's first launch,
          and records up to `limit` memory requests of one of its warps (-1: of all warps) in
          ``Trace.accesses``. The counts are then incomplete.

    Raises
    ------
    LaunchError
        If the kernel returns an error or crashes, if the simulator finds an error, or if the run
        exceeds a limit: `time_limit`, or, without a finished block, `STALL_LIMIT` seconds (a sixth
        of `time_limit`, or what the slowest kernel needs for the whole convolution, if that is
        more). Its ``findings`` are a list of `Finding`. Its ``kind`` is "endless loop" for a run
        that was stopped and made no progress, and "out of time" for one that did.
    """
    request = {"schedule": 0, **more} | {
        "library": str(library),
        "runtime": str(runtime()),
        "problem": problem,
        "trace": trace,
        "time_limit": time_limit,
        "stall_limit": min(
            time_limit, max(STALL_LIMIT, time_limit / 6, _slowest(problem, more, arena.names["y"]))
        ),
        "gpu": _numbers(gpu),
        "gpu_name": f"convlab's simulator as {gpu.name}",
        "memory": arena.path,
        "buffers": {
            arena.names.get(name, name): where for name, where in arena.buffers.items() if where[1]
        },
        "tensors": [arena.names[place] for place in ("x", "w", "bias", "y")],
        "threads": int(os.environ.get("CONVLAB_SIM_THREADS", 0)) or len(os.sched_getaffinity(0)),
    }
    started = time.perf_counter()
    try:
        # The child ends itself at the time limit, and reports where it stopped.
        # It may run the request twice.
        reply = json.loads(_ask_free_host(json.dumps(request).encode(), 2 * time_limit + 5))
    except child.TimedOut as late:
        if not late.begun:
            raise _not_run(label, f"its process did not begin within {late.seconds:g} s") from None
        reply = {"status": _OUT_OF_TIME, "report": ""}
    except child.Died as died:
        if not died.begun:
            raise _not_run(label, f"its process ended at its start: {died}") from None
        raise _host_crash(label, str(died)) from None
    except OSError as error:
        raise _not_run(label, str(error)) from error
    result = Trace(reply["report"], library, arena.arrays, time.perf_counter() - started)
    error = _failure(result, reply["status"], label, source, request)
    if error is not None:
        error.findings = result.findings
        raise error
    return result


def _numbers(gpu: Gpu) -> list[int]:
    """Return the numbers of a GPU in the order of SimDevice (include/sim_device.h)."""
    limits = gpu.limits
    # Memory of double data rate moves two bits per cycle and line of the bus.
    gb_per_s = gpu.datasheet.memory_gb_per_s if gpu.datasheet else 0
    memory_khz = round(gb_per_s * 4e6 / gpu.bus_bits) if gpu.bus_bits else 0
    return [
        gpu.sm,
        gpu.sms,
        limits.threads,
        limits.blocks,
        limits.registers,
        limits.shared_bytes,
        limits.shared_optin_bytes,
        limits.reserved_bytes,
        gpu.l2_bytes,
        gpu.memory_bytes,
        round(gpu.ghz * 1e6),
        memory_khz,
        gpu.bus_bits,
    ]


def _ask_free_host(request: bytes, limit: float) -> bytes:
    """Return the reply of a free host process; wait until one is free."""
    with interrupt.held():
        host = _free_hosts.get()
        try:
            return host.ask(request, limit)
        finally:
            _free_hosts.put(host)


def _failure(
    result: Trace, status: int, label: str, source: Path | str, request: Mapping[str, object]
) -> LaunchError | None:
    """Return the exception for a run that failed, or None."""
    has_place = any(finding.kind == "endless loop" for finding in result.findings)
    if has_place or result.is_late or status in (_OUT_OF_TIME, -signal.SIGALRM):
        return _out_of_time(result, label, source, request)
    if any(finding.error for finding in result.findings):
        text = describe_findings(result.findings, label, source)
        return LaunchError(text, kind=result.findings[0].kind)
    limit = request.get("workspace_limit", result.workspace)
    if result.workspace > limit:
        kind = "too little workspace"
        if result.workspace >= MOST_WORKSPACE:
            kind = "invalid workspace"
        error = LaunchError(
            f"{label} needs {result.workspace:,} bytes of workspace for this problem, more than "
            f"the limit of {limit:,} bytes: load(..., workspace_limit={result.workspace})",
            kind=kind,
        )
        error.needed = result.workspace
        return error
    if result.threads_asked:
        text = f"{label} starts {result.threads_asked:,} threads, more than the limit of this run"
        return TooManyThreads(text)
    if result.missing:
        return _not_run(label, result.missing)
    if result.exhausted_memory:
        return LaunchError(
            f"{label} was ended because this machine's memory ran out: it accesses more of x, w, y and the workspace "
            "than there is memory, or other programs need it; this says nothing about the kernel",
            kind="memory",
        )
    if result.error is not None:
        note = f" ({result.note})" if result.note else ""
        lines = [f"{label} failed: {shortened(result.error, label)}{note}"]
        for finding in result.findings:
            if finding.kind == "refused launch":
                lines += quote_line(finding.file, finding.line, source)
        # On another GPU, a kernel may refuse a problem; but an error of CUDA must not be ignored.
        ignored = result.ignored and request["gpu"] != _numbers(DEFAULT_GPU)
        return LaunchError("\n".join(lines), kind="refused launch" if ignored else "")
    if status != 0 or not result.counters:
        return _host_crash(label, child.describe(status))
    return None


def _not_run(label: str, why: str) -> LaunchError:
    return LaunchError(
        f"{label} could not run on the simulator: {why}; this says nothing about the kernel",
        kind="not run",
    )


def _host_crash(label: str, how: str) -> LaunchError:
    return LaunchError(
        f"{label} ended the simulator's process ({how}) before the run was complete; this Python "
        "process is unharmed",
        kind="host crash",
    )


def _slowest(problem: Sequence[int] | None, more: Mapping[str, object], output: str) -> float:
    """Return the seconds of the slowest kernel for a problem and those before it; 0 for none.

    `output` is the name of the result: "y", "dx" or "dw".
    """
    problems = [] if problem is None else [problem]
    problems += [earlier for earlier, _ in more.get("earlier", ())]
    macs = 0
    for integers in problems:
        size = dict(zip(abi.FIELDS, integers, strict=True))
        groups = max(size["groups"], 1)
        outputs = math.prod(size[name] for name in "NKPQ")
        taps = size["R"] * size["S"]
        terms = {
            "y": size["C"] // groups * taps,
            "dx": size["K"] // groups * taps,
            "dw": size["N"] * size["P"] * size["Q"],
        }
        macs += max(outputs * size["C"] // groups * taps, terms[output] * _TILE)
    return macs / _SLOWEST_MACS


def _out_of_time(
    result: Trace, label: str, source: Path | str, request: Mapping[str, object]
) -> LaunchError:
    """Return the exception for a run that was stopped: an endless loop, or too slow.

    It is endless if no block finished for half of the time or more, and for longer than the whole
    convolution takes.
    """
    limit = request["time_limit"]
    stall_limit = request["stall_limit"]
    quiet, total = result.quiet
    needed = _slowest(request["problem"], request, request["tensors"][-1])
    is_endless = total > 0 and quiet >= max(total / 2, min(needed, stall_limit))
    if limit <= needed:
        # One block may need all of this time.
        is_endless = False
    how_long = f" within {limit:g} s"
    if result.stalled and stall_limit < limit:
        how_long = f": no block finished for {stall_limit:g} s"
    where = "in its host code"
    if result.launched:
        where += f", after {result.launched:,} launches"
    if result.progress:
        number, finished, blocks, kernel = result.progress
        where = f"in launch {number:,} ({kernel}), after {finished:,} of {blocks:,} blocks"
    text = f"{label} did not finish{how_long} on the simulator, which stopped it {where}. "
    if not is_endless:
        # The place at which the time was up is no mistake.
        result.findings = [each for each in result.findings if each.kind != "endless loop"]
        if any(finding.error for finding in result.findings):
            found = describe_findings(result.findings, label, source)
            return LaunchError(f"{text}\n{found}", kind=result.findings[0].kind)
        text += (
            "It made progress, but too slowly: give a smaller problem, use a GPU, or raise the "
            "limit (--time-limit SECONDS, or load(..., time_limit=SECONDS))"
        )
        return LaunchError(text, kind="out of time")
    text += (
        "It made no progress: it has an endless loop, or waits for something that never happens. If "
        "it is only slow, raise the limit (--time-limit SECONDS, or load(..., time_limit=SECONDS))"
    )
    if result.findings:
        text += "\n" + describe_findings(result.findings, label, source)
    return LaunchError(text, kind="endless loop")
