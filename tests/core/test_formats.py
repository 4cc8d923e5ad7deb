"""The header's keys `tensors` and `arch`: how they are read, and what they exclude."""

from __future__ import annotations

import pytest
import torch

from convlab.core.errors import CatalogError
from convlab.core.kernel.catalog import parse_header
from convlab.core.problem.format import FLOAT32, Format, parse_format
from convlab.core.problem.problem import Problem

pytestmark = pytest.mark.pure

PROBLEM = Problem(2, 3, 5, 7, 3, 1, 1)


@pytest.mark.parametrize(
    ("arch", "runs_on"),
    [
        ("sm_80", {80, 86, 90, 100}),
        ("sm_90a", {90}),
        ("sm_100f", {100, 103}),
        ("sm_120a", {120}),
    ],
)
def test_an_architecture_is_unsupported_elsewhere(arch: str, runs_on: set[int]) -> None:
    header = parse_header(f"// arch: {arch}\n", "a.cu")
    for sm in (75, 80, 86, 90, 100, 103, 120):
        reason = header.unsupported(PROBLEM, sm, 0)
        assert (reason is None) == (sm in runs_on or (arch == "sm_80" and sm >= 80)), sm
        assert reason is None or reason == f"its header's `arch:` requires {arch} (here sm_{sm})"


HALF = "x f16 NHWC, w f16 KRSC, y f16 NHWC, bias f32 K"
BIASED = Problem(2, 3, 4, 5, 6, 2, 2, bias=True)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("", str(FLOAT32)),
        (HALF, HALF),
        (HALF.replace("bias f32 K", "bias f32"), HALF),
        ("x  f16   NHWC", "x f16 NHWC, w f32 KCRS, y f32 NCHW, bias f32 K"),
        ("y bf16", "x f32 NCHW, w f32 KCRS, y bf16 NCHW, bias f32 K"),
    ],
)
def test_a_format_is_read_and_written(text: str, same: str) -> None:
    assert str(parse_format(text)) == same
    assert parse_format(same) == parse_format(text)
    assert parse_header(f"// tensors: {text}\n", "a.cu").tensors == parse_format(text)


@pytest.mark.parametrize(
    "part", ["x f64", "z f32", "x f32 NHCW", "w f32 NHWC", "x", "x f32 NCHW more", "bias f32 NCHW"]
)
def test_a_format_that_cannot_be_read(part: str) -> None:
    with pytest.raises(CatalogError, match=rf"a\.cu:2: tensors: cannot read '{part}'.*NHWC"):
        parse_header(f"// title: A\n// tensors: {part}\n", "a.cu")
    with pytest.raises(CatalogError, match="each tensor once"):
        parse_header("// tensors: x f32, x f32\n", "a.cu")


@pytest.mark.parametrize("text", ["", HALF, "x f16, w bf16 KRSC", "y f32 NHWC"])
def test_bytes_and_places_are_torchs(text: str) -> None:
    format = parse_format(text)
    total = 0
    shapes = (BIASED.x_shape, BIASED.w_shape, BIASED.y_shape, (BIASED.K,))
    for (name, storage), shape in zip(format, shapes, strict=True):
        tensor = torch.arange(torch.Size(shape).numel(), dtype=storage.torch_dtype).view(shape)
        placed = storage.place(tensor)
        assert torch.equal(placed, tensor)
        assert placed.permute(storage.order).is_contiguous()
        assert format.in_memory(BIASED)[name] == tuple(placed.permute(storage.order).shape)
        last = storage.layout.endswith("C")
        assert placed.is_contiguous(memory_format=torch.channels_last) or not last
        assert storage.place(placed).data_ptr() == placed.data_ptr()
        assert storage.logical(tensor.permute(storage.order)).shape == shape
        assert format.bytes(BIASED)[name] == tensor.nbytes
        total += tensor.nbytes
        poison = torch.full((8,), 0xFF, dtype=torch.uint8).view(storage.torch_dtype)
        assert poison.isnan().all()
    assert format.min_bytes(BIASED) == total


def test_a_problem_without_bias_moves_none() -> None:
    plain = Problem(2, 3, 4, 5, 6, 2, 2)
    assert FLOAT32.bytes(plain)["bias"] == 0
    assert BIASED.min_bytes - plain.min_bytes == 4 * 6
    assert isinstance(FLOAT32, Format) and hash(FLOAT32) == hash(parse_format(""))
