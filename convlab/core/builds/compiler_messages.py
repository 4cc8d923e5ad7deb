"""Read the messages that g++ and nvcc print about lines, and quote the lines."""

import re
from typing import NamedTuple

# g++'s ``file:1:2: error: text``, or nvcc's ``file(1): error: text`` and what it quotes below.
_MESSAGE = re.compile(
    r"^(.+?)(?::(\d+):(\d+)|\((\d+)\)): (?:fatal |catastrophic )?"
    r"(error|warning|note)(?: #[\w-]+)?:? (.*)",
    re.MULTILINE,
)
_QUOTED = re.compile(r"(?:\n.*){0,4}?\n(.*)\n( *)\^ *$", re.MULTILINE)
# A place in a line. g++ gives the column. nvcc quotes the line with its macros replaced, so of its
# messages this is the word, and how many like it are before it.
Place = int | tuple[str, int] | None


class Message(NamedTuple):
    """A compiler's message; its kind is "error", "warning" or "note"."""

    file: str
    line: int
    place: Place
    kind: str
    text: str


def messages(log: str) -> list[Message]:
    """Return the errors and warnings of g++ or nvcc.

    An error in a macro of another file is placed where the macro is used. A bracket that is never
    closed comes first.
    """
    found: list[Message] = []
    for match in _MESSAGE.finditer(log):
        file, line, column, nvcc_line, kind, text = match.groups()
        place = int(column) if column else _nvcc_place(log, match.end())
        message = Message(file, int(line or nvcc_line), place, kind, text)
        if text.startswith("to match this"):
            text = f"this {text[-2]} is never closed"
            found.insert(0, message._replace(kind="error", text=text))
        elif text.startswith("in expansion of macro") and found and found[-1].file != file:
            found[-1] = found[-1]._replace(file=file, line=message.line, place=place)
        elif kind != "note":
            found.append(message)
    return found


def _nvcc_place(log: str, end: int) -> Place:
    """Return the place that nvcc marks below a message, which ends at an index of the log."""
    mark = _QUOTED.match(log, end)
    if mark is None:
        return None
    line = mark[1]
    start = len(mark[2])
    word = re.match(r"\w+|.?", line[start:])[0]
    return word, len(re.findall(_whole(word), line[:start]))


def _whole(word: str) -> str:
    """Return a pattern of a word that is no part of a longer one."""
    pattern = re.escape(word)
    return rf"(?<!\w){pattern}(?!\w)" if word.isidentifier() else pattern


def quoted(text: str | None, line: int, place: Place) -> list[str]:
    """Return the line that a message is about, the lines next to it, and a mark below the place."""
    if text is None:
        return []
    # g++ counts the columns of a tab so.
    lines = [entry.expandtabs(8) for entry in text.splitlines()]
    column = place
    if isinstance(place, tuple):
        word, before = place
        same = list(re.finditer(_whole(word), lines[line - 1])) if word else []
        column = same[before].start() + 1 if before < len(same) else None
    shown = []
    for number in range(max(1, line - 1), min(len(lines), line + 1) + 1):
        shown.append(f"{number:5} | {lines[number - 1]}")
        if number == line and column:
            shown.append(f"{'':5} | {' ' * (column - 1)}^")
    return shown
