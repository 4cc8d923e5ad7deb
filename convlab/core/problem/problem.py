"""A convolution problem: its dimensions, what it costs, and named sets of problems.

Dimensions are named as in cuDNN and CUTLASS: input x is (N, C, H, W), the filter w is
(K, C/groups, R, S), output y is (N, K, P, Q); stride, padding and dilation are (height, width).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from ..arguments import choice, flag, hint, several, shown, text, whole
from ..errors import ProblemError
from .format import FLOAT32
from .scaled import scaled

INT32_MAX = 2**31 - 1
_DIMENSIONS = "NCHWKRS"
EPILOGUE = ("bias", "relu")
PROBLEM_SETS = ("headline", "kernelbench", "resnet50", "awkward", "limits")

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
        def assign(key: str, value: object) -> None:
            object.__setattr__(self, key, value)  # the way round `frozen`, while it is being made

        for key in _DIMENSIONS:
            assign(key, whole(getattr(self, key), key, least=int(key != "N")))
        for key, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            assign(key, sizes := pair(getattr(self, key), key))
            if min(sizes) < least:
                raise ProblemError(f"{key} is {sizes}; both parts must be at least {least}")
        assign("groups", whole(self.groups, "groups", 1))
        flag(self.bias, "bias")
        flag(self.relu, "relu")
        text(self.name, "name")
        for key in "CK":
            if getattr(self, key) % self.groups:
                raise ProblemError(
                    f"{key}={getattr(self, key)} is not a multiple of groups={self.groups}; "
                    f"change groups to a divisor of it"
                )
        sides = (("height", self.H, self.R), ("width", self.W, self.S))
        for i, (side, size, filter_size) in enumerate(sides):
            padded, extent = self._side(i)
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
            `Problem` itself refuses, as padding by a word.
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
        if bias and (given := tuple(several(bias_shape, "bias_shape"))) != (K,):
            raise ProblemError(
                f"bias must have shape ({K},), one number for each of w's K={K} filters, not {given}"
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

    def _side(self, i: int) -> tuple[int, int]:
        """A side (0: height) of the padded input, and of the dilated filter."""
        size, filter_size = ((self.H, self.R), (self.W, self.S))[i]
        return size + 2 * self.padding[i], self.dilation[i] * (filter_size - 1) + 1

    def _outputs(self, i: int) -> int:
        padded, extent = self._side(i)
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

    @property
    def epilogue(self) -> tuple[str, ...]:
        """What is done with a sum of products, in that order: of "bias" and "relu" those it has."""
        return tuple(word for word in EPILOGUE if getattr(self, word))

    def variables(self) -> dict[str, int]:
        """Return every number of the problem by the name that a kernel's header uses for it."""
        found = {key: getattr(self, key) for key in (*_DIMENSIONS, "P", "Q")}
        pairs = {"stride": self.stride, "pad": self.padding, "dilation": self.dilation}
        for key, (height, width) in pairs.items():
            found |= {f"{key}_h": height, f"{key}_w": width}
        return found | {"groups": self.groups, "relu": int(self.relu)}

    def __str__(self) -> str:
        sizes = [f"{key}{getattr(self, key)}" for key in _DIMENSIONS]
        for key, (height, width) in zip("spd", (self.stride, self.padding, self.dilation)):
            sizes.append(f"{key}{height}" if height == width else f"{key}{height}x{width}")
        return " ".join([*sizes, f"g{self.groups}", *self.epilogue])

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
        least_bytes = None if max_bytes is None else whole(max_bytes, "max_bytes", 0)
        return scaled(self, whole(max_macs, "max_macs", 0), least_bytes)


