"""How fast is a kernel: time on a GPU, counted memory traffic on the simulator.

On a GPU: single launches between CUDA events, the L2 flushed before each (`stopwatch.Single`),
warm-up until it no longer gets faster, samples until their mean is known to half a percent or the
time is up, and the median reported. Several kernels are timed in interleaved rounds, so that a
drifting clock meets all of them. To know which of two is faster, and how surely, take `ab`.

A simulated run has counters and a wall time of the host; it never has a time of a GPU.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..right import reference
from ..right.check import run
from ..words.errors import ConvlabError
from ..words.problem import Problem
from . import stopwatch

TARGET = 0.005  # relative standard error of the mean at which sampling ends
LIMIT_SECONDS = 3.0  # time spent on one kernel at most
_LEAST_SAMPLES = 10
_ROUND_SECONDS = 0.05  # what one kernel gets of a round


@dataclass(frozen=True)
class Timing:
    """What one kernel costs on one problem.

    Attributes
    ----------
    kernel, engine
        Which kernel, where.
    seconds, spread, samples, stable
        On a GPU: the median; the interquartile range over the median; how many samples; whether
        they were enough for `TARGET`. Elsewhere NaN, NaN, 0 and False.
    traffic_bytes, shared_wavefronts
        On the simulator: bytes that loads and stores move, in 32-byte sectors, nothing cached
        between warp requests, and for calls of cuBLAS a model's (tiles of 128x128); and shared
        memory wavefronts. Elsewhere None.
    host_seconds
        On the simulator: how long the simulation took. It says nothing of any GPU.
    counters
        All of the simulator's counters.
    """

    kernel: str
    engine: str
    seconds: float = math.nan
    spread: float = math.nan
    samples: int = 0
    stable: bool = False
    traffic_bytes: int | None = None
    shared_wavefronts: int | None = None
    host_seconds: float = math.nan
    counters: dict[str, Any] | None = field(default=None, repr=False)


def measure(kernel: Any, problem: Problem, **options: Any) -> Timing:
    """Measure one runnable (Kernel or Baseline) on a problem; see `measure_all`."""
    return measure_all([kernel], problem, **options)[0]


def measure_all(
    kernels: Sequence[Any],
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
        Runnables; on a GPU they are timed in turns, round after round.
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
        The kernels are on different devices.
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
    inputs = reference.inputs(problem, seed, device)
    if device.type == "cuda":
        return _time_in_rounds(kernels, problem, inputs, seed, target, limit_seconds, progress)
    timings = []
    for kernel in kernels:
        if progress:
            progress(kernel.name)
        launch = kernel.prepare(problem, *inputs)
        started = time.perf_counter()
        run(launch, kernel)
        elapsed = time.perf_counter() - started
        timings.append(simulated(kernel, getattr(launch, "counters", None), elapsed))
    return timings


def simulated(kernel: Any, counters: dict[str, Any] | None, host_seconds: float) -> Timing:
    """Turn the counters of a simulated run into what it costs; without counters, only the wait."""
    if not counters:
        return Timing(kernel.name, kernel.engine, host_seconds=host_seconds)
    return Timing(
        kernel.name,
        kernel.engine,
        traffic_bytes=sum(
            int(counters.get(key, 0))
            for key in ("global_load_bytes", "global_store_bytes", "library_bytes")
        ),
        shared_wavefronts=counters["shared_wavefronts"],
        host_seconds=counters.get("seconds", host_seconds),
        counters=dict(counters),
    )


def summary(kernel: Any, samples: Sequence[float], target: float = TARGET) -> Timing:
    """Turn samples in seconds into a median and a spread."""
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [middle] * 3
    return Timing(
        kernel.name,
        kernel.engine,
        seconds=middle,
        spread=(high - low) / middle if middle else 0.0,
        samples=len(samples),
        stable=relative_error(samples) <= target,
    )


def relative_error(samples: Sequence[float]) -> float:
    """Return the relative standard error of the mean; infinite for fewer than ten samples."""
    if len(samples) < _LEAST_SAMPLES:
        return math.inf
    mean = statistics.fmean(samples)
    return statistics.stdev(samples) / math.sqrt(len(samples)) / mean if mean else 0.0


def _time_in_rounds(
    kernels: Sequence[Any],
    problem: Problem,
    inputs: Sequence[torch.Tensor | None],
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
                kernel, problem, inputs, flush,
                turn_seconds=_ROUND_SECONDS, warm_up_seconds=limit_seconds / 3,
            )
            for kernel in kernels
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
    return [
        summary(kernel, taken, target) for kernel, taken in zip(kernels, samples, strict=True)
    ]
