"""Settings with other data than normal: integers, zeros, huge and tiny numbers, inf and NaN.

What a right kernel may do on such data is decided here, by rule:

- Sums of products of small integers are exact in any order and in any class: the result is the
  truth's bits.
- A result among fp16's denormals is right if it is as near as neighbouring denormals are.
- Denormals may count as zero: x's and w's as well as products, as with ``-ftz=true``.
- An inf or NaN changes the outputs that see it, and no others. What lies beside the image is not
  seen, whatever a kernel multiplies by zero there. A ReLU turns -inf into 0, and leaves NaN.
- A kernel whose header says ``mixes: 2x2`` computes each tile of 2 x 2 outputs from the same sums
  (Winograd). An inf or NaN that one of them sees may make all of them inf or NaN, and sums of
  integers need only be as near as its class says. ``mixes: image`` has the whole image in a tile.
  ``mixes: 1x1`` is for a kernel that turns an inf into NaN where it is seen (a number split in two).
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

_ROUNDED = 0.29  # of a step: the root mean square of what rounding to it changes
_ADVICE = (
    "a kernel whose outputs of a tile share sums says so in its header, `mixes: 2x2`; one that "
    "turns inf into NaN says `mixes: 1x1`"
)


@dataclass(frozen=True)
class UnusualData(Setting):
    """The base of these settings: a subclass says how it changes normal data."""

    normal: bool = False

    def reference(self, kernel: Runnable, problem: Problem, seed: int) -> Reference:
        """Return the inputs of this setting, and the truth."""
        normal = data.inputs(problem, seed, kernel.device)
        changed = self.change(normal, problem, kernel.format, kernel.mixes)
        return Reference(problem, data.placed(changed, kernel.format), seed)

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return the data of this setting, made of normal x, w and bias in float32."""
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
        """Say that something is rounded."""
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

    def exponents(self, reach: int) -> tuple[int, int]:
        """Return the powers of two for x and w; 2^reach is the largest number of their dtypes."""
        raise NotImplementedError

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Return scaled data."""
        x, w, bias = inputs
        of_x, of_w = self.exponents(_reach(format))
        bias = None if bias is None else bias * 2.0 ** (of_x + of_w)
        return x * 2.0**of_x, w * 2.0**of_w, bias


@dataclass(frozen=True)
class Huge(Scaled):
    """Numbers whose products are near the largest that there are."""

    name: str = "huge"
    words: str = "on huge numbers"

    def exponents(self, reach: int) -> tuple[int, int]:
        """Return large exponents."""
        return reach // 2, reach // 5


@dataclass(frozen=True)
class Tiny(Scaled):
    """Numbers whose products are near the smallest that there are."""

    name: str = "tiny"
    words: str = "on tiny numbers"

    def exponents(self, reach: int) -> tuple[int, int]:
        """Return small exponents; y of fp16, which nothing flushes, is among the denormals."""
        few = 5 if reach > 16 else 2
        return -reach // 2, -reach // few

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """Return the bound of the class, or a step of y's denormals where that is more."""
        stored = torch.finfo(kernel.format.y.torch_dtype)
        if not rms:
            return allowed
        return allowed + 2 * _ROUNDED * stored.smallest_normal * stored.eps / rms


@dataclass(frozen=True)
class Denormals(Scaled):
    """An x of denormals, which a GPU may flush to zero."""

    name: str = "denormals"
    words: str = "on denormals"

    def exponents(self, reach: int) -> tuple[int, int]:
        """Return an exponent below the smallest normal number for x."""
        return -reach - 2, 0

    def comparable(self, y: Tensor, right: Reference, kernel: Runnable) -> Tensor:
        """Return y with the truth where it differs by no more than what was flushed.

        In float32: y's dtype may have few denormals, and its steps are wide there.
        """
        truth = _truth(right)
        x, w, _ = (None if t is None else t.double().abs().max() for t in right.inputs)
        flushed = right.problem.gemm_k * float(x * w) + torch.finfo(torch.float32).tiny
        near = (y.double() - truth).abs() <= flushed
        return torch.where(near, truth.float(), y.float())


