"""Find links in the repository's Markdown pages and notebooks that lead nowhere.

    python -m tests.instruments.links

A link is checked if it is relative: the file must exist, and the anchor must be a heading there. A file that a
page names between backquotes, with a folder of this repository and a suffix, must exist too. Prints each
finding with its line; the exit status is 1 if there are any.
"""

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

from tests.instruments.stored_outputs import ROOT

_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n)+", re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HTML_LINK = re.compile(r"""<(?:img|a)\b[^>]*?(?:src|href)=["']([^"']+)["']""")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
_ANCHOR = re.compile(r"""<a\b[^>]*?(?:id|name)=["']([^"']+)["']""")
_FILE = re.compile(
    r"(?:\.\.?/)*[\w.-]+(?:/[\w.-]+)+\.(?:py|md|cuh|cu|cpp|h|ipynb|json|toml|txt|png|gif)\b"
)


def without_code(text: str) -> str:
    """Return a page with its code blocks blank: each line stays where it is."""

    def blank(found: re.Match) -> str:
        return re.sub(r"[^\n]", "", found[0])

    return _INDENTED.sub(blank, _FENCE.sub(blank, text))


def slugs(text: str) -> list[tuple[str, str]]:
    """Return each heading of a page with its anchor, as GitHub makes it."""
    seen: dict[str, int] = {}
    found = []
    for heading in _HEADING.findall(without_code(text)):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[`*]", "", plain)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        found.append((plain, f"{slug}-{number}" if number else slug))
    return found


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page or of a notebook."""
    texts = [text for _, text in parts(path)]
    whole = "\n\n".join(texts)
    return frozenset([*(anchor for _, anchor in slugs(whole)), *_ANCHOR.findall(whole)])


def parts(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a page, each with its place: all of it, or a notebook's text cells."""
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    if path.suffix != ".ipynb":
        return [(name, path.read_text())]
    cells = nbformat.read(path, as_version=4).cells
    return [
        (f"{name} cell {number}", cell.source)
        for number, cell in enumerate(cells)
        if cell.cell_type == "markdown"
    ]


def tracked(*suffixes: str) -> list[Path]:
    """Return the files of the repository with these suffixes, without hidden and generated folders."""
    listed = (path for suffix in suffixes for path in ROOT.rglob(f"*{suffix}"))
    return sorted(path for path in listed if not any(map(_is_hidden, path.relative_to(ROOT).parts)))


def _is_hidden(part: str) -> bool:
    return part == "node_modules" or (part.startswith(".") and part != ".github")


def broken(path: Path) -> Iterator[str]:
    """Yield what is wrong with the links and file names of one page or notebook."""
    for place, text in parts(path):
        for number, line in enumerate(without_code(text).splitlines(), 1):
            where = f"{place}:{number}"
            for target in (*_LINK.findall(line), *_HTML_LINK.findall(line)):
                if reason := wrong_target(path, target):
                    yield f"{where}: the link {target} leads nowhere: {reason}"
            for code in _CODE.findall(line):
                for name in _FILE.findall(code):
                    if not named_file_exists(path, name):
                        yield f"{where}: there is no file {name}"


def wrong_target(path: Path, target: str) -> str:
    """Return why a relative link leads nowhere, or ""."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//|attachment:", target):
        return ""
    name, _, anchor = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists():
        return f"there is no {name}"
    if anchor and file.suffix in (".md", ".ipynb") and anchor not in anchors(file):
        return f"{file.name} has no heading #{anchor}"
    return ""


def named_file_exists(path: Path, name: str) -> bool:
    """Return whether a file that a page names exists, from the page's folder, or from a parent's.

    A name that begins with no folder of the repository is the reader's own, and so is one with
    "your_".
    """
    if "your_" in name:
        return True
    folders = [path.parent, *(each for each in path.parents if each.is_relative_to(ROOT))]
    if any((folder / name).exists() for folder in folders):
        return True
    first = name.split("/")[0]
    return not any((folder / first).is_dir() for folder in folders)


def main() -> int:
    """Print what is wrong with all pages; return the exit status."""
    found = [text for path in tracked(".md", ".ipynb") for text in broken(path)]
    print(*found, f"{len(found)} broken links or names", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
