"""What ``ChatAgentEnv`` promises, under the Cookbook's own runner.

1. One argument is enough; every form of agent runs under ``do_single_rollout``.
2. A linear conversation is one datum, of exactly the tokens and logprobs that were sampled.
3. Rewards: between two calls to the transition just taken, the return value to the last.
4. Ends: completed, no call at all, raised, timed out, never silently 0.0.
5. Limits: turns, prompt length, the agent's own max_tokens, tool calls.
6. Replies that are cut or do not parse follow the written policy, or the Cookbook's.
7. Injected messages and the other seams behave as for ``EnvFromMessageEnv``.
8. Closing at any moment leaves no task, no thread and no open file.
9. Methods called out of order are refused.
10. What was not asked for is left alone: other states, other budgets, other agents' patience.
"""

import asyncio
import contextlib
import copy
import functools
import gc
import pickle
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import openai
import psutil
import pytest
from openai.types.chat import ChatCompletion
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_runner import RolloutHooks, RolloutState, run_rollout
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import InitialObservationOverflow, StopReason, Trajectory

from evert import (
    AgentClient,
    AgentError,
    AgentTimeoutError,
    BlockingAgentClient,
    ChatAgentEnv,
    EnvClosedError,
    EnvStateError,
    EpisodeEndedError,
    Outcome,
    RewardError,
    ScriptedPolicy,
)
from evert.bridge.clients.http import server
from evert.bridge.tokens.renderer import prompt_renderer

Agent = Callable[..., Any]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def ask(client: AgentClient, *messages: dict[str, Any], **fields: Any) -> str:
    completion = await client.chat.completions.create(messages=list(messages), **fields)
    return completion.choices[0].message.content or ""


def talker(turns: int, reward: float = 1.0) -> Callable[[AgentClient], Coroutine[Any, Any, float]]:
    """An agent that keeps one conversation going for some turns."""

    async def agent(client: AgentClient) -> float:
        messages = [user("Hi")]
        for turn in range(turns):
            text = await ask(client, *messages)
            messages += [{"role": "assistant", "content": text}, user(f"and {turn}?")]
        return reward

    return agent


async def play(agent: Agent, *replies: str, **options: Any) -> Trajectory:
    script: Any = replies if replies else (lambda prompt: "Fine.")
    return await do_single_rollout(ScriptedPolicy(script), ChatAgentEnv(agent, **options))


def rewards(trajectory: Trajectory) -> list[float]:
    return [transition.reward for transition in trajectory.transitions]


# -- 1. forms of agents --------------------------------------------------------------------------


async def test_one_argument_is_enough() -> None:
    trajectory = await do_single_rollout(ScriptedPolicy(["Fine."]), ChatAgentEnv(talker(1)))
    assert rewards(trajectory) == [1.0]
    assert trajectory.stop_reason == StopReason.COMPLETED


async def test_a_plain_function_is_an_agent() -> None:
    def agent(client: BlockingAgentClient) -> int:
        completion = client.chat.completions.create(messages=[user("Hi")])
        return len(completion.choices[0].message.content or "")

    assert rewards(await play(agent, "four")) == [4.0]


async def test_a_callable_object_is_an_agent() -> None:
    class Player:
        async def __call__(self, client: AgentClient, task: str) -> bool:
            return await ask(client, user(task)) == task

    assert rewards(await play(Player(), "echo", task="echo")) == [1.0]


async def test_a_partial_is_an_agent() -> None:
    async def agent(client: AgentClient, task: int, *, bonus: float) -> float:
        await ask(client, user(str(task)))
        return task + bonus

    assert rewards(await play(functools.partial(agent, bonus=0.5), "x", task=2)) == [2.5]


async def test_none_is_a_task_like_any_other() -> None:
    async def agent(client: AgentClient, task: None) -> bool:
        await ask(client, user("Hi"))
        return task is None

    assert rewards(await play(agent, "x", task=None)) == [1.0]


async def test_a_completion_is_the_sdks_own_object() -> None:
    seen: list[ChatCompletion] = []

    async def agent(client: AgentClient) -> float:
        seen.append(await client.chat.completions.create(messages=[user("Hi")]))
        return 0.0

    trajectory = await play(agent, "Fine.")
    (completion,) = seen
    usage = completion.usage
    assert usage is not None
    assert completion.choices[0].finish_reason == "stop"
    assert usage.prompt_tokens == trajectory.transitions[0].ob.length
    assert usage.completion_tokens == len(trajectory.transitions[0].ac.tokens)


async def test_tools_go_through_the_renderer_and_calls_come_back() -> None:
    tool = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("What is 2 + 3?")]
        completion = await client.chat.completions.create(messages=messages, tools=[tool])
        message = completion.choices[0].message
        assert completion.choices[0].finish_reason == "tool_calls"
        assert message.content is None
        (call,) = message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("add", '{"x": 2}')
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "5"}]
        completion = await client.chat.completions.create(messages=messages, tools=[tool])
        return float(completion.choices[0].message.content or "")

    policy = ScriptedPolicy(
        ['<tool_call>\n{"name": "add", "arguments": {"x": 2}}\n</tool_call>', "5"]
    )
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent))
    assert rewards(trajectory) == [0.0, 5.0]
    assert '"name": "add"' in policy.prompts[0]
    assert "<tool_response>\n5\n</tool_response>" in policy.prompts[1]
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_thinking_comes_as_reasoning_content() -> None:
    seen: list[Any] = []

    async def agent(client: AgentClient) -> float:
        completion = await client.chat.completions.create(messages=[user("Hi")])
        seen.append(completion.choices[0].message)
        return 0.0

    await play(agent, "<think>hm</think>Fine.")
    assert (seen[0].content, seen[0].reasoning_content) == ("Fine.", "hm")


# -- 2. tokens -----------------------------------------------------------------------------------


