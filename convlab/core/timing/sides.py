"""Turn names, paths and callables into runnables, build them, and check them."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..correctness.check import check
from ..correctness.report import Report
from ..defaults import BASELINES
from ..errors import BuildError, ConvlabError
from ..kernel.function import Function
from ..kernel.kernel import resolve
from ..kernel.runnable import Runnable
from ..machine import interrupt
from ..problem.problem import Problem
from .observer import Caught, audit


def side_by_side(things: Iterable[Any], engine: str) -> list[Runnable]:
    """Return names, paths and callables as runnables on one device.

    Libraries' convolutions and callables run where the kernels do. Raises ConvlabError if the
    kernels run on different devices.
    """
    sides = list(things)
    for i, thing in enumerate(sides):
        # A name with a colon is a baseline's.
        if isinstance(thing, Path) or (isinstance(thing, str) and ":" not in thing):
            sides[i] = resolve(thing, engine)
    counted = any(isinstance(side, Runnable) and side.counts for side in sides)
    on_cpu = counted or engine not in ("auto", "cuda") or not torch.cuda.is_available()
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
            f"kernels on different devices cannot be compared: {', '.join(places.values())}; "
            "load all with one engine"
        )
    return sides


def _runs_on_the_cpu_only(thing: Any) -> bool:
    """Return whether a thing names a baseline that exists on the CPU only."""
    if not isinstance(thing, str) or thing not in BASELINES:
        return False
    *_, only = BASELINES[thing]
    return only == "cpu"


def identity(kernel: Runnable) -> tuple:
    """Return a key that is equal for the same runnable: name, engine, source, tunables."""
    function = kernel.function if isinstance(kernel, Function) else None
    # The name of a pinned kernel ends with # and a digest.
    name = kernel.name.split("#")[0]
    return function, name, kernel.engine, kernel.source, tuple(kernel.defines.items())


@dataclass(frozen=True)
class Built:
    """How a build ended.

    Attributes
    ----------
    error : why it failed; None if it did not.
    seconds : the time that it took, or that it took to find an earlier build.
    """

    error: BuildError | None
    seconds: float


@contextmanager
def build_all(
    kernels: Sequence[Runnable],
    beside: Sequence[Callable[[Runnable], None]] = (),
    *,
    trusted: bool = False,
) -> Iterator[Iterator[Built]]:
    """Build runnables, as many at a time as there are cores; yield how each build ended, in order.

    The functions `beside` get each runnable that was built, in threads of their own, and raise nothing.
    They get a `trusted` one at once: the first builds wait for a library that one of them compiles, and
    leave a core free.
    """
    at_once = max(1, len(os.sched_getaffinity(0)))
    with (
        interrupt.held(),
        ThreadPoolExecutor(at_once) as pool,
        ThreadPoolExecutor(max(1, at_once // 2)) as pool_beside,
    ):
        try:
            builds = [pool.submit(_built, kernel) for kernel in kernels]
            for function in beside:
                for kernel, build in zip(kernels, builds, strict=True):
                    pool_beside.submit(_then, function, kernel, None if trusted else build)
            yield map(Future.result, builds)
        finally:
            pool_beside.shutdown(wait=False, cancel_futures=True)
            pool.shutdown(wait=False, cancel_futures=True)


def _then(function: Callable[[Runnable], None], kernel: Runnable, build: Future | None) -> None:
    """Call a function with a runnable, after its build if there is one, and only if that succeeded."""
    if build is None or build.result().error is None:
        function(kernel)


def _built(kernel: Runnable) -> Built:
    """Build a runnable; raise any error that is not a BuildError."""
    started = time.perf_counter()
    error = None
    try:
        kernel.build()
    except BuildError as failure:
        error = failure
    return Built(error, time.perf_counter() - started)


@dataclass(frozen=True)
class Judged:
    """A runnable that was checked on a problem, in the class in which it is correct.

    Attributes
    ----------
    runnable, report : what was checked, and the result.
    notes : lines about anything unusual.
    caught : what it did instead of the work; or empty.
    """

    runnable: Runnable
    report: Report
    notes: Sequence[str] = ()
    caught: str = ""


def judge(runnable: Runnable, problem: Problem, **options: Any) -> Judged:
    """Check a runnable on a problem, and audit a callable; the options are `check`'s.

    What names no precision class is judged as fp32 and, if that fails, as tf32. Raises what `check`
    raises.
    """
    auditor = audit(runnable) if isinstance(runnable, Function) else None
    if auditor is None:
        # The simulator would disturb the timing that follows.
        options["simulate"] = False
    notes: list[str] = []
    report = check(runnable, problem, **options)
    coarse = None if report.ok else runnable.coarser()
    if coarse is not None:
        again = check(coarse, problem, **options)
        if again.ok:
            runnable = coarse
            report = again
            notes.append(f"{runnable.name} is correct in tf32 precision only")
    if auditor is None:
        return Judged(runnable, report, notes)
    try:
        notes += auditor.finish(runnable, problem, report.ok)
    except Caught as error:
        return Judged(runnable, report, notes, str(error))
    return Judged(runnable, report, notes)


def reason(error: Exception, name: str) -> str:
    """Return an error's message, or a static_assert's text, in a line without the kernel's name."""
    text = str(error).strip()
    asserted = re.search(r"static assertion failed(?: with|:)? *\"?([^\"\n]+)", text)
    if asserted:
        return f"static_assert: {asserted[1].strip()}"
    first, *more = text.split("\n")
    line = first
    if more and isinstance(error, BuildError):
        # The first line of a BuildError only says that the kernel did not compile.
        line = more[0].strip()
    return re.sub(rf"^{re.escape(name)}(:| failed:)? ", "", line)


def cudnn_of(kernel: Runnable) -> str:
    """Return the name of cuDNN's baseline in a kernel's class and layout."""
    last = {"NCHW": "", "NHWC": ":channels_last"}[kernel.format.x.layout]
    return f"cudnn:{kernel.precision}{last}"
