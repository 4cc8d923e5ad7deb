"""Time a kernel of the catalog next to torch's own convolutions, on each of several problems.

python -m tests.instruments.versus PROBLEM FILE [--class bf16] [--compiled]    one, pickled to a file
"""

import argparse
import functools
import importlib
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from convlab.core.errors import LaunchError
from convlab.core.kernel.catalog import catalog
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.kernel.libraries import Baseline, ConvLaunch
from convlab.core.kernel.runnable import Allocate, empty
from convlab.core.machine.progress import bar as progress_bar
from convlab.core.problem.named import PROBLEM_SETS, problem
from convlab.core.problem.problem import Problem
from convlab.core.show.result import Several
from convlab.core.show.table import Table, short
from convlab.core.timing.compare import compare
from convlab.core.timing.comparison import Comparison
from convlab.nn.choice import CLASSES, best

# Classes that `convlab.best` has no rule for.
HALVES = ("bf16", "fp16")
# Seconds that timing one kernel on one problem takes.
_SECONDS = 0.5
# Seconds that torch.compile may tune for one problem; after that, its time is left out.
_TUNING_SECONDS = 300.0
RIVALS = {"cudnn": "cuDNN", "nhwc": "channels_last", "compiled": "torch.compile"}
_SHOWN = {
    "problem": "problem",
    "class": "class",
    "choice": "kernel",
    "time_ms": ("ms", short),
    "error": ("error", "{:.1e}"),
    **{f"{rival}_ms": (RIVALS[rival], short) for rival in RIVALS},
    "ratio": ("ratio", "{:.2f}"),
}


@dataclass(frozen=True, repr=False)
class Versus(Several):
    """A kernel of the catalog on each problem in each class, and torch's convolutions there.

    Attributes
    ----------
    results
        The comparisons, one for each problem. The rows of one comparison were timed in the same
        rounds.
    choices
        For each problem, the name of the kernel by class. In fp32 and TF32 it is what
        `convlab.best` takes; in bf16 and fp16 the fastest correct rung on NCHW, or cuDNN.
    frame
        A row for each problem and class: problem, class, choice, correct, time_ms, error;
        cudnn_ms and nhwc_ms, the times of cuDNN in that class, inputs NCHW and already
        channels_last; compiled_ms, the time of torch.compile if it was measured; and ratio,
        cudnn_ms over time_ms, which is 1 by definition if the choice is cuDNN.
    """

    results: tuple[Comparison, ...]
    choices: tuple[Mapping[str, str], ...]

    @property
    def frame(self) -> pd.DataFrame:
        rows = []
        for result, choices in zip(self.results, self.choices, strict=True):
            timed = result.frame.set_index("kernel")
            for precision, choice in choices.items():
                cudnn = f"cudnn:{precision}"
                row = {"problem": result.problem.label, "class": precision, "choice": choice}
                row |= timed.loc[choice, ["correct", "time_ms", "error"]].to_dict()
                rivals = cudnn, f"{cudnn}:channels_last", COMPILED.get(precision)
                for rival, name in zip(RIVALS, rivals, strict=True):
                    row[f"{rival}_ms"] = timed["time_ms"].get(name, math.nan)
                if not row["correct"]:
                    # It is not the time of this problem's work.
                    row["time_ms"] = math.nan
                ratio = 1.0 if choice == cudnn else row["cudnn_ms"] / row["time_ms"]
                rows.append(row | {"ratio": ratio})
        frame = pd.DataFrame(rows)
        return frame if frame["compiled_ms"].any() else frame.drop(columns="compiled_ms")

    @property
    def classes(self) -> list[str]:
        """The classes that were measured, the least accurate first."""
        return [*self.choices[0]][::-1]

    def means(self, precision: str) -> dict[str, float]:
        """Return each rival's time over the choice's: the geometric mean over the timed problems."""
        rows = self.frame[self.frame["class"] == precision]
        means = {}
        for rival, title in RIVALS.items():
            if f"{rival}_ms" in rows and (rival != "compiled" or precision in COMPILED):
                timed = rows[rows[f"{rival}_ms"].notna()]
                ratios = timed[f"{rival}_ms"] / timed["time_ms"]
                means[title] = math.exp(np.log(ratios).mean(skipna=False))
        return means

    @property
    def sentence(self) -> str:
        means = [f"{self.means(c)[RIVALS['cudnn']]:.2f} in {c}" for c in self.classes]
        return (
            f"{len(self)} problems, times as fast as cuDNN in the geometric mean: "
            f"{', '.join(means)}"
        )

    @property
    def summary(self) -> list[str]:
        """A line for each class: the geometric means, and the smallest ratio."""
        lines = []
        for precision in self.classes:
            rows = self.frame[self.frame["class"] == precision]
            means = [f"{mean:.2f} to {title}" for title, mean in self.means(precision).items()]
            timed = rows["compiled_ms"].count() if "compiled_ms" in rows else 0
            if 0 < timed < len(rows):
                means[-1] += f" on the {timed} that it was timed on"
            least = rows.loc[rows["ratio"].fillna(0).idxmin()]
            lines.append(
                f"{precision}, geometric mean of the ratio over {len(rows)} problems: "
                f"{', '.join(means)}; the smallest to cuDNN: {least['ratio']:.2f}, "
                f"{_own(least['problem'])}"
            )
        return lines

    @property
    def tables(self) -> Sequence[Table]:
        rows = self.frame.sort_values("class", ascending=False, kind="stable")
        rows["problem"] = rows["problem"].map(_own)
        return (Table(rows, _SHOWN, left=("kernel",)),)

    @property
    def notes(self) -> Sequence[str]:
        """The notes of all comparisons, and the clock."""
        mhz = pd.concat([result.frame["mhz"] for result in self.results])
        clock = f"{mhz.min():.0f} to {mhz.max():.0f} MHz" if mhz.any() else "unknown: no NVML"
        return (*super().notes, f"SM clock {clock}")

    @property
    def details(self) -> Sequence[str]:
        noted = [
            f"{result.problem.label}: {row.kernel}: {row.note}"
            for result in self.results
            for row in result.frame.itertuples()
            if row.note
        ]
        failed = [line for result in self.results for line in result.failures]
        return [*(f"  {text}" for text in (*self.summary, *noted)), *failed]

    @property
    def about(self) -> dict[str, Any]:
        means = {precision: self.means(precision) for precision in self.classes[::-1]}
        return {"geometric_means": means, "results": self.results}


