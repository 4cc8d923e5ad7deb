"""Code that looks fast without doing the work is caught; honest code is not."""

import math

import pytest
import torch

import convlab
from convlab.core.kernel.data import inputs
from convlab.core.kernel.function import Function
from convlab.core.kernel.runnable import Launch
from convlab.core.problem.problem import Problem
from convlab.core.timing import ab_timing, stopwatch
from convlab.core.timing.observer import Caught
from convlab.honest import replaced_tools, witness
from convlab.honest.audit import CallableAudit
from convlab.honest.replaced_tools import read_settings
from convlab.honest.witness import Witness
from tests.fake_gpu import LARGE, LONG, Spin, chip_instead_of_a_gpu
from tests.fake_times import until
from tests.fakes import CPU, PLAIN, Fake
from tests.instruments import calibrate_ab, cheats
from tests.instruments.cheats import CHEATS, PROBLEM, honest


@pytest.mark.parametrize(
    "cheat",
    [pytest.param(c, marks=pytest.mark.gpu if c.gpu else (), id=c.name) for c in CHEATS],
)
def test_cheat_is_caught(cheat):
    good, said = cheats.judged(cheat)
    assert good, said


def test_page_names_every_cheat():
    page = cheats.PAGE.read_text()
    missing = [cheat.name for cheat in CHEATS if f"| {cheat.name} |" not in page]
    assert not missing and "NOT FOUND" not in page and len(CHEATS) >= 25


def baseline(problem, name="torch:cpu"):
    kernel = convlab.core.kernel.libraries.baseline(name, CPU)
    return kernel.prepare(problem, *inputs(problem, 3))


AWKWARD = [p for p in convlab.problems("awkward") if p.macs < 2e7 and math.prod(p.y_shape)]


@pytest.mark.parametrize("problem", AWKWARD, ids=lambda problem: problem.name)
def test_witness_accepts_correct_outputs_and_rejects_old_ones(problem):
    launch = baseline(problem)
    before = launch.inputs[1].clone()
    seen = Witness(launch, 3)
    for row in range(3):
        seen.before(row)
        launch()
        seen.after(row)
    for row in range(3):
        seen.finish(row)
    assert torch.equal(launch.inputs[1], before), "w is another's too"
    seen.renew(1)
    seen.before(0)
    seen.after(0)
    if problem.gemm_k * min(problem.R, problem.S) > 1 or not any(problem.padding):
        with pytest.raises(Caught, match=cheats.STALE):
            seen.finish(0)


def test_witness_does_not_change_a_prepared_filter():
    launch = baseline(PLAIN)
    launch.plan = torch.empty(4)
    seen = Witness(launch, 1)
    w = launch.inputs[1].clone()
    seen.before(0)
    assert torch.equal(launch.inputs[1], w)
    launch()
    seen.after(0)
    seen.finish(0)


@pytest.mark.parametrize("name", ["05_async_gemm", "08_winograd", "11_wgmma_tf32"])
def test_rungs_pass_the_witness(name):
    """Changed elements are larger than normal data; still a correct kernel passes in its class."""
    kernel = convlab.load(name, engine="sim")
    problem = Problem(N=1, C=32, H=8, W=8, K=8, R=3, S=3, padding=1)
    seen = Witness(kernel.prepare(problem, *inputs(problem, 0)), 1)
    seen.before(0)
    seen.launch()
    seen.after(0)
    seen.finish(0)


def test_witness_works_on_kernels_that_the_calibration_wraps():
    problem = Problem(N=1, C=2, H=8, W=8, K=2, R=3, S=3)
    inner = baseline(problem)
    launch = calibrate_ab.SpunLaunch(calibrate_ab.Spun(inner.runnable, 0), inner)
    seen = Witness(launch, 1)
    seen.before(0)
    inner()
    seen.after(0)
    seen.finish(0)


def test_trusted_outputs_are_not_checked():
    seen = Witness(baseline(PLAIN), 1, trusted=True)
    seen.before(0)
    seen.after(0)
    seen.finish(0)


@pytest.mark.parametrize("name", ["torch:cpu", "torch:im2col"])
def test_an_honest_callable_passes_the_audit(name):
    kernel = convlab.core.kernel.libraries.baseline(name, CPU)
    for problem in (
        PROBLEM,
        PLAIN,
        Problem(
            N=3, C=6, H=9, W=8, K=4, R=2, S=3, stride=(2, 1), padding=(1, 2), groups=2, bias=True
        ),
    ):
        function = Function(kernel, CPU)
        notes = CallableAudit(function).finish(function, problem, correct=True)
        assert all("calls a library" in note for note in notes), notes


def test_replaced_functions_are_named_and_restored(monkeypatch):
    assert replaced_tools.restore_replaced() == [] == replaced_tools.REPLACED_BEFORE
    own = torch.allclose
    monkeypatch.setattr(torch, "allclose", lambda *_: True)
    assert replaced_tools._is_foreign(torch.allclose) and replaced_tools.restore_replaced() == [
        "torch.allclose"
    ]
    assert torch.allclose is own and replaced_tools.restore_replaced() == []
    result = convlab.ab(Fake(name="01_a"), Fake(name="02_b"), PLAIN)
    assert result.ok and result.caught == ("", "")
    monkeypatch.setattr(torch, "allclose", lambda *_: True)
    assert "restored before the timing" in str(
        convlab.ab(Fake(name="01_a"), Fake(name="02_b"), PLAIN)
    )


