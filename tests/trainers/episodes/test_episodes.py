"""Planning and playing episodes, and scoring held-out tasks before and after training."""

import asyncio
import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from tests.kit import ask, asks_blocking
from tinker_cookbook.rl.rollout_strategy import FailFast

from evert import ScriptedPolicy
from evert.bridge.errors import AgentError, EvertError
from evert.bridge.groups.dataset import AgentDataset
from evert.bridge.tokens.bases import BASE_MODEL
from evert.envs.identity import identity_agent
from evert.trainers.episodes.playing import Player, failures, plan_episodes, play
from evert.trainers.training.held_out import (
    Evaluation,
    HeldOutError,
    read_evaluation,
    samples_markdown,
    score_weights,
)
from evert.trainers.training.strategies import LeaveOut

TASKS: dict[str, list[Any]] = {"train": ["a", {"word": "b", "category": "letter"}], "test": ["c"]}


def plan(*tasks: Any) -> Any:
    return plan_episodes("m", "d", {"test": tasks}, range(1))


def player(agent: Any, **options: Any) -> Player:
    return Player(lambda seed: agent, lambda env, seed: ScriptedPolicy(str.upper), **options)


async def echo(client: Any, task: str) -> float:
    await ask(client, task)
    await ask(client, task, "again")
    client.metric("calls_made", 1)
    client.log(transcript=f"said {task}")
    return 0.5


def test_every_task_of_every_split_is_planned_with_every_seed() -> None:
    found = plan_episodes("m", "d", TASKS, range(3, 5))
    assert [(e.split, e.task, e.seed) for e, _ in found] == [
        ("train", 0, 3), ("train", 0, 4), ("train", 1, 3), ("train", 1, 4),
        ("test", 0, 3), ("test", 0, 4),
    ]  # fmt: skip
    assert [task for _, task in found][::2] == ["a", TASKS["train"][1], "c"]
    assert [episode.category for episode, _ in found][::2] == ["", "letter", ""]
    assert {episode.key[0] for episode, _ in found} == {"d"}
    ours, theirs = ([e.draws for e, _ in plan_episodes(m, m, TASKS, range(4))] for m in ("m", "n"))
    assert len({*ours}) == len(ours)  # draws differ by task and seed, but not by model
    assert ours == theirs
    assert all(0 <= draws < 2**31 for draws in ours)


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


async def test_an_episode_has_its_reward_turns_and_transcript_and_a_dialogue_on_request() -> None:
    (episode,) = await play(plan("hello"), player(echo), success=0.5)
    assert (episode.reward, episode.success, episode.turns) == (0.5, True, 2)
    assert episode.tokens > 2
    assert episode.metrics["calls_made"] == 1
    assert episode.transcript == "said hello"
    assert episode.dialogue == []
    (episode,) = await play(plan("hello"), player(echo, dialogues=2))
    first, second = episode.dialogue  # each has only the new messages of its turn
    assert "hello" in first["told"]
    assert "HELLO" in first["said"]
    assert "again" in second["told"]


async def test_a_reward_equal_to_the_threshold_up_to_rounding_is_a_success() -> None:
    async def agent(client: Any, task: float) -> float:
        return task

    for enough in (0.3, 0.1 + 0.2):
        found = await play(plan(0.3, 0.1 + 0.2, 0.29), player(agent), success=enough)
        assert [episode.success for episode in found] == [True, True, False]
        assert {(each.failure, each.metrics["no_llm_call"]) for each in found} == {("", 1.0)}


async def failing(client: Any, task: str) -> float:
    raise ValueError("this does not work")


async def test_an_agent_failure_gives_an_episode_without_a_reward() -> None:
    (episode,) = await play(plan("a"), player(failing))
    assert (episode.reward, episode.success, episode.turns) == (None, False, 0)
    assert (episode.error, episode.failure) == ("ValueError: this does not work", "agent_error")
    assert "in failing" in episode.traceback
    assert failures([episode, replace(episode, failure="")]).kinds == {"agent_error": 1}


REQUEST: Any = httpx.Request("POST", "http://judge.example")


