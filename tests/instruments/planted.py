"""The table of planted mistakes: each is one edit of a rung, or a few. `mutants` runs them.

Some mistakes of published kernels are not here. A kernel file cannot make them, or the results are correct:

- invalid arguments of `load_inline`, an old C++ standard, cuBLAS not linked: convlab builds, not the kernel file
  (tests/sim/test_build.py);
- tensors that are not contiguous, not float32, or on another device: `Kernel` converts or rejects them
  (tests/rungs/test_kernels.py, tests/sim/test_errors.py, tests/nn/test_nn.py);
- an output without a gradient, or filters that differ from the replaced layer's: tests/nn/test_nn.py;
- a library handle that is created on each call: this is slow, but correct;
- an element count that overflows 32 bits: to show it takes 8 GB, and hours on the simulator. A 16-bit integer is
  used instead ("stand-in").
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
WRONG, FAULT, BUILD = "wrong result", "runtime fault", "build error"
CHUNKED = 40_000  # bytes of workspace: chunks for most problems, enough for every one

Edit = tuple[str, str] | tuple[str, str, int]  # old text, new text, how often it occurs (1)


@dataclass(frozen=True)
class Mutant:
    """One planted mistake.

    Attributes
    ----------
    name
        Starts with the rung's number: "01_stride_ignored".
    rung
        Stem of the kernel file that it is made from.
    mistake
        What is wrong, in words.
    edits
        (old, new) or (old, new, count): the old text occurs once, or `count` times.
    sim, cuda
        The kind of finding that each engine must give. On a GPU a wrong result may also be found as
        a fault, and the other way round. None: the engine cannot find it, or not each time; `why`
        gives the reason.
    shipped
        Whether published kernels have this mistake.
    inline
        A header that is pasted in place of its #include, so that `edits` reach it.
    workspace_limit
        Bytes of workspace; None for the default.
    at
        Texts of the lines that a report may name, if these are not the edited lines: for example
        the two accesses of the race that a missing barrier causes.
    """

    name: str
    rung: str
    mistake: str
    edits: tuple[Edit, ...]
    sim: str | None = WRONG
    cuda: str | None = WRONG
    why: str = ""
    shipped: bool = False
    inline: str | None = None
    workspace_limit: int | None = None
    at: tuple[str, ...] = ()

    @property
    def right(self) -> str:
        """The rung's text without the mistake."""
        return self.pasted((KERNELS / f"{self.rung}.cu").read_text())

    def pasted(self, text: str) -> str:
        """Return the rung's text with the header ``inline`` pasted in."""
        if not self.inline:
            return text
        header = (KERNELS / self.inline).read_text().replace("#pragma once\n", "\n")
        return replace(text, f'#include "{self.inline}"\n', header, 1, self.name)

    @property
    def source(self) -> str:
        """The rung's text with the mistake in it.

        Raises ValueError if an old text does not occur as often as it should.
        """
        text = self.right
        for old, new, *count in self.edits:
            text = replace(text, old, new, count[0] if count else 1, self.name)
        return text

    @property
    def lines(self) -> frozenset[int]:
        """The numbers of the lines of `source` that a report may name: see ``at``.

        Raises ValueError if no line holds a text of ``at``.
        """
        wrong = self.source.splitlines()
        if self.at:
            for text in self.at:
                if not any(text in line for line in wrong):
                    raise ValueError(f"mutant {self.name} is stale: no line holds {text!r}")
            return frozenset(i for i, s in enumerate(wrong, 1) if any(t in s for t in self.at))
        matcher = difflib.SequenceMatcher(None, self.right.splitlines(), wrong, autojunk=False)
        edited = (range(j1, j2) for tag, _, _, j1, j2 in matcher.get_opcodes() if tag != "equal")
        return frozenset(i + 1 for numbers in edited for i in numbers)


def replace(text: str, old: str, new: str, count: int, name: str) -> str:
    """Replace a text that occurs exactly `count` times; else raise ValueError."""
    found = text.count(old)
    if found != count:
        raise ValueError(f"mutant {name} is stale: {old!r} occurs {found} times, not {count}")
    return text.replace(old, new)


def _of(rung: str, *mutants: dict) -> tuple[Mutant, ...]:
    number = rung.partition("_")[0]
    return tuple(Mutant(**{**m, "name": f"{number}_{m['name']}", "rung": rung}) for m in mutants)


def _m(name: str, mistake: str, *edits: Edit, **rest: object) -> dict:
    rest.setdefault("cuda", rest.get("sim", WRONG))
    return {"name": name, "mistake": mistake, "edits": edits, **rest}


LUCK = "the values are never used: a GPU shows it only if the address is not mapped"
OVERLAP = "a GPU shows it only if warps happen to run far enough apart"
LEFT = "a GPU shows it only if shared memory happens to hold other values than 0"
EARLY = "a GPU shows it only if the copies happen to be late"

_ROUND = """__device__ float rounded(float value, unsigned mask) {
    return __uint_as_float(__float_as_uint(value) & mask);
}

__global__ void __launch_bounds__(kThreads)
conv2d_direct("""
_DIRECT = "__global__ void __launch_bounds__(kThreads)\nconv2d_direct("
_LAUNCH = "    conv2d_direct<<<unsigned(blocks), kThreads, 0, stream>>>(conv, x, w, bias, y);\n"
_STORE = "    g_y[i] = activated(conv, r_acc + (g_bias ? g_bias[k] : 0.0f));\n"
_BOUND = "    if (i >= int64_t(conv.N) * conv.K * conv.P * conv.Q) return;\n"
_HEAD = "    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;\n"
# Several threads per output, each with every kParts-th channel. The mistakes are in how they add.
_PARTS = (
    (_HEAD, "    const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kParts;\n"),
    (_DIRECT, "constexpr int kParts = 4;\n__global__ void zero(float* g_y, int64_t count) {\n"
     "    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;\n"
     "    if (i < count) g_y[i] = 0.0f;\n}\n" + _DIRECT),
    ("for (int c = 0; c < C_group; ++c)",
     "for (int c = threadIdx.x % kParts; c < C_group; c += kParts)"),
    (_LAUNCH, "    zero<<<unsigned(blocks), kThreads, 0, stream>>>(y, outputs);\n"
     + _LAUNCH.replace("unsigned(blocks)", "unsigned(blocks * kParts)")),
)  # fmt: skip
_PART = "r_acc + (g_bias && threadIdx.x % kParts == 0 ? g_bias[k] : 0.0f)"

# Lines that fail because of an edit elsewhere: see `Mutant.at`.
_X, _FILTER = "r_acc += x_n[", "w_k[c * RS"

