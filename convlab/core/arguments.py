"""Public arguments, validated: each function returns the value as it will be used, or raises.

A message begins with the argument's name and what was given, and says what may be given.
"""

import difflib
import numbers
import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping
from math import inf, isfinite, nan
from pathlib import Path

from .errors import ProblemError

_SHOWN = 60  # characters of a value
INT64_MAX = 2**63 - 1


def shown(value: object) -> str:
    """Return a value for a message: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # an int of more than 4300 digits, or what a stranger's __repr__ raises
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return three names at most that a word may stand for.

    One that is the same but for its case; else those that begin with it, hold it, or look like it.
    """
    asked = word[:_SHOWN].lower().lstrip("-")
    known = {}
    for name in names:
        known.setdefault(name.lower().lstrip("-"), name)
    if asked in known:
        return [known[asked]]
    held = [key for key in known if len(asked) > 1 and asked in key]
    held.sort(key=lambda key: not key.startswith(asked))
    alike = (difflib.get_close_matches(asked, known, 3, least) for least in (0.75, 0.5))
    return [known[key] for key in (held or next(filter(None, alike), []))[:3]]


def hint(word: str, names: Collection[str], most: int = 0) -> str:
    """Return the end of a message on an unknown word: names near it, else so many of all."""
    if near := nearest(word, names):
        return f"; did you mean {' or '.join(near)}?"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; there are {', '.join([*names][:most])}{more}" if names and most else ""


def whole(value: object, name: str, least: int = -INT64_MAX - 1, most: int = INT64_MAX) -> int:
    """Return an integer of a range; a bool is none, what has ``__index__`` is one."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except Exception:
        number = None
    if number is None or isinstance(value, bool):
        raise ProblemError(f"{name} must be an integer, not {shown(value)}")
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ProblemError(f"{name} is {shown(number)}; it must be {bound}")
    return number


def real(value: object, name: str, above: float = -inf, most: float = inf) -> float:
    """Return a finite number of a range, above the one and up to the other."""
    try:
        number = float(value) if isinstance(value, numbers.Real) else nan
    except OverflowError:
        number = inf
    if isinstance(value, bool) or not isfinite(number) or not above < number <= most:
        bounds = {"more than": above, "at most": most}
        wanted = [f", {words} {bound:g}" for words, bound in bounds.items() if isfinite(bound)]
        raise ProblemError(f"{name} must be a finite number{''.join(wanted)}, not {shown(value)}")
    return number


def flag(value: object, name: str) -> bool:
    """Return a bool; numpy's is one, 1 and "yes" are none."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise ProblemError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def text(value: object, name: str) -> str:
    """Return a string that can be written as UTF-8."""
    if not isinstance(value, str):
        hint = ": decode it first" if isinstance(value, (bytes, bytearray)) else ""
        raise ProblemError(f"{name} must be a string, not {shown(value)}{hint}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ProblemError(f"{name} is no Unicode text: {error.reason}") from None
    return value


def choice(value: object, name: str, allowed: Collection[str]) -> str:
    """Return one of several words."""
    if not isinstance(value, str) or value not in allowed:
        near = hint(value, allowed) if isinstance(value, str) else ""
        raise ProblemError(f"no {name} {shown(value)}: choose from {', '.join(allowed)}{near}")
    return value


def path(value: object, name: str) -> Path:
    """Return a path, of a string or a path-like object; ~ is the user's folder."""
    try:
        given = os.fspath(value)  # type: ignore[arg-type]
    except Exception:
        given = None
    if not isinstance(given, str) or "\0" in given:
        raise ProblemError(f"{name} must be a name or a path, not {shown(value)}")
    return Path(os.path.expanduser(given))


def readable(value: object, name: str) -> str:
    """Return the text of a file, or raise what is wrong with its path or itself."""
    given = path(value, name)
    try:
        return given.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        told = f"{name} {given} is not UTF-8 (byte {error.start}); save it as UTF-8"
        raise ProblemError(told) from None
    except OSError as error:
        raise ProblemError(f"cannot read {name} {given}: {reason(error)}") from None


def writable(value: object, name: str, endings: Collection[str] = ()) -> Path:
    """Return the path of a file that can be written, tried out; its folders are made."""
    given = path(value, name)
    if endings and given.suffix.lower() not in endings:
        raise ProblemError(f"{name} {given}: the file's name must end in {', '.join(endings)}")
    try:
        given.parent.mkdir(parents=True, exist_ok=True)
        there = given.exists()
        given.open("a").close()
        if not there:
            given.unlink()
    except OSError as error:
        raise ProblemError(f"cannot write {name} {given}: {reason(error)}") from None
    return given


def reason(error: OSError) -> str:
    """Return what is wrong with a path, and what to do."""
    return f"{error.strerror or error}; correct it, or name another"


def several(value: object, name: str) -> list:
    """Return the members of an iterable; a string is one thing, not its letters."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ProblemError(f"{name} must be a list, not {shown(value)}")
    try:
        return list(value)
    except Exception as error:
        raise ProblemError(f"{name} cannot be read as a list: {shown(error)}") from error


def file_name(value: object, name: str) -> str:
    """Return a name that a file can have, in whatever folder it is put."""
    given = text(value, name)
    if not re.fullmatch(r"[^/\0\n\r]{1,100}", given) or given.startswith("."):
        raise ProblemError(
            f"{name} is {shown(value)}; it must be 1 to 100 characters without a slash, and not "
            "begin with a dot"
        )
    return given


def tunables(value: object) -> dict[str, int | str]:
    """Return what goes to the compiler as ``-DNAME=VALUE``: integers, or a plain word each."""
    if not isinstance(value, Mapping):
        raise ProblemError(f"defines must be a dict such as {{'TILE': 8}}, not {shown(value)}")
    found: dict[str, int | str] = {}
    for key, given in value.items():
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            raise ProblemError(f"{shown(key)} is no name of a tunable")
        if isinstance(given, str):
            if not re.fullmatch(r"[\w.:+-]+", given, re.ASCII):
                raise ProblemError(
                    f"the tunable {key} is {shown(given)}; it must be an integer, or one plain word"
                )
            found[key] = given
        else:
            found[key] = whole(given, f"the tunable {key}", least=-(2**63), most=2**64 - 1)
    return found
