"""Tensor cores and asynchronous copies on the simulator: the wrappers, and bugs planted in rungs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.right import reference
from convlab.right.check import check
from convlab.run.kernel import Kernel, load
from convlab.sim.any_kernel import run
from convlab.words.catalog import KERNEL_DIR
from convlab.words.errors import LaunchError
from convlab.words.problem import Problem
from convlab.words.problem import problem as named_problem

# Five chunks in two stages; rows that leave by bulk copies.
WIDE = Problem(1, 40, 4, 256, 70, 3, 3)
MMA, WGMMA, PARTS = "10_mma_tf32", "11_wgmma_tf32", "13_wgmma_3xtf32"
HALF, FP16, LAST = "15_wgmma_bf16", "15b_wgmma_fp16", "16_wgmma_nhwc_bf16"
SHARED = "wgmma_roles.cuh"  # pasted into the rungs that include it, so that a bug may be there
ANY = {"race", "uninitialised read", "deadlock", "copy not waited for", "overwritten too early"}
RELEASE = "        fence_proxy_async();\n        __syncwarp();\n        if (b.lane == 0)"

# name, rung, text, what it is replaced by, kinds of finding of which one must be told (none: the
# mistake must show in y)
PLANTED = [
    ("no proxy fence behind stores of x", WGMMA, RELEASE,
     "        __syncwarp();\n        if (b.lane == 0)", {"no proxy fence"}),
    ("no proxy fence behind stores of y", WGMMA,
     "            fence_proxy_async();\n            __syncwarp();\n            const int k",
     "            __syncwarp();\n            const int k", {"no proxy fence"}),
    ("no __syncwarp before the arrival", WGMMA, RELEASE,
     "        fence_proxy_async();\n        if (b.lane == 0)", {"race"}),
    ("consumers wait for the other parity", WGMMA, "&b.x_full[stage], stage_parity)",
     "&b.x_full[stage], stage_parity ^ 1)", ANY),
    ("loaders wait for the other parity", WGMMA, "&b.x_empty[stage], parity ^ 1)",
     "&b.x_empty[stage], parity)", {"deadlock"}),
    ("the loaders' parity never flips", WGMMA,
     "if (++stage == tiling.stages) stage = 0, parity ^= 1;\n    };",
     "if (++stage == tiling.stages) stage = 0;\n    };", ANY),
    ("a stage is free after one of eight warps", WGMMA, "mbarrier_init(&b.x_empty[i], 8);",
     "mbarrier_init(&b.x_empty[i], 1);", ANY),
    ("a stage is full after one of three warps", WGMMA, "mbarrier_init(&b.x_full[i], kLoaders);",
     "mbarrier_init(&b.x_full[i], 1);", ANY),
    ("a stage is full after four warps, of three", WGMMA, "mbarrier_init(&b.x_full[i], kLoaders);",
     "mbarrier_init(&b.x_full[i], 4);", {"deadlock"}),
    ("all lanes arrive", WGMMA, "        if (b.lane != 0) return;\n        mbarrier_arrive(",
     "        mbarrier_arrive(", ANY),
    ("a barrier is not initialised", WGMMA, "mbarrier_init(&b.w_empty[i], 8);", "", {"mbarrier"}),
    ("no barrier behind the initialisation", WGMMA,
     "    find_pixels(conv, tiling, b);\n    __syncthreads();",
     "    find_pixels(conv, tiling, b);", {"mbarrier", "race"}),
    ("released before the products are done", WGMMA,
     ("                        wgmma_commit();\n                        wgmma_wait<1>();\n"
     "                        if (i == 0 && chunk + first > 0) release(first == 0);\n"
     "                        i += 3;"),
     ("                        if (i == 0 && chunk + first > 0) release(first == 0);\n"
     "                        wgmma_commit();\n                        wgmma_wait<1>();\n"
     "                        i += 3;"), {"race", "overwritten too early"}),
    ("no wgmma_fence", WGMMA, "                        wgmma_fence();\n", "",
     {"no wgmma fence"}),
    ("groups are never committed", WGMMA, "                        wgmma_commit();\n", "", set()),
    ("sums are read before the wait", WGMMA, "        wgmma_wait<0>();\n", "", set()),
    ("k_step and row_step swapped", WGMMA, "16 * tiling.quad, 128)", "128, 16 * tiling.quad)",
     {"shared out of bounds", "uninitialised read", *ANY}),
    ("the filter is not waited for", WGMMA,
     "                mbarrier_wait(&b.w_full[slot], slot_parity);\n", "",
     {"copy not waited for", "race", "uninitialised read"}),
    ("fewer bytes are expected than come", WGMMA, "copies * bytes);", "copies * bytes - 16);",
     {"deadlock"}),
    ("a bulk load from an odd address", WGMMA, "from + half * k_tile_bytes, bytes,",
     "from + 4, bytes,", {"misaligned access"}),
    ("a bulk store from an odd address", WGMMA, "bulk_store(to + head, from + head,",
     "bulk_store(to + head, from,", {"misaligned access"}),
    ("the buffer of y is reused at once", WGMMA,
     "            bulk_wait_read<0>();           // of what this lane had stored from here\n", "",
     {"overwritten too early"}),
    ("a tap's start is one quad too far", WGMMA, "b.s_tap[first + i])",
     "b.s_tap[first + i] + tiling.quad)", set()),
    ("sums are moved before the wait", PARTS, "                wgmma_wait<0>();\n", "", set()),
    ("a slot is free before its products are done", PARTS,
     ("                wgmma_wait<0>();\n"
     "                if (b.lane == 0) mbarrier_arrive(&b.w_empty[slot]);\n"),
     ("                if (b.lane == 0) mbarrier_arrive(&b.w_empty[slot]);\n"
     "                wgmma_wait<0>();\n"), {"race", "overwritten too early"}),
    ("the low part of x lies where the high part of another quad does", PARTS,
     "s_x[(2 + q) * quad + pixel]", "s_x[(1 + q) * quad + pixel]", set()),
    ("the filter's high and low parts swapped", PARTS, "wgmma_moved(w_high, kTapBytes / 16)",
     "wgmma_moved(w_high, 0)", set()),
    ("a copy is used before it has come", MMA, "__pipeline_wait_prior(kStages - 2);",
     "__pipeline_wait_prior(kStages - 1);", {"copy not waited for"}),
    ("a stage is overwritten while it is read", MMA,
     ("        __syncthreads();                      // all parts; and all have read the oldest "
     "tiles\n"), "", {"race", "copy not waited for"}),
    ("bf16: no proxy fence behind stores of x", HALF, RELEASE.replace(" " * 8, " " * 12),
     "            __syncwarp();\n            if (b.lane == 0)", {"no proxy fence"}),
    ("bf16: loaders wait for the other parity", HALF, "&b.x_empty[stage], parity ^ 1)",
     "&b.x_empty[stage], parity)", {"deadlock"}),
    ("bf16: k_step and row_step swapped", HALF, "16 * tiling.quad, 128)", "128, 16 * tiling.quad)",
     set()),
    ("bf16: odd and even pixels swapped", HALF, "odd ? 0x7632 : 0x5410", "odd ? 0x5410 : 0x7632",
     set()),
    ("bf16: a tap's start is one octet too far", HALF, "b.s_tap[first + i])",
     "b.s_tap[first + i] + tiling.quad)", set()),
    ("bf16: the buffer of y is reused at once", HALF,
     "            bulk_wait_read<0>();           // of what this lane had stored from here\n", "",
     {"overwritten too early"}),
    ("bf16: a bulk store from an odd address", HALF, "bulk_store(to + head, from + head,",
     "bulk_store(to + head, from,", {"misaligned access"}),
    ("NHWC: no proxy fence behind copies", LAST, "done >= 0) {\n            fence_proxy_async();",
     "done >= 0) {", {"no proxy fence"}),
    ("NHWC: a stage is announced before its copies have come", LAST, "if (lead == ",
     "if (false && lead == ", ANY),
    ("NHWC: the last stage is not waited for", LAST,
     "    __pipeline_wait_prior(0);\n    for (int i = 0; i < lead", "    for (int i = 0; i < lead",
     ANY),
    ("NHWC: loaders wait for the other parity", LAST, "&b.x_empty[stage], parity ^ 1)",
     "&b.x_empty[stage], parity)", {"deadlock"}),
    ("NHWC: y is read before all have stored it", LAST,
     "        meet(meeting, lane, 0);   // all have stored\n", "", {"race"}),
    ("NHWC: y is overwritten before all have read it", LAST,
     "        meet(meeting, lane, 1);   // all have read\n", "", {"race", "deadlock"}),
    ("NHWC: one k tile's bytes are expected, of two", LAST, "copies * bytes);", "bytes);",
     {"deadlock", "race", "copy not waited for", "mbarrier"}),
    ("NHWC: both consumers have the first k tile", LAST, "slot_at(slot, consumer)",
     "slot_at(slot, 0)", set()),
    ("NHWC: stmatrix's rows in another order", LAST, "(lane / 16 * 8 + lane % 8)",
     "(lane / 16 * 8 + 7 - lane % 8)", set()),
    ("two fragments of the filter swapped", MMA, "round_tf32(w_rows[0][kk + t + 4])",
     "round_tf32(w_rows[8][kk + t + 4])", set()),
]  # fmt: skip


def compute(kernel: Kernel, orders: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Run on WIDE, threads in so many orders; return y and the float64 truth."""
    x, w, _ = reference.inputs(WIDE, 1, format=kernel.format)
    launch = kernel.prepare(WIDE, x, w)
    for _ in range(orders):
        launch()
    return launch.y, F.conv2d(x.double(), w.double())


