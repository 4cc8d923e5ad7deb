"""Costs, floors, comparisons and figures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import random
import re
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch

from convlab.core.correctness import reference
from convlab.core.correctness.check import check
from convlab.core.correctness.report import traffic_bytes
from convlab.core.errors import BuildError, ConvlabError, LaunchError
from convlab.core.kernel.data import inputs
from convlab.core.machine import device, gpus
from convlab.core.machine.device import Ceilings, floor_seconds
from convlab.core.machine.gpus import Datasheet
from convlab.core.problem.format import parse_format
from convlab.core.problem.problem import Problem
from convlab.core.show import charts
from convlab.core.timing import compare as comparing
from convlab.core.timing import measure, sides, stopwatch
from convlab.core.timing.ab_result import BELOW_WORDS
from convlab.core.timing.compare import compare
from convlab.core.timing.comparison import Comparison
from tests.fake_gpu import Spin, chip_instead_of_a_gpu
from tests.fakes import PLAIN, CountingEngine, Fake, FakeLaunch, shifted, tf32, zeros

pytestmark = pytest.mark.pure

ABOUT = ["kernel", "title", "class", "engine", "correct", "error", "bound"]
SIM_COLUMNS = [
    *ABOUT,
    "traffic_mb",
    "floor_mb",
    "x_floor",
    "shared_wavefronts",
    "host_seconds",
    "note",
]
H200 = Ceilings(4.26e12, fp32_flops=51e12, tf32_flops=366e12, bf16_flops=708e12)
SQUARE = Problem(N=16, C=16, H=1024, W=1024, K=128, R=3, S=3, name="square")


def crashes(launch, y):
    raise LaunchError("out of shared memory: ask for less")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    kernels = [
        Fake(name="01_direct"),
        Fake(shifted, name="02_shifted"),
        Fake(tf32, name="03_tf32", precision="tf32"),
        Fake(crashes, name="04_crashes"),
    ]
    return compare(kernels, PLAIN, progress=False)


# The arithmetic of the floor -----------------------------------------------------------------


def test_floor_of_square_on_an_h200():
    # FACTS: 12.1 ms where fp32 FFMA limits, 2.26 ms where memory does
    assert floor_seconds(SQUARE, "fp32", H200) * 1e3 == pytest.approx(12.1, rel=0.01)
    assert floor_seconds(SQUARE, "tf32", H200) * 1e3 == pytest.approx(2.26, rel=0.01)
    halves = parse_format("x bf16, w bf16, y bf16")  # half of the bytes of TF32's
    assert floor_seconds(SQUARE, "bf16", H200, halves) * 1e3 == pytest.approx(1.13, rel=0.01)
    with pytest.raises(ValueError, match="fp8"):
        floor_seconds(SQUARE, "fp8", H200)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("Tesla T4", 320),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA L4", 300),
        ("NVIDIA GeForce RTX 4090", 1008),
        ("NVIDIA GeForce RTX 5090", 1792),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H200", 4800),
        ("NVIDIA L40S", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 5090 D", None),
        ("NVIDIA T400", None),
    ],
)
def test_datasheet_by_name(name, gb_per_s):
    sheet = gpus.datasheet(name)
    assert sheet is None if gb_per_s is None else sheet.memory_gb_per_s == gb_per_s
    assert sheet is None or isinstance(sheet, Datasheet)


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.describe() is None and device.describe("cuda:0") is None
    assert device.available_bytes() > 1 << 20
    with pytest.raises(LaunchError, match="doctor"):
        device.ceilings()


# Measuring -----------------------------------------------------------------------------------


def test_simulated_cost_has_no_gpu_time():
    report = check(Fake(), PLAIN)
    assert report.traffic_bytes == 4 * PLAIN.macs + 4 * math.prod(PLAIN.y_shape)
    assert report.counters["shared_wavefronts"] == 7 and report.counters["seconds"] == 0.01
    assert compare(Fake(), PLAIN).frame["host_seconds"][0] == 0.01
    with pytest.raises(ConvlabError, match="nothing is timed on cpu"):
        measure.measure(Fake(), PLAIN)


def test_library_calls_count_as_traffic():
    counters = {"global_load_bytes": 64, "global_store_bytes": 32, "shared_wavefronts": 0}
    assert traffic_bytes(counters) == 96
    assert traffic_bytes(counters | {"library_bytes": 4}) == 100
    assert traffic_bytes(None) is None


def test_summary_is_median_and_spread():
    samples = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0, 1.01, 9.0]
    timing = measure.summary(samples)
    assert timing.seconds == 1.0 and timing.spread < 0.05 and timing.samples == 10
    assert not timing.stable
    assert measure.summary([2.0] * 10).stable
    assert not measure.summary([2.0] * 9).stable
    assert measure.summary([3.0]).seconds == 3.0


def test_rounds_interleave_and_end(monkeypatch):
    calls = []

    def sample(self, launch, count):
        calls.append(self.kernel.name)
        return [{"01_quick": 1e-3, "02_slow": 4.0}[self.kernel.name]] * count

    clock = iter(range(10_000))  # each look at the clock is a second later
    kernels = [Fake(name=name, device=torch.device("cuda")) for name in ("01_quick", "02_slow")]
    data = [inputs(PLAIN, 0, "cpu")] * 2
    seen = []
    for where, name, value in (
        (stopwatch.Single, "_sample", sample),
        (stopwatch, "flush_buffer", lambda device: None),
        (stopwatch, "observe", MagicMock()),
        (stopwatch.time, "perf_counter", lambda: next(clock)),
        (torch.cuda, "device", lambda device: contextlib.nullcontext()),
        # As on a machine without a GPU.
        (torch.cuda, "get_device_properties", MagicMock(side_effect=AttributeError)),
        (measure, "shared_inputs", lambda *_: data),
        (reference, "make_room", lambda *_: None),
    ):
        monkeypatch.setattr(where, name, value)
    quick, slow = measure.measure_all(kernels, PLAIN, limit_seconds=9.0, progress=seen.append)
    assert quick.seconds == 1e-3 and quick.stable and quick.samples >= 10
    assert slow.seconds == 4.0 and not slow.stable and slow.samples < 10
    assert set(seen) == {"01_quick", "02_slow"}
    last = len(calls) - 1 - calls[::-1].index("02_slow")
    assert "01_quick" in calls[calls.index("02_slow") : last]


@pytest.fixture
def chip(monkeypatch):
    """A GPU that is a clock, for `measure_all`; returns what makes a kernel of a known time."""
    chip = chip_instead_of_a_gpu(monkeypatch)
    flush = SimpleNamespace(zero_=lambda: chip.work("flush", 40e-6))
    monkeypatch.setattr(stopwatch, "flush_buffer", lambda device: flush)
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: chip.now / 1e12)
    clock = SimpleNamespace(note=lambda: None, take=list)
    monkeypatch.setattr(measure, "Clock", lambda device: clock)
    monkeypatch.setattr(measure, "prepare_seconds", lambda *_: math.nan)

    def spin(name, seconds):
        spin = Spin(chip, name, seconds)
        # Its clock is the chip's; torch computes on the CPU.
        spin.device = SimpleNamespace(type="cuda", index=0)
        return spin

    monkeypatch.setattr(reference, "make_room", lambda *_: None)
    monkeypatch.setattr(
        measure, "shared_inputs", lambda kernels, *_: [inputs(PLAIN, 0, "cpu")] * len(kernels)
    )
    chip.spin = spin
    return chip


def launches(chip, name):
    """Count the launches of a kernel; each of its turns has a number in the log."""
    return sum(re.fullmatch(rf"{name}\d+", entry) is not None for entry in chip.log)


def test_a_row_stops_once_its_place_is_certain(chip):
    """A kernel of 416 ms takes three samples; two that are close go on."""
    order = []
    kernels = [
        chip.spin("slow", 0.416),
        chip.spin("fast", 2e-3),
        chip.spin("near", 20e-3),
        chip.spin("nearer", 20.1e-3),
    ]
    timings = measure.measure_all(
        kernels,
        PLAIN,
        place_only=True,
        finished=lambda index, timing: order.append(kernels[index].name),
    )
    slow, fast, near, nearer = timings
    assert slow.samples == 3 and slow.stable and slow.seconds == pytest.approx(0.416, rel=0.01)
    # Two launches warm it up.
    assert launches(chip, "slow") == 5 and slow.spent_seconds < 2.2
    assert fast.samples >= 10 and near.samples >= 10 and nearer.samples >= 10
    assert sorted(order) == ["fast", "near", "nearer", "slow"] and order[0] == "fast"


def test_without_neighbours_a_row_is_measured_to_its_target(chip):
    (slow,) = measure.measure_all([chip.spin("slow", 0.2)], PLAIN, place_only=True)
    assert slow.samples >= 10 and slow.stable
    first, second = measure.measure_all([chip.spin("a", 0.2), chip.spin("b", 0.4)], PLAIN)
    assert first.samples >= 10 and second.samples > 3


def test_a_row_of_a_table_needs_its_mean_to_one_percent():
    """Rows of equal times would otherwise be timed until their limit."""
    noisy = measure._Sampling(None, 1.0, print, samples=[1.0, 1.06] * 8)
    assert noisy.is_vague and noisy.is_known
    noisy.samples = [1.0, 1.2] * 8
    assert noisy.is_vague and not noisy.is_known


def test_rows_below_the_floor_share_one_line():
    result = compare([Fake(name="01_a"), Fake(name="02_b"), Fake(name="03_c")], PLAIN)
    notes = [BELOW_WORDS, f"unusual; {BELOW_WORDS}", "unusual"]
    lines = dataclasses.replace(result, frame=result.frame.assign(note=notes)).details
    assert [line.split(":")[0].strip() for line in lines] == ["02_b", "03_c", "01_a, 02_b"]
    assert lines[0].endswith(": unusual") and lines[2].endswith(BELOW_WORDS)


def test_intervals_are_wider_than_the_samples():
    assert measure.interval([1.0, 1.0, 1.0]) == pytest.approx((0.99, 1.01))
    assert measure.interval([1.0, 1.1, 1.2]) == pytest.approx((0.8, 1.4))


def test_rounds_are_in_random_order_and_leave_out_the_unwanted():
    orders = set()
    calls = []
    turns = [lambda i=i: calls.append(i) or [float(i)] for i in range(3)]
    going = stopwatch.rounds(turns, random.Random(0), lambda i: i != 1)
    for taken in itertools.islice(going, 20):
        assert taken == [[0.0], [], [2.0]]
        orders.add(tuple(calls))
        calls.clear()
    assert orders == {(0, 2), (2, 0)}


class Prepared(FakeLaunch):
    """Lays its filter out."""

    plan = torch.zeros(4, dtype=torch.uint8)


def test_the_preparation_of_a_filter_is_timed_by_itself(monkeypatch):
    monkeypatch.setattr(stopwatch, "lone_seconds", lambda work, kernel: 2e-3)
    assert math.isnan(measure.prepare_seconds(Fake(), PLAIN, inputs(PLAIN, 0, "cpu")))
    kernel = Fake()
    kernel.prepare = lambda *tensors: Prepared(kernel, tensors[0], tensors[1:], zeros)
    assert measure.prepare_seconds(kernel, PLAIN, inputs(PLAIN, 0, "cpu")) == 2e-3


# Comparing -----------------------------------------------------------------------------------


def test_a_comparison_has_a_row_for_each_kernel(comparison):
    frame = comparison.frame
    assert list(frame.columns) == SIM_COLUMNS
    assert list(frame.correct) == [True, False, True, False]
    assert list(frame["class"]) == ["fp32", "fp32", "tf32", "fp32"]
    assert frame.x_floor[0] == pytest.approx(frame.traffic_mb[0] / frame.floor_mb[0])
    assert math.isnan(frame.traffic_mb[3]) and "shared memory" in frame.note[3]
    assert not comparison.ok and len(comparison.failures) == 2
    data = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert data["rows"][0]["kernel"] == "01_direct" and data["rows"][3]["traffic_mb"] is None
    assert data["problem"]["N"] == 2 and data["ok"] is False


def test_a_comparison_is_told_and_drawn(comparison, tmp_path):
    text = str(comparison)
    page = comparison._repr_html_()
    assert max(map(len, text.split("\n2")[0].split("\n"))) <= 100, text
    assert "INCORRECT" in text and "FAILED" in text
    assert "least traffic (bytes to and from global memory, not a time): 01_direct" in " ".join(
        text.split()
    )
    assert "no GPU time is measured" in comparison.text(verbose=True)
    assert "ms" not in text.split("\n")[1] and "<table" in page and "INCORRECT" in page
    figure = comparison.plot(tmp_path / "deep" / "compare.png")
    assert (tmp_path / "deep" / "compare.png").stat().st_size > 10_000
    assert figure._repr_png_()[:4] == b"\x89PNG"
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == list(comparison.frame.title)


def test_the_cost_is_a_column_with_a_label(comparison):
    assert (comparison.cost, comparison.engine) == ("traffic_mb", "sim")
    assert comparison.cost in comparison.frame
    assert comparison.plot().axes[1].get_xlabel().startswith(comparison.cost_label)
    moved = comparison.reports[0].traffic_bytes
    assert moved == comparison.frame.traffic_mb[0] * 1e6 > 0


def test_what_counts_nothing_has_no_cost():
    baseline = compare("torch:cpu", PLAIN, progress=False)
    assert baseline.ok and baseline.engine == "torch" and baseline.reports[0].traffic_bytes is None
    assert baseline.frame["traffic_mb"].isna().all()


def test_all_right_is_ok_and_there_is_no_bar_without_a_terminal(capfd):
    assert compare([Fake(name="01_a"), Fake(name="02_b")], PLAIN, progress=True).ok
    assert compare(Fake(), PLAIN).ok and capfd.readouterr() == ("", "")


def test_a_declined_problem_is_no_mistake():
    pointwise = Problem(N=1, C=1, H=4, W=4, K=1, R=1, S=1)
    result = compare([Fake()], pointwise, progress=False)
    assert result.frame.correct[0] is None and not result.ok and "unsupported" in str(result)
    both = compare([Fake()], [pointwise, PLAIN], progress=False)
    assert result.nothing_ran and both.ok and not both.nothing_ran
    assert result.frame.note[0].startswith("unsupported: ")
    assert "use " not in result.frame.note[0]  # the rows beside it tell which can
    assert max(map(len, str(result).splitlines())) <= 100


def named_alike():
    other = Fake(shifted, name="01_a")
    other.source = "another"
    other.path = "elsewhere/01_a.cu"
    return other


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (named_alike(), r"both named 01_a: kernels/01_a\.cu and elsewhere/01_a\.cu.*rename one of"),
        (
            Fake(name="02_b", device=torch.device("meta")),
            "different devices.*02_b on meta.*one eng",
        ),
    ],
    ids=["name", "device"],
)
def test_what_cannot_be_compared_is_refused(other, message):
    mine = Fake(name="01_a")
    with pytest.raises(ConvlabError, match=message):
        compare([mine, other], PLAIN, progress=False)
    assert len(compare([mine, mine, Fake(name="01_a")], PLAIN, progress=False).frame) == 1


def test_a_kernel_that_does_not_build_is_a_row():
    def build():
        raise BuildError("kernels/05_typo.cu:7: expected ';'\n  int x\n       ^")

    broken = Fake(name="05_typo")
    broken.build = build
    result = compare([Fake(), broken], PLAIN, progress=False)
    assert list(result.frame.correct) == [True, False] and not result.ok
    assert "expected ';'\n  int x" in result.failures[0] and "FAILED" in str(result)
    only = compare(broken, PLAIN, progress=False)
    assert not only.ok and str(only) and only.plot()


def test_kernels_are_built_side_by_side(monkeypatch):
    kernels = [Fake(name=name) for name in ("01_a", "02_b", "03_typo")]
    met = threading.Barrier(2, timeout=20)  # broken, hence an error, if one builds after the other
    first = {kernel.name: True for kernel in kernels}  # the check asks for the build again

    def meet(name):
        if first.pop(name, False):
            met.wait()

    def fail():
        raise BuildError("expected ';'")

    for kernel in kernels[:2]:
        kernel.build = functools.partial(meet, kernel.name)
    kernels[2].build = fail
    monkeypatch.setattr(sides.os, "sched_getaffinity", lambda _: {0, 1})
    result = compare(kernels, PLAIN, progress=False)
    assert list(result.frame.correct) == [True, True, False]
    assert list(result.frame.kernel) == ["01_a", "02_b", "03_typo"]


def test_scaling_is_said():
    result = compare([Fake()], SQUARE, progress=False)
    assert (
        result.problem.macs <= CountingEngine.macs_in_a_second and "scaled down to" in result.note
    )
    (note,) = result.short_notes
    assert note.startswith("floor: the theoretical minimum; scaled down: at full size the simul")
    assert len(note) <= 98


def test_unsupported_kernels_are_a_count_unless_verbose():
    pointwise = Fake(name="01_never")
    pointwise.unsupported = lambda problem: "its header says no"
    result = compare([Fake(), pointwise], PLAIN, progress=False)
    text = str(result)
    assert "1 of 2 kernels do not support this problem; --verbose lists them" in text
    assert "01_never" not in text and result.ok and "1 unsupported" in result.sentence
    verbose = result.text(verbose=True)
    assert "01_never: unsupported: its header says no" in verbose
    assert [row["kernel"] for row in result.to_dict()["phases"]] == ["90_fake", "01_never"]
    assert "timing s" not in verbose and "check s" in verbose


def test_each_row_is_handed_on_when_it_is_complete():
    seen = []
    kernels = [Fake(name="01_a"), Fake(shifted, name="02_b")]
    result = compare(kernels, PLAIN, each=seen.append)
    assert [list(one.frame["kernel"]) for one in seen] == [["01_a"], ["02_b"]]
    assert [one.ok for one in seen] == [True, False] and len(result.frame) == 2


def test_a_long_text_ends_with_its_verdict():
    long = compare([Fake(name=f"{i:02}_a") for i in range(40)], PLAIN, progress=False)
    text = str(long)
    first = text[: text.index("kernel ")]
    assert text.endswith(first.rstrip()) and first.startswith("plain: 40 of 40 correct")
    short = str(compare(Fake(), PLAIN, progress=False))
    assert short.count("of 1 correct") == 1


def test_a_set_has_a_column_for_each_problem_and_a_summary():
    other = dataclasses.replace(PLAIN, N=1, name="other")
    result = compare([Fake(name="01_a"), Fake(shifted, name="02_b")], [PLAIN, other])
    assert list(result.frame["problem"]) == ["plain", "plain", "other", "other"] and not result.ok
    assert result.sentence == "2 problems, all correct on 0"
    cells = result.tables[0].cells
    assert list(cells) == ["kernel", "class", "plain", "other"] and cells["other"][1] == "incorrect"
    text = str(result)
    text = " ".join(text.split())
    assert re.search(r"plain: 1 of 2 correct; least traffic \([^)]*\): 01_a", text)
    assert "02_b: incorrect: " in text
    assert result[0].ok is False and len(json.dumps(result.to_dict(), allow_nan=False)) > 1000
    labels = [label.get_text() for label in result.plot().axes[0].get_yticklabels()]
    assert labels[0] == "plain: Fake 01_a" and labels[3] == "other: Fake 02_b"
    headline = [each.problem.name.split(" ")[0] for each in compare(Fake(), "headline")]
    assert headline == ["square", "rect", "wide"]


def test_the_truth_is_computed_once_for_a_comparison(monkeypatch):
    asked = []
    truth = reference.truth
    monkeypatch.setattr(reference, "truth", lambda *a, **o: asked.append(a) or truth(*a, **o))
    reference.forget()
    assert compare([Fake(name=f"0{i}_a") for i in range(4)], PLAIN).ok and len(asked) == 1


# As a GPU would give it ----------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A GPU on which all of PLAIN is right; returns what compares two kernels, given their times."""
    report = check(Fake(), PLAIN)
    monkeypatch.setattr(sides, "check", lambda *_, **__: report)
    monkeypatch.setattr(comparing, "ceilings", lambda _: H200)
    kernels = [Fake(name=name, device=torch.device("cuda")) for name in ("01_a", "02_b")]
    for kernel in kernels:
        kernel.engine = "cuda"
        kernel.runs_on = None

    def compared(times, limit_seconds=1.0):
        monkeypatch.setattr(comparing, "measure_all", times)
        return compare(kernels, PLAIN, baselines=[], limit_seconds=limit_seconds)

    return compared


