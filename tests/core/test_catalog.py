"""The catalog: header comments, requirements, and finding a kernel by name."""

import dataclasses
import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlab.core.errors import CatalogError, ProblemError
from convlab.core.kernel import catalog as module
from convlab.core.kernel.catalog import Header, catalog, find, folders, names, parse_header, read
from convlab.core.problem.problem import Problem

pytestmark = pytest.mark.pure

SOURCE = """\
// title: Direct
// idea: one thread
//       computes one output
// mapping: grid, block: thread -> n, k, p, q
// precision: tf32
// supports: R == 3, S == 3,
//           sm >= 80
// limits: memory
// arch: sm_90a
// atomics: yes
// epilogue: bias, relu
//
// Prose is ignored. Note: this, too.
#include "convlab.cuh"
// title: not in the header
"""
PROBLEM = Problem(2, 6, 9, 8, 4, 3, 3, (2, 1), groups=2)


def test_header():
    assert parse_header(SOURCE, "kernels/01_direct.cu") == Header(
        title="Direct",
        idea="one thread computes one output",
        mapping="grid, block: thread -> n, k, p, q",
        precision="tf32",
        supports=("R == 3", "S == 3", "sm >= 80"),
        limits="memory",
        arch="sm_90a",
        atomics=True,
        epilogue=("bias", "relu"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        '#include "convlab.cuh"\n',
        "// My kernel, see https://example.org\n// TODO: faster\n// Note: mine\nint x;\n",
        "/* title: other */\n",
        "// supports: everything\n",
    ],
)
def test_every_key_is_optional(text):
    assert parse_header(text, "a/mine.cu") == Header(title="mine")


def test_a_missing_epilogue_is_unsupported():
    fused = dataclasses.replace(PROBLEM, bias=True, relu=True)
    reasons = {"none": "has no bias", "relu": "has no bias", "bias": "write `// epilogue"}
    for steps, why in reasons.items():
        header = parse_header(f"// epilogue: {steps}\n", "mine.cu")
        assert why in header.unsupported(fused, 90, 1 << 16)
        assert header.unsupported(PROBLEM, 90, 1 << 16) is None
    assert "has no relu" in Header("mine").unsupported(fused, 90, 1 << 16)
    assert Header("mine", epilogue=("bias", "relu")).unsupported(fused, 90, 1 << 16) is None


@pytest.mark.parametrize(
    "text, message",
    [
        ("// suports: R == 3", r"k\.cu:1: unknown key 'suports'.*did you mean supports"),
        ("// title: A\n// speed: 9", r"k\.cu:2: unknown key 'speed'.*Keys: title, idea"),
        ("// title: A\n// title: B", r"k\.cu:2: title is given twice, first on line 1"),
        ("\n// precision: fp8", r"k\.cu:2: precision is 'fp8'; it must be fp32, tf32, bf16 or"),
        ("// precision:", "precision is ''"),
        ("// arch: hopper", "arch is 'hopper'; it must be like sm_80"),
        ("// atomics: maybe", "atomics is 'maybe'; it must be yes or no"),
        ("// epilogue: gelu", "epilogue is 'gelu'; it must be none, bias, relu, or bias, relu"),
        ("// epilogue: relu, bias", "epilogue is 'relu, bias'"),
        ("// Supports: R = 3", "'=' is not allowed"),
        ("// supports: R == 3 S == 3", "supports: cannot read 'R == 3 S"),
        ("// supports: R", "'R' is not a comparison"),
        ("// supports: Z == 3", "'Z' is not allowed"),
        ("// supports: R == 'a'", "\"'a'\" is not allowed"),
        ("// supports: R == 3.0", "'.' is not allowed"),
        ("// supports: R ** 9 == 3", r"'\*\*' is not allowed"),
        ("// supports: __import__('os') == 1", "not allowed"),
        ("// supports: R.real == 1", "'.real' is not allowed"),
        ("// supports: R is 3", "'is' is not allowed"),
        ("// supports: R in 3", "comparisons such as .R in "),
        ("// supports: R == 3), (S == 3", "not a comparison"),
        ("// supports: ,", "supports: cannot read ','"),
    ],
)
def test_invalid_headers(text, message):
    with pytest.raises(CatalogError, match=message):
        parse_header(text, "k.cu")


