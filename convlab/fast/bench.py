"""The figures that README publishes: kernels over problems, and how long a build takes."""

import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from ..machine import toolchain
from ..machine.device import describe
from ..machine.progress import bar as progress_bar
from ..right.check import resolve
from ..run import build
from ..run.kernel import load
from ..words import catalog
from ..words.errors import ProblemError
from ..words.problem import Problem
from .compare import Comparison, compare

BEGIN, END = "<!-- {0}: begin -->", "<!-- {0}: end -->"
_TRIVIAL = """
__global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""


def bench(
    kernels: Sequence[str] | None,
    problems: Sequence[Problem],
    *,
    engine: str = "auto",
    limit_seconds: float = 3.0,
) -> list[Comparison]:
    """Check and measure kernels on each problem, at full size on a GPU: one Comparison each."""
    return [
        compare(kernels, problem, engine=engine, limit_seconds=limit_seconds)
        for problem in problems
    ]


def markdown(results: Sequence[Comparison]) -> str:
    """The results as a Markdown table: a row for each kernel, a column for each problem."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in results:
        for row in result.frame.to_dict("records"):
            cell = rows.setdefault((row["title"], row["class"]), {})
            if not row["right"]:
                cell[result.problem.label] = "does not do it" if row["right"] is None else "wrong"
            elif "time_ms" in row:
                cell[result.problem.label] = f"{row['time_ms']:.3g} ms ({row['x_floor']:.2g}x)"
            else:
                cell[result.problem.label] = f"{row['traffic_mb']:.3g} MB ({row['x_floor']:.2g}x)"
    labels = [result.problem.label for result in results]
    lines = [
        "| kernel | class | " + " | ".join(labels) + " |",
        "|---|---|" + "---|" * len(labels),
    ]
    for (title, precision), cells in rows.items():
        shown = (cells.get(label, "") for label in labels)
        lines.append(f"| {title} | {precision} | " + " | ".join(shown) + " |")
    unit = "Median time" if "time_ms" in results[0].frame else "Simulated global traffic"
    where = describe() if unit == "Median time" else "the simulator"
    lines += ["", f"{unit}, and its multiple of the floor. {where}; torch {torch.__version__}; "
              f"{datetime.date.today()}."]  # fmt: skip
    return "\n".join(lines)


def ladder() -> str:
    """The catalog as a Markdown table: one row for each rung."""
    lines = ["| rung | idea | class |", "|---|---|---|"]
    for path in catalog.catalog():
        header = catalog.parse_header(path.read_text(), path)
        lines.append(
            f"| [`{path.stem}`](kernels/{path.name}) | {header.idea} | {header.precision} |"
        )
    return "\n".join(lines)


def build_markdown(frame: pd.DataFrame) -> str:
    """What `bench_build` measured as a Markdown table, with the machine and the date."""
    lines = ["| build | seconds |", "|---|---|"]
    lines += [f"| {row.what} | {row.seconds:.3f} |" for row in frame.itertuples()]
    cores = len(os.sched_getaffinity(0))
    where = f"{describe() or 'no GPU'}; {cores} cores; torch {torch.__version__}"
    command = "python -m convlab bench-build --write README.md"
    return "\n".join([*lines, "", f"{where}; {datetime.date.today()}, by `{command}`."])


def write_between(path: Path, marker: str, text: str) -> None:
    """Replace what stands between a file's markers ``<!-- marker: begin -->`` and ``end``.

    Raises as `between` does.
    """
    head, tail = between(path, marker)
    path.write_text(f"{head}\n{text}\n{tail}")


def between(path: Path, marker: str) -> tuple[str, str]:
    """What stands before and after the text between a file's markers, the markers included.

    Raises ProblemError if the file has no such markers, OSError if it cannot be read.
    """
    before = path.read_text()
    begin, end = BEGIN.format(marker), END.format(marker)
    if before.count(begin) != 1 or before.count(end) != 1 or before.find(begin) > before.find(end):
        raise ProblemError(f"{path} must have one line {begin} and, after it, one line {end}")
    return before[: before.index(begin) + len(begin)], before[before.index(end) :]


def bench_build(engine: str = "auto") -> pd.DataFrame:
    """Measure builds in one run: convlab's, cold, edited and cached, next to plain load_inline.

    Returns
    -------
    DataFrame
        Columns ``what`` and ``seconds`` (wall time).
    """
    name = load("01_direct", engine=engine)
    engine, text = name.engine, name.source
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch, progress_bar(total=6, desc="building") as bar:

        def timed(what: str, action) -> None:
            started = time.perf_counter()
            action()
            rows.append({"what": what, "seconds": time.perf_counter() - started})
            bar.update()

        folder = Path(scratch)
        path = folder / "edited.cu"
        path.write_text(text)
        if engine == "sim":
            build.sim_runtime()
        kernel = load(path, engine=engine)
        x, w = (torch.ones(1, 1, 4, 4, device=kernel.device) for _ in "xw")
        # imports torch's builder and, on a GPU, starts the worker in which new builds are tried
        timed(f"{engine}: first call of a session", lambda: kernel(x, w))
        path.write_text(text + f"\n// edited {time.time_ns()}\n")
        timed(f"{engine}: edited .cu to its first result", lambda: kernel(x, w))
        timed(f"{engine}: unchanged, same process", kernel.build)
        other = resolve(str(path), engine)
        timed(f"{engine}: built before, seen by a new Kernel", other.build)
        command = (
            "import time, convlab; start = time.perf_counter(); "
            f"convlab.load({str(path)!r}, engine={engine!r}).build(); "
            "print(time.perf_counter() - start)"
        )
        root = str(Path(__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-c", command], capture_output=True, text=True, cwd=root, check=True
        )
        rows.append({"what": f"{engine}: built before, by another process",
                     "seconds": float(done.stdout)})  # fmt: skip
        bar.update()
        timed("plain load_inline, default headers, trivial kernel",
              lambda: _plain_load_inline(folder, engine))  # fmt: skip
    return pd.DataFrame(rows)


def _plain_load_inline(folder: Path, engine: str) -> None:
    from torch.utils import cpp_extension

    plain = folder / "plain"
    plain.mkdir()
    stamp = f"\n// {time.time_ns()}\n"
    host = "torch::Tensor run(torch::Tensor x) { return x; }" + stamp
    with build.ninja_on_path():
        if engine == "cuda":
            cpp_extension.CUDA_HOME = str(toolchain.require_cuda().home)
        cpp_extension.load_inline(
            "plain",
            cpp_sources=[host],
            cuda_sources=[_TRIVIAL + stamp] if engine == "cuda" else None,
            functions=["run"],
            build_directory=str(plain),
        )
