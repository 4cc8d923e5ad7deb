"""Step through a block: the steps, what is pending, the page, and the page in a browser."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import convlab
from convlab.core.errors import ConvlabError, ProblemError
from convlab.core.kernel.catalog import names
from convlab.stepping.pending import add_pending
from convlab.stepping.playback import MOST_KB, _compact
from convlab.stepping.steps import first_of_each, in_order

TILE = "N=1,C=4,H=12,W=34,K=8,R=3,S=3"
# Each rung is shown on the first of these problems that it supports.
TINY = (
    "N=1,C=8,H=10,W=12,K=16,R=3,S=3,padding=1",
    "N=1,C=32,H=8,W=16,K=64,R=3,S=3,padding=1",
    "N=1,C=32,H=8,W=16,K=64,R=1,S=1",
    "N=1,C=64,H=8,W=8,K=128,R=1,S=1",
    "N=1,C=8,H=10,W=12,K=8,R=3,S=3,padding=1,groups=8",
    "N=1,C=32,H=10,W=12,K=32,R=3,S=3,padding=1,groups=32",
    "N=1,C=16,H=10,W=12,K=16,R=3,S=3,padding=1,groups=4",
    "N=1,C=3,H=20,W=20,K=64,R=7,S=7,stride=2,padding=3",
)


def step(kind: str, warp: int = 0, space: str = "", **more: Any) -> dict[str, Any]:
    """Return a recorded execution."""
    own = {"launch": 0, "file": "a.cu", "line": 1, "space": space, "kind": kind, "array": ""}
    own |= {"element": 4, "bytes": 4, "warp": warp, "lanes": dict.fromkeys(range(32), 0)}
    if not space:
        own |= {"details": {}, "number": 0}
    return own | more


def data_of(page: str) -> dict[str, Any]:
    """Return the data in a page."""
    return json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1])


@pytest.mark.pure
def test_the_order_respects_barriers_between_warps() -> None:
    executions = [
        step("store", 0, "shared"),
        step("__syncthreads", 0, number=0),
        step("load", 0, "shared"),
        step("store", 1, "shared"),
        step("__syncthreads", 1, number=1),
        step("load", 1, "shared"),
        step("__syncthreads", 0, number=2),
    ]
    ordered = [(s["kind"], s["warp"]) for s in in_order(executions)]
    assert ordered.index(("store", 1)) < ordered.index(("__syncthreads", 1))
    assert ordered.index(("store", 1)) < ordered.index(("load", 0))
    assert ordered[-1] == ("__syncthreads", 0)


@pytest.mark.pure
def test_a_sample_has_the_first_executions_of_each_line() -> None:
    steps = in_order([step("load", 0, "shared", line=line) for line in (1, 2, 1, 1)])
    assert [(s["line"], s["execution"]) for s in first_of_each(steps, 2)] == [
        (1, 0),
        (2, 0),
        (1, 1),
    ]


@pytest.mark.pure
def test_groups_of_copies_are_pending_until_the_wait() -> None:
    copy = step("cp.async", details={"bytes": "16"})
    wait = step("cp.async wait", details={"newest": "1"})
    steps = [copy, step("cp.async commit"), copy, step("cp.async commit"), wait, copy]
    steps = [dict(s) for s in steps]
    add_pending(steps)
    seen = [s["pending"]["copies"] for s in steps]
    assert seen[0] == ["not committed: 512 B"]
    assert seen[3] == ["committed: 512 B", "committed: 512 B"]
    assert seen[4] == ["committed: 512 B"]
    assert seen[5] == ["committed: 512 B", "not committed: 512 B"]


@pytest.mark.pure
def test_a_bulk_load_is_pending_until_its_phase_was_waited_for() -> None:
    state = {"barrier": "s_full:0", "phase": "0", "arrivals": "1", "missing": "0"}
    expect = step("mbarrier expect", details=state | {"missing_bytes": "64"})
    more = {"to": "s_x:0", "bytes": "64", "now": "1", "missing": "1", "missing_bytes": "0"}
    load = step("bulk load", details=state | more)
    wait = step(
        "mbarrier wait", details=state | {"phase": "1", "missing": "1", "missing_bytes": "0"}
    )
    steps = [expect, load, wait]
    add_pending(steps)
    assert steps[0]["pending"]["mbarriers"]["s_full:0"]["bytes"] == 64
    assert steps[1]["pending"]["mbarriers"]["s_full:0"]["phase"] == 1
    assert steps[1]["pending"]["bulk"] == ["64 B to s_x, until phase 0 of s_full:0 ends"]
    assert steps[2]["pending"]["bulk"] == []
    assert steps[2]["pending"]["mbarriers"]["s_full:0"]["phase"] == 1


@pytest.mark.pure
@pytest.mark.parametrize(
    ("lanes", "expected"),
    [({0: 4, 1: 8, 2: 12}, [7, 4, 4]), ({1: 4}, [2, 4, 0]), ({0: 0, 1: 4, 3: 0}, [11, 0, 4, -4])],
)
def test_lanes_are_written_in_few_numbers(lanes: dict[int, int], expected: list[int]) -> None:
    assert _compact(step("load", 0, "shared", lanes=lanes)) == expected


def test_steps_agree_with_the_counters() -> None:
    played = convlab.play("03_smem_tile", TILE, warp=1)
    access = [s for s in played.steps if s["space"]]
    assert {s["warp"] for s in played.steps} == {1}
    # The block passes two barriers for each of its C / c_tile steps.
    barriers = sum(s["kind"] == "__syncthreads" for s in played.steps)
    assert barriers > 0 and barriers % 2 == 0
    assert played.steps[-1]["pending"]["barriers"] == barriers
    frame_rows = sum(len(s["lanes"]) for s in access)
    from convlab.profile.warp_accesses import accesses

    assert len(accesses("03_smem_tile", TILE, warp=1)) == frame_rows


@pytest.mark.parametrize("kernel", names())
def test_each_rung_gives_a_page_of_at_most_2_mb(kernel: str) -> None:
    loaded = convlab.load(kernel, engine="sim")
    tiny = next(problem for problem in TINY if _supports(loaded, problem))
    played = convlab.play(loaded, tiny)
    page = played.html()
    assert len(page.encode()) <= 1000 * MOST_KB
    data = data_of(page)
    assert data["steps"] and data["kernel"] == loaded.name
    # Every step has a source line, and every file is in the page.
    lines = sum(step[2] > 0 for step in data["steps"])
    assert lines > 0.9 * len(data["steps"])
    assert "http" not in page.replace("http://www.w3.org", "")


def _supports(kernel: convlab.Kernel, problem: str) -> bool:
    try:
        kernel.accept(kernel.asked(convlab.problem(problem)))
    except ConvlabError:
        return False
    return True


def test_a_small_page_says_that_it_is_a_sample() -> None:
    played = convlab.play("03_smem_tile", TILE, most_kb=60)
    page = played.html()
    assert len(page.encode()) <= 60_000
    assert f"of {len(played.steps):,} steps" in data_of(page)["notes"][0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"block": (9, 0, 0)}, "its grid is"),
        ({"block": (0, 0, 0, 0)}, "give it as x, or as"),
        ({"warp": 99}, "give a number below"),
        ({"launch": 5}, "its launches are"),
        ({"most_kb": 1}, "most_kb"),
    ],
)
def test_errors_say_what_to_give(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ProblemError, match=text):
        convlab.play("03_smem_tile", TILE, **options)


def test_widget_draws_a_step() -> None:
    pytest.importorskip("ipywidgets")
    played = convlab.play("03_smem_tile", TILE, warp=0)
    box = played.widget()
    assert box.children[0].max == len(played.steps) - 1
    assert played.draw(0) is not None


@pytest.fixture
def chrome() -> Iterator[Any]:
    """Start a headless browser; without one the test is skipped, or fails where it is required."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        if os.environ.get("CONVLAB_BROWSER_REQUIRED"):
            pytest.fail("no Chromium with its driver: apt-get install chromium chromium-driver")
        pytest.skip("no Chromium with its driver")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    chrome = Chrome(options=options, service=ChromeService(driver))
    # Seconds to look for an element: a frame is loaded when it comes into view.
    chrome.implicitly_wait(10)
    yield chrome
    chrome.quit()


