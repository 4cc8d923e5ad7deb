"""The settings of the default check, and the problems that each is tried on.

A kernel that was right on all problems so far is tried on a 3x3 problem and a 1x1 problem in each of
these settings: other data than normal (`unusual_data.py`), tensors at other addresses, after calls for
other problems (`after_others.py`), in little workspace, and on an x beyond 2^31 (`sparse.py`).

x, w and bias may begin at any multiple of their element's size, y at any multiple of 16 bytes. A kernel
with wider accesses tests the address, or says that it does not support such tensors.
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

Y_OFFSET = 16  # bytes: the most that a kernel may rely on for where y begins
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
# Room for one pixel at least, and for two images of three: im2col then works in chunks.
IN_CHUNKS = (
    Setting("little_workspace", "with 40,000 bytes of workspace", workspace=40_000, twice=True),
    Setting("some_workspace", "with 150,000 bytes of workspace", workspace=150_000, twice=True),
)
ALL = (*SETTINGS, SPARSE, *IN_CHUNKS)
NAMES = tuple(setting.name for setting in ALL)

_HOSTS = ("N2 C6 H11 W12 K8 R3 S3 p1 g2 bias", "N2 C6 H11 W12 K12 R3 S3 p1 g6 bias")
# Kernels often have a separate path for these, with 16-byte accesses.
_POINTWISE = "N2 C8 H8 W12 K8 R1 S1 bias"
# A block may want more shared memory for this one. Did an earlier, smaller call ask for it once?
_LARGE = "limits.channels_4099"
_FEW_MACS = 500_000


def settings_for(problem: Problem) -> tuple[Setting, ...]:
    """Return the settings that are tried on a host problem: of a large one only the last."""
    return SETTINGS[-1:] if 4 * problem.gemm_k > SHARED_BYTES else SETTINGS


def host_problems(kernel: Runnable, right: Iterable[Problem]) -> list[Problem]:
    """Return the problems that the settings are tried on; `right` are problems it is right on.

    A 3x3 problem, a 1x1 one with a ReLU where the kernel fuses that, and one with many channels. Where
    the kernel does not support the first, one of `right` is taken instead.
    """
    usual = [named_problem(spec) for spec in _HOSTS]
    others = [p for p in right if p.macs <= _FEW_MACS and min(p.N, p.P, p.Q) > 1]
    taken = [p for p in [*usual, *others] if not kernel.unsupported(p)][:1]
    pointwise, large = (
        [p for p in [named_problem(spec)] if not kernel.unsupported(p)]
        for spec in (_POINTWISE, _LARGE)
    )
    second = [with_relu(kernel, p) for p in pointwise or taken]
    return list(dict.fromkeys([*taken, *second, *large]))


def with_relu(kernel: Runnable, problem: Problem) -> Problem:
    """Return the problem with a ReLU, or as it is where the kernel does not support that."""
    other = dataclasses.replace(problem, relu=True)
    return problem if kernel.unsupported(other) else other
