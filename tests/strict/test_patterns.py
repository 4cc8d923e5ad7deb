"""Patterns of incorrect outputs must be true, and correct outputs must have none."""

from __future__ import annotations

import dataclasses
import random
import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convlab.core.correctness import output, reference
from convlab.core.correctness.evidence import Evidence
from convlab.core.correctness.output import OutputComparison, poison
from convlab.core.correctness.reference import Reference
from convlab.core.kernel.catalog import parse_header
from convlab.core.kernel.runnable import Launch
from convlab.core.problem.named import problem, problems
from convlab.core.problem.problem import Problem
from convlab.strict import output_patterns, problem_patterns
from convlab.strict.generated_problems import MAX_MACS, generate
from convlab.strict.smallest_failure import shrink
from convlab.strict.suggested_limits import suggest

pytestmark = pytest.mark.pure

PROBLEM = problem("N3 C4 H20 W37 K8 R3 S3 p1 g2 bias")  # P=20, Q=37
PIXELS = problem("N2 C3 H9 W9 K5 R3 S3 p1")  # P = Q: a transposed image keeps its shape


def said(problem, spoil, *, precision="fp32", sampled=None, seed=0):
    """Return the sentences on a correct y after `spoil(y, *inputs)` changed it."""
    inputs = reference.inputs(problem, seed)
    y = reference.truth(problem, *inputs).float()
    spoilt = spoil(y, *inputs)
    y = (y if spoilt is None else spoilt).contiguous()
    bound = reference.tolerance(precision, problem.gemm_k)
    with pytest.MonkeyPatch.context() as patch:
        if sampled:  # as if y were too large to look at all outputs
            patch.setattr(output, "LOOKED_AT", 0)
            patch.setattr(reference, "SAMPLED", sampled)
        right = Reference(problem, inputs, seed)
        return OutputComparison(right, y, bound, poisoned=True).patterns(precision)


def put(*indices, value=9.0):
    """Return a function that changes the outputs at some indices."""

    def spoil(y, x, w, bias):
        for index in indices:
            y[index] += value

    return spoil


def unwritten(index):
    def spoil(y, x, w, bias):
        launch = Launch(None, PROBLEM, (x, w, bias))
        launch.y = torch.empty_like(y)
        poison(launch)
        y[index] = launch.y[index]

    return spoil


def biased(bias_times, product):
    """Return a function that scales the sum and the bias."""

    def spoil(y, x, w, bias):
        bias = bias.view(1, -1, 1, 1)
        return (y - bias) * product + bias * bias_times

    return spoil


def rounded(bits):
    def spoil(y, x, w, bias):
        def cut(t):
            half = 1 << (bits - 1)
            mask = ~((1 << bits) - 1)
            return ((t.view(torch.int32) + half) & mask).view(torch.float32)

        return reference.truth(PROBLEM, cut(x), cut(w), bias).float()

    return spoil


