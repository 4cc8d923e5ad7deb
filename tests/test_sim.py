"""What of CUDA the simulator runs, what it counts, and what it finds wrong.

Most kernels here are cases of a suite, and stand in ``cuda/``: they are compiled as one file whose
entry point picks the case by a number that has no other effect (the dilation of a 1x1 filter). The suites of language features also run on a
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
from dataclasses import dataclass, replace
from pathlib import Path

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

    x has n floats, y has k of them for each, m in all; `expected` is called with x and arg. What
    has no code here stands in a file of the suite's, see `written`.
    """

    expected: Callable | None = None
    x: Callable[[int], torch.Tensor] | int = 64
    k: int = 1
    args: tuple[int, ...] = (0,)
    view: torch.dtype = torch.float32
    code: str | None = None
    launch: str = ""


def written(suite: str) -> dict[str, tuple[str, str]]:
    """Launch and code of each case in ``cuda/SUITE.cu``, in which a comment begins each."""
    path = Path(__file__).parent / "cuda" / f"{suite}.cu"
    if not path.exists():
        return {}
    found = re.findall(
        r"^// case (\w+):(.*\n(?:// .*\n)*)((?:(?!// case ).*\n)*)", path.read_text(), re.M
    )
    return {name: (re.sub(r"^//", "", launch, flags=re.M), code) for name, launch, code in found}


class Suite:
    """Cases that are compiled as one file."""

    def __init__(self, name: str, cases: dict[str, Case], prelude: str = "") -> None:
        texts = written(name)
        assert texts.keys() == {key for key, case in cases.items() if case.code is None}
        self.name = name
        self.cases = {
            key: replace(case, launch=texts[key][0], code=texts[key][1]) if key in texts else case
            for key, case in cases.items()
        }
        arms = [
            f"    case {number}: {{ {textwrap.dedent(case.launch).strip()} break; }}"
            for number, case in enumerate(self.cases.values())
        ]
        codes = [f"{textwrap.dedent(case.code).strip()}\n" for case in self.cases.values()]
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
            lambda x, arg: x.reshape(3, arg).flip(1),
            x=lambda arg: inputs(3 * arg),
            args=(1, 32, 33, 64, 100, 256, 500, 1024),
        ),
        "index_3d": Case(
            lambda x, arg: [
                1000 * tz + 100 * ty + tx + 10000 * b
                for b in range(8) for tz in range(4) for ty in range(3) for tx in range(5)
            ],
            x=480,
        ),
        "block_2d": Case(  # the warps of a 2-D block are cut from its threads end to end
            lambda x, arg: [0] * 32 + [32] * 32,
        ),
        "votes": Case(
            lambda x, arg: [
                (b > 0).sum() * 4 + (b > -45).all() * 2 + (b > 47).any()
                for b in x.reshape(-1, 50) for _ in range(50)
            ],
            x=400,
        ),
        "early_exit": Case(  # who has left is not waited for, at barriers and in warps
            lambda x, arg: x.flip(0) + len(x),
            x=70,
        ),
        "many_barriers": Case(  # a tree: half of the threads each time
            lambda x, arg: x.reshape(-1, 256).sum(1),
            x=1024,
        ),
        "warp_and_block": Case(
            lambda x, arg: x.reshape(-1, 512).sum(1),
            x=2048,
        ),
        "big_shared": Case(  # more than 48 KB, opted into
            lambda x, arg: x + 256 * arg - 1 - torch.arange(64),
            args=(48, 64, 227),
        ),
        "launches": Case(  # one after the other, each sees what the one before wrote
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
        code=f"""
        __global__ void shuffle_{kind}(const float* x, float* y, int width) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x, lane = i % 32;
            (void)lane;
            y[i] = {call};
        }}
        """,
        launch=f"shuffle_{kind}<<<2, 96, 0, stream>>>(x, y, arg);",
        expected=shuffled(source),
        x=192,
        args=(2, 4, 8, 16, 32),
    )


