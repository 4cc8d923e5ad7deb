"""Adopt an answer: diagnose it, build it, judge it in a confined process, and report."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core import arguments as valid
from ..core import rooms
from ..core.errors import BuildError, ProblemError
from ..core.faults import CORRECT, INCORRECT, NOT_RUN, NOT_SIMULATED, OUT_OF_TIME, heaviest
from ..core.kernel.engine import engine_name
from . import tunables as known
from .answer import PYTHON, TEXTS, Answer, Text, read
from .diagnose import diagnose
from .extension import WITH_TORCH
from .mistake import Mistake, described

# The limits of an answer's process.
SECONDS = 120.0
BYTES = 8 << 30
PROCESSES = 64
# Kinds of mistakes that no run can get past.
_FATAL = ("syntax", "form", "load_inline", "linkage", "flags")
# Kinds that say nothing about the answer.
_NO_VERDICT = {
    "not simulated": NOT_SIMULATED,
    "not run": NOT_RUN,
    "memory": NOT_RUN,
    "out of time": OUT_OF_TIME,
}
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
# The most extensions of one answer.
_MOST_BUILDS = 16


@dataclass(frozen=True)
class Tried:
    """One case of the general judgement: what was varied, and how the answer did.

    Attributes
    ----------
    label : "height = 33", "stride = 2".
    knobs : the names and values that were varied.
    result : "correct", "refused" (a clear error), "incorrect", "crashed" or "not simulated".
    line, text : the line in the answer's file, and the reason.
    """

    label: str
    knobs: Mapping[str, Any]
    result: str
    line: int = 0
    text: str = ""


@dataclass(frozen=True, repr=False)
class Adoption:
    """The report on one answer.

    Attributes
    ----------
    answer : the file.
    engine : "sim" or "cuda"; "" if nothing was run.
    mistakes : what is wrong, in the order of lines; errors and warnings.
    builds, as_asked, in_general : the verdicts; None if one is not known.
    precision, error : the precision class of the output, and its error relative to its largest value.
    tried : the cases of the general judgement. `in_general` is true if none is incorrect or crashed.
    supports : the suggested ``supports:`` line; "everything" if no limit was found.
    shapes, whole_shapes : the shapes of the inputs in the run, and those of the task.
    counters : the simulator's counters of the first call.
    kernels : kernel, grid and block of each launch of the first call, on the simulator.
    lines : the memory traffic of the first call by source line, on the simulator.
    launches, operators : kernels launched by one call, and torch's operators that compute.
    notes : limits of this judgement.
    seconds : the time of the builds ("build") and of the whole ("total"); in the answer's process,
        the time until the file was "loaded", until the "first call", until the verdict "as asked"
        was known, and until the answer was "timed".
    extensions : what was built: an `Extension` for each ``load_inline``.
    times : median times in ms on a GPU: "answer" and "model"; empty without one.
    """

    answer: Answer
    engine: str = ""
    mistakes: tuple[Mistake, ...] = ()
    builds: bool | None = None
    as_asked: bool | None = None
    in_general: bool | None = None
    precision: str = ""
    error: float | None = None
    tried: tuple[Tried, ...] = ()
    supports: str = ""
    shapes: tuple[Any, ...] = ()
    whole_shapes: tuple[Any, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    kernels: tuple[Mapping[str, Any], ...] = ()
    lines: tuple[Mapping[str, Any], ...] = ()
    launches: int = 0
    operators: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    extensions: tuple[Any, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)

    nothing_ran = False

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.answer.name

    kernel = name

    @property
    def ok(self) -> bool:
        """Whether the answer builds and is correct for the task's own shapes."""
        return bool(self.as_asked)

    @property
    def outcome(self) -> str:
        """The outcome, as of a check: "correct", "incorrect", "not simulated", ..."""
        if self.ok:
            return CORRECT
        kinds = [each.kind for each in self.mistakes if each.error]
        if not kinds and self.as_asked is None:
            return NOT_RUN
        if kinds and all(kind in _NO_VERDICT for kind in kinds):
            return heaviest([_NO_VERDICT[kind] for kind in kinds])
        return INCORRECT

    @property
    def why(self) -> str:
        """The first reason against the answer; empty if there is none."""
        for mistake in self.mistakes:
            if mistake.error:
                place = f"line {mistake.line}: " if mistake.line else ""
                return f"{place}{mistake.text}"
        bad = [each for each in self.tried if each.result in ("incorrect", "crashed")]
        if bad:
            return f"{bad[0].result} with {bad[0].label}"
        return self.notes[0] if self.as_asked is None and self.notes else ""

    def __repr__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """Return the report as text; with `verbose`, all cases and notes."""
        return "\n".join(_text(self, verbose))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can write."""
        return {
            "ok": self.ok,
            "kernel": self.name,
            "file": str(self.answer.path),
            "outcome": self.outcome,
            "engine": self.engine,
            "builds": self.builds,
            "as_asked": self.as_asked,
            "in_general": self.in_general,
            "precision": self.precision,
            "error": self.error,
            "supports": self.supports,
            "why": self.why,
            "mistakes": [each.to_dict() for each in self.mistakes],
            "tried": [{**vars(each), "knobs": dict(each.knobs)} for each in self.tried],
            "shapes": list(self.shapes),
            "whole_shapes": list(self.whole_shapes),
            "launches": self.launches,
            "operators": list(self.operators),
            "counters": dict(self.counters),
            "times_ms": dict(self.times),
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


def is_answer(path: str | Path) -> bool:
    """Return whether a path has the ending of an answer's file."""
    return Path(path).suffix in (*PYTHON, *TEXTS)


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
    >>> convlab.adopt("answer.py").as_asked  # doctest: +SKIP
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
        "told": progress is not None,
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
        mistakes=_sorted([*adoption.mistakes, *beside.mistakes]),
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
    _build_ahead(spec, built)
    try:
        reply = _with_builds("run", spec, limit, tell, built)
    except BuildError as error:
        found = extension.mistakes(error, adoption.answer.path)
        verdict = None if found[0].kind in _NO_VERDICT else False
        return replace(
            adoption,
            mistakes=_sorted([*adoption.mistakes, *found]),
            builds=verdict,
            as_asked=verdict,
        )
    reported = _reported(adoption, reply)
    return replace(
        reported,
        seconds={"build": built.seconds, **reported.seconds},
        extensions=tuple(built.extensions.values()),
    )


