"""List the settings of the default check, and the problems that run in them.

A kernel that is correct on all problems runs in each setting on a 3x3 problem and a 1x1 problem. The
settings are unusual data (`unusual_data.py`), tensors at other addresses, calls for other problems
first (`after_others.py`), little workspace, and an x of over 2^31 elements (`sparse.py`).

x, w and bias may start at any multiple of their element size, y at any multiple of 16 bytes. A kernel
with wider accesses must test the address, or return an error for such tensors.
"""

import dataclasses
from collections.abc import Iterable

from ..core.correctness.setting import Setting
from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .after_others import SHARED_BYTES, AfterOthers
from .other_gpus import OTHER_GPUS
from .sparse import SPARSE
from .unusual_data import Denormals, Huge, Integers, Special, Tiny, Zeros

# y is 16-byte aligned, and a kernel must not rely on more.
Y_OFFSET = 16
OFFSET = Setting("offset", "with x, w and bias 4 bytes past an aligned address", offset=4)
ALL_OFFSET = Setting(
    "y_offset",
    "with x, w, bias and y 16 bytes past an aligned address",
    offset=Y_OFFSET,
    y_offset=Y_OFFSET,
)
AFTER_OTHERS = AfterOthers()
SETTINGS = (
    Integers(),
    Zeros(),
    Huge(),
    Tiny(),
    Denormals(),
    Special(),
    OFFSET,
    ALL_OFFSET,
    AFTER_OTHERS,
)
# With so little workspace im2col has to work in chunks: of pixels, or of images.
IN_CHUNKS = (
    Setting("little_workspace", "with 40,000 bytes of workspace", workspace=40_000, twice=True),
    Setting("some_workspace", "with 150,000 bytes of workspace", workspace=150_000, twice=True),
)
ALL = (*SETTINGS, SPARSE, *IN_CHUNKS, *OTHER_GPUS)
NAMES = tuple(setting.name for setting in ALL)

_HOSTS = ("N2 C6 H11 W12 K8 R3 S3 p1 g2 bias", "N2 C6 H11 W12 K12 R3 S3 p1 g6 bias")
# Kernels often have a separate path for these, with 16-byte accesses.
_POINTWISE = "N2 C8 H8 W12 K8 R1 S1 bias"
# Here a block may need more shared memory than the kernel requested in an earlier, smaller call.
_LARGE = "limits.channels_4099"
_FEW_MACS = 500_000


def settings_for(problem: Problem) -> tuple[Setting, ...]:
    """Return the settings for a problem: all, or only the last one for a large problem."""
    return SETTINGS[-1:] if 4 * problem.gemm_k > SHARED_BYTES else SETTINGS


def host_problems(kernel: Runnable, correct: Iterable[Problem]) -> list[Problem]:
    """Return the problems that run in the settings.

    They are a 3x3 problem, a 1x1 problem, with a ReLU if the kernel fuses one, and a problem with
    many channels. If the kernel does not support the 3x3 problem, the first small problem on which
    it is correct takes its place.
    """
    small = [p for p in correct if p.macs <= _FEW_MACS and min(p.N, p.P, p.Q) > 1]
    first = _supported(kernel, [*map(named_problem, _HOSTS), *small])[:1]
    pointwise = _supported(kernel, [named_problem(_POINTWISE)])
    large = _supported(kernel, [named_problem(_LARGE)])
    second = [with_relu(kernel, problem) for problem in pointwise or first]
    return list(dict.fromkeys([*first, *second, *large]))


def _supported(kernel: Runnable, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that the kernel supports."""
    return [problem for problem in problems if not kernel.unsupported(problem)]


def with_relu(kernel: Runnable, problem: Problem) -> Problem:
    """Return the problem with a ReLU, or unchanged if the kernel does not support a ReLU."""
    other = dataclasses.replace(problem, relu=True)
    return problem if kernel.unsupported(other) else other
