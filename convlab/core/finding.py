"""A finding: one mistake, or possible mistake, of a kernel, with its place."""

from dataclasses import dataclass

Triple = tuple[int, int, int]
Place = tuple[str, int]  # file and line


@dataclass(frozen=True)
class Finding:
    """A mistake, or possible mistake, of a kernel: one finding for each line of source.

    Attributes
    ----------
    kind : "global out of bounds", "race", "uninitialised read", "divergent barrier", ...
    text : a description, for the first thread that made the mistake.
    error : whether the launch failed because of it; if False, it is a warning.
    file, line : the place in the source; None if unknown.
    block, thread : the first thread that made the mistake; None outside of a kernel.
    count : the number of threads that made it.
    other_file, other_line, other_block, other_thread : the second thread of a race or of a
        divergent barrier, or the issuer of a copy that nothing waited for.
    array, index : the array that was accessed, or is incorrect, and the index. An array without
        dimensions, or an index outside of them, gets a single number: of elements, or of bytes in
        dynamic shared memory.
    """

    kind: str
    text: str
    error: bool = True
    file: str | None = None
    line: int | None = None
    block: Triple | None = None
    thread: Triple | None = None
    count: int = 1
    other_file: str | None = None
    other_line: int | None = None
    other_block: Triple | None = None
    other_thread: Triple | None = None
    array: str | None = None
    index: tuple[int, ...] | None = None