COLUMNS = torch.arange(37)
PLANTED = {
    "tile_of_16": (put((..., COLUMNS % 16 >= 14)), "the last 2 columns of each tile of 16"),
    "tile_of_4": (put((..., COLUMNS % 4 == 3)), "the last column of each tile of 4"),
    "tile_start": (put((..., COLUMNS % 8 < 3)), "the first 3 columns of each tile of 8"),
    "tile_middle": (put((..., COLUMNS % 12 == 5)), "only where q % 12 is 5"),
    "tile_rows": (put((..., torch.arange(20) % 8 > 5, slice(None))), "the last 2 rows of each"),
    "odd_column": (put((..., COLUMNS % 2 == 1)), "only where q is odd"),
    "not_first_image": (put(slice(1, None)), "only where n > 0"),
    "first_image": (put(0), "only where n is 0"),
    "last_image": (put(2), "only where n is the last"),
    "odd_k": (put((slice(None), slice(1, None, 2))), "only where k is odd"),
    "even_k": (put((slice(None), slice(0, None, 2))), "only where k is even"),
    "k_beyond": (put((slice(None), slice(5, None))), "only where k >= 5"),
    "k_below": (put((slice(None), slice(0, 3))), "only where k <= 2"),
    "one_group": (put((slice(None), slice(4, None))), "only where the group is 1"),
    "partial_tile": (put((..., slice(32, None))), "q >= 32, past the last whole tile of 32"),
    "one_row": (put((..., 7, slice(None))), "only where p is 7"),
    "box": (put((1, slice(None), slice(2, 9), slice(3, 7))), "p is 2 to 8: 224 of 6,216"),
    "borders": (put((..., 0, slice(None)), (..., 0), (..., -1)), "window reaches into the padding"),
    "tail": (
        put(torch.arange(3 * 8 * 20 * 37).view(3, 8, 20, 37) >= 17060),
        "the offset in memory >= 17060",
    ),
    "shift_w": (lambda y, *_: y.roll(-1, 3), "shifted by (0, -1) in (p, q)"),
    "shift_both": (lambda y, *_: y.roll((1, 2), (2, 3)), "shifted by (1, 2) in (p, q)"),
    "shift_k": (lambda y, *_: y.roll(1, 1), "shifted by 1 in k"),
    "n_k": (lambda y, *_: y.transpose(0, 1).reshape(y.shape), "n and k exchanged in memory"),
    "p_q": (lambda y, *_: y.transpose(2, 3).reshape(y.shape), "p and q exchanged in memory"),
    "channels_last": (lambda y, *_: y.permute(0, 2, 3, 1).reshape(y.shape), "channels last"),
    "other_order": (lambda y, *_: y.permute(2, 3, 0, 1).reshape(y.shape), "read as (P, Q, N, K)"),
    "scaled": (lambda y, *_: y / 3, "1/3 times the correct value: all 17,759"),
    "negated": (lambda y, *_: -y, "-1 times the correct value"),
    "scaled_before_bias": (biased(1, 0.5), "1/2 times the correct value, before the bias"),
    "no_bias": (biased(0, 1), "the bias is not added: all 17,760"),
    "bias_twice": (biased(2, 1), "the bias is added twice"),
    "bias_by_four_threads": (biased(4, 1), "the bias is added 4 times: all 17,760"),
    "zeros": (lambda y, *_: 0 * y, "every output is 0"),
    "zeros_in_part": (lambda y, *_: y * (torch.arange(3) < 2).view(-1, 1, 1, 1), "equal, 0: all 5"),
    "unwritten": (unwritten((..., slice(30, None))), "never written: all 3,360 incorrect"),
    "nan": (
        put((0, 3), value=float("nan")),
        "NaN or inf, as if read from uninitialised memory",
    ),
    "inf": (put((0, 3), value=float("inf")), "inf, as after an overflow or a division"),
    "tf32": (
        rounded(13),
        "operands or sums were rounded to TF32 or fp16, but the class is fp32",
    ),
    "fp16_sums": (lambda y, *_: y.half().float(), "operands or sums were rounded to TF32 or fp16"),
    "fp16_sums_and_bias": (
        lambda y, x, w, b: (y - b.view(1, -1, 1, 1)).half() + b.view(1, -1, 1, 1),
        "operands or sums were rounded to TF32 or fp16",
    ),
    "bf16": (rounded(16), "rounded to bf16, but the class is fp32"),
}


@pytest.mark.parametrize(("spoil", "sentence"), PLANTED.values(), ids=PLANTED)
def test_planted_pattern_is_named(spoil, sentence):
    sentences = said(PROBLEM, spoil)
    assert any(sentence in line for line in sentences), sentences


