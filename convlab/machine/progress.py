"""Progress bars without widgets: text in a terminal, HTML under a cell, and elsewhere none."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

__all__ = ["bar", "tqdm"]


def bar(
    iterable: Iterable[Any] | None = None,
    desc: str | None = None,
    total: int | None = None,
    disable: bool = False,
    **options: Any,
) -> tqdm:
    """Return a bar as `tqdm.tqdm` does, of the kind that suits where it will be seen.

    Where nobody sees it, in a log or a pipe, it is disabled. ``tqdm.auto`` would want ipywidgets in
    a notebook, and warn where it is missing.
    """
    ipython = sys.modules.get("IPython")
    if getattr(ipython and ipython.get_ipython(), "kernel", None) is not None:
        return _CellBar(iterable, desc, total, disable=disable, **options)
    seen = sys.stderr is not None and sys.stderr.isatty()
    return tqdm(iterable, desc, total, disable=disable or not seen, **options)


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

        about = self.format_dict
        text = str(self) if msg is None else msg
        page = ""
        if text:
            total = f' max="{about["total"]}" value="{about["n"]}"' if about["total"] else ""
            brief = {"prefix": "", "bar_format": "{n_fmt}/{total_fmt} {elapsed}{postfix}"}
            beside = self.format_meter(**about | brief) if about["total"] else text
            what = (about["prefix"] or "").removesuffix(": ")
            page = (
                f'<progress{total} style="width:16em;vertical-align:middle"></progress> '
                f"<code>{html.escape(f'{what} {beside}'.strip())}</code>"
            )
        data = {"text/plain": text, "text/html": page}
        if self._shown is None:
            self._shown = display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)

    def close(self) -> None:
        """End the bar."""
        if not self.disable and self._shown is not None:
            self.display("")
        super().close()
