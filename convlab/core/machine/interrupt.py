"""Handle Ctrl-C in a process that continues, such as a notebook's, without half-finished work.

Python raises KeyboardInterrupt in the main thread between any two instructions. If that happens
while a process starts, a lock is taken or a build enters the cache, the rest of the step is lost.
So code that starts work does this inside `held`, and code that waits for a process does so inside
`at_work`:

    with interrupt.held():                         # main thread: no KeyboardInterrupt in here
        host = free.get()
        try:
            with interrupt.at_work(host.hang_up):  # any thread: how to end the process
                reply = host.ask()
        finally:
            free.put(host)

Ctrl-C inside `held` ends all `at_work` blocks, in every thread. Each wait returns, `at_work` raises
KeyboardInterrupt in its thread, and the code around it cleans up as after any other error. When the
main thread leaves `held`, it raises KeyboardInterrupt. A second Ctrl-C, over a second after the
first one, raises KeyboardInterrupt at once.

Commands do not need this module: ``commands/supervise.py`` ends the whole process of a command.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

# Part of the names of temporary folders of this process and its forks.
MARK = os.urandom(4).hex()
# After this time a second Ctrl-C raises KeyboardInterrupt at once, in seconds.
_PATIENCE = 1.0

# The active `at_work` blocks of all threads.
_works: list["at_work"] = []
# The time of Ctrl-C inside `held`; 0.0 if there was none.
_pressed = 0.0
# The number of nested `held` blocks in the main thread.
_depth = 0
# The previous handler of SIGINT.
_previous: Any = None


class held:
    """Delay KeyboardInterrupt to the end of the block; Ctrl-C ends the `at_work` blocks.

    This has no effect in other threads than the main one, where Python never raises
    KeyboardInterrupt, and no effect if SIGINT is ignored.
    """

    _counts = False

    def __enter__(self) -> None:
        """Replace the handler of SIGINT, unless an outer block has done so."""
        global _pressed, _depth, _previous
        if threading.get_ident() != threading.main_thread().ident:
            return
        if _depth == 0:
            handler = signal.getsignal(signal.SIGINT)
            if not callable(handler):
                return
            _pressed = 0.0
            _previous = handler
            # Up to here KeyboardInterrupt may be raised, but no work has begun.
            signal.signal(signal.SIGINT, _on_ctrl_c)
        self._counts = True
        _depth += 1

    def __exit__(self, *_: object) -> None:
        """Restore the handler of SIGINT; raise KeyboardInterrupt after a Ctrl-C."""
        global _pressed, _depth
        if not self._counts:
            return
        _depth -= 1
        if _depth:
            return
        try:
            signal.signal(signal.SIGINT, _previous)
        finally:
            pressed = _pressed
            _pressed = 0.0
        if pressed:
            raise KeyboardInterrupt from None


class at_work:
    """Call `end` at Ctrl-C, to end the process for which the block waits.

    The block then raises KeyboardInterrupt, whatever other error it would have raised.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._ended = False

    def __enter__(self) -> None:
        """Begin; raise KeyboardInterrupt if Ctrl-C came before."""
        _works.append(self)
        if _pressed:
            _works.remove(self)
            self.end()
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        """Finish; raise KeyboardInterrupt if Ctrl-C ended the process."""
        _works.remove(self)
        if self._ended:
            raise KeyboardInterrupt from None

    def end(self) -> None:
        """End the process for which the block waits."""
        self._ended = True
        # The process may be ending by itself.
        with contextlib.suppress(OSError):
            self._end()


def end_all() -> None:
    """End the processes of all `at_work` blocks, in every thread."""
    for work in _works.copy():
        work.end()


def _on_ctrl_c(number: int, frame: object) -> None:
    """Record the time of Ctrl-C, and end the processes: each wait then returns."""
    global _pressed
    now = time.monotonic()
    if _pressed and now - _pressed > _PATIENCE:
        raise KeyboardInterrupt
    _pressed = _pressed or now
    end_all()
