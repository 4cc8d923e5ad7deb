"""Is a kernel right? Against a float64 truth, element by element, with nothing taken on trust.

The output and the workspace are poisoned before the run; guard zones lie around every buffer; the
inputs are compared bit for bit after it; NaN passes nowhere but where the truth has it; a second
run must give the same bits; on a GPU all of it happens on a stream of its own, and the kernel runs
in a process of its own, so that what it breaks is not the caller's.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..machine.device import available_bytes
from ..machine.progress import bar as progress_bar
from ..run import build as builds
from ..run import worker
from ..words.errors import ConvlabError, LaunchError, UnsupportedError, WrongResult
from ..words.problem import PROBLEM_SETS, Problem
from ..words.problem import problem as named_problem
from ..words.problem import problems as named_problems
from . import reference, shapes
from .examine import examine, is_library
from .report import Report, Reports, plain

__all__ = ["Report", "Reports", "check", "explained", "failed", "fit", "plain", "resolve", "run"]

COUNT = 64  # generated problems, unless told otherwise
TIME_LIMIT = 20.0  # seconds for one problem in the worker process
SPARE_BYTES = 4 << 30  # what a check may take beside x, w, y, and x and w once more
SIM_MACS = 40_000_000  # what a problem is scaled down to on the simulator: about two seconds
_SIM_MACS_PER_SECOND = 25e6  # with all traffic counted, a plain kernel, two cores
_LITTLE_WORKSPACE = 40_000  # bytes: enough for one pixel, so that im2col works in many chunks
_IN_CHUNKS = ("awkward.primes", "awkward.tile_plus_one", "awkward.groups_3", "awkward.everything")
_FAULT_SECONDS = 30.0  # spent on faults until a set of problems is given up


def check(
    kernel: Any,
    problem: Problem | str | Iterable[Problem | str] | None = None,
    *,
    seed: int = 0,
    sample: int = 100_000,
    count: int = COUNT,
    scale: str | None = "auto",
    isolate: bool = True,
    time_limit: float = TIME_LIMIT,
    progress: bool = True,
    raises: bool = False,
) -> Report | Reports:
    """Run a kernel on fresh normal data and compare all it did with what it should have done.

    Every output is compared with a float64 convolution where that takes about a second; beyond
    that, a stratified sample of the outputs is (borders, corners, tile seams and the last ones
    included), and every output with a pinned fp32 convolution: cuDNN's on a GPU, torch's on the
    CPU. The memory it takes, beside x, w, y and the workspace: x and w once more, and at most
    4 GiB, or three times the outputs of one image where that is more.

    Parameters
    ----------
    kernel
        A runnable (Kernel or Baseline), or a kernel's name or path, or a baseline's name.
    problem
        A Problem, or the name or the spec of one; or a set of problems: its name, or an iterable.
        Without it: the set "awkward" and `count` generated problems, and, if one fails, the
        smallest that does.
    seed
        Seed of the inputs, and of the generated problems.
    sample
        The least number of outputs sampled on a problem too large for a whole float64 truth.
    count
        How many problems are generated where none is given.
    scale
        "auto" shrinks a problem to what the engine does in seconds (simulator) or has
        memory for (GPU), and notes that; None never does.
    isolate
        Run a kernel on a GPU in the worker process (`worker.call`), unless it does not pickle;
        what it breaks is a LaunchError then, and the caller's GPU context lives on.
    time_limit
        Seconds that one problem may take there.
    progress
        Show a progress bar over a set of problems.
    raises
        Raise WrongResult, with the report as its text, if anything is wrong.

    Returns
    -------
    Report or Reports
        Reports for a set of problems. Those that the kernel declines are counted apart, and one
        that it fails to run on counts as wrong.

    Raises
    ------
    BuildError
        The kernel does not compile.
    UnsupportedError
        The kernel declines the one problem given.
    LaunchError
        It failed to run on the one problem given, or memory is short.
    WrongResult
        See `raises`.
    """
    kernel = resolve(kernel)
    buildable = hasattr(kernel, "build")
    if getattr(kernel, "sample", None) is not None:
        kernel.must_run_whole()
    if buildable:
        built = kernel.build()  # outside of the time limit, and a BuildError is the caller's
    isolate = isolate and kernel.engine == "cuda" and not is_library(kernel)

    def one(problem: Problem, notes: tuple[str, ...] = (), kernel: Any = kernel) -> Report:
        arguments = (kernel, problem, seed, sample, notes)
        if isolate and worker.can_cross(*arguments):
            return worker.call(examine, *arguments, time_limit=time_limit)
        with explained(kernel.name):
            return examine(*arguments)

    if problem is None:
        chosen = [*named_problems("awkward"), *shapes.generated(count, seed)]
        what = f"{len(chosen) - count} fixed and {count} generated problems, seed {seed}"
        found: Report | Reports = _check_set(kernel, one, chosen, (what,), progress)
        if found.ok and "conv2d_workspace" in getattr(kernel, "source", ""):  # now in chunks
            small = kernel.limited(_LITTLE_WORKSPACE)
            note = f"again, with {_LITTLE_WORKSPACE:,} bytes of workspace, on {len(_IN_CHUNKS)}"
            found = _check_set(small, functools.partial(one, kernel=small),
                               map(named_problem, _IN_CHUNKS), (what, note), progress,
                               before=found.reports, skipped=found.skipped)  # fmt: skip
    elif isinstance(problem, str) and problem in PROBLEM_SETS:
        found = _check_set(kernel, _fitted(kernel, one, scale), named_problems(problem),
                           (f"the problems of {problem}, seed {seed}",), progress)  # fmt: skip
    elif isinstance(problem, (str, Problem)):
        found = _fitted(kernel, one, scale)(named_problem(problem))
    else:
        chosen = [named_problem(each) for each in problem]
        found = _check_set(kernel, _fitted(kernel, one, scale), chosen, (), progress)
    if problem is None and found.ok and buildable and kernel.build().library == built.library:
        builds.mark_good(built)  # its first call needs no trial from now on
    if raises and not found.ok:
        raise WrongResult(str(found))
    return found


def _fitted(kernel: Any, one: Callable[..., Report], scale: str | None):
    """Return `one` for problems of any size: scaled down first, which the notes then say."""

    def scaled(problem: Problem) -> Report:
        problem, note = fit(problem, [kernel], scale)
        return one(problem, (note,) if note else ())

    return scaled


def _check_set(
    kernel: Any,
    one: Callable[[Problem], Report],
    problems: Iterable[Problem],
    notes: tuple[str, ...],
    progress: bool,
    before: Iterable[Report] = (),
    skipped: Iterable[tuple[Problem, str]] = (),
) -> Reports:
    """Check a kernel on each problem; shrink the smallest of those it is wrong on.

    `before` and `skipped` hold what an earlier set found, and are part of the result.
    """
    reports, skipped = list(before), list(skipped)
    smallest, problems = None, list(problems)
    lost = 0.0  # seconds that faults took

    def attempt(problem: Problem) -> Report:
        nonlocal lost
        started = time.perf_counter()
        try:
            return one(problem)
        except LaunchError as error:
            lost += time.perf_counter() - started
            return failed(kernel, problem, error)

    with progress_bar(problems, desc=kernel.name, disable=not progress, leave=False) as bar:
        for done, problem in enumerate(bar, 1):
            try:
                reports.append(attempt(problem))
            except UnsupportedError as error:
                skipped.append((problem, str(error)))
                continue
            if not reports[-1].ok:
                bar.set_postfix_str(f"{sum(not report.ok for report in reports)} wrong")
            if lost > _FAULT_SECONDS:
                left = len(problems) - done
                notes += (f"{left} problems left out: faults took {lost:.0f} s",)
                break
        wrong = [report for report in reports if not report.ok]
        if wrong:
            bar.set_description(f"{kernel.name}: shrinking")
            smallest, notes = _smallest(wrong, attempt, notes, lambda: lost > _FAULT_SECONDS)
    return Reports(kernel.name, tuple(reports), tuple(skipped), smallest, notes)


def _smallest(
    wrong: list[Report],
    attempt: Callable[[Problem], Report],
    notes: tuple[str, ...],
    enough: Callable[[], bool],
) -> tuple[Report, tuple[str, ...]]:
    """Shrink the least of the problems that fail; return its report, and a note of the search."""
    least = min(wrong, key=lambda report: (report.problem.macs, report.problem.min_bytes))
    found = {least.problem: least}

    def fails(problem: Problem) -> bool:
        if enough():
            return False
        try:
            report = attempt(problem)
        except UnsupportedError:
            return False
        found[problem] = report
        return not report.ok

    if enough():
        return least, notes
    problem, tries = shapes.shrink(least.problem, fails)
    return found[problem], (*notes, f"shrunk from {least.problem.label} in {tries} tries")


def failed(kernel: Any, problem: Problem, error: Exception) -> Report:
    """Return the report of a kernel that did not run to its end."""
    return Report(
        ok=False, problem=problem, kernel=kernel.name, title=kernel.title,
        precision=kernel.precision, engine=kernel.engine, error=math.nan,
        bound=reference.tolerance(kernel.precision, problem.gemm_k), worst=math.nan,
        limit=math.nan, outputs=math.prod(problem.y_shape), wrong=0, unwritten=0,
        compared="nothing compared", failures=(str(error),), fault=getattr(error, "kind", ""),
    )  # fmt: skip


def resolve(kernel: Any, engine: str = "auto") -> Any:
    """Return a runnable: itself, or what a kernel's name or path, or a baseline's name, means."""
    if hasattr(kernel, "prepare"):
        return kernel
    if isinstance(kernel, str) and ":" in kernel:
        return reference.baseline(kernel, "cpu" if engine == "sim" else None)
    from ..run.kernel import load

    return load(kernel, engine=engine)


def fit(
    problem: Problem, kernels: Iterable[Any], scale: str | None = "auto"
) -> tuple[Problem, str | None]:
    """Shrink a problem to what the kernels' engine and memory can do; return it and a note.

    Raises LaunchError if `scale` is None and memory is short: it says how much is needed.
    """
    kernels = list(kernels)
    device = kernels[0].device
    free = available_bytes(device)
    # x, w, y once each; x and w again, to see them unchanged; workspace and comparison in chunks
    extra = 4 * (math.prod(problem.x_shape) + math.prod(problem.w_shape))
    image = 4 * problem.K * problem.P * problem.Q
    extra += max(min(SPARE_BYTES, 4 * problem.min_bytes), 3 * image)
    needed = problem.min_bytes + extra
    if scale not in ("auto", None):
        raise ConvlabError(f'scale is "auto" or None, not {scale!r}')
    if scale is None:
        if needed > free:
            raise LaunchError(
                f"{problem.label} needs about {needed / 1e9:.1f} GB on {device}, where "
                f'{free / 1e9:.1f} GB are free; let scale="auto" shrink it, or take a smaller one'
            )
        return problem, None
    simulated = any(kernel.engine == "sim" for kernel in kernels)
    macs = SIM_MACS if simulated else max(problem.macs, 1)
    limit = free if needed <= free else max(int(free - min(SPARE_BYTES, free // 2)) // 2, 1)
    smaller = problem.scaled(macs, max_bytes=limit)
    if smaller == problem:
        return problem, None
    if needed > free:
        why = f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB free"
    else:
        whole = _duration(problem.macs / _SIM_MACS_PER_SECOND)
        why = f"all of it would take the simulator {whole}"
    return smaller, f"scaled down to {smaller}: {why}"


def _duration(seconds: float) -> str:
    unit, name = next((u, n) for u, n in ((3600, "hours"), (60, "minutes"), (1, "seconds"))
                      if seconds >= 2 * u or u == 1)  # fmt: skip
    return f"about {seconds / unit:.0f} {name}"


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn torch's errors of memory and of the GPU into LaunchErrors that name the kernel."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        message = str(error).strip().split("\n")[0]
        raise LaunchError(f"{name}: memory ran out; take a smaller problem. {message}") from error
    except RuntimeError as error:
        message = str(error).strip().split("\n")[0]
        if isinstance(error, ConvlabError) or "CUDA" not in message:
            raise
        raise LaunchError(
            f"{name} failed while it ran: {message} (after this the GPU is lost to this process: "
            "start Python anew)"
        ) from error


def run(launch: Any, kernel: Any) -> None:
    """Run a launch and wait for it. Raises LaunchError, also where the GPU fails only later."""
    with explained(kernel.name):
        launch()
        if kernel.device.type == "cuda":
            torch.cuda.synchronize(kernel.device)
