"""Reply formats: instructions in the prompt, checking replies, and retries."""

import json
from typing import Any

import pytest
from tests.kit import assert_extends, call, calling, play, policy_of, rewards, tool, user
from tinker_cookbook.renderers.base import Message, ToolCall
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import StopReason, Trajectory

from evert import AgentClient
from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.chat.reply import Reply

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
OBJECT = ReplyFormat(ANY_OBJECT)
ADD = ReplyFormat(must_call=("add",))


def reply(text: str, *calls: str) -> Reply:
    tool_calls = tuple(
        ToolCall(id=name, function=ToolCall.FunctionBody(name=name, arguments="{}"))
        for name in calls
    )
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, None, tool_calls, (), "stop", 3, 4)


def fitting(schema: Any) -> ReplyFormat:
    return ReplyFormat(json.dumps(schema))


def test_instructions_state_the_format_and_corrections_state_the_problem() -> None:
    instruction = OBJECT.instruction()
    assert instruction == "Answer with one JSON object and nothing else."
    assert fitting({"type": "string"}).instruction() == (
        'Answer with JSON and nothing else. It must match this JSON schema: {"type": "string"}'
    )
    assert ADD.instruction() == "Call the tool add now."
    assert ReplyFormat(must_call=("add", "look")).instruction() == (
        "Call one of these tools now: add, look."
    )
    assert OBJECT.correction("No JSON.") == user(f"No JSON. {instruction}")


NO_JSON = "Your answer is not JSON ("
NO_FIT = "Your answer does not match the schema at "
NO_CALL = "You did not call a required tool."

PROBLEMS: list[tuple[ReplyFormat, Reply, str | None]] = [
    (OBJECT, reply("{}"), None),
    (OBJECT, reply(' {"x": [1, null]}\n'), None),
    (OBJECT, reply(""), f"{NO_JSON}Input is a zero-length, empty document: line 1"),
    (OBJECT, reply("{} {}"), f"{NO_JSON}unexpected content after document: line 1 column 4"),
    (OBJECT, reply("[1]"), f'{NO_FIT}$: [1] is not of type "object".'),
    (OBJECT, reply('{"x": NaN}'), NO_JSON),
    (OBJECT, reply('{"x": -Infinity}'), NO_JSON),
    (OBJECT, reply('{"x": "\\ud800"}'), NO_JSON),
    (OBJECT, reply("[" * 5000), NO_JSON),
    (OBJECT, reply('{"x":' * 5000), NO_JSON),
    (OBJECT, reply('{"x": 1e400}'), NO_JSON),
    (fitting(SCHEMA), reply('{"x": 1}'), None),
    (fitting(SCHEMA), reply('{"x": "1"}'), f'{NO_FIT}$.x: "1" is not of type "integer".'),
    (fitting(SCHEMA), reply("{}"), f'{NO_FIT}$: "x" is a required property'),
    (fitting(SCHEMA), reply('{"x": 1, "y": 2}'), f"{NO_FIT}$: Additional properties are not al"),
    (fitting(SCHEMA), reply("Let me see.", "add"), None),
    (ADD, reply("", "add"), None),
    (ADD, reply("Both.", "look", "add"), None),
    (ADD, reply("", "look"), NO_CALL),
    (ADD, reply('{"x": 1}'), NO_CALL),
]


def test_a_problem_describes_the_mismatch_and_its_location_in_the_json() -> None:
    for form, answer, expected in PROBLEMS:
        problem = form.problem(answer)
        beginning = None if problem is None or expected is None else problem[: len(expected)]
        assert (problem is None, beginning) == (expected is None, expected), answer.text[:80]
    assert len(str(fitting(SCHEMA).problem(reply(json.dumps({"x": "a" * 5000}))))) < 300


def test_a_code_fence_around_the_json_is_removed() -> None:
    for text, cleaned in (
        ('```json\n{"x": 1}\n```', '{"x": 1}'),
        ('\n```\n{"x": 1}\n```\n', '{"x": 1}'),
        ('```json\n{\n "x": 1\n}\n```', '{\n "x": 1\n}'),
        ('{"x": 1}', '{"x": 1}'),
        ('So:\n```json\n{"x": 1}\n```', 'So:\n```json\n{"x": 1}\n```'),
        ("``````", "``````"),
    ):
        assert fitting(SCHEMA).cleaned(reply(text)).text == cleaned
    for filling in ("\n", " ", "\n \n", "`", "```\n"):  # cleaning must take linear time
        assert fitting(SCHEMA).cleaned(reply("```json\n" + filling * 50_000 + "x"))
    fenced = reply("```\n1\n```")
    assert ADD.cleaned(fenced) is fenced


