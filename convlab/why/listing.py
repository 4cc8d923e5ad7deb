"""A kernel's source, line by line, with what each line cost on the simulator."""

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACES = {"global": ("sectors", "0,114,178"), "shared": ("wavefronts", "230,159,0")}
_HEADS = ("SASS", "issued", "access", "requests", "each takes", "least", "share")
_FORM = "{:>4} {:>5} {:>6} {:>12} {:>7} {:>6} {:>6}  {}"


@dataclass(frozen=True, repr=False)
class Listing:
    """An annotated source: text in a terminal, a table in a notebook.

    Attributes
    ----------
    name : of the kernel.
    source : its lines.
    rows : what the simulator counted by line: line, space, kind, array, requests, units (sectors
        of global memory, wavefronts of shared memory), ideal_units, share (of all units of that
        space, 0 to 1), lanes.
    findings : by line, what is wrong or wasteful there.
    instructions : by line, how many machine instructions nvcc made of it.
    issued : by line, its share of the instructions that warps issue, as the model counts them.
    """

    name: str
    source: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    findings: Mapping[int, Sequence[str]]
    instructions: Mapping[int, int]
    issued: Mapping[int, float] = field(default_factory=dict)

    def _rows(self) -> Iterator[tuple[str, str, list[str], Mapping[str, Any] | None]]:
        """Each row: number, text, SASS and issued, and an access; of a finding its text alone."""
        for number, text in enumerate(self.source, 1):
            made, share = self.instructions.get(number, ""), self.issued.get(number, 0.0)
            front = f"{number}", text, [f"{made}", f"{share:.1%}" if share >= 0.0005 else ""]
            for row in [r for r in self.rows if r["line"] == number] or [None]:
                yield *front, row
                front = "", "", ["", ""]
            for finding in self.findings.get(number, ()):
                yield "", f"^ {finding}", ["", ""], None

    def __str__(self) -> str:
        heading = "requests of warps; sectors (g) or wavefronts (s) per request; share of them"
        names = ("line", "SASS", "issued", "requests", "per req", "least", "share", "")
        lines = [f"{self.name}: {heading}", _FORM.format(*names).rstrip()]
        quiet = 0
        for number, text, front, row in self._rows():
            if number and row is None and not front[0] and int(number) not in self.findings:
                quiet += 1
                continue
            if quiet:
                lines.append(f"{'':>4}  ({quiet} line{'s' * (quiet > 1)} that cost nothing)")
                quiet = 0
            cells = [""] * 4
            if row is not None:
                each, least, share = _costs(row)
                cells = [f"{row['requests']:,.0f}", each + row["space"][0], least, share]
            finding = row is None and not number
            shown = f"{'':>10} {text}" if finding else _FORM.format(number, *front, *cells, text)
            lines.append(shown.rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The source first, which folds in a narrow page; no colours but bars, for any theme."""
        shown = [_row(self.name, _HEADS)]
        for number, text, front, row in self._rows():
            cells, bar = [""] * 5, ""
            if row is not None:
                (unit, color), count, share = _SPACES[row["space"]], row["requests"], row["share"]
                each, least, percent = _costs(row)
                cells = [
                    f"{row['kind']} {row['array'].removeprefix('extern ')}",
                    f"{count:,.0f}" if count < 1e7 else f"{count / 1e6:,.0f} M",
                    f"{each} {unit}", least, percent,
                ]  # fmt: skip
                shade = f"rgba({color},.45) {100 * share:.0f}%,transparent {100 * share:.0f}%"
                bar = f";background:linear-gradient(90deg,{shade})"
            shown.append(_row(f"{number:>4}  {text}", [*front, *cells], bar))
        return f'<table style="border-collapse:collapse;font-size:11px">{"".join(shown)}</table>'


def _costs(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Sectors or wavefronts of a request, how few would do, and the share of all."""
    requests = row["requests"] or math.inf
    each, least = (f"{row[key] / requests:.2f}" for key in ("units", "ideal_units"))
    return each, least, f"{row['share']:.0%}"


def _row(line: str, cells: Sequence[str], bar: str = "") -> str:
    """A line, which may fold, and numbers, which may not; GitHub keeps the attribute `align`."""
    code = re.sub(" (?= )", "&nbsp;", html.escape(line))  # blanks that no page drops
    code = f'<code style="font-size:11px;white-space:normal">{code}</code>'
    folds, style = "white-space:normal", "padding:0 4px;text-align"
    row = f'<td align="left" style="{style}:left;{folds}{bar}">{code}</td>'
    for cell in cells:
        row += (
            f'<td align="right" style="{style}:right;white-space:nowrap">{html.escape(cell)}</td>'
        )
    return f"<tr>{row}</tr>"
