"""MiniWoB++ pages in a headless Chromium, shown as text and controlled with four commands.

    evert train tasks=miniwob:click-button model_name=smollm2

The package provides the pages and their rewards, and controls the browser. evert plays the pages as
a Gymnasium environment (``GymAgent``). Requires the ``miniwob`` extra, Chromium and chromedriver.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from evert.envs.from_gymnasium.agent import GymAgent
from evert.envs.games import Game, GameError, Metric
from evert.envs.tasksets.common import needed, no_such

OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "click-test": {"max_tokens": 16, "limits.max_turns": 5},
    "click-button": {"max_tokens": 16, "limits.max_turns": 5},
}

ID = "evert/MiniWoB-v0"

PROMPT = """You act in a web page. Reply with one command, in a line of its own, and nothing else:
click REF
type REF TEXT
key KEY, like <Enter>, <Tab>, <ArrowDown> or C-a
wait
REF is the number that stands before an element."""

LONGEST = 64
"""Maximum number of characters per ``type`` command (the package's limit)."""

QUIET = {"body", "div", "form", "p", "span", "table", "tbody", "tr", "ul"}
"""Elements that the policy sees only if they contain text."""


def miniwob(name: str, *, seconds: float = 3600.0) -> Game:
    """Return the game for a MiniWoB++ page.

    Args:
        name: Name of the page, such as "click-button".
        seconds: Time limit for an episode. The package's default of ten seconds is too short for a
            language model.

    Raises:
        GameError: There is no such page, or Chromium or chromedriver is missing.
    """
    package = needed("miniwob", "miniwob", "pip install 'evert[miniwob]'")
    folder = Path(str(package.__file__)).parent / "html" / "miniwob"
    pages = sorted(path.stem for path in folder.glob("*.html"))
    if name not in pages:
        raise no_such("MiniWoB", "page", name, pages)
    if None in browser():
        raise GameError(
            "tasks=miniwob requires both Chromium and chromedriver on the PATH. Install them with: "
            "apt install chromium chromium-driver."
        )
    agent = GymAgent(
        f"{__name__}:{ID}",
        name=name,
        seconds=seconds,
        describe=f"{__name__}:page",
        parse=f"{__name__}:command",
        prompt=PROMPT,
        off_loop=True,
    )
    return Game(
        f"miniwob/{name}",
        agent=f"evert:{agent!r}",
        train_tasks="evert.envs.from_gymnasium.recipe:TRAIN_TASKS",
        test_tasks="evert.envs.from_gymnasium.recipe:TEST_TASKS",
        recipe={
            "batch_size": 4,
            "group_size": 8,
            "max_tokens": 128,
            "limits": {"max_turns": 20},
        },
        metrics={"illegal": Metric("Replies that are not commands", "a page")},
    )


def browser() -> tuple[str | None, str | None]:
    """Return the paths of Chromium and chromedriver, or None if one is not on the PATH."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    return chromium, shutil.which("chromedriver")


def page(observation: Mapping[str, Any], info: Mapping[str, Any], env: Any) -> str:
    """Render the instruction and a line per element: number, tag, text, value, id and classes."""
    lines = [f"Task: {observation['utterance']}"]
    for element in observation["dom_elements"]:
        tag, text = element["tag"], " ".join(str(element["text"]).split())
        if tag == "t":
            lines.append(f'"{text}"')
        elif text or tag not in QUIET:
            parts = [f"[{element['ref']}] {tag}", f'"{text}"' if text else ""]
            parts += [f"{key}={element[key]}" for key in ("value", "id", "classes") if element[key]]
            lines.append(" ".join(filter(None, parts)))
    return "\n".join(lines)


def command(reply: str) -> str:
    """Return the command in the last line of a reply.

    Raises:
        ValueError: The last line is not a valid command.
    """
    line = (reply.strip().splitlines() or [""])[-1].strip()
    _action(line)
    return line


def _action(line: str) -> dict[str, Any]:
    from miniwob.constants import DEFAULT_ALLOWED_KEYS

    if match := re.fullmatch(r"click (\d{1,6})", line):
        return {"action_type": "CLICK_ELEMENT", "ref": int(match[1])}
    if match := re.fullmatch(rf"type (\d{{1,6}}) ([ -~]{{1,{LONGEST}}})", line):
        return {
            "action_type": "FOCUS_ELEMENT_AND_TYPE_TEXT",
            "ref": int(match[1]),
            "text": match[2],
        }
    if line.startswith("key ") and line[4:] in DEFAULT_ALLOWED_KEYS:
        return {"action_type": "PRESS_KEY", "key": DEFAULT_ALLOWED_KEYS.index(line[4:])}
    if line == "wait":
        return {"action_type": "NONE"}
    raise ValueError("expected click REF, type REF TEXT, key KEY or wait")


class _Page(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A page that accepts commands and times out after ``seconds``."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        signs = "".join(map(chr, range(32, 127)))
        self.action_space = gymnasium.spaces.Text(LONGEST + 12, charset=signs)
        self._seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        milliseconds = int(self._seconds * 1000)
        driver = self.get_wrapper_attr("instance").driver
        driver.execute_script(f"core.EPISODE_MAX_TIME = {milliseconds};")
        return self.env.reset(seed=seed, options={"record_screenshots": False, **(options or {})})

    def step(self, action: str) -> Any:
        fields = _action(action)
        kinds = self.get_wrapper_attr("action_space_config").action_types
        return self.env.step({**fields, "action_type": kinds.index(fields["action_type"])})


def make(name: str, seconds: float) -> gymnasium.Env[Any, Any]:
    """Open a MiniWoB++ page in a browser. The reward does not depend on the time taken."""
    from miniwob.environment import MiniWoBEnvironment
    from miniwob.reward import get_raw_reward

    chromium, driver = browser()
    os.environ.setdefault("MINIWOB_CHROME_BINARY", chromium or "")
    os.environ.setdefault("MINIWOB_CHROMEDRIVER", driver or "")
    return _Page(MiniWoBEnvironment(name, reward_processor=get_raw_reward), seconds)


if ID not in gymnasium.registry:
    gymnasium.register(ID, f"{__name__}:make", disable_env_checker=True, order_enforce=False)
