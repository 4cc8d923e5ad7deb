"""Time launches on a GPU: CUDA events, an L2 flush, CUDA graphs, turns in rounds.

nvbench and gpu-mode's evaluator use the same method. A *turn* times one runnable for a short time and
returns samples, in seconds per launch. In `rounds` several runnables take turns, in random order.

An event is a time stamp that the GPU takes when it reaches the event in the stream. Two events around
a launch of a few microseconds also include the launch overhead, which is not part of the kernel. So
many short launches are put in one CUDA graph, and the graph is timed.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..kernel.runnable import Inputs, Launch, Runnable, explained
from ..machine.clock import Clock
from ..machine.device import describe
from ..problem.problem import Problem
from .observer import Caught, Observer, observe

Turn = Callable[[], list[float]]

# The least bytes that are written between samples.
_FLUSH_BYTES = 64 << 20
# The most samples of a turn.
_MOST_SAMPLES = 20
# A launch that takes so long needs no further warm-up.
_LONG_SECONDS = 0.1
# After another kernel's turn the first launch of a kernel shorter than this is slower: it is dropped.
_SETTLING_SECONDS = 0.01


def rounds(
    turns: Sequence[Turn], order: random.Random, wanted: Callable[[int], bool] = lambda i: True
) -> Iterator[list[list[float]]]:
    """Yield the samples of one round after the other: each wanted turn once, in random order."""
    while True:
        samples: list[list[float]] = [[] for _ in turns]
        for i in order.sample(range(len(turns)), len(turns)):
            if wanted(i):
                samples[i] = turns[i]()
        yield samples


def flush_buffer(device: torch.device) -> torch.Tensor:
    """Return the buffer that is overwritten before each sample: twice the L2, to empty it."""
    gpu = describe(device)
    size = max(2 * gpu.l2_bytes if gpu else 0, _FLUSH_BYTES)
    return torch.empty(size, dtype=torch.uint8, device=device)


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Put work on the GPU between two events; return a function that later returns its seconds."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    return lambda: start.elapsed_time(end) / 1e3


def nothing(row: int = 0) -> None:
    """Do nothing before or after the timed work."""


def sampled(
    kernel: Runnable,
    before: Callable[[int], object],
    work: Callable[[], object],
    count: int = 1,
    clock: Clock | None = None,
    after: Callable[[int], object] = nothing,
) -> list[float]:
    """Time work `count` times, in seconds; `before` and `after` run each time, untimed."""
    # The host runs ahead of the GPU, and reads the GPU's clock while the GPU works.
    pending = []
    with explained(kernel.name):
        for row in range(count):
            before(row)
            pending.append(timed(work))
            after(row)
        if clock is not None:
            clock.note()
        torch.cuda.synchronize(kernel.device)
        return [seconds() for seconds in pending]


@dataclass
class Single:
    """Time the launches of one runnable one by one, with a flush of the L2 before each.

    The first turn warms up: it runs until launches no longer get faster. A turn returns up to twenty
    samples.

    Attributes
    ----------
    kernel, problem, inputs : what is launched.
    flush : the buffer that is overwritten before each launch.
    turn_seconds, warm_up_seconds : the time of a turn, and the most time of the warm-up.
    clock : reads the SM clock after each turn.
    kept : the launch of all turns. Without it each turn prepares one, so that all kernels together
        need the memory of one output only.
    trusted : if true, the outputs are not checked.
    best : the shortest sample of the warm-up, in seconds; 0 before it.
    spent : the seconds that all turns took.
    observer : the observer of the launch that is kept.
    """

    kernel: Runnable
    problem: Problem
    inputs: Inputs
    flush: torch.Tensor
    turn_seconds: float
    warm_up_seconds: float
    clock: Clock | None = None
    kept: Launch | None = None
    trusted: bool = False
    best: float = 0.0
    spent: float = 0.0
    observer: Observer | None = None

    def __call__(self) -> list[float]:
        started = time.perf_counter()
        observer = self.observer
        if observer is None:
            launch = self.kept or self.kernel.prepare(self.problem, *self.inputs)
            observer = observe(launch, _MOST_SAMPLES, self.trusted)
            self.observer = observer if self.kept else None
        if not self.best:
            self.best = self._warm_up(observer)
        elif self.best < _SETTLING_SECONDS:
            self._sample(observer, 1)
        count = max(1, min(_MOST_SAMPLES, int(self.turn_seconds / max(self.best, 1e-6))))
        observer.renew()
        samples = self._sample(observer, count)
        observer.finish_any(count)
        self.spent += time.perf_counter() - started
        return samples

    def _warm_up(self, observer: Observer) -> float:
        """Launch until three times in a row nothing is faster; return the shortest sample.

        A launch of over `_LONG_SECONDS` warms the GPU up by itself: two of them are enough.
        """
        started = time.perf_counter()
        limit = self.warm_up_seconds
        best = self._sample(observer, 1)[0]
        if best < limit:
            best = min(best, *self._sample(observer, 1))
        not_faster = 0
        while best < _LONG_SECONDS and not_faster < 3 and time.perf_counter() - started < limit:
            fastest = min(self._sample(observer, 3))
            if fastest > 0.99 * best:
                not_faster += 1
            else:
                not_faster = 0
            best = min(best, fastest)
        return best

    def _sample(self, observer: Observer, count: int) -> list[float]:
        """Return the seconds of `count` launches."""

        def before(row: int) -> None:
            observer.before(row)
            self.flush.zero_()

        return sampled(self.kernel, before, observer.launch, count, self.clock, observer.after)


@dataclass
class Batch:
    """Time many launches together; a turn returns one sample, in seconds per launch."""

    kernel: Runnable
    # The work that a CUDA graph replays. This list keeps the graph's tensors alive.
    work: Sequence[Callable[[], object]]
    launches: int
    clock: Clock
    fresh: Callable[[int], object]
    judge: Callable[[], object]
    graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> list[float]:
        self.fresh(0)
        (seconds,) = sampled(self.kernel, self._fill_caches, self.run, 1, self.clock)
        self.judge()
        return [seconds / self.launches]

    def run(self) -> None:
        """Launch all of the work, with its graph or from the host."""
        if self.graph is not None:
            self.graph.replay()
        else:
            self.run_from_the_host()

    def run_from_the_host(self) -> None:
        """Launch all of the work, one step after the other."""
        for step in self.work:
            step()

    def _fill_caches(self, row: int) -> None:
        """Run once untimed, then draw new data."""
        self.run()
        self.fresh(1)


def batch(
    kernel: Runnable,
    work: Sequence[Callable[[], object]],
    launches: int,
    clock: Clock,
    graph: bool = True,
    fresh: Callable[[int], object] = nothing,
    judge: Callable[[], object] = nothing,
) -> Turn:
    """Return turns that time all of `work` at once; a sample is its seconds divided by `launches`.

    The work runs in a CUDA graph, before which it must have run once, or from the host. Each turn
    runs it once untimed, to fill the caches. `fresh` is called before each of the two runs, `judge`
    after them. Raises RuntimeError if no graph can be captured, and Caught if the work uses another
    stream.
    """
    turn = Batch(kernel, work, launches, clock, fresh, judge)
    if not graph:
        return turn
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            turn.run_from_the_host()
    except RuntimeError as error:
        _end_capture()
        if "unjoined" not in str(error):
            raise
        text = "it works on another stream, and the stream that it is given does not wait for it"
        raise Caught(kernel, text) from error
    turn.graph = captured
    return turn


def _end_capture() -> None:
    """Make torch's random number generator usable again after a failed capture."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def lone_seconds(
    launch: Callable[[], object], kernel: Runnable, before: Callable[[int], object] = nothing
) -> float:
    """Return the median time between events around a launch on an idle GPU, in seconds.

    The time includes the launch overhead.
    """
    samples: list[float] = []

    def idle(row: int) -> None:
        before(len(samples))
        torch.cuda.synchronize(kernel.device)

    while len(samples) < _MOST_SAMPLES and sum(samples) < 0.2:
        samples += sampled(kernel, idle, launch)
    return statistics.median(samples)
