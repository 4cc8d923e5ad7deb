"""Describe what incorrect outputs have in common: their values, their order, their positions.

All functions are pure: they compare the outputs of a run with the correct ones. Each sentence has
the form "PATTERN: COUNT". It states a fact about these outputs, not a guess about the cause.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from ..core.correctness.evidence import Evidence
from ..core.problem.computation import DATA_GRADIENT
from ..core.problem.problem import Problem
from .explanation import Explanation
from .forward_hypotheses import explain
from .gradient_hypotheses import explain_gradient

# At most this many sentences are returned.
_MOST_SENTENCES = 6
# At most this many hypotheses that explain the same outputs are named.
_MOST_EXPLANATIONS = 3
# At least this many outputs, if there are as many, must agree for a sentence about their values.
_FEWEST_AGREEING = 4
# A pattern is first tried on this many outputs, then on all.
_FIRST_TRIED = 64
# The bias may be added fewer times than this.
_MOST_BIASES = 100
# At most this many outputs are looked up if each correct value has to be computed.
_MOST_LOOKUPS = 4096
# Tiles are searched along indices of at most this length.
_LONGEST_INDEX = 1 << 16
# Ranges of the normwise relative error if operands are rounded: lowest, highest, format. On normal
# data it is 2.9e-4 for TF32 or fp16 rounded to nearest, 7.7e-4 for truncated TF32, and 2.3e-3 for
# bf16 (measured for this project). It is smaller if only sums are rounded, or if a bias is added.
_ROUNDINGS = ((1.2e-4, 1.1e-3, "TF32 or fp16"), (1.7e-3, 4e-3, "bf16"))


def describe(evidence: Evidence) -> list[str]:
    """Return sentences about the incorrect outputs, the most specific first."""
    if not evidence.wrong.any():
        return []
    # NaN and inf among the outputs would cause numpy's warnings.
    with np.errstate(all="ignore"):
        sentences = [*_describe_values(evidence), *_describe_positions(evidence)]
    sentences = sentences[:_MOST_SENTENCES]
    if evidence.whole:
        return sentences
    return [f"{sentence}, in a sample" for sentence in sentences]


# The values of incorrect outputs ------------------------------------------------------------------


def _describe_values(e: Evidence) -> Iterator[str]:
    """Yield sentences about the values of incorrect outputs: unwritten, NaN, or numbers."""
    unwritten = int(e.unwritten.sum())
    written = int((e.wrong & ~e.unwritten).sum())
    if unwritten:
        yield f"never written: {_share(unwritten, int(e.wrong.sum()))}"
    finite = np.flatnonzero(e.wrong & np.isfinite(e.got))
    not_finite = written - len(finite)
    if not_finite:
        only_inf = np.isinf(e.got[e.wrong]).sum() == not_finite
        value = "inf" if only_inf else "NaN or inf"
        if not e.usual:
            cause = "where another value is expected"
        elif only_inf:
            cause = "as after an overflow or a division by 0"
        else:
            holding = "the workspace and guard zones hold NaN"
            if not e.problem.computation.is_forward:
                # A kernel may add to the gradient of an earlier call.
                holding = f"the workspace, guard zones and the {e.problem.computation.output} before the call hold NaN"
            cause = f"as if read from uninitialised memory ({holding})"
        yield f"{value}, {cause}: {_share(not_finite, written)}"
    if len(finite):
        yield from _describe_numbers(e, finite)


def _describe_numbers(e: Evidence, bad: np.ndarray) -> list[str]:
    """Return sentences about incorrect numbers, the simplest that explain them all first."""
    simple = [*_describe_simple_values(e, bad)]
    if any(_share(len(bad), len(bad)) in line or " output is " in line for line in simple):
        return simple
    explaining = explain if e.problem.computation.is_forward else explain_gradient
    explanations = explaining(e, bad) if e.usual else []
    told = [f"{each.text}: {_share_explained(each)}" for each in explanations[:_MOST_EXPLANATIONS]]
    if explanations and explanations[0].complete:
        return told
    moved = [*_describe_moved_values(e, bad)]
    return [*simple, *moved] or told or [*_describe_rounding(e)]


def _share_explained(explanation: Explanation) -> str:
    """Return how many incorrect outputs an explanation explains."""
    if explanation.whole:
        return _share(explanation.explained, explanation.compared)
    return f"{explanation.explained:,} of {explanation.compared:,} incorrect outputs compared"


def _describe_simple_values(e: Evidence, bad: np.ndarray) -> Iterator[str]:
    """Describe incorrect values: a missing ReLU, a wrong bias, one constant, or a factor.

    Yields the first sentence that holds for at least half of the `bad` outputs, if there is one.
    """
    descriptions = (_describe_relu, _describe_bias, _describe_constant, _describe_factor)
    for description in descriptions:
        sentence = description(e, bad)
        if sentence:
            yield sentence
            return


def _are_many(hit: np.ndarray) -> bool:
    """Return whether enough of the outputs agree for a sentence."""
    return int(hit.sum()) >= max(min(_FEWEST_AGREEING, len(hit)), len(hit) / 2)


def _describe_relu(e: Evidence, bad: np.ndarray) -> str:
    """Return a sentence if outputs are negative although the problem has a ReLU."""
    negative = e.got[bad] < 0
    if not e.problem.relu or not _are_many(negative):
        return ""
    share = _share(negative.sum(), len(bad))
    return f"negative, as if the ReLU were missing or came before the bias: {share}"


def _describe_bias(e: Evidence, bad: np.ndarray) -> str:
    """Return a sentence if the bias is not added exactly once."""
    got = e.got[bad]
    expected = e.expected[bad]
    bias = _bias_of(e, bad)
    if not bias.any():
        return ""
    has_bias = bias != 0
    extra = float(np.median((got - expected)[has_bias] / bias[has_bias]))
    extra = round(extra) if abs(extra) < _MOST_BIASES else 0
    hit = e.near(got, expected + extra * bias)
    if not extra or not _are_many(hit):
        return ""
    times = {-1: "is not added", 1: "is added twice"}.get(extra, f"is added {extra + 1} times")
    return f"the bias {times}: {_share(hit.sum(), len(bad))}"


def _describe_constant(e: Evidence, bad: np.ndarray) -> str:
    """Return a sentence if the outputs are all equal although the correct values differ."""
    got = e.got[bad]
    expected = e.expected[bad]
    equal = got == np.median(got)
    if len(bad) == 1 or not _are_many(equal) or (expected == expected[0]).all():
        return ""
    # Adding 0 turns -0 into 0.
    value = got[equal][0] + 0.0
    if (e.got == value).all():
        return f"every output is {value:.6g}"
    return f"all equal, {value:.6g}: {_share(equal.sum(), len(bad))}"


def _describe_factor(e: Evidence, bad: np.ndarray) -> str:
    """Return a sentence if the outputs are the correct values times one factor.

    The factor applies to y, or to the sum before the bias is added.
    """
    # A single number is a multiple of any other number.
    if len(bad) == 1:
        return ""
    got = e.got[bad]
    expected = e.expected[bad]
    bias = _bias_of(e, bad)
    for offset, text in ((0 * bias, ""), (bias, ", before the bias is added")):
        large = np.abs(expected - offset) > e.rms / 10
        if large.sum() < 2:
            continue
        factor = float(np.median(((got - offset)[large]) / (expected - offset)[large]))
        hit = e.near(got, offset + factor * (expected - offset))
        if abs(factor) > 0.01 and np.isfinite(factor) and _are_many(hit[large]):
            share = _share(hit.sum(), len(bad))
            return f"{_factor(factor)} times the correct value{text}: {share}"
    return ""


def _bias_of(e: Evidence, bad: np.ndarray) -> np.ndarray:
    """Return the bias of each `bad` output; zeros if the problem has no bias."""
    return np.zeros(len(bad)) if e.bias is None else e.bias[e.where[bad, 1]]


def _describe_moved_values(e: Evidence, bad: np.ndarray) -> Iterator[str]:
    """Describe correct values at other positions: shifted, or in another memory order."""
    if not e.whole and len(bad) > _MOST_LOOKUPS:
        bad = bad[:: -(-len(bad) // _MOST_LOOKUPS)]
    for shift in _SHIFTS:
        offset = np.array(shift)
        hits, inside = _count_holding(e, bad, lambda where, offset=offset: where + offset)
        if hits and 4 * inside >= len(bad):
            yield _describe_shift(shift, e.problem.computation.letters, _share(hits, len(bad)))
            return
    shape = tuple(e.problem.output_shape)
    names = e.problem.computation.letters
    for order, text in _ORDERS.items():
        hits, inside = _count_holding(
            e, bad, lambda where, order=order: _reordered(where, shape, order)
        )
        if hits:
            letters = ", ".join(names[axis].upper() for axis in order)
            if not e.problem.computation.is_forward:
                text = _exchanged(order, names)
            share = _share(hits, inside)
            are = "is" if hits == 1 else "are"
            yield f"{text}: {share} {are} correct if memory is read as ({letters})"
            return


def _count_holding(
    e: Evidence, bad: np.ndarray, source: Callable[[np.ndarray], np.ndarray]
) -> tuple[int, int]:
    """Count the incorrect outputs that hold the correct value of another position.

    `source` returns the other positions of given ones. Returns two numbers: how many outputs hold
    that value, 0 if they are few; and how many of the other positions are inside y.
    """
    shape = np.array(e.problem.output_shape)
    hits = 0
    inside = 0
    for part in (bad[:: max(1, len(bad) // _FIRST_TRIED)], bad):
        positions = source(e.where[part])
        exists = ((positions >= 0) & (positions < shape)).all(axis=1)
        inside = int(exists.sum())
        hits = 0
        if inside:
            hits = int(e.near(e.got[part][exists], e.expected_at(positions[exists])).sum())
        if hits < max(1, min(_FEWEST_AGREEING, len(bad) - 1), inside / 2):
            return 0, inside
    return hits if hits >= _FEWEST_AGREEING else 0, inside


def _describe_shift(shift: tuple[int, ...], names: str, share: str) -> str:
    """Return a sentence about outputs that hold the correct value of `shift` positions away.

    `names` are the letters of the output's dimensions.
    """
    axes = [axis for axis in range(4) if shift[axis]]
    source = ", ".join(f"{names[axis]}{shift[axis]:+d}" for axis in axes)
    if axes[0] > 1:
        distance = f"{(-shift[2], -shift[3])} in ({names[2]}, {names[3]})"
    else:
        distance = f"{-shift[axes[0]]} in {names[axes[0]]}"
    return f"shifted by {distance}: {share} hold the value of {source}"


def _exchanged(order: tuple[int, ...], names: str) -> str:
    """Return words for the order of a gradient's dimensions in memory."""
    for first, second in ((0, 1), (2, 3)):
        swapped = list(range(4))
        swapped[first] = second
        swapped[second] = first
        if order == tuple(swapped):
            return f"{names[first]} and {names[second]} exchanged in memory"
    return "another order of dimensions in memory"


