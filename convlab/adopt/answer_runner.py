"""Run the core's functions on answers: the core's seam `Runner`, in the confined process.

On a GPU a check or a comparison calls an answer many times, and times it. So the whole function runs
in the confined process: `examine` of a check, `measure_pair` of an A/B. There `stand_in` calls the
answer's models directly.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import io
import pickle
from collections.abc import Callable
from typing import Any

from ..core.errors import LaunchError, ProblemError
from ..core.kernel.runnable import Runnable
from .confined_run import built_for, run_confined

# A call loads the answers and starts CUDA before the function's own time begins.
_SPARE_SECONDS = 60.0
# Names outside convlab that a reply may have. Each only makes a value.
_VALUES = {
    ("torch", "device"),
    ("torch", "dtype"),
    ("torch", "Size"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
}


class AnswerRunner:
    """Call functions in a new confined process, in which answers run."""

    name = "confined process"

    def accepts(self, *values: object) -> bool:
        """Return True: an answer never runs in this process, and `call` raises for what it cannot send."""
        return True

    def call(
        self, function: Callable[..., Any], /, *args: Any, time_limit: float | None, **kwargs: Any
    ) -> Any:
        """Return ``function(*args, **kwargs)``, computed in a confined process.

        Raises
        ------
        ProblemError
            An argument cannot be sent there: a callable of a notebook.
        LaunchError
            The function failed, crashed or hung there.
        """
        values = [each for value in (*args, *kwargs.values()) for each in _listed(value)]
        for value in values:
            if isinstance(value, Runnable):
                value.build()
        answers = [value for value in values if hasattr(value, "answer")]
        libraries: dict[str, str] = {}
        for each in answers:
            libraries |= built_for(each.spec())
        try:
            call = pickle.dumps((function, args, kwargs))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            names = ", ".join(value.name for value in values if isinstance(value, Runnable))
            raise ProblemError(
                f"{names}: an answer runs in a process of its own, and a callable cannot be sent there "
                f"({error}): put the callable into a module"
            ) from None
        spec = answers[0].spec() | {"libraries": libraries, "call": call}
        found = run_confined("call", spec, (time_limit or 0.0) + _SPARE_SECONDS)
        if "failed" in found or "value" not in found:
            text = found.get("failed", "its process returned nothing")
            raise LaunchError(f"{answers[0].name}: {text}", kind=found.get("kind", ""))
        return loads(base64.b64decode(found["value"]))

    def restart(self) -> None:
        """Do nothing: each call starts a new process."""

    def rehearse(self, *args: object) -> None:
        """Do nothing: each call runs in a process that may end."""

    def mark_good(self, build: object) -> None:
        """Do nothing: there are no rehearsals."""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


RUNNER = AnswerRunner()


class _Reader(pickle.Unpickler):
    """Read values that somebody's code may have written: nothing but convlab's records and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that may be made; raise UnpicklingError for anything else."""
        if (module, name) in _VALUES:
            return super().find_class(module, name)
        if module.startswith("convlab.core.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (
                dataclasses.is_dataclass(found) or issubclass(found, (tuple, enum.Enum))
            ):
                return found
        raise pickle.UnpicklingError(f"a reply of a confined process names {module}.{name}")


def loads(data: bytes) -> Any:
    """Return a value of a confined process. Raises LaunchError if it is not one that convlab writes."""
    try:
        return _Reader(io.BytesIO(data)).load()
    except Exception as error:
        raise LaunchError(
            f"the confined process sent a reply that cannot be read ({error}): judge the answer with "
            "`convlab adopt`"
        ) from error
