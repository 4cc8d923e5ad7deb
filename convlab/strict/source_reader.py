"""Read the conditions and the sizes of arrays in a CUDA source, as functions of the problem.

This is no compiler. It follows what often stands between a problem's dimension and a condition: local
variables, macros, constants, members of structs, parameters of functions and kernels, small functions,
`if`, `switch`, early returns and ternaries. What it cannot follow is unknown, and a condition may be
unknown in a part.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .source_expressions import TYPES, CannotParse, Parser
from .source_nodes import (
    MOST_NODES,
    UNKNOWN,
    Node,
    cast,
    chained,
    field_named,
    folded,
    if_else,
    is_condition,
    negated,
    size_of,
    with_arguments,
)
from .source_tokens import (
    TOKEN,
    Token,
    after_bracket,
    body_of,
    branch_end,
    changed_names,
    declared_name,
    declares_array,
    is_assignment,
    opening_of,
    split,
    statement_end,
    target_of,
    text_of,
)

_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
_DEFINE = re.compile(r"[ \t]*#\s*define\s+(\w+)(\([\w\s,]*\))?[ \t]*(.*)", re.S)
_MINIMA = {"min": "min", "std::min": "min", "min_of": "min", "fmin": "min", "umin": "min"}
_MAXIMA = {name.replace("min", "max"): "max" for name in _MINIMA}
_BUILT_IN = (
    _MINIMA | _MAXIMA | {"ceil_div": "ceil_div", "abs": "abs", "::min": "min", "::max": "max"}
)
_ENDS = ("return", "break", "continue", "goto", "throw")


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
        self.macros: dict[str, tuple[list[str] | None, list[Token]]] = {}
        self.globals: dict[str, Node] = {}
        self.functions: dict[str, _Function] = {}
        self.calls: dict[str, list[list[Node]]] = {}
        self.sites: list[Site] = []
        self.sizes: list[Node] = []
        self.name = ""
        self._expanding: list[str] = []

    # ---- tokens

    def tokens(self, text: str) -> list[Token]:
        """Return the tokens of a text; remember and remove its macros."""

        def directive(match: re.Match[str]) -> str:
            if defined := _DEFINE.fullmatch(match[0]):
                name, params, value = defined.groups()
                names = None if params is None else re.findall(r"\w+", params)
                line = text.count("\n", 0, match.start()) + 1
                body = [Token(word, line) for word in TOKEN.findall(value.replace("\\\n", " "))]
                self.macros.setdefault(name, (names, body))
            return "\n" * match[0].count("\n")

        code = _DIRECTIVE.sub(directive, text)
        found = []
        line = 1
        at = 0
        for match in TOKEN.finditer(code):
            line += code.count("\n", at, match.start())
            at = match.start()
            found.append(Token(match[0], line))
        return found

    def file(self, name: str, tokens: list[Token]) -> None:
        """Read a file's tokens."""
        self.name = name
        self._declarations(tokens)

    def _declarations(self, tokens: list[Token]) -> None:
        """Read functions and constants outside of functions."""
        at = 0
        while at < len(tokens):
            end = at
            while end < len(tokens) and tokens[end].text not in ("{", ";", "="):
                end = after_bracket(tokens, end) if tokens[end].text in "([" else end + 1
            if end >= len(tokens):
                return
            head = tokens[at:end]
            words = [token.text for token in head]
            if tokens[end].text == "{":
                close = after_bracket(tokens, end)
                body = tokens[end + 1 : close - 1]
                if ")" in words and "namespace" not in words:
                    self._function(head, body)
                elif "enum" not in words:
                    self._declarations(body)
                at = close
                continue
            end = statement_end(tokens, at)
            self._simple(tokens[at:end], self.globals, ())
            at = end

    def _function(self, head: Sequence[Token], body: list[Token]) -> None:
        """Read a function: its parameters, conditions and returned values."""
        # The parameters are in the last brackets.
        close = max(i for i, token in enumerate(head) if token.text == ")")
        opening = opening_of(head, close)
        if opening < 1:
            return
        name = head[opening - 1].text
        params = [declared_name(part) for part in split(head[opening + 1 : close])]
        function = self.functions[name] = _Function(params)
        env = dict(self.globals)
        for i, param in enumerate(params):
            env[param] = ("param", name, i, param)
        self._block(body, env, (), function)

    # ---- statements

    def _block(
        self,
        tokens: list[Token],
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
                close = after_bracket(tokens, at)
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
                end = statement_end(tokens, at)
                statement = tokens[at:end]
                if word == "return" and function is not None:
                    value = self.value(statement[1:], env, path)
                    function.returns.append((path, value))
                else:
                    self._simple(statement, env, path, function)
                if word in _ENDS:
                    return True, path
                at = end
        return False, path

    def _if(
        self,
        tokens: list[Token],
        at: int,
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> tuple[int, tuple[Node, ...], bool]:
        """Read an `if`; return where it ends, what holds after it, and whether both branches end."""
        opening = at + 1
        while opening < len(tokens) and tokens[opening].text != "(":
            opening += 1
        close = after_bracket(tokens, opening)
        inside = tokens[opening + 1 : close - 1]
        # `if (int n = f(); n > 3)` and `if (const char* error = f())`
        parts = split(inside, ";")
        for part in parts[:-1]:
            self._simple(part, env, path)
        condition = self.value(parts[-1] if parts else [], env, path)
        end = branch_end(tokens, close)
        then_env = dict(env)
        ended, _ = self._block(body_of(tokens[close:end]), then_env, (*path, condition), function)
        else_ended = False
        else_env = dict(env)
        if end < len(tokens) and tokens[end].text == "else":
            start = end + 1
            end = branch_end(tokens, start)
            inner = body_of(tokens[start:end])
            else_ended, _ = self._block(inner, else_env, (*path, negated(condition)), function)
        for name in env:
            then = then_env[name]
            other = else_env[name]
            if ended:
                env[name] = other
            elif else_ended or then == other:
                env[name] = then
            else:
                env[name] = if_else(condition, then, other)
        if ended and not else_ended:
            path = (*path, negated(condition))
        elif else_ended and not ended:
            path = (*path, condition)
        return end, path, ended and else_ended

    def _loop(
        self,
        tokens: list[Token],
        at: int,
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> int:
        """Read a loop: what it changes is unknown in it and after it."""
        close = after_bracket(tokens, at + 1)
        end = branch_end(tokens, close)
        for name in changed_names(tokens[at:end]):
            if name in env:
                env[name] = UNKNOWN
        inside = dict(env)
        for part in split(tokens[at + 2 : close - 1], ";"):
            for name in changed_names(part):
                inside[name] = UNKNOWN
            self.value(part, inside, path)
        self._block(body_of(tokens[close:end]), inside, path, function)
        return end

    def _switch(
        self,
        tokens: list[Token],
        at: int,
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None,
    ) -> int:
        """Read a `switch`: each case is a condition on its value."""
        close = after_bracket(tokens, at + 1)
        value = self.value(tokens[at + 2 : close - 1], env, path)
        end = branch_end(tokens, close)
        body = body_of(tokens[close:end])
        starts = [i for i, token in enumerate(body) if token.text in ("case", "default")]
        equal: list[Node] = []
        for start, stop in zip(starts, [*starts[1:], len(body)], strict=True):
            colon = start
            while colon < stop and body[colon].text != ":":
                colon += 1
            if body[start].text == "default":
                condition = negated(chained("||", equal)) if equal else UNKNOWN
            else:
                label = self.value(body[start + 1 : colon], env, path)
                condition = ("op", "==", value, label)
                equal.append(condition)
                text = (
                    f"switch ({text_of(tokens[at + 2 : close - 1])}) {text_of(body[start:colon])}"
                )
                self.add_site(condition, path, body[start].line, text)
            inner = dict(env)
            self._block(body[colon + 1 : stop], inner, (*path, condition), function)
            for name in env:
                if inner[name] != env[name]:
                    env[name] = if_else(condition, inner[name], env[name])
        return end

    def _simple(
        self,
        tokens: list[Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
        function: _Function | None = None,
    ) -> None:
        """Read a declaration, an assignment or another expression, and the blocks in it."""
        self._launches(tokens, env, path)
        first = True
        for part in split(tokens, ","):
            self._assignment(part, env, path, first)
            first = False
        # The body of a lambda.
        at = 0
        while at < len(tokens):
            if tokens[at].text == "{" and at and tokens[at - 1].text not in ("=", "]", ","):
                close = after_bracket(tokens, at)
                before = tokens[:at]
                inner = dict(env)
                lambda_ = self._lambda(before, inner)
                self._block(tokens[at + 1 : close - 1], inner, path, lambda_)
                at = close
            else:
                at += 1

    def _lambda(self, before: Sequence[Token], env: dict[str, Node]) -> _Function:
        """Return the function for a lambda, and give its parameters to `env`."""
        params: list[str] = []
        if before and before[-1].text == ")":
            opening = opening_of(before, len(before) - 1)
            params = [declared_name(part) for part in split(before[opening + 1 : -1])]
        equals = [i for i, token in enumerate(before) if token.text == "="]
        name = before[equals[0] - 1].text if equals and equals[0] else "a lambda"
        function = _Function(params)
        for i, param in enumerate(params):
            env[param] = ("param", name, i, param)
        if name != "a lambda":
            self.functions[name] = function
        return function

    def _assignment(
        self, tokens: list[Token], env: dict[str, Node], path: tuple[Node, ...], first: bool
    ) -> None:
        """Read `TYPE name = value`, `name[size]`, `name op= value`, or an expression."""
        texts = [token.text for token in tokens]
        at = next((i for i in range(len(texts)) if is_assignment(texts[i])), None)
        left = tokens if at is None else tokens[:at]
        lefts = [token.text for token in left]
        if "[" in lefts and (len(lefts) < 2 or lefts[0] != "[") and declares_array(lefts, first):
            self._array(left, env, path)
        if at is None:
            for name in changed_names(tokens):
                if name in env:
                    env[name] = UNKNOWN
            if "[" not in lefts or not declares_array(lefts, first):
                self.value(tokens, env, path)
            return
        right = tokens[at + 1 :]
        value = self.value(right, env, path) if right and right[0].text != "{" else UNKNOWN
        name = target_of(lefts)
        if not name:
            return
        if texts[at] == "=":
            env[name] = value
        elif texts[at] in ("&=", "|=") and is_condition(value):
            env[name] = ("op", texts[at][0] * 2, env.get(name, UNKNOWN), value)
        else:
            env[name] = UNKNOWN

    def _array(self, left: Sequence[Token], env: dict[str, Node], path: tuple[Node, ...]) -> None:
        """Remember the sizes of a declared array, and their product."""
        product: Node | None = None
        at = 0
        while at < len(left):
            if left[at].text == "[":
                close = after_bracket(left, at)
                size = self.value(list(left[at + 1 : close - 1]), env, path)
                self.sizes.append(size)
                product = size if product is None else folded("*", product, size)
                at = close
            else:
                at += 1
        if product is not None:
            self.sizes.append(product)

    def _launches(
        self, tokens: Sequence[Token], env: dict[str, Node], path: tuple[Node, ...]
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
            end = after_bracket(tokens, close + 1)
            self._call(tokens[start].text, tokens[close + 2 : end - 1], env, path)

    def _call(
        self,
        name: str,
        inside: Sequence[Token],
        env: dict[str, Node],
        path: tuple[Node, ...],
    ) -> list[Node]:
        arguments = [self.value(part, env, path) for part in split(inside)]
        self.calls.setdefault(name, []).append(arguments)
        return arguments

    # ---- expressions

    def value(self, tokens: Sequence[Token], env: dict[str, Node], path: tuple[Node, ...]) -> Node:
        """Return an expression's value; a condition in it is a site."""
        if tokens and tokens[-1].text == ";":
            tokens = tokens[:-1]
        if not tokens:
            return UNKNOWN
        parser = Parser(self, tokens, env, path)
        try:
            node = parser.ternary()
        except (CannotParse, RecursionError):
            return UNKNOWN
        if parser.at < len(tokens):
            node = UNKNOWN
        if is_condition(node):
            self.add_site(node, path, tokens[0].line, text_of(tokens))
        return node if size_of(node) <= MOST_NODES else UNKNOWN

    def add_site(self, node: Node, path: tuple[Node, ...], line: int, text: str) -> None:
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
        return field_named(name)

    def _expanded(
        self, name: str, body: Sequence[Token], env: dict[str, Node], path: tuple[Node, ...]
    ) -> Node:
        """Return the value of a macro's text."""
        self._expanding.append(name)
        try:
            return self.value(body, env, path)
        finally:
            self._expanding.pop()

    def applied(
        self,
        name: str,
        inside: Sequence[Token],
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
        if name in TYPES and len(arguments) == 1:
            return cast(name, arguments[0])
        function = self.functions.get(name)
        if function is None or not function.returns:
            return UNKNOWN
        *others, (_, value) = function.returns
        for condition, earlier in reversed(others):
            value = if_else(chained("&&", condition), earlier, value) if condition else earlier
        return with_arguments(value, name, arguments)

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
            return field_named(param)
        return tuple(
            self.resolved(part, depth) if isinstance(part, tuple) else part for part in node
        )
