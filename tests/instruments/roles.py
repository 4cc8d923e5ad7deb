"""Measure what the warps of the wgmma rungs wait for, in clock cycles per tile.

    python -m tests.instruments.roles [--problems square wide] [--kernels 11_wgmma_tf32 ...]

Copies of the rungs get a clock around each wait and around the stores; one block in ten reports. Each block works
on many tiles, so the mean is stable. The clocks cost a few percent of the time. Needs a Hopper GPU.
"""

import argparse
import ctypes
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

import convlab
from convlab.core.correctness import reference
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.machine import toolchain

KERNELS = ("11_wgmma_tf32", "12_wgmma_vector_reads", "15_wgmma_bf16", "16_wgmma_nhwc_bf16")
COLUMNS = (
    "tiles",
    "a tile",
    "waits for x",
    "waits for the filter",
    "stores",
    "waits for y's buffer",
    "loaders wait for a stage",
)
_CLOCKS = """
__device__ unsigned long long g_cycles[8];
// Of the first consumer's first warp, and of the first loader.
#define TELL(what, cycles)                                                                        \\
    if (threadIdx.x % 256 == 0 && blockIdx.x % 10 == 3) atomicAdd(&g_cycles[what], cycles)
#define TIMED(what, ...)                                                                          \\
    do {                                                                                          \\
        const unsigned from = clock();                                                            \\
        __VA_ARGS__;                                                                              \\
        TELL(what, (unsigned long long)(unsigned(clock()) - from));                               \\
    } while (0)
CONVLAB_ENTRY int read_cycles(unsigned long long* to) {
    cudaError_t status = cudaMemcpyFromSymbol(to, g_cycles, sizeof(g_cycles));
    const unsigned long long zeros[8] = {};
    if (status == cudaSuccess) status = cudaMemcpyToSymbol(g_cycles, zeros, sizeof(zeros));
    return int(status);
}
"""
_RINGS = "    int stage = 0, stage_parity = 0, slot = 0, slot_parity = 0;\n"
# Rung 16 has the second one.
_STORES = "store_tile<256>", "store_pixels<256>"
_STORE = "%s(conv, tiling, b, tile, mine, r_acc, g_y);"
_END = "    bulk_wait_read<0>();   // until the copy engine has read"
_HEADERS = {
    "wgmma_block.cuh": {"#pragma once\n": "#pragma once\n" + _CLOCKS},
    "wgmma_store.cuh": {"bulk_wait_read<0>();           // of what": 5},
}
_ROLES = {
    _RINGS: _RINGS + "    const unsigned began = clock();\n",
    "mbarrier_wait(&b.x_full[stage], stage_parity);": 2,
    "mbarrier_wait(&b.w_full[slot], slot_parity);": 3,
    _END: "    TELL(1, (unsigned long long)(unsigned(clock()) - began));\n" + _END,
}
_STAGE = "mbarrier_wait(&b.x_empty[stage], parity ^ 1);"


def probed(name: str, folder: Path) -> Path:
    """Write a rung with clocks, and its headers, into a folder; return the rung's path."""
    for header in KERNEL_DIR.glob("*.cuh"):
        (folder / header.name).write_text(header.read_text())
    for header, edits in _HEADERS.items():
        (folder / header).write_text(_edited(header, edits))
    path = folder / f"{name}.cu"
    rung = _edited(path.name, _ROLES)
    (store,) = (_STORE % call for call in _STORES if _STORE % call in rung)
    rung = rung.replace(store, f"TELL(0, 1ull);\n        TIMED(4, ({store[:-1]}));")
    if _STAGE not in rung:
        raise ValueError(f"{name} has no line {_STAGE}: adapt _STAGE in roles.py")
    path.write_text(rung.replace(_STAGE, f"TIMED(6, {_STAGE[:-1]});"))
    return path


def _edited(name: str, edits: dict[str, str | int]) -> str:
    """Return the text of a file of kernels/ with clocks in it."""
    text = (KERNEL_DIR / name).read_text()
    for old, new in edits.items():
        if isinstance(new, int):
            call, mark, rest = old.partition(";")
            new = f"TIMED({new}, {call}){mark}{rest}"
        if text.count(old) != 1:
            raise ValueError(f"{name} has {text.count(old)} times, not once: {old}: adapt roles.py")
        text = text.replace(old, new, 1)
    return text


def cycles(name: str, problem: str) -> dict[str, int | str]:
    """Run a rung with clocks, twice, and return the second run's cycles for each tile."""
    kernel = convlab.load(probed(name, toolchain.temporary(None)), engine="cuda")
    posed = convlab.problem(problem)
    launch = kernel.prepare(posed, *reference.inputs(posed, 0, kernel.device, format=kernel.format))
    found = (ctypes.c_ulonglong * 8)()
    for _ in range(2):
        launch()
        torch.cuda.synchronize()
        if status := ctypes.CDLL(str(kernel.build().library)).read_cycles(found):
            raise RuntimeError(f"reading the clocks of {name} failed with CUDA error {status}")
    tiles, *sums = found[: len(COLUMNS)]
    return {"problem": problem, "rung": name, "tiles": tiles} | {
        column: round(each / max(tiles, 1)) for column, each in zip(COLUMNS[1:], sums, strict=True)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rungs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", nargs="+", default=["square", "wide"])
    parser.add_argument("--kernels", nargs="+", default=KERNELS)
    asked = parser.parse_args(arguments)
    rows = [cycles(name, problem) for problem in asked.problems for name in asked.kernels]
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
