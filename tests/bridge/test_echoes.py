"""Replies that come back to the policy by way of real SDKs: nothing sampled is lost on the way.

1. Blank text beside tool calls is not delivered, in any dialect.
2. Margins of a text may come and go: the sampled tokens stay.
3. A broken reply that comes back as it was delivered keeps its tokens.
4. Arguments that a framework completed are counted, and keep them where the option or the agent
   says so.
5. A handoff is counted as one, and no drift.
6. Ids of tool calls may be renamed, each to one of its own: that is no drift, unless the template
   shows them. What is drift says which field of which message differed.
"""

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from tests.bridge.conftest import tokenizer_for_all_families
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, ChatAgentEnv, ChatAgentGroupBuilder, ScriptedPolicy
from evert.bridge.env.options import EnvOptions

PARAMETERS: Any = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "edit", "parameters": PARAMETERS}}]
MESSAGES_TOOLS: Any = [{"name": "edit", "description": "Edits.", "input_schema": PARAMETERS}]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "edit", "parameters": PARAMETERS}]
GEMINI_CONFIG: Any = {
    "tools": [{"function_declarations": [{"name": "edit", "parameters_json_schema": PARAMETERS}]}]
}


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'edit', 'arguments': arguments})}\n</tool_call>"


TWO = f"{call(path='a')}\n{call(path='b')}\n"
BROKEN = 'I edit.\n<tool_call>\n{"name": "edit", "arguments": {\n</tool_call>\n'

Echo = Callable[[str], str | None]
"""What becomes of a text on its way back; None: it is left out."""


def chat(echo: Echo) -> Callable[[AgentClient], Any]:
    """An agent of chat completions that calls tools until the policy says "done"."""

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        for _ in range(5):
            completion = await client.openai.chat.completions.create(
                model=client.model, messages=messages, tools=CHAT_TOOLS
            )
            message = completion.choices[0].message
            client.log(text=str(message.content))
            sent = message.model_dump(exclude_none=True)
            if message.content is not None:
                sent["content"] = echo(message.content)
            messages.append(sent)
            for made in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": made.id, "content": "ok"})
            if not message.tool_calls:
                messages.append({"role": "user", "content": "And?"})
            if message.content == "done":
                return 1.0
        return 0.0

    return agent


def anthropic(echo: Echo) -> Callable[[AgentClient], Any]:
    """The same with content blocks; Claude Code leaves blank ones out."""

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        for _ in range(5):
            message = await client.anthropic.messages.create(
                model=client.model, max_tokens=500, messages=messages, tools=MESSAGES_TOOLS
            )
            blocks = [block.model_dump(exclude_none=True) for block in message.content]
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            client.log(text=texts[0] if texts else "None")
            for block in blocks:
                if block["type"] == "text":
                    block["text"] = echo(block["text"])
            kept = [block for block in blocks if block.get("text", "") is not None]
            calls = [block for block in blocks if block["type"] == "tool_use"]
            answers = [
                {"type": "tool_result", "tool_use_id": made["id"], "content": "ok"}
                for made in calls
            ]
            messages.append({"role": "assistant", "content": kept})
            messages.append({"role": "user", "content": answers or "And?"})
            if texts == ["done"]:
                return 1.0
        return 0.0

    return agent


def responses(echo: Echo) -> Callable[[AgentClient], Any]:
    """The same with items."""

    async def agent(client: AgentClient) -> float:
        items: list[Any] = [{"role": "user", "content": "go"}]
        for _ in range(5):
            response = await client.openai.responses.create(
                model=client.model, input=items, tools=RESPONSES_TOOLS
            )
            output = [item.model_dump(exclude_none=True) for item in response.output]
            texts = [item["content"][0]["text"] for item in output if item["type"] == "message"]
            client.log(text=texts[0] if texts else "None")
            for item in output:
                if item["type"] == "message":
                    item["content"][0]["text"] = echo(item["content"][0]["text"])
            calls = [item for item in output if item["type"] == "function_call"]
            items += [i for i in output if i["type"] != "message" or i["content"][0].get("text")]
            for made in calls:
                result = {"call_id": made["call_id"], "output": "ok"}
                items.append({"type": "function_call_output", **result})
            if not calls:
                items.append({"role": "user", "content": "And?"})
            if texts == ["done"]:
                return 1.0
        return 0.0

    return agent