@pytest.mark.xdist_group("browser")
def test_the_page_in_a_browser(chrome: Any, tmp_path: Path) -> None:
    from selenium.webdriver import Keys
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    page = convlab.play("11_wgmma_tf32", TINY[1]).save(tmp_path / "page.html")
    chrome.get(page.as_uri())
    says = lambda: chrome.find_element(By.ID, "says").text
    body = chrome.find_element(By.TAG_NAME, "body")
    assert says().startswith("Step 1 of")
    body.send_keys(Keys.ARROW_RIGHT)
    assert says().startswith("Step 2 of")
    body.send_keys(Keys.END)
    last = re.match(r"Step ([\d,]+) of ([\d,]+)", says())
    assert last[1] == last[2]
    body.send_keys(Keys.HOME)
    # The first warp multiplies; the copies are another's. The keys then do nothing.
    Select(chrome.find_element(By.ID, "kinds")).select_by_value("other bulk load")
    assert re.match(r"Warp 0 has no step of this kind\. Choose one of the warps \d", says())
    body.send_keys(Keys.ARROW_RIGHT, Keys.END)
    Select(chrome.find_element(By.ID, "warps")).select_by_value("")
    assert "bulk load" in says()
    assert "mbarrier" in chrome.find_element(By.ID, "pending").text
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#source .now")) == 1
    Select(chrome.find_element(By.ID, "kinds")).select_by_value("shared load")
    drawing = chrome.find_element(By.CSS_SELECTOR, "#map svg")
    assert drawing.get_attribute("aria-label").startswith("Shared memory: ")
    assert not [e for e in chrome.get_log("browser") if e["level"] == "SEVERE"]
    assert chrome.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    if folder := os.environ.get("CONVLAB_SCREENSHOTS"):
        chrome.save_screenshot(str(Path(folder) / "play.png"))


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("name", ["03_smem_tile", "10c_stages"])
def test_the_figures_of_the_notebooks_work_without_a_kernel(
    chrome: Any, tmp_path: Path, name: str
) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    from selenium.webdriver import Keys
    from selenium.webdriver.common.by import By

    page = tmp_path / f"{name}.html"
    path = Path(__file__).resolve().parents[2] / "notebooks" / f"{name}.ipynb"
    page.write_text(nbconvert.HTMLExporter().from_filename(str(path))[0])
    chrome.get(page.as_uri())
    frame = chrome.find_element(By.CSS_SELECTOR, 'iframe[title^="Step through"]')
    chrome.execute_script("arguments[0].scrollIntoView()", frame)
    chrome.switch_to.frame(frame)
    says = lambda: chrome.find_element(By.ID, "says").text
    assert says().startswith("Step 1 of")
    # The keys go to the frame after a click into it.
    chrome.find_element(By.ID, "says").click()
    chrome.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
    assert says().startswith("Step 2 of")
