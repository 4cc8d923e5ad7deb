"""Use kernels in a torch model: ``conv2d``, ``Conv2d``, ``replace``, ``problems``, ``choices``.

A kernel computes only the forward pass. torch computes the gradients. On a GPU it does so with
cuDNN and TF32, unless ``torch.backends.cudnn.allow_tf32 = False``.

The support for torch's features:

====================================  ===========================================================
backward, double backward             works
forward_ad, jvp, jacfwd, hessian      not supported: raises ProblemError
func.grad, vjp, jacrev                works; jacrev(jacrev(f)) is a Hessian
vmap                                  works; one call of the kernel for each element
func.functional_call                  works
compile                               works; conv2d takes a Kernel object from torch 2.13 on
compile of func.grad, vmap, ...       not supported; works without torch.compile
export                                works; to save it, give the kernel by name or path
fx.symbolic_trace                     works; the convolution is one node
jit.trace, jit.script                 works; a scripted model cannot be saved
autocast                              works; inputs are cast to the kernel's dtype
other dtypes                          a kernel's own work; others raise ProblemError
meta and fake tensors                 works
make_fx, dispatch modes               works; the convolution is one node
tensor subclasses                     works if the class can run the op; else raises ProblemError
func.functionalize                    works; not around another transform: raises ProblemError
sparse, nested, quantized, lazy       not supported: raises ProblemError
storage that is too small             not supported: raises ProblemError
negated, expanded, overlapping views  works
inference mode                        works; its tensors need no gradients, as in torch
use_deterministic_algorithms          a kernel with `atomics: yes` raises ProblemError
channels_last and other strides       works; y is contiguous
checkpoint                            works
DistributedDataParallel               works
pickle, deepcopy, torch.save          works; a copy shares the kernel, a pickle contains it
CUDA graphs                           works on a GPU, if the kernel ran before the capture
====================================  ===========================================================
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

from ..core.arguments import choice, first_line, flag, shown
from ..core.errors import ConvlabError, ProblemError
from ..core.kernel.call import problem_of_call
from ..core.kernel.catalog import find, split_tunables
from ..core.kernel.data import is_plain, named_tensors, require_storage
from ..core.machine.device import Gpu, find_gpu
from ..core.problem.computation import COMPUTATIONS
from ..core.problem.problem import Problem
from ..core.show.table import Table, wrapped
from .choice import ALWAYS, AUTOS, Auto, rule_of
from .keys import key_of, load_once, name_of
from .op import convolve

DEFAULT_KERNEL = "03_smem_tile"
Pair = int | tuple[int, int]

# A traced model keeps the call as one node.
torch.fx.wrap("convolve")


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
    """Compute ``torch.nn.functional.conv2d`` with one of convlab's kernels, with gradients.

    Parameters
    ----------
    x : Tensor
        The input, (N, C, H, W), or (C, H, W) for one image.
    w : Tensor
        The filter, (K, C/groups, R, S).
    bias : Tensor, optional
        Shape (K,). All tensors have the dtypes of the kernel, mostly float32, are on one device, and
        have any strides.
    stride, padding, dilation, groups
        As in ``torch.nn.functional.conv2d``: ints or pairs (height, width). padding may also be
        ``"valid"`` (no padding) or ``"same"`` (P = H and Q = W; only with stride 1).
    relu : bool
        Whether the kernel computes max(y, 0). The gradients are those of ``torch.relu``.
    kernel : str, Path or Kernel
        - A name (``"03_smem_tile"``) or the path of a .cu file. It is loaded at the first call: for
          the engine ``cuda`` if x is on a GPU, else for the simulator.
        - A Kernel object. It follows edits of its file. Keep a reference to it: this function does
          not. Inside ``torch.compile``, this function takes an object only from torch 2.13 on.
          Names always work, and so do objects in a `Conv2d`.
        - ``"auto"``: the choice of `convlab.best` for the input's shape, which may be torch's own
          convolution. The precision class is TF32, unless ``torch.backends.cudnn.allow_tf32 =
          False``. ``"auto:fp32"`` and ``"auto:tf32"`` set the class.

    Returns
    -------
    torch.Tensor
        y, (N, K, P, Q) or (K, P, Q), contiguous, in the kernel's dtype: float32 unless its header says
        otherwise. Under ``torch.autocast`` the inputs are cast to the kernel's dtypes, and ``"auto"``
        takes torch's convolution in autocast's dtype, unless a header says that a rung is best.

    Raises
    ------
    ProblemError
        A tensor or an argument is invalid: its dtype, number of dimensions, shape or value.
    UnsupportedError
        The kernel's header excludes this problem.
    CatalogError, BuildError, LaunchError
        There is no such kernel; it does not compile; it fails.

    Warns
    -----
    UserWarning
        With ``"auto"``: no kernel supports the problem, and torch's convolution computes it.

    Examples
    --------
    >>> x, w = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3, requires_grad=True)
    >>> convlab.nn.conv2d(x, w, padding=1, kernel="01_direct").sum().backward()
    >>> w.grad.shape
    torch.Size([4, 3, 3, 3])
    """
    options = (stride, padding, dilation, groups, relu)
    return convolve(x, w, bias, options, key_of(kernel))


class Conv2d(nn.Conv2d):
    """Replace ``torch.nn.Conv2d``: a layer whose forward pass runs one of convlab's kernels.

    The constructor, the initial parameters for a seed, and the ``state_dict`` are the same as in
    ``torch.nn.Conv2d``, and each class loads the other's ``state_dict``. All ``padding_mode``s,
    ``"same"``, ``"valid"`` and inputs without a batch work. torch computes the backward pass.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, ..., dtype
        All arguments of ``torch.nn.Conv2d``. A dtype that the kernel does not take raises ProblemError
        at the forward pass.
    relu : bool
        Whether the kernel computes max(y, 0), in place of a ``torch.nn.ReLU`` after the layer. You
        can also set it later: ``layer.relu = True``.
    kernel : str, Path or Kernel
        As in `conv2d`. You can also set it later: ``layer.kernel = "02_im2col_gemm"``. A copy of
        the layer shares the Kernel object; a pickle contains it.

    Raises
    ------
    ProblemError
        In the constructor: ``kernel`` is not a kernel. At the forward pass: a dtype or a shape is
        invalid.
    CatalogError, BuildError, UnsupportedError, LaunchError
        At the forward pass: there is no such kernel; it does not compile; it does not support the
        problem; it fails.

    Examples
    --------
    >>> layer = convlab.nn.Conv2d(3, 8, 3, padding=1, kernel="01_direct")
    >>> layer(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 8, 8, 8])
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
        # Torch's constructor raises errors of many types for invalid arguments.
        try:
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
        except Exception as error:
            raise ProblemError(first_line(error)) from error
        self.relu = flag(relu, "relu")
        self.kernel = kernel

    @property
    def kernel(self):
        """The kernel as you gave it: a name, a path or a Kernel object."""
        return self._kernel

    def __setattr__(self, name: str, value: object) -> None:
        # Module.__setattr__ would register a kernel that is a Module as a submodule.
        if name == "kernel":
            type(self).kernel.fset(self, value)
        else:
            super().__setattr__(name, value)

    @kernel.setter
    def kernel(self, kernel) -> None:
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
        # A key is valid in one process only, so set it again.
        self.kernel = self._kernel

    def __deepcopy__(self, memo):
        new = memo[id(self)] = type(self).__new__(type(self))
        # Share the kernel: it is code, not state.
        memo[id(self._kernel)] = self._kernel
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


