"""Find a .cu file by name, and read its header comment.

The header is the block of `//` lines at the beginning of the file. Each entry is `// key: value`. A
continuation line is indented by two spaces or more. Other lines are prose and are ignored.
"""

import ast
import contextlib
import functools
import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import CodeType

from ..arguments import end_of, hint, nearest, readable, shown
from ..arguments import path as valid_path
from ..defaults import BASELINES
from ..errors import CatalogError, ProblemError
from ..problem.computation import COMPUTATIONS, FORWARD, Computation
from ..problem.format import FLOAT32, Format, parse_format
from ..problem.problem import EPILOGUE, Problem

# pip installs the kernels here. In a checkout they are next to convlab/.
_INSTALLED = Path(__file__).resolve().parents[2] / "kernels"
# The folder of the shipped kernels, and of the headers that every kernel may include.
KERNEL_DIR = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "kernels"
ENVIRONMENT = "CONVLAB_KERNELS"
# The number of names in a message if no name resembles the given one.
SHOWN = 8
VARIABLES = (*Problem(1, 1, 1, 1, 1, 1, 1).variables(), "sm", "smem")
# A variable that only `best` has: 1 if the user accepts results of class TF32, else 0.
_TF32 = "tf32"
_WORDS = "|".join(["and", "or", "not", "in", _TF32, *VARIABLES])
# The tokens that a requirement may contain. Python code of these tokens is safe to evaluate.
_TOKEN = re.compile(rf"\s+|[0-9]+\b|==|!=|[<>]=?|//|[-+%(),]|(?<!\*)\*(?!\*)|\b(?:{_WORDS})\b")


@dataclass(frozen=True)
class Header:
    """The header comment of a kernel file: what the kernel does, and what it supports.

    `kernel.header` returns it, and `parse_header` reads it from text. Each attribute is a key of
    the comment, ``// key: value``. Every key is optional.

    Attributes
    ----------
    title : str
        The name for tables and figures; by default the name of the file.
    idea, change, mapping, limits : str
        Texts: how the kernel works, what changed from its parent, which thread computes which
        output, and what limits its speed.
    precision : str
        The precision class of its results: "fp32", "tf32", "bf16" or "fp16".
    supports : tuple of str
        Requirements on a problem. Each is a Python comparison over `VARIABLES`, such as
        "C % groups == 0". Empty if the kernel supports every problem.
    best : tuple of str, or None
        The problems for which `convlab.best` chooses this kernel: requirements as in `supports`,
        which may also use "tf32". None if you choose the kernel only by name.
    epilogue : tuple of str
        The steps between the sum of products and the store: of "bias" and "relu", those that the
        kernel performs.
    parent : str or None
        The stem of the rung from which this one was developed; None for the first rung of a line.
    arch : str or None
        The architecture for which the kernel is compiled, and which it needs: "sm_80" is 8.0 and
        later, "sm_90a" only 9.0, "sm_100f" the family of 10.0. None is that of the current GPU.
    tensors : Format
        The dtypes and layouts of the tensors; by default float32 in NCHW.
    mixes : str or None
        "2x2" if the kernel computes the outputs of each 2x2 tile from common sums, as Winograd
        does; "image" if it does so for a whole image.
    atomics : bool
        Whether the kernel adds to memory in no fixed order, so that two runs may differ in bits.
    computes : str
        "forward", "data gradient" or "weight gradient".

    Examples
    --------
    >>> header = convlab.load("03_smem_tile", engine="sim").header
    >>> header.precision, header.parent
    ('fp32', '01c_smem_input')
    """

    title: str
    idea: str = ""
    change: str = ""
    mapping: str = ""
    precision: str = "fp32"
    supports: tuple[str, ...] = ()
    best: tuple[str, ...] | None = None
    epilogue: tuple[str, ...] = ("bias",)
    limits: str = ""
    parent: str | None = None
    arch: str | None = None
    tensors: Format = FLOAT32
    mixes: str | None = None
    atomics: bool = False
    computes: str = FORWARD.name

    def unsupported(self, problem: Problem, sm: int, smem: int) -> str | None:
        """Return the requirement that a problem does not meet, with the actual values; or None.

        Parameters
        ----------
        problem : Problem
        sm : int
            The compute capability; 90 is 9.0.
        smem : int
            The shared memory that a block can have, in bytes.
        """
        if problem.computes != self.computes:
            return (
                f"it computes {_the(self.computes)}, and the problem is {_the(problem.computes)}: "
                f'use problem.computing("{self.computes}")'
            )
        if self.arch and not _runs(self.arch, sm):
            return f"its header's `arch:` requires {self.arch} (here sm_{sm})"
        for word in problem.epilogue:
            if word not in self.epilogue:
                return _MISSING[word]
        unmet = self._unmet(self.supports, problem, sm=sm, smem=smem)
        return unmet and f"its header's `supports:` requires {unmet}"

    def is_best(self, problem: Problem, sm: int, smem: int, precision: str) -> bool:
        """Return whether the header recommends this kernel for a problem and a precision class."""
        if self.best is None or self.unsupported(problem, sm, smem):
            return False
        target = {"sm": sm, "smem": smem, _TF32: int(precision == _TF32)}
        return self._unmet(self.best, problem, **target) is None

    def _unmet(self, requirements: tuple[str, ...], problem: Problem, **target: int) -> str | None:
        """Return the first requirement that is not met, with the values of its variables."""
        values = problem.variables() | target
        for requirement in requirements:
            try:
                met = _evaluate(requirement, values)
            except (ZeroDivisionError, TypeError) as error:
                raise CatalogError(
                    f"the requirement {shown(requirement)} in the header of {self.title!r} fails "
                    f"for {problem.label} ({error}); rewrite it"
                ) from None
            if not met:
                names = dict.fromkeys(re.findall(r"[a-zA-Z]\w*", requirement))
                here = ", ".join(f"{name} = {values[name]}" for name in names if name in values)
                return f"{requirement} (here {here})" if here else requirement
        return None


