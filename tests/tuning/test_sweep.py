"""Sweeps: each point of a grid of tunables, on the simulator and as a GPU would time it."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pandas as pd
import pytest

import convlab
from convlab.core.errors import ProblemError
from convlab.core.kernel.cuda import CUDA
from convlab.core.problem.problem import Problem
from convlab.core.timing.measure import Timing
from convlab.isolate.runner import RUNNER
from convlab.tuning import sweep as sweeping
from tests.fakes import PLAIN, Fake, dumped

SMALL = Problem(N=1, C=4, H=20, W=20, K=8, R=3, S=3, name="small")
CONV = "N=8,C=64,H=56,W=56,K=64,R=3,S=3,padding=1"
sweep = functools.partial(convlab.sweep, problems=SMALL, engine="sim", progress=False)


one_process = pytest.mark.xdist_group("swept")  # sweeps once


@pytest.fixture(scope="module")
def swept():
    return sweep("03_smem_tile", {"TILE": [8, 16, 24], "K_TILE": [8, 16]})


@one_process
def test_a_sweep_drops_what_is_invalid_with_the_reason(swept):
    assert len(swept.frame) == 4 and len(swept.dropped) == 2 and swept.ok
    assert set(swept.dropped["TILE"]) == {24}
    assert set(swept.dropped["reason"]) == {"static_assert: TILE: 8, 16 or 32"}
    assert list(swept.frame["traffic_mb"]) == sorted(swept.frame["traffic_mb"])
    assert swept.cost == "traffic_mb" and "(MB)" in swept.cost_label
    assert swept.best == {"small": swept.frame["kernel"][0]}
    assert convlab.load(swept.best["small"], engine="sim").defines["TILE"] == 16
    assert "4 of 6 points valid" in str(swept) and "<table" in swept._repr_html_()
    assert len(dumped(swept)["dropped"]) == 2


@one_process
@pytest.mark.parametrize("tunables", [["TILE", "K_TILE"], ["TILE"]], ids=["map", "bars"])
def test_a_sweep_is_drawn(swept, tunables, tmp_path):
    frame = swept.frame.copy()
    frame.attrs["tunables"] = tunables
    chart = convlab.core.show.charts.sweep_chart(frame, "03", swept.notes)
    assert chart.save(tmp_path / "sweep.png").stat().st_size > 5_000
    assert convlab.core.show.charts.sweep_chart(pd.DataFrame())._repr_png_()


def test_a_sweep_of_nothing_names_the_tunables():
    with pytest.raises(ProblemError, match="nothing to sweep.*; 01_direct has: THREADS"):
        convlab.sweep("01_direct", {}, "wide", engine="sim")


def test_a_sweep_puts_the_best_first_within_a_problem():
    found = sweep("03", {"TILE": [8, 16]}, problems=[SMALL, PLAIN])
    assert list(found.frame["problem"]) == ["small", "small", "plain", "plain"]
    for _, rows in found.frame.groupby("problem"):
        assert rows["traffic_mb"].is_monotonic_increasing
    assert list(found.best) == ["small", "plain"]


def test_a_sweep_on_a_gpu_has_times(monkeypatch):
    kernel = Fake(name="03")
    one_point = sweeping.measure_point
    kernel.engine = "cuda"
    kernel.runs_on = CUDA
    timings = iter([Timing(2e-3, 0.01, 50, True), Timing(1e-3, 0.02, 3, False)])

    def call(function, kernel, problem, time_limit, **options):
        cost = next(timings).cost(floor=1.0, flops=1e9)
        row = {"kernel": kernel.name, "correct": True, "note": ""} | cost.cells
        row["note"] = f"timing not stable: only {row['samples']} samples within the time limit" * (
            row["samples"] < 9
        )
        return SimpleNamespace(frame=pd.DataFrame([row]), samples=pd.DataFrame({"ms": [1.0, 1.5]}))

    monkeypatch.setattr(RUNNER, "call", call, raising=False)
    monkeypatch.setattr(convlab.Kernel, "counts", False)
    monkeypatch.setattr(sweeping, "measure_point", lambda _, *rest: one_point(kernel, *rest))
    found = sweep("03", {"TILE": [8, 16]})
    assert list(found.frame["TILE"]) == [16, 8] and list(found.frame[found.cost]) == [1, 2]
    assert list(found.frame["spread_pct"]) == [2, 1] and list(found.frame["samples"]) == [3, 50]
    assert "03: timing not stable: only 3 samples within the time limit" in str(found)
    assert list(found.samples["ms"]) == [1.0, 1.5] * 2
    assert [(row["cost"], row["low"]) for row in found.costs] == [(1.0, 1.0), (2.0, 1.0)]


def test_a_wrong_point_is_dropped(tmp_path):
    source = convlab.load("01_direct").source.replace("y[", "y[WRONG + ")
    assert "WRONG" in source
    path = tmp_path / "wrong.cu"
    path.write_text(
        source.replace("#ifndef THREADS", "#ifndef WRONG\n#define WRONG 0\n#endif\n#ifndef THREADS")
    )
    found = sweep(path, {"WRONG": [0, 1]})
    assert list(found.frame["WRONG"]) == [0] and not found.dropped.empty
    assert found.dropped["kind"][0] in ("incorrect", "failed") and found.dropped["reason"][0]


def test_a_sweep_keeps_what_the_kernel_was_loaded_with(monkeypatch):
    seen = []
    row = {"correct": True, "traffic_mb": 1.0, "note": ""}
    kernel = convlab.load("03", engine="sim", trace=False)
    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "measure_point", lambda kernel, *_: seen.append(kernel) or row)
        sweep(kernel, {"TILE": [8, 16]})
    assert [each.trace for each in seen] == [False] * 2
    found = sweep(kernel, {"TILE": [16]})
    assert found.ok and found.frame["traffic_mb"].isna().all() and "traffic" not in str(found)


@pytest.mark.gpu
def test_gpu_sweep():
    found = convlab.sweep(
        "03_smem_tile", {"TILE": [8, 16, 24], "K_TILE": [16, 32]}, CONV, progress=False
    )
    assert len(found.frame) == 4 and len(found.dropped) == 2 and (found.frame["time_ms"] > 0).all()


HOSTILE = (
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
)


@pytest.mark.parametrize("options", HOSTILE, ids=str)
def test_arguments_that_make_no_sense_are_problem_errors(options):
    """Which name the argument, or the tunable."""
    usual = {"kernel": "01", "tunables": {"THREADS": [64]}, "problems": PLAIN}
    with pytest.raises(ProblemError) as error:
        convlab.sweep(**usual | options)
    (argument,) = options
    assert argument.rstrip("s") in str(error.value) or "THREADS" in str(error.value)
