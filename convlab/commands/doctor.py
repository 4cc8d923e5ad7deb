"""What this machine has of what convlab needs, tried out, and what to do about what is missing."""

import datetime
import os
import platform
import sys
import time
from collections.abc import Iterator

import torch

from .. import sim
from ..core.builds import cache
from ..core.correctness.check import check
from ..core.errors import BuildError, ConvlabError
from ..core.kernel.kernel import compile, load
from ..core.machine import device, toolchain
from ..core.problem.problem import Problem

_TRIED = Problem(1, 2, 9, 8, 3, 3, 2, padding=1, bias=True)
_KERNEL = "01_direct"
Row = tuple[str, str, bool | None, str]


def examine() -> list[dict[str, object]]:
    """One row for each thing: ``what``, ``found``, ``ok`` (True, False or None), ``advice``.

    `ok` is None where a thing is missing that the simulator does without. The last rows are a real
    build and a real launch on each engine that there is, compared with torch.
    """
    rows = [_gpu(), _nvcc(), _compiler(), *_machine(), _tried("simulator", "sim")]
    if torch.cuda.is_available():
        rows.append(_tried("GPU kernels", "cuda"))
    return [dict(zip(("what", "found", "ok", "advice"), row, strict=True)) for row in rows]


def _gpu() -> Row:
    gpu = device.describe()
    why = "torch sees no NVIDIA GPU (try nvidia-smi)"
    if gpu:
        return "GPU", str(gpu), True, ""
    why = "this torch is a CPU build" if torch.version.cuda is None else why
    return "GPU", "none", None, f"{why}; kernels run on the simulator"


def _nvcc() -> Row:
    found = toolchain.cuda()
    ok = None if found is None and not torch.cuda.is_available() else found is not None
    return "nvcc", str(found or "none"), ok, "" if found else toolchain.without_cuda()


def _compiler() -> Row:
    compiler = toolchain.find("c++")
    told = f"{toolchain.version(compiler)} ({compiler})" if compiler else "none"
    try:
        sim.compiler()
    except BuildError as error:
        return "C++ compiler", told, False, str(error)
    return "C++ compiler", told, True, ""


def _machine() -> Iterator[Row]:
    parts = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    ok = (2, 11) <= parts <= (2, 13)
    advice = "" if ok else f"convlab is tested with torch 2.11 to 2.13: {toolchain.INSTALL}"
    yield "torch", f"{torch.__version__}, CUDA {torch.version.cuda}", ok, advice
    ok = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    advice = "" if ok else "Linux on x86-64 or aarch64 is needed; a container does"
    yield "machine", f"{system}, Python {platform.python_version()}", ok, advice
    folder = toolchain.cache_dir()
    ok = toolchain.lasting()
    size = sum(entry.bytes for entry in cache.contents())  # also while others build there
    advice = (
        "" if ok else f"it goes when Python ends; name a folder of your own as {toolchain.CACHE}"
    )
    yield "build cache", f"{folder}, {size / 1e6:.0f} MB ({toolchain.CACHE} moves it)", ok, advice


def _tried(what: str, engine: str) -> Row:
    """Build a kernel anew, launch it, and check what it computes."""
    text = load(_KERNEL, engine="sim").source
    fresh = f"{text}\n// doctor, {datetime.datetime.now().isoformat()}\n"
    started = time.perf_counter()
    try:
        report = check(compile(fresh, name=_KERNEL, engine=engine), _TRIED, progress=False)
    except (ConvlabError, OSError, RuntimeError) as error:
        return what, f"{_KERNEL} failed", False, str(error)
    took = f"{_KERNEL} built and launched in {time.perf_counter() - started:.1f} s"
    if not report.ok:
        wrong = f"this machine computes wrong results, please report it: {report.sentence}"
        return what, f"{took}, and wrong", False, wrong
    return what, f"{took}, and right", True, ""