@pytest.mark.parametrize(
    "requirement, met",
    [
        ("R == 3", True),
        ("R == S == 3", True),
        ("(R, S) == (3, 3)", True),
        ("R != 3", False),
        ("C % groups == 0", True),
        ("stride_h == stride_w", False),
        ("stride_h == 1 or stride_w == 1", True),
        ("stride_h == 1 and stride_w == 1", False),
        ("not (pad_h > 0)", True),
        ("R in (1, 3)", True),
        ("R not in (1, 3)", False),
        ("4 * R * S * C // groups <= smem", True),
        ("sm >= 90", False),
        ("P == 4", True),
        ("-1 < N - 2 < 1", True),
    ],
)
def test_requirement(requirement, met):
    header = parse_header(f"// supports: {requirement}", "k.cu")
    reason = header.unsupported(PROBLEM, sm=80, smem=1000)
    assert (reason is None) == met
    assert met or reason.startswith(f"its header's `supports:` requires {requirement} (here ")


def test_the_first_unmet_requirement_is_named_with_its_values():
    header = parse_header("// supports: R == 3, S == 5, sm >= 90", "k.cu")
    assert (
        header.unsupported(PROBLEM, 80, 0)
        == "its header's `supports:` requires S == 5 (here S = 3)"
    )
    header = parse_header("// title: T\n// supports: R % pad_h == 0", "k.cu")
    with pytest.raises(CatalogError, match="modulo by zero.; rewrite it"):  # the header is invalid
        header.unsupported(PROBLEM, 80, 0)


@given(st.text())
def test_any_text_parses_or_raises_catalog_error(text):
    for source in (text, f"// supports: {text}", f"// {text}: {text}"):
        try:
            parse_header(source, "k.cu").unsupported(PROBLEM, 80, 0)
        except CatalogError:
            pass


VALUE = st.text("abcxyz ,.->", min_size=1).map(lambda text: " ".join(text.split()))


@given(title=VALUE.filter(bool), idea=VALUE, limits=VALUE, atomics=st.booleans())
def test_what_is_written_is_read(title, idea, limits, atomics):
    text = f"// title: {title}\n// idea:\n//     {idea}\n// limits: {limits}\n"
    text += f"// atomics: {'yes' if atomics else 'no'}\n"
    expected = Header(title=title, idea=idea, limits=limits, atomics=atomics)
    assert parse_header(text, "k.cu") == expected


def put(directory, *stems):
    """Create a folder with empty kernel files."""
    directory.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        (directory / f"{stem}.cu").write_text("")
    return directory


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """Replace the catalog by one of three kernels, and work in another folder."""
    directory = put(tmp_path / "kernels", "01_direct", "02_im2col_gemm", "02_im2col_own")
    monkeypatch.setattr(module, "KERNEL_DIR", directory)
    monkeypatch.delenv(module.ENVIRONMENT, raising=False)
    monkeypatch.chdir(put(tmp_path / "elsewhere"))
    return directory


def test_find_by_name_prefix_and_path(kernels, monkeypatch):
    assert find("01_direct") == find("01") == kernels / "01_direct.cu"
    assert find("02_im2col_g").stem == "02_im2col_gemm"
    assert find(kernels / "01_direct.cu") == kernels / "01_direct.cu"
    monkeypatch.chdir(kernels)
    assert find("01_direct.cu").resolve() == kernels / "01_direct.cu"
    assert [path.stem for path in catalog()] == ["01_direct", "02_im2col_gemm", "02_im2col_own"]


@pytest.mark.parametrize(
    "name, message",
    [
        ("01_dirct", "no kernel is named '01_dirct'; did you mean 01_direct"),
        (
            "zzz",
            "there are 01_direct, 02_im2col_gemm, 02_im2col_own, cudnn:fp32, .* and [0-9]+ more",
        ),
        (None, "kernel must be a name or a path, not None"),
        (b"01_direct", "kernel must be a name or a path"),
        ("x" * 5000, "no kernel is named"),
        ("~nobody/x", "there is no file ~nobody/x"),
        ("a\0b", "kernel must be a name or a path"),
        ("", "no kernel is named ''"),
        ("02", "matches several kernels: 02_im2col_gemm, 02_im2col_own; write one of them out"),
        ("01_dirct.cu", r"no file 01_dirct.cu; did you mean .*kernels/01_direct\.cu"),
        ("kernels/01_dirct.cu", r"did you mean .*01_direct\.cu"),
        ("/nowhere/zzzzzz.cu", r"no file /nowhere/zzzzzz\.cu; there are 01_direct"),
        (Path("/tmp"), "/tmp is a folder; give a .cu file in it, or a kernel's name; there are"),
        (".", "is a folder; give a .cu file in it"),
        ("some/where", "there is no file some/where"),
    ],
)
def test_not_found(kernels, name, message):
    with pytest.raises((CatalogError, ProblemError), match=message):
        find(name)