JSON_OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}
JSON_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
}
REQUIRED: dict[str, Any] = {"tools": [tool("add"), tool("look")], "tool_choice": "required"}
NAMED = {**REQUIRED, "tool_choice": {"type": "function", "function": {"name": "look"}}}


async def ask_once(
    fields: dict[str, Any], *replies: str, **options: Any
) -> tuple[Trajectory, Any, list[str]]:
    """Play one call and return the trajectory, the message the agent received, and the prompts."""
    messages: list[Any] = []

    async def agent(client: AgentClient) -> float:
        messages.append((await call(client, **fields)).choices[0].message)
        return 1.0

    script = policy_of(*replies)
    trajectory = await play(agent, script, **options)
    assert [transition.ac.tokens for transition in trajectory.transitions] == script.actions
    assert len(script.actions) == len(replies)
    return trajectory, messages[0], script.prompts


def errors(trajectory: Trajectory) -> list[bool]:
    return [transition.metrics.get("format_error") == 1.0 for transition in trajectory.transitions]


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "json_object": (JSON_OBJECT, "No.", '{"y": 1}'),
    "json_schema": (JSON_SCHEMA, '{"y": 1}', '{"x": 1}'),
    "required": (REQUIRED, "No.", calling("add")),
    "named": (NAMED, calling("add"), calling("look")),
}


@pytest.mark.parametrize(("fields", "bad", "good"), CASES.values(), ids=CASES)
async def test_a_reply_in_the_wrong_format_is_retried_in_the_same_lineage_up_to_the_limit(
    fields: dict[str, Any], bad: str, good: str
) -> None:
    trajectory, message, _ = await ask_once(fields, good)
    assert errors(trajectory) == [False]
    assert message.tool_calls or message.content == good

    trajectory, message, prompts = await ask_once(fields, bad, bad, good)
    assert errors(trajectory) == [True, True, False]
    assert message.tool_calls or message.content == good
    assert rewards(trajectory) == [0.0, 0.0, 1.0]
    assert trajectory.stop_reason == StopReason.COMPLETED
    error = trajectory.transitions[0].logs["format_error"]
    assert error
    assert str(error) in prompts[1]
    assert_extends(trajectory)
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    metrics = trajectory.transitions[-1].metrics
    assert (metrics["lineages"], metrics["drift"]) == (1, 0)

    for retries in (0, 1, 4):
        trajectory, message, _ = await ask_once(
            fields, *[bad] * (retries + 1), format_retries=retries
        )
        assert errors(trajectory) == [True] * (retries + 1)
        assert message.tool_calls or message.content == bad


async def test_a_truncated_reply_is_delivered_without_a_retry() -> None:
    trajectory, message, _ = await ask_once(
        {**JSON_OBJECT, "max_tokens": 2}, '{"x": "a b c d e f"}'
    )
    assert errors(trajectory) == [False]
    assert message.content != '{"x": "a b c d e f"}'


async def conversation(
    *formats: dict[str, Any], replies: tuple[str, ...] = ()
) -> tuple[Trajectory, list[str]]:
    """Play a conversation that requests one of the formats in each turn."""

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("Hi")]
        for fields in formats:
            message = (await call(client, *messages, **fields)).choices[0].message
            assert message.content == '{"x": 1}'
            messages += [message, user("And?")]
        return 1.0

    script = policy_of(*(replies or ['{"x": 1}'] * len(formats)))
    trajectory = await play(agent, script)
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    return trajectory, script.prompts


async def test_the_agent_gets_json_without_the_code_fence_and_can_send_it_back() -> None:
    fenced = '```json\n{"x": 1}\n```'
    _, prompts = await conversation(JSON_OBJECT, JSON_OBJECT, replies=(fenced, '{"x": 1}'))
    assert "```json" in prompts[1]


async def test_the_instruction_is_added_to_the_end_of_the_prompt_once_per_format_change() -> None:
    instruction = OBJECT.instruction()
    _, prompts = await conversation(JSON_OBJECT, JSON_OBJECT, JSON_OBJECT)
    assert [prompt.count(instruction) for prompt in prompts] == [1, 1, 1]
    assert prompts[0].endswith(f"{instruction}<|im_end|>\n<|im_start|>assistant\n")
    _, prompts = await conversation(JSON_OBJECT, JSON_SCHEMA, {}, JSON_OBJECT)
    assert [prompt.count(instruction) for prompt in prompts] == [1, 1, 1, 2]
    assert [prompt.count("It must match this JSON schema") for prompt in prompts] == [0, 1, 1, 1]
