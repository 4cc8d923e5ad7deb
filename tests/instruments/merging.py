"""Where nvcc made one wide access of several narrow ones: the counts of the source differ there.

The simulator counts the source's accesses. nvcc may read four neighbouring floats with one
``LDS.128``: a quarter of the requests, and, where lanes read the same words, fewer wavefronts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convlab.why.sass import Function, Instruction


@dataclass(frozen=True)
class Merge:
    """Accesses of one source line that nvcc joined.

    `space` and `kind` are as in `SimLaunch.lines`; `source` and `made` are bytes for
    each lane, of one access of the source and of the widest machine instruction made of it.
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
    """Return the merges among a launch's accesses, from machine code against source widths.

    Parameters
    ----------
    functions : with instructions and their source lines: those that were launched.
    lines : `SimLaunch.lines`.
    """
    found = []
    for row in lines:
        if row["kind"] == "atomic" or not row["lanes"]:
            continue
        source = row["bytes"] // row["lanes"]
        widest = max(_made(functions, row), key=lambda i: i.width, default=None)
        if widest is not None and widest.width > 8 * source:
            found.append(
                Merge(row["line"], row["space"], row["kind"], source, widest.width // 8,
                      f"{widest.opcode.split('.')[0]}.{widest.width}")
            )  # fmt: skip
    return found


def _made(functions: Sequence[Function], row: Mapping[str, Any]) -> list[Instruction]:
    """The machine instructions of a line's accesses."""
    return [
        i for f in functions for i in f.instructions
        if i.access == (row["space"], row["kind"]) and i.line == row["line"]
    ]  # fmt: skip
