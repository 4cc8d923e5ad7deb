"""Check one kernel on one problem, in this process.

`check.py` decides which process that is; a crash here raises CUDA's own exception. On a GPU the check
uses its own stream. Every buffer has guard zones, y and the workspace are filled with NaN before each
run, and a second run must give the same bits.
"""

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import LaunchError
from ..faults import place_of_cause
from ..finding import Finding
from ..kernel.runnable import Inputs, Launch, Runnable
from ..problem.problem import Problem
from . import output, reference
from .guards import Guards
from .output import OutputComparison
from .reference import Reference
from .report import COMPARED, Report, findings_of
from .setting import ORDINARY, Setting

# A simulated run that takes longer is not repeated. The time is an estimate from the multiply-adds,
# because a report must not depend on the load of the machine.
_SLOW_SECONDS = 5.0
_SIM_MACS_PER_SECOND = 2e7
# Matches an atomic addition, in CUDA or in PTX.
_ATOMIC_ADD = re.compile(r"\batomicAdd(_block|_system)?\s*\(|\bred\.|\batom\.")
# The stream sleeps for this many GPU clock cycles before a launch: about 1 ms.
_SLEEP_CYCLES = 2_000_000
_UNCOUNTED = Setting(counted=False)
# Between two problems torch may keep at most this much GPU memory.
_KEPT_BYTES = 1 << 30


def examine(
    kernel: Runnable,
    problem: Problem,
    seed: int,
    notes: tuple[str, ...] = (),
    setting: Setting = ORDINARY,
) -> Report:
    """Return the report of a kernel on one problem, in a setting; it begins with these notes."""
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
                # An earlier kernel may have corrupted the cached reference: compute it again.
                reference.forget()
                report = _examine(kernel, problem, seed, notes, setting)
        # Wait for work on other streams: its faults appear here.
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > _KEPT_BYTES:
            # Another process may need this memory for the next measurement.
            torch.cuda.empty_cache()
    return report


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """Return the stream of the checks; it is non-blocking, as all of torch's streams are."""
    return torch.cuda.Stream(index)


@dataclass
class _Runs:
    """Hold the results of the runs: the last comparison, time and counters, and all findings.

    Attributes
    ----------
    compared : the comparison of the last run.
    seconds, counters : the last run's time on the host, and its counters.
    failures : the errors that comparisons found.
    launch_findings : errors and warnings that the launches reported.
    """

    compared: OutputComparison
    seconds: float
    counters: dict[str, float] | None
    failures: list[Finding]
    launch_findings: list[Finding]


def _examine(
    kernel: Runnable, problem: Problem, seed: int, notes: tuple[str, ...], setting: Setting
) -> Report:
    """Return the report of a run; a read of shared memory that nothing wrote may be harmless."""
    try:
        return _examine_strictly(kernel, problem, seed, notes, setting)
    except LaunchError as error:
        if {finding.kind for finding in error.findings if finding.error} != {"uninitialised read"}:
            raise
        # A lane may read elements that only reach outputs that nobody stores. Then the outputs are correct, and
        # have the same bits in a second run, in which other numbers are there.
        forgiving = dataclasses.replace(setting, forgives=True, twice=True)
        try:
            report = _examine_strictly(kernel, problem, seed, notes, forgiving)
        except LaunchError:
            raise error from None
        if report.ok:
            return report
        raise


def _examine_strictly(
    kernel: Runnable, problem: Problem, seed: int, notes: tuple[str, ...], setting: Setting
) -> Report:
    expected = setting.reference(kernel, problem, seed)
    allowed = reference.tolerance(kernel.precision, problem.terms, math.prod(problem.output_shape))
    bound = setting.bound(allowed, kernel, expected.rms)

    offsets = setting.offsets
    guards = Guards(offsets.y, offsets.workspace)
    names = problem.computation.names
    inputs = [
        guards.place(names[place], tensor, getattr(offsets, place))
        for place, tensor in zip(("x", "w", "bias"), expected.inputs, strict=True)
    ]
    launch = kernel.prepare(problem, *inputs, allocate=guards.allocate)
    guards.name(launch)
    pristine = expected.inputs
    if launch.plan is not None and not setting.keeps_filter:
        # After `conv2d_prepare` a kernel must read the prepared filter only: w becomes NaN.
        x, _, bias = expected.inputs
        pristine = x, launch.inputs[1].fill_(math.nan).clone(), bias

    runs = _run_and_compare(launch, setting, expected, bound, pristine)
    compared = runs.compared
    failures = runs.failures + _wrong_outputs(compared, setting, kernel.precision)
    failures = _with_lines(failures, launch)
    all_notes = list(notes)
    if failures and setting.advice:
        all_notes.append(setting.advice)
    patterns = compared.patterns(kernel.precision) if failures else []

    try:
        changed = _run_again(launch, compared, all_notes) if setting.twice else []
    except LaunchError as error:
        if not failures:
            raise
        # The second run, with another order of threads, failed. The first run's errors stay.
        changed = [*findings_of(error)]
    failures += changed
    failures += guards.violations()
    failures += output.changed_inputs(launch, pristine)
    runs.launch_findings += launch.findings

    report = reported(
        kernel,
        problem,
        setting,
        _errors_and_warnings(failures, runs.launch_findings),
        **compared.numbers,
        patterns=tuple(patterns),
        notes=tuple(all_notes),
        threads=most_threads(launch.launches),
        requested_bytes=max((int(each["dynamic_bytes"]) for each in launch.launches), default=0),
        counters=runs.counters,
        unwatched=setting.in_part() if launch.watched_in_part else "",
        host_seconds=runs.seconds,
    )
    if (compared.wrong or compared.unwritten or changed) and kernel.device.type == "cuda":
        report = _check_on_default_stream(report, launch, expected)
    reference.forget_if_large(expected)
    return report


