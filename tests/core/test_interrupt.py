"""Ctrl-C in a process that continues: it ends the work, and raises KeyboardInterrupt after it."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from convlab.core.machine import child, interrupt


def ctrl_c() -> None:
    """Send SIGINT to this thread, the main one; its handler runs before this returns."""
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_raised_at_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        ctrl_c()
        done.append("the rest of the block")
    assert done == ["the rest of the block"]


def test_the_outermost_of_nested_blocks_raises() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        with interrupt.held():
            ctrl_c()
        done.append("after the inner block")
    assert done == ["after the inner block"]


def test_work_in_all_threads_is_ended() -> None:
    outcomes = []

    def wait() -> None:
        ended = threading.Event()
        try:
            with interrupt.at_work(ended.set):
                begun.release()
                outcomes.append(ended.wait(60))
        except KeyboardInterrupt:
            outcomes.append("KeyboardInterrupt")

    begun = threading.Semaphore(0)
    threads = [threading.Thread(target=wait) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        for thread in threads:
            thread.start()
        for _ in threads:
            begun.acquire()
        ctrl_c()
        for thread in threads:
            thread.join()
    assert sorted(outcomes, key=str) == ["KeyboardInterrupt"] * 3 + [True] * 3


def test_work_that_begins_later_is_ended_at_once() -> None:
    ended = []
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        ctrl_c()
        with interrupt.at_work(lambda: ended.append(True)):
            raise AssertionError("it began")
    assert ended == [True]


def test_an_error_that_it_causes_is_hidden() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupt.held():
        ctrl_c()
        raise RuntimeError("the compiler died")
    assert caught.value.__suppress_context__


def test_the_next_block_is_not_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        ctrl_c()
    with interrupt.held(), interrupt.at_work(print):
        pass


def test_a_second_ctrl_c_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "_PATIENCE", 0.0)
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        ctrl_c()
        done.append("after the first")
        time.sleep(0.001)
        ctrl_c()
        done.append("after the second")
    assert done == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_users_handler_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(True))
    try:
        with interrupt.held():
            pass
        ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [True]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt.held():
            ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_block_in_another_thread_has_no_effect() -> None:
    handlers = []

    def look() -> None:
        with interrupt.held():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_a_program_is_ended_with_its_descendants() -> None:
    seconds = f"{time.time_ns()}"  # the argument of sleep; no other process has this number
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt), interrupt.held():
        child.run(["sh", "-c", f"setsid sleep {seconds} & exec sleep {seconds}"], None)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert seconds not in listed.stdout


IMPORTS = """
import os, signal, threading
import convlab
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    convlab.check
except KeyboardInterrupt:
    print("interrupted")
import torch
print(torch.ones(2).sum().item(), convlab.check.__name__)
"""


def test_an_interrupted_import_leaves_torch_whole() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert done.stdout == "interrupted\n2.0 check\n", done.stderr
