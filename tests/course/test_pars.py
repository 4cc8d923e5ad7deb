"""The pars of each lab are the counts of our kernels as they are now."""

import pytest

from convlab.course.grading import SLACK
from convlab.course.lab import find_lab, names
from convlab.course.pars import counted
from tests.suites import needs_nvcc


def _predicts(name):
    """Return whether a lab has a par of predicted times, which needs nvcc."""
    return any(par.quantity == "predicted_ms" for par in find_lab(name).pars)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_nvcc if _predicts(name) else ()) for name in names()]
)
def test_the_pars_of_a_lab_are_those_of_its_kernels(name):
    lab = find_lab(name)
    now = counted(lab)
    stale = []
    for par in lab.pars:
        for milestone in par.milestones:
            value = now[par.quantity, milestone.kernel]
            # A change of at most this share moves no student's points.
            if abs(value - milestone.value) > SLACK * value:
                stale.append(
                    f"{par.quantity} of {milestone.kernel}: {milestone.value:g}, now {value:g}"
                )
    assert not stale, (
        f"{lab.path.name} has old pars, so points are wrong: {'; '.join(stale)}. Renew them with "
        f"`python -m convlab grade --pars convlab/course/labs/{lab.path.name}`"
    )
