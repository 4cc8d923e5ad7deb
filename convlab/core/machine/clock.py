"""The GPU's clock while something runs: megahertz, and why the driver holds it down (NVML).

NVML comes with the driver; its Python module is nvidia-ml-py. Where either is missing, or the
machine does not let NVML answer, a `Clock` has no readings and says why.
"""

import contextlib
from dataclasses import dataclass

import torch

# NVML API reference, "NvmlClocksEventReasons": those that hold the clock below what was asked for.
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slow-down",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Reading:
    """The clock of the SMs in MHz, and what held it down at that moment."""

    mhz: int
    throttles: tuple[str, ...] = ()


class Clock:
    """Reads a GPU's clock; `missing` is why it cannot, or empty."""

    def __init__(self, device: torch.device) -> None:
        self.missing = "" if device.type == "cuda" else "no GPU"
        self._readings: list[Reading] = []
        if self.missing:
            return
        try:
            import pynvml  # optional: from nvidia-ml-py
        except ImportError:
            self.missing = "nvidia-ml-py is not installed"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            # by UUID: CUDA_VISIBLE_DEVICES renumbers CUDA's devices, not NVML's
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            self._read()
        except (pynvml.NVMLError, AttributeError) as error:
            self.missing = f"NVML does not answer: {error}"

    def note(self) -> None:
        """Take a reading, to be called while the GPU works."""
        if not self.missing:
            with contextlib.suppress(self._nvml.NVMLError):
                self._readings.append(self._read())

    def take(self) -> list[Reading]:
        """Return the readings since the last call."""
        taken = self._readings
        self._readings = []
        return taken

    def _read(self) -> Reading:
        nvml = self._nvml
        reasons = getattr(
            nvml,
            "nvmlDeviceGetCurrentClocksEventReasons",
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        )(self._handle)
        mhz = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
        return Reading(mhz, tuple(text for bit, text in THROTTLES.items() if reasons & bit))
