"""The grader's process, which `machine.child` starts: it grades one file for each request.

A request is JSON: the path of modules, the file's name and text, the lab's file and the engine. The
reply is JSON too. What a kernel prints is not shown. This process and all that it starts have a
limit of memory; each simulated run is confined (``convlab/sim/confine.py``).
"""

import contextlib
import io
import json
import os
import resource
import sys
import traceback

# The most private memory of a process: the compiler's, for example.
_MOST_MEMORY = 8 << 30


def serve(server) -> None:
    """Grade a file for each request."""
    while True:
        request = json.loads(server.request())
        sys.path[:] = request["path"]
        # Simulated runs are confined, and blocks run in their order: the same answer twice.
        os.environ |= {"CONVLAB_CONFINED": "1", "CONVLAB_SIM_THREADS": "1"}
        if request["engine"] == "sim":
            resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
        server.begun()
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            try:
                reply = {"grade": _grade(request)}
            except Exception as error:
                reply = _failed(error)
        server.reply(json.dumps(reply).encode())


def _grade(request: dict) -> dict:
    from pathlib import Path

    from convlab.course.grading import Grading
    from convlab.course.lab import find_lab
    from convlab.course.submission import parse

    submission = parse(request["source"], Path(request["name"]))
    return Grading(submission, find_lab(request["lab"]), request["engine"]).run()


def _failed(error: Exception) -> dict:
    """Return the reply for an exception: the text of one of convlab's, the traceback of another."""
    from convlab.core.errors import ConvlabError

    if isinstance(error, ConvlabError):
        return {"refused": str(error)}
    return {"failed": "".join(traceback.format_exception(error))[-2000:]}
