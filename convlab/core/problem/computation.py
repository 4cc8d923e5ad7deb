"""What a kernel computes of a convolution: the output, or one of its two gradients.

A forward convolution computes y from x and w. Training needs two more sums of products of the same
tensors: the data gradient dx from dy and w, and the weight gradient dw from x and dy. A kernel's
header says which one it computes, and one `Problem` describes all three.

This module has the names, and a `Problem` has the shapes of the first and the second input and of
the output. So most code need not ask which of the three it is. Only what computes one itself does:
the reference and the libraries, which call another function of torch for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arguments import choice


@dataclass(frozen=True)
class Computation:
    """One of the three sums of products.

    Attributes
    ----------
    name : as in a header's ``computes:``.
    inputs : the names of the first and the second input.
    output : the name of the output.
    entry : the entry point of a kernel file.
    symbol : how the output's elements are written in messages, such as "(n, k, p, q)".
    """

    name: str
    inputs: tuple[str, str]
    output: str
    entry: str
    symbol: str

    @property
    def is_forward(self) -> bool:
        """Whether this is the convolution itself."""
        return self is FORWARD

    @property
    def letters(self) -> str:
        """The letters of the output's dimensions, such as "nkpq"."""
        return "".join(filter(str.isalpha, self.symbol))

    @property
    def names(self) -> dict[str, str]:
        """The name of each tensor, by its place: x, w and y are the places of a convolution."""
        return {"x": self.inputs[0], "w": self.inputs[1], "bias": "bias", "y": self.output}


FORWARD = Computation("forward", ("x", "w"), "y", "conv2d", "(n, k, p, q)")
DATA_GRADIENT = Computation(
    "data gradient", ("dy", "w"), "dx", "conv2d_data_gradient", "(n, c, h, w)"
)
WEIGHT_GRADIENT = Computation(
    "weight gradient", ("x", "dy"), "dw", "conv2d_weight_gradient", "(k, c, r, s)"
)
COMPUTATIONS = {each.name: each for each in (FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT)}


def computation(name: str) -> Computation:
    """Return the computation with a name. Raises ProblemError if there is none.

    Examples
    --------
    >>> computation("data gradient").inputs
    ('dy', 'w')
    """
    return COMPUTATIONS[choice(name, "computes", COMPUTATIONS)]
