"""A kernel, and the simulator's runtime, compiled for the simulator."""

import functools
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.builds import cache
from ..core.builds.build import CUBLAS_DECLARATIONS
from ..core.builds.cache import Build, BuildOutput, Key
from ..core.builds.compile import CXX_FLAGS, Compilation, compile_library, run_compiler
from ..core.builds.compile_error import compile_error
from ..core.builds.key import key_of, name_of
from ..core.builds.plain_paths import plain
from ..core.builds.source import Source
from ..core.errors import BuildError
from ..core.kernel.catalog import KERNEL_DIR
from ..core.machine import toolchain
from .findings import INCLUDE
from .rewrite import rewrite

# Where kernels find what stands for CUDA's headers.
_HEADERS = (INCLUDE, CUBLAS_DECLARATIONS)
RUNTIME = Path(__file__).parent / "runtime" / "runtime.cpp"
_EITHER = [
    *CXX_FLAGS,
    "-gdwarf-4",  # of version 5 addr2line takes a header's lines for the first file's
    "-g1",  # lines and no variables, a quarter of a build; behind the version, which implies -g2
    "-fno-stack-protector",
    "-fstack-clash-protection",  # a large local array meets the guard page, not a neighbour
    "-ffp-contract=fast",
    "-fsanitize=return",  # the runtime defines what is called where a value is missing
    "-D__assert_fail=sim_assert_fail",
]
FLAGS = [
    *_EITHER,
    "-O1",
    "-fsanitize=thread",  # only for its hooks: the runtime defines them
    "-fsanitize-coverage=trace-pc",  # a hook at each basic block, too
    "-fno-reorder-blocks",  # they stay in the order in which they run
    *(["-fno-plt"] if platform.machine() == "x86_64" else []),  # hooks are called directly
    "--param=tsan-distinguish-volatile=1",
    "-fno-tree-sra",  # keeps a float4 access one access
    "-fno-thread-jumps",
]
# Without the hooks: several times as fast, nothing is counted, and of mistakes only indices of local
# arrays and tables are looked for. Where that is done loads are no longer joined as nvcc joins them,
# so it is not where they are counted. Nor is a barrier made two; and 16 bytes may hold eight halves,
# whatever C++ says of that.
UNTRACED_FLAGS = [*_EITHER, "-O2", "-fno-thread-jumps", "-fno-strict-aliasing", "-fsanitize=bounds"]
_FIRST = "#include <cuda_runtime.h>\n"  # each kernel begins so
# The joining of mbarriers' clocks, vectorized, is half of what an untraced wgmma rung takes without.
_RUNTIME_FLAGS = [*CXX_FLAGS, "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-pthread"]
_NO_CUDA_HEADER = re.compile(
    r"\.cuh?:\d+: (cu\w*\.h|mma\.h|cooperative_groups\S+|nv\w*\.h(pp)?|(cub|cuda|thrust)/\S+): No such"
)


def compiler() -> Path:
    """The g++ that builds for the simulator, or a `BuildError` that says how to get one.

    clang will not do: it splits a float4 into four accesses and moves basic blocks, so that counts
    would be others than a GPU's.
    """
    found = toolchain.require_host_compiler()
    told = toolchain.version(found)
    release = toolchain.gcc_release(found)
    if told != "unknown" and (release is None or release < toolchain.OLDEST_GCC):
        raise BuildError(
            f"{told} ({found}) cannot build for the simulator, which needs g++ "
            f"{toolchain.OLDEST_GCC} or later: set CXX to one, as in CXX=g++"
        )
    return found


