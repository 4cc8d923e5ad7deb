"""One run of a built kernel on the simulator: the memory it works on, the request, the answer."""

import json
import math
import mmap
import os
import queue
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch

from ..core.errors import LaunchError
from ..core.machine import child, interrupt
from ..core.machine.device import available_bytes
from ..core.problem.format import FLOAT32, Format
from .findings import Array, describe, quoted
from .library import runtime
from .trace import Trace

SM = 90  # the simulated GPU's compute capability, and
SMEM = 227 << 10  # the bytes of shared memory a block may opt into: an H200's
TIME_LIMIT = 120.0  # seconds that one simulated launch may take unless told otherwise
STALL_LIMIT = 20.0  # of them, without one block that comes to its end; more where more are allowed
_OUT_OF_TIME = 78  # the exit status of a run that took longer
# Names of the indices of a convolution's tensors, in torch's order; others have none.
_DIMENSIONS = {"x": "nchw", "w": "kcrs", "bias": "k", "y": "nkpq"}
AT_ONCE = min(4, len(os.sched_getaffinity(0)))  # launches, of as many threads that ask for them
_hosts = [
    child.Child(Path(__file__).with_name("host.py"), options=["-I", "-S"]) for _ in range(AT_ONCE)
]
_free: queue.LifoQueue[child.Child]  # of them, those that nobody asks; the last one has started


def _all_free() -> None:
    global _free
    _free = queue.LifoQueue()
    for host in _hosts:
        _free.put(host)


_all_free()
os.register_at_fork(after_in_child=_all_free)


def end_launches() -> None:
    """End all launches that other threads wait for; they raise a LaunchError."""
    for host in _hosts:
        host.interrupt()