def versus(
    problems: Iterable[Problem | str],
    *,
    classes: Sequence[str] = CLASSES,
    compiled: bool = False,
) -> Versus:
    """Time kernels of the catalog next to cuDNN, NCHW and channels_last, in some classes.

    Parameters
    ----------
    problems
        Problems, or their names.
    classes
        "fp32" and "tf32", for which `convlab.best` takes the kernel. Or "bf16" or "fp16": every
        rung of that class on NCHW is timed, and the fastest correct one is taken, or cuDNN.
    compiled
        Time ``torch.compile(mode="max-autotune")`` too; see `apart`.

    Raises
    ------
    LaunchError
        There is no GPU, or its memory is too small.
    """
    if not torch.cuda.is_available():
        raise LaunchError(
            "times are measured on an NVIDIA GPU, and torch sees none; "
            "for traffic on the simulator: python -m convlab compare --problem P"
        )
    results = []
    choices = []
    chosen_problems = [problem(each) for each in problems]
    for each in progress_bar(chosen_problems, "problems", len(chosen_problems)):
        by_rule = {c: best(each, c, engine="cuda") for c in classes if c in CLASSES}
        rungs = [k for c in classes if c in HALVES for k in _rungs(c) if not k.unsupported(each)]
        kernels = {k.name: k for k in (*by_rule.values(), *rungs) if not k.library}
        rivals = [_compiled(c) for c in classes if compiled and c in COMPILED]
        if rivals:
            # Otherwise torch stops compiling after eight problems.
            torch.compiler.reset()
        result = compare(
            [*kernels.values(), *rivals],
            each,
            engine="cuda",
            scale=None,
            baselines=[f"cudnn:{c}{layout}" for c in classes for layout in ("", ":channels_last")],
            limit_seconds=_SECONDS,
            progress=False,
        )
        results.append(result)
        choices.append(
            {c: by_rule[c].name if c in by_rule else _fastest(result, c) for c in classes}
        )
    return Versus(tuple(results), tuple(choices))


def _rungs(precision: str) -> list[Kernel]:
    """Return the catalog's convolutions of a class with x and y in NCHW."""
    kernels = [load(path, engine="cuda") for path in catalog()]
    return [
        kernel
        for kernel in kernels
        if kernel.precision == precision
        and kernel.computes == "forward"
        and (kernel.format.x.layout, kernel.format.y.layout) == ("NCHW", "NCHW")
    ]


