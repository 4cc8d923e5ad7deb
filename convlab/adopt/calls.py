"""What the calls of an answer's functions did, on either engine."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Calls:
    """What the calls of an answer's functions did.

    Attributes
    ----------
    launches : how many kernels were launched.
    counters : the simulator's counters, summed over the calls; empty on a GPU.
    findings : those of all calls: errors and warnings.
    errors : the texts of errors, also of those that the answer caught.
    by_kernel : kernel, grid and block of each launch on the simulator.
    lines : memory traffic by source line on the simulator; see `SimLaunch.lines`.
    """

    launches: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    findings: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    by_kernel: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
