"""The result of `convlab.play`: a page, a figure in a notebook, a slider of ipywidgets."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import arguments
from ..core.errors import ProblemError
from ..core.kernel.kernel import Kernel
from ..core.problem.problem import Problem
from ..core.show.plot import Chart
from ..profile.access_figures import Request, draw_requests
from ..profile.warp_accesses import own_file_name
from .steps import Step, first_of_each

# The largest page, in KB of 1000 bytes.
MOST_KB = 2000
_TEMPLATE = Path(__file__).with_name("page.html")
# The place in the page where its data stand.
_DATA = "/* the steps */ null"
# The figure's height in a notebook, in pixels.
_HEIGHT = 760
# The lists of what is pending, and their names for readers.
_LISTS = {"copies": "cp.async", "bulk": "bulk loads", "stores": "bulk stores", "wgmmas": "wgmma"}


class Playback:
    """The executions of one block, step by step.

    Attributes
    ----------
    kernel, problem, block, warp : what was run; `warp` is None for all warps.
    launch : the launch: kernel, grid, block, shared_bytes.
    steps : all recorded executions, in their order: each a dict of ``file``, ``line``, ``space``,
        ``kind``, ``array``, ``warp``, ``lanes``, ``execution`` and ``pending``.
    complete : whether all executions were recorded.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        block: tuple[int, int, int],
        warp: int | None,
        launch: Mapping[str, Any],
        steps: list[Step],
        complete: bool,
        most_kb: int = MOST_KB,
    ) -> None:
        self.kernel = kernel
        self.problem = problem
        self.block = block
        self.warp = warp
        self.launch = launch
        self.steps = steps
        self.complete = complete
        self._most_bytes = most_kb * 1000

    def __repr__(self) -> str:
        which = "all warps" if self.warp is None else f"warp {self.warp}"
        return (
            f"{self.kernel.name} on {self.problem.label}: block {self.block} of "
            f"{self.launch['kernel']}, {which}, {len(self.steps):,} steps; "
            "save('page.html') writes them as a page"
        )

    def html(self) -> str:
        """Return the page as text.

        Raises
        ------
        ProblemError
            Even one execution of each line makes a page that is larger than `most_kb`.
        """
        number = max(step["execution"] for step in self.steps) + 1
        while True:
            steps = first_of_each(self.steps, number)
            page = self._page(steps, number)
            size = len(page.encode())
            if size <= self._most_bytes:
                return page
            if number == 1:
                raise ProblemError(
                    f"the page has {size // 1000:,} KB with one execution of each line, more than "
                    f"the {self._most_bytes // 1000:,} KB of most_kb: give one warp, or a larger "
                    "most_kb"
                )
            number = max(1, min(number - 1, int(number * 0.95 * self._most_bytes / size)))

    def save(self, path: str | Path) -> Path:
        """Write the page to an .html file, and return its path.

        Raises
        ------
        ProblemError
            The file's name has another ending, or it cannot be written; also as `html`.
        """
        path = arguments.writable(path, "the page", (".html",))
        path.write_text(self.html(), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        label = html.escape(f"Step through {self.kernel.name}", quote=True)
        page = html.escape(self.html(), quote=True)
        return (
            f'<iframe title="{label}" srcdoc="{page}" sandbox="allow-scripts" loading="lazy" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
        )

    def draw(self, step: int) -> Chart | None:
        """Draw the addresses of one step; None if it is no memory request."""
        number = arguments.whole(step, "step", least=0)
        if number >= len(self.steps):
            raise ProblemError(f"there are {len(self.steps):,} steps: give a number below that")
        chosen = self.steps[number]
        if not chosen["space"]:
            return None
        request = Request(
            chosen["lanes"], chosen["bytes"], chosen["space"], chosen["kind"], chosen["array"]
        )
        return draw_requests([request], self._title(number))

    def widget(self) -> Any:
        """Return a slider of ipywidgets that draws the steps in a running notebook.

        Raises
        ------
        ProblemError
            ipywidgets is not installed.
        """
        try:
            import ipywidgets
        except ImportError:
            raise ProblemError(
                "ipywidgets is not installed: pip install ipywidgets, or show the playback itself, "
                "which does not need it"
            ) from None
        from IPython.display import display

        slider = ipywidgets.IntSlider(
            min=0, max=len(self.steps) - 1, description="step", continuous_update=False
        )

        def show(step: int) -> None:
            chart = self.draw(step)
            if chart is None:
                print(self._title(step))
            else:
                display(chart)
            for line in _pending_lines(self.steps[step]["pending"]):
                print(line)

        output = ipywidgets.interactive_output(show, {"step": slider})
        return ipywidgets.VBox([slider, output])

    def _title(self, number: int) -> str:
        """Return the place and the operation of a step in one line or two."""
        step = self.steps[number]
        lines = self._sources([step])[step["file"]]
        text = lines[step["line"] - 1].strip() if 0 < step["line"] <= len(lines) else ""
        return (
            f"{Path(step['file']).name}:{step['line']}  {text[:70]}\n"
            f"step {number + 1} of {len(self.steps):,}, warp {step['warp']}: {step['kind']}"
        )

    def _sources(self, steps: list[Step]) -> dict[str, list[str]]:
        """Return the lines of each file in which a step is."""
        own = own_file_name(self.kernel)
        sources = {}
        for file in dict.fromkeys(step["file"] for step in steps):
            if Path(file).name == own:
                sources[file] = self.kernel.source.splitlines()
            elif Path(file).is_file():
                sources[file] = Path(file).read_text(errors="replace").splitlines()
            else:
                sources[file] = []
        return sources

    def _page(self, steps: list[Step], number: int) -> str:
        """Return a page with these steps, the first `number` executions of each line."""
        sources = self._sources(steps)
        files = list(sources)
        # Tables of texts and of what is pending: a step has their numbers.
        kinds = _Table()
        arrays = _Table()
        pending = _Pending()
        formats = {name: stored.itemsize for name, stored in self.kernel.format}
        rows = []
        for step in steps:
            element = formats.get(step["array"]) or step["element"] or 4
            row = [
                step["warp"],
                files.index(step["file"]),
                step["line"],
                kinds.index((step["space"], step["kind"])),
                arrays.index((step["array"], element)),
                step["bytes"],
                _compact(step),
                pending.index(step["pending"]),
            ]
            if details := step.get("details"):
                row.append("; ".join(f"{name} {text}" for name, text in details.items()))
            rows.append(row)
        notes = []
        if len(steps) < len(self.steps):
            times = "execution" if number == 1 else f"{number:,} executions"
            notes.append(
                f"This page has the first {times} of each line by each warp: {len(steps):,} of "
                f"{len(self.steps):,} steps."
            )
        if not self.complete:
            notes.append("The block executes more than the simulator recorded.")
        data = {
            "kernel": self.kernel.name,
            "problem": self.problem.label,
            "function": self.launch["kernel"],
            "grid": list(self.launch["grid"]),
            "threads": list(self.launch["block"]),
            "block": list(self.block),
            "notes": notes,
            "files": [[Path(file).name, _used(sources[file], file, steps)] for file in files],
            "kinds": kinds.rows,
            "arrays": arrays.rows,
            "pending": pending.rows,
            "lists": pending.lists.rows,
            "mbarriers": pending.mbarriers.rows,
            "steps": rows,
        }
        text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        title = html.escape(f"{self.kernel.name}, block {self.block}, step by step")
        page = _TEMPLATE.read_text(encoding="utf-8").replace("THE TITLE", title)
        return page.replace(_DATA, text)


class _Table:
    """Different values, each with a number."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[str, int] = {}

    def index(self, value: Any) -> int:
        """Return the number of a value, which may be new."""
        key = json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(value)
        return self._numbers[key]


class _Pending:
    """What is pending, in three tables, because most steps share most of it.

    A row has the number of barriers, the numbers of four lists of texts (cp.async, bulk loads, bulk
    stores, wgmma), and a list of the numbers of mbarriers.
    """

    def __init__(self) -> None:
        self.lists = _Table()
        self.mbarriers = _Table()
        self._rows = _Table()
        self._known: dict[int, int] = {}

    @property
    def rows(self) -> list[Any]:
        return self._rows.rows

    def index(self, pending: Mapping[str, Any]) -> int:
        """Return the number of the row of what is pending after a step."""
        known = self._known.get(id(pending))
        if known is None:
            lists = [self.lists.index(pending[key]) for key in _LISTS]
            states = [
                self.mbarriers.index([name, *state.values()])
                for name, state in pending["mbarriers"].items()
            ]
            known = self._rows.index([pending["barriers"], *lists, states])
            self._known[id(pending)] = known
        return known


def _compact(step: Step) -> list[int]:
    """Return the mask of the lanes, then their bytes: the first and a distance, if all are equal."""
    lanes = step["lanes"]
    mask = sum(1 << lane for lane in lanes)
    if not step["space"]:
        return [mask]
    places = list(lanes.values())
    distances = {b - a for a, b in zip(places, places[1:], strict=False)}
    if len(distances) <= 1:
        return [mask, places[0], distances.pop() if distances else 0]
    # Differences are shorter than addresses.
    return [mask, places[0], *(b - a for a, b in zip(places, places[1:], strict=False))]


def _used(lines: list[str], file: str, steps: list[Step]) -> list[Any]:
    """Return the first line's number and the lines of a file that the page shows."""
    numbers = [step["line"] for step in steps if step["file"] == file and step["line"] > 0]
    if not numbers:
        return [1, []]
    first = max(1, min(numbers) - 12)
    return [first, lines[first - 1 : max(numbers) + 12]]


def _pending_lines(pending: Mapping[str, Any]) -> list[str]:
    """Return what is pending as lines of text."""
    lines = []
    for key, heading in _LISTS.items():
        if pending[key]:
            lines.append(f"{heading}: {'; '.join(pending[key])}")
    for name, state in pending["mbarriers"].items():
        lines.append(
            f"mbarrier {name}: phase {state['phase']}, {state['missing']} of {state['arrivals']} "
            f"arrivals and {state['bytes']:,} B missing"
        )
    return lines
