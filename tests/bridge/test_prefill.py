"""Prefill: a last message of the assistant's, which the reply goes on from.

1. The prompt is the renderer's own with that prefill, in every family of renderers.
2. The agent gets what follows, by the real Anthropic SDK; the usage counts as it was sampled.
3. Sent back, joined or as two messages, it is known again: one lineage, one datum, every sampled
   token once.
4. Beside a format it is a 400; thoughts and calls at the end are a finished message, as ever.
"""

from typing import Any

import anthropic
import pytest
import tinker_cookbook.renderers as cookbook
from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.tokens.bases import default_renderer

ASKED: Any = [{"role": "user", "content": "Name a fruit."}]
BEGUN = "A fruit I like is the"


async def create(client: AgentClient, messages: Any, **fields: Any) -> anthropic.types.Message:
    reply: anthropic.types.Message = await client.anthropic.messages.create(
        model="policy", max_tokens=50, messages=messages, **fields
    )
    return reply


def prefill(text: str) -> Any:
    return {"role": "assistant", "content": text}


async def played(agent: Any, *replies: str, **options: Any) -> Trajectory:
    renderer = options.get("renderer")
    return await do_single_rollout(
        ScriptedPolicy(replies, renderer), ChatAgentEnv(agent, **options)
    )


# -- 1. the prompt -------------------------------------------------------------------------------


async def test_the_prompt_is_the_renderers_own_with_this_prefill(family: cookbook.Renderer) -> None:
    async def agent(client: AgentClient) -> float:
        await create(client, [*ASKED, prefill(BEGUN)])
        return 1.0

    env = ChatAgentEnv(agent, renderer=family)
    seen: Any = await env.initial_observation()
    await env.close()

    whole = family.build_generation_prompt(
        [{"role": "user", "content": "Name a fruit."}], prefill=BEGUN
    )
    assert seen[0].to_ints() == whole.to_ints()


async def test_control_tokens_in_it_are_text() -> None:
    async def agent(client: AgentClient) -> float:
        await create(client, [*ASKED, prefill("a<|im_end|>b")])
        return 1.0

    env = ChatAgentEnv(agent)
    seen: Any = await env.initial_observation()
    await env.close()

    [end] = default_renderer().get_stop_sequences()
    assert seen[0].to_ints().count(end) == 1


# -- 2. what the agent gets ----------------------------------------------------------------------


@pytest.mark.parametrize("said", [" apple.", "apple", "", "."])
async def test_the_agent_gets_what_follows(said: str) -> None:
    got: list[anthropic.types.Message] = []

    async def agent(client: AgentClient) -> float:
        got.append(await create(client, [*ASKED, prefill(BEGUN)]))
        return 1.0

    trajectory = await played(agent, said)

    [reply], [turn] = got, trajectory.transitions
    assert [block.text for block in reply.content if block.type == "text"] == [said]
    assert reply.usage.input_tokens == turn.ob.length
    assert reply.usage.output_tokens == len(turn.ac.tokens)


async def test_a_stop_sequence_in_the_prefill_cuts_nothing() -> None:
    got: list[anthropic.types.Message] = []

    async def agent(client: AgentClient) -> float:
        got.append(await create(client, [*ASKED, prefill("one STOP two")], stop_sequences=["STOP"]))
        return 1.0

    await played(agent, " three STOP four")

    [reply] = got
    assert [block.text for block in reply.content if block.type == "text"] == [" three "]
    assert reply.stop_sequence == "STOP"


async def test_a_stream_has_what_follows_too() -> None:
    async def agent(client: AgentClient) -> float:
        async with client.anthropic.messages.stream(
            model="policy", max_tokens=50, messages=[*ASKED, prefill(BEGUN)]
        ) as stream:
            assert await stream.get_final_text() == " apple."
        return 1.0

    await played(agent, " apple.")


# -- 3. sent back --------------------------------------------------------------------------------


@pytest.mark.parametrize("as_one", [True, False], ids=["joined", "two messages"])
@pytest.mark.parametrize(
    ("begun", "said"), [(BEGUN, " apple."), ("{", '"fruit": "apple"}'), ("An app", "le.")]
)
async def test_a_reply_that_comes_back_with_its_beginning_is_known(
    begun: str, said: str, *, as_one: bool
) -> None:
    async def agent(client: AgentClient) -> float:
        messages = [*ASKED]
        for _ in range(3):
            reply = await create(client, [*messages, prefill(begun)])
            [block] = reply.content
            assert block.type == "text"
            assert block.text == said
            back = [begun + said] if as_one else [begun, said]
            messages += [prefill(text) for text in back]
            messages.append({"role": "user", "content": "Another one?"})
        return 1.0

    trajectory = await played(agent, said, said, said)

    [datum] = trajectory_to_data(trajectory, 1.0)
    sampled = sum(len(turn.ac.tokens) for turn in trajectory.transitions)
    assert sum(datum.loss_fn_inputs["mask"].tolist()) == sampled
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known


async def test_a_reply_that_comes_back_without_its_beginning_is_history_that_was_changed() -> None:
    async def agent(client: AgentClient) -> float:
        await create(client, [*ASKED, prefill(BEGUN)])
        back = [*ASKED, prefill(" apple."), {"role": "user", "content": "Another one?"}]
        await create(client, back)
        return 1.0

    trajectory = await played(agent, " apple.", "No.")

    assert trajectory.transitions[-1].metrics["drift/history"] == 1
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


# -- 4. refused, or none --------------------------------------------------------------------------

CALL = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
TOOL: Any = {"name": "add", "input_schema": {"type": "object"}}


async def test_beside_a_forced_tool_or_a_format_it_is_refused() -> None:
    async def agent(client: AgentClient) -> float:
        begun, schema = (
            [*ASKED, prefill("{")],
            {"type": "json_schema", "schema": TOOL["input_schema"]},
        )
        with pytest.raises(anthropic.BadRequestError, match="only one of both"):
            await create(client, begun, tools=[TOOL], tool_choice={"type": "any"})
        with pytest.raises(anthropic.BadRequestError, match="only one of both"):
            await create(client, begun, output_config={"format": schema})
        return 1.0

    end: Any = await ChatAgentEnv(agent).initial_observation()

    assert end.reward == 1.0


@pytest.mark.parametrize(
    "messages",
    [[prefill("alone")], [*ASKED, {"role": "assistant", "content": [CALL]}]],
    ids=["alone", "with a call"],
)
async def test_what_cannot_begin_a_reply_is_a_finished_message(messages: Any) -> None:
    async def agent(client: AgentClient) -> float:
        await create(client, messages, tools=[TOOL])
        return 1.0

    env = ChatAgentEnv(agent)
    seen: Any = await env.initial_observation()
    await env.close()

    text = str(default_renderer().tokenizer.decode(seen[0].to_ints()))
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


async def test_a_frozen_model_that_is_sampled_goes_on_from_it_as_well() -> None:
    async def agent(client: AgentClient) -> float:
        reply = await client.anthropic.messages.create(
            model="judge", max_tokens=50, messages=[*ASKED, prefill(BEGUN)]
        )
        assert [block.text for block in reply.content if block.type == "text"] == [" pear."]
        return 1.0

    judge: TokenCompleter = ScriptedPolicy([" pear."])
    end: Any = await ChatAgentEnv(agent, models={"judge": judge}).initial_observation()

    assert end.reward == 1.0
