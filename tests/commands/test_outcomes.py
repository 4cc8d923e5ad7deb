"""Each outcome of a check, as the command line is typed: its exit status, its sentence, its JSON."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from convlab.__main__ import main
from convlab.commands.cli import build_parser
from convlab.commands.exit_status import STATUSES
from convlab.core.faults import SHOWN, heaviest, outcome
from convlab.core.machine import toolchain
from convlab.sim import simulation
from tests.schema import SCHEMA, VALIDATOR
from tests.suites import FOLDER

pytestmark = pytest.mark.xdist_group("outcomes")
REPOSITORY = Path(__file__).parents[2]
TEXT = (FOLDER / "apart.cu").read_text()
SPEC = "N1 C1 H9 W8 K1 R1 S1"
PARTS = {
    "correct": {},
    "incorrect": {"KERNEL": "if (i < n) y[i] = 8; return;"},
    # Each launch is an image of a batch that is too large.
    "slow": {"HOST": "for (int k = 0; k < 20000000; ++k) fill<<<1, 32, 0, stream>>>(x, w, y, 1);"},
    "endless": {"KERNEL": "while (w[0] != 1e30f) { }"},
    "deadlock": {
        "STATIC": '#include "tensor.cuh"',
        "KERNEL": "__shared__ uint64_t bar; if (!threadIdx.x) mbarrier_init(&bar, 1);"
        " __syncthreads(); mbarrier_wait(&bar, 0);",
    },
    "missing": {"STATIC": "#include <cudnn.h>"},
    "unsupported": {"FIRST": "// supports: R == 7\n"},
    "empty": {"HOST": 'return "";'},
    "lines": {"HOST": 'return "the first line\\nthe second\\n  and the third";'},
    "long": {
        "HOST": "static std::string text;"
        ' for (int k = 0; k < 60000; ++k) text += "this line is one of very many lines of text\\n";'
        " return text.c_str();"
    },
    "throws": {"HOST": 'throw std::runtime_error("one\\ntwo");'},
}


def source(name: str) -> str:
    text = TEXT.replace("float* y, int n)", "const float* x, const float* w, float* y, int n)")
    text = text.replace("const float*, const float* w", "const float* x, const float* w")
    text = text.replace("(y, n);", "(x, w, y, n);").replace("y[i] = 7", "y[i] = x[i] * w[0]")
    for word in ("STATIC", "KERNEL", "HOST"):
        text = text.replace(word, PARTS[name].get(word, ""))
    text = text.replace("#include <cstdio>", "#include <cstdio>\n#include <string>")
    return PARTS[name].get("FIRST", "") + text


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in PARTS:
        (tmp_path / f"{name}.cu").write_text(source(name))
    return tmp_path


@pytest.fixture
def typed(files, capfd):
    """Run a command as it is typed; return its status, the text, and the JSON document."""

    def run(words: str, *more: str) -> tuple[int, str, dict]:
        command = [*words.split(), *more]
        capfd.readouterr()
        status = main(command)
        shown = "\n".join(capfd.readouterr())
        assert main([*command, "--json"]) == status
        document = json.loads(capfd.readouterr().out)
        VALIDATOR.validate(document)
        return status, " ".join(shown.split()), document

    return run


ONE = {
    "correct": (0, "correct", "correct on N1"),
    "incorrect": (1, "incorrect", ""),
    "endless": (1, "failed", "It made no progress: it has an endless loop"),
    "deadlock": (1, "failed", "deadlock"),
    "unsupported": (3, "unsupported", "does not support"),
    "missing": (4, "not simulated", "cudnn.h"),
    "slow": (5, "out of time", "It made progress, but too slowly"),
}
EXPECTED = {
    "correct": "correct on N1 C1 H9 W8 K1 R1 S1 s1 p0 d1 g1: correct",
    "incorrect": "incorrect on N1 C1 H9 W8 K1 R1 S1 s1 p0 d1 g1: INCORRECT",
    "endless": "endless on N1 C1 H9 W8 K1 R1 S1 s1 p0 d1 g1: INCORRECT",
    "deadlock": "deadlock on N1 C1 H9 W8 K1 R1 S1 s1 p0 d1 g1: INCORRECT",
    "unsupported": "R == 7",
    "missing": "use a GPU",
    "slow": "slow on N1 C1 H9 W8 K1 R1 S1 s1 p0 d1 g1: out of time",
}


@pytest.mark.parametrize("name", ONE)
def test_one_problem(typed, name):
    status, verdict, part = ONE[name]
    done, text, document = typed(f"check {name}.cu --engine sim --time-limit 2 --problem", SPEC)
    assert done == status, text
    (report,) = document["reports"]
    assert report["verdict"] == verdict and report["ok"] is (status == 0)
    if status:
        assert part in text
        assert report["findings"][0]["try"]
    assert EXPECTED[name] in text


def test_the_text_of_a_slow_kernel_says_how_far_it_got_and_what_to_do(typed):
    _, text, document = typed("check slow.cu --engine sim --time-limit 1.5 --problem", SPEC)
    assert "did not finish within 1.5 s on the simulator" in text
    assert "in launch " in text or " launches" in text
    for advice in ("smaller problem", "GPU", "--time-limit SECONDS"):
        assert advice in text
    assert document["reports"][0]["fault"] == "out of time" and "reproduce" not in text


def test_a_set_counts_the_outcomes_and_the_worst_decides(typed):
    done, text, _ = typed("check correct.cu unsupported.cu missing.cu --engine sim --problem", SPEC)
    assert done == 4
    assert "1 of 3 kernels correct; not supported by the simulator: missing; 1 of 3" in text
    words = "check correct.cu slow.cu missing.cu incorrect.cu --engine sim --time-limit 1 --problem"
    done, text, _ = typed(words, SPEC)
    assert done == 1
    assert "not correct: incorrect; out of time: slow; not supported by the simulator: mis" in text


def test_a_set_of_problems_that_are_out_of_time_is_not_incorrect(files):
    import convlab

    kernel = convlab.load("slow.cu", engine="sim", time_limit=1)
    found = convlab.check(kernel, [SPEC, "N1 C1 H3 W3 K1 R1 S1"], progress=False)
    assert not found.ok and found.outcome == "out of time" and not found.wrong
    assert found.sentence == "slow: out of time on 2 of 2 problems"
    assert found.smallest is None and str(found).count("out of time on ") == 2
    document = json.loads(json.dumps(found.to_dict()))
    VALIDATOR.validate({"ok": False, "reports": [document]})
    assert document["verdict"] == "out of time" and document["smallest"] is None
    assert {row["outcome"] for row in document["rows"]} == {"out of time"}


def test_each_failure_is_shown_as_soon_as_it_is_known(typed, files, capfd):
    words = ["check", "incorrect.cu", "--engine", "sim", "--problem", "headline"]
    assert main(words) == 1
    done = capfd.readouterr()
    shown = [line for line in done.err.splitlines() if "INCORRECT" in line]
    assert len(shown) == 3 and shown[0].startswith("incorrect on square")
    assert "INCORRECT on 3 of 3 problems" in done.out
    assert main([*words, "--json"]) == 1 and "INCORRECT" not in capfd.readouterr().err


def test_options_that_would_do_nothing_are_refused(typed):
    done, text, _ = typed("check correct.cu --engine sim --no-simulate --problem", SPEC)
    assert done == 2 and "--no-simulate is for a check on a GPU" in text
    done, text, _ = typed("check torch:im2col --time-limit 3 --problem", SPEC)
    assert done == 2 and "--time-limit is for kernels" in text
    done, text, _ = typed("check correct.cu --engine sim --time-limit -3 --problem", SPEC)
    assert done == 2 and "time_limit" in text


ERRORS = {
    "empty": 'conv2d returned "", an error without a text: return nullptr',
    "lines": "lines failed: the first line the second and the third",
    "long": "full text (2,640,000 characters, 60,001 lines): ",
    "throws": "not caught: one two",
}


@pytest.mark.parametrize("name", ERRORS)
def test_nothing_of_an_error_text_is_lost(typed, name):
    done, text, document = typed(f"check {name}.cu --engine sim --problem", SPEC)
    assert done == 1 and document["reports"][0]["verdict"] == "failed"
    assert ERRORS[name] in text
    if name == "long":
        assert text.count("this line is one of very many") == 14
        (path,) = {Path(word) for word in text.split() if word.endswith(".log")}
        assert path.parent == toolchain.cache_dir() / "logs"
        assert len(path.read_text()) == 2_640_000
        failures = document["reports"][0]["failures"]
        assert len(failures) < 20


# ---- a child that cannot start is no verdict ------------------------------------------------------


def limited(files: int) -> dict:
    """Options of a process that may open so few files."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))}