def replace(
    model: nn.Module, kernel, *, where: Callable[[str, nn.Module], bool] | None = None
) -> nn.Module:
    """Make every ``torch.nn.Conv2d`` in a model use a kernel, in place.

    Each layer stays the same object and becomes a `convlab.nn.Conv2d`. Its parameters, its hooks
    and all references to it stay valid. So a shared layer remains shared, and an existing optimizer
    still works. A layer that already is a `convlab.nn.Conv2d` gets the new kernel. Subclasses of
    ``torch.nn.Conv2d`` (lazy layers that have not run, parametrised layers, quantised layers) do
    not change. A layer that the kernel does not support raises UnsupportedError at its forward
    pass; exclude it with ``where``.

    Parameters
    ----------
    model : Module
        Any module, also a single ``torch.nn.Conv2d``.
    kernel : str, Path or Kernel
        As in `conv2d`. With ``"auto"`` each layer gets the best kernel for its shape; `choices`
        lists them.
    where : callable, optional
        A function ``where(name, layer)`` that returns whether to replace a layer. ``name`` is the
        name in ``named_modules``, for a shared layer the first one.

    Returns
    -------
    torch.nn.Module
        The same ``model``.

    Raises
    ------
    ProblemError
        ``kernel`` or ``where`` is invalid, or a layer has a ``forward`` of its own, which would
        bypass the kernel. No layer is replaced.
    CatalogError
        There is no kernel with this name. No layer is replaced.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> convlab.nn.replace(model, "01_direct")[0]
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), kernel=01_direct)
    """
    # These raise before any layer is changed.
    key = key_of(kernel)
    if isinstance(kernel, (str, os.PathLike)) and key not in AUTOS:
        find(split_tunables(key)[0], AUTOS)
    _require_module(model)
    if where is not None and not callable(where):
        raise ProblemError(f"where must be a function of a name and a layer, not {shown(where)}")
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) in (nn.Conv2d, Conv2d) and _is_chosen(where, name, module)
    ]
    for name, layer in layers:
        patched = sorted({"forward", "_conv_forward"} & vars(layer).keys())
        if patched:
            raise ProblemError(
                f"layer {name!r} has a {patched[0]} of its own, perhaps from a library that "
                "wrapped it, so the kernel would not run: replace before wrapping, or exclude it "
                "with where="
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
    """Run a model once, and return the problem of each convolution.

    Parameters
    ----------
    model : Module
        Any module. It runs without gradients, in its present mode. Call ``eval()`` first, because
        in training mode the run changes its statistics.
    *inputs, **keywords
        The arguments of the model.

    Returns
    -------
    list of (name, Problem)
        The layer's name and the problem, for each call of a ``torch.nn.Conv2d`` or a subclass, in
        the order of the calls. A shared layer appears once for each call. A ``padding_mode`` other
        than "zeros", and the asymmetric part of the padding "same", are part of the problem's input
        image.

    Raises
    ------
    ProblemError
        The arguments of a layer do not describe a convolution.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> [(name, conv.y_shape) for name, conv in convlab.nn.problems(model, torch.ones(1, 3, 8, 8))]
    [('0', (1, 8, 6, 6))]
    """
    _require_module(model)
    calls: list[tuple[str, Problem]] = []

    def hook(name: str) -> Callable:
        def record(layer: nn.Conv2d, arguments: tuple, keywords: dict) -> None:
            x = arguments[0] if arguments else keywords.get("input")
            calls.append((name, _problem_of(layer, x, name)))

        return record

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Conv2d):
                handle = layer.register_forward_pre_hook(hook(name), with_kwargs=True)
                hooks.callback(handle.remove)
        _run(model, inputs, keywords)
    return calls


