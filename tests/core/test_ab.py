"""A/B: the method under simulated noise, and everything else that needs no GPU."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pickle
import sys
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import convlab
from convlab.core.errors import ConvlabError, LaunchError
from convlab.core.kernel.runnable import empty
from convlab.core.machine import clock
from convlab.core.machine.device import Ceilings, floor_seconds
from convlab.core.problem.problem import Problem
from convlab.core.timing import ab as abing
from convlab.core.timing import ab_timing, ratio, stopwatch
from convlab.core.timing.ab_result import ABs
from convlab.core.timing.ratio import Ratio, autocorrelation_time, estimate, settled
from tests.fake_gpu import LARGE, LONG, SHORT, Spin, chip_instead_of_a_gpu
from tests.fake_times import MOST, Machine, Tape, in_rounds, quiet, timed, until
from tests.fakes import CPU, PLAIN, Fake, dumped, plain_torch, rounded, shifted, tf32

pytestmark = pytest.mark.pure

SMALL = Problem(N=1, C=4, H=20, W=20, K=8, R=3, S=3, name="small")


# The method, on generated times ---------------------------------------------------------------
# Each noise returns the logarithms of factors on the times of turns 0, 1, 2, ... in order of time.


def noisy(rng, turns):
    """Return noise of 1%; in one of 20 turns another process adds 20% on average."""
    hit = rng.random(turns) < 0.05
    return rng.normal(0, 0.01, turns) + hit * rng.exponential(0.2, turns)


def drifting(rng, turns):
    """Return a rise of 5% over the run, plus a wave of 5%."""
    at = np.arange(turns) / turns
    wave = np.sin(2 * np.pi * (at * rng.integers(1, 6) + rng.random()))
    return 0.05 * at + 0.05 * wave + rng.normal(0, 0.005, turns)


def remembering(values, memory):
    """Add to each value a share of the previous one."""
    for i in range(1, len(values)):
        values[i] += memory * values[i - 1]
    return values


def autocorrelated(rng, turns):
    """Return noise with a correlation time of ten turns."""
    return remembering(rng.normal(0, 0.005, turns), 0.9) + rng.normal(0, 0.003, turns)


def stepping(rng, turns):
    """Return a clock that jumps by 8% up or down, in about one of 50 turns."""
    return 0.08 * (np.cumsum(rng.random(turns) < 0.02) % 2) + rng.normal(0, 0.003, turns)


class Coarse:
    """Kernels of 5 µs, timed one by one, 20 in a turn, by a timer with steps of 0.5 µs."""

    def __init__(self, noise, rng, planted):
        self.rng = rng
        self.turns = [lambda: self.turn(5.0), lambda: self.turn(5.0 * planted)]

    def turn(self, microseconds):
        lengths = microseconds * np.exp(self.rng.normal(0, 0.02, 20))
        return list(1e-6 * 0.5 * np.floor(lengths / 0.5 + self.rng.random(20)))


class Wanders(Machine):
    """The ratio of B's time to A's is itself autocorrelated."""

    def __init__(self, noise, rng, planted):
        super().__init__(noise, rng, planted)
        own = autocorrelated(rng, MOST)
        self.turns[1] = lambda: [planted * math.exp(0.3 * own[self.at]) * self.turn(1)[0]]


def simulate(machine, noise, planted, runs, seed=0):
    rng = np.random.default_rng(seed)
    return [in_rounds(machine(noise, rng, planted).turns, run).ratio for run in range(runs)]


def share(found, verdict):
    return sum(each.verdict() == verdict for each in found) / len(found)


def held(found, planted):
    """Return how many of the intervals contain the true ratio."""
    return sum(each.low <= planted <= each.high for each in found)


@pytest.mark.parametrize(
    ("machine", "noise"),
    [
        *((Machine, each) for each in (quiet, noisy, drifting, autocorrelated, stepping)),
        (Coarse, None),
    ],
    ids=lambda value: value.__name__.lower() if value else "timer",
)
def test_error_rates(machine, noise):
    same = simulate(machine, noise, 1.0, 150)
    slow = simulate(machine, noise, 1.02, 150, seed=1)
    quick = simulate(machine, noise, 1 / 1.02, 30, seed=2)
    assert share(same, "same") >= 0.95
    assert share(slow, "slower") >= 0.95 and share(quick, "faster") >= 0.95
    # at a level of 95%, fewer than 276 of 300 intervals contain the true ratio once in 100 times
    assert held(same, 1) + held(slow, 1.02) >= 276
    assert max(found.rounds for found in same + slow) <= 512


def test_sampling_takes_longer_if_the_ratio_changes_slowly():
    calm, found = (simulate(kind, quiet, 1.02, 60) for kind in (Machine, Wanders))
    assert np.median([each.rounds for each in calm]) <= ratio.LOOKS[1]
    assert np.median([each.rounds for each in found]) >= 3 * ratio.LOOKS[1]
    assert held(found, 1.02) >= 0.75 * len(found) and share(found, "slower") >= 0.95


def test_half_a_percent_is_the_same_and_is_measured():
    found = simulate(Machine, quiet, 1.005, 60)
    assert share(found, "same") >= 0.95
    assert all(abs(each.value - 1.005) < 0.001 for each in found)
    assert {each.verdict(threshold=0.001) for each in found} == {"slower"}


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.995, 1.005, "same"),
        (1.001, 1.009, "same"),
        (0.98, 0.999, "faster"),
        (1.001, 1.02, "slower"),
        (0.98, 1.005, "undecided"),
        (0.0, math.inf, "undecided"),
    ],
)
def test_verdict_of_an_interval(low, high, verdict):
    assert Ratio((low + min(high, 2)) / 2, low, high, 40).verdict(0.01) == verdict


def test_estimate_by_hand():
    # the 55 means of pairs of 0, 1, ..., 9 are symmetric about 4.5; Wilcoxon's table: T <= 8 has
    # a level of 4.9%, and 2.1 instead of 1.96 makes it T <= 6: the 7th mean from either end
    order = [0, 5, 1, 8, 2, 9, 4, 3, 7, 6]
    assert autocorrelation_time(order) == 1
    means = sorted((i + j) / 2 for i in range(10) for j in range(i, 10))
    wanted = [pytest.approx(1.1**power) for power in (4.5, means[6], means[-7])]
    assert estimate(np.log(1.1) * np.array(order)) == Ratio(*wanted, 10)
    assert estimate([0.1] * 5) == Ratio(pytest.approx(math.exp(0.1)), 0.0, math.inf, 5)
    assert estimate([]).verdict() == "undecided"


@pytest.mark.parametrize("between", [0, 0.001, 0.003], ids=["alike", "noise", "far apart"])
def test_interval_covers_the_differences_between_runs(between):
    rng = np.random.default_rng(5)
    found = []
    for _ in range(400):
        runs = [rng.normal(0, between) + rng.normal(0, 0.003, 32) for _ in range(abing.PLACES)]
        found.append(ratio.pooled([estimate(run) for run in runs]))
    # at 95%, fewer than 367 or more than 391 of 400 contain the true ratio less than once in 200
    assert 367 <= held(found, 1) <= 391 and share(found, "same") >= 0.95
    one = [estimate(rng.normal(0, between) + rng.normal(0, 0.003, 32)) for _ in range(200)]
    assert between == 0 or held(one, 1) < 150  # an interval of a single run is too narrow


def test_pooled_by_hand():
    runs = [
        Ratio(math.exp(log), math.exp(log - 0.001), math.exp(log + 0.001), 32)
        for log in (0.01, 0.02, 0.03, 0.02)
    ]
    half = 3.182 * math.sqrt(2e-4 / 3) / 2
    found = ratio.pooled(runs)
    assert found.value == pytest.approx(math.exp(0.02)) and found.rounds == 128
    assert (found.low, found.high) == pytest.approx((math.exp(0.02 - half), math.exp(0.02 + half)))
    alike = ratio.pooled([runs[1]] * 4)  # they agree by chance
    assert math.log(alike.high / alike.low) / 2 == pytest.approx(0.6 * 0.001 / 2)
    wider = ratio.pooled(runs, unseen=0.003)  # an error that all runs share
    assert math.log(wider.high / wider.low) / 2 == pytest.approx(math.hypot(half, 0.003))
    assert ratio.pooled([estimate(()), runs[0]]) == runs[0] and not ratio.pooled([]).rounds


def test_autocorrelation_time():
    white = np.random.default_rng(3).normal(size=4000)
    red = remembering(white.copy(), 0.8)  # (1 + 0.8) / (1 - 0.8) = 9
    assert autocorrelation_time(white) == pytest.approx(1, abs=0.2)
    assert autocorrelation_time(red) == pytest.approx(9, rel=0.3)
    assert autocorrelation_time(np.round(white)) == pytest.approx(1, abs=0.2)
    assert autocorrelation_time([1.0] * 50) == 1


def test_sampling_stops_at_looks_only():
    logs = [1e-4, 3e-4, -2e-4, -2e-4] * 16
    assert settled(logs[:32], 0.005) and not settled(logs[:33], 0.005)
    assert not settled(logs[:31], 0.005) and not settled(logs[:32], 1e-7)
    assert not settled(sorted(logs[:32]), 0.005)  # a trend
    assert settled([0.0, 1.0] * (ratio.LOOKS[-1] // 2), 1e-7)


# Rounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("throttled", "discarded", "said"),
    [(lambda at: at % 3 == 0, 15, "left out"), (lambda at: True, 0, "all are kept")],
    ids=["at times", "always"],
)
def test_throttled_rounds_are_left_out_unless_most_are(throttled, discarded, said):
    tape = Tape(throttled)
    found = in_rounds([lambda: [2.0], lambda: [3.0 if throttled(tape.at + 1) else 2.0]], tape=tape)
    wanted = 1.0 if discarded else 1.5
    assert found.ratio == Ratio(*[pytest.approx(wanted)] * 3, 32) and found.discarded == discarded
    assert found.mhz == (1980 if discarded else 1000, 1000, 1980 if discarded else 1000)
    assert said in found.notes[0]


def test_the_flush_is_subtracted_and_its_noise_is_noted():
    found = in_rounds([lambda: [2.0], lambda: [2.5], *[lambda: [1.0, 1.0]] * 2])
    assert found.ratio.value == pytest.approx(1.5)  # (2.5 - 1) / (2 - 1)
    found = in_rounds([lambda: [2.0], lambda: [2.5], lambda: [1.0], lambda: [1.5]])
    assert found.ratio.value == pytest.approx(1.0)  # each side has its own flush
    flush = itertools.cycle([[3.0], [3.0], [1.0], [1.0]])
    found = in_rounds([lambda: [2.0], lambda: [2.0], *[lambda: next(flush)] * 2])
    assert found.discarded > 0 and "noise" in found.notes[-1]


def test_time_limit():
    plan = ab_timing.Plan([lambda: [1.0], lambda: [1.1]], "")
    found = ab_timing.in_rounds("cold", plan, ab_timing.RoundOptions(1e-9, 1e-6, 0))
    assert found.ratio.rounds <= 6 and "the interval is wider than the target" in found.notes[0]
    assert found.ratio.verdict() in ("undecided", "slower")


@pytest.mark.parametrize(
    ("samples", "centre"),
    [
        ([1.0, 1.0, 1.0, 9.0], 1.0),
        ([5e-6, 5e-6, 5e-6, 5.5e-6], 5.125e-6),
        ([3.0], 3.0),
        ([1.0, 3.0], 2.0),
    ],
)
def test_centre_depends_little_on_outliers_and_on_timer_steps(samples, centre):
    assert ab_timing.centre(samples) == pytest.approx(centre)


def test_the_clock_and_its_throttle_reasons_come_from_nvml(monkeypatch):
    def refuses(handle):
        raise RuntimeError("Insufficient Permissions")

    asked = []
    reads = "nvmlDeviceGetCurrentClocksEventReasons"
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetCurrentClocksThrottleReasons=None,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
        **{reads: lambda handle: 0x1 | 0x4 | 0x40},
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="12ab"))

    def read(module, device="cuda:0"):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        known = clock.Clock(torch.device(device))
        known.note()
        return known.missing, known.take()

    assert read(nvml) == ("", [clock.Reading(1980, ("power cap", "hardware thermal slowdown"))])
    assert asked == ["GPU-12ab"] and read(nvml, "cpu") == ("no GPU", [])
    setattr(nvml, reads, refuses)
    for module, why in ((nvml, "Insufficient Permissions"), (None, "not installed")):
        missing, readings = read(module)
        assert why in missing and readings == []


# How a round is timed, on a GPU that is only a clock -----


@pytest.fixture
def chip(monkeypatch):
    return chip_instead_of_a_gpu(monkeypatch)


def time_both(chip, a_seconds, b_seconds, mode, problem=PLAIN):
    a = Spin(chip, "a", a_seconds)
    b = Spin(chip, "b", b_seconds)
    (found,) = ab_timing.measure_pair(a, b, problem, [mode], until(limit_seconds=10.0))
    return found, a, b


BACK_TO_BACK = "launches back to back, no flush; 1 set of buffers, 78.7 MB, larger than"


@pytest.mark.parametrize(
    ("mode", "seconds", "problem", "method", "ratio"),
    [
        ("cold", LONG, PLAIN, "single launches", 2048 / 2008),
        ("cold", SHORT, PLAIN, "graphs of 16 flushes", 1.02),
        ("hot", SHORT, PLAIN, "4 sets of buffers", 1.02),
        ("hot", LONG, LARGE, BACK_TO_BACK, 2048 / 2008),
    ],
    ids=["cold-long", "cold-short", "hot-short", "hot-long"],
)
def test_long_launches_are_timed_one_by_one_and_short_ones_in_graphs(
    chip, mode, seconds, problem, method, ratio
):
    found, *_ = time_both(chip, *seconds, mode, problem)
    assert method in found.method and found.ratio.value == pytest.approx(ratio)
    assert found.ratio.verdict() == "slower" and ("flush" in chip.log) == (mode == "cold")
    assert found.mhz is None and found.notes[-1].endswith("lowered its clock: no GPU")
    if seconds is SHORT:  # neither launches nor flushes are part of it
        assert found.a_seconds[0] == pytest.approx(5e-6)


def test_hot_launches_cycle_through_inputs_that_both_sides_share(chip):
    _, a, b = time_both(chip, *SHORT, "hot")
    assert [x.data_ptr() for x in a.inputs] == [x.data_ptr() for x in b.inputs]
    assert len({x.data_ptr() for x in a.inputs}) == 4
    assert any(chip.log[i : i + 4] == ["a1", "a2", "a3", "a4"] for i in range(len(chip.log) - 4))


class Filtered(Spin):
    """Prepare a filter; allocate y, plan, and a workspace of the plan's size."""

    def __init__(self, chip, name, seconds, alive=None, room=1 << 30):
        super().__init__(chip, name, seconds)
        # the launches that are still alive
        self.alive = [] if alive is None else alive
        self.room = room

    def prepare(self, problem, x, w, bias=None, allocate=empty):
        if sum(each() is not None for each in self.alive) >= self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        launch = super().prepare(problem, x, w, bias)
        launch.y = allocate(problem.y_shape, torch.float32, CPU)
        launch.workspace, launch.plan = (allocate((64,), torch.uint8, CPU) for _ in range(2))
        launch.plan.fill_(len(self.name))
        self.alive.append(weakref.ref(launch))
        return launch


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_each_side_has_its_own_output_workspace_and_plan(chip, mode):
    a = Filtered(chip, "a", SHORT[0])
    b = Filtered(chip, "bb", SHORT[1])
    plan = {"cold": ab_timing._cold, "hot": ab_timing._hot}[mode](
        (a, b), PLAIN, until(), clock.Clock(CPU)
    )
    launches = [launch() for side in (a, b) for launch in side.alive if launch()]
    owned = [t.data_ptr() for each in launches for t in (each.y, each.workspace, each.plan)]
    assert len(owned) == len(set(owned)) == (6 if mode == "cold" else 24) and not plan.notes
    assert all((each.plan == len(each.runnable.name)).all() for each in launches)


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_without_memory_for_both_each_allocates_for_its_turn(chip, mode, monkeypatch):
    alive = []
    a, b = (Filtered(chip, name, each, alive, 1) for name, each in zip("ab", LONG, strict=True))
    (found,) = ab_timing.measure_pair(a, b, PLAIN, [mode], until(limit_seconds=10.0))
    assert "memory is too small for both A and B" in found.notes[0] and found.ratio.rounds >= 32
    assert found.ratio.value == pytest.approx(2048 / 2008)


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_without_graph_capture_times_include_the_launches(chip, mode):
    chip.capture_error = "operation not permitted when stream is capturing"
    found, *_ = time_both(chip, 5e-6, 5.1e-6, mode)
    assert "no CUDA graph could be captured" in found.notes[0] and "capturing" in found.notes[0]
    assert found.ratio.value == pytest.approx(13.1 / 13)


