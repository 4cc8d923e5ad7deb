"""List NVIDIA GPUs: limits of their SMs, sizes, clocks, and the vendor's peak rates.

Predictions for a GPU that is not in this machine use these tables, and so does the simulator, which
runs kernels as if on one of these GPUs. Nothing here needs a GPU or torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KIB = 1 << 10
_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True)
class Datasheet:
    """The vendor's figures for a GPU at boost clock: TFLOP/s (without sparsity) and GB/s."""

    fp32_tflops: float
    # None for a GPU without TF32 tensor cores.
    tf32_tflops: float | None
    memory_gb_per_s: float
    # Products of fp16 with sums in fp32. From compute capability 8.0 on, bf16 has the same rate.
    fp16_tflops: float


# The first pattern that matches the name counts, so a GPU's variants come before it. The sources
# are NVIDIA's datasheets (T4 2019, A100 2021, L4 and H100 SXM5 2023, H200 2024), the "Ada GPU
# architecture" white paper (2022), and that of the "RTX Blackwell GPU architecture" (2025). A rate
# that they give with sparsity is halved here.
_DATASHEETS: tuple[tuple[str, Datasheet], ...] = (
    (r"\bT4\b", Datasheet(8.1, None, 320, 65)),
    (r"A100-PCIE-40GB", Datasheet(19.5, 156, 1555, 312)),
    (r"A100 80GB PCIe", Datasheet(19.5, 156, 1935, 312)),
    (r"A100.*80GB", Datasheet(19.5, 156, 2039, 312)),
    (r"\bA100\b", Datasheet(19.5, 156, 1555, 312)),
    (r"\bL4\b", Datasheet(30.3, 60, 300, 121)),
    (r"RTX 4090(?! (D|Laptop))", Datasheet(82.6, 82.6, 1008, 165.2)),
    (r"RTX 5090(?! (D|Laptop))", Datasheet(104.8, 104.8, 1792, 209.5)),
    (r"H100 80GB HBM3", Datasheet(67, 494.5, 3350, 989)),
    (r"\bH200(?! NVL)\b", Datasheet(67, 494.5, 4800, 989)),
)


@dataclass(frozen=True)
class Limits:
    """The resources of one SM of a compute capability, and their allocation units.

    The source is the CUDA C++ Programming Guide, "Compute Capabilities", table "Technical
    Specifications per Compute Capability".
    """

    # The most resident threads and blocks of an SM.
    threads: int
    blocks: int
    # The shared memory of an SM.
    shared_bytes: int
    # The most shared memory that a block can request.
    shared_optin_bytes: int
    # The fp32 multiply-adds of an SM in one cycle.
    fp32_lanes: int
    # The shared memory that the system uses in each block.
    reserved_bytes: int = 1024
    # The unit in which shared memory is allocated, in bytes.
    shared_unit: int = 128
    # The registers of an SM, with 32 bits each.
    registers: int = 65536
    # The unit in which a warp's registers are allocated.
    register_unit: int = 256
    registers_per_thread: int = 255
    threads_per_block: int = 1024

    @property
    def warps(self) -> int:
        """The most resident warps of an SM."""
        return self.threads // 32


# By compute capability: 90 is 9.0.
LIMITS: dict[int, Limits] = {
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
    """A GPU that runs kernels, or for which they are simulated or modelled.

    `limits` has the shared memory and the registers of an SM, `datasheet` the peak rates and the
    bandwidth of the DRAM.
    """

    name: str
    # The driver's name for it, which `datasheet` looks up.
    driver_name: str
    # The compute capability: 90 is 9.0.
    sm: int
    # The number of SMs.
    sms: int
    l2_bytes: int
    # The boost clock.
    ghz: float
    memory_bytes: int
    # The width of the memory bus; 0 if it is not known.
    bus_bits: int = 0

    @property
    def limits(self) -> Limits:
        """The limits of its SMs; for an unknown compute capability, those of the next lower one."""
        not_above = [known for known in LIMITS if known <= self.sm]
        return LIMITS[max(not_above, default=min(LIMITS))]

    @property
    def arch(self) -> str:
        """The architecture for nvcc, without the prefix "sm_": "90a"."""
        return f"{self.sm}a" if self.sm >= 90 else str(self.sm)

    @property
    def datasheet(self) -> Datasheet | None:
        """The vendor's datasheet, or None if unknown."""
        return datasheet(self.driver_name)

    def __str__(self) -> str:
        return f"{self.driver_name}, {self.sms} SMs, sm_{self.sm}"


# The source of SMs, L2, boost clocks, memory and bus is NVIDIA's architecture white papers (Turing,
# A100, Ada, H100, RTX Blackwell) and, for the H200, its driver. The clock satisfies: fp32 rate of
# the datasheet = 2 * lanes * SMs * clock.
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", "Tesla T4", 75, 40, 4 * _MIB, 1.59, 16 * _GIB, 256),
        Gpu("A100", "NVIDIA A100-SXM4-80GB", 80, 108, 40 * _MIB, 1.41, 80 * _GIB, 5120),
        Gpu("L4", "NVIDIA L4", 89, 58, 48 * _MIB, 2.04, 24 * _GIB, 192),
        Gpu("RTX 4090", "NVIDIA GeForce RTX 4090", 89, 128, 72 * _MIB, 2.52, 24 * _GIB, 384),
        Gpu("RTX 5090", "NVIDIA GeForce RTX 5090", 120, 170, 96 * _MIB, 2.407, 32 * _GIB, 512),
        Gpu("H100", "NVIDIA H100 80GB HBM3", 90, 132, 50 * _MIB, 1.98, 80 * _GIB, 5120),
        Gpu("H200", "NVIDIA H200", 90, 132, 60 * _MIB, 1.98, 140 * _GIB, 6144),
    )
}
# The simulator runs kernels as if on this GPU, and predictions without a GPU are for it.
DEFAULT_GPU = GPUS["H200"]
# The GPUs whose predicted times were compared with measured ones; see profile/MODEL.md.
VALIDATED = ("H100", "H200")


def datasheet(driver_name: str) -> Datasheet | None:
    """Return the datasheet for a GPU's driver name, or None if unknown."""
    return next((sheet for pattern, sheet in _DATASHEETS if re.search(pattern, driver_name)), None)
