"""How long a kernel takes on a GPU.

Single launches between CUDA events, the L2 flushed before each (`stopwatch.Single`), warm-up until
it no longer gets faster, samples until their mean is known to half a percent or the time is up, and
the median reported. Several kernels are timed in interleaved rounds, so that a drifting clock meets
all of them. To know which of two is faster, and how surely, take `ab`.

A simulated run has counters, which a `Report` holds; it never has a time of a GPU.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..right import reference
from ..run.data import inputs
from ..run.runnable import Inputs, Runnable
from ..words.errors import ConvlabError
from ..words.problem import Problem
from . import stopwatch

TARGET = 0.005  # relative standard error of the mean at which sampling ends
LIMIT_SECONDS = 3.0  # time spent on one kernel at most
_LEAST_SAMPLES = 10
_ROUND_SECONDS = 0.05  # what one kernel gets of a round


@dataclass(frozen=True)
class Timing:
    """How long one kernel takes on one problem.

    Attributes
    ----------
    kernel
        Its name.
    seconds, spread, samples, stable
        The median; the interquartile range over the median; how many samples; whether they were
        enough for `TARGET`.
    prepare_seconds
        What laying out the filter takes, once for a filter and not part of `seconds`; NaN of a
        kernel that takes it as it is.
    """

    kernel: str
    seconds: float
    spread: float
    samples: int
    stable: bool
    prepare_seconds: float = math.nan


def measure(kernel: Runnable, problem: Problem, **options: Any) -> Timing:
    """Measure one runnable on a problem; see `measure_all`."""
    return measure_all([kernel], problem, **options)[0]


def measure_all(
    kernels: Sequence[Runnable],
    problem: Problem,
    *,
    seed: int = 0,
    target: float = TARGET,
    limit_seconds: float = LIMIT_SECONDS,
    progress: Callable[[str], object] | None = None,
) -> list[Timing]:
    """Measure several runnables of one device on a problem.

    Parameters
    ----------
    kernels
        Runnables; they are timed in turns, round after round.
    problem
        What to compute, on normal data.
    seed
        Seed of the data.
    target
        Relative standard error of the mean at which sampling ends (at least 10 samples).
    limit_seconds
        Time spent on a kernel at most, warm-up and flushes included; every kernel gets at least
        one sample.
    progress
        Called now and then with a kernel's name.

    Returns
    -------
    list of Timing, in the order of `kernels`.

    Raises
    ------
    LaunchError
        A kernel failed to run, or memory is short.
    ConvlabError
        The kernels are on different devices, or on none that takes a time.
    """
    devices = {kernel.device for kernel in kernels}
    if len(devices) > 1:
        raise ConvlabError(
            f"kernels on different devices ({', '.join(sorted(map(str, devices)))}) cannot be "
            "measured side by side; load them all with the same engine"
        )
    if not kernels:
        return []
    device = devices.pop()
    if device.type != "cuda":
        raise ConvlabError(f"nothing is timed on {device}: what is simulated has counters instead")
    reference.make_room(problem, device)
    data = shared_inputs(kernels, problem, seed)
    return _time_in_rounds(kernels, problem, data, seed, target, limit_seconds, progress)


def shared_inputs(kernels: Sequence[Runnable], problem: Problem, seed: int) -> list[Inputs]:
    """Return each runnable's data: the same tensors for all of one format."""
    device = kernels[0].device
    formats = {kernel.format for kernel in kernels}
    made = {each: inputs(problem, seed, device, format=each) for each in formats}
    return [made[kernel.format] for kernel in kernels]


def summary(
    kernel: Runnable,
    samples: Sequence[float],
    target: float = TARGET,
    prepare_seconds: float = math.nan,
) -> Timing:
    """Turn samples in seconds into a median and a spread."""
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle] * 3
    return Timing(
        kernel.name,
        seconds=middle,
        spread=(high - low) / middle if middle else 0.0,
        samples=len(samples),
        stable=relative_error(samples) <= target,
        prepare_seconds=prepare_seconds,
    )


def relative_error(samples: Sequence[float]) -> float:
    """Return the relative standard error of the mean; infinite for fewer than ten samples."""
    if len(samples) < _LEAST_SAMPLES:
        return math.inf
    mean = statistics.fmean(samples)
    return statistics.stdev(samples) / math.sqrt(len(samples)) / mean if mean else 0.0


def _time_in_rounds(
    kernels: Sequence[Runnable],
    problem: Problem,
    data: Sequence[Inputs],
    seed: int,
    target: float,
    limit_seconds: float,
    progress: Callable[[str], object] | None,
) -> list[Timing]:
    """Time each kernel a little in each round, until all are known well or the time is up."""
    device = kernels[0].device
    samples: list[list[float]] = [[] for _ in kernels]
    with torch.cuda.device(device):
        flush = stopwatch.flush_buffer(device)
        turns = [
            stopwatch.Single(
                kernel, problem, given, flush,
                turn_seconds=_ROUND_SECONDS, warm_up_seconds=limit_seconds / 3,
            )
            for kernel, given in zip(kernels, data, strict=True)
        ]  # fmt: skip

        def wanted(i: int) -> bool:
            # those known well go on, so that rounds stay alike; those whose time is up do not
            if progress and not samples[i]:
                progress(kernels[i].name)
            return turns[i].spent < limit_seconds

        for taken in stopwatch.rounds(turns, random.Random(seed), wanted):
            for kept, new in zip(samples, taken, strict=True):
                kept += new
            if all(
                relative_error(kept) <= target or turn.spent >= limit_seconds
                for kept, turn in zip(samples, turns, strict=True)
            ):
                break
        prepared = [_prepare_seconds(k, problem, d) for k, d in zip(kernels, data, strict=True)]
    return [
        summary(kernel, taken, target, seconds)
        for kernel, taken, seconds in zip(kernels, samples, prepared, strict=True)
    ]


def _prepare_seconds(kernel: Runnable, problem: Problem, data: Inputs) -> float:
    """What laying out the filter takes by itself; NaN if the kernel takes it as it is."""
    launch = None if kernel.library else kernel.prepare(problem, *data)
    if launch is None or launch.plan is None:
        return math.nan
    return stopwatch.lone_seconds(launch.prepare_filter, kernel)
