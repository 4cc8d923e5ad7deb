"""Let an answer be used wherever a kernel may: the runnable for a ``.py`` file.

Its ``Model`` must be one 2-D convolution, as torch.nn.Conv2d takes it; then each problem gives the
arguments of ``ModelNew``, and each launch is one call of its ``forward`` in the confined process.
"""

from __future__ import annotations

import ast
import base64
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.cost import COUNTED, MEASURED, CostKind
from ..core.errors import LaunchError, ProblemError
from ..core.finding import Finding
from ..core.kernel.engine import engine_name, engine_named
from ..core.kernel.runnable import Allocate, Inputs, Launch, Runnable, empty
from ..core.machine.gpus import Gpu
from ..core.problem.problem import Problem
from . import here
from .adoption import adopt
from .adoption_report import Adoption
from .answer import Answer, called, read
from .answer_runner import RUNNER
from .confined_run import run_confined
from .diagnose import diagnose
from .tunables import require

if TYPE_CHECKING:
    from .inspect_answer import AnswerInspection
    from .session import Session

# The parameters of a convolution's __init__, as torch.nn.Conv2d names them.
_SIZES = ("in_channels", "out_channels", "kernel_size")
_OPTIONS = ("stride", "padding", "dilation", "groups", "bias")
_CONV2D = (*_SIZES, *_OPTIONS)
# A sector of global memory, in MB.
_SECTOR_MB = 32e-6


def load(path: str | Path, engine: str = "auto") -> AnswerKernel:
    """Return the runnable for an answer's file.

    Raises
    ------
    ProblemError
        The file cannot be read, has no Python code, or the diagnosis found an error.
    """
    return AnswerKernel(read(Path(path)), engine_name(engine))


class AnswerTask:
    """An answer's own task: its Model on its get_inputs, whatever it computes."""

    def __init__(self, kernel: AnswerKernel) -> None:
        self.kernel = kernel

    def report(self) -> Adoption:
        """Judge the answer."""
        return self._adopted()

    def inspection(self, gpu: Gpu) -> AnswerInspection:
        """Inspect the kernels that the answer launches."""
        from .inspect_answer import inspect_answer

        return inspect_answer(self.kernel.path, gpu, self.kernel.engine)

    def cost(self) -> tuple[CostKind, float]:
        """Return what one call costs: a time, or counted traffic in MB.

        Raises LaunchError if the answer is not correct as asked.
        """
        found = self._adopted(general=False, simulate=None)
        if not found.ok:
            raise LaunchError(f"{self.kernel.name}: {found.why}", kind=found.outcome)
        if found.times:
            return MEASURED, found.times["answer"]
        sectors = ("global_load_sectors", "global_store_sectors")
        return COUNTED, sum(_SECTOR_MB * found.counters.get(name, 0) for name in sectors)

    def _adopted(self, **options: Any) -> Adoption:
        kernel = self.kernel
        return adopt(kernel.path, engine=kernel.engine, tunables=kernel.defines, **options)