def choices(
    model: nn.Module,
    *inputs,
    kernel: str = "auto",
    gpu: Gpu | str | None = None,
    gradients: bool = False,
    **keywords,
) -> list[tuple[str, Problem, Callable]]:
    """Return the kernel that ``kernel="auto"`` chooses for each convolution of a model.

    Parameters
    ----------
    model : Module
        Any module, replaced or not. `problems` runs it once.
    *inputs, **keywords
        The arguments of the model.
    kernel : str
        One of "auto", "auto:fp32" and "auto:tf32".
    gpu : str
        The name of a GPU, as in `best`: the result is the choices of the rule for it. You need no
        GPU for this.
    gradients : bool
        Whether to list the choices for both gradients of each convolution, too: what the backward pass
        calls on a GPU. Torch computes no data gradient for a layer whose input needs none.

    Returns
    -------
    list of (name, Problem, Kernel or Baseline)
        The layer's name, its problem, and the kernel or library convolution. It prints as a table.
        With `gradients` each convolution has three rows, and the problem says what it computes.

    Raises
    ------
    ProblemError
        ``kernel`` is another text, or a layer's arguments do not describe a convolution.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> print(convlab.nn.choices(model, torch.ones(1, 3, 8, 8)))    # doctest: +SKIP
    """
    _require_module(model)
    choice(kernel, "rule", AUTOS)
    on_gpu = any(tensor.is_cuda for tensor in model.parameters())
    engine = "cuda" if on_gpu else "sim"
    if gpu is None:
        auto = load_once(kernel, engine)
    else:
        auto = Auto(engine, kernel.partition(":")[2], find_gpu(gpu))
    called = problems(model, *inputs, **keywords)
    if flag(gradients, "gradients"):
        called = [
            (name, problem.computing(each)) for name, problem in called for each in COMPUTATIONS
        ]
    found = Choices((name, problem, auto.choice(problem)) for name, problem in called)
    if gpu is not None:
        rules = dict.fromkeys(rule_of(taken) for *_, taken in found)
        found.note = "\n".join([f"by the rule for {find_gpu(gpu).name}:", *rules])
    elif any(taken.counts for *_, taken in found):
        found.note = f"no GPU is used: {ALWAYS}"
    return found


