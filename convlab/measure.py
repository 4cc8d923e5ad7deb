"""How fast is a kernel: time on a GPU, counted memory traffic on the simulator.

The method on a GPU is that of nvbench and of gpu-mode's evaluator: CUDA events on the current
stream, the L2 flushed before each sample, warm-up until it no longer gets faster, samples until
their mean is known to half a percent or the time is up, and the median reported. Several kernels
are timed in interleaved rounds, so that a drifting clock meets all of them.

A simulated run has counters and a wall time of the host; it never has a time of a GPU.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import reference
from .check import run
from .device import describe
from .errors import ConvlabError
from .problem import Problem

TARGET = 0.005  # relative standard error of the mean at which sampling ends
LIMIT_SECONDS = 3.0  # time spent on one kernel at most
_LEAST_SAMPLES = 10
_ROUND_SECONDS = 0.05  # what one kernel gets of a round
_FLUSH_BYTES = 64 << 20  # the least that is written between samples


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
        return _time_in_rounds(kernels, problem, inputs, target, limit_seconds, progress)
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
    target: float,
    limit_seconds: float,
    progress: Callable[[str], object] | None,
) -> list[Timing]:
    """Time each kernel a little in each round, until all are known well or the time is up.

    A kernel's output and workspace live for its turn only: one output's memory does for all.
    """
    device = kernels[0].device
    samples: list[list[float]] = [[] for _ in kernels]
    spent = [0.0] * len(kernels)
    with torch.cuda.device(device):
        flush = _flush_buffer(device)
        while True:
            # those known well go on, so that rounds stay alike; those whose time is up do not
            for i, kernel in enumerate(kernels):
                if spent[i] >= limit_seconds:
                    continue
                started = time.perf_counter()
                launch = kernel.prepare(problem, *inputs)
                if samples[i]:
                    count = max(1, min(20, int(_ROUND_SECONDS / statistics.median(samples[i]))))
                    _sample(launch, kernel, flush, 1)  # the first after another kernel is dropped
                else:
                    if progress:
                        progress(kernel.name)
                    count = _warm_up(launch, kernel, flush, limit_seconds / 3)
                samples[i] += _sample(launch, kernel, flush, count)
                del launch
                spent[i] += time.perf_counter() - started
            if all(
                relative_error(taken) <= target or time_spent >= limit_seconds
                for taken, time_spent in zip(samples, spent, strict=True)
            ):
                break
    return [
        summary(kernel, taken, target) for kernel, taken in zip(kernels, samples, strict=True)
    ]


def _flush_buffer(device: torch.device) -> torch.Tensor:
    """Return what is written over before each sample: twice the L2, so that nothing stays."""
    known = describe(device)
    size = max(2 * known.l2_bytes if known else 0, _FLUSH_BYTES)
    return torch.empty(size, dtype=torch.uint8, device=device)


def _warm_up(launch: Any, kernel: Any, flush: torch.Tensor, limit_seconds: float) -> int:
    """Run until it no longer gets faster; return how many samples make a turn in a round."""
    started = time.perf_counter()
    best = _sample(launch, kernel, flush, 1)[0]
    best = min(best, *_sample(launch, kernel, flush, 1)) if best < limit_seconds else best
    calm = 0
    while calm < 3 and time.perf_counter() - started < limit_seconds:
        fastest = min(_sample(launch, kernel, flush, 3))
        calm = calm + 1 if fastest > 0.99 * best else 0
        best = min(best, fastest)
    return max(1, min(20, int(_ROUND_SECONDS / max(best, 1e-6))))


def _sample(launch: Any, kernel: Any, flush: torch.Tensor, count: int) -> list[float]:
    """Take samples in seconds, the L2 flushed before each; the host runs ahead of the GPU."""
    events = []

    def enqueue() -> None:
        for _ in range(count):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            launch()
            end.record()
            events.append((start, end))

    run(enqueue, kernel)
    return [start.elapsed_time(end) / 1e3 for start, end in events]
