"""Describe the GPU of this machine: its properties and its measured peak performance.

The import of this module uses no GPU. Without a GPU, `describe` returns None, and functions that
need one raise `LaunchError`. `available_bytes` also works for the CPU.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..arguments import choice
from ..errors import LaunchError
from ..problem.format import FLOAT32, Format
from ..problem.problem import Problem
from .gpus import DEFAULT_GPU, GPUS, Gpu, datasheet

# The fraction of the datasheet's rate that a loop of matrix instructions on tiles in shared memory
# reaches on an H200. cuBLAS reaches about 0.8. See tests/instruments/ceilings.md.
_PRODUCTS_SHARE = 0.96
# A smaller copy would not measure the memory.
_LEAST_COPY = 32 << 20
# The assumed boost clock of a GPU that is in neither table, in GHz.
_UNKNOWN_GHZ = 1.7


class InstalledGpu(Gpu):
    """A GPU of this machine; `str` adds its memory and the versions of the software."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}, {self.memory_bytes / 2**30:.0f} GiB, torch {torch.__version__}, "
            f"CUDA {torch.version.cuda}, driver {driver_version() or 'unknown'}"
        )


@dataclass(frozen=True)
class Ceilings:
    """The peak performance of a GPU: bytes copied (read and written) and flops per second."""

    copy_bytes_per_s: float
    fp32_flops: float
    tf32_flops: float
    bf16_flops: float

    def __str__(self) -> str:
        fp32, tf32, bf16 = (
            f"{flops / 1e12:.0f}" for flops in (self.fp32_flops, self.tf32_flops, self.bf16_flops)
        )
        copy = f"{self.copy_bytes_per_s / 1e12:.2f}"
        return f"copy {copy} TB/s, products fp32 {fp32}, TF32 {tf32} and bf16 {bf16} TFLOP/s"

    def flops(self, precision: str) -> float:
        """Return the peak of the unit that a precision class uses, in flops per second."""
        peaks = {"fp32": self.fp32_flops, "tf32": self.tf32_flops}
        # Tensor cores have the same rate for both.
        peaks |= dict.fromkeys(("bf16", "fp16"), self.bf16_flops)
        return peaks[choice(precision, "precision class", peaks)]


def describe(device: torch.device | str | int | None = None) -> Gpu | None:
    """Return a GPU's description, by default the current GPU's; None if there is no such GPU."""
    index = _cuda_index(device)
    if index is None:
        return None
    properties = torch.cuda.get_device_properties(index)
    gpu = InstalledGpu(
        name=properties.name.removeprefix("NVIDIA "),
        driver_name=properties.name,
        sm=10 * properties.major + properties.minor,
        sms=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        ghz=_UNKNOWN_GHZ,
        memory_bytes=properties.total_memory,
    )
    for known in GPUS.values():
        if known.driver_name == gpu.driver_name:
            return replace(gpu, name=known.name, ghz=known.ghz)
    if sheet := gpu.datasheet:
        gflops = 1e3 * sheet.fp32_tflops
        return replace(gpu, ghz=gflops / (2 * gpu.limits.fp32_lanes * gpu.sms))
    return gpu


def find_gpu(gpu: str | Gpu | None = None) -> Gpu:
    """Return a GPU by name; without a name, the current GPU, or else `DEFAULT_GPU`."""
    if isinstance(gpu, Gpu):
        return gpu
    if gpu is None:
        return describe() or DEFAULT_GPU
    return GPUS[choice(gpu, "GPU", GPUS)]


