"""Read an answer: a Python file in KernelBench's form, or the last Python block of a text.

Nothing is executed. The syntax tree gives the classes, the calls of ``load_inline``, and their
strings, each line of which keeps its line number in the file.
"""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.arguments import end_of, readable
from ..core.errors import ProblemError

# The endings of files in which an answer may be: a Python file, or a text with Python blocks.
PYTHON = (".py",)
TEXTS = (".md", ".txt")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
# The parameters of torch.utils.cpp_extension.load_inline, in order (torch 2.13).
LOAD_INLINE = (
    "name",
    "cpp_sources",
    "cuda_sources",
    "sycl_sources",
    "functions",
    "extra_cflags",
    "extra_cuda_cflags",
    "extra_sycl_cflags",
    "extra_ldflags",
    "extra_include_paths",
    "build_directory",
    "verbose",
    "with_cuda",
    "with_sycl",
    "is_python_module",
    "with_pytorch_error_handling",
    "keep_intermediates",
    "use_pch",
    "no_implicit_headers",
)


@dataclass(frozen=True)
class Text:
    """A string of the file, with the file's line of each of its lines."""

    text: str
    lines: tuple[int, ...]

    def __add__(self, other: Text) -> Text:
        # A line of two strings has the line number of the first, unless that is empty.
        is_empty = not self.text or self.text.endswith("\n")
        shared = other.lines[0] if is_empty else self.lines[-1]
        return Text(self.text + other.text, (*self.lines[:-1], shared, *other.lines[1:]))

    @property
    def line(self) -> int:
        """The line of the first character that is no white space."""
        blank = self.text[: len(self.text) - len(self.text.lstrip())]
        return self.lines[min(blank.count("\n"), len(self.lines) - 1)]

    def line_at(self, position: int) -> int:
        """Return the file's line of a position in the text."""
        return self.lines[self.text.count("\n", 0, position)]

    def marked(self, file: str) -> str:
        """Return the text with #line directives, so that a compiler reports the file's lines."""
        label = file.replace("\\", r"\\").replace('"', r"\"")
        pieces = []
        expected = None
        continued = False
        for text, line in zip(self.text.split("\n"), self.lines, strict=True):
            if line != expected and not continued:
                pieces.append(f'#line {line} "{label}"')
                expected = line
            pieces.append(text)
            continued = text.endswith("\\")
            expected += 1
        return "\n".join(pieces) + "\n"


@dataclass(frozen=True)
class LoadInline:
    """A call of ``load_inline``: its arguments as far as they are constant.

    Attributes
    ----------
    node : the call.
    arguments : the syntax tree of each argument, by parameter.
    values : the constant arguments: a `Text`, a number, None, a list of these. A parameter whose
        argument is not constant is missing.
    target : the name to which the module is assigned: "ext", "self.bmm"; empty if there is none.
    """

    node: ast.Call
    arguments: Mapping[str, ast.expr]
    values: Mapping[str, Any]
    target: str

    @property
    def line(self) -> int:
        """The line of the call in the parsed text."""
        return self.node.lineno

    def source(self, name: str) -> Text | None:
        """Return ``cpp_sources`` or ``cuda_sources`` as one text; None if it is not constant."""
        value = self.values.get(name)
        if isinstance(value, Text):
            return value
        if isinstance(value, list) and value and all(isinstance(each, Text) for each in value):
            whole = value[0]
            for each in value[1:]:
                whole = whole + Text("\n", (whole.lines[-1], each.lines[0])) + each
            return whole
        return None

    @property
    def functions(self) -> list[str] | None:
        """The exported functions; None if the argument is missing or not constant."""
        value = self.values.get("functions")
        if isinstance(value, Text):
            return [value.text]
        if isinstance(value, dict):
            value = list(value)
        if isinstance(value, list):
            return [each.text for each in value if isinstance(each, Text)]
        return None


@dataclass(frozen=True)
class Answer:
    """A file in KernelBench's form.

    Attributes
    ----------
    path : the file.
    whole : its text.
    code : its Python code, with an empty line for each line above, so that lines keep their numbers.
    """

    path: Path
    whole: str
    code: str

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. Raises SyntaxError."""
        return ast.parse(self.code, self.path.name)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes of the module, by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions of the module, by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The constant values of the module's names."""
        folder = Folder(self.code)
        folder.run(self.tree.body)
        return folder.names

    @cached_property
    def calls(self) -> list[LoadInline]:
        """All calls of ``load_inline``, in their order."""
        folder = Folder(self.code)
        folder.run(self.tree.body)
        targets = dict(_targets(self.tree))
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and called(node).split(".")[-1] == "load_inline":
                arguments = dict(zip(LOAD_INLINE, node.args, strict=False))
                arguments |= {word.arg: word.value for word in node.keywords if word.arg}
                values = {}
                for key, value in arguments.items():
                    folded = folder.fold(value)
                    if folded is not UNKNOWN:
                        values[key] = folded
                found.append(LoadInline(node, arguments, values, targets.get(id(node), "")))
        return sorted(found, key=lambda call: call.line)

    def quoted(self, line: int) -> str:
        """Return a line of the file, without its indentation."""
        lines = self.whole.splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def located(self, text: str, near: int = 1) -> Text:
        """Return a string that the running file built, with the lines from which it came.

        Parameters
        ----------
        text : the string.
        near : the line of lines that are not in the file.
        """
        for value in self._texts:
            if value.text == text:
                return value
        places: dict[str, list[int]] = {}
        for number, line in enumerate(self.whole.splitlines(), 1):
            places.setdefault(line.strip(), []).append(number)
        lines = []
        last = near
        for line in text.split("\n"):
            numbers = places.get(line.strip(), [])
            after = bisect.bisect_right(numbers, last)
            if line.strip() and numbers:
                last = numbers[min(after, len(numbers) - 1)]
            lines.append(last)
        return Text(text, tuple(lines))

    @cached_property
    def _texts(self) -> list[Text]:
        texts = [value for value in self.constants.values() if isinstance(value, Text)]
        for call in self.calls:
            for value in call.values.values():
                texts += [each for each in _listed(value) if isinstance(each, Text)]
        return texts


