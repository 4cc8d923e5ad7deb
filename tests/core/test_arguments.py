"""The validation of public arguments: what is valid, and the errors for the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlab.core import arguments as valid
from convlab.core.errors import ProblemError

pytestmark = pytest.mark.pure


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
def test_valid_arguments(call, result) -> None:
    value = call()
    assert value == result and type(value) is type(result)


@given(st.text())
def test_a_file_name_stays_in_its_folder(name: str) -> None:
    try:
        file = valid.file_name(name, "name")
    except ProblemError:
        return
    assert (Path("/a/b") / file).parent == Path("/a/b") and file not in (".", "..")
