"""Write convlab/API.md from the docstrings.

    python -m tests.instruments.api_page            write the page
    python -m tests.instruments.api_page --check    write nothing; exit status 1 if it is not current

The page has the public names of convlab and of convlab.nn, the classes that their functions return, and the
errors. Signatures and texts come from the code, so edit the docstrings, never the page.
"""

import argparse
import importlib
import inspect
import re
import sys
import textwrap
from types import ModuleType
from typing import Any

import convlab
from convlab.core import errors
from tests.instruments.links import slugs
from tests.instruments.stored_outputs import ROOT

PAGE = ROOT / "convlab" / "API.md"
COMMAND = "python -m tests.instruments.api_page"
_HEAD = f"""# The API

Generated from the docstrings by `{COMMAND}`: edit the docstrings, then run it again.
"""
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$\n", re.MULTILINE)
# Columns of a signature in one line.
_WIDE = 88


def markdown(text: str) -> str:
    """Return a numpydoc docstring as Markdown."""
    first, *rest = _SECTION.split(inspect.cleandoc(text))
    blocks = [prose(first)]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        blocks.append(f"**{title}**")
        blocks.append(fenced(body) if title == "Examples" else entries(body))
    return "\n\n".join(blocks)


def prose(text: str) -> str:
    """Return paragraphs, with doctests in code blocks."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(
        fenced(each) if each.lstrip().startswith(">>>") else each.replace("``", "`")
        for each in paragraphs
    )


def fenced(text: str) -> str:
    """Return a block of Python."""
    return f"```python\n{textwrap.dedent(text).strip()}\n```"


def entries(body: str) -> str:
    """Return a section as a list: each line without indentation begins an entry."""
    items: list[str] = []
    for line in body.strip().splitlines():
        if not line.strip():
            continue
        if not line[:1].isspace():
            name, colon, text = line.partition(" : ")
            names = colon or re.fullmatch(r"[\w.*]+(, [\w.*]+)*|list of [^.]+", line)
            items.append(f"- `{name}`: {text}" if names else f"- {line}")
            continue
        last = items.pop()
        # "name : type", and the text below it.
        typed = re.fullmatch(r"- `([^`]+)`: ([^.;:]{1,40}[^.;:, ])", last)
        is_list = line.lstrip().startswith("- ")
        if typed and (is_list or not line.lstrip()[:1].islower()):
            last = f"- `{typed[1]}` ({typed[2]}):"
        if is_list:
            items += [last.rstrip(), f"  {line.strip()}"]
        else:
            items.append(f"{last.rstrip()} {line.strip()}")
    return "\n".join(items).replace("``", "`")


def signature(name: str, function: Any, method: bool = False) -> str:
    """Return how a function is called, in a code block; in lines where it is long."""
    found = inspect.signature(function)
    parameters = list(found.parameters.values())[1 if method else 0 :]
    kinds = [str(each.replace(annotation=plain(each.annotation))) for each in parameters]
    star = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if star is not None and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        kinds.insert(star, "*")
    result = plain(found.return_annotation)
    end = "" if result is inspect.Parameter.empty else f" -> {result}"
    line = f"{name}({', '.join(kinds)}){end}"
    if len(line) > _WIDE:
        line = f"{name}(\n" + "".join(f"    {kind},\n" for kind in kinds) + f"){end}"
    # Annotations are texts here, which Python shows in quotes.
    return fenced(re.sub(r": '([^'\n]*)'(?=[ ,)\n])", r": \1", line))


def plain(annotation: Any) -> Any:
    """Return an annotation as a text without the names of modules."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def described(heading: str, name: str, thing: Any) -> str:
    """Return the part of the page on one function, class or module."""
    parts = [f"### {heading}"]
    if inspect.isfunction(thing):
        parts.append(signature(name, thing))
    parts.append(markdown(thing.__doc__ or ""))
    if inspect.isclass(thing):
        members = [member(name, key, getattr(thing, key, None)) for key in vars(thing)]
        if members := [each for each in members if each]:
            parts += ["**Methods and properties**", "\n".join(members)]
    return "\n\n".join(parts)


def member(owner: str, name: str, value: Any) -> str:
    """Return a line on a public method or property of a class; "" for another attribute."""
    if name.startswith("_") or not (callable(value) or isinstance(value, property)):
        return ""
    text = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    text = " ".join(text.split()).replace("``", "`")
    return f"- `{name}{'' if isinstance(value, property) else '()'}`: {text}" if text else ""


def results(functions: list[Any]) -> dict[str, Any]:
    """Return the classes of the package that functions return, by name."""
    found = {}
    for function in functions:
        module = sys.modules[function.__module__]
        for word in re.findall(r"\w+", str(plain(inspect.signature(function).return_annotation))):
            value = getattr(module, word, None)
            if inspect.isclass(value) and value.__module__.startswith("convlab"):
                # The methods that all results share are a base class's.
                for each in value.__mro__:
                    if each is value or each.__name__ == "Result":
                        found[each.__name__] = each
    return dict(sorted(found.items()))


def public(module: ModuleType, names: list[str]) -> dict[str, Any]:
    """Return the public functions and classes of a module, by name."""
    values = {name: getattr(module, name) for name in names}
    return {name: each for name, each in values.items() if not inspect.ismodule(each)}


def page() -> str:
    """Return the whole page."""
    nn = importlib.import_module("convlab.nn")
    own = public(convlab, list(convlab.__all__))
    layers = public(nn, list(nn.__all__))
    functions = [each for each in (*own.values(), *layers.values()) if inspect.isfunction(each)]
    returned = {name: each for name, each in results(functions).items() if each not in own.values()}
    raised = {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, Exception)
    }
    groups = {
        "convlab": {f"convlab.{name}": each for name, each in own.items()},
        "convlab.nn": {f"convlab.nn.{name}": each for name, each in layers.items()},
        "Results": returned,
        "convlab.errors": {f"convlab.errors.{name}": each for name, each in raised.items()},
    }
    body = []
    for title, things in groups.items():
        body.append(f"## {title}")
        body += [described(name, name, thing) for name, thing in things.items()]
    text = "\n\n".join(body)
    anchors = dict(slugs(f"{_HEAD}\n{text}"))
    contents = []
    for title, things in groups.items():
        links = ", ".join(f"[{name.rpartition('.')[2]}](#{anchors[name]})" for name in things)
        contents.append(f"- **{title}**: {links}")
    listed = "\n".join(contents)
    return f"{_HEAD}\n{listed}\n\n{text}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    text = page()
    if options.check:
        current = PAGE.is_file() and PAGE.read_text() == text
        print("current" if current else f"{PAGE.name} is not current: run `{COMMAND}`")
        return int(not current)
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
