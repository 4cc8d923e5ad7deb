"""The call of a baseline without the room that computes derivatives."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad

from convlab.core import rooms
from convlab.core.errors import ProblemError
from convlab.core.kernel.libraries import baseline


@pytest.fixture(autouse=True)
def no_derivatives(monkeypatch):
    """Remove everything that rooms provide."""
    monkeypatch.setattr(rooms, "provided", lambda kind, name: None)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)


def test_a_call_without_gradients_needs_no_room():
    conv = baseline("torch:cpu")
    x, w = tensors()
    assert conv(x, w, padding="same").shape == (1, 3, 5, 5)
    with torch.no_grad():
        assert conv(x[0].requires_grad_(), w).shape == (3, 3, 3)
    with torch.inference_mode():
        assert conv(x, w.requires_grad_()).grad_fn is None


def test_gradients_need_their_room():
    conv = baseline("torch:cpu")
    x, w = tensors()
    with pytest.raises(ProblemError, match="gradients need convlab/nn, which was removed"):
        conv(x, w.clone().requires_grad_())
    with pytest.raises(ProblemError, match="convlab/nn"):
        func.grad(lambda w: conv(x, w).sum())(w)
    with pytest.raises(ProblemError, match="convlab/nn"), forward_ad.dual_level():
        conv(forward_ad.make_dual(x, x), w)
