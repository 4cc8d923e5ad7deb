"""The parts of CUDA that the simulator runs, its counts, and its findings.

The kernels are cases of suites in ``cuda/``, each with its expected result: see `suites`. The
suites of language features also run on a GPU, so both engines must give the same results. The
expected counts and findings are worked out by hand.
"""

import functools
import platform
import re
import shutil
import subprocess

import pytest
import torch

import convlab
from convlab.core.errors import BuildError, LaunchError
from convlab.sim import library, rewrite, trace, unsupported
from tests.suites import ENGINES, FOLDER, Suite

SHARED = "cudaFuncAttributeMaxDynamicSharedMemorySize"

# --- functions for the `expect` of a case -------------------------------------------------------


def lanes(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, 32)


def votes(yes: torch.Tensor, times: int) -> list[int]:
    """Return the ballot of some lanes as an int32, `times` times."""
    mask = sum(1 << lane for lane, v in enumerate(yes) if v)
    return [mask - (mask >> 31 << 32)] * times


def shuffled(x: torch.Tensor, source) -> torch.Tensor:
    """Return x after a shuffle: lane l of each warp gets the value of lane source(l)."""
    return lanes(x)[:, [source(lane) for lane in range(32)]]


def four(x: torch.Tensor) -> torch.Tensor:
    """Return the result of FOUR_SHUFFLES for a warp's values."""
    v = [(lane + 5) % 32 for lane in range(32)]
    v = [v[lane ^ 3] for lane in range(32)]
    v = [v[max(lane - 1, 0)] for lane in range(32)]
    return x.double()[[v[lane + 2 if lane < 30 else lane] for lane in range(32)]]


def reduced(x: torch.Tensor, combine) -> list[int]:
    """Return a reduction for each lane: over the first 8 lanes of its warp, or over the others."""
    parts = [part for w in lanes(x.int()).tolist() for part in [w[:8]] * 8 + [w[8:]] * 24]
    return [functools.reduce(combine, part) for part in parts]


def fours(x: torch.Tensor, combine) -> list[float]:
    """Combine every fourth element, after making it positive, for four starts."""
    return [float(combine(x.double()[k::4] + 50)) for k in range(4)]


def products(arg: int, x: torch.Tensor, stride_a: int, stride_b: int, stride_c: int, batch: int):
    """Return the y that cuBLAS must store; see cublas.cu."""
    y = x.numpy()[400:800].copy()
    for i in range(batch):
        a = x.numpy()[i * stride_a :][: 9 * (5 if arg & 1 else 3)].reshape(-1, 9).T
        b = x.numpy()[200 + i * stride_b :][: 8 * (3 if arg & 2 else 7)].reshape(-1, 8).T
        a = a[:3, :5].T if arg & 1 else a[:5, :3]
        b = b[:7, :3].T if arg & 2 else b[:3, :7]
        c = y[i * stride_c :][: 6 * 7].reshape(7, 6)  # a view
        c[:, :5] = (0.5 * a @ b).T + (-2 * c[:, :5] if arg & 4 else 0)
    return y


CALLED = (lanes, votes, shuffled, four, reduced, fours, products, functools.reduce)
BLOCKS = Suite("blocks")
NAMES = ("warps", "memory", "language", "cublas", "written", "groups", "half", "hosted")
FEATURES = [BLOCKS, *map(Suite, NAMES)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("suite", "name", "arg"), [each for suite in FEATURES for each in suite.parameters()]
)
def test_feature(suite, name, arg, engine):
    suite.check(name, arg, engine, **{function.__name__: function for function in CALLED})


@pytest.mark.parametrize(
    ("suite", "name", "arg"),
    [
        each
        for suite in FEATURES
        if suite.name in ("written", "half")
        for each in suite.parameters()
    ],
)
def test_feature_without_hooks(suite, name, arg):
    """Other compiler flags must not change a kernel: pointer casts, two barriers."""
    test_feature(suite, name, arg, "untraced")


# --- counters: by hand -------------------------------------------------------------------------

COUNTED = Suite("counted")
_NONE = dict.fromkeys(trace.COUNTERS, 0) | {"launches": 1}


def copied(load_requests, load_sectors, store_requests=32, store_sectors=128, **more):
    return {
        "global_load_requests": load_requests,
        "global_load_sectors": load_sectors,
        "global_store_requests": store_requests,
        "global_store_sectors": store_sectors,
        **more,
    }


