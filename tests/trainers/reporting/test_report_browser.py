"""The page of ``evert report``, of real runs, in a real browser.

A headless Chromium opens the page from its file: it is seen, asks for nothing but itself, fits a
phone, and text of a hostile agent stays text.

Without Chromium these tests are skipped, unless EVERT_BROWSER=required is set.
"""

import base64
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageStat
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from tests.trainers.conftest import copy_of

from evert.trainers.commands import report
from evert.trainers.reporting.run import read_run
from evert.trainers.reporting.tokens import count_tokens
from evert.trainers.reporting.transcripts import EPISODES, training_episodes
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD
from evert.trainers.system.files import read_json

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyparsing"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib"),
]

DESKTOP, PHONE = (1280, 900), (390, 844)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
ATTACK = (
    "</p><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
)


# -- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def real_runs(finished: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of three steps, and a copy of it that says that its learning rate was another one."""
    copy = copy_of(finished, tmp_path_factory.mktemp("runs") / "fast")
    about = copy.read_json("run.json") or {}
    about["settings"]["learning_rate"] = 0.125
    copy.write_json("run.json", about)
    return finished.path, copy.path


@pytest.fixture(scope="session")
def page(real_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that compares them."""
    out = tmp_path_factory.mktemp("report")
    assert report.main([*map(str, real_runs), f"out={out}", "sample_price=2"]) == 0
    return out / "index.html"


@pytest.fixture(scope="session")
def hostile_page(real_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose agent, model and user wrote attacks."""
    run = shutil.copytree(real_runs[1], tmp_path_factory.mktemp("hostile") / "run")
    facts = read_json(run / "run.json") or {}
    facts |= {"name": ATTACK, "git": ATTACK, "command": [ATTACK]}
    (run / "run.json").write_text(json.dumps(facts))
    for rollouts in run.glob("iteration_*/train_rollout_summaries.jsonl"):
        records = [json.loads(line) for line in rollouts.read_text().splitlines()]
        for record in records:
            record["steps"][0]["logs"] |= {ATTACK: ATTACK, "long": "w" * 3000}
        rollouts.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert report.main([str(run)]) == 0
    return run / "report" / "index.html"


# -- the browser ---------------------------------------------------------------------------------


class Browser:
    """Chromium, with what it was asked for and what it said."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, page: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Show a page at a size; the phone's is a phone's."""
        self._driver.get(
            "about:blank"
        )  # whatever was there before, the browser's own page, is over
        self.said()
        self.asked_for()
        metrics = {
            "width": size[0],
            "height": size[1],
            "deviceScaleFactor": 1,
            "mobile": size == PHONE,
        }
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self._driver.get(page.as_uri())

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._driver.execute_script(f"return {expression}")

    def screenshot(self) -> Image.Image:
        """What is seen, as pixels."""
        shot = self._driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def said(self) -> list[str]:
        """The console's messages since the last time."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def asked_for(self) -> list[str]:
        """Addresses of the requests since the last time."""
        events = [json.loads(e["message"])["message"] for e in self._driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with an empty profile."""
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


# -- what is read --------------------------------------------------------------------------------


def test_a_real_run_is_read_with_every_figure_it_can_have(finished: RunFolder) -> None:
    run = read_run(finished.path)
    assert (run.finished, run.progress, run.name) == (True, "3 of 3", "identity")
    assert run.curve(TRAIN_REWARD).steps == [1, 2, 3]
    assert run.curve(HELD_OUT_REWARD).steps == [0, 2, 3]
    assert run.curve("env/all/lineages").scores == [1.0, 1.0, 1.0]
    assert run.curve("optim/kl_sample_train_v1").scores == pytest.approx([0, 0, 0], abs=1e-4)
    assert set(run.before) == set(run.after) == {"greedy", "temperature_1"}
    tokens = count_tokens(run)  # a game of one turn trains on all it was given and sampled
    assert tokens is not None
    of_training = run.total("env/all/total_ob_tokens") + run.total("env/all/total_ac_tokens")
    assert (tokens.train, tokens.is_estimate) == (of_training, False)
    assert tokens.prefill > run.total("env/all/total_ob_tokens")
    columns = training_episodes(run, 5000)
    assert list(columns) == ["Step 1", "Step 2", "Step 3"]
    for episodes in columns.values():
        assert len(episodes) == EPISODES
        told = [dict(each.turns[0].texts) for each in episodes]
        assert all("Let's play a game. Say you are " in each["told"] for each in told)
        assert all(each["said"] for each in told)


# -- what is seen --------------------------------------------------------------------------------


def test_the_page_is_seen_with_every_figure_and_asks_for_nothing(
    browser: Browser, page: Path
) -> None:
    for size in (DESKTOP, PHONE):
        browser.open(page, size)
        colours = browser.screenshot().getcolors(maxcolors=1 << 20) or []
        assert max(count for count, _ in colours) < 0.95 * size[0] * size[1]
        assert len(colours) > 50
        widths = browser.ask("[...document.images].map(i => i.complete ? i.naturalWidth : 0)")
        assert len(widths) == len(list(page.parent.glob("*.png"))) >= 12
        assert min(widths) >= 600
        assert browser.said() == []
        asked = browser.asked_for()
        assert asked[0] == page.as_uri()
        assert all(address.startswith(("file:", "data:")) for address in asked)
        assert [a for a in asked if a.startswith("file:")] == [page.as_uri()]


def test_on_a_phone_nothing_scrolls_sideways(
    browser: Browser, page: Path, hostile_page: Path
) -> None:
    wide = "[...document.querySelectorAll('main *')].filter("
    wide += f"e => e.getBoundingClientRect().right > {PHONE[0]} && !e.closest('.turns')).length"
    for shown in (page, hostile_page):
        browser.open(shown, PHONE)
        browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.ask("document.documentElement.scrollWidth") <= PHONE[0]
        assert browser.ask(wide) == 0


def test_transcripts_stand_side_by_side_and_stack_on_a_phone(browser: Browser, page: Path) -> None:
    columns = "[...document.querySelectorAll('.columns')].at(-1).children"
    tops = f"[...{columns}].map(column => column.getBoundingClientRect().top)"
    browser.open(page)
    assert len(set(browser.ask(tops))) == 1
    assert len(browser.ask(tops)) == 3
    browser.open(page, PHONE)
    assert len(set(browser.ask(tops))) == 3


def test_in_the_dark_the_page_is_dark_and_so_are_its_figures(browser: Browser, page: Path) -> None:
    for scheme, is_dark in (("light", False), ("dark", True)):
        browser.open(page, scheme=scheme)
        browser.ask("document.querySelector('#reward').scrollIntoView()")
        (brightness,) = ImageStat.Stat(browser.screenshot().convert("L")).mean
        assert (brightness < 80) is is_dark


def test_both_runs_have_a_card_a_colour_and_their_setting(browser: Browser, page: Path) -> None:
    browser.open(page)
    cards = browser.ask("[...document.querySelectorAll('.card')].map(c => c.innerText)")
    assert [card.splitlines()[0].strip() for card in cards] == [
        "identity, learning_rate=0.0003",
        "identity, learning_rate=0.125",
    ]
    assert all("$" in card for card in cards)
    colour = "[...document.querySelectorAll('.card .swatch')].map(s => s.style.cssText)"
    assert len(set(browser.ask(colour))) == 2
    differing = "[...document.querySelectorAll('#runs tr.differs')].map(r => r.innerText)"
    assert "learning_rate" in browser.ask(differing)[0]


def test_hostile_text_does_nothing_and_is_read_as_it_was_written(
    browser: Browser, hostile_page: Path
) -> None:
    browser.open(hostile_page)
    assert browser.ask("document.title") == ATTACK
    assert browser.ask("document.scripts.length") == 0
    assert browser.ask("document.querySelectorAll('img:not([src^=\"data:\"])').length") == 0
    assert browser.ask("document.querySelector('#transcripts').innerText").count(ATTACK) >= 6
    assert browser.said() == []
    assert all(a.startswith(("file:", "data:")) for a in browser.asked_for())


def test_the_page_forbids_scripts_that_would_be_in_it(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    changed = page.read_text(encoding="utf-8").replace(
        "</body>", "<script>document.title = 'taken'</script></body>"
    )
    (tmp_path / "changed.html").write_text(changed, encoding="utf-8")
    browser.open(tmp_path / "changed.html")
    assert browser.ask("document.title") != "taken"
    assert any("Content Security Policy" in message for message in browser.said())


# -- the figure of the documentation -------------------------------------------------------------


def test_how_evert_works_is_light_or_dark_asks_for_nothing_and_its_text_fits(
    browser: Browser,
) -> None:
    figure = Path(__file__).parents[3] / "docs" / "how-it-works.svg"
    outside = (
        "[...document.querySelectorAll('text')].filter(t => {"
        "const {x, y, width, height} = t.getBBox();"
        "return x < 0 || y < 0 || x + width > 980 || y + height > 602}).length"
    )
    for scheme, is_dark in (("light", False), ("dark", True)):
        browser.open(figure, scheme=scheme)
        (brightness,) = ImageStat.Stat(
            browser.screenshot().crop((0, 0, 980, 600)).convert("L")
        ).mean
        assert (brightness < 80) is is_dark
        assert browser.ask(outside) == 0
        assert {a for a in browser.asked_for() if not a.startswith("data:")} == {figure.as_uri()}
    assert browser.ask("document.querySelectorAll('title, desc').length") == 2
