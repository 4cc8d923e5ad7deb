"""What wrong outputs have in common, in words.

Pure functions of what a run gave and should have given. Each sentence is a fact about these very
outputs, "PATTERN: COUNT"; none is a guess, and right outputs get none.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from ..core.correctness.evidence import Evidence
from ..core.problem.problem import Problem

_MOST = 6  # sentences
_FEWEST = 4  # outputs that must agree before their values make a sentence, or all there are
_FIRST = 64  # outputs tried before all are
_OFTEN = 100  # times that a bias may be added
_MOST_LOOKUPS = 4096  # outputs looked at where each lookup of the truth is computed anew
_LONGEST = 1 << 16  # indices along which tiles are looked for
# Normwise errors of products of rounded operands on normal data: 2.9e-4 where TF32 or fp16 is
# rounded to nearest, 7.7e-4 where TF32 is truncated, 2.3e-3 for bf16 (measured for this project),
# less where only sums are rounded, and a bias is added to them.
_ROUNDINGS = ((1.2e-4, 1.1e-3, "TF32 or fp16"), (1.7e-3, 4e-3, "bf16"))


def words(evidence: Evidence) -> list[str]:
    """Return sentences on what is wrong and where, the most telling first; none if nothing is."""
    if not evidence.wrong.any():
        return []
    with np.errstate(all="ignore"):  # NaN and inf are what one meets here
        sentences = [*_values(evidence), *_places(evidence)][:_MOST]
    return [line if evidence.whole else f"{line}, in a sample" for line in sentences]


# What the wrong outputs hold ------------------------------------------------------------------


def _values(e: Evidence) -> Iterator[str]:
    """Say what stands where something else should, unless nothing was written at all."""
    never = int(e.unwritten.sum())
    written = int((e.wrong & ~e.unwritten).sum())
    if never:
        yield f"never written: {_share(never, int(e.wrong.sum()))}"
    finite = np.flatnonzero(e.wrong & np.isfinite(e.got))
    if strange := written - len(finite):
        what = "inf" if np.isinf(e.got[e.wrong]).sum() == strange else "NaN or inf"
        why = "and not the one that belongs there"
        if e.usual:
            why = "as made of memory that nobody wrote (workspace and surroundings hold NaN)"
            why = "as past the largest number, or by a division by 0" if what == "inf" else why
        yield f"{what}, {why}: {_share(strange, written)}"
    if len(finite):
        sentences = [*_simple(e, finite), *_moved(e, finite)]
        yield from sentences or _rounded(e)


def _simple(e: Evidence, bad: np.ndarray) -> Iterator[str]:
    """One number, a multiple of the truth, or what follows the sum left out or done twice."""
    got = e.got[bad]
    truth = e.truth[bad]

    def many(hit: np.ndarray) -> bool:
        return int(hit.sum()) >= max(min(_FEWEST, len(hit)), len(hit) / 2)

    if e.problem.relu and many(got < 0):
        yield f"negative, as without the ReLU or before it: {_share((got < 0).sum(), len(bad))}"
        return
    bias = np.zeros(len(bad)) if e.bias is None else e.bias[e.where[bad, 1]]
    if bias.any():
        more = float(np.median(((got - truth)[bias != 0]) / bias[bias != 0]))
        more = round(more) if abs(more) < _OFTEN else 0
        hit = e.near(got, truth + more * bias)
        if more and many(hit):
            text = {-1: "is not added", 1: "is added twice"}.get(more, f"is added {more + 1} times")
            yield f"the bias {text}: {_share(hit.sum(), len(bad))}"
            return
    if len(bad) == 1:  # of which any number is some multiple
        return
    alike = got == np.median(got)
    if many(alike) and not (truth == truth[0]).all():
        value = got[alike][0] + 0.0  # no -0
        every = (e.got == value).all()
        share = f": {_share(alike.sum(), len(bad))}"
        yield f"every output is {value:.6g}" if every else f"all alike, {value:.6g}{share}"
        return
    for offset, text in ((0 * bias, ""), (bias, ", before the bias is added")):
        large = np.abs(truth - offset) > e.rms / 10
        if large.sum() < 2:
            continue
        factor = float(np.median(((got - offset)[large]) / (truth - offset)[large]))
        hit = e.near(got, offset + factor * (truth - offset))
        if abs(factor) > 0.01 and np.isfinite(factor) and many(hit[large]):
            share = _share(hit.sum(), len(bad))
            yield f"{_factor(factor)} times what it should be{text}: {share}"
            return


def _moved(e: Evidence, bad: np.ndarray) -> Iterator[str]:
    """Right values in wrong places: shifted, or laid out in another order."""
    if not e.whole and len(bad) > _MOST_LOOKUPS:
        bad = bad[:: -(-len(bad) // _MOST_LOOKUPS)]
    shape = np.array(e.problem.y_shape)

    def holding(target: Callable[[np.ndarray], np.ndarray]) -> tuple[int, int]:
        """Count the wrong outputs that hold what belongs elsewhere (0: few), and where that is."""
        for part in (bad[:: max(1, len(bad) // _FIRST)], bad):
            at = target(e.where[part])
            exists = ((at >= 0) & (at < shape)).all(axis=1)
            inside = int(exists.sum())
            hits = int(e.near(e.got[part][exists], e.truth_at(at[exists])).sum()) if inside else 0
            if hits < max(1, min(_FEWEST, len(bad) - 1), inside / 2):
                return 0, inside
        return hits if hits >= _FEWEST else 0, inside

    for shift in _SHIFTS:
        hits, inside = holding(lambda at, shift=shift: at + np.array(shift))
        if hits and 4 * inside >= len(bad):
            axes = [axis for axis in range(4) if shift[axis]]
            theirs = ", ".join(f"{'nkpq'[axis]}{shift[axis]:+d}" for axis in axes)
            by = -shift[axes[0]]
            name = "nkpq"[axes[0]]
            if axes[0] > 1:
                by = (-shift[2], -shift[3])
                name = "(p, q)"
            yield f"shifted by {by} in {name}: {_share(hits, len(bad))} hold what belongs at {theirs}"
            return
    for order in _ORDERS:

        def reread(at: np.ndarray, order: tuple[int, ...] = order) -> np.ndarray:
            flat = np.ravel_multi_index(tuple(at.T), tuple(shape))
            back = np.stack(np.unravel_index(flat, tuple(shape[list(order)])), axis=1)
            return back[:, np.argsort(order)]

        hits, inside = holding(reread)
        if hits:
            letters = ", ".join("NKPQ"[i] for i in order)
            share = _share(hits, inside)
            yield f"{_ORDERS[order]}: {share} are right if memory is read as ({letters})"
            return


_SHIFTS = sorted(
    (
        shift
        for shift in itertools.product((-1, 0, 1), (-1, 0, 1), range(-2, 3), range(-2, 3))
        if any(shift) and sum(map(bool, shift[:2])) + any(shift[2:]) == 1
    ),
    key=lambda shift: sum(map(abs, shift)),
)
_ORDERS = {
    (1, 0, 2, 3): "n and k exchanged in memory, as when (K, N*P*Q) is taken for (N, K, P, Q)",
    (0, 1, 3, 2): "p and q exchanged in memory (transposed images)",
    (0, 2, 3, 1): "channels last in memory",
}
_, *_OTHERS = itertools.permutations(range(4))  # the first is the right one
_ORDERS |= {o: "another order of dimensions in memory" for o in _OTHERS if o not in _ORDERS}


def _rounded(e: Evidence) -> Iterator[str]:
    """Errors of the size that coarser operands make, spread evenly: the precision class."""
    if not np.isfinite(e.got).all() or not e.rms or 2 * e.wrong.sum() < len(e.wrong):
        return
    errors = e.got - e.truth
    spread = math.sqrt(float(np.mean(np.square(errors))))
    if np.abs(errors).max() > 12 * spread:
        return
    for low, high, name in _ROUNDINGS:
        if low <= spread / e.rms <= high:
            yield (
                f"as if operands or sums were rounded to {name}, where {e.precision} is declared: "
                f"errors of {spread / e.rms:.1e} of the outputs' size, alike everywhere"
            )


# Where they are -------------------------------------------------------------------------------


def _places(e: Evidence) -> list[str]:
    """Say which outputs are wrong, if it is not all and not just one.

    What holds for all wrong outputs and no others comes alone.
    """
    wrong = int(e.wrong.sum())
    if wrong in (1, len(e.wrong)) or len(e.wrong) < 8:
        return []
    N, K, P, Q = e.problem.y_shape
    n, k, p, q = e.where.T.astype(np.int64)
    found = [(_in_padding(e), "their window reaches into the padding")]
    chosen = found[0][0]
    if not chosen.any() or chosen.all() or (e.wrong & ~chosen).any():
        found = []
    for name, index, size in (("n", n, N), ("k", k, K), ("p", p, P), ("q", q, Q)):
        found += _along(e, name, index, size)
    exact = [(chosen, text) for chosen, text in found if chosen.sum() == wrong]
    for name, index, size in (
        ("p*Q + q", p * Q + q, P * Q),
        ("n*P*Q + p*Q + q", (n * P + p) * Q + q, N * P * Q),
        ("the offset in memory", ((n * K + k) * P + p) * Q + q, N * K * P * Q),
    ):
        if not exact:
            exact = [(c, text) for c, text in _along(e, name, index, size) if c.sum() == wrong]
    sentences = []
    for chosen, text in exact or found:
        there = int(chosen.sum())
        of = f"all {there:,}" if wrong == there else f"{wrong:,} of {there:,}"
        sentences.append(f"wrong only where {text}: {of} outputs there")
    return sentences


def _along(
    e: Evidence, name: str, index: np.ndarray, size: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Name the values of one index at which outputs are wrong: yield those outputs, or nothing."""
    hit, seen = np.zeros((2, size), dtype=bool)
    hit[index[e.wrong]] = True
    seen[index] = True
    if size < 2 or hit[seen].all():
        return
    for chosen, text in _rules(name, size, hit, e.problem):
        if np.array_equal(hit[seen], chosen[seen]):
            yield chosen[index], text
            return


