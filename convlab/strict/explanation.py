"""Explain incorrect outputs: compute them again with one mistake, and compare.

Each `Hypothesis` is a mistake that kernels often have, such as "the dilation is ignored". It predicts
the outputs of a kernel with this mistake, in float64. If the kernel's outputs agree with the
prediction, the hypothesis explains them. The functions are pure, and need numpy only.

An output is a sum of products, plus a bias. So a mistake is other indices in each product
(`with_indices`), products that are left out (`with_factors`), or a correct value at another place of
the output (`moved`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ..core.correctness.evidence import Evidence

# A hypothesis is first tried on this many incorrect outputs.
_TRIED = 6
# At most this many products are computed to try a hypothesis, and to compare outputs with it.
_MOST_TRIED = 60_000
_MOST_PRODUCTS = 4_000_000
# At most this many incorrect outputs, and this many correct ones, are compared with a prediction.
_MOST_COMPARED = 1 << 16
# With a looser bound than this, single outputs may agree by chance.
_SHARP = 1e-3
# At least this many outputs must agree: with a sharp bound, and with a loose one.
_FEWEST = (2, 6)

Indices = SimpleNamespace
Predict = Callable[["Sums", np.ndarray], np.ndarray]
# What a mistake changes in the indices of the products.
Change = Callable[["Sums", Indices], None]


@dataclass(frozen=True)
class Hypothesis:
    """A mistake in words, and the outputs that a kernel with this mistake computes.

    Attributes
    ----------
    text : a sentence without the count, such as "as if the stride were 1".
    predict : returns the outputs at positions (M, 4); NaN where the mistake says nothing.
    """

    text: str
    predict: Predict


@dataclass(frozen=True)
class Explanation:
    """A hypothesis that agrees with incorrect outputs.

    Attributes
    ----------
    text : the sentence of the hypothesis.
    explained, compared : how many of the compared incorrect outputs agree.
    whole : whether all incorrect outputs were compared.
    everywhere : whether it agrees with the correct outputs too, so with all of y.
    """

    text: str
    explained: int
    compared: int
    whole: bool
    everywhere: bool

    @property
    def complete(self) -> bool:
        """Whether all compared incorrect outputs agree."""
        return self.explained == self.compared


def explained_by(some: Iterator[Hypothesis], sums: "Sums", bad: np.ndarray) -> list[Explanation]:
    """Return those of some hypotheses that explain most of the incorrect outputs.

    Hypotheses that agree with all of y come before those that agree with the incorrect outputs only,
    and these before those that agree with at least half of the incorrect outputs. Only the best of
    these three classes is returned.
    """
    evidence = sums.evidence
    # A few incorrect outputs, from the first to the last.
    most = max(2, min(_TRIED, _MOST_TRIED // sums.per_output))
    tried = bad[np.unique(np.linspace(0, len(bad) - 1, most).astype(int))]
    where = evidence.where[tried]
    found = []
    for hypothesis in some:
        hits = _hits(sums, hypothesis, tried, where)
        if 2 * hits.sum() >= len(tried):
            explanation = _compare(evidence, sums, hypothesis, bad)
            if explanation is not None:
                found.append(explanation)
    for is_best in (
        lambda each: each.complete and each.everywhere,
        lambda each: each.complete,
        lambda each: True,
    ):
        if best := [each for each in found if is_best(each)]:
            return sorted(best, key=lambda each: -each.explained)
    return []


def _hits(sums: "Sums", hypothesis: Hypothesis, which: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return which of some outputs, with their positions `where`, agree with a hypothesis."""
    e = sums.evidence
    if not len(which):
        return np.zeros(0, dtype=bool)
    predicted = hypothesis.predict(sums, where)
    if e.problem.relu:
        predicted = np.maximum(predicted, 0)
    # A comparison with NaN is false.
    return e.near(e.got[which], predicted)


