"""Check whether a kernel is correct: compare its outputs with a float64 reference.

y and the workspace are filled with NaN before the run, and every buffer has guard zones on both
sides. After the run the inputs must have the same bits as before. A NaN in y is correct only where
the reference has one. A second run must give the same bits. On a GPU the kernel runs on its own
stream and, with the room ``isolate``, in a worker process: a crash there does not reach the caller.
"""

import errno
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from .. import arguments
from ..defaults import COUNT
from ..errors import (
    BuildError,
    ConvlabError,
    LaunchError,
    ProblemError,
    TooManyThreads,
    UnsupportedError,
    WrongResult,
)
from ..builds.cache import Build
from ..faults import INCORRECT, outcome
from ..kernel.kernel import resolve
from ..kernel.runnable import Runnable, explained
from ..kernel.runner import IN_PROCESS, Runner, runner
from ..kernel.shrink_to_fit import fit
from ..machine import interrupt, torch_threads
from ..machine.progress import bar as progress_bar
from ..problem.named import members
from ..problem.named import problems as named_problems
from ..problem.problem import Problem
from .beside import Beside
from .examine import examine, failed, may_vary, simulated_seconds, uncounted_first
from .gpu_lines import lines_for_gpus
from .report import NOTHING_COMPARED, Report, Reports
from .setting import ONCE, ORDINARY, Setting
from .stricter import Stricter, settings, stricter

