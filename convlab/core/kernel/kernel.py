"""A kernel file, called like ``torch.nn.functional.conv2d``.

`load` and `compile` give a `Kernel`. It validates, makes contiguous, allocates through torch,
launches on torch's current stream, and reports the launch's error. A kernel loaded from a file
is built again by the next call after the file, or a header it includes, was changed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .. import arguments as valid
from ..builds.cache import Build, stamp
from ..builds.source import Source
from ..defaults import ENGINES
from ..errors import CatalogError, ProblemError
from ..problem.named import problem as named_problem
from ..problem.problem import Problem
from ..show.excerpt import Excerpt, excerpt
from . import catalog
from .call import CallableRunnable
from .data import match, require
from .engine import engine_named
from .libraries import baseline
from .options import WORKSPACE_LIMIT, Options, parse_tunables, tunables
from .runnable import Allocate, Inputs, Launch, Runnable, empty

__all__ = ["ENGINES", "WORKSPACE_LIMIT", "Kernel", "compile", "load", "resolve", "tunables"]

_header = functools.lru_cache(256)(catalog.parse_header)


class Kernel(CallableRunnable):
    """A CUDA kernel that computes a convolution; made by `load` or `compile`.

    Attributes
    ----------
    name : str
        The file's name without ending, and its tunables: "03_smem_tile@C_TILE=4".
    path : Path or None
        The file; None when made from a string.
    engine, defines, workspace_limit, time_limit, isolate, trace
        As `load` was told; "auto" and no time limit are resolved.
    """

    def __init__(
        self,
        stem: str,
        path: Path | None,
        text: str | None,
        options: Options,
        pinned: Build | None = None,
    ) -> None:
        """`text` stands for the file's where it is given; `pinned` is its build, for good."""
        self.path = path
        self._stem = stem
        self._text = text
        self._options = options
        self._pinned = pinned
        self.engine = options.engine
        self.runs_on = engine_named(options.engine)
        self.defines = options.defines
        self.workspace_limit = options.workspace_limit
        self.time_limit = options.time_limit
        self.isolate = options.isolate
        self.trace = options.trace
        suffix = ",".join(f"{key}={value}" for key, value in self.defines.items())
        self.name = f"{stem}@{suffix}" if suffix else stem
        self._built: tuple[object, Build] | None = None  # the stamp of what it is made of
        known = tunables(self.file.whole) if self.defines else {}
        for key in self.defines:
            if key not in known:
                lines = f"none: one is `#ifndef {key}`, `#define {key} 8`, `#endif` in three lines"
                offer = (", ".join(known) or lines) + valid.hint(key, known)
                raise ProblemError(f"{stem} has no tunable {key}; it has: {offer}")

    @property
    def source(self) -> str:
        """The CUDA C++ text, as it is on disk now."""
        return _read(self.path, stamp([self.path])) if self._text is None else self._text

    @property
    def file(self) -> Source:
        """The text and where it is from, as it is built now; it knows what it includes."""
        return Source(self.source, self._stem, self.path)

    @property
    def header(self) -> catalog.Header:
        """What the file's header comment says."""
        return _header(self.source, self.path or f"{self._stem}.cu")

    @property
    def title(self) -> str:
        """The header's title, and the tunables."""
        return self.header.title + self.name[len(self._stem) :]

    precision = property(lambda self: self.header.precision)
    format = property(lambda self: self.header.tensors)
    mixes = property(lambda self: self.header.mixes)
    atomics = property(lambda self: self.header.atomics)

    @property
    def texts(self) -> dict[str, str]:
        """The file and the local headers that it includes, by name, as they are now."""
        return {f"{self._stem}.cu": self.source, **dict(self.file.headers().values())}

    @property
    def device(self) -> torch.device:
        """Where its tensors live: the current GPU, or the CPU for the simulator."""
        return self.runs_on.device

    def build(self) -> Build:
        """Compile the file if it, or a header it includes, changed since the last call."""
        if self._pinned is not None and self._pinned.library.exists():
            return self._pinned
        files = () if self._text is not None else (self.path,)
        if self._built is None or self._built[0] != stamp((*files, *self._built[1].watched)):
            seen = stamp(files)  # before it is read
            built = self._compiled(self.file)
            self._built = (*seen, *stamp(built.watched)), built
        return self._built[1]

    def _compiled(self, source: Source) -> Build:
        return self.runs_on.build(source, self.defines, self.trace)

    def pinned(self) -> Kernel:
        """This kernel as its source is now: later edits of the file do not reach it."""
        source = self.file
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:6]
        built = self._compiled(source)
        return Kernel(f"{self._stem}#{digest}", self.path, source.text, self._options, built)

    def _with(self, text: str | None, **options: object) -> Kernel:
        changed = {**vars(self._options), **options}
        return Kernel(self._stem, self.path, text, Options.of(**changed))

    def tuned(self, tunables: str | Mapping[str, int]) -> Kernel:
        """This kernel, as its source is now, with more tunables set: "TILE=8,K_TILE=16"."""
        more = parse_tunables(tunables) if isinstance(tunables, str) else valid.tunables(tunables)
        return self._with(self.source, defines={**self.defines, **more})

    def on(self, engine: str, time_limit: float | None = None) -> Kernel:
        """This kernel for another engine."""
        limit = self._options.time_limit if time_limit is None else time_limit
        return self._with(self._text, engine=engine, time_limit=limit)

    def limited(self, workspace_limit: int) -> Kernel:
        """This kernel with another limit of workspace, in bytes."""
        return self._with(self._text, workspace_limit=workspace_limit)

    def untraced(self) -> Kernel:
        """This kernel without what the simulator counts and looks for, several times as fast."""
        return self._with(self._text, trace=False) if self.counts and self.trace else self

    def show(self, first: str | int | None = None, last: str | int | None = None) -> Excerpt:
        """A cut of the source, with line numbers; in a notebook as highlighted code.

        Parameters
        ----------
        first : where it begins: the first line that holds this text, or a line's number.
        last : where it ends: the next line, from the first on, that holds this text, or a line's
            number. Without it `first` is shown alone; without both, all of the source.
        """
        label = self.file.label
        label = Path(label).name if Path(label).is_absolute() else label
        return excerpt(self.source, label, first, last)

    @property
    def target(self) -> tuple[int, int]:
        """The compute capability that it runs on, and the shared memory a block may opt into."""
        return self.runs_on.target

    def unsupported(self, problem: Problem) -> str | None:
        """The first of the header's requirements that a problem does not meet, or None."""
        return self.header.unsupported(named_problem(problem), *self.target)

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """As `Runnable.prepare`, of any strides; raises what a call does.

        The simulator guards its buffers itself, and does not use `allocate`.
        """
        problem = named_problem(problem)
        inputs = self._accepted(problem, x, w, bias)
        return self.runs_on.prepare(self, problem, inputs, allocate)

    def _accepted(self, problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None) -> Inputs:
        """Validate tensors for a problem that it supports, and put them in its format."""
        require(self, x, w, bias)
        match(problem, x, w, bias)
        self.accept(problem)
        stored = self.format
        bias = None if bias is None else stored.bias.place(bias)
        return stored.x.place(x), stored.w.place(w), bias

    def _compute(self, problem: Problem, *tensors: Tensor | None) -> Tensor:
        return self.runs_on.compute(self, problem, self._accepted(problem, *tensors))

    def _instead(self, problem: Problem) -> str:
        able = []
        for path in catalog.catalog():
            other = Kernel(path.stem, path, None, Options.of(self.engine))
            with contextlib.suppress(CatalogError):  # of a header that cannot be read
                same = other.path != self.path and other.format == self.format
                if same and other.unsupported(problem) is None:
                    able.append(other.name)
        return f"; use {', '.join(able)}" if able else "; no other of its format can"

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, engine={self.engine!r})"

    def __reduce__(self) -> tuple:
        return Kernel, (self._stem, self.path, self._text, self._options, self._pinned)


