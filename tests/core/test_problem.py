"""Problem: its arithmetic compared with torch's, invalid problems, names, and shrinking."""

import ast
import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convlab
from convlab.core.errors import ProblemError
from convlab.core.problem import named
from convlab.core.problem.named import PROBLEM_SETS, problem, problems
from convlab.core.problem.problem import Problem, same_padding
from tests.drawn import generated

pytestmark = pytest.mark.pure

ALL = [member for name in PROBLEM_SETS for member in problems(name)]


@given(generated(2000))
@settings(deadline=None, max_examples=200)
def test_output_shape_is_torchs_and_the_printed_form_is_a_specification(p):
    x, w = (torch.empty(shape, device="meta") for shape in (p.x_shape, p.w_shape))
    y = torch.nn.functional.conv2d(x, w, None, p.stride, p.padding, p.dilation, p.groups)
    assert tuple(y.shape) == p.y_shape
    assert problem(str(p)) == p


@given(generated(2000), st.integers(0, 3000), st.one_of(st.none(), st.integers(50, 3000)))
@settings(deadline=None, max_examples=200)
def test_scaled_is_valid_and_fits(p, max_macs, max_bytes):
    q = p.scaled(max_macs, max_bytes)
    for key in ("stride", "padding", "dilation", "R", "S", "bias", "relu"):
        assert getattr(q, key) == getattr(p, key)
    assert all(getattr(q, key) <= getattr(p, key) for key in ("N", "C", "H", "W", "K", "groups"))
    fits = q.macs <= max_macs and (max_bytes is None or q.min_bytes <= max_bytes)
    smallest = (q.C, q.K, q.groups) == (1, 1, 1) and q.N <= 1
    assert fits or smallest


@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
def test_scaled_keeps_the_sizes_that_reveal_mistakes(p):
    q = p.scaled(20_000_000)
    assert q.macs <= 20_000_000
    if q is p:
        return
    assert q.macs > 9_000_000 or q.N > 2
    assert q.N >= min(p.N, 2)
    for size, now, filter_size, i in ((p.H, q.H, p.R, 0), (p.W, q.W, p.S, 1)):
        assert now >= min(size, 4 * (p.dilation[i] * (filter_size - 1) + 1))
    assert q.P >= min(p.P, 18) and q.Q >= min(p.Q, 18)
    assert q.name.startswith(f"{p.name} (scaled to N={q.N}, {q.H}x{q.W}")


def test_scaled_returns_itself_if_small_enough_and_names_the_original_once():
    p = problem("awkward.primes")
    assert p.scaled(p.macs, p.min_bytes) is p
    assert p.scaled(p.macs, p.min_bytes - 1) is not p
    assert problem("square").scaled(10**8).scaled(10**6).name.count("scaled") == 1


def test_headline_facts():
    square, rect, wide = problems("headline")
    assert (square.name, rect.name, wide.name) == ("square", "rect", "wide")
    assert [round(p.flops / 1e9, 1) for p in (square, rect, wide)] == [616.1, 377.5, 614.9]
    assert [round(p.min_bytes / 1e9, 3) for p in (square, rect, wide)] == [9.630, 0.793, 3.209]
    assert [round(p.im2col_elements / 1e9, 2) for p in (square, rect, wide)] == [2.41, 2.95, 2.40]
    assert square.gemm_m * square.gemm_n == 2_139_103_232
    assert (rect.gemm_m, rect.gemm_n, rect.gemm_k) == (8 * 508 * 504, 64, 32 * 45)
    # The same three problems have numbers in KernelBench.
    assert {square, rect, wide} <= set(problems("kernelbench"))
    layers = problems("resnet50")
    assert len(layers) == len(set(layers)) == 23
    assert problem("resnet50.layer2.0.conv2") == Problem(32, 128, 56, 56, 128, 3, 3, 2, 1)
    assert problem("resnet50.layer4.0.downsample") == Problem(32, 1024, 14, 14, 2048, 1, 1, 2)
    assert all(layer.P in (112, 56, 28, 14, 7) for layer in layers)


def test_awkward_covers_every_option_and_stays_small():
    awkward = problems("awkward")
    assert max(p.macs for p in awkward) < 2_000_000
    for condition in (
        "bias",
        "groups == C > 1 and K == 2 * C",
        "stride_h != stride_w",
        "pad_h > R",
        "C == 1",
        "dilation_h != dilation_w",
        "pad_h != pad_w",
        "K == 1",
        "W == 1",
        "H == 1",
        "N == 1",
        "N > 65535",
        "N == C == K == R == S == P == Q",
        "(R, S) == (5, 9)",
    ):
        values = [p.variables() | {"bias": p.bias} for p in awkward]
        assert any(eval(condition, each) for each in values), condition


def test_names_are_unique_and_found():
    assert len({p.name for p in ALL}) == len(ALL)
    for p in ALL:
        assert problem(p.name) is p
        assert problem(p) is p