def test_a_graph_keeps_its_tensors_alive(chip):
    def step():
        """Replace a launch, which holds tensors."""

    alive = weakref.ref(step)
    turn = stopwatch.batch(Spin(chip, "a", 1.0), [step], 1, None)
    del step
    assert turn() and alive() is not None


def test_runs_with_newly_allocated_memory_are_merged(chip, monkeypatch):
    slower = itertools.cycle([1.0, 1.004, 0.996, 1.0])
    moved = []
    cold = ab_timing._cold

    def placed(kernels, *rest):
        kernels[1].seconds = 2.1e-3 * next(slower)
        return cold(kernels, *rest)

    monkeypatch.setattr(ab_timing, "_cold", placed)
    monkeypatch.setattr(ab_timing, "_ballast", lambda device, seed: moved.append(seed))
    a = Spin(chip, "a", 2e-3)
    b = Spin(chip, "b", 2e-3)
    asked = dataclasses.replace(until(limit_seconds=20.0), places=4, target=0.02)
    (found,) = ab_timing.measure_pair(a, b, PLAIN, ["cold"], asked)
    assert (
        len(found.runs) == 4 and len(set(moved)) == 3 and "newly allocated memory" in found.method
    )
    unseen = 0.001 + 30e-9 / 2.008e-3
    assert found.ratio.half_width == pytest.approx(ratio.pooled(found.runs, unseen).half_width)
    assert found.ratio.rounds == len(found.a_seconds)
    assert found.ratio.value == pytest.approx(2108 / 2008, rel=1e-4)
    assert 0.002 < found.ratio.half_width < 0.02
    (wide,) = ab_timing.measure_pair(
        a, b, PLAIN, ["cold"], dataclasses.replace(asked, target=0.001)
    )
    assert len(wide.runs) == 8 and "the runs differ by 0.8%" in wide.notes[-1]


