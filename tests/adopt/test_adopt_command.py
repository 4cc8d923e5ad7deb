"""The command ``adopt``, an answer as a kernel, and what the confined process may do."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from convlab.__main__ import main
from convlab.adopt import adoption, stand_in, tunables
from convlab.adopt.adoption import adopt
from convlab.adopt.answer import read
from convlab.adopt.confined_run import run_confined
from convlab.adopt.mistake import Mistake
from convlab.core.errors import BuildError, ProblemError, UnsupportedError
from convlab.core.kernel.kernel import resolve
from convlab.core.problem.named import problem
from convlab.profile.inspect_kernel import inspect
from convlab.tuning.sweep import sweep

ANSWERS = Path(__file__).with_name("answers")
STRANGERS = ANSWERS.with_name("strangers")
# All tests with a run share the process that has imported torch.
RUNS = pytest.mark.xdist_group("adopt")


@dataclass
class Done:
    """What a command did."""

    status: int
    out: str
    err: str


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        capfd.readouterr()
        try:
            status = main(list(words))
        except SystemExit as end:
            status = end.code
        return Done(status, *capfd.readouterr())

    return run


@pytest.mark.pure
def test_a_python_file_is_a_kernel_where_that_works(run, tmp_path):
    (tmp_path / "model.py").write_text("source = '__global__ void k() {}'")
    for words, text in (
        (["diff", "model.py"], "diff takes .cu files, and model.py can be a kernel in check"),
        (["sweep", "model.py", "TILE=8"], "model.py has no tunables: a sweep changes"),
        (["inspect", "model.py", "--problem", "wide"], "is inspected on its own task"),
        (["compare", "01", "./model.py@TILE=8"], "model.py takes no @TILE=8: change the number"),
        (["check", "other.py"], "there is no file other.py"),
        (["adopt"], "at least one file"),
        (["adopt", "other.py"], "there is no file other.py"),
        (["adopt", "model.py", "--to", "model.txt"], "writes a .cu file"),
        (["adopt", "model.py", "--time-limit", "0"], "more than 0 seconds"),
    ):
        done = run(*words)
        assert done.status == 2 and done.out == ""
        assert text in done.err and len(done.err.splitlines()) == 1


@pytest.mark.pure
def test_several_answers_are_a_table_that_goes_on(run, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    paths = [str(ANSWERS / f"{name}.py") for name in ("wrong_keyword", "right_relu")]
    done = run("adopt", *paths, "--diagnose")
    assert "0 of 2 answers are correct as asked" in done.out
    assert "line 40: load_inline has no parameter extra_nvcc_flags" in done.out
    done = run("adopt", *paths, "--diagnose", "--json")
    document = json.loads(done.out)
    assert [each["as_asked"] for each in document["answers"]] == [False, None]
    assert done.status == 1
    assert "2 of them were judged before" in run("adopt", *paths, "--diagnose").out


@pytest.mark.pure
def test_an_answer_with_a_fatal_mistake_is_not_run(run):
    done = run("check", str(ANSWERS / "wrong_linkage.py"), "--engine", "sim")
    assert done.status == 1
    assert "wrong_linkage.py:35: launch_tanh has C linkage" in done.out
    assert "nothing was built or run" in done.out


@pytest.mark.pure
def test_a_refusal_is_a_limit_and_an_incorrect_case_is_a_mistake():
    def reported(*results):
        cases = [
            {"case": "k = 5", "knobs": {"k": 5}, "result": result, "line": 3, "text": "why"}
            for result in results
        ]
        pieces = [{"builds": True}, *cases, {"as asked": True}]
        answer = read(ANSWERS / "right_relu.py")
        reply = {"pieces": [*pieces, {"ended": True}], "stopped": "", "status": 0}
        return adoption._reported(adoption.Adoption(answer), reply)

    limited = reported("correct", "refused")
    assert limited.ok and limited.in_general and limited.why == ""
    wrong = reported("correct", "incorrect")
    assert wrong.ok and wrong.in_general is False and wrong.why == "incorrect with k = 5"
    assert "k = 5: incorrect: right_relu.py:3: why" in wrong.text()


@pytest.mark.pure
def test_an_answer_says_which_problems_it_supports():
    conv = resolve(ANSWERS / "right_conv.py", "sim")
    assert conv.unsupported(problem("wide")) is None
    assert "no ReLU" in conv.unsupported(problem("wide relu"))
    assert conv.arguments(problem("wide"))["in_channels"] == problem("wide").C
    depthwise = stand_in.load(ANSWERS / "right_depthwise_pybind.py", "sim")
    assert "depthwise" in depthwise.unsupported(problem("wide"))
    assert depthwise.unsupported(problem("N=1,C=4,H=8,W=8,K=4,R=3,S=3,groups=4")) is None
    with pytest.raises(UnsupportedError, match="not one 2-D convolution"):
        resolve(ANSWERS / "right_relu.py", "sim").accept(problem("wide"))


@pytest.mark.pure
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("return self.conv2d(x)", "return torch.relu(self.conv2d(x))"), "more than one call"),
        (("return self.conv2d(x)", "return self.conv2d(x) + 1"), "more than one call"),
        (("padding=padding", "padding=1"), "its padding is always 1"),
        (("bias=bias", ""), "it always has a bias"),
        (("groups: int", "scale: float = 1.0, groups: int"), "it has the parameter scale"),
    ],
    ids=["relu", "sum", "padding", "bias", "scale"],
)
def test_a_model_that_does_more_than_a_convolution_is_no_kernel_of_one(tmp_path, change, text):
    code = (ANSWERS / "right_conv.py").read_text()
    assert change[0] in code
    path = tmp_path / "other.py"
    # Only Model changes, which is the first class.
    model, rest = code.split("class ModelNew", 1)
    path.write_text(model.replace(*change) + "class ModelNew" + rest)
    assert text in resolve(path, "sim").unsupported(problem("wide"))


# ---- with a build and a run --------------------------------------------------------------------


@RUNS
def test_a_convolution_can_be_checked_and_compared_as_a_kernel(run):
    small = "N=1,C=4,H=6,W=7,K=6,R=3,S=3,stride=2,padding=1,groups=2,bias=1"
    path = str(ANSWERS / "right_conv.py")
    done = run("check", path, "--problem", small, "--engine", "sim")
    assert done.status == 0 and "correct" in done.out
    done = run("compare", path, "01_direct", "--problem", small, "--engine", "sim")
    assert done.status == 0 and "right_conv" in done.out


@RUNS
@pytest.mark.parametrize(
    ("name", "line", "kind"),
    [
        ("wrong_race", "if (t < half) part[t] += part[t + half];", "race"),
        ("wrong_bounds", "y[i] = a[i] * b[i] + a[i];", "global out of bounds"),
        ("wrong_precision", "class ModelNew", "too imprecise"),
        ("wrong_cheat_torch", "def forward(self, A, B)", "cheat"),
        ("wrong_build", "data_ptr<float>(), n);", "build"),
    ],
)
def test_planted_mistakes_are_found_at_their_lines(name, line, kind):
    found = adopt(ANSWERS / f"{name}.py", engine="sim")
    assert found.as_asked is False
    assert found.mistakes[0].kind == kind
    assert line in found.answer.quoted(found.mistakes[0].line)


@RUNS
def test_a_right_answer_of_a_text_is_correct_for_contiguous_inputs():
    found = adopt(ANSWERS / "right_linear_gelu.md", engine="sim")
    assert found.ok and found.precision == "fp32" and found.outcome == "correct"
    assert found.supports == "contiguous inputs"
    assert [each.label for each in found.tried if each.result != "correct"] == [
        "inputs that are not contiguous"
    ]
    assert any("scaled down" in note for note in found.notes)


@RUNS
def test_an_answer_for_its_own_shapes_only_is_correct_as_asked_and_not_in_general():
    found = adopt(ANSWERS / "narrow_square_matmul.py", engine="sim")
    assert found.as_asked is True and found.in_general is False
    assert any(each.result in ("incorrect", "crashed") for each in found.tried)
    assert found.supports != "everything"


# All answers, or none: each takes seconds.
DEEP = sorted(path.stem for path in ANSWERS.iterdir() if path.stem.startswith(("right_", "wrong_")))


@RUNS
@pytest.mark.parametrize("name", DEEP if os.environ.get("CONVLAB_DEEP") else [])
def test_all_answers_are_judged_as_planted(name):
    (path,) = ANSWERS.glob(f"{name}.*")
    found = adopt(path, engine="sim")
    assert found.as_asked is name.startswith("right_"), found.text()
    if found.as_asked:
        # Some right answers rely on contiguous inputs, without a check.
        assert found.in_general or found.supports == "contiguous inputs", found.text()


@RUNS
def test_the_process_of_an_answer_is_confined(tmp_path):
    path = tmp_path / "answer.py"
    outside = tmp_path / "written"
    path.write_text(
        "import os, torch\n"
        "from torch.utils.cpp_extension import load_inline\n"
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        open('inside', 'w').write('scratch')\n"
        f"        open({str(outside)!r}, 'w').write('outside')\n"
    )
    spec = {
        "answer": read(path),
        "reference": read(path),
        "engine": "sim",
        "arguments": {},
        "tensors": (None, None, None),
    }
    found = run_confined("convolve", spec, 60.0)
    if found["unconfined"]:
        pytest.skip("this Linux has no Landlock")
    assert "line 7: PermissionError" in found["failed"]
    assert not outside.exists()


@RUNS
def test_an_answer_that_never_ends_or_crashes_is_stopped(tmp_path):
    spec = {"engine": "sim", "arguments": {}, "tensors": (None, None, None)}
    for code, text in (("while True: pass", "did not end within 2 s"), ("os.abort()", "crashed")):
        path = tmp_path / "answer.py"
        path.write_text(f"import os\n{code}\n")
        answer = read(path)
        found = run_confined("convolve", {**spec, "answer": answer, "reference": answer}, 2.0)
        assert text in found["failed"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_its_options_are_refused(run):
    answer = ANSWERS / "right_conv.py"
    with pytest.raises(BuildError, match="needs an NVIDIA GPU"):
        adopt(answer, engine="cuda")
    done = run("adopt", str(answer), "--no-simulate")
    assert done.status == 2 and "leave it out" in done.err


@pytest.mark.pure
def test_the_simulator_adds_to_the_verdict_of_a_gpu(monkeypatch):
    found = adoption.Adoption(
        read(ANSWERS / "wrong_bounds.py"), "cuda", builds=True, as_asked=True, in_general=True
    )

    def judged(**differences):
        monkeypatch.setattr(
            adoption, "_judged", lambda start, *rest: adoption.replace(start, **differences)
        )
        return adoption._with_simulator(found, {}, 1.0)

    race = Mistake("race", 7, "two threads", "add a barrier")
    bad = judged(as_asked=False, mistakes=(race,))
    assert bad.engine == "cuda" and bad.as_asked is False and bad.in_general is False
    assert bad.mistakes == (race,) and bad.outcome == "incorrect"
    unknown = Mistake("not simulated", 0, "it uses cuRAND", "")
    kept = judged(as_asked=None, mistakes=(unknown,))
    assert kept.as_asked and kept.mistakes == () and "cuRAND" in kept.notes[0]
    good = judged(counters={"launches": 1.0})
    assert good.as_asked and good.counters == {"launches": 1.0}


# The answers that a GPU judges in the tests: what each shows, and whether it is correct as asked.
ON_A_GPU = {
    "right_conv": "",
    "right_softmax": "",
    "right_depthwise_pybind": "",
    "wrong_precision": "too imprecise",
    "wrong_cheat_torch": "cheat",
    "wrong_build": "build",
    # The GPU forgives it, and the simulator next to it does not.
    "wrong_bounds": "global out of bounds",
}


@pytest.mark.gpu
@RUNS
@pytest.mark.parametrize("name", ON_A_GPU)
def test_answers_are_judged_and_timed_on_a_gpu(name):
    found = adopt(ANSWERS / f"{name}.py", engine="cuda", general=False)
    assert found.ok is name.startswith("right_"), found.text()
    if found.ok:
        assert found.times["answer"] > 0 and found.times["model"] > 0
    else:
        assert found.mistakes[0].kind == ON_A_GPU[name]


@pytest.mark.gpu
@RUNS
@pytest.mark.parametrize("name", DEEP if os.environ.get("CONVLAB_DEEP") else [])
def test_all_answers_are_judged_as_planted_on_a_gpu(name):
    (path,) = ANSWERS.glob(f"{name}.*")
    found = adopt(path, engine="cuda")
    assert found.as_asked is name.startswith("right_"), found.text()


@pytest.mark.pure
def test_a_folder_is_judged_and_an_empty_one_is_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    folder = tmp_path / "some answers"
    folder.mkdir()
    for name in ("wrong_keyword.py", "wrong_linkage.py"):
        (folder / name).write_text((ANSWERS / name).read_text())
    (folder / "INDEX.csv").write_text("file,verdict\n")
    done = run("adopt", str(folder), "--diagnose", "--again")
    assert "0 of 2 answers are correct as asked" in done.out
    done = run("adopt", "empty")
    assert done.status == 2 and "has no .py, .md or .txt file" in done.err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("import torch\n", "import torch\nimport triton\n"), "its kernel is in Triton"),
        (("load_inline(", "load("), "load() compiles files"),
    ],
    ids=["triton", "load"],
)
def test_what_convlab_cannot_judge_is_not_called_incorrect(run, tmp_path, change, text):
    code = (ANSWERS / "right_relu.py").read_text().replace(*change)
    if "triton" in change[1]:
        code = code.replace("load_inline", "compiled_by_triton")
    (tmp_path / "other.py").write_text(code)
    done = run("adopt", "other.py", "--engine", "sim")
    assert "other.py: not run" in done.out and text in done.out
    assert "INCORRECT" not in done.out and done.status not in (0, 1)


@pytest.mark.pure
def test_an_example_after_the_answer_is_not_the_answer(tmp_path):
    code = (ANSWERS / "right_relu.py").read_text()
    path = tmp_path / "reply.md"
    path.write_text(
        f"Draft:\n```python\nx = 1\n```\nAnswer:\n```python\n{code}```\nUse:\n```python\nModelNew()\n```\n"
    )
    answer = read(path)
    assert "ModelNew" in answer.classes
    line = next(
        number
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if "class ModelNew" in text
    )
    assert answer.classes["ModelNew"].lineno == line


@pytest.mark.pure
def test_the_tunables_of_an_answer_are_its_constants(tmp_path):
    text = """import torch
