"""MiniWoB++ pages under evert earn the same rewards as in the package's own environments."""

import os
import re
from typing import Any

import gymnasium
import miniwob as package
import psutil
import pytest
from miniwob.reward import get_raw_reward
from tests.kit import play, rewards
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets.miniwob import OFFLINE, browser, command, miniwob

gymnasium.register_envs(package)

PAGES = (
    "click-button", "click-button-sequence", "click-checkboxes", "click-collapsible",
    "click-color", "click-dialog", "click-dialog-2", "click-link", "click-option", "click-tab",
    "click-test", "click-test-2", "click-widget", "enter-password", "enter-text", "enter-text-2",
    "focus-text", "focus-text-2", "grid-coordinate", "login-user",
)  # fmt: skip
FIELDS = ("input_text", "input_password", "textarea")
LONG = 3600


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    if None in browser():
        message = "Chromium and chromedriver are not installed: apt-get install chromium-driver"
        if os.environ.get("EVERT_BROWSER") == "required":
            pytest.fail(message)
        pytest.skip(message)
    chromium, driver = map(str, browser())
    os.environ |= {"MINIWOB_CHROME_BINARY": chromium, "MINIWOB_CHROMEDRIVER": driver}


def solved(observation: dict[str, Any]) -> list[str]:
    """Return commands that follow an instruction: type or click on the quoted words."""
    elements = [each for each in observation["dom_elements"] if each["ref"] > 0]
    quoted = re.findall(r'"([^"]+)"', observation["utterance"])
    fields = [each["ref"] for each in elements if each["tag"] in FIELDS]
    if quoted and fields:
        named = [quoted[min(place, len(quoted) - 1)] for place in range(len(fields))]
        said = [f"type {ref} {text}" for ref, text in zip(fields, named, strict=True)]
    else:
        said = [f"click {ref}" for ref in fields]
        said += [f"click {e['ref']}" for word in quoted for e in elements if e["text"] == word]
    buttons = [e["ref"] for e in elements if e["tag"] in ("button", "input_submit")]
    return [*said, *(f"click {ref}" for ref in buttons[:1])]


def first_of_all(observation: dict[str, Any]) -> list[str]:
    """Return a click on each element, from the last to the first, whatever the instruction is."""
    refs = [each["ref"] for each in observation["dom_elements"] if each["ref"] > 0]
    return [f"click {ref}" for ref in reversed(refs)]


def action(env: Any, said: str) -> Any:
    """Convert a command to the package's own action."""
    word, ref, text = (*said.split(" ", 2), "", "")[:3]
    if word == "click":
        return env.create_action("CLICK_ELEMENT", ref=int(ref))
    return env.create_action("FOCUS_ELEMENT_AND_TYPE_TEXT", ref=int(ref), text=text)


def in_their_loop(env: Any, seed: int, script: Any) -> tuple[list[str], list[float]]:
    """Play a page in the package's loop; return the commands and their rewards."""
    seen, _ = env.reset(seed=seed, options={"record_screenshots": False})
    given, earned = list[str](), list[float]()
    for said in (script(seen) + ["click 1"] * 8)[:8]:
        _, reward, over, _, _ = env.step(action(env, said))
        given.append(said)
        earned.append(reward)
        if over:
            break
    return given, earned


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_earns_the_same_reward_as_in_miniwobs_own_environment(name: str) -> None:
    agent = resolve(miniwob(name).agent, "agent", GameError)
    env: Any = gymnasium.make(f"miniwob/{name}-v1", reward_processor=get_raw_reward).unwrapped
    env.instance.driver.execute_script(f"core.EPISODE_MAX_TIME = {LONG * 1000};")
    theirs = []
    try:
        for script in (solved, first_of_all):
            theirs.append(in_their_loop(env, 7, script))
    finally:
        env.close()
    for given, earned in theirs:
        limits = RolloutLimits(max_turns=len(given))
        trajectory = await play(agent, *given, task=7, limits=limits)
        assert rewards(trajectory) == earned
    if name in ("click-button", "click-link", "click-test", "enter-text", "login-user"):
        assert theirs[0][1][-1] == 1.0


async def test_invalid_commands_never_reach_the_browser_which_ends_with_the_episode() -> None:
    before = set(psutil.Process().children(recursive=True))
    replies = ["click 1);core.endEpisode(1);(", "type x y", "key <Explode>"]
    trajectory = await play(resolve(miniwob("click-test").agent, "agent", GameError), *replies)
    assert rewards(trajectory) == [0.0] * 3
    assert trajectory.transitions[-1].metrics["illegal"] == 3
    assert set(psutil.Process().children(recursive=True)) == before


async def test_a_page_is_described_in_words() -> None:
    prompts: list[str] = []

    def asked(prompt: str) -> str:
        prompts.append(prompt)
        return "I think.\nclick 4"

    agent = resolve(miniwob("click-test").agent, "agent", GameError)
    trajectory = await play(agent, asked, task=1)
    assert "Task: Click the button." in prompts[0]
    assert '[4] button "Click Me!"' in prompts[0]
    assert rewards(trajectory) == [1.0]


@pytest.mark.parametrize("said", ["click", "click 1 2", "clickety 1", "type 1", "drag 1 2", ""])
def test_an_invalid_command_is_explained(said: str) -> None:
    with pytest.raises(ValueError, match="expected click REF, type REF TEXT, key KEY or wait"):
        command(said)


def test_an_unknown_page_or_a_missing_browser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [miniwob(name).id for name in OFFLINE] == [f"miniwob/{name}" for name in OFFLINE]
    with pytest.raises(GameError, match=r"no page 'click-tets'\. Did you mean click-test\?"):
        miniwob("click-tets")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GameError, match="both Chromium and chromedriver .*apt install chromium"):
        miniwob("click-test")
