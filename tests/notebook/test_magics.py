"""The notebook's magics in a real IPython shell, and the messages for a user's mistakes."""

import contextlib
import ctypes
import queue
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.core import completer
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

import convlab
from convlab.core.errors import BuildError, CatalogError, ProblemError
from convlab.core.kernel import cuda
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.notebook.magics import Results
from tests.suites import line_of

DIRECT = (KERNEL_DIR / "01_direct.cu").read_text()
SMALL = "N=2,C=4,H=9,W=11,K=6,R=3,S=2,stride=2x1,padding=1,bias=1"
Run = Callable[[str], ExecutionResult]

# All tests share one shell and one notebook.
pytestmark = pytest.mark.xdist_group("magics")


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    """Yield a shell with the extension, kernels ``mine`` and ``tuned``, and a problem ``conv``."""
    shell = InteractiveShell.instance(colors="nocolor")
    assert shell.run_line_magic("load_ext", "convlab") is None
    for magic in ("%%kernel mine --engine sim\n", "%%kernel tuned@THREADS=64 --engine sim\n"):
        shell.run_cell(magic + DIRECT, store_history=True).raise_error()
    shell.user_ns["conv"] = convlab.problem(SMALL)
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def run(shell: InteractiveShell, capfd: pytest.CaptureFixture) -> Run:
    """Return a function that runs a cell as a notebook does; ``.shown`` is its visible output."""

    def run(cell: str) -> ExecutionResult:
        capfd.readouterr()
        result = shell.run_cell(cell, store_history=True)
        result.shown = "".join(capfd.readouterr())
        return result

    return run


def test_kernel_binds_a_name(run: Run) -> None:
    done = run("%%kernel tuned@THREADS=64 --engine sim\n" + DIRECT)
    assert done.success
    assert re.fullmatch(r"tuned@THREADS=64: sim, built (in \d+\.\d s|before)\n", done.shown)
    kernel = run("tuned").result
    assert isinstance(kernel, convlab.Kernel)
    assert kernel.name == "tuned@THREADS=64" and kernel.engine == "sim"
    assert run("%%kernel --engine sim\n" + DIRECT).success
    assert run("kernel.name").result == "kernel"


@pytest.mark.parametrize("above", ["", "\n\n"], ids=["first_line", "blank_lines_above"])
def test_compile_error_at_the_cells_own_line(run: Run, above: str) -> None:
    assert run("%%kernel edited --engine sim\n" + DIRECT).success
    broken = DIRECT.replace("int q =", "int q = bogus +", 1)
    cell = f"{above}%%kernel edited --engine sim\n{broken}"
    done = run(cell)
    assert isinstance(done.error_in_exec, BuildError)
    assert f"edited.cu:{line_of(cell, 'bogus')}: " in done.shown
    assert "Traceback" not in done.shown and "full log" not in done.shown
    assert "BuildError\x1b[0m: edited.cu did not compile" in done.shown
    # The variable is deleted, so no earlier kernel is used by mistake.
    assert isinstance(run("edited").error_in_exec, NameError)
    error = run(f"%convlab check edited --problem {SMALL}").error_in_exec
    assert isinstance(error, UsageError)
    assert re.match(r"edited did not build, in cell \[\d+\]", str(error))
    assert run("%%kernel edited --engine sim\n" + DIRECT).success
    assert run(f"%convlab check edited --problem {SMALL}").success


def test_a_failing_call_shows_its_line_and_tb_shows_all(run: Run) -> None:
    run("import torch")
    done = run("x = torch.ones(1, 4, 9, 11)\ny = mine(x, torch.ones(6, 3, 3, 2))")
    assert isinstance(done.error_in_exec, ProblemError)
    assert re.fullmatch(
        r"\x1b\[31mProblemError\x1b\[0m: x has C=4 .*\n"
        r"  at line 2: y = mine\(x, torch.ones\(6, 3, 3, 2\)\) .*%tb.*\n",
        done.shown,
    )
    traceback = run("%tb").shown
    assert len(traceback.splitlines()) > 8 and "/convlab/" in traceback
    # Errors that are not convlab's keep their traceback.
    assert "Traceback" in run("open('/nowhere/at/all')").shown


def test_header_error_at_the_cells_own_line(run: Run) -> None:
    done = run("%%kernel odd --engine sim\n// title: Odd\n// preccision: fp32\n" + DIRECT)
    assert isinstance(done.error_in_exec, CatalogError)
    assert "odd.cu:3: unknown key 'preccision'" in done.shown
    assert isinstance(run("odd").error_in_exec, NameError)


