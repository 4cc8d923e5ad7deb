"""convlab: a microscope for CUDA convolution kernels.

>>> import convlab
>>> kernel = convlab.load("03_smem_tile")          # kernels/03_smem_tile.cu
>>> y = kernel(x, w, stride=2, padding=1)          # called like torch.nn.functional.conv2d
>>> convlab.check(kernel, "square").ok             # against a float64 reference
>>> convlab.compare(problem="square").plot()       # the first rungs, and the best of each class
>>> convlab.ab("03_smem_tile", "03_smem_tile@TILE=8", "wide").verdict
>>> convlab.inspect(kernel, "square").listing()    # what each source line costs
>>> convlab.best("square", "tf32", gpu="H200")     # the best kernel for this problem, or cuDNN

In a notebook, ``%load_ext convlab`` adds ``%%kernel`` and ``%convlab``.
Importing convlab compiles nothing, uses no GPU and does not import torch. Each name is imported when
you first use it. ``convlab/README.md`` describes the package.
"""

# `_signal` is built in. Importing `signal` takes milliseconds, in which Ctrl-C could come.
import _signal
import os
import sys

# A command blocks Ctrl-C from its first line on, until `commands.supervise` waits for it.
# pip installs the script of a command here.
_SCRIPT = os.path.join(os.path.dirname(sys.executable), "convlab")
_MODULE = sys.orig_argv[-len(sys.argv) :][:1] if sys.argv[:1] == ["-m"] else []
if _MODULE in (["convlab"], ["-mconvlab"]) or [*map(os.path.abspath, sys.argv[:1])] == [_SCRIPT]:
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])

import importlib
from typing import Any

from .core import rooms
from .core.machine import interrupt

# The public names of the core, and the module of each. Rooms add theirs in ``room.toml``.
_CORE = {
    "Kernel": "kernel.kernel",
    "Problem": "problem.problem",
    "ab": "timing.ab",
    "check": "correctness.check",
    "compare": "timing.compare",
    "compile": "kernel.kernel",
    "load": "kernel.kernel",
    "problem": "problem.named",
    "problems": "problem.named",
}

__all__ = sorted([*_CORE, "errors", *rooms.names("name")])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name == "errors":
        return importlib.import_module(".core.errors", __name__)
    # If the import of torch were interrupted, it could not be imported again.
    with interrupt.held():
        if name in _CORE:
            value = getattr(importlib.import_module(f".core.{_CORE[name]}", __name__), name)
        else:
            value = rooms.provided("name", name)
    if value is None:
        raise AttributeError(f"convlab has no {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List all public names, including those that were not used yet."""
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: object) -> None:
    """Register the notebook's magics, for ``%load_ext convlab``."""
    register = rooms.provided("extension", "ipython")
    if register is None:
        raise ImportError("the magics are in convlab/notebook, which was deleted")
    register(shell)
