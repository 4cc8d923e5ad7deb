"""The baselines: the convolutions of cuDNN and torch, each with a fixed precision class."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import arguments
from ..defaults import BASELINES
from ..errors import UnsupportedError
from ..problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..problem.format import FLOAT32, Format, parse_format
from ..problem.problem import Problem
from .call import CallableRunnable
from .data import Device, chunks, full_precision, match, padded, require, require_memory
from .runnable import Allocate, Inputs, Launch, empty

# The workspace of the baseline torch:im2col, in bytes.
IM2COL_BYTES = 1 << 30
_HALVES = {
    "bf16": parse_format("x bf16, w bf16, y bf16, bias bf16"),
    "fp16": parse_format("x f16, w f16, y f16, bias f16"),
}


@dataclass(frozen=True)
class Baseline(CallableRunnable):
    """A library's convolution, checked and timed like a kernel; `baseline` returns it.

    `precision` is its class, whatever torch's global settings are. torch computes the ReLU in place
    after the convolution, as in eager mode. cuDNN's fused ReLU (torch's ``cudnn_convolution_relu``)
    is not used: it takes the precision and the search for an algorithm from the global settings.
    """

    name: str
    title: str
    precision: str
    engine: str
    device: torch.device
    library = True
    # All of them: what the problem asks for.
    computes = None

    def unsupported(self, problem: Problem) -> str | None:
        """Return why the baseline does not support a problem, or None if it does."""
        if self.name == "torch:im2col" and not problem.computation.is_forward:
            return f"it computes no {problem.computes}; torch:cpu does"
        return None

    @property
    def format(self) -> Format:  # type: ignore[override]
        """The format of its tensors: the dtype of its class, in torch's memory order."""
        return _HALVES.get(self.precision, FLOAT32)

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Return the launch that computes y, with the inputs in the baseline's memory order.

        Raises ProblemError if the inputs do not fit the problem or this baseline.
        """
        require(self, x, w, bias)
        match(problem, x, w, bias)
        require_memory(x, w, bias)
        self.accept(problem)
        return self._bound(problem, x, w, bias)

    def differentiable(self, problem: Problem, *tensors: Tensor | None) -> Tensor | None:
        """Return y with torch's own derivatives, or None if torch alone would not compute the same.

        Its y is the same, and torch's autograd takes less of the CPU's time than a function in Python.
        """
        x, w, _ = tensors
        if not self.name.startswith("cudnn:") or self.name.endswith("channels_last"):
            return None
        if problem.relu or not x.is_contiguous() or not w.is_contiguous():
            return None
        return torch._convolution(*tensors, *_arguments(problem, self.precision))

    def again(self, problem: Problem, *tensors: Tensor | None, looks: bool = True) -> Tensor:
        launch = self._bound(problem, *tensors)
        launch()
        return launch.y

    def _bound(self, problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None) -> Launch:
        """Return the launch for validated inputs, in the baseline's memory order."""
        layout = torch.contiguous_format
        if self.name.endswith("channels_last"):
            layout = torch.channels_last
        x = x.detach().contiguous(memory_format=layout)
        w = w.detach().contiguous(memory_format=layout)
        bias = None if bias is None else bias.detach()
        if self.name == "torch:im2col":
            return Im2colLaunch(self, problem, (x, w, bias))
        if problem.computes == DATA_GRADIENT.name:
            return DataGradientLaunch(self, problem, (x, w, bias))
        if problem.computes == WEIGHT_GRADIENT.name:
            return WeightGradientLaunch(self, problem, (x, w, bias))
        return ConvLaunch(self, problem, (x, w, bias))


def baseline(name: str, device: Device | None = None) -> Baseline:
    """Return a baseline by name, on a device; by default on the GPU if there is one.

    Raises ProblemError if there is no such baseline, and UnsupportedError if it does not run on the
    device.
    """
    title, precision, only = BASELINES[arguments.choice(name, "baseline", BASELINES)]
    gpu = torch.cuda.is_available()
    where = torch.device(device if device is not None else only or ("cuda" if gpu else "cpu"))
    if only not in (None, where.type):
        raise UnsupportedError(
            f"{name} runs on {only} only, but the other kernels run on {where}; "
            "torch:im2col runs on both"
        )
    if where.type != "cuda":
        return Baseline(name, title, precision, "torch", where)
    if not gpu:
        raise UnsupportedError(
            f"{name} needs an NVIDIA GPU, but torch finds none: use torch:im2col or torch:cpu"
        )
    if where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return Baseline(name, title, precision, "cuda", where)


# A layer asks in every step of training.
@functools.lru_cache(1024)
def _arguments(problem: Problem, precision: str) -> tuple[object, ...]:
    """Return the arguments of torch's convolution after its tensors."""
    return (
        problem.stride,
        problem.padding,
        problem.dilation,
        # Not transposed, no output padding.
        False,
        (0, 0),
        problem.groups,
        # benchmark: cuDNN searches for its fastest algorithm.
        True,
        # deterministic: not required.
        False,
        # cudnn_enabled and allow_tf32.
        True,
        precision == "tf32",
    )


