"""The command line, as a user types it: its output, its files, its exit status, its messages."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import convlab
from convlab.__main__ import _complain, main
from convlab.commands import doctor, lookup
from convlab.commands.cli import build_parser, look_up
from convlab.core import rooms
from convlab.core.correctness import check as checking
from convlab.core.errors import ProblemError
from convlab.core.kernel.catalog import KERNEL_DIR, catalog
from convlab.core.kernel.tunables import tunables
from convlab.core.machine.gpus import GPUS
from convlab.core.problem.named import PROBLEM_SETS
from convlab.core.problem.named import problem as named_problem
from convlab.core.timing.selection import first_kernels
from convlab.strict import settings
from tests.instruments import links
from tests.schema import VALIDATOR
from tests.strangers import PARTS, PLAIN, SOURCE, STATEFUL, UNUSUAL
from tests.suites import FOLDER

REPOSITORY = Path(__file__).parents[2]
SMALL = "N=2,C=4,H=9,W=11,K=6,R=3,S=2,stride=2x1,padding=1,bias=1"
COMMANDS = ["list", "check", "compare", "diff", "cache", "doctor"]
WRONG = (FOLDER / "ones.cu").read_text()


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        """Standard output as one JSON document without NaN and infinities."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} in the JSON document")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def process(tmp_path, monkeypatch) -> Callable[..., Done]:
    """Run ``python -m convlab`` in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    def run(*words: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "convlab", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def run(tmp_path, monkeypatch, capfd) -> Callable[..., Done]:
    """As `process`, on the simulator, and without the seconds that importing torch takes."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        if words and words[0] in ("check", "compare") and "--engine" not in words:
            words += ("--engine", "sim")
        capfd.readouterr()
        try:
            status = main(list(words))
        except SystemExit as end:
            status = end.code
        return Done(status, *capfd.readouterr())

    return run


@pytest.fixture
def kernels(tmp_path) -> dict[str, Path]:
    """Files of a user's own: wrong, not compiling, crashing."""
    texts = {
        "ones": WRONG,
        "broken": WRONG.replace("y[i] = 1", "y[i] = undeclared"),
        "crash": WRONG.replace("y[i] = 1", "y[i - 1] = 1"),
        "refuses": WRONG.replace("// title", "// supports: R == 7\n// title"),
        "no_entry": "__global__ void k() {}\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.cu").write_text(text)
    return {name: tmp_path / f"{name}.cu" for name in texts}


# --- what is right -------------------------------------------------------------------------------


def test_list(run, tmp_path, monkeypatch):
    shipped = catalog()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.cu").write_text(WRONG)
    monkeypatch.setenv("CONVLAB_KERNELS", str(tmp_path / "own"))
    (tmp_path / "own" / "unread.cu").write_text("// supports: N ==\n")
    done = run("list")
    assert re.search("unread .*unread.cu:1: supports", done.out)
    (tmp_path / "own" / "unread.cu").unlink()
    done = run("list")
    lines = done.out.splitlines()
    assert done.status == 0 and all(path.stem in done.out for path in shipped)
    assert f"kernels of {shipped[0].parent}:" in lines  # and where they are from
    assert lines[0] == f"{len(shipped) + 1} kernels, {len(PROBLEM_SETS)} sets of problems"
    assert lines[lines.index(f"kernels of {tmp_path / 'own'}:") + 1].split()[0] == "mine"
    assert max(map(len, done.out[done.out.index("problems:") :].splitlines())) <= 100
    document = run("list", "--json").document
    tunables = {row["kernel"]: row["tunables"] for row in document["kernels"]}
    assert tunables.keys() == {"mine", *(path.stem for path in shipped)}
    assert tunables["01_direct"] == {"THREADS": "256"}
    assert list(document["problems"]) == list(PROBLEM_SETS)


def test_doctor(run):
    done = run("doctor", "--json")
    rows = {row["what"]: row for row in done.document["rows"]}
    assert done.status == (0 if done.document["ok"] else 1)
    assert {"GPU", "nvcc", "C++ compiler", "torch", "build cache", "simulator"} <= rows.keys()
    assert rows["C++ compiler"]["ok"] and rows["torch"]["ok"]
    for row in rows.values():
        assert row["ok"] or row["advice"], f"no advice on {row['what']}"


def test_doctor_tells_that_builds_cannot_be_kept(monkeypatch):
    monkeypatch.setattr("convlab.core.machine.toolchain.lasting", lambda: False)
    row = doctor._build_cache()
    assert row.ok is False and "CONVLAB_CACHE" in row.advice


def test_doctor_without_the_simulator(monkeypatch):
    monkeypatch.setattr(rooms, "rooms", lambda: {"commands": {}})
    row = doctor._simulator()
    assert (row.found, row.ok) == ("not installed", None) and "convlab/sim" in row.advice
    assert doctor._cpp_compiler().ok is not False


