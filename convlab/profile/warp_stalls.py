"""Compute the stall before each instruction of a warp, with a scoreboard of its registers.

Instructions issue in order, and each waits for the registers that it reads. The latencies are
rounded results of microbenchmarks on GPUs from Volta to Hopper (Jia et al., "Dissecting the NVIDIA
Volta GPU Architecture via Microbenchmarking", 2018; Luo et al., "Benchmarking and Dissecting the
Nvidia Hopper GPU Architecture via Microbenchmarking", 2024).
"""

import math
import re
from collections.abc import Mapping, Sequence

from .sass import Function, Instruction

# Cycles from an instruction's issue until its result can be read. The first pattern that matches the
# opcode applies. Loads of global memory are missing, because their latency depends on the caches.
_LATENCIES: tuple[tuple[str, int], ...] = (
    (r"LDS|LDSM|SHFL|ATOMS", 30),
    (r"LDL", 40),
    (r"LDC", 30),
    (r"S2R|S2UR|CS2R|R2UR|VOTE", 20),
    (r"MUFU|I2F|F2I|F2F|I2I|POPC|FLO", 24),
    (r"HGMMA", 64),
    (r"HMMA|IMMA|DMMA", 33),
    (r"IMAD|UIMAD", 5),
    # Any other instruction of the uniform datapath.
    (r"U[A-Z]", 8),
    (r"", 4),
)
# The cycles of a branch, taken or not, and of a barrier, in addition to their issue.
BRANCH = 12
BARRIER = 20
# The cycles from a comparison to a branch or an access that its predicate guards. nvcc writes them into
# the machine code; for other instructions it writes 4.
GUARD = 13
_GUARDED_LATE = re.compile(r"LD|ST|BRA|EXIT|BAR|SYNCS|UTMA|S2|MUFU|ATOM|RED|SHFL|BREAK|CALL")
# Most iterations skip an instruction that runs less often than this share of its loop's most
# frequent one.
_RARE_SHARE = 0.1

_REGISTER = re.compile(r"\b(U?[RP])(\d+)\b(\.64)?")
_NO_RESULT = ("RED", "BAR", "BRA", "EXIT", "BSSY", "BSYNC")
# A LOP3 may also write a predicate, which then is its first operand.
_PREDICATE_FIRST = re.compile(r"U?LOP3\S* U?PT?\d?$")


def latency(opcode: str, load_cycles: float) -> float:
    """Return the cycles from an instruction's issue to its result.

    `load_cycles` is the latency of a load of global memory.
    """
    if re.match(r"LDG|LD\b|ATOM\b|ATOMG", opcode):
        return load_cycles
    return next(cycles for pattern, cycles in _LATENCIES if re.match(pattern, opcode))


def stalls(
    function: Function,
    counts: Mapping[int, float],
    load_cycles: float,
    mma_flops: float = math.inf,
) -> dict[int, float]:
    """Return the stall cycles before each executed instruction of a warp, by address.

    `counts` says how often each instruction runs, by address. `mma_flops` are the operations of
    mma.sync in TF32 per cycle, on the tensor core of one scheduler.
    """
    waits: dict[int, float] = {}
    for loop, own in function.by_loop.items():
        running = [i for i in own if counts.get(i.address)]
        most = max((counts[i.address] for i in running), default=0)
        # In the second iteration of a loop, instructions wait for results of the first.
        rounds = 1 if loop is None else 2
        waits |= _last_round(running, load_cycles, mma_flops, rounds)
        for instruction in running:
            # A branch nearly always skips this instruction, so it waits for one load at most.
            at = instruction.address
            if counts[at] < _RARE_SHARE * most:
                waits[at] = min(waits[at], load_cycles)
    return waits


