"""Show a kernel's source with the cost of each line on the simulator."""

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# For each memory space: the unit of its cost, and the colour of its bars (red, green, blue).
_SPACES = {"global": ("sectors", "0,114,178"), "shared": ("wavefronts", "230,159,0")}
_HEADINGS = ("issued", "access", "requests", "per request", "least", "share")
# The columns in a terminal, without that of the access.
_FORM = "{:>4} {:>6} {:>12} {:>16} {:>6} {:>6}  {}"
# Smaller shares of all issued instructions are not shown.
_LEAST_SHARE = 0.0005


class _Row(NamedTuple):
    """A row: line number, text, a cell for each of `_HEADINGS`, and the style of a bar."""

    number: str
    text: str
    cells: list[str]
    bar: str = ""


@dataclass(frozen=True, repr=False)
class Listing:
    """An annotated source: a text, or a table in a notebook.

    The same data are in the frame `Inspection.lines`.

    Attributes
    ----------
    name : the kernel's name.
    source : its lines.
    rows : the simulator's counts by line: line, space, kind, array, requests, units (sectors of
        global memory, wavefronts of shared memory), ideal_units, share (of all units of that
        space, 0 to 1), lanes, partial (sectors of which a block stored only a part).
    findings : the findings of each line.
    issued : the share of each line in the instructions that warps issue, by the model's count.
    """

    name: str
    source: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    findings: Mapping[int, Sequence[str]]
    issued: Mapping[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [self.name, _FORM.format("line", _HEADINGS[0], *_HEADINGS[2:], "").rstrip()]
        without_cost = 0
        for row in self._rows():
            if row.number and not any(row.cells) and int(row.number) not in self.findings:
                without_cost += 1
                continue
            if without_cost:
                plural = "s" if without_cost > 1 else ""
                lines.append(f"{'':>4}  ({without_cost} line{plural} without cost)")
                without_cost = 0
            issued, _, *others = row.cells
            lines.append(_FORM.format(row.number, issued, *others, row.text).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table. Its source column wraps in a narrow page.

        Only the bars have a colour, so that the table fits any theme.
        """
        rows = [_html_row(self.name, _HEADINGS)]
        for row in self._rows():
            rows.append(_html_row(f"{row.number:>4}  {row.text}", row.cells, row.bar))
        return f'<table style="border-collapse:collapse;font-size:11px">{"".join(rows)}</table>'

    def _rows(self) -> Iterator[_Row]:
        """Yield a row for each line, for each further access of a line, and for each finding."""
        for number, text in enumerate(self.source, 1):
            share = self.issued.get(number, 0.0)
            issued = f"{share:.1%}" if share >= _LEAST_SHARE else ""
            accesses = [row for row in self.rows if row["line"] == number]
            if not accesses:
                yield _Row(str(number), text, [issued, "", "", "", "", ""])
            for position, access in enumerate(accesses):
                cells = _cells(access)
                bar = _bar(access)
                if position == 0:
                    yield _Row(str(number), text, [issued, *cells], bar)
                else:
                    yield _Row("", "", ["", *cells], bar)
            for finding in self.findings.get(number, ()):
                yield _Row("", f"^ {finding}", [""] * len(_HEADINGS))


def _cells(access: Mapping[str, Any]) -> list[str]:
    """Return the cells of an access: name, requests, units per request, their minimum, share."""
    unit, _ = _SPACES[access["space"]]
    requests = access["requests"]
    per_request = access["units"] / (requests or math.inf)
    least = access["ideal_units"] / (requests or math.inf)
    return [
        f"{access['kind']} {access['array'].removeprefix('extern ')}",
        f"{requests:,.0f}" if requests < 1e7 else f"{requests / 1e6:,.0f} M",
        f"{per_request:.2f} {unit}",
        f"{least:.2f}",
        f"{access['share']:.0%}",
    ]


def _bar(access: Mapping[str, Any]) -> str:
    """Return the style of a bar behind the source that shows an access's share."""
    _, color = _SPACES[access["space"]]
    end = f"{100 * access['share']:.0f}%"
    gradient = f"rgba({color},.45) {end},transparent {end}"
    return f";background:linear-gradient(90deg,{gradient})"


def _html_row(line: str, cells: Sequence[str], bar: str = "") -> str:
    """Return a row with a source line, which may wrap, and cells, which may not.

    GitHub removes styles and keeps the attribute `align`. Every page keeps non-breaking spaces.
    """
    code = re.sub(" (?= )", "&nbsp;", html.escape(line))
    code = f'<code style="font-size:11px;white-space:normal">{code}</code>'
    style = "padding:0 4px;text-align"
    columns = [f'<td align="left" style="{style}:left;white-space:normal{bar}">{code}</td>']
    for cell in cells:
        text = html.escape(cell)
        columns.append(f'<td align="right" style="{style}:right;white-space:nowrap">{text}</td>')
    return f"<tr>{''.join(columns)}</tr>"