DIRECT = _of(
    "01_direct",
    # -- build
    _m("macro_undefined", "an error-checking macro is used but never defined",
       ("    return launch_error();", "    CUDA_CHECK(cudaGetLastError());\n    return nullptr;"),
       sim=BUILD, shipped=True),
    _m("linkage_differs", "declared with C linkage, defined with C++ linkage",
       ('#include "convlab.cuh"\n',
        ('#include "convlab.cuh"\nextern "C" const char* last_error();\n'
        "namespace detail { const char* last_error() { return launch_error(); } }\n")),
       ("    return launch_error();", "    return last_error();"), sim=BUILD, shipped=True),
    _m("entry_renamed", "the entry point has C++ linkage, so that its name is another",
       ("CONVLAB_ENTRY ", ""), sim=BUILD, shipped=True),
    # -- arguments accepted and ignored
    _m("stride_ignored", "the stride is accepted and ignored",
       (" * conv.stride_h", ""), (" * conv.stride_w", ""), shipped=True),
    _m("padding_ignored", "the padding is accepted and ignored",
       (" - conv.pad_h", ""), (" - conv.pad_w", ""), shipped=True),
    _m("dilation_ignored", "the dilation is accepted and ignored",
       (" * conv.dilation_h", ""), (" * conv.dilation_w", ""), shipped=True),
    _m("groups_ignored", "groups are accepted and ignored: all channels for each filter",
       ("conv.C / conv.groups", "conv.C"), ("conv.K / conv.groups", "conv.K"),
       sim=FAULT, shipped=True, at=(_FILTER,)),
    _m("bias_ignored", "the bias is accepted and ignored",
       (" + (g_bias ? g_bias[k] : 0.0f)", ""), shipped=True),
    # -- indices
    _m("stride_of_width", "stride_w is used for the height", ("conv.stride_h", "conv.stride_w")),
    _m("stride_of_height", "stride_h is used for the width", ("conv.stride_w", "conv.stride_h")),
    _m("padding_of_width", "pad_w is used for the height", ("conv.pad_h", "conv.pad_w")),
    _m("dilation_of_height", "dilation_h is used for the width",
       ("conv.dilation_w", "conv.dilation_h")),
    _m("filter_height_for_width", "the filter's height is used for its width",
       ("s < conv.S", "s < conv.R"), shipped=True),
    _m("filter_pitch", "the row length of the filter is R instead of S",
       ("int64_t(r) * conv.S + s", "int64_t(r) * conv.R + s"), shipped=True),
    _m("filter_flipped", "a true convolution: the filter is turned by 180 degrees",
       ("int64_t(r) * conv.S + s", "int64_t(conv.R - 1 - r) * conv.S + conv.S - 1 - s")),
    _m("filter_channel_first", "the filter is read with channels varying fastest",
       ("w_k[c * RS + int64_t(r) * conv.S + s]", "w_k[(int64_t(r) * conv.S + s) * C_group + c]"),
       shipped=True),
    _m("group_offset_dropped", "each group reads the first group's channels",
       (" + group * C_group) * HW", ") * HW")),
    _m("group_interleaved", "channel k belongs to group k % groups",
       ("k / K_group", "k % conv.groups")),
    _m("image_dropped", "every image is computed from the first", ("int64_t(n) * conv.C", "0")),
    _m("plane_transposed", "plane n * K + k is read as k * N + n",
       ("int(plane % conv.K)", "int(plane / conv.N)"),
       ("int(plane / conv.K)", "int(plane % conv.N)")),
    _m("pixels_transposed", "p varies fastest where q should",
       ("int(i % conv.Q)", "int(i / conv.P % conv.Q)"),
       ("int(i / conv.Q % conv.P)", "int(i % conv.P)")),
    _m("row_pitch", "the row length of the image is H instead of W",
       ("int64_t(h) * conv.W + w]", "int64_t(h) * conv.H + w]")),
    _m("shifted_by_one", "every column is read one to the left",
       ("q * conv.stride_w - conv.pad_w", "q * conv.stride_w - 1 - conv.pad_w"), shipped=True),
    _m("channel_short", "the last channel is left out", ("c < C_group", "c < C_group - 1")),
    _m("tap_short", "the last column of the filter is left out", ("s < conv.S", "s < conv.S - 1")),
    _m("bias_per_image", "the bias is indexed by n", ("g_bias[k]", "g_bias[n]")),
    _m("bias_doubled", "the bias is added twice", ("g_bias[k]", "2 * g_bias[k]")),
    _m("bias_not_tested", "the bias is read where there is none",
       ("(g_bias ? g_bias[k] : 0.0f)", "g_bias[k]"), sim=FAULT),
    _m("negative_divided", "coordinates from a flat index, by a division that truncates towards zero",
       ("if (w < 0 || w >= conv.W) continue;",
        ("const int flat = h * conv.W + w;\n"
        "                if (flat / conv.W < 0 || flat / conv.W >= conv.H) continue;")),
       ("x_n[c * HW + int64_t(h) * conv.W + w]",
        "x_n[c * HW + int64_t(flat / conv.W) * conv.W + flat % conv.W]"), shipped=True, sim=FAULT),
    # -- bounds
    _m("top_unchecked", "h < 0 is not tested", ("h < 0 || ", ""), sim=FAULT, at=(_X,)),
    _m("bottom_off_by_one", "row H counts as inside", ("h >= conv.H", "h > conv.H"), sim=FAULT,
       at=(_X,)),
    _m("left_unchecked", "w < 0 is not tested", ("w < 0 || ", ""), sim=FAULT, at=(_X,)),
    _m("right_unchecked", "w >= W is not tested: the next row is read", (" || w >= conv.W", ""),
       sim=FAULT, at=(_X,)),
    _m("outputs_unchecked", "threads past the last output write", (_BOUND, ""), sim=FAULT,
       at=(_X,)),
    _m("outputs_off_by_one", "one thread past the last output writes",
       ("if (i >= int64_t(", "if (i > int64_t("), sim=FAULT, at=(_X,)),
    _m("count_16_bits", "stand-in: the number of outputs overflows a short integer",
       (_BOUND, _BOUND.replace("int64_t(conv.N)", "int16_t(conv.N").replace("conv.Q)", "conv.Q))")),
       shipped=True),
    _m("offset_16_bits", "stand-in: a pixel's offset overflows a short integer",
       ("int64_t(h) * conv.W + w]", "int16_t(h * conv.W + w)]"), sim=FAULT, shipped=True),
    # -- launch and host
    _m("grid_rounded_down", "the grid is rounded down: the last outputs have no thread",
       ("ceil_div(outputs, int64_t(kThreads))", "max_of(int64_t(1), outputs / kThreads)")),
    _m("launch_unchecked", "too many threads in a block, and the error is not tested",
       ("<<<unsigned(blocks), kThreads,", "<<<unsigned(blocks), 2048,"),
       ("return launch_error();", "return nullptr;"), sim=FAULT, shipped=True),
    _m("launch_error_swallowed", "too many threads in a block, and the error is read and ignored",
       ("<<<unsigned(blocks), kThreads,", "<<<unsigned(blocks), 2048,"),
       ("return launch_error();", "(void)cudaGetLastError();\n    return nullptr;"), shipped=True),
    _m("filter_falls_through", "no kernel for a filter size: nothing is launched or written",
       (_LAUNCH, _LAUNCH.replace("    conv2d", "    if (conv.R <= 5 && conv.S <= 5) conv2d")),
       shipped=True),
    _m("host_reads_device", "the host reads through a device pointer",
       ("    const int64_t outputs", ("    if (*(volatile const float*)bias == 1e30f) return "
        '"overflow";\n    const int64_t outputs')), sim=FAULT),
    _m("assert_on_square", "an assert that fails for filters that are not square",
       ("#include ", "#include <cassert>\n#include ", 1),
       ("    float r_acc = 0.0f;", "    assert(conv.R == conv.S);\n    float r_acc = 0.0f;"),
       sim=FAULT),
    _m("default_stream", "launched on the default stream, not the caller's",
       ("0, stream>>>", "0, 0>>>"), sim=None, cuda=WRONG, shipped=True,
       why="the simulator has no streams: a launch is over when it returns"),
    _m("runs_once", "a second call returns at once, leaving the first one's result",
       ("    const ConvProblem conv = *problem;", ("    static float* done = nullptr;\n"
        "    if (done == y) return nullptr;\n    done = y;\n"
        "    const ConvProblem conv = *problem;")), sim=None, cuda=WRONG,
       why="each simulated run starts in a fresh process, so that the kernel does run again"),
    # -- memory
    _m("writes_x", "padding is set to zero in x itself",
       ("if (w < 0 || w >= conv.W) continue;",
        ("if (w < 0 || w >= conv.W) continue;\n"
        "                if (h == 0 && w == 0) const_cast<float*>(x_n)[c * HW] = 0.0f;")),
       sim=FAULT),
    _m("writes_past_y", "the last thread also writes one element further",
       (_STORE, _STORE + "    if (i + 1 == int64_t(conv.N) * conv.K * conv.P * conv.Q) "
        "g_y[i + 1] = 0.0f;\n"), sim=FAULT),
    _m("writes_before_y", "the first thread also writes one element earlier",
       (_STORE, _STORE + "    if (i == 0) g_y[-1] = 0.0f;\n"), sim=FAULT),
    _m("sum_not_zeroed", "sums start from what is in y",
       ("float r_acc = 0.0f", "float r_acc = g_y[i]"), sim=FAULT, cuda=WRONG),
    _m("added_without_atomics", "four threads add to one output, without atomics",
       *_PARTS, (_STORE, f"    g_y[i] += {_PART};\n"), sim=FAULT, cuda=WRONG),
    _m("atomics_undeclared", "four threads add with atomics in any order, without `atomics: yes`",
       *_PARTS, (_STORE, f"    atomicAdd(&g_y[i], {_PART});\n"), cuda=None,
       why="a GPU may add in the same order twice"),
    _m("threads_share_output", "two threads write one output, with different values",
       (_STORE, _STORE + "    if (i > 0 && threadIdx.x == 7) g_y[i - 1] = r_acc;\n"), cuda=None,
       why="the lanes of a warp write in an order that a GPU may keep", sim=FAULT),
    # -- arithmetic
    _m("tf32_inputs", "inputs are rounded to TF32, but the header says fp32", (_DIRECT, _ROUND),
       (("r_acc += x_n[c * HW + int64_t(h) * conv.W + w] *\n                         "
        "w_k[c * RS + int64_t(r) * conv.S + s];"),
        ("r_acc += rounded(x_n[c * HW + int64_t(h) * conv.W + w], 0xffffe000u) *\n"
        "                         rounded(w_k[c * RS + int64_t(r) * conv.S + s], 0xffffe000u);")),
       shipped=True),
    _m("sums_in_bf16", "the sum is kept in 16 bits", (_DIRECT, _ROUND),
       ("w_k[c * RS + int64_t(r) * conv.S + s];",
        ("w_k[c * RS + int64_t(r) * conv.S + s];\n"
        "                r_acc = rounded(r_acc, 0xffff0000u);"))),
    _m("relu_forgotten", "the header says ReLU, but the kernel applies none",
       (_STORE, _STORE.replace("activated(conv, ", "("))),
    _m("relu_before_bias", "the ReLU comes before the bias",
       (_STORE, _STORE.replace("r_acc +", "r_acc) +").replace("0.0f));", "0.0f);"))),
    _m("constant", "fast, and always zero", (_STORE, "    g_y[i] = 0.0f;\n")),
    _m("scaled", "every output is an average over the taps",
       (_STORE, _STORE.replace("r_acc", "r_acc / float(conv.R * conv.S)"))),
)  # fmt: skip

_LOAD_COL = """            s_col[kk][m] = kk0 + kk < gemm_k && m0 + m < pixels
                               ? col_group[(kk0 + kk) * pitch + m0 + m] : 0.0f;
"""
_SKIP_COL = """            if (kk0 + kk < gemm_k && m0 + m < pixels)
                s_col[kk][m] = col_group[(kk0 + kk) * pitch + m0 + m];
"""
_LOAD_W = """            s_w[kk][k] = kk0 + kk < gemm_k && k0 + k < K_group
                             ? w_group[(k0 + k) * gemm_k + kk0 + kk] : 0.0f;
"""
_SKIP_W = """            if (kk0 + kk < gemm_k && k0 + k < K_group)
                s_w[kk][k] = w_group[(k0 + k) * gemm_k + kk0 + kk];
"""
_LOWER = "im2col<<<lowering, kLoweringThreads, 0, stream>>>(conv, x, col, first, pixels, pitch);"
_AFTER = "        __syncthreads();   // all have read the tiles before the next are loaded\n"
_COL = """                *col = inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
                col += pitch;   // rows are ordered (c, r, s), as the filter is
"""

_WRITE, _READ, _W_READ, _Y_STORE = "*col = inside", "? col_group[", "? w_group[", "g_y[(n * conv.K"
_TILES = ("s_col[kk][m]", "s_w[kk][k]", "= s_col[kk]", "= s_w[kk]")  # stores, loads

GEMM = _of(
    "02_im2col_gemm",
    # -- im2col
    _m("walks_inputs", "im2col loops over input positions instead of output positions",
       (_LOWER, _LOWER.replace("pixels,", "min_of(pixels, conv.N * conv.H * conv.W),")),
       shipped=True, at=(_READ,), sim=FAULT, cuda=WRONG),
    _m("rows_rsc", "the matrix's rows are ordered (r, s, c), the filter's (c, r, s)",
       ("int64_t(c) * conv.R * conv.S * pitch + m", "int64_t(c) * pitch + m"),
       ("col += pitch;", "col += int64_t(conv.C) * pitch;"), shipped=True),
    _m("offset_16_bits", "stand-in: an offset into the matrix overflows a short integer",
       ("g_col + int64_t(c) * conv.R * conv.S * pitch + m",
        "g_col + uint16_t(c * conv.R * conv.S * pitch) + m"), shipped=True, at=(_WRITE, _READ),
       sim=FAULT, cuda=WRONG),
    _m("tail_not_lowered", "the last pixels have no thread in im2col's grid",
       ("lowering(ceil_div(pixels, kLoweringThreads),",
        "lowering(max_of(1, pixels / kLoweringThreads),"), at=(_READ,), sim=FAULT, cuda=WRONG),
    _m("border_skipped", "padding is skipped in the matrix, not set to zero",
       (_COL, _COL.replace("*col = inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;",
                           "if (inside) *col = x_c[int64_t(h) * conv.W + w];")), shipped=True,
       at=(_READ,), sim=FAULT, cuda=WRONG),
    _m("left_unchecked", "w < 0 is not tested", ("w >= 0 && ", ""), sim=FAULT, at=(_WRITE,)),
    _m("bottom_unchecked", "h >= H is not tested: the next channel is read", (" && h < conv.H", ""),
       sim=FAULT, at=(_WRITE,)),
    _m("padding_after_only", "the padding is not taken off h", (" - conv.pad_h", "")),
    _m("stride_of_height", "stride_h is used for the width", ("conv.stride_w", "conv.stride_h")),
    _m("dilation_ignored", "the dilation is accepted and ignored",
       (" * conv.dilation_h", ""), (" * conv.dilation_w", ""), shipped=True),
    _m("image_dropped", "every image is lowered from the first",
       ("(int64_t(n) * conv.C + c)", "int64_t(c)")),
    _m("filter_height_for_width", "the filter's height is used for its width",
       ("s < conv.S", "s < conv.R"), shipped=True, at=(_READ,), sim=FAULT, cuda=WRONG),
    # -- the product
    _m("no_barrier_before", "no barrier between loading the tiles and using them",
       ("        __syncthreads();\n        #pragma unroll\n", "        #pragma unroll\n"),
       at=_TILES, sim=FAULT, cuda=WRONG),
    _m("no_barrier_after", "no barrier between using the tiles and loading the next",
       (_AFTER, ""), cuda=None, why=OVERLAP, at=_TILES, sim=FAULT),
    _m("stale_col", "columns outside the matrix are skipped, not set to zero",
       (_LOAD_COL, _SKIP_COL), cuda=None, shipped=True,
       why="zeros of the filter hide stale values unless they are NaN or infinite", at=_TILES[2:3],
       sim=FAULT),
    _m("stale_tiles", "what is outside the matrices is skipped, not set to zero",
       (_LOAD_COL, _SKIP_COL), (_LOAD_W, _SKIP_W), shipped=True, at=_TILES[2:],
       sim=FAULT, cuda=WRONG),
    _m("rows_unchecked", "rows past gemm_k are read from the matrix",
       ("kk0 + kk < gemm_k && m0 + m", "m0 + m"), sim=FAULT, cuda=None, why=LUCK, at=(_READ,)),
    _m("filter_rows_unchecked", "values past a filter's end are read",
       ("kk0 + kk < gemm_k && k0 + k", "k0 + k"), sim=FAULT, cuda=None, why=LUCK, at=(_W_READ,)),
    _m("filters_unchecked", "filters past the group's last are read",
       ("gemm_k && k0 + k < K_group", "gemm_k"), sim=FAULT, cuda=None, why=LUCK, at=(_W_READ,)),
    _m("store_k_unchecked", "channels past the group's last are written",
       ("            if (k >= (group + 1) * K_group) continue;\n", ""), sim=FAULT, at=(_Y_STORE,)),
    _m("store_m_unchecked", "pixels past the chunk's last are written",
       ("        if (m >= pixels) continue;\n", ""), sim=FAULT, at=(_Y_STORE,)),
    _m("store_m_off_by_one", "one pixel past the chunk's last is written",
       ("        if (m >= pixels) continue;\n", "        if (m > pixels) continue;\n"), sim=FAULT,
       at=(_Y_STORE,)),
    _m("inner_tail_dropped", "the last rows, fewer than kBK, are left out of the sum",
       ("kk0 < gemm_k; kk0 += kBK", "kk0 + kBK <= gemm_k; kk0 += kBK")),
    _m("inner_short", "one row of each tile is left out of the sum",
       ("for (int kk = 0; kk < kBK; ++kk) {\n", "for (int kk = 0; kk < kBK - 1; ++kk) {\n")),
    _m("group_column_dropped", "each group multiplies the first group's rows",
       ("g_col + group * gemm_k * pitch", "g_col")),
    _m("group_filter_dropped", "each group uses the first group's filters",
       ("g_w + int64_t(group) * K_group * gemm_k", "g_w")),
    _m("k_tile_dropped", "each tile of channels loads the first tile's filters",
       ("w_group[(k0 + k) * gemm_k", "w_group[int64_t(k) * gemm_k")),
    _m("m_tile_dropped", "each tile of pixels loads the first tile's columns",
       ("(kk0 + kk) * pitch + m0 + m]", "(kk0 + kk) * pitch + m]")),
    _m("pitch_is_pixels", "the row length of the matrix is the number of pixels in the chunk",
       ("(kk0 + kk) * pitch", "(kk0 + kk) * pixels"), sim=FAULT, cuda=WRONG),
    _m("thread_tile_dropped", "neighbouring threads write overlapping channels",
       ("k0 + thread_n * kTN + i;", "k0 + thread_n + i;"), at=(_Y_STORE,), sim=FAULT, cuda=WRONG),
    _m("image_of_y_dropped", "every image is written to the first",
       ("(n * conv.K + k) * PQ", "k * PQ"), sim=FAULT, cuda=WRONG),
    _m("bias_within_group", "the bias is indexed within the group",
       ("g_bias[k]", "g_bias[k - group * K_group]")),
    _m("filter_transposed", "the filter is read as (gemm_k, K)",
       ("w_group[(k0 + k) * gemm_k + kk0 + kk]", "w_group[(kk0 + kk) * K_group + k0 + k]"),
       shipped=True),
    # -- chunks
    _m("last_chunk_skipped", "a last chunk that is not full is left out",
       ("first < all; first += pitch", "first + pitch <= all; first += pitch")),
    _m("chunk_offset_bytes", "a chunk's start is passed in bytes",
       ("col, first, pixels, pitch);", "col, first * 4, pixels, pitch);"),
       sim=FAULT, workspace_limit=CHUNKED, at=(_WRITE,)),
    _m("chunk_start_dropped", "every chunk is written where the first belongs",
       ("const int64_t n = (first + m) / PQ, pq = (first + m) % PQ;",
        "const int64_t n = m / PQ, pq = m % PQ;"), workspace_limit=CHUNKED),
    _m("workspace_overrun", "chunks that ignore the limit of the workspace",
       ("pixels_per_chunk(conv, workspace_bytes)", "pixels_per_chunk(conv, size_t(1) << 40)"),
       sim=FAULT, workspace_limit=CHUNKED, at=(_WRITE, _READ)),
)  # fmt: skip

