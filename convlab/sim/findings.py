"""What the simulator's runtime reported, in the words of the source: lines, arrays, indices."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..core.builds.plain_paths import unlinked
from ..core.finding import Finding, Place, Triple
from ..core.machine import toolchain

INCLUDE = Path(__file__).parent / "include"
SCREEN = 24  # lines that a report may have
# An address in the runtime's words: array, byte and, if shared, bytes of an element, extents.
_ADDRESS = re.compile("\x01(.*?):(-?\\d+)(?::([\\d,]+))?\x02")
_BYTE = re.compile(r"\bbyte (-?\d+) of ([^,:]+)")  # of dynamic shared memory: it has no extents
_LATE = {"race": 1, "uninitialised read": 2}  # which often follow from what stands before them
_INDEX = "index out of bounds"
_OUTSIDE = ("global out of bounds", "shared out of bounds")

_NOWHERE = (None, None)


@dataclass(frozen=True)
class Array:
    """How to name the elements of a buffer."""

    shape: tuple[int, ...]
    bytes: int = 4  # of an element
    names: str = ""  # of the indices, a letter each

    def at(self, byte: int) -> tuple[tuple[int, ...], int]:
        """An element's indices, in the order of the dimensions, and the bytes that are over.

        What lies outside of an image is given a row that is, of the first channel or of the last:
        h=-1; outside of another array, its first index: k=-1.
        """
        shape = self.shape or (1,)
        element, rest = divmod(byte, self.bytes)
        row = 2 if {"h", "p"} & {*self.names} else 0  # the index that takes what is over
        near = math.prod(shape[row:])
        if not -near <= element < math.prod(shape) + near:
            row = 0
        plane = min(max(element // near, 0), math.prod(shape[:row]) - 1) if row else 0
        at, inner = divmod(element - plane * near, math.prod(shape[row + 1 :]))
        of_plane = np.unravel_index(plane, shape[:row])
        indices = *of_plane, at, *np.unravel_index(inner, shape[row + 1 :])
        return tuple(map(int, indices)), rest

    def words(self, name: str, byte: int) -> str:
        """An address as an index: ``x[n=0, c=3, h=-1, w=5]``, ``workspace[64]``."""
        indices, rest = self.at(byte)
        if not self.shape and not any(indices):
            return name
        if len(self.names) == len(indices):
            inside = ", ".join(f"{n}={i}" for n, i in zip(self.names, indices, strict=True))
        else:
            inside = "][".join(map(str, indices))
        return f"{name}[{inside}]" + (f" + {rest} bytes" if rest else "")


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
    place = places(library, base, [int(f[at], 16) for _, f in reports for at in (1, 5)])
    found: dict[tuple, Finding] = {}
    counts = [*counts, *[1] * len(reports)]  # of a run that was stopped there are none
    for count, (error, fields) in zip(counts, reports, strict=False):
        kind, pc, in_kernel, block, thread, other_pc, other_block, other_thread, text = fields
        pc = int(pc, 16)
        other_pc = int(other_pc, 16)
        here = place.get(pc)
        other = place.get(other_pc)
        if kind == "divergent barrier" and here == other:
            continue  # one line that the compiler has made two of
        if kind == "race" and "atomic" in text and {pc, other_pc} & set(tried):
            continue
        of: dict[str, object] = {}
        while address := _ADDRESS.search(text):
            array, name, at = _named(address, arrays)
            of = of or {"array": name, "index": array.at(at)[0]}
            text = text.replace(address[0], array.words(name, at))
        if not of and (byte := _BYTE.search(text)):
            of = {"array": byte[2], "index": (int(byte[1]),)}
        if in_kernel == "1":
            of |= {"block": _triple(block), "thread": _triple(thread)}
        if other_pc:
            of |= dict(zip(("other_file", "other_line"), other or _NOWHERE, strict=True))
            of |= {"other_block": _triple(other_block), "other_thread": _triple(other_thread)}
        finding = Finding(kind, text, error, *(here or _NOWHERE), count=count, **of)
        # a race is one, whichever of its two lines came second
        lines = frozenset([here, other]) if kind == "race" else here
        key = (kind, lines if here else pc)
        if key in found:
            finding = replace(found[key], count=found[key].count + count)
        found[key] = finding
    # an index is told again, with what it was of, where its address is watched
    by_address = {(f.file, f.line) for f in found.values() if f.kind in _OUTSIDE}
    told = (f for f in found.values() if f.kind != _INDEX or (f.file, f.line) not in by_address)
    return sorted(told, key=lambda f: (not f.error, _LATE.get(f.kind, 0)))


def _triple(text: str) -> Triple:
    return tuple(map(int, text.split(",")))


def _named(found: re.Match[str], arrays: Mapping[str, Array]) -> tuple[Array, str, int]:
    """An address in the runtime's words: the array, its name, the byte."""
    name, byte, shape = found.groups()
    if shape is None:
        return arrays.get(name, Array((1,))), name, int(byte)
    unit, *extents = map(int, shape.split(","))
    return Array(tuple(extents), unit), name, int(byte)