class Speller:
    """A policy that spells each reply letter by letter, with logprobs that tell tokens apart."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []

    async def __call__(self, prompt: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
        renderer = prompt_renderer(None)
        letters = f"word {len(self.tokens)}"
        tokens = [t for letter in letters for t in renderer.encode(letter)] + renderer.end_tokens
        logprobs = [-(len(self.logprobs) + i + 1) / 8 for i in range(len(tokens))]
        self.tokens += tokens
        self.logprobs += logprobs
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=logprobs, stop_reason="stop")


async def test_a_hundred_turns_are_one_datum_of_exactly_what_was_sampled() -> None:
    policy: Any = Speller()
    trajectory = await do_single_rollout(policy, ChatAgentEnv(talker(100)))
    assert len(trajectory.transitions) == 100
    (datum,) = trajectory_to_data(trajectory, 1.0)
    mask = np.array(datum.loss_fn_inputs["mask"].data) > 0
    assert np.array(datum.loss_fn_inputs["target_tokens"].data)[mask].tolist() == policy.tokens
    sampled = np.array(datum.loss_fn_inputs["logprobs"].data)[mask]
    assert sampled.tolist() == policy.logprobs


async def test_observations_handed_out_do_not_change_later() -> None:
    trajectory = await do_single_rollout(
        ScriptedPolicy(lambda prompt: "x"), ChatAgentEnv(talker(40))
    )
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known


async def test_two_sub_agents_that_alternate_keep_their_lineages() -> None:
    async def sub(client: AgentClient, name: str) -> None:
        messages = [user(f"I am {name}")]
        for _ in range(3):
            text = await ask(client, *messages)
            messages += [{"role": "assistant", "content": text}, user("go on")]

    async def agent(client: AgentClient) -> float:
        await asyncio.gather(sub(client, "left"), sub(client, "right"))
        return 1.0

    env = ChatAgentEnv(agent)
    await do_single_rollout(ScriptedPolicy(lambda prompt: "Fine."), env)
    assert env.turn_lineages == [0, 1, 0, 1, 0, 1]
    assert len(set(env.turn_callers)) == 2


async def test_long_texts_are_tokenised_off_the_loop_and_come_out_the_same() -> None:
    text = "A long text. " * 5000
    policy = ScriptedPolicy(["Fine."])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def agent(client: AgentClient) -> float:
        await ask(client, user(text))
        return 1.0

    ticking = asyncio.create_task(tick())
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent))
    ticking.cancel()
    renderer = prompt_renderer(None)
    assert trajectory.transitions[0].ob.to_ints() == renderer.full(
        [Message(role="user", content=text)]
    )
    assert ticks > 10  # the loop went on meanwhile


# -- 3. rewards ----------------------------------------------------------------------------------


async def test_a_reward_between_two_calls_belongs_to_the_transition_just_taken() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("a"))
        client.reward(0.25)
        client.reward(0.25)
        await ask(client, user("b"))
        await ask(client, user("c"))
        client.reward(2)
        return 1.0

    assert rewards(await play(agent)) == [0.5, 0.0, 3.0]


async def test_a_reward_before_the_first_call_belongs_to_the_first_transition() -> None:
    async def agent(client: AgentClient) -> float:
        client.reward(0.5)
        await ask(client, user("a"))
        await ask(client, user("b"))
        return 1.0

    assert rewards(await play(agent)) == [0.5, 1.0]


async def test_none_is_a_fine_return_value_when_rewards_were_given() -> None:
    async def agent(client: AgentClient) -> None:
        await ask(client, user("a"))
        client.reward(0.5)

    assert rewards(await play(agent)) == [0.5]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "1.0", [1.0]])
async def test_what_is_no_reward_is_an_error_that_names_the_agent(value: Any) -> None:
    async def confused(client: AgentClient) -> Any:
        await ask(client, user("a"))
        return value

    with pytest.raises(RewardError, match="confused"):
        await play(confused)


async def test_an_outcome_carries_metrics_and_logs() -> None:
    async def agent(client: AgentClient) -> Outcome:
        await ask(client, user("a"))
        return Outcome(0.5, {"wins": 1}, {"why": "luck"})

    (transition,) = (await play(agent)).transitions
    assert transition.reward == 0.5
    assert transition.metrics["wins"] == 1
    assert transition.logs["why"] == "luck"


async def test_notes_go_to_the_transition_just_taken() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("a"))
        client.log(guess="512")
        client.metric("distance", 3)
        await ask(client, user("b"))
        return 0.0

    first, second = (await play(agent)).transitions
    assert (first.logs["guess"], first.metrics["distance"]) == ("512", 3.0)
    assert "guess" not in second.logs


# -- 4. ends -------------------------------------------------------------------------------------


async def test_an_agent_that_makes_no_call_is_an_overflow_with_its_reward() -> None:
    async def agent(client: AgentClient) -> float:
        return 0.75

    first = await ChatAgentEnv(agent).initial_observation()
    assert isinstance(first, InitialObservationOverflow)
    assert first.reward == 0.75
    trajectory = await play(agent)
    assert trajectory.stop_reason == StopReason.COMPLETED
    assert trajectory_to_data(trajectory, 1.0) == []


async def test_an_agent_that_raises_is_an_error_with_its_own_as_the_cause() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("a"))
        raise ZeroDivisionError("my own fault")

    with pytest.raises(AgentError, match=r"raised ZeroDivisionError after 1 model calls") as caught:
        await play(agent)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    frames = caught.traceback
    cause = caught.value.__cause__.__traceback__
    assert frames
    assert cause is not None


async def test_an_error_may_be_scored_instead() -> None:
    def agent(client: BlockingAgentClient) -> float:
        client.chat.completions.create(messages=[user("Hi")])
        client.reward(0.25)
        raise KeyError("oops")

    trajectory = await play(agent, on_agent_error=-1.0)
    assert rewards(trajectory) == [-0.75]
    assert trajectory.stop_reason == "agent_error"
    assert trajectory.transitions[0].logs["agent_error"] == "KeyError: 'oops'"


async def test_an_agent_that_never_goes_on_times_out_and_is_cancelled() -> None:
    ended = []

    async def agent(client: AgentClient) -> float:
        await ask(client, user("a"))
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return 1.0

    with pytest.raises(AgentTimeoutError, match=r"agent_timeout=0\.05 s"):
        await play(agent, agent_timeout=0.05)
    assert ended == [True]


@pytest.mark.parametrize("calls", [0, 1])
async def test_an_agent_that_hangs_is_scored_like_one_that_raises(calls: int) -> None:
    cancelled = []

    async def agent(client: AgentClient) -> float:
        for _ in range(calls):
            await ask(client, user("Hi"))
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        return 1.0

    trajectory = await play(agent, agent_timeout=0.05, on_agent_error=-1.0)
    assert trajectory.stop_reason == "agent_timeout"
    assert rewards(trajectory) == [-1.0]
    assert "agent_timeout=0.05 s" in str(trajectory.transitions[-1].logs["agent_error"])
    assert cancelled == [True]


async def test_the_trainers_time_is_not_the_agents() -> None:
    class Slow(ScriptedPolicy):
        async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
            await asyncio.sleep(0.2)
            return await super().__call__(*args, **options)

    env = ChatAgentEnv(talker(2), agent_timeout=0.1)
    assert rewards(await do_single_rollout(Slow(lambda prompt: "x"), env)) == [0.0, 1.0]


async def test_a_sub_agents_call_that_outlives_the_agent_is_told() -> None:
    told: list[str] = []

    async def straggler(client: AgentClient) -> None:
        try:
            await ask(client, user("late"))
        except EpisodeEndedError as error:
            told.append(str(error))

    tasks: list[asyncio.Task[None]] = []

    async def agent(client: AgentClient) -> float:
        await ask(client, user("a"))
        tasks.append(asyncio.create_task(straggler(client)))
        return 1.0

    assert rewards(await play(agent)) == [1.0]
    await asyncio.gather(*tasks)
    assert "had ended" in told[0] or "outlived" in told[0]


async def test_an_outstanding_call_of_a_sub_agent_ends_with_the_agent() -> None:
    told: list[str] = []

    async def straggler(client: AgentClient) -> None:
        told.append(await ask(client, user("late")))

    tasks: list[asyncio.Task[None]] = []

    async def agent(client: AgentClient) -> float:
        tasks.append(asyncio.create_task(straggler(client)))
        await asyncio.sleep(0.01)
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await asyncio.sleep(0.05)
    result = await env.step(prompt_renderer(None).encode("Fine.<|im_end|>"))
    assert (result.episode_done, result.reward) == (True, 1.0)
    await asyncio.gather(*tasks)
    assert told == ["Fine."]


# -- 5. limits -----------------------------------------------------------------------------------


async def test_the_turn_cap_ends_the_episode_with_what_was_earned() -> None:
    async def agent(client: AgentClient) -> float:
        while True:
            await ask(client, user("again"))
            client.reward(0.5)

    trajectory = await play(agent, limits=RolloutLimits(max_turns=3))
    assert rewards(trajectory) == [0.5, 0.5, 0.5]
    assert trajectory.stop_reason == StopReason.MAX_TURNS


async def test_an_agent_that_ends_at_the_turn_cap_is_completed() -> None:
    trajectory = await play(talker(3), limits=RolloutLimits(max_turns=3))
    assert trajectory.stop_reason == StopReason.COMPLETED
    assert rewards(trajectory)[-1] == 1.0


async def test_the_agents_own_max_tokens_is_kept() -> None:
    seen: list[str] = []

    async def agent(client: AgentClient) -> float:
        for cap in (2, 3, None):
            completion = await client.chat.completions.create(messages=[user("Hi")], max_tokens=cap)
            seen.append(completion.choices[0].finish_reason)
        return 0.0

    trajectory = await play(agent, *["a b c d e f g"] * 3)
    lengths = [len(transition.ac.tokens) for transition in trajectory.transitions]
    assert lengths[:2] == [2, 3]
    assert lengths[2] > 3
    assert seen == ["length", "length", "stop"]


async def test_the_runs_own_cap_on_a_turn_holds_beside_the_agents() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("Hi"), max_tokens=50)
        return 0.0

    trajectory = await play(agent, "a b c d e f", limits=RolloutLimits(max_turn_tokens=2))
    assert len(trajectory.transitions[0].ac.tokens) == 2


async def test_an_agent_may_cope_with_a_prompt_that_is_too_long() -> None:
    caught: list[openai.BadRequestError] = []

    async def agent(client: AgentClient) -> float:
        await ask(client, user("short"))
        try:
            await ask(client, user("long " * 200))
        except openai.BadRequestError as error:
            caught.append(error)
        await ask(client, user("shorter"))
        return 1.0

    trajectory = await play(agent, limits=RolloutLimits(max_trajectory_tokens=100))
    assert rewards(trajectory) == [0.0, 1.0]
    assert trajectory.stop_reason == StopReason.COMPLETED
    assert caught[0].code == "context_length_exceeded"
    assert "too long" in str(caught[0])


async def test_an_agent_that_does_not_cope_ends_with_the_cookbooks_stop_reason() -> None:
    async def agent(client: AgentClient) -> float:
        messages = [user("Hi")]
        while True:
            text = await ask(client, *messages)
            messages += [{"role": "assistant", "content": text}, user("more " * 20)]

    trajectory = await play(agent, limits=RolloutLimits(max_trajectory_tokens=200))
    assert trajectory.stop_reason == StopReason.MAX_TOKENS
    assert rewards(trajectory)[-1] == -0.1
    assert trajectory.transitions[-1].metrics["context_overflow"] == 1.0


async def test_an_agent_that_hides_the_cause_ends_the_same_way() -> None:
    async def agent(client: AgentClient) -> float:
        try:
            await ask(client, user("Hi"))
            await ask(client, user("long " * 200))
        except openai.BadRequestError as error:
            raise RuntimeError("something went wrong") from error
        return 1.0

    trajectory = await play(agent, limits=RolloutLimits(max_trajectory_tokens=100))
    assert trajectory.stop_reason == StopReason.MAX_TOKENS


async def test_an_sdk_that_makes_an_error_of_its_own_of_it_ends_the_same_way() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("Hi"))
        long: Any = user("long " * 200)
        await client.openai.chat.completions.create(model=client.model, messages=[long])
        return 1.0

    trajectory = await play(agent, limits=RolloutLimits(max_trajectory_tokens=100))
    assert trajectory.stop_reason == StopReason.MAX_TOKENS


async def test_an_agent_that_asks_python_to_exit_fails_alone() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("Hi"))
        raise SystemExit("I give up")

    def blocking(client: Any) -> float:
        client.chat.completions.create(messages=[user("Hi")])
        raise SystemExit("I give up")

    for each in (agent, blocking):
        with pytest.raises(AgentError, match="raised SystemExit after 1 model calls: I give up"):
            await play(each)


async def test_an_overlong_first_prompt_is_an_initial_overflow() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("long " * 200))
        return 1.0

    trajectory = await play(
        agent, limits=RolloutLimits(max_trajectory_tokens=100), context_overflow_reward=-0.5
    )
    assert trajectory.stop_reason == StopReason.MAX_TOKENS
    assert rewards(trajectory) == [-0.5]


async def test_an_agent_that_sends_too_long_a_prompt_again_and_again_is_stopped() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("Hi"))
        while True:
            try:
                await ask(client, user("long " * 200))
            except openai.BadRequestError:
                continue

    trajectory = await play(agent, limits=RolloutLimits(max_trajectory_tokens=100))
    assert trajectory.stop_reason == StopReason.MAX_TOKENS


async def test_an_agent_that_sends_bad_requests_again_and_again_is_an_error() -> None:
    async def agent(client: AgentClient) -> float:
        while True:
            try:
                await ask(client, {"role": "oracle", "content": "Hi"})
            except openai.BadRequestError:
                continue

    with pytest.raises(AgentError, match=r"requests in a row that were refused.*oracle"):
        await play(agent)


TOOL_CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def tool_user(client: AgentClient) -> float:
    """Runs every tool call; ends when there is none."""
    messages: list[Any] = [user("Add!")]
    ran = 0
    while True:
        completion = await client.chat.completions.create(messages=messages, tools=[ADD])
        message = completion.choices[0].message
        if not message.tool_calls:
            return float(ran)
        messages.append(message)
        for call in message.tool_calls:
            ran += 1
            client.metric("ran", ran)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "1"})


async def test_the_tool_call_cap_cuts_a_batch_and_ends_the_episode() -> None:
    three = "\n".join([TOOL_CALL] * 3)
    trajectory = await play(tool_user, three, three, limits=RolloutLimits(max_tool_calls=4))
    assert trajectory.stop_reason == StopReason.MAX_TOOL_CALLS
    assert trajectory.transitions[-1].metrics["ran"] == 4


async def test_after_the_last_tool_call_a_reply_simply_stops() -> None:
    seen = []

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("Add!")]
        for _ in range(2):
            choice = (await client.chat.completions.create(messages=messages, tools=[ADD])).choices[
                0
            ]
            seen.append((choice.finish_reason, len(choice.message.tool_calls or ())))
            messages += [choice.message, user("And again!")]
        return 1.0

    two = "\n".join([TOOL_CALL] * 2)
    await play(agent, two, two, limits=RolloutLimits(max_tool_calls=2))
    assert seen == [("tool_calls", 2), ("stop", 0)]


async def test_an_agent_that_wants_no_tool_calls_gets_none() -> None:
    seen = []

    async def agent(client: AgentClient) -> float:
        for choice in ("auto", "none"):
            completion = await client.chat.completions.create(
                messages=[user("Add!")], tools=[ADD], tool_choice=choice
            )
            [first] = completion.choices
            seen.append(
                (first.finish_reason, first.message.content, first.message.tool_calls is None)
            )
        return 1.0

    await play(agent, f"Well. {TOOL_CALL}", f"Well. {TOOL_CALL}")
    assert seen == [("tool_calls", "Well.", False), ("stop", "Well.", True)]


async def test_what_an_agent_sends_is_its_own_400_and_what_it_raises_its_own_error() -> None:
    async def copes(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="cannot be read; send plain JSON values"):
            await ask(client, {**user("a"), "lock": threading.Lock()})
        await ask(client, user("a"))
        return 1.0

    async def does_not(client: AgentClient) -> float:
        await ask(client, {**user("a"), "name": threading})  # its str() is fine, its copy is not
        return 1.0

    assert rewards(await play(copes, "b")) == [1.0]
    first = await ChatAgentEnv(does_not, on_agent_error=-1.0).initial_observation()
    assert isinstance(first, InitialObservationOverflow)
    assert first.reward == -1.0


async def test_an_agent_that_strips_what_it_gets_makes_one_datum() -> None:
    async def agent(client: AgentClient) -> float:
        messages = [user("a")]
        for _ in range(4):
            text = await ask(client, *messages)
            messages += [{"role": "assistant", "content": text.strip()}, user("b")]
        return 1.0

    trajectory = await play(agent, *["x\n"] * 4)
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert trajectory.transitions[-1].metrics["drift"] == 0


async def test_a_reply_nested_too_deeply_to_parse_is_text() -> None:
    deep = '<tool_call>\n{"name": "f", "arguments": ' + "[" * 3000 + "}\n</tool_call>"

    async def agent(client: AgentClient) -> float:
        text = await ask(client, user("a"))
        await ask(client, user("a"), {"role": "assistant", "content": text}, user("b"))
        return float(text.count("["))

    assert rewards(await play(agent, deep, "Fine.")) == [0.0, 3000.0]


async def test_the_tighter_of_two_tool_call_caps_holds() -> None:
    env = ChatAgentEnv(tool_user, limits=RolloutLimits(max_tool_calls=1))
    env.set_max_tool_calls(5)
    trajectory = await do_single_rollout(ScriptedPolicy([TOOL_CALL, TOOL_CALL]), env)
    assert len(trajectory.transitions) == 2
    assert trajectory.stop_reason == StopReason.MAX_TOOL_CALLS


async def test_the_runners_limits_reach_the_env() -> None:
    policy = ScriptedPolicy([TOOL_CALL] * 5)
    limits = RolloutLimits(max_tool_calls=2)
    trajectory = await run_rollout(policy, ChatAgentEnv(tool_user), limits=limits)
    assert trajectory.stop_reason == StopReason.MAX_TOOL_CALLS


# -- 6. replies that are cut or do not parse -----------------------------------------------------


async def test_a_cut_reply_is_delivered_with_its_finish_reason() -> None:
    seen = []

    async def agent(client: AgentClient) -> float:
        completion = await client.chat.completions.create(messages=[user("Hi")], max_tokens=2)
        seen.append((completion.choices[0].finish_reason, completion.choices[0].message.content))
        return 1.0

    assert rewards(await play(agent, "Hello there, friend")) == [1.0]
    assert seen[0][0] == "length"
    assert "Hello there, friend".startswith(seen[0][1] or "?")


async def test_a_cut_reply_may_end_the_episode_as_in_the_cookbook() -> None:
    limits = RolloutLimits(max_turn_tokens=2)
    trajectory = await play(talker(3), "Hello there", on_truncation="end", limits=limits)
    assert trajectory.stop_reason == StopReason.MAX_TOKENS
    assert rewards(trajectory) == [-0.1]


async def test_a_broken_tool_call_reaches_the_agent_as_text() -> None:
    seen = []

    async def agent(client: AgentClient) -> float:
        seen.append(await ask(client, user("Hi"), tools=[ADD]))
        return 1.0

    (transition,) = (await play(agent, '<tool_call>\n{"name": oops}\n</tool_call>')).transitions
    assert "oops" in seen[0]
    assert transition.metrics["parse_error"] == 1.0


class OneToolTurn(MessageEnv):
    """The Cookbook's side of the comparison: one task, ends at a reply without tool calls."""

    def __init__(self) -> None:
        self.history: list[Message] = [Message(role="user", content="Add!")]

    async def initial_observation(self) -> list[Message]:
        return self.history

    async def step(self, message: Message) -> MessageStepResult:
        self.history.append(message)
        return MessageStepResult(1.0, True, self.history)


