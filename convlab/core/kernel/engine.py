"""Find an engine by name: "cuda", or a room's engine, such as the simulator's "sim"."""

import torch

from .. import arguments, rooms
from ..defaults import ENGINES
from ..errors import BuildError
from ..machine import toolchain
from .cuda import CUDA
from .runnable import Engine

NO_GPU = (
    'engine="cuda" needs an NVIDIA GPU and a CUDA build of torch, but torch finds no GPU; '
    'engine="sim" runs the same file on the CPU (`python -m convlab doctor` shows what is missing)'
)
NO_ENGINE = (
    "no engine can run a kernel: torch finds no NVIDIA GPU or there is no nvcc, and the simulator "
    "(convlab/sim) was removed; `python -m convlab doctor` shows what is missing"
)


def engine_name(name: str) -> str:
    """Return the name of the engine; "auto" is "cuda" with a GPU and nvcc, else a room's engine.

    Raises ProblemError for an unknown name, and BuildError if the engine is not available.
    """
    arguments.choice(name, "engine", ENGINES)
    if name == "auto":
        if torch.cuda.is_available() and toolchain.cuda():
            return "cuda"
        others = rooms.names("engine")
        if not others:
            raise BuildError(NO_ENGINE, kind="not run")
        return others[0]
    if name == "cuda" and not torch.cuda.is_available():
        raise BuildError(NO_GPU, kind="not run")
    return name


def counting_engine() -> str | None:
    """Return the name of an engine that counts and reports source lines; None if there is none."""
    for name in rooms.names("engine"):
        if rooms.provided("engine", name).counts:
            return name
    return None


def engine_named(name: str) -> Engine:
    """Return the engine for a name from `engine_name`."""
    return CUDA if name == CUDA.name else rooms.provided("engine", name)