def test_doctor_tells_what_is_missing_from_what_is_wrong(run, monkeypatch):
    rows = [
        {"what": "nvcc", "found": found, "ok": False, "advice": "line\nline"}
        for found in ("none", "13.0")
    ]
    monkeypatch.setattr(doctor, "examine", lambda: rows)
    told = run("doctor").out.splitlines()
    assert told[0] == "missing or incorrect: nvcc, nvcc"
    assert [line.split()[1:2] for line in told[1:]] == [["MISSING"], [], [], ["INCORRECT"], [], []]
    assert all(line.startswith(" " * 22 + " line") for line in told[2:4] + told[5:])


def test_check_by_name_number_and_path_with_tunables(run, tmp_path):
    copied = tmp_path / "mine.cu"
    copied.write_text((REPOSITORY / "kernels" / "01_direct.cu").read_text())
    done = run("check", "01_direct@THREADS=64", "03", "--problem", SMALL, "./mine.cu")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    for name in ("01_direct@THREADS=64", "03_smem_tile", "mine"):
        assert any(line.startswith(f"{name} on N2 C4") and "correct" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "kernels"),
    [
        ("check 01 --seed 3 --problem {} 03", ["01", "03"]),
        ("compare --problem {} 01 --engine sim 03", ["01", "03"]),
        ("inspect --problem {} --gpu H100 01", ["01"]),
        ("ab 01 --seed 3 03 --problem {}", ["01", "03"]),
        ("ab --problem {} 01 --save --seed 3 03", ["01", "03"]),
        ("sweep 01 --engine sim THREADS=64 --problem {}", ["01"]),
        ("sweep --problem {} 01 THREADS=64", ["01"]),
    ],
)
def test_kernels_may_follow_options(words, kernels):
    arguments = look_up(build_parser().parse_args(words.format(SMALL).split()))
    assert arguments.problem == SMALL and arguments.kernels == kernels
    assert arguments.command.name != "sweep" or arguments.tunables == {"THREADS": [64]}


PROBLEMS = ("square", "headline relu", "awkward.primes", "N1 C3 H8 W8 K4 R3 S3 s1 p0x1 bias")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("words", ["check 01", "compare", "ab 01 03", "inspect", "sweep 01 TILE=8"])
def test_a_problem_among_the_kernels_is_refused_with_the_option_to_write(words, problem):
    arguments = build_parser().parse_args([*words.split(), *problem.split()])
    with pytest.raises(ProblemError) as caught:
        look_up(arguments)
    assert str(caught.value) == (f"{problem} is a problem: write --problem {shlex.quote(problem)}")
    words = shlex.split(str(caught.value).partition(": write ")[2])
    assert look_up(build_parser().parse_args(["check", "01", *words])).problem == problem


def test_a_long_problem_among_the_kernels_is_not_repeated():
    with pytest.raises(ProblemError, match=r"^N=2,C=4.{30,33}… is a problem: write --problem be"):
        look_up(build_parser().parse_args(["check", "01", SMALL]))


def test_a_kernel_may_have_a_problems_name(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "wide.cu").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    arguments = look_up(build_parser().parse_args(["check", "wide", "--problem", "wide"]))
    assert (arguments.kernels, arguments.problem) == (["wide"], "wide")


def test_what_is_saved_needs_no_file():
    for words in ("compare 01 --problem wide --save", "compare 01 --save --problem wide"):
        assert look_up(build_parser().parse_args(words.split())).save == ""
    assert build_parser().parse_args(["ab", "--save", "a.json", "01"]).save == "a.json"


def test_dimensions_are_read_in_both_forms():
    for spec in (
        "N1 C3 H8 W8 K4 R3 S3 s1 p0x1 bias",
        "N=1, C=3, H=8, W=8, K=4, R=3, S=3, relu=1",
        "wide bias relu",
        "headline relu",
    ):
        arguments = build_parser().parse_args(["ab", "01", "03", "--problem", spec, "--seed", "3"])
        assert look_up(arguments).problem == spec


@pytest.mark.parametrize(
    ("room", "command"), [("profile", "inspect"), ("tuning", "sweep"), ("receipts", "history")]
)
def test_a_deleted_rooms_command_is_not_offered(monkeypatch, capsys, room, command):
    left = {name: about for name, about in rooms.rooms().items() if name != room}
    monkeypatch.setattr(rooms, "rooms", lambda: left)
    assert command not in build_parser().commands and command not in build_parser().format_help()
    with pytest.raises(SystemExit) as caught:
        main([command])
    assert caught.value.code == 2
    assert (
        f"the command {command} is in convlab/{room}, which was deleted" in capsys.readouterr().err
    )


