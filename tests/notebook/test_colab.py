"""Google Colab: the cell and the badge that `tests.instruments.colab` puts into each notebook."""

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tests.instruments import colab
from tests.instruments.oldest import oldest, replaced
from tests.instruments.run_notebooks import names, read

pytestmark = pytest.mark.pure
ADDRESS = "https://github.com/someone/convlab"


def test_every_notebook_has_the_cell() -> None:
    old = [
        name for name in names() if colab.prepared(name, read(name), colab.address()) != read(name)
    ]
    assert not old, f"{old} have another cell or badge: run `python -m tests.instruments.colab`"


@pytest.mark.parametrize("address", [None, ADDRESS])
def test_a_second_run_changes_nothing(address: str | None) -> None:
    once = colab.prepared("00_start", read("00_start"), address)
    assert colab.prepared("00_start", once, address) == once
    assert [cell.metadata.get("tags") for cell in once.cells].count([colab.APART]) == 1


def test_another_address_replaces_the_badge_and_the_cell() -> None:
    text = read("00_start").cells[0].source
    with_badge = colab.prepared("00_start", read("00_start"), ADDRESS)
    assert "github/someone/convlab/blob/main/notebooks/00_start.ipynb" in with_badge.cells[0].source
    assert f"git clone -q --depth 1 {ADDRESS} " in with_badge.cells[1].source
    without = colab.prepared("00_start", with_badge, None)
    assert without.cells[0].source == text
    assert "git clone" not in without.cells[1].source


@pytest.mark.parametrize("address", [None, ADDRESS])
def test_the_cell_does_nothing_elsewhere(address: str | None) -> None:
    source = colab.cell_source(address)
    assert len(source.splitlines()) <= 8
    # Without Colab's module, no name of IPython is used.
    exec(TransformerManager().transform_cell(source), {})


def test_requirements_are_pinned_to_the_oldest() -> None:
    assert oldest("# text\ntorch>=2.11,<2.14\nninja==1.13 # why\n\nnumpy") == [
        "torch==2.11",
        "ninja==1.13",
        "numpy",
    ]


def test_packages_that_changed_are_named() -> None:
    before = {"torch": "2.11.0", "numpy": "2.1.3", "tqdm": "4.67.1"}
    after = {"torch": "2.13.0", "tqdm": "4.67.1", "ninja": "1.13"}
    assert replaced(before, after) == ["torch 2.11.0 -> 2.13.0", "numpy 2.1.3 -> removed"]
