"""The check must find planted mistakes, and pass correct kernels."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import convlab
from convlab.core.correctness import check as checking
from convlab.core.correctness import examine, output, reference
from convlab.core.correctness.check import check
from convlab.core.correctness.report import Reports
from convlab.core.errors import (
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
from tests.fakes import (
    CPU,
    FULL,
    PLAIN,
    CountingEngine,
    Fake,
    shifted,
    spoilt,
    tf32,
    wrong_if_strided,
)
from tests.schema import VALIDATOR

pytestmark = pytest.mark.pure

AWKWARD = len(problems("awkward"))


def put(at, value):
    return spoilt(lambda launch: launch.y.__setitem__(at, value))


def outside(tensor, offset):
    """Return one element before (negative) or after a tensor, in the same storage."""
    at = tensor.storage_offset() + (offset if offset < 0 else tensor.numel() - 1 + offset)
    return tensor.as_strided((1,), (1,), at)


def write(name, *offsets, runs=0):
    """Return a mistake: a write of zeros outside a tensor, after more than `runs` runs."""

    def change(launch):
        x, w, _ = launch.inputs
        tensor = {"x": x, "w": w, "y": launch.y, "workspace": launch.workspace}[name]
        for offset in offsets if launch.runnable.runs > runs else ():
            outside(tensor, offset).fill_(0)

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
    launch.y[0, 0, 0, 0] += 1e-30 * outside(launch.inputs[0], 1).item()


PLANTED = {
    "unwritten_tail": (unwritten_tail, "5 of {total} outputs were never written"),
    "only_first_image": (spoilt(only_first_image), "(n, k, p, q) = (1, 0, 0, 0)"),
    "shifted": (shifted, "outputs are incorrect"),
    "nan": (put((0, 1, 2, 3), math.nan), "(n, k, p, q) = (0, 1, 2, 3): got nan"),
    "inf": (put((0, 0, 0, 0), math.inf), "got inf"),
    "tf32": (tf32, "fp32 allows"),
    "writes_input": (spoilt(writes_input), "wrote to its input: 1 element of x"),
    "moves": (
        spoilt(moves),
        "sums by atomics in a changing order (then declare `atomics: yes` in the header)",
    ),
    "one_element": (spoilt(one_element), "1 of {total} outputs is incorrect"),
    "accumulates": (accumulates, "outputs are incorrect"),
    "past_y": (write("y", 1), "outside of y: 1 element changed, 1 element past its end"),
    "before_y": (
        write("y", -3, -7),
        "outside of y: 2 elements changed, 3 to 7 elements before its start",
    ),
    "past_workspace": (
        write("workspace", 2),
        "outside of workspace: 1 byte changed, 2 bytes past its end",
    ),
    "before_x": (
        write("x", -1),
        "outside of x: 1 element changed, 1 element before its start",
    ),
    "past_w_in_second_run": (
        write("w", 5, runs=1),
        "outside of w: 1 element changed, 5 elements past its end",
    ),
    "constant": (put(..., 0.25), "outputs are incorrect"),
    "reads_outside": (spoilt(reads_outside), "got nan"),
}


@pytest.fixture
def sampled(monkeypatch):
    """Make every problem too large to compute all outputs in float64."""
    monkeypatch.setattr(reference, "SAMPLED", 200)
    monkeypatch.setitem(reference.TRUTH_MACS, "cpu", 0)


@pytest.fixture(autouse=True)
def afresh():
    """Forget the reference of other tests."""
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
def test_planted_mistake_is_found_in_a_sample(mistake, text, sampled):
    report = check(Fake(mistake), FULL)
    assert not report.ok
    assert "sampled outputs against float64" in report.compared


@pytest.mark.parametrize("problem", [PLAIN, FULL], ids=lambda p: p.name)
def test_correct_kernel_passes(problem, monkeypatch):
    kernel = Fake()
    report = check(kernel, problem)
    assert report.ok and not report.failures and report.wrong == report.unwritten == 0
    assert 0 < report.error < report.bound and report.worst < report.limit
    assert report.compared.startswith("all ")
    assert kernel.runs == 2
    assert report.counters["shared_wavefronts"] == 7
    monkeypatch.setattr(examine, "_SLOW_SECONDS", -1.0)  # as if the run were slow
    report = check(kernel, problem)
    assert report.ok and kernel.runs == 3 and "ran only once" in str(report)


def test_correct_kernel_passes_by_sampling(sampled):
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


def test_nan_is_correct_only_where_the_reference_has_it(monkeypatch):
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


def test_changed_outputs_are_found_in_any_piece(monkeypatch):
    monkeypatch.setitem(reference.CHUNK, "cpu", 7)
    y = torch.arange(40.0).view(1, 1, 4, 10)
    first = output.copy_of_start(y)
    assert output.changed_outputs(y, first) == (0, -1)
    y[0, 0, 1, 5] = y[0, 0, 3, 9] = -1
    assert output.changed_outputs(y, first) == (2, 15)


def test_errors_that_the_class_or_the_header_allows_are_correct():
    assert check(Fake(tf32, precision="tf32"), PLAIN).ok
    report = check(Fake(spoilt(moves), atomics=True), PLAIN)
    assert report.ok and "atomics" in str(report)
    report = check(Fake(spoilt(lambda l: l.y.mul_(l.runnable.runs)), atomics=True), PLAIN)
    assert not report.ok and "outputs are incorrect in a second run on the same data" in str(report)
    assert [f.kind for f in report.findings] == ["not repeatable"] and report.findings[0].index


def test_a_problem_without_outputs_is_correct():
    report = check(Fake(), Problem(N=0, C=3, H=8, W=8, K=4, R=3, S=3))
    assert report.ok and report.compared == "nothing, because y has no elements"


def test_crash_is_a_launch_error():
    def crashes(launch, y):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    with pytest.raises(LaunchError, match="90_fake failed while it ran.*restart Python"):
        check(Fake(crashes), PLAIN)


def test_workspace_is_not_zero():
    def sums_workspace(launch, y):
        launch.y.copy_(y + launch.workspace.view(torch.float32).sum())

    assert not check(Fake(sums_workspace), PLAIN).ok


def test_report_has_text_json_and_a_figure(tmp_path):
    report = check(Fake(put((0, 1, 2, 3), math.nan)), PLAIN)
    assert report.frame.shape[0] == 1 and not report.frame.correct.item()
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["error"] is None
    assert str(report).startswith("90_fake on plain: INCORRECT")
    assert "INCORRECT" in report._repr_html_()
    assert report.plot().save(tmp_path / "map.png").stat().st_size > 5000
    assert np.isnan(report.pixels[2, 3]) and np.isnan(report.channels[0, 1])


def test_report_pickles_and_stays_small():
    report = check(Fake(shifted), Problem(N=2, C=1, H=300, W=600, K=1, R=2, S=1))
    copy = pickle.loads(pickle.dumps(report))
    assert copy == report and len(pickle.dumps(report)) < 1 << 19
    assert report.pixels.shape == (150, 200) and report.channels.shape == (2, 1)
    assert copy.plot().axes[0].get_xlim() == (-0.5, 599.5)


def test_errors_are_in_the_report():
    with pytest.raises(WrongResult, match="never written"):
        check(Fake(unwritten_tail), PLAIN, raises=True)
    wrong = check(Fake(spoilt(one_element)), PLAIN)
    assert wrong.error < 1e-3 < 1.01 * wrong.worst and wrong.worst > wrong.limit
    assert f"worst output: error {wrong.worst:.2g}, limit {wrong.limit:.2g}" in str(wrong)


def test_only_a_report_with_patterns_tells_to_look_at_them():
    wrong = check(Fake(spoilt(one_element)), PLAIN)
    plain = dataclasses.replace(wrong, patterns=())
    explained = dataclasses.replace(wrong, patterns=("a column is left out",))
    assert "try: compute the first incorrect output by hand" in str(plain)
    assert "the patterns say where" not in str(plain)
    assert "the patterns say where to look" in " ".join(str(explained).split())


def test_a_fault_in_the_second_run_is_reported_before_the_wrong_result():
    """A race is the cause, and the incorrect outputs are its consequence."""

    def races(launch, y):
        if launch.runnable.runs > 1:
            raise LaunchError(
                "two threads", "race", [Finding("race", "two stores", file="a.cu", line=3)]
            )
        launch.y.copy_(y + 1)

    report = check(Fake(races), PLAIN)
    assert report.fault is None and report.wrong and "race: two stores, a.cu:3" in str(report)
    kinds = [finding["kind"] for finding in report.to_dict()["findings"]]
    assert kinds == ["race", "wrong result", "wrong result"]


def test_a_write_outside_of_y_is_reported_before_the_wrong_result():
    def writes_too_far(launch, y):
        launch.y.copy_(y + 1)
        outside(launch.y, 1).fill_(0)

    report = check(Fake(writes_too_far), PLAIN)
    first, *others = [finding["kind"] for finding in report.to_dict()["findings"]]
    assert first == "global out of bounds" and set(others) == {"wrong result"}
    assert "outside of y" in report.first_failure


# Sets of problems ------------------------------------------------------------------------------


def test_report_of_a_set_of_problems():
    pointwise = Problem(N=1, C=1, H=4, W=4, K=1, R=1, S=1, name="pointwise")
    reports = check(Fake(wrong_if_strided), [PLAIN, FULL, pointwise], progress=False)
    assert isinstance(reports, Reports) and len(reports) == 2 and not reports.ok and not reports
    assert list(reports.frame.correct) == [True, False]
    assert "INCORRECT on 1 of 2 problems, 1 unsupported" in str(reports)
    assert "1 of 3 problems are not supported; --verbose lists them" in str(reports)
    assert "does not support pointwise: needs R == 3" in reports.text(verbose=True)
    document = {"ok": False, "reports": [json.loads(json.dumps(reports.to_dict()))]}
    VALIDATOR.validate(document)
    set_ = document["reports"][0]
    assert set_["smallest"]["dimensions"] == str(reports.smallest.problem)
    assert set_["verdict"] == "incorrect" and [r["verdict"] for r in set_["reports"]] == [
        "correct",
        "incorrect",
    ]
    assert not Reports("none", ()).ok and Reports("none", ()).frame.empty
    assert "nothing was checked" in str(Reports("none", ()))


def test_error_bound_with_a_relu_is_that_of_the_sums():
    def without(launch, y):
        p = launch.problem
        launch.y.copy_(F.conv2d(*launch.inputs, p.stride, p.padding, p.dilation, p.groups))

    problem = dataclasses.replace(FULL, relu=True)
    assert check(Fake(), problem).ok
    assert not check(Fake(without), problem).ok
    y = reference.truth(problem, *reference.inputs(problem))
    at = tuple((y == 0).nonzero()[0].tolist())  # an output that was negative before the ReLU
    assert check(Fake(put(at, 1e-7)), problem).ok and check(Fake(put(at, 1e-3)), problem).wrong == 1


def test_a_callable_without_the_parameter_does_not_support_a_relu():
    def fuses(x, w, bias, *options, relu=False):
        y = F.conv2d(x, w, bias, *options)
        return y.relu() if relu else y

    problem = dataclasses.replace(FULL, relu=True)
    assert check(Function.of(fuses, "sim"), problem).ok
    with pytest.raises(UnsupportedError, match="no parameter `relu`"):
        check(Function.of(lambda *given: F.conv2d(*given), "sim"), problem)


def test_a_fault_is_reported_before_a_launch_error_without_a_kind():
    def refuses_small_ones(launch, y):
        launch.y.copy_(y + 1)
        if launch.problem.macs < 100:
            raise LaunchError("too small", findings=[Finding("never written", "y", error=False)])

    small = Problem(N=1, C=1, H=3, W=3, K=1, R=3, S=3)
    found = check(Fake(refuses_small_ones), [small, PLAIN], progress=False)
    assert found.smallest.fault is None and found.to_dict()["fault"] == "wrong result"
    alone = check(Fake(refuses_small_ones), [small], progress=False).to_dict()
    assert alone["fault"] == "refused" and len(alone["findings"]) == 1


def test_guards_of_an_output_at_an_unaligned_address():
    guards = examine.Guards(16)
    launch = Launch(None, PLAIN, (None, None, None))
    launch.y = guards.allocate((2, 3), torch.float32, CPU)
    guards.name(launch)
    assert launch.y.data_ptr() % 32 == 16 and not guards.violations()
    outside(launch.y, 2).fill_(0)
    (found,) = guards.violations()
    assert "outside of y: 1 element changed, 2 elements past its end" in found.text
    assert found.index == (7,)


def test_rest_of_a_set_is_left_out_if_faults_take_long(monkeypatch):
    monkeypatch.setattr(checking, "_FAULT_SECONDS", -1.0)

    def hangs(launch, y):
        raise LaunchError("stopped after 20 s")

    reports = check(Fake(hangs), "awkward", progress=False)
    assert len(reports) == 1 and f"{AWKWARD - 1} problems left out" in str(reports)


def test_an_interrupt_keeps_what_was_found(capsys):
    small = Problem(N=1, C=1, H=4, W=4, K=1, R=3, S=3, name="small")

    def interrupted(launch, y):
        if launch.problem == small:
            raise KeyboardInterrupt
        launch.y.copy_(y + (launch.problem == FULL))

    seen = []
    with pytest.raises(KeyboardInterrupt):
        check(Fake(interrupted), [PLAIN, FULL, small], progress=False, each=seen.append)
    assert [report.problem for report in seen] == [PLAIN, FULL]
    told = capsys.readouterr().err
    assert told.startswith("interrupted after 2 of 3 runs; 90_fake: INCORRECT on 1 of 2 problems")
    assert "incorrect on full: " in told


def late(launch, y):
    raise LaunchError("90_fake did not finish", "out of time")


def test_an_outcome_that_is_no_verdict_is_none_of_a_set():
    def spoil(launch, y):
        if launch.problem == FULL:
            late(launch, y)
        launch.y.copy_(y)

    found = check(Fake(spoil), [PLAIN, FULL], progress=False)
    assert not found.ok and not found.wrong and found.outcome == "out of time"
    assert found.sentence == ("90_fake: out of time on 1 of 2 problems, correct on 1 of 2 problems")
    assert found.smallest is None and found.tried == ()
    assert "out of time on full: 90_fake did not finish" in str(found)
    with pytest.raises(WrongResult, match="out of time on 1 of 2"):
        check(Fake(spoil), [PLAIN, FULL], progress=False, raises=True)
    document = json.loads(json.dumps(found.to_dict()))
    VALIDATOR.validate({"ok": False, "reports": [document]})
    assert [row["outcome"] for row in document["rows"]] == ["correct", "out of time"]


def test_one_incorrect_problem_decides_over_the_others():
    def spoil(launch, y):
        if launch.problem == FULL:
            late(launch, y)
        launch.y.copy_(y + 1)

    found = check(Fake(spoil), [PLAIN, FULL], progress=False)
    assert found.outcome == "incorrect" and found.sentence == (
        "90_fake: INCORRECT on 1 of 2 problems, out of time on 1 of 2 problems"
    )


def test_a_machine_that_lacks_something_is_no_verdict():
    def lacks(launch, y):
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(LaunchError, match="was not checked: .*Too many open files") as caught:
        check(Fake(lacks), PLAIN)
    assert caught.value.kind == "not run"

    def threads(launch, y):
        raise RuntimeError("can't start new thread")

    with pytest.raises(LaunchError, match="this says nothing about the kernel"):
        check(Fake(threads), PLAIN)

    def other(launch, y):
        raise OSError(errno.ENOENT, "No such file")

    with pytest.raises(OSError, match="No such file"):
        check(Fake(other), PLAIN)


def test_what_several_problems_have_in_common_is_said_once():
    problems_ = [dataclasses.replace(PLAIN, W=w, name=f"width_{w}") for w in range(5, 13)]
    finding = Finding("race", "two stores", file="a.cu", line=3)

    def races(launch, y):
        raise LaunchError("two threads", "race", [finding])

    found = check(Fake(races), problems_, progress=False)
    assert str(found).count("incorrect on ") == 1
    assert "incorrect on width_5, width_6, width_7 and 5 more: two threads" in str(found)
    found = check(Fake(unwritten_tail), problems_, progress=False)
    pattern = "never written"
    assert sum(line.strip().startswith("incorrect on ") for line in found.details) == 1
    listed = [line for line in found.details if line.strip().startswith("incorrect on ")]
    assert pattern in listed[0] and listed[0].count(pattern) <= 2


def test_patterns_do_not_count_what_was_not_watched(monkeypatch):
    seen = []

    def describe(outcomes, tried):
        seen.extend(outcomes)
        return []

    good = check(Fake(), PLAIN)
    wrong = check(Fake(shifted), FULL)
    rooms = {"of_problems": describe}
    monkeypatch.setattr("convlab.core.rooms.provided", lambda kind, name: rooms.get(name))
    unwatched = dataclasses.replace(good, unwatched="bounds were not watched")
    reports = Reports("k", (good, wrong, unwatched))
    assert reports.patterns is not None and seen == [(PLAIN, True), (FULL, False)]
    assert reports.sentence == "k: INCORRECT on 1 of 3 problems"
    both = Reports("k", (good, unwatched))
    assert both.sentence == (
        "k: outputs correct on 2 of 2 problems; 1 run was watched only in part (--verbose lists it)"
    )
    listed = f"bounds were not watched: {unwatched.label}"
    assert listed in both.text(verbose=True) and listed not in str(both)
    assert unwatched.sentence == f"90_fake on {PLAIN.label}: outputs correct; bounds were not watched"


def test_the_sentence_of_a_default_check_is_short():
    good = check(Fake(), PLAIN)
    unusual = dataclasses.replace(good, setting="on zeros")
    allocates = Finding("allocation", "conv2d allocates 4 bytes", error=False)
    warned = dataclasses.replace(good, findings=(allocates,))
    both = Reports("k", (good, unusual))
    assert both.sentence == "k: correct in all 2 runs"
    assert "runs: 1 problems, 1 in unusual settings" in str(both)
    but = "correct, but it allocates GPU memory in its entry point (warning)"
    assert warned.sentence == f"90_fake on {PLAIN.label}: {but}" and warned.ok
    some = Reports("k", (warned, unusual), skipped=((FULL, "no"),))
    assert some.ok and some.sentence == (
        "k: correct in all 2 runs, but it allocates GPU memory in its entry point (warning), 1 unsupported"
    )
    wrong = Reports("k", (warned, check(Fake(shifted), FULL)))
    assert wrong.sentence == "k: INCORRECT on 1 of 2 problems"


NAN = math.nan
WHAT = {"problem": PLAIN}
HOSTILE = {
    "check": (
        {"kernel": "torch:cpu"} | WHAT,
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
        {"kernels": "torch:cpu"} | WHAT,
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
        {"a": "torch:cpu", "b": "torch:cpu"} | WHAT,
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
}


@pytest.mark.parametrize(
    ("name", "options"), [(name, each) for name in HOSTILE for each in HOSTILE[name][1]], ids=str
)
def test_invalid_arguments_raise_problem_errors(name, options):
    """The message names the argument."""
    with pytest.raises(ProblemError) as error:
        getattr(convlab, name)(**HOSTILE[name][0] | options)
    (argument,) = options
    assert argument.rstrip("s") in str(error.value)


# Where it runs ---------------------------------------------------------------------------------


def test_kernel_on_a_gpu_runs_in_the_worker(monkeypatch):
    calls = []

    def call(function, *arguments, time_limit):
        calls.append((function, arguments, time_limit))
        return function(*pickle.loads(pickle.dumps(arguments)))

    stand_in = SimpleNamespace(call=call, accepts=lambda *arguments: crosses)
    monkeypatch.setattr(checking, "runner", lambda *kernels: stand_in)
    kernel = Fake()
    crosses = True
    kernel.engine = "cuda"
    kernel.runs_on = None
    kernel.time_limit = 7.0
    assert check(kernel, PLAIN).ok and calls[0][2] == 7.0
    assert calls[0][0] is examine.examine and calls[0][1][1] == PLAIN
    kernel.isolate = False
    assert check(kernel, PLAIN).ok and len(calls) == 1
    assert check("torch:cpu", PLAIN).ok and len(calls) == 1
    kernel.isolate = True
    crosses = False
    assert check(kernel, PLAIN).ok and len(calls) == 1


def test_fit_shrinks_for_the_simulator_or_reports_the_memory_needed(monkeypatch):
    big = Problem(N=16, C=16, H=1024, W=1024, K=128, R=3, S=3, name="square")
    small, note = fit(big, [Fake()])
    assert (
        small.macs <= CountingEngine.macs_in_a_second
        and "scaled down to" in note
        and "hours" in note
    )
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
    kernel.runs_on = None
    kernel.isolate = False
    with reference.full_precision():
        assert check(kernel, FULL).ok
        big = Problem(N=4, C=16, H=512, W=512, K=64, R=3, S=3)
        report = check(kernel, big, scale=None)
    assert report.ok, report
    run(kernel.prepare(FULL, *reference.inputs(FULL, 0, kernel.device)))


@pytest.mark.gpu
def test_memory_stays_within_the_documented_limit(gpu):
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
