"""A kernel file, called like ``torch.nn.functional.conv2d``.

`load` and `compile` give a `Kernel`. It validates, makes contiguous, allocates through torch,
launches on torch's current stream, and reports the launch's error. A kernel loaded from a file
is built again by the next call after the file, or a header it includes, was changed.
"""

import contextlib
import ctypes
import hashlib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from .. import sim
from ..machine import toolchain
from ..show.excerpt import Excerpt, excerpt
from ..words import catalog
from ..words.errors import BuildError, LaunchError, ProblemError, UnsupportedError
from ..words.format import Format
from ..words.problem import Problem
from . import build as builds
from . import op
from .baselines import baseline
from .launch import CudaLaunch, SimLaunch
from .runnable import Allocate, Launch, Runnable, empty

ENGINES = ("auto", "cuda", "sim")
WORKSPACE_LIMIT = 1 << 30  # bytes
TRIAL_SECONDS = 20.0  # that a kernel's first call on a GPU may take, in the worker process
_TUNABLE = re.compile(r"^[ \t]*#[ \t]*ifndef[ \t]+(\w+)", re.M)
Pair = int | tuple[int, int]

# What ran to its end in the worker: (library, problem, workspace limit, alignments).
_tried: set[tuple[object, ...]] = set()


class Kernel(Runnable):
    """A CUDA kernel that computes a convolution; made by `load` or `compile`.

    Attributes
    ----------
    name : str
        The file's name without ending, and its tunables: "03_smem_tile@C_TILE=4".
    path : Path or None
        The file; None when made from a string.
    engine : str
        "cuda" or "sim".
    defines : dict
        The tunables that were set.
    workspace_limit : int
        Bytes of workspace a call may take.
    time_limit : float
        Seconds that one call may take on the simulator, or the first one on a GPU.
    isolate : bool
        Whether a call on a GPU is tried in the worker process first, while its build is not known
        to be good.
    trace : bool
        Whether the simulator counts memory traffic and looks for mistakes.
    sample : int or None
        How many blocks of each launch the simulator runs; None: all.
    """

    def __init__(
        self,
        name: str,
        *,
        path: Path | None,
        text: str | None,
        engine: str,
        defines: Mapping[str, int],
        workspace_limit: int,
        time_limit: float | None,
        isolate: bool = True,
        trace: bool = True,
        sample: int | None = None,
    ) -> None:
        self.trace = bool(trace)
        self.path, self._text = path, text
        self.engine, self.defines = _engine(engine), dict(defines)
        if time_limit is None:
            time_limit = sim.TIME_LIMIT if self.engine == "sim" else TRIAL_SECONDS
        self.workspace_limit, self.time_limit = int(workspace_limit), time_limit
        self.isolate = isolate
        self.sample = None if sample is None else _sample(sample, self.engine, self.trace)
        suffix = ",".join(f"{key}={value}" for key, value in self.defines.items())
        self.name = f"{name}@{suffix}" if suffix else name
        self._stem = name
        self._seen: tuple[object, ...] | None = None
        self._built: builds.Build | None = None
        self._speaks: tuple[object, bool] = (None, False)  # of what was seen, whether it prints
        known = tunables(self.source)
        for key in self.defines:
            if key not in known:
                offer = ", ".join(known) or "none"
                raise ProblemError(f"{name} has no tunable {key}; it has: {offer}")

    @property
    def source(self) -> str:
        """The CUDA C++ text, as it is on disk now."""
        return self.path.read_text() if self._text is None else self._text

    @property
    def header(self) -> catalog.Header:
        """What the file's header comment says."""
        return catalog.parse_header(self.source, self.path or f"{self._stem}.cu")

    @property
    def title(self) -> str:
        """The header's title, and the tunables."""
        return self.header.title + self.name[len(self._stem) :]

    @property
    def precision(self) -> str:
        """The precision class, "fp32" or "tf32"."""
        return self.header.precision

    @property
    def format(self) -> Format:
        """Dtype and layout of its tensors, as the header says."""
        return self.header.tensors

    @property
    def atomics(self) -> bool:
        """Whether the header says that it adds in no fixed order."""
        return self.header.atomics

    @property
    def device(self) -> torch.device:
        """Where its tensors live: the CPU for the simulator, else the current GPU."""
        if self.engine == "sim":
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def build(self) -> builds.Build:
        """Compile the file if it, or a header it includes, changed since the last call."""
        source = None
        if self._seen is None or self._seen != (seen := _stamp(self._seen[0])):
            source = builds.Source(self.source, self._stem, self.path)
            files = tuple(p for p in (self.path, *source.headers()) if p is not None)
            seen = _stamp(files)
        if source is not None or self._built is None:
            self._built = builds.build(source, self.engine, self.defines, trace=self.trace)
            self._seen = seen
        return self._built

    def pinned(self) -> "Kernel":
        """This kernel as its source is now: later edits of the file do not reach it."""
        text = self.source
        digest = hashlib.sha256(text.encode()).hexdigest()[:6]
        built = builds.build(
            builds.Source(text, self._stem, self.path), self.engine, self.defines, trace=self.trace
        )
        return _rebuild(f"{self._stem}#{digest}", self.path, text, self._options(), built)

    def tuned(self, tunables: str) -> "Kernel":
        """This kernel, as its source is now, with more tunables set: "TILE=8,K_TILE=16"."""
        options = self._options() | {"defines": self.defines | _parse_defines(tunables)}
        return _rebuild(self._stem, self.path, self.source, options)

    def show(self, first: str | int | None = None, last: str | int | None = None) -> Excerpt:
        """A cut of the source, with line numbers; in a notebook as highlighted code.

        Parameters
        ----------
        first : where it begins: the first line that holds this text, or a line's number.
        last : where it ends: the next line, from the first on, that holds this text, or a line's
            number. Without it `first` is shown alone; without both, all of the source.

        Raises
        ------
        ProblemError
            If no line holds the text; it names the nearest.
        """
        label = builds.Source(self.source, self._stem, self.path).label
        if Path(label).is_absolute():
            label = Path(label).name
        return excerpt(self.source, label, first, last)

    def on(
        self, engine: str, time_limit: float | None = None, sample: int | None = None
    ) -> "Kernel":
        """This kernel for another engine; on the simulator perhaps sampled, as by `load`."""
        options = self._options() | {"engine": engine, "time_limit": time_limit}
        options["sample"] = self.sample if sample is None else sample
        if sample is None and _engine(engine) == "cuda":
            options["sample"] = None  # a GPU runs all blocks
        return _rebuild(self._stem, self.path, self._text, options)

    def limited(self, workspace_limit: int) -> "Kernel":
        """This kernel with another limit of workspace, in bytes."""
        options = self._options() | {"workspace_limit": workspace_limit}
        return _rebuild(self._stem, self.path, self._text, options)

    def unsupported(self, problem: Problem) -> str | None:
        """The first of the header's requirements that a problem does not meet, or None."""
        if self.engine == "sim":
            return self.header.unsupported(problem, sim.SM, sim.SMEM)
        device = torch.cuda.get_device_properties(self.device)
        sm, smem = 10 * device.major + device.minor, device.shared_memory_per_block_optin
        return self.header.unsupported(problem, sm, smem)

    def prepare(
        self,
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        allocate: Allocate = empty,
    ) -> Launch:
        """Validate, allocate the output and the workspace, and return what launches.

        Parameters
        ----------
        problem : the problem that the tensors belong to.
        x : (N, C, H, W) float32 on `device`.
        w : (K, C/groups, R, S) float32.
        bias : (K,) float32 or None.
        allocate : makes y and the workspace on a GPU from (shape, dtype, device), contiguous; a
            checker passes its own, with guard zones. The simulator guards its buffers itself.

        Raises
        ------
        ProblemError, UnsupportedError, BuildError, LaunchError
        """
        self._check_tensors(x, w, bias)
        reason = self.unsupported(problem)
        if reason is not None:
            raise UnsupportedError(self._refusal(problem, reason))
        bias = None if bias is None else bias.contiguous()
        inputs = (x.contiguous(), w.contiguous(), bias)
        if self.simulated:
            return SimLaunch(self, problem, inputs)
        return CudaLaunch(self, problem, inputs, allocate)

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        """Compute the convolution, with gradients where the inputs ask for them.

        Parameters
        ----------
        x : (N, C, H, W) or (C, H, W), float32, on the kernel's device; any memory format.
        w : the filter, (K, C/groups, R, S).
        bias : (K,) or None.
        stride, padding, dilation : an int, or a pair (height, width).
            `padding` may be "valid", or "same" where the stride is 1.
        groups : int.

        Returns
        -------
        tensor (N, K, P, Q) or (K, P, Q), float32, contiguous.

        Raises
        ------
        ProblemError
            If the arguments do not describe a convolution on this kernel's device.
        UnsupportedError
            If the header says that the kernel cannot do it; names kernels that can.
        BuildError
            If the file does not compile.
        LaunchError
            If the kernel refuses, crashes or hangs, or memory is short.
        """
        if op.derives(x, w, bias):
            # first, so that bad arguments get the same answers with gradients as without
            self._problem(x, w, bias, stride, padding, dilation, groups)
            return op.convolve(x, w, bias, stride, padding, dilation, groups, op.key_of(self))
        return self.forward(x, w, bias, stride, padding, dilation, groups)

    def forward(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        """As `__call__`, without gradients."""
        self.must_run_whole()
        problem, images = self._problem(x, w, bias, stride, padding, dilation, groups)
        tensors = [None if t is None else t.detach() for t in (images, w, bias)]
        self._try_first(problem, *tensors)
        launch = self.prepare(problem, *tensors)
        with _shown() if self._prints() else contextlib.nullcontext():
            launch()
        y = launch.y.clone() if self.engine == "sim" else launch.y  # lets the arena go
        return y.squeeze(0) if x.dim() == 3 else y

    def _problem(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        stride: Pair,
        padding: Pair | str,
        dilation: Pair,
        groups: int,
    ) -> tuple[Problem, torch.Tensor]:
        """The problem that a call's arguments describe, and its x: four dimensions, padded."""
        self._check_tensors(x, w, bias)
        if x.dim() == 3:
            x = x.unsqueeze(0)
        if x.dim() == w.dim() == 4:  # else `Problem` says what is wrong
            x, padding = op.padded(x, w, stride, padding, dilation)
        shapes = (tuple(x.shape), tuple(w.shape), None if bias is None else tuple(bias.shape))
        return Problem.from_shapes(*shapes, stride, padding, dilation, groups), x

    def _prints(self) -> bool:
        """Whether a call must wait for what the kernel prints on the GPU."""
        if self.engine != "cuda" or torch.compiler.is_compiling():
            return False
        if self._speaks[0] != self._seen:  # read again only after an edit
            self._speaks = self._seen, bool(re.search(r"\bprintf\s*\(", self.source))
        return self._speaks[1] and not torch.cuda.is_current_stream_capturing()

    def _try_first(self, problem: Problem, *tensors: torch.Tensor | None) -> None:
        """Run what is not known to be good in the worker first, on other data of the same shape."""
        if self.engine != "cuda" or not self.isolate or problem.N == 0:
            return
        if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
            return
        with torch.cuda.device(tensors[0].device):
            build = self.build()
            # An access wider than a float, up to 32 bytes, minds where a tensor starts.
            offsets = tuple(
                t.data_ptr() % 32 if t is not None and t.is_contiguous() else 0 for t in tensors
            )
            trial = (build.library, problem, self.workspace_limit, offsets)
            if trial in _tried or builds.is_good(build):
                return
            from . import worker  # stands after this module; not needed by kernels that are good

            printed = io.StringIO()  # it works on other data: what it prints is of no interest
            try:
                with contextlib.redirect_stdout(printed):
                    worker.call(worker.run_once, self, problem, offsets, time_limit=self.time_limit)
            except LaunchError as error:
                sys.stdout.write(printed.getvalue())  # unless it failed
                if error.kind != "out of memory":
                    raise
                warnings.warn(
                    f"{self.name} runs on {problem.label} without a trial in the worker process: "
                    "the GPU has no room for the problem twice; what it does wrong can end this "
                    "process's use of the GPU",
                    stacklevel=4,
                )
            _tried.add(trial)

    def must_run_whole(self) -> None:
        """Raise ProblemError if only some of the blocks run: then y is not a result."""
        if self.sample is not None:
            raise ProblemError(
                f"{self.name} was loaded with sample={self.sample}, and {self.sample} blocks do not "
                "compute all of y: load it without sample= for results; sampled counters are those "
                "of kernel.prepare(problem, x, w)"
            )

    def _check_tensors(self, x: object, w: object, bias: object) -> None:
        for name, tensor in (("x", x), ("w", w), ("bias", bias)):
            if tensor is None and name == "bias":
                continue
            if not isinstance(tensor, torch.Tensor):
                raise ProblemError(f"{name} is a {type(tensor).__name__}, not a torch.Tensor")
            if tensor.dtype != torch.float32:
                raise ProblemError(
                    f"{name} is {tensor.dtype}, and {self.name} computes in torch.float32: "
                    f"pass {name}.float()"
                )
            if tensor.layout != torch.strided:
                raise ProblemError(f"{name} is {tensor.layout}: pass {name}.to_dense()")
            if tensor.device.type != self.device.type:
                other = "cuda" if self.engine == "sim" else "sim"
                raise ProblemError(
                    f"{name} is on {tensor.device}, and {self.name} runs on the engine "
                    f'"{self.engine}": pass {name}.to("{self.device.type}"), '
                    f'or load it with engine="{other}"'
                )
            if tensor.device != x.device:
                raise ProblemError(f"x is on {x.device} and {name} on {tensor.device}: use one GPU")

    def _refusal(self, problem: Problem, reason: str) -> str:
        able = []
        for path in catalog.catalog():
            other = load(path, engine=self.engine)
            if other.path != self.path and other.unsupported(problem) is None:
                able.append(other.name)
        offer = f"use {', '.join(able)}" if able else "no kernel in the catalog can"
        return f"{self.name} cannot do {problem.label}: {reason}; {offer}"

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, engine={self.engine!r})"

    def _options(self) -> dict[str, object]:
        names = ("engine", "defines", "workspace_limit", "time_limit", "isolate", "trace", "sample")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple:
        pinned = self._built if self._seen == (None,) else None
        return _rebuild, (self._stem, self.path, self._text, self._options(), pinned)


