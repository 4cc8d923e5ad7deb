"""Lists the settings of the default check, and the problems on which each is tried.

If a kernel is correct on all problems so far, it is tried on a 3x3 problem and a 1x1 problem in
each setting: unusual data (`unusual_data.py`), tensors at other addresses, calls for other problems
before (`after_others.py`), little workspace, and an x of over 2^31 elements (`sparse.py`).

x, w and bias may start at any multiple of their element size, y at any multiple of 16 bytes. A
kernel with wider accesses must test the address, or state that it does not support such tensors.
"""

import dataclasses
from collections.abc import Iterable

from ..core.correctness.setting import Setting
from ..core.kernel.runnable import Runnable
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .after_others import SHARED_BYTES, AfterOthers
from .sparse import SPARSE
from .unusual_data import Denormals, Huge, Integers, Special, Tiny, Zeros

# y is 16-byte aligned: a kernel may not rely on more.
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
# Enough for one pixel, or for two images of three: im2col then works in chunks.
IN_CHUNKS = (
    Setting("little_workspace", "with 40,000 bytes of workspace", workspace=40_000, twice=True),
    Setting("some_workspace", "with 150,000 bytes of workspace", workspace=150_000, twice=True),
)
ALL = (*SETTINGS, SPARSE, *IN_CHUNKS)
NAMES = tuple(setting.name for setting in ALL)

_HOSTS = ("N2 C6 H11 W12 K8 R3 S3 p1 g2 bias", "N2 C6 H11 W12 K12 R3 S3 p1 g6 bias")
# Kernels often have a separate path for these, with 16-byte accesses.
_POINTWISE = "N2 C8 H8 W12 K8 R1 S1 bias"
# A block may need more shared memory here than a kernel requested in an earlier, smaller call.
_LARGE = "limits.channels_4099"
_FEW_MACS = 500_000


def settings_for(problem: Problem) -> tuple[Setting, ...]:
    """Return the settings that are tried on a host problem; on a large one only the last."""
    return SETTINGS[-1:] if 4 * problem.gemm_k > SHARED_BYTES else SETTINGS


def host_problems(kernel: Runnable, correct: Iterable[Problem]) -> list[Problem]:
    """Return the problems on which the settings are tried.

    These are a 3x3 problem, a 1x1 one with a ReLU where the kernel fuses that, and one with many
    channels. If the kernel does not support the first, the first small problem of `correct` takes its
    place: the problems on which the kernel is correct.
    """
    small = [p for p in correct if p.macs <= _FEW_MACS and min(p.N, p.P, p.Q) > 1]
    first = _supported(kernel, [*map(named_problem, _HOSTS), *small])[:1]
    pointwise = _supported(kernel, [named_problem(_POINTWISE)])
    large = _supported(kernel, [named_problem(_LARGE)])
    second = [with_relu(kernel, problem) for problem in pointwise or first]
    return list(dict.fromkeys([*first, *second, *large]))


def _supported(kernel: Runnable, problems: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in problems if not kernel.unsupported(problem)]


def with_relu(kernel: Runnable, problem: Problem) -> Problem:
    """Return the problem with a ReLU, or as it is where the kernel does not support that."""
    other = dataclasses.replace(problem, relu=True)
    return problem if kernel.unsupported(other) else other
