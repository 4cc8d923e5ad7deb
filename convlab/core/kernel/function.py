"""A Python callable, checked and timed as a kernel is."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import LaunchError
from ..problem.problem import Problem
from .call import relu_keyword
from .runnable import Allocate, Inputs, Launch, Runnable, empty


@dataclass(frozen=True)
class Function(Runnable):
    """A runnable made of ``f(x, w, bias, stride, padding, dilation, groups)``, gradients off.

    For a problem with a ReLU it needs a parameter ``relu``, and is called with ``relu=True``, too.
    What it allocates and converts is part of its time.
    """

    function: Callable[..., Tensor]
    device: torch.device
    precision: str = "fp32"
    library = True

    @classmethod
    def of(cls, function: Callable[..., Tensor], device: str) -> Function:
        """Return a callable as a runnable on the CPU, or on the current GPU where there is one."""
        on_cpu = device == "cpu" or not torch.cuda.is_available()
        where = "cpu" if on_cpu else f"cuda:{torch.cuda.current_device()}"
        return cls(function, torch.device(where), declared(function) or "fp32")

    @property
    def name(self) -> str:
        """As a baseline's, with a colon: "python:my_convolution"."""
        return f"python:{getattr(self.function, '__name__', type(self.function).__name__)}"

    title = name

    @property
    def texts(self) -> dict[str, str]:
        """Its source, where Python knows it."""
        with contextlib.suppress(OSError, TypeError):
            return {f"{self.name}.py": inspect.getsource(self.function)}
        return {}

    @property
    def engine(self) -> str:
        """The GPU's, or "torch" on the CPU."""
        return "cuda" if self.device.type == "cuda" else "torch"

    def unsupported(self, problem: Problem) -> str | None:
        """Return that it has no parameter `relu` where the problem needs one."""
        if not problem.relu:
            return None
        with contextlib.suppress(TypeError, ValueError):  # Python knows none of its parameters
            if "relu" in inspect.signature(self.function).parameters:
                return None
        return "it has no parameter `relu`, which is True where y is max(y, 0)"

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Return what calls it; `allocate` is ignored, the function allocates for itself."""
        self.accept(problem)
        return FunctionLaunch(self, problem, (x, w, bias))


def declared(function: Callable[..., Tensor]) -> str | None:
    """Return the class that a callable names by an attribute `precision`, or None."""
    named = inspect.getattr_static(function, "precision", None)
    return named if isinstance(named, str) else None


class FunctionLaunch(Launch):
    """A call with given tensors; `y` is what it returned, with whatever strides."""

    runnable: Function

    def __init__(self, runnable: Function, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        self.y = inputs[0].new_empty(problem.y_shape)

    def __call__(self) -> None:
        name = self.runnable.name
        problem = self.problem
        self.y = None  # so that its memory serves again
        arguments = (problem.stride, problem.padding, problem.dilation, problem.groups)
        try:
            with torch.no_grad():
                y = self.runnable.function(*self.inputs, *arguments, **relu_keyword(problem.relu))
        except Exception as error:
            # the GPU's errors are told apart by whoever runs it
            ours = isinstance(error, (torch.OutOfMemoryError, LaunchError))
            if ours or isinstance(error, RuntimeError) and "CUDA" in str(error):
                raise
            first = str(error).strip().split("\n")[0]
            raise LaunchError(
                f"{name} raised {type(error).__name__}: {first}; it is called as f(x, w, bias, "
                "stride, padding, dilation, groups), the last four as conv2d takes them"
            ) from error
        if type(y) is not Tensor:  # a subclass may compute when it is looked at
            raise LaunchError(f"{name} returned a {type(y).__name__}, not a plain torch.Tensor")
        found = (tuple(y.shape), y.dtype, y.device)
        wanted = (problem.y_shape, torch.float32, self.inputs[0].device)
        if found != wanted:
            said, need = ("{}, {} on {}".format(*facts) for facts in (found, wanted))
            raise LaunchError(f"{name} returned {said}; {problem.label} needs {need}")
        self.y = _own(y, self.inputs, name)


def _own(y: Tensor, inputs: Inputs, name: str) -> Tensor:
    """Return an output without attributes of its own; LaunchError unless computed, and no input."""
    if y.layout != torch.strided or y.is_neg() or y.is_conj():
        raise LaunchError(f"{name} returned a {y.layout} view with work left: y.resolve_neg()")
    if any(step == 0 and size > 1 for step, size in zip(y.stride(), y.shape, strict=True)):
        raise LaunchError(f"{name} returned a view in which outputs share memory: y.contiguous()")
    at = y.untyped_storage().data_ptr()
    for which, given in zip(("x", "w", "bias"), inputs, strict=True):
        if given is not None and y.numel() and given.untyped_storage().data_ptr() == at:
            raise LaunchError(
                f"{name} returned a view of its input {which}: y is memory of its own"
            )
    return Tensor.detach(y)