def _the(computes: str) -> str:
    return "the forward convolution" if computes == FORWARD.name else f"the {computes}"


def _evaluate(requirement: str, values: dict[str, int]) -> object:
    # This is safe: a requirement contains only `_TOKEN`s.
    return eval(_compiled(requirement), {"__builtins__": {}}, values)


@functools.lru_cache(1024)
def _compiled(requirement: str) -> CodeType:
    """Return the code of a requirement: each call of a kernel evaluates it."""
    return compile(requirement, "<requirement>", "eval")


def _runs(arch: str, sm: int) -> bool:
    """Return whether a GPU of compute capability `sm` runs code compiled for an architecture."""
    number = int(arch.strip("sm_af"))
    suffix = arch[-1]
    if suffix == "a":
        return sm == number
    if suffix == "f" and sm // 10 != number // 10:
        return False
    return sm >= number


_MISSING = {
    "bias": "its header's `epilogue:` has no bias",
    "relu": "its header's `epilogue:` has no relu; to fuse one, apply `activated` "
    "(kernels/convlab.cuh) before the store, and write `// epilogue: bias, relu`",
}
_KEYS = tuple(entry.name for entry in fields(Header))
_VALUES = {
    "precision": ("fp32|tf32|bf16|fp16", "fp32, tf32, bf16 or fp16"),
    "arch": (r"sm_\d{2,3}[af]?", "like sm_80 or sm_90a"),
    "mixes": (r"[1-9]\d?x[1-9]\d?|image", "like 2x2, or image"),
    "atomics": ("yes|no", "yes or no"),
    "computes": ("|".join(COMPUTATIONS), " or ".join(COMPUTATIONS)),
    "epilogue": ("none|bias|relu|bias, relu", "none, bias, relu, or bias, relu"),
}


def parse_header(text: str, path: str | Path) -> Header:
    """Return the header of a kernel file.

    `text` is the source. `path` appears in messages, and its stem is the default title. Raises
    CatalogError, with file and line, for an invalid header.
    """
    path = Path(path)
    values: dict[str, object] = {"title": path.stem}
    entries = _entries(text, path)
    _, computes = entries.get("computes", (0, FORWARD.name))
    for key, (line, value) in entries.items():
        pattern, allowed = _VALUES.get(key, ("", ""))
        if pattern and not re.fullmatch(pattern, value):
            raise CatalogError(f"{path}:{line}: {key} is {shown(value)}; it must be {allowed}")
        # A key without a value keeps its default.
        if not value:
            continue
        try:
            values[key] = _parsed(key, value, COMPUTATIONS.get(computes, FORWARD))
        except ProblemError as error:
            raise CatalogError(f"{path}:{line}: {key}: {error}") from None
    return Header(**values)  # type: ignore[arg-type]


def _parsed(key: str, value: str, computes: Computation) -> object:
    """Return the value of a key, converted for `Header`."""
    match key:
        case "supports" | "best":
            return _requirements(value, key)
        case "tensors":
            return parse_format(value, computes)
        case "epilogue":
            return tuple(word for word in EPILOGUE if word in value)
        case "atomics":
            return value == "yes"
    return value


