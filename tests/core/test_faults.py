"""The page about faults and the table of the messages have the same texts."""

import re
from pathlib import Path

import pytest

import convlab
from convlab.core.faults import FAULTS

pytestmark = pytest.mark.pure
PAGE = (Path(convlab.__file__).parent / "core" / "faults.md").read_text()
HEADINGS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


def test_the_table_has_the_headings_of_the_page():
    assert list(FAULTS) == HEADINGS


@pytest.mark.parametrize("kind", HEADINGS)
def test_the_page_says_what_a_kind_is_and_what_to_do(kind):
    """The page's first sentence on a kind, and its line "Next", are those of the table."""
    pattern = rf"^## {kind}\n(.+?)\.\s.*?^Next: (.+?)\.?\n(\n|\Z)"
    entry = re.search(pattern, PAGE, re.M | re.S)
    meaning, advice = (" ".join(entry[group].split()) for group in (1, 2))
    assert FAULTS[kind] == (meaning[0].lower() + meaning[1:], advice)
    for text in FAULTS[kind]:
        assert 2 < len(text.split()) < 40
        assert "Next:" not in text and "#" not in text and "Usually" not in text
