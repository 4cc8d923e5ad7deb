"""Read the findings in the runtime's report: kinds, source lines, and elements of arrays."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..core.finding import Finding, Place, Triple
from .arrays import Array
from .source_lines import source_lines

# An address in the runtime's texts: array, byte and, if the runtime knows the shape, the bytes of
# an element and the extents ("4,8,33").
_ADDRESS = re.compile("\x01(?P<name>.*?):(?P<byte>-?\\d+)(?::(?P<shape>[\\d,]+))?\x02")
# An address outside its array: in addition, the bytes of the array.
_OUTSIDE = re.compile(
    "\x03(?P<name>.*?):(?P<byte>-?\\d+):(?P<bytes>\\d+)(?::(?P<shape>[\\d,]+))?\x02"
)
# The unit of a number of 4-byte words of an array.
_UNIT = re.compile("\x04(.*?)\x02")
# A byte of dynamic shared memory, which has no extents.
_BYTE = re.compile(r"\bbyte (-?\d+) of ([^,:]+)")
# Findings of these kinds often follow from other findings, so they come last. Many findings follow
# from what the simulator does not support, so that comes first.
_LATE = {"race": 1, "uninitialised read": 2, "not simulated": -1}
_INDEX = "index out of bounds"
# The end of the warning about a load that guards an atomic.
_GUARD = (
    ": a plain load may read an old value. That is correct only where any old value does no harm; "
    "a volatile load reads the present one"
)
_ADDRESS_KINDS = ("global out of bounds", "shared out of bounds")


class ReportedFinding(NamedTuple):
    """One ``fault`` or ``warning`` line of the runtime's report."""

    error: bool
    kind: str
    address: int  # in the code
    in_kernel: bool
    block: Triple
    thread: Triple
    other_address: int  # the code address of the other access; 0 if there is none
    other_block: Triple
    other_thread: Triple
    text: str


def parse_finding(error: bool, row: str) -> ReportedFinding:
    """Return a finding from a line of the report; `row` is the line without its first word."""
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
    before_swap: Collection[int],
    library: Path,
    base: int,
    arrays: Mapping[str, Array],
) -> list[Finding]:
    """Return the findings of a run, errors first; merge those of one kind and source line.

    Parameters
    ----------
    reported : the findings in the report.
    counts : in how many threads each finding occurred; empty for a run that was stopped.
    before_atomic : code addresses of loads of a word that the same thread then updates by an
        atomic, as in ``if (*p < v) atomicMax(p, v)``. If such a load races with an atomic, it reads
        an old value at worst: that is a warning.
    before_swap : the same where the atomic is a compare-and-swap. Such a load starts its retry
        loop, which compares the value again: that is no finding.
    library, base : the kernel's library, and the address where it was loaded.
    arrays : shape and element names of each buffer.
    """
    addresses = [row.address for row in reported] + [row.other_address for row in reported]
    places = source_lines(library, base, addresses)
    counts = [*counts, *[1] * len(reported)]
    merged: dict[tuple, Finding] = {}
    for count, row in zip(counts, reported, strict=False):
        place = places.get(row.address)
        other_place = places.get(row.other_address)
        if row.kind == "divergent barrier" and place == other_place:
            # The compiler duplicated the barrier of one line.
            continue
        if _is_of_atomic(row, before_swap):
            continue
        if _is_of_atomic(row, before_atomic):
            row = row._replace(error=False, text=row.text.partition(",")[0] + _GUARD)
        key = _merge_key(row, place, other_place)
        if key in merged:
            merged[key] = replace(merged[key], count=merged[key].count + count)
        else:
            merged[key] = _finding(row, count, place, other_place, arrays)
    findings = _without_repeated(list(merged.values()))
    return sorted(findings, key=lambda finding: (not finding.error, _LATE.get(finding.kind, 0)))


def _is_of_atomic(row: ReportedFinding, loads: Collection[int]) -> bool:
    """Return whether a race is between an atomic and one of these loads."""
    of_atomic = row.kind == "race" and "atomic" in row.text
    return of_atomic and bool({row.address, row.other_address} & set(loads))


def _merge_key(row: ReportedFinding, place: Place | None, other_place: Place | None) -> tuple:
    """Return the key under which findings are merged: the kind and its place or places."""
    if place is None:
        return row.kind, row.address
    if row.kind == "race":
        # A race is the same whichever of its two lines ran second.
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
    """Return the text with indices for addresses, and the array and index of the first address."""
    details: dict[str, object] = {}
    while address := _OUTSIDE.search(text) or _ADDRESS.search(text):
        name = address["name"]
        byte = int(address["byte"])
        array = _array(name, address["shape"], arrays)
        if not details:
            details = {"array": name, "index": array.locate(byte)[0]}
        if address.re is _OUTSIDE:
            described = _describe_outside(array, name, byte, int(address["bytes"]))
        else:
            described = array.describe(name, byte)
        text = text.replace(address[0], described)
    if not details and (match := _BYTE.search(text)):
        details = {"array": match[2], "index": (int(match[1]),)}
    text = _UNIT.sub(lambda unit: _unit(_array(unit[1], None, arrays)), text)
    return text, details


def _describe_outside(array: Array, name: str, byte: int, array_bytes: int) -> str:
    """Return an address outside an array: "x[n=0, c=0, h=-1, w=7] (element -1); x has 64 elements".

    Freed memory has no elements, so that it has no index either.
    """
    if not array_bytes:
        return name
    element = byte // array.bytes
    elements = array_bytes // array.bytes
    plural = "" if elements == 1 else "s"
    index = array.describe(name, byte)
    if index != f"{name}[{element}]":
        index += f" (element {element})"
    return f"{index}; {name} has {elements} element{plural}"


def _unit(array: Array) -> str:
    """Return the name of a 4-byte word of an array."""
    return "elements" if array.bytes == 4 else "4-byte words"


def _array(name: str, shape: str | None, arrays: Mapping[str, Array]) -> Array:
    """Return the array of an address; `shape` is that of the runtime: "4,8,33"."""
    if shape is None:
        return arrays.get(name, Array((1,)))
    element_bytes, *extents = map(int, shape.split(","))
    return Array(tuple(extents), element_bytes)


def _without_repeated(findings: list[Finding]) -> list[Finding]:
    """Leave out what another finding of the same line says already.

    These are an invalid index, if the line also has an address that is out of bounds, and a word
    that is written twice, if the line also has a race.
    """
    stronger = {_INDEX: _ADDRESS_KINDS, "written twice": ("race",)}

    def is_repeated(finding: Finding) -> bool:
        kinds = stronger.get(finding.kind, ())
        place = finding.file, finding.line
        return any(f.error and f.kind in kinds and (f.file, f.line) == place for f in findings)

    return [finding for finding in findings if not is_repeated(finding)]


def _triple(text: str) -> Triple:
    return tuple(map(int, text.split(",")))
