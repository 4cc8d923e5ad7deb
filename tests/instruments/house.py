"""Measure the package: sizes, imports, and what stops working when a room is deleted.

    python -m tests.instruments.house                     # print the numbers
    python -m tests.instruments.house --without sim       # run tests/core in a copy without the room
    python -m tests.instruments.house --deletion          # do so for each room, and print a table
    python -m tests.instruments.house --deletion --write convlab/README.md

The last command writes the table between the page's markers ``<!-- deletion -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "convlab"
TESTS = ROOT / "tests"
PAGE = PACKAGE / "README.md"  # of the house
PARAMETERS = 7  # at most, of a function that is not public


@functools.cache
def rooms() -> list[str]:
    """Return the names of the rooms: the folders beside ``core`` that have a ``room.toml``."""
    return sorted(path.parent.name for path in PACKAGE.glob("*/room.toml"))


def folders(root: Path) -> list[str]:
    """Return the folders of a package that hold Python modules, as dotted names below it."""
    found = {path.parent.relative_to(root) for path in root.rglob("*.py")}
    return sorted(".".join(folder.parts) for folder in found)


@functools.cache
def modules(root: Path = PACKAGE) -> dict[str, Path]:
    """Return a package's modules by dotted name: "core.rooms", and "" for the package itself."""
    named = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        named[".".join(part for part in parts if part != "__init__")] = path
    return named


def part(name: str) -> str:
    """Return the part of the package that a module is in: "core", a room, or "" for the top."""
    first = name.split(".")[0]
    return first if first == "core" or first in rooms() else ""


@dataclass(frozen=True)
class Import:
    """One module that another imports, and where: "core.rooms" in line 12."""

    target: str
    line: int


def imports(name: str, path: Path, root: Path = PACKAGE) -> Iterator[Import]:
    """Yield the package's modules that a module imports, also in functions and for types only."""
    known = modules(root)
    for node in ast.walk(ast.parse(path.read_text())):
        for wanted in _wanted(node, name, path, root.name):
            module = wanted if wanted in known else wanted.rpartition(".")[0]
            if module in known and module != name:
                yield Import(module, node.lineno)


def _wanted(node: ast.AST, name: str, path: Path, package: str) -> list[str]:
    """Return the modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        return [each.partition(".")[2] for each in names if each.split(".")[0] == package]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module.split(".") if node.module else []
    if node.level:
        folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        folder = [part for part in folder if part]
        base = folder[: len(folder) - node.level + 1] + module
    elif module[:1] == [package]:
        base = module[1:]
    else:
        return []
    return [".".join([*base, alias.name]) for alias in node.names]


def circles() -> list[list[str]]:
    """Return the groups of modules that import one another; imports in functions count."""
    graph = networkx.DiGraph()
    for name, path in modules().items():
        graph.add_edges_from((name, each.target) for each in imports(name, path))
    rings = networkx.strongly_connected_components(graph)
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


@functools.cache
def between_parts() -> dict[str, dict[str, str]]:
    """Return the parts that each part imports, and one place where: {"core": {"sim": "a.py:3"}}."""
    found: dict[str, dict[str, str]] = {}
    for name, path in modules().items():
        for each in imports(name, path):
            here = part(name)
            there = part(each.target)
            if there and there != here:
                place = f"{path.relative_to(ROOT)}:{each.line}"
                found.setdefault(here, {}).setdefault(there, place)
    return found


def allowed(room: str) -> set[str]:
    """Return what a room may import: the core, and what its README.md lists.

    The list is a line ``Imports: core, sim``; more text may follow in the line.
    """
    page = PACKAGE / room / "README.md"
    text = page.read_text() if page.is_file() else ""
    said = re.search(r"^Imports: (.*)", text, re.MULTILINE)
    words = re.findall(r"\w+", said[1]) if said else []
    return {"core"} | set(rooms()).intersection(words)


def entered(function: str) -> list[str]:
    """Return the modules whose code runs when a public function is called on a small problem."""
    import convlab

    seen: dict[str, None] = {}

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            seen.setdefault(str(Path(path).relative_to(PACKAGE)))

    kernels = ["torch:cpu"] if function == "check" else ["torch:cpu", "torch:im2col"]
    arguments = kernels if function != "compare" else [kernels]
    call = functools.partial(getattr(convlab, function), *arguments, "N=1,C=2,H=6,W=6,K=2,R=3,S=3")
    call()  # imports what it needs, which is not counted
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(seen)


def core_path() -> list[Path]:
    """Return the files of the core in reading order, from the table in convlab/README.md."""
    section = PAGE.read_text().partition("## How to read the core")[2].partition("\n## ")[0]
    return [
        PACKAGE / name for name in re.findall(r"^\| `(core/\S+\.py)` \|", section, re.MULTILINE)
    ]


def many_parameters() -> list[str]:
    """Return the functions that take more than `PARAMETERS` and are not public names of convlab."""
    import convlab

    found = []
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            taken = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            taken = [each for each in taken if each.arg not in ("self", "cls")]
            if len(taken) > PARAMETERS and node.name not in convlab.__all__:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}({len(taken)})")
    return found


def lines(*paths: Path) -> int:
    """Return the number of lines of files, blank lines included."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def numbers() -> dict[str, int]:
    """Return each measure of the package by its name."""
    core = [path for name, path in modules().items() if part(name) == "core"]
    path = core_path()
    sizes = {
        "the path through the core": lines(*path),
        "rest of the core": lines(*core) - lines(*path),
    }
    for room in rooms():
        sizes[f"room {room}"] = lines(*(PACKAGE / room).rglob("*.py"))
    cpp = [*PACKAGE.rglob("*.h"), *PACKAGE.rglob("*.cpp")]
    tests = [path for path in TESTS.rglob("*.py") if "instruments" not in path.parts]
    sizes |= {
        "C++ of the simulator": lines(*cpp),
        "tests, without instruments": lines(*tests),
        "circles of imports": len(circles()),
        f"functions with over {PARAMETERS} parameters": len(many_parameters()),
    }
    for function in ("check", "compare", "ab"):
        of_core = [name for name in entered(function) if name.startswith("core/")]
        sizes[f"modules of the core that {function} enters"] = len(of_core)
    return sizes


def declared_packages() -> set[str]:
    """Return the packages that pyproject.toml lists."""
    text = (ROOT / "pyproject.toml").read_text()
    return set(tomllib.loads(text)["tool"]["setuptools"]["packages"])


def main(arguments: list[str]) -> None:
    """Print the numbers, or what still works without a room."""
    from tests.instruments import deletion

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--without", metavar="ROOM", choices=rooms(), help="run tests/core without this room"
    )
    parser.add_argument(
        "--deletion", action="store_true", help="run tests/core without each room in turn"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table to this page")
    options = parser.parse_args(arguments)
    if options.without or options.deletion:
        deletion.publish([options.without] if options.without else rooms(), options.write)
        return
    for measure, value in numbers().items():
        print(f"{measure:40} {value:>7,}")
    for ring in circles():
        print("circle:", " ".join(ring))
    for function in many_parameters():
        print("many parameters:", function)


if __name__ == "__main__":
    main(sys.argv[1:])
