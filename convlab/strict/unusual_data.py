"""Settings with unusual data: integers, zeros, huge and tiny numbers, inf and NaN.

These rules decide what a correct kernel may do on such data:

- Sums of products of small integers are exact in any order and in any precision class. The result
  must have the same bits as the truth.
- A result among fp16's denormals is correct if it is as near as neighbouring denormals are.
- Denormals of x, w and the products may count as zero, as with ``-ftz=true``.
- An inf or NaN changes the outputs whose window contains it, and no others. Padding is not read,
  whatever a kernel multiplies by zero there. A ReLU turns -inf into 0, and keeps NaN.
- A kernel with ``mixes: 2x2`` in its header computes each tile of 2 x 2 outputs from the same sums
  (Winograd). An inf or NaN in the window of one output may make the whole tile inf or NaN, and sums
  of integers need only be as near as the class says. ``mixes: image`` has the whole image in one
  tile. ``mixes: 1x1`` is for a kernel that turns inf into NaN, because it splits a number in two.
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
from ..core.problem.format import Format
from ..core.problem.problem import Problem

# The root mean square of a rounding error, in steps: 1 / sqrt(12).
_ROUNDING_RMS = 0.29
_ADVICE = (
    "if the outputs of a tile share sums, state it in the header: `mixes: 2x2`; if the kernel "
    "turns inf into NaN: `mixes: 1x1`"
)


@dataclass(frozen=True)
class UnusualData(Setting):
    """The base of these settings: a subclass defines how it changes normal data."""

    normal: bool = False

    def reference(self, kernel: Runnable, problem: Problem, seed: int) -> Reference:
        """Return the inputs of this setting, and the truth."""
        normal = data.inputs(problem, seed, kernel.device)
        changed = self.change(normal, problem, kernel.format, kernel.mixes)
        return Reference(problem, data.placed(changed, kernel.format), seed)

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return the data of this setting, from normal x, w and bias in float32."""
        raise NotImplementedError


@dataclass(frozen=True)
class Integers(UnusualData):
    """Small integers: their sums of products are exact."""

    name: str = "integers"
    words: str = "on small integers, whose sums are exact"
    advice: str = _ADVICE

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return integers."""
        x, w, bias = inputs
        return integers(problem, x, w * math.sqrt(problem.gemm_k), bias, format, mixes)

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return 0: the result must be exact, unless tiles share sums."""
        return allowed if kernel.mixes else 0.0

    def explain(self, compared: OutputComparison) -> list[Finding]:
        """Return the finding that something is rounded, if an output is wrong."""
        if not compared.wrong:
            return []
        text = "something is rounded: sums of these integers are exact, in any order"
        return [output.wrong("too imprecise", text)]


@dataclass(frozen=True)
class Zeros(UnusualData):
    """An x of zeros: y is the bias."""

    name: str = "zeros"
    words: str = "on zeros"

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return x of zeros."""
        x, w, bias = inputs
        return torch.zeros_like(x), w, bias


@dataclass(frozen=True)
class Scaled(UnusualData):
    """Normal data times powers of two."""

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return the powers of two for x and w; 2^largest is the limit of their dtypes."""
        raise NotImplementedError

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return scaled data."""
        x, w, bias = inputs
        x_exponent, w_exponent = self.exponents(_largest_exponent(format))
        if bias is not None:
            bias = bias * 2.0 ** (x_exponent + w_exponent)
        return x * 2.0**x_exponent, w * 2.0**w_exponent, bias


@dataclass(frozen=True)
class Huge(Scaled):
    """Numbers whose products are near the largest finite number."""

    name: str = "huge"
    words: str = "on huge numbers"

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return large exponents."""
        return largest // 2, largest // 5


@dataclass(frozen=True)
class Tiny(Scaled):
    """Numbers whose products are near the smallest normal number."""

    name: str = "tiny"
    words: str = "on tiny numbers"

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return small exponents; y in fp16 is among the denormals, which are not flushed there."""
        divisor = 5 if largest > 16 else 2
        return -largest // 2, -largest // divisor

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return the bound of the class, or a step of y's denormals if that is larger."""
        dtype = torch.finfo(kernel.format.y.torch_dtype)
        if not rms:
            return allowed
        return allowed + 2 * _ROUNDING_RMS * dtype.smallest_normal * dtype.eps / rms


