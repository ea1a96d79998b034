"""``evert evaluate``, end to end.

1. Models and players are told apart in a table, a CSV and figures; every episode is on record.
2. Interrupted and resumed, an evaluation ends with the same table; what was played is kept.
3. More models and more seeds are added to an evaluation; anything else is refused.
4. An agent of one's own is evaluated by its import path; one that fails is counted.
5. A run plays what it is told to play, by the weights that it has now, and scores as its training
   says it does.
6. An endpoint that is down stops the evaluation; one that answers is played with.
7. What goes wrong is said in a line; help is quick.
"""

import csv
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import chz
import pytest
from rich.console import Console
from tests.trainers.conftest import chat_endpoint

import evert
from evert.envs.guess_number import TEST_TASKS
from evert.trainers.commands import evaluate
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.episodes.playing import EPISODES, Episode, EpisodeLog
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.command import INTERRUPTED

IDENTITY = ["env=identity", "models=evert-tiny", "device=cpu", "max_tokens=12"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / evaluate.SCORES).open() as file:
        return list(csv.DictReader(file))


def episodes(folder: Path) -> list[Episode]:
    return [*EpisodeLog(folder).by_key.values()]


def run(*arguments: str) -> int:
    return evaluate.main(arguments, program=("evert", "evaluate"))


# -- 1. what it leaves behind --------------------------------------------------------------------


def test_players_without_a_model_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e"

    assert run("env=twenty_questions", "models=random,oracle", "max_tasks=9", f"out={out}") == 0

    shown = capsys.readouterr().out
    assert "twenty_questions: 4 episodes a task, temperature 1" in shown
    assert "oracle: 72 episodes in" in shown
    assert "100.0%" in shown
    found = {(row["model"], row["split"], row["category"]): row for row in rows(out)}
    assert float(found["oracle", "test", ""]["success"]) == 1.0
    assert float(found["oracle", "test", ""]["questions"]) < 8
    assert float(found["random", "", ""]["success"]) < 1.0
    assert found["random", "", ""]["episodes"] == "72"
    assert float(found["oracle", "", "animal"]["success"]) == 1.0
    for figure in (evaluate.SPLITS_FIGURE, evaluate.CATEGORIES_FIGURE):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")


def test_every_episode_is_on_record_with_its_transcript(tmp_path: Path) -> None:
    run("env=twenty_questions", "models=oracle", "max_tasks=2", "seeds=2", f"out={tmp_path}/e")
    played = episodes(tmp_path / "e")

    assert len({episode.key for episode in played}) == len(played) == 8
    assert all(episode.success and episode.transcript for episode in played)
    assert all(episode.metrics["questions"] > 1 for episode in played)
    assert {episode.split for episode in played} == {"train", "test"}


def test_weights_of_the_embedded_engine_are_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(*IDENTITY, "split=test", "max_tasks=6", "seeds=3", f"out={tmp_path}/e")

    assert code == 0
    shown = capsys.readouterr().out
    assert "evert-tiny: engine: embedded on cpu, 1 thread" in shown
    played = episodes(tmp_path / "e")
    answers = [line for line in shown.splitlines() if line.startswith("evert-tiny, task ")]
    first = {e.target: e for e in reversed(played) if e.seed == 0 and e.dialogue}
    assert len(answers) == len(first) == evaluate.SHOWN
    for line in answers:
        told = first[line.removeprefix("evert-tiny, task ").partition(":")[0]]
        said = " ".join(told.dialogue[-1]["said"].split())
        assert line.endswith(f': "{said}" (reward {told.reward:g})')
    assert len(played) == 18
    assert {episode.turns for episode in played} == {1}
    assert all(0 < episode.tokens <= 12 for episode in played)
    assert len({episode.reward for episode in played}) > 1
    assert not (tmp_path / "e" / evaluate.CATEGORIES_FIGURE).exists()


def test_tasks_are_spread_evenly_and_the_same_ones_for_everyone(tmp_path: Path) -> None:
    run("env=twenty_questions", "models=random,oracle", "max_tasks=4", f"out={tmp_path}/e")
    played = episodes(tmp_path / "e")
    of = {m: {e.target for e in played if e.model == m} for m in ("random", "oracle")}

    assert of["random"] == of["oracle"]
    assert len({e.category for e in played}) > 3


# -- 2. interrupted ------------------------------------------------------------------------------


