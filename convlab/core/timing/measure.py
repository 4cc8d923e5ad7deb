"""Measure how long kernels take on a GPU; `ab` says which of two is faster, and how surely.

Single launches are timed between CUDA events, with the L2 flushed before each (`stopwatch.Single`).
A kernel warms up until it no longer gets faster. Then samples are taken until their mean is known
to half a percent, or the time limit has passed; the median is reported. Several kernels are timed
in interleaved rounds, so that a drifting clock affects all of them. In a comparison a kernel also
stops once its place among the others is certain. An `observer` may check the outputs meanwhile.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..correctness import reference
from ..cost import MEASURED, Cost
from ..errors import ConvlabError
from ..kernel.data import inputs
from ..kernel.runnable import Inputs, Runnable
from ..machine.clock import Clock, Reading
from ..problem.problem import Problem
from . import stopwatch
from .observer import Caught

# Sampling ends at this relative standard error of the mean.
TARGET = 0.005
# The most time that is spent on one kernel.
LIMIT_SECONDS = 3.0
_LEAST_SAMPLES = 10
# The time of one kernel in a round.
_ROUND_SECONDS = 0.05
# The least samples and turns of a kernel that stops because its place is certain.
_PLACED_SAMPLES = 3
_PLACED_TURNS = 2
# Such a kernel's median must be known so well, and its interval is at least as wide. A kernel whose
# time is that of another stops when its mean is known so well.
_PLACED_ERROR = 0.01


@dataclass(frozen=True)
class Timing:
    """How long one kernel takes on one problem.

    Attributes
    ----------
    seconds : the median of the samples.
    spread : their interquartile range over the median.
    samples : their number.
    stable : whether they were enough: for `TARGET`, or for a certain place in a comparison.
    prepare_seconds : the time to prepare the filter once; NaN if the kernel does not prepare it.
    mhz : the median SM clock meanwhile; NaN if it cannot be read.
    caught : what the kernel did instead of the work; then it is not timed further.
    sample_seconds : the samples, in seconds.
    spent_seconds : the time that the measurement took, with warm-up and checks of the outputs.
    """

    seconds: float = math.nan
    spread: float = math.nan
    samples: int = 0
    stable: bool = False
    prepare_seconds: float = math.nan
    mhz: float = math.nan
    caught: str = ""
    sample_seconds: tuple[float, ...] = ()
    spent_seconds: float = 0.0

    def cost(self, floor: float, flops: float) -> Cost:
        """Return the time as a cost; `floor` is in ms, `flops` is the work of the problem."""
        time = 1e3 * self.seconds
        rate = flops / time / 1e9 if time else math.nan
        samples = [1e3 * sample for sample in self.sample_seconds]
        return Cost(MEASURED, time, floor, samples, {**self.cells, "tflops": rate})

    @property
    def cells(self) -> dict[str, float]:
        """The other columns of a table's row."""
        return {
            "with_prepare_ms": 1e3 * (self.seconds + self.prepare_seconds),
            "spread_pct": 100 * self.spread,
            "samples": self.samples,
            "mhz": self.mhz,
        }


def measure(kernel: Runnable, problem: Problem, **options: Any) -> Timing:
    """Measure one runnable on a problem; see `measure_all`."""
    return measure_all([kernel], problem, **options)[0]


def measure_all(
    kernels: Sequence[Runnable],
    problem: Problem,
    *,
    seed: int = 0,
    limit_seconds: float = LIMIT_SECONDS,
    progress: Callable[[str], object] = lambda name: None,
    judged: Sequence[bool] = (),
    place_only: bool = False,
    finished: Callable[[int, Timing], object] = lambda index, timing: None,
) -> list[Timing]:
    """Measure runnables of one device on normal data, in interleaved rounds.

    Parameters
    ----------
    kernels, problem, seed : what is measured, on which data.
    limit_seconds : the most time of one kernel, with warm-up and flushes; one sample more may follow.
    progress : called with a kernel's name when its first turn begins.
    judged : for each kernel, whether its outputs are checked; by default all are. An incorrect
        output ends the turns of its kernel.
    place_only : stop a kernel once its place among the others is certain: its samples are clearly
        apart from theirs, or its mean is known to one percent. A kernel of 400 ms then takes three
        samples instead of `limit_seconds`.
    finished : called with a kernel's index and its timing, as soon as it has stopped.

    Returns
    -------
    list of Timing
        One for each kernel, in order.

    Raises
    ------
    ConvlabError
        The kernels do not run on a GPU.
    """
    device = kernels[0].device
    if device.type != "cuda":
        raise ConvlabError(
            f"nothing is timed on {device}: the simulator counts traffic and measures no time"
        )
    reference.make_room(problem, device)
    data = shared_inputs(kernels, problem, seed)
    with torch.cuda.device(device):
        flush = stopwatch.flush_buffer(device)
        samplings = []
        for kernel, tensors, judge in zip(kernels, data, judged or [True] * len(data), strict=True):
            turn = stopwatch.Single(
                kernel,
                problem,
                tensors,
                flush,
                turn_seconds=_ROUND_SECONDS,
                warm_up_seconds=limit_seconds / 3,
                clock=Clock(device),
                trusted=not judge,
            )
            samplings.append(_Sampling(turn, limit_seconds, progress))
        timings: dict[int, Timing] = {}

        def finish(index: int) -> None:
            if index not in timings:
                timings[index] = samplings[index].timing()
                finished(index, timings[index])

        # A kernel whose mean is known goes on while others do, so that rounds stay alike.
        turns = [sampling.take for sampling in samplings]
        for samples in stopwatch.rounds(
            turns, random.Random(seed), lambda i: samplings[i].may_go_on
        ):
            for sampling, new in zip(samplings, samples, strict=True):
                sampling.samples += new
            for index, sampling in enumerate(samplings):
                if place_only:
                    others = [other for other in samplings if other is not sampling]
                    is_certain = sampling.is_apart_from(others) or sampling.is_known
                    sampling.placed = sampling.placed or is_certain
                if not sampling.may_go_on:
                    finish(index)
            if not any(sampling.may_go_on for sampling in samplings if sampling.is_vague):
                break
        for index in range(len(samplings)):
            finish(index)
        return [timings[index] for index in range(len(samplings))]


