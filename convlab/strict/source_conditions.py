"""Find problems for the conditions in a kernel's source that the other problems of a check miss.

A condition such as ``conv.K < 2000`` or ``conv.C == 64 && conv.Q % 4 == 0`` is where a kernel takes
another path. `source_reader.py` reads the conditions. One problem should make a condition true, one
should make it false, and others should be next to its border. For each of these *targets* that no
problem of the check hits, a search finds a problem. It begins with a problem that is near, and changes
one dimension after the other (the alternating variable method: B. Korel, Automated software test data
generation, 1990).

Other targets are the sizes of arrays, which a window may exceed; the borders of the header's
`supports:`; and pairs of large sizes.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType

from ..core.errors import ProblemError
from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .source_nodes import COMPARISONS, Node, fields_of, literals
from .source_reader import Site, read

# At most so many problems come from a source.
MOST = 24
# A search tries to stay below the first number of multiply-adds. Problems with more than the second
# are large, and together they have at most the third.
_FEW_MACS = 1_000_000
_MAX_MACS = 5_000_000
_MACS_OF_LARGE = 130_000_000
_MAX_ELEMENTS = 1_000_000
# A search ends after so many steps, and all of them after so many problems tried.
_STEPS = 12
_TRIES = 60_000
# A condition with several parts needs so many problems that make it true: one with usual other sizes.
_TWICE = 2
# A search changes no size to more than this, and makes no image smaller than a few pixels.
_LARGEST_CHANGE = 100_000
_SMALL_IMAGE = 4
# Windows are tried up to this size.
_LARGEST_SIZE = 4096
# These headers belong to convlab: their conditions are no path of a kernel.
_OURS = re.compile(r"convlab\w*\.cuh")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# Problems with usual sizes, from which a search may begin.
_BASES = (
    "N2 C3 H9 W11 K5 R3 S3 p1 bias",
    "N2 C8 H6 W9 K8 R3 S3 p1",
    "N2 C6 H6 W7 K6 R3 S3 p1 g6",
    "N2 C8 H6 W8 K8 R1 S1",
    "N1 C3 H21 W23 K8 R7 S7 s2 p3",
)
# What may exceed an array or a constant with which something unknown is compared.
_SIZES = {
    "S": "S",
    "R*S": "R * S",
    "C/groups": "(C // groups)",
    "C/groups*S": "(C // groups) * S",
    "C/groups*R*S": "(C // groups) * R * S",
    "K": "K",
    "K/groups": "(K // groups)",
    "Q": "Q",
    "P": "P",
    "W": "W",
    "dilated S": "(dilation_w * (S - 1) + 1)",
    "dilated R": "(dilation_h * (R - 1) + 1)",
}
_WINDOWS = ("S", "R*S", "C/groups", "K", "Q", "P")
# What each kernel should meet, whatever its source says: long filters on wide and on high images,
# many filters on wide images, and the borders of an even row of a depthwise problem.
_TOGETHER = (
    "S > 3 and Q > 256 and groups == 1",
    "S > 3 and Q > 256 and groups == C and C > 1",
    "R > 3 and P > 256",
    "S > 2 and Q > 128 and (stride_w > 1 or dilation_w > 1)",
    "K // groups > 128 and Q > 128",
    "groups == C and C > 1 and W % 2 == 0 and pad_w % 2 == 1 and stride_w == 1 and S > 1 and P > 1",
)
# The sizes whose product or whose first a condition may take for both.
_TWO_SIZES = (
    ("R", "S"),
    ("P", "Q"),
    ("H", "W"),
    ("stride_h", "stride_w"),
    ("dilation_h", "dilation_w"),
    ("pad_h", "pad_w"),
)
_PAIRS = {"stride": "stride", "pad": "padding", "dilation": "dilation"}


def code_of(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a kernel's own texts, by file name, without comments; each line keeps its number."""
    return {
        name: _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
        for name, text in texts.items()
        if not _OURS.fullmatch(name.rpartition("/")[2])
    }


# ---- targets: what a problem should do


