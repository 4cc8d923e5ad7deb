"""A setting in which a kernel was called for other problems before, in the same process.

What a kernel keeps between calls (a cached filter, a table, a size) must not leak into this one.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.correctness.setting import Setting
from ..core.errors import ProblemError
from ..core.kernel.runnable import Inputs, Launch, Runnable
from ..core.problem.format import Storage
from ..core.problem.problem import Problem

SHARED_BYTES = 48 << 10  # of a block, without opting in to more


@dataclass(frozen=True)
class AfterOthers(Setting):
    """After calls for other problems."""

    name: str = "after_others"
    words: str = "after calls for other problems in the same process"
    keeps_filter: bool = True

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return what the kernel is called for before, each time anew."""
        return histories(kernel, problem)

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch after calls for other problems, on other numbers."""
        if launch.own_process:
            launch.call_after(earlier)
        else:
            call_after(launch, earlier)


def histories(kernel: Runnable, problem: Problem) -> list[list[Problem]]:
    """Return lists of problems that a kernel is called for before; after each y must be right.

    A kernel that keeps something looks it up by some of a problem's numbers, or of the data. So a
    list has a problem that differs in all numbers, then one that differs in a single number, or only
    in two elements of each tensor.
    """
    N = problem.N
    C = problem.C
    H = problem.H
    W = problem.W
    K = problem.K
    pad_h, pad_w = problem.padding
    dilation_h, dilation_w = problem.dilation

    def like(*changes: dict[str, Any]) -> Iterator[Problem]:
        for change in changes:
            with contextlib.suppress(ProblemError):
                other = dataclasses.replace(problem, name="", **change)
                if not kernel.unsupported(other):
                    yield other

    if 4 * problem.gemm_k > SHARED_BYTES:
        fewer = problem.groups * (SHARED_BYTES // (4 * problem.R * problem.S) + 1)
        return [[*like({"C": fewer})]]
    more = {"N": N + 1, "C": 2 * C, "H": H + 3, "W": W + 8, "K": 2 * K}
    point = more | {"R": 1, "S": 1, "padding": (0, 0)}
    unlike = next(like(point | {"stride": (2, 3), "dilation": (2, 2)}, point, more, {}))
    less, *others = like(
        {"N": 1, "H": max(H - 2, 1), "W": max(W - 4, 1)},
        more,
        {"padding": (pad_h + 1, pad_w)},
        {"dilation": (dilation_h, dilation_w + 1)},
        {"dilation": (dilation_h + 1, dilation_w)},
        {"stride": (2, 1)},
        {"groups": 1},
        {"relu": not problem.relu},
        {},
    )
    return [[less], *([unlike, other] for other in (less, *others))]


def call_after(launch: Launch, earlier: Sequence[Problem]) -> None:
    """Call a launch after its runnable was called for other problems, on other numbers.

    Their tensors lie at the same addresses where they fit, and so do the last one's workspace and
    plan. For the same problem they are the same but for two elements of each tensor. On a GPU the
    largest of them, but not the last, runs once more on another stream, beside the last and this
    one: only the last comes between what it leaves behind and this one.
    """
    originals = [(tensor, tensor.clone()) for tensor in launch.inputs if tensor is not None]
    others = [_call_other(launch, problem, originals) for problem in earlier[:-1]]
    beside = None
    if launch.runnable.device.type == "cuda" and others:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            max(others, key=lambda other: other.problem.macs)()
    for problem in earlier[-1:]:
        _call_other(launch, problem, originals, ("workspace", "plan"))
    for tensor, original in originals:
        tensor.copy_(original)
    launch.prepare_filter()
    launch()
    if beside is not None:
        torch.cuda.current_stream().wait_stream(beside)


def _call_other(
    launch: Launch,
    problem: Problem,
    originals: Sequence[tuple[Tensor, Tensor]],
    lent: Sequence[str] = (),
) -> Launch:
    """Call the runnable for another problem; `lent` names buffers of the launch that it gets."""
    for tensor, original in originals:
        tensor.copy_(original).neg_()
        if problem == launch.problem:
            # Two elements change places; the ends and the sum stay.
            flat = tensor.neg_().as_strided((tensor.numel(),), (1,))
            size = tensor.numel()
            i = 3 * size // 7
            j = 5 * size // 7
            flat[i], flat[j] = flat[j].clone(), flat[i].clone()
    other = launch.runnable.prepare(problem, *_fitted(launch, problem))
    for name in lent:
        mine = getattr(launch, name)
        its = getattr(other, name)
        if mine is not None and its is not None and len(its) <= len(mine):
            setattr(other, name, mine[: len(its)])
    other.prepare_filter()
    other()
    return other


def _fitted(launch: Launch, problem: Problem) -> Inputs:
    """Return tensors of another problem, at the launch's addresses where they are not larger."""
    x, w, bias = launch.inputs
    format = launch.runnable.format
    return (
        _resized(x, format.x, problem.x_shape),
        _resized(w, format.w, problem.w_shape),
        _resized(bias, format.bias, (problem.K,)),
    )


def _resized(tensor: Tensor | None, stored: Storage, shape: tuple[int, ...]) -> Tensor | None:
    if tensor is None:
        return None
    flat = tensor.as_strided((tensor.numel(),), (1,))
    size = math.prod(shape)
    flat = flat[:size] if size <= len(flat) else flat.new_zeros(size)
    return stored.logical(flat.view(stored.in_memory(shape)))