@dataclass
class _Sampling:
    """The samples of one kernel so far."""

    turn: stopwatch.Single
    limit_seconds: float
    progress: Callable[[str], object]
    samples: list[float] = field(default_factory=list)
    # What the kernel did instead of the work.
    caught: str = ""
    taken: int = 0
    # Whether its place among the other kernels is certain.
    placed: bool = False

    def take(self) -> list[float]:
        """Take a turn, and return its samples; none if the kernel is caught."""
        if not self.samples:
            self.progress(self.turn.kernel.name)
        self.taken += 1
        try:
            return self.turn()
        except Caught as error:
            self.caught = str(error)
            return []

    @property
    def may_go_on(self) -> bool:
        """Whether the kernel may take another turn."""
        return self.turn.spent < self.limit_seconds and not self.caught and not self.placed

    @property
    def is_vague(self) -> bool:
        """Whether the mean is not yet known well enough."""
        return relative_error(self.samples) > TARGET

    @property
    def is_known(self) -> bool:
        """Whether the mean is known well enough for a table."""
        return relative_error(self.samples) <= _PLACED_ERROR

    def is_apart_from(self, others: "Sequence[_Sampling]") -> bool:
        """Return whether the samples are clearly shorter or longer than those of each other."""
        rivals = [other for other in others if other.samples]
        if not rivals or len(self.samples) < _PLACED_SAMPLES or self.taken < _PLACED_TURNS:
            return False
        low, middle, high = quartiles(self.samples)
        if high - low > _PLACED_ERROR * middle * math.sqrt(len(self.samples)):
            return False
        low, high = interval(self.samples)
        for rival in rivals:
            rival_low, rival_high = interval(rival.samples)
            if rival_low <= high and low <= rival_high:
                return False
        return True

    def timing(self) -> Timing:
        """Return the result."""
        if self.caught:
            return Timing(caught=self.caught, spent_seconds=self.turn.spent)
        prepare = prepare_seconds(self.turn.kernel, self.turn.problem, self.turn.inputs)
        timing = summary(self.samples, prepare, self.turn.clock.take())
        return replace(timing, stable=timing.stable or self.placed, spent_seconds=self.turn.spent)


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    middle = statistics.median(samples)
    if len(samples) < 2:
        return middle, middle, middle
    low, _, high = statistics.quantiles(samples, n=4)
    return low, middle, high


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return a generous interval of the median: the quartiles, and their distance on either side.

    The distance is at least one percent of the median. Of three samples the quartiles are the
    least and the largest.
    """
    low, middle, high = quartiles(samples)
    margin = max(high - low, _PLACED_ERROR * middle)
    return low - margin, high + margin


def shared_inputs(kernels: Sequence[Runnable], problem: Problem, seed: int) -> list[Inputs]:
    """Return each runnable's inputs; runnables of one format share their tensors."""
    device = kernels[0].device
    formats = {kernel.format for kernel in kernels}
    by_format = {each: inputs(problem, seed, device, format=each) for each in formats}
    return [by_format[kernel.format] for kernel in kernels]


def summary(
    samples: Sequence[float], prepare: float = math.nan, clock: Sequence[Reading] = ()
) -> Timing:
    """Return the timing of samples in seconds: their median and spread."""
    low, middle, high = quartiles(samples)
    spread = (high - low) / middle if middle else 0.0
    mhz = statistics.median(reading.mhz for reading in clock) if clock else math.nan
    return Timing(
        middle,
        spread,
        samples=len(samples),
        stable=relative_error(samples) <= TARGET,
        prepare_seconds=prepare,
        mhz=mhz,
        sample_seconds=tuple(samples),
    )


def relative_error(samples: Sequence[float]) -> float:
    """Return the relative standard error of the mean; infinite for fewer than ten samples."""
    if len(samples) < _LEAST_SAMPLES:
        return math.inf
    mean = statistics.fmean(samples)
    if not mean:
        return 0.0
    return statistics.stdev(samples) / math.sqrt(len(samples)) / mean


def prepare_seconds(kernel: Runnable, problem: Problem, data: Inputs) -> float:
    """Return the seconds to prepare the filter; NaN if the kernel does not prepare it."""
    if kernel.library:
        return math.nan
    launch = kernel.prepare(problem, *data)
    if launch.plan is None:
        return math.nan
    return stopwatch.lone_seconds(launch.prepare_filter, kernel)