class AnswerKernel(Runnable):
    """An answer as a runnable."""

    own_runner = RUNNER

    def __init__(
        self, answer: Answer, engine: str, tunables: Mapping[str, int] | None = None
    ) -> None:
        self.answer = answer
        self.path = answer.path
        self.source = answer.whole
        self.defines = dict(tunables or {})
        values = [f"{name}={value}" for name, value in self.defines.items()]
        self.name = answer.name + (f"@{','.join(values)}" if values else "")
        self.title = self.name
        self.precision = "fp32"
        self.engine = engine
        self.runs_on = engine_named(engine)
        self.device = self.runs_on.device
        self.texts = {answer.path.name: answer.whole}
        self.time_limit = self.runs_on.time_limit
        self.own_task = AnswerTask(self)
        self._parameters = _parameters(answer)

    def __reduce__(self) -> tuple:
        return _copy, (self.answer, self.engine, self.defines, self.precision)

    def coarser(self) -> AnswerKernel | None:
        """Return the answer as a kernel in tf32, if it is not yet one."""
        if self.precision != "fp32":
            return None
        return _copy(self.answer, self.engine, self.defines, "tf32")

    def tuned(self, tunables: Mapping[str, int]) -> AnswerKernel:
        """Return the answer with other values of its tunables; see `tunables.tunables`."""
        require(self.answer, tunables)
        return AnswerKernel(self.answer, self.engine, {**self.defines, **tunables})

    def unsupported(self, problem: Problem) -> str | None:
        """Return why the answer does not support a problem, or None if it does."""
        if (other := not_a_convolution(self.answer)) is not None:
            return f"its Model is not one 2-D convolution ({other}): `convlab adopt` judges any operation"
        if problem.relu:
            return "its Model has no ReLU"
        has = self._parameters
        is_depthwise = "out_channels" not in has
        if is_depthwise and not problem.C == problem.K == problem.groups:
            return "its Model is a depthwise convolution: it needs C = K = groups"
        if "kernel_size" not in has and (problem.R, problem.S) != (1, 1):
            return "its Model is a 1x1 convolution"
        needs = {
            "stride": problem.stride != (1, 1),
            "padding": problem.padding != (0, 0),
            "dilation": problem.dilation != (1, 1),
            "groups": problem.groups != 1 and not is_depthwise,
            "bias": problem.bias,
        }
        missing = [name for name, needed in needs.items() if needed and name not in has]
        return f"its Model has no parameter {missing[0]}" if missing else None

    def arguments(self, problem: Problem) -> dict[str, Any]:
        """Return the arguments of ``ModelNew`` for a problem."""
        values = {
            "in_channels": problem.C,
            "out_channels": problem.K,
            "kernel_size": _pair((problem.R, problem.S)),
            "stride": _pair(problem.stride),
            "padding": _pair(problem.padding),
            "dilation": _pair(problem.dilation),
            "groups": problem.groups,
            "bias": problem.bias,
        }
        return {name: value for name, value in values.items() if name in self._parameters}

    def prepare(
        self,
        problem: Problem,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        allocate: Allocate = empty,
    ) -> AnswerLaunch:
        """Return the launch of the answer's ``forward``."""
        self.accept(problem)
        errors = [each for each in diagnose(self.answer) if each.error and each.kind != "cheat"]
        if errors:
            raise ProblemError(
                f"{self.path.name}:{errors[0].line}: {errors[0].text}; {errors[0].todo}"
            )
        if here.session is not None:
            return DirectLaunch(self, problem, (x, w, bias), here.session(self.spec()))
        return AnswerLaunch(self, problem, (x, w, bias), allocate)

    def spec(self, problem: Problem | None = None) -> dict[str, Any]:
        """Return what the confined process needs to load the answer."""
        found = {
            "answer": self.answer,
            "reference": self.answer,
            "engine": self.engine,
            "values": dict(self.defines),
        }
        return found | ({"arguments": self.arguments(problem)} if problem else {})


def _copy(answer: Answer, engine: str, defines: Mapping[str, int], precision: str) -> AnswerKernel:
    """Return the runnable for an answer, in a precision class."""
    kernel = AnswerKernel(answer, engine, defines)
    kernel.precision = precision
    return kernel


class DirectLaunch(Launch):
    """A call of an answer's ``forward`` in this process, which is confined: `y` is what it returned."""

    runnable: AnswerKernel

    def __init__(
        self, runnable: AnswerKernel, problem: Problem, inputs: Inputs, session: Session
    ) -> None:
        super().__init__(runnable, problem, inputs)
        self.y = inputs[0].new_empty(problem.y_shape)
        self._session = session
        with self._errors(), torch.no_grad():
            space = session.execute(runnable.answer)
            with session.running():
                model = space["ModelNew"](**runnable.arguments(problem))
            self._model = model.to(inputs[0].device).eval()
            from .session import share_weights

            share_weights(self._model, *inputs[1:])

    def __call__(self) -> None:
        # Free the last y, so that torch can use its memory again.
        self.y = None
        with self._errors(), torch.no_grad():
            y = self._model(self.inputs[0])
        returned = (type(y), tuple(getattr(y, "shape", ())), getattr(y, "dtype", None))
        if returned != (Tensor, self.problem.y_shape, torch.float32):
            raise LaunchError(
                f"{self.runnable.name} returned {returned[0].__name__} {returned[1]} {returned[2]}, and "
                f"{self.problem.label} needs a torch.float32 tensor {self.problem.y_shape}"
            )
        self.y = y.detach()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise a LaunchError with the line for an exception of the answer's code."""
        try:
            yield
        except (torch.OutOfMemoryError, LaunchError):
            raise
        except Exception as error:
            if isinstance(error, RuntimeError) and "CUDA" in str(error):
                raise
            mistake = self._session.failed(error, "raised")[0]
            text = f"{self.runnable.name}: line {mistake.line}: {mistake.text}"
            raise LaunchError(text, kind="refused") from error


