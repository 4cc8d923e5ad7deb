"""The simulator: an unchanged ``.cu`` file runs on the CPU, in a process that may die.

======================  =====================================================================
``rewrite.py``          CUDA C++ to C++, line for line
``include/``            what the rewritten source is compiled against
``runtime/``            CUDA threads as fibers, blocks over the cores, memory traffic counted
``host.py``             the torch-free process that forks one child per launch
``findings.py``         what the child reported, in lines of source and indices
``operations.py``       floating-point operations, from the machine code that ran
``trace.py``            the child's report as counters, lines, launches
this file               the arena that both processes see, and one run of a kernel
======================  =====================================================================
"""

import json
import math
import mmap
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ..machine.device import available_bytes
from ..words.errors import LaunchError, ProblemError
from . import findings as _findings
from .findings import DIMENSIONS, INCLUDE, Array, Finding
from .rewrite import rewrite
from .trace import COUNTERS, Trace

__all__ = [
    "COUNTERS", "INCLUDE", "RUNTIME", "SM", "SMEM", "Arena", "Finding", "Trace", "rewrite", "run",
    "simulate",
]  # fmt: skip

RUNTIME = Path(__file__).parent / "runtime" / "runtime.cpp"
SM = 90  # the simulated GPU's compute capability, and
SMEM = 227 << 10  # the bytes of shared memory a block may opt into: an H200's
TIME_LIMIT = 120.0  # seconds that one simulated launch may take unless told otherwise


