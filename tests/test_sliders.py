"""A figure with sliders: seen without widgets, replaced in place where there are some."""

import base64
import hashlib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import convlab
from convlab.words.errors import ProblemError
from tests.instruments.run_notebooks import Interpreter, clean

CELL = """import sys; sys.path.insert(0, "..")
import matplotlib.pyplot as plt, convlab
def draw(TILE, K_TILE):
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.set_title(f"{TILE} {K_TILE}")
    return figure
convlab.sliders(draw, TILE=(4, 8, 16), K_TILE=(8, 32))
"""
MOVE = """import ipywidgets
held = vars(ipywidgets.widgets.widget).get("_instances") or ipywidgets.Widget.widgets  # 8, 7
slider = next(w for w in held.values() if getattr(w, "description", "") == "TILE")
assert slider.value == 8
slider.value = 16
"""


def pictures(cell: nbformat.NotebookNode) -> list[str]:
    found = [out.data["image/png"] for out in cell.outputs if "image/png" in out.get("data", {})]
    return [hashlib.sha256(base64.b64decode(png)).hexdigest() for png in found]


def test_a_slider_replaces_the_figure_and_without_widgets_it_stays() -> None:
    texts = (CELL, MOVE, "sys.modules['ipywidgets'] = None\n" + CELL)
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, texts)))
    NotebookClient(notebook, kernel_manager_class=Interpreter, kernel_name="python3",
                   resources={"metadata": {"path": str(Path(__file__).parent)}}).execute()  # fmt: skip
    drawn, moved, bare = notebook.cells
    assert len(drawn.outputs) == 2 and len(bare.outputs) == 1
    assert len(pictures(drawn)) == len(pictures(bare)) == 1
    assert pictures(drawn) != pictures(bare) and not pictures(moved)
    clean(notebook)
    assert len(drawn.outputs) == 1


@pytest.mark.parametrize("choices", [{}, {"TILE": ()}])
def test_nothing_to_choose(choices: dict) -> None:
    with pytest.raises(ProblemError, match="give each slider its values"):
        convlab.sliders(lambda **_: None, **choices)
