"""A kernel that is incorrect with one value of its own tunable only is incorrect."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import convlab
from convlab.core.correctness.check import Checker
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.strict.tunable_choices import declared, tunable_trials
from tests.strangers import PARTS, SOURCE

TILED = """
#ifndef TILE
#define TILE %(default)s%(comment)s
#endif
constexpr int kTile = TILE;
%(assertion)s
"""
LISTED = 'static_assert(kTile == 8 || kTile == 16 || kTile == 32, "TILE: 8, 16 or 32");'


def tiled(assertion: str = LISTED, comment: str = "", default: int = 16) -> str:
    return TILED % {"assertion": assertion, "comment": comment, "default": default}


@pytest.mark.pure
@pytest.mark.parametrize(
    "source, values",
    [
        (tiled(), [8, 32]),
        (tiled('static_assert(kTile % 8 == 0, "TILE: 8, 16 or 32");'), [8, 32]),
        (tiled('static_assert(TILE >= 4 && TILE <= 64, "TILE: 4 to 64");'), [4, 64]),
        (tiled("static_assert(kTile > 3 && kTile < 33);"), [4, 32]),
        (tiled("", "   // pixels: 8, 16 or 32"), [8, 32]),
        (tiled("", "   // output pixels of a block"), None),
        (tiled('static_assert(kTile * 2 <= 4096, "tiles: at most 48 KB");'), None),
    ],
    ids=["equal", "text", "range", "strict range", "comment", "none", "a product"],
)
def test_declared_values_are_read(source: str, values: list[int] | None) -> None:
    assert declared(source) == ({} if values is None else {"TILE": values})


@pytest.mark.pure
def test_rungs_declare_values() -> None:
    assert declared((KERNEL_DIR / "03_smem_tile.cu").read_text())["TILE"] == [8, 32]


def spoilt(tmp_path: Path, at: str) -> convlab.Kernel:
    parts = {"before": tiled(), "last": f"if ({at} && idx > 1000) sum = 0;"}
    path = tmp_path / "tiled.cu"
    path.write_text(SOURCE % (PARTS | parts))
    return convlab.load(path, engine="sim")


def test_each_declared_value_is_tried(tmp_path: Path) -> None:
    kernel = spoilt(tmp_path, "kTile == 32")
    checker = Checker.of(kernel, 0, False)
    verdicts: dict[str, set[bool]] = {}
    for problem, setting in tunable_trials(kernel):
        report = checker.attempt(partial(checker.run_briefly, setting=setting), problem, setting)
        assert not isinstance(report, str)
        verdicts.setdefault(report.kernel, set()).add(report.ok)
        assert setting.words in str(report)
    assert verdicts["tiled@TILE=8"] == {True}
    assert False in verdicts["tiled@TILE=32"]


def test_no_other_values_are_tried_if_the_caller_has_set_them(tmp_path: Path) -> None:
    kernel = spoilt(tmp_path, "kTile == 32").tuned({"TILE": 8})
    assert not list(tunable_trials(kernel))
