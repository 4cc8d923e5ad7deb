"""Load or compile a kernel, and call it like ``torch.nn.functional.conv2d``.

`load` and `compile` return a `Kernel`. A call validates the tensors, makes them contiguous,
allocates y through torch, launches on torch's current stream, and raises an error if the launch
fails. If you edit the file or a header that it includes, the next call compiles the kernel again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from .. import arguments as valid
from .. import rooms
from ..builds.cache import Build, stamp
from ..builds.key import all_variables
from ..builds.source import Source
from ..defaults import ENGINES
from ..errors import CatalogError, ProblemError
from ..machine.gpus import Gpu
from ..problem.format import Format
from ..problem.named import problem as named_problem
from ..problem.problem import Problem
from ..show.excerpt import Excerpt, excerpt
from . import catalog
from .call import CallableRunnable
from .cuda import CUDA, RepeatedLaunch
from .data import alignments, match, placed_as, require, require_memory
from .engine import counting_engine, engine_named
from .libraries import baseline
from .options import WORKSPACE_LIMIT, Options
from .runnable import Allocate, Inputs, Launch, Runnable, empty
from .tunables import parse_tunables, tunables

__all__ = ["ENGINES", "WORKSPACE_LIMIT", "Kernel", "compile", "load", "resolve"]

# The options of `compile`, which are those of `load`. `Kernel.uncounted` has the other one.
_OPTIONS = tuple(entry.name for entry in fields(Options) if entry.name != "counting")
# The most kernels that a message names instead of an unsupported one.
_NAMED = 3
_header = functools.lru_cache(256)(catalog.parse_header)


class Kernel(CallableRunnable):
    """Call a CUDA kernel like ``torch.nn.functional.conv2d``; `load` and `compile` return it.

    ``kernel(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False)`` returns y,
    (N, K, P, Q). If you edit the file, or a header that it includes, the next call compiles it
    again.

    Attributes
    ----------
    name : str
        The file's name without its ending, and the tunables: "03_smem_tile@C_TILE=4".
    path : Path or None
        The file; None for a kernel from a string.
    engine : str
        The engine, "cuda" or "sim", also if you gave "auto".
    defines : dict
        The tunables that were set, by name.
    workspace_limit : int
        The most workspace that a call may use, in bytes.
    time_limit : float
        The time limit of a call, in seconds; see `load`.
    isolate, trace : bool
        As in `load`.
    runs_on : Engine
        The engine that builds and runs the kernel.

    Examples
    --------
    >>> kernel = convlab.load("03_smem_tile", engine="sim")
    >>> y = kernel(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3), padding=1)
    >>> y.shape
    torch.Size([1, 4, 8, 8])
    """

    def __init__(
        self,
        stem: str,
        path: Path | None,
        text: str | None,
        options: Options,
        pinned: Build | None = None,
    ) -> None:
        """Combine a source with its options; call `load` or `compile` instead.

        `text` replaces the text of the file. `pinned` is a build that later edits do not replace.
        """
        if not isinstance(options, Options):
            raise ProblemError("make a Kernel with convlab.load(NAME) or convlab.compile(TEXT)")
        self.path = path
        self._stem = stem
        self._text = text
        self._options = options
        self._pinned = pinned
        self.engine = options.engine
        self.runs_on = engine_named(options.engine)
        if options.gpu is not None:
            self.runs_on = self.runs_on.like(options.gpu)
        self.defines = options.defines
        self.workspace_limit = options.workspace_limit
        self.time_limit = options.time_limit
        self.isolate = options.isolate
        self.trace = options.trace
        # This kernel without counts and diagnostics, and without counts.
        self._untraced: Kernel | None = None
        self._uncounted: Kernel | None = None
        suffix = ",".join(f"{key}={value}" for key, value in self.defines.items())
        self.name = f"{stem}@{suffix}" if suffix else stem
        # The last build, the files from which it was built, and their stamp.
        self._built: tuple[object, tuple[str, ...], Build] | None = None
        # The problems that were computed here: (library, problem, GPU, alignments of the tensors).
        self._repeated: dict[tuple[object, ...], RepeatedLaunch] = {}
        self._require_tunables()

    def _require_tunables(self) -> None:
        """Raise ProblemError if a name in `defines` is not a tunable of the source."""
        if not self.defines:
            return
        known = tunables(self.file.whole)
        for key in self.defines:
            if key not in known:
                short = valid.end_of(key)
                none = f"none; add the lines `#ifndef {short}`, `#define {short} 8`, `#endif`"
                offer = (", ".join(known) or none) + valid.hint(key, known)
                raise ProblemError(f"{self._stem} has no tunable {short}; it has: {offer}")

    @property
    def source(self) -> str:
        """The CUDA C++ text, as it is on disk at this moment."""
        if self._text is not None:
            return self._text
        return _read(self.path, stamp([self.path]))

    @property
    def file(self) -> Source:
        """The text that a build would use now, with its path and its headers."""
        return Source(self.source, self._stem, self.path)

    @property
    def header(self) -> catalog.Header:
        """The file's header comment, as a `Header`."""
        return _header(self.source, self.path or f"{self._stem}.cu")

    @property
    def title(self) -> str:
        """The header's title, with the tunables."""
        return self.header.title + self.name[len(self._stem) :]

    @property
    def precision(self) -> str:
        """The precision class in the header: "fp32", "tf32", "bf16" or "fp16"."""
        return self.header.precision

    @property
    def format(self) -> Format:
        """The dtypes and layouts of the tensors, according to the header."""
        return self.header.tensors

    @property
    def computes(self) -> str:  # type: ignore[override]
        """What the kernel computes, according to the header."""
        return self.header.computes

    @property
    def mixes(self) -> str | None:
        """The tile of outputs that share sums ("2x2" or "image") in the header, or None."""
        return self.header.mixes

    @property
    def atomics(self) -> bool:
        """Whether two runs may differ in bits, according to the header."""
        return self.header.atomics

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the file and of the local headers that it includes, by name."""
        return {f"{self._stem}.cu": self.source, **dict(self.file.headers().values())}

    @property
    def device(self) -> torch.device:
        """The device of the tensors: the current GPU, or the CPU for the simulator."""
        return self.runs_on.device

    def build(self) -> Build:
        """Compile the file if it, or a header that it includes, changed since the last build.

        Returns
        -------
        Build
            The library's path, and the seconds that compiling took; 0.0 if it was in the cache.

        Raises
        ------
        BuildError
            The file does not compile, or there is no compiler.
        """
        if self._pinned is not None and self._pinned.library.exists():
            return self._pinned
        files = () if self._text is not None else (self.path,)
        if self._built is not None:
            seen, watched, built = self._built
            if seen == (all_variables(), *stamp(watched)):
                return built
        # Take the stamp before the text is read, so that the next call notices an edit in between.
        before = all_variables()
        seen = stamp(files)
        built = self._compiled(self.file)
        # Each call looks at these files, and strings are faster than paths.
        watched = tuple(map(str, (*files, *built.watched)))
        self._built = (before, *seen, *stamp(built.watched)), watched, built
        return built

    def forget_build(self) -> None:
        """Look at the files in the next call, also in one that would not look for edits."""
        self._built = None

    def _compiled(self, source: Source) -> Build:
        return self.runs_on.build(source, self.defines, self.trace, self._options.counting)

    def pinned(self) -> Kernel:
        """Return a copy of this kernel with its present source, which later edits do not change."""
        source = self.file
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:6]
        built = self._compiled(source)
        return Kernel(f"{self._stem}#{digest}", self.path, source.text, self._options, built)

    def _with(self, text: str | None, **options: object) -> Kernel:
        changed = {**vars(self._options), **options}
        return Kernel(self._stem, self.path, text, Options.of(**changed))

    def tuned(self, tunables: str | Mapping[str, int]) -> Kernel:
        """Return a copy of this kernel with more tunables set, such as "TILE=8,K_TILE=16".

        The copy keeps the present source. Raises ProblemError for an unknown tunable.
        """
        more = parse_tunables(tunables) if isinstance(tunables, str) else valid.tunables(tunables)
        return self._with(self.source, defines={**self.defines, **more})

    def on(self, engine: str, time_limit: float | None = None) -> Kernel:
        """Return this kernel for another engine; `time_limit` is in seconds."""
        limit = self._options.time_limit if time_limit is None else time_limit
        return self._with(self._text, engine=engine, time_limit=limit)

    def on_gpu(self, gpu: Gpu) -> Kernel:
        """Return this kernel on a simulator that is another GPU. Raises ProblemError on a GPU."""
        if not self.counts:
            return super().on_gpu(gpu)
        return self._with(self._text, gpu=gpu)

    def limited(self, workspace_limit: int) -> Kernel:
        """Return this kernel with another workspace limit, in bytes."""
        return self._with(self._text, workspace_limit=workspace_limit)

    def untraced(self) -> Kernel:
        """Return this kernel without the simulator's counts and diagnostics: it runs faster."""
        if not (self.counts and self.trace):
            return self
        if self._untraced is None:
            self._untraced = self._with(self._text, trace=False)
        return self._untraced

    def uncounted(self) -> Kernel:
        """Return this kernel without the simulator's counts, but with all diagnostics: it runs faster."""
        if not (self.counts and self.trace and self._options.counting):
            return self
        if self._uncounted is None:
            self._uncounted = self._with(self._text, counting=False)
        return self._uncounted

    def simulated(self, time_limit: float) -> Kernel | None:
        """Return this kernel for the simulator; None if there is no simulator."""
        engine = counting_engine()
        if engine is None:
            return None
        return self._with(self._text, engine=engine, time_limit=time_limit, trace=True)

    def show(self, first: str | int | None = None, last: str | int | None = None) -> Excerpt:
        """Show a part of the source with line numbers, in a notebook as highlighted code.

        Parameters
        ----------
        first : str or int, optional
            The first line to show: a text in it, or its number.
        last : str or int, optional
            The last line to show: a text in it (searched from `first` on), or its number. Without
            `last`, only the first line is shown. Without both, the whole source is shown.

        Returns
        -------
        Excerpt
            It prints as text.

        Raises
        ------
        ProblemError
            There is no such line.
        """
        label = self.file.label
        label = Path(label).name if Path(label).is_absolute() else label
        return excerpt(self.source, label, first, last)

    @property
    def target(self) -> tuple[int, int]:
        """The engine's compute capability (90 for 9.0), and a block's shared memory in bytes."""
        return self.runs_on.target

    def unsupported(self, problem: Problem) -> str | None:
        """Return the first requirement of the header that a problem does not meet, or None."""
        return self.header.unsupported(named_problem(problem), *self.target)

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Return the launch for tensors of any strides; see `Runnable.prepare`.

        It raises the same errors as a call. The simulator ignores `allocate`, because it guards its
        buffers itself.
        """
        problem = named_problem(problem)
        require(self, x, w, bias)
        match(problem, x, w, bias)
        inputs = self._accepted(problem, x, w, bias)
        return self.runs_on.prepare(self, problem, inputs, allocate)

    def _accepted(self, problem: Problem, x: Tensor, w: Tensor, bias: Tensor | None) -> Inputs:
        """Validate the problem and the tensors' memory; return the tensors in the kernel's format."""
        require_memory(x, w, bias)
        self.accept(problem)
        return placed_as(self.format, x, w, bias)

    def compute(self, problem: Problem, *tensors: Tensor | None) -> Tensor:
        return self.runs_on.compute(self, problem, self._accepted(problem, *tensors))

    def again(self, problem: Problem, *tensors: Tensor | None, looks: bool = True) -> Tensor:
        if self.runs_on is not CUDA:
            return self.compute(problem, *tensors)
        build = self.build() if looks or self._built is None else self._built[2]
        index = tensors[0].get_device()
        call = (build.library, problem, index, *alignments(tensors))
        repeated = self._repeated.get(call)
        if repeated is not None:
            return repeated(*tensors)
        y = self.compute(problem, *tensors)
        # An edit in between would mean that another build was rehearsed.
        if CUDA.repeats(self) and self.build().library == build.library:
            self._repeated[call] = RepeatedLaunch(self, build, problem, index)
        return y

    def _instead(self, problem: Problem) -> str:
        """Return a few kernels of the same format that support a problem, to end a sentence."""
        alternatives = []
        for path in catalog.quiet_catalog():
            other = Kernel(path.stem, path, None, Options.of(self.engine))
            # An invalid header excludes that kernel only.
            with contextlib.suppress(CatalogError):
                same = other.path != self.path and other.format == self.format
                if same and other.unsupported(problem) is None:
                    alternatives.append(other.name)
        if not alternatives:
            return "; no other kernel of its format supports it"
        others = len(alternatives) - _NAMED
        more = f", or one of {others} others" if others > 0 else ""
        return f"; use {', '.join(alternatives[:_NAMED])}{more}"

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, engine={self.engine!r})"

    def __reduce__(self) -> tuple:
        return Kernel, (self._stem, self.path, self._text, self._options, self._pinned)


@functools.lru_cache(256)
def _read(path: Path, seen: object) -> str:
    """Return a file's text; a new stamp `seen` reads the file again."""
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
    """Return the kernel in a ``.cu`` file.

    The file is compiled at the first call, or by `Kernel.build`.

    Parameters
    ----------
    name_or_path : str or Path
        A kernel in ``kernels/`` ("03_smem_tile", or its beginning, "03"), or the path of a file: a
        text with a slash, or that ends in ".cu". Tunables may follow: "03_smem_tile@C_TILE=4".
    engine : str
        One of "cuda" (a GPU), "sim" (the simulator) and "auto" ("cuda" if there are a GPU and nvcc,
        else "sim").
    defines : dict, optional
        Tunables, which the compiler gets as ``-DNAME=VALUE``.
    workspace_limit : int
        The most workspace that a call may use, in bytes; by default 1 GiB.
    time_limit : float, optional
        On the simulator, the limit of one call, in seconds; by default 120. On a GPU, the limit of
        the rehearsal before a first call (see `isolate`), in seconds; by default 20.
    isolate : bool
        On a GPU, whether each new problem first runs in a worker process, on other data of the same
        shape. A crash then becomes a Python exception. A build that has passed the whole default
        check needs no such rehearsal.
    trace : bool
        On the simulator, whether to count memory traffic and look for mistakes. Without it a kernel
        runs several times as fast.

    Returns
    -------
    Kernel
        It is called like ``torch.nn.functional.conv2d``.

    Raises
    ------
    CatalogError
        There is no such kernel, or there are two with this name.
    ProblemError
        An argument is invalid, such as an unknown engine or tunable.
    BuildError
        There is no GPU for ``engine="cuda"``.

    Examples
    --------
    >>> kernel = convlab.load("03_smem_tile", engine="sim", defines={"C_TILE": 4})
    >>> kernel.name
    '03_smem_tile@C_TILE=4'
    """
    text = str(name_or_path) if isinstance(name_or_path, Path) else name_or_path
    name, tuned = catalog.split_tunables(valid.text(text, "kernel"))
    path = catalog.find(name).resolve()
    more = valid.tunables({} if defines is None else defines)
    defines = {**parse_tunables(tuned), **more}
    options = Options.of(engine, defines, workspace_limit, time_limit, isolate, trace)
    return Kernel(path.stem, path, None, options)


