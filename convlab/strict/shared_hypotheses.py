"""Hypotheses that convolutions and their gradients share: parameters, ends, places, orders in memory."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..core.problem.problem import Problem
from .explanation import (
    Hypothesis,
    Indices,
    Predict,
    Sums,
    moved,
    with_axis,
    with_factors,
    with_indices,
)

# The orders of four dimensions in memory.
ORDERS = tuple(itertools.permutations(range(4)))
# The sizes of tiles in hypotheses.
TILES = (4, 8, 16, 32, 64, 128)


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
