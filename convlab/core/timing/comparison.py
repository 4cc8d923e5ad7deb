"""The results of `compare`: for one problem, and for a set of problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..correctness.report import Report
from ..cost import COUNTED, CostKind, saved_cost
from ..problem.problem import Problem
from ..show import charts
from ..show.plot import Chart
from ..show.result import Result, Several
from ..show.table import Table, short
from .ab_result import BELOW_WORDS

# The heading and the format of a frame's columns.
COSTS = {
    "predicted_ms": ("predicted ms", short),
    "predicted_within": ("within x", "{:.1f}"),
    "time_ms": "time ms",
    "with_prepare_ms": "with prep. ms",
    "spread_pct": ("± %", "{:.1f}"),
    "tflops": ("TFLOP/s", short),
    "floor_ms": "floor ms",
    "traffic_mb": "traffic MB",
    "floor_mb": "floor MB",
    "x_floor": ("x floor", short),
    "shared_wavefronts": ("shared wavefronts", "{:,.0f}"),
    "host_seconds": ("host s", "{:.2f}"),
    "sampled": "counted on",
}
_SHOWN = {
    "kernel": "kernel",
    "predicted_ms": COSTS["predicted_ms"],
    "class": "class",
    "shown": "result",
    "error": ("error", "{:.1e}"),
}
# The columns that a first look needs; ``verbose`` adds the others.
_FIRST_COSTS = ("predicted_ms", "time_ms", "traffic_mb", "x_floor")
_PHASES = {
    "kernel": "kernel",
    "build": ("build s", "{:.2f}"),
    "check": ("check s", "{:.2f}"),
    "timing": ("timing s", "{:.2f}"),
    "prediction": ("prediction s", "{:.2f}"),
}
SAMPLED = "traffic is that of the full size, counted on sampled blocks"
# What the cost means, where it is no time.
_MEANING = {"traffic_mb": " (bytes to and from global memory, not a time)"}


def predicted_error(within: pd.Series) -> str:
    """Return what to know about predicted times; profile/MODEL.md has the measurements.

    `within` has the known error of each predicted row, as a factor.
    """
    low = f"{within.min():.1f}"
    high = f"{within.max():.1f}"
    factor = low if low == high else f"{low} to {high}"
    return (
        f"for 9 of 10 measured kernels of their kinds they were right within a factor of {factor} "
        "(convlab/profile/MODEL.md)"
    )


class Costly(Result):
    """A result with a cost in each row: a time on a GPU, or traffic on the simulator."""

    kind: CostKind

    @property
    def cost(self) -> str:
        """The column of `frame` that is the cost here: "time_ms", or "traffic_mb" off a GPU."""
        return self.kind.column

    @property
    def cost_label(self) -> str:
        """The name of `cost` with its unit: an axis's label."""
        return self.kind.label


