"""What of CUDA the simulator runs, what it counts, and what it finds wrong.

Most kernels here are cases of a suite: one file whose entry point picks the case by a number that
has no other effect (the dilation of a 1x1 filter). The suites of language features also run on a
GPU, so that both engines are held to the same answers; what the simulator counts and reports is
computed by hand.
"""

import functools
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import convlab
from convlab import sim
from convlab.words.errors import BuildError, LaunchError
from convlab.words.problem import Problem

ENGINES = ["sim", pytest.param("cuda", marks=pytest.mark.gpu)]

_ENTRY = """
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 256; }
CONVLAB_ENTRY const char* conv2d(const ConvProblem* problem, const float* x, const float* w,
                                 const float* bias, float* y, void* workspace,
                                 size_t workspace_bytes, cudaStream_t stream) {
    const int n = problem->W, m = problem->K * problem->W, arg = problem->dilation_w - 1;
    (void)n, (void)m, (void)arg;
    switch (problem->dilation_h - 1) {
%s
    }
    return launch_error();
}
"""


@dataclass(frozen=True)
class Case:
    """A kernel, how it is launched (with x, w, y, n, m, arg, workspace), and what must come out.

    x has n floats, y has k of them for each, m in all; `expected` is called with x and arg.
    """

    code: str
    launch: str
    expected: Callable | None = None
    x: Callable[[int], torch.Tensor] | int = 64
    k: int = 1
    args: tuple[int, ...] = (0,)
    view: torch.dtype = torch.float32


class Suite:
    """Cases that are compiled as one file."""

    def __init__(self, name: str, cases: dict[str, Case], prelude: str = "") -> None:
        self.name, self.cases = name, cases
        arms = [
            f"    case {number}: {{ {textwrap.dedent(case.launch).strip()} break; }}"
            for number, case in enumerate(cases.values())
        ]
        codes = [f"{textwrap.dedent(case.code).strip()}\n" for case in cases.values()]
        self.source = "\n".join(
            ['#include "convlab.cuh"', prelude, *codes, _ENTRY % "\n".join(arms)]
        )
        self._compiled = functools.cache(
            lambda engine: convlab.compile(self.source, name=self.name, engine=engine)
        )

    def launch(self, name: str, arg: int = 0, engine: str = "sim"):
        """Run one case; return the Launch."""
        case, number = self.cases[name], list(self.cases).index(name)
        x = inputs(case.x) if isinstance(case.x, int) else case.x(arg)
        problem = Problem(1, 1, 1, x.numel(), case.k, 1, 1, dilation=(number + 1, arg + 1))
        kernel = self._compiled(engine)
        w = inputs(case.k, seed=1)
        launch = kernel.prepare(
            problem,
            x.reshape(1, 1, 1, -1).to(kernel.device),
            w.reshape(case.k, 1, 1, 1).to(kernel.device),
        )
        launch()
        return launch

    def check(self, name: str, arg: int, engine: str) -> None:
        """Run one case and compare what it wrote with what it should have."""
        case = self.cases[name]
        launch = self.launch(name, arg, engine)
        actual = launch.y.cpu().flatten().view(case.view)
        x = launch.inputs[0].cpu().flatten()
        expected = torch.as_tensor(np.asarray(case.expected(x, arg))).flatten()
        torch.testing.assert_close(
            actual[: expected.numel()].double(), expected.double(), rtol=1e-6, atol=1e-6
        )

    def parameters(self) -> list:
        """(case, argument) of all, with readable ids."""
        return [
            pytest.param(self, name, arg, id=f"{self.name}-{name}" + (f"-{arg}" if arg else ""))
            for name, case in self.cases.items()
            for arg in case.args
        ]


