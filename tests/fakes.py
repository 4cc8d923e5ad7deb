"""Runnables that compute with torch, and spoil their output as a test tells them to."""

from __future__ import annotations

import json

import torch
from torch.nn import functional as F

from convlab.core.errors import UnsupportedError
from convlab.core.kernel.runnable import Launch, Runnable
from convlab.core.problem.problem import Problem

CPU = torch.device("cpu")
PLAIN = Problem(N=2, C=4, H=11, W=9, K=6, R=3, S=3, name="plain")
FULL = Problem(
    N=3,
    C=4,
    H=12,
    W=15,
    K=8,
    R=2,
    S=3,
    stride=(2, 1),
    padding=(1, 2),
    dilation=(1, 2),
    groups=2,
    bias=True,
    name="full",
)


def zeros(shape, dtype, device):
    return torch.zeros(shape, dtype=dtype, device=device)


class CountingEngine:
    """Stands for an engine that counts traffic, as the simulator does."""

    name = "sim"
    counts = True
    time_limit = 120.0
    at_once = 1
    macs_in_a_second = 20_000_000
    device = CPU
    target = (90, 227 << 10)

    def interrupt(self):
        """Do nothing: each launch has ended."""


class Fake(Runnable):
    """A runnable that computes with torch and then spoils the output as it is told to."""

    def __init__(self, spoil=None, *, name="90_fake", precision="fp32", atomics=False, device=CPU):
        self.name = name
        self.title = f"Fake {name}"
        self.precision = precision
        self.engine = "sim"
        self.runs_on = CountingEngine()
        self.device = device
        self.source = name
        self.path = f"kernels/{name}.cu"
        self.atomics = atomics
        self.spoil = spoil or right
        self.runs = 0

    def unsupported(self, problem):
        return "needs R == 3" if problem.R == 1 else None

    def on_gpu(self, gpu):
        return self

    def prepare(self, problem, x, w, bias=None, allocate=zeros):
        if self.unsupported(problem):
            raise UnsupportedError(f"{self.name} does not support it: {self.unsupported(problem)}")
        return FakeLaunch(self, problem, (x, w, bias), allocate)


class FakeLaunch(Launch):
    def __init__(self, kernel, problem, inputs, allocate):
        super().__init__(kernel, problem, inputs)
        device = inputs[0].device
        self.y = allocate(problem.y_shape, torch.float32, device)
        self.workspace = allocate((64,), torch.uint8, device)

    def __call__(self):
        p = self.problem
        self.runnable.runs += 1
        y = F.conv2d(*self.inputs, p.stride, p.padding, p.dilation, p.groups)
        self.runnable.spoil(self, y.relu() if p.relu else y)
        self.counters = {
            "global_load_bytes": 4 * p.macs,
            "global_store_bytes": 4 * y.numel(),
            "shared_wavefronts": 7,
            "seconds": 0.01,
        }


def right(launch, y):
    launch.y.copy_(y)


def spoilt(change):
    """A mistake: all is right, and then `change(launch)` is made."""

    def spoil(launch, y):
        launch.y.copy_(y)
        change(launch)

    return spoil


def shifted(launch, y):
    launch.y.copy_(y.roll(1, -1))


def rounded(t):
    """To the ten bits of mantissa that TF32 keeps."""
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def tf32(launch, y):
    p = launch.problem
    (x, w, bias) = launch.inputs
    launch.y.copy_(
        F.conv2d(rounded(x), rounded(w), bias, p.stride, p.padding, p.dilation, p.groups)
    )


def wrong_if_strided(launch, y):
    launch.y.copy_(y + (launch.problem.stride != (1, 1)))


def dumped(result):
    """What JSON has of a result."""
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


def plain_torch(x, w, bias, stride, padding, dilation, groups):
    return F.conv2d(x, w, bias, stride, padding, dilation, groups)
