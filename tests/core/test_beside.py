"""The simulator beside a GPU: both run at the same time, and the simulator's errors count."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from convlab.core.correctness import beside
from convlab.core.correctness.check import check
from convlab.core.errors import LaunchError, NotSimulated, ProblemError
from convlab.core.finding import Finding
from convlab.core.kernel import engine
from convlab.core.problem.problem import Problem
from tests.fakes import FULL, PLAIN, Fake, shifted

pytestmark = pytest.mark.pure
SMALL = Problem(N=1, C=2, H=5, W=6, K=3, R=3, S=3, name="small")


def race(launch, y):
    launch.y.copy_(y)
    raise LaunchError(
        "two threads store", "race", [Finding("race", "two stores", file="a.cu", line=3)]
    )


def on_gpu(twin: Fake | None, spoil=None) -> Fake:
    """Return a fake kernel that says it runs on a GPU; `twin` is what the simulator runs of it."""
    kernel = Fake(spoil)
    kernel.engine = "cuda"
    kernel.runs_on = None
    kernel.isolate = False
    kernel.simulated = lambda time_limit: twin
    return kernel


def test_an_error_of_the_simulator_makes_a_kernel_incorrect():
    report = check(on_gpu(Fake(race)), PLAIN)
    assert not report.ok and report.outcome == "incorrect" and report.fault == "race"
    assert report.engine == "cuda" and report.error < report.bound
    assert "race: two stores (on the simulator, on plain), a.cu:3" in " ".join(str(report).split())
    # Two different outputs are no crash, and so no fault.
    report = check(on_gpu(Fake(shifted)), PLAIN)
    assert report.verdict == "incorrect" and "(on the simulator, on plain)" in str(report)


def test_an_error_of_the_simulator_makes_a_set_incorrect():
    found = check(on_gpu(Fake(race)), [PLAIN, FULL], progress=False)
    assert found.sentence == (
        "90_fake: INCORRECT on 2 of 2 problems on the simulator, correct on 2 of 2 problems"
    )
    assert found.smallest is not None and found.smallest.engine == "sim"
    assert [report.engine for report in found] == ["cuda", "cuda", "sim", "sim"]
    document = found.to_dict()
    assert document["verdict"] == "failed" and document["fault"] == "race"
    assert document["findings"][0]["line"] == 3


def test_a_kernel_that_is_correct_on_both_says_so():
    found = check(on_gpu(Fake()), [PLAIN, FULL], progress=False)
    assert found.ok and found.sentence == "90_fake: correct in all 4 runs"
    assert "runs: 2 problems, 2 on the simulator" in str(found)
    report = check(on_gpu(Fake()), PLAIN)
    assert report.ok and "also correct on the simulator, on plain" in report.notes


def test_what_the_simulator_does_not_support_leaves_the_result_of_the_gpu():
    twin = Fake()

    def build():
        raise NotSimulated("k.cu is not simulated\nk.cu:1: cudnn.h")

    twin.build = build
    report = check(on_gpu(twin), PLAIN)
    assert report.ok and report.notes == ("not simulated beside the GPU: k.cu is not simulated",)
    found = check(on_gpu(twin), [PLAIN, FULL], progress=False)
    assert found.ok and len(found) == 2
    assert found.notes == ("not simulated beside the GPU: k.cu is not simulated",)


@pytest.mark.parametrize("kind", ["not simulated", "out of time", "not run"])
def test_a_run_of_the_simulator_without_a_verdict_leaves_the_result_of_the_gpu(kind):
    def undecided(launch, y):
        raise LaunchError(f"it is {kind}", kind)

    found = check(on_gpu(Fake(undecided)), [PLAIN, FULL], progress=False)
    assert found.ok and f"not simulated beside the GPU: it is {kind}" in found.notes


def test_a_kernel_that_is_incorrect_on_the_gpu_gets_the_line_of_the_simulator():
    report = check(on_gpu(Fake(race), shifted), PLAIN)
    assert not report.ok and report.wrong
    assert report.findings[0].kind == "race" and report.findings[0].line == 3


def test_it_can_be_left_out():
    kernel = on_gpu(None)
    kernel.simulated = lambda time_limit: pytest.fail("it was simulated")
    assert check(kernel, PLAIN, simulate=False).ok
    with pytest.raises(ProblemError, match="simulate"):
        check(kernel, PLAIN, simulate="no")


def test_without_a_simulator_only_the_gpu_runs(monkeypatch):
    assert check(on_gpu(None), PLAIN).notes == ()
    monkeypatch.setattr(engine.rooms, "names", lambda kind: [])
    assert engine.counting_engine() is None


def test_both_run_at_the_same_time():
    """The simulator's first run ends only after the GPU's has begun, and the other way round."""
    begun = {"gpu": threading.Event(), "simulator": threading.Event()}

    def waits(mine, other):
        def spoil(launch, y):
            begun[mine].set()
            assert begun[other].wait(20), f"{other} did not run at the same time"
            launch.y.copy_(y)

        return spoil

    kernel = on_gpu(Fake(waits("simulator", "gpu")), waits("gpu", "simulator"))
    assert check(kernel, PLAIN).ok


def test_the_simulator_starts_before_nvcc_does():
    started = threading.Event()
    twin = Fake()
    twin.build = started.set
    kernel = on_gpu(twin)

    def build():
        assert started.wait(20), "nvcc ran first"

    kernel.build = build
    assert check(kernel, PLAIN).ok


def test_the_order_does_not_depend_on_which_run_ends_first():
    def slow_if_small(launch, y):
        if launch.problem == PLAIN:
            time.sleep(0.2)
        launch.y.copy_(y)

    twin = Fake(slow_if_small)
    twin.runs_on = SimpleNamespace(**{**vars(type(twin.runs_on)), "at_once": 2})
    found = check(on_gpu(twin), [PLAIN, FULL, SMALL], progress=False)
    assert [r.problem.name for r in found if r.engine == "sim"] == ["plain", "full", "small"]


def test_a_simulation_that_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(beside, "_SECONDS", 0.2)
    ended = threading.Event()

    def hangs(launch, y):
        ended.wait(5)

    report = check(on_gpu(Fake(hangs)), PLAIN)
    ended.set()
    assert report.ok and "it needed more than 0.2 s" in report.notes[0]


def test_the_problems_are_few_small_and_supported():
    chosen = beside.problems_beside(Fake(), None)
    assert len(chosen) == 6 and all(problem.R != 1 for problem in chosen)
    assert len({*chosen}) == len(chosen)
    assert sum(problem.macs for problem in chosen) < 10_000_000
    large = Problem(N=16, C=16, H=1024, W=1024, K=128, R=3, S=3, name="square")
    (scaled,) = beside.problems_beside(Fake(), [large])
    assert scaled.macs <= 1_000_000
    assert beside.problems_beside(Fake(), [PLAIN]) == [PLAIN]


def test_an_error_without_counts_stays_if_the_run_with_counts_finds_none(monkeypatch):
    def examined(kernel, problem, seed, notes=(), setting=beside.ORDINARY):
        return SimpleNamespace(ok=setting.counted, counted=setting.counted)

    monkeypatch.setattr(beside, "examine", examined)
    report = beside._examined(Fake(), PLAIN, 0, beside.ORDINARY)
    assert not report.ok and not report.counted
