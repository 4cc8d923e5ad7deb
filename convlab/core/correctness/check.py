"""Is a kernel right? Against a float64 truth, element by element, with nothing taken on trust.

The output and the workspace are poisoned before the run; guard zones lie around every buffer; the
inputs are compared bit for bit after it; NaN passes nowhere but where the truth has it; a second
run must give the same bits; on a GPU all of it happens on a stream of its own, and the kernel runs
in a process of its own, so that what it breaks is not the caller's.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from ... import sim
from ...isolate import worker
from ...strict import settings, shapes
from ...strict.settings import IN_CHUNKS, ONCE, ORDINARY, SETTINGS, SPARSE, Setting, with_relu
from .. import arguments
from ..builds import build as builds
from ..defaults import COUNT
from ..errors import ConvlabError, LaunchError, ProblemError, UnsupportedError, WrongResult
from ..kernel.kernel import resolve
from ..kernel.runnable import Runnable, explained
from ..kernel.shrink_to_fit import fit
from ..machine.progress import bar as progress_bar
from ..problem.problem import Problem, members
from ..problem.problem import problem as named_problem
from ..problem.problem import problems as named_problems
from .examine import examine, examine_sparse, failed
from .report import Report, Reports

_RELU = 3  # of so many generated problems one gets a ReLU, where the kernel fuses that
_DRAWS = 30  # times as many, of which those are picked that a kernel of few problems lacks
_IN_CHUNKS = ("awkward.primes", "awkward.tile_plus_one", "awkward.groups_3", "awkward.everything")
_SHRINK_SECONDS = 20.0
_INT = 1 << 31  # elements that an int counts
_ARRAY = re.compile(r"^[\w \t]*\b\w+[ \t]+\w+\[[^\]]*\][^;()]*[;={]", re.M)  # one that is declared
_LONG = 1200  # in any dimension: on the simulator such a problem of a default check is run once,
_MANY = 60_000  # outputs: so is one of so many, without looking for races
_ONCE = "run once, untraced: longer than {:,}, or of over {:,} outputs"
_SIM_OUTPUTS = 4_000_000  # minutes for some kernels
_FAULT_SECONDS = 30.0  # spent on faults until a set of problems is given up


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
        How many problems are generated where none is given (40); where the kernel declines some of
        them, more are, until a quarter of so many are for it, and each two unusual options that
        it does together (a stride and groups, groups and a bias, ...) are in one of them.
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
    ProblemError
        No such problem; arguments that make no sense.
    """
    arguments.flag(progress, "progress")
    arguments.flag(raises, "raises")
    if count is not None and problem is not None:
        raise ProblemError("count is of generated problems: leave it out, or the problem")
    count = arguments.whole(COUNT if count is None else count, "count", 0)
    kernel = resolve(kernel)
    special = ORDINARY
    if setting is not None:
        arguments.choice(setting, "setting", settings.NAMES)
        if problem is None:
            raise ProblemError(f"setting={setting!r} needs a problem: without one all are tried")
        special = next(each for each in settings.ALL if each.name == setting)
    run = _Run(kernel, arguments.whole(seed, "seed"))

    def fitted(problem: Problem) -> Report:
        if special is SPARSE:
            able = settings.sparse(kernel)
            if problem not in able:
                offer = " or ".join(map(str, able)) or "none that it does"
                raise ProblemError(f'setting="sparse" is of problems of its own: {offer}')
            return run(problem, special)
        problem, note = fit(problem, [kernel], scale)
        return run(problem, special, notes=(note,) if note else ())

    asked, of_set = ([], False) if problem is None else members(problem)
    if problem is None:
        found = _by_default(run, count, progress)
    elif not of_set:
        found = fitted(asked[0])
    else:
        what = (f"the problems of {problem}, seed {seed}",) if isinstance(problem, str) else ()
        found = _check_set(run, fitted, asked, what, progress)
    if said := run.nvcc.result():
        found = found.joined(said.findings, said.note)
    if raises and not found.ok:
        raise WrongResult(str(found))
    return found


