"""The tunables of an answer: whole numbers that its CUDA code defines by name.

A sweep changes them in the text that is compiled, at the line where they are defined. The file stays
as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.arguments import hint
from ..core.errors import ProblemError
from .answer import Answer, Text
from .cpp_functions import blanked

# ``#define TILE 16``, with or without an #ifndef around it.
_MACRO = re.compile(
    r"^([ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?)(\d+)(?=\)?[uU]?[ \t]*$)", re.MULTILINE
)
# ``constexpr int TILE = 16``, also one of several in a declaration.
_CONSTANT = re.compile(
    r"\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+int|unsigned|int|size_t|int64_t|uint32_t|int32_t)"
    r"\s+(?P<all>\w+\s*=\s*\d+\s*(?:,\s*\w+\s*=\s*\d+\s*)*);"
)
_ONE = re.compile(r"(\w+)\s*=\s*(\d+)")


def tunables(answer: Answer) -> dict[str, int]:
    """Return the tunables of an answer with their values, in their order.

    A name that is defined more than once is none: it is not clear which definition counts.
    """
    found: dict[str, int] = {}
    repeated = set()
    for call in answer.calls:
        for key in ("cpp_sources", "cuda_sources"):
            source = call.source(key)
            for name, _, _, value in _places(source.text) if source else ():
                if name in found:
                    repeated.add(name)
                found[name] = value
    return {name: value for name, value in found.items() if name not in repeated}


def lines_of_sizes(answer: Answer, sizes: set[int]) -> dict[str, tuple[int, int]]:
    """Return the constants whose value is one of these sizes: for each name its line and value."""
    found = {}
    for call in answer.calls:
        for key in ("cpp_sources", "cuda_sources"):
            source = call.source(key)
            for name, start, _, value in _places(source.text) if source else ():
                if value in sizes:
                    found[name] = (source.line_at(start), value)
    return found


def require(answer: Answer, values: Mapping[str, int]) -> None:
    """Raise ProblemError for names that are no tunables of an answer."""
    known = tunables(answer)
    for name in values:
        if name in known:
            continue
        if not known:
            raise ProblemError(
                f"{answer.path.name} has no tunables: a sweep changes a whole number that its CUDA code "
                "defines once by name, such as `#define TILE 16` or `constexpr int TILE = 16;`"
            )
        shown = ", ".join(f"{each}={value}" for each, value in known.items())
        raise ProblemError(
            f"{answer.path.name} has no tunable {name[:40]}{hint(name, list(known))}; it has {shown}"
        )


def with_values(text: Text, values: Mapping[str, int]) -> Text:
    """Return a C++ text with other values of tunables, on the same lines."""
    code = text.text
    for name, start, end, _ in sorted(_places(code), key=lambda place: -place[1]):
        if name in values:
            code = f"{code[:start]}{values[name]}{code[end:]}"
    return Text(code, text.lines)


def _places(text: str) -> list[tuple[str, int, int, int]]:
    """Return the name of each definition, the span of its number in the text, and its value."""
    code = blanked(text)
    found = [(each[2], each.start(3), each.end(3), int(each[3])) for each in _MACRO.finditer(code)]
    for declaration in _CONSTANT.finditer(code):
        offset = declaration.start("all")
        for each in _ONE.finditer(declaration["all"]):
            span = (offset + each.start(2), offset + each.end(2))
            found.append((each[1], *span, int(each[2])))
    return found
