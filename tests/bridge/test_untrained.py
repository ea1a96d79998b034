"""Calls that are not to be learned from: sampled by the policy, without weight in the data.

1. Each face can say so of one call, by its SDK's own ``extra_body``; the handle also of all calls
   that are made through it, with whatever is made of it.
2. The Cookbook's own ``trajectory_to_data`` gives the tokens of such a reply neither a mask nor an
   advantage, and those around it theirs; ``sequences`` masks them. The episode stays one datum.
3. Replies that are asked for again on the way to it count as it does.
4. What the field says otherwise is a 400.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from google.genai import Client as GenaiClient
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy, sequences
from evert.bridge.env.seats import seat_envs
from evert.bridge.groups.group import can_be_learned_from

HELLO: Any = [{"role": "user", "content": "Hello?"}]
OUT: Any = {"evert": {"train": False}}

Ask = Callable[[AgentClient], Awaitable[Any]]


async def played(agent: Any, *replies: str, **options: Any) -> Trajectory:
    return await do_single_rollout(ScriptedPolicy(replies), ChatAgentEnv(agent, **options))


def is_trained(trajectory: Trajectory) -> list[bool]:
    """Of each turn, whether its tokens have weight; the data and the sequences agree."""
    trained = []
    for turn in trajectory.transitions:
        alone = Trajectory(transitions=[turn], final_ob=trajectory.final_ob)
        [datum] = trajectory_to_data(alone, 2.0)
        mask, advantages = (
            datum.loss_fn_inputs[name].tolist()[-len(turn.ac.tokens) :]
            for name in ("mask", "advantages")
        )
        assert advantages == [2.0 * one for one in mask]
        assert len({*mask}) == 1
        [sequence] = sequences(alone)
        assert {*sequence.response_mask} == {*mask}
        trained.append(mask[0] == 1.0)
    return trained


# -- 1. the faces --------------------------------------------------------------------------------


async def by_handle(client: AgentClient) -> None:
    await client.chat.completions.create(messages=HELLO, extra_body=OUT)


async def by_chat_completions(client: AgentClient) -> None:
    await client.openai.chat.completions.create(model="policy", messages=HELLO, extra_body=OUT)


async def by_responses(client: AgentClient) -> None:
    await client.openai.responses.create(model="policy", input="Hello?", extra_body=OUT)


async def by_anthropic(client: AgentClient) -> None:
    await client.anthropic.messages.create(
        model="policy", max_tokens=50, messages=HELLO, extra_body=OUT
    )


async def by_genai(client: AgentClient) -> None:
    await client.genai.aio.models.generate_content(
        model="policy", contents="Hello?", config={"http_options": {"extra_body": OUT}}
    )


async def by_stream(client: AgentClient) -> None:
    async with client.anthropic.messages.stream(
        model="policy", max_tokens=50, messages=HELLO, extra_body=OUT
    ) as stream:
        assert await stream.get_final_text() == "no weight"


async def by_take_over(client: AgentClient) -> None:
    own = openai.AsyncOpenAI(api_key="mine", base_url="http://elsewhere.invalid/v1")
    await own.chat.completions.create(model="policy", messages=HELLO, extra_body=OUT)


async def by_server(client: AgentClient) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=client.serve().root_url, api_key=client.api_key
    ) as own:
        await own.messages.create(model="policy", max_tokens=50, messages=HELLO, extra_body=OUT)


@pytest.mark.parametrize(
    "ask",
    [
        by_handle,
        by_chat_completions,
        by_responses,
        by_anthropic,
        by_genai,
        by_stream,
        by_take_over,
        by_server,
    ],
)
async def test_every_face_can_say_of_a_call_that_it_is_not_to_be_learned_from(ask: Ask) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        await client.chat.completions.create(messages=HELLO, extra_body={"evert": {"train": True}})
        return 1.0

    assert is_trained(await played(agent, "no weight", "weight")) == [False, True]


async def untrained_handle(client: AgentClient) -> None:
    await client.untrained.chat.completions.create(messages=HELLO)


async def untrained_openai(client: AgentClient) -> None:
    await client.untrained.openai.chat.completions.create(model="policy", messages=HELLO)


async def untrained_genai(client: AgentClient) -> None:
    found: GenaiClient = client.untrained.genai
    await found.aio.models.generate_content(model="policy", contents="Hello?")


async def untrained_address(client: AgentClient) -> None:
    other = client.untrained
    async with openai.AsyncOpenAI(base_url=other.base_url, api_key=other.api_key) as own:
        await own.chat.completions.create(model="policy", messages=HELLO)


@pytest.mark.parametrize(
    "ask", [untrained_handle, untrained_openai, untrained_genai, untrained_address]
)
async def test_a_handle_says_so_of_all_calls_that_are_made_through_it(ask: Ask) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        await client.chat.completions.create(messages=HELLO)
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as own:
            await own.chat.completions.create(model="policy", messages=HELLO)
        return 1.0

    assert is_trained(await played(agent, "no weight", "weight", "weight")) == [False, True, True]


def test_the_handle_of_a_plain_function_has_it_too() -> None:
    def agent(client: BlockingAgentClient) -> float:
        client.untrained.chat.completions.create(messages=HELLO)
        client.chat.completions.create(messages=HELLO, extra_body=OUT)
        client.chat.completions.create(messages=HELLO)
        return 1.0

    trajectory = asyncio.run(played(agent, "no", "no", "weight"))

    assert is_trained(trajectory) == [False, False, True]


async def test_a_seat_of_such_a_handle_is_such_a_handle() -> None:
    async def agent(client: AgentClient) -> float:
        for one in (client.untrained.seat("a"), client.seat("b").untrained, client.seat("b")):
            await one.chat.completions.create(messages=HELLO)
        return 1.0

    policy = ScriptedPolicy(lambda _: "said")
    first, second = await asyncio.gather(
        *(do_single_rollout(policy, env) for env in seat_envs(agent, ["a", "b"]))
    )

    assert is_trained(first) == [False]
    assert is_trained(second) == [False, True]


async def test_a_response_that_is_not_learned_from_can_be_gone_on_from() -> None:
    async def agent(client: AgentClient) -> float:
        first = await client.untrained.openai.responses.create(model="policy", input="Hello?")
        await client.openai.responses.create(
            model="policy", input="And?", previous_response_id=first.id
        )
        return 1.0

    trajectory = await played(agent, "no weight", "weight")

    assert is_trained(trajectory) == [False, True]
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


# -- 2. the data ---------------------------------------------------------------------------------


async def test_a_turn_in_the_midst_of_a_conversation_has_no_weight_and_its_neighbours_have() -> (
    None
):
    async def agent(client: AgentClient) -> float:
        messages = [*HELLO]
        for number in range(3):
            completion = await client.chat.completions.create(
                messages=messages, extra_body=OUT if number == 1 else None
            )
            messages += [completion.choices[0].message, {"role": "user", "content": "Go on."}]
        return 1.0

    trajectory = await played(agent, "one", "two and more", "three")
    [datum] = trajectory_to_data(trajectory, 0.5)

    first, _, third = trajectory.transitions
    tokens = [*third.ob.to_ints(), *third.ac.tokens][1:]
    advantages = datum.loss_fn_inputs["advantages"].tolist()
    expected = [0.0] * len(tokens)
    for turn in (first, third):
        start = turn.ob.length - 1
        expected[start : start + len(turn.ac.tokens)] = [0.5] * len(turn.ac.tokens)
    assert datum.loss_fn_inputs["target_tokens"].tolist() == tokens
    assert advantages == expected
    assert datum.loss_fn_inputs["mask"].tolist() == [float(one > 0) for one in expected]
    assert [turn.metrics.get("untrained") for turn in trajectory.transitions] == [None, 1.0, None]


async def test_an_episode_without_another_call_has_nothing_to_learn_from() -> None:
    async def agent(client: AgentClient) -> float:
        await client.untrained.chat.completions.create(messages=HELLO)
        return 1.0

    assert not can_be_learned_from(await played(agent, "no weight"))


# -- 3. asked again ------------------------------------------------------------------------------


async def test_replies_that_are_asked_for_again_have_no_weight_either() -> None:
    async def agent(client: AgentClient) -> float:
        await client.untrained.chat.completions.create(
            messages=HELLO, response_format={"type": "json_object"}
        )
        await client.chat.completions.create(messages=HELLO)
        return 1.0

    trajectory = await played(agent, "no JSON", "{}", "weight")

    assert is_trained(trajectory) == [False, False, True]


# -- 4. refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("evert", [{"train": "no"}, {"trian": False}, [False], "off"])
async def test_a_field_that_says_otherwise_is_refused(evert: Any) -> None:
    async def agent(client: AgentClient) -> float:
        for create in (
            client.chat.completions.create,
            client.openai.chat.completions.create,
        ):
            with pytest.raises(openai.BadRequestError, match=r"'evert' must be ") as caught:
                await create(model="policy", messages=HELLO, extra_body={"evert": evert})
            assert caught.value.param == "evert"
        return 1.0

    end: Any = await ChatAgentEnv(agent).initial_observation()

    assert end.reward == 1.0


async def test_an_unknown_field_beside_it_is_let_pass_as_over_the_wire(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evert.bridge.chat.fields._warned", set())

    async def agent(client: AgentClient) -> float:
        extra = {**OUT, "a_field_of_no_api": 1}
        await client.chat.completions.create(messages=HELLO, extra_body=extra)
        with pytest.raises(openai.BadRequestError, match="temprature"):
            await client.chat.completions.create(messages=HELLO, temprature=1, extra_body=OUT)
        return 1.0

    assert is_trained(await played(agent, "no weight")) == [False]
    assert "a_field_of_no_api" in caplog.text
