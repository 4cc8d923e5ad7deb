"""What this machine has of what convlab needs, tried out, and what to do about what is missing."""

import datetime
import os
import platform
import sys
import time
from typing import Any, NamedTuple

import torch

from ..core import rooms
from ..core.builds import cache
from ..core.correctness.check import check
from ..core.errors import BuildError, ConvlabError
from ..core.kernel import catalog
from ..core.kernel.kernel import compile
from ..core.machine import device, toolchain
from ..core.problem.problem import Problem

_PROBLEM = Problem(1, 2, 9, 8, 3, 3, 2, padding=1, bias=True)
_KERNEL = "01_direct"
_OLDEST_TORCH = (2, 11)
_NEWEST_TORCH = (2, 13)


class Row(NamedTuple):
    """What was found of one thing. `ok` is None where the simulator does without it."""

    what: str
    found: str
    ok: bool | None
    advice: str = ""


def examine() -> list[dict[str, Any]]:
    """Return one row for each thing: ``what``, ``found``, ``ok`` (True, False or None), ``advice``.

    `ok` is None where a thing is missing that convlab does without. The last rows are a real build
    and a real launch on each engine that this machine has, compared with torch.
    """
    rows = [_gpu(), _nvcc(), _cpp_compiler(), _torch(), _machine(), _build_cache(), _simulator()]
    if torch.cuda.is_available():
        rows.append(_trial("GPU kernels", "cuda"))
    return [row._asdict() for row in rows]


def _gpu() -> Row:
    gpu = device.describe()
    if gpu:
        return Row("GPU", str(gpu), True)
    cpu_build = torch.version.cuda is None
    why = "this torch is a CPU build" if cpu_build else "torch sees no NVIDIA GPU (try nvidia-smi)"
    instead = "; kernels run on the simulator" if "sim" in rooms.names("engine") else ""
    return Row("GPU", "none", None, f"{why}{instead}")


def _nvcc() -> Row:
    cuda = toolchain.cuda()
    if cuda is not None:
        return Row("nvcc", str(cuda), True)
    ok = False if torch.cuda.is_available() else None
    return Row("nvcc", "none", ok, toolchain.without_cuda())


def _cpp_compiler() -> Row:
    """Return the C++ compiler; the simulator says whether it is new enough."""
    path = toolchain.find("c++")
    found = f"{toolchain.version(path)} ({path})" if path else "none"
    require_compiler = rooms.provided("doctor", "compiler")
    if require_compiler is None:
        return Row("C++ compiler", found, True if path else None)
    try:
        require_compiler()
    except BuildError as error:
        return Row("C++ compiler", found, False, str(error))
    return Row("C++ compiler", found, True)


def _torch() -> Row:
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    version = tuple(int(number) for number in numbers)
    ok = _OLDEST_TORCH <= version <= _NEWEST_TORCH
    advice = "" if ok else f"convlab is tested with torch 2.11 to 2.13: {toolchain.INSTALL}"
    return Row("torch", f"{torch.__version__}, CUDA {torch.version.cuda}", ok, advice)


def _machine() -> Row:
    ok = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    advice = "" if ok else "Linux on x86-64 or aarch64 is needed; a container will do"
    return Row("machine", f"{system}, Python {platform.python_version()}", ok, advice)


def _build_cache() -> Row:
    ok = toolchain.lasting()
    # The size is read while other processes may build there.
    megabytes = sum(entry.bytes for entry in cache.contents()) / 1e6
    found = f"{toolchain.cache_dir()}, {megabytes:.0f} MB ({toolchain.CACHE} moves it)"
    advice = f"it goes when Python ends; set {toolchain.CACHE} to a folder of your own"
    return Row("build cache", found, ok, "" if ok else advice)


def _simulator() -> Row:
    if "sim" not in rooms.names("engine"):
        advice = "convlab/sim was deleted: kernels run on a GPU only"
        return Row("simulator", "not installed", None, advice)
    return _trial("simulator", "sim")


def _trial(what: str, engine: str) -> Row:
    """Build a kernel anew, launch it, and check its result."""
    source = catalog.read(catalog.find(_KERNEL))
    # The comment makes it a source that no cache holds.
    source += f"\n// doctor, {datetime.datetime.now().isoformat()}\n"
    start = time.perf_counter()
    try:
        kernel = compile(source, name=_KERNEL, engine=engine)
        report = check(kernel, _PROBLEM, progress=False)
    except (ConvlabError, OSError, RuntimeError) as error:
        return Row(what, f"{_KERNEL} failed", False, str(error))
    seconds = time.perf_counter() - start
    found = f"{_KERNEL} built and launched in {seconds:.1f} s"
    if not report.ok:
        advice = f"this machine computes wrong results, please report it: {report.sentence}"
        return Row(what, f"{found}, and wrong", False, advice)
    return Row(what, f"{found}, and correct", True)
