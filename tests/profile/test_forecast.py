"""`compare` without a GPU shows predicted times, if a room provides them."""

import math

import pytest

import convlab
from convlab.core import forecast, rooms
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.forecast import Forecast
from convlab.core.machine import toolchain

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
        lambda kind, name: {"time": time, "prepare": lambda *_: None}[name]
        if kind == "forecast"
        else provided(kind, name),
    )
    return asked


def test_predicted_times_are_the_first_cost_and_counts_stay_those_of_the_problem_that_was_run(
    monkeypatch,
) -> None:
    times = {"01_direct": 3.0, "03_smem_tile": 1.5}
    asked = answers(monkeypatch, lambda kernel: Forecast(times[kernel.name]))
    # Its traffic takes the simulator too long, so the problem is scaled down.
    whole = convlab.problem("N=4,C=8,H=130,W=130,K=64,R=3,S=3")
    found = convlab.compare(PAIR, whole, engine="sim", progress=False)
    assert asked == [(name, whole, "H200") for name in PAIR]
    assert list(found.frame["predicted_ms"]) == [3.0, 1.5]
    assert found.whole == whole and found.problem.macs < whole.macs
    assert found.cost == "traffic_mb"
    assert found.frame["floor_mb"][0] == pytest.approx(found.problem.min_bytes / 1e6)
    assert "predicted fastest on H200: 03_smem_tile, 1.5 ms" in found.sentence
    text = str(found)
    assert text.index("predicted ms") < text.index("traffic MB")
    assert found.to_dict()["forecast_for"] == "H200"


def test_a_small_problem_is_predicted_only_for_a_named_gpu(monkeypatch) -> None:
    asked = answers(monkeypatch, lambda kernel: Forecast(1.0, "not validated on A100"))
    plain = convlab.compare("01_direct", SMALL, engine="sim", progress=False)
    assert not asked and "predicted_ms" not in plain.frame and plain.whole is None
    found = convlab.compare("01_direct", SMALL, engine="sim", progress=False, gpu="A100")
    assert [gpu for _, _, gpu in asked] == ["A100"]
    assert "predicted time in doubt: not validated on A100" in str(found)


def test_a_missing_prediction_has_its_reason(monkeypatch) -> None:
    def fails(kernel) -> Forecast:
        raise LaunchError("no launched function was both compiled and counted\nmore")

    answers(monkeypatch, fails)
    found = convlab.compare("01_direct", SMALL, engine="sim", progress=False, gpu="H100")
    assert found.ok and math.isnan(found.frame["predicted_ms"][0])
    expected = "no predicted time: no launched function was both compiled and counted"
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
        (Forecast(1.0, "mma.sync"), "B is predicted faster: A 2 ms, B 1 ms on L4 at full size; mma"),
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
    assert "by predicted time: 03_smem_tile@TILE=8" in swept.sentence
    pair = convlab.ab(*reversed(times), SMALL, engine="sim", gpu="A100")
    assert "B is predicted faster: A 4 ms, B 1 ms on A100" in pair.sentence
    assert (pair.verdict, pair.ratio) == ("predicted faster", 0.25)
    assert pair.verdicts["counters"].endswith("bytes") and "predicted ms, A100" in str(pair)