from torch.utils.cpp_extension import load_inline
source = r'''
#define TILE 16
// #define OLD 3
constexpr int WARPS = 4, LANES = 32;
#define TWICE 1
#define TWICE 2
#define SUM (TILE + 1)
'''
ext = load_inline(name="x", cpp_sources="", cuda_sources=source, functions=["f"])
"""
    path = tmp_path / "answer.py"
    path.write_text(text)
    answer = read(path)
    assert tunables.tunables(answer) == {"TILE": 16, "WARPS": 4, "LANES": 32}
    source = answer.calls[0].source("cuda_sources")
    changed = tunables.with_values(source, {"TILE": 8, "LANES": 64})
    assert "#define TILE 8\n" in changed.text and "LANES = 64;" in changed.text
    assert changed.lines == source.lines and "WARPS = 4," in changed.text
    with pytest.raises(ProblemError, match="no tunable TIL; did you mean TILE"):
        tunables.require(answer, {"TIL": 8})
    assert tunables.lines_of_sizes(answer, {32}) == {"LANES": (6, 32)}


@RUNS
def test_an_answer_is_inspected_kernel_by_kernel():
    found = inspect(ANSWERS / "right_sum_dim.py", engine="sim", gpu="H200")
    assert found.adoption.as_asked and len(found.frame) == 1
    assert found.frame["launches"][0] == 1 and found.frame["block"][0] == "128x1x1"
    # Every counted line is a line of the file that accesses memory.
    assert len(found.lines) and all("[" in source for source in found.lines["source"])
    assert found.lines.groupby("space")["share"].sum().round(6).eq(1).all()
    assert str(found.lines["line"][0]) in str(found.listing())


@RUNS
def test_a_sweep_of_an_answer_drops_what_is_incorrect():
    found = sweep(
        ANSWERS / "right_sum_dim.py", {"kThreads": [64, 100]}, engine="sim", progress=False
    )
    assert found.best == {"its own task": "right_sum_dim@kThreads=64"}
    assert (
        list(found.dropped["kind"]) == ["failed"]
        and "outputs are incorrect" in found.dropped["reason"][0]
    )
    assert len(found.frame) == 1


@RUNS
@pytest.mark.parametrize(
    ("name", "line", "kind"),
    [
        ("a09.py", "class ModelNew", "too imprecise"),
        ("a23.py", "depthwise_kernel<<<", "wrong stream"),
        ("a26.py", "class ModelNew", "wrong result"),
    ],
    ids=["float16_sums", "own_stream", "bias_ignored"],
)
def test_a_strangers_mistakes_are_found(name, line, kind):
    found = adopt(STRANGERS / name, engine="sim", general=False)
    first = next(each for each in found.mistakes if each.error)
    assert found.as_asked is False and first.kind == kind
    assert line in found.answer.quoted(first.line)


@RUNS
@pytest.mark.parametrize("name", ["a07.py", "a13.py"], ids=["constant_in_a_lambda", "py_object"])
def test_a_strangers_right_answers_build(name):
    assert adopt(STRANGERS / name, engine="sim", general=False).as_asked


@RUNS
def test_sizes_in_the_source_leave_the_verdict_to_a_gpu():
    found = adopt(STRANGERS / "a15.py", engine="sim", general=False)
    assert found.as_asked is None and found.in_general is False and found.outcome == "incorrect"
    assert any("IH = 128" in note for note in found.notes)
