"""Call convlab's public functions with wrong arguments, and count errors without convlab's words.

    python -m tests.instruments.misuse --calls 10000 --write convlab/EVIDENCE.md

Each call has valid, nearly valid and hostile arguments, drawn with a seed. Fine are: a result; one
of convlab's own errors; a TypeError for an argument that a function does not have. Each other
exception is a raw error from the inside. A message fails too if it is empty, if it repeats more
than 80 characters of an argument, or if UTF-8 cannot encode it. `tests/house/test_misuse.py` runs
a few hundred calls.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import inspect
import io
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import convlab
import convlab.nn
from convlab.core.errors import ConvlabError
from tests.instruments.pages import write_between

PACKAGE = str(Path(convlab.__file__).parent)
LONG = "x" * 5000
TINY = "N=1,C=2,H=5,W=5,K=3,R=3,S=3"
# Parameters that take a number or a pair of numbers.
_NUMBERS = (
    *("stride", "padding", "dilation", "groups"),
    *("kernel_size", "output_padding", "filter_size"),
)
# The most seconds of a call; a longer one counts as a failure.
LIMIT = 600


class Hostile:
    """An object that raises an error wherever it is used."""

    def _raise(self, *_: object) -> Any:
        raise KeyError("hostile")

    __repr__ = __str__ = __bool__ = __eq__ = __len__ = __iter__ = _raise
    __index__ = __float__ = __fspath__ = __getitem__ = _raise
    __hash__ = object.__hash__


class Endless:
    """An iterable that breaks after its first member."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise OSError("broken")


def anything(files: Path) -> list[Any]:
    """Return values of all types, plausible and hostile, for any argument."""
    return [
        *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, -(2**70), 10**5000),
        *(0.0, 1.5, -0.1, math.nan, math.inf, -math.inf, 1e308),
        *("", " ", "\0", "\n", "a\nb", "é", "\ud800", "\udcff", LONG, "[" * 5000, "%s{0}{x}"),
        *(b"", b"01_direct", bytearray(b"x"), memoryview(b"x")),
        *((), [], {}, set(), (1, 2), [1, 2], (1, 2, 3), ("1", "2"), (None, None), {"a": 1}),
        *([LONG], {LONG: LONG}, {1: 2}, {"TILE": "a b"}, {"TILE": [1, 2]}, range(3)),
        *(np.int64(3), np.float32(2.5), np.nan, np.bool_(True), np.arange(4), np.array("x")),
        *(torch.tensor(3), torch.ones(2), torch.zeros(0), torch.float32, torch.device("cpu")),
        *(Decimal("1.5"), Fraction(1, 3), 1j, object(), object, int, len, print, Ellipsis),
        *(Hostile(), Endless(), iter([1, 2]), (i for i in "ab"), Path("x"), Path("/"), files),
        *(lambda *args: None, nn.ReLU(), convlab, RuntimeError("x"), NotImplemented),
    ]


def problems() -> list[Any]:
    named = ["square", "wide", "headline", "awkward", "resnet50.layer1.0.conv2", "sqare"]
    texts = [TINY, f"{TINY},bias=1", "N1 C2 H5 W5 K3 R3 S3", "N=1", "N=1,C=a", f"{TINY},X=3"]
    other = ["N=99999999999999999999", f"{TINY},padding=1x2x3", "bias", "wide bias relu bias"]
    return [*named, *texts, *other, convlab.problem(TINY), [TINY, TINY], [convlab.problem(TINY)]]


