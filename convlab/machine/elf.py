"""What a shared library says of itself, read from its file: it is not loaded.

Loading runs static initialisers, which are a learner's code. The layout is that of the System V
ABI's ELF-64, little-endian, as on x86-64 and aarch64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

# Makes a library that dlopen refuses, until `allow_loading`.
NOT_TO_BE_LOADED = "-Wl,-z,nodlopen"
_DYNAMIC, _DYNSYM = 6, 11  # section types
_FLAGS_1, _NOOPEN = 0x6FFFFFFB, 0x40  # an entry of the dynamic section, and its flag


def exports(library: Path, name: str) -> bool:
    """Return whether a library defines a symbol of that name for others to call."""
    data = library.read_bytes()
    sections = list(_sections(data))
    for kind, start, size, link in sections:
        if kind != _DYNSYM:
            continue
        names = sections[link][1]
        for at, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[start : start + size]):
            if section and data.startswith(name.encode() + b"\0", names + at):  # else undefined
                return True
    return False


def allow_loading(library: Path) -> None:
    """Take back what `NOT_TO_BE_LOADED` said."""
    data = bytearray(library.read_bytes())
    for kind, start, size, _ in list(_sections(data)):
        for at in range(start, start + size, 16) if kind == _DYNAMIC else ():
            tag, value = struct.unpack_from("<QQ", data, at)
            if tag == _FLAGS_1:
                struct.pack_into("<QQ", data, at, tag, value & ~_NOOPEN)
    library.write_bytes(data)


def _sections(data: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """The type, offset, size and link of each section."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    for at in range(table, table + entry * count, entry):
        kind, start, size, link = struct.unpack_from("<4xI16xQQI", data, at)
        yield kind, start, size, link
