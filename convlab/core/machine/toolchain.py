"""Find the tools that convlab uses, and their versions; choose the folder of the build cache.

Each process searches for a toolkit only once.
"""

import atexit
import functools
import grp
import importlib.util
import os
import pwd
import re
import shlex
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
# The prefix of a build's folder until the build is complete.
UNFINISHED = "unfinished-"
MOVE = f"give a file (--save FILE.json, result.save(path)), or set {CACHE} to a folder of your own"
# Private cache folders that are removed at the end of this process.
_temporary_caches: set[Path] = set()
OLDEST_GCC = 11
_CUDA_TOOLS = ("nvcc", "nvdisasm", "cuobjdump", "cu++filt", "ncu", "compute-sanitizer")
# Where NVIDIA's installers put ncu, outside of the toolkit; the newest version comes first.
_NCU = (
    "usr/local/cuda*/bin",
    "usr/local/cuda*/nsight-compute-*",
    "opt/nvidia/nsight-compute/*",
    "usr/lib/nsight-compute*",
)


# ---- finding a tool ---------------------------------------------------------------------------


def find(name: str) -> Path | None:
    """Return the path of a tool by the name of its executable, or None if it is not installed.

    "c++" is $CXX if that is set. CUDA's tools are searched in the toolkit first, then on PATH. The
    wheels of the running environment come last; the environment need not be activated.
    """
    toolkit = cuda() if name in _CUDA_TOOLS else None
    if name == "nvcc":
        return toolkit and toolkit.nvcc
    places = [os.environ.get("PATH", "")]
    if name in _CUDA_TOOLS:
        homes = [Path("/usr/local/cuda")]
        if toolkit is not None:
            homes.insert(0, toolkit.home)
        places = [*(str(home / "bin") for home in homes), *places]
        places += [str(root / "cu13" / "bin") for root in _wheels()]
        if name == "ncu":
            for pattern in _NCU:
                places += [str(path) for path in sorted(Path("/").glob(pattern), reverse=True)]
    else:
        places.append(sysconfig.get_path("scripts") or "")
    executable = os.environ.get("CXX", name) if name == "c++" else name
    tool = shutil.which(executable, path=os.pathsep.join(filter(None, places)))
    return Path(tool) if tool else None


def require_host_compiler() -> Path:
    """Return the host's C++ compiler, $CXX or c++. Raise BuildError if there is none."""
    compiler = find("c++")
    if compiler is None:
        raise BuildError(
            f"no C++ compiler: {os.environ.get('CXX', 'c++')} is not on PATH; install g++ "
            f"{OLDEST_GCC} or later (Debian, Ubuntu: apt-get install g++) or set CXX",
            kind="not run",
        )
    return compiler


def identity(tool: Path) -> str:
    """Return a text that identifies a compiler without running it: path, size, time of change."""
    real = tool.resolve()
    status = real.stat()
    return f"{real}:{status.st_size}:{status.st_mtime_ns}"


def asked(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a tool that finishes quickly, protected from Ctrl-C in a terminal or in Jupyter.

    Without this protection, Ctrl-C could truncate the output without an error. Use `child.run`,
    which Ctrl-C ends, for tools that take long.
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
    """Return the version that a tool prints, as one line."""
    try:
        done = asked([tool, "--version"], timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), (lines or ["unknown"])[0])


