"""Every rung of the catalog, on every engine, over everything that a convolution may ask of it.

A new .cu file joins by its presence. What a rung declines by its header must be declined with an
`UnsupportedError`; all else must be right.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import convlab
from convlab.core.correctness import reference
from convlab.core.correctness.examine import examine
from convlab.core.correctness.setting import Offsets
from convlab.core.errors import BuildError, LaunchError, UnsupportedError
from convlab.core.kernel.catalog import catalog, parse_header
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.kernel.tunables import tunables
from convlab.core.machine.device import available_bytes
from convlab.core.machine.gpus import GPUS
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from convlab.profile import disassembly
from convlab.strict import settings
from convlab.strict.nvcc_report import nvcc_report
from tests.drawn import EDGES, FILTERS, generated
from tests.suites import DEEP, needs_nvcc

HEADERS = {path: parse_header(path.read_text(), path) for path in catalog()}
# The rungs of gradients have tests of their own: test_gradient_rungs.py.
RUNGS = [path for path, header in HEADERS.items() if header.computes == "forward"]
AWKWARD = problems("awkward")
# For a new rung, CONVLAB_DEEP=1: forty times as many generated problems, each awkward one and each
# setting, traced, of each tunable both half and twice its default, nvcc for both architectures, each
# test for each rung.
ENGINES = {"sim": [], "cuda": [pytest.mark.gpu]}  # and their marks
# Another rung's file with one word set, as 15b's: on the simulator its generated problems will do.
TWINS = [path for path in RUNGS if re.search(r'#include "\w+\.cu"', path.read_text()) and not DEEP]
# What a call does before the rung has a say is the same for all of a format: the first of each.
FIRSTS = {str(HEADERS[path].tensors): path for path in reversed(RUNGS)}
# What one output may be off, for a deviation of 1 among all.
WORST = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2, "fp16": 4e-3}
# Of these a rung is tested on the first that it supports.
PLAINS = (
    Problem(2, 6, 13, 18, 10, 3, 3, (1, 2), 1, groups=2, bias=True, name="plain"),
    Problem(2, 6, 13, 18, 10, 3, 3, 1, 1, groups=2, bias=True, name="plain-s1"),
    Problem(2, 6, 13, 18, 12, 3, 3, (1, 2), 1, groups=6, bias=True, name="plain-depthwise"),
    Problem(2, 16, 13, 18, 10, 3, 3, (1, 2), 1, groups=2, bias=True, name="plain-octets"),
    Problem(2, 6, 13, 18, 10, 1, 1, (1, 2), 1, groups=2, bias=True, name="plain-1x1"),
)


def every(*engines: str, rungs: Iterable[Path] = RUNGS, but: Iterable[Path] = ()) -> list[object]:
    """Return (path, engine) of each rung, to parametrise the fixture `kernel` with."""
    return [
        pytest.param((path, engine), id=f"{path.stem}-{engine}", marks=ENGINES[engine])
        for engine in engines
        for path in rungs
        if engine != "sim" or path not in but
    ]


def on(*engines: str) -> pytest.MarkDecorator:
    """Return a decorator: the test's `kernel` is each rung, on these engines only."""
    return pytest.mark.parametrize("kernel", every(*engines), indirect=True)


def turn(path: Path, place: int, turns: int) -> bool:
    """Whether a rung is simulated on what has this place: its neighbours are on what stands beside."""
    return DEEP or (RUNGS.index(path) + place) % turns == 0


OF_EACH_FORMAT = pytest.mark.parametrize(
    "kernel", every(*ENGINES, rungs=RUNGS if DEEP else FIRSTS.values()), indirect=True
)
EACH_TUNABLE = pytest.mark.parametrize(
    ("path", "engine", "name", "default"),
    [
        pytest.param(
            path, engine, name, int(default), id=f"{path.stem}@{name}-{engine}", marks=marks
        )
        for engine, marks in ENGINES.items()
        for path in RUNGS
        for place, (name, default) in enumerate(tunables(path.read_text()).items())
        if engine == "cuda" or turn(path, place, 2)
    ],
)


