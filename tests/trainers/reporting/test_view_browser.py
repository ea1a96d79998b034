"""The page of ``evert view`` for real runs, in a headless Chromium. Skipped without one."""

import asyncio
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.trainers.reporting.conftest import ATTACK, INSIDE, PHONE, Browser, until

from evert import read_records
from evert.trainers.viewing.incremental_index import Index
from evert.trainers.viewing.server import Viewer

WIDE = (1400, 900)
STEP = "step/{run}/train//2"


@contextmanager
def served(folder: Path, database: Path) -> Iterator[str]:
    """Serve a folder from a thread; yield the link to its page."""
    ready, over = Future[str](), threading.Event()

    async def serve() -> None:
        viewer = Viewer(Index([folder], database))
        runner = web.AppRunner(viewer.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        viewer.start()
        ready.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}/?token={viewer.token}")
        await asyncio.to_thread(over.wait)
        await runner.cleanup()
        viewer.stop()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        yield ready.result(30)
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="session")
def folder(real_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder of two runs that a test may change."""
    folder = tmp_path_factory.mktemp("viewed") / "runs"
    for run in real_runs:
        shutil.copytree(run, folder / run.name, ignore=shutil.ignore_patterns("checkpoints"))
    return folder


@pytest.fixture
def link(browser: Browser, folder: Path, tmp_path: Path) -> Iterator[str]:
    """Open the page of the two runs; yield its URL without the token, which the browser keeps."""
    with served(folder, tmp_path / "index") as link:
        browser.open(link)
        until(lambda: browser.ask("document.querySelectorAll('.wide tbody tr').length") == 2)
        yield link.partition("?")[0]


def show(
    browser: Browser, address: str, size: tuple[int, int] = WIDE, scheme: str = "light"
) -> None:
    browser.open(address, size, scheme)
    until(lambda: browser.ask("document.querySelector('#view h1') !== null"))


def episode_of(browser: Browser, link: str) -> str:
    show(browser, link + "#" + STEP.format(run=1))
    return str(until(lambda: browser.ask("document.querySelector('.chips a').hash")))


def test_every_view_fits_a_desktop_and_a_phone_in_light_and_dark(
    browser: Browser, link: str
) -> None:
    episode = episode_of(browser, link)
    number = episode.partition("/")[2]
    views = [
        "",
        "#runs/1/2",
        "#run/1",
        "#" + STEP.format(run=1),
        episode,
        f"#compare/{number}/{number}",
        "#search/Say",
    ]
    for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
        for view in views:
            show(browser, link + view, size, scheme)
            assert browser.ask("document.querySelector('h1').textContent") != "This cannot be shown"
            assert browser.ask("document.documentElement.scrollWidth") <= size[0], view
            assert browser.ask(INSIDE) == 0, view
            assert browser.said() == []
            assert all(a.startswith((link, "data:", "about:")) for a in browser.asked_for())
        show(browser, link + "#run/1", size, scheme)
        assert until(lambda: browser.ask("document.querySelectorAll('canvas').length")) >= 8


def test_the_worst_episode_of_the_last_step_is_two_clicks_away(
    browser: Browser, link: str, folder: Path
) -> None:
    show(browser, link)
    browser.ask("document.querySelector('.wide tbody a').click()")
    worst = ".tools a[href$='/worst']"  # the list of runs also has a link in its toolbar
    until(lambda: browser.ask(f'document.querySelector("{worst}").click() === undefined'))
    until(lambda: browser.ask("location.hash.startsWith('#episode/')"))
    [first, *_] = sorted(folder.iterdir())
    reward = min(each.reward for each in read_records(first) if each.row["iteration"] == 2)
    said = f"Episode, reward {reward:.3f}".replace("-", "\u2212")
    until(lambda: browser.ask("document.querySelector('h1').textContent") == said)
    assert browser.ask("document.querySelectorAll('.talk .said').length") >= 1


def test_keyboard_shortcuts_search_and_switch_episodes(browser: Browser, link: str) -> None:
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
    first = episode_of(browser, link)
    show(browser, link + first)
    browser.ask("document.body." + press % "j")
    until(lambda: browser.ask("location.hash") != first)
    until(lambda: browser.ask("document.getElementById('previous') !== null"))
    browser.ask("document.body." + press % "k")
    until(lambda: browser.ask("location.hash") == first)
    browser.ask("document.body." + press % "u")
    until(lambda: browser.ask("location.hash").startswith("#step/"))
    browser.ask("document.body." + press % "/")
    assert browser.ask("document.activeElement.name") == "words"
    browser.ask("document.activeElement.value = 'nobody says this'")
    browser.ask("document.getElementById('search').requestSubmit()")
    until(lambda: "No episodes contain" in browser.ask("document.querySelector('main').innerText"))


def test_tokens_are_coloured_by_probability_or_advantage(browser: Browser, link: str) -> None:
    show(browser, link + episode_of(browser, link))
    spans = "[...document.querySelectorAll('.said span')]"
    assert browser.ask(f"{spans}.length") == 0
    for name in ("probability", "advantage"):
        buttons = "[...document.querySelectorAll('.tools button')]"
        browser.ask(f"{buttons}.find(b => b.textContent === '{name}').click()")
        until(lambda: browser.ask(f"{spans}.some(s => s.style.backgroundColor)"))
    assert "probability 0." in browser.ask(f"{spans}.map(s => s.title).join()")


def test_a_view_follows_a_run_in_progress(browser: Browser, link: str, folder: Path) -> None:
    show(browser, link + "#run/1")
    [run, *_] = sorted(folder.iterdir())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    more = json.loads(next(line for line in lines if "progress/done_frac" in line)) | {"step": 3}
    with (run / "metrics.jsonl").open("a") as out:
        out.write(json.dumps(more) + "\n")
    until(lambda: "steps 4" in browser.ask("document.querySelector('.about').textContent"))


def test_hostile_text_is_escaped_in_every_view(
    browser: Browser, hostile_run: Path, tmp_path: Path
) -> None:
    with served(hostile_run.parent, tmp_path / "index") as link:
        browser.open(link)
        address = link.partition("?")[0]
        until(lambda: browser.ask("document.querySelectorAll('.wide tbody tr').length"))
        episode = episode_of(browser, address)
        number = episode.partition("/")[2]
        words = "#search/document.title"
        for view in ("", "#run/1", "#" + STEP.format(run=1), "#step/1/test//-1", episode,
                     f"#compare/{number}/{number}", words):  # fmt: skip
            show(browser, address + view)
            until(lambda: ATTACK in browser.ask("document.querySelector('main').textContent"))
            assert browser.ask("document.title") not in ("taken", "evert")
            assert browser.ask("document.querySelectorAll('main img, main script').length") == 0
            assert browser.ask("document.scripts.length") == 2
            assert browser.said() == []
            assert all(a.startswith((address, "data:", "about:")) for a in browser.asked_for())


def test_no_other_server_on_this_machine_receives_the_links_token(
    browser: Browser, link: str
) -> None:
    until(lambda: browser.ask("location.search === '' && localStorage.length"))
    token = browser.ask("localStorage.getItem('evert-token')")
    got = list[str]()

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        browser.ask(f"location.assign('http://127.0.0.1:{other.server_port}/')")
        until(lambda: got)
        other.shutdown()
        thread.join()
    assert all(token not in each and "Cookie" not in each for each in got)


def test_the_token_sequences_shown_are_the_ones_trained_on(browser: Browser, link: str) -> None:
    show(browser, link)
    turns = [  # (turn that the prompt extends, its new tokens, sampled tokens, caller)
        (None, [1, 2], [3], "a"),
        (None, [1, 9], [4], "b"),
        (0, [5], [6], "a"),
        (1, [5], [6], "b"),
        (0, [7], [8], "a"),  # edits the reply of turn 3
        (4, [5], [6], "a"),
    ]
    steps: list[dict[str, Any]] = [
        {"prompt": {"after": after, "tokens": new}, "tokens": said, "logs": {"caller": who}}
        for after, new, said, who in turns
    ]
    steps[2]["logs"] = {"caller": "a", "drift": "history"}
    found = browser.ask(f"sequences({json.dumps(steps)})")
    assert [each["turns"] for each in found] == [[0, 2], [1, 3], [4, 5]]
    assert [(each["from"], each["shared"], each["why"]) for each in found] == [
        (None, None, ""),
        (None, 1, ""),
        (0, None, "history"),
    ]


def test_a_run_opened_by_its_url_has_its_colours(browser: Browser, link: str) -> None:
    show(browser, link + "#run/1")
    parts = "[...document.querySelectorAll('.share div')].map(e => e.style.backgroundColor)"
    assert len(set(browser.ask(parts))) == 4


def test_a_plot_has_round_ticks_a_legend_with_values_and_lines_within_their_intervals(
    browser: Browser, link: str
) -> None:
    show(browser, link + "#run/1")
    seen = browser.ask(
        """(() => {
            const plots = [], make = uPlot;
            uPlot = function (...given) { plots.push(given); return new make(...given); };
            uPlot.join = make.join;
            const steps = [...Array(12).keys()], values = steps.map((step) => Number(step > 5));
            const halves = steps.map(() => 0.1);
            const line = { name: "", colour: "#000000", steps, values, halves };
            const box = panel("Reward", "mean reward", [line]);
            document.body.append(box);
            return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
                const [[options, data]] = plots;
                const ticks = options.axes[1].values(null, [0.0025, 0.005, 0.0075, -1e-8]);
                const values = [...box.querySelectorAll(".u-value")].map((e) => e.textContent);
                done([options.scales.y.range(), ticks, data.slice(1), values]);
                box.remove();
                uPlot = make;
            })));
        })()"""
    )
    (low, high), ticks, (top, bottom, measured, smooth), values = seen
    assert values[0] == "11"
    assert "--" not in values
    assert ticks == ["0.0025", "0.005", "0.0075", "\u22121e-8"]
    assert all(b <= s <= t for b, s, t in zip(bottom, smooth, top, strict=True))
    assert measured == [0.0] * 6 + [1.0] * 6
    assert low < bottom[0] < top[-1] < high
    assert browser.ask("ends('mean reward', 0, 1, -3, 4)") == pytest.approx([-1.15, 2.15])
