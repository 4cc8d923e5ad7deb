"""The results of one simulated run, read from the runtime's report."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from ..core.finding import Finding, Place
from .arrays import Array
from .findings import parse_finding, read_findings
from .operations import count_operations
from .source_lines import call_chains, source_lines

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
# block_sectors: the different 32-byte sectors that a block accessed, summed over the blocks.
# launch_sectors: the same of each launch. fresh_outputs: the words of y that a kernel wrote.
# split_sectors: the different sectors of a launch of which some block stored only a part.
# library_flops, library_once: of cuBLAS's products the operations, and the bytes if each matrix
# moves once. tensor_flops: the operations of wgmma, and of mma.sync through kernels/tensor.cuh.
_MORE_COUNTERS = (
    "block_sectors",
    "launch_sectors",
    "fresh_outputs",
    "library_flops",
    "library_once",
    "split_sectors",
    "tensor_flops",
)
_NAMES = (*COUNTERS, *_MORE_COUNTERS)
# A source line, and the lines of the inlined calls around it, the innermost first.
Chain = tuple[Place, ...]
_OF_A_LINE = ("requests", "units", "ideal_units", "lanes", "bytes", "partial")


class Trace:
    """The results of one run: counters, findings, launches, and memory traffic by source line.

    Attributes
    ----------
    counters : dict of `COUNTERS`, ``global_load_bytes``, ``global_store_bytes``,
        ``block_sectors``, ``launch_sectors``, ``split_sectors`` (sectors that blocks store in
        parts, each counted once per launch), ``workspace`` (bytes), ``seconds`` (the time of the
        simulation on this machine, which says nothing about a GPU), and ``library_flops``: 2mnk for
        each of cuBLAS's products. Empty if the run did not end.
    launches : list of dict: ``kernel``, ``grid``, ``block`` of each launch; ``shared_bytes``, all
        shared memory of a block; ``dynamic_bytes``, the part that the launch requests.
    findings : list of `Finding`: errors first, then warnings.
    sampling : dict, or None if all blocks ran. ``blocks`` of all launches, how many of them were
        ``sampled``, and ``errors``, the relative standard error of each counter. For n of N blocks
        with mean m and variance s^2 it is sqrt((1 - n/N) / n * (s^2 / m^2 + 1 / n))
        (W. G. Cochran, Sampling Techniques, 1977, section 2.5). The term 1 / n allows for unusual
        blocks that a sample can miss, such as those at a border. The operations in `flops` are
        scaled too, but have no error. ``launch_sectors`` and ``split_sectors`` are NaN in a sampled
        run, because a part of the blocks does not show which sectors all blocks share.
    error, note : the error that the entry point returned, and why the runtime refused a call.
    missing : what this machine lacked to run the kernel; None if nothing.
    progress : of a run that was stopped in a launch: the launch's number, finished blocks, blocks,
        kernel.
    stalled : whether the run was stopped because no block finished.
    is_late : whether the host process ended the run, which did not end itself at its time limit.
    exhausted_memory : whether it was ended because this machine's memory ran out.
    launched : of a run that was stopped in its host code: how many launches had finished.
    quiet : of a run that was stopped: the seconds since a block finished last, and of the whole run,
        in which the process worked.
    ignored : an error of CUDA that the entry point did not return.
    watched_in_part : whether races were looked for in a part of the blocks of some launch only.
    threads_asked : of a run that ended at its limit of threads: how many its launches have, up to that one.
    complete : whether `accesses` has all accesses; otherwise the limit was reached.
    """

    def __init__(
        self, report: str, library: Path, arrays: Mapping[str, Array], seconds: float
    ) -> None:
        rows = defaultdict(list)
        reported = []
        for line in report.split("\n"):
            key, _, rest = line.partition("\t")
            rows[key].append(rest)
            if key in ("fault", "warning"):
                reported.append(parse_finding(key == "fault", rest))
        self._rows = rows
        self._library = library
        self._base = int(json.loads(self._last("base", '"0"')), 16)
        self._steps = json.loads(self._last("steps", "[]"))
        self.error: str | None = json.loads(self._last("error", "null"))
        self.missing: str | None = json.loads(self._last("missing", "null"))
        self.note = self._last("note")
        self.workspace = int(self._last("workspace", "0"))
        self.ignored = self._last("ignored")
        self.watched_in_part = bool(rows["in part"])
        self.threads_asked = int(self._last("too many threads", "0"))
        self.complete = not rows["recorded"]
        self.stalled = bool(rows["stalled"])
        self.is_late = bool(rows["late"])
        self.exhausted_memory = bool(rows["out of memory"])
        self.quiet = tuple(map(float, self._last("quiet", "0\t0").split("\t")))
        self.launched = int(self._last("launched", "0"))
        self.progress: tuple[int, int, int, str] | None = None
        if rows["progress"]:
            *numbers, kernel = self._last("progress").split("\t", 3)
            self.progress = (*map(int, numbers), kernel)
        self.launches = [_launch(*row.split("\t", 4)) for row in rows["launch"]]
        self.findings: list[Finding] = []
        if reported:
            self.findings = read_findings(
                reported,
                counts=json.loads(self._last("counts", "[]")),
                before_atomic={int(row, 16) for row in rows["before_atomic"]},
                before_swap={int(row, 16) for row in rows["before_swap"]},
                library=library,
                base=self._base,
                arrays=arrays,
            )
        self.counters: dict[str, float] = {}
        self.sampling: dict[str, object] | None = None
        if rows["counters"]:
            self._read_counters(seconds)

    def _last(self, key: str, missing: str = "") -> str:
        """Return the last line of the report that has a key, without the key."""
        return self._rows[key][-1] if self._rows[key] else missing

    def _read_counters(self, seconds: float) -> None:
        """Set `counters`, and `sampling` if not all blocks ran."""
        counters = dict(zip(_NAMES, json.loads(self._last("counters")), strict=True))
        del counters["fresh_outputs"]
        errors = {}
        if self._rows["sample"]:
            self.sampling = self._read_sampling(counters)
            errors = self.sampling["errors"]
        for kind in ("load", "store"):
            sectors = f"global_{kind}_sectors"
            size = f"global_{kind}_bytes"
            counters[size] = 32 * counters[sectors]
            if errors:
                errors[size] = errors[sectors]
        self.counters = counters | {"workspace": self.workspace, "seconds": seconds}

    def _read_sampling(self, counters: dict[str, float]) -> dict[str, object]:
        """Return `sampling` for all launches; set the counts of shared sectors to NaN."""
        rows = (row.split("\t") for row in self._rows["sample"])
        blocks, sampled, variances_of_launches = zip(*rows, strict=True)
        total = sum(map(int, blocks))
        total_sampled = sum(map(int, sampled))
        if total_sampled < total:
            counters["launch_sectors"] = math.nan
            counters["split_sectors"] = math.nan
        sums = map(sum, zip(*map(json.loads, variances_of_launches), strict=True))
        variances = dict(zip(_NAMES, sums, strict=True))
        errors = {
            name: math.sqrt(variances[name]) / value if value else 0.0
            for name, value in counters.items()
            if not math.isnan(value)
        }
        return {"blocks": total, "sampled": total_sampled, "errors": errors}

    def _places(self, addresses: list[str]) -> dict[str, Place]:
        """Return file and line of each code address in the report; ("", 0) if they are not known."""
        places = source_lines(self._library, self._base, [int(a, 16) for a in addresses])
        return {a: places.get(int(a, 16)) or ("", 0) for a in addresses}

    @cached_property
    def lines(self) -> list[dict[str, object]]:
        """Return the memory traffic by source line, space and kind; see `SimLaunch.lines`."""
        rows = self._traffic(lambda chain: chain[:1])
        return [{name: row[name] for name in row if name != "calls"} for row in rows]

    @cached_property
    def lines_by_call(self) -> list[dict[str, object]]:
        """Return `lines` with a row for each inlined copy of a line.

        ``calls`` is a tuple of the line and the lines of the inlined calls around it, as in `reached`.
        """
        return self._traffic(lambda chain: chain)

    def _traffic(self, part_of: Callable[[Chain], Chain]) -> list[dict[str, object]]:
        """Return the memory traffic, with a row for each part of a call chain, space and kind."""
        sites = [row.split("\t") for row in self._rows["site"]]
        addresses = [int(address, 16) for address, *_ in sites]
        chains = call_chains(self._library, self._base, addresses)
        rows: dict[tuple, dict[str, object]] = {}
        for address, (_, space, kind, array, *numbers) in zip(addresses, sites, strict=True):
            requests, units, ideal_units, lanes, partial, lane_bytes = map(int, numbers)
            chain = part_of(chains.get(address) or (("", 0),))
            key = (*chain[0], space, kind, chain)
            if key not in rows:
                file, line = chain[0]
                rows[key] = {"file": file, "line": line, "space": space, "kind": kind}
                rows[key] |= {"array": array, "calls": _by_name(chain)}
                rows[key] |= dict.fromkeys(_OF_A_LINE, 0)
            row = rows[key]
            if row["array"] != array:
                row["array"] = "several"
            row["requests"] += requests
            row["units"] += units
            row["ideal_units"] += ideal_units
            row["lanes"] += lanes
            row["bytes"] += lanes * lane_bytes
            row["partial"] += partial
        return [rows[key] for key in sorted(rows)]

    @cached_property
    def stored(self) -> list[tuple[int, str, int]]:
        """Return which source line stored each word of a small y last.

        Each tuple has a word's number, and the file and line that stored it and the words after
        it, up to the word of the next tuple. A word has 4 bytes.
        """
        rows = [row.split("\t") for row in self._rows["stored"]]
        places = self._places([address for _, address in rows])
        return [(int(word), *places[address]) for word, address in rows]

    @cached_property
    def reaches(self) -> list[dict[str, object]]:
        """Return the range that each block of a sampled run accessed in each array.

        Each dict has ``launch`` (from 0), ``block`` (its number; x varies fastest), ``array``, the
        first byte (``low``), the byte after the last (``high``), and the number of ``sectors``.
        Empty if all blocks ran.
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
        """Return the recorded requests of a warp, in their order.

        Each dict has ``launch`` (from 0), ``file``, ``line``, ``space``, ``kind``, ``array``,
        ``element`` (bytes of an element; None if unknown), ``bytes`` (of each lane's access),
        ``warp``, and ``lanes``: a dict from each lane to its byte in the array.
        """
        return [step for step in self.executions if step["space"]]

    @cached_property
    def executions(self) -> list[dict[str, object]]:
        """Return the recorded requests and the other recorded operations of a warp, in their order.

        A request is as in `accesses`. An operation (a barrier, an asynchronous copy, a product of
        tensor cores) has an empty ``space`` and ``array``, its name as ``kind``, its ``number`` in
        the order in which the operations of all warps ran, ``details`` (texts by name), and a dict
        ``lanes`` in which all bytes are 0.
        """
        rows = [row.split("\t") for row in self._rows["access"]]
        places = self._places([row[1] for row in rows])
        executions = []
        for launch, address, space, kind, array, element, size, mask, warp, offsets in rows:
            file, line = places[address]
            lanes = [lane for lane in range(32) if int(mask) >> lane & 1]
            step = {
                "launch": int(launch) - 1,
                "file": file,
                "line": line,
                "space": space,
                "kind": kind,
                "array": array,
                "element": int(element) or None,
                "bytes": int(size),
                "warp": int(warp),
            }
            if space:
                step["lanes"] = dict(zip(lanes, map(int, offsets.split()), strict=True))
            else:
                pairs = (pair.partition("=") for pair in array.split(";") if pair)
                step["array"] = ""
                step["details"] = {name: text for name, _, text in pairs}
                step["number"] = int(offsets)
                step["lanes"] = dict.fromkeys(lanes, 0)
            executions.append(step)
        return executions

    @cached_property
    def flops(self) -> float | None:
        """Return the floating-point operations that were executed; see `SimLaunch.flops`."""
        if not self._steps:
            return None
        operations = count_operations(self._library, self._steps)
        if operations is None:
            return None
        return operations + self.counters.get("library_flops", 0)

    @cached_property
    def executed(self) -> dict[str, dict[int, int]]:
        """Return how often threads executed each line that begins a basic block, by file name.

        A line may have several basic blocks, such as a loop's first test and its step. The largest
        count is returned.
        """
        counts = {self._base + 4 * step + 1: count for step, count in self._steps}
        lines_by_file: dict[str, dict[int, int]] = defaultdict(dict)
        for address, place in source_lines(self._library, self._base, list(counts)).items():
            if place is None:
                continue
            file, line = place
            lines = lines_by_file[Path(file).name]
            lines[line] = max(lines.get(line, 0), counts[address])
        return lines_by_file

    @cached_property
    def reached(self) -> set[Chain]:
        """Return the lines at which executed basic blocks begin, each with the inlined calls around it.

        Each is a tuple of file names and lines, the innermost first.
        """
        addresses = [self._base + 4 * step + 1 for step, _ in self._steps]
        chains = call_chains(self._library, self._base, addresses).values()
        return {_by_name(chain) for chain in chains if chain}


def _by_name(chain: Chain) -> Chain:
    """Return a chain of calls with the names of the files, without their folders."""
    return tuple((Path(file).name, line) for file, line in chain)


def _launch(grid: str, block: str, static: str, dynamic: str, name: str) -> dict[str, object]:
    """Return one launch from a line of the report."""
    return {
        "kernel": name,
        "grid": tuple(map(int, grid.split(","))),
        "block": tuple(map(int, block.split(","))),
        "shared_bytes": int(static) + int(dynamic),
        "dynamic_bytes": int(dynamic),
    }
