"""Judge an answer in the confined child: run it, and compare it with its reference.

`run` emits pieces, each a dict that JSON can write. `adoption.py` puts them together in the user's
process. This module runs somebody's code; only `process.py` calls it.
"""

from __future__ import annotations

import ast
import base64
import inspect
import itertools
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.errors import ConvlabError, LaunchError
from ..core.faults import fault
from ..core.kernel import runner
from . import here
from .answer import Answer
from .mistake import Mistake
from .precision import Truth, compare
from .session import Emit, NeedsBuild, Session, Stop, copy_weights, share_weights
from .shapes import SIZED, Case, Task, listed, unusual_numbers, variations

# Operations of a case, by engine: on the simulator about a second.
_BUDGETS = {"sim": 1_500_000, "cuda": 50_000_000}
# Of the times on a GPU: calls that warm up, timed calls, and the bytes that flush the L2.
_WARM = 3
_TIMED = 21
_FLUSHED_BYTES = 256 << 20
# The most that is added to each weight for a call with other weights.
_WEIGHT_STEP = 0.25
# Inputs times this are past float16's range, and far from the ends of float32's.
_PAST_HALF = 2.0**17
# Operators that do the work which a kernel should do.
_HEAVY = {
    "convolution",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mv",
    "dot",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_attention_math",
}
# Operators that only look at tensors, or make them.
_LIGHT = re.compile(
    r"^(?:view|_unsafe_view|reshape|detach|alias|t|transpose|permute|expand|as_strided|clone|copy_|"
    r"_to_copy|empty.*|zeros.*|ones.*|slice|select|unsqueeze|squeeze|set_.*|contiguous|lift_fresh|"
    r"_local_scalar_dense|is_.*|unbind|split.*|fill_|zero_|resize_|equal)$"
)


def run(emit: Emit, spec: Mapping[str, Any]) -> None:
    """Judge an answer; emit its builds, mistakes, verdicts and counts.

    Parameters
    ----------
    emit : gets the pieces.
    spec : ``answer`` and ``reference``, ``engine``, ``libraries``, ``general``, ``seconds``, and
        perhaps ``values`` of tunables.
    """
    session = _session(emit, spec)
    try:
        _judge(session, spec)
    except NeedsBuild:
        emit({"needs": session.missing})
    except Stop:
        pass
    emit({"ended": True})


def _session(emit: Emit, spec: Mapping[str, Any]) -> Session:
    parts = [spec[key] for key in ("answer", "reference", "engine", "libraries")]
    return Session(emit, *parts, spec.get("values", {}))


def convolve(emit: Emit, spec: Mapping[str, Any]) -> None:
    """Run an answer once as a convolution; emit y, the counts and the findings.

    Parameters
    ----------
    emit : gets the pieces.
    spec : as for `run`, with the ``arguments`` of ModelNew, and ``tensors`` x, w, bias.
    """
    session = _session(emit, spec)
    x, w, bias = spec["tensors"]
    try:
        try:
            space = session.execute(session.answer)
            with session.running():
                model = space["ModelNew"](**spec["arguments"])
            with torch.no_grad():
                share_weights(model, w, bias)
            y = session.answered(model, [x]).detach().float().contiguous()
        finally:
            emit({"findings": [vars(each) for each in session.calls.findings]})
    except NeedsBuild:
        emit({"needs": session.missing})
        return
    except LaunchError as error:
        emit({"failed": str(error), "kind": error.kind})
        return
    except Exception as error:
        (mistake, *_) = session.failed(error, "raised")
        emit({"failed": f"line {mistake.line}: {mistake.text}", "kind": "refused"})
        return
    emit({"y": base64.b64encode(y.numpy().tobytes()).decode(), "shape": list(y.shape)})
    _emit_calls(session)


