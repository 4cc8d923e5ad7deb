"""What ``diff`` shows: the lines that a kernel changes of its parent."""

import difflib

from ..core.errors import CatalogError
from ..core.kernel.kernel import Kernel, load
from .text_result import TextResult


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
    kernel = _loaded(kernel)
    other = kernel.header.parent if other is None else other
    if other is None:
        raise CatalogError(
            f"{kernel.name} names no parent in its header, so that there is nothing to compare it "
            "with; name the other kernel"
        )
    other = _loaded(other)
    old_lines = other.file.whole.splitlines()
    new_lines = kernel.file.whole.splitlines()
    changes = list(difflib.unified_diff(old_lines, new_lines, other.name, kernel.name, lineterm=""))
    own = sum(line.startswith("+") and not line.startswith("+++") for line in changes)
    total = len(new_lines)
    summary = f"{own} of {total} lines of {kernel.name} are not in {other.name}"
    document = {"kernel": kernel.name, "parent": other.name, "lines": total, "own": own}
    return TextResult("\n".join([*changes, "", summary]), document)


def _loaded(kernel: Kernel | str) -> Kernel:
    return kernel if isinstance(kernel, Kernel) else load(kernel)
