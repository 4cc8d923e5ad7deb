"""The diagnosis of answers, without running them; and what else needs no build."""

import csv
import inspect
import re
import struct
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from convlab.adopt import answer, cpp_functions, transport
from convlab.adopt.adoption_report import Tried
from convlab.adopt.diagnose import diagnose
from convlab.adopt.limits import supports
from convlab.adopt.shapes import Case, Task
from convlab.adopt.skeleton import skeleton
from convlab.core.errors import ProblemError

ANSWERS = Path(__file__).with_name("answers")
FILES = sorted(path for path in ANSWERS.iterdir() if path.suffix in (".py", ".md"))
# What is planted: a part of the diagnosed line, and of the text. The other planted mistakes need a run.
PLANTED = {
    "wrong_cheat_cache": ("return self.last[key]", "an earlier call stored"),
    "wrong_cheat_fallback": ("try:", "errors of the kernel are caught"),
    "wrong_cheat_stream": ("torch.cuda.Stream()", "another stream"),
    "wrong_cheat_tf32": ("allow_tf32 = True", "changes the precision of torch"),
    "wrong_init_arguments": ("def __init__(self, in_features)", "get_init_inputs() returns 2"),
    "wrong_keyword": ("extra_nvcc_flags", "no parameter extra_nvcc_flags"),
    "wrong_linkage": ("void launch_tanh(", "C linkage"),
    "wrong_name": ("F.layer_norm", "F is not defined"),
    "wrong_no_cpp_sources": ("tanh = load_inline(", "needs cpp_sources"),
    "wrong_other_function": ('functions=["tanh_cuda"]', "did you mean tanh_forward"),
    "wrong_positional": ("ext = load_inline(", "sycl_sources, not functions"),
}
FORM = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(4)]

def get_init_inputs():
    return []

{load}

class ModelNew(nn.Module):
    def forward(self, x):
        {forward}
