"""Audit a Python callable: check that it does the work that is timed.

``cheats.md``, next to this file, lists what the audit catches.
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
from .replaced_tools import current_stream, read_settings, require_own_tools, restore_settings
from .witness import SECRET, Witness

# An audit makes this many calls, or fewer if they take longer than this.
_CALLS = 12
_AUDIT_SECONDS = 3.0
# GPU clock cycles: about 1 ms.
_SLEEP_CYCLES = 2_000_000
# Parts of the names of torch's operations that do most of a convolution's work.
_LIBRARY_PARTS = ("conv", "mm", "matmul", "linear")
_HALVES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class CallableAudit:
    """Store torch's settings before a check; `finish` compares them and calls the callable."""

    def __init__(self, runnable: Runnable) -> None:
        self.runnable = runnable
        self._settings = read_settings()

    def finish(self, runnable: Runnable, problem: Problem, correct: bool) -> Sequence[str]:
        """Call the callable twelve times, and return notes about it. Raises Caught.

        A callable that is not `correct` is not called.
        """
        self._require_own_state()
        if not correct:
            return ()
        notes = _called_twelve_times(runnable, problem)
        self._require_own_state()
        return notes

    def _require_own_state(self) -> None:
        """Raise Caught if tools were replaced, or torch's settings were changed."""
        require_own_tools(self.runnable)
        if changed := restore_settings(self._settings):
            text = "it changed settings of torch that also apply to the other side: "
            raise Caught(self.runnable, text + ", ".join(changed))


def _called_twelve_times(function: Function, problem: Problem) -> list[str]:
    """Call a callable twelve times on changing data, and return notes about it.

    Some elements of x and w change before each call. Outputs are copied when a call returns, and the
    reference is computed after the last call. On a GPU the stream sleeps before each call, so that
    work on another stream happens too early or too late.
    """
    launch = function.prepare(problem, *inputs(problem, SECRET.getrandbits(32), function.device))
    witness = Witness(launch, _CALLS)
    recorder = _OperationRecorder()
    rows = 0
    threads_before = threading.enumerate()
    on_gpu = function.device.type == "cuda"
    end = time.monotonic() + _AUDIT_SECONDS
    with explained(function.name):
        for rows in range(_CALLS):
            if on_gpu:
                torch.cuda._sleep(_SLEEP_CYCLES)
            witness.before(rows)
            if rows == 1:
                _call_recorded(launch, recorder)
            else:
                launch()
            witness.after(rows)
            if time.monotonic() > end:
                break
        for row in range(rows + 1):
            witness.finish(row)
    notes = [f"{function.name} {text}" for text in recorder.describe(function.precision)]
    new_threads = [t.name for t in threading.enumerate() if t not in threads_before]
    if new_threads:
        notes.append(f"{function.name} left threads running: {', '.join(new_threads)}")
    return notes


def _call_recorded(launch: Launch, recorder: _OperationRecorder) -> None:
    """Call a launch, and record its torch operations if that is possible."""
    try:
        with recorder:
            launch()
    except LaunchError:
        # A function from torch.compile may not run under a dispatch mode.
        launch()


class _OperationRecorder(TorchDispatchMode):
    """Record the torch operations that are called, the dtypes of their results, and the streams."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()
        self._dtypes: set[torch.dtype] = set()
        self._streams = {current_stream()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._names.add(func.overloadpacket.__name__)
        self._streams.add(current_stream())
        results = result if isinstance(result, (tuple, list)) else [result]
        for value in results:
            if isinstance(value, torch.Tensor):
                self._dtypes.add(value.dtype)
        return result

    def describe(self, precision: str) -> list[str]:
        """Return notes about the operations of a callable that declares a precision class."""
        notes = []
        library = sorted(n for n in self._names if any(part in n for part in _LIBRARY_PARTS))
        if library:
            notes.append(f"calls a library: torch's own {', '.join(library)}")
        halves = [str(dtype) for dtype in _HALVES if dtype in self._dtypes]
        if halves and precision == "fp32":
            notes.append(f"computes in {', '.join(halves)}, but is checked as {precision}")
        if len(self._streams) > 1:
            notes.append("uses other streams than the timed one")
        return notes
