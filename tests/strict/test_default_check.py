"""The default check finds mistakes that a few ordinary problems do not show.

The kernels are written as by an author who has never seen the rungs. All of them, incorrect ones too,
are correct on an ordinary problem with ordinary data.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from unittest.mock import Mock

import pytest
import torch

import convlab
from convlab.core.builds import build as builds
from convlab.core.correctness import check as checking
from convlab.core.correctness import reference
from convlab.core.correctness.check import check
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.machine import toolchain
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from convlab.strict import other_gpus, settings, sparse, stricter
from convlab.strict.generated_problems import generate, option_pairs
from tests.schema import VALIDATOR
from tests.strangers import ALONE, LITTLE, PARTS, PLAIN, SOURCE, STATEFUL, UNUSUAL
from tests.suites import DEEP, FOLDER, needs_nvcc, on_engines, parted


def stranger(name: str, engine: str = "sim", **parts: str) -> convlab.Kernel:
    """Return the textbook kernel with some of its parts replaced."""
    return convlab.compile(SOURCE % (PARTS | parts), name=name, engine=engine)


ALL_SETTINGS = settings.SETTINGS
WITH_RELU = stricter._WITH_RELU


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the fixed problems by one, and run it after other problems in `STATEFUL` only."""
    monkeypatch.setattr(settings, "SETTINGS", settings.SETTINGS[:-1])
    monkeypatch.setattr(checking, "named_problems", lambda name: [PLAIN][: name == "awkward"])
    monkeypatch.setattr(settings, "_CHUNKED", (PLAIN,))
    monkeypatch.setattr(stricter, "_WITH_RELU", ())
    # tests/strict/test_source_conditions.py has the problems for the conditions in a source.
    monkeypatch.setattr(stricter, "source_problems", lambda kernel, known: [])


def default(kernel: convlab.Kernel) -> convlab.core.correctness.report.Reports:
    """Run the default check without generated problems."""
    return check(kernel, count=0, progress=False)


# ---- no false alarm ----------------------------------------------------------------------------


def test_a_kernel_that_needs_more_workspace_than_allowed_is_unsupported(few: None) -> None:
    greedy = stranger(
        "greedy",
        workspace="""
        CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 100000; }""",
        host='if (size < 100000) return "too little";',
    )
    found = default(greedy)
    assert found.ok, found
    assert [why for _, why in found.skipped] == [
        "greedy needs 100,000 bytes of workspace for this problem, more than the limit of 40,000 bytes"
    ]


