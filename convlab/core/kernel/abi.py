"""The C entry points of a built kernel file, called: the one place that knows their signatures.

They are declared in ``kernels/convlab.cuh``. This module needs ctypes alone, for it is used in
processes that have neither torch nor convlab (the simulator's, compute-sanitizer's).
"""

import contextlib
import ctypes
from collections.abc import Mapping, Sequence

# The integers of ConvProblem, in its order.
FIELDS = (
    "N",
    "C",
    "H",
    "W",
    "K",
    "R",
    "S",
    "P",
    "Q",
    "stride_h",
    "stride_w",
    "pad_h",
    "pad_w",
    "dilation_h",
    "dilation_w",
    "groups",
    "relu",
)
Address = int | None  # of memory; None: a null pointer
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p
# Result and arguments of each entry point; all but the first are optional in a file.
_SIGNATURES = {
    "conv2d": (ctypes.c_char_p, [_POINTER] * 6 + [_SIZE, _POINTER]),
    "conv2d_workspace": (_SIZE, [_POINTER, _SIZE]),
    "conv2d_plan": (_SIZE, [_POINTER]),
    "conv2d_prepare": (ctypes.c_char_p, [_POINTER] * 4),
    "convlab_launch_error": (ctypes.c_char_p, []),  # put there by the build for CUDA
}


def integers(variables: Mapping[str, int]) -> list[int]:
    """Return the members of ConvProblem in their order, of `Problem.variables()`."""
    return [variables[field] for field in FIELDS]


class Entry:
    """A library's entry points for a problem's integers; loading runs its static initialisers."""

    def __init__(self, library: str, problem: Sequence[int]) -> None:
        loaded = ctypes.CDLL(library)
        self._problem = (ctypes.c_int * len(FIELDS))(*problem)
        self._found = {}
        for name, (result, arguments) in _SIGNATURES.items():
            with contextlib.suppress(AttributeError):  # each an object with a signature of its own
                function = self._found[name] = loaded[name]
                function.restype = result
                function.argtypes = arguments

    def workspace(self, limit: int) -> int:
        """The bytes of workspace wanted; more than `limit` where that is too little to work."""
        function = self._found.get("conv2d_workspace")
        return function(self._problem, limit) if function else 0

    def plan(self) -> int:
        """The bytes that the filter takes as `prepare` lays it out; 0: conv2d takes it as it is."""
        function = self._found.get("conv2d_plan")
        return function(self._problem) if function else 0

    def prepare(self, w: Address, plan: Address, stream: Address = None) -> str | None:
        """Lay the filter out into `plan`; conv2d gets that in w's place. Return an error's text."""
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
        function = self._found.get(name)
        last_error = self._found.get("convlab_launch_error")
        if function is None:
            return f"the file has conv2d_plan, but no {name}"
        refused = function(self._problem, *arguments)
        launched = last_error() if last_error else None  # read even where it refused: else the
        error = refused or launched  # next kernel would be blamed for it
        return error.decode(errors="replace") if error else None
