"""One kernel on one problem, examined in this process, whichever that is.

`check.py` decides where it runs; what breaks here is raised as it is. Everything is done on a
stream of its own on a GPU, between guard zones, twice, and from poison.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from typing import Any

import torch

from ..words.problem import Problem
from . import reference, tally
from .guards import Guards
from .report import Report

_SLOW_SECONDS = 5.0  # a simulated run longer than this is not repeated
_SLEEP_CYCLES = 10_000_000  # of a GPU's clock, before a launch: some 5 ms


def is_library(kernel: Any) -> bool:
    """Whether a runnable is a baseline."""
    return ":" in kernel.name


def examine(
    kernel: Any, problem: Problem, seed: int, sample: int, notes: tuple[str, ...] = ()
) -> Report:
    """Check a kernel on one problem; the arguments are `check`'s, and notes to begin with."""
    if kernel.device.type != "cuda":
        return _examine(kernel, problem, seed, sample, list(notes))
    with torch.cuda.device(kernel.device):
        torch.cuda.synchronize()
        with torch.cuda.stream(_side_stream(kernel.device.index)):
            report = _examine(kernel, problem, seed, sample, list(notes))
        torch.cuda.synchronize()  # a fault on another stream shows here at the latest
        if torch.cuda.memory_reserved() > 1 << 30:
            torch.cuda.empty_cache()  # what is measured next may need it in another process
    return report


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """The stream that checks run on: it waits for no other, as all of torch's do not."""
    return torch.cuda.Stream(index)


def _examine(kernel: Any, problem: Problem, seed: int, sample: int, notes: list[str]) -> Report:
    guards, options = Guards(), {}
    pristine = reference.inputs(problem, seed, kernel.device)
    inputs = [guards.place(n, t) for n, t in zip(("x", "w", "bias"), pristine, strict=True)]
    if "allocate" in inspect.signature(kernel.prepare).parameters:  # not a baseline's
        options["allocate"] = guards.allocate
    launch = kernel.prepare(problem, *inputs, **options)
    seen = getattr(launch, "inputs", inputs)  # the simulator's are copies, guarded by itself
    bound = reference.tolerance(kernel.precision, problem.gemm_k)

    started = time.perf_counter()
    poisoned = _run(launch, kernel)
    host_seconds = time.perf_counter() - started
    counters = getattr(launch, "counters", None)
    failures = tally.changed_inputs(seen, pristine)

    found = tally.Tally(problem, launch.y, bound, poisoned)
    compared = found.compare(pristine, sample, seed)
    failures += found.failures()
    if not found.error <= bound:
        failures.append(
            f"the error as a whole is {found.error:.2g}; {kernel.precision} allows {bound:.2g} here"
        )
    if found.constant:
        notes.append("every output of this problem is the same number: passing it says little")
    patterns = found.words(pristine, kernel.precision, sample, seed) if failures else []
    moving = _moving(kernel, problem, launch, host_seconds, notes)
    failures += moving
    failures += guards.violations()
    failures += [line for line in tally.changed_inputs(seen, pristine) if line not in failures]
    report = Report(
        ok=not failures, problem=problem, kernel=kernel.name, title=kernel.title,
        precision=kernel.precision, engine=kernel.engine, error=found.error, bound=bound,
        worst=found.worst, limit=found.limit, outputs=launch.y.numel(), wrong=found.wrong,
        unwritten=found.unwritten, compared=compared, failures=tuple(failures),
        patterns=tuple(patterns), notes=tuple(notes), pixels=found.pixels,
        channels=found.channels, counters=counters, host_seconds=host_seconds,
    )  # fmt: skip
    if (found.wrong or found.unwritten or moving) and kernel.device.type == "cuda":
        report = _blame_stream(report, launch, pristine, sample, seed)
    return report


def _run(launch: Any, kernel: Any) -> bool:
    """Poison and run a launch on the current stream; return whether there was an output to poison.

    On a GPU the stream is made to sleep first, and only it is waited for: what a kernel launches
    on another stream runs before the poison, or is not done when the result is read.
    """
    if kernel.device.type == "cuda":
        torch.cuda._sleep(_SLEEP_CYCLES)
    poisoned = tally.poison(launch)
    launch()
    if kernel.device.type == "cuda":
        torch.cuda.current_stream(kernel.device).synchronize()
    return poisoned


def _moving(
    kernel: Any, problem: Problem, launch: Any, host_seconds: float, notes: list[str]
) -> list[str]:
    """Run once more and compare bits, unless the kernel may differ or takes too long."""
    if is_library(kernel):  # its own choice of algorithm, not ours to judge
        return []
    if getattr(getattr(kernel, "header", None), "atomics", False):
        notes.append("not run twice: its header says that it adds with atomics, in any order")
        return []
    if kernel.engine == "sim" and host_seconds > _SLOW_SECONDS:
        notes.append(f"not run twice: the first run took {host_seconds:.0f} s on the simulator")
        return []
    first = tally.keep(launch.y)
    if first.numel() < launch.y.numel():
        part = first.numel() / launch.y.numel()
        notes.append(f"second run compared on the first {part:.0%} of the outputs: memory is short")
    _run(launch, kernel)
    count, index = tally.moved(launch.y, first)
    if not count:
        return []
    place = ", ".join(map(str, tally.position(index, problem)))
    return [
        f"{count:,} of {first.numel():,} outputs changed when it ran again on the same data, the "
        f"first at (n, k, p, q) = ({place}): a race, or memory read before it was written"
    ]


def _blame_stream(
    report: Report, launch: Any, pristine: reference.Inputs, sample: int, seed: int
) -> Report:
    """Run a wrong kernel with all of it on the default stream; if it is right there, say so."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        for _ in range(3):  # a race may well be right once
            poisoned = tally.poison(launch)
            torch.cuda.synchronize()
            launch()
            torch.cuda.synchronize()
            again = tally.Tally(report.problem, launch.y, report.bound, poisoned)
            again.compare(pristine, sample, seed)
            if again.wrong or again.unwritten or not again.error <= report.bound:
                return report
    text = ("right when all of it runs on the default stream: it launches on another stream than "
            "the one it is given (conv2d's last argument)")  # fmt: skip
    return dataclasses.replace(report, failures=(text, *report.failures))