@dataclass(frozen=True)
class Target:
    """A condition on the problem: as Python, its distance from being true, and where it is from."""

    test: str
    distance: str
    fields: frozenset[str]
    numbers: frozenset[int]
    words: str
    wanted: int = 1

    @property
    def tested(self) -> CodeType:
        """The test, compiled."""
        return _compiled(self.test)


@lru_cache(4096)
def _compiled(text: str) -> CodeType:
    return compile(text, "<condition>", "eval")


def _wrap(value: int, bits: int, unsigned: bool) -> int:
    value &= (1 << bits) - 1
    return value if unsigned or value < 1 << (bits - 1) else value - (1 << bits)


_BUILT_IN = {
    "__builtins__": {},
    "abs": abs,
    "int": int,
    "ceil_div": lambda a, b: -(-a // b),
    "max": max,
    "min": min,
    "wrap": _wrap,
}


def _number(node: Node) -> str | None:
    """Return an expression as Python; None if a part is unknown."""
    kind = node[0]
    if kind == "number":
        return str(node[1])
    if kind == "field":
        return node[1]
    if kind == "not" or kind == "op" and node[1] in (*COMPARISONS, "&&", "||"):
        found = _condition(literals(node))
        return None if found is None or not found[2] else f"int({found[0]})"
    if kind == "wrap":
        inner = _number(node[3])
        return inner and f"wrap({inner}, {node[1]}, {node[2]})"
    if kind == "if":
        found = _condition(literals(node[1]))
        parts = [_number(part) for part in node[2:]]
        if found is None or not found[2] or None in parts:
            return None
        return f"({parts[0]} if {found[0]} else {parts[1]})"
    if kind == "call":
        parts = [_number(part) for part in node[2:]]
        return None if None in parts else f"{node[1]}({', '.join(map(str, parts))})"
    if kind == "op":
        left = _number(node[2])
        right = _number(node[3])
        if left is None or right is None:
            return None
        return f"({left} {'//' if node[1] == '/' else node[1]} {right})"
    return None


def _condition(node: Node) -> tuple[str, str, bool] | None:
    """Return a condition and its distance as Python, and whether all of it is known.

    `node` comes from `literals`. An unknown part may be true or false, so it is left out. Returns
    None if nothing is known.
    """
    if node[0] != "op":
        return None
    operator = node[1]
    if operator in ("&&", "||"):
        parts = [found for part in node[2:] if (found := _condition(part)) is not None]
        if not parts:
            return None
        word, join = (" and ", "{} + {}") if operator == "&&" else (" or ", "min({}, {})")
        test = word.join(f"({part[0]})" for part in parts)
        distance = parts[0][1] if len(parts) == 1 else join.format(parts[0][1], parts[1][1])
        return test, f"({distance})", len(parts) == 2 and all(part[2] for part in parts)
    left = _number(node[2])
    right = _number(node[3])
    if left is None or right is None:
        return None
    distance = {
        "==": f"abs({left} - {right})",
        "!=": f"int({left} == {right})",
        "<": f"max(0, {left} - {right} + 1)",
        "<=": f"max(0, {left} - {right})",
        ">": f"max(0, {right} - {left} + 1)",
        ">=": f"max(0, {right} - {left})",
    }[operator]
    return f"{left} {operator} {right}", distance, True


def _target(nodes: Iterable[Node], words: str, wanted: int = 1) -> Target | None:
    """Return the target that all of these conditions hold; None if nothing in them is known."""
    found = [each for node in nodes if (each := _condition(node)) is not None]
    # A constant is always true here: it makes no problem better than another.
    found = [each for each in dict.fromkeys(found) if re.search(r"[A-Za-z]", each[0])]
    if not found:
        return None
    test = " and ".join(f"({each[0]})" for each in found)
    names = frozenset(re.findall(r"[A-Za-z_]\w*", test)) - {*_BUILT_IN, "and", "or", "if", "else"}
    numbers = frozenset(int(number) for number in re.findall(r"\b\d+\b", test))
    if not names:
        return None
    distance = " + ".join(each[1] for each in found)
    return Target(test, distance, names, numbers, words, wanted)


def _conjuncts(node: Node) -> list[Node]:
    """Return the parts of a condition that must all be true."""
    if node[0] == "op" and node[1] == "&&":
        return [*_conjuncts(node[2]), *_conjuncts(node[3])]
    return [node]


def targets(sites: Sequence[Site], sizes: Sequence[int], supports: Sequence[str]) -> list[Target]:
    """Return what the problems of a check should do, the most important first."""
    first: list[Target | None] = []
    borders: list[Target | None] = []
    second: list[Target | None] = []
    larger: list[Target | None] = []
    for site in sites:
        words = _words(site)
        path = [part for each in site.path for part in _conjuncts(literals(each))]
        parts = _conjuncts(literals(site.node))
        several = _TWICE if len(parts) + len(path) > 1 else 1
        first.append(_target([*path, *parts], words, several))
        first.append(_target([*path, literals(site.node, False)], words))
        for i, part in enumerate(parts):
            others = [*path, *parts[:i], *parts[i + 1 :]]
            if len(parts) > 1:
                second.append(_target([*others, literals(("not", part))], words))
            borders += _borders(others, part, words)
            larger += _beyond_constant(others, part, words)
    for size in sizes:
        if 2 <= size <= _LARGEST_SIZE:
            for name, text in _SIZES.items():
                words = f"{name} > {size}, the size of an array"
                larger.append(_larger(text, size, [], words))
    lopsided = [each for site in sites for each in _lopsided(site)]
    together = [_target([_python(text)], "large sizes together") for text in _TOGETHER]
    found = (*first, *lopsided, *_corners(supports), *together, *borders, *second, *larger)
    return list({target.test: target for target in reversed(found) if target}.values())[::-1]


def _words(site: Site) -> str:
    """Return a site's text, shortened, and its place."""
    text = site.text if len(site.text) < 80 else site.text[:77] + "..."
    return f"{text}, {site.file}:{site.line}"


def _lopsided(site: Site) -> Iterator[Target | None]:
    """Yield targets for a condition that names a filter's or an image's two sizes in one number.

    A kernel that tests ``R * S == 9`` may mean 3x3 only, and so may one that tests ``R == 3``. So one
    problem makes the condition true with the first size below the second, and one with it above.
    """
    words = _words(site)
    conditions = [part for each in site.path for part in _conjuncts(literals(each))]
    parts = _conjuncts(literals(site.node))
    for part in parts:
        fields = fields_of(part)
        for first, second in _TWO_SIZES:
            if not {first, second} & fields or part[0] != "op" or part[1] not in COMPARISONS:
                continue
            if len({first, second} & fields) == 1 and part[1] != "==":
                continue
            for below in ("<", ">"):
                unequal = ("op", below, ("field", first), ("field", second))
                # Two targets wanted: the search begins with the usual sizes.
                yield _target([*conditions, *parts, unequal], words, _TWICE)


def _borders(others: list[Node], part: Node, words: str) -> Iterator[Target | None]:
    """Yield targets for the values next to the border of a comparison."""
    if part[0] != "op" or part[1] not in COMPARISONS:
        return
    _, _, left, right = part
    if left[0] == "op" and left[1] in ("%", "&") or not (fields_of(left) or fields_of(right)):
        return
    for by in (-1, 0, 1):
        yield _target([*others, ("op", "==", left, ("op", "+", right, ("number", by)))], words)


def _beyond_constant(others: list[Node], part: Node, words: str) -> Iterator[Target | None]:
    """Yield targets with sizes beyond a constant with which something unknown is compared."""
    if part[0] != "op" or part[1] not in COMPARISONS or _condition(part) is not None:
        return
    number = next((each[1] for each in part[2:] if each[0] == "number"), 0)
    if 2 <= number <= _LARGEST_SIZE:
        for name in _WINDOWS:
            yield _larger(_SIZES[name], number, others, words)


def _larger(text: str, size: int, others: list[Node], words: str) -> Target | None:
    """Return the target that a size of the problem is one larger than a number, and `others` hold."""
    rest = _target(others, words)
    test = f"{text} > {size}"
    distance = f"max(0, {size} - {text} + 1)"
    names = frozenset(re.findall(r"[A-Za-z_]\w*", text))
    if rest is None:
        return Target(test, distance, names, frozenset({size}), words)
    return Target(
        f"{rest.test} and {test}",
        f"{rest.distance} + {distance}",
        rest.fields | names,
        rest.numbers | {size},
        words,
    )


def _corners(supports: Sequence[str]) -> Iterator[Target | None]:
    """Yield targets at the upper borders of `supports:`: each alone, R with S, and all at once."""
    most = _upper_borders(supports)
    groups = [[name] for name in most]
    groups.append([name for name in most if name in ("R", "S")])
    groups.append(list(most))
    for names in groups:
        nodes = [("op", "==", ("field", name), ("number", most[name])) for name in names]
        yield _target(nodes, "the border of supports:", min(len(names), _TWICE))


def _upper_borders(supports: Sequence[str]) -> dict[str, int]:
    """Return for each field with an upper border in `supports:` the largest value."""
    most: dict[str, int] = {}
    for text in supports:
        match = re.fullmatch(r"(\w+) (<=|<|==) (\d+)", text)
        among = re.fullmatch(r"(\w+) in \(([\d, ]+)\)", text)
        if match:
            most[match[1]] = int(match[3]) - (match[2] == "<")
        elif among:
            most[among[1]] = max(int(number) for number in re.findall(r"\d+", among[2]))
    return {
        name: value
        for name, value in most.items()
        if name not in ("sm", "smem", "relu") and value <= _LARGEST_SIZE
    }


# ---- the search


class _Search:
    """Search for small problems that a kernel supports, and that hit targets."""

    def __init__(self, kernel: Runnable, known: Sequence[Problem]) -> None:
        self.kernel = kernel
        self.known = [_values(problem) for problem in known]
        bases = [named_problem(spec) for spec in _BASES]
        self.usual = [_values(problem) for problem in bases]
        self.tries = 0
        header = getattr(kernel, "header", None)
        nodes = [_python(text) for text in (header.supports if header else ())]
        found = [_condition(literals(node)) for node in nodes if node is not None]
        self.supported = _compiled(" + ".join(each[1] for each in found if each) or "0")

    def covered(self, target: Target) -> int:
        """Return how many of the known problems hit a target."""
        return sum(_true(target.tested, values) for values in self.known)

    def find(self, target: Target, usual: bool) -> Problem | None:
        """Return a problem that hits the target; the search begins with usual sizes, or with near ones."""
        distance = _compiled(target.distance)
        near = sorted(self.known, key=lambda values: (self._away(distance, values), values["macs"]))
        starts = [*self.usual, *near[:1]] if usual else [*near[:2], *self.usual[:2]]
        for start in starts:
            values = self._walk(distance, target, start)
            problem = None if values is None else _problem(values)
            if problem is not None and not self.kernel.unsupported(problem):
                return problem
        return None

    def add(self, problem: Problem) -> None:
        """Remember a problem that the check will have."""
        self.known.append(_values(problem))

    def _away(self, distance: CodeType, values: Mapping[str, int]) -> float:
        """Return how far values are from the target and from what the kernel supports."""
        try:
            away = eval(distance, _BUILT_IN, values)
            return away + eval(self.supported, _BUILT_IN, values)
        except (ArithmeticError, ValueError, MemoryError):
            return float("inf")

    def _walk(
        self, distance: CodeType, target: Target, values: Mapping[str, int]
    ) -> Mapping[str, int] | None:
        """Change one dimension after the other, until the target is hit with few multiply-adds."""
        best = self._away(distance, values)
        for _ in range(_STEPS):
            if best == 0 and values["macs"] <= _FEW_MACS:
                return values
            moved = None
            for change in _moves(values, target):
                self.tries += 1
                if self.tries > _TRIES:
                    return None
                other = _changed(values, change)
                if other is None:
                    continue
                away = self._away(distance, other)
                cost = max(other["macs"], _FEW_MACS)
                if (away, cost) < (best, max(values["macs"], _FEW_MACS)) and (
                    moved is None or (away, cost) < moved[:2]
                ):
                    moved = (away, cost, other)
            if moved is None:
                break
            best, _, values = moved
        return values if best == 0 else None


def _values(problem: Problem) -> dict[str, int]:
    """Return the numbers of a problem by the names that conditions use."""
    return problem.variables() | {"bias": int(problem.bias), "macs": problem.macs}


def _true(test: CodeType, values: Mapping[str, int]) -> bool:
    try:
        return bool(eval(test, _BUILT_IN, values))
    except (ArithmeticError, ValueError, MemoryError):
        return False


def _moves(values: Mapping[str, int], target: Target) -> Iterator[dict[str, int]]:
    """Yield changes of values that may bring them nearer to a target, or make them smaller."""
    numbers = {near for number in target.numbers for near in (number - 1, number, number + 1)}
    for name in ("N", "C", "H", "W", "K", "R", "S"):
        if name in "RS" and name not in target.fields:
            # A usual filter stays one.
            continue
        now = values[name]
        steps = {now + by for step in (1, 2, 4, 8, 16, 64, 256) for by in (-step, step)}
        multiples = {
            number * (now // number + by) for number in target.numbers if number for by in (0, 1)
        }
        for value in sorted(steps | numbers | multiples | {now // 2, 2 * now, 1, 2}):
            if value == now or not 1 <= value <= _LARGEST_CHANGE:
                continue
            if name in "HW" and value < min(now, _SMALL_IMAGE) and value not in numbers:
                continue
            if name in "CK" and values["groups"] == values["C"] > 1:
                yield {"C": value, "K": value, "groups": value}
            else:
                yield {name: value}
    for name in ("stride_h", "stride_w", "dilation_h", "dilation_w", "pad_h", "pad_w"):
        if name in target.fields:
            near = {values[name] + by for by in (-2, -1, 1, 2)} | numbers
            for value in sorted(near):
                if (name[0] == "p") <= value + 1 and value >= (name[0] != "p") and value <= 64:
                    yield {name: value}
    if target.fields & {"P", "Q"}:
        # Other outputs, by the image's size.
        for name, size in (("P", "H"), ("Q", "W")):
            for value in sorted(numbers):
                more = (value - values[name]) * values[f"stride_{size.lower()}"]
                yield {size: values[size] + more}
    yield from _products(values, target)
    if "groups" in target.fields:
        for value in sorted({1, 2, 3, *numbers}):
            yield {"C": 2 * value, "K": 2 * value, "groups": value}
            yield {"C": value, "K": value, "groups": value}
    for name in ("relu", "bias"):
        if name in target.fields:
            yield {name: 1 - values[name]}


def _products(values: Mapping[str, int], target: Target) -> Iterator[dict[str, int]]:
    """Yield changes of two sizes at once whose product is a number of the target."""
    factors = [
        (first, number // first)
        for number in target.numbers
        for first in range(1, min(number, _LARGEST_SIZE) + 1)
        if number % first == 0
    ]
    for first, second in factors:
        for names in (("R", "S"), ("H", "W")):
            if target.fields.issuperset(names):
                yield dict(zip(names, (first, second), strict=True))
        if target.fields.issuperset("PQ"):
            more = (first - values["P"]) * values["stride_h"]
            wider = (second - values["Q"]) * values["stride_w"]
            yield {"H": values["H"] + more, "W": values["W"] + wider}


def _changed(values: Mapping[str, int], change: Mapping[str, int]) -> dict[str, int] | None:
    """Return changed values with their P and Q; None if they are no convolution, or a large one."""
    other = {**values, **change}
    groups = other["groups"]
    if min(other[name] for name in "NCHWKRS") < 1 or groups < 1:
        return None
    if other["C"] % groups or other["K"] % groups:
        return None
    for name, size, taps, axis in (("P", "H", "R", "h"), ("Q", "W", "S", "w")):
        extent = other[f"dilation_{axis}"] * (other[taps] - 1) + 1
        room = other[size] + 2 * other[f"pad_{axis}"] - extent
        if room < 0:
            if taps not in change and f"dilation_{axis}" not in change:
                return None
            # A larger filter needs a larger image.
            other[size] -= room
            room = 0
        other[name] = room // other[f"stride_{axis}"] + 1
    outputs = other["N"] * other["K"] * other["P"] * other["Q"]
    inputs = other["N"] * other["C"] * other["H"] * other["W"]
    filters = other["K"] * (other["C"] // groups) * other["R"] * other["S"]
    other["macs"] = outputs * (other["C"] // groups) * other["R"] * other["S"]
    if max(inputs, filters, outputs) > _MAX_ELEMENTS or other["macs"] > _MACS_OF_LARGE:
        return None
    return other


def _problem(values: Mapping[str, int]) -> Problem | None:
    """Return the problem with these values."""
    pairs = {key: (values[f"{name}_h"], values[f"{name}_w"]) for name, key in _PAIRS.items()}
    try:
        return Problem(
            **{name: values[name] for name in "NCHWKRS"},
            **pairs,
            groups=values["groups"],
            bias=bool(values["bias"]),
            relu=bool(values["relu"]),
        )
    except ProblemError:
        return None


def _python(text: str) -> Node | None:
    """Return a condition of a header, which is Python, as a node; None if it cannot be read."""
    try:
        return _python_node(ast.parse(text, mode="eval").body)
    except (KeyError, TypeError, SyntaxError):
        return None


_PYTHON = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
}


def _python_node(tree: ast.expr) -> Node:
    match tree:
        case ast.Constant(value):
            return ("number", int(value))
        case ast.Name(name):
            # What a GPU has is no matter of the problem.
            return ("unknown",) if name in ("sm", "smem") else ("field", name)
        case ast.BinOp(left, operator, right):
            return ("op", _PYTHON[type(operator)], _python_node(left), _python_node(right))
        case ast.UnaryOp(ast.Not(), operand):
            return ("not", _python_node(operand))
        case ast.UnaryOp(ast.USub(), operand):
            return ("op", "-", ("number", 0), _python_node(operand))
        case ast.BoolOp(operator, values):
            word = "&&" if isinstance(operator, ast.And) else "||"
            return _all(word, [_python_node(value) for value in values])
        case ast.Compare(left, operators, values):
            found = []
            for operator, value in zip(operators, values, strict=True):
                found.append(_compared(left, operator, value))
                left = value
            return _all("&&", found)
    raise TypeError


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Node:
    if isinstance(operator, ast.In | ast.NotIn):
        assert isinstance(right, ast.Tuple | ast.List)
        equal = [("op", "==", _python_node(left), _python_node(each)) for each in right.elts]
        node = _all("||", equal)
        return node if isinstance(operator, ast.In) else ("not", node)
    return ("op", _PYTHON[type(operator)], _python_node(left), _python_node(right))


def _all(operator: str, nodes: Sequence[Node]) -> Node:
    joined, *others = nodes
    for node in others:
        joined = ("op", operator, joined, node)
    return joined


# ---- the problems


def source_targets(kernel: Runnable) -> list[Target]:
    """Return what the source and the header of a kernel ask of the problems of a check."""
    texts = code_of(dict(kernel.texts))
    if not texts:
        return []
    sites, sizes = read(texts, dict(kernel.defines))
    header = getattr(kernel, "header", None)
    return targets(sites, sizes, header.supports if header else ())


def source_problems(kernel: Runnable, known: Sequence[Problem]) -> list[Problem]:
    """Return at most `MOST` problems for targets that the supported problems `known` do not hit.

    A problem's name has the values that the target needs, and the condition.
    """
    search = _Search(kernel, known)
    found: dict[Problem, Problem] = {}
    large = 0
    for target in source_targets(kernel):
        missing = target.wanted - search.covered(target)
        for i in range(missing):
            problem = search.find(target, usual=i == 0 and target.wanted == _TWICE)
            if problem is None or problem in found:
                continue
            if problem.macs > _MAX_MACS:
                large += problem.macs
                if large > _MACS_OF_LARGE:
                    continue
            search.add(problem)
            values = _values(problem)
            needed = ", ".join(f"{name} = {values[name]}" for name in sorted(target.fields))
            found[problem] = replace(problem, name=f"{needed} ({target.words})")
            if len(found) == MOST:
                return list(found.values())
    return list(found.values())
