"""nvcc's machine code of a kernel, how often each instruction runs, and how warps share an SM."""

import dataclasses
from pathlib import Path

import pytest

import convlab
from convlab.core.builds import build
from convlab.core.errors import BuildError
from convlab.core.kernel import catalog
from convlab.core.kernel.data import inputs
from convlab.core.machine import toolchain
from convlab.core.machine.gpus import GPUS
from convlab.profile import disassembly, sass, warp_stalls, warp_work
from convlab.profile.instruction_counts import instruction_counts
from convlab.profile.launched_functions import find_function
from tests.suites import ENTRY, FOLDER, cubin, needs_tools

# Written by hand in the form of nvdisasm -c -gi: nested loops, an inlined function of a header, a trap.
SAMPLE = (FOLDER / "mul.sass").read_text()
LOG = (FOLDER / "mul.log").read_text()  # in the form of ptxas -v


@pytest.fixture
def mul() -> sass.Function:
    """Return the sample's first function."""
    return disassembly.with_resources(LOG, disassembly.parse(SAMPLE, "kernels/mul.cu"))[0]


def function(*rows: tuple, symbol: str = "f", **options) -> sass.Function:
    """Return a function with instructions (opcode, operands, target, line), 16 bytes apart."""
    code = []
    for n, row in enumerate(rows):
        opcode, operands, target, line = (*row, *("", None, 1)[len(row) - 1 :])
        code.append(sass.Instruction(16 * n, opcode, operands, line, target))
    return sass.Function(symbol, instructions=code, **options)


def row(line: int, space: str, kind: str, requests: int, width: int) -> dict:
    return {
        "line": line,
        "space": space,
        "kind": kind,
        "array": "x",
        "requests": requests,
        "units": requests,
        "lanes": 32 * requests,
        "bytes": 32 * requests * width,
    }


@pytest.mark.parametrize(
    "symbol, name",
    [
        ("_Z13conv2d_direct11ConvProblemPKf", "conv2d_direct"),
        ("_Z4tileILi16ELi32EEv11ConvProblem", "tile<16, 32>"),
        ("_Z4tileILin1ELb1EEvv", "tile<-1, 1>"),
        ("_Z4tileILj4ELl7EfEvPKf", "tile<4, 7, float>"),
        ("_ZN2ns4funcILi4EEEvPf", "ns::func<4>"),
        ("_ZN12_GLOBAL__N_13fooEPf", "foo"),
        ("void tile<(int)16, (int)32>(ConvProblem, const float *)", "tile<16, 32>"),
        ("tile<16,32>", "tile<16, 32>"),
        ("conv2d_direct(ConvProblem, const float *)", "conv2d_direct"),
        ("sgemm_128x64_nn", "sgemm_128x64_nn"),
    ],
)
def test_names_are_readable(symbol: str, name: str) -> None:
    assert sass.demangled(symbol) == name


def test_registers_spills_and_shared_memory_of_each_function() -> None:
    mul, empty = disassembly.with_resources(LOG, {})
    assert (mul.registers, mul.static_shared, mul.stack, mul.spill_bytes) == (73, 6272, 24, 16 + 20)
    assert (empty.registers, empty.static_shared, empty.spill_bytes) == (4, 0, 0)


def test_lines_loops_and_instructions_of_the_machine_code(mul: sass.Function) -> None:
    lines = {i.address: i.line for i in mul.instructions}
    assert lines[0x00] == 10
    assert lines[0x10] == 12  # an inlined function of a header has the line of its call
    assert (lines[0x20], lines[0x50], lines[0x90], lines[0xD0]) == (14, 17, 18, 21)
    assert mul.loops == [(0x20, 0xC0), (0x50, 0xA0)]  # the trap is no loop
    assert mul.hot_loop == (0x50, 0xA0)
    assert mul.mix(mul.hot_loop) == {
        "FFMA": 2,
        "LDS.32": 1,
        "LDS.128": 1,
        "LDL.32": 1,
        "branch": 1,
    }
    assert mul.mix()["LDG.128"] == 1 and mul.mix()["barrier"] == 2


def test_a_loop_without_arithmetic_is_hot_only_if_no_other_has_any() -> None:
    assert function(("NOP",), ("LDG.E",), ("STG.E",), ("BRA", "", 16)).hot_loop == (16, 48)
    assert sass.Function("none").hot_loop is None


