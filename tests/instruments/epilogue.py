"""Measure what a fused bias and ReLU cost.

    python -m tests.instruments.epilogue [--write tests/instruments/epilogue.md]

Times rungs with and without bias and ReLU, in turns, on the headline problems; then cuDNN in the same class,
alone and followed by torch's bias and ReLU. The rungs are those that fuse both and have a `best:` line in their
header or a class of 16 bits. Needs a GPU, and takes about a minute.
"""

import argparse
import datetime
import functools
import itertools
import math
import random
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from convlab.core.kernel.catalog import catalog
from convlab.core.kernel.data import inputs
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.kernel.libraries import baseline
from convlab.core.kernel.runnable import Runnable
from convlab.core.machine.device import describe
from convlab.core.problem.named import problems
from convlab.core.problem.problem import EPILOGUE, Problem
from convlab.core.timing import ratio
from convlab.core.timing.stopwatch import Single, flush_buffer, rounds
from tests.instruments.pages import laid, write_between

# Seconds for a pair.
_SECONDS = 0.5
# Seconds for one turn of one of them.
_TURN = 0.01
# The smallest number of rounds.
_LEAST = 12


def rungs() -> list[Kernel]:
    """Return the rungs that fuse both and are meant for use, built."""
    found = [load(path, engine="cuda") for path in catalog()]
    found = [
        k
        for k in found
        if k.header.epilogue == EPILOGUE
        and (k.header.best is not None or k.precision in ("bf16", "fp16"))
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Kernel.build, found))
    return found


@functools.cache
def pair(runnable: Runnable, problem: Problem) -> tuple[str, str, ratio.Ratio]:
    """Return the median ms without and with both, and the ratio from rounds that time each once."""
    fused = replace(problem, bias=True, relu=True)
    flush = flush_buffer(runnable.device)
    x, w, bias = inputs(fused, device=runnable.device, format=runnable.format)
    turns = [
        Single(
            runnable,
            each,
            given,
            flush,
            _TURN,
            _SECONDS / 8,
            trusted=True,
            kept=runnable.prepare(each, *given),
        )
        for each, given in ((problem, (x, w, None)), (fused, (x, w, bias)))
    ]
    taken: list[list[float]] = []
    for samples in itertools.islice(rounds(turns, random.Random(0)), ratio.LOOKS[-1]):
        taken.append([statistics.median(each) for each in samples])
        if len(taken) >= _LEAST and sum(turn.spent for turn in turns) > _SECONDS:
            break
    plain, both = (f"{1e3 * statistics.median(times):.3f}" for times in zip(*taken, strict=True))
    return plain, both, ratio.estimate(math.log(b / a) for a, b in taken)


def rows() -> Iterator[dict[str, str]]:
    """Yield a row for each problem and each rung that supports it."""
    for problem, kernel in itertools.product(problems("headline"), rungs()):
        if not kernel.unsupported(problem):
            last = ":channels_last" if kernel.format.x.layout == "NHWC" else ""
            theirs = pair(baseline(f"cudnn:{kernel.precision}{last}"), problem)
            plain, both, cost = pair(kernel, problem)
            yield {
                "problem": problem.label,
                "rung": kernel.name,
                "ms": plain,
                "with both": both,
                "ratio": f"{cost.value:.4f}",
                "95%": f"{cost.low:.4f} to {cost.high:.4f}",
                "cuDNN, ms": theirs[0],
                "with torch's": theirs[1],
            }


def main() -> None:
    """Measure all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--write", metavar="FILE", help="write the table between the markers of this page"
    )
    path = parser.parse_args().write
    frame = pd.DataFrame(rows())
    print(frame.to_string(index=False))
    if path:
        made = f"{describe('cuda')}; torch {torch.__version__}; {datetime.date.today()}."
        write_between(Path(path), "epilogue", f"{laid(frame)}\n\n{made}")


if __name__ == "__main__":
    main()
