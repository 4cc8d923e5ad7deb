"""The table against compute-sanitizer: its parts that need no GPU; and each kind of bug has one."""

from __future__ import annotations

import json
import re

import pytest

from convlab import sim
from convlab.machine import toolchain
from tests.instruments import planted, tables
from tests.instruments import sanitizer_table as table
from tests.instruments.sanitizer_table import AT_LINE, ELSEWHERE, NO_LINE, NOTHING
from tests.suites import FOLDER

ALL = {bug.name: bug for bug in table.bugs()}
# What is in no other table of bugs, and the kind that the simulator calls it; of the others, see
# test_mutants.py and test_microscope.py.
KINDS = {
    "01_top_unchecked": ("global out of bounds", AT_LINE),
    "01_launch_unchecked": ("refused launch", AT_LINE),
    "01_filter_falls_through": ("never written", NO_LINE),
    "01_assert_on_square": ("assert", AT_LINE),
    "histogram-zeroed_twice": ("written twice", AT_LINE),
    "histogram-endless": ("endless loop", AT_LINE),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_the_simulator_tells_is_in_the_table(name: str) -> None:
    assert ALL[name].simulate()[:2] == KINDS[name]


# As compute-sanitizer writes it, each after a line with its name.
SAID = dict(
    re.findall(r"^# (.*)\n((?:(?!# ).*\n)*)", (FOLDER / "sanitizer.txt").read_text(), re.MULTILINE)
)
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("output", "line", "expected"),
    [
        (SAID["memcheck"], 48, AT_LINE),
        (SAID["memcheck"], 47, f"{ELSEWHERE} (48)"),
        (SAID["racecheck"], 5, AT_LINE),
        (SAID["racecheck"], 8, AT_LINE),
        (SAID["racecheck"], 6, f"{ELSEWHERE} (5, 8)"),
        (SAID["initcheck"], 91, AT_LINE),
        (SAID["synccheck"], 10, AT_LINE),
        (SAID["host_only"], 1, NO_LINE),
        (CLEAN, 1, NOTHING),
        ("Killed\n", 1, "?: Killed"),
        ("", 1, "?: no output"),
        (CLEAN + "========= Internal Sanitizer Error: x\n", 1, "?: internal error of the tool"),
    ],
)
def test_verdict(output: str, line: int, expected: str) -> None:
    assert table.verdict(output, frozenset([line])) == expected


def test_records_are_told_apart() -> None:
    titles = [title for title, _ in table.records(SAID["memcheck"])]
    assert titles[0] == "Invalid __global__ read of size 4 bytes"
    assert titles[1].startswith("Program hit cudaErrorLaunchFailure") and len(titles) == 2


def test_selection() -> None:
    faults = {m.name for m in planted.MUTANTS if m.sim == planted.FAULT}
    assert faults | set(table.TRACES) | set(table.OTHERS) == set(ALL)
    assert all(bug.lines for name, bug in ALL.items() if name not in table.TRACES)
    for bug in ALL.values():
        assert f'#include "{bug.name}.cu"' in bug.host and "int main(" in bug.host


def test_table_counts_each_tool() -> None:
    one, two = (
        table.Bug(n, "a mistake", "", frozenset([1]), "", lambda: ("", "", []), lambda: None)
        for n in ("one", "two")
    )
    one.kind, two.kind = "race", "endless loop"
    one.cells = {"convlab": AT_LINE, "memcheck": NOTHING, "racecheck": AT_LINE}
    two.cells = {"convlab": NOTHING, "memcheck": "killed after 20 s", "racecheck": AT_LINE}
    text = table.table([one, two])
    assert "| `one`: a mistake | race | at its line | - | at its line | not run | not run |" in text
    assert "| **found, at its line, of 2** | | 1 | 0 | 2 | 0 | 0 |" in text
    assert text.endswith("of these not found by convlab: two.")


def test_a_surprise_is_a_cell(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> tuple[str, str, list[str]]:
        raise RuntimeError("no luck\nat all")

    bug = table.Bug("one", "m", "", frozenset([1]), "", fails, fails)
    monkeypatch.setattr(table, "make", lambda *_: "?: does not compile: why")
    table.survey([bug], 1, lambda: None, "90a")
    assert bug.cells == {"convlab": "?: RuntimeError: no luck"}
    bug.simulate = lambda: ("race", AT_LINE, [])
    table.survey([bug], 1, lambda: None, "90a")
    assert bug.cells["memcheck"] == "?: does not compile: why"


def test_a_tool_is_run_and_ended(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        '#!/bin/sh\nif [ "$2" = racecheck ]; then cat "$7"; else while :; do :; done; fi\n'
    )
    tool.chmod(0o755)
    (tmp_path / "said").write_text(SAID["racecheck"])
    monkeypatch.setattr(toolchain, "find", lambda name: tool)
    bug = ALL["scan-no_barrier_before"]
    assert table.ask("racecheck", tmp_path / "said", bug) == table.verdict(
        SAID["racecheck"], bug.lines
    )
    assert table.ask("memcheck", tmp_path / "said", bug, 0.2) == "killed after 0.2 s"


def test_where_it_is_written() -> None:
    head, tail = tables.between(sim.INCLUDE.parent / "sanitizer.md", table.MARKER)
    assert head and tail


@pytest.mark.gpu
def test_end_to_end(tmp_path, capsys: pytest.CaptureFixture) -> None:
    if toolchain.find("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    kept = tmp_path / "rows.json"
    names = ["01_top_unchecked", "scan-no_barrier_before"]
    assert table.main(["--only", *names, "--json", str(kept)]) == 0
    rows = {row["name"]: row for row in json.loads(kept.read_text())}
    assert rows[names[0]]["memcheck"] == rows[names[0]]["convlab"] == AT_LINE
    assert rows[names[1]]["racecheck"] == AT_LINE
    assert "| `01_top_unchecked`" in capsys.readouterr().out
