"""Detect replaced functions: the clock, the events and the comparisons that a verdict needs.

A callable runs Python in this process. It can replace `torch.cuda.synchronize` by its own function,
for example. So this module stores the original objects when it is imported. After each run they are
compared with the current ones, and restored.
"""

import contextlib
import functools
import pkgutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..core.correctness import examine, output, reference
from ..core.errors import ConvlabError
from ..core.kernel.runnable import Runnable
from ..core.timing import ratio
from ..core.timing.observer import Caught

_WATCHED = {
    "time": "perf_counter perf_counter_ns time time_ns monotonic sleep",
    "statistics": "median fmean",
    "random": "Random SystemRandom",
    "torch": "allclose equal isclose isfinite take _convolution conv2d",
    "torch.Tensor": "__eq__ __ne__ __le__ __lt__ __invert__ abs abs_ sub any all double take put_ "
    "normal_ clone copy_ numel sum square detach data_ptr untyped_storage",
    "torch.cuda": "Event CUDAGraph synchronize current_stream _sleep graph",
    "torch.cuda.Event": "record elapsed_time synchronize query wait",
    "torch.cuda.Stream": "synchronize wait_stream",
    "torch.cuda.CUDAGraph": "replay",
    "torch.nn.functional": "conv2d",
    "torch.testing": "assert_close",
}
_OURS = (examine, reference, output, output.OutputComparison, reference.Reference, ratio)


def _originals() -> dict[str, tuple[Any, str, Any]]:
    """Return for the full name of each watched object: its holder, its name there, the object."""
    holders = [
        (name, pkgutil.resolve_name(name), names.split()) for name, names in _WATCHED.items()
    ]
    for holder in _OURS:
        attributes = vars(holder).items()
        names = [n for n, value in attributes if callable(value) or type(value) is property]
        module = f"{holder.__module__}." if isinstance(holder, type) else ""
        holders.append((f"{module}{holder.__name__}", holder, names))
    return {
        f"{path}.{name}": (holder, name, getattr(holder, name))
        for path, holder, names in holders
        for name in names
        if hasattr(holder, name)
    }


def _is_foreign(value: Any) -> bool:
    """Return whether a function's code is not from Python's standard library, torch or convlab."""
    code = getattr(value, "__code__", None)
    folders = (sysconfig.get_path("stdlib"), *torch.__path__, str(Path(__file__).parents[1]))
    return code is not None and not code.co_filename.startswith((*folders, "<frozen"))


_ORIGINALS = _originals()
# The names of objects that had been replaced before convlab was imported.
REPLACED_BEFORE = [name for name, (*_, value) in _ORIGINALS.items() if _is_foreign(value)]


def restore_replaced() -> list[str]:
    """Restore the objects that were replaced since the import, and return their names."""
    names = []
    for name, (holder, attribute, value) in _ORIGINALS.items():
        if getattr(holder, attribute, None) is not value:
            names.append(name)
            setattr(holder, attribute, value)
    return names


def put_back() -> list[str]:
    """Restore the objects that were replaced, and return their names.

    Raises ConvlabError if one had been replaced before convlab was imported.
    """
    if REPLACED_BEFORE:
        tools = ", ".join(REPLACED_BEFORE)
        raise ConvlabError(
            f"{tools} had been replaced before convlab was imported, so times and comparisons "
            "cannot be trusted: restart Python, and import convlab first"
        )
    return restore_replaced()


def require_own_tools(runnable: Runnable) -> None:
    """Raise Caught if functions for measuring were replaced while a runnable ran."""
    if names := restore_replaced():
        tools = ", ".join(names)
        raise Caught(runnable, f"while it ran, it replaced {tools}, which convlab measures with")


# ---- torch's settings apply to the whole process, and so to the other side too ------------


def current_stream() -> int:
    """Return the current stream of the current GPU; 0 is the default one."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.cuda.current_stream().cuda_stream if on_gpu else 0


def _set_default_stream(_: int) -> None:
    """Make the default stream the current one."""
    torch.cuda.set_stream(torch.cuda.default_stream())


def _read(holder: Any, name: str) -> Any:
    """Return a setting; None if torch cannot, because an old and a new setting contradict."""
    with contextlib.suppress(RuntimeError):
        return getattr(holder, name)
    return None


def _attribute(holder: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return the functions that read and that set an attribute."""
    return functools.partial(_read, holder, name), functools.partial(setattr, holder, name)


_backends = torch.backends
# The functions that read and set each setting. `allow_tf32` is the older name; setting it also sets
# `fp32_precision`.
_SETTINGS = {
    "allow_tf32 of cuBLAS": _attribute(_backends.cuda.matmul, "allow_tf32"),
    "allow_tf32 of cuDNN": _attribute(_backends.cudnn, "allow_tf32"),
    "fp32_precision of cuBLAS": _attribute(_backends.cuda.matmul, "fp32_precision"),
    "fp32_precision of cuDNN": _attribute(_backends.cudnn.conv, "fp32_precision"),
    "fp32_precision of cuDNN's RNNs": _attribute(_backends.cudnn.rnn, "fp32_precision"),
    "fp32_precision of oneDNN's products": _attribute(_backends.mkldnn.matmul, "fp32_precision"),
    "fp32_precision of oneDNN": _attribute(_backends.mkldnn.conv, "fp32_precision"),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the current stream": (current_stream, _set_default_stream),
}


def read_settings() -> dict[str, Any]:
    """Return torch's current settings by name."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def restore_settings(before: dict[str, Any]) -> list[str]:
    """Restore the settings that were changed, and return their names."""
    changed = [name for name, value in read_settings().items() if value != before[name]]
    if not changed:
        return []
    # Setting one may change another: read each again.
    for name, (read, write) in _SETTINGS.items():
        if before[name] is not None and read() != before[name]:
            write(before[name])
    return changed
