"""The rungs that compute gradients: on generated and awkward problems, with little workspace, on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import convlab
from convlab.core.correctness import reference
from convlab.core.errors import BuildError
from convlab.core.kernel.catalog import catalog, parse_header
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.kernel.tunables import tunables
from convlab.core.machine.device import available_bytes
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from tests.drawn import EDGES, generated
from tests.suites import DEEP

HEADERS = {path: parse_header(path.read_text(), path) for path in catalog()}
RUNGS = [path for path, header in HEADERS.items() if header.computes != "forward"]
# A rung is simulated on every n-th awkward problem; all of them with CONVLAB_DEEP=1.
TURNS = 1 if DEEP else 14
TUNABLES = [(path, name) for path in RUNGS for name in tunables(path.read_text())]
# Small problems, of which each rung supports one.
PLAINS = (
    "N2 C6 H13 W12 K10 R3 S3 s1x2 p1 g2",
    "N2 C6 H13 W12 K10 R3 S3 p1 g2",
    "N2 C6 H13 W12 K6 R3 S3 p1 g6",
)


def assert_right_or_declined(kernel: Kernel, problem: Problem, seed: int = 0) -> bool:
    """Compare with the float64 truth; return False if the header excludes the problem."""
    problem = kernel.asked(problem)
    if kernel.unsupported(problem):
        assert kernel.header.supports
        return False
    given_inputs = reference.inputs(problem, seed, kernel.device, format=kernel.format)
    launch = kernel.prepare(problem, *given_inputs)
    launch()
    output = launch.y
    assert tuple(output.shape) == problem.output_shape
    assert not output.isnan().any()
    if not output.numel():
        return True
    truth = reference.truth(problem, *given_inputs)
    squares = [None if part is None else part.double().square() for part in given_inputs]
    norm = max(truth.norm(), reference.truth(problem, *squares).sum().sqrt())
    error = (output.double() - truth).norm()
    bound = reference.tolerance(kernel.precision, problem.terms, output.numel())
    assert error <= bound * norm, f"{problem}: error {error / norm:.2g}, bound {bound:.2g}"
    return True


@pytest.mark.parametrize("path", RUNGS, ids=lambda path: path.stem)
def test_generated_problems(path) -> None:
    kernel = load(path, engine="sim", trace=False)
    quiet = {"deadline": None, "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=200 if DEEP else 8, **quiet)
    @given(problem=generated(60_000, EDGES), seed=st.integers(0, 99))
    def each(problem: Problem, seed: int) -> None:
        assert_right_or_declined(kernel, problem, seed)

    each()


@pytest.mark.parametrize("path", RUNGS, ids=lambda path: path.stem)
def test_awkward_problems_with_all_diagnostics(path) -> None:
    kernel = load(path, engine="sim")
    some = problems("awkward")[RUNGS.index(path) % TURNS :: TURNS]
    asked = [kernel.asked(each) for each in some if each.N < 1000]
    reports = convlab.check(kernel, [*asked, next(plain_problems(kernel))], progress=False)
    assert reports.ok, str(reports)


def plain_problems(kernel: Kernel):
    """Yield the plain problems that a kernel supports."""
    for spec in PLAINS:
        problem = kernel.asked(convlab.problem(spec))
        if not kernel.unsupported(problem):
            yield problem


def test_every_rung_supports_a_plain_problem() -> None:
    assert all(list(plain_problems(load(path, engine="sim"))) for path in RUNGS)


@pytest.mark.parametrize(
    ("path", "name"),
    TUNABLES if DEEP else TUNABLES[::3],
    ids=lambda each: getattr(each, "stem", each),
)
def test_tunables(path, name) -> None:
    default = int(tunables(path.read_text())[name])
    with pytest.raises(BuildError, match=name):
        load(path, engine="sim", defines={name: -1}).build()
    works = 0
    for value in (default // 2, 2 * default):
        tuned = load(path, engine="sim", trace=False, defines={name: value})
        try:
            tuned.build()
        except BuildError as error:
            assert "assert" in str(error) and name in str(error)
            continue
        works += 1
        assert assert_right_or_declined(tuned, next(plain_problems(tuned)))
    assert works


@pytest.mark.parametrize("path", RUNGS, ids=lambda path: path.stem)
def test_a_smaller_workspace_is_enough_or_refused(path) -> None:
    kernel = load(path, engine="sim", trace=False)
    if "conv2d_workspace" not in kernel.source:
        pytest.skip("it needs no workspace")
    problem = next(plain_problems(kernel))
    report = convlab.check(kernel, problem, setting="least_workspace")
    assert report.ok, str(report)


# ---- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("path", RUNGS, ids=lambda path: path.stem)
def test_the_default_check_on_a_gpu(path) -> None:
    reports = convlab.check(load(path, engine="cuda"), simulate=False, progress=False)
    assert reports.ok, str(reports)


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu memory")  # one at a time
@pytest.mark.parametrize("path", RUNGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", ["square", "rect", "wide"])
def test_headline_problems_at_full_size(path, name) -> None:
    kernel = load(path, engine="cuda", time_limit=60)
    problem = kernel.asked(convlab.problem(name))
    if kernel.unsupported(problem):
        pytest.skip("its header excludes the problem")
    report = convlab.check(kernel, problem, scale=None, simulate=False)
    assert report.ok and report.problem == problem, str(report)


LARGE = (
    "N2 C70 H4001 W3989 K3 R2 S2 s7x5",
    "N3 C1 H4099 W4099 K43 R3 S3",
    "N1 C3 H32801 W32803 K1 R1 S1",
)


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu memory")  # one at a time
@pytest.mark.parametrize("path", RUNGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("spec", LARGE)
def test_large_indices(path, spec) -> None:
    kernel = load(path, engine="cuda", time_limit=60)
    problem = kernel.asked(convlab.problem(spec))
    if kernel.unsupported(problem):
        pytest.skip("its header excludes the problem")
    if available_bytes(kernel.device) < 2 * problem.min_bytes:
        pytest.skip(f"needs {2 * problem.min_bytes / 1e9:.0f} GB of GPU memory")
    given_inputs = reference.inputs(problem, 0, kernel.device, format=kernel.format)
    with torch.no_grad():
        launch = kernel.prepare(problem, *given_inputs)
        launch()
    where = reference.sample(problem, 2_000, device=kernel.device)[-2_000:]
    truth = reference.truth(problem, *given_inputs, where=where)
    error = (launch.y[tuple(where.unbind(1))].double() - truth).norm() / truth.norm()
    assert error <= reference.tolerance(kernel.precision, problem.terms)
