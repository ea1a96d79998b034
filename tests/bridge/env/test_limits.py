"""The model's context length combined with a run's token budgets."""

from contextlib import suppress
from typing import Any

import openai
import pytest
from tests.kit import ask, asks, assistant, play, reward, user
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import StopReason

from evert import AgentClient, ChatAgentEnv, sequences
from evert.bridge.env.limits import Budget, SequenceLimits
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer

CONTEXT = 120
LONG = "long " * 200


class Talkative(TokenCompleter):
    def __init__(self) -> None:
        self.asked: list[int | None] = []

    async def __call__(
        self, model_input: Any, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        self.asked.append(max_tokens)
        count = 500 if max_tokens is None else max_tokens
        tokens = prompt_renderer(None).encode("so ")[:1] * count
        return TokensWithLogprobs(tokens, [0.0] * count, "length")


async def caps(*texts: str, own: int | None = None, **options: Any) -> list[int | None]:
    """Send these texts and return the ``max_tokens`` of each sampling request."""

    async def agent(client: AgentClient) -> float:
        for text in texts:
            await ask(client, text, max_tokens=own)
        return 1.0

    policy = Talkative()
    await play(agent, policy, **options)
    return policy.asked


async def test_an_agent_can_catch_the_400_for_a_long_prompt_and_compact() -> None:
    caught: list[openai.BadRequestError] = []

    async def agent(client: AgentClient) -> float:
        await ask(client, "short")
        try:
            await ask(client, LONG)
        except openai.BadRequestError as error:
            caught.append(error)
        await ask(client, "shorter")
        return 1.0

    trajectory = await play(agent, context_length=CONTEXT)

    assert trajectory.stop_reason == StopReason.COMPLETED
    assert len(trajectory.transitions) == 2
    assert caught[0].code == "context_length_exceeded"
    assert f"> {CONTEXT - 2} maximum" in str(caught[0])


async def begins_with_it(client: AgentClient) -> float:
    await ask(client, LONG)
    return 1.0


async def hides_the_cause(client: AgentClient) -> float:
    try:
        await ask(client)
        await ask(client, LONG)
    except openai.BadRequestError as error:
        raise RuntimeError("something went wrong") from error
    return 1.0


async def sends_it_again_and_again(client: AgentClient) -> float:
    await ask(client)
    while True:
        with suppress(openai.BadRequestError):
            await ask(client, LONG)


async def talks_without_end(client: AgentClient) -> float:
    messages = [user("Hi")]
    while True:
        messages += [assistant(await ask(client, *messages)), user("And then?")]


IN_ALL = RolloutLimits(max_trajectory_tokens=CONTEXT)
IN_EACH = SequenceLimits(max_response_tokens=50)


@pytest.mark.parametrize("earned", [-0.1, -0.5])
@pytest.mark.parametrize(
    ("agent", "options", "reason"),
    [
        *(
            (agent, options, reason)
            for agent in (begins_with_it, hides_the_cause, sends_it_again_and_again)
            for options, reason in (
                ({"context_length": CONTEXT}, StopReason.CONTEXT_OVERFLOW),
                ({"limits": IN_ALL}, StopReason.MAX_TOKENS),
            )
        ),
        (talks_without_end, {"limits": IN_EACH, "context_length": CONTEXT}, StopReason.MAX_TOKENS),
    ],
)
async def test_an_unhandled_long_prompt_error_ends_with_the_cookbooks_stop_reason(
    agent: Any, options: Any, reason: StopReason, earned: float
) -> None:
    reward_option = {} if earned == -0.1 else {"context_overflow_reward": earned}
    trajectory = await play(agent, **options, **reward_option)

    assert trajectory.stop_reason == reason
    *_, last = trajectory.transitions
    assert reward(trajectory) == last.reward == earned
    if agent is not begins_with_it:  # begins_with_it has no turn to carry the metric
        assert last.metrics["context_overflow"] == 1.0
        assert "maximum context length" in str(last.logs["context_overflow"])
    if agent is talks_without_end:
        [sequence] = sequences(trajectory)
        assert 20 < len(sequence.response_ids) <= 50


async def test_a_reply_is_capped_by_the_context_length_the_budget_and_the_calls_own_limit() -> None:
    length = default_renderer().build_generation_prompt([user("Hi")]).length  # type: ignore[list-item]
    for cap_of_agent, cap in ((None, CONTEXT - length), (5, 5), (500, CONTEXT - length)):
        assert await caps("Hi", own=cap_of_agent, context_length=CONTEXT) == [cap]
    assert await caps("Hi") == [None], "the context length is unknown"
    assert await caps("Hi", context_length=length + 2) == [2], "two tokens are the minimum"
    assert await caps("Hi", context_length=length + 1) == []
    limits = SequenceLimits(max_response_tokens=7)
    assert await caps("Hi", "so it goes " * 5, limits=limits) == [7, 7]


def test_an_invalid_context_length_is_rejected() -> None:
    wrong: list[Any] = [0, 2, -1, 2.5, "8192", True]
    for context in wrong:
        with pytest.raises(ValueError, match=r"^context_length is .*expected the number of tok"):
            ChatAgentEnv(asks, context_length=context)


def test_the_tighter_limit_determines_the_stop_reason() -> None:
    for budget, context, tokens, reason in (
        (None, None, None, StopReason.CONTEXT_OVERFLOW),
        (100, None, 98, StopReason.MAX_TOKENS),
        (None, 100, 98, StopReason.CONTEXT_OVERFLOW),
        (50, 100, 48, StopReason.MAX_TOKENS),
        (100, 100, 98, StopReason.MAX_TOKENS),
        (200, 100, 98, StopReason.CONTEXT_OVERFLOW),
    ):
        limit = Budget(RolloutLimits(max_trajectory_tokens=budget), context).prompt
        assert (limit.tokens, limit.reason) == (tokens, reason), (budget, context)


async def talk_on(client: AgentClient, opening: str = "Hi") -> int:
    """Continue a conversation until a call is rejected, and return the number of replies."""
    messages = [user(opening)]
    with suppress(openai.BadRequestError):
        while True:
            messages += [assistant(await ask(client, *messages)), user("And then?")]
    return len(messages) // 2


@pytest.mark.parametrize("context_length", [None, CONTEXT])
async def test_each_sequence_has_the_full_budget_after_its_prompt(
    context_length: int | None,
) -> None:
    async def agent(client: AgentClient) -> float:
        counts = [await talk_on(client), await talk_on(client, "so it goes " * 10)]
        return float(counts[0] == counts[1] > 1)

    limits = SequenceLimits(max_response_tokens=80)
    trajectory = await play(agent, limits=limits, context_length=context_length)

    if context_length is None:
        assert reward(trajectory) == 1.0
    found_sequences = sequences(trajectory)
    assert len(found_sequences) == 2
    for sequence in found_sequences:
        remaining = 10**6 if context_length is None else context_length - len(sequence.prompt_ids)
        assert min(80, remaining) - 30 < len(sequence.response_ids) <= min(80, remaining)
