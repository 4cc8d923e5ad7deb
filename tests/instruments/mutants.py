"""Test that the check finds every planted mistake.

    python -m tests.instruments.mutants           on a GPU if there is one, else on the simulator
    python -m tests.instruments.mutants --engine sim --markdown
    python -m tests.instruments.mutants --only 01_constant 03_no_barrier_before

A mutant is a rung with a planted mistake (planted.py). The command builds and checks each mutant, and prints how
its mistake was found. The exit status is 1 if one was not found. A mutant is checked on the problems of the set
"awkward", on two with a ReLU and on one of "limits", cheap ones first, until one of them fails. The table of
mistakes does not say which problem should fail.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

import convlab
from convlab.core.errors import BuildError, LaunchError, UnsupportedError
from convlab.core.finding import Finding as SimulatedFinding
from convlab.core.kernel.kernel import WORKSPACE_LIMIT
from tests.instruments.planted import BUILD, FAULT, MUTANTS, WRONG, Mutant

_RELU = convlab.problem("N2 C24 H7 W9 K20 R3 S3 p1 relu")
# One row, too long for one consumer of the rungs on wgmma.
_LONG_ROW = convlab.problem("N1 C5 H1 W601 K3 R1 S3 p0x1")
PROBLEMS = (*convlab.problems("awkward"), _RELU, replace(_RELU, bias=True), _LONG_ROW)
# For kernels compiled for one filter and stride that no other problem has. It comes last.
_SPECIALISED = convlab.problem("limits.depthwise_s2")


@dataclass(frozen=True)
class Finding:
    """What the check found on the first problem that fails.

    Attributes
    ----------
    kind
        "wrong result", "runtime fault" or "build error"; None if nothing was found.
    what
        The finding in one line.
    problem
        The problem's label; empty for a build error.
    checked
        The number of problems checked, including that one.
    seconds
        Seconds for all these problems.
    findings
        Of a runtime fault on the simulator: line, block and thread.
    """

    kind: str | None
    what: str
    problem: str = ""
    checked: int = 0
    seconds: float = 0.0
    findings: tuple[SimulatedFinding, ...] = ()


def build(mutant: Mutant, engine: str) -> convlab.Kernel | Finding:
    """Compile a mutant; return the kernel, or a finding if it does not build."""
    limit = mutant.workspace_limit or WORKSPACE_LIMIT
    try:
        return convlab.compile(
            mutant.source, name=mutant.name, engine=engine, workspace_limit=limit
        )
    except BuildError as error:
        head, *lines = str(error).splitlines()
        return Finding(BUILD, lines[0] if head.endswith("did not compile") else head)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch use one thread, because builds and the simulator use the cores.

    The float64 references of such small problems then take a quarter of the time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_torch_thread()
def examine(kernel: convlab.Kernel) -> Finding:
    """Check a kernel, one problem after another, until something is found."""
    started = time.perf_counter()
    checked = 0
    # A simulated thread costs as much as many products. The most expensive problem comes last, but for one that is
    # so small that an offset which is wrong for a group often stays inside of the tensor.
    tiny = "awkward.taps_outside_depthwise"
    cheap_first = sorted(PROBLEMS, key=lambda p: (p.name == tiny, p.macs + 256 * p.gemm_m * p.K))
    for problem in (*cheap_first, _SPECIALISED):
        if problem.name == "awkward.images_66000" and kernel.counts:
            # Problems with fewer images show a race. Counting the traffic of these takes a minute.
            options = {"engine": "sim", "trace": False, "workspace_limit": kernel.workspace_limit}
            kernel = convlab.compile(kernel.source, name=kernel.name, **options)
        try:
            found = _first_sign(kernel, problem)
        except UnsupportedError:
            continue
        checked += 1
        if found:
            label = problem.label.removeprefix("awkward.")
            *found, findings = found
            return Finding(*found, label, checked, time.perf_counter() - started, findings)
    return Finding(None, "nothing", "", checked, time.perf_counter() - started)


def survey(mutants: Iterable[Mutant], engine: str) -> Iterator[tuple[Mutant, Finding]]:
    """Examine mutants in order; several are built at a time meanwhile."""
    workers = min(8, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        building = [(mutant, pool.submit(build, mutant, engine)) for mutant in mutants]
        try:
            for mutant, future in building:
                yield mutant, judge(mutant, future.result())
        finally:
            pool.shutdown(cancel_futures=True)


def judge(mutant: Mutant, built: convlab.Kernel | Finding) -> Finding:
    """Return the finding for a mutant: its build error, or what the check finds."""
    return built if isinstance(built, Finding) else examine(built)


def expected(mutant: Mutant, engine: str) -> str | None:
    """Return the kind of finding that a mutant must give on an engine, or None for no finding."""
    return mutant.sim if engine == "sim" else mutant.cuda


def _first_sign(kernel: convlab.Kernel, problem: convlab.Problem) -> tuple[str, str, tuple] | None:
    """Return the kind, the text and the findings of the check on one problem, or None."""
    try:
        report = convlab.check(kernel, problem)
    except LaunchError as error:
        first, *rest = str(error).splitlines()
        places = [line.split(":")[1] for line in rest if ".cu:" in line or "source:" in line]
        line = f" (line {places[0]})" if places else ""
        return FAULT, first.removeprefix(f"{kernel.name}: ") + line, tuple(error.findings)
    if report.ok:
        return None
    return WRONG, report.summary, ()


def _row(mutant: Mutant, finding: Finding, engine: str) -> tuple[str, ...]:
    mistake = mutant.mistake + (" (shipped)" if mutant.shipped else "")
    if finding.kind:
        on = f" on {finding.problem}" if finding.problem else ""
        caught = f"{finding.kind}{on}: {finding.what}"
    elif expected(mutant, engine):
        caught = "NOT FOUND"
    else:
        caught = f"not found, and cannot be found here: {mutant.why}"
    return mutant.name, mutant.rung, mistake, caught, f"{finding.seconds:.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a mutant was not found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("auto", "sim", "cuda"), default="auto")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these mutants")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(
            f"no mutant is named {', '.join(sorted(unknown))}: see planted.py for the names"
        )
    engine = convlab.load("01_direct", engine=options.engine).engine
    chosen = [m for m in MUTANTS if not options.only or m.name in options.only]

    started = time.perf_counter()
    escaped = []
    spared = []
    kinds = dict.fromkeys((WRONG, FAULT, BUILD), 0)
    if options.markdown:
        print(f"| mutant | rung | mistake | found on {engine} as | s |\n|---|---|---|---|---|")
    for mutant, finding in survey(chosen, engine):
        name, rung, mistake, caught, seconds = _row(mutant, finding, engine)
        if options.markdown:
            cells = (name, rung, mistake, caught.replace("|", "\\|"), seconds)
            print(f"| {' | '.join(cells)} |", flush=True)
        else:
            print(f"{name} ({rung}, {seconds} s)\n  {mistake}\n    {caught}", flush=True)
        if finding.kind:
            kinds[finding.kind] += 1
        else:
            (escaped if expected(mutant, engine) else spared).append(mutant.name)
    shares = ", ".join(f"{count} by {kind}" for kind, count in kinds.items() if count)
    print(
        f"\n{sum(kinds.values())} of {len(chosen)} mutants found on {engine} ({shares}), "
        f"{len(spared)} cannot be found there, {len(escaped)} not found; "
        f"{time.perf_counter() - started:.0f} s"
    )
    if spared:
        print(f"cannot be found on {engine}: {', '.join(spared)}")
    if escaped:
        print(f"NOT FOUND: {', '.join(escaped)}")
    return bool(escaped)


if __name__ == "__main__":
    sys.exit(main())