async def raw_step(env: Any, text: str) -> Any:
    """One step with tokens that never reach an end of turn."""
    await env.initial_observation()
    return await env.step(prompt_renderer(None).encode(text), extra={"stop_reason": "stop"})


async def test_broken_framing_under_a_policy_ends_as_in_the_cookbook() -> None:
    policy = ParseErrorPolicy(terminal_reward=-2.0, mask_error_turns=True)
    ours = ChatAgentEnv(talker(3))
    ours.set_parse_error_policy(policy)
    theirs = EnvFromMessageEnv(
        prompt_renderer(None).renderer, OneToolTurn(), parse_error_policy=policy
    )
    own, other = await raw_step(ours, "no end"), await raw_step(theirs, "no end")
    assert (own.reward, own.episode_done) == (other.reward, other.episode_done) == (-2.0, True)
    assert other.metrics.items() <= own.metrics.items()


async def test_broken_tool_calls_under_a_policy_are_asked_again_and_the_agent_never_knows() -> None:
    broken = '<tool_call>\n{"name": oops}\n</tool_call>'
    policy = ScriptedPolicy([broken, broken, TOOL_CALL, "done"])
    trajectory = await run_rollout(
        policy,
        ChatAgentEnv(tool_user),
        parse_errors=ParseErrorPolicy(max_consecutive=2, penalty_per_error=0.25),
    )
    assert rewards(trajectory) == [-0.25, -0.25, 0.0, 1.0]
    assert "formatting issue" in policy.prompts[1]
    assert broken in policy.prompts[1]
    metrics = trajectory.transitions[-1].metrics
    assert (metrics["lineages"], metrics["drift"]) == (1, 0)