def test_times_stand_beside_their_floors(gpu):
    def times(kernels, problem, *, seed, limit_seconds, finished, place_only, **options):
        assert (problem, seed, limit_seconds, place_only) == (PLAIN, 0, 1.0, False)
        finished(0, measure.Timing(2e-3, 0.01, 50, True, 1e-3))
        finished(1, measure.Timing(1e-3, 0.02, 3, False))

    result = gpu(times)
    frame = result.frame
    floor = 1e3 * floor_seconds(PLAIN, "fp32", H200)
    assert list(frame.columns) == [
        *ABOUT,
        "time_ms",
        "floor_ms",
        "x_floor",
        "with_prepare_ms",
        "spread_pct",
        "samples",
        "mhz",
        "tflops",
        "note",
    ]
    assert list(frame.time_ms) == [2, 1] and list(frame.samples) == [50, 3]
    assert frame.with_prepare_ms[0] == 3 and math.isnan(frame.with_prepare_ms[1])
    assert list(frame.spread_pct) == [1, 2] and list(frame.floor_ms) == [floor] * 2
    assert frame.x_floor[0] == pytest.approx(2 / floor)
    assert frame.tflops[0] == pytest.approx(PLAIN.flops / 2e-3 / 1e12)
    assert (result.cost, result.engine) == ("time_ms", "cuda") and "(ms)" in result.cost_label
    assert result.ok and result.sentence.startswith(
        "plain: 2 of 2 correct; fastest of them: 02_b, "
    )
    assert result.all_tables[0].cells["with prep. ms"] == ["3", "-"]
    assert [*result.tables[0].cells] == ["kernel", "class", "result", "error", "time ms", "x floor"]
    for text in (result.text(verbose=True), result._repr_html_()):
        assert (
            "02_b: timing not stable: only 3 samples within the time limit" in text
            and str(H200) in text
        )


