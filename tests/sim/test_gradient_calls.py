"""Calls of kernels that compute gradients, and comparisons of kernels that compute different things."""

from __future__ import annotations

import pytest
import torch

import convlab
from convlab.core.errors import ProblemError
from convlab.core.timing.compare import compare

pytestmark = pytest.mark.pure


def test_kernels_that_compute_different_things_are_not_compared():
    with pytest.raises(ProblemError, match=r"18_data_gradient.*compare kernels with the same"):
        compare(["01_direct", "18_data_gradient"], "wide", engine="sim", progress=False)


def test_a_call_with_unsuitable_arguments_is_refused():
    data = convlab.load("18", engine="sim")
    weight = convlab.load("19", engine="sim")
    x = torch.ones(1, 2, 5, 5)
    dy = torch.ones(1, 3, 3, 3)
    w = torch.ones(3, 2, 3, 3)
    for call, message in (
        (lambda: weight(x, dy), "pass filter_size"),
        (lambda: weight(x, dy, filter_size=2), "dy has shape"),
        (lambda: weight(x, dy, filter_size=3, output_padding=1), "is for data gradients"),
        (lambda: data(dy, w, filter_size=3), "filter_size is for weight gradients"),
        (lambda: data(dy, w, torch.ones(2)), "no bias and no ReLU"),
        (lambda: data(dy.clone().requires_grad_(), w), "under torch.no_grad"),
        (lambda: data(dy.double(), w), "dy is torch.float64"),
        (lambda: convlab.load("01", engine="sim")(x, w, filter_size=3), "forward convolution"),
    ):
        with pytest.raises(ProblemError, match=message):
            call()
