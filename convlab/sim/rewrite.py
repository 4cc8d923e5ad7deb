"""CUDA C++ to C++: the little that a C++ compiler cannot read is rewritten, line for line.

Two things have no C++ spelling: ``kernel<<<grid, block, smem, stream>>>(args)`` and
``__shared__`` declarations. Everything else (``threadIdx``, ``__syncthreads``, ``float4``, ...)
is ordinary C++ once ``include/cuda_runtime.h`` has declared it; except ``__noinline__``, which
cannot be a macro, since the C++ library uses the word in attributes of its own. Newlines are
kept, so that the compiler's messages and the line table still name the lines of the ``.cu`` file.
"""

import re

from ..words.errors import BuildError

_BLANK = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""",
    re.S | re.X,
)
_ALIGN_TEXT = r"\b(?:alignas|__align__)\s*\((?:[^()]|\([^()]*\))*\)\s*"
_ALIGN = re.compile(_ALIGN_TEXT)
_SHARED = re.compile(
    rf"(?P<before>(?:\b(?:extern|static|volatile|const)\s+|{_ALIGN_TEXT})*)"
    r"\b__shared__\s+(?P<rest>[^;{}]*?)\s*;"
)
_STORAGE = re.compile(r"\b(?:extern|static)\s+")
_TYPE = re.compile(r"(?P<type>.+?)(?P<declarator>[*\s]*\b\w+\s*(?:\[.*\])?)\s*$", re.S)
_DECLARATOR = re.compile(
    r"\s*(?P<stars>[*\s]*?)\s*(?P<name>\w+)\s*(?P<sizes>(?:\[.*\])?)\s*$", re.S
)
_NOT_A_BODY = re.compile(r"(?:\bnamespace(?:\s+[\w:]+)?|\bextern)\s*$")  # before a brace
# Whatever the launch is of (a kernel, a template whose arguments are deduced, a pointer), it is
# named twice: to ask for its address and parameter types, and to call it. See sim::launch.
_LAUNCH = (
    '::sim::launch("{1}", [&](auto f) -> decltype(f({0})) {{ return f({0}); }}, [&](auto&... p) {{ '
)


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
    blank = _blank(source)
    edits = _shared_edits(source, blank, where) + _launch_edits(source, blank, where)
    edits += [
        (word.start(), word.end(), "__attribute__((noinline))")
        for word in re.finditer(r"(?<!\(\()\b__noinline__\b", blank)
    ]
    for start, end, text in sorted(edits, reverse=True):
        missing = source.count("\n", start, end) - text.count("\n")
        source = source[:start] + text + "\n" * missing + source[end:]
    return source


def _blank(source: str) -> str:
    """The source with comments, literals and continuations turned to spaces, newlines kept."""
    blank = _BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
    return blank.replace("\\\n", " \n")


def _shared_edits(source: str, blank: str, where: str) -> list[tuple[int, int, str]]:
    edits, read = [], set()
    for match in _SHARED.finditer(blank):
        word = blank.index("__shared__", match.end("before"))
        if blank[blank.rfind("\n", 0, word) + 1 :].lstrip().startswith("#"):
            continue
        read.add(word)
        line = source.count("\n", 0, word) + 1
        edits.append((match.start(), match.end(), _declaration(blank, match, f"{where}:{line}")))
    for word in re.finditer(r"\b__shared__\b", blank):
        if word.start() not in read:
            line = source.count("\n", 0, word.start()) + 1
            raise BuildError(
                f"{where}:{line}: cannot read this __shared__ declaration; write `__shared__ TYPE "
                "NAME[SIZE];`, with the type's own declaration before it and outside of macros"
            )
    return edits


def _declaration(blank: str, match: re.Match[str], where: str) -> str:
    """A ``__shared__`` declaration in C++: references to, or pointers into, the block's arena."""
    text = _ALIGN.sub("", match["rest"]).strip()
    words = set((_ALIGN.sub("", match["before"]) + " " + text).split())
    text = _STORAGE.sub("", text)
    first, *more = _split(text)
    parsed = _TYPE.match(first)
    if not parsed or "=" in parsed["type"]:
        raise BuildError(f"{where}: cannot read this __shared__ declaration: {text}")
    kind = " ".join(parsed["type"].split())
    if "volatile" in _ALIGN.sub("", match["before"]).split():
        kind = f"volatile {kind}"
    pieces = []
    for declarator in [parsed["declarator"], *more]:
        named = _DECLARATOR.match(declarator)
        if not named:
            raise BuildError(f"{where}: cannot read this __shared__ declaration: {text}")
        name, sizes, stars = named["name"], named["sizes"], "".join(named["stars"].split())
        alias = f"sim_{name}_t"
        inside = _in_function(blank, match.start())
        if "extern" in words:
            rest = sizes.partition("]")[2]  # s[][32]: its elements are rows of 32
            element = f"typedef {kind}{stars} {alias}{rest};"
            if inside:
                pieces.append(f"{element} {alias}* {name} = ({alias}*)sim_dynamic_shared();")
            else:  # the runtime's own pointer, by another name and type
                pieces.append(
                    f'{element} extern __thread {alias}* const {name} asm("sim_dynamic_array");'
                )
        elif inside:
            pieces.append(
                f"typedef {kind}{stars} {alias}{sizes}; static char sim_{name}_key; {alias}& {name}"
                f' = ::sim::shared<{alias}>("{name}", &sim_{name}_key);'
            )
        else:
            raise BuildError(
                f"{where}: the __shared__ array {name} is declared outside a function; "
                "the simulator needs it inside the kernel that uses it"
            )
    return " ".join(pieces)


