"""``evert evaluate``, end to end.

Models and players are told apart in a table, a CSV and figures; every episode is on record, and is
played once, however often an evaluation is interrupted, gone on with or added to. A run scores as
its training says it does. Mistakes: ``test_refusals.py``.
"""

import csv
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tests.trainers.conftest import chat_endpoint

from evert.envs.guess_number import TEST_TASKS
from evert.trainers.commands import evaluate, train
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
    return evaluate.main(arguments)


# -- what it leaves behind -----------------------------------------------------------------------


def test_players_without_a_model_are_compared_and_every_episode_is_on_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e"

    assert (
        run("env=twenty_questions", "models=random,oracle", "max_tasks=9", "seeds=2", f"out={out}")
        == 0
    )

    shown = capsys.readouterr().out
    assert "twenty_questions: 2 episodes a task, temperature 1" in shown
    assert "oracle: 36 episodes in" in shown
    assert "100.0%" in shown
    found = {(row["model"], row["split"], row["category"]): row for row in rows(out)}
    assert float(found["oracle", "test", ""]["success"]) == 1.0
    assert float(found["oracle", "test", ""]["questions"]) < 8
    assert float(found["random", "", ""]["success"]) < 1.0
    assert found["random", "", ""]["episodes"] == "36"
    assert float(found["oracle", "", "animal"]["success"]) == 1.0
    for figure in (evaluate.SPLITS_FIGURE, evaluate.CATEGORIES_FIGURE):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")

    played = episodes(out)
    assert len({episode.key for episode in played}) == len(played) == 72
    assert {episode.split for episode in played} == {"train", "test"}
    assert all(e.success and e.transcript for e in played if e.model == "oracle")
    of = {m: {e.target for e in played if e.model == m} for m in ("random", "oracle")}
    assert of["random"] == of["oracle"]  # tasks, which are spread evenly
    assert len({episode.category for episode in played}) > 3


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


# -- interrupted, and gone on with -------------------------------------------------------------


def test_interrupted_and_resumed_gives_the_same_table(tmp_path: Path) -> None:
    arguments = [*IDENTITY, "split=test", "parallel=1", "max_tasks=24", "seeds=8"]
    command = [sys.executable, "-m", "evert.trainers.cli", "evaluate", *arguments]
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
    assert resume == ["evert", "evaluate", f"out={part}"]
    assert run(*resume[2:], "parallel=64") == 0
    assert run(*arguments, "parallel=64", f"out={whole}") == 0
    assert episodes(part)[: len(kept)] == kept
    assert rows(part) == rows(whole)


ORACLE = ["env=twenty_questions", "models=oracle", "max_tasks=3"]


def test_what_was_played_is_kept_when_a_line_is_cut_off_and_when_models_and_seeds_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "e"
    out, log = f"out={folder}", folder / EPISODES
    run(*ORACLE, "seeds=1", out)
    table, first = rows(folder), episodes(folder)
    log.write_text(log.read_text()[:-40])
    assert run(*ORACLE, "seeds=1", out) == 0
    assert (rows(folder), episodes(folder)) == (table, first)

    asked: list[Episode] = []

    def key(episode: Episode) -> tuple[str, str, int, int]:
        asked.append(episode)
        return episode.digest, episode.split, episode.task, episode.seed

    with monkeypatch.context() as patch:
        patch.setattr(Episode, "key", property(key))
        assert run("models=oracle,random", "seeds=2", out) == 0
    assert len(asked) <= 4 * 24  # each is looked up once
    played = episodes(folder)
    assert played[: len(first)] == first
    assert len(played) == 6 * 2 * 2

    before = log.read_bytes()
    capsys.readouterr()
    assert run(*ORACLE, "max_tasks=5", out) == 1
    assert "max_tasks: 3 -> 5" in capsys.readouterr().err
    assert log.read_bytes() == before
    with log.open("a") as file:
        file.write('{"model": "oracle", "colour": "red"}\n')
    assert run(out) == 1
    assert "other fields than this version of evert writes" in capsys.readouterr().err


# -- agents of one's own ----------------------------------------------------------------------

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


# -- runs ----------------------------------------------------------------------------------------


def test_training_and_evaluating_find_the_same_score(finished: RunFolder, tmp_path: Path) -> None:
    after = finished.after
    assert after is not None
    tests = ["env=identity", f"models={finished.path}", "split=test"]

    assert run(*tests, "seeds=4", "seed=0", f"out={tmp_path}/warm") == 0
    assert run(*tests, "seeds=1", "temperature=0", f"out={tmp_path}/cold") == 0

    for out, how in (("warm", "temperature_1"), ("cold", "greedy")):
        (row,) = rows(tmp_path / out)
        assert row["episodes"] == str(after[how]["episodes"])
        for name in ("reward", "success", "low", "high"):
            assert float(row[name]) == pytest.approx(after[how][name], abs=1e-4)


def test_a_run_plays_the_game_that_is_named_and_the_same_weights_once(
    finished: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = f"models={finished.path},{finished.path}@3"
    arguments = ["env=guess_number", models, "split=test", "max_tasks=2", "seeds=1"]

    assert run(*arguments, f"out={tmp_path}/e") == 0

    shown = capsys.readouterr().out
    assert "plays evert.envs.guess_number:guess_number_agent; it was trained with" in shown
    played = episodes(tmp_path / "e")
    assert len(played) == 2
    assert {episode.target for episode in played} <= set(map(str, TEST_TASKS))
    first, second = rows(tmp_path / "e")
    assert second.pop("model") == first.pop("model") + "@3"
    assert first == second


def test_a_run_that_was_trained_further_is_played_anew(copied: RunFolder, tmp_path: Path) -> None:
    arguments = ["env=identity", f"models={copied.path}", "split=test", "seeds=1", "max_tasks=6"]
    assert run(*arguments, f"out={tmp_path}/e") == 0
    first = episodes(tmp_path / "e")

    assert train.main([f"log_path={copied.path}", "steps=4"]) == 0
    assert run(*arguments, f"out={tmp_path}/e") == 0

    both = episodes(tmp_path / "e")
    (row,) = rows(tmp_path / "e")
    assert both[: len(first)] == first
    assert len(both) == 2 * len(first)
    assert float(row["reward"]) == pytest.approx(
        fmean(episode.reward or 0.0 for episode in both[len(first) :]), abs=1e-4
    )


# -- endpoints --------------------------------------------------------------------------------


def asks_from_a_list(body: dict[str, Any], key: str) -> dict[str, Any]:
    """A model that searches once if it can, and then guesses dogs and cats."""
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        function = {"name": "search", "arguments": '{"query": "dog"}'}
        call = {"id": "1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    is_first = [m["role"] for m in body["messages"]].count("user") == 1
    return {"role": "assistant", "content": "Is it a dog?" if is_first else "Is it a cat?"}


def test_an_endpoint_plays_and_its_searches_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_endpoint(asks_from_a_list) as address:
        asked = ["env=twenty_questions", "models=openai:cat", f"base_url={address}", "seeds=1"]
        assert run(*asked, "max_tasks=5", "split=train", "search=True", f"out={tmp_path}/e") == 0

    played = episodes(tmp_path / "e")
    assert any(episode.success for episode in played)
    lost = next(episode for episode in played if not episode.success)
    assert (lost.metrics["questions"], lost.metrics["searches"]) == (20, 20)
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
