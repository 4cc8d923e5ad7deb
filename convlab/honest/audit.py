"""A Python callable, audited: is it the work that it is timed for?

What that catches is in ``cheats.md``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.errors import LaunchError
from ..core.kernel.data import inputs
from ..core.kernel.function import Function
from ..core.kernel.runnable import Launch, Runnable, explained
from ..core.problem.problem import Problem
from ..core.timing.observer import Caught
from .replaced_tools import altered, require_own_tools, settings, stream
from .witness import SECRET, Witness

_CALLS = 12  # of an audit, unless they take longer than
_AUDIT_SECONDS = 3.0
_SLEEP_CYCLES = 2_000_000  # of a GPU's clock: about a millisecond
_LIBRARY = ("conv", "mm", "matmul", "linear")  # in the names of torch's operations
_HALVES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class CallableAudit:
    """Remembers torch's settings at its start; `finish` looks at them, and calls the callable."""

    def __init__(self, runnable: Runnable) -> None:
        self.runnable = runnable
        self._settings = settings()

    def finish(self, runnable: Runnable, problem: Problem, right: bool) -> Sequence[str]:
        """Return what a reader should know of the callable, in its class. Raises Caught."""
        self._require_own_state()
        if not right:
            return ()
        notes = _called_twelve_times(runnable, problem)
        self._require_own_state()
        return notes

    def _require_own_state(self) -> None:
        """Raise Caught if tools were replaced, or torch's settings are not as they were."""
        require_own_tools(self.runnable)
        if changed := altered(self._settings):
            text = "it left torch's settings changed, which are the other side's too: "
            raise Caught(self.runnable, text + ", ".join(changed))


def _called_twelve_times(function: Function, problem: Problem) -> list[str]:
    """Call a callable as the judge pleases, and return what a reader should know of it.

    x and w change under it before each call; y is looked at as soon as a call returns; the truth is
    computed after the last one. A GPU's stream sleeps first: work on another is too early or late.
    """
    launch = function.prepare(problem, *inputs(problem, SECRET.getrandbits(32), function.device))
    witness = Witness(launch, _CALLS)
    seen = _Seen()
    rows = 0
    threads = threading.enumerate()
    on_gpu = function.device.type == "cuda"
    end = time.monotonic() + _AUDIT_SECONDS
    with explained(function.name):
        for rows in range(_CALLS):
            if on_gpu:
                torch.cuda._sleep(_SLEEP_CYCLES)
            witness.before(rows)
            if rows == 1:
                _watched(launch, seen)
            else:
                launch()
            witness.after(rows)
            if time.monotonic() > end:
                break
        for row in range(rows + 1):
            witness.finish(row)
    notes = [f"{function.name} {text}" for text in seen.words(function.precision)]
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    if left:
        notes.append(f"{function.name} left threads running: {', '.join(left)}")
    return notes


def _watched(launch: Launch, seen: _Seen) -> None:
    try:
        with seen:
            launch()
    except LaunchError:  # what torch.compile made may not run under it
        launch()


class _Seen(TorchDispatchMode):
    """Notes the operations of torch that are called under it, their types, and the streams."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()
        self._types: set[torch.dtype] = set()
        self._streams = {stream()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._names.add(func.overloadpacket.__name__)
        self._streams.add(stream())
        for each in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(each, torch.Tensor):
                self._types.add(each.dtype)
        return found

    def words(self, precision: str) -> list[str]:
        """Say what is worth knowing."""
        said = []
        library = sorted(name for name in self._names if any(part in name for part in _LIBRARY))
        if library:
            said.append(f"calls a library: torch's own {', '.join(library)}")
        halves = [str(kind) for kind in _HALVES if kind in self._types]
        if halves and precision == "fp32":
            said.append(f"works in {', '.join(halves)}, and is judged as {precision}")
        if len(self._streams) > 1:
            said.append("works on other streams than the one that is timed")
        return said
