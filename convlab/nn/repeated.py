"""Make a layer's second call fast: remember calls that were validated, and launch equal ones at once.

A layer calls the same kernel with tensors of the same shapes in each step of training. The first such
call validates everything and rehearses the kernel. Its signature is then kept. A call of an equal
signature only looks whether the kernel's files changed, allocates y and launches.

Only calls on a GPU are kept, in torch's usual state: no tracing, no transform of `torch.func`, no
autocast, no forward-mode derivatives. The simulator's launches take so long that nothing is gained.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from ..core.kernel.call import CallableRunnable, is_recorded, is_transformed
from ..core.problem.problem import Problem
from .choice import Auto
from .gradients import Rungs, gradients_of, state_of_gradients

# The kind of device whose calls are kept.
_KIND = "cuda"
# The most signatures for one kernel; a model has at most one for each layer and shape.
_MOST = 1024


class Kept:
    """A signature's problem, and what was chosen for it; no kernel that a call gives is kept alive."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        # By "auto": the choice for the forward pass, and the state of the choices when it was made.
        self._chosen: CallableRunnable | None = None
        self._state: object = None
        # The same for the gradients that are needed.
        self._gradients: dict[Hashable, tuple[object, Rungs]] = {}

    def chosen(self, auto: Auto) -> CallableRunnable:
        """Return the choice of "auto" for the forward pass."""
        state = auto.state()
        if state != self._state:
            self._chosen = auto.choice(self.problem)
            self._state = state
        return self._chosen

    def gradients(self, needed: tuple[bool, bool], precision: str) -> Rungs:
        """Return the rungs for the gradients of x and w, as `gradients_of` does."""
        state = state_of_gradients(precision)
        found = self._gradients.get((needed, precision))
        if found is None or found[0] != state:
            found = state, gradients_of(self.problem, needed, precision)
            self._gradients[needed, precision] = found
        return found[1]


class Call(NamedTuple):
    """A call that was validated: its problem, and what computes it.

    `is_chosen`: by "auto", which has looked for edits of the files.
    """

    kept: Kept
    runnable: CallableRunnable
    is_chosen: bool

    @property
    def problem(self) -> Problem:
        """The problem of the forward pass."""
        return self.kept.problem


# The kept calls of each kernel, by signature. It keeps no kernel alive that a call does not hold.
_calls: WeakKeyDictionary[Callable, dict[Hashable, Kept]] = WeakKeyDictionary()


def signature(x: Any, w: Any, bias: Any, options: tuple) -> Hashable | None:
    """Return all that the validation of a call depends on; None if such calls are not kept.

    Two calls of one signature have tensors of the same shapes, strides, types, alignments and
    storage sizes, the same options, and the same state of torch.
    """
    if type(x) is not Tensor or x.device.type != _KIND or x.dim() != 4:
        return None
    if is_transformed() or is_recorded() or _has_tangents():
        return None
    if torch.is_autocast_enabled("cuda") or torch.are_deterministic_algorithms_enabled():
        return None
    facts: list[object] = [
        options,
        # True is not 1 here, although they are equal.
        *map(type, options),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.cuda.current_device(),
    ]
    for tensor in (x, w, bias):
        if tensor is None:
            facts.append(None)
            continue
        if type(tensor) not in (Tensor, Parameter):
            return None
        facts += (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            # These keys say what a tensor stands for: its numbers, or those of another one.
            torch._C._dispatch_keys(tensor).raw_repr(),
            tensor.untyped_storage().nbytes(),
            tensor.data_ptr() % 32,
        )
    signature = tuple(facts)
    try:
        hash(signature)
    # An option that is a list is valid, but cannot be looked up.
    except TypeError:
        return None
    return signature


def _has_tangents() -> bool:
    """Return whether forward-mode derivatives may be active; True if torch does not say."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def kept(kernel: Callable, signature: Hashable) -> Call | None:
    """Return the kept call of a kernel for a signature, or None."""
    calls = _calls.get(kernel)
    found = calls and calls.get(signature)
    if found is None:
        return None
    if isinstance(kernel, Auto):
        return Call(found, found.chosen(kernel), True)
    return Call(found, kernel, False)


def keep(kernel: Callable, signature: Hashable, problem: Problem) -> None:
    """Keep the signature of a call that has succeeded."""
    if not isinstance(kernel, (Auto, CallableRunnable)):
        return
    calls = _calls.setdefault(kernel, {})
    if len(calls) >= _MOST:
        calls.clear()
    calls[signature] = Kept(problem)
