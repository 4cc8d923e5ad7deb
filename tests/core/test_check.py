"""The checker has to catch planted mistakes, and pass what is right."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import convlab
from convlab import __main__
from convlab.core.correctness import check as checking
from convlab.core.correctness import examine, output, reference
from convlab.core.correctness.check import check
from convlab.core.correctness.report import Reports
from convlab.core.errors import (
    BuildError,
    ConvlabError,
    LaunchError,
    ProblemError,
    UnsupportedError,
    WrongResult,
)
from convlab.core.finding import Finding
from convlab.core.kernel import shrink_to_fit as fitting
from convlab.core.kernel.function import Function
from convlab.core.kernel.runnable import Launch, run
from convlab.core.kernel.shrink_to_fit import SPARE_BYTES, fit
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from convlab.isolate import rehearsal
from convlab.sim.engine import MACS_IN_A_SECOND
from convlab.strict import settings
from tests.fakes import CPU, PLAIN, Fake, shifted, spoilt, tf32
from tests.instruments import planted
from tests.schema import VALIDATOR

AWKWARD = len(problems("awkward"))
FULL = Problem(
    N=3,
    C=4,
    H=12,
    W=15,
    K=8,
    R=2,
    S=3,
    stride=(2, 1),
    padding=(1, 2),
    dilation=(1, 2),
    groups=2,
    bias=True,
    name="full",
)


def put(at, value):
    return spoilt(lambda launch: launch.y.__setitem__(at, value))


def beside(tensor, offset):
    """One element before (negative) or after a tensor, in the storage that it is a view of."""
    at = tensor.storage_offset() + (offset if offset < 0 else tensor.numel() - 1 + offset)
    return tensor.as_strided((1,), (1,), at)


def write(name, *offsets, runs=0):
    """A write of zeros beside a tensor, once it ran more often than `runs`."""

    def change(launch):
        x, w, _ = launch.inputs
        tensor = {"x": x, "w": w, "y": launch.y, "workspace": launch.workspace}[name]
        for offset in offsets if launch.runnable.runs > runs else ():
            beside(tensor, offset).fill_(0)

    return spoilt(change)


def unwritten_tail(launch, y):
    launch.y.view(-1)[:-5] = y.view(-1)[:-5]


def accumulates(launch, y):
    launch.y += y


def only_first_image(launch):
    launch.y[1:] = launch.y[1:].transpose(1, 0).reshape(launch.y[1:].shape) + 0.5


def writes_input(launch):
    launch.inputs[0][-1, -1, -1, -1] += 1


def moves(launch):
    launch.y[0, 0, 0, 1] *= 1 + 2**-23 * launch.runnable.runs


def one_element(launch):
    launch.y[-1, -1, -1, -1] += 1e-3


def reads_outside(launch):
    launch.y[0, 0, 0, 0] += 1e-30 * beside(launch.inputs[0], 1).item()


PLANTED = {
    "unwritten_tail": (unwritten_tail, "5 of {total} outputs were never written"),
    "only_first_image": (spoilt(only_first_image), "(n, k, p, q) = (1, 0, 0, 0)"),
    "shifted": (shifted, "outputs are wrong"),
    "nan": (put((0, 1, 2, 3), math.nan), "(n, k, p, q) = (0, 1, 2, 3): got nan"),
    "inf": (put((0, 0, 0, 0), math.inf), "got inf"),
    "tf32": (tf32, "fp32 allows"),
    "writes_input": (spoilt(writes_input), "wrote to its input: 1 elements of x"),
    "moves": (spoilt(moves), "sums by atomics, of which the header is to say `atomics: yes`"),
    "one_element": (spoilt(one_element), "1 of {total} outputs are wrong"),
    "accumulates": (accumulates, "outputs are wrong"),
    "past_y": (write("y", 1), "outside of y: 1 element changed after its end, 1 past the last"),
    "before_y": (
        write("y", -3, -7),
        "outside of y: 2 elements changed before its start, 3 to 7 ahead of the first",
    ),
    "past_workspace": (
        write("workspace", 2),
        "outside of workspace: 1 byte changed after its end, 2 past the last",
    ),
    "before_x": (
        write("x", -1),
        "outside of x: 1 element changed before its start, 1 ahead of the first",
    ),
    "past_w_in_second_run": (
        write("w", 5, runs=1),
        "outside of w: 1 element changed after its end, 5 past the last",
    ),
    "constant": (put(..., 0.25), "every output is 0.25"),
    "reads_outside": (spoilt(reads_outside), "got nan"),
}


@pytest.fixture
def sampled(monkeypatch):
    """Make every problem too large for a whole float64 truth."""
    monkeypatch.setattr(reference, "SAMPLED", 200)
    monkeypatch.setitem(reference.TRUTH_MACS, "cpu", 0)


@pytest.fixture(autouse=True)
def afresh():
    """No test meets the reference that another one left."""
    reference.forget()
    yield
    reference.forget()


@pytest.mark.parametrize("problem", [PLAIN, FULL], ids=lambda p: p.name)
@pytest.mark.parametrize(("mistake", "text"), PLANTED.values(), ids=PLANTED)
def test_planted_mistake_is_caught(mistake, text, problem):
    report = check(Fake(mistake), problem)
    assert not report.ok
    assert text.format(total=f"{np.prod(problem.y_shape):,}") in " ".join(str(report).split())


@pytest.mark.parametrize(("mistake", "text"), PLANTED.values(), ids=PLANTED)
def test_planted_mistake_is_caught_by_sampling(mistake, text, sampled):
    report = check(Fake(mistake), FULL)
    assert not report.ok
    assert "sampled outputs against float64" in report.compared


@pytest.mark.parametrize("problem", [PLAIN, FULL], ids=lambda p: p.name)
def test_right_kernel_passes(problem, monkeypatch):
    kernel = Fake()
    report = check(kernel, problem)
    assert report.ok and not report.failures and report.wrong == report.unwritten == 0
    assert 0 < report.error < report.bound and report.worst < report.limit
    assert report.compared.startswith("all ")
    assert kernel.runs == 2
    assert report.counters["shared_wavefronts"] == 7
    monkeypatch.setattr(examine, "_SLOW_SECONDS", -1.0)  # what takes long on the simulator
    report = check(kernel, problem)
    assert report.ok and kernel.runs == 3 and "not run twice" in str(report)


def test_right_kernel_passes_by_sampling(sampled):
    report = check(Fake(), FULL)
    assert report.ok, report
    assert "sampled outputs" in report.compared and "torch:cpu" in report.compared


def test_pieces_give_what_the_whole_gives(monkeypatch):
    whole = check(Fake(spoilt(only_first_image)), FULL)
    monkeypatch.setitem(reference.CHUNK, "cpu", 1)
    reference.forget()
    pieces = check(Fake(spoilt(only_first_image)), FULL)
    assert (pieces.wrong, pieces.worst, pieces.failures) == (
        whole.wrong,
        whole.worst,
        whole.failures,
    )
    assert pieces.error == pytest.approx(whole.error)
    np.testing.assert_allclose(pieces.pixels, whole.pixels)
    np.testing.assert_allclose(pieces.channels, whole.channels)


def test_nan_passes_only_where_the_truth_has_it(monkeypatch):
    real = reference.inputs

    def with_nan(problem, seed, device, format):
        x, w, bias = real(problem, seed, device, format=format)
        x[0, 0, 4, 4] = float("nan")
        x[1, 0, 0, 0] = float("inf")
        return x, w, bias

    monkeypatch.setattr(reference, "inputs", with_nan)
    assert check(Fake(), PLAIN).ok

    hides = spoilt(lambda launch: launch.y.nan_to_num_(0.0, 0.0, 0.0))
    assert not check(Fake(hides), PLAIN).ok


def test_moving_outputs_are_found_in_any_piece(monkeypatch):
    monkeypatch.setitem(reference.CHUNK, "cpu", 7)
    y = torch.arange(40.0).view(1, 1, 4, 10)
    first = output.keep(y)
    assert output.moved(y, first) == (0, -1)
    y[0, 0, 1, 5] = y[0, 0, 3, 9] = -1
    assert output.moved(y, first) == (2, 15)


def test_what_the_class_or_the_header_allows_passes():
    assert check(Fake(tf32, precision="tf32"), PLAIN).ok
    report = check(Fake(spoilt(moves), atomics=True), PLAIN)
    assert report.ok and "atomics" in str(report)
    report = check(Fake(spoilt(lambda l: l.y.mul_(l.runnable.runs)), atomics=True), PLAIN)
    assert not report.ok and "wrong when it runs again on the same data" in str(report)
    assert [f.kind for f in report.findings] == ["not repeatable"] and report.findings[0].index


def test_no_outputs_are_right_outputs():
    report = check(Fake(), Problem(N=0, C=3, H=8, W=8, K=4, R=3, S=3))
    assert report.ok and report.compared == "no outputs, none compared"


def test_crash_is_a_launch_error():
    def crashes(launch, y):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    with pytest.raises(LaunchError, match="90_fake failed while it ran.*start Python anew"):
        check(Fake(crashes), PLAIN)


def test_workspace_holds_no_zeros_by_luck():
    def sums_workspace(launch, y):
        launch.y.copy_(y + launch.workspace.view(torch.float32).sum())

    assert not check(Fake(sums_workspace), PLAIN).ok


def test_report_shows_itself(tmp_path):
    report = check(Fake(put((0, 1, 2, 3), math.nan)), PLAIN)
    assert report.frame.shape[0] == 1 and not report.frame.right.item()
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["error"] is None
    assert str(report).startswith("90_fake on plain: WRONG")
    assert "WRONG" in report._repr_html_()
    assert report.plot().save(tmp_path / "map.png").stat().st_size > 5000
    assert np.isnan(report.pixels[2, 3]) and np.isnan(report.channels[0, 1])


def test_report_pickles_and_stays_small():
    report = check(Fake(shifted), Problem(N=2, C=1, H=300, W=600, K=1, R=2, S=1))
    copy = pickle.loads(pickle.dumps(report))
    assert copy == report and len(pickle.dumps(report)) < 1 << 19
    assert report.pixels.shape == (150, 200) and report.channels.shape == (2, 1)
    assert copy.plot().axes[0].get_xlim() == (-0.5, 599.5)


def test_errors_and_patterns_are_in_the_report():
    with pytest.raises(WrongResult, match="never written"):
        check(Fake(unwritten_tail), PLAIN, raises=True)
    wrong = check(Fake(spoilt(one_element)), PLAIN)
    assert wrong.error < 1e-3 < 1.01 * wrong.worst and wrong.worst > wrong.limit
    assert f"worst output {wrong.worst:.2g} of at most {wrong.limit:.2g}" in str(wrong)
    report = check(Fake(unwritten_tail), PLAIN)
    assert report.patterns[0] == "never written: all 5 wrong outputs"
    assert report.patterns[0] in str(report) and report.patterns[0] in report.summary
    assert report.to_dict()["patterns"] == list(report.patterns)


def test_fault_of_another_order_stands_beside_the_wrong_result():
    def races(launch, y):
        if launch.runnable.runs > 1:
            raise LaunchError(
                "two threads", "race", [Finding("race", "two stores", file="a.cu", line=3)]
            )
        launch.y.copy_(y + 1)

    report = check(Fake(races), PLAIN)
    assert report.fault is None and report.wrong and "race: two stores, a.cu:3" in str(report)
    kinds = [finding["kind"] for finding in report.to_dict()["findings"]]
    assert kinds == ["wrong result", "wrong result", "race"]


def test_warnings_are_in_the_report_of_a_right_kernel():
    report = check(made("late", after="__syncthreads();"), PLAIN)
    (found,) = report.findings
    assert report.ok and report.to_dict()["verdict"] == "right" and not found.error
    assert (found.kind, found.block, report.failures) == ("barrier after exit", (2, 0, 0), ())
    line = rf"(?s)\n  warning: barrier after exit: .* have left the .*, late.cu:{found.line}\b"
    assert re.search(line, str(report)) and re.search(line, str(Reports("late", (report,))))


# Sets of problems ------------------------------------------------------------------------------


def wrong_if_strided(launch, y):
    launch.y.copy_(y + (launch.problem.stride != (1, 1)))


def test_set_of_problems_is_told_of():
    pointwise = Problem(N=1, C=1, H=4, W=4, K=1, R=1, S=1, name="pointwise")
    reports = check(Fake(wrong_if_strided), [PLAIN, FULL, pointwise], progress=False)
    assert isinstance(reports, Reports) and len(reports) == 2 and not reports.ok and not reports
    assert list(reports.frame.right) == [True, False]
    assert "right on 1 of 2 problems, 1 declined" in str(reports)
    assert "declined pointwise: needs R == 3" in str(reports)
    document = {"ok": False, "reports": [json.loads(json.dumps(reports.to_dict()))]}
    VALIDATOR.validate(document)
    set_ = document["reports"][0]
    assert set_["smallest"]["dimensions"] == str(reports.smallest.problem) != str(FULL)
    assert set_["verdict"] == "wrong" and [r["verdict"] for r in set_["reports"]] == [
        "right",
        "wrong",
    ]
    assert not Reports("none", ()).ok and Reports("none", ()).frame.empty
    assert "nothing was checked" in str(Reports("none", ()))


def test_relu_is_judged_by_the_sums_and_told_where_it_is_missing():
    def without(launch, y):
        p = launch.problem
        launch.y.copy_(F.conv2d(*launch.inputs, p.stride, p.padding, p.dilation, p.groups))

    problem = dataclasses.replace(FULL, relu=True)
    assert check(Fake(), problem).ok
    assert check(Fake(without), problem).patterns[0].startswith("negative, as without the ReLU")
    y = reference.truth(problem, *reference.inputs(problem))
    at = tuple((y == 0).nonzero()[0].tolist())  # what was negative
    assert check(Fake(put(at, 1e-7)), problem).ok and check(Fake(put(at, 1e-3)), problem).wrong == 1


def test_a_callable_without_the_parameter_declines_a_relu():
    def fuses(x, w, bias, *options, relu=False):
        y = F.conv2d(x, w, bias, *options)
        return y.relu() if relu else y

    problem = dataclasses.replace(FULL, relu=True)
    assert check(Function.of(fuses, "sim"), problem).ok
    with pytest.raises(UnsupportedError, match="no parameter `relu`"):
        check(Function.of(lambda *given: F.conv2d(*given), "sim"), problem)


@pytest.fixture
def few(monkeypatch):
    """Let a few problems stand for the set "awkward"."""
    chosen = problems("awkward")[::5]
    monkeypatch.setattr(checking, "named_problems", {"awkward": chosen, "limits": []}.get)
    return chosen


def test_without_a_problem_fixed_and_generated_ones_are_checked(few):
    first, again = (check(Fake(), count=25, progress=False) for _ in range(2))
    assert first.ok and first.smallest is None
    assert f"{len(few)} fixed and 25 generated problems, seed 0" in str(first)
    fixed = [problem for problem in few if problem.R != 1]
    assert [report.problem for report in first][: len(fixed)] == fixed
    assert len(first) + len(first.skipped) == len(few) + 25 + 2 * len(settings.SETTINGS) + 1
    assert {p.bias for p in (report.problem for report in first) if p.relu} == {True, False}
    told = [(report.problem, report.error) for report in first]
    assert told == [(report.problem, report.error) for report in again]
    other = check(Fake(), count=25, seed=1, progress=False)
    assert [report.problem for report in other] != [problem for problem, _ in told]


def test_a_kernel_of_few_problems_gets_more_generated_ones(monkeypatch):
    monkeypatch.setattr(checking, "named_problems", lambda name: [])
    monkeypatch.setattr(Fake, "unsupported", lambda self, p: None if p.R == p.S == 1 else "no")
    found = check(Fake(), count=16, progress=False)
    tried = {report.problem for report in found}
    assert found.ok and len(tried) == 12 + 1  # the one that the settings ride on
    assert found.notes[0] == "0 fixed and 27 generated problems, seed 0"


def test_failing_set_names_what_failing_problems_share_and_the_smallest(few):
    reports = check(Fake(wrong_if_strided), count=30, progress=False)
    assert reports.patterns[0] == "wrong wherever the stride is not 1, and only there"
    smallest = reports.smallest.problem
    assert (smallest.N, smallest.C, smallest.K, smallest.R) == (1, 1, 1, 2)  # it declines R = 1
    assert sorted(smallest.stride) == [1, 2]
    assert f'--problem "{smallest}"' in str(reports)
    assert reports.plot().axes
    with pytest.raises(WrongResult, match="wherever the stride is not 1"):
        check(Fake(wrong_if_strided), count=30, progress=False, raises=True)


def test_crash_in_a_set_counts_as_wrong_and_is_shrunk(few):
    def crashes(launch, y):
        launch.y.copy_(y)
        if launch.problem.bias:
            raise LaunchError("it fell over", "illegal address")

    reports = check(Fake(crashes), count=30, progress=False)
    assert reports.smallest.fault == "illegal address" and reports.smallest.problem.bias
    assert reports.patterns[0] == "wrong wherever there is a bias, and only there"
    assert reports.smallest.problem.macs <= 2


def test_the_smallest_fails_as_the_others_do():
    """What fails otherwise, as a worker does that another fault took down, is not the smallest."""

    def races(launch, y):
        launch.y.copy_(y)
        if launch.problem.C < 2:
            raise LaunchError("another process", "invalid worker state")
        raise LaunchError("two threads", "race")

    reports = check(Fake(races), [PLAIN], progress=False)
    assert reports.smallest.fault == "race" and reports.smallest.problem.C == 2


def test_smallest_may_be_one_where_a_wrong_result_is_found_to_be_a_fault_at_a_line():
    def told_on_small_ones(launch, y):
        if launch.problem.H < 20:
            raise LaunchError("race", "race", [Finding("race", "two", file="a.cu", line=3)])
        launch.y.copy_(y + 1)

    large = Problem(N=1, C=1, H=40, W=7, K=1, R=3, S=3)
    found = check(Fake(told_on_small_ones), [large], progress=False)
    assert found.smallest.fault == "race" and found.smallest.problem.H < 20
    assert found.to_dict()["findings"][0]["line"] == 3


def test_a_refusal_does_not_stand_before_a_fault():
    def refuses_small_ones(launch, y):
        launch.y.copy_(y + 1)
        if launch.problem.macs < 100:
            raise LaunchError("too small", findings=[Finding("never written", "y", error=False)])

    small = Problem(N=1, C=1, H=3, W=3, K=1, R=3, S=3)
    found = check(Fake(refuses_small_ones), [small, PLAIN], progress=False)
    assert found.smallest.fault is None and found.to_dict()["fault"] == "wrong result"
    alone = check(Fake(refuses_small_ones), [small], progress=False).to_dict()
    assert alone["fault"] == "refused" and len(alone["findings"]) == 1


def test_guards_of_an_output_that_misses_an_aligned_address():
    guards = examine.Guards(16)
    launch = Launch(None, PLAIN, (None, None, None))
    launch.y = guards.allocate((2, 3), torch.float32, CPU)
    guards.name(launch)
    assert launch.y.data_ptr() % 32 == 16 and not guards.violations()
    beside(launch.y, 2).fill_(0)
    (found,) = guards.violations()
    assert "outside of y: 1 element changed after its end, 2 past" in found.text
    assert found.index == (7,)


def test_set_is_given_up_when_faults_take_long(monkeypatch):
    monkeypatch.setattr(checking, "_FAULT_SECONDS", -1.0)

    def hangs(launch, y):
        raise LaunchError("stopped after 20 s")

    reports = check(Fake(hangs), "awkward", progress=False)
    assert len(reports) == 1 and f"{AWKWARD - 1} problems left out" in str(reports)


def test_kernel_that_does_not_build_is_the_callers_to_hear_of():
    with pytest.raises(BuildError, match="did not compile"):
        check(made("broken", after="no semicolon"), PLAIN)


NAN = math.nan
WHAT = {"problem": PLAIN}
HOSTILE = {
    "check": (
        {"kernel": "01"} | WHAT,
        (
            {"count": -1},
            {"count": "2"},
            {"seed": None},
            {"seed": 2.5},
            {"raises": "no"},
            {"problem": 3},
            {"problem": [None]},
            {"scale": 1},
        ),
    ),
    "compare": (
        {"kernels": "01"} | WHAT,
        (
            {"limit_seconds": math.inf},
            {"limit_seconds": "3"},
            {"engine": "gpu"},
            {"seed": "0"},
            {"progress": 2},
            {"baselines": 3},
            {"problem": 2.0},
        ),
    ),
    "ab": (
        {"a": "01", "b": "01"} | WHAT,
        (
            {"threshold": NAN},
            {"threshold": True},
            {"threshold": 0},
            {"mode": 3},
            {"mode": []},
            {"mode": "warm"},
            {"limit_seconds": None},
            {"seed": []},
            {"check": 1},
            {"engine": None},
        ),
    ),
    "sweep": (
        {"kernel": "01", "tunables": {"THREADS": [64]}, "problems": PLAIN},
        (
            {"tunables": [("A", 1)]},
            {"tunables": {"THREADS": 3.5}},
            {"tunables": {"THREADS": ["8"]}},
            {"tunables": {"THREADS": []}},
            {"tunables": {}},
            {"tunables": {"NONE": [1]}},
            {"executor": 3},
            {"limit_seconds": -1},
            {"seed": {}},
            {"problems": 3},
            {"engine": "auto "},
        ),
    ),
}


@pytest.mark.parametrize(
    ("name", "options"), [(name, each) for name in HOSTILE for each in HOSTILE[name][1]], ids=str
)
def test_arguments_that_make_no_sense_are_problem_errors(name, options):
    """Which name the argument, or the tunable."""
    with pytest.raises(ProblemError) as error:
        getattr(convlab, name)(**HOSTILE[name][0] | options)
    (argument,) = options
    assert argument.rstrip("s") in str(error.value) or "THREADS" in str(error.value)


# Where it runs ---------------------------------------------------------------------------------


def test_kernel_on_a_gpu_is_handed_to_the_worker(monkeypatch):
    calls = []

    def call(function, *arguments, time_limit):
        calls.append((function, arguments, time_limit))
        kernel = arguments[0]
        kernel.engine = "sim"
        return function(*pickle.loads(pickle.dumps(arguments)))

    stand_in = SimpleNamespace(call=call, can_cross=lambda *arguments: crosses)
    monkeypatch.setattr(checking, "worker", stand_in)
    kernel = Fake()
    crosses = True
    kernel.engine = "cuda"
    kernel.time_limit = 7.0
    assert check(kernel, PLAIN).ok and calls[0][2] == 7.0
    assert calls[0][0] is examine.examine and calls[0][1][1] == PLAIN
    kernel.engine = "cuda"
    kernel.isolate = False
    assert check(kernel, PLAIN).ok and len(calls) == 1
    assert check("torch:cpu", PLAIN).ok and len(calls) == 1
    kernel.isolate = True
    crosses = False
    assert check(kernel, PLAIN).ok and len(calls) == 1


def test_build_that_passes_all_is_known_to_be_good_until_it_is_edited(few, tmp_path):
    path = tmp_path / "92_edited.cu"
    path.write_text(made("right").source + f"// {tmp_path}")  # a build of its own
    kernel = convlab.load(path, engine="sim")
    assert check(kernel, PLAIN).ok and not rehearsal.is_good(kernel.build())
    assert check(kernel, count=1, progress=False).ok and rehearsal.is_good(kernel.build())
    path.write_text(path.read_text() + " edited")
    assert not rehearsal.is_good(kernel.build())


DIRECT = (planted.KERNELS / "01_direct.cu").read_text()
WORKSPACE = "CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 100; }\n"
LAST = "conv.N * conv.K * conv.P * conv.Q"


def made(name, *, engine="sim", missing=0, after="", before="", stream="stream"):
    """The first rung with a workspace, and changed as it is told to be."""
    text = DIRECT
    for old, new in (
        ("CONVLAB_ENTRY const", f"{WORKSPACE}CONVLAB_ENTRY const"),
        ("void* /*workspace*/", "void* workspace"),
        ("* conv.Q) return;", f"* conv.Q - {missing}) return;"),
        ("g_bias[k] : 0.0f));", f"g_bias[k] : 0.0f)); {after}"),
        ("conv2d_direct<<<", f"{before} conv2d_direct<<<"),
        ("0, stream>>>", f"0, {stream}>>>"),
    ):
        text = planted.replace(text, old, new, 1, name)
    return convlab.compile(text, name=name, engine=engine, isolate=False)


def test_command_line(tmp_path, capfd, monkeypatch):
    path = tmp_path / "91_no_stride.cu"
    picture = tmp_path / "map.png"
    path.write_text(made("right").source.replace("q * conv.stride_w", "q"))
    arguments = ["check", str(path), "--engine", "sim"]
    assert __main__.main([*arguments, "--problem", "N1 C1 H5 W9 K2 R1 S1 s1x2"]) == 1
    assert "91_no_stride on N1 C1 H5 W9 K2 R1 S1 s1x2 p0 d1 g1: WRONG" in capfd.readouterr().out
    right = ["--problem", "N1 C1 H5 W9 K2 R1 S1", "--plot", str(picture), "--json"]
    assert __main__.main([*arguments, *right]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["ok"] and len(document["reports"]) == 1
    assert picture.stat().st_size > 5000

    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": []}.get)
    arguments = ["check", "01_direct", "--engine", "sim", "--count", "6", "--seed", "3", "--json"]
    assert __main__.main(arguments) == 0
    (found,) = json.loads(capfd.readouterr().out)["reports"]
    assert (
        len(found["reports"]) == 10 + 2 * len(settings.SETTINGS) and found["kernel"] == "01_direct"
    )
    said, untried = found["notes"]
    assert said == "1 fixed and 6 generated problems, seed 3" and untried.startswith("not tried: ")


def test_fit_shrinks_for_the_simulator_or_says_how_much_is_needed(monkeypatch):
    big = Problem(N=16, C=16, H=1024, W=1024, K=128, R=3, S=3, name="square")
    small, note = fit(big, [Fake()])
    assert small.macs <= MACS_IN_A_SECOND and "scaled down to" in note and "hours" in note
    assert fit(PLAIN, [Fake()]) == (PLAIN, None)
    monkeypatch.setattr(fitting, "available_bytes", lambda device: 1000)
    with pytest.raises(LaunchError, match=r"needs about .* GB"):
        fit(PLAIN, [Fake()], scale=None)
    with pytest.raises(ConvlabError, match="scale"):
        fit(PLAIN, [Fake()], scale="half")


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.gpu
def test_on_a_gpu(gpu):
    kernel = Fake(device=gpu)
    kernel.engine = "cuda"
    kernel.isolate = False
    with reference.full_precision():
        assert check(kernel, FULL).ok
        big = Problem(N=4, C=16, H=512, W=512, K=64, R=3, S=3)
        report = check(kernel, big, scale=None)
    assert report.ok, report
    run(kernel.prepare(FULL, *reference.inputs(FULL, 0, kernel.device)))


FILTERS = "conv.K * conv.C / conv.groups * conv.R * conv.S"
ON_GPU = {
    "past_y": (f"if (!i) g_y[{LAST}] = 0;", "outside of y: 1 element changed after its end"),
    "before_y": (
        "if (!i) g_y[-2] = 0;",
        "outside of y: 1 element changed before its start, 2 ahead of the first",
    ),
    "before_x": ("if (!i) ((float*)g_x)[-1] = 0;", "outside of x: 1 element"),
    "past_w": (
        f"if (!i) ((float*)g_w)[{FILTERS}] = 0;",
        "outside of w: 1 element changed after its end, 1 past the last",
    ),
    "past_bias": ("if (!i) ((float*)g_bias)[conv.K] = 0;", "outside of bias: 1 element"),
    "writes_x": ("if (!i) ((float*)g_x)[0] = 0;", "wrote to its input: 1 elements of x"),
    "sums_workspace": ("if (!i) g_y[i] += g_x[-1];", "got nan"),
    "past_workspace": (
        {"before": "cudaMemsetAsync((char*)workspace + 99, 0, 2, stream);"},
        "outside of workspace: 1 byte changed after its end, 1 past the last",
    ),
    "wrong_stream": ({"stream": "0"}, "it launches on another stream than the one it is given"),
    "unwritten": ({"missing": 5}, "never written: all 5 wrong outputs"),
    "right": ({}, ""),
    "reads_outside_and_drops_it": ("if (!i && g_x[-1] == 7) g_y[i] = 0;", ""),
    "synchronises": ({"before": "cudaStreamSynchronize(stream);"}, ""),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("how", "text"), ON_GPU.values(), ids=ON_GPU)
def test_planted_mistake_is_caught_on_a_gpu(how, text):
    how = how if isinstance(how, dict) else {"after": how}
    report = check(made("planted", engine="cuda", **how), FULL)
    assert report.ok == (not text) and text in " ".join(str(report).split()), report


@pytest.mark.gpu
def test_race_is_suspected_on_a_gpu():
    """Each run writes another number to one output: what differs is 1e-7 of it."""
    text = "if (!i) g_y[i] = r_acc * (1 + 1e-6f * (clock64() % 7));"
    kernel = made("race", engine="cuda", after=text)
    reports = [check(kernel, FULL) for _ in range(4)]
    assert any("changed when it ran again" in str(report) for report in reports)


@pytest.mark.gpu
@pytest.mark.parametrize("long", [1 << 14, 1 << 22], ids=["microseconds", "longer_than_the_sleep"])
def test_wrong_stream_is_caught_however_long_the_kernel_takes(long):
    after = f"for (long long t = clock64(); clock64() - t < {long};);"
    report = check(made("slow", engine="cuda", after=after, stream="0"), FULL)
    assert not report.ok, report


@pytest.mark.gpu
def test_memory_stays_within_what_is_stated(gpu):
    problem = Problem(N=8, C=16, H=1024, W=1024, K=64, R=3, S=3)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kernel = convlab.load("01_direct", engine="cuda", isolate=False)
    assert check(kernel, problem, scale=None).ok
    x, w, y = (4 * np.prod(s) for s in (problem.x_shape, problem.w_shape, problem.y_shape))
    image = y / problem.N
    # the second run's copy of y is taken where memory is free, and is not counted in the limit
    allowed = 2 * (x + w) + 2 * y + max(SPARE_BYTES, 3 * image)
    assert torch.cuda.max_memory_allocated() - before <= allowed


@pytest.mark.gpu
def test_guard_zones_keep_the_alignment_of_the_allocator(gpu):
    place = examine.Guards().allocate
    for shape in ((3,), (1, 7, 5, 3)):
        assert place(shape, torch.float32, gpu).data_ptr() % 512 == 0
