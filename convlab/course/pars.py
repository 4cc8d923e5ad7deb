"""Write a lab's pars from a run of our own kernels, never by hand."""

import re
from pathlib import Path

from ..commands.text_result import TextResult
from ..core.errors import ProblemError
from ..core.kernel.kernel import load
from ..core.problem.problem import Problem
from .counts import count
from .lab import Lab, find_lab

_BOUNDS = ("fast_ms", "slow_ms")


def write_pars(path: str | Path, engine: str = "sim") -> TextResult:
    """Count our kernels on a lab's problem and write the values into its file.

    Each milestone is a line ``{ kernel = "NAME", share = 0.5 }`` of the file; this adds or replaces
    its ``value``. With the engine "cuda" it writes ``fast_ms`` and ``slow_ms`` of the table ``gpu``
    instead, measured on this GPU.

    Raises
    ------
    ProblemError
        The lab is invalid, or this machine cannot count what it asks for.
    """
    lab = find_lab(Path(path))
    values = counted(lab) if engine == "sim" else _timed(lab)
    text = lab.path.read_text()
    for (place, kernel), value in values.items():
        text = _with_value(text, place, kernel, value)
    lab.path.write_text(text)
    # It must still be a lab.
    find_lab(lab.path)
    lines = [f"{lab.path.name}: {len(values)} values written"]
    lines += [f"  {place} {kernel}: {value:,.6g}" for (place, kernel), value in values.items()]
    rows = [
        {"place": place, "kernel": kernel, "value": value}
        for (place, kernel), value in values.items()
    ]
    return TextResult("\n".join(lines), {"lab": lab.name, "values": rows})


def counted(lab: Lab) -> dict[tuple[str, str], float]:
    """Return the counts of each par's milestones, by quantity and kernel."""
    wanted: dict[str, list[str]] = {}
    for par in lab.pars:
        for milestone in par.milestones:
            wanted.setdefault(milestone.kernel, []).append(par.quantity)
    values = {}
    for kernel, quantities in wanted.items():
        counts = count(load(kernel, engine="sim"), lab.counters, quantities)
        if missing := sorted(set(quantities) - set(counts)):
            raise ProblemError(
                f"this machine cannot count {', '.join(missing)} of {kernel}: a prediction needs nvcc "
                "and the room profile"
            )
        for quantity in quantities:
            values[quantity, kernel] = counts[quantity]
    return values


def _timed(lab: Lab) -> dict[tuple[str, str], float]:
    """Return the times of the two kernels of the table ``gpu``, in ms."""
    from ..core.timing.measure import measure

    if lab.bounds is None:
        raise ProblemError(
            f"{lab.path.name} has no table [gpu]: add one with fast_kernel and slow_kernel"
        )

    def ms(kernel: str, problem: Problem) -> float:
        return float(f"{1e3 * measure(load(kernel, engine='cuda'), problem).seconds:.4g}")

    sides = dict(zip(_BOUNDS, (lab.bounds.fast_kernel, lab.bounds.slow_kernel)))
    return {(side, kernel): ms(kernel, lab.counters) for side, kernel in sides.items()}


def _with_value(text: str, place: str, kernel: str, value: float) -> str:
    """Return the text of a lab with the value of one milestone, or of one bound."""
    shown = f"{value:.10g}"
    if place in _BOUNDS:
        line = f"{place} = {shown}"
        if re.search(rf"^{place} = .*$", text, re.MULTILINE):
            return re.sub(rf"^{place} = .*$", line, text, flags=re.MULTILINE)
        return re.sub(r"^\[gpu\]$", f"[gpu]\n{line}", text, flags=re.MULTILINE)
    start = re.search(rf'^quantity = "{place}"$', text, re.MULTILINE)
    pattern = re.compile(
        rf'(\{{ kernel = "{re.escape(kernel)}", share = [\d.]+)(?:, value = [^}}]*?)?( \}})'
    )
    milestone = pattern.search(text, start.end() if start else 0)
    if milestone is None:
        raise ProblemError(
            f'the lab has no line {{ kernel = "{kernel}", share = ... }} below its quantity = "{place}"; '
            "write each milestone in this form"
        )
    new = f"{milestone[1]}, value = {shown}{milestone[2]}"
    return text[: milestone.start()] + new + text[milestone.end() :]
