"""Slides of a notebook: what is on a slide, what is left out."""

import re

import pytest

from tests.instruments.run_notebooks import read
from tests.instruments.slides import main, prepared, slides

pytestmark = pytest.mark.pure


def test_sections_and_figures_are_slides_and_code_is_left_out() -> None:
    notebook = prepared(read("03_smem_tile"))
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in notebook.cells]
    assert kinds[0] == "slide" and kinds.count("slide") >= 8 and kinds.count("subslide") >= 8
    for cell, kind in zip(notebook.cells, kinds, strict=True):
        if kind == "subslide":
            assert any(
                {"image/png", "text/html"} & set(out.get("data", {})) for out in cell.outputs
            )
        if "exercise" in cell.metadata.get("tags", []) or "google.colab" in cell.source:
            assert kind == "skip"


def test_the_page_has_the_figures_but_no_code() -> None:
    pytest.importorskip("nbconvert")
    page = slides(read("03_smem_tile"))
    assert "Reveal.initialize" in page and "data:image/png" in page
    assert "convlab.access_map" not in page


def test_a_folder_with_reveal_is_all_that_slides_need() -> None:
    pytest.importorskip("nbconvert")
    page = slides(read("00_start"), "package")
    scripts = re.findall(r'<script[^>]*src="([^"]+)"', page)
    local = ["package/dist/reveal.js", "package/plugin/notes/notes.js"]
    assert [path for path in scripts if "mathjax" not in path.lower()] == local
    assert "require(" not in page.rpartition("plugin/notes/notes.js")[2]


def test_an_unknown_notebook_is_refused_with_the_names(tmp_path, capsys) -> None:
    assert main(["03_tile", str(tmp_path / "slides.html")]) == 2
    assert "03_smem_tile" in capsys.readouterr().err