def of_type(name: str, type_: str, value: str, view: torch.dtype, expected) -> Case:
    """Shuffles of another type, by each of the four operations in turn."""
    words = 2 if view in (torch.float64, torch.int64) else 1
    return Case(
        code=f"""
        __global__ void shuffle_{name}(const float* x, {type_}* y) {{
            int i = threadIdx.x;
            {type_} v = {value};
            v = __shfl_sync(0xffffffff, v, (i + 5) % 32);
            v = __shfl_xor_sync(0xffffffff, v, 3);
            v = __shfl_up_sync(0xffffffff, v, 1);
            y[i] = __shfl_down_sync(0xffffffff, v, 2);
        }}
        """,
        launch=f"shuffle_{name}<<<1, 32, 0, stream>>>(x, reinterpret_cast<{type_}*>(y));",
        expected=lambda x, arg: expected(x.double()[_FOUR]),
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
        code=f"""
        __global__ void reduce_{kind}_{type_}(const float* x, {type_}* y) {{
            int i = threadIdx.x;
            unsigned mask = i % 32 < 8 ? 0x000000ffu : 0xffffff00u;
            y[i] = __reduce_{kind}_sync(mask, {type_}(x[i] + {offset}));
        }}
        """,
        launch=f"reduce_{kind}_{type_}<<<1, 64, 0, stream>>>(x, reinterpret_cast<{type_}*>(y));",
        expected=lambda x, arg: [
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
            lambda x, arg: np.array(
                [sum(1 << lane for lane, v in enumerate(x[:32]) if v > 0)] * 32
                + [sum(1 << lane for lane, v in enumerate(x[32:50]) if v > 0)] * 18,
                dtype=np.uint32,
            ).view(np.int32),
            view=torch.int32,
        ),
        "any_all": Case(
            lambda x, arg: [
                8 * (w > 48).any() + 4 * (w > -50).all() + 1 for w in lanes(x) for _ in range(32)
            ],
            x=128,
        ),
        "match_any": Case(
            lambda x, arg: np.array(
                [sum(1 << j for j in range(32) if int(x[j]) & 3 == int(v) & 3) for v in x],
                dtype=np.uint32,
            ).view(np.int32),
            x=32,
            view=torch.int32,
        ),
        "match_all": Case(
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
            lambda x, arg: torch.cat([x[:16].flip(0) + 3, 3 * x[16:].flip(0) + 20]),
            x=32,
        ),
        "mixed_masks": Case(  # half of the lanes meet among themselves first
            lambda x, arg: [
                x[lane ^ 1] + (0 if lane % 2 else lane ^ 2) for lane in range(32)
            ],
            x=32,
        ),
        "activemask": Case(  # whoever is together sums; the sum over all does not depend on it
            lambda x, arg: [x[::3].sum()],
            x=70,
        ),
        "early_exit": Case(
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
        code=f"""
        __global__ void start_{name}({type_}* y) {{ y[threadIdx.x] = {start}; }}
        __global__ void atomics_{name}(const float* x, {type_}* y, int n) {{
            {on_shared if shared else f"{type_}* a = y;"}
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) {{ {type_} v = ({type_})(int(x[i]) + 50); (void)v; {op}; }}
            {store if shared else ""}
        }}
        """,
        launch=("" if shared else f"start_{name}<<<1, 4, 0, stream>>>(reinterpret_cast<{type_}*>(y));")
        + f"atomics_{name}<<<8, 64, 0, stream>>>(x, reinterpret_cast<{type_}*>(y), n);",
        expected=lambda x, arg: [
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
            lambda x, arg: [64 * 63 / 2] * 64,
        ),
        "flag": Case(  # one warp waits for another by looking, not at a barrier
            lambda x, arg: x[32:].flip(0),
        ),
        "float4": Case(
            lambda x, arg: torch.stack(
                [x[3::4], -x[2::4], 2 * x[1::4], x[::4] + 1], dim=1
            ),
        ),
        "float2_shared": Case(
            lambda x, arg: x.flip(0),
        ),
        "float3": Case(  # twelve bytes, aligned to four
            lambda x, arg: x.reshape(20, 3).flip(1),
            x=60,
        ),
        "ldg": Case(
            lambda x, arg: torch.stack([x.flip(0)[::2] + x[1::2], x[0] + x[::2]], dim=1),
        ),
        "constant": Case(
            lambda x, arg: 2 * (torch.arange(64) % 8) + 100,
        ),
        "device_global": Case(
            lambda x, arg: 120 + 10.0 ** (torch.arange(64) % 4),
        ),
        "struct_parameter": Case(
            lambda x, arg: x.roll(-5) * (torch.arange(64) % 3 + 1),
        ),
        "file_scope_shared": Case(
            lambda x, arg: x + x.flip(0),
        ),
        "two_instances": Case(  # one declaration, two instances of its function: two arrays
            lambda x, arg: x[:32].flip(0) + 1000,
        ),
        "shared_struct": Case(
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
            lambda x, arg: x + 3,
        ),
        "partly_deduced": Case(
            lambda x, arg: -2 * x + 4,
        ),
        "functor_type": Case(
            lambda x, arg: 2 * x.flip(0) + 1,
        ),
        "namespaces": Case(
            lambda x, arg: [5] * 64,
        ),
        "pointers": Case(  # a table of kernels, a pointer to one, one in parentheses
            lambda x, arg: ((x + 1) * 3 + 2) * 3,
        ),
        "macro": Case(
            lambda x, arg: [arg] * 64,
            args=(3, 4),
        ),
        "local_static": Case(  # a guard in host code
            lambda x, arg: [42] * 64,
        ),
        "math": Case(
            lambda x, arg: (
                lambda v: 1 + 2 * v + 1 + v.clamp(min=3) + 2 + v + 8 + 31 + 4 + v / 2 + 1 + 1 + 2
            )(x.abs() + 1),
        ),
        "gemm": Case(  # 64 x 64 x 64, 16 x 16 tiles, double buffered
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
            code="",
            launch=_GEMM + """
            if (!(arg & 4))   // with beta zero, c may hold anything
                cudaMemsetAsync(y, 0xff, 4 * 5, stream);
            cublasStatus_t status = cublasSgemm(handle, ta, tb, 5, 7, 3, &alpha, a, 9, b, 8, &beta,
                                                y, 6);
            cublasDestroy(handle);
            if (status != CUBLAS_STATUS_SUCCESS) return cublasGetStatusString(status);
            """,
            expected=lambda x, arg: products(arg, x, 0, 0, 0, 1),
            x=800,
            args=tuple(range(8)),
        ),
        "batched": Case(  # one filter for all: stride 0
            code="",
            launch=_GEMM + """
            cublasStatus_t status = cublasSgemmStridedBatched(
                handle, ta, tb, 5, 7, 3, &alpha, a, 9, 0, b, 8, 56, &beta, y, 6, 45, 3);
            cublasDestroy(handle);
            if (status != CUBLAS_STATUS_SUCCESS) return cublasGetStatusString(status);
            """,
            expected=lambda x, arg: products(arg, x, 0, 56, 45, 3),
            x=800,
            args=(0, 5),
        ),
        "wrong_ld": Case(
            code="",
            launch=_GEMM + """
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
            expected=lambda x, arg: [707, 7, 7, 100],
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
        code=f"""
        __global__ void copy_{name}(const float* x, float* y) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            y[i] = x[{index}];
        }}
        """,
        launch=f"copy_{name}<<<1024 / {threads}, {threads}, 0, stream>>>(x, y);",
        x=40000,
    )


def sharing(name: str, store: str, load: str = "s_x[threadIdx.x]", type_: str = "float") -> Case:
    """One warp stores to shared memory in one way and loads in another."""
    values = {"float": "threadIdx.x", "float2": "make_float2(1, 2)",
              "float4": "make_float4(1, 2, 3, threadIdx.x)"}
    value = values[type_]
    return Case(
        code=f"""
        __global__ void sharing_{name}(float* y) {{
            __shared__ {type_} s_x[2048 / (sizeof({type_}) / 4)];
            {store} = {value};
            __syncthreads();
            (({type_}*)y)[threadIdx.x] = {load};
        }}
        """,
        launch=f"sharing_{name}<<<1, 32, 0, stream>>>(y);",
        x=256,
    )


def transpose(name: str, pitch: int) -> Case:
    return Case(
        code=f"""
        __global__ void transpose_{name}(const float* x, float* y) {{
            __shared__ float s_tile[32][{pitch}];
            int row = threadIdx.y, column = threadIdx.x;
            s_tile[row][column] = x[row * 32 + column];
            __syncthreads();
            y[row * 32 + column] = s_tile[column][row];
        }}
        """,
        launch=f"transpose_{name}<<<1, dim3(32, 32), 0, stream>>>(x, y);",
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
            x=1024,
        ),
        "float3": Case(  # no 12-byte access exists: three of 4 bytes, 12 apart
            x=128,
        ),
        "bytes": Case(),
        "half_warp": Case(),  # a warp of 16 threads, and one where odd lanes do not load
        "two_ways": Case(  # two instructions, each for half of the warp
            x=96,
        ),
        "ragged_loop": Case(  # lane l loads l + 1 times, from the top of column l
            x=1024,
        ),
        "long_loop": Case(  # more accesses than a lane's log holds
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
        "barriers": Case(),
        "atomics": Case(),
        "nothing": Case(),
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
    return Case(code=code, launch=launch, x=x)


def touching(name: str, statement: str, parameters="const float* x, float* y, int n") -> Case:
    arguments = re.sub(r"(const )?\w+\*? (\w+)", r"\2", parameters)
    return Case(
        code=f"""
        __global__ void {name}({parameters}) {{
            int i = threadIdx.x;
            if (i == 5) {{
                {statement}  // here: {name}
            }}
        }}
        """,
        launch=f"{name}<<<dim3(1, 2), 40, 0, stream>>>({arguments});",
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
        "workspace": Case(),
        "helper": Case(),
        "shared_after": Case(),
        "shared_before": Case(),
        "dynamic_after": Case(),
        "dynamic_none": Case(),
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
        "half_barrier": Case(),  # lanes 0..15 wait for the others, which wait for them
        "mask_without_me": Case(),
        "masks_overlap": Case(),
        "different_operations": Case(),
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
    return Case(code="__global__ void idle() {}\n" if not code else code, launch=launch)


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
            "all": Case(),
            "fails": Case(),
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
        code="__global__ void endless(volatile float* y) { y[0] = 1; while (y[0] == 1) {} }",
        launch="endless<<<1, 1, 0, stream>>>(y);",
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
        code="__global__ void broken(float* y) {\n    y[0] = undeclared;\n}",
        launch="broken<<<1,\n 32>>>(y);",
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
    source = Suite("wrong_launch", {"all": Case(code="__global__ void ok(float* y) {}", launch=launch)}).source
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
    code="""
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
    launch="turn<<<3, 96, 4 * 96, stream>>>(x, y, arg == 0 ? 0.5f : -0.5f);",
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
