"""Put recorded executions of several warps into an order that respects the barriers."""

from typing import Any

Step = dict[str, Any]


def in_order(executions: list[Step]) -> list[Step]:
    """Return the executions of a launch in an order in which the warps can run them.

    The simulator records the executions of each warp in their order, but those of one warp after
    those of another. Operations that are no accesses have a number: the order in which they ran. An
    access is placed after the last operation of its warp.

    Returns
    -------
    list of dict
        A copy of each execution, with ``execution``: how often that warp executed the same kind of
        access at that line before, from 0.
    """
    latest: dict[int, int] = {}
    keyed = []
    for step in executions:
        warp = step["warp"]
        if not step["space"]:
            latest[warp] = max(latest.get(warp, -1), step["number"])
        keyed.append((latest.get(warp, -1), step))
    # The sort is stable, so it keeps the order of each warp.
    keyed.sort(key=lambda pair: pair[0])
    times: dict[tuple, int] = {}
    ordered = []
    for _, step in keyed:
        place = _place(step)
        execution = times.get(place, 0)
        times[place] = execution + 1
        ordered.append({**step, "execution": execution})
    return ordered


def first_of_each(steps: list[Step], number: int) -> list[Step]:
    """Return the first executions of each source line by each warp."""
    return [step for step in steps if step["execution"] < number]


def _place(step: Step) -> tuple:
    return step["warp"], step["file"], step["line"], step["space"], step["kind"], step["array"]
