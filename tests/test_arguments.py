"""The one validator of public arguments: what it lets through, and how it refuses."""

from __future__ import annotations

import decimal
import fractions
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz import VALUES

from convlab.words import arguments as valid
from convlab.words.errors import ProblemError

ODD = [*VALUES.values(), decimal.Decimal("nan"), fractions.Fraction(1, 3)]
VALIDATORS = [
    lambda v: valid.whole(v, "it"), lambda v: valid.whole(v, "it", 0, 9),
    lambda v: valid.real(v, "it"), lambda v: valid.real(v, "it", above=0, most=9),
    lambda v: valid.flag(v, "it"), lambda v: valid.text(v, "it"),
    lambda v: valid.choice(v, "it", ("a", "b")), lambda v: valid.path(v, "it"),
    lambda v: valid.several(v, "it"), lambda v: valid.file_name(v, "it"),
    lambda v: valid.tunables(v), lambda v: valid.tunables({"A": v}), lambda v: valid.tunables({v: 1})
    if getattr(type(v), "__hash__", None) else None,
]  # fmt: skip


@pytest.mark.parametrize("validator", VALIDATORS)
def test_only_errors_of_our_own(validator) -> None:
    for value in ODD:
        try:
            validator(value)
        except ProblemError as error:
            assert len(str(error)) < 250 and "\n" not in str(error)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda: valid.whole(np.int64(3), "n"), 3),
        (lambda: valid.real(np.float32(0.5), "n"), 0.5),
        (lambda: valid.real(3, "n", most=3), 3.0),
        (lambda: valid.flag(np.True_, "n"), True),
        (lambda: valid.several((1, 2), "n"), [1, 2]),
        (lambda: valid.path("a/b", "n"), Path("a/b")),
        (lambda: valid.file_name("my kernel-2.1 (ü)", "n"), "my kernel-2.1 (ü)"),
        (lambda: valid.tunables({"A": np.int32(4), "T": "float"}), {"A": 4, "T": "float"}),
    ],
)
def test_what_is_let_through(call, result) -> None:
    found = call()
    assert found == result and type(found) is type(result)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: valid.whole(True, "count"), "count must be an integer, not True"),
        (lambda: valid.whole(-1, "count", least=0), "count is -1; it must be at least 0"),
        (lambda: valid.whole(10**5000, "count"), "count is <int>; it must be at most 9223372"),
        (lambda: valid.real(math.nan, "seconds"), "seconds must be a finite number, not nan"),
        (lambda: valid.real(0, "seconds", above=0), "seconds must be a finite number, more than 0, not 0"),
        (lambda: valid.flag(1, "raises"), "raises must be True or False, not 1"),
        (lambda: valid.text(b"x", "source"), "source must be a string, not b'x': decode it"),
        (lambda: valid.choice("c", "unit", "ab"), "no unit 'c': choose from a, b"),
        (lambda: valid.several("ab", "kernels"), "kernels must be a list, not 'ab'"),
        (lambda: valid.file_name("../../x", "name"), "without a slash"),
        (lambda: valid.file_name("x" * 101, "name"), "1 to 100 characters"),
        (lambda: valid.tunables({"A": "`id`"}), "A is '`id`'; it must be an integer, or one plain"),
        (lambda: valid.tunables({"A B": 1}), "'A B' is no name of a tunable"),
        (lambda: valid.tunables([1]), "must be a dict such as {'TILE': 8}, not [1]"),
    ],
)  # fmt: skip
def test_refusals_say_what_may_be_given(call, message: str) -> None:
    with pytest.raises(ProblemError) as error:
        call()
    assert message in str(error.value)


@given(st.text())
def test_a_file_name_stays_in_its_folder(name: str) -> None:
    try:
        given = valid.file_name(name, "name")
    except ProblemError:
        return
    assert (Path("/a/b") / given).parent == Path("/a/b") and given not in (".", "..")
