"""Show progress: tqdm's bar in a terminal, text under a notebook cell, lines in a log.

``tqdm.auto`` suits only a terminal. In a saved notebook it leaves "0%|" and a missing widget for
each finished bar, and it has no form for logs.
"""

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

__all__ = ["Lines", "bar", "tqdm"]
# The time between two lines in a log, in seconds.
_SECONDS = 10.0


def bar(
    iterable: Iterable[Any] | None = None,
    desc: str | None = None,
    total: int | None = None,
    disable: bool = False,
    **options: Any,
) -> tqdm:
    """Return a progress bar for a terminal, a notebook or a log, with `tqdm.tqdm`'s arguments."""
    if _in_notebook():
        kind: type[tqdm] = _CellBar
    elif sys.stderr is not None and sys.stderr.isatty():
        kind = tqdm
    else:
        kind = Lines
    return kind(iterable, desc, total, disable=disable, **options)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _Silent(tqdm):
    """A bar that counts but writes nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # `gui` keeps tqdm from writing.
        super().__init__(*args, **options | {"gui": True})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show nothing."""


class Lines(_Silent):
    """A bar as plain lines on stderr, one every 10 seconds; an inner bar replaces the outer one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ended = threading.Event()
        if not self.disable and sys.stderr is not None:
            threading.Thread(target=self._print, daemon=True).start()

    def _print(self) -> None:
        while not self._ended.wait(_SECONDS):
            newest = max(list(tqdm._instances), key=lambda bar: bar.start_t, default=None)
            if self is newest:
                what = (self.desc or "").removesuffix(": ")
                done = f"{self.n} of {self.total}, " if self.total else ""
                seconds = time.time() - self.start_t
                postfix = f", {self.postfix}" if self.postfix else ""
                print(f"{what}: {done}{seconds:.0f} s{postfix}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop the lines."""
        self._ended.set()
        super().close()


class _CellBar(_Silent):
    """A bar in its own output under a cell; the output is empty after the bar is closed."""

    _output: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not self.disable:
            self.display()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the bar, or a text."""
        # This runs in a notebook, so IPython is installed.
        from IPython.display import display

        data = {"text/plain": str(self) if msg is None else msg}
        if self._output is None:
            self._output = display(data, raw=True, display_id=True)
        else:
            self._output.update(data, raw=True)

    def close(self) -> None:
        """Clear the output."""
        if not self.disable and self._output is not None:
            self.display("")
        super().close()
