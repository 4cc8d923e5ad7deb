"""The kernels on disk: finding a .cu file by name, and reading its header comment.

A header is the run of `//` lines that opens the file, `// key: value`, with continuation lines
indented by two spaces or more. Lines of prose between them are ignored.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

from .arguments import path as valid_path
from .arguments import shown
from .errors import CatalogError, ProblemError
from .format import FLOAT32, Format, parse_format
from .problem import Problem

_INSTALLED = Path(__file__).resolve().parents[1] / "kernels"  # by pip; else beside convlab/
# The shipped kernels, and the headers that any kernel may include.
KERNEL_DIR = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "kernels"
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
        The architecture that it is compiled for and needs: "sm_80" and later; "sm_90a", no other;
        "sm_100f", those of its family. None: whichever is there.
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
        if self.arch and not _runs(self.arch, sm):
            return f"it is for {self.arch} (here sm_{sm})"
        values = {**problem.variables(), "sm": sm, "smem": smem}
        for requirement in self.supports:
            try:
                met = eval(requirement, {"__builtins__": {}}, values)  # read and found harmless
            except ZeroDivisionError:
                raise CatalogError(
                    f"the requirement {requirement!r} of {self.title!r} divides by zero "
                    f"for {problem.label}; rewrite it"
                ) from None
            if not met:
                names = dict.fromkeys(re.findall(r"[a-zA-Z]\w*", requirement))
                here = ", ".join(f"{name} = {values[name]}" for name in names if name in values)
                return f"{requirement} (here {here})" if here else requirement
        return None


def _runs(arch: str, sm: int) -> bool:
    """Whether a GPU of that compute capability runs what is compiled for an architecture."""
    number, suffix = int(arch.strip("sm_af")), arch[-1]
    if suffix == "a":
        return sm == number
    return sm >= number and (suffix != "f" or sm // 10 == number // 10)


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
    path = valid_path(name_or_path, "kernel")
    text = "" if path == Path() else os.fspath(name_or_path)
    try:
        path = path.expanduser()
        if path.is_file():
            return path
    except (OSError, RuntimeError):  # a name too long for a file; no such user
        pass
    if "/" in text or os.sep in text or text.endswith(".cu"):
        beside = [str(other) for other in sorted(path.parent.glob("*.cu"))]
        known = {Path(other).name: other for other in [*map(str, catalog()), *beside]}
        near = difflib.get_close_matches(path.name, known, n=1, cutoff=0.4)
        hint = f"did you mean {known[near[0]]}?" if near else _known_names(catalog())
        raise CatalogError(f"there is no file {text[:200]}; {hint}")
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
    near = difflib.get_close_matches(text[:80], [p.stem for p in paths], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else _known_names(paths)
    raise CatalogError(f"no kernel is named {shown(text)}; {hint}")


def folders() -> list[Path]:
    """Return where kernels are looked for by name.

    First ``kernels/`` of the working directory, whose files hide others of the same name; then the
    shipped ones (`KERNEL_DIR`) and the directories that CONVLAB_KERNELS lists.

    Raises
    ------
    CatalogError
        CONVLAB_KERNELS lists something that is no directory.
    """
    found = [own] if (own := Path("kernels").absolute()).is_dir() else []
    found.append(KERNEL_DIR)
    for entry in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        directory = Path(entry).expanduser()
        if not directory.is_dir():
            raise CatalogError(f"{ENVIRONMENT} lists {entry}, which is no directory; correct it")
        found.append(directory)
    return list(dict.fromkeys(entry.resolve() for entry in found))


def catalog() -> list[Path]:
    """Return all kernel files of `folders`, by name.

    Raises
    ------
    CatalogError
        Two files have one name, and none of them is in the working directory's ``kernels/``.
    """
    found: dict[str, Path] = {}
    own = Path("kernels").resolve()
    for directory in folders():
        for path in sorted(directory.glob("*.cu")):
            twin = found.setdefault(path.stem, path)
            hidden = twin.parent == own != KERNEL_DIR.resolve()
            if twin is not path and not hidden:
                raise CatalogError(
                    f"two kernels are named {path.stem!r}: {twin} and {path}; rename one of them"
                )
    return [found[stem] for stem in sorted(found)]


def read(path: Path) -> str:
    """Return the text of a kernel file, without a byte order mark.

    Raises
    ------
    CatalogError
        It cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CatalogError(
            f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8: iconv -t UTF-8"
        ) from None
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror}") from None


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


# What a requirement may consist of: a Python expression of these is safe to evaluate.
_ALLOWED = (
    ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add,
    ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.In, ast.NotIn, ast.Name, ast.Constant, ast.Tuple, ast.Load,
)  # fmt: skip


def _requirements(text: str, where: str) -> tuple[str, ...]:
    """Return the comma-separated comparisons of a `supports` line, each of them checked."""
    if text in ("everything", ""):
        return ()
    source = f"({text},)"
    try:
        parsed = ast.parse(source, mode="eval").body
        found = tuple(ast.get_source_segment(source, item) or "" for item in parsed.elts)
        for item in parsed.elts:
            _check(item)
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise CatalogError(
            f"{where}: cannot read supports: {shown(text)} ({reason}); write 'everything', or "
            f"comparisons such as 'R == 3, C % groups == 0, sm >= 80' over {', '.join(VARIABLES)}"
        ) from None
    return found


def _check(requirement: ast.expr) -> None:
    """Raise ValueError at anything but comparisons of integers, known names, and arithmetic."""
    if not isinstance(requirement, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        raise ValueError(f"{ast.unparse(requirement)!r} is not a comparison")
    lists = []  # where one may stand
    for node in ast.walk(requirement):
        if not isinstance(node, _ALLOWED):
            what = ast.unparse(node) if isinstance(node, ast.expr) else ""
            raise ValueError(f"{what or type(node).__name__} is not allowed")
        if isinstance(node, ast.Name) and node.id not in VARIABLES:
            raise ValueError(f"unknown name {node.id!r}")
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            raise ValueError(f"{node.value!r} is not an integer")
        if isinstance(node, ast.Compare):
            for test, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(test, (ast.In, ast.NotIn)):
                    lists.append(right)
        within = any(node is allowed for allowed in lists)
        if within != isinstance(node, ast.Tuple):
            raise ValueError("'in' takes a list such as (1, 3), and nothing else does")
