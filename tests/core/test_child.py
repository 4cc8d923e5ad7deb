"""A child process that may crash: it replies or reports how it ended, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convlab.core.machine import child
from tests.processes import ended

SCRIPT = Path(__file__).with_name("child_script.py")


@pytest.fixture
def process():
    process = child.Child(SCRIPT, "a", "b", options=["-I", "-S"])
    yield process
    process.stop()


def ask(process: child.Child, words: str, limit: float | None = 20.0) -> tuple[int, str]:
    pid, _, rest = process.ask(words.encode(), limit).decode().partition(" ")
    return int(pid), rest


def test_one_process_replies_to_all_requests(process):
    assert ask(process, "arguments")[1] == "a b"
    first = ask(process, "x one")
    assert first[1] == "one" and first[0] != os.getpid()
    assert ask(process, "x two") == (first[0], "two")


def test_a_process_that_is_started_early_takes_the_first_request(process):
    process.start()
    early = process._process.pid
    process.start()
    assert process._process.pid == early
    assert ask(process, "x one")[1] == "one" and process._process.pid == early


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("exit 3", 3, "exit status 3"),
        ("exit 0", 0, "exit status 0"),
        ("die SIGSEGV", -signal.SIGSEGV, "SIGSEGV"),
        ("die SIGKILL", -signal.SIGKILL, "SIGKILL, sent from outside"),
    ],
)
def test_its_end_is_reported_and_the_next_request_starts_another(process, words, status, text):
    with pytest.raises(child.Died, match=text) as caught:
        ask(process, words)
    assert caught.value.status == status and caught.value.begun
    assert ask(process, "x y")[1] == "y"


def test_time_limit_counts_from_the_beginning(process):
    assert ask(process, "slow-start 0.3", 0.1)[1] == "0.3"
    with pytest.raises(child.TimedOut, match="stopped after 0.1 s") as caught:
        ask(process, "sleep 60", 0.1)
    assert caught.value.begun
    assert ask(process, "x y")[1] == "y"


@pytest.mark.parametrize("words", ["sleep 1000", "slow-start 1000"])
def test_a_process_that_ignores_its_socket_is_killed(process, words, monkeypatch):
    pid, _ = ask(process, "x")
    for limit in ("START_LIMIT", "STOP_LIMIT"):
        monkeypatch.setattr(child, limit, 0.2)
    with pytest.raises(child.TimedOut, match="stopped after 0.2 s") as caught:
        ask(process, words, 0.2)
    assert caught.value.begun == (words == "sleep 1000") and ended(pid, 0)


def test_a_stopped_keeper_is_killed_with_its_child(process, monkeypatch):
    pid, _ = ask(process, "x")
    monkeypatch.setattr(child, "STOP_LIMIT", 0.2)
    os.kill(process._process.pid, signal.SIGSTOP)
    process.stop()
    assert ended(pid)


def test_a_copy_of_its_socket_does_not_keep_it_alive(process):
    """A process that was forked in between may have such a copy."""
    pid, _ = ask(process, "x")
    copy = os.dup(process._connection.fileno())
    started = time.monotonic()
    process.stop()
    assert ended(pid, 0) and time.monotonic() - started < child.STOP_LIMIT / 2
    os.close(copy)


def test_what_it_prints_appears_here(process, capsys):
    ask(process, "print")
    assert capsys.readouterr() == ("out", "err") and process.printed == "err"
    ask(process, "x")
    assert process.printed == ""


def test_stray_writes_do_not_reach_the_socket(process):
    pid, _ = ask(process, "scribble")
    assert ask(process, "x y") == (pid, "y")


def test_a_late_reply_is_not_the_next_request_s(process):
    assert process.ask(b"twice", 20.0) == b"one"
    assert ask(process, "x y")[1] == "y"


@pytest.mark.parametrize("crash", ["", " crash"], ids=["stopped", "crashed"])
def test_a_detached_process_ends_with_it(tmp_path, crash):
    process = child.Child(SCRIPT, options=["-I", "-S"])
    try:
        ask(process, f"daemon {tmp_path}/pid{crash}")
    except child.Died:
        assert crash
    process.stop()
    assert ended(int((tmp_path / "pid").read_text()), 0)


def test_a_process_killed_between_requests_is_replaced(process):
    pid, _ = ask(process, "x")
    os.kill(pid, signal.SIGKILL)
    assert ask(process, "x")[0] != pid


def test_a_fork_does_not_share_it(process):
    pid, _ = ask(process, "x")
    fork = os.fork()
    if fork == 0:
        other, _ = ask(process, "x")
        process.stop()
        os._exit(other == pid)
    assert os.waitpid(fork, 0)[1] == 0
    assert ask(process, "x")[0] == pid


def test_it_outlives_the_thread_that_started_it(process):
    pids = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: pids.append(ask(process, "x")[0]))
        thread.start()
        thread.join()
        time.sleep(0.05)
    assert pids[0] == pids[1]


def test_it_inherits_no_descriptor(process, tmp_path):
    ask(process, "x")
    process.stop()
    with open(tmp_path / "file", "w") as file:
        os.set_inheritable(file.fileno(), True)
        pid, _ = ask(process, "x")
        held = {os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")}
    assert str(tmp_path / "file") not in held
    low = [int(each) for each in os.listdir(f"/proc/{pid}/fd") if 2 < int(each) < 200]
    assert low == []


PARENT = f"""
import signal, sys
sys.path.insert(0, {str(Path(child.__file__).parents[1])!r})  # without torch
from pathlib import Path
from machine import child
process = child.Child(Path({str(SCRIPT)!r}), options=["-I", "-S"])
print(process.ask(b"x", 20).split()[0].decode(), flush=True)
if sys.argv[1] == "busy":
    process.ask(b"sleep 1000", None)
elif sys.argv[1] == "idle":
    signal.pause()
"""


@pytest.mark.parametrize("end", ["exits", "idle", "busy"])
def test_it_ends_with_this_process(end):
    command = [sys.executable, "-c", PARENT, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        if end != "exits":
            parent.kill()
        assert ended(pid)


def test_a_program_runs_to_its_end():
    done = child.run(["sh", "-c", "echo out; echo err >&2; exit 5"], 20.0)
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\n", "err\n")
    done = child.run(["sh", "-c", "echo $A; kill -6 $$"], 20, {"A": "b"})
    assert (done.returncode, done.stdout) == (-6, "b\n")


def test_a_program_past_its_limit_leaves_nothing(tmp_path):
    text = f"(setsid sleep 1000 & echo $! > {tmp_path}/pid); sleep 1000"
    with pytest.raises(subprocess.TimeoutExpired):
        child.run(["sh", "-c", text], 1.0)
    assert ended(int((tmp_path / "pid").read_text()), 0)
