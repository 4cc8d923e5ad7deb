"""Choose the kernel for a problem: by a rule that takes no time, or by measurement."""

import contextlib
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..core import arguments
from ..core.builds.cache import stamp
from ..core.defaults import BASELINES
from ..core.errors import CatalogError, LaunchError, ProblemError
from ..core.kernel import catalog
from ..core.kernel.call import problem_of_call
from ..core.kernel.engine import engine_name
from ..core.kernel.kernel import Kernel, load
from ..core.kernel.libraries import Baseline, baseline
from ..core.machine import toolchain
from ..core.machine.device import GPUS, Gpu, describe, find_gpu
from ..core.problem.format import FLOAT32, Format
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from ..core.timing.compare import compare
from ..core.timing.comparison import Comparison

# A problem in one class may also be computed in the classes before it.
CLASSES = ("fp32", "tf32")
# The kernel that the simulator runs fastest: it takes 5 times as long as plain loops, and 01_direct
# takes 21 times as long.
SIMULATED = "03_smem_tile"
ALWAYS = (
    f"on the simulator the choice is {SIMULATED}, which runs fastest there, if it supports the "
    f'problem; gpu="{[*GPUS][-1]}" gives the choice for that GPU'
)
# The most seconds to measure one candidate.
_SECONDS = 1.0
# The seconds between two looks at the kernels' files in a model.
_LOOK_SECONDS = 0.1


def best(
    problem: Problem | str,
    precision: str = "fp32",
    *,
    engine: str = "auto",
    measured: bool = False,
    gpu: Gpu | str | None = None,
) -> Kernel | Baseline:
    """Return what to compute a problem with: a kernel of the catalog, or torch's convolution.

    The rule takes no time. A header's ``best:`` line says for which problems a kernel is the best
    one. If several are, kernels of the class that you ask for come first, and of these the last by
    name is taken. If none is, the library is taken: cuDNN in that class, with the algorithm that
    cuDNN's first call finds fastest. A choice that was measured here comes before the rule.

    The shipped lines rest on medians against cuDNN 9.19 in the class asked for (NCHW, L2 cold) on
    one GPU of sm_90 with 132 SMs; README has its tables. The library is taken for what was not
    measured, and where it is faster: in TF32, 1x1 filters and images of 14x14. On other GPUs nothing
    was measured: use ``measured=True`` there.

    On the simulator, which measures no time, the choice is the kernel that it runs fastest.

    Parameters
    ----------
    problem : a Problem, or the name or the spec of one; float32, NCHW. For a gradient
        ("backward.wide_weight") the kernels that compute it are compared; layers ask for these in the
        backward pass on a GPU.
    precision : "fp32", or "tf32", which allows both classes: the bound of the result's error.
    engine : where it will run: "cuda", "sim" or "auto", as for `load`.
    measured : check the library and all kernels that have a ``best:`` line and support the problem,
        time them side by side, and take the fastest correct one. This takes some seconds on a GPU.
        The choice is kept in the cache folder for this GPU, torch, cuDNN, driver, problem, class and
        the kernels' sources; an edited kernel is measured again.
    gpu : answer by the rule for this GPU, by name: one of `machine.device.GPUS`. You need no GPU for
        this. The result is the choice for that GPU, and a call of it runs where `engine` says.
        The rule is the kernel's `header.best`.

    Returns
    -------
    Kernel or Baseline : called like ``torch.nn.functional.conv2d``, with gradients.

    Raises
    ------
    ProblemError
        There is no such problem, class, engine or GPU; `measured` on the simulator or with `gpu`.
    BuildError
        There is no GPU for the engine "cuda".
    LaunchError
        `measured`: memory is short for the problem, or nothing ran.

    Warns
    -----
    UserWarning
        No kernel supports the problem, and torch's convolution is returned. Or a kernel is left out:
        its header cannot be read, or it was to be measured and is incorrect.

    Examples
    --------
    >>> convlab.best("square", "tf32", gpu="H200").name
    '11b_wgmma_rows'
    """
    problem = named_problem(problem)
    arguments.choice(precision, "precision class", CLASSES)
    if gpu is not None:
        gpu = find_gpu(gpu)
        if arguments.flag(measured, "measured"):
            raise ProblemError("measured=True times on the GPU of this machine: leave out gpu=")
        return _best_on(gpu, problem, precision, engine)
    simulated = engine_name(engine) == "sim"
    if arguments.flag(measured, "measured") and simulated:
        raise ProblemError("measured=True needs a GPU, and this is the simulator: leave it out")
    library = baseline("torch:cpu" if simulated else f"cudnn:{precision}")
    if not simulated and toolchain.cuda() is None:
        return _only(library, problem, "there is no nvcc (`python -m convlab doctor` says more)")
    able = [
        kernel
        for kernel in candidates(precision, "sim" if simulated else "cuda")
        if kernel.unsupported(problem) is None
    ]
    if not able:
        return _only(library, problem, f"none in the catalog supports it in {precision}")
    if simulated:
        # With engine="sim" the simulator's choice is what the user asked for.
        if engine_name(engine) != engine:
            warnings.warn(f"there is no GPU: {ALWAYS}", stacklevel=2)
        return next((kernel for kernel in able if kernel.name == SIMULATED), able[0])
    rivals = [kernel for kernel in able if kernel.header.best is not None]
    record = _record(rivals, problem, precision)
    name = None
    known = {each.name: each for each in (*rivals, library)}
    # The record may not exist, or may be unreadable.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        if toolchain.is_yours(record.parent) and toolchain.is_yours(record):
            name = str(json.loads(record.read_text())["choice"])
    if name not in known and measured:
        name = _measured(rivals, library, problem, record)
    return known.get(name) or ruled(able, problem, precision, able[0].target) or library


