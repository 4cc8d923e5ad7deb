"""The checker has to catch planted mistakes, and pass what is right."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from convlab import tally
from convlab.check import Reports, check, check_all, fit, run
from convlab.errors import ConvlabError, LaunchError, UnsupportedError, WrongResult
from convlab.problem import Problem

checking = sys.modules["convlab.check"]  # convlab.check is the function

CPU = torch.device("cpu")
PLAIN = Problem(N=2, C=4, H=11, W=9, K=6, R=3, S=3, name="plain")
FULL = Problem(
    N=3, C=4, H=12, W=15, K=8, R=2, S=3, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2,
    bias=True, name="full",
)  # fmt: skip


class Fake:
    """A runnable that computes with torch and then spoils the output as it is told to."""

    def __init__(self, spoil=None, *, name="90_fake", precision="fp32", atomics=False, device=CPU):
        self.name, self.title, self.precision, self.engine = name, f"Fake {name}", precision, "sim"
        self.device, self.source, self.path = device, name, f"kernels/{name}.cu"
        self.header = SimpleNamespace(atomics=atomics)
        self.spoil, self.runs = spoil, 0

    def unsupported(self, problem):
        return "needs R == 3" if problem.R == 1 else None

    def prepare(self, problem, x, w, bias=None):
        if self.unsupported(problem):
            raise UnsupportedError(f"{self.name} cannot do it: {self.unsupported(problem)}")
        return FakeLaunch(self, problem, x, w, bias)


class FakeLaunch:
    def __init__(self, kernel, problem, x, w, bias):
        self.kernel, self.problem, self.inputs = kernel, problem, (x, w, bias)
        self.y = torch.zeros(problem.y_shape, device=x.device)
        self.workspace = torch.zeros(16, device=x.device)
        self.counters = None

    def __call__(self):
        p, (x, w, bias) = self.problem, self.inputs
        self.kernel.runs += 1
        y = F.conv2d(x, w, bias, p.stride, p.padding, p.dilation, p.groups)
        if self.kernel.spoil is None:
            self.y.copy_(y)
        else:
            self.kernel.spoil(self, y)
        self.counters = {
            "global_load_bytes": 4 * p.macs, "global_store_bytes": 4 * y.numel(),
            "shared_wavefronts": 7, "seconds": 0.01,
        }  # fmt: skip


def unwritten_tail(launch, y):
    launch.y.view(-1)[:-5] = y.view(-1)[:-5]


def only_first_image(launch, y):
    launch.y.copy_(y)
    launch.y[1:] = y[1:].transpose(1, 0).reshape(y[1:].shape) + 0.5


def shifted(launch, y):
    launch.y.copy_(y.roll(1, -1))


def nan_somewhere(launch, y):
    launch.y.copy_(y)
    launch.y[0, 1, 2, 3] = float("nan")


def inf_somewhere(launch, y):
    launch.y.copy_(y)
    launch.y[0, 0, 0, 0] = float("inf")


def tf32(launch, y):
    def rounded(t):
        return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    p, (x, w, bias) = launch.problem, launch.inputs
    launch.y.copy_(
        F.conv2d(rounded(x), rounded(w), bias, p.stride, p.padding, p.dilation, p.groups)
    )


def writes_input(launch, y):
    launch.y.copy_(y)
    launch.inputs[0][-1, -1, -1, -1] += 1


def moves(launch, y):
    launch.y.copy_(y)
    launch.y[0, 0, 0, 1] *= 1 + 2**-23 * launch.kernel.runs


def one_element(launch, y):
    launch.y.copy_(y)
    launch.y[-1, -1, -1, -1] += 1e-3


def accumulates(launch, y):
    launch.y += y


PLANTED = {
    unwritten_tail: "5 of {total} outputs were never written",
    only_first_image: "(n, k, p, q) = (1, 0, 0, 0)",
    shifted: "outputs are wrong",
    nan_somewhere: "(n, k, p, q) = (0, 1, 2, 3): got nan",
    inf_somewhere: "got inf",
    tf32: "fp32 allows",
    writes_input: "wrote to its input: 1 elements of x",
    moves: "changed when it ran again",
    one_element: "1 of {total} outputs are wrong",
    accumulates: "outputs are wrong",
}


@pytest.fixture
def sampled(monkeypatch):
    """Make every problem too large for a whole float64 truth."""
    monkeypatch.setitem(tally.TRUTH_MACS, "cpu", 0)


@pytest.mark.parametrize("problem", [PLAIN, FULL], ids=lambda p: p.name)
@pytest.mark.parametrize("mistake", PLANTED, ids=lambda f: f.__name__)
def test_planted_mistake_is_caught(mistake, problem):
    report = check(Fake(mistake), problem)
    assert not report.ok
    total = f"{np.prod(problem.y_shape):,}"
    assert PLANTED[mistake].format(total=total) in str(report)


@pytest.mark.parametrize("mistake", PLANTED, ids=lambda f: f.__name__)
def test_planted_mistake_is_caught_by_sampling(mistake, sampled):
    report = check(Fake(mistake), FULL, sample=200)
    assert not report.ok
    assert "sampled outputs against float64" in report.compared


@pytest.mark.parametrize("problem", [PLAIN, FULL], ids=lambda p: p.name)
def test_right_kernel_passes(problem):
    kernel = Fake()
    report = check(kernel, problem)
    assert report.ok and not report.failures and report.wrong == report.unwritten == 0
    assert 0 < report.error < report.bound
    assert report.compared.startswith("all ")
    assert kernel.runs == 2
    assert report.counters["shared_wavefronts"] == 7


def test_right_kernel_passes_by_sampling(sampled):
    report = check(Fake(), FULL, sample=200)
    assert report.ok, report
    assert "sampled outputs" in report.compared and "torch:cpu" in report.compared


def test_tf32_passes_as_tf32():
    assert check(Fake(tf32, precision="tf32"), PLAIN).ok


def test_pieces_give_what_the_whole_gives(monkeypatch):
    whole = check(Fake(only_first_image), FULL)
    monkeypatch.setitem(tally._CHUNK, "cpu", 1)
    pieces = check(Fake(only_first_image), FULL)
    assert (pieces.wrong, pieces.worst, pieces.failures) == (
        whole.wrong, whole.worst, whole.failures,
    )  # fmt: skip
    assert pieces.error == pytest.approx(whole.error)
    np.testing.assert_array_equal(pieces.pixels, whole.pixels)
    np.testing.assert_array_equal(pieces.channels, whole.channels)


def test_nan_passes_only_where_the_truth_has_it(monkeypatch):
    real = checking.reference.inputs

    def with_nan(problem, seed, device):
        x, w, bias = real(problem, seed, device)
        x[0, 0, 4, 4] = float("nan")
        x[1, 0, 0, 0] = float("inf")
        return x, w, bias

    monkeypatch.setattr(checking.reference, "inputs", with_nan)
    assert check(Fake(), PLAIN).ok

    def hides(launch, y):
        launch.y.copy_(y.nan_to_num(0.0, 0.0, 0.0))

    assert not check(Fake(hides), PLAIN).ok


def test_moving_outputs_are_found_in_any_piece(monkeypatch):
    monkeypatch.setitem(tally._CHUNK, "cpu", 7)
    y = torch.arange(40.0).view(1, 1, 4, 10)
    first = tally.keep(y)
    assert tally.moved(y, first) == (0, -1)
    y[0, 0, 1, 5] = y[0, 0, 3, 9] = -1
    assert tally.moved(y, first) == (2, 15)


def test_atomics_may_move():
    report = check(Fake(moves, atomics=True), PLAIN)
    assert report.ok and "atomics" in str(report)


def test_slow_simulation_runs_once(monkeypatch):
    monkeypatch.setattr(checking, "_SLOW_SECONDS", -1.0)
    kernel = Fake()
    report = check(kernel, PLAIN)
    assert report.ok and kernel.runs == 1 and "not run twice" in str(report)


def test_empty_batch_passes():
    report = check(Fake(), Problem(N=0, C=3, H=8, W=8, K=4, R=3, S=3))
    assert report.ok and report.compared == "no outputs, none compared"


def test_declined_problem_raises():
    with pytest.raises(UnsupportedError, match="needs R == 3"):
        check(Fake(), Problem(N=1, C=1, H=4, W=4, K=1, R=1, S=1))


def test_crash_is_a_launch_error():
    def crashes(launch, y):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    with pytest.raises(LaunchError, match="90_fake failed while it ran.*start Python anew"):
        check(Fake(crashes), PLAIN)


def test_workspace_holds_no_zeros_by_luck():
    def sums_workspace(launch, y):
        launch.y.copy_(y + launch.workspace.sum())

    assert not check(Fake(sums_workspace), PLAIN).ok


def test_raises_on_demand():
    with pytest.raises(WrongResult, match="never written"):
        check(Fake(unwritten_tail), PLAIN, raises=True)


def test_report_shows_itself(tmp_path):
    report = check(Fake(nan_somewhere), PLAIN)
    assert report.frame.shape[0] == 1 and not report.frame.right.item()
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["error"] is None
    assert str(report).startswith("90_fake on plain: WRONG")
    assert "WRONG" in report._repr_html_()
    assert report.plot().save(tmp_path / "map.png").stat().st_size > 5000
    assert np.isnan(report.pixels[2, 3]) and np.isnan(report.channels[0, 1])


def test_check_all_tells_of_a_set():
    def wrong_if_strided(launch, y):
        launch.y.copy_(y + (launch.problem.stride != (1, 1)))

    pointwise = Problem(N=1, C=1, H=4, W=4, K=1, R=1, S=1, name="pointwise")
    reports = check_all(Fake(wrong_if_strided), [PLAIN, FULL, pointwise], progress=False)
    assert isinstance(reports, Reports) and len(reports) == 2 and not reports.ok
    assert list(reports.frame.right) == [True, False]
    assert "right on 1 of 2" in str(reports) and "declined: pointwise" in str(reports)
    assert json.loads(json.dumps(reports.to_dict()))["ok"] is False
    assert not Reports(()).ok and Reports(()).frame.empty


def test_fit_shrinks_for_the_simulator_and_says_so():
    big = Problem(N=16, C=16, H=1024, W=1024, K=128, R=3, S=3, name="square")
    small, note = fit(big, [Fake()])
    assert small.macs <= checking.SIM_MACS and "scaled down to" in note and "hours" in note
    assert fit(PLAIN, [Fake()]) == (PLAIN, None)


def test_fit_says_how_much_memory_is_needed(monkeypatch):
    monkeypatch.setattr(checking, "available_bytes", lambda device: 1000)
    with pytest.raises(LaunchError, match=r"needs about .* GB"):
        fit(PLAIN, [Fake()], scale=None)
    with pytest.raises(ConvlabError, match="scale"):
        fit(PLAIN, [Fake()], scale="half")


@pytest.mark.gpu
def test_on_a_gpu():
    kernel = Fake(device=torch.device("cuda", torch.cuda.current_device()))
    kernel.engine = "cuda"
    with checking.reference.full_precision():
        assert check(kernel, FULL).ok
        big = Problem(N=4, C=16, H=512, W=512, K=64, R=3, S=3)
        report = check(kernel, big, scale=None)
    assert report.ok, report
    run(kernel.prepare(FULL, *checking.reference.inputs(FULL, 0, kernel.device)), kernel)
