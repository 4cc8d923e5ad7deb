"""Explain incorrect outputs: compute them again with one mistake, and compare.

Each `Hypothesis` is a mistake that kernels often have, such as "the dilation is ignored". It predicts
the outputs of a kernel with this mistake, in float64. If the kernel's outputs agree with the
prediction, the hypothesis explains them. The functions are pure, and need numpy only.

An output is a sum of products, plus a bias. So there are four families: other indices of x and w in
each product (`_of_indices`), products that are left out (`_of_products`), another index of the bias
(`_of_bias`), and a correct value at another place of y (`of_places`).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ..core.correctness.evidence import Evidence
from ..core.problem.problem import Problem

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
# The sizes of tiles in hypotheses.
TILES = (4, 8, 16, 32, 64, 128)

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


def explain(evidence: Evidence, bad: np.ndarray) -> list[Explanation]:
    """Return the hypotheses that explain most of the incorrect outputs `bad`, the simplest first.

    The outputs are those of a forward convolution. `gradient_hypotheses.py` has the gradients.
    """
    if evidence.x is None or not len(bad):
        return []
    return explained_by(hypotheses(evidence), ForwardSums(evidence), bad)


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


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
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
    yield from _of_fragments(problem)


# Other parameters -----------------------------------------------------------------------------------


def of_parameters(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on a stride, dilation or padding that the kernel ignores or changes."""
    for name, least in (("stride", 1), ("dilation", 1), ("padding", 0)):
        correct = getattr(problem, name)
        for text, pair in _other_pairs(name, correct, least):
            if pair != correct and min(pair) >= least:
                yield Hypothesis(text, _with_parameter(name, pair))


