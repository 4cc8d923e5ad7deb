"""The puzzles: their files, their cells in the notebook, and how gaps are marked."""

import json

import pytest

from tests.instruments import puzzles
from tests.instruments.run_notebooks import read
from tests.suites import DEEP

marking = puzzles.marking()
# A part of the gaps as they are on disk; all of them with CONVLAB_DEEP=1.
UNFILLED = marking.names() if DEEP else marking.names()[::6]


@pytest.mark.pure
def test_each_puzzle_has_a_gap_a_short_solution_a_par_and_its_cells() -> None:
    exercises = [
        cell.source for cell in read("puzzles").cells if "exercise" in cell.metadata.get("tags", [])
    ]
    assert [path.stem for path in sorted(puzzles.SOLUTIONS.glob("*"))] == marking.names()
    assert list(json.loads(marking.PARS.read_text())) == marking.names()
    for name, cell in zip(marking.names(), exercises, strict=True):
        this = marking.puzzle(name)
        assert len(puzzles.solution(name).splitlines()) <= 10
        assert this.task and this.hint and this.problem
        # The reader starts with the gap as it is in the file.
        assert cell == f'{name.split("_", 1)[1]} = """\n{this.gap}\n"""'


@pytest.mark.pure
def test_a_gap_as_it_was_is_not_solved() -> None:
    this = marking.puzzle("01_guard")
    text, counted = marking.verdict(this.name, f"\n    {this.gap}\n")
    assert text.startswith("Not yet: the gap is as it was") and this.hint in text
    assert not counted


@pytest.mark.pure
def test_an_unknown_puzzle_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match="01_guard"):
        marking.puzzle("guard")


@pytest.mark.parametrize("name", UNFILLED)
def test_a_gap_that_is_not_filled_fails_with_a_reason(name: str) -> None:
    """The comment makes the lines differ from those on disk, so that the kernel runs."""
    text, _ = marking.verdict(name, f"{marking.puzzle(name).gap}\n// tried")
    assert text.startswith("Not yet: ") and "Hint: " in text
    assert "as it was" not in text and "did not compile" not in text


def test_a_mistake_of_the_compiler_is_reported() -> None:
    text, _ = marking.verdict("01_guard", "if (i >= outputs return;")
    assert "did not compile" in text and "puzzle_01_guard.cu:" in text


def test_a_correct_result_over_par_is_not_solved() -> None:
    text, counted = marking.verdict("05_pitch", "constexpr int kPitch = 34;")
    assert text.startswith("Not yet: the result is correct, but") and "bank conflicts" in text
    assert counted["bank conflicts"] > 0


def test_par_is_what_the_solution_takes() -> None:
    name = "11_ldmatrix"
    report = marking.run(name, puzzles.solution(name))
    assert marking.counts(report) == json.loads(marking.PARS.read_text())[name]
