"""Leave out problems of the set "limits" that repeat another one, for a kernel that treats both alike.

Some problems of "limits" stand in for others: they have the same large size, with a filter of 1x1 or
3x3, or with channels in multiples of 8, for kernels that support nothing else. A kernel that supports
the other one too needs only that, unless its source tests the filter's size, or the channels: then it
may have a path of its own for them.
"""

import re
from collections.abc import Sequence

from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .source_conditions import code_of

# For each problem the one that it repeats, and the fields by which a kernel may choose another path.
_REPEATED = {
    "limits.images_3x3": ("awkward.images_66000", "RS"),
    "limits.images_1x1": ("awkward.images_66000", "RS"),
    "limits.images_octets": ("awkward.images_66000", "CK"),
    "limits.empty_1x1": ("limits.empty", "RS"),
    "limits.empty_depthwise": ("limits.empty", "CK G"),
    "limits.width_3x3": ("limits.width_65540", "RS"),
    "limits.width_1x1": ("limits.width_65540", "RS"),
    "limits.width_octets": ("limits.width_4100", "RS CK"),
    "limits.channels_1x1": ("limits.channels_4099", "RS"),
    "limits.channels_octets": ("limits.channels_4099", "CK"),
    "limits.filters_1x1": ("limits.filters_4099", "RS"),
    "limits.filters_octets": ("limits.filters_4099", "CK"),
    "limits.depthwise_4099": ("limits.groups_1213", "CK G"),
}


def without_repeated(kernel: Runnable, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems without those that show nothing more about this kernel."""
    return [problem for problem in problems if not _is_repeated(kernel, problem)]


def _is_repeated(kernel: Runnable, problem: Problem) -> bool:
    """Return whether a kernel treats the problem as it treats the one that this one repeats."""
    if not kernel.source or problem.name not in _REPEATED:
        return False
    other, fields = _REPEATED[problem.name]
    return not kernel.unsupported(named_problem(other)) and not _tests(kernel, fields)


def _tests(kernel: Runnable, fields: str) -> bool:
    """Return whether a kernel's source compares one of the fields, or a size made from it."""
    codes = code_of(dict(kernel.texts)).values()
    return any(_TESTED[pair].search(code) for pair in fields.split() for code in codes)


def _tested(name: str, remainder: str) -> re.Pattern[str]:
    """Return what matches a comparison of a name: `conv.R == 3`, `C_group % 8`, `8 <= K`, `switch (RS)`.

    The end of a loop, `r < conv.R`, and an index, `i / conv.S % conv.R`, are none.
    """
    return re.compile(
        rf"{name}\s*\)?\s*(?:[=!]=|[<>]=?(?![<>])|{remainder})"
        rf"|(?:[=!]=|\d\s*[<>]=?)\s*\(?\s*(?:\w+(?:\.|->))?{name}"
        rf"|\bswitch\s*\([^;{{]*{name}"
    )


# A field, or a name that begins with fields: R, RS, C_group.
_TESTED = {
    "RS": _tested(r"(?:(?<!\w)[RS]+(?:_\w+)?\b|\btaps\b)", r"%\s*2"),
    "G": _tested(r"\bgroups\b", r"%|&(?!&)"),
    "CK": _tested(r"(?<!\w)[CK]+(?:_\w+)?\b", r"%|&(?!&)"),
}
