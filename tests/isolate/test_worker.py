"""A fault in the worker process does not harm this process.

On a GPU, one process has every fault in turn (`_meet_faults`, run as a script with its own time
limit). It must compute a correct convolution after each.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import operator
import os
import pickle
import re
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import worker_functions as functions
from torch.nn import functional as F

import convlab
from convlab.core import rooms
from convlab.core.builds.cache import Build
from convlab.core.errors import LaunchError, ProblemError, UnsupportedError
from convlab.core.kernel import data
from convlab.core.kernel.cuda import CUDA
from convlab.core.kernel.libraries import baseline
from convlab.core.machine import child
from convlab.core.problem.problem import Problem
from convlab.isolate import cuda_faults, rehearsal, worker
from convlab.sim.engine import SIMULATOR
from convlab.strict import nvcc_report
from tests.processes import ended
from tests.suites import FOLDER

ROOT = Path(__file__).parents[2]
SMALL = Problem(N=2, C=3, H=9, W=8, K=4, R=3, S=3, padding=1, bias=True, name="small")
PAGE = (ROOT / "convlab" / "core" / "faults.md").read_text()
UNBOUNDED = (FOLDER / "unbounded.cu").read_text()


@pytest.fixture(scope="module", autouse=True)
def no_worker_left():
    yield
    pid = worker.call(os.getpid)
    worker.stop()
    assert ended(pid)


def fault(function, *args, kind, **kwargs) -> str:
    """Return the text of the fault that ends a call; the next call must work."""
    before = worker.call(os.getpid)
    with pytest.raises(LaunchError) as caught:
        worker.call(function, *args, **kwargs)
    assert caught.value.kind == kind
    assert f"convlab/core/faults.md#{kind.replace(' ', '-')}" in str(caught.value)
    assert "try: " in str(caught.value)
    after = worker.call(os.getpid)
    assert after == before or ended(before)
    return str(caught.value)


# ---- the protocol ---------------------------------------------------------------------------


def test_values_come_back_from_one_process_that_is_kept():
    first = worker.call(os.getpid)
    assert first != os.getpid()
    assert worker.call(operator.add, [1], [2]) == [1, 2]
    assert worker.call(dict, one=1) == {"one": 1}
    assert worker.call(os.getpid) == first


@pytest.mark.parametrize(
    "error",
    [
        ProblemError("stride 0"),
        UnsupportedError("R == 3"),
        convlab.errors.BuildError("k.cu:3: error: expected ';'\n    3 | int\n"),
        LaunchError("01_direct failed: more outputs than threads in a grid"),
        KeyError("x"),
        RuntimeError("shape '[2]' is invalid for input of size 3"),
        ValueError("invalid argument"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_ordinary_exceptions_are_raised_here(error):
    pid = worker.call(os.getpid)
    with pytest.raises(type(error)) as caught:
        worker.call(functions.fails, error)
    assert type(caught.value) is type(error) and caught.value.args == error.args
    notes = "".join(getattr(caught.value, "__notes__", []))  # where it was raised; ours say all
    assert ("worker_functions.py" in notes) != isinstance(error, convlab.errors.ConvlabError)
    assert worker.call(os.getpid) == pid


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (functions.fails_stubbornly, RuntimeError, "Stubborn: the text"),
        (functions.returns_generator, TypeError, "generator"),
    ],
)
def test_a_result_that_does_not_pickle_is_reported(function, error, text):
    with pytest.raises(error, match=text):
        worker.call(function)


def test_arguments_that_cannot_be_sent_are_rejected_before_sending():
    value = type("Local", (), {"__module__": "__main__"})
    assert not worker.can_send(value)
    with pytest.raises(pickle.PicklingError, match="Local"):
        worker.call(id, value)


def test_kernel_can_be_sent():
    kernel = convlab.load("01_direct", engine="sim")
    assert worker.can_send(kernel, SMALL) and worker.call(operator.eq, SMALL, SMALL)
    worker.call(rehearsal.run_once, kernel, SMALL, (4, 8, 0))
    assert worker.call(operator.attrgetter("workspace_limit"), kernel) == kernel.workspace_limit


def test_fault_names_kernel_problem_and_assertion():
    kernel = convlab.load("01_direct", engine="sim")
    text = fault(functions.asserts_on_stderr, kernel, SMALL, kind="device assert")
    assert text.startswith("01_direct on small: device assert: ")
    assert "device-side assert triggered)" in text
    assert "thread: [3,0,0] Assertion `p < P` failed." in text


def test_call_within_the_worker_is_a_plain_call():
    inside, nested = worker.call(functions.nested, os.getpid)
    assert inside == nested == worker.call(os.getpid)


def test_calls_from_many_threads_share_one_worker():
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda i: worker.call(operator.add, i, i), range(100)))
        pids = set(pool.map(lambda _: worker.call(os.getpid), range(20)))
    assert sums == [2 * i for i in range(100)]
    assert len(pids) == 1


def test_sys_path_and_variables_are_those_of_the_parent_at_each_call(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVLAB_TEST_A", "1")
    there = [os.path.abspath(path) for path in sys.path]
    assert worker.call(functions.tells_surroundings) == (there, {"CONVLAB_TEST_A": "1"})
    monkeypatch.delenv("CONVLAB_TEST_A")
    monkeypatch.setenv("CONVLAB_TEST_B", "2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    there = [str(tmp_path), *there]
    assert worker.call(functions.tells_surroundings) == (there, {"CONVLAB_TEST_B": "2"})


# ---- output ---------------------------------------------------------------------------------


def test_output_appears_here_whichever_way_it_was_printed(capsys):
    worker.call(functions.prints_each_way)
    assert capsys.readouterr().out == "from C, from the system, from Python\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_large_output_arrives_whole(capsys, stream):
    worker.call(functions.prints, 150_000, stream)  # of two bytes each; a pipe holds 65,536
    assert getattr(capsys.readouterr(), stream[3:]) == "é" * 150_000


def test_endless_output_is_cut(capsys):
    worker.call(functions.prints, 2_000_000)
    out = capsys.readouterr().out
    assert len(out) < 700_000 and out.endswith("[the rest of this call's output is not shown]\n")
    worker.call(functions.prints, 3)
    assert capsys.readouterr().out == "ééé"


# ---- faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (ctypes.string_at, [0], "SIGSEGV"),
        (os.abort, [], "SIGABRT"),
        (sys.exit, [3], "exit status 3"),
        (sys.exit, [], "exit status 0"),
        (os._exit, [4], "exit status 4"),
        (signal.raise_signal, [signal.SIGKILL], "SIGKILL, sent from outside"),
    ],
    ids=["segfault", "abort", "sys.exit", "sys.exit-0", "exit", "killed"],
)
def test_crash(function, arguments, text):
    assert f"({text}" in fault(function, *arguments, kind="host crash")


def test_endless_loop_ends_at_the_limit():
    text = fault(functions.spins, kind="endless loop", time_limit=0.3)
    meaning = "the kernel made no progress until the time limit passed"
    assert f"spins: endless loop: {meaning} (stopped after 0.3 s)" in text


def test_child_processes_of_the_worker_end_with_it(tmp_path):
    path = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        worker.call(functions.hangs_with_child, os.getpid(), str(path))
    assert ended(int(path.read_text()))


def test_ctrl_c_ends_the_call_and_its_process():
    pid = worker.call(os.getpid)
    with pytest.raises(KeyboardInterrupt):
        worker.call(functions.interrupts, os.getpid())
    assert ended(pid)
    assert worker.call(operator.add, 1, 2) == 3


def test_worker_that_cannot_start_is_a_fault(monkeypatch, tmp_path):
    worker.stop()
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no room')")
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_SCRIPT", broken)
        patch.setattr(worker, "_workers", {})
        with pytest.raises(
            LaunchError, match=r"at its start: exit status 1\)\n  no room"
        ) as caught:
            worker.call(os.getpid)
    assert caught.value.kind == "invalid worker state"
    assert worker.call(operator.add, 1, 2) == 3


# ---- CUDA's errors, by their texts ----------------------------------------------------------

# As torch 2.11 to 2.13 raise them (AcceleratorError from 2.8 on) and as cudaGetErrorString has it.
TEXTS = {
    "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress'": "illegal address",
    "CUDA error: misaligned address": "misaligned address",
    "CUDA error: device-side assert triggered": "device assert",
    "CUDA error: unspecified launch failure": "launch failure",
    "CUDA error: an illegal instruction was encountered": "launch failure",
    "CUDA error: the launch timed out and was terminated": "endless loop",
    "CUDA error: invalid argument": "launch configuration",
    "CUDA error: invalid configuration argument": "launch configuration",
    "CUDA error: too many resources requested for launch": "launch configuration",
    "CUDA error: out of memory": "out of memory",
    "CUDA error: all CUDA-capable devices are busy or unavailable": "invalid worker state",
    "CUDA error: something new in CUDA 14": "launch failure",
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.8 GiB": "out of memory",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": "launch failure",
}


@pytest.mark.parametrize("error", [RuntimeError, torch.AcceleratorError], ids=lambda e: e.__name__)
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.split("\n")[0][:60])
def test_cuda_error_is_classified(text, error):
    kind, words = cuda_faults.classify(error(text))
    assert kind == TEXTS[text]
    assert words == text.split("\n")[0]


def test_launch_error_is_classified_by_cudas_words():
    assert (
        cuda_faults.classify(LaunchError("k failed: invalid argument"))[0] == "launch configuration"
    )
    lost = "k failed: CUDA error: misaligned address (this process can no longer use the GPU)"
    assert cuda_faults.classify(LaunchError(lost))[1] == "k failed: CUDA error: misaligned address"
    assert cuda_faults.classify(LaunchError("k failed: more outputs than a grid has")) is None
    assert cuda_faults.classify(LaunchError("misaligned address", kind="trap")) is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("invalid argument"),
        ValueError("CUDA error: misaligned address"),
        UnsupportedError("CUDA out of memory"),
        KeyError("cuda"),
    ],
    ids=repr,
)
def test_other_errors_are_no_faults(error):
    assert cuda_faults.classify(error) is None


def test_fault_of_two_kernels_names_both():
    pair = [convlab.load(name, engine="sim") for name in ("01_direct", "03_smem_tile")]
    two, none = (
        str(cuda_faults.make_error("host crash", "", print, v)) for v in ([*pair, SMALL], [1])
    )
    assert two.startswith("01_direct or 03_smem_tile on small: host crash: ")
    assert none.startswith("print: host crash: ")


# ---- the source line of a fault -------------------------------------------------------------


@pytest.fixture
def unbounded():
    return convlab.compile(UNBOUNDED, name="unbounded", engine="sim")


def test_explain_finds_the_line_on_the_simulator(unbounded, capsys):
    text, _ = cuda_faults.explain(unbounded, convlab.problem("square"))
    assert "global out of bounds: store of 4 bytes at y[" in text
    assert "unbounded.cu:2:" in text and "y[blockIdx.x * 1024 + threadIdx.x] = 1" in text
    assert "faults.md" not in text and not capsys.readouterr().out


def test_explain_reports_that_it_found_nothing_and_never_raises(unbounded, monkeypatch):
    kernel = convlab.load("01_direct", engine="sim")
    assert cuda_faults.explain(kernel, SMALL) == (f"the simulator found no error on {SMALL}", [])
    assert cuda_faults.explain(baseline("torch:cpu"), SMALL) == ("", [])
    monkeypatch.setattr(unbounded, "simulated", None)
    assert "could not run it" in cuda_faults.explain(unbounded, SMALL)[0]
    assert "could not run it" in cuda_faults.explain(unbounded, None)[0]


def test_explain_says_nothing_without_an_engine_that_counts(unbounded, monkeypatch):
    monkeypatch.setattr(rooms, "names", lambda kind: [])
    assert cuda_faults.explain(unbounded, SMALL) == ("", [])


@pytest.fixture
def on_gpu(unbounded, monkeypatch, tmp_path):
    """Return a kernel that claims to run on a GPU; its build is one of the simulator."""
    build = Build(tmp_path / "kernel.so", 0.0)
    build.library.touch()
    monkeypatch.setattr(unbounded, "engine", "cuda")
    monkeypatch.setattr(unbounded, "build", lambda: build)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(unbounded, "runs_on", CUDA)
    monkeypatch.setattr(rehearsal, "_rehearsed", set())
    return unbounded


def test_fault_on_a_gpu_brings_the_simulators_line(on_gpu):
    call = rehearsal.run_once, [on_gpu, SMALL]
    error = cuda_faults.make_error("illegal address", "CUDA error: an illegal memory access", *call)
    assert "unbounded.cu:2:" in str(error) and str(SMALL) in str(error)
    assert [each.kind for each in error.findings] == ["global out of bounds"]
    assert pickle.loads(pickle.dumps(error)).findings == error.findings
    assert "simulator" not in str(
        cuda_faults.make_error("out of memory", "CUDA out of memory", *call)
    )


# ---- a kernel's first call ------------------------------------------------------------------


class Worker:
    """Replace the worker: store the requests, and raise `answer` if there is one."""

    def __init__(self) -> None:
        self.calls = []
        self.answer = None

    def __call__(self, *args, **options):
        self.calls.append((*args, options))
        if self.answer is not None:
            raise self.answer


@pytest.fixture
def trials(on_gpu, monkeypatch):
    monkeypatch.setattr(rehearsal, "call", standing_in := Worker())
    return standing_in


def tensors(problem: Problem = SMALL) -> list[torch.Tensor]:
    return [torch.zeros(problem.x_shape), torch.zeros(problem.w_shape), torch.zeros(problem.K)]


def test_first_call_is_rehearsed_once_per_problem_and_alignment(on_gpu, trials):
    options = {"time_limit": on_gpu.time_limit}
    for _ in range(2):
        rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, *tensors())
    assert trials.calls == [(rehearsal.run_once, on_gpu, SMALL, (0, 0, 0), options)]
    other = Problem(N=1, C=3, H=9, W=8, K=4, R=3, S=3)
    rehearsal.rehearse_run(on_gpu, on_gpu.build(), other, *tensors(other)[:2], None)
    assert len(trials.calls) == 2
    x, w, bias = tensors()
    shifted = torch.zeros(x.numel() + 1)[1:].view(x.shape)
    rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, shifted, w, bias)
    assert trials.calls[2][3] == (shifted.data_ptr() % 32, 0, 0) != (0, 0, 0)


def test_a_library_is_loaded_in_the_worker_first(on_gpu, trials):
    for _ in range(2):
        rehearsal.rehearse_load(on_gpu, on_gpu.build())
    assert trials.calls == [(rehearsal._load, on_gpu, {"time_limit": on_gpu.time_limit})]
    trials.answer = LaunchError("it crashed", kind="host crash")
    rehearsal._rehearsed.clear()
    with pytest.raises(LaunchError, match="it crashed"):
        rehearsal.rehearse_load(on_gpu, on_gpu.build())
    rehearsal._rehearsed.clear()
    trials.answer = None
    rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, *tensors())  # which loads it too
    calls = len(trials.calls)
    rehearsal.rehearse_load(on_gpu, on_gpu.build())
    assert len(trials.calls) == calls


def test_a_problem_without_images_only_loads_the_library(on_gpu, trials):
    rehearsal.rehearse_run(on_gpu, on_gpu.build(), replace(SMALL, N=0), *tensors())
    assert trials.calls == [(rehearsal._load, on_gpu, {"time_limit": on_gpu.time_limit})]


NO_TRIAL = {
    "good": lambda kernel, patch: rehearsal.mark_good(kernel.build()),
    "not-isolated": lambda kernel, patch: patch.setattr(kernel, "isolate", False),
    "capturing": lambda kernel, patch: patch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: True
    ),
    "simulated": lambda kernel, patch: patch.setattr(kernel, "runs_on", SIMULATOR),
}


@pytest.mark.parametrize("reason", NO_TRIAL)
def test_no_rehearsal_when(reason, on_gpu, trials, monkeypatch):
    NO_TRIAL[reason](on_gpu, monkeypatch)
    rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, *tensors())
    assert not trials.calls and rehearsal.is_good(on_gpu.build()) == (reason == "good")


def test_a_fault_in_the_rehearsal_stops_the_call_each_time(on_gpu, trials):
    trials.answer = LaunchError("unbounded: illegal address", "illegal address")
    for _ in range(2):
        with pytest.raises(LaunchError, match="illegal address"):
            rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, *tensors())
    assert len(trials.calls) == 2


def test_a_rehearsal_without_memory_is_left_out_with_a_warning(on_gpu, trials):
    trials.answer = LaunchError("not enough GPU memory", "out of memory")
    with pytest.warns(UserWarning, match="cannot hold the problem twice"):
        rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, *tensors())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rehearsal.rehearse_run(on_gpu, on_gpu.build(), SMALL, *tensors())


# ---- the page -------------------------------------------------------------------------------


def kinds() -> set[str]:
    parts = (ROOT / "convlab" / "sim" / "runtime").iterdir()
    runtime = "".join(part.read_text() for part in parts if part.is_file())
    package = ROOT / "convlab"
    files = [
        *(package / "core" / "correctness").glob("*.py"),
        *(package / "strict").glob("*.py"),
        *(package / "sim").glob("*.py"),
        *(package / "core" / "kernel").glob("*.py"),
        package / "core" / "errors.py",
    ]
    python = "".join(file.read_text() for file in files)
    simulated = set(re.findall(r'\b(?:fault\(|report_here\(|report\(\w+, )"([^"]+)"', runtime))
    assert len(simulated) > 10
    named = r'(?:error_finding\(|Finding\(|\bkind ?= ?(?:getattr\(.*\) or )?)"([^"]+)"(?!\.join)'
    return simulated | set(re.findall(named, python)) | {nvcc_report.WARNING, *cuda_faults.KINDS}


HEADINGS = re.findall(r"^## (.*)$", PAGE, re.M)


def test_every_kind_of_fault_is_on_the_page():
    assert sorted(HEADINGS) == sorted(kinds())


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_error_of_each_kind_names_its_section_of_the_page(kind):
    text = str(pickle.loads(pickle.dumps(LaunchError("text", kind))))
    anchor = re.search(r"convlab/core/faults\.md#(\S+)$", text)[1]
    assert anchor in {heading.lower().replace(" ", "-") for heading in HEADINGS}


def test_simulators_fault_has_its_kind(unbounded):
    with pytest.raises(LaunchError) as caught:
        unbounded(*tensors()[:2], padding=1)
    assert caught.value.kind == "global out of bounds"


# ---- on a GPU -------------------------------------------------------------------------------

FAULTY = (FOLDER / "faulty.cu").read_text()


def faulty(kernel: str = "y[threadIdx.x] = 1;", **places: object) -> str:
    places = {"KERNEL": kernel, "THREADS": 32, "SHARED": 0, "WORKSPACE": 0, "AFTER": ""} | places
    return re.sub("|".join(places), lambda place: str(places[place[0]]), FAULTY)


ENDLESS = "for (;;) *(volatile float*)y = 1;"
APART = "*reinterpret_cast<float4*>(y + 1) = *reinterpret_cast<float4*>(y + 8);"
STRAY = "*reinterpret_cast<volatile int*>(uintptr_t(16)) = 1;"
# name: source, the kind expected, whether the worker lives on
FAULTS: dict[str, tuple[str, str, bool]] = {
    "illegal-address": (faulty("y[(1ll << 40) + threadIdx.x] = 1;"), "illegal address", False),
    "misaligned": (faulty(APART), "misaligned address", False),
    "endless": (faulty(ENDLESS), "endless loop", False),
    "assert": (faulty("assert(threadIdx.x == 99);"), "device assert", False),
    "trap": (faulty("__trap();"), "launch failure", False),
    "2048-threads": (faulty(THREADS=2048), "launch configuration", True),
    "shared-100KB": (faulty(SHARED="100 << 10"), "launch configuration", True),
    "host-segfault": (faulty(AFTER=STRAY), "host crash", False),
    "host-exit": (faulty(AFTER="_exit(3);"), "host crash", False),
    "out-of-memory": (faulty(WORKSPACE="size_t(1) << 44"), "out of memory", True),
    "ctrl-c": (faulty(ENDLESS, AFTER=f"kill({os.getpid()}, SIGINT);"), "KeyboardInterrupt", False),
}
PRINTS = faulty('if (threadIdx.x == 0) printf("hello from the GPU\\n");')
SPARE = 96 << 20  # bytes of GPU memory by which two readings may differ


def _right_convolution() -> bool:
    """Return whether this process can still compute on the GPU."""
    given = data.inputs(SMALL, 1, "cuda")
    y = convlab.load("01_direct", engine="cuda", isolate=False)(*given, padding=1)
    truth = F.conv2d(*(t.double().cpu() for t in given), padding=1)
    return bool((y.cpu() - truth).abs().max() < 1e-5)


def _free() -> int:
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def _meet(name: str, free: int) -> dict[str, object]:
    """Run one faulty kernel as a user does, and return the outcome."""
    options = {"engine": "cuda", "time_limit": 3, "workspace_limit": 1 << 45}
    kernel = convlab.compile(FAULTS[name][0], name=name, **options)
    given = data.inputs(SMALL, 0, "cuda")
    pid = worker.call(os.getpid)
    found: dict[str, object] = {"kind": "none", "message": "nothing was raised"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # out of memory: there is no rehearsal
            kernel(*given, padding=1)
            torch.cuda.synchronize()
    except LaunchError as error:
        found = {"kind": error.kind, "message": str(error)}
    except KeyboardInterrupt:
        found = {"kind": "KeyboardInterrupt", "message": ""}
    found["right_after"] = _right_convolution()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        found["worker_alive"] = True
        worker.stop()
    found["memory_kept"] = free - _free()
    return found


def _meet_faults() -> None:
    """Cause each fault in this one process, and print a line of JSON for each."""
    assert _right_convolution()
    free = _free()
    for name in FAULTS:
        print(json.dumps({"fault": name} | _meet(name, free)), flush=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        kernel = convlab.compile(PRINTS, name="prints", engine="cuda")
        worker.call(rehearsal.run_once, kernel, SMALL)
    print(json.dumps({"fault": "none", "printed": out.getvalue()}), flush=True)


@pytest.fixture(scope="module")
def met() -> dict[str, dict[str, object]]:
    """Return the output of `_meet_faults` by fault; it has ten minutes, and leaves no process."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        done = child.run([sys.executable, __file__], 600, os.environ | {"PYTHONPATH": path})
        how = f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        done = late
        how = "ten minutes were over"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"fault"')]
    missing = {"message": "\n".join([f"not reached: {how}", *done.stderr.splitlines()[-30:]])}
    return dict.fromkeys([*FAULTS, "none"], missing) | {line["fault"]: line for line in lines}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAULTS)
