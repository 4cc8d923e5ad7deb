"""What the simulator's runtime reported, in the words of the source: lines, arrays, indices."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..machine import toolchain

INCLUDE = Path(__file__).parent / "include"
SCREEN = 24  # lines that a report may have
# An address in the runtime's words: array, byte and, if shared, bytes of an element, extents.
_ADDRESS = re.compile("\x01(.*?):(-?\\d+)(?::([\\d,]+))?\x02")

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Finding:
    """Something that a kernel does wrong, or may, and where: one for each line of source.

    Attributes
    ----------
    kind : "global out of bounds", "race", "uninitialised read", "divergent barrier", ...
    text : what, in words, for the first thread that did it.
    error : whether the launch failed by it; else it is a warning.
    file, line : of the source; None where that is not known.
    block, thread : of the first thread that did it; None outside of a kernel.
    count : how many threads did.
    other_file, other_line, other_block, other_thread : the second party of a race, of a divergent
        barrier, of a copy not waited for.
    """

    kind: str
    text: str
    error: bool = True
    file: str | None = None
    line: int | None = None
    block: Triple | None = None
    thread: Triple | None = None
    count: int = 1
    other_file: str | None = None
    other_line: int | None = None
    other_block: Triple | None = None
    other_thread: Triple | None = None


@dataclass(frozen=True)
class Array:
    """How to name the elements of a buffer."""

    shape: tuple[int, ...]
    bytes: int = 4  # of an element
    names: str = ""  # of the indices, a letter each


def findings(
    reports: Sequence[tuple[bool, list[str]]],
    counts: Sequence[int],
    tried: Collection[int],
    library: Path,
    base: int,
    arrays: Mapping[str, Array],
) -> list[Finding]:
    """Read the runtime's ``fault`` and ``warning`` lines; what is one line of source is merged.

    ``tried`` are addresses of loads whose value only goes into an atomic of the same place: the
    start of a compare-and-swap loop may read what others change.
    """
    addresses = [int(f[at], 16) for _, f in reports for at in (1, 5)]
    place = places(library, base, addresses)
    found: dict[tuple, Finding] = {}
    for number, (error, fields) in enumerate(reports):
        kind, pc, in_kernel, block, thread, other_pc, other_block, other_thread, text = fields
        here, other = place.get(int(pc, 16)), place.get(int(other_pc, 16))
        if kind == "divergent barrier" and here == other:
            continue  # one line that the compiler has made two of
        if kind == "race" and "atomic" in text and {int(pc, 16), int(other_pc, 16)} & set(tried):
            continue
        finding = Finding(
            kind,
            re.sub(_ADDRESS, lambda found: _element(found, arrays), text),
            error,
            *(here or (None, None)),
            *((_triple(block), _triple(thread)) if in_kernel == "1" else (None, None)),
            count=counts[number] if number < len(counts) else 1,
        )
        if int(other_pc, 16):
            finding = replace(
                finding,
                **dict(zip(("other_file", "other_line"), other or (None, None), strict=True)),
                other_block=_triple(other_block),
                other_thread=_triple(other_thread),
            )
        # a race is one, whichever of its two lines came second
        lines = frozenset([here, other]) if kind == "race" else (here, None)
        key = (kind, lines) if here else (kind, pc)
        if key in found:
            finding = replace(found[key], count=found[key].count + finding.count)
        found[key] = finding
    late = {"race": 1, "uninitialised read": 2}  # which often follow from what stands before them
    return sorted(found.values(), key=lambda f: (not f.error, late.get(f.kind, 0)))


def _triple(text: str) -> Triple:
    return tuple(map(int, text.split(",")))


def _element(found: re.Match[str], arrays: Mapping[str, Array]) -> str:
    name, byte, shape = found.groups()
    if shape is None:
        return index(name, int(byte), arrays)
    unit, *extents = map(int, shape.split(","))
    return index(name, int(byte), {name: Array(tuple(extents), unit)}) if extents else name


def index(name: str, byte: int, arrays: Mapping[str, Array]) -> str:
    """An address in a buffer as an index: ``x[n=0, c=3, h=-1, w=5]``, ``workspace[64]``.

    What lies outside of a buffer is given a row that is: of the first image and channel, or of
    the last.
    """
    array = arrays.get(name, Array((1,)))
    element, rest = divmod(byte, array.bytes)
    shape = array.shape or (1,)
    total, at = math.prod(shape), []
    row = 2 if array.names and len(shape) == 4 else 0  # the index that takes what is over
    if not -math.prod(shape[row:]) <= element < total + math.prod(shape[row:]):
        row = 0
    left = element
    for d, extent in reversed(list(enumerate(shape))):
        outside = not 0 <= element < total
        if d == row and (outside or row == 0):
            first = [0] * d if element < 0 else [e - 1 for e in shape[:d]]
            if element >= total and d:  # counted from the start of the last channel
                left -= math.prod(shape[d:][:1]) * (math.prod(shape[:d]) - 1)
            at = [*first, left, *at]
            break
        at.insert(0, left % extent)
        left //= extent
    names = array.names if len(array.names) == len(shape) else ""
    words = [f"{n}={i}" for n, i in zip(names, at, strict=True)] if names else map(str, at)
    inside = ", ".join(words) if names else "][".join(words)
    return f"{name}[{inside}]" + (f" + {rest} bytes" if rest else "")


_known: dict[tuple[str, int], tuple[str, int] | None] = {}


def places(library: Path, base: int, addresses: Sequence[int]) -> dict[int, tuple[str, int] | None]:
    """File and line of return addresses (hence -1), by binutils' addr2line; empty without it.

    What the simulator's own headers inlined there is the line that called them.
    """
    offsets = {a: a - base for a in addresses if a > base}
    new = sorted({o for o in offsets.values() if (str(library), o) not in _known})
    tool = toolchain.find("addr2line") if new else None
    if tool is not None:
        found = subprocess.run(
            [str(tool), "-a", "-i", "-e", str(library), *(hex(o - 1) for o in new)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        offset = None
        for line in found.splitlines():
            if line.startswith("0x"):
                offset = int(line, 16) + 1
                _known[str(library), offset] = None
                continue
            file, _, number = line.partition(" (")[0].rpartition(":")
            if _known[str(library), offset] or not number.isdigit() or not int(number):
                continue
            file = re.sub(r"^.*/unfinished-[^/]*/", "", file)  # the folder it was built in
            if file == "main.cpp":  # what binutils calls some parts of it
                file = library.parent.name.partition("-sim-")[0] + ".cu"
            # a cache may be shared by checkouts: the folder is that of the one that built
            ours = Path(file).parent.parts[-3:] == INCLUDE.parts[-3:]
            if not ours and file != "sim_entry":
                _known[str(library), offset] = (file, int(number))
    return {a: _known.get((str(library), o)) for a, o in offsets.items()}


def lines(sites: Sequence[list[str]], library: Path, base: int) -> list[dict[str, object]]:
    """The traffic of each source line, space and kind of access; see `convlab.run.launch.Launch`."""
    place = places(library, base, [int(s[0], 16) for s in sites])
    rows: dict[tuple, dict[str, object]] = {}
    for pc, space, kind, array, requests, units, ideal, lanes, size in sites:
        file, line = place.get(int(pc, 16)) or ("", 0)
        key = (file, line, space, kind)
        row = rows.setdefault(
            key,
            {"file": file, "line": line, "space": space, "kind": kind, "array": array}
            | dict.fromkeys(("requests", "units", "ideal_units", "lanes", "bytes"), 0),
        )
        if row["array"] != array:
            row["array"] = "several"
        row["requests"] += int(requests)
        row["units"] += int(units)
        row["ideal_units"] += int(ideal)
        row["lanes"] += int(lanes)
        row["bytes"] += int(lanes) * int(size)
    return [rows[key] for key in sorted(rows)]


def accesses(rows: Sequence[list[str]], library: Path, base: int) -> list[dict[str, object]]:
    """The recorded requests of a warp: where, of what, and the byte in the array of each lane.

    Each has ``launch`` (from 0), ``file``, ``line``, ``space``, ``kind``, ``array``, ``element``
    (bytes of an element; None: unknown), ``bytes`` (of each lane), and ``lanes``: a dict from the
    lane to its byte.
    """
    place = places(library, base, [int(row[1], 16) for row in rows])
    found = []
    for launch, pc, space, kind, array, element, size, mask, offsets in rows:
        file, line = place.get(int(pc, 16)) or ("", 0)
        lanes = [lane for lane in range(32) if int(mask) >> lane & 1]
        found.append({
            "launch": int(launch) - 1, "file": file, "line": line, "space": space, "kind": kind,
            "array": array, "element": int(element) or None, "bytes": int(size),
            "lanes": dict(zip(lanes, map(int, offsets.split()), strict=True)),
        })  # fmt: skip
    return found


def describe(found: Sequence[Finding], label: str, source: Path | str) -> str:
    """A report of at most a screen, errors first."""
    text: list[str] = []
    for shown, f in enumerate(found):
        block = [f"{f.kind}: {f.text}"]
        more = f", and {f.count - 1} more threads" if f.count > 1 else ""
        if f.block is not None:
            block.append(f"  block {f.block}, thread {f.thread}{more}")
        block += _quoted(f.file, f.line, source)
        if f.other_block is not None:
            block.append(f"  the other: block {f.other_block}, thread {f.other_thread}")
            if (f.other_file, f.other_line) != (f.file, f.line):
                block += _quoted(f.other_file, f.other_line, source)
        if text and len(text) + len(block) >= SCREEN:
            text.append(f"and {len(found) - shown} more: see the error's .findings")
            break
        text += block
    return f"{label}: " + "\n".join(text)


def refused(found: Sequence[Finding], source: Path | str) -> list[str]:
    """The lines of source whose launch, or whose call of a library, was refused."""
    return [s for f in found if f.kind == "refused launch" for s in _quoted(f.file, f.line, source)]


def _quoted(file: str | None, line: int | None, source: Path | str) -> list[str]:
    if file is None:
        return []
    path = Path(file)
    if path.is_file():  # absolute: a header, or a kernel outside the catalog
        name, text = path.name, path.read_text()
    elif isinstance(source, Path):
        name, text = source.name, source.read_text()
    else:
        name, text = path.name, source  # what the text was called when it was built
    quoted = text.splitlines()[line - 1 : line]
    return [f"  {name}:{line}:  {quoted[0].strip() if quoted else ''}"]
