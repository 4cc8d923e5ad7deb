"""Diagnose an answer without running it: from its syntax tree and the text of its strings.

Nothing is imported from the answer, and no compiler runs. torch is imported only to ask whether a
name exists in it.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence

from ..core.arguments import hint
from .answer import LOAD_INLINE, UNKNOWN, Answer, LoadInline, Text, called
from .cpp_functions import Function, blanked, functions
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
# Macros of headers, which an answer need not define.
_KNOWN_MACRO = re.compile(
    r"(?:TORCH|AT|C10|CUDA|CUDART|CUBLAS|CUDNN|PYBIND11|PYBIND|FLT|DBL|INT|UINT|LONG|ULONG|SIZE|M|NAN|"
    r"INFINITY|NULL|EOF|FP|LLONG|CURAND|STD|WMMA|TORCH_EXTENSION|NPY|EXIT|RAND)(?:_\w+)?$|__\w+"
)
_MACRO_CALL = re.compile(r"(?<![\w.>:])(?P<name>[A-Z][A-Z0-9_]{3,})\s*\(")
_NO_VARIABLE = ("__file__", "__name__", "__doc__", "__class__", "__builtins__", "__annotations__")
_TIMERS = ("time", "torch.cuda", "torch.utils.benchmark", "torch.testing")
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


def diagnose(answer: Answer, reference: Answer | None = None) -> list[Mistake]:
    """Return the mistakes that are visible without running an answer, in the order of their lines.

    Parameters
    ----------
    answer : the file with ``ModelNew``.
    reference : the file with ``Model``, ``get_inputs`` and ``get_init_inputs``; by default the same.
    """
    try:
        tree = answer.tree
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        text = f"this is not Python: {getattr(error, 'msg', error)}"
        return [Mistake("syntax", line, text, "correct the syntax")]
    mistakes = [
        *_form(answer, reference or answer),
        *_load_inline_calls(answer),
        *_names(tree),
        *_torch_names(tree),
        *_cheats(answer),
    ]
    unique = list(dict.fromkeys(mistakes))
    return sorted(unique, key=lambda mistake: (mistake.line, not mistake.error))


# ---- the form: classes, functions, numbers of arguments -----------------------------------------


def _form(answer: Answer, reference: Answer) -> Iterator[Mistake]:
    if "ModelNew" not in answer.classes and "ModelNew" not in answer.constants:
        near = hint("ModelNew", list(answer.classes))
        yield Mistake(
            "form", 1, f"there is no class ModelNew{near}", "name the class of the answer ModelNew"
        )
    try:
        names = {**reference.classes, **reference.functions}
    except (SyntaxError, ValueError):
        yield Mistake("form", 0, f"the reference {reference.path.name} is not Python", "correct it")
        return
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in names]
    if missing:
        yield Mistake(
            "form",
            0,
            f"{reference.path.name} has no {' and no '.join(missing)}",
            "give the file of the task: --reference problem.py",
        )
    count = _returned(reference, "get_init_inputs")
    if count is not None:
        for owner, name in ((reference, "Model"), (answer, "ModelNew")):
            yield from _takes(owner, name, "__init__", count, "get_init_inputs")
    count = _returned(reference, "get_inputs")
    if count is not None:
        for owner, name in ((reference, "Model"), (answer, "ModelNew")):
            yield from _takes(owner, name, "forward", count, "get_inputs")


def _returned(answer: Answer, name: str) -> int | None:
    """Return how many values the list has that a function returns; None if that is not visible."""
    function = answer.functions.get(name)
    if function is None:
        return None
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returns) != 1 or not isinstance(returns[0].value, (ast.List, ast.Tuple)):
        return None
    if any(isinstance(each, ast.Starred) for each in returns[0].value.elts):
        return None
    return len(returns[0].value.elts)


def _takes(answer: Answer, owner: str, method: str, count: int, source: str) -> Iterator[Mistake]:
    """Yield a mistake if a method of a class does not take this many arguments."""
    node = answer.classes.get(owner)
    if node is None:
        return
    found = [
        each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == method
    ]
    if not found:
        if method == "forward":
            yield Mistake(
                "form", node.lineno, f"{owner} has no method forward", "define forward(self, ...)"
            )
        elif count and [called(base).split(".")[-1] for base in node.bases] == ["Module"]:
            yield Mistake(
                "arguments",
                node.lineno,
                f"{source} returns {count} values, but {owner} has no __init__ that takes them",
                f"define __init__(self, ...) with {count} parameters",
            )
        return
    arguments = found[0].args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
    least = len(names) - len(arguments.defaults)
    most = None if arguments.vararg else len(names)
    if count >= least and (most is None or count <= most):
        return
    takes = str(most) if least == most else f"{least} to {most}"
    yield Mistake(
        "arguments",
        found[0].lineno,
        f"{owner}.{method} takes {takes} arguments ({', '.join(names)}), "
        f"but {source}() returns {count}",
        f"give {owner}.{method} the parameters of Model.{method}",
    )


# ---- load_inline --------------------------------------------------------------------------------


def _load_inline_calls(answer: Answer) -> Iterator[Mistake]:
    for call in answer.calls:
        yield from _signature(call)
        yield from _flags(call)
        yield from _sources(call)
        yield from _uses(answer, call)


def _signature(call: LoadInline) -> Iterator[Mistake]:
    for word in call.node.keywords:
        if word.arg and word.arg not in LOAD_INLINE:
            yield Mistake(
                "load_inline",
                word.lineno,
                f"load_inline has no parameter {word.arg}{hint(word.arg, LOAD_INLINE)}",
                _instead(word.arg),
            )
    if any(word.arg is None for word in call.node.keywords):
        return
    for name, what in (("name", "a name"), ("cpp_sources", "the declarations of the functions")):
        if name not in call.arguments:
            yield Mistake(
                "load_inline",
                call.line,
                f"load_inline needs {name}, and this call has none",
                f"add {name}=..., {what}",
            )
    if "sycl_sources" in call.arguments and len(call.node.args) > 3:
        yield Mistake(
            "load_inline",
            call.node.args[3].lineno,
            "the fourth positional parameter of load_inline is sycl_sources, not functions",
            "write functions=[...] with its keyword",
        )


def _instead(word: str) -> str:
    if re.search(r"nvcc|cuda", word) and "flag" in word:
        return "write extra_cuda_cflags=[...] for nvcc's options"
    if "flag" in word or "cxx" in word:
        return "write extra_cflags=[...] for the C++ compiler's options"
    if "include" in word:
        return "write extra_include_paths=[...]"
    return "remove it, or use one of: " + ", ".join(LOAD_INLINE[1:10])


def _flags(call: LoadInline) -> Iterator[Mistake]:
    for name in ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths"):
        if isinstance(call.values.get(name), Text):
            yield Mistake(
                "flags",
                call.arguments[name].lineno,
                f"{name} is a string; load_inline takes each of its characters for an option",
                f"write a list: {name}=[...]",
            )


def _sources(call: LoadInline) -> Iterator[Mistake]:
    cpp = call.source("cpp_sources")
    cuda = call.source("cuda_sources")
    if cpp is not None:
        launch = re.search(r"<<<|\b__global__\b", blanked(cpp.text))
        if launch:
            yield Mistake(
                "load_inline",
                cpp.line_at(launch.start()),
                "this CUDA code is in cpp_sources, which g++ compiles, not nvcc",
                "move it to cuda_sources, and leave a declaration in cpp_sources",
            )
    for text in (cpp, cuda):
        if text is not None:
            yield from _macros(text, [each for each in (cpp, cuda) if each is not None])
            yield from _cublas(text, call)
    if cpp is not None and (cuda is not None or "cuda_sources" not in call.arguments):
        yield from _exports(call, cpp, cuda)


def _macros(text: Text, all_texts: Sequence[Text]) -> Iterator[Mistake]:
    """Yield the macros that are used and not defined."""
    defined = set()
    for each in all_texts:
        defined |= set(re.findall(r"#\s*define\s+(\w+)", each.text))
        defined |= {function.name for function in functions(each.text)}
        # A local header may define it.
        if re.search(r'#\s*include\s+"', each.text):
            return
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", _spaces, blanked(text.text), flags=re.M)
    reported = set()
    for use in _MACRO_CALL.finditer(code):
        name = use["name"]
        if name in defined | reported or _KNOWN_MACRO.match(name) and not _is_check(name):
            continue
        if _is_check(name) and name.startswith(("TORCH_", "AT_", "C10_")):
            continue
        reported.add(name)
        yield Mistake(
            "name",
            text.line_at(use.start()),
            f"{name} is used here, but no #define is in the sources",
            f"define the macro {name}, or use TORCH_CHECK or C10_CUDA_CHECK",
        )


def _is_check(name: str) -> bool:
    return bool(re.search(r"CHECK|ASSERT|ERR", name))


def _spaces(part: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", part[0])


def _cublas(text: Text, call: LoadInline) -> Iterator[Mistake]:
    use = re.search(r"\bcublas[A-Z]\w*\s*\(", blanked(text.text))
    if not use:
        return
    if not re.search(
        r"#\s*include\s*<(?:cublas|ATen/cuda/CUDAContext|ATen/cuda/CUDABlas)", text.text
    ):
        yield Mistake(
            "name",
            text.line_at(use.start()),
            "cuBLAS is called, but its header is not included",
            "add #include <cublas_v2.h>",
        )
    flags = call.values.get("extra_ldflags")
    if "extra_ldflags" not in call.arguments or (
        isinstance(flags, list) and not any("cublas" in getattr(each, "text", "") for each in flags)
    ):
        yield Mistake(
            "load_inline",
            text.line_at(use.start()),
            "cuBLAS is called, but the extension is not linked with it",
            'add extra_ldflags=["-lcublas"]',
        )


def _exports(call: LoadInline, cpp: Text, cuda: Text | None) -> Iterator[Mistake]:
    """Yield what is wrong with the exported functions: their declarations, definitions, linkage."""
    in_cpp = functions(cpp.text)
    in_cuda = functions(cuda.text) if cuda is not None else []
    binds = [
        text for text in (cpp, cuda) if text is not None and "PYBIND11_MODULE" in blanked(text.text)
    ]
    names = call.functions
    if (
        names is None
        and "functions" in call.arguments
        and call.values.get("functions", UNKNOWN) is not None
    ):
        return
    if not names and not binds:
        if "sycl_sources" not in call.arguments:
            yield Mistake(
                "load_inline",
                call.line,
                "load_inline gets no functions, and the sources have no PYBIND11_MODULE: "
                "the module will be empty",
                "add functions=[...]",
            )
        return
    if names and binds:
        text = binds[0]
        yield Mistake(
            "load_inline",
            text.line_at(blanked(text.text).index("PYBIND11_MODULE")),
            "there is a PYBIND11_MODULE, and load_inline writes another one for `functions`",
            "remove the PYBIND11_MODULE, or the argument functions",
        )
    for name in names or ():
        yield from _exported(name, call, cpp, cuda, in_cpp, in_cuda)
    yield from _linked(cpp, cuda, in_cpp, in_cuda, set(names or ()))


def _exported(
    name: str,
    call: LoadInline,
    cpp: Text,
    cuda: Text | None,
    in_cpp: Sequence[Function],
    in_cuda: Sequence[Function],
) -> Iterator[Mistake]:
    line = call.arguments["functions"].lineno
    known = [each for each in (*in_cpp, *in_cuda) if not each.is_kernel]
    defined = {each.name for each in known if each.defined}
    kernels = {each.name for each in in_cuda if each.is_kernel}
    if name in kernels:
        yield Mistake(
            "load_inline",
            line,
            f"{name} is a __global__ function, which Python cannot call",
            "export the host function that launches it",
        )
        return
    if name not in defined:
        yield Mistake(
            "load_inline",
            line,
            f"{name} is exported, but no source defines it{hint(name, sorted(defined), 3)}",
            "write the name of the function in the sources",
        )
        return
    if not any(each.name == name for each in in_cpp):
        yield Mistake(
            "load_inline",
            line,
            f"{name} is exported, but cpp_sources does not declare it; g++ compiles the export",
            f"declare it in cpp_sources: {_declaration(name, in_cuda)}",
        )


def _declaration(name: str, known: Sequence[Function]) -> str:
    for each in known:
        if each.name == name:
            types = ", ".join(each.types).replace("Tensor", "torch::Tensor")
            return f"{each.result.replace('Tensor', 'torch::Tensor')} {name}({types});"
    return f"torch::Tensor {name}(...);"


def _linked(
    cpp: Text,
    cuda: Text | None,
    in_cpp: Sequence[Function],
    in_cuda: Sequence[Function],
    exported: set[str],
) -> Iterator[Mistake]:
    """Yield the declarations in cpp_sources that no definition in cuda_sources matches."""
    defined = {each.name for each in in_cpp if each.defined}
    used = set(re.findall(r"\b(\w+)\s*\(", blanked(cpp.text)))
    for declared in in_cpp:
        if declared.defined or declared.name in defined:
            continue
        twins = [each for each in in_cuda if each.name == declared.name and each.defined]
        line = cpp.line_at(declared.position)
        if not twins:
            # Without a use, a declaration does no harm.
            is_used = len(re.findall(rf"\b{declared.name}\s*\(", blanked(cpp.text))) > 1
            if is_used and declared.name in used and declared.name not in exported:
                near = hint(declared.name, [each.name for each in in_cuda if each.defined])
                yield Mistake(
                    "linkage",
                    line,
                    f"{declared.name} is declared and called, but no source defines it{near}",
                    "define it in cuda_sources, or correct its name",
                )
            continue
        twin = next((each for each in twins if each.types == declared.types), twins[0])
        where = cuda.line_at(twin.position)
        if twin.is_c != declared.is_c:
            other = "cuda_sources" if twin.is_c else "cpp_sources"
            yield Mistake(
                "linkage",
                line,
                f'{declared.name} has C linkage (extern "C") only in {other} (line {where}): '
                "the linker does not find it",
                'write extern "C" before both, or before neither',
            )
        elif twin.types != declared.types and not twin.is_c:
            yield Mistake(
                "linkage",
                line,
                f"{declared.name} is declared with the parameters ({', '.join(declared.types)}), "
                f"but defined with ({', '.join(twin.types)}) in line {where}",
                "write the same parameters in both",
            )
        elif twin.is_static:
            yield Mistake(
                "linkage",
                where,
                f"{declared.name} is static in cuda_sources, so cpp_sources cannot call it",
                "remove `static`",
            )


def _uses(answer: Answer, call: LoadInline) -> Iterator[Mistake]:
    """Yield calls of the extension's functions that it does not have, or with other arguments."""
    names = call.functions
    if not call.target or names is None:
        return
    known: dict[str, Function] = {}
    for source in ("cuda_sources", "cpp_sources"):
        text = call.source(source)
        if text is not None:
            known |= {each.name: each for each in functions(text.text) if not each.is_kernel}
    holders = {call.target}
    for node in ast.walk(answer.tree):
        if isinstance(node, ast.Assign) and called(node.value) == call.target:
            holders |= {
                called(target) for target in node.targets if not isinstance(node.value, ast.Call)
            }
    for node in ast.walk(answer.tree):
        if isinstance(node, ast.Attribute) and called(node.value) in holders:
            if node.attr not in names and not node.attr.startswith("__"):
                if isinstance(node.ctx, ast.Load):
                    yield Mistake(
                        "name",
                        node.lineno,
                        f"{called(node.value)} has no function {node.attr}; it exports "
                        f"{', '.join(names) or 'nothing'}",
                        f"write one of these, or add {node.attr} to functions",
                    )
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        function = known.get(node.func.attr)
        if (
            called(node.func.value) not in holders
            or function is None
            or node.func.attr not in names
        ):
            continue
        if any(isinstance(each, ast.Starred) for each in node.args):
            continue
        if node.keywords:
            yield Mistake(
                "arguments",
                node.lineno,
                f"{function.name} is called with {node.keywords[0].arg}=, but functions that "
                "load_inline exports have no names for their parameters",
                "give the arguments by their position",
            )
        elif len(node.args) != len(function.types):
            yield Mistake(
                "arguments",
                node.lineno,
                f"{function.name} takes {len(function.types)} arguments "
                f"({', '.join(function.types)}), not {len(node.args)}",
                "give one for each parameter: an export has no defaults",
            )