def on_shared(wavefronts: int, sectors: int = 4):
    return copied(0, 0, 1, sectors, shared_requests=2, shared_wavefronts=wavefronts, barriers=1)


@pytest.mark.parametrize("name", COUNTED.cases)
def test_counters(name, monkeypatch):
    runs = []
    for threads in ("1", "2", "2"):
        monkeypatch.setenv("CONVLAB_SIM_THREADS", threads)
        counters = COUNTED.launch(name).counters
        runs.append({key: counters[key] for key in trace.COUNTERS})
        assert counters["global_load_bytes"] == 32 * counters["global_load_sectors"]
        assert counters["global_store_bytes"] == 32 * counters["global_store_sectors"]
        assert counters["seconds"] > 0
    assert runs[0] == _NONE | COUNTED.value(name, "counts", copied=copied, on_shared=on_shared)
    assert runs[1] == runs[0] and runs[2] == runs[0]


# --- faults: errors that crash a GPU's kernel, or that a GPU does not report ----------------------

FAULTS = Suite("faults")
REFUSED = Suite("refused")


@pytest.mark.parametrize("name", FAULTS.cases)
def test_fault(name):
    """The message matches the case's ``fault``, at the line with the comment ``here``."""
    case = FAULTS.cases[name]
    with pytest.raises(LaunchError, match=case["fault"]) as caught:
        FAULTS.launch(name)
    message = str(caught.value)
    assert message.startswith("faults: ")
    if case["code"].startswith("IN_THREAD_5("):
        assert re.search(r"block \(0, [01], 0\), thread \(5, 0, 0\)", message)
    marked = next((line for line in case["code"].splitlines() if line.endswith("// here")), None)
    if marked and shutil.which("addr2line"):
        at = FAULTS.source.splitlines().index(marked)
        assert f"faults.cu:{at + 1}:  {marked.strip()}" in message


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REFUSED.cases)
def test_refused_launch(name, engine):
    case = REFUSED.cases[name]
    if "fault" not in case:
        REFUSED.launch(name, engine=engine)
        return
    with pytest.raises(LaunchError, match=f"refused failed: {case['fault']}") as caught:
        REFUSED.launch(name, engine=engine)
    for why in case.get("why", "").split(" ... ") if engine == "sim" else ():
        assert why in str(caught.value)


def test_printf_reaches_standard_output(capsys):
    prints = Suite("prints")
    x = prints.launch("all").inputs[0].flatten()
    out = capsys.readouterr()
    assert out.out == f"thread 0 has {x[0]:.1f}\nthread 1 has {x[1]:.1f}\n" and out.err == ""
    with pytest.raises(LaunchError, match="null pointer"):
        prints.launch("fails")
    assert capsys.readouterr().out == "before\n"


def one(code: str, launch: str) -> str:
    """Return the source of a suite of one case."""
    return Suite("one", f'#include "convlab.cuh"\n// case all: {launch}\n{code}\n').source


@pytest.mark.parametrize(
    ("code", "launch", "at", "message"),
    [
        (
            "__global__ void ok(float* y) {\n    y[0] = undeclared;\n}",
            "ok<<<1,\n//      32>>>(y);",
            "undeclared",
            ".undeclared. was not declared",
        ),
        ("__global__ void ok(float* y) {}", "brokn<<<1, 32>>>(y);", "", "not declared"),
        (
            "__global__ void ok(float* y) {}",
            "ok<<<1, 32>>>(y, 3);",
            "",
            "no match for call|too many arguments",
        ),
        (
            "__global__ void ok(float* y) {}",
            "ok<<<1, 32>>>(x);",
            "",
            "invalid conversion|cannot convert|no match",
        ),
        (
            "__global__ void ok() {}",
            "void *k = nullptr, *none[1]; cudaLaunchKernel(k, 1, 32, none);",
            "",
            "launches a kernel through a pointer to void.* use a GPU",
        ),
        (
            "#include <thrust/device_vector.h>\n__global__ void ok() {}",
            "ok<<<1, 32>>>();",
            "#include <thrust",
            "header is <thrust/device_vector.h>; .* use a GPU",
        ),
        (
            "__global__ void ok() {}",
            "cudaExternalMemory_t memory;",
            "",
            "cudaExternalMemory_t is a name of CUDA; .* use a GPU",
        ),
        (
            "#include <curand.h>\n#include <cublasLt.h>\n__global__ void ok(__half, __nv_bfloat16) {}",
            "curandGenerator_t g; curandCreateGenerator(&g, CURAND_RNG_PSEUDO_DEFAULT);",
            "",
            "cuRAND; .* use a GPU",
        ),
    ],
    ids=[
        "undeclared",
        "no such kernel",
        "too many arguments",
        "wrong type",
        "untyped launch",
        "thrust",
        "external memory",
        "cuRAND",
    ],
)
def test_compile_error_names_the_line(code, launch, at, message):
    source = one(code, launch)
    line = 1 + source[: source.rindex(at or launch)].count("\n")
    with pytest.raises(BuildError, match=rf"broken.cu:{line}: .*({message})"):
        convlab.compile(source, name="broken", engine="sim")