_CALL = "cublasSgemmStridedBatched("
_PRODUCT = "CUBLAS_OP_N, CUBLAS_OP_N, cols, rows, inner"
_OPERANDS = """cols, rows, inner,
            &one, b.data + i * b.stride, b.ld, b.stride,
            a.data + i * a.stride, a.ld, a.stride,
"""
_COLUMN_MAJOR = """rows, cols, inner,
            &one, a.data + i * a.stride, a.ld, a.stride,
            b.data + i * b.stride, b.ld, b.stride,
"""
_MATH = "cublasSetMathMode(*handle, CUBLAS_DEFAULT_MATH)"
_STREAM = "    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(handle, stream);\n"
_HANDLE = {"inline": "convlab_cublas.cuh"}

CUBLAS = _of(
    "02b_im2col_cublas",
    _m("viewed_as_nkpq", "the (K, N*P*Q) product is taken for (N, K, P, Q): right for N = 1",
       ("g_y[(n * conv.K + k) * PQ + pq]", "g_y[k * conv.N * PQ + first + m]"), shipped=True),
    _m("column_major", "row-major matrices are passed as column-major",
       (_OPERANDS, _COLUMN_MAJOR), **_HANDLE,
       shipped=True, sim=FAULT, at=(_CALL,)),
    _m("filter_transposed", "the filter is flagged as transposed",
       (_PRODUCT, _PRODUCT.replace("N, CUBLAS_OP_N,", "N, CUBLAS_OP_T,")), **_HANDLE, sim=FAULT,
       shipped=True, at=(_CALL,)),
    _m("columns_transposed", "the matrix is flagged as transposed",
       (_PRODUCT, _PRODUCT.replace("CUBLAS_OP_N, C", "CUBLAS_OP_T, C")), **_HANDLE,
       shipped=True, sim=FAULT, at=(_CALL,)),
    _m("accumulates", "the product is added to old contents of the workspace",
       ("zero = 0.0f", "zero = 1.0f"), **_HANDLE),
    _m("leading_dimension", "a leading dimension that fits only where pixels are a multiple of 32",
       ("RowMajor{col, pitch,", "RowMajor{col, pixels,"), shipped=True),
    _m("product_pitch", "the product is read with rows as long as the chunk has pixels",
       ("int64_t(k) * pitch + m]", "int64_t(k) * pixels + m]"), shipped=True),
    _m("product_overlaps", "the product starts inside the matrix where groups > 1",
       ("col + int64_t(conv.C) * conv.R", "col + int64_t(conv.C / conv.groups) * conv.R"),
       cuda=None, why=OVERLAP),
    _m("group_of_columns", "every group of the batch multiplies the first one's rows",
       ("RowMajor{col, pitch, gemm_k * pitch}", "RowMajor{col, pitch, 0}")),
    _m("group_of_filters", "every group of the batch uses the first one's filters",
       ("K_group * gemm_k}", "0}")),
    _m("group_of_product", "the groups' products are laid K_group * pixels apart",
       ("int64_t(K_group) * pitch, conv.groups", "int64_t(K_group) * pixels, conv.groups"),
       at=("g_product[int64_t(k)",), sim=FAULT, cuda=WRONG),
    _m("bias_per_image", "the bias is indexed by n", ("g_bias[k]", "g_bias[n]")),
    _m("bias_dropped", "the move to NCHW forgets the bias",
       (" + (g_bias ? g_bias[k] : 0.0f)", ""), shipped=True),
    _m("move_off_by_one", "one pixel past the last is moved",
       ("    const int64_t PQ = int64_t(conv.P) * conv.Q;\n    const int64_t n = ",
        ("    const int64_t PQ = int64_t(conv.P) * conv.Q;\n"
        "    if (m == pixels - 1 && first + m + 1 == conv.N * PQ) g_y[conv.N * conv.K * PQ] = 0;\n"
        "    const int64_t n = ")), sim=FAULT),
    _m("chunk_start_dropped", "every chunk is written where the first belongs",
       ("const int64_t n = (first + m) / PQ, pq = (first + m) % PQ;",
        "const int64_t n = m / PQ, pq = m % PQ;"), workspace_limit=CHUNKED),
    _m("last_chunk_as_full", "the last chunk is taken to be as full as the others",
       ("int(min_of(int64_t(pitch), all - first))", "pitch"), sim=FAULT, at=(_WRITE, _Y_STORE),
       inline="im2col.cuh"),
    _m("stream_not_set", "the library's handle is not put on the caller's stream", (_STREAM, ""),
       **_HANDLE, sim=None, cuda=WRONG, shipped=True,
       why="the simulator has no streams: a launch is over when it returns"),
    _m("tf32_math", "the library may use TF32, but the header says fp32",
       (_MATH, _MATH.replace("DEFAULT_MATH", "TF32_TENSOR_OP_MATH")), **_HANDLE, sim=None,
       cuda=WRONG, shipped=True, why="the simulator's cuBLAS computes in fp32 whatever the mode"),
)  # fmt: skip

_Y = "y + (n * conv.K + k) * PQ + m, int(PQ), conv.K * PQ, images"

BATCHED = _of(
    "02c_im2col_batched",
    _m("filter_per_image", "the filter has a stride in the batch, as if each image had its own",
       ("int(gemm_k), 0}", "int(gemm_k), K_group * gemm_k}"), sim=FAULT, at=(_CALL,), **_HANDLE),
    _m("group_filter_dropped", "each group uses the first group's filters",
       ("w + k * gemm_k", "w")),
    _m("batch_of_columns", "images' matrices are taken to lie one after the other",
       ("pitch, PQ}", "pitch, conv.groups * gemm_k * PQ}"), sim=FAULT, at=(_CALL,), **_HANDLE),
    _m("batch_of_y", "images of y are taken to lie one group apart",
       (_Y, _Y.replace("conv.K * PQ, images", "K_group * PQ, images")), sim=FAULT,
       at=("*y = activated(",)),  # where the bias is added to what was never written
    _m("pixels_by_height", "a pixel's row is taken from P",
       ("% PQ / conv.Q);", "% PQ / conv.P);"), inline="im2col.cuh"),
    _m("relu_with_bias_only", "there is no ReLU where there is no bias",
       ("    if (bias || conv.relu) {\n", "    if (bias) {\n")),
    _m("plane_bias_transposed", "the bias of plane n * K + k is taken to be that of k * N + n",
       ("g_bias[plane % conv.K]", "g_bias[plane / conv.N]")),
    _m("bias_per_chunk", "the bias is added once for every image",
       ("    if (bias || conv.relu) {\n",
        "    if (bias || conv.relu) for (int i = 0; i < conv.N; ++i) {\n")),
    _m("bias_pixels_short", "the bias misses the last pixel",
       ("if (pq >= PQ)", "if (pq >= PQ - 1)")),
    _m("image_offset_dropped", "every chunk lowers the first image",
       ("conv, x, col, first, int", "conv, x, col, m, int"), workspace_limit=CHUNKED),
    _m("pixel_offset_dropped", "every chunk lowers the first pixels of its image",
       ("conv, x, col, first, int", "conv, x, col, n * PQ, int"), workspace_limit=CHUNKED),
    _m("chunk_of_y_dropped", "every chunk is written to the start of its image",
       (_Y, _Y.replace(" * PQ + m,", " * PQ,")), workspace_limit=CHUNKED),
    _m("rows_of_y", "y's rows are taken to be as long as the chunk has pixels",
       (_Y, _Y.replace("int(PQ),", "int(pixels / images),")), workspace_limit=CHUNKED,
       shipped=True),
    _m("chunk_past_image", "a chunk that is a part of an image runs on into the next",
       ("pitch < PQ ? PQ - m : all - first", "all - first"), workspace_limit=CHUNKED),
)  # fmt: skip

_TAIL = "        if (k0 + j >= K_group) continue;\n"
_CLAMP = "min_of(j, K_group - k0 - 1) * C_group * RS"
_PIXEL = "g_y[((n * conv.K"

CHANNELS = _of(
    "01b_register_channels",
    _m("k_tile_dropped", "each tile of channels uses the group's first filters",
       ("int64_t(group * K_group + k0) * C_group", "int64_t(group * K_group) * C_group")),
    _m("group_dropped", "each group reads the first group's channels",
       (" + group * C_group) * HW", ") * HW")),
    _m("filters_unchecked", "filters past the group's last are read", (_CLAMP, "j * C_group * RS"),
       sim=FAULT, cuda=None, why=LUCK, at=("w_tap[r_offset[j]]",)),
    _m("filters_overlap", "the length of a filter is R * S, without the channels",
       (_CLAMP, "min_of(j, K_group - k0 - 1) * RS")),
    _m("store_k_unchecked", "channels past the group's last are written",
       (_TAIL, ""), sim=FAULT, at=(_PIXEL,)),
    _m("channels_end_to_end", "a tile of channels is written end to end, not plane by plane",
       ("((n * conv.K + k) * conv.P + p) * conv.Q + q", "(n * conv.K + k0) * conv.P * conv.Q + j"),
       sim=FAULT, cuda=WRONG, at=("g_y[(",)),
    _m("bias_of_first", "every channel of the tile gets the first one's bias",
       ("g_bias[k]", "g_bias[k - j]")),
    _m("one_tile_of_channels", "the grid forgets that there are several tiles of channels",
       ("* conv.groups *\n                           ceil_div(conv.K / conv.groups, kKTile);",
        "* conv.groups;")),
)  # fmt: skip

