"""A mistake in the first rung, as the checker reports it: on the simulator, and on a GPU."""

from __future__ import annotations

import re

import pytest

import convlab
from convlab.core.correctness.check import check
from convlab.core.correctness.report import Reports
from convlab.core.errors import (
    BuildError,
)
from convlab.isolate import rehearsal
from tests.fakes import FULL, PLAIN
from tests.spoilt import LAST, made


def test_warnings_are_in_the_report_of_a_right_kernel():
    report = check(made("late", after="__syncthreads();"), PLAIN)
    (found,) = report.findings
    assert report.ok and report.to_dict()["verdict"] == "correct" and not found.error
    assert (found.kind, found.block, report.failures) == ("barrier after exit", (2, 0, 0), ())
    words = "warning: barrier after exit: .* returned before this barrier,"
    line = rf"(?s)\n  {words}\s+late.cu:{found.line}\b"
    assert re.search(line, str(report)) and re.search(line, str(Reports("late", (report,))))


def test_kernel_that_does_not_build_is_the_callers_to_hear_of():
    with pytest.raises(BuildError, match="did not compile"):
        check(made("broken", after="no semicolon"), PLAIN)


def test_build_that_passes_all_is_known_to_be_good_until_it_is_edited(few, tmp_path):
    path = tmp_path / "92_edited.cu"
    path.write_text(made("correct").source + f"// {tmp_path}")  # a build of its own
    kernel = convlab.load(path, engine="sim")
    assert check(kernel, PLAIN).ok and not rehearsal.is_good(kernel.build())
    assert check(kernel, count=1, progress=False).ok and rehearsal.is_good(kernel.build())
    path.write_text(path.read_text() + " edited")
    assert not rehearsal.is_good(kernel.build())


FILTERS = "conv.K * conv.C / conv.groups * conv.R * conv.S"
ON_GPU = {
    "past_y": (
        f"if (!i) g_y[{LAST}] = 0;",
        "outside of y: 1 element changed, 1 element past its end",
    ),
    "before_y": (
        "if (!i) g_y[-2] = 0;",
        "outside of y: 1 element changed, 2 elements before its start",
    ),
    "before_x": ("if (!i) ((float*)g_x)[-1] = 0;", "outside of x: 1 element"),
    "past_w": (
        f"if (!i) ((float*)g_w)[{FILTERS}] = 0;",
        "outside of w: 1 element changed, 1 element past its end",
    ),
    "past_bias": ("if (!i) ((float*)g_bias)[conv.K] = 0;", "outside of bias: 1 element"),
    "writes_x": ("if (!i) ((float*)g_x)[0] = 0;", "wrote to its input: 1 element of x"),
    "sums_workspace": ("if (!i) g_y[i] += g_x[-1];", "got nan"),
    "past_workspace": (
        {"before": "cudaMemsetAsync((char*)workspace + 99, 0, 2, stream);"},
        "outside of workspace: 1 byte changed, 1 byte past its end",
    ),
    "wrong_stream": ({"stream": "0"}, "launches work on another stream than `stream`"),
    "unwritten": ({"missing": 5}, "never written: all 5 incorrect outputs"),
    "correct": ({}, ""),
    # The simulator beside the GPU reports it.
    "reads_outside_and_drops_it": (
        "if (!i && g_x[-1] == 7) g_y[i] = 0;",
        "size of that array before the access",
    ),
    "synchronises": ({"before": "cudaStreamSynchronize(stream);"}, ""),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("how", "text"), ON_GPU.values(), ids=ON_GPU)
def test_planted_mistake_is_caught_on_a_gpu(how, text):
    how = how if isinstance(how, dict) else {"after": how}
    report = check(made("planted", engine="cuda", **how), FULL)
    assert report.ok == (not text) and text in " ".join(str(report).split()), report


@pytest.mark.gpu
def test_race_is_suspected_on_a_gpu():
    """Each run writes another number to one output: what differs is 1e-7 of it."""
    text = "if (!i) g_y[i] = r_acc * (1 + 1e-6f * (clock64() % 7));"
    kernel = made("race", engine="cuda", after=text)
    reports = [check(kernel, FULL) for _ in range(4)]
    assert any("other bits in a second run" in " ".join(str(report).split()) for report in reports)


@pytest.mark.gpu
@pytest.mark.parametrize("long", [1 << 14, 1 << 22], ids=["microseconds", "longer_than_the_sleep"])
def test_wrong_stream_is_caught_however_long_the_kernel_takes(long):
    after = f"for (long long t = clock64(); clock64() - t < {long};);"
    report = check(made("slow", engine="cuda", after=after, stream="0"), FULL)
    assert not report.ok, report
