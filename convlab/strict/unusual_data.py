"""Define settings with unusual data: integers, large sums, huge and tiny numbers, inf and NaN.

These rules define a correct result on such data:

- Sums of products of small integers are exact, in any order and in any precision class. The result
  must equal the reference exactly.
- If y in fp16 is a denormal number, its error may be a rounding to the neighbouring denormal.
- Denormal numbers in x, w and the products may be treated as zero, as with ``-ftz=true``. This does
  not hold for fp16: a GPU never flushes its denormal numbers.
- A sum in fp32 must be rounded to y's dtype only once, after the bias is added.
- An inf or NaN changes exactly the outputs whose window contains it. A kernel must not multiply it
  by the zeros of the padding, but it must multiply it by a zero of the other tensor: the product is
  NaN. A ReLU turns -inf into 0, and keeps NaN.
- ``mixes: 2x2`` in a header declares that 2 x 2 outputs are computed from shared sums (Winograd). An
  inf or NaN in the window of one output may then make the whole tile inf or NaN. Sums of integers
  need not be exact, only within the bound of the class. ``mixes: image`` declares one tile for the
  whole image. ``mixes: 1x1`` is for a kernel that turns inf into NaN, because it splits a number
  into two parts.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.correctness import output, reference
from ..core.correctness.output import OutputComparison
from ..core.correctness.reference import Reference
from ..core.correctness.setting import Setting
from ..core.finding import Finding
from ..core.kernel import data
from ..core.kernel.runnable import Inputs, Runnable
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.format import Format
from ..core.problem.problem import Problem

# The root mean square of a rounding error is this times the distance of two numbers: 1 / sqrt(12).
_ROUNDING_RMS = 0.29
_ADVICE = (
    "if the outputs of a tile share sums, declare `mixes: 2x2` in the header; if the kernel turns "
    "inf into NaN, declare `mixes: 1x1`"
)


@dataclass(frozen=True)
class UnusualData(Setting):
    """Be the base class of these settings: a subclass changes normally distributed data."""

    normal: bool = False

    def applies(self, kernel: Runnable, problem: Problem) -> bool:
        """Return whether this setting shows anything for a kernel and a problem."""
        return True

    def reference(self, kernel: Runnable, problem: Problem, seed: int) -> Reference:
        """Return the inputs of this setting with the float64 reference."""
        normal = data.inputs(problem, seed, kernel.device)
        changed = self.change(normal, problem, kernel.format, kernel.mixes)
        for tensor in changed:
            if tensor is not None:
                # Of all NaNs, a GPU's arithmetic returns this one.
                tensor.view(torch.int32)[torch.isnan(tensor)] = 0x7FFFFFFF
        return Reference(problem, data.placed(changed, kernel.format), seed)

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return this setting's data, made from normally distributed x, w and bias in float32."""
        raise NotImplementedError


@dataclass(frozen=True)
class Integers(UnusualData):
    """Use small integers, so that sums of products are exact."""

    name: str = "integers"
    words: str = "on small integers, with exact sums"
    advice: str = _ADVICE

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return x, w and bias with integer values."""
        x, w, bias = inputs
        return integers(problem, x, w * math.sqrt(problem.terms), bias, format, mixes)

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return 0: the result must be exact, unless outputs share sums."""
        return allowed if kernel.mixes else 0.0

    def explain(self, compared: OutputComparison) -> list[Finding]:
        """Return a finding about rounding if an output is incorrect."""
        if not compared.wrong:
            return []
        text = "a product or a sum is rounded: sums of these integers are exact in any order"
        return [output.error_finding("too imprecise", text)]


@dataclass(frozen=True)
class Zeros(UnusualData):
    """Use an x of zeros, so that y is the bias."""

    name: str = "zeros"
    words: str = "on zeros"

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return an x of zeros with the given w and bias."""
        x, w, bias = inputs
        return torch.zeros_like(x), w, bias


@dataclass(frozen=True)
class Scaled(UnusualData):
    """Multiply normally distributed data by powers of two."""

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return the exponents of two for x and w; 2^largest is the limit of their dtypes."""
        raise NotImplementedError

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return x, w and bias, scaled."""
        x, w, bias = inputs
        x_exponent, w_exponent = self.exponents(_largest_exponent(format))
        if bias is not None:
            bias = bias * 2.0 ** (x_exponent + w_exponent)
        return x * 2.0**x_exponent, w * 2.0**w_exponent, bias

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return the bound of the class plus that of rounding to y's denormal numbers."""
        dtype = torch.finfo(kernel.format.y.torch_dtype)
        if not rms:
            return allowed
        return allowed + 2 * _ROUNDING_RMS * dtype.smallest_normal * dtype.eps / rms


