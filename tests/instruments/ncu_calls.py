"""The hardware's counters of many calls, made in one process: few metrics take one pass each.

``python -m tests.instruments.ncu_calls FILE`` makes the pickled calls; `profile_each` runs it under
ncu.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from convlab.run.kernel import Kernel
from convlab.why import ncu
from convlab.words.errors import ConvlabError
from convlab.words.problem import Problem

_MARK = "spin_kernel"  # torch's, which stands behind each call


def profile_each(
    calls: Sequence[tuple[Kernel, Problem]], metrics: Sequence[str], time_limit: float = 300.0
) -> list[pd.DataFrame]:
    """Count each call: of what failed there is nothing, nor of what had not begun after two thirds.

    Raises LaunchError, a line that says what to do.
    """
    given = (list(calls), time_limit * 2 / 3)
    counters = ncu.counted("tests.instruments.ncu_calls", given, metrics, time_limit)
    return split(counters, len(calls))


def split(counters: pd.DataFrame, calls: int) -> list[pd.DataFrame]:
    """Divide the launches of several calls, of which each ends with a mark, among them."""
    marks = counters["function"].str.contains(_MARK)
    call = marks.shift(fill_value=False).cumsum().where(marks[::-1].cumsum() > 0)  # all of it
    return [counters[(call == i) & ~marks].reset_index(drop=True) for i in range(calls)]


def main(asked: str) -> None:
    """Make the calls, until the time is up."""
    calls, seconds = pickle.loads(Path(asked).read_bytes())
    end = time.monotonic() + seconds
    for kernel, problem in calls:
        if time.monotonic() > end:
            break
        try:
            ncu.call(kernel, problem, 0)
        except ConvlabError as error:
            print(f"{kernel.name} on {problem.label}: {error}", file=sys.stderr)
        torch.cuda.profiler.start()
        torch.cuda._sleep(1)  # the mark
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1])
