"""The pages: links lead somewhere, README is short, and the API's page is current."""

from pathlib import Path

import pytest

from tests.instruments import api_page, links, numbers
from tests.instruments.stored_outputs import ROOT

pytestmark = pytest.mark.pure
PAGES = links.tracked(".md", ".ipynb")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_file_names_of_a_page_exist(path: Path) -> None:
    found = list(links.broken(path))
    assert not found, "\n".join(found)


def test_readme_is_one_screen_of_sections() -> None:
    text = (ROOT / "README.md").read_text()
    lines = len(text.splitlines())
    words = len(text.split())
    assert lines <= 150 and words <= 1100, (
        f"README.md has {lines} lines and {words} words; at most 150 and 1100 are allowed: move "
        "text to the README.md of the folder that it is about"
    )


def test_the_numbers_of_readme_are_those_of_the_tables() -> None:
    assert numbers.is_current(), f"README.md's numbers are old: run `{numbers.COMMAND}`"


def test_the_page_of_the_api_is_current() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), (
        f"convlab/API.md is older than the docstrings: run `{api_page.COMMAND}`"
    )


def test_the_page_of_the_api_has_every_public_name() -> None:
    import convlab

    headings = [heading for heading, _ in links.slugs(api_page.PAGE.read_text())]
    modules = {"nn", "errors"}
    assert {f"convlab.{name}" for name in set(convlab.__all__) - modules} <= set(headings)
    assert {f"convlab.nn.{name}" for name in convlab.nn.__all__} <= set(headings)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `title`, twice\n\n# A title, twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-title-twice-1) [b](https://example.org/x) ![c](none.png)\n"
        "[d](other.md#no-such) [e](#here) <a name='here'></a>\n\n"
        "    [f](not-a-link.md)\n\n```\n[g](nor-this.md)\n```\n"
    )
    found = list(links.broken(page))
    assert len(found) == 2, found
    assert "page.md:1" in found[0] and "none.png" in found[0]
    assert "page.md:2" in found[1] and "#no-such" in found[1]


def test_a_file_that_is_not_there_is_found() -> None:
    assert links.named_file_exists(ROOT / "README.md", "kernels/01_direct.cu")
    assert links.named_file_exists(ROOT / "README.md", "kernels/17_your_idea.cu")
    assert links.named_file_exists(ROOT / "README.md", "mine/first.cu")
    assert not links.named_file_exists(ROOT / "README.md", "kernels/00_none.cu")


def test_a_docstring_becomes_markdown() -> None:
    text = """Return a sum.

    Parameters
    ----------
    a, b : int
        The terms, ``a`` first.
    name : how to show it;
        or nothing.

    Returns
    -------
    int
        The sum.

    Examples
    --------
    >>> add(1, 2)
    """
    assert api_page.markdown(text) == (
        "Return a sum.\n\n**Parameters**\n\n- `a, b` (int): The terms, `a` first.\n"
        "- `name`: how to show it; or nothing.\n\n**Returns**\n\n- `int`: The sum.\n\n"
        "**Examples**\n\n```python\n>>> add(1, 2)\n```"
    )