@dataclass(frozen=True)
class Huge(Scaled):
    """Use large numbers: the exponents of their products are near 70% of the largest exponent."""

    name: str = "huge"
    words: str = "on huge numbers"

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return positive exponents."""
        return largest // 2, largest // 5


@dataclass(frozen=True)
class Tiny(Scaled):
    """Use small numbers: their products are small, but x, w and float32 outputs stay normal."""

    name: str = "tiny"
    words: str = "on tiny numbers"

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return negative exponents; fp16 outputs are denormal, which GPUs do not flush in fp16."""
        divisor = 5 if largest > 16 else 2
        return -largest // 2, -largest // divisor


@dataclass(frozen=True)
class Denormals(Scaled):
    """Use an x of denormal numbers, which a GPU may flush to zero."""

    name: str = "denormals"
    words: str = "on denormals"

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return an exponent that makes x smaller than the smallest normal number."""
        return -largest - 2, 0

    def comparable(self, y: Tensor, expected: Reference, kernel: Runnable) -> Tensor:
        """Return y in float32, with the reference's value where flushed denormals may explain it.

        The result is float32 because denormal numbers of y's dtype may be far apart.
        """
        if kernel.format.x.torch_dtype == torch.float16:
            return y
        outputs = _outputs(expected)
        x, w, _ = (None if t is None else t.double().abs().max() for t in expected.inputs)
        flushed = expected.problem.terms * float(x * w) + torch.finfo(torch.float32).tiny
        near = (y.double() - outputs).abs() <= flushed
        return torch.where(near, outputs.float(), y.float())


@dataclass(frozen=True)
class Cancelled(UnusualData):
    """Add a large term to each sum, and let the bias cancel it.

    A kernel that rounds the sum to y's dtype, and rounds again after the bias is added, loses the
    difference. In fp32 the setting "integers" shows that already.
    """

    name: str = "cancelled"
    words: str = "on sums that the bias nearly cancels"

    def applies(self, kernel: Runnable, problem: Problem) -> bool:
        """Return whether y has fewer bits than a sum, and there is a bias."""
        narrow = kernel.format.y.torch_dtype != torch.float32
        return narrow and problem.bias and not kernel.mixes

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return small integers, and a term near 128 * 255 in each sum.

        128 * 255 is exact in bf16, and its neighbours are 128 away.
        """
        x, w, bias = inputs
        x = _whole(x, 3)
        w = _whole(w * math.sqrt(problem.terms), 2)
        firsts = slice(None, None, problem.C // problem.groups)
        x[:, firsts] += 128
        _put_into_middle(w, 0, 255)
        if bias is not None:
            bias = torch.full_like(bias, -128 * 255)
        return x, w, bias


@dataclass(frozen=True)
class Overflowing(UnusualData):
    """Let products and partial sums exceed the largest fp16 number, 65504, but not the results.

    For even k the bias brings the sum back, for odd k another channel does, as far as there are any. In a data
    gradient another filter does, and in a weight gradient another image.
    """

    name: str = "overflowing"
    words: str = "on sums that exceed 65504 before the last term is added"

    def applies(self, kernel: Runnable, problem: Problem) -> bool:
        """Return whether the inputs and the result are fp16, and a sum has another term that brings it back."""
        dtypes = {kernel.format.x.torch_dtype, kernel.format.y.torch_dtype}
        if problem.computes == DATA_GRADIENT.name:
            has_two = problem.K > problem.groups
        elif problem.computes == WEIGHT_GRADIENT.name:
            has_two = problem.N > 1
        else:
            has_two = problem.bias or problem.C > problem.groups
        return dtypes == {torch.float16} and has_two and not kernel.mixes

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return data for sums of 256 * 288 - 57344 = 16384, and small integers."""
        first, second, bias = inputs
        first = _whole(first, 3)
        second = _whole(second * math.sqrt(problem.terms), 2)
        if problem.computes == DATA_GRADIENT.name:
            return *_overflowing_dx(problem, first, second), bias
        if problem.computes == WEIGHT_GRADIENT.name:
            return *_overflowing_dw(first, second), bias
        return _overflowing_y(problem, first, second, bias)


def _overflowing_y(problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None) -> Inputs:
    """Return x, w and bias of a convolution with such sums over its channels."""
    channels = problem.C // problem.groups
    for channel in range(min(channels, 2)):
        x[:, channel::channels] = 256
    _put_into_middle(w, 0, 288)
    by_channel = torch.arange(problem.K) % 2 == 1 if channels > 1 else torch.zeros(problem.K) > 0
    if bias is None:
        by_channel |= True
    else:
        bias = torch.where(by_channel.to(bias.device), 0.0, -57344.0)
    if channels > 1:
        _put_into_middle(w, 1, torch.where(by_channel.to(w.device), -224.0, 0.0))
    return x, w, bias


def _overflowing_dx(problem: Problem, dy: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return dy and w of a data gradient with such sums over the filters of a group."""
    filters = problem.K // problem.groups
    for k, value in ((0, 288), (1, -224)):
        dy[:, k::filters] = 256
        w[k::filters] = 0
        w[k::filters, :, problem.R // 2, problem.S // 2] = value
    return dy, w


def _overflowing_dw(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and dy of a weight gradient with such sums over the images: one pixel of two of them counts."""
    x[:] = 256
    middle = dy.shape[2] // 2, dy.shape[3] // 2
    dy[:] = 0
    dy[0, :, *middle] = 288
    dy[-1, :, *middle] = -224
    return x, dy


def _put_into_middle(w: Tensor, channel: int, value: float | Tensor) -> None:
    """Set one channel of each filter to zeros, and its middle to a value."""
    w[:, channel] = 0
    w[:, channel, w.shape[2] // 2, w.shape[3] // 2] = value


@dataclass(frozen=True)
class Special(UnusualData):
    """Put inf and NaN into single elements."""

    name: str = "special"
    words: str = "with inf and NaN in single places"
    advice: str = _ADVICE

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Put inf and NaN where a kernel reads that goes one element too far."""
        x, w, bias = inputs
        if problem.computes == DATA_GRADIENT.name:
            return *_special_of_dx(problem, x, w), bias
        if problem.computes == WEIGHT_GRADIENT.name:
            return *_special_of_dw(problem, x, w), bias
        # Zeros for the inf of x and the NaN of w to be multiplied with: the products are NaN.
        w[0, 0] = 0
        x[0, problem.C - problem.C // problem.groups, problem.H // 2] = 0
        _put_at_ends(x)
        if _misses_padding(problem):
            w[-1, 0, problem.R // 2, problem.S // 2] = math.nan
        return x, w, bias

    def comparable(self, y: Tensor, expected: Reference, kernel: Runnable) -> Tensor:
        """Return y, with the reference's values in tiles that may be inf or NaN as a whole."""
        if not kernel.mixes:
            return y
        problem = expected.problem
        outputs = _outputs(expected)
        P, Q = outputs.shape[2:]
        high, wide = (P, Q) if kernel.mixes == "image" else map(int, kernel.mixes.split("x"))
        plain = dataclasses.replace(problem, relu=False)
        sums = reference.truth(plain, *expected.inputs) if problem.relu else outputs
        tiles = F.max_pool2d((~torch.isfinite(sums)).float(), (high, wide), ceil_mode=True)
        spread = tiles.repeat_interleave(high, 2).repeat_interleave(wide, 3)[..., :P, :Q] > 0
        made_of_inf = ~torch.isfinite(y)
        if problem.relu:
            # A ReLU turns -inf into 0, but not NaN.
            inputs = expected.inputs
            finite = (t if t is None else torch.where(torch.isinf(t), 1, t) for t in inputs)
            sums = reference.truth(plain, *finite)
            made_of_inf |= (y == 0) & ~torch.isnan(sums)
        return torch.where(spread & made_of_inf, outputs.to(y.dtype), y)


@dataclass(frozen=True)
class SpecialEnds(Special):
    """Put inf and NaN into the first and the last element of x, or of dy for a gradient.

    A kernel may read these in place of elements that do not exist, past the end of a sum or of an image. It
    must not use them: even multiplied by a zero, the product is NaN.
    """

    name: str = "special_ends"
    words: str = "with inf in the first element and NaN in the last one"

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return the inputs with these two elements in the images that the kernel gathers from."""
        x, w, bias = inputs
        x[0, 0, 0, 0] = math.inf
        x[-1, -1, -1, -1] = math.nan
        return x, w, bias


@dataclass(frozen=True)
class SpecialZeros(Special):
    """Make an image and half of the filters zeros, with inf and NaN that these are multiplied with.

    A kernel may skip a tile of zeros. But zero times inf or NaN is NaN.
    """

    name: str = "special_zeros"
    words: str = "with inf and NaN that meet tiles of zeros"

    def applies(self, kernel: Runnable, problem: Problem) -> bool:
        """Return whether the problem is a convolution: the setting "special" has this for gradients."""
        return problem.computation.is_forward

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return x with zeros in its first image, or half of the only one, and w with zeros in half of it."""
        x, w, bias = inputs
        x[0, :, : problem.H if problem.N > 1 else problem.H // 2] = 0
        w[: problem.K // 2] = 0
        x[-1, 0, problem.H - 1, problem.W // 2] = math.inf
        if _misses_padding(problem):
            w[-1, 0, problem.R // 2, problem.S // 2] = math.nan
        return x, w, bias


def _misses_padding(problem: Problem) -> bool:
    """Return whether the filter's middle element is never multiplied with padding."""
    sides = zip(problem.padding, problem.dilation, (problem.R, problem.S))
    return all(padding <= dilation * ((taps - 1) // 2) for padding, dilation, taps in sides)


def _put_at_ends(images: Tensor) -> None:
    """Put inf and NaN at the ends of rows, planes and images.

    A kernel without bounds checks reads these as row -1 of the next channel, and as column -1 of the
    next row.
    """
    _, _, rows, columns = images.shape
    images[0, 0, -1, columns // 2] = math.inf
    images[-1, -1, rows // 2, -1] = -math.inf
    images[0, -1, 0, 0] = math.nan


def _special_of_dx(problem: Problem, dy: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return dy and w of a data gradient with inf and NaN, and zeros for them to be multiplied with."""
    group = problem.groups // 2
    filters = problem.K // problem.groups
    k = (group + 1) * filters - 1
    w[0, 0] = 0
    dy[0, k, problem.P // 2] = 0
    _put_at_ends(dy)
    tap = problem.R // 2, problem.S // 2
    if problem.stride == (1, 1) and all(
        dilation * max(i, taps - 1 - i) <= padding
        for i, taps, padding, dilation in zip(
            tap, (problem.R, problem.S), problem.padding, problem.dilation, strict=True
        )
    ):
        # For each element of dx there is an element of dy that this one is multiplied with.
        w[k, 0, *tap] = math.nan
    return dy, w


def _special_of_dw(problem: Problem, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and dy of a weight gradient with inf and NaN, and zeros for them to be multiplied with."""
    group = problem.groups // 2
    k = (group + 1) * (problem.K // problem.groups) - 1
    dy[0, 0] = 0
    x[-1, group * (problem.C // problem.groups)] = 0
    _put_at_ends(x)
    pixel = problem.P // 2, problem.Q // 2
    first = [i * stride - padding for i, stride, padding in zip(pixel, problem.stride, problem.padding)]
    last = [
        i + dilation * (taps - 1)
        for i, dilation, taps in zip(first, problem.dilation, (problem.R, problem.S))
    ]
    if min(first) >= 0 and last[0] < problem.H and last[1] < problem.W:
        # The window of this pixel has no padding.
        dy[-1, k, *pixel] = math.nan
    return x, dy


def _outputs(expected: Reference) -> Tensor:
    """Return the correct outputs in float64, with shape (N, K, P, Q)."""
    return torch.cat([piece for _, piece in expected.pieces])


def _largest_exponent(format: Format) -> int:
    """Return the largest exponent that all dtypes can hold: 128 for float32, 16 for fp16."""
    dtypes = [storage.torch_dtype for _, storage in format]
    return min(round(math.log2(torch.finfo(dtype).max)) for dtype in dtypes)


def integers(
    problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None, format: Format, mixes: str | None
) -> Inputs:
    """Return x, w and bias with integer values, made from normally distributed data.

    y's dtype can hold all sums of their products exactly, in any order. The products of two
    neighbouring channels almost cancel: only a small part remains. So products may need more bits
    than y, and a kernel that rounds a product or a partial sum to less than fp32 is incorrect. For
    a kernel with `mixes` the numbers are smaller: Winograd's F(2x2) computes quarters of them.
    """
    # The number of integers that y's dtype can hold exactly.
    exact = 2 / torch.finfo(format.y.torch_dtype).eps
    channels = problem.C // problem.groups
    if mixes or channels == 1 or not problem.computation.is_forward:
        top = max(1, min(31, math.isqrt(int(exact / (problem.terms + 1)))))
        return _whole(x, top), _whole(w, top), _whole(bias, top)
    pairs = channels // 2
    taps = problem.R * problem.S
    # The largest value that a pair of channels, or a single one, may add to the sum.
    addend = int(exact / ((channels - pairs) * taps + 1))
    top = max(1, min(31, addend))
    little = max(1, min(63, addend // top))
    # x must be exact in its dtype and in TF32, and all sums in fp32.
    exact_in_x = min(2 / torch.finfo(format.x.torch_dtype).eps, 2**11)
    exact_in_sum = 2**22 / (problem.terms * top)
    most = max(0, int(min(exact_in_x, exact_in_sum)) - 1 - little)
    by_group = (problem.groups, channels)
    large = _whole(x, most).unflatten(1, by_group)
    x = _whole(x, little).unflatten(1, by_group)
    w = _whole(w, top)
    even = slice(0, 2 * pairs, 2)
    odd = slice(1, 2 * pairs, 2)
    x[:, :, odd] += large[:, :, even]
    x[:, :, even] = large[:, :, even]
    w[:, odd] = -w[:, even]
    return x.flatten(1, 2), w, _whole(bias, top)


def _whole(tensor: Tensor | None, top: int) -> Tensor | None:
    """Return normally distributed data, rounded to integers from -top to top."""
    return None if tensor is None else (tensor * top / 2).round().clamp(-top, top)
