"""What all tests share: the marks `pure` and `gpu`, and the order in which tests run."""

import functools
import gc
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

# numpy 1.26 starts a process when this is imported, which a pure test must not do.
import numpy.testing  # noqa: F401
import pytest
import torch

from convlab.core import rooms
from convlab.core.machine import child, toolchain

# After the pure tests, what takes longest begins first: two processes then end together.
HEAVY = (
    "test_browser",
    "test_house",
    "test_notebooks",
    "test_magics",
    "test_build",
    "test_report_schema",
    "test_install",
    "test_executors",
    "test_mutants",
    "test_default_check",
    "test_inspect",
    "test_sim",
    "test_kernels",
)

gc.set_threshold(100_000, 20, 20)  # of what runs here, a tenth was the collector's
torch.set_num_threads(1)  # truths are small here, and the simulator has use for the cores
os.environ["OMP_NUM_THREADS"] = "1"  # of what the tests start, too: threads that wait are busy
sys.modules["rfc3987_syntax"] = None  # a grammar: jsonschema takes a second for it, if it is there
# Some interrupt themselves, or what they start: a script's job or nohup's is begun deaf to that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Python's audit events of a process that starts. Builds are programs that run, so these are too.
STARTS = frozenset(
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")
)
pure_test: str | None = None  # the pure test that runs now
impure: list[str] = []  # what it did that a pure test must not do


def _audit(event: str, _: tuple) -> None:
    """Refuse and remember a process that a pure test starts: code may catch the error."""
    if pure_test is not None and event in STARTS:
        impure.append(event)
        raise PermissionError(f"{pure_test} is marked pure, and starts a process ({event})")


sys.addaudithook(_audit)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m pure``, do not import files that have no pure test: some take seconds."""
    if config.option.markexpr != "pure" or not collection_path.match("test_*.py"):
        return None
    return "mark.pure" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put pure tests first, then what takes long; leave out `gpu` tests where there is no GPU."""
    rank = {name: place for place, name in enumerate(HEAVY)}

    def place(item: pytest.Item) -> int:
        return -1 if "pure" in item.keywords else rank.get(item.path.stem, len(HEAVY))

    items.sort(key=place)
    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=[item for item in items if "gpu" in item.keywords])
    items[:] = [item for item in items if "gpu" not in item.keywords]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Warn where pytest-xdist forgets its groups, whose fixtures each process then makes anew."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if (
        grouped
        and getattr(session.config.option, "loadgroup", False)
        and "@" not in grouped[0].nodeid
    ):
        text = "pytest-xdist ignores xdist_group with this pytest: pip install -r requirements.txt"
        warnings.warn(pytest.PytestWarning(text), stacklevel=1)


NO_BUILDS = tempfile.TemporaryDirectory(prefix="convlab-no-builds-")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a pure test, its module's fixtures included, where no process answers and no build is."""
    global pure_test
    impure.clear()
    with pytest.MonkeyPatch.context() as patch:
        # In a pure file, a test marked gpu may build and run what it needs.
        if "pure" in item.keywords and "gpu" not in item.keywords:
            pure_test = item.nodeid
            patch.setattr(child.Child, "ask", _ask)
            # Results say which compilers there are; each process asks them once.
            patch.setattr(toolchain, "version", functools.cache(lambda tool: "not asked"))
            patch.setenv("CONVLAB_CACHE", NO_BUILDS.name)
        try:
            return (yield)
        finally:
            pure_test = None


def _ask(*_: object) -> None:
    """Stand for `Child.ask` in a pure test."""
    impure.append("Child.ask")
    raise PermissionError(f"{pure_test} is marked pure, and asks another process")


@pytest.fixture(autouse=True)
def _pure_tests_are_pure() -> Iterator[None]:
    """Fail a pure test that compiles, starts a process or asks one that another test started."""
    yield
    assert not impure, f"a pure test starts or asks processes: {', '.join(impure)}"


@pytest.fixture(autouse=True)
def _give_back_gpu_memory():
    """Keep nothing of a test's tensors cached: other processes test beside this one."""
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def _nvcc_where_it_is_the_subject(request: pytest.FixtureRequest):
    """Have nvcc compile what is checked on the simulator only in tests that are named after it."""
    with pytest.MonkeyPatch.context() as patch:
        if "nvcc" not in request.node.name and "strict" in rooms.rooms():
            from convlab.strict import nvcc_report

            patch.setattr(nvcc_report, "nvcc_report", lambda kernel: None)
        yield


def _settings() -> list[object]:
    backends = torch.backends
    settings = (
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.cuda.matmul,
        backends.mkldnn.conv,
        backends.mkldnn.matmul,
    )
    return [each.fp32_precision for each in settings]


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was():
    """Fail where a test leaves torch's precision changed: `torch.export` then raises in another."""
    before = _settings()
    yield
    assert _settings() == before


@pytest.fixture
def few(monkeypatch):
    """Let a few problems stand for the set "awkward"."""
    from convlab.core.correctness import check as checking
    from convlab.core.problem.named import problems

    chosen = problems("awkward")[::5]
    monkeypatch.setattr(checking, "named_problems", {"awkward": chosen, "limits": []}.get)
    return chosen
