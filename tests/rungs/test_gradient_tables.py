"""The tables of the gradients: what is chosen, the means, and which problems are measured."""

from __future__ import annotations

import json
import math

import pytest

from convlab.core.kernel.catalog import KERNEL_DIR
from tests.instruments import gradients
from tests.instruments.pages import between

pytestmark = pytest.mark.pure

PAGE = KERNEL_DIR / "README.md"
ROWS = {
    "square, data": {
        "rungs": {"20_a": 2.0, "20b_b": 1.0},
        "failures": {},
        "cudnn_ms": 4.0,
        "channels_last_ms": 0.5,
        "mhz": [1700.0, 1980.0],
    },
    "square, weight": {
        "rungs": {"20_a": 8.0},
        "failures": {},
        "cudnn_ms": 4.0,
        "mhz": [1800.0, 1900.0],
    },
    "rect, data": {
        "rungs": {},
        "failures": {"20_a": "no"},
        "cudnn_ms": 3.0,
        "mhz": [1800.0, 1900.0],
    },
}


def test_the_fastest_rung_is_taken_and_compared_with_both_layouts() -> None:
    frame = gradients.table(ROWS)
    assert list(frame["rung"]) == ["20b_b", "20_a", "-"]
    assert list(frame["times cuDNN"]) == ["4.00", "0.50", "-"]
    assert frame["times its better layout"][0] == "0.50"


def test_where_no_rung_is_faster_the_mean_has_cudnn() -> None:
    mean = math.exp(math.log(4.0) / 3)
    assert f"**{mean:.2f} times**" in gradients.summary(ROWS)
    assert "faster than cuDNN on 1 of 3" in gradients.summary(ROWS)


def test_a_page_gets_a_table_for_each_class(tmp_path, monkeypatch) -> None:
    counters = {"tensor cores %": "92", "TB/s": "0.15"}
    rows = {label: row | {"counters": counters} for label, row in ROWS.items()}
    kept = {
        "made": {"backward": {"tf32": "a GPU; torch 2; 2026-11-26"}},
        "rows": {"backward": {"tf32": rows, "fp32": {}}},
    }
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(kept))
    monkeypatch.setattr(gradients, "MEASURED", file)
    page = tmp_path / "page.md"
    page.write_text("<!-- gradients_backward: begin -->\n<!-- gradients_backward: end -->\n")
    gradients.main(["write", str(page)])
    text = page.read_text()
    assert "In tf32, " in text and "In fp32, " not in text
    assert "| square, data | 4 | 0.5 | 20b_b | 1 |" in text
    assert "| square, data | tf32 | 20b_b | 92 | 0.15 |" in text
    assert "SM clock 1700 to 1980 MHz; a GPU; torch 2; 2026-11-26." in text


def test_two_days_of_measurement_are_both_named() -> None:
    made = {"tf32": "a GPU; 2026-11-26", "bf16": "a GPU; 2026-11-27"}
    assert gradients.conditions(made) == "in tf32: a GPU; 2026-11-26; in bf16: a GPU; 2026-11-27"
    assert gradients.conditions({"tf32": "a GPU", "bf16": "a GPU"}) == "a GPU"


def test_the_page_has_what_the_file_says() -> None:
    kept = json.loads(gradients.MEASURED.read_text())
    for name in kept["rows"]:
        head, tail = between(PAGE, f"gradients_{name}")
        written = PAGE.read_text()[len(head) : -len(tail)].strip("\n")
        assert written == gradients.markdown(kept, name), "run the command of its docstring"


def test_each_set_has_both_gradients_of_its_layers() -> None:
    counts = {name: len(list(gradients.problems_of(name))) for name in gradients.SETS}
    assert counts == {"backward": 6, "transposed": 10, "1d": 2, "depthwise": 24, "resnet50": 46}
    asked = {each.computes for _, each in gradients.problems_of("depthwise")}
    assert asked == {"data gradient", "weight gradient"}


def test_a_gpu_is_needed_to_measure(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(gradients.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gradients.main(["measure", str(tmp_path / "rows.json")])
    assert "torch sees none" in capsys.readouterr().err
