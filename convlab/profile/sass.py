"""What nvcc made of a kernel: registers, spills, and the machine instructions (SASS) of its loops.

Needs nvcc for the cubin and nvdisasm for the instructions, no GPU. The opcodes are described in
NVIDIA's "CUDA Binary Utilities", instruction set reference.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..core.builds import cache
from ..core.builds.cache import Made
from ..core.errors import BuildError
from ..core.machine import toolchain

# What an opcode is counted as, the first pattern that fits; "" is its own name and its width.
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
_ARITHMETIC = ("FFMA", "HMMA", "HGMMA")
_INSTRUCTION = re.compile(
    r"\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:\{\s*)?(?P<guard>@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)"
    r"\s*(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"(\.L_x?_?\w+):\s*$")
_PLACE = re.compile(r'//## File "([^"]+)", line (\d+)(.*)')
_INLINED = re.compile(r'inlined at "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Instruction:
    """One machine instruction; `line` is its source line in the function's own file, if known."""

    address: int
    opcode: str
    operands: str
    line: int | None = None
    target: int | None = None  # where a branch goes
    guard: str = ""  # the predicate under which it runs: "@!P0"
    file: str = ""  # of the line, without its folder

    @functools.cached_property
    def kind(self) -> str:
        """What it is counted as: "FFMA", "LDG.128", "integer", ..."""
        kind = next((k for pattern, k in _KINDS.items() if re.match(pattern, self.opcode)), "other")
        return kind or f"{self.opcode.partition('.')[0]}.{self.width}"

    @functools.cached_property
    def width(self) -> int:
        """The bits that a load or a store moves for each lane."""
        found = re.search(r"\.(?:U|S)?(8|16|32|64|128)\b", self.opcode)
        return int(found[1]) if found else 32

    @property
    def is_integer(self) -> bool:
        """Whether it goes to the integer unit: not IMAD (a multiplier's), nor the uniform ones."""
        return self.kind == "integer" and not re.match(r"U|IMAD|R2U|MUFU|I2F|F2I", self.opcode)

    @property
    def access(self) -> tuple[str, str] | None:
        """("global" or "shared", "load" or "store") of what goes to memory that lanes share."""
        return _ACCESSES.get(self.opcode.partition(".")[0])

    @property
    def tensor_flops(self) -> int:
        """Operations of a tensor core instruction on the whole warp (HGMMA: a quarter of it)."""
        if found := re.match(r"HGMMA\.64x(\d+)x(\d+)", self.opcode):
            return 2 * 64 * int(found[1]) * int(found[2]) // 4
        found = re.match(r"HMMA\.(\d\d?)(8)(\d+)\b", self.opcode)
        return 2 * int(found[1]) * 8 * int(found[3]) if found else 0


class Loop(NamedTuple):
    """A loop in machine code: instructions of `start` <= address <= `end`."""

    start: int
    end: int

    def holds(self, inner: Loop) -> bool:
        return self != inner and self.start <= inner.start and inner.end <= self.end


@dataclass
class Function:
    """One ``__global__`` function of a cubin; `symbol` is its name as the linker knows it."""

    symbol: str
    registers: int = 0
    static_shared: int = 0
    stack: int = 0
    spill_bytes: int = 0
    instructions: list[Instruction] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        """The name as the source has it: "conv2d_smem_tile<16, 32>"."""
        return demangled(self.symbol)

    @property
    def file(self) -> str:
        """The file that it stands in, which may be a header; "" if that is not known."""
        return next((i.file for i in self.instructions if i.file), "")

    @property
    def bytes(self) -> int:
        """Its machine code's: of the capabilities that are known, 16 an instruction."""
        return 16 * len(self.instructions)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the simulator's (`Trace.lines`) is of this function's file."""
        return not self.file or Path(row.get("file") or self.file).name == self.file

    @functools.cached_property
    def loops(self) -> list[Loop]:
        """Its loops, by backward branches; those that share a start are one."""
        ends: dict[int, int] = {}
        for i in self.instructions:
            if i.target is not None and i.target < i.address:
                ends[i.target] = max(ends.get(i.target, 0), i.address)
        return [Loop(*ends) for ends in sorted(ends.items())]

    @functools.cached_property
    def own(self) -> dict[Loop | None, list[Instruction]]:
        """The instructions of each loop outside the loops in it; under None those of no loop."""
        found: dict[Loop | None, list[Instruction]] = {loop: [] for loop in (None, *self.loops)}
        for i in self.instructions:
            found[self.loop_of(i)].append(i)
        return found

    def loop_of(self, part: Instruction | Loop) -> Loop | None:
        """The innermost loop that an instruction, or another loop, stands in."""
        at = part if isinstance(part, Loop) else Loop(part.address, part.address)
        around = [loop for loop in self.loops if loop.holds(at)]
        return min(around, key=lambda loop: loop.end - loop.start, default=None)

    def body(self, loop: Loop | None) -> list[Instruction]:
        """The instructions of a loop; of the whole function for None."""
        if loop is None:
            return self.instructions
        return [i for i in self.instructions if loop.start <= i.address <= loop.end]

    @functools.cached_property
    def hot_loop(self) -> Loop | None:
        """The loop with the most multiply-adds of its own; without any, the longest innermost."""

        def rank(loop: Loop) -> tuple[int, bool, int]:
            own = self.own[loop]
            alone = not any(loop.holds(inner) for inner in self.loops)
            return sum(i.kind in _ARITHMETIC for i in own), alone, len(own)

        return max(self.loops, key=rank, default=None)

    def made_of(self, row: Mapping[str, Any]) -> list[Instruction]:
        """The loads or stores that came of a line of the simulator's, or of the nearest one."""
        access = (row["space"], row["kind"])
        made = [
            i
            for i in self.instructions
            if i.access == access and i.line is not None and self.holds(row)
        ]
        near = min((abs(i.line - row["line"]) for i in made), default=99)
        return [i for i in made if abs(i.line - row["line"]) == near <= 3]

    def mix(self, loop: Loop | None = None) -> dict[str, int]:
        """How many instructions of each kind, in a fixed order of kinds."""
        return in_order(Counter(i.kind for i in self.body(loop)))


