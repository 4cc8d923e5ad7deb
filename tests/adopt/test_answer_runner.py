"""An answer in the core's functions: the runner of the confined process, and what it may send back."""

import os
import pickle
import socket
import subprocess
import time
from pathlib import Path

import pytest

from convlab.adopt import answer_runner, extension
from convlab.adopt.adoption import adopt
from convlab.core.correctness.examine import examine
from convlab.core.correctness.setting import ORDINARY
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.kernel import runner as runners
from convlab.core.kernel.function import Function
from convlab.core.kernel.kernel import resolve
from convlab.core.machine import landlock
from convlab.core.problem.named import problem
from convlab.core.timing.ab_timing import Paired
from convlab.core.timing.measure import Timing
from convlab.core.timing.ratio import estimate

ANSWERS = Path(__file__).with_name("answers")
SMALL = "N=2,C=4,H=6,W=7,K=6,R=3,S=3,stride=2,padding=1,groups=2,bias=1"


class Hostile:
    """A value whose pickle runs a command."""

    def __reduce__(self):
        return os.system, ("true",)


class Nested:
    """A value whose pickle calls a method of a class that may be made."""

    def __reduce__(self):
        return getattr, (Path("/"), "unlink")


@pytest.mark.pure
@pytest.mark.parametrize("value", [Hostile(), Nested(), [Timing(), Hostile()]])
def test_a_reply_makes_records_only(value):
    with pytest.raises(LaunchError, match="cannot be read"):
        answer_runner.loads(pickle.dumps(value))
    with pytest.raises(LaunchError, match="cannot be read"):
        answer_runner.loads(b"no pickle")


@pytest.mark.pure
def test_the_results_of_timing_can_be_sent():
    paired = Paired("cold", estimate((0.1, 0.2, 0.1)), (1.0,), (2.0,), 0, "graph", (1, 2, 3))
    assert answer_runner.loads(pickle.dumps([paired])) == [paired]
    timing = Timing(1e-3, 0.1, 7, True, sample_seconds=(1e-3, 2e-3))
    (again,) = answer_runner.loads(pickle.dumps([timing]))
    assert again.sample_seconds == timing.sample_seconds


@pytest.mark.pure
def test_an_answer_brings_its_runner_and_other_kernels_do_not(monkeypatch):
    answer = resolve(ANSWERS / "right_conv.py", "sim")
    rung = resolve("01_direct", "sim")
    assert runners.runner(rung, answer) is answer_runner.RUNNER
    assert runners.runner(rung) is not answer_runner.RUNNER
    # In the confined process everything runs at once.
    monkeypatch.setattr(runners, "_stays", True)
    assert runners.runner(rung, answer) is runners.IN_PROCESS
    assert pickle.loads(pickle.dumps(answer.coarser())).precision == "tf32"


@pytest.mark.pure
def test_a_callable_of_a_notebook_cannot_be_sent(monkeypatch):
    monkeypatch.setattr(answer_runner, "built_for", lambda spec: {})
    answer = resolve(ANSWERS / "right_conv.py", "sim")
    function = Function.of(lambda x, w, bias, *rest: x, "cpu")
    with pytest.raises(ProblemError, match="cannot be sent"):
        answer_runner.RUNNER.call(examine, answer, function, time_limit=1)


@pytest.mark.xdist_group("adopt")
def test_a_check_runs_in_the_confined_process():
    answer = resolve(ANSWERS / "right_conv.py", "sim")
    call = answer_runner.RUNNER.call
    report = call(examine, answer, problem(SMALL), 0, (), ORDINARY, time_limit=20)
    assert report.ok and report.kernel == "right_conv" and 0 < report.error < 1e-6
    # Of the class that it is checked in; and the weights are those of the check.
    coarse = call(examine, answer.coarser(), problem(SMALL), 1, (), ORDINARY, time_limit=20)
    assert coarse.ok and coarse.precision == "tf32" and coarse.bound > report.bound


@pytest.mark.xdist_group("adopt")
def test_an_incorrect_answer_is_incorrect_there_too(tmp_path):
    code = (ANSWERS / "right_conv.py").read_text()
    assert code.count("sum +=") == 1
    path = tmp_path / "doubled.py"
    path.write_text(code.replace("sum +=", "sum += 2 *"))
    answer = resolve(path, "sim")
    report = answer_runner.RUNNER.call(
        examine, answer, problem(SMALL), 0, (), ORDINARY, time_limit=20
    )
    assert not report.ok and report.wrong
    broken = tmp_path / "broken.py"
    wrong = code.replace("return conv.conv2d_forward(x", "return conv.conv2d_forward(x / (1 // 0)")
    assert wrong != code
    broken.write_text(wrong)
    with pytest.raises(LaunchError, match="ZeroDivisionError"):
        answer_runner.RUNNER.call(
            examine, resolve(broken, "sim"), problem(SMALL), 0, (), ORDINARY, time_limit=20
        )


