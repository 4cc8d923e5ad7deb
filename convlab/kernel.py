"""A kernel file, called like ``torch.nn.functional.conv2d``.

`load` and `compile` give a `Kernel`. It validates, makes contiguous, allocates through torch,
launches on torch's current stream, and reports the launch's error. A kernel loaded from a file
is built again by the next call after the file, or a header it includes, was changed.
"""

import contextlib
import ctypes
import hashlib
import io
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from . import build as builds
from . import catalog, sim, toolchain
from .errors import BuildError, LaunchError, ProblemError, UnsupportedError
from .excerpt import Excerpt, excerpt
from .problem import Problem, same_padding

ENGINES = ("auto", "cuda", "sim")
WORKSPACE_LIMIT = 1 << 30  # bytes
TRIAL_SECONDS = 20.0  # that a kernel's first call on a GPU may take, in the worker process
# The integers of ConvProblem (kernels/convlab.cuh), in its order.
_FIELDS = "N C H W K R S P Q stride_h stride_w pad_h pad_w dilation_h dilation_w groups".split()
_TUNABLE = re.compile(r"^[ \t]*#[ \t]*ifndef[ \t]+(\w+)", re.M)
Pair = int | tuple[int, int]
Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]

# What ran to its end in the worker: (library, problem, workspace limit, alignments).
_tried: set[tuple[object, ...]] = set()


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


class Launch:
    """One kernel bound to one problem's tensors; calling it runs the kernel again.

    On the simulator each call takes another order of threads and blocks, the first the plain one:
    what changes from call to call is a race.

    Attributes
    ----------
    y : tensor (N, K, P, Q), float32, contiguous: the output, allocated but not written before
        the first call.
    inputs : x, w and bias (or None) as the kernel sees them.
    workspace : uint8 tensor or None.
    counters : dict or None
        What the simulator counted in the last call (`convlab.sim.Trace`); None on a GPU.
    findings : list of `convlab.sim.Finding`
        What the simulator found in the last call: warnings, or what it failed by.
    launches : list of dict
        ``kernel``, ``grid``, ``block``, ``shared_bytes`` of each launch of the last call.
    sampling : dict or None
        Of a kernel loaded with ``sample=``: ``blocks`` of the last call's launches, how many of
        them were ``sampled``, and ``errors``: of each counter the relative standard error
        sqrt((1 - n/N) / n * (s^2 / m^2 + 1 / n)), for n of N blocks with the mean m and the
        variance s^2 between them (W. G. Cochran, Sampling Techniques, 1977, section 2.5); 1 / n
        stands for the blocks unlike all others that a sample can miss, as at a border. The
        operations in `flops` are scaled too; their error is not told.
    """

    def __init__(
        self,
        kernel: "Kernel",
        problem: Problem,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None,
        allocate: Allocate,
    ) -> None:
        self.kernel, self.problem = kernel, problem
        self.workspace: torch.Tensor | None = None
        self.counters: dict[str, float] | None = None
        self.findings: list[sim.Finding] = []
        self.launches: list[dict[str, object]] = []
        self.sampling: dict[str, object] | None = None
        self._trace: sim.Trace | None = None
        self._joined: list[tuple[int, int]] = []
        self._build = kernel.build()
        self._runs = 0
        if kernel.engine == "sim":
            self._prepare_sim(x, w, bias)
        else:
            self._prepare_cuda(x, w, bias, allocate)

    def __call__(self) -> None:
        """Run the kernel: on a GPU asynchronously, on torch's current stream."""
        if self.problem.N == 0:
            return
        if self.kernel.engine == "sim":
            self._simulate()
            return
        with torch.cuda.device(self.y.device):
            stream = torch.cuda.current_stream().cuda_stream
            refused = self._entry(*self._arguments, stream)
            error = refused or self._last_error()
            if refused:
                self._last_error()  # else the next kernel would be blamed for it
        if error:
            raise LaunchError(f"{self.kernel.name} failed: {error.decode(errors='replace')}")

    @property
    def lines(self) -> list[dict[str, object]]:
        """The memory traffic of the last call by source line, space and kind of access.

        Each has ``file``, ``line``, ``space`` ("global", "shared"), ``kind`` ("load", "store",
        "atomic"), ``array`` (its name, or "several"), ``requests`` (of warps), ``units`` (32-byte
        sectors, or wavefronts of shared memory), ``ideal_units`` (the least that the same bytes
        could have taken), ``lanes`` (active, summed over requests) and ``bytes`` (asked for by
        them). Empty on a GPU.
        """
        return self._trace.lines if self._trace else []

    @property
    def flops(self) -> float | None:
        """The floating-point operations that the last call executed, counted from its machine code.

        Additions, subtractions and products are one each, a fused multiply-add two; so are, with
        one, quotients and square roots, of which a GPU makes several. Comparisons, minima,
        conversions, atomics and the C library's functions (``expf``) are not counted. cuBLAS's
        products count as 2mnk, which is also ``counters["library_flops"]``. None on a GPU, with
        ``trace=False``, and where there is no ``objdump`` (of binutils).
        """
        return self._trace.flops if self._trace else None

    def as_compiled(self, widths: Mapping[tuple[int, str, str], int]) -> None:
        """Run again in the plain order, with some accesses counted as nvcc joined them.

        Parameters
        ----------
        widths : bytes of one machine access by (line, space, kind), as in `lines`: successive
            accesses there to neighbouring addresses count as one of up to so many bytes. See
            `convlab.explain.merging`.

        Raises
        ------
        ProblemError
            On a GPU, or before the first call: the instructions of a line are not known yet.
        """
        if self._trace is None:
            raise ProblemError("call this launch on the simulator first, then count as compiled")
        self._joined = [
            (offset, size)
            for place, size in widths.items()
            for offset in self._trace.offsets_of(*place)
        ]
        self._runs = 0
        self._simulate()

    @property
    def executed(self) -> dict[int, int]:
        """How often threads came to a line, for lines that begin a basic block; {} on a GPU."""
        return self._trace.executed if self._trace else {}

    def _simulate(self) -> None:
        self.counters = self._trace = self.sampling = None
        self.launches = []
        schedule, self._runs = self._runs, self._runs + 1  # each run takes another order
        try:
            self._trace = sim.simulate(
                self._build.library,
                builds.sim_runtime(),
                self._dims,
                self._arena,
                label=self.kernel.name,
                source=self.kernel.path or self.kernel.source,
                workspace_limit=self.kernel.workspace_limit,
                trace=self.kernel.trace,
                time_limit=self.kernel.time_limit,
                schedule=schedule,
                joined=self._joined,
                sample=self.kernel.sample and (self.kernel.sample, 0),
            )
        except LaunchError as error:
            self.findings = error.findings
            raise
        self.findings, self.launches = self._trace.findings, self._trace.launches
        self.counters, self.sampling = self._trace.counters, self._trace.sampling

    @property
    def _dims(self) -> list[int]:
        return self.kernel.integers(self.problem)

    def _prepare_sim(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> None:
        given = {"x": x, "w": w} | ({} if bias is None else {"bias": bias})
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
        sampled = self.kernel.sample is not None
        self._arena = sim.Arena(shapes | {"y": self.problem.y_shape}, ["y"] if sampled else [])
        for name, tensor in given.items():
            self._arena.tensors[name].copy_(tensor)
        self.inputs = tuple(self._arena.tensors.get(name) for name in ("x", "w", "bias"))
        self.y = self._arena.tensors["y"]
        if not sampled:  # else most of its pages are never touched, and it may exceed the memory
            self.y.fill_(math.nan)

    def _prepare_cuda(
        self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, allocate: Allocate
    ) -> None:
        library = ctypes.CDLL(str(self._build.library))
        dims = (ctypes.c_int * len(_FIELDS))(*self._dims)
        limit, need = self.kernel.workspace_limit, 0
        with torch.cuda.device(x.device):
            if hasattr(library, "conv2d_workspace"):
                library.conv2d_workspace.restype = ctypes.c_size_t
                need = library.conv2d_workspace(dims, ctypes.c_size_t(limit))
        if need > limit:
            raise LaunchError(
                f"{self.kernel.name} needs {need:,} bytes of workspace for this problem, more "
                f"than the limit of {limit:,}: load(..., workspace_limit={need})"
            )
        try:
            self.y = allocate(self.problem.y_shape, torch.float32, x.device)
            if need:
                self.workspace = allocate((need,), torch.uint8, x.device)
        except torch.OutOfMemoryError as error:
            free = torch.cuda.mem_get_info(x.device)[0]
            raise LaunchError(
                f"not enough GPU memory: y needs {4 * math.prod(self.problem.y_shape) / 2**30:.2f} "
                f"GiB and {self.kernel.name}'s workspace {need / 2**30:.2f} GiB, "
                f"{free / 2**30:.2f} GiB are free; try load(..., workspace_limit=...) with less "
                f"than {limit / 2**30:.2f} GiB, or Problem.scaled",
                kind="out of memory",
            ) from error
        self.inputs = (x, w, bias)  # keeps the memory behind the pointers
        pointers = [ctypes.c_void_p(t.data_ptr() if t is not None else None)
                    for t in (x, w, bias, self.y, self.workspace)]  # fmt: skip
        self._arguments = (dims, *pointers, ctypes.c_size_t(need))
        self._entry = library.conv2d
        self._entry.restype = ctypes.c_char_p
        self._entry.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_size_t, ctypes.c_void_p]
        self._last_error = library.convlab_launch_error
        self._last_error.restype = ctypes.c_char_p


