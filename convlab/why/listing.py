"""A kernel's source, line by line, with what each line cost on the simulator."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_UNITS = {"global": "sectors", "shared": "wavefronts"}
_COLORS = {"global": "0,114,178", "shared": "230,159,0"}


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

    def __str__(self) -> str:
        head = (
            f"{'line':>4} {'SASS':>5} {'issued':>6} {'requests':>12} {'per req':>7} {'least':>6} "
            f"{'share':>6}"
        )
        lines = [
            f"{self.name}: requests of warps; sectors (g) or wavefronts (s) per request; "
            "share of them",
            head,
        ]
        quiet = 0
        for number, text in enumerate(self.source, 1):
            costs = self._at(number)
            if not costs and not self.findings.get(number) and not self.instructions.get(number):
                quiet += 1
                continue
            if quiet:
                lines.append(f"{'':>4}  ({quiet} line{'s' * (quiet > 1)} that cost nothing)")
                quiet = 0
            made = self.instructions.get(number)
            for i, row in enumerate(costs or [None]):
                left = f"{number:>4} {made or '':>5} {self._issued(number):>6}"
                left = left if i == 0 else " " * 17
                lines.append(f"{left} {self._cells(row)}  {text if i == 0 else ''}".rstrip())
            lines += [f"{'':>10} ^ {finding}" for finding in self.findings.get(number, ())]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = (
            "",
            "SASS",
            "issued",
            "what",
            "requests",
            "per request",
            "least",
            "share",
            self.name,
        )
        out = [
            # no colours of its own but the bars: legible in a light and in a dark theme
            '<table style="border-collapse:collapse;font:12px monospace"><tr>',
            *(f'<th style="text-align:{"left" if head == self.name else "right"}">'
              f"{html.escape(head)}</th>" for head in heads),
            "</tr>",
        ]  # fmt: skip
        for number, text in enumerate(self.source, 1):
            costs = self._at(number)
            for i, row in enumerate(costs or [None]):
                out.append(self._html_row(number if i == 0 else None, text if i == 0 else "", row))
            for finding in self.findings.get(number, ()):
                out.append(
                    '<tr><td colspan="8"></td>'
                    '<td style="text-align:left;white-space:pre;color:#D55E00">'
                    f"^ {html.escape(finding)}</td></tr>"
                )
        return "".join(out) + "</table>"

    def _html_row(self, number: int | None, text: str, row: Mapping[str, Any] | None) -> str:
        cells = [str(number or ""), str(self.instructions.get(number, "")) if number else "",
                 self._issued(number) if number else ""]  # fmt: skip
        style = ""
        if row is None:
            cells += [""] * 5
        else:
            color, share = _COLORS[row["space"]], row["share"]
            style = (
                f"background:linear-gradient(90deg,rgba({color},.45) {100 * share:.0f}%,"
                f"transparent {100 * share:.0f}%)"
            )
            unit = _UNITS[row["space"]]
            cells += [
                f"{row['kind']} {row['array']} ({row['space']})", f"{row['requests']:,.0f}",
                f"{_ratio(row, 'units'):.2f} {unit}", f"{_ratio(row, 'ideal_units'):.2f}",
                f"{share:.0%}",
            ]  # fmt: skip
        cell = '<td style="text-align:right;white-space:pre;padding:0 6px">{}</td>'
        return (
            "<tr>" + "".join(cell.format(html.escape(value)) for value in cells)
            + f'<td style="text-align:left;white-space:pre;{style}">{html.escape(text)}</td></tr>'
        )  # fmt: skip

    def _at(self, number: int) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["line"] == number]

    def _issued(self, number: int) -> str:
        share = self.issued.get(number, 0.0)
        return f"{share:.1%}" if share >= 0.0005 else ""

    @staticmethod
    def _cells(row: Mapping[str, Any] | None) -> str:
        if row is None:
            return " " * 34
        return (
            f"{row['requests']:>12,.0f} {_ratio(row, 'units'):>6.2f}{row['space'][0]} "
            f"{_ratio(row, 'ideal_units'):>6.2f} {row['share']:>6.0%}"
        )


def _ratio(row: Mapping[str, Any], key: str) -> float:
    return row[key] / row["requests"] if row["requests"] else 0.0


def with_shares(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with `share`: of all units of their space."""
    whole: dict[str, float] = {}
    for row in lines:
        whole[row["space"]] = whole.get(row["space"], 0) + row["units"]
    return [dict(row) | {"share": row["units"] / (whole[row["space"]] or 1)} for row in lines]
