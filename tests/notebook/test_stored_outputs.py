"""Stored outputs: none is older than the code that it shows; those of a GPU are of one run."""

import copy

import nbformat
import pytest
from nbformat import NotebookNode

from tests.instruments import stored_outputs
from tests.instruments.run_notebooks import clean, names, read

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", names())
def test_outputs_are_as_new_as_the_code(name: str) -> None:
    reasons = stored_outputs.stale(name, read(name))
    assert not reasons, "\n".join(reasons)


def test_outputs_of_a_gpu_are_of_one_day_and_one_commit() -> None:
    records = [read(name).metadata[stored_outputs.KEY] for name in names()]
    runs = {
        (record["date"], record["commit"], record["device"])
        for record in records
        if record["device"] != "simulator"
    }
    assert len(runs) <= 1, f"{sorted(runs)}: run all notebooks with --in-place on one GPU"
    assert not any("+" in commit for _, commit, _ in runs), "commit the kernels before the run"


@pytest.fixture
def notebook() -> NotebookNode:
    """A notebook that shows two lines of a kernel."""
    shown = nbformat.v4.new_output(
        "execute_result",
        {"text/plain": _excerpt("01_direct", 1)},
        execution_count=1,
    )
    code = nbformat.v4.new_code_cell('# the first rung\nconvlab.load("01_direct")')
    code.outputs = [shown]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("text"), code])
    made = stored_outputs.record(notebook, "2026-11-23", "0123456789", "simulator")
    notebook.metadata[stored_outputs.KEY] = nbformat.from_dict(made)
    return notebook


def _excerpt(stem: str, first: int) -> str:
    """Return two lines of a kernel as `Kernel.show` prints them."""
    lines = (stored_outputs.KERNELS / f"{stem}.cu").read_text().splitlines()
    shown = [f"{i:3}  {lines[i - 1]}" for i in (first, first + 1)]
    return "\n".join([f"kernels/{stem}.cu", *shown])


def test_a_record_lists_the_kernel_and_its_headers(notebook: NotebookNode) -> None:
    files = notebook.metadata[stored_outputs.KEY]["files"]
    assert {"kernels/01_direct.cu", "kernels/convlab.cuh"} <= set(files)
    assert stored_outputs.stale("some", notebook) == []


def test_a_missing_record_is_stale(notebook: NotebookNode) -> None:
    del notebook.metadata[stored_outputs.KEY]
    (reason,) = stored_outputs.stale("some", notebook)
    assert "no record" in reason and "run_notebooks some --in-place" in reason


def test_a_changed_cell_is_stale_and_a_changed_comment_is_not(notebook: NotebookNode) -> None:
    other = copy.deepcopy(notebook)
    other.cells[1].source = '# another comment\n\nconvlab.load("01_direct")'
    other.cells[0].source = "other text"
    colab = nbformat.v4.new_code_cell("pip = 1", metadata={"tags": [stored_outputs.APART]})
    other.cells.insert(0, colab)
    assert stored_outputs.stale("some", other) == []
    other.cells[-1].source = 'convlab.load("01_direct", engine="sim")'
    (reason,) = stored_outputs.stale("some", other)
    assert "its code cells changed" in reason and "--in-place" in reason


def test_a_changed_kernel_is_stale(notebook: NotebookNode) -> None:
    notebook.metadata[stored_outputs.KEY]["files"]["kernels/01_direct.cu"] = "0" * 16
    (reason,) = stored_outputs.stale("some", notebook)
    assert "kernels/01_direct.cu changed" in reason and "--in-place" in reason


def test_a_shown_line_that_moved_is_stale(notebook: NotebookNode) -> None:
    text = _excerpt("01_direct", 1).replace("  2  ", "  7  ")
    notebook.cells[1].outputs[0].data["text/plain"] = text
    (reason,) = stored_outputs.stale("some", notebook)
    assert "kernels/01_direct.cu:7" in reason


def test_of_a_kernel_comments_do_not_count_and_header_keys_do(tmp_path) -> None:
    path = tmp_path / "k.cu"
    digests = []
    for text in (
        "// idea: a\n// supports: C > 1\nint a; // b\n",
        "// idea: c\n// supports: C > 1\n\nint   a;\n/* d */",
        "// idea: a\n// supports: C > 2\nint a; // b\n",
        "// idea: a\n// supports: C > 1\nint b; // b\n",
    ):
        path.write_text(text)
        digests.append(stored_outputs.file_digest(path))
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_cleaning_keeps_the_record(notebook: NotebookNode) -> None:
    before = copy.deepcopy(notebook.metadata[stored_outputs.KEY])
    clean(notebook)
    assert notebook.metadata[stored_outputs.KEY] == before
