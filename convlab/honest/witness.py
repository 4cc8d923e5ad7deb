"""Checks that a timed launch computed y, on data that it had not seen before.

Before each timed launch some elements of x are overwritten, and some of w unless the filter was
laid out before. After it, some outputs that depend on them are copied. Neither is timed. Later some
of the copies are compared with the float64 truth, which is not computed before then. All of x is
drawn again now and then. Positions and values come from the system's randomness, not from a seed.
So a result that is remembered by address, by name or by a hash of the data is wrong. ``cheats.md``
lists what this and the audit catch.
"""

from __future__ import annotations

import math
import random

import numpy as np
import torch

from ..core.correctness import reference
from ..core.correctness.output import ELEMENTWISE
from ..core.kernel.runnable import Launch
from ..core.problem.problem import Problem
from ..core.timing.observer import Caught
from .replaced_tools import require_own_tools

# Outputs that are compared.
_OUTPUTS = 128
# Draws of an element in an output's window, until one is not padding.
_TRIES = 16
# With so many changed elements or more, half of them may keep their values from row to row.
_MANY = 16
# Randomness that no seed gives.
SECRET = random.SystemRandom()


class Witness:
    """Changes a launch's inputs, keeps some of its outputs, and judges them, row by row.

    A row is one set of values. `before(row)` comes before a launch and `after(row)` after it; both
    run in order on the current stream, and can be captured in a CUDA graph. `finish(row)` comes
    when these are done; it does nothing if the launch is `trusted`. `renew` draws new values for
    all rows, and all of x.
    """

    def __init__(self, launch: Launch, rows: int, trusted: bool = False) -> None:
        self.launch = launch
        self.rows = rows
        self.trusted = trusted
        problem = launch.problem
        x = launch.inputs[0]
        where, x_index, w_index = _draw_positions(
            problem, np.random.default_rng(SECRET.getrandbits(64))
        )
        self._generator = torch.Generator(x.device).manual_seed(SECRET.getrandbits(62))
        self._where = torch.from_numpy(where).to(x.device)
        flat = np.ravel_multi_index(tuple(where.T), problem.y_shape)
        self._flat = torch.from_numpy(flat).to(x.device)
        root = math.sqrt(problem.gemm_k)
        # The change in x is so large that each output changes by far more than its class allows.
        changes = [(x, x_index, max(1.0, root / 4))]
        if launch.plan is None:
            changes.append((launch.inputs[1], w_index, 1 / root))
        self._changed = []
        for tensor, positions, scale in changes:
            index = torch.from_numpy(positions).to(x.device)
            values = tensor.new_empty(rows, len(positions))
            self._changed.append((tensor, index, values, scale))
        self._filter = [(w, index, w.take(index)) for w, index, *_ in self._changed[1:]]
        self._kept = x.new_empty(rows, len(flat), dtype=launch.runnable.format.y.torch_dtype)
        self.renew()

    def renew(self, again: int = 0) -> None:
        """Draw new values for all rows, and all of x unless `again`; forget the kept outputs."""
        if not again:
            self._changed[0][0].normal_(generator=self._generator)
        for _, _, values, scale in self._changed:
            values.normal_(generator=self._generator).mul_(scale)
            # A cheat that identifies the data by a few elements may find the values of row 0 there.
            if values.shape[1] >= _MANY:
                chance = torch.rand(values.shape, generator=self._generator, device=values.device)
                values.copy_(torch.where(chance < 0.5, values[0], values))
        self._kept.fill_(math.nan)

    def before(self, row: int) -> None:
        """Overwrite some elements of x, and of w."""
        for tensor, index, values, _ in self._changed:
            tensor.put_(index, values[row])

    def after(self, row: int) -> None:
        """Copy some of the outputs; put w back, which the other side may have laid out already."""
        torch.take(self.launch.y, self._flat, out=self._kept[row])
        self._put_back()

    def _put_back(self) -> None:
        for w, index, values in self._filter:
            w.put_(index, values)

    def finish(self, row: int) -> None:
        """Raise Caught unless the kept outputs of a row are correct in the runnable's class."""
        problem = self.launch.problem
        runnable = self.launch.runnable
        if self.trusted:
            return
        require_own_tools(runnable)
        self.before(row)
        truth = reference.truth(problem, *self.launch.inputs, where=self._where)
        self._put_back()
        outputs = math.prod(problem.y_shape)
        bound = reference.tolerance(runnable.precision, problem.gemm_k, outputs)
        errors = (self._kept[row].double() - truth).abs()
        limits = ELEMENTWISE * bound * (truth.square().mean().sqrt() + truth.abs())
        # A comparison with NaN is false: NaN is wrong.
        wrong = ~(errors <= limits)
        if count := int(wrong.sum()):
            first = int(wrong.int().argmax())
            position = ", ".join(map(str, self._where[first].tolist()))
            raise Caught(
                runnable,
                f"{count} of {len(truth)} outputs of a timed launch are wrong for its data, "
                f"e.g. ({position}): got {float(self._kept[row][first]):.7g}, expected "
                f"{float(truth[first]):.7g}. The check before passed on other data: the result is "
                "remembered, skipped, late, or less precise",
            )

    def finish_any(self, rows: int) -> None:
        """Judge one of the first `rows` rows, chosen at random."""
        self.finish(draw(rows))


def draw(count: int) -> int:
    """Return a random number below another; no seed gives it."""
    return SECRET.randrange(count)


def _draw_positions(
    problem: Problem, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw outputs, and for each of them an element of x and one of w that it depends on.

    Returns the outputs' (n, k, p, q), and flat indices in x and w without duplicates. An output
    whose draws are all padding has no element.
    """
    count = min(_OUTPUTS, math.prod(problem.y_shape))
    n, k, p, q = (rng.integers(max(size, 1), size=(count, 1)) for size in problem.y_shape)
    per_group = problem.C // problem.groups
    c, r, s = (
        rng.integers(size, size=(count, _TRIES)) for size in (per_group, problem.R, problem.S)
    )
    h = p * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
    w = q * problem.stride[1] - problem.padding[1] + s * problem.dilation[1]
    inside = (h >= 0) & (h < problem.H) & (w >= 0) & (w < problem.W)
    channel = k // (problem.K // problem.groups) * per_group + c
    x_index = ((n * problem.C + channel) * problem.H + h) * problem.W + w
    w_index = ((k * per_group + c) * problem.R + r) * problem.S + s
    first_inside = inside.argmax(1)
    rows = np.flatnonzero(inside.any(1))
    return (
        np.concatenate([n, k, p, q], 1),
        np.unique(x_index[rows, first_inside[rows]]),
        np.unique(w_index[rows, first_inside[rows]]),
    )
