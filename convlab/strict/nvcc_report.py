"""What nvcc says of a kernel that the simulator runs, which g++ compiles: is it CUDA at all?

g++ takes a host function in a kernel for any other, knows no limit of constants, and does not count
registers. So nvcc compiles the device code too, for the architecture that the header states or the
simulated GPU's; no GPU is needed.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core.builds.compiler_messages import messages
from ..core.builds.nvcc import Compiled, compiled
from ..core.finding import Finding, Place
from ..core.kernel.runnable import Runnable
from ..core.machine import toolchain

WARNING = "compiler warning"  # a kind of finding
# of an SM; a warp takes them by so many
_SM_REGISTERS = 65_536
_BY = 256
_NOWHERE = None, None
_ANY = 1024  # threads of a block
_MOST = 8  # errors told, and warnings
_ASSEMBLER = re.compile(r"^ptxas (?:\S+, line \d+; )?(error|warning|fatal) *: (.*)", re.MULTILINE)
# Not by `parse_header`: it parses Python, which CPython 3.11 cannot do in two threads (gh-106905).
_ARCH = re.compile(r"^// ?arch:\s+sm_(\w+)", re.MULTILINE)
_USED = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL
)


@dataclass(frozen=True)
class CompiledKernel:
    """A ``__global__`` function as it was compiled."""

    symbol: str  # its name as the linker knows it
    registers: int
    threads: int  # of a block, by its __launch_bounds__
    spilled: int  # bytes that a thread stores for want of registers
    place: Place | tuple[None, None]


class NvccReport(NamedTuple):
    """What nvcc said: errors and warnings, the kernels; why it could not be asked, or nothing."""

    findings: tuple[Finding, ...]
    entries: tuple[CompiledKernel, ...] = ()
    note: str = ""

    def too_large(self, launched: Mapping[str, int]) -> Iterator[Finding]:
        """Say which launches a GPU would refuse, of kernels by name with a block's most threads.

        A name may stand for several instances, or be a pointer's: all that it may be must refuse.
        """
        for name, threads in launched.items():
            refused = [_refusal(entry, threads) for entry in self._named(name)]
            if refused and all(refused):
                yield refused[0]

    def _named(self, name: str) -> list[CompiledKernel]:
        plain, _, arguments = name.partition("<")
        plain = plain.strip().rpartition(":")[2]
        found = [e for e in self.entries if _holds(e.symbol, plain)] or [*self.entries]
        for number in re.findall(r"(?<!\w)\d+(?!\w)", arguments):
            found = [e for e in found if re.search(rf"L[a-z]{number}E", e.symbol)] or found
        return found


def _holds(symbol: str, name: str) -> bool:
    """Whether a name as the linker knows it has one of the source in it (Itanium C++ ABI)."""
    return re.search(rf"(?<!\d){len(name)}{name}", symbol) is not None


def _refusal(entry: CompiledKernel, threads: int) -> Finding | None:
    warps = -(-threads // 32)
    each = -(-entry.registers * 32 // _BY) * _BY
    if threads > entry.threads:
        text = f"a block of {threads} threads is launched; __launch_bounds__ allow {entry.threads}"
    elif warps * each > _SM_REGISTERS:
        text = (
            f"a block of {threads} threads of {entry.registers} registers each is launched: "
            f"{warps * each:,} registers, of which an SM has {_SM_REGISTERS:,}"
        )
    else:
        return None
    file, line = entry.place
    return Finding("launch configuration", f"nvcc: {text}", file=file, line=line)


def nvcc_report(kernel: Runnable) -> NvccReport | None:
    """Let nvcc compile a kernel's device code, or return its earlier report; None without nvcc.

    The architecture is the one that the header states, or the simulated GPU's.
    """
    if toolchain.cuda() is None or kernel.build() is None:
        return None
    source = kernel.file
    stated = _ARCH.search(source.text)
    architecture = stated[1] if stated else f"{kernel.target[0]}a"
    output = compiled(source, architecture, kernel.defines)
    texts = {str(path): text for path, (_, text) in source.headers().items()}
    return _read(output, {source.label: source.text, **texts})


def _read(made: Compiled, texts: Mapping[str, str]) -> NvccReport:
    """Tell the kernel's own errors from what is amiss with nvcc, as where a header is missing."""
    found: dict[Finding, None] = {}
    others = []
    log = made.log
    for file, line, _, kind, text in messages(log):
        file = file if file in texts else str(Path(file).resolve())
        if file in texts and "No such file" not in text:
            found[_finding(kind, text, file, line)] = None
        elif kind == "error":
            others.append(f"{Path(file).name}: {text}")
    for kind, text in _ASSEMBLER.findall(log):
        if kind != "fatal" or "extern" in text:
            symbol = re.search(r"'(\w+)'", text)
            where = _place(symbol and symbol[1], texts)
            found[_finding(kind, text, *(where if symbol or "constant" in text else _NOWHERE))] = (
                None
            )
        else:
            others.append(text)
    wrong = [f for f in found if f.error][:_MOST]
    warned = [f for f in found if not f.error][:_MOST]
    if made.status and not wrong:
        first = (others or log.strip().splitlines() or ["it says nothing"])[0]
        return NvccReport(tuple(warned), (), f"nvcc did not compile it: {first}")
    bounds = {symbol: math.prod(int(n or 1) for n in block) for symbol, *block in made.heads}
    entries = (
        CompiledKernel(
            symbol, int(registers), bounds.get(symbol, _ANY), int(spilled), _place(symbol, texts)
        )
        for symbol, spilled, registers in _USED.findall(log)
    )
    return NvccReport((*wrong, *warned), tuple(entries))


def _finding(kind: str, text: str, file: str | None, line: int | None) -> Finding:
    error = kind != "warning"
    return Finding("does not build" if error else WARNING, f"nvcc: {text}", error, file, line)


def _place(symbol: str | None, texts: Mapping[str, str]) -> Place | tuple[None, None]:
    """Where a function is first named, by its name as the linker knows it; constants without one."""
    for name, text in texts.items():
        for found in re.finditer(r"\b(\w+)\s*\(" if symbol else r"\b(__constant__)\b", text):
            own = found[1]
            if (
                symbol in (None, own)
                or symbol.startswith(f"_Z{len(own)}{own}")
                or (symbol.startswith("_ZN") and _holds(symbol, own))
            ):
                return name, text.count("\n", 0, found.start()) + 1
    return None, None
