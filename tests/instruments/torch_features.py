"""Test which features of torch work with `convlab.nn`, and write the table of its docstring.

    python -m tests.instruments.torch_features

Each feature is tested on values. ``tests/nn/test_nn.py`` runs the same tests.
"""

from __future__ import annotations

import copy
import functools
import io
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, func, nn
from torch.autograd import forward_ad

import convlab.nn.layers
from convlab.core.kernel.libraries import Baseline, baseline

MODULE = Path(convlab.nn.layers.__file__)
BEGIN = "The support for torch's features:\n\n"
END = '"""\n'
FEATURES: dict[str, tuple[str, Callable[[], None]]] = {}


class Float64:
    """A fast and nearly exact kernel: torch's convolution in float64, rounded."""

    name = "float64"

    def __call__(self, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False):
        bias = None if bias is None else bias.double()
        y = F.conv2d(x.double(), w.double(), bias, stride, padding, dilation, groups).float()
        return y.relu() if relu else y


def feature(name: str, says: str) -> Callable:
    """Enter a test into the table, with the feature's name and the text about it."""

    def add(check: Callable[[], None]) -> Callable[[], None]:
        FEATURES[name] = says, check
        return check

    return add


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(ours, theirs) -> None:
    """Assert that both are equal within rounding, and not zero."""
    theirs_flat = torch.utils._pytree.tree_leaves(theirs)
    assert theirs_flat and all(t.abs().sum() > 0 for t in theirs_flat)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


KERNEL = Float64()
DIRECT = baseline("torch:cpu")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
X = normal(2, 4, 6, 5)
W = normal(6, 2, 3, 2, seed=1)
BIAS = normal(6, seed=2)
TANGENTS = normal(*X.shape, seed=3), normal(*W.shape, seed=4), normal(*BIAS.shape, seed=5)
OPTIONS = dict(stride=(1, 2), padding=1, groups=2)


def ours(x: Tensor, w: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    return convlab.nn.conv2d(x, w, bias, **OPTIONS, relu=relu, kernel=KERNEL)


def theirs(x: Tensor, w: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    y = F.conv2d(x, w, bias, **OPTIONS)
    return y.relu() if relu else y


def layers() -> tuple[nn.Module, nn.Module]:
    """Return the same layer twice: ours and torch's."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, (3, 2), bias=True, **OPTIONS)
    return convlab.nn.replace(copy.deepcopy(layer), KERNEL), layer


def both(use: Callable[[Callable], object]) -> None:
    """Assert that `use` gives the same for our function and torch's, with a ReLU and without."""
    same(use(ours), use(theirs))
    same(*(use(functools.partial(conv, relu=True)) for conv in (ours, theirs)))


def loss(conv: Callable) -> Callable[..., Tensor]:
    return lambda *tensors: conv(*tensors).square().mean()


@feature("backward, double backward", "works")
def _backward() -> None:
    def twice(conv: Callable) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (X, W, BIAS)]
        first = torch.autograd.grad(loss(conv)(*leaves), leaves, create_graph=True)
        return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves[:2])

    both(lambda conv: [t.detach() for t in twice(conv)])


@feature("forward_ad, jvp, jacfwd, hessian", "not supported: raises ProblemError")
def _forward() -> None:
    def dual() -> Tensor:
        with forward_ad.dual_level():
            return ours(X, forward_ad.make_dual(W, TANGENTS[1]), BIAS)

    def compiled() -> Tensor:
        torch.compiler.reset()
        with forward_ad.dual_level():
            x = forward_ad.make_dual(X, TANGENTS[0])
            return torch.compile(ours, backend="eager")(x, W)

    # Older ones cannot compile a call with an object as kernel.
    with_object = [compiled] if TORCH >= (2, 13) else []

    def nested() -> Tensor:
        return func.jvp(lambda w: func.jvp(lambda x: ours(x, w), (X,), (X,))[1], (W,), (W,))

    calls = [
        lambda: func.jvp(ours, (X, W, BIAS), TANGENTS),
        lambda: func.jacfwd(ours, argnums=(0, 1, 2))(X, W, BIAS),
        lambda: func.linearize(lambda w: ours(X, w), W)[1](W),
        lambda: func.hessian(lambda w: loss(ours)(X, w, BIAS))(W),
        lambda: func.grad(lambda w: func.jvp(lambda x: ours(x, w), (X,), (X,))[1].sum())(W),
        lambda: func.jvp(lambda x: torch.vmap(lambda x: ours(x, W))(x), (X[None],), (X[None],)),
        dual,
        nested,
        *with_object,
    ]
    for call in calls:
        try:
            call()
        except convlab.errors.ConvlabError as error:
            assert "no forward-mode derivatives" in str(error)
        else:
            raise AssertionError("forward mode was not refused")


