"""What tests ask of processes."""

import os
import select


def ended(pid: int, seconds: float = 30) -> bool:
    """Whether a process ends within that time."""
    try:
        watch = select.poll()
        watch.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        return True
    return bool(watch.poll(1000 * seconds))
