"""The tools that convlab uses: where they are, and which they are; and where builds are kept.

A toolkit is looked for once in a process.
"""

import atexit
import functools
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BuildError
from . import interrupt

INSTALL = "pip install -r requirements.txt"
CACHE = "CONVLAB_CACHE"
UNFINISHED = "unfinished-"  # begins the name of a build's folder until it is whole
MOVE = f"name a file (--save FILE.json, result.save(path)), or a folder of your own as {CACHE}"
_passing: set[Path] = set()  # private folders that stand in for it
OLDEST_GCC = 11
_CUDA_TOOLS = ("nvcc", "nvdisasm", "cuobjdump", "cu++filt", "ncu", "compute-sanitizer")
# Where NVIDIA's own installers put ncu, apart from the toolkit; the newest goes first.
_NCU = (
    "usr/local/cuda*/bin",
    "usr/local/cuda*/nsight-compute-*",
    "opt/nvidia/nsight-compute/*",
    "usr/lib/nsight-compute*",
)


# ---- one finder of tools ----------------------------------------------------------------------


def find(name: str) -> Path | None:
    """A tool by the name of its executable, or None if it is not there.

    Looked for by the variable that names it ($CXX), in the CUDA toolkit (what belongs to one), on
    PATH, and among the wheels of the running environment, which need not be activated.
    """
    if name == "nvcc":
        return (toolkit := cuda()) and toolkit.nvcc
    places = [os.environ.get("PATH", "")]
    if name in _CUDA_TOOLS:
        homes = [toolkit.home for toolkit in [cuda()] if toolkit] + [Path("/usr/local/cuda")]
        places = [*(str(home / "bin") for home in homes), *places]
        places += [str(root / "cu13" / "bin") for root in _wheels()]
        for pattern in _NCU if name == "ncu" else ():
            places += map(str, sorted(Path("/").glob(pattern), reverse=True))
    else:
        places.append(sysconfig.get_path("scripts") or "")
    wanted = os.environ.get("CXX", name) if name == "c++" else name
    found = shutil.which(wanted, path=os.pathsep.join(filter(None, places)))
    return Path(found) if found else None


def require_host_compiler() -> Path:
    """The host's C++ compiler, $CXX or c++, or a `BuildError` that says how to get one."""
    found = find("c++")
    if found is None:
        raise BuildError(
            f"no C++ compiler: {os.environ.get('CXX', 'c++')} is not on PATH; install g++ "
            f"{OLDEST_GCC} or later (Debian, Ubuntu: apt-get install g++) or set CXX"
        )
    return found


def identity(tool: Path) -> str:
    """What tells one compiler from the next without running it: path, size, time of change."""
    real = tool.resolve()
    seen = real.stat()
    return f"{real}:{seen.st_size}:{seen.st_mtime_ns}"


