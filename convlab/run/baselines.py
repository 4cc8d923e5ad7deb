"""What a kernel is timed against: the convolutions of cuDNN and torch, each pinned to its class."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..words.errors import LaunchError, ProblemError
from ..words.problem import Problem
from .data import Device, chunks, full_precision, match, padded
from .runnable import Allocate, Inputs, Launch, Runnable, empty

IM2COL_BYTES = 1 << 30  # workspace of the torch:im2col baseline


@dataclass(frozen=True)
class Baseline(Runnable):
    """A library's convolution, run and timed as a kernel is.

    `precision` is its class, pinned whatever torch's global settings are; `engine` is "cuda" or,
    on a CPU, "torch". Made by `baseline(name)`.
    """

    name: str
    title: str
    precision: str
    engine: str
    device: torch.device
    library = True

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Return what computes y when it is called; conversions of the inputs are done here.

        Raises
        ------
        ProblemError
            Tensors that do not fit the problem, or lie on another device.
        """
        match(problem, x, w, bias)
        for name, tensor in (("x", x), ("w", w), ("bias", bias)):
            if tensor is not None and tensor.device.type != self.device.type:
                raise ProblemError(
                    f"{name} is on {tensor.device} but {self.name} runs on {self.device}; "
                    f"move it with .to({str(self.device)!r})"
                )
        x, w, bias = x.detach(), w.detach(), None if bias is None else bias.detach()
        if self.name == "torch:im2col":
            return Im2colLaunch(self, problem, (x.contiguous(), w.contiguous(), bias))
        layout = torch.contiguous_format
        if self.name.endswith("channels_last"):
            layout = torch.channels_last
        x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
        return ConvLaunch(self, problem, (x, w, bias))

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        """Return y, (N, K, P, Q), with the arguments of `F.conv2d` except padding="same"."""
        bias_shape = None if bias is None else bias.shape
        problem = Problem.from_shapes(
            x.shape, w.shape, bias_shape, stride, padding, dilation, groups
        )
        launch = self.prepare(problem, x, w, bias)
        launch()
        return launch.y


_TITLES = {
    "cudnn:fp32": ("cuDNN, TF32 off", "fp32"),
    "cudnn:tf32": ("cuDNN, TF32 on", "tf32"),
    "cudnn:tf32:channels_last": ("cuDNN, TF32 on, inputs already channels_last", "tf32"),
    "torch:im2col": ("pad, im2col, torch.matmul", "fp32"),
    "torch:cpu": ("torch on the CPU", "fp32"),
}
BASELINES = tuple(_TITLES)


def baseline(name: str, device: Device | None = None) -> Baseline:
    """Return the baseline of that name; `BASELINES` lists them.

    Parameters
    ----------
    device
        Where it runs: a CUDA device for cuDNN's, the CPU for torch:cpu, any for torch:im2col.
        None takes the GPU if there is one and it can.

    Raises
    ------
    ProblemError
        No baseline of that name, or one that does not run on that kind of device.
    LaunchError
        It needs a GPU and there is none.
    """
    if name not in _TITLES:
        raise ProblemError(f"no baseline is named {name!r}; there are {', '.join(BASELINES)}")
    gpu = torch.cuda.is_available()
    only = {"cudnn": "cuda", "torch:cpu": "cpu"}.get(name if name == "torch:cpu" else name[:5])
    where = torch.device(device if device is not None else only or ("cuda" if gpu else "cpu"))
    if only not in (None, where.type):
        raise ProblemError(f"{name} runs on {only} only, not on {where}; leave device out")
    if where.type == "cuda" and not gpu:
        raise LaunchError(
            f"{name} needs an NVIDIA GPU and torch sees none; take torch:im2col or torch:cpu"
        )
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    title, precision = _TITLES[name]
    return Baseline(name, title, precision, "cuda" if where.type == "cuda" else "torch", where)


class ConvLaunch(Launch):
    """torch's own convolution on prepared inputs, with its flags as arguments of the call.

    It calls what `F.conv2d` calls, past the step that reads the process-wide flags: cuDNN, its
    best algorithm for this problem (found in the first call), TF32 as told. `y` is a new
    tensor after each call.
    """

    def __init__(self, runnable: Baseline, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        self._options = (problem.stride, problem.padding, problem.dilation)
        # not transposed, no output padding; then benchmark, not deterministic, with cuDNN
        self._flags = (False, (0, 0), problem.groups, True, False, True)
        self.y = inputs[0].new_empty(problem.y_shape)

    def __call__(self) -> None:
        self.y = None  # so that its memory serves again
        flags = (*self._options, *self._flags, self.runnable.precision == "tf32")
        if self.runnable.device.type == "cpu":
            with full_precision():
                self.y = torch._convolution(*self.inputs, *flags)
        else:
            self.y = torch._convolution(*self.inputs, *flags)


class Im2colLaunch(Launch):
    """Pad, im2col, a matrix product with the filter shared by all images, and then the bias.

    Done for as many images, or else rows of one image, at a time as the workspace holds.
    """

    def __init__(self, runnable: Baseline, problem: Problem, inputs: Inputs) -> None:
        super().__init__(runnable, problem, inputs)
        x, w, _ = inputs
        groups = problem.groups
        self._w = w.reshape(groups, problem.K // groups, problem.gemm_k)
        self._columns = problem.C * problem.R * problem.S
        limit = IM2COL_BYTES // (x.element_size() * (self._columns + problem.K))
        self._steps = list(chunks(problem, limit))
        pixels = max(
            ((n.stop - n.start) * (p.stop - p.start) * problem.Q for n, p in self._steps), default=0
        )
        self.workspace = x.new_empty(pixels * self._columns)
        self.y = x.new_empty(problem.y_shape)

    def __call__(self) -> None:
        problem, (x, _, bias) = self.problem, self.inputs
        groups = problem.groups
        for images, rows in self._steps:
            patches = _patches(problem, padded(problem, x, images, rows))
            matrix = self.workspace[: patches.numel()].view(patches.shape)  # (n, C, R, S, p, Q)
            matrix.copy_(patches)
            n, pixels = patches.shape[0], patches.shape[4] * problem.Q
            matrix = matrix.view(n, groups, problem.gemm_k, pixels)
            y = self.y[images, :, rows]
            with full_precision():  # (n, groups, K/groups, p*Q)
                if y.is_contiguous():
                    torch.matmul(self._w, matrix, out=y.view(n, groups, -1, pixels))
                else:
                    y.copy_(torch.matmul(self._w, matrix).view(y.shape))
        if bias is not None:
            self.y += bias.view(1, -1, 1, 1)


def _patches(problem: Problem, padded: torch.Tensor) -> torch.Tensor:
    """Return a view (n, C, R, S, rows, Q) of padded x: the im2col matrix, not yet in memory."""
    n, c, h, w = padded.stride()
    rows = padded.shape[2] - problem.dilation[0] * (problem.R - 1) - 1
    shape = (len(padded), problem.C, problem.R, problem.S, rows // problem.stride[0] + 1, problem.Q)
    (sh, sw), (dh, dw) = problem.stride, problem.dilation
    return padded.as_strided(shape, (n, c, dh * h, dw * w, sh * h, sw * w))
