"""The second call of a layer: no validation, and the same answers, errors and gradients as the first."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import convlab
from convlab.core.errors import ProblemError, UnsupportedError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.kernel.kernel import Kernel
from convlab.nn import repeated

DIRECT = (KERNEL_DIR / "01_direct.cu").read_text()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Keep calls on this device; without a GPU on the simulator, which else gains nothing by it."""
    monkeypatch.setattr(repeated, "_KIND", request.param)
    monkeypatch.setattr(repeated, "_calls", weakref.WeakKeyDictionary())
    if request.param == "cpu":
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return request.param


@pytest.fixture
def again(monkeypatch):
    """Return the problems of the calls that were repeated."""
    problems = []
    compute = Kernel.again

    def recorded(kernel, problem, *tensors, **options):
        problems.append(problem)
        return compute(kernel, problem, *tensors, **options)

    monkeypatch.setattr(Kernel, "again", recorded)
    return problems


def layer_on(device: str, **options) -> convlab.nn.Conv2d:
    torch.manual_seed(0)
    return convlab.nn.Conv2d(3, 4, 3, padding=1, device=device, **{"kernel": "01_direct"} | options)


def images(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 3, 6, 7), device=device)


def expected(layer, x):
    y = F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)
    return y.relu() if layer.relu else y


@pytest.mark.parametrize("relu", [False, True])
def test_the_second_call_is_repeated_with_new_numbers(device, again, relu):
    layer = layer_on(device, relu=relu, kernel="03_smem_tile")
    layer(images(device).requires_grad_())
    assert not again
    for count in (1, 2):
        x = images(device).requires_grad_()
        layer.zero_grad()
        y = layer(x)
        dy = torch.randn_like(y)
        y.backward(dy)
        assert len(again) == count
        theirs = expected(layer, x)
        torch.testing.assert_close(y.double(), theirs, atol=1e-5, rtol=0)
        wanted = torch.autograd.grad(theirs, (x, layer.weight, layer.bias), dy.double())
        for ours, right in zip((x.grad, layer.weight.grad, layer.bias.grad), wanted, strict=True):
            torch.testing.assert_close(ours, right.float(), atol=1e-3, rtol=1e-3)


def test_a_double_backward_is_that_of_torch(device, again):
    layer = layer_on(device)
    layer(images(device).requires_grad_())
    x = images(device).requires_grad_()
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(dx.square().sum(), x)
    assert len(again) == 1
    x64 = x.detach().double().requires_grad_()
    (dx,) = torch.autograd.grad(expected(layer, x64).square().sum(), x64, create_graph=True)
    (wanted,) = torch.autograd.grad(dx.square().sum(), x64)
    torch.testing.assert_close(twice, wanted.float(), atol=1e-2, rtol=1e-3)


def other_shape(layer, x):
    return x[:, :, :5].contiguous()


def other_strides(layer, x):
    return x.contiguous(memory_format=torch.channels_last)


def other_alignment(layer, x):
    return torch.cat([torch.zeros(1, device=x.device), x.flatten()])[1:].view(x.shape)


def other_options(layer, x):
    layer.dilation = (2, 2)
    return x


def with_gradients(layer, x):
    return x.requires_grad_()


@pytest.mark.parametrize(
    "change", [other_shape, other_strides, other_alignment, other_options, with_gradients]
)
def test_a_call_of_another_signature_is_validated_first(device, again, change):
    layer = layer_on(device)
    with torch.no_grad():
        layer(images(device))
        layer(images(device))
        assert len(again) == 1
    x = change(layer, images(device))
    y = layer(x)
    assert len(again) == 1
    w, bias = layer.weight.double(), layer.bias.double()
    theirs = F.conv2d(x.double(), w, bias, padding=1, dilation=layer.dilation)
    torch.testing.assert_close(y.double(), theirs, atol=1e-5, rtol=0)


def test_an_error_of_a_first_call_stays_one(device, again):
    layer = layer_on(device)
    layer(images(device))
    with pytest.raises(ProblemError, match="x is float64"):
        layer(images(device).double())
    x = images(device)
    x.untyped_storage().resize_(0)
    with pytest.raises(ProblemError, match="its storage has 0"):
        layer(x)
    assert not again


@pytest.mark.parametrize("state", ["autocast", "vmap", "forward_ad", "compile"])
def test_nothing_is_repeated_in_another_state_of_torch(device, again, state):
    layer = layer_on(device)
    for _ in range(2):
        layer(images(device))
    repeats = len(again)
    x = images(device)
    if state == "autocast":
        with torch.autocast(device, dtype=torch.bfloat16):
            y = layer(x.bfloat16())
        x = x.bfloat16()
    elif state == "vmap":
        y = torch.func.vmap(layer)(x[None])[0]
    elif state == "forward_ad":
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            with pytest.raises(ProblemError, match="forward-mode"):
                layer(dual)
            return
    else:
        y = torch.compile(layer, backend="eager", fullgraph=True)(x)
    assert len(again) == repeats
    torch.testing.assert_close(y.double(), expected(layer, x), atol=1e-5, rtol=0)


def test_an_edit_is_seen_by_the_next_call(device, again, tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(DIRECT)
    layer = layer_on(device, kernel=str(path))
    x = images(device)
    first = layer(x)
    assert torch.equal(layer(x), first)
    path.write_text(DIRECT.replace("float r_acc = 0.0f", "float r_acc = 1.0f"))
    assert path.read_text() != DIRECT
    torch.testing.assert_close(layer(x), first + 1)
    path.write_text(DIRECT.replace("supports: everything", "supports: C > 99"))
    with pytest.raises(UnsupportedError, match="C > 99"):
        layer(x)


def test_a_kept_call_keeps_no_kernel_alive(device):
    kernel = convlab.load("01_direct", engine="cuda" if device == "cuda" else "sim")
    layer = layer_on(device, kernel=kernel)
    for _ in range(2):
        layer(images(device))
    assert kernel in repeated._calls
    gone = weakref.ref(kernel)
    del kernel, layer
    gc.collect()
    assert gone() is None


def test_the_signatures_of_a_kernel_are_limited(device, again, monkeypatch):
    monkeypatch.setattr(repeated, "_MOST", 2)
    layer = layer_on(device)
    for height in (5, 6, 7, 8):
        layer(images(device, 1, 3, height, 6))
    (calls,) = [calls for kernel, calls in repeated._calls.items() if kernel.name == "01_direct"]
    assert len(calls) <= 2


def test_auto_repeats_the_present_choice(device, again, monkeypatch):
    layer = layer_on(device, kernel="auto:fp32")
    x = images(device)
    first = layer(x)
    torch.testing.assert_close(layer(x), first)
    other = convlab.load("04_implicit_gemm", engine="cuda" if device == "cuda" else "sim")
    used = []
    monkeypatch.setattr(other, "again", lambda *_, **__: used.append(other) or first.detach().clone())
    monkeypatch.setattr(repeated.Auto, "choice", lambda auto, problem: other)
    layer(x)
    assert not used
    # A file changed.
    monkeypatch.setattr(repeated.Auto, "state", lambda auto: "another one")
    layer(x)
    assert used == [other]


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["05_async_gemm", "13_wgmma_3xtf32"])
def test_a_repeated_launch_on_a_gpu_has_the_bits_of_the_first(kernel):
    layer = convlab.nn.Conv2d(16, 64, 3, padding=1, kernel=kernel, device="cuda")
    x = torch.randn(2, 16, 30, 30, device="cuda")
    first = layer(x)
    again = [layer(x) for _ in range(3)]
    assert all(torch.equal(y, first) for y in again)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    assert torch.equal(y, first)