def compile(source: str, *, name: str = "inline", **options: object) -> Kernel:
    """Compile CUDA C++ text and return the kernel.

    Parameters
    ----------
    source : str
        The text of a ``.cu`` file. It can include the shipped headers.
    name : str
        The kernel's name, for messages and tables.
    **options
        The other arguments of `load`: engine, defines, workspace_limit, time_limit, isolate, trace.

    Returns
    -------
    Kernel
        It is called like ``torch.nn.functional.conv2d``.

    Raises
    ------
    BuildError
        The text does not compile, or there is no compiler. The message quotes the line.
    ProblemError
        An argument is invalid.

    Examples
    --------
    >>> source = convlab.load("01_direct", engine="sim").source
    >>> kernel = convlab.compile(source, name="mine", engine="sim")
    """
    text = valid.text(source, "source").removeprefix("\ufeff")
    for key in options:
        if key not in _OPTIONS:
            raise ProblemError(
                f"compile has no option {valid.shown(key)}; it has {', '.join(_OPTIONS)}"
                f"{valid.hint(key, _OPTIONS)}"
            )
    kernel = Kernel(valid.file_name(name, "name"), None, text, Options.of(**options))
    kernel.build()
    return kernel


def resolve(thing: Runnable | str | Path, engine: str = "auto") -> Runnable:
    """Return the runnable for a runnable, a kernel's name or path, or a baseline's name."""
    if isinstance(thing, Runnable):
        return thing
    if not isinstance(thing, (str, Path)):
        allowed = "a name, a path, a Kernel or a baseline's name"
        raise ProblemError(f"a kernel is {allowed}, not {valid.shown(thing)}")
    if isinstance(thing, str) and _names_baseline(thing):
        # Other engines run on the CPU.
        on_cpu = engine not in ("auto", "cuda")
        return baseline(thing, "cpu" if on_cpu else None)
    if load_file := rooms.provided("kernel_file", Path(thing).suffix):
        return load_file(thing, engine)
    return load(thing, engine=engine)


def _names_baseline(text: str) -> bool:
    """Return whether a text has the form of a baseline's name; a path may have a colon too."""
    return ":" in text and not catalog.is_path(catalog.split_tunables(text)[0])
