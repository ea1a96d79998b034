"""The model's context, beside the budgets of a run.

1. A prompt that leaves no room in the context is the agent's 400, on which it may compact.
2. An agent that does not cope ends with ``stop/context_overflow``, and the run goes on.
3. A reply ends where the context does, or where the agent's own cap does.
4. A tighter budget comes first, and ends as the Cookbook has it.
5. A context that can hold nothing is refused.
6. A budget of each token sequence counts from its first prompt.
"""

from contextlib import suppress
from typing import Any

import openai
import pytest
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import StopReason, Trajectory

from evert import AgentClient, ChatAgentEnv, ChatAgentGroupBuilder, ScriptedPolicy
from evert.bridge.env.limits import Budget, SequenceLimits
from evert.bridge.records.sequences import sequences
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer

CONTEXT = 120


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def ask(client: AgentClient, text: str, **fields: Any) -> str:
    completion = await client.chat.completions.create(messages=[user(text)], **fields)
    return completion.choices[0].message.content or ""


def prompt_length(text: str) -> int:
    return default_renderer().build_generation_prompt([user(text)]).length


async def play(agent: Any, **options: Any) -> Trajectory:
    options = {"context_length": CONTEXT, **options}
    return await do_single_rollout(
        ScriptedPolicy(lambda prompt: "Yes."), ChatAgentEnv(agent, **options)
    )