# The named problems of a default check; generated problems come after them.
_SETS = ("awkward", "limits")
# The time limit of the search for the smallest problem that fails. On the simulator the time is an
# estimate, so that the report does not depend on the load of the machine.
_SHRINK_SECONDS = 20.0
_SIM_SECONDS_PER_TRY = 0.1
# An int cannot hold the number of elements of a larger tensor.
_INT = 1 << 31
# Matches the declaration of an array.
_ARRAY = re.compile(r"^[\w \t]*\b\w+[ \t]+\w+\[[^\]]*\][^;()]*[;={]", re.M)
# A problem of a default check is long if a dimension, the number of inputs, of outputs or of their rows
# is larger than this: some kernels compute a row at a time. On the simulator a long problem runs only
# once.
_LONG = 1200
_MANY = 60_000
_ROWS = 5_000
# It is long, too, if a sum has so many terms: tiles multiply the work of a single output.
_TERMS = 4_000
# In a launch with more accesses than this, races are watched in a part of the blocks, or of each block.
_MOST_WATCHED = 3_000_000
# A run that starts more threads takes long on the simulator, and a sample of the blocks runs instead. The second
# number is for kernels with a workspace or with sums in parts: the outputs of their samples cannot be compared.
_MANY_THREADS = 4_000_000
_MOST_THREADS = 24_000_000
# A default check on the simulator leaves out problems with a larger tensor: they would take minutes.
_SIM_ELEMENTS = 4_000_000
# When crashes and hangs have taken this long, the rest of a set is left out.
_FAULT_SECONDS = 30.0
# A wait of the main thread ends this often, so that Ctrl-C is handled, in seconds.
_WAKE_SECONDS = 0.5
# The errors of the system that mean that this machine lacks something.
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)


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
    simulate: bool = True,
    each: Callable[[Report], object] | None = None,
) -> Report | Reports:
    """Check a kernel's outputs against a float64 convolution, on random data.

    The inputs are drawn from a normal distribution. If the float64 convolution takes about a second
    or less, every output is compared with it. For larger problems a sample of at least 100,000
    outputs is: corners, borders, both sides of tile boundaries, the first and the last elements,
    and random positions. Then every output is also compared with an fp32 convolution: cuDNN's on a
    GPU, torch's on the CPU.

    The check needs memory for x and w once more, and at most 4 GiB, or three times the outputs of
    one image if that is more.

    A kernel on a GPU runs in the worker process, so that a crash becomes a LaunchError and your
    process keeps its GPU. It runs in your process if pickle cannot send it, or if it was loaded with
    ``isolate=False``.

    Beside a GPU the simulator runs the kernel on a few small problems at the same time, because one
    GPU forgives races and missing waits. An error that it finds makes the kernel incorrect. If it
    does not support the kernel, a note says so.

    On the simulator up to four problems of a set run at the same time. If nvcc is installed, it
    compiles the kernel too. An nvcc error, or a launch that a GPU would refuse, makes the kernel
    incorrect. An nvcc warning is reported as a warning.

    Parameters
    ----------
    kernel
        A runnable; or the name or path of a kernel, or the name of a baseline.
    problem
        One problem: a Problem, its name, or its dimensions as text. Or a set of problems: its name,
        or an iterable. Without it, the default check runs: the sets "awkward" and "limits", `count`
        generated problems, then unusual data and settings. If a problem fails, the check looks for
        the smallest problem that fails.
    seed
        Seed of the inputs and of the generated problems.
    count
        Number of generated problems of a default check (40). More are generated until the kernel
        supports a quarter of `count`, and until each pair of options that it supports together
        (a stride and groups, groups and a bias, ...) occurs in one of them.
    scale
        "auto" shrinks a problem to what the simulator computes in seconds, or to what fits the
        GPU's memory, and adds a note. None never shrinks a problem.
    progress
        Show a progress bar for a set of problems.
    raises
        Raise WrongResult, with the report as its text, if the kernel is incorrect.
    setting
        Run the problem in one setting of the default check: "integers", "special", "offset", ...
        An unknown name raises ProblemError, which lists them all.
    simulate
        Whether the simulator runs the kernel beside a GPU.
    each
        Called with the Report of each problem of a set as soon as it is known, in order. After
        Ctrl-C it has had all reports that there are.

    Returns
    -------
    Report
        For one problem. It is true if the kernel is correct.
    Reports
        For a set of problems. Unsupported problems are counted separately. A problem on which the
        kernel crashes or hangs counts as incorrect. Problems that are out of time, not supported by
        the simulator, or that this machine could not run are counted separately too. `outcome` of
        the result says which, and the result is true only if all that ran is correct.

    Raises
    ------
    BuildError
        The kernel does not compile, or a compiler is missing (its ``kind`` is "not run").
    UnsupportedError
        The kernel does not support the one problem given.
    LaunchError
        The kernel crashed or hung on the one problem given. Or this says nothing about the kernel,
        and ``kind`` is "out of time", "not simulated", or one that means that this machine could
        not run it: "not run", "memory", "out of memory", "invalid worker state".
    WrongResult
        The kernel is incorrect on a set of problems, or not shown to be correct, and `raises` is
        true.
    ProblemError
        There is no such problem, or an argument is invalid.

    Examples
    --------
    >>> report = convlab.check("01_direct", "N=2,C=4,H=11,W=12,K=8,R=3,S=3,padding=1")
    >>> report.ok, report.error < report.bound
    (True, True)
    """
    arguments.flag(progress, "progress")
    arguments.flag(raises, "raises")
    arguments.function(each, "each")
    arguments.flag(simulate, "simulate")
    if count is not None and problem is not None:
        raise ProblemError(
            "count has no effect with a problem: it is the number of generated problems of a "
            "default check; leave out count or the problem"
        )
    count = arguments.whole(COUNT if count is None else count, "count", 0)
    seed = arguments.whole(seed, "seed")
    special = _setting(setting, problem)
    # An invalid problem is reported before the kernel is compiled.
    given = None if problem is None else members(problem)
    resolved = resolve(kernel)
    if given is not None:
        given = [resolved.asked(each) for each in given[0]], given[1]
    if given is None and resolved.own_task is not None:
        return resolved.own_task.report()
    if given is not None and not given[1]:
        # nvcc may reject a kernel that needs a newer GPU: ask for support before the build.
        resolved.accept(given[0][0])
    beside = None
    if simulate and resolved.engine == "cuda" and not resolved.library:
        # It starts before nvcc does.
        beside = Beside(resolved, None if given is None else given[0], seed, special)
    try:
        with _machine_errors(resolved.name):
            checker = Checker.of(resolved, seed, progress, each)
            if given is None:
                result = _check_by_default(checker, count)
            else:
                notes = ()
                if isinstance(problem, str):
                    notes = (f"problem set {problem}, seed {seed}",)
                result = _check_given(checker, given, special, scale, notes)
            findings, note = checker.stricter.finish()
            if beside is not None:
                result = beside.join(result)
    except KeyboardInterrupt:
        # nvcc may still be compiling in another thread.
        interrupt.end_all()
        raise
    finally:
        if beside is not None:
            beside.cancel()
    if findings or note:
        result = result.joined(findings, note)
    if given is None and result.ok:
        checker.mark_good()
    if raises and not result.ok:
        raise WrongResult(str(result))
    return result


