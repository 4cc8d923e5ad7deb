"""The meaning of each kind of fault, and what to do next: the table behind the messages.

``faults.md``, next to this file, is the page for readers. It has the same two texts for each kind,
and the usual causes.
"""

from collections.abc import Iterable
from typing import NamedTuple


# The end of an advice that a report without patterns leaves out.
PATTERNS_SAY = "; the patterns say where to look"


class Fault(NamedTuple):
    """A kind of fault: what it means, and what to do next."""

    meaning: str
    advice: str


FAULTS: dict[str, Fault] = {
    "illegal address": Fault(
        "a thread read or wrote an address outside every buffer",
        "compare every index with the size of its array, first on the line that the simulator "
        "reports; if it reports none, the bug needs the full size: make products of "
        "dimensions `int64_t`",
    ),
    "misaligned address": Fault(
        "an address is not a multiple of the size of the access, such as 16 bytes for a float4",
        "use float4 or float2 only where the address is a multiple of 16 or 8 bytes, and load "
        "single floats elsewhere",
    ),
    "device assert": Fault(
        "an assert() in the kernel failed",
        "print the values with `printf` before the assertion; the simulator stops at the same "
        "assertion",
    ),
    "endless loop": Fault(
        "the kernel made no progress until the time limit passed",
        "look for a loop that never ends, and for a barrier that not every thread reaches; if "
        "the kernel is only slow, raise the limit: load(..., time_limit=SECONDS)",
    ),
    "out of time": Fault(
        "the time limit passed, but the kernel may only be slow: it made progress, or the problem "
        "is large; this does not say whether it is correct",
        "use a smaller problem, or a GPU, or a larger limit: `--time-limit SECONDS`, or load(..., "
        "time_limit=SECONDS)",
    ),
    "launch configuration": Fault(
        "the GPU rejected the launch, and no thread ran",
        "print grid, block and shared memory bytes before the launch; put large extents in "
        "`grid.x`; limit registers with `__launch_bounds__`",
    ),
    "launch failure": Fault(
        "the GPU stopped the kernel",
        "run it on the simulator, which reports the cause and its line",
    ),
    "host crash": Fault(
        "the kernel's host code ended the process",
        "look only at the entry point, because device code cannot end the process: at null "
        "and stale pointers, arrays on the stack, abort() and exit()",
    ),
    "out of memory": Fault(
        "the GPU has too little free memory",
        "use a smaller problem (Problem.scaled) or load(..., workspace_limit=BYTES), or free "
        "the memory that torch caches in this process: torch.cuda.empty_cache()",
    ),
    "invalid worker state": Fault(
        "the worker process failed",
        "call again: a new worker starts; if that fails too, read what the worker printed, "
        "and load the kernel with isolate=False, which runs it in your own process, to see "
        "the error itself",
    ),
    "not run": Fault(
        "this machine could not run the kernel: a process, a thread, memory, an open file or a "
        "compiler was missing; this says nothing about the kernel",
        "raise the limit or free the resource that the message names (`ulimit -n`, `ulimit -u`, "
        "`ulimit -v`, disk space), and call again",
    ),
    "global out of bounds": Fault(
        "a load or store outside a buffer; the message gives the buffer, the element and the "
        "buffer's size",
        "compare the index with the size of that array before the access; check the indices "
        "of the last block, and use 0 for the halo outside the image",
    ),
    "shared out of bounds": Fault(
        "an access outside a `__shared__` array",
        "compute the array's size from TILE, stride, dilation, R and S in one place, and use "
        "it in the kernel and in its launch",
    ),
    "index out of bounds": Fault(
        "an index is negative, or not below the array's size, which the message gives; each "
        "dimension of a local array, a table or an array in a struct is checked by itself",
        "compare the loop's bound with the array's declaration",
    ),
    "shared memory": Fault(
        "the block's `__shared__` arrays are too large: the limits are 48 KB for arrays of "
        "fixed size, and 227 KB in all (on the simulated GPU)",
        "use a smaller tile, or fewer channels at a time; for more than 48 KB use `extern "
        "__shared__` and `cudaFuncSetAttribute`",
    ),
    "store to an input": Fault(
        "the kernel wrote to x, w or bias, or to `__constant__` memory",
        "declare x, w and bias as `const float*`; the compiler then reports the line",
    ),
    "host access": Fault(
        "host code (`conv2d`, `conv2d_prepare`) reads or writes GPU memory: x, w, bias, y, "
        "the workspace or memory from `cudaMalloc`; on a GPU this crashes the process",
        "do it in a kernel, or with `cudaMemsetAsync` or `cudaMemcpyAsync` on the stream",
    ),
    "misaligned access": Fault(
        "an address is not a multiple of the size of the access, such as 16 bytes for a float4",
        "use float4 or float2 only where the address is a multiple of 16 or 8 bytes, and load "
        "single floats elsewhere",
    ),
    "null pointer": Fault(
        "an access through a null pointer",
        "find where that line's pointer comes from: test `bias` before you read it; request "
        "the workspace in `conv2d_workspace`; set any other pointer before the launch",
    ),
    "race": Fault(
        "two threads access the same word with no synchronization between them, and at least "
        "one of them writes",
        "if both threads are in one block, put a barrier between the two lines; if they are "
        "in two blocks, let one thread write each output, add with atomics, or call "
        "`__threadfence()` before a signal and after its read",
    ),
    "uninitialised read": Fault(
        "a thread reads shared memory, workspace or y before anything wrote it",
        "find the thread that should have written that element, and let it store 0 where "
        "there is no input",
    ),
    "stale read": Fault(
        "`__ldg` reads memory that the same kernel writes",
        "use a plain load; `__ldg` is for x, w and bias",
    ),
    "divergent barrier": Fault(
        "threads of one block wait at different `__syncthreads()`",
        "move the barrier out of the `if` or the loop",
    ),
    "copy not waited for": Fault(
        "the destination of an asynchronous copy is used before the copy is complete: without "
        "`__pipeline_wait_prior` in the thread that issued it and a barrier after that, or, "
        "for a bulk copy, without `mbarrier_wait`; or no `wgmma_wait` completes a `wgmma`",
        "call `__pipeline_wait_prior`, then `__syncthreads()`, and only then use the data; "
        "for a bulk copy, call `mbarrier_wait` in each thread that uses it; after the last "
        "`wgmma`, `wgmma_commit()`, then `wgmma_wait(0)`",
    ),
    "overwritten too early": Fault(
        "a thread stores to shared memory that a bulk copy or a `wgmma` may still read, or the block "
        "ends before a bulk copy has read it",
        "call `bulk_wait_read` or `wgmma_wait` before the store or the end; if other threads store, let "
        "the waiting thread then arrive on an mbarrier that they wait on",
    ),
    "no proxy fence": Fault(
        "`wgmma` and bulk copies access shared memory through the async proxy, plain stores "
        "through the generic proxy, and there is no fence between the two",
        "let each thread call `fence_proxy_async()` after its stores, and put a barrier after "
        "the fence",
    ),
    "no wgmma fence": Fault(
        "a `wgmma` starts without a fence while its accumulators are in registers: at their "
        "first use, or after a `wgmma_wait`",
        "call `wgmma_fence()` before the first `wgmma` of a group",
    ),
    "wgmma": Fault(
        "not all threads of a warpgroup execute the same operations with the same descriptors",
        "execute each operation in all four warps, and compute its descriptors from values that "
        "are equal in the whole warpgroup",
    ),
    "mbarrier": Fault(
        "an mbarrier is used before `mbarrier_init`, gets more arrivals than it expects, or "
        "has an invalid count or parity",
        "initialise the mbarrier in one thread, with the number of arrivals, and put a "
        "barrier after that",
    ),
    "deadlock": Fault(
        "threads wait for others that never arrive: in a warp operation, or on a phase of an "
        "mbarrier that never completes (too few arrivals, bytes that no copy delivers, the "
        "wrong parity)",
        "let those threads take part in loads, barriers and warp operations, and skip only "
        "their stores",
    ),
    "warp mask": Fault(
        "a warp operation's mask names lanes that do not take part, or omits the calling lane",
        "call it where all 32 lanes take part, or build the mask with `__ballot_sync` before "
        "the `if`",
    ),
    "arithmetic": Fault(
        "an integer division by zero",
        "round such quotients up",
    ),
    "assert": Fault(
        "an assert() in the kernel failed",
        "print the values with `printf` before the assertion",
    ),
    "trap": Fault(
        "the kernel called `__trap()`",
        "find the condition that leads to that line",
    ),
    "abort": Fault(
        "the code called `abort()` or `exit()`, threw an exception that nothing catches, or "
        "executed an illegal instruction, such as the end of a function that lacks its "
        "`return`",
        "return an error text from `conv2d` instead: it becomes the error's message; end "
        "every function that has a result with a `return`",
    ),
    "launch in a kernel": Fault(
        "a kernel launches another kernel (dynamic parallelism), which convlab supports "
        "neither on a GPU nor on the simulator",
        "launch both from the host, one after the other",
    ),
    "stack overflow": Fault(
        "a thread's local variables need more memory than the simulator gives it",
        "put large arrays into shared memory, or make them smaller",
    ),
    "memory": Fault(
        "this machine's memory, or its limit on address space (`ulimit -v`), is too small for "
        "the simulation",
        "use a smaller problem: `Problem.scaled`",
    ),
    "compiler warning": Fault(
        "nvcc, which also compiles the kernel during a check on the simulator, warns about "
        "this line",
        "fix the line if nvcc has a point; an unused variable may be one that you forgot to use",
    ),
    "written twice": Fault(
        "two threads stored the same value to one place, with no synchronization between them",
        "let one of the two store it: blocks or tiles overlap there",
    ),
    "barrier after exit": Fault(
        "threads wait at a barrier after other threads of their block have returned",
        "let all threads reach every barrier, and skip only the stores",
    ),
    "shuffle outside the mask": Fault(
        "a shuffle reads from a lane that its mask does not name",
        "add the lanes that are read to the mask, with `__ballot_sync`",
    ),
    "allocation": Fault(
        "`conv2d` calls `cudaMalloc` or a similar function: it waits for the GPU, and a CUDA "
        "graph cannot capture it",
        "let `conv2d_workspace` return the bytes that you need; put data that depends only on "
        "the filter into the plan (`conv2d_plan`)",
    ),
    "refused launch": Fault(
        "a CUDA call failed, as it would on a GPU",
        "check grid, block and shared memory bytes, and read the error that the call returned",
    ),
    "wrong result": Fault(
        "outputs are incorrect",
        "compute the first incorrect output by hand, from the index formula, on the smallest "
        f"problem that fails{PATTERNS_SAY}",
    ),
    "too imprecise": Fault(
        "rounding errors exceed the bound of the kernel's precision class, or sums of small "
        "integers are not exact",
        "keep products and their sums in fp32 until y is stored, or declare the precision "
        "class that the kernel has",
    ),
    "wrong after other calls": Fault(
        "its first call is correct, but a call after other problems or other data is not",
        "look at what the kernel keeps between calls (static variables, `__device__` arrays, "
        "values in the workspace), and compute it again: an equal size or address does not "
        "mean equal numbers",
    ),
    "never written": Fault(
        "outputs still hold what was there before the run",
        "compare the grid, and the bounds check of its last block, with the number of outputs: N*K*P*Q of y, "
        "N*C*H*W of dx, K*(C/groups)*R*S of dw",
    ),
    "not repeatable": Fault(
        "a second run on the same data gave different bits; or, in a kernel with `atomics: "
        "yes`, incorrect outputs",
        "run it on the simulator, which reports the lines of a race; if the kernel adds with "
        "atomics, write `atomics: yes` in the header",
    ),
    "wrong stream": Fault(
        "work is on another stream than `conv2d`'s last argument, and nothing orders the two",
        "launch on `conv2d`'s last argument: `<<<grid, block, bytes, stream>>>`; let any other "
        "stream wait for it first, and let it wait for the other stream at the end",
    ),
    "does not build": Fault(
        "the compiler rejected the file, or there is no compiler",
        "fix the first error; the others often follow from it",
    ),
    "not simulated": Fault(
        "the kernel uses a part of CUDA that the simulator does not support; this says nothing "
        "about the kernel, which may be correct",
        "check it on a GPU, or replace the construct that the message names",
    ),
    "refused": Fault(
        "the entry point returned an error",
        "read the text of that error",
    ),
    "too little workspace": Fault(
        "the kernel needs more workspace than the limit",
        "raise the limit with load(..., workspace_limit=BYTES), or compute in parts",
    ),
    "invalid workspace": Fault(
        "the size that `conv2d_workspace` returned is larger than the memory of any GPU",
        "compute it in `size_t` or `int64_t`: a product of `int`s overflowed, or the size is negative",
    ),
    "unsupported": Fault(
        "the kernel's header excludes this problem: by `supports:`, `arch:` or `epilogue:`",
        "choose a problem that it supports, or another kernel",
    ),
}

