"""The kernels on disk: finding a .cu file by name, and reading its header comment.

A header is the run of `//` lines that opens the file, `// key: value`, with continuation lines
indented by two spaces or more. Lines of prose between them are ignored.
"""

from __future__ import annotations

import ast
import difflib
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from .errors import CatalogError, ProblemError
from .format import FLOAT32, Format, parse_format
from .problem import Problem

KERNEL_DIR = Path(__file__).resolve().parents[2] / "kernels"
ENVIRONMENT = "CONVLAB_KERNELS"
PRECISIONS = ("fp32", "tf32")
DEVICE_VARIABLES = ("sm", "smem")
VARIABLES = (*Problem(1, 1, 1, 1, 1, 1, 1).variables(), *DEVICE_VARIABLES)


@dataclass(frozen=True)
class Header:
    """What a kernel file says of itself.

    Parameters
    ----------
    title, idea, change, mapping, limits
        Text: its name, how it works, what changed from the rung before, which thread computes
        what, and what limits it.
    precision
        The class that its results reach: "fp32" or "tf32".
    supports
        Requirements, each a Python comparison over `VARIABLES`; none means everything.
    parent
        The rung that it descends from, by its file's name without ending; None: a line begins here.
    arch
        The architecture to compile for, such as "sm_90a", where one is needed.
    tensors
        Dtype and layout of x, w, y and bias (`parse_format`); left out, float32 in torch's order.
    atomics
        Whether it adds into memory in no fixed order, so that two runs may differ in bits.
    """

    title: str
    idea: str = ""
    change: str = ""
    mapping: str = ""
    precision: str = "fp32"
    supports: tuple[str, ...] = ()
    limits: str = ""
    parent: str | None = None
    arch: str | None = None
    tensors: Format = FLOAT32
    atomics: bool = False

    def unsupported(self, problem: Problem, sm: int, smem: int) -> str | None:
        """Return the first requirement that is not met, with the values it met, or None.

        Parameters
        ----------
        problem
            What is to be computed.
        sm
            Compute capability, 90 for 9.0.
        smem
            Bytes of shared memory that a block may opt into.
        """
        values = {**problem.variables(), "sm": sm, "smem": smem}
        for requirement in self.supports:
            tree = ast.parse(requirement, mode="eval").body
            try:
                met = _evaluate(tree, values)
            except ZeroDivisionError:
                raise CatalogError(
                    f"the requirement {requirement!r} of {self.title!r} divides by zero "
                    f"for {problem.label}; rewrite it"
                ) from None
            if not met:
                names = dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
                here = ", ".join(f"{name} = {values[name]}" for name in names)
                return f"{requirement} (here {here})" if here else requirement
        return None


KEYS = tuple(entry.name for entry in fields(Header))
_VALUES = {
    "precision": ("|".join(PRECISIONS), " or ".join(PRECISIONS)),
    "arch": (r"sm_\d{2,3}[af]?", "like sm_80 or sm_90a"),
    "atomics": ("yes|no", "yes or no"),
}


def parse_header(text: str, path: str | Path) -> Header:
    """Return the header of a kernel file.

    Every key is optional: the title defaults to the file's stem, the precision to fp32.

    Parameters
    ----------
    text
        The source.
    path
        Where it is from, for the title and for messages.

    Raises
    ------
    CatalogError
        An unknown or repeated key, an unknown value, or a malformed requirement; the message
        opens with file:line and says what is allowed.
    """
    path = Path(path)
    entries = _entries(text, path)
    values: dict[str, object] = {"title": path.stem}
    for key, (line, value) in entries.items():
        pattern, allowed = _VALUES.get(key, ("", ""))
        if pattern and not re.fullmatch(pattern, value):
            raise CatalogError(f"{path}:{line}: {key} is {value!r}; it must be {allowed}")
        if key == "supports":
            values[key] = _requirements(value, f"{path}:{line}")
        elif key == "tensors":
            try:
                values[key] = parse_format(value)
            except ProblemError as error:
                raise CatalogError(f"{path}:{line}: tensors: {error}") from None
        elif key == "atomics":
            values[key] = value == "yes"
        elif value:
            values[key] = value
    return Header(**values)  # type: ignore[arg-type]


