"""The table against compute-sanitizer: its parts that need no GPU; and each kind of bug has one."""

from __future__ import annotations

import json

import pytest

from convlab.core.machine import toolchain
from tests.instruments import planted
from tests.instruments import sanitizer_table as table
from tests.instruments.sanitizer_table import AT_LINE, NO_LINE

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


def test_selection() -> None:
    faults = {m.name for m in planted.MUTANTS if m.sim == planted.FAULT}
    assert faults | set(table.TRACES) | set(table.OTHERS) == set(ALL)
    assert all(bug.lines for name, bug in ALL.items() if name not in table.TRACES)
    for bug in ALL.values():
        assert f'#include "{bug.name}.cu"' in bug.host and "int main(" in bug.host


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
