"""The simulator's counts for lanes that diverge, against counts by hand.

The kernels and their counts are in ``cuda/divergent.cu``. `tests/instruments/ncu_agreement.py`
compares the counts with those of a GPU.
"""

from __future__ import annotations

import pytest

import convlab
from convlab.core.correctness import reference
from convlab.core.kernel.runnable import Launch
from convlab.core.machine import toolchain
from convlab.sim import operations
from tests.suites import Suite

WARP = Suite("divergent")


def loads(launch: Launch, array: str = "x") -> list[tuple[int, int, int]]:
    """Return (requests, sectors, lanes) of each line with loads, in their order."""
    rows = [row for row in launch.lines if row["kind"] == "load" and row["array"] == array]
    return [(row["requests"], row["units"], row["lanes"]) for row in rows]


@pytest.mark.parametrize("name", [name for name, case in WARP.cases.items() if "loads" in case])
def test_lanes_reconverge_as_on_a_gpu(name):
    """One case runs in four schedules."""
    launch = WARP.launch(name)
    for _ in range(3 if name == "three_ways" else 0):
        assert loads(launch) == WARP.value(name, "loads")
        launch()
    assert loads(launch) == WARP.value(name, "loads")


@pytest.mark.parametrize("name", [name for name, case in WARP.cases.items() if "flops" in case])
def test_flops(name):
    assert WARP.launch(name).flops == WARP.value(name, "flops")


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


def test_operations_belong_to_their_basic_block():
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


def test_flops_of_the_direct_kernel_count_the_taps_inside_the_image():
    problem, launch = prepared("01_direct", "N=1,C=4,H=9,W=11,K=6,R=3,S=5,stride=2x1,padding=1x3")
    inside = sum(
        0 <= p * 2 - 1 + r < problem.H and 0 <= q - 3 + s < problem.W
        for p in range(problem.P)
        for q in range(problem.Q)
        for r in range(problem.R)
        for s in range(problem.S)
    )
    assert inside < problem.P * problem.Q * problem.R * problem.S
    outputs = problem.K * problem.P * problem.Q
    assert (
        launch.flops == 2 * problem.K * problem.C * inside + outputs
    )  # it adds 0 for the missing bias


def test_flops_of_a_library():
    problem, launch = prepared("02c_im2col_batched", "N=2,C=4,H=12,W=12,K=6,R=3,S=3,bias=1")
    assert launch.counters["library_flops"] == problem.flops
    assert launch.flops == problem.flops + problem.N * problem.K * problem.P * problem.Q


def test_flops_are_not_known_without_objdump_or_counts(monkeypatch):
    assert prepared("01_direct", "N=1,C=1,H=8,W=8,K=1,R=3,S=3", trace=False)[1].flops is None
    find = toolchain.find
    monkeypatch.setattr(toolchain, "find", lambda n: None if n == "objdump" else find(n))
    operations._operations_by_step.cache_clear()
    assert prepared("01_direct", "N=1,C=1,H=8,W=8,K=1,R=3,S=3")[1].flops is None
    operations._operations_by_step.cache_clear()


def test_inspect_shows_operations():
    spec = "N=1,C=4,H=18,W=18,K=4,R=3,S=3,padding=1"
    problem, launch = prepared("01_direct", spec)
    frame = convlab.inspect("01_direct", spec, engine="sim").frame
    (row,) = frame[frame.quantity == "operations"].to_dict("records")
    assert row["simulated"] == launch.flops / 1e9 and row["least"] == problem.flops / 1e9
    assert 0.85 * row["least"] < row["simulated"] < row["least"]  # taps in the padding are left out
