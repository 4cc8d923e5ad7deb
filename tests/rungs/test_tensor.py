"""Tensor cores and asynchronous copies on the simulator: the wrappers, and bugs planted in rungs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.core.correctness import reference
from convlab.core.correctness.check import check
from convlab.core.errors import LaunchError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.problem.named import problem as named_problem
from convlab.core.problem.problem import Problem
from convlab.sim.any_kernel import run
from tests.suites import DEEP, FOLDER, on_engines

# Five chunks in two stages; rows that leave by bulk copies.
WIDE = Problem(1, 40, 4, 256, 70, 3, 3)
MMA, WGMMA, PARTS = "10_mma_tf32", "11_wgmma_tf32", "13_wgmma_3xtf32"
HALF, FP16, LAST = "15_wgmma_bf16", "15b_wgmma_fp16", "16_wgmma_nhwc_bf16"
# Pasted into the rungs that include them, so that a bug may be there.
SHARED = ("wgmma_block.cuh", "wgmma_store.cuh")
ANY = {"race", "uninitialised read", "deadlock", "copy not waited for", "overwritten too early"}


def planted() -> Iterator[tuple[str, str, str, str, frozenset[str]]]:
    """The name, rung, text, what that is replaced by, and kinds of each bug in ``tensor.diff``."""
    for part in (FOLDER / "tensor.diff").read_text().split("\n# ")[1:]:
        name, head, *lines = part.strip("\n").split("\n")
        rung, _, told = head.partition(":")
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        kinds = frozenset(filter(None, told.strip().split(", ")))
        yield name, rung, old, new, kinds | (ANY if "any" in kinds else frozenset())


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


PLANTED = list(planted())
# Else one of every other kind, and of every other rung one that only y shows.
if not DEEP:
    PLANTED = list({case[4] or case[1]: case for case in PLANTED}.values())[::2]


@pytest.mark.parametrize(
    ("rung", "old", "new", "kinds"), [case[1:] for case in PLANTED], ids=[c[0] for c in PLANTED]
)
def test_a_planted_bug_is_told(
    rung: str, old: str, new: str, kinds: frozenset[str], tmp_path: Path
) -> None:
    source = (KERNEL_DIR / f"{rung}.cu").read_text()
    for name in SHARED:
        header = (KERNEL_DIR / name).read_text().replace("#pragma once\n", "\n")
        source = source.replace(f'#include "{name}"\n', header)
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
    "N2 C64 H5 W258 K128 R3 S3 bias",
    "N3 C24 H33 W33 K70 R3 S3 p1 bias",
    "N1 C72 H9 W40 K65 R1 S1",
    "N5 C16 H13 W18 K256 R3 S3 s2 p1 bias",
    "N4 C40 H39 W11 K12 R3 S3 s2x1 d2x3 p3",
    "N40 C8 H9 W9 K128 R1 S1",
    "N2 C32 H16 W117 K64 R5 S9 p2x4",
    "N2 C48 H8 W8 K136 R3 S3 g2 p1 bias",
    "N1 C16 H3 W530 K8 R2 S4 p1",
    "N1 C144 H5 W20 K192 R3 S3 p1",
    "N9 C16 H7 W7 K128 R3 S3 p1",
]


@pytest.mark.gpu
def test_libraries_are_of_the_class_and_layout() -> None:
    found = convlab.compare([FP16, LAST], "N2 C64 H30 W64 K128 R3 S3", progress=False)
    assert found.ok, str(found)
    assert {"cudnn:fp16", "cudnn:bf16:channels_last"} <= set(found.frame["kernel"])


@pytest.mark.parametrize(("spec", "engine"), on_engines(dict(zip(SHAPES, SHAPES)), 3))
def test_channels_last(spec: str, engine: str) -> None:
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
    nearest = torch.empty_like(given)
    ready = torch.empty_like(given)
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
