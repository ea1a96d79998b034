"""``check_env``: each of its rules, and one deliberately broken agent or Env for each.

    1. the episode ends, with a finite reward     4. no step after the end
    2. observations are tokens of the tokenizer   5. closed at any call, nothing is left
    3. observations continue, or start anew       6. odd replies are coped with

It raises the first broken rule, returns None when all is well, prints nothing, and works inside of
a running event loop too.
"""

import asyncio
import itertools
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import tinker
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message, RenderContext, RenderedMessage
from tinker_cookbook.renderers.qwen3 import Qwen3InstructRenderer
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import ActionExtra, StepResult

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.env.check import DEFAULT_REPLIES, check_env
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.episode.agent import Outcome
from evert.bridge.errors import (
    AgentError,
    AgentTimeoutError,
    EnvCheckError,
    EvertError,
    InvalidAgentError,
    RewardError,
)
from evert.bridge.tokens.bases import default_renderer
from evert.envs.guess_number import guess_number_agent
from evert.envs.identity import identity_agent

QUESTION = [{"role": "user", "content": "One?"}]


async def good(client: AgentClient) -> float:
    await client.chat.completions.create(messages=QUESTION)
    return 1.0


async def good_over_three_turns(client: AgentClient) -> Outcome:
    messages: list[Any] = [*QUESTION]
    for _ in range(3):
        completion = await client.chat.completions.create(messages=messages)
        messages += [completion.choices[0].message, {"role": "user", "content": "And?"}]
    return Outcome(1.0, {"turns": 3})


async def good_at_the_same_time(client: AgentClient) -> float:
    one, two = await asyncio.gather(
        *(client.chat.completions.create(messages=QUESTION) for _ in range(2))
    )
    return float(one.choices[0].message.content == two.choices[0].message.content)


def good_and_blocking(client: BlockingAgentClient) -> float:
    client.chat.completions.create(messages=QUESTION)
    client.chat.completions.create(messages=QUESTION)
    return 1.0


async def good_without_a_call(client: AgentClient) -> float:
    return 0.0


async def good_but_raises_on_nonsense(client: AgentClient) -> float:
    completion = await client.chat.completions.create(messages=QUESTION)
    if completion.choices[0].message.content != "Hello.":
        raise ValueError("I asked politely.")
    return 1.0


GOOD = [
    good,
    good_over_three_turns,
    good_at_the_same_time,
    good_and_blocking,
    good_without_a_call,
    good_but_raises_on_nonsense,
]


def broken(env: Any, **options: Any) -> str:
    with pytest.raises(EnvCheckError) as caught:
        check_env(env, **options)
    return str(caught.value)


