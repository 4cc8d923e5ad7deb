"""Parse the messages of g++ and nvcc, and quote the lines that they are about."""

import re
from typing import NamedTuple

# g++ prints ``file:1:2: error: text``. nvcc prints ``file(1): error: text`` and quotes the line
# below.
_MESSAGE = re.compile(
    r"^(.+?)(?::(\d+):(\d+)|\((\d+)\)): (?:fatal |catastrophic )?"
    r"(error|warning|note)(?: #[\w-]+)?:? (.*)",
    re.MULTILINE,
)
_QUOTED = re.compile(r"(?:\n.*){0,4}?\n(.*)\n( *)\^ *$", re.MULTILINE)
# A longer source line is shown in part, with this many characters around the place.
_SHOWN_COLUMNS = 160
_SHOWN_OF_LONG = 80
# A place in a line. g++ gives the column. nvcc quotes the line with its macros expanded. For nvcc
# the place is therefore the marked word, and how many equal words come before it.
Place = int | tuple[str, int] | None


class Message(NamedTuple):
    """A message of a compiler; its kind is "error", "warning" or "note"."""

    file: str
    line: int
    place: Place
    kind: str
    text: str


def messages(log: str) -> list[Message]:
    """Return the errors and warnings of g++ or nvcc.

    An error in a macro from another file gets the place where the macro is used. A bracket that is
    never closed comes first.
    """
    parsed: list[Message] = []
    for match in _MESSAGE.finditer(log):
        file, line, column, nvcc_line, kind, text = match.groups()
        place = int(column) if column else _nvcc_place(log, match.end())
        message = Message(file, int(line or nvcc_line), place, kind, text)
        if text.startswith("to match this"):
            text = f"this {text[-2]} is never closed"
            parsed.insert(0, message._replace(kind="error", text=text))
        elif text.startswith("in expansion of macro") and parsed and parsed[-1].file != file:
            parsed[-1] = parsed[-1]._replace(file=file, line=message.line, place=place)
        elif kind != "note":
            parsed.append(message)
    return parsed


def _nvcc_place(log: str, end: int) -> Place:
    """Return the place that nvcc marks below a message; `end` is the message's end in the log."""
    mark = _QUOTED.match(log, end)
    if mark is None:
        return None
    line = mark[1]
    start = len(mark[2])
    word = re.match(r"\w+|.?", line[start:])[0]
    return word, len(re.findall(_whole(word), line[:start]))


def _whole(word: str) -> str:
    """Return a pattern for a word that is not part of a longer word."""
    pattern = re.escape(word)
    return rf"(?<!\w){pattern}(?!\w)" if word.isidentifier() else pattern


def quoted(text: str | None, line: int, place: Place) -> list[str]:
    """Return a line, its two neighbours, and a mark below the place of a message."""
    if text is None:
        return []
    # g++ counts a tab as up to 8 columns.
    lines = [entry.expandtabs(8) for entry in text.splitlines()]
    column = place
    if isinstance(place, tuple):
        word, before = place
        same = list(re.finditer(_whole(word), lines[line - 1])) if word else []
        column = same[before].start() + 1 if before < len(same) else None
    # Of a long line only the part around the place is shown.
    most = _SHOWN_COLUMNS
    start = 0
    if max(map(len, lines[max(0, line - 2) : line + 1]), default=0) > most:
        most = _SHOWN_OF_LONG
        start = max(0, (column or 1) - most // 2)
    shown = []
    for number in range(max(1, line - 1), min(len(lines), line + 1) + 1):
        text = lines[number - 1][start:]
        text = text if len(text) <= most else f"{text[: most - 1]}…"
        shown.append(f"{number:5} | {text}")
        if number == line and column:
            shown.append(f"{'':5} | {' ' * (column - 1 - start)}^")
    return shown
