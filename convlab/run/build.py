"""Source, flags and engine to a loaded library; the only caller of ``load_inline``.

A build is named by a hash of all that decides it: source, the headers it includes, flags,
architecture, torch's and the compiler's versions. It is made in a folder of its own and renamed
into the cache when it is whole, so that two processes may build at once, and a build that is
killed leaves nothing that a later one would trip over.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import sim
from ..machine import toolchain
from ..words.catalog import KERNEL_DIR
from ..words.errors import BuildError

ENTRY = "conv2d"
NO_GPU = (
    'engine="cuda" needs an NVIDIA GPU and a CUDA build of torch, and torch sees none; '
    'engine="sim" runs the same file on the CPU (`python -m convlab doctor` tells more)'
)
CXX_FLAGS = ["-std=c++17", "-w"]
# No library of torch's is needed, and none is kept: not even libc10 for the pieces of the C++
# library that it happens to export.
LINK_FLAGS = ["-Wl,--as-needed", "-lstdc++"]
SIM_FLAGS = [
    *CXX_FLAGS,
    "-O1",
    "-g1",
    "-fsanitize=thread",  # only for its hooks: the runtime defines them
    "-fsanitize-coverage=trace-pc",  # a hook at each basic block, too
    "-fno-reorder-blocks",  # they stay in the order in which they run
    *(["-fno-plt"] if platform.machine() == "x86_64" else []),  # hooks are called directly
    "--param=tsan-distinguish-volatile=1",
    "-fno-tree-sra",  # keeps a float4 access one access
    "-fno-thread-jumps",
    "-fno-stack-protector",
    "-fstack-clash-protection",  # a large local array meets the guard page, not a neighbour
    "-ffp-contract=fast",
    "-D__assert_fail=sim_assert_fail",
]
# Without the hooks: several times as fast, and nothing is counted, nor mistakes looked for.
UNTRACED_FLAGS = [
    *CXX_FLAGS,
    "-O2",
    "-g1",
    "-fno-stack-protector",
    "-fstack-clash-protection",
    "-ffp-contract=fast",
    "-D__assert_fail=sim_assert_fail",
]
NVCC_FLAGS = [
    "-std=c++17",
    "-O3",
    "-lineinfo",
    "-Xcompiler=-fno-gnu-unique",  # two versions of a file keep static variables of their own
    # torch turns the operators of half types off for its own sake; kernels want them
    *(f"-U__CUDA_NO_{what}__" for what in (
        "HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS"
    )),
]
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
# Ends each CUDA source: lets the caller see a launch error that the kernel file did not look for.
_FOOTER = """
#include <cuda_runtime.h>
extern "C" const char* convlab_launch_error() {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


@dataclass(frozen=True)
class Source:
    """The text to build and where it came from."""

    text: str
    name: str  # for messages and file names: "03_smem_tile"
    path: Path | None = None  # None: a string, not a file

    @property
    def label(self) -> str:
        """The file's name as messages show it: kernels/03_smem_tile.cu."""
        if self.path is None:
            return f"{self.name}.cu"
        with contextlib.suppress(ValueError):
            return str(self.path.relative_to(KERNEL_DIR.parent))
        return str(self.path)

    @property
    def folder(self) -> Path:
        """Where its local includes are looked for first."""
        return self.path.parent if self.path else KERNEL_DIR

    def headers(self) -> dict[Path, str]:
        """The text of each local header that the source includes, directly or not."""
        return {path: text for path, (_, text) in self.included().items()}

    def included(self) -> dict[Path, tuple[str, str]]:
        """For each local header the name by which it is included first, and its text."""
        found: dict[Path, tuple[str, str]] = {}
        todo = [(self.text, self.folder)]
        while todo:
            text, folder = todo.pop()
            for name in _INCLUDE.findall(text):
                for base in (folder, KERNEL_DIR):
                    path = (base / name).resolve()
                    if path.is_file():
                        if path not in found:
                            found[path] = name, path.read_text()
                            todo.append((found[path][1], path.parent))
                        break
        return found


@dataclass(frozen=True)
class Build:
    """A library in the cache."""

    library: Path
    seconds: float  # that this build took; 0.0 when it was there before


def build(
    source: Source, engine: str, defines: Mapping[str, object] | None = None, *, trace: bool = True
) -> Build:
    """Compile a kernel file for an engine, or find it built before.

    Parameters
    ----------
    source : the kernel.
    engine : "cuda" (for the current GPU) or "sim".
    defines : tunables, passed as ``-DNAME=VALUE``.
    trace : on the simulator, with the hooks that count and diagnose.

    Raises
    ------
    BuildError
        If there is no compiler, the source does not compile, or it has no entry point. The
        message quotes the compiler's first errors and the lines they are about.
    """
    flags = [f"-D{name}={value}" for name, value in sorted((defines or {}).items())]
    if engine == "sim":
        return build_for_sim(source, flags, trace=trace)
    return _build_cuda(source, flags, _arch_of_current_gpu())


def build_for_sim(
    source: Source, flags: Sequence[str] = (), *, trace: bool = True, entry: str = ENTRY
) -> Build:
    """Compile a source for the simulator; ``entry`` is the C function it must have."""
    compiler = toolchain.require_host_compiler()
    runtime = sim_runtime()
    flags = [*(SIM_FLAGS if trace else UNTRACED_FLAGS), *flags]
    key = _key(source, flags, "sim", toolchain.identity(compiler), str(runtime))

    def compile_into(folder: Path) -> Path:
        text = "#include <cuda_runtime.h>\n" + _line_marker(source)
        return _load_inline(
            folder,
            source,
            cpp=text + sim.rewrite(source.text, source.label),
            extra_cflags=flags,
            include=[sim.INCLUDE, *_rewritten(source, folder), source.folder, KERNEL_DIR],
            ldflags=[*LINK_FLAGS, str(runtime), f"-Wl,-rpath,{runtime.parent}"],
        )

    return _cached(f"{source.name}-sim-{key}", compile_into, source, entry)


def _rewritten(source: Source, folder: Path) -> list[Path]:
    """Put the local headers that hold CUDA C++ into a folder, as C++; return where to look."""
    new, homes = folder / "headers", []
    for path, (name, text) in source.included().items():
        plain = sim.rewrite(text, str(path))
        if plain == text:
            continue
        copy = new / name
        if not copy.resolve().is_relative_to(new.resolve()):
            raise BuildError(
                f'{source.label}: #include "{name}" has launches or __shared__ arrays, which the '
                "simulator rewrites only in headers beside or below the kernel's folder"
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(f'#line 1 "{path}"\n{plain}')
        homes.append(path.parent)
    return [new, *homes] if homes else []


@functools.cache
def sim_runtime() -> Path:
    """The simulator's runtime library, built when it is first needed."""
    compiler = toolchain.require_host_compiler()
    folders = [sim.INCLUDE, sim.RUNTIME.parent]
    texts = [p.read_text() for folder in folders for p in sorted(folder.glob("*.*"))]
    source = Source(sim.RUNTIME.read_text(), "simulator", sim.RUNTIME)
    key = _key(source, texts, "runtime", toolchain.identity(compiler))

    def compile_into(folder: Path) -> Path:
        return _load_inline(
            folder,
            source,
            cpp=_line_marker(source) + source.text,
            extra_cflags=[*CXX_FLAGS, "-O2", "-pthread"],
            include=folders,
            ldflags=[*LINK_FLAGS, "-pthread"],
        )

    return _cached(f"simulator-{key}", compile_into, None).library


def _build_cuda(source: Source, flags: list[str], arch: str) -> Build:
    cuda = toolchain.require_cuda()
    toolchain.require_host_compiler()
    key = _key(source, flags, arch, toolchain.identity(cuda.nvcc))

    def compile_into(folder: Path) -> Path:
        libraries = ["-lcublas"] if "cublas_v2.h" in _all_text(source) else []
        return _load_inline(
            folder,
            source,
            cuda=_line_marker(source) + source.text + _FOOTER,
            extra_cuda_cflags=[
                *NVCC_FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", *flags
            ],
            include=_cuda_includes(source),
            ldflags=[*LINK_FLAGS, f"-L{toolchain.link_dir()}", *libraries],
            home=cuda.home,
        )

    return _cached(f"{source.name}-sm_{arch}-{key}", compile_into, source)


def cubin(source: Source, arch: str, folder: Path, defines: Mapping[str, object] | None = None):
    """Compile a kernel's device code for an architecture; needs nvcc, but neither GPU nor torch.

    Parameters
    ----------
    arch : as in ``sm_90a``, without the prefix: "80", "90a".
    folder : where the cubin is written.

    Returns
    -------
    tuple of (Path, str)
        The cubin, and what ``ptxas -v`` said: registers, shared memory, spills.
    """
    cuda = toolchain.require_cuda()
    text, out = folder / f"{source.name}.cu", folder / f"{source.name}-sm_{arch}.cubin"
    text.write_text(_line_marker(source) + source.text)
    command = [
        str(cuda.nvcc), "-cubin", *NVCC_FLAGS, "-Xptxas", "-v",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        *(f"-D{name}={value}" for name, value in (defines or {}).items()),
        *(f"-I{path}" for path in _cuda_includes(source)),
        str(text), "-o", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise _compile_error(source, done.stdout + done.stderr)
    return out, done.stderr


def _cuda_includes(source: Source) -> list[Path]:
    includes = [source.folder, KERNEL_DIR]
    if "cublas_v2.h" in _all_text(source):
        includes.append(toolchain.cublas_include() or _cublas_declarations())
    return includes


@functools.cache
def _cublas_declarations() -> Path:
    """The simulator's cublas_v2.h alone in a folder: plain declarations, for where none other is."""
    folder = toolchain.cache_dir() / "include"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(sim.INCLUDE / "cublas_v2.h", folder / "cublas_v2.h")
    return folder


def _all_text(source: Source) -> str:
    return source.text + "".join(source.headers().values())


def _arch_of_current_gpu() -> str:
    if not torch.cuda.is_available():
        raise BuildError(NO_GPU)
    major, minor = torch.cuda.get_device_capability()
    # sm_90 and later have instructions that only their own "a" target offers (wgmma, setmaxnreg)
    return f"{major}{minor}" + ("a" if major >= 9 else "")


def _key(source: Source, flags: list[str], *more: str) -> str:
    parts = [source.text, *source.headers().values(), *flags, *more]
    parts += [torch.__version__, *SIM_FLAGS, *NVCC_FLAGS, *LINK_FLAGS, _FOOTER, source.label]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _line_marker(source: Source) -> str:
    return f'#line 1 "{source.label}"\n'


def _cached(name: str, compile_into, source: Source | None, entry: str = ENTRY) -> Build:
    """The library called ``name``, compiled into the cache if it is not there."""
    final = toolchain.cache_dir() / name
    if (final / "kernel.so").exists():
        return Build(final / "kernel.so", 0.0)
    started = time.perf_counter()
    root = toolchain.cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    folder = Path(tempfile.mkdtemp(prefix="unfinished-", dir=root))
    try:
        library = compile_into(folder)
        if source is not None and not hasattr(ctypes.CDLL(str(library)), entry):
            raise BuildError(
                f"{source.label} has no entry point: it must end with `CONVLAB_ENTRY const char* "
                f"{ENTRY}(const ConvProblem*, ...)`; see kernels/convlab.cuh"
            )
        library.rename(folder / "kernel.so")
        with contextlib.suppress(OSError):  # another process was quicker: theirs will do
            folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Build(final / "kernel.so", time.perf_counter() - started)


def mark_good(build: Build) -> None:
    """Note, for other processes too, that a build passed the whole default check."""
    with contextlib.suppress(OSError):
        (build.library.parent / "good").touch()


def is_good(build: Build) -> bool:
    """Whether a build is known to be good: its kernel may run without a trial in the worker."""
    return (build.library.parent / "good").exists()


def _sweep(root: Path) -> None:
    """Remove what builds that were killed more than an hour ago left behind."""
    for folder in root.glob("unfinished-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > 3600:
                shutil.rmtree(folder, ignore_errors=True)


def _load_inline(
    folder: Path,
    source: Source,
    *,
    cpp: str = "",
    cuda: str | None = None,
    extra_cflags: list[str] | None = None,
    extra_cuda_cflags: list[str] | None = None,
    include: list[Path],
    ldflags: list[str],
    home: Path | None = None,
) -> Path:
    from torch.utils import cpp_extension  # slow to import, and not needed for a cached build

    if home is not None:
        cpp_extension.CUDA_HOME = str(home)
    try:
        with ninja_on_path():
            return Path(
                cpp_extension.load_inline(
                    f"convlab_{re.sub(r'[^0-9A-Za-z]', '_', source.name)}",
                    cpp_sources=[cpp],
                    cuda_sources=[cuda] if cuda else None,
                    extra_cflags=extra_cflags or [],
                    extra_cuda_cflags=extra_cuda_cflags,
                    extra_ldflags=ldflags,
                    extra_include_paths=[str(path) for path in include],
                    build_directory=str(folder),
                    with_cuda=cuda is not None,
                    is_python_module=False,
                    no_implicit_headers=True,
                )
            )
    except (RuntimeError, subprocess.SubprocessError) as error:  # the latter: from `c++ --version`
        raise _compile_error(source, str(error)) from None
    except OSError as error:  # the library could not be loaded
        reason = error.__cause__ or error  # torch's own text names the library only
        raise BuildError(f"{source.label} was built but cannot be loaded: {reason}") from None


_path_lock = threading.Lock()
_path_users: list[str] = []  # what PATH was, for each build now running


@contextlib.contextmanager
def ninja_on_path() -> Iterator[None]:
    """Ninja of the running environment, also when that environment was not activated.

    For any number of threads at once: the last to leave puts PATH back.
    """
    ninja = toolchain.find("ninja")
    if ninja is None:
        raise BuildError("no ninja: `pip install -r requirements.txt` brings it")
    with _path_lock:
        _path_users.append(_path_users[0] if _path_users else os.environ.get("PATH", ""))
        os.environ["PATH"] = f"{ninja.parent}{os.pathsep}{_path_users[0]}"
    try:
        yield
    finally:
        with _path_lock:
            before = _path_users.pop()
            if not _path_users:
                os.environ["PATH"] = before


def _compile_error(source: Source, log: str) -> BuildError:
    """The compiler's first errors with the lines they are about, and where the whole log is."""
    logs = toolchain.cache_dir() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{source.name}.log"
    path.write_text(log)
    found = _errors(log)
    if not found:
        tail = [line for line in log.splitlines() if line.strip()][-6:]
        return BuildError("\n".join([f"{source.label} did not build", *tail, f"full log: {path}"]))
    texts = {source.label: source.text}
    texts |= {str(p): text for p, text in source.headers().items()}
    shown = []
    for file, line, place, message in found[:2]:
        shown += [f"{_short(file)}:{line}: {message}", *_quote(texts.get(file), line, place)]
    if len(found) > 2:
        shown.append(f"and {len(found) - 2} more")
    return BuildError(
        "\n".join([f"{source.label} did not compile", *shown, f"full log: {path}"])
    )


# Where in a line: g++'s column, or (of nvcc, which quotes the line with its macros replaced) a word
# and how many like it stand before it.
_Place = int | tuple[str, int] | None


def _errors(log: str) -> list[tuple[str, int, _Place, str]]:
    """(file, line, place, message) of each error of g++ (``f:1:2: error:``) or nvcc (``f(1)``)."""
    found, lines = [], log.splitlines()
    for at, text in enumerate(lines):
        match = re.match(r"(.+?):(\d+):(\d+): (?:fatal )?error: (.*)", text)
        if match:
            place = int(match[3])
        else:
            match = re.match(r"(.+?)\((\d+)\): (?:catastrophic )?error:? (.*)", text)
            place = None
            near = lines[at + 1 : at + 6] if match else []
            for quoted, below in zip(near, near[1:]):
                if below.strip() == "^":
                    start = below.index("^")
                    word = re.match(r"\w+|.?", quoted[start:])[0]
                    place = (word, len(re.findall(_whole(word), quoted[:start])))
                    break
        if match:
            error = (match[1], int(match[2]), place, match.groups()[-1])
            if error not in found:
                found.append(error)
    return found


def _short(file: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(file).relative_to(KERNEL_DIR.parent))
    return file


def _whole(word: str) -> str:
    """A pattern of a word that is no part of a longer one."""
    return rf"(?<!\w){re.escape(word)}(?!\w)" if word.isidentifier() else re.escape(word)


def _quote(text: str | None, line: int, place: _Place) -> list[str]:
    if text is None:
        return []
    lines = [entry.expandtabs(8) for entry in text.splitlines()]  # as g++ counts columns
    column = place
    if isinstance(place, tuple):
        word, before = place
        found = list(re.finditer(_whole(word), lines[line - 1])) if word else []
        column = found[before].start() + 1 if before < len(found) else None
    shown = []
    for number in range(max(1, line - 1), min(len(lines), line + 1) + 1):
        shown.append(f"{number:5} | {lines[number - 1]}")
        if number == line and column:
            shown.append(f"{'':5} | {' ' * (column - 1)}^")
    return shown
