"""The bytes that a function moves through DRAM: a model of what the L2 keeps.

Blocks run in the order of their numbers, a wave at a time. A block finds in the L2 what those just
before it touched, as many of them as fill it; all else it fetches. So from the order in which
blocks go through y (`order.py`) follow the parts of x and of the filter that each touches, of each
part how many blocks ago that was (its distance), and what blocks of a window touch in all. The
window that fills the cache is the longest distance that hits (Xiang et al., "HOTL: a higher order
theory of locality", ASPLOS 2013). Nothing is fitted.

Not known is how much of an L2 of two partitions serves data that all SMs read, or keeps to the end
what was written (as large a part of what it holds as of all that moves): between a half and all of
it; whether blocks that run at a time keep in step; and how much of what threads have in local memory
leaves it. Both ends are worked out; where they are too far apart, or where the order is not known
and reuse between blocks may matter, there is no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.machine.device import Gpu
from ..core.problem.format import Format
from ..core.problem.problem import Problem
from ..sim.trace import Trace
from .flow import Call, Rows, asked
from .order import Order, learn

AIM = 1.5  # a number is given if it is within this factor of both ends
SHARES = (1.0, 0.5)  # of the L2 that may keep what all SMs read, and what is written
_FETCHED = 64  # bytes that a miss fetches at least
_TOUCHES = 6_000_000  # that are looked at, at most
_WINDOWS = 3


@dataclass(frozen=True)
class Traffic:
    """The bytes through DRAM, between two ends."""

    low: float
    high: float
    order: str = ""  # of the blocks, in words
    unknown: str = ""  # why they may be apart
    once: float = 0.0  # if each array moved once

    @property
    def bytes(self) -> float | None:
        """Within `AIM` of both ends; None where that cannot be."""
        return math.sqrt(self.low * self.high) if self.high <= AIM**2 * self.low else None

    @property
    def note(self) -> str:
        """What the bytes rest on, or why they are not told, in a line."""
        if self.bytes is not None:
            text = "the bytes of DRAM are a model's of what the L2 keeps"
            return text + f", of blocks in the order {self.order}" * bool(self.order)
        low, high = (f"{size / 1e6:,.4g}" for size in (self.low, self.high))
        return f"the bytes of DRAM are not predicted ({low} to {high} MB): {self.unknown}"

    @property
    def assumed(self) -> float:
        """What a prediction of the time goes by: where it is not known, each array once."""
        return max(self.low, self.once) if self.bytes is None else self.bytes

    @classmethod
    def of(cls, parts: Sequence[Traffic]) -> Traffic:
        """Return the sum of several functions'."""
        low, high, once = (sum(getattr(p, end) for p in parts) for end in ("low", "high", "once"))
        orders = dict.fromkeys(part.order for part in parts if part.order)
        reasons = dict.fromkeys(part.unknown for part in parts if part.bytes is None)
        return cls(low, high, "; ".join(orders), "; ".join(reasons), once)


class _Touched(NamedTuple):
    """Parts of an array by number, the blocks that touch them, and the bytes of each part."""

    array: str
    parts: np.ndarray
    blocks: np.ndarray
    bytes: float


def traffic(
    problem: Problem,
    format: Format,
    gpu: Gpu,
    counted: Trace,
    call: Call,
    once: Mapping[tuple[str, str], float],
) -> Traffic:
    """Return what a function's launches move, each with a cold cache, as ncu has it.

    `once` has the bytes of each (kind, array) if all that is asked for moves once.
    """
    launches = call.launches
    loads = sum(size for (kind, _), size in once.items() if kind != "store") / len(launches)
    stores = sum(size for (kind, _), size in once.items() if kind == "store") / len(launches)
    cache = gpu.l2_bytes
    if any(kind == "atomic" for kind, _ in once):
        most = 64.0 * sum(row["units"] for row in call.lines if row["space"] == "global")
        reads = loads * len(launches)
        why = "it does atomics on global memory"
        return Traffic(reads, most, "", why, reads + stores * len(launches))
    fetched = (loads, loads)
    order = None
    unknown = ""
    if loads + stores > min(SHARES) * cache:
        fetched, order, unknown = _fetched(problem, format, gpu, counted, call, once, loads)
    local = call.function.stack * 32.0 * call.warps * call.blocks / len(launches)
    ends = []
    for share, size, own in zip(SHARES, fetched, (0.0, local), strict=True):
        written = stores + own
        kept = min(1.0, share * cache / (size + written)) if written else 0.0
        ends.append(size + (1 - kept) * (written + own))
    low, high = (len(launches) * end for end in ends)
    if local:
        unknown = "arrays of each thread's own lie in memory, and how much of them stays in the L2"
    elif fetched[1] <= AIM * fetched[0]:
        unknown = "it depends on how much of what is written stays in the L2"
    return Traffic(low, high, str(order or ""), unknown, len(launches) * (loads + stores))