def read(path: Path) -> Answer:
    """Read an answer.

    Parameters
    ----------
    path : a ``.py`` file, or a text (``.md``, ``.txt``) whose last Python block is the answer.

    Raises
    ------
    ProblemError
        The file cannot be read, or has no Python block.
    """
    # The judge runs in another folder.
    path = path.absolute()
    whole = readable(path, "answer").replace("\r\n", "\n")
    if path.suffix in PYTHON and not _is_reply(whole):
        return Answer(path, whole, whole)
    block = last_block(whole)
    if block is None:
        raise ProblemError(
            f"{end_of(str(path))} has no Python block: put the answer between lines ```python and ```"
        )
    start, code = block
    return Answer(path, whole, "\n" * (start - 1) + code)


def _is_reply(text: str) -> bool:
    """Return whether the text of a .py file is a model's reply, with a block of code in it."""
    if not _FENCE.search(text):
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return last_block(text) is not None
    return False


def last_block(text: str) -> tuple[int, str] | None:
    """Return the first line and the text of a text's last Python block with ModelNew, or None.

    If no block has it, it is the last Python block. A block without a language counts if no block is marked as Python. An open block ends with the
    text.
    """
    blocks: list[tuple[str, int, str]] = []
    opened: tuple[str, str, int] | None = None
    for fence in _FENCE.finditer(text):
        marks = fence[1]
        language = fence[2].lower()
        if opened is None:
            opened = (marks, language, fence.end() + 1)
        elif fence[1].startswith(opened[0]) and not language:
            start = opened[2]
            blocks.append((opened[1], text.count("\n", 0, start) + 1, text[start : fence.start()]))
            opened = None
    if opened is not None:
        start = opened[2]
        blocks.append((opened[1], text.count("\n", 0, start) + 1, text[start:]))
    for languages in (("python", "py", "python3"), ("",)):
        chosen = [(line, code) for language, line, code in blocks if language in languages]
        # A text may end with an example of how to use the answer.
        answers = [
            each for each in chosen if re.search(r"^class ModelNew\b", each[1], re.MULTILINE)
        ]
        if chosen:
            return (answers or chosen)[-1]
    return None