class Arena:
    """Memory that this process and the simulator's both see: x, w, bias and y of one problem.

    ``shapes`` are of float32 tensors; a number instead is of bytes. ``tensors`` are views by name.
    Each starts on a page of its own, so that the child can map each with unmapped memory around it.
    Nothing is written to them: what stays untouched takes no memory, and is zero. `sparse` names
    those of which little will be touched: they do not count towards what must fit into memory.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...] | int], sparse: Collection[str] = ()
    ) -> None:
        self.buffers: dict[str, tuple[int, int]] = {}
        self.arrays: dict[str, Array] = {}
        total = needed = 0
        for name, shape in shapes.items():
            plain = isinstance(shape, int)
            size = shape if plain else 4 * math.prod(shape)
            if not plain:
                self.arrays[name] = Array(shape, 4, DIMENSIONS.get(name, ""))
            self.buffers[name] = (total, size)
            total += -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            needed += 0 if name in sparse else size
        self._fd = os.memfd_create("convlab")
        try:
            if needed > available_bytes("cpu"):  # Linux would hand it out, then kill us
                raise MemoryError
            total = max(total, mmap.PAGESIZE)
            os.ftruncate(self._fd, total)
            self._map = mmap.mmap(self._fd, total)
        except (OSError, MemoryError) as error:
            os.close(self._fd)
            self._fd = -1
            raise LaunchError(
                f"not enough memory: the simulator needs {needed / 2**30:.2f} GiB for x, w and y; "
                "try a smaller problem (Problem.scaled)",
                kind="memory",
            ) from error
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.tensors = {}
        for name, shape in shapes.items():
            offset, size = self.buffers[name]
            bytes_ = torch.frombuffer(
                self._map, dtype=torch.uint8, count=max(size, 1), offset=offset
            )[:size]
            plain = isinstance(shape, int)
            self.tensors[name] = bytes_ if plain else bytes_.view(torch.float32).view(shape)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)  # the mapping itself lives as long as the tensors


class _Host:
    """The one host process of this Python process, started when first needed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.owner = os.getpid()

    def ask(self, request: dict, time_limit: float) -> dict | None:
        """Send one request; the reply, or None when the time limit passed."""
        if self.owner != os.getpid():  # a fork, which must not talk into its parent's host
            self.__init__()
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(__file__).parent / "host.py")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            process = self.process
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                # the child ends itself in time, and says where it was
                ready, _, _ = select.select([process.stdout], [], [], time_limit + 5)
                reply = process.stdout.readline() if ready else None
            except BaseException:  # Ctrl-C too: leave no process behind
                self.stop()
                raise
            if not reply:
                self.stop()
                return None
            return json.loads(reply)

    def stop(self) -> None:
        """End the host and whatever it runs."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, 9)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


_host = _Host()


def simulate(
    library: Path,
    runtime: Path,
    problem: Sequence[int],
    arena: Arena,
    *,
    label: str,
    source: Path | str,
    workspace_limit: int,
    trace: bool = True,
    schedule: int = 0,
    time_limit: float = TIME_LIMIT,
    joined: Sequence[tuple[int, int]] = (),
    sample: tuple[int, int] | None = None,
    record: tuple[int, int, int, int, int] | None = None,
) -> Trace:
    """Run a built kernel's ``conv2d`` once on the tensors of an arena.

    Parameters
    ----------
    library, runtime : the kernel and the runtime, as built.
    problem : the integers of ``ConvProblem``, in its order.
    arena : holds x, w, bias (or not) and y; y is written.
    label, source : the kernel's name and file, for messages.
    workspace_limit : bytes.
    trace : count memory traffic and look for mistakes (slower).
    schedule : the order in which threads and blocks run. 0: the first to the last, each until it
        must wait. Any other: they also switch at accesses in between, chosen by the number; odd
        ones from the last to the first. A result that depends on it is a race.
    time_limit : seconds.
    joined : (code offset, bytes) of instructions whose successive accesses to neighbouring
        addresses are counted as one of so many bytes: see `Trace.offsets_of` and
        `convlab.why.merging`.
    sample : run only so many blocks of each launch, chosen at random from a seed: (blocks, seed).
        All counts are scaled to those of all blocks, and ``Trace.sampling`` tells the standard
        error of that. y is of no use then, nor is the workspace.
    record : run only one block of each kernel's first launch, and keep the memory requests of one
        of its warps (-1: of all) for ``Trace.accesses``, up to a limit: (block x, y, z, warp,
        limit). Counts are of no use then.

    Raises
    ------
    LaunchError
        If the kernel refuses the problem, does something that a GPU would not forgive, crashes,
        or passes the time limit. Its ``findings`` are a list of `Finding`.
    """
    request = {
        "library": str(library), "runtime": str(runtime), "problem": list(problem),
        "workspace_limit": workspace_limit, "trace": trace, "schedule": schedule,
        "time_limit": time_limit, "joined": list(joined), "sample": sample, "record": record,
    }  # fmt: skip
    return _simulate(request, arena, label, source)


def run(
    source: str | Path,
    entry: str,
    *args: object,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    shared: int = 0,
    trace: bool = True,
    schedule: int = 0,
    time_limit: float = TIME_LIMIT,
) -> Trace:
    """Launch any ``__global__`` function of a self-contained CUDA C++ text on the simulator.

    Parameters
    ----------
    source : the text, or the path of a file.
    entry : the kernel's name; of a template with its arguments: ``"scan<float>"``.
    args : a value for each parameter: numpy arrays and torch tensors (on the CPU) for pointers,
        which the kernel may read and write; None for a null pointer; numbers.
    grid, block : one to three numbers.
    shared : bytes of dynamic shared memory.
    trace, schedule, time_limit : as for `simulate`.

    Returns
    -------
    Trace
        Arrays hold what the kernel left in them.

    Raises
    ------
    BuildError
        If the text does not compile.
    LaunchError
        If the kernel does something that a GPU would not forgive: see its ``findings``. The arrays
        are then as they were.
    ProblemError
        If an argument is neither array nor number.

    Examples
    --------
    >>> run(text, "add_one", x, len(x), grid=4, block=256).findings  # doctest: +SKIP
    """
    from ..run import build as builds  # which imports this package

    path = Path(source) if isinstance(source, Path) or str(source).endswith(".cu") else None
    text = str(source) if path is None else path.read_text()
    name = path.stem if path else re.sub(r"\W.*", "", entry)
    wrapper = (
        f'\n#line 1 "sim_entry"\nextern "C" const char* sim_entry(const sim::Argument* a, '
        f'const unsigned* shape) {{ return sim::call({entry}, "{entry}", a, shape); }}\n'
    )
    built = builds.build_for_sim(
        builds.Source(text + wrapper, name, path), trace=trace, entry="sim_entry"
    )
    sizes, arrays, given, seen = {}, {}, [], {}
    for number, (label, value) in enumerate(
        zip(_parameters(text, entry, len(args)), args, strict=True)
    ):
        if isinstance(value, (np.ndarray, torch.Tensor)):
            if id(value) not in seen:
                seen[id(value)] = label = label if label not in sizes else f"argument{number}"
                tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                sizes[label] = tensor.numel() * tensor.element_size()
                arrays[label] = (Array(tuple(tensor.shape), tensor.element_size()), tensor)
            given.append(seen[id(value)])
        elif value is None or isinstance(value, (int, np.integer)):
            given.append(None if value is None else int(value))
        elif isinstance(value, (float, np.floating)):
            given.append(float(value))
        else:
            raise ProblemError(
                f"{label} is a {type(value).__name__}: give numpy arrays, torch tensors, None or "
                "numbers"
            )
    arena = Arena(sizes)
    for label, (array, tensor) in arrays.items():
        arena.arrays[label] = array
        arena.tensors[label].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
    shape = [*_three(grid, "grid"), *_three(block, "block"), int(shared)]
    request = {
        "library": str(built.library), "runtime": str(builds.sim_runtime()), "arguments": given,
        "shape": shape, "trace": trace, "schedule": schedule, "time_limit": time_limit,
    }  # fmt: skip
    done = _simulate(request, arena, entry, path or text)
    for label, (_, tensor) in arrays.items():
        tensor.copy_(arena.tensors[label].view(tensor.dtype).view(tensor.shape))
    return done


def _three(value: int | tuple[int, ...], name: str) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    if not 1 <= len(values) <= 3 or not all(isinstance(v, int) and 0 <= v < 2**32 for v in values):
        raise ProblemError(f"{name} is {value!r}: give one to three whole numbers")
    return values + [1] * (3 - len(values))


def _parameters(text: str, entry: str, count: int) -> list[str]:
    """A kernel's parameters' names, for messages; "argument0", ... where they are not plain."""
    bare = re.escape(re.sub(r"<.*", "", entry).rpartition("::")[2].strip())
    found = re.search(rf"__global__[^;{{}}]*?\b{bare}\s*\(([^)]*)\)", text)
    names = re.findall(r"(\w+)\s*(?:\[\s*\])?\s*(?:,|$)", found[1].strip()) if found else []
    return names if len(names) == count else [f"argument{i}" for i in range(count)]


def _simulate(request: dict[str, object], arena: Arena, label: str, source: Path | str) -> Trace:
    threads = int(os.environ.get("CONVLAB_SIM_THREADS", 0)) or len(os.sched_getaffinity(0))
    output = os.memfd_create("output")
    try:
        request |= {
            "threads": threads,
            "memory": arena.path,
            "buffers": {name: where for name, where in arena.buffers.items() if where[1]},
            "output": f"/proc/{os.getpid()}/fd/{output}",
        }
        started = time.perf_counter()
        reply = _host.ask(request, request["time_limit"])
        seconds = time.perf_counter() - started
        printed = os.pread(output, 1 << 20, 0).decode(errors="replace")
    finally:
        os.close(output)
    if printed:  # what the kernel printed
        sys.stdout.write(printed)
        sys.stdout.flush()
    report = reply["report"] if reply else ""
    done = Trace(report, Path(request["library"]), arena.arrays, seconds)
    error = _failure(done, reply, label, source, request)
    if error is not None:
        error.findings = done.findings
        raise error
    return done


def _failure(
    done: Trace, reply: dict | None, label: str, source: Path | str, request: dict[str, object]
) -> LaunchError | None:
    """What to raise for a run that failed, or None."""
    endless = any(f.kind == "endless loop" for f in done.findings)
    if reply is None or reply["status"] in (78, -14) or endless:
        text = (
            f"{label} did not finish within {request['time_limit']:g} s on the simulator and was "
            "stopped: an endless loop, or a problem too large for it; give a smaller problem, "
            "or load(..., time_limit=SECONDS)"
        )
        if endless:
            text += "\n" + _findings.describe(done.findings, label, source)
        return LaunchError(text, kind="endless loop")
    if any(f.error for f in done.findings):
        text = _findings.describe(done.findings, label, source)
        return LaunchError(text, kind=done.findings[0].kind)
    limit = request.get("workspace_limit", done.workspace)
    if done.workspace > limit:
        return LaunchError(
            f"{label} needs {done.workspace:,} bytes of workspace for this problem, more than "
            f"the limit of {limit:,}: load(..., workspace_limit={done.workspace})"
        )
    if done.error:
        note = f" ({done.note})" if done.note else ""
        where = _findings.refused(done.findings, source)
        return LaunchError("\n".join([f"{label} failed: {done.error}{note}", *where]))
    if reply["status"] != 0 or not done.counters:
        return LaunchError(
            f"{label} ended the simulator's process (exit status {reply['status']}) before it was "
            "done; this process is unharmed",
            kind="host crash",
        )
    return None