_EXTENT_H = "(kTile - 1) * conv.stride_h + (conv.R - 1) * conv.dilation_h + 1"
_EXTENT_W = "(kTile - 1) * conv.stride_w + (conv.S - 1) * conv.dilation_w + 1"
_ONE_BEFORE = "        __syncthreads();\n\n        for (int r = 0;"
_ONE_AFTER = "        __syncthreads();   // all have read the tile before the next is loaded\n"
_ONE_FILL = """                s_x[row * staging.extent_w + column] =
                    inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
"""
_ONE_STAGED = ("s_x[row", "r_x = s_x[")  # store, load
_ASK = "    if (const char* error = ask_for_shared_memory(%s, staging.bytes)) return error;\n"

INPUT = _of(
    "01c_smem_input",
    _m("no_barrier_before", "no barrier between loading the tile and using it",
       (_ONE_BEFORE, "\n        for (int r = 0;"), at=_ONE_STAGED, sim=FAULT, cuda=WRONG),
    _m("no_barrier_after", "no barrier between using the tile and loading the next",
       (_ONE_AFTER, ""), cuda=None, why=OVERLAP, at=_ONE_STAGED, sim=FAULT),
    _m("border_skipped", "padding is skipped in the tile, not set to zero",
       (_ONE_FILL, _ONE_FILL.replace("s_x[", "if (inside) s_x[").replace("inside ? ", "")
        .replace(" : 0.0f", "")),
       shipped=True, at=_ONE_STAGED[1:], sim=FAULT, cuda=None, why=LEFT),
    _m("halo_rows_short", "the last row of the halo is not loaded",
       ("row < staging.extent_h", "row < staging.extent_h - 1"), at=_ONE_STAGED[1:],
       sim=FAULT, cuda=WRONG),
    _m("extent_without_dilation", "the tile's extent ignores the dilation",
       (_EXTENT_W, _EXTENT_W.replace(" * conv.dilation_w", "")), at=_ONE_STAGED[1:],
       sim=FAULT, cuda=WRONG),
    _m("channel_dropped", "every channel's products use the filter's first channel",
       ("(c * RS + r * conv.S + s)", "(r * conv.S + s)")),
    _m("filters_unchecked", "filters past the group's last are read", (_CLAMP, "j * C_group * RS"),
       sim=FAULT, cuda=None, why=LUCK, at=("w_tap[r_offset[j]]",)),
    _m("not_opted_in", "over 48 KB of shared memory without cudaFuncSetAttribute",
       (_ASK % "conv2d_smem_input", ""), sim=FAULT, shipped=True, at=("<<<grid",)),
    _m("images_past_grid", "images after the first 65535 have no block",
       ("int64_t(blockIdx.z) * gridDim.y + blockIdx.y", "blockIdx.y"), inline="convlab.cuh"),
    _m("grid_too_large", "gridDim.y is the number of images, even above 65535",
       ("rows = min_of(images, kMaxGrid)", "rows = images"), inline="convlab.cuh", sim=FAULT,
       at=("<<<grid",)),
)  # fmt: skip

_FILL = """                    s_x_c[row * staging.pitch + column] =
                        inside ? x_c[int64_t(h) * conv.W + w] : 0.0f;
"""
_FILL_INSIDE = """                    if (inside)
                        s_x_c[row * staging.pitch + column] = x_c[int64_t(h) * conv.W + w];
"""
_BEFORE = "        __syncthreads();\n\n        const float4* s_tap"
_C_TILE = "min_of(min_of(fit, kCTile), conv.C / conv.groups)"
_SUPPORTS = """// supports: 4 * ((15 * stride_h + (R - 1) * dilation_h + 1)
//       * (15 * stride_w + (S - 1) * dilation_w + 1) + 36 * R * S) <= smem
"""

_STAGED = ("s_x_c[row", "s_w[tap", "r_x = s_row[w", "r_w = s_tap[")  # stores, loads
TILE = _of(
    "03_smem_tile",
    # -- barriers
    _m("returns_before_barrier", "threads outside the image return before the barriers",
       ("if (n >= conv.N) return;", "if (n >= conv.N || p >= conv.P || q >= conv.Q) return;"),
       shipped=True, at=_STAGED[2:], sim=FAULT, cuda=WRONG),
    _m("no_barrier_before", "no barrier between loading the tiles and using them",
       (_BEFORE, "\n        const float4* s_tap"), at=_STAGED, sim=FAULT, cuda=WRONG),
    _m("no_barrier_after", "no barrier between using the tiles and loading the next",
       (_AFTER, ""), cuda=None, why=OVERLAP, at=_STAGED, sim=FAULT),
    _m("warp_barrier", "a warp's barrier where the whole block has to wait",
       (_BEFORE, _BEFORE.replace("__syncthreads", "__syncwarp")), at=_STAGED,
       sim=FAULT, cuda=WRONG),
    _m("barrier_in_branch", "only the threads inside the image wait for the tiles",
       (_BEFORE, _BEFORE.replace("__sync", "if (p < conv.P && q < conv.Q) __sync")), cuda=None,
       why=OVERLAP, at=("__syncthreads();", *_STAGED), sim=FAULT),
    # -- loading
    _m("border_skipped", "padding is skipped in the tile, not set to zero",
       (_FILL, _FILL_INSIDE), shipped=True, at=_STAGED[2:3], sim=FAULT, cuda=None, why=LEFT),
    _m("halo_at_minus_one", "the tile is read one column left of where it was put",
       ("s_row[w - w0]", "s_row[w - w0 - 1]"), shipped=True, sim=FAULT, cuda=WRONG),
    _m("corner_without_padding", "the tile is loaded from its corner without the padding",
       ("p0 * conv.stride_h - conv.pad_h;", "p0 * conv.stride_h;"), shipped=True, at=_STAGED[2:3],
       sim=FAULT, cuda=WRONG),
    _m("corner_without_stride", "the tile's corner is not moved by the stride",
       ("q0 * conv.stride_w - conv.pad_w;", "q0 - conv.pad_w;"), shipped=True, sim=FAULT,
       at=_STAGED[2:3]),
    _m("extent_plain", "the tile's extent is TILE + R - 1 whatever stride and dilation",
       (_EXTENT_H, "kTile + conv.R - 1"), (_EXTENT_W, "kTile + conv.S - 1"), shipped=True,
       sim=FAULT, at=_STAGED[2:3]),
    _m("extent_without_stride", "the tile's extent ignores the stride",
       (_EXTENT_W, _EXTENT_W.replace(" * conv.stride_w", "")), at=_STAGED[2:3],
       sim=FAULT, cuda=WRONG),
    _m("extent_without_dilation", "the tile's extent ignores the dilation",
       (_EXTENT_H, _EXTENT_H.replace(" * conv.dilation_h", "")), sim=FAULT, at=_STAGED[2:3]),
    _m("halo_column_short", "the last column of the halo is not loaded",
       ("column < staging.extent_w", "column < staging.extent_w - 1"), at=_STAGED[2:3],
       sim=FAULT, cuda=WRONG),
    _m("halo_rows_short", "the last row of the halo is not loaded",
       ("row < staging.extent_h", "row < staging.extent_h - 1"), at=_STAGED[2:3],
       sim=FAULT, cuda=WRONG),
    _m("halo_not_loaded", "each thread loads one element: there are more than threads",
       ("column < staging.extent_w;", "column < kTile;"), shipped=True, at=_STAGED[2:3],
       sim=FAULT, cuda=WRONG),
    _m("right_unchecked", "w >= W is not tested: the next row is read", (" && w < conv.W", ""),
       sim=FAULT, at=("inside ? x_c[",)),
    _m("top_unchecked", "h < 0 is not tested", ("h >= 0 && ", ""), sim=FAULT, at=("inside ? x_c[",)),
    _m("x_channels_dropped", "every tile of channels loads the first channels of x",
       (" + group * C_group + c0)", " + group * C_group)")),
    _m("w_channels_dropped", "every tile of channels loads the filter's first channels",
       (" * C_group + c0) * RS", " * C_group) * RS")),
    _m("channel_tail", "the last tile of channels is taken to be full",
       ("min_of(staging.c_tile, C_group - c0)", "staging.c_tile"), sim=FAULT,
       at=("s_w[tap", "inside ? x_c[")),
    _m("group_dropped", "each group loads the first group's channels",
       (" + group * C_group + c0)", " + c0)")),
    _m("k_tile_dropped", "each tile of channels loads the group's first filters",
       ("group * K_group + k0 + k) * C_group", "group * K_group + k) * C_group")),
    _m("filters_unchecked", "filters past the group's last are read",
       ("k0 + k < K_group ? w_k[tap] : 0.0f", "w_k[tap]"), sim=FAULT, cuda=None, why=LUCK),
    _m("filters_stale", "filters past the group's last are skipped, not set to zero, and stored",
       ("s_w[tap * kWPitch + k] = k0 + k < K_group ? w_k[tap] : 0.0f;",
        "if (k0 + k < K_group) s_w[tap * kWPitch + k] = w_k[tap];"),
       (_TAIL, ""), sim=FAULT, shipped=True,
       at=(_STAGED[3], _PIXEL)),
    _m("filter_pitch", "the staged filter is written without its padding, read with it",
       ("s_w[tap * kWPitch + k]", "s_w[tap * kKTile + k]"), at=_STAGED[3:], sim=FAULT, cuda=WRONG),
    _m("tile_pitch", "the staged tile is written with rows of its extent, read with its pitch",
       ("s_x_c[row * staging.pitch + column]", "s_x_c[row * staging.extent_w + column]"),
       at=_STAGED[2:3], sim=FAULT, cuda=WRONG),
    _m("misaligned", "the tile that is read as float4 starts after one of any length",
       ("    float* s_w = reinterpret_cast<float*>(s_mem);       // (c_tile, R, S, kWPitch)\n", ""),
       ("    float* s_x = s_w + staging.c_tile * RS * kWPitch;   // (c_tile, extent_h, pitch)\n",
        ("    float* s_x = reinterpret_cast<float*>(s_mem);\n"
        "    float* s_w = s_x + staging.c_tile * staging.extent_h * staging.pitch;\n")),
       ("const float4* s_tap = s_mem;", "const float4* s_tap = reinterpret_cast<float4*>(s_w);"),
       ("extent_w + (32 + kTile - extent_w % 32) % 32", "extent_w"), sim=FAULT, at=_STAGED[3:]),
    # -- computing and storing
    _m("padding_ignored", "the padding is accepted and ignored",
       (" - conv.pad_h", "", 2), (" - conv.pad_w", "", 2), shipped=True),
    _m("filter_height_for_width", "the filter's height is used for its width",
       ("s < conv.S", "s < conv.R"), shipped=True),
    _m("dilation_of_height", "dilation_h is used for the width",
       ("s * conv.dilation_w;", "s * conv.dilation_h;")),
    _m("stride_in_corner_only", "the stride moves the tile, not the pixels in it",
       ("q * conv.stride_w - conv.pad_w + s", "q0 * conv.stride_w + q - q0 - conv.pad_w + s")),
    _m("bias_within_group", "the bias is indexed within the group",
       ("g_bias[k]", "g_bias[k0 + j]")),
    _m("store_k_unchecked", "channels past the group's last are written",
       (_TAIL, ""), sim=FAULT, at=(_PIXEL,)),
    _m("store_q_unchecked", "pixels past the row's end are written: they are the next row's",
       ("if (p >= conv.P || q >= conv.Q)", "if (p >= conv.P)"), sim=FAULT, at=(_PIXEL,)),
    _m("store_p_off_by_one", "one row past the image's last is written",
       ("if (p >= conv.P || q", "if (p > conv.P || q"), sim=FAULT, at=(_PIXEL,)),
    _m("image_dropped", "every image is written to the first",
       ("((n * conv.K + k) * conv.P + p)", "(int64_t(k) * conv.P + p)"), sim=FAULT, cuda=WRONG),
    _m("images_unchecked", "blocks past the last image are not stopped",
       ("    if (n >= conv.N) return;   // the whole block returns, so no barrier waits for it\n",
        ""), sim=FAULT, at=("inside ? x_c[",)),
    # -- host
    _m("tail_tile_missing", "the grid is rounded down: the last tiles are not written",
       ("int64_t(ceil_div(conv.P, kTile))", "int64_t(max_of(1, conv.P / kTile))")),
    _m("tiles_by_height", "tiles are counted by P where a row of them has Q",
       ("tiles_q = ceil_div(conv.Q, kTile)", "tiles_q = ceil_div(conv.P, kTile)")),
    _m("not_opted_in", "over 48 KB of shared memory without cudaFuncSetAttribute",
       (_ASK % "conv2d_smem_tile", ""), sim=FAULT, shipped=True, at=("<<<grid",)),
    _m("all_channels_in_one_tile", "all channels of the group in one tile: fits for few",
       (_C_TILE, "conv.C / conv.groups"), sim=FAULT, shipped=True, inline="convlab.cuh",
       at=("cudaFuncSetAttribute(",)),
    _m("refusal_unsaid", "no tile fits: nothing is launched and no error is returned",
       (_SUPPORTS, "// supports: everything\n"),
       ("staging.bytes)) return error;", "staging.bytes)) return nullptr;"), shipped=True),
)  # fmt: skip

