"""Which kernel for this problem: the rule, a measured choice, kernel="auto", a set beside cuDNN."""

import copy
import dataclasses
import json
import math
import pickle
import re
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.core.errors import CatalogError, LaunchError, ProblemError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.kernel.libraries import baseline
from convlab.core.machine import toolchain
from convlab.core.machine.gpus import LIMITS
from convlab.core.problem.named import PROBLEM_SETS, problem, problems
from convlab.core.problem.problem import Problem
from convlab.core.timing.comparison import Comparison
from convlab.nn import choice as module
from convlab.nn.choice import Auto, candidates, rule_of, ruled
from tests.instruments import tables, versus
from tests.instruments.picture import beside_cudnn

SMALL = "N=2,C=3,H=9,W=8,K=4,R=3,S=3"
DIRECT = (KERNEL_DIR / "01_direct.cu").read_text()
# What the rule takes on sm_90 and on sm_80, in fp32 and in TF32; "-" is the library.
RULE = {
    "kernelbench.50_alexnet": "14b 14  14b 14",
    "kernelbench.55_asymmetric_input": "13 12  08 -",
    "kernelbench.56_asymmetric_input_asymmetric_filter": "13 12  05 -",
    "kernelbench.62_asymmetric_filter": "13 12  05 -",
    "kernelbench.63_square": "13 11b  08 -",
    "kernelbench.80_dilated_padded": "13 12  05 -",
    "kernelbench.82_depthwise": "06 06  06 06",
    "kernelbench.83_depthwise_asymmetric_filter": "06 06  06 06",
    "kernelbench.84_depthwise_asymmetric_input": "06 06  06 06",
    "kernelbench.85_depthwise_asymmetric_input_asymmetric_filter": "06 06  06 06",
    "kernelbench.86_separable_depthwise": "06 06  06 06",
    "kernelbench.86_separable_pointwise": "09 -  05 -",
    "kernelbench.87_pointwise": "09 -  05 -",
    "resnet50.conv1": "14b 14  14b 14",
    "resnet50.layer1.0.conv2": "13 17  08 -",
    "resnet50.layer1.1.conv1": "09 -  05 -",
    "resnet50.layer4.0.conv3": "05 -  05 -",
    "resnet50.layer2.0.downsample": "09 17  05 -",
    "resnet50.layer4.0.downsample": "09 -  05 -",
    "resnet50.layer4.1.conv2": "08 17  08 -",
    "resnet50.layer2.0.conv3": "09 17  05 -",
    "resnet50.layer2.1.conv1": "09 -  05 -",
    # a few channels in a group; more of them; little to do; a filter that 05 declines
    "N32 C128 H28 W28 K128 R3 S3 p1 g32": "07 07  07 07",
    "N32 C128 H28 W28 K128 R3 S3 p1 g2": "- -  - -",
    "N1 C64 H14 W14 K64 R3 S3 p1": "- -  - -",
    "N32 C32 H128 W128 K64 R1 S40": "13 12  - -",
}


@pytest.mark.parametrize("name", RULE)
def test_the_rule(name):
    told = []
    for sm in (90, 80):
        for precision in ("fp32", "tf32"):
            kernels = candidates(precision, "sim")
            taken = ruled(kernels, problem(name), precision, (sm, LIMITS[sm].shared_optin_bytes))
            told.append(taken.name.partition("_")[0] if taken else "-")
    assert told == RULE[name].split()


@pytest.mark.parametrize("sm", [75, 80, 86, 90, 100])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_what_the_rule_takes_can_do_it_in_the_class(sm, precision):
    kernels = candidates(precision, "sim")
    target = (sm, LIMITS[sm].shared_optin_bytes)
    for each in (each for name in PROBLEM_SETS for each in problems(name)):
        taken = ruled(kernels, each, precision, target)
        if taken is not None:
            assert taken.header.unsupported(each, *target) is None
            assert taken.precision == "fp32" or precision == "tf32"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of one's own kernels where one works; and a cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(toolchain.CACHE, str(tmp_path / "cache"))
    (tmp_path / "kernels").mkdir()
    return tmp_path / "kernels"