FEW = {  # which of six outputs change, how, and the sentence
    "bias twice": ([1, 4], lambda y, b: y + b, "the bias is added twice: all 2 incorrect outputs"),
    "no bias": ([1], lambda y, b: y - b, "the bias is not added: the only incorrect output"),
    "thrice": ([1, 4], lambda y, b: 3 * y, "3 times the correct value: all 2 incorrect outputs"),
    "zeros": ([1, 4], lambda y, b: 0 * y, "all equal, 0: all 2 incorrect outputs"),
    "one": ([1], lambda y, b: 3 * y, ""),
    "unlike": ([1, 4], lambda y, b: y * torch.tensor([3, 5]), ""),
}


@pytest.mark.parametrize(("at", "change", "sentence"), FEW.values(), ids=FEW)
def test_few_outputs_have_a_pattern_if_all_agree(at, change, sentence):
    def spoil(y, x, w, bias):
        y[0, at, 0, 0] = change(y[0, at, 0, 0], bias[at])

    sentences = said(problem("N1 C2 H1 W1 K6 R1 S1 g2 bias"), spoil)
    assert sentences == [sentence] * bool(sentence)


SAMPLED = [
    "tile_of_16",
    "not_first_image",
    "one_group",
    "borders",
    "n_k",
    "shift_w",
    "scaled",
    "no_bias",
    "unwritten",
    "zeros",
    "tf32",
]


@pytest.mark.parametrize("name", SAMPLED)
def test_planted_pattern_is_named_from_a_sample(name):
    spoil, sentence = PLANTED[name]
    sentences = said(PROBLEM, spoil, sampled=6000)
    assert any(sentence.split(": all")[0] in line for line in sentences), sentences


def test_two_patterns_are_both_named():
    def both(y, *_):
        y[1:, 1::2] += 5

    sentences = said(dataclasses.replace(PROBLEM, groups=1), both)
    assert [line.split(": ")[0] for line in sentences] == [
        "incorrect only where n > 0",
        "incorrect only where k is odd",
    ]
    assert "5,920 of 11,840" in sentences[0]
    sentences = said(PROBLEM, unwritten((..., COLUMNS % 16 >= 14)))
    assert sentences[0].startswith("never written: all")
    assert "the last 2 columns of each tile of 16" in sentences[1]


def test_square_transposed_image_is_named():
    sentences = said(PIXELS, lambda y, *_: y.transpose(2, 3))
    assert sentences[0].startswith("p and q exchanged")


def test_nan_from_nan_inputs_is_not_attributed_to_memory():
    """A kernel that spreads a NaN of its inputs did not read uninitialised memory."""
    everywhere = np.zeros((4, 4), int)
    truth = np.array([1.0, 2.0, 3.0, np.nan])
    wrong = np.array([True, True, True, False])
    evidence = Evidence(
        PROBLEM,
        "fp32",
        everywhere,
        np.full(4, np.nan),
        truth,
        wrong,
        wrong & False,
        1e-6,
        2.0,
        True,
        lambda where: truth,
        usual=False,
    )
    assert output_patterns.describe(evidence)[0].startswith("NaN or inf, where another value is")


def test_outputs_without_a_pattern_have_no_sentence():
    scattered = torch.rand(PROBLEM.y_shape, generator=torch.Generator().manual_seed(3)) < 0.05
    assert said(PROBLEM, put(scattered)) == []
    assert said(PROBLEM, put((1, 2, 3, 4))) == []
    assert said(PROBLEM, rounded(13), precision="tf32") == []


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(generate(60, seed=11))), st.integers(0, 2**31), st.booleans())
def test_correct_outputs_have_no_sentence(problem, seed, sample):
    assert said(problem, lambda *_: None, seed=seed, sampled=64 if sample else None) == []


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(list(generate(60, seed=12))))
def test_positions_in_sentences_are_true(data, problem):
    """For any incorrect box of outputs, each sentence has the exact number of incorrect ones."""
    box = tuple(
        slice(low, data.draw(st.integers(low + 1, size)), data.draw(st.integers(1, 4)))
        for size in problem.y_shape
        for low in [data.draw(st.integers(0, size - 1))]
    )
    count = torch.empty(problem.y_shape)[box].numel()
    total = int(np.prod(problem.y_shape))
    for line in said(problem, put(box, value=99.0)):
        if not line.startswith("incorrect only where"):
            continue
        told = line.split(": ")[1].replace(",", "").split()
        numbers = [int(word) for word in told if word.isdigit()]
        assert numbers[0] == count and numbers[-1] < total and numbers[-1] >= count


