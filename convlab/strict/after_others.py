"""Define a setting that first calls the kernel for other problems, in the same process.

State that a kernel keeps between calls (a cached filter, a table, a size) must not change a later
result.
"""

import contextlib
import dataclasses
import math
import re
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

# Matches a `__device__` variable of the file.
_VARIABLE = re.compile(r"^\s*(static\s+)?__device__\s+[\w\s*]+\w(\[[^\]]*\])*\s*(=[^;]*)?;", re.M)
# Matches what lets a kernel start before the one before it has ended.
_DEPENDENT = re.compile(
    r"\blaunch_dependent\b|\bcudaLaunchAttributeProgrammaticStreamSerialization\b|"
    r"\bprogrammaticStreamSerializationAllowed\b"
)
# Bytes of shared memory that a block may use unless the kernel opts in to more.
SHARED_BYTES = 48 << 10


@dataclass(frozen=True)
class AfterOthers(Setting):
    """Run a problem after calls for other problems."""

    name: str = "after_others"
    words: str = "after calls for other problems in the same process"
    keeps_filter: bool = True

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return lists of problems; each is a history of calls before a run."""
        return histories(kernel, problem)

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch after calls for other problems, with other data."""
        if launch.own_process:
            launch.call_after(earlier)
        else:
            call_after(launch, earlier)


@dataclass(frozen=True)
class AfterLittleShared(AfterOthers):
    """Run a problem that needs much shared memory after a call that needs less.

    A kernel that asks for more than 48 KB must ask again, or at first for the most that it ever needs.
    """

    name: str = "after_little_shared"
    words: str = "after a call that needs less shared memory"

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return one list, with a variant of the problem that has a smaller filter, or other small sizes."""
        plain = {"stride": (1, 1), "dilation": (1, 1)}
        pointwise = plain | {"R": 1, "S": 1, "padding": (0, 0)}
        fewer = {"C": problem.groups, "K": problem.groups}
        variants = _supported_variants(kernel, problem, pointwise | fewer, pointwise, plain | fewer, plain, {"N": 1})
        return [list(variants)[:1]]


@dataclass(frozen=True)
class TwoStreams(Setting):
    """Run a problem while another call of the same build runs on another stream.

    Each call has its own y, workspace and prepared filter. So the two calls may share only what
    the kernel file keeps: a `__device__` variable, a static buffer, a table. The simulator reports a
    race between them. On a GPU the other call has other data, and the result must not change.
    """

    name: str = "two_streams"
    words: str = "while another call runs on another stream"

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch beside another call for the same problem."""
        if launch.own_process:
            launch.call_beside()
        else:
            call_beside(launch)


@dataclass(frozen=True)
class BackToBack(Setting):
    """Run a problem directly after another call on the same stream, with the same workspace.

    With programmatic dependent launch, the first kernel of a call may start before the last kernel of the call
    before it has ended. So it may not overwrite the workspace before it has waited. The simulator reports a
    race. On a GPU the first call has other data, and the result must not change.
    """

    name: str = "back_to_back"
    words: str = "directly after another call on the same stream"

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch directly after a call for the same problem."""
        if launch.own_process:
            launch.call_again()
        else:
            call_again(launch)


@dataclass(frozen=True)
class LeastWorkspace(AfterOthers):
    """Run a problem with the least workspace that the kernel needs, then once more after a call.

    That call is for the same problem with other data, and leaves its numbers in the workspace.
    """

    name: str = "least_workspace"
    words: str = "with the least workspace that the kernel needs"
    least_workspaces: float = 1

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return an empty history, and a call for the same problem."""
        return [[], [problem]]


def has_variables(kernel: Runnable) -> bool:
    """Return whether a kernel keeps numbers on the GPU from call to call, such as a count of blocks."""
    return bool(_VARIABLE.search(kernel.source or ""))


def starts_early(kernel: Runnable) -> bool:
    """Return whether a kernel uses programmatic dependent launch."""
    return bool(_DEPENDENT.search(kernel.source or ""))


def smallest(kernel: Runnable, problem: Problem) -> list[Problem]:
    """Return a list with a variant of the problem that has one output in each plane, or few; or an empty list."""
    height = problem.dilation[0] * (problem.R - 1) + 1
    width = problem.dilation[1] * (problem.S - 1) + 1
    one = {"N": 1, "H": height, "W": width, "padding": (0, 0)}
    variants = _supported_variants(kernel, problem, one, {"N": 1, "H": height + 3, "W": width + 3}, {"N": 1})
    return list(variants)[:1]


