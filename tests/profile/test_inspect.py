"""Why a kernel is slow: occupancy, ncu's tables, the model, and the results of `inspect`."""

import html
import itertools
import json
import math
import os
import pickle
import re
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

import convlab
from convlab.__main__ import main
from convlab.core.errors import BuildError, LaunchError, ProblemError, UnsupportedError
from convlab.core.kernel import data, kernel
from convlab.core.machine import toolchain
from convlab.core.machine.device import find_gpu
from convlab.core.machine.gpus import GPUS, Gpu
from convlab.core.problem.format import FLOAT32
from convlab.core.show.plot import Chart
from convlab.profile import (
    access_figures,
    disassembly,
    ncu,
    roofline,
    sampling,
    sass,
    time_model,
)
from convlab.profile import forecast as forecasts
from convlab.profile.annotated_source import Listing
from convlab.profile.block_order import infer_order
from convlab.profile.inspection import Inspection
from convlab.profile.l2_reuse import BlockSequence
from convlab.profile.launched_functions import launched_functions
from convlab.profile.occupancy import occupancy
from tests.instruments import calibrate_model, ncu_agreement
from tests.suites import DEEP, FOLDER, needs_tools

SMALL = "N=1,C=4,H=18,W=34,K=8,R=3,S=3"

# ---- occupancy ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gpu, threads, registers, shared, blocks, limit",
    [
        ("H200", 256, 32, 0, 8, "warps and registers"),
        ("H200", 256, 33, 0, 6, "registers"),  # 40 per thread: units of 256 per warp
        ("H200", 32, 16, 0, 32, "blocks"),
        ("H200", 128, 32, 48 << 10, 4, "shared memory"),  # each takes 49 KiB
        ("H200", 96, 168, 0, 4, "registers"),  # 12 warps: 3 in each partition
        ("A100", 256, 32, 41 << 10, 3, "shared memory"),  # 42 KiB with the reserved 1 KiB
        ("A100", 512, 65, 0, 1, "registers"),  # 72 per thread: 28 warps per SM
        ("T4", 256, 32, 32 << 10, 2, "shared memory"),  # nothing is reserved there
        ("T4", 256, 32, 65 << 10, 0, "shared memory"),  # more than a block can have
        ("L4", 512, 32, 0, 3, "warps"),
    ],
)
def test_occupancy_by_nvidias_rules(gpu, threads, registers, shared, blocks, limit) -> None:
    held = occupancy(GPUS[gpu], threads, registers, shared)
    assert (held.blocks, held.limited_by) == (blocks, limit)
    assert held.fraction == pytest.approx(blocks * -(-threads // 32) / GPUS[gpu].limits.warps)


HOMES = [found.home for found in [toolchain.cuda()] if found]
HOMES += [Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"]
HEADERS = [path for home in HOMES if (path := home / "include" / "cuda_occupancy.h").exists()]
ASK = (FOLDER / "occupancy.cpp").read_text()


@pytest.mark.skipif(
    not HEADERS or toolchain.find("c++") is None,
    reason="needs the toolkit's cuda_occupancy.h and a C++ compiler",
)
def test_occupancy_agrees_with_nvidias_own_code(tmp_path) -> None:
    (tmp_path / "ask.cpp").write_text(ASK)
    command = [toolchain.find("c++"), "-w", f"-I{HEADERS[0].parent}", "ask.cpp", "-o", "ask"]
    subprocess.run(command, cwd=tmp_path, check=True)
    cases = list(
        itertools.product(
            GPUS.values(),
            (1, 32, 96, 128, 160, 256, 384, 512, 1024),
            (16, 24, 32, 33, 40, 64, 80, 128, 168, 255),
            (0, 1, 6272, 16 << 10, 20001, 48 << 10, 64 << 10),
        )
    )
    asked = "\n".join(
        f"{gpu.sm} {gpu.limits.threads} {gpu.limits.registers} {gpu.limits.shared_bytes} "
        f"{gpu.limits.shared_optin_bytes} {gpu.limits.reserved_bytes} {t} {r} {s}"
        for gpu, t, r, s in cases
    )
    ran = subprocess.run(
        [tmp_path / "ask"], input=asked, capture_output=True, text=True, check=True
    )
    both = zip(cases, map(int, ran.stdout.split()), strict=True)
    different = [(*case, its) for case, its in both if occupancy(*case).blocks != its]
    assert not different, different[:5]


@pytest.mark.parametrize("threads, registers", [(0, 32), (1025, 32), (128, 256)])
def test_impossible_blocks_are_errors(threads: int, registers: int) -> None:
    with pytest.raises(ProblemError):
        occupancy(GPUS["H200"], threads, registers)


@pytest.mark.parametrize("name", list(GPUS))
def test_a_gpus_clock_fits_its_datasheet(name: str) -> None:
    gpu = GPUS[name]
    rate = 2 * gpu.limits.fp32_lanes * gpu.sms * gpu.ghz / 1e3
    assert rate == pytest.approx(gpu.datasheet.fp32_tflops, rel=0.01)
    assert gpu.l2_bytes >> 20 in {"H200": [60]}.get(name, range(100))  # as its driver says


def test_gpus_by_name() -> None:
    assert find_gpu("RTX 4090") is GPUS["RTX 4090"]
    with pytest.raises(ProblemError, match="T4, A100, L4.*did you mean H200"):
        find_gpu("H20")


# ---- ncu ------------------------------------------------------------------------------------

# Written by hand in the form of ncu's raw page. The order of the columns is arbitrary, and one
# number is missing.
NCU = (FOLDER / "ncu.csv").read_text()
FORBIDDEN = (
    "==PROF== Connected to process 12\n==ERROR== ERR_NVGPUCTRPERM - The user does not have "
    "permission to access NVIDIA GPU Performance Counters on the target device 0.\n"
)


def test_ncus_table_is_read_by_function_and_summed() -> None:
    found = ncu.read_csv(NCU)
    assert list(found["function"]) == ["im2col", "gemm<8, 4>"]
    assert list(found["grid"]) == ["(4, 16, 1)", "(2, 8, 1)"]
    totals = ncu.totals(found)
    assert totals["global_load_requests"] == 18432
    assert totals["nanoseconds"] == pytest.approx(25600.5)
    assert found["dram_read_bytes"][0] == 294912 and math.isnan(found["dram_read_bytes"][1])
    assert ncu.refusal(NCU) is None
    assert ncu.read_csv("==PROF== Connected\n==WARNING== No kernels were profiled.\n").empty
    # a caller can omit a library's kernels
    own = ncu_agreement.only(found, ["gemm"])
    assert list(own["function"]) == ["gemm<8, 4>"]
    assert ncu.totals(own)["global_load_requests"] == 13824
    # A mark follows each of several calls, also one that failed. The last call did not end.
    marked = NCU.replace("im2col(", "at::cuda::<unnamed>::spin_kernel(")  # ncu's name of the mark
    mark = ncu.read_csv(marked)[:1]
    assert list(mark["function"]) == ["at::cuda::spin_kernel"]
    all_of_them = pd.concat([found, mark, mark, found[1:], mark, found], ignore_index=True)
    parts = ncu.split(all_of_them, 4)
    assert [len(part) for part in parts] == [2, 0, 1, 0] and parts[2].equals(
        found[1:].reset_index(drop=True)
    )
    some = {
        "ffma": 10.0,
        "fadd": 3.0,
        "dram_read_bytes": 5.0,
        "dram_write_bytes": 2.0,
        "shared_load_wavefronts": 4.0,
        "shared_store_wavefronts": 1.0,
    }
    named = ncu.totals(pd.DataFrame([some]))
    assert (named["flops"], named["dram_bytes"], named["shared_wavefronts"]) == (23, 7, 5)


@pytest.mark.parametrize(
    "output, says",
    [
        (FORBIDDEN, "run as root, or start the container with --cap-add=SYS_ADMIN"),
        ("==ERROR== Failed to find metric foo__bar.sum", "ncu failed: Failed to find metric foo"),
        ("==ERROR== The application returned an error code (1).", "error code"),
    ],
)
def test_ncus_errors_are_one_line_with_what_to_do(output: str, says: str) -> None:
    line = ncu.refusal(output)
    assert says in line and "\n" not in line


def test_a_missing_ncu_is_an_error_that_says_where_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(toolchain, "find", lambda name: None)
    with pytest.raises(LaunchError, match="CUDA toolkit"):
        ncu.profile_each([(convlab.load("01_direct", engine="sim"), convlab.problem(SMALL))])


def test_ncu_runs_a_process_that_gets_the_pickled_kernel(monkeypatch) -> None:
    kernel = convlab.load("03@TILE=8", engine="sim")
    problem = convlab.problem(SMALL)

    def run(command, limit, environment) -> subprocess.CompletedProcess:
        ((handed, on),), _ = pickle.loads(Path(command[-1]).read_bytes())
        assert (handed.name, handed.source, handed.defines) == (
            kernel.name,
            kernel.source,
            {"TILE": 8},
        )
        assert on == problem and command[-3:-1] == ["-m", "convlab.profile.ncu"]
        return subprocess.CompletedProcess(command, 0, NCU, "")

    monkeypatch.setattr(toolchain, "find", lambda name: Path(name))
    monkeypatch.setattr(ncu.child, "run", run)
    (counted,) = ncu.profile_each([(kernel, problem)])
    assert len(counted) == 2


# ---- the model ------------------------------------------------------------------------------


def test_a_large_problem_is_sampled(monkeypatch) -> None:
    monkeypatch.setattr(sampling, "MACS", 5_000_000)
    kernel = convlab.load("03_smem_tile", engine="sim")
    problem = convlab.problem("wide")
    seen, again = (sampling.count(kernel, problem) for _ in range(2))
    assert 5 <= seen.sampling["sampled"] < seen.sampling["blocks"] / 10
    assert seen.counters["global_store_sectors"] >= problem.gemm_m * problem.K / 8
    shared = ("launch_sectors", "split_sectors")  # unknown in a sample: NaN
    keys = [key for key in seen.counters if key not in ("seconds", *shared)]
    assert all(again.counters[key] == seen.counters[key] for key in keys)
    lowered = sampling.count(convlab.load("02_im2col_gemm", engine="sim"), problem)
    assert lowered.sampling["sampled"] >= len(lowered.launches) * 2 > 2
    assert sampling.count(kernel, convlab.problem(SMALL)).sampling is None


def counted(problem, scale: float) -> SimpleNamespace:
    """Return invented counts: loads proportional to channels, stores to outputs."""
    loads = problem.macs * scale / 32
    stores = problem.gemm_m * problem.K / 32

    def row(line: int, kind: str, array: str, requests: float) -> dict:
        return {
            "line": line,
            "space": "global",
            "kind": kind,
            "array": array,
            "requests": requests,
            "units": 4 * requests,
            "ideal_units": 4 * requests,
            "lanes": 32 * requests,
            "bytes": 128 * requests,
        }

    blocks = -(-problem.gemm_m * problem.K // 256)
    launch = {"kernel": "f", "grid": (blocks, 1, 1), "block": (256, 1, 1), "dynamic_bytes": 0}
    lines = [row(3, "load", "x", loads), row(5, "store", "y", stores)]
    return SimpleNamespace(
        counters={"global_load_requests": loads},
        lines=lines,
        launches=[launch],
        executed={},
        reaches=[],
    )


def predicted(problem, registers: int = 32, scale: float = 1) -> time_model.Prediction:
    body = [
        sass.Instruction(0x10, "LDG.E", "", 3),
        sass.Instruction(0x20, "FFMA", "", 4),
        sass.Instruction(0x30, "BRA", "", 3, target=0x10),
        sass.Instruction(0x40, "STG.E", "", 5),
    ]
    function = sass.Function("f", registers=registers, instructions=body)
    counts = counted(problem, scale)
    called = launched_functions([function], counts.lines, counts.launches)
    return time_model.predict(problem, GPUS["H200"], called, counts)


def test_the_model_counts_what_warps_execute() -> None:
    wide = convlab.problem("wide")
    found = predicted(wide)
    (part,) = found.parts
    assert part.mix["FFMA"] == pytest.approx(wide.macs / 32, rel=1e-6)
    assert part.mix["LDG.32"] == part.mix["branch"] == part.mix["FFMA"]
    assert part.looped == pytest.approx(1, abs=0.01)
    stated = sum(FLOAT32.bytes(wide)[name] for name in ("x", "y"))
    assert found.dram.low == pytest.approx(stated, rel=0.02) and found.dram.bytes is None
    assert "the sample lacks some of the arrays that it reads" in found.dram.note
    assert part.limited_by in part.terms and "ms; overlapping parts: " in str(part)
    # fewer warps hide less latency, and more instructions take longer
    assert predicted(wide, registers=255).ms > 1.5 * found.ms
    assert predicted(wide, scale=3).ms == pytest.approx(3 * found.ms, rel=0.2)


# ---- DRAM -----------------------------------------------------------------------------------


@needs_tools
def test_predicted_bytes_of_dram_are_those_that_ncu_counted() -> None:
    """The problems differ by six powers of ten, and one kernel is not a rung."""
    document = json.loads(calibrate_model.MEASURED.read_text())
    document["counters"] = document["counters"][:5] + document["counters"][5::60]  # seconds each
    rows = calibrate_model.dram_rows(document)
    known = {
        (row["kernel"], row["problem"]): row["predicted"] / row["dram_bytes"]
        for row in rows
        if row["predicted"] is not None
    }
    assert len(known) >= 5 and ("01_direct", "square") in known
    assert all(1 / 1.5 < ratio < 1.5 for ratio in known.values()), known
    text = calibrate_model.dram_table(rows, "here")
    assert f"{len(known)} of {len(known)} within a factor of 1.5" in text


BLOCKS = {  # for each rung: a problem that is sampled, and the order of the blocks
    "01": ("N=2,C=4,H=40,W=72,K=12,R=3,S=3", "256 ngkpq"),
    "02": ("N=2,C=8,H=51,W=50,K=96,R=3,S=3", "64 k, then 128 npq"),
    "03": (
        "N=2,C=4,H=50,W=60,K=96,R=3,S=3,groups=2,padding=1",
        "32 k, then 1 g, then 16 q, then 16 p, then 1 n",
    ),
    "06": ("N=2,C=12,H=70,W=300,K=12,R=3,S=3,groups=12", "256 q, then 32 p, then 1 g, then 1 n"),
}


def blocks_of(name: str) -> BlockSequence:
    """Return the block sequence of a rung's last function, inferred from a sample."""
    kernel = convlab.load(name, engine="sim", workspace_limit=1 << 20)  # two chunks for 02
    problem = convlab.problem(BLOCKS[name][0])
    trace = sampling.simulate(kernel, problem, sample=24)
    numbers = [
        i
        for i, entry in enumerate(trace.launches)
        if entry["kernel"] == trace.launches[-1]["kernel"]
    ]
    assert len(numbers) == (2 if name == "02" else 1)
    reaches = [row for row in trace.reaches if row["launch"] in numbers]
    of_y = [row for row in reaches if row["array"] == "y"]
    order = infer_order(of_y, problem, FLOAT32.y)
    assert str(order) == BLOCKS[name][1]
    blocks = math.prod(trace.launches[numbers[0]]["grid"])
    arrays = {row["array"] for row in reaches}
    made = BlockSequence(problem, FLOAT32, order, arrays, 1e6, blocks)
    assert made.agrees(reaches)
    # an order is rejected if it does not predict the part of a block
    assert infer_order([*of_y[:-1], of_y[-1] | {"block": 0}], problem, FLOAT32.y) is None
    return made


@pytest.mark.parametrize("name", BLOCKS)
def test_the_model_of_the_l2_agrees_with_a_simulated_cache(name: str) -> None:
    """The cache evicts the least recently used data, block by block."""
    blocks = blocks_of(name)
    touched = list(blocks.touches(np.arange(blocks.blocks)))
    parts = {
        (int(b), t.array, int(part), t.bytes)
        for t in touched
        for part, b in zip(t.parts, t.blocks, strict=True)
    }
    sizes = {key[1:3]: key[3] for key in parts}
    whole = sum(sizes.values())
    for share in (0.12, 0.25, 1.0):
        cache = dict.fromkeys(())
        held = 0.0
        missed = 0.0
        for block, array, part, size in sorted(parts):
            if cache.pop((array, part), None) is None:
                missed = missed + size * (array != "y")
                held = held + size
            cache[array, part] = block
            while held > share * whole:
                held -= sizes[next(iter(cache))]
                del cache[next(iter(cache))]
        (fetched,) = blocks.fetched_bytes([share * whole], wave=1)
        assert fetched == pytest.approx(missed, rel=0.1), share


@needs_tools
def test_unknown_dram_traffic_is_not_predicted(monkeypatch) -> None:
    monkeypatch.setattr(sampling, "MACS", 240_000)  # about 24 blocks
    source = convlab.load("01_direct").source.replace(
        "int64_t(blockIdx.x) * kThreads", "int64_t(blockIdx.x * 37u % gridDim.x) * kThreads"
    )
    tiny = replace(GPUS["H200"], l2_bytes=400_000)
    mixed = convlab.compile(source, name="mixed", engine="sim")
    found, plain = (
        convlab.inspect(k, BLOCKS["01"][0], gpu=tiny, engine="sim") for k in (mixed, "01_direct")
    )
    assert found.predicted.dram.bytes is found.dram_bytes is None and plain.predicted.dram.bytes
    assert "compute y in an order that the model does not support" in found.predicted.dram.note
    assert "order 256 ngkpq" in " ".join(str(plain).split())
    assert found.to_dict()["predicted"]["dram"]["low"] > 0
    assert found.plot() and math.isnan(
        found.frame.set_index("quantity")["predicted"]["DRAM traffic"]
    )


# ---- inspect --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Inspection:
    return convlab.inspect("03_smem_tile", SMALL, gpu="A100", engine="sim")


def test_inspect_shows_the_simulators_counts(found) -> None:
    table = found.frame.set_index("quantity")
    launch = convlab.load("03", engine="sim").prepare(found.problem, *data.inputs(found.problem))
    launch()
    assert table.loc["global stores", "simulated"] == launch.counters["global_store_requests"]
    assert table.loc["wavefronts per request", "simulated"] >= 1
    text = str(found)
    assert "03_smem_tile" in text and "A100" in text and "sectors per load" in text
    assert max(map(len, text.splitlines())) < 160


@needs_tools
def test_traffic_below_the_theoretical_minimum_is_explained(found) -> None:
    assert (
        found.predicted.dram.bytes > found.problem.min_bytes
        and "below the theoretical minimum" not in str(found)
    )
    kept = convlab.inspect("01", SMALL.replace("K=8", "K=64"), gpu="H200", engine="sim")
    assert kept.predicted.dram.bytes < kept.problem.min_bytes  # all of y stays in the L2
    assert "the end of y stays in the L2" in kept.details[0]


def test_inspect_renders_in_a_notebook_as_json_and_as_a_figure(found, tmp_path) -> None:
    page = found._repr_html_()
    assert "<table" in page and "sectors per load" in page
    assert "limited by" in page and "dearest" not in page and "r_acc[k + 0]" in page
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["kernel"] == "03_smem_tile" and document["measured"] is None
    chart = found.plot(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 10_000
    assert "flop" in chart.axes[0].get_xlabel()


@needs_tools
def test_the_verdict_names_the_limit_and_the_model(found) -> None:
    assert re.match(r"predicted [\d.]+ ms on A100, limited by ", found.verdict)
    assert found.verdict in " ".join(html.unescape(found._repr_html_()).split())
    assert sum(found.issued.values()) == pytest.approx(1, abs=0.1)
    costly = found.costly(3)
    assert len(costly) == 3 and costly[["issued", "sectors", "wavefronts"]].max(axis=None) <= 1
    assert all(found.static["registers"].between(16, 255))
    (busiest,) = found.static["occupancy"]
    assert 0 < busiest <= 1
    hot = found.sass[(found.sass["where"] == "hot loop") & (found.sass["kind"] == "FFMA")]
    assert (hot["per_ffma"] == 1).all() and len(hot)


@needs_tools
@pytest.mark.parametrize(
    ("rung", "function", "shared", "blocks", "limit"),
    [
        ("02", "gemm_nchw", 6272, 4, "registers"),
        ("04", "conv2d_implicit_gemm", 6272, 4, "registers"),
        ("05", "conv2d_async_gemm<128, 32, 4, 1>", 21504, 5, "registers"),
        ("10", "conv2d_mma", 43264, 3, "registers"),
        # Its shared memory is dynamic, about which ptxas says nothing.
        ("03", "conv2d_smem_tile", 0, 3, "registers"),
    ],
)
def test_static_shared_memory_is_counted_once(rung, function, shared, blocks, limit) -> None:
    """The bytes are those that `nvcc -Xptxas -v` prints for an H200."""
    code = convlab.load(rung, engine="sim")
    output = disassembly.nvcc.compiled(code.file, GPUS["H200"].arch, code.defines)
    printed = re.findall(r"(\d+) bytes smem", output.log)
    found = convlab.inspect(rung, "N1 C16 H24 W24 K64 R3 S3", gpu="H200")
    row = found.static.set_index("function").loc[function]
    assert row["static_shared"] == shared and (str(shared) in printed or not shared)
    assert (row["dynamic_shared"] == 0) == bool(shared)
    assert (row["blocks_per_sm"], row["limited_by"]) == (blocks, limit)
    total = int(row["static_shared"] + row["dynamic_shared"])
    assert f"{total:,}" in found.tables[1].cells["shared B"]


def test_missing_information_is_a_note_of_one_line(monkeypatch) -> None:
    def none(*arguments, **options):
        raise BuildError("no nvcc: `pip install -r requirements.txt` brings one")

    with monkeypatch.context() as patch:
        patch.setattr(disassembly, "compiled", none)
        found = convlab.inspect("01_direct", SMALL)
    assert any(note.startswith("no registers") and "pip install" in note for note in found.notes)
    assert any(note.startswith("no prediction") for note in found.notes)
    assert not any("\n" in note for note in found.notes)
    assert "sectors per load" in str(found) and found.verdict == "no verdict: see the notes"
    # a kernel with an error is still compiled, and the error is a note of one line
    source = convlab.load("01_direct").source.replace("g_y[i] =", "g_y[i + 4096] =")
    found = convlab.inspect(kernel.compile(source, name="wild", engine="sim"), SMALL)
    assert any(note.startswith("not simulated") and "out of bounds" in note for note in found.notes)
    assert found.measured is None and found.predicted is None
    assert found.verdict == "it did not run: see the notes"
    assert "wild" in str(found) and found.plot()


def test_without_the_simulator_there_is_still_the_machine_code(monkeypatch) -> None:
    """The room ``sim`` is not imported, and its absence is a note."""
    simulated = convlab.load("01", engine="sim")
    monkeypatch.setattr(sampling, "installed", lambda: False)
    for name in ("launch", "simulation"):
        monkeypatch.setitem(sys.modules, f"convlab.sim.{name}", None)
    found = convlab.inspect("03_smem_tile@TILE=8", SMALL, gpu="A100")
    assert "not counted: the simulator room is not installed" in found.notes
    assert any(note.startswith("no prediction") for note in found.notes)
    assert found.kernel == "03_smem_tile@TILE=8" and found.predicted is None
    assert "03_smem_tile" in str(found) and found.plot() and found.costly().empty
    with pytest.raises(LaunchError, match="not installed"):
        sampling.count(simulated, convlab.problem(SMALL))
    if any(note.startswith("no registers") for note in found.notes):
        pytest.skip("needs nvcc and nvdisasm")
    assert list(found.static["function"]) == ["conv2d_smem_tile"] and len(found.sass)


def test_blocks_that_take_too_long_to_sample_are_a_note_within_the_kernels_time_limit(
    monkeypatch,
) -> None:
    monkeypatch.setattr(sampling, "MACS", 1)
    source = convlab.load("01_direct").source.replace("g_y[i] =", "while (true) g_y[i] =")
    slow = kernel.compile(source, name="slow", engine="sim", time_limit=0.5)
    found = convlab.inspect(slow, SMALL, engine="sim")
    expected = "not simulated: a sample of 8 blocks of each launch of slow takes the simulator too"
    assert found.notes[0].startswith(expected)
    assert "persistent blocks" in found.notes[0] and not found.ok and not found.findings
    assert slow.on("sim").time_limit == 0.5


def test_the_command_line(tmp_path, capfd) -> None:
    plot = tmp_path / "why.png"
    command = ["inspect", "01_direct", "--problem", SMALL, "--gpu", "L4", "--plot", str(plot)]
    assert main([*command, "--listing"]) == 0
    text = capfd.readouterr().out
    assert "sectors per load" in text and str(plot) in text and "conv2d_direct(" in text
    assert main([*command, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["plot"] == str(plot) and plot.exists()
    (document,) = document["inspections"]
    assert document["gpu"] == "L4"
    assert main(["inspect", "01_direct", "--gpu", "Voodoo"]) == 2


def test_a_set_of_problems_has_a_summary_and_a_row_for_each(tmp_path) -> None:
    strided = "N=1,C=4,H=18,W=34,K=8,R=3,S=3,stride=2"
    far = convlab.problem("N=1,C=4,H=18,W=34,K=8,R=5,S=5")
    source = convlab.load("01_direct").source.replace("supports: everything", "supports: R == 3")
    mine = kernel.compile(source, name="three", engine="sim")
    several = convlab.inspect(mine, [SMALL, strided, far], engine="sim", gpu="A100")
    assert [one.problem for one in several] == [*map(convlab.problem, (SMALL, strided))]
    assert "three on 2 problems" in several.sentence
    text = str(several)
    assert str(several[1].problem) in text
    assert "1 of 3 problems are not supported; --verbose lists them" in text
    assert "R5 S5" in several.text(True) and "here R = 5" in several.text(True)
    document = json.loads(json.dumps(several.to_dict(), allow_nan=False))
    assert len(document["results"]) == 2 and several.plot(tmp_path / "all.png")
    with pytest.raises(UnsupportedError, match="R == 3"):
        convlab.inspect(mine, [far], engine="sim")


def test_the_listing_is_of_the_file_that_has_the_code(tmp_path: Path) -> None:
    mine = tmp_path / "mine.cu"
    mine.write_text('// title: THREADS are few\n#define THREADS 64\n#include "01_direct.cu"\n')
    found = convlab.inspect(mine, SMALL, engine="sim")
    assert "r_acc += " in str(found.listing()) and "01_direct.cu" not in str(found.tables[-1])
    assert any("r_acc += " in text for text in found.costly()["source"])


def test_a_function_of_a_header_has_the_headers_lines() -> None:
    """im2col is in im2col.cuh, so its lines are not lines of 02b with the same numbers."""
    found = convlab.inspect("02b_im2col_cublas", SMALL, gpu="L4", engine="sim")
    rows = found.lines[(found.lines["array"] == "x") & (found.lines["kind"] == "load")]
    assert set(rows["file"]) == {"im2col.cuh"}
    assert set(found.lines["file"]) == {"im2col.cuh", "02b_im2col_cublas.cu"}
    costly = found.costly(50).set_index("line")
    places = [f"im2col.cuh:{line}" for line in rows["line"]]
    assert (costly.loc[places, "sectors"] > 0.1).all()
    listed = {row["line"] for row in found.listing().rows}
    assert listed == set(found.lines[found.lines["file"] == found.file]["line"])
    if found.predicted is None:
        pytest.skip("needs nvcc and nvdisasm")
    assert [part.name for part in found.predicted.parts] == ["im2col", "to_nchw", "cuBLAS"]
    assert (costly.loc[places, "issued"] > 0).all()


@needs_tools
def test_nvcc_runs_once_for_a_kernel(monkeypatch, tmp_path) -> None:
    nvcc = Mock(side_effect=disassembly.nvcc.builds.device_code)
    monkeypatch.setattr(disassembly.nvcc.builds, "device_code", nvcc)
    text = f"{convlab.load('01_direct').source}// {tmp_path}\n"  # a new text, so that nvcc must compile it
    mine = kernel.compile(text, name="mine", engine="sim")
    first = disassembly.compiled(mine, GPUS["L4"])
    convlab.inspect(mine, SMALL, gpu="L4", engine="sim")
    disassembly.functions.cache_clear()  # as in a new process
    assert disassembly.compiled(mine, GPUS["L4"]) == first and first[0].instructions
    assert nvcc.call_count == 1
    disassembly.compiled(mine.tuned("THREADS=128"), GPUS["L4"])
    assert convlab.check(mine, SMALL).ok  # check compiles it for an H200, the simulated GPU
    disassembly.compiled(mine, GPUS["H200"])
    assert nvcc.call_count == 3


@needs_tools
def test_executed_instructions_depend_on_the_problems_loop_counts() -> None:
    """nvcc unrolls 01's loop over s by 4; with a filter of 3 columns that loop never runs."""
    narrow, wide = (
        convlab.inspect("01_direct", f"N=1,C=4,H=18,W=34,K=8,R=3,S={s}", gpu="L4", engine="sim")
        for s in (3, 8)
    )
    ran = narrow.sass[narrow.sass["where"] == "executed"].set_index("kind")
    assert ran.loc["FFMA", "count"] == pytest.approx(narrow.problem.macs / 32, rel=0.1)
    assert ran.loc["LDG.32", "per_ffma"] == pytest.approx(2, rel=0.05)
    loop = narrow.sass[narrow.sass["where"] == "hot loop"].set_index("kind")
    assert ran.loc["integer", "per_ffma"] > 1.5 * loop.loc["integer", "per_ffma"]
    assert narrow.predicted.parts[0].looped < 0.05 < 0.5 < wide.predicted.parts[0].looped
    assert "executes for each FFMA" in str(narrow)
    tensor = convlab.inspect("10", SMALL, gpu="H200", engine="sim")
    assert "conv2d_mma executes for each HMMA" in str(tensor)


@needs_tools
def test_the_model_uses_the_instance_that_was_launched() -> None:
    found = convlab.inspect("05_async_gemm", "N=1,C=8,H=34,W=34,K=64,R=3,S=3", engine="sim")
    (part,) = found.predicted.parts
    assert part.name == "conv2d_async_gemm<128, 32, 4, 1>"
    # few threads of a block execute one of the loop's lines
    assert part.mix["FFMA"] == pytest.approx(80 / 72 * found.problem.macs / 32, rel=0.01)


def test_inspect_rejects_libraries_and_unknown_gpus() -> None:
    with pytest.raises(ProblemError, match="library"):
        convlab.inspect("cudnn:fp32", SMALL)
    with pytest.raises(ProblemError, match="no GPU"):
        convlab.inspect("01_direct", SMALL, gpu="Voodoo")
    source = convlab.load("01_direct").source.replace("supports: everything", "supports: R == 5")
    with pytest.raises(UnsupportedError):
        convlab.inspect(kernel.compile(source, name="five", engine="sim"), SMALL)


ROWS = [
    {
        "line": 2,
        "space": "global",
        "kind": "load",
        "array": "x",
        "requests": 100,
        "units": 500,
        "ideal_units": 400,
        "lanes": 3200,
        "bytes": 12800,
        "share": 0.5,
    },
    {
        "line": 2,
        "space": "shared",
        "kind": "store",
        "array": "s",
        "requests": 100,
        "units": 800,
        "ideal_units": 100,
        "lanes": 3200,
        "bytes": 12800,
        "share": 1.0,
    },
    {
        "line": 4,
        "space": "global",
        "kind": "store",
        "array": "y",
        "requests": 125,
        "units": 500,
        "ideal_units": 500,
        "lanes": 4000,
        "bytes": 16000,
        "share": 0.5,
    },
]
SOURCE = ["void f() {", "    s[i] = x[i];", "    // quiet", "    y[i] = s[0] < 1;", "}"]


@pytest.fixture
def listing() -> Listing:
    return Listing("f", SOURCE, ROWS, {2: ["bank conflict: 8 lanes meet"]}, {2: 0.12})


def test_the_listing_in_a_terminal(listing: Listing) -> None:
    lines = str(listing).splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith("s[i] = x[i];"))
    assert "5.00 sectors" in lines[at] and "50%" in lines[at] and " 12.0% " in lines[at]
    assert "8.00 wavefronts" in lines[at + 1] and "100%" in lines[at + 1]
    assert "bank conflict: 8 lanes meet" in lines[at + 2]
    assert not any("// quiet" in line for line in lines)


def test_the_listing_in_a_notebook(listing: Listing) -> None:
    page = listing._repr_html_()
    rows = [re.findall(r"<td.*?</td>", row) for row in page.split("<tr>")[1:]]
    bare = [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows]
    # the source is the first column, and indented even without styles; it may wrap
    assert bare[2][0].replace("\xa0", " ") == "   2      s[i] = x[i];"
    assert "\xa0" in bare[2][0] and "white-space:pre" not in page
    assert all(sum(map(len, row[1:])) <= 60 for row in bare)
    assert "5.00 sectors" in page and "8.00 wavefronts" in page
    assert "s[0] &lt; 1" in page and "// quiet" in page and "8 lanes meet" in page
    assert (
        "background:#" not in page and "color:#222" not in page
    )  # colours are those of the theme, light or dark


@needs_tools
def test_the_ladder_is_predicted_in_its_order_and_within_a_factor(monkeypatch) -> None:
    monkeypatch.setattr(sampling, "MACS", 5_000_000)
    document = json.loads(calibrate_model.MEASURED.read_text())
    on_square = [row for row in document["times"] if row["problem"] == "square"]
    measured = {
        row["kernel"]: row["measured_ms"]
        for row in sorted(on_square, key=lambda row: row["measured_ms"])
        if "@" not in row["kernel"]
    }
    measured = dict(list(measured.items())[:: 1 if DEEP else 2])
    times = {
        name: convlab.inspect(name, "square", gpu="H200", engine="sim").predicted.ms
        for name in measured
    }
    assert sorted(times, key=times.get) == list(measured)
    assert all(1 / 1.5 < times[name] / measured[name] < 1.5 for name in measured), times


@needs_tools
def test_a_pipeline_of_persistent_blocks_is_counted_on_a_smaller_problem_and_predicted() -> None:
    problem = convlab.problem("rect")
    (measured,) = (
        row["time_ms"]
        for row in json.loads(calibrate_model.RUNGS.read_text())["rows"]
        if (row["kernel"], row["problem"]) == ("11_wgmma_tf32", "rect")
    )
    kernel = convlab.load("11_wgmma_tf32", engine="sim")
    counts = sampling.count(kernel, problem, 5_000_000)
    assert isinstance(counts, sampling.Multiplied) and counts.smaller.macs < problem.macs / 100
    # Each product once, and those of the tile's padding.
    assert problem.flops < counts.counters["tensor_flops"] < 1.1 * problem.flops
    assert math.prod(counts.launches[-1]["grid"]) == 132
    gpu = find_gpu("H200")
    predicted = forecasts.predicted(kernel, problem, gpu, forecasts.counted(kernel, problem, gpu))
    assert predicted.parts[-1].pipelined and predicted.group == "wgmma"
    assert 1 / 1.6 < predicted.ms / measured < 1.6


# ---- figures of plain data ------------------------------------------------------------------


@pytest.mark.parametrize(
    "addresses, width, space, says",
    [
        (range(20, 148, 4), 4, "global", "5 sectors, 160 bytes moved for 128 requested"),
        ([0, 64], 16, "global", "2 sectors, 64 bytes moved for 32 requested"),
        (range(0, 256, 8), 4, "shared", "2 wavefronts, minimum 1"),
        ([0] * 32, 4, "shared", "1 wavefront, minimum 1"),
        (range(0, 512, 16), 16, "shared", "4 wavefronts, minimum 4"),
        ([0] * 32, 16, "shared", "2 wavefronts, minimum 2"),  # half a warp at a time
    ],
    ids=["shifted", "two lanes", "every other", "broadcast", "float4", "wide broadcast"],
)
def test_the_summary_of_a_map(addresses, width: int, space: str, says: str) -> None:
    """test_accesses.py tests the maps of a kernel."""
    request = access_figures.Request(dict(enumerate(addresses)), width, space)
    assert access_figures.draw_requests([request]).axes[0].get_title() == f"load of {space}: {says}"


def test_a_roofline_of_plain_numbers() -> None:
    points = [roofline.Point("mine", 50, 1e13), roofline.Point("each byte once", 60, 0, "floor")]
    axes = Chart(6, 4).subplots()
    roofline.draw_roofline(axes, points, 4e12, {"fp32": 5e13, "TF32": 3e14})
    assert axes.get_xlim()[0] < 12.5 < axes.get_xlim()[1]
    assert [text.get_text() for text in axes.texts][-1] == "each byte once"


# ---- on a GPU -------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_there_is_a_time_and_counters_or_the_reason_why_not() -> None:
    found = convlab.inspect("03_smem_tile", "N=4,C=16,H=66,W=66,K=32,R=3,S=3")
    assert found.measured["ms"] > 0
    assert isinstance(found.gpu, Gpu)
    refused = [note for note in found.notes if note.startswith("hardware counters")]
    assert len(refused) == ("counters" not in found.measured)
    if not refused:
        table = found.frame.set_index("quantity")
        stores = table.loc["global stores"]
        assert stores["measured"] == pytest.approx(stores["simulated"], rel=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="DRAM's counters count what all processes do: run it alone, with -n 0",
)
def test_on_a_gpu_the_dram_traffic_is_as_predicted_or_not_predicted() -> None:
    """Several calls run in one process; some have several functions."""
    spec = convlab.problem("N=32,C=32,H=130,W=130,K=64,R=3,S=3")  # larger than any L2
    calls = [(convlab.load(name, engine="cuda"), spec) for name in ("01", "02", "05", "10")]
    try:
        frames = ncu.profile_each(calls, calibrate_model.DRAM)
    except LaunchError as refused:
        pytest.skip(str(refused))
    for (rung, _), frame in zip(calls, frames, strict=True):
        counted = frame["dram_read_bytes"].sum() + frame["dram_write_bytes"].sum()
        predicted = convlab.inspect(rung.on("sim"), spec, engine="sim").predicted.dram.bytes
        details = (rung.name, predicted, frame.to_dict())
        assert predicted is None or 1 / 1.5 < predicted / counted < 1.5, details


def test_an_incorrect_kernel_is_inspected_and_called_incorrect() -> None:
    """The first line says so, and the rest still shows where the time goes."""
    text = convlab.load("01_direct", engine="sim").source
    for old, new in (("sum += ", "sum -= "), ("r_acc += ", "r_acc -= "), ("acc += ", "acc -= ")):
        if old in text:
            wrong = convlab.compile(text.replace(old, new), name="wrong", engine="sim")
            break
    result = convlab.inspect(wrong, SMALL, engine="sim")
    assert not result.ok and str(result).startswith("wrong: INCORRECT on N1 C4 H18 W34")
    assert len(result.lines)
    assert convlab.inspect("01_direct", SMALL, engine="sim").ok
