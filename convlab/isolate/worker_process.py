"""The process that untrusted kernels run in: what `machine.child` starts for `worker`.

It imports nothing of convlab's, nor torch, but what the first request names, so that it starts in
a blink where there is no GPU. A request is a pickled ``(sys.path, variables, payload)``, the payload
a pickled ``(function, args, kwargs)``; it has begun once what it names is imported. The reply is
``(returned, value or exception, lost)``; `lost`: the GPU is, to this process, which ends itself.
"""

import contextlib
import ctypes
import gc
import io
import os
import pickle
import sys
import traceback

SERVING = "CONVLAB_IN_WORKER"  # set in this process's environment
_KEPT_BYTES = 256 << 20  # of GPU memory that torch may hold on to between two requests


class _Pickler(pickle.Pickler):
    """Refuses, with PicklingError, what the other process cannot find."""

    def reducer_override(self, value: object) -> object:
        """Look at each object that pickle has no built-in way for."""
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in __main__ (a notebook or a script), where the "
                "worker process cannot find it: put it in a module, or run without isolation"
            )
        return NotImplemented


def dumps(value: object) -> bytes:
    """Pickle a value as it crosses."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def _enter(path: list[str], variables: dict[str, str]) -> None:
    """Take over the parent's sys.path and CONVLAB_* variables."""
    sys.path[:] = path
    for name in [name for name in os.environ if name.startswith("CONVLAB_")]:
        del os.environ[name]
    os.environ |= variables | {SERVING: "1"}


def _open_gpu(index: int) -> None:
    """Make the CUDA context, so that no time limit has to allow for it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(index)
        torch.ones(1, device="cuda").item()


def _torch_on_gpu():
    """The module torch where it has used the GPU in this process, else None."""
    torch = sys.modules.get("torch")
    in_use = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return torch if in_use else None


def _gpu_is_lost() -> bool:
    """Whether the GPU no longer works here; takes an error that does not last off the context."""
    torch = _torch_on_gpu()
    for _ in range(2):  # the first try may meet the error that is already known
        with contextlib.suppress(Exception):
            return torch is not None and torch.ones(1, device="cuda").item() != 1
    return True


def _answer(payload: bytes, server) -> bytes:
    """Do what a request asks for, and return the reply."""
    function, args, kwargs = pickle.loads(payload)
    server.begun()
    value = function(*args, **kwargs)
    if (torch := _torch_on_gpu()) is not None:
        torch.cuda.synchronize()  # flushes device printf, and brings out late errors
    return dumps((True, value, False))


def _refusal(error: Exception, lost: bool) -> bytes:
    """The reply that carries an exception: its type and text, and a note of where it was raised."""
    where = "In the worker process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error.add_note(where)
        reply = dumps((False, error, lost))
        pickle.loads(reply)
    except Exception:  # an exception that does not survive pickling
        plain = RuntimeError(f"{type(error).__qualname__}: {error}")
        plain.add_note(where)
        reply = dumps((False, plain, lost))
    return reply


def _tidy(failed: bool) -> None:
    """Give back the GPU memory that nothing uses any more: the parent may want it."""
    if (torch := _torch_on_gpu()) is None:
        return
    if failed or torch.cuda.memory_reserved() > _KEPT_BYTES:
        if failed or torch.cuda.memory_allocated() > _KEPT_BYTES:
            gc.collect()
        torch.cuda.empty_cache()


def serve(server, device: str) -> None:
    """Serve requests for a GPU, by its number; negative: there is none."""
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
        ctypes.CDLL(None).fflush(None)  # what kernels print goes through C's buffers
        server.reply(reply)
    os._exit(0)
