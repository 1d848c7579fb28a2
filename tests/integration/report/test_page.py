"""The page in a real browser: Chromium through its driver."""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.integration.needs import needs
from tests.unit.report.report_samples import (
    AT,
    SUITE,
    VENV_HOST,
    default_cells,
    every_verdict,
)
from torchproof.report import make_report, merge, write_reports
from torchproof.report.models import ReportModel

pytestmark = needs("chromium")

ROOT = Path(__file__).resolve().parents[3]
VERIFIED = "cell-2.9.1-cu128-py311"


@pytest.fixture(scope="module")
def picture() -> Any:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def driver(picture: Any) -> Iterator[Any]:
    browser = picture.browser()
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    venv = make_report(default_cells(VENV_HOST), host=VENV_HOST, suite_hash=SUITE, generated_at=AT)
    write_reports(folder, merge([every_verdict(), venv]))
    return folder / "index.html"


def show(picture: Any, driver: Any, page: Path, width: int, *, dark: bool = False) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    driver.get("about:blank")
    picture.show(driver, page, width, 900, width < 500)


def open_everything(driver: Any) -> None:
    driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")


@pytest.mark.parametrize("width", [320, 360, 480, 768, 1024, 1440])
def test_the_page_never_scrolls_sideways(picture: Any, driver: Any, page: Path, width: int) -> None:
    show(picture, driver, page, width)
    open_everything(driver)
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width


def test_a_card_opens_its_evidence(picture: Any, driver: Any, page: Path) -> None:
    show(picture, driver, page, 1280)
    details = driver.find_element("css selector", f"[id='{VERIFIED}'] > details")
    assert details.get_attribute("open") is None
    driver.find_element("css selector", f"a.card[href='#{VERIFIED}']").click()
    assert details.get_attribute("open") is not None
    text = details.text
    for words in ("sha256:", "570.172.08", "2 × NVIDIA H200", "docker 28.3.3", "ddp_step"):
        assert words in text


def test_the_keyboard_reaches_a_card_and_opens_it(picture: Any, driver: Any, page: Path) -> None:
    show(picture, driver, page, 1280)
    card = driver.find_element("css selector", f"a.card[href='#{VERIFIED}']")
    card.send_keys(Keys.ENTER)
    opened = driver.find_element("css selector", f"[id='{VERIFIED}'] > details")
    assert opened.get_attribute("open") is not None


def test_a_details_line_opens_without_any_script(picture: Any, driver: Any, page: Path) -> None:
    driver.get("about:blank")
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        picture.show(driver, page, 1280, 900, False)
        details = driver.find_element("css selector", f"[id='{VERIFIED}'] > details")
        details.find_element("css selector", "summary").send_keys(Keys.ENTER)
        assert details.get_attribute("open") is not None
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_tile_hides_the_cells_of_its_verdict(picture: Any, driver: Any, page: Path) -> None:
    show(picture, driver, page, 1280)
    card = driver.find_element("css selector", f"a.card[href='#{VERIFIED}']")
    assert card.is_displayed()
    driver.find_element("css selector", "label.tile.verified").click()
    assert not card.is_displayed()


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(picture: Any, driver: Any, page: Path, dark: bool) -> None:
    show(picture, driver, page, 1280, dark=dark)
    open_everything(driver)
    poor = driver.execute_script(CONTRAST)
    assert poor == []


def test_the_browser_finds_no_fault_and_makes_no_request(
    picture: Any, driver: Any, tmp_path: Path
) -> None:
    write_reports(tmp_path, every_verdict())
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    serve = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver.get(f"http://127.0.0.1:{server.server_port}/index.html")
        loaded = driver.execute_script(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
        )
        server.shutdown()
    assert asked == ["/index.html"]
    assert loaded == []
    assert [entry["message"] for entry in driver.get_log("browser")] == []


def test_text_of_a_probe_runs_nothing(picture: Any, driver: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    data = every_verdict().model_dump(mode="json", by_alias=True)
    for cell in data["cells"]:
        cell["reason"] = cell["fix"] = cell["source"] = evil
        for probe in cell["probes"]:
            probe |= {"message": evil, "fix": evil, "code": evil, "metrics": {evil: evil}}
        for finding in cell["audit"]:
            finding |= {"message": evil, "where": evil, "fix": evil, "rule": evil}
    write_reports(tmp_path, ReportModel.model_validate(data))
    show(picture, driver, tmp_path / "index.html", 1280)
    open_everything(driver)
    assert driver.title.startswith("torchproof")
    assert driver.find_elements("css selector", "img") == []


def test_print_shows_all_evidence(picture: Any, driver: Any, page: Path, tmp_path: Path) -> None:
    show(picture, driver, page, 1280)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        digest = driver.find_element("css selector", f"[id='{VERIFIED}'] .body code")
        assert driver.execute_script("return arguments[0].checkVisibility()", digest)
        pdf = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert len(base64.b64decode(pdf["data"])) > 100_000


def test_everything_has_a_name_for_a_screen_reader(picture: Any, driver: Any, page: Path) -> None:
    show(picture, driver, page, 1280)
    unnamed = driver.execute_script(
        """return [...document.querySelectorAll('a, button, summary, input, [role=region]')]
        .filter((one) => !(one.textContent.trim() || one.ariaLabel
            || one.getAttribute('aria-labelledby')))
        .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    ids = driver.execute_script("return [...document.querySelectorAll('[id]')].map((o) => o.id)")
    assert len(ids) == len(set(ids))


CONTRAST = """
const parse = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
const over = (top, below) => {
  const a = top.length > 3 ? top[3] : 1;
  return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a));
};
const light = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  const chain = [];
  for (let one = element; one; one = one.parentElement) chain.unshift(one);
  return chain.reduce((below, one) => {
    const color = parse(getComputedStyle(one).backgroundColor);
    return color.length ? over(color, below) : below;
  }, [255, 255, 255]);
};
const poor = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
  if (['SCRIPT', 'STYLE'].includes(element.tagName) || element.closest('.shared')) continue;
  const below = ground(element);
  const color = over(parse(getComputedStyle(element).color), below);
  const [a, b] = [light(color), light(below)].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) poor.push([element.className, walker.currentNode.data.trim(), ratio]);
}
return poor;
"""
