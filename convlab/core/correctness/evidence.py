"""The outputs of one run next to the correct ones: the input of the search for patterns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..problem.problem import Problem


@dataclass(frozen=True)
class Evidence:
    """M outputs of one run, or all of them, with the correct values.

    Attributes
    ----------
    problem : the problem.
    precision : the class that the kernel declares.
    where : the outputs' (n, k, p, q), shape (M, 4); of dx (n, c, h, w), of dw (k, c, r, s).
    got : the outputs, float64, shape (M,).
    expected : the correct outputs, float64, shape (M,).
    wrong : which outputs are incorrect; those that were never written are.
    unwritten : which outputs were never written.
    allowed : the error of an output may be `allowed * (rms + |expected|)`.
    rms : the root mean square of the correct outputs.
    whole : whether these are all outputs, in memory order.
    expected_at : returns the correct outputs at other positions (L, 4).
    bias : the bias, shape (K,); or None.
    x, w : the inputs, float64, in torch's order of dimensions; None if they are too large. Of a data
        gradient they are dy and w; of a weight gradient x and dy.
    x_order, w_order : the dimensions of x and w in their order in memory.
    usual : whether the inputs are ordinary numbers: not inf, NaN, huge, tiny or all 0.
    """

    problem: Problem
    precision: str
    where: np.ndarray
    got: np.ndarray
    expected: np.ndarray
    wrong: np.ndarray
    unwritten: np.ndarray
    allowed: float
    rms: float
    whole: bool
    expected_at: Callable[[np.ndarray], np.ndarray]
    bias: np.ndarray | None = None
    x: np.ndarray | None = None
    w: np.ndarray | None = None
    x_order: tuple[int, ...] = (0, 1, 2, 3)
    w_order: tuple[int, ...] = (0, 1, 2, 3)
    usual: bool = True

    def near(self, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return which of some values would be correct if `expected` were the correct values."""
        return np.abs(got - expected) <= self.allowed * (self.rms + np.abs(expected))