@pytest.mark.parametrize(
    "error",
    [
        openai.OpenAIError("no key"),
        openai.APIConnectionError(request=REQUEST),
        EvertError("raised by the agent"),
        ExceptionGroup("of a task group", [openai.OpenAIError("inside")]),
        SystemExit(3),
        asyncio.CancelledError("by the agent"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_agents_exception_fails_only_its_own_episode(error: BaseException) -> None:
    async def agent(client: Any, task: str) -> float:
        await ask(client, task)
        if task == "fails":
            raise error
        return 1.0

    found = await play(plan("a", "fails", "b"), player(agent))
    assert [episode.reward for episode in found] == [1.0, None, 1.0]
    assert (found[1].failure, bool(found[1].error)) == ("agent_error", True)
    assert 'test_episodes.py", line ' in found[1].traceback


@pytest.mark.parametrize("seats", [(), ("a", "b")])
async def test_a_dead_policy_endpoint_stops_the_evaluation(seats: tuple[str, ...]) -> None:
    async def agent(client: Any, task: str) -> float:
        await ask(client.seat("a") if seats else client, task)  # the other seat keeps waiting
        return 1.0

    def nobody_answers(prompt: str) -> str:
        raise openai.OpenAIError("nobody answers")

    policy = ScriptedPolicy(nobody_answers)
    with pytest.raises(openai.OpenAIError, match="nobody answers"):
        await play(plan("a"), Player(lambda seed: agent, lambda env, seed: policy, seats=seats))


CONFIG: Any = SimpleNamespace(
    base_url=None, model_name=BASE_MODEL, max_tokens=8, effective_rollout_strategy=FailFast
)
TOLERANT: Any = SimpleNamespace(**{**vars(CONFIG), "effective_rollout_strategy": LeaveOut})


def tasks(agent: Any = identity_agent, seed: int = 0, **options: Any) -> AgentDataset:
    return AgentDataset(agent, [1000, 1001, 1002], batch_size=3, group_size=4, seed=seed, **options)


async def score(dataset: AgentDataset | None, config: Any = CONFIG) -> Evaluation | None:
    return await score_weights(config, dataset, samples=2, parallel=4, base_model=BASE_MODEL)


async def found(dataset: AgentDataset, config: Any = CONFIG) -> Evaluation:
    evaluation = await score(dataset, config)
    assert evaluation is not None
    return evaluation


@pytest.mark.usefixtures("engine")
async def test_every_task_is_played_once_greedily_and_as_a_group_at_temperature_1() -> None:
    first, again, other = [await found(tasks(seed=seed)) for seed in (1, 1, 2)]
    episodes = {how: score.episodes for how, score in first.scores.items()}
    assert episodes == {"greedy": 3, "temperature_1": 12}
    assert {(s.model, s.split) for s in first.scores.values()} == {(BASE_MODEL, "test")}
    assert read_evaluation(json.loads(json.dumps(asdict(first)))) == first == again
    assert first.scores["greedy"] == other.scores["greedy"]
    assert first.scores["temperature_1"] != other.scores["temperature_1"]
    sample, second = first.samples  # the greedy episodes come first
    assert (sample.target, second.target) == ("1000", "1001")
    (turn,) = sample.dialogue
    assert "Say you are 1000." in turn["told"]
    assert turn["said"]
    text = samples_markdown("identity", [sample], [second])
    assert "## Task 1000" in text
    assert f">>> {turn['said']}" in text


@pytest.mark.usefixtures("engine")
async def test_greedy_and_sampled_episodes_share_one_limit_on_parallel_episodes() -> None:
    """The limit matters because an agent may be a thread or use several processes."""
    alive, most = 0, 0

    async def agent(client: Any, task: int) -> float:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await ask(client, str(task))
        alive -= 1
        return 0.0

    await found(tasks(agent))  # 15 episodes in total
    assert most == 4


async def test_without_held_out_tasks_there_is_no_score() -> None:
    assert await score(None) is None


def failing_agent(client: Any, task: int) -> float:
    if task == 1001:
        raise ValueError("no such number")
    return asks_blocking(client)


@pytest.mark.usefixtures("engine")
async def test_a_failed_episode_has_no_reward_and_is_reported() -> None:
    evaluation = await found(tasks(failing_agent), config=TOLERANT)
    greedy = evaluation.scores["greedy"]
    assert (greedy.episodes, greedy.errors, greedy.reward) == (3, 1, 1.0)
    failed = evaluation.failures
    assert (failed.episodes, failed.kinds) == (15, {"agent_error": 5})
    assert failed.commonest is not None
    assert failed.commonest.error == "ValueError: no such number"
    sample = evaluation.samples[1]
    assert "Before: failed, ValueError: no such number" in samples_markdown("x", [sample], [sample])
    assert read_evaluation(json.loads(json.dumps(asdict(evaluation)))) == evaluation


@pytest.mark.usefixtures("engine")
async def test_a_failing_agent_stops_a_fail_fast_run_unless_failures_have_a_reward() -> None:
    with pytest.raises(AgentError, match="failing_agent"):
        await score(tasks(failing_agent))
    evaluation = await found(tasks(failing_agent, on_agent_error=-1.0))
    assert evaluation.scores["greedy"].reward == pytest.approx(1 / 3)
    assert evaluation.failures.summary() == (
        "5 of 15 episodes failed and were scored (5 agent errors)"
    )


def test_an_invalid_record_of_an_evaluation_is_refused() -> None:
    empty: dict[str, Any] = {"scores": {}, "samples": []}
    odd = {"scores": {"greedy": 3, "temperature_1": 4}, "samples": []}
    for record in ({}, empty, odd, {"scores": None, "samples": None}):
        with pytest.raises(HeldOutError, match="Delete before.json to score the untrained weights"):
            read_evaluation(record)
