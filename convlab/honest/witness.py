"""Check that a timed launch computed y, from data that it had not seen before.

Before each timed launch some elements of x are overwritten, and some of w unless the filter was
prepared before. After the launch, outputs that depend on these elements are copied. Neither is
timed. Later some of the copies are compared with the float64 reference, which is computed only then.
From time to time all of x is drawn again. Positions and values come from the system's random
generator, not from a seed. So a result that is remembered by address, by name or by a hash of the
data is incorrect. ``cheats.md`` lists what this module and the audit catch.
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

# The number of outputs that are copied and compared.
_OUTPUTS = 128
# For each output, this many elements of its window are drawn. The first one that is not padding
# is used.
_TRIES = 16
# If at least this many elements change, about half of them have the same values in all rows.
_MANY = 16
# The system's random generator, which no seed determines.
SECRET = random.SystemRandom()


class Witness:
    """Change a launch's inputs, copy some of its outputs, and check them, row by row.

    A row is one set of values. Call `before(row)` before a launch and `after(row)` after it. Both run
    in order on the current stream, and a CUDA graph can capture them. Then call `finish(row)`, which
    does nothing if the launch is `trusted`. `renew` draws new values for all rows, and a new x.
    """

    def __init__(self, launch: Launch, rows: int, trusted: bool = False) -> None:
        self.launch = launch
        self.rows = rows
        self.trusted = trusted
        problem = launch.problem
        x = launch.inputs[0]
        where, first_index, second_index = _draw_positions(
            problem, np.random.default_rng(SECRET.getrandbits(64))
        )
        self._generator = torch.Generator(x.device).manual_seed(SECRET.getrandbits(62))
        self._where = torch.from_numpy(where).to(x.device)
        flat = np.ravel_multi_index(tuple(where.T), problem.output_shape)
        self._flat = torch.from_numpy(flat).to(x.device)
        root = math.sqrt(problem.terms)
        # The change of x is so large that each output changes by far more than its class allows.
        changes = [(x, first_index, max(1.0, root / 4))]
        if launch.plan is None:
            changes.append((launch.inputs[1], second_index, 1 / root))
        self._changed = []
        for tensor, positions, scale in changes:
            index = torch.from_numpy(positions).to(x.device)
            values = tensor.new_empty(rows, len(positions))
            self._changed.append((tensor, index, values, scale))
        self._filter = [(w, index, w.take(index)) for w, index, *_ in self._changed[1:]]
        self._kept = x.new_empty(rows, len(flat), dtype=launch.runnable.format.y.torch_dtype)
        self.renew()

    def renew(self, again: int = 0) -> None:
        """Draw new values for all rows, and a new x unless `again`; discard the copied outputs."""
        if not again:
            self._changed[0][0].normal_(generator=self._generator)
        for _, _, values, scale in self._changed:
            values.normal_(generator=self._generator).mul_(scale)
            # Elements that do not change deceive code that identifies the data by a few of them.
            if values.shape[1] >= _MANY:
                chance = torch.rand(values.shape, generator=self._generator, device=values.device)
                values.copy_(torch.where(chance < 0.5, values[0], values))
        self._kept.fill_(math.nan)

    def before(self, row: int) -> None:
        """Overwrite some elements of x, and of w."""
        for tensor, index, values, _ in self._changed:
            tensor.put_(index, values[row])

    def after(self, row: int) -> None:
        """Copy some outputs, and restore w: the other side may have prepared its filter from it."""
        torch.take(self.launch.y, self._flat, out=self._kept[row])
        self._put_back()

    def _put_back(self) -> None:
        """Restore the changed elements of w."""
        for w, index, values in self._filter:
            w.put_(index, values)

    def finish(self, row: int) -> None:
        """Raise Caught unless the copied outputs of a row are correct in the runnable's class."""
        problem = self.launch.problem
        runnable = self.launch.runnable
        if self.trusted:
            return
        require_own_tools(runnable)
        self.before(row)
        expected = reference.truth(problem, *self.launch.inputs, where=self._where)
        self._put_back()
        outputs = math.prod(problem.output_shape)
        bound = reference.tolerance(runnable.precision, problem.terms, outputs)
        errors = (self._kept[row].double() - expected).abs()
        limits = ELEMENTWISE * bound * (expected.square().mean().sqrt() + expected.abs())
        # A comparison with NaN is false, so NaN counts as incorrect.
        wrong = ~(errors <= limits)
        if count := int(wrong.sum()):
            first = int(wrong.int().argmax())
            position = ", ".join(map(str, self._where[first].tolist()))
            got = float(self._kept[row][first])
            raise Caught(
                runnable,
                f"{count} of {len(expected)} outputs of a timed launch are incorrect for its data, "
                f"e.g. at {problem.computation.symbol} = ({position}): got {got:.7g}, "
                f"expected {float(expected[first]):.7g}. The check before passed on other data, so "
                "the result is remembered, skipped, late, or less precise",
            )

    def finish_any(self, rows: int) -> None:
        """Check one of the first `rows` rows, chosen at random. Raises Caught."""
        self.finish(draw(rows))


def draw(count: int) -> int:
    """Return a random integer from 0 to `count` - 1, which no seed determines."""
    return SECRET.randrange(count)


def _draw_positions(
    problem: Problem, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw products of x and w that are in y, and the tensors' elements that take part in them.

    Returns the positions of the outputs, and flat indices in the first and in the second input,
    without duplicates. An output of which all drawn products are with padding has no indices; of a
    gradient such outputs are left out.
    """
    count = min(_OUTPUTS, math.prod(problem.output_shape))
    n, k, p, q = (rng.integers(max(size, 1), size=(count, 1)) for size in problem.y_shape)
    per_group = problem.C // problem.groups
    c, r, s = (
        rng.integers(size, size=(count, _TRIES)) for size in (per_group, problem.R, problem.S)
    )
    h = p * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
    w = q * problem.stride[1] - problem.padding[1] + s * problem.dilation[1]
    inside = (h >= 0) & (h < problem.H) & (w >= 0) & (w < problem.W)
    channel = k // (problem.K // problem.groups) * per_group + c
    first_inside = inside.argmax(1)
    rows = np.flatnonzero(inside.any(1))
    positions = {
        "y": np.stack(np.broadcast_arrays(n, k, p, q, r)[:4], -1),
        "x": np.stack(np.broadcast_arrays(n, channel, h, w), -1),
        "w": np.stack(np.broadcast_arrays(k, c, r, s), -1),
    }
    # Of each product, the elements of the three tensors.
    chosen = {name: where[rows, first_inside[rows]] for name, where in positions.items()}
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    computation = problem.computation
    first, second = (
        np.unique(np.ravel_multi_index(tuple(chosen[name[-1]].T), shapes[name[-1]]))
        for name in computation.inputs
    )
    if computation.is_forward:
        return np.concatenate([n, k, p, q], 1), first, second
    return chosen[computation.output[-1]], first, second
