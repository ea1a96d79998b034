"""Rewards that compare the episodes of a group, including ranking by a frozen model."""

import asyncio
import math
import pickle
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from tests.kit import ask, asks, assistant, play_group, user
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import Trajectory

from evert import Outcome, PlayedGroup, RewardError
from evert.bridge.chat.reply import read_reply
from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import EvertError, InvalidModelError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.groups.judge import judge_group, read_ranking
from evert.bridge.groups.rewards import GroupReward
from evert.bridge.models.remote import RemoteModel
from evert.bridge.models.tinker_model import TinkerModel
from evert.bridge.tokens.bases import default_renderer
from evert.envs.identity import identity_agent
from evert.trainers.engine.embedded import embedded_engine

SEATS = ("player", "judge")


async def seated(client: Any, task: object) -> float:
    for seat in SEATS:
        await ask(client.seat(seat), f"You are {seat}.")
    return 0.0


async def play_with(reward: GroupReward | None, agent: Any, task: Any, **options: Any) -> Any:
    return await play_group(agent, 2, *["I am 7"] * 21, task=task, group_reward=reward, **options)


async def input_of(agent: Any = identity_agent, task: Any = 7, **options: Any) -> PlayedGroup:
    groups: list[PlayedGroup] = []

    def keep(group: PlayedGroup) -> list[float]:
        groups.append(group)
        assert len(group.transcripts) == len(group)  # only available inside the reward function
        return [0.0 for _ in group]

    await play_with(keep, agent, task, **options)
    [group] = groups
    return group


async def test_a_group_reward_receives_the_trajectories_their_task_and_their_seats() -> None:
    group = await input_of()
    assert [type(trajectory) for trajectory in group] == [Trajectory, Trajectory]
    assert group.task == 7
    assert (group.seats, group.episodes) == ([None, None], [0, 1])
    assert group.renderer is default_renderer()
    assert (await input_of(asks, NO_TASK)).task is NO_TASK
    group = await input_of(seated, seats=SEATS)
    assert group.seats == ["player", "judge", "player", "judge"]
    assert group.episodes == [0, 0, 1, 1]
    assert "You are judge." in group.transcripts[1]


async def test_a_played_group_has_the_latest_value_of_each_metric() -> None:
    async def agent(client: Any) -> float:
        for number in range(2):
            await ask(client)
            client.metric("calls", number + 1)
        return 1.0

    group = await input_of(agent, NO_TASK)
    assert [metrics["calls"] for metrics in group.metrics] == [2, 2]
    assert group.metrics[0]["stop/completed"] == 1.0
    assert group.metrics[0]["lineages"] == 2

    async def endless(client: Any) -> float:
        while True:
            await ask(client)

    cut = await input_of(endless, NO_TASK, limits=RolloutLimits(max_turns=2))
    assert cut.metrics[0]["lineages"] == 2, "also if the runner stopped the episode"


async def test_a_transcript_contains_each_message_once() -> None:
    async def alternates(client: Any) -> float:
        histories = [[user(f"I am {name}.")] for name in "AB"]
        for _ in range(2):
            for messages in histories:
                messages += [assistant(await ask(client, *messages)), user("More.")]
        return 1.0

    [text, _] = (await input_of(alternates, NO_TASK)).transcripts

    assert [text.count(part) for part in ("I am A.", "I am B.", "More.", "I am 7")] == [1, 1, 2, 4]
    assert text.index("I am A.") < text.index("I am 7") < text.index("More.")
    assert "<|" not in text


async def test_a_group_reward_is_added_to_the_trajectories_rewards() -> None:
    group = await play_with(lambda group: [Outcome(0.5, {"rank": 1}), 0.25], identity_agent, 7)
    assert group.get_total_rewards() == [1.5, 1.25]
    assert group.metrics_G == [{"rank": 1.0}, {}]

    group = await play_with(None, identity_agent, 7)
    assert (group.final_rewards_G, group.get_total_rewards()) == ([0.0, 0.0], [1.0, 1.0])