# What may come before the header: a licence, or a student's answers to a lab.
_BLOCK_COMMENT = re.compile(r"\s*/\*.*?\*/", re.DOTALL)


def _entries(text: str, path: Path) -> dict[str, tuple[int, str]]:
    """Return the header's values and the lines on which they start; whitespace is collapsed."""
    entries: dict[str, tuple[int, list[str]]] = {}
    current: str | None = None
    text = text.removeprefix("\ufeff")
    if before := _BLOCK_COMMENT.match(text):
        text = "\n" * before[0].count("\n") + text[before.end() :]
    blank = len(text) - len(text.lstrip())
    first_line = 1 + text[:blank].count("\n")
    for number, line in enumerate(text[blank:].splitlines(), first_line):
        if not line.startswith("//"):
            break
        entry = re.match(r"// ?([A-Za-z]+):(?:\s+(.*))?$", line)
        if entry and (entry[1].lower() in _KEYS or entry[1].islower()):
            current = entry[1].lower()
            _check_key(current, entries, f"{path}:{number}")
            entries[current] = number, (entry[2] or "").split()
        elif current and re.match(r"//\s{2,}\S", line):
            entries[current][1].extend(line[2:].split())
        else:
            current = None
    return {key: (number, " ".join(words)) for key, (number, words) in entries.items()}


def _check_key(key: str, entries: Mapping[str, tuple[int, list[str]]], place: str) -> None:
    """Raise CatalogError for a key that is unknown or given twice."""
    if key not in _KEYS:
        near = hint(key, _KEYS) or "."
        raise CatalogError(
            f"{place}: unknown key {shown(key)} in the header{near} Keys: {', '.join(_KEYS)}"
        )
    if key in entries:
        raise CatalogError(
            f"{place}: {key} is given twice, first on line {entries[key][0]}; remove one, or "
            "indent a continuation line by two spaces or more"
        )


def _requirements(text: str, key: str) -> tuple[str, ...]:
    """Return the comma-separated comparisons of a line; evaluate each once with all values 1."""
    if text in ("everything", ""):
        return ()
    names = (*VARIABLES, _TF32) if key == "best" else VARIABLES
    ones = dict.fromkeys(names, 1)
    try:
        if unknown := _TOKEN.sub("", text):
            raise ValueError(f"{shown(unknown)} is not allowed")
        expressions = ast.parse(f"({text},)", mode="eval").body.elts
        requirements = tuple(ast.unparse(expression) for expression in expressions)
        for requirement in requirements:
            # Other values may not divide by zero.
            with contextlib.suppress(ZeroDivisionError):
                if not isinstance(_evaluate(requirement, ones), bool):
                    raise ValueError(f"{requirement!r} is not a comparison")
    # Python may raise any exception for a text that is not Python.
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ProblemError(
            f"cannot read {shown(text)} ({reason}); write 'everything', or comparisons such as "
            f"'R in (1, 3), C % groups == 0, sm >= 80' over {', '.join(names)}"
        ) from None
    return requirements


def find(name_or_path: str | Path, also: Collection[str] = tuple(BASELINES)) -> Path:
    """Return a kernel's file by its path, its stem, its number, or the beginning of its stem.

    A text with a slash, or that ends in ".cu", is a path; see `is_path`. Any other text is a name,
    and never means a file in the working directory. Raises CatalogError if no kernel or several
    match. The message also suggests names in `also`.
    """
    path = valid_path(name_or_path, "kernel")
    text = os.fspath(name_or_path)
    if is_path(text):
        if os.path.isfile(path):
            return path
        matches = []
    else:
        matches = _matches(text)
    if len(matches) == 1:
        _say_hidden(matches)
        return matches[0]
    if matches:
        stems = ", ".join(path.stem for path in matches)
        raise CatalogError(f"{shown(text)} matches several kernels: {stems}; write one of them out")
    if is_path(text) and not os.path.isdir(path):
        raise CatalogError(f"there is no file {end_of(text)}{_suggestion(path)}")
    if text in BASELINES:
        raise CatalogError(f"{text} is a library's convolution; give a .cu file here")
    if text and os.path.isdir(path):
        known = hint("", names(), SHOWN)
        raise CatalogError(
            f"{end_of(text)} is a folder; give a .cu file in it, or a kernel's name{known}"
        )
    if os.path.isfile(path):
        raise CatalogError(
            f"no kernel is named {shown(text)}; to use the file, write ./{end_of(text)}"
        )
    raise CatalogError(f"no kernel is named {shown(text)}{hint(text, [*names(), *also], SHOWN)}")