class Talkative(TokenCompleter):
    """Says as much as it may."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    async def __call__(
        self, model_input: Any, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        self.asked.append(max_tokens)
        count = 500 if max_tokens is None else max_tokens
        tokens = prompt_renderer(None).encode("so ")[:1] * count
        return TokensWithLogprobs(tokens, [0.0] * count, "length")


# -- 1. the agent is told ------------------------------------------------------------------------


async def test_a_prompt_past_the_context_is_the_agents_400_and_it_may_compact() -> None:
    caught: list[openai.BadRequestError] = []

    async def agent(client: AgentClient) -> float:
        await ask(client, "short")
        try:
            await ask(client, "long " * 200)
        except openai.BadRequestError as error:
            caught.append(error)
        await ask(client, "shorter")
        return 1.0

    trajectory = await play(agent)

    assert trajectory.stop_reason == StopReason.COMPLETED
    assert len(trajectory.transitions) == 2
    assert caught[0].code == "context_length_exceeded"
    assert f"> {CONTEXT - 2} maximum" in str(caught[0])


# -- 2. and if it does not cope ------------------------------------------------------------------


async def test_an_agent_that_does_not_cope_ends_with_a_context_overflow() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, "short")
        await ask(client, "long " * 200)
        return 1.0

    trajectory = await play(agent, context_overflow_reward=-0.5)

    assert trajectory.stop_reason == StopReason.CONTEXT_OVERFLOW
    assert [transition.reward for transition in trajectory.transitions] == [-0.5]
    assert trajectory.transitions[-1].metrics["context_overflow"] == 1.0
    assert "maximum context length" in str(trajectory.transitions[-1].logs["context_overflow"])


async def test_so_does_one_whose_first_prompt_is_too_long() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, "long " * 200)
        return 1.0

    trajectory = await play(agent)

    assert trajectory.stop_reason == StopReason.CONTEXT_OVERFLOW
    assert trajectory.transitions[-1].reward == -0.1


async def test_a_group_goes_on_without_the_member_that_overflowed() -> None:
    texts = iter(["long " * 200, "short"])

    async def agent(client: AgentClient) -> float:
        await ask(client, next(texts))
        return 1.0

    builder = ChatAgentGroupBuilder(agent, group_size=2, context_length=CONTEXT)
    group = await do_group_rollout(builder, ScriptedPolicy(lambda prompt: "Yes."))

    reasons = [trajectory.stop_reason for trajectory in group.trajectories_G]
    assert reasons == [StopReason.CONTEXT_OVERFLOW, StopReason.COMPLETED]
    assert group.get_total_rewards() == [-0.1, 1.0]


# -- 3. the reply has the rest of it -------------------------------------------------------------


@pytest.mark.parametrize(("own", "is_tighter"), [(None, False), (5, True), (500, False)])
async def test_a_reply_ends_where_the_context_does_or_the_agents_own_cap(
    own: int | None, is_tighter: bool
) -> None:
    policy = Talkative()

    async def agent(client: AgentClient) -> float:
        completion = await client.chat.completions.create(messages=[user("Hi")], max_tokens=own)
        return float(completion.choices[0].finish_reason == "length")

    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, context_length=CONTEXT))

    rest = CONTEXT - prompt_length("Hi")
    assert policy.asked == [own if is_tighter else rest]
    assert trajectory.transitions[-1].reward == 1.0


async def test_without_a_known_context_nobody_caps_the_reply() -> None:
    policy = Talkative()

    async def agent(client: AgentClient) -> float:
        await ask(client, "Hi")
        return 1.0

    await do_single_rollout(policy, ChatAgentEnv(agent))

    assert policy.asked == [None]


async def test_the_longest_prompt_still_leaves_two_tokens() -> None:
    policy = Talkative()
    text = "so it goes"

    async def agent(client: AgentClient) -> float:
        await ask(client, text)
        return 1.0

    length = prompt_length(text)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, context_length=length + 2))
    assert policy.asked == [2]
    assert trajectory.stop_reason == StopReason.COMPLETED
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, context_length=length + 1))
    assert trajectory.stop_reason == StopReason.CONTEXT_OVERFLOW


# -- 4. a budget ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "context", "tokens", "reason"),
    [
        (None, None, None, StopReason.CONTEXT_OVERFLOW),
        (100, None, 98, StopReason.MAX_TOKENS),
        (None, 100, 98, StopReason.CONTEXT_OVERFLOW),
        (50, 100, 48, StopReason.MAX_TOKENS),
        (100, 100, 98, StopReason.MAX_TOKENS),
        (200, 100, 98, StopReason.CONTEXT_OVERFLOW),
    ],
)
def test_the_tighter_limit_says_how_an_episode_ends(
    budget: int | None, context: int | None, tokens: int | None, reason: StopReason
) -> None:
    limit = Budget(RolloutLimits(max_trajectory_tokens=budget), context).prompt

    assert (limit.tokens, limit.reason) == (tokens, reason)


async def test_a_budget_within_the_context_ends_as_a_budget() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, "long " * 60)
        return 1.0

    trajectory = await play(agent, limits=RolloutLimits(max_trajectory_tokens=60))

    assert trajectory.stop_reason == StopReason.MAX_TOKENS


# -- 5. refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [0, 2, -1, 2.5, "8192", True])
def test_a_context_that_holds_nothing_is_refused(context: Any) -> None:
    async def agent(client: AgentClient) -> float:
        return 1.0

    with pytest.raises(ValueError, match=r"^context_length is .*expected the number of tokens"):
        ChatAgentEnv(agent, context_length=context)


# -- 6. a budget of each token sequence ----------------------------------------------------------


async def talk_on(client: AgentClient, opening: str) -> int:
    """Talks on until it is refused; returns how often it was answered."""
    messages = [user(opening)]
    with suppress(openai.BadRequestError):
        while True:
            completion = await client.chat.completions.create(messages=messages)
            messages += [completion.choices[0].message, user("And then?")]
    return len(messages) // 2


@pytest.mark.parametrize("context_length", [None, CONTEXT])
async def test_each_sequence_has_the_whole_budget_after_its_first_prompt(
    context_length: int | None,
) -> None:
    async def agent(client: AgentClient) -> float:
        counts = [await talk_on(client, "Hi"), await talk_on(client, "so it goes " * 10)]
        return float(counts[0] == counts[1] > 1)

    limits = SequenceLimits(max_response_tokens=80)
    trajectory = await play(agent, limits=limits, context_length=context_length)

    found = sequences(trajectory)
    if context_length is None:
        assert trajectory.transitions[-1].reward == 1.0
    assert len(found) == 2
    for each in found:
        rest = 10**6 if context_length is None else context_length - len(each.prompt_ids)
        assert min(80, rest) - 30 < len(each.response_ids) <= min(80, rest)


async def test_a_reply_ends_where_the_budget_of_its_sequence_does() -> None:
    policy = Talkative()

    async def agent(client: AgentClient) -> float:
        for text in ("Hi", "so it goes " * 5):
            await ask(client, text)
        return 1.0

    env = ChatAgentEnv(agent, limits=SequenceLimits(max_response_tokens=7))
    await do_single_rollout(policy, env)

    assert policy.asked == [7, 7]


async def test_an_agent_that_does_not_cope_with_it_stops_at_a_budget() -> None:
    async def agent(client: AgentClient) -> float:
        messages = [user("Hi")]
        while True:
            completion = await client.chat.completions.create(messages=messages)
            messages += [completion.choices[0].message, user("And then?")]

    trajectory = await play(agent, limits=SequenceLimits(max_response_tokens=50))

    assert trajectory.stop_reason == StopReason.MAX_TOKENS
    assert trajectory.transitions[-1].reward == -0.1
    [found] = sequences(trajectory)
    assert 20 < len(found.response_ids) <= 50
