"""Read the GPU's clock in MHz, and the reasons for which the driver throttles it, with NVML.

NVML comes with the driver, its Python module with nvidia-ml-py. If either is missing, or NVML
returns an error, a `Clock` has no readings and gives the reason.
"""

import contextlib
from dataclasses import dataclass

import torch

# NVML API reference, "NvmlClocksEventReasons": the ones that lower the clock.
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake slowdown",
}


@dataclass(frozen=True)
class Reading:
    """The clock of the SMs in MHz, and the throttle reasons at that moment."""

    mhz: int
    throttles: tuple[str, ...] = ()


class Clock:
    """Read a GPU's clock; `missing` is the reason why that is not possible, or empty."""

    def __init__(self, device: torch.device) -> None:
        self.missing = "" if device.type == "cuda" else "no GPU"
        self._readings: list[Reading] = []
        if self.missing:
            return
        try:
            # Optional: from nvidia-ml-py.
            import pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is not installed"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            # Use the UUID, because CUDA_VISIBLE_DEVICES renumbers CUDA's devices but not NVML's.
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            self._read()
        except (pynvml.NVMLError, AttributeError) as error:
            self.missing = f"NVML returned an error: {error}"

    def note(self) -> None:
        """Take a reading; call this while the GPU is busy."""
        if not self.missing:
            with contextlib.suppress(self._nvml.NVMLError):
                self._readings.append(self._read())

    def take(self) -> list[Reading]:
        """Return the readings since the last call."""
        readings = self._readings
        self._readings = []
        return readings

    def _read(self) -> Reading:
        nvml = self._nvml
        reasons = getattr(
            nvml,
            "nvmlDeviceGetCurrentClocksEventReasons",
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        )(self._handle)
        mhz = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
        return Reading(mhz, tuple(text for bit, text in THROTTLES.items() if reasons & bit))
