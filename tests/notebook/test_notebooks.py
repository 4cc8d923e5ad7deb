"""Every notebook runs from top to bottom, and the committed notebooks are readable."""

import ast
import copy
import inspect
import json
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbformat import NotebookNode

import convlab
from tests.instruments.run_notebooks import NOTEBOOKS, clean, executed, names
from tests.notebook.smaller import INSTEAD

# The largest size of a notebook, in KiB.
KIBIBYTES = 400
# The most lines of a code cell.
LINES = 20
# The most lines of a code cell that contains a whole .cu file.
KERNEL_LINES = 60
KERNELS = Path(__file__).resolve().parents[2] / "kernels"

# Less work than the reader's notebook. `inspect` simulates fewer blocks of a large problem. `compare`
# without names uses a third of the rungs. The check uses an eighth of the awkward problems. CI covers
# all of them in test_kernels.py and with `compare`. As in other tests (conftest.py), nvcc compiles
# only what `inspect` shows.
SMALLER = """
import sys

sys.path.insert(0, "..")
import convlab
from convlab.core.kernel import catalog
from convlab.core.problem import named
from convlab.core.timing import compare
from convlab.profile import sampling
from convlab.strict import nvcc_report

sampling.MACS = 500_000
compare.catalog = lambda some=catalog.catalog()[::3]: some
sets = named._sets()
sets["awkward"], sets["by name only"] = sets["awkward"][::8], sets["awkward"]
nvcc_report.nvcc_report = lambda kernel: None
"""
# One file per notebook: the solutions of its exercises in order, separated by lines "# %%".
# The puzzles have a folder, with a file for each gap.
SOLUTIONS = Path(__file__).resolve().parent / "solutions"


@dataclass
class Run:
    """A notebook that was run here, and its kernel, which is still alive."""

    name: str
    notebook: NotebookNode
    client: NotebookClient

    def tagged(self, tag: str) -> list[int]:
        """Return the indices of the cells that have a tag."""
        cells = enumerate(self.client.nb.cells)
        return [index for index, cell in cells if tag in cell.metadata.get("tags", [])]

    def again(self, index: int, source: str | None = None) -> str:
        """Run one cell again, optionally with another source; return its printed output."""
        cell = self.client.nb.cells[index]
        cell.source = cell.source if source is None else source
        return printed(self.client.execute_cell(cell, index))


def solutions(name: str) -> list[str]:
    """Read the reference solutions of a notebook's exercises; those of the puzzles are files."""
    if (SOLUTIONS / name).is_dir():
        paths = sorted((SOLUTIONS / name).iterdir())
        return [f'{path.stem.split("_", 1)[1]} = """\n{path.read_text()}"""' for path in paths]
    return [text.strip() for text in (SOLUTIONS / f"{name}.txt").read_text().split("# %%\n")]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names()],
)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a notebook in a new kernel, on the simulator even if this machine has a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        less = INSTEAD.get(request.param, {})
        with executed(request.param, 300, SMALLER, less) as (notebook, client):
            yield Run(request.param, copy.deepcopy(notebook), client)


@pytest.fixture(params=names())
def committed(request: pytest.FixtureRequest) -> NotebookNode:
    """Return a notebook as it is on disk."""
    return nbformat.read(NOTEBOOKS / f"{request.param}.ipynb", as_version=4)


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def printed(cell: NotebookNode) -> str:
    return "".join(out.text for out in cell.outputs if out.output_type == "stream")


def test_runs_without_error(run: Run) -> None:
    kinds = {(out.output_type, out.get("name")) for out in outputs(run.notebook)}
    assert kinds <= {("stream", "stdout"), ("execute_result", None), ("display_data", None)}


def test_shows_tables_and_figures(run: Run) -> None:
    shown = [out.get("data", {}) for out in outputs(run.notebook)]
    assert any("<table" in data.get("text/html", "") for data in shown)
    assert any("image/png" in data for data in shown)


def test_last_cell_prints_machine_and_date(run: Run) -> None:
    text = printed(run.notebook.cells[-1])
    assert re.search(r"\d{4}-\d\d-\d\d, torch \d.*, Python 3", text)
    assert "on the simulator" in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", names())
def test_runs_on_the_gpu(name: str) -> None:
    with executed(name, timeout=600) as (notebook, _):
        assert {out.get("name", "stdout") for out in outputs(notebook)} == {"stdout"}
        assert "NVIDIA" in printed(notebook.cells[-1])


def test_exercises_fail_unsolved(run: Run) -> None:
    checkers = run.tagged("checker")
    assert len(checkers) == len(run.tagged("exercise")) == len(solutions(run.name))
    for index in checkers:
        assert "not yet" in printed(run.notebook.cells[index]).lower()


def test_exercises_pass_solved(run: Run) -> None:
    exercises = run.tagged("exercise")
    checkers = run.tagged("checker")
    for exercise, checker, solution in zip(exercises, checkers, solutions(run.name), strict=True):
        assert run.again(exercise, solution) == ""
        verdict = run.again(checker)
        assert "solved" in verdict.lower() and "not yet" not in verdict.lower()


