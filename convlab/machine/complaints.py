"""What compilers say of a kernel, in a few lines: the first errors, at the user's lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from ..words.catalog import KERNEL_DIR
from ..words.errors import BuildError
from . import toolchain

_SHOWN = 2  # errors


def compile_error(name: str, label: str, log: str, texts: Mapping[str, str]) -> BuildError:
    """The first errors in a compiler's log with the lines they are about, and where all of it is.

    Parameters
    ----------
    name, label : of the kernel, and of its file.
    texts : what each file holds, by the name that the compiler knows it by.
    """
    logs = toolchain.cache_dir() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name[:80]}.log"
    path.write_text(log, errors="replace")
    found = _errors(log)
    undefined = re.search(r"undefined reference to .*", log)
    if undefined and not found:
        first, shown = f"{label} does not link: {undefined[0]}", []
    elif not found:
        first, shown = f"{label} did not build", [s for s in log.splitlines() if s.strip()][-6:]
    else:
        first, shown = f"{label} did not compile", []
    for file, line, place, message in found[:_SHOWN]:
        shown += [f"{_short(file)}:{line}: {message}", *_quote(texts.get(file), line, place)]
    if len(found) > _SHOWN:
        shown.append(f"and {len(found) - _SHOWN} more")
    return BuildError("\n".join([first, *shown, f"full log: {path}"]))


# Where in a line: g++'s column, or (of nvcc, which quotes the line with its macros replaced) a word
# and how many like it stand before it.
_Place = int | tuple[str, int] | None


def _errors(log: str) -> list[tuple[str, int, _Place, str]]:
    """(file, line, place, message) of each error of g++ (``f:1:2: error:``) or nvcc (``f(1)``)."""
    found, lines = [], log.splitlines()
    for at, text in enumerate(lines):
        match = re.match(r"(.+?):(\d+):(\d+): (?:fatal )?error: (.*)", text)
        if match:
            place = int(match[3])
        else:
            match = re.match(r"(.+?)\((\d+)\): (?:catastrophic )?error:? (.*)", text)
            place = None
            near = lines[at + 1 : at + 6] if match else []
            for quoted, below in zip(near, near[1:]):
                if below.strip() == "^":
                    start = below.index("^")
                    word = re.match(r"\w+|.?", quoted[start:])[0]
                    place = (word, len(re.findall(_whole(word), quoted[:start])))
                    break
        if match:
            error = (match[1], int(match[2]), place, match.groups()[-1])
            if error not in found:
                found.append(error)
    return found


def _short(file: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(file).relative_to(KERNEL_DIR.parent))
    return file


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
