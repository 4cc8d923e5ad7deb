"""Validate public arguments: each function returns the converted value, or raises ProblemError.

A message gives the argument's name and value, and the values that are allowed.
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

# The maximal length of a value in a message, in characters.
_SHOWN = 60
# The maximal length of a path in a message, in characters.
_SHOWN_PATH = 80
INT64_MAX = 2**63 - 1


def shown(value: object) -> str:
    """Return the text of a value for a message, shortened to `_SHOWN` characters."""
    try:
        text = repr(value)
    # An int of more than 4300 digits raises ValueError, and a user's __repr__ may raise anything.
    except Exception:
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def cut(text: str) -> str:
    """Return a message in which each word of more than 200 characters is cut to 80.

    >>> len(cut("no kernel " + 5000 * "x"))
    91
    """
    return re.sub(r"(\S{80})\S{120,}", r"\1…", text)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text for a message, at most 200 characters."""
    try:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
    # A user's __str__ may raise anything.
    except Exception:
        text = type(error).__name__
    text = text.encode(errors="replace").decode()
    return text if len(text) <= 200 else f"{text[:80]} … {text[-80:]}"


def end_of(path: object) -> str:
    """Return the end of a path for a message, at most 80 characters in one line."""
    # Line breaks, and bytes that are not UTF-8, are not printable.
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(path))
    return text if len(text) <= _SHOWN_PATH else f"…{text[1 - _SHOWN_PATH :]}"


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return at most three names that are close to a misspelt word.

    A name that differs only in case comes alone. Otherwise these are the names that begin with the
    word or contain it, or else the names that resemble it.
    """
    word = word[:_SHOWN].lower().lstrip("-")
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(name.lower().lstrip("-"), name)
    if word in known:
        return [known[word]]
    near = [key for key in known if len(word) > 1 and word in key]
    near.sort(key=lambda key: not key.startswith(word))
    for similarity in (0.75, 0.5):
        near = near or difflib.get_close_matches(word, known, 3, similarity)
    return [known[key] for key in near[:3]]


def hint(word: str, names: Collection[str], most: int = 0) -> str:
    """Return the end of a message about an unknown word: similar names, else the first `most`."""
    if near := nearest(word, names):
        return f"; did you mean {' or '.join(near)}?"
    if not names or not most:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; there are {', '.join([*names][:most])}{more}"


def whole(value: object, name: str, least: int = -INT64_MAX - 1, most: int = INT64_MAX) -> int:
    """Return an integer between two bounds; any object with ``__index__`` except a bool will do."""
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
    """Return a finite number above `above` and at most `most`."""
    try:
        number = float(value) if isinstance(value, numbers.Real) else nan
    except OverflowError:
        number = inf
    if isinstance(value, bool) or not isfinite(number) or not above < number <= most:
        bounds = {"more than": above, "at most": most}
        limits = [f", {words} {bound:g}" for words, bound in bounds.items() if isfinite(bound)]
        raise ProblemError(f"{name} must be a finite number{''.join(limits)}, not {shown(value)}")
    return number


def flag(value: object, name: str) -> bool:
    """Return a bool; numpy's are accepted, 1 and "yes" are not."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise ProblemError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def text(value: object, name: str) -> str:
    """Return a string that UTF-8 can encode."""
    if not isinstance(value, str):
        advice = ": decode it first" if isinstance(value, (bytes, bytearray)) else ""
        raise ProblemError(f"{name} must be a string, not {shown(value)}{advice}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ProblemError(
            f"{name} is not valid Unicode: {error.reason}; remove that character"
        ) from None
    return value


def choice(value: object, name: str, allowed: Collection[str]) -> str:
    """Return a string that is one of the allowed ones."""
    if not isinstance(value, str) or value not in allowed:
        near = hint(value, allowed) if isinstance(value, str) else ""
        raise ProblemError(f"no {name} {shown(value)}: choose from {', '.join(allowed)}{near}")
    return value


def path(value: object, name: str) -> Path:
    """Return the path that a string or a path-like object names; ~ is the home directory."""
    try:
        location = os.fspath(value)  # type: ignore[arg-type]
    except Exception:
        location = None
    if not isinstance(location, str) or "\0" in location or not _is_encodable(location):
        raise ProblemError(f"{name} must be a name or a path, not {shown(value)}")
    return Path(os.path.expanduser(location))


def _is_encodable(location: str) -> bool:
    """Return whether the system can have a file of this name."""
    try:
        os.fsencode(location)
    except UnicodeEncodeError:
        return False
    return True


def readable(value: object, name: str) -> str:
    """Return the text of a UTF-8 file."""
    file = path(value, name)
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(
            f"{name} {end_of(file)} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ProblemError(f"cannot read {name} {end_of(file)}: {reason(error)}") from None


def writable(value: object, name: str, endings: Collection[str] = ()) -> Path:
    """Return the path of a file that can be written; create its folders."""
    file = path(value, name)
    if endings and file.suffix.lower() not in endings:
        raise ProblemError(
            f"{name} {end_of(file)}: the file's name must end in {', '.join(endings)}"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        existed = file.exists()
        file.open("a").close()
        if not existed:
            file.unlink()
    except OSError as error:
        raise ProblemError(f"cannot write {name} {end_of(file)}: {reason(error)}") from None
    return file


def reason(error: OSError) -> str:
    """Return why a file could not be used, and what to do."""
    return f"{error.strerror or error}; correct the path, or use another"


def function(value: object, name: str) -> object:
    """Return a value that is callable, or None."""
    if value is not None and not callable(value):
        raise ProblemError(f"{name} must be a function or None, not {shown(value)}")
    return value


def several(value: object, name: str) -> list:
    """Return the members of an iterable as a list; strings and mappings are not accepted."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ProblemError(f"{name} must be a list, not {shown(value)}")
    try:
        return list(value)
    except Exception as error:
        raise ProblemError(f"{name} cannot be read as a list: {shown(error)}") from error


def file_name(value: object, name: str) -> str:
    """Return a valid file name, without a folder."""
    file = text(value, name)
    if not re.fullmatch(r"[^/\0\n\r]{1,100}", file) or file.startswith("."):
        raise ProblemError(
            f"{name} is {shown(value)}; it must have 1 to 100 characters, no slash and no line "
            "break, and must not begin with a dot"
        )
    return file


def tunables(value: object) -> dict[str, int | str]:
    """Return tunables as a dict for the compiler's ``-DNAME=VALUE``: integers or single words."""
    if not isinstance(value, Mapping):
        raise ProblemError(f"defines must be a dict such as {{'TILE': 8}}, not {shown(value)}")
    return {_tunable_name(key): _tunable_value(key, entry) for key, entry in value.items()}


def _tunable_name(key: object) -> str:
    if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
        raise ProblemError(
            f"{shown(key)} is not a valid name of a tunable; use letters, digits and underscores"
        )
    return key


def _tunable_value(key: str, value: object) -> int | str:
    if not isinstance(value, str):
        return whole(value, f"the tunable {key}", least=-(2**63), most=2**64 - 1)
    if not re.fullmatch(r"[\w.:+-]+", value, re.ASCII):
        raise ProblemError(
            f"the tunable {key} is {shown(value)}; it must be an integer, or a single word"
        )
    return value