@pytest.mark.parametrize("rung", [MMA, WGMMA, "12_wgmma_vector_reads", PARTS, HALF, FP16, LAST])
def test_the_rungs_are_right(rung: str) -> None:
    y, truth = compute(load(rung, engine="sim"))
    # Rounded to nearest, or nearly so; in bf16 and fp16 it is y that is.
    bound = {PARTS: 2.5e-7, HALF: 1.7e-3, FP16: 2.2e-4, LAST: 1.7e-3}.get(rung, 3.5e-4)
    assert (y - truth).norm() / truth.norm() < bound


# Else a half of them, of each kind that is told alone.
CHOSEN = PLANTED if os.environ.get("CONVLAB_DEEP") else PLANTED[1::2]


@pytest.mark.parametrize(
    ("rung", "old", "new", "kinds"), [case[1:] for case in CHOSEN], ids=[c[0] for c in CHOSEN]
)
def test_a_planted_bug_is_told(
    rung: str, old: str, new: str, kinds: set[str], tmp_path: Path
) -> None:
    header = (KERNEL_DIR / SHARED).read_text().replace("#pragma once\n", "\n")
    source = (KERNEL_DIR / f"{rung}.cu").read_text().replace(f'#include "{SHARED}"\n', header)
    assert source.count(old) in (1, 2, 3)
    path = tmp_path / "planted.cu"
    path.write_text(source.replace(old, new))
    kernel = load(path, engine="sim")
    if not kinds:
        try:
            y, truth = compute(kernel, orders=1)
        except LaunchError:
            return
        assert not (y - truth).norm() / truth.norm() < 1e-2
        return
    with pytest.raises(LaunchError) as told:
        compute(kernel)
    found = [finding for finding in told.value.findings if finding.error]
    assert {finding.kind for finding in found} & kinds, str(told.value)
    assert all(Path(finding.file).name == "planted.cu" and finding.line for finding in found)


