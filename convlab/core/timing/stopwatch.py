"""How long a launch takes on a GPU: CUDA events, an L2 flush, CUDA graphs, turns in rounds.

The method is that of nvbench and of gpu-mode's evaluator. A *turn* times one runnable a little and
returns samples, in seconds a launch; `rounds` lets several take turns, in random order.

An event is a time stamp that the GPU takes when it gets there. Around one launch of a few
microseconds the two stamps also see the launch itself, which is no part of the kernel: there, many
launches are put in one CUDA graph and the whole is timed.
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

_FLUSH_BYTES = 64 << 20  # the least that is written between samples
_MOST_SAMPLES = 20  # of a turn
_SETTLING_SECONDS = 0.01  # what runs for less is hurt by another kernel's turn: drop its first


def rounds(
    turns: Sequence[Turn], order: random.Random, wanted: Callable[[int], bool] = lambda i: True
) -> Iterator[list[list[float]]]:
    """Let all that are wanted take a turn in random order, again and again; yield their samples."""
    while True:
        taken: list[list[float]] = [[] for _ in turns]
        for i in order.sample(range(len(turns)), len(turns)):
            if wanted(i):
                taken[i] = turns[i]()
        yield taken


def flush_buffer(device: torch.device) -> torch.Tensor:
    """Return what is written over before each sample: twice the L2, so that nothing stays."""
    known = describe(device)
    size = max(2 * known.l2_bytes if known else 0, _FLUSH_BYTES)
    return torch.empty(size, dtype=torch.uint8, device=device)


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Put work on the GPU between two events; return what tells its seconds once it is done."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    return lambda: start.elapsed_time(end) / 1e3


def nothing(row: int = 0) -> None:
    """Stands before or after what is timed."""


def sampled(
    kernel: Runnable,
    before: Callable[[int], object],
    work: Callable[[], object],
    count: int = 1,
    clock: Clock | None = None,
    after: Callable[[int], object] = nothing,
) -> list[float]:
    """Time work so many times, in seconds, with something before and after each, not timed."""
    pending = []  # the host runs ahead of the GPU, whose clock is read while it works
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
    """Turns of one runnable, its launches timed one by one, the L2 flushed before each.

    Unless a launch is `kept`, one is prepared for each turn, so that one output's memory does for
    all. The first turn warms up: it runs until it no longer gets faster. A turn gives up to twenty
    samples.
    """

    kernel: Runnable
    problem: Problem
    inputs: Inputs
    flush: torch.Tensor
    turn_seconds: float
    warm_up_seconds: float
    clock: Clock | None = None
    kept: Launch | None = None  # what all turns launch
    trusted: bool = False  # not judged
    best: float = 0.0  # the shortest sample of the warm-up, in seconds
    spent: float = 0.0  # seconds that its turns took
    observer: Observer | None = None  # of what is kept

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
        started = time.perf_counter()
        limit = self.warm_up_seconds
        best = self._sample(observer, 1)[0]
        best = min(best, *self._sample(observer, 1)) if best < limit else best
        calm = 0
        while calm < 3 and time.perf_counter() - started < limit:
            fastest = min(self._sample(observer, 3))
            calm = calm + 1 if fastest > 0.99 * best else 0
            best = min(best, fastest)
        return best

    def _sample(self, observer: Observer, count: int) -> list[float]:
        def before(row: int) -> None:
            observer.before(row)
            self.flush.zero_()

        return sampled(self.kernel, before, observer.launch, count, self.clock, observer.after)


def batch(
    kernel: Runnable,
    work: Sequence[Callable[[], object]],
    launches: int,
    clock: Clock,
    graph: bool = True,
    fresh: Callable[[int], object] = nothing,
    judge: Callable[[], object] = nothing,
) -> Turn:
    """Return turns of one sample, seconds a launch: so many of them, and what else is work, as one.

    In a CUDA graph (a RuntimeError where none can be made; all must have run before), or from the
    host. It runs once untimed, to fill the caches; `fresh` comes before each run, `judge` last.
    """

    def from_the_host() -> None:
        for step in work:
            step()

    def turn() -> list[float]:
        run = replay or from_the_host  # which keeps alive the tensors that a graph works on
        fresh(0)

        def before(row: int) -> None:
            run()
            fresh(1)

        (seconds,) = sampled(kernel, before, run, 1, clock)
        judge()
        return [seconds / launches]

    replay = None
    if graph:
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                from_the_host()
        except RuntimeError as error:
            _end_capture()
            if "unjoined" not in str(error):
                raise
            text = "it works on another stream, for which the one it is given does not wait"
            raise Caught(kernel, text) from error
        replay = captured.replay
    return turn


def _end_capture() -> None:
    """Have torch's generator of random numbers work again, which a failed capture leaves waiting."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def lone_seconds(
    launch: Callable[[], object], kernel: Runnable, before: Callable[[int], object] = nothing
) -> float:
    """Return the median of what events see of a launch on an idle GPU, kernel and launch, in s."""
    seen: list[float] = []

    def idle(row: int) -> None:
        before(len(seen))
        torch.cuda.synchronize(kernel.device)

    while len(seen) < _MOST_SAMPLES and sum(seen) < 0.2:
        seen += sampled(kernel, idle, launch)
    return statistics.median(seen)