@dataclass(frozen=True, repr=False)
class Comparison(Costly):
    """The result of a comparison on one problem.

    Attributes
    ----------
    problem : the problem that was run, scaled down if necessary.
    frame : one row for each kernel: kernel, title, class, engine, correct, error, bound. On a GPU:
        time_ms, spread_pct (interquartile range over median), samples, mhz, tflops, floor_ms,
        x_floor, and with_prepare_ms where a kernel prepares its filter: the time including that.
        On the simulator: predicted_ms where times are predicted, predicted_within (the model's error
        for 9 of 10 kernels of its kind, a factor), traffic_mb, floor_mb, x_floor, shared_wavefronts,
        host_seconds (of the run of `problem`), sampled (the blocks that counts come from). Then note.
        Costs are of the problem `whole`, if there is one; correct, error and bound of `problem`.
        `correct` is None for a kernel that did not run.
    ok : whether a kernel is correct, and none is incorrect. A kernel that does not support the
        problem is not incorrect.
    notes : lines: engine, device, scaling, versions, date.
    failures : all that is incorrect: reports of incorrect kernels, messages of those that failed.
    reports : the checks of the kernels that ran.
    samples : all measured times: kernel, ms.
    made : date, machine, versions, sources and flags; see `save`.
    kind : the kind of cost: measured time, or counted traffic.
    scaled : why the problem was scaled down, in a few words; empty if it was not.
    phases : for each kernel the seconds that its build, its check and its timing took.
    forecast_for : the name of the GPU that times are predicted for; empty if none are.
    whole : the problem at full size, of predicted times and sampled counts; None without them.
    unpredicted : why no times are predicted; empty if they are, or are measured.
    """

    problem: Problem
    frame: pd.DataFrame
    ok: bool
    notes: tuple[str, ...]
    failures: tuple[str, ...] = ()
    reports: tuple[Report, ...] = field(default=(), repr=False)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)
    made: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    kind: CostKind = COUNTED
    scaled: str = ""
    phases: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)
    forecast_for: str = ""
    whole: Problem | None = None
    unpredicted: str = ""

    @property
    def costs(self) -> list[dict[str, Any]]:
        """The rows that ``convlab history`` shows."""
        if self.cost not in self.frame:
            return []
        sources = {source["name"]: source for source in self.made.get("kernels", ())}
        mode = self.kind.mode
        samples = dict(iter(self.samples.groupby("kernel")["ms"])) if mode else {}
        rows = []
        known = self.frame.dropna(subset=self.cost)
        for name, value in zip(known["kernel"], known[self.cost], strict=True):
            source = sources.get(name, {})
            own = samples.get(name, ())
            rows.append(saved_cost(name, self.whole or self.problem, value, source, mode, own))
        return rows

    @property
    def engine(self) -> str:
        """Where it ran: "cuda" or "sim"; "torch" if nothing but baselines ran, on a CPU."""
        engines = set(self.frame["engine"])
        return next((engine for engine in ("cuda", "sim") if engine in engines), "torch")

    @property
    def nothing_ran(self) -> bool:
        """Whether nothing ran, as no kernel supports the problem."""
        return len(self.frame) > 0 and bool(self.frame["correct"].isna().all())

    @property
    def note(self) -> str:
        """The notes as one text."""
        return "\n".join(self.notes)

    @property
    def sentence(self) -> str:
        """How many kernels are correct, and which of those costs least."""
        verdicts = list(self.frame["correct"])
        text = f"{self.problem.label}: {verdicts.count(True)} of {len(verdicts)} correct"
        if None in verdicts:
            text += f", {verdicts.count(None)} unsupported"
        rows = self.frame[[correct is True for correct in verdicts]]
        if "predicted_ms" in rows and rows["predicted_ms"].notna().any():
            least = rows.loc[rows["predicted_ms"].idxmin()]
            text += (
                f"; predicted fastest on {self.forecast_for}: {least.kernel}, "
                f"{short(least.predicted_ms)} ms on {self.whole.label}"
            )
            close = rows["predicted_ms"] < least.predicted_ms * least.predicted_within
            if close.sum() > 1:
                text += f" ({close.sum() - 1} more within the model's error)"
        elif self.cost in rows and rows[self.cost].notna().any():
            least = rows.loc[rows[self.cost].idxmin()]
            what = f"{self.kind.least}{_MEANING.get(self.cost, '')}"
            text += f"; {what}: {least.kernel}, {short(least.x_floor)}x the floor"
        return text

    @property
    def tables(self) -> Sequence[Table]:
        """A row for each kernel that supports the problem, with the columns for a first look."""
        ran = [correct is not None for correct in self.frame["correct"]]
        columns = {key: COSTS[key] for key in _FIRST_COSTS}
        return (Table(self._rows[ran], _SHOWN | columns),)

    @property
    def all_tables(self) -> Sequence[Table]:
        """A row for each kernel, with all costs; then the seconds that this comparison took."""
        return (Table(self._rows, _SHOWN | COSTS), Table(self.phases, _PHASES))

    @property
    def _rows(self) -> pd.DataFrame:
        """The frame, with the verdict as text."""
        shown = self.frame["correct"].map(
            {True: "correct", False: "INCORRECT", None: "unsupported"}
        )
        failed = self.frame["note"].str.startswith(("failed", "does not build"))
        return self.frame.assign(shown=shown.mask(failed, "FAILED"))

    @property
    def details(self) -> Sequence[str]:
        """What is incorrect or unusual about a kernel; unsupported kernels are only counted."""
        return [*self._noted(unsupported=False), *self.failures]

    @property
    def all_details(self) -> Sequence[str]:
        return [*self._noted(unsupported=True), *self.failures]

    def _noted(self, *, unsupported: bool) -> list[str]:
        lines = []
        below = []
        for row in self.frame.itertuples():
            note = row.note
            if note.endswith(BELOW_WORDS):
                below.append(row.kernel)
                note = note.removesuffix(BELOW_WORDS).removesuffix("; ")
            if note and (unsupported or row.correct is not None):
                lines.append(f"  {row.kernel}: {note}")
        if below:
            lines.append(f"  {', '.join(below)}: {BELOW_WORDS}")
        return lines

    @property
    def short_notes(self) -> Sequence[str]:
        """One line: what the floor is, why the problem was scaled down, what is not shown."""
        parts = ["floor: the theoretical minimum"]
        if "predicted_within" in self.frame:
            error = predicted_error(self.frame["predicted_within"].dropna())
            parts.insert(0, f"predicted ms: for {self.forecast_for}, at full size; {error}")
        if "sampled" in self.frame:
            parts.append(f"{SAMPLED} (--verbose says which)")
        if self.scaled:
            parts.append(self.scaled)
        verdicts = list(self.frame["correct"])
        if count := verdicts.count(None):
            of = f"{count} of {len(verdicts)} kernels do not support this problem"
            parts.append(f"{of}; --verbose lists them")
        if self.unpredicted:
            parts.append(self.unpredicted)
        return ("; ".join(parts),)

    @property
    def about(self) -> dict[str, Any]:
        about = {"problem": self.problem, "failures": self.failures, "phases": self.phases}
        if self.whole is not None:
            about |= {"forecast_for": self.forecast_for, "whole": self.whole}
        return about

    def figure(self) -> Chart:
        return charts.error_and_cost(self.frame, self.problem.label, self.notes)