# Sets of problems ------------------------------------------------------------------------------

SOME = [*generate(80, seed=5)]


@pytest.mark.parametrize(
    ("fails", "sentence"),
    [
        (
            lambda p: p.dilation != (1, 1),
            "incorrect wherever the dilation is not 1, and only there",
        ),
        (lambda p: p.stride != (1, 1), "incorrect wherever the stride is not 1, and only there"),
        (lambda p: p.groups > 1, "incorrect wherever groups > 1, and only there"),
        (lambda p: p.R != p.S, "incorrect wherever R is not S, and only there"),
        (lambda p: p.padding[1] > 0, "incorrect wherever pad_w is not 0, and only there"),
        (
            lambda p: p.C // p.groups >= 13,
            "incorrect wherever C/groups >= 13 (correct up to 9), and only there",
        ),
        (lambda p: p.Q % 4 != 0, "incorrect wherever Q is not a multiple of 4, and only there"),
        (lambda p: p.bias and p.N > 1, "N > 1 and there is a bias"),
        (lambda p: p.P % 24 == 0, "incorrect wherever P is a multiple of 24, and only there"),
        (lambda p: p.gemm_m * p.K > 9000, "incorrect wherever N*K*P*Q >= "),
        (lambda p: p.gemm_k < 32, "incorrect wherever C/groups*R*S <= "),
    ],
    ids=[
        "dilation",
        "stride",
        "groups",
        "R!=S",
        "pad_w",
        "channels",
        "Q%4",
        "bias,N",
        "P%24",
        "outputs",
        "gemm_k",
    ],
)
def test_across_names_what_failing_problems_share(fails, sentence):
    some = SOME if sum(map(fails, SOME)) > 1 else [*generate(80, seed=11)]
    found = problem_patterns.describe([(p, not fails(p)) for p in some])
    assert any(
        sentence in line or " and ".join(reversed(sentence.split(" and "))) in line
        for line in found
    ), found


@pytest.mark.parametrize("failing", [1, 2, 3, 5, 12])
def test_across_does_not_guess(failing):
    """Random failures rarely have a sentence: only by chance."""
    draws = [random.Random(seed).sample(range(len(SOME)), failing) for seed in range(30)]
    outcomes = [[(p, i not in drawn) for i, p in enumerate(SOME)] for drawn in draws]
    assert sum(bool(problem_patterns.describe(each)) for each in outcomes) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_across_does_not_name_the_stride_if_the_height_is_the_cause(seed):
    some = [*generate(64, seed), *problems("awkward")]
    for tile in (5, 7, 24):  # also sizes without a condition of their own
        assert not re.search(
            "stride|pad|dil", str(problem_patterns.describe([(p, p.P % tile != 0) for p in some]))
        )


def test_across_names_all_conditions_that_fit():
    """No problem has a stride in one dimension only, so three conditions fit equally well."""
    some = [
        problem(f"N1 C2 H{h} W{w} K3 R2 S2 s{s}")
        for h in (8, 9, 11)
        for w in (8, 12, 15)
        for s in (1, 2)
    ]
    (said,) = problem_patterns.describe([(p, p.stride[0] == 1) for p in some])
    assert said.startswith(
        "incorrect wherever the stride is not 1, and only there (or stride_h is not"
    )
    assert "or stride_w is not 1" in said and said.endswith("these problems do not show which)")


