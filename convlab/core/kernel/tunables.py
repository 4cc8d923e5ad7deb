"""Read tunables: the values in "TILE=8,K_TILE=16", and the names and defaults in a source.

Nothing here imports torch, which takes seconds.
"""

import re

from .. import arguments as valid
from ..errors import ProblemError


def parse_tunables(text: str) -> dict[str, int]:
    """Return the tunables in "TILE=8,K_TILE=16". Raises ProblemError for other text."""
    values = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d{1,18})\s*", part)
        if match is None:
            raise ProblemError(f"cannot read the tunable {valid.shown(part)}: write NAME=INTEGER")
        values[match[1]] = int(match[2])
    return values


def tunables(source: str) -> dict[str, str]:
    """Return the tunables in a source, ``#ifndef NAME`` / ``#define NAME VALUE``, by name."""
    directive = r"^[ \t]*#[ \t]*(ifndef|define)[ \t]+(\w+)(?:[ \t]+(\S+))?"
    # A name with a #define before its #ifndef is not a tunable: its value here is None.
    values: dict[str, str | None] = {}
    for word, name, value in re.findall(directive, source, re.M):
        if word == "ifndef":
            values.setdefault(name, "")
        elif values.setdefault(name, None) == "":
            values[name] = value
    return {name: value for name, value in values.items() if value}
