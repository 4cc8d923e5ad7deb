"""The script of the child in test_child.py; each request is a few words."""

import os
import signal
import sys
import time


def serve(server, *arguments):
    while True:
        word, *rest = server.request().decode().split()
        if word == "slow-start":
            time.sleep(float(rest[0]))
        server.begun()
        if word == "die":
            os.kill(os.getpid(), getattr(signal, rest[0]))
        elif word == "exit":
            os._exit(int(rest[0]))
        elif word == "sleep":
            time.sleep(float(rest[0]))
        elif word == "print":
            os.write(1, b"out")
            sys.stderr.write("err")
            sys.stderr.flush()
        elif word == "scribble":
            for descriptor in range(3, 10):
                try:
                    os.write(descriptor, b"scribble")
                except OSError:
                    pass
        elif word == "daemon":
            detach(rest[0])
            if rest[1:]:
                os.kill(os.getpid(), signal.SIGSEGV)
        elif word == "twice":
            server.reply(b"one")
        elif word == "arguments":
            rest = arguments
        server.reply(f"{os.getpid()} {' '.join(rest)}".encode())


def detach(path: str) -> None:
    """Leave a process in another session, after the end of its parent."""
    ready, go = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open(path, "w") as file:
                file.write(str(os.getpid()))
            os.write(go, b".")
            time.sleep(1000)
        os._exit(0)
    os.wait()
    os.read(ready, 1)