def _best_on(gpu: Gpu, problem: Problem, precision: str, engine: str) -> Kernel | Baseline:
    """Return the choice of the rule for a GPU that need not be here."""
    target = gpu.sm, gpu.limits.shared_optin_bytes
    chosen = ruled(candidates(precision, engine_name(engine)), problem, precision, target)
    if chosen is not None:
        return chosen
    name = f"cudnn:{precision}"
    title, *_ = BASELINES[name]
    # Without a GPU torch computes this baseline on the CPU.
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Baseline(name, title, precision, "cuda" if device.type == "cuda" else "torch", device)


def candidates(precision: str, engine: str) -> list[Kernel]:
    """Return the catalog's kernels for float32 in NCHW and a class, sorted by class and name.

    For the classes "bf16" and "fp16" they are those with x, w and y of that dtype, in NCHW.
    """
    kernels = []
    allowed = (precision,)
    if precision in CLASSES:
        allowed = CLASSES[: CLASSES.index(precision) + 1]
    for kernel in (load(path, engine=engine) for path in catalog.catalog()):
        try:
            if kernel.precision in allowed and _is_plain_format(kernel.format, precision):
                kernels.append(kernel)
        except CatalogError as error:
            warnings.warn(f"{kernel.name} is left out: {error}", stacklevel=3)
    return sorted(kernels, key=lambda kernel: allowed.index(kernel.precision))


def _is_plain_format(format: Format, precision: str) -> bool:
    """Return whether tensors are in torch's order, and of the dtype of a class."""
    if precision in CLASSES:
        return format == FLOAT32
    dtype = {"bf16": "bf16", "fp16": "f16"}[precision]
    return all(
        storage.dtype == dtype and storage.order == plain.order
        for (name, storage), (_, plain) in zip(format, FLOAT32, strict=True)
        if name != "bias"
    )


def ruled(
    kernels: Sequence[Kernel], problem: Problem, precision: str, target: tuple[int, int]
) -> Kernel | None:
    """Return the last kernel whose header says that it is best, or None.

    `target` is the GPU's compute capability, and the shared memory of a block in bytes.
    """
    taking = [k for k in kernels if k.header.is_best(problem, *target, precision)]
    return taking[-1] if taking else None


def rule_of(chosen: Kernel | Baseline) -> str:
    """Return the rule by which `best` takes a kernel or a library for a GPU, in one line."""
    if isinstance(chosen, Kernel):
        return f"{chosen.name}: its header says `best: {', '.join(chosen.header.best or ())}`"
    return f"{chosen.name}: no header's `best:` line holds, so the library is taken"


def _only(library: Baseline, problem: Problem, why: str) -> Baseline:
    text = f"no kernel for {problem.label}: {why}; the choice is torch's convolution"
    warnings.warn(f"{text} ({library.name})", stacklevel=3)
    return library


# ---- what was measured -------------------------------------------------------------------------


