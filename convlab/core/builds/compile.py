"""Compile source text to a shared library, through torch's ``load_inline``; its only caller.

`load_inline` loads what it built. Here it must not: a learner's static initialisers run where the
kernel does.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import BuildError
from ..kernel.catalog import uncommented
from ..machine import child, toolchain
from .cache import BuildOutput
from .compile_error import compile_error
from .plain_paths import plain, plain_temporary, shell_quoted
from .source import Source

CXX_FLAGS = ["-std=c++17", "-w"]
# No library of torch's is needed, and none is read: see `_no_libraries`.
LINK_FLAGS = ["-Wl,--as-needed", "-lstdc++", "-Wl,-z,defs"]
# The name of a library that must not be loaded begins so.
_OURS = "convlab_"
# Parameters of conv2d.
_PARAMETERS = 8


@dataclass(frozen=True)
class Compilation:
    """What `compile_library` compiles, and how."""

    source: Source  # for messages
    text: str  # CUDA C++ for nvcc if `cuda` is given, else C++
    flags: Sequence[str]
    include: Sequence[Path]  # folders of headers
    libraries: Sequence[str] = ()  # "-lcublas", or a path
    library_folders: Sequence[Path] = ()
    cuda: toolchain.Cuda | None = None
    entry: str | None = None  # the C function that the library must have


def compile_library(compilation: Compilation, folder: Path) -> BuildOutput:
    """Compile and link a library in a folder, without loading it.

    Raises
    ------
    BuildError
        A tool is missing, the text does not compile or link, or it has no entry point.
    """
    _run_load_inline(compilation, folder)
    (library,) = folder.glob("*.so")
    source = compilation.source
    entry = compilation.entry
    if entry and entry not in exported(library):
        raise _no_entry(source, entry)
    if entry == "conv2d":
        _check_signature(source)
    return BuildOutput(library)


def _run_load_inline(compilation: Compilation, folder: Path) -> None:
    """Let torch's builder compile and link into the folder."""
    ninja_on_path()
    cpp_extension = _cpp_extension()
    toolchain.require_host_compiler()
    source = compilation.source
    cuda = compilation.cuda
    text = compilation.text
    if cuda is not None:
        cpp_extension.CUDA_HOME = str(plain(cuda.home))
    # load_inline writes these paths as they are. They stay correct for a load_inline of the user's.
    torch_folder = Path(torch.__file__).parent
    cpp_extension._TORCH_PATH = str(plain(torch_folder))
    cpp_extension.TORCH_LIB_PATH = str(plain(torch_folder / "lib"))
    flags = [shell_quoted(flag) for flag in compilation.flags]
    link_flags = [
        # The linker looks here first, before the folder of torch's libraries.
        f"-L{_no_libraries()}",
        *LINK_FLAGS,
        *(f"-L{plain(path)}" for path in compilation.library_folders),
        *(shell_quoted(library) for library in compilation.libraries),
    ]
    try:
        cpp_extension.load_inline(
            f"{_OURS}{re.sub(r'[^0-9A-Za-z]', '_', source.name)}_{folder.name[-8:]}",
            cpp_sources=["" if cuda else text],
            cuda_sources=[text] if cuda else None,
            extra_cflags=[] if cuda else flags,
            extra_cuda_cflags=flags if cuda else None,
            extra_ldflags=link_flags,
            extra_include_paths=[str(plain(path)) for path in compilation.include],
            build_directory=str(plain(folder)),
            with_cuda=cuda is not None,
            is_python_module=False,
            no_implicit_headers=True,
        )
    except (RuntimeError, subprocess.SubprocessError) as error:
        # A SubprocessError is from torch's `c++ --version`.
        raise compile_error(source, str(error)) from None


