"""Runs a built kernel once, with nothing else on the GPU; a script, for compute-sanitizer.

It needs neither torch nor convlab. Each buffer is an allocation of its own, so that an access out
of bounds does not end in a neighbour, as it does in the blocks that torch's allocator hands out.
"""

from __future__ import annotations

import ctypes
import json
import sys
from array import array


def main(request: dict) -> str | None:
    """Launch and wait; return the error's text, or None.

    Parameters
    ----------
    request : ``libraries`` to load first (the CUDA runtime is the first of them), ``library``,
        ``problem`` (the integers of ConvProblem), ``bytes`` of x, w, bias and y (0: null pointer),
        ``workspace_limit`` and ``device``.
    """
    loaded = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in request["libraries"]]
    runtime, library = loaded[0], ctypes.CDLL(request["library"])
    runtime.cudaGetErrorString.restype = ctypes.c_char_p

    def succeed(code: int) -> None:
        if code:
            raise SystemExit(runtime.cudaGetErrorString(code).decode())

    def allocate(size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        if size:
            succeed(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
            succeed(runtime.cudaMemset(pointer, 0xFF, ctypes.c_size_t(size)))
        return pointer

    succeed(runtime.cudaSetDevice(request["device"]))
    pointers = [allocate(size) for size in request["bytes"]]
    for pointer, size in zip(pointers[:3], request["bytes"][:3], strict=True):  # all but y
        data = (array("f", [0.5, -1.25, 0.75, -0.125]) * (size // 16 + 1)).tobytes()
        succeed(runtime.cudaMemcpy(pointer, data, ctypes.c_size_t(size), 1)) if size else None
    dims = (ctypes.c_int * len(request["problem"]))(*request["problem"])
    need = 0
    if hasattr(library, "conv2d_workspace"):
        library.conv2d_workspace.restype = ctypes.c_size_t
        need = library.conv2d_workspace(dims, ctypes.c_size_t(request["workspace_limit"]))
    library.conv2d.restype = ctypes.c_char_p
    error = library.conv2d(dims, *pointers, allocate(need), ctypes.c_size_t(need), None)
    if error:
        return error.decode(errors="replace")
    succeed(runtime.cudaDeviceSynchronize())
    return None


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