def inputs(n: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers as floats: sums of them are exact in any order."""
    return torch.randint(-50, 50, (n,), generator=torch.Generator().manual_seed(seed)).float()


def lanes(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, 32)


# --- barriers, blocks, grids -----------------------------------------------------------------

BLOCKS = Suite(
    "blocks",
    {
        "reverse": Case(
            """
            __global__ void reverse(const float* x, float* y) {
                extern __shared__ float s_x[];
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                s_x[threadIdx.x] = x[i];
                __syncthreads();
                y[i] = s_x[blockDim.x - 1 - threadIdx.x];
            }
            """,
            "reverse<<<3, arg, 4 * arg, stream>>>(x, y);",
            lambda x, arg: x.reshape(3, arg).flip(1),
            x=lambda arg: inputs(3 * arg),
            args=(1, 32, 33, 64, 100, 256, 500, 1024),
        ),
        "index_3d": Case(
            """
            __global__ void index_3d(float* y) {
                int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
                int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
                int size = blockDim.x * blockDim.y * blockDim.z;
                y[block * size + thread] = 1000 * threadIdx.z + 100 * threadIdx.y + threadIdx.x
                                         + 10000 * (blockIdx.z * 4 + blockIdx.y * 2 + blockIdx.x);
            }
            """,
            "index_3d<<<dim3(2, 2, 2), dim3(5, 3, 4), 0, stream>>>(y);",
            lambda x, arg: [
                1000 * tz + 100 * ty + tx + 10000 * b
                for b in range(8) for tz in range(4) for ty in range(3) for tx in range(5)
            ],
            x=480,
        ),
        "block_2d": Case(  # the warps of a 2-D block are cut from its threads end to end
            """
            __global__ void block_2d(float* y) {
                int thread = threadIdx.y * blockDim.x + threadIdx.x;
                y[thread] = __shfl_sync(0xffffffff, thread, 0);
            }
            """,
            "block_2d<<<1, dim3(8, 8), 0, stream>>>(y);",
            lambda x, arg: [0] * 32 + [32] * 32,
        ),
        "votes": Case(
            """
            __global__ void votes(const float* x, float* y) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                int count = __syncthreads_count(x[i] > 0);
                int all = __syncthreads_and(x[i] > -45), any = __syncthreads_or(x[i] > 47);
                y[i] = count * 4 + (all != 0) * 2 + (any != 0);
            }
            """,
            "votes<<<n / 50, 50, 0, stream>>>(x, y);",
            lambda x, arg: [
                (b > 0).sum() * 4 + (b > -45).all() * 2 + (b > 47).any()
                for b in x.reshape(-1, 50) for _ in range(50)
            ],
            x=400,
        ),
        "early_exit": Case(  # who has left is not waited for, at barriers and in warps
            """
            __global__ void early_exit(const float* x, float* y, int n) {
                __shared__ float s_x[128];
                int i = threadIdx.x;
                s_x[i] = 0;
                __syncthreads();
                if (i >= n) return;
                s_x[i] = x[i];
                __syncthreads();
                y[i] = s_x[n - 1 - i] + __syncthreads_count(1);
            }
            """,
            "early_exit<<<1, 128, 0, stream>>>(x, y, n);",
            lambda x, arg: x.flip(0) + len(x),
            x=70,
        ),
        "many_barriers": Case(  # a tree: half of the threads each time
            """
            __global__ void many_barriers(const float* x, float* y) {
                __shared__ float s_sum[256];
                s_sum[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
                for (int half = 128; half > 0; half /= 2) {
                    __syncthreads();
                    if (threadIdx.x < half) s_sum[threadIdx.x] += s_sum[threadIdx.x + half];
                }
                if (threadIdx.x == 0) y[blockIdx.x] = s_sum[0];
            }
            """,
            "many_barriers<<<n / 256, 256, 0, stream>>>(x, y);",
            lambda x, arg: x.reshape(-1, 256).sum(1),
            x=1024,
        ),
        "warp_and_block": Case(
            """
            __device__ float warp_sum(float v) {
                for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
                return v;
            }
            __global__ void warp_and_block(const float* __restrict__ x, float* __restrict__ y) {
                __shared__ float s_part[32];
                int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
                float v = warp_sum(x[blockIdx.x * blockDim.x + threadIdx.x]);
                if (lane == 0) s_part[warp] = v;
                __syncthreads();
                if (warp == 0) {
                    v = warp_sum(lane < blockDim.x / warpSize ? s_part[lane] : 0.0f);
                    if (lane == 0) y[blockIdx.x] = v;
                }
            }
            """,
            "warp_and_block<<<n / 512, 512, 0, stream>>>(x, y);",
            lambda x, arg: x.reshape(-1, 512).sum(1),
            x=2048,
        ),
        "big_shared": Case(  # more than 48 KB, opted into
            """
            __global__ void big_shared(const float* x, float* y, int words) {
                extern __shared__ float s_x[];
                for (int i = threadIdx.x; i < words; i += blockDim.x) s_x[i] = i;
                __syncthreads();
                y[threadIdx.x] = x[threadIdx.x] + s_x[words - 1 - threadIdx.x];
            }
            """,
            """
            int bytes = arg * 1024;
            cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
            big_shared<<<1, 64, bytes, stream>>>(x, y, bytes / 4);
            """,
            lambda x, arg: x + 256 * arg - 1 - torch.arange(64),
            args=(48, 64, 227),
        ),
        "launches": Case(  # one after the other, each sees what the one before wrote
            """
            __global__ void add(float* y, float v, int n) {
                if (threadIdx.x < n) y[threadIdx.x] += v;
            }
            """,
            """
            cudaMemsetAsync(y, 0, 4 * n, stream);
            for (int i = 1; i <= 4; ++i) add<<<1, 64, 0, stream>>>(y, float(i), n);
            add<<<1, 32>>>(y, 100, n);
            """,
            lambda x, arg: [110] * 32 + [10] * 32,
        ),
    },
)

# --- warps -----------------------------------------------------------------------------------


def shuffled(source: Callable[[int, int], int], width_of=lambda arg: arg):
    """Expected: lane l of each warp gets what the lane source(l, width) brought."""

    def expected(x, arg):
        index = [source(lane, width_of(arg)) for lane in range(32)]
        return lanes(x)[:, index]

    return expected


def shuffles(kind: str, call: str, source: Callable[[int, int], int]) -> Case:
    return Case(
        f"""
        __global__ void shuffle_{kind}(const float* x, float* y, int width) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x, lane = i % 32;
            (void)lane;
            y[i] = {call};
        }}
        """,
        f"shuffle_{kind}<<<2, 96, 0, stream>>>(x, y, arg);",
        shuffled(source),
        x=192,
        args=(2, 4, 8, 16, 32),
    )


def of_type(name: str, type_: str, value: str, view: torch.dtype, expected) -> Case:
    """Shuffles of another type, by each of the four operations in turn."""
    words = 2 if view in (torch.float64, torch.int64) else 1
    return Case(
        f"""
        __global__ void shuffle_{name}(const float* x, {type_}* y) {{
            int i = threadIdx.x;
            {type_} v = {value};
            v = __shfl_sync(0xffffffff, v, (i + 5) % 32);
            v = __shfl_xor_sync(0xffffffff, v, 3);
            v = __shfl_up_sync(0xffffffff, v, 1);
            y[i] = __shfl_down_sync(0xffffffff, v, 2);
        }}
        """,
        f"shuffle_{name}<<<1, 32, 0, stream>>>(x, reinterpret_cast<{type_}*>(y));",
        lambda x, arg: expected(x.double()[_FOUR]),
        x=32,
        k=words,
        view=view,
    )


def _four_shuffles() -> list[int]:
    v = [(lane + 5) % 32 for lane in range(32)]
    v = [v[lane ^ 3] for lane in range(32)]
    v = [v[max(lane - 1, 0)] for lane in range(32)]
    return [v[lane + 2 if lane < 30 else lane] for lane in range(32)]


_FOUR = _four_shuffles()


def reductions(kind: str, type_: str, expected) -> Case:
    offset = 60 if type_ == "unsigned" else 0
    return Case(
        f"""
        __global__ void reduce_{kind}_{type_}(const float* x, {type_}* y) {{
            int i = threadIdx.x;
            unsigned mask = i % 32 < 8 ? 0x000000ffu : 0xffffff00u;
            y[i] = __reduce_{kind}_sync(mask, {type_}(x[i] + {offset}));
        }}
        """,
        f"reduce_{kind}_{type_}<<<1, 64, 0, stream>>>(x, reinterpret_cast<{type_}*>(y));",
        lambda x, arg: [
            functools.reduce(expected, [int(v) + offset for v in part])
            for warp in lanes(x)
            for part in [warp[:8]] * 8 + [warp[8:]] * 24
        ],
        view=torch.int32,
    )


WARPS = Suite(
    "warps",
    {
        "shfl": shuffles("index", "__shfl_sync(0xffffffff, x[i], 3 * lane + 1, width)",
                         lambda lane, width: lane // width * width + (3 * lane + 1) % width),
        "shfl_up": shuffles("up", "__shfl_up_sync(0xffffffff, x[i], 1, width)",
                            lambda lane, width: lane - 1 if lane % width else lane),
        "shfl_down": shuffles("down", "__shfl_down_sync(0xffffffff, x[i], 1, width)",
                              lambda lane, width: lane + 1 if (lane + 1) % width else lane),
        "shfl_xor": shuffles("xor", "__shfl_xor_sync(0xffffffff, x[i], 1, width)",
                             lambda lane, width: lane ^ 1),
        # groups may read from earlier groups, not from later ones (CUDA C++ guide, 10.22)
        "shfl_xor_far": shuffles("far", "__shfl_xor_sync(0xffffffff, x[i], 8, width)",
                                 lambda lane, width: lane if width <= 8 and not lane & 8
                                 else lane ^ 8),
        "shfl_int": of_type("int", "int", "int(x[i]) * 1000003", torch.int32,
                            lambda v: v * 1000003),
        "shfl_unsigned": of_type("unsigned", "unsigned", "0x80000000u + unsigned(x[i] + 50)",
                                 torch.int32, lambda v: v + 50 - 2**31),
        "shfl_float": of_type("float", "float", "x[i] / 7", torch.float32, lambda v: v / 7),
        "shfl_double": of_type("double", "double", "x[i] / 7.0", torch.float64, lambda v: v / 7),
        "shfl_ulonglong": of_type("ulonglong", "unsigned long long",
                                  "(1ull << 40) + (unsigned long long)(x[i] + 50)", torch.int64,
                                  lambda v: v + 50 + 2**40),
        "ballot": Case(
            """
            __global__ void ballot(const float* x, unsigned* y) {
                int i = threadIdx.x;
                y[i] = __ballot_sync(0xffffffff, x[i] > 0);
            }
            """,
            "ballot<<<1, 50, 0, stream>>>(x, reinterpret_cast<unsigned*>(y));",
            lambda x, arg: np.array(
                [sum(1 << lane for lane, v in enumerate(x[:32]) if v > 0)] * 32
                + [sum(1 << lane for lane, v in enumerate(x[32:50]) if v > 0)] * 18,
                dtype=np.uint32,
            ).view(np.int32),
            view=torch.int32,
        ),
        "any_all": Case(
            """
            __global__ void any_all(const float* x, float* y) {
                int i = threadIdx.x;
                y[i] = 8 * __any_sync(0xffffffff, x[i] > 48)
                     + 4 * __all_sync(0xffffffff, x[i] > -50)
                     + 2 * __any_sync(0xffffffff, x[i] > 99) + __all_sync(0xffffffff, x[i] > -99);
            }
            """,
            "any_all<<<1, 128, 0, stream>>>(x, y);",
            lambda x, arg: [
                8 * (w > 48).any() + 4 * (w > -50).all() + 1 for w in lanes(x) for _ in range(32)
            ],
            x=128,
        ),
        "match_any": Case(
            """
            __global__ void match_any(const float* x, unsigned* y) {
                int i = threadIdx.x;
                y[i] = __match_any_sync(0xffffffff, int(x[i]) & 3);
            }
            """,
            "match_any<<<1, 32, 0, stream>>>(x, reinterpret_cast<unsigned*>(y));",
            lambda x, arg: np.array(
                [sum(1 << j for j in range(32) if int(x[j]) & 3 == int(v) & 3) for v in x],
                dtype=np.uint32,
            ).view(np.int32),
            x=32,
            view=torch.int32,
        ),
        "match_all": Case(
            """
            __global__ void match_all(const float* x, float* y) {
                int same, other;
                unsigned a = __match_all_sync(0xffffffff, 7, &same);
                unsigned b = __match_all_sync(0xffffffff, int(threadIdx.x), &other);
                y[threadIdx.x] = (a == 0xffffffff) * 8 + (same != 0) * 4 + (b == 0) * 2
                               + (other == 0);
            }
            """,
            "match_all<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: [15] * 32,
            x=32,
        ),
        "reduce_add": reductions("add", "int", lambda a, b: a + b),
        "reduce_min": reductions("min", "int", min),
        "reduce_max": reductions("max", "int", max),
        "reduce_add_unsigned": reductions("add", "unsigned", lambda a, b: a + b),
        "reduce_and": reductions("and", "unsigned", lambda a, b: a & b),
        "reduce_or": reductions("or", "unsigned", lambda a, b: a | b),
        "reduce_xor": reductions("xor", "unsigned", lambda a, b: a ^ b),
        "half_warps": Case(  # each half on a path of its own, with a barrier of its own
            """
            __global__ void half_warps(const float* x, float* y) {
                __shared__ float s_x[32];
                int lane = threadIdx.x;
                s_x[lane] = 0;
                __syncwarp();
                if (lane < 16) {
                    s_x[lane] = x[lane];
                    __syncwarp(0x0000ffff);
                    y[lane] = s_x[15 - lane] + __shfl_sync(0x0000ffff, lane, 3);
                } else {
                    for (int round = 0; round < 3; ++round) {
                        s_x[lane] += x[lane];
                        __syncwarp(0xffff0000);
                    }
                    y[lane] = s_x[47 - lane] + __shfl_sync(0xffff0000, lane, 20);
                }
            }
            """,
            "half_warps<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: torch.cat([x[:16].flip(0) + 3, 3 * x[16:].flip(0) + 20]),
            x=32,
        ),
        "mixed_masks": Case(  # half of the lanes meet among themselves first
            """
            __global__ void mixed_masks(const float* x, float* y) {
                int lane = threadIdx.x, extra = 0;
                if (lane % 2 == 0) extra = __shfl_xor_sync(0x55555555, lane, 2);
                y[lane] = __shfl_xor_sync(0xffffffff, x[lane], 1) + extra;
            }
            """,
            "mixed_masks<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: [
                x[lane ^ 1] + (0 if lane % 2 else lane ^ 2) for lane in range(32)
            ],
            x=32,
        ),
        "activemask": Case(  # whoever is together sums; the sum over all does not depend on it
            """
            __global__ void activemask(const float* x, float* y, int n) {
                int i = threadIdx.x;
                if (i == 0) y[0] = 0;
                __syncthreads();
                if (i >= n) return;
                if (i % 3 == 0) {
                    unsigned mask = __activemask();
                    int first = __ffs(mask) - 1, total = __reduce_add_sync(mask, int(x[i]));
                    if (i % 32 == first) atomicAdd(y, float(total));
                }
            }
            """,
            "activemask<<<1, 96, 0, stream>>>(x, y, n);",
            lambda x, arg: [x[::3].sum()],
            x=70,
        ),
        "early_exit": Case(
            """
            __global__ void warp_early_exit(const float* x, float* y, int n) {
                int i = threadIdx.x;
                if (i >= n) return;
                y[i] = __shfl_down_sync(__activemask(), x[i], 1);
            }
            """,
            "warp_early_exit<<<1, 64, 0, stream>>>(x, y, n);",
            lambda x, arg: [*x[1:32], x[31], *x[33:41]],
            x=41,
        ),
    },
)

# --- memory: atomics, vectors, constants -----------------------------------------------------


def atomics(name: str, type_: str, op: str, start: str, expected, view=torch.int32, space="global"):
    """Every thread of many blocks applies an operation to four words."""
    on_shared = f"""
        __shared__ {type_} s_a[4];
        if (threadIdx.x < 4) s_a[threadIdx.x] = {start};
        __syncthreads();
        {type_}* a = s_a;
    """
    store = """
        __syncthreads();
        if (threadIdx.x < 4) y[blockIdx.x * 4 + threadIdx.x] = s_a[threadIdx.x];
    """
    shared = space == "shared"
    return Case(
        f"""
        __global__ void start_{name}({type_}* y) {{ y[threadIdx.x] = {start}; }}
        __global__ void atomics_{name}(const float* x, {type_}* y, int n) {{
            {on_shared if shared else f"{type_}* a = y;"}
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) {{ {type_} v = ({type_})(int(x[i]) + 50); (void)v; {op}; }}
            {store if shared else ""}
        }}
        """,
        ("" if shared else f"start_{name}<<<1, 4, 0, stream>>>(reinterpret_cast<{type_}*>(y));")
        + f"atomics_{name}<<<8, 64, 0, stream>>>(x, reinterpret_cast<{type_}*>(y), n);",
        lambda x, arg: [
            expected(block.double()[k::4] + 50)
            for block in (x.reshape(8, 64) if shared else [x])
            for k in range(4)
        ],
        x=512,
        view=view,
    )


MEMORY = Suite(
    "memory",
    {
        "atomic_add_int": atomics("add_int", "int", "atomicAdd(a + i % 4, v)", "0", torch.sum),
        "atomic_add_float": atomics("add_float", "float", "atomicAdd(&a[i % 4], v)", "0", torch.sum,
                                    torch.float32),
        "atomic_add_double": atomics("add_double", "double", "atomicAdd(&a[i % 4], v)", "0.5",
                                     lambda v: v.sum() + 0.5, torch.float64),
        "atomic_add_ulonglong": atomics("add_ull", "unsigned long long", "atomicAdd(&a[i % 4], v)",
                                        "1ull << 40", lambda v: v.sum() + 2**40, torch.int64),
        "atomic_sub": atomics("sub", "int", "atomicSub(&a[i % 4], v)", "7", lambda v: 7 - v.sum()),
        "atomic_min": atomics("min", "int", "atomicMin(&a[i % 4], v)", "40",
                              lambda v: v.min().clamp(max=40)),
        "atomic_max": atomics("max", "unsigned", "atomicMax(&a[i % 4], v)", "5", torch.max),
        "atomic_or": atomics("or", "unsigned", "atomicOr(&a[i % 4], 1u << (v % 31))", "0",
                             lambda v: sum(1 << b for b in {int(e) % 31 for e in v})),
        "atomic_exch": atomics("exch", "int", "atomicExch(&a[i % 4], 9)", "1", lambda v: 9),
        "atomic_inc": atomics("inc", "unsigned", "atomicInc(&a[i % 4], 9)", "0",
                              lambda v: len(v) % 10),
        "atomic_dec": atomics("dec", "unsigned", "atomicDec(&a[i % 4], 9)", "3",
                              lambda v: (3 - len(v)) % 10),
        "atomic_cas": atomics(  # an addition by compare and swap
            "cas", "int",
            "int old = a[i % 4], seen;"
            " do { seen = old; old = atomicCAS(&a[i % 4], seen, seen + v); } while (old != seen)",
            "0", torch.sum),
        "shared_add_int": atomics("s_add_int", "int", "atomicAdd(a + i % 4, v)", "0", torch.sum,
                                  space="shared"),
        "shared_add_float": atomics("s_add_float", "float", "atomicAdd(a + i % 4, v)", "0",
                                    torch.sum, torch.float32, space="shared"),
        "shared_max": atomics("s_max", "int", "atomicMax(a + i % 4, v)", "3",
                              lambda v: v.max().clamp(min=3), space="shared"),
        "lock": Case(  # a spin lock held across a barrier of the warp
            """
            __global__ void lock(float* y) {
                __shared__ int s_lock;
                __shared__ volatile float s_sum;
                if (threadIdx.x == 0) s_lock = 0, s_sum = 0;
                __syncthreads();
                bool done = false;
                while (!done) {
                    if (atomicCAS(&s_lock, 0, 1) == 0) {
                        s_sum = s_sum + threadIdx.x;
                        __threadfence_block();
                        atomicExch(&s_lock, 0);
                        done = true;
                    }
                }
                __syncthreads();
                y[threadIdx.x] = s_sum;
            }
            """,
            "lock<<<1, 64, 0, stream>>>(y);",
            lambda x, arg: [64 * 63 / 2] * 64,
        ),
        "flag": Case(  # one warp waits for another by looking, not at a barrier
            """
            __global__ void flag(const float* x, float* y) {
                __shared__ volatile int s_ready;
                __shared__ volatile float s_x[32];
                if (threadIdx.x == 0) s_ready = 0;
                __syncthreads();
                if (threadIdx.x < 32) {
                    while (s_ready < 32) {}
                    y[threadIdx.x] = s_x[31 - threadIdx.x];
                } else {
                    s_x[threadIdx.x - 32] = x[threadIdx.x];
                    __threadfence_block();
                    atomicAdd((int*)&s_ready, 1);
                }
            }
            """,
            "flag<<<1, 64, 0, stream>>>(x, y);",
            lambda x, arg: x[32:].flip(0),
        ),
        "float4": Case(
            """
            __global__ void vectors(const float* x, float* y) {
                float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
                v.x += 1, v.y *= 2, v.z = -v.z;
                reinterpret_cast<float4*>(y)[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
            }
            """,
            "vectors<<<1, n / 4, 0, stream>>>(x, y);",
            lambda x, arg: torch.stack(
                [x[3::4], -x[2::4], 2 * x[1::4], x[::4] + 1], dim=1
            ),
        ),
        "float2_shared": Case(
            """
            __global__ void vectors_2(const float* x, float* y) {
                __shared__ alignas(16) float s_x[64];
                *reinterpret_cast<float2*>(s_x + 2 * threadIdx.x) =
                    *reinterpret_cast<const float2*>(x + 2 * threadIdx.x);
                __syncthreads();
                float2 v = *(float2*)&s_x[62 - 2 * threadIdx.x];
                y[2 * threadIdx.x] = v.y, y[2 * threadIdx.x + 1] = v.x;
            }
            """,
            "vectors_2<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: x.flip(0),
        ),
        "float3": Case(  # twelve bytes, aligned to four
            """
            __global__ void vectors_3(const float3* x, float3* y) {
                float3 v = x[threadIdx.x];
                y[threadIdx.x] = make_float3(v.z, v.y, v.x);
            }
            """,
            "vectors_3<<<1, 20, 0, stream>>>((const float3*)x, (float3*)y);",
            lambda x, arg: x.reshape(20, 3).flip(1),
            x=60,
        ),
        "ldg": Case(
            """
            __global__ void ldg(const float* x, float* y) {
                float2 v = __ldg((const float2*)x + threadIdx.x);
                __stcs(y + 2 * threadIdx.x, __ldg(x + 63 - 2 * threadIdx.x) + v.y);
                y[2 * threadIdx.x + 1] = __ldcs(&x[0]) + v.x;
            }
            """,
            "ldg<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: torch.stack([x.flip(0)[::2] + x[1::2], x[0] + x[::2]], dim=1),
        ),
        "constant": Case(
            """
            __constant__ float c_filter[16];
            __constant__ struct { int a; float b; } c_both;
            __global__ void constant(float* y) {
                y[threadIdx.x] = c_filter[threadIdx.x % 16] * c_both.b + c_both.a;
            }
            """,
            """
            static float table[8] = {0, 1, 2, 3, 4, 5, 6, 7};
            static struct { int a; float b; } both = {100, 2.0f};
            cudaMemcpyToSymbolAsync(c_filter, table, 32, 0, cudaMemcpyHostToDevice, stream);
            cudaMemcpyToSymbolAsync(c_filter, table, 32, 32, cudaMemcpyHostToDevice, stream);
            cudaMemcpyToSymbolAsync(c_both, &both, sizeof both, 0, cudaMemcpyHostToDevice, stream);
            constant<<<1, 64, 0, stream>>>(y);
            """,
            lambda x, arg: 2 * (torch.arange(64) % 8) + 100,
        ),
        "device_global": Case(
            """
            __device__ int d_count;
            __device__ float d_table[4] = {1, 10, 100, 1000};
            __global__ void count() { atomicAdd(&d_count, 1); }
            __global__ void use_global(float* y) {
                y[threadIdx.x] = d_count + d_table[threadIdx.x % 4];
            }
            """,
            """
            int zero = 0;
            cudaMemcpyToSymbol(d_count, &zero, sizeof zero);
            count<<<3, 40, 0, stream>>>();
            use_global<<<1, 64, 0, stream>>>(y);
            """,
            lambda x, arg: 120 + 10.0 ** (torch.arange(64) % 4),
        ),
        "struct_parameter": Case(
            """
            struct Scale { float factor[3]; int shift; };
            __global__ void scale(Scale s, const float* x, float* y) {
                y[threadIdx.x] = x[(threadIdx.x + s.shift) % 64] * s.factor[threadIdx.x % 3];
                s.shift = 0;   // a thread's own copy
            }
            """,
            """
            Scale s{{1, 2, 3}, 5};
            scale<<<1, 64, 0, stream>>>(s, x, y);
            """,
            lambda x, arg: x.roll(-5) * (torch.arange(64) % 3 + 1),
        ),
        "file_scope_shared": Case(
            """
            extern __shared__ float s_file[];
            __global__ void file_scope(const float* x, float* y) {
                float4* s_four = reinterpret_cast<float4*>(s_file);
                if (threadIdx.x < 16) s_four[threadIdx.x] = ((const float4*)x)[threadIdx.x];
                __syncthreads();
                y[threadIdx.x] = s_file[63 - threadIdx.x] + *(s_file + threadIdx.x);
            }
            """,
            "file_scope<<<1, 64, 256, stream>>>(x, y);",
            lambda x, arg: x + x.flip(0),
        ),
        "two_instances": Case(  # one declaration, two instances of its function: two arrays
            """
            template <int which>
            __device__ float* scratch() {
                __shared__ float s_mine[32];
                return s_mine;
            }
            __global__ void two_instances(const float* x, float* y) {
                scratch<1>()[threadIdx.x] = x[threadIdx.x];
                scratch<2>()[threadIdx.x] = 1000;
                __syncthreads();
                y[threadIdx.x] = scratch<1>()[31 - threadIdx.x] + scratch<2>()[0];
            }
            """,
            "two_instances<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: x[:32].flip(0) + 1000,
        ),
        "shared_struct": Case(
            """
            struct alignas(16) Cell { float v[3]; int tag; };
            __global__ void shared_struct(const float* x, float* y) {
                __shared__ Cell s_cell[2][16], *s_pointer;
                __shared__ __align__(16) double s_double;
                int i = threadIdx.x;
                s_cell[i / 16][i % 16] = {{x[i], 1, 2}, i};
                if (i == 0) s_double = 0.5, s_pointer = &s_cell[1][0];
                __syncthreads();
                Cell c = s_pointer[15 - int(threadIdx.x)];
                y[threadIdx.x] = c.v[0] + c.v[2] + c.tag + s_double;
            }
            """,
            "shared_struct<<<1, 32, 0, stream>>>(x, y);",
            lambda x, arg: (x[:32] + 2.5 + torch.arange(32)).flip(0),
            x=32,
        ),
    },
)

# --- C++: templates, functors, launches --------------------------------------------------------

LANGUAGE = Suite(
    "language",
    {
        "deduced": Case(  # float* for const T*, int for size_t: as in any call
            """
            template <typename T>
            __global__ void deduced(const T* x, T* y, size_t n, T add) {
                if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + add;
            }
            """,
            "float* other = y; cudaMemcpyAsync(y, x, 4 * n, cudaMemcpyDeviceToDevice, stream);"
            "deduced<<<1, 64, 0, stream>>>(other, y, n, 3.0f);",
            lambda x, arg: x + 3,
        ),
        "partly_deduced": Case(
            """
            template <int factor, bool negate, typename T, typename F>
            __global__ void partly(const T* x, T* y, F f) {
                y[threadIdx.x] = f(negate ? -factor * x[threadIdx.x] : factor * x[threadIdx.x]);
            }
            struct Shift {
                float by;
                __device__ float operator()(float v) const { return v + by; }
            };
            """,
            "partly<2, (3 > 2)><<<1, 64, 0, stream>>>(x, y, Shift{4});",
            lambda x, arg: -2 * x + 4,
        ),
        "functor_type": Case(
            """
            struct Twice { __device__ static float apply(float v) { return 2 * v; } };
            template <typename F, int n>
            __global__ void functor(const float* x, float* y) {
                __shared__ float s_x[n > 32 ? n : 32], s_other[n][2];
                s_x[threadIdx.x] = x[threadIdx.x], s_other[threadIdx.x][1] = 1;
                __syncthreads();
                y[threadIdx.x] = F::apply(s_x[n - 1 - threadIdx.x]) + s_other[0][1];
            }
            """,
            "functor<Twice, 64><<<1, 64, 0, stream>>>(x, y);",
            lambda x, arg: 2 * x.flip(0) + 1,
        ),
        "namespaces": Case(
            """
            namespace outer { namespace inner {
            template <typename T, int n> __global__ void fill(T* y) { y[threadIdx.x] = n; }
            } }
            template <typename T> struct Kernels { static constexpr int size = 64; };
            """,
            """
            outer :: inner::fill<float, (7 > 3 ? 5 : 6)>
                <<<dim3(1, 1),
                   Kernels<float>::size,   // threads
                   0, stream
                >>>(
                   y   /* the output, (64,) */
                );
            """,
            lambda x, arg: [5] * 64,
        ),
        "pointers": Case(  # a table of kernels, a pointer to one, one in parentheses
            """
            __global__ void plus(float* y, const float* null) { y[threadIdx.x] += null ? 1000 : 1; }
            __global__ void times(float* y, const float* null) {
                y[threadIdx.x] *= null ? 1000 : 3;
            }
            """,
            """
            cudaMemcpyAsync(y, x, 4 * n, cudaMemcpyDeviceToDevice, stream);
            void (*table[])(float*, const float*) = {plus, times};
            for (int i = 0; i < 2; ++i) table[i]<<<1, 64, 0, stream>>>(y, 0);
            auto* one = &plus;
            one<<<1, 64, 0, stream>>>(y, nullptr);
            (*one)<<<1, 64, 0, stream>>>(y, NULL);
            if (n > 0) (n > 1 ? times : plus)<<<1, 64, 0, stream>>>(y, {});
            """,
            lambda x, arg: ((x + 1) * 3 + 2) * 3,
        ),
        "macro": Case(
            """
            template <int n> __global__ void fill_n(float* y) { y[threadIdx.x] = n; }
            #define FILL(n) \\
                case n:     \\
                    fill_n<n><<<1, 64, 0, stream>>>(y); \\
                    break
            """,
            "switch (arg) { FILL(3); FILL(4); }",
            lambda x, arg: [arg] * 64,
            args=(3, 4),
        ),
        "local_static": Case(  # a guard in host code
            """
            #include <cassert>
            #include <memory>
            static int made_by() { static auto p = std::make_shared<int>(41); return ++*p; }
            """,
            """
            fill_n<42><<<1, 64, 0, stream>>>(y);
            if (made_by() < 42) return "a static is wrong";
            """,
            lambda x, arg: [42] * 64,
        ),
        "math": Case(
            """
            __global__ void math(const float* x, float* y) {
                float v = fabsf(x[threadIdx.x]) + 1;
                float r = rsqrtf(v) * sqrtf(v) + fmaf(v, 2.0f, 1.0f) + max(v, 3.0f) + min(2, 5);
                r += __int_as_float(__float_as_int(v)) + __popc(255u) + __clz(1) + __ffs(8);
                r += isnan(v) ? 1000 : __fmul_rn(v, 0.5f);
                y[threadIdx.x] = r + (v < INFINITY) + __saturatef(v) + __float2int_rn(2.5f);
            }
            """,
            "math<<<1, 64, 0, stream>>>(x, y);",
            lambda x, arg: (
                lambda v: 1 + 2 * v + 1 + v.clamp(min=3) + 2 + v + 8 + 31 + 4 + v / 2 + 1 + 1 + 2
            )(x.abs() + 1),
        ),
        "gemm": Case(  # 64 x 64 x 64, 16 x 16 tiles, double buffered
            """
            __global__ void gemm(const float* a, const float* b, float* c, int size) {
                __shared__ float s_a[2][16][16], s_b[2][16][17];
                int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
                auto load = [&](int stage, int k0) {
                    s_a[stage][threadIdx.y][threadIdx.x] = a[row * size + k0 + threadIdx.x];
                    s_b[stage][threadIdx.y][threadIdx.x] = b[(k0 + threadIdx.y) * size + column];
                };
                float sum = 0;
                load(0, 0);
                for (int k0 = 0, stage = 0; k0 < size; k0 += 16, stage ^= 1) {
                    __syncthreads();
                    if (k0 + 16 < size) load(stage ^ 1, k0 + 16);
                    #pragma unroll
                    for (int k = 0; k < 16; ++k)
                        sum += s_a[stage][threadIdx.y][k] * s_b[stage][k][threadIdx.x];
                }
                c[row * size + column] = sum;
            }
            """,
            "gemm<<<dim3(4, 4), dim3(16, 16), 0, stream>>>(x, x + 4096, y, 64);",
            lambda x, arg: x[:4096].reshape(64, 64) @ x[4096:].reshape(64, 64),
            x=8192,
        ),
    },
)

FEATURES = [BLOCKS, WARPS, MEMORY, LANGUAGE]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("suite", "name", "arg"), [parameter for suite in FEATURES for parameter in suite.parameters()]
)
def test_feature(suite, name, arg, engine):
    suite.check(name, arg, engine)


# --- cuBLAS ----------------------------------------------------------------------------------

M, N, K, BATCH = 5, 7, 3, 4  # of the products below: op(a) is M x K, op(b) K x N, c M x N
_GEMM = """
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    const float alpha = 0.5f, beta = arg & 4 ? -2.0f : 0.0f;
    const cublasOperation_t ta = arg & 1 ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = arg & 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
    const float *a = x, *b = x + 200, *c0 = x + 400;
    cudaMemcpyAsync(y, c0, 4 * 400, cudaMemcpyDeviceToDevice, stream);
"""


def products(arg: int, x: torch.Tensor, stride_a: int, stride_b: int, stride_c: int, batch: int):
    """What cuBLAS must leave in y: column-major, leading dimensions 9 (a), 8 (b), 6 (c)."""
    y = x.numpy()[400:800].copy()
    for i in range(batch):
        a = x.numpy()[i * stride_a :][: 9 * (M if arg & 1 else K)].reshape(-1, 9).T
        b = x.numpy()[200 + i * stride_b :][: 8 * (K if arg & 2 else N)].reshape(-1, 8).T
        a = a[:K, :M].T if arg & 1 else a[:M, :K]
        b = b[:N, :K].T if arg & 2 else b[:K, :N]
        c = y[i * stride_c :][: 6 * N].reshape(N, 6)  # a view
        c[:, :M] = (0.5 * a @ b).T + (-2 * c[:, :M] if arg & 4 else 0)
    return y


CUBLAS = Suite(
    "cublas",
    {
        "sgemm": Case(
            "",
            _GEMM + """
            if (!(arg & 4))   // with beta zero, c may hold anything
                cudaMemsetAsync(y, 0xff, 4 * 5, stream);
            cublasStatus_t status = cublasSgemm(handle, ta, tb, 5, 7, 3, &alpha, a, 9, b, 8, &beta,
                                                y, 6);
            cublasDestroy(handle);
            if (status != CUBLAS_STATUS_SUCCESS) return cublasGetStatusString(status);
            """,
            lambda x, arg: products(arg, x, 0, 0, 0, 1),
            x=800,
            args=tuple(range(8)),
        ),
        "batched": Case(  # one filter for all: stride 0
            "",
            _GEMM + """
            cublasStatus_t status = cublasSgemmStridedBatched(
                handle, ta, tb, 5, 7, 3, &alpha, a, 9, 0, b, 8, 56, &beta, y, 6, 45, 3);
            cublasDestroy(handle);
            if (status != CUBLAS_STATUS_SUCCESS) return cublasGetStatusString(status);
            """,
            lambda x, arg: products(arg, x, 0, 56, 45, 3),
            x=800,
            args=(0, 5),
        ),
        "wrong_ld": Case(
            "",
            _GEMM + """
            int bad[][3] = {{4, 8, 6}, {9, 2, 6}, {9, 8, 4}, {9, 8, 6}};
            float seen[4];
            for (int i = 0; i < 4; ++i)
                seen[i] = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 5, 7, 3, &alpha, a,
                                      bad[i][0], b, bad[i][1], &beta, y, bad[i][2]);
            seen[0] += 100 * cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 5, -7, 3, &alpha, a, 9,
                                         b, 8, &beta, y, 6);
            seen[3] += 100 * cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 5, 7, 3, &alpha, a, 9,
                                         b, 8, &beta, y, 6);
            cudaMemcpyAsync(y, seen, sizeof seen, cudaMemcpyHostToDevice, stream);
            cudaStreamSynchronize(stream);
            """,
            # CUBLAS_STATUS_INVALID_VALUE is 7, CUBLAS_STATUS_NOT_INITIALIZED 1
            lambda x, arg: [707, 7, 7, 100],
            x=800,
        ),
    },
    prelude="#include <cublas_v2.h>",
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("suite", "name", "arg"), CUBLAS.parameters())
def test_cublas(suite, name, arg, engine):
    suite.check(name, arg, engine)


# --- counters: by hand -------------------------------------------------------------------------


def copying(name: str, index: str, threads: str = "256") -> Case:
    return Case(
        f"""
        __global__ void copy_{name}(const float* x, float* y) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            y[i] = x[{index}];
        }}
        """,
        f"copy_{name}<<<1024 / {threads}, {threads}, 0, stream>>>(x, y);",
        x=40000,
    )


def sharing(name: str, store: str, load: str = "s_x[threadIdx.x]", type_: str = "float") -> Case:
    """One warp stores to shared memory in one way and loads in another."""
    values = {"float": "threadIdx.x", "float2": "make_float2(1, 2)",
              "float4": "make_float4(1, 2, 3, threadIdx.x)"}
    value = values[type_]
    return Case(
        f"""
        __global__ void sharing_{name}(float* y) {{
            __shared__ {type_} s_x[2048 / (sizeof({type_}) / 4)];
            {store} = {value};
            __syncthreads();
            (({type_}*)y)[threadIdx.x] = {load};
        }}
        """,
        f"sharing_{name}<<<1, 32, 0, stream>>>(y);",
        x=256,
    )


def transpose(name: str, pitch: int) -> Case:
    return Case(
        f"""
        __global__ void transpose_{name}(const float* x, float* y) {{
            __shared__ float s_tile[32][{pitch}];
            int row = threadIdx.y, column = threadIdx.x;
            s_tile[row][column] = x[row * 32 + column];
            __syncthreads();
            y[row * 32 + column] = s_tile[column][row];
        }}
        """,
        f"transpose_{name}<<<1, dim3(32, 32), 0, stream>>>(x, y);",
        x=1024,
    )


COUNTED = Suite(
    "counted",
    {
        "coalesced": copying("coalesced", "i"),
        "small_blocks": copying("small_blocks", "i", "16"),
        "stride_2": copying("stride_2", "2 * i"),
        "stride_32": copying("stride_32", "32 * i"),
        "misaligned": copying("misaligned", "i + 1"),
        "broadcast": copying("broadcast", "1000"),
        "reversed": copying("reversed", "1023 - i"),
        "float4": Case(
            """
            __global__ void copy_float4(const float4* x, float4* y) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                y[i] = x[i];
            }
            """,
            "copy_float4<<<2, 128, 0, stream>>>((const float4*)x, (float4*)y);",
            x=1024,
        ),
        "float3": Case(  # no 12-byte access exists: three of 4 bytes, 12 apart
            """
            __global__ void copy_float3(const float3* x, float* y) {
                float3 v = x[threadIdx.x];
                y[threadIdx.x] = v.x + v.y + v.z;
            }
            """,
            "copy_float3<<<1, 32, 0, stream>>>((const float3*)x, y);",
            x=128,
        ),
        "bytes": Case(
            """
            __global__ void copy_bytes(const unsigned char* x, unsigned char* y) {
                y[threadIdx.x] = x[threadIdx.x];
            }
            """,
            "copy_bytes<<<1, 64, 0, stream>>>((const unsigned char*)x, (unsigned char*)y);",
        ),
        "half_warp": Case(  # a warp of 16 threads, and one where odd lanes do not load
            """
            __global__ void half_warp(const float* x, float* y) {
                int i = threadIdx.x;
                float v = 0;
                if (i % 2 == 0) v = x[i];
                y[i] = v;
            }
            """,
            "half_warp<<<1, 48, 0, stream>>>(x, y);",
        ),
        "two_ways": Case(  # two instructions, each for half of the warp
            """
            __global__ void two_ways(const float* x, float* y) {
                int i = threadIdx.x;
                if (i % 2 == 0) y[i] = x[i] + 1;
                else y[i] = x[i + 64] * 2;
            }
            """,
            "two_ways<<<1, 32, 0, stream>>>(x, y);",
            x=96,
        ),
        "ragged_loop": Case(  # lane l loads l + 1 times, from the top of column l
            """
            __global__ void ragged_loop(const float* x, float* y) {
                float sum = 0;
                for (int i = 0; i <= threadIdx.x; ++i) sum += x[i * 32 + threadIdx.x];
                y[threadIdx.x] = sum;
            }
            """,
            "ragged_loop<<<1, 32, 0, stream>>>(x, y);",
            x=1024,
        ),
        "long_loop": Case(  # more accesses than a lane's log holds
            """
            __global__ void long_loop(const float* x, float* y) {
                float sum = 0;
                for (int i = 0; i < 5000; ++i) sum += x[(i % 8) * 32 + threadIdx.x % 32];
                y[threadIdx.x] = sum;
            }
            """,
            "long_loop<<<1, 64, 0, stream>>>(x, y);",
            x=256,
        ),
        "shared_1": sharing("1", "s_x[threadIdx.x]"),
        "shared_2": sharing("2", *["s_x[2 * threadIdx.x]"] * 2),
        "shared_3": sharing("3", *["s_x[3 * threadIdx.x]"] * 2),
        "shared_4": sharing("4", *["s_x[4 * threadIdx.x]"] * 2),
        "shared_32": sharing("32", *["s_x[32 * threadIdx.x]"] * 2),
        "shared_broadcast": sharing("broadcast", "s_x[threadIdx.x]", "s_x[7]"),
        "shared_two_words": sharing("two_words", "s_x[2 * threadIdx.x]", "s_x[threadIdx.x % 2 * 32]"),
        "shared_float2": sharing("float2", "s_x[threadIdx.x]", type_="float2"),
        "shared_float4": sharing("float4", "s_x[threadIdx.x]", type_="float4"),
        "shared_float4_2": sharing("float4_2", *["s_x[2 * threadIdx.x]"] * 2, type_="float4"),
        "transpose_naive": transpose("naive", 32),
        "transpose_padded": transpose("padded", 33),
        "barriers": Case(
            """
            __global__ void barriers() {
                for (int i = 0; i < 7; ++i) __syncthreads();
                if (threadIdx.x > 40) return;
                __syncthreads_or(1);
            }
            """,
            "barriers<<<dim3(5, 2), 96, 0, stream>>>(); barriers<<<1, 32, 0, stream>>>();",
        ),
        "atomics": Case(
            """
            __global__ void add_one(float* y) { atomicAdd(y + threadIdx.x % 4, 1.0f); }
            """,
            "cudaMemsetAsync(y, 0, 16, stream); add_one<<<3, 64, 0, stream>>>(y);",
        ),
        "nothing": Case("", ";"),
    },
)
_NONE = dict.fromkeys(sim.COUNTERS, 0) | {"launches": 1}


def loads_and_stores(load_requests, load_sectors, store_requests=32, store_sectors=128, **more):
    return _NONE | {
        "global_load_requests": load_requests,
        "global_load_sectors": load_sectors,
        "global_store_requests": store_requests,
        "global_store_sectors": store_sectors,
    } | more  # fmt: skip


def on_shared(wavefronts: int, requests: int = 2, stores: int = 1, sectors: int = 4):
    return loads_and_stores(
        0, 0, stores, sectors, shared_requests=requests, shared_wavefronts=wavefronts, barriers=1
    )


HAND_COUNTED = {  # 1024 threads are 32 warps; 32 floats are 4 sectors of 32 bytes
    "coalesced": loads_and_stores(32, 32 * 4),
    "small_blocks": loads_and_stores(64, 64 * 2, 64, 64 * 2),
    "stride_2": loads_and_stores(32, 32 * 8),
    "stride_32": loads_and_stores(32, 32 * 32),
    "misaligned": loads_and_stores(32, 32 * 5),
    "broadcast": loads_and_stores(32, 32),
    "reversed": loads_and_stores(32, 32 * 4),
    "float4": loads_and_stores(8, 128, 8, 128),
    "float3": loads_and_stores(3, 3 * 12, 1, 4),
    "bytes": loads_and_stores(2, 2, 2, 2),
    "half_warp": loads_and_stores(2, 4 + 2, 2, 4 + 2),
    "two_ways": loads_and_stores(2, 4 + 4, 2, 4 + 4),
    # the k-th load, of lanes k..31: their 32 - k floats touch this many sectors
    "ragged_loop": loads_and_stores(32, sum(4 - k // 8 for k in range(32)), 1, 4),
    "long_loop": loads_and_stores(2 * 5000, 2 * 5000 * 4, 2, 2 * 4),
    "shared_1": on_shared(1 + 1),
    "shared_2": on_shared(2 + 2),
    "shared_3": on_shared(1 + 1),
    "shared_4": on_shared(4 + 4),
    "shared_32": on_shared(32 + 32),
    "shared_broadcast": on_shared(1 + 1),
    "shared_two_words": on_shared(2 + 2),
    "shared_float2": on_shared(2 + 2, sectors=8),
    "shared_float4": on_shared(4 + 4, sectors=16),
    "shared_float4_2": on_shared(8 + 8, sectors=16),
    "transpose_naive": loads_and_stores(
        32, 128, shared_requests=64, shared_wavefronts=32 + 32 * 32, barriers=1
    ),
    "transpose_padded": loads_and_stores(
        32, 128, shared_requests=64, shared_wavefronts=32 + 32, barriers=1
    ),
    "barriers": _NONE | {"launches": 2, "barriers": 11 * 8},
    "atomics": loads_and_stores(0, 0, 6, 6, atomics=3 * 64),
    "nothing": _NONE | {"launches": 0},
}


@pytest.mark.parametrize("name", COUNTED.cases)
def test_counters(name, monkeypatch):
    runs = []
    for threads in ("1", "2", "2"):
        monkeypatch.setenv("CONVLAB_SIM_THREADS", threads)
        counters = COUNTED.launch(name).counters
        runs.append({key: counters[key] for key in sim.COUNTERS})
        assert counters["global_load_bytes"] == 32 * counters["global_load_sectors"]
        assert counters["global_store_bytes"] == 32 * counters["global_store_sectors"]
        assert counters["seconds"] > 0
    assert runs[0] == HAND_COUNTED[name]
    assert runs[1] == runs[0] and runs[2] == runs[0]


# --- faults: what a GPU would not forgive, or would not tell -------------------------------------


def fault(launch: str, code: str, x: int = 64) -> Case:
    return Case(code, launch, x=x)


def touching(name: str, statement: str, parameters="const float* x, float* y, int n") -> Case:
    arguments = re.sub(r"(const )?\w+\*? (\w+)", r"\2", parameters)
    return Case(
        f"""
        __global__ void {name}({parameters}) {{
            int i = threadIdx.x;
            if (i == 5) {{
                {statement}  // here: {name}
            }}
        }}
        """,
        f"{name}<<<dim3(1, 2), 40, 0, stream>>>({arguments});",
    )


_W = "const float* w, float* y"
_SCRATCH = "float* workspace, float* y"
FAULTS = Suite(
    "faults",
    {
        "x_before": touching("x_before", "y[i] = x[i - 6];"),
        "x_after": touching("x_after", "y[i] = x[n + i - 5];"),
        "x_float4": touching("x_float4", "y[i] = ((const float4*)x)[n / 4].y;"),
        "w_before": touching("w_before", "y[i] = w[-1];", _W),
        "w_after": touching("w_after", "y[i] = __ldg(w + 1);", _W),
        "y_before": touching("y_before", "y[-1] = x[i];"),
        "y_after": touching("y_after", "y[n] = x[i];"),
        "y_atomic": touching("y_atomic", "atomicAdd(y + n, x[i]);"),
        "y_far": touching("y_far", "y[1000000000ll * i] = x[i];"),
        "x_far": touching("x_far", "y[i] = x[100000000ll];"),
        "x_store": touching("x_store", "const_cast<float*>(x)[3] = 1;"),
        "null": touching("null_", "y[i] = *(const float*)nullptr;"),
        "misaligned": touching("misaligned_", "*(float4*)(y + 1) = make_float4(1, 2, 3, x[i]);"),
        "division": touching("division", "y[i] = 7 / (n - 64);"),
        "trap": touching("trap_", "__trap();"),
        "assertion": touching("assertion", "assert(n == 3);"),
        "workspace": Case(
            """
            __global__ void scratch_after(float* scratch) {
                scratch[64] = 1;  // here: scratch_after
            }
            """,
            "scratch_after<<<1, 1, 0, stream>>>((float*)workspace);",
        ),
        "helper": Case(
            """
            template <typename T> __device__ T read(const T* p) {
                return *p;  // here: read
            }
            __global__ void helper(const float* x, float* y) { y[0] = read(x - 1); }
            """,
            "helper<<<1, 1, 0, stream>>>(x, y);",
        ),
        "shared_after": Case(
            """
            __global__ void shared_after(float* y) {
                __shared__ float s_first[8], s_second[8];
                s_second[0] = 1;
                s_first[threadIdx.x] = y[threadIdx.x];  // here: shared_after
                y[threadIdx.x] = s_second[0] + s_first[0];
            }
            """,
            "shared_after<<<1, 9, 0, stream>>>(y);",
        ),
        "shared_before": Case(
            """
            __global__ void shared_before(float* y) {
                __shared__ float s_only[8];
                s_only[0] = 1;
                y[0] = s_only[int(threadIdx.x) - 1];  // here: shared_before
            }
            """,
            "shared_before<<<1, 1, 0, stream>>>(y);",
        ),
        "dynamic_after": Case(
            """
            __global__ void dynamic_after(float* y) {
                extern __shared__ float s_dynamic[];
                s_dynamic[threadIdx.x] = 1;  // here: dynamic_after
            }
            """,
            "dynamic_after<<<1, 33, 128, stream>>>(y);",
        ),
        "dynamic_none": Case(
            """
            __global__ void dynamic_none(float* y) {
                extern __shared__ float s_none[];
                s_none[threadIdx.x] = 1;  // here: dynamic_none
            }
            """,
            "dynamic_none<<<1, 33, 0, stream>>>(y);",
        ),
        "static_too_big": fault(
            "static_too_big<<<1, 32, 0, stream>>>(y);",
            """
            __global__ void static_too_big(float* y) {
                __shared__ float s_big[12 * 1024 + 1];
                s_big[0] = 1;
            }
            """,
        ),
        "both_too_big": fault(
            "both_too_big<<<1, 32, 40 * 1024, stream>>>(y);",
            """
            __global__ void both_too_big(float* y) {
                __shared__ float s_part[3 * 1024];
                s_part[0] = 1;
            }
            """,
        ),
        "stack": fault(
            "stack<<<1, 32, 0, stream>>>(y, n);",
            """
            __global__ void stack(float* y, int n) {
                volatile float r_big[50000];
                r_big[n] = 1;
                y[0] = r_big[n];
            }
            """,
        ),
        "half_barrier": Case(  # lanes 0..15 wait for the others, which wait for them
            """
            __global__ void half_barrier(float* y) {
                int v = 0;
                if (threadIdx.x < 16) {
                    v = __shfl_sync(0xffffffff, 1, 0);  // here: half_barrier
                }
                __syncthreads();
                y[threadIdx.x] = v;
            }
            """,
            "half_barrier<<<1, 64, 0, stream>>>(y);",
        ),
        "mask_without_me": Case(
            """
            __global__ void mask_without_me(float* y) {
                y[threadIdx.x] = __shfl_sync(0xffff, 1, 0);  // here: mask_without_me
            }
            """,
            "mask_without_me<<<1, 32, 0, stream>>>(y);",
        ),
        "masks_overlap": Case(
            """
            __global__ void masks_overlap(float* y) {
                unsigned mask = threadIdx.x < 8 ? 0x0000ffff : 0xffffff00;
                __syncwarp(mask);  // here: masks_overlap
                __syncthreads();
                y[threadIdx.x] = 1;
            }
            """,
            "masks_overlap<<<1, 32, 0, stream>>>(y);",
        ),
        "different_operations": Case(
            """
            __global__ void different_operations(float* y) {
                if (threadIdx.x < 8) __syncwarp();
                else y[0] = __ballot_sync(0xffffffff, 1);  // here: different_operations
            }
            """,
            "different_operations<<<1, 32, 0, stream>>>(y);",
        ),
    },
)

NAMED = {  # what the message says; the line marked `// here` of the case is named too
    "x_before": r"load of 4 bytes at x\[-1\], which has 64 elements",
    "x_after": r"load of 4 bytes at x\[64\], which has 64 elements",
    "x_float4": r"at x\[6[45]\], which has 64 elements",
    "w_before": r"load of 4 bytes at w\[-1\], which has 1 elements",
    "w_after": r"load of 4 bytes at w\[1\], which has 1 elements",
    "y_before": r"store of 4 bytes at y\[-1\], which has 64 elements",
    "y_after": r"store of 4 bytes at y\[64\], which has 64 elements",
    "y_atomic": r"store of 4 bytes at y\[64\], which has 64 elements",
    "y_far": r"global out of bounds: store far outside every buffer",
    "x_far": r"load of 4 bytes at x\[100000000\]",
    "x_store": r"store to x, which is an input",
    "null": r"null pointer",
    "misaligned": r"misaligned access: store of 16 bytes",
    "division": r"integer division by zero",
    "trap": r"__trap\(\) was called",
    "assertion": r"assert\(n == 3\) failed",
    "workspace": r"store of 4 bytes at workspace\[64\], which has 64 elements",
    "helper": r"load of 4 bytes at x\[-1\]",
    "shared_after": r"store of 4 bytes at byte 32 of s_first, which has 32",
    "shared_before": r"load of 4 bytes at byte -4 of s_only, which has 32",
    "dynamic_after": r"store of 4 bytes at byte 128 of extern __shared__, which has 128",
    "dynamic_none": r"shared out of bounds: store, though the block has no array",
    "static_too_big": r"static __shared__ arrays take 49156 bytes, over the limit of 49152",
    "both_too_big": r"12288 bytes and 40960 dynamic ones are over the limit of 49152",
    "stack": r"stack overflow",
    "half_barrier": r"48 threads wait at __syncthreads and 16 in warp operations; one of mask "
                    r"0xffffffff waits for lanes 0xffff0000, which never come",
    "mask_without_me": r"lane 16 calls a warp operation with mask 0x0000ffff",
    "masks_overlap": r"24 threads .* one of mask 0x0000ffff waits for lanes 0x0000ff00",
    "different_operations": r"another warp operation",
}
IN_THREAD_5 = [name for name, case in FAULTS.cases.items() if "if (i == 5)" in case.code]


@pytest.mark.parametrize("name", FAULTS.cases)
def test_fault(name):
    with pytest.raises(LaunchError, match=NAMED[name]) as caught:
        FAULTS.launch(name)
    message = str(caught.value)
    assert message.startswith("faults: ")
    if name in IN_THREAD_5:
        assert re.search(r"block \(0, [01], 0\), thread \(5, 0, 0\)", message)
    if "// here" in FAULTS.cases[name].code and shutil.which("addr2line"):
        marker = re.search(r"// here: \w+", FAULTS.cases[name].code).group()
        lines = FAULTS.source.splitlines()
        at = next(i for i, line in enumerate(lines) if line.endswith(marker))
        assert f"faults.cu:{at + 1}:  {lines[at].strip()}" in message


def test_after_a_fault_the_next_run_is_right():
    with pytest.raises(LaunchError):
        FAULTS.launch("null")
    BLOCKS.check("reverse", 32, "sim")


def failing(launch: str, code: str = "") -> Case:
    return Case("__global__ void idle() {}\n" if not code else code, launch)


REFUSED = Suite(
    "refused",
    {
        "shared": failing(
            "too_much<<<1, 32, 48 * 1024 + 4, stream>>>(y);",
            "__global__ void too_much(float* y) { extern __shared__ float s[]; s[0] = *y; }",
        ),
        "opt_in": failing(
            "cudaFuncSetAttribute(too_much, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 18);",
            " ",
        ),
        "threads": failing("idle<<<1, dim3(32, 33), 0, stream>>>();"),
        "no_threads": failing("idle<<<1, 0, 0, stream>>>();", " "),
        "no_blocks": failing("idle<<<dim3(3, 0), 32, 0, stream>>>();", " "),
        "grid_y": failing("idle<<<dim3(1, 65536), 32, 0, stream>>>();", " "),
        "ignored": failing("idle<<<1, 1025>>>(); cudaGetLastError(); idle<<<1, 1>>>();", " "),
        "text": failing('return "only even widths";', " "),
        "symbol": failing(
            "cudaMemcpyToSymbol(c_small, x, 12);", "__constant__ float c_small[2];"
        ),
    },
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shared", "invalid argument"),
        ("opt_in", "invalid argument"),
        ("threads", "invalid( configuration)? argument"),
        ("no_threads", "invalid( configuration)? argument"),
        ("no_blocks", "invalid( configuration)? argument"),
        ("grid_y", "invalid( configuration)? argument"),
        ("text", "only even widths"),
        ("symbol", "invalid argument"),
    ],
)
def test_refused_launch(name, message, engine):
    with pytest.raises(LaunchError, match=f"refused failed: {message}") as caught:
        REFUSED.launch(name, engine=engine)
    if engine == "sim" and name == "shared":
        assert "49156 bytes of dynamic shared memory, and the kernel may have 49152" in str(
            caught.value
        )
        assert "cudaFuncAttributeMaxDynamicSharedMemorySize" in str(caught.value)
    if engine == "sim" and name == "threads":
        assert "blocks of (32, 33, 1) threads: a block has 1 to 1024" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_error_that_was_fetched_is_gone(engine):
    REFUSED.launch("ignored", engine=engine)


def test_printf_reaches_standard_output(capsys):
    source = Suite(
        "prints",
        {
            "all": Case(
                """
                __global__ void hello(const float* x) {
                    int i = threadIdx.x;
                    if (i < 2) printf("thread %d has %.1f\\n", i, x[i]);
                }
                """,
                "hello<<<1, 32, 0, stream>>>(x);",
            ),
            "fails": Case("", 'printf("before\\n"); hello<<<1, 32, 0, stream>>>(nullptr);'),
        },
    )
    x = source.launch("all").inputs[0].flatten()
    out = capsys.readouterr()
    assert out.out == f"thread 0 has {x[0]:.1f}\nthread 1 has {x[1]:.1f}\n" and out.err == ""
    with pytest.raises(LaunchError, match="null pointer"):
        source.launch("fails")
    assert capsys.readouterr().out == "before\n"


def test_time_limit():
    source = Suite("endless", {"all": Case(
        "__global__ void endless(volatile float* y) { y[0] = 1; while (y[0] == 1) {} }",
        "endless<<<1, 1, 0, stream>>>(y);",
    )}).source  # fmt: skip
    kernel = convlab.compile(source, name="endless", engine="sim", time_limit=0.3)
    with pytest.raises(LaunchError, match="did not finish within 0.3 s"):
        kernel(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 1))
    BLOCKS.check("reverse", 32, "sim")


def test_fault_in_a_header_names_the_header(tmp_path):
    (tmp_path / "mine.cuh").write_text(
        "#pragma once\n__device__ inline float peek(const float* p) {\n    return p[-1];\n}\n"
    )
    path = tmp_path / "uses_header.cu"
    path.write_text(
        '#include "convlab.cuh"\n#include "mine.cuh"\n'
        "__global__ void peeks(const float* x, float* y) { y[0] = peek(x); }\n"
        + _ENTRY % "case 0: peeks<<<1, 1, 0, stream>>>(x, y);"
    )
    kernel = convlab.load(path, engine="sim")
    with pytest.raises(LaunchError, match=r"x\[-1\]") as caught:
        kernel(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 1))
    if shutil.which("addr2line"):
        assert "mine.cuh:3:  return p[-1];" in str(caught.value)


def test_compile_error_names_the_line():
    source = Suite("broken", {"all": Case(
        "__global__ void broken(float* y) {\n    y[0] = undeclared;\n}",
        "broken<<<1,\n 32>>>(y);",
    )}).source  # fmt: skip
    line = 1 + source[: source.index("undeclared")].count("\n")
    with pytest.raises(BuildError, match=rf"broken.cu:{line}: .undeclared. was not declared"):
        convlab.compile(source, name="broken", engine="sim")


@pytest.mark.parametrize(
    ("launch", "problem"),
    [
        ("brokn<<<1, 32>>>(y);", "not declared"),
        ("ok<<<1, 32>>>(y, 3);", "no match for call|too many arguments"),
        ("ok<<<1, 32>>>(x);", "invalid conversion|cannot convert|no match"),
    ],
    ids=["no such kernel", "too many arguments", "wrong type"],
)
def test_wrong_launch_names_the_line(launch, problem):
    source = Suite("wrong_launch", {"all": Case("__global__ void ok(float* y) {}", launch)}).source
    line = 1 + source[: source.index(launch)].count("\n")
    with pytest.raises(BuildError, match=rf"wrong_launch.cu:{line}: .*({problem})"):
        convlab.compile(source, name="wrong_launch", engine="sim")


# --- the other architecture ----------------------------------------------------------------------

_ARM = "aarch64-linux-gnu-g++"
_DRIVER = """
#include "sim.h"
#include <cstdio>
#include <unistd.h>
extern "C" {
void sim_begin(int threads, int trace, int report);
void* sim_map(const char* name, int fd, size_t offset, size_t bytes, int writable);
const uint64_t* sim_counters(int* how_many);
const char* conv2d(const void*, const float*, const float*, const float*, float*, void*, size_t,
                   void*);
}
int main(int argc, char** argv) {
    sim_begin(2, 1, 1);
    const int n = 3 * 96;
    auto* x = (float*)sim_map("x", -1, 0, 4 * n, 2);
    auto* y = (float*)sim_map("y", -1, 0, 4 * n, 1);
    for (int i = 0; i < n; ++i) x[i] = i;
    int dims[16] = {1, 1, 1, n, 1, 1, 1, 1, n, 1, 1, 0, 0, 1, argc, 1};
    const char* error = conv2d(dims, x, nullptr, nullptr, y, nullptr, 0, nullptr);
    if (error) return puts(error), 1;
    for (int b = 0; b < 3; ++b)   // reversed, then exchanged with the neighbouring lane
        for (int i = 0; i < 96; ++i)
            if (y[b * 96 + i] != x[b * 96 + 95 - (i ^ 1)] + 0.5f) return printf("y[%d]\\n", i), 1;
    int count;
    printf("right, %llu barriers\\n", (unsigned long long)sim_counters(&count)[7]);
}
"""
_ARM_KERNEL = Suite("arm", {"all": Case(
    """
    __global__ void turn(const float* x, float* y, float half) {
        extern __shared__ float s_x[];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        s_x[threadIdx.x] = x[i];
        float kept[4] = {half, half / 2, half / 2, -half};   // survives switches
        __syncthreads();
        float v = __shfl_xor_sync(0xffffffff, s_x[95 - threadIdx.x], 1);
        __syncthreads();
        y[i] = v + kept[0] + kept[1] + kept[2] + kept[3];
        if (half < 0) y[-1] = 0;
    }
    """,
    "turn<<<3, 96, 4 * 96, stream>>>(x, y, arg == 0 ? 0.5f : -0.5f);",
)})  # fmt: skip


@pytest.mark.skipif(
    platform.machine() == "aarch64" or not (shutil.which(_ARM) and shutil.which("qemu-aarch64")),
    reason=f"needs {_ARM} and qemu-aarch64, on another machine than an ARM one",
)
def test_aarch64(tmp_path):
    (tmp_path / "driver.cpp").write_text(_DRIVER)
    text = "#include <cuda_runtime.h>\n" + sim.rewrite(_ARM_KERNEL.source)
    (tmp_path / "kernel.cpp").write_text(text)
    folder = shutil.copytree(sim.RUNTIME.parent, tmp_path / "runtime")
    types = (folder / "types.h").read_text()  # with less address space: each page costs qemu
    assert "size_t(1) << 40" in types and "size_t(1) << 30" in types
    types = types.replace("size_t(1) << 40", "1 << 28").replace("size_t(1) << 30", "1 << 24")
    (folder / "types.h").write_text(types)
    flags = ["-std=c++17", "-w", f"-I{sim.INCLUDE}", f"-I{convlab.run.build.KERNEL_DIR}"]
    units = {
        "runtime": ["runtime/runtime.cpp", "-O2"],
        "driver": ["driver.cpp"],
        "kernel": ["kernel.cpp", *convlab.run.build.SIM_FLAGS],
    }

    def tool(*command: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    for name, options in units.items():
        done = tool(_ARM, *flags, "-c", *options, "-o", f"{name}.o")
        assert done.returncode == 0, done.stderr
    done = tool(_ARM, "-static", *[f"{name}.o" for name in units], "-o", "all", "-pthread")
    assert done.returncode == 0, done.stderr
    done = tool("qemu-aarch64", "./all")
    right = (0, "launch\t3,1,1\t96,1,1\t384\tturn\nright, 6 barriers\n")
    assert (done.returncode, done.stdout) == right, done.stdout + done.stderr
    done = tool("qemu-aarch64", "./all", "negative")  # threads end there, the others go on
    assert done.stdout.startswith("fault\tglobal out of bounds\t") and "y[-1]" in done.stdout
