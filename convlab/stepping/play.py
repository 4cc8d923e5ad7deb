"""Record the executions of one block, as a figure with a slider: `convlab.play`."""

from collections.abc import Collection, Sequence
from pathlib import Path

from ..core.arguments import several, whole
from ..core.errors import ProblemError
from ..core.kernel.kernel import Kernel
from ..core.problem.named import problem as named_problem
from ..core.problem.problem import Problem
from ..profile.sampling import simulate
from ..profile.warp_accesses import on_simulator, require_warp
from .pending import add_pending
from .playback import MOST_KB, Playback
from .steps import in_order

# The largest number of recorded executions. A block with more is recorded in part.
LIMIT = 200_000
Block = tuple[int, int, int]


def play(
    kernel: Kernel | str | Path,
    problem: Problem | str,
    *,
    block: int | Sequence[int] = (0, 0, 0),
    warp: int | None = None,
    launch: int | None = None,
    most_kb: int = MOST_KB,
) -> Playback:
    """Step through the executions of one block of a kernel, on the simulator.

    Parameters
    ----------
    kernel, problem : a `Kernel` of either engine, or its name or path; a problem of any size. It is
        not scaled down.
    block : blockIdx (x, y, z), or only x.
    warp : the number of a warp in the block; None records all warps.
    launch : the number of a launch, from 0; None chooses the one with the most shared memory. Only
        the first launch of each ``__global__`` function is recorded.
    most_kb : the largest page, in KB. If the block has more executions, the page has the first n
        executions of each source line by each warp, and says so.

    Returns
    -------
    Playback
        A notebook shows it as a figure with a slider. ``save("page.html")`` writes a page that
        needs no Python. ``widget()`` is the same with ipywidgets. ``steps`` has the data.

    Raises
    ------
    ProblemError
        No such launch, block or warp, or the block executes nothing that can be shown.
    UnsupportedError
        The kernel does not support the problem.
    LaunchError
        The kernel fails on the simulator, or the room ``sim`` is not installed.

    Examples
    --------
    >>> convlab.play("03_smem_tile", "N=1,C=4,H=12,W=34,K=8,R=3,S=3", warp=0)
    """
    kernel = on_simulator(kernel)
    problem = named_problem(problem)
    block = _block(block)
    most_kb = whole(most_kb, "most_kb", least=50)
    if warp is not None:
        warp = whole(warp, "warp", least=0)
    problem = kernel.asked(problem)
    kernel.accept(problem)
    record = (*block, -1 if warp is None else warp, LIMIT)
    trace = simulate(kernel, problem, record=record)
    # A product of cuBLAS has a number, too, but no entry among the launches.
    recorded = {step["launch"] for step in trace.executions} & {*range(len(trace.launches))}
    number = _launch(trace.launches, launch, kernel.name, recorded)
    chosen = trace.launches[number]
    if any(index >= size for index, size in zip(block, chosen["grid"], strict=True)):
        raise ProblemError(
            f"{chosen['kernel']} has no block {block}: its grid is {tuple(chosen['grid'])}; "
            "give a block inside it, or another launch"
        )
    require_warp([chosen], warp, chosen["kernel"])
    steps = in_order([step for step in trace.executions if step["launch"] == number])
    if not steps:
        raise ProblemError(
            f"block {block} of {chosen['kernel']} accesses no memory in launch {number}, or an "
            "earlier launch of the same function was recorded instead: give another launch"
        )
    add_pending(steps)
    return Playback(kernel, problem, block, warp, chosen, steps, trace.complete, most_kb)


def _block(block: int | Sequence[int]) -> Block:
    """Return blockIdx as (x, y, z)."""
    numbers = (block,) if isinstance(block, int) else several(block, "block")
    numbers = tuple(whole(n, "each of block's x, y, z", least=0) for n in numbers)
    if not 1 <= len(numbers) <= 3:
        raise ProblemError(f"block is {block}: give it as x, or as (x, y, z)")
    return (*numbers, 0, 0)[:3]


def _launch(
    launches: Sequence[dict], wanted: int | None, name: str, recorded: Collection[int]
) -> int:
    """Return the number of the launch to show.

    The default is, of the recorded launches, the last of those with the most shared memory.
    """
    if not launches:
        raise ProblemError(
            f"{name} launches nothing for this problem, so there is no block to show"
        )
    if wanted is None:
        return max(recorded or range(len(launches)), key=lambda i: (launches[i]["shared_bytes"], i))
    wanted = whole(wanted, "launch", least=0)
    if wanted >= len(launches):
        names = ", ".join(f"{i}: {launch['kernel']}" for i, launch in enumerate(launches))
        raise ProblemError(f"{name} has no launch {wanted}; its launches are {names}")
    return wanted