_known: dict[tuple[str, int], Place | None] = {}


def places(library: Path, base: int, addresses: Sequence[int]) -> dict[int, Place | None]:
    """File and line of return addresses (hence -1), by binutils' addr2line; empty without it.

    What the simulator's own headers, or C++'s, inlined there is the line that called them.
    """
    offsets = {a: a - base for a in addresses if a > base}
    new = sorted({o for o in offsets.values() if (str(library), o) not in _known})
    tool = toolchain.find("addr2line") if new else None
    if tool is not None:
        command = [str(tool), "-a", "-i", "-e", str(library), *(hex(o - 1) for o in new)]
        offset = None
        done = toolchain.asked(command)
        for line in done.stdout.splitlines():
            if line.startswith("0x"):
                offset = int(line, 16) + 1
                _known[str(library), offset] = None
                continue
            file, _, number = re.sub(r" \(discriminator \d+\)$", "", line).rpartition(":")
            if _known[str(library), offset] or not number.isdigit() or not int(number):
                continue
            file = re.sub(
                r"^.*/unfinished-[^/]*/", "", unlinked(file)
            )  # the folder it was built in
            if file == "main.cpp":  # what binutils calls some parts of it
                file = library.parent.name.partition("-sim-")[0] + ".cu"
            # a cache may be shared by checkouts: the folder is that of the one that built
            ours = Path(file).parent.parts[-3:] == INCLUDE.parts[-3:]
            if not ours and "/c++/" not in file and file != "sim_entry":
                _known[str(library), offset] = (file, int(number))
    return {a: _known.get((str(library), o)) for a, o in offsets.items()}


def describe(found: Sequence[Finding], label: str, source: Path | str) -> str:
    """A report of at most a screen, errors first."""
    text: list[str] = []
    for shown, f in enumerate(found):
        block = [f"{f.kind}: {f.text}"]
        more = f", and {f.count - 1} more threads" if f.count > 1 else ""
        if f.block is not None:
            block.append(f"  block {f.block}, thread {f.thread}{more}")
        block += quoted(f.file, f.line, source)
        if f.other_block is not None:
            block.append(f"  the other: block {f.other_block}, thread {f.other_thread}")
            if (f.other_file, f.other_line) != (f.file, f.line):
                block += quoted(f.other_file, f.other_line, source)
        if text and len(text) + len(block) >= SCREEN:
            text.append(f"and {len(found) - shown} more: see the error's .findings")
            break
        text += block
    return f"{label}: " + "\n".join(text)


def quoted(file: str | None, line: int | None, source: Path | str) -> list[str]:
    """The line of source, in one line of a report; nothing where the line is not known."""
    if file is None:
        return []
    path = Path(file)
    if path.is_file():  # absolute: a header, or a kernel outside the catalog
        name = path.name
        text = path.read_text()
    elif isinstance(source, Path):
        name = source.name
        text = source.read_text()
    else:
        # what the text was called when it was built
        name = path.name
        text = source
    lines = text.splitlines()[line - 1 : line]
    return [f"  {name}:{line}:  {lines[0].strip() if lines else ''}"]
