"""Represent machine instructions (SASS), loops and functions.

NVIDIA's "CUDA Binary Utilities" describes the opcodes, in the chapter "Instruction Set Reference".
`disassembly` reads these types from a cubin.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

# The kind of an opcode. The first pattern that matches applies. An empty kind means the opcode's
# own name with its width ("LDG.128").
_KINDS = {
    r"LDGSTS": "LDGSTS",
    r"(LDG|STG|LDS|STS|LDL|STL)\b": "",
    r"LDSM|STSM": "LDSM",
    r"UTMA|UBLKCP": "TMA",
    r"RED|ATOM": "atomic",
    r"[HIQB]GMMA": "HGMMA",
    r"[HIDBQ]MMA": "HMMA",
    r"FFMA": "FFMA",
    r"FADD|FMUL": "FADD FMUL",
    r"BAR|SYNCS|DEPBAR|LDGDEPBAR": "barrier",
    r"BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|WARPSYNC|BREAK": "branch",
    r"U?(IMAD|IADD3?|VIADD|ISETP|LEA|SHF|LOP3|PLOP3|IABS|IMNMX|VIMNMX|ISCADD|SEL|PRMT|POPC|FLO)"
    r"|R2UR|I2F|F2I|MUFU": "integer",
}
# The order in which kinds are listed.
_ORDER = (
    "FFMA",
    "FADD FMUL",
    "HMMA",
    "HGMMA",
    "LDG",
    "LDGSTS",
    "STG",
    "LDS",
    "LDSM",
    "STS",
    "TMA",
    "LDL",
    "STL",
    "atomic",
    "barrier",
    "integer",
    "branch",
    "other",
)
_ACCESSES = {
    "LDG": ("global", "load"),
    "STG": ("global", "store"),
    "LDS": ("shared", "load"),
    "STS": ("shared", "store"),
    "LDGSTS": ("global", "load"),
}
_MULTIPLY_ADDS = ("FFMA", "HMMA", "HGMMA")
# nvcc may attribute an access to a line near its source line, at most this many lines away.
_NEAREST_LINES = 3
# The lines of a header's function, which has one branch for nvcc and one for the simulator.
_NEAREST_IN_FUNCTION = 12
# A source line, and the lines of the inlined calls around it, the innermost first: (file, line).
Chain = tuple[tuple[str, int], ...]
# The bytes of an instruction, on all supported compute capabilities.
INSTRUCTION_BYTES = 16


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes
    ----------
    address, opcode, operands : as nvdisasm prints them.
    line : its source line in the function's own file; None if unknown.
    target : the target address of a branch.
    guard : the predicate that must hold for it to run: "@!P0".
    file : the name of the file of `line`, without its folder.
    inlined : the file's name and the line of each inlined function of another file that it belongs
        to, the innermost first.
    calls : its file and line, then those of the inlined calls around it, of its own file, too.
    """

    address: int
    opcode: str
    operands: str
    line: int | None = None
    target: int | None = None
    guard: str = ""
    file: str = ""
    inlined: tuple[tuple[str, int], ...] = ()
    calls: Chain = ()

    def line_in(self, file: str, near: int) -> int | None:
        """Return its line in another file, the nearest one to `near`; None if it has none there."""
        lines = [line for name, line in self.inlined if name == file]
        return min(lines, key=lambda line: abs(line - near), default=None)

    def calls_around(self, file: str, near: int) -> Chain:
        """Return the inlined calls around its line in a file, the nearest one to `near`."""
        numbers = [n for n, (name, _) in enumerate(self.calls) if name == file]
        at = min(numbers, key=lambda n: abs(self.calls[n][1] - near), default=len(self.calls))
        return self.calls[at + 1 :]

    @functools.cached_property
    def kind(self) -> str:
        """Its kind in counts: "FFMA", "LDG.128", "integer", ..."""
        for pattern, kind in _KINDS.items():
            if re.match(pattern, self.opcode):
                return kind or f"{self.opcode.partition('.')[0]}.{self.width}"
        return "other"

    @functools.cached_property
    def width(self) -> int:
        """The bits that a load or a store moves for each lane."""
        suffix = re.search(r"\.(?:U|S)?(8|16|32|64|128)\b", self.opcode)
        return int(suffix[1]) if suffix else 32

    @property
    def is_integer(self) -> bool:
        """Whether the integer unit runs it, and not a multiplier, converter or the uniform path.

        This unit also compares floating-point numbers.
        """
        if re.match(r"FSETP|FMNMX|FSEL|FCHK", self.opcode):
            return True
        return self.kind == "integer" and not re.match(r"U|IMAD|R2U|MUFU|I2F|F2I", self.opcode)

    @functools.cached_property
    def access(self) -> tuple[str, str] | None:
        """("global" or "shared", "load" or "store"); None if it accesses neither memory."""
        return _ACCESSES.get(self.opcode.partition(".")[0])

    @property
    def copies_through_l1(self) -> bool:
        """Whether it is an asynchronous copy that does not bypass L1, as those of 4 and 8 bytes."""
        return self.opcode.startswith("LDGSTS") and "BYPASS" not in self.opcode

    @property
    def leaves(self) -> bool:
        """Whether another instruction than the next one may run after it."""
        return self.target is not None or self.opcode.startswith(("EXIT", "RET", "BRX"))

    @property
    def always_leaves(self) -> bool:
        """Whether the next instruction never runs after it."""
        # A branch's own predicate is an operand: "UP0, `(.L_x_1)".
        return self.leaves and not self.guard and "," not in self.operands

    @property
    def only_fills(self) -> bool:
        """Whether it is an asynchronous copy that only writes zeros, without a source.

        nvcc generates it next to the copy of the same source line, under the opposite guard. Both
        issue, and each lane's data move once.
        """
        return self.opcode.startswith("LDGSTS") and self.operands.endswith("!PT")

    @property
    def tensor_flops(self) -> int:
        """The operations of a tensor core instruction, per warp.

        Four warps execute an HGMMA together, so each warp has a quarter of its operations.
        """
        if shape := re.match(r"HGMMA\.64x(\d+)x(\d+)", self.opcode):
            return 2 * 64 * int(shape[1]) * int(shape[2]) // 4
        if shape := re.match(r"HMMA\.(\d\d?)(8)(\d+)\b", self.opcode):
            return 2 * int(shape[1]) * 8 * int(shape[3])
        return 0