def test_across_also_holds_for_problems_of_the_search_for_the_smallest():
    """A limit is as tight as the tried problems show, and no tried problem contradicts it."""
    drawn = [
        problem(f"N{n} C1 H3 W{w} K2 R1 S1")
        for n in (1, 2, 3, 4, 5, 6)
        for w in (900, 1000, 1031, 1040)
    ]
    outcomes = [(p, p.Q < 1025) for p in drawn]
    assert problem_patterns.describe(outcomes)[0].startswith(
        "incorrect wherever Q >= 1031 (correct up to 1000), and only"
    )
    tries = [
        dataclasses.replace(drawn[3], W=w, H=h, name="")
        for w in (600, 1023, 1024, 1025)
        for h in (1, 3)
    ]
    (said,) = problem_patterns.describe(outcomes, [(p, p.Q < 1025) for p in tries])
    assert said.startswith("incorrect wherever Q >= 1025, and only there") and "P*Q" not in said
    assert not problem_patterns.describe(
        outcomes, [(dataclasses.replace(drawn[0], W=1100, name=""), True), (drawn[0], False)]
    )


def test_across_is_silent_if_all_problems_pass_or_all_fail():
    assert (
        problem_patterns.describe([(p, True) for p in SOME])
        == problem_patterns.describe([(p, False) for p in SOME])
        == []
    )


# Suggested limits -------------------------------------------------------------------------------

ALL = [*problems("awkward"), *problems("limits"), *generate(40)]
LIMITED = {
    "groups == 1": lambda p: p.groups == 1,
    "stride_h == 1, stride_w == 1": lambda p: p.stride == (1, 1),
    "groups == 1, stride_h == 1, stride_w == 1": lambda p: p.groups == 1 and p.stride == (1, 1),
    "groups == 1, stride_h == 1, stride_w == 1, dilation_h == 1, dilation_w == 1": (
        lambda p: p.groups == 1 and p.stride == (1, 1) == p.dilation
    ),
    "R == 3, S == 3": lambda p: (p.R, p.S) == (3, 3),
    "pad_h == 0, pad_w == 0": lambda p: p.padding == (0, 0),
    "C == groups": lambda p: p.C == p.groups,
    "dilation_w == 1": lambda p: p.dilation[1] == 1,
    "R <= 3, S <= 3": lambda p: max(p.R, p.S) <= 3,
    "stride_h == stride_w": lambda p: p.stride[0] == p.stride[1],
    "Q % 4 == 0": lambda p: p.Q % 4 == 0,
    "N <= 1": lambda p: p.N <= 1,
    "C // groups * R * S <= 4096": lambda p: p.gemm_k <= 4096,
}


@pytest.mark.parametrize("conditions", LIMITED)
def test_limits_are_suggested_as_a_header_line(conditions):
    holds = LIMITED[conditions]
    (said,) = suggest([(p, holds(p)) for p in ALL], supports=["sm >= 80"])
    line = f"// supports: sm >= 80, {conditions}"
    assert said.endswith(f"write into its header: {line}")
    header = parse_header(line + "\n// epilogue: bias, relu", "mine.cu")
    assert all((not header.unsupported(p, 90, 0)) == holds(p) for p in ALL)
    counts = sum(map(holds, ALL)), len(ALL) - sum(map(holds, ALL))
    assert said.startswith(
        f"correct on all {counts[0]} problems with {conditions}, incorrect on all"
    )
    assert f"on all {counts[1]} others" in said


def test_a_suggested_limit_holds_for_all_problems_that_ran():
    """A problem of the search for the smallest contradicts the limit, so there is none."""
    outcomes = [(p, p.groups == 1) for p in ALL]
    tried = problem("N1 C2 H3 W3 K2 R3 S3")
    assert suggest(outcomes, [(tried, True)]) and not suggest(outcomes, [(tried, False)])


