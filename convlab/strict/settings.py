"""List the settings of the default check, and the problems that run in them.

A kernel that is correct on all problems runs in each setting on a 3x3 problem and a 1x1 problem. The
settings are unusual data (`unusual_data.py`), tensors at other addresses, calls for other problems
first (`after_others.py`), little workspace, and a tensor of over 2^31 elements (`sparse.py`).

x, w and bias may start at any multiple of their element size, y at any multiple of 16 bytes, the
workspace and the prepared filter at any multiple of 256 bytes. A kernel with wider accesses must test
the address, or return an error for such an x, w or bias. It must test each address by itself: so one
buffer moves alone, and the others stay.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from itertools import product

from ..core.correctness import reference
from ..core.correctness.report import Report
from ..core.correctness.setting import Offsets, Setting
from ..core.errors import LaunchError
from ..core.kernel.runnable import Runnable
from ..core.problem.computation import WEIGHT_GRADIENT
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .after_others import (
    SHARED_BYTES,
    AfterLittleShared,
    AfterOthers,
    BackToBack,
    LeastWorkspace,
    TwoStreams,
    has_variables,
    starts_early,
)
from .other_gpus import OTHER_GPUS
from .sparse import SPARSE
from .unusual_data import (
    Cancelled,
    Denormals,
    Huge,
    Integers,
    Overflowing,
    Special,
    SpecialEnds,
    SpecialZeros,
    Tiny,
    UnusualData,
    Zeros,
)

OFFSET = Setting(
    "offset",
    "with x, w and bias 4 bytes past an aligned address",
    offsets=Offsets(x=4, w=4, bias=4),
)
ALL_OFFSET = Setting(
    "y_offset",
    "with x, w, bias and y 16 bytes past an aligned address",
    offsets=Offsets(x=16, w=16, bias=16, y=16),
)


def _alone(buffer: str, offset: int) -> Setting:
    """Return the setting that moves one buffer by some bytes."""
    name = f"{buffer}_offset_{offset}"
    words = f"with {buffer} alone {offset} bytes past an aligned address"
    return Setting(name, words, offsets=Offsets(**{buffer: offset}))


ALONE = (
    *(_alone(name, offset) for name in ("x", "w", "bias") for offset in (2, 4, 8, 16)),
    _alone("y", 16),
    _alone("workspace", 256),
)
AFTER_OTHERS = AfterOthers()
SETTINGS = (
    Integers(),
    Zeros(),
    Huge(),
    Tiny(),
    Denormals(),
    Special(),
    SpecialEnds(),
    SpecialZeros(),
    Cancelled(),
    Overflowing(),
    *ALONE,
    TwoStreams(),
    BackToBack(),
    OFFSET,
    ALL_OFFSET,
    AFTER_OTHERS,
)
# With so little workspace im2col has to work in chunks: of pixels, or of images.
IN_CHUNKS = (
    Setting("little_workspace", "with 40,000 bytes of workspace", workspace=40_000, twice=True),
    Setting("some_workspace", "with 150,000 bytes of workspace", workspace=150_000, twice=True),
)
LITTLE = (
    LeastWorkspace(),
    Setting(
        "uneven_workspace",
        "with one and a half times the least workspace that the kernel needs",
        least_workspaces=1.5,
        twice=True,
    ),
    Setting(
        "twice_least_workspace",
        "with twice the least workspace that the kernel needs",
        least_workspaces=2,
        twice=True,
    ),
)
AFTER_LITTLE_SHARED = AfterLittleShared()
ALL = (*SETTINGS, AFTER_LITTLE_SHARED, SPARSE, *IN_CHUNKS, *LITTLE, *OTHER_GPUS)
NAMES = tuple(setting.name for setting in ALL)

# The problems that run with the least workspace: a kernel may then launch once for each pixel.
_FEW_PIXELS = (
    "N2 C4 H3 W4 K6 R3 S3 p1 g2 bias",
    "N2 C4 H3 W4 K6 R3 S3 p1",
    "N2 C8 H3 W4 K8 R3 S3 p1",
    "N2 C8 H3 W4 K8 R1 S1",
)
_HOSTS = ("N2 C6 H11 W12 K8 R3 S3 p1 g2 bias", "N2 C6 H11 W12 K12 R3 S3 p1 g6 bias")
# Problems that also run with little workspace.
_CHUNKED = (
    "awkward.primes",
    "awkward.tile_plus_one",
    "awkward.groups_3",
    "awkward.everything",
)
# Kernels often have a separate path for these, with 16-byte accesses.
_POINTWISE = "N2 C8 H8 W12 K8 R1 S1 bias"
# Here a block may need more shared memory than the kernel requested in an earlier, smaller call. A kernel
# that requests none, by the words in its files, has no such state.
_LARGE = "limits.channels_4099"
_REQUEST = re.compile(r"\bextern\b[^;{}()]*\b__shared__|\bask_for_shared_memory\b|\bcudaFuncSet")
_DEFINES_REQUESTS = "convlab.cuh"
# A kernel that counts blocks in a variable of the file may split the channels. Calls with other channels then
# change the variable.
_SPLIT = "N1 C96 H5 W6 K8 R3 S3 p1"
# The same for the pixels of a weight gradient.
_SPLIT_PIXELS = "N2 C2 H80 W70 K4 R3 S3 p1"
# All sizes are odd, and there are images for several chunks: code for pairs of numbers may leave out the last one.
_ODD = ("N9 C5 H7 W5 K3 R3 S3 p1", "N9 C5 H7 W5 K3 R1 S1")
FEW_MACS = 500_000


def settings_for(kernel: Runnable, problem: Problem) -> tuple[Setting, ...]:
    """Return the settings that may show something; only the last one for a large problem."""
    if is_large(problem):
        return SETTINGS[-1:]
    return tuple(setting for setting in SETTINGS if _applies(setting, kernel, problem))


def is_large(problem: Problem) -> bool:
    """Return whether a sum has more terms than the floats of a block's shared memory."""
    return 4 * problem.gemm_k > SHARED_BYTES


