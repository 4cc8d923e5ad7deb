"""Grade one file: the four parts of a grade, as values that JSON can hold.

This runs in the grader's own process (``grading_process.py``), whose simulated runs are confined.
Nothing here depends on the date, the machine's load or the file's path, so that a second run gives
the same bytes. One thing can: whether a slow kernel ends within the time limit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.correctness.check import check
from ..core.correctness.report import Report, Reports
from ..core.errors import BuildError, CatalogError, ConvlabError, LaunchError, ProblemError
from ..core.faults import OUT_OF_TIME
from ..core.kernel.kernel import Kernel
from ..core.kernel.kernel import compile as compile_text
from ..core.problem.problem import Problem
from .counts import QUANTITIES, count
from .lab import Lab, Milestone, Par
from .submission import Submission
from .vet import vet_library, vet_source

# The time limit of one launch on the simulator, in seconds.
LAUNCH_SECONDS = 20.0
# A prediction gives its points if it is off by at most this share of the count.
NEAR = 0.1
# A milestone is reached by a count that is larger by at most this share.
SLACK = 0.01
_MOST_FAILURES = 3
# The most characters of a line of a failure. A race, with both of its places, has about 300.
_LONGEST_LINE = 500
_SEED = 0
_ENDLESS = ("endless loop", "out of time")
_HOW_TO_TEST = (
    "a wrong prediction's count is not shown; test how you count on other sizes, for example with "
    '`convlab inspect lab.cu --problem "N1 C1 H9 W40 K1 R3 S3"`'
)


class Grading:
    """The grade of one file, while it is computed.

    Attributes
    ----------
    parts : dicts of part, points, of, result: one for each part.
    counts : dicts of problem, quantity, value: what was counted, without the count that a wrong
        prediction missed.
    pars : a line for each par: its count, and the milestones before and after it.
    failures, notes : lines.
    """

    def __init__(self, submission: Submission, lab: Lab, engine: str) -> None:
        self.submission = submission
        self.lab = lab
        self.engine = engine
        self.own = lab.problem_of(submission.name)
        self.parts: list[dict[str, Any]] = []
        self.counts: list[dict[str, Any]] = []
        self.pars: list[str] = []
        self.failures: list[str] = []
        self.notes: list[str] = []

    def run(self) -> dict[str, Any]:
        """Return the grade as values that JSON can hold."""
        from ..sim import confine

        if missing := sorted({"system calls", "files"} - set(confine.available())):
            self.notes.append(
                f"this system cannot limit {' and '.join(missing)} of a student's file"
            )
        try:
            kernel = self._kernel()
        except (BuildError, CatalogError, ProblemError) as error:
            self.failures.append(_brief(error))
            self._part("correct", 0, "does not build, or is refused")
            self._part("prediction", 0, "nothing to count")
            self._part("pars", 0, "nothing to count")
        else:
            passed = self._check(kernel)
            self._predict(kernel, passed)
            if self.engine == "cuda":
                self._time(kernel, passed)
            else:
                self._compare(kernel, passed)
        self._ask()
        return grade_of(self.submission, self.lab, self.parts) | {
            "own": str(self.own),
            "counts": self.counts,
            "pars": self.pars,
            "failures": self.failures,
            "notes": self.notes,
        }

    def _part(self, part: str, points: float, result: str) -> None:
        of = self.lab.points[part]
        self.parts.append({"part": part, "points": round(points, 1), "of": of, "result": result})

    def _kernel(self) -> Kernel:
        """Return the built kernel; raise if it is refused or does not build."""
        name = self.submission.path.stem
        source = self.submission.source
        vet_source(source, self.submission.path.name)
        # A kernel from a text finds no header next to the student's file.
        kernel = compile_text(
            source, name=_plain(name), engine="sim", time_limit=LAUNCH_SECONDS, isolate=False
        )
        allowed = ("fp32",) if self.lab.precision == "fp32" else ("fp32", "tf32")
        if kernel.precision not in allowed:
            raise ProblemError(
                f"its header says `precision: {kernel.precision}`, and the lab asks for "
                f"{' or '.join(allowed)}: correct the header and the kernel"
            )
        vet_library(kernel.build().library, self.submission.path.name)
        return kernel

    def _check(self, kernel: Kernel) -> bool:
        """Give the points for correct problems; return whether all are."""
        problems = [*self.lab.problems, self.own, self.lab.counters]
        labels = [str(problem) for problem in problems]
        try:
            reports = check(kernel, problems, seed=_SEED, progress=False)
        except ConvlabError as error:
            self.failures.append(_brief(error))
            self._part("correct", 0, "could not be checked")
            return False
        assert isinstance(reports, Reports)
        passed = self._count_passed(reports)
        for problem, reason in reports.skipped:
            self.failures.append(f"{problem.label}: not supported: {_first_line(reason)}")
        if reports.errors:
            self.failures += [f"nvcc: {finding.text}" for finding in reports.errors]
            passed = 0
        self.failures = self.failures[:_MOST_FAILURES]
        share = passed / len(labels)
        hidden = f", {self.lab.hidden} of them hidden" if self.lab.hidden else ""
        result = f"correct on {passed} of {len(labels)} problems{hidden}"
        self._part("correct", self.lab.points["correct"] * share, result)
        return passed == len(labels)

    def _count_passed(self, reports: Reports) -> int:
        """Return how many problems are correct, up to the first that did not end.

        After one that does not end, how many more run depends on the machine.
        """
        passed = 0
        for report in reports:
            if _is_endless(report):
                self.failures.append(
                    f"{report.problem.label}: did not end within {LAUNCH_SECONDS:g} s; the problems "
                    "after it do not count"
                )
                break
            passed += report.ok
            if not report.ok:
                self.failures.append(f"{report.problem.label}: {_first_line(report.first_failure)}")
        return passed

    def _predict(self, kernel: Kernel, passed: bool) -> None:
        """Give the points for a prediction that is near the count on the own problem.

        The count is told after a near prediction only: else the second try would be free.
        """
        predicted = self.submission.prediction
        words = QUANTITIES[self.lab.predict].words
        if not passed:
            self._part("prediction", 0, "only for a correct kernel")
        elif predicted is None:
            self._part("prediction", 0, f"none given: {words}")
        elif (values := self._count(kernel, self.own, [self.lab.predict])) is None:
            self._part("prediction", 0, "nothing to count")
        elif abs(predicted - values[self.lab.predict]) <= NEAR * values[self.lab.predict]:
            self._keep(self.own, values)
            text = f"{predicted:,.0f} {words}: counted {values[self.lab.predict]:,.0f}"
            self._part("prediction", self.lab.points["prediction"], text)
        else:
            self._part("prediction", 0, f"{predicted:,.0f} {words}: not within {NEAR:.0%}")
            self.notes.append(_HOW_TO_TEST)

    def _count(
        self, kernel: Kernel, problem: Problem, quantities: Sequence[str]
    ) -> dict[str, float] | None:
        """Return counts; None if the kernel fails."""
        try:
            return count(kernel, problem, quantities)
        except ConvlabError as error:
            self.failures.append(_brief(error))
            return None

    def _keep(self, problem: Problem, values: Mapping[str, float]) -> None:
        """Keep counts for the result."""
        for quantity, value in values.items():
            self.counts.append({"problem": str(problem), "quantity": quantity, "value": value})

    def _compare(self, kernel: Kernel, passed: bool) -> None:
        """Give the points of the milestones that the counts reach."""
        if not passed:
            self._part("pars", 0, "only for a correct kernel")
            return
        names = [par.quantity for par in self.lab.pars]
        values = self._count(kernel, self.lab.counters, names)
        if values is None:
            self._part("pars", 0, "nothing to count")
            return
        self._keep(self.lab.counters, values)
        counted = [par for par in self.lab.pars if par.quantity in values]
        for par in self.lab.pars:
            if par not in counted:
                self.notes.append(f"{par.quantity} was not graded: this machine predicts no times")
        total = sum(par.points for par in counted)
        scale = self.lab.points["pars"] / total if total else 0
        points = 0.0
        full = 0
        for par in counted:
            milestone = reached_by(par, values[par.quantity])
            share = milestone.share if milestone else 0
            points += par.points * share
            full += share == 1
            who = f"reaches {milestone.kernel}" if milestone else "reaches no milestone"
            further = next_of(par, values[par.quantity])
            then = f"; the next is {further.value:,.6g}, by {further.kernel}" if further else ""
            self.pars.append(
                f"{par.quantity}: {values[par.quantity]:,.6g} {who}, {par.points * share * scale:g} of "
                f"{par.points * scale:g} points{then}"
            )
        text = f"all points for {full} of {len(counted)}" if counted else "no pars"
        self._part("pars", points * scale, text)

    def _time(self, kernel: Kernel, passed: bool) -> None:
        """Give points linear in the time on this GPU, between the two bounds of the lab."""
        bounds = self.lab.bounds
        if bounds is None or bounds.fast is None or bounds.slow is None:
            raise ProblemError(
                f"{self.lab.path.name} has no times of a GPU: write them with `convlab grade --pars "
                f"{self.lab.path.name} --engine cuda`, or grade with --engine sim"
            )
        if not passed:
            self._part("pars", 0, "only for a correct kernel")
            return
        from ..core.timing.measure import measure

        on_gpu = kernel.on("cuda")
        try:
            report = check(on_gpu, self.lab.counters, progress=False)
            ms = 1e3 * measure(on_gpu, report.problem).seconds
        except ConvlabError as error:
            self.failures.append(_brief(error))
            self._part("pars", 0, "does not run on this GPU")
            return
        share = linear(ms, bounds.fast, bounds.slow) if report.ok else 0
        text = f"{ms:.3g} ms; all points at {bounds.fast:.3g} ms, none at {bounds.slow:.3g} ms"
        self._part("pars", self.lab.points["pars"] * share, text)

    def _ask(self) -> None:
        """Give the points of the question, which do not depend on the kernel."""
        choice = self.submission.choice
        if self.lab.answer is None:
            self.notes.append("the question was not graded: the lab's key is not here")
            return
        if choice is None:
            self._part("question", 0, "no answer")
        elif choice not in self.lab.choices:
            self._part("question", 0, f"no such choice; there are {', '.join(self.lab.choices)}")
        elif choice == self.lab.answer:
            self._part("question", self.lab.points["question"], "right")
        else:
            self._part("question", 0, "not right")


def grade_of(submission: Submission, lab: Lab, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of a grade: who, what, and the points of the parts together."""
    return {
        "file": submission.path.name,
        "student": submission.name,
        "lab": lab.name,
        "lab_digest": lab.digest,
        "source_digest": submission.digest,
        "points": round(sum(part["points"] for part in parts), 1),
        "of": sum(part["of"] for part in parts),
        "parts": list(parts),
    }


