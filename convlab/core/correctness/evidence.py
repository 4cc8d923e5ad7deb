"""The outputs of one run beside their truth: what patterns are looked for in."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..problem.problem import Problem


@dataclass(frozen=True)
class Evidence:
    """Some or all outputs of one run, M of them."""

    problem: Problem
    precision: str  # the class that the kernel declares
    where: np.ndarray  # (M, 4): n, k, p and q
    got: np.ndarray  # float64
    truth: np.ndarray  # float64
    wrong: np.ndarray  # bool
    unwritten: np.ndarray  # bool; what was never written is wrong
    allowed: float  # an output may be off by allowed * (rms + |truth|)
    rms: float
    whole: bool  # whether these are all outputs, in memory order
    truth_at: Callable[[np.ndarray], np.ndarray]  # the truth at other positions (L, 4)
    bias: np.ndarray | None = None  # (K,)
    usual: bool = True  # whether the inputs are ordinary numbers, not inf, NaN, huge, tiny or 0

    def near(self, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Which of some values would be correct if that were expected of them."""
        return np.abs(got - expected) <= self.allowed * (self.rms + np.abs(expected))
