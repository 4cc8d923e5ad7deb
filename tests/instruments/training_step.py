"""Measure a training step of ResNet-18 with torch's convolutions and with convlab's.

    python -m tests.instruments.training_step measure FILE.json
    cp FILE.json tests/instruments/training_h100.json
    python -m tests.instruments.training_step write kernels/README.md

The network is ResNet-18 with N = 32 images of 224 x 224 in NCHW and TF32, trained by SGD. Steps of both alternate.
Parts of a step are times on the GPU between events; they include gaps in which the GPU waits for the CPU. The CPU's
time of a step is the time until all of it is queued, if the GPU is idle at first. The same step as a CUDA graph needs
no CPU. Then the CPU's time for one call is measured, on a layer of the network that takes the GPU less time.
Measuring needs a GPU, and takes about two minutes.
"""

import argparse
import copy
import datetime
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

import convlab
from convlab.core.machine.device import describe
from tests.instruments.pages import laid, write_between

RESULTS = Path(__file__).with_name("training_h100.json")
IMAGES = 32
SIZE = 224
PARTS = ("forward", "backward", "optimizer")
# Steps before the first one that counts: cuDNN searches, and kernels are built and rehearsed.
_WARM_UP = 8
_STEPS = 60
# Calls for one measurement of the CPU's time.
_CALLS = 300


def _convolution(c_in: int, c_out: int, size: int, stride: int = 1) -> nn.Module:
    layer = nn.Conv2d(c_in, c_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(c_out))


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(c_in, c_out, 3, stride)
        self.second = _convolution(c_out, c_out, 3)
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = _convolution(c_in, c_out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.shortcut(x) + self.second(F.relu(self.first(x))))


class ResNet18(nn.Module):
    """The network of the paper, with 1,000 classes; `width` is the first stage's channels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = _convolution(3, width, 7, 2)
        blocks = []
        for c_in, c_out in itertools.pairwise((width, width, 2 * width, 4 * width, 8 * width)):
            blocks.append(Block(c_in, c_out, 1 if c_in == c_out else 2))
            blocks.append(Block(c_out, c_out, 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(8 * width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, stride=2, padding=1)
        return self.head(self.blocks(x).mean((2, 3)))


class Step:
    """A training step of a model on one batch."""

    def __init__(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._model = model
        self._images = images
        self._labels = labels
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        self._graph: torch.cuda.CUDAGraph | None = None

    def _run(self, mark: Callable[[], None] = lambda: None) -> None:
        """Run a step; call `mark` before and after each of its parts."""
        self._optimizer.zero_grad()
        mark()
        loss = F.cross_entropy(self._model(self._images), self._labels)
        mark()
        loss.backward()
        mark()
        self._optimizer.step()
        mark()

    def timed(self) -> list[float]:
        """Run a step, and return the ms of its parts, and of all."""
        events = []

        def mark() -> None:
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()

        self._run(mark)
        torch.cuda.synchronize()
        parts = [first.elapsed_time(second) for first, second in itertools.pairwise(events)]
        return [*parts, events[0].elapsed_time(events[-1])]

    def queued(self) -> float:
        """Run a step, and return the ms until all of it is queued."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        self._run()
        queued = time.perf_counter() - started
        torch.cuda.synchronize()
        return queued * 1e3

    def capture(self) -> None:
        """Record a step as a CUDA graph, after a few steps on another stream, as torch asks for."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)
        self._optimizer.zero_grad()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._run()

    def replayed(self) -> float:
        """Run the graph, and return its ms."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)


def steps() -> dict[str, list[float]]:
    """Return the median ms of each part, of all, of the CPU, and of the graph, by name."""
    torch.manual_seed(0)
    model = ResNet18().cuda().train()
    images = torch.randn(IMAGES, 3, SIZE, SIZE, device="cuda")
    labels = torch.randint(1000, (IMAGES,), device="cuda")
    ours = convlab.nn.replace(copy.deepcopy(model), "auto:tf32")
    sides = {"torch": Step(model, images, labels), "convlab auto": Step(ours, images, labels)}
    samples: dict[str, list[list[float]]] = {name: [] for name in sides}
    for i in range(_WARM_UP + _STEPS):
        for name, step in sides.items():
            times = step.timed()
            if i >= _WARM_UP:
                samples[name].append(times)
    for i in range(_STEPS):
        for name, step in sides.items():
            samples[name][i].append(step.queued())
    for step in sides.values():
        step.capture()
    for i in range(_STEPS):
        for name, step in sides.items():
            samples[name][i].append(step.replayed())
    return {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in samples.items()
    }


def _cpu_microseconds(call: Callable[[], object]) -> float:
    """Return the CPU's time of a call, the median of five rounds."""
    for _ in range(20):
        call()
    rounds = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_CALLS // 5):
            call()
        rounds.append((time.perf_counter() - started) / (_CALLS // 5))
    torch.cuda.synchronize()
    return statistics.median(rounds) * 1e6


def calls() -> dict[str, float]:
    """Return the CPU's microseconds of one call of a layer, without and with its backward pass."""
    x = torch.randn(IMAGES, 256, 14, 14, device="cuda", requires_grad=True)
    layer = nn.Conv2d(256, 256, 3, padding=1, bias=False, device="cuda")
    ours = convlab.nn.replace(copy.deepcopy(layer), "auto:tf32")
    dy = torch.randn_like(x)
    times = {}
    for name, each in (("torch", layer), ("convlab auto", ours)):
        with torch.no_grad():
            times[f"{name}, forward"] = _cpu_microseconds(lambda each=each: each(x))
        times[f"{name}, with gradients"] = _cpu_microseconds(
            lambda each=each: each(x).backward(dy)
        )
    return times


def measure(file: Path) -> None:
    """Measure, and write the results to a JSON file."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    measured = {
        "steps": steps(),
        "cpu": calls(),
        "made": f"{describe()}; {datetime.date.today()}",
    }
    file.write_text(json.dumps(measured, indent=1) + "\n")
    print(text(measured))


def text(measured: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    parts = (*PARTS, "step", "CPU", "step as a graph")
    columns = ["convolutions", *(f"{part}, ms" for part in parts)]
    rows = [[name, *(f"{ms:.2f}" for ms in times)] for name, times in measured["steps"].items()]
    theirs, ours = (measured["steps"][name] for name in ("torch", "convlab auto"))
    eager, graph = (theirs[i] / ours[i] for i in (-3, -1))
    per_call = pd.DataFrame(
        [[name, f"{microseconds:.0f}"] for name, microseconds in measured["cpu"].items()],
        columns=["a call of a layer of 256 channels, 14 x 14", "CPU, microseconds"],
    )
    return (
        f"{laid(pd.DataFrame(rows, columns=columns))}\n\n"
        f"A step with convlab's convolutions is {eager:.2f} times as fast as with torch's, and "
        f"{graph:.2f} times if both are CUDA graphs.\n\n"
        f"{laid(per_call)}\n\n"
        f"ResNet-18, {IMAGES} images of {SIZE} x {SIZE}, NCHW, TF32, SGD; {measured['made']}."
    )


def main() -> None:
    """Measure to a file, or write a page from the file in the repository."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["measure", "write"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.action == "measure":
        measure(given.file)
    else:
        write_between(given.file, "training", text(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