def test_finding_at_the_cells_own_line(run: Run) -> None:
    cell = "%%kernel far --engine sim\n" + DIRECT.replace("g_y[i] =", "g_y[i + 100000000] =")
    assert run(cell).success
    done = run(f"%convlab check far --problem {SMALL}")
    assert done.success and done.result.fault == "global out of bounds"
    assert f"far.cu:{line_of(cell, 'i + 100000000')}:  g_y[i" in str(done.result)
    assert "reproduce: %convlab check far --problem 'N2 C4 H9" in str(done.result)


@pytest.mark.parametrize(
    ("cell", "error", "message"),
    [
        (
            "%%kernel 3x\n//",
            UsageError,
            "'3x' cannot be the name of a Python variable; use another name",
        ),
        ("%%kernel class\n//", UsageError, "'class' cannot be"),
        ("%%kernel a THREADS=64\n//", UsageError, "write %%kernel a@THREADS=64"),
        ("%%kernel a@THREADS=many\n//", ProblemError, "'THREADS=many': write NAME=INTEGER"),
        ("%%kernel a --engin sim\n//", UsageError, "did you mean --engine?"),
        ("%%kernel 'a\n//", UsageError, "No closing quotation"),
        ("%kernel a", UsageError, "did you mean that instead?"),
        ("%convlab chek mine", UsageError, "did you mean check?"),
        ("%convlab check --sed 1", UsageError, "did you mean --seed?"),
        ("%convlab check mien", CatalogError, "did you mean mine?"),
        ("%convlab check mine square", ProblemError, "write --problem square"),
        ("%convlab check mine conv", ProblemError, "conv is a problem: write --problem conv"),
        (
            "%convlab check mine@TILE=8 --problem square",
            ProblemError,
            "has no tunable TILE; it has: THREADS",
        ),
        ("%convlab sweep mine THREADS=8,x", ProblemError, "write NAME=8,16, whole numbers"),
    ],
)
def test_invalid_arguments(run: Run, cell: str, error: type, message: str) -> None:
    done = run(cell)
    assert isinstance(done.error_in_exec, error)
    assert message in done.shown and "Traceback" not in done.shown


def test_results_are_values(run: Run, shell: InteractiveShell, tmp_path: Path) -> None:
    report = run(f"r = %convlab check mine --problem conv --plot {tmp_path}/where.png\nr").result
    assert (tmp_path / "where.png").stat().st_size > 1000
    assert isinstance(report, convlab.check(shell.user_ns["mine"], SMALL).__class__)
    assert report.ok and report.kernel == "mine" and report.problem == convlab.problem(SMALL)
    reports = run(f"%convlab check mine 01_direct --problem {SMALL} --engine sim").result
    assert isinstance(reports, Results) and [r.kernel for r in reports] == ["mine", "01_direct"]
    assert reports._repr_html_().count("mine") == 1
    assert run(f"%convlab ab mine mine@THREADS=64 --problem {SMALL}").result.ok
    compared = run(f"%convlab compare mine tuned --problem {SMALL}").result
    assert list(compared.frame["kernel"]) == ["mine", "tuned@THREADS=64"]
    assert run(f"%convlab inspect mine --engine sim --problem {SMALL}").result.kernel == "mine"
    swept = run(f"%convlab sweep mine THREADS=64,128 --problem {SMALL}").result
    assert len(swept.frame) == 2 and swept.ok


def test_help_and_lists(run: Run) -> None:
    for line in ("%convlab", "%convlab --help", "%convlab ab --help"):
        done = run(line)
        assert done.success and done.result is None and "usage: %convlab" in done.shown
    assert "03_smem_tile" in run("%convlab list").shown
    assert "torch" in run("%convlab doctor").shown


completes = pytest.mark.skipif(
    not hasattr(completer, "context_matcher"), reason="needs IPython 8.6 for its matchers"
)