_NO_WAIT = ("__pipeline_wait_prior(0);", "")
IMPLICIT = _of(
    "04_implicit_gemm",
    _m("no_barrier_before", "no barrier between loading the tiles and using them",
       ("        __syncthreads();\n        #pragma unroll", "        #pragma unroll"),
       at=("s_x[i]", "s_w[kk][k]", "r_x[j] = s_x", "r_w[i] = s_w"), sim=FAULT, cuda=WRONG),
    _m("no_barrier_after", "no barrier between using the tiles and loading the next",
       ("        __syncthreads();   // all have read the tiles before the next are loaded\n", ""),
       at=("s_x[i]", "s_w[kk][k]", "r_x[j] = s_x", "r_w[i] = s_w"), sim=FAULT, cuda=None,
       why=OVERLAP),
    _m("dilation_of_height", "dilation_h is used for the width",
       ("s * conv.dilation_w;", "s * conv.dilation_h;")),
    _m("border_skipped", "the left border is not tested: the row before is read",
       (" && w >= 0 &&", " &&"), shipped=True, at=("inside ? x_group",), sim=FAULT, cuda=WRONG),
    _m("group_dropped", "every group reads the first one's channels",
       ("+ int64_t(group) * (conv.C / conv.groups)) * conv.H", ") * conv.H"), shipped=True),
    _m("bias_within_group", "the bias is indexed within the group",
       ("g_bias[k]", "g_bias[k - group * K_group]")),
)  # fmt: skip

_FRAGMENTS = ("&s_x[stage][kk][thread_m", "&s_w[stage][kk][thread_n", "r_x[i] =", "r_w[i] =")
ASYNC = _of(
    "05_async_gemm",
    _m("no_barrier_rows", "no barrier between writing the first rows' offsets and using them",
       ("        __syncthreads();\n        if (tile < tiles)", "        if (tile < tiles)"),
       at=("s_rows[tile % 2]",), sim=FAULT, cuda=WRONG),
    _m("no_barrier_tile", "each thread waits for its own copies only",
       ("        __syncthreads();   // all have copied their part of this tile, and have read the one "
        "before\n", ""), at=(*_FRAGMENTS, "s_rows[tile % 2]"), sim=FAULT, cuda=WRONG),
    _m("waits_too_little", "the newest copies, those of the tile to be used, are not waited for",
       ("__pipeline_wait_prior(kStages - 2)", "__pipeline_wait_prior(kStages - 1)"), at=_FRAGMENTS,
       sim=FAULT, cuda=None, why=EARLY),
    _m("carry_dropped", "past the filter's last column the row stays the same",
       ("r += step.r + (s >= conv.S);", "r += step.r;"), shipped=True),
    _m("padding_ignored", "the padding is accepted and ignored",
       ("p * conv.stride_h - conv.pad_h;", "p * conv.stride_h;"), shipped=True),
    _m("quads_unchecked", "four pixels are written at once whatever their alignment",
       ("int64_t(conv.P) * conv.Q % 4 == 0 && ", ""), at=("make_float4", "float4*>(y_m"), sim=FAULT,
       shipped=True),
)  # fmt: skip

DEPTHWISE = _of(
    "06_depthwise",
    _m("no_barrier", "each thread waits for its own copies only",
       ("    __syncthreads();\n", ""), at=("s_row[s]", "s_tap["), sim=FAULT, cuda=None,
       why=OVERLAP),
    _m("no_wait", "the copies are not waited for", _NO_WAIT, at=("s_row[s]", "s_tap["), sim=FAULT,
       cuda=None, why=EARLY),
    _m("multiplier_order", "channels are laid out as if the multiplier were the outer index",
       ("plane % conv.C * multiplier + i", "plane % conv.C + i * conv.C"), shipped=True),
    _m("rows_unchecked", "rows past the image's last are written",
       ("min_of(tile.rows, conv.P - p0 - row0)", "tile.rows"), sim=FAULT,
       at=("*y_thread =", "y_thread[")),
    _m("bias_of_input", "the bias is indexed by the input channel",
       ("g_bias[k] : 0.0f", "g_bias[plane % conv.C] * 0.5f : 1.0f")),
    _m("window_not_moved", "sums are not moved to the next output row",
       ("r_acc[r] = r_acc[r - 1];", "r_acc[r] = r_acc[r];")),
)  # fmt: skip

DEPTHWISE_BF16 = _of(
    "06b_depthwise_bf16",
    _m("no_barrier", "each thread waits for its own copies only",
       ("    __syncthreads();\n", ""), at=("= s_row[word]", "number(s_x_row["), sim=FAULT, cuda=None,
       why=OVERLAP),
    _m("no_wait", "the copies are not waited for", _NO_WAIT,
       at=("= s_row[word]", "number(s_x_row["), sim=FAULT, cuda=None, why=EARLY),
    _m("halves_swapped", "the two numbers of a word change places",
       ("= low_of(pair), r_x[2 * word + 1] = high_of(pair)",
        "= high_of(pair), r_x[2 * word + 1] = low_of(pair)")),
    _m("last_column_unchecked", "the second column is stored even if the row ends before it",
       ("if (both) y[1].bits", "y[1].bits"), sim=FAULT, cuda=WRONG),
    _m("rows_unchecked", "rows past the image's last are written",
       ("min_of(tile.rows, conv.P - p0 - row0)", "tile.rows"), sim=FAULT,
       at=("uint32_t*>(y) = pair", "y[0].bits", "y[1].bits")),
)  # fmt: skip

SMALL = _of(
    "07_small_groups",
    _m("no_barrier_before", "each thread waits for its own copies only",
       ("        __pipeline_wait_prior(0);\n        __syncthreads();\n",
        "        __pipeline_wait_prior(0);\n"),
       at=("= s_c[row", "= s_w[c", "= s_tap[", "(s_w + tap)[k]"), sim=FAULT, cuda=WRONG),
    _m("no_barrier_after", "no barrier between using the tiles and loading the next",
       ("        __syncthreads();   // all have read the tiles before the next are loaded\n", ""),
       at=("= s_c[row", "= s_w[c", "= s_tap[", "(s_w + tap)[k]"), sim=FAULT, cuda=None, why=OVERLAP),
    _m("no_wait", "the copies are not waited for", _NO_WAIT, at=("= s_c[row", "= s_tap["),
       sim=FAULT, cuda=None, why=EARLY),
    _m("k_tile_dropped", "each tile of channels loads the group's first filters",
       ("group * K_group + k0 + k) * C_group", "group * K_group + k) * C_group")),
    _m("filters_unchecked", "channels past the group's last are written",
       ("q >= conv.Q || k0 + i >= K_group", "q >= conv.Q"), sim=FAULT, at=("*y_p =",)),
    _m("filter_height_for_width", "the filter's height is used for its width",
       ("s < conv.S;", "s < conv.R;"), shipped=True),
)  # fmt: skip

WINOGRAD = _of(
    "08_winograd",
    _m("no_barrier_stage", "each thread waits for its own part of a stage only",
       ("            __syncthreads();   // all have filled their part of this stage, and read the "
        "other\n", ""),
       at=("s_v_thread + (e", "s_u_thread + (e", "r_v[half] =", "r_u[half] ="), sim=FAULT,
       cuda=WRONG),
    _m("no_barrier_before", "the elements overwrite the last stage while others still read it",
       ("            __syncthreads();   // all have read what is there\n", ""),
       at=("s_v_thread + (e", "s_u_thread + (e", "r_v[half] =", "r_u[half] =", "s_m + row"),
       sim=FAULT, cuda=None, why=OVERLAP),
    _m("no_barrier_exchange", "no barrier between writing the elements and reading them",
       ("            __syncthreads();\n            #pragma unroll\n            for (int i = 0; i < "
        "kRound; ++i) {", "            #pragma unroll\n            for (int i = 0; i < kRound; ++i) {"),
       at=("= s_m[(((", "s_m + row"), sim=FAULT, cuda=None, why=OVERLAP),
    _m("waits_too_little", "the newest copies, those of the stage to be used, are not waited for",
       ("__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)"), sim=FAULT, cuda=None, why=EARLY,
       at=("s_u_thread + (e", "r_u[half] =", "s_m + row", "Quad*>(s_m", "= s_m[(((")),
    _m("transform_sign", "one row of the input's transform has its sign turned",
       ("r_half[2][j] = r_x[2][j] - r_x[1][j];", "r_half[2][j] = r_x[1][j] - r_x[2][j];"),
       shipped=True),
    _m("filter_half", "a factor of one half is left out of the filter's transform",
       ("r_half[1][s] = 0.5f * (", "r_half[1][s] = (")),
    _m("pairs_unchecked", "two pixels are written at once whatever their alignment",
       ("conv.Q % 2 == 0 && ", ""), at=("float2*>(y",), sim=FAULT, shipped=True),
    _m("group_dropped", "every group reads the first one's input channels",
       ("int64_t(first_group + group) * C_group) * HW", "int64_t(first_group)) * HW"),
       shipped=True),
)  # fmt: skip

WINOGRAD_4X4 = _of(
    "08b_winograd_4x4",
    _m("no_barriers", "warps do not wait for one another", ("    __syncthreads();\n", ""), sim=FAULT, cuda=None,
       why="the GPU's own barrier is the line beside it; it stays",
       at=("s_", "load_tile<", "copy_async", "write_y<", "r_m[e] =")),
    _m("waits_too_little", "the newest copies of the filter are not waited for",
       ("__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)"), sim=FAULT, cuda=None, why=EARLY,
       at=("s_", "copy_async", "write_y<", "r_m[e] =")),
    _m("transform_sign", "one row of the output's transform has a sign turned",
       ("y[2] = kA2 * even_a + kB2 * even_b;", "y[2] = kA2 * even_a - kB2 * even_b;")),
    _m("group_dropped", "a bias is taken from the first group's channels",
       ("const float bias = g_bias ? g_bias[k] : 0.0f;",
        "const float bias = g_bias ? g_bias[k_group] : 0.0f;"), shipped=True),
)  # fmt: skip

_BEFORE_ROLES = {"sim": FAULT, "cuda": None, "why": OVERLAP}
_ROLES = ("mbarrier_", "s_where", "wgmma_")  # what each role waits for, reads and issues
_NO_BARRIER = ("    __syncthreads();\n", "")

MMA = _of(
    "10_mma_tf32",
    _m("no_barrier_taps", "the taps are read before all are found", _NO_BARRIER, sim=FAULT,
       cuda=None, why=OVERLAP, at=("s_tap[step % kStages]", "const Tap tap =")),
    _m("no_barrier_stage", "each thread waits for its own part of a stage only",
       ("        __syncthreads();                      // all parts have; and all have read the oldest "
        "tiles\n", ""),
       sim=FAULT, cuda=WRONG,
       at=("round_tf32(s_x", "round_tf32(w_rows", "s_tap[", "const Tap tap =", "memcpy_async(&s_")),
)  # fmt: skip