# -- all is well ---------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", GOOD)
def test_a_good_agent_passes_in_silence(
    agent: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_env(agent)

    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize("agent", GOOD)
async def test_a_good_agent_passes_inside_of_a_running_loop(agent: Any) -> None:
    check_env(agent)


@pytest.mark.parametrize("agent", GOOD)
def test_a_check_leaves_no_thread(agent: Any) -> None:
    before = set(threading.enumerate())
    check_env(agent)

    assert set(threading.enumerate()) - before == set()


@pytest.mark.parametrize(("agent", "task"), [(identity_agent, 7), (guess_number_agent, 5)])
def test_the_shipped_agents_pass(agent: Any, task: int) -> None:
    check_env(ChatAgentEnv(agent, task))


def test_a_good_agent_passes_under_every_family_of_renderers(family: Renderer) -> None:
    check_env(ChatAgentEnv(good_over_three_turns, renderer=family))


def test_the_env_that_is_given_stays_unused() -> None:
    env = ChatAgentEnv(good)
    check_env(env)

    assert env.turns == 0
    assert not env.is_running


def test_the_replies_are_said_in_order_over_and_over() -> None:
    heard: list[list[str]] = []

    async def hears(client: AgentClient) -> float:
        heard.append([])
        for _ in range(3):
            completion = await client.chat.completions.create(messages=QUESTION)
            heard[-1].append(completion.choices[0].message.content or "")
        return 1.0

    check_env(hears, replies=(text for text in ("Yes.", "No.")))
    assert heard[0] == ["Yes.", "No.", "Yes."]
    heard.clear()
    check_env(hears)
    assert heard[0] == list(DEFAULT_REPLIES[:3])


# -- rule 1: the episode ends, with a finite reward ----------------------------------------------


async def never_ends(client: AgentClient) -> float:
    while True:
        await client.chat.completions.create(messages=QUESTION)


def test_rule_1_an_agent_that_never_ends() -> None:
    assert broken(never_ends, max_turns=5) == (
        f"Rule 1: the agent {__name__}.never_ends made 5 model calls and did not end. Bound its "
        "loop, or pass replies=[...] that lead it to its end (or a larger max_turns)."
    )


def test_rule_1_an_agent_that_ends_on_the_right_reply_passes() -> None:
    async def waits_for_done(client: AgentClient) -> float:
        for _ in range(20):
            completion = await client.chat.completions.create(messages=QUESTION)
            if completion.choices[0].message.content == "done":
                return 1.0
        return 0.0

    assert broken(waits_for_done, max_turns=5).startswith("Rule 1: ")
    check_env(waits_for_done, replies=["go on", "done"], max_turns=5)


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, "1.0"])
def test_rule_1_an_agent_without_a_finite_reward(reward: Any) -> None:
    async def pays_badly(client: AgentClient) -> Any:
        await client.chat.completions.create(messages=QUESTION)
        return reward

    with pytest.raises(RewardError, match="pays_badly"):
        check_env(pays_badly)


class IntegerReward(ChatAgentEnv):
    def renewed(self) -> ChatAgentEnv:
        return IntegerReward(self.agent)

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        result = await super().step(action, extra=extra)
        result.reward = "much"  # type: ignore[assignment]
        return result


def test_rule_1_an_env_whose_reward_is_no_number() -> None:
    assert broken(IntegerReward(good)) == "Rule 1: the reward is 'much', expected a float."


# -- rule 2: observations are tokens of the tokenizer --------------------------------------------


class EmptyPrompts(Qwen3InstructRenderer):
    def build_generation_prompt(self, *arguments: Any, **options: Any) -> tinker.ModelInput:
        return tinker.ModelInput.empty()


class ForeignTokens(Qwen3InstructRenderer):
    def build_generation_prompt(self, *arguments: Any, **options: Any) -> tinker.ModelInput:
        prompt = super().build_generation_prompt(*arguments, **options)
        return tinker.ModelInput.from_ints([*prompt.to_ints(), 150_000])


def test_rule_2_an_empty_observation() -> None:
    renderer = EmptyPrompts(default_renderer().tokenizer)

    assert broken(ChatAgentEnv(good, renderer=renderer)) == (
        "Rule 2: the observation of turn 0 is empty."
    )


def test_rule_2_tokens_that_the_tokenizer_does_not_have() -> None:
    tokenizer = default_renderer().tokenizer
    renderer = ForeignTokens(tokenizer)

    assert broken(ChatAgentEnv(good, renderer=renderer)) == (
        f"Rule 2: the observation of turn 0 holds token 150000, but the tokenizer has "
        f"{len(tokenizer)}. Renderer and tokenizer do not belong together."
    )


# -- rule 3: observations continue, or start anew as the renderer writes them --------------------


