"""Look up the kernels and the problem of a command's arguments, before any work is done.

Nothing here imports torch, except for a notebook, where variables may hold kernels.
"""

import functools
import itertools
import os
import re
import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..core import rooms
from ..core.arguments import choice, hint, writable
from ..core.defaults import BASELINES, ENDINGS
from ..core.errors import CatalogError, ProblemError
from ..core.kernel import catalog
from ..core.machine import toolchain
from ..core.machine.gpus import GPUS
from ..core.problem.named import PROBLEM_SETS, members, problems
from ..core.problem.problem import EPILOGUE, Problem
from .command import SPEC

_FIELDS = "|".join(field.name for field in fields(Problem))
# The beginning of a problem's dimensions: N1, N=1, or the first key=number of several.
_FIRST_DIMENSION = re.compile(r"[Nn]=?\d+(?=[\s,]|$)|\w+=\d+,")
# One of a problem's dimensions: C3, C=3, s2x1, stride=2.
_DIMENSION = re.compile(rf"(({_FIELDS})=-?|[NCHWKRSspdg]=?)\d+(x\d+)?,?")
# Words that are no kernel's name: dimensions that were misspelt or run together.
_LIKE_DIMENSIONS = re.compile(r"[A-Za-z_]+=-?\d|n\d+[a-z]\d|\d+x\d", re.IGNORECASE)
_LONGEST = 80


def look_up(arguments: Namespace, variables: Mapping[str, Any] | None = None) -> Namespace:
    """Return the arguments with their kernels and problem; raise for one that does not exist.

    Parameters
    ----------
    arguments : what the parser returned; it is changed. ``kernels`` becomes a list of names or
        runnables, ``problem`` a text, a Problem or None.
    variables : those of a notebook. A word may be the name of a variable that holds a kernel, a
        baseline, a callable (for ab) or a problem.

    Raises
    ------
    CatalogError, ProblemError
        There is no such kernel, baseline, problem or GPU; a problem is among the kernels; a kernel is a
        Python file; or a file cannot be written.
    """
    variables = variables or {}
    if "kernels" in arguments:
        _refuse_problems([*arguments.kernels, *_no_tunables(arguments)], variables)
    arguments.command.validate(arguments)
    if "kernels" in arguments:
        engine = getattr(arguments, "engine", "auto")
        arguments.kernels = [
            _kernel(word, variables, engine, arguments.command.name) for word in arguments.kernels
        ]
    if getattr(arguments, "problem", None) is not None:
        held = variables.get(arguments.problem)
        if isinstance(held, Problem | str):
            arguments.problem = held
        # This raises for a problem that does not exist.
        members(arguments.problem)
    if getattr(arguments, "gpu", None) is not None:
        arguments.gpu = choice(arguments.gpu, "GPU", GPUS)
    _require_files(arguments)
    return arguments


def problem_names() -> list[str]:
    """Return the names of all sets of problems, and of all problems."""
    names = [*PROBLEM_SETS]
    for set_name in PROBLEM_SETS:
        names += [problem.name for problem in problems(set_name)]
    return names


def _refuse_problems(words: Sequence[str], variables: Mapping[str, Any]) -> None:
    """Raise ProblemError if a problem, or a part of one, is among the kernels."""
    for index, word in enumerate(words):
        if _names_kernel(word, variables):
            continue
        if _is_problem(word, variables):
            parts = itertools.takewhile(_is_part, words[index + 1 :])
            problem = " ".join([word, *parts])
            if len(problem) > _LONGEST // 2:
                raise ProblemError(f"{problem[:40]}… is a problem: write --problem before it")
            raise ProblemError(f"{problem} is a problem: write --problem {shlex.quote(problem)}")
        if _is_part(word):
            raise ProblemError(
                f"{word} is part of a problem, not a kernel: put all of the problem in quotes, "
                f'as in --problem "wide bias relu" or --problem {SPEC}'
            )


def _no_tunables(arguments: Namespace) -> list[str]:
    """Return the words among a sweep's tunables that are not NAME=VALUES."""
    return [word for word in getattr(arguments, "tunables", ()) if word.count("=") != 1]


def _names_kernel(word: str, variables: Mapping[str, Any]) -> bool:
    """Return whether a word is exactly a kernel's name; then it is not a problem."""
    if variables and isinstance(variables.get(word), _runnable_class()):
        return True
    if catalog.is_path(word):
        return os.path.isfile(word)
    return any(path.stem == word for path in catalog.quiet_catalog())


def _is_problem(word: str, variables: Mapping[str, Any]) -> bool:
    """Return whether a word is a problem's name, its dimensions, or a variable that holds either."""
    held = variables.get(word)
    if isinstance(held, Problem):
        return True
    text = held if isinstance(held, str) else word
    if text.partition(" ")[0] in problem_names():
        return True
    return "@" not in text and "/" not in text and bool(_FIRST_DIMENSION.match(text))


