"""How often a kernel's machine instructions run, told without a GPU.

The simulator tells how many requests each source line made, nvdisasm which loads and stores came
of that line. The copies that unrolling made are taken to run equally often, and the other
instructions of a loop as often as its loads and stores.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .sass import Function, Instruction, Loop, demangled


def executions(function: Function, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how often the warps of a launch run instructions: "all", "FFMA", and tensor "flops".

    Parameters
    ----------
    function : with instructions and their source lines.
    lines : what the simulator counted on this function's lines.
    """
    rate = _rates(function, lines)
    levels: dict[Loop | None, list[Instruction]] = {level: [] for level in (None, *function.loops)}
    for i in function.instructions:
        levels[function.loop_of(i)].append(i)
    times: dict[Loop | None, float] = {}
    for level in sorted(levels, key=lambda at: at.end - at.start if at else math.inf):
        known = [rate[i.address] for i in levels[level] if i.address in rate]
        inside = [times[a] for a in function.loops if a in times and _within(a, level)]
        times[level] = statistics.median(known) if known else min(inside, default=0.0)
    sums = {"all": 0.0, "FFMA": 0.0, "flops": 0.0}
    for level, body in levels.items():
        sums["all"] += times[level] * sum(i.kind != "other" or i.opcode != "NOP" for i in body)
        sums["FFMA"] += times[level] * sum(i.kind in ("FFMA", "FADD FMUL") for i in body)
        sums["flops"] += times[level] * sum(i.tensor_flops for i in body)
    return sums


def _within(inner: Loop, outer: Loop | None) -> bool:
    return outer is None or inner != outer and outer.start <= inner.start <= inner.end <= outer.end


def _rates(function: Function, lines: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """How often each load and store runs, by address: its line's bytes over its copies' widths.

    Widths, because nvcc may make one 128-bit load of four of the source's.
    """
    rates = {}
    for row in lines:
        if row["kind"] == "atomic" or not row["lanes"]:
            continue
        access = (row["space"], row["kind"])
        made = [i for i in function.instructions if i.access == access and i.line is not None]
        # compilers put a statement of several lines on different ones of them
        near = min((abs(i.line - row["line"]) for i in made), default=99)
        copies = [i for i in made if abs(i.line - row["line"]) == near <= 3]
        moved = row["requests"] * 8 * row["bytes"] / row["lanes"]  # bits, of whole warps
        for i in copies:
            rates[i.address] = moved / sum(copy.width for copy in copies)
    return rates


def by_function(
    functions: Sequence[Function],
    lines: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Function, list[Mapping[str, Any]], list[Mapping[str, Any]]]]:
    """Yield (function, its lines, its launches) for each function that was launched.

    Where no launches are known: for each name, the instance that `find_function` takes.
    """
    chosen: dict[str, Function] = {}
    if launches:
        for entry in launches:
            match = find_function(functions, entry["kernel"])
            if match is not None:
                chosen.setdefault(match.symbol, match)
    else:
        for name in dict.fromkeys(f.name.partition("<")[0] for f in functions):
            chosen[name] = find_function(functions, name)
    for function in chosen.values():
        own = {i.line for i in function.instructions if i.access}
        owned = [row for row in lines if any(abs(row["line"] - line) <= 1 for line in own if line)]
        mine = [e for e in launches if find_function(functions, e["kernel"]) is function]
        yield function, owned, mine


def find_function(functions: Sequence[Function], name: str) -> Function | None:
    """Return the function that a launch means by a name, mangled or not; None if there is none.

    Of several instances of a template that the name does not tell apart: the one with the most
    multiply-adds in its hot loop.
    """
    wanted = demangled(name)
    exact = [f for f in functions if name == f.symbol or wanted == f.name]
    base = wanted.partition("<")[0].rpartition("::")[2]
    alike = [f for f in functions if f.name.partition("<")[0].rpartition("::")[2] == base]
    return max(exact or alike, key=lambda f: f.mix(f.hot_loop).get("FFMA", 0), default=None)
