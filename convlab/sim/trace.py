"""What one run of a kernel did, read from the runtime's report."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
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
# did. Then y's elements that a kernel wrote, and of cuBLAS's products the operations,
# and the bytes if each matrix moves once.
_MORE_COUNTERS = (
    "block_sectors",
    "launch_sectors",
    "fresh_outputs",
    "library_flops",
    "library_once",
)
_NAMES = (*COUNTERS, *_MORE_COUNTERS)
_OF_A_LINE = ("requests", "units", "ideal_units", "lanes", "bytes")


class Trace:
    """What one run did: its counters, findings, launches and, line by line, its traffic.

    Attributes
    ----------
    counters : dict of `COUNTERS`, ``global_load_bytes``, ``global_store_bytes``,
        ``block_sectors``, ``launch_sectors``, ``workspace`` (bytes), ``seconds`` (how long the
        simulation took on this machine, which says nothing about a GPU), and ``library_flops``:
        2mnk of each of cuBLAS's products. Empty where the run did not end.
    launches : list of dict: ``kernel``, ``grid``, ``block``, ``shared_bytes`` of each.
    findings : list of `Finding`: errors first, then warnings.
    sampling : dict or None: of a sampled run the ``blocks`` of all launches, how many of them were
        ``sampled``, and ``errors``: of each counter the relative standard error
        sqrt((1 - n/N) / n * (s^2 / m^2 + 1 / n)), for n of N blocks with the mean m and the
        variance s^2 between them (W. G. Cochran, Sampling Techniques, 1977, section 2.5); 1 / n
        stands for the blocks unlike all others that a sample can miss, as at a border. The
        operations in `flops` are scaled too; their error is not told. ``launch_sectors`` is NaN
        there: what blocks have in common cannot be told from some of them.
    error, note : what the entry point returned, and why the runtime had refused a call.
    progress : of a run that was stopped in a launch: its number, blocks done, blocks, kernel.
    stalled : whether it was stopped since no block came to its end.
    complete : whether all of `accesses` are there; else their limit ended the list.
    """

    def __init__(
        self, report: str, library: Path, arrays: Mapping[str, Array], seconds: float
    ) -> None:
        self._rows = rows = defaultdict(list)
        reports = []
        for line in report.splitlines():
            key, _, rest = line.partition("\t")
            rows[key].append(rest)
            if key in ("fault", "warning"):
                reports.append((key == "fault", rest.split("\t", 8)))
        self.error = self._last("error") or None
        self.note = self._last("note")
        self.workspace = int(self._last("workspace", "0"))
        self.complete = not rows["recorded"]
        self.stalled = bool(rows["stalled"])
        self.progress: tuple[int, int, int, str] | None = None
        if rows["progress"]:
            *numbers, kernel = self._last("progress").split("\t", 3)
            self.progress = (*map(int, numbers), kernel)
        self.launches = [_launch(*row.split("\t", 3)) for row in rows["launch"]]
        self._library = library
        self._base = int(self._last("base", "0"), 16)
        self._steps = json.loads(self._last("steps", "[]"))
        self.findings: list[Finding] = []
        if reports:
            tried = {int(row, 16) for row in rows["before_atomic"]}
            counts = json.loads(self._last("counts", "[]"))
            self.findings = _findings.findings(reports, counts, tried, library, self._base, arrays)
        self.counters: dict[str, float] = {}
        self.sampling: dict[str, object] | None = None
        if rows["counters"]:
            self._count(seconds)

    def _last(self, key: str, missing: str = "") -> str:
        return self._rows[key][-1] if self._rows[key] else missing

    def _count(self, seconds: float) -> None:
        counters = dict(zip(_NAMES, json.loads(self._last("counters")), strict=True))
        del counters["fresh_outputs"]
        errors = {}
        if self._rows["sample"]:
            self.sampling = self._sampling(counters)
            errors = self.sampling["errors"]
        for kind in ("load", "store"):
            sectors = f"global_{kind}_sectors"
            size = f"global_{kind}_bytes"
            counters[size] = 32 * counters[sectors]
            if errors:
                errors[size] = errors[sectors]
        self.counters = counters | {"workspace": self.workspace, "seconds": seconds}

    def _sampling(self, counters: dict[str, float]) -> dict[str, object]:
        """Blocks, how many of them ran, each counter's relative standard error, over launches."""
        rows = (row.split("\t") for row in self._rows["sample"])
        blocks, sampled, spread = zip(*rows, strict=True)
        found = {"blocks": sum(map(int, blocks)), "sampled": sum(map(int, sampled))}
        if found["sampled"] < found["blocks"]:
            counters["launch_sectors"] = math.nan
        sums = map(sum, zip(*map(json.loads, spread), strict=True))
        variances = dict(zip(_NAMES, sums, strict=True))
        return found | {
            "errors": {
                name: math.sqrt(variances[name]) / value if value else 0.0
                for name, value in counters.items()
                if not math.isnan(value)
            }
        }

    def _places(self, addresses: list[str]) -> dict[str, _findings.Place]:
        """File and line of code addresses, each as the report has it; ("", 0) if not known."""
        found = _findings.places(self._library, self._base, [int(a, 16) for a in addresses])
        return {a: found.get(int(a, 16)) or ("", 0) for a in addresses}

    @cached_property
    def lines(self) -> list[dict[str, object]]:
        """Traffic by source line, space and kind, see `convlab.core.kernel.launch.SimLaunch.lines`."""
        sites = [row.split("\t") for row in self._rows["site"]]
        places = self._places([pc for pc, *_ in sites])
        rows: dict[tuple, dict[str, object]] = {}
        for pc, space, kind, array, *numbers in sites:
            requests, units, ideal, lanes, size = map(int, numbers)
            file, line = places[pc]
            new = {"file": file, "line": line, "space": space, "kind": kind, "array": array}
            row = rows.setdefault((file, line, space, kind), new | dict.fromkeys(_OF_A_LINE, 0))
            if row["array"] != array:
                row["array"] = "several"
            more = (requests, units, ideal, lanes, lanes * size)
            row |= {name: row[name] + n for name, n in zip(_OF_A_LINE, more, strict=True)}
        return [rows[key] for key in sorted(rows)]

    @cached_property
    def stored(self) -> list[tuple[int, str, int]]:
        """Of a small y the 4-byte words from which on another line stored last: file and line."""
        rows = [row.split("\t") for row in self._rows["stored"]]
        places = self._places([pc for _, pc in rows])
        return [(int(word), *places[pc]) for word, pc in rows]

    @cached_property
    def reaches(self) -> list[dict[str, object]]:
        """What each block of a sampled run touched of each array: nothing where all blocks ran.

        Each has ``launch`` (from 0), ``block`` (its number, x fastest), ``array``, its first byte
        there ("low"), the one past its last ("high"), and how many ``sectors``.
        """
        rows = (row.split("\t") for row in self._rows["reach"])
        return [
            {
                "launch": int(launch) - 1,
                "block": int(block),
                "array": array,
                "low": int(low),
                "high": int(high),
                "sectors": int(sectors),
            }
            for launch, block, array, low, high, sectors in rows
        ]

    @cached_property
    def accesses(self) -> list[dict[str, object]]:
        """The recorded requests of a warp in their order: where, of what, each lane's byte in it.

        Each has ``launch`` (from 0), ``file``, ``line``, ``space``, ``kind``, ``array``,
        ``element`` (bytes of an element; None: unknown), ``bytes`` (of each lane), and ``lanes``:
        a dict from the lane to its byte.
        """
        rows = [row.split("\t") for row in self._rows["access"]]
        places = self._places([row[1] for row in rows])
        found = []
        for launch, pc, space, kind, array, element, size, mask, offsets in rows:
            file, line = places[pc]
            lanes = [lane for lane in range(32) if int(mask) >> lane & 1]
            found.append(
                {
                    "launch": int(launch) - 1,
                    "file": file,
                    "line": line,
                    "space": space,
                    "kind": kind,
                    "array": array,
                    "element": int(element) or None,
                    "bytes": int(size),
                    "lanes": dict(zip(lanes, map(int, offsets.split()), strict=True)),
                }
            )
        return found

    @cached_property
    def flops(self) -> float | None:
        """Floating-point operations that ran, see `convlab.core.kernel.launch.SimLaunch.flops`."""
        counted = _operations.count(self._library, self._steps) if self._steps else None
        return None if counted is None else counted + self.counters.get("library_flops", 0)

    @cached_property
    def executed(self) -> dict[str, dict[int, int]]:
        """How often threads came to each line that begins a basic block, by the file's name.

        Of several blocks of a line (a loop's first test, its step), the one that ran most often.
        """
        pcs = {self._base + 4 * step + 1: count for step, count in self._steps}
        found: dict[str, dict[int, int]] = defaultdict(dict)
        for pc, place in _findings.places(self._library, self._base, list(pcs)).items():
            if place:
                lines = found[Path(place[0]).name]
                lines[place[1]] = max(lines.get(place[1], 0), pcs[pc])
        return found


def _launch(grid: str, block: str, shared: str, name: str) -> dict[str, object]:
    grid, block = (tuple(map(int, size.split(","))) for size in (grid, block))
    return {"kernel": name, "grid": grid, "block": block, "shared_bytes": int(shared)}
