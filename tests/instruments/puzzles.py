"""Compute the par of each puzzle in notebooks/puzzles from its reference solution.

    python -m tests.instruments.puzzles            print the pars, and what differs from puzzles.json
    python -m tests.instruments.puzzles --write    write notebooks/puzzles.json

A par has the counts of the simulator: sectors, wavefronts and bank conflicts. It needs no GPU.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from tests.instruments.stored_outputs import NOTEBOOKS, ROOT

SOLUTIONS = ROOT / "tests" / "notebook" / "solutions" / "puzzles"


def marking() -> ModuleType:
    """Return the module that marks puzzles, as the notebook imports it."""
    path = NOTEBOOKS / "puzzles" / "marking.py"
    spec = importlib.util.spec_from_file_location("puzzles_marking", path)
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks up its module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def solution(name: str) -> str:
    """Return the lines of the reference solution."""
    return (SOLUTIONS / f"{name}.txt").read_text()


def main(arguments: list[str] | None = None) -> int:
    """Print or write the pars; return 1 if a solution is incorrect or a par differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write notebooks/puzzles.json")
    options = parser.parse_args(arguments)
    marks = marking()
    pars = {}
    for name in marks.names():
        report = marks.run(name, solution(name))
        if not report.ok:
            print(f"{name}: the reference solution is incorrect\n{report}")
            return 1
        pars[name] = marks.counts(report)
        print(f"{name}: {pars[name]}", flush=True)
    text = json.dumps(pars, indent=1) + "\n"
    path = Path(marks.PARS)
    if options.write:
        path.write_text(text)
        return 0
    same = path.exists() and path.read_text() == text
    print("puzzles.json is up to date" if same else "puzzles.json differs: run with --write")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
