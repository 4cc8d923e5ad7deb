"""What `best` takes of each of several problems, beside torch's own convolutions in its class.

python -m tests.instruments.versus PROBLEM FILE [--compiled]    one of them, pickled into a file
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
from convlab.core.machine.progress import bar as progress_bar
from convlab.core.problem.named import PROBLEM_SETS, problem
from convlab.core.problem.problem import Problem
from convlab.core.show.result import Several
from convlab.core.show.table import Table, short
from convlab.core.timing.compare import compare
from convlab.core.timing.comparison import Comparison
from convlab.nn.choice import CLASSES, best

_SECONDS = 0.5  # spent on timing one kernel on one problem
_TUNING_SECONDS = 300.0  # for a problem that torch.compile tunes for; past it, it is left out
_BASELINES = [f"cudnn:{each}{layout}" for each in CLASSES for layout in ("", ":channels_last")]
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
    """What `best` takes of each problem in each class, and what torch's convolutions take there.

    Attributes
    ----------
    results : the comparisons, one for each problem: what is in one was timed in the same rounds.
    choices : for each, class to the name of what `best` takes.
    frame : a row for each problem and class: problem, class, choice, right, time_ms, error;
        cudnn_ms and nhwc_ms, of cuDNN in that class, inputs NCHW and already channels_last;
        compiled_ms, in TF32, if it was asked for; ratio, cudnn_ms over time_ms: 1 by definition
        where the choice is cuDNN.
    """

    results: tuple[Comparison, ...]
    choices: tuple[Mapping[str, str], ...]

    @property
    def frame(self) -> pd.DataFrame:
        rows = []
        for found, choices in zip(self.results, self.choices, strict=True):
            seen = found.frame.set_index("kernel")
            for precision, choice in choices.items():
                cudnn = f"cudnn:{precision}"
                row = {"problem": found.problem.label, "class": precision, "choice": choice}
                row |= seen.loc[choice, ["correct", "time_ms", "error"]].to_dict()
                rivals = cudnn, f"{cudnn}:channels_last", {"tf32": _COMPILED}.get(precision)
                for rival, name in zip(RIVALS, rivals, strict=True):
                    row[f"{rival}_ms"] = seen["time_ms"].get(name, math.nan)
                if not row["correct"]:
                    row["time_ms"] = math.nan  # it is a time of something else
                ratio = 1.0 if choice == cudnn else row["cudnn_ms"] / row["time_ms"]
                rows.append(row | {"ratio": ratio})
        frame = pd.DataFrame(rows)
        return frame if frame["compiled_ms"].any() else frame.drop(columns="compiled_ms")

    def means(self, precision: str) -> dict[str, float]:
        """Of each rival, its time over the choice's: the geometric mean over all it was timed on."""
        rows = self.frame[self.frame["class"] == precision]
        means = {}
        for rival, title in RIVALS.items():
            if f"{rival}_ms" in rows and (rival != "compiled" or precision == "tf32"):
                timed = rows[rows[f"{rival}_ms"].notna()]
                ratios = timed[f"{rival}_ms"] / timed["time_ms"]
                means[title] = math.exp(np.log(ratios).mean(skipna=False))
        return means

    @property
    def sentence(self) -> str:
        said = [f"{self.means(c)[RIVALS['cudnn']]:.2f} in {c}" for c in CLASSES[::-1]]
        return (
            f"{len(self)} problems, times as fast as cuDNN in the geometric mean: {', '.join(said)}"
        )

    @property
    def summary(self) -> list[str]:
        """A line for each class: the geometric means, and the smallest ratio."""
        lines = []
        for precision in CLASSES[::-1]:
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
        """Those of all, and the clock."""
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
        means = {precision: self.means(precision) for precision in CLASSES}
        return {"geometric_means": means, "results": self.results}


def versus(problems: Iterable[Problem | str], *, compiled: bool = False) -> Versus:
    """Time what `best` takes of each problem in each class beside cuDNN, NCHW and channels_last.

    With `compiled` beside ``torch.compile(mode="max-autotune")`` as well; see `apart`. Raises LaunchError without a GPU, or where memory is short.
    """
    if not torch.cuda.is_available():
        raise LaunchError(
            "kernels are timed beside torch's on an NVIDIA GPU, and torch sees none; "
            "traffic on the simulator: python -m convlab compare --problem P"
        )
    results = []
    choices = []
    asked = [problem(each) for each in problems]
    for each in progress_bar(asked, "problems", len(asked)):
        chosen = [best(each, precision, engine="cuda") for precision in CLASSES]
        if compiled:
            torch.compiler.reset()  # or it stops compiling after eight problems
        kernels = {k.name: k for k in chosen if not k.library}
        found = compare(
            [*kernels.values(), *[max_autotune] * compiled],
            each,
            engine="cuda",
            scale=None,
            baselines=_BASELINES,
            limit_seconds=_SECONDS,
            progress=False,
        )
        results.append(found)
        choices.append({c: kernel.name for c, kernel in zip(CLASSES, chosen, strict=True)})
    return Versus(tuple(results), tuple(choices))


def apart(problems: Iterable[Problem], kept: Path) -> Versus:
    """As `versus` beside torch.compile, each problem in a process of its own.

    What a folder has kept of an earlier sitting is not measured again. Where torch.compile tunes
    for longer than five minutes, it is left out.
    """
    kept.mkdir(parents=True, exist_ok=True)
    results = []
    choices = []
    for each in problems:
        file = kept / f"{_own(each.name)}.pickle"
        command = [sys.executable, "-m", __spec__.name, each.name, str(file)]
        if not file.exists():
            try:
                subprocess.run([*command, "--compiled"], timeout=_TUNING_SECONDS, check=True)
            except subprocess.TimeoutExpired:
                subprocess.run(command, check=True)
        one = pickle.loads(file.read_bytes())
        results += one.results
        choices += one.choices
    return Versus(tuple(results), tuple(choices))


def max_autotune(*given: Any, relu: bool = False) -> Tensor:
    """torch's convolution as its compiler chooses it, in the arithmetic that torch is set to."""
    return _compiler()(*given, relu)


max_autotune.precision = "tf32"
_COMPILED = "python:max_autotune"  # as `Function` names it


@functools.cache
def _compiler() -> Callable[..., Tensor]:
    def conv2d(x, w, bias, stride, padding, dilation, groups, relu):
        y = F.conv2d(x, w, bias, stride, padding, dilation, groups)
        return y.relu() if relu else y

    return torch.compile(conv2d, mode="max-autotune", dynamic=False)


def _own(label: str) -> str:
    """A problem's name without that of its set."""
    first, _, rest = label.partition(".")
    return rest if first in PROBLEM_SETS else label


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("problem")
    parser.add_argument("file", type=Path)
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    found = importlib.import_module(__spec__.name).versus([asked.problem], compiled=asked.compiled)
    small = tuple(replace(each, reports=()) for each in found.results)  # their maps are megabytes
    asked.file.write_bytes(pickle.dumps(replace(found, results=small)))
    print("\n".join(found.details))
