"""How long a launch takes on a GPU: CUDA events, an L2 flush, CUDA graphs, turns in rounds.

The method is that of nvbench and of gpu-mode's evaluator. A *turn* times one runnable a little and
returns samples, in seconds a launch; `rounds` lets several take turns, in random order.

An event is a time stamp that the GPU takes when it gets there. Around one launch of a few
microseconds the two stamps also see the launch itself, which is no part of the kernel: there, many
launches are put in one CUDA graph and the whole is timed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from ..machine.clock import Clock
from ..machine.device import describe
from ..run.runnable import Inputs, Launch, Runnable, explained
from ..words.problem import Problem

Turn = Callable[[], list[float]]

_FLUSH_BYTES = 64 << 20  # the least that is written between samples
_MOST_SAMPLES = 20  # of a turn
_SETTLING_SECONDS = 0.01  # what runs for less is hurt by another kernel's turn: drop its first


def rounds(
    turns: Sequence[Turn], order: random.Random, wanted: Callable[[int], bool] = lambda i: True
) -> Iterator[list[list[float]]]:
    """Let all take a turn in random order, again and again; yield each round's samples.

    A turn that is not wanted is left out, and its samples are empty.
    """
    indices = range(len(turns))
    while True:
        taken: list[list[float]] = [[] for _ in turns]
        for i in order.sample(indices, len(turns)):
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


class Single:
    """Turns of one runnable, its launches timed one by one, the L2 flushed before each.

    The output and the workspace live for the turn only: one output's memory does for all. The first
    turn warms up: it runs until it no longer gets faster.

    Attributes
    ----------
    best : the shortest sample of the warm-up, in seconds.
    spent : seconds that its turns took.
    """

    def __init__(
        self,
        kernel: Runnable,
        problem: Problem,
        inputs: Inputs,
        flush: torch.Tensor,
        *,
        turn_seconds: float,
        warm_up_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        self.kernel, self.problem, self.inputs = kernel, problem, inputs
        self.flush, self.clock = flush, clock
        self.best = self.spent = 0.0
        self._turn_seconds, self._warm_up_seconds = turn_seconds, warm_up_seconds

    def __call__(self) -> list[float]:
        """Take a turn: up to twenty samples in seconds."""
        started = time.perf_counter()
        launch = self.kernel.prepare(self.problem, *self.inputs)
        if not self.best:
            self.best = self._warm_up(launch)
        elif self.best < _SETTLING_SECONDS:
            self._sample(launch, 1)
        count = int(self._turn_seconds / max(self.best, 1e-6))
        samples = self._sample(launch, max(1, min(_MOST_SAMPLES, count)))
        self.spent += time.perf_counter() - started
        return samples

    def _warm_up(self, launch: Launch) -> float:
        started, limit = time.perf_counter(), self._warm_up_seconds
        best = self._sample(launch, 1)[0]
        best = min(best, *self._sample(launch, 1)) if best < limit else best
        calm = 0
        while calm < 3 and time.perf_counter() - started < limit:
            fastest = min(self._sample(launch, 3))
            calm = calm + 1 if fastest > 0.99 * best else 0
            best = min(best, fastest)
        return best

    def _sample(self, launch: Launch, count: int) -> list[float]:
        """Take samples in seconds; the host runs ahead of the GPU, which flushes meanwhile."""
        pending = []
        with explained(self.kernel.name):
            for _ in range(count):
                self.flush.zero_()
                pending.append(timed(launch))
            if self.clock is not None:
                self.clock.note()
            torch.cuda.synchronize(self.kernel.device)
        return [seconds() for seconds in pending]


class Batch:
    """Turns of one runnable, many launches timed as one: a CUDA graph, or one by one without.

    Parameters
    ----------
    launches
        Run in turns, so that they may work on different buffers.
    count
        How many launches are timed together.
    before
        Run before each launch: the flush, or None.
    graph
        Whether to put them in a CUDA graph. Where that cannot be done the constructor raises
        RuntimeError; each must have run before.
    """

    def __init__(
        self,
        kernel: Runnable,
        launches: Sequence[Callable[[], object]],
        count: int,
        *,
        before: Callable[[], object] | None = None,
        graph: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.kernel, self.launches, self.count = kernel, launches, count
        self.clock, self._before = clock, before
        self._body: Callable[[], object] = self._one_by_one
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                self._one_by_one()
            self._body = captured.replay

    def __call__(self) -> list[float]:
        """Take a turn: one sample, seconds a launch."""
        with explained(self.kernel.name):
            self._body()  # not timed: fills the caches, and lets the host run ahead
            seconds = timed(self._body)
            if self.clock is not None:
                self.clock.note()
            torch.cuda.synchronize(self.kernel.device)
        return [seconds() / self.count]

    def _one_by_one(self) -> None:
        for i in range(self.count):
            if self._before is not None:
                self._before()
            if self.launches:
                self.launches[i % len(self.launches)]()


def lone_seconds(launch: Callable[[], object], kernel: Runnable) -> float:
    """Return what events see of one launch on an idle GPU, kernel and launch, in seconds.

    The median of twenty, or of as many as fit in a fifth of a second.
    """
    seen: list[float] = []
    with explained(kernel.name):
        while len(seen) < _MOST_SAMPLES and sum(seen) < 0.2:
            torch.cuda.synchronize(kernel.device)
            seconds = timed(launch)
            torch.cuda.synchronize(kernel.device)
            seen.append(seconds())
    return statistics.median(seen)
