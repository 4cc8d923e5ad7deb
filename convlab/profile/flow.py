"""How often a kernel's machine instructions run, told without a GPU.

The simulator tells how many requests each source line made and how often threads came to a line;
nvdisasm, which instructions came of it. What lies between is nvcc's unrolling: of a loop that runs
T times it may have made one that does U iterations at a time and U - 1 copies for the rest, so that
the first runs T // U times and the copies run where T % U reaches them.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.machine.device import Gpu
from .sass import Function, Instruction, Loop, demangled
from .work import Occupancy, occupancy

Rows = Sequence[Mapping[str, Any]]
Block = list[Instruction]  # or the part of one that lies in one loop and outside the loops in it
Place = tuple[int, int]  # the first and the last address


def executions(
    function: Function, lines: Rows, executed: Mapping[int, float], warps: float
) -> dict[int, float]:
    """Return how often warps run each instruction, by its address.

    From the counts of the function's own lines (`Trace.lines`), how often threads came to a line of
    its file (perhaps of none is known), and the warps of all its launches.
    """
    return _Flow(function, lines, executed, warps).result


class _Flow:
    """The loops of a function from the outside in, and how often each of their blocks runs."""

    def __init__(
        self, function: Function, lines: Rows, executed: Mapping[int, float], warps: float
    ) -> None:
        self.function = function
        self.executed = executed
        self.rare = _division(function)
        self.parent = {loop: function.loop_of(loop) for loop in function.loops}
        self.children = {at: [c for c, p in self.parent.items() if p == at] for at in function.own}
        self.rates: dict[int, float] = {}  # of loads and stores
        self.times: dict[Loop | None, float] = {None: warps}
        # of each line: the loads or stores that came of it, and the bits a lane that they moved
        self.rows = [
            (copies, row["requests"] * 8 * row["bytes"] / row["lanes"])
            for row in lines
            if row["lanes"] and (copies := function.made_of(row))
        ]
        for loop in sorted(function.loops, key=lambda loop: loop.start - loop.end):
            self.times[loop] = self._iterations(loop)
        for copies, bits in self.rows:
            self._share(copies, bits)
        self.result = {at: times for loop in function.own for at, times in self._counts(loop)}

    def _iterations(self, loop: Loop) -> float:
        """How often a loop's body runs."""
        if not self.children[loop]:
            by_row = [
                (value, sum(loop.start <= i.address <= loop.end for i in copies))
                for copies, bits in self.rows
                if (value := self._main(loop, copies, bits)) is not None
            ]
            # a few of a block's threads may do a line, and others twice: what most copies say
            every = sorted(value for value, copies in by_row for _ in range(copies))
            if every:
                return every[(len(every) - 1) // 2]
        inner = {i.line for child in self.children[loop] for i in self.function.body(child)}
        # its step and its test stand at its end; of what is hoisted to its start, no line is sure
        for i in reversed(self.function.own[loop][-4:]):
            if i.line in self.executed and i.line not in inner:
                return self.executed[i.line] / 32
        known = [
            bits / _width(copies)
            for copies, bits in self.rows
            if all(loop.start <= i.address <= loop.end for i in copies)
        ]
        return min(known, default=self.times[self.parent[loop]])

    def _main(self, loop: Loop, copies: Block, bits: float) -> float | None:
        """Iterations of an innermost loop, by one line of which it has copies; None without."""
        levels = {i: self.function.loop_of(i) for i in copies}
        here = [i for i in copies if levels[i] == loop]
        if not here:
            return None
        around = self.times.get(self.parent[loop], 0)
        if len(here) == len(copies) or not around:
            return bits / _width(copies)
        taken = sum(
            i.width * self.times.get(level, 0)
            for i, level in levels.items()
            if level not in (loop, self.parent[loop])
        )
        left = (bits - taken) / around  # of one entry; loops that do more at a time come first
        # some are not asked for: where a border is skipped
        return around * math.floor(max(left, 0) / _width(here) + 0.12)

    def _share(self, copies: Block, bits: float) -> None:
        """Set the rate of each copy: in loops, of the loop; what is left, to the others in turn."""
        levels = {i: self.function.loop_of(i) for i in copies}
        inner = [i for i in copies if levels[i] is not None and not self.children[levels[i]]]
        rest = [i for i in copies if i not in inner]
        for i in inner:
            self.rates[i.address] = self.times[levels[i]]
        if not inner or not rest:
            self.rates |= {i.address: bits / _width(copies) for i in rest}
            return
        left = max(0.0, bits - sum(i.width * self.rates[i.address] for i in inner))
        for i in rest:
            rate = min(self.times[levels[i]], left / i.width)
            self.rates[i.address] = rate
            left = max(0.0, left - rate * i.width)

    def _counts(self, loop: Loop | None) -> list[tuple[int, float]]:
        """Each instruction of a loop, outside the loops in it, and how often it runs."""
        own = self.function.own[loop]
        all_of_them = self.times[loop]
        starts = {i.target for i in self.function.instructions if i.target is not None}
        blocks: list[Block] = []
        for previous, i in zip([None, *own], own, strict=False):
            follows = previous and previous.kind != "branch" and i.address == previous.address + 16
            if not follows or i.address in starts:
                blocks.append([])
            blocks[-1].append(i)
        rates = {
            (block[0].address, block[-1].address): max(known)
            for block in blocks
            if (known := [self.rates[i.address] for i in block if i.address in self.rates])
        }
        told = rates | {tuple(child): self.times[child] for child in self.children[loop]}
        jumps = sorted(
            ((i.address, i.target) for i in own if i.target and i.target > i.address),
            key=lambda jump: jump[1] - jump[0],
        )
        counts = []
        for block in blocks:
            place = block[0].address, block[-1].address
            times = rates[place] if place in rates else _guarded(place, jumps, told)
            slow = any(i.address in self.rare for i in block)
            counts += [(i.address, 0.0 if slow else min(times, all_of_them)) for i in block]
        return counts


def _width(copies: Block) -> int:
    return sum(i.width for i in copies)


def _guarded(place: Place, jumps: list[Place], told: Mapping[Place, float]) -> float:
    """What a branch may jump over runs as often as the loads and loops it may jump over."""
    for at, target in jumps:
        if at < place[0] and place[1] < target:
            inside = [times for (start, end), times in told.items() if at < start and end < target]
            if inside:
                return max(inside)
    return math.inf


def _division(function: Function) -> set[int]:
    """The addresses of nvcc's routine, behind the last EXIT, that divides beyond 32 bits."""
    calls = {
        i.address
        for i in function.instructions
        if i.opcode.startswith("CALL") and "__internal_" in i.operands
    }
    leaves = [i.address for i in function.instructions if i.opcode == "EXIT"]
    if not calls or not leaves:
        return set()
    return calls | {i.address for i in function.instructions if i.address > max(leaves)}


@dataclass(frozen=True)
class Call:
    """A function, its launches, if they are known, and what was counted on its own lines."""

    function: Function
    launches: Rows = ()
    lines: Rows = ()

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-math.prod(self.launches[0]["block"]) // 32)

    @property
    def blocks(self) -> int:
        """Of all launches."""
        return sum(math.prod(entry["grid"]) for entry in self.launches)

    def occupancy(self, gpu: Gpu) -> Occupancy:
        first = self.launches[0]
        shared = self.function.static_shared + first["shared_bytes"]
        return occupancy(gpu, math.prod(first["block"]), self.function.registers, shared)


def calls(functions: Sequence[Function], lines: Rows, launches: Rows) -> list[Call]:
    """Return the functions that some launches mean, each once."""
    found: dict[str, tuple[Function, list]] = {}
    meant = functools.cache(lambda name: find_function(functions, name, lines))
    for entry in launches:
        if function := meant(entry["kernel"]):
            found.setdefault(function.symbol, (function, []))[1].append(entry)
    return [Call(f, entries, _lines_of(f, lines)) for f, entries in found.values()]


def _lines_of(function: Function, lines: Rows) -> Rows:
    own = {i.line for i in function.instructions if i.access and i.line}
    return [
        row
        for row in lines
        if function.holds(row) and any(abs(row["line"] - line) <= 1 for line in own)
    ]


def asked(lines: Rows, kind: str, array: str | None = None) -> float:
    """Return the bytes of all sectors that were asked for, of an array or of all."""
    return 32.0 * sum(
        row["units"]
        for row in lines
        if row["space"] == "global" and row["kind"] == kind and array in (None, row["array"])
    )


def find_function(functions: Sequence[Function], name: str, lines: Rows = ()) -> Function | None:
    """Return the function that a launch means by a name, mangled or not; None if there is none.

    The linker knows no name of a static function that a pointer means: any may be meant then. Of
    several, as of a template whose arguments were deduced: the one with most of the lines that were
    counted, then with the most multiply-adds.
    """
    wanted = demangled(name)
    alike = [f for f in functions if name == f.symbol or wanted == f.name]
    alike = alike or [f for f in functions if _base(f.name) == _base(wanted)]
    if not alike and lines:
        alike = list(functions)

    def fits(function: Function) -> tuple[int, int]:
        held = sum(any(i.line == row["line"] for i in function.made_of(row)) for row in lines)
        return held, function.mix(function.hot_loop).get("FFMA", 0)

    return max(alike, key=fits, default=None)


def _base(name: str) -> str:
    """A name without its namespace and template arguments."""
    return name.partition("<")[0].rpartition("::")[2]
