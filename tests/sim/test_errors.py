"""Invalid input raises a clear error that says what to do, and the next valid call works."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import convlab.nn
from convlab.core.errors import (
    BuildError,
    CatalogError,
    LaunchError,
    ProblemError,
    UnsupportedError,
)
from convlab.core.kernel.kernel import Kernel, load
from convlab.sim import simulation
from tests.suites import FOLDER

ROOT = Path(__file__).resolve().parents[2]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module", params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """The first rung."""
    return load("01_direct", engine=request.param)


def normal(*shape: int) -> torch.Tensor:
    """Return normal data, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def assert_works(kernel: Kernel) -> None:
    """Assert that the next valid call gives the correct result."""
    x = normal(2, 4, 7, 8)
    w = normal(6, 2, 3, 3)
    bias = normal(6)
    y = kernel(*(t.to(kernel.device) for t in (x, w, bias)), padding=1, groups=2)
    truth = F.conv2d(x.double(), w.double(), bias.double(), padding=1, groups=2)
    torch.testing.assert_close(y.cpu().double(), truth, rtol=0, atol=1e-5)


X = normal(2, 4, 7, 8)
W = normal(6, 4, 3, 3)
BAD_ARGUMENTS: dict[str, tuple[dict, str]] = {
    "x-rank-2": (dict(x=X[0, 0]), r"x must have 4 dimensions \(N, C, H, W\)"),
    "x-rank-5": (dict(x=X[None]), r"x must have 4 .*\(1, 2, 4, 7, 8\)"),
    "w-rank-3": (dict(w=W[0]), r"w must have 4 dimensions \(K, C/groups, R, S\)"),
    "x-list": (dict(x=[1.0]), r"x is a list, not a torch\.Tensor"),
    "w-none": (dict(w=None), r"w is a NoneType, not a torch\.Tensor"),
    "bias-number": (dict(bias=1.0), r"bias is a float, not a torch\.Tensor"),
    "channels": (dict(x=X[:, :3]), r"C=3 .*w must be \(K, 3, R, S\).*\(6, 4, 3, 3\)"),
    "C-groups": (dict(groups=3), r"C=4 is not a multiple of groups=3"),
    "K-groups": (dict(w=W[:5, :2], groups=2), r"K=5 is not a multiple of groups=2"),
    "channels-groups": (dict(groups=2), r"groups=2, so w must be \(K, 2, R, S\)"),
    "groups-0": (dict(groups=0), r"groups is 0; it must be at least 1"),
    "groups-float": (dict(groups=1.5), r"groups must be an integer, not 1\.5"),
    "filter-height": (dict(w=normal(6, 4, 8, 3)), r"than the padded input: height 8.*pad by"),
    "filter-dilated": (dict(dilation=(1, 4)), r"width 9 \(filter 3, dilation 4\) over 8"),
    "stride-0": (dict(stride=0), r"stride is \(0, 0\); both parts must be at least 1"),
    "stride-negative": (dict(stride=(1, -2)), r"stride is \(1, -2\)"),
    "stride-three": (dict(stride=(1, 1, 1)), r"stride must be an integer or a pair"),
    "stride-float": (dict(stride=1.0), r"stride must be an integer, not 1\.0"),
    "dilation-0": (dict(dilation=0), r"dilation is \(0, 0\)"),
    "padding-negative": (dict(padding=(0, -1)), r"padding is \(0, -1\)"),
    "padding-name": (dict(padding="full"), r"padding is 'full'.*'valid'"),
    "same-stride": (dict(padding="same", stride=2), r'padding="same" needs stride 1'),
    "same-dilation": (dict(padding="same", dilation=0), r"dilation"),
    "same-rank": (dict(padding="same", w=W[0]), r"w must have 4 dimensions"),
    "same-three": (dict(padding="same", dilation=(1, 1, 1)), r"dilation must be an"),
    "same-float": (dict(padding="same", dilation=1.5), r"dilation must be an integer"),
    "bias-length": (dict(bias=normal(5)), r"bias must have shape \(6,\).*not \(5,\)"),
    "x-sparse": (dict(x=X.to_sparse()), r"x is torch\.sparse_coo.*to_dense"),
    "bias-rank": (dict(bias=normal(6, 1)), r"bias must have shape \(6,\)"),
}
# Tensors that a kernel's call rejects. For dtypes, `convlab.nn` says what torch can do instead.
BAD_TENSORS: dict[str, tuple[dict, str]] = {
    "x-half": (dict(x=X.half()), r"x is torch\.float16.*x\.float\(\)"),
    "w-double": (dict(w=W.double()), r"w is torch\.float64.*w\.float\(\)"),
    "bias-int": (dict(bias=torch.arange(6)), r"bias is torch\.int64.*bias\.float\(\)"),
    "x-complex": (dict(x=X.cfloat()), r"x is torch\.complex64"),
    "x-meta": (dict(x=X.to("meta")), r"x is on meta"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS | BAD_TENSORS)
def test_bad_arguments(kernel: Kernel, name: str) -> None:
    changes, message = (BAD_ARGUMENTS | BAD_TENSORS)[name]
    calls = [kernel, functools.partial(convlab.nn.conv2d, kernel=kernel)]
    for gradient in (False, True):
        arguments = {"x": X, "w": W} | changes
        for key, value in arguments.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                value = value.to(kernel.device)
                if gradient and value.is_floating_point():
                    value = value.detach().requires_grad_()
                arguments[key] = value
        for call in calls[: 1 if name in BAD_TENSORS else 2]:
            with pytest.raises(ProblemError, match=message) as error:
                call(**arguments)
            assert len(str(error.value).splitlines()) <= 3
            assert isinstance(error.value, ValueError)
    assert_works(kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["x", "w", "bias"])
def test_a_tensor_on_the_other_device(kernel: Kernel, name: str) -> None:
    other = "cuda" if kernel.engine == "sim" else "cpu"
    tensors = {"x": X, "w": W, "bias": normal(6)}
    arguments = {key: t.to(other if key == name else kernel.device) for key, t in tensors.items()}
    with pytest.raises(ProblemError, match=rf"{name} is on {other}") as error:
        kernel(**arguments)
    assert f'{name}.to("{kernel.device.type}")' in str(error.value)
    assert f'engine="{"cuda" if kernel.engine == "sim" else "sim"}"' in str(error.value)
    assert_works(kernel)


def test_an_output_larger_than_memory_says_how_much_it_needs(kernel: Kernel) -> None:
    x, w = (torch.ones(1, 1, 1, 1, device=kernel.device) for _ in range(2))
    with pytest.raises(LaunchError, match=r"not enough (GPU )?memory.*needs 953674\.\d\d GiB") as e:
        kernel(x, w, padding=8_000_000)
    assert "Problem.scaled" in str(e.value)
    assert_works(kernel)


# ---- engines, names, tunables -----------------------------------------------------------------


@no_gpu
def test_cuda_without_a_gpu() -> None:
    with pytest.raises(BuildError, match=r"needs an NVIDIA GPU.*engine=\"sim\".*doctor"):
        load("01_direct", engine="cuda")
    assert load("01_direct").engine == "sim"
    assert_works(load("01_direct"))


def test_an_unknown_tunable() -> None:
    with pytest.raises(ProblemError, match="03_smem_tile has no tunable BM; it has: TILE, K_TILE"):
        load("03_smem_tile@BM=64", engine="sim")
    with pytest.raises(ProblemError, match="no tunable THREAD; it has: THREADS"):
        load("01_direct", engine="sim", defines={"THREAD": 64})
    for spec in ("01_direct@THREADS", "01_direct@THREADS=many", "01_direct@=3"):
        with pytest.raises(ProblemError, match="tunable"):
            load(spec, engine="sim")
    assert_works(load("01_direct@THREADS=64", engine="sim"))


def test_an_unsupported_problem_names_a_kernel_that_can(tmp_path: Path) -> None:
    tile = load("03_smem_tile", engine="sim")
    x = normal(1, 1, 200, 200)
    w = normal(1, 1, 190, 190)
    with pytest.raises(
        UnsupportedError, match="03_smem_tile does not support .*supports:` .*<= smem.*here"
    ) as error:
        tile(x, w)
    assert re.search(r"; use 01_direct, .* or one of \d+ others", str(error.value))
    able = load("01_direct", engine="sim")
    torch.testing.assert_close(able(x, w), F.conv2d(x, w), rtol=1e-3, atol=1e-3)
    assert_works(tile)

    path = tmp_path / "square_only.cu"
    text = (ROOT / "kernels" / "01_direct.cu").read_text()
    path.write_text(text.replace("supports: everything", "supports: groups == 1, R == S"))
    picky = load(path, engine="sim")
    with pytest.raises(
        UnsupportedError, match=r"square_only does not support .*R == S \(here R = 3, S = 2\)"
    ):
        picky(X, W[..., :2])
    with pytest.raises(UnsupportedError, match=r"groups == 1 \(here groups = 2\); use 01_direct"):
        picky(X, W[:, :2], groups=2)
    torch.testing.assert_close(picky(X, W), F.conv2d(X, W), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(defines={"THREADS": "`touch planted`"}), "THREADS is '`touch planted`'; it must be"),
        (dict(defines={"THREADS": "64; touch planted"}), "an integer, or a single word"),
        (
            dict(defines={"THREADS=1 -include /etc/passwd -DX": 1}),
            "is not a valid name of a tunable",
        ),
        (dict(defines={"THREADS": 10**5000}), "THREADS is <int>; it must be at most"),
        (dict(defines="THREADS=64"), "defines must be a dict"),
        (dict(time_limit=float("nan")), "time_limit must be a finite number, more than 0, not nan"),
        (dict(time_limit=0), "finite number, more than 0, not 0"),
        (dict(time_limit="10"), "finite number, more than 0, not '10'"),
        (dict(workspace_limit=-1), "workspace_limit is -1; it must be at least 0"),
        (dict(workspace_limit=1.5), "workspace_limit must be an integer, not 1.5"),
        (dict(trace="yes"), "trace must be True or False, not 'yes'"),
        (dict(isolate=None), "isolate must be True or False, not None"),
        (dict(engine=None), "no engine None: choose from auto, cuda, sim"),
    ],
)
def test_bad_options(
    options: dict, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "kernels" / "01_direct.cu").read_text()
    monkeypatch.chdir(tmp_path)
    for make in (lambda **o: load("01_direct", **o), lambda **o: convlab.compile(text, **o)):
        with pytest.raises(ProblemError, match=re.escape(message)) as error:
            make(**{"engine": "sim"} | options)
        assert len(str(error.value)) < 300
    assert list(tmp_path.iterdir()) == []


