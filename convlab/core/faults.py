"""What each kind of fault means, and what to do next: the table that messages are made from.

``faults.md``, next to this file, is the page for people: it has the same two texts for each kind,
and the usual causes.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """A kind of fault: what it means, and what to do next."""

    meaning: str
    advice: str


FAULTS: dict[str, Fault] = {
    "illegal address": Fault(
        "a thread read or wrote memory that belongs to no buffer",
        "compare every index with the size of its array, first on the simulator's line; if "
        "that finds nothing, the fault needs the full size: look for products of dimensions "
        "that are not `int64_t`",
    ),
    "misaligned address": Fault(
        "an address is not a multiple of the size of the access",
        "use float4 and float2 only where the offset is known to be a multiple of 4 or 2 "
        "elements, and load single floats elsewhere",
    ),
    "device assert": Fault(
        "an assert() in the kernel failed",
        "print the values with `printf` before the assertion; the simulator reports the same one",
    ),
    "endless loop": Fault(
        "it did not end",
        "look for a loop that does not end and for a barrier that not every thread reaches; "
        "if the kernel is only slow, allow more time: time_limit=SECONDS of `check`, `ab` and"
        " `load`",
    ),
    "launch configuration": Fault(
        "the GPU refused the launch, and no thread ran",
        "print grid, block and bytes before the launch; put large extents in `grid.x`, and "
        "registers under `__launch_bounds__`",
    ),
    "launch failure": Fault(
        "the GPU stopped the kernel",
        "run it on the simulator, which distinguishes the causes",
    ),
    "host crash": Fault(
        "the kernel's host code ended the process",
        "look only at the entry point, as the kernels themselves cannot do this: at null and "
        "stale pointers, arrays on the stack, abort() and exit()",
    ),
    "out of memory": Fault(
        "the GPU's memory is too small",
        "use a smaller problem (Problem.scaled) or load(..., workspace_limit=BYTES), or free "
        "the memory that torch keeps in this process: torch.cuda.empty_cache()",
    ),
    "invalid worker state": Fault(
        "the worker process failed",
        "call again: a fresh worker starts; if that fails too, read what it printed, and run "
        "without isolation (isolate=False), in your own process, to see the error itself",
    ),
    "global out of bounds": Fault(
        "a load or a store outside a buffer; the message says which, the element and the "
        "buffer's size",
        "compare the index with the size of that array before the access; test the indices of"
        " the last block, and use 0 for halo values outside the image",
    ),
    "shared out of bounds": Fault(
        "an access outside a `__shared__` array",
        "compute the array's size again from TILE, stride, dilation, R and S, in one place "
        "for the kernel and its launch",
    ),
    "index out of bounds": Fault(
        "an index of a local array, of a table or of a struct's array is less than zero, or "
        "not less than the array's size, which the message gives; each of several dimensions "
        "is checked by itself",
        "compare the loop's bound with the declaration",
    ),
    "shared memory": Fault(
        "the block's `__shared__` arrays are too large: 48 KB when declared with their size, "
        "227 KB (of the simulated GPU) in all",
        "use a smaller tile, or fewer channels at a time; above 48 KB use `extern __shared__`"
        " and `cudaFuncSetAttribute`",
    ),
    "store to an input": Fault(
        "the kernel wrote to x, w or bias",
        "declare x, w and bias as `const float*`; the compiler then names the line",
    ),
    "host access": Fault(
        "the file's host code (`conv2d`, `conv2d_prepare`) reads or writes device memory: x, "
        "w, bias, y, the workspace or memory from `cudaMalloc`; on a GPU the process crashes "
        "there",
        "do it in a kernel, or with `cudaMemsetAsync` and `cudaMemcpyAsync` on the stream",
    ),
    "misaligned access": Fault(
        "an address is not a multiple of the access's size",
        "use float4 and float2 only where the offset is known to be a multiple of 4 or 2 "
        "elements, and load single floats elsewhere",
    ),
    "null pointer": Fault(
        "an access through a null pointer",
        "find where that line's pointer comes from: test `bias` before you read it; request "
        "the workspace in `conv2d_workspace`; set any other pointer before the launch",
    ),
    "race": Fault(
        "two threads access one word, at least one of them writes, and nothing orders the "
        "two: no barrier between them, no warp operation of the lanes of one warp",
        "if both threads are in one block, put a barrier between the two lines; if they are "
        "in two blocks, let one thread write each output, or add with atomics",
    ),
    "uninitialised read": Fault(
        "a thread reads shared memory, workspace or y that nothing has written",
        "find the thread that should have written that element, and let it store 0 where "
        "there is no input",
    ),
    "stale read": Fault(
        "`__ldg` of memory that the same kernel writes",
        "use a plain load; `__ldg` is for x, w and bias",
    ),
    "divergent barrier": Fault(
        "threads of one block wait at different `__syncthreads()`",
        "move the barrier out of the `if` or the loop",
    ),
    "copy not waited for": Fault(
        "the target of an asynchronous copy is used before the thread that issued the copy "
        "called `__pipeline_wait_prior`, or before the barrier after that",
        "call `__pipeline_wait_prior`, then `__syncthreads()`, and only then use the data",
    ),
    "overwritten too early": Fault(
        "a store to shared memory that a bulk copy or a `wgmma` may still read",
        "call `bulk_wait_read` or `wgmma_wait` first; if other threads store, use an mbarrier"
        " after that",
    ),
    "no proxy fence": Fault(
        "`wgmma` and bulk copies access shared memory through another proxy than plain "
        "stores, and there is no fence between the two",
        "let each thread call `fence_proxy_async()` after its stores, and put the barrier "
        "after that",
    ),
    "no wgmma fence": Fault(
        "a `wgmma` starts without a fence on accumulators that are in registers: it is their "
        "first use, or a `wgmma_wait` has returned them",
        "call `wgmma_fence()` before the first `wgmma` of a group",
    ),
    "wgmma": Fault(
        "a descriptor differs between lanes, or names a layout that is not simulated",
        "compute the descriptor from values that are the same in the whole warp group, "
        "without a swizzle",
    ),
    "mbarrier": Fault(
        "`mbarrier_init` was not called for an address, or a count or a parity is invalid",
        "initialise the mbarrier in one thread, with the number of arrivals, and put a "
        "barrier after that",
    ),
    "deadlock": Fault(
        "some threads wait at a barrier that others never reach, or for a phase of an "
        "mbarrier that never completes (too few arrivals, bytes that no copy delivers, the "
        "wrong parity)",
        "let those threads take part in loading and barriers, and skip only their stores",
    ),
    "warp mask": Fault(
        "a warp operation names lanes that do not take part, or a mask without its own lane",
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
        "find out what leads to that line",
    ),
    "abort": Fault(
        "the code called `abort()` or `exit()`, threw an exception that nothing catches, or "
        "ran into an illegal instruction, such as the end of a function that should have "
        "returned a value",
        "return a text from `conv2d` instead, which becomes the error's message; end every "
        "function with a `return`",
    ),
    "launch in a kernel": Fault(
        "a kernel launches another (dynamic parallelism), which convlab supports on neither engine",
        "launch both from the host, one after the other",
    ),
    "stack overflow": Fault(
        "a thread's local variables need more memory than the simulator gives it",
        "put large arrays into shared memory, or make them smaller",
    ),
    "memory": Fault(
        "this machine's memory, or its limit on address space (`ulimit -v`), is too small for"
        " the simulation",
        "use a smaller problem: `Problem.scaled`",
    ),
    "compiler warning": Fault(
        "nvcc, which also compiles the kernel during a check on the simulator, warns of this line",
        "fix it, if nvcc is right; an unused variable may be one that you forgot to use",
    ),
    "written twice": Fault(
        "two threads stored the same value to one place, and nothing orders the two",
        "let one of the two store it: blocks or tiles overlap there",
    ),
    "barrier after exit": Fault(
        "threads wait at a barrier after others of their block have returned",
        "let all threads reach every barrier, and skip only the stores",
    ),
    "shuffle outside the mask": Fault(
        "a shuffle reads a lane that its mask does not name",
        "add the lanes that are read to the mask, with `__ballot_sync`",
    ),
    "allocation": Fault(
        "`conv2d` calls `cudaMalloc` or a similar function: it waits for the GPU, a CUDA "
        "graph cannot capture it, and nothing says who frees the memory",
        "let `conv2d_workspace` return the bytes needed; data that depends only on the filter"
        " belongs in the plan",
    ),
    "refused launch": Fault(
        "a CUDA call was refused, as a GPU would refuse it",
        "look at grid, block and bytes of shared memory, and at the error that the call returned",
    ),
    "wrong result": Fault(
        "outputs are incorrect",
        "work out the first wrong output by hand, from the index formula, on the smallest "
        "problem that fails; the patterns say where to look",
    ),
    "too imprecise": Fault(
        "rounding errors are larger than the kernel's class allows, or sums of small integers"
        " are not exact",
        "keep products and their sums in fp32 until y is stored, or declare the precision "
        "class that the kernel has",
    ),
    "wrong after other calls": Fault(
        "its first call is correct, but a call after other problems or other data is not",
        "look at what the kernel keeps from call to call (static variables, `__device__` "
        "arrays, values in the workspace), and compute it again: the same size or address "
        "does not mean the same numbers",
    ),
    "never written": Fault(
        "outputs are as they were before the run",
        "compare the grid, and the test that cuts off its last block, with N*K*P*Q",
    ),
    "not repeatable": Fault(
        "a second run on the same data gave different bits; or, in a kernel with `atomics: "
        "yes`, wrong outputs",
        "run it on the simulator, which names the lines of a race; if the kernel adds with "
        "atomics, write `atomics: yes` in the header",
    ),
    "wrong stream": Fault(
        "the kernel is correct only when everything runs on the default stream",
        "launch on `conv2d`'s last argument: `<<<grid, block, bytes, stream>>>`",
    ),
    "does not build": Fault(
        "the compiler refused it, or is missing",
        "fix the first error; the others often follow from it",
    ),
    "refused": Fault(
        "the entry point returned an error",
        "read the text of that error",
    ),
    "too little workspace": Fault(
        "the kernel requests more workspace than is allowed",
        "allow more with load(..., workspace_limit=BYTES), or compute in parts",
    ),
    "unsupported": Fault(
        "the header's `supports:` excludes this problem",
        "choose a problem that it supports, or another kernel",
    ),
}


def fault(kind: str) -> Fault:
    """Return the meaning of a kind and what to do next.

    A kind that is not in the table, such as one that a new room reports, has a general text: a
    result must never be lost because its explanation is missing.
    """
    return FAULTS.get(kind, Fault("see its text", "read the finding's text and the line it names"))
