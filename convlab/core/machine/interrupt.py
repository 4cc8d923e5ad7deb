"""Ctrl-C in a process that lives on, such as a notebook's: nothing is left half done.

Python raises KeyboardInterrupt in the main thread between any two instructions. If that is while a
process is started, a lock is taken or a build is put into the cache, the rest is never done. So
whatever starts work does so inside `held`, and whoever waits for a process does so inside `at_work`:

    with interrupt.held():                         # the main thread: nothing is raised in here
        host = free.get()
        try:
            with interrupt.at_work(host.hang_up):  # any thread: how to end what it waits for
                reply = host.ask()
        finally:
            free.put(host)

Ctrl-C inside `held` ends all that is at work, in every thread. Each wait returns then, `at_work`
raises KeyboardInterrupt in its thread, and the code around it tidies up as after any other error.
Leaving `held`, the main thread raises KeyboardInterrupt. A second Ctrl-C that comes over a second
after the first is raised at once.

A command needs none of this: ``commands/supervise.py`` ends its whole process.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

# In the names of temporary folders: those of this process and of its forks.
MARK = os.urandom(4).hex()
_PATIENCE = 1.0  # seconds after which a second Ctrl-C is raised at once

_works: list["at_work"] = []  # what runs now, in all threads
_asked = 0.0  # when Ctrl-C came inside `held`; 0.0: it did not
_depth = 0  # how many `held` the main thread is in
_usual: Any = None  # the handler that was there before


class held:
    """Let Ctrl-C end what is at work, and raise KeyboardInterrupt only when the block is left.

    In other threads than the main one, which KeyboardInterrupt never reaches, this does nothing;
    nor does it where SIGINT is ignored.
    """

    _counts = False

    def __enter__(self) -> None:
        """Take over SIGINT, unless an outer block has."""
        global _asked, _depth, _usual
        if threading.get_ident() != threading.main_thread().ident:
            return
        if _depth == 0:
            usual = signal.getsignal(signal.SIGINT)
            if not callable(usual):
                return
            _asked = 0.0
            _usual = usual
            # KeyboardInterrupt may be raised up to here, where nothing has begun
            signal.signal(signal.SIGINT, _on_ctrl_c)
        self._counts = True
        _depth += 1

    def __exit__(self, *_: object) -> None:
        """Give SIGINT back; raise KeyboardInterrupt if it came."""
        global _asked, _depth
        if not self._counts:
            return
        _depth -= 1
        if _depth:
            return
        try:
            signal.signal(signal.SIGINT, _usual)
        finally:
            came = _asked
            _asked = 0.0
        if came:
            raise KeyboardInterrupt from None


class at_work:
    """While the block waits for a process, let Ctrl-C end that by calling `end`.

    The block then raises KeyboardInterrupt, whatever else it would have raised.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._ended = False

    def __enter__(self) -> None:
        """Begin, unless Ctrl-C came before."""
        _works.append(self)
        if _asked:
            _works.remove(self)
            self.end()
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        """Be done; raise KeyboardInterrupt if it was ended."""
        _works.remove(self)
        if self._ended:
            raise KeyboardInterrupt from None

    def end(self) -> None:
        """End what the block waits for."""
        self._ended = True
        with contextlib.suppress(OSError):  # it may be ending by itself
            self._end()


def end_all() -> None:
    """End all that is at work, in every thread."""
    for work in _works.copy():
        work.end()


def _on_ctrl_c(number: int, frame: object) -> None:
    """Note it, and end what is at work: each wait for it then returns."""
    global _asked
    now = time.monotonic()
    if _asked and now - _asked > _PATIENCE:
        raise KeyboardInterrupt
    _asked = _asked or now
    end_all()