def _other_pairs(
    name: str, correct: tuple[int, int], least: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield pairs that a kernel may use in place of the correct one, with the words for it."""
    h, w = correct
    short = {"padding": "pad"}.get(name, name)
    yield f"as if the {name} were {least} (it is ignored)", (least, least)
    yield f"as if {short}_h were {least} (it is ignored)", (least, w)
    yield f"as if {short}_w were {least} (it is ignored)", (h, least)
    yield f"as if {short}_h were used for both dimensions", (h, h)
    yield f"as if {short}_w were used for both dimensions", (w, w)
    yield f"as if {short}_h and {short}_w were exchanged", (w, h)
    if name == "padding":
        for by, words in ((-1, "one less"), (1, "one more")):
            yield f"as if the padding were {words} than it is", (h + by, w + by)
            yield f"as if pad_h were {words} than it is", (h + by, w)
            yield f"as if pad_w were {words} than it is", (h, w + by)


def _with_parameter(name: str, pair: tuple[int, int]) -> Predict:
    """Return the prediction with another stride, dilation or padding."""

    def change(sums: Sums, i: Indices) -> None:
        problem = sums.problem
        values = {key: getattr(problem, key) for key in ("stride", "padding", "dilation")}
        sums.place(i, **(values | {name: pair}))

    return with_indices(change)


def with_indices(change: Change) -> Predict:
    """Return the prediction of a kernel with changed indices of the two inputs."""

    def predict(sums: Sums, where: np.ndarray) -> np.ndarray:
        i = sums.indices(where)
        change(sums, i)
        products = np.broadcast_to(sums.products(i), (len(where), *sums.shape))
        return sums.outputs(products, where)

    return predict


# Other indices --------------------------------------------------------------------------------------


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


def exchange_taps(sums: Sums, i: Indices) -> None:
    """Read the R x S taps of a filter in memory as S x R."""
    flat = i.s * sums.problem.R + i.r
    i.r_of_w = flat // sums.problem.S
    i.s_of_w = flat % sums.problem.S


def no_border_columns(sums: Sums, i: Indices) -> None:
    """Read x without a test of the column: the next or the previous row follows."""
    W = sums.problem.W
    flat = i.row * W + i.column
    in_rows = (i.row >= 0) & (i.row < sums.problem.H)
    i.row = np.where(in_rows, flat // W, -1)
    i.column = flat % W


def repeat_border(sums: Sums, i: Indices) -> None:
    """Clamp the row and the column to the image."""
    i.row = np.clip(i.row, 0, sums.problem.H - 1)
    i.column = np.clip(i.column, 0, sums.problem.W - 1)


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


def of_ends(sizes: tuple[int, int, int], nouns: tuple[str, str, str]) -> Iterator[Hypothesis]:
    """Yield hypotheses on the first and last values of each index of a sum, with their nouns."""
    for axis, (size, noun) in enumerate(zip(sizes, nouns, strict=True)):
        if size < 2:
            continue
        shape = [1, 1, 1]
        shape[axis] = size
        index = np.arange(size).reshape(shape)
        yield with_factors(f"the last {noun} is left out", index < size - 1)
        yield with_factors(f"the first {noun} is left out", index > 0)
        yield with_factors(f"the last {noun} is added twice", 1 + (index == size - 1))
        if size > 2:
            yield with_factors(f"only the first {noun} is added", index == 0)


def with_factors(text: str, factors: np.ndarray) -> Hypothesis:
    """Return the hypothesis that each product is added so many times."""

    def predict(sums: Sums, where: np.ndarray) -> np.ndarray:
        return sums.outputs(sums.correct_products(where) * factors, where)

    return Hypothesis(text, predict)


# Other places ---------------------------------------------------------------------------------------


def of_places(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on values of a neighbouring tile or image."""
    for axis, name in enumerate(problem.computation.letters):
        size = problem.output_shape[axis]
        if size < 2:
            continue
        text = f"each output has the value of {name} = 0"
        yield moved(text, lambda at, axis=axis: with_axis(at, axis, 0 * at[:, axis]))
        for tile in TILES:
            if tile >= size or axis == 0:
                continue
            for by, which in ((-tile, "before"), (tile, "after")):
                yield moved(
                    f"outputs have the value of the tile {which} them, {name} {by:+d}",
                    lambda at, axis=axis, by=by: with_axis(at, axis, at[:, axis] + by),
                )
            yield moved(
                f"outputs have the value of the first tile, {name} % {tile}",
                lambda at, axis=axis, tile=tile: with_axis(at, axis, at[:, axis] % tile),
            )


def with_axis(where: np.ndarray, axis: int, values: np.ndarray) -> np.ndarray:
    """Return positions with other values of one axis."""
    changed = where.copy()
    changed[:, axis] = values
    return changed


def moved(text: str, source: Callable[[np.ndarray], np.ndarray]) -> Hypothesis:
    """Return the hypothesis that outputs hold the correct values of other positions."""

    def predict(sums: Sums, where: np.ndarray) -> np.ndarray:
        return _expected(sums.evidence, source(where))

    return Hypothesis(text, predict)


def _expected(e: Evidence, positions: np.ndarray) -> np.ndarray:
    """Return the correct values of positions; NaN outside of y."""
    exists = ((positions >= 0) & (positions < e.problem.output_shape)).all(axis=1)
    values = np.full(len(positions), np.nan)
    if exists.any():
        values[exists] = e.expected_at(positions[exists])
    return values


# Other orders in memory -----------------------------------------------------------------------------


def of_memory(
    inputs: Iterable[tuple[str, str, tuple[int, ...], Callable]],
) -> Iterator[Hypothesis]:
    """Yield hypotheses on another order of dimensions in memory, of the two inputs.

    Each input has its name, the letters of its dimensions, their order in memory, and a function that
    changes the indices for another order.
    """
    for name, letters, right, reread in inputs:
        for order in ORDERS:
            if order != right:
                text = "".join(letters[axis] for axis in order)
                change = with_indices(functools.partial(reread, order=order))
                yield Hypothesis(f"{name} is read as if its order in memory were {text}", change)


ORDERS = tuple(itertools.permutations(range(4)))


def reread_filter(sums: Sums, i: Indices, order: tuple[int, ...]) -> None:
    """Read the filter in another order."""
    index = (i.k_of_w, i.c_of_w, i.r_of_w, i.s_of_w)
    found = reread_index(index, sums.second.shape, order, sums.evidence.w_order)
    i.k_of_w, i.c_of_w, i.r_of_w, i.s_of_w = found


def reread_x(sums: Sums, i: Indices, order: tuple[int, ...]) -> None:
    """Read x in another order; the padding stays 0."""
    problem = sums.problem
    inside = (i.row >= 0) & (i.row < problem.H) & (i.column >= 0) & (i.column < problem.W)
    row = np.clip(i.row, 0, problem.H - 1)
    column = np.clip(i.column, 0, problem.W - 1)
    found = reread_index(
        (i.n, i.channel, row, column), sums.first.shape, order, sums.evidence.x_order
    )
    i.n, i.channel, row, i.column = found
    i.row = np.where(inside, row, -1)


def reread_index(
    index: tuple[np.ndarray, ...],
    shape: tuple[int, ...],
    order: tuple[int, ...],
    in_memory: tuple[int, ...],
) -> tuple[np.ndarray, ...]:
    """Return the indices of the element that is read.

    The kernel computes the element's offset as if the dimensions were in this `order`; the tensor is
    stored in the order `in_memory`.
    """
    offset = 0
    for axis in order:
        offset = offset * shape[axis] + index[axis]
    found: dict[int, np.ndarray] = {}
    for axis in reversed(in_memory):
        found[axis] = offset % shape[axis]
        offset = offset // shape[axis]
    return tuple(found[axis] for axis in range(len(shape)))


# Fragments of an mma --------------------------------------------------------------------------------


def _of_fragments(problem: Problem) -> Iterator[Hypothesis]:
    """Yield hypotheses on exchanged rows, columns and parts of an mma's fragments."""
    pixels = {
        "q": lambda at: at[:, 3],
        "p*Q + q": lambda at: at[:, 2] * problem.Q + at[:, 3],
        "n*P*Q + p*Q + q": lambda at: (at[:, 0] * problem.P + at[:, 2]) * problem.Q + at[:, 3],
    }
    axes = {"k": (lambda at: at[:, 1], lambda at, to: with_axis(at, 1, to))}
    for name, of in pixels.items():
        axes[name] = (of, _PIXELS[name](problem))
    for name, (of, put) in axes.items():
        for bit in (1, 2, 4, 8, 16):
            text = _EXCHANGED.get(bit, f"tiles of {bit} are exchanged pairwise")
            yield moved(
                f"{text}, outputs have the value of {name} ^ {bit}",
                lambda at, of=of, put=put, bit=bit: put(at, of(at) ^ bit),
            )
    # Of an accumulator, lane 4 * g + t holds (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
    for name, (of, put) in list(axes.items())[1:]:
        for rows, columns in (
            (("k", *axes["k"]), (name, of, put)),
            ((name, of, put), ("k", *axes["k"])),
        ):
            yield moved(
                "numbers 1 and 2 of the accumulator's fragment are exchanged (rows "
                f"{rows[0]}, columns {columns[0]})",
                lambda at, rows=rows, columns=columns: _corners(at, rows, columns, 8, 1),
            )
        for tile in (8, 16, 32):
            yield moved(
                f"each tile of {tile} x {tile} of (k, {name}) is transposed",
                lambda at, of=of, put=put, tile=tile: _transposed(at, of, put, tile),
            )
    channels = problem.C // problem.groups
    for bit in (1, 2, 4, 8):
        if channels > bit:
            yield Hypothesis(
                f"x at channel c is multiplied with the filter at channel c ^ {bit}",
                with_indices(lambda sums, i, bit=bit: vars(i).update(c_of_w=i.c ^ bit)),
            )
    for bit in (1, 2, 4, 8):
        if problem.gemm_k > bit and channels != problem.gemm_k:
            yield Hypothesis(
                f"x at j is multiplied with the filter at j ^ {bit}, where j = (c*R + r)*S + s",
                with_indices(_other_product(bit)),
            )
    yield Hypothesis(
        "numbers 1 and 2 of the filter's fragment are exchanged (rows k, columns c)",
        with_indices(_exchanged_fragment),
    )


_EXCHANGED = {
    1: "neighbours are exchanged pairwise",
    8: "rows of 8 are exchanged (the halves of a fragment of 16)",
}
_PIXELS: dict[str, Callable[[Problem], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "q": lambda problem: lambda at, to: with_axis(at, 3, to),
    "p*Q + q": lambda problem: (
        lambda at, to: with_axis(with_axis(at, 2, to // problem.Q), 3, to % problem.Q)
    ),
    "n*P*Q + p*Q + q": lambda problem: (
        lambda at, to: np.stack(
            [
                to // (problem.P * problem.Q),
                at[:, 1],
                to // problem.Q % problem.P,
                to % problem.Q,
            ],
            axis=1,
        )
    ),
}


def _corners(
    at: np.ndarray, rows: tuple, columns: tuple, row_bit: int, column_bit: int
) -> np.ndarray:
    """Exchange (row, column + bit) with (row + bit, column): two corners of a fragment."""
    _, row_of, put_row = rows
    _, column_of, put_column = columns
    row = row_of(at)
    column = column_of(at)
    differ = ((row & row_bit) != 0) != ((column & column_bit) != 0)
    moved = put_row(at, np.where(differ, row ^ row_bit, row))
    return put_column(moved, np.where(differ, column ^ column_bit, column))


def _transposed(
    at: np.ndarray,
    of: Callable[[np.ndarray], np.ndarray],
    put: Callable[[np.ndarray, np.ndarray], np.ndarray],
    tile: int,
) -> np.ndarray:
    """Exchange k and a pixel's index within each tile."""
    k = at[:, 1]
    pixel = of(at)
    moved = put(at, pixel // tile * tile + k % tile)
    return with_axis(moved, 1, k // tile * tile + pixel % tile)


def _other_product(bit: int) -> Change:
    """Return the change of indices for a filter that is read at j ^ bit."""

    def change(sums: Sums, i: Indices) -> None:
        problem = sums.problem
        j = ((i.c * problem.R + i.r) * problem.S + i.s) ^ bit
        # Past the last product a kernel multiplies zeros.
        exists = j < problem.gemm_k
        j = np.where(exists, j, 0)
        i.c_of_w = j // (problem.R * problem.S)
        i.r_of_w = j // problem.S % problem.R
        i.s_of_w = j % problem.S
        i.row = np.where(exists, i.row, -1)

    return change


def _exchanged_fragment(sums: Sums, i: Indices) -> None:
    """Exchange (k + 8, c) with (k, c + 4) of the filter: numbers 1 and 2 of an m16k8 fragment."""
    differ = ((i.k & 8) != 0) != ((i.c & 4) != 0)
    i.k_of_w = np.where(differ, i.k ^ 8, i.k)
    i.c_of_w = np.where(differ, i.c ^ 4, i.c)