@pytest.mark.parametrize("older", [True, False])
def test_settings_are_restored_whichever_way_they_were_changed(older):
    before = read_settings()
    backends = torch.backends
    if older:
        backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = not backends.cudnn.allow_tf32
    else:
        backends.cudnn.conv.fp32_precision = backends.cuda.matmul.fp32_precision = "ieee"
    told = ", ".join(replaced_tools.restore_settings(before))
    assert "fp32_precision of cuDNN" in told and "fp32_precision of cuBLAS" in told
    assert read_settings() == before and replaced_tools.restore_settings(before) == []
    assert torch.backends.cudnn.allow_tf32 is before["allow_tf32 of cuDNN"] is not None


class Works(Spin):
    """Convolve in a given time on the chip's clock; skip the work in some calls."""

    def __init__(self, chip, name, seconds, calls=1 << 30):
        super().__init__(chip, name, seconds)
        self.calls = calls

    def prepare(self, problem, x, w, bias=None, allocate=None):
        launch = Worked(self, problem, (x, w, bias))
        launch.y = x.new_zeros(problem.y_shape)
        return launch


class Worked(Launch):
    def __call__(self):
        own = self.runnable
        problem = self.problem
        own.calls -= 1
        if own.calls > 0:
            self.y.copy_(torch.conv2d(*self.inputs, problem.stride, problem.padding))
        own.chip.work(own.name, own.seconds)


@pytest.fixture
def judging(monkeypatch):
    chip = chip_instead_of_a_gpu(monkeypatch)
    for module in (ab_timing, stopwatch):
        monkeypatch.setattr(module, "observe", witness.Witness)
    monkeypatch.setattr(
        replaced_tools, "restore_replaced", list
    )  # the fake GPU replaces torch's functions
    return chip


@pytest.mark.parametrize("mode", ["cold", "hot"])
@pytest.mark.parametrize("calls", [40, 90])
def test_work_skipped_in_the_middle_of_the_timed_part_is_found(judging, mode, calls):
    problem = LARGE if mode == "hot" else PLAIN
    problem = problem.scaled(200_000)
    a = Works(judging, "a", LONG[0])
    b = Works(judging, "b", LONG[1], calls)
    (found,) = ab_timing.measure_pair(a, b, problem, [mode], until(target=1e-9, limit_seconds=10))
    assert found.caught[0] == "" and "incorrect for its data" in found.caught[1]
    (found,) = ab_timing.measure_pair(a, a, problem, [mode], until(limit_seconds=10))
    assert found.caught == ("", "") and found.ratio.rounds >= 32


def test_a_launch_that_is_fast_only_on_known_data_is_caught(judging):
    class Remembers(Worked):
        def __call__(self):
            total = float(self.inputs[0].sum())
            known = getattr(self, "known", None) == total
            own = self.runnable
            own.seconds = 1e-6 if known else LONG[0]
            self.known = total
            super().__call__()

    kernel = Works(judging, "b", LONG[0])
    launch = Remembers(kernel, PLAIN, inputs(PLAIN))
    launch.y = launch.inputs[0].new_zeros(PLAIN.y_shape)
    with pytest.raises(Caught, match="it remembers"):
        ab_timing._on_known_and_on_new_data(Witness(launch, 2))
    honest_launch = kernel.prepare(PLAIN, *inputs(PLAIN))
    assert ab_timing._on_known_and_on_new_data(Witness(honest_launch, 2)) > LONG[0]


def test_comparison_reports_a_cheat():
    result = convlab.compare([honest, cheats.by_address()], PROBLEM, progress=False)
    assert list(result.frame["correct"]) == [True, False] and not result.ok
    assert "caught: " in result.frame["note"][1] and "calls a library" in result.frame["note"][0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("01_direct", "N=1,C=32,H=14,W=14,K=32,R=1,S=1"),
        ("03_smem_tile", "N=4,C=16,H=60,W=60,K=32,R=3,S=3,padding=1"),
        ("08_winograd", "N=4,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
        ("12_wgmma_vector_reads", "N=4,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
        ("13_wgmma_3xtf32", "N=4,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
        ("cudnn:tf32:channels_last", "N=4,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"),
        ("02b_im2col_cublas", "N=64,C=64,H=112,W=112,K=64,R=3,S=3,padding=1"),
    ],
)
def test_gpu_honest_kernels_are_not_caught(name, problem):
    """In both modes, in graphs and from the host, with and without a prepared filter."""
    result = convlab.ab(name, "cudnn:fp32", problem, limit_seconds=1.0, threshold=0.1)
    assert result.ok and result.caught == ("", "") and len(result.modes) == 2, str(result)
    notes = [note for mode in result.modes for note in mode.notes]
    assert name[:2] not in ("01", "03") or not any("no CUDA graph" in note for note in notes)
