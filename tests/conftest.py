"""What all tests share: the `gpu` mark, and a build cache of the tests' own."""

import pytest
import torch

torch.set_num_threads(1)  # truths are small here, and the simulator has use for the cores


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is no GPU."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
