"""``sequences`` converts a trajectory to token sequences for other trainers, with the same content
as the Cookbook's data. Calls that are excluded from training have zero weight in both."""

import asyncio
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
import tinker
from tests.kit import (
    Logs,
    Numbered,
    Patch,
    ask,
    ask_blocking,
    assistant,
    play,
    policy_of,
    reward,
    user,
)
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory, Transition

from evert import AgentClient, ChatAgentEnv, sequences
from evert.bridge.env.seats import seat_envs
from evert.bridge.errors import UnsupportedPromptError
from evert.bridge.groups.group import can_be_learned_from, sort_by_lineage
from evert.bridge.records.sequences import TokenSequence


async def three_turns(client: AgentClient) -> float:
    messages = [user("Hi")]
    for number in range(3):
        messages += [assistant(await ask(client, *messages)), user(f"And {number}?")]
        client.reward(number)
    return 0.5


async def two_by_turns(client: AgentClient) -> float:
    """Alternate between two conversations."""
    talks = [[user("I am A")], [user("I am B")]]
    for _ in range(2):
        for messages in talks:
            messages += [assistant(await ask(client, *messages)), user("Go on")]
    return 1.0


async def branching(client: AgentClient) -> float:
    """Continue a conversation in two different ways."""
    first = await ask(client)
    for text in ("Left", "Right"):
        await ask(client, "Hi", assistant(first), text)
    return 1.0


def shifted(sequence: TokenSequence) -> dict[str, Any]:
    """Convert a sequence to the layout of a Cookbook datum, whose targets are shifted by one."""
    before = [0.0] * (len(sequence.prompt_ids) - 1)
    return {
        "tokens": [*sequence.prompt_ids, *sequence.response_ids][:-1],
        "target_tokens": [*sequence.prompt_ids, *sequence.response_ids][1:],
        "mask": [*before, *sequence.response_mask],
        "logprobs": [*before, *sequence.response_logprobs],
    }


def of_datum(datum: tinker.Datum) -> dict[str, Any]:
    fields = ("target_tokens", "mask", "logprobs")
    values = {name: datum.loss_fn_inputs[name].to_numpy().tolist() for name in fields}
    return {"tokens": datum.model_input.to_ints(), **values}


@pytest.mark.parametrize(
    ("agent", "texts", "count"),
    [
        (three_turns, "one two three", 1),
        (two_by_turns, "one two three four", 2),
        (branching, "one two three", 2),
    ],
)
async def test_sequences_match_the_cookbooks_data(agent: Any, texts: str, count: int) -> None:
    env = ChatAgentEnv(agent)
    trajectory = await do_single_rollout(Numbered(texts.split()), env)
    alternating = sequences(trajectory)  # before sorting by lineage
    sort_by_lineage(trajectory, env.turn_lineages)

    found = sequences(trajectory)

    assert len(found) == count
    assert found == alternating
    data = trajectory_to_data(trajectory, 1.0)
    assert [shifted(each) for each in found] == [of_datum(datum) for datum in data]


async def test_a_sequence_has_the_reward_and_the_end_position_of_each_turn() -> None:
    trajectory = await play(three_turns, Numbered(["1", "2", "3"]))

    (sequence,) = sequences(trajectory)

    assert sequence.rewards == [0.0, 1.0, 2.5]
    for turn, end in zip(trajectory.transitions, sequence.turn_ends, strict=True):
        sampled = turn.ac.tokens
        assert sequence.response_ids[end - len(sampled) : end] == sampled
        assert sequence.response_mask[end - len(sampled) : end] == [1] * len(sampled)
    assert sequence.turn_ends[-1] == len(sequence.response_ids)
    assert sequences(Trajectory([], tinker.ModelInput.empty())) == []


def test_a_prompt_with_an_image_is_rejected() -> None:
    image = tinker.types.ImageChunk(data=b"png", format="png", expected_tokens=3)
    prompt = tinker.ModelInput(chunks=[tinker.EncodedTextChunk(tokens=[1]), image])
    turn = Transition(prompt, TokensWithLogprobs([5], [-1.0]), 1.0, True)
    trajectory = Trajectory([turn], tinker.ModelInput.empty())

    with pytest.raises(UnsupportedPromptError, match="ImageChunk"):
        sequences(trajectory)


HELLO: Any = [user("Hello?")]
OUT: Any = {"evert": {"train": False}}


def is_trained(trajectory: Trajectory) -> list[bool]:
    """Return whether each turn is trained on, after checking that datums and sequences agree."""
    trained = []
    for turn in trajectory.transitions:
        alone = Trajectory(transitions=[turn], final_ob=trajectory.final_ob)
        [datum] = trajectory_to_data(alone, 2.0)
        mask, advantages = (
            datum.loss_fn_inputs[name].tolist()[-len(turn.ac.tokens) :]
            for name in ("mask", "advantages")
        )
        assert advantages == [2.0 * value for value in mask]
        assert len({*mask}) == 1
        [sequence] = sequences(alone)
        assert {*sequence.response_mask} == {*mask}
        trained.append(mask[0] == 1.0)
    return trained