def test_a_header_may_exclude_problems_with_little_workspace(
    few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_CHUNKED", ("awkward.groups_3", PLAIN))
    parts = {
        "header": "// supports: groups == 2",
        "workspace": """
        CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 4; }""",
    }
    found = default(stranger("picky", **parts))
    assert found.ok and sum("bytes of workspace" in r.setting for r in found) == 2


WAITING = {name: parts["first"] for name, (_, parts) in parted("strangers", "waiting").items()}


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
@pytest.mark.parametrize("first", WAITING.values(), ids=WAITING)
def test_blocks_may_wait_for_blocks_that_have_not_started(first: str, traced: bool) -> None:
    kernel = stranger(
        "waits",
        first=f"unsigned* flags = (unsigned*)ws; {first}",
        workspace="""
        CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 4; }""",
        host="cudaMemsetAsync(workspace, 0, 4, stream);",
    )
    blocks = -(-math.prod(PLAIN.y_shape) // 256)
    assert blocks > 2 * len(os.sched_getaffinity(0))
    report = check(kernel if traced else kernel.untraced(), PLAIN)
    assert report.ok, report


MEET = (
    "__syncthreads(); if (threadIdx.x == 0) { __threadfence(); atomicAdd(flags, 1u);"
    "while (atomicAdd(flags, 0u) < %d * gridDim.x); __threadfence(); } __syncthreads();"
)


def test_two_blocks_per_sm_synchronize_more_than_once() -> None:
    """A block reads what another stored before the grid barrier, while others reach the next one."""
    body = (
        "unsigned *flags = (unsigned*)ws, *data = flags + 1; data[idx] = idx;"
        + MEET % 1
        + "unsigned other = data[(idx + 999) % (264 * 32)];"
        + MEET % 2
        + "data[idx] = other;"
        + MEET % 3
    )
    kernel = stranger(
        "meets",
        first=body,
        workspace="""
        CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return 4 + 4*264*32; }
        """,
        host="for (int turn = 0; turn < 3; ++turn) { cudaMemsetAsync(workspace, 0, 4, stream);"
        "conv_kernel<<<264, 32, 0, stream>>>(x, w, bias, y, d, workspace); }"
        'std::ifstream maps("/proc/self/maps"); int kept = 0;'
        "for (std::string line; std::getline(maps, line);) ++kept;"
        'return kept > 2000 ? "stacks stay" : launch_error();',
        before="#include <fstream>\n#include <string>\n",
    )
    launch = kernel.prepare(PLAIN, *reference.inputs(PLAIN))
    launch()  # most stacks of a launch are freed with it, so there are few mappings
    assert not [finding for finding in launch.findings if finding.kind == "race"]


# ---- sizes -------------------------------------------------------------------------------------

TOO_LONG = {name: parts for name, (_, parts) in parted("strangers", "too long").items()}
TOO_LONG = dict(list(TOO_LONG.items())[:: 1 if DEEP else 3])


@pytest.mark.parametrize(("name", "parts"), TOO_LONG.items(), ids=TOO_LONG)
def test_the_default_problems_include_a_size_that_breaks_it(
    name: str, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_SHRINK_SECONDS", 0.0)
    kernel = stranger("short_sighted", **parts).untraced()
    ordinary = check(kernel, ["awkward.everything", "awkward.primes"], progress=False)
    assert ordinary.ok, ordinary
    assert not check(kernel, [f"limits.{name}"], progress=False).ok


# The last tap inside the image as a quotient, which C++ rounds to 0 if it is negative.
LAST_TAP = """ok = ih >= 0 && kh <= (d.H - 1 - ih + kh * d.dilation_h) / d.dilation_h && iw >= 0 && iw < d.W;
if (ok) sum += in[AT] * filt[wi];"""


def test_a_negative_quotient_is_found_by_a_window_below_the_image() -> None:
    kernel = stranger("negative_quotient", product=LAST_TAP)
    assert check(kernel, ["awkward.everything", "awkward.padding_past_filter"], progress=False).ok
    assert not check(kernel, ["awkward.padding_past_dilated"], progress=False).ok


@pytest.mark.parametrize("rung", ["06", "08b", "12", "16"])
def test_each_pair_of_options_that_a_rung_supports_is_tried(rung: str) -> None:
    """In a fixed problem, as `tests/rungs/test_mutants.py` uses them, and in a generated one."""
    kernel = convlab.load(rung, engine="sim")

    def met(some: Iterable[Problem]) -> set[tuple[str, str]]:
        return set().union(*(option_pairs(p) for p in some if not kernel.unsupported(p)))

    possible = met(generate(30 * 64))
    assert ("bias", "groups") in {tuple(sorted(pair)) for pair in possible}
    assert possible <= met(stricter.Strict(kernel).problems(64, 0)) and possible <= met(
        problems("awkward")
    )


INT = {  # the index that is computed in an int
    "of_a_plane": "in[(((int)img * d.C + g * icg + ic) * d.H + ih) * d.W + iw]",
    "of_a_row": "in[((long long)img * d.C + g * icg + ic) * d.H * d.W + ih * d.W + iw]",
}


@pytest.mark.parametrize("at", INT.values(), ids=INT)
def test_an_index_that_overflows_an_int_is_found(few: None, at: str) -> None:
    assert "not tried" not in str(default(stranger("holds")))
    found = default(stranger("overflows", product=f"if (ok) sum += {at} * filt[wi];"))
    first, *_ = found
    assert first.ok and {each.setting for each in found.wrong} == {settings.SPARSE.words}, found
    with pytest.raises(LaunchError, match="illegal address"):
        check(
            stranger("overflows", product=f"if (ok) sum += {at} * filt[wi];"),
            found.smallest.problem,
            setting="sparse",
        )


@pytest.mark.parametrize(
    "old, new, at",
    [
        (
            "const int64_t i = int64_t(blockIdx.x) * kThreads",
            "const int i = blockIdx.x * kThreads",
            0,
        ),
        ("const int64_t plane = i /", "const int64_t plane = int(i) /", 1),
        (
            "x_n = g_x + (int64_t(n) * conv.C + group * C_group) * HW",
            "x_n = g_x + (n * conv.C + group * C_group) * int(HW)",
            2,
        ),
    ],
    ids=["index of y", "plane of y", "group of x"],
)
def test_an_int_index_of_a_large_y_or_group_is_found(old: str, new: str, at: int) -> None:
    large = [p for p in sparse.sparse_problems(direct()) if p.K * p.P * p.Q * p.N >= 1 << 31]
    assert len(large) == 3
    assert check(direct(), large[at], setting="sparse").ok
    checker = checking.Checker.of(direct(old, new), 0, False)
    report = checker.attempt(lambda p: checker.run(p, sparse.SPARSE), large[at], sparse.SPARSE)
    assert not isinstance(report, str) and not report.ok, report


# The number of a group's first weight: an int holds that of the first group only.
FIRST_OF_GROUP = "group * K_group * int(gemm_k)"
GROUP_OF_DW = "(range * conv.K + int64_t(group) * K_group + k0) * CRS"


@pytest.mark.parametrize(
    "path, old, new, filters",
    [
        ("01_direct", "int64_t(k) * C_group * RS", "int(k * C_group * RS)", 100_000_000),
        ("04_implicit_gemm", "int64_t(group) * K_group * gemm_k", FIRST_OF_GROUP, 100_000_000),
        ("06_depthwise", "int64_t(k) * conv.R * conv.S", "k * conv.R * conv.S", 240_000_000),
        ("02c_im2col_batched", "conv.K * PQ, images", "int(conv.K * PQ), images", 2200),
        ("02c_im2col_batched", "(n * conv.K + k) * PQ + m", "int((n * conv.K + k) * PQ)", 2200),
        (str(FOLDER / "parts.cu"), "parts_of(*problem) * outputs", "unsigned", 640),
    ],
    ids=["offset in w", "group of w", "depthwise", "stride for cuBLAS", "offset for cuBLAS", "bytes of parts"],
)
def test_an_int_offset_of_a_filter_an_image_or_parts_is_found(
    path: str, old: str, new: str, filters: int
) -> None:
    if new == "unsigned":
        new = f"unsigned({old} * 4)"
        old = f"{old} * 4"
    (large,) = [p for p in sparse.sparse_problems(direct(path=path)) if p.K == filters]
    assert _on(direct(path=path), large) != checking.INCORRECT
    assert _on(direct(old, new, path), large) == checking.INCORRECT


def test_a_number_of_blocks_that_is_computed_as_a_float_is_found() -> None:
    """Of 2^24 + 2^13 + 1 outputs, the last block's only one gets lost."""
    blocks = "blocks = ceil_div(outputs, int64_t(kThreads));"
    as_float = "blocks = int64_t(ceilf(float(outputs) / kThreads));"
    (large,) = [
        p for p in sparse.sparse_problems(direct()) if math.prod(p.y_shape) == (1 << 24) + 8193
    ]
    assert _on(direct(), large) == "correct"
    assert _on(direct(blocks, as_float), large) == checking.INCORRECT


@pytest.mark.parametrize(
    "path, old, new, at",
    [
        (
            "18",
            "const int64_t i = int64_t(blockIdx.x) * kThreads",
            "const int i = blockIdx.x * kThreads",
            0,
        ),
        ("18", "(int64_t(n) * conv.K + first_k) * PQ", "int((n * conv.K + first_k) * PQ)", 2),
        ("18", "w_c[int64_t(k) * C_group * RS", "w_c[int(k * C_group * RS)", -1),
        ("18", "(int64_t(first_k) * C_group", "(first_k * C_group", -1),
        ("19", "(n * conv.C + channel) * HW", "int((n * conv.C + channel) * HW)", 0),
        ("19", "(n * conv.K + k) * PQ", "int((n * conv.K + k) * PQ)", 1),
        ("19", "(n * conv.K + k) * PQ", "int((n * conv.K + k) * PQ)", 2),
        ("19b", GROUP_OF_DW, f"int({GROUP_OF_DW})", -1),
    ],
    ids=["index of dx", "image of dy", "filter", "group", "x", "dy", "group of dy", "group of dw"],
)
def test_an_int_offset_of_a_gradient_is_found(path: str, old: str, new: str, at: int) -> None:
    name = convlab.load(path, engine="sim").name
    large = sparse.sparse_problems(direct(path=name))[at]
    shapes = (large.first_shape, large.second_shape, large.output_shape)
    assert max(map(math.prod, shapes)) > 1 << 31
    assert _on(direct(path=name), large) == "correct"
    assert _on(direct(old, new, name), large) == checking.INCORRECT


def test_an_int_offset_in_a_tensor_of_16_bits_is_found() -> None:
    rung = "06b_depthwise_bf16"
    large = [p for p in sparse.sparse_problems(direct(path=rung)) if math.prod(p.x_shape) > 1 << 31]
    assert [_on(direct(path=rung), problem) for problem in large] == ["correct"] * len(large)
    wrong = direct("g_x + int64_t(plane) * conv.H * conv.W", "g_x + int(plane) * conv.H * conv.W", rung)
    assert checking.INCORRECT in [_on(wrong, problem) for problem in large]


def test_a_large_tensor_may_be_channels_last() -> None:
    kernel = direct(path="16_wgmma_nhwc_bf16")
    outcomes = [_on(kernel, problem) for problem in sparse.sparse_problems(kernel)]
    assert "correct" in outcomes and set(outcomes) <= {"correct", "unsupported"}


def test_a_quotient_of_floats_is_found_beyond_2_23_pixels() -> None:
    """A wrong row reads nothing, so its output is 0: that is compared too."""
    exact = """const int q = int(i % conv.Q);
    const int p = int(i / conv.Q % conv.P);"""
    rounded = """const int64_t row = int64_t((float(i) + 0.5f) * (1.0f / conv.Q));
    const int q = int(i - row * conv.Q), p = int(row % conv.P);"""
    (large,) = [
        p for p in sparse.sparse_problems(direct()) if math.prod(p.y_shape) == (1 << 24) + 8193
    ]
    assert check(direct(exact, rounded), PLAIN).ok
    assert _on(direct(exact, rounded), large) == checking.INCORRECT


def _on(kernel: convlab.Kernel, large: Problem) -> str:
    """Return the outcome of a kernel on a large problem, or "unsupported"."""
    checker = checking.Checker.of(kernel, 0, False)
    report = checker.attempt(lambda p: checker.run(p, sparse.SPARSE), large, sparse.SPARSE)
    return "unsupported" if isinstance(report, str) else report.outcome


def test_a_workspace_of_a_negative_size_is_incorrect() -> None:
    text = "CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t) { return -4; }"
    found = check(stranger("negative", workspace=text), [PLAIN], progress=False)
    assert not found.ok and found.smallest.fault == "invalid workspace", found


def direct(old: str = "", new: str = "", path: str = "01_direct") -> convlab.Kernel:
    """Return 01_direct, or another kernel, with a part of its text replaced."""
    text = convlab.load(path, engine="sim").source
    assert old in text
    return convlab.compile(text.replace(old, new), name="mine", engine="sim")


RETURN = "if (i >= int64_t(conv.N) * conv.K * conv.P * conv.Q) return;"


def test_a_long_problem_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bounds and races are: the threads after the last output compute only if K is large."""
    long = convlab.problem("limits.filters_4099")
    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": [long]}.get)
    found = default(direct())
    _, other, *_ = found
    assert found.ok and not other.unwatched and not other.notes
    careless = direct(RETURN, RETURN.replace(") return", " && conv.K < 2000) return"))
    short, other, *_ = default(careless)
    assert short.ok and not other.ok and other.fault == "global out of bounds"


def test_bounds_are_watched_in_all_blocks_of_a_huge_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races are watched in some of its blocks; the sentence says so, and it is not "correct"."""
    long = convlab.problem("limits.width_4100")
    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": [long]}.get)
    monkeypatch.setattr(checking, "_MOST_WATCHED", 1000)
    monkeypatch.setattr(settings, "SETTINGS", ())
    found = default(direct())
    _, other, *_ = found
    assert found.ok and "races were watched in only a part of the run" in other.unwatched
    assert "outputs correct in all 35 runs; 7 runs were watched only in part" in found.sentence
    assert f"{other.unwatched}: {other.label}" in found.text(verbose=True) and not other.counters
    # Block 30 is none of those that are watched for races. It reads one element too far.
    past_the_end = "g_x[conv.N * conv.C * conv.H * conv.W]"
    astray = f"{RETURN} if (i == 30 * 256 + 3) {{ g_y[i] = {past_the_end}; return; }}"
    _, other, *_ = default(direct(RETURN, astray))
    assert other.fault == "global out of bounds"


def test_local_arrays_are_watched_in_all_blocks_of_a_huge_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build without counts checks their indices, also in blocks that are not watched for races."""
    long = convlab.problem("limits.width_65540")
    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": [long]}.get)
    monkeypatch.setattr(checking, "_MOST_WATCHED", 1000)
    monkeypatch.setattr(settings, "SETTINGS", ())
    monkeypatch.setattr(stricter, "source_problems", lambda kernel, known: [])
    array = (
        f"{RETURN}\n    int some[4] = {{}}; some[(i + conv.S) % 4] = 1; if (some[0] > 1) return;"
    )
    _, other, *_ = found = default(direct(RETURN, array))
    assert found.ok and other.unwatched == "races were watched in only a part of the run"
    end = "i == int64_t(conv.N) * conv.K * conv.P * conv.Q - 1 && conv.Q > 60000"
    wrong = array.replace("(i + conv.S) % 4", f"({end}) ? 4 : 0")
    _, other, *_ = default(direct(RETURN, wrong))
    assert other.fault == "index out of bounds"


def test_bound_of_a_few_outputs_near_0_is_that_of_their_terms() -> None:
    """With this seed the only output is 0.013, but a sum of such terms is typically about 1."""
    one = Problem(N=1, C=1, H=40, W=40, K=1, R=40, S=40)
    assert check(convlab.load("10_mma_tf32", engine="sim"), one, seed=35).ok


# ---- data --------------------------------------------------------------------------------------

LAST = {setting: name for name, (setting, _) in UNUSUAL.items()}  # of each setting


@pytest.mark.parametrize("name", UNUSUAL if DEEP else LAST.values())
def test_unusual_data_finds_the_mistake(few: None, name: str) -> None:
    setting, parts = UNUSUAL[name]
    kernel = stranger("usually_right", **parts)
    found = default(kernel)
    first, *others = found
    assert first.ok and first.problem == PLAIN and not first.setting
    assert found.smallest.setting.startswith(setting), found
    if setting == "on small integers":
        assert found.smallest.findings[0].kind == "too imprecise"
    assert "uninitialised memory" not in str(found)  # inf and NaN come from the data
    assert "not tried: an x or y of more than " in str(found)
    told = [s.words for s in settings.settings_for(kernel, PLAIN)]
    assert [r.setting for r in others] == told * (1 + found.smallest.problem.relu)
    bad = len(others) - sum(report.ok for report in others)
    runs = f"INCORRECT in {bad} of {len(others)} runs in unusual settings"
    assert f"{runs}, correct on 1 of 1 problems" in str(found)
    VALIDATOR.validate({"ok": False, "reports": [json.loads(json.dumps(found.to_dict()))]})


def test_what_a_correct_kernel_may_do_with_unusual_data(few: None) -> None:
    """It may flush denormals, and spread an inf over a tile if its header declares `mixes`."""
    flushed = "float v = !ok || fabsf(in[AT]) < 1.2e-38f ? 0 : in[AT];"
    assert default(stranger("flushes", product=f"{flushed} if (ok) sum += v * filt[wi];")).ok
    high = "float v = ok ? in[AT] : 0, high = __uint_as_float(__float_as_uint(v) & 0xffffe000);"
    split = f"{high} sum += high * filt[wi] + (v - high) * filt[wi];"
    assert default(stranger("splits", header="// mixes: 1x1", product=split)).ok
    assert not default(stranger("splits", product=split)).ok
    winograd = convlab.load("08_winograd", engine="sim")
    assert default(winograd).ok
    said = winograd.source.replace("// mixes: 2x2\n", "")
    unsaid = default(convlab.compile(said, name="unsaid", engine="sim"))
    assert unsaid.smallest.setting.startswith("with inf") and "`mixes: 2x2`" in str(unsaid)


DY_OF_DX = "dy_n[k * PQ + int64_t(p) * conv.Q + q]"
W_OF_DX = "w_c[int64_t(k) * C_group * RS + int64_t(r) * conv.S + s]"
DY_OF_DW = "g_dy[(n * conv.K + k) * PQ + int64_t(p) * conv.Q + q]"
X_OF_DW = "g_x[(n * conv.C + channel) * HW + int64_t(h) * conv.W + w]"


@pytest.mark.parametrize(
    "path, factor, sum_of",
    [
        ("18_data_gradient", DY_OF_DX, "r_acc"),
        ("18_data_gradient", W_OF_DX, "r_acc"),
        ("19_weight_gradient", DY_OF_DW, "r_sum"),
        ("19_weight_gradient", X_OF_DW, "r_sum"),
    ],
    ids=["dy of dx", "w of dx", "dy of dw", "x of dw"],
)
def test_a_gradient_that_skips_zeros_is_found(path: str, factor: str, sum_of: str) -> None:
    """0 * inf and 0 * NaN are NaN, whichever of the two factors is 0."""
    adds = f"{sum_of} += "
    skips = direct(adds, f"if ({factor} != 0) {adds}", path)
    for host in map(skips.asked, map(convlab.problem, settings._HOSTS)):
        assert check(skips, host).ok
        assert check(direct(path=path), host, setting="special").ok
        assert not check(skips, host, setting="special").ok


@pytest.mark.parametrize(
    "path, old, new",
    [
        ("19_weight_gradient", "if (const char* error", "if (conv.N == 0) return 0; if (const char* error"),
        ("02_im2col_gemm", "if (problem->N == 0) return 0;", "limit /= problem->N;"),
    ],
    ids=["dw", "workspace"],
)
def test_a_kernel_that_is_wrong_without_images_is_found(path: str, old: str, new: str) -> None:
    """With N = 0, dw is zeros, and no entry point may divide by N."""
    empty = "limits.empty"
    assert convlab.problem(empty) in problems("limits")
    assert check(direct(path=path), [empty], progress=False).ok
    found = check(direct(old, new, path), [empty], progress=False)
    assert found.outcome == checking.INCORRECT, found


def test_a_kernel_that_skips_an_image_of_zeros_is_found() -> None:
    adds = "float r_acc = 0.0f;"
    skips = """bool any = false;
    for (int64_t at = 0; at < conv.C * HW; ++at) any |= g_x[n * conv.C * HW + at] != 0;
    if (!any) { g_y[i] = activated(conv, g_bias ? g_bias[k] : 0.0f); return; }"""
    host = settings._HOSTS[0]
    kernel = direct(adds, f"{adds} {skips}")
    assert check(kernel, host).ok and check(kernel, host, setting="special").ok
    assert not check(kernel, host, setting="special_zeros").ok
    assert check(direct(), host, setting="special_zeros").ok


def test_a_relu_on_a_part_of_the_sum_is_found(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stricter, "_WITH_RELU", WITH_RELU)
    loop = "for (int c = 0; c < C_group; ++c) {"
    early = f"{loop} if (c == 256) r_acc = activated(conv, r_acc);"
    found = default(direct(loop, early))
    assert not found.ok and found.smallest.problem.C > 256 and found.smallest.problem.relu, found


def test_generated_problems_have_large_strides_and_dilated_windows_that_overlap() -> None:
    problems = list(generate(100))
    assert any(min(p.stride) > 4 and p.P > 1 for p in problems)
    past_filter = [p for p in problems if p.R == p.S == 2 and min(p.stride) >= 2]
    assert any(p.dilation[0] % p.stride[0] == 0 and p.P > p.dilation[0] for p in past_filter)


def test_sums_in_a_changing_order_are_found_on_a_long_problem_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three blocks add to each output, if the outputs are many."""
    long = convlab.problem("limits.pixels_67600")
    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": [long]}.get)
    monkeypatch.setattr(settings, "SETTINGS", ())
    adds = {
        "first": "bool many = total > 60000; long long part = many ? idx / total : 0; idx -= part * total;"
        "if (part > 2) return;",
        "last": "if (many) { atomicAdd(&out[idx], sum * (part == 0 ? 0.5f : part == 1 ? 0.3f : 0.2f));"
        "return; }",
        "host": "if (total > 60000) { cudaMemsetAsync(y, 0, sizeof(float) * total, stream); total *= 3; }",
    }
    found = default(stranger("thirds", **adds))
    assert not found.ok and found.smallest.findings[0].kind == "not repeatable", found
    assert default(stranger("thirds", header="// atomics: yes", **adds)).ok


# ---- other addresses, and earlier calls --------------------------------------------------------


COUNTS = {"before": "__device__ unsigned g_count;\n"}


def test_a_count_of_blocks_that_other_channels_change_is_found(
    few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the count is 0 as long as all calls split their channels in as many parts."""
    monkeypatch.setattr(settings, "SETTINGS", ALL_SETTINGS[-1:])
    parts = "unsigned parts = max(d.C / d.groups / 8, 1);"
    kernel = stranger(
        "tickets", last=f"if (idx == 0) {{ {parts} sum += atomicAdd(&g_count, parts) % parts; }}", **COUNTS
    )
    found = default(kernel)
    assert not found.ok and found.smallest.setting == settings.AFTER_OTHERS.words, found
    assert found.smallest.problem == convlab.problem(settings._SPLIT)


def test_a_counter_that_a_call_for_few_outputs_leaves_is_found(
    few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SETTINGS", ())
    kernel = stranger(
        "leaves",
        last="if (idx == 0) { if (gridDim.x > 60) sum += g_count; else g_count = 1; }",
        **COUNTS,
    )
    found = default(kernel)
    assert not found.ok and found.smallest.setting == other_gpus.AFTER_SMALLEST.words, found


@pytest.mark.parametrize(("case", "engine"), on_engines(STATEFUL, 2))
def test_other_addresses_and_earlier_calls_find_the_mistake(
    few: None, case: tuple[str, dict], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, parts = case
    monkeypatch.setattr(settings, "SETTINGS", ALL_SETTINGS[-3:])  # those with finite numbers
    found = default(stranger("stateful", engine, **parts))
    assert found.ok == (not setting), found
    if engine == "sim" or setting != "after calls":  # on a GPU all calls are of one process, and
        assert next(iter(found)).ok  # the second can show it
        assert not setting or found.smallest.setting.startswith(setting)
        told = found.smallest and found.smallest.findings[0].kind
        assert told != "wrong result"  # what matters more comes first, and what to do about that
        if told == "wrong after other calls":
            assert "what it keeps from call to call" in re.sub(r"\s+", " ", str(found))
    # A kernel that copies the filter takes too long for one of over 2^31 elements, which is skipped.
    skipped = [problem for problem, _ in found.skipped if problem.K < 10_000_000]
    assert bool(skipped) == ("x is not aligned" in str(parts))


@pytest.mark.parametrize(("case", "engine"), on_engines(ALONE, 1))
def test_each_buffer_moves_alone(
    few: None, case: tuple[str, dict], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, parts = case
    monkeypatch.setattr(settings, "SETTINGS", (*settings.ALONE, *ALL_SETTINGS[-1:]))
    # These kernels load 16 bytes at a time, which is outside a filter of one element.
    monkeypatch.setattr(stricter, "sparse_problems", lambda kernel: [])
    found = default(stranger("moved", engine, **parts))
    assert found.ok == (not setting), found
    assert next(iter(found)).ok
    assert not setting or found.smallest.setting.startswith(setting), found
    assert bool(found.skipped) == ("is not aligned" in str(parts))


@pytest.mark.parametrize(("case", "engine"), on_engines(LITTLE, 1))
def test_the_least_workspace_finds_the_mistake(
    few: None, case: tuple[str, dict], engine: str
) -> None:
    setting, parts = case
    found = default(stranger("little", engine, **parts))
    assert found.ok == (not setting), found
    assert next(iter(found)).ok
    assert not setting or found.smallest.setting.startswith(setting), found
    words = {report.setting for report in found}
    assert {each.words for each in settings.LITTLE} <= words


SHARED = parted("strangers", "shared")


@pytest.mark.parametrize(("kind", "parts"), SHARED.values(), ids=SHARED)
def test_two_calls_on_two_streams_share_only_inputs(kind: str, parts: dict[str, str]) -> None:
    found = check(stranger("shares", **parts), [PLAIN], setting="two_streams", progress=False)
    assert found.ok == (not kind), found
    assert not kind or found.smallest.findings[0].kind == kind
    assert not kind or "on another stream" in found.smallest.findings[0].text


IMAGES = parted("strangers", "images")


@pytest.mark.parametrize("parts", [parts for _, parts in IMAGES.values()], ids=IMAGES)
def test_a_grid_of_a_block_for_each_image_is_found(
    few: None, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more images than a grid may have blocks, the launch fails."""
    monkeypatch.setattr(settings, "SETTINGS", ())
    monkeypatch.setattr(sparse, "_PLANES", ())
    monkeypatch.setattr(sparse, "_LARGE", sparse._LARGE[:1])
    monkeypatch.setattr(sparse, "_NO_FLOAT", ())
    found = default(stranger("per_image", **parts))
    assert not found.ok and found.smallest.problem.N == 70_000, found
    assert found.smallest.fault == "launch configuration"


WHOLE = """
CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem* p, size_t most) {
    size_t image = 4 * p->C;
    return most < image * p->H ? max_of(most, image) : image * p->H;
}"""


@pytest.mark.parametrize(
    "host",
    [
        "cudaMemsetAsync(workspace, 0, 4 * d.C * d.H, stream);",
        "if (size % (4 * d.C)) total = 0;",
    ],
    ids=["ignores_the_size", "loses_a_part_of_a_chunk"],
)
def test_parts_of_the_requested_workspace_find_the_mistake(
    few: None, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SETTINGS", ())
    monkeypatch.setattr(settings, "_CHUNKED", ())
    monkeypatch.setattr(settings, "_FEW_PIXELS", ())
    found = default(stranger("whole", workspace=WHOLE, host=host))
    assert not found.ok and "of what it requests" in found.smallest.setting, found


ONCE_ONLY = parted("strangers", "once only")


@pytest.mark.parametrize(("case", "engine"), on_engines(ONCE_ONLY, 1))
def test_both_engines_find_it_incorrect(case: tuple[str, dict], engine: str) -> None:
    told, parts = case
    found = check(stranger("trusting", engine, **parts), [PLAIN], progress=False)
    assert not found.ok and re.search(told, str(found)), found


def test_lanes_that_converge_by_chance_need_not_converge() -> None:
    """The mask is correct in one order of the threads; in another it has one lane only."""
    mask = "sum += 0 * __shfl_xor_sync(__activemask(), sum, 1);"
    found = check(stranger("together", last=mask), PLAIN)
    assert not found.ok and {f.kind for f in found.findings} >= {"not repeatable"}


def test_a_lane_that_a_fault_ended_is_not_reported_as_missing() -> None:
    last = (
        "if (idx == 5) sum += in[1 << 26];if (idx < 1024) sum += 0 * __shfl_xor_sync(~0u, sum, 1);"
    )
    found = check(stranger("faulty", last=last), [PLAIN], progress=False)
    assert {f.kind for r in found for f in r.findings} == {"global out of bounds"}, found


def test_the_sparse_setting_takes_only_its_own_problems() -> None:
    with pytest.raises(ProblemError, match="its own problems: N2 C3 H32800.* or N2 C1 H46400"):
        check(stranger("plain"), PLAIN, setting="sparse")


def test_a_view_has_the_same_alignment_on_the_simulator_as_on_a_gpu() -> None:
    kernel = stranger("vectors", **STATEFUL["float4_of_any_address"][1])
    x, w, bias = reference.inputs(PLAIN)
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    options = PLAIN.stride, PLAIN.padding, PLAIN.dilation, PLAIN.groups
    with pytest.raises(LaunchError, match="misaligned access"):
        kernel(shifted, w, bias, *options)
    assert torch.equal(stranger("plain")(shifted, w, bias, *options), kernel(x, w, bias, *options))


def test_advice_is_printed_once() -> None:
    text = (KERNEL_DIR / "01_direct.cu").read_text()
    beyond = convlab.compile(text.replace("g_y[i] =", "g_y[i + 1] ="), engine="sim")
    told = str(check(beyond, [PLAIN], progress=False))
    assert "out of bounds" in told and told.count("  try: ") == 1


# ---- explanations and limits in a report -------------------------------------------------------


# Small problems: eleven ordinary ones, four with a stride and four with groups.
TINY = [
    *(f"N1 C2 H{size} W{size + 2} K3 R{taps} S3" for size in (5, 6, 7, 8, 9) for taps in (1, 3)),
    "N2 C2 H5 W6 K2 R3 S3 p1",
    *(f"N1 C2 H7 W8 K3 R3 S3 s{stride}" for stride in ("2", "3", "2x1", "1x2")),
    *(f"N1 C{4 * groups} H4 W5 K{2 * groups} R3 S3 g{groups}" for groups in (2, 3, 4, 5)),
]


def test_a_limited_kernel_gets_a_suggested_header_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that the report suggests makes the kernel correct on all that it supports."""
    monkeypatch.setattr(checking, "_SHRINK_SECONDS", 0.0)
    parts = {"first": "d.stride_h = d.stride_w = 1;"}
    found = check(stranger("unstrided", **parts), TINY, progress=False)
    assert len(found.wrong) == 4
    explained = "on 4 of 4 failing problems: as if the stride were 1 (it is ignored)"
    assert explained in found.patterns, found.patterns
    (line,) = re.findall("// supports: .*", "\n".join(found.patterns))
    assert line == "// supports: stride_h == 1, stride_w == 1"
    declared = check(stranger("unstrided", header=line, **parts), TINY, progress=False)
    assert declared.ok and len(declared.skipped) == 4
    assert not declared.patterns


def test_a_mistake_or_a_race_gets_no_suggested_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_SHRINK_SECONDS", 0.0)
    wrong = check(stranger("off", last="if (ow == 3) sum += 1;"), TINY, progress=False)
    assert wrong.wrong and "supports:" not in str(wrong)
    racing = stranger("racing", last="if (d.groups > 1) out[0] = idx;")
    found = check(racing, TINY, progress=False)
    assert len(found.wrong) == 4 and "race" in str(found) and "supports:" not in str(found)


# ---- errors that only nvcc reports -------------------------------------------------------------

REFUSED = parted("strangers", "refused")


@needs_nvcc
@pytest.mark.parametrize(("told", "parts"), REFUSED.values(), ids=REFUSED)
def test_an_error_of_nvcc_alone_is_a_failing_report(told: str, parts: dict[str, str]) -> None:
    kind, line = told.split(" | ")
    kernel = stranger("refused", **parts)
    one = check(kernel, PLAIN)
    several = check(kernel, [PLAIN], progress=False)
    assert not one.ok and not several.ok and not one.wrong
    first = one.findings[0]
    assert (one.fault, first.kind, first.file) == (kind, kind, "refused.cu")
    assert line in kernel.source.splitlines()[first.line - 1]
    told = json.loads(json.dumps([one.to_dict(), several.to_dict()]))
    VALIDATOR.validate({"ok": False, "reports": told})
    assert told[0]["fault"] == kind and ("does not build with nvcc" in str(several)) == bool(
        several.errors
    )
    assert ("INCORRECT" in str(one)) == (kind != "does not build") and "\n  try: " in str(one)
    found = (told[1]["smallest"] or told[1])["findings"][0]
    assert found["kind"] == kind and found["try"]


@needs_nvcc
def test_nvcc_runs_once_and_only_in_check(monkeypatch: pytest.MonkeyPatch) -> None:
    warns = stranger("warns", last=f"int unused = {os.getpid()};")
    asked = Mock(side_effect=builds.device_code)
    monkeypatch.setattr(builds, "device_code", asked)
    x, w, bias = reference.inputs(PLAIN)
    warns(x, w, bias, PLAIN.stride, PLAIN.padding, PLAIN.dilation, PLAIN.groups)
    assert not asked.called
    for _ in range(2):
        report = check(warns, PLAIN)
        assert report.ok and [f.kind for f in report.findings] == ["compiler warning"]
        assert '"unused"' in report.findings[0].text and "warning" in str(report)
    assert asked.call_count == 1


@needs_nvcc
def test_a_missing_or_failing_nvcc_is_not_an_error_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = stranger("sound")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--no-such-option")
    report = check(kernel, PLAIN)
    assert report.ok and "nvcc could not compile the kernel: " in report.notes[-1]
    monkeypatch.setattr(toolchain, "cuda", lambda: None)
    report = check(kernel, PLAIN)
    assert report.ok and not report.notes
