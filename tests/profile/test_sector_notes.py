"""`inspect` says which stores leave sectors in parts, and what they cost."""

from __future__ import annotations

import math

import pytest

import convlab
from convlab.core.machine.device import find_gpu
from convlab.core.problem.problem import Problem
from convlab.profile import whole_sectors
from convlab.profile.annotated_source import Listing

H200 = find_gpu("H200")
# y of `square`: 128 planes of 1022 x 1022 floats for each of 16 images.
SECTORS = 16 * 128 * 1022 * 1022 * 4 / 32


def store(partial: float, units: float = SECTORS, array: str = "y", line: int = 7) -> dict:
    """Return the counts of a line that stores to an array."""
    place = {"file": "/tmp/mine.cu", "line": line, "space": "global", "kind": "store"}
    return {**place, "array": array, "units": units, "partial": partial}


def notes(*rows: dict, split: float) -> list[str]:
    return whole_sectors.notes(rows, split, H200, whole_sectors.COPY_BYTES)


def test_a_note_says_how_many_sectors_where_by_how_many_blocks_and_what_they_cost() -> None:
    (note,) = notes(store(2e7, SECTORS + 1e7), split=1e7)
    assert note.startswith(
        "10,000,000 of 267,387,904 32-byte sectors of y are stored in parts, by "
    )
    assert "by 2 blocks each (mine.cu:7)." in note
    assert "reached 2.8 TB/s, and stores of whole sectors 3.9 TB/s" in note
    # 8.56 GB at 2.76 and at 3.87 TB/s: 3.10 and 2.21 ms.
    assert "up to 0.889 ms on H200" in note
    assert "multiples of 32 bytes" in note


def test_in_a_sample_the_number_is_an_estimate() -> None:
    (note,) = notes(store(2e7, SECTORS + 1e7), split=math.nan)
    assert note.startswith("about 10,000,000 of 267,387,904 32-byte sectors of y")


def test_each_array_has_its_own_note_and_few_sectors_have_none() -> None:
    rows = [store(2e7), store(3e6, 1e7, "workspace", 9), store(10, 1e6, "z"), store(0, 1e6, "u")]
    of_y, of_workspace = notes(*rows, split=1e7)
    assert "sectors of y" in of_y and of_y.startswith("about")  # which are y's is not known
    assert "sectors of workspace" in of_workspace and "mine.cu:9" in of_workspace
    assert not notes(store(0), split=0)


@pytest.mark.parametrize(("columns", "share"), [(1030, 0.40), (1034, 0.0)])
def test_inspect_shows_the_share_of_each_line(columns: int, share: float) -> None:
    found = convlab.inspect("03_smem_tile", Problem(1, 4, 6, columns, 8, 3, 3), engine="sim")
    assert found.costly()["in_parts"].max() == pytest.approx(share, abs=0.01)
    assert any("32-byte sectors of y are stored in parts" in note for note in found.notes) == bool(
        share
    )
    assert ("in parts" in str(found.tables[2].columns)) == bool(share)
    assert (
        "of 40.4% of these sectors, a block stores only a part" in str(found.listing())
    ) == bool(share)


def test_a_note_stands_below_its_line() -> None:
    row = store(400, 1000, line=1) | {"requests": 10, "ideal_units": 900, "share": 1.0}
    listing = Listing("f", ["y[i] = 1;"], [row], {1: [whole_sectors.line_note(row)]})
    lines = str(listing).splitlines()
    assert "of 40.0% of these sectors, a block stores only a part" in lines[-1]
    assert whole_sectors.line_note(store(1, 1000)) is None