# ---- names --------------------------------------------------------------------------------------


def _names(tree: ast.Module) -> Iterator[Mistake]:
    """Yield the names that are used and bound nowhere in the file."""
    bound = {*dir(builtins), *_NO_VARIABLE}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            bound |= set(node.names)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
    reported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound | reported:
            reported.add(node.id)
            yield Mistake(
                "name", node.lineno, f"{node.id} is not defined", _import_of(node.id, bound)
            )


def _import_of(name: str, bound: set[str]) -> str:
    known = {
        "F": "add: import torch.nn.functional as F",
        "nn": "add: import torch.nn as nn",
        "np": "add: import numpy as np",
        "math": "add: import math",
        "os": "add: import os",
        "torch": "add: import torch",
        "load_inline": "add: from torch.utils.cpp_extension import load_inline",
    }
    near = hint(name, [each for each in bound if len(each) > 2]).removeprefix("; ")
    return known.get(name, f"define or import it{'; ' + near if near else ''}")


def _torch_names(tree: ast.Module) -> Iterator[Mistake]:
    """Yield the names of torch, and methods of tensors, that torch does not have."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    modules[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and node.module == "torch" and not node.level:
            modules |= {alias.asname or alias.name: f"torch.{alias.name}" for alias in node.names}
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = called(node)
            root = name.partition(".")[0]
            if root in modules:
                uses.append((node.lineno, modules[root] + name[len(root) :]))
    if not uses:
        return
    try:
        import torch
    except ModuleNotFoundError:
        return
    reported = set()
    for line, name in uses:
        owner, missing = _resolve(torch, name)
        if missing and (owner, missing) not in reported:
            reported.add((owner, missing))
            near = hint(missing, [each for each in dir(_object(torch, owner)) if each[0] != "_"])
            yield Mistake(
                "method",
                line,
                f"{owner} has no {missing} in torch {torch.__version__.partition('+')[0]}{near}",
                "use a name that torch has",
            )
    yield from _methods(tree, torch.Tensor)


def _resolve(torch: object, name: str) -> tuple[str, str]:
    """Return the part of a dotted name that exists, and the first part that does not, or ""."""
    value = torch
    seen = "torch"
    for part in name.split(".")[1:]:
        # Only modules and classes have attributes that are known without running the answer.
        if not isinstance(value, (type(torch), type)):
            return seen, ""
        if not hasattr(value, part):
            import importlib.util

            try:
                is_module = importlib.util.find_spec(f"{seen}.{part}") is not None
            except (ImportError, ValueError):
                is_module = False
            return seen, "" if is_module else part
        value = getattr(value, part)
        seen = f"{seen}.{part}"
    return seen, ""


def _object(torch: object, name: str) -> object:
    value = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def _methods(tree: ast.Module, tensor: type) -> Iterator[Mistake]:
    """Yield methods of forward's parameters that torch.Tensor does not have."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name != "forward":
            continue
        parameters = {each.arg for each in function.args.args[1:]}
        for node in ast.walk(function):
            is_method = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if not is_method or node.value.id not in parameters:
                continue
            if not hasattr(tensor, node.attr) and isinstance(node.ctx, ast.Load):
                near = hint(node.attr, [each for each in dir(tensor) if each[0] != "_"])
                yield Mistake(
                    "method",
                    node.lineno,
                    f"torch.Tensor has no {node.attr}{near}",
                    "use a method that torch has",
                )


# ---- cheats -------------------------------------------------------------------------------------


def _cheats(answer: Answer) -> Iterator[Mistake]:
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
