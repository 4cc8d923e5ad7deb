"""Errors from a compiler's output: long lines are cut, and a full disk is not the kernel's fault."""

import errno
import os
import re
from pathlib import Path

import pytest

from convlab.core.arguments import end_of, first_line
from convlab.core.builds import compile_error as module
from convlab.core.builds.borrowed_macros import instead_of
from convlab.core.builds.compile_error import compile_error
from convlab.core.builds.compiler_messages import quoted
from convlab.core.builds.source import Source

pytestmark = pytest.mark.pure

SOURCE = Source("int a;\nint b\nint c;\n", "mine")
FULL = "mine.cu:1:1: error: error writing to /tmp/cc.s: No space left on device\n"
REAL = "mine.cu:3:1: error: expected ';' before 'int'\n"


@pytest.mark.parametrize(
    "log, kind",
    [
        (FULL, "not run"),
        (FULL.replace("No space left on device", "File too large"), "not run"),
        ("ninja: fatal: posix_spawn: Resource temporarily unavailable\n", "not run"),
        (REAL, "does not build"),
        (REAL + FULL, "does not build"),
        ("g++: fatal error: Killed signal terminated program cc1plus\n", "not run"),
        ("mine.cu:2:9: internal compiler error: in gimplify, at gimplify.cc:3058\n", "not run"),
    ],
)
def test_a_compiler_that_cannot_write_does_not_judge_the_kernel(log: str, kind: str) -> None:
    assert compile_error(SOURCE, log).kind == kind


def test_a_log_that_cannot_be_written_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert "full log: " in str(compile_error(SOURCE, REAL))
    monkeypatch.setattr(module, "write_log", full)
    error = compile_error(SOURCE, REAL)
    assert "full log" not in str(error) and "mine.cu:3" in str(error)


def test_long_names_and_lines_are_cut() -> None:
    name = "x" * 5000
    source = Source(f"int a;\n{name} y {'z' * 300};\n", "mine")
    log = f"mine.cu:2:5002: error: '{name}' does not name a type\n"
    text = str(compile_error(source, log))
    assert "x" * 81 not in text and max(map(len, text.splitlines())) < 400
    line, mark = quoted(source.text, 2, 5002)[1:3]
    assert line[mark.index("^")] == "y"


def test_a_line_that_is_not_long_is_whole() -> None:
    line = "int " + "a, " * 50 + "b;"
    assert quoted(line, 1, 5) == [f"    1 | {line}", "      |     ^"]


@pytest.mark.parametrize(
    "names, write",
    [
        (
            "CUDA_CHECK checkCudaErrors gpuErrchk CHECK_CUDA cudaCheck CUDA_CALL C10_CUDA_CHECK "
            "CHECK HANDLE_ERROR CUDA_SAFE_CALL CU_CHECK CUDACHECK gpuAssert_check CUDA_TRY",
            r"#define {}\(call\) do {{ if \(cudaError_t status = \(call\)\) return cudaGet",
        ),
        (
            "CUDNN_CHECK CUBLAS_CHECK checkCUDNN CUBLAS_SAFE_CALL",
            r"#define {}\(call\) do {{ if \(call\)",
        ),
        ("C10_CUDA_KERNEL_LAUNCH_CHECK cudaCheckErrors CHECK_LAST_CUDA_ERROR", "remove it"),
        ("TORCH_CHECK AT_ASSERTM CHECK_INPUT CHECK_EQ", 'return "the reason"'),
        ("CUDA_KERNEL_LOOP CUDA_1D_KERNEL_LOOP", r"#define {}\(i, n\) for "),
        ("CEIL_DIV ceilDiv DIVUP cdiv iDivUp", r"write ceil_div\(a, b\)"),
        ("FETCH_FLOAT4 FLOAT4", "reinterpret_cast<float4"),
        ("OFFSET", "row, column, pitch"),
    ],
)
def test_a_macro_of_another_repository_comes_with_what_to_write(names: str, write: str) -> None:
    for name in names.split():
        log = f"mine.cu:2:1: error: ‘{name}’ was not declared in this scope\n"
        for text in (log, f'mine.cu(2): error: identifier "{name}" is undefined\n'):
            error = str(compile_error(SOURCE, text))
            assert f"{name} is not CUDA's: other repositories define it" in error
            assert re.search(write.format(name), error), error


def test_a_file_with_torch_s_headers_gets_no_line_for_conv2d() -> None:
    source = Source("#include <torch/extension.h>\nint b;\n", "mine")
    log = "mine.cu:2:1: error: ‘CUDA_CHECK’ was not declared in this scope\n"
    assert "other repositories" not in str(compile_error(source, log))


def test_names_of_cuda_and_the_author_s_own_are_no_borrowed_macros() -> None:
    names = "cuCheckpointProcessLock cudaOccInputCheck CUDA_SUCCESS CUDNN_STATUS_SUCCESS "
    names += "cudaMalloc cudaGetLastError float4 offset check_bounds BOUNDS_CHECK checked last_row "
    names += "__assert_fail"
    assert [name for name in names.split() if instead_of(name)] == []


def test_texts_for_messages() -> None:
    assert end_of("a/b.cu") == "a/b.cu"
    assert end_of("/" + "x" * 300) == "…" + "x" * 79
    assert end_of(os.fsdecode(b"b\xff\n")) == "b\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError("")) == "ValueError"
    assert len(first_line(ValueError("x" * 5000))) < 200
    assert first_line(ValueError("\ud800")) == "?"