def _no_entry(source: Source, entry: str) -> BuildError:
    """Return the error for a library without its C function."""
    where = ""
    if definition := re.search(rf"\b{entry}\s*\(", uncommented(source.text)):
        line = source.text.count("\n", 0, definition.start()) + 1
        where = f". Line {line} has no CONVLAB_ENTRY"
    return BuildError(
        f"{source.label} has no entry point: it must end with `CONVLAB_ENTRY const char* "
        f"{entry}(const ConvProblem*, ...)`; see kernels/convlab.cuh{where}"
    )


def _check_signature(source: Source) -> None:
    """Raise BuildError if conv2d returns or takes something else: no linker compares that."""
    text = uncommented(source.text)
    entry = r"\bCONVLAB_ENTRY\s+([\w\s]+?)[\s*]*\bconv2d\s*\(([^()]*)\)"
    for definition in re.finditer(entry, text):
        line = text.count("\n", 0, definition.start()) + 1
        result = definition[1]
        count = definition[2].count(",") + 1
        if result in ("void", "int", "bool", "cudaError_t"):
            wrong = f"returns const char*, an error's text or nullptr, and this one {result}"
        elif count != _PARAMETERS:
            wrong = f"takes {_PARAMETERS} parameters, and this one has {count}"
        else:
            return
        raise BuildError(
            f"{source.label}:{line}: conv2d {wrong}: const char* conv2d(problem, x, w, bias, y, "
            "workspace, workspace_bytes, stream), as kernels/convlab.cuh declares it"
        )


def ninja_on_path() -> None:
    """Put the folder of the running environment's ninja last on PATH, for torch's builder."""
    ninja = toolchain.find("ninja")
    if ninja is None:
        raise BuildError("no ninja: `pip install -r requirements.txt` brings it")
    folders = [*filter(None, os.environ.get("PATH", "").split(os.pathsep))]
    if str(ninja.parent) not in folders:
        os.environ["PATH"] = os.pathsep.join([*folders, str(ninja.parent)])


@functools.cache
def _cpp_extension() -> ModuleType:
    """Return torch's builder, changed so that it loads nothing of ours; its import is slow."""
    # At its import a CUDA build of torch warns that there is no GPU; later, that Ctrl-C ended
    # `c++ --version`.
    unasked = re.compile("No CUDA runtime|Error checking compiler version")
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addFilter(lambda record: not unasked.match(record.msg))
    builder = importlib.import_module("torch.utils.cpp_extension")
    load = builder._import_module_from_library

    def load_foreign(name: str, *rest: object) -> object:
        return None if name.startswith(_OURS) else load(name, *rest)

    builder._import_module_from_library = load_foreign
    ninja = builder._run_ninja_build

    def run_ninja(folder: str, verbose: bool, error_prefix: str, *rest: Any) -> None:
        if f"'{_OURS}" not in error_prefix:
            return ninja(folder, verbose, error_prefix, *rest)
        done = run_compiler([toolchain.find("ninja"), "-v"], Path(folder))
        if done.returncode:
            raise RuntimeError(f"{error_prefix}: {done.stdout}{done.stderr}")

    builder._run_ninja_build = run_ninja
    return builder


@functools.cache
def _no_libraries() -> Path:
    """Return a folder of empty files for torch's libraries, which the linker is slow to read."""
    folder = toolchain.temporary(plain_temporary())
    for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python"):
        (folder / f"lib{name}.so").write_text("/* a linker script that brings nothing */\n")
    return folder


def run_compiler(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler in a folder, where its temporary files go as well; Ctrl-C ends it."""
    return child.run(command, None, os.environ | {"TMPDIR": str(plain(folder))}, folder)


def exported(library: Path) -> set[str]:
    """Return the symbols that a library defines for others to call, without loading it."""
    nm = toolchain.find("nm")
    if nm is None:
        raise BuildError("no nm on PATH, to look into libraries; install binutils, as for g++")
    command = [str(nm), "-D", "--defined-only", "--format=posix", str(library)]
    done = toolchain.asked(command)
    done.check_returncode()
    return {line.split()[0] for line in done.stdout.splitlines()}