@functools.lru_cache(256)
def _read(path: Path, seen: object) -> str:
    """The file's text; it is read again where its stamp, `seen`, is another."""
    return catalog.read(path)


def load(
    name_or_path: str | Path,
    *,
    engine: str = "auto",
    defines: Mapping[str, int] | None = None,
    workspace_limit: int = WORKSPACE_LIMIT,
    time_limit: float | None = None,
    isolate: bool = True,
    trace: bool = True,
) -> Kernel:
    """Return the kernel of a ``.cu`` file.

    Parameters
    ----------
    name_or_path : a name in ``kernels/`` ("03_smem_tile", or the start of one: "03"), or a path;
        tunables may follow: "03_smem_tile@C_TILE=4".
    engine : "cuda", "sim", or "auto": cuda where there are a GPU and nvcc, else sim.
    defines : tunables, passed to the compiler as ``-DNAME=VALUE``.
    workspace_limit : bytes of workspace that a call may take.
    time_limit : seconds that one call may take on the simulator (120 unless told otherwise), or
        the trial of a first call on a GPU (20).
    isolate : on a GPU, run a build that is not known to be good in the worker process first, on
        other data of the same shape, whenever a call brings a new problem. Good builds are those
        that passed the whole default check, which runs there, too.
    trace : on the simulator, count memory traffic and look for mistakes. Without, a kernel runs
        several times as fast.

    Raises
    ------
    CatalogError
        If there is no such kernel, or two of that name.
    ProblemError
        If the engine or a tunable is not known.
    """
    given = str(name_or_path) if isinstance(name_or_path, Path) else name_or_path
    tuned = re.fullmatch(r"(.*)@([^/@]*)", valid.text(given, "kernel"), re.S)
    path = catalog.find(tuned[1] if tuned else given).resolve()
    more = valid.tunables({} if defines is None else defines)
    defines = {**parse_tunables(tuned[2] if tuned else ""), **more}
    options = Options.of(engine, defines, workspace_limit, time_limit, isolate, trace)
    return Kernel(path.stem, path, None, options)


def compile(source: str, *, name: str = "inline", **options: object) -> Kernel:
    """Build a kernel from CUDA C++ text and return it.

    Parameters
    ----------
    source : the text; ``#include`` finds the shipped headers.
    name : for messages.
    options : `load`'s, by name.

    Raises
    ------
    BuildError, ProblemError
    """
    text = valid.text(source, "source").removeprefix("\ufeff")
    kernel = Kernel(valid.file_name(name, "name"), None, text, Options.of(**options))
    kernel.build()
    return kernel


def resolve(thing: Runnable | str | Path, engine: str = "auto") -> Runnable:
    """Return a runnable: itself, or what a kernel's name or path, or a baseline's name, means."""
    if isinstance(thing, Runnable):
        return thing
    if not isinstance(thing, (str, Path)):
        what = "a name, a path, a Kernel or a baseline's name"
        raise ProblemError(f"a kernel is {what}, not {valid.shown(thing)}")
    if isinstance(thing, str) and ":" in thing:
        on_cpu = engine not in ("auto", "cuda")  # an engine of a room's, or "cpu"
        return baseline(thing, "cpu" if on_cpu else None)
    return load(thing, engine=engine)