@pytest.mark.parametrize(
    "spec, expected",
    [
        ("N=1,C=3,H=32,W=30,K=8,R=3,S=5", Problem(1, 3, 32, 30, 8, 3, 5)),
        (
            "N=1,C=4,H=9,W=9,K=8,R=3,S=3,stride=2,padding=1x2,dilation=2x1,groups=2,bias=1",
            Problem(1, 4, 9, 9, 8, 3, 3, 2, (1, 2), (2, 1), 2, True),
        ),
        ("N1 C3 H8 W8 K2 R3 S3 s2 p1 bias", Problem(1, 3, 8, 8, 2, 3, 3, 2, 1, bias=True)),
        ("N1 C3 H8 W8 K2 R3 S3 relu=1", Problem(1, 3, 8, 8, 2, 3, 3, relu=True)),
        ("wide bias relu", Problem(8, 64, 512, 1024, 128, 3, 3, bias=True, relu=True)),
    ],
)
def test_specification(spec, expected):
    assert problem(spec) == expected


@pytest.mark.parametrize(
    "spec, message",
    [
        ("sqare", "did you mean square"),
        ("resnet50.layer2.0.conv9", "resnet50.layer2.0.conv"),
        ("zzz", "there are square, rect, wide, headline"),
        ("N=1,C=3,H=8,W=8,K=2,R=3", "lacks S"),
        ("N=1,C=3,H=8,W=8,K=2,R=3,S=3,pad=1", "cannot read 'pad=1'"),
        ("N=1,C=3,H=8,W=8,K=2,R=3,S=x", "cannot read 'S=x'"),
        ("N=1,N=2,C=3,H=8,W=8,K=2,R=3,S=3", "N is given twice"),
        ("N=1,C=3,H=8,W=8,K=2x3,R=3,S=3", "K must be an integer"),
    ],
)
def test_bad_specification(spec, message):
    with pytest.raises(ProblemError, match=message):
        problem(spec)
    with pytest.raises(
        ProblemError,
        match="headline, kernelbench, kernelbench_transposed, kernelbench_1d, backward, resnet50",
    ):
        problems("headlines")


X = (2, 6, 9, 8)
W = (4, 3, 3, 2)


@pytest.mark.parametrize(
    "shapes, options, message",
    [
        (((6, 9, 8), W), {}, r"4 dimensions .*x\.unsqueeze\(0\)"),
        ((X, (4, 3, 10, 2)), {"groups": 2}, "larger than the padded input: height 10 .*pad by 1"),
        ((X, W), {"groups": 2, "padding": "same"}, "padding must be an integer, not 'same'"),
        (((2, 6, 0, 8), W), {"groups": 2}, "H is 0; it must be at least 1"),
        (((-1, 6, 9, 8), W), {"groups": 2}, "N is -1; it must be at least 0"),
        (((2, 6, 2**31, 8), W), {"groups": 2}, "limit is 2"),
        (((2**31, 6, 9, 8), W), {"groups": 2}, "N is 2147483648"),
        ((X, W), {"groups": 2, "padding": 2**31 - 1}, "limit is 2"),
        ((X, W), {"groups": 2, "stride": 2**31}, "stride_h is 2147483648"),
    ],
)
def test_invalid_shapes(shapes, options, message):
    """test_errors.py tests more of them in a kernel's call."""
    with pytest.raises(ProblemError, match=message):
        Problem.from_shapes(*shapes, **options)


def test_empty_batch_is_a_problem():
    p = Problem.from_shapes((0, 6, 9, 8), W, groups=2)
    assert p.y_shape == (0, 4, 7, 7) and p.macs == 0 and p.scaled(0) is p


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_same_padding_is_torchs(size, dilation):
    x = torch.randn(1, 1, 20, 20)
    w = torch.randn(1, 1, size, 1)
    before, after = same_padding(size, dilation)
    padded = torch.nn.functional.pad(x, (0, 0, before, after))
    expected = torch.nn.functional.conv2d(x, w, padding="same", dilation=dilation)
    torch.testing.assert_close(torch.nn.functional.conv2d(padded, w, dilation=dilation), expected)


def test_is_a_value():
    p = problem("square")
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.N = 1
    assert dataclasses.replace(p, name="other") == p
    assert p.label == "square" and dataclasses.replace(p, name="").label == str(p)
    assert Problem(1, 2, 3, 3, 2, 2, 2, [2], (1,), 1).stride == (2, 2)


@pytest.mark.parametrize(
    "module",
    ["problem/problem", "problem/named", "kernel/catalog", "errors", "problem/format", "arguments"],
)
def test_import_needs_the_standard_library_only(module):
    tree = ast.parse((Path(convlab.__file__).parent / "core" / f"{module}.py").read_text())
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names}


def test_options_of_a_set_apply_to_its_problems():
    members, of_set = named.members("headline bias relu")
    names = [f"{name} bias relu" for name in ("square", "rect", "wide")]
    assert of_set and [p.name for p in members] == names
    assert all(p.bias and p.relu for p in members)


def test_an_empty_set_of_problems_is_refused():
    with pytest.raises(ProblemError, match="the set of problems is empty"):
        named.members([])
