"""Compile kernels and the simulator's runtime with g++."""

import functools
import platform
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from .rewrite import rewrite, struct_functions
from .unsupported import as_not_simulated

INCLUDE = Path(__file__).parent / "include"
# The folders that kernels include instead of CUDA's headers.
HEADERS = (INCLUDE, CUBLAS_DECLARATIONS)
RUNTIME = Path(__file__).parent / "runtime" / "runtime.cpp"
_COMMON_FLAGS = [
    *CXX_FLAGS,
    # With DWARF 5, addr2line reports lines of a header as lines of the first file.
    "-gdwarf-4",
    # Only lines, no variables: a build is four times as fast. -gdwarf implies -g2, so this is next.
    "-g1",
    "-fno-stack-protector",
    # A large local array faults in the guard pages, and does not reach another stack.
    "-fstack-clash-protection",
    "-ffp-contract=fast",
    # The runtime reports a function that ends without its return value.
    "-fsanitize=return",
    "-D__assert_fail=sim_assert_fail",
]
FLAGS = [
    *_COMMON_FLAGS,
    "-O1",
    # Only for its hooks before loads and stores. The runtime defines them.
    "-fsanitize=thread",
    # A hook at the start of each basic block.
    "-fsanitize-coverage=trace-pc",
    # Basic blocks keep the order in which they run.
    "-fno-reorder-blocks",
    # The code calls hooks directly, without a table.
    *(["-fno-plt"] if platform.machine() == "x86_64" else []),
    "--param=tsan-distinguish-volatile=1",
    # A float4 access stays one access.
    "-fno-tree-sra",
    "-fno-thread-jumps",
]
# Builds that find errors, but count nothing. Hooks of basic blocks and functions are only for counts. Here g++ may
# optimize more, and it checks the indices of local arrays and tables (-fsanitize=bounds): then it merges fewer loads
# than nvcc does, and the counts would differ. What could move an access to another place or line, or merge
# several into one, is off. So are tail calls: a hook finds its line by its return address.
_UNCOUNTED_FLAGS = [
    *(flag for flag in FLAGS if flag not in ("-O1", "-fsanitize-coverage=trace-pc")),
    "-O2",
    "-fno-code-hoisting",
    "-fno-crossjumping",
    "-fno-gcse",
    "-fno-ipa-icf",
    "-fno-optimize-sibling-calls",
    "-fno-strict-aliasing",
    "-fno-tree-pre",
    "-fno-tree-slp-vectorize",
    "-fno-tree-tail-merge",
    "-fno-tree-vectorize",
    "-fsanitize=bounds",
    "--param=tsan-instrument-func-entry-exit=0",
]
# Builds without hooks run several times as fast. They count nothing, and check only the indices of
# local arrays and tables. -fno-thread-jumps keeps g++ from duplicating a barrier.
# -fno-strict-aliasing allows a kernel to access eight halves as 16 bytes.
UNTRACED_FLAGS = [
    *_COMMON_FLAGS,
    "-O2",
    "-fno-thread-jumps",
    "-fno-strict-aliasing",
    "-fsanitize=bounds",
]
# A kernel that polls a volatile needs hooks, because nothing preempts a thread here: without a hook
# in the loop, the thread for which it waits would never run.
_POLLING_FLAGS = [
    *UNTRACED_FLAGS,
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
]
_VOLATILE = re.compile(r"(?<!asm )\bvolatile\b")
# What precedes each kernel.
_FIRST_LINE = "#include <cuda_runtime.h>\n"
# Vectorized joins of mbarrier clocks halve the time of an untraced wgmma rung.
_RUNTIME_FLAGS = [
    *CXX_FLAGS,
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    # Large functions are not inlined everywhere: that shortens the build of the runtime. Six runs of
    # five rungs, on an idle machine, took the same time within 2%.
    "--param=max-inline-insns-single=30",
    "--param=inline-unit-growth=10",
    "-pthread",
]