def same_padding(filter_size: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after a dimension that torch's `padding="same"` stands for."""
    total = dilation * (filter_size - 1)
    return total // 2, total - total // 2


def problem(name_or_spec: str | Problem) -> Problem:
    """Return a named problem, or the one that a specification spells out.

    Parameters
    ----------
    name_or_spec
        A name out of the sets ("square", "resnet50.layer2.0.conv2"; "wide bias relu" adds both),
        or dimensions as in
        "N=1,C=3,H=32,W=32,K=8,R=3,S=3,stride=2,padding=1x2,bias=1,relu=1"; the form that
        `str(problem)` prints, "N1 C3 H32 ... s2 p1x2 d1 g1 bias relu", is read too.

    Raises
    ------
    ProblemError
        No such name (the message says which is nearest), or a malformed specification.
    """
    if isinstance(name_or_spec, Problem):
        return name_or_spec
    named = {found.name: found for members in _sets().values() for found in members}
    given = text(name_or_spec, "problem")
    name, *added = given.split() or [given]
    if name in named and all(word in EPILOGUE for word in added):
        more = {"name": " ".join([name, *added])} | dict.fromkeys(added, True)
        return replace(named[name], **more) if added else named[name]
    if "=" in given or re.match(r"\s*[Nn]\d", given):
        return _parse(given)
    there = f"; there are {', '.join([*(p.name for p in problems('headline')), *PROBLEM_SETS])}."
    near = hint(given, named if given in PROBLEM_SETS else [*named, *PROBLEM_SETS])
    raise ProblemError(
        f"no problem is named {shown(given)}{near or there} "
        "Or give the dimensions: N=1,C=3,H=32,W=32,K=8,R=3,S=3"
    )


def problems(set_name: str) -> list[Problem]:
    """Return a named set of problems; the names are in `PROBLEM_SETS`.

    Raises
    ------
    ProblemError
        There is no set of that name.
    """
    return list(_sets()[choice(set_name, "set of problems", PROBLEM_SETS)])


def members(asked: Problem | str | Iterable[Problem | str]) -> tuple[list[Problem], bool]:
    """Return the problems that are meant, and whether as a set: an iterable, or one's name.

    The name may end with `bias` and `relu`, as a problem's may.
    """
    name, *added = asked.split() or [""] if isinstance(asked, str) else [""]
    if name in PROBLEM_SETS:
        return [problem(" ".join((each.name, *added))) for each in problems(name)], True
    if isinstance(asked, (str, Problem)) or not isinstance(asked, Iterable):
        return [problem(asked)], False
    return [problem(each) for each in several(asked, "problem")], True


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


_SPEC_KEYS = {"s": "stride", "p": "padding", "d": "dilation", "g": "groups"}


def _parse(spec: str, name: str = "") -> Problem:
    """Return the problem that "N=1,C=3,..." or "N1 C3 ..." spells."""
    known = [entry.name for entry in fields(Problem) if entry.name != "name"]
    found: dict[str, object] = {}
    for token in filter(None, re.split(r"[,\s]+", spec)):
        match = re.fullmatch(r"([A-Za-z]+)(?:=?(-?\d{1,18})(?:x(-?\d{1,18}))?)?", token)
        key, *given = filter(None, match.groups()) if match else [token]
        key = _SPEC_KEYS.get(key, key)
        if key not in known or not (given or key in EPILOGUE):
            raise ProblemError(
                f"cannot read {shown(token)} in {shown(spec)}; write key=number with keys "
                f"{', '.join(known)}; stride, padding and dilation also as 2x3{hint(key, known)}"
            )
        if key in found:
            raise ProblemError(f"{key} is given twice in {shown(spec)}")
        numbers = tuple(map(int, given)) or (1,)
        found[key] = numbers if numbers[1:] else numbers[0]
    for key in EPILOGUE:
        if found.setdefault(key, 0) not in (0, 1):
            raise ProblemError(f"{key} is {found[key]} in {shown(spec)}; it must be 0 or 1")
        found[key] = bool(found[key])
    missing = [key for key in _DIMENSIONS if key not in found]
    if missing:
        raise ProblemError(
            f"{shown(spec)} lacks {', '.join(missing)}; all of N,C,H,W,K,R,S are needed"
        )
    return Problem(**found, name=name)  # type: ignore[arg-type]


@cache
def _sets() -> dict[str, tuple[Problem, ...]]:
    """Return the sets of ``problems.txt``."""
    found: dict[str, list[Problem]] = {}
    for line in Path(__file__).with_name("problems.txt").read_text().splitlines():
        entry = line.partition("#")[0].strip()
        if entry.startswith("["):
            members = found.setdefault(set_name := entry.strip("[]"), [])
        elif entry:
            name, _, spec = entry.partition(" ")
            members.append(_parse(spec, name if set_name == "headline" else f"{set_name}.{name}"))
    return {set_name: tuple(members) for set_name, members in found.items()}