async def test_too_many_broken_tool_calls_under_a_policy_end_the_episode() -> None:
    broken = '<tool_call>\n{"name": oops}\n</tool_call>'
    trajectory = await run_rollout(
        ScriptedPolicy(lambda prompt: broken),
        ChatAgentEnv(tool_user),
        parse_errors=ParseErrorPolicy(max_consecutive=2, terminal_reward=-1.0),
    )
    assert rewards(trajectory) == [0.0, 0.0, -1.0]
    assert trajectory.stop_reason == StopReason.PARSE_ERROR


async def test_a_template_that_is_no_plain_format_string_is_filled_in() -> None:
    broken = '<tool_call>\n{"name": oops}\n</tool_call>'
    policy = ScriptedPolicy([broken, "fine"])
    template = "Wrong: {details}. Mind the braces {{}}."
    await run_rollout(
        policy,
        ChatAgentEnv(tool_user),
        parse_errors=ParseErrorPolicy(max_consecutive=1, retry_message_template=template),
    )
    assert "Mind the braces {}." in policy.prompts[1]


async def test_an_agents_stop_string_stops_the_reply_and_is_left_out() -> None:
    seen: list[str] = []

    async def agent(client: AgentClient) -> float:
        messages = [user("Count")]
        seen.append(await ask(client, *messages, stop=["3", "END"]))
        messages += [{"role": "assistant", "content": seen[0]}, user("Go on")]
        seen.append(await ask(client, *messages))
        return 1.0

    env = ChatAgentEnv(agent)
    first = await env.initial_observation()
    assert not isinstance(first, InitialObservationOverflow)
    prompt, stop = first
    assert stop == ["<|im_end|>", "3", "END"]
    renderer = prompt_renderer(None)
    action = renderer.encode("1 2 3")
    result = await env.step(action, extra={"stop_reason": "stop"})
    ended = prompt.to_ints() + action + renderer.end_tokens
    assert result.next_observation.to_ints()[: len(ended)] == ended
    assert "parse_error" not in result.metrics
    await env.step(renderer.encode("4<|im_end|>"))
    assert seen == ["1 2 ", "4"]


