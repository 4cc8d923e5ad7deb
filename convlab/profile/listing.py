"""A kernel's source, line by line, with what each line cost on the simulator."""

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACES = {"global": ("sectors", "0,114,178"), "shared": ("wavefronts", "230,159,0")}
_HEADS = ("issued", "access", "requests", "each takes", "least", "share")
_FORM = "{:>4} {:>6} {:>12} {:>16} {:>6} {:>6}  {}"  # without the access


@dataclass(frozen=True, repr=False)
class Listing:
    """An annotated source, to be read: text or a table; as data it is the frame `Inspection.lines`.

    Attributes
    ----------
    name : of the kernel.
    source : its lines.
    rows : what the simulator counted by line: line, space, kind, array, requests, units (sectors
        of global memory, wavefronts of shared memory), ideal_units, share (of all units of that
        space, 0 to 1), lanes.
    findings : by line, what is wrong or wasteful there.
    issued : by line, its share of the instructions that warps issue, as the model counts them.
    """

    name: str
    source: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    findings: Mapping[int, Sequence[str]]
    issued: Mapping[int, float] = field(default_factory=dict)

    def _rows(self) -> Iterator[tuple[str, str, list[str], str]]:
        """Each row: number, text, a cell for each of `_HEADS`, and a bar's style."""
        for number, text in enumerate(self.source, 1):
            share = self.issued.get(number, 0.0)
            front = f"{number}", text, f"{share:.1%}" if share >= 0.0005 else ""
            for row in [r for r in self.rows if r["line"] == number] or [None]:
                cells, bar = _costs(row) if row else ([""] * 5, "")
                yield *front[:2], [front[2], *cells], bar
                front = "", "", ""
            for finding in self.findings.get(number, ()):
                yield "", f"^ {finding}", [""] * len(_HEADS), ""

    def __str__(self) -> str:
        lines = [self.name, _FORM.format("line", _HEADS[0], *_HEADS[2:], "").rstrip()]
        quiet = 0
        for number, text, cells, _ in self._rows():
            if number and not any(cells) and int(number) not in self.findings:
                quiet += 1
                continue
            if quiet:
                lines.append(f"{'':>4}  ({quiet} line{'s' * (quiet > 1)} that cost nothing)")
                quiet = 0
            lines.append(_FORM.format(number, cells[0], *cells[2:], text).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The source first, which folds in a narrow page; no colours but bars, for any theme."""
        shown = [
            _row(f"{number:>4}  {text}", cells, bar) for number, text, cells, bar in self._rows()
        ]
        shown.insert(0, _row(self.name, _HEADS))
        return f'<table style="border-collapse:collapse;font-size:11px">{"".join(shown)}</table>'


def _costs(row: Mapping[str, Any]) -> tuple[list[str], str]:
    """An access: what it is, how often, what of it a request takes, how little would do, its share.

    And that share as a bar.
    """
    (unit, color) = _SPACES[row["space"]]
    count = row["requests"]
    share = row["share"]
    each, least = (row[key] / (count or math.inf) for key in ("units", "ideal_units"))
    shade = f"rgba({color},.45) {100 * share:.0f}%,transparent {100 * share:.0f}%"
    cells = [
        f"{row['kind']} {row['array'].removeprefix('extern ')}",
        f"{count:,.0f}" if count < 1e7 else f"{count / 1e6:,.0f} M",
        f"{each:.2f} {unit}",
        f"{least:.2f}",
        f"{share:.0%}",
    ]
    return cells, f";background:linear-gradient(90deg,{shade})"


def _row(line: str, cells: Sequence[str], bar: str = "") -> str:
    """A line, which may fold, and numbers, which may not; GitHub keeps the attribute `align`."""
    code = re.sub(" (?= )", "&nbsp;", html.escape(line))  # blanks that no page drops
    code = f'<code style="font-size:11px;white-space:normal">{code}</code>'
    folds = "white-space:normal"
    style = "padding:0 4px;text-align"
    row = f'<td align="left" style="{style}:left;{folds}{bar}">{code}</td>'
    for cell in cells:
        row += (
            f'<td align="right" style="{style}:right;white-space:nowrap">{html.escape(cell)}</td>'
        )
    return f"<tr>{row}</tr>"
