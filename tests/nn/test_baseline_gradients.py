"""convlab's baselines, which are torch's own convolutions, work with autograd."""

import pytest
from torch.nn import functional as F

from convlab.core.correctness.reference import inputs
from convlab.core.kernel.libraries import baseline
from convlab.core.problem.named import problem


@pytest.mark.parametrize("name", ["torch:im2col", "torch:cpu"])
def test_a_baseline_s_output_requires_grad(name):
    small = problem("awkward.everything")
    x, w, bias = inputs(small)
    options = (small.stride, small.padding, small.dilation, small.groups)
    y = baseline(name, "cpu")(x.requires_grad_(), w, bias, *options)
    assert y.requires_grad and baseline(name, "cpu")(x[0], w, bias, *options).equal(y[0])
    expected = F.conv2d(x, w, bias, *options).detach()
    assert y.detach().allclose(expected, rtol=1e-4, atol=1e-5)