@pytest.fixture(scope="module", params=every(*ENGINES, but=TWINS))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """A rung on an engine."""
    path, engine = request.param
    return load(path, engine=engine)


@functools.cache
def untraced(path: Path) -> Kernel:
    """A rung on the simulator, several times as fast."""
    return load(path, engine="sim", trace=False)


def plain(kernel: Kernel) -> Problem:
    """Return a small problem that the kernel supports, if there is one."""
    return next((problem for problem in PLAINS if not kernel.unsupported(problem)), PLAINS[0])


def options(problem: Problem) -> tuple:
    """Return what a call takes after the tensors."""
    return problem.stride, problem.padding, problem.dilation, problem.groups, problem.relu


def inputs_of(kernel: Kernel, problem: Problem, seed: int = 0) -> reference.Inputs:
    """Return normal data where and as the kernel takes it."""
    return reference.inputs(problem, seed, kernel.device, format=kernel.format)


def call(kernel: Kernel, problem: Problem, seed: int = 0) -> tuple[torch.Tensor, reference.Inputs]:
    """Run a kernel as a user does, on normal data; return y and the inputs."""
    inputs = inputs_of(kernel, problem, seed)
    return kernel(*inputs, *options(problem)), inputs


def assert_close(
    y: torch.Tensor,
    problem: Problem,
    inputs: reference.Inputs,
    precision: str = "fp32",
    where: torch.Tensor | None = None,
) -> None:
    """Compare with the float64 truth.

    The norm that the error is relative to is the truth's, or what it would be if the signs of
    its terms were random, if that is more: few outputs may cancel to nearly nothing.
    """
    truth = reference.truth(problem, *inputs, where)
    assert not y.isnan().any()
    squares = [None if part is None else part.double().square() for part in inputs]
    norm = max(truth.norm(), reference.truth(problem, *squares, where).sum().sqrt())
    error = (y.double() - truth).norm()
    assert error <= reference.tolerance(precision, problem.gemm_k, y.numel()) * norm, (
        f"{problem}: error {error / norm:.2g}, worst {(y.double() - truth).abs().max():.2g}"
    )


def assert_right(kernel: Kernel, problem: Problem, seed: int = 0) -> torch.Tensor:
    """Call, compare with the truth, and return y."""
    y, inputs = call(kernel, problem, seed)
    assert tuple(y.shape) == problem.y_shape
    assert y.dtype == kernel.format.y.torch_dtype
    assert y.device == kernel.device and kernel.format.y.place(y) is y
    if y.numel():
        assert_close(y, problem, inputs, kernel.precision)
    return y


def assert_declined(kernel: Kernel, error: UnsupportedError) -> None:
    """It says in its header that it is made for some problems only, and the error names it."""
    limited = kernel.header.supports or "relu" not in kernel.header.epilogue
    assert limited and kernel.name in str(error)


def unless_declined(test: Callable) -> Callable:
    """Skip a test on a rung whose header declines its problem."""

    @functools.wraps(test)
    def tested(kernel: Kernel, *args: object, **named: object) -> None:
        try:
            test(kernel, *args, **named)
        except UnsupportedError as declined:
            assert_declined(kernel, declined)
            pytest.skip(str(declined))

    return tested


def fuzz(macs: int, examples: int, edges: tuple[int, ...] = EDGES, **more: object) -> Callable:
    """Return a decorator that gives a test that many generated problems, and seeds."""
    quiet = {"deadline": None, "suppress_health_check": list(HealthCheck)}

    def decorate(test: Callable) -> Callable:
        asked = given(problem=generated(macs, edges), seed=st.integers(0, 99))
        return hypothesis_settings(max_examples=examples, **quiet, **more)(asked(test))

    return decorate


def assert_right_or_declined(kernel: Kernel, problem: Problem, seed: int) -> None:
    """A problem is computed, or refused where the header declines it."""
    declines = kernel.unsupported(problem)
    try:
        assert_right(kernel, problem, seed)
        assert not declines
    except UnsupportedError as error:
        assert declines
        assert_declined(kernel, error)


