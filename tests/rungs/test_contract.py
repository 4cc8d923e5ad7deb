"""kernels/CONTRACT.md: its example runs, and it names what a kernel file may say and use."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import convlab
from convlab.core.correctness.reference import tolerance
from convlab.core.errors import UnsupportedError
from convlab.core.kernel import abi
from convlab.core.kernel.catalog import KERNEL_DIR, VARIABLES, Header, parse_header
from convlab.core.kernel.tunables import tunables
from convlab.core.problem.format import LAYOUTS
from tests.instruments.pages import between

PAGE = Path(__file__).resolve().parents[2] / "kernels" / "CONTRACT.md"
TEXT = PAGE.read_text()
KEYS = {field.name: field for field in dataclasses.fields(Header)}
# Headers that teach nothing: any kernel may use what they define.
SHARED = ("convlab.cuh", "convlab_async.cuh", "convlab_cublas.cuh", "tensor.cuh")


def example() -> str:
    """Return the source of the page's smallest kernel."""
    head, tail = between(PAGE, "example")
    block = TEXT[len(head) : len(TEXT) - len(tail)]
    return re.fullmatch(r"\n```cuda\n(.*)```\n", block, re.DOTALL)[1]


def section(title: str) -> str:
    """Return the text under a heading of the page, up to the next heading."""
    return re.split(r"^#+ ", TEXT.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(text: str) -> set[str]:
    """Return what a text has in backquotes, without arguments."""
    return {name.partition("(")[0] for name in re.findall(r"`([^`]+)`", text)}


def defined(header: str) -> set[str]:
    """Return the names that a header of kernels/ defines for kernels."""
    text = (KERNEL_DIR / header).read_text()
    functions = re.findall(r"^\w[\w :*<>]*?[ *](\w+)\(", text, re.MULTILINE)
    types = re.findall(r"^struct (?:\w+\([^)]*\) )?(\w+) {", text, re.MULTILINE)
    constants = re.findall(r"^constexpr \w+ (k\w+) =|^#define (CONVLAB_\w+)", text, re.MULTILINE)
    return {*functions, *types, *filter(None, (name for pair in constants for name in pair))}


def test_the_example_is_correct_on_the_simulator() -> None:
    kernel = convlab.compile(example(), name="smallest", engine="sim")
    for problem in (
        "N2 C3 H9 W8 K4 R3 S3 s2x1 p1 bias relu",
        "N1 C2 H12 W7 K3 R1 S5 p0x2 d1x2",
        "N0 C1 H3 W3 K1 R1 S1",
    ):
        assert convlab.check(kernel, problem, raises=True)
    with pytest.raises(UnsupportedError, match="groups == 1"):
        convlab.check(kernel, "N1 C2 H5 W5 K2 R3 S3 g2", raises=True)
    assert tunables(example()) == {"THREADS": "256"}
    narrow = convlab.compile(example(), name="narrow", engine="sim", defines={"THREADS": 64})
    assert convlab.check(narrow, "N2 C3 H9 W8 K4 R3 S3 s2x1 p1 bias", raises=True)


@pytest.mark.pure
def test_the_example_has_the_header_that_it_shows() -> None:
    header = parse_header(example(), "smallest.cu")
    assert header.supports == ("groups == 1",)
    assert header.epilogue == ("bias", "relu")


@pytest.mark.pure
def test_every_key_is_on_the_page_with_an_example() -> None:
    keys = {row[0].strip("`"): row for row in rows(section("The header comment"))}
    assert list(keys) == list(KEYS), "the table of keys must list Header's fields in their order"
    for key, (_, _, _, absent, line) in keys.items():
        header = parse_header(line.strip("`") + "\n", "example.cu")
        unset = parse_header("", "example.cu")
        changed = {name for name in KEYS if getattr(header, name) != getattr(unset, name)}
        assert changed == {key}, f"the example of {key} sets {changed or 'nothing'}"
        if absent.startswith("`"):
            same = parse_header(f"// {key}: {absent.strip('`')}\n", "example.cu")
            assert same == unset, f"{key} is not {absent} if it is left out"


@pytest.mark.pure
def test_every_value_and_variable_is_on_the_page() -> None:
    assert {*VARIABLES, "tf32"} <= names(section("`supports` and `best`"))
    layouts = {row[0].strip("`"): names(row[2]) for row in rows(section("`tensors`"))}
    assert layouts == {tensor: set(values) for tensor, values in LAYOUTS.items()}
    for precision, bound, _ in rows(section("`precision`")):
        bound_at_1 = tolerance(precision.strip("`"), 1)
        assert float(bound) == pytest.approx(bound_at_1, rel=0.05), precision


@pytest.mark.pure
def test_every_entry_point_is_on_the_page() -> None:
    listed = [row[0].strip("`") for row in rows(section("Entry points"))]
    # The build for CUDA adds the last one by itself.
    assert [*listed, "convlab_launch_error"] == list(abi._SIGNATURES)


@pytest.mark.pure
@pytest.mark.parametrize("header", SHARED)
def test_what_a_header_offers_is_on_the_page(header: str) -> None:
    missing = defined(header) - names(section("What the headers offer"))
    assert not missing, f"kernels/CONTRACT.md does not name {sorted(missing)} of {header}"


@pytest.mark.pure
def test_the_page_names_nothing_else() -> None:
    listed = names(section("What the headers offer"))
    files = {name for name in listed if name.endswith(".cuh")}
    assert files == {path.name for path in KERNEL_DIR.glob("*.cuh")}
    strange = listed - files - set().union(*map(defined, SHARED))
    assert not strange, f"no header defines {sorted(strange)}"
