"""Read the conditions and the sizes of arrays in a CUDA source, as functions of the problem.

This is no compiler. It follows what often stands between a problem's dimension and a condition: local
variables, macros, constants, members of structs, parameters of functions and kernels, small functions,
`if`, `switch`, early returns and ternaries. What it cannot follow is unknown, and a condition may be
unknown in a part.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

FIELDS = (
    *("N", "C", "H", "W", "K", "R", "S", "P", "Q"),
    *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "relu"),
)
# A node of an expression is a tuple: its kind, and its parts.
Node = tuple
UNKNOWN: Node = ("unknown",)
BIAS: Node = ("field", "bias")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_TOKEN = re.compile(
    r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|0[xX][0-9a-fA-F']+\w*|\.?\d[\w.']*"
    r"|(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_~]\w*)*|<<<|>>>|<<=|>>=|->|\+\+|--|&&|\|\||[-+*/%&|^!<>=]=|<<|>>"
    r"|[^\s\w]"
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
_DEFINE = re.compile(r"[ \t]*#\s*define\s+(\w+)(\([\w\s,]*\))?[ \t]*(.*)", re.S)
_NAME = re.compile(r"[A-Za-z_][\w:]*")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlLzZ]*")
_TYPES = {
    *("const", "volatile", "unsigned", "signed", "int", "long", "short", "char", "bool", "auto"),
    *("size_t", "float", "double", "void", "ptrdiff_t", "uint", "dim3"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"std::{name}" for name in ("size_t", "int64_t", "uint32_t", "int32_t", "uint64_t")),
}
_CASTS = ("static_cast", "reinterpret_cast", "const_cast")
_MINIMA = {"min": "min", "std::min": "min", "min_of": "min", "fmin": "min", "umin": "min"}
_MAXIMA = {name.replace("min", "max"): "max" for name in _MINIMA}
_BUILT_IN = (
    _MINIMA | _MAXIMA | {"ceil_div": "ceil_div", "abs": "abs", "::min": "min", "::max": "max"}
)
_ENDS = ("return", "break", "continue", "goto", "throw")
_OPENING = {"(": ")", "[": "]", "{": "}"}
# A value that is built up from many others is unknown.
_MOST_NODES = 400


@dataclass(frozen=True)
class Site:
    """A condition in a source: what must hold before it is reached, the condition, and its place."""

    path: tuple[Node, ...]
    node: Node
    file: str
    line: int
    text: str


@dataclass
class _Function:
    params: list[str]
    # The conditions of each return, and its value.
    returns: list[tuple[tuple[Node, ...], Node]] = field(default_factory=list)


@dataclass(frozen=True)
class _Token:
    text: str
    line: int


class _End(Exception):
    """The text is not what this reader can follow."""


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


def read(texts: Mapping[str, str], defines: Mapping[str, int]) -> tuple[list[Site], list[int]]:
    """Return the conditions, and the sizes of arrays, in texts without comments, by file name.

    The values of `defines` replace those of macros with the same name.
    """
    reader = _Reader(defines)
    files = {name: reader.tokens(text) for name, text in texts.items()}
    # A header comes after the file that includes it, and defines what that uses.
    for name, tokens in reversed(files.items()):
        reader.file(name, tokens)
    sites = [
        replace(
            site,
            node=reader.resolved(site.node),
            path=tuple(reader.resolved(each) for each in site.path),
        )
        for site in reader.sites
    ]
    sizes = {value for node in reader.sizes for value in _constants(reader.resolved(node))}
    return list(dict.fromkeys(sites)), sorted(sizes)


def _constants(node: Node) -> Iterator[int]:
    if node[0] == "number":
        yield node[1]


class _Reader:
    """Walk over statements; remember the values of names, and the conditions on the way."""

    def __init__(self, defines: Mapping[str, int]) -> None:
        self.defines = dict(defines)
        self.macros: dict[str, tuple[list[str] | None, list[_Token]]] = {}
        self.globals: dict[str, Node] = {}
        self.functions: dict[str, _Function] = {}
        self.calls: dict[str, list[list[Node]]] = {}
        self.sites: list[Site] = []
        self.sizes: list[Node] = []
        self.name = ""
        self._expanding: list[str] = []

    # ---- tokens

    def tokens(self, text: str) -> list[_Token]:
        """Return the tokens of a text; remember and remove its macros."""

        def directive(match: re.Match[str]) -> str:
            if defined := _DEFINE.fullmatch(match[0]):
                name, params, value = defined.groups()
                names = None if params is None else re.findall(r"\w+", params)
                line = text.count("\n", 0, match.start()) + 1
                body = [_Token(word, line) for word in _TOKEN.findall(value.replace("\\\n", " "))]
                self.macros.setdefault(name, (names, body))
            return "\n" * match[0].count("\n")

        code = _DIRECTIVE.sub(directive, text)
        found = []
        line = 1
        at = 0
        for match in _TOKEN.finditer(code):
            line += code.count("\n", at, match.start())
            at = match.start()
            found.append(_Token(match[0], line))
        return found

    def file(self, name: str, tokens: list[_Token]) -> None:
        """Read a file's tokens."""
        self.name = name
        self._declarations(tokens)

    def _declarations(self, tokens: list[_Token]) -> None:
        """Read functions and constants outside of functions."""
        at = 0
        while at < len(tokens):
            end = at
            while end < len(tokens) and tokens[end].text not in ("{", ";", "="):
                end = _after(tokens, end) if tokens[end].text in "([" else end + 1
            if end >= len(tokens):
                return
            head = tokens[at:end]
            words = [token.text for token in head]
            if tokens[end].text == "{":
                close = _after(tokens, end)
                body = tokens[end + 1 : close - 1]
                if ")" in words and "namespace" not in words:
                    self._function(head, body)
                elif "enum" not in words:
                    self._declarations(body)
                at = close
                continue
            end = _statement_end(tokens, at)
            self._simple(tokens[at:end], self.globals, ())
            at = end

    def _function(self, head: Sequence[_Token], body: list[_Token]) -> None:
        """Read a function: its parameters, conditions and returned values."""
        # The parameters are in the last brackets.
        close = max(i for i, token in enumerate(head) if token.text == ")")
        opening = _opening(head, close)
        if opening < 1:
            return
        name = head[opening - 1].text
        params = [_last_name(part) for part in _split(head[opening + 1 : close])]
        function = self.functions[name] = _Function(params)
        env = dict(self.globals)
        for i, param in enumerate(params):
            env[param] = ("param", name, i, param)
        self._block(body, env, (), function)

    # ---- statements

    def _block(
        self,
        tokens: list[_Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> tuple[bool, tuple[Node, ...]]:
        """Read statements; return whether they end the function or loop, and what holds after them."""
        at = 0
        while at < len(tokens):
            word = tokens[at].text
            if word in (";", "}", ":"):
                at += 1
                continue
            if word == "{":
                close = _after(tokens, at)
                ended, path = self._block(tokens[at + 1 : close - 1], env, path, function)
                if ended:
                    return True, path
                at = close
            elif word == "if":
                at, path, ended = self._if(tokens, at, env, path, function)
                if ended:
                    return True, path
            elif word in ("for", "while") and at + 1 < len(tokens):
                at = self._loop(tokens, at, env, path, function)
            elif word == "do":
                at += 1
            elif word == "switch":
                at = self._switch(tokens, at, env, path, function)
            elif word == "else":
                # It belongs to an `if` that could not be read.
                at += 1
            else:
                end = _statement_end(tokens, at)
                statement = tokens[at:end]
                if word == "return" and function is not None:
                    value = self._value(statement[1:], env, path)
                    function.returns.append((path, value))
                else:
                    self._simple(statement, env, path, function)
                if word in _ENDS:
                    return True, path
                at = end
        return False, path

    def _if(
        self,
        tokens: list[_Token],
        at: int,
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> tuple[int, tuple[Node, ...], bool]:
        """Read an `if`; return where it ends, what holds after it, and whether both branches end."""
        opening = at + 1
        while opening < len(tokens) and tokens[opening].text != "(":
            opening += 1
        close = _after(tokens, opening)
        inside = tokens[opening + 1 : close - 1]
        # `if (int n = f(); n > 3)` and `if (const char* error = f())`
        parts = _split(inside, ";")
        for part in parts[:-1]:
            self._simple(part, env, path)
        condition = self._value(parts[-1] if parts else [], env, path)
        end = _branch_end(tokens, close)
        then_env = dict(env)
        ended, _ = self._block(_inner(tokens[close:end]), then_env, (*path, condition), function)
        else_ended = False
        else_env = dict(env)
        if end < len(tokens) and tokens[end].text == "else":
            start = end + 1
            end = _branch_end(tokens, start)
            inner = _inner(tokens[start:end])
            else_ended, _ = self._block(inner, else_env, (*path, negated(condition)), function)
        for name in env:
            then = then_env[name]
            other = else_env[name]
            if ended:
                env[name] = other
            elif else_ended or then == other:
                env[name] = then
            else:
                env[name] = _if_else(condition, then, other)
        if ended and not else_ended:
            path = (*path, negated(condition))
        elif else_ended and not ended:
            path = (*path, condition)
        return end, path, ended and else_ended

    def _loop(
        self,
        tokens: list[_Token],
        at: int,
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> int:
        """Read a loop: what it changes is unknown in it and after it."""
        close = _after(tokens, at + 1)
        end = _branch_end(tokens, close)
        for name in _changed(tokens[at:end]):
            if name in env:
                env[name] = UNKNOWN
        inside = dict(env)
        for part in _split(tokens[at + 2 : close - 1], ";"):
            for name in _changed(part):
                inside[name] = UNKNOWN
            self._value(part, inside, path)
        self._block(_inner(tokens[close:end]), inside, path, function)
        return end

    def _switch(
        self,
        tokens: list[_Token],
        at: int,
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> int:
        """Read a `switch`: each case is a condition on its value."""
        close = _after(tokens, at + 1)
        value = self._value(tokens[at + 2 : close - 1], env, path)
        end = _branch_end(tokens, close)
        body = _inner(tokens[close:end])
        starts = [i for i, token in enumerate(body) if token.text in ("case", "default")]
        equal: list[Node] = []
        for start, stop in zip(starts, [*starts[1:], len(body)], strict=True):
            colon = start
            while colon < stop and body[colon].text != ":":
                colon += 1
            if body[start].text == "default":
                condition = negated(_joined("||", equal)) if equal else UNKNOWN
            else:
                label = self._value(body[start + 1 : colon], env, path)
                condition = ("op", "==", value, label)
                equal.append(condition)
                text = f"switch ({_text(tokens[at + 2 : close - 1])}) {_text(body[start:colon])}"
                self._site(condition, path, body[start].line, text)
            inner = dict(env)
            self._block(body[colon + 1 : stop], inner, (*path, condition), function)
            for name in env:
                if inner[name] != env[name]:
                    env[name] = _if_else(condition, inner[name], env[name])
        return end

    def _simple(
        self,
        tokens: list[_Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None = None,
    ) -> None:
        """Read a declaration, an assignment or another expression, and the blocks in it."""
        self._launches(tokens, env, path)
        first = True
        for part in _split(tokens, ","):
            self._assignment(part, env, path, first)
            first = False
        # The body of a lambda.
        at = 0
        while at < len(tokens):
            if tokens[at].text == "{" and at and tokens[at - 1].text not in ("=", "]", ","):
                close = _after(tokens, at)
                before = tokens[:at]
                inner = dict(env)
                lambda_ = self._lambda(before, inner)
                self._block(tokens[at + 1 : close - 1], inner, path, lambda_)
                at = close
            else:
                at += 1

    def _lambda(self, before: Sequence[_Token], env: dict[str, Node]) -> _Function:
        """Return the function for a lambda, and give its parameters to `env`."""
        params: list[str] = []
        if before and before[-1].text == ")":
            opening = _opening(before, len(before) - 1)
            params = [_last_name(part) for part in _split(before[opening + 1 : -1])]
        equals = [i for i, token in enumerate(before) if token.text == "="]
        name = before[equals[0] - 1].text if equals and equals[0] else "a lambda"
        function = _Function(params)
        for i, param in enumerate(params):
            env[param] = ("param", name, i, param)
        if name != "a lambda":
            self.functions[name] = function
        return function

    def _assignment(
        self, tokens: list[_Token], env: dict[str, Node], path: tuple[Node, ...], first: bool
    ) -> None:
        """Read `TYPE name = value`, `name[size]`, `name op= value`, or an expression."""
        texts = [token.text for token in tokens]
        at = next((i for i in range(len(texts)) if _is_assignment(texts[i])), None)
        left = tokens if at is None else tokens[:at]
        lefts = [token.text for token in left]
        if "[" in lefts and (len(lefts) < 2 or lefts[0] != "[") and _declares(lefts, first):
            self._array(left, env, path)
        if at is None:
            for name in _changed(tokens):
                if name in env:
                    env[name] = UNKNOWN
            if "[" not in lefts or not _declares(lefts, first):
                self._value(tokens, env, path)
            return
        right = tokens[at + 1 :]
        value = self._value(right, env, path) if right and right[0].text != "{" else UNKNOWN
        name = _target(lefts)
        if not name:
            return
        if texts[at] == "=":
            env[name] = value
        elif texts[at] in ("&=", "|=") and _is_boolean(value):
            env[name] = ("op", texts[at][0] * 2, env.get(name, UNKNOWN), value)
        else:
            env[name] = UNKNOWN

    def _array(self, left: Sequence[_Token], env: dict[str, Node], path: tuple[Node, ...]) -> None:
        """Remember the sizes of a declared array, and their product."""
        product: Node | None = None
        at = 0
        while at < len(left):
            if left[at].text == "[":
                close = _after(left, at)
                size = self._value(list(left[at + 1 : close - 1]), env, path)
                self.sizes.append(size)
                product = size if product is None else _folded("*", product, size)
                at = close
            else:
                at += 1
        if product is not None:
            self.sizes.append(product)

    def _launches(
        self, tokens: Sequence[_Token], env: dict[str, Node], path: tuple[Node, ...]
    ) -> None:
        """Remember the arguments of the launches in a statement."""
        for i, token in enumerate(tokens):
            if token.text != "<<<":
                continue
            start = i - 1
            if start >= 0 and tokens[start].text == ">":
                while start > 0 and tokens[start].text != "<":
                    start -= 1
                start -= 1
            close = next((j for j in range(i, len(tokens)) if tokens[j].text == ">>>"), None)
            if start < 0 or close is None or close + 1 >= len(tokens):
                continue
            end = _after(tokens, close + 1)
            self._call(tokens[start].text, tokens[close + 2 : end - 1], env, path)

    def _call(
        self,
        name: str,
        inside: Sequence[_Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
    ) -> list[Node]:
        arguments = [self._value(part, env, path) for part in _split(inside)]
        self.calls.setdefault(name, []).append(arguments)
        return arguments

    # ---- expressions

    def _value(
        self, tokens: Sequence[_Token], env: dict[str, Node], path: tuple[Node, ...]
    ) -> Node:
        """Return an expression's value; a condition in it is a site."""
        if tokens and tokens[-1].text == ";":
            tokens = tokens[:-1]
        if not tokens:
            return UNKNOWN
        parser = _Parser(self, tokens, env, path)
        try:
            node = parser.ternary()
        except (_End, RecursionError):
            return UNKNOWN
        if parser.at < len(tokens):
            node = UNKNOWN
        if _is_boolean(node):
            self._site(node, path, tokens[0].line, _text(tokens))
        return node if _size(node) <= _MOST_NODES else UNKNOWN

    def _site(self, node: Node, path: tuple[Node, ...], line: int, text: str) -> None:
        if not self._expanding:
            self.sites.append(Site(path, node, self.name, line, text))

    def name_value(self, name: str, env: dict[str, Node], path: tuple[Node, ...]) -> Node:
        """Return the value of a name."""
        if name in self.defines:
            return ("number", self.defines[name])
        if name in env:
            return env[name]
        if name in self.globals:
            return self.globals[name]
        if name in self.macros and name not in self._expanding:
            params, body = self.macros[name]
            if params is None:
                return self._expanded(name, body, env, path)
        return _named(name)

    def _expanded(
        self, name: str, body: Sequence[_Token], env: dict[str, Node], path: tuple[Node, ...]
    ) -> Node:
        """Return the value of a macro's text."""
        self._expanding.append(name)
        try:
            return self._value(body, env, path)
        finally:
            self._expanding.pop()

    def applied(
        self,
        name: str,
        inside: Sequence[_Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
    ) -> Node:
        """Return the value of a call."""
        arguments = self._call(name, inside, env, path)
        if name in self.macros and self.macros[name][0] is not None:
            params, body = self.macros[name]
            if name in self._expanding or len(params or ()) != len(arguments):
                return UNKNOWN
            return self._expanded(name, body, env | dict(zip(params, arguments)), path)
        if name in _BUILT_IN:
            return ("call", _BUILT_IN[name], *arguments)
        if name in _TYPES and len(arguments) == 1:
            return _cast(name, arguments[0])
        function = self.functions.get(name)
        if function is None or not function.returns:
            return UNKNOWN
        *others, (_, value) = function.returns
        for condition, earlier in reversed(others):
            value = _if_else(_joined("&&", condition), earlier, value) if condition else earlier
        return _substituted(value, name, arguments)

    def resolved(self, node: Node, depth: int = 0) -> Node:
        """Return a node with the parameters of functions replaced by what the calls give them."""
        if node[0] == "param":
            _, name, place, param = node
            given = {
                arguments[place]
                for arguments in self.calls.get(name, ())
                if place < len(arguments) and arguments[place] != node
            }
            if len(given) == 1 and depth < 8:
                found = self.resolved(given.pop(), depth + 1)
                if found != UNKNOWN:
                    return found
            return _named(param)
        return tuple(
            self.resolved(part, depth) if isinstance(part, tuple) else part for part in node
        )


class _Parser:
    """Parse one expression by its operators' precedence."""

    def __init__(
        self,
        reader: _Reader,
        tokens: Sequence[_Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
    ) -> None:
        self.reader = reader
        self.tokens = tokens
        self.env = env
        self.path = path
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def ternary(self) -> Node:
        start = self.at
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        tokens = self.tokens[start : self.at]
        if _is_boolean(condition) or fields_of(condition):
            self.reader._site(condition, self.path, tokens[0].line, _text(tokens))
        self.at += 1
        then = self.ternary()
        if self.peek() != ":":
            raise _End
        self.at += 1
        return _if_else(condition, then, self.ternary())

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator = self.peek()
            self.at += 1
            left = _folded(operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Node:
        word = self.peek()
        if word == "!":
            self.at += 1
            return negated(self.unary())
        if word == "-":
            self.at += 1
            return _folded("-", ("number", 0), self.unary())
        if word in ("+", "*"):
            self.at += 1
            value = self.unary()
            return value if word == "+" else UNKNOWN
        if word in ("&", "~", "++", "--", "sizeof"):
            self.at += 1
            self.unary()
            return ("number", 4) if word == "sizeof" else UNKNOWN
        return self.postfix()

    def postfix(self) -> Node:
        word = self.peek()
        if word == "(":
            close = _after(self.tokens, self.at)
            inside = [token.text for token in self.tokens[self.at + 1 : close - 1]]
            start = self.at
            self.at = close
            if inside and all(text in _TYPES or text == "*" for text in inside):
                return _cast(" ".join(inside), self.unary())
            inner = _Parser(self.reader, self.tokens[start + 1 : close - 1], self.env, self.path)
            node = inner.ternary()
            return self.suffixes(node if inner.at == len(inner.tokens) else UNKNOWN)
        self.at += 1
        if integer := _INTEGER.fullmatch(word.replace("'", "")):
            return ("number", int(integer[1], 0))
        if word in ("true", "false", "nullptr", "NULL"):
            return ("number", int(word == "true"))
        if word == "[":
            # A lambda.
            self.at = len(self.tokens)
            return UNKNOWN
        if not _NAME.fullmatch(word.removeprefix("::")):
            if word[:1] in "\"'" or word[:1].isdigit() or word[:1] == ".":
                return UNKNOWN
            raise _End
        return self.named(word)

    def named(self, word: str) -> Node:
        if self.peek() in (".", "->") and self.at + 1 < len(self.tokens):
            member = self.tokens[self.at + 1].text
            self.at += 2
            known = f"{word}.{member}"
            if known in self.env:
                return self.suffixes(self.env[known])
            if member in FIELDS and self.peek() not in ("(", ".", "->", "["):
                return ("field", member)
            return self.suffixes(UNKNOWN)
        if self.peek() == "<":
            close = self.template()
            if close:
                self.at = close
        if self.peek() == "(":
            close = _after(self.tokens, self.at)
            inside = self.tokens[self.at + 1 : close - 1]
            self.at = close
            if word in _CASTS:
                return self.reader._value(inside, self.env, self.path)
            return self.suffixes(self.reader.applied(word, inside, self.env, self.path))
        value = self.reader.name_value(word, self.env, self.path)
        return self.suffixes(value) if self.peek() in ("[", ".", "->", "++", "--") else value

    def template(self) -> int:
        """Return the position after `<...>` if a call follows it, else 0."""
        depth = 0
        for at in range(self.at, min(self.at + 30, len(self.tokens))):
            text = self.tokens[at].text
            if text in (";", "{", "&&", "||", "=="):
                return 0
            depth += (text == "<") - (text == ">")
            if not depth:
                follows = self.tokens[at + 1].text if at + 1 < len(self.tokens) else ""
                return at + 1 if follows == "(" else 0
        return 0

    def suffixes(self, node: Node) -> Node:
        """Skip indices, members and calls after a value, which make it unknown."""
        while self.peek() in ("[", "(", ".", "->", "++", "--"):
            node = UNKNOWN
            if self.peek() in "[(":
                self.at = _after(self.tokens, self.at)
            else:
                self.at += 1 if self.peek() in ("++", "--") else 2
        return node


# ---- nodes


def _named(name: str) -> Node:
    """Return the field that a name without a known value has, or unknown."""
    bare = name.removeprefix("g_")
    if bare == "bias":
        return BIAS
    return ("field", name) if name in FIELDS else UNKNOWN


def _cast(kind: str, value: Node) -> Node:
    """Return a value as an integer of this type; only short types change it."""
    bits = (
        8 if "char" in kind or "int8" in kind else 16 if "short" in kind or "int16" in kind else 0
    )
    if kind.replace("const", "").strip() in ("float", "double") or "*" in kind:
        return UNKNOWN
    if not bits:
        return value
    return ("wrap", bits, "unsigned" in kind or "uint" in kind, value)


def _folded(operator: str, left: Node, right: Node) -> Node:
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


def _if_else(condition: Node, then: Node, other: Node) -> Node:
    if then == other:
        return then
    node = ("if", condition, then, other)
    return node if _size(node) <= _MOST_NODES else UNKNOWN


def _joined(operator: str, nodes: Iterable[Node]) -> Node:
    """Return conditions joined by && or ||."""
    joined: Node | None = None
    for node in nodes:
        joined = node if joined is None else ("op", operator, joined, node)
    return UNKNOWN if joined is None else joined


def _size(node: Node) -> int:
    return 1 + sum(_size(part) for part in node if isinstance(part, tuple))


def _is_boolean(node: Node) -> bool:
    """Return whether a node is a condition."""
    return node[0] == "not" or node[0] == "op" and node[1] in (*COMPARISONS, "&&", "||")


def _substituted(node: Node, name: str, arguments: Sequence[Node]) -> Node:
    """Return the value of a function with its arguments."""
    if node[0] == "param" and node[1] == name:
        given = arguments[node[2]] if node[2] < len(arguments) else UNKNOWN
        return given if given != UNKNOWN else _named(node[3])
    return tuple(
        _substituted(part, name, arguments) if isinstance(part, tuple) else part for part in node
    )


# ---- tokens


def _text(tokens: Sequence[_Token]) -> str:
    """Return tokens as text, with the usual spaces."""
    text = " ".join(token.text for token in tokens)
    text = re.sub(r"\s*(\.|->|::|\(|\[)\s*(?=\S)", r"\1", text)
    text = re.sub(r"(&&|\|\||[=!<>]=|[<>+*/%?:,&|=]) ?\(", r"\1 (", text)
    return re.sub(r"\s+([)\],;])", r"\1", re.sub(r"! (?=\S)", "!", text))


def _after(tokens: Sequence[_Token], at: int) -> int:
    """Return the position after the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in _OPENING) - (tokens[i].text in (")", "]", "}"))
        if depth <= 0:
            return i + 1
    return len(tokens) + 1


def _opening(tokens: Sequence[_Token], close: int) -> int:
    """Return the position of the bracket that the one at `close` closes; -1 if there is none."""
    depth = 0
    for i in range(close, -1, -1):
        depth += (tokens[i].text in (")", "]", "}")) - (tokens[i].text in _OPENING)
        if not depth:
            return i
    return -1


def _statement_end(tokens: Sequence[_Token], at: int) -> int:
    """Return the position after the `;` that ends a statement."""
    while at < len(tokens) and tokens[at].text != ";":
        at = _after(tokens, at) if tokens[at].text in _OPENING else at + 1
    return min(at + 1, len(tokens))


def _branch_end(tokens: Sequence[_Token], at: int) -> int:
    """Return the position after the statement or the block at `at`."""
    if at >= len(tokens):
        return len(tokens)
    word = tokens[at].text
    if word == "{":
        return min(_after(tokens, at), len(tokens))
    if word in ("if", "for", "while", "switch"):
        opening = at + 1
        while opening < len(tokens) and tokens[opening].text != "(":
            opening += 1
        end = _branch_end(tokens, _after(tokens, opening))
        if word == "if" and end < len(tokens) and tokens[end].text == "else":
            return _branch_end(tokens, end + 1)
        return end
    return _statement_end(tokens, at)


def _inner(tokens: list[_Token]) -> list[_Token]:
    """Return what is in the braces of a block, or the one statement."""
    return tokens[1:-1] if tokens and tokens[0].text == "{" else tokens


def _split(tokens: Sequence[_Token], separator: str = ",") -> list[list[_Token]]:
    """Split tokens at the separators outside of all brackets, without a `;` at the end."""
    parts: list[list[_Token]] = [[]]
    at = 0
    while at < len(tokens):
        end = min(_after(tokens, at), len(tokens)) if tokens[at].text in _OPENING else at + 1
        if tokens[at].text == separator:
            parts.append([])
        elif tokens[at].text != ";":
            parts[-1] += tokens[at:end]
        at = end
    return [part for part in parts if part]


def _last_name(tokens: Sequence[_Token]) -> str:
    """Return the name that a parameter's declaration gives."""
    texts = [token.text for token in tokens]
    for stop in ("=", "["):
        if stop in texts:
            texts = texts[: texts.index(stop)]
    return next((text for text in reversed(texts) if _NAME.fullmatch(text)), "")


def _is_assignment(text: str) -> bool:
    return text == "=" or text in ("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")


def _declares(lefts: Sequence[str], first: bool) -> bool:
    """Return whether the words before an array's sizes are a declaration."""
    before = lefts[: lefts.index("[")]
    names = [text for text in before if _NAME.fullmatch(text)]
    return len(names) > 1 or not first and len(before) == 1


def _target(lefts: Sequence[str]) -> str:
    """Return the name that an assignment sets: `name` or `struct.member`; "" for others."""
    if not lefts or "[" in lefts or "(" in lefts or lefts[0] == "*":
        return ""
    if len(lefts) >= 3 and lefts[-2] in (".", "->"):
        return f"{lefts[-3]}.{lefts[-1]}"
    return lefts[-1] if _NAME.fullmatch(lefts[-1]) else ""


def _changed(tokens: Sequence[_Token]) -> set[str]:
    """Return the names that tokens assign or count."""
    found = set()
    for i, token in enumerate(tokens):
        if token.text in ("++", "--"):
            for near in (i - 1, i + 1):
                if 0 <= near < len(tokens) and _NAME.fullmatch(tokens[near].text):
                    found.add(tokens[near].text)
        elif _is_assignment(token.text) and i:
            found.add(tokens[i - 1].text)
    return found


def literals(node: Node, wanted: bool = True) -> Node:
    """Return a condition, or its opposite, without "not": only &&, || and comparisons are left."""
    if node[0] == "not":
        return literals(node[1], not wanted)
    if node[0] == "op" and node[1] in ("&&", "||"):
        operator = node[1] if wanted else {"&&": "||", "||": "&&"}[node[1]]
        return ("op", operator, literals(node[2], wanted), literals(node[3], wanted))
    if node[0] == "op" and node[1] in COMPARISONS:
        return node if wanted else ("op", _NEGATED[node[1]], *node[2:])
    if node[0] == "if" and _is_boolean(node[2]) | _is_boolean(node[3]):
        _, condition, then, other = node
        both = (
            ("op", "&&", literals(condition), literals(then, wanted)),
            ("op", "&&", literals(condition, False), literals(other, wanted)),
        )
        return ("op", "||", *both)
    return ("op", "!=" if wanted else "==", node, ("number", 0))