def test_a_suggested_limit_may_have_no_effect_on_some_problems():
    """A kernel that ignores the stride is correct where y has one row and one column."""

    def correct(p):
        return all(size == 1 or stride == 1 for size, stride in zip((p.P, p.Q), p.stride))

    some = [*ALL, problem("N1 C2 H3 W3 K2 R3 S3 s2"), problem("N1 C2 H5 W3 K2 R5 S3 s2x3")]
    without_effect = sum(p.stride != (1, 1) and correct(p) for p in some)
    assert without_effect >= 2
    (said,) = suggest([(p, correct(p)) for p in some])
    assert (
        f"with stride_h == 1, stride_w == 1 and on {without_effect} where that has no effect, incorrect"
        in said
    )


BUGS = {
    "no failure": lambda p: True,
    "no success": lambda p: False,
    "one size": lambda p: p.P != 20,
    "two problems": lambda p: p not in ALL[20:22],
    "a rest": lambda p: p.Q % 7 != 0,
    "parity": lambda p: (p.P + p.Q) % 2 == 0,
    "inner size": lambda p: not 20 < p.Q < 40,
    "either": lambda p: p.groups == 1 or p.stride == (1, 1),
    "chance": lambda p: random.Random(str(p)).random() < 0.7,
    "few successes": lambda p: p in ALL[:5],
}


@pytest.mark.parametrize("correct", BUGS.values(), ids=BUGS)
def test_no_limit_is_suggested_for_a_mistake(correct):
    assert suggest([(p, bool(correct(p))) for p in ALL]) == []


def test_random_failures_suggest_no_limit():
    for seed in range(30):
        rng = random.Random(seed)
        share = rng.choice((0.05, 0.3, 0.7, 0.95))
        assert suggest([(p, rng.random() < share) for p in ALL]) == []


# Generated problems, and the smallest ----------------------------------------------------------


def test_generated_problems_are_reproducible_and_small():
    first = list(generate(200, seed=1))
    assert first == list(generate(200, seed=1)) and first[:50] == list(generate(50, seed=1))
    assert first != list(generate(200, seed=2))
    assert len(set(first)) == 200 and max(p.macs for p in first) <= MAX_MACS


@pytest.mark.parametrize(
    "has",
    [
        lambda p: p.N == 1,
        lambda p: p.C == 1,
        lambda p: p.K == 1,
        lambda p: p.W == 1 < p.H,
        lambda p: p.stride[0] != p.stride[1],
        lambda p: p.dilation[0] != p.dilation[1],
        lambda p: p.padding[0] >= p.R and p.padding[1] >= p.S,
        lambda p: p.groups == p.C > 1,
        lambda p: 1 < p.groups < p.C,
        lambda p: p.R == p.S == 1,
        lambda p: (p.R, p.S) == (5, 9),
        lambda p: (p.R, p.S) == (11, 11),
        lambda p: p.Q > 50 * p.P,
        lambda p: p.P > 50 * p.Q,
        lambda p: 1 in (p.P % 16, p.Q % 16) and min(p.P, p.Q) > 16,
        lambda p: p.Q % 16 == 15,
        lambda p: p.K > 64,
        lambda p: p.stride != (1, 1) != p.dilation,
        lambda p: p.bias,
    ],
    ids=[
        "N=1",
        "C=1",
        "K=1",
        "W=1",
        "strides",
        "dilations",
        "padding",
        "depthwise",
        "groups",
        "1x1",
        "5x9",
        "11x11",
        "wide",
        "tall",
        "tile+1",
        "tile-1",
        "K>64",
        "stride,dilation",
        "bias",
    ],
)
def test_default_number_of_generated_problems_has(has):
    assert any(map(has, generate(64)))


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda p: p.Q >= 17, "N1 C1 H1 W17 K1 R1 S1"),
        (lambda p: p.N > 1 and p.K > 2, "N2 C1 H1 W1 K3 R1 S1"),
        (lambda p: p.dilation[1] > 1 and p.S > 1, "N1 C1 H1 W3 K1 R1 S2 d1x2"),
        (lambda p: p.groups > 1, "N1 C2 H1 W1 K2 R1 S1 g2"),
        (lambda p: p.bias, "N1 C1 H1 W1 K1 R1 S1 bias"),
        (lambda p: p.padding[0] > p.R, "N1 C1 H1 W1 K1 R1 S1 p2x0"),
    ],
    ids=["Q", "N,K", "dilation", "groups", "bias", "padding"],
)
def test_shrinks_to_the_smallest(fails, smallest):
    for start in [p for p in generate(300, seed=4) if fails(p)][:8]:
        asked = Mock(side_effect=fails)
        assert shrink(start, asked) == problem(smallest), start
        assert asked.call_count < 100