@pytest.mark.parametrize("toolkit", [True, False], ids=["toolkit", "no toolkit"])
@pytest.mark.parametrize("name", ["CUDA_CHECK", "CUDNN_CHECK"])
def test_a_macro_that_the_author_forgot_is_no_name_of_cuda(name, toolkit, monkeypatch):
    """The line that the message proposes makes the kernel compile."""
    if not toolkit:
        monkeypatch.setattr(unsupported.toolchain, "cuda", lambda: None)
    source = one("__global__ void ok() {}", f"{name}(cudaFuncSetAttribute(ok, {SHARED}, 1024));")
    with pytest.raises(BuildError, match=f"{name} is not CUDA's") as caught:
        convlab.compile(source, name="borrowed", engine="sim")
    assert caught.value.kind == "does not build" and "use a GPU" not in str(caught.value)
    define = re.search("#define .*", str(caught.value))[0]
    mended = source.replace("// case", f"{define}\n// case")
    convlab.compile(mended, name="mended", engine="sim")


# --- the other architecture ----------------------------------------------------------------------

_ARM = "aarch64-linux-gnu-g++"


@pytest.mark.skipif(
    platform.machine() == "aarch64" or not (shutil.which(_ARM) and shutil.which("qemu-aarch64")),
    reason=f"needs {_ARM} and qemu-aarch64, on another machine than an ARM one",
)
def test_aarch64(tmp_path):
    run_bare(tmp_path, _ARM, "qemu-aarch64")


def run_bare(folder, compiler, *runner):
    """Build the runtime, a kernel and a driver as one program without Python, and run it."""
    shutil.copy(FOLDER / "driver.cpp", folder)
    source = one(
        (FOLDER / "turn.cu").read_text(),
        "turn<<<3, 96, 4 * 96, stream>>>(x, y, arg == 0 ? 0.5f : -0.5f);",
    )
    (folder / "kernel.cpp").write_text("#include <cuda_runtime.h>\n" + rewrite.rewrite(source))
    copied = shutil.copytree(library.RUNTIME.parent, folder / "runtime")
    types = (copied / "types.h").read_text()  # with less address space: each page costs qemu
    assert "size_t(1) << 40" in types and "size_t(1) << 30" in types
    types = types.replace("size_t(1) << 40", "1 << 28").replace("size_t(1) << 30", "1 << 24")
    (copied / "types.h").write_text(types)
    flags = [
        "-std=c++17",
        "-w",
        *(f"-I{path}" for path in library.HEADERS),
        f"-I{convlab.core.builds.build.KERNEL_DIR}",
    ]
    units = {
        "runtime": ["runtime/runtime.cpp", "-O2"],
        "driver": ["driver.cpp"],
        "kernel": ["kernel.cpp", *library.FLAGS],
    }

    def tool(*command: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    for name, options in units.items():
        done = tool(compiler, *flags, "-c", *options, "-o", f"{name}.o")
        assert done.returncode == 0, done.stderr
    done = tool(compiler, "-static", *[f"{name}.o" for name in units], "-o", "all", "-pthread")
    assert done.returncode == 0, done.stderr
    done = tool(*runner, "./all")
    counts = [3 * 3, 3 * 3 * 4, 3 * 3, 3 * 3 * 4, 3 * 3 * 2, 3 * 3 * 2, 0, 3 * 2, 1, 0]
    assert done.returncode == 0 and done.stdout.startswith("launch\t3,1,1\t96,1,1\t384\tturn\n")
    assert f"\ncounters\t[{','.join(map(str, counts))}," in done.stdout, done.stdout + done.stderr
    done = tool(*runner, "./all", "negative")  # threads end there, the others go on
    assert done.stdout.startswith("fault\tglobal out of bounds\t") and "y[-1]" in done.stdout
