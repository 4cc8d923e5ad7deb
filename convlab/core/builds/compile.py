"""Compile source text to a shared library with torch's ``load_inline``.

`load_inline` normally loads the library. This module prevents that: a learner's static initialisers
must run only in the process that runs the kernel.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import BuildError, CatalogError
from ..kernel.catalog import parse_header, uncommented
from ..machine import child, toolchain
from .cache import BuildOutput
from .compile_error import compile_error
from .plain_paths import plain, plain_temporary, shell_quoted
from .source import Source

CXX_FLAGS = ["-std=c++17", "-w"]
# A kernel needs none of torch's libraries; `_no_libraries` keeps the linker from reading them.
LINK_FLAGS = ["-Wl,--as-needed", "-lstdc++", "-Wl,-z,defs"]
# The prefix of libraries that must not be loaded.
_OURS = "convlab_"
# The parameters of the entry points that compute.
_PARAMETERS = {
    "conv2d": "problem, x, w, bias, y, workspace, workspace_bytes, stream",
    "conv2d_data_gradient": "problem, dy, w, dx, workspace, workspace_bytes, stream",
    "conv2d_weight_gradient": "problem, x, dy, dw, workspace, workspace_bytes, stream",
}


@dataclass(frozen=True)
class Compilation:
    """The input of `compile_library`: source, flags and libraries."""

    # For messages.
    source: Source
    # CUDA C++ for nvcc if `cuda` is given, else C++.
    text: str
    flags: Sequence[str]
    # Folders of headers.
    include: Sequence[Path]
    # "-lcublas", or a path.
    libraries: Sequence[str] = ()
    library_folders: Sequence[Path] = ()
    cuda: toolchain.Cuda | None = None
    # The C function that the library must define.
    entry: str | None = None


def compile_library(compilation: Compilation, folder: Path) -> BuildOutput:
    """Compile and link a library in a folder, without loading it.

    Raises
    ------
    BuildError
        A tool is missing, the text does not compile or link, or the entry point is missing.
    """
    _run_load_inline(compilation, folder)
    (library,) = folder.glob("*.so")
    source = compilation.source
    entry = compilation.entry
    if entry and entry not in exported(library):
        raise _no_entry(source, entry)
    if entry in _PARAMETERS:
        _check_signature(source, entry)
    return BuildOutput(library)


def _run_load_inline(compilation: Compilation, folder: Path) -> None:
    """Compile and link with torch's builder, in a folder."""
    ninja_on_path()
    cpp_extension = _cpp_extension()
    toolchain.require_host_compiler()
    source = compilation.source
    cuda = compilation.cuda
    text = compilation.text
    if cuda is not None:
        cpp_extension.CUDA_HOME = str(plain(cuda.home))
    # load_inline does not quote these paths. The links are also valid for the user's load_inline.
    torch_folder = Path(torch.__file__).parent
    cpp_extension._TORCH_PATH = str(plain(torch_folder))
    cpp_extension.TORCH_LIB_PATH = str(plain(torch_folder / "lib"))
    flags = [shell_quoted(flag) for flag in compilation.flags]
    link_flags = [
        # The linker searches this folder before the folder of torch's libraries.
        f"-L{_no_libraries()}",
        *LINK_FLAGS,
        *(f"-L{plain(path)}" for path in compilation.library_folders),
        *(shell_quoted(_linkable(library)) for library in compilation.libraries),
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
        # torch's `c++ --version` may raise SubprocessError.
        raise compile_error(source, str(error)) from None


def _linkable(library: str) -> str:
    """Return a flag as it is, and a library's path without characters that ninja cannot read."""
    return library if library.startswith("-") else str(plain(Path(library)))


def _no_entry(source: Source, entry: str) -> BuildError:
    """Return the error for a library without its entry point, or that of a header that cannot be read."""
    try:
        parse_header(source.text, source.label)
    except CatalogError as error:
        # So the entry point is that of a forward convolution, and perhaps not the one that is meant.
        return BuildError(str(error))
    reason = ""
    if definition := re.search(rf"\b{entry}\s*\(", uncommented(source.text)):
        line = source.text.count("\n", 0, definition.start()) + 1
        reason = f": line {line} has no CONVLAB_ENTRY"
    return BuildError(
        f"{source.label} has no entry point{reason}; it must define `CONVLAB_ENTRY const char* "
        f"{entry}(const ConvProblem*, ...)`, as kernels/convlab.cuh declares it"
    )


def _check_signature(source: Source, entry: str) -> None:
    """Raise BuildError if an entry point has another result or parameters: no linker checks that."""
    text = uncommented(source.text)
    parameters = _PARAMETERS[entry]
    needed = parameters.count(",") + 1
    pattern = rf"\bCONVLAB_ENTRY\s+([\w\s]+?)[\s*]*\b{entry}\s*\(([^()]*)\)"
    for definition in re.finditer(pattern, text):
        line = text.count("\n", 0, definition.start()) + 1
        result = definition[1]
        count = definition[2].count(",") + 1
        if result in ("void", "int", "bool", "cudaError_t"):
            mismatch = f"returns {result}, but must return const char*: an error text, or nullptr"
        elif count != needed:
            mismatch = f"has {count} parameters, but must have {needed}"
        else:
            return
        raise BuildError(
            f"{source.label}:{line}: {entry} {mismatch}; declare it as in kernels/convlab.cuh: "
            f"const char* {entry}({parameters})"
        )


def ninja_on_path() -> None:
    """Append the folder of this environment's ninja to PATH, for torch's builder."""
    ninja = toolchain.find("ninja")
    if ninja is None:
        raise BuildError(
            "no ninja is installed: run `pip install -r requirements.txt`", kind="not run"
        )
    folders = [*filter(None, os.environ.get("PATH", "").split(os.pathsep))]
    if str(ninja.parent) not in folders:
        os.environ["PATH"] = os.pathsep.join([*folders, str(ninja.parent)])


@functools.cache
def _cpp_extension() -> ModuleType:
    """Return torch's builder, patched so that it does not load convlab's libraries.

    The import of the builder is slow.
    """
    # Hide two of its warnings: that there is no GPU, and that Ctrl-C ended `c++ --version`.
    hidden = re.compile("No CUDA runtime|Error checking compiler version")
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addFilter(lambda record: not hidden.match(record.msg))
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
    """Return a folder of empty stand-ins for torch's libraries, which are slow to link."""
    folder = toolchain.temporary(plain_temporary())
    for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python"):
        (folder / f"lib{name}.so").write_text("/* an empty linker script */\n")
    return folder


# The shell command that limits what it starts, before the command; empty for no limits.
_limits: ContextVar[tuple[str, ...]] = ContextVar("limits", default=())


@contextmanager
def limited(gibibytes: int, seconds: int) -> Iterator[None]:
    """Limit each compiler process that this thread starts: its memory, CPU time, and files.

    The text may be somebody else's, and an `#include` of a device never ends.
    """
    # In units of 1 KiB, seconds, and 512 bytes.
    limits = f"ulimit -v {gibibytes << 20}; ulimit -t {seconds}; ulimit -f {2 << 20}"
    token = _limits.set(("/bin/sh", "-c", f'{limits}; exec "$@"', "sh"))
    try:
        yield
    finally:
        _limits.reset(token)


def run_compiler(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler in a folder, which also gets its temporary files; Ctrl-C ends it."""
    variables = os.environ | {"TMPDIR": str(plain(folder))}
    command = [*_limits.get(), *command]
    try:
        return child.run(command, None, variables, folder)
    except OSError as error:
        raise BuildError(
            f"the compiler did not start: {Path(command[0]).name}: {error.strerror}",
            kind="not run",
        ) from error


def exported(library: Path) -> set[str]:
    """Return the symbols that a library exports, without loading it."""
    nm = toolchain.find("nm")
    if nm is None:
        raise BuildError(
            "no nm on PATH, which lists a library's symbols; install binutils", kind="not run"
        )
    command = [str(nm), "-D", "--defined-only", "--format=posix", str(library)]
    done = toolchain.asked(command)
    done.check_returncode()
    return {line.split()[0] for line in done.stdout.splitlines()}
