"""A kernel file, called like ``torch.nn.functional.conv2d``.

`load` and `compile` return a `Kernel`. A call validates the tensors, makes them contiguous, allocates
y through torch, launches on torch's current stream, and raises the launch's error. After an edit of
the file, or of a header that it includes, the next call builds the kernel again.
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
from ..problem.format import Format
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

# The most kernels that a message names instead of an unsupported one.
_NAMED = 3
_header = functools.lru_cache(256)(catalog.parse_header)


class Kernel(CallableRunnable):
    """A CUDA kernel that computes a convolution; `load` and `compile` return one.

    Attributes
    ----------
    name : str
        The file's name without ending, and its tunables: "03_smem_tile@C_TILE=4".
    path : Path or None
        The file; None for a kernel from a string.
    engine, defines, workspace_limit, time_limit, isolate, trace
        The arguments of `load`; "auto" and no time limit are replaced by what they stand for.
    runs_on : Engine
        What builds and runs it.
    """

    def __init__(
        self,
        stem: str,
        path: Path | None,
        text: str | None,
        options: Options,
        pinned: Build | None = None,
    ) -> None:
        """Bind a source to its options; see `load` and `compile`.

        `text` replaces the text of the file; `pinned` is a build that later edits do not replace.
        """
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
        # The last build, with the stamp of all files that it was made from.
        self._built: tuple[object, Build] | None = None
        self._require_tunables()

    def _require_tunables(self) -> None:
        """Raise ProblemError if a name in `defines` is no tunable of the source."""
        if not self.defines:
            return
        known = tunables(self.file.whole)
        for key in self.defines:
            if key not in known:
                none = f"none: one is `#ifndef {key}`, `#define {key} 8`, `#endif` in three lines"
                offer = (", ".join(known) or none) + valid.hint(key, known)
                raise ProblemError(f"{self._stem} has no tunable {key}; it has: {offer}")

    @property
    def source(self) -> str:
        """The CUDA C++ text, as it is on disk now."""
        if self._text is not None:
            return self._text
        return _read(self.path, stamp([self.path]))

    @property
    def file(self) -> Source:
        """The text with its place, as it would be built now; it knows which headers it includes."""
        return Source(self.source, self._stem, self.path)

    @property
    def header(self) -> catalog.Header:
        """What the file's header comment says."""
        return _header(self.source, self.path or f"{self._stem}.cu")

    @property
    def title(self) -> str:
        """The header's title, and the tunables."""
        return self.header.title + self.name[len(self._stem) :]

    @property
    def precision(self) -> str:
        """The precision class of its results, by the header."""
        return self.header.precision

    @property
    def format(self) -> Format:
        """The dtype and layout of its tensors, by the header."""
        return self.header.tensors

    @property
    def mixes(self) -> str | None:
        """Which outputs share sums, by the header."""
        return self.header.mixes

    @property
    def atomics(self) -> bool:
        """Whether two runs may differ in bits, by the header."""
        return self.header.atomics

    @property
    def texts(self) -> dict[str, str]:
        """The file and the local headers that it includes, by name, as they are now."""
        return {f"{self._stem}.cu": self.source, **dict(self.file.headers().values())}

    @property
    def device(self) -> torch.device:
        """Where its tensors live: the current GPU, or the CPU for the simulator."""
        return self.runs_on.device

    def build(self) -> Build:
        """Compile the file if it, or a header that it includes, changed since the last call.

        Raises BuildError.
        """
        if self._pinned is not None and self._pinned.library.exists():
            return self._pinned
        files = () if self._text is not None else (self.path,)
        if self._built is not None:
            seen, built = self._built
            if seen == stamp((*files, *built.watched)):
                return built
        # The stamp of the file is taken before its text is read: an edit meanwhile is seen later.
        seen = stamp(files)
        built = self._compiled(self.file)
        self._built = (*seen, *stamp(built.watched)), built
        return built

    def _compiled(self, source: Source) -> Build:
        return self.runs_on.build(source, self.defines, self.trace)

    def pinned(self) -> Kernel:
        """Return this kernel as its source is now: later edits of the file do not reach it."""
        source = self.file
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:6]
        built = self._compiled(source)
        return Kernel(f"{self._stem}#{digest}", self.path, source.text, self._options, built)

    def _with(self, text: str | None, **options: object) -> Kernel:
        changed = {**vars(self._options), **options}
        return Kernel(self._stem, self.path, text, Options.of(**changed))

    def tuned(self, tunables: str | Mapping[str, int]) -> Kernel:
        """Return this kernel, as its source is now, with more tunables set: "TILE=8,K_TILE=16"."""
        more = parse_tunables(tunables) if isinstance(tunables, str) else valid.tunables(tunables)
        return self._with(self.source, defines={**self.defines, **more})

    def on(self, engine: str, time_limit: float | None = None) -> Kernel:
        """Return this kernel for another engine."""
        limit = self._options.time_limit if time_limit is None else time_limit
        return self._with(self._text, engine=engine, time_limit=limit)

    def limited(self, workspace_limit: int) -> Kernel:
        """Return this kernel with another limit of workspace, in bytes."""
        return self._with(self._text, workspace_limit=workspace_limit)

    def untraced(self) -> Kernel:
        """Return this kernel without the simulator's counts and diagnostics: several times as fast."""
        if self.counts and self.trace:
            return self._with(self._text, trace=False)
        return self

    def show(self, first: str | int | None = None, last: str | int | None = None) -> Excerpt:
        """Show a part of the source, with line numbers; in a notebook as highlighted code.

        Parameters
        ----------
        first : the first line that contains this text, or a line's number.
        last : the next line that contains this text, or a line's number. Without `last` the first
            line is shown alone; without both, all of the source.
        """
        label = self.file.label
        label = Path(label).name if Path(label).is_absolute() else label
        return excerpt(self.source, label, first, last)

    @property
    def target(self) -> tuple[int, int]:
        """The compute capability that it runs on, and the shared memory a block may opt into."""
        return self.runs_on.target

    def unsupported(self, problem: Problem) -> str | None:
        """Return the first of the header's requirements that a problem does not meet, or None."""
        return self.header.unsupported(named_problem(problem), *self.target)

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Return what launches, for tensors of any strides; see `Runnable.prepare`.

        Raises what a call raises. The simulator guards its buffers itself and ignores `allocate`.
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
        """Return a few kernels of the catalog that support a problem, in the same format."""
        able = []
        for path in catalog.catalog():
            other = Kernel(path.stem, path, None, Options.of(self.engine))
            with contextlib.suppress(CatalogError):  # its header cannot be read
                same = other.path != self.path and other.format == self.format
                if same and other.unsupported(problem) is None:
                    able.append(other.name)
        if not able:
            return "; no other kernel of its format supports it"
        more = f", or one of {len(able) - _NAMED} others" if len(able) > _NAMED else ""
        return f"; use {', '.join(able[:_NAMED])}{more}"

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, engine={self.engine!r})"

    def __reduce__(self) -> tuple:
        return Kernel, (self._stem, self.path, self._text, self._options, self._pinned)


