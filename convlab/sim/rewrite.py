"""Rewrite CUDA C++ to C++: only the parts that a C++ compiler cannot compile.

Three things have no C++ syntax: ``kernel<<<grid, block, smem, stream>>>(args)``, ``__shared__``
declarations and inline PTX. A fourth has no hook: the store of a struct that a call returns. ``__device__`` and ``__constant__`` variables become references to
checked memory. ``__noinline__`` becomes an attribute; it cannot be a macro, because the C++ library
uses the word in its own attributes. Everything else (``threadIdx``, ``float4``, ...) is ordinary
C++ with ``include/cuda_runtime.h``. Newlines stay, so the compiler's messages and the line table
still name the lines of the ``.cu`` file.
"""

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from ..core.errors import BuildError

_BLANK = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""",
    re.S | re.X,
)
_ALIGN_TEXT = r"\b(?:alignas|__align__)\s*\((?:[^()]|\([^()]*\))*\)\s*"
_ALIGN = re.compile(_ALIGN_TEXT)
# A type may precede it on its line.
_SHARED = re.compile(
    rf"(?P<before>(?:\b(?:extern|static|volatile|const)\s+|{_ALIGN_TEXT}|"
    r"(?:\b|(?<=\s)::)(?!(?:else|do)\b)\w[\w:]*(?:<[^;{}()\n]*>)?(?<!:)[ \t*]+)*)"
    r"\b(?P<word>__shared__)\s+(?P<rest>[^;{}]*?)\s*;"
)
# The same for a type that is defined in the declaration, up to its members.
_SHARED_TYPE = re.compile(
    rf"(?P<before>(?:\b(?:static|volatile)\s+|{_ALIGN_TEXT})*\b(?P<word>__shared__)\s+"
    rf"(?:\b(?:static|volatile)\s+|{_ALIGN_TEXT})*)"
    rf"(?P<key>union|struct)\b\s*(?P<align>{_ALIGN_TEXT})?(?P<name>\w+)?\s*(?P<open>{{)"
)
# A variable outside of functions, up to its end or its initialiser.
_VARIABLE = re.compile(
    rf"\b__(?:device|constant|managed)__\b(?P<rest>(?:{_ALIGN_TEXT}|\[[^\]]*\]|[^;{{}}()\[\]=#])*)"
    r"(?P<end>[;={])"
)
_NO_TYPE = r"\b__(?:device|constant|managed)__\b|\b(?:static|volatile)\b"
# As enum Use in runtime/types.h; a __device__ variable has 2.
_USES = {"__managed__": 3, "__constant__": 4}
# Declarations with these words are not rewritten. They are constants that the compiler may fold,
# variables of templates, or no definitions of variables.
_NOT_REWRITTEN = {
    "const",
    "constexpr",
    "template",
    "extern",
    "typedef",
    "using",
    "friend",
    "operator",
}
_STORAGE = re.compile(r"\b(?:extern|static)\s+")
_PTX = re.compile(r"\b(?:asm|__asm__|__asm)\b(?:\s*\b(?:volatile|__volatile__))?(?=\s*\()")
_OPERAND = re.compile(
    r"(?P<space>(?:\s|\\\n)*)(?:\[\w+\]\s*)?\"(?P<constraint>[^\"]*)\"(?:\s|\\\n)*"
    r"(?P<value>\(.*\))(?:\s|\\\n)*$",
    re.S,
)
_COMPILER_BARRIER = re.compile(r'\s*\(\s*""')
_TYPE = re.compile(r"(?P<type>.+?)(?P<declarator>[*\s]*\b\w+\s*(?:\[.*\])?)\s*$", re.S)
_DECLARATOR = re.compile(
    r"\s*(?P<stars>[*\s]*?)\s*(?P<name>\w+)\s*(?P<sizes>(?:\[.*\])?)\s*$", re.S
)
# The text before a brace that begins neither a function nor a type.
_NOT_A_BODY = re.compile(r"(?:\bnamespace(?:\s+[\w:]+)?|\bextern)\s*$")
# Brackets without inner brackets. `_masked` replaces them by \x01 and \x02s, or by \x03s.
_ROUND = re.compile(r"\([^()]*\)")
_OTHER = re.compile(r"\[[^\[\]]*\]|<(?:[^<>;{}-]|-(?!>))*>")
# A kernel that is launched, in masked text: ``ns::name<1, f(2)>``, ``table[i].kernel``,
# ``find(1)``, ``(*name)``.
_UNIT = r"\w+(?:\s*\x03+|(?<=[\w\x03])\s*\x01\x02*)*"
_KERNEL = re.compile(
    rf"(?:(?:::\s*)?{_UNIT}|\x01\x02+(?:\s*\x03+)*)(?:\s*(?:::|\.|->)\s*{_UNIT})*\s*$"
)
# The cast of a kernel to a pointer to void, in a call that launches it.
_LAUNCH_CALL = re.compile(
    r"\bcudaLaunch(?:Cooperative)?Kernel(?:ExC\s*\([^,()]*,|\s*\()\s*(?P<cast>\(\s*(?:const\s+)?void\s*"
    r"(?:const\s*)?\*\s*\)|(?:reinterpret|static)_cast\s*<\s*(?:const\s+)?void\s*\*\s*>\s*\()"
)
# The same cast where a kernel becomes a node of a graph.
_NODE = re.compile(
    r"\.\s*func\s*=\s*(?P<cast>\(\s*(?:const\s+)?void\s*\*\s*\)|(?:reinterpret|static)_cast\s*<\s*"
    r"(?:const\s+)?void\s*\*\s*>\s*\()"
)
# The `=` of a statement that stores what a call returns. In masked text, what is before it is no
# declaration: ``s[i]``, ``*p``, ``a.b[i]``, ``p->m``, ``name``.
_ASSIGNED = re.compile(r"(?<![-+*/%&|^=!<>])=(?!=)")
# A cast may precede it: ``*(float4*)p``.
_PLACE = re.compile(r"\s*\**\s*(?:\x01\s*)*(?:\w+|\x01)(?:\s*(?:\x03|\x01|\.\s*\w+|->\s*\w+))*\s*$")
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_BRANCH = re.compile(r"\b(?:if|for|while)\s*(?:constexpr\s*)?$")
# The name of a reference or of its parameter.
_REFERENCE = re.compile(r"&\s*(\w+)\s*(?:=(?!=)|[,)])")
_LAST_NAME = re.compile(r"(\w+)\s*(?:\[.*\])?\s*$", re.DOTALL)
# The definition of a function that may return a struct; an operator's name is that word.
_RETURNS = re.compile(
    r"\b([A-Za-z_][\w:]*)\s*(?:<[^<>;{}()]*>)?\s+(\w+)\s*[-+*/]?\s*\([^;{}]*\)\s*(?:const\s*)?"
    r"(?:->[^;{}()]*)?\{"
)
# A lambda with a name.
_LAMBDA = re.compile(r"\bauto\s+(\w+)\s*=\s*\[[^\[\];{}]*\]\s*\([^;{}]*\)[^;{}()]*\{")
_SCALARS = {
    *("void", "bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double"),
    *("size_t", "return", "else", "new", "case", "operator", "struct", "enum", "namespace"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
# A formatter may have written "<< <".
_OPENING = re.compile(r"<<<|(?<!\boperator)<<\s+<(?!<)")
_CLOSING = re.compile(r"(>>\s*>)\s*(?=\()")
# The text names the kernel twice: for its address and parameter types, and to call it (sim::launch).
# It begins with a word, so that the compiler reports a missing `;` before it as such.
_LAUNCH = (
    '__extension__ ::sim::launch("{1}", [&](auto f){2} {{ return f({0}); }}, [&](auto&... p) {{ '
)
_READABLE = (
    "cannot read this __shared__ declaration; write `__shared__ TYPE NAME[SIZE];`, with the type's "
    "own declaration before it and outside of macros"
)


def rewrite(source: str, where: str = "kernel", functions: Collection[str] = ()) -> str:
    """Return CUDA C++ as C++ that compiles with the simulator's headers.

    ``where`` is the file's name, ``functions`` the `struct_functions` of other files.

    Raises
    ------
    BuildError
        For a launch or a ``__shared__`` declaration that cannot be read; the message has its line.
    """
    blank = _BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source).replace("\\\n", " \n")
    edits = [
        (word.start(), word.end(), "__attribute__((noinline))")
        for word in re.finditer(r"(?<!\(\()\b__noinline__\b", blank)
    ]
    # A file that tests this macro guards its PTX itself.
    if "CONVLAB_SIMULATOR" not in blank:
        # Comments become spaces, and strings stay.
        code = _BLANK.sub(
            lambda m: m[0] if m[0][0] in "\"'" else re.sub(r"[^\n]", " ", m[0]), source
        )
        edits += [
            _ptx(code, blank, word)
            for word in _PTX.finditer(blank)
            if not _COMPILER_BARRIER.match(source, word.end())
        ]
    edits += _cluster_dims(blank)
    edits += _stored_results(blank, source, struct_functions(source) | set(functions))
    for call in (*_LAUNCH_CALL.finditer(blank), *_NODE.finditer(blank)):
        # A C cast goes; a cast with brackets leaves its bracket.
        edits.append((*call.span("cast"), "(" if "<" in call["cast"] else ""))
    at = 0
    declared = {match.start("word"): match for match in _SHARED.finditer(blank)}
    with_type = {match.start("word"): match for match in _SHARED_TYPE.finditer(blank)}
    try:
        for word in re.finditer(r"\b__shared__\b", blank):
            at = word.start()
            if blank[blank.rfind("\n", 0, at) + 1 :].lstrip()[:1] == "#":
                raise ValueError(_READABLE)
            if at in with_type:
                edits += _type_and_variables(blank, with_type[at])
                continue
            if at not in declared:
                raise ValueError(_READABLE)
            edits.append((*declared[at].span(), _declaration(blank, declared[at])))
        edits += _variables(blank)
        for opening in _OPENING.finditer(blank):
            at = opening.start()
            edits += _launch(blank, opening)
    except ValueError as error:
        line = source.count("\n", 0, at) + 1
        text = str(error)
        raise BuildError(f"{where}:{line}: {text}", [(where, line, text)]) from None
    for start, end, text in sorted(edits, reverse=True):
        missing = source.count("\n", start, end) - text.count("\n")
        source = source[:start] + text + "\n" * missing + source[end:]
    return source


def _declaration(blank: str, match: re.Match[str]) -> str:
    """Return a ``__shared__`` declaration in C++: references or pointers to the block's arrays."""
    whole = _ALIGN.sub("", f"{match['before']} {match['rest']}").strip()
    first, *more = _split(_STORAGE.sub("", whole))
    parsed = _TYPE.match(first)
    if not parsed or "=" in parsed["type"]:
        raise ValueError(_READABLE)
    kind = " ".join(parsed["type"].split())
    dynamic = "extern" in whole.split()
    inside = _in_function(blank[: match.start()])
    return _shared_variables(kind, [parsed["declarator"], *more], dynamic, inside)


