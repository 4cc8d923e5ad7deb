"""Hostile arguments to every public call: what comes out is an error of convlab's, or an answer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import convlab
from convlab.core.problem.problem import Problem

TINY = convlab.problem("N=1,C=1,H=3,W=3,K=1,R=2,S=2")
SOURCE = "not CUDA"  # which costs no compiler: it has no entry point
HUGE = 10**4400  # more digits than Python prints


class Rude:
    """Nothing can be asked of it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    __repr__ = __eq__ = __index__ = __float__ = __iter__ = __fspath__ = lambda *_: 1 / 0
    __hash__ = None


VALUES = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "1": 1,
    "huge": HUGE,
    "-huge": -HUGE,
    "2**31": 2**31,
    "2**64": 2**64,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "1e400j": 1e300j,
    "bytes": b"\xff\xfe",
    "empty": "",
    "space": " ",
    "nul": "a\0b",
    "long": "x" * 5000,
    "surrogate": "\udce4",
    "accent": "\u00e9\u2603",
    "dots": "../../x",
    "slash": "/",
    "home": "~",
    "at": "03@",
    "at_what": "01@THREADS=`x`",
    "colon": ":",
    "baseline": "cudnn:fp32",
    "digits": "9" * 4400,
    "spec": "N=1,C=3",
    "spec_huge": "N=" + "9" * 4400 + ",C=1",
    "format": "{0}%s%n",
    "newline": "a\nb",
    "list": [],
    "nested": [[None]],
    "tuple": (1, 2, 3),
    "dict": {},
    "dict_odd": {1: "x", "THREADS": "`x`"},
    "set": {1},
    "range": range(3),
    "object": object(),
    "rude": Rude(),
    "type": int,
    "function": len,
    "path": Path("/"),
    "numpy": np.int64(2),
    "array": np.arange(4),
    "float32": np.float32("nan"),
    "tensor": torch.zeros(2, 2),
    "int_tensor": torch.zeros(1, 1, 3, 3, dtype=torch.int64),
    "sparse": torch.zeros(1, 1, 3, 3).to_sparse(),
    "meta": torch.zeros(1, 1, 3, 3, device="meta"),
    "empty_tensor": torch.zeros(0),
    "complex": torch.zeros(1, 1, 3, 3, dtype=torch.complex64),
    "scalar": torch.tensor(1),
    "problem": TINY,
    "generator": (i for i in "ab"),
}


def kernel() -> convlab.Kernel:
    """A kernel that runs, on the simulator."""
    return convlab.load("01_direct", engine="sim")


def images() -> dict[str, Any]:
    return {
        "x": torch.ones(1, 1, 3, 3),
        "w": torch.ones(1, 1, 2, 2),
        "bias": None,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
    }


def options(**more: Any) -> dict[str, Any]:
    return {
        "engine": "sim",
        "defines": {},
        "workspace_limit": 1 << 20,
        "time_limit": 20.0,
        "trace": True,
        **more,
    }


def layer() -> dict[str, Any]:
    return {"in_channels": 1, "out_channels": 1, "kernel_size": 2, "kernel": "01_direct"}