def is_path(text: str) -> bool:
    """Return whether a text means a file by its path, and not a kernel by its name."""
    return "/" in text or text.endswith(".cu")


def split_tunables(text: str) -> tuple[str, str]:
    """Return the name or path of a kernel, and the tunables behind the last "@".

    A text that ends in ".cu" is a path without tunables: a file's name may contain "@".

    >>> split_tunables("03_smem_tile@C_TILE=4"), split_tunables("k at@x.cu")
    (('03_smem_tile', 'C_TILE=4'), ('k at@x.cu', ''))
    """
    name, at, tunables = text.rpartition("@")
    if not at or "/" in tunables or text.endswith(".cu"):
        return text, ""
    return name, tunables


def _matches(text: str) -> list[Path]:
    """Return the kernels with this stem, else with this number, else with this beginning."""
    paths = quiet_catalog()
    whole = [path for path in paths if path.stem == text]
    number = [path for path in paths if path.stem.partition("_")[0] == text]
    beginning = [path for path in paths if text and path.stem.startswith(text)]
    return whole or number or beginning


def _suggestion(path: Path) -> str:
    """Return the end of a message about a missing file: a similar name, or known kernels."""
    candidates = [*quiet_catalog(), *sorted(path.parent.glob("*.cu"))]
    known = {candidate.name: str(candidate) for candidate in candidates}
    near = nearest(path.name, known)
    return f"; did you mean {known[near[0]]}?" if near else hint("", names(), SHOWN)


def names() -> list[str]:
    """Return the names of kernels: files in the working directory, and stems in the catalog."""
    files = sorted(path.name for path in Path().glob("*.cu"))
    return [*files, *(path.stem for path in quiet_catalog())]


def folders() -> list[Path]:
    """Return the folders of the catalog: the working directory's ``kernels/`` comes first."""
    own = Path("kernels").absolute()
    places = [own, KERNEL_DIR] if own.is_dir() else [KERNEL_DIR]
    for entry in os.environ.get(ENVIRONMENT, "").split(os.pathsep):
        if not entry:
            continue
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise CatalogError(
                f"{ENVIRONMENT} lists {end_of(entry)}, which is not a folder; correct it"
            )
        places.append(folder)
    return list(dict.fromkeys(place.resolve() for place in places))


def catalog(computes: str | None = None) -> list[Path]:
    """Return the kernel files in `folders`, sorted by name; with `computes`, those that compute it.

    A file in the working directory's ``kernels/`` hides all others of its name; a warning says so
    once. Raises CatalogError if two other files have the same name.
    """
    paths = quiet_catalog()
    _say_hidden(paths)
    if computes is None:
        return paths
    return [path for path in paths if parse_header(read(path), path).computes == computes]


def quiet_catalog() -> list[Path]:
    """Return `catalog`, without its warning: for suggestions and completion."""
    own = Path("kernels").resolve()
    paths: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.cu")):
            twin = paths.setdefault(path.stem, path)
            hidden = twin.parent == own != KERNEL_DIR.resolve()
            if twin is not path and not hidden:
                raise CatalogError(
                    f"two kernels are named {path.stem!r}: {twin} and {path}; rename one of them"
                )
    return [paths[stem] for stem in sorted(paths)]


# The files for which this process has warned.
_said: set[Path] = set()


def _say_hidden(paths: Iterable[Path]) -> None:
    """Warn, once for each file, about files that hide a shipped kernel of the same name."""
    hiding = [
        path
        for path in paths
        if path.parent != KERNEL_DIR.resolve() and (KERNEL_DIR / path.name).is_file()
    ]
    new = [path for path in hiding if path not in _said]
    _said.update(new)
    if new:
        warnings.warn(
            f"{', '.join(path.stem for path in new)}: the name means your file in "
            f"{end_of(str(new[0].parent))}, not convlab's kernel of this name; rename your file "
            "to use both",
            stacklevel=3,
        )


def uncommented(source: str) -> str:
    """Return a C++ text with its comments replaced by blanks; line numbers do not change."""

    def blanks(comment: re.Match) -> str:
        return re.sub(r"[^\n]", " ", comment[0])

    return re.sub(r"//[^\n]*|/\*.*?\*/", blanks, source, flags=re.DOTALL)


def read(path: Path) -> str:
    """Return the text of a kernel file, without a byte order mark.

    Raises CatalogError if the file cannot be read.
    """
    try:
        return readable(path, "kernel")
    except ProblemError as error:
        raise CatalogError(str(error)) from None
