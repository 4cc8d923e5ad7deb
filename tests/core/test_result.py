"""What every result does alike: text within 100 columns, HTML, JSON, sets, pickling."""

import json
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from convlab.core.problem.named import problem
from convlab.core.problem.problem import Problem
from convlab.core.show.result import Result, Several, plain
from convlab.core.show.table import Table, number
from tests.instruments.pages import laid

pytestmark = pytest.mark.pure


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """The least that a result is."""

    problem: Problem
    ok: bool = True
    notes: tuple[str, ...] = ("on a machine", "word " * 40)

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame([{"name": "x<y>" * 30, "ms": np.float64(1.5), "mb": math.nan}])

    @property
    def sentence(self) -> str:
        return f"{self.problem.label}: so it is"

    @property
    def tables(self) -> tuple[Table, ...]:
        return (Table(self.frame),)


ONE = Answer(problem("square"))
TWO = Answer(problem("rect"), ok=False)
SEVERAL = Several((ONE, TWO))


@pytest.mark.parametrize("result", [ONE, TWO, SEVERAL], ids=["correct", "wrong", "several"])
def test_text_html_json_and_a_copy_follow_from_the_rows(result):
    text = str(result)
    assert text.split("\n")[0] == result.sentence and repr(result) == text
    assert max(map(len, text.split("\n"))) <= 100
    page = result._repr_html_()
    assert "x<y>" not in page and "on a machine" in page and result.color in page
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["ok"] is result.ok and document["rows"][0]["mb"] is None
    assert str(pickle.loads(pickle.dumps(result))) == text


def test_a_sentence_goes_on_below_at_the_terminals_width(monkeypatch):
    long = type("Long", (Answer,), {"sentence": "so it is " * 30})(ONE.problem)
    assert max(map(len, str(long).split("\n"))) <= 100
    assert (
        long.to_dict()["sentence"] == long.sentence and f"<b>{long.sentence}" in long._repr_html_()
    )
    monkeypatch.setattr("sys.stdout", type("Terminal", (), {"isatty": lambda self: True})())
    for columns in (60, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert columns - 12 < max(map(len, str(long).split("\n"))) <= columns


def test_an_empty_table_leaves_no_blank_line():
    empty = Table(ONE.frame[:0])
    padded = type("Padded", (Answer,), {"tables": (empty, *ONE.tables, empty)})
    assert str(padded(ONE.problem)) == str(ONE)


def test_a_set_has_a_row_for_each_problem_and_each_note_once():
    assert [row["problem"] for row in SEVERAL.to_dict()["rows"]] == ["square", "rect"]
    assert not SEVERAL.ok and SEVERAL.sentence == "correct on 1 of 2 problems"
    assert str(SEVERAL).count("on a machine") == 2  # TWO's own, and once for all
    assert len(SEVERAL) == 2 and list(SEVERAL) == [SEVERAL[0], SEVERAL[1]]
    assert SEVERAL.tables[0].cells == {"problem": ["square", "rect"], "found": ["so it is"] * 2}


def test_a_table_that_is_too_wide_goes_on_below_and_cuts_its_names():
    wide = pd.DataFrame([{"name": "n" * 200} | {f"column {i}": 12345.6 for i in range(14)}])
    lines = Table(wide).lines()
    assert max(map(len, lines)) <= 100 and "…" in lines[2]
    assert sum(line.count("12,346") for line in lines) == 14
    assert Table(wide[:0]).lines() == [] and Table(wide[:0]).html() == ""


def test_a_table_chooses_columns_headings_and_formats():
    rows = pd.DataFrame({"a": ["x", "y"], "b": [0.5, None], "c": [1, 2]})
    table = Table(rows, {"a": "name", "b": ("share", "{:.0%}"), "none": "not there"}, title="T")
    assert table.lines() == ["T", "name  share", "-----------", "x       50%", "y         -"]
    assert laid(pd.DataFrame(table.cells)) == "| name | share |\n|---|---|\n| x | 50% |\n| y | - |"


def test_numbers_and_json_values_are_plain():
    values = [1.5, 0.00012346, 123456.7, math.nan, None, True, "text", math.inf, 3]
    shown = [number(value) for value in values]
    assert shown == ["1.5", "0.0001235", "123,457", "-", "-", "True", "text", "inf", "3"]
    assert plain({"a": np.float32("nan"), 2: (np.int64(1), math.inf, None)}) == {
        "a": None,
        "2": [1, None, None],
    }
    assert plain(problem("square"))["name"] == "square"
