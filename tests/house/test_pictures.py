"""The pictures of README.md: what they show, and that no text is cut off."""

import json

import pytest
from PIL import Image, ImageDraw

from tests.instruments import picture
from tests.instruments.stored_outputs import NOTEBOOKS

pytestmark = pytest.mark.pure


def test_the_chart_has_the_best_rung_of_each_class_on_nchw() -> None:
    results = json.loads((NOTEBOOKS / "h200.json").read_text())["results"]
    assert [result["problem"]["name"] for result in results] == ["square", "rect", "wide"]
    for result in results:
        best = picture.best_of_each_class(result)
        assert list(best) == list(picture.CLASSES)
        for name, pair in best.items():
            assert pair["base"]["kernel"] == f"cudnn:{name}"
            assert "nhwc" not in pair["row"]["kernel"]
            others = [each for each in picture.beside(result) if each["base"] == pair["base"]]
            assert pair["ratio"] == max(each["ratio"] for each in others)


def test_a_problem_s_line_names_both_shapes() -> None:
    problem = {"name": "p", "N": 2, "C": 8, "H": 5, "W": 6, "K": 4, "R": 3, "S": 1, "groups": 2}
    assert picture.problem_line(problem) == "p: x 2x8x5x6, filter 4x4x3x1"


def test_long_lines_are_broken_and_never_cut() -> None:
    text = "word " * 60
    assert " ".join(picture.parts(text, 40)).split() == text.split()
    draw = ImageDraw.Draw(Image.new("RGB", (900, 500)))
    with pytest.raises(ValueError, match="shorter text"):
        picture.write(draw, [(text, "#FFFFFF")] * 30)


def test_the_first_finding_of_a_report_stands_out() -> None:
    report = "k: race: a store\n  mine.cu:9: x\n  the other access\nrace: later\n  mine.cu:7: y\n  try: z"
    colors = [color for _, color in picture.report_lines(report)]
    assert colors == [
        picture._BAD,
        picture._BAD,
        picture._INK,
        picture._DIM,
        picture._DIM,
        picture._GOOD,
    ]


def test_the_pictures_are_small() -> None:
    folder = NOTEBOOKS.parent / ".github"
    assert (folder / "session.gif").stat().st_size < 1_500_000
    with Image.open(folder / "session.gif") as animation:
        seconds = 0.0
        for frame in range(animation.n_frames):
            animation.seek(frame)
            seconds += animation.info["duration"] / 1000
        assert animation.size[0] == 900 and 8 <= seconds <= 12.5
