"""The float64 reference against torch and a plain loop; tolerances against emulated arithmetic."""

import dataclasses
import itertools
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from convlab.core.correctness import reference
from convlab.core.correctness.reference import full_precision, inputs, sample, tolerance, truth
from convlab.core.errors import ProblemError, UnsupportedError
from convlab.core.kernel import libraries
from convlab.core.kernel.libraries import BASELINES, baseline
from convlab.core.problem.named import problem, problems
from convlab.core.problem.problem import Problem
from tests.drawn import generated

pytestmark = pytest.mark.pure

AWKWARD = problems("awkward")
SMALL = problem("awkward.everything")


def normwise(y, expected):
    """Return ||y - expected|| / ||expected||."""
    return float((y.double() - expected).norm() / expected.norm())


def conv2d(p, x, w, bias=None):
    """Return torch's convolution of p, in the tensors' type."""
    return F.conv2d(x, w, bias, p.stride, p.padding, p.dilation, p.groups)


def tf32(tensor, truncate=False):
    """Return float32 numbers with the ten mantissa bits that TF32 keeps."""
    bits = tensor.view(torch.int32)
    if not truncate:
        bits = bits + 0x0FFF + (bits >> 13 & 1)  # to nearest, ties to even
    return (bits & ~0x1FFF).view(torch.float32)


def test_inputs():
    x, w, bias = inputs(SMALL, seed=3)
    assert (x.shape, w.shape, bias.shape) == (SMALL.x_shape, SMALL.w_shape, (SMALL.K,))
    again = inputs(SMALL, seed=3)
    other = inputs(SMALL, seed=4)
    assert all(torch.equal(a, b) for a, b in zip((x, w, bias), again))
    assert not torch.equal(x, other[0])
    p = problem("N4 C64 H20 W20 K32 R3 S3")
    x, w, bias = inputs(p)
    assert bias is None
    assert 0.9 < truth(p, x, w).std() < 1.1


def assert_alike(y, expected, tolerance=1e-12):
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)


@given(generated(2000))
@settings(deadline=None, max_examples=60)
def test_truth_is_the_convolution_at_all_or_some_positions(p):
    x, w, bias = inputs(p, seed=1)
    whole = truth(p, x, w, bias)
    y = conv2d(p, x.double(), w.double(), bias if bias is None else bias.double())
    assert_alike(whole, y.relu() if p.relu else y)
    where = sample(p, 100)
    assert_alike(truth(p, x, w, bias, where), whole[tuple(where.T)])


@pytest.mark.parametrize("p", AWKWARD, ids=lambda p: p.name)
def test_truth_in_small_chunks(p, monkeypatch):
    x, w, bias = inputs(p)
    whole = truth(p, x, w, bias)
    where = sample(p, 500)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 1 << 18)
    x = x.contiguous(memory_format=torch.channels_last)
    assert_alike(truth(p, x, w, bias), whole)
    assert_alike(truth(p, x, w, bias, where), whole[tuple(where.T)])


def test_truth_by_the_definition():
    p = Problem(2, 4, 5, 6, 6, 2, 3, (2, 1), (1, 2), (1, 2), 2, True)
    x, w, bias = inputs(p)
    y = truth(p, x, w, bias)
    for n, k, i, j in sample(p, 10**6).tolist():
        total = float(bias[k])
        for c, r, s in itertools.product(range(2), range(p.R), range(p.S)):
            h = 2 * i - 1 + r
            col = j - 2 + 2 * s
            if 0 <= h < p.H and 0 <= col < p.W:
                total += float(x[n, k // 3 * 2 + c, h, col]) * float(w[k, c, r, s])
        assert y[n, k, i, j].item() == pytest.approx(total, abs=1e-12)


def test_truth_propagates_nan_but_not_into_padding():
    p = problem("N1 C1 H6 W6 K1 R3 S3 p1")
    x, w, _ = inputs(p)
    x[0, 0, 0, 0] = math.nan
    where = sample(p, 100)
    assert truth(p, x, w).isnan().sum() == 4
    assert truth(dataclasses.replace(p, relu=True), x, w).isnan().sum() == 4
    assert truth(p, x, w, where=where).isnan().sum() == 4


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, w, b: (x[:1], w, b), "x has shape"),
        (lambda x, w, b: (x, w[1:], b), "w has shape"),
        (lambda x, w, b: (x, w, b[1:]), "bias has shape"),
        (lambda x, w, b: (x, w, None), "bias has shape None"),
        (lambda x, w, b: (x, w.to("meta"), b), "w is on meta and x on cpu"),
    ],
)
def test_tensors_that_do_not_fit(change, message):
    with pytest.raises(ProblemError, match=message):
        truth(SMALL, *change(*inputs(SMALL)))


@pytest.mark.parametrize("p", AWKWARD, ids=lambda p: p.name)
@pytest.mark.parametrize("count", [1, 100, 3000])
def test_sample(p, count):
    where = sample(p, count)
    total = math.prod(p.y_shape)
    assert len(where) >= min(count, total)
    assert len(where.unique(dim=0)) == len(where)
    assert (where >= 0).all() and (where < torch.tensor(p.y_shape)).all()
    assert torch.equal(where, sample(p, count))
    assert where[0].tolist() == [0, 0, 0, 0]
    assert where[-1].tolist() == [size - 1 for size in p.y_shape]


