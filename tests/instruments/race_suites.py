"""Run public suites of racy and race-free kernels on the simulator; `race_suites.md` has the results.

    python -m tests.instruments.race_suites indigo FOLDER [--graph NAME] [--write PAGE]
    python -m tests.instruments.race_suites scor FOLDER [--write PAGE]

`indigo`: FOLDER is that of HiRace's artifact of SC 2024, which has Indigo's CUDA kernels and graphs. `scor`: FOLDER
is that of ScoR. Each file is compiled unchanged, and its ``main`` runs in two schedules: threads and blocks from the
first to the last, and from the last to the first. No file is copied into the repository. With ``--uncounted`` the
simulator uses the build without counts, as the default check does.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from convlab.core.builds.source import Source
from convlab.core.errors import BuildError, LaunchError
from convlab.sim import library, simulation
from tests.instruments import pages

# The blocks and threads of a launch in HiRace's experiments.
THREADS, BLOCKS = 256, 1024
GRAPH = "counterDAG_200n_1000e"
SECONDS = 120.0
_BUG = re.compile("(atomic|guard|race|sync)Bug")
# The bugs of an Indigo kernel by its name; a kernel may have several.
BUGS = ("atomicBug", "guardBug", "syncBug", "raceBug")

# Renames main, and calls it with the arguments of ARGUMENTS. A program may also end by exit().
_BEFORE = "#define main suite_main\n"
_AFTER = r"""
#undef main
#include <fcntl.h>
#include <unistd.h>
extern "C" void sim_finish();
static int sim_started(int (*program)()) { return program(); }
static int sim_started(void (*program)()) { return program(), 0; }
template <typename T>
static int sim_started(int (*program)(int, T**)) {
    static const char* arguments[] = {"suite", %s nullptr};
    return program(sizeof arguments / sizeof *arguments - 1, (T**)arguments);
}
extern "C" const char* sim_entry(const sim::Argument*, const unsigned*) {
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1), dup2(nowhere, 2);
    auto leave = [](int status, void*) { if (!status) sim_finish(); _exit(status); };
    on_exit(leave, nullptr);
    return sim_started(suite_main) ? "main returned another number than 0" : nullptr;
}
"""


@dataclass(frozen=True)
class Outcome:
    """What the simulator says about one file."""

    name: str
    is_racy: bool
    # "error", "warning" or "none": the worst race in both schedules.
    found: str
    # Other errors, or why the file did not run.
    notes: tuple[str, ...]


def outcome(
    path: Path,
    is_racy: bool,
    arguments: Sequence[str] = (),
    header: Path | None = None,
    counting: bool = True,
) -> Outcome:
    """Compile and run one file in two schedules; `header` is the local header that it includes."""
    text = path.read_text(errors="replace")
    if header is not None:
        # The header has the launch, so it is rewritten too: as a part of the file.
        line, _, rest = text.partition(f'#include "{header.name}"\n')
        after = f'#line {line.count(chr(10)) + 2} "{path}"'
        text = f'{line}#line 1 "{header}"\n{header.read_text()}\n{after}\n{rest}'
    given = "".join(f'"{argument}", ' for argument in arguments)
    parts = [_BEFORE, f'#line 1 "{path}"\n{text}\n', _AFTER % given]
    try:
        built = library.build(
            Source("".join(parts), path.stem, path),
            [f"-I{path.parent}"],
            entry="sim_entry",
            counting=counting,
        )
    except (BuildError, LaunchError) as error:
        return Outcome(path.stem, is_racy, "none", (f"not compiled: {str(error).splitlines()[0]}",))
    races: list[bool] = []
    notes: list[str] = []
    for schedule in (0, 1):
        try:
            findings = simulation.simulate(
                built.library,
                None,
                simulation.Arena({}),
                label=path.name,
                source=path,
                time_limit=SECONDS,
                schedule=schedule,
                counts=counting,
                arguments=[],
                shape=[1] * 6 + [0],
            ).findings
        except LaunchError as error:
            findings = getattr(error, "findings", [])
            if not findings:
                notes.append(str(error).splitlines()[0])
        races += [finding.error for finding in findings if finding.kind == "race"]
        notes += [finding.kind for finding in findings if finding.error and finding.kind != "race"]
    found = "error" if any(races) else "warning" if races else "none"
    return Outcome(path.stem, is_racy, found, tuple(dict.fromkeys(notes)))


def indigo(
    folder: Path, graph: str, only: str = "", counting: bool = True
) -> list[Outcome]:
    """Run Indigo's kernels on one graph of HiRace's artifact."""
    root = folder / "indigo"
    given = [str(root / "input" / f"{graph}.egr"), str(THREADS), str(BLOCKS)]
    paths = sorted((root / "indigo_sources").rglob("*.cu"))
    header = root / "indigo_include" / "indigo_cuda.h"

    def one(path: Path) -> Outcome:
        return outcome(path, bool(_BUG.search(path.stem)), given, header, counting)

    return _all(one, [path for path in paths if only in path.stem])


def scor(folder: Path, only: str = "", counting: bool = True) -> list[Outcome]:
    """Run ScoR's microbenchmarks."""
    paths = sorted((folder / "microbenchmarks" / "src").glob("*.cu"))

    def one(path: Path) -> Outcome:
        return outcome(path, path.stem.startswith("race_"), counting=counting)

    return _all(one, [path for path in paths if only in path.stem])


