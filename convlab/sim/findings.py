"""Reads the findings in the runtime's report: kinds, source lines, and elements of arrays."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..core.finding import Finding, Place, Triple
from .arrays import Array
from .source_lines import source_lines

# An address in the runtime's texts: array, byte and, if shared, bytes of an element and extents.
_ADDRESS = re.compile("\x01(.*?):(-?\\d+)(?::([\\d,]+))?\x02")
# A byte of dynamic shared memory, which has no extents.
_BYTE = re.compile(r"\bbyte (-?\d+) of ([^,:]+)")
# These kinds often follow from the others, so they come after them.
_LATE = {"race": 1, "uninitialised read": 2}
_INDEX = "index out of bounds"
_ADDRESS_KINDS = ("global out of bounds", "shared out of bounds")


class ReportedFinding(NamedTuple):
    """One ``fault`` or ``warning`` line of the runtime's report."""

    error: bool
    kind: str
    address: int  # of the code
    in_kernel: bool
    block: Triple
    thread: Triple
    other_address: int  # of the second access; 0 if there is none
    other_block: Triple
    other_thread: Triple
    text: str


def parse_finding(error: bool, row: str) -> ReportedFinding:
    """Return what one line of the report says: `row` is the line without its first word."""
    fields = row.split("\t", 8)
    kind, address, in_kernel, block, thread, other_address, other_block, other_thread, text = fields
    return ReportedFinding(
        error=error,
        kind=kind,
        address=int(address, 16),
        in_kernel=in_kernel == "1",
        block=_triple(block),
        thread=_triple(thread),
        other_address=int(other_address, 16),
        other_block=_triple(other_block),
        other_thread=_triple(other_thread),
        text=text,
    )


def read_findings(
    reported: Sequence[ReportedFinding],
    counts: Sequence[int],
    before_atomic: Collection[int],
    library: Path,
    base: int,
    arrays: Mapping[str, Array],
) -> list[Finding]:
    """Return the findings of a run, errors first; those of one source line are merged.

    Parameters
    ----------
    counts : how many threads each was found in; a run that was stopped has none.
    before_atomic : addresses of loads that precede an atomic on the same element: the start of a
        compare-and-swap loop may read what other threads change.
    library, base : the kernel's library, and where it was loaded.
    arrays : how to name the elements of the convolution's buffers.
    """
    addresses = [row.address for row in reported] + [row.other_address for row in reported]
    places = source_lines(library, base, addresses)
    counts = [*counts, *[1] * len(reported)]
    merged: dict[tuple, Finding] = {}
    for count, row in zip(counts, reported, strict=False):
        place = places.get(row.address)
        other_place = places.get(row.other_address)
        if row.kind == "divergent barrier" and place == other_place:
            # The compiler made two calls of one line.
            continue
        if _is_retried(row, before_atomic):
            continue
        key = _merge_key(row, place, other_place)
        if key in merged:
            merged[key] = replace(merged[key], count=merged[key].count + count)
        else:
            merged[key] = _finding(row, count, place, other_place, arrays)
    findings = _without_repeated(list(merged.values()))
    return sorted(findings, key=lambda finding: (not finding.error, _LATE.get(finding.kind, 0)))


def _is_retried(row: ReportedFinding, before_atomic: Collection[int]) -> bool:
    """Return whether this is a race of an atomic with the load that starts its loop."""
    of_atomic = row.kind == "race" and "atomic" in row.text
    return of_atomic and bool({row.address, row.other_address} & set(before_atomic))


def _merge_key(row: ReportedFinding, place: Place | None, other_place: Place | None) -> tuple:
    """Return what findings have in common that count as one."""
    if place is None:
        return row.kind, row.address
    if row.kind == "race":
        # It is the same race, whichever of its two lines ran second.
        return row.kind, frozenset([place, other_place])
    return row.kind, place


def _finding(
    row: ReportedFinding,
    count: int,
    place: Place | None,
    other_place: Place | None,
    arrays: Mapping[str, Array],
) -> Finding:
    text, details = _name_elements(row.text, arrays)
    if row.in_kernel:
        details["block"] = row.block
        details["thread"] = row.thread
    if row.other_address:
        details["other_file"], details["other_line"] = other_place or (None, None)
        details["other_block"] = row.other_block
        details["other_thread"] = row.other_thread
    file, line = place or (None, None)
    return Finding(row.kind, text, row.error, file, line, count=count, **details)


def _name_elements(text: str, arrays: Mapping[str, Array]) -> tuple[str, dict[str, object]]:
    """Return a text with indices for addresses, and array and index of the first one."""
    details: dict[str, object] = {}
    while address := _ADDRESS.search(text):
        name, byte, shape = address.groups()
        array = _array(name, shape, arrays)
        if not details:
            details = {"array": name, "index": array.locate(int(byte))[0]}
        text = text.replace(address[0], array.describe(name, int(byte)))
    if not details and (match := _BYTE.search(text)):
        details = {"array": match[2], "index": (int(match[1]),)}
    return text, details


def _array(name: str, shape: str | None, arrays: Mapping[str, Array]) -> Array:
    """Return the array of an address; `shape` is that of shared memory: "4,8,33"."""
    if shape is None:
        return arrays.get(name, Array((1,)))
    element_bytes, *extents = map(int, shape.split(","))
    return Array(tuple(extents), element_bytes)


def _without_repeated(findings: list[Finding]) -> list[Finding]:
    """Leave out an invalid index where the same line's address, with its array, is reported too."""
    lines = {(f.file, f.line) for f in findings if f.kind in _ADDRESS_KINDS}
    return [f for f in findings if f.kind != _INDEX or (f.file, f.line) not in lines]


def _triple(text: str) -> Triple:
    return tuple(map(int, text.split(",")))