@op.loader
def load(
    name_or_path: str | Path,
    *,
    engine: str = "auto",
    defines: Mapping[str, int] | None = None,
    workspace_limit: int = WORKSPACE_LIMIT,
    time_limit: float | None = None,
    isolate: bool = True,
    trace: bool = True,
    sample: int | None = None,
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
        that passed the whole default check.
    trace : on the simulator, count memory traffic and look for mistakes. Without, a kernel runs
        several times as fast.
    sample : on the simulator, run only so many whole blocks of each launch (2 or more), chosen at
        random, the same ones each time, and scale all that is counted to what all blocks would
        have: for problems too large to run whole. ``Launch.sampling`` tells the standard error.
        y is then no result, so that the kernel cannot be called, nor checked; findings that need
        all blocks (never written, uninitialised reads of global memory) are off, and products of
        cuBLAS are counted, not computed. Blocks must not wait for each other. x, w and bias must
        fit into memory, twice; of y and the workspace only what is touched must.

    Raises
    ------
    CatalogError
        If there is no such kernel, or two of that name.
    ProblemError
        If the engine or a tunable is not known, or `sample` cannot be had.
    """
    spec, _, tuned = str(name_or_path).partition("@")
    path = catalog.find(spec).resolve()
    return Kernel(
        path.stem,
        path=path,
        text=None,
        engine=engine,
        defines=_parse_defines(tuned) | dict(defines or {}),
        workspace_limit=workspace_limit,
        time_limit=time_limit,
        isolate=isolate,
        trace=trace,
        sample=sample,
    )


def compile(
    source: str,
    *,
    name: str = "inline",
    engine: str = "auto",
    defines: Mapping[str, int] | None = None,
    workspace_limit: int = WORKSPACE_LIMIT,
    time_limit: float | None = None,
    isolate: bool = True,
    trace: bool = True,
    sample: int | None = None,
) -> Kernel:
    """Build a kernel from CUDA C++ text and return it; the other parameters are `load`'s.

    Raises
    ------
    BuildError
        If the text does not compile or has no entry point.
    """
    kernel = Kernel(
        name,
        path=None,
        text=source,
        engine=engine,
        defines=defines or {},
        workspace_limit=workspace_limit,
        time_limit=time_limit,
        isolate=isolate,
        trace=trace,
        sample=sample,
    )
    kernel.build()
    return kernel


def resolve(thing: Runnable | str | Path, engine: str = "auto") -> Runnable:
    """Return a runnable: itself, or what a kernel's name or path, or a baseline's name, means."""
    if isinstance(thing, Runnable):
        return thing
    if isinstance(thing, str) and ":" in thing:
        return baseline(thing, "cpu" if engine == "sim" else None)
    return load(thing, engine=engine)


def tunables(source: str) -> dict[str, str]:
    """The tunables of a kernel's source, ``#ifndef NAME`` / ``#define NAME VALUE``, by name."""
    found = {}
    for name in _TUNABLE.findall(source):
        default = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(\S+)", source, re.M)
        if default:
            found[name] = default[1]
    return found


@contextlib.contextmanager
def _shown() -> Iterator[None]:
    """Wait for the GPU, and pass on what it printed to Python's output: a notebook's cell.

    The CUDA runtime writes a kernel's printf to C's stdout when the GPU is waited for.
    """
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    kept, printed = os.dup(1), os.memfd_create("printf")
    os.dup2(printed, 1)
    try:
        yield
        torch.cuda.synchronize()
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        sys.stdout.write(os.pread(printed, 1 << 20, 0).decode(errors="replace"))
        sys.stdout.flush()
        os.close(kept)
        os.close(printed)


def _parse_defines(text: str) -> dict[str, int]:
    defines = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"-?\d+", value.strip()):
            raise ProblemError(f"cannot read the tunable {part!r}: write NAME=INTEGER after the @")
        defines[key.strip()] = int(value)
    return defines