POINTWISE = _of(
    "09_pointwise_3xtf32",
    _m("no_barrier_stage", "each thread waits for its own part of a chunk only",
       (("            __syncthreads();   // all have copied their part of it, and have read the "
         "last\n"), ""),
       at=("copy_async", "Floats<kFragments>*>(s_row)", "= s_part[0]"), sim=FAULT, cuda=None,
       why=EARLY),
    _m("waits_too_little", "the newest copies, those of the chunk to be used, are not waited for",
       ("__pipeline_wait_prior(kStages - 2)", "__pipeline_wait_prior(kStages - 1)"), sim=FAULT,
       at=("copy_async", "Floats<kFragments>*>(s_row)", "= s_part[0]"), cuda=None, why=EARLY),
    _m("low_dropped", "the remainder of x after rounding is not multiplied",
       (", multiply(w_high, r_low);", ";")),
    _m("columns_swapped", "pixels of a fragment are written where others belong",
       ("4 * t + 16 * half;", "8 * t + 4 * half;")),
    _m("pixels_unchecked", "pixels past the last image's are written",
       ("if (m + j >= work.pixels || (work.vectors && j > 0)) continue;",
        "if (work.vectors && j > 0) continue;"), at=("make_float4(y_of", "*y = y_of"), sim=FAULT,
       shipped=True),
    _m("overlap_short", "tiles overlap, and none stores the sectors that begin in a tile's last pixels",
       ("OVERLAP_FROM 16777216", "OVERLAP_FROM 1"),
       ("begins >= work.step ||", "begins >= work.step - 8 ||")),
    _m("first_part_dropped", "tiles overlap, and a plane's first part of a sector is not stored",
       ("OVERLAP_FROM 16777216", "OVERLAP_FROM 1"), ("begins < 0 && at.tile > 0", "begins < 0")),
)  # fmt: skip

POINTWISE_TF32 = _of(
    "09b_pointwise_tf32",
    _m("terms_apart", "the filter is packed as if a second part lay between the first ones",
       ("g_packed + i / 32 * kTerms * 32 + lane", "g_packed + i / 32 * 64 + lane"),
       at=("to[0] =",), sim=FAULT, inline="09_pointwise_3xtf32.cu"),
)  # fmt: skip

_SHARED = {"inline": "wgmma_block.cuh", **_BEFORE_ROLES}

WGMMA = _of(
    "11_wgmma_tf32",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ROLES, "bulk_load("), **_SHARED),
)  # fmt: skip

ROWS = _of(
    "11b_wgmma_rows",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised",
       ("    __syncthreads();\n\n    if (warp >= 8)", "\n    if (warp >= 8)"),
       at=("mbarrier_", "wgmma_", "bulk_load(", "bytes, w_full);"), **_BEFORE_ROLES),
    _m("no_proxy_fence", "the loaders' stores are not made visible to wgmma",
       ("                fence_proxy_async();\n                __syncwarp();\n                if (lane == 0)",
        "                __syncwarp();\n                if (lane == 0)"),
       at=("wgmma_n(", "s_to[", "reinterpret_cast<uint4*>(s_to)"), sim=FAULT, cuda=None, why=OVERLAP),
    _m("channels_unchecked", "channels past the group's last are written",
       ("const int channels = min_of(8, k_count - 8 * half);", "const int channels = 8;"),
       at=("bulk_store(", "y_k[begin + column]", "y_k[last_begin + column]"),
       sim=FAULT, shipped=True),
    _m("window_too_short", "a consumer does not wait for the last input row of its window",
       ("wait_until(row + walk.window);", "wait_until(row + walk.window - 1);"),
       at=("wgmma_n(", "s_to[", "reinterpret_cast<uint4*>(s_to)"), sim=FAULT, cuda=None, why=EARLY),
    _m("sector_dropped", "neither strip stores the sector that begins in one and ends in the next",
       ("const int up = to_end ? 0 : 31;", "const int up = 0;")),
    _m("gap_not_closed", "the next row's first columns stay where the filter's gap puts them",
       ("s_end[walk.gap + 4 * j];", "s_end[4 * j];")),
)  # fmt: skip

ROWS_BF16 = _of(
    "15c_wgmma_rows_bf16",
    _m("halves_swapped", "the two 8-channel halves of a pixel are exchanged",
       ("reinterpret_cast<uint4*>(s_to)[octet * pitch]",
        "reinterpret_cast<uint4*>(s_to)[(1 - octet) * pitch]"), inline="11b_wgmma_rows.cu"),
    _m("gap_not_closed", "the next row's first columns stay where the filter's gap puts them",
       ("s_end[walk.gap + 4 * j];", "s_end[4 * j];"), inline="11b_wgmma_rows.cu"),
)  # fmt: skip

VECTOR = _of(
    "12_wgmma_vector_reads",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ROLES, "s_x[i] = {}", "s_quad[r_to["), **_SHARED),
)  # fmt: skip

PARTS = _of(
    "13_wgmma_3xtf32",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ROLES, "bulk_load("), **_SHARED),
    _m("low_dropped", "the remainder of x after rounding is not multiplied",
       ("                        product(w_high, x_low, tap, true);\n", "", 2)),
    _m("sums_stay", "the sums of all periods but the last are dropped",
       ("                since = 0;\n",
        "                since = 0;\n                for (float& sum : r_sum) sum = 0;\n")),
)  # fmt: skip

_STEM = {"inline": "stem_tile.cuh"}
_STAGE = ("= s_low[8 * j", "copy_async<4>(stage", "r_two[0]), ", "float4*>(s_y", "= s_y[")
_FILTER_THERE = ("    __syncthreads();   // the filter has arrived\n", "")
_STEM_BARRIERS = (
    _m("no_barrier_stage", "each thread waits for its own part of a stage only",
       (("            __syncthreads();   // all have copied their part of this stage, and have read the "
         "other\n"), ""), at=_STAGE, **_BEFORE_ROLES, **_STEM),
    _m("no_barrier_store", "sums are put into a stage that others still read",
       (("        __syncthreads();   // all have read this stage; the next copies to it follow a "
         "barrier\n"), ""), at=_STAGE, **_BEFORE_ROLES, **_STEM),
)  # fmt: skip

STEM = _of(
    "14_stem_tf32",
    *_STEM_BARRIERS,
    _m("no_barrier_filter", "the filter is rounded before all have copied their part of it",
       _FILTER_THERE, at=("b.s_w[i]", "make_float4(round", "copy_async<4>(to", "b.s_bias["),
       **_BEFORE_ROLES, **_STEM),
    _m("no_wait", "the copies of a stage are not waited for", _NO_WAIT, at=_STAGE, sim=FAULT,
       cuda=None, why=EARLY, **_STEM),
    _m("halves_swapped", "two of the four numbers of a lane's fragment are exchanged",
       ("i / 4 % 2 * 2 + k / 8 % 2", "i / 4 % 2 + k / 8 % 2 * 2"), **_STEM),
    _m("channels_unchecked", "channels past the group's last are written",
       ("if (k < channels && column < columns)", "if (column < columns)", 2),
       at=("= s_y[", "float4*>(y_k"), sim=FAULT, **_STEM),
    _m("group_dropped", "every group reads the first one's input channels",
       ("b.group * C_group + c0) * conv.H", "c0) * conv.H"), shipped=True, **_STEM),
)  # fmt: skip

STEM_PARTS = _of(
    "14b_stem_3xtf32",
    *_STEM_BARRIERS,
    _m("no_barrier_bias", "the bias is read before all have stored their part of it",
       _FILTER_THERE, at=("b.s_bias[",), **_BEFORE_ROLES, **_STEM),
    _m("low_dropped", "the remainder of x after rounding is not multiplied",
       ("mma_m16n8k8_tf32(r_acc[i][j], w_high, r_low[j]);", "{}")),
    _m("sums_dropped", "the sums of all periods but the last are dropped",
       ("r_sum[i][j][e] += r_acc", "r_sum[i][j][e] = r_acc")),
)  # fmt: skip

HALF = _of(
    "15_wgmma_bf16",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ROLES, "bulk_load(", "s_x[i] = {}", "s_octet = s_x", "s_to["), **_SHARED),
    _m("halves_swapped", "the permutation takes the odd pixel where the even one belongs",
       ("odd ? 0x7632 : 0x5410", "odd ? 0x5410 : 0x7632")),
    _m("halves_of_one", "a word of two channels gets both from the first",
       ("__byte_perm(a, b, halves)", "__byte_perm(a, a, halves)")),
    _m("pixels_shifted", "where W is odd, the upper half of a word is the lower one's channel",
       ("x[0] | x[1] << 16", "x[0] | x[0] << 16")),
    _m("pairs_swapped", "two neighbours of y are rounded into one word in the wrong order",
       ("rounded(x, y, s_to)", "rounded(y, x, s_to)"), inline="wgmma_store.cuh"),
)  # fmt: skip

_OTHER_FORMAT = _m("other_format", "numbers are taken for bf16's", ("NUMBER fp16", "NUMBER bf16"))
FP16 = _of("15b_wgmma_fp16", _OTHER_FORMAT) + _of("16b_wgmma_nhwc_fp16", _OTHER_FORMAT)

LAST = _of(
    "16_wgmma_nhwc_bf16",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ROLES, "bulk_load(", "= {};"), **_SHARED),
    _m("no_meeting", "a warp's part of y is stored by others before it is there",
       ("        meet(meeting, lane, 0);   // all have stored\n", ""),
       at=("stmatrix_x4_trans(s_to", "const uint4*>(s_from", "mbarrier_wait(meeting"),
       **_BEFORE_ROLES),
    _m("no_wait", "the newest copies of a stage are not waited for",
       ("__pipeline_wait_prior(1)", "__pipeline_wait_prior(2)"), at=("wgmma_", "copy_async16("),
       sim=FAULT, cuda=None, why=EARLY),
    _m("matrices_swapped", "two of the four matrices of a store change places",
       ("m / 2 * 4 + m % 2 * 2", "m % 2 * 4 + m / 2 * 2")),
    _m("one_octet", "both octets of a stage are the first",
       ("b.group * C_group + octet * kOctet", "b.group * C_group")),
    _m("group_dropped", "every group reads the first one's input channels",
       ("b.group * C_group + octet * kOctet", "octet * kOctet"), shipped=True),
    _m("channels_unchecked", "channels past a pixel's last are written",
       ("if (c < channels) y[c]", "y[c]"), at=("y[c].bits", "stmatrix_x4_trans(s_to", "mbarrier_wait(meeting"), sim=FAULT,
       shipped=True),
)  # fmt: skip

_GATHER = (
    "mbarrier_",
    "s_tap[",
    "bulk_load(",
    "copy_async<",
    "operand(",
    "wgmma_n(",
    "*s_x",
    "s_x[",
    "(s_x)[i % vectors] = {}",
)
GATHER = _of(
    "17_wgmma_gather_tf32",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=_GATHER, **_BEFORE_ROLES),
    _m("words_swapped", "two of the four words of a lane's operand are exchanged",
       ("r_to[step][1] = operand(s_1, plane)", "r_to[step][1] = operand(s_0 + 4 * kWord * plane, plane)")),
    _m("margin_dropped", "pixels are read as if the stage had no margin",
       ("pixel.q * conv.stride_w + work.left - conv.pad_w", "pixel.q * conv.stride_w + work.left")),
    _m("group_dropped", "every group reads the first one's input channels",
       ("(int64_t(item.group) * C_group + c0) * HW", "int64_t(c0) * HW"), shipped=True),
)  # fmt: skip

GATHER_BF16 = _of(
    "17b_wgmma_gather_bf16",
    _m("one_channel", "a word of two channels gets both from the first",
       ("uint32_t(s_x[plane].bits) << 16", "uint32_t(s_x[0].bits) << 16"),
       inline="17_wgmma_gather_tf32.cu"),
    _m("pairs_swapped", "two neighbours of y are rounded into one word in the wrong order",
       ("= round_bf16(x, y);", "= round_bf16(y, x);"), inline="17_wgmma_gather_tf32.cu"),
)  # fmt: skip

