"""The string that stands for a kernel in an op's arguments, and the kernel behind a string.

The schema of a torch op has tensors, numbers and strings, so a kernel travels through it as a key:

- a kernel given by name or path is its own key, and is loaded at its first call;
- an object has the key "#<serial> <name>", and is looked up in a table.
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
from ..core.kernel.kernel import load
from .choice import AUTOS, Auto

# The table keeps no object alive: its user (a Conv2d, the caller of conv2d) does. A serial number
# is never used again, so two objects of one name stay apart, and an old key finds nothing rather
# than another kernel.
_kernels: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()
_serials = itertools.count(1)


def key_of(kernel: Any) -> str:
    """Return the string that stands for a kernel in the op's arguments."""
    if isinstance(kernel, (str, os.PathLike)):
        text = arguments.text(str(arguments.path(kernel, "kernel")), "kernel")
        is_path = text.endswith(".cu") or os.path.dirname(text) != ""
        return os.path.abspath(text) if is_path else text
    for key, known in _kernels.items():
        if known is kernel:
            return key
    if not callable(kernel):
        raise ProblemError(
            f"kernel={arguments.shown(kernel)} is no kernel: give a name, the path of a .cu file, "
            "or what convlab.load or convlab.compile returns"
        )
    key = f"#{next(_serials)} {name_of(kernel)}"
    _kernels[key] = kernel
    return key


# torch.compile calls the function while it traces, and guards the result by the object's identity.
# The public torch.compiler.assume_constant_result sets this attribute, too, but it imports the
# whole compiler, which takes 0.6 s.
key_of._dynamo_marked_constant = True


def name_of(kernel: Any) -> str:
    """Return the name of a kernel, as a printed model shows it."""
    if isinstance(kernel, (str, os.PathLike)):
        return os.fspath(kernel)
    return getattr(kernel, "name", type(kernel).__name__)


def kernel_of(key: str, device: torch.device) -> Callable:
    """Return the kernel behind a key; a kernel given by name runs where the tensors are."""
    if not key.startswith("#"):
        return load_once(key, "cuda" if device.type == "cuda" else "sim")
    kernel = _kernels.get(key)
    if kernel is None:
        name = key.split(" ", 1)[1]
        raise ProblemError(
            f"the kernel {name!r} that this graph was traced with no longer exists: "
            "keep the object alive, or give the kernel by name"
        )
    return kernel


@functools.lru_cache(maxsize=256)
def load_once(name: str, engine: str) -> Callable:
    """Return the kernel of a name or path; "auto" is the best kernel for each shape."""
    if name in AUTOS:
        return Auto(engine, name.partition(":")[2])
    return load(name, engine=engine)
