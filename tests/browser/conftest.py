"""A real browser, where there is one: Debian's chromium, without a window."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Browser:
    """A tab of a browser."""

    driver: Any

    def open(
        self, path: Path, *, width: int = 1280, dark: bool = False, fragment: str = ""
    ) -> None:
        """Open a file, and forget what was logged before."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri() + fragment)

    def js(self, script: str, *args: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *args)

    def all(self, selector: str) -> list[Any]:
        """Elements by a CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        """The first element of a CSS selector."""
        return self.driver.find_element("css selector", selector)

    def rows(self) -> list[str]:
        """The names of the kernels that the table shows, in order."""
        return self.js(
            "return [...document.querySelectorAll('#matrix tbody tr')].filter(r => !r.hidden)"
            ".map(r => r.querySelector('th').textContent)"
        )

    def until(self, script: str, value: Any, seconds: float = 5.0) -> None:
        """Wait until a script returns a value."""
        end = time.monotonic() + seconds
        while (found := self.js(script)) != value:
            assert time.monotonic() < end, f"{script}: {found!r}, not {value!r}"
            time.sleep(0.02)

    def console(self) -> list[dict[str, Any]]:
        """What the page wrote to the console, errors and refusals included."""
        return self.driver.get_log("browser")

    def requests(self) -> list[str]:
        """What was fetched."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; skipped with a reason where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no chromium with its chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    # In containers the tests are root's, and shared memory is small.
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    yield Browser(driver)
    driver.quit()
