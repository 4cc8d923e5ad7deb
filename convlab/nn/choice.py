"""Choose the kernel for a problem: by a rule that takes no time, or by measuring."""

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..core import arguments
from ..core.builds.cache import stamp
from ..core.errors import CatalogError, LaunchError, ProblemError
from ..core.kernel import catalog
from ..core.kernel.call import problem_of_call
from ..core.kernel.engine import engine_name
from ..core.kernel.kernel import Kernel, load
from ..core.kernel.libraries import Baseline, baseline
from ..core.machine import toolchain
from ..core.machine.device import describe
from ..core.problem.format import FLOAT32
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from ..core.timing.compare import compare
from ..core.timing.comparison import Comparison

# A problem in one class may also be computed in the classes before it.
CLASSES = ("fp32", "tf32")
# It runs fastest on the simulator: 5 times as long as plain loops; 01_direct takes 21 times.
SIMULATED = "03_smem_tile"
ALWAYS = f"on the simulator it is {SIMULATED} wherever it can, which runs quickest there"
# the time to measure one candidate
_SECONDS = 1.0


def best(
    problem: Problem | str, precision: str = "fp32", *, engine: str = "auto", measured: bool = False
) -> Kernel | Baseline:
    """Return what to compute a problem with: a kernel of the catalog, or torch's convolution.

    The rule takes no time. A kernel's header says by a line ``best:`` when it is the one to take; of
    several that do, those of the class that was asked for go first, and of them the last by name,
    as the ladder climbs. Where none does it is the library's turn: cuDNN in that class, by the
    algorithm that it finds best in its first call. What was measured here goes before the rule.

    The shipped lines rest on medians against cuDNN 9.19 in the class asked for (NCHW, L2 cold) on
    one GPU, of sm_90 and 132 SMs; README has its tables. What nobody measured is left to the
    library, as is what it does faster: in TF32, 1x1 filters and images of 14x14. Other GPUs were
    not measured at all: there, ask for ``measured=True``.

    On the simulator, where no time means anything, it is the kernel that is simulated quickest.

    Parameters
    ----------
    problem : a Problem, or the name or the spec of one; float32, NCHW.
    precision : "fp32", or "tf32", which allows both classes: the bound of the result's error.
    engine : where it will run: "cuda", "sim" or "auto", as `load` takes it.
    measured : check all that the rule chooses from and that can do this problem, and the library,
        time them side by side, and take the fastest that is correct. Some seconds on a GPU; the
        choice is kept in the cache folder for this GPU, torch, cuDNN, driver, problem, class and
        the kernels as they are now: an edited one is measured again.

    Returns
    -------
    Kernel or Baseline : called like ``torch.nn.functional.conv2d``, with gradients.

    Raises
    ------
    ProblemError
        No such problem, class or engine; `measured` on the simulator.
    BuildError
        There is no GPU for the engine "cuda".
    LaunchError
        `measured`: memory is short for the problem, or nothing ran.

    Warns
    -----
    UserWarning
        No kernel can do it, and torch's convolution is returned; or a kernel's header cannot be
        read, or a kernel that was to be measured is wrong, and it is left out.
    """
    problem = named_problem(problem)
    arguments.choice(precision, "precision class", CLASSES)
    simulated = engine_name(engine) == "sim"
    if arguments.flag(measured, "measured") and simulated:
        raise ProblemError("measured=True takes times on a GPU, not on the simulator: leave it out")
    library = baseline("torch:cpu" if simulated else f"cudnn:{precision}")
    if not simulated and toolchain.cuda() is None:
        return _only(library, problem, "there is no nvcc (`python -m convlab doctor` tells more)")
    able = [
        kernel
        for kernel in candidates(precision, "sim" if simulated else "cuda")
        if kernel.unsupported(problem) is None
    ]
    if not able:
        return _only(library, problem, f"none in the catalog does it in {precision}")
    if simulated:
        if engine_name(engine) != engine:  # nobody asked for the simulator
            warnings.warn(f"there is no GPU: {ALWAYS}; the rule is for GPUs", stacklevel=2)
        return next((kernel for kernel in able if kernel.name == SIMULATED), able[0])
    rivals = [kernel for kernel in able if kernel.header.best is not None]
    record = _record(rivals, problem, precision)
    name = None
    known = {each.name: each for each in (*rivals, library)}
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # none, or unreadable
        name = str(json.loads(record.read_text())["choice"])
    if name not in known and measured:
        name = _measured(rivals, library, problem, record)
    return known.get(name) or ruled(able, problem, precision, able[0].target) or library