# Sides -----------------------------------------------------------------------------------------


def forgets_padding(x, w, bias, stride, padding, dilation, groups):
    return F.conv2d(x, w, bias, stride, 0, dilation, groups)


def shifts(*given):
    return plain_torch(*given).roll(1, -1)


def rounds_to_tf32(x, w, *rest):
    return plain_torch(rounded(x), rounded(w), *rest)


def test_a_against_a_is_labelled_and_checked_once():
    kernel = Fake(name="01_a")
    result = convlab.ab(kernel, kernel, PLAIN)
    assert (result.a, result.b) == ("01_a (A)", "01_a (B)") and result.verdict == "same bytes"
    assert len(result.reports) == 1 and "A and B are the same" in str(result)


def test_two_kernels_with_the_same_name():
    mine = Fake(name="01_a")
    other = Fake(tf32, name="01_a", precision="tf32")
    other.source = "another"
    other.path = "elsewhere/01_a.cu"
    text = str(convlab.ab(mine, other, PLAIN))
    assert "A is kernels/01_a.cu, B is elsewhere/01_a.cu" in text
    assert "different precision classes: A fp32, B tf32" in text
    with pytest.raises(ConvlabError, match="different devices"):
        convlab.ab(mine, Fake(name="02_b", device=torch.device("meta")), PLAIN)


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_an_incorrect_kernel_is_never_compared(wrong):
    sides = {"a": Fake(name="01_a"), "b": Fake(name="02_b")} | {wrong: Fake(shifted, name="03_c")}
    result = convlab.ab(sides["a"], sides["b"], PLAIN)
    assert result.verdict == "incorrect" and not result.ok and math.isnan(result.ratio)
    assert result.verdicts == {} and result.counted == ({}, {}) and result.interval is None
    assert f"{wrong.upper()} INCORRECT" in str(result) and "03_c on plain: INCORRECT" in str(result)
    assert dumped(result)["ratio"] is None and result.plot() and len(result.frame) == 0


