"""Compile and run public CUDA files on the simulator; `foreign.md` has the results.

    python -m tests.instruments.foreign FOLDER [--flag=-IDIR]... [--seconds N]

Compiles each ``.cu`` file below a folder, unchanged. If a file has a ``main``, it runs that without arguments,
for at most N seconds. Prints each compiler's error and each finding. No file is copied into the repository.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from convlab.core.builds.source import Source
from convlab.core.errors import BuildError, LaunchError
from convlab.sim import library, simulation

# Renames main, and calls it with any of its signatures. A program may also end by exit().
_BEFORE = "#define main foreign_main\n"
_AFTER = r"""
#undef main
#include <fcntl.h>
#include <unistd.h>
extern "C" void sim_finish();
static int sim_started(int (*program)()) { return program(); }
static int sim_started(void (*program)()) { return program(), 0; }
template <typename T>
static int sim_started(int (*program)(int, T**)) {
    static char name[] = "foreign", *arguments[] = {name, nullptr};
    return program(1, (T**)arguments);
}
extern "C" const char* sim_entry(const sim::Argument*, const unsigned*) {
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1), dup2(nowhere, 2);
    auto leave = [](int status, void*) { if (!status) sim_finish(); _exit(status); };
    on_exit(leave, nullptr);
    return sim_started(foreign_main) ? "main returned another number than 0" : nullptr;
}
"""
_MAIN = re.compile(r"^\s*(?:int|void|auto)\s+main\s*\(", re.M)
_NO_MAIN = '\nextern "C" void sim_entry() {}\n'


def tried(path: Path, flags: list[str], seconds: float) -> tuple[str, str]:
    """Return whether a file compiles, or the error, and the findings of its run."""
    text = path.read_text(errors="replace")
    runs = _MAIN.search(text) is not None
    parts = [_BEFORE, f'#line 1 "{path}"\n{text}\n', _AFTER] if runs else [text, _NO_MAIN]
    try:
        built = library.build(
            Source("".join(parts), path.stem, path), [f"-I{path.parent}", *flags], entry="sim_entry"
        )
    except BuildError as error:
        if re.search("undefined (reference|symbol)", str(error)):
            return "yes", "not run: it needs other files to link"
        lines = [line for line in str(error).splitlines() if re.search(r":\d+: ", line)]
        return re.sub(r"^\S*/", "", (lines or str(error).splitlines())[0]), ""
    if not runs:
        return "yes", "not run: it has no main"
    ended = ""
    try:
        found = simulation.simulate(
            built.library,
            None,
            simulation.Arena({}),
            label=path.name,
            source=path,
            time_limit=seconds,
            arguments=[],
            shape=[1] * 6 + [0],
        ).findings
    except LaunchError as error:
        found = getattr(error, "findings", [])
        # A program that takes longer need not have an endless loop.
        if error.kind == "endless loop":
            found = [finding for finding in found if finding.kind != error.kind]
            ended = f" in the first {seconds:g} s"
        elif not any(finding.error for finding in found):
            status = re.search(r"\(([^)]*)\) before", str(error))
            ended = f", until it exited: {status[1] if status else str(error).splitlines()[0]}"
    kinds = {f"{finding.kind}, line {finding.line}": None for finding in found}
    return "yes", ("; ".join(kinds) or "none") + ended


def main() -> None:
    """Compile and run all files, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--flag", action="append", default=[], help="an option for g++, written --flag=-IDIR"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="time limit for each main in seconds (default: 20)",
    )
    options = parser.parse_args()
    paths = sorted(options.folder.resolve().rglob("*.cu"))
    compiled = 0
    print("| file | compiles | findings |\n|---|---|---|")
    for path in paths:
        result, found = tried(path, options.flag, options.seconds)
        compiled += result == "yes"
        print(f"| {path.relative_to(options.folder.resolve())} | {result} | {found} |", flush=True)
    print(f"\n{compiled} of {len(paths)} compile.")


if __name__ == "__main__":
    main()
