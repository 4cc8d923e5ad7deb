"""Delete a room from a copy of the tree, and see what still works.

``python -m tests.instruments.house --without ROOM`` runs tests/core in the copy. A test of tests/house imports
all modules that are left.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tests.instruments import house
from tests.instruments.pages import laid

# Imports the modules of each folder in a process of its own: a fork, so that torch is imported once. A
# module that reports what is missing and exits does not count as failed.
IMPORTS = """
import importlib, json, os, sys
import torch, pandas, matplotlib.pyplot

def fallen(folder, names):
    sys.path.insert(0, folder)
    errors = {}
    for name in names:
        try:
            importlib.import_module(name)
        except SystemExit:
            pass
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors

for folder, names in json.load(sys.stdin).items():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        text = json.dumps(fallen(folder, names))
        with os.fdopen(theirs, "w") as out:
            out.write(text)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        print(json.dumps([folder, json.loads(answer.read() or '{"": "died"}')]), flush=True)
    os.wait()
"""


@dataclass(frozen=True)
class Left:
    """What still works without a room."""

    room: str
    lines: int
    fallen: dict[str, str]  # modules that no longer import, with their errors
    passed: int
    failed: int
    text: str  # the end of pytest's output


@contextmanager
def without(room: str) -> Iterator[Path]:
    """Copy the tree without a room and its tests; delete the copy afterwards."""
    listing = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(listing, cwd=house.ROOT, capture_output=True, text=True, check=True)
    gone = (f"convlab/{room}/", f"tests/{room}/")
    with tempfile.TemporaryDirectory(prefix=f"without-{room}-") as name:
        folder = Path(name)
        for file in filter(None, done.stdout.split("\0")):
            source = house.ROOT / file
            if file.startswith(gone) or not source.is_file():
                continue
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / file)
        yield folder


@contextmanager
def copies(rooms: Iterable[str]) -> Iterator[dict[str, Path]]:
    """Copy the tree without each room in turn; return the folders by room."""
    with ExitStack() as stack:
        yield {room: stack.enter_context(without(room)) for room in rooms}


def fallen(copies: Iterable[Path]) -> dict[Path, dict[str, str]]:
    """Import all modules of each copy of the tree; return those that raise, and their errors."""
    wanted = {}
    for folder in copies:
        package = folder / "convlab"
        names = house.modules(package)
        # Other processes run these as scripts, with their own folder on the path.
        names = {n for n, path in names.items() if "import child_process" not in path.read_text()}
        wanted[str(folder)] = [f"convlab.{name}".rstrip(".") for name in sorted(names)]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=True,
        cwd=tempfile.gettempdir(),
    )
    answers = map(json.loads, done.stdout.splitlines())
    return {Path(folder): errors for folder, errors in answers}


def core_tests(folder: Path, *options: str) -> tuple[int, int, str]:
    """Run tests/core in a copy; return how many pass and fail, and the end of the output."""
    command = [sys.executable, "-m", "pytest", "tests/core", "-q", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    text = done.stdout[-20_000:]
    last = next((line for line in reversed(text.splitlines()) if " in " in line), "")

    def count(word: str) -> int:
        return sum(int(number) for number in re.findall(rf"(\d+) {word}", last))

    return count("passed"), count("failed") + count("errors?"), text + done.stderr[-2_000:]


def left(room: str) -> Left:
    """Delete a room in a copy, import the rest and run tests/core."""
    with without(room) as folder:
        errors = fallen([folder])[folder]
        passed, failed, text = core_tests(folder)
    size = house.lines(*(house.PACKAGE / room).rglob("*.py"))
    return Left(room, size, errors, passed, failed, text)


def table(results: Iterable[Left]) -> str:
    """Return a row for each room, as a Markdown table."""
    rows = [
        {
            "room": f"`{each.room}`",
            "lines": f"{each.lines:,}",
            "modules that fall": len(each.fallen),
            "passed": f"{each.passed:,}",
            "failed": each.failed,
        }
        for each in results
    ]
    return laid(pd.DataFrame(rows))


def publish(rooms: list[str], page: Path | None) -> None:
    """Delete each room in turn, print the table, and write it to a page."""
    if page is not None:
        # A page without markers fails now, not after minutes of work.
        head, tail = _around(page)
    results = []
    for room in rooms:
        result = left(room)
        results.append(result)
        for name, error in result.fallen.items():
            print(f"without {room}, {name} does not import: {error}")
        if result.failed or not result.passed:
            print(result.text)
    text = table(results)
    print(text)
    if page is not None:
        page.write_text(f"{head}{text}\n{tail}")


def _around(page: Path) -> tuple[str, str]:
    """Return the text before and after the table of a page, with its markers."""
    head, begin, rest = page.read_text().partition("<!-- deletion -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    if not end:
        raise SystemExit(
            f"{page} has no markers: add a line <!-- deletion --> and, below it, a line <!-- end -->"
        )
    return head + begin, end + tail