class Restless(Qwen3InstructRenderer):
    """Numbers its system prompts, so that no two renderings of one conversation are equal."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.numbers: Iterator[int] = itertools.count()

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        numbered = Message(role=message["role"], content=f"{next(self.numbers)}")
        return super().render_message(numbered, ctx)


async def two_conversations(client: AgentClient) -> float:
    for text in ("One?", "Two?"):
        await client.chat.completions.create(messages=[{"role": "user", "content": text}])
    return 1.0


def test_rule_3_a_renderer_that_does_not_say_the_same_thing_twice() -> None:
    message = broken(
        ChatAgentEnv(two_conversations, renderer=Restless(default_renderer().tokenizer))
    )

    assert message.startswith(
        "Rule 3: the observation of turn 1 is not what the renderer itself makes of the "
        "conversation: "
    )
    assert "Restless" in message


# -- rule 4: no step after the end ---------------------------------------------------------------


class Tireless(ChatAgentEnv):
    """Goes on taking steps after its end."""

    last: StepResult | None = None

    def renewed(self) -> ChatAgentEnv:
        return Tireless(self.agent)

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if self.last is None or not self.last.episode_done:
            self.last = await super().step(action, extra=extra)
        return self.last


def test_rule_4_an_env_that_takes_steps_after_its_end() -> None:
    assert broken(Tireless(good)) == ("Rule 4: a step after the end of the episode was accepted.")


# -- rule 5: closed at any call, nothing is left -------------------------------------------------


async def swallows_cancellation(client: AgentClient) -> float:
    try:
        await client.chat.completions.create(messages=QUESTION)
    except (EvertError, asyncio.CancelledError):
        for _ in range(2):  # the two cancellations of close(); it gives in to the loop's own
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
    return 1.0


async def forgets_a_task(client: AgentClient) -> float:
    task = asyncio.create_task(asyncio.sleep(3600), name="forgotten task")
    await client.chat.completions.create(messages=QUESTION)
    task.cancel()
    return 1.0


def test_rule_5_an_agent_that_swallows_its_cancellation() -> None:
    assert "swallows_cancellation running. " in broken(
        ChatAgentEnv(swallows_cancellation, close_timeout=0.02)
    )


async def swallows_every_cancellation(client: AgentClient) -> float:
    try:
        await client.chat.completions.create(messages=QUESTION)
    except (EvertError, asyncio.CancelledError):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
    return 1.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rule_5_an_agent_that_swallows_every_cancellation_does_not_keep_us_for_ever() -> None:
    env = ChatAgentEnv(swallows_every_cancellation, close_timeout=0.02)
    assert "running. Let CancelledError" in broken(env)


async def works_in_a_thread(client: AgentClient) -> float:
    await asyncio.to_thread(client.blocking.chat.completions.create, messages=QUESTION)
    return 1.0


def test_the_threads_of_the_loops_own_pool_are_not_left_behind() -> None:
    check_env(works_in_a_thread)


def test_rule_5_an_agent_that_leaves_a_task_when_it_is_closed() -> None:
    assert broken(forgets_a_task) == (
        f"Rule 5: closed at call 1, the agent {__name__}.forgets_a_task left forgotten task "
        "running. Let CancelledError (async) or EnvClosedError (threads) end the agent, and await "
        "or join what it starts."
    )


def test_rule_5_an_agent_that_leaves_a_thread_when_it_is_closed() -> None:
    done = threading.Event()

    async def forgets_a_thread(client: AgentClient) -> float:
        thread = threading.Thread(target=done.wait, name="forgotten thread", daemon=True)
        thread.start()
        for _ in range(2):
            await client.chat.completions.create(messages=QUESTION)
        done.set()
        thread.join()
        done.clear()
        return 1.0

    try:
        message = broken(forgets_a_thread)
    finally:
        done.set()
    assert message.startswith("Rule 5: closed at call 1, the agent ")
    assert "forgets_a_thread left forgotten thread running. " in message


def test_rule_5_an_agent_that_blocks_its_thread_after_it_was_closed() -> None:
    done = threading.Event()

    def sits_still(client: BlockingAgentClient) -> float:
        try:
            client.chat.completions.create(messages=QUESTION)
        except EvertError:
            done.wait()
        return 1.0

    try:
        message = broken(ChatAgentEnv(sits_still, close_timeout=0.02))
    finally:
        done.set()
    assert message.startswith("Rule 5: closed at call 1, the agent ")
    assert "sits_still running. " in message


def test_rule_5_is_checked_at_later_calls_too() -> None:
    async def forgets_later(client: AgentClient) -> float:
        await client.chat.completions.create(messages=QUESTION)
        task = asyncio.create_task(asyncio.sleep(3600), name="later task")
        await client.chat.completions.create(messages=QUESTION)
        task.cancel()
        return 1.0

    assert "closed at call 2, " in broken(forgets_later)


# -- rule 6: odd replies are coped with ----------------------------------------------------------


async def pays_for_sense_only(client: AgentClient) -> float | None:
    completion = await client.chat.completions.create(messages=QUESTION)
    return 1.0 if completion.choices[0].message.content else None


async def pays_for_whole_replies_only(client: AgentClient) -> float:
    completion = await client.chat.completions.create(messages=QUESTION)
    return math.nan if completion.choices[0].finish_reason == "length" else 1.0


async def trips_over_tool_calls(client: AgentClient) -> float:
    completion = await client.chat.completions.create(messages=QUESTION)
    return math.inf if "<tool_call>" in (completion.choices[0].message.content or "") else 1.0


@pytest.mark.parametrize(
    ("agent", "reply"),
    [
        (pays_for_sense_only, "an empty reply"),
        (pays_for_whole_replies_only, "a cut reply"),
        (trips_over_tool_calls, "a broken tool call"),
    ],
)
def test_rule_6_an_agent_without_a_reward_for_an_odd_reply(agent: Any, reply: str) -> None:
    message = broken(agent)

    assert message.startswith(
        f"Rule 6: given {reply} every time, the agent {__name__}.{agent.__name__} ends without a "
        "proper reward: "
    )


def test_rule_6_keeps_the_reward_error_as_its_cause() -> None:
    with pytest.raises(EnvCheckError) as caught:
        check_env(pays_for_sense_only)

    assert isinstance(caught.value.__cause__, RewardError)


# -- failures that are no broken rule ------------------------------------------------------------


async def raises(client: AgentClient) -> float:
    await client.chat.completions.create(messages=QUESTION)
    raise ValueError("I am broken.")


async def waits_for_ever(client: AgentClient) -> float:
    await asyncio.sleep(3600)
    return 1.0


def test_an_agent_that_raises_is_an_agent_error() -> None:
    with pytest.raises(AgentError, match="I am broken") as caught:
        check_env(raises)

    assert isinstance(caught.value.__cause__, ValueError)


def test_an_agent_that_waits_too_long_is_a_timeout() -> None:
    with pytest.raises(AgentTimeoutError, match="waits_for_ever"):
        check_env(ChatAgentEnv(waits_for_ever, agent_timeout=0.01))


async def test_failures_arrive_from_inside_of_a_running_loop() -> None:
    with pytest.raises(AgentError, match="I am broken"):
        check_env(raises)
    assert "Rule 1" in broken(never_ends, max_turns=5)


@pytest.mark.parametrize("agent", [identity_agent, ChatAgentEnv, "agent"])
def test_what_is_no_agent_of_the_client_alone_is_refused(agent: Any) -> None:
    with pytest.raises(InvalidAgentError):
        check_env(agent)


class Forgetful(Qwen3InstructRenderer):
    """Claims the extension property, and shows an earlier user message otherwise all the same."""

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        if message["role"] == "user" and not ctx.is_last:
            message = {**message, "content": "[old]"}
        return super().render_message(message, ctx)


def test_rule_3_a_renderer_that_rewrites_history_though_it_says_it_does_not() -> None:
    async def one_conversation(client: AgentClient) -> float:
        messages: list[Any] = [{"role": "user", "content": "one"}]
        for question in ("two", "three"):
            completion = await client.chat.completions.create(messages=messages)
            messages.append(completion.choices[0].message)
            messages.append({"role": "user", "content": question})
        await client.chat.completions.create(messages=messages)
        return 1.0

    message = broken(
        ChatAgentEnv(one_conversation, renderer=Forgetful(default_renderer().tokenizer))
    )
    assert message.startswith("Rule 3: ")
    assert "Forgetful shows a message otherwise once others follow" in message


def test_an_env_that_a_limit_ends_passes() -> None:
    check_env(ChatAgentEnv(good_over_three_turns, limits=RolloutLimits(max_turns=1)))