@pytest.mark.parametrize(
    "opcode, kind",
    [
        ("LDG.E.CONSTANT", "LDG.32"),
        ("LDG.E.64", "LDG.64"),
        ("LDS.U.128", "LDS.128"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS"),
        ("HMMA.1688.F32.TF32", "HMMA"),
        ("HGMMA.64x128x8.F32.TF32", "HGMMA"),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("ISETP.GE.AND", "integer"),
        ("ULOP3.LUT", "integer"),
        ("STL", "STL.32"),
        ("FFMA.FTZ", "FFMA"),
        ("FADD", "FADD FMUL"),
        ("S2R", "other"),
        ("LDSM.16.M88.4", "LDSM"),
    ],
)
def test_kinds_of_instructions(opcode: str, kind: str) -> None:
    assert sass.Instruction(0, opcode, "").kind == kind


@pytest.mark.parametrize(
    "opcode, flops, asynchronous, cycles",
    [
        ("HMMA.1688.F32.TF32", 2 * 16 * 8 * 8, 0, 6.2),  # ncu: 6.0
        ("HMMA.16816.F32.BF16", 2 * 16 * 8 * 16, 0, 6.2),
        ("HGMMA.64x128x8.F32.TF32", 2 * 64 * 128 * 8 / 4, 1, 0),  # per warp of a group of 4
        ("FFMA", 0, 0, 0),
    ],
)
def test_tensor_core_instructions_are_in_the_mix_and_in_the_model(
    opcode, flops, asynchronous, cycles
) -> None:
    f = function((opcode, "R4, R8, R12, R4"), ("BRA", "`(.L_0)", 0))
    assert f.instructions[0].tensor_flops == flops
    kind = opcode.split(".")[0]
    assert f.mix(f.hot_loop) == {kind: 1, "branch": 1}
    done = warp_work.WarpWork.of(f, {0: 64.0, 16: 64.0}, [], GPUS["H200"], 200, warps=2)
    assert done.tensor_flops == 32 * flops * asynchronous
    assert done.busy["mma"] / 32 == pytest.approx(cycles, rel=0.01)
    assert done.mix == {kind: 32, "branch": 32}


# ---- how often instructions run -------------------------------------------------------------


def test_how_often_instructions_run_follows_from_the_lines_requests(mul: sass.Function) -> None:
    lines = [
        row(14, "global", "load", 10, 16),
        row(14, "shared", "store", 10, 16),
        row(17, "shared", "load", 1000 + 4 * 1000, 4),  # nvcc merged four scalar loads
        row(22, "global", "store", 1, 4),  # a statement on two lines
    ]
    times = instruction_counts(mul, lines, {}, warps=1)
    assert sum(times[i.address] for i in mul.instructions if i.kind == "FFMA") == 2 * 1000
    # the inner loop, the five instructions of the outer loop alone, those outside all loops
    assert sum(times.values()) == pytest.approx(6 * 1000 + 5 * 10 + 5)


def test_a_launch_finds_its_function(mul: sass.Function) -> None:
    small = sass.Function("_Z3mulILi2EEvPKfPf")
    other = sass.Function("_Z5emptyv")
    functions = [small, other, mul]
    assert find_function(functions, "_Z3mulILi2EEvPKfPf") is small
    assert find_function(functions, "void mul<2>(const float *, float *)") is small
    assert find_function(functions, "mul") is mul  # the busiest of the instances
    assert find_function(functions, "cublasSgemm") is None
    counted = [row(17, "shared", "load", 1000, 4)]
    assert find_function(functions, "a_pointer", counted) is mul
    assert find_function(functions, "mul<kTile>", counted) is mul  # the other has no line 17


def test_the_simulator_names_the_instance_behind_a_pointer() -> None:
    source = """#include "convlab.cuh"
    template <int T> __global__ void tile(float* y) { y[threadIdx.x] = T; }
    __global__ void none(float* y) { y[0] = 0; }"""
    source += (
        ENTRY
        % """default:
        auto* kernel = n ? &tile<8> : &none;
        kernel<<<1, 1, 0, stream>>>(y);
        tile<4><<<1, 1, 0, stream>>>(y);"""
    )
    problem = convlab.problem("N=1,C=1,H=4,W=4,K=1,R=1,S=1")
    launch = convlab.compile(source, engine="sim").prepare(problem, *inputs(problem))
    launch()
    assert [each["kernel"] for each in launch.launches] == ["tile<8>", "tile<4>"]


@pytest.mark.parametrize(
    "trips, main, copies",
    [(3, 0, (1, 1, 1)), (9, 2, (1, 0, 0)), (4, 1, (0, 0, 0)), (7, 1, (1, 1, 1))],
)
def test_an_unrolled_loop_and_its_copies_share_the_iterations(trips, main, copies) -> None:
    """A loop (line 1) contains a loop that nvcc unrolled by 4 (line 2), with 3 copies for the rest."""
    load = ("LDG.E", "R1, desc[UR0][R2.64]", None, 2)
    skip = ("BRA", "`(.L_8)", 16 * 13, 2)
    f = function(
        ("IADD3", "R2, R2, 0x1, RZ"),
        ("BRA", "`(.L_9)", 16 * 8),
        load,
        load,
        load,
        load,
        ("IADD3", "R3, R3, 0x4, RZ", None, 2),
        ("BRA", "`(.L_2)", 16 * 2, 2),
        load,
        skip,
        load,
        skip,
        load,
        ("BRA", "`(.L_1)", 0),
    )
    counted = [row(2, "global", "load", 100 * trips, 4)]
    times = instruction_counts(f, counted, {"": {1: 32 * 100, 2: 32 * 100 * trips}}, warps=1)
    assert times[0] == 100
    assert times[16 * 2] == times[16 * 6] == 100 * main
    assert tuple(times[16 * n] for n in (8, 10, 12)) == tuple(100 * c for c in copies)


def test_code_that_nvcc_moved_to_the_end_is_no_loop() -> None:
    """A waiting loop (lines 3) is at the end, and jumps back into the middle of the code."""
    f = function(
        ("SYNCS", "P0, [UR4], R2"),
        ("BRA", "`(.L_8)", 16 * 6),
        ("IADD3", "R2, R2, 0x1, RZ"),
        ("FFMA", "R0, R1, R1, R0", None, 2),
        ("BRA", "`(.L_3)", 16 * 3, 2),
        ("EXIT", ""),
        ("SYNCS", "P0, [UR4], R2", None, 3),
        ("BRA", "`(.L_6)", 16 * 6, 3),
        ("BRA", "`(.L_2)", 16 * 2, 3),
    )
    for n in (1, 4, 7):
        f.instructions[n] = dataclasses.replace(f.instructions[n], guard="@!P0")
    assert f.loops == [sass.Loop(16 * 3, 16 * 4), sass.Loop(16 * 6, 16 * 7)]


def test_a_copy_that_only_writes_zeros_does_not_take_half_of_the_copies() -> None:
    f = function(
        ("LDGSTS.E", "[R9], desc[UR0][R2.64], !PT"), ("LDGSTS.E", "[R9], desc[UR0][R2.64]")
    )
    assert f.instructions[0].only_fills and not f.instructions[1].only_fills
    times = instruction_counts(f, [row(1, "global", "load", 50, 4)], {}, warps=50)
    assert times == {0: 50, 16: 50}


def test_accesses_before_a_loop_run_as_often_as_there_are_warps_and_those_in_it_the_rest() -> None:
    """A line's load is before a loop and in it; the loop contains another one."""
    load = ("LDG.E", "R1, desc[UR0][R2.64]", None, 2)
    f = function(
        load,
        load,
        ("FFMA", "R0, R1, R1, R0", None, 3),
        ("BRA", "`(.L_2)", 16 * 2, 3),
        ("BRA", "`(.L_1)", 16 * 1, 4),
    )
    executed = {"": {3: 32 * 900, 4: 32 * 90}}
    times = instruction_counts(f, [row(2, "global", "load", 100, 4)], executed, warps=10)
    assert times[0] == 10 and times[16] == 90


def test_code_behind_a_branch_does_not_run_if_none_of_its_stores_was_seen() -> None:
    """Stores of 16 bytes (line 2) and of 4 (line 6) exclude each other, and only the first were seen."""
    f = function(
        ("STG.E.128", "desc[UR0][R2.64], R4", None, 2),
        ("BRA", "`(.L_5)", 16 * 5, 3),
        ("IADD3", "R6, R6, 0x1, RZ", None, 4),
        ("STG.E", "desc[UR0][R2.64], R4", None, 6),
        ("IADD3", "R6, R6, 0x1, RZ", None, 6),
        ("EXIT", "", None, 7),
    )
    f.instructions[1] = dataclasses.replace(f.instructions[1], guard="@P1")
    # The store of line 6 has a guard, and the block around it has lines that do run.
    f.instructions[3] = dataclasses.replace(f.instructions[3], guard="@!P3")
    times = instruction_counts(f, [row(2, "global", "store", 50, 16)], {}, warps=50)
    assert [times[16 * n] for n in range(6)] == [50, 50, 0, 0, 0, 50]
    both = [row(2, "global", "store", 50, 16), row(6, "global", "store", 25, 4)]
    assert instruction_counts(f, both, {}, warps=50)[16 * 2] == 25


def test_copies_of_a_block_run_at_most_as_often_as_threads_execute_their_line() -> None:
    """Line 2 is in two blocks, and 8 threads of all warps execute it."""
    f = function(
        ("BRA", "`(.L_2)", 16 * 2, 1),
        ("IADD3", "R6, R6, 0x1, RZ", None, 2),
        ("BRA", "`(.L_4)", 16 * 4, 1),
        ("IADD3", "R6, R6, 0x1, RZ", None, 2),
        ("EXIT", "", None, 1),
    )
    for n in (0, 2):
        f.instructions[n] = dataclasses.replace(f.instructions[n], guard="@P1")
    times = instruction_counts(f, [], {"": {1: 32 * 50, 2: 8}}, warps=50)
    assert [times[16 * n] for n in range(5)] == [50, 4, 50, 4, 50]


def test_a_statement_on_two_lines_has_the_accesses_of_its_own_lines() -> None:
    f = function(("LDS", "R1, [R2]", None, 11), ("LDS", "R3, [R2]", None, 13))
    for line, address in ((10, 0), (12, 16)):
        (found,) = f.compiled_from(row(line, "shared", "load", 1, 4))
        assert found.address == address


def test_copies_of_a_header_are_found_by_their_width() -> None:
    def copy(address: int, opcode: str, line: int) -> sass.Instruction:
        inlined = (("async.cuh", line),)
        return sass.Instruction(
            address, opcode, "[R9], desc[UR0][R2.64]", 5, inlined=inlined, file="k.cu"
        )

    wide, narrow = copy(0, "LDGSTS.E.BYPASS.128", 24), copy(16, "LDGSTS.E", 27)
    f = sass.Function("f", instructions=[wide, narrow])
    counted = {**row(18, "global", "load", 8, 16), "file": "kernels/async.cuh"}
    assert f.compiled_from(counted) == [wide]
    assert narrow.copies_through_l1 and not wide.copies_through_l1


# ---- stalls of a warp, and how warps share an SM ----------------------------------------------


@pytest.mark.parametrize(
    "opcode, operands, reads, writes",
    [
        ("FFMA", "R0, R17, R16.reuse, R0", {"R17", "R16", "R0"}, {"R0"}),
        ("LDS.128", "R4, [R2+0x10]", {"R2"}, {"R4", "R5", "R6", "R7"}),
        ("LDG.E.CONSTANT", "R16, desc[UR10][R28.64]", {"UR10", "R28", "R29"}, {"R16"}),
        ("STS", "[R3+UR4], R9", {"R3", "UR4", "R9"}, set()),
        ("ISETP.GE.OR", "P0, PT, R16, UR12, !P1", {"R16", "UR12", "P1"}, {"P0"}),
        ("IADD3", "R20, P1, R28, 0x10, RZ", {"R28"}, {"R20", "P1"}),
        ("IMAD.WIDE.U32", "R16, R15, UR12, R16", {"R15", "UR12", "R16"}, {"R16", "R17"}),
        ("HMMA.1688.F32.TF32", "R4, R8, R12, R4", {"R8", "R12", "R4"}, {"R4", "R5", "R6", "R7"}),
    ],
)
def test_registers_that_an_instruction_reads_and_writes(opcode, operands, reads, writes) -> None:
    found = warp_stalls.registers(sass.Instruction(0, opcode, operands))
    assert found[1] == writes and reads <= found[0]


def test_a_warp_waits_for_what_it_reads() -> None:
    f = function(
        ("LDG.E", "R1, desc[UR0][R2.64]"),
        ("IADD3", "R5, R6, R7, RZ"),
        ("FFMA", "R0, R1, R1, R0"),
        ("FFMA", "R3, R0, R0, R3"),
    )
    waits = warp_stalls.stalls(f, dict.fromkeys((0, 16, 32, 48), 1.0), load_cycles=500)
    assert waits == {0: 0, 16: 0, 32: 500 - 2, 48: 4 - 1}


@pytest.mark.parametrize("opcode, waits_for", [("LDG.E", warp_stalls.GUARD - 1), ("IADD3", 3)])
def test_a_guard_holds_an_access_longer_than_a_sum(opcode, waits_for) -> None:
    f = function(("ISETP.GE.AND", "P0, PT, R1, R2, PT"), (opcode, "R4, R5, R6, RZ"))
    f.instructions[1] = dataclasses.replace(f.instructions[1], guard="@P0")
    waits = warp_stalls.stalls(f, {0: 1.0, 16: 1.0}, load_cycles=500)
    assert waits[16] == waits_for


def test_a_warp_issues_the_next_mma_when_the_tensor_core_is_free() -> None:
    f = function(
        ("HMMA.1688.F32.TF32", "R4, R8, R12, R4"), ("HMMA.1688.F32.TF32", "R16, R8, R12, R16")
    )
    waits = warp_stalls.stalls(f, {0: 1.0, 16: 1.0}, load_cycles=500, mma_flops=2048 / 8)
    assert waits == {0: 0, 16: 8 - 1}


def test_the_next_iteration_waits_for_a_loops_results() -> None:
    f = function(("FFMA", "R0, R1, R1, R0"), ("BRA", "`(.L_1)", 0))
    waits = warp_stalls.stalls(f, {0: 10.0, 16: 10.0}, load_cycles=500)
    assert waits[16] == warp_stalls.BRANCH and waits[0] == 0  # the branch takes longer than the sum
    never = warp_stalls.stalls(f, {0: 10.0, 16: 0.0}, load_cycles=500)
    assert never[0] == 3 and 16 not in never


@pytest.mark.parametrize("customers", [1, 2, 5, 20])
def test_throughput_keeps_its_bounds(customers: int) -> None:
    rate = warp_work.throughput(customers, demand=10, think=90)
    assert rate <= min(1 / 10, customers / 100) + 1e-12
    assert rate >= customers / (100 + 10 * (customers - 1)) - 1e-12  # all in one queue


def test_throughput_of_one_and_of_very_many() -> None:
    assert warp_work.throughput(1, 10, 90) == pytest.approx(1 / 100)
    assert warp_work.throughput(1000, 10, 90) == pytest.approx(1 / 10)
    assert warp_work.throughput(0.5, 10, 90) == pytest.approx(1 / 200)
    one, between, two = (warp_work.throughput(n, 10, 90) for n in (1, 1.5, 2))
    assert between == pytest.approx((one + two) / 2)


# ---- with nvcc ------------------------------------------------------------------------------


def test_a_missing_nvdisasm_is_an_error_that_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(toolchain, "find", lambda name: None)
    with pytest.raises(BuildError, match="pip install -r requirements.txt"):
        disassembly.functions(b"", "", "x.cu")


@needs_tools
@pytest.mark.parametrize("arch, there", [("75", True), ("90a", True), ("90a", False)])
def test_real_disassembly_of_the_first_rung(arch: str, there: bool, tmp_path: Path) -> None:
    """The source may also be a text without a file."""
    path = catalog.find("01_direct")
    source = build.Source(path.read_text(), path.stem, path if there else None)
    made, log = cubin(source, arch, tmp_path)
    (f,) = disassembly.functions(made.read_bytes(), log, source.label)
    assert f.name == "conv2d_direct" and 16 <= f.registers <= 64
    mix = f.mix(f.hot_loop)
    assert mix["FFMA"] >= 1 and mix["LDG.32"] == 2 * mix["FFMA"]
    text = source.text.splitlines()
    loads = {text[i.line - 1] for i in f.instructions if i.kind == "LDG.32" and i.line}
    assert any("x_n[" in line for line in loads)
    assert sum(i.line is not None for i in f.instructions) > 0.9 * len(f.instructions)
