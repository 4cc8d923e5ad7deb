"""Shrink a problem to what an engine and its memory can handle."""

from collections.abc import Iterable

from ..arguments import choice
from ..errors import LaunchError
from ..machine.device import available_bytes
from ..problem.format import FLOAT32
from ..problem.problem import Problem
from .runnable import Runnable

# The memory that a check needs besides x, w, y and copies of x and w, in bytes.
SPARE_BYTES = 4 << 30


def fit(
    problem: Problem, runnables: Iterable[Runnable], scale: str | None = "auto"
) -> tuple[Problem, str | None]:
    """Return a problem that the runnables' engine and memory can handle, and a note or None.

    The note says how the problem was shrunk, and why. With `scale` None the problem is never
    shrunk; then LaunchError is raised if memory cannot hold it.
    """
    runnables = list(runnables)
    device = runnables[0].device
    free = available_bytes(device)
    # A check needs x, w and y, copies of x and w, a workspace, and chunks for the comparison.
    size = FLOAT32.bytes(problem)
    chunk = max(min(SPARE_BYTES, 4 * problem.min_bytes), 3 * size["y"] // max(problem.N, 1))
    needed = problem.min_bytes + size["x"] + size["w"] + chunk
    if scale is None:
        if needed > free:
            raise LaunchError(
                f"{problem.label} needs about {needed / 1e9:.1f} GB on {device}, where "
                f'{free / 1e9:.1f} GB are free; use scale="auto", or a smaller problem'
            )
        return problem, None
    choice(scale, "scale", ("auto",))
    limits = [r.runs_on.macs_in_a_second for r in runnables if r.counts]
    macs = min(limits, default=max(problem.macs, 1))
    max_bytes = free
    if needed > free:
        max_bytes = max(int(free - min(SPARE_BYTES, free // 2)) // 2, 1)
    smaller = problem.scaled(macs, max_bytes=max_bytes)
    if smaller == problem:
        return problem, None
    if needed > free:
        why = f"it needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
    else:
        why = f"at full size the simulator would take about {_duration(problem.macs / macs)}"
    return smaller, f"scaled down to {smaller}: {why}"


def _duration(seconds: float) -> str:
    """Return a time in the largest unit that gives at least 2."""
    for length, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
