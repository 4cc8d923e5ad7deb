"""A/B in the worker: in which process it is timed, and in how many."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest

import convlab
from convlab.core.kernel.function import Function
from convlab.core.timing import ab as abing
from convlab.core.timing import ab_timing
from convlab.isolate.runner import RUNNER
from convlab.isolate.worker import can_send
from tests.fake_times import timed, until
from tests.fakes import CPU, PLAIN, plain_torch


def test_runnables_that_can_be_sent_to_a_worker():
    assert can_send(Function(plain_torch, CPU)) and can_send(convlab.load("01", engine="sim"))
    assert not can_send(Function(lambda *given: None, CPU))
    notebook = eval("lambda *given: None", {"__name__": "__main__"})
    assert not can_send(Function(notebook, CPU))


def test_isolation_goes_through_the_worker(monkeypatch):
    calls = []
    here = []
    monkeypatch.setattr(
        RUNNER, "call", lambda f, *args, **options: calls.append(options), raising=False
    )
    monkeypatch.setattr(ab_timing, "measure_pair", lambda *task: here.append(task))
    kernels = [Function(plain_torch, CPU), convlab.load("01", engine="sim")]
    notes: list[str] = []
    measured = functools.partial(abing._measure, kernels, PLAIN, ["cold"], until(0, 0.005, 1.0))
    measured(False, notes)
    assert len(calls) == 1 and calls[0]["time_limit"] > 120 + 8 and not here and not notes
    kernels[0] = Function(lambda *given: None, CPU)
    measured(False, notes)
    assert len(calls) == 1 and len(here) == 1 and "in this process" in notes[0]


def test_careful_times_in_fresh_processes(monkeypatch):
    stopped = []
    asked = []
    answers = itertools.cycle([timed(1.02).modes, timed(1.024).modes])
    monkeypatch.setattr(RUNNER, "restart", lambda: stopped.append(1), raising=False)

    def call(function, *task, **_):
        asked.append(task[-1])
        return next(answers)

    monkeypatch.setattr(RUNNER, "call", call, raising=False)
    kernels = [Function(plain_torch, CPU)] * 2
    asking = dataclasses.replace(until(), places=6)
    found = abing._measure(kernels, PLAIN, ["cold", "hot"], asking, True, [])
    assert len(stopped) == 6 and len({part.seed for part in asked}) == 6
    assert {part.places for part in asked} == {1}
    assert [mode.mode for mode in found] == ["cold", "hot"]
    assert found[0].ratio.value == pytest.approx(1.022, abs=5e-4) and len(found[0].runs) == 6
    assert found[0].ratio.low < 1.0205 and "fresh process" in found[0].method