def _fetched(
    problem: Problem,
    format: Format,
    gpu: Gpu,
    counted: Trace,
    call: Call,
    once: Mapping[tuple[str, str], float],
    loads: float,
) -> tuple[tuple[float, float], Order | None, str]:
    """Both ends of what a launch reads where not all fits, the order, and why they are apart."""
    launches = call.launches
    mine = {id(entry) for entry in launches}
    numbers = {n for n, entry in enumerate(counted.launches) if id(entry) in mine}
    reaches = [row for row in counted.reaches if row["launch"] in numbers]
    blocks = call.blocks / len(launches)
    most = max(loads, asked(call.lines, "load") / len(launches))
    read = {array for kind, array in once if kind != "store"} - {"several", "code"}
    arrays = {row["array"] for row in reaches}
    if not reaches or not read <= arrays:
        return (loads, most), None, "not all of it was sampled"
    touched = sum(
        32.0 * row["sectors"]
        for row in reaches
        if row["array"] in read or ("store", row["array"]) not in once
    )
    sampled = len({(row["launch"], row["block"]) for row in reaches})
    most = min(most, max(loads, touched / sampled * blocks))
    if most <= 1.1 * loads:  # blocks hardly share anything
        return (loads, most), None, ""
    order = learn([row for row in reaches if row["array"] == "y"], problem, format.y)
    if order is None:
        unknown = "its blocks go through y in no order that the model knows"
        return (loads, most), None, unknown
    a_block = _Blocks(problem, format, order, arrays, once, math.prod(launches[0]["grid"]))
    if not a_block.agrees(reaches):
        unknown = "its blocks read other parts of x than those that their outputs need"
        return (loads, most), order, unknown
    wave = call.occupancy(gpu).blocks * gpu.sms
    missed = a_block.missed([share * gpu.l2_bytes for share in SHARES], wave)
    if missed is None:
        return (loads, most), order, "its blocks touch too many parts of x"
    low, high = (min(max(size, loads), most) for size in missed)
    return (low, high), order, "it depends on how much of the L2 keeps what all SMs read"


