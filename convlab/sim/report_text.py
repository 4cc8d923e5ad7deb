"""Writes findings as text: at most a screen, with the source lines that they name."""

from collections.abc import Sequence
from pathlib import Path

from ..core.finding import Finding

# The largest number of lines of a text.
SCREEN = 24


def describe_findings(findings: Sequence[Finding], label: str, source: Path | str) -> str:
    """Return a text of at most `SCREEN` lines about findings, in their order.

    `label` and `source` are the kernel's name, and its file or its text.
    """
    lines: list[str] = []
    for shown, finding in enumerate(findings):
        paragraph = _describe(finding, source)
        if lines and len(lines) + len(paragraph) >= SCREEN:
            lines.append(f"and {len(findings) - shown} more: see the error's .findings")
            break
        lines += paragraph
    return f"{label}: " + "\n".join(lines)


def _describe(finding: Finding, source: Path | str) -> list[str]:
    """Return the lines about one finding: what, which thread, the source line, the other thread."""
    lines = [f"{finding.kind}: {finding.text}"]
    if finding.block is not None:
        more = f", and {finding.count - 1} more threads" if finding.count > 1 else ""
        lines.append(f"  block {finding.block}, thread {finding.thread}{more}")
    lines += quote_line(finding.file, finding.line, source)
    if finding.other_block is not None:
        lines.append(f"  the other: block {finding.other_block}, thread {finding.other_thread}")
        if (finding.other_file, finding.other_line) != (finding.file, finding.line):
            lines += quote_line(finding.other_file, finding.other_line, source)
    return lines


def quote_line(file: str | None, line: int | None, source: Path | str) -> list[str]:
    """Return a source line as a line of a report; nothing where it is not known."""
    if file is None:
        return []
    path = Path(file)
    if path.is_file():
        # The path is absolute: a header, or a kernel outside the catalog.
        name = path.name
        text = path.read_text()
    elif isinstance(source, Path):
        name = source.name
        text = source.read_text()
    else:
        # The text has the name that it had when it was built.
        name = path.name
        text = source
    quoted = text.splitlines()[line - 1 : line]
    return [f"  {name}:{line}:  {quoted[0].strip() if quoted else ''}"]
