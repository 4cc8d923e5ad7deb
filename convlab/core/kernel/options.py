"""Validate the options of a kernel: the keyword arguments of `load` and `compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import arguments as valid
from ..machine.gpus import Gpu
from .cuda import CUDA
from .engine import engine_name, engine_named

# In bytes.
WORKSPACE_LIMIT = 1 << 30


@dataclass(frozen=True)
class Options:
    """The options of a kernel, which `load` documents and `Options.of` validates."""

    engine: str
    defines: Mapping[str, int | str] = field(default_factory=dict)
    workspace_limit: int = WORKSPACE_LIMIT
    time_limit: float = CUDA.time_limit
    isolate: bool = True
    trace: bool = True
    # Whether the simulator's build can count. Without, it finds the same errors, and is faster.
    counting: bool = True
    # The GPU that the simulator is; None means its default.
    gpu: Gpu | None = None

    @classmethod
    def of(
        cls,
        engine: str = "auto",
        defines: Mapping[str, int | str] | None = None,
        workspace_limit: int = WORKSPACE_LIMIT,
        time_limit: float | None = None,
        isolate: bool = True,
        trace: bool = True,
        counting: bool = True,
        gpu: Gpu | None = None,
    ) -> Options:
        """Return the validated options, with the actual engine and time limit for the defaults.

        Raises
        ------
        ProblemError
            An argument has the wrong type or is out of range.
        BuildError
            The engine is not available on this machine.
        """
        name = engine_name(engine)
        seconds = engine_named(name).time_limit if time_limit is None else time_limit
        return cls(
            engine=name,
            defines=valid.tunables({} if defines is None else defines),
            workspace_limit=valid.whole(workspace_limit, "workspace_limit", 0),
            time_limit=valid.real(seconds, "time_limit", above=0),
            isolate=valid.flag(isolate, "isolate"),
            trace=valid.flag(trace, "trace"),
            counting=counting,
            gpu=gpu,
        )
