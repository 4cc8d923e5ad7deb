"""The storage of a problem's tensors: their dtypes, and the memory order of their dimensions.

In every format a tensor has torch's shape, (N, C, H, W). The format gives the order of the
dimensions in memory, as ``memory_format=torch.channels_last`` does. So NHWC is only another layout:
code that reads y[n, k, p, q] does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arguments import shown
from ..errors import ProblemError
from .computation import FORWARD, Computation
from .problem import Problem

if TYPE_CHECKING:
    import torch

# The name of each dtype in torch, and the size of an element in bytes.
_DTYPES = {"f32": ("float32", 4), "f16": ("float16", 2), "bf16": ("bfloat16", 2)}
# The layouts of each tensor: its dimensions, slowest first. The first layout is torch's default.
_IMAGES = ("NCHW", "NHWC")
_FILTERS = ("KCRS", "KRSC")
LAYOUTS = {
    "x": _IMAGES,
    "w": _FILTERS,
    "y": _IMAGES,
    "bias": ("K",),
    "dx": _IMAGES,
    "dw": _FILTERS,
    "dy": _IMAGES,
}
# The places of a format: the two inputs, the output, and the bias.
_PLACES = ("x", "w", "y", "bias")


@dataclass(frozen=True)
class Storage:
    """The storage of one tensor: its dtype, and its dimensions from the slowest to the fastest."""

    # "f32", "f16" or "bf16".
    dtype: str
    # One of the tensor's `LAYOUTS`.
    layout: str
    # The layout as positions in torch's shape: NHWC is (0, 2, 3, 1).
    order: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return _DTYPES[self.dtype][1]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype in torch."""
        # torch is slow to import, and problems do not need it.
        import torch

        return getattr(torch, _DTYPES[self.dtype][0])

    def in_memory(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape with its dimensions in memory order: (N, H, W, C) for NHWC."""
        return tuple(shape[i] for i in self.order)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor in this memory order without gaps; copy it only if necessary."""
        if self.order == tuple(range(len(self.order))):
            return tensor.contiguous()
        if tensor.permute(self.order).is_contiguous():
            return tensor
        return self.logical(tensor.permute(self.order).contiguous())

    def logical(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a view with torch's shape of a tensor whose shape is in memory order."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return tensor.permute(inverse)


@dataclass(frozen=True)
class Format:
    """The storage of all tensors of a problem. `FLOAT32` is the default.

    `x` and `w` are the first and the second input, and `y` is the output, whatever is computed: the
    `w` of a weight gradient's format is the storage of dy.
    """

    x: Storage
    w: Storage
    y: Storage
    bias: Storage

    def __iter__(self) -> Iterator[tuple[str, Storage]]:
        """Yield (name, storage) for x, w, y and bias."""
        return iter((name, getattr(self, name)) for name in _PLACES)

    def in_memory(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of a problem, in memory order."""
        shapes: dict[str, tuple[int, ...]] = {
            "x": problem.first_shape,
            "w": problem.second_shape,
            "y": problem.output_shape,
            "bias": (problem.K * problem.bias,),
        }
        return {name: storage.in_memory(shapes[name]) for name, storage in self}

    def bytes(self, problem: Problem) -> dict[str, int]:
        """Return the size of each tensor of a problem in bytes; a missing bias has 0."""
        shapes = self.in_memory(problem)
        return {name: math.prod(shapes[name]) * storage.itemsize for name, storage in self}

    def min_bytes(self, problem: Problem) -> int:
        """Return the theoretical minimum of traffic in bytes: x, w, bias and y once each."""
        return sum(self.bytes(problem).values())

    def __str__(self) -> str:
        return self.describe(FORWARD)

    def describe(self, computes: Computation) -> str:
        """Return the line of a header, with the names of a computation's tensors."""
        parts = []
        for place, storage in self:
            name = computes.names[place]
            if name != "bias" or computes.is_forward:
                layout = "".join(LAYOUTS[name][0][i] for i in storage.order)
                parts.append(f"{name} {storage.dtype} {layout}")
        return ", ".join(parts)


def _storage(name: str, dtype: str, layout: str) -> Storage:
    """Return the storage of the tensor called `name`."""
    torch_layout = LAYOUTS[name][0]
    return Storage(dtype, layout, tuple(torch_layout.index(dimension) for dimension in layout))


FLOAT32 = Format(*(_storage(name, "f32", LAYOUTS[name][0]) for name in _PLACES))


def parse_format(text: str, computes: Computation = FORWARD) -> Format:
    """Return the format of a line such as "x f16 NHWC, w f16 KRSC, y f16 NHWC".

    The names are those of the computation's tensors: "dy", "w" and "dx" for a data gradient. A
    missing tensor or layout is the one of `FLOAT32`. Raises ProblemError for an invalid line.
    """
    places = {name: place for place, name in computes.names.items()}
    if not computes.is_forward:
        del places["bias"]
    storages: dict[str, Storage] = {}
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        name, dtype, layout = (*part.split(None, 2), "", "")[:3]
        allowed = LAYOUTS[name] if name in places else ()
        if allowed and not layout:
            layout = allowed[0]
        if places.get(name) in storages or dtype not in _DTYPES or layout not in allowed:
            layouts = "; ".join(f"{key} {' or '.join(LAYOUTS[key])}" for key in places)
            raise ProblemError(
                f"cannot read {shown(part)}; write each tensor once, with a dtype "
                f"({', '.join(_DTYPES)}) and a layout ({layouts}), as in "
                f"'{', '.join(f'{key} f16 {LAYOUTS[key][0]}' for key in places)}'"
            )
        place = places[name]
        # Dimensions are named as those of the place, so that equal orders are equal.
        order = tuple(LAYOUTS[name][0].index(dimension) for dimension in layout)
        own = "".join(LAYOUTS[place][0][i] for i in order)
        storages[place] = _storage(place, dtype, own)
    return Format(**dict(FLOAT32) | storages)