def build(
    source: Source, flags: Sequence[str] = (), *, trace: bool = True, entry: str = "conv2d"
) -> Build:
    """Compile a source for the simulator; ``entry`` is the C function it must have."""
    gcc = toolchain.require_host_compiler()  # asked for its release only where it compiles
    linked = str(runtime())
    usual = FLAGS if trace else UNTRACED_FLAGS
    flags = [*usual, *flags]

    def make(folder: Path) -> BuildOutput:
        compiler()
        copies = _rewritten(source, folder / "headers")
        homes = [folder / "headers", *dict.fromkeys(path.parent for path in copies.values())]
        written = replace(source, text=rewrite(source.text, source.label))
        headers = _precompiled(gcc, usual)  # g++ takes it for the file beside it where it may
        (folder / "first.h").write_text(_FIRST)
        (folder / "first.h.gch").symlink_to(headers.library)
        compilation = Compilation(
            source,
            '#include "first.h"\n' + written.marked,
            # "cuda.h" is the one next to the source, if there is one
            flags=[*flags, *(f"-iquote{plain(home)}" for home in (*homes, source.folder))],
            include=[*_HEADERS, *(homes if copies else []), source.folder, KERNEL_DIR],
            libraries=[linked],
            entry=entry,
        )
        try:
            return compile_library(compilation, folder)
        except BuildError as error:
            if not _NO_CUDA_HEADER.search(str(error)):
                raise
            known = ", ".join(
                sorted(path.name for folder in _HEADERS for path in folder.glob("[cv]*.h"))
            )
            note = f"of CUDA's headers the simulator has {known}; with others, a GPU is needed"
            text, full_log, path = str(error).rpartition("\nfull log: ")
            raise BuildError(f"{text}\n{note}{full_log}{path}", error.places) from None

    def find_key() -> Key:
        return key_of(source, "sim", [*flags, toolchain.identity(gcc), linked], _HEADERS)

    built = cache.build(find_key, make)
    return replace(built, flags=tuple(flags))


def _rewritten(source: Source, new: Path) -> dict[Path, Path]:
    """Put the local headers that hold CUDA C++ into a folder, as C++; return whose copy each is."""
    headers = source.headers()
    copies = {}
    rewritten = {path: rewrite(text, str(path)) for path, (_, text) in headers.items()}
    changed = {path for path, (_, text) in headers.items() if rewritten[path] != text}
    for path, (name, text) in headers.items():
        # who leads to a changed one would find the original beside itself
        if not changed & {path, *Source(text, path.name, path).headers()}:
            continue
        homes = [folder.resolve() for folder in (source.folder, KERNEL_DIR)]
        home = next((folder for folder in homes if path.is_relative_to(folder)), None)
        if home is None:
            raise BuildError(
                f'{source.label}: #include "{name}" has launches or __shared__ arrays, which the '
                "simulator rewrites only in headers beside or below the kernel's folder"
            )
        copy = new / path.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(Source(rewritten[path], path.name, path).marked)
        copies[copy] = path
    return copies


def _precompiled(gcc: Path, flags: Sequence[str]) -> Build:
    """Those headers, and the C++ library's, as g++ keeps what it has read: half of a small build.

    It does not take them, but reads the text, where a flag defines a word of theirs.
    """

    def make(folder: Path) -> BuildOutput:
        compiler()
        text = folder / "first.h"
        made = folder / "first.h.gch"
        text.write_text(_FIRST)
        command = [gcc, *flags, "-fPIC", f"-I{plain(INCLUDE)}", text, "-o", made]
        done = run_compiler(command, folder)
        if done.returncode:
            raise compile_error(source, done.stderr, "the simulator's headers")
        return BuildOutput(made)

    def find_key() -> Key:
        return key_of(source, "headers", [*flags, toolchain.identity(gcc)], _HEADERS)

    source = Source(_FIRST, "simulator")
    return cache.build(find_key, make)


def runtime() -> Path:
    """The simulator's runtime library, built when it is first needed."""

    def make(folder: Path) -> BuildOutput:
        compiler()
        source = _runtime_source()
        compilation = Compilation(
            source,
            source.marked,
            flags=_RUNTIME_FLAGS,
            include=[*_HEADERS, RUNTIME.parent],
            libraries=["-pthread", "-Wl,-soname,libconvlab_simulator.so"],
        )
        return compile_library(compilation, folder)

    def find_key() -> Key:
        return _runtime_key(cache.stamp(_runtime_files()))

    return cache.build(find_key, make).library


def _runtime_source() -> Source:
    return Source(RUNTIME.read_text(), "simulator")  # wherever convlab lies


@functools.cache
def _runtime_files() -> list[Path]:
    """The files that decide what the runtime is, and what kernels become (``rewrite.py``)."""
    folders = [*_HEADERS, RUNTIME.parent]
    headers = sorted(path for folder in folders for path in folder.rglob("*.h"))
    return [RUNTIME, Path(__file__).with_name("rewrite.py"), *headers]


@functools.lru_cache(1)
def _runtime_key(seen: object) -> Key:
    """The key of the runtime for the files as they are now; `seen` is their stamp."""
    gcc = toolchain.require_host_compiler()
    texts = [path.read_text() for path in _runtime_files()]
    parts = [*_RUNTIME_FLAGS, toolchain.identity(gcc), *texts]
    return Key(name_of(_runtime_source(), "runtime", parts, home=""))
