"""A GPU that is only a clock: launches take the time that they state, and nothing is computed."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from convlab.core.kernel.runnable import Launch, Runnable
from convlab.core.problem.problem import Problem
from convlab.core.timing import ab_timing, stopwatch
from tests.fakes import CPU

# Seconds of two sides' launches; the second is 2% slower.
SHORT = (5e-6, 5.1e-6)
LONG = (2e-3, 2.04e-3)
LARGE = Problem(N=1, C=64, H=512, W=300, K=64, R=1, S=1)


class Chip:
    """Stands for torch.cuda: launches take the GPU time they state; from the host 8 µs on top.

    `now` is in picoseconds, exact, so that equal launches take equal times.
    """

    capture_error: str | None = None

    def __init__(self):
        self.now = 0
        self.capturing = None
        self.log = []

    def work(self, name, seconds):
        if self.capturing is not None:
            self.capturing.append((name, seconds))
            return
        self.now += round(1e12 * (seconds + 8e-6))
        self.log.append(name)

    def event(self, enable_timing):
        chip = self
        at = []
        return SimpleNamespace(
            record=lambda: at.append(chip.now),
            synchronize=lambda: None,
            at=at,
            elapsed_time=lambda end: (end.at[-1] - at[-1]) / 1e9,
        )

    def graph(self):
        steps: list = []

        def replay():
            for name, seconds in steps:
                self.now += round(1e12 * seconds)
                self.log.append(name)

        return SimpleNamespace(steps=steps, replay=replay)

    @contextlib.contextmanager
    def capture(self, graph, capture_error_mode):
        if self.capture_error:
            raise RuntimeError(self.capture_error)
        self.capturing = graph.steps
        yield
        self.capturing = None


class Spin(Runnable):
    """A runnable of known time, which tells the buffers it is given apart."""

    engine = "cuda"
    device = CPU
    title = "Spin"
    precision = "fp32"

    def __init__(self, chip, name, seconds):
        self.chip = chip
        self.name = name
        self.seconds = seconds
        self.inputs = []
        self.given = []

    def prepare(self, problem, x, w, bias=None, allocate=None):
        self.inputs.append(x)
        self.given.append(allocate)
        return Spun(self, problem, (x, w, bias))


class Spun(Launch):
    """What `Spin` prepares."""

    def __init__(self, spin, problem, inputs):
        super().__init__(spin, problem, inputs)
        self.name = f"{spin.name}{len(spin.inputs)}"

    def __call__(self):
        self.runnable.chip.work(self.name, self.runnable.seconds)


class Blind:
    """Stands for an observer of launches that compute nothing."""

    def __init__(self, launch, rows, trusted=False):
        self.launch = launch
        self.trusted = trusted

    def look(self, row=0):
        """Change nothing, keep nothing, judge nothing."""

    before = after = finish = finish_any = renew = look


def chip_instead_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Chip:
    """Put a `Chip` in the place of torch.cuda; no launch's output is judged."""
    chip = Chip()
    for module in (ab_timing, stopwatch):
        monkeypatch.setattr(module, "observe", Blind)
    for name, value in {
        "Event": chip.event,
        "CUDAGraph": chip.graph,
        "graph": chip.capture,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "device": lambda device: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    flush = SimpleNamespace(zero_=lambda: chip.work("flush", 40e-6))
    monkeypatch.setattr(ab_timing, "flush_buffer", lambda device: flush)
    monkeypatch.setattr(stopwatch, "_end_capture", lambda: None)
    monkeypatch.setattr(ab_timing, "describe", lambda device: SimpleNamespace(l2_bytes=50 << 20))
    return chip