def spoilt_receipts(folder: Path, draw: random.Random) -> list[Path]:
    """Write receipts of all kinds, most of them damaged, and return their paths."""
    cost = {"problem": "p", "mode": "cold", "kernel": "k", "cost": 1.5, "low": 1, "high": 2}
    good = {
        "convlab_receipt": 2,
        "kind": "AB",
        "text": "text",
        "ok": True,
        "sentence": "s",
        "rows": [{"a": 1}],
        "notes": ["n"],
        "made": {"when": "2026-01-01T00:00:00", "gpu": None, "versions": {"torch": "2"}},
        "samples": [{"ms": 1.0}],
        "costs": [{**cost, "unit": "ms", "source": "", "build": None}],
    }
    bad = [None, True, 3, -1.5, "x", LONG, [], {}, [1], [[]], {"a": 1}, [None], "\ud800", 10**400]
    texts: list[bytes] = [
        *(b"", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"\0" * 100, b"NaN"),
        json.dumps(good).encode("utf-16"),
        json.dumps(good).encode("utf-8-sig"),
        json.dumps(good).encode(),
        json.dumps(good).replace("1.5", "1e999").encode(),
        json.dumps(good).replace("1.5", "NaN").encode(),
        json.dumps(good).replace("1.5", "9" * 5000).encode(),
        json.dumps(good).replace('"ok"', '"kind"').encode(),
        json.dumps(good)[:-20].encode(),
    ]
    for key in good:
        texts.append(json.dumps({k: v for k, v in good.items() if k != key}).encode())
        for value in bad:
            texts.append(json.dumps({**good, key: value}).encode())
    for group, part in (("costs", good["costs"][0]), ("made", good["made"])):
        for key in part:
            for value in bad:
                spoilt = {**part, key: value}
                changed = {**good, group: [spoilt] if group == "costs" else spoilt}
                texts.append(json.dumps(changed).encode())
    paths = []
    for i, text in enumerate(texts):
        path = folder / f"{i}.json"
        path.write_bytes(text)
        paths.append(path)
    draw.shuffle(paths)
    return paths


def tensors() -> list[Any]:
    x = torch.ones(1, 2, 5, 5)
    w = torch.ones(3, 2, 3, 3)
    empty = x.clone()
    empty.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([x[0]])
    return [
        *(x, w, x, w, x[0], torch.ones(3), x.double(), x.half(), x.to_sparse(), x.to("meta")),
        *(empty, nested, nn.UninitializedParameter(), x.int(), x.cfloat(), torch.ones(())),
        *(
            torch.ones(0, 2, 5, 5),
            torch.ones(1, 0, 5, 5),
            torch._neg_view(x),
            x.numpy(),
            x.tolist(),
        ),
        *(x.requires_grad_(False), w.clone().requires_grad_(), x.expand(4, 2, 5, 5)),
    ]


def pools(files: Path, builds: bool, draw: random.Random) -> dict[str, list[Any]]:
    """Return plausible values by the names of parameters.

    Without `builds` no value is a kernel that needs a compiler.
    """
    source = convlab.load("01_direct", engine="sim").source
    (files / "mine.cu").write_text(source)
    (files / "latin.cu").write_bytes("// títle\n".encode("latin-1"))
    (files / "empty.cu").write_text("")
    (files / "mine").write_text("no suffix")
    receipts = spoilt_receipts(files, draw)
    kernels = ["torch:cpu", "torch:cpu", "cudnn:fp32", "zzz", "", "no.cu", "latin.cu", "mine", "1"]
    kernels += ["torch:cpu@A=1", "01_direct@", "01_direct@X=1", "@", ":", "/", "02", lambda x: x]
    kernels += [torch.conv2d, torch.nn.functional.conv2d]
    if builds:
        kernels += ["01_direct", "mine.cu", "01_direct@THREADS=64"]
        kernels += [convlab.load("01_direct", engine="sim", trace=False)]
    numbers = [0, 1, 2, 3, -1, (1, 2), [2, 1], "same", "valid", 1.5, 2**40, (1, 2, 3), "1"]
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU())
    gpus = ["H200", "A100", "h200", "H2000", ""]
    return {
        "kernel": kernels,
        "kernels": [*kernels, [*kernels[:2]], kernels],
        "a": kernels,
        "b": kernels,
        "problem": problems(),
        "problems": problems(),
        "name_or_spec": problems(),
        "set_name": ["headline", "awkward", "headlines", "", "limits bias"],
        "name_or_path": [*kernels, "01_direct", "mine.cu", files / "mine.cu", "./mine", "empty.cu"],
        "path": [*receipts, "no.json", files, files / "mine.cu", "/proc/self/mem"],
        "engine": ["sim", "cuda", "auto", "Sim", "gpu"],
        "precision": ["fp32", "tf32", "fp16", "FP32"],
        "gpu": gpus,
        "scale": ["auto", None, "sim", "none"],
        "mode": ["cold", "hot", ("cold",), "warm", ()],
        "setting": ["plain", "strict", "x", None],
        "defines": [{"THREADS": 64}, {"X": 1}, {"THREADS": "64"}],
        "tunables": [{"THREADS": [64]}, {"THREADS": []}, {"X": [1]}, "THREADS=64"],
        "source": ["", "int x;", "#error no", LONG] + ([source] if builds else []),
        "name": ["mine", "", "a/b", ".x", LONG],
        "x": tensors(),
        "w": tensors(),
        "bias": [None, *tensors()],
        "model": [model, nn.Conv2d(2, 3, 3), nn.Linear(2, 3), nn.LazyConv2d(3, 3), nn.Sequential()],
        "inputs": tensors(),
        "where": [None, lambda name, layer: True, lambda: True, len],
        "line": [1, 20, "y[", "zzz"],
        "each": [None, lambda result: None, "x", 3],
        "count": [0, 1, 2],
        "seed": [0, 1, -1, 2**64],
        "limit_seconds": [0.01, 0, -1],
        "progress": [False],
        "simulate": [False],
        "baselines": [[], ["torch:cpu"], ["cudnn:fp32"], ["x"], "torch:cpu"],
        **dict.fromkeys(("N", "C", "H", "W", "K", "R", "S"), [1, 2, 3, 5, 0, "3"]),
        **dict.fromkeys(_NUMBERS, numbers),
        **dict.fromkeys(("in_channels", "out_channels"), [2, 3, 0, -1]),
    }


