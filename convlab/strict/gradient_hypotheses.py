"""Explain incorrect gradients: compute them again with one mistake, and compare.

This is `forward_hypotheses.py` for the other two sums of a convolution. An element of dx is a sum over filters
and taps: dy[n, k, p, q] * w[k, c, r, s] for the p with ``p * stride == h + pad - r * dilation``. An
element of dw is a sum over images and pixels: x[n, c, h, w] * dy[n, k, p, q].

Mistakes are other indices in a product, products that are left out, and correct values at another
place of the gradient.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ..core.correctness.evidence import Evidence
from ..core.problem.computation import DATA_GRADIENT
from ..core.problem.problem import Problem
from .explanation import (
    Change,
    Explanation,
    Hypothesis,
    Indices,
    Sums,
    element_at,
    explained_by,
    moved,
    with_factors,
    with_indices,
)
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
    reread_index,
    reread_x,
)

# A gradient whose elements have more products is not explained: that would take seconds.
_MOST_PRODUCTS = 250_000
# Into so many ranges of pixels a weight gradient may be split.
_SPLITS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64)
# Multiples that the length of a range may be rounded up to.
_STAGED = (1, 8, 16, 32)


def explain_gradient(evidence: Evidence, bad: np.ndarray) -> list[Explanation]:
    """Return the hypotheses that explain most of the incorrect elements `bad`, the simplest first."""
    if evidence.x is None or not len(bad):
        return []
    is_data = evidence.problem.computes == DATA_GRADIENT.name
    sums = DataSums(evidence) if is_data else WeightSums(evidence)
    if not 0 < sums.per_output <= _MOST_PRODUCTS:
        return []
    return explained_by(_hypotheses(sums), sums, bad)


class DataSums(Sums):
    """The sums of a data gradient: products of dy and w, (M, K/groups, R, S)."""

    def __init__(self, evidence: Evidence) -> None:
        problem = evidence.problem
        super().__init__(evidence, (problem.K // problem.groups, problem.R, problem.S))

    def indices(self, where: np.ndarray) -> Indices:
        problem = self.problem
        n, c, h, w = (where[:, axis].reshape(-1, 1, 1, 1).astype(np.int64) for axis in range(4))
        filters, R, S = self.shape
        channels = problem.C // problem.groups
        j = np.arange(filters).reshape(1, -1, 1, 1)
        r = np.arange(R).reshape(1, 1, -1, 1)
        s = np.arange(S).reshape(1, 1, 1, -1)
        group = c // channels
        i = Indices(n=n, c=c, h=h, w=w, j=j, r=r, s=s, group=group, k=group * filters + j)
        vars(i).update(k_of_w=i.k, c_of_w=c % channels, r_of_w=r, s_of_w=s)
        self.place(i, problem.stride, problem.padding, problem.dilation)
        return i

    def place(self, i: Indices, stride: tuple, padding: tuple, dilation: tuple) -> None:
        row = i.h + padding[0] - i.r * dilation[0]
        column = i.w + padding[1] - i.s * dilation[1]
        i.p = row // stride[0]
        i.q = column // stride[1]
        i.exact = (row % stride[0] == 0) & (column % stride[1] == 0)

    def products(self, i: Indices) -> np.ndarray:
        problem = self.problem
        inside = (i.p >= 0) & (i.p < problem.P) & (i.q >= 0) & (i.q < problem.Q) & i.exact
        dy = element_at(self.first, (i.n, i.k, i.p, i.q), inside)
        return dy * element_at(self.second, (i.k_of_w, i.c_of_w, i.r_of_w, i.s_of_w))


class WeightSums(Sums):
    """The sums of a weight gradient: products of x and dy, (M, N, P, Q)."""

    def __init__(self, evidence: Evidence) -> None:
        problem = evidence.problem
        super().__init__(evidence, (problem.N, problem.P, problem.Q))

    def indices(self, where: np.ndarray) -> Indices:
        problem = self.problem
        k, c, r, s = (where[:, axis].reshape(-1, 1, 1, 1).astype(np.int64) for axis in range(4))
        N, P, Q = self.shape
        n = np.arange(N).reshape(1, -1, 1, 1)
        p = np.arange(P).reshape(1, 1, -1, 1)
        q = np.arange(Q).reshape(1, 1, 1, -1)
        channels = problem.C // problem.groups
        group = k // (problem.K // problem.groups)
        i = Indices(k=k, c=c, r=r, s=s, n=n, p=p, q=q, group=group, channel=group * channels + c)
        vars(i).update(n_of_dy=n, k_of_dy=k, p_of_dy=p, q_of_dy=q)
        self.place(i, problem.stride, problem.padding, problem.dilation)
        return i

    def place(self, i: Indices, stride: tuple, padding: tuple, dilation: tuple) -> None:
        i.row = i.p * stride[0] - padding[0] + i.r * dilation[0]
        i.column = i.q * stride[1] - padding[1] + i.s * dilation[1]

    def products(self, i: Indices) -> np.ndarray:
        problem = self.problem
        inside = (i.row >= 0) & (i.row < problem.H) & (i.column >= 0) & (i.column < problem.W)
        x = element_at(self.first, (i.n, i.channel, i.row, i.column), inside)
        return x * element_at(self.second, (i.n_of_dy, i.k_of_dy, i.p_of_dy, i.q_of_dy))


def _hypotheses(sums: Sums) -> Iterator[Hypothesis]:
    """Yield the hypotheses that may differ from a correct kernel on this problem, simplest first."""
    yield from of_parameters(sums.problem)
    if isinstance(sums, DataSums):
        yield from _of_data_indices(sums.problem)
        yield from _of_data_products(sums)
    else:
        yield from _of_weight_indices(sums.problem)
        yield from _of_weight_products(sums)
        yield from _of_turned_places(sums.problem)
    yield from of_places(sums.problem)
    yield from of_memory(_inputs(sums))


# Both gradients -------------------------------------------------------------------------------------


def _changed(text: str, change: Change) -> Hypothesis:
    return Hypothesis(text, with_indices(change))


def _of_tiles(index: np.ndarray, nouns: str) -> Iterator[Hypothesis]:
    """Yield hypotheses on the tiles of an index of the products, which counts from 0."""
    size = int(index.max()) + 1
    for tile in TILES:
        rest = size % tile
        if rest > 1 and size > tile:
            text = f"the {nouns} past the last whole tile of {tile} are left out"
            yield with_factors(text, index < size - rest)
        if size >= 2 * tile:
            yield with_factors(f"only the first {tile} {nouns} are added", index < tile)


def _inputs(sums: Sums) -> tuple[tuple[str, str, tuple[int, ...], Callable], ...]:
    """Return the two inputs as `of_memory` takes them."""
    e = sums.evidence
    if isinstance(sums, DataSums):
        return (
            ("the filter", "KCRS", e.w_order, reread_filter),
            ("dy", "NKPQ", e.x_order, _reread_k),
        )
    return ("x", "NCHW", e.x_order, reread_x), ("dy", "NKPQ", e.w_order, _reread_dy)


def _reread_k(sums: Sums, i: Indices, order: tuple[int, ...]) -> None:
    """Read dy of a data gradient in another order; products that do not exist stay 0."""
    problem = sums.problem
    i.exact = i.exact & (i.p >= 0) & (i.p < problem.P) & (i.q >= 0) & (i.q < problem.Q)
    p = np.clip(i.p, 0, problem.P - 1)
    q = np.clip(i.q, 0, problem.Q - 1)
    found = reread_index((i.n, i.k, p, q), sums.first.shape, order, sums.evidence.x_order)
    i.n, i.k, i.p, i.q = found


def _reread_dy(sums: Sums, i: Indices, order: tuple[int, ...]) -> None:
    index = (i.n_of_dy, i.k_of_dy, i.p_of_dy, i.q_of_dy)
    found = reread_index(index, sums.second.shape, order, sums.evidence.w_order)
    i.n_of_dy, i.k_of_dy, i.p_of_dy, i.q_of_dy = found


# The data gradient ----------------------------------------------------------------------------------


def _of_data_indices(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on remainders, groups and the filter of a data gradient."""
    R = problem.R
    S = problem.S
    if max(problem.stride) > 1:
        yield _changed(
            "the remainder of the division by the stride is not tested",
            lambda sums, i: vars(i).update(exact=True),
        )
    if R > 1 and S > 1:
        yield _changed(
            "the filter is turned by 180 degrees once too often, or once too few",
            lambda sums, i: vars(i).update(r_of_w=R - 1 - i.r, s_of_w=S - 1 - i.s),
        )
        yield _changed("R and S of the filter are exchanged (a transposed filter)", exchange_taps)
    if R > 1:
        yield _changed(
            "the filter is flipped in R", lambda sums, i: vars(i).update(r_of_w=R - 1 - i.r)
        )
    if S > 1:
        yield _changed(
            "the filter is flipped in S", lambda sums, i: vars(i).update(s_of_w=S - 1 - i.s)
        )
    yield _changed(
        "C and K of the filter are exchanged: it is read as if its order in memory were CKRS",
        _exchange_channels,
    )
    if R * S > 1 or max(problem.padding) > 0:
        yield _changed(
            "dy outside of its columns is not 0, but that of the neighbouring row",
            _no_end_of_rows,
        )
        yield _changed("dy outside of its image is not 0, but repeats its border", _repeat_dy)
    if problem.groups > 1:
        yield from _of_data_groups(problem)
    if problem.K // problem.groups > 1:
        yield _changed(
            "each product has filter 0 of dy's channels",
            lambda sums, i: vars(i).update(k=i.k - i.j),
        )
        yield _changed(
            "each product has filter 0", lambda sums, i: vars(i).update(k_of_w=i.k_of_w - i.j)
        )
    if problem.N > 1:
        yield _changed(
            "each element is computed from image 0", lambda sums, i: vars(i).update(n=0 * i.n)
        )


