"""Take the README's pictures of a report: `python docs/picture.py [reports/index.html]`.

Writes docs/report.png (wide) and docs/report-phone.png (360 px) with the system's Chromium.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from selenium import webdriver

DOCS = Path(__file__).resolve().parent
VIEWS = {"report.png": (1280, 1150, False), "report-phone.png": (360, 780, True)}
"""Name of the picture → width, height, and whether it is a phone."""


def browser() -> webdriver.Chrome:
    """Start a headless Chromium that asks no network for anything."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=service)


def show(driver: webdriver.Chrome, page: Path, width: int, height: int, phone: bool) -> None:
    """Open a page at a size in CSS pixels, whatever size a window may have."""
    size = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": phone}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.resolve().as_uri())


def main() -> None:
    """Take every picture."""
    page = Path(sys.argv[1] if len(sys.argv) > 1 else DOCS.parent / "reports" / "index.html")
    driver = browser()
    try:
        for name, view in VIEWS.items():
            show(driver, page, *view)
            picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            (DOCS / name).write_bytes(base64.b64decode(picture["data"]))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
