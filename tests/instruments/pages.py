"""Write tables in Markdown, between the markers of a page."""

from pathlib import Path

import pandas as pd

from convlab.core.arguments import readable, writable
from convlab.core.errors import ProblemError


def laid(frame: pd.DataFrame) -> str:
    """Return a frame as a Markdown table."""
    rows = [" | ".join(map(str, row)) for row in (frame.columns, *frame.itertuples(index=False))]
    return "\n".join(
        [f"| {rows[0]} |", "|---" * len(frame.columns) + "|", *(f"| {row} |" for row in rows[1:])]
    )


def write_between(path: Path, marker: str, text: str) -> None:
    """Replace the text between a page's markers ``<!-- marker: begin -->`` and ``end``."""
    head, tail = between(path, marker)
    writable(path, "the tables").write_text(f"{head}\n{text}\n{tail}")


def between(path: Path, marker: str) -> tuple[str, str]:
    """Return the text before and after the part between the markers, with the markers.

    Raises ProblemError if the page cannot be read, or does not have each marker once.
    """
    begin = f"<!-- {marker}: begin -->"
    end = f"<!-- {marker}: end -->"
    text = readable(path, "the tables' file")
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found or text.count(begin) != 1 or text.count(end) != 1:
        raise ProblemError(
            f"{path} does not have the markers once: add a line {begin} and, below it, a line {end}"
        )
    return head + begin, end + tail