class _Blocks:
    """What the blocks of a launch touch, by the order in which they go through y."""

    def __init__(
        self,
        problem: Problem,
        format: Format,
        order: Order,
        arrays: set[str],
        once: Mapping[tuple[str, str], float],
        blocks: int,
    ) -> None:
        self.problem = problem
        self.order = order
        self.blocks = blocks
        self.arrays = arrays
        self.items = {name: stored.itemsize for name, stored in format}
        self.of_group = problem.C // problem.groups
        self.together = problem.C if format.x.layout == "NHWC" else 1  # neighbours of one pixel
        self.filter = self.of_group * problem.R * problem.S * self.items["w"]  # bytes of one k
        of_y = [axis.tiles for axis in order.values()]
        self.y_bytes = math.prod(problem.y_shape) * self.items["y"] / math.prod(of_y)
        self.workspace = once.get(("load", "workspace"), 0.0)

    def segments(self, blocks: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield parts of blocks' outputs: n (-1: none), group, filter, p and q from and to."""
        c = self.problem
        order = self.order
        tiles = self.order.tiles(blocks)
        flat = next((name for name in ("pq", "npq", "ngkpq") if name in order), None)
        if flat is None:
            ends = [(tiles[name] * (axis := order[name]).tile, axis) for name in "pq"]
            spans = [(low, np.minimum(low + axis.tile, axis.size) - 1) for low, axis in ends]
            yield (tiles["n"], *self.channels(tiles), *spans[0], *spans[1])
            return
        axis = order[flat]
        low = tiles[flat] * axis.tile
        high = np.minimum(low + axis.tile, axis.size) - 1
        for i in range(min((axis.tile - 2) // c.Q + 2, axis.size // c.Q)):
            row = low // c.Q + i  # of all images' rows, or all planes'
            there = row <= high // c.Q
            plane = row // c.P
            p = row % c.P
            first = np.maximum(low - row * c.Q, 0)
            last = np.minimum(high - row * c.Q, c.Q - 1)
            if flat == "ngkpq":
                n = plane // c.K
                taken = plane % c.K
                group = taken // (c.K // c.groups)
            else:
                n = tiles["n"] if flat == "pq" else plane
                group, taken = self.channels(tiles)
            yield np.where(there, n, -1), group, taken, p, p, first, np.maximum(last, first)

    def channels(self, tiles: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Each block's group, and its tile of filters."""
        return tiles["g"], tiles["g"] * self.order["k"].tiles + tiles["k"]

    def touched(self, blocks: np.ndarray, fetched: int = _FETCHED) -> Iterator[_Touched]:
        """Yield what blocks touch: of x runs of a row, of all channels, of w and y tiles."""
        c = self.problem
        order = self.order
        item = self.items["x"]
        run = max(1, fetched // item // self.together)
        runs = -(-c.W // run)
        for n, group, taken, p_low, p_high, q_low, q_high in self.segments(blocks):
            if {"w", "plan"} & self.arrays:
                filters = order["k"].tile * order["g"].tile if "k" in order else 1
                yield _Touched("w", taken[n >= 0], blocks[n >= 0], filters * self.filter)
            if "x" not in self.arrays:
                continue
            (down, across) = c.stride
            (top, left) = c.padding
            (dilation, apart) = c.dilation
            h_low = p_low * down - top
            h_span = (p_high - p_low) * down + (c.R - 1) * dilation
            w_low = np.maximum(q_low * across - left, 0) // run
            w_high = np.minimum(q_high * across - left + (c.S - 1) * apart, c.W - 1) // run
            h = (h_low[:, None] + np.arange(h_span.max() + 1))[:, :, None]
            w = (w_low[:, None] + np.arange(max(1, (w_high - w_low).max() + 1)))[:, None, :]
            taps = np.zeros_like(h, dtype=bool)
            for r in range(c.R):
                p = h + top - r * dilation  # of a row that meets it, times the stride
                taps |= (
                    (p % down == 0)
                    & (p >= (p_low * down)[:, None, None])
                    & (p <= (p_high * down)[:, None, None])
                )
            there = taps & (h >= 0) & (h < c.H) & (w <= w_high[:, None, None])
            there &= (n >= 0)[:, None, None]
            part = ((n * c.groups + group)[:, None, None] * c.H + h) * runs + w
            block = np.broadcast_to(blocks[:, None, None], part.shape)
            groups = order["g"].tile if "g" in order else 1
            yield _Touched("x", part[there], block[there], run * item * self.of_group * groups)
        if "workspace" in self.arrays and self.workspace:  # columns of its pixels, of its group
            tiles = order.tiles(blocks)
            names = [name for name in order if name != "k"]
            sizes = [order[name].tiles for name in names]
            number = np.ravel_multi_index([tiles[name] for name in names], sizes)
            yield _Touched("workspace", number, blocks, self.workspace / math.prod(sizes))
        yield _Touched("y", blocks, blocks, self.y_bytes)

    def agrees(self, reaches: Rows) -> bool:
        """Whether a sample's blocks touched as much of x as their outputs need, within a half."""
        first = min(row["launch"] for row in reaches)
        rows = [row for row in reaches if row["array"] == "x" and row["launch"] == first]
        if not rows:
            return "x" not in self.arrays
        touched = [
            t for t in self.touched(np.array([row["block"] for row in rows]), 32) if t.array == "x"
        ]
        pairs = np.concatenate([np.stack((t.parts, t.blocks)) for t in touched], axis=1)
        needed = np.unique(pairs, axis=1).shape[1] * touched[0].bytes
        return 1 / AIM < 32 * sum(row["sectors"] for row in rows) / max(needed, 1) < AIM

    def missed(self, sizes: Sequence[float], wave: int) -> list[float] | None:
        """Return the bytes that a launch fetches with caches of these sizes; None: too many parts.

        A window of blocks is looked at, a longer one until its second half fills the largest.
        """
        count = max(4 * wave, 1024)
        while True:
            count = min(count, self.blocks)
            starts = [0]
            if count < self.blocks:
                starts = [
                    (2 * i + 1) * (self.blocks - count) // (2 * _WINDOWS) for i in range(_WINDOWS)
                ]
            probe = np.arange(starts[0], starts[0] + min(count, 64))
            each = sum(len(t.parts) for t in self.touched(probe)) / len(probe)
            if each * count * len(starts) > _TOUCHES:
                starts = starts[len(starts) // 2 :][:1]
            if each * count > _TOUCHES:
                return None
            curves = self.curves(starts, count)
            filled = np.cumsum(sum(curves.values()))
            if count == self.blocks or filled[-1] >= max(sizes):
                break
            count *= 4
        fetched = []
        for size in sizes:
            hits = int(np.searchsorted(filled, size))  # up to this distance
            if size == max(sizes):
                hits = max(hits, wave)  # if all that runs at a time keeps in step
            reads = sum(
                curve[min(hits, len(curve) - 1)] for name, curve in curves.items() if name != "y"
            )
            fetched.append(float(reads) * self.blocks)
        return fetched

    def curves(self, starts: Sequence[int], count: int) -> dict[str, np.ndarray]:
        """Of each array, the bytes that a block touches and none of the d before it did, by d.

        Where the launch is longer than the window, of the blocks in its second half.
        """
        whole = count == self.blocks
        longest = count if whole else count // 2
        found: dict[str, np.ndarray] = {}
        for start in starts:
            touched = list(self.touched(np.arange(start, start + count)))
            for name in dict.fromkeys(t.array for t in touched):
                alike = [t for t in touched if t.array == name]
                parts = np.concatenate([t.parts for t in alike])
                keys = np.concatenate([t.blocks for t in alike]) - start
                keys = np.unique(parts * count + keys)
                parts = keys // count
                blocks = keys % count
                ago = np.full(len(keys), longest)
                ago[1:] = np.where(np.diff(parts) == 0, np.diff(blocks), longest)
                ago = np.minimum(ago, longest)[blocks >= count - longest]
                farther = np.bincount(ago, minlength=longest + 1)[::-1].cumsum()[::-1][1:]
                curve = farther * alike[0].bytes / (longest * len(starts))
                found[name] = found.get(name, 0) + curve
        return found