def gcc_release(compiler: Path) -> int | None:
    """Return the major release of a GCC, 12 for g++ 12.2; None for another compiler."""
    text = version(compiler)
    number = re.search(r"\) (\d+)\.\d+", text)
    return int(number[1]) if number and "clang" not in text.lower() else None


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
        """The release in its headers, such as (13, 0); None if they do not contain it."""
        header = self.home / "include" / "cuda_runtime_api.h"
        text = header.read_text("utf-8", "replace") if header.exists() else ""
        number = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
        return (int(number[1]) // 1000, int(number[1]) % 1000 // 10) if number else None

    def __str__(self) -> str:
        return f"{_dotted(self.release or ('?',))} ({self.nvcc})"


def _dotted(release: tuple[object, ...]) -> str:
    return ".".join(map(str, release))


@functools.cache
def cuda() -> Cuda | None:
    """Return the CUDA toolkit to build with, or None: the first one that matches torch's CUDA.

    A kernel and torch share one CUDA runtime, so the major releases must be equal. A torch without
    CUDA works with any toolkit.
    """
    required = torch_cuda()
    for toolkit in toolkits():
        major = toolkit.release[0] if toolkit.release else 0
        if required is None or major == required[0]:
            return toolkit
    return None


def require_cuda() -> Cuda:
    """Return the CUDA toolkit. Raise BuildError if there is none."""
    toolkit = cuda()
    if toolkit is None:
        raise BuildError(f'{without_cuda()}; engine="sim" needs none', kind="not run")
    return toolkit


def without_cuda() -> str:
    """Return a text that says why there is no suitable nvcc, and which one to install."""
    required = torch_cuda() or (13, 0)
    other = next(toolkits(), None)
    release = _dotted(required)
    mismatch = f" that fits torch's CUDA {release}, only {other}" if other else ""
    wheel = f"`{INSTALL}` installs one, or " if required[0] == 13 else ""
    return (
        f"no nvcc{mismatch}: {wheel}install CUDA toolkit {release} (NVIDIA's package cuda-toolkit-"
        f"{release.replace('.', '-')}, or another {required[0]}.x) and set CUDA_HOME to it"
    )


def toolkits() -> Iterator[Cuda]:
    """Yield the installed CUDA toolkits, the preferred one first."""
    homes = [Path(os.environ[key]) for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    if nvcc := shutil.which("nvcc"):
        home = Path(nvcc).resolve().parent.parent
        # Without headers, this nvcc is a script that calls the real one elsewhere.
        if (home / "include" / "cuda_runtime.h").exists():
            homes.append(home)
    homes += sorted(Path("/usr/local").glob("cuda*"), key=lambda p: (p.name != "cuda", p))
    homes += [root / "cu13" for root in _wheels()]
    return (Cuda(home) for home in homes if (home / "bin" / "nvcc").exists())


def torch_cuda() -> tuple[int, int] | None:
    """Return the CUDA release for which torch was built, such as (13, 0), or None."""
    # torch is slow to import, and parsing a command line does not need it.
    import torch

    major, minor = (torch.version.cuda or "0.0").split(".")[:2]
    return (int(major), int(minor)) if int(major) else None


def _wheels() -> list[Path]:
    """Return the folders of the nvidia-* wheels: each site-packages/nvidia."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None:
        return []
    return [Path(root) for root in spec.submodule_search_locations or []]


def _library_homes() -> list[Path]:
    """Return the folders that may have CUDA's libraries and headers, torch's wheels first."""
    parts = ["cu13"] if _torch_major() >= 13 else ["cuda_runtime", "cublas"]
    homes = [root / part for root in _wheels() for part in parts]
    toolkit = cuda()
    if toolkit is not None:
        homes.append(toolkit.home)
    return homes


def _torch_major() -> int:
    """Return the major release of torch's CUDA; 13 for a torch without CUDA."""
    release = torch_cuda()
    return 13 if release is None else release[0]


def cublas_include() -> Path | None:
    """Return the folder of cublas_v2.h, in the toolkit or in a wheel, or None."""
    folders = [home / "include" for home in reversed(_library_homes())]
    return next((folder for folder in folders if (folder / "cublas_v2.h").exists()), None)


@functools.cache
def link_dir() -> Path:
    """Return a folder with links `libX.so` for the linker; the wheels have only `libX.so.13`."""
    folder = temporary()
    for name in ("cudart", "cublas"):
        pattern = f"lib*/lib{name}.so.{_torch_major()}*"
        libraries = [path for home in _library_homes() for path in sorted(home.glob(pattern))]
        if libraries:
            (folder / f"lib{name}.so").symlink_to(libraries[0].resolve())
    return folder


# ---- the folder of the build cache ------------------------------------------------------------
#
# The threat. convlab loads libraries and pickles from the cache. So whoever can put an entry there
# runs code as you: another user if the folder is writable by all, or by a group with other members;
# the owner of the folder, or of a link to it; whoever can replace the folder, because a folder above
# it is writable by all and not sticky (/tmp is sticky). Each of these is refused before anything is
# loaded: a private folder in /tmp, with mode 0700, replaces the cache, and a warning says what to
# run. Where each user has a group of his own (umask 002), a folder may be writable by this group,
# because nobody else is in it. An entry that was planted before you corrected the folder is refused
# too: each entry must be yours, and no link (`is_yours`). A folder above that is writable by a
# group is accepted: a folder that a member puts in place of the cache belongs to him, and is
# refused. Only a swap between this test and the load remains. Root's cache follows the same rules.
# The system administrator, and whoever writes to your home directory, could do all this anyway.


def cache_dir() -> Path:
    """Return the folder of the build cache: $CONVLAB_CACHE, else ~/.cache/convlab.

    $XDG_CACHE_HOME replaces ~/.cache. convlab runs the libraries in this folder, so only you may
    have write access. If others have it too, or the folder is not writable, convlab warns and uses
    a private temporary folder instead. Raises BuildError if no library can be run from that either.
    """
    folder = _chosen_cache()
    if folder is None:
        return _private("there is no home directory")
    reason = _unusable(folder)
    return _private(f"{folder} {reason}") if reason else folder


def _chosen_cache() -> Path | None:
    """Return the chosen or the default cache folder; None without a home directory."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get(CACHE) or f"{caches}/convlab").expanduser().absolute()
    except RuntimeError:
        return None


def lasting() -> bool:
    """Return whether the files in `cache_dir` outlive this process."""
    return cache_dir() not in _temporary_caches


def _unusable(folder: Path) -> str | None:
    """Return why a folder cannot hold the cache, or None; create the folder if necessary."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return "is a file, or is inside a file"
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if folder.is_symlink() and folder.lstat().st_uid not in (0, os.geteuid()):
        return "is a link that belongs to another user"
    command = f"run `chmod go-w {shlex.quote(str(folder))}`"
    if _others_write(status):
        return f"is writable by other users, who could plant a library there ({command})"
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"can be replaced by other users, because {parent} is writable by all"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable"
    if _is_noexec(folder):
        return "is on a file system that is mounted noexec, so no library can run from it"
    return None


def _others_write(status: os.stat_result) -> bool:
    """Return whether users other than the owner can write to a folder, by its mode."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(group: int) -> bool:
    """Return whether a group is this user's own: of the user's name, and without other members."""
    try:
        user = pwd.getpwuid(os.geteuid())
        entry = grp.getgrgid(group)
    except KeyError:
        # A container may run a user without a name.
        return False
    is_own = group == user.pw_gid and entry.gr_name == user.pw_name
    return is_own and {*entry.gr_mem} <= {user.pw_name}


def _is_noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def is_yours(path: Path) -> bool:
    """Return whether a file or folder in the cache is this user's: no link, and no other's."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_safe = not (stat.S_ISDIR(status.st_mode) and _others_write(status))
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and is_safe


@functools.cache
def _private(reason: str) -> Path:
    """Use a temporary folder as the cache of this process, and warn with the reason."""
    try:
        folder = temporary()
    except OSError as error:
        raise BuildError(
            f"no folder for builds: {reason}, and {tempfile.gettempdir()} cannot be used "
            f"({error.strerror}); set {CACHE} to a writable folder of your own",
            kind="not run",
        ) from None
    if _is_noexec(folder):
        raise BuildError(
            f"no folder for builds: {reason}, and {tempfile.gettempdir()} is mounted noexec; set "
            f"{CACHE} to a folder of your own on a file system without noexec",
            kind="not run",
        )
    _temporary_caches.add(folder)
    # Processes that this one starts use it too.
    os.environ[CACHE] = str(folder)
    warnings.warn(
        f"{reason}: builds and receipts are in {folder} until Python ends; to keep them, set "
        f"{CACHE} to a writable folder of your own",
        stacklevel=2,
    )
    return folder


def temporary(parent: str | None = None) -> Path:
    """Create a private folder; it is removed when this process ends, but not when a fork ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"convlab-{interrupt.MARK}-", dir=parent))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def unfinished(cache: Path) -> Path:
    """Create a folder in the cache for a build that is not complete yet."""
    return Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{interrupt.MARK}-", dir=cache))


def temporaries() -> Iterator[Path]:
    """Yield the folders of `temporary` and `unfinished` that this process or its forks left."""
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        yield from parent.glob(f"convlab-{interrupt.MARK}-*")
    if cache := _chosen_cache():
        yield from cache.glob(f"{UNFINISHED}{interrupt.MARK}-*")
