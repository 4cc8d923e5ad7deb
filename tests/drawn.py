"""The problems that hypothesis draws for all tests."""

from __future__ import annotations

from hypothesis import strategies as st

from convlab.core.problem.problem import Problem

# Sizes where tiles end, and primes.
EDGES = (1, 2, 3, 5, 7, 13, 15, 16, 17, 29, 31, 32, 33, 53, 127, 128, 129)
FILTERS = ((1, 1), (3, 3), (2, 2), (1, 4), (3, 2), (4, 1), (5, 5), (7, 3), (5, 9), (11, 11))


@st.composite
def generated(draw: st.DrawFn, macs: int, edges: tuple[int, ...] = EDGES) -> Problem:
    """Draw a problem over all options, of about `macs` multiply-adds at most.

    Output sizes and channels are drawn from `edges`, as far as the multiply-adds last, and the
    input is made to fit: with up to stride - 1 rows and columns that nothing reads.
    """

    def pick(values: tuple, most: int) -> int:
        return draw(st.sampled_from([v for v in values if v <= max(most, 1)] or [1]))

    R, S = draw(st.sampled_from(FILTERS))
    left = macs // (R * S)
    kind = draw(st.sampled_from(("dense", "groups", "depthwise", "multiplier")))
    groups = 1 if kind == "dense" else pick((2, 3, 4, 5, 8, 19, 33), left // 4)
    left //= groups
    per_group = pick(edges, min(left // 4, 1 << 10)) if kind in ("dense", "groups") else 1
    left //= per_group
    filters = 1 if kind == "depthwise" else pick(edges, left // 4)
    P = pick(edges, (left := left // filters))
    Q = pick(edges, (left := left // P))
    N = draw(st.integers(0, min(3, max(1, left // Q))))
    sizes = []
    stride = []
    padding = []
    dilation = []
    for outputs, taps in ((P, R), (Q, S)):
        step = draw(st.integers(1, 4))
        spread = draw(st.integers(1, 3))
        extent = spread * (taps - 1) + 1
        around = draw(st.sampled_from((0, 1, extent // 2, extent + 1)))  # the last: past the filter
        unread = draw(st.integers(0, step - 1))
        sizes.append(max(1, (outputs - 1) * step + extent - 2 * around + unread))
        stride.append(step)
        padding.append(around)
        dilation.append(spread)
    return Problem(
        N,
        per_group * groups,
        *sizes,
        filters * groups,
        R,
        S,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        draw(st.booleans()),
        draw(st.booleans()),
    )
