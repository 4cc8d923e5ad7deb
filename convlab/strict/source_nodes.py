"""The expressions of a CUDA source, as trees whose leaves are numbers and fields of the problem.

A node of a tree is a tuple: its kind, and its parts. The kinds are ``("number", 3)``, ``("field", "K")``,
``("op", "<", a, b)``, ``("not", a)``, ``("if", condition, then, other)``, ``("call", "min", a, b)``,
``("wrap", bits, is_unsigned, a)``, ``("param", function, place, name)`` and ``("unknown",)``.
"""

from collections.abc import Iterable, Sequence

FIELDS = (
    *("N", "C", "H", "W", "K", "R", "S", "P", "Q"),
    *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "relu"),
)
Node = tuple
UNKNOWN: Node = ("unknown",)
BIAS: Node = ("field", "bias")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
# A value that is built up from many others is unknown.
MOST_NODES = 400


def negated(node: Node) -> Node:
    """Return the opposite of a condition."""
    if node[0] == "not":
        return node[1]
    return ("not", node)


def fields_of(node: Node) -> set[str]:
    """Return the fields of the problem in a node."""
    if node[0] == "field":
        return {node[1]}
    return set().union(*(fields_of(part) for part in node[1:] if isinstance(part, tuple)))


def literals(node: Node, wanted: bool = True) -> Node:
    """Return a condition, or its opposite, without "not": only &&, || and comparisons are left."""
    if node[0] == "not":
        return literals(node[1], not wanted)
    if node[0] == "op" and node[1] in ("&&", "||"):
        operator = node[1] if wanted else {"&&": "||", "||": "&&"}[node[1]]
        return ("op", operator, literals(node[2], wanted), literals(node[3], wanted))
    if node[0] == "op" and node[1] in COMPARISONS:
        return node if wanted else ("op", _NEGATED[node[1]], *node[2:])
    if node[0] == "if" and is_condition(node[2]) | is_condition(node[3]):
        _, condition, then, other = node
        both = (
            ("op", "&&", literals(condition), literals(then, wanted)),
            ("op", "&&", literals(condition, False), literals(other, wanted)),
        )
        return ("op", "||", *both)
    return ("op", "!=" if wanted else "==", node, ("number", 0))


def field_named(name: str) -> Node:
    """Return the field that a name without a known value has, or unknown."""
    bare = name.removeprefix("g_")
    if bare == "bias":
        return BIAS
    return ("field", name) if name in FIELDS else UNKNOWN


def cast(kind: str, value: Node) -> Node:
    """Return a value as an integer of this type; only short types change it."""
    bits = (
        8 if "char" in kind or "int8" in kind else 16 if "short" in kind or "int16" in kind else 0
    )
    if kind.replace("const", "").strip() in ("float", "double") or "*" in kind:
        return UNKNOWN
    if not bits:
        return value
    return ("wrap", bits, "unsigned" in kind or "uint" in kind, value)


def folded(operator: str, left: Node, right: Node) -> Node:
    """Return an operation, or the number that it gives for numbers."""
    if left[0] == right[0] == "number" and operator not in ("&&", "||"):
        a = left[1]
        b = right[1]
        if operator in ("/", "%"):
            return ("number", a // b if operator == "/" else a % b) if b else UNKNOWN
        if operator in ("+", "-", "*"):
            return ("number", {"+": a + b, "-": a - b, "*": a * b}[operator])
        if operator in ("<<", ">>") and 0 <= b < 64:
            return ("number", a << b if operator == "<<" else a >> b)
    return ("op", operator, left, right)


def if_else(condition: Node, then: Node, other: Node) -> Node:
    if then == other:
        return then
    node = ("if", condition, then, other)
    return node if size_of(node) <= MOST_NODES else UNKNOWN


def chained(operator: str, nodes: Iterable[Node]) -> Node:
    """Return conditions joined by && or ||."""
    joined: Node | None = None
    for node in nodes:
        joined = node if joined is None else ("op", operator, joined, node)
    return UNKNOWN if joined is None else joined


def size_of(node: Node) -> int:
    return 1 + sum(size_of(part) for part in node if isinstance(part, tuple))


def is_condition(node: Node) -> bool:
    """Return whether a node is a condition."""
    return node[0] == "not" or node[0] == "op" and node[1] in (*COMPARISONS, "&&", "||")


def with_arguments(node: Node, name: str, arguments: Sequence[Node]) -> Node:
    """Return the value of a function with its arguments."""
    if node[0] == "param" and node[1] == name:
        given = arguments[node[2]] if node[2] < len(arguments) else UNKNOWN
        return given if given != UNKNOWN else field_named(node[3])
    return tuple(
        with_arguments(part, name, arguments) if isinstance(part, tuple) else part for part in node
    )
