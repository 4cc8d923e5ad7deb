"""What an engine and its memory can do of a problem: all of it, or a smaller one like it."""

from collections.abc import Iterable

from ..arguments import choice
from ..errors import LaunchError
from ..machine.device import available_bytes
from ..problem.format import FLOAT32
from ..problem.problem import Problem
from .runnable import Runnable

SPARE_BYTES = 4 << 30  # what a check may take beside x, w, y, and x and w once more


def fit(
    problem: Problem, runnables: Iterable[Runnable], scale: str | None = "auto"
) -> tuple[Problem, str | None]:
    """Shrink a problem to what the runnables' engine and memory can do; return it and a note."""
    runnables = list(runnables)
    device = runnables[0].device
    free = available_bytes(device)
    # x, w, y once each; x and w again, to see them unchanged; workspace and comparison in chunks
    size = FLOAT32.bytes(problem)
    chunk = max(min(SPARE_BYTES, 4 * problem.min_bytes), 3 * size["y"] // max(problem.N, 1))
    needed = problem.min_bytes + size["x"] + size["w"] + chunk
    if scale is None:
        if needed > free:
            raise LaunchError(
                f"{problem.label} needs about {needed / 1e9:.1f} GB on {device}, where "
                f'{free / 1e9:.1f} GB are free; let scale="auto" shrink it, or take a smaller one'
            )
        return problem, None
    choice(scale, "scale", ("auto",))  # or None: never
    limits = [r.runs_on.macs_in_a_second for r in runnables if r.counts]
    macs = min(limits, default=max(problem.macs, 1))
    limit = free if needed <= free else max(int(free - min(SPARE_BYTES, free // 2)) // 2, 1)
    smaller = problem.scaled(macs, max_bytes=limit)
    if smaller == problem:
        return problem, None
    why = f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB free"
    if needed <= free:
        seconds = problem.macs / macs
        units = {3600: "hours", 60: "minutes", 1: "seconds"}
        unit = next((unit for unit in units if seconds >= 2 * unit), 1)
        why = f"all of it would take the simulator about {seconds / unit:.0f} {units[unit]}"
    return smaller, f"scaled down to {smaller}: {why}"