def load(emit: Emit, spec: Mapping[str, Any]) -> None:
    """Execute an answer's file, and make its ModelNew if the spec has its ``arguments``."""
    session = _session(emit, spec)
    try:
        space = session.execute(session.answer)
        if "arguments" in spec:
            with session.running():
                space["ModelNew"](**spec["arguments"])
    except NeedsBuild:
        emit({"needs": session.missing})
    except Exception as error:
        (mistake, *_) = session.failed(error, "raised")
        emit({"failed": f"line {mistake.line}: {mistake.text}", "kind": "refused"})


def call(emit: Emit, spec: Mapping[str, Any]) -> None:
    """Call a function of the core in this process, in which answers run; emit what it returns.

    Parameters
    ----------
    emit : gets the pieces.
    spec : as for `run`, with ``call``: the pickled function and its arguments.
    """
    runner.stay_in_process()
    here.session = lambda answer: _session(emit, answer | {"libraries": spec["libraries"]})
    function, args, kwargs = pickle.loads(spec["call"])
    try:
        value = function(*args, **kwargs)
    except NeedsBuild:
        emit({"failed": "it loads an extension only when it is called, which convlab cannot time"})
    except ConvlabError as error:
        emit({"failed": str(error), "kind": getattr(error, "kind", "")})
    else:
        emit({"value": base64.b64encode(pickle.dumps(value)).decode()})


def _judge(session: Session, spec: Mapping[str, Any]) -> None:
    until = time.monotonic() + spec["seconds"]
    if session.engine == "cuda":
        # The reference is float32, whatever the answer switches on: see `Truth`.
        _allow_tf32(False)
    space = _attempt(session, "while the file is loaded", session.execute, session.answer)
    session.emit({"clock": {"loaded": session.elapsed}})
    own = spec["reference"].path == spec["answer"].path
    task_space = space if own else session.execute(spec["reference"])
    session.emit({"builds": True})
    task = Task(task_space, _parameters(task_space["Model"]))
    init = tuple(task_space["get_init_inputs"]())
    case = Case(init)
    case = _sized(session, task, case)
    while True:
        try:
            ok = _as_asked(session, task, space, case)
            break
        except torch.OutOfMemoryError:
            case = _halved(session, task, case)
    if not ok:
        raise Stop
    if spec.get("told"):
        what = "on scaled-down inputs" if session.engine == "sim" else "with the task's shapes"
        rest = "; other shapes follow" if spec["general"] else ""
        text = f"{session.answer.path.name}: correct as asked, {what}{rest}"
        session.emit({"told": text})
    if session.engine == "cuda":
        _time(session, task, space, case)
        session.emit({"clock": {"timed": session.elapsed}})
    if spec["general"]:
        small = task.scaled(case, _BUDGETS[session.engine])
        # On the simulator the task's own case is small.
        is_new = session.engine == "cuda" and small is not None and small != case
        if small is not None and (not is_new or _smaller(session, task, space, small)):
            _in_general(session, task, space, small, until)


def _sized(session: Session, task: Task, case: Case) -> Case:
    """Return the case to judge: on the simulator scaled down."""
    if session.engine != "sim":
        return case
    scaled = task.scaled(case, _BUDGETS["sim"])
    if scaled is None:
        session.emit({"not judged": "its inputs could not be scaled down for the simulator"})
        raise Stop
    session.emit({"scaled": _sizes_text(task, scaled), "whole": _sizes_text(task, case)})
    if tuple(scaled.init) != tuple(case.init):
        session.emit({"init": [repr(value) for value in scaled.init]})
    return scaled