# The functions that start a compiler or other processes even for some wrong arguments. They are
# called less often, because they take seconds.
_COMPILES = {"compile", "inspect", "access_map", "sweep"}


def functions() -> dict[str, Callable]:
    """Return the public functions, classes and methods, by name."""
    named = {name: getattr(convlab, name) for name in convlab.__all__}
    named |= {f"nn.{name}": getattr(convlab.nn, name) for name in convlab.nn.__all__}
    named = {name: value for name, value in named.items() if callable(value)}
    problem = convlab.problem(TINY)
    kernel = convlab.load("01_direct", engine="sim")
    named["Problem.from_shapes"] = convlab.Problem.from_shapes
    named["Problem.scaled"] = problem.scaled
    for method in ("tuned", "on", "limited", "show", "unsupported"):
        named[f"Kernel.{method}"] = getattr(kernel, method)
    # The files compile once, and then come from the cache.
    named["Kernel.__call__"] = kernel.__call__
    named["Kernel.__call__ of a data gradient"] = convlab.load(
        "18_data_gradient", engine="sim"
    ).__call__
    named["Kernel.__call__ of a weight gradient"] = convlab.load(
        "19_weight_gradient", engine="sim"
    ).__call__
    return named


def call_of(
    name: str, function: Callable, pool: dict[str, list], all_values: list, draw: random.Random
) -> tuple[list[Any], dict[str, Any]]:
    """Return drawn arguments for a function: most of them from the pool of the parameter's name."""
    positional = []
    keywords = {}
    hostility = draw.choice([0.05, 0.2, 0.6])
    for parameter in inspect.signature(function).parameters.values():
        known = pool.get(parameter.name, all_values)
        # An error that the user's own callback raises is the user's: only valid ones are given.
        is_drawn = draw.random() < hostility and parameter.name != "each"
        given = all_values if is_drawn else known
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [draw.choice(given) for _ in range(draw.choice([0, 1, 1, 1, 2]))]
        elif parameter.kind is parameter.VAR_KEYWORD:
            if draw.random() < 0.3:
                keywords[draw.choice(["engine", "defines", "zzz", "trace"])] = draw.choice(given)
        elif parameter.default is parameter.empty or draw.random() < 0.35:
            keywords[parameter.name] = draw.choice(given)
    # What has no default is given by position, before what collects the rest.
    if positional or draw.random() < 0.5:
        leading = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                break
            if parameter.name not in keywords:
                break
            leading.append(keywords.pop(parameter.name))
        positional = [*leading, *positional]
    if "progress" in inspect.signature(function).parameters:
        keywords.setdefault("progress", False)
    if name in ("check", "compare", "ab"):
        # The defaults take minutes, and a large problem does too.
        keywords.setdefault("problem", TINY) if len(positional) < (3 if name == "ab" else 2) else 0
    return positional, keywords