def gemini(echo: Echo) -> Callable[[AgentClient], Any]:
    """The same with parts."""

    async def agent(client: AgentClient) -> float:
        contents: list[Any] = [{"role": "user", "parts": [{"text": "go"}]}]
        for _ in range(5):
            response = await client.genai.aio.models.generate_content(
                model=client.model, contents=contents, config=GEMINI_CONFIG
            )
            candidates: Any = response.candidates
            content = candidates[0].content.model_dump(exclude_none=True)
            texts = [part["text"] for part in content["parts"] if "text" in part]
            client.log(text=texts[0] if texts else "None")
            for part in content["parts"]:
                if "text" in part:
                    part["text"] = echo(part["text"])
            calls = [part["function_call"] for part in content["parts"] if "function_call" in part]
            answers: list[Any] = [
                {"function_response": {"id": c.get("id"), "name": "edit", "response": {"ok": 1}}}
                for c in calls
            ]
            contents += [content, {"role": "user", "parts": answers or [{"text": "And?"}]}]
            if texts == ["done"]:
                return 1.0
        return 0.0

    return agent


DIALECTS = [chat, anthropic, responses, gemini]


async def play(agent: Any, replies: list[str], **options: Any) -> Trajectory:
    policy = ScriptedPolicy([*replies, "done"])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, **options))
    assert [transition.ac.tokens for transition in trajectory.transitions] == policy.actions
    assert trajectory.transitions[-1].reward == 1.0
    return trajectory


def assert_whole(trajectory: Trajectory) -> None:
    """All of it is one datum, and nothing counts as drift but other spellings."""
    metrics = trajectory.transitions[-1].metrics
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert metrics["lineages"] == 1
    assert metrics["drift"] == metrics.get("drift/retokenised", 0)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_blank_text_beside_tool_calls_is_not_delivered(dialect: Any) -> None:
    trajectory = await play(dialect(lambda text: text), [TWO, f"\n{TWO}", f"I edit.\n\n{TWO}"])

    assert [turn.logs["text"] for turn in trajectory.transitions] == [
        "None",
        "None",
        "I edit.",
        "done",
    ]
    assert trajectory.transitions[-1].metrics["tools/calls"] == 6
    assert_whole(trajectory)


MARGINS: list[Echo] = [str.strip, "\n\n {} \n".format, str.rstrip, "{}\n".format]


