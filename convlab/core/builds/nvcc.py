"""Device code that nvcc compiles without a GPU: a cubin, and what nvcc and ptxas printed."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..machine import toolchain
from . import build as builds
from . import cache
from .cache import BuildOutput, Key
from .key import key_of
from .plain_paths import real
from .source import Source

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

    def make(folder: Path) -> BuildOutput:
        done = builds.device_code(source, arch, folder, defines, "--keep")
        ptx = folder / "kernel.ptx"
        heads = _LIMITS.findall(ptx.read_text()) if ptx.exists() else []
        made = b"" if done.returncode else (folder / "kernel.cubin").read_bytes()
        kept = folder / "made"
        kept.write_bytes(
            pickle.dumps((done.returncode, real(done.stdout + done.stderr), heads, made))
        )
        # A failure is kept for this process alone: nvcc itself may be broken.
        return BuildOutput(kept, lasting=done.returncode == 0)

    parts = [*builds.nvcc_flags(arch), repr(sorted(defines.items()))]
    parts.append(toolchain.identity(toolchain.require_cuda().nvcc))
    parts.append(Path(__file__).read_text())  # decides what is kept

    def find_key() -> Key:
        return key_of(source, f"nvcc_{arch}", parts, [builds.CUBLAS_DECLARATIONS])

    built = cache.build(find_key, make)
    return Compiled(*pickle.loads(built.library.read_bytes()))
