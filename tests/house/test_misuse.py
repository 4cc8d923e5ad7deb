"""A short seeded run of ``tests/instruments/misuse.py``: wrong arguments have clear errors."""

import pytest

import convlab
from tests.instruments import misuse

pytestmark = pytest.mark.pure


def test_wrong_arguments_have_clear_errors():
    """For more calls, run ``python -m tests.instruments.misuse``."""
    counts, examples = misuse.run(300, 2, builds=False)
    assert counts["a raw error"] == 0, "\n".join(f"{k}\n{v}" for k, v in examples.items())
    assert counts["a clear error"] > 100 and counts["a result"] > 20


def test_a_raw_error_is_found(monkeypatch):
    def problem(name):
        return {}[str(name)]

    monkeypatch.setattr(convlab, "problem", problem)
    monkeypatch.setattr(misuse, "functions", lambda: {"problem": convlab.problem})
    monkeypatch.setattr(misuse, "pools", lambda *_: {"name": ["x"]})
    counts, examples = misuse.run(20, 1, builds=False)
    assert counts["a raw error"] == 20 and any("KeyError" in name for name in examples)


@pytest.mark.parametrize(
    "error, reason",
    [
        (convlab.errors.ProblemError("x is wrong"), None),
        (convlab.errors.ProblemError(""), "an empty message"),
        (convlab.errors.ProblemError("no kernel " + "x" * 100), "repeats a long argument"),
        (convlab.errors.ProblemError("\ud800"), "raises UnicodeEncodeError"),
    ],
)
def test_what_a_clear_message_is(error, reason):
    said = misuse.failure(error)
    assert said is None if reason is None else reason in said
