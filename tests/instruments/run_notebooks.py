"""Run the notebooks top to bottom: ``python -m tests.instruments.run_notebooks [NAME]``.

With ``--in-place`` the outputs are stored, which is how the committed ones are made. Needs
nbclient, nbformat and ipykernel, no Jupyter. Exit status: 0 if all ran, 1 if a cell failed,
2 if there is no such notebook.
"""

import argparse
import base64
import contextlib
import io
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from PIL import Image

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Interpreter(AsyncKernelManager):
    """A kernel named python3 that is the running interpreter, whatever is installed elsewhere."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Return how the kernel is started."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        command.append("--log-level=ERROR")  # it warns of its TCP port, which is on localhost
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def names() -> list[str]:
    """Return the notebooks' names in the order of the walk."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@contextlib.contextmanager
def executed(
    name: str, timeout: float = 600, before: str = "", instead: Mapping[str, str] | None = None
) -> Iterator[tuple[NotebookNode, NotebookClient]]:
    """Run a notebook from a fresh kernel; yield it, cleaned, and the client, its kernel alive.

    Parameters
    ----------
    name
        The notebook's file name without ending.
    timeout
        Seconds that one cell may take.
    before
        Code that the kernel runs before the first cell.
    instead
        What stands in the places of texts of code cells, each of which is there once; pictures are
        left as large as they are then.

    Raises
    ------
    ValueError
        A text of `instead` is not there, or more than once.
    CellExecutionError
        A cell raised.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for old, new in (instead or {}).items():
        found = [c for c in notebook.cells if c.cell_type == "code" and old in c.source]
        if len(found) != 1 or found[0].source.count(old) != 1:
            raise ValueError(f"{name} does not have {old!r} once")
        found[0].source = found[0].source.replace(old, new)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        kernel_manager_class=Interpreter,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    with client.setup_kernel():
        if before:
            first = notebook.cells[0]
            client.execute_cell(nbformat.v4.new_code_cell(before), 0)
            notebook.cells[0] = first  # whose place the client gave to what it ran
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        clean(notebook, instead is None)
        yield notebook, client


def clean(notebook: NotebookNode, pictures: bool = True) -> None:
    """Remove what changes from run to run or means nothing later: times, widgets, progress bars.

    Execution counts become 1, 2, ... in the order of the cells, and `pictures` small.
    """
    notebook.metadata = nbformat.from_dict(_METADATA)
    count = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k == "tags"})
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = [output for output in cell.outputs if not _progress(output)]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if pictures and "image/png" in output.get("data", {}):
                output.data["image/png"] = _small(output.data["image/png"])


def _progress(output: NotebookNode) -> bool:
    """Tell whether an output is a progress bar's; other words on stderr are kept, to be seen."""
    if output.output_type == "stream" and output.name == "stderr":
        text = output.text.strip()
        bar = re.search(r"\d+%\||\d+it \[|\?it/s|TqdmWarning", text)
        return not text or bar is not None
    data = output.get("data", {})
    ended = bool(data) and not any(data.values())  # a bar of convlab's that is done
    return _WIDGET in data or ended


def _small(png: str) -> str:
    """Store a picture with a palette of 256 colours, a third of the bytes, if it is smaller so."""
    raw = base64.b64decode(png)
    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(raw))
    if picture.mode == "P":  # it has one
        return png
    picture = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(buffer, "png", optimize=True)
    return base64.b64encode(min(raw, buffer.getvalue(), key=len)).decode()


def main(argv: list[str] | None = None) -> int:
    """Run what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks; all if none is given")
    parser.add_argument("--in-place", action="store_true", help="store the outputs")
    arguments = parser.parse_args(argv)
    wanted = [Path(name).stem for name in arguments.names] or names()
    if missing := [name for name in wanted if name not in names()]:
        print(f"no notebook {', '.join(missing)}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    status = 0
    for name in wanted:
        started = time.perf_counter()
        try:
            with executed(name) as (notebook, _):
                pass
        except CellExecutionError as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).rstrip()
            print(f"{name}: FAILED\n{text}", flush=True)
            status = 1
            continue
        if arguments.in_place:
            _store(notebook, NOTEBOOKS / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    return status


def _store(notebook: NotebookNode, path: Path) -> None:
    """Replace the file in one step, so that an interrupt leaves the old one whole."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        nbformat.write(notebook, file)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


if __name__ == "__main__":
    sys.exit(main())
