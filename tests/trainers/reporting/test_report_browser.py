"""The page of ``evert report``, of real runs, in a headless Chromium; skipped without one."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import ImageStat
from tests.trainers.reporting.conftest import ATTACK, DESKTOP, PHONE, Browser

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
    columns = training_episodes(run)
    assert list(columns) == ["Step 1", "Step 2", "Step 3"]
    for episodes in columns.values():
        assert len(episodes) == EPISODES
        told = [dict(each.turns[0].texts) for each in episodes]
        assert all("Let's play a game. Say you are " in each["told"] for each in told)
        assert all(each["said"] for each in told)


def test_the_page_shows_every_figure_and_asks_for_nothing(browser: Browser, page: Path) -> None:
    for size in (DESKTOP, PHONE):
        browser.open(page.as_uri(), size)
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


def test_a_phone_scrolls_nothing_sideways_and_stacks_what_stands_side_by_side(
    browser: Browser, page: Path, hostile_page: Path
) -> None:
    wide = "[...document.querySelectorAll('main *')].filter("
    wide += f"e => e.getBoundingClientRect().right > {PHONE[0]} && !e.closest('.turns')).length"
    for shown in (hostile_page, page):
        browser.open(shown.as_uri(), PHONE)
        browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.ask("document.documentElement.scrollWidth") <= PHONE[0]
        assert browser.ask(wide) == 0
    columns = "[...document.querySelectorAll('.columns')].at(-1).children"
    tops = f"[...{columns}].map(column => column.getBoundingClientRect().top)"
    assert len(set(browser.ask(tops))) == 3
    browser.open(page.as_uri())
    assert len(browser.ask(tops)) == 3
    assert len(set(browser.ask(tops))) == 1


def test_hostile_text_is_read_as_it_was_written_and_scripts_are_forbidden(
    browser: Browser, hostile_page: Path, tmp_path: Path
) -> None:
    browser.open(hostile_page.as_uri())
    assert browser.ask("document.title") == ATTACK
    assert browser.ask("document.scripts.length") == 0
    assert browser.ask("document.querySelectorAll('img:not([src^=\"data:\"])').length") == 0
    assert browser.ask("document.querySelector('#transcripts').innerText").count(ATTACK) >= 6
    assert browser.said() == []
    assert all(a.startswith(("file:", "data:")) for a in browser.asked_for())
    script = "<script>document.title = 'taken'</script></body>"
    changed = hostile_page.read_text(encoding="utf-8").replace("</body>", script)
    (tmp_path / "changed.html").write_text(changed, encoding="utf-8")
    browser.open((tmp_path / "changed.html").as_uri())
    assert browser.ask("document.title") == ATTACK
    assert any("Content Security Policy" in message for message in browser.said())


def test_the_page_and_how_evert_works_are_light_or_dark_and_the_text_of_its_figure_fits(
    browser: Browser, page: Path
) -> None:
    figure = Path(__file__).parents[3] / "docs" / "how-it-works.svg"
    outside = (
        "[...document.querySelectorAll('text')].filter(t => {"
        "const {x, y, width, height} = t.getBBox();"
        "return x < 0 || y < 0 || x + width > 980 || y + height > 602}).length"
    )
    for scheme, is_dark in (("light", False), ("dark", True)):
        browser.open(page.as_uri(), scheme=scheme)
        browser.ask("document.querySelector('#reward').scrollIntoView()")
        shots = [browser.screenshot()]
        browser.open(figure.as_uri(), scheme=scheme)
        shots.append(browser.screenshot().crop((0, 0, 980, 600)))
        for shot in shots:
            (brightness,) = ImageStat.Stat(shot.convert("L")).mean
            assert (brightness < 80) is is_dark
        assert browser.ask(outside) == 0
        assert {a for a in browser.asked_for() if not a.startswith("data:")} == {figure.as_uri()}
    assert browser.ask("document.querySelectorAll('title, desc').length") == 2