def asked(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a tool that answers at once; a terminal's Ctrl-C, which Jupyter sends too, misses it.

    Else its answer could be cut short, and taken for a whole one. What takes long is for
    `child.run`, which Ctrl-C ends.
    """
    return subprocess.run(
        [*map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
        **options,
    )


@functools.cache
def version(tool: Path) -> str:
    """The version that a tool prints of itself, in one line."""
    try:
        done = asked([tool, "--version"], timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), (lines or ["unknown"])[0])


def gcc_release(compiler: Path) -> int | None:
    """The major release of a GCC: 12 of g++ 12.2; None of another compiler, such as clang."""
    text = version(compiler)
    found = re.search(r"\) (\d+)\.\d+", text)
    return int(found[1]) if found and "clang" not in text.lower() else None


# ---- the CUDA toolkit -------------------------------------------------------------------------


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit: nvcc, its headers and its libraries."""

    home: Path

    @property
    def nvcc(self) -> Path:
        """The compiler driver."""
        return self.home / "bin" / "nvcc"

    @property
    def release(self) -> tuple[int, int] | None:
        """Its release, (13, 0), as its headers state it; None where they do not."""
        header = self.home / "include" / "cuda_runtime_api.h"
        text = header.read_text("utf-8", "replace") if header.exists() else ""
        found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
        return (int(found[1]) // 1000, int(found[1]) % 1000 // 10) if found else None

    def __str__(self) -> str:
        return f"{_dotted(self.release or ('?',))} ({self.nvcc})"


def _dotted(release: tuple[object, ...]) -> str:
    return ".".join(map(str, release))


@functools.cache
def cuda() -> Cuda | None:
    """The CUDA toolkit to build with: the first that fits torch's CUDA; None without one.

    A kernel and torch share one CUDA runtime, so the major releases must be the same; where torch
    has none, any does.
    """
    wanted = torch_cuda()
    fitting = (
        found for found in toolkits() if wanted is None or (found.release or (0,))[0] == wanted[0]
    )
    return next(fitting, None)


def require_cuda() -> Cuda:
    """The CUDA toolkit, or a `BuildError` that says how to get one."""
    found = cuda()
    if found is None:
        raise BuildError(f'{without_cuda()}; engine="sim" needs none')
    return found


def without_cuda() -> str:
    """Why there is no nvcc to build with, and which to install."""
    wanted = torch_cuda() or (13, 0)
    other = next(toolkits(), None)
    release = _dotted(wanted)
    but = f" that fits torch's CUDA {release}, only {other}" if other else ""
    brought = f"`{INSTALL}` brings one, or " if wanted[0] == 13 else ""
    return (
        f"no nvcc{but}: {brought}install CUDA toolkit {release} (NVIDIA's package cuda-toolkit-"
        f"{release.replace('.', '-')}, or another {wanted[0]}.x) and set CUDA_HOME to it"
    )


def toolkits() -> Iterator[Cuda]:
    """All CUDA toolkits that are there, in the order in which they are preferred."""
    homes = [Path(os.environ[key]) for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    if found := shutil.which("nvcc"):
        home = Path(found).resolve().parent.parent
        if (home / "include" / "cuda_runtime.h").exists():  # else a script that calls the real one
            homes.append(home)
    homes += sorted(Path("/usr/local").glob("cuda*"), key=lambda p: (p.name != "cuda", p))
    homes += [root / "cu13" for root in _wheels()]
    return (Cuda(home) for home in homes if (home / "bin" / "nvcc").exists())


def torch_cuda() -> tuple[int, int] | None:
    """The CUDA release that torch was built for, (13, 0), or None."""
    import torch  # slow to import, and the words of a command line are read without it

    major, minor = (torch.version.cuda or "0.0").split(".")[:2]
    return (int(major), int(minor)) if int(major) else None


def _wheels() -> list[Path]:
    """The folders in which the nvidia-* wheels put theirs: each site-packages/nvidia."""
    found = importlib.util.find_spec("nvidia")
    return [Path(root) for root in (found.submodule_search_locations or [])] if found else []


def _library_homes() -> list[Path]:
    """Where CUDA's libraries and headers may be: torch's own wheels go before the toolkit."""
    parts = ["cu13"] if (torch_cuda() or (13,))[0] >= 13 else ["cuda_runtime", "cublas"]
    homes = [root / part for root in _wheels() for part in parts]
    return homes + [found.home for found in [cuda()] if found]


def cublas_include() -> Path | None:
    """The folder of cublas_v2.h: the toolkit's, else the wheel's that torch brings; or None."""
    folders = [home / "include" for home in reversed(_library_homes())]
    return next((folder for folder in folders if (folder / "cublas_v2.h").exists()), None)


@functools.cache
def link_dir() -> Path:
    """A folder of plain `libX.so` names for the linker: the wheels carry only `libX.so.13`."""
    folder = temporary()
    major = (torch_cuda() or (13,))[0]
    for name in ("cudart", "cublas"):
        found = [
            library
            for home in _library_homes()
            for library in sorted(home.glob(f"lib*/lib{name}.so.{major}*"))
        ]
        if found:
            (folder / f"lib{name}.so").symlink_to(found[0].resolve())
    return folder


# ---- where builds are kept --------------------------------------------------------------------


def cache_dir() -> Path:
    """Where builds are kept: $CONVLAB_CACHE, else convlab under the user's cache directory.

    What is found there is loaded and run, so the folder must be the user's own. Where it is not,
    or cannot be written, a private temporary one is used instead, with a warning.
    """
    folder = _wanted()
    if folder is None:
        return _private("there is no home directory")
    reason = _unusable(folder)
    return _private(f"{folder} {reason}") if reason else folder


def _wanted() -> Path | None:
    """Where the user wants builds to be kept; None where there is no home directory."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get(CACHE) or f"{caches}/convlab").expanduser().absolute()
    except RuntimeError:
        return None


def lasting() -> bool:
    """Whether what is kept in `cache_dir` is still there when this process has ended."""
    return cache_dir() not in _passing


def _unusable(folder: Path) -> str | None:
    """Why builds cannot be kept in a folder, or None; it is made where it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return "is a file, or lies below one"
    except OSError as error:
        return f"cannot be made ({error.strerror})"
    seen = folder.stat()
    if seen.st_uid != os.geteuid():
        return "belongs to another user"
    # the user's own group may write, which distributions make the default
    others = stat.S_IWOTH if seen.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if seen.st_mode & others:
        return "can be written by others"
    return None if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


@functools.cache
def _private(reason: str) -> Path:
    folder = temporary()
    _passing.add(folder)
    os.environ[CACHE] = str(folder)  # of this process and those that it starts
    warnings.warn(
        f"{reason}: builds and receipts are in {folder} until Python ends; set {CACHE} to a folder "
        "of your own that can be written",
        stacklevel=2,
    )
    return folder


def temporary(parent: str | None = None) -> Path:
    """Make a private folder that goes when this process, no fork of it, ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"convlab-{interrupt.MARK}-", dir=parent))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def unfinished(cache: Path) -> Path:
    """Make a folder in the cache for a build that is not whole yet."""
    return Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{interrupt.MARK}-", dir=cache))


def temporaries() -> Iterator[Path]:
    """Yield the folders of `temporary` and `unfinished` that this process, or a fork, has left."""
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        yield from parent.glob(f"convlab-{interrupt.MARK}-*")
    if cache := _wanted():
        yield from cache.glob(f"{UNFINISHED}{interrupt.MARK}-*")
