"""Measure how long an answer takes from its file to the first result, on this machine.

    python -m tests.instruments.adopt_times                   all right answers of tests/adopt/answers
    python -m tests.instruments.adopt_times FILE ... --plain  these; also with torch's own headers
    python -m tests.instruments.adopt_times FILE ... --shell  also `python -m convlab adopt FILE`, until it
                                                              shows whether the answer is right as asked
    python -m tests.instruments.adopt_times --write convlab/EVIDENCE.md       put the table into this page

For each answer: the build with convlab's small torch::Tensor, the build and the judgement as asked with a
warm process, and with ``--plain`` torch's own `load_inline` (its headers, nvcc; needs CUDA). Each build is
new: it is in a cache of its own, with the simulator's runtime and the precompiled headers in it, which is
the state after the first answer ever. The engine is "cuda" with a GPU, else "sim".
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

from tests.instruments.pages import laid, write_between

ANSWERS = Path(__file__).parents[1] / "adopt" / "answers"
# What is built and run once, so that the headers, the runtime and the process are there.
_FIRST = ANSWERS / "right_relu.py"
_STAGES = ("loaded", "first call", "as asked", "timed")


def row(path: Path, engine: str, plain: bool, shell: bool = False) -> dict[str, object]:
    """Return the seconds of one answer."""
    from convlab.adopt.adoption import adopt

    started = time.perf_counter()
    # The simulator's judgement after the GPU's comes after the first verdict.
    adoption = adopt(path, engine=engine, general=False, simulate=None)
    seconds = time.perf_counter() - started
    found = {
        "answer": path.stem,
        "as asked": adoption.as_asked,
        "build s": round(adoption.seconds.get("build", 0.0), 2),
        "build and judgement s": round(seconds, 2),
        # In the answer's process: until the file was loaded, and so on; see `Adoption.seconds`.
        **{f"{stage} s": round(adoption.seconds.get(stage, 0.0), 2) for stage in _STAGES},
    }
    if shell:
        found["from the shell s"] = round(from_the_shell(path), 2)
    if plain:
        found["torch's headers s"] = round(with_torch(path), 2)
    return found


def from_the_shell(path: Path) -> float:
    """Return the seconds until the command has shown its verdict; the build is new, Python starts."""
    changed = path.read_text() + f"\n# {time.time()}\n"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        # The path is in the text that is compiled, so this is built again.
        copy.write_text(changed)
        words = [sys.executable, "-m", "convlab", "adopt", str(copy)]
        started = time.perf_counter()
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as it:
            shown = next((line for line in it.stdout if "as asked" in line), "")
            seconds = time.perf_counter() - started
            # Other shapes and the simulator would follow.
            it.terminate()
            it.communicate()
    if not shown:
        raise RuntimeError(f"the command showed no verdict for {path.name}")
    return seconds


def with_torch(path: Path) -> float:
    """Return the seconds of torch's own ``load_inline`` for an answer's strings."""
    from torch.utils.cpp_extension import load_inline

    from convlab.adopt.answer import read
    from convlab.core.builds.compile import ninja_on_path

    ninja_on_path()
    seconds = 0.0
    for call in read(path).calls:
        texts = {name: call.source(name) for name in ("cpp_sources", "cuda_sources")}
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            load_inline(
                name=f"plain_{path.stem}",
                functions=call.functions,
                build_directory=folder,
                **{name: text.text if text else "" for name, text in texts.items()},
            )
            seconds += time.perf_counter() - started
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--plain", action="store_true", help="also time torch's own load_inline")
    parser.add_argument(
        "--shell", action="store_true", help="also time the command, from its start"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page with the table's markers")
    asked = parser.parse_args()
    files = asked.files or sorted(ANSWERS.glob("right_*"))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CONVLAB_CACHE"] = cache
        from convlab.core.kernel.engine import engine_name
        from convlab.core.machine.device import describe

        engine = engine_name("auto")
        row(_FIRST, engine, False)
        rows = [row(path, engine, asked.plain, asked.shell) for path in files if path != _FIRST]
    made = describe() if engine == "cuda" else "the simulator"
    text = f"{laid(pd.DataFrame(rows))}\n\n{made}; {datetime.date.today()}."
    print(text)
    if asked.write:
        write_between(asked.write, "adopt_times", text)


if __name__ == "__main__":
    main()
