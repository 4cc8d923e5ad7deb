"""Find the source lines of code addresses, with addr2line (of binutils)."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..core.builds.plain_paths import unlinked
from ..core.finding import Place
from ..core.machine import toolchain
from .library import INCLUDE

# addr2line's results by library and offset in it: the source lines, the innermost call first.
_chains: dict[tuple[str, int], tuple[Place, ...]] = {}


def source_lines(library: Path, base: int, addresses: Sequence[int]) -> dict[int, Place | None]:
    """Return file and line of each return address in a library that was loaded at `base`.

    An inlined function of the simulator's or C++'s headers has the line that called it. The value is
    None if no line is known. Without addr2line, all values are None.
    """
    chains = call_chains(library, base, addresses)
    return {address: chain[0] if chain else None for address, chain in chains.items()}


def call_chains(
    library: Path, base: int, addresses: Sequence[int]
) -> dict[int, tuple[Place, ...]]:
    """Return the source line of each return address, and the lines of the inlined calls around it.

    The innermost line is first. Lines of the simulator's and C++'s headers are left out.
    """
    offsets = {address: address - base for address in addresses if address > base}
    new = sorted({offset for offset in offsets.values() if (str(library), offset) not in _chains})
    if new:
        _look_up(library, new)
    return {a: _chains.get((str(library), offset), ()) for a, offset in offsets.items()}


def _look_up(library: Path, offsets: Sequence[int]) -> None:
    """Find the lines of some offsets with addr2line, and store them in `_chains`."""
    tool = toolchain.find("addr2line")
    if tool is None:
        return
    # A return address is that of the next instruction. One byte before it is the call.
    calls = [hex(offset - 1) for offset in offsets]
    answer = toolchain.asked([str(tool), "-a", "-i", "-e", str(library), *calls])
    if answer.returncode:
        # On a busy machine a process may be ended. A report must not depend on that.
        answer = toolchain.asked([str(tool), "-a", "-i", "-e", str(library), *calls])
    found: dict[tuple[str, int], tuple[Place, ...]] = {}
    key = (str(library), 0)
    for line in answer.stdout.splitlines():
        if line.startswith("0x"):
            key = (str(library), int(line, 16) + 1)
            found[key] = ()
        elif place := _place(line, library):
            found[key] += (place,)
    # All at once: another thread may look up the same addresses, and must not see a part of a chain.
    _chains.update(found)


def _place(line: str, library: Path) -> Place | None:
    """Return file and line from a line of addr2line's output; None for a header, or if unknown."""
    file, _, number = re.sub(r" \(discriminator \d+\)$", "", line).rpartition(":")
    if not number.isdigit() or not int(number):
        return None
    # Remove the folder in which the library was built.
    file = re.sub(r"^.*/unfinished-[^/]*/", "", unlinked(file))
    if file == "main.cpp":
        # binutils gives some parts of the source this name.
        file = library.parent.name.partition("-sim-")[0] + ".cu"
    # Checkouts may share a cache, so the headers may be in the folder of another checkout.
    is_ours = Path(file).parent.parts[-3:] == INCLUDE.parts[-3:]
    if is_ours or "/c++/" in file or file == "sim_entry":
        return None
    return file, int(number)
