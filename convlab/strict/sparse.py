"""Define a setting for offsets over 2^31: a tensor with more elements than an int can count.

In some problems few outputs read few elements of a large x, and the kernel runs as a whole. In the
others, and in all problems of gradients, y or w is large too, and a sample of the blocks runs: twice,
because the first run shows which elements of the inputs they read. The setting works only on the
simulator, where memory that is never accessed takes no space.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.builds.build import uses_cublas
from ..core.correctness import reference
from ..core.correctness.examine import compared_once, reported
from ..core.correctness.output import OutputComparison
from ..core.correctness.reference import Reference
from ..core.correctness.report import Report
from ..core.correctness.setting import Setting
from ..core.errors import LaunchError, ProblemError
from ..core.finding import Finding
from ..core.kernel.runnable import Runnable
from ..core.machine.gpus import DEFAULT_GPU
from ..core.problem.computation import DATA_GRADIENT, WEIGHT_GRADIENT
from ..core.problem.format import Storage
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem

# The time limit of a run in seconds. A kernel that takes longer reads all of x: that is no error.
_SECONDS = 20.0
# For each problem the number of channels, and the height and width of the image.
_PLANES = ((3, 32800), (1, 46400))
# A filter of over 2^31 elements with one channel a group.
_FILTER_OF_GROUPS = "N1 C240000000 H3 W3 K240000000 R3 S3 g240000000"
# Problems whose blocks, or the outputs that they stored, are a sample. A kernel runs the first of each
# line that it supports. The lines are:
# - more images than a grid may have blocks in y or z;
# - over 2^32 outputs, so that half of the offsets exceed 2^31: a large plane, many channels, and many
#   groups;
# - a filter of two groups, of which each has between 2^31 and 2^32 elements: an int that holds the first offset
#   of the second group is negative; or a filter of one group, or of a group for each channel;
# - a problem on which a kernel may split the channels in parts. Each part has a few more than 2^29
#   outputs, so that the bytes of 2, 4 or 8 parts in 32 bits are few.
_IN_PARTS = ("N2 C128 H648 W648 K640 R3 S3 p1", "N2 C256 H648 W648 K640 R1 S1")
_LARGE = (
    ("N70000 C8 H5 W4 K8 R3 S3 p1", "N70000 C8 H5 W4 K8 R1 S1", "N70000 C6 H5 W4 K6 R3 S3 p1 g6"),
    ("N1 C1 H65600 W65600 K1 R1 S1", "N1 C1 H65600 W65600 K1 R3 S3 p1"),
    ("N2 C2 H1024 W1024 K2200 R1 S1", "N2 C2 H1024 W1024 K2200 R3 S3 p1"),
    ("N2 C46400 H216 W216 K46400 R3 S3 p1 g46400",),
    (
        "N1 C16 H3 W3 K100000000 R3 S3 g2",
        "N1 C128 H1 W2 K100000000 R1 S1 g2",
        "N1 C8 H3 W3 K64000000 R3 S3",
        "N1 C64 H1 W2 K80000000 R1 S1",
        _FILTER_OF_GROUPS,
    ),
    _IN_PARTS,
)
# Just over 2^24 outputs, whose number no float holds: 2^24 + 2^13 + 1. A number of blocks that is computed as a
# float is too small. Does the last block store the last output? If not, the kernel runs as a whole, without
# hooks.
_NO_FLOAT = (("N1 C1 H4097 W4097 K1 R1 S1", "N1 C1 H4097 W4097 K1 R3 S3 p1"),)
_WHOLE_SECONDS = 60.0
# The same for a data gradient: a dx and a dy of over 2^32 elements, by a large plane, by many channels of dx, of
# dy, and by many groups; and a filter of over 2^31 elements. The set "limits" has many images.
_LARGE_DATA = (
    _LARGE[1],
    ("N2 C2200 H1024 W1024 K2 R1 S1", "N2 C2200 H1024 W1024 K2 R3 S3 p1"),
    ("N2 C2 H1024 W1024 K2200 R1 S1", "N2 C2 H1024 W1024 K2200 R3 S3 p1"),
    _LARGE[3],
    (
        "N1 C100000000 H1 W2 K128 R1 S1 g2",
        "N1 C100000000 H3 W3 K16 R3 S3 g2",
        "N1 C80000000 H1 W2 K64 R1 S1",
        "N1 C64000000 H3 W3 K8 R3 S3",
        _FILTER_OF_GROUPS,
    ),
)
# The same for a weight gradient, whose sums are long, so that images are small: an x and a dy of over 2^32
# elements, half of which are of the second image; many groups; a dw of over 2^32 elements in two groups, or of
# over 2^31 elements.
_LARGE_WEIGHT = (
    ("N2 C80000 H170 W170 K8 R1 S1", "N2 C80000 H170 W170 K8 R3 S3 p1"),
    ("N2 C8 H170 W170 K80000 R1 S1", "N2 C8 H170 W170 K80000 R3 S3 p1"),
    ("N2 C46400 H216 W216 K46400 R3 S3 p1 g46400",),
    (
        "N1 C92800 H1 W2 K92800 R1 S1 g2",
        "N1 C31200 H3 W3 K31200 R3 S3 p1 g2",
        "N1 C46400 H1 W2 K46400 R1 S1",
        "N1 C15600 H3 W3 K15600 R3 S3 p1",
        _FILTER_OF_GROUPS,
    ),
)
_OF_GRADIENTS = {DATA_GRADIENT.name: _LARGE_DATA, WEIGHT_GRADIENT.name: _LARGE_WEIGHT}
# So many products of the reference are computed at most.
_MOST_PRODUCTS = 1 << 27
# How many blocks of each launch run, and for how many seconds at most. Rungs take less than a fifth of that on an
# idle machine, so that the outcome does not depend on its load.
BLOCKS = 12
_BLOCKS_SECONDS = 20.0
# Of `_NO_FLOAT` more blocks run: a wrong quotient occurs at the ends of some image rows only.
MANY_BLOCKS = 512
# After so many accesses only two blocks of a launch run, and of later launches only some.
BLOCKS_ACCESSES = 3_000_000
# A persistent kernel starts as many blocks as the GPU holds: with so many SMs, a block for each tile.
WIDE = dataclasses.replace(DEFAULT_GPU, name="a GPU of a million SMs", sms=1 << 20)
# In the first of the two runs, a kernel has so many bytes of workspace if that is enough: an image of
# the second line of `_LARGE` as columns, but not two.
_LITTLE_WORKSPACE = 12_000_000
# So many calls of cuBLAS take long.
_MANY_CALLS = 1000
# At most this many elements of a block's range are filled, or compared.
_RANGE = 1 << 20
# A larger tensor is filled only where the kernel accesses it.
_MANY = 1 << 24
# The most blocks of a grid in y and in z.
_MOST_BLOCKS = 65_535
# The value of an element of y before the run. No sum here has it.
NOT_STORED = -12345.0
# If a kernel may leave out some outputs, this many are looked at, on a problem whose sums are no longer than this.
_SPOTS = 1000
_SHORT = 16
# An unsigned int counts so many elements. If more than this share of y is past that, some block of many writes there.
_WORD = 1 << 32
_LEAST_PAST = 0.03
# At most this many outputs are compared.
_COMPARED = 20_000
# Errors of a run that say nothing about the kernel here: it takes long, or needs more workspace or memory than
# there is. The others have no kind, or name what the simulator lacks.
_OF_ITS_LIMITS = ("endless loop", "out of time", "too little workspace", "memory")
OF_THE_RUN = ("", "not simulated", *_OF_ITS_LIMITS)


@dataclass(frozen=True)
class Sparse(Setting):
    """Run a problem that reads few elements of an x with more elements than an int can count."""

    name: str = "sparse"
    words: str = "with a tensor of over 2^31 elements, accessing few of them"
    fits_any: bool = True

    def examine(self, kernel: Runnable, problem: Problem, seed: int) -> Report:
        """Check a kernel on the simulator; it writes all of y and reads all of the filter.

        Raises
        ------
        ProblemError
            The setting does not have this problem.
        LaunchError
            The run failed. An error without a kind is not the kernel's fault: the kernel reads all
            of x, or needs more workspace.
        """
        supported = sparse_problems(kernel)
        if problem not in supported:
            offer = " or ".join(map(str, supported)) or "none that this kernel supports"
            raise ProblemError(
                f'setting="sparse" does not take this problem, it has its own problems: {offer}'
            )
        if not (problem.computation.is_forward and _is_plane(problem)):
            return _examine_blocks(self, kernel, problem, seed)
        return _examine(self, kernel, problem, seed)


SPARSE = Sparse()


def sparse_problems(kernel: Runnable) -> list[Problem]:
    """Return the problems of `Sparse` that a kernel supports.

    There is at most one for each entry of `_PLANES`. In the first an int can count the elements of
    one channel of x, but not those of two. In the second it cannot count those of one.
    """
    if not kernel.counts or kernel.build() is None:
        return []
    if kernel.computes in _OF_GRADIENTS:
        problems = []
        for specs in _OF_GRADIENTS[kernel.computes]:
            fitting = (kernel.asked(named_problem(spec)) for spec in specs)
            problems += [problem for problem in fitting if not kernel.unsupported(problem)][:1]
        return problems
    problems = []
    for c, size in _PLANES:
        for taps, groups in ((3, 1), (1, 1), (3, c)):
            stride = size - taps
            spec = f"N2 C{c} H{size} W{size} K60 R{taps} S{taps} s{stride} g{groups}"
            problem = named_problem(spec)
            if not kernel.unsupported(problem):
                problems.append(problem)
                break
    for specs in (*_LARGE, *_NO_FLOAT):
        fitting = (named_problem(spec) for spec in specs)
        problems += [problem for problem in fitting if not kernel.unsupported(problem)][:1]
    return problems


@contextmanager
def _limits_say_nothing() -> Iterator[None]:
    """Take the kind from an error that means that the kernel takes long, or needs more workspace or memory."""
    try:
        yield
    except LaunchError as error:
        if error.kind in _OF_ITS_LIMITS:
            error.kind = ""
        raise


def _is_plane(problem: Problem) -> bool:
    """Return whether a problem is one of `_PLANES`, of which a kernel runs all blocks."""
    return (problem.C, problem.H) in _PLANES


def _examine(setting: Setting, kernel: Runnable, problem: Problem, seed: int) -> Report:
    """Return the report of a kernel on one of the problems."""
    from ..sim.launch import simulated
    from ..sim.simulation import Arena

    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = Arena(shapes, ["x"], format=kernel.format)
    x, w, y = (arena.tensors[name] for name in shapes)
    random = torch.Generator().manual_seed(seed)
    # Set only the rows and columns that are read. The problems have no padding and no dilation.
    rows, columns = (
        (torch.arange(outputs)[:, None] * stride + torch.arange(taps)).flatten()
        for outputs, stride, taps in zip(y.shape[2:], problem.stride, w.shape[2:], strict=True)
    )
    values = torch.randn(*x.shape[:2], len(rows), len(columns), generator=random)
    x[:, :, rows[:, None], columns] = values.to(x.dtype)
    w.normal_(generator=random).div_(math.sqrt(problem.gemm_k))
    y.fill_(math.nan)
    with _limits_say_nothing():
        simulated(kernel, problem, arena, time_limit=_SECONDS, forgives=True)
    bound = reference.tolerance(kernel.precision, problem.gemm_k)
    expected = Reference(problem, (x, w, None), seed)
    compared = OutputComparison(expected, y, bound, poisoned=False)
    return compared_once(kernel, problem, setting, compared)


def _examine_blocks(setting: Setting, kernel: Runnable, problem: Problem, seed: int) -> Report:
    """Return the report of a sample of a kernel's blocks, on a problem with a large y.

    Their bounds are checked, and the outputs that they stored are compared.
    """
    from ..sim.launch import simulated

    random = torch.Generator().manual_seed(seed)
    arena, large = arena_for(kernel, problem, random)
    names = problem.computation.names
    has_rows = any(problem in map(named_problem, specs) for specs in _NO_FLOAT)
    blocks = MANY_BLOCKS if has_rows else BLOCKS

    def run(kernel: Runnable) -> Any:
        return simulated(
            kernel,
            problem,
            arena,
            sample=(blocks, seed),
            watch=BLOCKS_ACCESSES,
            time_limit=_BLOCKS_SECONDS,
            gpu=WIDE,
            forgives=True,
        )

    try:
        with _limits_say_nothing():
            trace = _run_in_pieces(run, kernel, problem)
            for name in set(large) & {"x", "w"}:
                for part in _accessed(trace, names[name], arena.tensors[name]):
                    part.normal_(generator=random)
                    if name == "w":
                        part.div_(math.sqrt(problem.terms))
            for part in _accessed(trace, names["y"], arena.tensors["y"]):
                part.fill_(NOT_STORED)
            trace = run(kernel)
    except LaunchError as error:
        refused = any(finding.kind == "refused launch" for finding in error.findings)
        if refused and not error.kind and problem.N > _MOST_BLOCKS:
            # Nothing but the number of images is large, and no header excludes it.
            error.kind = "launch configuration"
        raise
    y = arena.tensors["y"]
    if has_rows and not adds_parts(trace, problem) and not reaches_end(trace, names["y"], y):
        return _examine_whole(setting, kernel, problem, arena, seed)
    report = compared_blocks(setting, kernel, problem, arena, trace, blocks)
    if report.ok and _stores_few(trace, problem, y, blocks):
        return _with_unwritten(report, kernel, problem, arena)
    if report.ok and _may_wrap(trace, problem, y):
        trace = _of_many_blocks(kernel, problem, arena, seed)
        if trace is not None and _may_wrap(trace, problem, y):
            return _with_wrapped(report, problem, y)
    return report


def arena_for(
    kernel: Runnable, problem: Problem, random: torch.Generator
) -> tuple[Any, list[str]]:
    """Return the tensors of a problem with random inputs, and the names of those that are too large to fill.

    The names are by place: of a gradient, x and w are its two inputs, and y is the result.
    """
    from ..sim.simulation import Arena

    shapes = {"x": problem.first_shape, "w": problem.second_shape, "y": problem.output_shape}
    large = [name for name, shape in shapes.items() if math.prod(shape) >= _MANY]
    arena = Arena(shapes, large, format=kernel.format, computes=problem.computation)
    if "w" not in large:
        arena.tensors["w"].normal_(generator=random).div_(math.sqrt(problem.terms))
    if "x" not in large:
        arena.tensors["x"].normal_(generator=random)
    return arena, large


def adds_parts(trace: Any, problem: Problem) -> bool:
    """Return whether the outputs of a sample of blocks are not those of all blocks.

    The blocks of a launch read what blocks of the launch before wrote, and few of those ran. Or an output
    is a sum of what several blocks add.
    """
    places = problem.computation.names["y"], "several"
    added = any(row["kind"] == "atomic" and row["array"] in places for row in trace.lines)
    return added or len(trace.launches) > 1 or trace.workspace > 0


def compared_blocks(
    setting: Setting, kernel: Runnable, problem: Problem, arena: Any, trace: Any, blocks: int = BLOCKS
) -> Report:
    """Return the report of a sample of blocks: some of the outputs that they stored are compared, if they can be.

    Of many blocks, these are also the outputs at the ends of image rows.
    """
    x, w, y = (arena.tensors[name] for name in ("x", "w", "y"))
    names = problem.computation.names
    bound = reference.tolerance(kernel.precision, problem.terms)
    fields = {"bound": bound, "outputs": math.prod(problem.output_shape)}
    if adds_parts(trace, problem):
        fields["unwatched"] = "only the bounds of a sample of blocks were watched"
        return reported(kernel, problem, setting, [], error=0.0, worst=0.0, limit=1.0, **fields)
    where = torch.cat(
        [_positions(part, y) for part in _accessed(trace, names["y"], y)] or [_NOWHERE]
    )
    if not len(where):
        raise LaunchError(f"{kernel.name} on {problem.label}: the sampled blocks stored no outputs")
    most = max(1, min(_COMPARED, _MOST_PRODUCTS // problem.terms))
    ends = _NOWHERE
    if blocks > BLOCKS:
        columns = where // y.stride(3) % y.shape[3]
        ends = where[(columns == 0) | (columns == y.shape[3] - 1)]
    where = torch.cat([each[:: -(-len(each) // most) or 1] for each in (where, ends)]).unique()
    outputs = _places_in(kernel.format.y, y.shape, where)
    expected = reference.truth(problem, x, w, None, outputs)
    stored = _flat(y)[where].double()
    errors = (stored - expected).abs()
    limit = 6 * bound * (float(expected.square().mean().sqrt()) + expected.abs())
    wrong = int((~(errors <= limit)).sum())
    worst = int((errors / limit).argmax())
    findings = []
    if wrong:
        index = tuple(outputs[worst].tolist())
        text = (
            f"{wrong:,} of {len(where):,} outputs that a sample of blocks stored are incorrect, the "
            f"worst at {problem.computation.symbol} = {index}: {float(stored[worst]):.6g}, but the "
            f"reference has {float(expected[worst]):.6g}"
        )
        findings = [Finding("wrong result", text, array=names["y"], index=index)]
    fields |= {"worst": float(errors[worst]), "limit": float(limit[worst]), "wrong": wrong}
    fields["error"] = float(errors.norm() / expected.norm())
    fields["compared"] = f"{len(where):,} outputs of {blocks} blocks compared with float64"
    return reported(kernel, problem, setting, findings, **fields)


def reaches_end(trace: Any, array: str, y: Tensor) -> bool:
    """Return whether a block of the sample, which has the last one, accessed the end of y."""
    end = y.numel() * y.itemsize
    return any(row["array"] == array and int(row["high"]) >= end for row in trace.reaches)


def _stores_few(trace: Any, problem: Problem, y: Tensor, blocks: int) -> bool:
    """Return whether all blocks store less than half of y, if they store as much as those of the sample.

    The traffic of a sample is scaled to all blocks, as if `blocks` of them had run.
    """
    name = problem.computation.names["y"]
    if adds_parts(trace, problem) or reaches_end(trace, name, y) or problem.terms > _SHORT:
        return False
    rows = [row for row in trace.lines if row["array"] == name and row["kind"] == "store"]
    stored = sum(row["bytes"] for row in rows) / y.itemsize
    ran = len({row["block"] for row in trace.reaches})
    wanted = min(blocks, math.prod(trace.launches[0]["grid"]))
    return stored * wanted / (ran or wanted) < 0.5 * y.numel()


def _with_unwritten(report: Report, kernel: Runnable, problem: Problem, arena: Any) -> Report:
    """Run all blocks without hooks; return the report with an error if some outputs are never written.

    Such a kernel has a limit for its blocks and the tiles of each, and so stores few outputs in a short time. One
    that stores all runs into the time limit, which says nothing.
    """
    from ..sim.launch import simulated

    y = arena.tensors["y"]
    where = torch.linspace(0, y.numel() - 1, _SPOTS, dtype=torch.float64).long()
    _flat(y)[where] = NOT_STORED
    try:
        simulated(kernel.untraced(), problem, arena, time_limit=_BLOCKS_SECONDS)
    except LaunchError as error:
        if error.kind in OF_THE_RUN:
            return report
        raise
    missing = where[_flat(y)[where] == NOT_STORED]
    if not len(missing):
        return report
    name = problem.computation.names["y"]
    symbol = problem.computation.symbol
    index = tuple(_places_in(kernel.format.y, y.shape, missing[:1])[0].tolist())
    text = (
        f"{len(missing):,} of {len(where):,} outputs at equal distances are never written, the first at "
        f"{symbol} = {index}: the blocks and the tiles of each are too few for {y.numel():,} outputs"
    )
    finding = Finding("never written", text, array=name, index=index)
    return dataclasses.replace(report, findings=(*report.findings, finding))


def _may_wrap(trace: Any, problem: Problem, y: Tensor) -> bool:
    """Return whether y has many elements past 2^32, and no block of the sample accessed one of them."""
    past = 1 - _WORD / y.numel()
    if past < _LEAST_PAST or adds_parts(trace, problem):
        return False
    name = problem.computation.names["y"]
    return all(row["array"] != name or row["high"] <= _WORD * y.itemsize for row in trace.reaches)


def _of_many_blocks(kernel: Runnable, problem: Problem, arena: Any, seed: int) -> Any:
    """Return the trace of a larger sample of blocks, all over the grid; None if that takes too long."""
    from ..sim.launch import simulated

    options = {"sample": (MANY_BLOCKS, seed), "time_limit": _BLOCKS_SECONDS, "gpu": WIDE, "forgives": True}
    try:
        return simulated(kernel, problem, arena, **options)
    except LaunchError as error:
        if error.kind in OF_THE_RUN:
            return None
        raise


def _with_wrapped(report: Report, problem: Problem, y: Tensor) -> Report:
    """Return the report with an error: no block writes outputs past 2^32."""
    name = problem.computation.names["y"]
    text = (
        f"none of {MANY_BLOCKS} blocks, chosen all over the grid, wrote one of the last {y.numel() - _WORD:,} of "
        f"{y.numel():,} elements of {problem.computation.symbol}: is a number of an element an unsigned int? After "
        f"{_WORD - 1:,} it begins again with 0"
    )
    finding = Finding("never written", text, array=name)
    return dataclasses.replace(report, findings=(*report.findings, finding))


def _examine_whole(
    setting: Setting, kernel: Runnable, problem: Problem, arena: Any, seed: int
) -> Report:
    """Return the report of a run of all blocks without hooks; all outputs are compared."""
    from ..sim.launch import simulated

    x, w, y = (arena.tensors[name] for name in ("x", "w", "y"))
    x.normal_(generator=torch.Generator().manual_seed(seed))
    y.fill_(math.nan)
    with _limits_say_nothing():
        simulated(kernel.untraced(), problem, arena, time_limit=_WHOLE_SECONDS, gpu=WIDE)
    bound = reference.tolerance(kernel.precision, problem.terms)
    compared = OutputComparison(Reference(problem, (x, w, None), seed), y, bound, poisoned=True)
    return compared_once(kernel, problem, setting, compared)


def _run_in_pieces(run: Callable[[Runnable], Any], kernel: Runnable, problem: Problem) -> Any:
    """Run a kernel that computes several images, or parts of them, one after another if it can.

    Not where the sums are long, or where a kernel calls cuBLAS for each of many groups: there it would take
    seconds, and other problems show the same.
    """
    has_many_calls = problem.groups > _MANY_CALLS and uses_cublas(kernel.texts.values())
    takes_long = problem in map(named_problem, _IN_PARTS) or has_many_calls
    if takes_long or not kernel.has_workspace:
        return run(kernel)
    try:
        return run(kernel.limited(_LITTLE_WORKSPACE))
    except LaunchError as error:
        if error.kind not in _OF_ITS_LIMITS:
            raise
        return run(kernel)


_NOWHERE = torch.empty(0, dtype=torch.int64)


def _accessed(trace: Any, array: str, tensor: Tensor) -> list[Tensor]:
    """Return the parts of a tensor that the sampled blocks accessed, as flat views.

    Of a long range, its beginning and its end are returned.
    """
    flat = _flat(tensor)
    parts = []
    for row in trace.reaches:
        if row["array"] != array:
            continue
        low = int(row["low"]) // tensor.itemsize
        high = -(-int(row["high"]) // tensor.itemsize)
        if high - low <= 2 * _RANGE:
            parts.append(flat[low:high])
        else:
            parts += [flat[low : low + _RANGE], flat[high - _RANGE : high]]
    return parts


def _flat(tensor: Tensor) -> Tensor:
    """Return a view of all elements in their order in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _places_in(storage: Storage, shape: tuple[int, ...], where: Tensor) -> Tensor:
    """Return for each position in memory the indices of the element, as a row."""
    in_memory = reference.places(where, storage.in_memory(shape))
    return in_memory[:, [storage.order.index(axis) for axis in range(len(shape))]]


def _positions(part: Tensor, y: Tensor) -> Tensor:
    """Return the positions in y of the elements of a part that the run stored."""
    stored = part != part.new_tensor(NOT_STORED)
    return stored.nonzero()[:, 0] + part.storage_offset() - y.storage_offset()