def test_without_a_limit_a_row_stops_once_its_place_is_certain(gpu):
    def times(kernels, problem, *, limit_seconds, finished, place_only, **options):
        assert place_only and limit_seconds == measure.LIMIT_SECONDS
        finished(0, measure.Timing(2e-3, 0.001, 3, True, spent_seconds=0.5))
        finished(1, measure.Timing(1e-3, 0.001, 20, True, spent_seconds=0.1))

    result = gpu(times, limit_seconds=None)
    assert list(result.phases["timing"]) == [0.5, 0.1] and "not stable" not in str(result)
    assert "timing s" in result.text(verbose=True)


def test_a_gpu_lost_while_measuring_is_told(gpu):
    def lost(*args, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    result = gpu(lost)
    assert list(result.frame.correct) == [False, False] and result.frame.time_ms.isna().all()
    assert "restart Python" in result.failures[0] and "FAILED" in str(result)
    assert "with_prepare_ms" not in result.frame and list(result.frame.samples) == [0, 0]


# Figures -------------------------------------------------------------------------------------


def timed_rows() -> pd.DataFrame:
    cells = [
        ("01_direct", "Direct", "fp32", True, 2e-7, 61.0, 12.1),
        ("02_im2col_gemm", "im2col + one GEMM", "fp32", True, 3e-7, 30.0, 12.1),
        ("03_smem_tile", "Shared-memory tile", "fp32", False, 0.4, 25.0, 12.1),
        ("cudnn:fp32", "cuDNN fp32", "fp32", True, 4e-7, 17.1, 12.1),
        ("cudnn:tf32", "cuDNN TF32", "tf32", True, 3e-4, 6.4, 2.26),
    ]
    keys = ["kernel", "title", "class", "correct", "error", "time_ms", "floor_ms"]
    frame = pd.DataFrame(cells, columns=keys).assign(engine="cuda", note="", spread_pct=0.4)
    frame["bound"] = [1e-3 if c == "tf32" else 1e-6 for c in frame["class"]]
    return frame.assign(x_floor=frame.time_ms / frame.floor_ms)


def test_times_are_drawn_with_their_floors(tmp_path):
    chart = charts.error_and_cost(timed_rows(), "square", ["on a GPU"])
    right = chart.axes[1]
    assert "ms" in right.get_xlabel() and len(right.patches) == 5
    texts = [text.get_text() for text in right.texts]
    assert "17.1 ms, 1.41x floor" in texts and any("(incorrect)" in text for text in texts)
    assert chart.save(tmp_path / "times.png").stat().st_size > 10_000


def test_no_number_is_told_with_an_exponent(comparison):
    rows = timed_rows().assign(time_ms=[54_712.3, 12_000.0, 1e6, 999.96, 1.0])
    rows["x_floor"] = rows.time_ms / rows.floor_ms
    found = dataclasses.replace(comparison, frame=rows, failures=())
    assert "54,712" in str(found) and not re.search(r"\de\+", str(found))
    texts = [text.get_text() for text in found.plot().axes[1].texts]
    assert "54,712 ms, 4,522x floor" in texts and not any("e+" in text for text in texts)


@pytest.mark.parametrize("times", [[61.0, 30, 25, 17.1, 1.0], [61e3, 30, 25, 17.1, 1.0]])
def test_values_stand_at_their_bars_and_ticks_apart(times):
    chart = charts.error_and_cost(timed_rows().assign(time_ms=times), "square")
    chart.draw_without_rendering()
    for note, time in zip(chart.axes[1].texts, times, strict=True):
        assert note.xy[0] == time  # below the floor or above it
    for axes in chart.axes:
        shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if tick.label1.get_text()]
        low, high = axes.get_xlim()
        seen = [label for label in shown if low <= label.get_position()[0] <= high]
        boxes = sorted((label.get_window_extent() for label in seen), key=lambda box: box.x0)
        for left, right in itertools.pairwise(boxes):
            assert left.x1 <= right.x0


@pytest.mark.gpu
def test_ceilings_and_times_on_a_gpu():
    kernels = [Fake(name="01_a"), Fake(name="02_b")]
    for kernel in kernels:
        kernel.engine = "cuda"
        kernel.device = torch.device("cuda", torch.cuda.current_device())
    known = device.describe()
    peaks = device.ceilings()
    assert known.sm >= 70 and known.l2_bytes > 0
    assert peaks is device.ceilings() and peaks.tf32_flops >= peaks.fp32_flops > 1e11
    if (sheet := known.datasheet) is not None:
        assert 0.3 < peaks.fp32_flops / sheet.fp32_tflops / 1e12 < 1.1
        assert 0.5 < peaks.copy_bytes_per_s / sheet.memory_gb_per_s / 1e9 < 1.05
    problem = Problem(N=4, C=32, H=128, W=128, K=64, R=3, S=3)
    first, second = measure.measure_all(kernels, problem, limit_seconds=1.0, judged=[False, False])
    assert first.samples >= 10 and 0.8 < first.seconds / second.seconds < 1.25
    assert first.seconds > 0.8 * floor_seconds(problem, "tf32", peaks)
