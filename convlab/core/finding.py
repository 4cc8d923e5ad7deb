"""A finding: one thing that a kernel does wrong, or may, and where."""

from dataclasses import dataclass

Triple = tuple[int, int, int]
Place = tuple[str, int]  # file and line


@dataclass(frozen=True)
class Finding:
    """Something that a kernel does wrong, or may, and where: one for each line of source.

    Attributes
    ----------
    kind : "global out of bounds", "race", "uninitialised read", "divergent barrier", ...
    text : what, in words, for the first thread that did it.
    error : whether the launch failed by it; else it is a warning.
    file, line : of the source; None where that is not known.
    block, thread : of the first thread that did it; None outside of a kernel.
    count : how many threads did.
    other_file, other_line, other_block, other_thread : the second party of a race, of a divergent
        barrier, of a copy not waited for.
    array, index : what was accessed, or is wrong; of what has no dimensions, or lies outside of
        them, the index may be one number, of elements, or in dynamic shared memory of bytes.
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
