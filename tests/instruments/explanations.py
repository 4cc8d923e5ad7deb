"""Plant mistakes into rungs, and test that each is explained by the sentence that describes it.

    python -m tests.instruments.explanations [--only 04]

Each mistake is one edit of a rung. The command checks the kernel on one problem, prints the first pattern of
the report, and ends with status 1 if a pattern is not the expected one. ``tests/cuda/explained.cu`` has more
mistakes, of one kernel; tests/strict/test_explanations.py runs these.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import convlab
from tests.instruments.planted import KERNELS, replace

_UNEVEN = "N2 C3 H23 W26 K5 R3 S3 s2x3 p1x2 d1x2"
_GROUPS = "N2 C6 H9 W10 K12 R3 S3 p1 g3 bias"
_PLAIN = "N2 C5 H13 W18 K24 R3 S3 p1 bias"


@dataclass(frozen=True)
class Planted:
    """One edit of a rung, a problem that shows it, and how its report must begin."""

    rung: str
    old: str
    new: str
    problem: str
    sentence: str


PLANTED = (
    Planted(
        "01_direct",
        "r * conv.dilation_h",
        "r",
        "N2 C3 H13 W15 K4 R3 S3 p2 d2x3",
        "as if dilation_h were 1",
    ),
    Planted(
        "01_direct",
        "q * conv.stride_w",
        "q * conv.stride_h",
        _UNEVEN,
        "as if stride_h were used for both",
    ),
    Planted("01_direct", "- conv.pad_w", "- conv.pad_h", _UNEVEN, "as if pad_h were used for both"),
    Planted(
        "01_direct",
        "+ group * C_group) * HW",
        ") * HW",
        _GROUPS,
        "every group reads the channels of group 0",
    ),
    Planted("01_direct", "k / K_group", "k % conv.groups", _GROUPS, "the group is k % groups"),
    Planted(
        "01_direct", "g_bias[k]", "g_bias[group]", _GROUPS, "the bias is read at index the group"
    ),
    Planted("01_direct", "c < C_group", "c < C_group - 1", _PLAIN, "the last channel is left out"),
    Planted(
        "01_direct",
        "s < conv.S;",
        "s < conv.S - 1;",
        _PLAIN,
        "the last column of the filter is left out",
    ),
    Planted(
        "01_direct",
        "int64_t(r) * conv.S + s]",
        "RS - 1 - int64_t(r) * conv.S - s]",
        _PLAIN,
        "the filter is flipped in both dimensions",
    ),
    Planted(
        "01_direct",
        "int64_t(r) * conv.S + s]",
        "int64_t(s) * conv.R + r]",
        _PLAIN,
        "R and S of the filter",
    ),
    Planted(
        "03_smem_tile",
        "s_w[tap * kWPitch + k] = k0",
        "s_w[(channels * RS - 1 - tap) * kWPitch + k] = k0",
        "N2 C1 H13 W18 K24 R3 S3 p1",
        "the filter is flipped in both dimensions",
    ),
    Planted(
        "03_smem_tile",
        "g_bias[k]",
        "g_bias[k0 + j]",
        _GROUPS,
        "the bias is read at index k % (K/groups)",
    ),
    Planted(
        "03_smem_tile",
        "const int64_t n = image_of_block();",
        "const int64_t n = image_of_block();\n"
        "    if (n >= conv.N) return;\n    g_x -= n * conv.C * conv.H * conv.W;",
        _PLAIN,
        "each output is computed from image 0",
    ),
    Planted(
        "04_implicit_gemm",
        "kk0 < gemm_k; kk0 += kBK",
        "kk0 + kBK <= gemm_k; kk0 += kBK",
        _PLAIN,
        "the products past the last whole tile of 8 are left out, in the order (c, r, s)",
    ),
    Planted(
        "04_implicit_gemm",
        "w_group[(k0 + k) * gemm_k + kk0 + kk]",
        "w_group[(kk0 + kk) * K_group + k0 + k]",
        "N2 C5 H13 W18 K24 R3 S2 p1",
        "the filter is read as if its order in memory were CRSK",
    ),
    Planted(
        "04_implicit_gemm",
        "r * conv.dilation_h;",
        "r;",
        "N2 C3 H13 W15 K4 R3 S3 p2 d2x3",
        "as if dilation_h were 1",
    ),
    Planted(
        "04_implicit_gemm", "g_bias[k]", "g_bias[k0 + i]", _PLAIN, "the bias is read at index k % 8"
    ),
    Planted(
        "04_implicit_gemm",
        "s_x[kk][thread_m + j * (kBM / kTM)]",
        "s_x[kk][(thread_m + j * (kBM / kTM)) ^ 1]",
        "N2 C3 H10 W12 K24 R3 S3",
        "neighbours are exchanged pairwise",
    ),
    Planted(
        "04_implicit_gemm",
        "s_w[kk][thread_n * kTN + i]",
        "s_w[kk][(thread_n * kTN + i) ^ 8]",
        "N2 C3 H10 W12 K32 R3 S3",
        "rows of 8 are exchanged",
    ),
    Planted(
        "04_implicit_gemm",
        "r_w[i] = s_w[kk]",
        "r_w[i] = s_w[kk ^ 1]",
        "N2 C8 H9 W10 K6 R1 S1",
        "x at channel c is mult",
    ),
    Planted(
        "05_async_gemm",
        "g_bias[k]",
        "g_bias[k_group]",
        _GROUPS,
        "the bias is read at index k % (K/groups)",
    ),
    Planted(
        "05_async_gemm",
        "group * C_group) * HW +",
        "0) * HW +",
        _GROUPS,
        "every group reads the channels of group 0",
    ),
    Planted(
        "02_im2col_gemm",
        "g_bias[k]",
        "g_bias[0]",
        _PLAIN,
        "the bias is read at index 0 for every k",
    ),
    Planted(
        "06_depthwise",
        "g_bias[k]",
        "g_bias[k % 8]",
        "N2 C12 H9 W10 K12 R3 S3 p1 g12 bias",
        "the bias is read at index k % 8",
    ),
    Planted(
        "10_mma_tf32",
        "round_tf32(w_rows[8][kk + t]),\n                    round_tf32(w_rows[0][kk + t + 4])",
        "round_tf32(w_rows[0][kk + t + 4]),\n                    round_tf32(w_rows[8][kk + t])",
        "N2 C16 H9 W10 K32 R1 S1",
        "numbers 1 and 2 of the filter's fragment are exchanged",
    ),
    Planted(
        "10_mma_tf32",
        "[kk + t + 4 * i]",
        "[kk + t + 4 * (1 - i)]",
        "N2 C16 H9 W10 K32 R1 S1",
        "x at channel c is multiplied with the filter at channel c ^ 4",
    ),
    Planted(
        "10_mma_tf32",
        "[2 * half + c]",
        "[half + 2 * c]",
        "N2 C16 H10 W12 K32 R3 S3",
        "numbers 1 and 2 of the accumulator's fragment are exchanged (rows k, columns q)",
    ),
    Planted(
        "10_mma_tf32",
        "16 * i + 8 * half + g;",
        "16 * i + 8 * (1 - half) + g;",
        "N2 C16 H10 W12 K32 R3 S3",
        "rows of 8 are exchanged",
    ),
    Planted(
        "10_mma_tf32",
        "2 * t + c];",
        "2 * t + 1 - c];",
        "N2 C16 H10 W12 K32 R3 S3",
        "neighbours are exchanged pairwise",
    ),
)


def main() -> int:
    """Check each kernel; return 1 if one is not explained as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run only rungs that begin so")
    only = parser.parse_args().only
    failed = 0
    for i, each in enumerate(PLANTED):
        if not each.rung.startswith(only):
            continue
        text = (KERNELS / f"{each.rung}.cu").read_text()
        name = f"{each.rung}_{i}"
        kernel = convlab.compile(
            replace(text, each.old, each.new, 1, name), name=name, engine="sim"
        )
        try:
            report = convlab.check(kernel, each.problem)
            first = report.patterns[0] if report.patterns else "no pattern"
        except convlab.ConvlabError as error:
            first = str(error).splitlines()[0]
        is_expected = bool(each.sentence) and first.startswith(each.sentence)
        failed += not is_expected
        print(f"{'as expected' if is_expected else 'NOT EXPECTED':12}  {name}: {first}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
