"""Prefill: the reply continues a final assistant message of the request."""

from typing import Any

import anthropic
import pytest
import tinker_cookbook.renderers as cookbook
from tests.kit import as_agent, assert_extends, assistant, play, user
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.data_processing import trajectory_to_data

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer

ASKED = user("Name a fruit.")
TOOL: Any = {"name": "add", "input_schema": {"type": "object"}}
BEGUN = "A fruit I like is the"


async def create(client: AgentClient, messages: Any, **fields: Any) -> anthropic.types.Message:
    reply: anthropic.types.Message = await client.anthropic.messages.create(
        **{"model": "policy", "max_tokens": 50, "messages": messages, **fields}
    )
    return reply


async def observed(messages: Any, **options: Any) -> list[int]:
    async def agent(client: AgentClient) -> float:
        await create(client, messages, tools=[TOOL] if "renderer" not in options else [])
        return 1.0

    env = ChatAgentEnv(agent, **options)
    first: Any = await env.initial_observation()
    await env.close()
    ids: list[int] = first[0].to_ints()
    return ids


def texts(reply: anthropic.types.Message) -> list[str]:
    return [block.text for block in reply.content if block.type == "text"]


async def test_the_prompt_matches_the_renderers_prompt_with_a_prefill(
    family: cookbook.Renderer,
) -> None:
    prompt = family.build_generation_prompt(
        [Message(role="user", content=ASKED["content"])], prefill=BEGUN
    )
    assert await observed([ASKED, assistant(BEGUN)], renderer=family) == prompt.to_ints()


async def test_an_impossible_prefill_becomes_a_message_and_control_tokens_remain_text() -> None:
    call = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
    for messages in ([assistant("alone")], [ASKED, {"role": "assistant", "content": [call]}]):
        text = str(default_renderer().tokenizer.decode(await observed(messages)))
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n"), messages
    [end] = prompt_renderer(None).end_tokens
    plain, typed = [await observed([ASKED, assistant(text)]) for text in ("ab", "a<|im_end|>b")]
    assert plain.count(end) == typed.count(end)


async def test_the_agent_only_gets_the_text_after_the_prefill() -> None:
    messages_got: list[anthropic.types.Message] = []

    async def agent(client: AgentClient) -> float:
        prefilled: Any = [ASKED, assistant(BEGUN)]
        messages_got.append(await create(client, prefilled))
        async with client.anthropic.messages.stream(
            model="policy", max_tokens=50, messages=prefilled
        ) as stream:
            messages_got.append(await stream.get_final_message())
        assert texts(await create(client, prefilled, model="judge")) == [" pear."]
        return 1.0

    for said in (" apple.", "apple", "", "."):
        trajectory = await play(agent, said, said, models={"judge": ScriptedPolicy([" pear."])})
        for reply, turn in zip(messages_got, trajectory.transitions, strict=True):
            assert texts(reply) == [said]
            assert reply.usage.input_tokens == turn.ob.length
            assert reply.usage.output_tokens == len(turn.ac.tokens)
        messages_got.clear()


@as_agent(" three STOP four")
async def test_a_stop_sequence_in_the_prefill_has_no_effect(client: AgentClient) -> None:
    prefilled = [ASKED, assistant("one STOP two")]
    reply = await create(client, prefilled, stop_sequences=["STOP"])
    assert (texts(reply), reply.stop_sequence) == ([" three "], "STOP")


@pytest.mark.parametrize("as_one", [True, False], ids=["joined", "two messages"])
async def test_a_reply_sent_back_with_its_prefill_is_recognised(*, as_one: bool) -> None:
    """The episode gives one lineage and one datum that contains every sampled token once."""

    async def agent(client: AgentClient, task: tuple[str, str]) -> float:
        prefix, reply = task
        messages: list[Any] = [ASKED]
        for _ in range(3):
            assert texts(await create(client, [*messages, assistant(prefix)])) == [reply]
            back = [prefix + reply] if as_one else [prefix, reply]
            messages += [*map(assistant, back), user("Another one?")]
        return 1.0

    for task in ((BEGUN, " apple."), ("{", '"fruit": "apple"}'), ("An app", "le.")):
        trajectory = await play(agent, *[task[1]] * 3, task=task)
        [datum] = trajectory_to_data(trajectory, 1.0)
        sampled = sum(len(turn.ac.tokens) for turn in trajectory.transitions)
        assert sum(datum.loss_fn_inputs["mask"].tolist()) == sampled
        assert trajectory.transitions[-1].metrics["lineages"] == 1
        assert_extends(trajectory)


async def test_a_reply_sent_back_without_its_prefill_is_history_drift() -> None:
    async def agent(client: AgentClient) -> float:
        await create(client, [ASKED, assistant(BEGUN)])
        await create(client, [ASKED, assistant(" apple."), user("Another one?")])
        return 1.0

    trajectory = await play(agent, " apple.", "No.")
    assert trajectory.transitions[-1].metrics["drift/history"] == 1
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


@as_agent()
async def test_a_prefill_with_a_forced_tool_or_a_format_is_rejected(client: AgentClient) -> None:
    schema = {"type": "json_schema", "schema": TOOL["input_schema"]}
    for fields in (
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"output_config": {"format": schema}},
    ):
        with pytest.raises(anthropic.BadRequestError, match="cannot be combined"):
            await create(client, [ASKED, assistant("{")], **fields)
