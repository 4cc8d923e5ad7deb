"""Compile device code with nvcc, without a GPU: a cubin, and the output of nvcc and ptxas."""

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

# The limits on the block size of each kernel in the PTX.
_LIMITS = re.compile(r"\.entry (\w+)\([^{]*?\.(?:max|req)ntid (\d+)(?:, (\d+))?(?:, (\d+))?")


class Compiled(NamedTuple):
    """The result of nvcc: exit status, output, the matches of `_LIMITS` in the PTX, the cubin."""

    status: int
    log: str
    heads: list[list[str]]
    cubin: bytes


def compiled(source: Source, arch: str, defines: Mapping[str, object]) -> Compiled:
    """Return the device code of a source for "80" or "90a", compiled by nvcc or from the cache."""

    def make(folder: Path) -> BuildOutput:
        done = builds.device_code(source, arch, folder, defines, "--keep")
        ptx = folder / "kernel.ptx"
        heads = _LIMITS.findall(ptx.read_text()) if ptx.exists() else []
        cubin = b"" if done.returncode else (folder / "kernel.cubin").read_bytes()
        output = folder / "made"
        output.write_bytes(
            pickle.dumps((done.returncode, real(done.stdout + done.stderr), heads, cubin))
        )
        # Only this process keeps a failure, because nvcc itself may be broken.
        return BuildOutput(output, lasting=done.returncode == 0)

    parts = [*builds.nvcc_flags(arch), repr(sorted(defines.items()))]
    parts.append(toolchain.identity(toolchain.require_cuda().nvcc))
    # This file determines what is stored.
    parts.append(Path(__file__).read_text())

    def find_key() -> Key:
        return key_of(source, f"nvcc_{arch}", parts, [builds.CUBLAS_DECLARATIONS])

    built = cache.build(find_key, make)
    return Compiled(*pickle.loads(built.library.read_bytes()))
