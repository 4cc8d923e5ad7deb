"""One kernel on one problem, examined in this process.

`check.py` decides in which process that is; what breaks here is raised as it is. On a GPU everything
happens on a stream of its own. The buffers lie between guard zones, y and the workspace are poisoned
before each run, and a second run must give the same bits.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import LaunchError
from ..finding import Finding
from ..kernel.runnable import Inputs, Launch, Runnable
from ..problem.problem import Problem
from . import output, reference
from .guards import Guards
from .output import OutputComparison
from .reference import Reference
from .report import COMPARED, Report, findings_of
from .setting import ORDINARY, Setting

_SLOW_SECONDS = 5.0  # a counted run longer than this is not repeated
_SLEEP_CYCLES = 2_000_000  # of a GPU's clock, before a launch: about 1 ms
_KEPT_BYTES = 1 << 30  # of GPU memory that torch may hold on to between two problems


def examine(
    kernel: Runnable,
    problem: Problem,
    seed: int,
    notes: tuple[str, ...] = (),
    setting: Setting = ORDINARY,
) -> Report:
    """Check a kernel on one problem; the arguments are `check`'s, and notes to begin with."""
    report = setting.examine(kernel, problem, seed)
    if report is not None:
        return report
    if kernel.device.type != "cuda":
        return _examine(kernel, problem, seed, notes, setting)
    with torch.cuda.device(kernel.device):
        torch.cuda.synchronize()
        with torch.cuda.stream(_side_stream(kernel.device.index)):
            hits = reference.known.cache_info().hits
            report = _examine(kernel, problem, seed, notes, setting)
            if not report.ok and reference.known.cache_info().hits > hits:
                # The cached reference itself may be what an earlier kernel has spoilt.
                reference.forget()
                report = _examine(kernel, problem, seed, notes, setting)
        # A fault on another stream shows here at the latest.
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > _KEPT_BYTES:
            # What is measured next may need the memory in another process.
            torch.cuda.empty_cache()
    return report


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """Return the stream that checks run on; like all of torch's, it waits for no other."""
    return torch.cuda.Stream(index)


@dataclass
class _Runs:
    """What the runs of one examination left: the comparison, and what was wrong."""

    compared: OutputComparison
    seconds: float  # of the last run, on the host
    counters: dict[str, float] | None  # of the last run
    failures: list[Finding]
    seen: list[Finding]  # what the launches found: errors and warnings


def _examine(
    kernel: Runnable, problem: Problem, seed: int, notes: tuple[str, ...], setting: Setting
) -> Report:
    correct = setting.reference(kernel, problem, seed)
    allowed = reference.tolerance(kernel.precision, problem.gemm_k, math.prod(problem.y_shape))
    bound = setting.bound(allowed, kernel, correct.rms)

    guards = Guards(setting.y_offset)
    inputs = [
        guards.place(name, tensor, setting.offset)
        for name, tensor in zip(("x", "w", "bias"), correct.inputs, strict=True)
    ]
    launch = kernel.prepare(problem, *inputs, allocate=guards.allocate)
    guards.name(launch)
    pristine = correct.inputs
    if launch.plan is not None and not setting.keeps_filter:
        # A call is given the filter as it was laid out; w itself may be gone by then.
        pristine = correct.inputs[0], launch.inputs[1].fill_(math.nan).clone(), correct.inputs[2]

    runs = _run_and_compare(launch, setting, correct, bound, pristine)
    compared = runs.compared
    failures = runs.failures + _wrong_outputs(compared, setting, kernel.precision)
    failures = _with_lines(failures, launch)
    all_notes = list(notes)
    if failures and setting.advice:
        all_notes.append(setting.advice)
    patterns = compared.patterns(kernel.precision) if failures else []

    try:
        changed = _run_again(launch, compared, runs.seconds, all_notes) if setting.twice else []
    except LaunchError as error:
        if not failures:
            raise
        # Another order of threads failed; the wrong result of the first order comes before it.
        changed = [*findings_of(error)]
    failures += changed
    failures += guards.violations()
    failures += output.changed_inputs(launch.inputs, pristine)
    runs.seen += launch.findings

    report = _report(
        kernel,
        problem,
        setting,
        _errors_and_warnings(failures, runs.seen),
        **compared.numbers,
        patterns=tuple(patterns),
        notes=tuple(all_notes),
        threads=_most_threads(launch),
        counters=runs.counters,
        host_seconds=runs.seconds,
    )
    if (compared.wrong or compared.unwritten or changed) and kernel.device.type == "cuda":
        report = _blame_stream(report, launch, correct)
    reference.forget_if_large(correct)
    return report