# Channels in eights; K, Q and P of no tile; all that stays in shared memory, and what does not.
SHAPES = [
    "N2 C64 H5 W258 K128 R3 S3 bias", "N3 C24 H33 W33 K70 R3 S3 p1 bias",
    "N1 C72 H9 W40 K65 R1 S1", "N5 C16 H13 W18 K256 R3 S3 s2 p1 bias",
    "N4 C40 H39 W11 K12 R3 S3 s2x1 d2x3 p3", "N40 C8 H9 W9 K128 R1 S1",
    "N2 C32 H16 W117 K64 R5 S9 p2x4", "N2 C48 H8 W8 K136 R3 S3 g2 p1 bias",
    "N1 C16 H3 W530 K8 R2 S4 p1", "N1 C144 H5 W20 K192 R3 S3 p1", "N9 C16 H7 W7 K128 R3 S3 p1",
]  # fmt: skip


@pytest.mark.gpu
def test_libraries_are_of_the_class_and_layout() -> None:
    found = convlab.compare([FP16, LAST], "N2 C64 H30 W64 K128 R3 S3", progress=False)
    assert found.ok, str(found)
    assert {"cudnn:fp16", "cudnn:bf16:channels_last"} <= set(found.frame["kernel"])


@pytest.mark.parametrize("spec", SHAPES)
@pytest.mark.parametrize("engine", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_channels_last(engine: str, spec: str) -> None:
    """By two blocks, so that each has many tiles."""
    blocks = "device.smem, device.sms);\n    if (tiling.st"
    source = (KERNEL_DIR / f"{LAST}.cu").read_text()
    assert blocks in source
    source = source.replace(blocks, blocks.replace("device.sms", "2"))
    kernel = convlab.compile(source, name="two_blocks", engine=engine)
    report = check(kernel, named_problem(spec), scale=None)
    assert report.ok, str(report)


ROUND = """
#include "tensor.cuh"
__global__ void round_all(const float* in, float* nearest, float* ready, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        nearest[i] = round_tf32(in[i]);
        ready[i] = before_truncation(in[i]);
    }
}
"""


def test_rounding() -> None:
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(2))
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 1.0, -3.0, 2047.0, 2.0**-126])
    given = torch.cat([values, special])
    nearest, ready = torch.empty_like(given), torch.empty_like(given)
    run(ROUND, "round_all", given, nearest, ready, given.numel(), grid=1, block=256)
    truncated = (ready.view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert not (nearest.view(torch.int32) & 0x1FFF)[:-6].any()
    for rounded in (nearest, truncated):
        assert rounded[-6].isnan() and torch.equal(rounded[-5:], special[-5:])
        assert torch.equal(rounded[-8:-6], special[:2])
    unit = 2.0 ** (values.abs().log2().floor() - 10)
    errors = [(part[: values.numel()] - values) / unit for part in (nearest, truncated)]
    assert errors[0].abs().max() <= 0.5 and errors[1].abs().max() < 1
    assert errors[0].square().mean().sqrt() == pytest.approx(12**-0.5, rel=0.03)
    assert errors[1].square().mean().sqrt() < 0.33
