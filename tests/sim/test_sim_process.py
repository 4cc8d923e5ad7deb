"""A simulated kernel can end its process in any way; the next kernel runs normally."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

import convlab
from convlab.core.errors import BuildError, LaunchError
from convlab.core.kernel import abi
from convlab.core.machine import child, toolchain
from convlab.core.problem.format import parse_format
from convlab.core.problem.problem import Problem
from convlab.sim import library, simulation
from convlab.sim.launch import simulated
from convlab.strict import sparse
from tests.suites import DEEP, FOLDER

KERNEL = (FOLDER / "apart.cu").read_text()


def kernel(host: str = "", inside: str = "", static: str = "", **options) -> convlab.Kernel:
    text = KERNEL.replace("STATIC", static).replace("KERNEL", inside).replace("HOST", host)
    return convlab.compile(text, name="apart", engine="sim", **options)


def run(which: convlab.Kernel) -> torch.Tensor:
    return which(torch.ones(1, 1, 16, 16), torch.ones(1, 1, 1, 1))


def works() -> bool:
    return bool((run(kernel()) == 7).all())


@pytest.mark.parametrize("where", ["host", "static"])
def test_stray_writes_to_descriptors_do_not_reach_the_next_kernel(where: str) -> None:
    assert works()
    writes = 'for (int d = 3; d < 100; ++d) if (write(d, "{\\"status\\": 0}\\n", 14) < 0) continue;'
    if where == "static":
        text = {"static": f"static int wrote = [] {{ {writes} return 0; }}();"}
    else:
        text = {"host": writes}
    for _ in range(2):
        assert (run(kernel(**text)) == 7).all()
        assert works()


def test_a_kernel_has_no_descriptor_of_the_host_process(capsys: pytest.CaptureFixture) -> None:
    text = (
        'for (int d = 3; d < 200; ++d) if (fcntl(d, F_GETFD) >= 0) printf("%d is open\\n", d);'
        'printf("%d bytes read\\n", int(read(0, new char[9], 9)));'
    )
    run(kernel(text))
    assert capsys.readouterr().out == "0 bytes read\n"


@pytest.mark.parametrize("then", ["", "abort();"], ids=["returns", "aborts"])
def test_processes_that_a_kernel_detached_are_ended(tmp_path: Path, then: str) -> None:
    path = tmp_path / "pid"
    host = f"""
    if (fork() == 0) {{
        setsid();
        if (fork() == 0) {{
            FILE* file = fopen("{path}", "w");
            fprintf(file, "%d", getpid());
            fclose(file);
            for (;;) pause();
        }}
        _exit(0);
    }}
    while (access("{path}", R_OK)) usleep(1000);
    usleep(50000);
    {then}
    """
    if then:
        with pytest.raises(LaunchError, match="abort"):
            run(kernel(host))
    else:
        assert (run(kernel(host)) == 7).all()
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


ENDS = {
    "exit-0": ("exit(0);", "abort", r"exit\(\) was called"),
    "_exit-0": ("_exit(0);", "host crash", "exit status 0"),
    "throw": ('throw std::runtime_error("no");', "abort", "and not caught: no"),
    "crash": ("*(volatile int*)8 = 1;", "null pointer", "null pointer"),
    "endless": ("for (;;) usleep(1000);", "endless loop", r"within 0\.5 s on the simulator"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_static_initialiser_that_ends_its_process_is_an_error_here(how: str) -> None:
    """This process goes on. test_errors.py tests ends of the process in the entry point."""
    text, kind, message = ENDS[how]
    with pytest.raises(LaunchError, match=message) as caught:
        limit = 0.5 if how == "endless" else 60
        run(kernel(static=f"static int start = [] {{ {text} return 0; }}();", time_limit=limit))
    assert caught.value.kind == kind
    assert works()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of the host process, which imports only modules of its own folder and of core/machine."""
    monkeypatch.syspath_prepend(Path(child.__file__).parent)
    spec = importlib.util.spec_from_file_location("host", Path(simulation.__file__).with_name("host.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_that_the_system_kills_says_nothing_about_the_kernel() -> None:
    with pytest.raises(LaunchError, match="memory ran out: .* says nothing about the kernel") as caught:
        run(kernel("raise(SIGKILL);"))
    assert caught.value.kind == "memory"
    assert works()


@pytest.mark.parametrize("large, left, is_ended", [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_a_run_with_much_memory_is_ended_when_little_is_left(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch, large: int, left: int, is_ended: bool
) -> None:
    """The shares of the machine's memory are 0 and 1, so that any run has more or less than them."""
    monkeypatch.setattr(host, "_LARGE_SHARE", large)
    monkeypatch.setattr(host, "_LEAST_LEFT", left)
    process = subprocess.Popen(["sleep", "9"])
    try:
        assert host._wait(process.pid, 0.6) == ("out of memory" if is_ended else "late")
    finally:
        process.kill()
        process.wait()


def test_a_killed_host_process_is_no_endless_loop() -> None:
    with pytest.raises(LaunchError, match="SIGKILL, sent from outside") as caught:
        run(kernel("kill(getppid(), SIGKILL); for (;;) pause();"))
    assert caught.value.kind == "host crash"
    assert works()


@pytest.mark.parametrize(
    "spec, output, least, most",
    [
        ("N1 C65537 H1 W1 K1 R1 S1", "y", 200, 300),
        ("N2 C3 H9 W9 K4 R3 S3 p1", "y", 0, 1),
        ("N2 C3 H9 W9 K65537 R1 S1 data_gradient", "dx", 200, 300),
        ("N2 C3 H180 W180 K4 R1 S1 weight_gradient", "dw", 200, 300),
    ],
)
def test_a_block_with_a_long_sum_may_take_long(spec: str, output: str, least: float, most: float) -> None:
    """A tile of outputs takes as long as if all of them existed; only after that a block is endless."""
    problem = abi.integers(convlab.problem(spec).variables())
    assert least <= simulation._slowest(problem, {}, output) <= most


def test_an_endless_loop_is_reported_with_its_progress() -> None:
    endless = kernel(inside="while (blockIdx.x == 5 && y[i] != 8) y[i] = 7;", time_limit=0.5)
    with pytest.raises(LaunchError) as caught:
        run(endless)
    text = str(caught.value)
    assert "apart did not finish within 0.5 s on the simulator" in text and "time_limit=" in text
    assert re.search(r"stopped it in launch 1 \(fill\), after [567] of 8 blocks", text)
    assert "endless loop: the thread was here when the time limit passed" in text
    assert "block (5, 0, 0)" in text and "apart.cu:11:" in text
    assert works()


def test_a_stall_is_reported_before_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "STALL_LIMIT", 0.4)
    endless = kernel(inside="while (y[0] != 8) { }", time_limit=2.4)
    with pytest.raises(LaunchError, match=r"no block finished for 0\.4 s"):
        run(endless)
    slow = kernel("for (int i = 0; i < 6; ++i) { usleep(150000); fill<<<1, 32>>>(y, 1); }")
    slow.time_limit = 2.4
    assert (run(slow) == 7).all()


def test_an_endless_loop_in_host_code_is_reported() -> None:
    with pytest.raises(LaunchError, match="which stopped it in its host code"):
        run(kernel("for (;;) usleep(1000);", time_limit=0.5))


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
def test_clang_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.gcc_release(Path(shutil.which("clang++"))) is None
    monkeypatch.setenv("CXX", "clang++")
    with pytest.raises(BuildError, match=r"clang.*g\+\+ 11 or later.*CXX"):
        kernel("// a new text, which the cache does not have")


OWN, CUDAS = (
    sorted(path.name for path in folder.glob("*.h"))
    for folder in (library.RUNTIME.parent, library.INCLUDE)
)
# The headers in arbitrary orders. With CONVLAB_DEEP, each header alone, which takes ten times as long.
NAMES = {"in order": OWN, "backwards": OWN[::-1], "CUDA's": sorted(CUDAS, key=lambda n: n[::-1])}
if DEEP:
    NAMES = {name: [name] for name in OWN + CUDAS}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_each_header_includes_what_it_uses(names: list[str]) -> None:
    command = [
        toolchain.require_host_compiler(),
        "-std=c++17",
        "-w",
        "-fsyntax-only",
        "-x",
        "c++",
        *(f"-I{folder}" for folder in library.HEADERS),
        f"-I{library.RUNTIME.parent}",
        "-",
    ]
    text = "".join(f"#include <{name}>\n" for name in names)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_kernel_can_free_its_own_memory() -> None:
    host = 'float* p = nullptr; if (cudaMalloc(&p, 64) || !p || cudaFree(p)) return "no";'
    assert (run(kernel(host)) == 7).all()


def test_tensors_have_the_memory_order_of_their_format() -> None:
    format = parse_format("x f16 NHWC, y f32 NHWC")
    arena = simulation.Arena(
        {"x": (2, 3, 4, 5), "w": (6, 3, 1, 1), "y": (2, 6, 4, 5)}, format=format
    )
    x = arena.tensors["x"]
    y = arena.tensors["y"]
    assert x.dtype == torch.float16 and x.stride() == (60, 1, 15, 3) and y.shape == (2, 6, 4, 5)
    assert arena.buffers["x"][1] == 240 and arena.tensors["w"].is_contiguous()
    place = 2 * ((1 * 4 + 2) * 5 + 3) * 3 + 2
    assert arena.arrays["x"].describe("x", place) == "x[n=1, h=2, w=3, c=1]"
    assert arena.arrays["y"].describe("y", 4 * 6) == "y[n=0, p=0, q=1, k=0]"


@pytest.mark.parametrize(
    ("host", "fault"),
    [
        ("float first = y[3]; if (first > 1e9f) return nullptr;", r"host access: .* y\[.*q=3\]"),
        ("const_cast<float*>(w)[0] = 1;", r"host access: .* w\[k=0, c=0, r=0, s=0\]"),
        ("memset(y, 0, 64);", r"host access: .* y\["),
        ("std::vector<float> h(64); std::copy(h.begin(), h.end(), y);", r"host access: .* y\["),
        ("int* p; cudaMalloc(&p, 64); p[2] = 1;", r"host access: .* cudaMalloc\[2\]"),
        (
            "cudaMemset(y, 0, 4 * 256 + 1);",
            r"out of bounds: copy or fill of 1025 bytes at y\[.*\(element 0\); y has 256 elements",
        ),
        (
            "cudaMemcpy((void*)w, y, 4, cudaMemcpyDefault);",
            r"store to an input: copy or fill of w\[.*\]: w is an input, which conv2d may not",
        ),
        ("int* p; cudaMallocManaged(&p, 64); p[2] = 1; cudaFree(p);", None),
        (
            "char h[1024]; cudaMemset2D(y, 64, 0, 32, 16); cudaMemcpy(h, y, 64, cudaMemcpyDefault);",
            None,
        ),
    ],
)
def test_the_device_s_memory_is_not_the_host_s(host: str, fault: str | None) -> None:
    """On a GPU the host code crashes there; copies of the runtime API must be inside a buffer."""
    made = kernel(host, static="#include <algorithm>\n#include <cstring>\n#include <vector>\n")
    if fault is None:
        assert (run(made) == 7).all()
        return
    with pytest.raises(LaunchError, match=fault) as caught:
        run(made)
    if shutil.which("addr2line"):
        assert host in str(caught.value).splitlines()[1]


_OWN = "cudaStream_t s; cudaStreamCreate(&s);"
_STRAY = "fill<<<1, 32>>>(y, 0);"
_TOGETHER = """volatile __shared__ float v[32]; v[threadIdx.x] = 1;  __syncwarp();
    float sum = v[threadIdx.x] + v[threadIdx.x ^ 1];
    v[threadIdx.x] = sum;"""


@pytest.mark.parametrize(
    ("host", "inside", "kind"),
    [
        (_STRAY, "", "wrong stream"),
        ("cudaMemset(y, 0, 64);", "", "wrong stream"),
        (_OWN + "fill<<<1, 32, 0, s>>>(y, 0);", "", "wrong stream"),
        (
            _OWN + "cudaStreamSynchronize(stream); fill<<<1, 32, 0, s>>>(y, 0);"
            "cudaStreamSynchronize(s);",
            "",
            None,
        ),
        ("float* p; cudaMalloc(&p, 64); cudaFree(p);", "", "allocation"),
        ("", _TOGETHER, "race"),
        ("", _TOGETHER.replace("1];", "1]; __syncwarp();"), None),
    ],
    ids=[
        "launch",
        "memset",
        "own stream",
        "own stream, joined",
        "allocation",
        "volatile",
        "syncwarp",
    ],
)
def test_warning(host: str, inside: str, kind: str | None) -> None:
    """Work on another stream than the given one, and lanes that rely on lockstep."""
    launch = kernel(host, inside).prepare(
        Problem(1, 1, 16, 16, 1, 1, 1), torch.ones(1, 1, 16, 16), torch.ones(1, 1, 1, 1)
    )
    launch()
    reported = {(f.kind, f.error, f.line and bool(f.line)) for f in launch.findings}
    assert reported == ({(kind, False, True)} if kind else set())


def test_more_launches_than_numbers_are_no_race() -> None:
    """After 65,535 launches the numbers begin again, so a store in launch 1 is not one of launch 65,536."""
    host = """for (int i = 0; i < 66000; ++i) {
        if (i == 65535) odd<<<2, 32, 0, stream>>>(y);
        else fill<<<1, 1, 0, stream>>>(y, i == 0 ? 64 : 1);
    }"""
    text = """#include "convlab.cuh"
__global__ void fill(float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 1; }
__global__ void odd(float* y) { int i = (blockIdx.x * 32 + threadIdx.x + 7) % 64; y[i] = y[i] + 1; }
CONVLAB_ENTRY const char* conv2d(const ConvProblem*, const float*, const float*, const float*, float* y,
                                 void*, size_t, cudaStream_t stream) {
    HOST
    return launch_error();
}"""
    many = convlab.compile(text.replace("HOST", host), name="many", engine="sim")
    y = many(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 1, 1))
    assert y.flatten()[1:].eq(2).all()


def test_a_build_without_counts_finds_the_same_error_at_the_same_line() -> None:
    """It has no hooks at basic blocks, which are only for counts."""
    inside = "__shared__ int s; s = threadIdx.x; y[0] = s;"
    found = []
    which = kernel(inside=inside)
    assert which.uncounted().build().library != which.build().library
    assert which.uncounted().uncounted() is which.uncounted()
    for counted in (True, False):
        problem = Problem(N=1, C=1, H=16, W=16, K=1, R=1, S=1)
        launch = which.prepare(problem, torch.ones(1, 1, 16, 16), torch.ones(1, 1, 1, 1))
        launch.counted = counted
        with pytest.raises(LaunchError) as error:
            launch()
        found.append([(each.kind, each.line, each.text) for each in error.value.findings])
    assert found[0] == found[1] and found[0]


def test_pages_that_no_thread_accessed_take_no_memory() -> None:
    """The search for a wgmma's incomplete sums reads only pages of y that exist."""
    which = convlab.load("11_wgmma_tf32", engine="sim")
    problem = convlab.problem("N1 C1 H32800 W32800 K1 R1 S1")
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    arena = simulation.Arena(shapes, ["x", "y"])
    before = os.stat(arena.path).st_blocks
    # A block for each tile: a persistent block would compute hundreds of them.
    simulated(which, problem, arena, sample=(2, 0), watch=1_000_000, gpu=sparse.WIDE)
    # In units of 512 bytes. y has 4.3 GB.
    assert os.stat(arena.path).st_blocks - before < (256 << 20) // 512
