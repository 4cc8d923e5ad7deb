"""Counts floating-point operations: how often each basic block ran, times what it computes.

The runtime counts how often threads came to each basic block (``-fsanitize-coverage=trace-pc``
calls it there). objdump's disassembly says what a block adds and multiplies; it is read on request
only.
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
# The C library's function, for a machine without the instruction.
_FMA = re.compile(r"<fmaf?(?:@|>)")
# The next instruction is not reached from one of these.
_AWAY = re.compile(r"(?:jmpq?|retq?|ret|b|br|ud2|hlt)$")


def operations_of(mnemonic: str, operands: str) -> int:
    """Return the floating-point operations of one machine instruction of x86-64 or aarch64.

    An addition, subtraction, product, quotient or square root is one for each element, a fused
    multiply-add two. Comparisons, conversions, minima and changes of sign are none.
    """
    if instruction := _X86.match(mnemonic):
        wide = 2 if "%ymm" in operands else 1
        elements = {"ss": 1, "sd": 1, "ps": 4 * wide, "pd": 2 * wide}[instruction[2]]
    elif _ARM.match(mnemonic):
        lanes = re.search(r"\.(\d+)[hsd]\b", operands)
        elements = int(lanes[1]) if lanes else 1
    else:
        is_call = mnemonic.startswith(("call", "bl"))
        return 2 if is_call and _FMA.search(operands) else 0
    return elements * (2 if _FUSED.match(mnemonic) else 1)


def operations_by_block(disassembly: str) -> dict[int, int]:
    """Return the operations of each basic block in the output of ``objdump -d``.

    The keys are the return addresses of the hook's calls, as in the runtime.
    """
    blocks: dict[int, int] = {}
    block = None
    calls_hook = False
    for line in disassembly.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            # Another function begins.
            block = None
            continue
        address, mnemonic, operands = instruction.groups()
        if calls_hook:
            block = int(address, 16)
            blocks[block] = 0
        calls_hook = _HOOK in operands
        if block is not None and not calls_hook:
            blocks[block] += operations_of(mnemonic, operands)
        if calls_hook or _AWAY.match(mnemonic):
            block = None
    return blocks


@functools.lru_cache(maxsize=64)
def _operations_by_step(library: Path) -> dict[int, int] | None:
    """Return each block's operations, by address / 4 as in the runtime; None without binutils."""
    tool = toolchain.find("objdump")
    if tool is None:
        return None
    command = [str(tool), "-d", "--no-show-raw-insn", str(library)]
    answer = toolchain.asked(command)
    if answer.returncode != 0:
        return None
    blocks = operations_by_block(answer.stdout)
    return {address // 4: operations for address, operations in blocks.items()}


def count_operations(library: Path, steps: Sequence[tuple[int, int]]) -> int | None:
    """Return the operations of a run; None without binutils.

    `steps` are blocks: (offset in the library / 4, how often threads came there).
    """
    operations = _operations_by_step(library)
    if operations is None:
        return None
    return sum(count * operations.get(step, 0) for step, count in steps)
