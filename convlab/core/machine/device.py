"""The GPU: what it is, what its datasheet promises, what it was measured to do.

Nothing here touches a GPU on import. Without a GPU `describe` returns None and whatever must run
on one raises `LaunchError`; `available_bytes` works for the CPU too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..arguments import choice
from ..errors import LaunchError
from ..problem.format import FLOAT32, Format

if TYPE_CHECKING:
    from ..problem.problem import Problem


@dataclass(frozen=True)
class Datasheet:
    """What the vendor states for a GPU: dense TFLOP/s and GB/s at boost clock."""

    fp32_tflops: float
    tf32_tflops: float | None  # None: no TF32 tensor cores
    memory_gb_per_s: float


# The first pattern found in the name counts; the variants of a GPU come before it. Sources are
# NVIDIA's datasheets (T4 2019, A100 2021, L4 and H100 SXM5 2023, H200 2024) and the "Ada GPU
# architecture whitepaper" (2022); where one quotes tensor cores with sparsity, this is half of it.
_DATASHEETS: tuple[tuple[str, Datasheet], ...] = (
    (r"\bT4\b", Datasheet(8.1, None, 320)),
    (r"A100-PCIE-40GB", Datasheet(19.5, 156, 1555)),
    (r"A100 80GB PCIe", Datasheet(19.5, 156, 1935)),
    (r"A100.*80GB", Datasheet(19.5, 156, 2039)),
    (r"\bA100\b", Datasheet(19.5, 156, 1555)),
    (r"\bL4\b", Datasheet(30.3, 60, 300)),
    (r"RTX 4090(?! (D|Laptop))", Datasheet(82.6, 82.6, 1008)),
    (r"H100 80GB HBM3", Datasheet(67, 494.5, 3350)),
    (r"\bH200(?! NVL)\b", Datasheet(67, 494.5, 4800)),
)

# What products of tiles in shared memory reach of it on an H200, where cuBLAS stays 20% below:
# tests/instruments/ceilings.md.
_PRODUCTS_SHARE = 0.96


@dataclass(frozen=True)
class Limits:
    """What one SM of a compute capability has, and in which units it is handed out.

    CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute
    Capability".
    """

    threads: int
    blocks: int
    shared_bytes: int  # of an SM
    shared_optin_bytes: int  # of a block, when it opts in
    fp32_lanes: int  # multiply-adds of an SM in a cycle
    reserved_bytes: int = 1024  # shared memory that the system takes of each block
    shared_unit: int = 128
    registers: int = 65536
    register_unit: int = 256  # of a warp
    registers_per_thread: int = 255
    threads_per_block: int = 1024

    @property
    def warps(self) -> int:
        """Warps of an SM."""
        return self.threads // 32


_KIB = 1024
LIMITS: dict[int, Limits] = {  # by compute capability: 9.0 is 90
    75: Limits(1024, 16, 64 * _KIB, 64 * _KIB, 64, reserved_bytes=0, shared_unit=256),
    80: Limits(2048, 32, 164 * _KIB, 163 * _KIB, 64),
    86: Limits(1536, 16, 100 * _KIB, 99 * _KIB, 128),
    87: Limits(1536, 16, 164 * _KIB, 163 * _KIB, 128),
    89: Limits(1536, 24, 100 * _KIB, 99 * _KIB, 128),
    90: Limits(2048, 32, 228 * _KIB, 227 * _KIB, 128),
    100: Limits(2048, 32, 228 * _KIB, 227 * _KIB, 128),
    120: Limits(1536, 24, 100 * _KIB, 99 * _KIB, 128),
}


@dataclass(frozen=True)
class Gpu:
    """A GPU as a kernel is judged on it; in words, with the software that drives it."""

    name: str
    driver_name: str  # that the driver gives it, by which `datasheet` knows it
    sm: int  # compute capability: 9.0 is 90
    sms: int
    l2_bytes: int
    ghz: float  # boost clock
    memory_bytes: int = 0  # of one that is there

    @property
    def limits(self) -> Limits:
        """What its SMs have; of a capability that is not in the table, the one below it."""
        return LIMITS[max((known for known in LIMITS if known <= self.sm), default=min(LIMITS))]

    @property
    def arch(self) -> str:
        """What nvcc calls it, as in sm_90a, without the prefix."""
        return f"{self.sm}a" if self.sm >= 90 else str(self.sm)

    @property
    def datasheet(self) -> Datasheet | None:
        """What its vendor states."""
        return datasheet(self.driver_name)

    def __str__(self) -> str:
        return (
            f"{self.driver_name}, {self.sms} SMs, sm_{self.sm}, {self.memory_bytes / 2**30:.0f} "
            f"GiB, torch {torch.__version__}, CUDA {torch.version.cuda}, "
            f"driver {driver_version() or 'unknown'}"
        )


_MIB = 1 << 20
# SMs, L2 and boost clocks: NVIDIA's architecture white papers (Turing, A100, Ada, H100); the clock
# is the one at which the datasheet's fp32 rate is 2 * lanes * SMs * clock.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", "Tesla T4", 75, 40, 4 * _MIB, 1.59),
        Gpu("A100", "NVIDIA A100-SXM4-80GB", 80, 108, 40 * _MIB, 1.41),
        Gpu("L4", "NVIDIA L4", 89, 58, 48 * _MIB, 2.04),
        Gpu("RTX 4090", "NVIDIA GeForce RTX 4090", 89, 128, 72 * _MIB, 2.52),
        Gpu("H100", "NVIDIA H100 80GB HBM3", 90, 132, 50 * _MIB, 1.98),
        Gpu("H200", "NVIDIA H200", 90, 132, 60 * _MIB, 1.98),
    )
}


@dataclass(frozen=True)
class Ceilings:
    """What a GPU does at best: bytes copied (read + written) and flops a second."""

    copy_bytes_per_s: float
    fp32_flops: float
    tf32_flops: float
    bf16_flops: float

    def __str__(self) -> str:
        copy, fp32, tf32, bf16 = (rate / 1e12 for rate in vars(self).values())
        products = f"fp32 {fp32:.0f}, TF32 {tf32:.0f} and bf16 {bf16:.0f}"
        return f"copy {copy:.2f} TB/s, products {products} TFLOP/s"

    def flops(self, precision: str) -> float:
        """Return the peak of the unit that a precision class uses, in flops a second."""
        peaks = {"fp32": self.fp32_flops, "tf32": self.tf32_flops}
        peaks |= dict.fromkeys(("bf16", "fp16"), self.bf16_flops)  # tensor cores have one rate
        return peaks[choice(precision, "precision class", peaks)]


def datasheet(name: str) -> Datasheet | None:
    """Return the datasheet of a GPU by the name that the driver gives it, or None if unknown."""
    return next((sheet for pattern, sheet in _DATASHEETS if re.search(pattern, name)), None)


def describe(device: torch.device | str | int | None = None) -> Gpu | None:
    """Describe a GPU (the current one unless told), or return None if there is no such GPU."""
    index = _cuda_index(device)
    if index is None:
        return None
    seen = torch.cuda.get_device_properties(index)
    there = Gpu(
        seen.name.removeprefix("NVIDIA "),
        seen.name,
        10 * seen.major + seen.minor,
        seen.multi_processor_count,
        seen.L2_cache_size,
        1.7,
        seen.total_memory,
    )
    known = next((gpu for gpu in GPUS.values() if gpu.driver_name == seen.name), None)
    if known:
        return replace(there, name=known.name, ghz=known.ghz)
    if sheet := there.datasheet:
        rate = 1e3 * sheet.fp32_tflops
        return replace(there, ghz=rate / (2 * there.limits.fp32_lanes * there.sms))
    return there


def find_gpu(wanted: str | Gpu | None = None) -> Gpu:
    """Return a GPU by name; without one, the GPU that is there, else an H200."""
    if isinstance(wanted, Gpu):
        return wanted
    if wanted is None:
        return describe() or GPUS["H200"]
    return GPUS[choice(wanted, "GPU", GPUS)]


@functools.cache
def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, e.g. "580.65.06", or None if nothing tells it."""
    stated = Path("/proc/driver/nvidia/version")
    told = stated.read_text(errors="replace") if stated.exists() else ""
    if found := re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", told):
        return found[1]
    try:
        import pynvml  # optional: from nvidia-ml-py
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def available_bytes(device: torch.device | str | None = None) -> int:
    """Return the memory that can still be had on a device, in bytes."""
    index = _cuda_index(device)
    if index is not None:  # and what torch's allocator holds without using it
        free, _ = torch.cuda.mem_get_info(index)
        return free + torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
    return 1024 * int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1])