# The outcomes of a check. "unsupported" means that the kernel's own header excludes the problem.
CORRECT = "correct"
INCORRECT = "incorrect"
NOT_RUN = "not run"
OUT_OF_TIME = "out of time"
NOT_SIMULATED = "not simulated"
UNSUPPORTED = "unsupported"
# The kinds that say nothing about the kernel, each with the outcome of a check that it ends. Every
# other kind of error makes the kernel incorrect.
_OUTCOMES = {
    "not run": NOT_RUN,
    "memory": NOT_RUN,
    "out of memory": NOT_RUN,
    "invalid worker state": NOT_RUN,
    "out of time": OUT_OF_TIME,
    "not simulated": NOT_SIMULATED,
    "unsupported": UNSUPPORTED,
}
# The outcomes as sentences have them. The first one that occurs decides about several problems or
# kernels.
SHOWN = {
    INCORRECT: "INCORRECT",
    NOT_RUN: "could not run",
    OUT_OF_TIME: "out of time",
    NOT_SIMULATED: "not supported by the simulator",
    UNSUPPORTED: "unsupported",
    CORRECT: "correct",
}


# The most bytes of workspace that a kernel may ask for. No GPU has as many.
MOST_WORKSPACE = 1 << 46


def outcome(kinds: Iterable[str]) -> str:
    """Return the outcome of one run with errors of these kinds; "correct" without an error.

    What the simulator does not support decides over all else, because other errors follow from it.

    >>> outcome([]), outcome(["out of time"]), outcome(["out of time", "race"])
    ('correct', 'out of time', 'incorrect')
    """
    outcomes = {_OUTCOMES.get(kind, INCORRECT) for kind in kinds}
    return NOT_SIMULATED if NOT_SIMULATED in outcomes else heaviest(outcomes)