@on("sim")
@fuzz(60_000, examples=300 if DEEP else 8)
def test_generated_problems(kernel: Kernel, problem: Problem, seed: int) -> None:
    """All are compared; what only a trace sees is looked for in a part of them, it takes longer."""
    assert_right_or_declined(untraced(kernel.path) if seed % 8 else kernel, problem, seed)


@on("cuda")
@fuzz(500_000_000, examples=200, edges=(*EDGES, 255, 256, 257, 509, 1021))
def test_larger_generated_problems(kernel: Kernel, problem: Problem, seed: int) -> None:
    assert_right_or_declined(kernel, problem, seed)


def test_generated_problems_reach_every_option() -> None:
    met: dict[str, set] = {}

    @fuzz(60_000, examples=300, derandomize=True, database=None)
    def collect(problem: Problem, seed: int) -> None:
        assert problem.macs <= 50 * 60_000
        facts = {
            "N": problem.N,
            "bias": problem.bias,
            "relu": problem.relu,
            "filter": (problem.R, problem.S),
            "uneven stride": problem.stride[0] != problem.stride[1],
            "uneven padding": problem.padding[0] != problem.padding[1],
            "uneven dilation": problem.dilation[0] != problem.dilation[1],
            "dilated": max(problem.dilation) > 1 and problem.R * problem.S > 1,
            "padding past the filter": problem.padding[0] > problem.dilation[0] * problem.R,
            "depthwise": problem.groups == problem.C == problem.K > 1,
            "multiplier": problem.groups == problem.C < problem.K and problem.C > 1,
            "groups": 1 < problem.groups < problem.C,
            "past a tile": any(size in (17, 33, 129) for size in problem.y_shape[1:]),
        }
        for key, value in facts.items():
            met.setdefault(key, set()).add(value)

    collect()
    assert met.pop("N") == {0, 1, 2, 3}
    assert met.pop("filter") == set(FILTERS)
    assert {key for key, values in met.items() if values != {True, False}} == set()


@pytest.mark.parametrize(
    ("kernel", "place"),
    indirect=["kernel"],
    argvalues=[
        pytest.param(each.values[0], place, id=f"{each.id}-{problem.label}")
        for each in every("sim", but=TWINS)
        for place, problem in enumerate(AWKWARD)
        if turn(each.values[0][0], place, 12)
    ],
)
@unless_declined
def test_awkward_problems(kernel: Kernel, place: int) -> None:
    """A rung is on every twelfth; half of these are traced, the others are compared."""
    problem = AWKWARD[place]
    if problem.N > 1000 or not turn(kernel.path, place, 24):  # a race is seen on fewer images
        assert_right(untraced(kernel.path), problem)
        return
    report = convlab.check(kernel, problem, scale=None)
    assert report.ok, str(report)


@on("cuda")
@pytest.mark.parametrize("name", ["awkward", "limits"])
def test_sets_of_problems(kernel: Kernel, name: str) -> None:
    reports = convlab.check(kernel, name, scale=None, progress=False)
    assert all(report.ok for report in reports), str(reports)