@dataclass(frozen=True)
class Special(UnusualData):
    """inf and NaN in single places."""

    name: str = "special"
    words: str = "with inf and NaN in single places"
    advice: str = _ADVICE

    def change(self, inputs: Inputs, problem: Problem, format: Format, mixes: str | None) -> Inputs:
        """Put inf and NaN where a kernel that reads one element too far meets them."""
        x, w, bias = inputs
        # Zeros: 0 times an inf of x, or times the NaN of w, is NaN.
        w[0, 0] = 0
        x[0, problem.C - problem.C // problem.groups, problem.H // 2] = 0
        # Read in error for the row before the next channel, or the column before the next row.
        x[0, 0, -1, problem.W // 2] = math.inf
        x[-1, -1, problem.H // 2, -1] = -math.inf
        x[0, -1, 0, 0] = math.nan
        sides = zip(problem.padding, problem.dilation, (problem.R, problem.S))
        if all(padding <= dilation * ((taps - 1) // 2) for padding, dilation, taps in sides):
            # This tap never meets the padding.
            w[-1, 0, problem.R // 2, problem.S // 2] = math.nan
        return x, w, bias

    def comparable(self, y: Tensor, right: Reference, kernel: Runnable) -> Tensor:
        """Return y with the truth where a tile with shared sums may be inf or NaN as a whole."""
        if not kernel.mixes:
            return y
        problem = right.problem
        truth = _truth(right)
        P = problem.P
        Q = problem.Q
        high, wide = (P, Q) if kernel.mixes == "image" else map(int, kernel.mixes.split("x"))
        plain = dataclasses.replace(problem, relu=False)
        sums = reference.truth(plain, *right.inputs) if problem.relu else truth
        tiles = F.max_pool2d((~torch.isfinite(sums)).float(), (high, wide), ceil_mode=True)
        spread = tiles.repeat_interleave(high, 2).repeat_interleave(wide, 3)[..., :P, :Q] > 0
        made_of_inf = ~torch.isfinite(y)
        if problem.relu:
            # A ReLU turns -inf into 0, but not NaN.
            no_inf = (t if t is None else torch.where(torch.isinf(t), 1, t) for t in right.inputs)
            sums = reference.truth(plain, *no_inf)
            made_of_inf |= (y == 0) & ~torch.isnan(sums)
        return torch.where(spread & made_of_inf, truth.to(y.dtype), y)


def _truth(right: Reference) -> Tensor:
    return torch.cat([piece for _, piece in right.pieces])


def _reach(format: Format) -> int:
    """Return the largest power of two of all dtypes: 128 of float32, 16 of fp16."""
    dtypes = [stored.torch_dtype for _, stored in format]
    return min(round(math.log2(torch.finfo(dtype).max)) for dtype in dtypes)


def integers(
    problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None, format: Format, mixes: str | None
) -> Inputs:
    """Make integers of normal data; sums of their products are exact in any order, in y's dtype.

    Channels cancel in pairs but for a little, so that a product has more bits than y. A kernel that
    rounds a product, or a part of the sum, to less than fp32 gets another result. Where tiles share
    sums (`mixes`) the numbers are small, and exact in quarters, as Winograd's F(2x2) sums them.
    """

    def whole(tensor: Tensor | None, top: int) -> Tensor | None:
        return None if tensor is None else (tensor * top / 2).round().clamp(-top, top)

    exact = 2 / torch.finfo(format.y.torch_dtype).eps
    channels = problem.C // problem.groups
    if mixes or channels == 1:
        top = max(1, min(31, math.isqrt(int(exact / (problem.gemm_k + 1)))))
        return whole(x, top), whole(w, top), whole(bias, top)
    pairs = channels // 2
    taps = problem.R * problem.S
    rest = int(exact / ((channels - pairs) * taps + 1))  # what is left of a pair, or of one alone
    top = max(1, min(31, rest))
    little = max(1, min(63, rest // top))
    holds = min(2 / torch.finfo(format.x.torch_dtype).eps, 2**11)  # TF32's; and all sums in fp32
    most = max(0, int(min(holds, 2**22 / (problem.gemm_k * top))) - 1 - little)
    grouped = 1, (problem.groups, channels)
    large, x = (whole(x, size).unflatten(*grouped) for size in (most, little))
    w = whole(w, top)
    even = slice(0, 2 * pairs, 2)
    odd = slice(1, 2 * pairs, 2)
    x[:, :, odd] += large[:, :, even]
    x[:, :, even] = large[:, :, even]
    w[:, odd] = -w[:, even]
    return x.flatten(1, 2), w, whole(bias, top)
