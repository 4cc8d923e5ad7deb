"""Compile a simulated kernel with nvcc too, to report errors that g++ does not find.

g++ accepts calls of host functions in a kernel, has no limit for constant memory, and does not count
registers. So nvcc compiles the device code for the architecture in the header, or for that of the
simulated GPU. This needs no GPU.
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

# The kind of finding of an nvcc warning.
WARNING = "compiler warning"
# The registers of an SM; each warp gets a multiple of the second number.
_SM_REGISTERS = 65_536
_REGISTER_STEP = 256
_NOWHERE = (None, None)
# The largest block of a kernel without __launch_bounds__.
_MOST_THREADS = 1024
# At most this many errors are reported, and at most this many warnings.
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
    """Describe a compiled ``__global__`` function.

    Attributes
    ----------
    symbol : its mangled name.
    registers : registers per thread.
    threads : the largest block that __launch_bounds__ allow.
    spilled : bytes that a thread spills.
    place : its file and line.
    """

    symbol: str
    registers: int
    threads: int
    spilled: int
    place: Place | tuple[None, None]


class NvccReport(NamedTuple):
    """Hold nvcc's errors and warnings, the compiled kernels, and a note if nvcc could not compile."""

    findings: tuple[Finding, ...]
    entries: tuple[CompiledKernel, ...] = ()
    note: str = ""

    def refused_launches(self, launched: Mapping[str, int]) -> Iterator[Finding]:
        """Yield an error for each launch that a GPU would refuse.

        `launched` has the largest block of each kernel, by the name in the source. A name may mean
        several kernels: instances of a template, or any kernel if it is a function pointer. Then
        all of them must be refused.
        """
        for name, threads in launched.items():
            refusals = [_refusal(kernel, threads) for kernel in self._kernels_named(name)]
            if refusals and all(refusals):
                yield refusals[0]

    def _kernels_named(self, name: str) -> list[CompiledKernel]:
        """Return the kernels that a name in the source may mean."""
        plain, _, arguments = name.partition("<")
        plain = plain.strip().rpartition(":")[2]
        kernels = [k for k in self.entries if _contains(k.symbol, plain)] or [*self.entries]
        for number in re.findall(r"(?<!\w)\d+(?!\w)", arguments):
            kernels = [k for k in kernels if re.search(rf"L[a-z]{number}E", k.symbol)] or kernels
        return kernels


def _contains(symbol: str, name: str) -> bool:
    """Return whether a mangled name contains a name of the source (Itanium C++ ABI)."""
    return re.search(rf"(?<!\d){len(name)}{name}", symbol) is not None


def _refusal(kernel: CompiledKernel, threads: int) -> Finding | None:
    """Return the reason why a GPU would refuse a block of this size; None if it would not."""
    warps = -(-threads // 32)
    warp_registers = -(-kernel.registers * 32 // _REGISTER_STEP) * _REGISTER_STEP
    if threads > kernel.threads:
        allowed = kernel.threads
        text = f"the launch has {threads} threads per block, but __launch_bounds__ allow {allowed}"
    elif warps * warp_registers > _SM_REGISTERS:
        text = (
            f"the launch has {threads} threads per block with {kernel.registers} registers each: "
            f"{warps * warp_registers:,} registers, but an SM has {_SM_REGISTERS:,}"
        )
    else:
        return None
    file, line = kernel.place
    return Finding("launch configuration", f"nvcc: {text}", file=file, line=line)


def nvcc_report(kernel: Runnable) -> NvccReport | None:
    """Compile a kernel's device code with nvcc and return its report; None without nvcc.

    A report in the cache is used again. The architecture is the one in the header, or else that of
    the simulated GPU.
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
    """Return the report from nvcc's output; an error in another file becomes a note."""
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
        lines = others or output.log.strip().splitlines() or ["nvcc printed no message"]
        return NvccReport(tuple(warnings), (), f"nvcc could not compile the kernel: {lines[0]}")
    return NvccReport((*errors, *warnings), tuple(_kernels(output, texts)))


def _kernels(output: Compiled, texts: Mapping[str, str]) -> Iterator[CompiledKernel]:
    """Yield the kernels that ptxas compiled."""
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
    """Return the first place of a function with this mangled name; without one, of a constant."""
    pattern = r"\b(\w+)\s*\(" if symbol else r"\b(__constant__)\b"
    for file, text in texts.items():
        for match in re.finditer(pattern, text):
            if symbol is None or _is_symbol_of(symbol, match[1]):
                return file, text.count("\n", 0, match.start()) + 1
    return _NOWHERE


def _is_symbol_of(symbol: str, name: str) -> bool:
    """Return whether a mangled name is that of a function of the source (Itanium C++ ABI)."""
    if symbol == name or symbol.startswith(f"_Z{len(name)}{name}"):
        return True
    return symbol.startswith("_ZN") and _contains(symbol, name)
