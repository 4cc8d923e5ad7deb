"""What is wrong with the calls of ``load_inline`` and the C++ text in them, without a compiler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ..core.arguments import hint
from .answer import LOAD_INLINE, UNKNOWN, Answer, LoadInline, Text, called
from .cpp_functions import Function, blanked, functions
from .mistake import Mistake

# Macros of headers, which an answer need not define.
_KNOWN_MACRO = re.compile(
    r"(?:TORCH|AT|C10|CUDA|CUDART|CUBLAS|CUDNN|PYBIND11|PYBIND|FLT|DBL|INT|UINT|LONG|ULONG|SIZE|M|NAN|"
    r"INFINITY|NULL|EOF|FP|LLONG|CURAND|STD|WMMA|TORCH_EXTENSION|NPY|EXIT|RAND)(?:_\w+)?$|__\w+"
)
_MACRO_CALL = re.compile(r"(?<![\w.>:])(?P<name>[A-Z][A-Z0-9_]{3,})\s*\(")


def load_inline_calls(answer: Answer) -> Iterator[Mistake]:
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
            "write a function of the sources in functions=[...], or define this one in cuda_sources",
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