class Loop(NamedTuple):
    """A loop in machine code: the instructions of `start` <= address <= `end`."""

    start: int
    end: int

    def contains(self, inner: Loop) -> bool:
        """Return whether another loop is inside this one."""
        return self != inner and self.start <= inner.start and inner.end <= self.end


@dataclass
class Function:
    """One ``__global__`` function of a cubin.

    Attributes
    ----------
    symbol : its mangled name.
    registers : registers per thread.
    static_shared, stack, spill_bytes : bytes of static shared memory per block, of local memory per
        thread, and of register spills per thread, from ptxas.
    instructions : its instructions, in the order of their addresses.
    """

    symbol: str
    registers: int = 0
    static_shared: int = 0
    stack: int = 0
    spill_bytes: int = 0
    instructions: list[Instruction] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        """The name in the source: "conv2d_smem_tile<16, 32>"."""
        return demangled(self.symbol)

    @property
    def file(self) -> str:
        """The file that defines it, perhaps a header; "" if it is not known."""
        for instruction in self.instructions:
            if instruction.file:
                return instruction.file
        return ""

    def without(self, addresses: Collection[int]) -> Function:
        """Return the function without the basic blocks that mostly have these addresses."""
        if not addresses:
            return self
        kept = []
        for _, block in itertools.groupby(self.instructions, self._block_of):
            instructions = list(block)
            # nvcc may move single instructions into a block of another place.
            if 2 * sum(i.address in addresses for i in instructions) <= len(instructions):
                kept += instructions
        return replace(self, instructions=kept)

    def _block_of(self, instruction: Instruction) -> int:
        """Return the first address of the basic block of an instruction."""
        starts = self._block_starts
        return starts[bisect.bisect_right(starts, instruction.address) - 1]

    @property
    def bytes(self) -> int:
        """The bytes of its machine code."""
        return INSTRUCTION_BYTES * len(self.instructions)

    def shares_file(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of `Counts.lines` has a line of this function's file."""
        if not self.file:
            return True
        return Path(row.get("file") or self.file).name == self.file

    @functools.cached_property
    def loops(self) -> list[Loop]:
        """Its loops, one for each target of backward branches that is on every way to the branch.

        nvcc moves code that rarely runs to the end, such as the waiting at an mbarrier. Its jump back
        is no loop: the target can be reached without it, and does not lead to it alone.
        """
        ends: dict[int, int] = {}
        for instruction in self.instructions:
            target = instruction.target
            if target is None or target >= instruction.address:
                continue
            if self._is_on_every_way(target, instruction.address):
                ends[target] = max(ends.get(target, 0), instruction.address)
        return [Loop(start, end) for start, end in sorted(ends.items())]

    def _is_on_every_way(self, target: int, address: int) -> bool:
        """Return whether each way from the first instruction to `address` passes `target`."""
        starts = self._block_starts
        first = starts[0]
        goal = starts[bisect.bisect_right(starts, address) - 1]
        if target in (first, goal):
            return True
        reached = {first}
        todo = [first]
        while todo:
            # Blocks that were left out (`without`) have no successors.
            for successor in self._successors.get(todo.pop(), ()):
                if successor != target and successor not in reached:
                    if successor == goal:
                        return False
                    reached.add(successor)
                    todo.append(successor)
        return True

    @functools.cached_property
    def _block_starts(self) -> list[int]:
        """The addresses at which its basic blocks begin."""
        starts = set(self.targets)
        starts |= {i.address + INSTRUCTION_BYTES for i in self.instructions if i.leaves}
        starts.add(self.instructions[0].address)
        return sorted(starts & {i.address for i in self.instructions})

    @functools.cached_property
    def _successors(self) -> dict[int, list[int]]:
        """The basic blocks that may run after each one, by their first addresses."""
        following: dict[int, list[int]] = {}
        starts = set(self._block_starts)
        for instruction, after in itertools.zip_longest(self.instructions, self.instructions[1:]):
            ways = following.setdefault(self._block_of(instruction), [])
            if instruction.target is not None:
                ways.append(instruction.target)
            ends = after is None or after.address in starts
            if ends and after is not None and not instruction.always_leaves:
                ways.append(after.address)
        return following

    @functools.cached_property
    def by_loop(self) -> dict[Loop | None, list[Instruction]]:
        """The instructions of each loop without its inner loops; None: those in no loop."""
        parts: dict[Loop | None, list[Instruction]] = {loop: [] for loop in (None, *self.loops)}
        for instruction in self.instructions:
            parts[self.loop_of(instruction)].append(instruction)
        return parts

    def loop_of(self, part: Instruction | Loop) -> Loop | None:
        """Return the innermost loop around an instruction or another loop."""
        if isinstance(part, Instruction):
            return self._innermost.get(part.address)
        around = [loop for loop in self.loops if loop.contains(part)]
        return min(around, key=lambda loop: loop.end - loop.start, default=None)

    @functools.cached_property
    def _innermost(self) -> dict[int, Loop]:
        """The innermost loop around each address of an instruction."""
        innermost = {}
        # Of two loops of one length, the first counts.
        for loop in sorted(reversed(self.loops), key=lambda loop: loop.start - loop.end):
            for address in range(loop.start, loop.end + 1, INSTRUCTION_BYTES):
                innermost[address] = loop
        return innermost

    @functools.cached_property
    def targets(self) -> set[int]:
        """The addresses that branches lead to."""
        return {i.target for i in self.instructions if i.target is not None}

    def body(self, loop: Loop | None) -> list[Instruction]:
        """Return the instructions of a loop; of the whole function for None."""
        if loop is None:
            return self.instructions
        return [i for i in self.instructions if loop.start <= i.address <= loop.end]

    @functools.cached_property
    def hot_loop(self) -> Loop | None:
        """The loop with the most multiply-adds outside inner loops, else the longest innermost."""

        def rank(loop: Loop) -> tuple[int, bool, int]:
            own = self.by_loop[loop]
            multiply_adds = sum(instruction.kind in _MULTIPLY_ADDS for instruction in own)
            innermost = not any(loop.contains(inner) for inner in self.loops)
            return multiply_adds, innermost, len(own)

        return max(self.loops, key=rank, default=None)

    def compiled_from(self, row: Mapping[str, Any]) -> list[Instruction]:
        """Return the loads or stores compiled from a counted source line, or the nearest line.

        A line of another file is one of a header's function that was inlined. The simulator may run
        other lines of this function than nvcc compiles. Then the width says which copies are meant.
        """
        copies = self._on_the_line(row)
        calls = row.get("calls", ())
        around = [i for i in copies if agree(calls[1:], i.calls_around(*calls[0]))] if calls else []
        return around or copies

    def _on_the_line(self, row: Mapping[str, Any]) -> list[Instruction]:
        """Return the loads or stores of a counted source line, whatever calls are around it."""
        access = (row["space"], row["kind"])
        own = self.shares_file(row)
        line_of = {}
        for instruction in self.instructions:
            if instruction.access != access or instruction.only_fills:
                continue
            if own:
                line = instruction.line
            else:
                line = instruction.line_in(Path(row["file"]).name, row["line"])
            if line is not None:
                line_of[instruction] = line
        # The simulator names the line on which a statement begins, and nvcc the line of the access.
        closest = min(
            line_of.values(),
            key=lambda line: (abs(line - row["line"]), line < row["line"]),
            default=math.inf,
        )
        nearest = abs(closest - row["line"])
        if nearest <= _NEAREST_LINES:
            return [i for i, line in line_of.items() if line == closest]
        if own or nearest > _NEAREST_IN_FUNCTION or not row.get("lanes"):
            return []
        width = 8 * row["bytes"] / row["lanes"]
        return [
            i
            for i, line in line_of.items()
            if abs(line - row["line"]) <= _NEAREST_IN_FUNCTION and i.width == width
        ]

    def mix(self, loop: Loop | None = None) -> dict[str, int]:
        """Return how many instructions of each kind a loop, or the function, has."""
        return in_order(Counter(instruction.kind for instruction in self.body(loop)))


def agree(calls: Chain, others: Chain) -> bool:
    """Return whether two chains may be the same call. One may end early, where nothing was inlined."""
    return all(a == b for a, b in zip(calls, others, strict=False))


def in_order(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return counts by kind of instruction, in a fixed order of the kinds."""

    def rank(kind: str) -> tuple[int, int, str]:
        return _ORDER.index(kind.partition(".")[0]), len(kind), kind

    return {kind: counts[kind] for kind in sorted(counts, key=rank)}


@functools.cache
def demangled(symbol: str) -> str:
    """Return a function's name with its template arguments, from a mangled name or a signature.

    ncu writes the template argument 4 as "(int)4". The C++ library (Itanium C++ ABI) writes it as
    "4u" if it is unsigned, and a bool as "true". This function returns "4" and "1".

    >>> demangled("_Z4tileILi16ELi32EEv11ConvProblem")
    'tile<16, 32>'
    """
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p
    mangled = symbol.strip().encode()
    text = (demangle(mangled, None, None, None) or mangled).decode()
    # The C++ library and ncu have different names for an anonymous namespace.
    text = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", text)
    text = text.replace("true", "1").replace("false", "0")
    text = re.sub(r"\((?:\w+ )?\w+\)(?=-?\d)|(?<=\d)u?l?l?(?=[,>])", "", text)
    head = re.match(r"(?:(?:void|auto)\s+)?([\w:]+)(?:<([^()]*)>)?", text)
    if head is None:
        return text
    name = head[1]
    arguments = head[2]
    if arguments is None:
        return name
    return f"{name}<{', '.join(argument.strip() for argument in arguments.split(','))}>"
