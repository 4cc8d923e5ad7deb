"""The micro-benchmarks under the rungs for Hopper: they compile, and on one they say what is so.

And what bias and ReLU cost is measured.
"""

import pytest
import torch

from convlab.machine.compile import Source
from convlab.words.problem import problem
from tests.instruments import ceilings, epilogue, roles
from tests.suites import cubin


def test_they_compile_without_spills(tmp_path):
    path = ceilings.SOURCE
    _, said = cubin(Source(path.read_text(), path.stem, path), "90a", tmp_path)
    assert said.count("0 bytes spill stores") == 12 and "C75" not in said


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="for Hopper"
)
def test_sums_that_leave_the_tensor_core_are_as_good_as_fp32():
    for row in ceilings.sums():
        assert float(row["3xTF32, every 1 step"]) < float(row["fp32 FMA in order"])
    assert float(row["3xTF32, never"]) > 10 * float(row["3xTF32, every 9 steps"])
    for rows in (ceilings.products(20), ceilings.feeding(20), ceilings.storing()):
        assert all(float(list(row.values())[-1]) > 0 for row in rows)


@pytest.mark.parametrize("name", roles.KERNELS)
def test_a_rung_takes_the_clocks(name, tmp_path):
    path = roles.probed(name, tmp_path)
    assert path.read_text().count("TIMED(6, ") in (1, 2)
    assert (tmp_path / "wgmma_roles.cuh").read_text().count("TIMED(") == 5  # and its definition
    if name == roles.KERNELS[-1]:
        _, said = cubin(Source(path.read_text(), path.stem, path), "90a", tmp_path)
        assert "C75" not in said


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="for Hopper"
)
def test_the_clocks_tell_of_each_tile():
    row = roles.cycles(roles.KERNELS[0], "N=4,C=16,H=258,W=260,K=64,R=3,S=3")
    assert row["tiles"] > 0 and row["a tile"] > row["stores"] > 0


@pytest.mark.gpu
def test_bias_and_relu_are_timed(monkeypatch):
    monkeypatch.setattr(epilogue, "problems", lambda name: [problem("N2 C64 H64 W64 K128 R3 S3")])
    rows = list(epilogue.rows())
    assert {"05_async_gemm", "11_wgmma_tf32"} <= {row["rung"] for row in rows}
    assert all(0.5 < float(row["ratio"]) < 2 and float(row["and both"]) > 0 for row in rows)