@pytest.mark.parametrize(("most", "statuses"), [(40, {0}), (12, {6})])
def test_few_open_files_never_make_a_correct_kernel_incorrect(files, most, statuses):
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    # Built before, so that only the run has few files.
    words = ["check", "correct.cu", "--engine", "sim", "--problem", SPEC]
    assert main(words) == 0
    done = subprocess.run(
        [sys.executable, "-m", "convlab", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **limited(most),
    )
    assert done.returncode in statuses, done.stdout + done.stderr
    assert "INCORRECT" not in done.stdout + done.stderr
    if done.returncode == 6:
        assert "could not run" in done.stdout + done.stderr
        assert "this says nothing about the kernel" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("fails", ["memfd_create", "fork"])
def test_a_process_that_cannot_fork_is_no_verdict(typed, monkeypatch, fails, tmp_path):
    host = Path(simulation.__file__).with_name("host.py").read_text()
    assert f"os.{fails}(" in host
    broken = tmp_path / "host.py"
    lines = f"def _fails(*_):\n    raise OSError(11, 'Resource temporarily unavailable')\nos.{fails} = _fails\n"
    place = Path(simulation.__file__).parents[1] / "core" / "kernel" / "abi.py"
    host = host.replace(
        'child.load(Path(__file__).parents[1] / "core" / "kernel" / "abi.py")',
        f'child.load(Path("{place}"))',
    )
    broken.write_text(host.replace("\ndef serve(", f"\n{lines}\n\ndef serve(", 1))
    from convlab.core.machine import child

    own = [child.Child(broken, options=["-I", "-S"])]
    monkeypatch.setattr(simulation, "_hosts", own)
    simulation._free_all_hosts()
    try:
        done, text, document = typed("check correct.cu --engine sim --problem", SPEC)
    finally:
        monkeypatch.undo()
        own[0].stop()
        simulation._free_all_hosts()
    assert done == 6 and document["reports"][0]["verdict"] == "not run"
    assert "could not run on the simulator" in text and "temporarily unavailable" in text
    assert "INCORRECT" not in text


def test_a_compiler_that_cannot_run_is_no_verdict(typed, monkeypatch, tmp_path):
    (tmp_path / "correct.cu").write_text(
        source("correct") + "\n// a text that is not in the cache\n"
    )
    broken = tmp_path / "g++"
    real = toolchain.require_host_compiler()
    broken.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*|*-dump*) exec {real} "$@";; esac\n'
        'echo "g++: fatal error: Killed signal terminated program cc1plus" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    done, text, document = typed("check correct.cu --engine sim --problem", SPEC)
    assert done == 6 and document["reports"][0]["verdict"] == "not run"
    assert "Killed signal" in text and "INCORRECT" not in text