def compiler() -> Path:
    """Return the g++ that builds for the simulator.

    clang is not supported: it splits a float4 into four accesses and reorders basic blocks, so
    that counts differ from those of a GPU.

    Raises
    ------
    BuildError
        If no g++ is recent enough; the message says how to get one.
    """
    gcc = toolchain.require_host_compiler()
    version = toolchain.version(gcc)
    release = toolchain.gcc_release(gcc)
    if version != "unknown" and (release is None or release < toolchain.OLDEST_GCC):
        raise BuildError(
            f"{version} ({gcc}) cannot build for the simulator, which needs g++ "
            f"{toolchain.OLDEST_GCC} or later: set CXX to such a compiler, as in CXX=g++",
            kind="not run",
        )
    return gcc


def build(
    source: Source,
    flags: Sequence[str] = (),
    *,
    trace: bool = True,
    counting: bool = True,
    entry: str | None = None,
    first: str = "",
) -> Build:
    """Compile a source for the simulator; it must define the C function ``entry``.

    Without ``entry`` that is what the source's header says that it computes. Without ``trace``, the build has
    no hooks before accesses, and so no diagnostics. Without ``counting``, it has them, but no others.

    ``first`` are lines with #includes that precede the source; these headers are precompiled.
    """
    # Only a compilation checks the release of g++.
    gcc = toolchain.require_host_compiler()
    base_flags = FLAGS if counting else _UNCOUNTED_FLAGS
    if not trace:
        base_flags = _POLLING_FLAGS if _has_volatile(source) else UNTRACED_FLAGS
    flags = [*base_flags, *flags]
    included = _include_folders(flags)
    with ThreadPoolExecutor(1) as pool:
        if not cache.has(_runtime_key_now()):
            # The first build compiles the headers while another core compiles the runtime. `make`
            # reports an error of the headers.
            pool.submit(_precompiled_headers, gcc, base_flags, first, included)
        linked = str(runtime())

    def make(folder: Path) -> BuildOutput:
        compiler()
        searched = [source.folder, KERNEL_DIR, *included]
        functions = _struct_functions(source, searched[2:])
        copies = _copy_rewritten_headers(source, folder / "headers", searched[2:], functions)
        # The copies' folders mirror those of the originals, so that "../x.h" finds a copy too.
        mirrored = [_mirrored(folder / "headers", path.resolve()) for path in searched]
        folders = [*mirrored, *dict.fromkeys(path.parent for path in copies.values())]
        rewritten = replace(source, text=rewrite(source.text, source.label, functions))
        # g++ reads first.h.gch instead of first.h if both builds have the same flags.
        precompiled = _precompiled_headers(gcc, base_flags, first, included)
        (folder / "first.h").write_text(_FIRST_LINE + first)
        (folder / "first.h.gch").symlink_to(precompiled.library)
        compilation = Compilation(
            source,
            '#include "first.h"\n' + rewritten.marked,
            # #include "cuda.h" finds the header next to the source first.
            flags=[
                *(f"-iquote{plain(path)}" for path in (*folders, source.folder)),
                *(f"-I{plain(path)}" for path in (mirrored if copies else [])),
                *flags,
            ],
            include=[*HEADERS, *(folders if copies else []), source.folder, KERNEL_DIR],
            libraries=[linked],
            entry=entry or source.entry,
        )
        try:
            return compile_library(compilation, folder)
        except BuildError as error:
            raise as_not_simulated(error, HEADERS) from None

    def find_key() -> Key:
        return key_of(source, "sim", [*flags, toolchain.identity(gcc), linked], HEADERS)

    built = cache.build(find_key, make)
    return replace(built, flags=tuple(flags))


def _has_volatile(source: Source) -> bool:
    """Return whether a source or one of its local headers has the word "volatile"."""
    texts = [source.text, *(text for _, text in source.headers().values())]
    return any(_VOLATILE.search(text) for text in texts)


def _include_folders(flags: Sequence[str]) -> list[Path]:
    """Return the folders of the options -IFOLDER."""
    return [Path(flag[2:]) for flag in flags if flag.startswith("-I") and len(flag) > 2]