def _run_and_compare(
    launch: Launch, setting: Setting, correct: Reference, bound: float, pristine: Inputs
) -> _Runs:
    """Run a launch after each history of the setting, until one of the results is wrong."""
    failures: list[Finding] = []
    seen: list[Finding] = []
    for earlier in setting.histories(launch.runnable, launch.problem):
        started = time.perf_counter()
        poisoned = _run(launch, setting, earlier)
        seconds = time.perf_counter() - started
        counters = launch.counters
        failures += output.changed_inputs(launch.inputs, pristine)
        seen += launch.findings
        y = setting.comparable(launch.y, correct, launch.runnable)
        compared = OutputComparison(correct, y, bound, poisoned)
        if not compared.correct and earlier:
            text = f"wrong after calls for {', then '.join(map(str, earlier))}"
            failures.append(output.wrong("wrong after other calls", text))
        if not compared.correct or failures:
            break
    return _Runs(compared, seconds, counters, failures, seen)


def _wrong_outputs(compared: OutputComparison, setting: Setting, precision: str) -> list[Finding]:
    """Say what is wrong with the outputs, one by one and as a whole."""
    failures = setting.explain(compared) + compared.failures()
    if not compared.error <= compared.bound:
        text = (
            f"the error as a whole is {compared.error:.2g}; {precision} allows "
            f"{compared.bound:.2g} here"
        )
        kind = "wrong result" if compared.wrong else "too imprecise"
        failures.append(output.wrong(kind, text))
    return failures


def _with_lines(failures: list[Finding], launch: Launch) -> list[Finding]:
    """Give wrong outputs the source line that stored them, where a counted run knows it."""
    if not failures:
        return []
    stores = [
        (row["file"], row["line"])
        for row in launch.lines
        if row["array"] == "y" and row["kind"] != "load"
    ]
    stores = list(dict.fromkeys(stores))
    found = []
    for failure in failures:
        places = stores
        if len(stores) > 1 and failure.index is not None and failure.array == "y":
            word = (launch.y[failure.index].data_ptr() - launch.y.data_ptr()) // 4
            places = [place for first, *place in launch.stored if first <= word][-1:]
        if len(places) == 1 and places[0][1] and failure.kind in COMPARED:
            file, line = places[0]
            failure = dataclasses.replace(failure, file=file, line=line)
        found.append(failure)
    return found


def _errors_and_warnings(failures: list[Finding], seen: list[Finding]) -> Iterable[Finding]:
    """Return each finding once: what is wrong, then the warnings of other kinds."""
    # Work on another stream is wrong even where a GPU happens not to show it.
    strays = {finding.line: finding for finding in seen if finding.kind == "wrong stream"}
    errors = failures + [dataclasses.replace(stray, error=True) for stray in strays.values()]
    known = {error.kind for error in errors}
    warnings = {
        (finding.kind, finding.line): finding
        for finding in seen
        if not finding.error and finding.kind not in known
    }
    return dict.fromkeys([*errors, *warnings.values()])


def _most_threads(launch: Launch) -> dict[str, int]:
    """Return the most threads of a block, by kernel, of a counted call."""
    most: dict[str, int] = {}
    for each in launch.launches:
        name = str(each["kernel"])
        most[name] = max(most.get(name, 0), math.prod(each["block"]))
    return most


