"""Write the files that a command writes besides its text: figures and receipts."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .text_result import TextResult


def write_files(results: Sequence[Any], arguments: Namespace) -> Iterator[tuple[str, Path]]:
    """Write the files of ``--plot`` and ``--save``; yield ("plot" or "receipt", the file) of each."""
    plot = getattr(arguments, "plot", None)
    save = getattr(arguments, "save", None)
    drawable = [result for result in results if not isinstance(result, TextResult)]
    if plot is not None:
        for result in drawable:
            own_name = plot.with_stem(f"{plot.stem}-{result.kernel}") if len(drawable) > 1 else plot
            yield "plot", result.plot().save(own_name).resolve()
    if save is not None:
        for result in drawable:
            yield "receipt", result.save(save or None).resolve()
