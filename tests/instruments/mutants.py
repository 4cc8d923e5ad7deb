"""Wrong kernels, planted on purpose: does the check catch them, every one?

A mutant is a rung of the ladder with a mistake edited in (planted.py). The command builds all of
them, gives each to the check, and prints which mistake was caught by what; it exits with 1 if one
escaped.

    python -m tests.instruments.mutants           on a GPU where there is one, else simulated
    python -m tests.instruments.mutants --engine sim --markdown
    python -m tests.instruments.mutants --only 01_constant 03_no_barrier_before

A mutant is checked on the named set of awkward problems, and two with a ReLU, cheap ones first,
until one shows it.
None says which problem that should be.
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
PROBLEMS = (*convlab.problems("awkward"), _RELU, replace(_RELU, bias=True))


@dataclass(frozen=True)
class Finding:
    """What the check found on the first problem that showed something.

    Attributes
    ----------
    kind
        "wrong result", "runtime fault" or "build error"; None where nothing was found.
    what
        In words, one line.
    problem
        The problem's label; empty for a build error.
    checked
        The number of problems checked, that one included.
    seconds
        What that took.
    findings
        A runtime fault's, where it was simulated: which line, block, thread.
    """

    kind: str | None
    what: str
    problem: str = ""
    checked: int = 0
    seconds: float = 0.0
    findings: tuple[SimulatedFinding, ...] = ()


def build(mutant: Mutant, engine: str) -> convlab.Kernel | Finding:
    """Compile a mutant; return the kernel, or that there is none."""
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
    """Keep torch's threads from waiting for one another while builds and simulator have the cores.

    The truths of problems this small take a quarter of the time with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_torch_thread()
def examine(kernel: convlab.Kernel) -> Finding:
    """Check a kernel problem by problem until something is found."""
    started = time.perf_counter()
    checked = 0
    # A simulated thread costs as much as many products: by far the dearest comes last.
    for problem in sorted(PROBLEMS, key=lambda p: p.macs + 256 * p.gemm_m * p.K):
        if problem.name == "awkward.images_66000" and kernel.counts:
            # a race is seen on fewer images, and counting the traffic of these takes a minute
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
    """Examine mutants one by one, in order, building several at a time ahead of that."""
    workers = min(8, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        building = [(mutant, pool.submit(build, mutant, engine)) for mutant in mutants]
        try:
            for mutant, future in building:
                yield mutant, judge(mutant, future.result())
        finally:
            pool.shutdown(cancel_futures=True)


def judge(mutant: Mutant, built: convlab.Kernel | Finding) -> Finding:
    """Examine what was built, if it was; on a GPU the check does that in a process of its own."""
    return built if isinstance(built, Finding) else examine(built)


def expected(mutant: Mutant, engine: str) -> str | None:
    """Return what a mutant has to be caught as on an engine; None: it need not be."""
    return mutant.sim if engine == "sim" else mutant.cuda


def _first_sign(kernel: convlab.Kernel, problem: convlab.Problem) -> tuple[str, str, tuple] | None:
    """Return the kind of what the check finds on one problem, what, and its findings; or None."""
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
        caught = "NOT CAUGHT"
    else:
        caught = f"not caught, nor can it be here: {mutant.why}"
    return mutant.name, mutant.rung, mistake, caught, f"{finding.seconds:.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a mutant escaped."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("auto", "sim", "cuda"), default="auto")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants alone")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}")
    engine = convlab.load("01_direct", engine=options.engine).engine
    chosen = [m for m in MUTANTS if not options.only or m.name in options.only]

    started = time.perf_counter()
    escaped = []
    spared = []
    kinds = dict.fromkeys((WRONG, FAULT, BUILD), 0)
    if options.markdown:
        print(f"| mutant | rung | mistake | caught on {engine} by | s |\n|---|---|---|---|---|")
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
        f"\n{sum(kinds.values())} of {len(chosen)} mutants caught on {engine} ({shares}), "
        f"{len(spared)} that it cannot show, {len(escaped)} escaped; "
        f"{time.perf_counter() - started:.0f} s"
    )
    if spared:
        print(f"cannot show: {', '.join(spared)}")
    if escaped:
        print(f"ESCAPED: {', '.join(escaped)}")
    return bool(escaped)


if __name__ == "__main__":
    sys.exit(main())
