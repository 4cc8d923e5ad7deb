"""Device code that nvcc compiles without a GPU: a cubin, and what nvcc and ptxas printed."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..kernel.catalog import KERNEL_DIR
from ..machine import toolchain
from . import build as builds
from . import cache
from .cache import Made
from .compile import Source, name_of, real

# Block sizes that a kernel of the PTX is limited to.
_LIMITS = re.compile(r"\.entry (\w+)\([^{]*?\.(?:max|req)ntid (\d+)(?:, (\d+))?(?:, (\d+))?")


class Compiled(NamedTuple):
    """What nvcc made of a source: its exit status, what it printed, `_LIMITS` of the PTX, a cubin."""

    status: int
    log: str
    heads: list[list[str]]
    cubin: bytes


def compiled(source: Source, arch: str, defines: Mapping[str, object]) -> Compiled:
    """Let nvcc compile device code for "80" or "90a"; what it made before is found."""
    headers = source.headers()

    def make(folder: Path) -> Made:
        done = builds.device_code(source, arch, folder, defines, "--keep")
        ptx = folder / "kernel.ptx"
        heads = _LIMITS.findall(ptx.read_text()) if ptx.exists() else []
        made = b"" if done.returncode else (folder / "kernel.cubin").read_bytes()
        kept = folder / "made"
        kept.write_bytes(
            pickle.dumps((done.returncode, real(done.stdout + done.stderr), heads, made))
        )
        # what failed is for this process alone: the text it is of goes with the folder
        read = (*headers, folder / "kernel.cu") if done.returncode else tuple(headers)
        return Made(kept, read, (source.folder, KERNEL_DIR))

    parts = [*builds.nvcc_flags(arch), repr(sorted(defines.items()))]
    parts.append(toolchain.identity(toolchain.require_cuda().nvcc))
    parts.append(Path(__file__).read_text())  # decides what is kept
    built = cache.build(name_of(source, f"nvcc_{arch}", parts), make)
    return Compiled(*pickle.loads(built.library.read_bytes()))
