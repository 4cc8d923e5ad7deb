"""The schema of `check --json` is valid, and lists all kinds of fault."""

import re
from pathlib import Path

import jsonschema
import pytest

import convlab
from tests.schema import SCHEMA

pytestmark = pytest.mark.pure


def test_schema_has_the_kinds_of_the_page():
    page = (Path(convlab.__file__).parent / "core" / "faults.md").read_text()
    assert SCHEMA["$defs"]["kind"]["enum"] == re.findall(r"^## (.*)$", page, re.MULTILINE)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
