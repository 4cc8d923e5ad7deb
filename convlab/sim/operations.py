"""Count floating-point operations: the executions of each basic block, times its operations.

The runtime counts how often threads enter each basic block (``-fsanitize-coverage=trace-pc``).
objdump's disassembly gives the operations of a block; it is read only on request.
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
# A call of the C library's fma, on a machine without that instruction.
_FMA = re.compile(r"<fmaf?(?:@|>)")
# After one of these instructions, the next one does not run.
_AWAY = re.compile(r"(?:jmpq?|retq?|ret|b|br|ud2|hlt)$")


def operations_of(mnemonic: str, operands: str) -> int:
    """Return the floating-point operations of one machine instruction of x86-64 or aarch64.

    For each element, an addition, subtraction, product, quotient or square root counts as one, and
    a fused multiply-add as two. Comparisons, conversions, minima and changes of sign do not count.
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

    The key of a block is the return address of its call of the hook, as in the runtime.
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
    """Return each block's operations by address / 4, as in the runtime; None without objdump."""
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
    """Return the floating-point operations of a run; None without objdump.

    `steps` has a pair for each basic block: its offset in the library / 4, and how often threads
    entered it.
    """
    operations = _operations_by_step(library)
    if operations is None:
        return None
    return sum(count * operations.get(step, 0) for step, count in steps)