def _in_function(blank: str, at: int) -> bool:
    """Whether a place is inside braces other than those of a namespace or ``extern "C"``."""
    bodies: list[bool] = []
    for brace in re.finditer(r"[{}]", blank[:at]):
        if brace.group() == "{":
            bodies.append(not _NOT_A_BODY.search(blank[: brace.start()]))
        elif bodies:
            bodies.pop()
    return any(bodies)


def _launch_edits(source: str, blank: str, where: str) -> list[tuple[int, int, str]]:
    edits = []
    for match in re.finditer("<<<", blank):
        start = _name_start(blank, match.start())
        close = re.compile(r">>>\s*(?=\()").search(blank, match.end())
        if start is None or close is None or ";" in blank[match.end() : close.start()]:
            line = source.count("\n", 0, match.start()) + 1
            raise BuildError(f"{where}:{line}: cannot read this launch; write kernel<<<...>>>(...)")
        name = " ".join(blank[start : match.start()].split())
        edits.append((start, start, _LAUNCH.format(name, name.replace('"', "'"))))
        edits.append((match.start(), match.end(), "(p...); }, ::sim::config("))
        edits.append((close.start(), close.start() + 3, "))"))
    return edits


def _name_start(blank: str, end: int) -> int | None:
    """Where the kernel's name begins that ends at ``end``: ``ns::name<1, f(2)>``, ``(*name)``."""
    at = end
    while True:
        at = len(blank[:at].rstrip())
        if at and blank[at - 1] in ">)]":
            at = _opening(blank, at - 1)
            if blank[at] == "(" and not re.search(r"[\w>\]]\s*$", blank[:at]):
                return at  # an expression in parentheses
            at = len(blank[:at].rstrip())
            if at and blank[at - 1] in ")]":  # a table of tables
                continue
        word = re.search(r"\w+$", blank[:at])
        if not word:
            return None
        at = word.start()
        before = blank[:at].rstrip()
        if before.endswith("::"):
            at = len(before) - 2
            qualified = blank[:at].rstrip()
            if not re.search(r"[\w>]$", qualified):  # ::name
                return at
        elif before.endswith((".", "->")):
            at = len(before) - (1 if before.endswith(".") else 2)
        else:
            return at


def _opening(blank: str, close: int) -> int:
    """The place of the bracket that the one at ``close`` closes; 0 if there is none."""
    depth = round_depth = 0
    for at in range(close, -1, -1):
        char = blank[at]
        if char in ")]":
            round_depth += 1
        elif char in "([":
            round_depth -= 1
        elif char in "<>" and round_depth == 0 and blank[at - 1 : at + 1] != "->":
            depth += 1 if char == ">" else -1
        if depth == 0 and round_depth == 0:
            return at
    return 0


def _split(text: str) -> list[str]:
    """Split at the commas that are outside all brackets."""
    parts, start, round_depth, angle_depth = [], 0, 0, 0
    for at, char in enumerate(text):
        round_depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
        if round_depth == 0:
            angle_depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "," and round_depth == 0 and angle_depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