async def test_a_group_reward_can_be_async_and_does_not_block_other_groups() -> None:
    barrier = asyncio.Barrier(2)

    async def waits_for_both(group: PlayedGroup) -> list[float]:
        await barrier.wait()
        return [float(len(group)) for _ in group]

    playing = asyncio.gather(*(play_with(waits_for_both, identity_agent, task) for task in (7, 8)))
    groups = await asyncio.wait_for(playing, 30)

    assert [group.get_total_rewards() for group in groups] == [[3.0, 3.0], [2.0, 2.0]]


async def test_an_outcome_without_a_reward_or_with_a_nan_metric_is_an_error() -> None:
    """``tests/faults/groups.py`` covers other invalid rewards."""
    with pytest.raises(RewardError, match=r"A reward of .* is None"):
        await play_with(lambda group: [Outcome(), 1.0], identity_agent, 7)
    with pytest.raises(RewardError, match=r"The metric 'x' of .* is nan"):
        await play_with(lambda group: [Outcome(1.0, {"x": math.nan}), 1.0], identity_agent, 7)
    nothing: Any = None
    with pytest.raises(RewardError, match=r"The metrics of .* are None; expected a dict"):
        await play_with(lambda group: [Outcome(1.0, nothing), 1.0], identity_agent, 7)


# -- a frozen model as the judge -------------------------------------------------------------------


class Judge(MessageCompleter):
    """A judge with scripted replies: strings, functions of the prompt, or exceptions to raise."""

    def __init__(self, *replies: str | Exception | Callable[[str], str]) -> None:
        self.replies = [*replies]
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.append(messages)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        text = reply if isinstance(reply, str) else reply(str(messages[-1]["content"]))
        return {"role": "assistant", "content": text}


async def tell(client: Any, task: str) -> float:
    return float(await ask(client, f"Tell me of {task}.") == "")


async def rank(model: Any, says: str, **options: Any) -> Any:
    """Return the judge's reward for each episode, and whether judging failed."""
    reward = judge_group(model, options.pop("rubric", "The longest."), **options)
    group = await play_group(tell, len(says), *says, task="cats", group_reward=reward)
    return group.final_rewards_G, [metrics["judge/failed"] for metrics in group.metrics_G]


async def test_a_judge_rewards_by_rank_with_a_fixed_or_a_per_task_rubric() -> None:
    judge = Judge("Let me see.\n2, 3, 1", "2,1")

    assert await rank(judge, "abc") == ([0.0, 1.0, 0.5], [0.0, 0.0, 0.0])
    instruction, prompt = judge.asked[0]
    assert "material to judge" in str(instruction["content"])
    assert "The longest." in str(prompt["content"])
    assert str(prompt["content"]).count("Tell me of cats.") == 3
    options = {"weight": 0.2, "rubric": lambda task: f"They are about {task}."}
    assert (await rank(judge, "ab", **options))[0] == [0.0, 0.2]
    assert "They are about cats." in str(judge.asked[1][-1]["content"])


async def test_each_seat_is_ranked_separately() -> None:
    async def seated(client: Any, task: str) -> float:
        for seat in ("player", "judge"):
            await tell(client.seat(seat), seat)
        return 0.0

    def by_seat(prompt: str) -> str:
        return "1, 2" if "player" in prompt else "2, 1"

    reward = judge_group(Judge(by_seat, by_seat), "Any.")
    group = await play_group(seated, 2, *"abcd", task="x", group_reward=reward, seats=SEATS)

    assert [metrics["seat/player/reward"] for metrics in group.metrics_G[::2]] == [1.0, 0.0]
    assert [metrics["seat/judge/reward"] for metrics in group.metrics_G[1::2]] == [0.0, 1.0]


