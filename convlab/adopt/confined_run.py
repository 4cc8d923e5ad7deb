"""Run a function of `judge` in the confined process, and build the extensions that it asks for."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import BuildError, LaunchError, ProblemError
from .answer import Answer, Text
from .extension import WITH_TORCH

# The limits of an answer's process.
BYTES = 8 << 30
PROCESSES = 64
# The most extensions of one answer.
_MOST_BUILDS = 16


@dataclass
class Built:
    """The builds of one answer, by digest: the extensions, their libraries' paths; the seconds."""

    extensions: dict[str, Any] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    errors: dict[str, BuildError] = field(default_factory=dict)
    seconds: float = 0.0


# The time limit for loading an answer, in seconds.
_LOAD_SECONDS = 60.0
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
    reply = with_builds(function, spec, limit, lambda stage: None, _built_before(spec))
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


def built_for(spec: Mapping[str, Any]) -> dict[str, str]:
    """Build what an answer loads, and return the libraries' paths by digest.

    Raises BuildError, or LaunchError if the answer cannot be loaded.
    """
    found = run_confined("load", spec, _LOAD_SECONDS)
    if "failed" in found:
        name = spec["answer"].path.name
        raise LaunchError(f"{name}: {found['failed']}", kind=found.get("kind", ""))
    return dict(_built_before(spec).libraries)


def _built_before(spec: Mapping[str, Any]) -> Built:
    """Return what was built for an answer in this process, without libraries that are gone."""
    key = (spec["answer"].whole, spec["engine"], repr(spec.get("values")))
    built = _BUILT.setdefault(key, Built())
    for digest, library in list(built.libraries.items()):
        # `cache clear` removes libraries.
        if library != WITH_TORCH and not Path(library).is_file():
            del built.libraries[digest]
    return built


def with_builds(
    function: str,
    spec: Mapping[str, Any],
    limit: float,
    tell: Callable[[str], object],
    built: Built,
) -> dict[str, Any]:
    """Run a function in the confined process until it needs no further build; return its reply."""
    for _ in range(_MOST_BUILDS):
        tell("run")
        libraries = spec.get("libraries", {}) | built.libraries
        reply = _ask(function, {**spec, "libraries": libraries}, limit)
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


def build_ahead(spec: Mapping[str, Any], built: Built) -> None:
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
