"""The tables of kernels/README.md: parts made from headers are current; bf16 next to cuDNN."""

from __future__ import annotations

import pickle
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from convlab.core.errors import ProblemError
from convlab.core.kernel.catalog import KERNEL_DIR, catalog, parse_header
from convlab.core.kernel.kernel import load
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from convlab.core.timing.comparison import Comparison
from tests.instruments import tables, versus
from tests.instruments.pages import between

REPOSITORY = KERNEL_DIR.parent
PAGE = KERNEL_DIR / "README.md"
COMMAND = "python -m tests.instruments.tables kernels/README.md README.md --headers"
SMALL = Problem(1, 8, 9, 9, 4, 3, 3)
CUDNN = ("cudnn:bf16", "cudnn:bf16:channels_last")


# --- parts made from headers ---------------------------------------------------------------------


@pytest.mark.pure
@pytest.mark.parametrize(
    "page", [PAGE, REPOSITORY / "README.md"], ids=lambda page: page.parent.name
)
@pytest.mark.parametrize("marker", tables.HEADER_PARTS)
def test_what_is_made_from_headers_is_current(page: Path, marker: str) -> None:
    if f"<!-- {marker}: begin -->" not in page.read_text():
        assert page != PAGE or marker == "rungs", "kernels/README.md has the table of rungs"
        return
    head, tail = between(page, marker)
    written = page.read_text()[len(head) : -len(tail)].strip("\n")
    assert written == tables.HEADER_PARTS[marker](page), f"run {COMMAND}"


@pytest.mark.pure
def test_headers_are_written_where_the_markers_are(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("one\n<!-- rungs: begin -->\n<!-- rungs: end -->\ntwo\n")
    other = tmp_path / "other.md"
    other.write_text("nothing\n")
    tables.main([str(page), str(other), "--headers"])
    first, *lines, last = page.read_text().splitlines()
    assert (first, last) == ("one", "two") and other.read_text() == "nothing\n"
    firsts = [path for path in catalog() if path.stem.partition("_")[0].isdigit()]
    assert len(lines) == len(firsts) + 2
    assert lines[1].startswith("- [`01_direct`](") and lines[1].endswith(
        "01_direct.cu): Direct (fp32)"
    )
    assert (tmp_path / lines[1].partition("(")[2].partition(")")[0]).samefile(catalog()[0])


@pytest.mark.pure
@pytest.mark.parametrize("path", catalog(), ids=lambda path: path.stem)
def test_texts_of_a_header_are_short(path: Path) -> None:
    header = parse_header(path.read_text(), path)
    assert 0 < len(header.title.split()) <= 12
    for text in (header.idea, header.change):
        assert 0 < len(text.split()) < 40, f"{len(text.split())} words: {text}"


def test_the_fastest_rung_of_each_class_and_layout() -> None:
    times = {
        "01_direct": 9.0,
        "03_smem_tile": 2.0,
        "13_wgmma_3xtf32": 1.0,
        "cudnn:fp32": 4.0,
        "16_wgmma_nhwc_bf16": 3.0,
        "cudnn:bf16": 9.0,
        "cudnn:bf16:channels_last": 6.0,
    }
    rows = [
        {
            "problem": problem,
            "kernel": name,
            "correct": (name, problem) != ("13_wgmma_3xtf32", "wide"),
            "time_ms": None if (name, problem) == ("cudnn:bf16:channels_last", "wide") else time,
        }
        for problem in ("square", "wide")
        for name, time in times.items()
    ]
    table = tables.beside_cudnn(pd.DataFrame(rows)).set_index(["class", "layout"])
    assert table.loc[("fp32", "NCHW")].to_dict() == {"square": "4.00 (13)", "wide": "2.00 (03)"}
    assert table.loc[("bf16", "NHWC")].to_dict() == {"square": "2.00 (16)", "wide": "-"}
    assert set(table.loc[("tf32", "NCHW")]) == {"-"} and len(table) == 6


# --- a set in bf16 -------------------------------------------------------------------------------


def compared(times: dict[str, float], each: Problem, incorrect: tuple[str, ...] = ()) -> Comparison:
    """Return a comparison with these times in ms."""
    rows = [
        {
            "kernel": name,
            "correct": name not in incorrect,
            "time_ms": time,
            "error": 2e-3,
            "mhz": 1980.0,
            "note": "",
        }
        for name, time in times.items()
    ]
    frame = pd.DataFrame(rows).astype({"correct": object})
    return Comparison(each, frame, not incorrect, ("on a machine",), incorrect)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str]]]:
    """Pretend to be a GPU; return the names of kernels and baselines that are compared."""
    calls = []
    times = {"15_wgmma_bf16": 1.0, "torch.compile:bf16": 1.5, CUDNN[0]: 3.0, CUDNN[1]: 2.0}
    slow = {"15_wgmma_bf16": 9.0}

    def compare(kernels, each, baselines, **_):
        names = [kernel.name for kernel in kernels]
        calls.append((names, list(baselines)))
        own = times | (slow if each.groups > 1 else {})
        return compared({name: own[name] for name in (*names, *baselines)}, each)

    on_simulator = [load(path, engine="sim") for path in catalog()]
    nchw = [kernel for kernel in on_simulator if kernel.name == "15_wgmma_bf16"]
    monkeypatch.setattr(versus, "_rungs", lambda precision: nchw)
    monkeypatch.setattr(versus, "compare", compare)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return calls