def _type_and_variables(blank: str, match: re.Match[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that separate a type from the ``__shared__`` variables whose declaration defines it."""
    open_at = match.start("open")
    close = _closing(blank, open_at)
    end = blank.find(";", close)
    if close < 0 or end < 0:
        raise ValueError(_READABLE)
    declarators = _split(blank[close + 1 : end])
    name = match["name"] or f"sim_type_{match.start()}"
    yield *match.span("before"), ""
    if not match["name"]:
        yield open_at, open_at, f" {name} "
    kind = f"volatile {name}" if "volatile" in match["before"] else name
    inside = _in_function(blank[: match.start()])
    yield close + 1, end + 1, "; " + _shared_variables(kind, declarators, False, inside)


def _shared_variables(kind: str, declarators: list[str], dynamic: bool, inside: bool) -> str:
    """Return the C++ of ``__shared__`` variables of one type: references or pointers to the block's arrays."""
    pieces = []
    for declarator in declarators:
        named = _DECLARATOR.match(declarator)
        if not named:
            raise ValueError(_READABLE)
        name = named["name"]
        sizes = named["sizes"]
        stars = "".join(named["stars"].split())
        alias = f"sim_{name}_t"
        if dynamic:
            # The elements of s[][32] are rows of 32 elements.
            pieces.append(f"typedef {kind}{stars} {alias}{sizes.partition(']')[2]};")
            pieces.append(
                f"{alias}* {name} = ({alias}*)sim_dynamic_shared();"
                if inside
                # Outside functions it is the runtime's own pointer, with another name and type.
                else f'extern __thread {alias}* const {name} asm("sim_dynamic_array");'
            )
        elif inside:
            pieces.append(
                f"typedef {kind}{stars} {alias}{sizes}; static char sim_{name}_key; {alias}& {name}"
                f' = ::sim::shared<{alias}>("{name}", &sim_{name}_key);'
            )
        else:
            raise ValueError(
                f"the __shared__ array {name} is declared outside a function; the simulator needs "
                "it inside the kernel that uses it"
            )
    return " ".join(pieces)


def _variables(blank: str) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that move ``__device__`` and ``__constant__`` variables to checked memory.

    The variable gets another name and holds the initial value. Its old name becomes a reference.
    """
    at = 0
    for variable in _VARIABLE.finditer(blank):
        # Skip a match inside the last initialiser.
        if variable.start() < at:
            continue
        start = max(blank.rfind(char, 0, variable.start()) for char in ";{}") + 1
        before = blank[start : variable.start()]
        line = blank.rfind("\n", 0, variable.start()) + 1
        without_directives = re.sub(r"^[ \t]*#.*", "", before, flags=re.M)
        words = set(re.findall(r"\w+", without_directives + variable[0]))
        declarators = _split(variable["rest"])
        typed = _TYPE.match(_ALIGN.sub("", re.sub(_NO_TYPE, "", declarators[0])).strip())
        is_type = variable["end"] == "{" and words & {"struct", "class", "union", "enum"}
        in_macro = blank[line:].lstrip()[:1] == "#"
        if not typed or is_type or words & _NOT_REWRITTEN or in_macro:
            continue
        if _in_function(blank[:start]):
            continue
        at = _end_of_declaration(blank, variable.end() - 1)
        use = max(_USES.get(word, 2) for word in words)
        end = variable.start("rest")
        for declarator in declarators:
            if declared := re.search(r"(\w+)\s*(?:\[.*\])?\s*$", declarator, re.S):
                name = declared[1]
                image = f"sim_{name}_image"
                yield end + declared.start(1), end + declared.end(1), image
                watched = f'::sim::variable("{name}", {image}, {use})'
                yield at + 1, at + 1, f" static auto& {name} = {watched};"
            end += len(declarator) + 1


def _cluster_dims(blank: str) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that give a kernel with ``__cluster_dims__`` a first statement that says so, and list it."""
    for clause in re.finditer(r"\b__cluster_dims__\s*(\([^()]*(?:\([^()]*\)[^()]*)*\))", blank):
        depth = 0
        parameters = clause.end()
        for at in range(clause.end(), len(blank)):
            if blank[at] == "(" and not depth:
                parameters = at
            depth += (blank[at] == "(") - (blank[at] == ")")
            if not depth and blank[at] in ";{":
                break
        else:
            continue
        if blank[at] == "{" and clause[1] != "()":
            yield at + 1, at + 1, f" sim_cluster_dims{clause[1]};"
            end = _closing(blank, at)
            name = re.search(r"(\w+)\s*$", blank[clause.end() : parameters])
            if name and end >= 0:
                yield end + 1, end + 1, f' SIM_HAS_CLUSTER_DIMS("{name[1]}");'


def struct_functions(source: str) -> set[str]:
    """Return the names of the functions in a text that may return a struct."""
    blank = _BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
    found = [*_RETURNS.findall(blank), *(("auto", name) for name in _LAMBDA.findall(blank))]
    return {
        name for kind, name in found if kind not in _SCALARS and name not in _SCALARS - {"operator"}
    }


def _stored_results(
    blank: str, source: str, functions: Collection[str]
) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that store what a call returns by an assignment of its own.

    g++ has no hook for the store in ``s[i] = f()`` if f returns a struct and is not inlined: the call
    itself stores there. So it becomes ``s[i] = ({ auto value = f(); value; })``.
    """
    if not functions:
        return
    references = set(_REFERENCE.findall(blank))
    # Shared arrays and variables outside of functions become references.
    for variable in (*_SHARED.finditer(blank), *_VARIABLE.finditer(blank)):
        named = (_LAST_NAME.search(declarator) for declarator in _split(variable["rest"]))
        references |= {name[1] for name in named if name}
    names = "|".join(sorted(functions))
    call = re.compile(rf"\b(?:{names})\s*(?:<[^;{{}}()]*>\s*)?\(")
    has_operators = "operator" in functions
    for sign in _ASSIGNED.finditer(blank):
        line = source.rfind("\n", 0, sign.start())
        end_of_line = source.find("\n", sign.end())
        in_macro = source[:line].endswith("\\") or source[:end_of_line].endswith("\\")
        if in_macro or source[line + 1 :].lstrip()[:1] == "#":
            continue
        start = _start_of_statement(blank, sign.start())
        # Each pair of brackets becomes one character.
        before = _DIRECTIVE.sub("", blank[start : sign.start()])
        place = re.sub(r"\x02+", "", _masked(before))
        place = re.sub(r"\x03+", "\x03", place)
        if not _PLACE.match(place):
            continue
        if re.fullmatch(r"\s*\w+\s*", place) and place.strip() not in references:
            # A local variable that is no reference has no hooks.
            continue
        end = _end_of_value(blank, sign.end())
        value = blank[sign.end() : end]
        is_call = call.search(value) or has_operators and re.search(r"[-+*/]", value)
        if is_call and value.lstrip()[:1] != "{":
            yield sign.end(), sign.end(), " __extension__ ({ auto sim_value ="
            yield end, end, "; sim_value; })"


def _start_of_statement(blank: str, at: int) -> int:
    """Return where the statement begins that has an assignment at this position."""
    depth = 0
    while at:
        char = blank[at - 1]
        depth += (char in ")]") - (char in "([")
        if depth < 0 or not depth and char in ";{}:?,=" and blank[at - 2 : at] != "::":
            break
        at -= 1
        if not depth and char == "(" and _BRANCH.search(blank[max(at - 30, 0) : at]):
            # These brackets are before the statement.
            return _matching(blank, at) + 1
    return at


def _end_of_value(blank: str, at: int) -> int:
    """Return where an assigned value ends; its beginning if a comma may be in angle brackets."""
    start = at
    depth = 0
    while at < len(blank):
        char = blank[at]
        if not depth and char in ";)]}":
            return at
        if not depth and char == ",":
            return start
        depth += (char in "([{") - (char in ")]}")
        at += 1
    return start


def _ptx(source: str, blank: str, word: re.Match[str]) -> tuple[int, int, str]:
    """Return the edit that turns an ``asm`` statement into a call of ``sim::ptx``.

    ``asm("TEXT" : "=r"(a) : "r"(b))`` becomes ``sim::ptx("TEXT", ptx_out<'r'>(a), ptx_in<'r'>(b))``.
    """
    opening = blank.index("(", word.end())
    closing = _matching(blank, opening)
    sections = _at_top(blank, opening + 1, closing, ":")
    pieces = [source[sections[0][0] : sections[0][1]]]
    for position, (start, end) in enumerate(sections[1:3]):
        if not blank[start:end].strip() and '"' not in source[start:end]:
            continue
        for first, last in _at_top(blank, start, end, ","):
            operand = _OPERAND.match(source, first, last)
            if operand is None:
                continue
            direction = "in" if position else "inout" if "+" in operand["constraint"] else "out"
            letter = operand["constraint"].strip("=+&")[:1] or "r"
            pieces.append(f"{operand['space']}::sim::ptx_{direction}<'{letter}'>{operand['value']}")
    text = f"::sim::ptx({', '.join(pieces)})"
    # Keep the newlines, which end with a backslash in a macro.
    lost = source.count("\n", word.start(), closing + 1) - text.count("\n")
    newline = "\\\n" if "\\\n" in source[word.start() : closing + 1] else "\n"
    return word.start(), closing + 1, text + newline * max(lost, 0)


def _closing(blank: str, opening: int) -> int:
    """Return the position of the bracket that closes the one at `opening`; -1 if there is none."""
    depth = 0
    for at in range(opening, len(blank)):
        depth += (blank[at] in "([{") - (blank[at] in ")]}")
        if not depth:
            return at
    return -1


def _matching(blank: str, opening: int) -> int:
    """Return the position of the bracket that closes the one at `opening`, in an ``asm`` statement."""
    at = _closing(blank, opening)
    if at < 0:
        raise ValueError("this asm statement has no closing bracket")
    return at


def _at_top(blank: str, start: int, end: int, separator: str) -> list[tuple[int, int]]:
    """Return the ranges between the separators that are outside of all brackets."""
    cuts = [start - 1]
    depth = 0
    for at in range(start, end):
        depth += (blank[at] in "([{") - (blank[at] in ")]}")
        if not depth and blank[at] == separator:
            cuts.append(at)
    return [(first + 1, last) for first, last in pairwise([*cuts, end])]


def _end_of_declaration(blank: str, at: int) -> int:
    """Return the position of the ``;`` after an initialiser; `at` is before it."""
    depth = 0
    while at < len(blank) and (blank[at] != ";" or depth):
        depth += (blank[at] in "({") - (blank[at] in ")}")
        at += 1
    return at


def _in_function(before: str) -> bool:
    """Return whether a text ends inside braces other than a namespace's or ``extern "C"``'s."""
    bodies: list[bool] = []
    for brace in re.finditer(r"[{}]", before):
        if brace.group() == "{":
            bodies.append(not _NOT_A_BODY.search(before[: brace.start()]))
        elif bodies:
            bodies.pop()
    return any(bodies)


def _launch(blank: str, opening: re.Match[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that turn one launch into a call."""
    at, end = opening.span()
    statement = max(blank.rfind(char, 0, at) for char in ";{}") + 1
    kernel = _KERNEL.search(_masked(blank[statement:at]))
    close = _CLOSING.search(blank, end)
    if kernel is None or close is None or ";" in blank[end : close.start()]:
        raise ValueError("cannot read this launch; write kernel<<<...>>>(...)")
    start = statement + kernel.start()
    name = " ".join(blank[start:at].split())
    # Where the kernel's type may depend on the arguments, the caller asks whether f takes it. The type
    # is left out elsewhere: g++ 12 crashes if a constant of the function is in it.
    result = "" if _has_all_parameters(blank, name) else f" -> decltype(f({name}))"
    yield start, start, _LAUNCH.format(name, name.replace('"', "'"), result)
    yield at, end, "(p...); }, ::sim::config("
    yield close.start(1), close.end(1), "))"


def _has_all_parameters(blank: str, name: str) -> bool:
    """Return whether a kernel's name, as in ``kernel<float, 8>``, gives each parameter of its template."""
    given = re.match(r"(?:\w+::)*(\w+)\s*<(.*)>$", name, re.DOTALL)
    if given is None:
        return False
    pattern = rf"\btemplate\s*<([^;{{}}()]*)>\s*([^;{{}}]*?)\b{given[1]}\s*\("
    templates = [each for each in re.finditer(pattern, blank) if "__global__" in each[2]]
    counts = {_masked(each[1]).count(",") + 1 for each in templates if "..." not in each[1]}
    return len(templates) > 0 and counts == {_masked(given[2]).count(",") + 1}


def _masked(text: str) -> str:
    """Return a text of the same length in which all brackets and their contents are replaced."""
    before = None
    while before != text:
        before = text
        text = _ROUND.sub(lambda m: "\1" + "\2" * (len(m[0]) - 1), text)
        text = _OTHER.sub(lambda m: "\3" * len(m[0]), text)
    return text


def _split(text: str) -> list[str]:
    """Split a text at the commas outside of all brackets."""
    commas = [comma.start() for comma in re.finditer(",", _masked(text))]
    return [text[start + 1 : end] for start, end in pairwise([-1, *commas, len(text)])]
