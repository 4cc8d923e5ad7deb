"""Predict the bytes that a function moves through DRAM, with a model of the L2 cache. See DRAM.md.

Blocks run in the order of their numbers, a wave at a time. The order in which they compute y
(`block_order`) gives the data that each block accesses, and so the data that it finds in the L2
(`l2_reuse`).

Three things are unknown:

- how much of an L2 with two partitions serves data that all SMs read, and keeps written data until
  the end: half of it, or all of it;
- whether the blocks that run at the same time progress equally fast;
- how much of the threads' local memory is evicted from the L2.

So the prediction is an interval. There is no number if the interval is too wide, or if the order is
unknown and reuse between blocks may matter.
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

# There is a number if it is within this factor of both ends of the interval.
AIM = 1.5
# The share of the L2 that serves data read by all SMs, and that keeps written data: best, worst.
L2_SHARES = (1.0, 0.5)
# Reuse between blocks is ignored if they request at most this multiple of moving each byte once.
_LITTLE_REUSE = 1.1
# The most bytes through DRAM for a sector that an atomic updates: it is read and written.
_ATOMIC_SECTOR_BYTES = 64.0

# The bytes of each (kind, array) if all requested data move once; kind is "load", "store" or
# "atomic".
BytesOnce = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class DramTraffic:
    """The predicted bytes through DRAM, as an interval.

    Attributes
    ----------
    low, high : the ends of the interval, in bytes.
    order : the order in which blocks compute y, as a text.
    unknown : the reason why the interval may be wide.
    once : the bytes if each array moves once.
    """

    low: float
    high: float
    order: str = ""
    unknown: str = ""
    once: float = 0.0

    @property
    def bytes(self) -> float | None:
        """A number within a factor of `AIM` of both ends, in bytes; None if there is none."""
        if self.high > AIM**2 * self.low:
            return None
        return math.sqrt(self.low * self.high)

    @property
    def note(self) -> str:
        """One line: how the bytes were predicted, or why they were not."""
        if self.bytes is None:
            low = f"{self.low / 1e6:,.4g}"
            high = f"{self.high / 1e6:,.4g}"
            return f"the DRAM traffic is not predicted ({low} to {high} MB): {self.unknown}"
        text = "the DRAM traffic is predicted by a model of the L2"
        return f"{text}, with blocks in the order {self.order}" if self.order else text

    @property
    def assumed(self) -> float:
        """The bytes that the time model assumes; if they are not predicted, each array once."""
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

    `order` is None if it is not known; `unknown` is the reason why the two numbers differ.
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
    """Return the DRAM traffic of a function's launches, each with a cold cache, as with ncu."""
    launches = len(launched.launches)
    loads = sum(size for (kind, _), size in once.items() if kind != "store") / launches
    stores = sum(size for (kind, _), size in once.items() if kind == "store") / launches
    if any(kind == "atomic" for kind, _ in once):
        sectors = sum(row["units"] for row in launched.lines if row["space"] == "global")
        return DramTraffic(
            low=loads * launches,
            high=_ATOMIC_SECTOR_BYTES * sectors,
            unknown="the kernel uses atomics on global memory",
            once=loads * launches + stores * launches,
        )
    fetched = _Fetched(loads, loads)
    if loads + stores > min(L2_SHARES) * gpu.l2_bytes:
        fetched = _fetched(problem, format, gpu, counts, launched, once, loads)
    # In the best case, the threads' local memory stays in the L2.
    local = launched.function.stack * 32.0 * launched.warps * launched.blocks / launches
    best, worst = L2_SHARES
    low = launches * _through_dram(fetched.low, stores, 0.0, best * gpu.l2_bytes)
    high = launches * _through_dram(fetched.high, stores, local, worst * gpu.l2_bytes)
    unknown = fetched.unknown
    if local:
        unknown = "it is not known how much of the threads' local memory stays in the L2"
    elif fetched.high <= AIM * fetched.low:
        unknown = "it depends on how much written data stays in the L2"
    return DramTraffic(low, high, str(fetched.order or ""), unknown, launches * (loads + stores))


def _through_dram(fetched: float, stores: float, local: float, cache_bytes: float) -> float:
    """Return the bytes through DRAM, if the cache keeps its share of the written data at the end.

    Local memory that is evicted from the cache is written once, and read again.
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
    """Return the bytes that a launch reads, if they do not all fit into the cache.

    `loads` is the number of bytes if all data that the launch reads move once.
    """
    launches = launched.launches
    reaches = _reaches_of(launches, counts)
    blocks = launched.blocks / len(launches)
    most = max(loads, requested_bytes(launched.lines, "load") / len(launches))
    read = {array for kind, array in once if kind != "store"} - {"several", "code"}
    arrays = {row["array"] for row in reaches}
    if not reaches or not read <= arrays:
        return _Fetched(loads, most, unknown="the sample lacks some of the arrays that it reads")
    touched_sectors = 0
    for row in reaches:
        if row["array"] in read or ("store", row["array"]) not in once:
            touched_sectors += row["sectors"]
    sampled = len({(row["launch"], row["block"]) for row in reaches})
    most = min(most, max(loads, SECTOR_BYTES * touched_sectors / sampled * blocks))
    if most <= _LITTLE_REUSE * loads:
        return _Fetched(loads, most)
    if not problem.computation.is_forward:
        return _Fetched(loads, most, unknown="the order of blocks is modelled for convolutions only")
    order = infer_order([row for row in reaches if row["array"] == "y"], problem, format.y)
    if order is None:
        unknown = "its blocks compute y in an order that the model does not support"
        return _Fetched(loads, most, unknown=unknown)
    workspace_bytes = once.get(("load", "workspace"), 0.0)
    grid = math.prod(launches[0]["grid"])
    sequence = BlockSequence(problem, format, order, arrays, workspace_bytes, grid)
    if not sequence.agrees(reaches):
        unknown = "its blocks do not read the parts of x that their outputs need"
        return _Fetched(loads, most, order, unknown)
    wave = launched.occupancy(gpu).blocks * gpu.sms
    fetched = sequence.fetched_bytes([share * gpu.l2_bytes for share in L2_SHARES], wave)
    if fetched is None:
        return _Fetched(loads, most, order, "its blocks access too many parts of x for the model")
    low, high = (min(max(size, loads), most) for size in fetched)
    return _Fetched(low, high, order, "it depends on how much of the L2 serves data of all SMs")


def _reaches_of(launches: Rows, counts: Counts) -> Rows:
    """Return the ranges that the sampled blocks of some launches accessed."""
    wanted = {id(launch) for launch in launches}
    numbers = {n for n, launch in enumerate(counts.launches) if id(launch) in wanted}
    return [row for row in counts.reaches if row["launch"] in numbers]