_DY = "r_acc += dy_n["
DATA = _of(
    "18_data_gradient",
    _m("stride_of_width", "stride_w is used for the height",
       ("p_times_stride % conv.stride_h", "p_times_stride % conv.stride_w"),
       ("p_times_stride / conv.stride_h", "p_times_stride / conv.stride_w")),
    _m("remainder_ignored", "with a stride, taps between two pixels count for the one before",
       (" || p_times_stride % conv.stride_h != 0", "")),
    _m("padding_subtracted", "the padding is subtracted, as in the forward convolution",
       ("h + conv.pad_h -", "h - conv.pad_h -"), ("w + conv.pad_w -", "w - conv.pad_w -")),
    _m("taps_forward", "taps are counted forwards, as in the forward convolution",
       ("conv.pad_h - r *", "conv.pad_h + r *"), ("conv.pad_w - s *", "conv.pad_w + s *")),
    _m("dilation_ignored", "the dilation is accepted and ignored",
       (" * conv.dilation_h", ""), (" * conv.dilation_w", "")),
    _m("dilation_of_height", "dilation_h is used for the width",
       ("conv.dilation_w", "conv.dilation_h")),
    _m("top_unchecked", "a pixel above the first is not tested", ("p_times_stride < 0 || ", ""),
       at=(_DY,), sim=FAULT),
    _m("bottom_off_by_one", "row P of dy counts as inside", ("p >= conv.P", "p > conv.P"),
       at=(_DY,), sim=FAULT),
    _m("right_unchecked", "a pixel right of the last is not tested: the next row is read",
       ("            if (q >= conv.Q) continue;\n", ""), at=(_DY,), sim=FAULT),
    _m("group_dropped", "every group reads the first one's filters and dy",
       ("c / C_group * K_group", "0")),
    _m("group_interleaved", "channel c belongs to group c % groups",
       ("c / C_group * K_group", "c % conv.groups * K_group")),
    _m("filter_pitch", "the channels of a filter are skipped: w is read as (K, R, S)",
       ("w_c[int64_t(k) * C_group * RS", "w_c[k * RS")),
    _m("filter_short", "the last filter is left out", ("k < K_group;", "k < K_group - 1;")),
    _m("image_dropped", "every image is computed from the first", ("int64_t(n) * conv.K", "0")),
    _m("sum_not_zeroed", "sums start from what is in dx: correct only if the caller cleared it",
       ("float r_acc = 0.0f", "float r_acc = g_dx[i]"), sim=FAULT, cuda=WRONG),
)  # fmt: skip

_OF_DY = ("&s_dy[stage][kk][thread_m", "&s_w[stage][kk][thread_n", "r_dy[i] =", "r_w[i] =")
_OF_ROWS = ("s_rows[tile % 2]", "s_offsets_w[tile % 2]")
DATA_GEMM = _of(
    "18b_data_gradient_gemm",
    _m("no_barrier_phase", "the phase is read before it is computed",
       ("    __syncthreads();   // the phase is known\n", ""), at=("s_phase[",), sim=FAULT, cuda=None,
       why=OVERLAP),
    _m("no_barrier_rows", "no barrier between writing the first rows' offsets and using them",
       ("    __syncthreads();   // the first rows are written\n", ""), at=_OF_ROWS, sim=FAULT,
       cuda=None, why=OVERLAP),
    _m("no_barrier_tile", "each thread waits for its own copies only",
       (("        __syncthreads();   // all have copied their part of this tile, and have read the one "
         "before\n"), ""), at=(*_OF_DY, *_OF_ROWS, "__pipeline_memcpy_async"),
       inline="convlab_async.cuh", sim=FAULT, cuda=WRONG),
    _m("waits_too_little", "the copies of the tile to be used are not waited for",
       ("__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)"), at=_OF_DY, sim=FAULT, cuda=None,
       why=EARLY),
    _m("taps_next_to_each_other", "the taps of a phase are neighbours, whatever the stride",
       ("phase.tap_step = r - phase.tap", "phase.tap_step = 1")),
    _m("one_phase", "only the first phase of rows is computed: the others are never written",
       ("const int phases_h = min_of(conv.stride_h, conv.H)", "const int phases_h = 1")),
    _m("last_tap_dropped", "the tap that meets the first row of dy counts as padding",
       ("(phase.taps - 1) * phase.step < 0", "(phase.taps - 1) * phase.step <= 0")),
    _m("first_tap_dropped", "the tap that meets the last row of dy counts as padding",
       ("phase.base + j0 >= outputs;", "phase.base + j0 >= outputs - 1;")),
    _m("two_images", "taps are dropped as if a block never reached into the next image",
       ("one_image = m0 / plane == m1 / plane", "one_image = true")),
    _m("carry_dropped", "past the last tap the filter stays the same",
       (" + (tap >= divisor);", ";")),
    _m("group_dropped", "every group reads the first one's dy",
       (" + int64_t(group) * K_group) * PQ", ") * PQ")),
    _m("quads_unchecked", "four elements are written at once whatever their alignment",
       ("int64_t(conv.H) * conv.W % 4 == 0 &&", "true &&"),
       at=("make_float4", "float4*>(dx_m"), sim=FAULT),
)  # fmt: skip

_DW_COPY = "copy_async<4>(s_dy + j"
DEPTHWISE_DATA = _of(
    "22_depthwise_data_gradient",
    _m("no_barrier", "each thread waits for its own copies only",
       ("        __syncthreads();   // the tile is there\n", ""), at=("value = s_own[",), sim=FAULT,
       cuda=None, why=OVERLAP),
    _m("no_barrier_after", "the tile of the next filter is copied over one that is still read",
       ("        __syncthreads();   // all have read the tile before the next one is copied\n", ""),
       at=("value = s_own[", _DW_COPY), sim=FAULT, cuda=None, why=OVERLAP),
    _m("no_wait", "the copies are not waited for", _NO_WAIT, at=("value = s_own[",), sim=FAULT,
       cuda=None, why=EARLY),
    _m("taps_forward", "columns of the filter are not turned round",
       ("const int t_s = kLeft - right;", "const int t_s = right;")),
    _m("multiplier_order", "filters are laid out as if the multiplier were the outer index",
       ("(plane % conv.C * multiplier + i) * kR", "(plane % conv.C + i * conv.C) * kR")),
    _m("bottom_unchecked", "rows past the image's last are written",
       ("if (h < 0 || h >= conv.H) continue;", "if (h < 0) continue;"), at=("dx_plane[",),
       sim=FAULT),
    _m("phases_exchanged", "rows of a unit are stored as columns",
       ("= r_acc[u][a][b];", "= r_acc[u][b][a];")),
)  # fmt: skip

_X_READ, _SUMS = "g_x[(n * conv.C", ("s_sums[",)
WEIGHT = _of(
    "19_weight_gradient",
    _m("no_barrier_sums", "the tree begins before all threads have written their sums",
       ("    __syncthreads();\n    // A tree", "    // A tree"), at=_SUMS, sim=FAULT, cuda=None,
       why=OVERLAP),
    _m("no_barrier_tree", "a level of the tree begins before the one below is done",
       ("        __syncthreads();\n    }", "    }"), at=_SUMS, sim=FAULT, cuda=None, why=OVERLAP),
    _m("stride_ignored", "the stride is accepted and ignored",
       (" * conv.stride_h", ""), (" * conv.stride_w", "")),
    _m("stride_and_dilation", "stride and dilation change places, as in a rewriting as a convolution",
       ("p * conv.stride_h", "p * conv.dilation_h"), ("r * conv.dilation_h", "r * conv.stride_h")),
    _m("padding_ignored", "the padding is accepted and ignored",
       (" - conv.pad_h", ""), (" - conv.pad_w", "")),
    _m("filter_flipped", "dw is turned by 180 degrees",
       ("r * conv.dilation_h", "(conv.R - 1 - r) * conv.dilation_h"),
       ("s * conv.dilation_w", "(conv.S - 1 - s) * conv.dilation_w")),
    _m("group_dropped", "every group reads the first one's channels of x",
       ("k / K_group * C_group + c;", "c;")),
    _m("channel_of_all", "the channel is taken from all groups", ("filter % C_group", "filter % conv.C"),
       ("filter / C_group", "filter / conv.C")),
    _m("first_image_only", "only the first image is summed",
       ("i < conv.N * PQ", "i < min_of(conv.N, 1) * PQ")),
    _m("mean_of_images", "dw is the mean over images, not the sum",
       ("= s_sums[0];", "= s_sums[0] / float(max_of(conv.N, 1));")),
    _m("right_unchecked", "w >= W is not tested: the next row is read", (" || w >= conv.W", ""),
       at=(_X_READ, "r_sum += g_dy"), sim=FAULT),
    _m("row_pitch", "the row length of dy is P instead of Q",
       ("int64_t(p) * conv.Q + q", "int64_t(p) * conv.P + q")),
    _m("tree_too_high", "the last two sums are not added", ("half > 0;", "half > 1;")),
    _m("added_to", "the gradient is added to what is in dw, as an optimiser might want it",
       ("g_dw[blockIdx.x] = ", "g_dw[blockIdx.x] += "), sim=FAULT, cuda=WRONG),
    _m("filter_channel_first", "dw is stored with k varying faster than c",
       ("int(filter % C_group)", "int(filter / conv.K)"),
       ("int(filter / C_group)", "int(filter % conv.K)")),
    _m("sums_in_bf16", "the sum is kept in 16 bits",
       ("    s_sums[threadIdx.x] = r_sum;",
        "    s_sums[threadIdx.x] = __uint_as_float(__float_as_uint(r_sum) & 0xffff0000u);")),
)  # fmt: skip

_OF_X = ("&s_x[stage][pixel][thread_m", "&s_dy[stage][pixel][thread_n", "r_x[i] =", "r_dy[i] =")
WEIGHT_GEMM = _of(
    "19b_weight_gradient_gemm",
    _m("no_barrier_columns", "columns are used before they are written",
       ("    __syncthreads();   // the columns are written\n", ""), at=("s_columns[i]",), sim=FAULT,
       cuda=None, why=OVERLAP),
    _m("no_barrier_tile", "each thread waits for its own copies only",
       (("        __syncthreads();   // all have copied their part of this tile, and have read the one "
         "before\n"), ""), at=_OF_X, sim=FAULT, cuda=WRONG),
    _m("waits_too_little", "the copies of the tile to be used are not waited for",
       ("__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)"), at=_OF_X, sim=FAULT, cuda=None,
       why=EARLY),
    _m("ranges_overlap", "each range goes on to the last pixel",
       ("min_of((range + 1) * range_pixels, conv.N * PQ)", "conv.N * PQ")),
    _m("last_range_dropped", "the last range is not added",
       ("range < ranges; ++range", "range < max_of(1, ranges - 1); ++range")),
    _m("ranges_not_added", "the first range's sums are taken for all",
       ("range < ranges; ++range", "range < 1; ++range")),
    _m("carry_once", "16 pixels further is at most one row further",
       ("p += q / conv.Q;", "p += q >= conv.Q;"), ("q %= conv.Q;", "q -= q >= conv.Q ? conv.Q : 0;")),
    _m("image_kept", "past the last row the image stays the same", ("        n += p / conv.P;\n", "")),
    _m("group_dropped", "every group reads the first one's dy",
       ("(n * conv.K + int64_t(group) * K_group + k0) * PQ", "(n * conv.K + k0) * PQ")),
    _m("filters_unchecked", "filters past the group's last are stored",
       ("        if (k >= filters) continue;\n", ""),
       at=("float4*>(sums", "sums[k * CRS", "make_float4"), sim=FAULT),
    _m("quads_unchecked", "four weights are written at once whatever their alignment",
       ("int64_t(conv.C / conv.groups) * conv.R * conv.S % 4 == 0 &&", "true &&"),
       at=("float4*>(sums", "make_float4"), sim=FAULT),
)  # fmt: skip

DEPTHWISE_WEIGHT = _of(
    "22b_depthwise_weight_gradient",
    _m("no_barrier_sums", "thread 0 adds the sums of warps before they are written",
       ("    __syncthreads();   // all warps have written their sums\n", ""), at=_SUMS, sim=FAULT,
       cuda=None, why=OVERLAP),
    _m("no_barrier_after", "the next weight's sums are written over some that are still read",
       ("    __syncthreads();   // the sums are read before the next ones are written\n", ""), at=_SUMS,
       sim=FAULT, cuda=None, why=OVERLAP),
    _m("window_not_moved", "the window of x is not moved down",
       ("r_x[r][s] = r_x[r + kStride][s];", "r_x[r][s] = r_x[r][s];")),
    _m("window_too_low", "the first window of a strip is one row too low",
       ("(strip.first - 1) * kStride", "strip.first * kStride")),
    _m("multiplier_ignored", "filter k reads channel k % C", ("k / (conv.K / conv.C)", "k % conv.C", 2)),
    _m("lanes_dropped", "half of a warp's sums are not added", ("distance = 16", "distance = 8")),
    _m("strip_past_the_end", "the last strip goes on below the image",
       ("min_of(first + kStrip, conv.P)", "first + kStrip"), at=("dy_column[", "x_column["), sim=FAULT),
)  # fmt: skip