def reached_by(par: Par, value: float) -> Milestone | None:
    """Return the best milestone that a count reaches, or None."""
    reached = None
    for milestone in par.milestones:
        if milestone.value is not None and value <= milestone.value * (1 + SLACK):
            reached = milestone
    return reached


def next_of(par: Par, value: float) -> Milestone | None:
    """Return the first milestone that a count does not reach and that gives more, or None."""
    reached = reached_by(par, value)
    share = reached.share if reached else 0
    for milestone in par.milestones:
        if milestone.value is not None and milestone.share > share:
            return milestone
    return None


def linear(ms: float, fast: float, slow: float) -> float:
    """Return the share of points for a time: 1 at `fast` or below, 0 at `slow` or above.

    >>> linear(3.0, fast=2.0, slow=4.0)
    0.5
    """
    return min(1.0, max(0.0, (slow - ms) / (slow - fast)))


def _is_endless(report: Report) -> bool:
    kinds = {finding.kind for finding in report.findings if finding.error}
    return report.outcome == OUT_OF_TIME or bool(kinds.intersection(_ENDLESS))


def _plain(name: str) -> str:
    """Return a file's name as a kernel's: letters, digits and underscores."""
    return (
        "".join(char if char.isalnum() and char.isascii() else "_" for char in name)[:50] or "lab"
    )


def _first_line(text: str) -> str:
    return _cut(text.split("\n")[0])


def _brief(error: ConvlabError) -> str:
    """Return the first lines of an error, without the paths of this machine."""
    lines = [line for line in str(error).split("\n") if not line.startswith("full log: ")]
    if isinstance(error, LaunchError) and error.kind in _ENDLESS:
        return f"did not end within {LAUNCH_SECONDS:g} s"
    return "\n".join(_cut(line) for line in lines[:4])


def _cut(line: str) -> str:
    """Return a line, or its beginning if it is longer than a report's longest."""
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..."
