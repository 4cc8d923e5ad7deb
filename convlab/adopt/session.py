"""A session of the judgement: execute an answer's file with our ``load_inline``, and run its models.

This module runs somebody's code, in the confined child only.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

from ..core.errors import BuildError, LaunchError
from ..core.faults import fault
from ..core.machine.gpus import DEFAULT_GPU
from .answer import Answer
from .calls import Calls
from .extension import WITH_TORCH, Extension
from .mistake import Mistake
from .precision import Truth, compare
from .shapes import Case, OnDevice, Task

Emit = Callable[[dict[str, Any]], None]
# How the simulator names the stream of a call.
_SIMULATED_STREAM = "conv2d's last argument"
_original = cpp_extension.load_inline


class NeedsBuild(BaseException):
    """The answer loads an extension that is not built yet; no ``except Exception`` catches it."""


class Stop(Exception):
    """The judgement ends: the answer failed, and its mistake was emitted."""


class Session:
    """The judgement of one answer.

    Parameters
    ----------
    emit : gets the pieces.
    answer, reference : the files.
    engine : "sim" or "cuda".
    libraries : the path of each build, by its extension's digest.
    values : those of tunables that differ from the file.
    """

    def __init__(
        self,
        emit: Emit,
        answer: Answer,
        reference: Answer,
        engine: str,
        libraries: Mapping[str, str],
        values: Mapping[str, int],
    ) -> None:
        self.emit = emit
        self.answer = answer
        self.reference = reference
        self.engine = engine
        self.libraries = libraries
        self.values = values
        self.device = "cpu" if engine == "sim" else "cuda"
        self.started = time.perf_counter()
        self.calls = Calls()
        # The precision class in which the answer is correct as asked; empty before that is known.
        self.precision = ""
        # The extension that is missing, also if the answer caught the exception.
        self.missing: dict[str, Any] | None = None
        self.seen: set[tuple[str, int, str]] = set()

    @property
    def elapsed(self) -> float:
        """The seconds since the judgement began."""
        return time.perf_counter() - self.started

    # ---- emitting ------------------------------------------------------------------------------

    def mistake(self, mistake: Mistake) -> None:
        """Emit a mistake once."""
        key = (mistake.kind, mistake.line, mistake.text)
        if key not in self.seen:
            self.seen.add(key)
            self.emit({"mistake": mistake.to_dict()})

    def failed(self, error: BaseException, stage: str) -> list[Mistake]:
        """Return an exception of the answer's code as mistakes, with their lines."""
        if isinstance(error, LaunchError):
            return self.findings(error)
        line = self.line_of(error)
        text = str(error).strip().split("\n")[0][:300]
        if isinstance(error, BuildError):
            # Of convlab's own libraries: the answer was built before.
            return [Mistake("not run", 0, text, "judge it again; the answer is not at fault")]
        return [
            Mistake(
                "python",
                line,
                f"{type(error).__name__} {stage}: {text}",
                "read the message; the line is the last one of the file that ran",
            )
        ]

    def findings(self, error: LaunchError) -> list[Mistake]:
        """Return what the simulator found, or the GPU reported, as mistakes."""
        found = [each for each in (getattr(error, "findings", None) or ()) if each.error]
        if not found:
            text = str(error).split("\n")[0]
            kind = error.kind or "launch"
            return [Mistake(kind, self.line_of(error), text, fault(kind).advice)]
        return [self.finding(each) for each in found[:4]]

    def finding(self, found: Any) -> Mistake:
        """Return one finding of the simulator as a mistake."""
        own = found.file and Path(found.file).name == self.answer.path.name
        where = f" (block {found.block}, thread {found.thread})" if found.block else ""
        if found.other_line and found.other_line != found.line:
            where += f"; the other access is in line {found.other_line}"
        line = found.line if own and found.line else 0
        return Mistake(
            found.kind,
            line,
            f"{found.kind}: {found.text.replace(_SIMULATED_STREAM, 'the current stream')}{where}",
            fault(found.kind).advice,
            # Of a kernel of ours it is a warning: there a rule of the contract; here a race with Model.
            found.error or found.kind == "wrong stream",
        )

    def line_of(self, error: BaseException) -> int:
        """Return the last line of the answer's file in an exception's traceback."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in frames if frame.filename == str(self.answer.path)]
        return own[-1] or 0 if own else 0

    # ---- loading -------------------------------------------------------------------------------

    def execute(self, answer: Answer) -> dict[str, Any]:
        """Execute a file and return its names; ``load_inline`` is replaced meanwhile."""
        module = types.ModuleType(re.sub(r"\W", "_", answer.path.stem) + "_adopted")
        module.__file__ = str(answer.path)
        sys.modules[module.__name__] = module
        lines = answer.code.splitlines(keepends=True)
        linecache.cache[str(answer.path)] = (len(answer.code), None, lines, str(answer.path))
        code = compile(answer.code, str(answer.path), "exec")
        with self.running():
            exec(code, module.__dict__)
        return module.__dict__

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the answer's code: with our ``load_inline``, and without a GPU on the simulator."""
        originals = cpp_extension.load_inline, cpp_extension.load
        cpp_extension.load_inline = self.load_inline
        cpp_extension.load = _refuse_load
        with contextlib.ExitStack() as stack:
            if self.engine == "sim":
                stack.enter_context(_fake_cuda())
                stack.enter_context(OnDevice("cpu"))
            try:
                yield
            finally:
                cpp_extension.load_inline, cpp_extension.load = originals
        if self.missing is not None:
            raise NeedsBuild

    def load_inline(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module of an extension that the user's process has built."""
        bound = inspect.signature(_original).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename != str(self.answer.path):
            frame = frame.f_back
        line = frame.f_lineno if frame else 1
        exports = given["functions"] or ()
        spec = {
            "cpp": _joined(given["cpp_sources"]),
            "cuda": _joined(given["cuda_sources"]),
            "exports": [exports] if isinstance(exports, str) else list(exports),
            "flags": [*(given["extra_cflags"] or ()), *(given["extra_cuda_cflags"] or ())],
            "line": line,
        }
        extension = extension_of(self.answer, spec, self.values)
        library = self.libraries.get(extension.digest)
        if library is None:
            self.missing = spec
            raise NeedsBuild
        if library == WITH_TORCH:
            return self.with_torch(given)
        called = _runner(self.engine)(extension, Path(library), self.calls)
        names = spec["exports"] or re.findall(r'\.def\(\s*"(\w+)"', spec["cpp"] + spec["cuda"])
        module = types.ModuleType(str(given["name"]))
        for name in names:
            setattr(module, name, _function(called, name))
        return module

    def with_torch(self, given: Mapping[str, Any]) -> Any:
        """Return a module that torch itself builds, in the scratch folder."""
        folder = Path.cwd() / f"build_{len(list(Path.cwd().iterdir()))}"
        folder.mkdir()
        self.emit({"with torch": True})
        return _original(**{**given, "build_directory": str(folder)})

    # ---- running -------------------------------------------------------------------------------

    def models(self, task: Task, space: Mapping[str, Any], case: Case) -> tuple[Any, Any]:
        """Return the reference in float32, and the answer with the same weights."""
        torch.manual_seed(0)
        reference = task.space["Model"](*case.init, **case.named).to(self.device)
        torch.manual_seed(0)
        with self.running():
            answer = space["ModelNew"](*case.init, **case.named)
        answer = answer.to(self.device)
        copy_weights(reference, answer)
        return reference.eval(), answer.eval()

    def apply(self, model: Any, inputs: Sequence[Any]) -> Any:
        """Run the reference."""
        with torch.no_grad():
            mode = OnDevice("cpu") if self.engine == "sim" else contextlib.nullcontext()
            with mode:
                return model(*[_copied(each) for each in inputs])

    def answered(self, model: Any, inputs: Sequence[Any]) -> Any:
        """Run the answer."""
        with torch.no_grad(), self.running():
            result = model(*inputs)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return result

    def inputs(self, task: Task, case: Case, seed: int) -> list[Any]:
        """Return the inputs of a case on the device."""
        inputs, _ = task.inputs(case, self.device, seed)
        return [each.to(self.device) if isinstance(each, Tensor) else each for each in inputs]

    def trial(self, task: Task, space: Mapping[str, Any], case: Case) -> tuple[Any, Any, Any]:
        """Run a case once; return the comparison, the models and the inputs."""
        reference, answer = self.models(task, space, case)
        inputs = self.inputs(task, case, 1)
        truth = Truth.of(reference, inputs, self.apply)
        kept = [_copied(each) for each in inputs]
        result = self.answered(answer, inputs)
        compared = compare(result, truth)
        if not compared.kind and not all(map(_same, inputs, kept)):
            compared = replace(compared, kind="form", text="ModelNew changes its inputs")
        return compared, (reference, answer), inputs


def extension_of(answer: Answer, spec: Mapping[str, Any], values: Mapping[str, int]) -> Extension:
    """Return the extension for the arguments that a child emitted."""
    return Extension.of(
        answer, spec["cpp"], spec["cuda"], spec["exports"], spec["flags"], spec["line"], values
    )


def _runner(engine: str) -> Callable[..., Any]:
    if engine == "sim":
        from .simulated import Simulated

        return Simulated
    from .on_gpu import OnGpu

    return OnGpu


def _function(called: Any, name: str) -> Callable[..., Any]:
    def call(*values: Any, **named: Any) -> Any:
        return called.call(name, values, named)

    call.__name__ = name
    return call


def _refuse_load(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("convlab reads load_inline, and not load(): put the sources into the file")


def _joined(sources: Any) -> str:
    if sources is None:
        return ""
    return sources if isinstance(sources, str) else "\n".join(sources)


def copy_weights(source: Any, target: Any) -> bool:
    """Copy parameters and buffers by name, else by their order; return whether all fit."""
    state = source.state_dict()
    theirs = target.state_dict()
    shapes = [value.shape for value in state.values()]
    if {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in theirs.items()
    }:
        target.load_state_dict(state)
        return True
    if shapes == [value.shape for value in theirs.values()]:
        target.load_state_dict(dict(zip(theirs, state.values(), strict=True)))
        return True
    return False


def share_weights(model: Any, w: Tensor, bias: Tensor | None) -> None:
    """Let a model's parameters be a filter and a bias: they share memory, as these change later.

    Raises ValueError if the model has no parameter of such a shape.
    """
    for wanted in (w, bias):
        if wanted is None:
            continue
        found = [each for each in model.parameters() if each.shape == wanted.shape]
        if not found:
            raise ValueError(f"ModelNew has no parameter of the shape {tuple(wanted.shape)}")
        found[0].data = wanted


def _copied(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # clone() keeps the strides of a dense tensor.
    return value.detach().clone()


def _same(a: Any, b: Any) -> bool:
    return not isinstance(a, Tensor) or torch.equal(a, b)


class _Stream:
    """A stand-in for torch's streams and events: on the simulator each call is complete."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: 0.0


@contextlib.contextmanager
def _fake_cuda() -> Iterator[None]:
    """Let torch.cuda look like that of a machine with one GPU."""
    changed = {
        "Stream": _Stream,
        "Event": _Stream,
        "stream": _Stream,
        "device": _Stream,
        "current_stream": _Stream,
        "default_stream": _Stream,
        "synchronize": lambda *args: None,
        "empty_cache": lambda: None,
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda *args: f"NVIDIA {DEFAULT_GPU.name}",
        "get_device_capability": lambda *args: (9, 0),
        "set_device": lambda *args: None,
    }
    before = {name: getattr(torch.cuda, name) for name in changed}
    for name, value in changed.items():
        setattr(torch.cuda, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(torch.cuda, name, value)