_ON_TENSOR_CORES = ("mbarrier_", "wgmma_")
TENSOR_DATA = _of(
    "20_data_gradient_wgmma",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ON_TENSOR_CORES, "bulk_load(", "b.s_where["), **_SHARED),
    _m("not_turned", "the rows of the filter are not turned",
       ("rows.tap + (part.R - 1 - i_r) * rows.tap_step;         // turned",
        "rows.tap + i_r * rows.tap_step;")),
    _m("padding_of_rows", "the columns of a phase begin where its rows do",
       ("(columns.taps - 1) * columns.step - columns.base", "(rows.taps - 1) * rows.step - rows.base")),
    _m("channels_exchanged", "the filter is packed as if C and K were not exchanged",
       ("(((group * K_group + k) * C_group + c) * conv.R + r)",
        "(((group * C_group + c) * K_group + k) * conv.R + r)")),
    _m("row_shared", "both consumers store their part of the only row to its first columns",
       ("tiling.rows == 1 ? consumer * positions : 0;", "0;"), inline="wgmma_store.cuh", sim=FAULT,
       cuda=WRONG, at=("bulk_store(to", "to[i] = from[i]", "to[tail + i]")),
    _m("row_not_shared", "with one row, the second consumer multiplies what the first one does",
       ("t.rows == 2 ? t.pitch : positions;", "t.rows == 2 ? t.pitch : 0;"), inline="wgmma_tile.cuh"),
)  # fmt: skip

ROWS_DATA = _of(
    "20b_data_gradient_rows",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=_ON_TENSOR_CORES, **_BEFORE_ROLES),
    _m("padding_kept", "dx begins where the forward pass pads, not where the turned one does",
       ("walk.up = kR - 1 - conv.pad_h;", "walk.up = conv.pad_h;")),
    _m("columns_kept", "the same for the columns",
       ("walk.left = (conv.S - 1) * conv.dilation_w - conv.pad_w;", "walk.left = conv.pad_w;")),
    _m("groups_read_on", "a thread of the second group of loaders begins behind the first group's pixels",
       ("(threadIdx.x - kConsumers) % kLoaders, lane", "(threadIdx.x - kConsumers), lane"), sim=FAULT,
       cuda=WRONG, at=_ON_TENSOR_CORES),
    _m("turn_of_both", "both groups of loaders fill every stage",
       ("const bool mine = turn == loader_group;", "const bool mine = true;"), sim=FAULT, cuda=None,
       why=OVERLAP, at=("s_to[", "mbarrier_", "wgmma_")),
    _m("sums_not_moved", "the sums of a row are not moved up when the row above is complete",
       ("j + kRowSums < kSums ? r_rows[j + kRowSums] : 0.0f;", "j < kRowSums ? r_rows[j] : 0.0f;")),
)  # fmt: skip

ROWS_PARTS = _of(
    "20f_data_gradient_rows_3xtf32",
    _m("low_dropped", "the low part of dy is not multiplied",
       ("wgmma_n(r_acc[tile], wgmma_moved(dy_tile, 2 * walk.pitch), w_tap, true);", ""),
       inline="20b_data_gradient_rows.cu"),
    _m("sums_dropped", "the sums of all periods but the last are dropped",
       ("r_sum[tile][j] += r_acc[tile][j];", "r_sum[tile][j] = r_acc[tile][j];"),
       inline="20b_data_gradient_rows.cu"),
)  # fmt: skip

ROWS_HALF = _of(
    "20g_data_gradient_rows_bf16",
    _m("halves_swapped", "the two filters of a word are exchanged",
       ("uint32_t(dy[k].bits) | uint32_t(dy[k + 1].bits) << 16",
        "uint32_t(dy[k + 1].bits) | uint32_t(dy[k].bits) << 16"), inline="20b_data_gradient_rows.cu"),
    _m("chunks_of_eight", "a chunk is taken for 8 filters, as in TF32",
       ("int(rest % chunks) * kChunk + quad", "int(rest % chunks) * 8 + quad"),
       inline="20b_data_gradient_rows.cu"),
)  # fmt: skip

STRIDES_DATA = _of(
    "20e_data_gradient_strides",
    _m("no_barrier_table", "the table of taps is written while other threads still set it up",
       ("    find_pixels(part, tiling, b);\n    __syncthreads();\n", "    find_pixels(part, tiling, b);\n"),
       at=(*_ON_TENSOR_CORES, "b.s_tap[sorted", "s_tap[tap]", "s_dy[pixel] =", "s_dy[quad + pixel] ="),
       **_BEFORE_ROLES),
    _m("no_barrier_taps", "warps read the table of taps before it is written",
       ("    __syncthreads();\n    if (b.warp == 11) {", "    if (b.warp == 11) {"),
       at=(*_ON_TENSOR_CORES, "s_tap[tap]", "(row.at + part.pad_h)"), **_BEFORE_ROLES),
    _m("remainder_negative", "the remainder of a negative number is taken for a phase",
       ("int((from % stride + stride) % stride)", "int(from % stride)"), sim=FAULT, cuda=None,
       why="a GPU shows it only if the address is not mapped", at=("g_packed[to", "(row.at + part.pad_h)",
       "dx_first[", "s_dx[c *")),
    _m("not_sorted", "the taps of a phase of columns begin as if one row had all of them",
       ("phases.row_taps[row.phase] * phases.column_before", "phases.column_before"), sim=FAULT,
       cuda=WRONG, at=("g_packed[to", "(row.at + part.pad_h)")),
    _m("neighbours_in_one_phase", "all phases of a row are stored to the columns of the first",
       ("* phases + along % phases;", "* phases;"), sim=FAULT, cuda=WRONG, at=("dx_first[", "s_dx[c *")),
    _m("rows_without_taps", "rows of dx that no tap reaches are not stored",
       ("        store_rows<phases>(conv,", "        if (chunks > 0) store_rows<phases>(conv,")),
    _m("stage_freed_early", "a stage is freed after its first group of products",
       ("release(begins);", "release(true);"), sim=FAULT, cuda=None, why=OVERLAP,
       at=("s_dy[pixel] =", "s_dy[quad + pixel] =", "mbarrier_", "wgmma_")),
    _m("rows_of_all", "the last rows of a phase are stored below the image",
       ("p < part.P && h < conv.H &&", "p < part.P &&"), sim=FAULT, at=("dx_first[",)),
)  # fmt: skip

GATHERED_DATA = _of(
    "20h_data_gradient_gather",
    _m("not_turned", "with stride 1, the filter is not turned", ("taps - 1 - step;", "step;")),
    _m("taps_exchanged", "the taps of a phase take rows of the filter for columns",
       ("3 * (phase / 2 ? 2 - shift / 2 * 2 : 1) + (phase % 2 ? 2 - shift % 2 * 2 : 1)",
        "(phase / 2 ? 2 - shift / 2 * 2 : 1) + 3 * (phase % 2 ? 2 - shift % 2 * 2 : 1)")),
    _m("shift_backwards", "an odd row of dx meets the row of dy above instead of below",
       ("phase / 2 ? 2 - shift / 2 * 2 : 1", "phase / 2 ? shift / 2 * 2 : 1")),
    _m("columns_in_turn", "the left phases of two pixels are stored before their right phases",
       ("make_float4(r_row[0], r_row[1], r_row[2], r_row[3])",
        "make_float4(r_row[0], r_row[2], r_row[1], r_row[3])")),
    _m("group_dropped", "every group is multiplied with the first one's filter",
       ("(int64_t(group) * K_group + k) * C_group", "int64_t(k) * C_group")),
)  # fmt: skip

TURNED_PARTS = _of(
    "20c_data_gradient_3xtf32",
    _m("not_turned", "the filter is not turned", ("taps - 1 - tap]", "tap]"), inline="turned.cuh"),
    _m("padding_kept", "the padding is that of the forward pass",
       ("other.pad_w = conv.dilation_w * (conv.S - 1) - conv.pad_w;", ""), inline="turned.cuh"),
    _m("groups_ignored", "each group's filter is read from the first filters",
       ("int64_t(c / C_group) * K_group + k", "int64_t(k)"), inline="turned.cuh"),
)  # fmt: skip

TURNED_HALF = _of(
    "20d_data_gradient_bf16",
    _m("channel_of_all", "the channel is not counted within its group",
       ("* C_group + c % C_group) * taps", "* C_group + c) * taps"), inline="turned.cuh", sim=FAULT,
       cuda=WRONG, at=("g_turned[i] =",)),
)  # fmt: skip

TENSOR_WEIGHT = _of(
    "21_weight_gradient_wgmma",
    _m("no_barrier_roles", "warps use the mbarriers before they are initialised", _NO_BARRIER,
       at=(*_ON_TENSOR_CORES, "(b.s_stages)[i] = {}"), **_BEFORE_ROLES),
    _m("splits_dropped", "the first part of the pixels is taken for all",
       ("block <= last_block;", "block <= first_block;")),
    _m("padding_dropped", "rows of x are staged as if there were no padding",
       ("const int h0 = tile.p * conv.stride_h - conv.pad_h;", "const int h0 = tile.p * conv.stride_h;")),
    _m("stages_overwritten", "a consumer does not free the stage that it has read",
       ("        if (lane == 0) mbarrier_arrive(&b.empty[stage]);\n", ""), sim=FAULT, cuda=FAULT,
       at=("mbarrier_wait(",)),
    _m("no_barrier_sharers", "a thread adds up the others' sums before they are there",
       ("    __syncthreads();   // all sharers have added their items\n", ""), sim=FAULT, cuda=None,
       why=OVERLAP, at=("s_sums[",)),
    _m("sharers_dropped", "of the threads that add up an element, only the first one's sum counts",
       ("other < sharers; ++other", "other < 1; ++other")),
    _m("units_overlap", "two items' sums are kept in the same place",
       ("(int64_t(unit) + block) * filters", "int64_t(block) * filters")),
)  # fmt: skip

HALF_WEIGHT = _of(
    "21b_weight_gradient_bf16",
    _m("splits_dropped", "the first part of the pixels is taken for all",
       ("block <= last_block;", "block <= first_block;"), inline="21_weight_gradient_wgmma.cu"),
)  # fmt: skip

PARTS_WEIGHT = _of(
    "21c_weight_gradient_3xtf32",
    _m("low_dropped", "the low part of x is the high part once more",
       ("low = whole || valid > 0 ? __float_as_uint(both.low) : 0;",
        "low = whole || valid > 0 ? __float_as_uint(both.high) : 0;"),
       inline="21_weight_gradient_wgmma.cu"),
)  # fmt: skip

GRADIENTS = (
    *DATA, *DATA_GEMM, *DEPTHWISE_DATA, *WEIGHT, *WEIGHT_GEMM, *DEPTHWISE_WEIGHT,
    *TENSOR_DATA, *ROWS_DATA, *ROWS_PARTS, *ROWS_HALF, *STRIDES_DATA, *GATHERED_DATA, *TURNED_PARTS, *TURNED_HALF, *TENSOR_WEIGHT, *HALF_WEIGHT, *PARTS_WEIGHT,
)  # fmt: skip

MUTANTS = (
    *DIRECT, *CHANNELS, *INPUT, *GEMM, *CUBLAS, *BATCHED, *TILE, *IMPLICIT, *ASYNC, *DEPTHWISE,
    *DEPTHWISE_BF16, *SMALL, *WINOGRAD, *WINOGRAD_4X4, *POINTWISE, *POINTWISE_TF32, *MMA, *WGMMA, *ROWS, *ROWS_BF16, *VECTOR, *PARTS, *STEM,
    *STEM_PARTS, *HALF, *FP16, *LAST, *GATHER, *GATHER_BF16, *GRADIENTS,
)  # fmt: skip
