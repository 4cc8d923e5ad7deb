"""What g++ and nvcc say of lines: read, and with the lines quoted."""

import re
from typing import NamedTuple

# g++'s ``file:1:2: error: text``, or nvcc's ``file(1): error: text`` and what it quotes below.
_SAID = re.compile(
    r"^(.+?)(?::(\d+):(\d+)|\((\d+)\)): (?:fatal |catastrophic )?"
    r"(error|warning|note)(?: #[\w-]+)?:? (.*)",
    re.MULTILINE,
)
_QUOTED = re.compile(r"(?:\n.*){0,4}?\n(.*)\n( *)\^ *$", re.MULTILINE)
# Where in a line: g++'s column, or (of nvcc, which quotes the line with its macros replaced) a word
# and how many like it stand before it.
Place = int | tuple[str, int] | None


class Message(NamedTuple):
    """One that a compiler gave: an "error", a "warning" or a "note"."""

    file: str
    line: int
    place: Place
    kind: str
    text: str


def messages(log: str) -> list[Message]:
    """What g++ or nvcc said of lines: a macro's errors where it is used, first what is not closed."""
    found: list[Message] = []
    for said in _SAID.finditer(log):
        file, line, column, nvcc_line, kind, text = said.groups()
        place: Place = int(column) if column else None
        if nvcc_line and (below := _QUOTED.match(log, said.end())):
            quoted = below[1]
            start = len(below[2])
            word = re.match(r"\w+|.?", quoted[start:])[0]
            place = word, len(re.findall(_whole(word), quoted[:start]))
        message = Message(file, int(line or nvcc_line), place, kind, text)
        if text.startswith("to match this"):
            text = f"this {text[-2]} is never closed"
            found.insert(0, message._replace(kind="error", text=text))
        elif text.startswith("in expansion of macro") and found and found[-1].file != file:
            found[-1] = found[-1]._replace(file=file, line=message.line, place=place)
        elif kind != "note":
            found.append(message)
    return found


def _whole(word: str) -> str:
    """A pattern of a word that is no part of a longer one."""
    return rf"(?<!\w){re.escape(word)}(?!\w)" if word.isidentifier() else re.escape(word)


def quoted(text: str | None, line: int, place: Place) -> list[str]:
    """The line of a text that a message is about, those beside it, and a mark below the place."""
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
