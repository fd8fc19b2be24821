"""A real headless Chromium for tests of pages, driven through its own driver; nothing is downloaded."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
_DRAW_SECONDS = 60.0
_STATES = "return Array.from(document.querySelectorAll('.plot')).map(plot => plot.dataset.state || '')"


class Page:
    """A page that is open in the browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def ask(self, expression: str) -> object:
        """The value of a JavaScript expression."""
        answer: object = self._driver.execute_script(f"return {expression}")
        return answer

    def wait_for(self, expression: str) -> bool:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + _DRAW_SECONDS
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"{expression} stays {self.ask(expression)}"
            time.sleep(0.05)
        return True

    def resize(self, width: int, height: int) -> None:
        """Give the page a window of that size in CSS pixels, below the browser's own minimum too."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Let the reader prefer a light or dark scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def draw_all(self, width: int) -> list[str]:
        """Open every study, and make the window as high as the page, which brings every plot into view.

        Returns:
            the plots' states in the end.
        """
        self._driver.execute_script("document.querySelectorAll('details').forEach(study => { study.open = true; })")
        self.resize(width, 900)
        self.resize(width, int(str(self.ask("document.documentElement.scrollHeight"))))
        deadline = time.monotonic() + _DRAW_SECONDS
        states: list[str] = self._driver.execute_script(_STATES)
        while time.monotonic() < deadline and not all(state in ("drawn", "failed") for state in states):
            time.sleep(0.1)
            states = self._driver.execute_script(_STATES)
        return states

    def follow(self, place: str) -> None:
        """Click on the first link to a place on the page."""
        # By script: the page may still be scrolling to where the last click led.
        self._driver.execute_script(f"document.querySelector('a[href=\"#{place}\"]').click()")

    def print(self) -> bytes:
        """The page as a PDF, as the browser prints it."""
        printed: dict[str, str] = self._driver.execute_cdp_cmd("Page.printToPDF", {})
        return base64.b64decode(printed["data"])

    def screenshot(self, file: Path) -> None:
        """Write what the window shows as a PNG."""
        self._driver.save_screenshot(str(file))

    def complaints(self) -> list[str]:
        """What the browser's console has had to say since it was asked the last time."""
        return [entry["message"] for entry in self._driver.get_log("browser")]  # type: ignore[no-untyped-call]


class Chromium:
    """A running browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def open(self, file: Path, place: str = "") -> Page:
        """Open a file, at a place of the page, in a window of 1280 by 700 that prefers a light scheme."""
        page = Page(self._driver)
        page.resize(1280, 700)
        page.prefer("light")
        self._driver.get("about:blank")  # else the same page at another place is not opened again
        self._driver.get(file.as_uri() + (f"#{place}" if place else ""))
        return page


@contextmanager
def running_chromium(profile: Path) -> Iterator[Chromium]:
    """A browser with a new profile in that folder; the test skips where Chromium or its driver is missing."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    options = Options()
    options.binary_location = browser
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Chromium(running)
    finally:
        running.quit()
