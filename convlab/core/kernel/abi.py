"""Call the C entry points of a built kernel file: the one place that knows their signatures.

They are declared in ``kernels/convlab.cuh``. This module imports the standard library alone: the
simulator's process and compute-sanitizer's use it, and have neither torch nor convlab.
"""

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

# The integers of ConvProblem, in its order.
FIELDS = (
    *("N", "C", "H", "W", "K", "R", "S", "P", "Q"),
    *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
    *("groups", "relu"),
)
# An address in memory; None is a null pointer.
Address = int | None
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p
# Result and arguments of each entry point. A file must have conv2d; the next three are optional.
# The build for CUDA adds the last one.
_SIGNATURES = {
    "conv2d": (ctypes.c_char_p, [_POINTER] * 6 + [_SIZE, _POINTER]),
    "conv2d_workspace": (_SIZE, [_POINTER, _SIZE]),
    "conv2d_plan": (_SIZE, [_POINTER]),
    "conv2d_prepare": (ctypes.c_char_p, [_POINTER] * 4),
    "convlab_launch_error": (ctypes.c_char_p, []),
}


def integers(variables: Mapping[str, int]) -> list[int]:
    """Return the members of ConvProblem in their order, of `Problem.variables()`."""
    return [variables[field] for field in FIELDS]


class EntryPoints:
    """The entry points of a library, for the integers of one problem.

    Loading the library runs its static initialisers.

    Parameters
    ----------
    library
        Path of the library.
    problem
        The values of `FIELDS`, in their order.
    """

    def __init__(self, library: str, problem: Sequence[int]) -> None:
        loaded = ctypes.CDLL(library)
        self._problem = (ctypes.c_int * len(FIELDS))(*problem)
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            with contextlib.suppress(AttributeError):
                # Indexing makes a new object each time, so the signature is this object's own.
                function = loaded[name]
                function.restype = result
                function.argtypes = arguments
                self._functions[name] = function

    def workspace(self, limit: int) -> int:
        """Return the bytes of workspace wanted; more than `limit` if that is too little to work."""
        function = self._functions.get("conv2d_workspace")
        return function(self._problem, limit) if function else 0

    def plan(self) -> int:
        """Return the bytes of the filter as `prepare` lays it out; 0 if conv2d takes w itself."""
        function = self._functions.get("conv2d_plan")
        return function(self._problem) if function else 0

    def prepare(self, w: Address, plan: Address, stream: Address = None) -> str | None:
        """Lay the filter out into `plan`, which conv2d gets in place of w; return an error's text."""
        return self._call("conv2d_prepare", w, plan, stream)

    def conv2d(
        self,
        x: Address,
        w: Address,
        bias: Address,
        y: Address,
        workspace: Address,
        workspace_bytes: int,
        stream: Address = None,
    ) -> str | None:
        """Launch the kernel; return an error's text, or None."""
        return self._call("conv2d", x, w, bias, y, workspace, workspace_bytes, stream)

    def _call(self, name: str, *arguments: object) -> str | None:
        """Call an entry point that returns a text; return the text, or that of the launch error."""
        function = self._functions.get(name)
        if function is None:
            return f"the file has conv2d_plan, but no {name}"
        error = function(self._problem, *arguments)
        last_error = self._functions.get("convlab_launch_error")
        if last_error is not None:
            # Reading the launch error clears it. It is read even after a refusal: otherwise the
            # next kernel would be blamed for it.
            launch_error = last_error()
            error = error or launch_error
        return error.decode(errors="replace") if error else None
