"""What nvcc made of a kernel, read from its log and from nvdisasm's text."""

from pathlib import Path

import pytest

from convlab.machine import toolchain
from convlab.run import build
from convlab.why import flow, sass
from convlab.words import catalog
from convlab.words.errors import BuildError

# Written by hand after nvdisasm -c -gi: a loop in a loop, a header's function inlined, a trap.
SAMPLE = """
	.section	.text._Z3mulILi4EEvPKfPf,"ax",@progbits
	.type           _Z3mulILi4EEvPKfPf,@function
.text._Z3mulILi4EEvPKfPf:
	//## File "/home/me/kernels/mul.cu", line 10
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/home/me/kernels/convlab.cuh", line 43 inlined at "/home/me/kernels/mul.cu", line 12
	//## File "/home/me/kernels/mul.cu", line 12
        /*0010*/                   IMAD R4, R4, 0x3, R8 ;
.L_x_2:
	//## File "/home/me/kernels/mul.cu", line 14
        /*0020*/              @!P1 LDG.E.128.CONSTANT R16, desc[UR10][R28.64] ;
        /*0030*/                   STS.128 [R14], R16 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_1:
	//## File "/home/me/kernels/mul.cu", line 17
        /*0050*/                   LDS.128 R20, [UR12+0x10] ;
        /*0060*/                   LDS R24, [R70] ;
	//## File "/home/me/kernels/mul.cu", line 18
        /*0070*/                   FFMA R0, R20, R24, R0 ;
        /*0080*/                   FFMA R2, R21, R24, R2 ;
        /*0090*/                   LDL R3, [R1] ;
        /*00a0*/              @!P0 BRA `(.L_x_1) ;
        /*00b0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00c0*/               @P2 BRA `(.L_x_2) ;
	//## File "/home/me/kernels/mul.cu", line 21
        /*00d0*/                   STG.E desc[UR10][R6.64], R0 ;
        /*00e0*/                   EXIT ;
.L_x_3:
        /*00f0*/                   BRA `(.L_x_3);
	.section	.text._Z5emptyv,"ax",@progbits
.text._Z5emptyv:
        /*0000*/                   EXIT ;
"""
LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3mulILi4EEvPKfPf' for 'sm_90a'
ptxas info    : Function properties for _Z3mulILi4EEvPKfPf
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 73 registers, used 1 barriers, 6272 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function '_Z5emptyv' for 'sm_90a'
ptxas info    : Function properties for _Z5emptyv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
"""


@pytest.fixture
def mul() -> sass.Function:
    """The sample's first function."""
    functions = sass.resources(LOG)
    code = sass.parse(SAMPLE, "kernels/mul.cu")
    function = functions["_Z3mulILi4EEvPKfPf"]
    function.instructions = code[function.symbol]
    return function