def test_more_directories_from_the_environment(kernels, tmp_path, monkeypatch):
    mine = put(tmp_path / "mine", "fast")
    yours = put(tmp_path / "yours", "slow")
    monkeypatch.setenv(module.ENVIRONMENT, os.pathsep.join(map(str, (mine, yours, mine, kernels))))
    assert find("fast") == mine / "fast.cu" and find("slow") == yours / "slow.cu"
    assert len(catalog()) == 5
    put(mine, "01_direct")
    with pytest.raises(CatalogError, match=r"kernels/01_direct\.cu.*mine/01_direct\.cu; rename"):
        find("01_direct")
    assert find(mine / "01_direct.cu").exists()
    monkeypatch.setenv(module.ENVIRONMENT, "/does/not/exist")
    with pytest.raises(CatalogError, match="lists /does/not/exist"):
        catalog()


def test_kernels_of_the_working_directory_go_first(kernels, tmp_path, monkeypatch):
    mine = put(tmp_path / "elsewhere" / "kernels", "01_direct", "05_mine")
    more = put(tmp_path / "more", "05_mine")
    assert folders() == [mine, kernels]
    assert find("01").parent == find("05").parent == mine
    assert find("02_im2col_own").parent == kernels
    assert [path.stem for path in catalog()].count("01_direct") == 1
    monkeypatch.setenv(module.ENVIRONMENT, str(more))
    assert folders() == [mine, kernels, more] and find("05_mine").parent == mine
    put(more, "02_im2col_own")
    with pytest.raises(CatalogError, match="two kernels are named '02_im2col_own'"):
        catalog()


def test_a_file_that_cannot_be_read(tmp_path):
    """test_errors.py tests encodings and a byte order mark."""
    with pytest.raises(CatalogError, match="cannot read .*Is a directory"):
        read(tmp_path)


def test_the_shipped_kernels_have_headers():
    for path in catalog():
        header = parse_header(path.read_text(), path)
        assert header.title != path.stem and header.idea and header.limits


def test_a_name_never_means_a_file_in_the_working_directory(kernels):
    """A file without an ending could be anything; a path is written with a slash or with .cu."""
    Path("01_direct").write_text("not a kernel")
    Path("mine").write_text("")
    assert find("01_direct") == kernels / "01_direct.cu"
    with pytest.raises(CatalogError, match=r"no kernel is named 'mine'; .* write \./mine"):
        find("mine")
    assert find("./mine") == Path("mine") and find("./01_direct") == Path("01_direct")
    with pytest.raises(CatalogError, match="there is no file ./01"):
        find("./01")


def test_a_file_that_hides_a_shipped_kernel_is_reported_once(kernels, tmp_path):
    put(tmp_path / "elsewhere" / "kernels", "01_direct", "05_mine")
    module._said.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names()
        find("05_mine")
        assert not caught
        for _ in range(3):
            find("01")
            catalog()
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith("01_direct: the name means your file in ") and "elsewhere" in text


@pytest.mark.parametrize(
    "text, parts",
    [
        ("03_smem_tile@C_TILE=4,X=2", ("03_smem_tile", "C_TILE=4,X=2")),
        ("03_smem_tile", ("03_smem_tile", "")),
        ("k at@x.cu", ("k at@x.cu", "")),
        ("k@T=1.cu@T=2", ("k@T=1.cu", "T=2")),
        ("/a@b/k", ("/a@b/k", "")),
        ("/a@b/k.cu@T=8", ("/a@b/k.cu", "T=8")),
    ],
)
def test_the_tunables_of_a_text(text, parts):
    assert module.split_tunables(text) == parts


def test_a_block_comment_may_come_before_the_header():
    answers = "/* lab\nname: Ada\nlab: ece408\n*/\n"
    header = "// precision: tf32\n// supports: groups == 1\n"
    assert module.parse_header(answers + header, "lab.cu").precision == "tf32"
    assert module.parse_header(f"\n{answers}\n{header}", "lab.cu").precision == "tf32"
    assert module.parse_header("/* a licence */\n" + header, "lab.cu").precision == "tf32"
    # Only one, and lines are counted with it.
    assert module.parse_header("/* a */ /* b */\n" + header, "lab.cu").precision == "fp32"
    with pytest.raises(CatalogError, match="lab.cu:5: precision is 'many'"):
        module.parse_header(answers + "// precision: many\n", "lab.cu")
