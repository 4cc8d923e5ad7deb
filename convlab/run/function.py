"""A Python callable, checked and timed as a kernel is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..words.errors import LaunchError
from ..words.problem import Problem
from .runnable import Allocate, Inputs, Launch, Runnable, empty


@dataclass(frozen=True)
class Function(Runnable):
    """A runnable made of ``f(x, w, bias, stride, padding, dilation, groups)``.

    What it allocates and converts is part of its time; gradients are off. `precision` is the class
    that it is judged by.
    """

    function: Callable[..., torch.Tensor]
    device: torch.device
    precision: str = "fp32"
    library = True

    @classmethod
    def of(cls, function: Callable[..., torch.Tensor], engine: str) -> Function:
        """Return a callable as a runnable: on the CPU beside what is simulated, else on the GPU."""
        on_cpu = engine == "sim" or not torch.cuda.is_available()
        where = "cpu" if on_cpu else f"cuda:{torch.cuda.current_device()}"
        return cls(function, torch.device(where), declared(function) or "fp32")

    @property
    def name(self) -> str:
        """As a baseline's, with a colon: "python:my_convolution"."""
        return f"python:{getattr(self.function, '__name__', type(self.function).__name__)}"

    title = name

    @property
    def engine(self) -> str:
        """"cuda", or "torch" on the CPU."""
        return "cuda" if self.device.type == "cuda" else "torch"

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        allocate: Allocate = empty,
    ) -> FunctionLaunch:
        """Return what calls it; `allocate` is ignored, the function allocates for itself."""
        return FunctionLaunch(self, problem, (x, w, bias))


def declared(function: Callable[..., torch.Tensor]) -> str | None:
    """Return the class that a callable names by an attribute `precision`, or None."""
    named = inspect.getattr_static(function, "precision", None)
    return named if isinstance(named, str) else None


class FunctionLaunch(Launch):
    """A call with given tensors; `y` is a new tensor after each call."""

    runnable: Function

    def __init__(self, runnable: Function, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        self._y: torch.Tensor | None = inputs[0].new_empty(problem.y_shape)

    @property
    def y(self) -> torch.Tensor | None:
        """The output (N, K, P, Q) of the last call."""
        return None if self._y is None else self._y.contiguous()

    def __call__(self) -> None:
        name, problem, device = self.runnable.name, self.problem, self.inputs[0].device
        self._y = None  # so that its memory serves again
        arguments = (problem.stride, problem.padding, problem.dilation, problem.groups)
        try:
            with torch.no_grad():
                y = self.runnable.function(*self.inputs, *arguments)
        except (torch.OutOfMemoryError, LaunchError):
            raise
        except RuntimeError as error:
            if "CUDA" in str(error):  # told apart by whoever runs it
                raise
            raise self._raised(error) from error
        except Exception as error:
            raise self._raised(error) from error
        if not isinstance(y, torch.Tensor):
            raise LaunchError(f"{name} returned a {type(y).__name__}, not a torch.Tensor")
        found = (tuple(y.shape), y.dtype, y.device)
        wanted = (problem.y_shape, torch.float32, device)
        if found != wanted:
            raise LaunchError(
                f"{name} returned {found[0]}, {found[1]} on {found[2]}; "
                f"{problem.label} needs {wanted[0]}, {wanted[1]} on {wanted[2]}"
            )
        self._y = y

    def _raised(self, error: Exception) -> LaunchError:
        first = str(error).strip().split("\n")[0]
        return LaunchError(
            f"{self.runnable.name} raised {type(error).__name__}: {first}; it is called as "
            "f(x, w, bias, stride, padding, dilation, groups), the last four as conv2d takes them"
        )