def test_fault_on_the_gpu(name, met):
    _, expected, lives = FAULTS[name]
    found = met[name]
    assert found.get("kind") == expected, found["message"]
    assert found["right_after"], found
    assert found.get("worker_alive", False) == lives, found
    assert found["memory_kept"] < SPARE, found
    if expected != "KeyboardInterrupt":
        assert found["message"].startswith(f"{name} on ") or name == "out-of-memory", found
        assert f"faults.md#{expected.replace(' ', '-')}" in found["message"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["illegal-address", "misaligned", "assert"])
def test_fault_on_the_gpu_comes_with_its_line(name, met):
    message = str(met[name]["message"])
    assert re.search(r"the simulator, on .*\n(.*\n)*  *[-\w]+\.cu:8:", message), message


@pytest.mark.gpu
def test_device_printf_appears_in_the_parent(met):
    assert met["none"].get("printed") == "hello from the GPU\n", met["none"]


@pytest.mark.gpu
def test_first_call_of_a_correct_kernel_passes_its_rehearsal():
    given = data.inputs(SMALL, 0, "cuda")
    kernel = convlab.compile((ROOT / "kernels" / "01_direct.cu").read_text(), engine="cuda")
    truth = F.conv2d(*(t.double() for t in given), padding=1)
    assert (kernel(*given, padding=1) - truth).abs().max() < 1e-5
    assert any(SMALL in tried for tried in rehearsal._rehearsed)


if __name__ == "__main__":
    _meet_faults()
