"""Follow what is pending after each step: copies, mbarriers, wgmmas."""

from typing import Any

from .steps import Step


class _Warp:
    """What one warp has issued and not waited for."""

    def __init__(self) -> None:
        self.barriers = 0
        # Bytes of cp.async since the last commit, and of each committed group.
        self.copying = 0
        self.copy_groups: list[int] = []
        # wgmmas since the last commit, and of each committed group.
        self.wgmmas = 0
        self.wgmma_groups: list[int] = []
        # Bytes of bulk stores, in the same way.
        self.storing = 0
        self.store_groups: list[int] = []


def add_pending(steps: list[Step]) -> None:
    """Add to each step what is pending after it.

    ``pending`` is a dict: ``barriers`` (how many __syncthreads the warp has reached), ``copies`` (the
    warp's groups of cp.async, as a list of texts), ``bulk`` (bulk loads for which the warp has not
    waited), ``stores`` (its bulk stores), ``wgmmas`` (its groups of wgmma), and ``mbarriers``: for
    each mbarrier of the block its phase, arrivals, and missing arrivals and bytes.
    """
    warps: dict[int, _Warp] = {}
    mbarriers: dict[str, dict[str, int]] = {}
    # Bulk loads of the block: barrier, phase, bytes, target.
    loads: list[tuple[str, int, int, str]] = []
    # For each warp, the first phase of each mbarrier for which it has not waited.
    waited: dict[tuple[int, str], int] = {}
    # How many operations there were, and with how many the summary of each warp was made.
    operations = 0
    made: dict[int, tuple[int, dict[str, Any]]] = {}
    for step in steps:
        number = step["warp"]
        warp = warps.setdefault(number, _Warp())
        if not step["space"]:
            _follow(warp, step)
            _follow_mbarrier(step, mbarriers, loads, waited)
            operations += 1
        if number not in made or made[number][0] != operations:
            made[number] = operations, _summary(number, warp, mbarriers, loads, waited)
        step["pending"] = made[number][1]


def _follow(warp: _Warp, step: Step) -> None:
    """Follow an operation that only its own warp sees."""
    kind = step["kind"]
    details = step["details"]
    newest = int(details.get("newest", 0))
    if kind == "__syncthreads":
        warp.barriers += 1
    elif kind == "cp.async":
        warp.copying += int(details["bytes"]) * len(step["lanes"])
    elif kind == "cp.async commit":
        warp.copy_groups.append(warp.copying)
        warp.copying = 0
    elif kind == "cp.async wait":
        warp.copy_groups = _newest(warp.copy_groups, newest)
    elif kind == "wgmma":
        warp.wgmmas += 1
    elif kind == "wgmma commit":
        warp.wgmma_groups.append(warp.wgmmas)
        warp.wgmmas = 0
    elif kind == "wgmma wait":
        warp.wgmma_groups = _newest(warp.wgmma_groups, newest)
    elif kind == "bulk store":
        warp.storing += int(details["bytes"])
    elif kind == "bulk commit":
        warp.store_groups.append(warp.storing)
        warp.storing = 0
    elif kind == "bulk wait":
        warp.store_groups = _newest(warp.store_groups, newest)


def _newest(groups: list[int], number: int) -> list[int]:
    """Return the groups that a wait for all but the newest leaves pending."""
    return groups[-number:] if number else []


def _follow_mbarrier(
    step: Step,
    mbarriers: dict[str, dict[str, int]],
    loads: list[tuple[str, int, int, str]],
    waited: dict[tuple[int, str], int],
) -> None:
    """Follow an operation on an mbarrier, which all warps see."""
    details = step["details"]
    name = details.get("barrier")
    if name is None:
        return
    state = mbarriers.setdefault(name, {"phase": 0, "arrivals": 0, "missing": 0, "bytes": 0})
    if step["kind"] == "bulk load":
        phase = int(details["phase"])
        loads.append((name, phase, int(details["bytes"]), details["to"]))
        missing = int(details["missing"])
        bytes_missing = int(details["missing_bytes"])
        # The copy may have completed the phase.
        if not missing and not bytes_missing:
            phase += 1
        state |= {"missing": missing, "bytes": bytes_missing}
        state["phase"] = max(state["phase"], phase)
        return
    state |= {key: int(details[key]) for key in ("phase", "arrivals", "missing")}
    state["bytes"] = int(details["missing_bytes"])
    if step["kind"] == "mbarrier wait":
        waited[step["warp"], name] = state["phase"]


def _summary(
    number: int,
    warp: _Warp,
    mbarriers: dict[str, dict[str, int]],
    loads: list[tuple[str, int, int, str]],
    waited: dict[tuple[int, str], int],
) -> dict[str, Any]:
    """Return what is pending for a warp."""
    bulk = [
        f"{size:,} B to {target.partition(':')[0]}, until phase {phase} of {name} ends"
        for name, phase, size, target in loads
        if phase >= waited.get((number, name), 0)
    ]
    return {
        "barriers": warp.barriers,
        "copies": _groups(warp.copying, warp.copy_groups, "B"),
        "bulk": bulk,
        "stores": _groups(warp.storing, warp.store_groups, "B"),
        "wgmmas": _groups(warp.wgmmas, warp.wgmma_groups, "wgmma"),
        "mbarriers": {name: dict(state) for name, state in mbarriers.items()},
    }


def _groups(is_open: int, groups: list[int], unit: str) -> list[str]:
    """Return the pending groups as texts, the oldest first."""
    texts = [f"committed: {amount:,} {unit}" for amount in groups]
    return [*texts, f"not committed: {is_open:,} {unit}"] if is_open else texts