def _run(model: nn.Module, inputs: tuple, keywords: dict) -> None:
    """Run a model; raise ProblemError for its own errors, which are about its arguments."""
    for i, value in enumerate([*inputs, *keywords.values()]):
        # Torch's own operations would crash.
        if isinstance(value, Tensor) and is_plain(value):
            require_storage(f"input {i}", value)
    try:
        model(*inputs, **keywords)
    except ConvlabError:
        raise
    except Exception as error:
        raise ProblemError(
            f"the model raised {type(error).__name__}: {first_line(error)}; give the inputs with "
            "which model(*inputs) works"
        ) from error


class Choices(list):
    """The list that `choices` returns; it prints as a table, with a note."""

    note = ""

    def __repr__(self) -> str:
        rows = [
            {"layer": name, "problem": str(problem), "kernel": kernel.name}
            for name, problem, kernel in self
        ]
        lines = Table(pd.DataFrame(rows), left=("problem", "kernel")).lines()
        for note in self.note.split("\n"):
            lines += wrapped(note, "")
        return "\n".join(lines)


def _is_chosen(where: Callable | None, name: str, layer: nn.Module) -> bool:
    """Return whether the user's function `where` chooses a layer."""
    try:
        return where is None or bool(where(name, layer))
    except Exception as error:
        raise ProblemError(
            f"where raised {type(error).__name__} for layer {shown(name)}: {first_line(error)}; it "
            "is called as where(name, layer), and must return True or False"
        ) from error


def _require_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ProblemError(f"model must be a torch.nn.Module, not {shown(model)}")


def _outer(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, tuple[int, int] | str]:
    """Return the image with the border of its ``padding_mode``, and the remaining padding."""
    if layer.padding_mode == "zeros":
        return x, layer.padding
    return F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode), (0, 0)


def _problem_of(layer: nn.Conv2d, x: Tensor, name: str) -> Problem:
    """Return the problem that a layer computes for an input; it has the layer's name."""
    named_tensors(x, layer.weight, layer.bias)
    x, padding = _outer(layer, x)
    relu = isinstance(layer, Conv2d) and layer.relu
    options = (layer.stride, padding, layer.dilation, layer.groups, relu)
    return problem_of_call(x, layer.weight, layer.bias, options, name)[1]