def test_a_file_edited_during_the_comparison():
    def edits(launch, y):
        launch.y.copy_(y)
        launch.runnable.source = "edited"

    with pytest.raises(ConvlabError, match="edited during the comparison"):
        convlab.ab(Fake(name="01_a"), Fake(edits, name="02_b"), PLAIN)


def test_a_callable_is_checked():
    assert convlab.ab(plain_torch, Fake(name="01_a"), PLAIN).verdict == "undecided"
    result = convlab.ab(Fake(name="01_a"), shifts, PLAIN)
    assert result.verdict == "incorrect" and result.b == "python:shifts"
    padded = Problem(N=1, C=2, H=6, W=6, K=2, R=3, S=3, padding=1)
    with pytest.raises(LaunchError, match=r"returned \(1, 2, 4, 4\).*needs \(1, 2, 6, 6\)"):
        convlab.ab(Fake(name="01_a"), forgets_padding, padded)
    with pytest.raises(LaunchError, match=r"raised TypeError.*calls it as f\(x, w"):
        convlab.ab(Fake(name="01_a"), lambda x, w: F.conv2d(x, w), PLAIN)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_callable_without_a_class_may_be_tf32():
    result = convlab.ab(rounds_to_tf32, plain_torch, PLAIN)
    assert result.classes == ("tf32", "fp32") and result.ok
    assert "python:rounds_to_tf32 is correct in tf32 precision only" in str(result)


