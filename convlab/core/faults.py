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
        "compare every index with the size of its array, first on the simulator's line; if that "
        "finds nothing, the fault needs the full size: look for products of dimensions that are "
        "not `int64_t`",
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
        "look for a loop that does not end and for a barrier that not every thread reaches; if "
        "it is only slow, allow more: time_limit=SECONDS of `check`, `ab` and `load`",
    ),
    "launch configuration": Fault(
        "the GPU refused the launch, and no thread ran",
        "print grid, block and bytes before the launch; put large extents in `grid.x`, and "
        "registers under `__launch_bounds__`",
    ),
    "launch failure": Fault(
        "the GPU stopped the kernel",
        "run it on the simulator, which tells these apart",
    ),
    "host crash": Fault(
        "its host code ended the process",
        "look at the entry point only, the kernels themselves cannot do this: for null and "
        "stale pointers, arrays on the stack, abort() and exit()",
    ),
    "out of memory": Fault(
        "the GPU's memory is too small",
        "take a smaller problem (Problem.scaled) or load(..., workspace_limit=BYTES), or let go "
        "of what this process holds without using it: torch.cuda.empty_cache()",
    ),
    "invalid worker state": Fault(
        "the worker process could not do its part",
        "call again: a fresh worker starts; if that fails too, read what it printed, and run "
        "without isolation (isolate=False), in your own process, to see the error itself",
    ),
    "global out of bounds": Fault(
        "a load or a store outside a buffer; the message says which, the element and the "
        "buffer's size",
        "compare the index with the size of that array before the access; cut off the last "
        "block, and take the halo's values outside the image as 0",
    ),
    "shared out of bounds": Fault(
        "an access outside a `__shared__` array",
        "compute the array's extents from TILE, stride, dilation, R and S anew, in one place "
        "for the kernel and its launch",
    ),
    "index out of bounds": Fault(
        "an index of a local array, of a table or of a struct's array is less than zero, or not "
        "less than the array's size, which the message gives; each of several dimensions is "
        "checked by itself",
        "compare the loop's bound with the declaration",
    ),
    "shared memory": Fault(
        "the block's `__shared__` arrays are too large: 48 KB when declared with their size, "
        "227 KB (of the simulated GPU) in all",
        "a smaller tile, fewer channels at a time; above 48 KB `extern __shared__` and "
        "`cudaFuncSetAttribute`",
    ),
    "store to an input": Fault(
        "the kernel wrote to x, w or bias",
        "take x, w and bias as `const float*`, and let the compiler find the line",
    ),
    "host access": Fault(
        "the host's part of the file (`conv2d`, `conv2d_prepare`) reads or writes x, w, bias, "
        "y, the workspace or what `cudaMalloc` gave: it is the device's memory, and on a GPU "
        "the process crashes there",
        "do it in a kernel, or by `cudaMemsetAsync` and `cudaMemcpyAsync` on the stream",
    ),
    "misaligned access": Fault(
        "an address is not a multiple of the access's size",
        "use float4 and float2 only where the offset is known to be a multiple of 4 or 2 "
        "elements, and load single floats elsewhere",
    ),
    "null pointer": Fault(
        "an access through a null pointer",
        "see where that line's pointer comes from: test `bias` before it is read; ask for the "
        "workspace in `conv2d_workspace`; any other is to be set before the launch",
    ),
    "race": Fault(
        "two threads use one word, one of them writes, and nothing orders the two: no barrier "
        "between them, no warp operation of the lanes of one warp",
        "put a barrier between the two lines where both threads are of one block; let one "
        "thread write each output, or add with atomics, where they are of two",
    ),
    "uninitialised read": Fault(
        "a thread reads shared memory, workspace or y that nothing has written",
        "find who should have written that element before, and let it store 0 where there is no "
        "input",
    ),
    "stale read": Fault(
        "`__ldg` of memory that the same kernel writes",
        "read it plainly; `__ldg` is for x, w and bias",
    ),
    "divergent barrier": Fault(
        "threads of one block wait at different `__syncthreads()`",
        "move the barrier out of it",
    ),
    "copy not waited for": Fault(
        "the target of an asynchronous copy is used before `__pipeline_wait_prior`, by the "
        "thread that began it, and a barrier",
        "`__pipeline_wait_prior`, then `__syncthreads()`, and only then the first use",
    ),
    "overwritten too early": Fault(
        "a store to shared memory that a bulk copy or a `wgmma` may still read",
        "`bulk_wait_read` or `wgmma_wait` first; where other threads store, an mbarrier behind it",
    ),
    "no proxy fence": Fault(
        "`wgmma` and bulk copies reach shared memory by another way than plain stores",
        "after its stores each thread calls `fence_proxy_async()`, and then comes the barrier",
    ),
    "no wgmma fence": Fault(
        "the accumulators were in registers, since nothing had touched them or a `wgmma_wait` "
        "had returned them",
        "`wgmma_fence()` before the first `wgmma` of a group",
    ),
    "wgmma": Fault(
        "a descriptor differs between lanes, or names a layout that is not simulated",
        "compute the descriptor from values that are the same in the whole warp group, without "
        "a swizzle",
    ),
    "mbarrier": Fault(
        "an address that `mbarrier_init` was not called for, or an invalid count or parity",
        "initialise in one thread, for as many arrivals as there will be, and then a barrier",
    ),
    "deadlock": Fault(
        "some threads wait at a barrier that others never reach, or for a phase of an mbarrier "
        "that never completes (too few arrivals, bytes that no copy brings, the wrong parity)",
        "let those threads take part in loading and barriers, and skip only their stores",
    ),
    "warp mask": Fault(
        "a warp operation names lanes that do not take part, or a mask without its own lane",
        "call it where all 32 lanes are, or build the mask with `__ballot_sync` before the `if`",
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
        "see what leads to that line",
    ),
    "abort": Fault(
        "the code called `abort()` or `exit()`, threw what nothing catches, or ran into an "
        "illegal instruction, such as the end of a function that should have returned a value",
        "return a text from `conv2d` there, which becomes the error's message; end every "
        "function with a `return`",
    ),
    "launch in a kernel": Fault(
        "a kernel launches another (dynamic parallelism), which convlab does on neither engine",
        "launch both from the host, one after the other",
    ),
    "stack overflow": Fault(
        "a thread's local variables need more than the simulator gives it",
        "put it into shared memory, or make it smaller",
    ),
    "memory": Fault(
        "this machine's memory, or its limit on address space (`ulimit -v`), is too small for "
        "the simulation",
        "a smaller problem, `Problem.scaled`",
    ),
    "compiler warning": Fault(
        "nvcc, which also compiles the kernel during a check on the simulator, warns of this line",
        "fix what it says, if it is right; a variable that is not used may be one that was "
        "forgotten",
    ),
    "written twice": Fault(
        "two threads stored the same value to one place, and nothing orders the two",
        "let one of the two store it: blocks or tiles overlap there",
    ),
    "barrier after exit": Fault(
        "threads wait at a barrier after others of their block have returned",
        "let all threads come to every barrier, and skip only the stores",
    ),
    "shuffle outside the mask": Fault(
        "a shuffle reads a lane that its mask does not name",
        "build the mask with `__ballot_sync` of the lanes that are read, too",
    ),
    "allocation": Fault(
        "`conv2d` calls `cudaMalloc` or the like: it waits for the GPU, a CUDA graph cannot "
        "capture it, and nothing says who frees the memory",
        "let `conv2d_workspace` return the bytes needed; what depends on the filter alone "
        "belongs in the plan",
    ),
    "refused launch": Fault(
        "a call of CUDA's was refused, as a GPU would refuse it",
        "look at grid, block and bytes of shared memory, and at the error that the call returned",
    ),
    "wrong result": Fault(
        "outputs are incorrect",
        "work out the first wrong output by hand, from the index formula, on the smallest "
        "problem that fails; the patterns say where to look",
    ),
    "too imprecise": Fault(
        "rounding errors are larger than the kernel's class allows, or sums of small integers "
        "are not exact",
        "keep products and their sums in fp32 until y is stored, or declare the class that it has",
    ),
    "wrong after other calls": Fault(
        "its first call is correct, but a call after other problems or other data is not",
        "look at what it keeps from call to call (static variables, `__device__` arrays, what "
        "it left in the workspace), and compute it again: the same size or address does not "
        "mean the same numbers",
    ),
    "never written": Fault(
        "outputs are as they were before the run",
        "compare the grid, and the test that cuts off its last block, with N*K*P*Q",
    ),
    "not repeatable": Fault(
        "a second run on the same data gave other bits; or, of a kernel with `atomics: yes`, "
        "wrong ones",
        "run it on the simulator, which names the lines of a race; where it adds with atomics, "
        "say `atomics: yes` in the header",
    ),
    "wrong stream": Fault(
        "the kernel is correct when all runs on the default stream",
        "launch on `conv2d`'s last argument: `<<<grid, block, bytes, stream>>>`",
    ),
    "does not build": Fault(
        "the compiler refused it, or is missing",
        "fix the first error; the others often follow from it",
    ),
    "refused": Fault(
        "the entry point returned an error",
        "read that error",
    ),
    "too little workspace": Fault(
        "it asks for more workspace than it may have",
        "allow more by load(..., workspace_limit=BYTES), or work in parts",
    ),
    "declined": Fault(
        "the header's `supports:` excludes this problem",
        "choose a problem that it supports, or another kernel",
    ),
}
