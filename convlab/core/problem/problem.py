"""A convolution problem: its dimensions, what it costs, and smaller problems like it.

Dimensions are named as in cuDNN and CUTLASS: input x is (N, C, H, W), the filter w is
(K, C/groups, R, S), output y is (N, K, P, Q); stride, padding and dilation are (height, width).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..arguments import flag, several, shown, text, whole
from ..errors import ProblemError

INT32_MAX = 2**31 - 1
DIMENSIONS = "NCHWKRS"
EPILOGUE = ("bias", "relu")
_FLOAT32_BYTES = 4

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
    relu
        Whether y is max(y, 0) after that; NaN stays NaN.
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
    relu: bool = False
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for key in DIMENSIONS:
            self._assign(key, whole(getattr(self, key), key, least=0 if key == "N" else 1))
        for key, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            sizes = pair(getattr(self, key), key)
            if min(sizes) < least:
                raise ProblemError(f"{key} is {sizes}; both parts must be at least {least}")
            self._assign(key, sizes)
        self._assign("groups", whole(self.groups, "groups", 1))
        flag(self.bias, "bias")
        flag(self.relu, "relu")
        text(self.name, "name")
        for key in "CK":
            if getattr(self, key) % self.groups:
                raise ProblemError(
                    f"{key}={getattr(self, key)} is not a multiple of groups={self.groups}; "
                    f"change groups to a divisor of it"
                )
        self._check_side(0, "height", self.H, self.R)
        self._check_side(1, "width", self.W, self.S)
        for key, value in self.variables().items():
            if value > INT32_MAX:
                raise ProblemError(f"{key} is {value}; each dimension is limited to 2^31 - 1")

    def _assign(self, key: str, value: object) -> None:
        """Set an attribute while the object is being made; a plain assignment is refused."""
        object.__setattr__(self, key, value)

    def _check_side(self, i: int, side: str, size: int, filter_size: int) -> None:
        """Raise ProblemError unless the filter fits into the padded input on that side."""
        padded, extent = self._extents(i)
        if extent > padded:
            raise ProblemError(
                f"the filter is larger than the padded input: {side} {extent} "
                f"(filter {filter_size}, dilation {self.dilation[i]}) over {padded} "
                f"(input {size}, padding {self.padding[i]}); pad by "
                f"{-(-(extent - size) // 2)} or use a smaller filter"
            )
        if padded > INT32_MAX:
            raise ProblemError(f"the padded {side} is {padded}; the limit is 2^31 - 1")

    @classmethod
    def from_shapes(
        cls,
        x_shape: Iterable[int],
        w_shape: Iterable[int],
        bias_shape: Iterable[int] | None = None,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        relu: bool = False,
        name: str = "",
    ) -> Problem:
        """Return the problem of tensors of these shapes, with the arguments of `F.conv2d`, and `relu`.

        Raises
        ------
        ProblemError
            A wrong rank, channels that do not fit, a bias of the wrong length, or anything that
            `Problem` itself refuses, such as padding="same".

        Examples
        --------
        >>> print(Problem.from_shapes((1, 3, 32, 32), (8, 3, 3, 3), padding=1))
        N1 C3 H32 W32 K8 R3 S3 s1 p1 d1 g1
        """
        x_shape = tuple(several(x_shape, "x_shape"))
        w_shape = tuple(several(w_shape, "w_shape"))
        if len(x_shape) != 4:
            hint = "; for one image, x.unsqueeze(0)" if len(x_shape) == 3 else ""
            raise ProblemError(f"x must have 4 dimensions (N, C, H, W), not shape {x_shape}{hint}")
        if len(w_shape) != 4:
            raise ProblemError(f"w must have 4 dimensions (K, C/groups, R, S), not shape {w_shape}")
        N, C, H, W = (whole(size, "a size of x") for size in x_shape)
        K, per_group, R, S = (whole(size, "a size of w") for size in w_shape)
        groups = whole(groups, "groups")
        if groups >= 1 and C % groups == 0 and C != per_group * groups:
            raise ProblemError(
                f"x has C={C} channels in groups={groups}, so w must be (K, {C // groups}, R, S); "
                f"its shape is {w_shape}"
            )
        bias = bias_shape is not None
        if bias:
            bias_shape = tuple(several(bias_shape, "bias_shape"))
            if bias_shape != (K,):
                raise ProblemError(
                    f"bias must have shape ({K},), one number for each of w's K={K} filters, "
                    f"not {bias_shape}"
                )
        return cls(N, C, H, W, K, R, S, stride, padding, dilation, groups, bias, relu, name)

    @property
    def P(self) -> int:
        """Output height."""
        return self._outputs(0)

    @property
    def Q(self) -> int:
        """Output width."""
        return self._outputs(1)

    def _extents(self, i: int) -> tuple[int, int]:
        """Return the size of the padded input and of the dilated filter, on side i (0: height)."""
        size = (self.H, self.W)[i]
        filter_size = (self.R, self.S)[i]
        return size + 2 * self.padding[i], self.dilation[i] * (filter_size - 1) + 1

    def _outputs(self, i: int) -> int:
        padded, extent = self._extents(i)
        return (padded - extent) // self.stride[i] + 1

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
        """Multiply-adds; those on padding count, those of bias and ReLU do not."""
        return self.gemm_m * self.K * self.gemm_k

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-add."""
        return 2 * self.macs

    @property
    def min_bytes(self) -> int:
        """Bytes that must move at least, in float32: x, w, bias and y once each.

        `Format.min_bytes` returns those of other formats.
        """
        elements = sum(math.prod(shape) for shape in (self.x_shape, self.w_shape, self.y_shape))
        return _FLOAT32_BYTES * (elements + self.K * self.bias)

    @property
    def im2col_elements(self) -> int:
        """Elements of the whole im2col matrix: (C*R*S) x (N*P*Q)."""
        return self.C * self.R * self.S * self.gemm_m

    @property
    def label(self) -> str:
        """The name, or the dimensions of a problem without one."""
        return self.name or str(self)

    @property
    def epilogue(self) -> tuple[str, ...]:
        """Those of "bias" and "relu" that it has: what happens to a sum of products, in order."""
        return tuple(word for word in EPILOGUE if getattr(self, word))

    def variables(self) -> dict[str, int]:
        """Return every number of the problem by the name that a kernel's header uses for it."""
        numbers = {key: getattr(self, key) for key in (*DIMENSIONS, "P", "Q")}
        pairs = {"stride": self.stride, "pad": self.padding, "dilation": self.dilation}
        for key, (height, width) in pairs.items():
            numbers[f"{key}_h"] = height
            numbers[f"{key}_w"] = width
        return numbers | {"groups": self.groups, "relu": int(self.relu)}

    def __str__(self) -> str:
        sizes = [f"{key}{getattr(self, key)}" for key in DIMENSIONS]
        for key, (height, width) in zip("spd", (self.stride, self.padding, self.dilation)):
            sizes.append(f"{key}{height}" if height == width else f"{key}{height}x{width}")
        return " ".join([*sizes, f"g{self.groups}", *self.epilogue])

    def scaled(self, max_macs: int, max_bytes: int | None = None) -> Problem:
        """Return this problem shrunk until it costs at most that much; its name says so.

        What shows mistakes is kept longest. First N shrinks, to 2; then the image, to no less
        than four times the dilated filter and 18 outputs a side (interior, borders, more than
        one tile of 16); then the channels, then the groups; only then the image as far as it
        goes, and N to 1. Filter, stride, padding and dilation stay. A problem that costs no more
        returns itself. If even the smallest problem costs more, the smallest returns.

        Parameters
        ----------
        max_macs
            Limit on `macs`.
        max_bytes
            Limit on `min_bytes`, if any.
        """
        max_macs = whole(max_macs, "max_macs", 0)
        if max_bytes is not None:
            max_bytes = whole(max_bytes, "max_bytes", 0)

        def fits(small: Problem) -> bool:
            if small.macs > max_macs:
                return False
            return max_bytes is None or small.min_bytes <= max_bytes

        if fits(self):
            return self
        for numbers, make in _stages(self):
            # The cost grows along a stage, so the problems that fit are its first ones.
            fitting = bisect_left(
                numbers, True, key=lambda number, make=make: not fits(make(number))
            )
            small = make(numbers[max(fitting - 1, 0)])
            if fitting:
                break
        changes = [f"N={small.N}", f"{small.H}x{small.W}"]
        for key in ("C", "K", "groups"):
            if getattr(small, key) != getattr(self, key):
                changes.append(f"{key}={getattr(small, key)}")
        label = self.label.split(" (scaled to ")[0]
        return replace(small, name=f"{label} (scaled to {', '.join(changes)})")