async def test_every_api_can_exclude_a_call_from_training() -> None:
    async def agent(client: AgentClient) -> float:
        blocking, chat = client.blocking, {"model": "policy", "messages": HELLO, "extra_body": OUT}
        await ask(client, extra_body=OUT)
        await asyncio.to_thread(partial(ask_blocking, blocking, extra_body=OUT))
        await client.openai.chat.completions.create(**chat)
        await client.openai.responses.create(model="policy", input="Hello?", extra_body=OUT)
        await client.anthropic.messages.create(**chat, max_tokens=50)
        async with client.anthropic.messages.stream(**chat, max_tokens=50) as stream:
            assert await stream.get_final_text() == "Fine."
        config: Any = {"http_options": {"extra_body": OUT}}
        fields = {"model": "policy", "contents": "Hello?"}
        await client.genai.aio.models.generate_content(**fields, config=config)
        taken_over = openai.AsyncOpenAI(api_key="mine", base_url="http://elsewhere.invalid/v1")
        await taken_over.chat.completions.create(**chat)
        address = client.serve().root_url
        async with anthropic.AsyncAnthropic(base_url=address, api_key=client.api_key) as sdk:
            await sdk.messages.create(**chat, max_tokens=50)
        await ask(client, extra_body={"evert": {"train": True}})
        return 1.0

    assert is_trained(await play(agent)) == [False] * 9 + [True]


async def test_client_untrained_excludes_all_of_its_calls_from_training() -> None:
    async def agent(client: AgentClient) -> float:
        found, fields = client.untrained, {"model": "policy", "messages": HELLO}
        await ask(found, response_format={"type": "json_object"})  # retried once
        await asyncio.to_thread(ask_blocking, client.blocking.untrained)
        await found.openai.chat.completions.create(**fields)
        await found.genai.aio.models.generate_content(model="policy", contents="Hello?")
        async with openai.AsyncOpenAI(base_url=found.base_url, api_key=found.api_key) as sdk:
            await sdk.chat.completions.create(**fields)
        first = await found.openai.responses.create(model="policy", input="Hello?")
        await client.openai.responses.create(
            model="policy", input="And?", previous_response_id=first.id
        )
        await ask(client)
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as sdk:
            await sdk.chat.completions.create(**fields)
        return 1.0

    trajectory = await play(agent, "no JSON", "{}", *["Fine."] * 8)
    assert is_trained(trajectory) == [False] * 7 + [True] * 3


async def test_seats_of_an_untrained_client_are_untrained() -> None:
    async def agent(client: AgentClient) -> float:
        for seat in (client.untrained.seat("a"), client.seat("b").untrained, client.seat("b")):
            await ask(seat)
        return 1.0

    policy, envs = policy_of(), seat_envs(agent, ["a", "b"])
    first, second = await asyncio.gather(*(do_single_rollout(policy, env) for env in envs))

    assert (is_trained(first), is_trained(second)) == ([False], [False, True])
    assert not can_be_learned_from(first)


async def test_an_untrained_turn_between_trained_turns_has_zero_weight() -> None:
    async def agent(client: AgentClient) -> float:
        messages = [*HELLO]
        for number in range(3):
            text = await ask(client, *messages, extra_body=OUT if number == 1 else None)
            messages += [assistant(text), user("Go on.")]
        return 1.0

    trajectory = await play(agent, "one", "two and more", "three")
    [datum] = trajectory_to_data(trajectory, 0.5)

    first, _, third = trajectory.transitions
    tokens = [*third.ob.to_ints(), *third.ac.tokens][1:]
    expected = [0.0] * len(tokens)
    for turn in (first, third):
        start = turn.ob.length - 1
        expected[start : start + len(turn.ac.tokens)] = [0.5] * len(turn.ac.tokens)
    assert datum.loss_fn_inputs["target_tokens"].tolist() == tokens
    assert datum.loss_fn_inputs["advantages"].tolist() == expected
    assert datum.loss_fn_inputs["mask"].tolist() == [float(weight > 0) for weight in expected]
    assert [turn.metrics.get("untrained") for turn in trajectory.transitions] == [None, 1.0, None]


async def test_an_invalid_evert_field_is_rejected() -> None:
    async def agent(client: AgentClient) -> float:
        wrong: list[Any] = [{"train": "no"}, {"trian": False}, [False], "off"]
        for create in (client.chat.completions.create, client.openai.chat.completions.create):
            for evert in wrong:
                with pytest.raises(openai.BadRequestError, match=r"'evert' must be ") as caught:
                    await create(model="policy", messages=HELLO, extra_body={"evert": evert})
                assert caught.value.param == "evert"
            await ask(client)
        return 1.0

    assert reward(await play(agent)) == 1.0


async def test_unknown_extra_fields_next_to_evert_are_ignored(
    caplog: Logs, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("evert.bridge.chat.fields._warned_names", set())

    async def agent(client: AgentClient) -> float:
        extra = {**OUT, "a_field_of_no_api": 1}
        await ask(client, extra_body=extra)
        with pytest.raises(openai.BadRequestError, match="temprature"):
            await ask(client, temprature=1, extra_body=OUT)
        return 1.0

    assert is_trained(await play(agent, "no weight")) == [False]
    assert "a_field_of_no_api" in caplog.text
