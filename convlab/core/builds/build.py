"""Build a CUDA source with nvcc: from source and flags to a library in the cache."""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ..kernel.catalog import KERNEL_DIR, parse_header
from ..machine import toolchain
from . import cache
from .cache import Build, BuildOutput, Key
from .compile import Compilation, compile_library, run_compiler
from .key import key_of
from .plain_paths import plain
from .source import Source

# A folder with our declarations of cuBLAS, for machines without cublas_v2.h.
CUBLAS_DECLARATIONS = Path(__file__).parent / "cublas"
_NVCC_FLAGS = [
    "-std=c++17",
    "-O3",
    "-lineinfo",
    # Two builds of a file must not share static variables.
    "-Xcompiler=-fno-gnu-unique",
    # torch disables the operators of the half types for its own code; kernels need them.
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
]
# The end of each CUDA source. It returns a launch error that the kernel file did not check.
_FOOTER = """
#include <cuda_runtime.h>
extern "C" const char* convlab_launch_error() {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


def build(source: Source, defines: Mapping[str, object] | None = None) -> Build:
    """Compile a kernel file for the current GPU, or return the cached build.

    Raises BuildError if the file does not compile, lacks its entry point, or there is no compiler.
    """
    return _build_cuda(source, define_flags(defines), _arch(source))


def define_flags(defines: Mapping[str, object] | None) -> list[str]:
    """Return the compiler's flags for tunables: ``-DNAME=VALUE``, sorted by name."""
    return [f"-D{name}={value}" for name, value in sorted((defines or {}).items())]


def _build_cuda(source: Source, defines: list[str], arch: str) -> Build:
    cuda = toolchain.require_cuda()
    flags = [*nvcc_flags(arch), *defines]

    def make(folder: Path) -> BuildOutput:
        compilation = Compilation(
            source,
            source.for_nvcc.marked + _FOOTER,
            flags,
            _includes(source),
            libraries=["-lcublas"] if uses_cublas(_texts(source)) else [],
            library_folders=[toolchain.link_dir()],
            cuda=cuda,
            entry=source.entry,
        )
        return compile_library(compilation, folder)

    def find_key() -> Key:
        parts = [*flags, toolchain.identity(cuda.nvcc), _FOOTER]
        return key_of(source, f"sm_{arch}", parts, [CUBLAS_DECLARATIONS])

    return replace(cache.build(find_key, make), flags=tuple(flags))


def device_code(
    source: Source, arch: str, folder: Path, defines: Mapping[str, object] | None = None, *more: str
) -> subprocess.CompletedProcess:
    """Compile device code to ``kernel.cubin`` in a folder; return nvcc's status and output."""
    (folder / "kernel.cu").write_text(source.for_nvcc.marked)
    nvcc = plain(toolchain.require_cuda().home) / "bin" / "nvcc"
    command = [
        nvcc,
        "-cubin",
        *nvcc_flags(arch),
        "-Xptxas",
        "-v",
        *more,
        *define_flags(defines),
        *(f"-I{plain(path)}" for path in _includes(source)),
        "kernel.cu",
    ]
    return run_compiler(command, folder)


def nvcc_flags(arch: str) -> list[str]:
    """Return nvcc's flags for an architecture, without tunables."""
    return [*_NVCC_FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}"]


def _includes(source: Source) -> list[Path]:
    includes = [source.folder, KERNEL_DIR]
    if uses_cublas(_texts(source)):
        includes.append(toolchain.cublas_include() or CUBLAS_DECLARATIONS)
    return includes


def _texts(source: Source) -> list[str]:
    return [source.text, *(text for _, text in source.headers().values())]


def uses_cublas(texts: Iterable[str]) -> bool:
    """Return whether one of a kernel's files includes the header of cuBLAS."""
    return any("cublas_v2.h" in text for text in texts)


def _arch(source: Source) -> str:
    """Return the architecture to build for: the header's "a" or "f" target, else the GPU's."""
    required = parse_header(source.text, source.label).arch or ""
    if required.endswith(("a", "f")):
        return required.removeprefix("sm_")
    major, minor = torch.cuda.get_device_capability()
    # From sm_90 on, some instructions exist only for the "a" target (wgmma, setmaxnreg).
    return f"{major}{minor}" + ("a" if major >= 9 else "")
