"""convlab.nn: the op, its gradients, Conv2d as a drop-in replacement, replace.

Most tests use a fake kernel (torch's convolution in float64, rounded), so that they are fast and
test only `convlab.nn`. The tests at the end run real kernels.
"""

import copy
import functools
import gc
import importlib
import io
import pickle
import re
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

import convlab.nn
from convlab.core.errors import CatalogError, ProblemError
from convlab.nn import keys
from tests.drawn import generated
from tests.instruments.torch_features import FEATURES, table

REPOSITORY = Path(__file__).parents[2]
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
OP = torch.ops.convlab.conv2d.default
EPSILON = 2.0**-24  # float32's unit roundoff


class FakeKernel:
    """A kernel with only a name and a call, as convlab.nn requires; counts its calls."""

    def __init__(self, name: str = "fake", factor: float = 1.0) -> None:
        self.name = name
        self.factor = factor
        self.calls = 0

    def __call__(self, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        assert not x.requires_grad and not torch.is_grad_enabled()
        assert type(stride) is type(padding) is type(dilation) is tuple
        self.calls += 1
        args = (x.double(), w.double(), None if bias is None else bias.double())
        y = F.conv2d(*args, stride, padding, dilation, groups)
        return (self.factor * (y.relu() if relu else y)).float()


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on(kernel):
    """Return convlab.nn.conv2d with a kernel."""
    return functools.partial(convlab.nn.conv2d, kernel=kernel)


def gradients(conv, inputs, options, g_y):
    """Return the gradients of sum(y * g_y) with respect to each input."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    (conv(*leaves, **options) * g_y).sum().backward()
    return [t.grad for t in leaves]


def assert_near(actual, truth, of_magnitudes, terms: int, what: str) -> None:
    """Assert the a-priori error bound of a sum of ``terms`` products, gamma * sum(|a| * |b|).

    See Higham, Accuracy and Stability of Numerical Algorithms, section 3.1. The bound holds for any
    order of the sum, and so for every direct algorithm that torch's backward may choose.
    """
    gamma = (terms + 2) * EPSILON / (1 - (terms + 2) * EPSILON)
    excess = (actual.double() - truth).abs() - gamma * of_magnitudes
    assert actual.dtype == torch.float32 and actual.shape == truth.shape, what
    assert not (excess > 0).any() and not actual.isnan().any(), what


# --- gradients ------------------------------------------------------------------------------


def tensors_and_options(problem, seed):
    """Return x, w and the bias if there is one, and conv2d's other arguments."""
    shapes = [problem.x_shape, problem.w_shape, (problem.K,)][: 2 + problem.bias]
    options = {key: getattr(problem, key) for key in ("stride", "padding", "dilation", "groups")}
    return [normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)], options


