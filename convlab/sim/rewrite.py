"""CUDA C++ to C++: the little that a C++ compiler cannot read is rewritten, line for line.

Two things have no C++ spelling: ``kernel<<<grid, block, smem, stream>>>(args)`` and
``__shared__`` declarations. Everything else (``threadIdx``, ``__syncthreads``, ``float4``, ...)
is ordinary C++ once ``include/cuda_runtime.h`` has declared it. Newlines are kept, so that the
compiler's messages and the line table still name the lines of the ``.cu`` file.
"""

import re

from ..errors import BuildError

_BLANK = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.S | re.X
)
_SHARED = re.compile(
    r"\b(?P<before>(?:extern|static|volatile)\s+)*__shared__\s+(?P<rest>[^;{}]*?)\s*;"
)
_ALIGN = re.compile(r"\b(?:alignas|__align__)\s*\([^()]*\)\s*")
_DECLARATOR = re.compile(r"(?P<type>.*?)\b(?P<name>\w+)\s*(?P<sizes>(?:\[.*\])?)\s*$", re.S)
_NAME_END = re.compile(r"[\w:]+\s*$")


def rewrite(source: str, where: str = "kernel") -> str:
    """Return ``source`` as C++ that compiles against the simulator's headers.

    Parameters
    ----------
    source : CUDA C++ text.
    where : the file's name, for messages.

    Raises
    ------
    BuildError
        If a launch or a ``__shared__`` declaration cannot be understood; names the line.
    """
    edits = _shared_edits(source, _blank(source), where)
    source = _apply(source, edits)
    return _apply(source, _launch_edits(source, _blank(source), where))


def _blank(source: str) -> str:
    """The source with comments and literals turned to spaces, newlines kept."""
    return _BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def _apply(source: str, edits: list[tuple[int, int, str]]) -> str:
    """Replace each ``source[start:end]``; the new text gets as many newlines as the old had."""
    for start, end, text in sorted(edits, reverse=True):
        missing = source.count("\n", start, end) - text.count("\n")
        source = source[:start] + text + "\n" * missing + source[end:]
    return source


def _shared_edits(source: str, blank: str, where: str) -> list[tuple[int, int, str]]:
    edits = []
    for match in _SHARED.finditer(blank):
        line = source.count("\n", 0, match.start()) + 1
        text = source[match.start("rest") : match.end("rest")]
        words = match.group()[: match.start("rest") - match.start()].split()
        if text.startswith("extern "):
            words, text = [*words, "extern"], text[len("extern ") :]
        text = _ALIGN.sub("", text).strip()
        if blank.count("{", 0, match.start()) == blank.count("}", 0, match.start()):
            raise BuildError(
                f"{where}:{line}: a __shared__ declaration outside a function; "
                "the simulator needs it inside the kernel that uses it"
            )
        first, *more = _split(text)
        parsed = _DECLARATOR.match(first)
        if not parsed or not parsed["type"].strip():
            raise BuildError(f"{where}:{line}: cannot read this __shared__ declaration: {text}")
        kind = ("volatile " if "volatile" in words else "") + parsed["type"].strip()
        pieces = []
        for declarator in [parsed["name"] + parsed["sizes"], *more]:
            name, sizes = re.match(r"\s*(\w+)\s*(.*)$", declarator, re.S).groups()
            if "extern" in words:
                pieces.append(f"{kind}* {name} = ({kind}*)sim_dynamic_shared();")
            else:
                pieces.append(
                    f"typedef {kind} sim_{name}_t{sizes}; sim_{name}_t& {name} = "
                    f'::sim::shared<sim_{name}_t>("{name}", {line});'
                )
        edits.append((match.start(), match.end(), " ".join(pieces)))
    return edits


def _launch_edits(source: str, blank: str, where: str) -> list[tuple[int, int, str]]:
    edits = []
    for match in re.finditer("<<<", blank):
        line = source.count("\n", 0, match.start()) + 1
        start = _name_start(blank, match.start())
        close = blank.find(">>>", match.end())
        open_ = close + 3 + len(blank[close + 3 :]) - len(blank[close + 3 :].lstrip())
        if start is None or close < 0 or blank[open_ : open_ + 1] != "(":
            raise BuildError(f"{where}:{line}: cannot read this launch; write kernel<<<...>>>(...)")
        end = _closing(blank, open_)
        name = source[start : match.start()].strip()
        config, arguments = source[match.end() : close], source[open_ + 1 : end - 1]
        comma = ", " if arguments.strip() else ""
        edits.append(
            (start, end, f"::sim::launch_as(0, ::sim::config({config}), {name}{comma}{arguments})")
        )
    return edits


def _name_start(blank: str, end: int) -> int | None:
    """Where the kernel's name begins that ends at ``end``: ``ns::name<1, f(2)>``."""
    at = len(blank[:end].rstrip())
    if blank[at - 1] == ">":
        depth = 0
        while at > 0:
            at -= 1
            depth += {">": 1, "<": -1}.get(blank[at], 0)
            if depth == 0:
                break
    match = _NAME_END.search(blank[:at])
    return match.start() if match else None


def _closing(blank: str, open_: int) -> int:
    """One past the parenthesis that closes the one at ``open_``."""
    depth = 0
    for at in range(open_, len(blank)):
        depth += {"(": 1, ")": -1}.get(blank[at], 0)
        if depth == 0:
            return at + 1
    return len(blank)


def _split(text: str) -> list[str]:
    """Split at the commas that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += {"(": 1, "[": 1, "<": 1, "{": 1, ")": -1, "]": -1, ">": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
