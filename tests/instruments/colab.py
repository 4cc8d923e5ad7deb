"""Make every notebook start on Google Colab.

    python -m tests.instruments.colab            update the cell and the badge in all notebooks
    python -m tests.instruments.colab --check    only say which notebooks would change

Each notebook gets one code cell with the tag ``colab`` before its first code cell. On Colab the cell fetches
the repository, goes to its notebooks and installs what Colab lacks; torch and nvcc stay as they are. Anywhere
else it does nothing. The first cell gets a badge, "Open in Colab".

The repository's address is ``[project.urls] Repository`` in pyproject.toml. As long as there is none, the
badge is left out, and the cell expects a copy of the repository in /content/convlab.
"""

import argparse
import copy
import sys
import tomllib

import nbformat
from nbformat import NotebookNode

from tests.instruments.run_notebooks import NOTEBOOKS, _store, clean, names, read
from tests.instruments.stored_outputs import APART, ROOT

# What Colab's image lacks of what convlab needs. Nothing here depends on torch.
PACKAGES = ("ninja", "nvidia-ml-py")
_CELL = """\
# On Google Colab, this cell installs convlab. Anywhere else it does nothing.
import sys

if "google.colab" in sys.modules:
    {clone}%cd -q /content/convlab/notebooks
    !pip install -q {packages}"""
_CLONE = """!git clone -q --depth 1 {address} /content/convlab
    """
_IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
_BADGE = "[![Open in Colab]({image})](https://colab.research.google.com/github/{place}/{file})"
_BADGE_START = "[![Open in Colab]"


def address() -> str | None:
    """Return the repository's public address from pyproject.toml, or None if it has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = project.get("urls", {}).get("Repository")
    return found.removesuffix("/").removesuffix(".git") if found else None


def cell_source(repository: str | None) -> str:
    """Return the source of the cell for Colab."""
    clone = _CLONE.format(address=repository) if repository else ""
    return _CELL.format(clone=clone, packages=" ".join(PACKAGES))


def badge(name: str, repository: str | None) -> str:
    """Return the badge of a notebook, or "" if the repository is not on GitHub."""
    start = "https://github.com/"
    if not repository or not repository.startswith(start):
        return ""
    place = f"{repository.removeprefix(start)}/blob/main"
    return _BADGE.format(image=_IMAGE, place=place, file=f"notebooks/{name}.ipynb")


def prepared(name: str, notebook: NotebookNode, repository: str | None) -> NotebookNode:
    """Return a notebook with the current cell and badge; it may have older ones, or none."""
    notebook = copy.deepcopy(notebook)
    cells = [cell for cell in notebook.cells if APART not in cell.metadata.get("tags", [])]
    source = cell_source(repository)
    # Without an id that changes from call to call, a second call changes nothing.
    new = nbformat.v4.new_code_cell(source, id=APART, metadata={"tags": [APART]})
    first_code = next(i for i, cell in enumerate(cells) if cell.cell_type == "code")
    cells.insert(first_code, new)
    lines = [line for line in cells[0].source.splitlines() if not line.startswith(_BADGE_START)]
    title, *rest = lines
    # Without the empty line that an older badge had before it.
    while rest and not rest[0]:
        rest.pop(0)
    shown = [badge(name, repository)] if badge(name, repository) else []
    cells[0].source = "\n".join(
        [title, "", *(line for each in shown for line in (each, "")), *rest]
    )
    notebook.cells = cells
    clean(notebook, pictures=False)
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Update all notebooks, or check them; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if any would change")
    options = parser.parse_args(arguments)
    repository = address()
    if repository is None:
        print("pyproject.toml has no [project.urls] Repository: the badge is left out")
    changed = 0
    for name in names():
        notebook = read(name)
        new = prepared(name, notebook, repository)
        if new == notebook:
            continue
        changed += 1
        print(f"{name}: {'would change' if options.check else 'updated'}")
        if not options.check:
            _store(new, NOTEBOOKS / f"{name}.ipynb")
    print(f"{changed} of {len(names())} notebooks changed")
    return int(options.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
