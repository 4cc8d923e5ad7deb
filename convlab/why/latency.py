"""How long a warp that is alone waits for its own results: a scoreboard over the SASS.

A warp issues in order, one instruction a cycle at most, and an instruction waits for the registers
and predicates that it reads. Latencies are those that microbenchmarks found on Volta to Hopper
(Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018; Luo et
al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024),
rounded. Who calls gives that of a load from global memory: it depends on what the caches hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .sass import Function, Instruction

# Cycles from issue to a result that can be read, the first pattern that fits an opcode.
_LATENCIES: tuple[tuple[str, int], ...] = (
    (r"LDS|LDSM|SHFL|ATOMS", 30),
    (r"LDL", 40),
    (r"LDC", 30),
    (r"S2R|S2UR|CS2R|R2UR|VOTE", 20),
    (r"MUFU|I2F|F2I|F2F|I2I|POPC|FLO", 24),
    (r"HGMMA", 64),
    (r"HMMA|IMMA|DMMA", 33),
    (r"IMAD|UIMAD", 5),
    (r"U[A-Z]", 8),  # the uniform datapath
    (r"", 4),
)  # fmt: skip
BRANCH = 12  # cycles that a taken or a not taken branch costs the warp beyond its issue
BARRIER = 20
_REGISTER = re.compile(r"\b(U?[RP])(\d+)\b(\.64)?")
_NO_RESULT = ("RED", "BAR", "BRA", "EXIT", "BSSY", "BSYNC")
_CARRIES = re.compile(r"U?LOP3\S* U?PT?\d?$")  # a predicate stands before the result


def latency(opcode: str, of_load: float) -> float:
    """Return the cycles from an instruction's issue to its result."""
    if re.match(r"LDG|LD\b|ATOM\b|ATOMG", opcode):
        return of_load
    return next(cycles for pattern, cycles in _LATENCIES if re.match(pattern, opcode))


def stalls(function: Function, times: Mapping[int, float], of_load: float) -> dict[int, float]:
    """Return the cycles that a warp waits before each instruction that ever runs, by address."""
    found: dict[int, float] = {}
    for loop, own in function.own.items():
        body = [i for i in own if times.get(i.address)]
        most = max((times[i.address] for i in body), default=0)
        found |= _pass(body, of_load, 1 if loop is None else 2)
        for i in body:
            # what a branch nearly always leaves out must not lend its latency to the rest
            if times[i.address] < 0.1 * most:
                found[i.address] = min(found[i.address], of_load)
    return found


def _pass(body: Sequence[Instruction], of_load: float, rounds: int) -> dict[int, float]:
    """Waits in the last of some rounds of a loop."""
    ready: dict[str, float] = {}
    now, waited = 0.0, {}
    for i in rounds * list(body):
        reads, writes = registers(i)
        at = max([now, *(ready[name] for name in reads if name in ready)])
        extra = {"branch": BRANCH, "barrier": BARRIER}.get(i.kind, 0)
        waited[i.address] = at - now + extra
        now = at + 1 + extra
        ready |= dict.fromkeys(writes, at + latency(i.opcode, of_load))
    return waited


def registers(i: Instruction) -> tuple[set[str], set[str]]:
    """Return the registers and predicates that an instruction reads, and those that it writes.

    Results stand first; how many follow from its opcode and width. Guards count as read.
    """
    operands = [part.strip() for part in i.operands.split(",")]
    stores = i.opcode.startswith("ST")
    results = 0
    if operands[0] and not stores and not i.opcode.startswith(_NO_RESULT):
        second = len(operands) > 1 and re.fullmatch(r"U?P\d", operands[1])
        both = second or re.match(r"U?(ISETP|FSETP|PLOP3)", i.opcode)
        results = 2 if both or _CARRIES.match(f"{i.opcode} {operands[0]}") else 1
    wide = 1
    if i.access in (("shared", "load"), ("global", "load")) or "LDC" in i.opcode:
        wide = max(1, i.width // 32)
    elif ".WIDE" in i.opcode or ".64" in i.opcode:
        wide = 2
    elif i.opcode.startswith("HMMA"):
        wide = 4
    reads, writes = set(re.findall(r"U?P\d", i.guard)), set()
    for n, operand in enumerate(operands):
        for kind, number, pair in _REGISTER.findall(operand):
            if n < results and "[" not in operand:
                side, span = writes, wide if kind.endswith("R") else 1
            elif stores and n == len(operands) - 1:
                side, span = reads, max(1, i.width // 32)
            else:
                side, span = reads, 2 if pair else 1
            side.update(f"{kind}{int(number) + k}" for k in range(span))
    return reads, writes