async def test_an_action_the_renderer_cannot_read_at_all_reaches_the_agent_as_text() -> None:
    seen: list[str] = []

    async def agent(client: AgentClient) -> float:
        seen.append(await ask(client, user("Hi")))
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    result = await env.step(prompt_renderer(None).encode("a<|im_end|>b<|im_end|>"))
    assert result.metrics["parse_error"] == 1.0
    assert seen[0].startswith("a")


# -- 7. seams ------------------------------------------------------------------------------------


class Hurry(RolloutHooks):
    """Injects a reminder before the second turn."""

    async def on_turn_begin(self, state: RolloutState) -> list[Message] | None:
        return [Message(role="user", content="Hurry!")] if state.turn_index == 1 else None


async def test_a_hooks_messages_are_injected_before_the_call() -> None:
    policy = ScriptedPolicy(lambda prompt: "Fine.")
    trajectory = await run_rollout(policy, ChatAgentEnv(talker(3)), hooks=Hurry())
    assert ["Hurry!" in prompt for prompt in policy.prompts] == [False, True, True]
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_drift_is_reported_at_the_transition_where_it_happens() -> None:
    async def agent(client: AgentClient) -> float:
        text = await ask(client, user("a"))
        await ask(client, user("a"), {"role": "assistant", "content": text + "!"}, user("b"))
        return 1.0

    first, second = (await play(agent)).transitions
    assert first.logs["drift"] == "history"
    assert "drift" not in second.logs


