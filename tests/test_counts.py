"""What the simulator counts where the lanes of a warp go different ways, against counts by hand.

The expectations are what a GPU does: lanes that part meet again behind the branch, and at the end
of each iteration of a loop. `tests/instruments/ncu_agreement.py` compares with a real one.
"""

from __future__ import annotations

import numpy as np
import pytest

import convlab
from convlab import sim
from convlab.machine import toolchain
from convlab.right import reference
from convlab.sim import any_kernel, operations
from convlab.why import counting, sass
from convlab.words.errors import LaunchError
from tests.instruments import merging, ncu_agreement

# Each kernel is run by one warp; t is its lane. x[8 * i] is a sector of its own for each i.
LANES = range(32)
KERNEL = """
%s
__global__ void one_warp(const float* x, float* y) {
    int t = threadIdx.x;
    float a = 0;
    %s
    y[t] = a;
}
"""


def run(body: str, prelude: str = "", **options) -> sim.Trace:
    x, y = np.ones(4096, np.float32), np.zeros(32, np.float32)
    return any_kernel.run(KERNEL % (prelude, body), "one_warp", x, y, grid=1, block=32, **options)


def loads(trace: sim.Trace) -> list[tuple[int, int, int]]:
    """(requests, sectors, lanes) of each line with loads, in their order."""
    rows = [row for row in trace.lines if row["kind"] == "load"]
    return [(row["requests"], row["units"], row["lanes"]) for row in rows]


