"""How a kernel is built and run: the keyword arguments of `load` and `compile`, validated."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ... import sim
from ...isolate import worker
from .. import arguments as valid
from ..builds.build import NO_GPU
from ..defaults import ENGINES
from ..errors import BuildError, ProblemError
from ..machine import toolchain

WORKSPACE_LIMIT = 1 << 30  # bytes


@dataclass(frozen=True)
class Options:
    """What `load` documents, and raises; "auto" and no time limit become what they stand for."""

    engine: str = "auto"
    defines: Mapping[str, int | str] = field(default_factory=dict)
    workspace_limit: int = WORKSPACE_LIMIT
    time_limit: float | None = None
    isolate: bool = True
    trace: bool = True

    def __post_init__(self) -> None:
        engine = engine_of(self.engine)
        seconds = self.time_limit
        if seconds is None:
            seconds = sim.TIME_LIMIT if engine == "sim" else worker.TIME_LIMIT
        vars(self).update(  # the way round `frozen`, while it is being made
            engine=engine,
            defines=valid.tunables(self.defines),
            workspace_limit=valid.whole(self.workspace_limit, "workspace_limit", 0),
            time_limit=valid.real(seconds, "time_limit", above=0),
            isolate=valid.flag(self.isolate, "isolate"),
            trace=valid.flag(self.trace, "trace"),
        )


def engine_of(engine: str) -> str:
    """Return the engine that is meant: "auto" is cuda where there are a GPU and nvcc, else sim."""
    valid.choice(engine, "engine", ENGINES)
    if engine == "auto":
        return "cuda" if torch.cuda.is_available() and toolchain.cuda() else "sim"
    if engine == "cuda" and not torch.cuda.is_available():
        raise BuildError(NO_GPU)
    return engine


def parse_tunables(text: str) -> dict[str, int]:
    """Return the tunables that "TILE=8,K_TILE=16" spells."""
    found = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d{1,18})\s*", part)
        if match is None:
            raise ProblemError(f"cannot read the tunable {valid.shown(part)}: write NAME=INTEGER")
        found[match[1]] = int(match[2])
    return found


def tunables(source: str) -> dict[str, str]:
    """Return the tunables of a kernel's source, ``#ifndef NAME`` / ``#define NAME VALUE``."""
    found: dict[str, str | None] = {}  # None: defined before anything asks for it, and so fixed
    said = r"^[ \t]*#[ \t]*(ifndef|define)[ \t]+(\w+)(?:[ \t]+(\S+))?"
    for word, name, value in re.findall(said, source, re.M):
        if word == "ifndef":
            found.setdefault(name, "")
        elif found.setdefault(name, None) == "":
            found[name] = value
    return {name: value for name, value in found.items() if value}
