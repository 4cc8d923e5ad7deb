"""Hypotheses on incorrect outputs of a forward convolution.

There are four families: other indices of x and w in each product (`_of_indices`), products that are
left out (`_of_products`), another index of the bias (`_of_bias`), and a correct value at another place
of y (`of_places`, `of_fragments`).
"""

from collections.abc import Callable, Iterator

import numpy as np

from ..core.correctness.evidence import Evidence
from ..core.problem.problem import Problem
from .explanation import (
    Change,
    Explanation,
    Hypothesis,
    Indices,
    Predict,
    Sums,
    element_at,
    explained_by,
    with_factors,
    with_indices,
)
from .fragment_hypotheses import of_fragments
from .shared_hypotheses import (
    TILES,
    exchange_taps,
    no_border_columns,
    of_ends,
    of_memory,
    of_parameters,
    of_places,
    repeat_border,
    reread_filter,
    reread_x,
)


def explain(evidence: Evidence, bad: np.ndarray) -> list[Explanation]:
    """Return the hypotheses that explain most of the incorrect outputs `bad`, the simplest first.

    The outputs are those of a forward convolution. `gradient_hypotheses.py` has the gradients.
    """
    if evidence.x is None or not len(bad):
        return []
    return explained_by(_hypotheses(evidence), ForwardSums(evidence), bad)


class ForwardSums(Sums):
    """The sums of a convolution: products of x and w, (M, C/groups, R, S), and the bias."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence, evidence.problem.w_shape[1:])

    def indices(self, where: np.ndarray) -> Indices:
        problem = self.problem
        n, k, p, q = (where[:, axis].reshape(-1, 1, 1, 1).astype(np.int64) for axis in range(4))
        channels = problem.C // problem.groups
        c = np.arange(channels).reshape(1, -1, 1, 1)
        r = np.arange(problem.R).reshape(1, 1, -1, 1)
        s = np.arange(problem.S).reshape(1, 1, 1, -1)
        group = k // (problem.K // problem.groups)
        i = Indices(n=n, k=k, p=p, q=q, c=c, r=r, s=s, group=group, channel=group * channels + c)
        vars(i).update(k_of_w=k, c_of_w=c, r_of_w=r, s_of_w=s)
        self.place(i, problem.stride, problem.padding, problem.dilation)
        return i

    def place(self, i: Indices, stride: tuple, padding: tuple, dilation: tuple) -> None:
        i.row = i.p * stride[0] - padding[0] + i.r * dilation[0]
        i.column = i.q * stride[1] - padding[1] + i.s * dilation[1]

    def products(self, i: Indices) -> np.ndarray:
        problem = self.problem
        inside = (i.row >= 0) & (i.row < problem.H) & (i.column >= 0) & (i.column < problem.W)
        x = element_at(self.first, (i.n, i.channel, i.row, i.column), inside)
        w = element_at(self.second, (i.k_of_w, i.c_of_w, i.r_of_w, i.s_of_w))
        return x * w

    def outputs(self, products: np.ndarray, where: np.ndarray) -> np.ndarray:
        return super().outputs(products, where) + self.bias(where[:, 1])

    def bias(self, index: np.ndarray) -> np.ndarray:
        """Return the bias at these indices: 0 without a bias, NaN outside of it."""
        bias = self.evidence.bias
        if bias is None:
            return np.zeros(len(index))
        return element_at(bias, (index,))


def _hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    """Yield the hypotheses that may differ from a correct kernel on this problem, simplest first."""
    problem = evidence.problem
    yield from of_parameters(problem)
    yield from _of_indices(problem)
    yield from _of_bias(problem)
    yield from _of_products(problem)
    yield from of_places(problem)
    inputs = (
        ("the filter", "KCRS", evidence.w_order, reread_filter),
        ("x", "NCHW", evidence.x_order, reread_x),
    )
    yield from of_memory(inputs)
    yield from of_fragments(problem)


def _of_indices(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on groups, a flipped filter, and elements that a kernel confuses."""
    R = problem.R
    S = problem.S
    channels = problem.C // problem.groups
    if problem.groups > 1:
        for text, change in _GROUPS.items():
            yield Hypothesis(text, with_indices(change))
    if R > 1 and S > 1:
        yield Hypothesis(
            "the filter is flipped in both dimensions (a true convolution)",
            with_indices(lambda sums, i: vars(i).update(r_of_w=R - 1 - i.r, s_of_w=S - 1 - i.s)),
        )
        yield Hypothesis(
            "R and S of the filter are exchanged (a transposed filter)",
            with_indices(exchange_taps),
        )
    if R > 1:
        yield Hypothesis(
            "the filter is flipped in R",
            with_indices(lambda sums, i: vars(i).update(r_of_w=R - 1 - i.r)),
        )
    if S > 1:
        yield Hypothesis(
            "the filter is flipped in S",
            with_indices(lambda sums, i: vars(i).update(s_of_w=S - 1 - i.s)),
        )
    if max(problem.padding) > 0 or R * S > 1:
        yield Hypothesis(
            "the columns of the padding are not 0, but those of the neighbouring row",
            with_indices(no_border_columns),
        )
        yield Hypothesis(
            "the padding is not 0, but repeats the image's border",
            with_indices(repeat_border),
        )
    if channels > 1:
        yield Hypothesis(
            "each product has channel 0 of x",
            with_indices(lambda sums, i: vars(i).update(channel=i.channel - i.c)),
        )
        yield Hypothesis(
            "each product has channel 0 of the filter",
            with_indices(lambda sums, i: vars(i).update(c_of_w=0 * i.c)),
        )
    if problem.N > 1:
        yield Hypothesis(
            "each output is computed from image 0",
            with_indices(lambda sums, i: vars(i).update(n=0 * i.n)),
        )