def candidates(precision: str, engine: str) -> list[Kernel]:
    """Return the catalog's kernels for float32 in NCHW of a class, by class and name."""
    kernels = []
    allowed = CLASSES[: CLASSES.index(precision) + 1]
    for kernel in (load(path, engine=engine) for path in catalog.catalog()):
        try:
            if kernel.format == FLOAT32 and kernel.precision in allowed:
                kernels.append(kernel)
        except CatalogError as error:
            warnings.warn(f"{kernel.name} is left out: {error}", stacklevel=3)
    return sorted(kernels, key=lambda kernel: CLASSES.index(kernel.precision))


def ruled(
    kernels: Sequence[Kernel], problem: Problem, precision: str, target: tuple[int, int]
) -> Kernel | None:
    """Return the last kernel that is best by its header, or None.

    `target` is the GPU's compute capability, and the shared memory of a block in bytes.
    """
    taking = [k for k in kernels if k.header.is_best(problem, *target, precision)]
    return taking[-1] if taking else None


def _only(library: Baseline, problem: Problem, why: str) -> Baseline:
    text = f"no kernel computes {problem.label}: {why}; torch's own convolution does"
    warnings.warn(f"{text} ({library.name})", stacklevel=3)
    return library


# ---- what was measured -------------------------------------------------------------------------


def _record(rivals: Sequence[Kernel], problem: Problem, precision: str) -> Path:
    """Return the file of a measured choice; its name is a hash of all that decides the choice."""
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
        if row.correct is False:  # None: it does not support the problem
            warnings.warn(f"{row.kernel} is left out: {row.note}", stacklevel=3)
    name = fastest(comparison)
    if name is None:
        raise LaunchError(f"nothing ran on {problem.label}: " + "; ".join(comparison.failures))
    record.parent.mkdir(exist_ok=True)
    # An incomplete file is no choice: it is not read as JSON.
    record.write_text(json.dumps({"choice": name, **comparison.to_dict()}))
    return name


def fastest(comparison: Comparison) -> str | None:
    """Return the name of the fastest correct one; the time to prepare a filter counts."""
    frame = comparison.frame
    rows = frame[[correct is True for correct in frame["correct"]]]
    cost = rows["time_ms"]
    if "with_prepare_ms" in rows:
        cost = rows["with_prepare_ms"].fillna(cost)
    return rows["kernel"][cost.idxmin()] if cost.notna().any() else None


# ---- in a model --------------------------------------------------------------------------------


class Auto:
    """The kernel of ``kernel="auto"``: `best` for the shape of each input.

    The class is the named one ("auto:fp32"), else that of torch's own convolutions, which
    ``torch.backends.cudnn.allow_tf32`` sets. A choice holds until a file in the kernels' folders
    changes, or another choice is measured.
    """

    def __init__(self, engine: str, precision: str = "") -> None:
        self._engine = engine
        self._precision = precision
        self._files = []
        self._seen = None
        self._chosen: dict[tuple, Kernel | Baseline] = {}

    def __call__(
        self, x: Tensor, w: Tensor, bias: Tensor | None, *numbers: object, relu: bool = False
    ) -> Tensor:
        _, problem = problem_of_call(x, w, bias, (*numbers, relu))
        return self.choice(problem)(x, w, bias, *numbers, relu)

    def choice(self, problem: Problem) -> Kernel | Baseline:
        """Return what computes a problem now."""
        places = os.getcwd(), os.environ.get(catalog.ENVIRONMENT)
        if self._seen != (*places, *stamp(self._files)):
            folders = [*catalog.folders(), toolchain.cache_dir() / "best"]
            self._files = [*folders, *(path for each in folders for path in each.glob("*.cu*"))]
            self._seen = (*places, *stamp(self._files))
            self._chosen = {}
        torchs = "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "fp32"
        precision = self._precision or torchs
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        key = problem, precision, gpu
        if key not in self._chosen:
            self._chosen[key] = best(problem, precision, engine=self._engine)
        return self._chosen[key]


AUTOS = ("auto", *(f"auto:{name}" for name in CLASSES))