def _halved(session: Session, task: Task, case: Case) -> Case:
    """Return a case of half the cost, after the GPU's memory ran out."""
    torch.cuda.empty_cache()
    cost = task.cost(case)
    smaller = task.scaled(case, cost / 2) if cost else None
    if smaller is None or smaller == case:
        session.emit({"not judged": "the GPU's memory is too small for float64, at any batch"})
        raise Stop
    session.emit(
        {"scaled": _sizes_text(task, smaller), "whole": _sizes_text(task, Case(case.init))}
    )
    return smaller


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _time(session: Session, task: Task, space: Mapping[str, Any], case: Case) -> None:
    """Emit the median times of the answer and of Model in its class, in turn, with a flushed L2."""
    _allow_tf32(session.precision == "tf32")
    reference, answer = session.models(task, space, case)
    inputs = session.inputs(task, case, 3)
    flush = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    samples: dict[str, list[float]] = {"answer": [], "model": []}
    for repetition in range(_WARM + _TIMED):
        for name, model in (("answer", answer), ("model", reference)):
            flush.zero_()
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            with torch.no_grad():
                model(*inputs)
            end.record()
            torch.cuda.synchronize()
            if repetition >= _WARM:
                samples[name].append(start.elapsed_time(end))
    _allow_tf32(False)
    session.emit({"times": {name: sorted(ms)[len(ms) // 2] for name, ms in samples.items()}})


def _attempt(session: Session, stage: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns; emit the mistake if the answer's code raises."""
    try:
        return function(*args)
    except (NeedsBuild, torch.OutOfMemoryError):
        raise
    except Exception as error:
        for mistake in session.failed(error, stage):
            session.mistake(mistake)
        session.emit({"as asked": False})
        raise Stop from None


def _as_asked(session: Session, task: Task, space: Mapping[str, Any], case: Case) -> bool:
    """Judge the task's own case: three calls, the second and third with other numbers."""
    compared, (reference, answer), inputs = _attempt(
        session, "with the task's shapes", session.trial, task, space, case
    )
    session.emit({"clock": {"first call": session.elapsed}})
    ok = _compared(session, compared, "")
    session.precision = compared.precision
    session.emit({"precision": compared.precision, "error": compared.error})
    _emit_calls(session)
    ok &= _own_work(session, reference, answer, inputs)
    if ok:
        ok &= _other_numbers(session, reference, answer, inputs, task, case)
    if ok and compared.precision == "tf32":
        ok &= _has_range(session, task, reference, answer, case)
    for finding in session.calls.findings:
        if finding.kind in ("race", "uninitialised read", "wrong stream", "written twice"):
            session.mistake(session.finding(finding))
            ok &= finding.kind != "wrong stream"
    session.emit({"as asked": bool(ok)})
    session.emit({"clock": {"as asked": session.elapsed}})
    return bool(ok)


def _has_range(session: Session, task: Task, reference: Any, answer: Any, case: Case) -> bool:
    """Return whether an answer with TF32's error has its range too; float16 has the same error."""
    inputs = [
        each * _PAST_HALF if isinstance(each, Tensor) and each.is_floating_point() else each
        for each in session.inputs(task, case, 5)
    ]
    truth = Truth.of(reference, inputs, session.apply)
    plain = [each for each in listed(session.apply(reference, inputs)) if isinstance(each, Tensor)]
    if not all(each.isfinite().all() for each in plain):
        return True
    result = _attempt(session, "with large inputs", session.answered, answer, inputs)
    compared = compare(result, truth)
    if not compared.kind:
        return True
    text = (
        f"it has float16's precision: its error is that of TF32, and with inputs {_PAST_HALF:,.0f} "
        f"times as large, in float32's range, {compared.text}"
    )
    session.mistake(Mistake("too imprecise", _line_of_class(session), text, _NO_HALF))
    return False


_NO_HALF = "compute in float32 or TF32; or say in the task that float16 is allowed"


def _line_of_class(session: Session) -> int:
    node = session.answer.classes.get("ModelNew")
    return node.lineno if node else 0


def _compared(session: Session, compared: Any, when: str) -> bool:
    """Emit what is incorrect in a comparison; return whether nothing is."""
    if not compared.kind:
        return True
    text = f"{compared.text}{when}"
    advice = fault(compared.kind).advice
    session.mistake(Mistake(compared.kind, _line_of_class(session), text, advice))
    return False


def _other_numbers(
    session: Session,
    reference: Any,
    answer: Any,
    inputs: list[Any],
    task: Task,
    case: Case,
) -> bool:
    """Call the same model again: with other numbers at the same addresses, and with other weights."""
    before = Truth.of(reference, inputs, session.apply)
    for put, new in zip(inputs, session.inputs(task, case, 2), strict=True):
        if isinstance(put, Tensor):
            put.copy_(new)
    truth = Truth.of(reference, inputs, session.apply)
    result = _attempt(session, "in a second call", session.answered, answer, inputs)
    again = " in a call with other numbers at the same addresses"
    if not _compared(session, compare(result, truth), again):
        return False
    if not compare(before.outputs, truth).kind and not _depends(session):
        return False
    if not any(True for _ in answer.parameters()):
        return True
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in reference.parameters():
            # A bias may begin as zero, which no factor changes.
            parameter.mul_(-0.5).add_(_WEIGHT_STEP * torch.rand_like(parameter))
    if not copy_weights(reference, answer):
        return True
    truth = Truth.of(reference, inputs, session.apply)
    result = _attempt(session, "with other weights", session.answered, answer, inputs)
    return _compared(session, compare(result, truth), " after the weights changed")


def _depends(session: Session) -> bool:
    """Return False if no kernel loads anything; Model's output is the same for all inputs."""
    loads = session.calls.counters.get("global_load_requests")
    text = (
        "Model's output is the same for all inputs, so the task cannot show that the work is done"
    )
    if loads == 0:
        text = "no kernel reads its inputs; that is correct only because Model's output is constant"
    todo = "compute what Model computes; or choose a task whose output depends on its inputs"
    session.mistake(Mistake("cheat", _line_of_class(session), text, todo, error=loads == 0))
    return loads != 0


class _Operators(TorchDispatchMode):
    """Record the names of torch's operators."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # A mode that torch.compile must skip imports all of torch.compile: three to four seconds of each
        # answer's first result.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record an operator, and run it."""
        self.names.append(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


def _own_work(session: Session, reference: Any, answer: Any, inputs: list[Any]) -> bool:
    """Return whether kernels of the answer do the work; emit which operators torch computes."""
    before = session.calls.launches
    with _Operators() as theirs:
        _attempt(session, "in a repeated call", session.answered, answer, inputs)
    launches = session.calls.launches - before
    with _Operators() as plain:
        session.apply(reference, inputs)
    work = [name for name in theirs.names if not _LIGHT.match(name)]
    heavy = [name for name in work if name in _HEAVY]
    needed = [name for name in plain.names if name in _HEAVY]
    node = session.answer.classes.get("ModelNew")
    forward = next((each for each in node.body if getattr(each, "name", "") == "forward"), node)
    line = forward.lineno
    session.emit({"launches": launches, "torch": sorted(set(work))})
    if session.engine == "sim" and not launches:
        shown = ", ".join(dict.fromkeys(work))
        text = "no kernel of the answer runs in forward"
        todo = "call your kernel in forward"
        if shown:
            text += f"; torch computes {shown}"
        elif before:
            text = "a second call with the same inputs runs no kernel: it returns an earlier result"
            todo = "compute the result in each call"
        session.mistake(Mistake("cheat", line, text, todo))
        return False
    if heavy and len(heavy) >= len(needed) > 0:
        text = f"torch computes {', '.join(dict.fromkeys(heavy))}, which is most of the work"
        only = len(set(plain.names) - set(heavy) - {"t", "view", "detach"}) <= 1
        todo = "compute it in a kernel of your own"
        session.mistake(Mistake("cheat", line, text, todo, error=only))
        return not only
    return True


def _smaller(session: Session, task: Task, space: Mapping[str, Any], small: Case) -> bool:
    """Emit how an answer does with smaller inputs; return whether it is correct.

    If it is not, nothing can be learnt from what differs from them.
    """
    sizes = ", ".join("x".join(map(str, shape)) for shape in _sizes_text(task, small))
    outcome = _outcome(session, task, space, small)
    session.emit({"case": f"smaller inputs, {sizes}", "knobs": {"sizes": "smaller"}, **outcome})
    return outcome["result"] == "correct"


def _in_general(
    session: Session, task: Task, space: Mapping[str, Any], case: Case, until: float
) -> None:
    """Vary sizes and arguments; emit the result of each case."""
    names = _slot_names(session.reference, task, case)
    new_names = _parameters(space["ModelNew"])
    budget = _BUDGETS[session.engine]
    ordinary = variations(task, case, names, budget)
    for varied in itertools.chain(ordinary, _unusual_numbers(session, task, case)):
        if time.monotonic() > until:
            session.emit({"out of time": True})
            return
        if any(name not in new_names for name in varied.named):
            continue
        session.emit(
            {
                "case": varied.label,
                "knobs": _plain(varied.knobs),
                **_outcome(session, task, space, varied),
            }
        )


def _unusual_numbers(session: Session, task: Task, case: Case) -> Iterator[Case]:
    """Yield cases with unusual numbers for which Model has one finite result."""
    text = ast.unparse(session.reference.classes["Model"])
    for varied in unusual_numbers(case):
        # torch does not say in which order these return equal numbers.
        if "whole" in varied.data and re.search(r"\b(topk|sort|argsort|kthvalue|median|mode)\b", text):
            continue
        reference, _ = session.models(task, {"ModelNew": task.space["Model"]}, varied)
        outputs = listed(session.apply(reference, session.inputs(task, varied, 1)))
        if all(each.isfinite().all() for each in outputs if isinstance(each, Tensor)):
            yield varied


def _outcome(session: Session, task: Task, space: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Return how an answer does in one case: "correct", "refused", "incorrect" or "crashed"."""
    try:
        compared, _, _ = session.trial(task, space, case)
    except LaunchError as error:
        first = session.findings(error)[0]
        kind = (
            "not simulated"
            if error.kind in ("not simulated", "memory", "not run", "out of time")
            else "crashed"
        )
        return {"result": kind, "line": first.line, "text": first.text}
    except NeedsBuild:
        raise
    except Exception as error:
        first = session.failed(error, "raised")[0]
        return {"result": "refused", "line": first.line, "text": first.text}
    if compared.kind:
        return {"result": "incorrect", "line": 0, "text": compared.text}
    return {"result": "correct", "line": 0, "text": ""}


# ---- small parts --------------------------------------------------------------------------------


def _parameters(model: type) -> dict[str, Any]:
    """Return the names of init arguments with their defaults; None for one without a default."""
    names = {}
    for parameter in list(inspect.signature(model.__init__).parameters.values())[1:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            given = parameter.default is not inspect.Parameter.empty
            names[parameter.name] = parameter.default if given else None
    return names


def _sizes_text(task: Task, case: Case) -> list[list[int]]:
    """Return the shapes of the inputs of a case."""
    inputs, _ = task.inputs(case, "meta")
    return [list(each.shape) for each in inputs if isinstance(each, Tensor)]


def _plain(knobs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, (int, float, bool)) else repr(value)
        for key, value in knobs.items()
    }


def _emit_calls(session: Session) -> None:
    calls = session.calls
    session.emit(
        {"counters": calls.counters, "kernels": calls.by_kernel[:40], "lines": calls.lines[:200]}
    )


def _slot_names(reference: Answer, task: Task, case: Case) -> dict[tuple[int, int], str]:
    """Return names of sizes: "height" for a constant that get_inputs uses, else "x.size(2)"."""
    sizes = task.sizes(case)
    forward = list(inspect.signature(task.space["Model"].forward).parameters)[1:]
    names = {
        (number, d): f"{forward[number]}.size({d})" for number, d in sizes if number < len(forward)
    }
    node = reference.functions.get("get_inputs")
    calls = [
        each
        for each in (ast.walk(node) if node else ())
        if isinstance(each, ast.Call) and getattr(each.func, "attr", "") in SIZED
    ]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    for number, call in enumerate(calls):
        given = call.args
        if given and isinstance(given[0], (ast.Tuple, ast.List)):
            given = given[0].elts
        for d, argument in enumerate(given):
            if isinstance(argument, ast.Name) and (number, d) in sizes:
                names[number, d] = argument.id
    return names
