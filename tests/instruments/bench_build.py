"""Measure how long builds take: the first one, one after an edit, cached ones, and plain load_inline.

    python -m tests.instruments.bench_build [--engine auto|cuda|sim] [--write PAGE]

``--write`` puts the table between the markers "build-cuda" or "build-sim" of a page, by the engine.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from torch.utils import cpp_extension

from convlab.core.builds.compile import ninja_on_path
from convlab.core.kernel.kernel import ENGINES, load
from convlab.core.machine import toolchain
from convlab.core.machine.device import describe
from convlab.core.machine.progress import bar as progress_bar
from convlab.sim import library
from tests.instruments import pages

_TRIVIAL = """
__global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""


def bench_build(engine: str = "auto") -> pd.DataFrame:
    """Measure builds of convlab in one run, and one by plain load_inline.

    Returns
    -------
    DataFrame
        Columns ``what`` and ``seconds`` (wall time).
    """
    name = load("01_direct", engine=engine)
    engine = name.engine
    text = name.source
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
            library.runtime()
        kernel = load(path, engine=engine)
        x, w = (torch.ones(1, 1, 4, 4, device=kernel.device) for _ in "xw")
        # This imports torch's builder. On a GPU it starts the worker process that tries new builds.
        timed(f"{engine}: first call of a session", lambda: kernel(x, w))
        path.write_text(text + f"\n// edited {time.time_ns()}\n")
        timed(f"{engine}: edited .cu to its first result", lambda: kernel(x, w))
        timed(f"{engine}: unchanged, same process", kernel.build)
        other = load(path, engine=engine)
        timed(f"{engine}: built before, seen by a new Kernel", other.build)
        command = (
            # Importing torch is not part of the time.
            "import time; from convlab.core.kernel.kernel import load; start = time.perf_counter(); "
            f"load({str(path)!r}, engine={engine!r}).build(); "
            "print(time.perf_counter() - start)"
        )
        root = str(Path(__file__).resolve().parents[2])
        done = subprocess.run(
            [sys.executable, "-c", command], capture_output=True, text=True, cwd=root, check=True
        )
        rows.append(
            {"what": f"{engine}: built before, by another process", "seconds": float(done.stdout)}
        )
        bar.update()
        timed(
            "plain load_inline, default headers, trivial kernel",
            lambda: _plain_load_inline(folder, engine),
        )
    return pd.DataFrame(rows)


def _plain_load_inline(folder: Path, engine: str) -> None:
    plain = folder / "plain"
    plain.mkdir()
    stamp = f"\n// {time.time_ns()}\n"
    host = "torch::Tensor run(torch::Tensor x) { return x; }" + stamp
    ninja_on_path()
    if engine == "cuda":
        cpp_extension.CUDA_HOME = str(toolchain.require_cuda().home)
    cpp_extension.load_inline(
        "plain",
        cpp_sources=[host],
        cuda_sources=[_TRIVIAL + stamp] if engine == "cuda" else None,
        functions=["run"],
        build_directory=str(plain),
    )


def markdown(frame: pd.DataFrame, command: str) -> str:
    """Return the times as a Markdown table, with the machine, the date and the command."""
    lines = ["| build | seconds |", "|---|---|"]
    lines += [f"| {row.what} | {row.seconds:.3f} |" for row in frame.itertuples()]
    cores = len(os.sched_getaffinity(0))
    where = f"{describe() or 'no GPU'}; {cores} cores; torch {torch.__version__}"
    return "\n".join([*lines, "", f"{where}; {datetime.date.today()}, by `{command}`."])


def main() -> None:
    """Measure, print, and write the table if a page is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--write", metavar="FILE", type=Path)
    given = parser.parse_args()
    marker = f"build-{load('01_direct', engine=given.engine).engine}"
    if given.write is not None:
        # A page without markers fails now, not after the work.
        pages.between(given.write, marker)
    frame = bench_build(given.engine)
    print(frame.to_string(index=False, formatters={"seconds": "{:.3f}".format}))
    if given.write is not None:
        command = " ".join(["python -m tests.instruments.bench_build", *sys.argv[1:]])
        pages.write_between(given.write, marker, markdown(frame, command))


if __name__ == "__main__":
    main()