def test_sample_of_two_billion_outputs():
    p = problem("square")
    where = sample(p, 200_000)
    assert len(where) >= 200_000
    n, k, row, col = where.T
    corner = ((row == 0) | (row == p.P - 1)) & ((col == 0) | (col == p.Q - 1))
    seam = (row % 16 == 0) | (row % 16 == 15)
    assert corner.sum() > 5000 and (row == p.P - 1).sum() > 5000 and (col == 0).sum() > 5000
    assert seam.float().mean() > 0.15
    assert (where[-1000:].flip(0)[:, 3] == p.Q - 1 - torch.arange(1000)).all()
    assert len(n.unique()) == p.N and len(k.unique()) == p.K


def test_sample_of_an_empty_output():
    assert sample(problem("N0 C1 H3 W3 K1 R3 S3"), 10).shape == (0, 4)


COMMON = ["N2 C16 H40 W40 K32 R3 S3", "N2 C32 H20 W30 K16 R5 S9", "N2 C64 H24 W24 K32 R1 S1"]


@pytest.mark.parametrize("spec", COMMON)
def test_tolerance_distinguishes_the_precision_classes(spec):
    p = problem(spec)
    x, w, _ = inputs(p)
    expected = truth(p, x, w)
    fp32 = tolerance("fp32", p.gemm_k)
    class_tf32 = tolerance("tf32", p.gemm_k)
    # torch adds in another order on each kind of CPU: 6.8e-7 was seen where 2.6e-6 is allowed.
    assert normwise(conv2d(p, x, w), expected) < fp32 / 3
    rounded = normwise(truth(p, tf32(x), tf32(w)), expected)
    truncated = normwise(truth(p, tf32(x, True), tf32(w, True)), expected)
    bf16 = normwise(truth(p, x.bfloat16(), w.bfloat16()), expected)
    assert rounded == pytest.approx(2.9e-4, rel=0.1)
    assert truncated == pytest.approx(7.7e-4, rel=0.1)
    assert bf16 == pytest.approx(2.3e-3, rel=0.1)
    assert fp32 < rounded < truncated < class_tf32 < bf16


@pytest.mark.parametrize("gemm_k", [16, 144, 1440])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_tolerance_of_16_bit_formats_is_that_of_one_rounding(dtype, gemm_k):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, gemm_k, 2000, generator=generator).to(dtype)
    expected = (x.double() * w.double()).sum(0)
    in_fp32 = torch.zeros(2000)
    in_half = torch.zeros(2000, dtype=dtype)
    for a, b in zip(x, w):
        in_fp32 += a.float() * b.float()
        in_half = (in_half.float() + a.float() * b.float()).to(dtype)
    bound = tolerance({torch.bfloat16: "bf16"}.get(dtype, "fp16"), gemm_k)
    assert normwise(in_fp32.to(dtype), expected) == pytest.approx(bound / 2, rel=0.1)
    assert normwise(in_half, expected) > bound


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_tolerance_of_few_outputs_allows_the_largest_rounding(precision):
    if precision == "tf32":
        x = torch.tensor(
            [1 + 2**-10 - 2**-23]
        )  # truncation removes nearly one unit in the last place, twice
        few = normwise(tf32(x, truncate=True).square(), x.double().square())
    else:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        y = torch.tensor([1 + torch.finfo(dtype).eps / 2], dtype=torch.float64)  # half a step
        few = normwise(y.to(dtype), y)
    assert tolerance(precision, 1) < few < tolerance(precision, 1, 2)
    assert tolerance(precision, 1, 128) == tolerance(precision, 1)


@pytest.mark.parametrize("gemm_k", [1, 9, 144, 1440])
def test_tolerance_allows_the_worst_order_of_summation(gemm_k):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, gemm_k, 2000, generator=generator)
    total = torch.zeros(2000)
    for a, b in zip(x, w):  # one after the other, each product rounded too
        total += a * b
    error = normwise(total, (x.double() * w.double()).sum(0))
    assert error < tolerance("fp32", gemm_k) / 2
    assert error < 2 * 0.29 * math.sqrt(gemm_k) * 2**-24 + 2**-24  # the model of the docstring


def test_tolerance_finds_one_incorrect_pixel_in_100_000():
    p = problem("N2 C16 H64 W64 K13 R3 S3")
    y = truth(p, *inputs(p)[:2])
    wrong = y.clone()
    wrong[1, 12, 61, 61] = 0
    assert normwise(wrong, y) > tolerance("fp32", p.gemm_k)


def test_unknown_precision():
    with pytest.raises(ProblemError, match="fp32, tf32"):
        tolerance("fp8", 9)


ANYWHERE = [(name, "cpu") for name in ("torch:im2col", "torch:cpu")]
ANYWHERE += [
    pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in BASELINES if name != "torch:cpu"
]


