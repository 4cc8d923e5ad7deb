"""Parse the expressions of a CUDA source."""

import re
from collections.abc import Sequence
from typing import Protocol

from .source_nodes import (
    FIELDS,
    UNKNOWN,
    Node,
    cast,
    fields_of,
    folded,
    if_else,
    is_condition,
    negated,
)
from .source_tokens import NAME, Token, after_bracket, text_of

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
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlLzZ]*")
TYPES = {
    *("const", "volatile", "unsigned", "signed", "int", "long", "short", "char", "bool", "auto"),
    *("size_t", "float", "double", "void", "ptrdiff_t", "uint", "dim3"),
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"std::{name}" for name in ("size_t", "int64_t", "uint32_t", "int32_t", "uint64_t")),
}
_CASTS = ("static_cast", "reinterpret_cast", "const_cast")


class CannotParse(Exception):
    """The text is not what this reader can follow."""


class Reader(Protocol):
    """What a parser asks of the reader of a source."""

    def value(self, tokens: Sequence[Token], env: dict[str, Node], path: tuple[Node, ...]) -> Node:
        """Return an expression's value."""

    def name_value(self, name: str, env: dict[str, Node], path: tuple[Node, ...]) -> Node:
        """Return the value of a name."""

    def applied(
        self, name: str, inside: Sequence[Token], env: dict[str, Node], path: tuple[Node, ...]
    ) -> Node:
        """Return the value of a call."""

    def add_site(self, node: Node, path: tuple[Node, ...], line: int, text: str) -> None:
        """Remember a condition."""


class Parser:
    """Parse one expression by its operators' precedence."""

    def __init__(
        self,
        reader: Reader,
        tokens: Sequence[Token],
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
        if is_condition(condition) or fields_of(condition):
            self.reader.add_site(condition, self.path, tokens[0].line, text_of(tokens))
        self.at += 1
        then = self.ternary()
        if self.peek() != ":":
            raise CannotParse
        self.at += 1
        return if_else(condition, then, self.ternary())

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator = self.peek()
            self.at += 1
            left = folded(operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Node:
        word = self.peek()
        if word == "!":
            self.at += 1
            return negated(self.unary())
        if word == "-":
            self.at += 1
            return folded("-", ("number", 0), self.unary())
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
            close = after_bracket(self.tokens, self.at)
            inside = [token.text for token in self.tokens[self.at + 1 : close - 1]]
            start = self.at
            self.at = close
            if inside and all(text in TYPES or text == "*" for text in inside):
                return cast(" ".join(inside), self.unary())
            inner = Parser(self.reader, self.tokens[start + 1 : close - 1], self.env, self.path)
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
        if not NAME.fullmatch(word.removeprefix("::")):
            if word[:1] in "\"'" or word[:1].isdigit() or word[:1] == ".":
                return UNKNOWN
            raise CannotParse
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
            close = after_bracket(self.tokens, self.at)
            inside = self.tokens[self.at + 1 : close - 1]
            self.at = close
            if word in _CASTS:
                return self.reader.value(inside, self.env, self.path)
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
                self.at = after_bracket(self.tokens, self.at)
            else:
                self.at += 1 if self.peek() in ("++", "--") else 2
        return node
