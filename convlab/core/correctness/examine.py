"""One kernel on one problem, examined in this process, whichever that is.

`check.py` decides where it runs; what breaks here is raised as it is. Everything is done on a
stream of its own on a GPU, between guard zones, twice, and from poison.

Every buffer has a canary before and after it: a write beyond a tensor's ends is seen, and where.
The canary is a NaN, so that a result made from what lies outside a buffer is wrong too; reading it
and throwing it away is harmless.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import sim
from ...sim import Finding
from ...strict import settings
from ...strict.settings import ORDINARY, Setting
from ..errors import LaunchError
from ..kernel.launch import simulated
from ..kernel.runnable import Launch, Runnable
from ..problem.problem import Problem
from . import output, reference
from .reference import Reference
from .report import COMPARED, Report, found_in

# Bytes on each side: multiples of 512, so that a tensor starts as torch's allocator starts it.
ZONE = {"cuda": 1 << 20, "cpu": 1 << 12}
_CANARY = (0x9A, 0xCA, 0xC0, 0x7F)  # the float32 0x7FC0CA9A, a quiet NaN that no arithmetic makes
_SLOW_SECONDS = 5.0  # a simulated run longer than this is not repeated
_SPARSE_SECONDS = 20.0  # of a sparse x; after them nothing is said of it
_SLEEP_CYCLES = 2_000_000  # of a GPU's clock, before a launch: some 1 ms


def examine(
    kernel: Runnable,
    problem: Problem,
    seed: int,
    notes: tuple[str, ...] = (),
    setting: Setting = ORDINARY,
) -> Report:
    """Check a kernel on one problem; the arguments are `check`'s, and notes to begin with."""
    given = (kernel, problem, seed, notes, setting)
    if kernel.device.type != "cuda":
        return _examine(*given)
    with torch.cuda.device(kernel.device):
        torch.cuda.synchronize()
        with torch.cuda.stream(_side_stream(kernel.device.index)):
            hits = reference.known.cache_info().hits
            report = _examine(*given)
            if not report.ok and reference.known.cache_info().hits > hits:
                reference.forget()  # it may be the reference that an earlier kernel spoilt
                report = _examine(*given)
        torch.cuda.synchronize()  # a fault on another stream shows here at the latest
        if torch.cuda.memory_reserved() > 1 << 30:
            torch.cuda.empty_cache()  # what is measured next may need it in another process
    return report


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    """The stream that checks run on: it waits for no other, as all of torch's do not."""
    return torch.cuda.Stream(index)


