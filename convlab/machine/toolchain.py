"""The compilers that convlab uses: where they are, and which they are."""

import functools
import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from ..words.errors import BuildError


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit: nvcc, its headers and its libraries."""

    home: Path
    origin: str  # "CUDA_HOME", "PATH" or "wheels"

    @property
    def nvcc(self) -> Path:
        """The compiler driver."""
        return self.home / "bin" / "nvcc"


def cache_dir() -> Path:
    """Where builds are kept: $CONVLAB_CACHE, else convlab under the user's cache directory."""
    if "CONVLAB_CACHE" in os.environ:
        return Path(os.environ["CONVLAB_CACHE"]).expanduser().resolve()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser().resolve() / "convlab"


def wheel_home() -> Path:
    """Where the nvidia-* wheels of CUDA 13 put their files."""
    return Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"


@functools.cache
def cuda() -> Cuda | None:
    """The CUDA toolkit to build with: CUDA_HOME, then PATH, then pip's wheels; None without one."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home and (Path(home) / "bin" / "nvcc").exists():
            return Cuda(Path(home), "CUDA_HOME")
    found = shutil.which("nvcc")
    if found:
        home = Path(found).resolve().parent.parent
        if not (home / "include" / "cuda_runtime.h").exists():  # a script that calls the real one
            home = Path("/usr/local/cuda")
        if (home / "bin" / "nvcc").exists():
            return Cuda(home, "PATH")
    if (wheel_home() / "bin" / "nvcc").exists():
        return Cuda(wheel_home(), "wheels")
    return None


def require_cuda() -> Cuda:
    """The CUDA toolkit, or a `BuildError` that says how to get one."""
    found = cuda()
    if found is None:
        raise BuildError(
            "no nvcc: `pip install -r requirements.txt` brings one, or set CUDA_HOME to a CUDA 13 "
            'toolkit; engine="sim" needs none'
        )
    return found


@functools.cache
def host_compiler() -> Path | None:
    """The C++ compiler that torch builds with: $CXX, else c++; None if it is not there."""
    found = shutil.which(os.environ.get("CXX", "c++"))
    return Path(found) if found else None


def require_host_compiler() -> Path:
    """The host's C++ compiler, or a `BuildError` that says how to get one."""
    found = host_compiler()
    if found is None:
        raise BuildError(
            f"no C++ compiler: {os.environ.get('CXX', 'c++')} is not on PATH; install g++ 10 or "
            "later (Debian, Ubuntu: apt-get install g++) or set CXX"
        )
    return found


@functools.cache
def ninja() -> Path | None:
    """The ninja executable, on PATH or of pip's package; None without one."""
    found = shutil.which("ninja")
    if found:
        return Path(found)
    beside = Path(sysconfig.get_path("scripts")) / "ninja"
    return beside if beside.exists() else None


def cublas_include() -> Path | None:
    """The folder of cublas_v2.h: the toolkit's, else the wheel's that torch brings; or None."""
    homes = [found.home for found in [cuda()] if found] + [wheel_home()]
    for home in homes:
        if (home / "include" / "cublas_v2.h").exists():
            return home / "include"
    return None


def link_dir() -> Path:
    """A folder of plain `libX.so` names for the linker: the wheels carry only `libX.so.13`."""
    folder = cache_dir() / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    homes = [wheel_home()] + [found.home for found in [cuda()] if found]
    for name in ("cudart", "cublas"):
        for home in homes:
            for library in sorted(home.glob(f"lib*/lib{name}.so.1*")):
                link = folder / f"lib{name}.so"
                if not link.exists() or link.resolve() != library.resolve():
                    fresh = folder / f".{name}.{os.getpid()}"
                    fresh.unlink(missing_ok=True)
                    fresh.symlink_to(library)
                    fresh.replace(link)
                break
            else:
                continue
            break
    return folder


def identity(tool: Path) -> str:
    """What tells one compiler from the next without running it: path, size, time of change."""
    real = tool.resolve()
    stat = real.stat()
    return f"{real}:{stat.st_size}:{stat.st_mtime_ns}"


def version(tool: Path) -> str:
    """The version that a tool prints of itself, in one line."""
    out = subprocess.run([str(tool), "--version"], capture_output=True, text=True).stdout
    lines = [line for line in out.splitlines() if line.strip()]
    release = [line for line in lines if "release" in line]
    return (release or lines or ["unknown"])[0].strip()
