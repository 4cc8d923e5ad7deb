"""Diagnose an answer without running it: from its syntax tree and the text of its strings.

Nothing is imported from the answer, and no compiler runs. torch is imported only to ask whether a
name exists in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .answer import Answer, called
from .cheats import cheats
from .load_inline_calls import load_inline_calls
from .mistake import Mistake
from .python_names import python_names, torch_names

# What an answer can be written in besides CUDA: the module that it imports, and its name.
_OTHER_LANGUAGES = {
    "triton": "Triton",
    "tilelang": "TileLang",
    "cupy": "CuPy",
    "numba": "Numba",
    "cutlass": "the CuTe DSL",
    "pycuda": "PyCUDA",
    "helion": "Helion",
}


def diagnose(answer: Answer, reference: Answer | None = None) -> list[Mistake]:
    """Return the mistakes that are visible without running an answer, in the order of their lines.

    Parameters
    ----------
    answer : the file with ``ModelNew``.
    reference : the file with ``Model``, ``get_inputs`` and ``get_init_inputs``; by default the same.
    """
    try:
        tree = answer.tree
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        text = f"this is not Python: {getattr(error, 'msg', error)}"
        return [Mistake("syntax", line, text, "correct the syntax")]
    if others := not_judged(answer):
        return others
    mistakes = [
        *_form(answer, reference or answer),
        *load_inline_calls(answer),
        *python_names(tree),
        *torch_names(tree),
        *cheats(answer),
    ]
    unique = list(dict.fromkeys(mistakes))
    return sorted(unique, key=lambda mistake: (mistake.line, not mistake.error))


def not_judged(answer: Answer) -> list[Mistake]:
    """Return what convlab cannot judge in an answer: kernels in another language, sources elsewhere."""
    found = []
    for node in ast.walk(answer.tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            language = _OTHER_LANGUAGES.get(name.split(".")[0])
            if language and not answer.calls:
                text = f"its kernel is in {language}, and convlab judges CUDA C++ in load_inline"
                todo = "judge it with the tools of that language, or write the kernel in CUDA C++"
                found.append(Mistake("not run", node.lineno, text, todo))
        if isinstance(node, ast.Call) and called(node) in _LOADS:
            text = "load() compiles files, and an answer is one file"
            todo = "put the sources into strings, and call load_inline(cpp_sources=..., cuda_sources=...)"
            found.append(Mistake("not run", node.lineno, text, todo))
    return found


_LOADS = ("load", "cpp_extension.load", "torch.utils.cpp_extension.load")


# ---- the form: classes, functions, numbers of arguments -----------------------------------------


def _form(answer: Answer, reference: Answer) -> Iterator[Mistake]:
    if "ModelNew" not in answer.classes and "ModelNew" not in answer.constants:
        yield _no_model_new(answer)
    try:
        names = {**reference.classes, **reference.functions}
    except (SyntaxError, ValueError):
        yield Mistake("form", 0, f"the reference {reference.path.name} is not Python", "correct it")
        return
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in names]
    if missing:
        # The file of the task is missing, which is no mistake of the answer.
        yield Mistake(
            "not run",
            0,
            f"{reference.path.name} has no {' and no '.join(missing)}, so there is nothing to compare with",
            "give the file of the task: --reference problem.py",
        )
    count = _returned(reference, "get_init_inputs")
    if count is not None:
        for owner, name in ((reference, "Model"), (answer, "ModelNew")):
            yield from _takes(owner, name, "__init__", count, "get_init_inputs")
    count = _returned(reference, "get_inputs")
    if count is not None:
        for owner, name in ((reference, "Model"), (answer, "ModelNew")):
            yield from _takes(owner, name, "forward", count, "get_inputs")


def _no_model_new(answer: Answer) -> Mistake:
    """Return the mistake of a file without ModelNew, at the line of the class that may be meant."""
    others = [node for name, node in answer.classes.items() if name != "Model"]
    modules = [
        node
        for node in others
        if any(called(base).split(".")[-1] in ("Module", "Model") for base in node.bases)
    ]
    if not modules:
        return Mistake("form", 0, "there is no class ModelNew", "write the answer as class ModelNew")
    text = f"there is no class ModelNew; is {modules[-1].name} the answer?"
    return Mistake("form", modules[-1].lineno, text, "name the class of the answer ModelNew")


def _returned(answer: Answer, name: str) -> int | None:
    """Return how many values the list has that a function returns; None if that is not visible."""
    function = answer.functions.get(name)
    if function is None:
        return None
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returns) != 1 or not isinstance(returns[0].value, (ast.List, ast.Tuple)):
        return None
    if any(isinstance(each, ast.Starred) for each in returns[0].value.elts):
        return None
    return len(returns[0].value.elts)


def _takes(answer: Answer, owner: str, method: str, count: int, source: str) -> Iterator[Mistake]:
    """Yield a mistake if a method of a class does not take this many arguments."""
    node = answer.classes.get(owner)
    if node is None:
        return
    found = [
        each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == method
    ]
    if not found:
        if method == "forward":
            yield Mistake(
                "form", node.lineno, f"{owner} has no method forward", "define forward(self, ...)"
            )
        elif count and [called(base).split(".")[-1] for base in node.bases] == ["Module"]:
            yield Mistake(
                "arguments",
                node.lineno,
                f"{source} returns {count} values, but {owner} has no __init__ that takes them",
                f"define __init__(self, ...) with {count} parameters",
            )
        return
    arguments = found[0].args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
    least = len(names) - len(arguments.defaults)
    most = None if arguments.vararg else len(names)
    if count >= least and (most is None or count <= most):
        return
    takes = str(most) if least == most else f"{least} to {most}"
    yield Mistake(
        "arguments",
        found[0].lineno,
        f"{owner}.{method} takes {takes} arguments ({', '.join(names)}), "
        f"but {source}() returns {count}",
        f"give {owner}.{method} the parameters of Model.{method}",
    )