def _is_part(word: str) -> bool:
    """Return whether a word is one dimension of a problem, or an ending such as bias."""
    return word in EPILOGUE or bool(_DIMENSION.fullmatch(word))


# The commands in which a file of another kind, such as an answer in Python, can be a kernel.
_WITH_FILES = ("check", "compare", "ab", "inspect", "sweep")


def _kernel_file(name: str, tunables: str, command: str) -> str:
    """Return the path of a file that a room reads as a kernel; raise for one that it cannot be."""
    path = Path(name)
    stem = path.stem[:_LONGEST]
    shown = path.name[:_LONGEST]
    if path.suffix not in rooms.names("kernel_file"):
        raise ProblemError(
            f"{shown} is a Python file, and convlab takes .cu files: paste the "
            f"CUDA string of the Python file into {stem}.cu, add the entry point `conv2d` (see "
            f"kernels/convlab.cuh), and write {stem}.cu instead"
        )
    if not path.is_file():
        raise CatalogError(f"there is no file {shown}")
    if command not in _WITH_FILES:
        raise ProblemError(
            f"{command} takes .cu files, and {shown} can be a kernel in {', '.join(_WITH_FILES)}: "
            f"`adopt {shown}` judges it, and `adopt {shown} --to {stem}.cu` writes a skeleton for {command}"
        )
    if tunables:
        raise ProblemError(
            f"{shown} takes no @{tunables[:_LONGEST]}: change the number in the file; `sweep {shown} "
            "NAME=8,16` tries several"
        )
    return name


def _kernel(word: str, variables: Mapping[str, Any], engine: str, command: str = "check") -> Any:
    """Return the runnable that a variable holds, else the word of a kernel or a baseline."""
    name, tunables = catalog.split_tunables(word)
    if Path(name).suffix in (".py", *rooms.names("kernel_file")):
        return _kernel_file(name, tunables, command)
    if variables:
        kernel = _held(name, tunables, variables, engine)
        if kernel is not None:
            return kernel
    if _LIKE_DIMENSIONS.match(word) and not catalog.is_path(word):
        raise ProblemError(
            f"{word} is no kernel: to set a tunable, write KERNEL@{word}; for a problem, by name or "
            f"dimensions, write --problem {SPEC}"
        )
    if ":" in name and not catalog.is_path(name):
        return choice(name, "baseline", BASELINES)
    _find(name, variables)
    return word


def _held(name: str, tunables: str, variables: Mapping[str, Any], engine: str) -> Any:
    """Return the kernel, baseline or callable that a variable holds, or None."""
    value = variables.get(name)
    if isinstance(value, _kernel_class()):
        kernel = value.tuned(tunables) if tunables else value
        return kernel if engine in ("auto", kernel.engine) else kernel.on(engine)
    if not tunables and (isinstance(value, _runnable_class()) or callable(value)):
        return value
    return None


def _find(name: str, variables: Mapping[str, Any]) -> None:
    """Raise CatalogError unless the catalog has the kernel; the message suggests a similar name."""
    try:
        catalog.find(name)
    except CatalogError:
        # A folder may have the name of a problem, which is the better hint.
        is_folder = os.path.isdir(name) and name not in problem_names()
        is_file = catalog.is_path(name) or os.path.isfile(name) or is_folder
        if is_file or hint(name, catalog.names()):
            raise
        kernels = [*_held_kernels(variables), *catalog.names(), *BASELINES]
        near = hint(name, kernels) or hint(name, [*problem_names(), *EPILOGUE])
        near = near or hint(name, kernels, catalog.SHOWN)
        raise CatalogError(f"no kernel is named {name!r}{near}") from None


def _held_kernels(variables: Mapping[str, Any]) -> list[str]:
    """Return the names of variables that hold kernels."""
    if not variables:
        return []
    kind = _kernel_class()
    return [
        key
        for key, value in variables.items()
        if isinstance(value, kind) and not key.startswith("_")
    ]


@functools.cache
def _kernel_class() -> type:
    from ..core.kernel.kernel import Kernel

    return Kernel


@functools.cache
def _runnable_class() -> type:
    from ..core.kernel.runnable import Runnable

    return Runnable


def _require_files(arguments: Namespace) -> None:
    """Raise ProblemError for a file that cannot be written, before the work is done."""
    if getattr(arguments, "plot", None):
        writable(arguments.plot, "--plot", ENDINGS)
    save = getattr(arguments, "save", None)
    if save:
        writable(save, "--save", (".json",))
    if save == "" and not toolchain.lasting():
        raise ProblemError(f"--save: receipts are deleted when Python ends: {toolchain.MOVE}")
