"""Layers compute gradients by convlab's rungs, where `gradient_kernel` says so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.nn import gradients

PROBLEM = {"stride": 2, "padding": 1, "groups": 2}


@pytest.fixture
def asked(monkeypatch):
    """Let the simulator's rungs 18 and 19 compute gradients on the CPU; return what was asked for."""
    rungs = {
        "data gradient": convlab.load("18_data_gradient", engine="sim", trace=False),
        "weight gradient": convlab.load("19_weight_gradient", engine="sim", trace=False),
    }
    found = []

    def choose(problem, precision):
        found.append((problem.computes, precision))
        return rungs[problem.computes]

    monkeypatch.setattr(gradients, "gradient_kernel", choose)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    return found


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    shapes = ((2, 4, 7, 8), (6, 2, 3, 3), (6,))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def test_gradients_of_a_layer_are_those_of_torch(asked):
    kernel = convlab.load("01_direct", engine="sim", trace=False)
    own = tensors()
    y = kernel(*own, **PROBLEM, relu=True)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(4))
    y.backward(dy)
    other = tensors()
    F.conv2d(*other, **PROBLEM).relu().backward(dy)
    for mine, theirs in zip(own, other, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert asked == [("data gradient", "fp32"), ("weight gradient", "fp32")]


def test_only_what_is_needed_is_computed(asked):
    kernel = convlab.load("01_direct", engine="sim", trace=False)
    x, w, _ = tensors()
    kernel(x.detach(), w, **PROBLEM).sum().backward()
    assert asked == [("weight gradient", "fp32")]


def test_a_gradient_that_is_differentiated_is_torchs(asked):
    kernel = convlab.load("01_direct", engine="sim", trace=False)
    grads = []
    for convolve in (kernel, F.conv2d):
        x, w, _ = tensors()
        y = convolve(x, w, **PROBLEM)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        if convolve is kernel:
            assert asked == []
        dx.square().sum().backward()
        grads.append((x.grad, w.grad))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-2)


def test_a_gradient_is_computed_by_what_best_takes(monkeypatch):
    problem = convlab.problem("wide").computing("weight gradient")
    rung = convlab.load("19b_weight_gradient_gemm", engine="sim")
    library = convlab.best("N1 C1 H3 W3 K1 R3 S3", gpu="H200")
    monkeypatch.setattr(gradients.toolchain, "cuda", lambda: "there")
    for chosen, expected in ((rung, rung), (library, None)):
        monkeypatch.setattr("convlab.nn.choice.best", lambda *_, chosen=chosen, **__: chosen)
        gradients._auto.cache_clear()
        assert gradients.gradient_kernel(problem, "tf32") is expected
    gradients._auto.cache_clear()


def test_choices_list_the_gradients_of_each_layer():
    model = torch.nn.Sequential(torch.nn.Conv2d(64, 128, 3), torch.nn.Conv2d(128, 4, 1))
    found = convlab.nn.choices(
        model, torch.empty(8, 64, 256, 256), kernel="auto:tf32", gpu="H200", gradients=True
    )
    assert [problem.computes for _, problem, _ in found] == [
        "forward",
        "data gradient",
        "weight gradient",
    ] * 2
    names = [taken.name for *_, taken in found]
    assert names[1:3] == ["20_data_gradient_wgmma", "21_weight_gradient_wgmma"]
    assert "weight_gradient" in str(found) and "21_weight_gradient_wgmma: its header" in str(found)
    with pytest.raises(convlab.errors.ProblemError, match="gradients must be True or False"):
        convlab.nn.choices(model, torch.empty(1, 64, 8, 8), gradients="yes")


@pytest.mark.gpu
def test_gradients_on_a_gpu_are_within_the_class():
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(16, 64, 256, 256, device="cuda", generator=generator).requires_grad_()
    w = (torch.randn(64, 64, 3, 3, device="cuda", generator=generator) / 24).requires_grad_()
    problem = convlab.Problem(16, 64, 256, 256, 64, 3, 3, padding=1)
    for name, precision in (("11_wgmma_tf32", "tf32"), ("13_wgmma_3xtf32", "fp32")):
        x.grad = w.grad = None
        kernel = convlab.load(name)
        y = kernel(x, w, padding=1)
        dy = torch.randn(y.shape, device="cuda", generator=generator)
        y.backward(dy)
        for computes, grad, given in (
            ("data gradient", x.grad, (dy, w.detach())),
            ("weight gradient", w.grad, (x.detach(), dy)),
        ):
            conv = problem.computing(computes)
            if gradients.gradient_kernel(conv, precision) is None:
                # It is torch's, whose class is that of its settings.
                continue
            expected = convlab.core.correctness.reference.truth(conv, *given)
            error = float((grad.double() - expected).norm() / expected.norm())
            bound = convlab.core.correctness.reference.tolerance(precision, conv.terms)
            assert error <= bound
    assert gradients.gradient_kernel(problem.computing("data gradient"), "tf32") is not None


@pytest.mark.gpu
def test_a_layer_of_cudnn_alone_is_torchs_own():
    layer = convlab.nn.Conv2d(8, 8, 3, device="cuda", kernel="auto:tf32")
    x = torch.randn(1, 8, 6, 6, device="cuda", requires_grad=True)
    first, second = layer(x), layer(x)
    assert "Convolution" in type(second.grad_fn).__name__
    torch.testing.assert_close(first, second)
    second.sum().backward()
    dy = torch.ones_like(second)
    expected = torch.nn.grad.conv2d_input(x.shape, layer.weight, dy)
    torch.testing.assert_close(x.grad, expected, rtol=1e-2, atol=1e-2)