async def test_an_image_for_a_renderer_without_images_is_refused() -> None:
    async def agent(client: AgentClient) -> float:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        try:
            await ask(client, {"role": "user", "content": [image]})
        except openai.BadRequestError as error:
            return float("has no image processor" in str(error))
        return 0.0

    first = await ChatAgentEnv(agent).initial_observation()
    assert isinstance(first, InitialObservationOverflow)
    assert first.reward == 1.0


async def test_the_report_of_an_episode_is_in_its_last_metrics() -> None:
    async def agent(client: AgentClient) -> float:
        text = await ask(client, user("a"))
        await ask(client, user("a"), {"role": "assistant", "content": text + "!"}, user("b"))
        return 1.0

    metrics = (await play(agent)).transitions[-1].metrics
    assert (metrics["lineages"], metrics["drift"], metrics["drift/history"]) == (2, 1, 1)


# -- 8. closing ----------------------------------------------------------------------------------


def leftovers() -> tuple[int, int, int]:
    """Numbers of tasks, threads and open files."""
    threads = [t for t in threading.enumerate() if not t.name.startswith("evert off loop")]
    return len(asyncio.all_tasks()), len(threads), psutil.Process().num_fds()


def blocking_talker(client: BlockingAgentClient) -> float:
    for _ in range(5):
        client.chat.completions.create(messages=[user("Hi")])
    return 1.0


@pytest.mark.parametrize("agent", [talker(5), blocking_talker])
@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_closing_at_any_call_leaves_nothing_behind(agent: Agent, steps: int) -> None:
    before = leftovers()
    env = ChatAgentEnv(agent)
    await env.initial_observation()
    for _ in range(steps):
        await env.step(prompt_renderer(None).encode("Fine.<|im_end|>"))
    await env.close()
    await env.close()
    assert leftovers() == before
    assert not env.is_running


async def test_closing_before_the_start_and_after_the_end_is_fine() -> None:
    env = ChatAgentEnv(talker(1))
    await env.close()
    with pytest.raises(EnvClosedError, match="was closed"):
        await env.initial_observation()
    env = ChatAgentEnv(talker(1))
    await do_single_rollout(ScriptedPolicy(["x"]), env)
    await env.close()


async def test_a_step_that_waits_while_the_env_is_closed_is_told() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("a"))
        await asyncio.sleep(60)
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    step = asyncio.create_task(env.step(prompt_renderer(None).encode("x<|im_end|>")))
    await asyncio.sleep(0.01)
    await asyncio.gather(env.close(), env.close())
    with pytest.raises(EnvClosedError):
        await step


async def test_a_step_after_the_close_is_refused() -> None:
    env = ChatAgentEnv(talker(3))
    await env.initial_observation()
    await env.close()
    with pytest.raises(EnvClosedError, match="make a new one"):
        await env.step([1])


async def test_an_agent_that_ignores_its_close_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()

    async def agent(client: AgentClient) -> float:
        try:
            await ask(client, user("a"))
        except asyncio.CancelledError:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
        return 1.0

    env = ChatAgentEnv(agent, close_timeout=0.02)
    await env.initial_observation()
    await env.close()
    assert "did not end within" in caplog.text
    release.set()
    await asyncio.sleep(0.01)
    assert not env.is_running


def test_an_env_is_closed_from_another_event_loop() -> None:
    envs: list[ChatAgentEnv] = []
    started, closed = threading.Event(), threading.Event()

    async def episode() -> None:
        envs.append(ChatAgentEnv(talker(3)))
        await envs[0].initial_observation()
        started.set()
        await asyncio.to_thread(closed.wait, 10)

    thread = threading.Thread(target=asyncio.run, args=(episode(),))
    thread.start()
    assert started.wait(10)
    asyncio.run(envs[0].close())
    assert not envs[0].is_running
    closed.set()
    thread.join(10)


def test_an_env_whose_loop_is_gone_releases_its_thread_on_close() -> None:
    env = ChatAgentEnv(blocking_talker)

    async def start() -> None:
        await env.initial_observation()

    asyncio.run(start())
    asyncio.run(env.close())
    for thread in threading.enumerate():
        if thread.name.startswith("evert agent"):
            thread.join(5)
            assert not thread.is_alive()