@dataclass
class Built:
    """The builds of one answer, by digest: the extensions, their libraries' paths; the seconds."""

    extensions: dict[str, Any] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    errors: dict[str, BuildError] = field(default_factory=dict)
    seconds: float = 0.0


# What `run_confined` has built, by the answer's text and engine.
_BUILT: dict[tuple[str, ...], Built] = {}


def run_confined(function: str, spec: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Run a function of `judge` in the confined process; return all that it emitted, as one dict.

    Parameters
    ----------
    function : its name.
    spec : its argument.
    limit : the time limit in seconds; builds do not count.

    Raises
    ------
    BuildError
        An extension does not build.
    """
    key = (spec["answer"].whole, spec["engine"], repr(spec.get("values")))
    built = _BUILT.setdefault(key, Built())
    for digest, library in list(built.libraries.items()):
        # `cache clear` removes libraries.
        if library != WITH_TORCH and not Path(library).is_file():
            del built.libraries[digest]
    reply = _with_builds(function, spec, limit, lambda stage: None, built)
    found: dict[str, Any] = {}
    for piece in reply["pieces"]:
        found |= piece
    if reply["stopped"]:
        kind = "out of time" if "did not end" in reply["stopped"] else ""
        found |= {"failed": f"its process was stopped: {reply['stopped']}", "kind": kind}
    elif "crash" in found:
        found["failed"] = found["crash"].strip().splitlines()[-1]
    elif reply["status"]:
        found["failed"] = "its process crashed"
        found["kind"] = "host crash"
    return found


def _with_builds(
    function: str,
    spec: Mapping[str, Any],
    limit: float,
    tell: Callable[[str], object],
    built: Built,
) -> dict[str, Any]:
    """Run a function in the confined process until it needs no further build; return its reply."""
    for _ in range(_MOST_BUILDS):
        tell("run")
        reply = _ask(function, {**spec, "libraries": built.libraries}, limit)
        needs = [piece["needs"] for piece in reply["pieces"] if "needs" in piece]
        if not needs:
            return reply
        tell("build")
        wanted = _extension_of(spec["answer"], needs[-1], spec.get("values") or {})
        if wanted.digest not in built.errors:
            _build(wanted, spec["engine"], built)
        if error := built.errors.get(wanted.digest):
            raise error
    raise BuildError(f"{spec['answer'].path.name} loads more than {_MOST_BUILDS} extensions")


def _build_ahead(spec: Mapping[str, Any], built: Built) -> None:
    """Build what the calls of ``load_inline`` in the file name, while the process imports torch.

    An extension whose sources are not constant is built when the process asks for it.
    """
    from .extension import Extension

    _process().start()
    answer = spec["answer"]
    for call in answer.calls:
        cpp = call.source("cpp_sources")
        cuda = call.source("cuda_sources")
        is_known = cpp is not None and (cuda is not None or "cuda_sources" not in call.arguments)
        lists = [call.values.get(key, ()) for key in ("extra_cflags", "extra_cuda_cflags")]
        texts = [each for values in lists for each in (values or ())]
        if not is_known or not all(isinstance(each, Text) for each in texts):
            continue
        flags = [each.text for each in texts]
        sources = [each.text if each else "" for each in (cpp, cuda)]
        values = spec.get("values") or {}
        wanted = Extension.of(answer, *sources, call.functions or (), flags, call.line, values)
        if wanted.digest not in built.libraries:
            _build(wanted, spec["engine"], built)


def _build(wanted: Any, engine: str, built: Built) -> None:
    """Build an extension, and record its library or its error."""
    try:
        build = wanted.build(engine)
    except BuildError as error:
        if engine == "sim" or error.kind != "not simulated":
            built.errors[wanted.digest] = error
        else:
            # With a GPU there are torch's own headers; the child builds with them, for a minute.
            built.libraries[wanted.digest] = WITH_TORCH
        return
    built.seconds += build.seconds
    built.libraries[wanted.digest] = str(build.library)
    built.extensions[wanted.digest] = wanted


def _extension_of(answer: Answer, needs: Mapping[str, Any], values: Mapping[str, int]) -> Any:
    """Return the extension that a child needs; raise ProblemError if its message is not valid."""
    from .extension import Extension

    texts = [needs.get(key) for key in ("cpp", "cuda")]
    lists = [needs.get(key) for key in ("exports", "flags")]
    names = lists[0] if isinstance(lists[0], list) else [None]
    is_text = all(isinstance(each, str) for each in (*texts, *names, *(lists[1] or ())))
    if not is_text or not all(re.fullmatch(r"\w+", name) for name in names):
        raise ProblemError(f"{answer.path.name}: load_inline gets arguments that are no strings")
    return Extension.of(answer, *texts, *lists, int(needs.get("line") or 1), values)


def _ask(function: str, spec: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """Run a function of `judge` in a confined process; return what it emitted and how it ended."""
    from ..core.machine import child, interrupt, toolchain
    from . import judge

    payload = pickle.dumps((getattr(judge, function), (dict(spec),)))
    variables = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_")}
    limits = {
        "seconds": limit,
        "bytes": BYTES,
        "processes": PROCESSES,
        "temporary": str(toolchain.temporary(Path("/tmp"))),
    }
    request = pickle.dumps(([*map(os.path.abspath, sys.path)], variables, limits, payload))
    process = _process()
    with interrupt.held(), process.lock:
        try:
            return pickle.loads(process.ask(request, limit + 60))
        except (child.Died, child.TimedOut) as error:
            process.stop()
            return {"pieces": [], "stopped": str(error), "status": None}


_PROCESS: list[Any] = []


def _process() -> Any:
    """Return the process that runs answers; it is kept, because it has imported torch."""
    from ..core.machine import child

    if not _PROCESS:
        script = Path(__file__).with_name("process.py")
        path = json.dumps([*map(os.path.abspath, sys.path)])
        _PROCESS.append(child.Child(script, path, options=["-P"]))
    return _PROCESS[0]


def _sorted(mistakes: Sequence[Mistake]) -> tuple[Mistake, ...]:
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
    if reply["stopped"] or "crash" in found or (reply["status"] or 0) < 0:
        mistakes.append(_stopped(reply, found, adoption.answer))
        as_asked = as_asked if tried else None if mistakes[-1].kind in _NO_VERDICT else False
    if "not judged" in found:
        mistakes.append(
            Mistake("not simulated", 0, found["not judged"], "run it on a GPU by yourself")
        )
    if any(each.kind in _NO_VERDICT for each in mistakes) and not as_asked:
        others = [each for each in mistakes if each.error and each.kind not in _NO_VERDICT]
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
        mistakes=_sorted(mistakes),
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
        return Mistake(
            kind, 0, f"the process was stopped: {reply['stopped']}", "raise --time-limit"
        )
    if "crash" in found:
        lines = found["crash"].strip().splitlines()
        numbers = re.findall(rf'File ".*{re.escape(answer.path.name)}", line (\d+)', found["crash"])
        line = int(numbers[-1]) if numbers else 0
        return Mistake("python", line, f"the process ended: {lines[-1][:300]}", "correct this line")
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


# ---- the text -----------------------------------------------------------------------------------

_WORDS = {True: "yes", False: "NO", None: "not known"}


def _text(adoption: Adoption, verbose: bool) -> list[str]:
    name = adoption.answer.path.name
    heading = {CORRECT: "correct as asked", INCORRECT: "INCORRECT"}.get(
        adoption.outcome, adoption.outcome
    )
    if adoption.outcome == NOT_RUN and not adoption.mistakes:
        heading = "the diagnosis found no mistake"
    lines = [f"{name}: {heading}"]
    klass = ""
    if adoption.precision and adoption.error is not None:
        klass = f" ({adoption.precision}, error {adoption.error:.1g} of the largest value)"
    lines.append(f"  builds      {_WORDS[adoption.builds]}{_built(adoption)}")
    lines.append(f"  as asked    {_WORDS[adoption.as_asked]}{klass if adoption.as_asked else ''}")
    lines.append(f"  in general  {_WORDS[adoption.in_general]}{_general(adoption)}")
    if adoption.supports and adoption.as_asked:
        lines.append(f"  suggested   supports: {adoption.supports}")
    if adoption.times:
        faster = adoption.times["model"] / adoption.times["answer"]
        lines.append(
            f"  time        {adoption.times['answer']:.3g} ms, {faster:.3g} times as fast as Model"
        )
    lines += described(adoption.mistakes, adoption.answer)
    bad = [each for each in adoption.tried if each.result != "correct"]
    for each in adoption.tried if verbose else bad[:4]:
        place = f"{name}:{each.line}: " if each.line else ""
        lines.append(
            f"{each.label}: {each.result}{': ' if each.text else ''}{place}{each.text}"[:300]
        )
    if not verbose and len(bad) > 4:
        lines.append(f"and {len(bad) - 4} more cases; --verbose lists them")
    lines += [f"note: {note}" for note in adoption.notes]
    return lines


def _built(adoption: Adoption) -> str:
    seconds = adoption.seconds.get("build", 0.0)
    return f" ({seconds:.1f} s)" if adoption.builds and seconds else ""


def _general(adoption: Adoption) -> str:
    if not adoption.tried:
        return ""
    ran = [each for each in adoption.tried if each.result != "not simulated"]
    good = sum(each.result == "correct" for each in ran)
    return f" ({good} of {len(ran)} cases with other shapes and arguments)"