class Kernel:
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

    def integers(self, problem: Problem) -> list[int]:
        """The members of ConvProblem (``kernels/convlab.cuh``) in their order."""
        values = problem.variables()
        return [values[field] for field in _FIELDS]

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
        allocate: Allocate = _empty,
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
        return Launch(self, problem, x.contiguous(), w.contiguous(), bias, allocate)

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
        tensors = [t for t in (x, w, bias) if isinstance(t, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            from .nn import conv2d  # stands after this module; only gradients need it

            # so that bad arguments get the same answers with gradients as without
            self._problem(x, w, bias, stride, padding, dilation, groups)
            return conv2d(x, w, bias, stride, padding, dilation, groups, kernel=self)
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
        if padding == "same":
            x, padding = _pad_same(x, w, stride, dilation)
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


def _pad_same(
    x: torch.Tensor, w: torch.Tensor, stride: Pair, dilation: Pair
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Pad as torch's "same" does; what is odd of it goes to the bottom and right, by hand."""
    options = Problem(1, 1, 1, 1, 1, 1, 1, stride, 0, dilation)  # checks them and makes them pairs
    if options.stride != (1, 1):
        raise ProblemError(f'padding="same" needs stride 1, and the stride is {stride}')
    if x.dim() != 4 or w.dim() != 4:
        return x, (0, 0)  # Problem.from_shapes says what is wrong
    (top, bottom), (left, right) = (
        same_padding(size, d) for size, d in zip(w.shape[2:], options.dilation, strict=True)
    )
    extra = (0, right - left, 0, bottom - top)
    return (torch.nn.functional.pad(x, extra) if any(extra) else x), (top, left)


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
