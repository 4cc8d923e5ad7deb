"""Find where nvcc joined several accesses of the source, and correct the simulator's counts for that.

The simulator counts the source's accesses. nvcc may read four neighbouring floats with one ``LDS.128``. That is
a quarter of the requests, and fewer wavefronts where lanes read the same words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convlab.profile.sass import Function
from convlab.sim.trace import Trace

# The argument `record` for `joined`: all warps of the first block.
BLOCK = (0, 0, 0, -1, 1 << 20)
# From the lane to its byte.
Lanes = Mapping[int, int]


class Merge(NamedTuple):
    """Accesses of one source line that nvcc joined.

    `space` and `kind` are as in `Trace.lines`. `source` is the bytes per lane of one access of the
    source, `made` those of the widest machine instruction for it.
    """

    line: int
    space: str
    kind: str
    source: int
    made: int
    opcode: str

    def __str__(self) -> str:
        return f"line {self.line}: one {self.opcode} for {self.made // self.source} accesses of the source"


def merges(functions: Sequence[Function], lines: Sequence[Mapping[str, Any]]) -> list[Merge]:
    """Return the merges in the lines (`Trace.lines`) of the launched functions."""
    found = []
    for row in lines:
        line = row["line"]
        access = (row["space"], row["kind"])
        made = [
            i for f in functions for i in f.instructions if (i.access, i.line) == (access, line)
        ]
        source = row["bytes"] // row["lanes"] if row["lanes"] else 0
        widest = max(made, key=lambda i: i.width, default=None)
        if source and widest and widest.width > 8 * source:
            opcode = f"{widest.opcode.split('.')[0]}.{widest.width}"
            found.append(Merge(line, *access, source, widest.width // 8, opcode))
    return found


def joined(trace: Trace, block: Trace | None, merges: Sequence[Merge]) -> dict[str, float]:
    """Return the counters that the merges change, with the merges applied.

    In the recorded block, successive requests count as one if each lane's addresses are neighbours.
    This gives the share of a line's requests, and of its sectors or wavefronts, that remains. The
    same share is taken for all blocks.
    """
    counters: dict[str, float] = {}
    for merge in merges:
        place = (merge.line, merge.space, merge.kind)
        (row,) = (r for r in trace.lines if (r["line"], r["space"], r["kind"]) == place)
        shared = merge.space == "shared"
        requests, units = (
            ("shared_requests", "shared_wavefronts")
            if shared
            else (f"global_{merge.kind}_requests", f"global_{merge.kind}_sectors")
        )
        turns = _wavefronts if shared else _sectors
        source = [
            (a["lanes"], a["bytes"])
            for a in block.accesses
            if (a["line"], a["space"], a["kind"]) == place
        ]
        made = _made(source, merge.made)
        left = {
            requests: row["requests"] * (1 - len(made) / len(source)),
            units: row["units"]
            * (1 - sum(turns(*m) for m in made) / sum(turns(*s) for s in source)),
        }
        for name, fewer in left.items():
            counters[name] = counters.get(name, trace.counters[name]) - fewer
    return counters


def _made(source: Sequence[tuple[Lanes, int]], width: int) -> list[tuple[Lanes, int]]:
    """Return the requests after joining neighbours, up to `width` bytes per lane."""
    made: list[tuple[Lanes, int]] = []
    for lanes, size in source:
        first, so_far = made[-1] if made else ({}, width)
        follows = lanes == {lane: byte + so_far for lane, byte in first.items()}
        if so_far < width and follows and not any(byte % width for byte in first.values()):
            made[-1] = first, so_far + size
        else:
            made.append((lanes, size))
    return made


def _sectors(lanes: Lanes, size: int) -> int:
    return len({at // 32 for byte in lanes.values() for at in (byte, byte + size - 1)})


def _wavefronts(lanes: Lanes, size: int) -> int:
    """Return the wavefronts of a request; accesses of 16 bytes are served by half warps."""
    bytes_ = [*lanes.values()]
    step = 16 if size > 8 else 32
    turns = 0
    for start in range(0, len(bytes_), step):
        words = {byte // 4 + i for byte in bytes_[start : start + step] for i in range(size // 4)}
        turns += max(Counter(word % 32 for word in words).values())
    return turns