def called(node: ast.AST) -> str:
    """Return the dotted name of what a call calls, or of a name: "torch.cuda.Stream"; else ""."""
    if isinstance(node, ast.Call):
        return called(node.func)
    if isinstance(node, ast.Attribute):
        base = called(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def _targets(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the calls that are assigned, by their id, with the name to which they are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield id(node.value), called(node.targets[0])
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield id(node.value), called(node.target)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


class _Unknown:
    """The value of an expression that is not constant."""


UNKNOWN = _Unknown()


@dataclass
class Folder:
    """Fold constant expressions of a module: strings with their lines, numbers, lists.

    Attributes
    ----------
    code : the module's text.
    names : the values of names, as assigned so far.
    """

    code: str
    names: dict[str, Any] = field(default_factory=dict)

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Record the constant assignments of statements, in all their blocks."""
        for node in body:
            if isinstance(node, ast.Assign):
                value = self.fold(node.value)
                for target in node.targets:
                    self._assign(target, value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, self.fold(node.value))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                old = self.names.get(node.target.id, UNKNOWN)
                self._assign(node.target, self._binary(node.op, old, self.fold(node.value)))
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.If, ast.With, ast.Try)):
                self.run(node.body)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            if value is UNKNOWN:
                self.names.pop(target.id, None)
            else:
                self.names[target.id] = value

    def fold(self, node: ast.expr) -> Any:
        """Return the value of an expression, or `UNKNOWN`."""
        if isinstance(node, ast.Constant):
            return self._text(node) if isinstance(node.value, str) else node.value
        if isinstance(node, ast.JoinedStr):
            return self._joined(node)
        if isinstance(node, ast.Name):
            return self.names.get(node.id, UNKNOWN)
        if isinstance(node, (ast.List, ast.Tuple)):
            values = [self.fold(each) for each in node.elts]
            return UNKNOWN if UNKNOWN in values else values
        if isinstance(node, ast.Dict):
            keys = [self.fold(key) if key else UNKNOWN for key in node.keys]
            return dict.fromkeys(keys) if all(isinstance(key, Text) for key in keys) else UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._binary(node.op, self.fold(node.left), self.fold(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.fold(node.operand)
            return -value if isinstance(value, (int, float)) else UNKNOWN
        if isinstance(node, ast.Call):
            return self._call(node)
        return UNKNOWN

    def _text(self, node: ast.Constant) -> Text:
        segment = ast.get_source_segment(self.code, node) or ""
        lines = _literal_lines(segment, node.lineno)
        return Text(node.value, _fitted(lines, node.value, node.lineno))

    def _joined(self, node: ast.JoinedStr) -> Any:
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += part.value
                continue
            value = self.fold(part.value) if isinstance(part, ast.FormattedValue) else UNKNOWN
            if part.format_spec is not None or part.conversion != -1 or _is_opaque(value):
                return UNKNOWN
            text += value.text if isinstance(value, Text) else str(value)
        span = (node.end_lineno or node.lineno) - node.lineno
        lines = [node.lineno + min(i, span) for i in range(text.count("\n") + 1)]
        return Text(text, tuple(lines))

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if isinstance(left, Text) and isinstance(right, Text):
            return left + right if isinstance(op, ast.Add) else UNKNOWN
        if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
            return left + right
        operations: dict[type, Callable[[Any, Any], Any]] = {
            ast.Add: lambda a, b: a + b,
            ast.Sub: lambda a, b: a - b,
            ast.Mult: lambda a, b: a * b,
            ast.FloorDiv: lambda a, b: a // b,
            ast.Div: lambda a, b: a / b,
        }
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if numbers and type(op) in operations:
            try:
                return operations[type(op)](left, right)
            except (ZeroDivisionError, OverflowError):
                return UNKNOWN
        return UNKNOWN

    def _call(self, node: ast.Call) -> Any:
        """Fold calls that only change a string: strip, replace, join, dedent."""
        arguments = [self.fold(each) for each in node.args]
        if UNKNOWN in arguments or node.keywords:
            return UNKNOWN
        if called(node).split(".")[-1] == "dedent" and isinstance(arguments[0], Text):
            import textwrap

            first = arguments[0]
            return Text(textwrap.dedent(first.text), first.lines)
        if not isinstance(node.func, ast.Attribute):
            return UNKNOWN
        base = self.fold(node.func.value)
        if not isinstance(base, Text):
            return UNKNOWN
        if node.func.attr == "strip" and not arguments:
            before = base.text[: len(base.text) - len(base.text.lstrip())].count("\n")
            text = base.text.strip()
            return Text(text, base.lines[before : before + text.count("\n") + 1])
        if node.func.attr == "replace" and all(isinstance(each, Text) for each in arguments):
            text = base.text.replace(*(each.text for each in arguments))
            if text.count("\n") == base.text.count("\n"):
                return Text(text, base.lines)
        return UNKNOWN


def _is_opaque(value: Any) -> bool:
    return not isinstance(value, (Text, int, float))


def _fitted(lines: Sequence[int], text: str, line: int) -> tuple[int, ...]:
    """Return one line number for each line of a text, whatever was counted."""
    count = text.count("\n") + 1
    last = lines[-1] if lines else line
    return tuple([*lines, *[last] * count][:count])


def _literal_lines(segment: str, line: int) -> list[int]:
    """Return the file's line of each line of a string literal, or of several that follow each other.

    >>> _literal_lines('"a\\\\n" "b\\\\n"', 5)
    [5, 5, 5]
    """
    lines = [line]
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({segment}\n)").readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return lines
    first = True
    for token in tokens:
        if token.type != tokenize.STRING:
            continue
        own = line + token.start[0] - 1
        if first or lines[-1] < own:
            # The text of the line before ends with the new literal, or begins with it.
            lines[-1] = own if first else lines[-1]
        _append_lines(token.string, own, lines)
        first = False
    return lines


def _append_lines(literal: str, line: int, lines: list[int]) -> None:
    """Append to `lines` the line of each newline in one literal's value."""
    prefix = re.match(r"[A-Za-z]*", literal)[0]
    is_raw = "r" in prefix.lower()
    body = literal[len(prefix) :]
    quote = 3 if body[:3] in ('"""', "'''") else 1
    body = body[quote : len(body) - quote]
    at_start = True
    position = 0
    while position < len(body):
        char = body[position]
        if char == "\\" and not is_raw:
            following = body[position + 1 : position + 2]
            position += 2
            if following == "\n":
                line += 1
                if at_start:
                    lines[-1] = line
            elif following == "n":
                lines.append(line)
                at_start = True
            else:
                at_start = False
            continue
        position += 1
        if char == "\n":
            line += 1
            lines.append(line)
            at_start = True
        else:
            at_start = False
