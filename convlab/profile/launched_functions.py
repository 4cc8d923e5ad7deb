"""Match the simulator's counts to the functions that nvcc compiled.

The simulator reports launches by a function's name, and counts by source line. This module finds the
launches and the lines of each launched `Function`.
"""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.machine.device import Gpu
from .inlined_calls import never_run
from .occupancy import Occupancy, occupancy
from .sass import Chain, Function, Instruction, demangled

# Rows of a table: counts by source line (`Counts.lines`), or launches (`Counts.launches`).
Rows = Sequence[Mapping[str, Any]]
SECTOR_BYTES = 32


@dataclass(frozen=True)
class LaunchedFunction:
    """A function, its launches if they are known, and the counts of its own lines."""

    function: Function
    launches: Rows = ()
    lines: Rows = ()

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return -(-math.prod(self.launches[0]["block"]) // 32)

    @property
    def blocks(self) -> int:
        """The number of blocks of all launches together."""
        return sum(math.prod(launch["grid"]) for launch in self.launches)

    def occupancy(self, gpu: Gpu) -> Occupancy:
        """Return how many blocks of the first launch an SM holds."""
        first = self.launches[0]
        # ptxas reports the static arrays, the launch the rest.
        shared_bytes = self.function.static_shared + first["dynamic_bytes"]
        threads = math.prod(first["block"])
        return occupancy(gpu, threads, self.function.registers, shared_bytes)


def launched_functions(
    functions: Sequence[Function],
    lines: Rows,
    launches: Rows,
    reached: Collection[Chain] = (),
) -> list[LaunchedFunction]:
    """Return each function that was launched, with all of its launches and its counted lines.

    `lines` are `Counts.lines_by_call`, `launches` and `reached` those of `Counts`. Inlined calls that never run are left out.
    """
    launches_of: dict[str, tuple[Function, list]] = {}
    find = functools.cache(lambda name: find_function(functions, name, lines))
    for launch in launches:
        if function := find(launch["kernel"]):
            launches_of.setdefault(function.symbol, (function, []))[1].append(launch)
    launched = []
    for function, own_launches in launches_of.values():
        ran = function.without(never_run(function, reached))
        launched.append(LaunchedFunction(ran, own_launches, _lines_of(ran, lines)))
    return launched


def find_function(functions: Sequence[Function], name: str, lines: Rows = ()) -> Function | None:
    """Return the function that a launch names, mangled or not; None if there is none.

    A launch through a pointer to a static function may have a name that the linker does not know.
    Then every function is a candidate. There may be several candidates, such as instances of a
    template. The one with the most counted lines is taken, and among equals the one with the most
    multiply-adds.
    """
    wanted = demangled(name)
    candidates = [f for f in functions if name == f.symbol or wanted == f.name]
    if not candidates:
        candidates = [f for f in functions if _base_name(f.name) == _base_name(wanted)]
    if not candidates and lines:
        candidates = list(functions)

    def rank(function: Function) -> tuple[int, int]:
        lines_of_it = 0
        for row in lines:
            lines_of_it += any(i.line == row["line"] for i in function.compiled_from(row))
        return lines_of_it, function.mix(function.hot_loop).get("FFMA", 0)

    return max(candidates, key=rank, default=None)


def requested_bytes(lines: Rows, kind: str, array: str | None = None) -> float:
    """Return the bytes of all requested sectors of global memory, for one array or for all."""
    sectors = 0
    for row in lines:
        if row["space"] == "global" and row["kind"] == kind and array in (None, row["array"]):
            sectors += row["units"]
    return float(SECTOR_BYTES) * sectors


def _lines_of(function: Function, lines: Rows) -> Rows:
    """Return the counted lines on which, or next to which, the function has loads or stores.

    A line of a header is the function's if an access of the function was inlined from it.
    """
    own_lines = {i.line for i in function.instructions if i.line and _accesses(i)}
    inlined = {place for i in function.instructions if _accesses(i) for place in i.inlined}
    rows = []
    for row in lines:
        if function.shares_file(row):
            near = any(abs(row["line"] - line) <= 1 for line in own_lines)
        else:
            file = Path(row["file"]).name
            near = any((file, row["line"] + step) in inlined for step in (-1, 0, 1))
            near = near or bool(function.compiled_from(row))
        if near:
            rows.append(row)
    return rows


def _accesses(instruction: Instruction) -> bool:
    """Return whether an instruction accesses global or shared memory, by a copy engine or not."""
    return bool(instruction.access) or instruction.kind == "TMA"


def _base_name(name: str) -> str:
    """Return a name without its namespace and template arguments."""
    return name.partition("<")[0].rpartition("::")[2]
