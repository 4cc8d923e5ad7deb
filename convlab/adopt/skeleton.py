"""Write a skeleton of a convlab kernel from an answer: its kernels, tunables and an entry point.

The kernels are copied. The host code, which allocates and launches with torch, becomes comments in
the entry point; each line that calls torch is marked.
"""

from __future__ import annotations

import re

from ..core.errors import ProblemError
from .answer import Answer, Text
from .cpp_functions import Function, blanked, functions

_TORCH = re.compile(
    r"\b(?:torch|at|c10|py|pybind11)::|\b(?:TORCH|AT|C10|PYBIND11)_\w+|\bTensor\b|\.(?:data_ptr|size|sizes|"
    r"numel|options|dim|contiguous|new_\w+|stride|view|reshape|device|scalar_type|to|item|has_value|value)\b"
)
_TORCH_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*[<"](?:torch|ATen|c10|pybind11|cuda_runtime|cuda\.h)[^\n]*$', re.M
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Z]\w*)[ \t]+(\d+)[ \t]*(?://[^\n]*)?$", re.M)
_HEADER = """\
// title: {title}
// idea: TODO: say in a sentence how it computes.
// change: The first rung. From {file}.
// mapping: TODO: grid, block, and which outputs a thread computes.
// precision: fp32
// supports: everything
// limits: TODO: what its time is spent on.
#include "convlab.cuh"
"""
_ENTRY = """\
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* /*workspace*/,
                                 size_t /*workspace_bytes*/, cudaStream_t stream) {{
    const ConvProblem conv = *problem;
    // TODO: launch on `stream`, with the sizes of `conv` (N, C, H, W, K, R, S, P, Q, stride_h, pad_h,
    // dilation_h, groups, relu). y is allocated; bias is null if the problem has none. This is the
    // host code of the answer; "torch:" marks what a .cu file has no torch for:
{host}
    (void)conv, (void)x, (void)w, (void)bias, (void)y, (void)stream;
    return "conv2d is a skeleton: launch the kernel here";
}}
"""


def skeleton(answer: Answer) -> tuple[str, list[tuple[int, str]]]:
    """Return the text of a ``.cu`` file, and what is marked: the answer's line, and its text.

    Raises
    ------
    ProblemError
        The answer has no constant CUDA text.
    """
    texts = [call.source("cuda_sources") for call in answer.calls]
    sources = [text for text in texts if text is not None and text.text.strip()]
    if not sources:
        raise ProblemError(
            f"{answer.path.name} has no constant cuda_sources: put the CUDA code in a string of load_inline"
        )
    code = []
    host = []
    marked = []
    for source in sources:
        kept, dropped = _parted(source)
        code.append(_tunable(kept))
        for line, text in dropped:
            is_torch = bool(_TORCH.search(text))
            host.append(f"    // {'torch: ' if is_torch else '       '}{text}".rstrip())
            if is_torch and text.strip():
                marked.append((line, text.strip()))
    header = _HEADER.format(title=answer.name.replace("_", " "), file=answer.path.name)
    body = "\n".join(re.sub(r"\n{3,}", "\n\n", text).strip("\n") for text in code)
    entry = _ENTRY.format(host="\n".join(host))
    return f"{header}\n{body}\n\n{entry}", marked


def _parted(source: Text) -> tuple[str, list[tuple[int, str]]]:
    """Return the CUDA code without torch, and the lines of the functions that use torch."""
    text = source.text
    dropped: list[tuple[int, str]] = []
    removed: list[tuple[int, int]] = []
    for function in functions(text):
        body = text[function.position : function.end]
        if function.is_kernel or not _uses_torch(function, body):
            continue
        removed.append((function.position, function.end))
        if function.defined:
            first = text.count("\n", 0, function.position)
            for number, line in enumerate(body.split("\n"), first):
                dropped.append((source.lines[number], line))
    module = re.search(r"\bPYBIND11_MODULE\b[^{]*\{[^}]*\}", blanked(text))
    if module:
        removed.append(module.span())
    for start, end in sorted(removed, reverse=True):
        text = text[:start] + text[end:]
    text = _TORCH_INCLUDE.sub("", text)
    # Macros that call torch have no use without it.
    text = re.sub(r"^[ \t]*#[ \t]*define[^\n]*TORCH_(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    return text, dropped


def _uses_torch(function: Function, body: str) -> bool:
    return bool(_TORCH.search(blanked(body))) or "Tensor" in " ".join(function.types)


def _tunable(text: str) -> str:
    """Return CUDA code in which each macro with a number can be set by a sweep."""
    return _DEFINE.sub(lambda line: f"#ifndef {line[1]}\n#define {line[1]} {line[2]}\n#endif", text)
