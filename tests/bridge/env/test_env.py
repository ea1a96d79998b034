"""``ChatAgentEnv`` with the Cookbook's own runner.

Covers tokens, rewards, ways an episode can end, limits, parse errors, the methods that
``EnvFromMessageEnv`` also has, and closing. ``tests/faults`` covers faults of agents and trainers.
"""

import asyncio
import contextlib
import copy
import gc
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from tests.kit import (
    Logs,
    ask,
    ask_blocking,
    asks,
    assert_extends,
    assistant,
    call,
    calling,
    play,
    policy_of,
    reward,
    rewards,
    start,
    talker,
    tokens_of,
    tool,
    user,
)
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
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
    BlockingAgentClient,
    ChatAgentEnv,
    EpisodeEndedError,
    Outcome,
    ScriptedPolicy,
)
from evert.bridge.clients.http import server
from evert.bridge.off_loop import give_threads
from evert.bridge.tokens.renderer import prompt_renderer

LONG = "long " * 200
TIGHT = RolloutLimits(max_trajectory_tokens=100)
ADD = tool("add")
TOOL_CALL = calling("add")
BROKEN_CALL = '<tool_call>\n{"name": oops}\n</tool_call>'


class Speller(TokenCompleter):
    """A policy whose replies have one token per letter, each with a different logprob."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []

    async def __call__(self, *_: Any, **options: Any) -> TokensWithLogprobs:
        renderer = prompt_renderer(None)
        letters = f"word {len(self.tokens)}"
        tokens = [t for letter in letters for t in renderer.encode(letter)] + renderer.end_tokens
        logprobs = [-(len(self.logprobs) + i + 1) / 8 for i in range(len(tokens))]
        self.tokens += tokens
        self.logprobs += logprobs
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=logprobs, stop_reason="stop")


async def test_a_hundred_turns_become_one_datum_with_exactly_the_sampled_tokens() -> None:
    """This also checks that earlier observations do not change later."""
    policy = Speller()
    trajectory = await play(talker(100), policy)
    assert len(trajectory.transitions) == 100
    (datum,) = trajectory_to_data(trajectory, 1.0)
    mask = np.array(datum.loss_fn_inputs["mask"].data) > 0
    assert np.array(datum.loss_fn_inputs["target_tokens"].data)[mask].tolist() == policy.tokens
    sampled = np.array(datum.loss_fn_inputs["logprobs"].data)[mask]
    assert sampled.tolist() == policy.logprobs
    assert_extends(trajectory)


async def test_an_action_with_an_end_token_in_the_middle_is_delivered() -> None:
    async def agent(client: AgentClient) -> float:
        reply = await ask(client)
        return float("Hel" in reply and await ask(client, "Hi", assistant(reply), "and?") == "Yes.")

    env = await start(agent)
    between = await env.step([*tokens_of("Hel"), *tokens_of("lo")])
    assert between.metrics["parse_error"] == 1.0
    assert between.logs["drift"] == "template"
    result = await env.step(tokens_of("Yes."))
    assert (result.episode_done, result.reward) == (True, 1.0)


async def test_a_reward_goes_to_the_latest_transition_or_to_the_first() -> None:
    async def between(client: AgentClient) -> float:
        await ask(client, "a")
        client.reward(0.25)
        client.reward(0.25)
        await ask(client, "b")
        await ask(client, "c")
        client.reward(2)
        return 1.0

    async def before(client: AgentClient) -> float:
        client.reward(0.5)
        await ask(client, "a")
        await ask(client, "b")
        return 1.0

    async def returns_none(client: AgentClient) -> None:
        await ask(client, "a")
        client.reward(0.5)

    assert rewards(await play(between)) == [0.5, 0.0, 3.0]
    assert rewards(await play(before)) == [0.5, 1.0]
    assert rewards(await play(returns_none)) == [0.5]


async def test_an_outcome_can_have_metrics_logs_and_a_truncated_flag() -> None:
    async def agent(client: AgentClient) -> Outcome:
        await ask(client)
        return Outcome(0.5, {"wins": 1}, {"why": "luck"}, truncated=True)

    trajectory = await play(agent)
    (transition,) = trajectory.transitions
    assert transition.reward == 0.5
    assert transition.metrics["wins"] == 1
    assert transition.logs["why"] == "luck"
    assert trajectory.stop_reason == "truncated"


# -- ending an episode -----------------------------------------------------------------------------


async def test_an_agent_that_makes_no_call_gives_an_overflow_with_its_reward() -> None:
    async def agent(client: AgentClient) -> float:
        return 0.75

    first = await ChatAgentEnv(agent).initial_observation()
    assert isinstance(first, InitialObservationOverflow)
    assert first.reward == 0.75
    trajectory = await play(agent)
    assert trajectory.stop_reason == StopReason.COMPLETED
    assert trajectory_to_data(trajectory, 1.0) == []


async def test_an_agents_exception_becomes_an_error_that_pickles_or_a_reward() -> None:
    """``tests/faults/raising.py`` lists the messages for all types of exceptions."""
    raised = ZeroDivisionError("my own")

    async def agent(client: AgentClient) -> float:
        await ask(client)
        client.reward(0.25)
        raise raised

    with pytest.raises(AgentError) as caught:
        await play(agent)
    assert caught.value.__cause__ is raised
    assert raised.__traceback__ is not None
    received = pickle.loads(pickle.dumps(caught.value))
    assert (type(received), str(received)) == (type(caught.value), str(caught.value))
    assert type(received).__name__ == "AgentError.ZeroDivisionError"
    trajectory = await play(agent, on_agent_error=-1.0)
    assert rewards(trajectory) == [-0.75]
    assert trajectory.transitions[0].logs["agent_error"] == "ZeroDivisionError: my own"


async def test_sampling_time_does_not_count_towards_the_agents_timeout() -> None:
    class Slow(ScriptedPolicy):
        async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
            await asyncio.sleep(0.2)
            return await super().__call__(*args, **options)

    env = ChatAgentEnv(talker(2), agent_timeout=0.1)
    assert rewards(await do_single_rollout(Slow(lambda prompt: "x"), env)) == [0.0, 1.0]


# -- limits ----------------------------------------------------------------------------------------


async def test_max_turns_ends_the_episode_with_the_reward_so_far() -> None:
    async def agent(client: AgentClient) -> float:
        while True:
            await ask(client, "again")
            client.reward(0.5)

    limits = RolloutLimits(max_turns=3)
    trajectory = await play(agent, limits=limits)
    assert (rewards(trajectory), trajectory.stop_reason) == ([0.5] * 3, StopReason.MAX_TURNS)
    trajectory = await play(talker(3), limits=limits)
    assert (reward(trajectory), trajectory.stop_reason) == (1.0, StopReason.COMPLETED)


async def test_the_agents_max_tokens_applies_in_addition_to_the_runs_limits() -> None:
    async def agent(client: AgentClient) -> float:
        for cap in (2, 3, None):
            client.log(end=(await call(client, max_tokens=cap)).choices[0].finish_reason)
        return 0.0

    def lengths(trajectory: Trajectory) -> list[int]:
        return [len(transition.ac.tokens) for transition in trajectory.transitions]

    replies = ["a b c d e f g"] * 3
    by_env = await play(agent, *replies)
    assert lengths(by_env) == [2, 3, len(tokens_of(replies[0]))]
    limits = RolloutLimits(max_turns=5)  # the runner's limits do not override the agent's
    runners = await run_rollout(policy_of(*replies), ChatAgentEnv(agent), limits=limits)
    for trajectory in (by_env, runners):
        ends = [transition.logs["end"] for transition in trajectory.transitions]
        assert ends == ["length", "length", "stop"]
        assert [turn.metrics["stop/length"] for turn in trajectory.transitions] == [1.0, 1.0, 0.0]
        assert trajectory.stop_reason == StopReason.COMPLETED  # takes precedence over stop/length
    first, _, last = (transition.ac.tokens for transition in runners.transitions)
    assert first == last[: len(first)]  # all sampled tokens are kept
    trajectory = await play(agent, *replies, limits=RolloutLimits(max_turn_tokens=2))
    assert lengths(trajectory) == [2, 2, 2]


async def test_a_handled_context_overflow_is_not_blamed_for_a_later_error() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, "short")
        with pytest.raises(openai.BadRequestError, match="too long"):
            await ask(client, LONG)
        await ask(client, "shorter")
        raise KeyError("a plain bug")

    with pytest.raises(AgentError, match="raised KeyError after 2 model calls"):
        await play(agent, limits=TIGHT)


async def test_a_malformed_message_gets_a_400_that_the_agent_can_catch() -> None:
    async def copes(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="could not be read; send plain JSON"):
            await ask(client, {**user("a"), "lock": threading.Lock()})
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        with pytest.raises(openai.BadRequestError, match="has no image processor"):
            await ask(client, {"role": "user", "content": [image]})
        await ask(client)
        return 1.0

    async def does_not(client: AgentClient) -> float:
        await ask(client, {**user("a"), "name": threading})  # str() works, but deepcopy() fails
        return 1.0

    assert rewards(await play(copes, "b")) == [1.0]
    first = await ChatAgentEnv(does_not, on_agent_error=-1.0).initial_observation()
    assert isinstance(first, InitialObservationOverflow)
    assert first.reward == -1.0


async def test_an_agent_that_keeps_repeating_invalid_requests_fails() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        client.reward(0.25)
        while True:
            with contextlib.suppress(openai.BadRequestError):
                await ask(client, {"role": "user", "content": [{"type": "audio"}]})

    with pytest.raises(AgentError, match=r"made 8 requests in a row that were refused\. The last"):
        await play(agent)
    trajectory = await play(agent, on_agent_error=-1.0)
    assert rewards(trajectory) == [-0.75]
    assert "stop/agent_error" in trajectory.transitions[0].metrics


async def tool_user(client: AgentClient) -> float:
    """Run all tool calls until a reply contains none."""
    messages: list[Any] = [user("Add!")]
    ran = 0
    while True:
        message = (await call(client, *messages, tools=[ADD])).choices[0].message
        if not message.tool_calls:
            return float(ran)
        messages.append(message)
        for tool_call in message.tool_calls:
            ran += 1
            client.metric("ran", ran)
            messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": "1"})


async def test_the_tighter_of_two_tool_call_limits_cuts_a_batch_and_ends_the_episode() -> None:
    three = "\n".join([TOOL_CALL] * 3)
    trajectory = await play(tool_user, three, three, limits=RolloutLimits(max_tool_calls=4))
    assert trajectory.stop_reason == StopReason.MAX_TOOL_CALLS
    assert trajectory.transitions[-1].metrics["ran"] == 4
    capped = ChatAgentEnv(tool_user, limits=RolloutLimits(max_tool_calls=1))
    capped.set_max_tool_calls(5)
    for env, limits in ((capped, None), (ChatAgentEnv(tool_user), RolloutLimits(max_tool_calls=1))):
        trajectory = await run_rollout(policy_of(*[TOOL_CALL] * 5), env, limits=limits)
        assert len(trajectory.transitions) == 2
        assert trajectory.stop_reason == StopReason.MAX_TOOL_CALLS


async def test_a_reply_without_an_allowed_call_has_finish_reason_stop() -> None:
    """No tool calls are allowed after ``max_tool_calls`` calls or with ``tool_choice="none"``."""
    seen: list[Any] = []

    async def agent(client: AgentClient, choices: list[str]) -> float:
        messages: list[Any] = [user("Add!")]
        for choice in choices:
            [reply] = (await call(client, *messages, tools=[ADD], tool_choice=choice)).choices
            calls = reply.message.tool_calls
            seen.append((reply.finish_reason, reply.message.content, calls and len(calls)))
            messages += [reply.message, user("And again!")]
        return 1.0

    two = [f"Well. {TOOL_CALL}\n{TOOL_CALL}"] * 2
    expected = [("tool_calls", "Well.", 2), ("stop", "Well.", None)]
    await play(agent, *two, task=["auto", "auto"], limits=RolloutLimits(max_tool_calls=2))
    assert seen == expected
    await play(agent, *two, task=["auto", "none"])
    assert seen[2:] == expected


async def wants_json(client: AgentClient) -> float:
    await ask(client, "JSON, please", response_format={"type": "json_object"})
    return 1.0


async def test_format_retries_count_as_turns_and_stay_within_the_token_budget() -> None:
    limited = await play(wants_json, limits=RolloutLimits(max_turns=1))
    assert len(limited.transitions) == 1
    assert limited.stop_reason == StopReason.MAX_TURNS
    assert len((await play(wants_json)).transitions) == 3

    limits = RolloutLimits(max_trajectory_tokens=150)
    env = await start(wants_json, limits=limits, format_retries=99)
    prompts = []
    while not (result := await env.step(tokens_of("no json"))).episode_done:
        prompts.append(result.next_observation.length)
    assert prompts
    assert max(prompts) <= 148  # the runner needs room for another two tokens
    assert result.metrics["stop/max_tokens"] == 1.0


# -- parse errors ----------------------------------------------------------------------------------


class OneToolTurn(MessageEnv):
    """A Cookbook Env for comparison, whose episode ends after one reply."""

    def __init__(self) -> None:
        self.history: list[Message] = [Message(role="user", content="Add!")]

    async def initial_observation(self) -> list[Message]:
        return self.history

    async def step(self, message: Message) -> MessageStepResult:
        self.history.append(message)
        return MessageStepResult(1.0, True, self.history)


async def raw_step(env: Any, text: str) -> Any:
    """Take a step with an action that lacks the end-of-turn token."""
    await env.initial_observation()
    return await env.step(prompt_renderer(None).encode(text), extra={"stop_reason": "stop"})


async def test_broken_framing_with_a_parse_error_policy_ends_like_in_the_cookbook() -> None:
    policy = ParseErrorPolicy(terminal_reward=-2.0, mask_error_turns=True)
    ours = ChatAgentEnv(talker(3))
    ours.set_parse_error_policy(policy)
    renderer = prompt_renderer(None).renderer
    theirs = EnvFromMessageEnv(renderer, OneToolTurn(), parse_error_policy=policy)
    own, other = await raw_step(ours, "no end"), await raw_step(theirs, "no end")
    assert (own.reward, own.episode_done) == (other.reward, other.episode_done) == (-2.0, True)
    assert other.metrics.items() <= own.metrics.items()


async def test_broken_tool_calls_with_a_parse_error_policy_are_retried_up_to_its_limit() -> None:
    policy = policy_of(BROKEN_CALL, BROKEN_CALL, TOOL_CALL, "done")
    template = "A formatting issue: {details}. Mind the braces {{}}."
    errors = ParseErrorPolicy(
        max_consecutive=2, penalty_per_error=0.25, retry_message_template=template
    )
    trajectory = await run_rollout(policy, ChatAgentEnv(tool_user), parse_errors=errors)
    assert rewards(trajectory) == [-0.25, -0.25, 0.0, 1.0]
    assert "Mind the braces {}." in policy.prompts[1]
    assert BROKEN_CALL in policy.prompts[1]
    metrics = trajectory.transitions[-1].metrics
    assert (metrics["lineages"], metrics["drift"]) == (1, 0)

    policy = policy_of(lambda prompt: BROKEN_CALL)
    errors = ParseErrorPolicy(max_consecutive=2, terminal_reward=-1.0)
    trajectory = await run_rollout(policy, ChatAgentEnv(tool_user), parse_errors=errors)
    assert rewards(trajectory) == [0.0, 0.0, -1.0]
    assert trajectory.stop_reason == StopReason.PARSE_ERROR
    assert "formatting issue" in policy.prompts[1]


async def test_an_agents_stop_string_ends_the_reply_and_is_not_delivered() -> None:
    seen: list[str] = []

    async def agent(client: AgentClient) -> float:
        seen.append(await ask(client, "Count", stop=["3", "END"]))
        seen.append(await ask(client, "Count", assistant(seen[0]), "Go on"))
        return 1.0

    env = ChatAgentEnv(agent)
    first: Any = await env.initial_observation()
    prompt, stop = first
    assert stop == ["<|im_end|>", "3", "END"]
    renderer = prompt_renderer(None)
    action = renderer.encode("1 2 3")
    result = await env.step(action, extra={"stop_reason": "stop"})
    ended = prompt.to_ints() + action + renderer.end_tokens
    assert result.next_observation.to_ints()[: len(ended)] == ended
    assert "parse_error" not in result.metrics
    await env.step(tokens_of("4"))
    assert seen == ["1 2 ", "4"]


class Hurry(RolloutHooks):
    async def on_turn_begin(self, state: RolloutState) -> list[Message] | None:
        return [Message(role="user", content="Hurry!")] if state.turn_index == 1 else None


async def test_messages_from_a_hook_are_injected_before_the_call() -> None:
    policy = policy_of()
    trajectory = await run_rollout(policy, ChatAgentEnv(talker(3)), hooks=Hurry())
    assert ["Hurry!" in prompt for prompt in policy.prompts] == [False, True, True]
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_messages_that_cannot_be_injected_do_not_change_the_observation() -> None:
    env = ChatAgentEnv(talker(1))
    first: Any = await env.initial_observation()
    image: Any = {"role": "user", "content": [{"type": "image", "image": "x"}]}
    with pytest.raises(ValueError, match="image"):
        await env.inject_messages([image])
    assert env.conversation is not None
    assert env.conversation.prompt().to_ints() == first[0].to_ints()
    assert (await env.step(tokens_of("x"))).episode_done


# -- closing ---------------------------------------------------------------------------------------


def blocking_talker(client: BlockingAgentClient) -> float:
    for _ in range(5):
        ask_blocking(client)
    return 1.0


async def test_an_agent_that_ignores_cancellation_on_close_is_reported(caplog: Logs) -> None:
    release = asyncio.Event()

    async def agent(client: AgentClient) -> float:
        try:
            await ask(client)
        except asyncio.CancelledError:
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()
        return 1.0

    env = await start(agent, close_timeout=0.02)
    await env.close()
    assert "is still running after" in caplog.text
    release.set()
    await asyncio.sleep(0.01)
    assert not env.is_running


async def test_a_finally_block_may_take_a_few_seconds() -> None:
    """By default, the agent is cancelled a second time only after a few seconds."""
    steps: list[str] = []

    async def agent(client: AgentClient) -> float:
        try:
            await ask(client)
        finally:
            await asyncio.sleep(1.5)
            steps.append("cleaned up")
        return 1.0

    env = await start(agent)
    await env.close()
    assert steps == ["cleaned up"]


async def test_close_releases_the_server_of_an_agent_that_has_returned() -> None:
    async def agent(client: AgentClient) -> float:
        assert client.base_url
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ask(client), 0.02)
        return 0.0

    env = await start(agent)
    await asyncio.sleep(0.5)  # the agent gives up while the trainer is sampling
    assert not env.is_running
    assert server._servers
    await env.close()
    assert not server._servers


def test_dropping_an_env_with_its_loop_ends_its_thread_and_warns() -> None:
    async def start_and_drop() -> None:
        _env = await start(blocking_talker)
        await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(start_and_drop())
        gc.collect()
    assert any("Call close()" in str(w.message) for w in caught)
    for thread in threading.enumerate():
        if thread.name.startswith("evert agent"):
            thread.join(5)
            assert not thread.is_alive()


async def test_longer_episodes_do_not_leave_more_garbage() -> None:
    """Conversations and their ``Point`` objects form reference cycles until the episode ends."""

    async def garbage_of(turns: int) -> int:
        gc.collect()
        gc.disable()
        try:
            await play(talker(turns))
            return gc.collect()
        finally:
            gc.enable()

    await garbage_of(2)  # warm up, to exclude one-time allocations
    assert abs(await garbage_of(40) - await garbage_of(4)) < 40


def test_rollout_limits_can_be_copied() -> None:
    env = ChatAgentEnv(asks, limits=RolloutLimits(max_turn_tokens=7))
    assert copy.deepcopy(env.rollout_limits).max_turn_tokens == 7


# -- threads ---------------------------------------------------------------------------------------


async def test_two_hundred_concurrent_blocking_agents_do_not_deadlock() -> None:
    def agent(client: BlockingAgentClient, task: str) -> bool:
        return ask_blocking(client) == task

    envs = [await start(agent, str(number)) for number in range(200)]
    ends = [await env.step(tokens_of(str(number))) for number, env in enumerate(envs)]
    assert [end.reward for end in ends] == [1.0] * 200


async def test_each_call_records_its_task_or_thread() -> None:
    async def agent(client: AgentClient) -> float:
        tasks = [asyncio.create_task(ask(client, name), name=name) for name in ("left", "right")]
        await asyncio.gather(*tasks)
        return 1.0

    def blocking(client: BlockingAgentClient) -> float:
        for name in ("left", "right"):
            thread = threading.Thread(target=ask_blocking, args=(client, name), name=name)
            thread.start()
            thread.join()
        return 1.0

    for form in (agent, blocking):
        env = ChatAgentEnv(form)
        await do_single_rollout(policy_of(), env)
        assert env.turn_callers == ["left", "right"]


def test_a_call_after_the_envs_loop_has_stopped_is_rejected() -> None:
    clients: list[BlockingAgentClient] = []

    def agent(client: BlockingAgentClient) -> float:
        clients.append(client)
        return 1.0

    asyncio.run(play(agent))
    with pytest.raises(EpisodeEndedError):
        ask_blocking(clients[0], "late")


class Hiding(asyncio.SelectorEventLoop):
    """An event loop that does not expose its executor, like uvloop."""

    __slots__ = ("kept",)

    def set_default_executor(self, executor: Any) -> None:
        self.kept = executor

    def __getattribute__(self, name: str) -> Any:
        if name == "_default_executor" and not self.is_closed():
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("size", [None, 3])
def test_an_event_loop_that_hides_its_executor_keeps_it(size: int | None) -> None:
    loop = Hiding()
    chosen = None if size is None else ThreadPoolExecutor(size)
    if chosen is not None:
        loop.set_default_executor(chosen)
    give_threads(loop)
    first = loop.kept
    give_threads(loop)
    assert loop.kept is first
    assert chosen in (None, first)
    first.shutdown()
    loop.close()
