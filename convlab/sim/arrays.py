"""Name the elements of a buffer: ``x[n=0, c=3, h=-1, w=5]`` for an offset in bytes."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Array:
    """The shape of a buffer, the bytes of an element, and the names of its indices."""

    shape: tuple[int, ...]
    # The bytes of an element.
    bytes: int = 4
    # A letter for each index, such as "nchw"; "" if the indices have no names.
    names: str = ""

    def locate(self, byte: int) -> tuple[tuple[int, ...], int]:
        """Return the indices of an element, and the bytes that remain.

        The address may be outside the array. For an image, the row is then out of bounds, in the
        first or the last channel (h=-1). For another array, the first index is out of bounds
        (k=-1). So it is for an address more than a plane away from the image.
        """
        shape = self.shape or (1,)
        element, bytes_left = divmod(byte, self.bytes)
        # The index that may be out of bounds: the row of an image, otherwise the first index.
        is_image = bool({"h", "p"} & {*self.names})
        outer = 2 if is_image else 0
        plane_size = math.prod(shape[outer:])
        if not -plane_size <= element < math.prod(shape) + plane_size:
            outer = 0
        plane = 0
        if outer:
            last_plane = math.prod(shape[:outer]) - 1
            plane = min(max(element // plane_size, 0), last_plane)
        row, rest = divmod(element - plane * plane_size, math.prod(shape[outer + 1 :]))
        before = np.unravel_index(plane, shape[:outer])
        after = np.unravel_index(rest, shape[outer + 1 :])
        return tuple(map(int, (*before, row, *after))), bytes_left

    def describe(self, name: str, byte: int) -> str:
        """Return an address as an index: ``x[n=0, c=3, h=-1, w=5]``, ``workspace[64]``."""
        indices, bytes_left = self.locate(byte)
        if not self.shape and not any(indices):
            return name
        if len(self.names) == len(indices):
            inside = ", ".join(f"{n}={i}" for n, i in zip(self.names, indices, strict=True))
        else:
            inside = "][".join(map(str, indices))
        return f"{name}[{inside}]" + (f" + {bytes_left} bytes" if bytes_left else "")