@dataclass(frozen=True, repr=False)
class Comparisons(Several):
    """The comparisons on a set of problems: a row for each kernel, a column for each problem."""

    results: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """Whether a kernel is correct on a problem, and none is incorrect on any."""
        if not any(result.ok for result in self):
            return False
        return all(result.ok or result.nothing_ran for result in self)

    @property
    def nothing_ran(self) -> bool:
        """Whether no kernel supports any of the problems."""
        return all(result.nothing_ran for result in self)

    @property
    def sentence(self) -> str:
        good = sum(result.ok for result in self.results)
        return f"{len(self)} problems, all correct on {good}"

    @property
    def tables(self) -> Sequence[Table]:
        return (self.matrix("kernel"),)

    def matrix(self, name: str) -> Table:
        """Return a table of costs: a row for each kernel, a column for each problem.

        A cell has the predicted time, or the cost and its multiple of the floor. `name` is the column that names a row:
        "kernel" or "title".
        """
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for result in self.results:
            label = _unscaled(result.problem.label)
            for row in result.frame.to_dict("records"):
                cells = rows.setdefault((row[name], row["class"]), {})
                cells[label] = _cell(row, result)
        labelled = [{"kernel": k, "class": c} | cells for (k, c), cells in rows.items()]
        return Table(pd.DataFrame(labelled).fillna(""))

    @property
    def details(self) -> Sequence[str]:
        lines = []
        for result in self.results:
            lines += [f"  {result.sentence}", *result.details]
        return lines

    @property
    def all_details(self) -> Sequence[str]:
        lines = []
        for result in self.results:
            lines += [f"  {result.sentence}", *result.all_details]
        return lines

    @property
    def short_notes(self) -> Sequence[str]:
        """One line: what the floor is, and why problems were scaled down."""
        parts = ["floor: the theoretical minimum"]
        within = [r.frame["predicted_within"] for r in self if "predicted_within" in r.frame]
        if within:
            gpus = dict.fromkeys(r.forecast_for for r in self if r.forecast_for)
            error = predicted_error(pd.concat(within).dropna())
            parts.insert(0, f"predicted: for {', '.join(gpus)}, at full size; {error}")
        if any("sampled" in result.frame for result in self):
            parts.append(f"{SAMPLED} (--verbose says which)")
        if scaled := sum(bool(result.scaled) for result in self.results):
            parts.append(f"{scaled} of {len(self)} problems are scaled down; --verbose says why")
        return ("; ".join(parts),)

    def figure(self) -> Chart:
        """Return a chart with the kernels of all problems, one problem below the other."""
        titled = []
        for i, result in enumerate(self.results, 1):
            name = _unscaled(result.problem.name) or f"problem {i}"
            titled.append(result.frame.assign(title=f"{name}: " + result.frame["title"]))
        rows = pd.concat(titled, ignore_index=True)
        return charts.error_and_cost(rows, self.sentence, self.notes)


def _cell(row: dict[str, Any], result: Comparison) -> str:
    """Return the text of one kernel's cost on one problem."""
    if row["correct"] is None:
        return "unsupported"
    if not row["correct"]:
        return "incorrect"
    if not pd.isna(row.get("predicted_ms")):
        return f"{short(row['predicted_ms'])} ms predicted"
    multiple = row["x_floor"]
    multiple = f"{multiple:.2g}" if multiple < 100 else short(multiple)
    return f"{short(row[result.cost])} {result.kind.unit} ({multiple}x)"


def _unscaled(label: str) -> str:
    """Return a problem's label without the part about scaling."""
    return label.split(" (scaled")[0]