def _applies(setting: Setting, kernel: Runnable, problem: Problem) -> bool:
    """Return whether a setting may show something for a kernel and a problem."""
    if isinstance(setting, UnusualData):
        return setting.applies(kernel, problem)
    if isinstance(setting, BackToBack):
        return starts_early(kernel)
    if setting not in ALONE:
        return True
    source = kernel.source or ""
    offsets = setting.offsets
    if offsets.workspace:
        return kernel.has_workspace or "conv2d_plan" in source
    if offsets.bias and not problem.bias:
        return False
    # A tensor begins at a multiple of its element size.
    return all(getattr(offsets, name) % stored.itemsize == 0 for name, stored in kernel.format)


def host_problems(kernel: Runnable, correct: Iterable[Problem]) -> list[Problem]:
    """Return the problems that run in the settings.

    They are a 3x3 problem, a 1x1 problem, with a ReLU if the kernel fuses one, a problem with
    channels to split for a kernel with `__device__` variables, and one with many channels for a
    kernel that requests shared memory. If the kernel does not support the 3x3
    problem, the first small problem on which it is correct takes its place.
    """
    small = [p for p in correct if p.macs <= FEW_MACS and min(p.N, p.P, p.Q) > 1]
    first = _supported(kernel, [*map(named_problem, _HOSTS), *small])[:1]
    pointwise = _supported(kernel, [named_problem(_POINTWISE)])
    large = _supported(kernel, [named_problem(_LARGE)]) if _requests_shared(kernel) else []
    is_weight_gradient = kernel.computes == WEIGHT_GRADIENT.name
    to_split = _SPLIT_PIXELS if is_weight_gradient else _SPLIT
    split = _supported(kernel, [named_problem(to_split)]) if has_variables(kernel) else []
    second = [with_relu(kernel, problem) for problem in pointwise or first]
    return list(dict.fromkeys([*first, *second, *split, *large]))


def _requests_shared(kernel: Runnable) -> bool:
    """Return whether a kernel requests shared memory, by the words in its files."""
    return any(_REQUEST.search(text) for name, text in kernel.texts.items() if name != _DEFINES_REQUESTS)


def shared_trials(kernel: Runnable, reports: Iterable[Report]) -> list[tuple[Problem, Setting]]:
    """Return the problem that needs the most shared memory, to be run after one that needs less.

    `reports` are those of the problems on which the kernel is correct. The list is empty if it needs no more
    than any kernel may have.
    """
    most = max(reports, key=lambda report: report.requested_bytes, default=None)
    if most is None or most.requested_bytes <= SHARED_BYTES or not _requests_shared(kernel):
        return []
    return [(most.problem, AFTER_LITTLE_SHARED)]


def workspace_trials(
    kernel: Runnable, hosts: Iterable[Problem] = ()
) -> list[tuple[Problem, Setting]]:
    """Return the trials with little workspace; none if the kernel uses no workspace.

    `hosts` are small problems on which the kernel is correct.
    """
    if not kernel.has_workspace:
        return []
    chunked = _supported(kernel, map(named_problem, _CHUNKED))
    few_pixels = _supported(kernel, map(named_problem, _FEW_PIXELS))[:1]
    odd = _supported(kernel, map(named_problem, _ODD))[:1]
    shares = [trial for host in [*hosts, *odd] for trial in _share_trials(kernel, host)]
    return [*product(chunked, IN_CHUNKS), *product(few_pixels, LITTLE), *shares]


def _share_trials(kernel: Runnable, problem: Problem) -> Iterator[tuple[Problem, Setting]]:
    """Yield trials with parts of the workspace that a kernel requests for a problem without a limit.

    A kernel that works in chunks then needs several of them, for whatever problem; and one that
    ignores the size writes past the end. Only the simulator tells what a kernel requests.
    """
    if not kernel.counts:
        return
    launch = kernel.prepare(
        problem, *reference.known(problem, 0, kernel.device, kernel.format).inputs
    )
    launch.counted = False
    launch()
    requested = launch.workspace_bytes
    limits = {
        "all but a byte": requested - 1,
        "two thirds": requested * 2 // 3,
        "half": requested // 2,
        "a third": requested // 3,
    }
    least = _least_workspace(kernel, problem)
    for words, limit in limits.items():
        if limit >= max(least, 1):
            words = f"with {limit:,} bytes of workspace, {words} of what it requests"
            yield problem, Setting("part_of_workspace", words, workspace=limit, twice=True)


def _least_workspace(kernel: Runnable, problem: Problem) -> int:
    """Return the bytes of workspace without which a kernel does not work; 0 if it works without."""
    inputs = reference.known(problem, 0, kernel.device, kernel.format).inputs
    try:
        kernel.limited(0).prepare(problem, *inputs)()
    except LaunchError as error:
        # Other errors are found by the trials with the least workspace.
        return error.needed if error.kind == "too little workspace" else 0
    return 0


def _supported(kernel: Runnable, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that the kernel supports, for what it computes."""
    return [each for each in map(kernel.asked, problems) if not kernel.unsupported(each)]


def with_relu(kernel: Runnable, problem: Problem) -> Problem:
    """Return the problem with a ReLU, or unchanged if the kernel does not support a ReLU."""
    if not problem.computation.is_forward:
        return problem
    other = dataclasses.replace(problem, relu=True)
    return problem if kernel.unsupported(other) else other