@feature("func.grad, vjp, jacrev", "works; jacrev(jacrev(f)) is a Hessian")
def _reverse() -> None:
    both(lambda conv: func.grad(loss(conv), argnums=(0, 1, 2))(X, W, BIAS))
    both(lambda conv: func.vjp(conv, X, W, BIAS)[1](torch.ones_like(theirs(X, W))))
    both(lambda conv: func.jacrev(conv, argnums=1)(X, W, BIAS))
    both(lambda conv: func.jacrev(func.jacrev(lambda w: loss(conv)(X, w, BIAS)))(W))


@feature("vmap", "works; one call of the kernel for each element")
def _vmap() -> None:
    batch = [torch.stack([t, t + 1]) for t in (X, W, BIAS)]
    both(lambda conv: torch.vmap(lambda x: conv(x, W, BIAS))(batch[0]))
    assert torch.vmap(ours)(*(t[:0] for t in batch)).shape == (0, *theirs(X, W).shape)
    both(lambda conv: torch.vmap(conv, in_dims=(None, 0, None))(X, batch[1], BIAS))
    both(lambda conv: torch.vmap(conv)(*batch))
    both(lambda conv: torch.vmap(func.grad(loss(conv), argnums=1), in_dims=(0, None))(batch[0], W))
    both(lambda conv: func.grad(lambda w: torch.vmap(conv)(batch[0], w).square().sum())(batch[1]))


@feature("func.functional_call", "works")
def _functional() -> None:
    weights = {"weight": W, "bias": BIAS}
    results = [
        func.grad(lambda p, layer=layer: func.functional_call(layer, p, (X,)).square().mean())
        for layer in layers()
    ]
    same(*(result(weights) for result in results))


@feature("compile", "works; conv2d takes a Kernel object from torch 2.13 on")
def _compile() -> None:
    torch.compiler.reset()
    for backend in ("eager", "aot_eager"):
        compiled, reference = layers()
        run = torch.compile(compiled, backend=backend, fullgraph=True)
        gradients = []
        for layer, call in ((compiled, run), (reference, reference)):
            y = call(X)
            y.square().sum().backward()
            gradients.append([y.detach(), *(p.grad for p in layer.parameters())])
        same(*gradients)


@feature("compile of func.grad, vmap, ...", "not supported; works without torch.compile")
def _compile_transforms() -> None:
    torch.compiler.reset()
    layer, _ = layers()
    transformed = func.grad(lambda w: func.functional_call(layer, {"weight": w}, (X,)).sum())
    try:
        torch.compile(transformed, backend="eager", fullgraph=True)(W)
    except RuntimeError as error:
        assert "torch.compile cannot trace" in str(error)
    else:
        raise AssertionError("torch compiles a transform now: correct the table")


@feature("export", "works; to save it, give the kernel by name or path")
def _export() -> None:
    layer, reference = layers()
    layer.kernel = "01_direct"
    file = io.BytesIO()
    images = torch.export.Dim("images", min=1, max=64)
    dynamic = torch.export.export(layer, (X,), dynamic_shapes={"input": {0: images}})
    torch.export.save(dynamic, file)
    loaded = torch.export.load(io.BytesIO(file.getvalue()))
    assert any("01_direct" in node.args for node in loaded.graph.nodes)
    again = loaded.module()
    same(again(torch.cat([X, X])), reference(torch.cat([X, X])))


@feature("fx.symbolic_trace", "works; the convolution is one node")
def _fx() -> None:
    layer, reference = layers()
    traced = torch.fx.symbolic_trace(nn.Sequential(layer, nn.ReLU()))
    assert sum(node.op == "call_function" for node in traced.graph.nodes) == 1
    same(traced(X), reference(X).relu())


@feature("jit.trace, jit.script", "works; a scripted model cannot be saved")
def _jit() -> None:
    layer, reference = layers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(layer, (X,))
        scripted = torch.jit.script(layer)
        same(traced(X + 1), reference(X + 1))
        same(scripted(X), reference(X))
        try:
            torch.jit.save(scripted, io.BytesIO())
        except torch.jit.frontend.NotSupportedError:
            pass
        except RuntimeError as error:
            assert "Could not export Python function" in str(error)
        else:
            raise AssertionError("torch saves a scripted model now: correct the table")


