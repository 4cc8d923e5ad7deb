"""What ``diff`` shows: the lines that a kernel changes of its parent."""

import difflib
from typing import NamedTuple, Self

from ..core.builds.source import Source
from ..core.errors import CatalogError, ProblemError
from ..core.kernel import catalog
from ..core.kernel.kernel import Kernel
from .text_result import TextResult


class _File(NamedTuple):
    """A kernel's file, with what it includes of other kernels' files; no engine is needed."""

    name: str
    lines: list[str]
    parent: str | None

    @classmethod
    def of(cls, kernel: Kernel | str) -> Self:
        if isinstance(kernel, Kernel):
            return cls(kernel.name, kernel.file.whole.splitlines(), kernel.header.parent)
        if "@" in kernel:
            raise ProblemError(f"diff compares files: leave out the tunables of {kernel}")
        path = catalog.find(kernel)
        text = catalog.read(path)
        whole = Source(text, path.stem, path).whole
        return cls(path.stem, whole.splitlines(), catalog.parse_header(text, path).parent)


def difference(kernel: Kernel | str, other: Kernel | str | None = None) -> TextResult:
    """Return a diff of two kernels' files, and how many lines are the first kernel's own.

    Parameters
    ----------
    kernel : a kernel, or its name or path.
    other : the kernel to compare it with; None: the parent that its header names.

    Raises
    ------
    CatalogError
        There is no such kernel, or the header names no parent.
    """
    new = _File.of(kernel)
    if other is None and new.parent is None:
        raise CatalogError(
            f"{new.name} names no parent in its header, so that there is nothing to compare it with; "
            "name the other kernel"
        )
    old = _File.of(new.parent if other is None else other)
    changes = list(difflib.unified_diff(old.lines, new.lines, old.name, new.name, lineterm=""))
    own = sum(line.startswith("+") and not line.startswith("+++") for line in changes)
    total = len(new.lines)
    summary = f"{own} of {total} lines of {new.name} are not in {old.name}"
    document = {"kernel": new.name, "parent": old.name, "lines": total, "own": own}
    return TextResult("\n".join([*changes, "", summary]), document)
