"""What a kernel is compared with: inputs, float64 truth, tolerances, and library baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..words.errors import LaunchError, ProblemError
from ..words.problem import Problem

CHUNK_BYTES = 256 << 20  # temporaries of one step of the truth
IM2COL_BYTES = 1 << 30  # workspace of the torch:im2col baseline
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-10}  # tf32: the operands', truncated

Device = str | torch.device
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def inputs(
    problem: Problem, seed: int = 0, device: Device = "cpu", dtype: torch.dtype = torch.float32
) -> Inputs:
    """Return x, w and bias (or None) of normal data, the same for the same seed and device kind.

    x and bias are standard normal, w is divided by sqrt(gemm_k), so that y is of order 1.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    w = normal(*problem.w_shape) / math.sqrt(problem.gemm_k)
    bias = normal(problem.K) if problem.bias else None
    return normal(*problem.x_shape), w, bias


def truth(
    problem: Problem,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    where: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the output computed in float64, on x's device, in bounded memory.

    Parameters
    ----------
    where
        Positions (n, k, p, q), an integer tensor (M, 4). None means all of them.

    Returns
    -------
    torch.Tensor
        float64: (N, K, P, Q), or (M,) if `where` is given. The whole output is torch's own
        float64 convolution; single positions are dot products of gathered patches, a second,
        independent way to compute them.
    """
    _match(problem, x, w, bias)
    x, w = x.detach(), w.detach()
    if where is not None:
        return _truth_at(problem, x, w, bias, where.to(x.device))
    y = torch.empty(problem.y_shape, dtype=torch.float64, device=x.device)
    w = w.double()
    columns = problem.C * problem.R * problem.S + problem.K  # torch on a CPU goes through im2col
    for images, rows in _chunks(problem, CHUNK_BYTES // (8 * columns)):
        y[images, :, rows] = F.conv2d(
            _padded(problem, x, images, rows).double(),
            w,
            stride=problem.stride,
            dilation=problem.dilation,
            groups=problem.groups,
        )
    return y if bias is None else y.add_(bias.detach().double().view(1, -1, 1, 1))


def sample(
    problem: Problem, count: int, seed: int = 0, device: Device = "cpu", tile: int = 16
) -> torch.Tensor:
    """Return output positions worth checking, at least `count` of them or all that there are.

    Half of them are drawn where mistakes gather: the first and last elements in memory, the
    image's corners and borders, both sides of tile seams, the first and last n and k. The rest
    are uniform.

    Parameters
    ----------
    tile
        Seams are drawn at multiples of it, in p and q.

    Returns
    -------
    torch.Tensor
        int64 (M, 4) of (n, k, p, q), in memory order, without duplicates; the same for the same
        seed on any device.
    """
    N, K, P, Q = problem.y_shape
    total = N * K * P * Q
    if count >= total:
        return _unravel(torch.arange(total), problem).to(device)
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> torch.Tensor:
        return torch.randint(high, (size,), generator=generator)

    def ends(high: int, size: int) -> torch.Tensor:
        return draw(2, size) * (high - 1)

    def seams(high: int, size: int) -> torch.Tensor:
        return (draw(high // tile + 1, size) * tile - draw(2, size)).clamp_(0, high - 1)

    def flat(n: torch.Tensor, k: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return ((n * K + k) * P + p) * Q + q

    part = max(1, count // 16)

    def anywhere() -> list[torch.Tensor]:
        return [draw(high, part) for high in (N, K, P, Q)]

    edge = torch.arange(min(part, total))
    chosen = [edge, total - 1 - edge]
    for axes, place in (
        ((2, 3), ends),  # corners of the image
        ((2,), ends),  # top and bottom rows
        ((3,), ends),  # left and right columns
        ((2,), seams),
        ((3,), seams),
        ((0, 1), ends),  # first and last image and filter
    ):
        position = anywhere()
        for axis in axes:
            position[axis] = place((N, K, P, Q)[axis], part)
        chosen.append(flat(*position))
    indices = torch.cat(chosen).unique()
    if total <= 4 * count:  # dense: drawing blindly would meet the same ones over and over
        free = torch.ones(total, dtype=torch.bool)
        free[indices] = False
        rest = free.nonzero().flatten()
        order = torch.randperm(len(rest), generator=generator)
        indices = torch.cat([indices, rest[order[: max(0, count - len(indices))]]])
    while len(indices) < count:
        indices = torch.cat([indices, draw(total, count - len(indices))]).unique()
    return _unravel(indices.sort().values, problem).to(device)


def tolerance(precision: str, gemm_k: int) -> float:
    """Return the largest normwise relative error, ||y - truth|| / ||truth||, of a right result.

    fp32: the error of a sum of k terms in any order is bounded by k u (u = 2^-24), but roundings
    are nearly independent and it grows like sqrt(k) u (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., sections 2.8 and 4.2). For terms of random sign, summed one
    after the other, partial sums grow like sqrt(i), which gives 0.41 sqrt(k / 2) u = 0.29 sqrt(k)
    u, 0.41 u being the root mean square of one rounding. The bound is four times that, and at
    least 2e-6, which leaves room for Winograd's F(4x4, 3x3).

    tf32: operands keep 11 significant bits. Their rounding dominates and does not depend on k:
    a product's relative error is 2.9e-4 (root mean square) if both are rounded to nearest and
    7.7e-4 if both are truncated, as the hardware does with plain fp32 operands; the bound is
    twice the latter, plus the fp32 term for the accumulation. bf16 (2.3e-3) fails it.

    Parameters
    ----------
    precision
        "fp32" or "tf32".
    gemm_k
        The number of terms of one output.

    Raises
    ------
    ProblemError
        There is no such precision.
    """
    accumulation = 4 * 0.29 * math.sqrt(max(gemm_k, 1)) * UNIT_ROUNDOFF["fp32"]
    if precision == "fp32":
        return max(2e-6, accumulation)
    if precision == "tf32":
        return 2 * 0.79 * UNIT_ROUNDOFF["tf32"] + accumulation
    raise ProblemError(f"no precision {precision!r}; there are {', '.join(UNIT_ROUNDOFF)}")


def elementwise_bound(
    problem: Problem,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    precision: str = "fp32",
    where: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the most that each output of a right kernel can be off, whatever the data.

    |y - truth| <= gamma (|x| * |w| + |bias|), gamma = m u / (1 - m u) with m = gemm_k + 2
    roundings (Higham, section 3.1), plus 2 u + u^2 for the operands in tf32. It holds for direct
    and matrix-product algorithms in any order of summation, not for Winograd's or an FFT's.
    Costs as much as `truth`; arguments and shape are as there.
    """
    if precision not in UNIT_ROUNDOFF:
        tolerance(precision, 1)  # raises
    roundings = (problem.gemm_k + 2) * UNIT_ROUNDOFF["fp32"]
    gamma = roundings / (1 - roundings)
    if precision == "tf32":
        gamma += (1 + gamma) * (2 * UNIT_ROUNDOFF["tf32"] + UNIT_ROUNDOFF["tf32"] ** 2)
    return gamma * truth(problem, x.abs(), w.abs(), None if bias is None else bias.abs(), where)


@contextmanager
def full_precision() -> Iterator[None]:
    """Make torch's float32 products and convolutions plain fp32 inside, and restore it after.

    Sets torch's per-operation `fp32_precision` (2.9 and later), which is all that its products
    read. The older `allow_tf32` is left alone: torch raises where it is read or set through
    `torch.backends.cudnn.flags` after the newer settings were used. Not for threads that
    change the same settings at once.
    """
    backends = torch.backends
    cpu = backends.mkldnn
    settings = (backends.cuda.matmul, backends.cudnn.conv, cpu.matmul, cpu.conv)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, value in zip(settings, before):
            setting.fp32_precision = value


@dataclass(frozen=True)
class Baseline:
    """A library's convolution, run and timed as a kernel is.

    `precision` is its class, pinned whatever torch's global settings are; `engine` is "cuda" or,
    on a CPU, "torch". Made by `baseline(name)`.
    """

    name: str
    title: str
    precision: str
    engine: str
    device: torch.device

    def unsupported(self, problem: Problem) -> str | None:
        """Return None: a baseline does every problem."""
        return None

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> ConvLaunch | Im2colLaunch:
        """Return what computes y when it is called; conversions of the inputs are done here.

        Raises
        ------
        ProblemError
            Tensors that do not fit the problem, or lie on another device.
        """
        _match(problem, x, w, bias)
        for name, tensor in (("x", x), ("w", w), ("bias", bias)):
            if tensor is not None and tensor.device.type != self.device.type:
                raise ProblemError(
                    f"{name} is on {tensor.device} but {self.name} runs on {self.device}; "
                    f"move it with .to({str(self.device)!r})"
                )
        x, w, bias = x.detach(), w.detach(), None if bias is None else bias.detach()
        if self.name == "torch:im2col":
            return Im2colLaunch(problem, x.contiguous(), w.contiguous(), bias)
        layout = torch.contiguous_format
        if self.name.endswith("channels_last"):
            layout = torch.channels_last
        x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
        return ConvLaunch(problem, x, w, bias, allow_tf32=self.precision == "tf32")

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


class ConvLaunch:
    """torch's own convolution on prepared inputs, with its flags as arguments of the call.

    It calls what `F.conv2d` calls, past the step that reads the process-wide flags: cuDNN, its
    best algorithm for this problem (found in the first call), TF32 as told. `y` is a new
    tensor after each call.
    """

    counters = None
    workspace = None

    def __init__(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        allow_tf32: bool,
    ) -> None:
        self._inputs = (x, w, bias)
        self._options = (problem.stride, problem.padding, problem.dilation)
        # not transposed, no output padding; then benchmark, not deterministic, with cuDNN
        self._flags = (False, (0, 0), problem.groups, True, False, True, allow_tf32)
        self._on_cpu = x.device.type == "cpu"
        self.y: torch.Tensor | None = x.new_empty(problem.y_shape)

    def __call__(self) -> None:
        self.y = None  # so that its memory serves again
        if self._on_cpu:
            with full_precision():
                self.y = torch._convolution(*self._inputs, *self._options, *self._flags)
        else:
            self.y = torch._convolution(*self._inputs, *self._options, *self._flags)


class Im2colLaunch:
    """Pad, im2col, a matrix product with the filter shared by all images, and then the bias.

    Done for as many images, or else rows of one image, at a time as the workspace holds.
    """

    counters = None

    def __init__(
        self, problem: Problem, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        self._problem, self._x, self._bias = problem, x, bias
        groups = problem.groups
        self._w = w.reshape(groups, problem.K // groups, problem.gemm_k)
        self._columns = problem.C * problem.R * problem.S
        limit = IM2COL_BYTES // (x.element_size() * (self._columns + problem.K))
        self._steps = list(_chunks(problem, limit))
        pixels = max(
            ((n.stop - n.start) * (p.stop - p.start) * problem.Q for n, p in self._steps), default=0
        )
        self.workspace = x.new_empty(pixels * self._columns)
        self.y = x.new_empty(problem.y_shape)

    def __call__(self) -> None:
        problem, groups = self._problem, self._problem.groups
        for images, rows in self._steps:
            patches = _patches(problem, _padded(problem, self._x, images, rows))
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
        if self._bias is not None:
            self.y += self._bias.view(1, -1, 1, 1)


def _match(
    problem: Problem, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Raise ProblemError unless the tensors have the problem's shapes and one device."""
    shapes = (tuple(x.shape), tuple(w.shape), None if bias is None else tuple(bias.shape))
    wanted = (problem.x_shape, problem.w_shape, (problem.K,) if problem.bias else None)
    for name, shape, want in zip(("x", "w", "bias"), shapes, wanted):
        if shape != want:
            raise ProblemError(f"{name} has shape {shape}, but {problem.label} needs {want}")
    for name, tensor in (("w", w), ("bias", bias)):
        if tensor is not None and tensor.device != x.device:
            raise ProblemError(f"{name} is on {tensor.device} and x on {x.device}; move one")


def _chunks(problem: Problem, pixels: int) -> Iterator[tuple[slice, slice]]:
    """Yield (images, output rows) that cover the output, each of at most `pixels` if it can."""
    rows = max(1, min(problem.P, pixels // problem.Q))
    images = max(1, pixels // (problem.P * problem.Q)) if rows == problem.P else 1
    for n in range(0, problem.N, images):
        for p in range(0, problem.P, rows):
            yield (
                slice(n, min(n + images, problem.N)),
                slice(p, min(p + rows, problem.P)),
            )


def _padded(problem: Problem, x: torch.Tensor, images: slice, rows: slice) -> torch.Tensor:
    """Return the rows of padded x that those output rows read: (n, C, rows, W + 2 pad_w)."""
    pad_h, pad_w = problem.padding
    first = rows.start * problem.stride[0] - pad_h
    last = (rows.stop - 1) * problem.stride[0] - pad_h + problem.dilation[0] * (problem.R - 1)
    top, bottom = min(max(first, 0), problem.H), min(max(last + 1, 0), problem.H)
    above, below = min(max(-first, 0), last - first + 1), 0
    below = last - first + 1 - above - (bottom - top)
    return F.pad(x[images, :, top:bottom], (pad_w, pad_w, above, below))


def _patches(problem: Problem, padded: torch.Tensor) -> torch.Tensor:
    """Return a view (n, C, R, S, rows, Q) of padded x: the im2col matrix, not yet in memory."""
    n, c, h, w = padded.stride()
    rows = padded.shape[2] - problem.dilation[0] * (problem.R - 1) - 1
    shape = (len(padded), problem.C, problem.R, problem.S, rows // problem.stride[0] + 1, problem.Q)
    (sh, sw), (dh, dw) = problem.stride, problem.dilation
    return padded.as_strided(shape, (n, c, dh * h, dw * w, sh * h, sw * w))


def _truth_at(
    problem: Problem,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    where: torch.Tensor,
) -> torch.Tensor:
    """Return the float64 outputs at positions (M, 4): gathered patches times their filters."""
    device, per_group = x.device, problem.C // problem.groups
    x, w = x.contiguous().view(-1), w.reshape(problem.K, -1).double()
    c, r, s = (torch.arange(size, device=device) for size in (per_group, problem.R, problem.S))
    c, r, s = c.view(1, -1, 1, 1), r.view(1, 1, -1, 1), s.view(1, 1, 1, -1)
    values = torch.empty(len(where), dtype=torch.float64, device=device)
    step = max(1, CHUNK_BYTES // (40 * problem.gemm_k))  # 40 bytes of temporaries an element
    for start in range(0, len(where), step):
        n, k, p, q = where[start : start + step].long().view(-1, 4, 1, 1, 1).unbind(1)
        channel = k // (problem.K // problem.groups) * per_group + c
        h = p * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
        column = q * problem.stride[1] - problem.padding[1] + s * problem.dilation[1]
        inside = ((h >= 0) & (h < problem.H)) & ((column >= 0) & (column < problem.W))
        h, column = h.clamp(0, problem.H - 1), column.clamp(0, problem.W - 1)
        index = ((n * problem.C + channel) * problem.H + h) * problem.W + column
        patch = x[index].double().masked_fill_(~inside, 0)
        filters = w[k.flatten()]
        dots = patch.view(len(filters), -1).mul_(filters).sum(1)
        values[start : start + step] = dots if bias is None else dots + bias[k.flatten()].double()
    return values


def _unravel(index: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Return (M, 4) positions (n, k, p, q) of offsets into the contiguous output."""
    _, K, P, Q = problem.y_shape
    row = index // Q
    image = row // P
    return torch.stack((image // K, image % K, row % P, index % Q), dim=1)
