"""Derive how often warps execute each machine instruction, without a GPU.

The simulator counts the requests of each source line, and how often threads execute it. nvdisasm
shows the instructions that nvcc generated from the line. To connect the two, this module follows
nvcc's unrolling. From a loop of T iterations, nvcc may generate a main loop of U iterations at a
time, and U - 1 copies of the body for the rest. The main loop then runs T // U times, and T % U of
the copies run.
"""

import math
from collections import Counter
from collections.abc import Mapping

from .launched_functions import Rows
from .sass import INSTRUCTION_BYTES, Chain, Function, Instruction, Loop

# A basic block, or the part of one that is in a loop and in no loop inside it.
Block = list[Instruction]
# The first and the last address of a block or a loop.
Span = tuple[int, int]

# The share of an unrolled iteration that may be missing, because lanes at a border of the image
# skip some requests.
_MISSING_SHARE = 0.12


def instruction_counts(
    function: Function,
    lines: Rows,
    executed: Mapping[str, Mapping[int, float]],
    warps: float,
) -> dict[int, float]:
    """Return how often warps execute each instruction, by its address.

    Parameters
    ----------
    function : the compiled function.
    lines : the counts of its own source lines (`Counts.lines`).
    executed : by file, how often threads executed each line (`Counts.executed`); may be empty.
    warps : the number of warps of all its launches.
    """
    return _ControlFlow(function, lines, executed, warps).counts()


