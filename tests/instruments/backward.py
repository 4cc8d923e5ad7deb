"""Measure what the notebook `backward` shows: the gradients' times, and the parts of a training step.

    python -m tests.instruments.backward > notebooks/backward.json

This needs a GPU, and takes about four minutes. The file has two parts:

- "gradients": for each problem of the set "backward" the times of the rungs and of cuDNN, L2 cold;
- "steps": a training step of ResNet-18 with 32 images of 224 x 224, by torch and with convlab's layers.
  `training_step.py` compares the two more exactly; here, a step is taken apart into its convolutions.

The notebook also measures a training step itself, by `parts`, where it runs.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import convlab
from convlab.core.machine.device import describe
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from tests.instruments.training_step import ResNet18

# The rungs that are timed, and cuDNN's classes.
RUNGS = {
    "data gradient": (
        "18b_data_gradient_gemm",
        "20_data_gradient_wgmma",
        "20b_data_gradient_rows",
        "20f_data_gradient_rows_3xtf32",
    ),
    "weight gradient": (
        "19b_weight_gradient_gemm",
        "21_weight_gradient_wgmma",
        "21c_weight_gradient_3xtf32",
    ),
}
LIBRARY = ("cudnn:fp32", "cudnn:tf32")
# Seconds that timing one kernel on one problem takes.
_SECONDS = 1.0


def parts(model: nn.Module, x: Tensor, repeats: int = 5) -> dict[str, float]:
    """Measure the parts of a training step in ms: "forward", "data", "weight", "rest" and "step".

    Each convolution of the model is called alone: its forward pass, its data gradient and its weight
    gradient, by torch. Layers of one shape are measured once. The rest is the whole step without
    these three sums: normalisation, ReLU, pooling, loss, optimizer, and gaps between kernels.
    Convolutions that are called alone find more in the L2 than in a step, so "rest" is an upper bound.

    Parameters
    ----------
    model : with torch's convolutions; its parameters change.
    x : the images, (N, C, H, W). The first layer's data gradient is left out: nobody needs it.
    repeats : how often each call is repeated; the time is the mean on a GPU, the least on a CPU.
        On a CPU one thread computes, so that times are stable.

    Examples
    --------
    >>> parts(ResNet18(8), torch.randn(4, 3, 64, 64))  # doctest: +SKIP
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _parts(model, x, repeats)
    finally:
        torch.set_num_threads(threads)


def _parts(model: nn.Module, x: Tensor, repeats: int) -> dict[str, float]:
    found = [problem for _, problem in convlab.nn.problems(model, x)]
    times = dict.fromkeys(("forward", "data", "weight"), 0.0)
    for problem, layers in Counter(found).items():
        calls = _calls(problem, x.device)
        if problem == found[0]:
            del calls["data"]
        for part, call in calls.items():
            times[part] += layers * milliseconds(call, x.device, repeats)
    step = milliseconds(training_step(model, x), x.device, repeats)
    return times | {"rest": step - sum(times.values()), "step": step}


def _calls(problem: Problem, device: torch.device) -> dict[str, Callable[[], object]]:
    """Return torch's three convolutions of a problem as calls."""
    aten = torch.ops.aten
    x = torch.randn(problem.x_shape, device=device)
    w = torch.randn(problem.w_shape, device=device)
    dy = torch.randn(problem.y_shape, device=device)
    numbers = (problem.stride, problem.padding, problem.dilation, False, (0, 0), problem.groups)

    def backward(*needed: bool) -> Callable[[], object]:
        return lambda: aten.convolution_backward(dy, x, w, None, *numbers, needed)

    return {
        "forward": lambda: aten.convolution(x, w, None, *numbers),
        "data": backward(True, False, False),
        "weight": backward(False, True, False),
    }


def training_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return a step of SGD on one batch, as a call."""
    labels = torch.arange(len(x), device=x.device) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Return the time of a call in ms, after two calls that are not timed.

    On a GPU it is the mean of `repeats` calls one after another, by events. On a CPU it is the least of
    their CPU times, which other processes hardly change.
    """
    for _ in range(2):
        call()
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / repeats
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return 1000 * min(taken)


def steps() -> dict[str, dict[str, float]]:
    """Measure a training step of the whole ResNet-18 on the GPU: torch's parts, and convlab's layers."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.manual_seed(0)
    x = torch.randn(32, 3, 224, 224, device="cuda")
    measured = {"torch, cuDNN in TF32": parts(ResNet18().cuda(), x, 20)}
    print(measured, file=sys.stderr, flush=True)
    model = convlab.nn.replace(ResNet18().cuda(), "auto:tf32")
    measured['convlab, "auto:tf32"'] = {"step": milliseconds(training_step(model, x), x.device, 20)}
    return measured


def gradients() -> list[dict[str, object]]:
    """Time the rungs and cuDNN on the problems of the set "backward"."""
    rows = []
    for problem in problems("backward"):
        compared = convlab.compare(
            RUNGS[problem.computes],
            problem,
            baselines=LIBRARY,
            limit_seconds=_SECONDS,
            progress=False,
        )
        print(compared, file=sys.stderr, flush=True)
        for row in compared.to_dict()["rows"]:
            name = problem.name.removeprefix("backward.").partition("_")[0]
            kept = ("kernel", "class", "correct", "error", "time_ms", "floor_ms", "note")
            rows.append(
                {"problem": name, "gradient": problem.computes}
                | {key: row.get(key) for key in kept}
            )
    return rows


def main() -> int:
    """Print what was measured as JSON; return the exit status."""
    if not torch.cuda.is_available():
        print("this measures times: run it on a machine with a GPU", file=sys.stderr)
        return 2
    measured = {
        "device": str(describe(torch.device("cuda"))),
        "date": datetime.date.today().isoformat(),
        "steps": steps(),
        "gradients": gradients(),
    }
    print(json.dumps(measured, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
