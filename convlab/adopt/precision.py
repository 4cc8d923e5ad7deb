"""Compare an answer's output with float64, for any operation: its error and its precision class.

No formula for the error is known. So the reference itself is run in lower precision: in float32, and
in float64 with inputs and parameters rounded to 10 bits (TF32, float16) and to 7 bits (bfloat16).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .shapes import listed

# An error below this is one of float32 for any operation: some hundred roundings.
_LEAST = 2e-5
# How many times the error of torch's own float32 is still float32: another order of the sums.
_TIMES_FP32 = 16
_TIMES_ROUNDED = 4
# A larger error is no rounding.
_IMPRECISE = 0.05
# The bits of a mantissa, by class.
_BITS = {"tf32": 10, "bf16": 7}
_FLOAT32_BITS = 23


@dataclass(frozen=True)
class Truth:
    """The outputs in float64, and the largest error of each precision class."""

    outputs: tuple[Any, ...]
    bounds: dict[str, float]

    @classmethod
    def of(cls, model: torch.nn.Module, inputs: Sequence[Any], apply: Callable[..., Any]) -> Truth:
        """Run a reference, which is in float32; `apply(model, inputs)` returns its output."""
        wide = copy.deepcopy(model).double()
        outputs = tuple(listed(apply(wide, [_wide(each) for each in inputs])))
        plain = listed(apply(model, inputs))
        bounds = {"fp32": max(_TIMES_FP32 * _largest(plain, outputs), _LEAST)}
        for name, bits in _BITS.items():
            rounded = copy.deepcopy(wide)
            with torch.no_grad():
                for parameter in rounded.parameters():
                    parameter.copy_(_rounded(parameter, bits))
            values = [_rounded(_wide(each), bits) for each in inputs]
            error = _largest(listed(apply(rounded, values)), outputs)
            bounds[name] = max(_TIMES_ROUNDED * error, *bounds.values())
        return cls(outputs, bounds)


@dataclass(frozen=True)
class Comparison:
    """The result of one comparison.

    Attributes
    ----------
    error : the largest error, relative to the largest value.
    precision : the class: "fp32", "tf32", "bf16", or "" if the output is incorrect.
    kind : "", "wrong result", "too imprecise", "never written" or "form".
    text : what is incorrect.
    """

    error: float
    precision: str
    kind: str = ""
    text: str = ""


def compare(result: Any, truth: Truth) -> Comparison:
    """Return how an answer's result compares with float64."""
    values = listed(result)
    if len(values) != len(truth.outputs):
        return _form(f"ModelNew returns {len(values)} values, and Model {len(truth.outputs)}")
    worst = 0.0
    for value, wanted in zip(values, truth.outputs, strict=True):
        if not isinstance(wanted, Tensor):
            if value != wanted:
                return _form(f"ModelNew returns {value!r}, and Model {wanted!r}")
            continue
        if type(value) not in (Tensor, torch.nn.Parameter):
            return _form(f"ModelNew returns a {type(value).__name__}, not a plain torch.Tensor")
        if value.shape != wanted.shape:
            return _form(
                f"ModelNew returns the shape {tuple(value.shape)}, and Model {tuple(wanted.shape)}"
            )
        if not wanted.is_floating_point():
            if not torch.equal(value.to(wanted.dtype).to(wanted.device), wanted):
                return Comparison(float("inf"), "", "wrong result", "its whole numbers differ")
            continue
        found = _unequal(value.detach(), wanted, max(truth.bounds.values()))
        if isinstance(found, Comparison):
            return found
        worst = max(worst, found)
    for name, bound in truth.bounds.items():
        if worst <= bound:
            return _classed(worst, name, truth.bounds)
    text = (
        f"the error is {worst:.2g} of the largest value; float32 needs {truth.bounds['fp32']:.1g}"
    )
    return Comparison(worst, "", "too imprecise" if worst < _IMPRECISE else "wrong result", text)


def _classed(error: float, name: str, bounds: dict[str, float]) -> Comparison:
    if name in ("fp32", "tf32"):
        return Comparison(error, name)
    text = (
        f"the error is {error:.2g} of the largest value, as with {name}; "
        f"float32 needs {bounds['fp32']:.1g}, TF32 {bounds['tf32']:.1g}"
    )
    return Comparison(error, name, "too imprecise", text)


def _unequal(value: Tensor, wanted: Tensor, bound: float) -> float | Comparison:
    """Return the relative error of a tensor; a comparison if values are not numbers, or far off."""
    value = value.to(wanted.device, torch.float64)
    strange = value.isnan() & ~wanted.isnan()
    total = wanted.numel()
    if count := int(strange.sum()):
        index = _first(strange)
        text = f"{count:,} of {total:,} outputs are NaN, the first at {index}: never written, or computed so"
        return Comparison(
            float("inf"), "", "never written" if count > total // 100 else "wrong result", text
        )
    same = (value == wanted) | (value.isnan() & wanted.isnan())
    difference = torch.where(same, 0.0, (value - wanted).abs())
    finite = wanted[wanted.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    error = float(difference.max()) / (scale or 1.0) if total else 0.0
    if error > max(bound, _IMPRECISE):
        far = difference > bound * (scale or 1.0)
        index = _first(far)
        place = tuple(index)
        text = (
            f"{int(far.sum()):,} of {total:,} outputs are incorrect, the first at {index}: "
            f"{float(value[place]):.6g} instead of {float(wanted[place]):.6g}"
        )
        return Comparison(error, "", "wrong result", text)
    return error


def _first(mask: Tensor) -> list[int]:
    return mask.nonzero()[0].tolist() if mask.dim() else []


def _form(text: str) -> Comparison:
    return Comparison(float("inf"), "", "form", text)


def _largest(values: Sequence[Any], wanted: Sequence[Any]) -> float:
    errors = [0.0]
    for value, truth in zip(values, wanted, strict=True):
        if isinstance(truth, Tensor) and truth.is_floating_point() and truth.numel():
            found = _unequal(value, truth, float("inf"))
            errors.append(found if isinstance(found, float) else 0.0)
    return max(errors)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    return value


def _rounded(value: Any, bits: int) -> Any:
    """Return a float64 tensor with the mantissa of float32 cut to some bits, to nearest."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    dropped = _FLOAT32_BITS - bits
    whole = value.float().view(torch.int32)
    half = (1 << (dropped - 1)) - 1 + ((whole >> dropped) & 1)
    return (((whole + half) >> dropped) << dropped).view(torch.float32).double()