# The result, as a GPU would give it -------------------------------------------------------------


def test_on_a_gpu_times_are_compared(monkeypatch):
    asked = []
    peaks = Ceilings(4.26e12, 51e12, 366e12, 708e12)
    monkeypatch.setattr(abing, "describe", lambda device: "an H200")
    monkeypatch.setattr(abing, "ceilings", lambda device: peaks)
    monkeypatch.setattr(
        ab_timing, "measure_pair", lambda *task: asked.append(task) or timed().modes
    )
    monkeypatch.setattr(abing, "runner", lambda *kernels: SimpleNamespace(accepts=lambda *sides: False))
    a = Fake(name="01_a")
    b = Fake(name="02_b")
    result = convlab.ab(a, b, PLAIN, seed=3, threshold=0.02, limit_seconds=7.0)
    assert asked == [(a, b, PLAIN, ["cold", "hot"], ab_timing.RoundOptions(0.01, 7.0, 3, places=4))]
    assert result.modes == timed().modes and result.verdict == "slower"
    assert result.counted == ({}, {}) and "in this process" in result.notes[0]
    assert result.floors == (floor_seconds(PLAIN, "fp32", peaks),) * 2
    assert result.notes[1:] == ("on an H200",) and len(result.reports) == 2


def test_the_text_of_a_timed_result():
    result = timed()
    assert result.verdict == "slower" and result.verdicts == {"cold": "slower", "hot": "slower"}
    assert result.ratio == pytest.approx(1.021, abs=0.001)
    assert result.interval[0] < 1.021 < result.interval[1]
    frame = result.frame
    assert list(frame["mode"]) == ["cold", "hot"] and list(frame["rounds"]) == [32, 32]
    assert frame["a_x_floor"][0] == pytest.approx(2, rel=0.01)
    text = str(result)
    assert "B is slower, 2.1% more time (cold)" in text and "1980 MHz (1980 to 1980)" in text
    assert "95%" in text and "x floor" in text and max(map(len, text.split("\n"))) <= 100
    assert "the same within 1% (cold)" in str(timed(1.0))
    assert "B is faster, 5% less time" in str(timed(0.95))


