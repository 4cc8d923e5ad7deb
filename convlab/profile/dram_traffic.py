"""The bytes that a function moves through DRAM: a model of what the L2 keeps. See DRAM.md.

Blocks run in the order of their numbers, a wave at a time. From the order in which blocks go
through y (`block_order`) follows what each of them touches, and from that what they find in the L2
(`l2_reuse`).

Three things are not known. The first is how much of an L2 of two partitions serves data that all
SMs read, or keeps what was written until the end: a half, or all of it. The second is whether the
blocks that run at a time keep in step. The third is how much of the threads' local memory leaves
the L2. So there is a lower and an upper end. There is no number if they are too far apart, or if
the order is not known and reuse between blocks may matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.machine.device import Gpu
from ..core.problem.format import Format
from ..core.problem.problem import Problem
from .block_order import BlockOrder, infer_order
from .l2_reuse import BlockSequence
from .launched_functions import SECTOR_BYTES, LaunchedFunction, Rows, requested_bytes
from .sampling import Counts

# A number is given if it is within this factor of both ends.
AIM = 1.5
# The shares of the L2 that may keep what all SMs read, and what is written: the best, the worst.
L2_SHARES = (1.0, 0.5)
# Reuse between blocks does not matter if their requests exceed single loads by less than this.
_LITTLE_REUSE = 1.1
# The most bytes that an atomic moves through DRAM for a sector: it is read and written.
_ATOMIC_SECTOR_BYTES = 64.0

# The bytes of each (kind, array) if everything that is requested moves once; kind is "load",
# "store" or "atomic".
BytesOnce = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class DramTraffic:
    """The bytes through DRAM, between two ends.

    Attributes
    ----------
    low, high : the ends, in bytes.
    order : in which blocks go through y, in words.
    unknown : why the ends may be apart.
    once : the bytes if each array moved once.
    """

    low: float
    high: float
    order: str = ""
    unknown: str = ""
    once: float = 0.0

    @property
    def bytes(self) -> float | None:
        """A number within a factor of `AIM` of both ends; None if there is none."""
        if self.high > AIM**2 * self.low:
            return None
        return math.sqrt(self.low * self.high)

    @property
    def note(self) -> str:
        """One line: what the bytes are based on, or why they are not predicted."""
        if self.bytes is None:
            low = f"{self.low / 1e6:,.4g}"
            high = f"{self.high / 1e6:,.4g}"
            return f"the bytes of DRAM are not predicted ({low} to {high} MB): {self.unknown}"
        text = "the bytes of DRAM are predicted by a model of what the L2 keeps"
        return f"{text}, with blocks in the order {self.order}" if self.order else text

    @property
    def assumed(self) -> float:
        """The bytes that a prediction of the time assumes: each array once if not predicted."""
        return max(self.low, self.once) if self.bytes is None else self.bytes

    @classmethod
    def of(cls, parts: Sequence[DramTraffic]) -> DramTraffic:
        """Return the sum over several functions."""
        orders = dict.fromkeys(part.order for part in parts if part.order)
        reasons = dict.fromkeys(part.unknown for part in parts if part.bytes is None)
        return cls(
            low=sum(part.low for part in parts),
            high=sum(part.high for part in parts),
            order="; ".join(orders),
            unknown="; ".join(reasons),
            once=sum(part.once for part in parts),
        )


class _Fetched(NamedTuple):
    """The bytes that a launch reads through DRAM, at best and at worst.

    `order` is None if it is not known; `unknown` says why the ends are apart.
    """

    low: float
    high: float
    order: BlockOrder | None = None
    unknown: str = ""


def dram_traffic(
    problem: Problem,
    format: Format,
    gpu: Gpu,
    counts: Counts,
    launched: LaunchedFunction,
    once: BytesOnce,
) -> DramTraffic:
    """Return what a function's launches move, each of them with a cold cache, as ncu measures it."""
    launches = len(launched.launches)
    loads = sum(size for (kind, _), size in once.items() if kind != "store") / launches
    stores = sum(size for (kind, _), size in once.items() if kind == "store") / launches
    if any(kind == "atomic" for kind, _ in once):
        sectors = sum(row["units"] for row in launched.lines if row["space"] == "global")
        return DramTraffic(
            low=loads * launches,
            high=_ATOMIC_SECTOR_BYTES * sectors,
            unknown="it does atomics on global memory",
            once=loads * launches + stores * launches,
        )
    fetched = _Fetched(loads, loads)
    if loads + stores > min(L2_SHARES) * gpu.l2_bytes:
        fetched = _fetched(problem, format, gpu, counts, launched, once, loads)
    # At best, the threads' local memory stays in the L2.
    local = launched.function.stack * 32.0 * launched.warps * launched.blocks / launches
    best, worst = L2_SHARES
    low = launches * _through_dram(fetched.low, stores, 0.0, best * gpu.l2_bytes)
    high = launches * _through_dram(fetched.high, stores, local, worst * gpu.l2_bytes)
    unknown = fetched.unknown
    if local:
        unknown = "how much of the threads' local memory stays in the L2 is not known"
    elif fetched.high <= AIM * fetched.low:
        unknown = "it depends on how much of what is written stays in the L2"
    return DramTraffic(low, high, str(fetched.order or ""), unknown, launches * (loads + stores))


