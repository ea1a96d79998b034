"""Agents as the Cookbook's ``MessageEnv``: ``AgentMessageEnv``.

1. Through ``EnvFromMessageEnv`` an agent gives the prompts, actions, rewards, metrics and logs that
   it gives as a ``ChatAgentEnv`` with the same renderer, token for token: with tools, thinking,
   stops, formats, errors, blocking agents.
2. Agent -> ``MessageEnv`` -> agent is the agent again.
3. The Cookbook's seams reach it: tool-call caps, parse-error policies.
4. Closed at any call, the agent ends and leaves no task behind; so it does when it is dropped.
5. What messages cannot carry is refused.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
import tinker_cookbook.renderers as cookbook
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.message_env import EnvFromMessageEnv
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.types import Env, Trajectory, Transition

from evert.bridge.agent import Outcome
from evert.bridge.base import base_tokenizer, default_renderer
from evert.bridge.cookbook_agent import CookbookAgent
from evert.bridge.env import ChatAgentEnv
from evert.bridge.errors import AgentError, EnvClosedError, EnvStateError
from evert.bridge.message_env import AgentMessageEnv
from evert.bridge.scripted import ScriptedPolicy

DOUBLE = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Doubles a number.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "double", "arguments": {arguments}}}\n</tool_call>'


async def ask(client: Any, messages: list[Any], **fields: Any) -> Any:
    completion = await client.chat.completions.create(messages=messages, **fields)
    messages.append(completion.choices[0].message)
    return messages[-1]


# -- agents ----------------------------------------------------------------------------------------


async def three_turns(client: Any, task: Any = None) -> Outcome:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for turn in range(3):
        messages.append({"role": "user", "content": f"Question {turn}?"})
        reply = await ask(client, messages)
        client.reward(0.1 * turn)
        client.metric("length", len(reply.content))
        client.log(said=reply.content)
    return Outcome(1.0, {"right": 1.0}, {"end": "well"}, truncated=True)


async def uses_a_tool(client: Any, task: Any = None) -> float:
    messages: list[Any] = [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": "Double 21."},
    ]
    while (reply := await ask(client, messages, tools=[DOUBLE])).tool_calls:
        for each in reply.tool_calls:
            doubled = str(2 * json.loads(each.function.arguments)["x"])
            messages.append({"role": "tool", "tool_call_id": each.id, "content": doubled})
    return float("42" in reply.content)


def blocks(client: Any, task: Any = None) -> float:
    messages = [{"role": "user", "content": "Say one."}]
    one = client.chat.completions.create(messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": one}, {"role": "user", "content": "Again."}]
    return float(
        one == client.chat.completions.create(messages=messages).choices[0].message.content
    )


async def thinks(client: Any, task: Any = None) -> float:
    messages: list[Any] = [{"role": "user", "content": "Think."}]
    first = await ask(client, messages)
    messages.append({"role": "user", "content": "And?"})
    await ask(client, messages)
    return float(first.reasoning_content == "hm")


async def stops(client: Any, task: Any = None) -> float:
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    first = await ask(client, messages, stop=["3"])
    messages.append(QUESTION)
    second = await ask(client, messages)
    return float(first.content == "1 2 " and second.content == "1 2 3")


async def wants_json(client: Any, task: Any = None) -> float:
    messages: list[Any] = [QUESTION]
    wanted = {"type": "json_object"}
    await ask(client, messages, response_format=wanted)
    messages.append(QUESTION)
    return float(json.loads((await ask(client, messages, response_format=wanted)).content)["a"])


async def is_not_trained(client: Any, task: Any = None) -> float:
    await ask(client.untrained, [QUESTION])
    return 1.0


QUESTION = {"role": "user", "content": "?"}
SCENES: dict[str, tuple[Any, list[str], str]] = {
    "three turns": (three_turns, ["one", "two", " three "], "qwen3_instruct"),
    "tools": (uses_a_tool, [call('{"x": 21}'), "It is 42."], "qwen3_instruct"),
    "a broken tool call": (uses_a_tool, [call('{"x": '), "no"], "qwen3_instruct"),
    "a thread": (blocks, ["one", "one"], "qwen3_instruct"),
    "thoughts": (thinks, ["<think>\nhm\n</think>\n\nyes", "well"], "qwen3"),
    "stops": (stops, ["1 2 3", "1 2 3"], "qwen3_instruct"),
    "a format": (wants_json, ["no", '{"a": 1}', '{"a": 2}'], "qwen3_instruct"),
    "untrained": (is_not_trained, ["yes"], "qwen3_instruct"),
}


def played(env: Env, say: Sequence[str], renderer: Any, **options: Any) -> Trajectory:
    return asyncio.run(run_rollout(ScriptedPolicy(say, renderer), env, **options))


def told(turn: Transition) -> tuple[Any, ...]:
    """What a transition carries, but for what only an Env with tokens knows."""
    metrics = {k: v for k, v in turn.metrics.items() if not k.startswith(("lineages", "drift"))}
    tokens = "caller", "lineage", "drift", "drift_at"
    logs = {k: v for k, v in turn.logs.items() if k not in tokens}
    return turn.ob.to_ints(), turn.ac.tokens, turn.reward, turn.episode_done, metrics, logs


def both(agent: Any, renderer: Any, **options: Any) -> tuple[Env, Env]:
    """The agent as a token-level Env, and through the Cookbook's adapter."""
    options = {"renderer": renderer, **options}
    adapted = EnvFromMessageEnv(renderer, AgentMessageEnv(agent, 3, **options))
    return ChatAgentEnv(agent, 3, **options), adapted


