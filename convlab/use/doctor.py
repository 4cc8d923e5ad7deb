"""What this machine has of what convlab needs, tried out, and what to do about what is missing."""

import datetime
import math
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

from .. import sim
from ..machine import device, toolchain
from ..right import reference
from ..run import build
from ..run.kernel import compile, load
from ..words.errors import BuildError, ConvlabError
from ..words.problem import Problem

_DRIVERS = {12: 525, 13: 580}  # the first driver of each CUDA release (CUDA Compatibility, table 1)
_TRIED = Problem(1, 2, 9, 8, 3, 3, 2, padding=1, bias=True)
_KERNEL = "01_direct"


def examine() -> list[dict[str, object]]:
    """One row for each thing: ``what``, ``found``, ``ok`` (True, False or None), ``advice``.

    `ok` is None where a thing is missing that the simulator does without. The last rows are a real
    build and a real launch on each engine that there is, compared with torch.
    """
    things = [_gpu, _driver, _nvcc, _cublas, _compiler, _ninja, _torch, _machine, _cache]
    return [*(thing() for thing in things), _simulator(), *([_cuda()] if _has_gpu() else [])]


def _row(what: str, found: object, ok: bool | None = True, advice: str = "") -> dict[str, object]:
    return {"what": what, "found": str(found), "ok": ok, "advice": advice}


def _has_gpu() -> bool:
    return torch.cuda.is_available()


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
    found, release = device.driver_version(), toolchain.torch_cuda()
    if found is None:
        return _row("driver", "none", None, "only a GPU needs it")
    needed = _DRIVERS.get((release or (13, 0))[0], 580)
    ok = int(found.split(".")[0]) >= needed
    return _row("driver", found, ok, "" if ok else f"torch's CUDA needs driver {needed} or later")


def _nvcc() -> dict[str, object]:
    """Whether nvcc is there, fits torch, and compiles a kernel; that needs no GPU."""
    found = toolchain.cuda()
    if found is None:
        return _row("nvcc", "none", False if _has_gpu() else None, toolchain.without_cuda())
    source = load(_KERNEL, engine="sim")
    try:
        with tempfile.TemporaryDirectory() as folder:
            build.cubin(build.Source(source.source, _KERNEL, source.path), "80", Path(folder))
    except (ConvlabError, OSError) as error:
        return _row("nvcc", found, False, f"it does not compile {_KERNEL}: {error}")
    return _row("nvcc", f"{found}, compiles {_KERNEL}")


def _cublas() -> dict[str, object]:
    found = toolchain.cublas_include()
    if found is None:
        advice = "a CUDA build of torch or a CUDA toolkit brings it; the simulator has its own"
        return _row("cuBLAS", "none", None, advice)
    return _row("cuBLAS", found)


def _compiler() -> dict[str, object]:
    compiler = toolchain.find("c++")
    found = f"{toolchain.version(compiler)} ({compiler})" if compiler else "none"
    try:
        sim.compiler()
    except BuildError as error:
        return _row("C++ compiler", found, False, str(error))
    return _row("C++ compiler", found)


def _ninja() -> dict[str, object]:
    ninja = toolchain.find("ninja")
    if ninja is None:
        return _row("ninja", "none", False, toolchain.INSTALL)
    return _row("ninja", f"{toolchain.version(ninja)} ({ninja})")


def _torch() -> dict[str, object]:
    parts = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    ok = (2, 11) <= parts <= (2, 13)
    advice = "" if ok else f"convlab is tested with torch 2.11 to 2.13: {toolchain.INSTALL}"
    return _row("torch", f"{torch.__version__}, CUDA {torch.version.cuda}", ok, advice)


def _machine() -> dict[str, object]:
    linux = sys.platform == "linux"
    known = platform.machine() in ("x86_64", "aarch64")
    advice = "" if linux and known else "Linux on x86-64 or aarch64 is needed; a container does"
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}, {cores} cores"
    return _row("machine", f"{system}, Python {platform.python_version()}", linux and known, advice)


def _cache() -> dict[str, object]:
    folder = toolchain.cache_dir()
    files = (path for path in folder.rglob("*.*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files)
    return _row("build cache", f"{folder}, {size / 1e6:.0f} MB ({toolchain.CACHE} moves it)")


def _simulator() -> dict[str, object]:
    return _tried("simulator", "sim")


def _cuda() -> dict[str, object]:
    return _tried("GPU kernels", "cuda")


def _tried(what: str, engine: str) -> dict[str, object]:
    """Build a kernel anew, launch it, and compare what it computes."""
    text = load(_KERNEL, engine="sim").source
    fresh = f"{text}\n// doctor, {datetime.datetime.now().isoformat()}\n"
    started = time.perf_counter()
    try:
        kernel = compile(fresh, name=_KERNEL, engine=engine)
        x, w, bias = reference.inputs(_TRIED, 0, kernel.device)
        y = kernel(x, w, bias, padding=_TRIED.padding)
        expected = reference.truth(_TRIED, x, w, bias)
        error = float((y.double() - expected).norm() / expected.norm())
    except (ConvlabError, OSError, RuntimeError) as error:
        return _row(what, f"{_KERNEL} failed", False, str(error))
    took = f"{_KERNEL} built and launched in {time.perf_counter() - started:.1f} s"
    if math.isnan(error) or error > reference.tolerance("fp32", _TRIED.gemm_k):
        return _row(what, f"{took}, and wrong: error {error:.1e}", False,
                    "this machine computes wrong results: please report it")  # fmt: skip
    return _row(what, f"{took}, and right")
