"""The walls: what may import what, how large a file may be, what there is only one of."""

import ast
import re
from pathlib import Path

import pytest

import convlab
from tests.instruments import house

MODULES = house.modules()


def floor(name: str) -> int:
    """How high a module stands; the package itself sees all of it."""
    return len(house.FLOORS) if not name else house.FLOORS.index(name.split(".")[0])


def calls(text: str) -> list[tuple[str, str]]:
    """(where, source) of each place in the package whose code matches a pattern."""
    pattern = re.compile(text)
    return [
        (name, line.strip())
        for name, path in MODULES.items()
        for line in path.read_text().splitlines()
        if pattern.search(line) and not line.lstrip().startswith("#")
    ]


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "convlab")
def test_imports_go_down(name: str) -> None:
    above = [target for target, _ in house.imports(name, MODULES[name]) if floor(target) > floor(name)]
    assert not above, f"{name} imports what stands above it"


def test_no_circles() -> None:
    assert house.circles() == []


def test_nothing_shadows_a_module() -> None:
    folders = {path.stem for path in house.PACKAGE.iterdir()} | {
        part for name in MODULES for part in [".".join(name.split(".")[:1])]
    }
    assert not (set(convlab.__all__) - {"nn"}) & folders
    for name in convlab.__all__:
        assert getattr(convlab, name) is not None


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "convlab")
def test_file_is_short(name: str) -> None:
    assert house.lines(MODULES[name]) <= 400


def test_one_of_each() -> None:
    """One caller of the C entry point, one child process, one finder of tools, one table of GPUs."""
    starting = {name for name, _ in calls(r"\bPopen\(|os\.fork\(|multiprocessing\.(Process|Pool)")}
    assert starting <= {"machine.child", "machine.child_process", "sim.host"}, "a child process is started elsewhere"
    finding = {name for name, _ in calls(r"shutil\.which\(")}
    assert finding <= {"machine.toolchain"}, "tools are looked for elsewhere"
    calling = {name for name, _ in calls(r"\.conv2d(_workspace|_plan|_prepare)?\.(restype|argtypes)")}
    assert calling <= {"machine.abi"}, "the C entry points are called elsewhere"
    gpus = {name for name, line in calls(r"H200|A100|RTX 4090")
            if "#" not in line and "help=" not in line and line[:3] not in ('"""', ">>>")}  # fmt: skip
    assert gpus <= {"machine.device"}, "GPUs are told apart elsewhere"


def test_no_probing() -> None:
    """What a runnable has is said once: nobody asks whether it has it, nor compares its engine."""
    allowed = {"run", "sim", "machine", "words", "use", "nn", ""}
    probing = [(name, line) for name, line in calls(r"engine (==|!=) ")
               if name.split(".")[0] not in allowed]  # fmt: skip
    assert not probing
    asked = [(name, line) for name, line in calls(r'(has|get)attr\([^)]*"(prepare|source|path|build|engine|defines|'
                                                  r'precision|workspace|counters|allocate|y|inputs)"')]  # fmt: skip
    assert [each for each in asked if each[0].split(".")[0] != "use"] == []  # there: of a parser


def test_compare_walks_through_few_modules() -> None:
    """Modules that take decisions for `compare`: floors of words and tools are not counted."""
    path = [name for name in house.walked("compare") if name.split("/")[0] in ("fast", "right")]
    assert len(path) <= 6, path


@pytest.mark.parametrize("measure", house.numbers())
def test_numbers(measure: str) -> None:
    now, most, _ = house.numbers()[measure]
    assert now <= most


def test_no_file_hides_a_path_of_a_machine() -> None:
    for path in Path(house.ROOT, "convlab").rglob("*.py"):
        ast.parse(path.read_text())
        assert not any(f"/{folder}/" in path.read_text() for folder in ("root", "home")), path
