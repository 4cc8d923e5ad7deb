"""Shapes of an answer's inputs: recorded, scaled down, and varied, without knowledge of the operation.

``get_inputs`` runs with sizes in place of its own, on torch's device "meta", where tensors have no
memory. If ``Model`` accepts the tensors there, the sizes fit together.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

# A size of an input: the number of the call that made the tensor, and the dimension.
Slot = tuple[int, int]
SIZED = ("rand", "randn", "zeros", "ones", "empty", "full", "randint", "normal")
# Sizes are not scaled below these numbers, unless the cost is still too large.
_LEAST = 12
_MOST_STEPS = 200


class OnDevice(TorchFunctionMode):
    """Let code that asks for a GPU run on another device: "cpu" or "meta".

    A tensor says that it is on the GPU, as it will be there.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace devices in a call of torch."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            if func == Tensor.is_cuda.__get__:
                return True
            if func == Tensor.device.__get__ and self.device == "cpu":
                return torch.device("cuda", 0)
            return func(*args, **kwargs)
        if name in ("cuda", "cpu") and args and isinstance(args[0], Tensor):
            return args[0]
        if self.device == "meta" and name.startswith("conv_transpose"):
            _require_channels(args, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = self.device
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if name == "to":
            args = [self._host(each) for each in args]
        return func(*args, **kwargs)

    def _host(self, value: Any) -> Any:
        if isinstance(value, torch.device) or (
            isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu")
        ):
            return self.device
        return value


class Sizes(OnDevice):
    """Record the sizes of tensors that ``get_inputs`` makes, and change some of them.

    Attributes
    ----------
    seen : the sizes of each call, before the change.
    """

    def __init__(self, device: str, changes: Mapping[Slot, int]) -> None:
        super().__init__(device)
        self.changes = changes
        self.seen: list[tuple[int, ...]] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Change the sizes in a call that makes a tensor."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in SIZED:
            args, kwargs = self._changed(name, list(args), kwargs)
            if self.device != "cpu":
                kwargs["device"] = self.device
                kwargs.pop("generator", None)
        return super().__torch_function__(func, types, args, kwargs)

    def _changed(
        self, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        if "size" in kwargs:
            kwargs["size"] = self._sizes(kwargs["size"])
            return args, kwargs
        places = [i for i, each in enumerate(args) if isinstance(each, (tuple, list, torch.Size))]
        if places:
            args[places[-1]] = self._sizes(args[places[-1]])
        elif name in ("rand", "randn", "zeros", "ones", "empty") and args:
            return [self._sizes(args)], kwargs
        return args, kwargs

    def _sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        number = len(self.seen)
        self.seen.append(tuple(sizes))
        return tuple(self.changes.get((number, d), size) for d, size in enumerate(sizes))


def _require_channels(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise if a transposed convolution's filter has other channels; the device "meta" allows it."""
    given = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
    if given["input"].shape[-len(given["weight"].shape) + 1] != given["weight"].shape[0]:
        raise RuntimeError("the filter of a transposed convolution has other channels")


@dataclass(frozen=True)
class Case:
    """Sizes and init arguments with which both models run.

    Attributes
    ----------
    changes : the sizes that differ from those of ``get_inputs``.
    init, named : the positional arguments of ``__init__``, and more by name.
    label : what differs from the task's own case, for a message.
    strided : whether the inputs are views with other strides.
    data : what is unusual about the numbers: a key of `_DATA`; empty for the task's own numbers.
    knobs : the name and value of what was varied.
    """

    init: tuple[Any, ...]
    changes: Mapping[Slot, int] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    strided: bool = False
    data: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)


class Task:
    """The reference of an answer: its ``Model`` and inputs.

    Parameters
    ----------
    space : the names of the executed reference.
    names : the names of init arguments, with their defaults, as `inspect` reports them.
    """

    def __init__(self, space: Mapping[str, Any], names: Mapping[str, Any]) -> None:
        self.space = space
        self.names = names

    def inputs(self, case: Case, device: str, seed: int | None = None) -> tuple[list[Any], Sizes]:
        """Return the inputs of a case on a device, and the record of their sizes."""
        mode = Sizes(device, case.changes)
        if seed is not None:
            torch.manual_seed(seed)
        with mode:
            inputs = list(self.space["get_inputs"]())
        if case.data:
            inputs = [_DATA[case.data](each) if _is_real(each) else each for each in inputs]
        if case.strided:
            inputs = [_strided(each) for each in inputs]
        return inputs, mode

    def cost(self, case: Case) -> float | None:
        """Return about how many operations a case takes; None if Model does not accept it."""
        try:
            with contextlib.redirect_stdout(None), torch.no_grad():
                with torch.device("meta"):
                    model = self.space["Model"](*case.init, **case.named)
                inputs, _ = self.inputs(replace(case, strided=False), "meta")
                counter = FlopCounterMode(display=False)
                with counter, OnDevice("meta"):
                    outputs = model(*inputs)
        # Any exception means that Model does not accept the sizes.
        except Exception:
            return None
        tensors = [each for each in (*inputs, *listed(outputs)) if isinstance(each, Tensor)]
        if any(not tensor.numel() for tensor in tensors):
            return None
        weights = sum(parameter.numel() for parameter in model.parameters())
        return counter.get_total_flops() / 2 + 4 * (sum(t.numel() for t in tensors) + weights)

    def sizes(self, case: Case) -> dict[Slot, int]:
        """Return all sizes of a case's inputs."""
        _, mode = self.inputs(replace(case, strided=False), "meta")
        return {
            (number, d): case.changes.get((number, d), size)
            for number, sizes in enumerate(mode.seen)
            for d, size in enumerate(sizes)
        }

    def scaled(self, case: Case, budget: float) -> Case | None:
        """Return a case of at most about `budget` operations; None if no such case was found."""
        cost = self.cost(case)
        if cost is None:
            return None
        # A batch is reduced first: a kernel's mistakes rarely depend on it. Rows of a matrix are none.
        sizes = self.sizes(case)
        batches = [(slot,) for slot in sizes if slot[1] == 0 and (slot[0], 2) in sizes]
        together = [sum(batches, ())] if len(batches) > 1 else []
        for groups in (together, batches):
            case, cost = self._reduced(case, cost, budget, groups, 2, with_init=False)
        groups = _groups(self.sizes(case))
        for least in (_LEAST, 4):
            case, cost = self._reduced(case, cost, budget, [*groups], least, with_init=False)
        case, cost = self._fewer_outputs(case, cost, budget)
        for least in (_LEAST, 2):
            case, cost = self._reduced(case, cost, budget, [*groups], least, with_init=True)
        return case if cost <= 4 * budget else None

    def _fewer_outputs(self, case: Case, cost: float, budget: float) -> tuple[Case, float]:
        """Halve large init arguments that are no size of an input, such as output features."""
        bound = set(self.sizes(case).values())
        for place, value in enumerate(case.init):
            is_size = isinstance(value, int) and not isinstance(value, bool) and value not in bound
            while is_size and cost > budget and value >= 2 * _LEAST:
                value = _half(value, bound, case.init)
                init = (*case.init[:place], value, *case.init[place + 1 :])
                smaller = self.cost(replace(case, init=init))
                if smaller is None or smaller >= cost:
                    break
                case = replace(case, init=init)
                cost = smaller
        return case, cost

    def _reduced(
        self,
        case: Case,
        cost: float,
        budget: float,
        groups: list[tuple[Slot, ...]],
        least: int,
        with_init: bool,
    ) -> tuple[Case, float]:
        """Halve the largest sizes while Model accepts it."""
        for _ in range(_MOST_STEPS):
            if cost <= budget or not groups:
                break
            sizes = self.sizes(case)
            groups.sort(key=lambda group: sizes[group[0]])
            group = groups[-1]
            old = sizes[group[0]]
            new = _half(old, {size for slot, size in sizes.items() if slot not in group}, case.init)
            if new < least:
                groups.pop()
                continue
            changed = replace(case, changes={**case.changes, **dict.fromkeys(group, new)})
            if with_init:
                init = tuple(_other(value, old, new) for value in case.init)
                changed = replace(changed, init=init)
            smaller = self.cost(changed)
            if smaller is not None and smaller < cost:
                case = changed
                cost = smaller
                continue
            groups.pop()
            if len(group) > 1 and not with_init:
                groups += [(slot,) for slot in group]
        return case, cost


def _half(size: int, others: set[int], init: Sequence[Any]) -> int:
    """Return about half of a size: a number that is no other size and no init argument yet.

    Equal numbers could no longer be told apart.
    """
    taken = others | set(_numbers(init))
    half = size // 2
    for step in (0, 4, 8, 2, 6):
        if half - step > 0 and half - step not in taken:
            return half - step
    return half


def _numbers(value: Any) -> Iterator[int]:
    """Yield the whole numbers in an init argument."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int):
        yield value


def _groups(sizes: Mapping[Slot, int]) -> list[tuple[Slot, ...]]:
    """Return the slots of equal sizes."""
    groups: dict[int, list[Slot]] = {}
    for slot, size in sizes.items():
        groups.setdefault(size, []).append(slot)
    return [tuple(slots) for size, slots in groups.items() if size > 1]


def _other(value: Any, old: int, new: int) -> Any:
    """Return an init argument with one number in place of another."""
    if isinstance(value, bool):
        return value
    if value == old:
        return new
    if isinstance(value, (tuple, list)):
        return type(value)(_other(each, old, new) for each in value)
    return value


def _strided(value: Any) -> Any:
    """Return a tensor with the same numbers and other strides."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)


def listed(value: Any) -> list[Any]:
    """Return a model's output as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


# The values of init arguments to try, by a part of their name.
_TRIED: dict[str, tuple[Any, ...]] = {
    "stride": (2, 1),
    "padding": (1, 0, 2),
    "dilation": (2,),
    "groups": (2,),
    "kernel": (1, 2, 5),
}


def variations(task: Task, case: Case, names: Mapping[Slot, str], budget: float) -> Iterator[Case]:
    """Yield cases that differ from a case in one size or init argument, if Model accepts them.

    Parameters
    ----------
    task, case : the reference, and the case that is varied.
    names : the names of sizes, for labels.
    budget : the most operations of a case.
    """
    yield replace(
        case, strided=True, label="inputs that are not contiguous", knobs={"contiguous": False}
    )
    sizes = task.sizes(case)
    done: set[Slot] = set()
    for slot, size in sizes.items():
        if slot in done:
            continue
        for new in _sizes_to_try(size, budget):
            found = _resized(task, case, sizes, slot, new, budget)
            if found is not None:
                changed, slots = found
                done |= slots
                name = names.get(slot, f"size {slot[1]} of input {slot[0]}")
                yield replace(changed, label=f"{name} = {new}", knobs={name: new})
    yield from _other_init(task, case, sizes, budget)


def unusual_numbers(case: Case) -> Iterator[Case]:
    """Yield cases that differ from a case in the numbers of the inputs only."""
    for data in _DATA:
        yield replace(case, data=data, label=f"inputs that are {data}", knobs={"numbers": data})


# Whole numbers give equal inputs; 100 times as large, exp() of them overflows float32.
_DATA = {
    "small whole numbers": lambda tensor: (3 * tensor).round(),
    "100 times as large": lambda tensor: 100 * tensor,
}


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _sizes_to_try(size: int, budget: float) -> list[int]:
    larger = 2 * size + 3
    return [each for each in (size + 1, 1, larger) if each != size and each < budget]


def _resized(
    task: Task, case: Case, sizes: Mapping[Slot, int], slot: Slot, new: int, budget: float
) -> tuple[Case, set[Slot]] | None:
    """Return the case with another size: alone, else together with equal sizes, else with init too."""
    old = sizes[slot]
    alone = {slot}
    equal = {each for each, size in sizes.items() if size == old}
    init = tuple(_other(value, old, new) for value in case.init)
    for slots, arguments in ((alone, case.init), (equal, case.init), (alone, init), (equal, init)):
        changes = {**case.changes, **dict.fromkeys(slots, new)}
        changed = replace(case, changes=changes, init=arguments)
        cost = task.cost(changed)
        if cost is not None and cost <= 8 * budget:
            return changed, slots
    return None


def _other_init(task: Task, case: Case, sizes: Mapping[Slot, int], budget: float) -> Iterator[Case]:
    bound = set(sizes.values())
    for place, (name, default) in enumerate(task.names.items()):
        given = place < len(case.init)
        old = case.init[place] if given else default
        for new in _values_to_try(name, old, bound):
            if given:
                init = (*case.init[:place], new, *case.init[place + 1 :])
                changed = replace(case, init=init)
            else:
                changed = replace(case, named={name: new})
            cost = task.cost(changed)
            if cost is not None and cost <= 8 * budget:
                yield replace(changed, label=f"{name} = {new}", knobs={name: new})


def _values_to_try(name: str, old: Any, bound: set[int]) -> list[Any]:
    if isinstance(old, bool):
        return [not old]
    if isinstance(old, int):
        for part, values in _TRIED.items():
            if part in name:
                return [value for value in values if value != old]
        if old in bound:
            # It changes together with the size of an input.
            return []
        return [old + 1, old - 1] if old > 0 else []
    if isinstance(old, float):
        return [old * 2 + 0.25] if math.isfinite(old) else []
    return []
