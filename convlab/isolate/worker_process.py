"""Run kernels that may crash: the process that `machine.child` starts for `worker`.

It imports neither convlab nor torch until the first request names them, so it starts quickly. A request
is a pickled ``(sys.path, variables, payload)``; the payload is a pickled ``(function, args, kwargs)``.
A request has begun when the modules that it names are imported. The reply is a pickled ``(returned,
value or exception, lost)``. If `lost` is true, this process has lost the GPU, and ends.
"""

import contextlib
import ctypes
import gc
import io
import os
import pickle
import sys
import traceback

# This environment variable is set in the worker process only.
SERVING = "CONVLAB_IN_WORKER"
# Between two requests torch may keep this many bytes of GPU memory.
_KEPT_BYTES = 256 << 20


class _Pickler(pickle.Pickler):
    """Pickle values; raise PicklingError for objects that the other process cannot import."""

    def reducer_override(self, value: object) -> object:
        """Check each object that pickle does not handle natively."""
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in __main__ (a notebook or a script), so the worker "
                "process cannot import it: put it in a module, or run without isolation"
            )
        return NotImplemented


def dumps(value: object) -> bytes:
    """Return a value pickled as bytes."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def _enter(path: list[str], variables: dict[str, str]) -> None:
    """Set sys.path and the CONVLAB_* variables to those of the parent."""
    sys.path[:] = path
    for name in [name for name in os.environ if name.startswith("CONVLAB_")]:
        del os.environ[name]
    os.environ |= variables | {SERVING: "1"}


def _open_gpu(index: int) -> None:
    """Create the CUDA context before a time limit begins."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(index)
        torch.ones(1, device="cuda").item()


def _torch_on_gpu():
    """Return the module torch if it has used the GPU in this process; else None."""
    torch = sys.modules.get("torch")
    in_use = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return torch if in_use else None


def _gpu_is_lost() -> bool:
    """Return whether the GPU no longer works in this process; clear an error that does not last."""
    torch = _torch_on_gpu()
    # The first attempt may raise the error of the request again.
    for _ in range(2):
        with contextlib.suppress(Exception):
            return torch is not None and torch.ones(1, device="cuda").item() != 1
    return True


def _answer(payload: bytes, server) -> bytes:
    """Call the function of a request, and return the reply."""
    function, args, kwargs = pickle.loads(payload)
    server.begun()
    value = function(*args, **kwargs)
    if (torch := _torch_on_gpu()) is not None:
        # Flush the output of printf in kernels, and raise asynchronous errors.
        torch.cuda.synchronize()
    return dumps((True, value, False))


def _refusal(error: Exception, lost: bool) -> bytes:
    """Return the reply for an exception, with its traceback as a note."""
    where = "In the worker process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error.add_note(where)
        reply = dumps((False, error, lost))
        pickle.loads(reply)
    except Exception:
        # The exception cannot be pickled, or cannot be unpickled.
        plain = RuntimeError(f"{type(error).__qualname__}: {error}")
        plain.add_note(where)
        reply = dumps((False, plain, lost))
    return reply


def _tidy(failed: bool) -> None:
    """Free unused GPU memory, because the parent may need it."""
    torch = _torch_on_gpu()
    if torch is None:
        return
    if failed or torch.cuda.memory_reserved() > _KEPT_BYTES:
        if failed or torch.cuda.memory_allocated() > _KEPT_BYTES:
            gc.collect()
        torch.cuda.empty_cache()


def serve(server, device: str) -> None:
    """Answer requests for the GPU with this number; a negative number means no GPU."""
    opened = int(device) < 0
    lost = False
    while not lost:
        *surroundings, payload = pickle.loads(server.request())
        failed = False
        try:
            _enter(*surroundings)
            if not opened:
                _open_gpu(int(device))
                opened = True
            reply = _answer(payload, server)
        except Exception as error:
            failed = True
            lost = not opened or _gpu_is_lost()
            reply = _refusal(error, lost)
        if not lost:
            _tidy(failed)
        sys.stdout.flush()
        sys.stderr.flush()
        # Kernels print through the buffers of the C library.
        ctypes.CDLL(None).fflush(None)
        server.reply(reply)
    os._exit(0)
