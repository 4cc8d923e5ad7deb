"""Find a .cu file by name, and read its header comment.

A header is the run of `//` lines at the beginning of the file, `// key: value`. Continuation lines
are indented by two spaces or more. Lines of prose between them are ignored.
"""

import ast
import contextlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from ..arguments import hint, nearest, readable, shown
from ..arguments import path as valid_path
from ..defaults import BASELINES
from ..errors import CatalogError, ProblemError
from ..problem.format import FLOAT32, Format, parse_format
from ..problem.problem import EPILOGUE, Problem

# Where pip installs the kernels. In a checkout they are next to convlab/.
_INSTALLED = Path(__file__).resolve().parents[2] / "kernels"
# The shipped kernels, and the headers that any kernel may include.
KERNEL_DIR = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "kernels"
ENVIRONMENT = "CONVLAB_KERNELS"
# The most names that a message lists if none resembles the one that was asked for.
SHOWN = 8
VARIABLES = (*Problem(1, 1, 1, 1, 1, 1, 1).variables(), "sm", "smem")
# A variable of `best` alone: 1 if results of that class will do, else 0.
_TF32 = "tf32"
_WORDS = "|".join(["and", "or", "not", "in", _TF32, *VARIABLES])
# What a requirement may consist of: Python of these tokens is safe to evaluate.
_TOKEN = re.compile(rf"\s+|[0-9]+\b|==|!=|[<>]=?|//|[-+%(),]|(?<!\*)\*(?!\*)|\b(?:{_WORDS})\b")


@dataclass(frozen=True)
class Header:
    """What a kernel file says about itself.

    Attributes
    ----------
    title, idea, change, mapping, limits
        Texts: a name for people; how it works; the change from its parent; which thread computes
        what; what limits it.
    precision
        The class that its results reach: "fp32", "tf32", "bf16" or "fp16".
    supports
        Requirements on a problem, each a Python comparison over `VARIABLES`.
    best
        The problems for which to choose it, as `supports`, and over "tf32" too; None if it is
        chosen by name only.
    epilogue
        What it does to a sum of products before it stores it.
    parent
        The rung that it descends from, by its stem; None if a line of rungs begins here.
    arch
        The architecture that it is compiled for and needs: "sm_80" and later; "sm_90a" and no
        other; "sm_100f" and those of its family. None: that of the GPU that is there.
    tensors
        The dtypes and layouts of its tensors.
    mixes
        "2x2" if the outputs of such a tile are computed from the same sums; or "image".
    atomics
        Whether it adds into memory in no fixed order, so that two runs may differ in bits.
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

    def unsupported(self, problem: Problem, sm: int, smem: int) -> str | None:
        """Return the line of the header that a problem does not meet, with its values; or None.

        `sm` is the compute capability (90 for 9.0), `smem` the bytes of shared memory of a block.
        """
        if self.arch and not _runs(self.arch, sm):
            return f"by its header's `arch:` {self.arch} (here sm_{sm})"
        for word in problem.epilogue:
            if word not in self.epilogue:
                return _MISSING[word]
        unmet = self._unmet(self.supports, problem, sm=sm, smem=smem)
        return unmet and f"by its header's `supports:` {unmet}"

    def is_best(self, problem: Problem, sm: int, smem: int, precision: str) -> bool:
        """Return whether it supports a problem, and is the one to choose for a precision class."""
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
                    f"the requirement {requirement!r} of {self.title!r} cannot be "
                    f"evaluated for {problem.label} ({error}); rewrite it"
                ) from None
            if not met:
                names = dict.fromkeys(re.findall(r"[a-zA-Z]\w*", requirement))
                here = ", ".join(f"{name} = {values[name]}" for name in names if name in values)
                return f"{requirement} (here {here})" if here else requirement
        return None


def _evaluate(requirement: str, values: dict[str, int]) -> object:
    # It consists of `_TOKEN`s, which can do no harm.
    return eval(requirement, {"__builtins__": {}}, values)


def _runs(arch: str, sm: int) -> bool:
    """Return whether a GPU of that compute capability runs code compiled for an architecture."""
    number = int(arch.strip("sm_af"))
    suffix = arch[-1]
    if suffix == "a":
        return sm == number
    if suffix == "f" and sm // 10 != number // 10:
        return False
    return sm >= number


_MISSING = {
    "bias": "by its header's `epilogue:` it adds no bias",
    "relu": "it does not fuse a ReLU: say `// epilogue: bias, relu` in its header and apply "
    "`activated` (kernels/convlab.cuh) to what it stores",
}
_KEYS = tuple(entry.name for entry in fields(Header))
_VALUES = {
    "precision": ("fp32|tf32|bf16|fp16", "fp32, tf32, bf16 or fp16"),
    "arch": (r"sm_\d{2,3}[af]?", "like sm_80 or sm_90a"),
    "mixes": (r"[1-9]\d?x[1-9]\d?|image", "like 2x2, or image"),
    "atomics": ("yes|no", "yes or no"),
    "epilogue": ("none|bias|relu|bias, relu", "none, bias, relu, or bias, relu"),
}


def parse_header(text: str, path: str | Path) -> Header:
    """Return the header of a kernel file; `path` is for messages and the default title.

    Raises CatalogError, with file and line, for a header that cannot be read.
    """
    path = Path(path)
    values: dict[str, object] = {"title": path.stem}
    for key, (line, value) in _entries(text, path).items():
        pattern, allowed = _VALUES.get(key, ("", ""))
        if pattern and not re.fullmatch(pattern, value):
            raise CatalogError(f"{path}:{line}: {key} is {value!r}; it must be {allowed}")
        # A key without a value keeps its default.
        if not value:
            continue
        try:
            values[key] = _parsed(key, value)
        except ProblemError as error:
            raise CatalogError(f"{path}:{line}: {key}: {error}") from None
    return Header(**values)  # type: ignore[arg-type]


def _parsed(key: str, value: str) -> object:
    """Return the value of a key as `Header` has it."""
    match key:
        case "supports" | "best":
            return _requirements(value, key)
        case "tensors":
            return parse_format(value)
        case "epilogue":
            return tuple(word for word in EPILOGUE if word in value)
        case "atomics":
            return value == "yes"
    return value


def _entries(text: str, path: Path) -> dict[str, tuple[int, str]]:
    """Return the header's values, whitespace collapsed, with the line on which each starts."""
    entries: dict[str, tuple[int, list[str]]] = {}
    current: str | None = None
    text = text.removeprefix("\ufeff")
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
    """Raise CatalogError for a key that is unknown, or already has an entry."""
    if key not in _KEYS:
        near = hint(key, _KEYS) or "."
        raise CatalogError(
            f"{place}: unknown key {key!r} in the header{near} Keys: {', '.join(_KEYS)}"
        )
    if key in entries:
        raise CatalogError(
            f"{place}: {key} is given twice, first on line {entries[key][0]}; indent a "
            "continuation line by two spaces or more"
        )


