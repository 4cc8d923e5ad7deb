"""Asks nvcc about a kernel that the simulator runs, and that g++ compiles: is it CUDA at all?

g++ accepts a host function in a kernel, knows no limit for constants, and does not count registers.
So nvcc compiles the device code too, for the architecture in the header or the simulated GPU's. No
GPU is needed.
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

# A kind of finding.
WARNING = "compiler warning"
# The registers of an SM, and the step in which a warp gets them.
_SM_REGISTERS = 65_536
_REGISTER_STEP = 256
_NOWHERE = (None, None)
# Threads of a block, if there are no __launch_bounds__.
_MOST_THREADS = 1024
# The largest number of errors that are reported, and of warnings.
_MOST_FINDINGS = 8
_ASSEMBLER = re.compile(r"^ptxas (?:\S+, line \d+; )?(error|warning|fatal) *: (.*)", re.MULTILINE)
# `parse_header` cannot be used here: it parses Python, which is not thread-safe in CPython 3.11
# (gh-106905).
_ARCH = re.compile(r"^// ?arch:\s+sm_(\w+)", re.MULTILINE)
_USED = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL
)


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled ``__global__`` function."""

    symbol: str  # the linker's name
    registers: int  # of a thread
    threads: int  # the most of a block, by __launch_bounds__
    spilled: int  # bytes that a thread spills
    place: Place | tuple[None, None]


class NvccReport(NamedTuple):
    """nvcc's errors and warnings, the compiled kernels, and a note if it could not compile."""

    findings: tuple[Finding, ...]
    entries: tuple[CompiledKernel, ...] = ()
    note: str = ""

    def refused_launches(self, launched: Mapping[str, int]) -> Iterator[Finding]:
        """Yield the launches that a GPU would refuse; `launched` are the largest blocks, by name.

        A name may stand for several instances, or be that of a pointer: a launch counts only if all
        kernels that it may be would be refused.
        """
        for name, threads in launched.items():
            refusals = [_refusal(kernel, threads) for kernel in self._kernels_named(name)]
            if refusals and all(refusals):
                yield refusals[0]

    def _kernels_named(self, name: str) -> list[CompiledKernel]:
        """Return the kernels that a launched name may be."""
        plain, _, arguments = name.partition("<")
        plain = plain.strip().rpartition(":")[2]
        kernels = [k for k in self.entries if _contains(k.symbol, plain)] or [*self.entries]
        for number in re.findall(r"(?<!\w)\d+(?!\w)", arguments):
            kernels = [k for k in kernels if re.search(rf"L[a-z]{number}E", k.symbol)] or kernels
        return kernels


def _contains(symbol: str, name: str) -> bool:
    """Return whether a linker's name contains a name of the source (Itanium C++ ABI)."""
    return re.search(rf"(?<!\d){len(name)}{name}", symbol) is not None


def _refusal(kernel: CompiledKernel, threads: int) -> Finding | None:
    """Return why a GPU would refuse a block of so many threads; None if it would not."""
    warps = -(-threads // 32)
    warp_registers = -(-kernel.registers * 32 // _REGISTER_STEP) * _REGISTER_STEP
    if threads > kernel.threads:
        allowed = kernel.threads
        text = f"a block of {threads} threads is launched, but __launch_bounds__ allow {allowed}"
    elif warps * warp_registers > _SM_REGISTERS:
        text = (
            f"a block of {threads} threads with {kernel.registers} registers each is launched: "
            f"{warps * warp_registers:,} registers, but an SM has {_SM_REGISTERS:,}"
        )
    else:
        return None
    file, line = kernel.place
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


def _read(output: Compiled, texts: Mapping[str, str]) -> NvccReport:
    """Read nvcc's output; an error outside of the kernel's files becomes a note."""
    findings: dict[Finding, None] = {}
    others = []
    for file, line, _, kind, text in messages(output.log):
        file = file if file in texts else str(Path(file).resolve())
        if file in texts and "No such file" not in text:
            findings[_finding(kind, text, (file, line))] = None
        elif kind == "error":
            others.append(f"{Path(file).name}: {text}")
    for kind, text in _ASSEMBLER.findall(output.log):
        if kind == "fatal" and "extern" not in text:
            others.append(text)
            continue
        symbol = re.search(r"'(\w+)'", text)
        if symbol:
            place = _place(symbol[1], texts)
        else:
            place = _place(None, texts) if "constant" in text else _NOWHERE
        findings[_finding(kind, text, place)] = None
    errors = [finding for finding in findings if finding.error][:_MOST_FINDINGS]
    warnings = [finding for finding in findings if not finding.error][:_MOST_FINDINGS]
    if output.status and not errors:
        lines = others or output.log.strip().splitlines() or ["it wrote no message"]
        return NvccReport(tuple(warnings), (), f"nvcc did not compile it: {lines[0]}")
    return NvccReport((*errors, *warnings), tuple(_kernels(output, texts)))


def _kernels(output: Compiled, texts: Mapping[str, str]) -> Iterator[CompiledKernel]:
    """Yield the kernels that the assembler compiled."""
    bounds = {symbol: math.prod(int(n or 1) for n in block) for symbol, *block in output.heads}
    for symbol, spilled, registers in _USED.findall(output.log):
        yield CompiledKernel(
            symbol=symbol,
            registers=int(registers),
            threads=bounds.get(symbol, _MOST_THREADS),
            spilled=int(spilled),
            place=_place(symbol, texts),
        )


def _finding(kind: str, text: str, place: Place | tuple[None, None]) -> Finding:
    is_error = kind != "warning"
    file, line = place
    return Finding("does not build" if is_error else WARNING, f"nvcc: {text}", is_error, file, line)


def _place(symbol: str | None, texts: Mapping[str, str]) -> Place | tuple[None, None]:
    """Return where a function first occurs, by its linker's name; without one, a constant."""
    pattern = r"\b(\w+)\s*\(" if symbol else r"\b(__constant__)\b"
    for file, text in texts.items():
        for match in re.finditer(pattern, text):
            if symbol is None or _is_symbol_of(symbol, match[1]):
                return file, text.count("\n", 0, match.start()) + 1
    return _NOWHERE


def _is_symbol_of(symbol: str, name: str) -> bool:
    """Return whether a linker's name is that of a function of the source (Itanium C++ ABI)."""
    if symbol == name or symbol.startswith(f"_Z{len(name)}{name}"):
        return True
    return symbol.startswith("_ZN") and _contains(symbol, name)
