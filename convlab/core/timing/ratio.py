"""Estimate the ratio of two times from rounds: estimate, interval, stopping rule, verdict.

A round times A and B once each, one directly after the other, in random order. It gives one number:
the logarithm of B's time over A's. Whatever changes more slowly than a round (the clock, the
temperature, other users of the memory) cancels. What does not cancel is equally likely in both
directions, because the order is random. The estimate assumes only this symmetry: the noise need not
be normal, and its size may change.

- Estimate: the Hodges-Lehmann estimator, the median of the means of all pairs of rounds (Annals of
  Mathematical Statistics 34, 1963). On normal noise its efficiency is 95%, where that of the median
  is 64%. It tolerates 29% of outliers. Coarse steps of a timer affect it less than the median.
- Interval: the one that belongs to this estimate, by inverting Wilcoxon's signed-rank test. Rounds
  that follow one another may be correlated. So the variance of the test is multiplied by the
  autocorrelation time of the rounds' ranks, estimated by Geyer's initial positive sequence
  (Statistical Science 7, 1992).
- Stopping: the interval is computed after 32, 45, 64, 91, ... rounds. Sampling stops when the
  interval is narrow enough and the rounds are worth 32 independent ones, or at the time limit. A
  rule that looks at the width, not at the sign, hardly lowers the level of an interval (Chow and
  Robbins, Annals of Mathematical Statistics 36, 1965). A normal quantile of 2.1 instead of 1.96
  compensates for that. Simulated noise drifts, jumps, is autocorrelated, has outliers or is rounded
  to the steps of a timer. In each of these cases 97 to 98% of 300 intervals contain the true ratio,
  A against A is "same" at least 98% of the time, and a difference of 2% is always detected. If the
  ratio itself changes slowly (over ten rounds, and by far more than the noise), 50 of 60 intervals
  contain the true ratio. ``tests/core/test_ab.py`` simulates all this, and checks lower limits.
- Several runs: two runs differ by more than the noise within one, because their buffers have other
  addresses. `pooled` treats the logs of the runs' estimates as independent and normal, and returns
  their mean with Student's interval. Half its width is at least 0.6 times what the noise within the
  runs gives, because a few runs may agree by chance. Of 600 simulated intervals of four runs, 96 to
  97% contain the true ratio: if the runs do not differ, differ by a third of the noise of a round, or
  by all of it. Runs of one process share an error, which widens the interval; see `ab_timing`.
- Verdict: "same" if the whole interval is within the threshold of 1. Else "faster" or "slower" if
  the interval excludes 1. Else "undecided". If the target is at most half the threshold, a run that
  ends before the time limit is never "undecided".
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..defaults import THRESHOLD

# Sampling needs at least this many rounds, and this many independent ones: see `autocorrelation_time`.
LEAST_ROUNDS = 32
# The numbers of rounds at which sampling may stop: 32, 45, 64, ... 2048.
LOOKS = tuple(round(LEAST_ROUNDS * 2 ** (step / 2)) for step in range(13))
# The normal quantile of the interval; see "Stopping" above.
_QUANTILE = 2.1
# Student's two-sided 95% quantile, by the number of runs (the degrees of freedom plus one).
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
# See "Several runs" above.
_WITHIN = 0.6
# At least this many rounds are needed for an interval, because 2 / 2**6 < 0.05.
_FEWEST = 6


@dataclass(frozen=True)
class Ratio:
    """Hold B's time over A's: the estimate, its 95% interval, and the number of rounds.

    With fewer than six rounds the interval is (0, inf).

    Examples
    --------
    >>> Ratio(0.95, low=0.94, high=0.96, rounds=64).verdict()
    'faster'
    """

    value: float
    low: float
    high: float
    rounds: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        if not self.rounds:
            return "unknown, because no round was kept"
        if math.isfinite(self.high):
            interval = f"95% interval {self.low:.4f} to {self.high:.4f}"
        else:
            interval = "too few rounds for an interval"
        return f"{self.value:.4f}, {interval}, {self.rounds} rounds"

    def verdict(self, threshold: float = THRESHOLD) -> str:
        """Return B's speed in relation to A's: "faster", "slower", "same" or "undecided"."""
        if 1 - threshold <= self.low and self.high <= 1 + threshold:
            return "same"
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "undecided"


def estimate(logs: Iterable[float]) -> Ratio:
    """Return the ratio with its interval, from the logs of the rounds' ratios in order of time."""
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

    `unseen` is a relative error that all runs share, so that their differences do not show it. The
    half width of the result is the root of the sum of both squares.
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
    """Return how many rounds are worth one independent round; at least 1.

    The result is 1 + 2 * (sum of the autocorrelations of the ranks). The sum takes lags in pairs, as
    long as the pairs are positive, up to a third of the number of rounds.
    """
    values = np.asarray(list(values), dtype=float)
    n = len(values)
    if n < _FEWEST:
        return 1.0
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Equal values have the same rank.
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
    """Return whether sampling may stop; it can stop only after one of the `LOOKS`."""
    if len(logs) not in LOOKS:
        return False
    if len(logs) == LOOKS[-1]:
        return True
    if len(logs) < LEAST_ROUNDS * autocorrelation_time(logs):
        return False
    return estimate(logs).half_width <= target
