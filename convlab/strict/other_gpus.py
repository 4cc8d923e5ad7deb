"""Define settings in which the simulator is another GPU: with 2 SMs, with less shared memory, newer.

A persistent kernel starts as many blocks as the GPU holds, and each block computes several tiles. On
132 SMs that takes thousands of tiles; on 2 SMs a small problem suffices. So here such a kernel meets
its second tile, the wrap of its stages, and its last, incomplete wave. And a kernel that assumes the
limits of one GPU is incorrect on those that have less shared memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..core.correctness.setting import Setting
from ..core.kernel.runnable import Launch, Runnable
from ..core.machine.gpus import DEFAULT_GPU, GPUS, Gpu, Limits
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from .after_others import has_variables, smallest

_SMS = 2


@dataclass(frozen=True)
class OtherGpu(Setting):
    """Run a problem on a simulated GPU other than the default one."""

    gpu: Gpu = DEFAULT_GPU


@dataclass(frozen=True)
class AfterSmallest(OtherGpu):
    """Run a problem of many tiles after a call in which most blocks have no tile.

    Persistent blocks that take their tiles from a counter must find it as a first call does.
    """

    keeps_filter: bool = True

    def histories(self, kernel: Runnable, problem: Problem) -> list[list[Problem]]:
        """Return one list, with the smallest variant of the problem that the kernel supports."""
        return [smallest(kernel, problem)]

    def run(self, launch: Launch, earlier: Sequence[Problem]) -> None:
        """Run a launch after the call."""
        launch.call_after(earlier)


@dataclass(frozen=True)
class _HalfOfAnSm(Gpu):
    """Be a GPU on which a block may have half of an SM's shared memory, not nearly all of it."""

    @property
    def limits(self) -> Limits:
        """The limits of its SMs."""
        usual = super().limits
        half = usual.shared_optin_bytes // 2048 * 1024
        return replace(usual, shared_optin_bytes=half)


def _small(gpu: Gpu) -> OtherGpu:
    """Return the setting for a GPU with two of its SMs."""
    small = replace(gpu, name=f"a GPU of sm_{gpu.sm} with {_SMS} SMs", sms=_SMS)
    shared = small.limits.shared_optin_bytes >> 10
    words = f"on {small.name}, {shared} KB of shared memory for a block"
    return OtherGpu(f"sm_{gpu.sm}", words, gpu=small)


def _listed(sm: int) -> Gpu:
    """Return the first listed GPU of a compute capability."""
    return next(gpu for gpu in GPUS.values() if gpu.sm == sm)


TWO_SMS = replace(_small(DEFAULT_GPU), name="two_sms")
AFTER_SMALLEST = AfterSmallest(
    "two_sms_after", f"{TWO_SMS.words}, after a call for few outputs", gpu=TWO_SMS.gpu
)
# For kernels that ask how much shared memory an SM has. On all listed GPUs a block may have nearly all of it.
_ASKS_ABOUT_SM = re.compile(r"\bsharedMemPerMultiprocessor\b|\bcudaDevAttrMaxSharedMemoryPerMultiprocessor\b")
_HALF = _HalfOfAnSm(**vars(DEFAULT_GPU) | {"name": "a GPU whose blocks may have half of an SM's shared memory"})
HALF_OF_AN_SM = OtherGpu("half_of_an_sm", f"on {_HALF.name}", gpu=_HALF)
# The default check runs these: of 8.6 and 8.9 only one, because they have the same shared memory.
CARDS = (_small(_listed(80)), _small(_listed(89)), _small(_listed(120)))
# No listed GPU has 8.6.
OTHER_GPUS = (TWO_SMS, AFTER_SMALLEST, HALF_OF_AN_SM, *CARDS, _small(replace(_listed(89), sm=86)))
# Problems of many tiles. A kernel runs the first that it supports of each line.
_MANY_TILES = (
    (
        "N2 C8 H35 W34 K40 R3 S3 p1 bias",
        "N2 C8 H35 W34 K40 R3 S3 p1",
        "N2 C24 H35 W34 K24 R3 S3 p1 g24",
        # For kernels that need a multiple of 4 pixels, or of 16, 32 or 64 channels.
        "N2 C8 H36 W36 K40 R3 S3 p1",
        "N2 C16 H36 W36 K48 R3 S3 p1",
        "N2 C32 H36 W36 K64 R3 S3 p1",
        "N2 C64 H36 W36 K64 R3 S3 p1",
        "N2 C8 H35 W34 K40 R1 S1",
        "N2 C16 H36 W36 K48 R1 S1",
        "N2 C64 H36 W36 K64 R1 S1",
        "N3 C3 H67 W66 K40 R7 S7 s2 p3",
    ),
    # Whole tiles of 128 channels and 128 pixels, so that a kernel takes its largest tiles. A 1x1 filter often
    # has a path of its own for them, and with a stride its rows are not those of x.
    ("N1 C6 H32 W32 K128 R1 S1 s2", "N1 C8 H16 W16 K128 R1 S1", "N1 C128 H32 W32 K128 R1 S1 s2 g128"),
)
# Problems that need much shared memory, for other cards.
_FEW_TILES = (
    (
        "N2 C8 H18 W17 K24 R3 S3 p1 bias",
        "N2 C8 H18 W17 K24 R3 S3 p1",
        "N2 C24 H18 W17 K24 R3 S3 p1 g24",
        "N2 C16 H20 W20 K48 R3 S3 p1",
        "N2 C64 H20 W20 K64 R3 S3 p1",
        "N2 C8 H18 W17 K24 R1 S1",
        "N2 C64 H20 W20 K64 R1 S1",
        "N2 C3 H35 W34 K24 R7 S7 s2 p3",
    ),
    ("awkward.dilation_48", "awkward.octets_of_a_row", "awkward.channels_257"),
)
# A tile that fills what a block may have, if it grows with the image.
_LARGE_TILES = (("N1 C32 H40 W70 K8 R7 S7 p3", "N1 C32 H40 W70 K8 R3 S3 p1", "N1 C64 H40 W70 K8 R1 S1"),)


def trials_on_other_gpus(kernel: Runnable) -> Iterator[tuple[Problem, Setting]]:
    """Yield the problems of the default check on other GPUs, each with its setting."""
    two_sms = (TWO_SMS, AFTER_SMALLEST) if has_variables(kernel) else (TWO_SMS,)
    half = (HALF_OF_AN_SM,) if _ASKS_ABOUT_SM.search(kernel.source or "") else ()
    for lines, settings in ((_MANY_TILES, two_sms), (_FEW_TILES, (*CARDS, *half)), (_LARGE_TILES, half)):
        for specs in lines:
            for setting in settings:
                on_it = kernel.on_gpu(setting.gpu)
                problems = map(named_problem, specs)
                problem = next((p for p in problems if not on_it.unsupported(p)), None)
                if problem is not None:
                    yield problem, setting
