"""The time model: how often instructions run, what a warp waits for, how warps share an SM."""

import pytest

from convlab.machine.device import GPUS
from convlab.why import flow, latency, sass, work


def row(line: int, space: str, kind: str, requests: int, width: int) -> dict:
    return {"line": line, "space": space, "kind": kind, "array": "x", "requests": requests,
            "units": requests, "lanes": 32 * requests, "bytes": 32 * requests * width}  # fmt: skip


def chain(*rows: tuple[str, str, int | None], line: int = 1) -> list[sass.Instruction]:
    """Instructions of (opcode, operands, target), 16 bytes apart."""
    return [sass.Instruction(16 * n, op, rest, line, target)
            for n, (op, rest, target) in enumerate(rows)]  # fmt: skip


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
)  # fmt: skip
def test_registers_that_an_instruction_reads_and_writes(opcode, operands, reads, writes) -> None:
    found = latency.registers(sass.Instruction(0, opcode, operands))
    assert found[1] == writes and reads <= found[0]


def test_a_warp_waits_for_what_it_reads() -> None:
    body = chain(("LDG.E", "R1, desc[UR0][R2.64]", None), ("IADD3", "R5, R6, R7, RZ", None),
                 ("FFMA", "R0, R1, R1, R0", None), ("FFMA", "R3, R0, R0, R3", None))  # fmt: skip
    function = sass.Function("f", instructions=body)
    waits = latency.stalls(function, dict.fromkeys((0, 16, 32, 48), 1.0), of_load=500)
    assert waits == {0: 0, 16: 0, 32: 500 - 2, 48: 4 - 1}


def test_a_loops_results_are_waited_for_by_its_next_round() -> None:
    body = chain(("FFMA", "R0, R1, R1, R0", None), ("BRA", "`(.L_1)", 0))
    function = sass.Function("f", instructions=body)
    waits = latency.stalls(function, {0: 10.0, 16: 10.0}, of_load=500)
    assert waits[16] == latency.BRANCH and waits[0] == 0  # the branch takes longer than the sum
    never = latency.stalls(function, {0: 10.0, 16: 0.0}, of_load=500)
    assert never[0] == 3 and 16 not in never


@pytest.mark.parametrize("customers", [1, 2, 5, 20])
def test_throughput_keeps_its_bounds(customers: int) -> None:
    rate = work.throughput(customers, demand=10, think=90)
    assert rate <= min(1 / 10, customers / 100) + 1e-12
    assert rate >= customers / (100 + 10 * (customers - 1)) - 1e-12  # all in one queue


def test_throughput_of_one_and_of_very_many() -> None:
    assert work.throughput(1, 10, 90) == pytest.approx(1 / 100)
    assert work.throughput(1000, 10, 90) == pytest.approx(1 / 10)
    assert work.throughput(0.5, 10, 90) == pytest.approx(1 / 200)
    halves = work.throughput(1, 10, 90), work.throughput(1.5, 10, 90), work.throughput(2, 10, 90)
    assert halves[1] == pytest.approx((halves[0] + halves[2]) / 2)


@pytest.mark.parametrize("trips, main, copies", [(3, 0, (1, 1, 1)), (9, 2, (1, 0, 0)),
                                                 (4, 1, (0, 0, 0)), (7, 1, (1, 1, 1))])  # fmt: skip
def test_an_unrolled_loop_runs_whole_and_its_copies_the_rest(trips, main, copies) -> None:
    """A loop (line 1) holds one that nvcc unrolled by 4 (line 2), and 3 copies for the rest."""
    load = ("LDG.E", "R1, desc[UR0][R2.64]", None)
    rows = [("IADD3", "R2, R2, 0x1, RZ", None), ("BRA", "`(.L_9)", 16 * 8), load, load, load, load,
            ("IADD3", "R3, R3, 0x4, RZ", None), ("BRA", "`(.L_2)", 16 * 2),
            load, ("BRA", "`(.L_8)", 16 * 13), load, ("BRA", "`(.L_8)", 16 * 13), load,
            ("BRA", "`(.L_1)", 0)]  # fmt: skip
    lines = [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
    body = [
        sass.Instruction(16 * n, op, rest, line, target)
        for n, ((op, rest, target), line) in enumerate(zip(rows, lines, strict=True))
    ]
    function = sass.Function("f", instructions=body)
    counted = [row(2, "global", "load", 100 * trips, 4)]
    times = flow.executions(function, counted, {1: 32 * 100, 2: 32 * 100 * trips}, warps=1)
    assert times[0] == 100
    assert times[16 * 2] == times[16 * 6] == 100 * main
    assert tuple(times[16 * n] for n in (8, 10, 12)) == tuple(100 * c for c in copies)


def test_the_instance_of_a_template_is_told_by_what_was_counted() -> None:
    """Of two instances one reads 1 and the other 8 filters for each pixel; 8 were counted."""

    def instance(symbol: str, reads: int, threads: int) -> sass.Function:
        rows = [("LDS", "R1, [R2]", None)] + [("LDS.128", "R4, [R3]", None)] * reads
        rows += [("FFMA", "R9, R9, R4, R1", None)] * 8 + [("BRA", "`(.L_0)", 0)]
        body = [sass.Instruction(16 * n, op, rest, 1 if op == "LDS" else 2, target)
                for n, (op, rest, target) in enumerate(rows)]  # fmt: skip
        return sass.Function(symbol, instructions=body, max_threads=threads)

    one = instance("_Z4tileILi16ELi4EEvPKf", 1, 256)
    eight = instance("_Z4tileILi16ELi32EEvPKf", 8, 256)
    small = instance("_Z4tileILi8ELi32EEvPKf", 8, 64)
    counted = [row(1, "shared", "load", 100, 4), row(2, "shared", "load", 800, 16)]
    functions = [one, eight, small]
    found = flow.find_function(functions, "tile<size, k>", counted, (16, 16, 1))
    assert found is eight
    assert flow.find_function(functions, "tile<size, k>", counted, (8, 8, 1)) is small


@pytest.mark.parametrize(
    "opcode, slower",
    [
        ("HMMA.1688.F32.TF32", 1 / 0.65),
        ("HMMA.16816.F32.BF16", 0.5 / 0.65),
        ("HGMMA.64x128x8.F32.TF32", 1.0),
    ],
)
def test_tensor_core_instructions_are_in_the_mix_and_in_the_model(opcode, slower) -> None:
    body = chain((opcode, "R4, R8, R12, R4", None), ("BRA", "`(.L_0)", 0))
    function = sass.Function("f", instructions=body)
    kind = opcode.split(".")[0]
    assert function.mix(function.hot_loop) == {kind: 1, "branch": 1}
    done = work.Work.of(function, {0: 64.0, 16: 64.0}, [], GPUS["H200"], work.Hits(), warps=2)
    assert done.tensor_flops == pytest.approx(32 * body[0].tensor_flops * slower)
    assert done.mix == {kind: 32, "branch": 32}
