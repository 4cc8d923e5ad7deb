"""What all tests share: the `gpu` mark, and an order in which two processes end together."""

import gc
import os
import signal
import sys

import pytest
import torch

from convlab.strict import nvcc_report

# What takes longest begins first; each of the last is one group, tens of seconds long.
HEAVY = (
    "test_browser",
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes long first; leave out what is marked `gpu` where there is no GPU."""
    rank = {name: place for place, name in enumerate(HEAVY)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(HEAVY)))
    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=[item for item in items if "gpu" in item.keywords])
    items[:] = [item for item in items if "gpu" not in item.keywords]


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
        if "nvcc" not in request.node.name:
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