# Conditions on a failing problem; any two or three of them together make a failure.
ATOMS = {
    "dilation_h": lambda p: p.dilation[0] > 1 and p.R > 1,
    "dilation_w": lambda p: p.dilation[1] > 1 and p.S > 1,
    "dilations": lambda p: p.dilation[0] != p.dilation[1],
    "stride_h": lambda p: p.stride[0] > 1 and p.P > 1,
    "strides": lambda p: p.stride[0] != p.stride[1],
    "pad_h": lambda p: p.padding[0] > 0,
    "paddings": lambda p: p.padding[0] != p.padding[1],
    "groups": lambda p: p.groups > 1,
    "P is 3": lambda p: p.P == 3,
    "P <= 3": lambda p: p.P <= 3,
    "Q": lambda p: p.Q > 3,
    "odd Q": lambda p: p.Q % 2 == 1,
    "rest of Q": lambda p: p.Q % 8 != 0,
    "rest of K": lambda p: p.K % 4 != 0,
    "channels": lambda p: p.C // p.groups > 2,
    "S": lambda p: p.S > 1,
    "3x3": lambda p: (p.R, p.S) == (3, 3),
    "same size": lambda p: p.P == p.H,
    "images": lambda p: p.N > 1,
    "span": lambda p: p.dilation[0] * (p.R - 1) >= 8,
    "smaller y": lambda p: p.H > 2 * p.P,
}


def sum_of_sizes(p: Problem) -> int:
    """Return the sum of all numbers of a problem, and of the sizes of its y."""
    return sum((*p.variables().values(), p.P, p.Q))


@pytest.mark.parametrize("seed", range(60))
def test_shrinks_a_generated_failure_in_every_field(seed):
    """Wherever the search starts, also at a dilation of 1030, each field becomes small."""
    rng = random.Random(seed)
    names = rng.sample(list(ATOMS), rng.choice((1, 2, 3)))

    def fails(p):
        return all(ATOMS[name](p) for name in names)

    starts = [p for p in (*problems("awkward"), *problems("limits"), *SOME) if fails(p)]
    if not starts:
        pytest.skip("these conditions exclude one another")
    largest = sorted(starts, key=sum_of_sizes)[-3:]
    for start in {*largest, *rng.sample(starts, min(3, len(starts)))}:
        asked = Mock(side_effect=fails)
        found = shrink(start, asked)
        assert fails(found) and asked.call_count <= 100
        assert max(found.variables().values()) <= 12 and sum_of_sizes(found) <= 60, (
            names,
            start,
            found,
        )


def test_shrinking_does_not_stop_at_a_large_dilation():
    """A smaller dilation needs a smaller image too: y keeps its height of 3."""
    start = problem("limits.dilation_1030")
    assert shrink(start, lambda p: p.P == 3) == problem("N1 C1 H3 W1 K1 R1 S1")
    found = shrink(start, lambda p: p.P == 3 and p.dilation[0] * (p.R - 1) > 1)
    assert found in (problem("N1 C1 H5 W1 K1 R2 S1 d2x1"), problem("N1 C1 H5 W1 K1 R3 S1"))


def test_shrinking_stops_after_the_given_number_of_tries():
    asked = []
    shrink(Problem(2, 8, 40, 40, 8, 3, 3), lambda p: asked.append(p) or p.H > 30, tries=5)
    assert len(asked) == 5 == len(set(asked))
