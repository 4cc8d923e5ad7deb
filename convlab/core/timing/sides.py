"""What is compared: names, paths and callables made runnables, built, and judged."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..correctness.check import check
from ..correctness.report import Report
from ..defaults import BASELINES
from ..errors import BuildError, ConvlabError
from ..kernel.function import Function, declared
from ..kernel.kernel import resolve
from ..kernel.runnable import Runnable
from ..machine import interrupt
from ..problem.problem import Problem
from .observer import Caught, audit


def side_by_side(things: Iterable[Any], engine: str) -> list[Runnable]:
    """Turn names, paths and callables into runnables on one device.

    Libraries' convolutions and callables run where the kernels do. Raises ConvlabError where the
    kernels' devices differ.
    """
    sides = list(things)
    for i, thing in enumerate(sides):
        if isinstance(thing, Path) or (isinstance(thing, str) and ":" not in thing):
            sides[i] = resolve(thing, engine)
    on_cpu = any(isinstance(side, Runnable) and side.counts for side in sides)
    on_cpu = on_cpu or engine not in ("auto", "cuda") or not torch.cuda.is_available()
    on_cpu = on_cpu or any(_runs_on_the_cpu_only(thing) for thing in sides)
    where = "cpu" if on_cpu else "cuda"
    for i, thing in enumerate(sides):
        if callable(thing) and not isinstance(thing, Runnable):
            sides[i] = Function.of(thing, where)
        else:
            sides[i] = resolve(thing, where)
    places = {side.device: f"{side.name} on {side.device}" for side in sides}
    if len(places) > 1:
        raise ConvlabError(
            f"what runs on different devices cannot be compared: {', '.join(places.values())}; "
            "load all with one engine"
        )
    return sides


def _runs_on_the_cpu_only(thing: Any) -> bool:
    """Return whether a thing names a baseline that there is on the CPU alone."""
    if not isinstance(thing, str) or thing not in BASELINES:
        return False
    *_, only = BASELINES[thing]
    return only == "cpu"


def identity(kernel: Runnable) -> tuple:
    """Return what makes two runnables the same: function, or source with tunables, or name."""
    function = kernel.function if isinstance(kernel, Function) else None
    name = kernel.name.split("#")[0]  # of one that is pinned
    return function, name, kernel.engine, kernel.source, tuple(kernel.defines.items())


@contextmanager
def build_all(kernels: Sequence[Runnable]) -> Iterator[Iterator[BuildError | None]]:
    """Build runnables, as many at a time as there are cores; give what went wrong with each."""

    def error_of(building: Future) -> BuildError | None:
        error = building.exception()
        if error is not None and not isinstance(error, BuildError):
            raise error
        return error

    at_once = max(1, len(os.sched_getaffinity(0)))
    with interrupt.held(), ThreadPoolExecutor(at_once) as pool:
        try:
            yield map(error_of, [pool.submit(kernel.build) for kernel in kernels])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Judged:
    """A runnable that was checked on a problem, in the class that it is right to."""

    runnable: Runnable
    report: Report
    notes: Sequence[str] = ()  # what a reader should know of it
    caught: str = ""  # what it did instead of the work


def judge(runnable: Runnable, problem: Problem, **options: Any) -> Judged:
    """Check a runnable on a problem, and audit a callable; the options are `check`'s.

    A callable that names no class, and is not right to fp32, may be right to tf32. Raises what
    `check` raises.
    """
    if not isinstance(runnable, Function):
        return Judged(runnable, check(runnable, problem, **options))
    auditor = audit(runnable)
    notes: list[str] = []
    report = check(runnable, problem, **options)
    if not report.ok and not declared(runnable.function):
        coarse = replace(runnable, precision="tf32")
        again = check(coarse, problem, **options)
        if again.ok:
            runnable = coarse
            report = again
            notes.append(f"{runnable.name} is right to tf32 only")
    try:
        notes += auditor.finish(runnable, problem, report.ok)
    except Caught as error:
        return Judged(runnable, report, notes, str(error))
    return Judged(runnable, report, notes)


def reason(error: Exception, name: str) -> str:
    """Return what an error says of a kernel in one line, without its name; a static_assert's text."""
    text = str(error).strip()
    asserted = re.search(r"static assertion failed(?: with|:)? *\"?([^\"\n]+)", text)
    if asserted:
        return f"static_assert: {asserted[1].strip()}"
    first, *more = text.split("\n")
    # The first line of a BuildError says no more than that it did not compile.
    line = more[0].strip() if more and isinstance(error, BuildError) else first
    return re.sub(rf"^{re.escape(name)}(:| failed:)? ", "", line)


def cudnn_of(kernel: Runnable) -> str:
    """Name cuDNN in a kernel's class and layout."""
    last = {"NCHW": "", "NHWC": ":channels_last"}[kernel.format.x.layout]
    return f"cudnn:{kernel.precision}{last}"