def write(path, best: str = "everything", more: str = "") -> None:
    path.write_text(DIRECT.replace("// precision:", f"// best: {best}\n{more}// precision:"))


@pytest.fixture
def gpu(monkeypatch):
    """A pretended H200, with nvcc: what is taken is the simulator's kernel, the library the CPU's."""
    monkeypatch.setattr(module, "engine_name", lambda engine: "cuda")
    monkeypatch.setattr(module, "candidates", lambda precision, _: candidates(precision, "sim"))
    monkeypatch.setattr(module, "baseline", lambda name: baseline("torch:cpu"))
    monkeypatch.setattr(module, "describe", lambda: "a GPU")
    monkeypatch.setattr(toolchain, "cuda", lambda: "there")


def test_ones_own_kernel_takes_part_by_a_line_in_its_header(own, gpu):
    assert convlab.best("square").name == "13_wgmma_3xtf32"
    write(own / "20_mine.cu", "C == 16, tf32 == 0")
    assert convlab.best("square").path == own / "20_mine.cu"
    assert convlab.best("square", "tf32").name == "11b_wgmma_rows"
    assert convlab.best("wide").name == "13_wgmma_3xtf32"
    write(own / "20_mine.cu", "C = 16")
    with pytest.warns(UserWarning, match=r"20_mine is left out: .*20_mine.cu:7: best: .*'=' is"):
        assert convlab.best("square").name == "13_wgmma_3xtf32"


@pytest.mark.parametrize(
    "line, message",
    [
        ("// best: tf32", "'tf32' is not a comparison"),
        ("// best: Z == 3", "'Z' is not allowed"),
        ("// supports: tf32 == 1", "'tf32' is not defined"),
    ],
)
def test_a_line_that_cannot_be_read(line, message):
    with pytest.raises(CatalogError, match=message):
        convlab.core.kernel.catalog.parse_header(line, "k.cu")


def test_the_library_where_it_is_faster_and_where_there_is_no_other(gpu, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convlab.best("resnet50.layer1.0.conv1", "tf32").name == "torch:cpu"
    monkeypatch.setattr(module, "candidates", lambda *_: [])
    with pytest.warns(UserWarning, match="no kernel for square: .* is torch's convolution"):
        assert convlab.best("square").library
    monkeypatch.setattr(toolchain, "cuda", lambda: None)
    with pytest.warns(UserWarning, match="there is no nvcc"):
        assert convlab.best("square", measured=True).library


@pytest.mark.parametrize(
    ("name", "precision", "gpu", "choice"),
    [
        ("square", "fp32", "H200", "13_wgmma_3xtf32"),
        ("square", "tf32", "H200", "11b_wgmma_rows"),
        # fewer channels of output than a block of 11b has
        ("N16 C16 H1024 W1024 K64 R3 S3", "tf32", "H200", "11_wgmma_tf32"),
        ("square", "fp32", "A100", "08_winograd"),
        ("resnet50.layer1.0.conv1", "tf32", "H200", "cudnn:tf32"),
    ],
)
def test_without_a_gpu_the_rule_answers_for_a_gpu_by_name(name, precision, gpu, choice):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = convlab.best(name, precision, gpu=gpu)
    assert found.name == choice
    x, w = torch.randn(1, 16, 12, 12), torch.randn(64, 16, 3, 3)
    if choice.startswith("cudnn") and not torch.cuda.is_available():
        assert torch.allclose(found(x, w), F.conv2d(x, w), atol=1e-2)
    with pytest.raises(ProblemError, match="leave out gpu="):
        convlab.best(name, gpu=gpu, measured=True)
    with pytest.raises(ProblemError, match="H20O"):
        convlab.best(name, gpu="H20O")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_warning_names_the_argument():
    with pytest.warns(UserWarning, match=r'there is no GPU: .* gpu="H200" gives the choice'):
        convlab.best("square")


def test_choices_for_a_gpu_by_name():
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 128, 3))
    x = torch.randn(16, 16, 64, 64)
    found = convlab.nn.choices(model, x, kernel="auto:tf32", gpu="H200")
    assert [taken.name for *_, taken in found] == ["11_wgmma_tf32"]
    note = str(found).partition("by the rule for H200:\n")[2]
    assert note.startswith("11_wgmma_tf32: its header says `best: ")
    assert found[0][2].header.best[0] in note
    small = convlab.nn.choices(model, x[:1, :, :8, :8], kernel="auto:tf32", gpu="H200")
    taken = small[0][2]
    assert taken.name == "cudnn:tf32" and rule_of(taken) in " ".join(str(small).split())


