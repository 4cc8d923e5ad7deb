"""Convert a kernel to a string for a torch op's arguments, and back.

A torch op takes tensors, numbers and strings. So a kernel is passed to the op as a string, its key:

- A kernel given by name or path is its own key. It is loaded at the first call.
- A Kernel object has the key "#<serial> <name>". It is looked up in a table.
"""

import functools
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..core import arguments
from ..core.errors import ProblemError
from ..core.kernel.catalog import is_path, split_tunables
from ..core.kernel.kernel import load
from .choice import AUTOS, Auto

# The table keeps no object alive: a Conv2d or the caller of conv2d does. Each serial number is used
# only once. So two objects with the same name have different keys, and an old key never finds
# another kernel.
_kernels: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()
_serials = itertools.count(1)


def key_of(kernel: Any) -> str:
    """Return the key of a kernel: a string for the op's arguments."""
    if isinstance(kernel, (str, os.PathLike)):
        text = arguments.text(str(arguments.path(kernel, "kernel")), "kernel")
        name, tunables = split_tunables(text)
        if not is_path(name):
            return text
        return os.path.abspath(name) + (f"@{tunables}" if tunables else "")
    for key, known in _kernels.items():
        if known is kernel:
            return key
    if not callable(kernel):
        raise ProblemError(
            f"kernel={arguments.shown(kernel)} is not a kernel: give a name, the path of a .cu "
            "file, or the result of convlab.load or convlab.compile"
        )
    key = f"#{next(_serials)} {name_of(kernel)}"
    _kernels[key] = kernel
    return key


# torch.compile calls the function while it traces, and guards the result by the object's identity.
# The public torch.compiler.assume_constant_result also sets this attribute, but it imports the
# whole compiler, which takes 0.6 s.
key_of._dynamo_marked_constant = True


def name_of(kernel: Any) -> str:
    """Return the name of a kernel for the printed form of a model."""
    if isinstance(kernel, (str, os.PathLike)):
        return os.fspath(kernel)
    return getattr(kernel, "name", type(kernel).__name__)


def kernel_of(key: str, device: torch.device) -> Callable:
    """Return the kernel for a key; a kernel given by name is loaded for the tensors' device."""
    if not key.startswith("#"):
        return load_once(key, "cuda" if device.type == "cuda" else "sim")
    kernel = _kernels.get(key)
    if kernel is None:
        name = key.split(" ", 1)[1]
        raise ProblemError(
            f"the kernel {name!r} of this traced graph no longer exists: keep the object alive, or "
            "give the kernel by name"
        )
    return kernel


@functools.lru_cache(maxsize=256)
def load_once(name: str, engine: str) -> Callable:
    """Return the kernel for a name or path; "auto" uses the best kernel for each shape."""
    if name in AUTOS:
        return Auto(engine, name.partition(":")[2])
    return load(name, engine=engine)
