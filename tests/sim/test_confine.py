"""What a confined process can do: nothing but compute, read the given folders, and end."""

import subprocess
import sys
from pathlib import Path

import pytest

from convlab.sim import confine

# Each line tries something and prints its name if it was refused.
SCRIPT = """
import os, socket, sys, threading, time
import ctypes, resource
sys.path.insert(0, sys.argv[1])
import confine
parts = confine.available()
confine.confine(["/usr", "/lib", "/lib64"], 20)

def refused(name, function):
    try:
        function()
    except (OSError, ValueError, MemoryError, RuntimeError):
        print(name)

refused("write", lambda: open(sys.argv[2] + "/written", "w"))
refused("read", lambda: open(sys.argv[2] + "/secret").read())
refused("connect", lambda: socket.socket())
refused("fork", os.fork)
refused("run", lambda: os.execv("/bin/true", ["true"]))
refused("signal", lambda: os.kill(os.getppid(), 0))
refused("limits", lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40)))
refused("memory", lambda: bytearray(confine.MOST_MEMORY + (1 << 30)))
thread = threading.Thread(target=print, args=["thread"])
thread.start()
thread.join()
"""


def test_a_confined_process_can_compute_and_nothing_else(tmp_path):
    (tmp_path / "secret").write_text("42")
    if set(confine.available()) != {"limits", "system calls", "files"}:
        pytest.skip("this system has no seccomp or no Landlock")
    command = [sys.executable, "-c", SCRIPT, str(Path(confine.__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    words = "write read connect fork run signal limits memory thread"
    assert done.stdout.split() == words.split(), done.stderr
    assert not (tmp_path / "written").exists()
