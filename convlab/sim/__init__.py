"""The simulator: an unchanged ``.cu`` file runs on the CPU, in a process that may die.

======================  =====================================================================
``rewrite.py``          CUDA C++ to C++, line for line
``include/``            what the rewritten source is compiled against
``runtime.cpp``         CUDA threads as fibers, blocks over the cores, memory traffic counted
``host.py``             the torch-free process that forks one child per launch
this file               the arena that both processes see, and what the child reports
======================  =====================================================================
"""

import json
import math
import mmap
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..device import available_bytes
from ..errors import LaunchError
from .rewrite import rewrite

__all__ = ["COUNTERS", "INCLUDE", "RUNTIME", "SM", "SMEM", "Arena", "Fault", "rewrite", "run"]

INCLUDE = Path(__file__).parent / "include"
RUNTIME = Path(__file__).parent / "runtime.cpp"
SM = 90  # the simulated GPU's compute capability, and
SMEM = 227 << 10  # the bytes of shared memory a block may opt into: an H200's
TIME_LIMIT = 120.0  # seconds that one simulated launch may take unless told otherwise

COUNTERS = (
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
    "shared_requests",
    "shared_wavefronts",
    "atomics",
    "barriers",
    "launches",
    "library_bytes",
)


class Arena:
    """Memory that this process and the simulator's both see: x, w, bias and y of one problem.

    ``tensors`` are views of it by name. Each starts on a page of its own, so that the child can
    map each with unmapped memory around it.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.buffers: dict[str, tuple[int, int]] = {}
        total = 0
        for name, shape in shapes.items():
            size = 4 * math.prod(shape)
            self.buffers[name] = (total, size)
            total += -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fd = os.memfd_create("convlab")
        try:
            if total > available_bytes("cpu"):  # Linux would hand it out, then kill us
                raise MemoryError
            os.ftruncate(self._fd, total)
            self._map = mmap.mmap(self._fd, total)
        except (OSError, MemoryError) as error:
            os.close(self._fd)
            self._fd = -1
            raise LaunchError(
                f"not enough memory: the simulator needs {total / 2**30:.2f} GiB for x, w and y; "
                "try a smaller problem (Problem.scaled)",
                kind="memory",
            ) from error
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.tensors = {}
        for name, shape in shapes.items():
            offset, size = self.buffers[name]
            if size:
                flat = torch.frombuffer(
                    self._map, dtype=torch.float32, count=size // 4, offset=offset
                )
                self.tensors[name] = flat.view(shape)
            else:
                self.tensors[name] = torch.empty(shape)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)  # the mapping itself lives as long as the tensors


@dataclass(frozen=True)
class Fault:
    """What stopped a simulated kernel, and where."""

    kind: str
    text: str
    where: tuple[str, int] | None = None  # file and line
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None


@dataclass
class _Outcome:
    counters: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    note: str = ""
    fault: Fault | None = None
    workspace: int = 0
    output: str = ""


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
                ready, _, _ = select.select([process.stdout], [], [], time_limit)
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


def run(
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
) -> dict[str, float]:
    """Run a built kernel's ``conv2d`` once on the tensors of an arena.

    Parameters
    ----------
    library, runtime : the kernel and the runtime, as built.
    problem : the integers of ``ConvProblem``, in its order.
    arena : holds x, w, bias (or not) and y; y is written.
    label, source : the kernel's name and file, for messages.
    workspace_limit : bytes.
    trace : count memory traffic (slower).
    schedule : the order in which threads and blocks run. 0: the first to the last, each until it
        must wait. Any other: they also switch at accesses in between, chosen by the number; odd
        ones from the last to the first. A result that depends on it is a race.
    time_limit : seconds.

    Returns
    -------
    dict
        The counters of `COUNTERS`, ``global_load_bytes``, ``global_store_bytes``, ``workspace``
        (bytes) and ``seconds``: how long the simulation took on this machine, which says nothing
        about a GPU.

    Raises
    ------
    LaunchError
        If the kernel refuses the problem, does something that a GPU would not forgive, crashes,
        or passes the time limit.
    """
    threads = int(os.environ.get("CONVLAB_SIM_THREADS", 0)) or len(os.sched_getaffinity(0))
    output = os.memfd_create("output")
    try:
        request = {
            "runtime": str(runtime),
            "library": str(library),
            "threads": threads,
            "trace": int(trace),
            "schedule": schedule,
            "memory": arena.path,
            "buffers": {name: where for name, where in arena.buffers.items() if where[1]},
            "problem": list(problem),
            "workspace_limit": workspace_limit,
            "time_limit": time_limit,
            "output": f"/proc/{os.getpid()}/fd/{output}",
        }
        started = time.perf_counter()
        reply = _host.ask(request, time_limit)
        seconds = time.perf_counter() - started
        printed = os.pread(output, 1 << 20, 0).decode(errors="replace")
    finally:
        os.close(output)
    if printed:  # what the kernel printed
        sys.stdout.write(printed)
        sys.stdout.flush()
    if reply is None:
        raise LaunchError(
            f"{label} did not finish within {time_limit:g} s on the simulator and was stopped: "
            "an endless loop, or a problem too large for it; give a smaller problem, "
            "or load(..., time_limit=SECONDS)",
            kind="endless loop",
        )
    outcome = _read_report(reply["report"], library)
    if outcome.fault is not None:
        raise LaunchError(_describe(outcome.fault, label, source), outcome.fault.kind)
    if outcome.workspace > workspace_limit:
        raise LaunchError(
            f"{label} needs {outcome.workspace:,} bytes of workspace for this problem, more than "
            f"the limit of {workspace_limit:,}: load(..., workspace_limit={outcome.workspace})"
        )
    if outcome.error:
        note = f" ({outcome.note})" if outcome.note else ""
        raise LaunchError(f"{label} failed: {outcome.error}{note}")
    if reply["status"] != 0 or not outcome.counters:
        raise LaunchError(
            f"{label} ended the simulator's process (exit status {reply['status']}) before it was "
            "done; this process is unharmed",
            kind="host crash",
        )
    counters = outcome.counters
    counters["global_load_bytes"] = 32 * counters["global_load_sectors"]
    counters["global_store_bytes"] = 32 * counters["global_store_sectors"]
    counters["workspace"] = outcome.workspace
    counters["seconds"] = seconds
    return counters


def _read_report(report: str, library: Path) -> _Outcome:
    outcome, base = _Outcome(), 0
    for line in report.splitlines():
        key, _, rest = line.partition("\t")
        if key == "base":
            base = int(rest, 16)
        elif key == "workspace":
            outcome.workspace = int(rest)
        elif key == "error":
            outcome.error = rest
        elif key == "note":
            outcome.note = rest
        elif key == "counters":
            outcome.counters = dict(zip(COUNTERS, json.loads(rest), strict=True))
        elif key == "fault":
            kind, pc, in_kernel, block, thread, text = rest.split("\t", 5)
            where = {}
            if in_kernel == "1":
                where = {
                    "block": tuple(map(int, block.split(","))),
                    "thread": tuple(map(int, thread.split(","))),
                }
            place = _place_of(library, int(pc, 16) - base) if int(pc, 16) else None
            outcome.fault = Fault(kind, text, place, **where)
    return outcome


def _place_of(library: Path, offset: int) -> tuple[str, int] | None:
    """File and line of a return address (hence -1), by binutils' addr2line; None without it.

    What the simulator's own headers inlined there is the line that called them.
    """
    tool = shutil.which("addr2line")
    if tool is None or offset <= 0:
        return None
    found = subprocess.run(
        [tool, "-i", "-e", str(library), hex(offset - 1)], capture_output=True, text=True
    ).stdout
    for frame in found.splitlines():
        file, _, number = frame.partition(" (")[0].rpartition(":")
        if number.isdigit() and int(number) and Path(file).parent != INCLUDE:
            return file, int(number)
    return None


def _describe(fault: Fault, label: str, source: Path | str) -> str:
    lines = [f"{label}: {fault.kind}: {fault.text}"]
    if fault.block is not None:
        lines.append(f"  block {fault.block}, thread {fault.thread}")
    if fault.where is not None:
        file, number = Path(fault.where[0]), fault.where[1]
        if file.is_file():  # absolute: a header, or a kernel outside the catalog
            name, text = file.name, file.read_text()
        elif isinstance(source, Path):
            name, text = source.name, source.read_text()
        else:
            name, text = "source", source
        quoted = text.splitlines()[number - 1 : number]
        lines.append(f"  {name}:{number}:  {quoted[0].strip() if quoted else ''}")
    return "\n".join(lines)
