"""What one run of a kernel did, read from the runtime's report."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from . import findings as _findings
from . import operations as _operations
from .findings import Array, Finding

COUNTERS = (
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
    "shared_requests",
    "shared_wavefronts",
    "atomics",
    "barriers",
    "launches",
    "library_bytes",
)
# Of 32-byte sectors: those that each block touched, summed over the blocks; those that each launch
# did. Then y's elements that a kernel wrote, and the operations of cuBLAS's products.
_MORE_COUNTERS = ("block_sectors", "launch_sectors", "fresh_outputs", "library_flops")
_NAMES = (*COUNTERS, *_MORE_COUNTERS)


class Trace:
    """What one run did: its counters, findings, launches and, line by line, its traffic.

    Attributes
    ----------
    counters : dict of `COUNTERS`, ``global_load_bytes``, ``global_store_bytes``,
        ``block_sectors`` (different 32-byte sectors that a block touched, summed over blocks),
        ``launch_sectors`` (that a launch did, over launches), ``workspace`` (bytes), ``seconds``
        (how long the simulation took on this machine, which says nothing about a GPU), and
        ``library_flops``: 2mnk of each of cuBLAS's products.
    launches : list of dict: ``kernel``, ``grid``, ``block``, ``shared_bytes`` of each.
    findings : list of `Finding`: errors first, then warnings.
    lines : list of dict, see `convlab.run.launch.Launch`.
    sampling : dict or None, see `convlab.run.launch.Launch`. In a sampled run ``launch_sectors`` is
        NaN: what blocks have in common cannot be told from some of them.
    accesses : list of dict, see `simulate`'s `record`; ``complete`` is False where its limit ended
        the list.
    progress : of a run that was stopped in a launch: its number, blocks done, blocks, kernel.
    stalled : whether it was stopped since no block came to its end.
    """

    def __init__(
        self, report: str, library: Path, arrays: Mapping[str, Array], seconds: float
    ) -> None:
        rows: dict[str, list[str]] = defaultdict(list)
        reports = []
        for line in report.splitlines():
            key, _, rest = line.partition("\t")
            rows[key].append(rest)
            if key in ("fault", "warning"):
                reports.append((key == "fault", rest.split("\t", 8)))

        def one(key: str, missing: str = "[]") -> str:
            return rows[key][-1] if rows[key] else missing

        self.error = one("error", "") or None
        self.note = one("note", "")
        self.workspace = int(one("workspace", "0"))
        self.complete = not rows["recorded"]
        self.stalled = bool(rows["stalled"])
        self.progress: tuple[int, int, int, str] | None = None
        if rows["progress"]:
            number, ended, blocks, kernel = one("progress").split("\t", 3)
            self.progress = int(number), int(ended), int(blocks), kernel
        self.launches = [_launch(*row.split("\t", 3)) for row in rows["launch"]]
        self._library, self._base = library, int(one("base", "0"), 16)
        self._sites = [row.split("\t") for row in rows["site"]]
        self._accesses = [row.split("\t") for row in rows["access"]]
        self._steps = json.loads(one("steps"))
        self.findings: list[Finding] = []
        if reports:
            tried = {int(row, 16) for row in rows["before_atomic"]}
            counts = json.loads(one("counts"))
            self.findings = _findings.findings(reports, counts, tried, library, self._base, arrays)
        self.counters: dict[str, float] = {}
        self.sampling: dict[str, object] | None = None
        if rows["counters"]:
            self.counters = dict(zip(_NAMES, json.loads(one("counters")), strict=True))
            del self.counters["fresh_outputs"]
            if rows["sample"]:
                self.sampling = _sampling(rows["sample"], self.counters)
            for kind in ("load", "store"):
                sectors = f"global_{kind}_sectors"
                self.counters[f"global_{kind}_bytes"] = 32 * self.counters[sectors]
                if self.sampling:
                    errors = self.sampling["errors"]
                    errors[f"global_{kind}_bytes"] = errors[sectors]
            self.counters |= {"workspace": self.workspace, "seconds": seconds}

    @cached_property
    def lines(self) -> list[dict[str, object]]:
        """Traffic by source line, read when it is first asked for."""
        return _findings.lines(self._sites, self._library, self._base)

    def offsets_of(self, line: int, space: str, kind: str) -> list[int]:
        """The code offsets of the instructions that are one row of `lines`."""
        chosen = [s for s in self._sites if (s[1], s[2]) == (space, kind)]
        found = _findings.places(self._library, self._base, [int(s[0], 16) for s in chosen])
        return [at - self._base for at, place in found.items() if place and place[1] == line]

    @cached_property
    def accesses(self) -> list[dict[str, object]]:
        """The requests of the recorded warp in their order, read when asked for."""
        return _findings.accesses(self._accesses, self._library, self._base)

    @cached_property
    def flops(self) -> float | None:
        """Floating-point operations that ran, see `convlab.run.launch.Launch`; read when asked for."""
        counted = _operations.count(self._library, self._steps) if self._steps else None
        return None if counted is None else counted + self.counters.get("library_flops", 0)

    @cached_property
    def executed(self) -> dict[str, dict[int, int]]:
        """How often threads came to each line that begins a basic block, by the file's name.

        Of several blocks of a line (a loop's first test, its step), the one that ran most often.
        """
        pcs = {self._base + 4 * step + 1: count for step, count in self._steps}
        found: dict[str, dict[int, int]] = {}
        for pc, place in _findings.places(self._library, self._base, list(pcs)).items():
            if place:
                lines = found.setdefault(Path(place[0]).name, {})
                lines[place[1]] = max(lines.get(place[1], 0), pcs[pc])
        return found


def _launch(grid: str, block: str, shared: str, name: str) -> dict[str, object]:
    grid, block = (tuple(map(int, size.split(","))) for size in (grid, block))
    return {"kernel": name, "grid": grid, "block": block, "shared_bytes": int(shared)}


def _sampling(rows: Sequence[str], counters: dict[str, float]) -> dict[str, object]:
    """Blocks, how many of them ran, and each counter's relative standard error, over launches."""
    blocks, sampled, spread = zip(*(row.split("\t") for row in rows), strict=True)
    found = {"blocks": sum(map(int, blocks)), "sampled": sum(map(int, sampled))}
    if found["sampled"] < found["blocks"]:
        counters["launch_sectors"] = math.nan
    sums = map(sum, zip(*map(json.loads, spread), strict=True))
    variances = dict(zip(_NAMES, sums, strict=True))
    return found | {"errors": {
        name: math.sqrt(variances[name]) / value if value else 0.0
        for name, value in counters.items()
        if not math.isnan(value)
    }}  # fmt: skip
