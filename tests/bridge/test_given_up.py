"""Calls that the agent gives up. Nobody reads their reply, so its tokens must have zero weight.

1. No token of the call is trained on, however the agent gives it up and whatever runner is used.
2. The call is counted once. Its transition is marked, unless it was sampled ahead of the runner.
3. A conversation that continues without the call remains a single datum.
4. The call is marked in the record, and an episode with such a call can be replayed and branched.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import openai
import pytest
from tests.bridge.clients.http.test_server import openai_of
from tests.kit import ask, ask_blocking, calling, tokens_of, tool, user
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory

import evert
from evert import (
    AgentClient,
    BlockingAgentClient,
    BranchEnv,
    ChatAgentEnv,
    ChatAgentGroupBuilder,
    EpisodeEndedError,
    ParallelRollouts,
    Recorder,
    ReplayError,
    ScriptedPolicy,
    read_records,
    replay,
    sequences,
)
from evert.bridge.env.seats import seat_envs
from evert.bridge.episode.inbox import ParkedCall
from evert.bridge.tokens.renderer import prompt_renderer

LONG, SHORT = "Think for long.", "Be short."


class Story:
    """A policy that replies to ``LONG`` only after the agent has given up that call."""

    def __init__(self, reply: str = "never read") -> None:
        self.is_sampled = threading.Event()
        self.is_given_up = threading.Event()
        self.policy = ScriptedPolicy(self._reply)
        self._unread = reply

    async def _reply(self, prompt: str) -> str:
        if LONG not in prompt.rpartition("<|im_start|>user")[2]:
            return "end"
        self.is_sampled.set()
        await passed(self.is_given_up)
        return self._unread


async def passed(event: threading.Event) -> None:
    """Wait for an event without blocking the loop."""
    while not event.is_set():  # noqa: ASYNC110 (a threading.Event)
        await asyncio.sleep(0.001)


AnyAgent: TypeAlias = Callable[..., Any]


# -- ways to give up a call ------------------------------------------------------------------------


def by_cancelling(story: Story, call: Callable[[AgentClient], Awaitable[Any]]) -> AnyAgent:
    async def agent(client: AgentClient) -> float:
        long = asyncio.ensure_future(call(client))
        await passed(story.is_sampled)
        long.cancel()
        await asyncio.wait([long])
        story.is_given_up.set()
        return float(await ask(client, SHORT) == "end")

    return agent


async def by_handle(client: AgentClient) -> Any:
    return await ask(client, LONG)


async def by_sdk(client: AgentClient) -> Any:
    create: Any = client.openai.chat.completions.create
    return await create(model=client.model, messages=[user(LONG)])


async def by_http(client: AgentClient) -> Any:
    async with openai_of(client, max_retries=0) as sdk:
        create: Any = sdk.chat.completions.create
        return await create(model=client.model, messages=[user(LONG)])


def by_ending(story: Story) -> AnyAgent:
    async def agent(client: AgentClient) -> float:
        assert await ask(client, SHORT) == "end"
        long = asyncio.create_task(ask(client, LONG))
        await passed(story.is_sampled)
        story.is_given_up.set()
        long.add_done_callback(lambda task: task.exception())
        return 1.0

    return agent


def by_ending_beside_a_thread(story: Story) -> AnyAgent:
    def agent(client: BlockingAgentClient) -> float:
        def block() -> None:
            with pytest.raises(EpisodeEndedError):
                ask_blocking(client, LONG)

        assert ask_blocking(client, SHORT) == "end"
        threading.Thread(target=block).start()
        story.is_sampled.wait()
        story.is_given_up.set()
        return 1.0

    return agent


def by_cancelling_on_another_loop(story: Story) -> AnyAgent:
    async def two(client: AgentClient) -> str:
        long = asyncio.create_task(ask(client, LONG))
        await passed(story.is_sampled)
        long.cancel()
        await asyncio.wait([long])
        story.is_given_up.set()
        return await ask(client, SHORT)

    async def agent(client: AgentClient) -> float:
        return float(await asyncio.to_thread(asyncio.run, two(client)) == "end")

    return agent


WAYS: dict[str, Callable[[Story], AnyAgent]] = {
    "handle": lambda story: by_cancelling(story, by_handle),
    "SDK": lambda story: by_cancelling(story, by_sdk),
    "HTTP": lambda story: by_cancelling(story, by_http),
    "another loop": by_cancelling_on_another_loop,
    "the agent's end": by_ending,
    "the end of an agent with a thread": by_ending_beside_a_thread,
}


# -- runners ---------------------------------------------------------------------------------------


async def by_single_rollout(agent: AnyAgent, story: Story) -> Trajectory:
    return await do_single_rollout(story.policy, ChatAgentEnv(agent))


async def by_evert(agent: AnyAgent, story: Story) -> Trajectory:
    async def of_task(client: Any, task: object) -> float:
        reward: float = await agent(client)
        return reward

    def of_thread(client: Any, task: object) -> float:
        return float(agent(client))

    is_async = asyncio.iscoroutinefunction(agent)
    playable = of_task if is_async else of_thread
    batch = await evert.rollout(playable, ["x"], story.policy, group_size=1)
    [trajectory] = batch.played[""][0].group.trajectories
    return trajectory


def by_strategy(strategy: RolloutStrategy) -> Any:
    async def play(agent: AnyAgent, story: Story) -> Trajectory:
        builder = ChatAgentGroupBuilder(agent, group_size=1)
        try:
            result = await strategy.execute(builder, story.policy)
            await builder.compute_group_rewards(result.trajectories, result.envs)
        finally:
            await builder.cleanup()
        return result.trajectories[0]

    return play


RUNNERS = {
    "do_single_rollout": by_single_rollout,
    "evert.rollout": by_evert,
    "FailFast": by_strategy(FailFast()),
    "ParallelRollouts": by_strategy(ParallelRollouts()),
}


def trained_text(trajectory: Trajectory) -> list[str]:
    """Return the text of the trained tokens in each datum."""
    texts = list[str]()
    for datum in trajectory_to_data(trajectory, 1.0):
        targets = datum.loss_fn_inputs["target_tokens"].tolist()
        masks = datum.loss_fn_inputs["mask"].tolist()
        advantages = datum.loss_fn_inputs["advantages"].tolist()
        assert [bool(value) for value in masks] == [bool(value) for value in advantages]
        ids = [int(token) for token, mask in zip(targets, masks, strict=True) if mask]
        texts.append(prompt_renderer(None).decode(ids))
    return texts


def total(trajectory: Trajectory, metric: str) -> float:
    return sum(turn.metrics.get(metric, 0) for turn in trajectory.transitions)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runner", RUNNERS)
async def test_a_given_up_call_has_zero_weight_and_is_counted_once(way: str, runner: str) -> None:
    story = Story()

    trajectory = await RUNNERS[runner](WAYS[way](story), story)

    assert "".join(trained_text(trajectory)) == "end<|im_end|>"
    assert total(trajectory, "calls/given_up") == 1
    assert total(trajectory, "given_up") == len(trajectory.transitions) - 1
    masks = [any(sequence.response_mask) for sequence in sequences(trajectory)]
    assert masks == [False] * (len(masks) - 1) + [True] or way.startswith("the")


async def test_a_reply_that_arrives_during_the_cancellation_counts_as_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = ParkedCall.answer

    async def agent(client: AgentClient) -> float:
        long = asyncio.create_task(ask(client, LONG))

        def answer_and_cancel(call: ParkedCall, reply: Any) -> None:
            answer(call, reply)
            long.cancel()

        monkeypatch.setattr(ParkedCall, "answer", answer_and_cancel)
        await asyncio.wait([long])
        monkeypatch.undo()
        return float(await ask(client, SHORT) == "end")

    trajectory = await do_single_rollout(ScriptedPolicy(["unread", "end"]), ChatAgentEnv(agent))

    assert trained_text(trajectory) == ["", "end<|im_end|>"]
    assert total(trajectory, "calls/given_up") == total(trajectory, "given_up") == 1


async def test_overlapping_calls_that_are_given_up_are_counted_and_not_trained_on() -> None:
    """A guardrail samples answers while a check is running, and drops them if the check fails."""
    story = Story()

    async def agent(client: AgentClient) -> float:
        answers = [asyncio.create_task(ask(client, LONG, str(n))) for n in range(3)]
        answers.append(asyncio.create_task(ask(client, LONG)))
        assert await ask(client, SHORT) == "end"
        for answer in answers:
            answer.cancel()
        await asyncio.wait(answers)
        story.is_given_up.set()
        return float(await ask(client, SHORT) == "end")

    trajectory = await by_strategy(ParallelRollouts())(agent, story)

    assert "never read" not in "".join(trained_text(trajectory))
    assert total(trajectory, "calls/given_up") == 4
    assert total(trajectory, "given_up") == len(trajectory.transitions) - 2


async def test_an_unread_reply_is_not_checked_for_parse_errors() -> None:
    bad = '<tool_call>\n{"name": oops}\n</tool_call>'
    story = Story(reply=bad)
    env = ChatAgentEnv(
        by_cancelling(story, by_handle),
        parse_error_policy=ParseErrorPolicy(max_consecutive=0, terminal_reward=-1.0),
    )

    trajectory = await do_single_rollout(story.policy, env)

    assert [turn.reward for turn in trajectory.transitions] == [0.0, 1.0]
    assert total(trajectory, "parse_error") == total(trajectory, "tools/calls_unparsed") == 0


@pytest.mark.parametrize("again", [LONG, SHORT])
async def test_a_conversation_that_continues_without_a_given_up_call_remains_one_datum(
    again: str,
) -> None:
    replies = iter(["one", "unread", "two", "three"])

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("Begin.")]

        async def turn(text: str) -> None:
            sent = [*messages, user(text)]
            completion = await client.chat.completions.create(messages=sent)
            messages[:] = [*sent, completion.choices[0].message]

        await turn("First.")
        long = asyncio.create_task(turn(LONG))
        await asyncio.sleep(0)
        long.cancel()
        await asyncio.wait([long])
        await turn(again)
        await turn("Last.")
        return 1.0

    async def reply(prompt: str) -> str:
        await asyncio.sleep(0.01)
        return next(replies)

    builder = ChatAgentGroupBuilder(agent, group_size=1)
    result = await FailFast().execute(builder, ScriptedPolicy(reply))
    [trajectory] = result.trajectories
    in_order = sequences(trajectory)
    await builder.compute_group_rewards(result.trajectories, result.envs)
    await builder.cleanup()

    expected = ["", "one<|im_end|>two<|im_end|>three<|im_end|>"]
    assert trained_text(trajectory) == expected
    assert [sum(sequence.response_mask) > 0 for sequence in in_order] == [False, True]
    assert total(trajectory, "drift") == 0


async def test_a_reply_rejected_for_missing_log_probabilities_is_not_trained_on() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            await client.chat.completions.create(messages=[user("Hi")], logprobs=True)
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    last = await env.step(tokens_of("unread"))  # token ids without log-probabilities

    assert PARSE_ERROR_MASKED_METRIC_KEY in last.metrics
    assert "given_up" not in last.metrics


async def test_a_seat_is_not_trained_on_a_reply_that_arrives_after_the_episode() -> None:
    story = Story()

    async def agent(client: AgentClient) -> dict[str, float]:
        waiting = asyncio.create_task(ask(client.seat("a"), LONG))
        waiting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await passed(story.is_sampled)
        await ask(client.seat("b"), SHORT)
        story.is_given_up.set()
        return {"a": 1.0, "b": 1.0}

    a, b = await asyncio.gather(
        *(do_single_rollout(story.policy, env) for env in seat_envs(agent, ("a", "b")))
    )

    assert trained_text(a) == [""]
    assert trained_text(b) == ["end<|im_end|>"]
    assert (total(a, "calls/given_up"), total(b, "calls/given_up")) == (1, 0)


# -- records ---------------------------------------------------------------------------------------


async def recorded(agent: AnyAgent, story: Story, folder: Path) -> evert.RolloutRecord:
    recorder = Recorder(folder / "rollouts.jsonl")
    env = recorder.watch(ChatAgentEnv(agent))
    trajectory = await do_single_rollout(story.policy, env)
    recorder.add([trajectory], [env])
    [record] = read_records(folder)
    return record


def gives_up_after_a_while(reply: list[str]) -> AnyAgent:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(client, LONG, tools=[tool("add")]), 0.2)
        reply.append(await ask(client, SHORT))
        return float(reply[-1] == "end")

    return agent


async def test_a_record_with_a_given_up_call_can_be_replayed_and_branched(tmp_path: Path) -> None:
    story, replies = Story(calling("add", x=1)), list[str]()
    agent = gives_up_after_a_while(replies)
    asyncio.get_running_loop().call_later(0.4, story.is_given_up.set)

    record = await recorded(agent, story, tmp_path)

    assert [record.is_given_up(turn) for turn in range(2)] == [True, False]
    assert record.last_turns() == [1]
    again = await replay(record, agent)
    assert [turn.ac.tokens for turn in again.transitions] == [
        record.action(turn).tokens for turn in range(2)
    ]
    assert [sorted(turn.metrics) for turn in again.transitions] == [
        sorted(turn.metrics) for turn in record.trajectory().transitions
    ]
    branch = BranchEnv(record, 1, agent)
    trajectory = await do_single_rollout(ScriptedPolicy(["new"]), branch)
    assert trained_text(trajectory) == ["new<|im_end|>"]
    assert replies == ["end", "end", "new"]


async def test_waiting_for_a_given_up_reply_is_reported_as_a_replay_difference(
    tmp_path: Path,
) -> None:
    story = Story()
    asyncio.get_running_loop().call_later(0.4, story.is_given_up.set)
    record = await recorded(gives_up_after_a_while([]), story, tmp_path)

    async def waits(client: AgentClient) -> float:
        await ask(client, LONG, tools=[tool("add")])
        return 1.0

    with pytest.raises(ReplayError, match="at turn 0: in the record, it gave up the call"):
        await replay(record, waits, agent_timeout=0.3)