# Each public call with arguments that it takes; some of them are replaced.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "problem": (convlab.problem, lambda: {"name_or_spec": "square"}),
    "problems": (convlab.problems, lambda: {"set_name": "headline"}),
    "Problem": (
        Problem,
        lambda: dict(
            N=1, C=2, H=3, W=3, K=2, R=2, S=2, stride=1, padding=0, dilation=1, groups=1, bias=False
        ),
    ),
    "from_shapes": (
        Problem.from_shapes,
        lambda: dict(
            x_shape=(1, 1, 3, 3), w_shape=(1, 1, 2, 2), stride=1, padding=0, dilation=1, groups=1
        ),
    ),
    "scaled": (TINY.scaled, lambda: {"max_macs": 100, "max_bytes": None}),
    "load": (convlab.load, lambda: options(name_or_path="01_direct")),
    "compile": (convlab.compile, lambda: options(source=SOURCE, name="inline")),
    "kernel": (kernel().__call__, images),
    "tuned": (kernel().tuned, lambda: {"tunables": "THREADS=64"}),
    "on": (kernel().on, lambda: {"engine": "sim", "time_limit": None}),
    "limited": (kernel().limited, lambda: {"workspace_limit": 1}),
    "show": (kernel().show, lambda: {"first": 1, "last": 2}),
    "unsupported": (kernel().unsupported, lambda: {"problem": TINY}),
    "prepare": (
        kernel().prepare,
        lambda: {"problem": TINY, "x": images()["x"], "w": images()["w"], "bias": None},
    ),
    "check": (
        convlab.check,
        lambda: dict(
            kernel=kernel(),
            problem=TINY,
            seed=0,
            count=1,
            scale="auto",
            progress=False,
            raises=False,
        ),
    ),
    "compare": (
        convlab.compare,
        lambda: dict(
            kernels=[kernel()],
            problem=TINY,
            engine="sim",
            scale="auto",
            baselines=None,
            progress=False,
        ),
    ),
    "ab": (
        convlab.ab,
        lambda: dict(
            a=kernel(),
            b=kernel(),
            problem=TINY,
            mode="hot",
            engine="sim",
            scale="auto",
            check=False,
            threshold=0.01,
            limit_seconds=1.0,
            seed=0,
        ),
    ),
    "best": (
        convlab.best,
        lambda: dict(problem=TINY, precision="fp32", engine="sim", measured=False),
    ),
    "sweep": (
        convlab.sweep,
        lambda: dict(
            kernel=kernel(),
            tunables={"THREADS": [256]},
            problems=TINY,
            engine="sim",
            progress=False,
        ),
    ),
    "access_map": (
        convlab.access_map,
        lambda: dict(
            kernel=kernel(), problem=TINY, line="r_acc", block=(0, 0, 0), warp=0, execution=0
        ),
    ),
    "inspect": (
        convlab.inspect,
        lambda: dict(kernel=kernel(), problem=TINY, gpu=None, engine="sim"),
    ),
    "conv2d": (convlab.nn.conv2d, lambda: images() | {"kernel": kernel()}),
    "Conv2d": (convlab.nn.Conv2d, layer),
    "replace": (
        convlab.nn.replace,
        lambda: {"model": torch.nn.Conv2d(1, 1, 1), "kernel": "01_direct", "where": None},
    ),
    "nn.problems": (convlab.nn.problems, lambda: {"model": torch.nn.Conv2d(1, 1, 1)}),
}
THEIRS = {"Conv2d": {"in_channels", "out_channels", "kernel_size"}}  # torch's own arguments
CALLABLE = {"type", "function"}
LEFT_OUT = {  # all right, and slow; or a function that is taken, and raises what it likes
    ("check", "problem"): {"None"},
    ("compare", "kernels"): {"None"},
    ("conv2d", "kernel"): CALLABLE,
    ("replace", "where"): CALLABLE,
}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """The name of a call, and which of its arguments are replaced by which values."""
    name = draw(st.sampled_from(list(CALLS)))
    places = sorted(CALLS[name][1]().keys() - THEIRS.get(name, set()))
    chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True))
    return name, {
        place: draw(st.sampled_from(sorted(VALUES.keys() - LEFT_OUT.get((name, place), set()))))
        for place in chosen
    }


def attempt(name: str, replaced: dict[str, str]) -> None:
    """Make a call; let through what is no error of convlab's."""
    function, arguments = CALLS[name]
    given = {place: VALUES[value] for place, value in replaced.items()}
    try:
        function(**arguments() | given)
    except convlab.errors.ConvlabError as error:
        assert str(error)


@settings(
    max_examples=700,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(calls())
def test_only_errors_of_our_own_come_out(call: tuple[str, dict[str, str]]) -> None:
    attempt(*call)
