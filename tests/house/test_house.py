"""The walls: what may import what, how large a file may be, what there is only one of."""

import re

import pytest

import convlab
from tests.instruments import house

MODULES = house.modules()


def floor(name: str) -> int:
    """How high a module stands; the package itself sees all of it."""
    return len(house.FLOORS) if not name else house.FLOORS.index(name.split(".")[0])


def calls(text: str) -> list[tuple[str, str]]:
    """(where, source) of each place in the package whose code matches a pattern."""
    return [
        (name, line.strip())
        for name, path in MODULES.items()
        for line in path.read_text().splitlines()
        if re.search(text, line) and not line.lstrip().startswith("#")
    ]


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "convlab")
def test_imports_go_down_and_a_file_is_short(name: str) -> None:
    above = [
        target for target, _ in house.imports(name, MODULES[name]) if floor(target) > floor(name)
    ]
    assert not above, f"{name} imports what stands above it"
    assert house.lines(MODULES[name]) <= 400
    assert not re.search("/(root|home)/", MODULES[name].read_text()), "a path of a machine"


def test_no_circles() -> None:
    assert house.circles() == []


def test_nothing_shadows_a_module() -> None:
    folders = {path.stem for path in house.PACKAGE.iterdir()} | {n.split(".")[0] for n in MODULES}
    assert not (set(convlab.__all__) - {"nn"}) & folders
    for name in convlab.__all__:
        assert getattr(convlab, name) is not None


# What there is one of, by the code that tells it, and where that may stand.
ONE = {
    "child process": (
        r"\bPopen\(|os\.fork\(|multiprocessing\.(Process|Pool)",
        {"machine.child", "machine.child_process", "sim.host"},
    ),
    "finder of tools": (r"shutil\.which\(", {"machine.toolchain"}),
    "caller of the entry points": (r"\"conv2d_(workspace|plan|prepare)\"(?! in )", {"machine.abi"}),
    "table of GPUs": (
        r"^(?!\s*(\"\"\"|>>>))(?!.*(#|help=)).*(H200|A100|RTX 4090)",
        {"machine.device"},
    ),
}


@pytest.mark.parametrize("what", ONE)
def test_one_of_each(what: str) -> None:
    pattern, there = ONE[what]
    found = {name for name, _ in calls(pattern)}
    assert found and found <= there


def test_no_probing() -> None:
    """What a runnable has is said once: nobody asks whether it has it, nor compares its engine."""
    allowed = {"run", "sim", "machine", "words", "use", "nn", ""}
    assert {name.split(".")[0] for name, _ in calls(r"engine (==|!=) ")} <= allowed
    asked = calls(
        r'(has|get)attr\([^)]*"(prepare|source|path|build|engine|defines|'
        r'precision|workspace|counters|allocate|y|inputs)"'
    )
    assert {name.split(".")[0] for name, _ in asked} <= {"use"}  # there: of a parser


def test_compare_walks_through_few_modules() -> None:
    """Modules that take decisions for `compare`: floors of words and tools are not counted."""
    path = [name for name in house.walked("compare") if name.split("/")[0] in ("fast", "right")]
    assert len(path) <= 6, path


def test_numbers() -> None:
    assert not [what for what, (now, most, _) in house.numbers().items() if now > most]
