"""Shorten a long text for a message, and keep the whole text in a file."""

import contextlib
import hashlib
import os
from pathlib import Path

from ..machine import toolchain

# The most lines of a text in a message, and the most characters of a line.
_LINES = 14
_CHARACTERS = 300


def shortened(text: str, name: str) -> str:
    """Return the first lines of a text; if anything is left out, keep the whole text in a file.

    The last line then has the size of the text and the path of the file, which is among the
    compilers' logs. `name` is the beginning of the file's name.
    """
    lines = text.split("\n")
    shown = [
        line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}…" for line in lines[:_LINES]
    ]
    if shown == lines:
        return text
    size = f"{len(text):,} characters, {len(lines):,} {'line' if len(lines) == 1 else 'lines'}"
    try:
        shown.append(f"full text ({size}): {write_log(name, text)}")
    except OSError as error:
        shown.append(f"the full text ({size}) could not be written: {error.strerror}")
    return "\n".join(shown)


def write_log(name: str, text: str, key: str = "") -> Path:
    """Write a text to a file among the compilers' logs, and return the file.

    The file's name has a digest of `key`, or else of the text, so that two processes do not write
    over each other's file. The file appears whole.
    """
    digest = hashlib.sha256((key or text).encode("utf-8", "replace")).hexdigest()[:8]
    path = toolchain.cache_dir() / "logs" / f"{name[:50]}-{digest}.log"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, "utf-8", errors="replace")
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return path