def heaviest(outcomes: Iterable[str]) -> str:
    """Return the outcome that decides about several; "correct" for none."""
    return min(outcomes, key=[*SHOWN].index, default=CORRECT)


# Warnings that the sentence of a correct kernel has, because the contract or CUDA forbids what it does.
_FORBIDDEN = {
    "allocation": "it allocates GPU memory in its entry point",
    "refused launch": "one of its CUDA calls fails",
    "shuffle outside the mask": "a shuffle reads from a lane that its mask does not name",
    "race": "lanes of a warp exchange values without __syncwarp",
}


def reservations(kinds: Iterable[str]) -> str:
    """Return what is forbidden although the outputs are correct, as the end of a sentence; or "".

    `kinds` are those of the warnings.

    >>> reservations(["compiler warning", "allocation"])
    ', but it allocates GPU memory in its entry point (warning)'
    """
    kinds = set(kinds)
    said = [text for kind, text in _FORBIDDEN.items() if kind in kinds]
    if not said:
        return ""
    return f", but {' and '.join(said)} (warning{'s' * (len(said) > 1)})"


# Kinds of findings that are consequences: of a fault of another kind, if there is one.
_CONSEQUENCES = ("not repeatable", "wrong after other calls", "wrong stream")
# Comparisons of y come last: they say that outputs are incorrect, and nothing of the cause.
_COMPARISONS = ("too imprecise", "never written", "wrong result")


def place_of_cause(kind: str) -> int:
    """Return the sort key that puts causes before their consequences.

    An access outside of a buffer comes before a second run with other bits, and that before incorrect
    outputs.

    >>> sorted(["wrong result", "not repeatable", "global out of bounds"], key=place_of_cause)
    ['global out of bounds', 'not repeatable', 'wrong result']
    """
    if kind in _COMPARISONS:
        return 2
    return 1 if kind in _CONSEQUENCES else 0


def fault(kind: str) -> Fault:
    """Return the meaning of a kind, and what to do next.

    A kind that is not in the table, such as a new room's, gets a general text: a missing
    explanation must not lose a result.
    """
    return FAULTS.get(kind, Fault("see its text", "read the finding's text and the line it names"))
