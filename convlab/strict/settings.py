"""Settings in which a kernel must be right, too: other data than normal, and what came before it.

The default check has each on a 3x3 problem and a 1x1 one, which has a ReLU, once all others are right.
What a right kernel may do there is decided here, by rule:

- Sums of products of small integers are exact in any order and in any class: the result is the
  truth's bits, however much a product that is rounded to y's dtype would lose.
- Tiny numbers' results are fp16's denormals: a right one is as near as those are to one another.
- Denormals may count as zero, x's and w's as well as products, as with ``-ftz=true``.
- An inf or NaN changes the outputs that see it, and no others: what lies beside the image is not
  seen, whatever a kernel multiplies by zero there. A ReLU makes 0 of -inf, and leaves NaN.
- A kernel whose header says ``mixes: 2x2`` makes each tile of 2 x 2 outputs from the same sums
  (Winograd): an inf or NaN that one of them sees may make all of them inf or NaN, and sums of
  integers need only be as near as its class says. ``mixes: image`` has the whole image in a tile,
  and ``mixes: 1x1`` is for what turns an inf into NaN where it is seen (a number split in two).
- x, w and bias may begin anywhere where a number may, y at any 16 bytes: a kernel that reads
  wider tests the address, or says that it does not take such.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.correctness import reference
from ..core.errors import ProblemError
from ..core.kernel import data
from ..core.kernel.runnable import Inputs, Runnable
from ..core.problem.format import FLOAT32, Format
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem

Y_OFFSET = 16  # bytes: the most that a kernel may take for granted of where y begins


@dataclass(frozen=True)
class Setting:
    """How a problem is run, and on what."""

    name: str = ""  # as `check` takes it; the ordinary one has none, nor
    words: str = ""  # for people
    data: str = "normal"
    offset: int = 0  # bytes past an aligned address, of x, w and bias; of y too, if `Y_OFFSET`
    after_others: bool = False  # called for other problems first, in the same process
    workspace: int = 0  # bytes of it that there are; 0: as many as the kernel may have
    twice: bool = False  # run again, if that may be, to see whether bits move

    def bound(self, allowed: float, kernel: Runnable, rms: float) -> float:
        """The largest normwise error of a right result, of which `allowed` is its class's.

        `rms` is of the truth: of tiny numbers a step of y's dtype may be more than its precision.
        """
        if self.data == "integers" and not kernel.mixes:
            return 0.0
        stored = torch.finfo(kernel.format.y.torch_dtype)
        step = stored.smallest_normal * stored.eps if self.data == "tiny" and rms else 0.0
        return allowed + (2 * _ROUNDED * step / rms if step else 0.0)


ORDINARY = Setting(twice=True)
ONCE = Setting()
SETTINGS = (
    Setting("integers", "on small integers, whose sums are exact", "integers"),
    Setting("zeros", "on zeros", "zeros"),
    Setting("huge", "on huge numbers", "huge"),
    Setting("tiny", "on tiny numbers", "tiny"),
    Setting("denormals", "on denormals", "denormals"),
    Setting("special", "with inf and NaN in single places", "special"),
    Setting("offset", "with x, w and bias 4 bytes past an aligned address", offset=4),
    Setting("y_offset", "with x, w, bias and y 16 bytes past an aligned address", offset=Y_OFFSET),
    Setting(
        "after_others", "after calls for other problems in the same process", after_others=True
    ),
)
SPARSE = Setting("sparse", "where few are read of an x that no int counts")
IN_CHUNKS = (  # room for a pixel at least, and for two images of three: im2col works in chunks
    Setting("little_workspace", "with 40,000 bytes of workspace", workspace=40_000, twice=True),
    Setting("some_workspace", "with 150,000 bytes of workspace", workspace=150_000, twice=True),
)
ALL = (*SETTINGS, SPARSE, *IN_CHUNKS)
NAMES = tuple(setting.name for setting in ALL)
_HOSTS = ("N2 C6 H11 W12 K8 R3 S3 p1 g2 bias", "N2 C6 H11 W12 K12 R3 S3 p1 g6 bias")
_POINTWISE = "N2 C8 H8 W12 K8 R1 S1 bias"  # kernels have a way of their own for those, by 16 bytes
_LARGE = "limits.channels_4099"  # of which a block may want more than this: was it asked for once,
SHARED = 48 << 10  # for fewer bytes?
_FEW_MACS = 500_000
_PLANES = ((3, 32800), (1, 46400))  # channels; height and width
_ROUNDED = 0.29  # of a step: the root mean square of what rounding to it changes


def hosts(kernel: Runnable, right: Iterable[Problem]) -> list[Problem]:
    """The problems that the settings ride on, where one of `right` need not stand in for them.

    The second has a ReLU, where the kernel fuses that.
    """
    usual = [named_problem(spec) for spec in _HOSTS]
    others = [p for p in right if p.macs <= _FEW_MACS and min(p.N, p.P, p.Q) > 1]
    taken = [p for p in [*usual, *others] if not kernel.unsupported(p)][:1]
    pointwise, large = (
        [p for p in [named_problem(spec)] if not kernel.unsupported(p)]
        for spec in (_POINTWISE, _LARGE)
    )
    second = [with_relu(kernel, p) for p in pointwise or taken]
    return list(dict.fromkeys([*taken, *second, *large]))


def sparse(kernel: Runnable) -> list[Problem]:
    """The problems that `SPARSE` rides on: one of planes of which an int counts two, one of larger.

    They are of fp32 tensors in NCHW; of y and the filter, all is written and read.
    """
    if not kernel.simulated or kernel.build() is None or kernel.format != FLOAT32:
        return []
    some = (
        [
            named_problem(f"N2 C{c} H{size} W{size} K60 R{taps} S{taps} s{size - taps} g{groups}")
            for taps, groups in ((3, 1), (1, 1), (3, c))
        ]
        for c, size in _PLANES
    )
    able = ([p for p in each if not kernel.unsupported(p)][:1] for each in some)
    return [problem for each in able for problem in each]


def with_relu(kernel: Runnable, problem: Problem) -> Problem:
    """The problem with a ReLU; as it is, where the kernel would decline that."""
    other = dataclasses.replace(problem, relu=True)
    return problem if kernel.unsupported(other) else other


def histories(kernel: Runnable, problem: Problem) -> list[list[Problem]]:
    """What it is called for before, each time anew; the problem is to come out right after each.

    What a kernel keeps, it looks up by some of a problem's numbers, or of the data. So after one
    that is unlike the problem in all numbers comes one that is unlike it in a single one, or only
    in two elements of each tensor.
    """
    N = problem.N
    C = problem.C
    H = problem.H
    W = problem.W
    K = problem.K
    (pad_h, pad_w) = problem.padding
    (dilation_h, dilation_w) = problem.dilation

    def like(*changes: dict[str, Any]) -> Iterator[Problem]:
        for change in changes:
            with contextlib.suppress(ProblemError):
                other = dataclasses.replace(problem, name="", **change)
                if not kernel.unsupported(other):
                    yield other

    if 4 * problem.gemm_k > SHARED:
        fewer = problem.groups * (SHARED // (4 * problem.R * problem.S) + 1)
        return [[*like({"C": fewer})]]
    more = {"N": N + 1, "C": 2 * C, "H": H + 3, "W": W + 8, "K": 2 * K}
    point = more | {"R": 1, "S": 1, "padding": (0, 0)}
    unlike = next(like(point | {"stride": (2, 3), "dilation": (2, 2)}, point, more, {}))
    less, *others = like(
        {"N": 1, "H": max(H - 2, 1), "W": max(W - 4, 1)},
        more,
        {"padding": (pad_h + 1, pad_w)},
        {"dilation": (dilation_h, dilation_w + 1)},
        {"dilation": (dilation_h + 1, dilation_w)},
        {"stride": (2, 1)},
        {"groups": 1},
        {"relu": not problem.relu},
        {},
    )
    return [[less], *([unlike, other] for other in (less, *others))]


def inputs(
    kind: str,
    problem: Problem,
    seed: int,
    device: data.Device,
    format: Format,
    mixes: str | None = None,
) -> Inputs:
    """Return x, w and bias (or None) of one kind of data, the same for the same seed."""
    if kind == "normal":
        return data.inputs(problem, seed, device, format=format)
    x, w, bias = data.inputs(problem, seed, device)
    dtypes = [stored.torch_dtype for _, stored in format]
    reach = min(round(math.log2(torch.finfo(dtype).max)) for dtype in dtypes)  # 128; 16 of fp16
    if kind == "integers":
        x, w, bias = _integers(problem, x, w * math.sqrt(problem.gemm_k), bias, format, mixes)
    elif kind == "zeros":
        x = torch.zeros_like(x)
    elif kind == "special":
        w[0, 0] = 0  # times inf it is NaN, as 0 is times the NaN of w below
        x[0, problem.C - problem.C // problem.groups, problem.H // 2] = 0
        x[0, 0, -1, problem.W // 2] = math.inf  # what is read for the row before the next channel
        x[-1, -1, problem.H // 2, -1] = -math.inf  # or for the column before the next row
        x[0, -1, 0, 0] = math.nan
        if all(
            around <= spread * ((taps - 1) // 2)
            for around, spread, taps in zip(
                problem.padding, problem.dilation, (problem.R, problem.S)
            )
        ):
            w[-1, 0, problem.R // 2, problem.S // 2] = math.nan  # never on the padding
    else:
        few = 5 if reach > 16 else 2  # of fp16, which nothing flushes, y is among the denormals
        of_x, of_w = {
            "huge": (reach // 2, reach // 5),
            "tiny": (-reach // 2, -reach // few),
            "denormals": (-reach - 2, 0),
        }[kind]
        x = x * 2.0**of_x
        w = w * 2.0**of_w
        bias = None if bias is None else bias * 2.0 ** (of_x + of_w)
    return data.placed((x, w, bias), format)


def _integers(
    problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None, format: Format, mixes: str | None
) -> Inputs:
    """Make integers of normal data; sums of their products are exact in any order, and in y's dtype.

    Channels cancel in pairs but for a little, so that a product has more bits than y. Who rounds it
    to less than fp32, or a part of the sum, is told. Where tiles share sums, the error is one of all
    their terms: there the numbers are small, and exact in quarters, as Winograd's F(2x2) sums them.
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