def _stages(problem: Problem) -> list[tuple[range, Callable[[int], Problem]]]:
    """Return the steps of `Problem.scaled`: each a range, and the problem that a number makes.

    A larger number makes a problem that costs more. A stage starts where the one before ends.
    """
    images = min(problem.N, 2)
    deepest = max(problem.C, problem.K) // problem.groups
    longest = max(problem.H, problem.W)
    useful = (_useful_size(problem, 0), _useful_size(problem, 1))
    valid = (_valid_size(problem, 0), _valid_size(problem, 1))
    one = {"C": 1, "K": 1, "groups": 1}

    def image(least: tuple[int, int], step: int, images: int, **channels: int) -> Problem:
        """Lengthen both sides in proportion, so that `longest` steps reach their full size."""
        room_h = problem.H - least[0]
        room_w = problem.W - least[1]
        steps = max(room_h, room_w, 1)
        step = min(step, steps)
        H = least[0] + room_h * step // steps
        W = least[1] + room_w * step // steps
        return replace(problem, N=images, H=H, W=W, **channels)

    def channels(step: int) -> Problem:
        """Deepen both C and K in proportion, so that `deepest` steps reach their full size."""
        C, K = (
            problem.groups * max(1, full // problem.groups * step // deepest)
            for full in (problem.C, problem.K)
        )
        return image(useful, 0, images, C=C, K=K)

    return [
        (range(images, problem.N + 1), lambda n: replace(problem, N=n)),
        (range(longest + 1), lambda step: image(useful, step, images)),
        (range(1, deepest + 1), channels),
        (range(1, problem.groups + 1), lambda g: image(useful, 0, images, C=g, K=g, groups=g)),
        (range(longest + 1), lambda step: image(valid, step, images, **one)),
        (range(longest + 1), lambda step: image(valid, step, min(images, 1), **one)),
    ]


def _valid_size(problem: Problem, i: int) -> int:
    """Return the smallest height (i = 0) or width (1) of x that the filter fits into."""
    _, extent = problem._extents(i)
    return max(1, extent - 2 * problem.padding[i])


def _useful_size(problem: Problem, i: int) -> int:
    """Return the smallest height (i = 0) or width (1) of x that still shows most mistakes."""
    _, extent = problem._extents(i)
    size = (problem.H, problem.W)[i]
    of_18_outputs = 17 * problem.stride[i] + extent - 2 * problem.padding[i]
    return min(size, max(4 * extent, of_18_outputs))


def same_padding(filter_size: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after a dimension that torch's `padding="same"` stands for."""
    total = dilation * (filter_size - 1)
    return total // 2, total - total // 2


def pair(value: object, key: str) -> Pair:
    """Return what one int or a (height, width) pair means; `key` names it in the message."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        parts = several(value, key)
        if len(parts) not in (1, 2):
            raise ProblemError(
                f"{key} must be an integer or a pair (height, width), not {shown(value)}"
            )
        return whole(parts[0], key), whole(parts[-1], key)
    return (whole(value, key),) * 2
