"""The call of a baseline without the room that computes derivatives."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from convlab.core import rooms
from convlab.core.errors import ProblemError
from convlab.core.kernel.data import resolved
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


def test_what_torch_records_needs_its_room():
    conv = baseline("torch:cpu")
    x, w = tensors()
    with pytest.raises(ProblemError, match="tracing and tensor subclasses need convlab/nn"):
        make_fx(lambda x: conv(x, w))(x)


def test_a_kernel_gets_numbers_that_are_in_memory():
    """A kernel on a GPU would read a negated view, or zeros never stored, as other numbers."""
    x = torch.ones(2, 3)
    for pending in (torch._neg_view(x), torch._efficientzerotensor(x.shape)):
        kept = resolved(pending)
        assert not kept.is_neg() and not kept._is_zerotensor() and kept.data_ptr()
        torch.testing.assert_close(kept, pending)
    assert resolved(x) is x


def test_a_storage_that_is_too_small_is_refused():
    """A kernel would read past its end: a crash, or any numbers."""
    conv = baseline("torch:cpu")
    x, w = tensors()
    x.untyped_storage().resize_(20)
    with pytest.raises(ProblemError, match="x needs 200 bytes, but its storage has 20"):
        conv(x, w)