def test_an_env_that_is_dropped_frees_its_thread_and_warns() -> None:
    async def start() -> None:
        env = ChatAgentEnv(blocking_talker)
        await env.initial_observation()
        await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(start())
        gc.collect()
    assert any("call close()" in str(w.message) for w in caught)
    for thread in threading.enumerate():
        if thread.name.startswith("evert agent"):
            thread.join(5)
            assert not thread.is_alive()


# -- 9. order ------------------------------------------------------------------------------------


async def test_a_step_before_the_first_observation_is_refused() -> None:
    with pytest.raises(EnvStateError, match=r"initial_observation\(\) first"):
        await ChatAgentEnv(talker(1)).step([1])


async def test_a_step_after_the_end_is_refused() -> None:
    env = ChatAgentEnv(talker(1))
    await do_single_rollout(ScriptedPolicy(["x"]), env)
    with pytest.raises(EnvStateError, match="no more after episode_done"):
        await env.step([1])


async def test_an_env_is_used_once() -> None:
    env = ChatAgentEnv(talker(1))
    await env.initial_observation()
    with pytest.raises(EnvStateError, match="make a new one"):
        await env.initial_observation()
    await env.close()


def test_an_env_is_played_on_one_event_loop() -> None:
    env = ChatAgentEnv(talker(1))

    async def start() -> None:
        await env.initial_observation()

    asyncio.run(start())
    with pytest.raises(EnvStateError, match="another event loop"):
        asyncio.run(env.step([1]))


async def test_two_steps_for_one_observation_are_refused() -> None:
    env = ChatAgentEnv(talker(3))
    await env.initial_observation()
    action = prompt_renderer(None).encode("x<|im_end|>")
    results: list[Awaitable[Any]] = [env.step(action), env.step(action)]
    first, second = await asyncio.gather(*results, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert isinstance(second, EnvStateError)
    await env.close()


async def test_an_env_is_renewed_with_all_its_options() -> None:
    env = ChatAgentEnv(talker(5), limits=RolloutLimits(max_turns=2))
    for _ in range(2):
        env = env.renewed()
        trajectory = await do_single_rollout(ScriptedPolicy(lambda prompt: "x"), env)
        assert trajectory.stop_reason == StopReason.MAX_TURNS


async def test_an_action_that_ends_in_its_middle_is_delivered_and_the_agent_may_go_on() -> None:
    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        for _ in range(2):
            completion = await client.chat.completions.create(messages=messages)
            messages.append({"role": "assistant", "content": completion.choices[0].message.content})
            messages.append({"role": "user", "content": "Go on."})
        return 1.0

    renderer = prompt_renderer(None)
    end = renderer.end_tokens[:1]
    env = ChatAgentEnv(agent)
    await env.initial_observation()
    between = await env.step([*renderer.encode("Hel"), *end, *renderer.encode("lo"), *end])
    assert between.metrics["parse_error"] == 1.0
    assert between.logs["drift"] == "template"
    result = await env.step([*renderer.encode("Yes."), *end])

    assert result.episode_done
    assert result.reward == 1.0


# -- 10. states that are left alone ----------------------------------------------------------------


def say(text: str) -> list[int]:
    renderer = prompt_renderer(None)
    return renderer.encode(text) + renderer.end_tokens[:1]


async def test_an_agent_that_coped_with_an_overflow_may_fail_for_another_reason() -> None:
    async def agent(client: AgentClient) -> float:
        with contextlib.suppress(openai.BadRequestError):
            await ask(client, user("long " * 400))
        await ask(client, user("short"))
        raise KeyError("a plain bug")

    with pytest.raises(AgentError, match="raised KeyError after 1 model calls"):
        await play(agent, limits=RolloutLimits(max_trajectory_tokens=200))


async def test_an_error_is_of_a_class_named_after_the_agents_own() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("Hi"))
        raise KeyError("lost")

    with pytest.raises(AgentError) as caught:
        await play(agent)
    assert type(caught.value).__name__ == "AgentError.KeyError"
    received = pickle.loads(pickle.dumps(caught.value))
    assert type(received) is type(caught.value)
    assert str(received) == str(caught.value)


async def test_an_exception_that_cannot_be_written_down_is_the_agents_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    async def agent(client: AgentClient) -> float:
        await ask(client, user("Hi"))
        raise Mute

    with pytest.raises(AgentError, match="its message cannot be read: ValueError"):
        await play(agent)
    trajectory = await play(agent, on_agent_error=-1.0)
    assert rewards(trajectory) == [-1.0]


async def test_retries_count_as_turns_against_the_budget() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("JSON, please"), response_format={"type": "json_object"})
        return 1.0

    limited = await play(agent, limits=RolloutLimits(max_turns=1))
    assert len(limited.transitions) == 1
    assert limited.stop_reason == StopReason.MAX_TURNS
    free = await play(agent)
    assert len(free.transitions) == 3


async def test_retries_keep_to_the_token_budget() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, user("JSON, please"), response_format={"type": "json_object"})
        return 1.0

    env = ChatAgentEnv(agent, limits=RolloutLimits(max_trajectory_tokens=150), format_retries=99)
    await env.initial_observation()
    prompts = []
    while not (result := await env.step(say("no json"))).episode_done:
        prompts.append(result.next_observation.length)

    assert prompts
    assert max(prompts) <= 148  # a runner needs room for two tokens
    assert result.metrics["stop/max_tokens"] == 1.0