def check_gradients(conv, tensors, options) -> None:
    x, w, *rest = tensors
    doubles = [t.double() for t in tensors]
    y = F.conv2d(*doubles, **options)
    magnitudes = F.conv2d(*[t.abs() for t in doubles], **options)
    gemm_k = w[0].numel()
    assert_near(conv(*tensors, **options), y, magnitudes, gemm_k + 1, "y")

    g_y = normal(*y.shape, seed=7).to(y.device)
    truths = gradients(F.conv2d, doubles, options, g_y.double())
    bounds = gradients(F.conv2d, [t.abs() for t in doubles], options, g_y.double().abs())
    actual = gradients(conv, tensors, options, g_y)
    pixels = y.shape[0] * y.shape[2] * y.shape[3]
    terms = [gemm_k // w.shape[1] * (w.shape[0] // options["groups"]), pixels, pixels]
    for what, *numbers in zip(["g_x", "g_w", "g_bias"], actual, truths, bounds, terms):
        assert_near(*numbers, what)


@settings(max_examples=150, deadline=None)
@given(generated(2000), st.integers(0, 1000))
def test_gradients_match_float64(problem, seed):
    check_gradients(on(FakeKernel()), *tensors_and_options(problem, seed))


class RequestedGradients(TorchDispatchMode):
    """Record which gradients torch's backward requests."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.convolution_backward.default:
            self.seen = args[-1]
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("wanted", ["x", "w", "bias", "x w", "x bias", "w bias"])
def test_only_the_gradients_asked_for(kernel, wanted):
    tensors = {"x": normal(2, 4, 6, 5), "w": normal(6, 2, 3, 2), "bias": normal(6)}
    for name in wanted.split():
        tensors[name].requires_grad_()
    y = on(kernel)(*tensors.values(), groups=2)
    with RequestedGradients() as requested:
        y.sum().backward()
    assert requested.seen == [name in wanted.split() for name in tensors]
    full = gradients(F.conv2d, tensors.values(), {"groups": 2}, torch.ones_like(y))
    for tensor, truth in zip(tensors.values(), full, strict=True):
        assert (tensor.grad is not None) == tensor.requires_grad
        if tensor.requires_grad:
            torch.testing.assert_close(tensor.grad, truth)


def test_backward_in_another_thread(kernel):
    x = normal(1, 2, 5, 5).requires_grad_()
    w = normal(3, 2, 3, 3)
    y = on(kernel)(x, w)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
    assert x.grad is not None


# --- torch's features -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.gpu if "CUDA" in name else ()) for name in FEATURES],
)
def test_feature_of_torch(name, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    FEATURES[name][1]()


def test_table_of_features_is_the_docstrings():
    """If not, run ``python -m tests.instruments.torch_features``."""
    assert convlab.nn.layers.__doc__.endswith(table())


def test_a_kernel_called_directly_has_derivatives_too():
    kernel = convlab.load("01_direct", engine="sim")
    x = normal(1, 2, 5, 5)
    w = normal(3, 2, 3, 3)
    y, gradient = torch.func.vjp(lambda x: kernel(x, w, padding=1), x)
    truth, true_gradient = torch.func.vjp(lambda x: F.conv2d(x, w, padding=1), x)
    torch.testing.assert_close(y, truth)
    torch.testing.assert_close(gradient(truth), true_gradient(truth))
    torch.testing.assert_close(torch.vmap(lambda x: kernel(x, w))(x[None]), F.conv2d(x, w)[None])
    with pytest.raises(ProblemError, match="no forward-mode derivatives"):
        torch.func.jvp(lambda x: kernel(x, w), (x,), (x,))
    torch.testing.assert_close(
        torch.func.grad(lambda w: kernel(x, w).square().sum())(w),
        torch.func.grad(lambda w: F.conv2d(x, w).square().sum())(w),
    )


def test_a_kernel_that_is_a_module_is_not_a_submodule():
    """torch's Module would register it, and the layer would keep its old kernel."""
    layer = convlab.nn.Conv2d(2, 3, 3, kernel=FakeKernel())
    module = nn.ReLU()
    layer.kernel = module
    assert layer.kernel is module and not [*layer.children()]
    convlab.nn.replace(layer, nn.Identity())
    assert type(layer.kernel) is nn.Identity


def test_the_inputs_of_problems_are_checked():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU())
    with pytest.raises(ProblemError, match="x is a NoneType, not a torch.Tensor"):
        convlab.nn.problems(model, None)
    with pytest.raises(ProblemError, match="the model raised TypeError: .*; give the inputs"):
        convlab.nn.problems(model)
    x = normal(1, 2, 5, 5)
    x.untyped_storage().resize_(0)
    # Torch's own ReLU would crash.
    with pytest.raises(ProblemError, match="input 0 needs 200 bytes, but its storage has 0"):
        convlab.nn.problems(nn.ReLU(), x)
    with pytest.raises(ProblemError, match="x is an uninitialized parameter"):
        convlab.nn.problems(model, nn.UninitializedParameter())
    with pytest.raises(ProblemError, match="where raised TypeError for layer '0'.*where"):
        convlab.nn.replace(model, FakeKernel(), where=lambda: True)
    assert type(model[0]) is nn.Conv2d


