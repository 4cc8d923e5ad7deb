"""Say whether a notebook's stored outputs are older than the code that they show.

``tests.instruments.run_notebooks --in-place`` writes a record into the notebook's metadata, under
``convlab``: the day, the commit, the GPU, versions, and a digest for the notebook's own code cells and for
each file that its outputs depend on. A test compares the digests with the files of today.

The rule. A notebook depends on each kernel whose name is in its code cells or in its outputs, on the headers
that these kernels include, and on each data file of notebooks/ that a code cell names. Comments and white
space do not count, except in lines of a kernel's source that a cell shows: these must still be in the file,
at the same line number.
"""

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from convlab.core.builds.source import Source
from convlab.core.kernel import catalog

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
NOTEBOOKS = ROOT / "notebooks"
# The name of the record in a notebook's metadata.
KEY = "convlab"
# The tag of a cell that is not part of the lesson: Colab's.
APART = "colab"
# Keys of a kernel's header that are prose.
_PROSE = ("idea", "change", "mapping", "limits")
_SHOWN_LINE = re.compile(r"^ *(\d+) {2}(.*\S)", re.MULTILINE)


def record(notebook: NotebookNode, date: str, commit: str, device: str) -> dict[str, Any]:
    """Return the record of a notebook that has just been run.

    `device` describes the GPU, or is "simulator".
    """
    import matplotlib
    import numpy
    import pandas
    import torch

    versions = {
        module.__name__: str(module.__version__) for module in (torch, numpy, pandas, matplotlib)
    }
    versions["python"] = platform.python_version()
    return {
        "date": date,
        "commit": commit,
        "device": device,
        "versions": versions,
        **digests(notebook),
    }


def digests(notebook: NotebookNode) -> dict[str, Any]:
    """Return the digest of a notebook's code cells, and of each file that it depends on."""
    files = {str(path.relative_to(ROOT)): file_digest(path) for path in dependencies(notebook)}
    return {"cells": cells_digest(notebook), "files": files}


def stale(name: str, notebook: NotebookNode) -> list[str]:
    """Return why a notebook's stored outputs are out of date, a line for each reason."""
    again = f"run `python -m tests.instruments.run_notebooks {name} --in-place`"
    then = notebook.metadata.get(KEY)
    if then is None:
        return [f"notebooks/{name}.ipynb has no record of its run: {again}"]
    now = digests(notebook)
    reasons = []
    if then["cells"] != now["cells"]:
        reasons.append(f"notebooks/{name}.ipynb: its code cells changed after the run: {again}")
    for file in sorted({*then["files"], *now["files"]}):
        if then["files"].get(file) != now["files"].get(file):
            reasons.append(f"notebooks/{name}.ipynb: {file} changed after the run: {again}")
    if changed := changed_lines(notebook):
        others = f" and {len(changed) - 1} more lines" if changed[1:] else ""
        reasons.append(
            f"notebooks/{name}.ipynb shows {changed[0]}{others} as it was before: {again}"
        )
    return reasons


def dependencies(notebook: NotebookNode) -> list[Path]:
    """Return the files that a notebook's outputs depend on, sorted."""
    code = "\n".join(cell.source for cell in code_cells(notebook))
    text = code + "\n" + "\n".join(texts(notebook))
    words = set(re.findall(r"\w+", text))
    files = {path for path in NOTEBOOKS.glob("*.json") if path.name in code}
    for path in KERNELS.glob("*.cu"):
        if path.stem in words:
            files.add(path)
            files.update(Source(path.read_text(), path.stem, path).headers())
    return sorted(path for path in files if path.is_relative_to(ROOT))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells of the lesson."""
    return [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and APART not in cell.metadata.get("tags", [])
    ]


def texts(notebook: NotebookNode) -> Iterator[str]:
    """Yield the texts of all stored outputs."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            yield output.get("text", "")
            for kind, data in output.get("data", {}).items():
                if not kind.startswith("image/"):
                    yield data if isinstance(data, str) else json.dumps(data)


def changed_lines(notebook: NotebookNode) -> list[str]:
    """Return the lines of source that `Kernel.show` printed, and that the file now has otherwise."""
    changed = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            label, _, lines = output.get("data", {}).get("text/plain", "").partition("\n")
            path = ROOT / label
            if not label.startswith("kernels/") or "\n" in label:
                continue
            now = path.read_text().splitlines() if path.is_file() else []
            changed += [
                f"{label}:{number}"
                for number, text in _SHOWN_LINE.findall(lines)
                if text.strip() not in [line.strip() for line in now[int(number) - 1 : int(number)]]
            ]
    return changed


def cells_digest(notebook: NotebookNode) -> str:
    """Return a digest of the code cells, without blank lines and lines that are only a comment."""
    lines = [
        line.rstrip()
        for cell in code_cells(notebook)
        for line in cell.source.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    return digest("\n".join(lines))


def file_digest(path: Path) -> str:
    """Return a digest of a file: of CUDA source the code and the header's keys, else all of it."""
    text = path.read_text()
    if path.suffix not in (".cu", ".cuh"):
        return digest(text)
    code = " ".join(catalog.uncommented(text).split())
    if path.suffix == ".cu":
        entries = catalog._entries(text, path)
        code += repr({key: value for key, (_, value) in entries.items() if key not in _PROSE})
    return digest(code)


def digest(text: str) -> str:
    """Return 16 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def commit() -> str | None:
    """Return the commit of this checkout, with "+" after it if tracked files differ; or None."""
    try:
        asked = [
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
            for words in (
                ("rev-parse", "--short=10", "HEAD"),
                ("status", "--porcelain", "-uno", "--", "kernels", "convlab"),
            )
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked[0].stdout.strip() + ("+" if asked[1].stdout.strip() else "")
