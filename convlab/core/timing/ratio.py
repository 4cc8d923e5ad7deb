"""The ratio of two times from rounds that timed both: estimate, interval, when to stop, verdict.

A round times A and B once each, next to one another and in random order, and gives one number, the
logarithm of B's time over A's. What drifts more slowly than a round (clock, heat, a neighbour on
the memory) cancels, and under the random order it is as likely off one way as the other. The
estimate assumes only this symmetry: the noise need not be normal, nor of one size.

- Estimate: Hodges and Lehmann's, the median of the means of all pairs of rounds (Annals of
  Mathematical Statistics 34, 1963). It wastes 5% of normal noise, where the median wastes 36%, and
  it tolerates 29% of outliers. Unlike the median it does not stick to the steps of a coarse timer.
- Interval: the one that belongs to this estimate, from inverting Wilcoxon's signed-rank test.
  Neighbouring rounds may resemble one another. So the test's variance is multiplied by the
  autocorrelation time of the rounds' ranks, by Geyer's initial positive sequence (Statistical
  Science 7, 1992).
- Stopping: sampling looks at the interval after 32, 45, 64, 91, ... rounds. It stops at the first
  look at which the interval is narrower than asked for and the rounds are worth 32 independent
  ones, or at the time limit. To stop for the width, not for the sign, costs little of an interval's
  level (Chow and Robbins, Annals of Mathematical Statistics 36, 1965); 2.1 for the normal quantile
  instead of 1.96 pays for it. ``tests/core/test_ab.py`` simulates all of this under noise that
  drifts, jumps, is rounded, has outliers and is autocorrelated: at least 97% of the intervals hold
  the truth, A against A is "same" at least 98% of the time, and 2% is always detected. Where the
  ratio itself wanders, with a memory of ten rounds and far beyond the noise, 90% of the intervals
  hold the truth.
- Between runs: two runs differ by more than the noise within one, since their memory has other
  addresses. `pooled` treats the logs of several runs' estimates as independent and normal, and
  returns their mean with Student's interval. Half its width is at least 0.6 of what the noise
  within the runs gives, as a few runs may agree by luck. Of 600 simulated intervals of four runs
  95 to 96% hold the truth, whether runs differ by nothing, by a third of the noise of a round, or
  by all of it. Runs of one process share an error, which is added to the interval; see `ab_timing`.
- Verdict: "same" if the whole interval lies within the threshold of 1; else "faster" or "slower" if
  it excludes 1; else "undecided". With a target of at most half the threshold a run that did not
  reach the time limit is always decided.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..defaults import THRESHOLD

# Also the least number of independent rounds, see `autocorrelation_time`.
LEAST_ROUNDS = 32
# The numbers of rounds at which sampling may stop: 32, 45, 64, ... 2048.
LOOKS = tuple(round(LEAST_ROUNDS * 2 ** (step / 2)) for step in range(13))
_QUANTILE = 2.1
# Student's two-sided 95% quantile, by the number of runs (one more than its degrees of freedom).
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
_WITHIN = 0.6
# The fewest rounds that can give an interval at all: 2 / 2**6 < 0.05.
_FEWEST = 6


@dataclass(frozen=True)
class Ratio:
    """B's time over A's: the estimate, its 95% interval, and the number of rounds.

    With fewer than six rounds the interval is (0, inf).
    """

    value: float
    low: float
    high: float
    rounds: int

    @property
    def half_width(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        if not self.rounds:
            return "unknown, as no round counts"
        if math.isfinite(self.high):
            interval = f"95% {self.low:.4f} to {self.high:.4f}"
        else:
            interval = "too few rounds for an interval"
        return f"{self.value:.4f}, {interval}, {self.rounds} rounds"

    def verdict(self, threshold: float = THRESHOLD) -> str:
        """Return what is known of B against A: "faster", "slower", "same" or "undecided"."""
        if 1 - threshold <= self.low and self.high <= 1 + threshold:
            return "same"
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "undecided"


def estimate(logs: Iterable[float]) -> Ratio:
    """Return the ratio and its interval from the rounds' log ratios, in the order of time."""
    logs = np.asarray(list(logs), dtype=float)
    n = len(logs)
    if n == 0:
        return Ratio(math.nan, 0.0, math.inf, 0)
    first, second = np.triu_indices(n)
    means = np.sort((logs[first] + logs[second]) / 2)
    middle = math.exp(np.median(means))
    variance = autocorrelation_time(logs) * n * (n + 1) * (2 * n + 1) / 24
    cut = math.floor(len(means) / 2 - _QUANTILE * math.sqrt(variance) - 0.5)
    if n < _FEWEST or cut < 0:
        return Ratio(middle, 0.0, math.inf, n)
    return Ratio(middle, math.exp(means[cut]), math.exp(means[-1 - cut]), n)


def pooled(runs: Sequence[Ratio], unseen: float = 0.0) -> Ratio:
    """Return the ratio of several runs, with an interval that covers the differences between them.

    `unseen` is an error that all runs share, so that they do not show it. It is added to half the
    interval's width in squares.
    """
    runs = [run for run in runs if run.rounds]
    if len(runs) < 2:
        return runs[0] if runs else estimate(())
    logs = [math.log(run.value) for run in runs]
    half_widths = [math.log(run.high / run.low) / 2 for run in runs if run.low > 0]
    within = math.hypot(*half_widths) / len(runs)
    student = _STUDENT[min(len(runs), max(_STUDENT))]
    between = student * statistics.stdev(logs) / math.sqrt(len(runs))
    half = math.hypot(max(between, _WITHIN * within), unseen)
    middle = statistics.fmean(logs)
    rounds = sum(run.rounds for run in runs)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), rounds)


def autocorrelation_time(values: Iterable[float]) -> float:
    """Return how many rounds are worth one independent round, at least 1.

    It is 1 + 2 * (sum of the autocorrelations of the ranks), summed in pairs as long as the pairs
    are positive, up to a third of the length.
    """
    values = np.asarray(list(values), dtype=float)
    n = len(values)
    if n < _FEWEST:
        return 1.0
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Equal values share one rank.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if power == 0:
        return 1.0
    total = -1.0
    for lag in range(0, n // 3, 2):
        even = ranks[lag:] @ ranks[: n - lag]
        odd = ranks[lag + 1 :] @ ranks[: n - lag - 1]
        pair = float(even + odd)
        if pair <= 0:
            break
        total += 2 * pair / power
    return max(total, 1.0)


def settled(logs: list[float], target: float) -> bool:
    """Return whether sampling may stop, which it only may at one of the `LOOKS`."""
    if len(logs) not in LOOKS:
        return False
    if len(logs) == LOOKS[-1]:
        return True
    if len(logs) < LEAST_ROUNDS * autocorrelation_time(logs):
        return False
    return estimate(logs).half_width <= target
