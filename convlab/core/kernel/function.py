"""A Python callable that convlab checks and times like a kernel."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import LaunchError
from ..problem.problem import Problem
from .call import relu_keyword
from .runnable import Allocate, Inputs, Launch, Runnable, empty


@dataclass(frozen=True)
class Function(Runnable):
    """A runnable for a Python function ``f(x, w, bias, stride, padding, dilation, groups)``.

    It runs without gradients. For a problem with a ReLU the function needs a parameter ``relu``,
    and gets ``relu=True``. Its allocations and conversions count as part of its time.
    """

    function: Callable[..., Tensor]
    device: torch.device
    precision: str = "fp32"
    library = True

    @classmethod
    def of(cls, function: Callable[..., Tensor], device: str) -> Function:
        """Return a runnable for a callable: on the CPU, or on the current GPU if there is one."""
        on_cpu = device == "cpu" or not torch.cuda.is_available()
        where = "cpu" if on_cpu else f"cuda:{torch.cuda.current_device()}"
        return cls(function, torch.device(where), declared(function) or "fp32")

    @property
    def name(self) -> str:
        """The callable's name after a prefix, as for a baseline: "python:my_convolution"."""
        own = getattr(self.function, "__name__", type(self.function).__name__)
        return f"python:{own}"

    title = name

    @property
    def texts(self) -> dict[str, str]:
        """The source, if Python can find it."""
        with contextlib.suppress(OSError, TypeError):
            return {f"{self.name}.py": inspect.getsource(self.function)}
        return {}

    @property
    def engine(self) -> str:
        """The engine: "cuda" on a GPU, "torch" on the CPU."""
        return "cuda" if self.device.type == "cuda" else "torch"

    def unsupported(self, problem: Problem) -> str | None:
        """Return why the function does not support a problem, or None if it does."""
        if not problem.relu:
            return None
        # Some callables have no signature.
        with contextlib.suppress(TypeError, ValueError):
            if "relu" in inspect.signature(self.function).parameters:
                return None
        return "it has no parameter `relu`, which is True if y is max(y, 0)"

    def coarser(self) -> Function | None:
        """Return this function in the class tf32, unless it names its class."""
        if declared(self.function) or self.precision != "fp32":
            return None
        return replace(self, precision="tf32")

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Return the launch of the function, which allocates y itself and ignores `allocate`."""
        self.accept(problem)
        return FunctionLaunch(self, problem, (x, w, bias))


def declared(function: Callable[..., Tensor]) -> str | None:
    """Return the precision class from a callable's attribute `precision`, or None."""
    precision = inspect.getattr_static(function, "precision", None)
    return precision if isinstance(precision, str) else None


class FunctionLaunch(Launch):
    """A call of a function; `y` is the tensor that it returned, with any strides."""

    runnable: Function

    def __init__(self, runnable: Function, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        self.y = inputs[0].new_empty(problem.output_shape)

    def __call__(self) -> None:
        # Free the last y, so that torch can use its memory again.
        self.y = None
        y = self._call()
        self._require(y)
        self.y = _own(y, self.inputs, self.runnable.name)

    def _call(self) -> object:
        """Call the function and return its result; raise LaunchError for its exceptions."""
        problem = self.problem
        arguments = (problem.stride, problem.padding, problem.dilation, problem.groups)
        try:
            with torch.no_grad():
                return self.runnable.function(
                    *self.inputs, *arguments, **relu_keyword(problem.relu)
                )
        except (torch.OutOfMemoryError, LaunchError):
            raise
        except Exception as error:
            # The caller handles errors of the GPU.
            if isinstance(error, RuntimeError) and "CUDA" in str(error):
                raise
            first = str(error).strip().split("\n")[0]
            raise LaunchError(
                f"{self.runnable.name} raised {type(error).__name__}: {first}; convlab calls it as "
                "f(x, w, bias, stride, padding, dilation, groups), the last four as "
                "torch.nn.functional.conv2d takes them"
            ) from error

    def _require(self, y: object) -> None:
        """Raise LaunchError unless y is a plain tensor of the correct shape, dtype and device."""
        name = self.runnable.name
        # A subclass of Tensor could compute its numbers later, when they are read.
        if type(y) is not Tensor:
            raise LaunchError(f"{name} returned a {type(y).__name__}, not a plain torch.Tensor")
        returned = (tuple(y.shape), y.dtype, y.device)
        needed = (self.problem.output_shape, torch.float32, self.inputs[0].device)
        if returned != needed:
            facts = "{}, {} on {}"
            raise LaunchError(
                f"{name} returned {facts.format(*returned)}; "
                f"{self.problem.label} needs {facts.format(*needed)}"
            )


def _own(y: Tensor, inputs: Inputs, name: str) -> Tensor:
    """Return the output as a plain tensor, without attributes of the user's.

    Raises LaunchError if a computation is still pending in the tensor, or if it is a view of an
    input.
    """
    if y.layout != torch.strided:
        raise LaunchError(f"{name} returned a {y.layout} tensor: return y.to_dense()")
    if y.is_neg() or y.is_conj():
        raise LaunchError(
            f"{name} returned a view with a pending negation or conjugation: return "
            "y.resolve_neg().resolve_conj()"
        )
    if any(step == 0 and size > 1 for step, size in zip(y.stride(), y.shape, strict=True)):
        raise LaunchError(
            f"{name} returned a view in which outputs share memory: return y.contiguous()"
        )
    address = y.untyped_storage().data_ptr()
    for which, tensor in zip(("x", "w", "bias"), inputs, strict=True):
        if tensor is None or not y.numel():
            continue
        if tensor.untyped_storage().data_ptr() == address:
            raise LaunchError(
                f"{name} returned a view of its input {which}: return a copy, y.clone()"
            )
    return Tensor.detach(y)