def _last_round(
    body: Sequence[Instruction], load_cycles: float, mma_flops: float, rounds: int
) -> dict[int, float]:
    """Return the stalls in the last of some iterations of a loop."""
    decoded = [
        (i, registers(i), latency(i.opcode, load_cycles), pipe_cycles(i, mma_flops)) for i in body
    ]
    ready_at: dict[str, float] = {}
    # When a predicate can guard a branch or an access, and when a pipe accepts an instruction.
    guards_at: dict[str, float] = {}
    free_at: dict[str, float] = {}
    now = 0.0
    waits = {}
    for instruction, (reads, writes), cycles, (pipe, busy) in rounds * decoded:
        issue = max([now, *(ready_at[name] for name in reads if name in ready_at)])
        issue = max(issue, free_at.get(pipe, 0.0))
        if instruction.guard and _GUARDED_LATE.match(instruction.opcode):
            issue = max(issue, guards_at.get(instruction.guard.lstrip("@!"), 0.0))
        free_at[pipe] = issue + busy
        extra = {"branch": BRANCH, "barrier": BARRIER}.get(instruction.kind, 0)
        waits[instruction.address] = issue - now + extra
        now = issue + 1 + extra
        ready_at |= dict.fromkeys(writes, issue + cycles)
        guards_at |= dict.fromkeys(writes, issue + GUARD)
    return waits


def pipe_cycles(instruction: Instruction, mma_flops: float) -> tuple[str, float]:
    """Return the pipe of an instruction, and for how many cycles it accepts no other.

    The pipes of a scheduler for integers and comparisons and for integer multiplications have half
    a warp's lanes, below compute capability 10, and that for conversions and special functions an
    eighth.
    """
    if instruction.kind == "HMMA":
        return "mma", _mma_cycles(instruction, mma_flops)
    if instruction.is_integer:
        return "integer", 2.0
    if instruction.opcode.startswith("IMAD"):
        return "multiply", 2.0
    if re.match(r"MUFU|I2F|F2I|F2F|I2I|POPC|FLO", instruction.opcode):
        return "special", 8.0
    return "", 0.0


def _mma_cycles(instruction: Instruction, mma_flops: float) -> float:
    """Return for how many cycles an mma.sync keeps the tensor core of its scheduler busy."""
    cycles = instruction.tensor_flops / mma_flops
    return cycles if "TF32" in instruction.opcode else cycles / 2


def registers(instruction: Instruction) -> tuple[set[str], set[str]]:
    """Return the registers and predicates that an instruction reads, and those that it writes.

    Results are the first operands. The opcode and the width give the number of a result's registers.
    The instruction reads its guard.
    """
    operands = [operand.strip() for operand in instruction.operands.split(",")]
    is_store = instruction.opcode.startswith("ST")
    results = _results(instruction, operands)
    result_registers = _result_registers(instruction)
    reads = set(re.findall(r"U?P\d", instruction.guard))
    writes = set()
    for position, operand in enumerate(operands):
        for kind, number, pair in _REGISTER.findall(operand):
            if position < results and "[" not in operand:
                names = writes
                length = result_registers if kind.endswith("R") else 1
            elif is_store and position == len(operands) - 1:
                names = reads
                length = max(1, instruction.width // 32)
            else:
                names = reads
                length = 2 if pair else 1
            names.update(f"{kind}{int(number) + k}" for k in range(length))
    return reads, writes


def _results(instruction: Instruction, operands: Sequence[str]) -> int:
    """Return how many of the first operands are results."""
    opcode = instruction.opcode
    if not operands[0] or opcode.startswith("ST") or opcode.startswith(_NO_RESULT):
        return 0
    if len(operands) > 1 and re.fullmatch(r"U?P\d", operands[1]):
        return 2
    if re.match(r"U?(ISETP|FSETP|PLOP3)", opcode):
        return 2
    return 2 if _PREDICATE_FIRST.match(f"{opcode} {operands[0]}") else 1


def _result_registers(instruction: Instruction) -> int:
    """Return the number of 32-bit registers of a result."""
    opcode = instruction.opcode
    if instruction.access in (("shared", "load"), ("global", "load")) or "LDC" in opcode:
        return max(1, instruction.width // 32)
    if ".WIDE" in opcode or ".64" in opcode:
        return 2
    return 4 if opcode.startswith("HMMA") else 1
