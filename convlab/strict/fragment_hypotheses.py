"""Hypotheses on the fragments of an mma: exchanged rows, columns and parts."""

from collections.abc import Callable, Iterator

import numpy as np

from ..core.problem.problem import Problem
from .explanation import Change, Hypothesis, Indices, Sums, moved, with_axis, with_indices


def of_fragments(problem: Problem) -> Iterator[Hypothesis]:
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