@functools.cache
def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, such as "580.65.06", or None if unknown."""
    file = Path("/proc/driver/nvidia/version")
    text = file.read_text(errors="replace") if file.exists() else ""
    if version := re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", text):
        return version[1]
    try:
        # Optional: from nvidia-ml-py.
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def available_bytes(device: torch.device | str | None = None) -> int:
    """Return the available memory of a device, in bytes."""
    index = _cuda_index(device)
    if index is not None:
        free, _ = torch.cuda.mem_get_info(index)
        # torch's allocator keeps memory that no tensor uses.
        unused = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        return free + unused
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return 1024 * int(available[1])


def ceilings(device: torch.device | str | int | None = None) -> Ceilings:
    """Measure the peak performance of a GPU, once in a process (about 0.5 s on a large GPU).

    The bandwidth counts the bytes read and written by a copy that is far larger than the L2. The
    peaks are those of cuBLAS's GEMM with matrices of 8192 x 8192 (smaller if memory is short), with
    TF32 off and on, and in bf16; each is the best of several runs. The peak of tensor cores is at
    least 96% of the datasheet's rate, because a loop of matrix instructions alone reaches that.
    Raises LaunchError without a GPU.
    """
    index = _cuda_index(device)
    if index is None:
        raise LaunchError(
            "peak performance is measured on an NVIDIA GPU, but torch finds none; "
            "`python -m convlab doctor` shows what is missing"
        )
    return _measured_ceilings(index)


def floor_seconds(
    problem: Problem, precision: str, ceilings: Ceilings, format: Format = FLOAT32
) -> float:
    """Return the theoretical minimum time (the floor) of a problem on a GPU, in seconds.

    This is the roofline (Williams, Waterman, Patterson, CACM 2009): the larger of two times. One is
    the minimal traffic over the copy bandwidth. The other is the flops over the peak of the
    precision class. An algorithm with fewer multiplications, such as Winograd's, can be faster than
    the second one.
    """
    memory = format.min_bytes(problem) / ceilings.copy_bytes_per_s
    return max(memory, problem.flops / ceilings.flops(precision))


def _cuda_index(device: torch.device | str | int | None) -> int | None:
    """Return the index of a CUDA device, by default the current one; None if there is none."""
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
        if free // 4 < _LEAST_COPY:
            raise LaunchError(
                f"too little GPU memory to measure peak performance: {free / 2**20:.0f} MiB are "
                f"free on cuda:{index}, 256 MiB are needed; end other programs that use this GPU"
            )
        copy = _copy_bytes_per_s(free)
        ieee, tf32, bf16 = _products_flops(free)
        sheet = datasheet(torch.cuda.get_device_name(index))
    stated = 0.0
    if sheet is not None and sheet.tf32_tflops is not None:
        stated = _PRODUCTS_SHARE * 1e12 * sheet.tf32_tflops
    return Ceilings(copy, ieee, max(stated, ieee, tf32), max(2 * stated, bf16))


def _copy_bytes_per_s(free: int) -> float:
    """Measure a large copy on the current GPU; return bytes read and written per second."""
    size = min(2 << 30, free // 4) & ~0xFF
    source, target = torch.empty(2, size, dtype=torch.uint8, device="cuda").random_()
    return 2 * size / _least_seconds(lambda: target.copy_(source), samples=25)


def _products_flops(free: int) -> tuple[float, float, float]:
    """Measure GEMMs on the current GPU in fp32, TF32 and bf16; return flops per second."""
    size = next((n for n in (8192, 4096, 2048) if 12 * n * n < free // 2), 1024)
    flops = 2 * size**3
    a, b, c = torch.randn(3, size, size, device="cuda")
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    try:
        settings.fp32_precision = "ieee"
        ieee = flops / _least_seconds(lambda: torch.mm(a, b, out=c))
        settings.fp32_precision = "tf32"
        tf32 = flops / _least_seconds(lambda: torch.mm(a, b, out=c))
    finally:
        settings.fp32_precision = before
    half_a, half_b, half_c = (tensor.bfloat16() for tensor in (a, b, c))
    bf16 = flops / _least_seconds(lambda: torch.mm(half_a, half_b, out=half_c))
    return ieee, tf32, bf16


def _least_seconds(run: Callable[[], object], samples: int = 7) -> float:
    """Return the shortest time of a call on the current stream in seconds, after two warm-ups.

    The median would depend on the GPU's other work, and so would each theoretical minimum.
    """
    for _ in range(2):
        run()
    times = []
    for _ in range(samples):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)
