"""The simulator as a microscope: it reports each bug at its line, in every schedule.

The kernels here are not convolutions: `convlab.sim.any_kernel.run` runs any self-contained CUDA C++.
Each kernel is correct. Edits plant bugs in it, and the simulator must report the edited line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import convlab
from convlab.core.correctness import reference
from convlab.core.errors import BuildError, LaunchError, ProblemError
from convlab.sim import any_kernel, report_text, source_lines
from convlab.sim.arrays import Array
from tests.instruments.examples import BUGS, EXAMPLES, whole
from tests.suites import FOLDER, Suite, line_of


@pytest.mark.parametrize("schedule", range(4))
@pytest.mark.parametrize("name", EXAMPLES)
def test_correct_kernels(name, schedule):
    trace, arguments = EXAMPLES[name].run(schedule=schedule)
    np.testing.assert_array_equal(*EXAMPLES[name].expected(*arguments))
    assert trace.findings == []


@pytest.mark.parametrize("schedule", [0, 3])
@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found_at_its_line(name, schedule):
    example, old, new, kind, places = BUGS[name]
    source = EXAMPLES[example].source
    assert source.count(old) == 1
    source = source.replace(old, new)
    with pytest.raises(LaunchError) as caught:
        EXAMPLES[example].run(source, schedule=schedule)
    assert len(str(caught.value).splitlines()) <= report_text.SCREEN + 6
    found = [f for f in caught.value.findings if f.kind == kind]
    assert found, caught.value.findings
    lines = source.splitlines()
    for finding in found:
        assert finding.error and finding.count >= 1
        assert any(place in lines[finding.line - 1] for place in places), finding
        if kind == "race":
            assert any(place in lines[finding.other_line - 1] for place in places), finding
            here = (finding.block, finding.thread)
            other = (finding.other_block, finding.other_thread)
            assert here != other


SOURCE = (FOLDER / "findings.cu").read_text()


def test_one_run_reports_all_findings():
    with pytest.raises(LaunchError) as caught:
        any_kernel.run(SOURCE, "many", whole(64), whole(64), grid=1, block=32)
    reported = {(f.kind, f.line, f.count) for f in caught.value.findings}
    assert reported == {
        ("global out of bounds", line_of(SOURCE, "x[i + 100]"), 8),
        ("global out of bounds", line_of(SOURCE, "y[i - 20]"), 8),
        ("shared out of bounds", line_of(SOURCE, "s_x[i + 16]"), 8),
        ("null pointer", line_of(SOURCE, "nullptr"), 1),
    }
    assert "s_x[32]" in str(caught.value) and ", and 7 more threads" in str(caught.value)


def test_warp_without_syncwarp_is_a_race_and_with_it_is_not():
    y = whole(64)
    assert any_kernel.run(SOURCE, "lanes", y, 1, grid=1, block=64).findings == []
    assert (y == np.arange(64) ^ 1).all()
    with pytest.raises(LaunchError, match="race: ") as caught:
        any_kernel.run(SOURCE, "lanes", y, 0, grid=1, block=64)
    places = {caught.value.findings[0].line, caught.value.findings[0].other_line}
    assert places == {
        line_of(SOURCE, "s_y[threadIdx.x] ="),
        line_of(SOURCE, "s_y[threadIdx.x ^ 1]"),
    }


def test_blocks_that_store_the_same_value_are_a_warning():
    y = np.zeros(1, np.int32)
    (finding,) = any_kernel.run(SOURCE, "same", y, 1, grid=8, block=1).findings
    assert (finding.kind, finding.error, y[0]) == ("written twice", False, 7)
    assert finding.line == line_of(SOURCE, "v ? 7")
    with pytest.raises(LaunchError, match="race: store to y\\[0\\].*another thread"):
        any_kernel.run(SOURCE, "same", y, 0, grid=8, block=1)


def test_fence_and_atomic_order_blocks():
    x = whole(40)

    def arguments():
        return x, np.zeros(40, np.float32), np.zeros(1, np.uint32), np.zeros(2, np.float32)

    for schedule in range(4):
        given = arguments()
        options = {"grid": 40, "block": 32, "schedule": schedule}
        trace = any_kernel.run(SOURCE, "last_block", *given, **options)
        assert trace.findings == [] and given[-1][0] == x.sum()
    with pytest.raises(LaunchError, match="race: load of part.*of another block"):
        careless = SOURCE.replace("__threadfence();", "")
        any_kernel.run(careless, "last_block", *arguments(), grid=40, block=32)


def test_early_exit_before_a_barrier_is_a_warning():
    (finding,) = any_kernel.run(SOURCE, "leaves", whole(40), 40, grid=1, block=64).findings
    assert (finding.kind, finding.error) == ("barrier after exit", False)
    assert finding.line == line_of(SOURCE, "// of those that stay")
    assert finding.text.startswith("24 of the block's 64 threads")


SHUFFLES = Suite("shuffles")


@pytest.mark.parametrize("name", SHUFFLES.cases)
def test_shuffle_from_a_lane_outside_the_mask(name):
    count = SHUFFLES.value(name, "stray")
    found = SHUFFLES.launch(name).findings
    found = [finding for finding in found if finding.kind != "never written"]
    lines = SHUFFLES.source.splitlines()
    assert len(found) == (count > 0)
    for finding in found:
        assert (finding.kind, finding.error) == ("shuffle outside the mask", False)
        assert lines[finding.line - 1].startswith("SHUFFLES(") and finding.count == count
        assert "undefined on a GPU" in finding.text
    if "expect" in SHUFFLES.cases[name]:
        SHUFFLES.check(name, 0, "sim")


def test_headers_of_another_checkout_are_not_the_kernels_lines(monkeypatch):
    # Checkouts may share a cache. Then the line table names the include folder of another checkout.
    monkeypatch.setattr(source_lines, "INCLUDE", Path("/elsewhere") / "convlab/sim/include")
    monkeypatch.setattr(source_lines, "_chains", {})
    test_early_exit_before_a_barrier_is_a_warning()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("while (*(volatile float*)y == y[0]) {}", 2),
        ("for (unsigned i = 9; i >= 0; --i) { }", None),  # the compiler may remove it
        ("for (int i = 0; i < 9; i += step)\n        y[i] += 1;", 3),
        ("while (step != 7)\n        step = (step * 3) & 14;", 3),
    ],
    ids=["spins", "empty", "counts", "without accesses"],
)
def test_endless_loop_is_reported_with_its_line(body, line):
    source = f"__global__ void endless(float* y, int step) {{\n    {body}\n    y[0] = step;\n}}"
    with pytest.raises(LaunchError, match=r"did not finish within 0\.5 s") as caught:
        any_kernel.run(source, "endless", whole(16), 0, grid=1, block=1, time_limit=0.5)
    if line is not None:
        (finding,) = caught.value.findings
        assert finding.kind == "endless loop" and finding.line in (line, line - 1)


def test_lines_sum_up_to_the_counters():
    trace, _ = EXAMPLES["transpose"].run()
    rows = {(r["line"], r["space"], r["kind"]): r for r in trace.lines}
    lines = EXAMPLES["transpose"].source.splitlines()
    at = {text: 1 + next(i for i, t in enumerate(lines) if text in t) for text in ("= a[", "b[c")}
    load = rows[at["= a["], "global", "load"]
    assert (load["array"], load["bytes"], load["lanes"]) == ("a", 4 * 40 * 70, 40 * 70)
    assert rows[at["b[c"], "shared", "load"]["array"] == "s_tile"
    assert rows[at["b[c"], "global", "store"]["array"] == "b"
    for space, kind, requests, units in [
        ("global", "load", "global_load_requests", "global_load_sectors"),
        ("global", "store", "global_store_requests", "global_store_sectors"),
        ("shared", None, "shared_requests", "shared_wavefronts"),
    ]:
        chosen = [r for k, r in rows.items() if k[1] == space and kind in (None, k[2])]
        assert sum(r["requests"] for r in chosen) == trace.counters[requests]
        assert sum(r["units"] for r in chosen) == trace.counters[units]
        assert all(r["ideal_units"] <= r["units"] for r in chosen)
    assert trace.launches == [
        {
            "kernel": "transpose",
            "grid": (3, 2, 1),
            "block": (32, 8, 1),
            "shared_bytes": 4224,
            "dynamic_bytes": 0,
        }
    ]


def test_footprints_by_hand():
    source = "__global__ void twice(const float* x, float* y) { y[threadIdx.x] = x[0] + x[64]; }"
    counters = any_kernel.run(source, "twice", whole(128), whole(32), grid=1, block=32).counters
    # two sectors of x and four of y, each once
    assert counters["block_sectors"] == counters["launch_sectors"] == 6


def test_outputs_that_are_never_written_are_reported():
    kernel = convlab.load("01_direct", engine="sim")
    source = kernel.source.replace("    g_y[i] = ", "    if (i % 50 != 7) g_y[i] = ")
    kernel = convlab.compile(source, name="holes", engine="sim")
    problem = convlab.problem("N=1,C=1,H=8,W=9,K=2,R=1,S=1")
    launch = kernel.prepare(problem, *reference.inputs(problem, 0, "cpu")[:2])
    launch()
    (finding,) = launch.findings
    assert finding.kind == "never written" and not finding.error
    assert "3 of the 144 elements of y, the first is y[n=0, k=0, p=0, q=7]" in finding.text


@pytest.mark.parametrize(
    ("name", "byte", "expected"),
    [
        ("x", 0, "x[n=0, c=0, h=0, w=0]"),
        ("x", 4 * (2 * 60 + 1 * 20 + 3 * 5 + 4), "x[n=2, c=1, h=3, w=4]"),
        ("x", -4, "x[n=0, c=0, h=-1, w=4]"),
        ("x", 4 * 180, "x[n=2, c=2, h=4, w=0]"),
        ("x", 4 * 193, "x[n=2, c=2, h=6, w=3]"),
        ("x", 4 * 1000, "x[n=16, c=2, h=0, w=0]"),
        ("x", 6, "x[n=0, c=0, h=0, w=1] + 2 bytes"),
        ("a", 8 * 13, "a[2][1]"),
        ("a", -8, "a[-1][5]"),
        ("a", 8 * 24, "a[4][0]"),
        ("workspace", 256, "workspace[64]"),
        ("w", -4, "w[k=-1, c=2, r=0, s=1]"),
        ("w", 4 * 24, "w[k=4, c=0, r=0, s=0]"),
    ],
)
def test_address_as_an_index(name, byte, expected):
    arrays = {"x": Array((3, 3, 4, 5), 4, "nchw"), "a": Array((4, 6), 8), "workspace": Array((1,))}
    arrays["w"] = Array((4, 3, 1, 2), 4, "kcrs")
    assert arrays[name].describe(name, byte) == expected


def test_run_accepts_files_and_reports_invalid_arguments(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text("__global__ void scale(double* x, double by) { x[threadIdx.x] *= by; }")
    x = np.ones((2, 3)).T  # not contiguous
    any_kernel.run(path, "scale", x, 2.5, grid=1, block=6)
    assert (x == 2.5).all()
    for error, message, entry, arguments, block in (
        (ProblemError, "by is a str", "scale", (x, "2"), 6),
        (ProblemError, "block is", "scale", (x, 2), ()),
        (LaunchError, "wrong number of arguments: pass one for each parameter", "scale", (x,), 6),
        (LaunchError, "1 to 1024 threads", "scale", (x, 2), 1025),
        (LaunchError, "null pointer", "scale", (None, 2), 1),
        (BuildError, "scales", "scales", (x, 2), 1),
    ):
        with pytest.raises(error, match=message):
            any_kernel.run(path, entry, *arguments, grid=1, block=block)
