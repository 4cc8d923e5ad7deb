"""The GPU: what it is, what its datasheet promises, what it was measured to do.

Nothing here touches a GPU on import. Without a GPU `describe` returns None and whatever must run
on one raises `LaunchError`; `available_bytes` works for the CPU too.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..words.errors import LaunchError

if TYPE_CHECKING:
    from ..words.problem import Problem


@dataclass(frozen=True)
class Datasheet:
    """What the vendor states for a GPU: dense TFLOP/s and GB/s at boost clock.

    `tf32_tflops` is None for GPUs without TF32 tensor cores. Sources are NVIDIA's: "T4 Tensor
    Core GPU datasheet" (2019), "A100 Tensor Core GPU datasheet" (2021), "L4 Tensor Core GPU
    datasheet" (2023), "Ada GPU architecture whitepaper" (RTX 4090, 2022), "H100 Tensor Core GPU
    datasheet" (SXM5, 2023), "H200 Tensor Core GPU datasheet" (2024). Where a datasheet quotes
    tensor cores with sparsity, half of it is written here.
    """

    fp32_tflops: float
    tf32_tflops: float | None
    memory_gb_per_s: float


# The first pattern found in the name counts; the variants of a GPU come before it.
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

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the most shared
# memory of a block, in KiB; only for a torch that does not report it.
_SHARED_KIB = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}


@dataclass(frozen=True)
class Device:
    """A GPU and the software that drives it.

    `sm` is the compute capability as one number (9.0 is 90); `smem_optin_bytes` is the most shared
    memory a block may opt into; `cuda_version` is the one torch was built for.
    """

    index: int
    name: str
    sm: int
    sm_count: int
    l2_bytes: int
    smem_optin_bytes: int
    memory_bytes: int
    torch_version: str
    cuda_version: str
    driver_version: str
    datasheet: Datasheet | None

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.sm_count} SMs, sm_{self.sm}, {self.memory_bytes / 2**30:.0f} GiB, "
            f"torch {self.torch_version}, CUDA {self.cuda_version}, driver {self.driver_version}"
        )


@dataclass(frozen=True)
class Ceilings:
    """What a GPU was measured to do at best: bytes copied (read + written) and flops a second."""

    copy_bytes_per_s: float
    fp32_flops: float
    tf32_flops: float

    def flops(self, precision: str) -> float:
        """Return the peak of the unit that a precision class uses, in flops a second.

        Raises ValueError for a class other than "fp32" and "tf32".
        """
        if precision not in ("fp32", "tf32"):
            raise ValueError(f"no ceiling is measured for precision {precision!r}: fp32 or tf32")
        return self.fp32_flops if precision == "fp32" else self.tf32_flops


def datasheet(name: str) -> Datasheet | None:
    """Return the datasheet of a GPU by the name that the driver gives it, or None if unknown."""
    return next((sheet for pattern, sheet in _DATASHEETS if re.search(pattern, name)), None)


def describe(device: torch.device | str | int | None = None) -> Device | None:
    """Describe a GPU (the current one unless told), or return None if there is no such GPU."""
    index = _cuda_index(device)
    if index is None:
        return None
    seen = torch.cuda.get_device_properties(index)
    sm = 10 * seen.major + seen.minor
    smem = getattr(seen, "shared_memory_per_block_optin", None) or 1024 * _SHARED_KIB.get(sm, 48)
    return Device(
        index=index,
        name=seen.name,
        sm=sm,
        sm_count=seen.multi_processor_count,
        l2_bytes=seen.L2_cache_size,
        smem_optin_bytes=smem,
        memory_bytes=seen.total_memory,
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda or "none",
        driver_version=driver_version() or "unknown",
        datasheet=datasheet(seen.name),
    )


@functools.cache
def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, e.g. "580.65.06", or None if there is none."""
    stated = Path("/proc/driver/nvidia/version")
    if stated.exists():
        found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", stated.read_text(errors="replace"))
        if found:
            return found[1]
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.split("\n")[0].strip() or None


def available_bytes(device: torch.device | str | None = None) -> int:
    """Return the memory that can still be had on a device, in bytes.

    On a GPU that is the free memory and what torch's allocator holds without using it; on the CPU
    what Linux calls MemAvailable (elsewhere the whole of the physical memory).
    """
    index = _cuda_index(device)
    if index is not None and torch.device(device or "cuda").type == "cuda":
        free, _ = torch.cuda.mem_get_info(index)
        return free + torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
    stated = Path("/proc/meminfo")
    if stated.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", stated.read_text())
        if found:
            return 1024 * int(found[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def ceilings(device: torch.device | str | int | None = None) -> Ceilings:
    """Measure what a GPU does at best, once in a process (about half a second on a large one).

    Copy: a device-to-device copy far larger than the L2, counting the bytes read and those
    written. Arithmetic: an 8192 x 8192 x 8192 GEMM of torch's (cuBLAS), smaller if memory is
    short, with TF32 off and on. Medians of several.

    Raises LaunchError if there is no GPU or not even a small copy fits its memory.
    """
    index = _cuda_index(device)
    if index is None:
        raise LaunchError(
            "ceilings are measured on an NVIDIA GPU, and torch sees none here; "
            "`python -m convlab doctor` tells what is missing"
        )
    return _measured_ceilings(index)


def floor_seconds(problem: Problem, precision: str, ceilings: Ceilings) -> float:
    """Return the least time that a problem can take on a GPU, in seconds.

    The larger of least bytes over copy bandwidth and flops over the peak of the class's unit: the
    roofline (Williams, Waterman, Patterson, CACM 2009) at the problem's own intensity. Algorithms
    that need fewer multiplications, such as Winograd's, can go below its second part.
    """
    memory = problem.min_bytes / ceilings.copy_bytes_per_s
    return max(memory, problem.flops / ceilings.flops(precision))


def _cuda_index(device: torch.device | str | int | None) -> int | None:
    if not torch.cuda.is_available():
        return None
    if isinstance(device, int):
        return device if device < torch.cuda.device_count() else None
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
        source = torch.zeros(copied, dtype=torch.uint8, device=f"cuda:{index}")
        target = torch.empty_like(source)
        copy_seconds = _median_seconds(lambda: target.copy_(source), samples=9)
        del source, target

        a = torch.randn(size, size, device=f"cuda:{index}")
        b = torch.randn(size, size, device=f"cuda:{index}")
        c = torch.empty_like(a)
        settings = torch.backends.cuda.matmul
        before = settings.fp32_precision
        flops = {}
        try:
            for precision in ("ieee", "tf32"):
                settings.fp32_precision = precision
                flops[precision] = 2 * size**3 / _median_seconds(lambda: torch.mm(a, b, out=c))
        finally:
            settings.fp32_precision = before
    return Ceilings(2 * copied / copy_seconds, flops["ieee"], max(flops.values()))


def _median_seconds(run: Callable[[], object], samples: int = 5) -> float:
    """Time a call on the current stream after two calls of warm-up: the median, in seconds."""
    times = []
    for taken in range(samples + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        if taken >= 2:
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)
