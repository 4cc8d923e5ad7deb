"""convlab: a microscope for CUDA convolution kernels.

>>> import convlab
>>> kernel = convlab.load("03_smem_tile")          # kernels/03_smem_tile.cu
>>> y = kernel(x, w, stride=2, padding=1)          # called like torch.nn.functional.conv2d
>>> convlab.check(kernel, "square").ok             # against float64
>>> convlab.compare(problem="square").plot()       # all kernels side by side
>>> convlab.ab("03_smem_tile", "03_smem_tile@TILE=8", "wide").verdict
>>> convlab.inspect(kernel, "square").listing()    # why: what each source line costs
>>> convlab.best("square", "tf32")                 # which kernel for this problem, or the library

In a notebook, ``%load_ext convlab`` brings ``%%kernel`` and ``%convlab`` (`convlab.use.magics`).
Importing compiles nothing and touches no GPU.
"""

import os
import sys

_SCRIPT = os.path.join(os.path.dirname(sys.executable), "convlab")  # as pip installs it
_MODULE = sys.argv[:1] == ["-m"] and "-m convlab " in " ".join([*sys.orig_argv, ""])
if not _MODULE and sys.argv[:1] != [_SCRIPT]:  # which read their words before torch is imported
    from . import nn
    from .fast.ab import ab
    from .fast.best import best
    from .fast.compare import compare
    from .fast.receipts import load_result
    from .fast.sweep import sweep
    from .right.check import check
    from .run.kernel import Kernel, compile, load
    from .why import access_map, inspect
    from .words import errors
    from .words.problem import Problem, problem, problems


def load_ipython_extension(shell: object) -> None:
    """Register the notebook's magics: ``%load_ext convlab``."""
    from .use.magics import register  # IPython is there when this is called

    register(shell)


__all__ = [
    "Kernel", "Problem", "ab", "access_map", "best", "check", "compare", "compile", "errors",
    "inspect", "load", "load_result", "nn", "problem", "problems", "sweep",
]  # fmt: skip
