"""Split a CUDA source into tokens, and find brackets, statements and names in them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

TOKEN = re.compile(
    r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|0[xX][0-9a-fA-F']+\w*|\.?\d[\w.']*"
    r"|(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_~]\w*)*|<<<|>>>|<<=|>>=|->|\+\+|--|&&|\|\||[-+*/%&|^!<>=]=|<<|>>"
    r"|[^\s\w]"
)
NAME = re.compile(r"[A-Za-z_][\w:]*")
OPENING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Token:
    text: str
    line: int


def text_of(tokens: Sequence[Token]) -> str:
    """Return tokens as text, with the usual spaces."""
    text = " ".join(token.text for token in tokens)
    text = re.sub(r"\s*(\.|->|::|\(|\[)\s*(?=\S)", r"\1", text)
    text = re.sub(r"(&&|\|\||[=!<>]=|[<>+*/%?:,&|=]) ?\(", r"\1 (", text)
    return re.sub(r"\s+([)\],;])", r"\1", re.sub(r"! (?=\S)", "!", text))


def after_bracket(tokens: Sequence[Token], at: int) -> int:
    """Return the position after the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in OPENING) - (tokens[i].text in (")", "]", "}"))
        if depth <= 0:
            return i + 1
    return len(tokens) + 1


def opening_of(tokens: Sequence[Token], close: int) -> int:
    """Return the position of the bracket that the one at `close` closes; -1 if there is none."""
    depth = 0
    for i in range(close, -1, -1):
        depth += (tokens[i].text in (")", "]", "}")) - (tokens[i].text in OPENING)
        if not depth:
            return i
    return -1


def statement_end(tokens: Sequence[Token], at: int) -> int:
    """Return the position after the `;` that ends a statement."""
    while at < len(tokens) and tokens[at].text != ";":
        at = after_bracket(tokens, at) if tokens[at].text in OPENING else at + 1
    return min(at + 1, len(tokens))


def branch_end(tokens: Sequence[Token], at: int) -> int:
    """Return the position after the statement or the block at `at`."""
    if at >= len(tokens):
        return len(tokens)
    word = tokens[at].text
    if word == "{":
        return min(after_bracket(tokens, at), len(tokens))
    if word in ("if", "for", "while", "switch"):
        opening = at + 1
        while opening < len(tokens) and tokens[opening].text != "(":
            opening += 1
        end = branch_end(tokens, after_bracket(tokens, opening))
        if word == "if" and end < len(tokens) and tokens[end].text == "else":
            return branch_end(tokens, end + 1)
        return end
    return statement_end(tokens, at)


def body_of(tokens: list[Token]) -> list[Token]:
    """Return what is in the braces of a block, or the one statement."""
    return tokens[1:-1] if tokens and tokens[0].text == "{" else tokens


def split(tokens: Sequence[Token], separator: str = ",") -> list[list[Token]]:
    """Split tokens at the separators outside of all brackets, without a `;` at the end."""
    parts: list[list[Token]] = [[]]
    at = 0
    while at < len(tokens):
        end = min(after_bracket(tokens, at), len(tokens)) if tokens[at].text in OPENING else at + 1
        if tokens[at].text == separator:
            parts.append([])
        elif tokens[at].text != ";":
            parts[-1] += tokens[at:end]
        at = end
    return [part for part in parts if part]


def declared_name(tokens: Sequence[Token]) -> str:
    """Return the name that a parameter's declaration gives."""
    texts = [token.text for token in tokens]
    for stop in ("=", "["):
        if stop in texts:
            texts = texts[: texts.index(stop)]
    return next((text for text in reversed(texts) if NAME.fullmatch(text)), "")


def is_assignment(text: str) -> bool:
    return text == "=" or text in ("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")


def declares_array(lefts: Sequence[str], first: bool) -> bool:
    """Return whether the words before an array's sizes are a declaration."""
    before = lefts[: lefts.index("[")]
    names = [text for text in before if NAME.fullmatch(text)]
    return len(names) > 1 or not first and len(before) == 1


def target_of(lefts: Sequence[str]) -> str:
    """Return the name that an assignment sets: `name` or `struct.member`; "" for others."""
    if not lefts or "[" in lefts or "(" in lefts or lefts[0] == "*":
        return ""
    if len(lefts) >= 3 and lefts[-2] in (".", "->"):
        return f"{lefts[-3]}.{lefts[-1]}"
    return lefts[-1] if NAME.fullmatch(lefts[-1]) else ""


def changed_names(tokens: Sequence[Token]) -> set[str]:
    """Return the names that tokens assign or count."""
    found = set()
    for i, token in enumerate(tokens):
        if token.text in ("++", "--"):
            for near in (i - 1, i + 1):
                if 0 <= near < len(tokens) and NAME.fullmatch(tokens[near].text):
                    found.add(tokens[near].text)
        elif is_assignment(token.text) and i:
            found.add(tokens[i - 1].text)
    return found
