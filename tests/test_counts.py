"""What the simulator counts where the lanes of a warp go different ways, against counts by hand.

The kernels and their counts are in ``cuda/divergent.cu``. `tests/instruments/ncu_agreement.py`
compares with a GPU.
"""

from __future__ import annotations

import pytest

import convlab
from convlab.machine import toolchain
from convlab.right import reference
from convlab.run.runnable import Launch
from convlab.sim import Trace, operations
from convlab.why import counting, sass
from tests.instruments import merging, ncu_agreement
from tests.suites import Suite

WARP = Suite("divergent")


def loads(launch: Launch, array: str = "x") -> list[tuple[int, int, int]]:
    """(requests, sectors, lanes) of each line with loads, in their order."""
    rows = [row for row in launch.lines if row["kind"] == "load" and row["array"] == array]
    return [(row["requests"], row["units"], row["lanes"]) for row in rows]


@pytest.mark.parametrize("name", [name for name, case in WARP.cases.items() if "loads" in case])
def test_lanes_meet_where_they_do_on_a_gpu(name):
    """And in four orders of running them."""
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
        "addss %xmm1,%xmm0": 1, "mulps (%rax),%xmm0": 4, "vdivpd %ymm1,%ymm2,%ymm0": 4,
        "sqrtsd %xmm0,%xmm0": 1, "vfmadd231ss %xmm1,%xmm2,%xmm0": 2,
        "vfnmsub132ps %ymm1,%ymm2,%ymm0": 16, "ucomiss %xmm1,%xmm0": 0, "cvtsi2ss %eax,%xmm0": 0,
        "minss %xmm1,%xmm0": 0, "add $0x8,%rsp": 0, "fadd s0, s1, s2": 1,
        "fmadd s0, s1, s2, s3": 2, "fmla v0.4s, v1.4s, v2.4s": 8, "fcmp s0, #0.0": 0,
        "fmov s0, s1": 0, "bl 1040 <fmaf@plt>": 2,
    }.items(),
)  # fmt: skip
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


def counted_joined(name: str, spec: str, array: str) -> tuple[Trace, dict, list[dict]]:
    """A run; its counters where loads of an array are joined to 16 bytes; the rows of those."""
    kernel, problem = convlab.load(name, engine="sim"), convlab.problem(spec)
    trace = counting.simulate(kernel, problem, seed=0)
    block = counting.simulate(kernel, problem, seed=0, record=merging.BLOCK)
    rows = [r for r in trace.lines if r["array"] == array and r["kind"] == "load"]
    merges = [merging.Merge(r["line"], r["space"], r["kind"], 4, 16, "LD.128") for r in rows]
    return trace, merging.joined(trace, block, merges), rows


def test_accesses_are_counted_as_joined():
    """02's reads of the filter's tile: eight neighbouring floats for each thread."""
    trace, found, (row,) = counted_joined("02_im2col_gemm", "N=1,C=8,H=18,W=18,K=64,R=3,S=3", "s_w")
    left = row["requests"] / 4
    assert found["shared_requests"] == trace.counters["shared_requests"] - row["requests"] + left
    # of the two halves of a warp each reads one float4, and they are served one after the other
    assert (
        found["shared_wavefronts"] == trace.counters["shared_wavefronts"] - row["units"] + 2 * left
    )


def test_what_is_not_aligned_is_not_joined():
    """01 reads neighbours along a row too, from wherever its pixel is."""
    trace, found, _ = counted_joined("01_direct", "N=1,C=2,H=18,W=18,K=2,R=3,S=3", "x")
    assert found["global_load_requests"] == trace.counters["global_load_requests"]


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
    "shared_wavefronts": 1296.0, "shared_requests": 1296.0, "global_load_sectors": 400.0,
    "global_load_requests": 100.0, "flops": 1000.0,
}  # fmt: skip


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
