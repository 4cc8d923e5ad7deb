"""How often a kernel's machine instructions run, told without a GPU.

The simulator tells how many requests each source line made and how often threads came to a line;
nvdisasm, which instructions came of it. What lies between is nvcc's unrolling: of a loop that runs
T times it may have made one that does U iterations at a time and U - 1 copies for the rest, so that
the first runs T // U times and the copies run where T % U reaches them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .sass import Function, Instruction, Loop, demangled

Rows = Sequence[Mapping[str, Any]]


@dataclass
class _Block:
    """A basic block, or the part of one that lies in one loop and outside the loops in it."""

    body: list[Instruction]
    times: float | None = None  # executions of warps; None: not told by its loads and stores


def executions(
    function: Function, lines: Rows, executed: Mapping[int, float], warps: float
) -> dict[int, float]:
    """Return how often warps run each instruction, by its address.

    From what was counted on the function's own lines (`SimLaunch.lines`), how often threads came
    to a line of its file (perhaps of none is known), and the warps of all its launches.
    """
    return _Flow(function, lines, executed, warps).result


class _Flow:
    """The loops of a function from the outside in, and how often each of their blocks runs."""

    def __init__(self, function: Function, lines: Rows, executed: Mapping[int, float],
                 warps: float) -> None:  # fmt: skip
        self.function, self.lines, self.executed = function, lines, executed
        self.loops: list[Loop | None] = [None, *function.loops]
        self.parent = {loop: self._around(loop) for loop in function.loops}
        self.children = {at: [c for c, p in self.parent.items() if p == at] for at in self.loops}
        self.own: dict[Loop | None, list[Instruction]] = {loop: [] for loop in self.loops}
        for i in function.instructions:
            self.own[function.loop_of(i)].append(i)
        self.rates: dict[int, float] = {}  # of loads and stores
        self.times: dict[Loop | None, float] = {None: warps}
        self.rows = [row for row in map(self._copies, lines) if row]
        for loop in sorted(function.loops, key=lambda loop: loop.start - loop.end):
            self.times[loop] = self._iterations(loop)
        for copies, bits in self.rows:
            self._share(copies, bits)
        rare = _division(function)
        self.result: dict[int, float] = {}
        for block in (block for loop in self.loops for block in self._blocks(loop)):
            slow = any(i.address in rare for i in block.body)
            self.result |= {i.address: 0.0 if slow else block.times or 0.0 for i in block.body}

    def _around(self, loop: Loop) -> Loop | None:
        outer = [o for o in self.function.loops
                 if o != loop and o.start <= loop.start and loop.end <= o.end]  # fmt: skip
        return min(outer, key=lambda o: o.end - o.start, default=None)

    def _copies(self, row: Mapping[str, Any]) -> tuple[list[Instruction], float] | None:
        """The loads or stores that came of a counted line, and the bits a lane that they moved."""
        copies = self.function.made_of(row) if row["lanes"] else []
        return (copies, row["requests"] * 8 * row["bytes"] / row["lanes"]) if copies else None

    def _lines(self, loop: Loop) -> set[int]:
        """The source lines of a loop, those in it included."""
        return {i.line for i in self.function.body(loop) if i.line}

    def _iterations(self, loop: Loop) -> float:
        """How often a loop's body runs."""
        by_row = [self._main(loop, copies, bits) for copies, bits in self.rows
                  if not self.children[loop]]  # fmt: skip
        by_row = [value for value in by_row if value is not None]
        if by_row:
            return min(by_row)
        inner = set().union(*(self._lines(child) for child in self.children[loop]))
        # its step and its test stand at its end; of what is hoisted to its start, no line is sure
        for i in reversed(self.own[loop][-4:]):
            if i.line in self.executed and i.line not in inner:
                return self.executed[i.line] / 32
        known = [bits / sum(i.width for i in copies) for copies, bits in self.rows
                 if all(loop.start <= i.address <= loop.end for i in copies)]  # fmt: skip
        return min(known, default=self.times[self.parent[loop]])

    def _main(self, loop: Loop, copies: list[Instruction], bits: float) -> float | None:
        """Iterations of an innermost loop, by one line of which it has copies; None without."""
        here = [i for i in copies if self.function.loop_of(i) == loop]
        if not here:
            return None
        outside = [i for i in copies if i not in here]
        around = self.times.get(self.parent[loop], 0)
        if not outside or not around:
            return bits / sum(i.width for i in copies)
        levels = {i: self.function.loop_of(i) for i in outside}
        taken = sum(i.width * self.times.get(level, 0) for i, level in levels.items()
                    if level != self.parent[loop])  # fmt: skip
        left = (bits - taken) / around  # of one entry; loops that do more at a time come first
        # some are not asked for: where a border is skipped
        return around * math.floor(max(left, 0) / sum(i.width for i in here) + 0.12)

    def _share(self, copies: list[Instruction], bits: float) -> None:
        """Set the rate of each copy: in loops, of the loop; what is left, to the others in turn."""
        levels = {i: self.function.loop_of(i) for i in copies}
        inner = [i for i in copies if levels[i] is not None and not self.children[levels[i]]]
        rest = [i for i in copies if i not in inner]
        for i in inner:
            self.rates[i.address] = self.times[levels[i]]
        if not inner or not rest:
            each = bits / sum(i.width for i in copies)
            self.rates |= {i.address: each for i in rest}
            return
        left = max(0.0, bits - sum(i.width * self.rates[i.address] for i in inner))
        for i in rest:
            rate = min(self.times[levels[i]], left / i.width)
            self.rates[i.address], left = rate, max(0.0, left - rate * i.width)

    def _blocks(self, loop: Loop | None) -> list[_Block]:
        """The blocks of a loop, outside the loops in it, with how often they run."""
        starts = {i.target for i in self.function.instructions if i.target is not None}
        blocks: list[_Block] = []
        for previous, i in zip([None, *self.own[loop]], self.own[loop], strict=False):
            follows = previous and previous.kind != "branch" and i.address == previous.address + 16
            if not follows or i.address in starts:
                blocks.append(_Block([]))
            blocks[-1].body.append(i)
        for block in blocks:
            rates = [self.rates[i.address] for i in block.body if i.address in self.rates]
            block.times = min(max(rates), self.times[loop]) if rates else None
        jumps = [(i.address, i.target) for i in self.own[loop] if i.target and i.target > i.address]
        jumps.sort(key=lambda jump: jump[1] - jump[0])
        told = [(b.body[0].address, b.body[-1].address, b.times)
                for b in blocks if b.times is not None]  # fmt: skip
        told += [(c.start, c.end, min(self.times[c], self.times[loop]))
                 for c in self.children[loop]]  # fmt: skip
        for block in blocks:
            if block.times is None:
                block.times = self._guarded(block, jumps, told, self.times[loop])
        return blocks

    @staticmethod
    def _guarded(block: _Block, jumps: list[tuple[int, int]], told: list[tuple[int, int, float]],
                 all_of_them: float) -> float:  # fmt: skip
        """What a branch may jump over runs as often as the loads and loops it may jump over."""
        for at, target in jumps:
            if at < block.body[0].address and block.body[-1].address < target:
                inside = [times for start, end, times in told if at < start and end < target]
                if inside:
                    return min(max(inside), all_of_them)
        return all_of_them