@pytest.mark.parametrize(("name", "device"), ANYWHERE)
def test_baseline(name, device, monkeypatch):
    monkeypatch.setattr(libraries, "IM2COL_BYTES", 1 << 18)  # forces work in chunks
    runnable = baseline(name, device)
    assert runnable.device.type == device
    for p in (dataclasses.replace(p, relu=p.K % 2 == 1) for p in AWKWARD):
        assert runnable.unsupported(p) is None
        x, w, bias = inputs(p, device=device, format=runnable.format)
        placed = x.contiguous(memory_format=torch.channels_last) if device == "cpu" else x
        launch = runnable.prepare(p, placed, w, bias)
        launch.y.fill_(math.nan)
        launch()
        launch()
        assert tuple(launch.y.shape) == p.y_shape and launch.counters is None
        assert launch.y.dtype == x.dtype == runnable.format.y.torch_dtype
        error = normwise(launch.y, truth(p, x, w, bias))
        assert error < tolerance(runnable.precision, p.gemm_k), p
        if name == "torch:im2col":
            columns = p.C * p.R * p.S
            assert launch.workspace.nbytes <= max(1 << 18, 4 * columns * p.Q)


@pytest.mark.parametrize("name", ["torch:im2col", "torch:cpu"])
def test_baseline_is_called_like_conv2d(name):
    x, w, bias = inputs(SMALL)
    options = (SMALL.stride, SMALL.padding, SMALL.dilation, SMALL.groups)
    assert baseline(name, "cpu")(x, w, bias, *options, relu=True).min() == 0
    y = baseline(name, "cpu")(x, w, bias, *options)
    torch.testing.assert_close(y, F.conv2d(x, w, bias, *options).detach(), rtol=1e-4, atol=1e-5)
    assert baseline(name, "cpu")(x[0], w, bias, *options).equal(y[0])
    empty = baseline(name, "cpu")(x[:0], w, bias, *options)
    assert tuple(empty.shape) == (0, *SMALL.y_shape[1:])
    with pytest.raises(ProblemError, match="w must have 4"):
        baseline(name, "cpu")(x, w[0])


def test_baseline_names():
    told = {name: baseline(name, "cpu").precision for name in BASELINES if "torch" in name}
    assert told == {"torch:im2col": "fp32", "torch:cpu": "fp32"}
    for asked, kind, message in (
        (("cudnn",), ProblemError, "did you mean cudnn:fp32"),
        (("torch:cpu", "cuda"), UnsupportedError, "runs on cpu only"),
        (("cudnn:fp32", "cpu"), UnsupportedError, "runs on cuda only"),
    ):
        with pytest.raises(kind, match=message):
            baseline(*asked)
    with pytest.raises(ProblemError, match="x is on meta"):
        baseline("torch:cpu").prepare(SMALL, *(t.to("meta") for t in inputs(SMALL)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name, device", [("cudnn:fp32", None), ("torch:im2col", "cuda")])
def test_baseline_without_a_gpu(name, device):
    with pytest.raises(UnsupportedError, match="needs an NVIDIA GPU"):
        baseline(name, device)


def test_full_precision_restores_the_settings():
    conv = torch.backends.cudnn.conv
    matmul = torch.backends.cuda.matmul
    before = conv.fp32_precision, matmul.fp32_precision
    try:
        conv.fp32_precision = "tf32"
        matmul.fp32_precision = "tf32"
        with pytest.raises(KeyError), full_precision():
            assert (conv.fp32_precision, matmul.fp32_precision) == ("ieee", "ieee")
            raise KeyError
        assert (conv.fp32_precision, matmul.fp32_precision) == ("tf32", "tf32")
    finally:
        conv.fp32_precision, matmul.fp32_precision = before


def test_full_precision_of_two_threads_that_overlap():
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    inside = threading.Event()
    left = threading.Event()

    def other():
        with full_precision():
            inside.set()
            left.wait(20)

    thread = threading.Thread(target=other)
    with full_precision():
        thread.start()
        assert inside.wait(20)
    assert conv.fp32_precision == "ieee"
    left.set()
    thread.join()
    assert conv.fp32_precision == before


@pytest.mark.gpu
def test_classes_are_pinned_on_a_gpu():
    p = problem("N8 C64 H56 W56 K64 R3 S3 p1")
    x, w, _ = inputs(p, device="cuda")
    expected = truth(p, x, w)
    where = sample(p, 10_000, device="cuda")
    assert_alike(truth(p, x, w, where=where), expected[tuple(where.T)], 1e-11)
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    names = [n for n in BASELINES if n != "torch:cpu" and "16" not in baseline(n).precision]
    try:
        matmul.fp32_precision = "tf32"  # torch's setting must have no effect
        errors = {name: normwise(baseline(name)(x, w, padding=1), expected) for name in names}
    finally:
        matmul.fp32_precision = before
    for name, error in errors.items():
        if "tf32" in name and torch.cuda.get_device_capability() >= (8, 0):
            assert tolerance("fp32", p.gemm_k) < error < tolerance("tf32", p.gemm_k)
        else:
            assert error < tolerance("fp32", p.gemm_k)
