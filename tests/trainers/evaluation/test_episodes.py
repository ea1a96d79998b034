"""Episodes: planned and played.

What is planned is every task of every split with every seed; what is played comes back in that
order. An agent's failure is an episode without a reward; an endpoint's is raised. How many are
played at a time, and what is strict: ``test_held_out.py``; the log: ``test_evaluate_command.py``.
"""

import asyncio
from dataclasses import replace
from typing import Any

import openai
import pytest
from tests.kit import ask

from evert import ScriptedPolicy
from evert.trainers.episodes.playing import Player, failures, planned, play

TASKS: dict[str, list[Any]] = {"train": ["a", {"word": "b", "category": "letter"}], "test": ["c"]}


def plan(*tasks: Any) -> Any:
    return planned("m", "d", {"test": tasks}, range(1))


def player(agent: Any, **options: Any) -> Player:
    return Player(lambda seed: agent, lambda env, seed: ScriptedPolicy(str.upper), **options)


async def echo(client: Any, task: str) -> float:
    await ask(client, task)
    await ask(client, task, "again")
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
    ours, theirs = ([e.draws for e, _ in planned(m, m, TASKS, range(4))] for m in ("m", "n"))

    assert len({*ours}) == len(ours)
    assert ours == theirs
    assert all(0 <= draws < 2**31 for draws in ours)


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
    assert [(each.target, each.reward) for each in found] == [("slow", 1.0), ("quick", 0.0)]


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


async def test_an_endpoint_of_the_agents_own_that_is_down_is_no_failure_of_the_agent() -> None:
    async def agent(client: Any, task: str) -> float:
        raise openai.OpenAIError("nobody answers")

    with pytest.raises(openai.OpenAIError, match="nobody answers"):
        await play(plan("a", "b"), player(agent))