def _all(one, paths: Sequence[Path]) -> list[Outcome]:
    with ThreadPoolExecutor(simulation.AT_ONCE) as pool:
        outcomes = []
        for done in pool.map(one, paths):
            outcomes.append(done)
            missed = done.is_racy != (done.found != "none")
            if missed or done.notes:
                what = "MISSED" if done.is_racy else "FALSE ALARM"
                print(
                    f"{what if missed else 'note'}: {done.name}: {', '.join(done.notes)}",
                    flush=True,
                )
    return outcomes


def counts(outcomes: Sequence[Outcome]) -> str:
    """Return a row of the table: files, races, found as error or as warning, false alarms."""
    racy = [o for o in outcomes if o.is_racy]
    free = [o for o in outcomes if not o.is_racy]
    errors = sum(o.found == "error" for o in racy)
    warnings = sum(o.found == "warning" for o in racy)
    alarms = sum(o.found == "error" for o in free)
    warned = sum(o.found == "warning" for o in free)
    return (
        f"| {len(outcomes)} | {len(racy)} | {errors + warnings} | {errors} | {warnings} | "
        f"{len(free)} | {alarms} | {warned} |"
    )


_HEAD = (
    "| | files | with a race | found | as an error | as a warning | without a race "
    "| called a race | warned |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def table(suite: str, outcomes: Sequence[Outcome]) -> str:
    """Return the table of a suite; for Indigo, also a row for each kind of bug."""
    rows = [_HEAD, f"| all {counts(outcomes)}"]
    if suite == "indigo":
        for bug in BUGS:
            alone = [o for o in outcomes if re.findall(_BUG, o.name) == [bug[:-3]]]
            rows.append(f"| only {bug} {counts(alone)}")
    else:
        missed = [o.name for o in outcomes if o.is_racy and o.found == "none"]
        rows += ["", f"Missed: {', '.join(missed) or 'none'}."]
    return "\n".join(rows)


def main() -> None:
    """Run a suite, and print its table or write it to a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=("indigo", "scor"))
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--graph", default=GRAPH, help=f"a graph of HiRace's artifact (default: {GRAPH})"
    )
    parser.add_argument("--only", default="", help="run only files with this text in their names")
    parser.add_argument(
        "--uncounted", action="store_true", help="use the build without counts, as the default check does"
    )
    parser.add_argument("--write", type=Path, help="a page with <!-- SUITE: begin -->")
    given = parser.parse_args()
    if given.write:
        # A page without markers fails now, not after the work.
        pages.between(given.write, given.suite)
    folder = given.folder.resolve()
    if given.suite == "indigo":
        outcomes = indigo(folder, given.graph, given.only, not given.uncounted)
    else:
        outcomes = scor(folder, given.only, not given.uncounted)
    if not outcomes:
        raise SystemExit(f"{folder} has no files of this suite: give the folder of its repository")
    text = table(given.suite, outcomes)
    print(text)
    if given.write:
        pages.write_between(given.write, given.suite, text)


if __name__ == "__main__":
    main()
