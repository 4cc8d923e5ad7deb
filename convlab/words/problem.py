"""A convolution problem: its dimensions, what it costs, and named sets of problems.

Dimensions are named as in cuDNN and CUTLASS: input x is (N, C, H, W), the filter w is
(K, C/groups, R, S), output y is (N, K, P, Q); stride, padding and dilation are (height, width).
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache

from .errors import ProblemError
from .format import FLOAT32

INT32_MAX = 2**31 - 1
PROBLEM_SETS = ("headline", "kernelbench", "resnet50", "awkward")

Pair = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """One forward 2-D convolution (cross-correlation), as in `torch.nn.functional.conv2d`.

    Parameters
    ----------
    N, C, H, W
        Shape of the input x. N may be 0; then the output is empty.
    K, R, S
        Filters, and a filter's height and width; the filter w is (K, C/groups, R, S).
    stride, padding, dilation
        Pairs (height, width), or one int for both. Padding is zeros, on both sides.
    groups
        C and K are multiples of it.
    bias
        Whether one number per output channel is added.
    name
        How to show it; no part of equality.

    Raises
    ------
    ProblemError
        The numbers do not describe a convolution, or one of them passes 2^31 - 1.
    """

    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for key in "NCHWKRS":
            _set(self, key, _integer(getattr(self, key), key))
            least = 0 if key == "N" else 1
            if getattr(self, key) < least:
                raise ProblemError(f"{key} is {getattr(self, key)}; it must be at least {least}")
        for key, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            sizes = pair(getattr(self, key), key)
            _set(self, key, sizes)
            if min(sizes) < least:
                raise ProblemError(f"{key} is {sizes}; both parts must be at least {least}")
        _set(self, "groups", _integer(self.groups, "groups"))
        _set(self, "bias", bool(self.bias))
        if self.groups < 1:
            raise ProblemError(f"groups is {self.groups}; it must be at least 1")
        for key in "CK":
            if getattr(self, key) % self.groups:
                raise ProblemError(
                    f"{key}={getattr(self, key)} is not a multiple of groups={self.groups}; "
                    f"change groups to a divisor of it"
                )
        sides = (("height", self.H, self.R, 0), ("width", self.W, self.S, 1))
        for side, size, filter_size, i in sides:
            padded = size + 2 * self.padding[i]
            extent = self.dilation[i] * (filter_size - 1) + 1
            if extent > padded:
                raise ProblemError(
                    f"the filter is larger than the padded input: {side} {extent} "
                    f"(filter {filter_size}, dilation {self.dilation[i]}) over {padded} "
                    f"(input {size}, padding {self.padding[i]}); pad by "
                    f"{-(-(extent - size) // 2)} or use a smaller filter"
                )
            if padded > INT32_MAX:
                raise ProblemError(f"the padded {side} is {padded}; the limit is 2^31 - 1")
        for key, value in self.variables().items():
            if value > INT32_MAX:
                raise ProblemError(f"{key} is {value}; each dimension is limited to 2^31 - 1")

    @classmethod
    def from_shapes(
        cls,
        x_shape: Iterable[int],
        w_shape: Iterable[int],
        bias_shape: Iterable[int] | None = None,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        name: str = "",
    ) -> Problem:
        """Return the problem of tensors of these shapes, with the arguments of `F.conv2d`.

        Raises
        ------
        ProblemError
            A wrong rank, channels that do not fit, a bias of the wrong length, or anything that
            `Problem` itself refuses. `padding="valid"` is 0; "same" must be resolved before
            (see `same_padding`), because it may be unequal on the two sides.
        """
        x_shape, w_shape = tuple(x_shape), tuple(w_shape)
        if len(x_shape) != 4:
            hint = "; for one image, x.unsqueeze(0)" if len(x_shape) == 3 else ""
            raise ProblemError(f"x must have 4 dimensions (N, C, H, W), not shape {x_shape}{hint}")
        if len(w_shape) != 4:
            raise ProblemError(f"w must have 4 dimensions (K, C/groups, R, S), not shape {w_shape}")
        if isinstance(padding, str):
            if padding != "valid":
                raise ProblemError(
                    f"padding is {padding!r} here; give numbers or 'valid' "
                    "('same' in numbers: convlab.problem.same_padding, one dimension at a time)"
                )
            padding = 0
        N, C, H, W = x_shape
        K, per_group, R, S = w_shape
        groups = _integer(groups, "groups")
        if groups >= 1 and C % groups == 0 and C != per_group * groups:
            raise ProblemError(
                f"x has C={C} channels in groups={groups}, so w must be (K, {C // groups}, R, S); "
                f"its shape is {w_shape}"
            )
        if bias_shape is not None and tuple(bias_shape) != (K,):
            raise ProblemError(
                f"bias must have shape ({K},), one number for each of w's K={K} filters, "
                f"not {tuple(bias_shape)}"
            )
        return cls(
            N, C, H, W, K, R, S, stride, padding, dilation, groups, bias_shape is not None, name
        )

    @property
    def P(self) -> int:
        """Output height."""
        return self._outputs(self.H, self.R, 0)

    @property
    def Q(self) -> int:
        """Output width."""
        return self._outputs(self.W, self.S, 1)

    def _outputs(self, size: int, filter_size: int, i: int) -> int:
        extent = self.dilation[i] * (filter_size - 1) + 1
        return (size + 2 * self.padding[i] - extent) // self.stride[i] + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        return (self.N, self.C, self.H, self.W)

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        """(K, C/groups, R, S)."""
        return (self.K, self.C // self.groups, self.R, self.S)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """(N, K, P, Q)."""
        return (self.N, self.K, self.P, self.Q)

    @property
    def gemm_m(self) -> int:
        """Rows of the equivalent matrix product: output pixels, N*P*Q."""
        return self.N * self.P * self.Q

    @property
    def gemm_n(self) -> int:
        """Columns of the equivalent matrix product: filters, K."""
        return self.K

    @property
    def gemm_k(self) -> int:
        """Length of one output's dot product: C/groups * R * S."""
        return self.C // self.groups * self.R * self.S

    @property
    def macs(self) -> int:
        """Multiply-adds; those on padding count, those of the bias do not."""
        return self.gemm_m * self.K * self.gemm_k

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-add."""
        return 2 * self.macs

    @property
    def min_bytes(self) -> int:
        """Bytes that must move at least, in float32; `Format.min_bytes` tells those of others."""
        return FLOAT32.min_bytes(self)

    @property
    def im2col_elements(self) -> int:
        """Elements of the whole im2col matrix: (C*R*S) x (N*P*Q)."""
        return self.C * self.R * self.S * self.gemm_m

    @property
    def label(self) -> str:
        """The name, or where there is none, the dimensions."""
        return self.name or str(self)

    def variables(self) -> dict[str, int]:
        """Return every number of the problem by the name that a kernel's header uses for it."""
        return {
            **{key: getattr(self, key) for key in ("N", "C", "H", "W", "K", "R", "S", "P", "Q")},
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "pad_h": self.padding[0],
            "pad_w": self.padding[1],
            "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1],
            "groups": self.groups,
        }

    def __str__(self) -> str:
        def short(pair: Pair) -> str:
            return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"

        sizes = " ".join(f"{key}{getattr(self, key)}" for key in "NCHWKRS")
        return (
            f"{sizes} s{short(self.stride)} p{short(self.padding)} d{short(self.dilation)} "
            f"g{self.groups}{' bias' if self.bias else ''}"
        )

    def _least_image(self, i: int) -> Pair:
        """Return one side of the smallest telling image, and of the smallest one that is valid."""
        size, filter_size = ((self.H, self.R), (self.W, self.S))[i]
        extent = self.dilation[i] * (filter_size - 1) + 1
        valid = max(1, extent - 2 * self.padding[i])
        telling = max(4 * extent, 17 * self.stride[i] + extent - 2 * self.padding[i])
        return min(size, telling), valid

    def scaled(self, max_macs: int, max_bytes: int | None = None) -> Problem:
        """Return this problem shrunk until it costs at most that much, and says so in its name.

        What shows mistakes is kept longest. First N shrinks, to 2; then the image, to no less
        than four times the dilated filter and 18 outputs a side (interior, borders, more than
        one tile of 16); then the channels, then the groups; only then the image as far as it
        goes, and N to 1. Filter, stride, padding and dilation stay.
        Where even the smallest problem costs more, that one returns.

        Parameters
        ----------
        max_macs
            Limit on `macs`.
        max_bytes
            Limit on `min_bytes`, if any.
        """

        def fits(problem: Problem) -> bool:
            small = max_bytes is None or problem.min_bytes <= max_bytes
            return small and problem.macs <= max_macs

        if fits(self):
            return self
        groups, deepest = self.groups, max(self.C, self.K) // self.groups
        floor, least = zip(self._least_image(0), self._least_image(1))

        def image(step: int, low: Pair, n: int, **channels: int) -> Problem:
            longest = max(self.H - low[0], self.W - low[1], 1)
            step = min(step, longest)
            H = low[0] + (self.H - low[0]) * step // longest
            W = low[1] + (self.W - low[1]) * step // longest
            return replace(self, N=n, H=H, W=W, **channels)

        def depth(step: int) -> Problem:
            def part(of: int) -> int:
                return groups * max(1, of // groups * step // deepest)

            return image(0, floor, few, C=part(self.C), K=part(self.K))

        few, steps = min(self.N, 2), max(self.H, self.W)
        # Each: a range of ints, and the problem that one of them makes, dearer as it grows.
        stages: list[tuple[int, int, Callable[[int], Problem]]] = [
            (few, self.N, lambda n: replace(self, N=n)),
            (0, steps, lambda step: image(step, floor, few)),
            (1, deepest, depth),
            (1, groups, lambda g: image(0, floor, few, C=g, K=g, groups=g)),
            (0, steps, lambda step: image(step, least, few, C=1, K=1, groups=1)),
            (0, steps, lambda step: image(step, least, min(few, 1), C=1, K=1, groups=1)),
        ]
        small = image(0, least, min(few, 1), C=1, K=1, groups=1)
        for low, high, make in stages:
            step = _largest(low, high, lambda value, make=make: fits(make(value)))
            if step is not None:
                small = make(step)
                break
        changes = [f"N={small.N}", f"{small.H}x{small.W}"]
        changes += [
            f"{key}={getattr(small, key)}"
            for key in ("C", "K", "groups")
            if getattr(small, key) != getattr(self, key)
        ]
        label = self.label.split(" (scaled to ")[0]
        return replace(small, name=f"{label} (scaled to {', '.join(changes)})")


def same_padding(filter_size: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after one dimension for which `padding="same"` stands.

    As in torch (stride 1 only): the total is dilation * (filter_size - 1), and an odd one puts
    the extra zero after.
    """
    total = dilation * (filter_size - 1)
    return total // 2, total - total // 2


def problem(name_or_spec: str | Problem) -> Problem:
    """Return a named problem, or the one that a specification spells out.

    Parameters
    ----------
    name_or_spec
        A name out of the sets ("square", "resnet50.layer2.0.conv2"), or dimensions as in
        "N=1,C=3,H=32,W=32,K=8,R=3,S=3,stride=2,padding=1x2,bias=1"; the form that
        `str(problem)` prints, "N1 C3 H32 ... s2 p1x2 d1 g1", is read too.

    Raises
    ------
    ProblemError
        No such name (the message says which is nearest), or a malformed specification.
    """
    if isinstance(name_or_spec, Problem):
        return name_or_spec
    named = {found.name: found for members in _sets().values() for found in members}
    if name_or_spec in named:
        return named[name_or_spec]
    if "=" in name_or_spec or re.match(r"\s*N\d", name_or_spec):
        return _parse(name_or_spec)
    near = difflib.get_close_matches(name_or_spec, named, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"sets: {', '.join(PROBLEM_SETS)}"
    raise ProblemError(
        f"no problem is named {name_or_spec!r}; {hint} "
        "Or give the dimensions: N=1,C=3,H=32,W=32,K=8,R=3,S=3"
    )


def problems(set_name: str) -> list[Problem]:
    """Return a named set of problems; the names are in `PROBLEM_SETS`.

    Raises
    ------
    ProblemError
        There is no set of that name.
    """
    if set_name not in PROBLEM_SETS:
        raise ProblemError(
            f"no set of problems is named {set_name!r}; there are {', '.join(PROBLEM_SETS)}"
        )
    return list(_sets()[set_name])


def _set(instance: Problem, key: str, value: object) -> None:
    object.__setattr__(instance, key, value)  # the way round `frozen`, while it is being made


def _integer(value: object, key: str) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ProblemError(f"{key} must be an integer, not {value!r}") from None


def pair(value: object, key: str) -> Pair:
    """Return what one int or a (height, width) pair means; `key` names it in the message."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        parts = tuple(value)
        if len(parts) not in (1, 2):
            raise ProblemError(f"{key} must be an integer or a pair (height, width), not {value!r}")
        return _integer(parts[0], key), _integer(parts[-1], key)
    return (_integer(value, key),) * 2


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the largest int of [low, high] for which `holds`, true up to some point, is true."""
    if low > high or not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


_SPEC_KEYS = {"s": "stride", "p": "padding", "d": "dilation", "g": "groups"}


def _parse(spec: str, name: str = "") -> Problem:
    """Return the problem that "N=1,C=3,..." or "N1 C3 ..." spells."""
    known = [entry.name for entry in fields(Problem) if entry.name != "name"]
    found: dict[str, object] = {}
    for token in filter(None, re.split(r"[,\s]+", spec)):
        match = re.fullmatch(r"([A-Za-z]+)(?:=?(-?\d+)(?:x(-?\d+))?)?", token)
        key = _SPEC_KEYS.get(match[1], match[1]) if match else token
        if match is None or key not in known or (match[2] is None and key != "bias"):
            raise ProblemError(
                f"cannot read {token!r} in {spec!r}; write key=number with keys "
                f"{', '.join(known)}; stride, padding and dilation also as 2x3"
            )
        if key in found:
            raise ProblemError(f"{key} is given twice in {spec!r}")
        first = 1 if match[2] is None else int(match[2])
        found[key] = first if match[3] is None else (first, int(match[3]))
    missing = [key for key in "NCHWKRS" if key not in found]
    if missing:
        raise ProblemError(f"{spec!r} lacks {', '.join(missing)}; all of N,C,H,W,K,R,S are needed")
    return Problem(**found, name=name)  # type: ignore[arg-type]


@cache
def _sets() -> dict[str, tuple[Problem, ...]]:
    tables = {
        "headline": _HEADLINE,
        "kernelbench": _KERNELBENCH,
        "resnet50": _resnet50(),
        "awkward": _AWKWARD,
    }
    return {
        set_name: tuple(
            _parse(spec, name if set_name == "headline" else f"{set_name}.{name}")
            for name, spec in table.items()
        )
        for set_name, table in tables.items()
    }


_HEADLINE = {
    "square": "N16 C16 H1024 W1024 K128 R3 S3",
    "rect": "N8 C32 H512 W512 K64 R5 S9",
    "wide": "N8 C64 H512 W1024 K128 R3 S3",
}

# KernelBench level 1 (Ouyang et al., 2025, arXiv:2502.10517), the forward 2-D convolutions of the
# suite, with the sizes that it has had since its version of mid-2025. The number is the suite's.
_KERNELBENCH = {
    "50_alexnet": "N256 C3 H224 W224 K96 R11 S11 s4 p2 bias",
    "55_asymmetric_input": "N8 C64 H512 W1024 K128 R3 S3",
    "56_asymmetric_input_asymmetric_filter": "N8 C64 H512 W256 K128 R5 S7",
    "62_asymmetric_filter": "N8 C32 H512 W512 K64 R5 S9",
    "63_square": "N16 C16 H1024 W1024 K128 R3 S3",
    "80_dilated_padded": "N8 C32 H512 W512 K64 R5 S9 p2x4 d2x3",
    "82_depthwise": "N16 C64 H512 W512 K64 R3 S3 g64",
    "83_depthwise_asymmetric_filter": "N64 C8 H512 W512 K8 R3 S1 g8",
    "84_depthwise_asymmetric_input": "N64 C128 H256 W512 K128 R3 S3 g128",
    "85_depthwise_asymmetric_input_asymmetric_filter": "N32 C128 H128 W256 K128 R3 S7 g128",
    "86_separable_depthwise": "N16 C64 H512 W512 K64 R3 S3 p1 g64",
    "86_separable_pointwise": "N16 C64 H512 W512 K128 R1 S1",
    "87_pointwise": "N16 C64 H1024 W1024 K128 R1 S1",
}


def _resnet50() -> dict[str, str]:
    """Return ResNet-50's distinct layers at 224x224 (stride in the 3x3, as torchvision has it)."""
    table = {"conv1": "N32 C3 H224 W224 K64 R7 S7 s2 p3"}
    size, channels = 56, 64
    for layer, width in enumerate((64, 128, 256, 512), start=1):
        stride, after = ("", size) if layer == 1 else (" s2", size // 2)
        wide = 4 * width
        table |= {
            f"layer{layer}.0.conv1": f"N32 C{channels} H{size} W{size} K{width} R1 S1",
            f"layer{layer}.0.conv2": f"N32 C{width} H{size} W{size} K{width} R3 S3 p1{stride}",
            f"layer{layer}.0.conv3": f"N32 C{width} H{after} W{after} K{wide} R1 S1",
            f"layer{layer}.1.conv1": f"N32 C{wide} H{after} W{after} K{width} R1 S1",
        }
        if layer > 1:  # in layer 1 these two repeat 0.conv3 and 0.conv2
            table |= {
                f"layer{layer}.0.downsample": f"N32 C{channels} H{size} W{size} K{wide} R1 S1 s2",
                f"layer{layer}.1.conv2": f"N32 C{width} H{after} W{after} K{width} R3 S3 p1",
            }
        size, channels = after, wide
    return table


# Small problems, each there for a mistake that it shows.
_AWKWARD = {
    "primes": "N3 C5 H17 W19 K7 R3 S3 p1",  # nothing divides anything; pads every border
    "tile_exact": "N2 C4 H34 W34 K16 R3 S3",  # P, Q, K on boundaries of 16 and 32
    "tile_plus_one": "N2 C3 H35 W35 K17 R3 S3",  # one pixel and one filter in the last tile
    "tile_minus_one": "N2 C4 H33 W33 K15 R3 S3",
    "filters_129": "N2 C3 H9 W10 K129 R3 S3 p1",  # one past a block of 128 filters
    "channels_257": "N2 C257 H6 W7 K5 R3 S3 p1",  # all channels in one tile do not fit
    "channel_1": "N2 C1 H20 W21 K6 R3 S3",
    "filter_1": "N2 C6 H20 W21 K1 R3 S3",
    "image_1": "N1 C3 H18 W37 K4 R3 S3",
    "coincide": "N3 C3 H5 W5 K3 R3 S3",  # all sizes are 3: a transpose keeps the shape
    "coincide_pixels": "N2 C4 H6 W6 K16 R3 S3",  # K = P*Q: a transposed product keeps the shape
    "stride_2x3": "N2 C3 H23 W26 K5 R3 S3 s2x3 p1",
    "stride_2x3_tiles": "N2 C2 H47 W64 K3 R3 S3 s2x3 p1",  # P, Q past a tile of 16
    "stride_past_filter": "N2 C3 H24 W25 K5 R2 S2 s5x3",  # stride > filter; the rest is unused
    "dilation_2x1": "N2 C3 H20 W23 K5 R3 S3 d2x1",
    "dilation_48": "N1 C2 H100 W100 K5 R3 S3 d48",  # what 16x16 outputs see is over 48 KB
    "dilation_118": "N1 C1 H240 W241 K2 R3 S3 d118",  # what 8x8 outputs see is over 227 KB
    "padding_2x0": "N2 C3 H17 W18 K5 R3 S3 p2x0",
    "padding_past_filter": "N2 C3 H9 W8 K4 R3 S2 p4x5",  # outputs that read padding alone
    "groups_2": "N2 C6 H18 W17 K8 R3 S3 p1 g2",
    "groups_3": "N2 C9 H17 W18 K6 R3 S3 g3",
    "depthwise": "N2 C19 H18 W17 K19 R3 S3 p1 g19",
    "depthwise_x2": "N2 C5 H18 W19 K10 R3 S3 p1 g5",
    "pointwise": "N2 C19 H17 W13 K33 R1 S1",
    "pointwise_stride_2": "N2 C8 H17 W18 K9 R1 S1 s2",
    "filter_5x9": "N2 C3 H21 W35 K5 R5 S9",
    "filter_9x5": "N2 C3 H35 W21 K5 R9 S5 p4x2",
    "filter_11x11": "N2 C3 H51 W47 K6 R11 S11 s4 p2 bias",
    "filter_4x2": "N2 C3 H19 W18 K5 R4 S2 p1",  # even: there is no middle
    "filter_is_image": "N3 C4 H7 W9 K5 R7 S9",  # one output pixel
    "width_1": "N2 C4 H41 W1 K5 R3 S1",
    "height_1": "N2 C4 H1 W41 K5 R3 S3 p1",
    "very_wide": "N2 C2 H3 W1031 K3 R3 S3 p0x1",
    "very_tall": "N2 C2 H1031 W3 K3 R3 S3 p1x0",
    "bias": "N2 C3 H17 W18 K21 R3 S3 bias",
    "images_66000": "N66000 C1 H1 W2 K1 R1 S2",  # past a grid's 65535 in y and z
    "everything": "N3 C6 H29 W31 K10 R3 S5 s2x1 p1x3 d2x3 g2 bias",
}