def _examine(
    kernel: Runnable, problem: Problem, seed: int, notes: tuple[str, ...], setting: Setting
) -> Report:
    guards = Guards(setting.offset if setting.offset == settings.Y_OFFSET else 0)
    said = list(notes)
    bound = reference.tolerance(kernel.precision, problem.gemm_k, math.prod(problem.y_shape))
    if setting.data == "normal":
        right = reference.known(problem, seed, kernel.device, kernel.format)
    else:
        kinds = kernel.device, kernel.format, kernel.mixes
        given = settings.inputs(setting.data, problem, seed, *kinds)
        right = Reference(problem, given, seed)
        bound = setting.bound(bound, kernel, right.rms)
    inputs = [
        guards.place(n, t, setting.offset)
        for n, t in zip(("x", "w", "bias"), right.inputs, strict=True)
    ]
    launch = kernel.prepare(problem, *inputs, allocate=guards.allocate)
    guards.name(launch)

    pristine = right.inputs
    if launch.plan is not None and not setting.after_others:  # it is all that a call is given
        pristine = right.inputs[0], launch.inputs[1].fill_(math.nan).clone(), right.inputs[2]

    failures: list[Finding] = []
    seen: list[Finding] = []
    for earlier in settings.histories(kernel, problem) if setting.after_others else [[]]:
        started = time.perf_counter()
        poisoned = _run(launch, earlier)
        host_seconds = time.perf_counter() - started
        counters = launch.counters
        failures += output.changed_inputs(launch.inputs, pristine)
        seen += launch.findings

        y = launch.y
        if setting.data in ("denormals", "special"):
            known = torch.cat([piece for _, piece in right.pieces])
            y = settings.forgiven(setting.data, y, known, problem, right.inputs, kernel.mixes)
        found = output.Tally(right, y, bound, poisoned)
        if not found.right and earlier:
            text = f"wrong after calls for {', then '.join(map(str, earlier))}"
            failures.append(output.wrong("wrong after other calls", text))
        if not found.right or failures:
            break
    if found.wrong and setting.data == "integers":
        text = "something is rounded: sums of these integers are exact, in any order"
        failures.append(output.wrong("too imprecise", text))
    failures += found.failures()
    if not found.error <= bound:
        text = f"the error as a whole is {found.error:.2g}; {kernel.precision} allows {bound:.2g}"
        kind = "wrong result" if found.wrong else "too imprecise"
        failures.append(output.wrong(kind, f"{text} here"))
    failures = _stored(failures, launch)
    if failures and setting.data in ("integers", "special"):
        said.append(
            "a kernel whose outputs of a tile share sums says so in its header, `mixes: 2x2`; one "
            "that makes NaN of inf, `mixes: 1x1`"
        )
    patterns = found.words(kernel.precision) if failures else []
    try:
        moving = _moving(launch, found, host_seconds, said) if setting.twice else []
    except LaunchError as error:
        if not failures:
            raise
        moving = [*found_in(error)]  # beside the wrong result of another order of threads
    failures += moving + guards.violations()
    failures += output.changed_inputs(launch.inputs, pristine)
    seen += launch.findings
    strays = {f.line: f for f in seen if f.kind == "wrong stream"}  # a GPU need not show it
    failures += [dataclasses.replace(stray, error=True) for stray in strays.values()]
    known = {failure.kind for failure in failures}
    warnings = {(f.kind, f.line): f for f in seen if not f.error and f.kind not in known}
    report = _report(
        kernel,
        problem,
        setting,
        dict.fromkeys([*failures, *warnings.values()]),
        **found.numbers,
        patterns=tuple(patterns),
        notes=tuple(said),
        threads=_most_threads(launch),
        counters=counters,
        host_seconds=host_seconds,
    )
    if (found.wrong or found.unwritten or moving) and kernel.device.type == "cuda":
        report = _blame_stream(report, launch, right)
    reference.forget_if_large(right)
    return report


def _stored(failures: list[Finding], launch: Launch) -> list[Finding]:
    """Give wrong outputs the line that stores y, or the first one, where a simulated run tells it."""
    stores = {
        (row["file"], row["line"])
        for row in (launch.lines if failures else ())
        if row["array"] == "y" and row["kind"] != "load"
    }
    found = []
    for f in failures:
        places = [*stores]
        if len(places) > 1 and f.index is not None and f.array == "y":
            word = (launch.y[f.index].data_ptr() - launch.y.data_ptr()) // 4
            places = [place for at, *place in launch.stored if at <= word][-1:]
        if len(places) == 1 and places[0][1] and f.kind in COMPARED:
            f = dataclasses.replace(f, file=places[0][0], line=places[0][1])
        found.append(f)
    return found


def _most_threads(launch: Launch) -> dict[str, int]:
    most: dict[str, int] = {}
    for each in launch.launches:
        name = str(each["kernel"])
        most[name] = max(most.get(name, 0), math.prod(each["block"]))
    return most


def failed(
    kernel: Runnable, problem: Problem, error: LaunchError, setting: Setting = ORDINARY
) -> Report:
    """Return the report of a kernel that did not run to its end."""
    outputs = math.prod(problem.y_shape)
    bound = reference.tolerance(kernel.precision, problem.gemm_k, outputs)
    return _report(
        kernel,
        problem,
        setting,
        found_in(error),
        bound=bound,
        outputs=outputs,
        fault=error.kind,
        ending=str(error),
    )


def _report(
    kernel: Runnable, problem: Problem, setting: Setting, findings: Iterable[Finding], **found: Any
) -> Report:
    return Report(
        problem=problem,
        kernel=kernel.name,
        title=kernel.title,
        precision=kernel.precision,
        engine=kernel.engine,
        setting=setting.words,
        findings=tuple(findings),
        **found,
    )