@OF_EACH_FORMAT
@pytest.mark.parametrize("dilation", [1, (2, 3)], ids=["d1", "d2x3"])
@pytest.mark.parametrize(
    "filter_size", [(3, 3), (2, 4), (5, 2), (1, 1)], ids="{0[0]}x{0[1]}".format
)
@unless_declined
def test_padding_same(kernel: Kernel, filter_size: tuple[int, int], dilation: object) -> None:
    K, groups = (8, 4) if "groups == C" in kernel.header.supports else (6, 2)
    x, w, _ = inputs_of(
        kernel, Problem(2, 4, 11, 14, K, *filter_size, dilation=dilation, padding=9, groups=groups)
    )
    y = kernel(x, w, padding="same", dilation=dilation, groups=groups)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it copies to pad by an odd number
        truth = F.conv2d(x.double(), w.double(), padding="same", dilation=dilation, groups=groups)
    assert y.shape == truth.shape == (2, K, 11, 14)
    worst = WORST[kernel.precision] * truth.std().item()
    torch.testing.assert_close(y.double(), truth, rtol=0, atol=worst)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, the last two dimensions swapped in memory."""
    return tensor.transpose(2, 3).contiguous().transpose(2, 3)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as every second column of a wider tensor, not at its start."""
    wide = tensor.new_full((*tensor.shape[:3], 2 * tensor.shape[3] + 1), torch.nan)
    wide[..., 1::2] = tensor
    return wide[..., 1::2]


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in NHWC."""
    return tensor.contiguous(memory_format=torch.channels_last)


def layout(place: Callable) -> Callable:
    """The plain call, and the same with x and w elsewhere in memory."""

    def calls(conv: Callable, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple:
        assert not place(x).is_contiguous() and torch.equal(place(x), x)
        return conv(x, w, bias), conv(place(x), place(w), bias)

    return calls


# Two calls that give the same bits.
ALIKE = {
    "padding-valid": lambda conv, x, w, bias: (conv(x, w, padding=0), conv(x, w, padding="valid")),
    "one-image": lambda conv, x, w, bias: (conv(x[1:], w, bias)[0], conv(x[1], w, bias)),
    "no-images": lambda conv, x, w, bias: (conv(x, w)[:0], conv(x[:0], w)),
    "transposed": layout(transposed),
    "sliced": layout(sliced),
    "channels_last": layout(channels_last),
    "strided-bias": lambda conv, x, w, bias: (
        conv(x, w, bias),
        conv(x, w, torch.stack([bias, bias], dim=1)[:, 0]),
    ),
}


@OF_EACH_FORMAT
@pytest.mark.parametrize("calls", ALIKE.values(), ids=ALIKE)
@unless_declined
def test_calls_that_are_alike(kernel: Kernel, calls: Callable) -> None:
    problem = plain(kernel)
    inputs = inputs_of(kernel, problem, 3)
    before = [part.clone() for part in inputs]

    def conv(*tensors: torch.Tensor, padding: object = problem.padding) -> torch.Tensor:
        return kernel(*tensors, stride=problem.stride, padding=padding, groups=problem.groups)

    one, other = calls(conv, *inputs)
    assert torch.equal(one, other) and one.shape == other.shape and other.device == kernel.device
    assert all(torch.equal(part, was) for part, was in zip(inputs, before, strict=True))


@pytest.mark.parametrize("groups", [1, 2])
@unless_declined
def test_nan_and_infinity_land_where_torch_has_them(kernel: Kernel, groups: int) -> None:
    problem = Problem(2, 4, 20, 37, 6, 3, 3, (1, 2), groups=groups)
    x, w, _ = inputs_of(kernel, problem)
    x[0, 1, 4, 5] = torch.nan
    x[1, 0, 0, 0] = torch.inf
    x[1, 3, 19, 36] = -torch.inf
    x[0, 2, 18, 17] = torch.inf
    x[0, 2, 19, 17] = -torch.inf  # with its neighbour: infinity minus infinity
    w[5, 0, 1, 1] = torch.nan
    y = kernel(x, w, stride=(1, 2), groups=groups).double()
    truth = F.conv2d(x.double(), w.double(), stride=(1, 2), groups=groups)
    assert truth.isnan().any() and truth.isinf().any() and truth.isfinite().any()
    assert torch.equal(y.isnan(), truth.isnan())
    assert torch.equal(y[truth.isinf()], truth[truth.isinf()])
    finite = truth.isfinite()
    worst = WORST[kernel.precision] * truth[finite].std().item()
    torch.testing.assert_close(y[finite], truth[finite], rtol=0, atol=worst)


@unless_declined
def test_unusual_data_odd_addresses_and_earlier_calls(kernel: Kernel) -> None:
    hosts = settings.host_problems(kernel, ())
    for place, (problem, setting) in enumerate(itertools.product(hosts, settings.SETTINGS)):
        if kernel.counts and not turn(kernel.path, place, 6):
            continue
        if setting not in settings.settings_for(kernel, problem):
            continue  # the default check leaves it out, too
        quick = kernel.counts and not (
            setting.offsets != Offsets() or DEEP
        )  # only a trace sees addresses
        try:
            chosen = untraced(kernel.path) if quick else kernel
            report = examine(chosen, problem, 0, (), setting)
        except LaunchError as error:  # it says that it cannot, which a user can act on
            assert setting.moves_inputs and "is not 16-byte aligned" in str(error)
            continue
        assert report.ok, str(report)


def workspace_bytes(kernel: Kernel, problem: Problem) -> int:
    """Run once and return what workspace that took."""
    launch = kernel.prepare(problem, *inputs_of(kernel, problem))
    launch()
    if kernel.engine == "sim":
        return launch.counters["workspace"]
    return 0 if launch.workspace is None else launch.workspace.numel()


NEED = re.compile(r"needs ([\d,]+) bytes of workspace.*load\(\.\.\., workspace_limit=(\d+)\)")


CHUNKED = (
    Problem(2, 4, 6, 7, 6, 3, 3, groups=2, bias=True, name="groups"),
    Problem(3, 3, 7, 9, 5, 3, 2, 2, (2, 1), name="stride"),
    Problem(1, 2, 1, 83, 3, 1, 5, dilation=(1, 2), name="row"),
)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    indirect=["kernel"],
    argvalues=[
        pytest.param(each.values[0], problem, id=f"{each.id}-{problem.label}", marks=each.marks)
        for each in every(*ENGINES, but=TWINS)
        for place, problem in enumerate(CHUNKED)
        if each.marks or turn(each.values[0][0], place, 3)
    ],
)
@unless_declined
def test_a_small_workspace_means_chunks(kernel: Kernel, problem: Problem) -> None:
    whole, _ = call(kernel, problem)
    most = workspace_bytes(kernel, problem)
    exact = "cublas" not in kernel.source.lower()  # whose algorithm depends on the sizes
    if not most:
        assert torch.equal(call(kernel.limited(0), problem)[0], whole)
        return
    with pytest.raises(LaunchError, match=re.escape(kernel.name)) as refused:
        call(kernel.limited(1), problem)
    stated = NEED.search(str(refused.value))
    least = int(stated[2])
    # else it says that it needs all or none
    in_parts = "size_t /*limit*/" not in "".join([kernel.source, *kernel.texts.values()])
    assert stated[1] == f"{least:,}" and 1 < least <= most and (least < most) == in_parts
    for limit in (least, max(least, (least + most) // 3)):
        small = kernel.limited(limit)
        assert workspace_bytes(small, problem) <= limit
        y = assert_right(small, problem)
        assert torch.equal(y, whole) or not exact
    with pytest.raises(LaunchError, match="workspace"):
        call(kernel.limited(least - 1), problem)


@EACH_TUNABLE
def test_tunables(path: Path, engine: str, name: str, default: int) -> None:
    """Half or twice the default is right; the other is, or is refused by a static_assert."""
    usual = load(path, engine=engine)
    works = 0
    problem = plain(usual)
    past_tiles = Problem(1, 2, 35, 35, 17, 3, 3)
    if declined := usual.unsupported(problem):
        pytest.skip(f"declined: {declined}")
    before = assert_right(usual, problem)
    values = (default // 2, 2 * default)
    for value in values[:: -1 if RUNGS.index(path) % 2 else 1]:
        if works and not DEEP:
            break
        tuned = load(f"{path.stem}@{name}={value}", engine=engine)
        assert tuned.name == f"{path.stem}@{name}={value}" and tuned.defines == {name: value}
        try:
            assert_right(tuned, problem)
            assert_right_or_declined(tuned, past_tiles, 0)
            works += 1
        except BuildError as error:
            assert "assert" in str(error) and name in str(error), str(error)
    assert works
    assert torch.equal(assert_right(usual, problem), before)  # held beside the others all the time


@EACH_TUNABLE
def test_an_illegal_tunable_says_what_is_legal(
    path: Path, engine: str, name: str, default: int
) -> None:
    with pytest.raises(BuildError) as refused:
        load(path, engine=engine, defines={name: -1}).build()
    text = str(refused.value)
    limits = re.findall(r'static_assert\(.*?"(.*?)"\);', path.read_text())
    assert any(limit in text for limit in limits if name in limit), text
    assert path.name in text.splitlines()[0] and len(text.splitlines()) <= 14


@needs_nvcc
@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.stem)
def test_nvcc_compiles_without_spills(path: Path) -> None:
    """For what its header states, or an H200: what `check` has nvcc compile."""
    said = nvcc_report(load(path, engine="sim"))
    assert said.entries and not [f for f in said.findings if f.error] and not said.note
    # Of some instances ptxas spills two numbers, to run more blocks at a time; of gradients more.
    most = 8 if HEADERS[path].computes == "forward" else 80
    assert all(0 < each.registers <= 255 and each.spilled <= most for each in said.entries)


# The first that states how old a GPU may be; where CONVLAB_DEEP is set, all that are for any.
OLDER = [
    path
    for path, header in HEADERS.items()
    if not header.arch and (DEEP or "sm >= 80" in header.supports)
][: None if DEEP else 1]


@needs_nvcc
@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.stem)
def test_nvcc_compiles_for_an_older_gpu(path: Path) -> None:
    functions = disassembly.compiled(load(path, engine="sim"), GPUS["A100"])
    assert functions and all(f.instructions and f.spill_bytes <= 64 for f in functions)


# ---- what only a GPU can do -----------------------------------------------------------------

LARGE = [
    Problem(2, 64, 2001, 1949, 5, 3, 3, name="im2col-past-2^31"),
    Problem(3, 1, 4099, 4099, 43, 3, 3, bias=True, name="y-past-2^31"),
    Problem(2, 70, 4001, 3989, 3, 2, 2, (7, 5), name="x-past-2^31"),
    Problem(1, 1, 46349, 46351, 1, 1, 1, name="plane-past-2^31"),
]


@pytest.mark.xdist_group("gpu memory")  # one at a time
@on("cuda")
@pytest.mark.parametrize("problem", problems("headline"), ids=lambda p: p.label)
@unless_declined
def test_headline_problems_at_full_size(kernel: Kernel, problem: Problem) -> None:
    report = convlab.check(kernel, problem, scale=None)
    assert report.ok, str(report)
    assert report.problem == problem and report.outputs == torch.Size(problem.y_shape).numel()


def test_large_problems_pass_a_32_bit_index() -> None:
    im2col, y, x, plane = LARGE
    assert im2col.im2col_elements > 2**31 and plane.P * plane.Q > 2**31
    assert torch.Size(y.y_shape).numel() > 2**31
    assert torch.Size(x.x_shape).numel() > 2**31


@pytest.mark.xdist_group("gpu memory")  # one at a time
@on("cuda")
@pytest.mark.parametrize("problem", LARGE, ids=lambda p: p.label)
@unless_declined
def test_large_indices(kernel: Kernel, problem: Problem) -> None:
    if available_bytes(kernel.device) < 2 * problem.min_bytes:
        pytest.skip(f"needs {2 * problem.min_bytes / 1e9:.0f} GB of GPU memory")
    y, inputs = call(kernel, problem)
    where = reference.sample(problem, 100_000, device=kernel.device)
    last = torch.tensor(problem.y_shape) - 1
    assert torch.equal(where[-1].cpu(), last) and not where[0].any()
    assert_close(y[tuple(where.unbind(1))], problem, inputs, kernel.precision, where)


@on("cuda")
@unless_declined
def test_runs_on_the_current_stream(kernel: Kernel) -> None:
    problem = plain(kernel)
    want, (x, w, bias) = call(kernel, problem)
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second, in which x is still all zeros
        late.copy_(x)
        y = kernel(late, w, bias, *options(problem))
    stream.synchronize()
    assert torch.equal(y, want)
