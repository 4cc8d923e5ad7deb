"""Functions that test_worker.py runs in the worker. Few imports, so that it starts fast."""

import ctypes
import os
import signal
import subprocess
import sys


class Stubborn(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, one, two):
        super().__init__(one)
        self.two = two


def fails(error):
    raise error


def fails_stubbornly():
    raise Stubborn("the text", "more")


def spins():
    while True:
        pass


def interrupts(pid):
    os.kill(pid, signal.SIGINT)
    while True:
        signal.pause()


def hangs_with_child(pid, path):
    child = subprocess.Popen(["sleep", "1000"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    os.kill(pid, signal.SIGINT)
    child.wait()


def prints(count, stream="stdout"):
    print("é" * count, end="", file=getattr(sys, stream))


def prints_each_way():
    ctypes.CDLL(None).printf(b"from C, ")
    ctypes.CDLL(None).fflush(None)
    os.write(1, b"from the system, ")
    print("from Python")


def tells_surroundings():
    variables = {key: value for key, value in os.environ.items() if key.startswith("CONVLAB_TEST")}
    return sys.path, variables


def nested(function):
    from convlab.isolate import worker

    return os.getpid(), worker.call(function)


def returns_generator():
    return (i for i in range(3))


def asserts_on_stderr(kernel, problem):
    print(
        "k.cu:7: void k(): block: [0,0,0], thread: [3,0,0] Assertion `p < P` failed.",
        file=sys.stderr,
    )
    raise RuntimeError("CUDA error: device-side assert triggered\nmore")
