"""Progress bars without widgets: in a terminal, under a cell, as a line now and then in a log."""

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

__all__ = ["Lines", "bar", "tqdm"]
_SECONDS = 10.0  # between two lines


def bar(
    iterable: Iterable[Any] | None = None,
    desc: str | None = None,
    total: int | None = None,
    disable: bool = False,
    **options: Any,
) -> tqdm:
    """Return a bar as `tqdm.tqdm` does, of the kind that suits where it will be seen.

    ``tqdm.auto`` would want ipywidgets in a notebook, and warn where it is missing.
    """
    ipython = sys.modules.get("IPython")
    if getattr(ipython and ipython.get_ipython(), "kernel", None) is not None:
        return _CellBar(iterable, desc, total, disable=disable, **options)
    seen = sys.stderr is not None and sys.stderr.isatty()
    return (tqdm if seen else Lines)(iterable, desc, total, disable=disable, **options)


class Lines(tqdm):
    """A bar as plain lines on stderr: one every ten seconds, unless a bar within it tells more."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"gui": True})  # so that tqdm itself writes nothing
        self._ended = threading.Event()
        if not self.disable and sys.stderr is not None:
            threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        while not self._ended.wait(_SECONDS):
            if self is max(list(tqdm._instances), key=lambda bar: bar.start_t, default=None):
                done = f"{self.n} of {self.total}, " if self.total else ""
                found = f", {self.postfix}" if self.postfix else ""
                took = time.time() - self.start_t
                what = (self.desc or "").removesuffix(": ")
                print(f"{what}: {done}{took:.0f} s{found}", file=sys.stderr, flush=True)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show nothing between the lines."""

    def close(self) -> None:
        """End the lines."""
        self._ended.set()
        super().close()


class _CellBar(tqdm):
    """A bar in an output of its own, which is empty once the bar is closed."""

    _shown: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"gui": True})  # so that tqdm itself writes nothing
        if not self.disable:
            self.display()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the bar as it stands, or the text given, and nothing if that is empty."""
        from IPython.display import display  # there is a notebook: IPython is there

        data = {"text/plain": str(self) if msg is None else msg}
        if self._shown is None:
            self._shown = display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)

    def close(self) -> None:
        """End the bar."""
        if not self.disable and self._shown is not None:
            self.display("")
        super().close()
