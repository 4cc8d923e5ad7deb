"""Share the cores among several threads that call torch at the same time.

By default each thread that calls torch starts a team of threads, one for each core. The teams of
several threads compete: they wait for one another in busy loops, and a small convolution takes thirty
times as long.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
# How many `shared_by` blocks are active, and torch's number of threads outside them.
_active = 0
_before = 0


@contextmanager
def shared_by(callers: int) -> Iterator[None]:
    """Limit torch to the cores that each of so many threads gets; restore the number afterwards.

    The number is one for the process. It applies to threads that start inside the block.
    """
    global _active, _before
    with _lock:
        if not _active:
            _before = torch.get_num_threads()
            share = len(os.sched_getaffinity(0)) // callers
            torch.set_num_threads(max(1, min(_before, share)))
        _active += 1
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if not _active:
                torch.set_num_threads(_before)