# -- 1: equal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_through_the_cookbooks_adapter_an_agent_is_the_same(scene: str) -> None:
    agent, say, name = SCENES[scene]
    renderer = cookbook.get_renderer(name, base_tokenizer(), model_name="test")
    ours, theirs = (played(env, say, renderer) for env in both(agent, renderer))

    assert [told(turn) for turn in theirs.transitions] == [told(turn) for turn in ours.transitions]
    assert theirs.stop_reason == ours.stop_reason


async def fails(client: Any, task: Any) -> float:
    await ask(client, [QUESTION])
    raise ValueError("as told")


def test_an_agent_that_fails_is_scored_or_raises_as_ever() -> None:
    renderer = default_renderer()
    ours, theirs = (played(e, ["x"], renderer) for e in both(fails, renderer, on_agent_error=-1.0))

    assert told(theirs.transitions[0])[2:4] == told(ours.transitions[0])[2:4] == (-1.0, True)
    assert theirs.stop_reason == "agent_error"
    for env in both(fails, renderer):
        with pytest.raises(AgentError, match="as told"):
            played(env, ["x"], renderer)


# -- 2: there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("scene", ["three turns", "tools", "a thread", "thoughts"])
def test_an_agent_there_and_back_is_the_agent(scene: str) -> None:
    agent, say, name = SCENES[scene]
    renderer = cookbook.get_renderer(name, base_tokenizer(), model_name="test")
    again = CookbookAgent(lambda renderer: AgentMessageEnv(agent, renderer=renderer))
    direct, back = (
        played(ChatAgentEnv(each, renderer=renderer), say, renderer) for each in (agent, again)
    )

    for once, twice in zip(direct.transitions, back.transitions, strict=True):
        assert told(twice)[:3] == told(once)[:3]
        assert once.metrics.items() <= {**twice.metrics, "stop/truncated": 1.0}.items()


def test_an_environment_in_an_agent_as_a_message_env_is_played_by_its_text() -> None:
    from tests.bridge.test_cookbook_agent import CALL, calculator

    renderer = default_renderer()
    ours, theirs = (
        played(env, [CALL, "It is 84."], renderer)
        for env in both(CookbookAgent(lambda r, task: calculator(r)), renderer)
    )

    assert [told(turn)[:3] for turn in theirs.transitions] == [
        told(turn)[:3] for turn in ours.transitions
    ]


# -- 3: the Cookbook's seams -----------------------------------------------------------------------


def test_a_runners_cap_on_tool_calls_holds() -> None:
    renderer, limits = default_renderer(), RolloutLimits(max_tool_calls=1)
    say = [call('{"x": 21}'), call('{"x": 21}'), "42"]
    ours, theirs = (
        played(env, say, renderer, limits=limits) for env in both(uses_a_tool, renderer)
    )

    assert [told(turn)[2:4] for turn in theirs.transitions] == [
        told(turn)[2:4] for turn in ours.transitions
    ]
    assert theirs.stop_reason == ours.stop_reason == "max_tool_calls"


def test_a_runners_policy_for_parse_errors_asks_again() -> None:
    renderer, policy = default_renderer(), ParseErrorPolicy(max_consecutive=1)
    say = [call('{"x": '), call('{"x": 21}'), "42"]
    ours, theirs = (
        played(env, say, renderer, parse_errors=policy) for env in both(uses_a_tool, renderer)
    )

    assert [told(turn)[:4] for turn in theirs.transitions] == [
        told(turn)[:4] for turn in ours.transitions
    ]


# -- 4: given up -----------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [three_turns, blocks])
@pytest.mark.parametrize("turns", [0, 1])
async def test_closed_at_any_call_the_agent_ends(agent: Any, turns: int) -> None:
    env, before = AgentMessageEnv(agent), asyncio.all_tasks()
    await env.initial_observation()
    for _ in range(turns):
        await env.step(Message(role="assistant", content="yes"))
    await env.close()

    assert asyncio.all_tasks() == before
    with pytest.raises(EnvClosedError):
        await env.step(Message(role="assistant", content="yes"))


async def test_dropped_it_ends_its_agent_and_says_so() -> None:
    held = [AgentMessageEnv(three_turns)]
    await held[0].initial_observation()
    with pytest.warns(ResourceWarning, match="was dropped while its agent was running"):
        held.clear()
    await asyncio.sleep(0.01)

    assert len(asyncio.all_tasks()) == 1


# -- 5: refused ------------------------------------------------------------------------------------


async def asks_for(client: Any, task: dict[str, Any]) -> float:
    await ask(client, [QUESTION], **task)
    return 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": True}, "'logprobs' cannot be served by messages alone"),
        ({"tools": [DOUBLE]}, r"Make it with that renderer: AgentMessageEnv\(..., renderer="),
    ],
)
async def test_what_messages_cannot_carry_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        await AgentMessageEnv(asks_for, fields).initial_observation()


async def test_it_is_one_episode_and_cannot_end_before_it_begins() -> None:
    async def at_once(client: Any) -> float:
        return 2.0

    with pytest.raises(EnvStateError, match="ended before its first model call .reward 2.0"):
        await AgentMessageEnv(at_once).initial_observation()
    env = AgentMessageEnv(three_turns)
    await env.initial_observation()
    with pytest.raises(EnvStateError, match="called twice on one AgentMessageEnv"):
        await env.initial_observation()
    await env.close()
