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

import torch

from ..arguments import choice
from ..errors import LaunchError
from ..problem.format import FLOAT32, Format
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
    """A GPU that kernels run on, or are modelled for; `str` adds the software that drives it."""

    name: str
    driver_name: str  # from the driver; `datasheet` goes by it
    sm: int  # compute capability: 9.0 is 90
    sms: int
    l2_bytes: int
    ghz: float  # boost clock
    memory_bytes: int = 0  # 0 if it is not in this machine

    @property
    def limits(self) -> Limits:
        """What its SMs have; for a capability that is not in the table, the next lower one."""
        not_above = [known for known in LIMITS if known <= self.sm]
        return LIMITS[max(not_above, default=min(LIMITS))]

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
# A copy of fewer bytes does not measure the memory.
_LEAST_COPY = 32 * _MIB
# The boost clock of a GPU that is in neither table.
_UNKNOWN_GHZ = 1.7
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
        fp32, tf32, bf16 = (
            f"{flops / 1e12:.0f}" for flops in (self.fp32_flops, self.tf32_flops, self.bf16_flops)
        )
        copy = f"{self.copy_bytes_per_s / 1e12:.2f}"
        return f"copy {copy} TB/s, products fp32 {fp32}, TF32 {tf32} and bf16 {bf16} TFLOP/s"

    def flops(self, precision: str) -> float:
        """Return the peak of the unit that a precision class uses, in flops a second."""
        peaks = {"fp32": self.fp32_flops, "tf32": self.tf32_flops}
        peaks |= dict.fromkeys(("bf16", "fp16"), self.bf16_flops)  # tensor cores have one rate
        return peaks[choice(precision, "precision class", peaks)]


def datasheet(name: str) -> Datasheet | None:
    """Return the datasheet of a GPU by the name that the driver gives it, or None if unknown."""
    return next((sheet for pattern, sheet in _DATASHEETS if re.search(pattern, name)), None)


def describe(device: torch.device | str | int | None = None) -> Gpu | None:
    """Return the description of a GPU, by default the current one; None if there is no such GPU."""
    index = _cuda_index(device)
    if index is None:
        return None
    properties = torch.cuda.get_device_properties(index)
    gpu = Gpu(
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
    file = Path("/proc/driver/nvidia/version")
    text = file.read_text(errors="replace") if file.exists() else ""
    if version := re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", text):
        return version[1]
    try:
        # It is optional: from nvidia-ml-py.
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def available_bytes(device: torch.device | str | None = None) -> int:
    """Return the memory that is still available on a device, in bytes."""
    index = _cuda_index(device)
    if index is not None:
        free, _ = torch.cuda.mem_get_info(index)
        # torch's allocator holds memory that it does not use.
        unused = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        return free + unused
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return 1024 * int(available[1])


def ceilings(device: torch.device | str | int | None = None) -> Ceilings:
    """Measure what a GPU does at best, once in a process (about half a second on a large one).

    The bandwidth is that of a copy far larger than the L2, bytes read and written. The peaks are
    those of cuBLAS's GEMM with 8192 on each side (fewer if memory is short), with TF32 off and on,
    and in bf16: the best of several. Tensor cores count as at least 96% of the datasheet's rate,
    which products alone reach. Raises LaunchError without a GPU.
    """
    index = _cuda_index(device)
    if index is None:
        raise LaunchError(
            "ceilings are measured on an NVIDIA GPU, and torch sees none here; "
            "`python -m convlab doctor` says what is missing"
        )
    return _measured_ceilings(index)


def floor_seconds(
    problem: Problem, precision: str, ceilings: Ceilings, format: Format = FLOAT32
) -> float:
    """Return the least time that a problem can take on a GPU, in seconds.

    This is its roofline (Williams, Waterman, Patterson, CACM 2009): the larger of least bytes over
    copy bandwidth, and flops over the peak of the class's unit. Algorithms that need fewer
    multiplications, such as Winograd's, can take less than the second.
    """
    memory = format.min_bytes(problem) / ceilings.copy_bytes_per_s
    return max(memory, problem.flops / ceilings.flops(precision))


def _cuda_index(device: torch.device | str | int | None) -> int | None:
    """Return the index of a CUDA device, by default the current one; None if it is no such GPU."""
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
                f"no room to measure ceilings: {free / 2**20:.0f} MiB free on cuda:{index}, "
                "256 MiB needed; end other programs that use this GPU"
            )
        copy = _copy_bytes_per_s(free)
        ieee, tf32, bf16 = _products_flops(free)
        sheet = datasheet(torch.cuda.get_device_name(index))
    stated = 0.0
    if sheet is not None and sheet.tf32_tflops is not None:
        stated = _PRODUCTS_SHARE * 1e12 * sheet.tf32_tflops
    return Ceilings(copy, ieee, max(stated, ieee, tf32), max(2 * stated, bf16))


def _copy_bytes_per_s(free: int) -> float:
    """Measure a large copy on the current GPU: bytes read and written in a second."""
    size = min(2 << 30, free // 4) & ~0xFF
    source, target = torch.empty(2, size, dtype=torch.uint8, device="cuda").random_()
    return 2 * size / _least_seconds(lambda: target.copy_(source), samples=25)


def _products_flops(free: int) -> tuple[float, float, float]:
    """Measure GEMMs on the current GPU in fp32, TF32 and bf16, in flops a second."""
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
    """Time a call after two calls of warm-up, on the current stream; return the least, in seconds.

    The median moves with what else the GPU does, and each floor would move with it.
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
