"""Adopt an answer: diagnose it, build it, judge it in a confined process, and report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import arguments as valid
from ..core import rooms
from ..core.errors import BuildError, ProblemError
from ..core.faults import CORRECT, INCORRECT
from ..core.kernel.engine import engine_name
from . import tunables as known
from .adoption_report import NO_VERDICT, Adoption, Tried
from .answer import Answer, read
from .confined_run import Built, build_ahead, with_builds
from .diagnose import diagnose
from .mistake import Mistake

# The time limit of an answer's process.
SECONDS = 120.0
# Kinds of mistakes that no run can get past.
_FATAL = ("syntax", "form", "load_inline", "linkage", "flags")
# Mistakes that an answer for the task's own sizes makes with others.
_OF_OTHER_SIZES = {
    "global out of bounds",
    "shared out of bounds",
    "python",
    "form",
    "wrong result",
    "never written",
    "uninitialised read",
    "too imprecise",
}
# A smaller constant is rarely a size.
_LEAST_SIZE = 24


def adopt(
    path: str | Path,
    reference: str | Path | None = None,
    *,
    engine: str = "auto",
    simulate: bool | None = True,
    general: bool = True,
    time_limit: float = SECONDS,
    tunables: Mapping[str, int] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Adoption:
    """Diagnose, build and judge somebody else's kernel in KernelBench's form.

    The file is one Python module with ``Model``, ``ModelNew``, ``get_inputs`` and
    ``get_init_inputs``; its CUDA code is in strings of ``load_inline``. It runs in a process of its
    own, which may write only to a scratch folder.

    Parameters
    ----------
    path : a ``.py`` file, or a text (``.md``, ``.txt``) whose last Python block is the answer.
    reference : the file of the task, if the answer has only ``ModelNew``.
    engine : "cuda": the GPU, at the task's own sizes, and the simulator after it if the GPU finds
        nothing wrong. "sim": only the simulator, on inputs that are scaled down. "auto": the GPU if
        there is one.
    simulate : on a GPU: whether the simulator looks for races and accesses out of bounds, too. False
        is an error without a GPU, None is not.
    general : whether to vary shapes and arguments after the task's own.
    time_limit : of the process, in seconds; builds do not count.
    tunables : values for whole numbers that its CUDA code defines once by name, such as
        ``#define TILE 16``.
    progress : called with a word for each stage; then the verdict as asked is also printed on
        stderr, before other shapes are tried.

    Returns
    -------
    Adoption
        Whether it builds, is correct as asked, and in general, with its mistakes at their lines.

    Raises
    ------
    ProblemError
        A file cannot be read, or has no Python code, or no such tunable.
    BuildError
        The engine is not available.

    Examples
    --------
    >>> adopt("answer.py").as_asked  # doctest: +SKIP
    True
    """
    started = time.perf_counter()
    tell = progress or (lambda stage: None)
    answer = read(valid.path(path, "answer"))
    task = read(valid.path(reference, "reference")) if reference is not None else answer
    values = dict(valid.tunables(tunables or {}))
    if values:
        known.require(answer, values)
    tell("diagnosis")
    mistakes = diagnose(answer, task)
    adoption = Adoption(answer, mistakes=tuple(mistakes))
    if any(each.kind == "not run" for each in mistakes):
        return adoption
    if any(each.error and each.kind in _FATAL for each in mistakes):
        return replace(
            adoption,
            builds=False,
            as_asked=False,
            notes=("nothing was built or run: the diagnosis found why it cannot work",),
            seconds={"total": time.perf_counter() - started},
        )
    name = _engine(engine)
    if name == "sim" and simulate is False:
        raise ProblemError(
            "simulate=False (--no-simulate) is for a judgement on a GPU, but here the answer runs on "
            'the simulator: leave it out, or use engine="cuda" on a machine with a GPU'
        )
    spec = {
        "answer": answer,
        "reference": task,
        "engine": name,
        "general": general,
        "seconds": 0.8 * time_limit,
        "values": values,
        # A mistake of the diagnosis stands, however the run ends.
        "told": progress is not None and not any(each.error for each in mistakes),
    }
    adoption = _judged(replace(adoption, engine=name), spec, time_limit, tell)
    if name == "cuda" and simulate and adoption.as_asked and "sim" in rooms.names("engine"):
        tell("simulator")
        adoption = _with_simulator(
            adoption, {**spec, "engine": "sim", "general": False, "told": False}, time_limit
        )
    seconds = {**adoption.seconds, "total": time.perf_counter() - started}
    return replace(adoption, seconds=seconds)


def _engine(engine: str) -> str:
    name = engine_name(engine)
    if name == "sim" and "sim" not in rooms.names("engine"):
        raise BuildError("the simulator (convlab/sim) was removed", kind="not run")
    return name


def _with_simulator(adoption: Adoption, spec: dict[str, Any], limit: float) -> Adoption:
    """Judge an answer that is correct on the GPU on the simulator, too; return both reports as one.

    The simulator sees races and accesses out of bounds that a GPU may forgive. Where it cannot run
    the answer, the GPU's verdict stays, and a note says what was not looked for.
    """
    plain = replace(adoption, engine="sim", notes=())
    beside = _judged(plain, spec, limit, lambda stage: None)
    if beside.outcome not in (CORRECT, INCORRECT):
        why = beside.why or beside.outcome
        note = f"the simulator did not look for races and accesses out of bounds: {why}"
        return replace(adoption, notes=(*adoption.notes, note))
    as_asked = adoption.as_asked and beside.as_asked
    notes = [*adoption.notes, *(note for note in beside.notes if note not in adoption.notes)]
    return replace(
        adoption,
        mistakes=ordered([*adoption.mistakes, *beside.mistakes]),
        as_asked=as_asked,
        in_general=adoption.in_general if as_asked else False,
        counters=beside.counters,
        kernels=beside.kernels,
        lines=beside.lines,
        notes=tuple(notes),
    )


def _judged(
    adoption: Adoption, spec: dict[str, Any], limit: float, tell: Callable[[str], object]
) -> Adoption:
    """Judge an answer in the confined process, and report."""
    from . import extension

    built = Built()
    build_ahead(spec, built)
    try:
        reply = with_builds("run", spec, limit, tell, built)
    except BuildError as error:
        found = extension.mistakes(error, adoption.answer.path)
        verdict = None if found[0].kind in NO_VERDICT else False
        return replace(
            adoption,
            mistakes=ordered([*adoption.mistakes, *found]),
            builds=verdict,
            as_asked=verdict,
        )
    reported = _reported(adoption, reply)
    return replace(
        reported,
        seconds={"build": built.seconds, **reported.seconds},
        extensions=tuple(built.extensions.values()),
    )


def ordered(mistakes: Sequence[Mistake]) -> tuple[Mistake, ...]:
    unique = list(dict.fromkeys(mistakes))
    return tuple(sorted(unique, key=lambda each: (not each.error, each.line)))


def _reported(adoption: Adoption, reply: Mapping[str, Any]) -> Adoption:
    """Return the report for what a confined process emitted."""
    found: dict[str, Any] = {}
    mistakes = list(adoption.mistakes)
    tried = []
    notes = []
    clock: dict[str, float] = {}
    for piece in reply["pieces"]:
        if "mistake" in piece:
            mistakes.append(Mistake(**piece["mistake"]))
        elif "case" in piece:
            tried.append(
                Tried(piece["case"], piece["knobs"], piece["result"], piece["line"], piece["text"])
            )
        elif "clock" in piece:
            clock |= piece["clock"]
        elif piece.get("unconfined"):
            notes.append(f"not confined on this machine: {'; '.join(piece['unconfined'])}")
        else:
            found |= piece
    as_asked = found.get("as asked")
    builds = found.get("builds")
    if reply["stopped"] or "ended" not in found:
        mistakes.append(_stopped(reply, found, adoption.answer))
        as_asked = as_asked if tried else None if mistakes[-1].kind in NO_VERDICT else False
    if "not judged" in found:
        mistakes.append(
            Mistake("not simulated", 0, found["not judged"], "run it on a GPU by yourself")
        )
    if any(each.kind in NO_VERDICT for each in mistakes) and not as_asked:
        others = [each for each in mistakes if each.error and each.kind not in NO_VERDICT]
        as_asked = False if others else None
    if as_asked and any(each.error for each in mistakes):
        as_asked = False
    if builds is None and as_asked is False and not any(each.kind == "python" for each in mistakes):
        builds = adoption.builds
    notes += _notes(found)
    narrow = _narrow(adoption.answer, found) if as_asked is False else ""
    if narrow and {each.kind for each in mistakes if each.error} <= _OF_OTHER_SIZES:
        # The task's own sizes did not run.
        as_asked = None
        notes.append(narrow)
    from .limits import supports

    return replace(
        adoption,
        mistakes=ordered(mistakes),
        builds=builds,
        as_asked=as_asked,
        in_general=False if narrow else _in_general(as_asked, tried),
        precision=found.get("precision", ""),
        error=found.get("error"),
        tried=tuple(tried),
        supports=supports(tried) if tried else "",
        shapes=tuple(found.get("scaled", ())),
        whole_shapes=tuple(found.get("whole", ())),
        counters=found.get("counters", {}),
        kernels=tuple(found.get("kernels", ())),
        lines=tuple(found.get("lines", ())),
        launches=found.get("launches", 0),
        operators=tuple(found.get("torch", ())),
        times=found.get("times", {}),
        seconds=clock,
        notes=tuple(notes),
    )


def _narrow(answer: Answer, found: Mapping[str, Any]) -> str:
    """Return a note if a file has sizes of the task as constants that were scaled down; else ""."""
    scaled = {size for shape in found.get("scaled", ()) for size in shape}
    changed = {size for shape in found.get("whole", ()) for size in shape} - scaled
    constants = known.lines_of_sizes(answer, {size for size in changed if size >= _LEAST_SIZE})
    if not constants:
        return ""
    shown = [f"line {line}: {name} = {value}" for name, (line, value) in constants.items()]
    return (
        f"the task's own sizes are constants here ({'; '.join(shown[:3])}), and the simulator's inputs are "
        "smaller: only a GPU can show whether it is right for the task's own sizes"
    )


def _stopped(reply: Mapping[str, Any], found: Mapping[str, Any], answer: Answer) -> Mistake:
    """Return the mistake of a process that ended before the judgement did."""
    from ..core.machine import child

    if reply["stopped"]:
        kind = "out of time" if "did not end" in reply["stopped"] else "limit"
        todo = "raise --time-limit" if kind == "out of time" else "use less: a run has these limits"
        return Mistake(kind, 0, f"the process was stopped: {reply['stopped']}", todo)
    if "crash" in found:
        lines = found["crash"].strip().splitlines()
        numbers = re.findall(rf'File ".*{re.escape(answer.path.name)}", line (\d+)', found["crash"])
        line = int(numbers[-1]) if numbers else 0
        return Mistake("python", line, f"the process ended: {lines[-1][:300]}", "correct this line")
    if (reply["status"] or 0) >= 0:
        text = "it ended its process before it was judged"
        return Mistake("host crash", 0, text, "remove what ends the process, such as os._exit()")
    how = child.describe(reply["status"])
    return Mistake("host crash", 0, f"the process crashed: {how}", "look at the host code")


def _notes(found: Mapping[str, Any]) -> list[str]:
    notes = []
    scaled = found.get("scaled")
    if scaled and scaled != found.get("whole"):
        notes.append(
            f"on the simulator, the inputs are scaled down: {_shapes(scaled)}, not {_shapes(found['whole'])}"
        )
    if "init" in found:
        notes.append(f"the init arguments are scaled down too: {', '.join(found['init'])}")
    if found.get("with torch"):
        notes.append(
            "built with torch's own headers: convlab's small torch::Tensor lacks a name that it uses"
        )
    if found.get("out of time"):
        notes.append("the time was up before all cases ran; raise --time-limit")
    return notes


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def _in_general(as_asked: bool | None, tried: Sequence[Tried]) -> bool | None:
    ran = [each for each in tried if each.result != "not simulated"]
    if as_asked is False:
        return False
    if not ran or as_asked is None:
        return None
    # A clear error for what an answer does not support is no mistake: `supports` has it.
    return all(each.result in ("correct", "refused") for each in ran)
