"""Correct kernels other than convolutions, and the bugs that are planted in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from convlab.sim import any_kernel, trace
from tests.suites import FOLDER


def text(name: str) -> str:
    """Return the text of a kernel in ``tests/cuda/``."""
    return (FOLDER / f"{name}.cu").read_text()


RANDOM = np.random.default_rng(0)


@dataclass(frozen=True)
class Example:
    """A kernel, how to launch it, and what its last array argument must hold afterwards."""

    source: str
    entry: str
    arguments: Callable[[], tuple]
    expected: Callable
    grid: tuple[int, ...] | int
    block: tuple[int, ...] | int

    def run(self, source: str | None = None, **options: object) -> tuple[trace.Trace, tuple]:
        arguments = self.arguments()
        options = {"grid": self.grid, "block": self.block} | options
        return any_kernel.run(source or self.source, self.entry, *arguments, **options), arguments


def whole(*shape: int) -> np.ndarray:
    return RANDOM.integers(-9, 9, shape).astype(np.float32)


EXAMPLES = {
    "reduction": Example(
        text("reduction"), "reduction", lambda: (whole(3000), np.zeros(1, np.float32), 3000),
        lambda x, y, n: (y[0], x.sum()), 3, 256,
    ),
    "transpose": Example(
        text("transpose"), "transpose",
        lambda: (torch.from_numpy(whole(40, 70)), torch.zeros(70, 40), 40, 70),
        lambda a, b, *_: (b, a.T), (3, 2), (32, 8),
    ),
    "scan": Example(
        text("scan"), "scan<int>", lambda: (np.arange(256, dtype=np.int32),),
        lambda x: (x, np.cumsum(np.arange(256))), 1, 256,
    ),
    "histogram": Example(
        text("histogram"), "histogram",
        lambda: (RANDOM.integers(0, 64, 5001).astype(np.uint8), 5001, np.zeros(64, np.uint32)),
        lambda data, n, bins: (bins, np.bincount(data, minlength=64)), 4, 128,
    ),
    "product": Example(
        text("product"), "product",
        lambda: (whole(48, 48), whole(48, 48), np.full((48, 48), np.nan, np.float32), 48),
        lambda a, b, c, _: (c, a @ b), (3, 3), (16, 16),
    ),
}  # fmt: skip


# Example, text, its replacement, kind of finding, texts of the lines that a report may name.
BUGS = {
    "reduction-past_the_end": ("reduction", "i < n;", "i <= n;", "global out of bounds", ["x[i]"]),
    "reduction-no_barrier": ("reduction", "__syncthreads();  // barrier", "", "race",
                             ["s_part[threadIdx.x / 32] = sum;", "sum += s_part[i]"]),
    "reduction-no_atomic": ("reduction", "atomicAdd(y, sum);", "*y = *y + sum;", "race",
                            ["*y = *y + sum"]),
    "reduction-part_past_the_end": ("reduction", "i < 8;", "i < 9;", "shared out of bounds",
                                    ["sum += s_part[i]"]),
    "reduction-wrong_mask": ("reduction", "__shfl_down_sync(0xffffffffu,", "__shfl_down_sync(0xffffu,",
                             "warp mask", ["__shfl_down_sync"]),
    "reduction-null": ("reduction", "sum += x[i];", "sum += (n < 0 ? x : nullptr)[i];",
                       "null pointer", ["nullptr"]),
    "transpose-rows_of_another_block": ("transpose", "int row = blockIdx.y * 32 + threadIdx.x;",
                                        "int row = threadIdx.x;", "race",
                                        ["b[column * rows + row] ="]),
    "transpose-no_barrier": ("transpose", "__syncthreads();  // barrier", "", "race",
                             ["= a[row", "b[column * rows + row] ="]),
    "transpose-row_unchecked": ("transpose", "if (row < rows && column < columns)\n            b",
                                "if (column < columns)\n            b", "global out of bounds",
                                ["b[column * rows + row] ="]),
    "transpose-tile_not_filled": ("transpose", "i = threadIdx.y; i < 32; i += 8) {\n        int row",
                                  "i = threadIdx.y; i < 24; i += 8) {\n        int row",
                                  "uninitialised read", ["b[column * rows + row] ="]),
    "transpose-tile_too_small": ("transpose", "s_tile[32][33]", "s_tile[24][33]",
                                 "shared out of bounds", ["= a[row", "b[column * rows + row] ="]),
    "scan-no_barrier_before": ("scan", "__syncthreads();  // barrier before", "", "race",
                               ["s_x[threadIdx.x] = x", "T v ="]),
    "scan-no_barrier_between": ("scan", "__syncthreads();  // barrier between", "", "race",
                                ["T v =", "+= v"]),
    "scan-no_barrier_after": ("scan", "__syncthreads();  // barrier after", "", "race",
                              ["T v =", "+= v"]),
    "scan-divergent": ("scan", "__syncthreads();  // barrier between\n",
                       ("if (threadIdx.x < 128) __syncthreads();\n        else\n"
                        "            __syncthreads();\n"), "divergent barrier", ["__syncthreads();"]),
    "scan-syncwarp_mask": ("scan", "__syncthreads();  // barrier between",
                           "__syncthreads(); __syncwarp(0xffffu);", "warp mask", ["__syncwarp"]),
    "histogram-no_barrier_before": ("histogram", "__syncthreads();  // barrier before", "", "race",
                                    ["s_bins[threadIdx.x] = 0", "atomicAdd(&s_bins"]),
    "histogram-no_barrier_after": ("histogram", "__syncthreads();  // barrier after", "", "race",
                                   ["atomicAdd(&s_bins", "atomicAdd(&bins"]),
    "histogram-no_atomic": ("histogram", "atomicAdd(&s_bins[data[i] & 63], 1u);",
                            "s_bins[data[i] & 63] += 1;", "race", ["s_bins[data[i] & 63] += 1"]),
    "histogram-not_zeroed": ("histogram", "if (threadIdx.x < 64)\n        s_bins[threadIdx.x] = 0;",
                             "", "uninitialised read", ["atomicAdd(&s_bins"]),
    "histogram-misaligned": ("histogram", "data[i] & 63", "((const unsigned*)(data + 1))[0] & 63",
                             "misaligned access", ["atomicAdd(&s_bins"]),
    "product-no_wait": ("product", "__pipeline_wait_prior(1);", "", "copy not waited for", ["sum +=", "__pipeline_memcpy_async"]),
    "product-waits_too_little": ("product", "__pipeline_wait_prior(1);", "__pipeline_wait_prior(2);",
                                 "copy not waited for", ["sum +=", "__pipeline_memcpy_async"]),
    "product-no_barrier_before": ("product", "__syncthreads();  // barrier before", "", "race",
                                  ["__pipeline_memcpy_async", "sum +="]),
    "product-no_barrier_after": ("product", "__syncthreads();  // barrier after", "", "race",
                                 ["__pipeline_memcpy_async", "sum +="]),
}  # fmt: skip
# Bugs of kinds that are only in the table of compute-sanitizer.
MORE = {
    "histogram-zeroed_twice": (
        "histogram", "if (threadIdx.x < 64)\n        s_bins[threadIdx.x] = 0;",
        "s_bins[threadIdx.x & 63] = 0;", "written twice", ["s_bins[threadIdx.x & 63] = 0;"],
    ),
    "histogram-endless": (
        "histogram", "i += gridDim.x * blockDim.x", "i += n - 5001", "endless loop",
        ["i += n - 5001", "atomicAdd(&s_bins"],
    ),
}  # fmt: skip
