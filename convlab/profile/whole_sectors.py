"""Say which stores leave 32-byte sectors in parts, and what that costs.

DRAM and the L2 keep data in sectors of 32 bytes. A sector that two blocks store in two halves costs
far more than one that a block stores whole, although the bytes are the same.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.machine.gpus import DEFAULT_GPU, Gpu
from ..core.show.table import short
from .launched_functions import SECTOR_BYTES

# Measured on an H200, the default GPU, with planes of 1022 x 1022 floats, as y of `square` has them:
# bytes per second of runs of 1 KB whose ends are in the middle of sectors, and of runs of whole
# sectors. A copy reached COPY_BYTES. Other GPUs are assumed to reach the same shares of their copy.
IN_PARTS_BYTES = 2.76e12
WHOLE_BYTES = 3.87e12
COPY_BYTES = 4.26e12
# An array is worth a note if more than this share of its stored sectors is stored in parts.
_WORTH_A_NOTE = 0.005


def share_in_parts(row: Mapping[str, Any]) -> float:
    """Return which share of a line's stored sectors blocks store in parts: 0 to 1."""
    return row["partial"] / row["units"] if row["partial"] else 0.0


def line_note(row: Mapping[str, Any]) -> str | None:
    """Return a note for a line of a listing; None if it stores whole sectors."""
    share = share_in_parts(row)
    if share <= _WORTH_A_NOTE:
        return None
    return f"sectors in parts: of {share:.1%} of these sectors, a block stores only a part"


def notes(
    lines: Sequence[Mapping[str, Any]], split_sectors: float, gpu: Gpu, copy_bytes: float
) -> list[str]:
    """Return a note for each array of which blocks store many sectors in parts.

    Parameters
    ----------
    lines : the simulator's counts by source line.
    split_sectors : how many different sectors are stored in parts; NaN if only a sample of the
        blocks was simulated.
    gpu, copy_bytes : the GPU, and the bytes per second that a copy reaches there.
    """
    stores: dict[str, list[Mapping[str, Any]]] = {}
    for row in lines:
        if row["space"] == "global" and row["kind"] == "store":
            stores.setdefault(row["array"], []).append(row)
    everywhere = sum(row["partial"] for rows in stores.values() for row in rows)
    texts = []
    for array, rows in stores.items():
        partial = sum(row["partial"] for row in rows)
        units = sum(row["units"] for row in rows)
        if not units or partial <= _WORTH_A_NOTE * units:
            continue
        # Two blocks share most of these sectors. If all of them are in one array, the count is exact.
        exact = partial == everywhere and not math.isnan(split_sectors)
        count = split_sectors if exact else partial / 2
        sectors = units - partial + count
        about = "" if exact else "about "
        blocks = f"{short(partial / count)} blocks each" if exact else "2 blocks each"
        places = dict.fromkeys(
            f"{Path(row['file']).name}:{row['line']}" for row in rows if row["partial"]
        )
        seconds = SECTOR_BYTES * sectors * (1 / IN_PARTS_BYTES - 1 / WHOLE_BYTES)
        milliseconds = 1e3 * seconds * COPY_BYTES / copy_bytes
        texts.append(
            f"{about}{count:,.0f} of {sectors:,.0f} 32-byte sectors of {array} are stored in parts, by "
            f"{blocks} ({', '.join(places)}). On an {DEFAULT_GPU.name}, such stores reached "
            f"{IN_PARTS_BYTES / 1e12:.1f} TB/s, and stores of whole sectors {WHOLE_BYTES / 1e12:.1f} "
            f"TB/s. By this ratio they cost up to {short(milliseconds)} ms on {gpu.name}. Let each "
            "block begin and end its runs of stores at multiples of 32 bytes"
        )
    return texts