async def test_a_runner_with_limits_of_its_own_leaves_the_agents_max_tokens_in_force() -> None:
    said: list[Any] = []

    async def agent(client: AgentClient) -> float:
        messages = [user("Hi")]
        for _ in range(2):
            completion = await client.chat.completions.create(messages=messages, max_tokens=3)
            choice = completion.choices[0]
            said.append((choice.message.content, choice.finish_reason))
            messages += [choice.message.model_dump(exclude_none=True), user("and?")]
        return 1.0

    policy = ScriptedPolicy(lambda prompt: "one two three four five six")
    trajectory = await run_rollout(policy, ChatAgentEnv(agent), limits=RolloutLimits(max_turns=5))

    text, reason = said[0]
    assert "one two three four five six".startswith(text)
    assert len(text) < len("one two three four")
    assert reason == "length"
    assert len(trajectory_to_data(trajectory, 1.0)) == 1  # what was sampled is kept whole


async def test_a_step_on_another_loop_leaves_the_observation_where_it_is() -> None:
    env = ChatAgentEnv(talker(1))
    await env.initial_observation()

    def elsewhere() -> None:
        asyncio.run(env.step(say("x")))

    with pytest.raises(EnvStateError, match="another event loop"):
        await asyncio.to_thread(elsewhere)
    assert (await env.step(say("x"))).episode_done


async def test_messages_that_cannot_be_injected_leave_the_observation_as_it_was() -> None:
    env = ChatAgentEnv(talker(1))
    first = await env.initial_observation()
    assert not isinstance(first, InitialObservationOverflow)
    image: Any = {"role": "user", "content": [{"type": "image", "image": "x"}]}
    with pytest.raises(ValueError, match="image"):
        await env.inject_messages([image])

    assert env.conversation is not None
    assert env.conversation.prompt().to_ints() == first[0].to_ints()
    assert (await env.step(say("x"))).episode_done


async def test_closing_while_a_long_prompt_is_tokenised_ends_the_step_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenising, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr("evert.bridge.tokens.loop_budget.LONG_TEXT", 10)

    async def agent(client: AgentClient) -> float:
        text = await ask(client, user("Hi"))
        said = {"role": "assistant", "content": text}
        await ask(client, user("Hi"), said, user("a long text of many words"))
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    observe = env._turns.book.observe

    def slow(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            tokenising.set()
            go_on.wait(10)
        return observe(*arguments)

    monkeypatch.setattr(env._turns.book, "observe", slow)
    waiting = asyncio.create_task(env.step(say("x")))
    await asyncio.to_thread(tokenising.wait, 10)
    await env.close()
    go_on.set()
    with pytest.raises(EnvClosedError):
        await waiting


async def test_a_finally_block_of_some_seconds_is_left_to_finish() -> None:
    """The default patience: one cancellation, then seconds before the second."""
    done: list[str] = []

    async def agent(client: AgentClient) -> float:
        try:
            await ask(client, user("Hi"))
        finally:
            await asyncio.sleep(1.5)
            done.append("cleaned up")
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()
    assert done == ["cleaned up"]


async def test_calls_that_waited_at_the_close_are_not_held_against_the_agent() -> None:
    told: list[str] = []

    async def agent(client: AgentClient) -> float:
        async def call() -> None:
            try:
                await ask(client, user("Hi"))
            except BaseException as error:
                told.append(type(error).__name__)

        calls = asyncio.gather(*(call() for _ in range(6)))
        try:
            await asyncio.shield(calls)
        finally:
            await calls
        return 0.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()
    assert told == ["EnvClosedError"] * 6


async def test_what_an_agent_that_ended_meanwhile_held_is_let_go_by_close() -> None:
    async def agent(client: AgentClient) -> float:
        assert client.base_url
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ask(client, user("Hi")), 0.02)
        return 0.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await asyncio.sleep(0.5)  # the trainer samples, and the agent gives up
    assert not env.is_running
    assert server._servers
    await env.close()
    assert not server._servers


async def test_an_async_agent_that_is_dropped_is_warned_of_and_cancelled() -> None:
    ended: list[str] = []

    async def agent(client: AgentClient) -> float:
        try:
            await ask(client, user("Hi"))
        finally:
            ended.append("ended")
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    dropped = [env]
    del env
    with pytest.warns(ResourceWarning, match="dropped while its agent was running; call close"):
        dropped.clear()
    await asyncio.sleep(0.05)
    assert ended == ["ended"]


@pytest.mark.parametrize("metrics", [{"m": "text"}, {"m": float("nan")}, {"m": None}])
async def test_metrics_of_an_outcome_that_are_no_numbers_are_an_error(metrics: Any) -> None:
    async def agent(client: AgentClient) -> Outcome:
        await ask(client, user("Hi"))
        return Outcome(1.0, metrics=metrics)

    with pytest.raises(RewardError, match="The metric 'm' in the Outcome of the agent"):
        await play(agent)


async def test_an_agent_may_say_that_its_episode_was_cut_short() -> None:
    async def agent(client: AgentClient) -> Outcome:
        await ask(client, user("Hi"))
        return Outcome(0.5, truncated=True)

    trajectory = await play(agent)
    assert trajectory.stop_reason == "truncated"
    assert rewards(trajectory) == [0.5]


async def test_a_hook_cannot_go_on_after_the_agents_end_and_is_told_why() -> None:
    class Clears(RolloutHooks):
        async def on_stop_reason(self, reason: str, state: RolloutState) -> str | None:
            return None

    with pytest.raises(EnvStateError, match="an episode whose agent has ended cannot be continued"):
        await run_rollout(ScriptedPolicy(["a", "b"]), ChatAgentEnv(talker(1)), hooks=Clears())


def test_limits_that_are_read_anew_can_be_copied() -> None:
    env = ChatAgentEnv(talker(1), limits=RolloutLimits(max_turn_tokens=7))

    assert copy.deepcopy(env.rollout_limits).max_turn_tokens == 7


async def test_a_longer_episode_leaves_no_more_for_the_garbage_collector() -> None:
    """Conversations and the points in them refer to each other; at the end they let go."""

    async def garbage_of(turns: int) -> int:
        gc.collect()
        gc.disable()
        try:
            await play(talker(turns))
            return gc.collect()
        finally:
            gc.enable()

    await garbage_of(2)  # what is made once
    assert abs(await garbage_of(40) - await garbage_of(4)) < 40
