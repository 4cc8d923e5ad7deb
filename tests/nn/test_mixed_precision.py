"""Layers in half precision: under autocast, in training, compiled; compared with torch's layers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convlab
from convlab.core.errors import ProblemError
from convlab.nn import gradients
from convlab.nn.choice import candidates

BF16 = torch.bfloat16
# Two operations of one rounding each differ by so much.
NEAR = {"rtol": 3e-2, "atol": 3e-2}


def layers(kernel="06b_depthwise_bf16") -> tuple[nn.Module, nn.Module]:
    """Return a depthwise layer twice: with a kernel that takes bf16, and torch's."""
    torch.manual_seed(1)
    theirs = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    return convlab.nn.replace(copy.deepcopy(theirs), kernel), theirs


def images(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def trained(layer: nn.Module, run=None) -> dict[str, torch.Tensor]:
    """Return y and all gradients of one call under autocast."""
    x = images()
    layer.zero_grad()
    with torch.autocast("cpu", dtype=BF16):
        y = (layer if run is None else run)(x)
    y.float().square().sum().backward()
    return {"y": y, "dx": x.grad, "dw": layer.weight.grad, "db": layer.bias.grad}


def assert_alike(ours: dict, theirs: dict) -> None:
    for name, expected in theirs.items():
        assert ours[name].dtype == expected.dtype, name
        torch.testing.assert_close(ours[name].float(), expected.float(), **NEAR)


def test_autocast_runs_a_bf16_kernel_and_gives_torchs_dtypes() -> None:
    ours, theirs = layers()
    found = trained(ours)
    assert_alike(found, trained(theirs))
    assert found["y"].dtype == BF16
    # The parameters are float32, and so are their gradients.
    assert found["dw"].dtype == found["db"].dtype == torch.float32


@pytest.mark.parametrize("name", ["auto", "auto:tf32"])
def test_auto_under_autocast_is_torchs_convolution_in_that_dtype(name) -> None:
    ours, theirs = layers(name)
    found = trained(ours)
    assert_alike(found, trained(theirs))
    assert found["y"].dtype == BF16


def test_a_compiled_layer_trains_under_autocast() -> None:
    ours, theirs = layers()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert_alike(trained(ours, compiled), trained(theirs))


def test_a_compiled_layer_trains_in_float32_for_two_steps() -> None:
    ours, theirs = layers("01_direct")
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for layer, run in ((ours, compiled), (theirs, theirs)):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        for step in range(2):
            optimizer.zero_grad()
            run(images(step)).square().mean().backward()
            optimizer.step()
    for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


def test_a_bf16_model_needs_no_autocast() -> None:
    ours, theirs = (layer.to(BF16) for layer in layers())
    x = images().detach().to(BF16)
    y = ours(x)
    assert y.dtype == BF16
    torch.testing.assert_close(y.float(), theirs(x).float(), **NEAR)
    y.float().sum().backward()
    assert ours.weight.grad.dtype == BF16


def test_another_dtype_than_the_kernels_raises() -> None:
    ours, _ = layers()
    with pytest.raises(
        ProblemError, match=r"x is float32, but the kernel takes bfloat16: .*autocast"
    ):
        ours(images())
    with pytest.raises(ProblemError, match="float16, but the kernel takes bfloat16"):
        ours.half()(images().half())
    with torch.autocast("cpu", dtype=BF16), pytest.raises(ProblemError, match="float64"):
        ours.double()(images().double())


@pytest.fixture
def rungs(monkeypatch) -> list[str]:
    """Let the simulator's rungs in bf16 compute gradients on the CPU; return what was asked for."""
    found = []
    kernels = {
        "data gradient": convlab.load("20d_data_gradient_bf16", engine="sim", trace=False),
        "weight gradient": convlab.load("21b_weight_gradient_bf16", engine="sim", trace=False),
    }

    def choose(problem, precision):
        found.append((problem.computes, precision))
        return kernels.get(problem.computes)

    monkeypatch.setattr(gradients, "gradient_kernel", choose)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    return found


def test_gradients_by_rungs_in_bf16(rungs) -> None:
    torch.manual_seed(2)
    theirs = nn.Conv2d(4, 6, 3, padding=1)
    ours = convlab.nn.replace(copy.deepcopy(theirs), convlab.load("15_wgmma_bf16", engine="sim"))
    assert_alike(trained(ours), trained(theirs))
    assert rungs == [("data gradient", "bf16"), ("weight gradient", "bf16")]


def test_gradcheck_of_a_layer_with_rungs_for_gradients(monkeypatch) -> None:
    rungs = {
        "data gradient": convlab.load("18_data_gradient", engine="sim", trace=False),
        "weight gradient": convlab.load("19_weight_gradient", engine="sim", trace=False),
    }
    monkeypatch.setattr(gradients, "gradient_kernel", lambda problem, _: rungs[problem.computes])
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    kernel = convlab.load("01_direct", engine="sim", trace=False)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 2, 5, 4, generator=generator).requires_grad_()
    w = torch.randn(2, 1, 3, 2, generator=generator).requires_grad_()
    # y is linear in each of them, so that a long step is exact but for rounding.
    step = {"eps": 0.5, "atol": 1e-4, "rtol": 1e-4}
    assert torch.autograd.gradcheck(
        lambda x, w: kernel(x, w, None, (2, 1), 1, 1, 2), (x, w), **step, fast_mode=False
    )


def test_candidates_in_half_precision_take_that_dtype() -> None:
    for precision, dtype in (("bf16", "bf16"), ("fp16", "f16")):
        found = candidates(precision, "sim")
        assert found and {kernel.precision for kernel in found} == {precision}
        for kernel in found:
            assert kernel.format.x.dtype == kernel.format.y.dtype == dtype
            assert kernel.format.x.layout.endswith("CHW")
    assert any(kernel.computes == "weight gradient" for kernel in candidates("bf16", "sim"))


@pytest.mark.gpu
def test_a_network_trains_under_autocast_on_a_gpu() -> None:
    torch.manual_seed(4)
    theirs = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3)).cuda()
    mine = convlab.nn.replace(copy.deepcopy(theirs), "15_wgmma_bf16")
    x = torch.randn(8, 16, 64, 64, device="cuda")

    def trained(model: nn.Module, x: torch.Tensor, autocast: bool) -> list[torch.Tensor]:
        """Return the network's output and the gradients of its parameters."""
        with torch.autocast("cuda", dtype=BF16, enabled=autocast):
            y = model(x)
        y.to(x.dtype).square().mean().backward()
        return [y.detach(), *(parameter.grad for parameter in model.parameters())]

    truth = trained(copy.deepcopy(theirs).double(), x.double(), autocast=False)
    expected = trained(theirs, x, autocast=True)
    found = trained(mine, x, autocast=True)
    for exact, theirs_is, mine_is in zip(truth, expected, found, strict=True):
        assert mine_is.dtype == theirs_is.dtype
        error_of_torch = (theirs_is.double() - exact).norm()
        assert (mine_is.double() - exact).norm() < 1.5 * error_of_torch


def test_functions_take_half_precision_too() -> None:
    x = images().detach().to(BF16)
    w = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(5)).to(BF16)
    y = convlab.nn.conv2d(x, w, groups=4, kernel="06b_depthwise_bf16")
    torch.testing.assert_close(y.float(), F.conv2d(x.float(), w.float(), groups=4), **NEAR)