def _engine(engine: str) -> str:
    if engine not in ENGINES:
        raise ProblemError(f"no engine {engine!r}: choose from {', '.join(ENGINES)}")
    if engine == "auto":
        return "cuda" if torch.cuda.is_available() and toolchain.cuda() else "sim"
    if engine == "cuda" and not torch.cuda.is_available():
        raise BuildError(builds.NO_GPU)
    return engine


def _sample(sample: int, engine: str, trace: bool) -> int:
    """A number of blocks to sample, if it is one and can be had."""
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 2:
        raise ProblemError(
            f"sample={sample!r}: give a number of blocks, 2 or more (from one, no error can be told)"
        )
    if engine != "sim":
        raise ProblemError(
            f'sample={sample} is of the simulator, and the engine is "{engine}": a GPU runs all '
            'blocks; give engine="sim"'
        )
    if not trace:
        raise ProblemError(
            f"sample={sample} with trace=False would count nothing: leave one of them out"
        )
    return sample


def _stamp(files: tuple[Path, ...] | None) -> tuple[object, ...]:
    """The files with their times and sizes: differs after an edit."""
    if files is None:  # pinned
        return (None,)
    stats = []
    for path in files:
        try:
            stat = path.stat()
        except FileNotFoundError:
            stats.append(None)
            continue
        stats.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return (files, *stats)


def _rebuild(
    stem: str,
    path: Path | None,
    text: str | None,
    options: Mapping[str, object],
    pinned: builds.Build | None = None,
) -> Kernel:
    kernel = Kernel(stem, path=path, text=text, **options)
    if pinned is not None:
        kernel._built, kernel._seen = pinned, (None,)
    return kernel