def _run_and_compare(
    launch: Launch, setting: Setting, expected: Reference, bound: float, pristine: Inputs
) -> _Runs:
    """Run a launch after each history of the setting, until a result is incorrect."""
    failures: list[Finding] = []
    launch_findings: list[Finding] = []
    for earlier in setting.histories(launch.runnable, launch.problem):
        started = time.perf_counter()
        poisoned = _run(launch, setting, earlier)
        seconds = time.perf_counter() - started
        counters = launch.counters
        failures += output.changed_inputs(launch, pristine)
        launch_findings += launch.findings
        y = setting.comparable(launch.y, expected, launch.runnable)
        compared = OutputComparison(expected, y, bound, poisoned)
        if not compared.correct and earlier:
            text = f"incorrect after calls for {', then '.join(map(str, earlier))}"
            failures.append(output.error_finding("wrong after other calls", text))
        if not compared.correct or failures:
            break
    return _Runs(compared, seconds, counters, failures, launch_findings)


def _wrong_outputs(compared: OutputComparison, setting: Setting, precision: str) -> list[Finding]:
    """Return the errors of single outputs, and of the whole output."""
    failures = setting.explain(compared) + compared.failures()
    if not compared.error <= compared.bound:
        name = compared.problem.computation.output
        text = (
            f"the relative error of {name} is {compared.error:.2g}; {precision} allows "
            f"{compared.bound:.2g} on this problem"
        )
        kind = "wrong result" if compared.wrong else "too imprecise"
        failures.append(output.error_finding(kind, text))
    return failures


def _with_lines(failures: list[Finding], launch: Launch) -> list[Finding]:
    """Add to incorrect outputs the source line that stored them, if the simulator recorded it."""
    if not failures:
        return []
    output_name = launch.problem.computation.output
    stores = [
        (row["file"], row["line"])
        for row in launch.lines
        if row["array"] == output_name and row["kind"] != "load"
    ]
    stores = list(dict.fromkeys(stores))
    located = []
    for failure in failures:
        places = stores
        if len(stores) > 1 and failure.index is not None and failure.array == output_name:
            # Several lines store y: find the one that stored this word.
            word = (launch.y[failure.index].data_ptr() - launch.y.data_ptr()) // 4
            places = [place for first, *place in launch.stored if first <= word][-1:]
        if len(places) == 1 and places[0][1] and failure.kind in COMPARED:
            file, line = places[0]
            failure = dataclasses.replace(failure, file=file, line=line)
        located.append(failure)
    return located


def _errors_and_warnings(
    failures: list[Finding], launch_findings: list[Finding]
) -> Iterable[Finding]:
    """Return each finding once: the errors, causes first, then the warnings of other kinds."""
    # A launch on another stream is an error, even if a GPU happens to compute the correct result.
    stray_launches = {
        finding.line: finding for finding in launch_findings if finding.kind == "wrong stream"
    }
    errors = failures + [
        dataclasses.replace(stray, error=True) for stray in stray_launches.values()
    ]
    errors.sort(key=lambda error: place_of_cause(error.kind))
    error_kinds = {error.kind for error in errors}
    warnings = {
        (finding.kind, finding.line): finding
        for finding in launch_findings
        if not finding.error and finding.kind not in error_kinds
    }
    return dict.fromkeys([*errors, *warnings.values()])