def examine_sparse(kernel: Runnable, problem: Problem, seed: int) -> Report:
    """Check a simulated kernel where few elements of x are read: the others take no memory.

    Raises what a run does. A LaunchError without a kind is no mistake: the kernel reads all of x.
    """
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = sim.Arena(shapes, ["x"])
    x, w, y = (arena.tensors[name] for name in shapes)
    random = torch.Generator().manual_seed(seed)
    rows, columns = (  # that are read; no such problem has padding or dilation
        (torch.arange(outputs)[:, None] * stride + torch.arange(taps)).flatten()
        for outputs, stride, taps in zip(y.shape[2:], problem.stride, w.shape[2:], strict=True)
    )
    x[:, :, rows[:, None], columns] = torch.randn(
        *x.shape[:2], len(rows), len(columns), generator=random
    )
    w.normal_(generator=random).div_(math.sqrt(problem.gemm_k))
    y.fill_(math.nan)
    try:
        simulated(kernel, problem, arena, time_limit=_SPARSE_SECONDS)
    except LaunchError as error:
        error.kind = "" if error.kind in ("endless loop", "too little workspace") else error.kind
        raise
    bound = reference.tolerance(kernel.precision, problem.gemm_k)
    found = output.Tally(Reference(problem, (x, w, None), seed), y, bound, poisoned=False)
    return _report(kernel, problem, settings.SPARSE, found.failures(), **found.numbers)


def _run(launch: Launch, others: Sequence[Problem] = ()) -> bool:
    """Poison and run a launch on the current stream; return whether there was an output to poison.

    On a GPU the stream is made to sleep first, and only it is waited for: what a kernel launches
    on another stream runs before the poison, or is not done when the result is read.
    """
    device = launch.runnable.device
    if device.type == "cuda":
        torch.cuda._sleep(_SLEEP_CYCLES)
    poisoned = output.poison(launch)
    if others:
        launch.call_after(others)
    else:
        launch()
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return poisoned


def _moving(launch: Launch, found: output.Tally, took: float, notes: list[str]) -> list[Finding]:
    """Run once more and compare bits, or where these may differ the results; unless it takes long."""
    kernel = launch.runnable
    if kernel.library:  # its own choice of algorithm, not ours to judge
        return []
    if kernel.simulated and took > _SLOW_SECONDS:
        notes.append(f"not run twice: the first run took {took:.0f} s on the simulator")
        return []
    if kernel.atomics:
        notes.append("bits not compared: its header says that it adds with atomics, in any order")
        poisoned = _run(launch)
        again = output.Tally(found.reference, launch.y, found.bound, poisoned)
        if again.right or not found.right:
            return []
        text = (
            f"{again.wrong:,} outputs are wrong when it runs again on the same data, where the first "
            "run was right: a race, or memory that it counts on and another call has changed"
        )
        return [
            output.wrong("not repeatable", text, "y", again.first_wrong, launch.problem.y_shape)
        ]
    first = output.keep(launch.y)
    if first.numel() < launch.y.numel():
        part = first.numel() / launch.y.numel()
        notes.append(f"second run compared on the first {part:.0%} of the outputs: memory is short")
    _run(launch)
    count, index = output.moved(launch.y, first)
    if not count:
        return []
    shape = launch.problem.y_shape
    place = ", ".join(map(str, np.unravel_index(index, shape)))
    text = (
        f"{count:,} of {first.numel():,} outputs changed when it ran again on the same data, "
        f"the first at (n, k, p, q) = ({place}): a race, memory read before it was written, or "
        "sums by atomics, of which the header is to say `atomics: yes`"
    )
    return [output.wrong("not repeatable", text, "y", index, shape)]


