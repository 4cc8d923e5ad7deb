"""What this machine has of what convlab needs, tried out, and what to do about what is missing."""

import datetime
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from .. import sim
from ..machine import cache, device, toolchain
from ..right import reference
from ..run import build
from ..run.kernel import compile, load
from ..words.errors import BuildError, ConvlabError
from ..words.problem import Problem

_DRIVERS = {12: 525, 13: 580}  # the first driver of each CUDA release (CUDA Compatibility, table 1)
_TRIED = Problem(1, 2, 9, 8, 3, 3, 2, padding=1, bias=True)
_KERNEL = "01_direct"
Row = tuple[str, str, bool | None, str]


def examine() -> list[dict[str, object]]:
    """One row for each thing: ``what``, ``found``, ``ok`` (True, False or None), ``advice``.

    `ok` is None where a thing is missing that the simulator does without. The last rows are a real
    build and a real launch on each engine that there is, compared with torch.
    """
    rows = [*_cuda(), *_tools(), *_machine(), _tried("simulator", "sim")]
    if torch.cuda.is_available():
        rows.append(_tried("GPU kernels", "cuda"))
    return [dict(zip(("what", "found", "ok", "advice"), row, strict=True)) for row in rows]


def _cuda() -> Iterator[Row]:
    gpu = device.describe()
    why = "torch sees no NVIDIA GPU (try nvidia-smi)"
    if torch.version.cuda is None:
        why = "this torch is a CPU build"
    yield ("GPU", str(gpu), True, "") if gpu else (
        "GPU", "none", None, f"{why}; kernels run on the simulator"
    )  # fmt: skip
    driver, release = device.driver_version(), toolchain.torch_cuda()
    needed = _DRIVERS.get((release or (13, 0))[0], 580)
    if driver is None:
        yield "driver", "none", None, "only a GPU needs it"
    else:
        ok = int(driver.split(".")[0]) >= needed
        yield "driver", driver, ok, "" if ok else f"torch's CUDA needs driver {needed} or later"
    yield _nvcc()
    cublas = toolchain.cublas_include()
    yield ("cuBLAS", str(cublas), True, "") if cublas else (
        "cuBLAS", "none", None,
        "a CUDA build of torch or a CUDA toolkit brings it; the simulator has its own",
    )  # fmt: skip


def _nvcc() -> Row:
    """Whether nvcc is there, fits torch, and compiles a kernel; that needs no GPU."""
    found = toolchain.cuda()
    if found is None:
        ok = False if torch.cuda.is_available() else None
        return "nvcc", "none", ok, toolchain.without_cuda()
    source = load(_KERNEL, engine="sim")
    try:
        with tempfile.TemporaryDirectory() as folder:
            build.cubin(build.Source(source.source, _KERNEL, source.path), "80", Path(folder))
    except (ConvlabError, OSError) as error:
        return "nvcc", str(found), False, f"it does not compile {_KERNEL}: {error}"
    return "nvcc", f"{found}, compiles {_KERNEL}", True, ""


def _tools() -> Iterator[Row]:
    compiler, ninja = toolchain.find("c++"), toolchain.find("ninja")
    told = f"{toolchain.version(compiler)} ({compiler})" if compiler else "none"
    advice = ""
    try:
        sim.compiler()
    except BuildError as error:
        advice = str(error)
    yield "C++ compiler", told, not advice, advice
    told = f"{toolchain.version(ninja)} ({ninja})" if ninja else "none"
    yield "ninja", told, bool(ninja), "" if ninja else toolchain.INSTALL


def _machine() -> Iterator[Row]:
    parts = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    ok = (2, 11) <= parts <= (2, 13)
    advice = "" if ok else f"convlab is tested with torch 2.11 to 2.13: {toolchain.INSTALL}"
    yield "torch", f"{torch.__version__}, CUDA {torch.version.cuda}", ok, advice
    linux = sys.platform == "linux"
    ok = linux and platform.machine() in ("x86_64", "aarch64")
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}, {cores} cores"
    advice = "" if ok else "Linux on x86-64 or aarch64 is needed; a container does"
    yield "machine", f"{system}, Python {platform.python_version()}", ok, advice
    folder = toolchain.cache_dir()
    size = sum(entry.bytes for entry in cache.contents())  # also while others build there
    yield "build cache", f"{folder}, {size / 1e6:.0f} MB ({toolchain.CACHE} moves it)", True, ""


def _tried(what: str, engine: str) -> Row:
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
        return what, f"{_KERNEL} failed", False, str(error)
    took = f"{_KERNEL} built and launched in {time.perf_counter() - started:.1f} s"
    if math.isnan(error) or error > reference.tolerance("fp32", _TRIED.gemm_k):
        wrong = "this machine computes wrong results: please report it"
        return what, f"{took}, and wrong: error {error:.1e}", False, wrong
    return what, f"{took}, and right", True, ""