def _record(rivals: Sequence[Kernel], problem: Problem, precision: str) -> Path:
    """Return the file of a measured choice; its name is a hash of everything the choice depends on."""
    cudnn = torch.backends.cudnn.version()
    digest = hashlib.sha256(f"{describe()} cuDNN {cudnn} {problem} {precision}".encode())
    for kernel in rivals:
        for text in (kernel.name, *kernel.texts.values()):
            digest.update(b"\0" + text.encode(errors="surrogateescape"))
    return toolchain.cache_dir() / "best" / f"{digest.hexdigest()[:32]}.json"


def _measured(rivals: Sequence[Kernel], library: Baseline, problem: Problem, record: Path) -> str:
    """Measure the kernels and the library; store and return the name of the fastest correct one."""
    comparison = compare(
        rivals, problem, baselines=[library], scale=None, limit_seconds=_SECONDS, progress=False
    )
    for row in comparison.frame.itertuples():
        # None means that the kernel does not support the problem.
        if row.correct is False:
            warnings.warn(f"{row.kernel} is left out: {row.note}", stacklevel=3)
    name = fastest(comparison)
    if name is None:
        raise LaunchError(f"nothing ran on {problem.label}: " + "; ".join(comparison.failures))
    record.parent.mkdir(mode=0o700, exist_ok=True)
    # An incomplete file cannot be read as JSON, and is ignored.
    record.write_text(json.dumps({"choice": name, **comparison.to_dict()}))
    return name


def fastest(comparison: Comparison) -> str | None:
    """Return the name of the fastest correct kernel, including the time to prepare its filter."""
    frame = comparison.frame
    rows = frame[[correct is True for correct in frame["correct"]]]
    cost = rows["time_ms"]
    if "with_prepare_ms" in rows:
        cost = rows["with_prepare_ms"].fillna(cost)
    return rows["kernel"][cost.idxmin()] if cost.notna().any() else None


# ---- in a model --------------------------------------------------------------------------------


class Auto:
    """The kernel of ``kernel="auto"``: `best` for the shape of each input.

    The class is in the name ("auto:fp32"), else it is the class of torch's convolutions, which
    ``torch.backends.cudnn.allow_tf32`` sets. A choice holds until a file in the kernels' folders
    changes, or another choice is measured. Changes are looked for ten times a second at most, because a
    model asks for each of its layers. With `gpu` it is the choice of the rule for that GPU.
    """

    def __init__(self, engine: str, precision: str = "", gpu: Gpu | str | None = None) -> None:
        self._gpu = gpu
        self._engine = engine
        self._precision = precision
        self._files = []
        self._seen = None
        # When the files were looked at last, in seconds of the monotonic clock.
        self._looked = -math.inf
        self._chosen: dict[tuple, Kernel | Baseline] = {}
        # How often the choices were forgotten.
        self._changes = 0

    def __call__(
        self, x: Tensor, w: Tensor, bias: Tensor | None, *numbers: object, relu: bool = False
    ) -> Tensor:
        _, problem = problem_of_call(x, w, bias, (*numbers, relu))
        return self.choice(problem)(x, w, bias, *numbers, relu)

    @property
    def precision(self) -> str:
        """The class of the choices: that of the name, or of torch's convolutions."""
        if self._precision:
            return self._precision
        return "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "fp32"

    def state(self) -> tuple[int, str]:
        """Return what the choice for a problem and a GPU depends on; look for changes of files."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._forget_if_changed()
            self._looked = now
        return self._changes, self.precision

    def choice(self, problem: Problem) -> Kernel | Baseline:
        """Return the kernel, or the library, that computes a problem now."""
        _, precision = self.state()
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        key = problem, precision, gpu
        if key not in self._chosen:
            chosen = best(problem, precision, engine=self._engine, gpu=self._gpu)
            # Later calls rely on the look at the files above.
            if isinstance(chosen, Kernel):
                chosen.forget_build()
            self._chosen[key] = chosen
        return self._chosen[key]

    def _forget_if_changed(self) -> None:
        """Drop the choices if a file, the working folder or the kernels' folders changed."""
        places = os.getcwd(), os.environ.get(catalog.ENVIRONMENT)
        if self._seen == (*places, *stamp(self._files)):
            return
        folders = [*catalog.folders(), toolchain.cache_dir() / "best"]
        self._files = [*folders, *(path for each in folders for path in each.glob("*.cu*"))]
        self._seen = (*places, *stamp(self._files))
        self._chosen = {}
        self._changes += 1


AUTOS = ("auto", *(f"auto:{name}" for name in CLASSES))