def in_order(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return counts of kinds of instructions in a fixed order of kinds."""
    places = {kind: _ORDER.index(kind.partition(".")[0]) for kind in counts}
    return {kind: counts[kind] for kind in sorted(counts, key=lambda k: (places[k], len(k), k))}


@functools.cache
def demangled(symbol: str) -> str:
    """Return a function's name with its template arguments: of a mangled one, or of a signature.

    ncu writes arguments as "(int)4", the C++ library (Itanium C++ ABI) some as "true" and "4u".
    """
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p
    text = (demangle(symbol.strip().encode(), None, None, None) or symbol.strip().encode()).decode()
    text = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", text)  # the library's, and ncu's
    text = text.replace("true", "1").replace("false", "0")
    text = re.sub(r"\((?:\w+ )?\w+\)(?=-?\d)|(?<=\d)u?l?l?(?=[,>])", "", text)
    head = re.match(r"(?:(?:void|auto)\s+)?([\w:]+)(?:<([^()]*)>)?", text)
    if head is None or head[2] is None:
        return head[1] if head else text
    return f"{head[1]}<{', '.join(part.strip() for part in head[2].split(','))}>"


@functools.lru_cache(maxsize=64)  # a cubin is read once for a kernel, not once for each problem
def functions(cubin: bytes, log: str, label: str) -> tuple[Function, ...]:
    """Return the functions of a cubin, by what ``ptxas -v`` said; for `label` see `parse`.

    What nvdisasm made of it before is found. Raises BuildError without nvdisasm.
    """
    nvdisasm = toolchain.find("nvdisasm")
    if nvdisasm is None:
        raise BuildError(
            "no nvdisasm: `pip install -r requirements.txt` brings it, as does a CUDA toolkit"
        )

    def make(folder: Path) -> Made:
        (folder / "kernel.cubin").write_bytes(cubin)
        command = [str(nvdisasm), "-gi", "kernel.cubin"]
        done = toolchain.asked(command, cwd=folder)
        if done.returncode:
            raise BuildError(f"nvdisasm cannot read a cubin: {done.stderr.strip()[:200]}")
        (folder / "kernel.sass").write_text(done.stdout)
        return Made(folder / "kernel.sass", (), ())

    digest = hashlib.sha256(cubin + toolchain.identity(nvdisasm).encode()).hexdigest()
    made = cache.build(f"{Path(label).stem[:80]}-sass-{digest[:16]}", make)
    return resources(log, parse(made.library.read_text(), label))


def resources(log: str, code: Mapping[str, list[Instruction]]) -> tuple[Function, ...]:
    """Read what ``ptxas -v`` said of each function: registers, shared memory, stack, spills."""
    said = (
        r"Used (\d+) registers",
        r"(\d+) bytes smem",
        r"(\d+) bytes stack frame",
        r"(\d+) bytes spill stores",
        r"(\d+) bytes spill loads",
    )
    found = []
    for part in log.split("Compiling entry function '")[1:]:
        symbol = part.partition("'")[0]
        *own, stores, loads = (int((re.findall(what, part) or [0])[-1]) for what in said)
        found.append(Function(symbol, *own, stores + loads, code.get(symbol, [])))
    return tuple(found)


def parse(text: str, label: str = "") -> dict[str, list[Instruction]]:
    """Read the instructions of each function out of what nvdisasm printed.

    Where it printed source lines (``-gi``), an instruction has its line in `label`'s file: of an
    inlined function of another file, that of the call. A function of a header has the header's.
    """
    sections = re.split(r"\n\s*\.section\s+", text)[1:]
    return {
        name[1]: _instructions(section, label)
        for section in sections
        if (name := re.match(r"\.text\.([^\s,]+)", section))
    }


def _instructions(section: str, label: str) -> list[Instruction]:
    rows: list[tuple[re.Match, list[tuple[str, str]]]] = []
    labels: dict[str, int] = {}
    places = []
    fresh = False
    waiting = []
    for row in section.splitlines():
        if match := _PLACE.search(row):
            # the markers of one instruction stand one below the other, the innermost first
            places = [*(places if fresh else []), (match[1], match[2]), *_INLINED.findall(match[3])]
            fresh = True
        elif match := _LABEL.match(row):
            waiting.append(match[1])
        elif match := _INSTRUCTION.match(row):
            labels |= dict.fromkeys(waiting, int(match["at"], 16))
            fresh = False
            waiting = []
            rows.append((match, places))
    files = [file for _, places in rows for file, _ in reversed(places)]
    home = next((file for file in files if file.endswith(label)), (files or [""])[0])
    code = []
    for match, places in rows:
        line = next((int(number) for file, number in places if file == home), None)
        jump = re.search(r"\((\.L\w+)\)", match["rest"])
        branch = match["op"].partition(".")[0] in ("BRA", "JMP") and jump
        code.append(
            Instruction(
                int(match["at"], 16),
                match["op"],
                match["rest"].strip(),
                line,
                labels.get(jump[1]) if branch else None,
                (match["guard"] or "").strip(),
                Path(home).name,
            )
        )
    return code
