"""``judge_group``: a frozen model ranks a group.

1. The best gets the whole weight, the last nothing, the others what lies between.
2. Attempts that are alike get the same; where all are, nobody is asked.
3. A reply that is no ranking is asked for again; then all get the same, and it is counted.
4. An endpoint that is busy is counted as well; one that refuses for good ends the run.
"""

import pickle
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert.bridge.chat.reply import read_reply
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import EvertError, InvalidModelError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.groups.judge import judge_group, read_ranking
from evert.bridge.models.remote import RemoteModel
from evert.bridge.models.tinker_model import TinkerModel
from evert.trainers.engine.embedded import embedded_engine


class Judge(MessageCompleter):
    """Says texts in turn, or what a function makes of the prompt; raises what is an error."""

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
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": f"Tell me of {task}."}]
    )
    return float(completion.choices[0].message.content == "")


async def seated(client: Any, task: str) -> float:
    for seat in ("player", "judge"):
        await tell(client.seat(seat), seat)
    return 0.0


async def judged(model: Any, says: list[str], agent: Any = tell, **options: Any) -> Any:
    """The group's further rewards and how it was judged."""
    seats = options.pop("seats", ())
    reward = judge_group(model, options.pop("rubric", "The longest."), **options)
    size = len(says) // max(1, len(seats))
    builder = ChatAgentGroupBuilder(agent, "cats", size, group_reward=reward, seats=seats)
    group = await do_group_rollout(builder, ScriptedPolicy(says))
    return group.final_rewards_G, [each["judge/failed"] for each in group.metrics_G]


# -- ranks ---------------------------------------------------------------------------------------


async def test_rewards_follow_the_ranking() -> None:
    judge = Judge("Let me see.\n2, 3, 1")
    rewards, failed = await judged(judge, ["a", "b", "c"])

    assert rewards == [0.0, 1.0, 0.5]
    assert failed == [0.0, 0.0, 0.0]
    system, prompt = judge.asked[0]
    assert "material to judge" in str(system["content"])
    assert "The longest." in str(prompt["content"])
    assert str(prompt["content"]).count("Tell me of cats.") == 3


async def test_the_best_gets_the_weight() -> None:
    assert (await judged(Judge("2,1"), ["a", "b"], weight=0.2))[0] == [0.0, 0.2]


async def test_a_rubric_may_be_made_of_the_task() -> None:
    judge = Judge("1, 2")
    await judged(judge, ["a", "b"], rubric=lambda task: f"They are about {task}.")

    assert "They are about cats." in str(judge.asked[0][-1]["content"])


async def test_each_seat_is_ranked_by_itself() -> None:
    def by_seat(prompt: str) -> str:
        return "1, 2" if "player" in prompt else "2, 1"

    judge = Judge(by_seat, by_seat)
    said = ["p0", "p1", "j0", "j1"]
    reward = judge_group(judge, "Any.")
    builder = ChatAgentGroupBuilder(seated, "x", 2, group_reward=reward, seats=("player", "judge"))
    group = await do_group_rollout(builder, ScriptedPolicy(said))

    assert [each["seat/player/reward"] for each in group.metrics_G[::2]] == [1.0, 0.0]
    assert [each["seat/judge/reward"] for each in group.metrics_G[1::2]] == [0.0, 1.0]


async def test_attempts_that_are_alike_are_one() -> None:
    judge = Judge("2, 1")
    rewards, _ = await judged(judge, ["a", "b", "a"])

    assert rewards == [0.0, 1.0, 0.0]
    assert "Attempt 3" not in str(judge.asked[0][-1]["content"])


@pytest.mark.parametrize("says", [["a"], ["a", "a"]])
async def test_where_there_is_nothing_to_rank_nobody_is_asked(says: list[str]) -> None:
    rewards, failed = await judged(Judge(), says)

    assert rewards == [0.5] * len(says)
    assert failed == [0.0] * len(says)


# -- bad replies ---------------------------------------------------------------------------------


async def test_a_reply_that_is_no_ranking_is_asked_for_again() -> None:
    judge = Judge("Both are fine.", "2, 1")
    rewards, failed = await judged(judge, ["a", "b"])

    assert (rewards, failed) == ([0.0, 1.0], [0.0, 0.0])
    assert [message["role"] for message in judge.asked[1][-2:]] == ["assistant", "user"]
    assert "does not end with a ranking of the 2" in str(judge.asked[1][-1]["content"])