def _rules(
    name: str, size: int, hit: np.ndarray, problem: Problem
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield (indices, words) for each set of indices that has a name, the most telling first."""
    index = np.arange(size)
    at = np.flatnonzero(hit)
    first = int(at[0])
    last = int(at[-1])
    if name == "k" and problem.groups > 1:
        per_group = problem.K // problem.groups
        groups = np.unique(at // per_group).tolist()
        which = f"group is {groups[0]}" if len(groups) == 1 else f"group is one of {groups}"
        if len(groups) <= 4:
            yield np.isin(index // per_group, groups), f"the {which} (k // {per_group})"
    if last == size - 1:
        whole = next((t for t in (128, 64, 32, 16, 8) if first % t == 0 and size - first < t), 0)
        end = f", past the last whole tile of {whole}" if first and whole else ""
        text = f"{name} > 0" if first == 1 else f"{name} >= {first}"
        if first == last and first != 1:
            text = f"{name} is the last"
        yield index >= first, text + end
    if first == 0:
        yield index <= last, f"{name} is 0" if last == 0 else f"{name} <= {last}"
    if first == last:
        yield index == first, f"{name} is {first}"
    if size >= 4:
        yield index % 2 == 1, f"{name} is odd"
        yield index % 2 == 0, f"{name} is even"
    nouns = {"n": "images", "k": "channels", "p": "rows", "q": "columns"}
    noun = nouns.get(name, f"values of {name}")
    for tile in range(3, min(128, size - 1) + 1) if size <= _LONGEST else ():
        left = np.unique(at % tile)
        low = int(left[0])
        high = int(left[-1])
        count = len(left)
        if high - low + 1 != count or count == tile or last - first < tile - 1:
            continue
        many = f"{count} {noun}" if count > 1 else noun.removesuffix("s")
        if high == tile - 1:
            text = f"they are in the last {many} of each tile of {tile}"
        elif low == 0:
            text = f"they are in the first {many} of each tile of {tile}"
        else:
            text = f"{name} % {tile} is {f'{low} to {high}' if count > 1 else low}"
        yield np.isin(index % tile, left), text
    yield (index >= first) & (index <= last), f"{name} is {first} to {last}"


def _in_padding(e: Evidence) -> np.ndarray:
    """Which outputs read at least one padding zero."""
    outside = np.zeros(len(e.where), dtype=bool)
    p = e.problem
    for axis, size, taps in ((0, p.H, p.R), (1, p.W, p.S)):
        start = e.where[:, 2 + axis] * p.stride[axis] - p.padding[axis]
        outside |= (start < 0) | (start + p.dilation[axis] * (taps - 1) >= size)
    return outside


# Words ----------------------------------------------------------------------------------------


def _share(part: int, total: int) -> str:
    if part == total:
        return "the wrong output" if total == 1 else f"all {total:,} wrong outputs"
    return f"{part:,} of {total:,} wrong outputs"


def _factor(value: float) -> str:
    near = Fraction(value).limit_denominator(64)
    return str(near) if near and abs(near - value) * near.denominator < 1e-5 else f"{value:.5g}"