def most_threads(launches: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return for each kernel of a simulated call the number of threads of its largest block."""
    most: dict[str, int] = {}
    for each in launches:
        name = str(each["kernel"])
        most[name] = max(most.get(name, 0), math.prod(each["block"]))
    return most


def failed(
    kernel: Runnable, problem: Problem, error: LaunchError, setting: Setting = ORDINARY
) -> Report:
    """Return the report of a kernel that crashed or hung."""
    outputs = math.prod(problem.output_shape)
    bound = reference.tolerance(kernel.precision, problem.terms, outputs)
    return reported(
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
    """Return the report for a setting that ran the kernel and compared y by itself."""
    return reported(kernel, problem, setting, compared.failures(), **compared.numbers)


def reported(
    kernel: Runnable, problem: Problem, setting: Setting, findings: Iterable[Finding], **fields: Any
) -> Report:
    """Return a report with the given findings and fields."""
    return Report(
        problem=problem,
        kernel=kernel.name,
        title=kernel.title,
        precision=kernel.precision,
        engine=kernel.engine,
        setting=setting.words,
        findings=tuple(findings),
        **fields,
    )


def _run(launch: Launch, setting: Setting = ORDINARY, earlier: Sequence[Problem] = ()) -> bool:
    """Fill y with NaN and run a launch on the current stream; return whether there is a y.

    On a GPU the stream sleeps first, and afterwards only this stream is synchronized. So work that
    a kernel launches on another stream runs before y is filled, or after y is compared.
    """
    device = launch.runnable.device
    if device.type == "cuda":
        torch.cuda._sleep(_SLEEP_CYCLES)
    poisoned = output.poison(launch)
    launch.most_watched = setting.most_watched
    launch.most_threads = setting.most_threads
    launch.forgives = setting.forgives
    launch.counted = setting.counted
    setting.run(launch, earlier)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return poisoned


def _run_uncounted(launch: Launch) -> bool:
    """Run a launch again, as `_run` does; the simulator only looks for errors."""
    return _run(launch, dataclasses.replace(_UNCOUNTED, forgives=launch.forgives))


def uncounted_first(run: Callable[[Setting], Report], setting: Setting) -> Report:
    """Return the report of a run without counts, which is faster, or with them if it is incorrect.

    Counts show which source line stored an incorrect output.
    """
    quick = run(dataclasses.replace(setting, counted=False))
    if quick.ok:
        return quick
    counted = run(setting)
    return quick if counted.ok else counted


def may_vary(kernel: Runnable) -> bool:
    """Return whether atomics may add in a changing order, which the header does not declare."""
    return not kernel.atomics and bool(_ATOMIC_ADD.search(kernel.source or ""))


def simulated_seconds(problem: Problem) -> float:
    """Return about how long the simulator takes for a problem, the same on each machine."""
    return problem.macs / _SIM_MACS_PER_SECOND


def _run_again(launch: Launch, compared: OutputComparison, notes: list[str]) -> list[Finding]:
    """Run a kernel once more, and return an error if the bits of y change.

    A kernel with `atomics: yes` in its header may change bits, but its second result must be correct.
    """
    kernel = launch.runnable
    if kernel.library:
        # A library may choose an algorithm that is not deterministic.
        return []
    if kernel.counts and simulated_seconds(launch.problem) > _SLOW_SECONDS:
        macs = launch.problem.macs
        notes.append(f"ran only once: {macs:,} multiply-adds take long on the simulator")
        return []
    if launch.watched_in_part and not may_vary(kernel):
        # It takes long, and other problems run twice.
        return []
    if kernel.atomics:
        notes.append("bits of two runs not compared: the header declares `atomics: yes`")
        return _compare_again(launch, compared)
    first = output.copy_of_start(launch.y)
    if first.numel() < launch.y.numel():
        part = first.numel() / launch.y.numel()
        notes.append(f"bits of two runs compared on the first {part:.0%} of y: memory is short")
    _run_uncounted(launch)
    count, index = output.changed_outputs(launch.y, first)
    if not count:
        return []
    shape = launch.problem.output_shape
    computation = launch.problem.computation
    place = ", ".join(map(str, np.unravel_index(index, shape)))
    changed = output.counted_outputs(count, first.numel(), "has", "have")
    text = (
        f"{changed} other bits in a second run on the same data, the first "
        f"at {computation.symbol} = ({place}): a race, a read of memory that nothing wrote, or "
        "sums by atomics in a changing order (then declare `atomics: yes` in the header)"
    )
    return [output.error_finding("not repeatable", text, computation.output, index, shape)]


def _compare_again(launch: Launch, compared: OutputComparison) -> list[Finding]:
    """Run a kernel with atomics once more: bits may change, but the result must be correct."""
    poisoned = _run_uncounted(launch)
    again = OutputComparison(compared.reference, launch.y, compared.bound, poisoned)
    if again.correct or not compared.correct:
        return []
    text = (
        f"{again.wrong:,} outputs are incorrect in a second run on the same data, and correct in the "
        "first: a race, or memory that the kernel expects unchanged since an earlier call"
    )
    shape = launch.problem.output_shape
    name = launch.problem.computation.output
    return [output.error_finding("not repeatable", text, name, again.first_wrong, shape)]


def _check_on_default_stream(report: Report, launch: Launch, expected: Reference) -> Report:
    """Run an incorrect kernel on the default stream; if it is correct there, add a finding."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        # A kernel with a race may be correct once by chance.
        for _ in range(3):
            poisoned = output.poison(launch)
            torch.cuda.synchronize()
            launch()
            torch.cuda.synchronize()
            if not OutputComparison(expected, launch.y, report.bound, poisoned).correct:
                return report
    text = (
        "correct only when everything runs on the default stream: the kernel launches work on "
        "another stream than `stream`, the last argument of the entry point"
    )
    findings = output.error_finding("wrong stream", text), *report.findings
    return dataclasses.replace(report, findings=findings)
