"""Select the kernels that `compare` runs if you name none: a first answer in seconds.

These are the first rungs of the ladder, the best kernel of each precision class, and your own
kernels. No list of names is kept: the file names and the headers' ``best:`` lines decide.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..kernel.catalog import KERNEL_DIR, catalog
from ..kernel.kernel import Kernel, load
from ..kernel.shrink_to_fit import fit
from ..problem.problem import Problem

# Rungs with which the ladder begins: 01, 02 and 03. A rung such as 01b is a side step.
_FIRST_RUNGS = 3


def first_kernels(
    problems: Sequence[Problem], engine: str = "auto", scale: str | None = "auto"
) -> list[Kernel]:
    """Return the kernels for a first answer, in the order of their names.

    Parameters
    ----------
    problems : the problems to compare on; a kernel that is best on one of them is selected.
    engine : where the kernels run: "cuda", "sim" or "auto".
    scale : as for `compare`. A kernel must also support the smaller problem that is run.
    """
    kernels = [load(path, engine=engine) for path in catalog()]
    # A copy of a rung in the working directory's kernels/ is still that rung.
    shipped = [kernel for kernel in kernels if (KERNEL_DIR / kernel.path.name).exists()]
    computed = {problem.computes for problem in problems}
    kernels = [kernel for kernel in kernels if kernel.computes in computed]
    shipped = [kernel for kernel in shipped if kernel.computes in computed]
    rungs = [kernel for kernel in shipped if kernel.name.partition("_")[0].isdigit()]
    chosen = {kernel.name for kernel in kernels} - {kernel.name for kernel in shipped}
    chosen |= {kernel.name for kernel in rungs[:_FIRST_RUNGS]}
    for problem in problems:
        run = fit(problem, kernels, scale)[0] if kernels else problem
        able = [k for k in shipped if not k.unsupported(problem) and not k.unsupported(run)]
        chosen |= {kernel.name for kernel in _best_of_each_class(able, shipped, problem)}
    return [kernel for kernel in kernels if kernel.name in chosen]


def _best_of_each_class(
    able: Sequence[Kernel], kernels: Sequence[Kernel], problem: Problem
) -> list[Kernel]:
    """Return the best kernel of each precision class, by the rule of `convlab.best`.

    Of several that are best by their headers, the last by name is taken. In a class without any
    ``best:`` line this is the last kernel that supports the problem. But on a problem with groups, a
    kernel for such problems only goes before the others.
    """
    best = {}
    ruled = {kernel.precision for kernel in kernels if kernel.header.best is not None}
    for kernel in sorted(able, key=lambda kernel: _is_for_groups_only(kernel, problem)):
        precision = kernel.precision
        is_best = kernel.header.is_best(problem, *kernel.target, precision)
        if is_best or precision not in ruled:
            best[precision] = kernel
    return list(best.values())


def _is_for_groups_only(kernel: Kernel, problem: Problem) -> bool:
    """Return whether a kernel supports a problem with groups, but not the same one without them."""
    return problem.groups > 1 and bool(kernel.unsupported(replace(problem, groups=1)))
