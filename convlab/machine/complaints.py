"""What compilers say of a kernel, in a few lines: the first errors, at the user's lines."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..words.catalog import KERNEL_DIR
from ..words.errors import BuildError
from . import toolchain

_SHOWN = 2  # errors
# g++'s ``file:1:2: error: text``, or nvcc's ``file(1): error: text`` and what it quotes below.
_ERROR = re.compile(
    r"^(.+?)(?::(\d+):(\d+)|\((\d+)\)): (?:fatal |catastrophic )?error:? (.*)", re.MULTILINE
)
_QUOTED = re.compile(r"(?:\n.*){0,4}?\n(.*)\n( *)\^ *$", re.MULTILINE)


def compile_error(name: str, label: str, log: str, texts: Mapping[str, str]) -> BuildError:
    """The first errors in a compiler's log with the lines they are about, and where all of it is.

    `name` is the kernel's, and `label` its file's; `texts` are what each file holds, by the name
    that the compiler knows it by.
    """
    path = toolchain.cache_dir() / "logs" / f"{name[:80]}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_text(log, errors="replace")
    found = list(dict.fromkeys(_errors(log)))
    undefined = re.search(r"undefined reference to .*", log)
    shown = []
    if found:
        first = f"{label} did not compile"
    elif undefined:
        first = f"{label} does not link: {undefined[0]}"
    else:
        first, shown = f"{label} did not build", [s for s in log.splitlines() if s.strip()][-6:]
    for file, line, place, message in found[:_SHOWN]:
        short = file
        with contextlib.suppress(ValueError):
            short = Path(file).relative_to(KERNEL_DIR.parent)
        shown += [f"{short}:{line}: {message}", *_quote(texts.get(file), line, place)]
    if len(found) > _SHOWN:
        shown.append(f"and {len(found) - _SHOWN} more")
    places = [(file, line, message) for file, line, _, message in found]
    return BuildError("\n".join([first, *shown, f"full log: {path}"]), places)


# Where in a line: g++'s column, or (of nvcc, which quotes the line with its macros replaced) a word
# and how many like it stand before it.
_Place = int | tuple[str, int] | None


def _errors(log: str) -> Iterator[tuple[str, int, _Place, str]]:
    """(file, line, place, message) of each error."""
    for error in _ERROR.finditer(log):
        file, line, column, nvcc_line, message = error.groups()
        place: _Place = int(column) if column else None
        if nvcc_line and (below := _QUOTED.match(log, error.end())):
            quoted, start = below[1], len(below[2])
            word = re.match(r"\w+|.?", quoted[start:])[0]
            place = word, len(re.findall(_whole(word), quoted[:start]))
        yield file, int(line or nvcc_line), place, message


def _whole(word: str) -> str:
    """A pattern of a word that is no part of a longer one."""
    return rf"(?<!\w){re.escape(word)}(?!\w)" if word.isidentifier() else re.escape(word)


def _quote(text: str | None, line: int, place: _Place) -> list[str]:
    if text is None:
        return []
    lines = [entry.expandtabs(8) for entry in text.splitlines()]  # as g++ counts columns
    column = place
    if isinstance(place, tuple):
        word, before = place
        found = list(re.finditer(_whole(word), lines[line - 1])) if word else []
        column = found[before].start() + 1 if before < len(found) else None
    shown = []
    for number in range(max(1, line - 1), min(len(lines), line + 1) + 1):
        shown.append(f"{number:5} | {lines[number - 1]}")
        if number == line and column:
            shown.append(f"{'':5} | {' ' * (column - 1)}^")
    return shown
