"""Read a kernel's machine code: resources from ptxas, instructions from nvdisasm.

This needs nvcc and nvdisasm, but no GPU.
"""

import functools
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.builds import cache, nvcc
from ..core.builds.cache import BuildOutput, Key
from ..core.builds.compile_error import compile_error
from ..core.errors import BuildError
from ..core.kernel.kernel import Kernel
from ..core.machine import toolchain
from ..core.machine.device import Gpu
from .sass import Function, Instruction

_INSTRUCTION = re.compile(
    r"\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:\{\s*)?(?P<guard>@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)"
    r"\s*(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"(\.L_x?_?\w+):\s*$")
_SOURCE_LINE = re.compile(r'//## File "([^"]+)", line (\d+)(.*)')
_INLINED = re.compile(r'inlined at "([^"]+)", line (\d+)')
_JUMP_LABEL = re.compile(r"\((\.L\w+)\)")
# A function's resources in the output of ``ptxas -v``: registers, static shared memory, stack,
# spill stores, spill loads.
_RESOURCES = (
    r"Used (\d+) registers",
    r"(\d+) bytes smem",
    r"(\d+) bytes stack frame",
    r"(\d+) bytes spill stores",
    r"(\d+) bytes spill loads",
)

# A file and a line number, as nvdisasm prints them.
SourceLine = tuple[str, str]


def compiled(kernel: Kernel, gpu: Gpu) -> tuple[Function, ...]:
    """Return the machine code that nvcc generates from a kernel for a GPU.

    Raises
    ------
    BuildError
        The kernel does not compile, or nvcc or nvdisasm is missing.
    """
    source = kernel.file
    output = nvcc.compiled(source, gpu.arch, kernel.defines)
    if output.status:
        raise compile_error(source, output.log)
    return functions(output.cubin, output.log, source.for_nvcc.label)


# All problems of a kernel share one cubin.
@functools.lru_cache(maxsize=64)
def functions(cubin: bytes, log: str, label: str) -> tuple[Function, ...]:
    """Return the functions of a cubin, with their resources.

    nvdisasm's output is cached on disk.

    Parameters
    ----------
    cubin : the machine code.
    log : the output of ``ptxas -v``, which lists the resources.
    label : the name of the source; see `parse`.

    Raises
    ------
    BuildError
        nvdisasm is missing, or cannot read the cubin.
    """
    nvdisasm = toolchain.find("nvdisasm")
    if nvdisasm is None:
        raise BuildError(
            "nvdisasm was not found: install it with `pip install -r requirements.txt`, or with a "
            "CUDA toolkit"
        )

    def disassemble(folder: Path) -> BuildOutput:
        (folder / "kernel.cubin").write_bytes(cubin)
        command = [str(nvdisasm), "-gi", "kernel.cubin"]
        process = toolchain.asked(command, cwd=folder)
        if process.returncode:
            raise BuildError(f"nvdisasm cannot read a cubin: {process.stderr.strip()[:200]}")
        (folder / "kernel.sass").write_text(process.stdout)
        return BuildOutput(folder / "kernel.sass")

    digest = hashlib.sha256(cubin + toolchain.identity(nvdisasm).encode()).hexdigest()
    key = Key(f"{Path(label).stem[:80]}-sass-{digest[:16]}")
    listing = cache.build(lambda: key, disassemble).library
    return with_resources(log, parse(listing.read_text(), label))


def with_resources(log: str, code: Mapping[str, list[Instruction]]) -> tuple[Function, ...]:
    """Return the functions in the output of ``ptxas -v``, with their resources and instructions."""
    parts = []
    for entry in log.split("Compiling entry function '")[1:]:
        symbol = entry.partition("'")[0]
        numbers = []
        for pattern in _RESOURCES:
            matches = re.findall(pattern, entry)
            numbers.append(int(matches[-1]) if matches else 0)
        registers, static_shared, stack, spill_stores, spill_loads = numbers
        function = Function(
            symbol,
            registers=registers,
            static_shared=static_shared,
            stack=stack,
            spill_bytes=spill_stores + spill_loads,
            instructions=code.get(symbol, []),
        )
        parts.append(function)
    return tuple(parts)


def parse(text: str, label: str = "") -> dict[str, list[Instruction]]:
    """Return the instructions of each function in nvdisasm's output, by symbol.

    With ``nvdisasm -gi`` each instruction has a line in the source, the file with a name that ends
    with `label`. For a function of another file that was inlined, it is the line of the call. If a
    header defines the whole function, the lines are those of the header.
    """
    code = {}
    for section in re.split(r"\n\s*\.section\s+", text)[1:]:
        if name := re.match(r"\.text\.([^\s,]+)", section):
            code[name[1]] = _instructions(section, label)
    return code


def _instructions(section: str, label: str) -> list[Instruction]:
    """Return the instructions of one function's section."""
    rows, labels = _rows(section)
    files = [file for _, source_lines in rows for file, _ in reversed(source_lines)]
    own_file = next((file for file in files if file.endswith(label)), (files or [""])[0])
    code = []
    for row, source_lines in rows:
        line = next((int(number) for file, number in source_lines if file == own_file), None)
        others = [(file, number) for file, number in source_lines if file != own_file]
        jump = _JUMP_LABEL.search(row["rest"])
        is_branch = row["op"].partition(".")[0] in ("BRA", "JMP")
        target = labels.get(jump[1]) if jump and is_branch else None
        instruction = Instruction(
            address=int(row["at"], 16),
            opcode=row["op"],
            operands=row["rest"].strip(),
            line=line,
            target=target,
            guard=(row["guard"] or "").strip(),
            file=Path(own_file).name,
            inlined=_places(others),
            # A call is listed twice: as the place of a marker, and as a marker of its own.
            calls=tuple(place for place, _ in itertools.groupby(_places(source_lines))),
        )
        code.append(instruction)
    return code


def _places(source_lines: Sequence[SourceLine]) -> tuple[tuple[str, int], ...]:
    """Return source lines with the name of the file and a number."""
    return tuple((Path(file).name, int(number)) for file, number in source_lines)


def _rows(section: str) -> tuple[list[tuple[re.Match, list[SourceLine]]], dict[str, int]]:
    """Return a section's instructions with their source lines, and the labels' addresses."""
    rows: list[tuple[re.Match, list[SourceLine]]] = []
    labels: dict[str, int] = {}
    source_lines: list[SourceLine] = []
    # Successive markers belong to one instruction, the innermost call first.
    follows_marker = False
    pending_labels = []
    for row in section.splitlines():
        if match := _SOURCE_LINE.search(row):
            outer = source_lines if follows_marker else []
            source_lines = [*outer, (match[1], match[2]), *_INLINED.findall(match[3])]
            follows_marker = True
        elif match := _LABEL.match(row):
            pending_labels.append(match[1])
        elif match := _INSTRUCTION.match(row):
            labels |= dict.fromkeys(pending_labels, int(match["at"], 16))
            pending_labels = []
            follows_marker = False
            rows.append((match, source_lines))
    return rows, labels