def failure(error: BaseException) -> str | None:
    """Return why an error is not a clear one, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, ConvlabError):
        outside = not any(frame.filename.startswith(PACKAGE) for frame in frames)
        if isinstance(error, TypeError) and outside:
            return None
        place = next((f for f in reversed(frames) if f.filename.startswith(PACKAGE)), frames[-1])
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    try:
        text = str(error)
        text.encode()
    except Exception as second:
        return f"the message raises {type(second).__name__}"
    if not text.strip():
        return "an empty message"
    if any(letter * 90 in text for letter in ("x", "[")):
        return "a message that repeats a long argument"
    return None


def _out_of_time(*_: object) -> None:
    raise TimeoutError("a call takes too long")


def run(
    calls: int, seed: int, builds: bool = False, pure: bool = False
) -> tuple[collections.Counter, dict[str, str]]:
    """Make drawn calls; return how many had which outcome, and an example of each failure.

    With `builds`, valid kernels are among the arguments, and calls with them take seconds. With
    `pure`, the functions that start other processes are left out.
    """
    draw = random.Random(seed)
    counts: collections.Counter = collections.Counter()
    examples: dict[str, str] = {}
    before = os.getcwd()
    kept = signal.signal(signal.SIGALRM, _out_of_time)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            pool = pools(Path(folder), builds, draw)
            all_values = anything(Path(folder))
            named = functions()
            if pure:
                named = {name: each for name, each in named.items() if name not in _COMPILES}
            for number in range(calls):
                name = draw.choice([*named])
                if name in _COMPILES and draw.random() < 0.9:
                    name = draw.choice([key for key in named if key not in _COMPILES])
                positional, keywords = call_of(name, named[name], pool, all_values, draw)
                outcome, example = _outcome(named[name], positional, keywords)
                counts[outcome] += 1
                if example and f"{name}: {example[0]}" not in examples:
                    examples[f"{name}: {example[0]}"] = f"call {number}: {example[1]}"
                    print(f"--- {name}: {example[0]}\n{example[1]}", file=sys.__stderr__)
        finally:
            os.chdir(before)
            signal.signal(signal.SIGALRM, kept)
    return counts, examples


def _outcome(
    function: Callable, positional: list[Any], keywords: dict[str, Any]
) -> tuple[str, tuple[str, str] | None]:
    """Return "a result", "a clear error" or "a raw error", and of the last what it was."""
    output = io.StringIO()
    signal.alarm(LIMIT)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            warnings.simplefilter("ignore")
            result = function(*positional, **keywords)
            if hasattr(result, "sentence"):
                str(result)
                result.to_dict()
                result._repr_html_()
        return "a result", None
    except Exception as error:
        signal.alarm(0)
        if reason := failure(error):
            last = "".join(traceback.format_exception(error)[-6:])
            return "a raw error", (reason, last)
        return "a clear error", None
    finally:
        signal.alarm(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4, help="each has a seed of its own")
    parser.add_argument("--builds", action="store_true", help="also draw valid kernels (hours)")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    seeds = range(given.processes)
    counts: collections.Counter = collections.Counter()
    with ProcessPoolExecutor(len(seeds), multiprocessing.get_context("spawn")) as executor:
        calls = -(-given.calls // len(seeds))
        for each, examples in executor.map(
            functools.partial(run, calls, builds=given.builds), seeds
        ):
            counts += each
            for name, example in examples.items():
                print(f"--- {name}\n{example}")
    sentence = (
        f"Of {counts.total():,} calls (seeds 0 to {seeds[-1]}), {counts['a raw error']} raised an "
        f"error without convlab's words, {counts['a clear error']:,} raised one of convlab's "
        f"errors, and {counts['a result']:,} returned a result."
    )
    print(sentence)
    if given.write:
        write_between(given.write, "misuse", sentence)


if __name__ == "__main__":
    main()
