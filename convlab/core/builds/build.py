"""Source, flags and engine to a library in the cache."""

import contextlib
import functools
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ...sim import library as simulated
from ..errors import BuildError
from ..kernel.catalog import KERNEL_DIR, parse_header
from ..machine import toolchain
from . import cache
from .cache import Build, BuildOutput, Key
from .compile import Compilation, compile_library
from .key import key_of
from .plain_paths import plain
from .source import Source

NO_GPU = (
    'engine="cuda" needs an NVIDIA GPU and a CUDA build of torch, and torch sees none; '
    'engine="sim" runs the same file on the CPU (`python -m convlab doctor` tells more)'
)
_NVCC_FLAGS = [
    "-std=c++17",
    "-O3",
    "-lineinfo",
    "-Xcompiler=-fno-gnu-unique",  # two versions of a file keep static variables of their own
    # torch turns the operators of half types off for its own sake; kernels want them
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
]
# Ends each CUDA source: lets the caller see a launch error that the kernel file did not look for.
_FOOTER = """
#include <cuda_runtime.h>
extern "C" const char* convlab_launch_error() {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


def build(
    source: Source, engine: str, defines: Mapping[str, object] | None = None, *, trace: bool = True
) -> Build:
    """Compile a kernel file for the current GPU, or for "sim" (if `trace`, to count and diagnose).

    What was built before is found. Raises BuildError without a compiler or an entry point too.
    """
    flags = _defined(defines)
    if engine == "sim":
        return simulated.build(source, flags, trace=trace)
    return _build_cuda(source, flags, _arch(source))


def _defined(defines: Mapping[str, object] | None) -> list[str]:
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
            libraries=["-lcublas"] if _uses_cublas(source) else [],
            library_folders=[toolchain.link_dir()],
            cuda=cuda,
            entry="conv2d",
        )
        return compile_library(compilation, folder)

    def find_key() -> Key:
        return key_of(source, f"sm_{arch}", [*flags, toolchain.identity(cuda.nvcc), _FOOTER])

    return replace(cache.build(find_key, make), flags=tuple(flags))


def device_code(
    source: Source, arch: str, folder: Path, defines: Mapping[str, object] | None = None, *more: str
) -> subprocess.CompletedProcess:
    """Let nvcc make ``kernel.cubin`` in a folder: how that ended, and what was said."""
    (folder / "kernel.cu").write_text(source.for_nvcc.marked)
    nvcc = plain(toolchain.require_cuda().home) / "bin" / "nvcc"
    command = [
        nvcc,
        "-cubin",
        *nvcc_flags(arch),
        "-Xptxas",
        "-v",
        *more,
        *_defined(defines),
        *(f"-I{plain(path)}" for path in _includes(source)),
        "kernel.cu",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def nvcc_flags(arch: str) -> list[str]:
    """What nvcc is told, without tunables."""
    return [*_NVCC_FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}"]


def _includes(source: Source) -> list[Path]:
    includes = [source.folder, KERNEL_DIR]
    if _uses_cublas(source):
        includes.append(toolchain.cublas_include() or _cublas_declarations())
    return includes


def _uses_cublas(source: Source) -> bool:
    texts = [source.text, *(text for _, text in source.headers().values())]
    return any("cublas_v2.h" in text for text in texts)


@functools.cache
def _cublas_declarations() -> Path:
    """The simulator's cublas_v2.h alone in a folder: plain declarations, where none other is."""
    folder = toolchain.cache_dir() / "include"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(simulated.INCLUDE / "cublas_v2.h", folder / "cublas_v2.h")
    return folder


def _arch(source: Source) -> str:
    """The architecture to build for: what the header asks for, or the current GPU's."""
    if not torch.cuda.is_available():
        raise BuildError(NO_GPU)
    asked = parse_header(source.text, source.label).arch or ""
    if asked.endswith(("a", "f")):
        return asked.removeprefix("sm_")
    major, minor = torch.cuda.get_device_capability()
    # sm_90 and later have instructions that only their own "a" target offers (wgmma, setmaxnreg)
    return f"{major}{minor}" + ("a" if major >= 9 else "")


def mark_good(build: Build) -> None:
    """Note, for other processes too, that a build passed the whole default check."""
    with contextlib.suppress(OSError):
        (build.library.parent / "good").touch()


def is_good(build: Build) -> bool:
    """Whether a build is known to be good: its kernel may run without a trial in the worker."""
    return (build.library.parent / "good").exists()