class AnswerLaunch(Launch):
    """A call of an answer's ``forward``, in the confined process."""

    runnable: AnswerKernel
    own_process = True

    def __init__(
        self, runnable: AnswerKernel, problem: Problem, inputs: Inputs, allocate: Allocate
    ) -> None:
        super().__init__(runnable, problem, inputs)
        self.y = allocate(problem.y_shape, torch.float32, inputs[0].device)

    def __call__(self) -> None:
        kernel = self.runnable
        tensors = tuple(None if each is None else each.contiguous() for each in self.inputs)
        spec = kernel.spec(self.problem) | {"tensors": tensors}
        found = run_confined("convolve", spec, kernel.time_limit)
        self.counters = None
        self.findings = [_finding(each) for each in found.get("findings", ())]
        if "failed" in found:
            error = LaunchError(f"{kernel.name}: {found['failed']}", kind=found.get("kind", ""))
            error.findings = self.findings
            raise error
        data = torch.frombuffer(bytearray(base64.b64decode(found["y"])), dtype=torch.float32)
        if tuple(found["shape"]) != self.problem.y_shape:
            raise LaunchError(
                f"{kernel.name} returned the shape {tuple(found['shape'])}, and "
                f"{self.problem.label} needs {self.problem.y_shape}"
            )
        self.y.copy_(data.view(self.problem.y_shape))
        self.counters = found["counters"]
        self.launches = found["kernels"]
        self.lines = found["lines"]

    def call_after(self, earlier: Any) -> None:
        """Call the answer; each call runs in a new process, so that nothing remains of others."""
        self()


def not_a_convolution(answer: Answer) -> str | None:
    """Return what about Model is not that of one torch.nn.Conv2d; None if it is one."""
    node = answer.classes.get("Model")
    if node is None:
        return f"{answer.path.name} has no Model"
    made = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    layers = [each for each in made if called(each).split(".")[-1] == "Conv2d"]
    if len(layers) != 1:
        return f"it has {len(layers) or 'no'} Conv2d"
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    forward = next((each for each in methods if each.name == "forward"), None)
    calls = [each for each in ast.walk(forward) if isinstance(each, ast.Call)] if forward else []
    sums = [each for each in ast.walk(forward) if isinstance(each, ast.BinOp)] if forward else []
    if len(calls) != 1 or sums:
        return "its forward does more than one call"
    parameters = _init(answer, "Model")
    if other := [name for name in parameters if name not in _CONV2D]:
        return f"it has the parameter {other[0]}"
    given = {word.arg: word.value for word in layers[0].keywords}
    for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
        value = given.get(name)
        if isinstance(value, ast.Constant) and value.value != default:
            return f"its {name} is always {value.value!r}"
    if "bias" not in given and len(layers[0].args) < len(_CONV2D):
        return "it always has a bias"
    size = given.get("kernel_size", layers[0].args[2] if len(layers[0].args) > 2 else None)
    is_one = isinstance(size, ast.Constant) and size.value == 1
    if "in_channels" not in parameters or not (is_one or "kernel_size" in parameters):
        return "it does not take in_channels and kernel_size"
    if "out_channels" not in parameters and "groups" not in given:
        return "it does not take out_channels"
    return None


def _parameters(answer: Answer) -> tuple[str, ...]:
    """Return the names of the arguments that both Model and ModelNew take."""
    found = [_init(answer, name) for name in ("Model", "ModelNew")]
    return tuple(name for name in found[0] if name in found[1])


def _init(answer: Answer, name: str) -> list[str]:
    """Return the names of the arguments of a class of the file, also of one that it inherits."""
    node = answer.classes.get(name)
    if node is None:
        return []
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return [argument.arg for argument in each.args.args[1:]]
    bases = [called(base) for base in node.bases if called(base) != name]
    return next((names for base in bases if (names := _init(answer, base))), [])


def _pair(value: tuple[int, int]) -> int | tuple[int, int]:
    return value[0] if value[0] == value[1] else value


def _finding(values: Mapping[str, Any]) -> Finding:
    """Return a finding from what JSON kept of it."""
    triples = ("block", "thread", "other_block", "other_thread", "index")
    given = {
        key: tuple(value) if key in triples and value is not None else value
        for key, value in values.items()
    }
    return Finding(**given)