def test_in_bf16_the_fastest_rung_on_nchw_is_taken(asked) -> None:
    chosen = ["wide", "kernelbench.82_depthwise"]
    result = versus.versus(chosen, classes=("bf16",), compiled=True)
    assert asked == [(["15_wgmma_bf16", "torch.compile:bf16"], list(CUDNN))] * 2
    assert list(result.frame["choice"]) == ["15_wgmma_bf16", "cudnn:bf16"]
    assert list(result.frame["ratio"]) == [3.0, 1.0]
    assert result.means("bf16") == pytest.approx(
        {"cuDNN": 3**0.5, "channels_last": (2 * 2 / 3) ** 0.5, "torch.compile": (1.5 / 2) ** 0.5}
    )
    assert result.classes == ["bf16"] and "3.00" in str(result)
    shown = tables.markdown(result)
    assert "| wide | bf16 | 15_wgmma_bf16 | 1 | 2.0e-03 | 3 | 2 | 1.5 | 3.00 |" in shown
    assert "the fastest rung of the class on NCHW" in shown


def test_an_incorrect_rung_is_not_taken() -> None:
    times = {"15_wgmma_bf16": 1.0, CUDNN[0]: 3.0, CUDNN[1]: 2.0}
    assert versus._fastest(compared(times, SMALL), "bf16") == "15_wgmma_bf16"
    assert versus._fastest(compared(times, SMALL, ("15_wgmma_bf16",)), "bf16") == CUDNN[0]
    assert versus._fastest(compared(times, SMALL, tuple(times)), "bf16") == CUDNN[0]


def test_rungs_in_bf16_are_those_on_nchw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versus, "load", lambda path, engine: load(path, engine="sim"))
    assert [kernel.name for kernel in versus._rungs("bf16")] == [
        "06b_depthwise_bf16",
        "15_wgmma_bf16",
        "15c_wgmma_rows_bf16",
        "17b_wgmma_gather_bf16",
    ]
    assert [kernel.name for kernel in versus._rungs("fp16")] == ["15b_wgmma_fp16"]


def test_each_class_is_kept_in_files_of_its_own(asked, monkeypatch, tmp_path) -> None:
    commands = []

    def run(command, timeout=None, **_):
        commands.append(command)
        result = versus.versus([command[3]], classes=("bf16",), compiled="--compiled" in command)
        Path(command[4]).write_bytes(pickle.dumps(result))

    monkeypatch.setattr(versus.subprocess, "run", run)
    (first,) = problems("kernelbench")[4:5]
    for _ in range(2):
        versus.apart([first], tmp_path, classes=("bf16",))
    (command,) = commands
    assert command[5:] == ["--class", "bf16", "--compiled"]
    assert Path(command[4]).name == "63_square_bf16.pickle"


def test_the_table_in_bf16_has_markers_of_its_own(asked, monkeypatch, tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- kernelbench_bf16: begin -->\n<!-- kernelbench_bf16: end -->\n")
    monkeypatch.setattr(tables, "problems", lambda name: problems(name)[4:5])
    monkeypatch.setattr(tables, "describe", lambda: "a GPU")
    tables.main([str(page), "--set", "kernelbench", "--class", "bf16"])
    assert "| 63_square | bf16 | 15_wgmma_bf16 |" in page.read_text()
    assert '"bf16"' in capsys.readouterr().out
    for words in (["--set", "resnet50", "--class", "bf16"], ["--set", "kernelbench"]):
        with pytest.raises(ProblemError, match="does not have the markers once"):
            tables.main([str(page), *words])
    for words in (["--class", "bf16"], ["--compiled", "x"]):
        with pytest.raises(SystemExit):
            tables.main([str(page), *words])
    with pytest.raises(SystemExit):
        tables.main([str(page), str(page), "--set", "kernelbench"])


def test_torch_compile_computes_in_the_dtype_of_its_class(monkeypatch) -> None:
    def eager(x, w, bias, stride, padding, dilation, groups, relu):
        y = F.conv2d(x, w, bias, stride, padding, dilation, groups)
        return y.relu() if relu else y

    monkeypatch.setattr(versus, "_compiler", lambda: eager)
    each = Problem(1, 4, 6, 6, 4, 3, 3, padding=1, groups=2, bias=True, relu=True)
    compiled = versus.Compiled("torch.compile:bf16", "", "bf16", "torch", torch.device("cpu"))
    x, w, bias = (
        torch.randn(shape, dtype=torch.bfloat16) for shape in (each.x_shape, each.w_shape, 4)
    )
    launch = compiled.prepare(each, x, w, bias)
    launch()
    assert launch.y.dtype == torch.bfloat16 and compiled.library
    torch.testing.assert_close(launch.y, F.conv2d(x, w, bias, 1, 1, 1, 2).relu())


@pytest.mark.gpu
def test_a_set_in_bf16_on_a_gpu() -> None:
    result = versus.versus(["N2 C64 H30 W32 K64 R3 S3 p1"], classes=("bf16",))
    assert result.ok and (result.frame["ratio"] >= 1).all()