# ---- the tables -----------------------------------------------------------------------------------


def test_help_lists_each_status():
    text = build_parser().epilog
    for status in STATUSES.values():
        assert f"\n  {status}: " in text
    assert "\n  2: " in text and "\n  130: " in text
    page = (REPOSITORY / "convlab" / "EVIDENCE.md").read_text()
    for status in (*STATUSES.values(), 2, 130):
        assert f"\n| {status} | " in page


def test_each_outcome_has_a_status_a_text_and_a_place_in_the_schema():
    assert set(STATUSES) == set(SHOWN) and len(set(STATUSES.values())) == len(STATUSES)
    verdicts = SCHEMA["$defs"]["outcome"]["properties"]["verdict"]["enum"]
    assert set(SHOWN) | {"failed", "does not build"} == set(verdicts)


def test_what_decides():
    assert outcome(["race", "out of time"]) == "incorrect"
    assert outcome(["memory"]) == outcome(["not run"]) == "not run"
    # Other errors follow from what the simulator does not support.
    assert outcome(["deadlock", "not simulated"]) == "not simulated"
    assert heaviest(["correct", "out of time", "not run"]) == "not run"


# ---- messages ---------------------------------------------------------------------------------------

LONG = "x" * 5000
ODD = {
    "a long name": [LONG],
    "a long path": [f"{LONG}.cu"],
    "a long tunable": [f"./correct.cu@{LONG}=3"],
    "a long problem": ["./correct.cu", "--problem", LONG],
    "a long setting": ["./correct.cu", "--problem", SPEC, "--setting", LONG],
    "a long count": ["./correct.cu", "--count", LONG],
    "a long plot": ["./correct.cu", "--problem", SPEC, "--plot", f"{LONG}.png"],
    "a surrogate": ["\udcff.cu"],
    "a line break in a name": ["a\nb"],
}


@pytest.mark.parametrize("words", ODD.values(), ids=ODD)
def test_an_odd_argument_is_invalid_and_its_message_short(files, capfd, words):
    try:
        status = main(["check", *words, "--engine", "sim"])
    except SystemExit as end:
        status = end.code
    done = capfd.readouterr()
    assert status == 2 and done.out == "" and "Traceback" not in done.err
    assert 10 < len(done.err) < 700 and "x" * 81 not in done.err


@pytest.mark.parametrize("folder", ["k at@x".encode(), "é ü".encode(), b"\xff\xfe", b"a\nb"])
def test_a_folder_may_have_any_name(tmp_path, monkeypatch, capfd, folder):
    place = os.path.join(os.fsencode(tmp_path), folder)
    os.mkdir(place)
    with open(os.path.join(place, b"k at@x.cu"), "w") as file:
        file.write(source("correct"))
    monkeypatch.chdir(os.fsdecode(place))
    status = main(["check", "./k at@x.cu", "--engine", "sim", "--problem", SPEC])
    done = capfd.readouterr()
    assert status == 0, done.err
    assert "k at@x on N1" in done.out
    Path("wrong.cu").write_text(source("throws"))
    assert main(["check", "./wrong.cu", "--engine", "sim", "--problem", SPEC]) == 1
    # The line of the source is found in any folder.
    assert 'throw std::runtime_error("one' in capfd.readouterr().out