class _Run:
    """A kernel on one problem: on a GPU in the worker process."""

    def __init__(self, kernel: Runnable, seed: int) -> None:
        self.kernel = kernel
        self.seed = seed
        self._isolate = kernel.isolate and not kernel.simulated and not kernel.library
        self.lost = 0.0  # seconds that faults took
        self.built = kernel.build()  # outside of the time limit, and a BuildError is the caller's
        beside = ThreadPoolExecutor(1)
        self.nvcc = beside.submit(kernel.by_nvcc)  # while the simulator runs
        beside.shutdown(wait=False)

    def __call__(
        self,
        problem: Problem,
        setting: Setting = ORDINARY,
        kernel: Runnable | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        kernel = kernel or self.kernel
        kernel = kernel.limited(setting.workspace) if setting.workspace else kernel
        given = (kernel, problem, self.seed, notes, setting)
        try:
            kernel.accept(problem)
            if self._isolate and worker.can_cross(*given):
                return worker.call(examine, *given, time_limit=kernel.time_limit)
            with explained(kernel.name):
                if setting is SPARSE:
                    return examine_sparse(kernel, problem, self.seed)
                report = examine(*given)
                bounded = kernel.untraced() if setting is ORDINARY and report.ok else kernel
                if bounded is not kernel and _ARRAY.search(kernel.source or ""):
                    plain = examine(bounded, *given[1:-1], ONCE)  # minds their bounds
                    report = report if plain.ok else plain
            said = self.nvcc.result()
            return report.joined([*said.too_large(report.threads)]) if said else report
        except ConvlabError as error:
            error.problem = problem
            raise

    def short(self, problem: Problem, setting: Setting = ORDINARY) -> Report:
        """Run one of the default check: a long one once, untraced, where it is simulated."""
        if self.kernel.simulated and _is_long(problem) and setting is not SPARSE:
            once = ONCE if setting is ORDINARY else setting
            return self(problem, once, self.kernel.untraced(), (_ONCE.format(_LONG, _MANY),))
        return self(problem, setting)

    def attempt(
        self, one: Callable[[Problem], Report], problem: Problem, setting: Setting = ORDINARY
    ) -> Report | str:
        """Return what `one` does, and a report, too, where the kernel fails to run.

        Where it says that it does not do the problem, which is no mistake, return what it says.
        """
        started = time.perf_counter()
        try:
            return one(problem)
        except UnsupportedError as error:
            return str(error)
        except LaunchError as error:
            declines = not error.kind and (setting.offset or setting is SPARSE)
            if declines or error.kind == "too little workspace":
                return error.args[0].split(": load(")[0]
            self.lost += time.perf_counter() - started
            return failed(self.kernel, problem, error, setting)

    @contextmanager
    def each(
        self, attempts: Iterable[Callable[[], Report | str]]
    ) -> Iterator[Iterator[Report | str]]:
        """Give what each attempt returns, in their order, until faults have taken too long.

        Simulated ones run several at a time.
        """

        def in_time(found: Iterable[Report | str]) -> Iterator[Report | str]:
            for one in found:
                yield one
                if self.lost > _FAULT_SECONDS:
                    return

        if not self.kernel.simulated:
            yield in_time(attempt() for attempt in attempts)
            return
        with ThreadPoolExecutor(sim.AT_ONCE) as pool:
            under_way = [pool.submit(attempt) for attempt in attempts]
            try:
                yield in_time(one.result() for one in under_way)
            finally:  # early, after faults or at an interrupt: nobody waits for the others
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(one.done() for one in under_way):
                    sim.interrupt()
                    time.sleep(0.02)


def _by_default(run: _Run, count: int, progress: bool) -> Reports:
    """Check a kernel on fixed and generated problems, in little workspace, and in all settings."""
    kernel = run.kernel
    source = run.kernel.source or ""
    chosen = [
        p
        for name in ("awkward", "limits")
        for p in named_problems(name)
        if not kernel.simulated or math.prod(p.y_shape) < _SIM_OUTPUTS
    ]
    drawn = _drawn(kernel, count, run.seed)
    what = f"{len(chosen)} fixed and {len(drawn)} generated problems, seed {run.seed}"
    found = _check_set(run, run.short, chosen + drawn, (what,), progress)
    special: list[Iterable[tuple[Problem, Setting]]] = []
    if "conv2d_workspace" in source:
        chunked = map(named_problem, _IN_CHUNKS)
        special.append(product([on for on in chunked if not kernel.unsupported(on)], IN_CHUNKS))
    for on in settings.hosts(kernel, [r.problem for r in found]) if source else ():
        some = SETTINGS[-1:] if 4 * on.gemm_k > settings.SHARED else SETTINGS
        special.append(product([on], some))
    special.append(product(settings.sparse(kernel), [SPARSE]))
    for several in special:
        found = _in_settings(run, found, [*several]) if found.ok else found
    x, y = (
        max((math.prod(getattr(r.problem, shape)) for r in found), default=0)
        for shape in ("x_shape", "y_shape")
    )
    if source and min(x, y) < _INT:
        most = f"a y of more than {y:,}" if x >= _INT else f"an x or y of more than {max(x, y):,}"
        found = found.joined((), f"not tried: {most} elements")
    if found.ok and run.built is not None and kernel.build().library == run.built.library:
        builds.mark_good(run.built)  # its first call needs no trial from now on
    return found


def _is_long(problem: Problem) -> bool:
    sizes = *problem.x_shape, *problem.w_shape, *problem.y_shape
    return max(sizes) > _LONG or math.prod(problem.y_shape) > _MANY


def _rank(report: Report) -> tuple[bool, bool, int, int]:
    """Faults and wrong results stand before refusals; then short problems, then small ones."""
    problem = report.problem
    return report.fault == "", _is_long(problem), problem.macs, problem.min_bytes


def _drawn(kernel: Runnable, count: int, seed: int) -> list[Problem]:
    """So many generated problems; if it declines some, until it does a quarter, and all pairs."""
    drawn: list[Problem] = []
    able = 0
    met = set()
    for i, problem in enumerate(shapes.generated(_DRAWS * count, seed)):
        if i % _RELU == 0:
            problem = with_relu(kernel, problem)
        does = not kernel.unsupported(problem)
        new = shapes.pairs(problem) - met if does else set()
        if len(drawn) < count or (does and 4 * able < count) or (new and able < len(drawn)):
            drawn.append(problem)
            able = able + does
            met = met | new
    return drawn


def _check_set(
    run: _Run,
    one: Callable[[Problem], Report],
    problems: list[Problem],
    notes: tuple[str, ...],
    progress: bool,
) -> Reports:
    """Check a kernel on each problem; shrink the smallest of those it is wrong on."""
    name = run.kernel.name
    reports = []
    tried = {}
    skipped: list[tuple[Problem, str]] = []
    smallest = None
    attempts = [partial(run.attempt, one, problem) for problem in problems]
    with progress_bar(total=len(problems), desc=name, disable=not progress, leave=False) as bar:
        with run.each(attempts) as found:
            for problem, report in zip(problems, found):
                bar.update()
                if isinstance(report, str):
                    skipped.append((problem, report))
                    continue
                reports.append(report)
                if not report.ok:
                    bar.set_postfix_str(f"{sum(not report.ok for report in reports)} wrong")
        if left := len(problems) - len(reports) - len(skipped):
            notes += (f"{left} problems left out: faults took {run.lost:.0f} s",)
        if wrong := [report for report in reports if not report.ok]:
            bar.set_description(f"{name}: shrinking")
            least = min(wrong, key=_rank)
            smallest, tried = _shrunk(run, one, least)
            if tried:
                notes += (f"shrunk from {least.problem.label} in {len(tried)} tries",)
    also = tuple((p, report.ok) for p, report in tried.items() if p not in problems)
    return Reports(name, tuple(reports), tuple(skipped), smallest, notes, also)


def _shrunk(
    run: _Run, one: Callable[[Problem], Report], least: Report
) -> tuple[Report, dict[Problem, Report]]:
    """Return the report of the smallest problem that fails as this one; all that were tried."""
    tried = {}
    until = time.perf_counter() + _SHRINK_SECONDS

    def fails(problem: Problem) -> bool:  # in the same way: a worker that died is no race
        if run.lost > _FAULT_SECONDS or time.perf_counter() > until:
            return False
        found = run.attempt(one, problem)
        if isinstance(found, str):
            return False
        tried[problem] = found
        told = least.fault is None and any(f.error and f.line for f in found.findings)
        return not found.ok and (found.fault == least.fault or told)  # or tells where

    smallest = shapes.shrink(least.problem, fails)
    return tried.get(smallest, least), tried


def _in_settings(run: _Run, found: Reports, chosen: Sequence[tuple[Problem, Setting]]) -> Reports:
    """Add the reports of a kernel that is right so far in settings, each on a problem."""
    reports = []
    declined = []
    attempts = [
        partial(run.attempt, partial(run.short, setting=setting), problem, setting)
        for problem, setting in chosen
    ]
    with run.each(attempts) as each:
        for (problem, _), report in zip(chosen, each):
            if isinstance(report, str):
                declined.append((problem, report))
            else:
                reports.append(report)
    wrong = next((report for report in reports if not report.ok), None)
    left = len(chosen) - len(reports) - len(declined)
    notes = found.notes
    if left:
        notes += (f"{left} settings left out: faults took {run.lost:.0f} s",)
    return replace(
        found,
        reports=(*found.reports, *reports),
        smallest=wrong,
        notes=notes,
        skipped=(*found.skipped, *declined),
    )
