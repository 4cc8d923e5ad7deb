"""Write slides of a notebook, from its stored outputs.

    python -m tests.instruments.slides 03_smem_tile slides.html

Each section begins a slide, with the text under its heading. Each figure or table is a slide below it,
without its code. Other text becomes the speaker's notes (key S); other code and the exercises are left out.
The page is one HTML file. It loads reveal.js from the network, unless --reveal names a folder with it:
unpack `npm pack reveal.js@4` next to the page, and give --reveal package. Formulas need the network (MathJax).

Needs nbconvert, which comes with JupyterLab. The exit status is 2 for invalid arguments.
"""

import argparse
import sys
from pathlib import Path

from nbformat import NotebookNode

from tests.instruments.run_notebooks import names, read
from tests.instruments.stored_outputs import APART

# What a slide can show: a picture, or HTML such as a table or a figure to step through.
_SHOWN = ("image/png", "text/html")
# Sections that are not for a lecture.
_LEFT_OUT = ("## Exercise", "## What this was run on")
# nbconvert's template loads reveal.js by require.js, from the network: offline there would be no slide.
_TEMPLATE = """
{%- extends 'index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block footer_js -%}
<script src="{{ reveal_url_prefix }}/dist/reveal.js"></script>
<script src="{{ reveal_url_prefix }}/plugin/notes/notes.js"></script>
<script>
Reveal.initialize({history: true, plugins: [RevealNotes], width: 960, height: 700});
Reveal.on("slidechanged", () => window.MathJax?.Hub?.Rerender(Reveal.getCurrentSlide()));
</script>
{%- endblock -%}
"""


def prepared(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook with the type of a slide in each cell's metadata."""
    left_out = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and "# " in cell.source:
            left_out = any(title in cell.source for title in _LEFT_OUT)
        cell.metadata["slideshow"] = {"slide_type": "skip" if left_out else _kind(cell)}
    return notebook


def _kind(cell: NotebookNode) -> str:
    """Return a cell's type of slide, by the names of nbconvert."""
    if cell.cell_type == "markdown":
        begins = any(line.startswith(("# ", "## ")) for line in cell.source.splitlines())
        return "slide" if begins else "notes"
    if APART in cell.metadata.get("tags", []):
        return "skip"
    shown = any(kind in output.get("data", {}) for output in cell.outputs for kind in _SHOWN)
    return "subslide" if shown else "skip"


def slides(notebook: NotebookNode, reveal: str | None = None) -> str:
    """Return the page with the slides of a notebook."""
    from nbconvert import SlidesExporter

    options = {} if reveal is None else {"reveal_url_prefix": reveal}
    exporter = SlidesExporter(exclude_input=True, exclude_output_prompt=True, **options)
    exporter.raw_template = _TEMPLATE
    return exporter.from_notebook_node(prepared(notebook))[0]


def main(argv: list[str] | None = None) -> int:
    """Write the slides that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", help="a notebook, such as 03_smem_tile")
    parser.add_argument("page", metavar="FILE", type=Path, help="the HTML file to write")
    parser.add_argument("--reveal", metavar="FOLDER", help="a folder or address with reveal.js")
    options = parser.parse_args(argv)
    name = Path(options.name).stem
    if name not in names():
        print(f"no notebook is named {name}: choose from {', '.join(names())}", file=sys.stderr)
        return 2
    options.page.write_text(slides(read(name), options.reveal))
    print(f"{options.page}: {options.page.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
