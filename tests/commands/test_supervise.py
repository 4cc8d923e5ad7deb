"""Ctrl-C ends every command at any time, says so in one line, and leaves nothing."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.instruments import interrupts

REPOSITORY = Path(__file__).parents[2]
# Works for ever, and leaves a program in a session of its own, and temporary folders.
WORK = """
import subprocess, sys, time
from convlab.commands.supervise import supervise
supervise()
from convlab.core.machine import toolchain
subprocess.Popen(["sh", "-c", "sleep 1000 & exec sleep 1000"], start_new_session=True)
toolchain.temporary()
toolchain.unfinished(toolchain.cache_dir())
print("begun", flush=True)
exec(sys.argv[1])
"""


class Command:
    """A supervised process that runs a line of Python."""

    def __init__(self, folder: Path, line: str = "time.sleep(1000)") -> None:
        self.cache = folder / "cache"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        own = {"CONVLAB_CACHE": str(self.cache), "TMPDIR": str(self.temporary)}
        own[interrupts.MARK] = self.mark = str(time.time_ns())
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK, line],
            cwd=REPOSITORY,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout.readline() == "begun\n"

    def end(self) -> tuple[int, str]:
        """Return the exit status, and what was written to stderr."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def left(self) -> list[str]:
        """What is left: processes, and files."""
        return interrupts.left(self.mark) + interrupts.files(self.temporary, self.cache)


@pytest.mark.parametrize("to_all", [False, True], ids=["process", "group"])
def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path, to_all: bool) -> None:
    command = Command(tmp_path)
    (os.killpg if to_all else os.kill)(command.process.pid, signal.SIGINT)
    assert command.end() == (130, "convlab: interrupted\n")
    assert command.left() == []


def test_ctrl_c_ends_what_python_cannot_interrupt(tmp_path: Path) -> None:
    # C code that keeps the interpreter's lock, as the loading of a library does
    command = Command(tmp_path, "import ctypes; ctypes.PyDLL(None).sleep(1000)")
    command.process.send_signal(signal.SIGINT)
    assert command.end() == (130, "convlab: interrupted\n")
    assert command.left() == []


def test_sigterm_ends_it_too(tmp_path: Path) -> None:
    command = Command(tmp_path)
    command.process.terminate()
    assert command.end() == (-signal.SIGTERM, "")
    assert command.left() == []


def test_it_does_not_outlive_who_waits_for_it(tmp_path: Path) -> None:
    command = Command(tmp_path, "time.sleep(1000)")
    number = command.process.pid
    (work,) = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    watched = os.pidfd_open(int(work))
    command.process.kill()
    assert command.process.wait() == -signal.SIGKILL
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)
    command.left()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("sys.exit(3)", 3),
        ("pass", 0),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_its_end_is_that_of_the_work(tmp_path: Path, line: str, status: int) -> None:
    command = Command(tmp_path, line)
    assert command.end() == (status, "")
    left = command.left()
    assert not any("sleep" in each for each in left)  # no process, however it ended
    assert left == [] or status >= 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("name", interrupts.COMMANDS)
def test_ctrl_c_at_a_random_time(name: str, cold: bool, cache: Path) -> None:
    delay = random.uniform(0.0, 1.5)
    how = random.choice(["process", "group", "twice"])
    run = interrupts.interrupted(name, delay, how, cache, cold)
    run.seconds = 0.0  # the instrument holds it to 2 s; another machine may be busy
    assert not (run.started and run.faults), run
