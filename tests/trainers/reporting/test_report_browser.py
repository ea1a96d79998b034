"""The page of ``evert report`` for real runs, in a headless Chromium. Skipped without one."""

from pathlib import Path

import pytest
from PIL import ImageStat
from tests.trainers.reporting.conftest import ATTACK, DESKTOP, INSIDE, PHONE, Browser, until

from evert.trainers.commands import report
from evert.trainers.reporting.run import read_run
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD
from evert.trainers.viewing.incremental_index import indexed
from evert.trainers.viewing.tokens import count_tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyparsing"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib"),
]
STEP = "#step/1/train//2"


@pytest.fixture(scope="session")
def page(real_runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page that compares the two real runs."""
    out = tmp_path_factory.mktemp("report")
    assert report.main([*map(str, real_runs), f"out={out}", "sample_price=2"]) == 0
    return out / "index.html"


@pytest.fixture(scope="session")
def hostile_page(hostile_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a run whose agent, model and user wrote attacks."""
    out = tmp_path_factory.mktemp("report")
    assert report.main([str(hostile_run), f"out={out}"]) == 0
    return out / "index.html"


def show(browser: Browser, page: Path, view: str = "", *look: object) -> None:
    """Open a view of the page; assert that it makes no requests and logs no messages."""
    address = page.as_uri() + view
    browser.open(address, *look)  # type: ignore[arg-type]
    until(lambda: browser.ask("document.querySelector('#view h1') !== null"))
    assert browser.ask("document.querySelector('h1').textContent") != "This cannot be shown"
    assert browser.said() == []
    asked = [each for each in browser.asked_for() if not each.startswith("data:")]
    assert {each.partition("#")[0] for each in asked} == {page.as_uri()}


def views_of(browser: Browser, page: Path) -> list[str]:
    """Return the views that are reachable through the page's links."""
    views, ahead = [""], [""]
    while ahead:
        show(browser, page, ahead.pop())
        links = browser.ask("[...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.hash)")
        new = [link for link in dict.fromkeys(links) if link not in views and len(link) > 1]
        kinds = [view.partition("/")[0] for view in views]
        for link in new if len(views) < 40 else ():
            if kinds.count(link.partition("/")[0]) < 4:
                views.append(link)
                ahead.append(link)
                kinds.append(link.partition("/")[0])
    return views


def test_a_real_run_is_read_with_all_of_its_metrics(finished: RunFolder) -> None:
    run = read_run(finished.path)
    assert (run.finished, len(run.rows), run.name) == (True, 3, "identity")
    assert run.curve(TRAIN_REWARD).steps == [1, 2, 3]
    assert run.curve(HELD_OUT_REWARD).steps == [0, 2, 3]
    assert run.curve("env/all/lineages").scores == [1.0, 1.0, 1.0]
    assert run.curve("optim/kl_sample_train_v1").scores == pytest.approx([0, 0, 0], abs=1e-4)
    assert set(run.before) == set(run.after) == {"greedy", "temperature_1"}
    with indexed([finished.path]) as index:
        tokens = count_tokens(run, index, 1)
    # A single-turn game trains on all prompt and sampled tokens.
    assert tokens is not None
    of_training = run.total("env/all/total_ob_tokens") + run.total("env/all/total_ac_tokens")
    assert (tokens.train, tokens.is_estimate) == (of_training, False)
    assert tokens.prefill > run.total("env/all/total_ob_tokens")


def test_the_page_shows_every_figure_and_makes_no_request(browser: Browser, page: Path) -> None:
    assert len(list(page.parent.glob("*.png"))) >= 12
    for size in (DESKTOP, PHONE):
        show(browser, page, "", size)
        assert until(lambda: browser.ask("document.querySelectorAll('canvas').length")) >= 8
        colours = browser.screenshot().getcolors(maxcolors=1 << 20) or []
        assert max(count for count, _ in colours) < 0.95 * size[0] * size[1]
        assert len(colours) > 50
        text = browser.ask("document.querySelector('main').innerText")
        for words in ("learning_rate", "0.125", "success", "cost", "after training, greedy"):
            assert words in text
        assert "the worst, the best" in browser.ask("document.querySelector('footer').innerText")


def test_every_link_leads_to_a_view_that_fits_a_desktop_and_a_phone(
    browser: Browser, page: Path, hostile_page: Path
) -> None:
    for shown in (page, hostile_page):
        views = views_of(browser, shown)
        assert {view.partition("/")[0] for view in views} >= {"", "#run", "#step", "#episode"}
        for size, scheme in ((DESKTOP, "light"), (PHONE, "dark")):
            for kind in ("#run/", "#step/", "#episode/", ""):
                view = next(view for view in views if view.startswith(kind))
                show(browser, shown, view, size, scheme)
                browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
                assert browser.ask("document.documentElement.scrollWidth") <= size[0], view
                assert browser.ask(INSIDE) == 0, view


def test_the_page_does_not_link_to_omitted_episodes(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri() + "#step/1/train//999")
    said = "document.querySelector('main').innerText"
    until(lambda: "Use evert view to see the whole run" in browser.ask(said))
    show(browser, page, STEP)
    links = "[...document.querySelectorAll('a[href^=\"#episode\"]')]"
    assert browser.ask(f"{links}.every(a => holds(...a.hash.slice(1).split('/')))")
    assert 0 < browser.ask(f"new Set({links}.map(a => a.hash)).size") < 16
    assert browser.ask("document.getElementById('search')") is None
    browser.ask(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))"
    )
    assert browser.said() == []