@pytest.mark.parametrize("echo", MARGINS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_margins_may_come_and_go(dialect: Any, echo: Echo) -> None:
    replies = [f"I edit.\n\n{TWO}", "  So be it. \n", call(path="c"), "\nI\n\ngo on.  "]

    assert_whole(await play(dialect(echo), replies))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_reply_of_white_space_is_a_reply_like_any_other(
    dialect: Any,
) -> None:
    assert_whole(await play(dialect(lambda text: text or " "), ["\n\n"]))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_broken_tool_call_that_comes_back_as_delivered_keeps_its_tokens(
    dialect: Any,
) -> None:
    trajectory = await play(dialect(lambda text: text), [BROKEN, f"{BROKEN}{TWO}", BROKEN.strip()])

    assert "</tool_call>" in str(trajectory.transitions[0].logs["text"])
    assert trajectory.transitions[-1].metrics["tools/calls_unparsed"] == 3
    assert_whole(trajectory)


# -- completed arguments -------------------------------------------------------------------------


async def completing(client: AgentClient) -> float:
    """Does with each call what Claude Code does: adds a default, tidies the lines of a text."""
    messages: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        message = await client.anthropic.messages.create(
            model=client.model, max_tokens=500, messages=messages, tools=MESSAGES_TOOLS
        )
        blocks = [block.model_dump(exclude_none=True) for block in message.content]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if not calls:
            return 1.0
        for made in calls:
            made["input"] = {"replace_all": False, **made["input"]}
            if "text" in made["input"]:
                made["input"]["text"] = made["input"]["text"].rstrip()
        results = [
            {"type": "tool_result", "tool_use_id": made["id"], "content": "ok"} for made in calls
        ]
        messages.append({"role": "assistant", "content": blocks})
        messages.append({"role": "user", "content": results})


class Completing:
    """The same as an agent that knows of itself what it does."""

    env_options: ClassVar[EnvOptions] = {"keep_completed_arguments": True}

    async def __call__(self, client: AgentClient) -> float:
        return await completing(client)


EDITS = [call(path="a", text="one  \n"), TWO, f"I go on.\n{call(path='b', text='two')}"]


async def test_completed_arguments_are_kept_where_the_option_says_so() -> None:
    trajectory = await play(completing, EDITS, keep_completed_arguments=True)
    metrics = trajectory.transitions[-1].metrics

    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert metrics.items() >= {"lineages": 1, "drift": 3, "drift/completed_arguments": 3}.items()
    assert [turn.logs.get("drift") for turn in trajectory.transitions] == [
        *["completed_arguments"] * 3,
        None,
    ]


async def test_completed_arguments_are_kept_where_the_agent_says_so() -> None:
    trajectory = await play(Completing(), EDITS)

    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_completed_arguments_are_a_datum_more_otherwise_and_named() -> None:
    trajectory = await play(completing, EDITS)
    metrics = trajectory.transitions[-1].metrics

    assert len(trajectory_to_data(trajectory, 1.0)) == 4
    assert metrics.items() >= {"lineages": 4, "drift": 3, "drift/completed_arguments": 3}.items()


# -- ids -----------------------------------------------------------------------------------------


def renaming(rename: Callable[[str, int], tuple[str, str]]) -> Callable[[AgentClient], Any]:
    """An agent that sends calls and their results under the ids that ``rename`` makes of one."""

    async def agent(client: AgentClient) -> float:
        history: list[Any] = [{"role": "user", "content": "go"}]
        while True:
            completion = await client.chat.completions.create(messages=history, tools=CHAT_TOOLS)
            message = completion.choices[0].message
            client.log(ids=" ".join(made.id for made in message.tool_calls or ()))
            if not message.tool_calls:
                return 1.0
            sent, results = message.model_dump(exclude_none=True), list[Any]()
            for number, made in enumerate(sent["tool_calls"]):
                made["id"], answered = rename(made["id"], len(history) + number)
                results.append({"role": "tool", "tool_call_id": answered, "content": made["id"]})
            history = [*map(dict, history), sent, *results]  # of its own making each time

    return agent


IDS: list[Callable[[str, int], tuple[str, str]]] = [
    lambda id, place: (id, id),
    lambda id, place: (f"call_{place:024}",) * 2,
    lambda id, place: (id[::-1],) * 2,
]


@pytest.mark.parametrize("rename", IDS)
async def test_a_consistent_renaming_of_ids_is_no_drift(rename: Any) -> None:
    trajectory = await play(renaming(rename), [TWO, call(path="c"), TWO])

    assert_whole(trajectory)


OTHER_IDS: list[tuple[Callable[[str, int], tuple[str, str]], str]] = [
    (lambda id, place: ("mine", id), r"messages\[1\]\.tool_calls\[0\]\.id of the assistant was "),
    (lambda id, place: ("mine", "mine"), r"messages\[1\]\.tool_calls\[0\]\.id of the assistant"),
]


@pytest.mark.parametrize(("rename", "where"), OTHER_IDS)
async def test_ids_that_say_something_else_are_drift_and_named(rename: Any, where: str) -> None:
    trajectory = await play(renaming(rename), [TWO])
    first = trajectory.transitions[0]

    assert first.logs["drift"] == "history"
    assert re.match(where, str(first.logs["drift_at"]))
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


async def test_a_renamed_id_that_the_template_shows_is_drift() -> None:
    renderer = get_renderer("kimi_k2", tokenizer_for_all_families(), model_name="test")
    called = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    causes = list[object]()
    for rename in IDS:
        policy = ScriptedPolicy([called, "done"], renderer=renderer)
        env = ChatAgentEnv(renaming(rename), renderer=renderer)
        trajectory = await do_single_rollout(policy, env)
        causes.append(trajectory.transitions[0].logs["drift"])

    assert causes == ["retokenised", "history", "history"]
    assert "'functions.edit:0'" in str(trajectory.transitions[0].logs["drift_at"])


async def test_ids_look_like_openais_are_unique_and_the_same_each_time() -> None:
    def ids(trajectory: Trajectory) -> list[str]:
        return [str(turn.logs["ids"]) for turn in trajectory.transitions]

    first, second = [await play(renaming(IDS[0]), [TWO, call(path="c")]) for _ in range(2)]

    found = re.findall(r"call_[A-Za-z0-9]{24}\b", str(ids(first)))
    assert len(set(found)) == len(found) == 3
    assert ids(first) == ids(second)


CHANGES: list[tuple[Callable[[list[Any]], object], str, str]] = [
    (
        lambda sent: sent[1]["tool_calls"][0]["function"].update(arguments='{"path": "z"}'),
        "history",
        "messages[1].tool_calls[0].function.arguments.path of the assistant was 'a' and is now "
        "'z'.",
    ),
    (
        lambda sent: sent[1]["tool_calls"][0]["function"].update(arguments='{"path":"a", "n":1}'),
        "completed_arguments",
        "messages[1].tool_calls[0].function.arguments.n of the assistant was 'null' and is now "
        "'1'.",
    ),
    (
        lambda sent: sent[0].update(content="stop"),
        "history",
        "messages[0].content of the user was 'go' and is now 'stop'.",
    ),
    (
        lambda sent: sent.__setitem__(slice(1, 3), [{"role": "user", "content": "And?"}]),
        "history",
        "messages[1].role of the assistant was 'assistant' and is now 'user'.",
    ),
]


@pytest.mark.parametrize(("change", "cause", "where"), CHANGES)
async def test_drift_says_which_field_of_which_message_differed(
    change: Any, cause: str, where: str
) -> None:
    async def agent(client: AgentClient) -> float:
        sent: list[Any] = [{"role": "user", "content": "go"}]
        completion = await client.chat.completions.create(messages=sent, tools=CHAT_TOOLS)
        message = completion.choices[0].message.model_dump(exclude_none=True)
        [made] = message["tool_calls"]
        sent += [message, {"role": "tool", "tool_call_id": made["id"], "content": "ok"}]
        change(sent)
        await client.chat.completions.create(messages=sent, tools=CHAT_TOOLS)
        return 1.0

    trajectory = await play(agent, [call(path="a")])

    assert trajectory.transitions[0].logs["drift"] == cause
    assert trajectory.transitions[0].logs["drift_at"] == where


# -- handoffs ------------------------------------------------------------------------------------


async def handing_over(client: AgentClient) -> float:
    history: list[Any] = [{"role": "user", "content": "A poem."}]
    for prompt in ("You write.", "You criticise.", "You write.", "You criticise."):
        completion = await client.chat.completions.create(
            messages=[{"role": "system", "content": prompt}, *history]
        )
        history.append({"role": "assistant", "content": completion.choices[0].message.content})
    return 1.0


async def test_two_agents_over_one_history_make_two_data_and_no_drift() -> None:
    policy = ScriptedPolicy(["Roses.", "Bad.", "Lilies.", "Good."])
    group = await do_group_rollout(ChatAgentGroupBuilder(handing_over), policy)
    [trajectory] = group.trajectories_G

    assert len(trajectory_to_data(trajectory, 1.0)) == 2
    expected = {"lineages": 2, "drift": 0, "handoffs": 1}
    assert trajectory.transitions[-1].metrics.items() >= expected.items()


async def test_an_agent_that_hands_nothing_over_has_no_such_metric() -> None:
    trajectory = await play(chat(lambda text: text), [])

    assert "handoffs" not in trajectory.transitions[-1].metrics
