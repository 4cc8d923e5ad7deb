"""The gradients of a convolution: problems, truth in float64, baselines, calls, and refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from convlab.core.correctness import reference
from convlab.core.errors import CatalogError, ProblemError
from convlab.core.kernel.catalog import parse_header
from convlab.core.kernel.data import inputs
from convlab.core.kernel.libraries import baseline
from convlab.core.problem.computation import COMPUTATIONS, DATA_GRADIENT, WEIGHT_GRADIENT
from convlab.core.problem.format import parse_format
from convlab.core.problem.named import problem, problems
from convlab.core.problem.problem import Problem

pytestmark = pytest.mark.pure

SPECS = (
    "N2 C6 H9 W8 K4 R3 S3 s2x3 p1 g2",
    "N1 C4 H7 W11 K6 R2 S5 s1 p0x2 d2x1",
    "N3 C5 H10 W6 K5 R3 S1 s3x1 d1x2 g5",
    "N2 C3 H6 W6 K2 R1 S1 s2",
)


def of_autograd(conv: Problem) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return x, w, dy, and the gradients dx and dw that torch's autograd computes in float64."""
    generator = torch.Generator().manual_seed(3)

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = normal(conv.x_shape).requires_grad_()
    w = normal(conv.w_shape).requires_grad_()
    dy = normal(conv.y_shape)
    options = (None, conv.stride, conv.padding, conv.dilation, conv.groups)
    F.conv2d(x, w, *options).backward(dy)
    return {"x": x.detach(), "w": w.detach(), "dy": dy}, {"dx": x.grad, "dw": w.grad}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("computes", [DATA_GRADIENT, WEIGHT_GRADIENT], ids=lambda each: each.output)
def test_the_truth_is_that_of_autograd(spec, computes):
    conv = problem(spec).computing(computes.name)
    given, gradients = of_autograd(conv)
    first, second = (given[name] for name in computes.inputs)
    expected = gradients[computes.output]
    assert conv.output_shape == tuple(expected.shape)
    torch.testing.assert_close(reference.truth(conv, first, second), expected)
    where = reference.sample(conv, 40, seed=1)
    at = reference.truth(conv, first, second, where=where)
    torch.testing.assert_close(at, expected[tuple(where.unbind(1))])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("computes", [DATA_GRADIENT.name, WEIGHT_GRADIENT.name])
def test_the_baseline_computes_gradients_within_its_class(spec, computes):
    conv = problem(spec).computing(computes)
    given = inputs(conv, seed=5)
    launch = baseline("torch:cpu").prepare(conv, *given)
    launch()
    expected = reference.truth(conv, *given)
    error = float((launch.y.double() - expected).norm() / expected.norm())
    assert error < reference.tolerance("fp32", conv.terms)
    assert f"computes no {computes}" in baseline("torch:im2col", "cpu").unsupported(conv)


def test_an_inf_reaches_only_what_it_is_multiplied_with():
    conv = Problem(1, 1, 4, 4, 1, 3, 3, padding=1).computing(WEIGHT_GRADIENT.name)
    x = torch.ones(conv.first_shape)
    dy = torch.ones(conv.second_shape)
    dy[0, 0, 0, 0] = torch.inf
    dw = reference.truth(conv, x, dy)
    # The first row and column of the filter meet padding at this pixel.
    assert torch.isinf(dw[0, 0, 1:, 1:]).all()
    assert torch.isfinite(dw[0, 0, 0]).all() and torch.isfinite(dw[0, 0, :, 0]).all()


def test_terms_count_the_products_of_one_output():
    conv = Problem(2, 6, 9, 9, 4, 3, 3, stride=2, padding=1, groups=2)
    assert conv.terms == 3 * 9
    assert conv.computing("data gradient").terms == 2 * 2 * 2
    assert conv.computing("weight gradient").terms == 2 * 5 * 5
    dilated = dataclasses.replace(conv, dilation=(2, 2), padding=(2, 2))
    # With stride and dilation 2, each tap reaches every other element.
    assert dilated.computing("data gradient").terms == 2 * 9


