"""Compute the data that the blocks of a launch access, and how much of it they find in the L2.

The L2 holds the data of the latest blocks, as many blocks as fill it. A block fetches all other
data. So each part of x and of the filter has a reuse distance: the number of blocks since its last
access. An access hits up to the distance at which the blocks' data fill the cache (Xiang et al.,
"HOTL: a higher order theory of locality", ASPLOS 2013). No constant is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..core.problem.format import Format
from ..core.problem.problem import Problem
from .block_order import BlockOrder
from .launched_functions import SECTOR_BYTES, Rows

# The least bytes that an L2 miss fetches.
_FETCH_BYTES = 64
# The most accesses of blocks to parts that are kept in memory at a time.
_MOST_TOUCHES = 6_000_000
# The number of windows of blocks, spread over the launch, and the number of blocks of a probe.
_WINDOWS = 3
_PROBE = 64
# The largest factor between the bytes of x that a sample accesses and those that its outputs need.
_AGREEMENT = 1.5


class Touches(NamedTuple):
    """The accesses of blocks to the parts of an array.

    Attributes
    ----------
    array : the array's name.
    parts, blocks : for each access, the part's number and the block's number.
    bytes : the bytes of a part.
    """

    array: str
    parts: np.ndarray
    blocks: np.ndarray
    bytes: float


class OutputParts(NamedTuple):
    """A rectangle of outputs of one image for each block; all arrays have one element per block.

    Attributes
    ----------
    n : the image; -1 if the block has no such rectangle.
    group, filters : the group, and the number of the tile of filters.
    p_low, p_high, q_low, q_high : the first and last row, and the first and last column.
    """

    n: np.ndarray
    group: np.ndarray
    filters: np.ndarray
    p_low: np.ndarray
    p_high: np.ndarray
    q_low: np.ndarray
    q_high: np.ndarray


class BlockSequence:
    """The blocks of a launch in their order, and the parts of each array that they access.

    Parameters
    ----------
    problem, format : the problem, and the format of its tensors.
    order : the order in which the blocks compute y.
    arrays : the names of the arrays that the blocks access.
    workspace_bytes : the bytes of the workspace that they read.
    blocks : the number of blocks.
    """

    def __init__(
        self,
        problem: Problem,
        format: Format,
        order: BlockOrder,
        arrays: set[str],
        workspace_bytes: float,
        blocks: int,
    ) -> None:
        self.problem = problem
        self.order = order
        self.blocks = blocks
        self.arrays = arrays
        self.workspace_bytes = workspace_bytes
        self.itemsize = {name: stored.itemsize for name, stored in format}
        self.channels = problem.C // problem.groups
        # The number of channels that are adjacent in memory.
        self.interleaved = problem.C if format.x.layout == "NHWC" else 1
        self.filter_bytes = self.channels * problem.R * problem.S * self.itemsize["w"]
        tiles = [axis.tiles for axis in order.values()]
        self.y_bytes = math.prod(problem.y_shape) * self.itemsize["y"] / math.prod(tiles)

    def touches(self, blocks: np.ndarray, fetch_bytes: int = _FETCH_BYTES) -> Iterator[Touches]:
        """Yield the accesses of some blocks: to pieces of rows of x, to tiles of other arrays."""
        for outputs in self._outputs(blocks):
            if {"w", "plan"} & self.arrays:
                yield self._filter_touches(outputs, blocks)
            if "x" in self.arrays:
                yield self._input_touches(outputs, blocks, fetch_bytes)
        if "workspace" in self.arrays and self.workspace_bytes:
            # A block reads the im2col columns of its pixels, for its group.
            tiles = self.order.tiles(blocks)
            names = [name for name in self.order if name != "k"]
            sizes = [self.order[name].tiles for name in names]
            number = np.ravel_multi_index([tiles[name] for name in names], sizes)
            yield Touches("workspace", number, blocks, self.workspace_bytes / math.prod(sizes))
        yield Touches("y", blocks, blocks, self.y_bytes)

    def agrees(self, reaches: Rows) -> bool:
        """Return whether sampled blocks accessed about as much of x as their outputs need."""
        first = min(row["launch"] for row in reaches)
        rows = [row for row in reaches if row["array"] == "x" and row["launch"] == first]
        if not rows:
            return "x" not in self.arrays
        blocks = np.array([row["block"] for row in rows])
        of_x = [t for t in self.touches(blocks, SECTOR_BYTES) if t.array == "x"]
        pairs = np.concatenate([np.stack((t.parts, t.blocks)) for t in of_x], axis=1)
        needed = np.unique(pairs, axis=1).shape[1] * of_x[0].bytes
        touched = SECTOR_BYTES * sum(row["sectors"] for row in rows)
        return 1 / _AGREEMENT < touched / max(needed, 1) < _AGREEMENT

    def fetched_bytes(self, cache_sizes: Sequence[float], wave: int) -> list[float] | None:
        """Return the bytes that the launch fetches with L2 caches of these sizes.

        Return None if the blocks access too many parts. `wave` is the number of blocks that run at
        the same time. The method examines windows of blocks, and makes them longer until half a
        window fills the largest cache.
        """
        length = max(4 * wave, 1024)
        while True:
            length = min(length, self.blocks)
            starts = self._window_starts(length)
            if not starts:
                return None
            curves = self._fetch_curves(starts, length)
            filled = np.cumsum(sum(curves.values()))
            if length == self.blocks or filled[-1] >= max(cache_sizes):
                break
            length *= 4
        fetched = []
        for size in cache_sizes:
            longest_hit = int(np.searchsorted(filled, size))
            if size == max(cache_sizes):
                # In the best case, all blocks that run at the same time progress equally fast.
                longest_hit = max(longest_hit, wave)
            per_block = sum(
                curve[min(longest_hit, len(curve) - 1)]
                for name, curve in curves.items()
                if name != "y"
            )
            fetched.append(float(per_block) * self.blocks)
        return fetched

    def _window_starts(self, length: int) -> list[int]:
        """Return the first block of each window; none if one window has too many accesses."""
        starts = [0]
        if length < self.blocks:
            free = self.blocks - length
            starts = [(2 * i + 1) * free // (2 * _WINDOWS) for i in range(_WINDOWS)]
        probe = np.arange(starts[0], starts[0] + min(length, _PROBE))
        per_block = sum(len(t.parts) for t in self.touches(probe)) / len(probe)
        if per_block * length > _MOST_TOUCHES:
            return []
        if per_block * length * len(starts) > _MOST_TOUCHES:
            return [starts[len(starts) // 2]]
        return starts

    def _fetch_curves(self, starts: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Return, for each array, the bytes per block that the d blocks before did not access.

        The index is d - 1. If the launch is longer than the window, only blocks in the second half
        of the window count, because half a window of blocks precedes each of them.
        """
        longest = length if length == self.blocks else length // 2
        curves: dict[str, np.ndarray] = {}
        for start in starts:
            touches = list(self.touches(np.arange(start, start + length)))
            for name in dict.fromkeys(t.array for t in touches):
                of_array = [t for t in touches if t.array == name]
                parts = np.concatenate([t.parts for t in of_array])
                blocks = np.concatenate([t.blocks for t in of_array]) - start
                # After sorting by part and then by block, neighbours are successive accesses.
                # This is np.unique, which is ten times as slow from numpy 2.3 on.
                touch = np.sort(parts * length + blocks)
                touch = touch[np.diff(touch, prepend=touch[:1] - 1) != 0]
                parts = touch // length
                blocks = touch % length
                distance = np.full(len(touch), longest)
                distance[1:] = np.where(np.diff(parts) == 0, np.diff(blocks), longest)
                distance = np.minimum(distance, longest)[blocks >= length - longest]
                histogram = np.bincount(distance, minlength=longest + 1)
                farther = histogram[::-1].cumsum()[::-1][1:]
                curve = farther * of_array[0].bytes / (longest * len(starts))
                curves[name] = curves.get(name, 0) + curve
        return curves

    def _outputs(self, blocks: np.ndarray) -> Iterator[OutputParts]:
        """Yield the outputs of blocks as rectangles of one image: one per block, or one per row."""
        tiles = self.order.tiles(blocks)
        flat = next((name for name in ("pq", "npq", "ngkpq") if name in self.order), None)
        if flat is not None:
            yield from self._flat_outputs(flat, tiles)
            return
        ends = []
        for name in "pq":
            axis = self.order[name]
            low = tiles[name] * axis.tile
            ends += [low, np.minimum(low + axis.tile, axis.size) - 1]
        yield OutputParts(tiles["n"], *self._filter_tiles(tiles), *ends)

    def _flat_outputs(self, name: str, tiles: Mapping[str, np.ndarray]) -> Iterator[OutputParts]:
        """Yield the rows of y, one after the other, of blocks along a flattened axis."""
        problem = self.problem
        axis = self.order[name]
        low = tiles[name] * axis.tile
        high = np.minimum(low + axis.tile, axis.size) - 1
        most_rows = min((axis.tile - 2) // problem.Q + 2, axis.size // problem.Q)
        for i in range(most_rows):
            # The row's number over all images, or over all planes.
            row = low // problem.Q + i
            in_tile = row <= high // problem.Q
            plane = row // problem.P
            p = row % problem.P
            q_low = np.maximum(low - row * problem.Q, 0)
            q_high = np.minimum(high - row * problem.Q, problem.Q - 1)
            if name == "ngkpq":
                n = plane // problem.K
                filters = plane % problem.K
                group = filters // (problem.K // problem.groups)
            else:
                n = tiles["n"] if name == "pq" else plane
                group, filters = self._filter_tiles(tiles)
            n = np.where(in_tile, n, -1)
            yield OutputParts(n, group, filters, p, p, q_low, np.maximum(q_high, q_low))

    def _filter_tiles(self, tiles: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return each block's group, and the number of its tile of filters."""
        return tiles["g"], tiles["g"] * self.order["k"].tiles + tiles["k"]

    def _filter_touches(self, outputs: OutputParts, blocks: np.ndarray) -> Touches:
        filters = 1
        if "k" in self.order:
            filters = self.order["k"].tile * self.order["g"].tile
        valid = outputs.n >= 0
        size = filters * self.filter_bytes
        return Touches("w", outputs.filters[valid], blocks[valid], size)

    def _input_touches(self, outputs: OutputParts, blocks: np.ndarray, fetch_bytes: int) -> Touches:
        """Return the pieces of x's rows, of all channels of a group, that outputs need."""
        problem = self.problem
        itemsize = self.itemsize["x"]
        # A piece has as many columns as one fetch.
        columns = max(1, fetch_bytes // itemsize // self.interleaved)
        pieces = -(-problem.W // columns)
        stride_h, stride_w = problem.stride
        pad_h, pad_w = problem.padding
        dilation_h, dilation_w = problem.dilation
        h_low = outputs.p_low * stride_h - pad_h
        h_span = (outputs.p_high - outputs.p_low) * stride_h + (problem.R - 1) * dilation_h
        right = outputs.q_high * stride_w - pad_w + (problem.S - 1) * dilation_w
        piece_low = np.maximum(outputs.q_low * stride_w - pad_w, 0) // columns
        piece_high = np.minimum(right, problem.W - 1) // columns
        # The arrays below have the axes block, row h, and piece of the row.
        h = (h_low[:, None] + np.arange(h_span.max() + 1))[:, :, None]
        most_pieces = max(1, (piece_high - piece_low).max() + 1)
        piece = (piece_low[:, None] + np.arange(most_pieces))[:, None, :]
        needed = self._rows_needed(h, outputs)
        needed = needed & (h >= 0) & (h < problem.H) & (piece <= piece_high[:, None, None])
        needed &= (outputs.n >= 0)[:, None, None]
        image = (outputs.n * problem.groups + outputs.group)[:, None, None]
        part = (image * problem.H + h) * pieces + piece
        block = np.broadcast_to(blocks[:, None, None], part.shape)
        groups = self.order["g"].tile if "g" in self.order else 1
        size = columns * itemsize * self.channels * groups
        return Touches("x", part[needed], block[needed], size)

    def _rows_needed(self, h: np.ndarray, outputs: OutputParts) -> np.ndarray:
        """Return which rows of x the outputs read: (blocks, rows, 1) of bool."""
        stride_h = self.problem.stride[0]
        pad_h = self.problem.padding[0]
        dilation_h = self.problem.dilation[0]
        first = (outputs.p_low * stride_h)[:, None, None]
        last = (outputs.p_high * stride_h)[:, None, None]
        needed = np.zeros_like(h, dtype=bool)
        for r in range(self.problem.R):
            # Output row p reads h = p * stride_h - pad_h + r * dilation_h.
            p_times_stride = h + pad_h - r * dilation_h
            on_grid = p_times_stride % stride_h == 0
            needed |= on_grid & (p_times_stride >= first) & (p_times_stride <= last)
        return needed
