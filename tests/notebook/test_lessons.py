"""Lessons that can be taken in: how long a bridge is, and how many guesses a notebook asks for."""

import pytest

from tests.instruments.run_notebooks import names, read

pytestmark = pytest.mark.pure
# Short notebooks between two long ones.
BRIDGES = [
    "04_implicit_gemm",
    "05_async_gemm",
    "06_depthwise",
    "08_winograd",
    "09_first_mma",
    "09b_mma_tiles",
    "10b_first_wgmma",
    "10c_stages",
]
# They ask for a kernel, a diagnosis or a repair instead.
WITHOUT_GUESSES = {"ab_your_kernel", "adopt", "clinic", "puzzles"}


@pytest.mark.parametrize("name", BRIDGES)
def test_a_bridge_has_at_most_25_cells(name):
    assert len(read(name).cells) <= 25


@pytest.mark.parametrize("name", sorted(set(names()) - WITHOUT_GUESSES))
def test_a_notebook_asks_for_three_to_six_guesses(name):
    cells = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    assert 3 <= sum(source.count("convlab.guess(") for source in cells) <= 6
    assert any("convlab.guesses()" in source for source in cells)