def test_the_worst_episode_of_the_last_step_is_one_click_away(browser: Browser, page: Path) -> None:
    show(browser, page, "#run/1")
    browser.ask("document.querySelector('.tools a').click()")
    until(lambda: browser.ask("location.hash.startsWith('#episode/')"))
    until(lambda: browser.ask("document.querySelectorAll('.talk .said').length"))


def test_hostile_text_is_displayed_literally_and_scripts_are_blocked(
    browser: Browser, hostile_page: Path, tmp_path: Path
) -> None:
    views = views_of(browser, hostile_page)
    for view in views:
        show(browser, hostile_page, view)
        until(lambda: ATTACK in browser.ask("document.querySelector('main').textContent"))
        assert browser.ask("document.title").startswith(ATTACK)
        assert browser.ask("document.scripts.length") == 3
        assert browser.ask("document.querySelectorAll('img, main script').length") == 0
    script = "<script>document.title = 'taken'</script></body>"
    changed = hostile_page.read_text(encoding="utf-8").replace("</body>", script)
    (tmp_path / "changed.html").write_text(changed, encoding="utf-8")
    browser.open((tmp_path / "changed.html").as_uri())
    assert browser.ask("document.title").startswith(ATTACK)
    assert any("Content Security Policy" in message for message in browser.said())


def test_the_page_and_the_docs_figure_follow_the_colour_scheme(
    browser: Browser, page: Path
) -> None:
    figure = Path(__file__).parents[3] / "docs" / "how-it-works.svg"
    outside = (
        "[...document.querySelectorAll('text')].filter(t => {"
        "const {x, y, width, height} = t.getBBox();"
        "return x < 0 || y < 0 || x + width > 980 || y + height > 602}).length"
    )
    for scheme, is_dark in (("light", False), ("dark", True)):
        show(browser, page, "", DESKTOP, scheme)
        until(lambda: browser.ask("document.querySelectorAll('canvas').length"))
        shots = [browser.screenshot()]
        browser.open(figure.as_uri(), scheme=scheme)
        shots.append(browser.screenshot().crop((0, 0, 980, 600)))
        for shot in shots:
            (brightness,) = ImageStat.Stat(shot.convert("L")).mean
            assert (brightness < 80) is is_dark
        assert browser.ask(outside) == 0
        assert {a for a in browser.asked_for() if not a.startswith("data:")} == {figure.as_uri()}
    assert browser.ask("document.querySelectorAll('title, desc').length") == 2
