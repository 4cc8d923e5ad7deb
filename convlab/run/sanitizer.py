"""Asks compute-sanitizer which line of a kernel it is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from ..machine import toolchain
from ..words.problem import Problem
from .kernel import Kernel
from .launch import integers
from .worker_process import kill_tree

_SECONDS = 30.0  # that it may take
_LAUNCHER = Path(__file__).with_name("bare_launch.py")


class Sanitized:
    """A kernel that runs once under compute-sanitizer, in the background, without torch."""

    def __init__(self, kernel: Kernel, problem: Problem) -> None:
        self._process = None
        self._advice = ""
        tool = toolchain.find("compute-sanitizer")
        if tool is None:
            name = kernel.path or kernel.name
            self._advice = (
                "compute-sanitizer is not installed; once it is (pip install "
                "nvidia-cuda-sanitizer-api, or a CUDA toolkit) it is asked too: python -c "
                f'"from convlab import load, problem, worker; print(worker.explain(load('
                f"'{name}'), problem('{problem}')))\""
            )
            return
        request = {
            "libraries": _cuda_libraries("cublas" in kernel.source),
            "library": str(kernel.build().library),
            "problem": integers(problem),
            "bytes": [4 * math.prod(shape) for shape in (
                problem.x_shape, problem.w_shape, (problem.K * problem.bias,), problem.y_shape)],
            "workspace_limit": kernel.workspace_limit,
            "device": torch.cuda.current_device(),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [tool, "--tool", "memcheck", "--show-backtrace", "no", "--print-limit", "1",
             sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(request)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip

    def finding(self) -> str:
        """What it found, once it has ended; on the way out, not to be called twice."""
        if self._process is None:
            return self._advice
        try:
            output, _ = self._process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return f"compute-sanitizer did not end within {_SECONDS:g} s"
        if finding := first_error(output):
            return f"compute-sanitizer: {finding}"
        if self._process.returncode:
            said = [line for line in output.splitlines() if line and not line.startswith("===")]
            return f"under compute-sanitizer it ended with: {said[-1] if said else 'no word'}"
        return "compute-sanitizer found nothing"

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            if self._process.poll() is None:
                kill_tree(self._process.pid)
            self._process.stdout.close()
            self._process.wait()


def first_error(output: str) -> str:
    """The first error in compute-sanitizer's output, on one line each: what, where, which thread.

    Each line of the report starts with "=========", what belongs to the line before is indented.
    """
    found: list[str] = []
    for line in output.splitlines():
        text = line.removeprefix("=========")
        if text == line or not text.strip():
            continue
        indented = text.startswith("  ")
        if not found:
            opening = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "Target application", "Error: ")
            if not indented and not text.strip().startswith(opening):
                found.append(text.strip())
        elif not indented or len(found) == 5 or "backtrace" in text:
            break
        else:
            found.append(text.strip())
    return "\n".join(found)


def _cuda_libraries(cublas: bool) -> list[str]:
    """The CUDA libraries that this process has loaded: those that kernels were linked against."""
    with open("/proc/self/maps") as maps:
        paths = dict.fromkeys(line.split(maxsplit=5)[-1].strip() for line in maps)
    names = ["libcudart.so", *(["libcublasLt.so", "libcublas.so"] if cublas else [])]
    return [path for name in names for path in paths if Path(path).name.startswith(name)]