def test_on_the_simulator():
    assert convlab.best("square", engine="sim").name == "03_smem_tile"
    assert convlab.best("awkward.dilation_118", engine="sim").name == "01_direct"
    for arguments, message in (
        ({"precision": "fp16"}, "no precision class 'fp16': choose from fp32, tf32"),
        ({"measured": True}, "leave it out"),
        ({"measured": "yes"}, "measured must be True or False"),
        ({"engine": "gpu"}, "no engine 'gpu'"),
        ({"problem": "kernelbench"}, "no problem is named 'kernelbench'"),
    ):
        with pytest.raises(ProblemError, match=message):
            convlab.best(**{"problem": "square", "engine": "sim"} | arguments)


# --- a measured choice ---------------------------------------------------------------------------


def compared(times: dict, each: Problem, wrong=()) -> Comparison:
    rows = [
        {
            "kernel": name,
            "title": name,
            "class": "fp32",
            "engine": "cuda",
            "correct": name not in wrong,
            "time_ms": time,
            "error": 3e-7,
            "mhz": 1980.0,
            "x_floor": 2.0,
            "note": "wrong: so it is" if name in wrong else "",
        }
        for name, time in times.items()
    ]
    frame = pd.DataFrame(rows).astype({"correct": object})
    return Comparison(each, frame, not wrong, ("on a machine",), tuple(wrong))


@pytest.fixture
def times(own, gpu, monkeypatch):
    """What a pretended comparison finds, milliseconds by name, and how often it was asked."""
    known = {"torch:cpu": 3.0, "asked": 0, "wrong": ()}

    def compare(kernels, each, **_):
        known["asked"] += 1
        names = [kernel.name for kernel in kernels] + ["torch:cpu"]
        return compared({name: known.get(name, 9.0) for name in names}, each, known["wrong"])

    monkeypatch.setattr(module, "compare", compare)
    write(own / "20_mine.cu", "C == 99")
    return known


def test_a_measured_choice_is_remembered_until_a_kernel_is_edited(times, own):
    assert convlab.best(SMALL).name == "torch:cpu" and times["asked"] == 0  # by the rule
    times["20_mine"] = 1.0
    assert convlab.best(SMALL, measured=True).name == "20_mine"
    assert convlab.best(SMALL, measured=True).name == "20_mine" and times["asked"] == 1
    assert convlab.best(SMALL).name == "20_mine"  # before the rule
    assert convlab.best(SMALL.replace("K=4", "K=5")).name == "torch:cpu"
    times["20_mine"] = 5.0
    write(own / "20_mine.cu", "C == 99", more='// an edit\n#include "mine.cuh"\n')
    assert convlab.best(SMALL).name == "torch:cpu" and times["asked"] == 1
    assert convlab.best(SMALL, measured=True).name == "torch:cpu" and times["asked"] == 2
    (own / "mine.cuh").write_text("// another header")
    times["08_winograd"] = 0.5
    assert convlab.best(SMALL, measured=True).name == "08_winograd" and times["asked"] == 3
    (record,) = [
        path
        for path in toolchain.cache_dir().glob("best/*")
        if json.loads(path.read_text())["choice"] == "08_winograd"
    ]
    for damaged in ("", "{}", '{"choice": "gone"}', '{"choice": [1]}', "[]"):
        record.write_text(damaged)
        assert convlab.best(SMALL).name == "torch:cpu"
    assert convlab.best(SMALL, measured=True).name == "08_winograd" and times["asked"] == 4
    convlab.core.builds.cache.clear()
    assert convlab.best(SMALL).name == "torch:cpu"