def ceilings(device: torch.device | str | int | None = None) -> Ceilings:
    """Measure what a GPU does at best, once in a process (about half a second on a large one).

    A copy far larger than the L2, bytes read and written; a GEMM of cuBLAS with 8192 on each side
    (fewer if memory is short), with TF32 off and on, and in bf16. The best of several. Of tensor
    cores 96% of the datasheet's rate where that is more, as products alone reach it.
    """
    index = _cuda_index(device)
    if index is None:
        raise LaunchError(
            "ceilings are measured on an NVIDIA GPU, and torch sees none here; "
            "`python -m convlab doctor` tells what is missing"
        )
    return _measured_ceilings(index)


def floor_seconds(
    problem: Problem, precision: str, ceilings: Ceilings, format: Format = FLOAT32
) -> float:
    """Return the least time that a problem can take on a GPU, in seconds.

    That is its roofline (Williams, Waterman, Patterson, CACM 2009): the larger of least bytes over
    copy bandwidth and flops over the peak of the class's unit. Algorithms that need fewer
    multiplications, such as Winograd's, can go below its second part.
    """
    memory = format.min_bytes(problem) / ceilings.copy_bytes_per_s
    return max(memory, problem.flops / ceilings.flops(precision))


def _cuda_index(device: torch.device | str | int | None) -> int | None:
    if not torch.cuda.is_available():
        return None
    where = torch.device("cuda" if device is None else device)
    if where.type != "cuda":
        return None
    index = torch.cuda.current_device() if where.index is None else where.index
    return index if index < torch.cuda.device_count() else None