def test_without_the_commands_that_is_said(tmp_path):
    (tmp_path / "convlab").mkdir()
    for entry in Path(convlab.__file__).parent.iterdir():
        if entry.name != "commands":
            (tmp_path / "convlab" / entry.name).symlink_to(entry)
    command = [sys.executable, "-m", "convlab", "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "convlab: the commands are in convlab/commands, which was deleted\n"


def test_a_rung_that_is_an_include_has_its_tunables_and_its_own_lines(run):
    kernel = convlab.load("09b@WARPS=2", engine="sim")
    assert kernel.defines == {"WARPS": 2} and "TERMS" not in tunables(kernel.file.whole)
    own = len(kernel.source.splitlines()) - 1
    assert run("diff", "09b").out.startswith(f"{own} of ")


def test_check_of_a_problem_by_name_and_of_a_set(run):
    done = run("check", "01_direct", "--problem", "awkward.image_1", "--json")
    assert done.status == 0 and done.document["ok"] is True
    (report,) = done.document["reports"]
    assert report["correct"] is True and 0 < report["error"] <= report["bound"]
    done = run("check", "01_direct", "--problem", "awkward.bias")
    assert done.status == 0 and "awkward.bias" in done.out
    done = run("check", "01_direct", "--problem", "awkward")
    assert done.status == 0 and re.match(r"01_direct: correct on (\d+) of \1 problems", done.out)


def test_compare_writes_the_png_that_it_names(run, tmp_path):
    words = ("compare", "01", "02b", "--problem", SMALL)
    done = run(*words, "--plot", "figure.png")
    assert done.status == 0, done.err
    path = Path(re.search(r"^plot: (.*)$", done.out, re.M)[1])
    assert path == tmp_path / "figure.png" and path.read_bytes().startswith(b"\x89PNG\r\n")
    for word in ("01_direct", "02b_im2col_cublas", "correct", "not a time"):
        assert word in done.out
    assert " ms" not in done.out  # a simulated time is never a GPU's
    path.unlink()
    document = run(*words, "--json").document
    assert "plot" not in document and not path.exists()  # only where asked
    assert [row["kernel"] for row in document["rows"]] == ["01_direct", "02b_im2col_cublas"]
    assert all(row["correct"] is True for row in document["rows"])
    document = run(*words, "--json", "--plot", "one.png").document
    assert Path(document["plot"]) == tmp_path / "one.png" and Path(document["plot"]).exists()


def test_results_come_before_the_picture(run, monkeypatch):
    """A disk that is full when the picture is drawn takes nothing of the results."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "one.png")

    monkeypatch.setattr("convlab.core.show.plot.Chart.save", full)
    words = ("compare", "01_direct", "--problem", SMALL, "--plot", "one.png")
    done = run(*words)
    assert done.status == 2 and "one.png: No space left on device; correct" in done.err
    assert "01_direct" in done.out and "correct" in done.out
    document = run(*words, "--json").document
    assert document["ok"] is True and "No space left" in document["error"]


def test_several_kernels_are_drawn_each_to_a_file(run, tmp_path):
    done = run("check", "01_direct", "03_smem_tile", "--problem", SMALL, "--plot", "a.png")
    assert done.status == 0
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {"a-01_direct.png", "a-03_smem_tile.png"}


def test_cache_is_shown_and_cleared(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "builds"))
    assert run("cache", "--json").document["builds"] == 0
    # a build that no other test has asked this process for
    assert run("check", "01_direct@THREADS=96", "--problem", SMALL).status == 0
    document = run("cache", "--json").document
    assert document["builds"] >= 1 and document["bytes"] > 10_000
    assert str(tmp_path / "builds") in document["folder"] and "MB" in run("cache").out
    assert run("cache", "clear", "--json").document["removed"] == document["bytes"]
    assert run("cache", "--json").document["builds"] == 0


def test_diff_shows_what_a_kernel_changes_of_its_parent(run, kernels, tmp_path):
    child = WRONG.replace("title: All ones", "title: All twos\n// parent: 01_direct")
    (tmp_path / "twos.cu").write_text(child.replace("y[i] = 1", "y[i] = 2"))
    done = run("diff", "ones.cu", "twos.cu")
    assert done.status == 0 and "--- ones\n+++ twos\n" in done.out
    assert "-    if (i < n) y[i] = 1;\n+    if (i < n) y[i] = 2;" in done.out
    # The verdict is the first line, and also the last one of a long diff.
    verdict = f"3 of {len(child.splitlines())} lines of twos are not in ones\n"
    assert done.out.startswith(verdict) and not done.out.endswith(verdict)
    long = run("diff", "01", "03").out
    assert long.startswith(long.splitlines()[-1]) and "--- 01_direct\n+++ 03_smem_tile\n" in long
    document = run("diff", "twos.cu", "--json").document
    assert (document["kernel"], document["parent"]) == ("twos", "01_direct")
    done = run("diff", "ones.cu")
    assert done.status == 2 and "has no `parent:` line" in done.err
    assert "--- 01_direct\n+++ twos\n" in run("diff", "twos.cu").out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([*[command] * bool(command), "--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and out.startswith("usage: python -m convlab")
    assert all(word in out for word in (["--json"] if command else COMMANDS))


@pytest.mark.parametrize("command", ["", *build_parser().commands])
def test_help_fits_one_screen_and_has_groups(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    parser = build_parser()
    text = (parser.commands[command] if command else parser).format_help()
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert "example:" in text and ("exit status" in text) == (not command)
    own = command and parser.commands[command].get_default("command")
    if command:
        titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
        known = ["what to run:", "how to run it:", "output:", "example:"]
        assert [title for title in known if title in titles] == titles
        assert lines[0].removeprefix("usage: python -m convlab ").startswith(command)
        assert own.about in text and own.about.count(".") == 1
    else:
        assert text.index("write and check") < text.index("measure and") < text.index("  cache ")


def test_a_python_file_is_refused_with_advice_without_the_room_that_reads_it(monkeypatch):
    monkeypatch.setattr(lookup.rooms, "names", lambda kind: [])
    advice = "model.py is a Python file, .* paste the CUDA string of the Python file into model.cu"
    for command in ("check", "compare", "sweep"):
        with pytest.raises(ProblemError, match=advice):
            lookup._kernel("./model.py@TILE=8", {}, "sim", command)


@pytest.mark.parametrize("package", ["tqdm", "torch", "pandas"])
def test_a_missing_package_is_one_line_with_what_to_run(tmp_path, package):
    (tmp_path / f"{package}.py").write_text(
        f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [sys.executable, "-m", "convlab", "compare", "01", "--engine", "sim"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 6 and done.stdout == ""
    assert done.stderr == (
        f"convlab: the package {package} is not installed for this Python: run "
        f"`{sys.executable} -m pip install -r requirements.txt`\n"
    )


def test_the_first_comparison_is_of_the_first_rungs_and_the_best_of_each_class(run, monkeypatch):
    done = run("compare", "--problem", "N1 C16 H12 W12 K64 R3 S3")
    lines = done.out.splitlines()
    names = [line.split()[0] for line in lines if re.match(r"\d\d", line)]
    # No kernel is the best of fp32 or TF32 on so small a problem: there the library is.
    assert names == ["01_direct", "02_im2col_gemm", "03_smem_tile", *names[3:]]
    assert {name.partition("_")[0] for name in names[3:]} == {"16b", "17b"}
    heading = next(line for line in lines if line.startswith("kernel"))
    assert heading.split() == ["kernel", "class", "result", "error", "traffic", "MB", "x", "floor"]
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("  floor: the theoretical minimum; ")
    assert "predict" in lines[-1]
    assert len([line for line in lines if line.startswith("----")]) == 1
    done = run("compare", "01", "--all")
    assert done.status == 2 and "leave out --all" in done.err


SELECTED = {
    # The fastest kernels of fp32 and TF32 by the headers; no header says which of bf16 and fp16 is.
    "square": "01 02 03 11b 13 16 16b",
    "rect": "01 02 03 12 13 15 15b",
    # 15x15 and few channels: the library is the best in fp32 and TF32.
    "N1 C16 H15 W15 K64 R3 S3": "01 02 03 16b 17b",
    # 06b supports depthwise problems only, so it is taken before 15 and 15c.
    "kernelbench.82_depthwise": "01 02 03 06 06b 15b",
}


@pytest.mark.parametrize(("problem", "numbers"), SELECTED.items(), ids=list(SELECTED))
def test_the_first_kernels_are_the_first_rungs_and_the_best_of_each_class(
    problem, numbers, tmp_path, monkeypatch
):
    chosen = first_kernels([named_problem(problem)], "sim")
    assert [kernel.name.partition("_")[0] for kernel in chosen] == numbers.split()
    # A user's own kernel is always among them; a copy of a rung is no kernel of his own.
    (tmp_path / "kernels").mkdir()
    for name in ("99_mine.cu", "04_implicit_gemm.cu"):
        text = (KERNEL_DIR / "04_implicit_gemm.cu").read_text()
        (tmp_path / "kernels" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    chosen = first_kernels([named_problem(problem)], "sim")
    assert [kernel.name.partition("_")[0] for kernel in chosen] == [*numbers.split(), "99"]


def test_verbose_shows_the_other_columns_and_why_a_kernel_is_unsupported(run, kernels):
    words = ("compare", "01", "refuses.cu", "--problem", SMALL)
    brief, verbose = run(*words), run(*words, "--verbose")
    assert "1 of 2 kernels do not support this problem; --verbose lists them" in brief.out
    assert "R == 7" not in brief.out and "host s" not in brief.out
    assert "R == 7" in verbose.out and "host s" in verbose.out and "check s" in verbose.out
    words = ("check", "01", "refuses.cu", "--problem", SMALL)
    brief, verbose = run(*words), run(*words, "--verbose")
    counted = "1 of 2 kernels correct; 1 of 2 kernels do not support this problem"
    assert brief.out.endswith(f"\n{counted}; --verbose lists them\n") and not brief.err
    assert verbose.out.endswith(f"\n{counted}\n") and "R == 7" in verbose.err
    words = ("sweep", "06_depthwise", "ROWS=4,8", "--problem", SMALL)
    assert "dropped 06_depthwise@ROWS=4 on" in run(*words).out  # none ran: each with its reason
    words = ("check", "06", "--problem", "headline")
    assert "does not support square" in run(*words).out


def test_an_unsupported_problem_names_the_reason_and_three_kernels(run):
    done = run("check", "06_depthwise", "--problem", "square")
    (line,) = done.err.splitlines()
    assert done.status == 3 and "does not support square" in line and "groups == C" in line
    assert re.search(r"; use 01_direct, 01b_\w+, 01c_\w+, or one of \d+ others$", line)
    assert len(line) < 260


def test_rows_are_shown_as_they_come_if_a_comparison_takes_long(run, monkeypatch):
    words = ("compare", "01", "03", "--problem", SMALL)
    assert run(*words).err == ""
    monkeypatch.setattr("convlab.commands.own_commands._PATIENCE_SECONDS", -1.0)
    done = run(*words)
    first, second = done.err.splitlines()
    assert re.fullmatch(r"01_direct: correct, \S+ MB, \S+x the floor", first)
    assert second.startswith("03_smem_tile: correct, ") and "01_direct" in done.out
    assert run(*words, "--json").err == ""


def test_a_sweep_is_saved_and_read_again(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "builds"))
    words = ("sweep", "01", "THREADS=64,128", "--problem", SMALL, "--engine", "sim")
    done = run(*words, "--save", "sweep.json")
    assert done.status == 0, done.err
    assert f"receipt: {tmp_path / 'sweep.json'}" in done.out
    receipt = convlab.load_result(tmp_path / "sweep.json")
    assert receipt.kind == "Sweep" and len(receipt.costs) == 2
    assert {row["kernel"] for row in receipt.costs} == {
        "01_direct@THREADS=64",
        "01_direct@THREADS=128",
    }
    assert all(row["cost"] > 0 and row["source"] and row["build"] for row in receipt.costs)
    assert run(*words, "--save").status == 0
    history = run("history")
    assert history.status == 0 and "01_direct@THREADS=64" in history.out
    assert "receipts: 1, kernels: 2" in history.out


def test_an_invalid_problem_is_reported_before_the_kernel_is_compiled(monkeypatch):
    kernel = convlab.load("01", engine="sim")
    monkeypatch.setattr(kernel, "build", lambda: pytest.fail("it was compiled"))
    for problem in (3, "sqare", ["square", 3]):
        with pytest.raises(ProblemError):
            convlab.check(kernel, problem=problem)


def test_what_help_says_of_each_command_is_so(run):
    words = {"ab": ["torch:im2col", "torch:cpu", "--limit", "1"], "sweep": ["torch:im2col", "T=8"]}
    for name, parser in build_parser().commands.items():
        command = parser.get_default("command")
        helps = {action.dest: action.help for action in parser._actions}
        assert all(helps.values()), name
        if "plot" in helps:
            assert ("of several kernels" in helps["plot"]) == bool(command.results_key)
        if "kernels" in helps:
            problem = ["--problem", SMALL] if "problem" in helps else []
            done = run(name, *words.get(name, ["torch:im2col"]), *problem)
            assert (done.status == 0) == ("baseline" in helps["kernels"]), name
        if "gpu" in helps:
            assert all(gpu in helps["gpu"] for gpu in GPUS)


@pytest.mark.parametrize("name", build_parser().commands)
@pytest.mark.parametrize("program", ["python -m convlab", "convlab", "%convlab"])
def test_help_of_each_command_has_an_example_that_is_accepted(tmp_path, monkeypatch, name, program):
    monkeypatch.chdir(tmp_path)
    text = build_parser(program=program).commands[name].format_help()
    (example,) = re.findall(rf"^  {re.escape(program)} (.*)$", text, re.MULTILINE)
    arguments = build_parser().parse_args(shlex.split(example))
    assert look_up(arguments).command.name == name


def test_the_pages_call_commands_that_exist():
    calls = set()
    for page in links.tracked(".md"):
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", page.read_text())
        calls |= {words.strip() for words in re.findall(r"python -m convlab ([^`|>#\n]*)", text)}
    calls = {words for words in calls if not re.search(r"--help|COMMAND", words)}
    # A page may name a command without its arguments.
    for words in sorted(calls - set(rooms.names("command"))):
        assert build_parser().parse_args(shlex.split(words)).command
    assert {"compare", "doctor", "check --count 1000"} <= calls


# --- what is wrong -------------------------------------------------------------------------------


def test_wrong_crashing_and_broken_kernels_leave_the_others_checked(run, kernels):
    done = run(
        "check",
        "crash.cu",
        "broken.cu",
        "refuses.cu",
        "ones.cu",
        "01",
        "no_entry.cu",
        "--problem",
        SMALL,
        "--json",
        "--verbose",
    )
    assert done.status == 1 and done.document["ok"] is False
    VALIDATOR.validate(done.document)
    reports = {report["kernel"]: report for report in done.document["reports"]}
    messages = {name: "\n".join(report["failures"]) for name, report in reports.items()}
    assert "outputs are incorrect" in messages["ones"]
    assert [name for name, report in reports.items() if report["correct"]] == ["01_direct"]
    assert "(element -1)" in messages["crash"] and "crash.cu:6:" in messages["crash"]
    assert "broken.cu:6:" in messages["broken"]
    assert "R == 7" in messages["refuses"] and "01_direct" in messages["refuses"]
    assert "no entry point" in messages["no_entry"]
    assert '{ a kernel "speaks" }' in done.err  # not on standard output
    for name in ("broken", "refuses", "no_entry"):
        assert messages[name] in done.err


STATUS = {
    "a kernel declines": (0, "compare 01 refuses.cu --problem {}"),
    "check": (0, "check 01 refuses.cu --problem {}"),
    "all decline": (3, "compare refuses.cu --problem {}"),
    "check alone": (3, "check refuses.cu --problem {}"),
    "ab": (3, "ab 01 refuses.cu --problem {}"),
    "inspect": (3, "inspect refuses.cu --problem {}"),
    "sweep": (3, "sweep 06_depthwise ROWS=4,8 --problem {}"),
    "a set": (3, "check refuses.cu --problem headline"),
    "wrong beside it": (1, "compare ones.cu refuses.cu --problem {}"),
    "crash": (1, "ab 01 crash.cu --problem {}"),
}


@pytest.mark.parametrize(("status", "words"), STATUS.values(), ids=STATUS)
def test_status_tells_wrong_from_declined(run, kernels, status, words):
    done = run(*words.format("N=1,C=2,H=6,W=6,K=2,R=3,S=3").split())
    assert done.status == status and ("3: nothing ran" in " ".join(build_parser().epilog.split()))
    document = run(*words.format("N=1,C=2,H=6,W=6,K=2,R=3,S=3").split(), "--json").document
    assert document.get("ok", False) is (status == 0)


def test_compare_with_wrong_ones(process, run, kernels):
    names = ["ones.cu", "broken.cu", "crash.cu", "01"]
    done = run("compare", *names, "--problem", SMALL)
    assert done.status == 1 and '{ a kernel "speaks" }' in done.out
    table = {line.split()[0]: line for line in reversed(done.out.splitlines()) if line.strip()}
    assert " INCORRECT " in table["ones"] and " correct " in table["01_direct"]
    assert " FAILED " in table["broken"] and " FAILED " in table["crash"]
    assert "broken.cu:6:" in done.out and "crash.cu:6:" in done.out
    assert not re.search(r"(crash|broken)\W.{,30}\b\1: ", done.out)  # each is named once
    done = process("compare", *names, "--problem", SMALL, "--engine", "sim", "--json")
    assert done.status == 1 and done.document["ok"] is False
    assert [row["correct"] for row in done.document["rows"]] == [False, False, False, True]
    assert done.document["rows"][1]["error"] is None


FAILING = {  # parts of a kernel, and the setting in which alone it is wrong
    "special": UNUSUAL["no_nan_leaves"][1],
    "special_ends": UNUSUAL["past_the_border_is_the_first_element"][1],
    "integers": UNUSUAL["rounded_sums"][1],
    "x_offset_4": STATEFUL["float4_of_any_address"][1],
    "": {"last": "sum += d.N / 2;"},
    "y_offset_16": STATEFUL["counts_on_where_y_begins"][1],
    "after_others": STATEFUL["filter_kept_by_its_address"][1],
    "little_workspace": {
        "host": "if (size < 8) filt++;",
        "workspace": """
        CONVLAB_ENTRY size_t conv2d_workspace(const ConvProblem*, size_t most) {
            return most > 40000 ? 8 : 4; }""",
    },
}


REPRODUCE = r"^  reproduce: python -m convlab (.*)$"


@pytest.mark.parametrize(("setting", "parts"), FAILING.items(), ids=FAILING)
def test_what_is_told_to_reproduce_a_failure_does(run, tmp_path, monkeypatch, setting, parts):
    monkeypatch.setattr(checking, "named_problems", lambda name: [PLAIN][: name == "awkward"])
    monkeypatch.setattr(settings, "_CHUNKED", (PLAIN,))
    (tmp_path / "it's odd.cu").write_text(SOURCE % (PARTS | parts))
    done = run("check", "./it's odd.cu", "--count", "0", "--seed", "3")
    (command,) = told = re.findall(REPRODUCE, done.out, re.MULTILINE)
    # Data that a kernel keeps between calls shows when two calls run at once, too.
    if setting == "after_others" and "--setting two_streams " in command:
        setting = "two_streams"
    assert done.status == 1 and (f"--setting {setting} " in command) == bool(setting)
    again = run(*shlex.split(command))
    assert again.status == 1 and "INCORRECT" in again.out and not again.err
    assert re.findall(REPRODUCE, again.out, re.MULTILINE) == told  # of one problem, too
    if setting:  # and what is right without it stays so
        assert run(*shlex.split(command.replace(f"--setting {setting}", ""))).status == 0
    assert run("check", "01", "--setting", "zeros").status == 2  # of which problem?


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["check", "compare"])
def test_no_gpu(run, command):
    done = run(command, "01", "--problem", SMALL, "--engine", "cuda")
    assert done.status == 6 and done.out == ""
    assert 'engine="cuda" needs an NVIDIA GPU' in done.err and "doctor" in done.err
    done = run(command, "cudnn:tf32", "--problem", "wide bias relu", "--json")
    (said,) = (
        [done.document["error"]]
        if command == "compare"
        else done.document["reports"][0]["failures"]
    )
    assert done.status == 3 and "torch:im2col" in said


USAGE = {
    "no command": ([], "COMMAND"),
    "command": (["chekc"], "did you mean check?"),
    "option": (["check", "01", "--problm", SMALL], "did you mean --problem?"),
    "abbreviation": (["check", "01", "--prob", SMALL], "unrecognized arguments: --prob"),
    "engine": (["check", "01", "--engine", "simm"], "did you mean sim?"),
    "kernel": (["check", "01_dircet"], "did you mean 01_direct"),
    "part of a kernel": (
        ["check", "DEPTHWISE"],
        "did you mean 06_depthwise or 06b_depthwise_bf16 or 22_depthwise_data_gradient?",
    ),
    "baseline": (["compare", "cuDNN"], "did you mean cudnn:fp32 or cudnn:tf32"),
    "part of a problem": (
        ["compare", "01", "AlexNet"],
        "no kernel is named 'AlexNet'; did you mean kernelbench.50_alexnet",
    ),
    "a file that lies here": (["check", "min"], "did you mean mine.cu?"),
    "a folder": (
        ["check", "./"],
        "./ is a folder; give a .cu file in it, or a kernel's name; there are mine.cu, 01_direct",
    ),
    "a misspelt bias": (["check", "01", "--problem", "wide", "bais"], "did you mean bias?"),
    "a ReLU of nothing": (["check", "01", "relu"], "relu is part of a problem"),
    "a problem without quotes": (
        ["check", "01", "--problem", "N1", "C3", "H8"],
        "C3 is part of a problem, not a kernel: put all of the problem in quotes",
    ),
    "dimensions apart": (["check", "01", "C=3", "N=1"], "C=3 is part of a problem"),
    "dimensions without blanks": (["check", "01", "N1C3H8W8K4R3S3"], "a problem, by name or dim"),
    "a third kernel": (
        ["ab", "01", "03", "mine.cu"],
        "kernels, A and B, not 01 and 03 and mine.cu",
    ),
    "dimensions of no problem": (
        ["ab", "01", "03", "--problem", "N1 C3"],
        "'N1 C3' lacks H, W, K, R, S",
    ),
    "a file that is not there": (
        ["check", "nosuch.cu"],
        "no file nosuch.cu; did you mean mine.cu?",
    ),
    "half a bias": (
        ["check", "01", "--problem", SMALL.replace("bias=1", "bias=2")],
        "bias is 2 in",
    ),
    "a tunable without values": (["sweep", "01", "THREADS", "--problem", SMALL], "write NAME=8,16"),
    "a dimension": (["check", "01", "--problem", "N=1,c=3"], "did you mean C?"),
    "small letters": (["check", "01", "--problem", "n1 c3"], "did you mean N?"),
    "a file that begins so": (["check", "n1.cu"], "there is no file n1.cu"),
    "kind of receipt": (["compare", "01", "--save", "out.txt"], "name must end in .json"),
    "a kernel for a receipt": (["compare", "--save", "01"], "name must end in .json"),
    "no kernel to sweep": (["sweep"], "required: KERNEL"),
    "a tunable's case": (["sweep", "03", "tile=8", "--problem", SMALL], "did you mean TILE?"),
    "a command's beginning": (["comp"], "did you mean compare?"),
    "an option's case": (["check", "01", "--Problem", SMALL], "did you mean --problem?"),
    "ambiguous kernel": (["check", "0"], "02_im2col_gemm"),
    "path": (["compare", "nowhere/mine.cu"], "there is no file nowhere/mine.cu"),
    "problem": (["check", "01", "--problem", "sqare"], "did you mean square?"),
    "spec": (["compare", "01", "--problem", "N=1,C=3"], "lacks H, W, K, R, S"),
    "impossible spec": (["compare", "01", "--problem", SMALL + ",groups=3"], "groups"),
    "tunable": (["check", "01@THREAD=64", "--problem", SMALL], "it has: THREADS"),
    "tunable's value": (["check", "01@THREADS=many"], "write NAME=INTEGER"),
    "plot": (["compare", "01", "--problem", SMALL, "--plot", "empty.md/figure.png"], "empty.md"),
    "kind of picture": (
        ["compare", "01", "--problem", SMALL, "--plot", "figure.txt"],
        "figure.txt: the file's name must end in .png, ",
    ),
    "ab with one kernel": (["ab", "01", "--problem", SMALL], "two kernels, A and B"),
    "an option of another command": (
        ["doctor", "--count", "3"],
        "unrecognized arguments: --count 3\n",
    ),
    "a count of none": (
        ["check", "01", "--problem", SMALL, "--count", "3"],
        "--count is for generated problems",
    ),
    "a tunable twice": (
        ["sweep", "01", "THREADS=64", "THREADS=32", "--problem", SMALL],
        "THREADS=8,16",
    ),
    "nothing is near": (
        ["check", "xyzzy"],
        "no kernel is named 'xyzzy'; there are mine.cu, 01_direct, 01b",
    ),
    "a tunable of none": (
        ["check", "mine.cu@TILE=8"],
        "it has: none; add the lines `#ifndef TILE`",
    ),
    "no baseline is near": (
        ["check", "zz:zz"],
        "no baseline 'zz:zz': choose from cudnn:fp32, cudnn:tf32",
    ),
    "no problem is near": (
        ["ab", "01", "03", "--problem", "xyzzy"],
        "there are square, rect, wide, headline",
    ),
}


def test_a_folder_is_no_kernel(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "wide"):
        (tmp_path / name).mkdir()
    assert main(["check", "mine"]) == 2
    assert "mine is a folder; give a .cu file in it" in capsys.readouterr().err
    # A problem's name after kernels is a missing --problem.
    assert main(["compare", "01", "wide"]) == 2
    assert "folder" not in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), USAGE.values(), ids=USAGE)
def test_usage_error(run, tmp_path, words, message):
    (tmp_path / "empty.md").write_text("nothing\n")
    (tmp_path / "mine.cu").write_text("")
    done = run(*words)
    assert done.status == 2
    assert message in done.err and done.out == ""
    assert (tmp_path / "empty.md").read_text() == "nothing\n"


@pytest.mark.parametrize("words", [["check", "--problm"], ["--help"], ["check", "01_dircet"]])
def test_words_are_read_without_torch(words):
    command = [sys.executable, "-X", "importtime", "-m", "convlab", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert "convlab.commands.cli" in done.stderr and "| torch" not in done.stderr


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupt_ends_all_at_once(tmp_path, signals):
    environment = os.environ | {"CONVLAB_CACHE": str(tmp_path)}
    words = ["compare", "01", "03", "06", "--engine", "sim", "--problem", SMALL]
    command = [sys.executable, "-m", "convlab", *words]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not list(tmp_path.glob("unfinished-*/build.ninja")):
            assert process.poll() is None
            time.sleep(0.05)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=5)  # who held its pipes has ended, too
    told = [line for line in told.splitlines() if line[-2:] != " s"]  # how long it took so far
    assert process.returncode == 130 and not out
    assert told == ["convlab: interrupted"]
    assert not list(tmp_path.glob("unfinished-*"))


def test_usage_error_as_json(run):
    done = run("check", "01_dircet", "--json")
    assert done.status == 2 and "did you mean 01_direct" in done.document["error"]
    VALIDATOR.validate(done.document)


def test_what_takes_long_is_told_in_plain_lines(run, monkeypatch):
    monkeypatch.setattr("convlab.core.machine.progress._SECONDS", 0.02)
    for words, told in (
        (["check", "01", "--problem", "awkward"], r"01_direct: \d+ of \d+, 0 s\n"),
        (["check", "01", "--problem", SMALL], re.escape(f"check 01 --problem {SMALL}"[:57] + "...")),
    ):
        done = run(*words)
        assert done.status == 0 and re.search(told, done.err), done.err
        assert not re.search(r"[^\n -~]", done.err) and "correct" in done.out
        assert len(done.out.splitlines()) <= 4  # lines go to stderr alone


def test_without_words_the_commands_are_told(run):
    done = run()
    assert done.status == 2
    assert "check" in done.err and "doctor" in done.err


def test_a_reader_that_has_enough(tmp_path):
    command = f"{sys.executable} -m convlab list | head -n 1"
    done = subprocess.run(["sh", "-c", command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1 and done.stderr == ""


@pytest.mark.pure
def test_an_error_of_several_lines_is_wrapped_on_a_terminal(monkeypatch, capsys):
    text = f"convlab: k: race: {'word ' * 40}\n  12 | {'source ' * 40}"
    _complain(text)
    assert capsys.readouterr().err == f"{text}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _complain(text)
    *wrapped, source = capsys.readouterr().err.splitlines()
    assert len(wrapped) > 1 and max(map(len, wrapped)) <= 100 and source == text.splitlines()[1]