def histories(kernel: Runnable, problem: Problem) -> list[list[Problem]]:
    """Return lists of problems; the kernel must be correct after calls for each list.

    A kernel that caches a result looks it up by some parameters of the problem, or by the data. So
    most lists have two problems. The first differs in all parameters. The second differs in one
    parameter, or only in two elements of each tensor.
    """
    if 4 * problem.gemm_k > SHARED_BYTES:
        fewer = problem.groups * (SHARED_BYTES // (4 * problem.R * problem.S) + 1)
        return [[*_supported_variants(kernel, problem, {"C": fewer})]]
    N = problem.N
    H = problem.H
    W = problem.W
    pad_h, pad_w = problem.padding
    dilation_h, dilation_w = problem.dilation
    larger = {"N": N + 1, "C": 2 * problem.C, "H": H + 3, "W": W + 8, "K": 2 * problem.K}
    pointwise = larger | {"R": 1, "S": 1, "padding": (0, 0)}
    strided = pointwise | {"stride": (2, 3), "dilation": (2, 2)}
    different = next(_supported_variants(kernel, problem, strided, pointwise, larger, {}))
    smaller, *others = _supported_variants(
        kernel,
        problem,
        {"N": 1, "H": max(H - 2, 1), "W": max(W - 4, 1)},
        larger,
        {"padding": (pad_h + 1, pad_w)},
        {"dilation": (dilation_h, dilation_w + 1)},
        {"dilation": (dilation_h + 1, dilation_w)},
        {"stride": (2, 1)},
        {"groups": 1},
        {"relu": not problem.relu},
        # Such a C is split in another number of parts.
        {"C": problem.C * 5 // 3 // problem.groups * problem.groups},
        {},
    )
    return [[smaller], *([different, other] for other in (smaller, *others))]


def _supported_variants(
    kernel: Runnable, problem: Problem, *changes: dict[str, Any]
) -> Iterator[Problem]:
    """Yield the problem with each of the changes that is valid and that the kernel supports."""
    for change in changes:
        with contextlib.suppress(ProblemError):
            variant = dataclasses.replace(problem, name="", **change)
            if not kernel.unsupported(variant):
                yield variant


def call_after(launch: Launch, earlier: Sequence[Problem]) -> None:
    """Call the launch's runnable for other problems with other data, then call the launch.

    The other calls use tensors at the same addresses, if they fit there. The last one also uses the
    same workspace and prepared filter. A call for the same problem changes only two elements of
    each tensor. On a GPU the largest of the earlier calls runs once more on another stream, at the
    same time as the last one and the launch.
    """
    originals = [(tensor, tensor.clone()) for tensor in launch.inputs if tensor is not None]
    others = [_call_other(launch, problem, originals) for problem in earlier[:-1]]
    other_stream = None
    if launch.runnable.device.type == "cuda" and others:
        other_stream = torch.cuda.Stream()
        other_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other_stream):
            max(others, key=lambda other: other.problem.macs)()
    for problem in earlier[-1:]:
        _call_other(launch, problem, originals, ("workspace", "plan"))
    for tensor, original in originals:
        tensor.copy_(original)
    launch.prepare_filter()
    launch()
    if other_stream is not None:
        torch.cuda.current_stream().wait_stream(other_stream)


def call_beside(launch: Launch) -> None:
    """Call the launch while its runnable runs for other data on another stream, before and after."""
    if launch.runnable.device.type != "cuda":
        launch()
        return
    negated = tuple(None if tensor is None else -tensor for tensor in launch.inputs)
    other = launch.runnable.prepare(launch.problem, *negated)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other()
    launch()
    with torch.cuda.stream(stream):
        other()
    torch.cuda.current_stream().wait_stream(stream)


def call_again(launch: Launch) -> None:
    """Call the launch's runnable for other data in the same workspace, and then directly the launch."""
    negated = tuple(None if tensor is None else -tensor for tensor in launch.inputs)
    other = launch.runnable.prepare(launch.problem, *negated)
    other.workspace = launch.workspace
    if launch.runnable.device.type == "cuda":
        torch.cuda.synchronize(launch.runnable.device)
    other()
    launch()


def _call_other(
    launch: Launch,
    problem: Problem,
    originals: Sequence[tuple[Tensor, Tensor]],
    shared: Sequence[str] = (),
) -> Launch:
    """Call the runnable for another problem, in the launch's buffers that `shared` names."""
    for tensor, original in originals:
        tensor.copy_(original).neg_()
        if problem == launch.problem:
            # Swap two elements: the first and last element and the sum do not change.
            flat = tensor.neg_().as_strided((tensor.numel(),), (1,))
            size = tensor.numel()
            i = 3 * size // 7
            j = 5 * size // 7
            flat[i], flat[j] = flat[j].clone(), flat[i].clone()
    other = launch.runnable.prepare(problem, *_fitted(launch, problem))
    for name in shared:
        buffer = getattr(launch, name)
        replaced = getattr(other, name)
        if buffer is not None and replaced is not None and len(replaced) <= len(buffer):
            setattr(other, name, buffer[: len(replaced)])
    other.prepare_filter()
    other()
    return other


def _fitted(launch: Launch, problem: Problem) -> Inputs:
    """Return x, w and bias of another problem, in the launch's memory if they fit there."""
    x, w, bias = launch.inputs
    format = launch.runnable.format
    return (
        _resized(x, format.x, problem.first_shape),
        _resized(w, format.w, problem.second_shape),
        _resized(bias, format.bias, (problem.K,)),
    )


def _resized(tensor: Tensor | None, storage: Storage, shape: tuple[int, ...]) -> Tensor | None:
    """Return a tensor of another shape, in the same memory if it is large enough."""
    if tensor is None:
        return None
    flat = tensor.as_strided((tensor.numel(),), (1,))
    size = math.prod(shape)
    flat = flat[:size] if size <= len(flat) else flat.new_zeros(size)
    return storage.logical(flat.view(storage.in_memory(shape)))
