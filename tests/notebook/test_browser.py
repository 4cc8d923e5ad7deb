"""A real JupyterLab, used through headless Chromium as a reader uses it.

The tests need Chromium and its driver (Debian: ``apt-get install chromium chromium-driver``).
Without them the tests are skipped. If CONVLAB_BROWSER_REQUIRED is set, as in CI, they fail.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.notebook.smaller import INSTEAD

REPOSITORY = Path(__file__).resolve().parents[2]
# The contrast of text and background: WCAG 2.1, success criterion 1.4.3.
CONTRAST = 4.5
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--window-size=1400,1000"
)
TRACKER = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
OUTPUT = ".jp-OutputArea-output"
# 00_start simulates even less here than in test_notebooks.py.
SMALLER = INSTEAD["00_start"] | {
    '"N=1,C=8,H=34,W=34,K=64,R=3,S=3"': '"N=1,C=2,H=10,W=10,K=4,R=3,S=3"',
    'compare("all", conv)': 'compare(["01_direct", "03_smem_tile"], conv)',
}

# The scripts that run in the page, by name.
PAGE = Path(__file__).with_name("page.js").read_text()
SCRIPTS = dict(re.findall(r"^// (\w+): .*\n((?:(?!//).*\n)*)", PAGE, re.MULTILINE))

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def tools() -> tuple[str, str]:
    """Find the browser and its driver."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        text = "no Chromium with its driver: apt-get install chromium chromium-driver"
        if os.environ.get("CONVLAB_BROWSER_REQUIRED"):
            pytest.fail(text)
        pytest.skip(text)
    return browser, driver


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a checkout with notebooks without outputs."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("convlab", "kernels"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "notebooks").mkdir()
    start = nbformat.read(REPOSITORY / "notebooks" / "00_start.ipynb", as_version=4)
    for cell in start.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    text = nbformat.writes(start)
    for old, new in SMALLER.items():
        old, new = (json.dumps(part)[1:-1] for part in (old, new))
        assert old in text
        text = text.replace(old, new)
    (folder / "notebooks" / "00_start.ipynb").write_text(text)
    source = (REPOSITORY / "kernels" / "01_direct.cu").read_text()
    code = nbformat.v4.new_code_cell
    edited = nbformat.v4.new_notebook(
        cells=[
            code('import sys\n\nsys.path.insert(0, "..")\n%load_ext convlab'),
            code(f"%%kernel mine --engine sim\n{source.rstrip()}"),
            code('r = %convlab check mine --problem "N=1,C=2,H=9,W=9,K=3,R=3,S=3"\nprint(r)'),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(edited, folder / "notebooks" / "edited.ipynb")
    guessed = nbformat.v4.new_notebook(
        cells=[
            code('import sys\n\nsys.path.insert(0, "..")\nimport convlab'),
            code('convlab.guess("sectors of a load", 4321)'),
            code("convlab.guesses()"),
        ],
        metadata=edited.metadata,
    )
    nbformat.write(guessed, folder / "notebooks" / "guessed.ipynb")
    # The first puzzle, with its marker and the table.
    whole = nbformat.read(REPOSITORY / "notebooks" / "puzzles.ipynb", as_version=4)
    parts = ("from puzzles.marking import", 'guard = """', 'mark("01_guard"', "table()")
    cells = [
        code(next(cell.source for cell in whole.cells if part in cell.source)) for part in parts
    ]
    solved = nbformat.v4.new_notebook(cells=cells, metadata=edited.metadata)
    nbformat.write(solved, folder / "notebooks" / "solved.ipynb")
    for name in ("puzzles", "puzzles.json"):
        (folder / "notebooks" / name).symlink_to(REPOSITORY / "notebooks" / name)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path, tools: tuple[str, str]) -> Iterator[str]:
    """Start JupyterLab with its own settings; yield its address with the token."""
    own = folder / "jupyter"
    settings = {
        # Render all cells, not only the visible ones, so that the test can read them.
        TRACKER: {"windowingMode": "none"},
        "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false"},
    }
    for name, values in settings.items():
        path = own / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    # The place where `pip install` puts the extension, in this server's own folder.
    (own / "data" / "labextensions").mkdir(parents=True)
    extension = REPOSITORY / "convlab" / "notebook" / "labextensions" / "convlab"
    (own / "data" / "labextensions" / "convlab").symlink_to(extension)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(own / "config"),
        "JUPYTER_DATA_DIR": str(own / "data"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        "IPYTHONDIR": str(own / "ipython"),
        # Use the simulator even if this machine has a GPU.
        "CUDA_VISIBLE_DEVICES": "",
    }
    log = (folder / "lab.log").open("w+")
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "notebooks/",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--port=0",
        "--expose-app-in-browser",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    server = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        yield until(lambda: _listening(server, own / "runtime", log.name), 60, "JupyterLab")
    finally:
        # The server ends its kernels.
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _listening(server: subprocess.Popen, runtime: Path, log: str) -> str | None:
    assert server.poll() is None, Path(log).read_text()[-3000:]
    for path in runtime.glob("jpserver-*.json"):
        try:
            about = json.loads(path.read_text())
        # JupyterLab is still writing the file.
        except json.JSONDecodeError:
            continue
        return f"{about['url']}lab/{{}}?token={about['token']}&reset"
    return None