NAMES = ["../../x", "a/b", "", ".hidden", "x" * 200, "new\nline", None, 5]  # not of the cache


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((dict(name=name), "name ") for name in NAMES),
        (dict(source=b"int x;"), "not b'int x;': decode it"),
        (dict(source=None), "not None"),
        (dict(source="\ud800"), "is not valid Unicode"),
    ],
)
def test_invalid_sources_and_names(options: dict, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        convlab.compile(**{"source": FILE, "engine": "sim"} | options)


def test_encodings_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    text = (ROOT / "kernels" / "01_direct.cu").read_text()
    path.write_bytes(f"// title: Größe\n{text}".encode("latin-1"))
    with pytest.raises(CatalogError, match=r"mine\.cu is not UTF-8 \(byte 12\).*save"):
        load(path, engine="sim")(X, W)
    for mark in ("\ufeff", ""):
        path.write_text(mark + text.replace("\n", "\r\n"), newline="")
        assert load(path, engine="sim").title == "Direct"
        assert_works(load(path, engine="sim"))
        assert_works(convlab.compile(mark + text, engine="sim"))


# ---- gradients and pickles --------------------------------------------------------------------


def test_gradients_with_same_padding_and_without_a_batch(kernel: Kernel) -> None:
    x = normal(4, 7, 8).to(kernel.device)
    w = normal(6, 4, 2, 3).to(kernel.device)
    w.requires_grad_()
    y = kernel(x, w, padding="same")
    assert tuple(y.shape) == (6, 7, 8)
    y.sum().backward()
    with torch.no_grad():
        plain = kernel(x, w, padding="same")
    assert torch.equal(y, plain) and w.grad.abs().sum() > 0


def test_a_pickled_kernel(kernel: Kernel) -> None:
    assert_works(pickle.loads(pickle.dumps(kernel)))
    options = {"workspace_limit": 12345, "time_limit": 67.0, "isolate": False}
    tuned = load("01_direct@THREADS=64", engine=kernel.engine, **options)
    copy = pickle.loads(pickle.dumps(tuned))
    for name in ("name", "engine", "defines", "path", "source", *options):
        assert getattr(copy, name) == getattr(tuned, name)
    assert (tuned.isolate, kernel.isolate, tuned.time_limit) == (False, True, 67)
    assert_works(copy)
    text = convlab.compile(kernel.source, name="mine", engine=kernel.engine)
    copy = pickle.loads(pickle.dumps(text))
    assert (copy.name, copy.path, copy.source) == ("mine", None, kernel.source)
    assert_works(copy)


def test_a_pickled_pinned_kernel_stays_pinned(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    text = (ROOT / "kernels" / "01_direct.cu").read_text()
    path.write_text(text)
    pinned = load(path, engine="sim").pinned()
    path.write_text("nonsense")
    copy = pickle.loads(pickle.dumps(pinned))
    assert copy.name == pinned.name and copy.source == text
    assert copy.build().library == pinned.build().library
    assert_works(copy)


# ---- kernels that end their process -----------------------------------------------------------

FILE = (FOLDER / "deadly.cu").read_text()


def source(device: str = "", host: str = "") -> str:
    """Return a kernel file with these lines; x has 49 elements, y has 36, and there is no bias."""
    return FILE.replace("DEVICE", device).replace("HOST", host)


# The code of a kernel, and its message, which names the line. More cases are in cuda/faults.cu.
DEVICE: dict[str, tuple[str, str]] = {
    "recursion": ("y[i] = deep(1);", "stack overflow"),
    "large-array": ("y[i] = large(i);", "stack overflow"),
    "assert-0": ("assert(0);", "assert.* failed"),
    "no return": (
        "y[i] = unfinished(i);",
        "abort: a function that must return a value ended without one",
    ),
    "far": (
        "y = nullptr; y[100000] = 0;",
        "null pointer; null arguments of conv2d: bias .*, workspace",
    ),
}
HOST: dict[str, tuple[str, str]] = {
    "host-null-pointer": (
        "y = nullptr; y[0] = first;",
        r"null arguments of conv2d: bias \(the problem",
    ),
    "abort": ("abort();", r"abort\(\) was called"),
    "exit": ("exit(0);", r"exit\(\) was called"),
    "quick": ("if (fork() == 0) exit(1); std::quick_exit(0);", r"exit\(\) was called"),
    "killed": ("raise(SIGKILL);", "memory ran out"),
    "thrown": ("throw 1;", "abort: an exception was thrown and not caught\n"),
    "caught by none": ("(void)std::vector<int>(2).at(9);", "not caught: .*range_check"),
    "terminate": ("std::terminate();", r"std::terminate\(\) was called"),
}
FATAL = list(DEVICE) + list(HOST)
NAMED = {
    "recursion": "float deep(int n) {",
    "large-array": "float large(int i) {",
    "no return": "float unfinished(int i) {",
    "killed": None,
}  # the line that the message names, or None


def cases(table: dict[str, tuple[str, str]], which: str) -> str:
    """Return a switch over the first element of x, so that all cases need one build."""
    lines = [f"case {FATAL.index(name)}: {{ {line} break; }}" for name, (line, _) in table.items()]
    return "\n    ".join([f"switch (int({which})) {{", *lines, "}"])


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """After the test no more simulators are left than may run at once, and none has a child."""
    yield
    mine = children(os.getpid())
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in mine]
    simulators = [pid for pid, text in zip(mine, commands) if b"sim/host.py" in text]
    assert len(simulators) <= simulation.AT_ONCE
    hosts = [host for pid in simulators for host in children(pid)]  # a simulator's child process
    assert not any(map(children, hosts))
    assert all(commands), "a process that no process waited for"


def children(parent: int) -> list[int]:
    """Return the child processes of a process that it has not waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file with all the cases. All tests use this path, because builds depend on it."""
    path = tmp_path_factory.mktemp("deadly") / "deadly.cu"
    host = "float first; cudaMemcpy(&first, x, 4, cudaMemcpyDefault); "
    path.write_text(source(cases(DEVICE, "x[0]"), host + cases(HOST, "first")))
    return path


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("name", FATAL)
def test_a_kernel_that_dies(name: str, deadly: Path) -> None:
    text = deadly.read_text()
    x = normal(1, 1, 7, 7)
    w = normal(1, 1, 2, 2)
    x[0, 0, 0, 0] = FATAL.index(name)
    kept = x.clone(), w.clone()
    for _ in range(2):
        with pytest.raises(LaunchError, match=(DEVICE | HOST)[name][1]) as error:
            load(deadly, engine="sim")(x, w)
        message = str(error.value)
        assert message.startswith("deadly") and len(message.splitlines()) <= 13  # a race may follow
        marker = NAMED.get(name, f"case {FATAL.index(name)}:")
        for number, line in enumerate(text.splitlines(), 1):
            if marker and marker in line:
                assert f"deadly.cu:{number}:  {line.strip()}" in message
        assert_works(load("01_direct", engine="sim"))
    assert torch.equal(x, kept[0]) and torch.equal(w, kept[1])


def test_a_launch_error_that_the_file_ignores_is_reported(kernel: Kernel) -> None:
    text = source("y[i] = 0;", "block = 2048;")
    with pytest.raises(LaunchError, match="careless failed: invalid( configuration)? argument"):
        convlab.compile(text, name="careless", engine=kernel.engine)(
            normal(1, 1, 7, 7).to(kernel.device), normal(1, 1, 2, 2).to(kernel.device)
        )
    assert_works(kernel)


def test_a_fork_has_its_own_simulator() -> None:
    kernel = load("01_direct", engine="sim")
    assert_works(kernel)
    mine = children(os.getpid())
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()

    def work() -> None:
        torch.set_num_threads(1)
        assert_works(kernel)
        there.send(children(os.getpid()))

    process = fork.Process(target=work)
    process.start()
    assert here.poll(60), "the fork hangs"
    theirs = here.recv()
    process.join(60)
    assert process.exitcode == 0
    assert len(theirs) == 1 and not set(theirs) & set(mine)
    assert_works(kernel)


HOLDS = """
import sys, torch, convlab
from convlab.sim import simulation
good = convlab.load("01_direct", engine="sim")
good(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1))
print(next(host._process.pid for host in simulation._hosts if host._process), flush=True)
endless = convlab.compile(sys.argv[1], name="endless", engine="sim", time_limit=1000)
if sys.argv[2] == "call":
    endless(torch.ones(1, 1, 7, 7), torch.ones(1, 1, 2, 2))
convlab.check(endless, [f"N=1,C=1,H=4,W={width},K=1,R=1,S=1" for width in range(4, 12)])
"""


@pytest.mark.parametrize("what", ["call", "check"])  # the latter: several launches at a time
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_an_interrupt_stops_the_simulation_and_leaves_nothing(
    how: signal.Signals, what: str
) -> None:
    text = source('if (i == 0) printf("running\\n"); while (conv.N == 1) { if (y[0] == 3) break; }')
    command = [sys.executable, "-c", HOLDS, text, what]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    end = threading.Timer(120, process.kill)  # the test waits no longer than this
    end.start()
    pid = int(process.stdout.readline())
    outliving = os.pidfd_open(pid)
    while not (launched := [it for host in children(pid) for it in children(host)]):  # under way
        assert process.poll() is None
        time.sleep(0.02)  # lets the other process run
    launch = os.pidfd_open(int(launched[0]))
    process.send_signal(how)
    _, error = process.communicate()
    end.cancel()
    assert ("KeyboardInterrupt" in error) == (how == signal.SIGINT)
    for each in (outliving, launch):
        assert select.select([each], [], [], 60)[0]
        os.close(each)