@feature("autocast", "works; inputs are cast to the kernel's dtype")
def _autocast() -> None:
    layer, reference = layers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(X.bfloat16())
    assert y.dtype == torch.float32
    same(y, reference(X.bfloat16().float()))


@feature("other dtypes", "a kernel's own work; others raise ProblemError")
def _dtypes() -> None:
    for dtype in (torch.float64, torch.float16, torch.complex64, torch.int32):
        try:
            ours(X.to(dtype), W.to(dtype))
        except convlab.errors.ConvlabError as error:
            assert "convlab's kernels compute in float32" in str(error)
        else:
            raise AssertionError(f"{dtype} was not refused")


@feature("meta and fake tensors", "works")
def _meta() -> None:
    from torch._subclasses import FakeTensorMode

    layer, reference = layers()
    y = reference(X)
    assert layer.to("meta")(X.to("meta")).shape == y.shape
    refused("w is on cpu and x on meta", lambda: ours(X.to("meta"), W))
    refused("x is on meta", lambda: direct(X.to("meta"), W))
    with FakeTensorMode() as mode:
        x = mode.from_tensor(X)
        w = mode.from_tensor(W)
        fakes = [ours(x, w), direct(x, w)]
    # Also outside of the mode.
    for fake in (*fakes, ours(x, w), direct(x, w)):
        assert (type(fake).__name__, fake.shape, fake.device) == ("FakeTensor", y.shape, y.device)


def refused(says: str, *calls: Callable[[], object]) -> None:
    """Assert that each call raises convlab's error with this text."""
    for call in calls:
        try:
            call()
        except convlab.errors.ConvlabError as error:
            assert says in str(error), error
        else:
            raise AssertionError(f"not refused: {says}")