def until(condition: Callable[[], object], seconds: float, what: str) -> object:
    """Return the first result that is not empty; fail after the time limit."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
    pytest.fail(f"waited {seconds} s for {what}")


@pytest.fixture(scope="module")
def lab(address: str, tools: tuple[str, str], folder: Path) -> Iterator["Lab"]:
    """Open a browser on JupyterLab."""
    options = ChromeOptions()
    options.binary_location = tools[0]
    for flag in [*FLAGS.split(), f"--user-data-dir={folder / 'profile'}"]:
        options.add_argument(flag)
    with Chrome(options=options, service=ChromeService(tools[1])) as driver:
        driver.set_script_timeout(60)
        yield Lab(driver, address)


class Lab:
    """The parts of JupyterLab in a browser that these tests use."""

    def __init__(self, driver: Chrome, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, name: str) -> None:
        """Open a notebook, and wait until its kernel is ready."""
        self.driver.get(self.address.format(f"tree/{name}"))
        self.wait(lambda: self.all(".jp-Notebook .jp-CodeCell"), 60, "the notebook")
        error = self.driver.execute_async_script(SCRIPTS["READY"], name)
        assert error is None, error

    def all(self, selector: str) -> list[WebElement]:
        """Return all elements that match a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> object:
        """Wait until a condition is true, and return its value."""
        waiting = WebDriverWait(self.driver, seconds, poll_frequency=0.1)
        return waiting.until(lambda _: condition(), f"waited {seconds} s for {what}")

    def menu(self, *path: str) -> None:
        """Choose from the main menu."""
        for kind, text in zip(("MenuBar", "Menu"), path, strict=True):
            label = f"//*[contains(@class, 'lm-{kind}-itemLabel')][text()='{text}']"
            find = functools.partial(self.driver.find_elements, By.XPATH, label)
            self.wait(find, 10, text)[0].click()

    def prompts(self) -> list[str]:
        """Return the prompt of each code cell: "[ ]:", "[*]:" or "[3]:"."""
        return self.driver.execute_script(
            "return [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
            ".map(node => node.textContent)"
        )

    def run_all(self, seconds: float) -> None:
        """Run all cells, and wait until each has its number."""
        self.menu("Run", "Run All Cells")

        def done() -> bool:
            errors = self.all('[data-mime-type="application/vnd.jupyter.error"]')
            assert not errors, errors[0].get_attribute("textContent")
            return all(text.strip("[]:").isdigit() for text in self.prompts())

        self.wait(done, seconds, "all cells")

    def outputs(self, cell: int) -> str:
        """Return the text of a code cell's outputs."""
        outputs = self.all(".jp-CodeCell")[cell].find_elements(By.CSS_SELECTOR, OUTPUT)
        return "\n".join(output.get_attribute("textContent") for output in outputs)

    def type_before(self, text: str, keys: str) -> None:
        """Type at the beginning of the line that contains a text, and run its cell."""
        lines = self.all(".jp-CodeCell .cm-line")
        next(line for line in lines if text in line.text).click()
        typing = ActionChains(self.driver).send_keys(Keys.HOME, keys)
        typing.key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()

    def theme(self, name: str, light: bool) -> None:
        """Change the colours."""
        self.driver.execute_async_script(
            "window.jupyterapp.commands.execute('apputils:change-theme', {theme: arguments[0]})"
            ".then(arguments[1])",
            name,
        )
        shown = f'body[data-jp-theme-light="{str(light).lower()}"]'
        self.wait(lambda: self.all(shown), 20, name)


