"""``render``: mode "ansi" returns the conversation; mode "human" prints each message once, in color
only on a terminal. Without a mode, ``render`` warns, as in Gymnasium.
"""

import os
import pty
import subprocess
import sys

import gymnasium
import pytest
from tests.kit import Shown

from evert.envs.as_gymnasium.env import LEVELS, AgentGymEnv, Level

EPISODE = """[user]
Let's play a game. Say you are 3.

[assistant]
I am 3

-- completed: reward 1, 1 in all
"""


@pytest.mark.parametrize("level", LEVELS)
def test_ansi_returns_the_conversation_so_far(level: Level) -> None:
    env = AgentGymEnv("evert.envs.identity:identity_agent", [3], level=level, render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()
    env.reset()
    assert env.render() == EPISODE.partition("\n[assistant]")[0]
    text = "I am 3"
    env.step(text if level == "messages" else [*env._renderer.encode(text), 505])
    assert env.render() == env.render() == EPISODE
    env.close()


def test_the_closing_line_shows_the_total_reward() -> None:
    env = gymnasium.make("evert/GuessNumber-v0", render_mode="ansi_list", tasks=[3])
    env.reset()
    env.step("what?")
    env.step("Guess: 3")
    frames = env.render()
    assert isinstance(frames, list)  # Gymnasium collects the frames
    assert str(frames[-1]).endswith("[assistant]\nGuess: 3\n\n-- completed: reward 1, 0 in all\n")
    env.close()


def test_human_prints_each_message_once_and_as_plain_text(capsys: Shown) -> None:
    env = gymnasium.make("evert/Identity-v0", render_mode="human", tasks=[3])
    env.reset()
    assert env.render() is None
    env.step("I am 3")
    assert env.render() is None
    assert capsys.readouterr().out == EPISODE

    marked = "[bold]I am 3[/nothing] " + "long " * 60
    env.reset()
    env.step(marked)
    env.close()
    printed = capsys.readouterr().out
    assert (printed.count("[user]"), marked in printed) == (1, True)


def test_without_a_mode_render_warns() -> None:
    env = gymnasium.make("evert/Identity-v0", disable_env_checker=True)
    env.reset()
    with pytest.warns(UserWarning, match="the environment has no render_mode"):
        assert env.render() is None
    env.close()


SHOW = """
from types import SimpleNamespace
from evert.envs.as_gymnasium.transcript import Screen
messages = [{"role": "user", "content": "Who?"}]
Screen().show(SimpleNamespace(messages=messages, stop_reason=None), 0.0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_colour_is_used_only_on_terminals() -> None:
    command = [sys.executable, "-c", SHOW]
    unset = ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["TERM"] = "xterm-256color"
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, check=True, timeout=800, env=environment)
    os.close(theirs)
    assert "\x1b[" in os.read(ours, 10_000).decode()
    os.close(ours)
    piped = subprocess.run(
        command, capture_output=True, text=True, timeout=800, check=True, env=environment
    )
    assert piped.stdout == "[user]\nWho?\n\n"
