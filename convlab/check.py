"""Is a kernel right? Against a float64 truth, element by element, with nothing taken on trust.

The output is poisoned before the run and the inputs are compared bit for bit after it; NaN passes
nowhere but where the truth has it; a second run must give the same bits.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from . import plot, reference, tally
from .device import available_bytes
from .errors import ConvlabError, LaunchError, UnsupportedError, WrongResult
from .problem import Problem
from .problem import problem as named_problem
from .problem import problems as named_problems

SIM_MACS = 40_000_000  # what a problem is scaled down to on the simulator: about two seconds
_SIM_MACS_PER_SECOND = 25e6  # with all traffic counted, a plain kernel, two cores
_SLOW_SECONDS = 5.0  # a simulated run longer than this is not repeated


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes
    ----------
    ok
        Whether nothing was wrong.
    problem, kernel, title, precision, engine
        What was checked.
    error, bound
        The normwise relative error ||y - truth|| / ||truth||, and the most that the kernel's
        precision class allows on this problem.
    worst, limit
        The largest absolute error, and the most that an output of ordinary size may have.
    outputs, wrong, unwritten
        Numbers of outputs: in all, wrong among those compared, never written.
    compared
        In words, what was compared with what.
    failures, notes
        Lines of text: what is wrong; what was left out and why.
    pixels, channels
        The largest absolute error over (n, k) as a (P, Q) array, and over (p, q) as (N, K).
    counters, host_seconds
        The simulator's counters and the wall time of the first run.
    """

    ok: bool
    problem: Problem
    kernel: str
    title: str
    precision: str
    engine: str
    error: float
    bound: float
    worst: float
    limit: float
    outputs: int
    wrong: int
    unwritten: int
    compared: str
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pixels: np.ndarray | None = field(default=None, repr=False, compare=False)
    channels: np.ndarray | None = field(default=None, repr=False, compare=False)
    counters: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    host_seconds: float = field(default=math.nan, repr=False, compare=False)

    @property
    def frame(self) -> pd.DataFrame:
        """The report as one row."""
        row = {
            "kernel": self.kernel, "title": self.title, "class": self.precision,
            "engine": self.engine, "problem": self.problem.label, "right": self.ok,
            "error": self.error, "bound": self.bound, "worst": self.worst,
            "outputs": self.outputs, "wrong": self.wrong, "unwritten": self.unwritten,
            "compared": self.compared,
        }  # fmt: skip
        return pd.DataFrame([row])

    def __str__(self) -> str:
        verdict = "right" if self.ok else "WRONG"
        lines = [
            f"{self.kernel} on {self.problem.label}: {verdict}",
            f"  error {self.error:.2g} of at most {self.bound:.2g} ({self.precision}), "
            f"largest {self.worst:.2g}; {self.compared}",
        ]
        return "\n".join(lines + [f"  {line}" for line in (*self.failures, *self.notes)])

    def _repr_html_(self) -> str:
        color = "#009E73" if self.ok else "#D55E00"
        head, *rest = str(self).split("\n")
        return (
            f'<div style="border-left:4px solid {color};padding-left:8px">'
            f"<b>{html.escape(head)}</b><pre>{html.escape(chr(10).join(rest))}</pre></div>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as what JSON can hold; a number that is not known is None."""
        (row,) = self.frame.to_dict("records")
        return {
            **{key: plain(value) for key, value in row.items()},
            "failures": list(self.failures),
            "notes": list(self.notes),
        }

    def plot(self) -> plot.Chart:
        """Draw where the error is, over (p, q) and over (n, k).

        Raises ConvlabError if there is no output to draw.
        """
        if self.pixels is None or self.channels is None:
            raise ConvlabError(f"{self.kernel} on {self.problem.label}: no outputs were compared")
        title = str(self).split("\n")[0]
        return plot.error_map(self.pixels, self.channels, self.limit, title)


@dataclass(frozen=True)
class Reports:
    """The reports of one kernel on a set of problems; problems it declines are in `skipped`."""

    reports: tuple[Report, ...]
    skipped: tuple[tuple[Problem, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether at least one problem was checked and none was wrong."""
        return bool(self.reports) and all(report.ok for report in self.reports)

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each report."""
        frames = [report.frame for report in self.reports]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON can hold."""
        return {
            "ok": self.ok,
            "reports": [report.to_dict() for report in self.reports],
            "skipped": [
                {"problem": problem.label, "reason": reason} for problem, reason in self.skipped
            ],
        }

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def __str__(self) -> str:
        wrong = [report for report in self.reports if not report.ok]
        lines = [f"right on {len(self) - len(wrong)} of {len(self)} problems"]
        if self.reports and not wrong:
            closest = max(self.reports, key=lambda r: r.error / r.bound)
            lines.append(
                f"  nearest to its bound: error {closest.error:.2g} of at most "
                f"{closest.bound:.2g} on {closest.problem.label}"
            )
        lines += [f"declined: {problem.label}: {reason}" for problem, reason in self.skipped]
        return "\n".join([*lines, *map(str, wrong)])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def check(
    kernel: Any,
    problem: Problem | str,
    *,
    seed: int = 0,
    sample: int = 100_000,
    scale: str | None = "auto",
    raises: bool = False,
) -> Report:
    """Run a kernel on fresh normal data and compare all it did with what it should have done.

    Every output is compared with a float64 convolution where that takes about a second; beyond
    that, a stratified sample of the outputs is (borders and the last ones included), and every
    output with a pinned fp32 convolution: cuDNN's on a GPU, torch's on the CPU.

    Parameters
    ----------
    kernel
        A runnable (Kernel or Baseline), or a kernel's name or path, or a baseline's name.
    problem
        A Problem, or the name or the spec of one.
    seed
        Seed of the inputs.
    sample
        The least number of outputs sampled on a problem too large for a whole float64 truth.
    scale
        "auto" shrinks a problem to what the engine does in seconds (simulator) or has
        memory for (GPU), and notes that; None never does.
    raises
        Raise WrongResult, with the report as its text, if anything is wrong.

    Returns
    -------
    Report

    Raises
    ------
    UnsupportedError
        The kernel declines the problem.
    LaunchError
        It failed to run, or memory is short.
    WrongResult
        See `raises`.
    """
    kernel = resolve(kernel)
    problem, scaled = fit(named_problem(problem), [kernel], scale)
    with explained(kernel.name):
        report = _check(kernel, problem, seed, sample, [scaled] if scaled else [])
    if raises and not report.ok:
        raise WrongResult(str(report))
    return report


def check_all(
    kernel: Any,
    problems: str | Iterable[Problem | str] = "awkward",
    *,
    seed: int = 0,
    progress: bool = True,
) -> Reports:
    """Check a kernel on each problem of a set (a set's name, or problems), showing progress.

    A problem that the kernel declines is kept in `Reports.skipped`; one that it fails to run on
    counts as wrong. Parameters are those of `check`.
    """
    from tqdm.auto import tqdm

    kernel = resolve(kernel)
    chosen = named_problems(problems) if isinstance(problems, str) else map(named_problem, problems)
    reports: list[Report] = []
    skipped: list[tuple[Problem, str]] = []
    for problem in tqdm(list(chosen), desc=kernel.name, disable=not progress, leave=False):
        try:
            reports.append(check(kernel, problem, seed=seed))
        except UnsupportedError as error:
            skipped.append((problem, str(error)))
        except LaunchError as error:
            reports.append(failed(kernel, problem, str(error)))
    return Reports(tuple(reports), tuple(skipped))


def failed(kernel: Any, problem: Problem, reason: str) -> Report:
    """Return the report of a kernel that did not run to its end."""
    return Report(
        ok=False, problem=problem, kernel=kernel.name, title=kernel.title,
        precision=kernel.precision, engine=kernel.engine, error=math.nan,
        bound=reference.tolerance(kernel.precision, problem.gemm_k), worst=math.nan,
        limit=math.nan, outputs=math.prod(problem.y_shape), wrong=0, unwritten=0,
        compared="nothing compared", failures=(reason,),
    )  # fmt: skip


def resolve(kernel: Any, engine: str = "auto") -> Any:
    """Return a runnable: itself, or what a kernel's name or path, or a baseline's name, means."""
    if hasattr(kernel, "prepare"):
        return kernel
    if isinstance(kernel, str) and ":" in kernel:
        return reference.baseline(kernel, "cpu" if engine == "sim" else None)
    from .kernel import load

    return load(kernel, engine=engine)


def plain(value: Any) -> Any:
    """Return a frame's value as JSON has it: no NaN, no numpy."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if hasattr(value, "item") else value


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
    extra += min(4 << 30, 4 * problem.min_bytes)
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
    limit = free if needed <= free else max(int(free - min(4 << 30, free // 2)) // 2, 1)
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


def _check(kernel: Any, problem: Problem, seed: int, sample: int, notes: list[str]) -> Report:
    inputs = reference.inputs(problem, seed, kernel.device)
    launch = kernel.prepare(problem, *inputs)
    pristine = [None if part is None else part.clone() for part in inputs]
    seen = getattr(launch, "inputs", inputs)  # the simulator's kernel works on copies
    bound = reference.tolerance(kernel.precision, problem.gemm_k)
    poisoned = tally.poison(launch)

    started = time.perf_counter()
    run(launch, kernel)
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
    failures += _moving(kernel, problem, launch, host_seconds, notes)
    return Report(
        ok=not failures, problem=problem, kernel=kernel.name, title=kernel.title,
        precision=kernel.precision, engine=kernel.engine, error=found.error, bound=bound,
        worst=found.worst, limit=tally.ELEMENTWISE * bound * found.rms, outputs=launch.y.numel(),
        wrong=found.wrong, unwritten=found.unwritten, compared=compared,
        failures=tuple(failures), notes=tuple(notes), pixels=found.pixels,
        channels=found.channels, counters=counters, host_seconds=host_seconds,
    )  # fmt: skip


def _moving(
    kernel: Any, problem: Problem, launch: Any, host_seconds: float, notes: list[str]
) -> list[str]:
    """Run once more and compare bits, unless the kernel may differ or takes too long."""
    if ":" in kernel.name:  # a library's own choice of algorithm, not ours to judge
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
    tally.poison(launch)
    run(launch, kernel)
    count, index = tally.moved(launch.y, first)
    if not count:
        return []
    place = ", ".join(map(str, tally.position(index, problem)))
    return [
        f"{count:,} of {first.numel():,} outputs changed when it ran again on the same data, the "
        f"first at (n, k, p, q) = ({place}): a race, or memory read before it was written"
    ]