@pytest.mark.parametrize(
    ("stride", "padding", "output_padding", "dilation", "groups"),
    [(1, 0, 0, 1, 1), (2, 1, 1, 1, 2), ((3, 1), (0, 2), (2, 0), (1, 2), 1), (1, 3, 0, 2, 1)],
)
def test_a_transposed_convolution_is_a_data_gradient(
    stride, padding, output_padding, dilation, groups
):
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    w = torch.randn(4, 3, 3, 3, dtype=torch.float64)
    options = (stride, padding, output_padding, groups, dilation)
    conv = Problem.transposed(x.shape, w.shape, *options)
    assert conv.computes == DATA_GRADIENT.name
    expected = F.conv_transpose2d(x, w, None, *options)
    assert conv.output_shape == tuple(expected.shape)
    torch.testing.assert_close(reference.truth(conv, x, w), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, 2, 3), (2, 2, 3, 3)), "4 dimensions"),
        (((1, 2, 3, 3), (4, 2, 3, 3)), "both are K"),
        (((1, 2, 3, 3), (2, 2, 3, 3), 2, 0, 2), "output_padding is 2"),
        (((1, 2, 1, 1), (2, 2, 1, 1), 1, 1), "less padding"),
    ],
)
def test_an_invalid_transposed_convolution_is_refused(arguments, message):
    with pytest.raises(ProblemError, match=message):
        Problem.transposed(*arguments)


def test_a_problem_with_an_unknown_computation_is_refused_at_once():
    with pytest.raises(ProblemError, match="no computes 'gradient': choose from forward"):
        Problem(N=1, C=1, H=3, W=3, K=1, R=1, S=1, computes="gradient")


def test_a_gradient_has_no_epilogue_and_keeps_its_name():
    conv = problem("wide bias relu").computing("data gradient")
    assert conv.epilogue == () and conv.label == "wide bias relu, data gradient"
    with pytest.raises(ProblemError, match="no bias and no ReLU"):
        dataclasses.replace(conv, bias=True)
    assert problem(str(conv)) == conv
    assert conv.scaled(1_000_000).computes == "data gradient"
    assert conv != problem("wide")


def test_the_sets_of_gradients():
    assert {each.computes for each in problems("kernelbench_transposed")} == {"data gradient"}
    assert [each.computes for each in problems("backward")[:2]] == [
        "data gradient",
        "weight gradient",
    ]
    strided = problem("kernelbench_transposed.81_dilated_padded_strided")
    assert strided == Problem.transposed(
        (16, 32, 64, 128), (32, 64, 3, 3), stride=5, padding=1, dilation=2
    )


def test_a_header_says_what_is_computed_and_names_its_tensors():
    header = parse_header("// computes: data gradient\n// tensors: dy bf16, dx bf16 NHWC\n", "k.cu")
    assert header.computes == "data gradient"
    assert header.tensors.x.dtype == "bf16" and header.tensors.y.order == (0, 2, 3, 1)
    described = header.tensors.describe(DATA_GRADIENT)
    assert described == "dy bf16 NCHW, w f32 KCRS, dx bf16 NHWC"
    assert parse_format(described, DATA_GRADIENT) == header.tensors
    conv = problem("wide")
    assert "and the problem is the forward convolution" in header.unsupported(conv, 90, 1 << 20)
    assert header.unsupported(conv.computing("data gradient"), 90, 1 << 20) is None
    with pytest.raises(CatalogError, match="computes is 'gradient'; it must be forward or data"):
        parse_header("// computes: gradient\n", "k.cu")
    with pytest.raises(CatalogError, match="cannot read 'y bf16'"):
        parse_header("// computes: weight gradient\n// tensors: y bf16\n", "k.cu")


def test_each_computation_has_names_for_all_tensors():
    for each in COMPUTATIONS.values():
        assert list(each.names) == ["x", "w", "bias", "y"]
        assert each.entry.startswith("conv2d")
