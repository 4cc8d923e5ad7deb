"""How long kernels take on a GPU; to know which of two is faster, and how surely, take `ab`.

Single launches between CUDA events, the L2 flushed before each (`stopwatch.Single`), warm-up until
it no longer gets faster, samples until their mean is known to half a percent or the time is up, and
the median reported. Several kernels are timed in interleaved rounds, so that a drifting clock meets
all of them. What they compute meanwhile may be looked at (`witness`).
"""

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

TARGET = 0.005  # relative standard error of the mean at which sampling ends
LIMIT_SECONDS = 3.0  # time spent on one kernel at most
_LEAST_SAMPLES = 10
_ROUND_SECONDS = 0.05  # what one kernel gets of a round


@dataclass(frozen=True)
class Timing:
    """How long one kernel takes on one problem."""

    seconds: float = math.nan  # the median
    spread: float = math.nan  # the interquartile range over the median
    samples: int = 0
    stable: bool = False  # whether they were enough for `TARGET`
    prepare_seconds: float = math.nan  # to lay out the filter, once; NaN if it is taken as it is
    mhz: float = math.nan  # the SMs' clock meanwhile, the median; NaN if it cannot be read
    caught: str = ""  # what it did instead of the work, which ended its turns
    taken: tuple[float, ...] = ()  # the samples, in seconds

    def cost(self, floor: float, flops: float) -> Cost:
        """Return the time as a cost; `floor` is in ms, `flops` what the problem takes."""
        time = 1e3 * self.seconds
        rate = flops / time / 1e9 if time else math.nan
        samples = [1e3 * sample for sample in self.taken]
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
) -> list[Timing]:
    """Measure runnables of one device on normal data: each a little in each round.

    What those compute that are `judged` is looked at; what is not right ends the turns of that one.
    A kernel takes `limit_seconds` at most, warm-up and flushes included, but for one sample.
    """
    device = kernels[0].device
    if device.type != "cuda":
        raise ConvlabError(f"nothing is timed on {device}: what is simulated has counters instead")
    reference.make_room(problem, device)
    data = shared_inputs(kernels, problem, seed)
    samples: list[list[float]] = [[] for _ in kernels]
    caught = [""] * len(kernels)
    with torch.cuda.device(device):
        flush = stopwatch.flush_buffer(device)
        seconds = (_ROUND_SECONDS, limit_seconds / 3)
        looked_at = judged or [True] * len(data)
        turns = [
            stopwatch.Single(
                kernel, problem, given, flush, *seconds, Clock(device), trusted=not judge
            )
            for kernel, given, judge in zip(kernels, data, looked_at, strict=True)
        ]

        def take(i: int) -> list[float]:
            if not samples[i]:
                progress(kernels[i].name)
            try:
                return turns[i]()
            except Caught as error:
                caught[i] = str(error)
                return []

        def wanted(i: int) -> bool:
            # those known well go on, so that rounds stay alike; those whose time is up do not
            return turns[i].spent < limit_seconds and not caught[i]

        takers = [functools.partial(take, i) for i in range(len(turns))]
        for taken in stopwatch.rounds(takers, random.Random(seed), wanted):
            for kept, new in zip(samples, taken, strict=True):
                kept += new
            vague = (i for i, kept in enumerate(samples) if relative_error(kept) > TARGET)
            if not any(map(wanted, vague)):
                break
        return [
            Timing(caught=why)
            if why
            else summary(kept, prepare_seconds(kernel, problem, turn.inputs), turn.clock.take())
            for kernel, kept, turn, why in zip(kernels, samples, turns, caught, strict=True)
        ]


def shared_inputs(kernels: Sequence[Runnable], problem: Problem, seed: int) -> list[Inputs]:
    """Return each runnable's data: the same tensors for all of one format."""
    formats = {kernel.format for kernel in kernels}
    made = {each: inputs(problem, seed, kernels[0].device, format=each) for each in formats}
    return [made[kernel.format] for kernel in kernels]


def summary(
    samples: Sequence[float], prepare: float = math.nan, clock: Sequence[Reading] = ()
) -> Timing:
    """Turn samples in seconds into a median and a spread."""
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle] * 3
    spread = (high - low) / middle if middle else 0.0
    stable = relative_error(samples) <= TARGET
    mhz = statistics.median(reading.mhz for reading in clock) if clock else math.nan
    return Timing(middle, spread, len(samples), stable, prepare, mhz, taken=tuple(samples))


def relative_error(samples: Sequence[float]) -> float:
    """Return the relative standard error of the mean; infinite for fewer than ten samples."""
    if len(samples) < _LEAST_SAMPLES:
        return math.inf
    mean = statistics.fmean(samples)
    return statistics.stdev(samples) / math.sqrt(len(samples)) / mean if mean else 0.0


def prepare_seconds(kernel: Runnable, problem: Problem, data: Inputs) -> float:
    """What laying out the filter takes by itself; NaN if the kernel takes it as it is."""
    launch = None if kernel.library else kernel.prepare(problem, *data)
    if launch is None or launch.plan is None:
        return math.nan
    return stopwatch.lone_seconds(launch.prepare_filter, kernel)