def _through_dram(fetched: float, stores: float, local: float, cache_bytes: float) -> float:
    """Return the bytes through DRAM: at the end the cache keeps its share of what was written.

    Local memory that leaves the cache is written and read again.
    """
    written = stores + local
    kept = min(1.0, cache_bytes / (fetched + written)) if written else 0.0
    return fetched + (1 - kept) * (written + local)


def _fetched(
    problem: Problem,
    format: Format,
    gpu: Gpu,
    counts: Counts,
    launched: LaunchedFunction,
    once: BytesOnce,
    loads: float,
) -> _Fetched:
    """Return what a launch reads where not all of it fits into the cache.

    `loads` is the bytes if everything that the launch reads moves once.
    """
    launches = launched.launches
    reaches = _reaches_of(launches, counts)
    blocks = launched.blocks / len(launches)
    most = max(loads, requested_bytes(launched.lines, "load") / len(launches))
    read = {array for kind, array in once if kind != "store"} - {"several", "code"}
    arrays = {row["array"] for row in reaches}
    if not reaches or not read <= arrays:
        return _Fetched(loads, most, unknown="not all of it was sampled")
    touched_sectors = 0
    for row in reaches:
        if row["array"] in read or ("store", row["array"]) not in once:
            touched_sectors += row["sectors"]
    sampled = len({(row["launch"], row["block"]) for row in reaches})
    most = min(most, max(loads, SECTOR_BYTES * touched_sectors / sampled * blocks))
    if most <= _LITTLE_REUSE * loads:
        return _Fetched(loads, most)
    order = infer_order([row for row in reaches if row["array"] == "y"], problem, format.y)
    if order is None:
        unknown = "its blocks go through y in no order that the model knows"
        return _Fetched(loads, most, unknown=unknown)
    workspace_bytes = once.get(("load", "workspace"), 0.0)
    grid = math.prod(launches[0]["grid"])
    sequence = BlockSequence(problem, format, order, arrays, workspace_bytes, grid)
    if not sequence.agrees(reaches):
        unknown = "its blocks read other parts of x than those that their outputs need"
        return _Fetched(loads, most, order, unknown)
    wave = launched.occupancy(gpu).blocks * gpu.sms
    fetched = sequence.fetched_bytes([share * gpu.l2_bytes for share in L2_SHARES], wave)
    if fetched is None:
        return _Fetched(loads, most, order, "its blocks touch too many parts of x")
    low, high = (min(max(size, loads), most) for size in fetched)
    return _Fetched(low, high, order, "it depends on how much of the L2 keeps what all SMs read")


def _reaches_of(launches: Rows, counts: Counts) -> Rows:
    """Return what sampled blocks of some launches touched."""
    wanted = {id(launch) for launch in launches}
    numbers = {n for n, launch in enumerate(counts.launches) if id(launch) in wanted}
    return [row for row in counts.reaches if row["launch"] in numbers]