DIVERGENT = {
    # A tap outside of the row is skipped: 31, 32 and 31 lanes read, each a sector of its own.
    "borders": (
        """for (int s = 0; s < 3; ++s) {
               int w = t + s - 1;
               if (w < 0 || w >= 32) continue;
               a += x[8 * w];
           }""",
        [(3, 31 + 32 + 31, 31 + 32 + 31)],
    ),
    # Each iteration is of one half of the lanes, all at one address.
    "take_turns": (
        """for (int i = 0; i < 8; ++i)
               if ((i + t) % 2) a += x[8 * i];""",
        [(8, 8, 8 * 16)],
    ),
    # Both arms run in each iteration, and lanes change sides in between.
    "if_else": (
        """for (int i = 0; i < 4; ++i) {
               if ((i + t) % 2)
                   a += x[8 * i];
               else
                   a -= x[8 * i + 800];
           }""",
        [(4, 4, 4 * 16), (4, 4, 4 * 16)],
    ),
    "three_ways": (
        """for (int i = 0; i < 6; ++i) {
               switch ((i + t) % 4) {
                   case 0: a += x[8 * i];
                       break;
                   case 1: a -= x[8 * i + 800];
                       break;
                   default:
                       continue;
               }
               a *= x[8 * i + 1600];
           }""",
        [(6, 6, 6 * 8), (6, 6, 6 * 8), (6, 6, 6 * 16)],
    ),
    # The loop is as long as the longest lane's; the others wait behind it.
    "own_bounds": (
        """for (int i = 0; i < t; ++i) a += x[8 * i];
           a += x[t];""",
        [(31, 31, sum(LANES)), (1, 4, 32)],
    ),
    "skipped": (
        """if (t < 16)
               for (int i = 0; i < 8; ++i)
                   a += x[8 * i];
           a += x[t];""",
        [(8, 8, 8 * 16), (1, 4, 32)],
    ),
    "leaves_early": (
        """for (int i = 0; i < 8; ++i) {
               if (i == t / 4) break;
               a += x[8 * i];
           }
           a += x[t];""",
        [(7, 7, sum(t // 4 for t in LANES)), (1, 4, 32)],
    ),
    "returns": (
        """for (int i = 0; i < 8; ++i) {
               if (i == t / 4) return;
               a += x[8 * i];
           }""",
        [(7, 7, sum(t // 4 for t in LANES))],
    ),
    # In each of the three rounds the longest lane makes three, though none makes nine in all.
    "nested": (
        """for (int i = 0; i < 3; ++i)
               for (int j = 0; j < (t + i) % 4; ++j)
                   a += x[8 * (4 * i + j)];""",
        [(9, 9, 3 * 8 * (0 + 1 + 2 + 3))],
    ),
    "empty_rounds": (
        """for (int i = 0; i < 40; ++i) {
               for (int j = 0; j < t; ++j) a += i ^ j;
               if (i % 32 == t) a += x[8 * i];
           }""",
        [(40, 40, 40)],
    ),
    # More than a lane's log holds: those that skipped the first loop wait for those in it.
    "long": (
        """if (t < 16)
               for (int i = 0; i < 3000; ++i) a += x[i];
           for (int i = 0; i < 3000; ++i) a += x[i];""",
        [(3000, 3000, 3000 * 16), (3000, 3000, 3000 * 32)],
    ),
}


@pytest.mark.parametrize("name", DIVERGENT)
def test_lanes_meet_where_they_do_on_a_gpu(name):
    body, expected = DIVERGENT[name]
    assert loads(run(body)) == expected


def test_counts_do_not_depend_on_the_schedule():
    body, expected = DIVERGENT["three_ways"]
    for schedule in (1, 2, 3):
        assert loads(run(body, schedule=schedule)) == expected


CALLS = {
    "some_lanes_call": (
        "__device__ __noinline__ float read(const float* p) { return *p + 1; }",
        """for (int i = 0; i < 4; ++i) {
               if (t % 2) a += read(x + 8 * i);
               a += x[t];
           }""",
        [(4, 4, 4 * 16), (4, 4 * 4, 4 * 32)],
    ),
    # Two calls of one function are not one.
    "from_two_places": (
        "__device__ __noinline__ float read(const float* p) { return *p + 1; }",
        """if (t % 2) a += read(x + 8);
           else a -= read(x + 16);
           a += x[t];""",
        [(2, 2, 32), (1, 4, 32)],
    ),
    "recursion": (
        """__device__ __noinline__ float sum(const float* p, int n) {
               return n ? p[8 * n] + sum(p, n - 1) : 0;
           }""",
        """a = sum(x, t % 4);
           a += x[t];""",
        [(3, 3 + 2 + 1, 8 * (3 + 2 + 1)), (1, 4, 32)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    prelude, body, expected = CALLS[name]
    assert loads(run(body, prelude)) == expected


def test_a_lane_that_waits_for_another_does_not_hang():
    """The lane that is behind spins until one that is ahead, and whose log is full, stores."""
    trace = any_kernel.run(
        """
        __global__ void wait(const float* x, volatile int* flag, float* y) {
            float a = 0;
            if (threadIdx.x == 0) {
                while (!*flag) a += 1;
                y[0] = a;
            } else {
                for (int i = 0; i < 5000; ++i) a += x[i % 64];
                if (threadIdx.x == 1) *flag = 1;
                y[threadIdx.x] = a;
            }
        }
        """,
        "wait", np.ones(64, np.float32), np.zeros(1, np.int32), np.zeros(32, np.float32),
        grid=1, block=32, time_limit=20,
    )  # fmt: skip
    of_x = [row for row in trace.lines if row["array"] == "x"]
    assert [(row["requests"], row["lanes"]) for row in of_x] == [(5000, 5000 * 31)]


def test_endless_loop_without_accesses_is_found_at_its_line():
    with pytest.raises(LaunchError) as caught:
        any_kernel.run(
            "__global__ void stay(float* y, int n) {\n"
            "    while (n != 7)\n"
            "        n = (n * 3) & 14;\n"
            "    y[0] = n;\n"
            "}\n",
            "stay", np.zeros(1, np.float32), 2, grid=1, block=1, time_limit=1,
        )  # fmt: skip
    (finding,) = caught.value.findings
    assert finding.kind == "endless loop" and finding.line in (2, 3)


# --- operations -----------------------------------------------------------------------------------

FLOPS = {
    "add": ("a = x[t] + x[t + 1];", 32),
    "multiply_add": ("a = x[t] * x[t + 1] + x[t + 2];", 2 * 32),
    "fmaf": ("a = fmaf(x[t], x[t + 1], x[t + 2]);", 2 * 32),
    "divide_and_root": ("a = x[t] / sqrtf(x[t + 1]);", 2 * 32),
    "minus": ("a = -x[t];", 0),
    "compare": ("a = x[t] < x[t + 1] ? 3.0f : 4.0f;", 0),
    "convert": ("a = float(int(x[t]) + t);", 0),
    "double": ("a = float(double(x[t]) * x[t + 1]);", 32),
    "some_lanes": ("if (t < 20) a = x[t] + x[t + 1];", 20),
    "own_bounds": ("for (int i = 0; i < t; ++i) a += x[i];", sum(LANES)),
    "nothing": (";", 0),
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops(name):
    body, expected = FLOPS[name]
    assert run(body).flops == expected


@pytest.mark.parametrize(
    "instruction, expected",
    {
        "addss %xmm1,%xmm0": 1,
        "mulps (%rax),%xmm0": 4,
        "vdivpd %ymm1,%ymm2,%ymm0": 4,
        "sqrtsd %xmm0,%xmm0": 1,
        "vfmadd231ss %xmm1,%xmm2,%xmm0": 2,
        "vfnmsub132ps %ymm1,%ymm2,%ymm0": 16,
        "ucomiss %xmm1,%xmm0": 0,
        "cvtsi2ss %eax,%xmm0": 0,
        "minss %xmm1,%xmm0": 0,
        "add $0x8,%rsp": 0,
        "fadd s0, s1, s2": 1,
        "fmadd s0, s1, s2, s3": 2,
        "fmla v0.4s, v1.4s, v2.4s": 8,
        "fcmp s0, #0.0": 0,
        "fmov s0, s1": 0,
        "bl 1040 <fmaf@plt>": 2,
    }.items(),
)
def test_operations_of_an_instruction(instruction, expected):
    assert operations.operations_of(*instruction.split(" ", 1)) == expected


def test_operations_end_where_the_block_does():
    text = """
0000000000001000 <kernel>:
    1000:	call   *0x2e25(%rip)        # 3f58 <__sanitizer_cov_trace_pc@Base>
    1006:	addss  %xmm1,%xmm0
    100a:	jne    1020 <kernel+0x20>
    100c:	mulss  %xmm1,%xmm0
    1010:	jmp    1020 <kernel+0x20>
    1015:	addss  %xmm1,%xmm0
    1020:	call   900 <__sanitizer_cov_trace_pc@plt>
    1025:	ret

0000000000001030 <other>:
    1030:	addss  %xmm1,%xmm0
"""
    assert operations.operations_by_block(text) == {0x1006: 2, 0x1025: 0}


def prepared(name: str, spec: str, **options):
    problem = convlab.problem(spec)
    kernel = convlab.load(name, engine="sim", **options)
    launch = kernel.prepare(problem, *reference.inputs(problem, 0, "cpu"))
    launch()
    return problem, launch


def test_flops_of_the_direct_kernel_are_those_of_the_taps_inside():
    problem, launch = prepared("01_direct", "N=1,C=4,H=9,W=11,K=6,R=3,S=5,stride=2x1,padding=1x3")
    inside = sum(
        0 <= p * 2 - 1 + r < problem.H and 0 <= q - 3 + s < problem.W
        for p in range(problem.P) for q in range(problem.Q)
        for r in range(problem.R) for s in range(problem.S)
    )  # fmt: skip
    assert inside < problem.P * problem.Q * problem.R * problem.S
    outputs = problem.K * problem.P * problem.Q
    assert launch.flops == 2 * problem.K * problem.C * inside + outputs  # + 0: there is no bias


def test_flops_of_a_library():
    problem, launch = prepared("02c_im2col_batched", "N=2,C=4,H=12,W=12,K=6,R=3,S=3,bias=1")
    assert launch.counters["library_flops"] == problem.flops
    assert launch.flops == problem.flops + problem.N * problem.K * problem.P * problem.Q


def test_flops_are_not_known_without_objdump_or_counts(monkeypatch):
    assert prepared("01_direct", "N=1,C=1,H=8,W=8,K=1,R=3,S=3", trace=False)[1].flops is None
    find = toolchain.find
    monkeypatch.setattr(toolchain, "find", lambda n: None if n == "objdump" else find(n))
    operations._blocks.cache_clear()
    assert prepared("01_direct", "N=1,C=1,H=8,W=8,K=1,R=3,S=3")[1].flops is None
    operations._blocks.cache_clear()


# --- what nvcc joins ------------------------------------------------------------------------------


def counted_joined(name: str, problem, first, widths: dict[tuple, int]):
    """The same, with accesses of some (line, space, kind) counted as one of so many bytes."""
    offsets = [(offset, size) for place, size in widths.items()
               for offset in first.offsets_of(*place)]  # fmt: skip
    return counting.simulate(convlab.load(name, engine="sim"), problem, seed=0, joined=offsets)


def test_accesses_are_counted_as_joined():
    """02's reads of the filter's tile: eight neighbouring floats for each thread."""
    spec = "N=1,C=8,H=18,W=18,K=64,R=3,S=3"
    name, problem = "02_im2col_gemm", convlab.problem(spec)
    first = counted_joined(name, problem, None, {})
    (row,) = [r for r in first.lines if r["array"] == "s_w" and r["kind"] == "load"]
    before = first.counters
    second = counted_joined(name, problem, first, {(row["line"], "shared", "load"): 16})
    (joined,) = [r for r in second.lines if r["array"] == "s_w" and r["kind"] == "load"]
    assert joined["requests"] == row["requests"] / 4
    # of the two halves of a warp each reads one float4, and they are served one after the other
    assert joined["units"] == 2 * joined["requests"]
    saved = row["requests"] - joined["requests"]
    assert second.counters["shared_requests"] == before["shared_requests"] - saved
    assert second.counters["global_load_sectors"] == before["global_load_sectors"]


def test_what_is_not_aligned_is_not_joined():
    """01 reads neighbours along a row too, from wherever its pixel is."""
    name, problem = "01_direct", convlab.problem("N=1,C=2,H=18,W=18,K=2,R=3,S=3")
    first = counted_joined(name, problem, None, {})
    rows = {(r["line"], r["space"], r["kind"]) for r in first.lines if r["array"] == "x"}
    second = counted_joined(name, problem, first, dict.fromkeys(rows, 16))
    assert second.counters["global_load_requests"] == first.counters["global_load_requests"]


def test_merges_are_told_from_the_machine_code():
    function = sass.Function("kernel", instructions=[
        sass.Instruction(0, "LDS.128", "R4, [R2]", 12),
        sass.Instruction(16, "LDS", "R8, [R3]", 13),
        sass.Instruction(32, "LDG.E.64.CONSTANT", "R8, [R3]", 14),
    ])  # fmt: skip
    row = {"requests": 8, "units": 8, "ideal_units": 8, "lanes": 256, "kind": "load"}
    rows = [
        row | {"line": 12, "space": "shared", "bytes": 1024},
        row | {"line": 13, "space": "shared", "bytes": 1024},
        row | {"line": 14, "space": "global", "bytes": 2048},  # the source's are wide themselves
    ]
    (merge,) = merging.merges([function], rows)
    assert (merge.line, merge.source, merge.made) == (12, 4, 16)
    assert str(merge) == "line 12: one LDS.128 for 4 of the source's"


COUNTS = {
    "shared_wavefronts": 1296.0,
    "shared_requests": 1296.0,
    "global_load_sectors": 400.0,
    "global_load_requests": 100.0,
    "flops": 1000.0,
}


@pytest.mark.parametrize("measured, explained", [(1000.0, True), (1600.0, False)])
def test_a_difference_is_explained_only_by_what_nvcc_joined(measured, explained):
    merge = merging.Merge(12, "shared", "load", 4, 16, "LDS.128")
    joined = COUNTS | {"shared_wavefronts": 1001.0, "shared_requests": 850.0}
    theirs = COUNTS | {"shared_wavefronts": measured}
    rows = {row["quantity"]: row for row in ncu_agreement.compare(COUNTS, joined, [merge], theirs)}
    assert not rows["wavefronts"]["ok"] and rows["wavefronts"]["explained"] == explained
    assert rows["wavefronts"]["why"] == str(merge)
    assert rows["sectors / load"]["ok"] and rows["sectors / load"]["why"] == ""
    table = ncu_agreement.agreement_table(
        [{"kernel": "k", "problem": "p"} | row for row in rows.values()]
    )
    (line,) = [line for line in table if "| wavefronts |" in line]
    assert ("explained" in line) == explained and str(merge) in line


def test_inspect_shows_operations():
    spec = "N=1,C=4,H=18,W=18,K=4,R=3,S=3,padding=1"
    problem, launch = prepared("01_direct", spec)
    frame = convlab.inspect("01_direct", spec, engine="sim").frame
    (row,) = frame[frame.quantity == "operations"].to_dict("records")
    assert row["simulated"] == launch.flops / 1e9 and row["least"] == problem.flops / 1e9
    assert 0.85 * row["least"] < row["simulated"] < row["least"]  # taps in the padding are left out