def _reordered(where: np.ndarray, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Return the positions with the same offsets in memory if y has another order of dimensions."""
    flat = np.ravel_multi_index(tuple(where.T), shape)
    in_order = np.unravel_index(flat, tuple(shape[axis] for axis in order))
    return np.stack(in_order, axis=1)[:, np.argsort(order)]


_SHIFTS = sorted(
    (
        shift
        for shift in itertools.product((-1, 0, 1), (-1, 0, 1), range(-2, 3), range(-2, 3))
        if any(shift) and sum(map(bool, shift[:2])) + any(shift[2:]) == 1
    ),
    key=lambda shift: sum(map(abs, shift)),
)
_ORDERS = {
    (1, 0, 2, 3): "n and k exchanged in memory, as if (K, N*P*Q) were read as (N, K, P, Q)",
    (0, 1, 3, 2): "p and q exchanged in memory (transposed images)",
    (0, 2, 3, 1): "channels last in memory",
}
# The first permutation is the correct order.
_, *_OTHER_ORDERS = itertools.permutations(range(4))
for _order in _OTHER_ORDERS:
    _ORDERS.setdefault(_order, "another order of dimensions in memory")


def _describe_rounding(e: Evidence) -> Iterator[str]:
    """Describe errors with the size of rounded operands, on all outputs: another precision class."""
    if not np.isfinite(e.got).all() or not e.rms or 2 * e.wrong.sum() < len(e.wrong):
        return
    errors = e.got - e.expected
    rms_error = math.sqrt(float(np.mean(np.square(errors))))
    if np.abs(errors).max() > 12 * rms_error:
        return
    relative = rms_error / e.rms
    for low, high, name in _ROUNDINGS:
        if low <= relative <= high:
            yield (
                f"as if operands or sums were rounded to {name}, but the class is "
                f"{e.precision}: relative error {relative:.1e}, evenly distributed"
            )


# The positions of incorrect outputs ---------------------------------------------------------------


def _describe_positions(e: Evidence) -> list[str]:
    """Return sentences about the positions of incorrect outputs.

    There are none if all outputs are incorrect, or only one is. Sentences that describe exactly the
    incorrect outputs replace all others.
    """
    wrong = int(e.wrong.sum())
    if wrong in (1, len(e.wrong)) or len(e.wrong) < 8:
        return []
    # The names, for the forward pass, are n, k, p, q and N, K, P, Q.
    shape = e.problem.output_shape
    places = e.where.T.astype(np.int64)
    names = e.problem.computation.letters
    # Each candidate is a set of outputs that contains all incorrect ones, with its description.
    candidates = []
    for chosen, text in _sets_by_window(e):
        if chosen.any() and not chosen.all() and not (e.wrong & ~chosen).any():
            candidates.append((chosen, text))
    for name, index, size in zip(names, places, shape, strict=True):
        candidates += _candidates_along(e, name, index, size)
    exact = [(chosen, text) for chosen, text in candidates if chosen.sum() == wrong]
    n, k, p, q = places
    N, K, P, Q = shape
    first, _, row, column = names
    plane = f"{row}*{column.upper()} + {column}"
    for name, index, size in (
        (plane, p * Q + q, P * Q),
        (f"{first}*{row.upper()}*{column.upper()} + {plane}", (n * P + p) * Q + q, N * P * Q),
        ("the offset in memory", ((n * K + k) * P + p) * Q + q, N * K * P * Q),
    ):
        if not exact:
            flat = _candidates_along(e, name, index, size)
            exact = [(chosen, text) for chosen, text in flat if chosen.sum() == wrong]
    sentences = []
    for chosen, text in exact or candidates:
        total = int(chosen.sum())
        share = f"all {total:,}" if wrong == total else f"{wrong:,} of {total:,}"
        sentences.append(f"incorrect only where {text}: {share} outputs there")
    return sentences


def _candidates_along(
    e: Evidence, name: str, index: np.ndarray, size: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the outputs at those values of one index that have incorrect outputs, described.

    Yields nothing if all values have incorrect outputs, or if no description fits.
    """
    has_wrong = np.zeros(size, dtype=bool)
    exists = np.zeros(size, dtype=bool)
    has_wrong[index[e.wrong]] = True
    exists[index] = True
    if size < 2 or has_wrong[exists].all():
        return
    for chosen, text in _named_sets(name, size, has_wrong, e.problem):
        if np.array_equal(has_wrong[exists], chosen[exists]):
            yield chosen[index], text
            return


def _named_sets(
    name: str, size: int, has_wrong: np.ndarray, problem: Problem
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield sets of values of an index with their descriptions, the most specific first."""
    index = np.arange(size)
    wrong = np.flatnonzero(has_wrong)
    first = int(wrong[0])
    last = int(wrong[-1])
    grouped = "c" if problem.computes == DATA_GRADIENT.name else "k"
    if name == grouped and problem.groups > 1:
        per_group = (problem.C if grouped == "c" else problem.K) // problem.groups
        groups = np.unique(wrong // per_group).tolist()
        which = f"group is {groups[0]}" if len(groups) == 1 else f"group is one of {groups}"
        if len(groups) <= 4:
            yield np.isin(index // per_group, groups), f"the {which} ({name} // {per_group})"
    if last == size - 1:
        yield index >= first, _describe_end(name, first, size)
    if first == 0:
        yield index <= last, f"{name} is 0" if last == 0 else f"{name} <= {last}"
    if first == last:
        yield index == first, f"{name} is {first}"
    if size >= 4:
        yield index % 2 == 1, f"{name} is odd"
        yield index % 2 == 0, f"{name} is even"
    if size <= _LONGEST_INDEX:
        yield from _tile_sets(name, size, wrong)
    yield (index >= first) & (index <= last), f"{name} is {first} to {last}"


def _describe_end(name: str, first: int, size: int) -> str:
    """Describe the values of an index from `first` to its end."""
    text = f"{name} > 0" if first == 1 else f"{name} >= {first}"
    if first == size - 1 and first != 1:
        text = f"{name} is the last"
    for tile in (128, 64, 32, 16, 8):
        if first and first % tile == 0 and size - first < tile:
            return f"{text}, past the last whole tile of {tile}"
    return text


def _tile_sets(name: str, size: int, wrong: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the sets of values in the same part of every tile, for each tile size."""
    index = np.arange(size)
    nouns = {"n": "images", "k": "channels", "p": "rows", "q": "columns"}
    nouns |= {"c": "channels", "h": "rows", "w": "columns", "r": "rows", "s": "columns"}
    noun = nouns.get(name, f"values of {name}")
    for tile in range(3, min(128, size - 1) + 1):
        in_tile = np.unique(wrong % tile)
        low = int(in_tile[0])
        high = int(in_tile[-1])
        count = len(in_tile)
        is_interval = high - low + 1 == count
        if not is_interval or count == tile or wrong[-1] - wrong[0] < tile - 1:
            continue
        part = f"{count} {noun}" if count > 1 else noun.removesuffix("s")
        if high == tile - 1:
            text = f"they are in the last {part} of each tile of {tile}"
        elif low == 0:
            text = f"they are in the first {part} of each tile of {tile}"
        else:
            text = f"{name} % {tile} is {f'{low} to {high}' if count > 1 else low}"
        yield np.isin(index % tile, in_tile), text


def _sets_by_window(e: Evidence) -> Iterator[tuple[np.ndarray, str]]:
    """Yield sets of outputs that the borders of the other tensors determine, described."""
    if e.problem.computation.is_forward:
        yield _reads_padding(e), "their window reaches into the padding"
    if e.problem.computes == DATA_GRADIENT.name:
        yield ~_is_reached(e), "no pixel of dy reaches dx, so that it must be 0"


def _is_reached(e: Evidence) -> np.ndarray:
    """Return which elements of a data gradient have at least one product."""
    problem = e.problem
    reached = np.ones(len(e.where), dtype=bool)
    for axis, outputs, taps in ((0, problem.P, problem.R), (1, problem.Q, problem.S)):
        size = problem.output_shape[2 + axis]
        pixels = np.arange(outputs)[:, None] * problem.stride[axis]
        read = pixels - problem.padding[axis] + np.arange(taps) * problem.dilation[axis]
        along = np.zeros(size, dtype=bool)
        along[read[(read >= 0) & (read < size)]] = True
        reached &= along[e.where[:, 2 + axis]]
    return reached


def _reads_padding(e: Evidence) -> np.ndarray:
    """Return which outputs read at least one element of the padding."""
    outside = np.zeros(len(e.where), dtype=bool)
    p = e.problem
    for axis, size, taps in ((0, p.H, p.R), (1, p.W, p.S)):
        start = e.where[:, 2 + axis] * p.stride[axis] - p.padding[axis]
        outside |= (start < 0) | (start + p.dilation[axis] * (taps - 1) >= size)
    return outside


# Numbers as text ------------------------------------------------------------------------------


def _share(part: int, total: int) -> str:
    """Return "all 5 incorrect outputs", or "3 of 5 incorrect outputs"."""
    if part == total:
        return "the only incorrect output" if total == 1 else f"all {total:,} incorrect outputs"
    return f"{part:,} of {total:,} incorrect outputs"


def _factor(value: float) -> str:
    """Return a factor as a fraction with a denominator up to 64 if that is exact enough."""
    fraction = Fraction(value).limit_denominator(64)
    if fraction and abs(fraction - value) * fraction.denominator < 1e-5:
        return str(fraction)
    return f"{value:.5g}"