def failed(
    kernel: Runnable, problem: Problem, error: LaunchError, setting: Setting = ORDINARY
) -> Report:
    """Return the report of a kernel that did not run to its end."""
    outputs = math.prod(problem.y_shape)
    bound = reference.tolerance(kernel.precision, problem.gemm_k, outputs)
    return _report(
        kernel,
        problem,
        setting,
        findings_of(error),
        bound=bound,
        outputs=outputs,
        fault=error.kind,
        ending=str(error),
    )


def compared_once(
    kernel: Runnable, problem: Problem, setting: Setting, compared: OutputComparison
) -> Report:
    """Return the report of a setting that ran the kernel by itself, and compared y."""
    return _report(kernel, problem, setting, compared.failures(), **compared.numbers)


def _report(
    kernel: Runnable, problem: Problem, setting: Setting, findings: Iterable[Finding], **found: Any
) -> Report:
    return Report(
        problem=problem,
        kernel=kernel.name,
        title=kernel.title,
        precision=kernel.precision,
        engine=kernel.engine,
        setting=setting.words,
        findings=tuple(findings),
        **found,
    )


def _run(launch: Launch, setting: Setting = ORDINARY, earlier: Sequence[Problem] = ()) -> bool:
    """Poison and run a launch on the current stream; return whether there was an output to poison.

    On a GPU the stream sleeps first, and only this stream is waited for. So what a kernel launches
    on another stream runs before the poison, or is not done when the result is read.
    """
    device = launch.runnable.device
    if device.type == "cuda":
        torch.cuda._sleep(_SLEEP_CYCLES)
    poisoned = output.poison(launch)
    setting.run(launch, earlier)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return poisoned


def _run_again(
    launch: Launch, compared: OutputComparison, seconds: float, notes: list[str]
) -> list[Finding]:
    """Run once more and compare bits; where the header allows bits to differ, compare results."""
    kernel = launch.runnable
    if kernel.library:
        # A library chooses its algorithm by itself; that is not ours to judge.
        return []
    if kernel.counts and seconds > _SLOW_SECONDS:
        notes.append(f"not run twice: the first run took {seconds:.0f} s on the simulator")
        return []
    if kernel.atomics:
        notes.append("bits not compared: the header says `atomics: yes`, sums in any order")
        return _compare_again(launch, compared)
    first = output.keep(launch.y)
    if first.numel() < launch.y.numel():
        part = first.numel() / launch.y.numel()
        notes.append(f"second run compared on the first {part:.0%} of the outputs: memory is short")
    _run(launch)
    count, index = output.moved(launch.y, first)
    if not count:
        return []
    shape = launch.problem.y_shape
    place = ", ".join(map(str, np.unravel_index(index, shape)))
    text = (
        f"{count:,} of {first.numel():,} outputs changed when it ran again on the same data, "
        f"the first at (n, k, p, q) = ({place}): a race, memory read before it was written, or "
        "sums by atomics, for which the header must say `atomics: yes`"
    )
    return [output.wrong("not repeatable", text, "y", index, shape)]


def _compare_again(launch: Launch, compared: OutputComparison) -> list[Finding]:
    """Run a kernel with atomics once more: its bits may differ, its result must be correct."""
    poisoned = _run(launch)
    again = OutputComparison(compared.reference, launch.y, compared.bound, poisoned)
    if again.correct or not compared.correct:
        return []
    text = (
        f"{again.wrong:,} outputs are wrong when it runs again on the same data, where the first "
        "run was correct: a race, or memory that it counts on and another call has changed"
    )
    shape = launch.problem.y_shape
    return [output.wrong("not repeatable", text, "y", again.first_wrong, shape)]


def _blame_stream(report: Report, launch: Launch, correct: Reference) -> Report:
    """Run a wrong kernel with all of it on the default stream; if it is correct there, say so."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        for _ in range(3):  # a race may well be correct once
            poisoned = output.poison(launch)
            torch.cuda.synchronize()
            launch()
            torch.cuda.synchronize()
            if not OutputComparison(correct, launch.y, report.bound, poisoned).correct:
                return report
    text = (
        "correct when all of it runs on the default stream: it launches on another stream than "
        "the one it is given (conv2d's last argument)"
    )
    findings = output.wrong("wrong stream", text), *report.findings
    return dataclasses.replace(report, findings=findings)
