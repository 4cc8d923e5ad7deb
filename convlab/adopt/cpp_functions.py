"""Find the functions that C++ text declares and defines at namespace level, without a compiler."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*"
    | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""",
    re.S | re.X,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\b[\s\w:]*$")
_LINKAGE = re.compile(r'^extern\s+"\s*C?\s*"$|^extern\s+"C"$')
_FUNCTION = re.compile(
    r"^(?:template\s*<.*?>\s*)?(?P<result>[\w:<>,\s*&]+?[\s*&>])(?P<name>[A-Za-z_]\w*)\s*"
    r"\((?P<parameters>.*)\)\s*(?:const|noexcept|\s)*$",
    re.S,
)
_WORDS = {
    "return",
    "else",
    "new",
    "delete",
    "throw",
    "case",
    "using",
    "typedef",
    "goto",
    "operator",
}
# Names of one type, replaced by the first.
_SAME = (
    (r"\b(?:at|c10)::", "torch::"),
    (r"\b(?:std|torch)::optional\b", "optional"),
    (r"\btorch::Tensor\b", "Tensor"),
    (r"\b(?:std::)?int64_t\b|\blong long\b|\blong int\b|\blong\b", "int64_t"),
    (r"\b(?:std::)?size_t\b|\bunsigned int64_t\b", "size_t"),
    (r"\b(?:std::)?int32_t\b", "int"),
    (r"\b(?:std::)?vector\b", "vector"),
    (r"\b(?:std::)?tuple\b", "tuple"),
)


@dataclass(frozen=True)
class Function:
    """A declaration or definition: its position in the text, its parameters' types, its linkage."""

    name: str
    position: int
    end: int
    result: str
    types: tuple[str, ...]
    # The parameters' names; "" for one without a name.
    names: tuple[str, ...]
    defined: bool
    is_c: bool
    is_kernel: bool = False
    is_static: bool = False


def blanked(text: str) -> str:
    """Return C++ text with spaces in place of comments, strings and their quotes."""
    return _BLANK.sub(lambda part: re.sub(r"[^\n]", " ", part[0]), text)


def functions(text: str) -> list[Function]:
    """Return the functions that a C++ text declares or defines outside of classes and functions."""
    code = _DIRECTIVE.sub(
        lambda line: re.sub(r"[^\n]", " ", line[0]), _keep_extern_c(blanked(text), text)
    )
    return list(_scan(code))


def _keep_extern_c(code: str, text: str) -> str:
    """Restore the "C" of ``extern "C"``, which `blanked` removed."""
    for place in re.finditer(r'\bextern\s+"C"', text):
        if code[place.start() : place.start() + 6] == "extern":
            code = code[: place.start()] + place[0] + code[place.end() :]
    return code


def _scan(code: str) -> Iterator[Function]:
    start = 0
    position = 0
    # Of each open brace: whether it is of an extern "C" block.
    open_blocks: list[bool] = []
    while position < len(code):
        char = code[position]
        if char not in ";{}":
            position += 1
            continue
        statement = code[start:position].strip()
        begin = start + len(code[start:position]) - len(code[start:position].lstrip())
        if char == "{" and (_NAMESPACE.match(statement) or _LINKAGE.match(statement)):
            open_blocks.append(statement.startswith("extern"))
        elif char == "{":
            position = _closing(code, position)
            function = _function(statement, begin, position + 1, True, any(open_blocks))
            if function:
                yield function
            elif not statement.endswith(")") and not re.match(
                r"(?:template\s*<[^{]*>\s*)?(?:struct|class|union|enum)\b", statement
            ):
                # An initialiser: the statement ends at its semicolon.
                position += 1
                continue
        elif char == ";":
            function = _function(statement, begin, position + 1, False, any(open_blocks))
            if function:
                yield function
        elif open_blocks:
            open_blocks.pop()
        position += 1
        start = position


def _closing(code: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(code)):
        depth += (code[at] == "{") - (code[at] == "}")
        if not depth:
            return at
    return len(code) - 1


def _function(
    statement: str, position: int, end: int, defined: bool, in_c: bool
) -> Function | None:
    is_c = in_c
    if statement.startswith("extern"):
        rest = re.sub(r'^extern\s+("C"\s*)?', "", statement)
        is_c = is_c or '"C"' in statement[: len(statement) - len(rest)]
        statement = rest
    is_kernel = "__global__" in statement
    is_static = bool(re.search(r"\bstatic\b", statement))
    plain = re.sub(
        r"\b(?:__global__|__device__|__host__|__forceinline__|__inline__|static|inline|constexpr)\b|"
        r"\b__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\[\[\w+\]\]",
        " ",
        statement,
    ).strip()
    match = _FUNCTION.match(plain)
    if not match or match["name"] in _WORDS or set(match["result"].split()) & _WORDS:
        return None
    if "=" in match["result"] or not _balanced(match["parameters"]):
        return None
    parameters = [each for each in _split(match["parameters"]) if each.strip() not in ("", "void")]
    return Function(
        match["name"],
        position,
        end,
        _type(match["result"]),
        tuple(_parameter(each)[0] for each in parameters),
        tuple(_parameter(each)[1] for each in parameters),
        defined,
        is_c,
        is_kernel,
        is_static,
    )


def _balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return not depth


def _split(text: str) -> list[str]:
    """Split parameters at commas outside of brackets."""
    parts = [""]
    depth = 0
    for char in text:
        depth += (char in "(<[{") - (char in ")>]}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _parameter(parameter: str) -> tuple[str, str]:
    """Return the type of a parameter in one spelling, without its default, and its name."""
    text = parameter.partition("=")[0].strip()
    text = re.sub(r"\b__restrict(?:__)?\b", " ", text)
    named = re.match(r"^(.*[\s*&>])([A-Za-z_]\w*)\s*((?:\[[^\]]*\])*)$", text, re.S)
    basic = ("int", "long", "short", "char", "unsigned", "float", "double", "bool", "const")
    if named and named[2] not in basic:
        return _type(named[1] + ("*" if named[3] else "")), named[2]
    return _type(text), ""


def _type(text: str) -> str:
    for pattern, name in _SAME:
        text = re.sub(pattern, name, text)
    text = " ".join(text.split())
    text = re.sub(r"\s*([*&<>,])\s*", r"\1", text).strip()
    if not text.endswith(("*", "&")):
        # const of a value is no part of the type.
        text = re.sub(r"^const |\bconst$", "", text).strip()
    return re.sub(r"\b(\w+) const([*&])", r"const \1\2", text)