def direct(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Call a runnable directly, as ``convlab.load(...)(x, w)``; torch's convolution needs no build."""
    return DIRECT(x, w, bias, **OPTIONS)


def layer_of(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    layer, _ = layers()
    layer.weight = nn.Parameter(w, requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return layer(x)


# The ways to call a kernel.
WAYS = (ours, direct, layer_of)


@feature("make_fx, dispatch modes", "works; the convolution is one node")
def _modes() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            return 2 * operation(*args, **kwargs or {})

    for way in (ours, direct):

        def call(x: Tensor) -> Tensor:
            return way(x, W)  # noqa: B023

        for pre_dispatch in (False, True):
            graph = make_fx(call, pre_dispatch=pre_dispatch)(X)
            assert sum("convlab" in str(node.target) for node in graph.graph.nodes) == 1
            same(graph(X + 1), theirs(X + 1, W))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            same(torch.jit.trace(call, (X,))(X + 1), theirs(X + 1, W))
    for way in (ours, direct):
        with Doubled():
            y = way(X, W)
        same(y, 2 * theirs(X, W))


class Tripled(torch.Tensor):
    """A subclass that stands for three times the numbers in its memory."""

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        def plain(value: object) -> object:
            return 3 * value.as_subclass(Tensor) if isinstance(value, Tripled) else value

        with torch._C._DisableTorchDispatch():
            args, kwargs = torch.utils._pytree.tree_map(plain, (args, kwargs or {}))
            return operation(*args, **kwargs)


@feature("tensor subclasses", "works if the class can run the op; else raises ProblemError")
def _subclasses() -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
    from torch.masked import masked_tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masked = masked_tensor(X, X > 0)
        for way in WAYS:
            refused("x is a MaskedTensor", lambda way=way: way(masked, W))
    for way in WAYS:
        same(way(torch.Tensor._make_subclass(Tripled, X), W), 3 * theirs(X, W))
        same(way(X.as_subclass(type("Own", (Tensor,), {})), W).as_subclass(Tensor), theirs(X, W))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        x, w = (distribute_tensor(t, mesh, [Replicate()]) for t in (X, W))
        for way in WAYS:
            refused("x is a DTensor", lambda way=way: way(x, w))
    finally:
        dist.destroy_process_group()


@feature("func.functionalize", "works; not around another transform: raises ProblemError")
def _functionalize() -> None:
    same(func.functionalize(ours)(X, W, BIAS), theirs(X, W, BIAS))
    same(func.functionalize(direct)(X, W, BIAS), theirs(X, W, BIAS))
    refused("functionalize", lambda: func.functionalize(func.grad(loss(ours)))(X, W))


@feature("sparse, nested, quantized, lazy", "not supported: raises ProblemError")
def _not_dense() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([X[0], X[1]])
        jagged = torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged)
        quantized = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    for way in (ours, direct):
        refused("not dense", lambda way=way: way(X.to_sparse(), W))
        refused("x is a nested tensor", *(lambda t=t, way=way: way(t, W) for t in (nested, jagged)))
        refused("x is quantized", lambda way=way: way(quantized, W))
        refused(
            "w is an uninitialized parameter",
            lambda way=way: way(X, nn.UninitializedParameter()),
        )


@feature("storage that is too small", "not supported: raises ProblemError")
def _storage() -> None:
    for way in WAYS:
        for size in (0, 40):
            for i, name in enumerate(("x", "w", "bias")):
                tensors = [X.clone(), W.clone(), BIAS.clone()]
                tensors[i].untyped_storage().resize_(size if name != "bias" else 0)
                refused(f"{name} needs", lambda way=way, tensors=tensors: way(*tensors))


@feature("negated, expanded, overlapping views", "works")
def _views() -> None:
    for x in (
        torch._neg_view(X),
        torch.complex(X, X).conj().imag,
        X[:1, :1].expand(2, 4, 6, 5),
        X.flatten().as_strided(X.shape, (9, 7, 3, 1)),
    ):
        for way in WAYS:
            same(way(x, W), theirs(x, W))


@feature("inference mode", "works; its tensors need no gradients, as in torch")
def _inference() -> None:
    with torch.inference_mode():
        x = X + 1
        for way in WAYS:
            same(way(x, W), theirs(x, W))
    for way in WAYS:
        same(way(x, W), theirs(x, W))


@feature("use_deterministic_algorithms", "a kernel with `atomics: yes` raises ProblemError")
def _deterministic() -> None:
    class Atomic(Baseline):
        atomics = True

    fields = (DIRECT.name, DIRECT.title, DIRECT.precision, DIRECT.engine, DIRECT.device)
    torch.use_deterministic_algorithms(True)
    try:
        same(direct(X, W), theirs(X, W))
        refused("adds in no fixed order", lambda: Atomic(*fields)(X, W, **OPTIONS))
    finally:
        torch.use_deterministic_algorithms(False)


@feature("channels_last and other strides", "works; y is contiguous")
def _strides() -> None:
    x = X.contiguous(memory_format=torch.channels_last)
    same(ours(x, W.transpose(2, 3).contiguous().transpose(2, 3)), theirs(X, W))
    assert ours(x, W).is_contiguous()


@feature("checkpoint", "works")
def _checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    gradients = []
    for layer in layers():
        checkpoint(layer, X, use_reentrant=False).square().sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    same(*gradients)


@feature("DistributedDataParallel", "works")
def _distributed() -> None:
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        _train_in_parallel()
    finally:
        dist.destroy_process_group()


def _train_in_parallel() -> None:
    """Compare gradients; the wrapper of the layer is gone on return.

    If the wrapper outlived the process group, it would delete the group while it holds the GIL. The
    group's thread may need the GIL, and both would block.
    """
    ours_, theirs_ = layers()
    parallel = nn.parallel.DistributedDataParallel(ours_)
    for layer in (parallel, theirs_):
        layer(X).square().sum().backward()
    same(*([p.grad for p in layer.parameters()] for layer in (ours_, theirs_)))


@feature("pickle, deepcopy, torch.save", "works; a copy shares the kernel, a pickle contains it")
def _pickle() -> None:
    layer, reference = layers()
    file = io.BytesIO()
    torch.save(layer, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        same(other(X), reference(X))


@feature("CUDA graphs", "works on a GPU, if the kernel ran before the capture")
def _graphs() -> None:
    if not torch.cuda.is_available():
        return
    x = X.cuda()
    w = W.cuda()
    conv = convlab.load("01_direct")
    call = {"stride": (1, 2), "padding": 1, "groups": 2}
    conv(x, w, **call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = convlab.nn.conv2d(x, w, **call, kernel=conv)
    x.copy_(X + 1)
    graph.replay()
    same(y.cpu(), theirs(X + 1, W))


def table() -> str:
    """Return the table for the docstring of `convlab.nn.layers`."""
    width = max(map(len, FEATURES))
    rows = [f"{name:<{width}}  {says}" for name, (says, _) in FEATURES.items()]
    rule = "=" * width + "  " + "=" * max(len(says) for says, _ in FEATURES.values())
    return "\n".join([rule, *rows, rule]) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name, (says, check) in FEATURES.items():
        check()
        print(f"{name}: {says}")
    text = MODULE.read_text()
    head, _, rest = text.partition(BEGIN)
    MODULE.write_text(head + BEGIN + table() + rest[rest.index(END) :])
