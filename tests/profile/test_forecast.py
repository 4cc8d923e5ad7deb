"""`compare` without a GPU shows predicted times, if a room provides them."""

import math
from types import SimpleNamespace

import pytest

import convlab
from convlab.core import forecast, rooms
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.forecast import Forecast
from convlab.core.machine import toolchain
from convlab.core.machine.gpus import GPUS
from convlab.profile import forecast as forecasts
from convlab.profile import sampling, time_model
from convlab.profile.inlined_calls import never_run
from convlab.profile.launched_functions import LaunchedFunction
from convlab.profile.sass import Function, Instruction
from tests.suites import needs_tools

SMALL = "N=1,C=2,H=10,W=10,K=4,R=3,S=3"
PAIR = ["01_direct", "03_smem_tile"]


def answers(monkeypatch, answer) -> list[tuple]:
    """Let a room provide `answer` as the forecast; return the list of what it was asked."""
    asked = []

    def time(kernel, problem, gpu):
        asked.append((kernel.name, problem, gpu.name))
        return answer(kernel)

    provided = rooms.provided
    monkeypatch.setattr(forecast, "available", lambda: True)
    monkeypatch.setattr(forecast, "require", lambda: None)
    monkeypatch.setattr(
        rooms,
        "provided",
        lambda kind, name: (
            {"time": time, "prepare": lambda *_: None}[name]
            if kind == "forecast"
            else provided(kind, name)
        ),
    )
    return asked


# Its traffic takes the simulator too long, so the problem is scaled down.
LARGE = "N=4,C=8,H=130,W=130,K=64,R=3,S=3"
COUNTERS = {"global_load_bytes": 3e9, "global_store_bytes": 1e9, "shared_wavefronts": 7}


def test_costs_are_those_of_the_whole_problem(monkeypatch) -> None:
    times = {"01_direct": 3.0, "03_smem_tile": 1.5}
    sampled = {"counters": COUNTERS, "sampled": "4 of 8,000 blocks"}
    asked = answers(monkeypatch, lambda kernel: Forecast(times[kernel.name], **sampled))
    whole = convlab.problem(LARGE)
    found = convlab.compare(PAIR, whole, engine="sim", progress=False)
    assert asked == [(name, whole, "H200") for name in PAIR]
    assert list(found.frame["predicted_ms"]) == [3.0, 1.5]
    assert found.whole == whole and found.problem.macs < whole.macs
    assert found.cost == "traffic_mb"
    assert found.frame["floor_mb"][0] == pytest.approx(whole.min_bytes / 1e6)
    assert list(found.frame["traffic_mb"]) == [4000, 4000]
    assert list(found.frame["shared_wavefronts"]) == [7, 7]
    assert {row["problem"] for row in found.costs} == {whole.label}
    assert "predicted fastest on H200: 03_smem_tile, 1.5 ms" in found.sentence
    text = str(found)
    assert text.index("predicted ms") < text.index("traffic MB")
    assert "counted on sampled blocks" in text
    assert "4 of 8,000 blocks" in found.text(verbose=True)
    assert found.to_dict()["forecast_for"] == "H200"


def test_ab_and_sweep_count_the_whole_problem(monkeypatch) -> None:
    counters = {"03_smem_tile@TILE=8": {**COUNTERS, "global_load_bytes": 1e9}}
    answers(
        monkeypatch,
        lambda kernel: Forecast(2.0, counters=counters.get(kernel.name, COUNTERS), sampled="a few"),
    )
    pair = convlab.ab("03_smem_tile@TILE=16", "03_smem_tile@TILE=8", LARGE, engine="sim")
    traffic = pair.frame.set_index("counter").loc["traffic_bytes"]
    assert (traffic.a, traffic.b) == (4_000_000_000, 2_000_000_000)
    assert pair.verdict == forecast.TOO_CLOSE and "A: a few; B: a few" in str(pair)
    swept = convlab.sweep("03_smem_tile", {"TILE": [16, 8]}, LARGE, engine="sim", progress=False)
    whole = convlab.problem(LARGE)
    assert list(swept.best) == [whole.label]
    assert set(swept.frame["traffic_mb"]) == {2000, 4000}
    assert swept.frame["floor_mb"][0] == pytest.approx(whole.min_bytes / 1e6)


