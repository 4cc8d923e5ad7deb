"""Threads that call torch at the same time share the cores."""

import os

import pytest
import torch

from convlab.core.machine import torch_threads


@pytest.mark.pure
def test_the_number_of_threads_is_limited_and_restored() -> None:
    before = torch.get_num_threads()
    with torch_threads.shared_by(10_000):
        assert torch.get_num_threads() == 1
        with torch_threads.shared_by(10_000):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with torch_threads.shared_by(1):
        assert torch.get_num_threads() == min(before, len(os.sched_getaffinity(0)))
    with pytest.raises(ValueError), torch_threads.shared_by(10_000):
        raise ValueError
    assert torch.get_num_threads() == before