@pytest.mark.gpu
@pytest.mark.xdist_group("adopt")
def test_an_error_of_the_answers_cpp_code_is_read_on_a_gpu(tmp_path):
    # A statically linked C++ runtime once lost the numbers, or crashed.
    code = (ANSWERS / "right_conv.py").read_text()
    path = tmp_path / "more.py"
    path.write_text(code.replace("return conv.conv2d_forward(", "return conv.conv2d_forward(*[1], "))
    found = adopt(path, simulate=False)
    assert "it takes 7 arguments, not 8" in found.why


@pytest.mark.gpu
@pytest.mark.xdist_group("adopt")
def test_an_answer_is_compared_with_rungs_on_a_gpu():
    from convlab.core.timing.ab import ab
    from convlab.core.timing.compare import compare

    large = "N=8,C=32,H=64,W=64,K=32,R=3,S=3"
    path = ANSWERS / "right_conv.py"
    result = ab(path, "03_smem_tile", large, mode="cold", limit_seconds=2)
    assert result.ok and result.engine == "cuda" and result.verdict in ("faster", "same", "slower")
    same = ab(path, path, large, mode="cold", limit_seconds=4)
    assert same.ok and 0.9 < same.ratio < 1.1
    table = compare([path, "01_direct"], large, limit_seconds=1)
    assert table.ok and (table.frame["time_ms"] > 0).all()


@pytest.mark.xdist_group("adopt")
def test_an_answer_that_ends_its_process_is_incorrect(tmp_path, capfd):
    code = (ANSWERS / "right_relu.py").read_text()
    path = tmp_path / "ends.py"
    path.write_text(code.replace("return self.relu", "print('CORRECT'); import os; os._exit(0); return self.relu"))
    found = adopt(path, engine="sim", general=False)
    assert found.outcome == "incorrect" and "ended its process" in found.why
    # What it prints is not in the command's output.
    assert "CORRECT" not in capfd.readouterr().out


HOSTILE = {
    "signal": "import os, signal\nos.kill({victim}, signal.SIGTERM)",
    "abstract socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0convlab_{victim}')",
    "tcp": "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "file": "open('{file}', 'w')",
    "delete": "import os\nos.remove('{file}')",
}


@pytest.mark.xdist_group("adopt")
@pytest.mark.parametrize("name", HOSTILE)
def test_what_an_answer_may_not_do_ends_it(name, tmp_path):
    code = (ANSWERS / "right_relu.py").read_text()
    file = tmp_path / "kept.txt"
    file.write_text("kept")
    with (
        subprocess.Popen(["sleep", "100"]) as victim,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        try:
            abstract.bind(f"\0convlab_{victim.pid}")
            abstract.listen()
            port = server.getsockname()[1]
            attack = HOSTILE[name].format(victim=victim.pid, port=port, file=file)
            path = tmp_path / "hostile.py"
            path.write_text(f"{attack}\n{code}")
            found = adopt(path, engine="sim", general=False)
            assert victim.poll() is None and file.read_text() == "kept"
        finally:
            victim.kill()
    if name in ("signal", "abstract socket") and landlock.version() < 6:
        pytest.skip("Landlock of this Linux does not know signals")
    assert found.outcome == "incorrect" and "PermissionError" in found.why
    assert "not permitted" in found.why or "denied" in found.why


@pytest.mark.xdist_group("adopt")
def test_a_fork_bomb_is_ended_at_its_limit(tmp_path):
    code = (ANSWERS / "right_relu.py").read_text()
    path = tmp_path / "bomb.py"
    # It grows slowly, and ends by itself: 6 generations in each second, for 20 seconds.
    bomb = "import os, time\nfor i in range(120):\n    os.fork()\n    time.sleep(1 / 6)\n"
    path.write_text(bomb + code)
    started = time.monotonic()
    found = adopt(path, engine="sim", general=False, time_limit=40)
    # Its processes share their memory until they write to it; the limit of memory may come first.
    reasons = ("it started more than 64 processes", "it used more than 8.0 GiB of memory")
    assert found.outcome == "incorrect" and any(each in found.why for each in reasons)
    assert time.monotonic() - started < 40


@pytest.mark.xdist_group("adopt")
def test_a_text_that_never_ends_stops_the_compiler(tmp_path, monkeypatch):
    code = (ANSWERS / "right_relu.py").read_text()
    path = tmp_path / "endless.py"
    path.write_text(code.replace("#include <torch/extension.h>", '#include "/dev/zero"', 1))
    assert path.read_text() != code
    monkeypatch.setattr(extension, "_COMPILER_GIBIBYTES", 1)
    found = adopt(path, engine="sim", general=False)
    assert found.builds is False and "more than 1 GiB of memory" in found.why