@needs_tools
def test_without_nvcc_traffic_is_still_that_of_the_whole_problem(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(toolchain, "cuda", lambda: None)
    found = convlab.compare("01_direct", LARGE, engine="sim", progress=False)
    whole = convlab.problem(LARGE)
    assert "predicted_ms" not in found.frame and found.whole == whole
    assert found.frame["floor_mb"][0] == pytest.approx(whole.min_bytes / 1e6)
    assert found.frame["x_floor"][0] > 1
    text = " ".join(str(found).split())
    assert "no predicted times" in text and "blocks" in found.frame["sampled"][0]


def test_a_small_problem_is_predicted_only_for_a_named_gpu(monkeypatch) -> None:
    asked = answers(monkeypatch, lambda kernel: Forecast(1.0, "not validated on A100"))
    plain = convlab.compare("01_direct", SMALL, engine="sim", progress=False)
    assert not asked and "predicted_ms" not in plain.frame and plain.whole is None
    assert forecast.OF_A_SMALL_PROBLEM in str(plain)
    found = convlab.compare("01_direct", SMALL, engine="sim", progress=False, gpu="A100")
    assert [gpu for _, _, gpu in asked] == ["A100"]
    assert "predicted time in doubt: not validated on A100" in str(found)


def test_a_missing_prediction_has_its_reason(monkeypatch) -> None:
    def fails(kernel) -> Forecast:
        raise LaunchError("no launched function was both compiled and counted\nmore")

    answers(monkeypatch, fails)
    found = convlab.compare("01_direct", SMALL, engine="sim", progress=False, gpu="H100")
    assert found.ok and math.isnan(found.frame["predicted_ms"][0])
    expected = "no costs at full size: no launched function was both compiled and counted"
    assert expected in str(found) and "least traffic" in found.sentence


@pytest.mark.pure
def test_a_gpu_that_cannot_be_predicted_for_is_an_error(monkeypatch) -> None:
    with pytest.raises(ProblemError, match="GPU"):
        convlab.compare("01_direct", SMALL, engine="sim", gpu="H300")
    monkeypatch.setattr(toolchain, "cuda", lambda: None)
    with pytest.raises(ProblemError, match="no nvcc.*pip install -r requirements.txt"):
        convlab.compare("01_direct", SMALL, engine="sim", gpu="H100")
    monkeypatch.setattr(rooms, "names", lambda kind: [])
    with pytest.raises(ProblemError, match="the room `profile` predicts them"):
        convlab.compare("01_direct", SMALL, engine="sim", gpu="H100")


@pytest.mark.pure
@pytest.mark.parametrize(
    "b, says",
    [
        (Forecast(1.0), "B is predicted faster: A 2 ms, B 1 ms on L4 at full size"),
        (Forecast(4.0), "B is predicted slower: "),
        (Forecast(1.5), "too close to predict: "),
        (Forecast(1.5, error=1.2), "B is predicted faster: "),
        (Forecast(1.5, "not validated", error=1.2), "too close to predict: "),
        (
            Forecast(1.0, "mma.sync"),
            "B is predicted faster: A 2 ms, B 1 ms on L4 at full size; mma",
        ),
    ],
    ids=["faster", "slower", "close", "small error", "small error in doubt", "in doubt"],
)
def test_a_difference_within_the_models_error_is_not_predicted(b, says: str) -> None:
    sentence = forecast.comparison(Forecast(2.0, error=1.1 if b.error else None), b, "L4")
    assert sentence.startswith(says)


def test_ab_and_sweep_go_by_predicted_times(monkeypatch) -> None:
    times = {"03_smem_tile@TILE=8": 1.0, "03_smem_tile@TILE=16": 4.0}
    answers(monkeypatch, lambda kernel: Forecast(times[kernel.name]))
    swept = convlab.sweep(
        "03_smem_tile", {"TILE": [16, 8]}, SMALL, engine="sim", progress=False, gpu="A100"
    )
    assert list(swept.frame["predicted_ms"]) == [1.0, 4.0]
    assert list(swept.best.values()) == ["03_smem_tile@TILE=8"]
    assert "03_smem_tile@TILE=8, predicted 1 ms" in swept.sentence
    pair = convlab.ab(*reversed(times), SMALL, engine="sim", gpu="A100")
    assert "B is predicted faster: A 4 ms, B 1 ms on A100" in pair.sentence
    assert (pair.verdict, pair.ratio) == ("predicted faster", 0.25)
    assert pair.verdicts["counters"].endswith("bytes") and "predicted ms, A100" in str(pair)


@needs_tools
def test_a_forecast_is_kept_in_the_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(toolchain.CACHE, str(tmp_path))
    kernel = convlab.load("01_direct", engine="sim")
    problem = convlab.problem(SMALL)
    gpu = GPUS["H100"]
    first = forecasts.forecast(kernel, problem, gpu)
    monkeypatch.setattr(sampling, "count", pytest.fail)
    assert forecasts.forecast(kernel, problem, gpu) == first
    assert first.group == "fp32 units" and 1 < first.error < 2


@pytest.mark.pure
def test_a_library_that_is_called_often_takes_the_time_of_its_calls() -> None:
    terms = {"fp32": 1e-6, "DRAM": 1e-6}
    one = time_model.Part("cuBLAS", terms, 1e-6, calls=1)
    many = time_model.Part("cuBLAS", terms, 1e-6, calls=128)
    assert many.seconds == pytest.approx(128 * time_model.LIBRARY_CALL_SECONDS)
    assert one.seconds == pytest.approx(time_model.LIBRARY_CALL_SECONDS)


@pytest.mark.pure
def test_what_a_block_does_once_is_not_multiplied_with_the_pixels() -> None:
    """Two blocks: 10 accesses each before the pixels, and one for each pixel."""

    def counts(pixels: int) -> SimpleNamespace:
        line = {"file": "k.cu", "line": 1, "space": "global", "kind": "load", "array": "x"}
        numbers = dict.fromkeys(sampling._NUMBERS, 2 * 10 + pixels)
        return SimpleNamespace(
            lines=[line | numbers],
            lines_by_call=[line | numbers | {"calls": (("k.cu", 1),)}],
            reached={(("k.cu", 1),)},
            counters={"global_load_requests": 2 * 10 + pixels},
            executed={"k.cu": {1: 2 * 10 + pixels}},
            sampling=None,
            findings=(),
            flops=None,
        )

    # 20 blocks and 3,000 pixels; the smaller problems have 100 and 200.
    factors = (10, (3000 - 10 * 100) / 100)
    found = sampling.Multiplied.extrapolated(counts(100), counts(200), [], None, factors)
    assert found.lines[0]["requests"] == found.executed["k.cu"][1] == 20 * 10 + 3000
    assert found.counters["global_load_requests"] == 20 * 10 + 3000


@needs_tools
def test_a_data_gradients_rows_are_those_of_dx() -> None:
    """With a filter of 5 x 9, a problem of few rows has twice as many rows of dx as of dy."""
    problem = convlab.problem("rect").computing("data gradient")
    kernel = convlab.load("20_data_gradient_wgmma", engine="sim")
    counts = sampling.count(kernel, problem, 5_000_000)
    assert counts.smaller.H > 1.5 * counts.smaller.P
    assert problem.flops < counts.counters["tensor_flops"] < 2.1 * problem.flops


@pytest.mark.pure
def test_inlined_calls_that_never_run_are_those_whose_lines_ran_elsewhere() -> None:
    def instruction(address: int, line: int, call: int) -> Instruction:
        return Instruction(address, "IADD3", "", calls=(("k.cu", line), ("k.cu", call)))

    # A function of lines 1 to 3 is called on lines 20 and 30, and one of line 5 on lines 21 and 31.
    code = [instruction(100 * call + line, line, call) for call in (20, 30) for line in (1, 2, 3)]
    code += [instruction(100 * call + 50, 5, call + 1) for call in (20, 30)]
    function = Function("f", instructions=code)
    reached = {(("k.cu", line), ("k.cu", 20)) for line in (1, 2, 3)}
    reached |= {(("k.cu", 5), ("k.cu", 21))}
    assert never_run(function, reached) == {3001, 3002, 3003}
    # Where nvcc gives all copies the line of one call, nothing is known about them.
    merged = Function("f", instructions=[i for i in code if ("k.cu", 30) in i.calls])
    assert not never_run(merged, reached)
    # Without the calls around them, the lines of a function that was not inlined may be any copy.
    assert not never_run(function, reached | {(("k.cu", 2),)})


@pytest.mark.pure
def test_what_is_filled_once_is_not_multiplied() -> None:
    """A smaller problem's executions were multiplied by 500; the stores of the filter were not."""
    row = {"file": "k.cu", "line": 7, "space": "global", "kind": "store", "array": "workspace"}
    packing = LaunchedFunction(Function("pack"), lines=[row | {"lanes": 64}])
    executed = {"k.cu": {7: 500 * 64, 6: 500 * 128}}
    assert time_model._executions(packing, executed) == {"k.cu": {7: 64, 6: 128}}
    other = LaunchedFunction(Function("conv"), lines=[row | {"lanes": 64, "array": "y"}])
    assert time_model._executions(other, executed) == executed


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("20_data_gradient_wgmma", "N1 C8 H9 W9 K8 R3 S3", ""),
        ("20_data_gradient_wgmma", "N1 C8 H9 W9 K8 R3 S3 s1x2", "data gradients with a stride"),
        ("21_weight_gradient_wgmma", "N1 C8 H9 W9 K8 R3 S3 s2", ""),
        ("21b_weight_gradient_bf16", "N1 C8 H9 W9 K8 R3 S3", "weight gradients in 16 bits"),
        ("11_wgmma_tf32", "N1 C8 H9 W9 K8 R3 S3 s2", ""),
    ],
)
def test_what_the_model_does_not_know_is_not_shown(name: str, spec: str, says: str) -> None:
    kernel = convlab.load(name, engine="sim")
    prediction = SimpleNamespace(group="wgmma, below 0.1 ms")
    reason = forecasts.unknown(kernel, kernel.asked(convlab.problem(spec)), prediction)
    assert says in reason and bool(says) == bool(reason)
    other = SimpleNamespace(group="fp32 units")
    assert not forecasts.unknown(kernel, kernel.asked(convlab.problem(spec)), other)


@pytest.mark.pure
@pytest.mark.parametrize(("seconds", "group"), [(2e-4, "wgmma"), (2e-5, "wgmma, below 0.1 ms")])
def test_short_times_on_wgmma_are_a_group_of_their_own(seconds: float, group: str) -> None:
    part = SimpleNamespace(seconds=seconds, mix={"HGMMA": 1.0}, tensor_flops=1e9)
    assert time_model.Prediction((part,), None).group == group
