"""Find inlined calls that never run, from the calls around the lines that the simulator executed.

A template may be inlined once for each value of its arguments, and a switch chooses the one that runs.
All copies have the same source lines, so counts by line cannot tell them apart. The lines of the calls
around them can: nvdisasm and addr2line both know them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from .sass import Chain, Function, agree

# A call never runs if at least this many lines of the called function begin basic blocks elsewhere, and
# none does inside it. With fewer lines, a whole call may be part of a longer basic block.
_LEAST_LINES = 3


def never_run(function: Function, reached: Collection[Chain]) -> frozenset[int]:
    """Return the addresses of the instructions of inlined calls that never run.

    Parameters
    ----------
    function : the compiled function.
    reached : the chains of the basic blocks that the simulator executed (`Counts.reached`).
    """
    files = {file for chain in reached for file, _ in chain}
    # For each inlined call: its instructions, and the lines of the called function that they have.
    addresses: dict[Chain, set[int]] = defaultdict(set)
    lines: dict[Chain, set[tuple[str, int]]] = defaultdict(set)
    calls_of: dict[tuple[str, int], set[Chain]] = defaultdict(set)
    # The calls around each executed line. A chain may end early, if g++ did not inline a function.
    for chain in reached:
        for number, place in enumerate(chain):
            calls_of[place].add(chain[number + 1 :])
    # The executed lines of which the machine code has the copy that ran. nvcc may give several copies the
    # line of one call. Then none has it, and nothing is known about the others.
    with_copy: set[tuple[str, int]] = set()
    for instruction in function.instructions:
        chain = tuple(place for place in instruction.calls if place[0] in files)
        for inside, call in _calls(chain):
            addresses[call].add(instruction.address)
            lines[call].add(inside)
            if any(agree(call, other) for other in calls_of[inside]):
                with_copy.add(inside)
    seen = {call for chain in reached for _, call in _calls(chain)}
    missing: set[int] = set()
    for call, own in lines.items():
        if call in seen:
            continue
        known = own & with_copy
        may_run = any(agree(call, other) for place in own for other in calls_of[place])
        if len(known) >= _LEAST_LINES and not may_run:
            missing |= addresses[call]
    return frozenset(missing)


def _calls(chain: Chain) -> Iterator[tuple[tuple[str, int], Chain]]:
    """Yield each inlined call of a chain, after the line of the called function."""
    for number in range(1, len(chain)):
        yield chain[number - 1], chain[number:]

