"""List the kernels by folder, and the named problems, for ``list``."""

from pathlib import Path
from typing import Any

from ..core.builds.source import Source
from ..core.errors import CatalogError
from ..core.kernel import catalog
from ..core.kernel.tunables import tunables
from ..core.problem.named import PROBLEM_SETS, problems
from ..core.show.result import plain
from ..core.show.table import wrapped
from .text_result import TextResult

# The names of a set of more problems are not all shown.
_MOST_SHOWN = 24


def kernel_list() -> TextResult:
    """Return how many kernels there are, all kernels by folder, and the sets of problems."""
    rows = []
    lines = []
    folder = None
    paths = sorted(catalog.catalog(), key=lambda path: (path.parent, path.stem))
    width = max((len(path.stem) for path in paths), default=0)
    for path in paths:
        if path.parent != folder:
            folder = path.parent
            lines.append(f"kernels of {folder}:")
        row, kernel_lines = _kernel(path, width)
        rows.append({"kernel": path.stem, "folder": folder, "path": path} | row)
        lines += kernel_lines
    sets = {name: [problem.name for problem in problems(name)] for name in PROBLEM_SETS}
    lines.insert(0, f"{len(rows)} kernels, {len(sets)} sets of problems")
    lines += ["", "problems:"]
    for name, members in sets.items():
        shown = ", ".join(members)
        if len(members) > _MOST_SHOWN:
            shown = f"{', '.join(members[:3])} and {len(members) - 3} more; --json lists them"
        lines += wrapped(f"{name}: {shown}", rest="    ")
    return TextResult("\n".join(lines), plain({"kernels": rows, "problems": sets}))


def _kernel(path: Path, width: int) -> tuple[dict[str, Any], list[str]]:
    """Return what a kernel's header says, as a row and as lines.

    The column of names has this width. A header that cannot be read gives a line with its error, and
    the other kernels are still listed.
    """
    try:
        text = catalog.read(path)
        header = catalog.parse_header(text, path)
        defaults = tunables(Source(text, path.stem, path).whole)
    except CatalogError as error:
        return {"error": str(error)}, [f"  {path.stem:<{width}} {error}"]
    row = {
        "title": header.title,
        "idea": header.idea,
        "class": header.precision,
        "supports": header.supports,
        "tunables": defaults,
    }
    lines = [f"  {path.stem:<{width}} {header.precision:<5} {header.title}"]
    if defaults:
        settings = " ".join(f"{name}={value}" for name, value in defaults.items())
        lines.append(f"{'':<{width + 8}} {settings}")
    return row, lines