def _mirrored(folder: Path, path: Path) -> Path:
    """Return the place below a folder that mirrors an absolute path; create its folder."""
    place = folder / path.relative_to(path.anchor)
    (place.parent if path.is_file() else place).mkdir(parents=True, exist_ok=True)
    return place


def _struct_functions(source: Source, include: Sequence[Path]) -> set[str]:
    """Return the names of the functions of a kernel and its headers that may return a struct."""
    texts = [source.text, *(text for _, text in source.headers(include).values())]
    return set().union(*map(struct_functions, texts))


def _copy_rewritten_headers(
    source: Source, folder: Path, include: Sequence[Path], functions: set[str]
) -> dict[Path, Path]:
    """Write local headers with CUDA C++ to a folder, as C++; return the original of each copy.

    ``include`` are the folders of -I, `functions` those that may return a struct.
    """
    headers = source.headers(include)
    copies = {}
    rewritten = {path: rewrite(text, str(path), functions) for path, (_, text) in headers.items()}
    changed = {path for path, (_, text) in headers.items() if rewritten[path] != text}
    for path, (_, text) in headers.items():
        # A header that includes a changed one is copied too, or it would include the original.
        if not changed & {path, *Source(text, path.name, path).headers(include)}:
            continue
        copy = _mirrored(folder, path)
        copy.write_text(Source(rewritten[path], path.name, path).marked)
        copies[copy] = path
    return copies


def _precompiled_headers(
    gcc: Path, flags: Sequence[str], first: str = "", folders: Sequence[Path] = ()
) -> Build:
    """Precompile the headers of the simulator and the C++ library, and those in some folders.

    That halves the time of a small build. If a flag defines a word that occurs in the headers, g++
    reads their text instead.
    """

    def make(folder: Path) -> BuildOutput:
        compiler()
        text = folder / "first.h"
        output = folder / "first.h.gch"
        text.write_text(_FIRST_LINE + first)
        searched = [f"-I{plain(path)}" for path in (*folders, *HEADERS)]
        command = [gcc, *flags, "-fPIC", *searched, text, "-o", output]
        done = run_compiler(command, folder)
        if done.returncode:
            raise compile_error(source, done.stderr, "the simulator's headers")
        return BuildOutput(output)

    def find_key() -> Key:
        return key_of(source, "headers", [*flags, toolchain.identity(gcc)], searched_headers)

    source = Source(_FIRST_LINE + first, "simulator")
    searched_headers = (*HEADERS, *folders) if first else HEADERS
    return cache.build(find_key, make)


def runtime() -> Path:
    """Return the simulator's runtime library; build it at the first use."""

    def make(folder: Path) -> BuildOutput:
        compiler()
        source = _runtime_source()
        compilation = Compilation(
            source,
            source.marked,
            flags=_RUNTIME_FLAGS,
            include=[*HEADERS, RUNTIME.parent],
            libraries=["-pthread", "-Wl,-soname,libconvlab_simulator.so"],
        )
        return compile_library(compilation, folder)

    return cache.build(_runtime_key_now, make).library


def _runtime_key_now() -> Key:
    """Return the runtime's key for the files as they are now."""
    return _runtime_key(cache.stamp(_runtime_files()))


def _runtime_source() -> Source:
    # It has no path, because the key must not depend on where convlab is installed.
    return Source(RUNTIME.read_text(), "simulator")


@functools.cache
def _runtime_files() -> list[Path]:
    """Return the files on which the runtime and the rewritten kernels (``rewrite.py``) depend."""
    folders = [*HEADERS, RUNTIME.parent]
    headers = sorted(path for folder in folders for path in folder.rglob("*.h"))
    return [RUNTIME, Path(__file__).with_name("rewrite.py"), *headers]


@functools.lru_cache(1)
def _runtime_key(seen: object) -> Key:
    """Return the runtime's key for the current files; `seen` is their stamp."""
    gcc = toolchain.require_host_compiler()
    texts = [path.read_text() for path in _runtime_files()]
    parts = [*_RUNTIME_FLAGS, toolchain.identity(gcc), *texts]
    return Key(name_of(_runtime_source(), "runtime", parts, home=""))
