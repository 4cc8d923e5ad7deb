"""The kernels on disk: finding a .cu file by name, and reading its header comment.

A header is the run of `//` lines that opens the file, `// key: value`, with continuation lines
indented by two spaces or more. Lines of prose between them are ignored.
"""

import ast
import contextlib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path

from ..arguments import hint, nearest, readable, shown
from ..arguments import path as valid_path
from ..defaults import BASELINES
from ..errors import CatalogError, ProblemError
from ..problem.format import FLOAT32, Format, parse_format
from ..problem.problem import EPILOGUE, Problem

_INSTALLED = Path(__file__).resolve().parents[2] / "kernels"  # by pip; else beside convlab/
# The shipped kernels, and the headers that any kernel may include.
KERNEL_DIR = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "kernels"
ENVIRONMENT = "CONVLAB_KERNELS"
SHOWN = 8  # names, where none is near to the one that was given
VARIABLES = (*Problem(1, 1, 1, 1, 1, 1, 1).variables(), "sm", "smem")
_TF32 = "tf32"  # of `best` alone: 1 where results of that class will do, else 0
# What a requirement may consist of: the Python of these is safe to evaluate.
_TOKEN = re.compile(
    rf"\s+|[0-9]+\b|==|!=|[<>]=?|//|[-+%(),]|(?<!\*)\*(?!\*)|\b(?:and|or|not|in|{_TF32}|{'|'.join(VARIABLES)})\b"
)


@dataclass(frozen=True)
class Header:
    """What a kernel file says of itself."""

    title: str
    idea: str = ""  # how it works
    change: str = ""  # from the rung before
    mapping: str = ""  # which thread computes what
    precision: str = "fp32"  # the class that its results reach: or "tf32", "bf16", "fp16"
    supports: tuple[str, ...] = ()  # requirements, each a Python comparison over `VARIABLES`
    # When it is the one to take: as `supports`, and over `_TF32` too; None: where it is named only.
    best: tuple[str, ...] | None = None
    epilogue: tuple[str, ...] = ("bias",)  # what it does with a sum of products before it stores it
    limits: str = ""  # what limits it
    parent: str | None = None  # the rung it descends from, by its stem; None: a line begins here
    # The architecture it is compiled for and needs: "sm_80" and later; "sm_90a", no other;
    # "sm_100f", those of its family. None: whichever is there.
    arch: str | None = None
    tensors: Format = FLOAT32
    mixes: str | None = None  # "2x2": outputs of such a tile are made of the same sums; "image"
    atomics: bool = False  # it adds into memory in no fixed order: two runs may differ in bits

    def unsupported(self, problem: Problem, sm: int, smem: int) -> str | None:
        """Return the line of the header that is not met, with the values it met, or None."""
        # sm: the compute capability, 90 for 9.0; smem: the bytes of shared memory of a block
        if self.arch and not _runs(self.arch, sm):
            return f"by its header's `arch:` {self.arch} (here sm_{sm})"
        if missing := [word for word in problem.epilogue if word not in self.epilogue]:
            return _MISSING[missing[0]]
        unmet = self._unmet(self.supports, problem, sm=sm, smem=smem)
        return unmet and f"by its header's `supports:` {unmet}"

    def is_best(self, problem: Problem, sm: int, smem: int, precision: str) -> bool:
        """Whether it can do a problem, and says that it is to be taken for results of a class."""
        if self.best is None or self.unsupported(problem, sm, smem):
            return False
        about = {"sm": sm, "smem": smem, _TF32: int(precision == _TF32)}
        return self._unmet(self.best, problem, **about) is None

    def _unmet(self, requirements: tuple[str, ...], problem: Problem, **about: int) -> str | None:
        """The first requirement that is not met, with the values it met."""
        values = problem.variables() | about
        for requirement in requirements:
            try:
                met = _evaluate(requirement, values)
            except (ZeroDivisionError, TypeError) as error:
                raise CatalogError(
                    f"the requirement {requirement!r} of {self.title!r} cannot be told "
                    f"for {problem.label} ({error}); rewrite it"
                ) from None
            if not met:
                names = dict.fromkeys(re.findall(r"[a-zA-Z]\w*", requirement))
                here = ", ".join(f"{name} = {values[name]}" for name in names if name in values)
                return f"{requirement} (here {here})" if here else requirement
        return None


def _evaluate(requirement: str, values: dict[str, int]) -> object:
    return eval(requirement, {"__builtins__": {}}, values)  # of tokens that can do no harm


