"""How many floating-point operations ran: blocks of machine code, times what stands in them.

The runtime counts how often threads came to each basic block (``-fsanitize-coverage=trace-pc``
calls it there). What a block adds and multiplies objdump's disassembly tells, when somebody asks.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from ..core.machine import toolchain

_HOOK = "__sanitizer_cov_trace_pc"
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)")
_X86 = re.compile(r"v?(add|sub|mul|div|sqrt|fn?m(?:add|sub)\d{3})(ss|sd|ps|pd)$")
_ARM = re.compile(r"(?:fadd|fsub|fmul|fnmul|fdiv|fsqrt|fn?m(?:add|sub)|fml[as])$")
_FUSED = re.compile(r"v?fn?m(?:add|sub)|fml[as]")
_FMA = re.compile(r"<fmaf?(?:@|>)")  # the C library's, for a machine without the instruction
_AWAY = re.compile(r"(?:jmpq?|retq?|ret|b|br|ud2|hlt)$")  # what follows is not reached from here


def operations_of(mnemonic: str, operands: str) -> int:
    """The floating-point operations of one machine instruction of x86-64 or aarch64.

    Additions, subtractions, products, quotients and square roots are one for each element, fused
    multiply-adds two. Comparisons, conversions, minima and changes of sign are none.
    """
    if found := _X86.match(mnemonic):
        wide = 2 if "%ymm" in operands else 1
        elements = {"ss": 1, "sd": 1, "ps": 4 * wide, "pd": 2 * wide}[found[2]]
    elif _ARM.match(mnemonic):
        found = re.search(r"\.(\d+)[hsd]\b", operands)
        elements = int(found[1]) if found else 1
    else:
        return 2 if mnemonic.startswith(("call", "bl")) and _FMA.search(operands) else 0
    return elements * (2 if _FUSED.match(mnemonic) else 1)


def operations_by_block(disassembly: str) -> dict[int, int]:
    """The operations of each basic block in what ``objdump -d`` printed.

    The keys are return addresses of the hook's calls, by which the runtime knows a block too.
    """
    blocks: dict[int, int] = {}
    current = None
    opens = False
    for line in disassembly.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            current = None  # another function
            continue
        if opens:
            current = int(found[1], 16)
            blocks[current] = 0
        opens = _HOOK in found[3]
        if current is not None and not opens:
            blocks[current] += operations_of(found[2], found[3])
        if opens or _AWAY.match(found[2]):
            current = None
    return blocks


@functools.lru_cache(maxsize=64)
def _blocks(library: Path) -> dict[int, int] | None:
    """By a quarter of the address, as the runtime counts; None without binutils."""
    tool = toolchain.find("objdump")
    if tool is None:
        return None
    command = [str(tool), "-d", "--no-show-raw-insn", str(library)]
    done = toolchain.asked(command)
    if done.returncode != 0:
        return None
    return {at // 4: operations for at, operations in operations_by_block(done.stdout).items()}


def count(library: Path, steps: Sequence[tuple[int, int]]) -> int | None:
    """The operations of a run; None without binutils.

    ``steps`` are (a quarter of the offset in the library, how often threads came there) of blocks.
    """
    blocks = _blocks(library)
    return None if blocks is None else sum(n * blocks.get(at, 0) for at, n in steps)
