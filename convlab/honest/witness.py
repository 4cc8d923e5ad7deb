"""Whether what was timed computed y, on data that it had not met before.

Before each launch that is timed some elements of x are overwritten, and of w too unless the filter
was laid out before; after it, some outputs that depend on them are copied. Neither is part of the
time. Later some of the copies are compared with the float64 truth, which nobody has computed until
then. All of x is drawn anew now and then. Places and values come from the system's randomness, not
from a seed: nothing that is remembered by address, by name or by a hash of the data is right then.
``cheats.md`` says what that and `audit` are for.
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

_OUTPUTS = 128  # that are looked at
_TRIES = 16  # at an element of x that an output depends on, beside the padding
_MANY = 16  # elements changed: so many that of each row half of them may stay
SECRET = random.SystemRandom()


class Witness:
    """Changes a launch's inputs, keeps some of its outputs, and judges them, row by row.

    A row is one set of values: `before(row)` before a launch, `after(row)` after it, both in order
    on the current stream and fit for a CUDA graph; `finish(row)` once that is done, unless the
    launch is `trusted`. `renew` draws new values for all rows, and x as a whole.
    """

    def __init__(self, launch: Launch, rows: int, trusted: bool = False) -> None:
        self.launch = launch
        self.rows = rows
        self.trusted = trusted
        problem = launch.problem
        x = launch.inputs[0]
        where, of_x, of_w = _places(problem, np.random.default_rng(SECRET.getrandbits(64)))
        self._generator = torch.Generator(x.device).manual_seed(SECRET.getrandbits(62))
        self._where = torch.from_numpy(where).to(x.device)
        flat = np.ravel_multi_index(tuple(where.T), problem.y_shape)
        self._flat = torch.from_numpy(flat).to(x.device)
        root = math.sqrt(problem.gemm_k)
        # large enough in x that each output changes by far more than its class allows
        scales = [(0, of_x, max(1.0, root / 4))]
        scales += [] if launch.plan is not None else [(1, of_w, 1 / root)]
        self._changed = []
        for which, places, scale in scales:
            tensor = launch.inputs[which]
            index = torch.from_numpy(places).to(x.device)
            values = tensor.new_empty(rows, len(places))
            self._changed.append((tensor, index, values, scale))
        self._filter = [(w, index, w.take(index)) for w, index, *_ in self._changed[1:]]
        self._kept = x.new_empty(rows, len(flat), dtype=launch.runnable.format.y.torch_dtype)
        self.renew()

    def renew(self, again: int = 0) -> None:
        """Draw the rows' values anew, and x as a whole unless again; forget what was kept."""
        if not again:
            self._changed[0][0].normal_(generator=self._generator)
        for _, _, values, scale in self._changed:
            values.normal_(generator=self._generator).mul_(scale)
            if values.shape[1] >= _MANY:  # else what remembers by a few elements may know each row
                chance = torch.rand(values.shape, generator=self._generator, device=values.device)
                values.copy_(torch.where(chance < 0.5, values[0], values))
        self._kept.fill_(math.nan)

    def before(self, row: int) -> None:
        """Overwrite some elements of x, and of w."""
        for tensor, index, values, _ in self._changed:
            tensor.put_(index, values[row])

    def after(self, row: int) -> None:
        """Copy some of the outputs; put w back, which another side may have laid out before."""
        torch.take(self.launch.y, self._flat, out=self._kept[row])
        self._put_back()

    def _put_back(self) -> None:
        for w, index, values in self._filter:
            w.put_(index, values)

    def finish(self, row: int) -> None:
        """Raise Caught unless what was kept of a row is right, to the runnable's class."""
        problem = self.launch.problem
        runnable = self.launch.runnable
        if self.trusted:
            return
        require_own_tools(runnable)
        self.before(row)
        right = reference.truth(problem, *self.launch.inputs, where=self._where)
        self._put_back()
        outputs = math.prod(problem.y_shape)
        bound = reference.tolerance(runnable.precision, problem.gemm_k, outputs)
        errors = (self._kept[row].double() - right).abs()
        limits = ELEMENTWISE * bound * (right.square().mean().sqrt() + right.abs())
        wrong = ~(errors <= limits)
        if count := int(wrong.sum()):
            at = int(wrong.int().argmax())
            place = ", ".join(map(str, self._where[at].tolist()))
            raise Caught(
                runnable,
                f"{count} of {len(right)} outputs of a timed launch are not those of its data, "
                f"e.g. ({place}): got {float(self._kept[row][at]):.7g}, expected "
                f"{float(right[at]):.7g}. The check before was passed on other data: what it "
                "returns is remembered, left out, late, or of less precision",
            )

    def finish_any(self, rows: int) -> None:
        """Judge one of so many rows that nobody can guess."""
        self.finish(draw(rows))


def draw(count: int) -> int:
    """Return a number below another that nobody can guess."""
    return SECRET.randrange(count)


def _places(problem: Problem, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Draw outputs (n, k, p, q), and elements of x and w, flat, that each of them depends on."""
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
    of_x = ((n * problem.C + channel) * problem.H + h) * problem.W + w
    of_w = ((k * per_group + c) * problem.R + r) * problem.S + s
    # none: it sees nothing but padding
    first = inside.argmax(1)
    some = inside.any(1)
    rows = np.arange(count)[some]
    one = (np.unique(index[rows, first[some]]) for index in (of_x, of_w))
    return np.concatenate([n, k, p, q], 1), *one
