"""Write findings as text of at most one screen, with their source lines."""

from collections.abc import Sequence
from pathlib import Path

from ..core.finding import Finding

# The largest number of lines of a text.
SCREEN = 24


def describe_findings(findings: Sequence[Finding], label: str, source: Path | str) -> str:
    """Return a text of at most `SCREEN` lines about findings, in their order.

    `label` is the kernel's name; `source` is its file or its text.
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
    """Return the lines about one finding: what, which thread, the source line, the other access."""
    lines = [f"{finding.kind}: {finding.text}"]
    if finding.block is not None:
        others = finding.count - 1
        plural = "" if others == 1 else "s"
        more = f", and {others} more thread{plural}" if others else ""
        lines.append(f"  block {finding.block}, thread {finding.thread}{more}")
    lines += quote_line(finding.file, finding.line, source)
    if finding.other_block is not None:
        other = f"block {finding.other_block}, thread {finding.other_thread}"
        lines.append(f"  the other access: {other}")
        if (finding.other_file, finding.other_line) != (finding.file, finding.line):
            lines += quote_line(finding.other_file, finding.other_line, source)
    return lines


def quote_line(file: str | None, line: int | None, source: Path | str) -> list[str]:
    """Return a source line as a line of a report; an empty list if the line is not known."""
    if file is None:
        return []
    path = Path(file)
    if path.is_absolute() and path.is_file():
        # An absolute path is that of a header, or of a kernel outside the catalog.
        name = path.name
        text = path.read_text()
    elif isinstance(source, Path):
        name = source.name
        text = source.read_text()
    else:
        # A kernel from a text has the file name under which it was built.
        name = path.name
        text = source
    quoted = text.splitlines()[line - 1 : line]
    return [f"  {name}:{line}:  {quoted[0].strip() if quoted else ''}"]