@completes
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%convlab c", {"cache", "check", "compare"}),
        ("%convlab check mi", {"mine"}),
        ("r = %convlab check mine --se", {"--seed", "--setting"}),
        ("%convlab check --engine ", {"auto", "cuda", "sim"}),
        ("%convlab check mine --problem sq", {"square"}),
        ("%convlab check mine sq", set()),
        ("%convlab check --setting z", {"zeros"}),
        ("%convlab check --problem rec", {"rect"}),
        ("%convlab ab mine cudnn:t", {"cudnn:tf32", "cudnn:tf32:channels_last"}),
        ("%convlab sweep mine TH", {"THREADS="}),
        ("%convlab check mine@TH", {"mine@THREADS="}),
        ("import convlab\n%convlab compare 01_", {"01_direct"}),
        ("import convlab\n%convlab compare 01c", {"01c_smem_input"}),
        ("%%kernel mine --e", {"--engine"}),
    ],
)
def test_completion(shell: InteractiveShell, text: str, expected: set[str]) -> None:
    with provisionalcompleter():
        completions = list(shell.Completer.completions(text, len(text)))
    assert {each.text for each in completions} == expected
    assert all(text[each.start : each.end] == text.split(" ")[-1] for each in completions)


@completes
def test_loading_twice_completes_once(shell: InteractiveShell, run: Run) -> None:
    before = len(shell.Completer.custom_matchers)
    assert run("%reload_ext convlab").success
    assert len(shell.Completer.custom_matchers) == before


# --- Kernel.show ---------------------------------------------------------------------------------


