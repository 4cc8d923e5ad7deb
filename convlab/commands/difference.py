"""Compare the files of two kernels, for ``diff``."""

import difflib
from typing import NamedTuple, Self

from ..core.builds.source import Source
from ..core.errors import CatalogError, ProblemError
from ..core.kernel import catalog
from ..core.kernel.kernel import Kernel
from .text_result import TextResult

# After a diff of more lines the summary is repeated.
_LONG = 30


class _File(NamedTuple):
    """A kernel's file, together with the kernels' files that it includes; no engine is needed."""

    name: str
    lines: list[str]
    parent: str | None

    @classmethod
    def of(cls, kernel: Kernel | str) -> Self:
        if isinstance(kernel, Kernel):
            return cls(kernel.name, kernel.file.whole.splitlines(), kernel.header.parent)
        if catalog.split_tunables(kernel)[1]:
            raise ProblemError(f"diff compares files: leave out the tunables of {kernel}")
        path = catalog.find(kernel)
        text = catalog.read(path)
        whole = Source(text, path.stem, path).whole
        return cls(path.stem, whole.splitlines(), catalog.parse_header(text, path).parent)


def difference(kernel: Kernel | str, other: Kernel | str | None = None) -> TextResult:
    """Return a diff of two kernels' files, and how many lines of the new file are not in the old.

    Parameters
    ----------
    kernel : a kernel, or its name or path. With `other` it is the old file, ``---``. Without `other`
        it is the new file, and the parent that its header names is the old one.
    other : the kernel that is the new file, ``+++``.

    Raises
    ------
    CatalogError
        There is no such kernel, or the header names no parent.
    """
    old = _File.of(kernel)
    if other is None:
        new = old
        if new.parent is None:
            raise CatalogError(
                f"{new.name} has no `parent:` line in its header; name a second kernel to compare "
                "it with"
            )
        old = _File.of(new.parent)
    else:
        new = _File.of(other)
    changes = list(difflib.unified_diff(old.lines, new.lines, old.name, new.name, lineterm=""))
    own = sum(line.startswith("+") and not line.startswith("+++") for line in changes)
    total = len(new.lines)
    summary = f"{own} of {total} lines of {new.name} are not in {old.name}"
    lines = [summary, *([""] if changes else []), *changes]
    if len(changes) > _LONG:
        # The first line has left the screen.
        lines += ["", summary]
    document = {"kernel": new.name, "parent": old.name, "lines": total, "own": own}
    return TextResult("\n".join(lines), document)