def test_a_time_below_the_theoretical_minimum_is_reported():
    result = dataclasses.replace(timed(), floors=(1.5, 1.0))
    assert (
        "; A is below the theoretical minimum; possible causes: fewer products" in result.sentence
    )
    assert list(result.frame["below_floor"]) == [True, True] and "below" not in timed().sentence


def test_a_caught_side_is_named():
    result = dataclasses.replace(timed(), modes=(), caught=("", "it slept"))
    assert result.verdict == "incorrect" and not result.ok and "B CAUGHT" in result.sentence
    assert "B caught: it slept" in str(result) and dumped(result)["caught"] == ["", "it slept"]


def test_a_timed_result_is_drawn_and_dumped(tmp_path):
    result = timed(notes=["on a GPU"])
    figure = result.plot(tmp_path / "ab.png")
    assert (tmp_path / "ab.png").stat().st_size > 10_000
    assert "time of B / time of A" in figure.axes[0].get_xlabel()
    assert len(figure.axes[1].lines) == 3  # 1, and two modes
    document = dumped(result)
    assert document["rows"][0]["mhz"] == 1980 and document["interval"][0] > 1.01
    assert pickle.loads(pickle.dumps(result.modes)) == result.modes
    assert len(result.samples) == 64 and not result.samples["ratio"].isna().any()


