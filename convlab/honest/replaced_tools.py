"""The clock, the events, the comparisons: still the ones that were there when convlab was imported?

A callable is Python in this very process, and may put another `torch.cuda.synchronize` in place of
torch's. What a verdict leans on is remembered here at import, looked at again after each run, and
put back.
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


def _found() -> dict[str, tuple[Any, str, Any]]:
    """Each thing watched, by its name: where it hangs, under which name, what it is."""
    places = [(name, pkgutil.resolve_name(name), names.split()) for name, names in _WATCHED.items()]
    for ours in _OURS:
        names = [n for n, value in vars(ours).items() if callable(value) or type(value) is property]
        inside = f"{ours.__module__}." if isinstance(ours, type) else ""
        places.append((f"{inside}{ours.__name__}", ours, names))
    return {
        f"{where}.{name}": (holder, name, getattr(holder, name))
        for where, holder, names in places
        for name in names
        if hasattr(holder, name)
    }


def _strange(value: Any) -> bool:
    """Whether a function's code is from elsewhere than Python's library, torch and convlab."""
    code = getattr(value, "__code__", None)
    homes = (sysconfig.get_path("stdlib"), *torch.__path__, str(Path(__file__).parents[1]))
    return code is not None and not code.co_filename.startswith((*homes, "<frozen"))


_THEN = _found()
BEFORE = [name for name, (*_, value) in _THEN.items() if _strange(value)]  # the import, replaced


def replaced() -> list[str]:
    """Return the names of what was replaced since the import; each is put back."""
    found = []
    for name, (holder, attribute, value) in _THEN.items():
        if getattr(holder, attribute, None) is not value:
            found.append(name)
            setattr(holder, attribute, value)
    return found


def put_back() -> list[str]:
    """Put back the tools that were replaced; return their names.

    Raises ConvlabError if they had been replaced before convlab was imported.
    """
    if BEFORE:
        raise ConvlabError(
            f"{', '.join(BEFORE)} had been replaced before convlab was imported, and no time or "
            "comparison can be trusted: start Python anew"
        )
    return replaced()


def require_own_tools(runnable: Runnable) -> None:
    """Raise Caught if the measuring tools were replaced while a runnable ran."""
    if names := replaced():
        named = ", ".join(names)
        raise Caught(runnable, f"while it ran {named} was replaced: the judge's own tools")


# ---- torch's state, for all of a process: it changes what the other side computes, or how fast ---


def stream() -> int:
    """The current stream of the current GPU; 0 is the default one."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return torch.cuda.current_stream().cuda_stream if on_gpu else 0


def _default_stream(_: int) -> None:
    torch.cuda.set_stream(torch.cuda.default_stream())


def _attribute(holder: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    def read() -> Any:
        with contextlib.suppress(RuntimeError):  # torch refuses, where old and new do not agree
            return getattr(holder, name)

    return read, functools.partial(setattr, holder, name)


_backends = torch.backends
# What reads each, and what sets it; `allow_tf32`, the older, sets `fp32_precision`, too.
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
    "the current stream": (stream, _default_stream),
}


def settings() -> dict[str, Any]:
    """Return torch's settings as they are."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def altered(before: dict[str, Any]) -> list[str]:
    """Return the names of the settings that are not as they were; those are put back."""
    changed = [name for name, value in settings().items() if value != before[name]]
    for name, (read, write) in _SETTINGS.items() if changed else ():
        if before[name] is not None and read() != before[name]:
            write(before[name])
    return changed
