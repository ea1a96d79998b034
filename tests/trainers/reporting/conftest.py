"""Fixtures: a headless Chromium, and runs to display in it."""

import base64
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.service import Service
from tests.trainers.kit import copy_of

from evert.trainers.rundir.folder import RunFolder

DESKTOP, PHONE = (1280, 900), (390, 844)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
ATTACK = (
    "</p><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
)


INSIDE = (
    "[...document.querySelectorAll('main *')].filter(e => {"
    "const {right, width} = e.getBoundingClientRect();"
    "return width && right > innerWidth && !e.closest('.wide, .uplot, select')}).length"
)
"""JavaScript that counts the elements extending beyond the right edge of the page."""


@pytest.fixture(scope="session")
def real_runs(finished: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run of three steps, and a copy with another learning rate in its record."""
    copy = copy_of(finished, tmp_path_factory.mktemp("runs") / "fast")
    about = copy.read_json("run.json") or {}
    about["settings"]["learning_rate"] = 0.125
    copy.write_json("run.json", about)
    return finished.path, copy.path


@pytest.fixture(scope="session")
def hostile_run(real_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a run in which every text is an attack."""
    name = ATTACK.replace("/", "\u2215")
    run = shutil.copytree(real_runs[0], tmp_path_factory.mktemp("hostile") / name)
    facts = json.loads((run / "run.json").read_text())
    facts |= {"name": ATTACK, "git": ATTACK, "command": [ATTACK]}
    facts["settings"] |= {ATTACK: ATTACK, "model_name": ATTACK}
    (run / "run.json").write_text(json.dumps(facts))

    def attacked(value: Any) -> Any:
        """Return a record with all its texts, and all keys of its logs, replaced by attacks."""
        if isinstance(value, dict):
            return {key: attacked(each) for key, each in value.items()}
        if isinstance(value, list):
            return [attacked(each) for each in value]
        return ATTACK if isinstance(value, str) and value not in ("train", "eval/test") else value

    for file in [
        *run.rglob("rollouts/*.jsonl"),
        *run.rglob("*summaries.jsonl"),
        run / "samples.jsonl",
    ]:
        rows = [attacked(json.loads(line)) for line in file.read_text().splitlines()]
        for each in rows:
            for step in each.get("steps", ()):
                step["logs"] |= {
                    ATTACK: ATTACK,
                    "long": "w" * 3000,
                    "drift": ATTACK,
                    "drift_at": ATTACK,
                }
                step["metrics"] |= {ATTACK: 1.0}
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    with (run / "batches.jsonl").open("a") as out:
        failures = {"kinds": {ATTACK: 3}, "found": [[{"kind": ATTACK, "error": ATTACK}, 3]]}
        out.write(json.dumps({"step": 9, "metrics": {}, "episodes": 3, **failures}) + "\n")
    return Path(run)


def until(happens: Callable[[], Any]) -> Any:
    """Wait until the value is truthy, and return it."""
    end, last = time.monotonic() + 240, None
    while time.monotonic() < end:
        try:
            if found := happens():
                return found
        except WebDriverException as error:  # the page is still being built
            last = error
        time.sleep(0.05)
    raise AssertionError("It did not happen in 240 s.") from last


class Browser:
    """Chromium, with access to its requests and console messages."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, page: str, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Open a page at a given size. The phone's size also emulates a phone."""
        self._go("about:blank")  # leave the previous page
        self.said()
        self.asked_for()
        metrics = {
            "width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE,
        }  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self._go(page)

    def _go(self, address: str) -> None:
        try:
            self._driver.get(address)
        except TimeoutException as error:
            if "aborted by navigation" not in str(error):  # navigation away from the previous page
                raise
            self.said()
            self.asked_for()
            self._driver.get(address)

    def ask(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page."""
        return self._driver.execute_script(f"return {expression}")

    def screenshot(self) -> Image.Image:
        """Return the visible page as an image."""
        # Chromium aborts the command if the previous page's navigation has not quite finished.
        take = partial(self._driver.execute_cdp_cmd, "Page.captureScreenshot", {"format": "png"})
        shot = until(take)
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def said(self) -> list[str]:
        """Return the console messages since the last call."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def asked_for(self) -> list[str]:
        """Return the URLs requested since the last call."""
        events = [json.loads(e["message"])["message"] for e in self._driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start a headless Chromium with an empty profile."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        message = "Chromium and chromedriver are not installed: apt-get install chromium-driver"
        if os.environ.get("EVERT_BROWSER") == "required":
            pytest.fail(message)
        pytest.skip(message)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
