"""Is a kernel correct? Compare it with a float64 truth, element by element, trusting nothing.

The output and the workspace are poisoned before the run; guard zones lie around every buffer; the
inputs are compared bit for bit after it; NaN passes only where the truth has it; a second run must
give the same bits. On a GPU all of it happens on a stream of its own, and the kernel runs in a process
of its own where the room ``isolate`` is there, so that what it breaks is not the caller's.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from .. import arguments
from ..defaults import COUNT
from ..errors import ConvlabError, LaunchError, ProblemError, UnsupportedError, WrongResult
from ..kernel.kernel import resolve
from ..kernel.runnable import Runnable, explained
from ..kernel.runner import IN_PROCESS, Runner, runner
from ..kernel.shrink_to_fit import fit
from ..machine import interrupt
from ..machine.progress import bar as progress_bar
from ..problem.named import members
from ..problem.named import problems as named_problems
from ..problem.problem import Problem
from .examine import examine, failed
from .report import Report, Reports
from .setting import ONCE, ORDINARY, Setting
from .stricter import Stricter, settings, stricter

_SETS = ("awkward", "limits")  # the problems of a default check, beside the generated ones
_SHRINK_SECONDS = 20.0
_INT = 1 << 31  # elements that an int can count
_ARRAY = re.compile(r"^[\w \t]*\b\w+[ \t]+\w+\[[^\]]*\][^;()]*[;={]", re.M)  # a declared array
# On the simulator a problem of a default check that is longer than this in any dimension, or has more
# outputs, runs once, without the search for races.
_LONG = 1200
_MANY = 60_000
_ONCE = "run once, untraced: longer than {:,}, or more than {:,} outputs"
_SIM_OUTPUTS = 4_000_000  # some kernels would take minutes
_FAULT_SECONDS = 30.0  # spent on faults until the rest of a set is left out


def check(
    kernel: Runnable | str | Path,
    problem: Problem | str | Iterable[Problem | str] | None = None,
    *,
    seed: int = 0,
    count: int | None = None,
    scale: str | None = "auto",
    progress: bool = True,
    raises: bool = False,
    setting: str | None = None,
) -> Report | Reports:
    """Run a kernel on fresh normal data and compare all it did with what it should have done.

    Every output is compared with a float64 convolution where that takes about a second; beyond
    that, a stratified sample of the outputs is (borders, corners, tile seams and the last ones
    included), and every output with a pinned fp32 convolution: cuDNN's on a GPU, torch's on the
    CPU. The memory it takes, beside x, w, y and the workspace: x and w once more, and at most
    4 GiB, or three times the outputs of one image where that is more.

    A kernel on a GPU runs in the worker process, unless it does not pickle or was loaded with
    ``isolate=False``: what it breaks is a LaunchError then, and the caller's GPU context lives on.
    Simulated problems of a set run several at a time, as many as there are cores, at most four.
    Beside a simulated run nvcc, where it is there, compiles the kernel too: what it refuses, or a
    GPU would by what it says, is wrong; what it warns of is a warning.

    Parameters
    ----------
    kernel
        A runnable, or a kernel's name or path, or a baseline's name.
    problem
        A Problem, or the name or the spec of one; or a set of problems: its name, or an iterable.
        Without it: the sets "awkward" and "limits" and `count` generated problems, and, if one
        fails, the smallest that does.
    seed
        Seed of the inputs, and of the generated problems.
    count
        How many problems are generated if none is given (40). If the kernel does not support some
        of them, more are generated, until it supports a quarter of this number. Each two unusual
        options that it supports together (a stride and groups, groups and a bias, ...) are in one
        of them.
    scale
        "auto" shrinks a problem to what the engine does in seconds (simulator) or has
        memory for (GPU), and notes that; None never does.
    progress
        Show a progress bar over a set of problems.
    raises
        Raise WrongResult, with the report as its text, if anything is wrong.
    setting
        Run the problem in a setting of the default check: one of `settings.NAMES`.

    Returns
    -------
    Report or Reports
        Reports for a set of problems. Unsupported problems are counted apart, and one
        that it fails to run on counts as wrong.

    Raises
    ------
    BuildError
        The kernel does not compile.
    UnsupportedError
        The kernel does not support the one problem given.
    LaunchError
        It failed to run on the one problem given, or memory is short.
    WrongResult
        See `raises`.
    ProblemError
        No such problem; arguments that make no sense.
    """
    arguments.flag(progress, "progress")
    arguments.flag(raises, "raises")
    if count is not None and problem is not None:
        raise ProblemError("count is for generated problems: leave it out, or the problem")
    count = arguments.whole(COUNT if count is None else count, "count", 0)
    kernel = resolve(kernel)
    checker = Checker.of(kernel, arguments.whole(seed, "seed"), progress)
    special = _setting(setting, problem)
    try:
        if problem is None:
            found = _check_by_default(checker, count)
        else:
            found = _check_asked(checker, problem, special, scale)
        findings, note = checker.stricter.finish()
    except KeyboardInterrupt:
        # nvcc may still compile in a thread of its own.
        interrupt.end_all()
        raise
    if findings or note:
        found = found.joined(findings, note)
    if raises and not found.ok:
        raise WrongResult(str(found))
    return found


def _setting(name: str | None, problem: object) -> Setting:
    """Return the setting of that name; the ordinary one without a name."""
    if name is None:
        return ORDINARY
    known = settings()
    arguments.choice(name, "setting", known)
    if problem is None:
        raise ProblemError(f"setting={name!r} needs a problem: without one all are tried")
    return known[name]


def _check_asked(
    checker: "Checker",
    asked: Problem | str | Iterable[Problem | str],
    special: Setting,
    scale: str | None,
) -> Report | Reports:
    """Check a kernel on one problem, or on each of a set."""

    def fitted(problem: Problem) -> Report:
        if special.fits_any:
            return checker.run(problem, special)
        problem, note = fit(problem, [checker.kernel], scale)
        return checker.run(problem, special, notes=(note,) if note else ())

    problems, of_set = members(asked)
    if not of_set:
        return fitted(problems[0])
    what = f"the problems of {asked}, seed {checker.seed}"
    notes = (what,) if isinstance(asked, str) else ()
    return _check_set(checker, fitted, problems, notes)


@dataclass
class Checker:
    """Checks one kernel, problem by problem; on a GPU in the worker process."""

    kernel: Runnable
    seed: int
    progress: bool
    runner: Runner
    stricter: Stricter
    seconds_lost: float = field(default=0.0)  # in faults

    @classmethod
    def of(cls, kernel: Runnable, seed: int, progress: bool) -> "Checker":
        """Build a kernel, outside of any time limit, and return its checker.

        Raises BuildError.
        """
        isolated = kernel.isolate and not kernel.counts and not kernel.library
        kernel.build()
        where = runner() if isolated else IN_PROCESS
        return cls(kernel, seed, progress, where, stricter(kernel))

    def run(
        self,
        problem: Problem,
        setting: Setting = ORDINARY,
        kernel: Runnable | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        """Check the kernel, or a variant of it, on one problem. Raises what a run raises."""
        kernel = kernel or self.kernel
        if setting.workspace:
            kernel = kernel.limited(setting.workspace)
        given = (kernel, problem, self.seed, notes, setting)
        try:
            kernel.accept(problem)
            if self.runner is not IN_PROCESS and self.runner.accepts(*given):
                return self.runner.call(examine, *given, time_limit=kernel.time_limit)
            with explained(kernel.name):
                report = examine(*given)
                if report.ok and setting is ORDINARY:
                    report = self._with_array_bounds(report, kernel)
            return self.stricter.watch(report)
        except ConvlabError as error:
            error.problem = problem
            raise

    def _with_array_bounds(self, report: Report, kernel: Runnable) -> Report:
        """Run a counted kernel with local arrays once more, untraced: that build checks indices."""
        untraced = kernel.untraced()
        if untraced is kernel or not _ARRAY.search(kernel.source or ""):
            return report
        plain = examine(untraced, report.problem, self.seed, report.notes, ONCE)
        return report if plain.ok else plain

    def run_briefly(self, problem: Problem, setting: Setting = ORDINARY) -> Report:
        """Check one problem of the default check: a long one only once, untraced, if counted."""
        if self.kernel.counts and _is_long(problem) and not setting.fits_any:
            once = ONCE if setting is ORDINARY else setting
            note = _ONCE.format(_LONG, _MANY)
            return self.run(problem, once, self.kernel.untraced(), (note,))
        return self.run(problem, setting)

    def attempt(
        self, one: Callable[[Problem], Report], problem: Problem, setting: Setting = ORDINARY
    ) -> Report | str:
        """Return the report of one problem, also where the kernel fails to run.

        Where the kernel says that it does not support the problem, return what it says.
        """
        started = time.perf_counter()
        try:
            return one(problem)
        except UnsupportedError as error:
            return str(error)
        except LaunchError as error:
            refuses = not error.kind and (setting.offset or setting.fits_any)
            if refuses or error.kind == "too little workspace":
                return error.args[0].split(": load(")[0]
            self.seconds_lost += time.perf_counter() - started
            return failed(self.kernel, problem, error, setting)

    @contextmanager
    def each(
        self, attempts: Iterable[Callable[[], Report | str]]
    ) -> Iterator[Iterator[Report | str]]:
        """Give what each attempt returns, in their order, until faults have taken too long.

        Counted ones run several at a time, as many as the engine allows.
        """
        if not self.kernel.counts:
            yield self._until_too_many_faults(attempt() for attempt in attempts)
            return
        engine = self.kernel.runs_on
        with interrupt.held(), ThreadPoolExecutor(engine.at_once) as pool:
            under_way = []
            try:
                under_way += [pool.submit(attempt) for attempt in attempts]
                yield self._until_too_many_faults(one.result() for one in under_way)
            finally:
                # After many faults, or an interrupt, nobody waits for the others.
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(one.done() for one in under_way):
                    engine.interrupt()
                    time.sleep(0.02)

    def _until_too_many_faults(self, results: Iterable[Report | str]) -> Iterator[Report | str]:
        for result in results:
            yield result
            if self.seconds_lost > _FAULT_SECONDS:
                return


def _check_by_default(checker: Checker, count: int) -> Reports:
    """Check a kernel on fixed and generated problems, then in unusual settings."""
    kernel = checker.kernel
    built = kernel.build()
    fixed = [problem for name in _SETS for problem in named_problems(name)]
    if kernel.counts:
        fixed = [problem for problem in fixed if math.prod(problem.y_shape) < _SIM_OUTPUTS]
    generated = checker.stricter.problems(count, checker.seed)
    what = f"{len(fixed)} fixed and {len(generated)} generated problems, seed {checker.seed}"
    found = _check_set(checker, checker.run_briefly, fixed + generated, (what,))
    for trials in checker.stricter.trials(found.reports):
        if found.ok:
            found = _check_settings(checker, found, trials)
    if kernel.source:
        found = _with_largest(found)
    if found.ok and built is not None and kernel.build().library == built.library:
        runner().mark_good(built)
    return found


def _with_largest(found: Reports) -> Reports:
    """Note up to how many elements of x and y a kernel was tried, if int could count them."""
    x = max((math.prod(report.problem.x_shape) for report in found), default=0)
    y = max((math.prod(report.problem.y_shape) for report in found), default=0)
    if min(x, y) >= _INT:
        return found
    most = f"a y of more than {y:,}" if x >= _INT else f"an x or y of more than {max(x, y):,}"
    return found.joined((), f"not tried: {most} elements")


def _is_long(problem: Problem) -> bool:
    sizes = *problem.x_shape, *problem.w_shape, *problem.y_shape
    return max(sizes) > _LONG or math.prod(problem.y_shape) > _MANY


def _rank(report: Report) -> tuple[bool, bool, int, int]:
    """Order reports: faults and wrong results before refusals; then short, then small problems."""
    problem = report.problem
    return report.fault == "", _is_long(problem), problem.macs, problem.min_bytes


def _check_set(
    checker: Checker,
    one: Callable[[Problem], Report],
    problems: list[Problem],
    notes: tuple[str, ...],
) -> Reports:
    """Check a kernel on each problem; shrink the smallest of those it is wrong on."""
    name = checker.kernel.name
    reports: list[Report] = []
    skipped: list[tuple[Problem, str]] = []
    tried: dict[Problem, Report] = {}
    smallest = None
    attempts = [partial(checker.attempt, one, problem) for problem in problems]
    hidden = not checker.progress
    with progress_bar(total=len(problems), desc=name, disable=hidden, leave=False) as bar:
        with checker.each(attempts) as results:
            for problem, report in zip(problems, results):
                bar.update()
                if isinstance(report, str):
                    skipped.append((problem, report))
                    continue
                reports.append(report)
                if not report.ok:
                    bar.set_postfix_str(f"{sum(not report.ok for report in reports)} wrong")
        left_out = len(problems) - len(reports) - len(skipped)
        if left_out:
            lost = checker.seconds_lost
            notes += (f"{left_out} problems left out: faults took {lost:.0f} s",)
        wrong = [report for report in reports if not report.ok]
        if wrong:
            bar.set_description(f"{name}: shrinking")
            least = min(wrong, key=_rank)
            smallest, tried = _shrunk(checker, one, least)
            if tried:
                notes += (f"shrunk from {least.problem.label} in {len(tried)} tries",)
    also = tuple((p, report.ok) for p, report in tried.items() if p not in problems)
    return Reports(name, tuple(reports), tuple(skipped), smallest, notes, also)


def _shrunk(
    checker: Checker, one: Callable[[Problem], Report], least: Report
) -> tuple[Report, dict[Problem, Report]]:
    """Return the report of the smallest problem that fails like this one; all that were tried."""
    tried: dict[Problem, Report] = {}
    deadline = time.perf_counter() + _SHRINK_SECONDS

    def fails(problem: Problem) -> bool:
        if checker.seconds_lost > _FAULT_SECONDS or time.perf_counter() > deadline:
            return False
        report = checker.attempt(one, problem)
        if isinstance(report, str):
            return False
        tried[problem] = report
        # It must fail in the same way (a worker that died is no race), or tell where it fails.
        located = least.fault is None and any(f.error and f.line for f in report.findings)
        return not report.ok and (report.fault == least.fault or located)

    smallest = checker.stricter.shrink(least.problem, fails)
    return tried.get(smallest, least), tried


def _check_settings(
    checker: Checker, found: Reports, trials: Iterable[tuple[Problem, Setting]]
) -> Reports:
    """Add the reports of a kernel that is correct so far in settings, each on a problem."""
    trials = list(trials)
    reports: list[Report] = []
    unsupported: list[tuple[Problem, str]] = []
    attempts = [
        partial(checker.attempt, partial(checker.run_briefly, setting=setting), problem, setting)
        for problem, setting in trials
    ]
    with checker.each(attempts) as results:
        for (problem, _), report in zip(trials, results):
            if isinstance(report, str):
                unsupported.append((problem, report))
            else:
                reports.append(report)
    wrong = next((report for report in reports if not report.ok), None)
    left_out = len(trials) - len(reports) - len(unsupported)
    notes = found.notes
    if left_out:
        lost = checker.seconds_lost
        notes += (f"{left_out} settings left out: faults took {lost:.0f} s",)
    return replace(
        found,
        reports=(*found.reports, *reports),
        smallest=wrong,
        notes=notes,
        skipped=(*found.skipped, *unsupported),
    )