def _requirements(text: str, key: str) -> tuple[str, ...]:
    """Return the comma-separated comparisons of a line, each tried on a problem of ones."""
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
            # A division by zero says nothing: other numbers may do.
            with contextlib.suppress(ZeroDivisionError):
                if not isinstance(_evaluate(requirement, ones), bool):
                    raise ValueError(f"{requirement!r} is not a comparison")
    # Python may raise anything for a text that is no Python.
    except Exception as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ProblemError(
            f"cannot read {shown(text)} ({reason}); write 'everything', or comparisons such as "
            f"'R in (1, 3), C % groups == 0, sm >= 80' over {', '.join(names)}"
        ) from None
    return requirements


def find(name_or_path: str | Path, also: Collection[str] = tuple(BASELINES)) -> Path:
    """Return a kernel's file by its path, stem, number or beginning.

    Raises CatalogError if no kernel fits, or several do; the names in `also` are suggested too.
    """
    path = valid_path(name_or_path, "kernel")
    text = os.fspath(name_or_path)
    if os.path.isfile(path):
        return path
    matches = _matches(text)
    if len(matches) == 1:
        return matches[0]
    if matches:
        stems = ", ".join(path.stem for path in matches)
        raise CatalogError(f"{text!r} fits more than one kernel: {stems}; write one of them out")
    if "/" in text or text.endswith(".cu"):
        raise CatalogError(f"there is no file {text[:200]}{_suggestion(path)}")
    if text in BASELINES:
        raise CatalogError(f"{text} is a library's: a .cu file is needed here")
    raise CatalogError(f"no kernel is named {shown(text)}{hint(text, [*names(), *also], SHOWN)}")


def _matches(text: str) -> list[Path]:
    """Return the kernels of that stem; if there are none, of that number; else of that beginning."""
    paths = catalog()
    whole = [path for path in paths if path.stem == text]
    number = [path for path in paths if path.stem.partition("_")[0] == text]
    beginning = [path for path in paths if text and path.stem.startswith(text)]
    return whole or number or beginning


def _suggestion(path: Path) -> str:
    """Return the end of a message on a file that is missing: one with a similar name."""
    candidates = [*catalog(), *sorted(path.parent.glob("*.cu"))]
    known = {candidate.name: str(candidate) for candidate in candidates}
    near = nearest(path.name, known)
    return f"; did you mean {known[near[0]]}?" if near else hint("", names(), SHOWN)


def names() -> list[str]:
    """Return the names of kernels: the files in the working directory, and the catalog's stems."""
    files = sorted(path.name for path in Path().glob("*.cu"))
    return [*files, *(path.stem for path in catalog())]


def folders() -> list[Path]:
    """Return where kernels are looked for by name: the working directory's ``kernels/`` first."""
    own = Path("kernels").absolute()
    places = [own, KERNEL_DIR] if own.is_dir() else [KERNEL_DIR]
    for entry in os.environ.get(ENVIRONMENT, "").split(os.pathsep):
        if not entry:
            continue
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise CatalogError(f"{ENVIRONMENT} lists {entry}, which is no directory; correct it")
        places.append(folder)
    return list(dict.fromkeys(place.resolve() for place in places))


def catalog() -> list[Path]:
    """Return all kernel files of `folders`, by name.

    A file in the working directory's ``kernels/`` hides others of its name. Raises CatalogError if
    two other files have one name.
    """
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


def uncommented(source: str) -> str:
    """Return a C++ text with blanks for its comments: each line stays where it is."""

    def blanks(comment: re.Match) -> str:
        return re.sub(r"[^\n]", " ", comment[0])

    return re.sub(r"//[^\n]*|/\*.*?\*/", blanks, source, flags=re.DOTALL)


def read(path: Path) -> str:
    """Return the text of a kernel file, without a byte order mark."""
    try:
        return readable(path, "kernel")
    except ProblemError as error:
        raise CatalogError(str(error)) from None