def _fastest(result: Comparison, precision: str) -> str:
    """Return the fastest correct row of cuDNN on NCHW and the rungs; cuDNN if none is correct."""
    cudnn = f"cudnn:{precision}"
    rows = result.frame.set_index("kernel")
    own = [name for name in rows.index if ":" not in name]
    times = rows["time_ms"].where(rows["correct"].eq(True))[[*own, cudnn]]
    return str(times.idxmin()) if times.notna().any() else cudnn


def apart(problems: Iterable[Problem], kept: Path, *, classes: Sequence[str] = CLASSES) -> Versus:
    """Do what `versus` does with torch.compile, each problem in a process of its own.

    The folder `kept` holds the results: what an earlier run stored there is not measured again. If
    torch.compile tunes for more than five minutes, its time is left out.
    """
    kept.mkdir(parents=True, exist_ok=True)
    results = []
    choices = []
    suffix = "" if tuple(classes) == CLASSES else f"_{'_'.join(classes)}"
    options = [] if tuple(classes) == CLASSES else ["--class", *classes]
    for each in problems:
        file = kept / f"{_own(each.name)}{suffix}.pickle"
        command = [sys.executable, "-m", __spec__.name, each.name, str(file), *options]
        if not file.exists():
            try:
                subprocess.run([*command, "--compiled"], timeout=_TUNING_SECONDS, check=True)
            except subprocess.TimeoutExpired:
                subprocess.run(command, check=True)
        one = pickle.loads(file.read_bytes())
        results += one.results
        choices += one.choices
    return Versus(tuple(results), tuple(choices))


def max_autotune(*tensors_and_options: Any, relu: bool = False) -> Tensor:
    """Compute torch's convolution as its compiler chooses it, in the arithmetic set in torch."""
    return _compiler()(*tensors_and_options, relu)


max_autotune.precision = "tf32"
# The name of torch.compile's row in each class. "python:max_autotune" is how `Function` names it.
COMPILED = {"tf32": "python:max_autotune"} | {c: f"torch.compile:{c}" for c in HALVES}


@dataclass(frozen=True)
class Compiled(Baseline):
    """torch.compile's convolution of bf16 or fp16 tensors, as a baseline of that class."""

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> ConvLaunch:
        """Return a launch of the compiled convolution; it allocates y by itself."""
        launch = super().prepare(problem, x, w, bias, allocate)
        return CompiledLaunch(self, problem, launch.inputs)


class CompiledLaunch(ConvLaunch):
    """Calls the compiled convolution; its first call compiles."""

    def __call__(self) -> None:
        # The memory of the last y is used again.
        self.y = None
        each = self.problem
        options = (each.stride, each.padding, each.dilation, each.groups)
        with torch.no_grad():
            self.y = max_autotune(*self.inputs, *options, relu=each.relu)


def _compiled(precision: str) -> Callable[..., Tensor] | Compiled:
    """Return torch.compile's convolution of a class."""
    if precision not in HALVES:
        return max_autotune
    device = torch.device("cuda", torch.cuda.current_device())
    return Compiled(COMPILED[precision], "torch.compile", precision, "cuda", device)


@functools.cache
def _compiler() -> Callable[..., Tensor]:
    def conv2d(x, w, bias, stride, padding, dilation, groups, relu):
        y = F.conv2d(x, w, bias, stride, padding, dilation, groups)
        return y.relu() if relu else y

    return torch.compile(conv2d, mode="max-autotune", dynamic=False)


def _own(label: str) -> str:
    """Return a problem's name without the name of its set."""
    first, _, rest = label.partition(".")
    return rest if first in PROBLEM_SETS else label


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("problem")
    parser.add_argument("file", type=Path)
    parser.add_argument("--class", dest="classes", nargs="+", choices=(*CLASSES, *HALVES))
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    measured = importlib.import_module(__spec__.name).versus(
        [options.problem], classes=options.classes or CLASSES, compiled=options.compiled
    )
    # The reports hold maps of megabytes.
    small = tuple(replace(each, reports=()) for each in measured.results)
    options.file.write_bytes(pickle.dumps(replace(measured, results=small)))
    print("\n".join(measured.details))
