"""Replies that come back to the policy by way of real SDKs: nothing sampled is lost on the way."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from tests.bridge.conftest import renderer_named
from tests.kit import call, play, reward, tool, user
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient
from evert.bridge.env.options import EnvOptions

PARAMETERS: Any = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
}
CHAT_TOOLS: Any = [tool("edit", parameters=PARAMETERS)]
MESSAGES_TOOLS: Any = [{"name": "edit", "description": "Edits.", "input_schema": PARAMETERS}]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "edit", "parameters": PARAMETERS}]
GEMINI_CONFIG: Any = {
    "tools": [{"function_declarations": [{"name": "edit", "parameters_json_schema": PARAMETERS}]}]
}


def edit(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'edit', 'arguments': arguments})}\n</tool_call>"


TWO = f"{edit(path='a')}\n{edit(path='b')}\n"
BROKEN = 'I edit.\n<tool_call>\n{"name": "edit", "arguments": {\n</tool_call>\n'

Echo = Callable[[str], str | None]
"""What becomes of a text on its way back; None: it is left out."""

Turn = Callable[[AgentClient, list[Any], Echo], Awaitable[list[str]]]
"""A call with a history, which grows by its echo and what comes next; the texts of the reply."""


async def chat(client: AgentClient, history: list[Any], echo: Echo) -> list[str]:
    history += [] if history else [user("go")]
    completion = await client.openai.chat.completions.create(
        model=client.model, messages=history, tools=CHAT_TOOLS
    )
    message = completion.choices[0].message
    sent = message.model_dump(exclude_none=True)
    if message.content is not None:
        sent["content"] = echo(message.content)
    results = [
        {"role": "tool", "tool_call_id": made.id, "content": "ok"}
        for made in message.tool_calls or ()
    ]
    history += [sent, *(results or [user("And?")])]
    return [] if message.content is None else [message.content]


async def anthropic(client: AgentClient, history: list[Any], echo: Echo) -> list[str]:
    """The same with content blocks; Claude Code leaves blank ones out."""
    history += [] if history else [user("go")]
    message = await client.anthropic.messages.create(
        model=client.model, max_tokens=500, messages=history, tools=MESSAGES_TOOLS
    )
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    kept = [{**one, "text": echo(one["text"])} if "text" in one else one for one in blocks]
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": "ok"}
        for one in blocks
        if one["type"] == "tool_use"
    ]
    content = [one for one in kept if one.get("text", "") is not None]
    history += [
        {"role": "assistant", "content": content},
        {"role": "user", "content": results or "And?"},
    ]
    return texts


async def responses(client: AgentClient, history: list[Any], echo: Echo) -> list[str]:
    """The same with items."""
    history += [] if history else [user("go")]
    response = await client.openai.responses.create(
        model=client.model, input=history, tools=RESPONSES_TOOLS
    )
    output = [item.model_dump(exclude_none=True) for item in response.output]
    parts = [item["content"][0] for item in output if item["type"] == "message"]
    texts = [part["text"] for part in parts]
    for part in parts:
        part["text"] = echo(part["text"])
    history += [i for i in output if i["type"] != "message" or i["content"][0].get("text")]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
        for item in output
        if item["type"] == "function_call"
    ]
    history += results or [user("And?")]
    return texts


async def gemini(client: AgentClient, history: list[Any], echo: Echo) -> list[str]:
    """The same with parts."""
    history += [] if history else [{"role": "user", "parts": [{"text": "go"}]}]
    response = await client.genai.aio.models.generate_content(
        model=client.model, contents=history, config=GEMINI_CONFIG
    )
    candidates: Any = response.candidates
    content = candidates[0].content.model_dump(exclude_none=True)
    texts = [part["text"] for part in content["parts"] if "text" in part]
    for part in content["parts"]:
        if "text" in part:
            part["text"] = echo(part["text"])
    made = [part["function_call"] for part in content["parts"] if "function_call" in part]
    answers: list[Any] = [
        {"function_response": {"id": one.get("id"), "name": "edit", "response": {"ok": 1}}}
        for one in made
    ]
    history += [content, {"role": "user", "parts": answers or [{"text": "And?"}]}]
    return texts


def agent_of(turn: Turn, echo: Echo) -> Any:
    """An agent that calls tools until the policy says "done"."""

    async def agent(client: AgentClient) -> float:
        history: list[Any] = []
        for _ in range(5):
            texts = await turn(client, history, echo)
            client.log(text=texts[0] if texts else "None")
            if texts == ["done"]:
                return 1.0
        return 0.0

    return agent


def same(text: str) -> str:
    return text


async def played(agent: Any, *replies: str, **options: Any) -> Trajectory:
    trajectory = await play(agent, *replies, "done", **options)
    assert len(trajectory.transitions) == len(replies) + 1
    assert reward(trajectory) == 1.0
    return trajectory


def assert_whole(trajectory: Trajectory) -> None:
    """All of it is one datum, and nothing counts as drift but other spellings."""
    metrics = trajectory.transitions[-1].metrics
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert metrics["lineages"] == 1
    assert metrics["drift"] == metrics.get("drift/retokenised", 0)
    assert "handoffs" not in metrics


MARGINS: list[Echo] = [str.strip, "\n\n {} \n".format, str.rstrip, "{}\n".format]


@pytest.mark.parametrize("turn", [chat, anthropic, responses, gemini])
async def test_texts_that_come_back_with_other_margins_keep_their_tokens(turn: Turn) -> None:
    """Blank text beside tool calls is not delivered; a reply of white space is one like others."""
    trajectory = await played(agent_of(turn, same), TWO, f"\n{TWO}", f"I edit.\n\n{TWO}")
    said = [transition.logs["text"] for transition in trajectory.transitions]
    assert said == ["None", "None", "I edit.", "done"]
    assert trajectory.transitions[-1].metrics["tools/calls"] == 6
    assert_whole(trajectory)
    for echo in MARGINS:
        replies = [f"I edit.\n\n{TWO}", "  So be it. \n", edit(path="c"), "\nI\n\ngo on.  "]
        assert_whole(await played(agent_of(turn, echo), *replies))
    assert_whole(await played(agent_of(turn, lambda text: text or " "), "\n\n"))


@pytest.mark.parametrize("turn", [chat, anthropic, responses, gemini])
async def test_a_broken_tool_call_that_comes_back_as_delivered_keeps_its_tokens(turn: Turn) -> None:
    replies = [BROKEN, f"{BROKEN}{TWO}", BROKEN.strip()]
    trajectory = await played(agent_of(turn, same), *replies)
    assert "</tool_call>" in str(trajectory.transitions[0].logs["text"])
    assert trajectory.transitions[-1].metrics["tools/calls_unparsed"] == 3
    assert_whole(trajectory)


# -- completed arguments ---------------------------------------------------------------------------


async def completing(client: AgentClient) -> float:
    """Does with each call what Claude Code does: adds a default, tidies the lines of a text."""
    messages: list[Any] = []
    while True:
        await anthropic(client, messages, same)
        made = [block for block in messages[-2]["content"] if block["type"] == "tool_use"]
        if not made:
            return 1.0
        for one in made:
            one["input"] = {"replace_all": False, **one["input"]}
            if "text" in one["input"]:
                one["input"]["text"] = one["input"]["text"].rstrip()


class Completing:
    """The same as an agent that knows of itself what it does."""

    env_options: ClassVar[EnvOptions] = {"keep_completed_arguments": True}

    async def __call__(self, client: AgentClient) -> float:
        return await completing(client)


async def test_completed_arguments_are_kept_where_the_option_or_the_agent_says_so() -> None:
    edits = [edit(path="a", text="one  \n"), TWO, f"I go on.\n{edit(path='b', text='two')}"]
    for agent, options in ((completing, {"keep_completed_arguments": True}), (Completing(), {})):
        trajectory = await played(agent, *edits, **options)
        metrics = trajectory.transitions[-1].metrics
        assert len(trajectory_to_data(trajectory, 1.0)) == 1
        expected = {"lineages": 1, "drift": 3, "drift/completed_arguments": 3}
        assert metrics.items() >= expected.items()
        told = [turn.logs.get("drift") for turn in trajectory.transitions]
        assert told == [*["completed_arguments"] * 3, None]
    trajectory = await played(completing, *edits)
    metrics = trajectory.transitions[-1].metrics
    assert len(trajectory_to_data(trajectory, 1.0)) == 4
    assert metrics.items() >= {"lineages": 4, "drift": 3, "drift/completed_arguments": 3}.items()


# -- ids -------------------------------------------------------------------------------------------


def renaming(rename: Callable[[str, int], tuple[str, str]]) -> Callable[[AgentClient], Any]:
    """An agent that sends calls and their results under the ids that ``rename`` makes of one."""

    async def agent(client: AgentClient) -> float:
        history: list[Any] = [user("go")]
        while True:
            message = (await call(client, *history, tools=CHAT_TOOLS)).choices[0].message
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


async def test_a_consistent_renaming_of_ids_is_no_drift_and_ids_are_the_same_each_time() -> None:
    told: list[str] = []
    for rename in (IDS[0], *IDS):
        trajectory = await played(renaming(rename), TWO, edit(path="c"), TWO)
        assert_whole(trajectory)
        told.append(str([turn.logs["ids"] for turn in trajectory.transitions]))
    found = re.findall(r"call_[A-Za-z0-9]{24}\b", told[0])
    assert len(set(found)) == len(found) == 5
    assert told[0] == told[1]


async def test_ids_that_say_something_else_are_drift_and_named() -> None:
    for answered in ("id", "mine"):
        rename = renaming(lambda id, place, to=answered: ("mine", id if to == "id" else to))  # type: ignore[misc]
        trajectory = await played(rename, TWO)
        first = trajectory.transitions[0]
        assert first.logs["drift"] == "history"
        where = r"messages\[1\]\.tool_calls\[0\]\.id of the assistant was "
        assert re.match(where, str(first.logs["drift_at"]))
        assert len(trajectory_to_data(trajectory, 1.0)) == 2


async def test_a_renamed_id_that_the_template_shows_is_drift() -> None:
    called = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    causes, kimi = list[object](), renderer_named("kimi_k2")
    for rename in IDS:
        trajectory = await play(renaming(rename), called, "done", renderer=kimi)
        causes.append(trajectory.transitions[0].logs["drift"])

    assert causes == ["retokenised", "history", "history"]
    assert "'functions.edit:0'" in str(trajectory.transitions[0].logs["drift_at"])


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
        lambda sent: sent.__setitem__(slice(1, 3), [user("And?")]),
        "history",
        "messages[1].role of the assistant was 'assistant' and is now 'user'.",
    ),
]


@pytest.mark.parametrize(("change", "cause", "where"), CHANGES)
async def test_drift_says_which_field_of_which_message_differed(
    change: Any, cause: str, where: str
) -> None:
    async def agent(client: AgentClient) -> float:
        sent: list[Any] = [user("go")]
        await chat(client, sent, same)
        change(sent)
        await call(client, *sent, tools=CHAT_TOOLS)
        return 1.0

    trajectory = await played(agent, edit(path="a"))
    logs = trajectory.transitions[0].logs
    assert (logs["drift"], logs["drift_at"]) == (cause, where)