def test_committed_is_small(committed: NotebookNode) -> None:
    assert len(nbformat.writes(committed)) < KIBIBYTES * 1024


def test_committed_ran_top_to_bottom(committed: NotebookNode) -> None:
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {"stream", "execute_result", "display_data"} >= {
        out.output_type for out in outputs(committed)
    }
    assert any("image/png" in out.get("data", {}) for out in outputs(committed))
    assert "stderr" not in {out.get("name") for out in outputs(committed)}


def test_committed_contains_no_path_of_a_machine(committed: NotebookNode) -> None:
    for out in outputs(committed):
        texts = {k: v for k, v in out.get("data", {}).items() if k != "image/png"}
        text = out.get("text", "") + json.dumps(texts)
        assert not re.search(r"(?<![\w.])/(home|root|tmp|work|usr|opt|mnt|var)/", text), text[:300]


def test_committed_is_clean(committed: NotebookNode) -> None:
    cleaned = copy.deepcopy(committed)
    clean(cleaned)
    assert cleaned == committed


def test_committed_cells_are_short(committed: NotebookNode) -> None:
    for cell in committed.cells:
        if cell.cell_type == "code":
            most = KERNEL_LINES if cell.source.startswith("%%kernel") else LINES
            assert len(cell.source.splitlines()) <= most, cell.source


def test_committed_opens_its_kernel(committed: NotebookNode) -> None:
    text = "\n".join(cell.source for cell in committed.cells)
    loaded = re.findall(r'convlab\.load\("(\w+)"\)', text)
    assert loaded
    for name in loaded:
        assert (KERNELS / f"{name}.cu").exists()
        assert f"kernels/{name}.cu" in text


def test_committed_names_only_existing_rungs(committed: NotebookNode) -> None:
    text = "\n".join(cell.source for cell in committed.cells)
    existing = {path.stem for path in KERNELS.glob("*.cu")} | set(names()) | {"04_your_idea"}
    existing |= {path.stem for path in (NOTEBOOKS / "puzzles").glob("*.cu")}
    assert set(re.findall(r"\b0\d[a-z]?_[a-z]\w*", text)) <= existing


def absent(code: str) -> set[str]:
    """Return what a code uses of convlab that does not exist: names, attributes, keywords."""
    known = {"convlab": convlab}
    missing = set()

    def resolved(node: ast.expr) -> object:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        owner = resolved(node.value) if isinstance(node, ast.Attribute) else None
        if inspect.ismodule(owner) and not hasattr(owner, node.attr):
            missing.add(ast.unparse(node))
        return getattr(owner, node.attr, None) if owner else None

    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("convlab"):
            for each in node.names:
                try:
                    exec(ast.unparse(ast.ImportFrom(node.module, [each], 0)), known)
                except ImportError:
                    missing.add(each.name)
        elif isinstance(node, ast.Attribute):
            resolved(node)
        elif isinstance(node, ast.Call) and inspect.isfunction(function := resolved(node.func)):
            taken = inspect.getfullargspec(function)
            given = {key.arg for key in node.keywords if key.arg}
            missing |= set() if taken.varkw else given - {*taken.args, *taken.kwonlyargs}
    return missing


def test_committed_uses_only_what_convlab_has(committed: NotebookNode) -> None:
    """This includes code that only a GPU runs."""
    cells = [cell.source for cell in committed.cells if cell.cell_type == "code"]
    assert not absent("\n".join(map(TransformerManager().transform_cell, cells)))
    code = "from convlab.profile import ncu, no\nif no: ncu.profile(1), convlab.check(0, kind=2).ok"
    assert absent(code) == {"no", "ncu.profile", "kind"}


def test_committed_reuses_no_function_s_name(committed: NotebookNode) -> None:
    # If a name is reused, an earlier cell that runs again calls another function.
    functions: set[str] = set()
    for cell in committed.cells:
        if cell.cell_type == "code":
            plain = TransformerManager().transform_cell(cell.source)
            symbols = symtable.symtable(plain, "cell", "exec").get_symbols()
            defined = {symbol.get_name() for symbol in symbols if symbol.is_namespace()}
            bound = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
            assert not (bound - defined) & functions
            functions |= defined


def test_clean_drops_progress_and_keeps_other_output() -> None:
    streams = {
        "bar": "\rbuilding 01_direct:  33%|███▎      | 1/3 [00:01<00:02,  1.2s/it]",
        "warning": "TqdmWarning: IProgress not found.",
        "error": "something else went wrong",
    }
    cell = nbformat.v4.new_code_cell("1")
    cell.metadata["execution"] = {"iopub.status.busy": "now"}
    new = nbformat.v4.new_output
    cell.outputs = [new("stream", name="stderr", text=text) for text in streams.values()]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    clean(notebook)
    assert [out.text for out in cell.outputs] == [streams["error"]]
    assert cell.execution_count == 1 and not cell.metadata
