"""Launches any ``__global__`` function on the simulator, not one of a convolution."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.builds.source import Source
from ..core.errors import ProblemError
from .findings import Array
from .library import build
from .simulation import Arena, simulate
from .trace import Trace


def run(
    source: str | Path,
    entry: str,
    *args: object,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    shared: int = 0,
    **options: Any,
) -> Trace:
    """Launch a kernel of a self-contained CUDA C++ text on the simulator.

    Parameters
    ----------
    source : the text, or the path of a file.
    entry : the kernel's name; of a template with its arguments: ``"scan<float>"``.
    args : a value for each parameter: numpy arrays and torch tensors (on the CPU) for pointers,
        which hold afterwards what the kernel left in them; None for a null pointer; numbers.
    grid, block : one to three numbers.
    shared : bytes of dynamic shared memory.
    options : trace, schedule, time_limit, as for `convlab.sim.simulate`.

    Raises
    ------
    BuildError
        If the text does not compile.
    LaunchError
        If the kernel does something that a GPU would not forgive: see its ``findings``. The arrays
        are then as they were.
    ProblemError
        If an argument is neither array nor number.
    """
    path = Path(source) if isinstance(source, Path) or str(source).endswith(".cu") else None
    text = str(source) if path is None else path.read_text()
    wrapper = (
        f'\n#line 1 "sim_entry"\nextern "C" const char* sim_entry(const sim::Argument* a, '
        f'const unsigned* shape) {{ return sim::call({entry}, "{entry}", a, shape); }}\n'
    )
    whole = Source(text + wrapper, path.stem if path else re.sub(r"\W.*", "", entry), path)
    built = build(whole, trace=options.get("trace", True), entry="sim_entry")
    given: list[object] = []
    arrays: dict[str, torch.Tensor] = {}
    known: dict[int, str] = {}  # by what was given: twice the same is one buffer
    for label, value in zip(_parameters(text, entry, len(args)), args, strict=True):
        if isinstance(value, (np.ndarray, torch.Tensor)):
            if id(value) not in known:
                known[id(value)] = label
                arrays[label] = torch.as_tensor(value)
            given.append(known[id(value)])
        elif isinstance(value, (float, np.floating)):
            given.append(float(value))
        elif value is None or isinstance(value, (int, np.integer)):
            given.append(None if value is None else int(value))
        else:
            raise ProblemError(
                f"{label} is a {type(value).__name__}: give numpy arrays, torch tensors, None or "
                "numbers"
            )
    arena = Arena({key: a.numel() * a.element_size() for key, a in arrays.items()})
    for key, tensor in arrays.items():
        arena.arrays[key] = Array(tuple(tensor.shape), tensor.element_size())
        arena.tensors[key].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
    done = simulate(
        built.library,
        None,
        arena,
        label=entry,
        source=path or text,
        arguments=given,
        shape=[*_three(grid, "grid"), *_three(block, "block"), int(shared)],
        **options,
    )
    for key, tensor in arrays.items():
        tensor.copy_(arena.tensors[key].view(tensor.dtype).view(tensor.shape))
    return done


def _three(value: int | Sequence[int], name: str) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    if not 1 <= len(values) <= 3 or not all(isinstance(v, int) and 0 <= v < 2**32 for v in values):
        raise ProblemError(f"{name} is {value!r}: give one to three whole numbers")
    return values + [1] * (3 - len(values))


def _parameters(text: str, entry: str, count: int) -> list[str]:
    """A kernel's parameters' names, for messages; "argument0", ... where they are not plain."""
    bare = re.escape(re.sub(r"<.*", "", entry).rpartition("::")[2].strip())
    found = re.search(rf"__global__[^;{{}}]*?\b{bare}\s*\(([^)]*)\)", text)
    names = re.findall(r"(\w+)\s*(?:\[\s*\])?\s*(?:,|$)", found[1].strip()) if found else []
    plain = len(set(names)) == len(names) == count
    return names if plain else [f"argument{i}" for i in range(count)]
