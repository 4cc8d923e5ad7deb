"""Record the provenance of a result for its receipt: date, machine, versions, sources, flags."""

import datetime
import functools
import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..machine import toolchain
from ..machine.device import describe, driver_version
from .runnable import Runnable


def made_of(runnables: Sequence[Runnable]) -> dict[str, Any]:
    """Return the provenance of runnables on one device as JSON; builds them if necessary."""
    gpu = describe(runnables[0].device) if runnables else None
    cuda = toolchain.cuda() if gpu else None
    compiler = toolchain.find("c++")
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": gpu and gpu.driver_name,
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "versions": {
            "convlab": _package_digest(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "driver": driver_version() if gpu else None,
            "nvcc": toolchain.version(cuda.nvcc) if cuda else None,
            "c++": toolchain.version(compiler) if compiler else None,
        },
        "kernels": [_of_one(runnable) for runnable in runnables],
    }


def _of_one(runnable: Runnable) -> dict[str, Any]:
    """Return the provenance of one runnable."""
    build = runnable.build()
    return {
        "name": runnable.name,
        "engine": runnable.engine,
        "class": runnable.precision,
        "path": runnable.path and str(runnable.path),
        "defines": dict(runnable.defines),
        "sources": {name: _digest(text) for name, text in runnable.texts.items()},
        "digest": _digest(repr(sorted(runnable.texts.items()))) if runnable.texts else None,
        "flags": [*build.flags] if build else [],
        "build": build and build.library.parent.name,
    }


@functools.cache
def _package_digest() -> str:
    """Return a digest of this package's Python and C++ files."""
    files = sorted(Path(__file__).parents[2].rglob("*"))
    code = [path.read_text() for path in files if path.suffix in (".py", ".h", ".cpp")]
    return _digest("\0".join(code))[:12]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
