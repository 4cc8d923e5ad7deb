"""Names of Python and torch in an answer that nothing defines."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from ..core.arguments import hint
from .answer import called
from .mistake import Mistake

_NO_VARIABLE = ("__file__", "__name__", "__doc__", "__class__", "__builtins__", "__annotations__")


def python_names(tree: ast.Module) -> Iterator[Mistake]:
    """Yield the names that are used and bound nowhere in the file."""
    bound = {*dir(builtins), *_NO_VARIABLE}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            bound |= set(node.names)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
    reported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound | reported:
            reported.add(node.id)
            yield Mistake(
                "name", node.lineno, f"{node.id} is not defined", _import_of(node.id, bound)
            )


def _import_of(name: str, bound: set[str]) -> str:
    known = {
        "F": "add: import torch.nn.functional as F",
        "nn": "add: import torch.nn as nn",
        "np": "add: import numpy as np",
        "math": "add: import math",
        "os": "add: import os",
        "torch": "add: import torch",
        "load_inline": "add: from torch.utils.cpp_extension import load_inline",
    }
    near = hint(name, [each for each in bound if len(each) > 2]).removeprefix("; ")
    return known.get(name, f"define or import it{'; ' + near if near else ''}")


def torch_names(tree: ast.Module) -> Iterator[Mistake]:
    """Yield the names of torch, and methods of tensors, that torch does not have."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    modules[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and node.module == "torch" and not node.level:
            modules |= {alias.asname or alias.name: f"torch.{alias.name}" for alias in node.names}
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = called(node)
            root = name.partition(".")[0]
            if root in modules:
                uses.append((node.lineno, modules[root] + name[len(root) :]))
    if not uses:
        return
    try:
        import torch
    except ModuleNotFoundError:
        return
    reported = set()
    for line, name in uses:
        owner, missing = _resolve(torch, name)
        if missing and (owner, missing) not in reported:
            reported.add((owner, missing))
            near = hint(missing, [each for each in dir(_object(torch, owner)) if each[0] != "_"])
            yield Mistake(
                "method",
                line,
                f"{owner} has no {missing} in torch {torch.__version__.partition('+')[0]}{near}",
                "use a name that torch has",
            )
    yield from _methods(tree, torch.Tensor)


def _resolve(torch: object, name: str) -> tuple[str, str]:
    """Return the part of a dotted name that exists, and the first part that does not, or ""."""
    value = torch
    seen = "torch"
    for part in name.split(".")[1:]:
        # Only modules and classes have attributes that are known without running the answer.
        if not isinstance(value, (type(torch), type)):
            return seen, ""
        if not hasattr(value, part):
            import importlib.util

            try:
                is_module = importlib.util.find_spec(f"{seen}.{part}") is not None
            except (ImportError, ValueError):
                is_module = False
            return seen, "" if is_module else part
        value = getattr(value, part)
        seen = f"{seen}.{part}"
    return seen, ""


def _object(torch: object, name: str) -> object:
    value = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def _methods(tree: ast.Module, tensor: type) -> Iterator[Mistake]:
    """Yield methods of forward's parameters that torch.Tensor does not have."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name != "forward":
            continue
        parameters = {each.arg for each in function.args.args[1:]}
        for node in ast.walk(function):
            is_method = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if not is_method or node.value.id not in parameters:
                continue
            if not hasattr(tensor, node.attr) and isinstance(node.ctx, ast.Load):
                near = hint(node.attr, [each for each in dir(tensor) if each[0] != "_"])
                yield Mistake(
                    "method",
                    node.lineno,
                    f"torch.Tensor has no {node.attr}{near}",
                    "use a method that torch has",
                )