@functools.lru_cache(256)
def _read(path: Path, seen: object) -> str:
    """Return a file's text; it is read again when its stamp, `seen`, is another."""
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
    engine : "cuda", "sim", or "auto": "cuda" with a GPU and nvcc, else "sim".
    defines : tunables, passed to the compiler as ``-DNAME=VALUE``.
    workspace_limit : bytes of workspace that a call may take.
    time_limit : seconds that one call may take on the simulator (default 120), or the rehearsal
        of a first call on a GPU (default 20).
    isolate : on a GPU, rehearse each new problem in the worker process first, on other data of the
        same shape, unless the build is known to be good. A build is good once it has passed the
        whole default check.
    trace : on the simulator, count memory traffic and look for mistakes. Without it a kernel runs
        several times as fast.

    Raises
    ------
    CatalogError
        If there is no such kernel, or two of that name.
    ProblemError
        If the engine or a tunable is not known.
    """
    text = str(name_or_path) if isinstance(name_or_path, Path) else name_or_path
    name = text
    tuned = ""
    if parts := re.fullmatch(r"(.*)@([^/@]*)", valid.text(text, "kernel"), re.S):
        name, tuned = parts.groups()
    path = catalog.find(name).resolve()
    more = valid.tunables({} if defines is None else defines)
    defines = {**parse_tunables(tuned), **more}
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