async def test_identical_attempts_are_ranked_once_and_a_single_attempt_is_not_ranked() -> None:
    judge = Judge("2, 1")
    rewards, _ = await rank(judge, "aba")

    assert rewards == [0.0, 1.0, 0.0]
    assert "Attempt 3" not in str(judge.asked[0][-1]["content"])
    for says in ("a", "aa"):
        assert await rank(Judge(), says) == ([0.5] * len(says), [0.0] * len(says))


async def test_a_reply_without_a_ranking_is_retried() -> None:
    judge = Judge("Both are fine.", "2, 1")

    assert await rank(judge, "ab") == ([0.0, 1.0], [0.0, 0.0])
    assert [message["role"] for message in judge.asked[1][-2:]] == ["assistant", "user"]
    assert "does not end with a ranking of the 2" in str(judge.asked[1][-1]["content"])


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_without_a_ranking_rewards_are_equal_and_a_failure_is_counted(retries: int) -> None:
    judge = Judge(*["Both are fine."] * (retries + 1))
    assert await rank(judge, "ab", retries=retries) == ([0.5, 0.5], [1.0, 1.0])
    assert judge.replies == [], "all replies were used"


def test_a_ranking_is_the_last_line_and_contains_each_number_once() -> None:
    def read(text: str, *, truncated: bool = False) -> Any:
        message = Message(role="assistant", content=text)
        counts: Any = {"prompt_tokens": 0, "completion_tokens": 0}
        return read_ranking(read_reply(message, truncated=truncated, call_ids="call", **counts), 3)

    assert read("2, 1, 3") == read("So:\n\n**Ranking: 2 > 1 > 3**\n") == [1, 0, 2]
    assert read("[3,2,1]") == [2, 1, 0]
    assert read("```\n3 2 1.\n```") == [2, 1, 0]
    for text in ("2, 1", "2, 1, 1", "0, 1, 2", "1, 2, 3, 4", "2, 1, 3\nThat is all.", ""):
        assert read(text) is None, text
    for text in ("Attempt 2 is best, then 1, then 3.", "9" * 5000, "*" * 100_000 + "1"):
        assert read(text) is None, text[:40]
    assert read(", " * 100_000) is None
    assert read("2, 1, 3", truncated=True) is None


REQUEST: Any = httpx.Request("POST", "http://judge")


def refusal(status: int, code: str | None = None) -> Exception:
    body = {"message": "No.", "code": code}
    response: Any = httpx.Response(status, request=REQUEST, json=body)
    return openai.APIStatusError("No.", response=response, body=body)


def held_back() -> Exception:
    """Return the error for a call that evert's network guard blocks."""
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = EvertError("Not from here.")
    return error


async def test_a_temporary_judge_failure_is_counted_but_a_permanent_one_raises() -> None:
    busy = [refusal(429), refusal(503), refusal(400, "context_length_exceeded")]
    for error in (*busy, openai.APITimeoutError(REQUEST)):
        assert await rank(Judge(error), "ab") == ([0.5, 0.5], [1.0, 1.0]), error
    for error in (refusal(401, "bad_key"), refusal(404), held_back(), KeyError("own")):
        with pytest.raises(type(error)):
            await rank(Judge(error), "ab")


async def test_a_model_of_the_embedded_engine_can_be_the_judge(tmp_path: Any) -> None:
    """The tiny base model does not return a ranking, so this counts as a failure."""
    with embedded_engine(tmp_path):
        model = TinkerModel("evert-tiny", max_tokens=8, temperature=0)
        assert await rank(model, "ab") == ([0.5, 0.5], [1.0, 1.0])


def test_a_judge_can_be_pickled_and_requires_a_model() -> None:
    judge = judge_group(RemoteModel("m"), "Any.")

    assert pickle.loads(pickle.dumps(judge)) == judge
    builder = ChatAgentGroupBuilder(tell, "cats", 2, group_reward=judge)
    assert pickle.loads(pickle.dumps(builder)).group_reward == judge
    with pytest.raises(InvalidModelError, match="expected a MessageCompleter"):
        judge_group("gpt-5.2", "Any.")  # type: ignore[arg-type]
