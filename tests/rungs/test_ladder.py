"""The rungs as a text: what a rung changes against the one that it descends from is the lesson."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from convlab.core.kernel.catalog import KERNEL_DIR, catalog, parse_header

pytestmark = pytest.mark.pure

HEADERS = {path: parse_header(path.read_text(), path) for path in catalog()}
STEPS = [
    pytest.param(path, header.parent, id=f"{header.parent}-{path.stem}")
    for path, header in HEADERS.items()
    if header.parent
]
INCLUDE = re.compile(r'#include "(.+)"')


def code(path: Path) -> list[str]:
    """Return a file's lines, without blank ones, the header comment and what indents them.

    A header of what an earlier rung taught is read in place; convlab*.cuh are taught by no rung.
    """
    lines = [line.strip() for line in path.read_text().splitlines()]
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("//"))
    found = []
    for line in filter(None, lines[first:]):
        include = INCLUDE.fullmatch(line)
        if include and not include[1].startswith("convlab"):
            found += code(path.parent / include[1])
        else:
            found.append(line)
    return found


def changed(before: list[str], after: list[str]) -> float:
    """Return the lines removed and added, as a share of the lines of both."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return 1 - 2 * same / (len(before) + len(after))


@pytest.mark.parametrize(("path", "parent"), STEPS)
def test_a_step_is_small(path: Path, parent: str) -> None:
    by_stem = {other.stem: other for other in HEADERS}
    assert parent in by_stem, f"{path.name} states the parent {parent}: there is no such rung"
    share = changed(code(by_stem[parent]), code(path))
    print(f"{parent} -> {path.stem}: {share:.0%} of lines changed")
    assert 0 < share < 0.6


def test_lines_of_descent_end() -> None:
    parents = {path.stem: header.parent for path, header in HEADERS.items()}
    for stem in parents:
        met = [stem]
        while parents[met[-1]]:
            met.append(parents[met[-1]])
            assert len(set(met)) == len(met), f"a circle: {' -> '.join(met)}"


def test_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "taught.cuh").write_text("// earlier\n#pragma once\nint a;\n")
    (tmp_path / "rung.cu").write_text(
        '// title: A rung\n\n#include "convlab.cuh"\n#include "taught.cuh"\n\n  int b;  // why\n'
    )
    found = code(tmp_path / "rung.cu")
    assert found == ['#include "convlab.cuh"', "#pragma once", "int a;", "int b;  // why"]
    assert changed(found, found) == 0
    assert changed(found, found[:2]) == pytest.approx(2 / 6)
    assert changed(["a"], ["b"]) == 1


def test_a_step_too_large_is_told() -> None:
    first = KERNEL_DIR / "01_direct.cu"
    last = KERNEL_DIR / "03_smem_tile.cu"
    assert changed(code(first), code(last)) > 0.6  # why there are rungs in between