def _first_group(sums: Sums, i: Indices) -> None:
    i.channel = i.c + 0 * i.channel


def _group_by_remainder(sums: Sums, i: Indices) -> None:
    problem = sums.problem
    i.channel = i.k % problem.groups * (problem.C // problem.groups) + i.c


def _interleaved_channels(sums: Sums, i: Indices) -> None:
    i.channel = i.c * sums.problem.groups + i.group


def _group_by_channels(sums: Sums, i: Indices) -> None:
    problem = sums.problem
    channels = problem.C // problem.groups
    i.channel = i.k // channels * channels + i.c


def _filter_of_the_group(sums: Sums, i: Indices) -> None:
    problem = sums.problem
    i.k_of_w = i.k % (problem.K // problem.groups)


_GROUPS: dict[str, Change] = {
    "every group reads the channels of group 0 (the groups are ignored)": _first_group,
    "the group is k % groups, not k / (K / groups)": _group_by_remainder,
    "a group's channels are c * groups + group, not neighbours": _interleaved_channels,
    "the group is k / (C / groups), not k / (K / groups)": _group_by_channels,
    "every group uses the filters of group 0": _filter_of_the_group,
}


# Another bias ---------------------------------------------------------------------------------------


def _of_bias(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on the index of the bias."""
    if not problem.bias or problem.K == 1:
        return
    per_group = problem.K // problem.groups
    indices: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "0 for every k": lambda at: 0 * at[:, 1],
        "k + 1": lambda at: at[:, 1] + 1,
        "k - 1": lambda at: at[:, 1] - 1,
        "K - 1 - k": lambda at: problem.K - 1 - at[:, 1],
        "n": lambda at: at[:, 0],
        "p": lambda at: at[:, 2],
        "q": lambda at: at[:, 3],
        "p*Q + q": lambda at: at[:, 2] * problem.Q + at[:, 3],
    }
    if problem.groups > 1:
        indices["the group (k / (K/groups))"] = lambda at: at[:, 1] // per_group
        indices["k % (K/groups)"] = lambda at: at[:, 1] % per_group
    for tile in TILES:
        if tile < problem.K:
            indices[f"k % {tile}"] = lambda at, tile=tile: at[:, 1] % tile
            indices[f"k / {tile}"] = lambda at, tile=tile: at[:, 1] // tile
    for index, of in indices.items():
        yield Hypothesis(f"the bias is read at index {index}", _with_bias(of))


def _with_bias(index: Callable[[np.ndarray], np.ndarray]) -> Predict:
    """Return the prediction with the bias at another index."""

    def predict(sums: ForwardSums, where: np.ndarray) -> np.ndarray:
        products = sums.correct_products(where).reshape(len(where), -1)
        return products.sum(axis=1) + sums.bias(index(where))

    return predict


# Products that are left out -------------------------------------------------------------------------


def _of_products(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on channels, taps and tiles of products that are left out or added twice."""
    channels = problem.C // problem.groups
    sizes = (channels, problem.R, problem.S)
    yield from of_ends(sizes, ("channel", "row of the filter", "column of the filter"))
    gemm_k = problem.gemm_k
    in_order = np.arange(gemm_k).reshape(sizes)
    channels_last = np.arange(gemm_k).reshape(problem.R, problem.S, channels).transpose(2, 0, 1)
    c = np.arange(channels).reshape(-1, 1, 1)
    for tile in TILES:
        rest = channels % tile
        if rest > 1 and channels > tile:
            text = f"the channels past the last whole tile of {tile} are left out"
            yield with_factors(text, c < channels - rest)
        if channels >= 2 * tile:
            yield with_factors(f"only the first {tile} channels are added", c < tile)
        rest = gemm_k % tile
        if gemm_k <= tile or channels == gemm_k:
            continue
        for index, order in ((in_order, "c, r, s"), (channels_last, "r, s, c")):
            if rest:
                text = f"the products past the last whole tile of {tile} are left out"
                yield with_factors(f"{text}, in the order ({order})", index < gemm_k - rest)
            if gemm_k >= 2 * tile:
                text = f"only the first {tile} products are added"
                yield with_factors(f"{text}, in the order ({order})", index < tile)