def test_too_few_rounds_give_no_interval_and_no_infinity():
    few = Ratio(1.02, 0.0, math.inf, 3)
    modes = tuple(dataclasses.replace(mode, ratio=few) for mode in timed().modes)
    result = dataclasses.replace(timed(), modes=modes)
    text = str(result)
    assert "too few rounds for an interval, 3 rounds" in text and result.verdict == "undecided"
    assert "inf" not in text and "0.0000" not in text and "inf" not in result._repr_html_()
    assert result.row["95% interval"] == "too few rounds for an interval" and result.plot()
    assert dumped(result)["interval"] == [0.0, None]


def test_a_set_has_a_row_for_each_problem_and_a_summary():
    result = convlab.ab(Fake(name="01_a"), Fake(name="02_b"), [PLAIN, SMALL])
    assert result.sentence == "B = 02_b, A = 01_a, on 2 problems: same bytes on 2"
    assert result.tables[0].cells == {
        "problem": ["plain", "small"],
        "verdict": ["same bytes"] * 2,
        "B/A": ["1"] * 2,
    }
    assert set(result.frame["problem"]) == {"plain", "small"} and result.ok and result.plot()
    wrong = convlab.ab(Fake(name="01_a"), Fake(shifted, name="03_c"), [PLAIN])
    assert not wrong.ok and "03_c on plain: INCORRECT" in str(wrong)
    headline = convlab.ab(Fake(), Fake(), "headline")
    assert [each.problem.label.split(" ")[0] for each in headline] == ["square", "rect", "wide"]
    both = ABs((timed(), timed(0.95)))
    assert both.sentence.endswith("2 problems: slower on 1, faster on 1")
    assert both.tables[0].cells["95% interval"][0].startswith("1.0") and len(both.plot().axes) == 2


# On a GPU ----------------------------------------------------------------------------------------

CONV = "N=8,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"
TINY = "N=1,C=32,H=14,W=14,K=32,R=1,S=1"


on_gpu = functools.partial(convlab.ab, limit_seconds=5.0)


@pytest.mark.gpu
@pytest.mark.parametrize("problem", [CONV, TINY], ids=["medium", "tiny"])
def test_gpu_a_against_a(problem):
    result = on_gpu("cudnn:fp32", "cudnn:fp32", problem)
    assert set(result.verdicts.values()) <= {"same", "undecided"}, str(result)
    assert list(result.frame["mode"]) == ["cold", "hot"] and (result.frame["a_ms"] > 0).all()


@pytest.mark.gpu
def test_gpu_small_kernels_are_timed_in_graphs():
    result = on_gpu("01_direct", "01_direct@THREADS=128", TINY)
    assert all("CUDA graphs" in mode.method for mode in result.modes), str(result)
    assert (result.frame["a_ms"] < 0.1).all()


@pytest.mark.gpu
def test_gpu_a_plain_ab_of_a_small_problem_takes_seconds():
    convlab.check("cudnn:fp32", TINY)  # initialises CUDA
    started = time.monotonic()
    result = convlab.ab("cudnn:fp32", "cudnn:tf32", TINY)
    assert time.monotonic() - started < 20
    assert abing.PLACES <= len(result.modes[0].runs) <= 2 * abing.PLACES  # more if they differ
    made = result.made
    assert made["gpu"] and made["versions"]["driver"] and [k["name"] for k in made["kernels"]]


@pytest.mark.gpu
def test_gpu_more_work_is_slower():
    def twice(*given):
        plain_torch(*given)
        return plain_torch(*given)

    result = on_gpu(plain_torch, twice, CONV)
    assert set(result.verdicts.values()) == {"slower"}, str(result)
    assert 1.05 < result.ratio < 2.5 and "in this process" in str(result)


@pytest.mark.gpu
def test_gpu_launches_that_cannot_be_captured_are_timed_from_the_host():
    def waits(*given):
        y = plain_torch(*given)
        torch.cuda.synchronize()
        return y

    result = on_gpu(plain_torch, waits, TINY, limit_seconds=2.0)
    assert "no CUDA graph could be captured" in str(result) and result.ok
    assert (
        torch.randn(4, device="cuda").isfinite().all()
    )  # the random generator works after a failed capture
    again = on_gpu("01_direct", "cudnn:fp32", TINY, limit_seconds=2.0)  # the GPU still works
    assert all("CUDA graphs" in mode.method for mode in again.modes), str(again)