def _division(function: Function) -> set[int]:
    """The addresses of what only serves 64-bit divisions of numbers beyond 32 bits.

    nvcc calls a routine of its own for them, after the function's last EXIT; numbers below 2^32,
    which indices mostly are, go a shorter way.
    """
    calls = {i.address for i in function.instructions
             if i.opcode.startswith("CALL") and "__internal_" in i.operands}  # fmt: skip
    leaves = [i.address for i in function.instructions if i.opcode == "EXIT"]
    if not calls or not leaves:
        return set()
    return calls | {i.address for i in function.instructions if i.address > max(leaves)}


def launched(
    functions: Sequence[Function], lines: Rows, launches: Rows
) -> list[tuple[Function, list[Mapping[str, Any]]]]:
    """Return the functions that some launches mean, each once, with its launches."""
    meant: dict[tuple[str, tuple[int, ...]], Function | None] = {}
    found: dict[str, tuple[Function, list[Mapping[str, Any]]]] = {}
    for entry in launches:
        key = entry["kernel"], entry["block"]
        if key not in meant:
            meant[key] = find_function(functions, entry["kernel"], lines, entry["block"])
        if (function := meant[key]) is not None:
            found.setdefault(function.symbol, (function, []))[1].append(entry)
    return list(found.values())


def lines_of(function: Function, lines: Rows) -> list[Mapping[str, Any]]:
    """Return what was counted on a function's own lines."""
    own = {i.line for i in function.instructions if i.access and i.line}
    lines = [row for row in lines if function.holds(row)]
    return [row for row in lines if any(abs(row["line"] - line) <= 1 for line in own)]


def find_function(
    functions: Sequence[Function],
    name: str,
    lines: Rows = (),
    block: tuple[int, int, int] | None = None,
) -> Function | None:
    """Return the function that a launch means by a name, mangled or not; None if there is none.

    A name that no function has is that of a pointer to one: any may be meant. Of several, as of a
    template's instances: one that may have such a block, and whose loads and stores stand to each
    other as the counts do: in each loop all of them must run equally often. If that does not tell,
    the one with the most multiply-adds.
    """
    wanted = demangled(name)
    exact = [f for f in functions if name == f.symbol or wanted == f.name]
    base = wanted.partition("<")[0].rpartition("::")[2]
    alike = exact or [f for f in functions if f.name.partition("<")[0].rpartition("::")[2] == base]
    if not alike and lines:  # launched through a pointer, which has a name of its own
        alike = list(functions)
    if block is not None and len(alike) > 1:
        threads = math.prod(block)
        fitting = [f for f in alike if f.max_threads is None or threads <= f.max_threads]
        least = min((f.max_threads or 1024 for f in fitting), default=0)
        alike = [f for f in fitting if (f.max_threads or 1024) == least] or alike
    return min(
        alike, default=None,
        key=lambda f: (round(_misfit(f, lines), 1), -f.mix(f.hot_loop).get("FFMA", 0)),
    )  # fmt: skip


def _misfit(function: Function, lines: Rows) -> float:
    """How far the counted loads and stores of one loop are from running equally often (log 2)."""
    widths: dict[tuple[Loop | None, int], float] = {}
    moved: dict[int, float] = {}
    for n, row in enumerate(lines):
        copies = [i for i in function.made_of(row) if i.line == row["line"]]
        if copies and row["lanes"]:
            moved[n] = row["requests"] * row["bytes"] / row["lanes"]
        for i in copies:
            key = (function.loop_of(i), n)
            widths[key] = widths.get(key, 0) + i.width
    worst = 0.0
    for loop in {loop for loop, _ in widths if loop is not None}:
        rates = [moved[n] / width for (at, n), width in widths.items() if at == loop]
        worst = max([worst, *(abs(math.log2(a / b)) for a, b in pairwise(rates) if a and b)])
    return worst
