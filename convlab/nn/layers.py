"""Kernels inside a model: ``conv2d``, ``Conv2d``, ``replace``, ``problems``, ``choices``.

A kernel computes the forward pass only. The gradients are torch's own, on a GPU in the arithmetic
that torch chooses for them: cuDNN with TF32, unless ``torch.backends.cudnn.allow_tf32 = False``.

What of torch works:

================================  ==============================================================
backward, double backward         works
forward_ad, jvp, jacfwd, hessian  refused with a ProblemError
func.grad, vjp, jacrev            works; jacrev(jacrev(f)) is a Hessian
vmap                              works, by one call of the kernel for each of the batch
func.functional_call              works
compile                           works, derivatives too; an object as kernel from torch 2.13 on
compile of func.grad, vmap, ...   refused by torch.compile; works without it
export                            works; saved, it loads a kernel that was given by name or path
fx.symbolic_trace                 works; the convolution stays one node
jit.trace, jit.script             works; a scripted model cannot be saved
autocast                          works; float16 and bfloat16 inputs are cast to float32
other dtypes                      refused with a ProblemError
meta and fake tensors             works
channels_last and other strides   works; y is contiguous
checkpoint                        works
DistributedDataParallel           works
pickle, deepcopy, torch.save      works; a copy shares the kernel, a pickle holds it
CUDA graphs                       works, once the kernel ran before the capture; on a GPU
================================  ==============================================================
"""

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Sequence

import pandas as pd
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.arguments import choice, flag, shown
from ..core.errors import ProblemError
from ..core.kernel.call import problem_of_call
from ..core.kernel.catalog import find
from ..core.problem.problem import Problem
from ..core.show.table import Table
from .choice import ALWAYS, AUTOS
from .keys import key_of, load_once, name_of
from .op import convolve

DEFAULT_KERNEL = "03_smem_tile"
Pair = int | tuple[int, int]

torch.fx.wrap("convolve")  # a traced model keeps it whole


def conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    kernel=DEFAULT_KERNEL,
) -> Tensor:
    """``torch.nn.functional.conv2d`` on a kernel of convlab's, with gradients.

    Parameters
    ----------
    x, w, bias : (N, C, H, W) or unbatched (C, H, W); (K, C/groups, R, S); (K,) or None. All of
        float32, with any strides.
    stride, padding, dilation, groups : as there: ints or (height, width) pairs; padding may be
        ``"valid"`` (none) or ``"same"`` (P = H, Q = W; stride 1 only).
    relu : whether y is max(y, 0), within the kernel; gradients are those of ``torch.relu``.
    kernel : a name (``"03_smem_tile"``), the path of a .cu file, or a Kernel object. A name or path
        is loaded at its first call, for the engine that fits x: ``cuda`` for a tensor on a GPU,
        else the simulator. An object follows the edits of its file, and is not kept alive from
        here. Inside ``torch.compile``, give an object on torch 2.13 or later only; names always
        work. ``"auto"`` is what `convlab.best` takes for each input's shape, torch's convolution
        perhaps, in TF32 unless ``torch.backends.cudnn.allow_tf32 = False``; ``"auto:fp32"`` and
        ``"auto:tf32"`` name the class.

    Returns
    -------
    Tensor (N, K, P, Q) or (K, P, Q), float32, contiguous. Under ``torch.autocast`` the inputs are
    cast to float32 (but float64 is not), and y stays float32.

    Raises
    ------
    ProblemError
        Wrong dtype, rank, shapes or arguments.
    UnsupportedError
        The kernel's header says that it cannot do this problem.

    Warns
    -----
    UserWarning
        ``"auto"``, and there is no kernel for a problem, so that torch's convolution computes it.
    """
    options = (stride, padding, dilation, groups, relu)
    return convolve(x, w, bias, options, key_of(kernel))


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` that runs its forward pass on a kernel of convlab's.

    The constructor, the initial numbers under a seed, and the ``state_dict`` are those of
    ``torch.nn.Conv2d``: either loads the other's. All ``padding_mode``s, ``"same"``, ``"valid"``
    and unbatched inputs work. The backward pass is torch's, see this module's docstring.

    Parameters
    ----------
    in_channels, ..., dtype : as ``torch.nn.Conv2d``; a dtype other than float32 raises at the
        forward pass.
    relu : as in `conv2d`; assigned later, too: ``layer.relu = True``, in the place of a
        ``torch.nn.ReLU`` behind it.
    kernel : as in `conv2d`. It can be assigned later too: ``layer.kernel = "02_im2col_gemm"``. A
        copy of the layer shares the object; a pickle holds what was given here.

    Raises
    ------
    ProblemError
        At once, if ``kernel`` is no kernel; at the forward pass, on a wrong dtype or shape.
    CatalogError, BuildError, UnsupportedError, LaunchError
        At the forward pass: no such kernel; it does not compile, cannot do this problem, fails.
    """

    __jit_unused_properties__ = ["kernel"]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device=None,
        dtype=None,
        *,
        relu: bool = False,
        kernel=DEFAULT_KERNEL,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.relu = flag(relu, "relu")
        self.kernel = kernel

    @property
    def kernel(self):
        """Return the kernel as the caller gave it: a name, a path or an object."""
        return self._kernel

    @kernel.setter
    def kernel(self, kernel) -> None:
        # Module.__setattr__ would register a kernel that is a Module as a child.
        self.__dict__.update(_kernel=kernel, _kernel_key=key_of(kernel))

    @torch.jit.ignore
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        input, padding = _outer(self, input)
        options = (self.stride, padding, self.dilation, self.groups, self.relu)
        return convolve(input, weight, bias, options, self._kernel_key)

    def extra_repr(self) -> str:
        relu = ", relu=True" if self.relu else ""
        return f"{super().extra_repr()}{relu}, kernel={name_of(self._kernel)}"

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self.kernel = self._kernel  # A key holds in one process only, so it is made again.

    def __deepcopy__(self, memo):
        new = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self._kernel)] = self._kernel  # shared: it holds code, not state
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


def replace(
    model: nn.Module, kernel, *, where: Callable[[str, nn.Module], bool] | None = None
) -> nn.Module:
    """Make every ``torch.nn.Conv2d`` of a model run on a kernel, in place.

    Each layer stays the same object and becomes a `Conv2d` of this module: parameters, hooks and
    every reference to it stay, so a shared layer stays shared and an optimizer made before goes on
    working; one that is such a `Conv2d` already gets the new kernel. Subclasses of
    ``torch.nn.Conv2d`` (lazy ones not yet run, parametrised, quantised, ...) are left alone. A
    layer that the kernel cannot do raises UnsupportedError at its forward pass: leave it out with ``where``.

    Parameters
    ----------
    model : any module, itself a ``torch.nn.Conv2d`` perhaps.
    kernel : as in `conv2d`: with ``"auto"`` each layer gets its own, which `choices` tells.
    where : called with a layer's name (as in ``named_modules``; of a shared layer, its first) and
        the layer; only those it says True to are replaced.

    Returns
    -------
    nn.Module : the same ``model``.

    Raises
    ------
    ProblemError, CatalogError
        ``kernel`` is no kernel, none has that name, or a layer has a forward of its own, which
        would go on running. Nothing is replaced then.
    """
    key = key_of(kernel)  # raises before anything is changed, as does a name that none has
    if isinstance(kernel, (str, os.PathLike)) and key not in AUTOS:
        find(key.partition("@")[0], AUTOS)
    _require_module(model)
    if where is not None and not callable(where):
        raise ProblemError(f"where must be a function of a name and a layer, not {shown(where)}")
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) in (nn.Conv2d, Conv2d) and (where is None or where(name, module))
    ]
    for name, layer in layers:
        patched = sorted({"forward", "_conv_forward"} & vars(layer).keys())
        if patched:
            raise ProblemError(
                f"layer {name!r} has a {patched[0]} of its own (a library wrapped it?), which "
                "would hide the kernel: replace before wrapping, or leave it out with where="
            )
    for _, layer in layers:
        layer.relu = isinstance(layer, Conv2d) and layer.relu
        layer.__class__ = Conv2d
        layer.kernel = kernel
    # torch 2.11 keeps code that torch.compile made before: it does not see that a class changed.
    if layers and "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    return model


def problems(model: nn.Module, *inputs, **keywords) -> list[tuple[str, Problem]]:
    """Run a model once, and return the problem of each of its convolutions.

    Parameters
    ----------
    model : any module. It runs without gradients, in the mode it is in: in training mode its
        statistics move, so call ``eval()`` before.
    inputs, keywords : what the model is called with.

    Returns
    -------
    list of (name, Problem) : one for each call of a ``torch.nn.Conv2d``, replaced or not, or of a
        subclass, in the order of the calls: a shared layer comes several times, one never called
        does not come. What a ``padding_mode`` other than "zeros" adds belongs to the problem's
        image, as does what is odd of the padding "same".

    Raises
    ------
    ProblemError
        A layer is called with what is no problem of convlab's.
    """
    _require_module(model)
    calls: list[tuple[str, Problem]] = []

    def hook(name: str) -> Callable:
        def record(layer: nn.Conv2d, arguments: tuple, keywords: dict) -> None:
            x = arguments[0] if arguments else keywords["input"]
            calls.append((name, _problem_of(layer, x, name)))

        return record

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Conv2d):
                handle = layer.register_forward_pre_hook(hook(name), with_kwargs=True)
                hooks.callback(handle.remove)
        model(*inputs, **keywords)
    return calls


def choices(
    model: nn.Module, *inputs, kernel: str = "auto", **keywords
) -> list[tuple[str, Problem, Callable]]:
    """Return which kernel ``kernel="auto"`` is for each convolution of a model, replaced or not.

    It takes the arguments of `problems`, which runs the model once, and ``kernel``: "auto",
    "auto:fp32" or "auto:tf32". It returns a list of (name, Problem, Kernel or Baseline).
    """
    _require_module(model)
    on_gpu = any(tensor.is_cuda for tensor in model.parameters())
    auto = load_once(choice(kernel, "rule", AUTOS), "cuda" if on_gpu else "sim")
    return Choices((name, p, auto.choice(p)) for name, p in problems(model, *inputs, **keywords))


class Choices(list):
    """The list that `choices` returns; it prints as a table."""

    def __repr__(self) -> str:
        rows = [{"layer": name, "problem": str(p), "kernel": taken.name} for name, p, taken in self]
        lines = Table(pd.DataFrame(rows), left=("problem", "kernel")).lines()
        simulated = any(taken.counts for *_, taken in self)
        return "\n".join([*lines, *[f"no GPU is used: {ALWAYS}"] * simulated])


def _require_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ProblemError(f"model must be a torch.nn.Module, not {shown(model)}")


def _outer(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, tuple[int, int] | str]:
    """Return the image with the border of its ``padding_mode``, and the padding that is left."""
    if layer.padding_mode == "zeros":
        return x, layer.padding
    return F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode), (0, 0)


def _problem_of(layer: nn.Conv2d, x: Tensor, name: str) -> Problem:
    """Return the problem that a layer computes for an input, named after the layer."""
    x, padding = _outer(layer, x)
    relu = isinstance(layer, Conv2d) and layer.relu
    options = (layer.stride, padding, layer.dilation, layer.groups, relu)
    return problem_of_call(x, layer.weight, layer.bias, options, name)[1]