@contextmanager
def _machine_errors(name: str) -> Iterator[None]:
    """Convert errors about missing memory, threads and files into a LaunchError without a verdict."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        lacks = isinstance(error, MemoryError) or getattr(error, "errno", None) in _LACKING
        if isinstance(error, ConvlabError) or not (lacks or "start new thread" in str(error)):
            raise
        raise LaunchError(
            f"{name} was not checked: {type(error).__name__}: {error}; this says nothing about the "
            "kernel",
            kind="not run",
        ) from error


def _setting(name: str | None, problem: object) -> Setting:
    """Return the setting with this name, or the ordinary one if `name` is None."""
    if name is None:
        return ORDINARY
    known = settings()
    arguments.choice(name, "setting", known)
    if problem is None:
        raise ProblemError(
            f"setting={name!r} needs a problem: a check without one tries all settings; "
            "name a problem, or leave out the setting"
        )
    return known[name]


def _check_given(
    checker: "Checker",
    given: tuple[list[Problem], bool],
    special: Setting,
    scale: str | None,
    notes: tuple[str, ...],
) -> Report | Reports:
    """Check a kernel on one problem, or on each of a set; `given` is what `members` returns."""

    def fitted(problem: Problem) -> Report:
        if special.fits_any:
            return checker.run(problem, special)
        problem, note = fit(problem, [checker.kernel], scale)
        return checker.run(problem, special, notes=(note,) if note else ())

    problems, is_set = given
    if not is_set:
        return fitted(problems[0])
    return _check_set(checker, fitted, problems, notes)


@dataclass
class Checker:
    """Check one kernel on several problems; on a GPU in the worker process."""

    kernel: Runnable
    seed: int
    progress: bool
    runner: Runner
    stricter: Stricter
    built: Build | None = None
    # It gets the report of each problem of a set.
    as_found: Callable[[Report], object] | None = None
    # The time that crashes, hangs and runs out of time have taken.
    seconds_lost: float = field(default=0.0)
    # Whether a long problem ran out of time. Then of the next ones only a few blocks run.
    is_slow: bool = field(default=False)

    @classmethod
    def of(
        cls,
        kernel: Runnable,
        seed: int,
        progress: bool,
        each: Callable[[Report], object] | None = None,
    ) -> "Checker":
        """Build a kernel, without a time limit, and return its checker.

        Raises BuildError.
        """
        isolated = kernel.isolate and not kernel.counts and not kernel.library
        built = kernel.build()
        where = runner(kernel) if isolated else IN_PROCESS
        return cls(kernel, seed, progress, where, stricter(kernel), built, each)

    def mark_good(self) -> None:
        """Mark the build as one that needs no rehearsal, if it has not changed meanwhile."""
        if self.built is not None and self.kernel.build().library == self.built.library:
            runner().mark_good(self.built)

    def run(
        self,
        problem: Problem,
        setting: Setting = ORDINARY,
        kernel: Runnable | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        """Check the kernel, or a variant of it, on one problem.

        Raises UnsupportedError or LaunchError.
        """
        kernel = kernel or self.kernel
        if setting.least_workspaces:
            return self._run_with_least_workspace(problem, setting, kernel, notes)
        if setting.workspace:
            kernel = kernel.limited(setting.workspace)
        if setting.gpu is not None:
            kernel = kernel.on_gpu(setting.gpu)
        if setting.tunables:
            kernel = kernel.tuned(dict(setting.tunables))
        given = (kernel, problem, self.seed, notes, setting)
        try:
            kernel.accept(problem)
            if self.runner is not IN_PROCESS and self.runner.accepts(*given):
                return self.runner.call(examine, *given, time_limit=kernel.time_limit)
            with explained(kernel.name):
                report = examine(*given)
                if report.ok and not setting.name and setting.counted:
                    report = self._with_array_bounds(report, kernel)
            # nvcc compiles the kernel with the tunables' defaults only.
            return report if setting.tunables else self.stricter.watch(report)
        except ConvlabError as error:
            error.problem = problem
            raise

    def _run_with_least_workspace(
        self, problem: Problem, setting: Setting, kernel: Runnable, notes: tuple[str, ...]
    ) -> Report:
        """Check one problem with a multiple of the least workspace with which the kernel works.

        A kernel that needs more than the limit is not launched, and the error has its least. If it
        works without workspace, the first run counts.
        """
        plain = replace(setting, least_workspaces=0)
        try:
            return self.run(problem, plain, kernel.limited(0), notes)
        except LaunchError as error:
            if error.kind != "too little workspace":
                raise
            least = error.needed
        limit = int(setting.least_workspaces * least)
        return self.run(problem, plain, kernel.limited(limit), notes)

    def _with_array_bounds(self, report: Report, kernel: Runnable) -> Report:
        """Check the indices of local arrays: of the simulator's builds, the one with counts does not.

        Returns the report of that run if it is incorrect.
        """
        untraced = kernel.untraced()
        if untraced is kernel or not _ARRAY.search(kernel.source or ""):
            return report
        plain = examine(untraced, report.problem, self.seed, report.notes, ONCE)
        return report if plain.ok else plain

    def run_briefly(self, problem: Problem, setting: Setting = ORDINARY) -> Report:
        """Check one problem of the default check; run a long one once on the simulator.

        If that takes too long, a few of its blocks run instead.
        """
        if not self.kernel.counts or setting.fits_any:
            return self.run(problem, setting)
        if setting.name or not _is_long(problem):
            return self._run_whole(problem, setting)
        if self.is_slow and (sample := self._few_blocks(problem)) is not None:
            return sample
        try:
            return self._run_whole(problem, setting)
        except LaunchError as error:
            sample = self._few_blocks(problem) if error.kind == "out of time" else None
            if sample is None:
                raise
            self.is_slow = True
            return sample

    def _few_blocks(self, problem: Problem) -> Report | None:
        """Return the report of a few blocks of a long problem; None if their outputs cannot be compared."""
        sample = self._sampled(problem, few=True)
        return None if sample is None or (sample.ok and sample.compared == NOTHING_COMPARED) else sample

    def _run_whole(self, problem: Problem, setting: Setting) -> Report:
        """Check one problem on the simulator with all blocks, unless these are very many threads."""
        is_long = _is_long(problem)
        if is_long:
            if not setting.name and (sampled := self._sampled(problem)) is not None:
                return sampled
            setting = replace(setting, twice=setting.twice and may_vary(self.kernel))
        if is_long or setting.tunables or not setting.name:
            setting = replace(setting, most_watched=_MOST_WATCHED)
        if setting.name:
            return self._run_uncounted(problem, setting)
        most = _MOST_THREADS if self.kernel.has_workspace else _MANY_THREADS
        whole = self._run_threads(most, problem, setting)
        if whole is not None:
            return whole
        # A report is false if it is incorrect: compare with None.
        sample = self._sampled(problem, takes_long=True)
        if sample is None:
            return self._run_uncounted(problem, setting)
        if sample.ok and sample.compared == NOTHING_COMPARED and most < _MOST_THREADS:
            whole = self._run_threads(_MOST_THREADS, problem, setting)
        return sample if whole is None else whole

    def _run_threads(self, most: int, problem: Problem, setting: Setting) -> Report | None:
        """Check one problem, unless a run would start more than `most` threads: then return None."""
        try:
            return self._run_uncounted(problem, replace(setting, most_threads=most))
        except TooManyThreads:
            return None

    def _run_uncounted(self, problem: Problem, setting: Setting) -> Report:
        """Check one problem without counts, which is faster, and then with them if it is incorrect."""
        return uncounted_first(partial(self.run, problem), setting)

    def _sampled(
        self, problem: Problem, takes_long: bool = False, few: bool = False
    ) -> Report | None:
        """Return the report of a sample of the blocks, where that is enough; None if all should run."""
        try:
            with explained(self.kernel.name):
                report = self.stricter.sampled(problem, self.seed, takes_long, few)
        except ConvlabError as error:
            error.problem = problem
            raise
        return None if report is None else self.stricter.watch(report)

    def attempt(
        self, one: Callable[[Problem], Report], problem: Problem, setting: Setting = ORDINARY
    ) -> Report | str:
        """Return the report of one problem, also if the kernel crashes or hangs.

        If the kernel does not support the problem, return the reason as text.
        """
        started = time.perf_counter()
        try:
            return one(problem)
        except UnsupportedError as error:
            return str(error)
        except LaunchError as error:
            # The entry point may return an error for an alignment that it does not support.
            is_special = setting.moves_inputs or setting.fits_any or setting.gpu is not None
            is_unsupported = not error.kind and is_special
            if is_unsupported or error.kind == "too little workspace":
                return error.args[0].split(": load(")[0]
            self.seconds_lost += time.perf_counter() - started
            return failed(self.kernel, problem, error, setting)
        except BuildError as error:
            if outcome([error.kind]) == INCORRECT:
                raise
            # A variant of the kernel did not build, and that says nothing about it.
            return failed(self.kernel, problem, error, setting)

    @contextmanager
    def each(
        self, attempts: Iterable[Callable[[], Report | str]]
    ) -> Iterator[Iterator[Report | str]]:
        """Yield what each attempt returns, in order, until faults have taken too long.

        On the simulator several attempts run at the same time: `at_once` of the engine.
        """
        if not self.kernel.counts:
            yield self._until_too_many_faults(attempt() for attempt in attempts)
            return
        engine = self.kernel.runs_on
        with (
            interrupt.held(),
            torch_threads.shared_by(engine.at_once),
            ThreadPoolExecutor(engine.at_once) as pool,
        ):
            futures = []
            try:
                futures += [pool.submit(attempt) for attempt in attempts]
                yield self._until_too_many_faults(map(_result_of, futures))
            finally:
                # After many faults, or an interrupt, end the attempts that are left.
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in futures):
                    engine.interrupt()
                    time.sleep(0.02)

    def _until_too_many_faults(self, results: Iterable[Report | str]) -> Iterator[Report | str]:
        for result in results:
            yield result
            if self.seconds_lost > _FAULT_SECONDS:
                return


def _result_of(future: Future[Report | str]) -> Report | str:
    """Wait for a future; return its result.

    Python runs the handler of a signal between two steps of the main thread. If the signal comes
    just before a wait without an end, its handler does not run. So this wait ends now and then.
    """
    while not future.done():
        wait([future], timeout=_WAKE_SECONDS)
    return future.result()


def _check_by_default(checker: Checker, count: int) -> Reports:
    """Check a kernel on fixed and generated problems, then in unusual settings."""
    kernel = checker.kernel
    fixed = [kernel.asked(problem) for name in _SETS for problem in named_problems(name)]
    too_large = []
    if kernel.counts:
        too_large = [problem for problem in fixed if _most_elements(problem) > _SIM_ELEMENTS]
        fixed = [problem for problem in fixed if problem not in too_large]
    needed = checker.stricter.needed(fixed)
    repeated = len(fixed) - len(needed)
    generated = checker.stricter.problems(count, checker.seed)
    # Problems for conditions and sizes in the source have names.
    named = sum(bool(problem.name) for problem in generated)
    sides = f", {named} for conditions and sizes in the source" if named else ""
    drawn = len(generated) - named
    what = f"{len(needed)} fixed and {drawn} generated problems, seed {checker.seed}{sides}"
    notes = (what,)
    if kernel.counts and (lines := lines_for_gpus(kernel.source or "")):
        notes += (f"not run: {lines} lines that only a GPU compiles (#ifndef CONVLAB_SIMULATOR); check them on a GPU",)
    if repeated:
        notes += (f"not run: {repeated} fixed problems that repeat others for this kernel",)
    if too_large:
        labels = ", ".join(problem.label for problem in too_large)
        notes += (f"not run: {labels}, too large for the simulator",)
    reports = _check_set(checker, checker.run_briefly, needed + generated, notes)
    # A kernel that is too slow for some problems may still be incorrect in a setting.
    checker.seconds_lost = 0.0
    passed = [report for report in reports.reports if report.ok]
    more = checker.stricter.trials(passed) if passed and not _is_incorrect(reports) else ()
    for trials in more:
        reports = _check_settings(checker, reports, trials)
        if _is_incorrect(reports):
            break
    if kernel.source:
        reports = _with_largest(reports)
    return reports


def _is_incorrect(reports: Reports) -> bool:
    """Return whether a run found an error of the kernel; others may have been out of time."""
    return any(report.outcome == INCORRECT for report in reports.reports)


def _with_largest(reports: Reports) -> Reports:
    """Note the largest x or y that was tried, if an int can hold its number of elements."""
    x = max((math.prod(report.problem.first_shape) for report in reports), default=0)
    y = max((math.prod(report.problem.output_shape) for report in reports), default=0)
    if min(x, y) >= _INT:
        return reports
    most = f"a y of more than {y:,}" if x >= _INT else f"an x or y of more than {max(x, y):,}"
    return reports.joined((), f"not tried: {most} elements")


def _most_elements(problem: Problem) -> int:
    """Return the number of elements of the largest tensor of a problem."""
    shapes = problem.first_shape, problem.second_shape, problem.output_shape
    return max(map(math.prod, shapes))


def _is_long(problem: Problem) -> bool:
    """Return whether a dimension, the number of inputs, of outputs, of their rows or of terms is large."""
    sizes = *problem.first_shape, *problem.second_shape, *problem.output_shape
    rows = problem.N * problem.groups * problem.P
    if problem.terms > _TERMS or rows > _ROWS:
        return True
    # Of a data gradient, dy may be large and dx small.
    most = max(math.prod(problem.first_shape), math.prod(problem.output_shape))
    return max(sizes) > _LONG or most > _MANY


def _rank(report: Report) -> tuple[bool, bool, int, int]:
    """Return the sort key of a failing report: the smallest key is the best one to shrink.

    A launch error without a kind comes last. Short problems come before long ones, small problems
    before large ones.
    """
    problem = report.problem
    return report.fault == "", _is_long(problem), problem.macs, problem.min_bytes


def _check_set(
    checker: Checker,
    one: Callable[[Problem], Report],
    problems: list[Problem],
    notes: tuple[str, ...],
) -> Reports:
    """Check a kernel on each problem, and shrink the smallest problem that fails."""
    name = checker.kernel.name
    reports: list[Report] = []
    skipped: list[tuple[Problem, str]] = []
    tried: dict[Problem, Report] = {}
    smallest = None
    attempts = [partial(checker.attempt, one, problem) for problem in problems]
    hidden = not checker.progress
    with progress_bar(total=len(problems), desc=name, disable=hidden, leave=False) as bar:
        with _kept(name, reports, problems), checker.each(attempts) as results:
            for problem, report in zip(problems, results):
                bar.update()
                if isinstance(report, str):
                    skipped.append((problem, report))
                    continue
                reports.append(report)
                if checker.as_found is not None:
                    checker.as_found(report)
                if not report.ok:
                    counts = Counter(report.outcome for report in reports if not report.ok)
                    shown = ", ".join(f"{count} {each}" for each, count in counts.items())
                    bar.set_postfix_str(shown)
        left_out = len(problems) - len(reports) - len(skipped)
        if left_out:
            notes += (f"{left_out} problems left out: {_lost(checker)}",)
        wrong = [report for report in reports if report.outcome == INCORRECT]
        if wrong:
            bar.set_description(f"{name}: shrinking")
            least = min(wrong, key=_rank)
            smallest, tried = _shrunk(checker, one, least)
            if tried:
                tries = f"{len(tried)} {'try' if len(tried) == 1 else 'tries'}"
                notes += (f"smallest problem found in {tries}, from {least.problem.label}",)
    also = tuple((p, report.ok) for p, report in tried.items() if p not in problems)
    header = getattr(checker.kernel, "header", None)
    return Reports(
        name,
        tuple(reports),
        tuple(skipped),
        smallest,
        notes,
        also,
        left_out=left_out,
        supports=() if header is None else header.supports,
    )


@contextmanager
def _kept(
    name: str, reports: list[Report], problems: Sequence[Problem], more: Sequence[Report] = ()
) -> Iterator[None]:
    """After Ctrl-C, show the reports that there are by then: `reports` and `more`."""
    try:
        yield
    except KeyboardInterrupt:
        found = Reports(name, (*reports, *more))
        if found.reports:
            of = f"interrupted after {len(found)} of {len(problems)} runs"
            print(f"{of}; {found.sentence}", *found.details, sep="\n", file=sys.stderr)
        raise


def _lost(checker: Checker) -> str:
    """Return why the rest of a set is left out."""
    return f"crashes, hangs and runs out of time took {checker.seconds_lost:.0f} s"


def _shrunk(
    checker: Checker, one: Callable[[Problem], Report], least: Report
) -> tuple[Report, dict[Problem, Report]]:
    """Return the report of the smallest problem that fails in the same way, and all reports tried."""
    tried: dict[Problem, Report] = {}
    started = time.perf_counter()
    estimated = 0.0

    def fails(problem: Problem) -> bool:
        nonlocal estimated
        taken = estimated if checker.kernel.counts else time.perf_counter() - started
        if checker.seconds_lost > _FAULT_SECONDS or taken >= _SHRINK_SECONDS:
            return False
        estimated += simulated_seconds(problem) + _SIM_SECONDS_PER_TRY
        report = checker.attempt(one, problem)
        if isinstance(report, str):
            return False
        tried[problem] = report
        # It must fail in the same way, because a crash of the worker is not a race. A finding with
        # a source line is better than none, and counts too.
        located = least.fault is None and any(f.error and f.line for f in report.findings)
        return not report.ok and (report.fault == least.fault or located)

    smallest = checker.stricter.shrink(least.problem, fails)
    return tried.get(smallest, least), tried


def _check_settings(
    checker: Checker, so_far: Reports, trials: Iterable[tuple[Problem, Setting]]
) -> Reports:
    """Run each trial, a problem in a setting, and add its report."""
    trials = list(trials)
    reports: list[Report] = []
    unsupported: list[tuple[Problem, str]] = []
    attempts = [
        partial(checker.attempt, partial(checker.run_briefly, setting=setting), problem, setting)
        for problem, setting in trials
    ]
    before = list(so_far.reports)
    everything = [report.problem for report in before] + [problem for problem, _ in trials]
    with (
        _kept(so_far.kernel, before, everything, reports),
        checker.each(attempts) as results,
    ):
        for (problem, _), report in zip(trials, results):
            if isinstance(report, str):
                unsupported.append((problem, report))
            else:
                reports.append(report)
                if checker.as_found is not None:
                    checker.as_found(report)
    wrong = next((report for report in reports if report.outcome == INCORRECT), None)
    left_out = len(trials) - len(reports) - len(unsupported)
    notes = so_far.notes
    if left_out:
        notes += (f"{left_out} settings left out: {_lost(checker)}",)
    return replace(
        so_far,
        reports=(*so_far.reports, *reports),
        smallest=wrong,
        notes=notes,
        skipped=(*so_far.skipped, *unsupported),
        left_out=so_far.left_out + left_out,
    )
