"""Episodes: planned, played, written down.

What is planned is every task of every split with every seed; what is played comes back in that
order. An agent's failure is an episode without a reward, or is raised; an endpoint's is raised.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from evert import ScriptedPolicy
from evert.bridge.errors import AgentError
from evert.trainers.episodes.playing import (
    EPISODES,
    Episode,
    EpisodeError,
    EpisodeLog,
    Player,
    failures,
    planned,
    play,
)

TASKS: dict[str, list[Any]] = {"train": ["a", {"word": "b", "category": "letter"}], "test": ["c"]}


def plan(*tasks: Any, seeds: int = 1) -> Any:
    return planned("m", "d", {"test": tasks}, range(seeds))


def player(agent: Any, **options: Any) -> Player:
    return Player(lambda seed: agent, lambda env, seed: ScriptedPolicy(str.upper), **options)


async def echo(client: Any, task: str) -> float:
    messages = [{"role": "user", "content": task}]
    await client.chat.completions.create(messages=messages)
    messages += [{"role": "user", "content": "again"}]
    await client.chat.completions.create(messages=messages)
    client.metric("calls_made", 1)
    client.log(transcript=f"said {task}")
    return 0.5


# -- planned ----------------------------------------------------------------------------------


def test_every_task_of_every_split_is_planned_with_every_seed() -> None:
    found = planned("m", "d", TASKS, range(3, 5))

    assert [(e.split, e.task, e.seed) for e, _ in found] == [
        ("train", 0, 3), ("train", 0, 4), ("train", 1, 3), ("train", 1, 4),
        ("test", 0, 3), ("test", 0, 4),
    ]  # fmt: skip
    assert [task for _, task in found][::2] == ["a", TASKS["train"][1], "c"]
    assert [episode.category for episode, _ in found][::2] == ["", "letter", ""]
    assert {episode.key[0] for episode, _ in found} == {"d"}


def test_draws_differ_by_task_and_seed_and_not_by_model() -> None:
    ours, theirs = (planned(model, model, TASKS, range(4)) for model in ("m", "n"))

    assert len({episode.draws for episode, _ in ours}) == len(ours)
    assert [e.draws for e, _ in ours] == [e.draws for e, _ in theirs]
    assert all(0 <= episode.draws < 2**31 for episode, _ in ours)


# -- played -----------------------------------------------------------------------------------


async def test_episodes_come_back_in_the_order_of_the_plan() -> None:
    over: list[str] = []
    gates = {name: asyncio.Event() for name in ("slow", "quick")}
    gates["quick"].set()

    async def agent(client: Any, task: str) -> float:
        await gates[task].wait()
        gates["slow"].set()
        return 1.0 if task == "slow" else 0.0

    found = await play(plan("slow", "quick"), player(agent), lambda e: over.append(e.target))

    assert over == ["quick", "slow"]
    assert [(episode.target, episode.reward) for episode in found] == [
        ("slow", 1.0),
        ("quick", 0.0),
    ]


async def test_no_more_are_played_at_a_time_than_was_said() -> None:
    playing: list[int] = []
    most = 0

    async def agent(client: Any, task: int) -> float:
        nonlocal most
        playing.append(task)
        most = max(most, len(playing))
        await asyncio.sleep(0)
        playing.remove(task)
        return 0.0

    await play(plan(*range(12)), player(agent), places=asyncio.Semaphore(3))

    assert most == 3


# -- what an episode has ----------------------------------------------------------------------


async def test_an_episode_has_its_reward_turns_counts_transcript_and_a_dialogue_if_asked() -> None:
    (episode,) = await play(plan("hello"), player(echo), success=0.5)

    assert (episode.reward, episode.success, episode.turns) == (0.5, True, 2)
    assert episode.tokens > 2
    assert episode.metrics["calls_made"] == 1
    assert episode.transcript == "said hello"
    assert episode.dialogue == []

    (episode,) = await play(plan("hello"), player(echo, dialogues=2))
    first, second = episode.dialogue  # what is new at each turn
    assert "hello" in first["told"]
    assert "HELLO" in first["said"]
    assert "again" in second["told"]


async def test_a_reward_that_is_enough_but_for_rounding_is_a_success() -> None:
    async def agent(client: Any, task: float) -> float:
        return task

    for enough in (0.3, 0.1 + 0.2):
        found = await play(plan(0.3, 0.1 + 0.2, 0.29), player(agent), success=enough)
        assert [episode.success for episode in found] == [True, True, False]


# -- failures ---------------------------------------------------------------------------------


async def failing(client: Any, task: str) -> float:
    raise ValueError("this does not work")


async def test_an_agents_failure_is_an_episode_without_a_reward() -> None:
    (episode,) = await play(plan("a"), player(failing))

    assert (episode.reward, episode.success, episode.turns) == (None, False, 0)
    assert (episode.error, episode.failure) == ("ValueError: this does not work", "agent_error")
    assert "in failing" in episode.traceback
    assert failures([episode, replace(episode, failure="")]).kinds == {"agent_error": 1}


async def test_an_agent_that_calls_no_model_has_not_failed() -> None:
    """Players without a model call none."""

    async def agent(client: Any, task: str) -> float:
        return 1.0

    (episode,) = await play(plan("a"), player(agent))

    assert (episode.reward, episode.failure, episode.metrics["no_llm_call"]) == (1.0, "", 1.0)


async def test_a_strict_players_failure_is_raised() -> None:
    with pytest.raises(AgentError, match="failing"):
        await play(plan("a"), player(failing, strict=True))


async def test_an_endpoint_of_the_agents_own_that_is_down_is_no_failure_of_the_agent() -> None:
    async def agent(client: Any, task: str) -> float:
        raise openai.OpenAIError("nobody answers")

    with pytest.raises(openai.OpenAIError, match="nobody answers"):
        await play(plan("a", "b"), player(agent))


# -- written down --------------------------------------------------------------------------------


async def test_the_log_has_what_was_played_and_a_line_that_a_crash_cut_off_is_set_aside(
    tmp_path: Path,
) -> None:
    log = EpisodeLog(tmp_path)
    found = await play(plan("a", "b", seeds=2), player(echo, dialogues=2), log.add)
    assert EpisodeLog(tmp_path).by_key == log.by_key == {each.key: each for each in found}

    path = tmp_path / EPISODES
    path.write_text(path.read_text()[:-30])
    assert len(EpisodeLog(tmp_path).by_key) == len(found) - 1
    assert len(path.read_text().splitlines()) == len(found) - 1


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(EpisodeError, match="'colour'.*Start anew in another folder"):
        Episode.read({"model": "m", "colour": "red"})