def _exchange_channels(sums: Sums, i: Indices) -> None:
    """Read the group's filters, (K/groups, C/groups) in memory, as (C/groups, K/groups)."""
    filters = sums.shape[0]
    channels = sums.problem.C // sums.problem.groups
    flat = i.c_of_w * filters + i.j
    i.k_of_w = i.group * filters + flat // channels
    i.c_of_w = flat % channels


def _no_end_of_rows(sums: Sums, i: Indices) -> None:
    """Read dy without a test of the column: the next or the previous row follows."""
    Q = sums.problem.Q
    flat = i.p * Q + i.q
    i.exact = i.exact & (i.p >= 0) & (i.p < sums.problem.P)
    i.p = flat // Q
    i.q = flat % Q


def _repeat_dy(sums: Sums, i: Indices) -> None:
    """Clamp the row and the column to dy."""
    i.p = np.clip(i.p, 0, sums.problem.P - 1)
    i.q = np.clip(i.q, 0, sums.problem.Q - 1)


def _of_data_groups(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on the groups of a data gradient."""
    filters = problem.K // problem.groups
    yield _changed(
        "every group reads dy's channels of group 0 (the groups are ignored)",
        lambda sums, i: vars(i).update(k=i.j + 0 * i.k),
    )
    yield _changed(
        "every group uses the filters of group 0",
        lambda sums, i: vars(i).update(k_of_w=i.j + 0 * i.k_of_w),
    )

    def by_remainder(sums: Sums, i: Indices) -> None:
        i.k = i.c % problem.groups * filters + i.j
        i.k_of_w = i.k
        i.c_of_w = i.c // problem.groups

    yield _changed("the group is c % groups, not c / (C / groups)", by_remainder)

    def interleaved(sums: Sums, i: Indices) -> None:
        i.k = i.j * problem.groups + i.group
        i.k_of_w = i.k

    yield _changed("a group's filters are j * groups + group, not neighbours", interleaved)


def _of_data_products(sums: DataSums) -> Iterator[Hypothesis]:
    """Yield hypotheses on filters and taps that are left out or added twice."""
    yield from of_ends(sums.shape, ("filter", "row of the filter", "column of the filter"))
    yield from _of_tiles(np.arange(sums.shape[0]).reshape(-1, 1, 1), "filters")


# The weight gradient --------------------------------------------------------------------------------


def _of_weight_indices(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on the padding, the groups and the images of a weight gradient."""
    if max(problem.padding) > 0:
        yield _changed(
            "the columns of the padding are not 0, but those of the neighbouring row",
            no_border_columns,
        )
        yield _changed("the padding is not 0, but repeats the image's border", repeat_border)
    channels = problem.C // problem.groups
    if problem.groups > 1:
        yield _changed(
            "every group reads the channels of group 0 (the groups are ignored)",
            lambda sums, i: vars(i).update(channel=i.c),
        )
        yield _changed(
            "the group is k % groups, not k / (K / groups)",
            lambda sums, i: vars(i).update(channel=i.k % problem.groups * channels + i.c),
        )
        yield _changed(
            "a group's channels are c * groups + group, not neighbours",
            lambda sums, i: vars(i).update(channel=i.c * problem.groups + i.group),
        )
    if problem.N > 1:
        yield _changed("each product has image 0 of x", lambda sums, i: vars(i).update(n=0 * i.n))
        yield _changed(
            "each product has image 0 of dy", lambda sums, i: vars(i).update(n_of_dy=0 * i.n_of_dy)
        )
    yield _changed("P and Q of dy are exchanged (a transposed image)", _exchange_pixels)


def _exchange_pixels(sums: Sums, i: Indices) -> None:
    """Read the P x Q pixels of dy in memory as Q x P."""
    flat = i.q * sums.problem.P + i.p
    i.p_of_dy = flat // sums.problem.Q
    i.q_of_dy = flat % sums.problem.Q


def _of_weight_products(sums: WeightSums) -> Iterator[Hypothesis]:
    """Yield hypotheses on images, pixels, tiles and ranges that are left out or added twice."""
    yield from of_ends(sums.shape, ("image", "row of dy", "column of dy"))
    yield with_factors("the last pixel of dy is left out", _not_last(sums.shape))
    pixels = np.arange(sums.per_output).reshape(sums.shape)
    N, P, Q = sums.shape
    if N * P > 1:
        yield from _of_tiles(np.arange(Q).reshape(1, 1, -1), "columns of dy")
    if N > 1 and P > 1:
        yield from _of_tiles(np.arange(P * Q).reshape(1, P, Q), "pixels of each image")
    yield from _of_tiles(pixels, "pixels of all images")
    images = np.arange(N).reshape(-1, 1, 1)
    for index, nouns in ((images, "images"), (pixels, "pixels")):
        yield from _of_ranges(index, nouns)


def _of_ranges(index: np.ndarray, nouns: str) -> Iterator[Hypothesis]:
    """Yield hypotheses on equal ranges of an index, of which a kernel adds some only."""
    size = index.size
    tried = set()
    # A range may be a multiple of the pixels that a block stages at a time.
    for unit, count in itertools.product(_STAGED, _SPLITS):
        each = -(-size // (count * unit)) * unit
        # With few elements some numbers of ranges do not exist.
        if -(-size // each) != count or (count, each) in tried:
            continue
        tried.add((count, each))
        of = f"of {count} ranges of {nouns}"
        yield with_factors(f"the last {of} is left out", index < (count - 1) * each)
        yield with_factors(f"only the first {of} is added", index < each)


def _not_last(shape: tuple[int, int, int]) -> np.ndarray:
    """Return 1 for each pixel of an image but the last one."""
    factors = np.ones((1, *shape[1:]))
    factors[0, -1, -1] = 0
    return factors


def _of_turned_places(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on weights that are stored at another tap, or for other channels."""
    R = problem.R
    S = problem.S
    both = (R > 1) & (S > 1)
    for axes, text in (
        ((2, 3) if both else (), "dw is turned by 180 degrees"),
        ((2,) if R > 1 else (), "dw is flipped in R"),
        ((3,) if S > 1 else (), "dw is flipped in S"),
    ):
        if axes:
            yield moved(text, lambda at, axes=axes: _flipped(at, axes, problem))


def _flipped(where: np.ndarray, axes: tuple[int, ...], problem: Problem) -> np.ndarray:
    """Return the positions of the mirrored taps."""
    changed = where.copy()
    for axis in axes:
        changed[:, axis] = problem.output_shape[axis] - 1 - where[:, axis]
    return changed
