"""The first rung, spoilt as a test tells it to be."""

from __future__ import annotations

import convlab
from tests.instruments import planted

DIRECT = (planted.KERNELS / "01_direct.cu").read_text()
WORKSPACE = "CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 100; }\n"
LAST = "conv.N * conv.K * conv.P * conv.Q"


def made(name, *, engine="sim", missing=0, after="", before="", stream="stream"):
    """The first rung with a workspace, and changed as it is told to be."""
    text = DIRECT
    for old, new in (
        ("CONVLAB_ENTRY const", f"{WORKSPACE}CONVLAB_ENTRY const"),
        ("void* /*workspace*/", "void* workspace"),
        ("* conv.Q) return;", f"* conv.Q - {missing}) return;"),
        ("g_bias[k] : 0.0f));", f"g_bias[k] : 0.0f)); {after}"),
        ("conv2d_direct<<<", f"{before} conv2d_direct<<<"),
        ("0, stream>>>", f"0, {stream}>>>"),
    ):
        text = planted.replace(text, old, new, 1, name)
    return convlab.compile(text, name=name, engine=engine, isolate=False)