def test_start_runs_and_is_legible(lab: Lab) -> None:
    lab.open("00_start.ipynb")
    assert set(lab.prompts()) == {"[ ]:"}
    lab.run_all(200)
    kinds = {node.get_attribute("data-mime-type") for node in lab.all(OUTPUT)}
    kinds |= {
        node.get_attribute("data-mime-type") for node in lab.all(f"{OUTPUT} [data-mime-type]")
    }
    assert "application/vnd.jupyter.error" not in kinds
    assert "application/vnd.jupyter.stderr" not in kinds
    assert any("01_direct" in table.text for table in lab.all(".jp-RenderedHTML table"))
    widths = [image.get_property("naturalWidth") for image in lab.all(".jp-RenderedImage img")]
    assert widths and min(widths) > 200
    for name, light in (("JupyterLab Light", True), ("JupyterLab Dark", False)):
        lab.theme(name, light)
        contrasts = lab.driver.execute_script(SCRIPTS["CONTRASTS"])
        assert len(contrasts) > 12
        assert min(contrast for _, contrast in contrasts) >= CONTRAST, (name, contrasts)


def test_a_kernel_cell_is_shown_as_cpp(lab: Lab) -> None:
    """It is Python again without its first line; the other cells are Python."""
    lab.open("edited.ipynb")

    def languages() -> list[str]:
        return lab.driver.execute_script(SCRIPTS["LANGUAGES"])

    lab.wait(lambda: languages() == ["python", "cpp", "python"], 20, "C++")
    assert "__global__" in lab.all(".jp-CodeCell")[1].text
    line = next(line for line in lab.all(".jp-CodeCell .cm-line") if "%%kernel" in line.text)
    line.click()
    ActionChains(lab.driver).send_keys(Keys.HOME, "# ").perform()
    lab.wait(lambda: languages() == ["python"] * 3, 10, "Python")
    ActionChains(lab.driver).send_keys(Keys.HOME, Keys.DELETE * 2).perform()
    lab.wait(lambda: languages() == ["python", "cpp", "python"], 10, "C++ again")


def test_a_mistake_in_a_kernel_cell_is_reported_at_its_line(lab: Lab, folder: Path) -> None:
    lab.open("edited.ipynb")
    lab.run_all(120)
    assert "mine: sim, built" in lab.outputs(1) and "correct" in lab.outputs(2)

    lab.type_before("g_y[i] =", "oops ")
    message = lab.wait(lambda: "error" in lab.outputs(1).lower() and lab.outputs(1), 30, "an error")
    cell = nbformat.read(folder / "notebooks" / "edited.ipynb", as_version=4).cells[1]
    at = next(i for i, line in enumerate(cell.source.splitlines(), 1) if "g_y[i] =" in line)
    assert message.startswith(f"BuildError: mine.cu did not compile\nmine.cu:{at}: ")
    assert "oops" in message and "Traceback" not in message

    lab.type_before("g_y[i] =", Keys.DELETE * len("oops "))
    lab.wait(lambda: "mine: sim, built" in lab.outputs(1), 30, "the corrected kernel")


def test_a_count_is_shown_after_a_guess(lab: Lab) -> None:
    lab.open("guessed.ipynb")
    lab.run_all(60)
    cell = lab.all(".jp-CodeCell")[1]
    (field,) = lab.wait(lambda: cell.find_elements(By.CSS_SELECTOR, "input"), 20, "the field")
    assert "sectors of a load" in lab.outputs(1) and "4,321" not in lab.outputs(1)
    field.send_keys("5,000", Keys.TAB)
    cell.find_element(By.CSS_SELECTOR, "button.widget-button").click()
    lab.wait(lambda: "it is 4,321: 15.7% too high" in lab.outputs(1), 60, "the count")
    lab.run_all(60)
    lab.wait(lambda: "5,000" in lab.outputs(2), 20, "the summary")


def test_a_puzzle_is_marked(lab: Lab) -> None:
    lab.open("solved.ipynb")
    lab.run_all(60)
    assert "Not yet: the gap is as it was" in lab.outputs(2)
    lab.type_before("// One line is missing here", "if (i >= conv.K * conv.P * conv.Q) return; ")
    lab.run_all(120)
    lab.wait(lambda: "Solved" in lab.outputs(2), 60, "the mark")
    assert "guard" in lab.outputs(3)