@dataclass(frozen=True)
class Denormals(Scaled):
    """An x of denormals, which a GPU may flush to zero."""

    name: str = "denormals"
    words: str = "on denormals"

    def exponents(self, largest: int) -> tuple[int, int]:
        """Return an exponent below the smallest normal number for x."""
        return -largest - 2, 0

    def comparable(self, y: Tensor, correct: Reference, kernel: Runnable) -> Tensor:
        """Return y in float32, with the truth where the difference may come from flushed denormals.

        It is float32 because y's dtype may have few denormals, with large steps.
        """
        truth = _truth(correct)
        x, w, _ = (None if t is None else t.double().abs().max() for t in correct.inputs)
        flushed = correct.problem.gemm_k * float(x * w) + torch.finfo(torch.float32).tiny
        near = (y.double() - truth).abs() <= flushed
        return torch.where(near, truth.float(), y.float())


@dataclass(frozen=True)
class Special(UnusualData):
    """inf and NaN in single places."""

    name: str = "special"
    words: str = "with inf and NaN in single places"
    advice: str = _ADVICE

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Put inf and NaN where a kernel that reads one element too far reads them."""
        x, w, bias = inputs
        # Zeros: 0 times an inf of x, or times the NaN of w, is NaN.
        w[0, 0] = 0
        x[0, problem.C - problem.C // problem.groups, problem.H // 2] = 0
        # A kernel without bounds checks reads these as the next channel's row -1, or the next row's
        # column -1.
        x[0, 0, -1, problem.W // 2] = math.inf
        x[-1, -1, problem.H // 2, -1] = -math.inf
        x[0, -1, 0, 0] = math.nan
        sides = zip(problem.padding, problem.dilation, (problem.R, problem.S))
        if all(padding <= dilation * ((taps - 1) // 2) for padding, dilation, taps in sides):
            # This tap never falls on padding.
            w[-1, 0, problem.R // 2, problem.S // 2] = math.nan
        return x, w, bias

    def comparable(self, y: Tensor, correct: Reference, kernel: Runnable) -> Tensor:
        """Return y with the truth in tiles with shared sums, which may be inf or NaN as a whole."""
        if not kernel.mixes:
            return y
        problem = correct.problem
        truth = _truth(correct)
        P = problem.P
        Q = problem.Q
        high, wide = (P, Q) if kernel.mixes == "image" else map(int, kernel.mixes.split("x"))
        plain = dataclasses.replace(problem, relu=False)
        sums = reference.truth(plain, *correct.inputs) if problem.relu else truth
        tiles = F.max_pool2d((~torch.isfinite(sums)).float(), (high, wide), ceil_mode=True)
        spread = tiles.repeat_interleave(high, 2).repeat_interleave(wide, 3)[..., :P, :Q] > 0
        made_of_inf = ~torch.isfinite(y)
        if problem.relu:
            # A ReLU turns -inf into 0, but not NaN.
            no_inf = (t if t is None else torch.where(torch.isinf(t), 1, t) for t in correct.inputs)
            sums = reference.truth(plain, *no_inf)
            made_of_inf |= (y == 0) & ~torch.isnan(sums)
        return torch.where(spread & made_of_inf, truth.to(y.dtype), y)


def _truth(correct: Reference) -> Tensor:
    return torch.cat([piece for _, piece in correct.pieces])


def _largest_exponent(format: Format) -> int:
    """Return the largest exponent that all dtypes have: 128 of float32, 16 of fp16."""
    dtypes = [storage.torch_dtype for _, storage in format]
    return min(round(math.log2(torch.finfo(dtype).max)) for dtype in dtypes)


def integers(
    problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None, format: Format, mixes: str | None
) -> Inputs:
    """Return integers from normal data, whose sums of products y's dtype holds in any order.

    Channels cancel in pairs, except for a small rest, so that a product has more bits than y. A
    kernel that rounds a product, or a part of the sum, to less than fp32 gets another result. Where
    tiles share sums (`mixes`) the numbers are small, and exact in quarters, as in Winograd's
    F(2x2).
    """
    # The number of integers that y's dtype can hold exactly.
    exact = 2 / torch.finfo(format.y.torch_dtype).eps
    channels = problem.C // problem.groups
    if mixes or channels == 1:
        top = max(1, min(31, math.isqrt(int(exact / (problem.gemm_k + 1)))))
        return _whole(x, top), _whole(w, top), _whole(bias, top)
    pairs = channels // 2
    taps = problem.R * problem.S
    # What a pair of channels, or a single one, may add to the sum.
    rest = int(exact / ((channels - pairs) * taps + 1))
    top = max(1, min(31, rest))
    little = max(1, min(63, rest // top))
    # x must be exact in its dtype and in TF32, and all sums in fp32.
    exact_in_x = min(2 / torch.finfo(format.x.torch_dtype).eps, 2**11)
    exact_in_sum = 2**22 / (problem.gemm_k * top)
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
    """Return normal data as whole numbers from -top to top."""
    return None if tensor is None else (tensor * top / 2).round().clamp(-top, top)
