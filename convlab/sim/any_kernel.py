"""Launch any ``__global__`` function on the simulator, not only a convolution."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.builds.source import Source
from ..core.errors import ProblemError
from .arrays import Array
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
    """Launch a kernel of a self-contained CUDA C++ source on the simulator.

    Parameters
    ----------
    source : the text, or the path of a file.
    entry : the kernel's name. For a template, include its arguments: ``"scan<float>"``.
    args : a value for each parameter: a number, a numpy array or torch tensor (on the CPU) for a
        pointer, or None for a null pointer. After the launch, the arrays hold the kernel's results.
    grid, block : one to three numbers each.
    shared : bytes of dynamic shared memory.
    options : trace, schedule and time_limit, as in `simulation.simulate`.

    Raises
    ------
    BuildError
        If the source does not compile.
    LaunchError
        If the simulator finds an error in the kernel; the exception has ``findings``. The arrays
        are then unchanged.
    ProblemError
        If an argument is neither an array nor a number nor None.

    Examples
    --------
    >>> any_kernel.run("scale.cu", "scale", x, 2.5, grid=1, block=64)
    """
    path = Path(source) if isinstance(source, Path) or str(source).endswith(".cu") else None
    text = str(source) if path is None else path.read_text()
    wrapper = (
        f'\n#line 1 "sim_entry"\nextern "C" const char* sim_entry(const sim::Argument* a, '
        f'const unsigned* shape) {{ return sim::call({entry}, "{entry}", a, shape); }}\n'
    )
    name = path.stem if path else re.sub(r"\W.*", "", entry)
    built = build(
        Source(text + wrapper, name, path), trace=options.get("trace", True), entry="sim_entry"
    )
    arguments, tensors = _arguments(_parameters(text, entry, len(args)), args)
    arena = Arena({key: a.numel() * a.element_size() for key, a in tensors.items()})
    for key, tensor in tensors.items():
        arena.arrays[key] = Array(tuple(tensor.shape), tensor.element_size())
        arena.tensors[key].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
    result = simulate(
        built.library,
        None,
        arena,
        label=entry,
        source=path or text,
        arguments=arguments,
        shape=[*_three(grid, "grid"), *_three(block, "block"), int(shared)],
        **options,
    )
    for key, tensor in tensors.items():
        tensor.copy_(arena.tensors[key].view(tensor.dtype).view(tensor.shape))
    return result


def _arguments(
    labels: Sequence[str], values: Sequence[object]
) -> tuple[list[object], dict[str, torch.Tensor]]:
    """Return the arguments of a request, and the tensors by name.

    The argument for a tensor is its name: the label of the first parameter with the same tensor.
    """
    arguments: list[object] = []
    tensors: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}
    for label, value in zip(labels, values, strict=True):
        if isinstance(value, (np.ndarray, torch.Tensor)):
            if id(value) not in names:
                names[id(value)] = label
                tensors[label] = torch.as_tensor(value)
            arguments.append(names[id(value)])
        elif isinstance(value, (float, np.floating)):
            arguments.append(float(value))
        elif isinstance(value, (int, np.integer)):
            arguments.append(int(value))
        elif value is None:
            arguments.append(None)
        else:
            raise ProblemError(
                f"{label} is a {type(value).__name__}: give a number, a numpy array, a torch "
                "tensor or None"
            )
    return arguments, tensors


def _three(value: int | Sequence[int], name: str) -> list[int]:
    """Return the extents of a grid or a block as three numbers."""
    values = [value] if isinstance(value, int) else list(value)
    if not 1 <= len(values) <= 3 or not all(isinstance(v, int) and 0 <= v < 2**32 for v in values):
        raise ProblemError(f"{name} is {value!r}: give one to three whole numbers")
    return values + [1] * (3 - len(values))


def _parameters(text: str, entry: str, count: int) -> list[str]:
    """Return the names of a kernel's parameters, for messages.

    If the declaration cannot be read, the names are "argument0", "argument1" and so on.
    """
    bare_name = re.escape(re.sub(r"<.*", "", entry).rpartition("::")[2].strip())
    declaration = re.search(rf"__global__[^;{{}}]*?\b{bare_name}\s*\(([^)]*)\)", text)
    names = []
    if declaration:
        names = re.findall(r"(\w+)\s*(?:\[\s*\])?\s*(?:,|$)", declaration[1].strip())
    if len(set(names)) == len(names) == count:
        return names
    return [f"argument{i}" for i in range(count)]
