"""How large the house is: ``python -m tests.instruments.house`` prints the numbers it is held to."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "convlab"
# From the ground up: each imports what stands before it, or in the same folder.
FLOORS = ("words", "machine", "show", "sim", "run", "right", "fast", "why", "nn", "use", "__main__")


def modules() -> dict[str, Path]:
    """The package's modules by dotted name: "run.kernel", "nn"; the package itself is ""."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imports(name: str, path: Path) -> Iterator[tuple[str, ast.ImportFrom | ast.Import]]:
    """The package's modules that one imports, wherever in the file it does so.

    What stands under ``if TYPE_CHECKING:`` is read by nobody at run time, and left out.
    """
    tree = ast.parse(path.read_text())
    unread = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    there = modules()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if id(node) in unread or not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.Import):
            wanted = [a.name.split(".", 1)[-1] for a in node.names if a.name.startswith("convlab")]
        elif node.level:
            base = [part for part in package if part][: len(package) - node.level + 1]
            base += node.module.split(".") if node.module else []
            wanted = [".".join([*base, alias.name]) for alias in node.names]
        elif (node.module or "").split(".")[0] == "convlab":
            base = node.module.split(".")[1:]
            wanted = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for each in wanted:
            each = each if each in there else each.rpartition(".")[0]
            if each in there and each != name:
                yield each, node


def circles() -> list[list[str]]:
    """The rings of modules that import one another, lazy imports counted."""
    graph = {
        name: {target for target, _ in imports(name, path)} for name, path in modules().items()
    }
    order: list[str] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    found: list[list[str]] = []

    def visit(node: str) -> None:  # Tarjan, SIAM Journal on Computing 1, 1972
        index[node] = low[node] = len(index)
        order.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
            if target in order:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            ring = order[order.index(node) :]
            del order[order.index(node) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def walked(function: str) -> list[str]:
    """The modules whose code runs, in order, when a public function is called on a small problem."""
    import convlab

    seen: dict[str, None] = {}

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            seen.setdefault(str(Path(path).relative_to(PACKAGE)))

    kernel = convlab.load("01_direct", engine="sim")
    problem = "N=1,C=2,H=6,W=6,K=2,R=3,S=3"
    sys.setprofile(note)
    try:
        getattr(convlab, function)([kernel], problem, progress=False)
    finally:
        sys.setprofile(None)
    return list(seen)


def lines(*paths: Path) -> int:
    """Lines of files, all of them counted."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def numbers() -> dict[str, tuple[int, int, int]]:
    """Each measure: what it is now, what it may be at most today, and what it is to become."""
    import convlab

    python = list(PACKAGE.rglob("*.py"))
    cpp = [*(PACKAGE / "sim").rglob("*.h"), *(PACKAGE / "sim").rglob("*.cpp")]
    tests = [p for p in (ROOT / "tests").rglob("*.py") if "instruments" not in p.parts]
    top = [p for p in PACKAGE.iterdir() if p.name[:2] != "__"]
    top += [PACKAGE / "__init__.py", PACKAGE / "__main__.py"]
    return {
        "Python in convlab/, all lines": (lines(*python), 17000, 9500),
        "C++ of the simulator, all lines": (lines(*cpp), 4500, 2800),
        "largest Python file": (max(map(lines, python)), 400, 400),
        "entries at the top of convlab/": (len(top), 12, 12),
        "import circles": (len(circles()), 0, 0),
        "public names": (len(convlab.__all__), 16, 16),
        "tests/ without instruments": (lines(*tests), 13700, 11000),
    }


if __name__ == "__main__":
    for what, (now, most, goal) in numbers().items():
        mark = "" if now <= goal else "   above its goal" if now <= most else "   TOO MANY"
        print(f"{what:34} {now:>7,}, goal {goal:,}{mark}")
    for ring in circles():
        print("circle:", " ".join(ring))