@functools.cache
def _measured_ceilings(index: int) -> Ceilings:
    with torch.cuda.device(index):
        free = available_bytes(f"cuda:{index}")
        copied = min(2 << 30, free // 4) & ~0xFF
        size = next((n for n in (8192, 4096, 2048) if 12 * n * n < free // 2), 1024)
        if copied < 32 << 20:
            raise LaunchError(
                f"no room to measure ceilings: {free / 2**20:.0f} MiB free on cuda:{index}, "
                "256 MiB needed; end other programs that use this GPU"
            )
        source, target = torch.empty(2, copied, dtype=torch.uint8, device="cuda").random_()
        copy_seconds = _least_seconds(functools.partial(target.copy_, source), samples=25)
        del source, target  # the matrices need their room
        a, b, c = torch.randn(3, size, size, device="cuda")
        flops = {}
        settings = torch.backends.cuda.matmul
        before = settings.fp32_precision
        try:
            for precision in ("ieee", "tf32"):
                settings.fp32_precision = precision
                flops[precision] = 2 * size**3 / _least_seconds(lambda: torch.mm(a, b, out=c))
        finally:
            settings.fp32_precision = before
        a, b, c = (t.bfloat16() for t in (a, b, c))
        bf16 = 2 * size**3 / _least_seconds(lambda: torch.mm(a, b, out=c))
        sheet = datasheet(torch.cuda.get_device_name(index))
    stated = _PRODUCTS_SHARE * 1e12 * (sheet and sheet.tf32_tflops or 0)
    tf32 = max(stated, *flops.values())
    return Ceilings(2 * copied / copy_seconds, flops["ieee"], tf32, max(2 * stated, bf16))


def _least_seconds(run: Callable[[], object], samples: int = 7) -> float:
    """Time a call after two calls of warm-up, on the current stream: the least, in seconds."""
    times = []  # whose median moves with what else the GPU did, and so would each floor
    for taken in range(samples + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        if taken >= 2:
            times.append(start.elapsed_time(end) / 1e3)
    return min(times)