def test_a_wrong_kernel_is_not_chosen(times):
    times |= {"20_mine": 1.0, "wrong": ("20_mine",)}
    with pytest.warns(UserWarning, match="20_mine is left out: wrong: so it is"):
        assert convlab.best(SMALL, measured=True).name == "torch:cpu"
    times["wrong"] = (
        "20_mine",
        "torch:cpu",
        "05_async_gemm",
        "07_small_groups",
        "08_winograd",
        "13_wgmma_3xtf32",
        "14b_stem_3xtf32",
    )
    with pytest.warns(), pytest.raises(LaunchError, match="nothing ran on N2 C3 .*20_mine"):
        convlab.best(SMALL.replace("K=4", "K=5"), measured=True)


def test_laying_out_the_filter_counts():
    found = compared({"a": 1.0, "b": 2.0}, problem(SMALL))
    assert module.fastest(found) == "a"
    found.frame["with_prepare_ms"] = [3.0, math.nan]
    assert module.fastest(found) == "b"


# --- kernel="auto" -------------------------------------------------------------------------------


@pytest.fixture
def cudnns_precision():
    """Sets torch's, which `allow_tf32`, the older way, sets too; it is no attribute to patch."""
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    yield lambda precision: setattr(conv, "fp32_precision", precision)
    conv.fp32_precision = before


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_auto_is_a_convolution_with_gradients(device, cudnns_precision):
    cudnns_precision("ieee")
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding="same"),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.Conv2d(8, 4, 1, stride=2, padding_mode="circular", padding=1),
    ).to(device)
    ours = convlab.nn.replace(copy.deepcopy(theirs), "auto")
    assert "kernel=auto" in repr(ours)
    x = torch.randn(2, 3, 9, 8, device=device)
    for model in (
        ours,
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.compile(ours, backend="aot_eager"),
    ):
        seen = []
        for each in (model, theirs):
            given = x.clone().requires_grad_()
            y = each(given)
            y.square().sum().backward()
            seen.append([y, given.grad, *(p.grad for p in each.parameters())])
            each.zero_grad()
        torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)
    assert ours(x[0]).shape == theirs(x[0]).shape and ours(x[:0]).shape[0] == 0
    with pytest.raises(ProblemError, match="x is float64, but convlab's kernels"):
        ours.double()(x.double())


def test_what_auto_takes_is_told():
    model = torch.nn.Sequential(torch.nn.Conv2d(5, 7, 3, padding=1))
    x = torch.ones(1, 5, 6, 9)
    told = convlab.nn.choices(model, x, kernel="auto:fp32")
    assert re.search(r"kernel\n-+\n0 +N1 C5 .* 03_smem_tile\nno GPU is used: on the sim", str(told))
    ((name, posed, kernel),) = told
    assert (name, kernel.name, posed.x_shape) == ("0", "03_smem_tile", (1, 5, 6, 9))
    assert "kernel=auto:fp32)" in repr(convlab.nn.replace(model, "auto:fp32"))
    with pytest.raises(CatalogError, match="no kernel is named 'auto:fp23'"):
        convlab.nn.replace(model, "auto:fp23")
    with pytest.raises(ProblemError, match="did you mean auto:fp32"):
        convlab.nn.choices(model, x, kernel="auto:fp23")


def test_auto_takes_torchs_class_and_each_shape_its_own(gpu, cudnns_precision):
    auto = Auto("sim")
    wide = problem("wide")
    deep = problem("kernelbench.82_depthwise")
    cudnns_precision("tf32")
    assert auto.choice(wide).name == "12_wgmma_vector_reads"
    assert auto.choice(wide) is auto.choice(wide) and auto.choice(deep).name == "06_depthwise"
    cudnns_precision("ieee")
    assert auto.choice(wide).name == "13_wgmma_3xtf32"