def _blame_stream(report: Report, launch: Launch, right: Reference) -> Report:
    """Run a wrong kernel with all of it on the default stream; if it is right there, say so."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        for _ in range(3):  # a race may well be right once
            poisoned = output.poison(launch)
            torch.cuda.synchronize()
            launch()
            torch.cuda.synchronize()
            if not output.Tally(right, launch.y, report.bound, poisoned).right:
                return report
    text = (
        "right when all of it runs on the default stream: it launches on another stream than "
        "the one it is given (conv2d's last argument)"
    )
    findings = output.wrong("wrong stream", text), *report.findings
    return dataclasses.replace(report, findings=findings)


class Guards:
    """The guarded buffers of one run; `violations` says which of them were written around."""

    def __init__(self, offset: int = 0) -> None:
        """Numbers that are not `place`d, y's, begin `offset` bytes past an aligned address."""
        self._offset = offset
        self._kept: list[tuple[Tensor, Tensor]] = []  # all of it, the tensor
        self._names: dict[int, str] = {}  # by the tensor's address

    def place(self, name: str, tensor: Tensor | None, offset: int = 0) -> Tensor | None:
        """Return a copy of a tensor without gaps (of None: None) between two zones.

        It begins `offset` bytes behind the first of them.
        """
        if tensor is None:
            return None
        flat = self._between(tensor.numel(), tensor.dtype, tensor.device, offset)
        self._names[flat.data_ptr()] = name
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def name(self, launch: Launch) -> None:
        """Learn which of what was allocated is the launch's y, its workspace, its filter."""
        parts = {"y": launch.y, "workspace": launch.workspace, "the filter's plan": launch.plan}
        for name, tensor in parts.items():
            if tensor is not None:
                self._names.setdefault(tensor.data_ptr(), name)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an unwritten tensor between two zones: `Runnable.prepare`'s `allocate`."""
        offset = 0 if dtype == torch.uint8 else self._offset
        return self._between(math.prod(shape), dtype, device, offset).view(shape)

    def _between(self, size: int, dtype: torch.dtype, device: torch.device, offset: int) -> Tensor:
        zone = ZONE[device.type]
        end = offset + size * dtype.itemsize
        whole = torch.empty(zone + end + zone, dtype=torch.uint8, device=device)
        for place, canary in _zones(whole):
            whole[place] = canary
        whole[zone : zone + offset] = 0xFF  # NaN
        flat = whole[zone + offset : zone + end].view(dtype)
        self._kept.append((whole, flat))
        return flat

    def violations(self) -> list[Finding]:
        """Say of each buffer that was written around: on which side, how far away."""
        found = []
        for whole, tensor in self._kept:
            name = self._names.get(tensor.data_ptr(), "memory that it was given")
            unit = "byte" if tensor.dtype == torch.uint8 else "element"
            before, after = (whole[place] != canary for place, canary in _zones(whole))
            for changed, side, beyond in (
                (before.flip(0), "before its start", "ahead of the first"),
                (after, "after its end", "past the last"),
            ):
                away = (changed.nonzero().flatten() // tensor.element_size() + 1).unique().tolist()
                if away:
                    span = f"{away[0]:,} to {away[-1]:,}" if len(away) > 1 else f"{away[0]:,}"
                    text = (
                        f"the kernel wrote outside of {name}: {len(away):,} {unit}"
                        f"{'s' * (len(away) > 1)} changed {side}, {span} {beyond}"
                    )
                    at = -away[0] if changed is not after else tensor.numel() - 1 + away[0]
                    found.append(output.wrong("global out of bounds", text, name, at))
        return found


def _zones(whole: Tensor) -> tuple[tuple[slice, Tensor], tuple[slice, Tensor]]:
    """Where the two zones of a buffer are, and what stands there: a tensor's odd end cuts it."""
    zone = ZONE[whole.device.type]
    size = whole.numel()
    pattern = _pattern(whole.device)
    end = (size - zone) % 4
    return (slice(zone), pattern[:zone]), (slice(size - zone, size), pattern[end : end + zone])


@functools.cache
def _pattern(device: torch.device) -> Tensor:
    """The canary's bytes, over and over: a zone's, and four more."""
    once = torch.tensor(_CANARY, dtype=torch.uint8, device=device)
    return once.repeat(ZONE[device.type] // 4 + 1)