class ConvLaunch(Launch):
    """Call the function behind `F.conv2d`, which takes the process-wide flags as arguments.

    cuDNN uses its fastest algorithm for the problem. It searches for it in the first call.
    """

    def __init__(self, runnable: Baseline, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        self.y = inputs[0].new_empty(problem.output_shape)
        self._arguments = _arguments(problem, runnable.precision)
        on_cpu = runnable.device.type == "cpu"
        self._pinned = full_precision if on_cpu else contextlib.nullcontext

    def __call__(self) -> None:
        # Free the last y, so that torch can use its memory again.
        self.y = None
        with self._pinned():
            self.y = torch._convolution(*self.inputs, *self._arguments)
        if self.problem.relu:
            self.y.relu_()


class DataGradientLaunch(ConvLaunch):
    """Call the same function for a transposed convolution, which cuDNN computes as a data gradient."""

    def __init__(self, runnable: Baseline, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        stride, padding, dilation, _, _, *rest = self._arguments
        self._arguments = (stride, padding, dilation, True, problem.output_padding, *rest)


class WeightGradientLaunch(Launch):
    """Call the function with which torch's autograd computes a weight gradient.

    It takes cuDNN's flags from the process, so that they are set for each call.
    """

    def __init__(self, runnable: Baseline, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        x = inputs[0]
        self.y = x.new_empty(problem.output_shape)
        # Only the shape and the strides of the filter are read.
        layout = torch.contiguous_format
        if runnable.name.endswith("channels_last"):
            layout = torch.channels_last
        self._filter = torch.empty_like(self.y, memory_format=layout)
        self._arguments = (
            None,
            problem.stride,
            problem.padding,
            problem.dilation,
            False,
            (0, 0),
            problem.groups,
            # Of x, w and bias, only the gradient of w.
            (False, True, False),
        )
        on_cpu = runnable.device.type == "cpu"
        self._pinned = full_precision if on_cpu else _searching(runnable.precision == "tf32")

    def __call__(self) -> None:
        # Free the last result, so that torch can use its memory again.
        self.y = None
        x, dy, _ = self.inputs
        with self._pinned():
            _, self.y, _ = torch.ops.aten.convolution_backward(
                dy, x, self._filter, *self._arguments
            )


def _searching(tf32: bool) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context manager in which cuDNN searches for its fastest algorithm of a class."""

    @contextlib.contextmanager
    def pinned() -> Iterator[None]:
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark, cudnn.conv.fp32_precision
        try:
            cudnn.benchmark = True
            cudnn.conv.fp32_precision = "tf32" if tf32 else "ieee"
            yield
        finally:
            cudnn.benchmark, cudnn.conv.fp32_precision = before

    return pinned


class Im2colLaunch(Launch):
    """Pad, unfold (im2col), multiply matrices, add the bias.

    Each step processes as many images, or rows of one image, as the workspace can hold.
    """

    def __init__(self, runnable: Baseline, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        x, w, _ = inputs
        self._w = w.reshape(problem.groups, problem.K // problem.groups, problem.terms)
        columns = problem.C * problem.R * problem.S
        limit = IM2COL_BYTES // (x.element_size() * (columns + problem.K))
        self._steps = list(chunks(problem, limit))
        rows = [(n.stop - n.start) * (p.stop - p.start) for n, p in self._steps]
        self.workspace = x.new_empty(max(rows, default=0) * problem.Q * columns)
        self.y = x.new_empty(problem.output_shape)

    def __call__(self) -> None:
        problem = self.problem
        x, _, bias = self.inputs
        for images, rows in self._steps:
            image = padded(problem, x, images, rows)
            n, c, h, w = image.stride()
            sh, sw = problem.stride
            dh, dw = problem.dilation
            shape = (len(image), problem.C, problem.R, problem.S, rows.stop - rows.start, problem.Q)
            patches = image.as_strided(shape, (n, c, dh * h, dw * w, sh * h, sw * w))
            matrix = self.workspace[: patches.numel()].view(shape).copy_(patches)
            matrix = matrix.view(len(image), problem.groups, problem.terms, -1)
            y = self.y[images, :, rows]
            # The shape of the products is (n, groups, K/groups, p*Q).
            with full_precision():
                if y.is_contiguous():
                    pixels = matrix.shape[3]
                    torch.matmul(self._w, matrix, out=y.view(len(y), problem.groups, -1, pixels))
                else:
                    y.copy_(torch.matmul(self._w, matrix).view(y.shape))
        if bias is not None:
            self.y += bias.view(1, -1, 1, 1)
        if problem.relu:
            self.y.relu_()