class _ControlFlow:
    """The counts of a function: first of its loops, from the outermost in, then of its blocks."""

    def __init__(
        self,
        function: Function,
        lines: Rows,
        executed: Mapping[str, Mapping[int, float]],
        warps: float,
    ) -> None:
        self.function = function
        self.executed = executed
        self.line_counts = executed.get(function.file, {})
        self.division_routine = _division_routine(function)
        self.parent = {loop: function.loop_of(loop) for loop in function.loops}
        self.children: dict[Loop | None, list[Loop]] = {loop: [] for loop in function.by_loop}
        for child, parent in self.parent.items():
            self.children[parent].append(child)
        # The number of blocks with an instruction of each line.
        self.copies: Counter[tuple[str, int]] = Counter()
        for loop in function.by_loop:
            for block in self._blocks(loop):
                self.copies.update(_places(block))
        # For each counted line: the loads or stores compiled from it, and the bits per lane that
        # all of their executions moved.
        self.moved = _moved(function, lines)
        # How often each loop's body runs. The key None is the code outside all loops.
        self.loop_counts: dict[Loop | None, float] = {None: warps}
        for loop in sorted(function.loops, key=lambda loop: loop.start - loop.end):
            self.loop_counts[loop] = self._iterations(loop)
        # How often each load and store runs, by its address.
        self.access_counts: dict[int, float] = {}
        for copies, bits in self.moved:
            self._distribute(copies, bits)

    def counts(self) -> dict[int, float]:
        """Return how often each instruction runs, by its address."""
        counts: dict[int, float] = {}
        for loop in self.function.by_loop:
            counts |= self._counts_in(loop)
        return counts

    def _iterations(self, loop: Loop) -> float:
        """Return how often a loop's body runs."""
        if not self.children[loop]:
            # Some lines are executed by few threads only, or twice. So the count is a median, in
            # which each line has as many votes as accesses in the loop.
            # Of a line's inlined copies, one may be in each branch of the loop: the most frequent counts.
            by_line: dict[Chain, tuple[float, int]] = {}
            for copies, bits in self.moved:
                iterations = self._unrolled_iterations(loop, copies, bits)
                if iterations is not None:
                    place = copies[0].calls[:1]
                    before, accesses = by_line.get(place, (0.0, 0))
                    accesses += sum(_is_in(i, loop) for i in copies)
                    by_line[place] = (max(before, iterations), accesses)
            votes = []
            for iterations, accesses in by_line.values():
                votes += [iterations] * accesses
            if votes:
                return sorted(votes)[(len(votes) - 1) // 2]
        # The loop's step and test are its last instructions. Instructions that nvcc moved to its
        # start may belong to other lines.
        inner_lines = {i.line for child in self.children[loop] for i in self.function.body(child)}
        for instruction in reversed(self.function.by_loop[loop][-4:]):
            line = instruction.line
            if line in self.line_counts and line not in inner_lines:
                return self.line_counts[line] / 32
        by_accesses = []
        for copies, bits in self.moved:
            if all(_is_in(i, loop) for i in copies):
                by_accesses.append(bits / _width(copies))
        return min(by_accesses, default=self.loop_counts[self.parent[loop]])

    def _unrolled_iterations(
        self, loop: Loop, copies: list[Instruction], bits: float
    ) -> float | None:
        """Return the iterations of an innermost loop, derived from one line's accesses.

        Return None if none of the accesses is in the loop.
        """
        parent = self.parent[loop]
        loops = {i: self.function.loop_of(i) for i in copies}
        inside = [i for i in copies if loops[i] == loop]
        if not inside:
            return None
        entries = self.loop_counts.get(parent, 0)
        if len(inside) == len(copies) or not entries:
            return bits / _width(copies)
        elsewhere = 0.0
        for instruction, its_loop in loops.items():
            if its_loop not in (loop, parent):
                elsewhere += instruction.width * self.loop_counts.get(its_loop, 0)
        # The main loop runs as many whole iterations as fit into the bits of one entry.
        per_entry = max((bits - elsewhere) / entries, 0)
        return entries * math.floor(per_entry / _width(inside) + _MISSING_SHARE)

    def _distribute(self, copies: list[Instruction], bits: float) -> None:
        """Set how often each of a line's accesses runs.

        An access in an innermost loop runs as often as the loop. The remaining bits of the line are
        distributed to the other accesses in turn.
        """
        loops = {i: self.function.loop_of(i) for i in copies}
        inner = [i for i in copies if loops[i] is not None and not self.children[loops[i]]]
        rest = [i for i in copies if i not in inner]
        most = math.inf
        if not rest and self._has_other_copies(copies):
            most = bits / _width(inner)
        for instruction in inner:
            count = self.loop_counts[loops[instruction]]
            self.access_counts[instruction.address] = min(count, most)
        if not inner or not rest:
            self._distribute_evenly(rest, bits)
            return
        moved = sum(i.width * self.access_counts[i.address] for i in inner)
        remaining = max(0.0, bits - moved)
        for instruction in rest:
            count = min(self.loop_counts[loops[instruction]], remaining / instruction.width)
            self.access_counts[instruction.address] = count
            remaining = max(0.0, remaining - count * instruction.width)

    def _has_other_copies(self, copies: list[Instruction]) -> bool:
        """Return whether the source line of some accesses was inlined elsewhere in their loops, too.

        Then branches may choose one of these places in each iteration.
        """
        loops = {self.function.loop_of(i) for i in copies}
        for others, _ in self.moved:
            if others is not copies and others[0].calls[:1] == copies[0].calls[:1]:
                if loops & {self.function.loop_of(i) for i in others}:
                    return True
        return False

    def _distribute_evenly(self, copies: list[Instruction], bits: float) -> None:
        """Set how often some accesses run: equally often, but none more often than its loop."""

        def most(instruction: Instruction) -> float:
            return self.loop_counts[self.function.loop_of(instruction)]

        width = _width(copies)
        for instruction in sorted(copies, key=most):
            count = min(most(instruction), bits / width)
            self.access_counts[instruction.address] = count
            bits -= count * instruction.width
            width -= instruction.width

    def _counts_in(self, loop: Loop | None) -> dict[int, float]:
        """Return how often each instruction of a loop runs, without the loops inside it."""
        most = self.loop_counts[loop]
        blocks = self._blocks(loop)
        block_counts: dict[Span, float] = {}
        for block in blocks:
            known = [
                self.access_counts[i.address] for i in block if i.address in self.access_counts
            ]
            if known:
                block_counts[_span(block)] = max(known)
            elif self._never_runs(block):
                block_counts[_span(block)] = 0.0
        inner_counts = {tuple(child): self.loop_counts[child] for child in self.children[loop]}
        known_counts = block_counts | inner_counts
        jumps = [
            (i.address, i.target)
            for i in self.function.by_loop[loop]
            if i.target and i.target > i.address
        ]
        jumps.sort(key=lambda jump: jump[1] - jump[0])
        # Stores of lines at which the simulator saw none.
        unseen = [
            i.address
            for i in self.function.by_loop[loop]
            if i.address not in self.access_counts and i.access and i.access[1] == "store"
        ]
        counts = {}
        for block in blocks:
            span = _span(block)
            count = block_counts.get(span)
            if count is None:
                count = _guarded_count(span, jumps, known_counts, unseen)
            if span not in block_counts:
                count = min(count, self._most_by_lines(block))
            if any(i.address in self.division_routine for i in block):
                count = 0.0
            for instruction in block:
                counts[instruction.address] = min(count, most)
        return counts

    def _never_runs(self, block: Block) -> bool:
        """Return whether the simulator executed none of a block's lines.

        `executed` has the lines at which the simulator's basic blocks begin. A block of machine code
        nearly always has one of them.
        """
        known = [(file, line) for file, line in _places(block) if file in self.executed]
        return bool(known) and not any(line in self.executed[file] for file, line in known)

    def _most_by_lines(self, block: Block) -> float:
        """Return how often a block may run at most: all of its copies as often as threads run its lines.

        An execution of a copy has at least one active thread. Several copies of a line are assumed
        to run equally often.
        """
        most = [
            self.executed[file][line] / self.copies[file, line]
            for file, line in _places(block)
            if line in self.executed.get(file, ())
        ]
        return max(most, default=math.inf)

    def _blocks(self, loop: Loop | None) -> list[Block]:
        """Return the basic blocks of a loop, without the loops inside it."""
        targets = self.function.targets
        blocks: list[Block] = []
        previous = None
        for instruction in self.function.by_loop[loop]:
            continues = (
                previous is not None
                and previous.kind != "branch"
                and instruction.address == previous.address + INSTRUCTION_BYTES
                and instruction.address not in targets
            )
            if not continues:
                blocks.append([])
            blocks[-1].append(instruction)
            previous = instruction
        return blocks


def _moved(function: Function, lines: Rows) -> list[tuple[list[Instruction], float]]:
    """Return loads and stores, with the bits per lane that all of their executions moved.

    nvcc may attribute the accesses of two lines to one of them. Then their bits are added.
    """
    bits: dict[tuple[int, ...], float] = {}
    copies_at = {}
    for row in lines:
        copies = function.compiled_from(row) if row["lanes"] else []
        if copies:
            at = tuple(i.address for i in copies)
            copies_at[at] = copies
            bits[at] = bits.get(at, 0.0) + row["requests"] * 8 * row["bytes"] / row["lanes"]
    moved = [(copies_at[at], number) for at, number in bits.items()]
    if unused := _copies_of_another_width(function, {at for key in bits for at in key}):
        moved.append((unused, 0.0))
    return moved


def _copies_of_another_width(function: Function, counted: set[int]) -> list[Instruction]:
    """Return the asynchronous copies that no row counts, of lines with copies that rows count.

    They are the same function's, inlined for another width, which did not run.
    """
    copies = [i for i in function.instructions if i.opcode.startswith("LDGSTS")]
    lines = {i.line for i in copies if i.address in counted}
    return [i for i in copies if i.address not in counted and i.line in lines and not i.only_fills]


def _places(block: Block) -> set[tuple[str, int]]:
    """Return the files and lines of a block's instructions, with those of the calls around them."""
    return {place for i in block for place in (*i.inlined, (i.file, i.line)) if place[1]}


def _is_in(instruction: Instruction, loop: Loop) -> bool:
    return loop.start <= instruction.address <= loop.end


def _span(block: Block) -> Span:
    return block[0].address, block[-1].address


def _width(copies: list[Instruction]) -> int:
    """Return the sum of the bits per lane that the instructions move."""
    return sum(instruction.width for instruction in copies)


def _guarded_count(
    span: Span, jumps: list[Span], counts: Mapping[Span, float], unseen: list[int]
) -> float:
    """Return how often a block without accesses runs.

    If a branch may skip the block, it runs as often as the most frequent access or loop that the
    same branch may skip. If the branch only skips stores that never ran, the block never ran.
    Otherwise its count has no limit (infinity).
    """
    for at, target in jumps:
        if not (at < span[0] and span[1] < target):
            continue
        skipped = [n for (start, end), n in counts.items() if at < start and end < target]
        if skipped:
            return max(skipped)
        if any(at < address < target for address in unseen):
            return 0.0
    return math.inf


def _division_routine(function: Function) -> set[int]:
    """Return the addresses of nvcc's 64-bit division routine, after the last EXIT, and of its calls.

    The routine runs only for operands that do not fit 32 bits.
    """
    calls = set()
    exits = []
    for instruction in function.instructions:
        if instruction.opcode.startswith("CALL") and "__internal_" in instruction.operands:
            calls.add(instruction.address)
        if instruction.opcode == "EXIT":
            exits.append(instruction.address)
    if not calls or not exits:
        return set()
    routine = {i.address for i in function.instructions if i.address > max(exits)}
    return calls | routine
