"""Signs that an answer does not do its work itself: caught errors, stored results, switches, streams."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .answer import Answer, called
from .cpp_functions import blanked
from .mistake import Mistake

# Names of torch's functions and modules that do the work which a kernel should do.
HEAVY = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear bilinear matmul mm "
    "bmm baddbmm addmm addmv mv einsum tensordot scaled_dot_product_attention"
).split()
_OF_AT = re.compile(
    r"\b(?:at|torch)::(?:native::|nn::functional::|linalg::)?(?P<name>"
    + "|".join(HEAVY)
    + r")\s*\("
)
_SWITCHES = (
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.fp32_precision",
)
_SWITCHING_CALLS = (
    "torch.set_float32_matmul_precision",
    "torch.set_default_dtype",
    "torch.use_deterministic_algorithms",
    "torch.set_default_device",
)
_STREAMS = (
    "torch.cuda.Stream",
    "torch.cuda.stream",
    "torch.cuda.ExternalStream",
    "torch.cuda.set_stream",
)


def cheats(answer: Answer) -> Iterator[Mistake]:
    yield from _switches(answer.tree)
    yield from _in_cpp(answer)
    node = answer.classes.get("ModelNew")
    if node is None:
        return
    has_kernel = bool(answer.calls) or re.search(
        r"\bload\s*\(|triton|cupy|RawModule|RawKernel|ctypes", answer.code
    )
    if not has_kernel:
        yield Mistake(
            "cheat",
            node.lineno,
            "the answer has no kernel of its own: it only calls torch",
            "compute in a CUDA kernel",
        )
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            yield from _in_method(method)


def _in_method(method: ast.FunctionDef) -> Iterator[Mistake]:
    stored = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Try) and node.handlers:
            yield Mistake(
                "cheat",
                node.lineno,
                "errors of the kernel are caught here, so another computation can replace it",
                "remove the try and the except: a kernel that fails must be an error",
            )
        if isinstance(node, ast.Assign):
            for target in node.targets:
                base = target.value if isinstance(target, ast.Subscript) else target
                if called(base).startswith("self."):
                    stored.add(called(base))
    for node in ast.walk(method):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
        if isinstance(value, ast.Call) and called(value).endswith((".get", ".pop")):
            value = value.func.value
        if not isinstance(value, ast.Call) and called(value) in stored:
            yield Mistake(
                "cheat",
                node.lineno,
                f"a result that an earlier call stored in {called(value)} is returned",
                "compute the output in each call: equal addresses or shapes do not mean equal numbers",
            )


def _switches(tree: ast.Module) -> Iterator[Mistake]:
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in map(called, targets):
                if name in _SWITCHES:
                    yield _switch(node.lineno, name)
                elif (
                    "." in name
                    and name.split(".")[0] in imported
                    and name.startswith(("torch.", "time.", "F.", "nn.", "builtins."))
                ):
                    yield Mistake(
                        "cheat",
                        node.lineno,
                        f"{name} is replaced, for the reference and the judge too",
                        "leave torch and Python as they are",
                    )
        if isinstance(node, ast.Call):
            name = called(node)
            if name in _SWITCHING_CALLS:
                yield _switch(node.lineno, name)
            elif name in _STREAMS:
                yield Mistake(
                    "cheat",
                    node.lineno,
                    f"{name}: work on another stream is not timed, and nothing waits for it",
                    "launch on the current stream",
                )
            elif name.split(".")[-1] in ("Thread", "ThreadPoolExecutor", "Process", "Popen"):
                yield Mistake(
                    "cheat",
                    node.lineno,
                    f"{name} starts work that goes on after forward has returned",
                    "compute in the caller's thread",
                )
            elif (
                name == "setattr"
                and node.args
                and called(node.args[0]).split(".")[0] in ("torch", "time")
            ):
                yield Mistake(
                    "cheat",
                    node.lineno,
                    f"an attribute of {called(node.args[0])} is replaced",
                    "leave torch and Python as they are",
                )


def _switch(line: int, name: str) -> Mistake:
    return Mistake(
        "cheat",
        line,
        f"{name} changes the precision of torch itself, for the reference too",
        "remove it: the answer must not change global switches",
    )


def _in_cpp(answer: Answer) -> Iterator[Mistake]:
    """Yield what the C++ text does in place of a kernel's work."""
    for call in answer.calls:
        for source in ("cpp_sources", "cuda_sources"):
            text = call.source(source)
            if text is None:
                continue
            code = blanked(text.text)
            for use in _OF_AT.finditer(code):
                yield Mistake(
                    "cheat",
                    text.line_at(use.start()),
                    f"{use['name']} is torch's own operator: no kernel of the answer computes this",
                    "compute it in a CUDA kernel",
                )
            stream = re.search(
                r"\bgetStreamFromPool\b|\bcudaStreamCreate\w*\b|\bcudaStreamNonBlocking\b", code
            )
            if stream:
                yield Mistake(
                    "cheat",
                    text.line_at(stream.start()),
                    f"{stream[0]}: work on another stream is not timed unless the current one waits",
                    "launch on at::cuda::getCurrentCUDAStream()",
                    error=False,
                )
            if thread := re.search(r"\bstd::(?:thread|async|jthread)\b|\bpthread_create\b", code):
                yield Mistake(
                    "cheat",
                    text.line_at(thread.start()),
                    f"{thread[0]} starts work that goes on after the function has returned",
                    "compute in the caller's thread",
                )
