"""Call the C entry points of a compiled kernel file. Only this module has their signatures.

``kernels/convlab.cuh`` declares them. This module imports only the standard library, because two
processes without torch use it: the simulator's, and the one that runs under compute-sanitizer.
"""

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

# The members of the C struct ConvProblem, in its order.
FIELDS = (
    *("N", "C", "H", "W", "K", "R", "S", "P", "Q"),
    *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
    *("groups", "relu"),
)
# An address in memory; None is a null pointer.
Address = int | None
# The text for an error without text.
_EMPTY = '{} returned "", an error without a text: return nullptr if all is well'
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p
# The entry points that compute; a file defines one of them. A convolution gets a bias, too.
_COMPUTING = ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient")
# The result and the arguments of each entry point. A file must define one of the first three; the
# next three are optional. The build for CUDA adds the last one.
_SIGNATURES = {
    "conv2d": (ctypes.c_char_p, [_POINTER] * 6 + [_SIZE, _POINTER]),
    "conv2d_data_gradient": (ctypes.c_char_p, [_POINTER] * 5 + [_SIZE, _POINTER]),
    "conv2d_weight_gradient": (ctypes.c_char_p, [_POINTER] * 5 + [_SIZE, _POINTER]),
    "conv2d_workspace": (_SIZE, [_POINTER, _SIZE]),
    "conv2d_plan": (_SIZE, [_POINTER]),
    "conv2d_prepare": (ctypes.c_char_p, [_POINTER] * 4),
    "convlab_launch_error": (ctypes.c_char_p, []),
}


def integers(variables: Mapping[str, int]) -> list[int]:
    """Return the values of ConvProblem's members in order, from `Problem.variables()`."""
    return [variables[field] for field in FIELDS]


class EntryPoints:
    """Load a library, and call its entry points for one problem.

    Loading runs the library's static initialisers.

    Parameters
    ----------
    library
        Path of the library.
    problem
        The values of `FIELDS`, in this order.
    """

    def __init__(self, library: str, problem: Sequence[int]) -> None:
        loaded = ctypes.CDLL(library)
        self._problem = (ctypes.c_int * len(FIELDS))(*problem)
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            with contextlib.suppress(AttributeError):
                # Indexing creates a new function object, so no other object shares this signature.
                function = loaded[name]
                function.restype = result
                function.argtypes = arguments
                self._functions[name] = function
        # The name of the entry point that computes: "conv2d", or that of a gradient.
        self.computing = next((name for name in _COMPUTING if name in self._functions), _COMPUTING[0])
        self._takes_bias = self.computing == "conv2d"

    def workspace(self, limit: int) -> int:
        """Return the workspace that the kernel requests, in bytes.

        A result above `limit` means that the kernel cannot work within the limit.
        """
        function = self._functions.get("conv2d_workspace")
        return function(self._problem, limit) if function else 0

    def plan(self) -> int:
        """Return the size of the prepared filter in bytes; 0 if conv2d takes w itself."""
        function = self._functions.get("conv2d_plan")
        return function(self._problem) if function else 0

    def prepare(self, w: Address, plan: Address, stream: Address = None) -> str | None:
        """Write the prepared filter to `plan`, which replaces w; return an error text or None."""
        return self._call("conv2d_prepare", w, plan, stream)

    def compute(
        self,
        first: Address,
        second: Address,
        bias: Address,
        output: Address,
        workspace: Address,
        workspace_bytes: int,
        stream: Address = None,
    ) -> str | None:
        """Launch the kernel; return an error text or None.

        `first`, `second` and `output` are x, w and y; of a data gradient dy, w and dx; of a weight
        gradient x, dy and dw. A gradient has no bias.
        """
        inputs = (first, second, bias) if self._takes_bias else (first, second)
        return self._call(self.computing, *inputs, output, workspace, workspace_bytes, stream)

    def _call(self, name: str, *arguments: object) -> str | None:
        """Call an entry point; return its error text, or the text of the launch error, or None."""
        function = self._functions.get(name)
        if function is None:
            missing = name if name in _COMPUTING else f"{name}, which conv2d_plan needs"
            return f"the file defines no {missing}"
        error = function(self._problem, *arguments)
        last_error = self._functions.get("convlab_launch_error")
        if last_error is not None:
            # Reading the launch error clears it. Read it even if the entry point returned an error:
            # otherwise the next kernel would report it.
            launch_error = last_error()
            if launch_error and not error:
                error = launch_error
        if error is None:
            return None
        # An empty text is an error too: only nullptr means success.
        return error.decode(errors="replace") or _EMPTY.format(name)