def find(name_or_path: str | Path) -> Path:
    """Return the file of a kernel.

    Parameters
    ----------
    name_or_path
        A path, or the stem of a file in `kernels/` or in a directory that the environment
        variable CONVLAB_KERNELS lists; its number will do, what comes before the first "_",
        or the beginning of a stem, if only one fits.

    Raises
    ------
    CatalogError
        There is no such file (the message names the nearest), or more than one.
    """
    text = os.fspath(name_or_path)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if "/" in text or os.sep in text or text.endswith(".cu"):
        beside = [str(other) for other in sorted(path.parent.glob("*.cu"))]
        known = {Path(other).name: other for other in [*map(str, catalog()), *beside]}
        near = difflib.get_close_matches(path.name, known, n=1, cutoff=0.4)
        hint = f"did you mean {known[near[0]]}?" if near else _known_names(catalog())
        raise CatalogError(f"there is no file {text}; {hint}")
    paths = catalog()
    matches = (
        [p for p in paths if p.stem == text]
        or [p for p in paths if p.stem.partition("_")[0] == text]
        or [p for p in paths if text and p.stem.startswith(text)]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        stems = ", ".join(p.stem for p in matches)
        raise CatalogError(f"{text!r} fits more than one kernel: {stems}; write one of them out")
    near = difflib.get_close_matches(text, [p.stem for p in paths], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else _known_names(paths)
    raise CatalogError(f"no kernel is named {text!r}; {hint}")


def catalog() -> list[Path]:
    """Return all kernel files of `kernels/` and of CONVLAB_KERNELS's directories, by name.

    Raises
    ------
    CatalogError
        Two files have one name, or CONVLAB_KERNELS lists something that is no directory.
    """
    directories = [KERNEL_DIR]
    for entry in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        directory = Path(entry).expanduser()
        if not directory.is_dir():
            raise CatalogError(f"{ENVIRONMENT} lists {entry}, which is no directory; correct it")
        directories.append(directory)
    found: dict[str, Path] = {}
    for directory in dict.fromkeys(entry.resolve() for entry in directories):
        for path in directory.glob("*.cu"):
            if path.stem in found:
                raise CatalogError(
                    f"two kernels are named {path.stem!r}: {found[path.stem]} and {path}; "
                    "rename one of them"
                )
            found[path.stem] = path
    return [found[stem] for stem in sorted(found)]


def _known_names(paths: list[Path]) -> str:
    names = ", ".join(path.stem for path in paths) or "none"
    return f"kernels here: {names}"


def _entries(text: str, path: Path) -> dict[str, tuple[int, str]]:
    """Return the header's values, whitespace collapsed, with the line that each starts on."""
    found: dict[str, tuple[int, str]] = {}
    current: str | None = None
    started = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() and not started:
            continue
        started = True
        if not line.lstrip("\ufeff").startswith("//"):
            break
        body = line.lstrip("\ufeff")[2:]
        entry = re.match(r" ?([A-Za-z]+):(?:\s+(.*))?$", body)
        if entry and (entry[1].lower() in KEYS or entry[1].islower()):
            current = entry[1].lower()
            if current not in KEYS:
                near = difflib.get_close_matches(current, KEYS, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise CatalogError(
                    f"{path}:{number}: unknown key {current!r} in the header; {hint}"
                    f"Keys: {', '.join(KEYS)}"
                )
            if current in found:
                raise CatalogError(
                    f"{path}:{number}: {current} is given twice, first on line "
                    f"{found[current][0]}; indent a continuation line by two spaces or more"
                )
            found[current] = (number, " ".join((entry[2] or "").split()))
        elif current and re.match(r"\s{2,}\S", body):
            line_of, value = found[current]
            found[current] = (line_of, " ".join([*value.split(), *body.split()]))
        else:
            current = None
    return found


_OPERATORS: dict[type, Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}


def _requirements(text: str, where: str) -> tuple[str, ...]:
    """Return the comma-separated comparisons of a `supports` line, each of them checked."""
    if text in ("everything", ""):
        return ()
    source = f"({text},)"
    try:
        parsed = ast.parse(source, mode="eval").body
        found = tuple(ast.get_source_segment(source, item) or "" for item in parsed.elts)
        for item in parsed.elts:
            if not isinstance(item, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
                raise ValueError(f"{ast.unparse(item)!r} is not a comparison")
            _check(item)
    except (SyntaxError, ValueError, AttributeError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise CatalogError(
            f"{where}: cannot read supports: {text!r} ({reason}); write 'everything', or "
            f"comparisons such as 'R == 3, C % groups == 0, sm >= 80' over {', '.join(VARIABLES)}"
        ) from None
    return found


def _check(node: ast.AST) -> None:
    """Raise ValueError at anything but integers, known names, arithmetic and comparisons."""
    if isinstance(node, ast.Name):
        if node.id not in VARIABLES:
            raise ValueError(f"unknown name {node.id!r}")
        return
    if isinstance(node, ast.Constant):
        if type(node.value) is not int:
            raise ValueError(f"{node.value!r} is not an integer")
        return
    if isinstance(node, ast.Compare):
        operators, parts = node.ops, [node.left]
        for op, right in zip(node.ops, node.comparators):
            listed = isinstance(right, ast.Tuple)
            if listed != isinstance(op, (ast.In, ast.NotIn)):
                raise ValueError("'in' takes a list such as (1, 3), and nothing else does")
            parts += right.elts if listed else [right]
    elif isinstance(node, ast.BinOp):
        operators, parts = [node.op], [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        operators, parts = [node.op], [node.operand]
    elif isinstance(node, ast.BoolOp):
        operators, parts = [], node.values
    else:
        raise ValueError(f"{ast.unparse(node)!r} is not allowed")
    for op in operators:
        if type(op) not in _OPERATORS:
            raise ValueError(f"{type(op).__name__} is not allowed")
    for part in parts:
        _check(part)


def _evaluate(node: ast.AST, values: Mapping[str, int]) -> object:
    """Return the value of a node that `_check` has let through."""
    match node:
        case ast.Name():
            return values[node.id]
        case ast.Constant():
            return node.value
        case ast.Tuple():
            return tuple(_evaluate(item, values) for item in node.elts)
        case ast.BinOp():
            sides = (_evaluate(node.left, values), _evaluate(node.right, values))
            return _OPERATORS[type(node.op)](*sides)
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_evaluate(node.operand, values))
        case ast.BoolOp():
            settle = all if isinstance(node.op, ast.And) else any
            return settle(_evaluate(item, values) for item in node.values)
        case ast.Compare():
            sides = [_evaluate(item, values) for item in (node.left, *node.comparators)]
            return all(
                _OPERATORS[type(op)](left, right)
                for op, left, right in zip(node.ops, sides, sides[1:])
            )
    raise CatalogError(f"cannot evaluate {ast.unparse(node)!r}")  # _check allows nothing else