def forgiven(
    kind: str, y: Tensor, truth: Tensor, problem: Problem, given: Inputs, mixes: str | None
) -> Tensor:
    """Return y with the truth where it differs in a way that a right kernel's may.

    Among denormals that is in fp32: y's dtype may have few of them, and its steps are wide there.
    """
    if kind == "denormals":
        x, w, _ = (None if t is None else t.double().abs().max() for t in given)
        flushed = problem.gemm_k * float(x * w) + torch.finfo(torch.float32).tiny
        return torch.where((y.double() - truth).abs() <= flushed, truth.float(), y.float())
    if kind == "special" and mixes:
        P = problem.P
        Q = problem.Q
        high, wide = (P, Q) if mixes == "image" else map(int, mixes.split("x"))
        plain = dataclasses.replace(problem, relu=False)
        sums = reference.truth(plain, *given) if problem.relu else truth
        tiles = F.max_pool2d((~torch.isfinite(sums)).float(), (high, wide), ceil_mode=True)
        spread = tiles.repeat_interleave(high, 2).repeat_interleave(wide, 3)[..., :P, :Q] > 0
        made_of_inf = ~torch.isfinite(y)
        if problem.relu:  # of -inf it makes 0, of NaN it does not
            no_inf = (t if t is None else torch.where(torch.isinf(t), 1, t) for t in given)
            sums = reference.truth(plain, *no_inf)
            made_of_inf |= (y == 0) & ~torch.isnan(sums)
        return torch.where(spread & made_of_inf, truth.to(y.dtype), y)
    return y