"""
LOAD = (
    'ext = load_inline(name="e", cpp_sources="torch::Tensor f(torch::Tensor x);", '
    'cuda_sources="{cuda}", functions=["f"]{more})'
)
CUDA = "torch::Tensor f(torch::Tensor x) { return x; }"


def mistakes(tmp_path, load="", forward="return ext.f(x)", cuda=CUDA, more=""):
    """Return the texts of the errors in an answer with these parts."""
    path = tmp_path / "answer.py"
    path.write_text(FORM.format(load=load or LOAD.format(cuda=cuda, more=more), forward=forward))
    return [each.text for each in diagnose(answer.read(path)) if each.error]


@pytest.mark.pure
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_planted_mistake_is_diagnosed_at_its_line_and_nothing_else(path):
    read = answer.read(path)
    found = [each for each in diagnose(read) if each.error]
    if path.stem not in PLANTED:
        assert found == []
        return
    line, text = PLANTED[path.stem]
    assert line in read.quoted(found[0].line) and text in found[0].text
    assert all(each.todo for each in found)


@pytest.mark.pure
def test_the_parameters_of_load_inline_are_torchs():
    assert set(answer.LOAD_INLINE) >= set(inspect.signature(cpp_extension.load_inline).parameters)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"forward": "return ext.g(x)"}, "ext has no function g"),
        ({"forward": "return ext.f(x, 1)"}, "f takes 1 arguments"),
        ({"forward": "return ext.f(x=x)"}, "no names for their parameters"),
        ({"forward": "return ext.f(x.contigous())"}, "torch.Tensor has no contigous"),
        ({"forward": "return F.relu7(ext.f(x))"}, "has no relu7"),
        ({"forward": "return ext.f(y)"}, "y is not defined"),
        ({"more": ', extra_cuda_cflags="-O3"'}, "extra_cuda_cflags is a string"),
        ({"cuda": "torch::Tensor f(torch::Tensor x, int n) { return x; }"}, "is declared with"),
        ({"cuda": "static " + CUDA}, "is static"),
        ({"cuda": "void g() { CUBLAS_CHECK(0); } " + CUDA}, "CUBLAS_CHECK is used"),
        ({"cuda": "void g() { cublasSgemm(); } " + CUDA}, "its header is not included"),
        ({"cuda": "torch::Tensor f(torch::Tensor x) { return at::conv2d(x, x); }"}, "torch's own"),
        ({"load": "import os", "forward": "return F.relu(x)"}, "no kernel of its own"),
        ({"load": LOAD.format(cuda=CUDA, more="") + "\ntorch.allclose = None"}, "is replaced"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_of_all_kinds_are_found(tmp_path, parts, text):
    found = mistakes(tmp_path, **parts)
    assert any(text in each for each in found), found
    assert mistakes(tmp_path) == []


@pytest.mark.pure
def test_the_answer_is_the_last_python_block_and_lines_are_those_of_the_text(tmp_path):
    path = tmp_path / "reply.md"
    path.write_text(
        "Thoughts\n```python\nx = 1\n```\nFinal:\n```python\ny = 2\nclass ModelNew: pass\n```\n"
    )
    read = answer.read(path)
    assert "x = 1" not in read.code
    assert read.classes["ModelNew"].lineno == 8
    (tmp_path / "plain.md").write_text("no code")
    with pytest.raises(ProblemError, match="has no Python block"):
        answer.read(tmp_path / "plain.md")


@pytest.mark.pure
def test_lines_of_strings_are_kept_through_escapes_and_sums(tmp_path):
    path = tmp_path / "strings.py"
    path.write_text(
        'N = 2\na = """\\\none\ntwo"""\nb = "x\\n" "y"\nc = a + "\\n" + b\nd = f"{N}\\n" + a\n'
    )
    constants = answer.read(path).constants
    assert constants["a"].lines == (3, 4)
    assert constants["b"].lines == (5, 5)
    assert constants["c"].text.split("\n") == ["one", "two", "x", "y"]
    assert constants["c"].lines == (3, 4, 5, 5)
    assert constants["d"].text.startswith("2\none")


@pytest.mark.pure
def test_functions_of_a_text_have_types_names_and_linkage():
    text = (
        "namespace a { template <typename T> __global__ void k(const T* __restrict__ x, int n) {} }\n"
        'extern "C" { int f(long n = 3); }\nstatic std::vector<at::Tensor> g(const torch::Tensor &x) {}\n'
        "int table[] = {1, 2};\nstruct S { void method() {} };\n"
    )
    found = {each.name: each for each in cpp_functions.functions(text)}
    assert set(found) == {"k", "f", "g"}
    assert found["k"].is_kernel and found["k"].types == ("const T*", "int")
    assert found["f"].is_c and not found["f"].defined and found["f"].types == ("int64_t",)
    assert found["g"].is_static and found["g"].types == ("const Tensor&",)
    assert found["g"].names == ("x",)


@pytest.mark.pure
def test_a_result_is_read_as_it_was_written():
    whole = struct.Struct("<q").pack
    real = struct.Struct("<d").pack
    data = b"".join(
        [whole(transport.LIST), whole(1), whole(2), whole(transport.REAL), real(0.5)]
        + [whole(transport.TENSOR), whole(6), whole(1), whole(0), whole(1), whole(1), whole(2)]
        + [whole(1), whole(0)]
    )
    owned = torch.tensor([1.0, 2.0, 3.0]).view(torch.uint8)
    value, tensor = transport.Reader(memoryview(data), lambda owner: owned).value()
    assert value == 0.5
    assert tensor.tolist() == [2.0, 3.0]


@pytest.mark.pure
def test_a_call_is_written_with_tags_and_refuses_what_no_parameter_takes():
    words = transport.words(
        "f", [1, 2.5, True, None, [3]], {"n": "a"}, lambda tensor: (None, 0, True)
    )
    assert words[:2] == [1, ord("f")]
    assert words[2:-5] == [5, 1, 1, 2, 2.5, 3, 1, 0, 6, 1, 1, 3, 1]
    with pytest.raises(TypeError, match="incompatible function arguments: a dict"):
        transport.words("f", [{}], {}, lambda tensor: (None, 0, True))


@pytest.mark.pure
def test_limits_are_suggested_from_what_failed():
    def tried(name, value, result):
        return Tried(f"{name} = {value}", {name: value}, result)

    cases = [
        tried("width", 33, "incorrect"),
        tried("width", 64, "correct"),
        tried("stride", 2, "crashed"),
        tried("batch", 5, "correct"),
        tried("k", 900, "refused"),
        tried("k", 7, "correct"),
        tried("k", 8, "correct"),
    ]
    assert supports(cases) == "width % 64 == 0, stride as in the task, k <= 8"
    assert supports(cases[3:4]) == "everything"


@pytest.mark.pure
def test_a_skeleton_keeps_kernels_and_tunables_and_marks_torch():
    text, marked = skeleton(answer.read(ANSWERS / "right_matmul.py"))
    assert "#ifndef TILE\n#define TILE 16\n#endif" in text
    assert "__global__ void matmul_kernel" in text and "CONVLAB_ENTRY const char* conv2d(" in text
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    assert "torch" not in code and "Tensor" not in code
    assert any("torch::zeros" in what for _, what in marked)
    lines = (ANSWERS / "right_matmul.py").read_text().splitlines()
    assert all(lines[line - 1].strip() == what for line, what in marked)


# ---- what the answers of a stranger showed -------------------------------------------------------

STRANGERS = ANSWERS.with_name("strangers")
with (STRANGERS / "INDEX.csv").open(newline="") as file:
    TRUTH = {row["file"]: row["verdict"] for row in csv.DictReader(file)}
# Those that reading shows to be incorrect, with a part of the diagnosed line.
READ = {
    "a04.py": "extra_cuda_cflag=",
    "a11.md": 'functions=["conv1d_forward"]',
    "a17.py": "at::conv2d(",
    "a21.py": "CHECK_INPUT(",
}


@pytest.mark.pure
@pytest.mark.parametrize("name", TRUTH)
def test_reading_a_strangers_answer_raises_no_false_alarm(name):
    found = answer.read(STRANGERS / name)
    errors = [each for each in diagnose(found) if each.error]
    if name in READ:
        assert errors and READ[name] in found.quoted(errors[0].line)
    else:
        assert not errors


@pytest.mark.pure
def test_a_template_with_launch_bounds_hides_no_function():
    text = """