# --- the op ---------------------------------------------------------------------------------


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "x_shape, w_shape, options, layout",
    [
        ((2, 3, 8, 7), (4, 3, 3, 2), ((1, 1), (0, 0), (1, 1), 1), channels_last),
        ((2, 4, 9, 7), (6, 2, 3, 3), ((2, 1), (1, 2), (1, 2), 2), torch.Tensor.contiguous),
        ((0, 3, 8, 7), (4, 3, 3, 2), ((1, 1), (0, 0), (1, 1), 1), torch.Tensor.contiguous),
        ((1, 3, 5, 5), (3, 1, 1, 1), ((1, 1), (0, 0), (1, 1), 3), channels_last),
    ],
    ids=["plain", "s2x1p1x2d1x2g2", "no-images", "depthwise"],
)
def test_opcheck(kernel, x_shape, w_shape, options, layout):
    bias = normal(w_shape[0]) if options[3] != 2 else None
    tensors = [layout(normal(*x_shape)), layout(normal(*w_shape)), bias]
    for tensor in filter(torch.is_tensor, tensors):
        tensor.requires_grad_()
    torch.library.opcheck(OP, (*tensors, keys.key_of(kernel), *options, bias is None))


@pytest.mark.parametrize(
    "view",
    [
        channels_last,
        lambda t: t.transpose(2, 3),
        lambda t: t[:, :, ::2, 1:],
        lambda t: t[:1].expand(3, -1, -1, -1),
    ],
    ids=["channels_last", "transposed", "sliced", "expanded"],
)
def test_any_strides(kernel, view):
    x = view(normal(2, 3, 10, 9))
    w = view(normal(4, 3, 4, 4))
    options = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
    check_gradients(on(kernel), [x, w], options)
    assert on(kernel)(x, w).is_contiguous()
    assert on(lambda x, *rest: channels_last(kernel(x, *rest)))(x, w).is_contiguous()


@pytest.mark.parametrize(("backend", "dynamic"), [("eager", False), ("aot_eager", True)])
def test_compile(kernel, backend, dynamic):
    model = nn.Sequential(
        convlab.nn.Conv2d(3, 4, (3, 4), padding="same", kernel=kernel),
        nn.ReLU(),
        convlab.nn.Conv2d(4, 2, 3, 2, padding_mode="circular", padding=1, kernel=kernel),
    )
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for size in [(2, 3, 8, 9), (2, 3, 11, 9), (5, 3, 7, 10)]:
        x = normal(*size).requires_grad_()
        y = compiled(x)
        torch.testing.assert_close(y, model(x))
        (g_x,) = torch.autograd.grad(y.square().sum(), x)
        torch.testing.assert_close(g_x, torch.autograd.grad(model(x).square().sum(), x)[0])
    assert kernel.calls == 18


def test_compile_with_inductor(kernel):
    layer = convlab.nn.Conv2d(2, 3, 3, kernel=kernel)
    x = normal(2, 2, 6, 6).requires_grad_()
    y = torch.compile(layer, fullgraph=True)(x * 2)
    torch.testing.assert_close(y, layer(x * 2))
    y.sum().backward()
    assert x.grad is not None and layer.weight.grad is not None


def test_layers_of_one_kernel_compile_once(kernel):
    """Blocks that are compiled one by one share a graph, because they have the same key."""
    compiler = importlib.import_module("torch._dynamo.testing").CompileCounter()
    blocks = [convlab.nn.Conv2d(2, 2, 3, kernel=kernel) for _ in range(10)]
    block_forward = torch.compile(lambda block, x: block(x), backend=compiler, fullgraph=True)
    x = normal(1, 2, 5, 5)
    for block in blocks:
        torch.testing.assert_close(block_forward(block, x), block(x))
    assert compiler.frame_count == 1