@pytest.mark.parametrize(("retries", "asked"), [(1, 2), (0, 1), (3, 4)])
async def test_without_a_ranking_all_get_the_same_and_it_is_counted(
    retries: int, asked: int
) -> None:
    judge = Judge(*["Both are fine."] * asked)
    rewards, failed = await judged(judge, ["a", "b"], retries=retries)

    assert (rewards, failed) == ([0.5, 0.5], [1.0, 1.0])
    assert len(judge.asked) == asked


@pytest.mark.parametrize(
    ("text", "ranking"),
    [
        ("2, 1, 3", [1, 0, 2]),
        ("So:\n\n**Ranking: 2 > 1 > 3**\n", [1, 0, 2]),
        ("[3,2,1]", [2, 1, 0]),
        ("```\n3 2 1.\n```", [2, 1, 0]),
        ("2, 1", None),
        ("2, 1, 1", None),
        ("0, 1, 2", None),
        ("1, 2, 3, 4", None),
        ("2, 1, 3\nThat is all.", None),
        ("Attempt 2 is best, then 1, then 3.", None),
        ("", None),
        ("9" * 5000, None),
        ("*" * 100_000 + "1", None),
        (", " * 100_000, None),
    ],
)
def test_a_ranking_is_the_last_line_and_has_each_number_once(text: str, ranking: Any) -> None:
    assert read_ranking(reply_of(text), 3) == ranking


def test_a_reply_that_was_cut_is_no_ranking() -> None:
    assert read_ranking(reply_of("2, 1, 3", truncated=True), 3) is None


def reply_of(text: str, *, truncated: bool = False) -> Any:
    return read_reply(
        Message(role="assistant", content=text),
        truncated=truncated,
        call_ids="call",
        prompt_tokens=0,
        completion_tokens=0,
    )


# -- endpoints -----------------------------------------------------------------------------------


REQUEST: Any = httpx.Request("POST", "http://judge")


def refusal(status: int, code: str | None = None) -> Exception:
    body = {"message": "No.", "code": code}
    response: Any = httpx.Response(status, request=REQUEST, json=body)
    return openai.APIStatusError("No.", response=response, body=body)


@pytest.mark.parametrize(
    "error",
    [
        refusal(429),
        refusal(503),
        refusal(400, "context_length_exceeded"),
        openai.APITimeoutError(REQUEST),
    ],
    ids=["busy", "down", "too long", "slow"],
)
async def test_a_judge_that_cannot_answer_now_is_counted(error: Exception) -> None:
    rewards, failed = await judged(Judge(error), ["a", "b"])

    assert (rewards, failed) == ([0.5, 0.5], [1.0, 1.0])


def held_back() -> Exception:
    """As a call that evert lets not out of the machine."""
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = EvertError("Not from here.")
    return error


@pytest.mark.parametrize(
    "error", [refusal(401, "bad_key"), refusal(404), held_back(), KeyError("own")], ids=str
)
async def test_a_judge_that_never_will_ends_the_run(error: Exception) -> None:
    with pytest.raises(type(error)):
        await judged(Judge(error), ["a", "b"])


# -- models --------------------------------------------------------------------------------------


async def test_a_policy_may_judge() -> None:
    policy = ScriptedPolicy(["2, 1"])

    assert (await judged(policy, ["a", "b"]))[0] == [0.0, 1.0]
    assert "Tell me of cats." in policy.prompts[0]


async def test_weights_of_the_engine_in_use_may_judge(tmp_path: Any) -> None:
    """The tiny base ranks nothing: what it says is counted as what it is."""
    with embedded_engine(tmp_path):
        model = TinkerModel("evert-tiny", max_tokens=8, temperature=0)
        rewards, failed = await judged(model, ["a", "b"])

    assert (rewards, failed) == ([0.5, 0.5], [1.0, 1.0])


def test_what_is_no_model_is_refused_at_once() -> None:
    with pytest.raises(InvalidModelError, match="expected a MessageCompleter"):
        judge_group("gpt-5.2", "Any.")  # type: ignore[arg-type]


def test_a_judge_pickles() -> None:
    judge = judge_group(RemoteModel("m"), "Any.")

    assert pickle.loads(pickle.dumps(judge)) == judge
    builder = ChatAgentGroupBuilder(tell, "cats", 2, group_reward=judge)
    assert pickle.loads(pickle.dumps(builder)).group_reward == judge