def test_interrupted_and_resumed_gives_the_same_table(tmp_path: Path) -> None:
    arguments = [*IDENTITY, "split=test", "parallel=1", "max_tasks=24", "seeds=8"]
    command = [sys.executable, "-m", "evert.trainers.commands.evaluate", *arguments]
    part, whole = tmp_path / "part", tmp_path / "whole"

    process = subprocess.Popen(
        [*command, f"out={part}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (part / EPISODES).exists() or (part / EPISODES).read_text().count("\n") < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=280)
    kept = episodes(part)

    assert process.returncode == INTERRUPTED, errors
    assert 20 <= len(kept) < 192
    resume = shlex.split(shown.rpartition("to go on: ")[2])
    assert resume == ["python", "-m", "evert.trainers.commands.evaluate", f"out={part}"]
    assert run(*resume[3:]) == 0
    assert run(*arguments, "parallel=64", f"out={whole}") == 0
    assert episodes(part)[: len(kept)] == kept
    assert rows(part) == rows(whole)


def test_an_episode_cut_off_by_a_crash_is_played_again(tmp_path: Path) -> None:
    arguments = ["env=twenty_questions", "models=oracle", "max_tasks=3", f"out={tmp_path}/e"]
    run(*arguments)
    before, log = rows(tmp_path / "e"), tmp_path / "e" / EPISODES
    log.write_text(log.read_text()[:-40])

    assert run(*arguments) == 0
    assert rows(tmp_path / "e") == before
    assert len(episodes(tmp_path / "e")) == 24


def test_going_on_looks_each_episode_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["env=twenty_questions", "models=oracle", "max_tasks=8", f"out={tmp_path}/e"]
    run(*arguments)
    asked: list[Episode] = []

    def key(episode: Episode) -> tuple[str, str, int, int]:
        asked.append(episode)
        return episode.digest, episode.split, episode.task, episode.seed

    monkeypatch.setattr(Episode, "key", property(key))

    assert run(*arguments) == 0
    assert len(asked) <= 4 * 64


# -- 3. going on with more -----------------------------------------------------------------------


def test_a_model_and_a_seed_are_added_to_an_evaluation(tmp_path: Path) -> None:
    out = f"out={tmp_path}/e"
    run("env=twenty_questions", "models=oracle", "max_tasks=3", "seeds=1", out)
    first = episodes(tmp_path / "e")

    assert run("models=oracle,random", "seeds=2", out) == 0

    played = episodes(tmp_path / "e")
    assert played[: len(first)] == first
    assert len(played) == 6 * 2 * 2


def test_other_tasks_in_the_same_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"out={tmp_path}/e"
    run("env=twenty_questions", "models=oracle", "max_tasks=3", out)
    before = (tmp_path / "e" / EPISODES).read_bytes()

    assert run("env=twenty_questions", "models=oracle", "max_tasks=5", out) == 1
    assert "max_tasks: 3 -> 5" in capsys.readouterr().err
    assert (tmp_path / "e" / EPISODES).read_bytes() == before


def test_a_folder_with_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    assert run("env=twenty_questions", "models=oracle", f"out={tmp_path}") == 1
    assert "not empty, and is none of evert's evaluations" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


# -- 4. agents of one's own ----------------------------------------------------------------------

OWN_AGENT = """
TASKS = [{"word": word, "category": word[0]} for word in ("ab", "ac", "bd", "be")]

async def agent(client, task):
    if task["word"] == "be":
        raise ValueError("no such word")
    messages = [{"role": "user", "content": "Repeat: " + task["word"]}]
    reply = await client.chat.completions.create(messages=messages)
    client.metric("questions", 1)
    return 0.5 * ("a" in reply.choices[0].message.content)
"""


def test_an_agent_of_ones_own_is_evaluated_and_its_failures_are_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evaluated_agent.py").write_text(OWN_AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["agent=evaluated_agent:agent", "test_tasks=evaluated_agent:TASKS", "success=0.5"]

    assert run(*own, "models=evert-tiny", "seeds=2", "max_tokens=8", "out=e") == 0

    played = episodes(tmp_path / "e")
    failed = [episode for episode in played if episode.error]
    assert len(played) == 8
    assert [episode.reward for episode in failed] == [None, None]
    assert all("no such word" in episode.error for episode in failed)
    assert any(episode.success for episode in played)
    (total,) = [row for row in rows(tmp_path / "e") if not row["category"]]
    assert (total["errors"], total["episodes"]) == ("2", "8")
    shown = capsys.readouterr().out
    assert "2 (25%)" in shown
    assert "evert-tiny: 2 of 8 episodes failed (2 agent errors)\n" in shown
    assert "the commonest, 2 times: ValueError: no such word\n" in shown
    assert 'evaluated_agent.py", line ' in shown


TENTHS = """
TASKS = ["a", "b"]

def agent(client, task):
    for _ in range(10):
        client.reward(0.1)
        client.chat.completions.create(messages=[{"role": "user", "content": task}], max_tokens=2)
"""


def test_ten_tenths_of_a_reward_are_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tenths_agent.py").write_text(TENTHS)
    monkeypatch.chdir(tmp_path)
    own = ["agent=tenths_agent:agent", "test_tasks=tenths_agent:TASKS", "models=evert-tiny"]

    assert run(*own, "seeds=1", "out=e") == 0

    played = episodes(tmp_path / "e")
    assert sum([0.1] * 10) < 1
    assert [(episode.success, episode.turns) for episode in played] == [(True, 10)] * 2


# -- 5. runs -------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "env": "identity",
    "batch_size": 4,
    "group_size": 4,
    "samples": 0,
    "eval_every": 0,
}


def train(folder: Path, steps: int) -> RunFolder:
    return evert.train(
        **SMALL, device="cpu", seed=1, steps=steps, log_path=folder, console=Console(quiet=True)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of identity."""
    return train(tmp_path_factory.mktemp("runs") / "a", 1)


def test_training_and_evaluating_find_the_same_score(trained: RunFolder, tmp_path: Path) -> None:
    after = trained.after
    assert after is not None
    tests = ["env=identity", f"models={trained.path}", "split=test"]

    assert run(*tests, "seeds=4", "seed=4", f"out={tmp_path}/warm") == 0
    assert run(*tests, "seeds=1", "temperature=0", f"out={tmp_path}/cold") == 0

    for out, how in (("warm", "temperature_1"), ("cold", "greedy")):
        (row,) = rows(tmp_path / out)
        assert row["episodes"] == str(after[how]["episodes"])
        for name in ("reward", "success", "low", "high"):
            assert float(row[name]) == pytest.approx(after[how][name], abs=1e-4)


def test_a_run_plays_the_game_that_is_named(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["env=guess_number", f"models={trained.path}", "split=test", "max_tasks=2"]

    assert run(*arguments, "seeds=1", f"out={tmp_path}/e") == 0

    assert {episode.target for episode in episodes(tmp_path / "e")} <= set(map(str, TEST_TASKS))
    shown = capsys.readouterr().out
    assert "plays evert.envs.guess_number:guess_number_agent; it was trained with" in shown


def test_a_run_that_was_trained_further_is_played_anew(trained: RunFolder, tmp_path: Path) -> None:
    folder = shutil.copytree(trained.path, tmp_path / "run")
    arguments = ["env=identity", f"models={folder}", "split=test", "seeds=1", f"out={tmp_path}/e"]
    assert run(*arguments) == 0
    first = episodes(tmp_path / "e")

    train(folder, 2)
    assert run(*arguments) == 0

    both = episodes(tmp_path / "e")
    (row,) = rows(tmp_path / "e")
    assert both[: len(first)] == first
    assert len(both) == 2 * len(first)
    assert float(row["reward"]) == pytest.approx(
        fmean(episode.reward or 0.0 for episode in both[len(first) :]), abs=1e-4
    )


def test_the_same_weights_are_played_once_whatever_they_are_called(
    trained: RunFolder, tmp_path: Path
) -> None:
    models = f"models={trained.path},{trained.path}@1"

    assert run("env=identity", models, "split=test", "seeds=1", f"out={tmp_path}/e") == 0

    assert len(episodes(tmp_path / "e")) == 24
    first, second = rows(tmp_path / "e")
    assert second.pop("model") == first.pop("model") + "@1"
    assert first == second


# -- 6. endpoints --------------------------------------------------------------------------------


def asks_from_a_list(body: dict[str, Any], key: str) -> dict[str, Any]:
    """A model that searches once if it can, and then guesses dogs and cats."""
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        function = {"name": "search", "arguments": '{"query": "dog"}'}
        call = {"id": "1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    is_first = [m["role"] for m in body["messages"]].count("user") == 1
    return {"role": "assistant", "content": "Is it a dog?" if is_first else "Is it a cat?"}


@pytest.fixture
def endpoint() -> Iterator[str]:
    with chat_endpoint(asks_from_a_list) as address:
        yield address


@pytest.mark.parametrize("search", [False, True])
def test_an_endpoint_plays_and_its_searches_are_counted(
    endpoint: str, tmp_path: Path, search: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["env=twenty_questions", "models=openai:cat", f"base_url={endpoint}", "seeds=1"]

    code = run(*arguments, "max_tasks=5", "split=train", f"search={search}", f"out={tmp_path}/e")

    played = episodes(tmp_path / "e")
    assert code == 0
    assert any(episode.success for episode in played)
    lost = next(episode for episode in played if not episode.success)
    assert lost.metrics["questions"] == 20
    assert lost.metrics["searches"] == 20 * search
    assert "openai:cat: 5 episodes in" in capsys.readouterr().out  # and no picture of a cat


def test_an_endpoint_that_is_down_stops_the_evaluation_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    out = f"out={tmp_path}/e"
    nobody = "base_url=http://127.0.0.1:9/v1"
    arguments = ["env=twenty_questions", "models=oracle,openai:gpt", "max_tasks=2", "parallel=2"]

    assert run(*arguments, nobody, out) == 1

    said = capsys.readouterr().err
    assert (
        "error: openai:gpt: the endpoint does not answer as it should: APIConnectionError" in said
    )
    assert f"to go on: evert evaluate {out}" in said
    assert {episode.model for episode in episodes(tmp_path / "e")} == {"oracle"}


# -- 7. mistakes, and help -----------------------------------------------------------------------


OWN = ["agent=evert.envs.identity:identity_agent", "test_tasks=evert.envs.identity:TEST_TASKS"]
OWN += ["models=evert-tiny"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["env=identity", "models="], "No model to evaluate"),
        (["models=evert-tiny"], "No tasks to evaluate on"),
        (["env=identity", "agent=a:b", "models=evert-tiny"], "expected one"),
        (["env=xiangqi", "models=evert-tiny"], "There is no game 'xiangqi'"),
        (["env=identity", "models=evert-tiny", "seeds=0"], "seeds must be at least 1, got 0"),
        (["env=identity", "models=runs/none/here"], "no run and no model at 'runs/none/here'"),
        (["env=identity", "models=evert-tiny", "search=True"], "no twin with a search tool"),
        (["agent=no.such:thing", "test_tasks=a:b", "models=evert-tiny"], "No "),
        (["identity"], "Did you mean env=identity?"),
        (["--env", "identity"], "settings are given as key=value"),
        (["env=identity", "modles=evert-tiny"], "Did you mean 'models'?"),
        (["env=identity", "models=evert-tiny", "seeds=four"], "seeds takes a whole number"),
        (["env=identity", "models=evert-tiny", "temperature=nan"], "takes a finite number"),
        (["env=identity", "models=evert-tiny", "max_tasks=0"], "max_tasks must be at least 1"),
        (["env=identity", "models=evert-tiny", "temperature=-1"], "temperature must be at least 0"),
        (["env=identity", "models=evert-tiny", "device=gpu"], "device takes auto, cpu"),
        (["env=identity", "models=some-model"], "some-model is none of the bases"),
        ([*OWN, "split=train"], "no such tasks"),
        (["env=identity", "models=runs/none"], "no run and no model at 'runs/none'"),
        ([*OWN, "models.judge=runs/none"], "no run and no model at 'runs/none'"),
        ([*OWN, "models.judge.temperature=0"], "models.judge.temperature is of no model"),
        ([*OWN, "models.policy=evert-tiny"], "has the policy's own name"),
        ([*OWN, "limits.max_turn=3"], "Did you mean 'limits.max_turns'?"),
        ([*OWN, "limits=3"], "limits takes paths: limits.max_turns=20, for example; got '3'"),
        ([*OWN, "seats=one"], "seats must be two or more different names"),
        ([*OWN, "frozen.judge=evert-tiny"], "There is no setting 'frozen.judge'"),
        ([*OWN, "policy_names=a,a"], "policy_names must be a model name or several different"),
    ],
)
def test_a_mistake_is_a_line_and_leaves_nothing(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(*arguments) == 1
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0

    shown, errors = capsys.readouterr()
    mappings = {"limits.KEY", "parse_error_policy.KEY", "models.KEY", "gym.KEY"}
    by_key = {"limits", "parse_error_policy", "frozen", "gym"}
    plain = chz.chz_fields(EvaluateSettings).keys() - by_key
    assert all(f"\n  {name}=" in shown for name in plain | mappings)
    assert "frozen.KEY" not in shown
    assert "who plays" in shown
    assert errors == ""


def test_help_loads_nothing_heavy_and_warns_of_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from evert.trainers.commands import evaluate; "
        "assert evaluate.main(['--help']) == 0; "
        "print([*{'torch', 'tinker', 'transformers', 'openai', 'matplotlib'} & {*sys.modules}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    assert done.stdout.splitlines()[-1] == "[]"
    assert "warning" not in (done.stdout + done.stderr).lower()


def test_records_of_another_version_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["env=twenty_questions", "models=oracle", "max_tasks=1", f"out={tmp_path}/e"]
    run(*arguments)
    with (tmp_path / "e" / EPISODES).open("a") as file:
        file.write('{"model": "oracle", "colour": "red"}\n')

    assert run(*arguments) == 1
    assert "other fields than this version of evert writes" in capsys.readouterr().err