def test_show_cuts_by_text_and_number() -> None:
    kernel = convlab.load("01_direct", engine="sim")
    lines = kernel.source.splitlines()
    whole = kernel.show()
    assert (whole.first, list(whole.lines)) == (1, lines)
    start = line_of(kernel.source, "const int q =")
    stop = line_of(kernel.source, "g_y[i] =")
    cut = kernel.show("const int q =", "g_y[i] =")
    assert (cut.first, list(cut.lines)) == (start, lines[start - 1 : stop])
    assert kernel.show(start, stop) == cut
    assert kernel.show("const int q =").lines == (lines[start - 1],)
    assert kernel.show(last=2).lines == tuple(lines[:2])
    assert str(cut).splitlines()[0] == f"{start}  {lines[start - 1]}"
    # The form for a notebook.
    page = cut._repr_html_()
    text = re.sub(r"<[^>]*>", "", page)
    assert "kernels/01_direct.cu" in text and all(f"{n}  " in text for n in range(start, stop + 1))
    assert len(page.splitlines()) == 1 + len(cut.lines)
    assert "color:" in page and "r &lt; conv.R" in text


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (["const int qq ="], r"contains 'const int qq ='; similar lines are\n  \d+: const"),
        ([9999], r"has no line 9999: choose a line from 1 to \d+"),
        ([10, 3], "the last line, 3, is before the first line, 10"),
        ([60, "// title"], r"01_direct\.cu from line 60 on contains '// title'"),
    ],
)
def test_show_says_what_is_there(places: list, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        convlab.load("01_direct", engine="sim").show(*places)


# --- in a running notebook kernel ----------------------------------------------------------------


class Notebook:
    """A Jupyter kernel with this interpreter, which runs cells like a front end."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager()
        self.manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="Python 3",
            language="python",
        )
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, cell: str, interrupt: Callable[[dict], bool] | None = None) -> list[dict]:
        """Run a cell; interrupt it when a condition on its latest message becomes true."""
        # With stop_on_error the next cell may be dropped.
        request = self.client.execute(cell, stop_on_error=False)
        outputs = []
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                message = {"parent_header": {}, "content": {}, "msg_type": ""}
            content = message["content"]
            if interrupt is not None and interrupt(message):
                # Much more time than necessary.
                interrupt = None
                end = time.monotonic() + 15
                self.manager.interrupt_kernel()
            if message["parent_header"].get("msg_id") != request:
                continue
            if content.get("execution_state") == "idle":
                return outputs
            if message["msg_type"] in ("stream", "error", "display_data", "update_display_data"):
                outputs.append({"type": message["msg_type"], **content})
        raise AssertionError(f"the cell did not end: {outputs}")

    def printed(self, cell: str) -> str:
        """Run a cell that must not fail; return its output on both streams."""
        outputs = self.run(cell)
        assert "error" not in {out["type"] for out in outputs}, outputs
        return "".join(out["text"] for out in outputs if out["type"] == "stream")

    def children(self, command: str) -> bool:
        """Return whether a descendant of this kernel runs a command, or a simulated launch.

        Each host of the simulator consists of two processes, a parent and its child, that wait for
        requests. A launch is a third process below them. Several hosts may wait.
        """
        wanted = 3 if command == "host.py" else 1
        todo = [(self.manager.provisioner.process.pid, 0)]
        while todo:
            pid, above = todo.pop()
            with contextlib.suppress(OSError):
                above += command in Path(f"/proc/{pid}/cmdline").read_text()
                if above >= wanted:
                    return True
                for children in Path(f"/proc/{pid}/task").glob("*/children"):
                    todo += [(int(child), above) for child in children.read_text().split()]
        return False

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """Yield a notebook with the extension and a kernel ``mine`` that was not built before."""
    notebook = Notebook(KERNEL_DIR.parent)
    assert notebook.printed("%load_ext convlab\nimport torch, convlab") == ""
    new = f"// {time.time_ns()}\n"
    assert notebook.printed("%%kernel mine --engine sim\n" + DIRECT + new) == ""
    assert notebook.printed("x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)") == ""
    yield notebook
    notebook.stop()


def test_an_error_fails_the_cell_and_is_short(notebook: Notebook) -> None:
    (error,) = (out for out in notebook.run("%%kernel bad\nint x = y;") if out["type"] == "error")
    assert error["ename"] == "BuildError"
    text = re.sub(r"\x1b\[\d+m", "", "\n".join(error["traceback"]))
    assert text.startswith("BuildError: bad.cu did not compile\nbad.cu:2: ")
    assert notebook.printed("print(mine(x, w).sum().item())") == "36.0\n"


def test_progress_leaves_nothing_behind(notebook: Notebook) -> None:
    outputs = notebook.run("ok = convlab.check(mine, 'awkward').ok; assert ok")
    assert {out["type"] for out in outputs} == {"display_data", "update_display_data"}
    bars = [out["data"] for out in outputs]
    assert "0%|" in bars[0]["text/plain"] and "mine" in bars[0]["text/plain"]
    assert bars[-1] == {"text/plain": ""}


@pytest.mark.parametrize("engine", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_printf_appears_once(notebook: Notebook, engine: str) -> None:
    prints = DIRECT.replace("g_y[i] =", 'if (i < 2) printf("output %d\\n", int(i));\n    g_y[i] =')
    assert notebook.printed(f"%%kernel prints --engine {engine}\n" + prints) == ""
    # On a GPU the first call has a rehearsal in the worker, whose output must not appear.
    for _ in range(2):
        text = "y = prints(x.to(prints.device), w.to(prints.device))"
        assert notebook.printed(text) == "output 0\noutput 1\n"


def test_what_c_prints_reaches_pythons_output(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.synchronize", lambda: ctypes.CDLL(None).puts(b"from C"))
    with cuda._printed():
        pass
    assert capsys.readouterr().out == "from C\n"


# This keeps a compiler busy for seconds.
BUSY = """
constexpr long busy(int n) {
    long sum = 0;
    for (int i = 0; i < n; ++i) for (int j = 0; j < 100000; ++j) sum += j;
    return sum;
}
static_assert(busy(12) > 0);
"""
INTERRUPTED = {
    "simulated_run": ("y = endless(x, w)", "host.py"),
    "check": ("%convlab check mine", "%|"),
    "compare": ("convlab.compare(engine='sim')", "%|"),
    "build": (f"convlab.compile(mine.source + {BUSY!r}, engine='sim')", "cc1plus"),
    "sweep": ("convlab.sweep(mine, {'THREADS': [*range(32, 992, 32)]}, engine='sim')", "cc1plus"),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interrupt_ends_a_cell_at_once(notebook: Notebook, name: str) -> None:
    cell, sign = INTERRUPTED[name]
    if name == "simulated_run":
        endless = DIRECT.replace("g_y[i] =", 'while (conv.N) asm volatile("");\n    g_y[i] =')
        assert notebook.printed("%%kernel endless --engine sim\n" + endless) == ""

    def begun(message: dict) -> bool:
        if sign == "%|":
            return sign in message["content"].get("data", {}).get("text/plain", "")
        return notebook.children(sign)

    outputs = notebook.run(cell, begun)
    failed = [out["ename"] for out in outputs if out["type"] == "error"]
    shown = "".join(out.get("text", "") for out in outputs)
    assert failed == ["KeyboardInterrupt"] or "KeyboardInterrupt" in shown, outputs
    assert notebook.printed("print(mine(x, w).sum().item())") == "36.0\n"
    # Compilers in other threads may still run for a moment.
    end = time.monotonic() + 30
    while notebook.children(sign) and time.monotonic() < end:
        assert notebook.printed("") == ""
    assert not notebook.children(sign)