def _runs(arch: str, sm: int) -> bool:
    """Whether a GPU of that compute capability runs what is compiled for an architecture."""
    number = int(arch.strip("sm_af"))
    suffix = arch[-1]
    if suffix == "a":
        return sm == number
    return sm >= number and (suffix != "f" or sm // 10 == number // 10)


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
    """Return the header of a kernel file, whose path is for messages and the default title."""
    path = Path(path)
    values: dict[str, object] = {"title": path.stem}
    for key, (line, value) in _entries(text, path).items():
        pattern, allowed = _VALUES.get(key, ("", ""))
        if pattern and not re.fullmatch(pattern, value):
            raise CatalogError(f"{path}:{line}: {key} is {value!r}; it must be {allowed}")
        try:
            if key == "supports" or (key == "best" and value):
                values[key] = _requirements(value, key)
            elif key == "tensors":
                values[key] = parse_format(value)
            elif key == "epilogue":
                values[key] = tuple(word for word in EPILOGUE if word in value)
            elif value:
                values[key] = value == "yes" if key == "atomics" else value
        except ProblemError as error:
            raise CatalogError(f"{path}:{line}: {key}: {error}") from None
    return Header(**values)  # type: ignore[arg-type]


def _entries(text: str, path: Path) -> dict[str, tuple[int, str]]:
    """Return the header's values, whitespace collapsed, with the line that each starts on."""
    found: dict[str, tuple[int, list[str]]] = {}
    current: str | None = None
    text = text.removeprefix("\ufeff")
    first = len(text) - len(text.lstrip())
    for number, line in enumerate(text[first:].splitlines(), 1 + text[:first].count("\n")):
        if not line.startswith("//"):
            break
        entry = re.match(r"// ?([A-Za-z]+):(?:\s+(.*))?$", line)
        if entry and (entry[1].lower() in _KEYS or entry[1].islower()):
            current = entry[1].lower()
            if current not in _KEYS:
                near = hint(current, _KEYS) or "."
                raise CatalogError(
                    f"{path}:{number}: unknown key {current!r} in the header{near} "
                    f"Keys: {', '.join(_KEYS)}"
                )
            if current in found:
                raise CatalogError(
                    f"{path}:{number}: {current} is given twice, first on line "
                    f"{found[current][0]}; indent a continuation line by two spaces or more"
                )
            found[current] = (number, (entry[2] or "").split())
        elif current and re.match(r"//\s{2,}\S", line):
            found[current][1].extend(line[2:].split())
        else:
            current = None
    return {key: (number, " ".join(words)) for key, (number, words) in found.items()}


def _requirements(text: str, key: str) -> tuple[str, ...]:
    """Return the comma-separated comparisons of a line, each tried on a problem of ones."""
    if text in ("everything", ""):
        return ()
    names = (*VARIABLES, _TF32) if key == "best" else VARIABLES
    ones = dict.fromkeys(names, 1)
    try:
        if unknown := _TOKEN.sub("", text):
            raise ValueError(f"{shown(unknown)} is not allowed")
        found = tuple(map(ast.unparse, ast.parse(f"({text},)", mode="eval").body.elts))
        for each in found:
            with contextlib.suppress(ZeroDivisionError):  # of other numbers it may be told
                if not isinstance(_evaluate(each, ones), bool):
                    raise ValueError(f"{each!r} is not a comparison")
    except Exception as error:  # whatever Python makes of it
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ProblemError(
            f"cannot read {shown(text)} ({reason}); write 'everything', or comparisons such as "
            f"'R in (1, 3), C % groups == 0, sm >= 80' over {', '.join(names)}"
        ) from None
    return found


def find(name_or_path: str | Path, also: Collection[str] = tuple(BASELINES)) -> Path:
    """Return a kernel's file, by path, stem, number or beginning; names `also` taken are suggested."""
    path = valid_path(name_or_path, "kernel")
    text = os.fspath(name_or_path)
    if os.path.isfile(path):
        return path
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
    if "/" in text or text.endswith(".cu"):
        known = {other.name: str(other) for other in [*paths, *sorted(path.parent.glob("*.cu"))]}
        near = [f"; did you mean {known[name]}?" for name in nearest(path.name, known)]
        told = near[0] if near else hint("", names(), SHOWN)
        raise CatalogError(f"there is no file {text[:200]}{told}")
    if text in BASELINES:
        raise CatalogError(f"{text} is a library's: a .cu file is needed here")
    raise CatalogError(f"no kernel is named {shown(text)}{hint(text, [*names(), *also], SHOWN)}")


def names() -> list[str]:
    """Return what a kernel may be called here: files that lie here, and the catalog's names."""
    return [*sorted(path.name for path in Path().glob("*.cu")), *(path.stem for path in catalog())]


def folders() -> list[Path]:
    """Return where kernels are looked for by name: the working directory's ``kernels/`` first."""
    found = [own] if (own := Path("kernels").absolute()).is_dir() else []
    found.append(KERNEL_DIR)
    for entry in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        directory = Path(entry).expanduser()
        if not directory.is_dir():
            raise CatalogError(f"{ENVIRONMENT} lists {entry}, which is no directory; correct it")
        found.append(directory)
    return list(dict.fromkeys(entry.resolve() for entry in found))


def catalog() -> list[Path]:
    """Return all kernel files of `folders`, by name; two of one name are an error."""
    found: dict[str, Path] = {}
    own = Path("kernels").resolve()
    for path in (path for folder in folders() for path in sorted(folder.glob("*.cu"))):
        twin = found.setdefault(path.stem, path)
        hidden = twin.parent == own != KERNEL_DIR.resolve()
        if twin is not path and not hidden:
            raise CatalogError(
                f"two kernels are named {path.stem!r}: {twin} and {path}; rename one of them"
            )
    return [found[stem] for stem in sorted(found)]


def uncommented(source: str) -> str:
    """Return a C++ text with blanks for its comments: each line stays where it is."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.S)


def read(path: Path) -> str:
    """Return the text of a kernel file, without a byte order mark."""
    try:
        return readable(path, "kernel")
    except ProblemError as error:
        raise CatalogError(str(error)) from None