template <int M, int N>
__global__ void __launch_bounds__((M / 2) * (N / 2)) kernel(float* x) { x[0] = M; }
int table[] = {1, 2};
torch::Tensor f(torch::Tensor x) { return x; }
"""
    found = cpp_functions.functions(text)
    found = [(each.name, each.defined, each.is_kernel) for each in found]
    assert found == [("kernel", True, True), ("f", True, False)]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("a08.py", ["normalized_shape"]), ("a10.py", ["in_channels", "out_channels", "kernel_size"])],
    ids=["layer_norm", "transposed"],
)
def test_sizes_stay_different_when_they_are_scaled_down(name, arguments):
    code = answer.read(STRANGERS / name).code
    space: dict = {}
    exec(code[: re.search(r"^\w+ = r?(?:'''|\"\"\")", code, re.MULTILINE).start()], space)
    task = Task(space, dict.fromkeys(arguments))
    case = task.scaled(Case(tuple(space["get_init_inputs"]())), 1_500_000)
    sizes = task.sizes(case)
    # The model runs with them, and channels can be told from pixels.
    inputs, _ = task.inputs(case, "cpu", 0)
    assert space["Model"](*case.init)(*inputs).numel() > 0
    assert sizes[0, 1] not in (sizes[0, 0], sizes[0, 2])
    if name == "a10.py":
        assert case.init[0] != case.init[1]
