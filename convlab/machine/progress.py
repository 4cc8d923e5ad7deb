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
    **options: Any,
) -> tqdm:
    """Return a bar as `tqdm.tqdm` does, of the kind that suits where it will be seen.

    Where nobody sees it, in a log or a pipe, it is disabled. ``tqdm.auto`` would want ipywidgets in
    a notebook, and warn where it is missing.
    """
    if _in_notebook():
        return _CellBar(iterable, desc, total, **options)
    seen = sys.stderr is not None and sys.stderr.isatty()
    disable = options.pop("disable", False) or not seen
    return tqdm(iterable, desc, total, disable=disable, **options)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _CellBar(tqdm):
    """A bar in an output of its own, which is empty once the bar is closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._shown: Any = None
        super().__init__(*args, **options | {"gui": True})  # so that tqdm itself writes nothing
        if not self.disable:
            self.display()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the bar as it stands, or the text given, and nothing if that is empty."""
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
        from IPython.display import display  # there is a notebook: IPython is there

        if self._shown is None:
            self._shown = display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)

    def close(self) -> None:
        """End the bar."""
        if not self.disable and self._shown is not None:
            self.display("")
        super().close()