@pytest.mark.skipif(TORCH < (2, 13), reason="older torch needs a name, or a Conv2d")
def test_compile_of_the_function_with_an_object():
    kernels = FakeKernel(factor=2.0), FakeKernel(factor=3.0)
    x = normal(1, 2, 5, 5)
    w = normal(2, 2, 3, 3)

    @torch.compile(fullgraph=True, backend="eager")
    def run(x, w, kernel):
        return convlab.nn.conv2d(x, w, kernel=kernel)

    for kernel in kernels + kernels:
        torch.testing.assert_close(run(x, w, kernel), kernel.factor * F.conv2d(x, w))
    assert [kernel.calls for kernel in kernels] == [2, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32(kernel, dtype):
    x = normal(1, 2, 5, 5).to(dtype).requires_grad_()
    w = normal(3, 2, 3, 3).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = on(kernel)(x, w)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, F.conv2d(x.float(), w))
    y.sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (dtype, torch.float32)
    with torch.autocast("cpu", dtype=dtype), pytest.raises(ProblemError, match="float64"):
        convlab.nn.conv2d(x.detach().double(), w.detach().double(), kernel=kernel)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_autocast_of_a_layer(device):
    layer = convlab.nn.Conv2d(2, 3, 3, kernel="01_direct", device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for run in (layer, compiled):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(device, dtype=dtype):
                assert run(normal(1, 2, 5, 5).to(device, dtype)).dtype == torch.float32


# --- which kernel ---------------------------------------------------------------------------


def test_two_kernels_with_one_name_have_two_keys():
    a = FakeKernel("twin", factor=1.0)
    b = FakeKernel("twin", factor=2.0)
    x = normal(1, 2, 5, 5)
    w = normal(2, 2, 3, 3)
    torch.testing.assert_close(2 * on(a)(x, w), on(b)(x, w))
    assert keys.key_of(a) == keys.key_of(a) != keys.key_of(b)


def test_kernels_do_not_leak():
    before = set(keys._kernels)
    for _ in range(20):
        kernel = FakeKernel()
        layer = convlab.nn.Conv2d(1, 1, 1, kernel=kernel)
        layer(normal(1, 1, 2, 2))
        convlab.nn.conv2d(normal(1, 1, 2, 2), normal(1, 1, 1, 1), kernel=kernel)
    del kernel
    gc.collect()
    assert len(set(keys._kernels) - before) == 1  # that of the last layer
    layer(normal(1, 1, 2, 2))
    del layer
    gc.collect()
    assert set(keys._kernels) <= before


def test_a_kernel_that_is_gone_is_not_mistaken_for_another():
    key = keys.key_of(FakeKernel("gone"))
    gc.collect()
    held = [FakeKernel("gone") for _ in range(3)]
    assert key not in [keys.key_of(kernel) for kernel in held]
    with pytest.raises(ProblemError, match="gone.*keep the object alive"):
        OP(normal(1, 1, 2, 2), normal(1, 1, 1, 1), None, key, [1, 1], [0, 0], [1, 1], 1, False)


def test_a_name_is_loaded_once_and_lazily(monkeypatch):
    loaded = []

    def load(name, engine):
        loaded.append((name, engine))
        return FakeKernel(name)

    monkeypatch.setattr(keys, "load_once", functools.cache(load))
    layers = [convlab.nn.Conv2d(1, 1, 1, kernel=k) for k in ("a", "a", "b")]
    assert loaded == []
    for layer in layers * 2:
        layer(normal(1, 1, 2, 2))
    assert loaded == [("a", "sim"), ("b", "sim")]


def test_a_relative_path_is_fixed_when_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert keys.key_of("my.cu") == str(tmp_path / "my.cu")
    assert keys.key_of(tmp_path / "my.cu") == str(tmp_path / "my.cu")
    assert keys.key_of("01_direct") == "01_direct"
    assert "kernel=03_smem_tile" in repr(convlab.nn.Conv2d(2, 3, 3))  # where none is given


@pytest.mark.parametrize("bad", [3, None, object()], ids=["int", "None", "object"])
@pytest.mark.parametrize(
    "use",
    [
        lambda bad: convlab.nn.Conv2d(1, 1, 1, kernel=bad),
        lambda bad: on(bad)(normal(1, 1, 2, 2), normal(1, 1, 1, 1)),
        lambda bad: convlab.nn.replace(nn.Conv2d(1, 1, 1), bad),
    ],
    ids=["Conv2d", "conv2d", "replace"],
)
def test_an_object_that_is_not_a_kernel(bad, use):
    with pytest.raises(ProblemError, match="is not a kernel: give a name"):
        use(bad)


# --- the drop-in ----------------------------------------------------------------------------

CONSTRUCTORS = {
    "plain": dict(kernel_size=3),
    "all-numbers": dict(
        kernel_size=(3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False
    ),
    "same": dict(kernel_size=(4, 3), padding="same", dilation=(1, 2)),
    "same-even": dict(kernel_size=(2, 6), padding="same"),
    "valid": dict(kernel_size=2, padding="valid", stride=2),
    "reflect": dict(kernel_size=3, padding=(1, 2), padding_mode="reflect"),
    "replicate": dict(kernel_size=3, padding=2, padding_mode="replicate", stride=2),
    "circular": dict(kernel_size=3, padding=(2, 1), padding_mode="circular"),
    "reflect-same": dict(kernel_size=(4, 3), padding="same", padding_mode="reflect"),
    "circular-valid": dict(kernel_size=3, padding="valid", padding_mode="circular"),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("options", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
@pytest.mark.parametrize("shape", [(2, 4, 9, 8), (4, 9, 8), (0, 4, 9, 8)], ids=str)
def test_drop_in(kernel, options, shape):
    torch.manual_seed(3)
    theirs = nn.Conv2d(4, 6, **options)
    torch.manual_seed(3)
    ours = convlab.nn.Conv2d(4, 6, **options, kernel=kernel)
    assert repr(ours) == repr(theirs)[:-1] + ", kernel=fake)"
    ours.relu = True
    assert repr(ours) == repr(theirs)[:-1] + ", relu=True, kernel=fake)"
    ours.relu = False
    mine = ours.state_dict()
    reference = theirs.state_dict()
    assert list(mine) == list(reference)
    assert all(torch.equal(mine[name], reference[name]) for name in mine)
    x = normal(*shape)
    try:
        y = theirs(x)
    except RuntimeError:  # F.pad(circular) of no images
        with pytest.raises(RuntimeError):
            ours(x)
        return
    torch.testing.assert_close(ours(x), y)
    assert kernel.calls == 1 and ours(x).is_contiguous()


def test_state_dict_both_ways(kernel):
    pair = convlab.nn.Conv2d(2, 3, 3, kernel=kernel), nn.Conv2d(2, 3, 3)
    for ours, theirs in (pair, pair[::-1]):
        theirs.reset_parameters()
        assert not torch.equal(ours.weight, theirs.weight)
        theirs.load_state_dict(ours.state_dict())
        assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("bad", [dict(groups=3), dict(padding="full"), dict(padding_mode="wrap")])
def test_constructor_refuses_what_torch_refuses(kernel, bad):
    with pytest.raises(ValueError) as theirs:
        nn.Conv2d(4, 6, 3, **bad)
    with pytest.raises(ValueError, match=f"^{re.escape(str(theirs.value))}$"):
        convlab.nn.Conv2d(4, 6, 3, **bad, kernel=kernel)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_wrong_dtype(kernel, dtype):
    with pytest.raises(ProblemError, match="x is .*computes? in float32.*torch.nn.Conv2d"):
        convlab.nn.Conv2d(1, 1, 1, kernel=kernel)(torch.ones(1, 1, 2, 2, dtype=dtype))
    if dtype.is_floating_point:
        layer = convlab.nn.Conv2d(1, 1, 1, kernel=kernel, dtype=dtype)
        with pytest.raises(ProblemError, match="w is "):
            layer(normal(1, 1, 2, 2))
    assert kernel.calls == 0


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "save": saved,
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_model(kernel, how):
    """A copy shares the kernel object, a pickle contains it; a name remains a name."""
    layer = convlab.nn.Conv2d(2, 2, 3, kernel=kernel)
    named = convlab.nn.Conv2d(1, 1, 1, kernel="01_direct")
    model = nn.ModuleList([layer, convlab.nn.Conv2d(2, 2, 3, kernel=kernel), layer, named])
    again = COPIES[how](model)
    assert again[0] is again[2] is not layer and again[0].weight is not layer.weight
    assert again[0].kernel is again[1].kernel and again[3].kernel == "01_direct"
    shared = how == "deepcopy"
    assert (again[0].kernel is kernel) == shared
    assert (again[0]._kernel_key == layer._kernel_key) == shared
    x = normal(1, 2, 6, 6)
    y = layer(x)
    calls = kernel.calls
    torch.testing.assert_close(again[0](x), y)
    assert kernel.calls == calls + shared


# --- replace --------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, channels: int, shared: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.shared = shared

    def forward(self, x):
        return F.relu(x + self.shared(F.relu(self.bn1(self.conv1(x)))))


class SmallResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, padding_mode="reflect")
        shared = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.blocks = nn.Sequential(Residual(8, shared), Residual(8, shared))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.also_the_stem = [self.stem]  # a reference that named_modules does not see
        self.head = nn.ModuleDict({"score": nn.Conv2d(4, 2, 1)})

    def forward(self, x):
        return self.head["score"](self.up(self.blocks(self.stem(x))))


def test_replace_a_model(kernel):
    model = SmallResNet().eval()
    x = normal(2, 3, 16, 16)
    y = model(x)
    parameters = list(model.parameters())
    names = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert convlab.nn.replace(model, kernel) is model
    torch.testing.assert_close(again := model(x), y)
    assert kernel.calls == 6  # the stem, two of each block, the head
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == names
    assert model.blocks[0].shared is model.blocks[1].shared
    assert model.also_the_stem[0] is model.stem and type(model.stem) is convlab.nn.Conv2d
    assert type(model.up) is nn.ConvTranspose2d
    assert not any(module.training for module in model.modules())
    convlab.nn.replace(model, other := FakeKernel(factor=0.5))  # again
    model(x)
    assert (kernel.calls, other.calls) == (6, 6)
    before = model.stem.weight.detach().clone()
    again.sum().backward()
    optimizer.step()  # an optimizer from before still works
    assert not torch.equal(model.stem.weight, before)


@pytest.mark.parametrize("replaced", [False, True])
def test_problems_of_a_model(kernel, replaced):
    """The problems have all the dimensions of the layers."""
    model = SmallResNet().eval()
    if replaced:
        convlab.nn.replace(model, kernel)
    calls = convlab.nn.problems(model, normal(2, 3, 16, 16))
    assert [name for name, _ in calls] == [
        "stem",
        "blocks.0.conv1",
        "blocks.0.shared",
        "blocks.1.conv1",
        "blocks.0.shared",
        "head.score",
    ]
    stem, conv1, shared = (problem for _, problem in calls[:3])
    assert (stem.H, stem.padding, stem.stride, stem.y_shape) == (22, (0, 0), (2, 2), (2, 8, 8, 8))
    assert shared.bias and not conv1.bias
    assert (shared.groups, shared.x_shape) == (2, (2, 8, 8, 8))
    assert not model.stem._forward_pre_hooks


@pytest.mark.parametrize("size", [3, (4, 2)])
def test_problems_of_same_padding(size):
    layer = nn.Conv2d(2, 3, size, padding="same", dilation=(1, 2))
    ((_, problem),) = convlab.nn.problems(layer, input=normal(2, 7, 9))
    assert problem.y_shape == (1, *layer(normal(2, 7, 9)).shape)


def test_replace_where(kernel):
    model = SmallResNet()
    names = []

    def where(name, module):
        names.append(name)
        return module.groups == 1 and name != "stem"

    convlab.nn.replace(model, kernel, where=where)
    ours = [name for name, m in model.named_modules() if isinstance(m, convlab.nn.Conv2d)]
    assert ours == ["blocks.0.conv1", "blocks.1.conv1", "head.score"]
    assert names == ["stem", "blocks.0.conv1", "blocks.0.shared", "blocks.1.conv1", "head.score"]


def test_replace_a_single_layer(kernel):
    layer = nn.Conv2d(1, 2, 3)
    ours = convlab.nn.replace(layer, kernel)
    assert type(ours) is convlab.nn.Conv2d and ours.kernel is kernel
    assert nn.Conv2d is not convlab.nn.Conv2d and type(nn.Conv2d(1, 1, 1)) is nn.Conv2d
    parametrizations.weight_norm(ours)
    ours(normal(1, 1, 5, 5)).sum().backward()
    assert kernel.calls == 1


class Mine(nn.Conv2d):
    pass


def test_replace_leaves_subclasses_alone(kernel):
    parametrised = parametrizations.weight_norm(nn.Conv2d(1, 1, 1))
    model = nn.Sequential(Mine(1, 1, 1), nn.LazyConv2d(2, 3), nn.Conv1d(1, 1, 1), parametrised)
    types = [type(m) for m in model]
    convlab.nn.replace(model, kernel)
    assert [type(m) for m in model] == types


def test_replace_keeps_hooks(kernel):
    layer = nn.Conv2d(1, 1, 3)
    seen = []
    layer.register_forward_hook(lambda module, args, y: seen.append("forward"))
    layer.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    layer.register_full_backward_hook(lambda module, g_x, g_y: seen.append("backward"))
    layer.note = "kept"
    layer.weight.requires_grad_(False)
    ours = convlab.nn.replace(layer, kernel)
    ours(normal(1, 1, 5, 5).requires_grad_()).sum().backward()
    assert seen == ["pre", "forward", "backward"] and ours.note == "kept"
    assert ours.weight.grad is None and ours.bias.grad is not None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_replace_keeps_what_a_hook_computes(kernel):
    layer = nn.utils.weight_norm(nn.Conv2d(2, 3, 3)).eval()
    x = normal(1, 2, 5, 5)
    y = layer(x)
    names = list(layer.state_dict())
    ours = convlab.nn.replace(nn.Sequential(layer), kernel)[0]
    assert isinstance(ours, convlab.nn.Conv2d) and list(ours.state_dict()) == names
    torch.testing.assert_close(ours(x), y)
    ours(x).sum().backward()
    assert kernel.calls == 2 and all(p.grad is not None for p in ours.parameters())


def test_replace_refuses_a_patched_forward(kernel):
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1))
    model[1].forward = model[1].forward
    with pytest.raises(ProblemError, match="layer '1' has a forward of its own"):
        convlab.nn.replace(model, kernel)
    assert type(model[0]) is nn.Conv2d  # nothing was changed
    convlab.nn.replace(model, kernel, where=lambda name, module: name == "0")
    assert type(model[0]) is convlab.nn.Conv2d


def test_replace_after_compile(kernel):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = normal(1, 1, 5, 5)
    y = compiled(x)
    convlab.nn.replace(compiled, kernel)
    torch.testing.assert_close(compiled(x), y)
    assert kernel.calls == 1


# --- real kernels ---------------------------------------------------------------------------

DIRECT = (REPOSITORY / "kernels" / "01_direct.cu").read_text()


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def real(request):
    """Yield (load, device) of an engine, without cuDNN: its backward may use TF32 or Winograd."""
    device = torch.device("cuda" if request.param == "cuda" else "cpu")
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
        yield functools.partial(convlab.load, engine=request.param), device


@pytest.mark.parametrize("name", ["01_direct", "03_smem_tile"])
def test_real_gradients(real, name):
    load, device = real
    plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    odd = {"stride": (2, 1), "padding": 1, "dilation": (1, 2), "groups": 2}
    for x_shape, w_shape, options in [
        ((2, 3, 9, 8), (4, 3, 3, 2), plain),
        ((2, 4, 9, 10), (6, 2, 3, 3), odd),
        ((0, 3, 9, 8), (4, 3, 3, 2), plain),
    ]:
        tensors = [normal(*shape).to(device) for shape in (x_shape, w_shape, w_shape[:1])]
        for conv in (on(load(name)), load(name)):  # also a kernel that is called directly
            check_gradients(conv, tensors, options)
            assert conv(*tensors, **options).grad_fn is None


def test_real_layer_by_name(real):
    _, device = real
    theirs = SmallResNet().to(device)
    ours = convlab.nn.replace(copy.deepcopy(theirs), "01_direct")
    x = normal(1, 3, 8, 8).to(device)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_real_layer_follows_its_file(real, tmp_path):
    load, device = real
    path = tmp_path / "mine.cu"
    x = normal(1, 2, 5, 5).to(device)
    path.write_text(DIRECT)
    layer = convlab.nn.Conv2d(2, 3, 3, bias=False, kernel=load(path), device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    y = layer(x)
    assert torch.equal(compiled(x), y)
    path.write_text(DIRECT.replace("(conv, r_acc", "(conv, 2 * r_acc"))
    assert torch.equal(layer(x), 2 * y) and torch.equal(compiled(x), 2 * y)


def test_nothing_is_replaced_by_a_name_that_no_kernel_has():
    model = nn.Sequential(nn.Conv2d(1, 1, 1))
    with pytest.raises(CatalogError, match="no kernel is named 'atuo'"):
        convlab.nn.replace(model, "atuo")
    assert type(model[0]) is nn.Conv2d
    with pytest.raises(CatalogError):
        convlab.nn.Conv2d(2, 3, 3, kernel="99_nothing")(normal(1, 2, 5, 5))
