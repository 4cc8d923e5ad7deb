"""The rules of the house: who may import whom, what a room needs, and how code and tests look."""

import ast
import re
from collections.abc import Iterator

import pytest

import convlab
from tests.instruments import deletion, house

MODULES = house.modules()
ROOMS = house.rooms()
TESTS = house.modules(house.TESTS)


def trees() -> Iterator[tuple[str, ast.AST]]:
    """Yield the name and the syntax tree of each module of the package."""
    for name, path in MODULES.items():
        yield name, ast.parse(path.read_text())


def calls(text: str) -> list[tuple[str, str]]:
    """(where, source) of each place in the package whose code matches a pattern."""
    return [
        (name, line.strip())
        for name, path in MODULES.items()
        for line in path.read_text().splitlines()
        if re.search(text, line) and not line.lstrip().startswith("#")
    ]


# ---- imports ----------------------------------------------------------------------------------


@pytest.mark.pure
def test_the_core_imports_no_room() -> None:
    """In functions and for types neither; the front door may name the commands, and says so."""
    between = house.between_parts()
    assert between.get("core", {}) == {}
    assert set(between[""]) <= {"core", "commands"}


@pytest.mark.pure
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_core_and_what_its_page_says(room: str) -> None:
    imported = house.between_parts().get(room, {})
    unsaid = {other: imported[other] for other in set(imported) - house.allowed(room)}
    assert not unsaid, f'convlab/{room}/README.md needs a line "Imports: core, ..."'


@pytest.mark.pure
def test_no_circles() -> None:
    assert house.circles() == []


@pytest.mark.pure
def test_no_test_imports_a_test() -> None:
    """What tests share is in modules of tests/ that are named for what they hold."""
    names = {path.stem for path in TESTS.values() if path.stem.startswith("test_")}
    found = []
    for path in TESTS.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                imported = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            if names.intersection(imported):
                found.append(f"{path.relative_to(house.ROOT)}:{node.lineno}")
    assert not found


# ---- rooms ------------------------------------------------------------------------------------


@pytest.mark.pure
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_a_short_page(room: str) -> None:
    page = house.PACKAGE / room / "README.md"
    assert page.is_file() and len(page.read_text().splitlines()) < 60


@pytest.mark.pure
def test_each_folder_is_the_core_or_a_room() -> None:
    folders = {path.name for path in house.PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == {"core", *ROOMS}


@pytest.mark.pure
def test_all_folders_are_installed() -> None:
    packages = {f"convlab.{folder}".rstrip(".") for folder in house.folders(house.PACKAGE)}
    assert house.declared_packages() == packages | {"convlab.kernels"}


def test_all_else_imports_without_a_room() -> None:
    """What falls with a room is in rooms that import it, as their pages say; never in the core."""
    between = house.between_parts()
    with deletion.copies(ROOMS) as folders:
        fallen = deletion.fallen(folders.values())
    for room, folder in folders.items():
        others = {house.part(name.removeprefix("convlab.")) for name in fallen[folder]}
        unsaid = {other for other in others if room not in between.get(other, {})}
        assert not unsaid - {room} and others.isdisjoint(("core", "")), fallen[folder]


# ---- code -------------------------------------------------------------------------------------


@pytest.mark.pure
def test_nothing_shadows_a_public_name() -> None:
    folders = {path.stem for path in house.PACKAGE.iterdir()} | {n.split(".")[0] for n in MODULES}
    assert not (set(convlab.__all__) - {"nn"}) & folders
    for name in convlab.__all__:
        assert getattr(convlab, name) is not None


def swaps(node: ast.Assign) -> bool:
    """Return whether a tuple is assigned at once because a value uses what a target sets."""
    set_here = {ast.unparse(target) for target in node.targets[0].elts}
    used = {ast.unparse(inner) for inner in ast.walk(node.value) if isinstance(inner, ast.expr)}
    return bool(set_here & used)


@pytest.mark.pure
def test_one_statement_a_line() -> None:
    found = []
    for name, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            if isinstance(node.targets[0], ast.Tuple) and not swaps(node):
                found.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert not found


@pytest.mark.pure
def test_the_formatter_formats_everything() -> None:
    assert not calls("# fmt: (skip|off)")


@pytest.mark.pure
def test_no_path_of_a_machine() -> None:
    assert not [
        name for name, path in MODULES.items() if re.search("/(root|home)/", path.read_text())
    ]


# What there is one of, by the code that shows it, and where that may be.
ONE = {
    "child process": (
        r"\bPopen\(|os\.fork\(|multiprocessing\.(Process|Pool)",
        {
            "adopt.process",
            "core.machine.child",
            "core.machine.child_process",
            "commands.supervise",
            "sim.host",
        },
    ),
    "finder of tools": (r"shutil\.which\(", {"core.machine.toolchain"}),
    "caller of the entry points": (
        r"\"conv2d_(workspace|plan|prepare)\"(?! in )",
        {"core.kernel.abi"},
    ),
    "table of GPUs": (
        r"^(?!\s*(\"\"\"|>>>))(?!.*(#|help=)).*(H200|A100|RTX 4090)",
        {"core.machine.gpus"},
    ),
}


@pytest.mark.pure
@pytest.mark.parametrize("what", ONE)
def test_one_of_each(what: str) -> None:
    pattern, places = ONE[what]
    found = {name for name, _ in calls(pattern)}
    assert found and found <= places


@pytest.mark.pure
def test_no_probing() -> None:
    """What a runnable has is said once: nobody asks whether it has it."""
    asked = calls(
        r'(has|get)attr\([^)]*"(prepare|source|path|build|engine|defines|'
        r'precision|workspace|counters|allocate|y|inputs)"'
    )
    assert {name.split(".")[0] for name, _ in asked} <= {"commands"}  # there: of a parser


@pytest.mark.pure
def test_the_path_through_the_core_is_there() -> None:
    path = house.core_path()
    assert len(path) >= 10 and [file for file in path if not file.is_file()] == []


@pytest.mark.parametrize("function", ["check", "compare", "ab"])
def test_modules_of_the_core_that_a_call_enters_are_counted(function: str) -> None:
    entered = [name for name in house.entered(function) if name.startswith("core/")]
    assert "core/kernel/runnable.py" in entered and len(entered) == len(set(entered))


def test_the_core_passes_its_tests_without_the_simulator() -> None:
    with deletion.without("sim") as folder:
        passed, failed, text = deletion.core_tests(folder, "-n", "0", "-p", "no:cacheprovider")
    assert passed > 500 and not failed, text
