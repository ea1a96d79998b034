"""Users' own tasksets, defined in a file, and ``evert evaluate tasks=all-offline``."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import psutil
import pytest
from tests.kit import Patch, Shown, play, reward

from evert.bridge.import_paths import resolve
from evert.envs.games import GameError, find_game
from evert.envs.tasksets import GROUP, task_game
from evert.envs.tasksets.common import needed, split
from evert.trainers import cli
from evert.trainers.commands import evaluate_all

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-game.md").read_text()


async def test_the_example_taskset_of_the_docs_works(tmp_path: Path, monkeypatch: Patch) -> None:
    [code] = re.findall(r'^```python\n("""Spelling.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "spelling.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    game = task_game({"id": "spelling:backward", "letters": "4"})
    agent = resolve(game.agent, "agent", GameError)
    assert not {*agent.train_tasks} & {*agent.test_tasks}
    for reply, earned in (("d-c-b-a", 1.0), ("a-b-c-d", 0.0)):
        assert reward(await play(agent, reply, task="abcd")) == earned
    with pytest.raises(GameError, match=r"unexpected .*'words'\. Its .* is \(way, letters=3\)"):
        task_game({"id": "spelling:backward", "words": "2"})
    with pytest.raises(GameError, match=r"expected forward or backward \(at .*spelling\.py:\d+\)"):
        task_game({"id": "spelling:bakward"})
    with pytest.raises(GameError, match="taskset function: use tasks=spelling:NAME"):
        find_game("spelling")


def test_held_out_tasks_are_a_fifth_and_reproducible() -> None:
    train, test = split([*range(50)])
    assert (len(train), len(test)) == (40, 10)
    assert sorted(train + test) == [*range(50)]
    assert split([*range(50)]) == (train, test)


def test_the_error_for_a_missing_package_has_its_install_command() -> None:
    with pytest.raises(GameError, match="requires the no-such package. Install it with: pip i"):
        needed("x", "no_such.part", "pip install no-such")


def test_unplayable_tasksets_are_listed(tmp_path: Path, monkeypatch: Patch, capsys: Shown) -> None:
    """Each taskset is evaluated in its own process. The output folder is enough to resume."""
    from evert.envs.from_gymnasium import recipe

    names = {"Blackjack-v1": {"max_tokens": 8}, "Nowhere-v0": {}}
    monkeypatch.setattr(recipe, "OFFLINE", names)
    entry = EntryPoint("gymnasium", f"{recipe.__name__}:gymnasium", GROUP)
    monkeypatch.setattr(evaluate_all, "entry_points", lambda group: [entry])
    arguments = ["evaluate", "tasks=all-offline", "models=evert-tiny-moves", "max_tasks=2"]
    arguments += [f"out={tmp_path / 'all'}", "device=cpu", "limits.max_turns=3"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(r"2/2  gymnasium:Nowhere-v0: skipped: .*Nowhere", printed)
    [row] = csv.DictReader((tmp_path / "all" / "scores.csv").read_text().splitlines())
    assert (row["tasks"], row["episodes"]) == ("gymnasium:Blackjack-v1", "2")
    episodes = tmp_path / "all" / "gymnasium-Blackjack-v1" / "episodes.jsonl"
    before = episodes.read_bytes()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["evaluate", "out=~/all"]) == 0
    assert episodes.read_bytes() == before
    shutil.rmtree(episodes.parent)
    assert cli.main(["evaluate", arguments[4]]) == 0
    evaluation = json.loads((episodes.parent / "evaluation.json").read_text())
    assert evaluation["settings"]["limits"]["max_turns"] == "3"
    assert cli.main([*arguments, "seed=1"]) == 1
    assert "gymnasium:Blackjack-v1: failed: " in capsys.readouterr().out


HALF_BROKEN = """
import openai
from evert import Game

OFFLINE = {"words": {}}
TASKS = ["a", "b"]

def taskset(name):
    tasks = f"{__name__}:TASKS"
    return Game("x/Words-v0", agent=f"{__name__}:agent", train_tasks=tasks, test_tasks=tasks)

async def agent(client, task):
    if task == "b":
        raise openai.OpenAIError("the search of b is down")
    return 1.0
"""


def test_failed_episodes_of_a_taskset_are_counted_with_an_error_and_its_location(
    tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    (tmp_path / "half_broken.py").write_text(HALF_BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("half_broken", "half_broken:taskset", GROUP)
    monkeypatch.setattr(evaluate_all, "entry_points", lambda group: [entry])
    assert cli.main(["evaluate", "tasks=all-offline", "models=evert-tiny", "out=all"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"1/1  half_broken:words: \d+ s\n  1 of 2 episodes failed", printed)
    assert "  one of them: OpenAIError: the search of b is down" in printed
    assert re.search(r'half_broken.py", line \d+, in agent', printed)


STUBBORN = """\
#!/bin/sh
trap 'echo told' INT
echo $$
while :; do sleep 0.05 & wait $!; done
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_an_evaluation_once_and_one_that_does_not_exit_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    program, output = tmp_path / "stubborn", tmp_path / "said"
    program.write_text(STUBBORN)
    program.chmod(0o700)
    code = "import sys, pathlib; from evert.trainers.commands import evaluate_all as these"
    code += "; these.STOP_SECONDS = 1; these._evaluate(sys.argv[1], {}, pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(program), str(output)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as evaluating:
        while not output.exists() or not output.read_text():
            time.sleep(0.01)
        while psutil.Process(evaluating.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)  # until it is waiting for the subprocess
        os.killpg(evaluating.pid, number)  # as a terminal would
        assert b"KeyboardInterrupt" in evaluating.communicate(timeout=60)[1]
    stubborn, *lines = output.read_text().split()
    assert lines == ["told"]
    assert not psutil.pid_exists(int(stubborn))


def test_user_errors_are_reported_before_anything_is_played(capsys: Shown) -> None:
    assert cli.main(["evaluate", "tasks=all-offline", "models=runs/no-such"]) == 1
    assert cli.main(["evaluate", "tasks=all-offline", "models=evert-tiny", "seeds=x"]) == 1
    message = capsys.readouterr().err
    assert "There is no run or model at 'runs/no-such'" in message
    assert "seeds takes an integer" in message