@pytest.mark.parametrize(
    "symbol, name",
    [
        ("_Z13conv2d_direct11ConvProblemPKf", "conv2d_direct"),
        ("_Z4tileILi16ELi32EEv11ConvProblem", "tile<16, 32>"),
        ("_Z4tileILin1ELb1EEvv", "tile<-1, 1>"),
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
    found = sass.resources(LOG)
    mul, empty = found.values()
    assert (mul.registers, mul.static_shared, mul.stack) == (73, 6272, 24)
    assert mul.spill_bytes == 16 + 20
    assert (empty.registers, empty.static_shared, empty.spill_bytes) == (4, 0, 0)


def test_each_instruction_has_its_line_in_the_kernels_file(mul: sass.Function) -> None:
    lines = {i.address: i.line for i in mul.instructions}
    assert lines[0x00] == 10
    assert lines[0x10] == 12  # of an inlined function of a header: where it was called
    assert (lines[0x20], lines[0x50], lines[0x90], lines[0xD0]) == (14, 17, 18, 21)


def test_loops_are_found_and_the_trap_is_none(mul: sass.Function) -> None:
    assert [(loop.start, loop.end) for loop in mul.loops] == [(0x20, 0xC0), (0x50, 0xA0)]


def test_mix_of_the_hot_loop(mul: sass.Function) -> None:
    assert mul.hot_loop == sass.Loop(0x50, 0xA0)
    assert mul.mix(mul.hot_loop) == {
        "FFMA": 2, "LDS.32": 1, "LDS.128": 1, "LDL.32": 1, "branch": 1,
    }  # fmt: skip
    assert mul.mix()["LDG.128"] == 1 and mul.mix()["barrier"] == 2


def test_a_loop_without_arithmetic_is_hot_only_if_no_other_has_any() -> None:
    branch = sass.Instruction(0x30, "BRA", "", target=0x10)
    copy = [sass.Instruction(0x10, "LDG.E", ""), sass.Instruction(0x20, "STG.E", ""), branch]
    function = sass.Function("copy", instructions=copy)
    assert function.hot_loop == sass.Loop(0x10, 0x30)
    assert sass.Function("none").hot_loop is None


@pytest.mark.parametrize(
    "opcode, kind",
    [
        ("LDG.E.CONSTANT", "LDG.32"), ("LDG.E.64", "LDG.64"), ("LDS.U.128", "LDS.128"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS"), ("HMMA.1688.F32.TF32", "HMMA"),
        ("HGMMA.64x128x8.F32.TF32", "HGMMA"), ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic"),
        ("ISETP.GE.AND", "integer"), ("ULOP3.LUT", "integer"), ("STL", "STL.32"),
        ("FFMA.FTZ", "FFMA"), ("FADD", "FADD FMUL"), ("S2R", "other"), ("LDSM.16.M88.4", "LDSM"),
    ],
)  # fmt: skip
def test_kinds_of_instructions(opcode: str, kind: str) -> None:
    assert sass.Instruction(0, opcode, "").kind == kind


def test_operations_of_tensor_core_instructions() -> None:
    assert sass.Instruction(0, "HMMA.1688.F32.TF32", "").tensor_flops == 2 * 16 * 8 * 8
    assert sass.Instruction(0, "HMMA.16816.F32", "").tensor_flops == 2 * 16 * 8 * 16
    group = 4 * sass.Instruction(0, "HGMMA.64x128x8.F32.TF32", "").tensor_flops
    assert group == 2 * 64 * 128 * 8
    assert sass.Instruction(0, "FFMA", "").tensor_flops == 0


def row(line: int, space: str, kind: str, requests: int, width: int) -> dict:
    return {"line": line, "space": space, "kind": kind, "array": "x", "requests": requests,
            "units": requests, "lanes": 32 * requests, "bytes": 32 * requests * width}  # fmt: skip


def test_how_often_instructions_run_follows_from_the_lines_requests(mul: sass.Function) -> None:
    lines = [
        row(14, "global", "load", 10, 16), row(14, "shared", "store", 10, 16),
        row(17, "shared", "load", 1000 + 4 * 1000, 4),  # of four scalar loads nvcc made one
        row(22, "global", "store", 1, 4),  # a statement that goes over two lines
    ]  # fmt: skip
    times = flow.executions(mul, lines, {}, warps=1)
    ffma = sum(times[i.address] for i in mul.instructions if i.kind == "FFMA")
    assert ffma == pytest.approx(2 * 1000)
    # the inner loop, the outer one's own five, what stands outside all loops
    ran = sum(times[i.address] for i in mul.instructions if i.opcode != "NOP")
    assert ran == pytest.approx(6 * 1000 + 5 * 10 + 5)


def test_a_launch_finds_its_function(mul: sass.Function) -> None:
    small, other = sass.Function("_Z3mulILi2EEvPKfPf"), sass.Function("_Z5emptyv")
    functions = [small, other, mul]
    assert flow.find_function(functions, "_Z3mulILi2EEvPKfPf") is small
    assert flow.find_function(functions, "void mul<2>(const float *, float *)") is small
    assert flow.find_function(functions, "mul") is mul  # the busiest of the instances
    assert flow.find_function(functions, "cublasSgemm") is None
    counted = [row(17, "shared", "load", 1000, 4)]
    assert flow.find_function(functions, "a_pointer", counted) is mul


def test_without_nvdisasm_it_says_what_to_do(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "find", lambda name: None)
    with pytest.raises(BuildError, match="pip install -r requirements.txt"):
        sass.disassemble(tmp_path / "none.cubin", "x.cu", [])


needs_tools = pytest.mark.skipif(
    toolchain.cuda() is None or toolchain.find("nvdisasm") is None, reason="needs nvcc and nvdisasm"
)


@needs_tools
@pytest.mark.parametrize("arch", ["75", "90a"])
def test_real_disassembly_of_the_first_rung(arch: str, tmp_path: Path) -> None:
    path = catalog.find("01_direct")
    source = build.Source(path.read_text(), path.stem, path)
    cubin, log = build.cubin(source, arch, tmp_path)
    (function,) = sass.resources(log).values()
    sass.disassemble(cubin, source.label, [function])
    assert function.name == "conv2d_direct" and 16 <= function.registers <= 64
    mix = function.mix(function.hot_loop)
    assert mix["FFMA"] >= 1 and mix["LDG.32"] == 2 * mix["FFMA"]
    text = source.text.splitlines()
    loads = {text[i.line - 1] for i in function.instructions if i.kind == "LDG.32" and i.line}
    assert any("x_n[" in line for line in loads)


@needs_tools
def test_a_source_without_a_file_has_lines_too(tmp_path: Path) -> None:
    text = catalog.find("01_direct").read_text()
    source = build.Source(text, "inline")
    cubin, log = build.cubin(source, "90a", tmp_path)
    functions = list(sass.resources(log).values())
    sass.disassemble(cubin, source.label, functions)
    known = [i.line is not None for i in functions[0].instructions]
    assert sum(known) > 0.9 * len(known)
