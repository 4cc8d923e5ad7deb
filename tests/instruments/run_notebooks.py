"""Run notebooks from top to bottom.

    python -m tests.instruments.run_notebooks                    run all, store nothing
    python -m tests.instruments.run_notebooks 03_smem_tile       run one
    python -m tests.instruments.run_notebooks --in-place         run all and store their outputs
    python -m tests.instruments.run_notebooks --stale            run those with outdated outputs
    python -m tests.instruments.run_notebooks NAME --accept      renew the digests, run nothing

``--in-place`` stores the outputs, and a record of the run in the notebook's metadata: see
``stored_outputs.py``. In a copy without git, name the commit with ``--commit``. The outputs that a GPU made
must be of one day and one commit, so run all notebooks in one go. ``--accept`` is for a change that does not
change any output, as a new name for a variable: the day and the commit stay.

Needs nbclient, nbformat and ipykernel, but not Jupyter. The exit status is 0 if all ran, 1 if a cell failed,
and 2 for invalid arguments.
"""

import argparse
import base64
import contextlib
import datetime
import io
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat
import torch
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from PIL import Image

from convlab.core.machine.device import describe
from tests.instruments import stored_outputs
from tests.instruments.stored_outputs import NOTEBOOKS

_WIDGET = "application/vnd.jupyter.widget-view+json"
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Interpreter(AsyncKernelManager):
    """Start notebooks with the running interpreter, whichever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Return how the kernel is started."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        # Otherwise it warns of its TCP port, which is on localhost.
        command.append("--log-level=ERROR")
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def names() -> list[str]:
    """Return the notebooks' names in the order of the walk."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@contextlib.contextmanager
def executed(
    name: str, timeout: float = 600, before: str = "", instead: Mapping[str, str] | None = None
) -> Iterator[tuple[NotebookNode, NotebookClient]]:
    """Run a notebook in a new kernel; yield the cleaned notebook, and its client with a live kernel.

    Parameters
    ----------
    name
        The notebook's file name without its suffix.
    timeout
        Seconds that one cell may take.
    before
        Code that the kernel runs before the first cell.
    instead
        Texts to replace in code cells, and what replaces them. Each text must occur exactly once.
        With replacements, pictures are not made smaller.

    Raises
    ------
    ValueError
        A text of `instead` does not occur, or occurs more than once.
    CellExecutionError
        A cell raised.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for old, new in (instead or {}).items():
        cells = [c for c in notebook.cells if c.cell_type == "code" and old in c.source]
        if len(cells) != 1 or cells[0].source.count(old) != 1:
            raise ValueError(
                f"notebooks/{name}.ipynb must have {old!r} exactly once in its code cells: correct "
                "the text in tests/notebook/smaller.py"
            )
        cells[0].source = cells[0].source.replace(old, new)
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
            # The client has put the cell that it ran in the first place.
            notebook.cells[0] = first
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        clean(notebook, instead is None)
        yield notebook, client


def clean(notebook: NotebookNode, pictures: bool = True) -> None:
    """Remove what differs from run to run: times, widgets, progress bars.

    Execution counts become 1, 2, ... in the order of the cells. With `pictures`, pictures are made
    smaller. The record of the run stays.
    """
    kept = {key: notebook.metadata[key] for key in notebook.metadata if key == stored_outputs.KEY}
    notebook.metadata = nbformat.from_dict(_METADATA | kept)
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
    """Return whether an output is a progress bar; other text on stderr stays visible."""
    if output.output_type == "stream" and output.name == "stderr":
        text = output.text.strip()
        bar = re.search(r"\d+%\||\d+it \[|\?it/s|TqdmWarning", text)
        return not text or bar is not None
    data = output.get("data", {})
    # A progress bar of convlab that has ended is empty.
    ended = bool(data) and not any(data.values())
    return _WIDGET in data or ended


def _small(png: str) -> str:
    """Return a picture with a palette of 256 colours if that is smaller: usually a third."""
    raw = base64.b64decode(png)
    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(raw))
    # It has a palette already.
    if picture.mode == "P":
        return png
    picture = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(buffer, "png", optimize=True)
    return base64.b64encode(min(raw, buffer.getvalue(), key=len)).decode()


def main(argv: list[str] | None = None) -> int:
    """Run the notebooks that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks (default: all)")
    parser.add_argument("--in-place", action="store_true", help="store the outputs and a record")
    parser.add_argument("--stale", action="store_true", help="only notebooks with outdated outputs")
    parser.add_argument("--accept", action="store_true", help="renew the digests, run nothing")
    parser.add_argument("--commit", help="the commit to record (default: git's HEAD)")
    options = parser.parse_args(argv)
    wanted = [Path(name).stem for name in options.names] or names()
    if missing := [name for name in wanted if name not in names()]:
        print(
            f"no notebook is named {', '.join(missing)}: choose from {', '.join(names())}",
            file=sys.stderr,
        )
        return 2
    if options.stale:
        wanted = [name for name in wanted if stored_outputs.stale(name, read(name))]
    if options.accept:
        return accept(wanted)
    commit = options.commit or stored_outputs.commit()
    if options.in_place and commit is None:
        print("no git checkout: name the commit to record with --commit", file=sys.stderr)
        return 2
    # One day for all, even if it ends meanwhile.
    today = datetime.date.today().isoformat()
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
        if options.in_place:
            made = stored_outputs.record(notebook, today, commit, _device())
            notebook.metadata[stored_outputs.KEY] = nbformat.from_dict(made)
            _store(notebook, NOTEBOOKS / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    return status


def read(name: str) -> NotebookNode:
    """Return a notebook as it is on disk."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def accept(wanted: list[str]) -> int:
    """Renew the digests in the records of notebooks; return the exit status."""
    for name in wanted:
        notebook = read(name)
        if stored_outputs.KEY not in notebook.metadata:
            print(f"{name}: has no record, so run it with --in-place", file=sys.stderr)
            return 1
        notebook.metadata[stored_outputs.KEY].update(
            nbformat.from_dict(stored_outputs.digests(notebook))
        )
        _store(notebook, NOTEBOOKS / f"{name}.ipynb")
        print(f"{name}: digests renewed", flush=True)
    return 0


def _device() -> str:
    """Return the GPU that notebooks run on, or "simulator"."""
    if not torch.cuda.is_available():
        return "simulator"
    return str(describe(torch.device("cuda")))


def _store(notebook: NotebookNode, path: Path) -> None:
    """Replace the file in one step, so that Ctrl-C never leaves half a file."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        nbformat.write(notebook, file)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


if __name__ == "__main__":
    sys.exit(main())
