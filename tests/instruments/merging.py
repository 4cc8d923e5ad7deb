"""Where nvcc made one wide access of several narrow ones: the counts of the source differ there.

The simulator counts the source's accesses. nvcc may read four neighbouring floats with one
``LDS.128``: a quarter of the requests, and, where lanes read the same words, fewer wavefronts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convlab.why.sass import Function


class Merge(NamedTuple):
    """Accesses of one source line that nvcc joined.

    `space` and `kind` are as in `Trace.lines`; `source` and `made` are bytes for each lane, of one
    access of the source and of the widest machine instruction made of it.
    """

    line: int
    space: str
    kind: str
    source: int
    made: int
    opcode: str

    def __str__(self) -> str:
        return f"line {self.line}: one {self.opcode} for {self.made // self.source} of the source's"


def merges(functions: Sequence[Function], lines: Sequence[Mapping[str, Any]]) -> list[Merge]:
    """Return the merges among the counted lines (`Trace.lines`) of functions that were launched."""
    found = []
    for row in lines:
        line, access = row["line"], (row["space"], row["kind"])
        made = [
            i for f in functions for i in f.instructions if (i.access, i.line) == (access, line)
        ]
        source = row["bytes"] // row["lanes"] if row["lanes"] else 0
        widest = max(made, key=lambda i: i.width, default=None)
        if source and widest and widest.width > 8 * source:
            opcode = f"{widest.opcode.split('.')[0]}.{widest.width}"
            found.append(Merge(line, *access, source, widest.width // 8, opcode))
    return found