def test_auto_follows_the_files(times, own, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    auto = Auto("sim")
    assert auto.choice(problem(SMALL)).name == "torch:cpu"
    write(own / "20_mine.cu")
    assert auto.choice(problem(SMALL)).name == "20_mine"
    write(own / "30_more.cu")
    assert auto.choice(problem(SMALL)).name == "30_more"
    times["20_mine"] = 1.0
    for precision in ("fp32", "tf32"):
        convlab.best(SMALL, precision, measured=True)
    assert auto.choice(problem(SMALL)).name == "20_mine"


def test_auto_looks_at_the_files_ten_times_a_second(own, gpu, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(module, "time", clock)
    auto = Auto("sim")
    assert auto.choice(problem(SMALL)).name == "torch:cpu"
    write(own / "20_mine.cu")
    clock.monotonic = lambda: 100.09
    assert auto.choice(problem(SMALL)).name == "torch:cpu"
    clock.monotonic = lambda: 100.11
    assert auto.choice(problem(SMALL)).name == "20_mine"


# --- a set beside cuDNN --------------------------------------------------------------------------


@pytest.fixture
def found():
    """Two problems: on the second, cuDNN is taken in TF32."""
    cudnn = {
        "cudnn:fp32": 8.0,
        "cudnn:fp32:channels_last": 4.0,
        "cudnn:tf32": 2.0,
        "cudnn:tf32:channels_last": 1.0,
    }
    first, second = problems("kernelbench")[7:9]
    return versus.Versus(
        (compared({"06_depthwise": 0.5} | cudnn, first), compared({"05": 4.0} | cudnn, second)),
        ({"fp32": "06_depthwise", "tf32": "06_depthwise"}, {"fp32": "05", "tf32": "cudnn:tf32"}),
    )


def test_ratios_and_their_geometric_means(found):
    rows = found.frame.set_index(["problem", "class"]).ratio
    assert list(rows) == [16, 4, 2, 1] and "compiled_ms" not in found.frame
    assert found.means("tf32") == pytest.approx({"cuDNN": 2, "channels_last": 1})
    assert found.means("fp32") == pytest.approx({"cuDNN": 32**0.5, "channels_last": 8**0.5})
    assert found.sentence.endswith("in the geometric mean: 2.00 in tf32, 5.66 in fp32")
    assert found.summary[0].endswith("smallest to cuDNN: 1.00, 84_depthwise_asymmetric_input")
    assert found.notes == ("on a machine", "SM clock 1980 to 1980 MHz")
    text = str(found)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert max(map(len, text.split("\n"))) <= 100 and str(pickle.loads(pickle.dumps(found))) == text
    assert document["geometric_means"]["tf32"]["cuDNN"] == pytest.approx(2)
    shown = tables.markdown(found)
    assert "_input | tf32 | cudnn:tf32 | 2 | 3.0e-07 | 2 | 1 | 1.00 |" in shown
    assert "SM clock 1980" in shown
    panels = beside_cudnn(pd.DataFrame(document["rows"]), []).axes
    assert [[bar.get_width() for bar in axes.patches] for axes in panels] == [[4, 1], [16, 2]]
    assert panels[0].get_title() == "results in tf32"


def test_a_wrong_choice_has_no_ratio():
    names = [f"cudnn:{c}{layout}" for c in module.CLASSES for layout in ("", ":channels_last")]
    cudnn = dict.fromkeys(names, 2.0)
    result = compared({"05": 1.0} | cudnn, problem(SMALL), wrong=("05",))
    found = versus.Versus((result,), ({"fp32": "05", "tf32": "cudnn:tf32"},))
    assert not found.ok and math.isnan(found.means("fp32")["cuDNN"])
    assert "05: wrong: so it is" in str(found) and "-" in found.tables[0].cells["ratio"]
    assert "incorrect" in [
        text.get_text().strip() for text in beside_cudnn(found.frame, []).axes[-1].texts
    ]


def test_it_is_asked_of_the_rule(gpu, monkeypatch):
    """Each kernel once, both classes of cuDNN in both layouts, torch.compile where asked for."""
    asked = []

    def compare(kernels, each, baselines, **_):
        names = [getattr(k, "name", None) or versus.COMPILED["tf32"] for k in kernels]
        asked.append(names)
        return compared(dict.fromkeys([*names, *baselines], 1.0), each)

    monkeypatch.setattr(versus, "compare", compare)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = versus.versus(["wide", "kernelbench.82_depthwise"], compiled=True)
    assert asked == [
        ["13_wgmma_3xtf32", "12_wgmma_vector_reads", versus.COMPILED["tf32"]],
        ["06_depthwise", versus.COMPILED["tf32"]],
    ]
    assert found.means("tf32") == dict.fromkeys(["cuDNN", "channels_last", "torch.compile"], 1)
    assert "torch.compile" not in found.means("fp32")


def test_each_problem_is_compiled_apart_and_kept(found, monkeypatch, tmp_path):
    """One that torch.compile tunes for too long is timed without it."""
    asked = []

    def run(command, timeout=None, **_):
        *_, name, file = [word for word in command if word != "--compiled"]
        asked.append((name, timeout is not None, "--compiled" in command))
        if "84" in name and timeout:
            raise subprocess.TimeoutExpired(command, timeout)
        i = [each.problem.name for each in found.results].index(name)
        result = found.results[i]
        if timeout:
            rows = [
                *result.frame.to_dict("records"),
                {"kernel": versus.COMPILED["tf32"], "time_ms": 3.0},
            ]
            result = dataclasses.replace(result, frame=pd.DataFrame(rows))
        one = versus.Versus((result,), (found.choices[i],))
        Path(file).write_bytes(pickle.dumps(one))

    monkeypatch.setattr(versus.subprocess, "run", run)
    chosen = [each.problem for each in found.results]
    for _ in range(2):  # the second time nothing is asked
        both = versus.apart(chosen, tmp_path / "kept")
    first, second = (each.name for each in chosen)
    assert asked == [(first, True, True), (second, True, True), (second, False, False)]
    assert both.means("tf32") == pytest.approx(found.means("tf32") | {"torch.compile": 6})
    assert "6.00 to torch.compile on the 1 that it was timed on" in both.summary[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_set_is_timed_without_a_gpu():
    with pytest.raises(LaunchError, match="traffic on the simulator: python -m convlab"):
        versus.versus(["square"])


# --- on a GPU ------------------------------------------------------------------------------------

ON_GPU = ("N2 C64 H30 W32 K64 R3 S3 p1", "N2 C32 H30 W32 K32 R3 S3 p1 g32", "N2 C8 H9 W9 K4 R1 S1")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("spec", ON_GPU)
def test_measured_on_a_gpu(spec, precision, tmp_path, monkeypatch):
    monkeypatch.setenv(toolchain.CACHE, str(tmp_path))
    chosen = convlab.best(spec, precision, measured=True)
    monkeypatch.setattr(module, "compare", None)  # not asked again
    assert convlab.best(spec, precision, measured=True).name == chosen.name
    assert convlab.check(chosen, spec).ok
    (record,) = tmp_path.glob("best/*.json")
    assert json.loads(record.read_text())["choice"] == chosen.name


@pytest.mark.gpu
def test_a_set_on_a_gpu():
    found = versus.versus(ON_GPU)
    assert found.ok and (found.frame.ratio > 0).all() and len(found.frame) == 6
    x = torch.randn(2, 8, 9, 9, device="cuda")
    w = torch.randn(4, 8, 3, 3, device="cuda")
    y = versus.max_autotune(x, w, None, (1, 1), (0, 0), (1, 1), 1)
    torch.testing.assert_close(y, F.conv2d(x, w), rtol=1e-2, atol=1e-2)
