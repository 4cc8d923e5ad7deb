"""A convolution problem: its dimensions, its cost, and smaller problems like it.

The names of the dimensions are those of cuDNN and CUTLASS: the input x is (N, C, H, W), the filter
w is (K, C/groups, R, S), the output y is (N, K, P, Q). Stride, padding and dilation are pairs
(height, width).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..arguments import flag, several, shown, text, whole
from ..errors import ProblemError
from .computation import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT, Computation, computation

INT32_MAX = 2**31 - 1
DIMENSIONS = "NCHWKRS"
EPILOGUE = ("bias", "relu")
_FLOAT32_BYTES = 4

Pair = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """Describe one 2-D convolution, as `torch.nn.functional.conv2d` computes it.

    It is a cross-correlation. The input x has shape (N, C, H, W), the filter w (K, C/groups, R, S)
    and the output y (N, K, P, Q), with ``P = (H + 2*pad_h - dilation_h*(R-1) - 1) // stride_h + 1``
    and Q likewise. A problem is an immutable value without tensors. Two problems are equal if their
    numbers are; `name` does not count.

    Parameters
    ----------
    N, C, H, W : int
        Images, channels, height and width of x. N may be 0; then the output is empty.
    K, R, S : int
        Number of filters (output channels), and the height and width of a filter.
    stride, padding, dilation : int or (int, int)
        Pairs (height, width), or one int for both. The padding is zeros, on each side.
    groups : int
        Number of groups; C and K must be multiples of it.
    bias : bool
        Whether the convolution adds one number to each output channel.
    relu : bool
        Whether y becomes max(y, 0) after that; NaN stays NaN.
    name : str
        A name for tables and messages.
    computes : str
        "forward": y from x and w. "data gradient": dx from dy and w; it is also the transposed
        convolution (see `transposed`). "weight gradient": dw from x and dy. The other numbers always
        describe the forward convolution. Gradients have no bias and no ReLU.

    Raises
    ------
    ProblemError
        The numbers do not describe a convolution, or a dimension exceeds 2^31 - 1.

    Examples
    --------
    >>> conv = convlab.Problem(N=16, C=16, H=1024, W=1024, K=128, R=3, S=3)
    >>> conv.y_shape
    (16, 128, 1022, 1022)
    >>> round(conv.flops / 1e9)    # GFLOP
    616
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
    computes: str = FORWARD.name

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
        if not self.computation.is_forward and self.epilogue:
            raise ProblemError(
                f"a {self.computes} has no bias and no ReLU: set bias=False and relu=False"
            )
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
        """Set an attribute in the constructor; a frozen dataclass rejects a plain assignment."""
        object.__setattr__(self, key, value)

    def _check_side(self, i: int, side: str, size: int, filter_size: int) -> None:
        """Raise ProblemError unless the filter fits into the padded input along one dimension."""
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
        """Return the problem of `torch.nn.functional.conv2d` for tensors of these shapes.

        Parameters
        ----------
        x_shape, w_shape : sequence of 4 ints
            (N, C, H, W) and (K, C/groups, R, S).
        bias_shape : sequence of 1 int, or None
            (K,), or None for a problem without a bias.
        stride, padding, dilation, groups, relu, name
            As in `Problem`.

        Raises
        ------
        ProblemError
            A shape has the wrong number of dimensions, the channels of x and w do not match, the
            bias has the wrong length, or `Problem` rejects an argument, such as padding="same".

        Examples
        --------
        >>> print(convlab.Problem.from_shapes((1, 3, 32, 32), (8, 3, 3, 3), padding=1))
        N1 C3 H32 W32 K8 R3 S3 s1 p1 d1 g1
        """
        x_shape = tuple(several(x_shape, "x_shape"))
        w_shape = tuple(several(w_shape, "w_shape"))
        if len(x_shape) != 4:
            hint = "; for one image, x.unsqueeze(0)" if len(x_shape) == 3 else ""
            raise ProblemError(
                f"x must have 4 dimensions (N, C, H, W), not shape {shown(x_shape)}{hint}"
            )
        if len(w_shape) != 4:
            raise ProblemError(
                f"w must have 4 dimensions (K, C/groups, R, S), not shape {shown(w_shape)}"
            )
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
                    f"not {shown(bias_shape)}"
                )
        return cls(N, C, H, W, K, R, S, stride, padding, dilation, groups, bias, relu, name)

    @classmethod
    def transposed(
        cls,
        x_shape: Iterable[int],
        w_shape: Iterable[int],
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        output_padding: int | Pair = 0,
        groups: int = 1,
        dilation: int | Pair = 1,
        name: str = "",
    ) -> Problem:
        """Return the data gradient that `torch.nn.functional.conv_transpose2d` computes.

        A transposed convolution is the data gradient of a convolution. Its input is dy, and its
        output dx. A convolution of several heights H may have the same P; `output_padding` says by
        how many rows and columns H and W exceed the smallest.

        Parameters
        ----------
        x_shape, w_shape : sequence of 4 ints
            The input of conv_transpose2d, here (N, K, P, Q), and its filter (K, C/groups, R, S).
        stride, padding, output_padding, groups, dilation
            As in `torch.nn.functional.conv_transpose2d`, in its order.
        name : str
            A name for tables and messages.

        Raises
        ------
        ProblemError
            The arguments do not describe a transposed convolution.

        Examples
        --------
        >>> problem = convlab.Problem.transposed((1, 8, 5, 5), (8, 4, 3, 3), stride=2, padding=1)
        >>> problem.output_shape
        (1, 4, 9, 9)
        """
        x_shape = tuple(several(x_shape, "x_shape"))
        w_shape = tuple(several(w_shape, "w_shape"))
        if len(x_shape) != 4 or len(w_shape) != 4:
            raise ProblemError(
                "a transposed convolution needs 4 dimensions, (N, K, P, Q) and (K, C/groups, R, S), "
                f"not {shown(x_shape)} and {shown(w_shape)}"
            )
        N, K, P, Q = (whole(size, "a size of x") for size in x_shape)
        channels, per_group, R, S = (whole(size, "a size of w") for size in w_shape)
        if K != channels:
            raise ProblemError(
                f"x has {K} channels and w {channels} filters; in a transposed convolution both are K"
            )
        stride = pair(stride, "stride")
        padding = pair(padding, "padding")
        output_padding = pair(output_padding, "output_padding")
        dilation = pair(dilation, "dilation")
        groups = whole(groups, "groups", 1)
        sizes = []
        for i, (outputs, taps) in enumerate(((P, R), (Q, S))):
            if not 0 <= output_padding[i] < max(stride[i], dilation[i]):
                raise ProblemError(
                    f"output_padding is {output_padding[i]}; it must be at least 0 and less than the "
                    f"stride ({stride[i]}) or the dilation ({dilation[i]})"
                )
            extent = dilation[i] * (taps - 1) + 1
            sizes.append((outputs - 1) * stride[i] - 2 * padding[i] + extent + output_padding[i])
        if min(sizes) < 1:
            raise ProblemError(
                f"the output would be {sizes[0]} x {sizes[1]}: use less padding, or a larger input"
            )
        forward = cls(
            N, per_group * groups, *sizes, K, R, S, stride, padding, dilation, groups, name=name
        )
        if (forward.P, forward.Q) != (P, Q):
            raise ProblemError(
                f"output_padding={output_padding} is not less than the stride {stride}, and convlab "
                "describes a transposed convolution as a data gradient, which then reads another "
                f"row or column ({forward.P} x {forward.Q}, not {P} x {Q}): use less output_padding"
            )
        return forward.computing(DATA_GRADIENT.name)

    @property
    def computation(self) -> Computation:
        """What is computed: the names of its tensors, and its entry point."""
        return computation(self.computes)

    def computing(self, computes: str) -> Problem:
        """Return the problem of the same convolution for another computation.

        A gradient has no bias and no ReLU, so they are dropped.

        Examples
        --------
        >>> problem = convlab.Problem(N=1, C=4, H=8, W=8, K=6, R=3, S=3, bias=True)
        >>> problem.computing("weight gradient").output_shape
        (6, 4, 3, 3)
        """
        if computation(computes).name == self.computes:
            return self
        if computes == FORWARD.name:
            return replace(self, computes=computes)
        return replace(self, computes=computes, bias=False, relu=False)

    @property
    def P(self) -> int:
        """Output height of the forward convolution."""
        return self._outputs(0)

    @property
    def Q(self) -> int:
        """Output width of the forward convolution."""
        return self._outputs(1)

    def _extents(self, i: int) -> tuple[int, int]:
        """Return the sizes of the padded input and the dilated filter; i = 0 is the height."""
        size = (self.H, self.W)[i]
        filter_size = (self.R, self.S)[i]
        return size + 2 * self.padding[i], self.dilation[i] * (filter_size - 1) + 1

    def _outputs(self, i: int) -> int:
        padded, extent = self._extents(i)
        return (padded - extent) // self.stride[i] + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """Shape of the input x, (N, C, H, W)."""
        return (self.N, self.C, self.H, self.W)

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        """Shape of the filter w, (K, C/groups, R, S)."""
        return (self.K, self.C // self.groups, self.R, self.S)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """Shape of the output y, (N, K, P, Q)."""
        return (self.N, self.K, self.P, self.Q)

    @property
    def first_shape(self) -> tuple[int, int, int, int]:
        """Shape of the first input: x, or dy of a data gradient."""
        return self.y_shape if self.computes == DATA_GRADIENT.name else self.x_shape

    @property
    def second_shape(self) -> tuple[int, int, int, int]:
        """Shape of the second input: w, or dy of a weight gradient."""
        return self.y_shape if self.computes == WEIGHT_GRADIENT.name else self.w_shape

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape of what is computed: y, dx or dw."""
        shapes = {"y": self.y_shape, "dx": self.x_shape, "dw": self.w_shape}
        return shapes[self.computation.output]

    @property
    def output_padding(self) -> Pair:
        """By how many rows and columns x exceeds the smallest x with the same P and Q.

        It is the argument of this name of the transposed convolution that is the data gradient.
        """
        rest = []
        for i, outputs in enumerate((self.P, self.Q)):
            padded, extent = self._extents(i)
            rest.append(padded - ((outputs - 1) * self.stride[i] + extent))
        return rest[0], rest[1]

    @property
    def terms(self) -> int:
        """The largest number of products in the sum of one output.

        Forward it is C/groups * R * S. In a data gradient each stride-th tap reaches an element of
        dx. In a weight gradient each pixel of dy does: N * P * Q.
        """
        if self.computes == WEIGHT_GRADIENT.name:
            return max(self.gemm_m, 1)
        if self.computes == FORWARD.name:
            return self.gemm_k
        taps = 1
        for size, stride, dilation in zip(
            (self.R, self.S), self.stride, self.dilation, strict=True
        ):
            step = stride // math.gcd(stride, dilation)
            taps *= -(-size // step)
        return self.K // self.groups * taps

    @property
    def gemm_m(self) -> int:
        """Rows of the forward convolution's matrix product: output pixels, N*P*Q."""
        return self.N * self.P * self.Q

    @property
    def gemm_n(self) -> int:
        """Columns of the forward convolution's matrix product: filters, K."""
        return self.K

    @property
    def gemm_k(self) -> int:
        """Length of the forward convolution's dot products: C/groups * R * S."""
        return self.C // self.groups * self.R * self.S

    @property
    def macs(self) -> int:
        """Number of multiply-adds; those on padding count, bias and ReLU do not."""
        return self.gemm_m * self.K * self.gemm_k

    @property
    def flops(self) -> int:
        """Number of floating-point operations: two for each multiply-add."""
        return 2 * self.macs

    @property
    def min_bytes(self) -> int:
        """Theoretical minimum of the traffic in bytes, in float32: each tensor once.

        `Format.min_bytes` computes it for other formats.
        """
        elements = sum(math.prod(shape) for shape in (self.x_shape, self.w_shape, self.y_shape))
        return _FLOAT32_BYTES * (elements + self.K * self.bias)

    @property
    def im2col_elements(self) -> int:
        """Number of elements of the im2col matrix, (C*R*S) x (N*P*Q)."""
        return self.C * self.R * self.S * self.gemm_m

    @property
    def label(self) -> str:
        """The name, or the dimensions if the problem has no name; and what is computed."""
        if not self.name:
            return str(self)
        return self.name if self.computation.is_forward else f"{self.name}, {self.computes}"

    @property
    def epilogue(self) -> tuple[str, ...]:
        """The steps after the sum of products, in order: any of "bias" and "relu"."""
        return tuple(word for word in EPILOGUE if getattr(self, word))

    def variables(self) -> dict[str, int]:
        """Return the numbers of the problem as a dict, by the names that kernel headers use."""
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
        computes = [] if self.computation.is_forward else [self.computes.replace(" ", "_")]
        return " ".join([*sizes, f"g{self.groups}", *self.epilogue, *computes])

    def scaled(self, max_macs: int, max_bytes: int | None = None) -> Problem:
        """Return a smaller problem of the same kind that costs at most this much.

        The sizes that reveal mistakes shrink last:

        1. N, to 2.
        2. The image, to four times the dilated filter and 18 outputs a side. That keeps the
           interior, the borders, and more than one tile of 16.
        3. The channels, then the groups.
        4. The image, to its smallest valid size, and then N to 1.

        Filter, stride, padding and dilation do not change. The name says what was scaled. A problem
        within the limits returns itself. If no problem is small enough, the smallest one returns.

        Parameters
        ----------
        max_macs : int
            Limit on `macs`, the number of multiply-adds.
        max_bytes : int, optional
            Limit on `min_bytes`, the theoretical minimum of traffic.

        Examples
        --------
        >>> convlab.Problem(16, 16, 1024, 1024, 128, 3, 3).scaled(20_000_000).N
        2
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
            # The cost grows along a stage, so its first problems are the ones that fit.
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
        label = (self.name or str(self)).split(" (scaled to ")[0]
        return replace(small, name=f"{label} (scaled to {', '.join(changes)})")


def _stages(problem: Problem) -> list[tuple[range, Callable[[int], Problem]]]:
    """Return the stages of `Problem.scaled`: each a range, and a function from number to problem.

    A larger number gives a problem with a higher cost. A stage begins where the previous one ends.
    """
    images = min(problem.N, 2)
    deepest = max(problem.C, problem.K) // problem.groups
    longest = max(problem.H, problem.W)
    useful = (_useful_size(problem, 0), _useful_size(problem, 1))
    valid = (_valid_size(problem, 0), _valid_size(problem, 1))
    one = {"C": 1, "K": 1, "groups": 1}

    def image(least: tuple[int, int], step: int, images: int, **channels: int) -> Problem:
        """Return the problem with both sides grown in proportion, in `longest` steps."""
        room_h = problem.H - least[0]
        room_w = problem.W - least[1]
        steps = max(room_h, room_w, 1)
        step = min(step, steps)
        H = least[0] + room_h * step // steps
        W = least[1] + room_w * step // steps
        return replace(problem, N=images, H=H, W=W, **channels)

    def channels(step: int) -> Problem:
        """Return the problem with C and K grown in proportion, in `deepest` steps."""
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
    """Return the smallest height (i = 0) or width (i = 1) of x into which the filter fits."""
    _, extent = problem._extents(i)
    return max(1, extent - 2 * problem.padding[i])


def _useful_size(problem: Problem, i: int) -> int:
    """Return the smallest height (i = 0) or width (i = 1) of x that still reveals most mistakes."""
    _, extent = problem._extents(i)
    size = (problem.H, problem.W)[i]
    of_18_outputs = 17 * problem.stride[i] + extent - 2 * problem.padding[i]
    return min(size, max(4 * extent, of_18_outputs))


def same_padding(filter_size: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after a dimension for torch's `padding="same"`."""
    total = dilation * (filter_size - 1)
    return total // 2, total - total // 2


def pair(value: object, key: str) -> Pair:
    """Return a pair (height, width) from one int or a pair; `key` names it in the message."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        parts = several(value, key)
        if len(parts) not in (1, 2):
            raise ProblemError(
                f"{key} must be an integer or a pair (height, width), not {shown(value)}"
            )
        return whole(parts[0], key), whole(parts[-1], key)
    return (whole(value, key),) * 2