def _compare(
    e: Evidence, sums: "Sums", hypothesis: Hypothesis, bad: np.ndarray
) -> Explanation | None:
    """Return how many outputs a hypothesis explains; None if they are too few."""
    most = max(_TRIED, min(_MOST_COMPARED, _MOST_PRODUCTS // sums.per_output))
    compared = _spread(bad, most)
    explained = int(_hits(sums, hypothesis, compared, e.where[compared]).sum())
    fewest = _FEWEST[e.allowed > _SHARP]
    if explained < fewest or 2 * explained < len(compared):
        return None
    good = _spread(np.flatnonzero(~e.wrong), most)
    everywhere = bool(_hits(sums, hypothesis, good, e.where[good]).all())
    whole = len(compared) == len(bad)
    return Explanation(hypothesis.text, explained, len(compared), whole, everywhere)


def _spread(indices: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` of the indices, evenly spread."""
    return indices[:: -(-len(indices) // most)] if len(indices) > most else indices


class Sums:
    """Compute sums of products at some outputs, with given indices.

    Attributes
    ----------
    evidence, problem : the outputs of a run, and their problem.
    first, second : the inputs, in float64: x and w; of a gradient dy and w, or x and dy.
    shape : the shape of the products of an output.
    per_output : how many products an output may have.
    """

    def __init__(self, evidence: Evidence, shape: tuple[int, int, int]) -> None:
        self.evidence = evidence
        self.problem = evidence.problem
        self.first = evidence.x
        self.second = evidence.w
        self.shape = shape
        self.per_output = math.prod(shape)
        self._kept: tuple[np.ndarray, np.ndarray] | None = None

    def indices(self, where: np.ndarray) -> Indices:
        """Return the correct indices of all products, in arrays that broadcast to (M, *shape)."""
        raise NotImplementedError

    def place(self, i: Indices, stride: tuple, padding: tuple, dilation: tuple) -> None:
        """Set the pixels that meet from these parameters."""
        raise NotImplementedError

    def products(self, i: Indices) -> np.ndarray:
        """Return the products at these indices; 0 in the padding, NaN outside of a tensor."""
        raise NotImplementedError

    def correct_products(self, where: np.ndarray) -> np.ndarray:
        """Return the products of the correct sums, (M, *shape); those of the last call are kept."""
        if self._kept is None or self._kept[0] is not where:
            products = self.products(self.indices(where))
            self._kept = where, np.broadcast_to(products, (len(where), *self.shape))
        return self._kept[1]

    def outputs(self, products: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Return the outputs at positions (M, 4) that these products, (M, *shape), add up to."""
        return products.reshape(len(where), -1).sum(axis=1)


def element_at(
    tensor: np.ndarray, index: tuple[np.ndarray, ...], wanted: object = True
) -> np.ndarray:
    """Return elements of a tensor: 0 where they are not wanted, NaN where they do not exist."""
    exists = True
    clipped = []
    for each, size in zip(index, tensor.shape, strict=True):
        exists = exists & (each >= 0) & (each < size)
        clipped.append(np.clip(each, 0, size - 1))
    values = tensor[tuple(clipped)]
    return np.where(wanted, np.where(exists, values, np.nan), 0.0)


def with_indices(change: Change) -> Predict:
    """Return the prediction of a kernel with changed indices of the two inputs."""

    def predict(sums: Sums, where: np.ndarray) -> np.ndarray:
        i = sums.indices(where)
        change(sums, i)
        products = np.broadcast_to(sums.products(i), (len(where), *sums.shape))
        return sums.outputs(products, where)

    return predict


def with_factors(text: str, factors: np.ndarray) -> Hypothesis:
    """Return the hypothesis that each product is added so many times."""

    def predict(sums: Sums, where: np.ndarray) -> np.ndarray:
        return sums.outputs(sums.correct_products(where) * factors, where)

    return Hypothesis(text, predict)


def moved(text: str, source: Callable[[np.ndarray], np.ndarray]) -> Hypothesis:
    """Return the hypothesis that outputs hold the correct values of other positions."""

    def predict(sums: Sums, where: np.ndarray) -> np.ndarray:
        return _expected(sums.evidence, source(where))

    return Hypothesis(text, predict)


def with_axis(where: np.ndarray, axis: int, values: np.ndarray) -> np.ndarray:
    """Return positions with other values of one axis."""
    changed = where.copy()
    changed[:, axis] = values
    return changed


def _expected(e: Evidence, positions: np.ndarray) -> np.ndarray:
    """Return the correct values of positions; NaN outside of y."""
    exists = ((positions >= 0) & (positions < e.problem.output_shape)).all(axis=1)
    values = np.full(len(positions), np.nan)
    if exists.any():
        values[exists] = e.expected_at(positions[exists])
    return values