class Arena:
    """Memory that this process and the simulator's both see: x, w, bias and y of one problem.

    Each tensor starts on a page of its own, so that the child can map each with unmapped memory
    around it. Nothing is written to them: what stays untouched takes no memory, and is zero; those
    called `sparse`, of which little will be touched, need not fit into memory. A shape is as torch
    has it, or a number of bytes. `shifts` are the bytes by which some miss their page's start.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...] | int],
        sparse: Collection[str] = (),
        format: Format = FLOAT32,
        shifts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.buffers: dict[str, tuple[int, int]] = {}  # offset and bytes of each
        self.arrays: dict[str, Array] = {}  # how to name their elements
        self.tensors: dict[str, torch.Tensor] = {}  # views
        stored = dict(format)
        total = needed = 0
        for name, shape in shapes.items():
            size = shape if isinstance(shape, int) else stored[name].itemsize * math.prod(shape)
            shift = shifts.get(name, 0)
            self.buffers[name] = (total + shift, size)
            total += -(-max(shift + size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            needed += 0 if name in sparse else size
        self._fd = os.memfd_create("convlab")
        try:
            if needed > available_bytes("cpu"):  # Linux would hand it out, then kill us
                raise MemoryError
            total = max(total, mmap.PAGESIZE)
            os.ftruncate(self._fd, total)
            memory = mmap.mmap(self._fd, total)
        except (OSError, MemoryError) as error:
            raise LaunchError(
                f"not enough memory: the simulator needs {needed / 2**30:.2f} GiB for x, w and y; "
                "try a smaller problem (Problem.scaled)",
                kind="memory",
            ) from error
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        for name, shape in shapes.items():
            offset, size = self.buffers[name]
            whole = torch.frombuffer(memory, dtype=torch.uint8, count=max(size, 1), offset=offset)
            tensor = whole[:size]
            if not isinstance(shape, int):
                lies = stored[name]
                inner = lies.in_memory(shape)
                names = "".join(lies.in_memory(tuple(_DIMENSIONS[name])))
                self.arrays[name] = Array(inner, lies.itemsize, names)
                tensor = lies.logical(tensor.view(lies.torch_dtype).view(inner))
            self.tensors[name] = tensor

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)  # the mapping itself lives as long as the tensors


def simulate(
    library: Path,
    problem: Sequence[int] | None,
    arena: Arena,
    *,
    label: str,
    source: Path | str,
    trace: bool = True,
    time_limit: float = TIME_LIMIT,
    **more: object,
) -> Trace:
    """Run a built kernel's ``conv2d`` once on the tensors of an arena; y is written.

    `problem` are the integers of ``ConvProblem``, in its order (None for `any_kernel`); `label` and
    `source`, the kernel's name and file, are for messages. Without `trace` nothing is counted nor
    looked for, several times as fast.

    `more` has workspace_limit, in bytes; and may have

    - schedule: 0 (the default) runs threads and blocks from the first to the last, each until it
      must wait. In any other schedule they also switch at accesses in between, chosen by the
      number; odd ones run from the last to the first. A result that depends on it is a race;
    - earlier: problems, as `problem` is one, each with its tensors' bytes by name, for which it is
      called first in the same process, with other numbers at the same addresses where they fit;
    - sample: (blocks, seed), run only so many blocks of each launch, chosen at random. All counts
      are scaled to those of all blocks, and ``Trace.sampling`` tells the standard error of that. y
      is of no use then, nor is the workspace;
    - record: (block x, y, z, warp, limit), run only one block of each kernel's first launch, and
      keep up to so many memory requests of one of its warps (-1: of all) for ``Trace.accesses``.
      Counts are of no use then.

    Raises a LaunchError if the kernel refuses the problem, does something that a GPU would not
    forgive, crashes, or passes the time limit; or `STALL_LIMIT`, or a sixth of the time limit where
    that is more, without a block that comes to its end. Its ``findings`` are a list of `Finding`.
    """
    request = {"schedule": 0, **more} | {
        "library": str(library),
        "runtime": str(runtime()),
        "problem": problem,
        "trace": trace,
        "time_limit": time_limit,
        "stall_limit": min(time_limit, max(STALL_LIMIT, time_limit / 6)),
        "memory": arena.path,
        "buffers": {name: where for name, where in arena.buffers.items() if where[1]},
        "threads": int(os.environ.get("CONVLAB_SIM_THREADS", 0)) or len(os.sched_getaffinity(0)),
    }
    started = time.perf_counter()
    try:  # the child ends itself in time, and says where it was
        reply = json.loads(_ask_a_host(json.dumps(request).encode(), time_limit + 5))
    except child.TimedOut:
        reply = {"status": _OUT_OF_TIME, "report": ""}
    except child.Died as died:
        raise _ended(label, str(died)) from None
    except OSError as error:
        raise LaunchError(f"the simulator's process did not start: {error}") from error
    done = Trace(reply["report"], library, arena.arrays, time.perf_counter() - started)
    error = _failure(done, reply["status"], label, source, request)
    if error is not None:
        error.findings = done.findings
        raise error
    return done


def _ask_a_host(request: bytes, limit: float) -> bytes:
    """Ask a host process that is free, or the first that becomes free."""
    with interrupt.held():
        host = _free.get()
        try:
            return host.ask(request, limit)
        finally:
            _free.put(host)


def _failure(
    done: Trace, status: int, label: str, source: Path | str, request: Mapping[str, object]
) -> LaunchError | None:
    """What to raise for a run that failed, or None."""
    endless = any(f.kind == "endless loop" for f in done.findings)
    if endless or status in (_OUT_OF_TIME, -14):  # SIGALRM
        text = f"{label} did not finish{_how_far(done, request)}"
        text += "\n" + describe(done.findings, label, source) if endless else ""
        return LaunchError(text, kind="endless loop")
    if any(f.error for f in done.findings):
        return LaunchError(describe(done.findings, label, source), kind=done.findings[0].kind)
    limit = request.get("workspace_limit", done.workspace)
    if done.workspace > limit:
        return LaunchError(
            f"{label} needs {done.workspace:,} bytes of workspace for this problem, more than "
            f"the limit of {limit:,}: load(..., workspace_limit={done.workspace})",
            kind="too little workspace",
        )
    if done.error:
        note = f" ({done.note})" if done.note else ""
        refused = [f for f in done.findings if f.kind == "refused launch"]
        where = [line for f in refused for line in quoted(f.file, f.line, source)]
        return LaunchError("\n".join([f"{label} failed: {done.error}{note}", *where]))
    if status != 0 or not done.counters:
        return _ended(label, child.describe(status))
    return None


def _ended(label: str, how: str) -> LaunchError:
    return LaunchError(
        f"{label} ended the simulator's process ({how}) before it was done; this process is "
        "unharmed",
        kind="host crash",
    )


def _how_far(done: Trace, request: Mapping[str, object]) -> str:
    """How long it ran, how far it came by then, and what that may mean."""
    limit = request["time_limit"]
    stall = request["stall_limit"]
    how_long = f" within {limit:g} s"
    if done.stalled and stall < limit:
        how_long = f": no block came to its end for {stall:g} s"
    where = "in its host code"
    if done.progress:
        number, ended, blocks, kernel = done.progress
        where = f"in launch {number}, {kernel}, with {ended:,} of {blocks:,} blocks done"
    return (
        f"{how_long} on the simulator, and it was stopped {where}: an endless loop, or a problem "
        "too large for it; give a smaller problem, or load(..., time_limit=SECONDS)"
    )
