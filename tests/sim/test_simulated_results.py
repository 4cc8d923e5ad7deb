"""The results of check, compare and ab for simulated kernels."""

from __future__ import annotations

import convlab
from convlab.core.correctness.check import check
from convlab.core.problem.problem import Problem
from convlab.core.timing.compare import compare
from tests.fakes import PLAIN, dumped

SMALL = Problem(N=1, C=4, H=20, W=20, K=8, R=3, S=3, name="small")


def test_simulated_ab_compares_bytes_only():
    result = convlab.ab("01_direct", "03_smem_tile", SMALL, engine="sim")
    assert result.verdict == "fewer bytes" and result.ratio < 0.5 and result.interval is None
    assert convlab.ab("03", "01", SMALL, engine="sim", check=False).verdict == "more bytes"
    row = result.frame.set_index("counter").loc["traffic_bytes"]
    assert row["b"] / row["a"] == result.ratio
    assert "nothing about speed" in str(result) and " ms" not in str(result)
    assert dumped(result)["verdict"] == "fewer bytes" and len(dumped(result)["reports"]) == 2
    assert "<pre>" in result._repr_html_() and result.plot()._repr_png_()[:4] == b"\x89PNG"


def test_sources_and_tunables_can_be_compared(tmp_path):
    text = convlab.load("01_direct").path.read_text()
    path = tmp_path / "mine.cu"
    path.write_text(text)
    text = convlab.compile(text, name="mine_too", engine="sim")
    assert convlab.ab(text, path, SMALL, engine="sim").verdict == "same bytes"
    result = convlab.ab("03_smem_tile@TILE=8", "03_smem_tile@TILE=16", SMALL, engine="sim")
    assert (result.a, result.verdict) == ("03_smem_tile@TILE=8", "fewer bytes")


def test_traffic_is_32_bytes_a_sector():
    report = check(convlab.load("01_direct", engine="sim"), PLAIN)
    counters = report.counters
    sectors = counters["global_load_sectors"] + counters["global_store_sectors"]
    assert report.traffic_bytes == 32 * sectors > PLAIN.min_bytes


def test_an_untraced_kernel_has_no_cost():
    untraced = compare(convlab.load("01_direct", engine="sim", trace=False), PLAIN)
    assert untraced.ok and "1 of 1 correct" in str(untraced)
    assert untraced.frame["traffic_mb"].isna().all()
