"""The check catches every planted mistake; what is right passes it in `test_kernels.py`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import convlab
from convlab.core.correctness import reference
from convlab.core.errors import LaunchError
from convlab.core.kernel import catalog
from convlab.core.kernel.runnable import Launch
from convlab.sim import report_text, trace
from tests.instruments import mutants, planted
from tests.instruments.planted import BUILD, FAULT, MUTANTS, Mutant
from tests.suites import DEEP, FOLDER

NAMES = {mutant.name: mutant for mutant in MUTANTS}
RUNGS = [path.stem for path in catalog.catalog()]
HARMLESS = Mutant("01_harmless", "01_direct", "none at all", (("float r_acc", "float  r_acc"),))


def caught_on(engine: str) -> pytest.MarkDecorator:
    """One test for each mutant that an engine must catch, named after it.

    What the simulator sees of a mistake in one rung, it sees of the same in another: of those the
    first is tried, if it is one of each eight that a rung is caught by in one way. All are where
    CONVLAB_DEEP is set, and by `python -m tests.instruments.mutants`.
    """
    chosen = [mutant for mutant in MUTANTS if mutants.expected(mutant, engine)]
    if engine == "sim" and not DEEP:
        by_mistake = {mutant.name.partition("_")[2]: mutant for mutant in reversed(chosen)}
        alike: dict[tuple, list[Mutant]] = {}
        for mutant in sorted(by_mistake.values(), key=chosen.index):
            alike.setdefault((mutant.rung, mutant.sim), []).append(mutant)
        chosen = [mutant for some in alike.values() for mutant in some[::8]]
    return pytest.mark.parametrize("mutant", chosen, ids=lambda mutant: mutant.name)


@caught_on("sim")
def test_caught_on_the_simulator(mutant: Mutant) -> None:
    finding = mutants.judge(mutant, mutants.build(mutant, "sim"))
    assert finding.kind == mutant.sim, finding
    if finding.kind == FAULT:
        _is_at_its_line(mutant, finding)


def _is_at_its_line(mutant: Mutant, finding: mutants.Finding) -> None:
    """Every error that was found is where the mistake is, and names the array and an index."""
    told = [f for f in finding.findings if f.error]
    told = told or [f for f in finding.findings if f.kind == "refused launch"]
    assert told, finding
    lines = mutant.source.splitlines()
    for f in told:  # one of the two places may be in a header
        places = {(f.file, f.line), (f.other_file or f.file, f.other_line)}
        own = {line for file, line in places if not (file and file.endswith(".cuh"))}
        assert own & mutant.lines, (f, sorted(mutant.lines))
        quoted = report_text.describe_findings([f], mutant.name, mutant.source)
        assert any(lines[line - 1].strip() in quoted for line in own if line)
        if "out of bounds" in f.kind or f.kind in ("race", "uninitialised read"):
            assert re.search(r"\w+\[(\w=)?-?\d+|byte \d+ of extern __shared__", f.text), f.text


@pytest.fixture(scope="module")
def building(request: pytest.FixtureRequest) -> Iterator[list[Future]]:
    """A test process's share of those that a GPU must catch, being built ahead into the cache."""
    wanted = [
        item.callspec.params["mutant"]
        for item in request.session.items
        if "building" in getattr(item, "fixturenames", ())
    ]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = wanted[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) :: processes]
    with ThreadPoolExecutor(max(1, 8 // processes)) as pool:
        yield [pool.submit(mutants.build, mutant, "cuda") for mutant in share]
        pool.shutdown(cancel_futures=True)


@pytest.mark.gpu
@caught_on("cuda")
def test_caught_on_the_gpu(mutant: Mutant, building: list[Future]) -> None:
    finding = mutants.judge(mutant, mutants.build(mutant, "cuda"))
    assert finding.kind, f"not caught: {mutant.mistake}"
    assert (finding.kind == BUILD) == (mutant.cuda == BUILD), finding


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_edits_still_apply(mutant: Mutant) -> None:
    assert mutant.source != (planted.KERNELS / f"{mutant.rung}.cu").read_text()
    assert mutant.sim or mutant.cuda
    assert mutant.why or (mutant.sim and mutant.cuda)


def test_stale_edits_and_places_are_told() -> None:
    stale = Mutant("01_stale", "01_direct", "none", (("no such text", ""),))
    with pytest.raises(ValueError, match="01_stale is stale: 'no such text' occurs 0 times"):
        _ = stale.source
    (line,) = HARMLESS.lines
    assert "float  r_acc" in HARMLESS.source.splitlines()[line - 1]
    with pytest.raises(ValueError, match="no line holds 'no such text'"):
        _ = dataclasses.replace(HARMLESS, at=("no such text",)).lines


def test_set_covers_the_rungs() -> None:
    assert len(NAMES) == len(MUTANTS) >= 50
    assert {mutant.rung for mutant in MUTANTS} == set(RUNGS)
    assert sum(mutant.shipped for mutant in MUTANTS) >= 30


def test_every_barrier_is_removed_by_one() -> None:
    for rung in RUNGS:
        text = (planted.KERNELS / f"{rung}.cu").read_text()
        own = [mutant for mutant in MUTANTS if mutant.rung == rung]
        for line in re.finditer(r"^ *__syncthreads\(\);.*\n", text, re.MULTILINE):
            without = text[: line.start()] + text[line.end() :]
            assert any(m.source == m.pasted(without) for m in own), (rung, line.start())


# The order of the threads: no other order moves what is right, and each shows some race.
ORDERED = (FOLDER / "order.cu").read_text()


def ordered(body: str, width: int) -> Launch:
    """A launch of four blocks, of `width` threads each, that do what is told."""
    kernel = convlab.compile(ORDERED % body, name="order", engine="sim")
    problem = convlab.Problem(N=1, C=1, H=1, W=width, K=1, R=1, S=1)
    return kernel.prepare(problem, *reference.inputs(problem))


def first_values(body: str, count: int) -> list[float]:
    """The first of y after each of `count` runs of one launch, a race in each."""
    launch = ordered(body, 128)
    firsts = []
    for _ in range(count):
        launch.y.zero_()
        with pytest.raises(LaunchError, match="race"):  # told in any order; and it ran to its end
            launch()
        firsts.append(float(launch.y.flatten()[0]))
    return firsts


def test_runs_of_a_launch_take_turns_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVLAB_SIM_THREADS", "1")  # blocks one after another
    last_thread = "y[0] = threadIdx.x;"
    last_block = "if (threadIdx.x == 0) y[0] = blockIdx.x;"
    assert first_values(last_thread, 2) == [127, 0]
    assert first_values(last_block, 2) == [3, 0]


def test_turns_are_lost_between_load_and_store() -> None:
    plain, *others = first_values("if (blockIdx.x == 0) y[0] = y[0] + 1;", 4)
    assert plain == 128
    assert all(other < 128 for other in others)


def test_counters_do_not_depend_on_the_order() -> None:
    kernel = convlab.load("03_smem_tile", engine="sim")
    problem = convlab.problem("awkward.groups_2")
    launch = kernel.prepare(problem, *reference.inputs(problem))
    seen = []
    for _ in range(3):
        launch()
        seen.append([launch.counters[name] for name in trace.COUNTERS])
    assert seen[0] == seen[1] == seen[2]


def test_deadlock_is_told_in_any_order() -> None:
    body = "if (threadIdx.x < 16) __syncwarp(0xffff0000u << (threadIdx.x / 32)); __syncthreads();"
    launch = ordered(body, 32)
    for _ in range(2):
        with pytest.raises(LaunchError, match="warp mask"):
            launch()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("02b_filter_transposed", r"global out of bounds: access by a library at w\[k="),
        ("02b_column_major", "leading dimension is less than"),
    ],
)
def test_what_a_library_does_names_the_call(name: str, message: str) -> None:
    kernel = mutants.build(NAMES[name], "sim")
    with pytest.raises(LaunchError, match=message) as caught:
        convlab.check(kernel, "awkward.filter_is_image")
    assert "status = cublasSgemmStridedBatched(" in str(caught.value)
