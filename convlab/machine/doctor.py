"""What this machine has of what convlab needs, and what to do about what is missing."""

import os
import platform
import sys

import torch

from . import device, toolchain

INSTALL = "pip install -r requirements.txt"


def examine() -> list[dict[str, object]]:
    """One row for each thing: ``what``, ``found``, ``ok`` (True, False or None), ``advice``.

    `ok` is None where a thing is missing that the simulator does without.
    """
    return [_gpu(), _driver(), _nvcc(), _cublas(), _compiler(), _ninja(), _torch(), *_rest()]


def _row(what: str, found: object, ok: bool | None = True, advice: str = "") -> dict[str, object]:
    return {"what": what, "found": str(found), "ok": ok, "advice": advice}


def _gpu() -> dict[str, object]:
    found = device.describe()
    if found is not None:
        return _row("GPU", found)
    if torch.version.cuda is None:
        advice = "this torch is a CPU build; kernels run on the simulator"
    else:
        advice = "torch sees no NVIDIA GPU (try nvidia-smi); kernels run on the simulator"
    return _row("GPU", "none", None, advice)


def _driver() -> dict[str, object]:
    found = device.driver_version()
    if found is None:
        return _row("driver", "none", None, "only a GPU needs it")
    ok = int(found.split(".")[0]) >= 580
    return _row("driver", found, ok, "" if ok else "CUDA 13 needs driver 580 or later")


def _nvcc() -> dict[str, object]:
    cuda = toolchain.cuda()
    if cuda is None:
        return _row("nvcc", "none", None, f"{INSTALL} brings it, or set CUDA_HOME")
    text = f"{toolchain.version(cuda.nvcc)} ({cuda.nvcc}, from {cuda.origin})"
    return _row("nvcc", text)


def _cublas() -> dict[str, object]:
    found = toolchain.cublas_include()
    if found is None:
        advice = "a CUDA build of torch or a CUDA toolkit brings it; the simulator has its own"
        return _row("cuBLAS", "none", None, advice)
    return _row("cuBLAS", found)


def _compiler() -> dict[str, object]:
    compiler = toolchain.host_compiler()
    if compiler is None:
        return _row("C++ compiler", "none", False, "install g++ 10 or later, or set CXX")
    return _row("C++ compiler", f"{toolchain.version(compiler)} ({compiler})")


def _ninja() -> dict[str, object]:
    ninja = toolchain.ninja()
    if ninja is None:
        return _row("ninja", "none", False, INSTALL)
    return _row("ninja", f"{toolchain.version(ninja)} ({ninja})")


def _torch() -> dict[str, object]:
    parts = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    ok = (2, 11) <= parts <= (2, 13)
    advice = "" if ok else f"convlab is tested with torch 2.11 to 2.13: {INSTALL}"
    return _row("torch", f"{torch.__version__}, CUDA {torch.version.cuda}", ok, advice)


def _rest() -> list[dict[str, object]]:
    linux = sys.platform == "linux"
    known = platform.machine() in ("x86_64", "aarch64")
    advice = "" if linux and known else "Linux on x86-64 or aarch64 is needed; a container does"
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count()
    folder = toolchain.cache_dir()
    size = sum(p.stat().st_size for p in folder.rglob("*.*") if p.is_file() and not p.is_symlink())
    return [
        _row("machine", f"{platform.system()} {platform.machine()}, {cores} cores, "
             f"Python {platform.python_version()}", linux and known, advice),
        _row("build cache", f"{folder}, {size / 1e6:.0f} MB"),
    ]  # fmt: skip
