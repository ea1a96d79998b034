"""What a reply has to look like: asked for, checked, asked for again.

1. ``ReplyFormat`` says what it wants, what is wrong with a reply, and takes a code fence away.
2. A schema's own references are followed, nothing is fetched, and a schema that cannot be followed
   to its end is not held against the policy.
3. A reply that does not fit is a transition like any other, marked ``format_error``; the agent gets
   the last of at most ``format_retries + 1``.
4. The instruction stands in the prompt once for as long as the format stays the same, and all of it
   is one lineage of the sampled tokens.
"""

import json
import logging
import socket
from typing import Any

import pytest
from tinker_cookbook.renderers.base import Message, ToolCall
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import StopReason, Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.chat.reply import FinishReason, Reply
from evert.bridge.chat.schemas import first_error

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


def reply(text: str, *calls: str, finish_reason: FinishReason = "stop") -> Reply:
    tool_calls = tuple(
        ToolCall(id=name, function=ToolCall.FunctionBody(name=name, arguments="{}"))
        for name in calls
    )
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, None, tool_calls, (), finish_reason, 3, 4)


def wanted(schema: Any) -> ReplyFormat:
    return ReplyFormat(json.dumps(schema))


# -- 1. what is asked, and what is wrong ---------------------------------------------------------


def test_the_instruction_says_what_is_wanted() -> None:
    assert ReplyFormat(ANY_OBJECT).instruction() == "Answer with one JSON object and nothing else."
    assert wanted({"type": "string"}).instruction() == (
        'Answer with JSON and nothing else. It must fit this JSON schema: {"type": "string"}'
    )
    assert ReplyFormat(must_call=("add",)).instruction() == "Call the tool add now."
    assert ReplyFormat(must_call=("add", "look")).instruction() == (
        "Call one of these tools now: add, look."
    )


def test_a_correction_says_what_was_wrong_and_asks_again() -> None:
    assert ReplyFormat(ANY_OBJECT).correction("No JSON.") == {
        "role": "user",
        "content": "No JSON. Answer with one JSON object and nothing else.",
    }


@pytest.mark.parametrize("text", ["{}", ' {"x": [1, null]}\n'])
def test_any_object_is_an_object(text: str) -> None:
    assert ReplyFormat(ANY_OBJECT).problem(reply(text)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Your answer is no JSON (Expecting value: line 1 column 1 (char 0))."),
        ("{} {}", "Your answer is no JSON (Extra data: line 1 column 4 (char 3))."),
        ("[1]", "Your answer does not fit the schema at $: [1] is not of type 'object'."),
        ('{"x": NaN}', "Your answer is no JSON (NaN is none of its values)."),
        ('{"x": -Infinity}', "Your answer is no JSON (-Infinity is none of its values)."),
    ],
)
def test_what_is_no_object_is_a_problem(text: str, problem: str) -> None:
    assert ReplyFormat(ANY_OBJECT).problem(reply(text)) == problem


@pytest.mark.parametrize("text", ["[" * 5000, '{"x":' * 5000, "1" * 5000])
def test_json_that_python_cannot_hold_is_a_problem_and_no_accident(text: str) -> None:
    assert str(ReplyFormat(ANY_OBJECT).problem(reply(text))).startswith("Your answer is no JSON (")


def test_a_problem_names_the_place_in_the_schema() -> None:
    problem = wanted(SCHEMA).problem

    assert problem(reply('{"x": 1}')) is None
    assert problem(reply('{"x": "1"}')) == (
        "Your answer does not fit the schema at $.x: '1' is not of type 'integer'."
    )
    assert "'x' is a required property" in str(problem(reply("{}")))
    assert "'y' was unexpected" in str(problem(reply('{"x": 1, "y": 2}')))


def test_a_long_problem_is_cut() -> None:
    assert len(str(wanted(SCHEMA).problem(reply(json.dumps({"x": "a" * 5000}))))) < 300


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e400"])
def test_a_number_beyond_all_others_is_a_problem_and_no_accident(number: str) -> None:
    schema = {"properties": {"x": {"multipleOf": 0.5}}}

    assert str(wanted(schema).problem(reply(f'{{"x": {number}}}'))).startswith(
        "Your answer does not fit the schema at $: a number in it cannot be checked"
    )


def test_a_forced_tool_must_be_called_and_others_may_be() -> None:
    problem = ReplyFormat(must_call=("add",)).problem

    assert problem(reply("", "add")) is None
    assert problem(reply("Both.", "look", "add")) is None
    assert problem(reply("", "look")) == "You did not call a tool that was asked for."
    assert problem(reply('{"x": 1}')) == "You did not call a tool that was asked for."


def test_a_reply_that_calls_tools_need_not_be_json() -> None:
    assert wanted(SCHEMA).problem(reply("Let me see.", "add")) is None


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ('```json\n{"x": 1}\n```', '{"x": 1}'),
        ('\n```\n{"x": 1}\n```\n', '{"x": 1}'),
        ('```json\n{\n "x": 1\n}\n```', '{\n "x": 1\n}'),
        ('{"x": 1}', '{"x": 1}'),
        ('So:\n```json\n{"x": 1}\n```', 'So:\n```json\n{"x": 1}\n```'),
        ("``````", "``````"),
    ],
)
def test_a_code_fence_around_the_json_is_taken_away(text: str, cleaned: str) -> None:
    assert wanted(SCHEMA).cleaned(reply(text)).text == cleaned


def test_a_fence_stays_where_no_json_was_asked_for() -> None:
    fenced = reply("```\n1\n```")

    assert ReplyFormat(must_call=("add",)).cleaned(fenced) is fenced


# -- 2. schemas ----------------------------------------------------------------------------------


def test_references_within_the_schema_are_followed() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    schema = json.dumps({"$ref": "#/$defs/node", "$defs": {"node": node}})

    assert first_error(schema, {"next": {"next": {}}}) is None
    error = first_error(schema, {"next": {"next": 5}})
    assert error is not None
    assert error.json_path == "$.next.next"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "%%%"},
        {"$dynamicRef": "#nowhere"},
    ],
    ids=str,
)
def test_a_schema_that_leads_nowhere_is_fitted_by_everything_and_is_warned_of(
    schema: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "evert.bridge.chat.schemas"):
        assert wanted(schema).problem(reply("5")) is None

    assert "A JSON schema cannot be checked, so every reply fits it" in caplog.text


@pytest.mark.parametrize(
    "reference",
    ["http://127.0.0.1:9/x.json", "https://example.com/x", "file:///etc/hostname", "urn:x", "x"],
)
def test_nothing_is_ever_fetched(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)

    assert wanted({"$ref": reference}).problem(reply("5")) is None


@pytest.mark.parametrize("draft", ["2020-12/schema", "2019-09/schema"])
def test_the_draft_that_a_schema_names_is_used(draft: str) -> None:
    schema = {"$schema": f"https://json-schema.org/draft/{draft}", "type": "string"}

    assert first_error(json.dumps(schema), "a") is None
    assert first_error(json.dumps(schema), 5) is not None


# -- 3. through an Env ---------------------------------------------------------------------------

JSON_OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}
JSON_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "look")
]
REQUIRED: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
NAMED: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "look"}},
}


def calling(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def asked(
    fields: dict[str, Any], *replies: str, **options: Any
) -> tuple[Trajectory, Any, list[str]]:
    """What an agent that asks once gets; the trajectory and the prompts."""
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        completion = await client.chat.completions.create(messages=[user("Hi")], **fields)
        got.append(completion.choices[0].message)
        return 1.0

    script = ScriptedPolicy(replies)
    trajectory = await do_single_rollout(script, ChatAgentEnv(agent, **options))
    assert len(script.actions) == len(replies)
    assert [t.ac.tokens for t in trajectory.transitions] == script.actions
    return trajectory, got[0], script.prompts


def errors(trajectory: Trajectory) -> list[bool]:
    return [transition.metrics.get("format_error") == 1.0 for transition in trajectory.transitions]


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "json_object": (JSON_OBJECT, "No.", '{"y": 1}'),
    "json_schema": (JSON_SCHEMA, '{"y": 1}', '{"x": 1}'),
    "required": (REQUIRED, "No.", calling("add")),
    "named": (NAMED, calling("add"), calling("look")),
}
every_case = pytest.mark.parametrize(("fields", "bad", "good"), CASES.values(), ids=CASES)


@every_case
async def test_a_reply_that_fits_is_delivered_at_once(
    fields: dict[str, Any], bad: str, good: str
) -> None:
    trajectory, message, _ = await asked(fields, good)

    assert errors(trajectory) == [False]
    assert message.tool_calls or message.content == good


@every_case
async def test_one_that_does_not_is_asked_for_again_as_a_transition(
    fields: dict[str, Any], bad: str, good: str
) -> None:
    trajectory, message, prompts = await asked(fields, bad, bad, good)

    assert errors(trajectory) == [True, True, False]
    assert trajectory.transitions[0].logs["format_error"]
    assert message.tool_calls or message.content == good
    assert [transition.reward for transition in trajectory.transitions] == [0.0, 0.0, 1.0]
    assert trajectory.stop_reason == StopReason.COMPLETED
    assert str(trajectory.transitions[0].logs["format_error"]) in prompts[1]


@every_case
async def test_the_attempts_are_bounded_and_the_last_is_delivered(
    fields: dict[str, Any], bad: str, good: str
) -> None:
    for retries in (0, 1, 4):
        trajectory, message, _ = await asked(fields, *[bad] * (retries + 1), format_retries=retries)

        assert errors(trajectory) == [True] * (retries + 1)
        assert message.tool_calls or message.content == bad


@every_case
async def test_all_attempts_are_one_lineage_of_the_sampled_tokens(
    fields: dict[str, Any], bad: str, good: str
) -> None:
    trajectory, *_ = await asked(fields, bad, bad, good)

    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    assert trajectory.transitions[-1].metrics["drift"] == 0


async def test_a_reply_that_was_cut_is_delivered_and_not_asked_for_again() -> None:
    trajectory, message, _ = await asked({**JSON_OBJECT, "max_tokens": 2}, '{"x": "a b c d e f"}')

    assert errors(trajectory) == [False]
    assert message.content != '{"x": "a b c d e f"}'


async def test_the_agent_gets_json_without_its_fence_and_may_send_it_back() -> None:
    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("Hi")]
        for _ in range(2):
            completion = await client.chat.completions.create(messages=messages, **JSON_OBJECT)
            messages += [completion.choices[0].message, user("And?")]
            assert completion.choices[0].message.content == '{"x": 1}'
        return 1.0

    script = ScriptedPolicy(['```json\n{"x": 1}\n```', '{"x": 1}'])
    trajectory = await do_single_rollout(script, ChatAgentEnv(agent))

    assert trajectory.transitions[-1].metrics["lineages"] == 1
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert "```json" in script.prompts[1]


# -- 4. the instruction --------------------------------------------------------------------------


async def conversation(*formats: dict[str, Any]) -> tuple[Trajectory, list[str]]:
    """One conversation, each turn of which asks for a format."""

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("Hi")]
        for fields in formats:
            completion = await client.chat.completions.create(messages=messages, **fields)
            messages += [completion.choices[0].message, user("And?")]
        return 1.0

    script = ScriptedPolicy(lambda prompt: '{"x": 1}')
    trajectory = await do_single_rollout(script, ChatAgentEnv(agent))
    return trajectory, script.prompts


INSTRUCTION = ReplyFormat(ANY_OBJECT).instruction()


async def test_the_instruction_stands_there_once_while_the_format_stays_the_same() -> None:
    trajectory, prompts = await conversation(JSON_OBJECT, JSON_OBJECT, JSON_OBJECT)

    assert [prompt.count(INSTRUCTION) for prompt in prompts] == [1, 1, 1]
    assert trajectory.transitions[-1].metrics["lineages"] == 1


async def test_another_format_has_its_own_instruction() -> None:
    trajectory, prompts = await conversation(JSON_OBJECT, JSON_SCHEMA, {}, JSON_OBJECT)

    assert [prompt.count(INSTRUCTION) for prompt in prompts] == [1, 1, 1, 2]
    assert [prompt.count("It must fit this JSON schema") for prompt in prompts] == [0, 1, 1, 1]
    assert trajectory.transitions[-1].metrics["lineages"] == 1


async def test_the_instruction_comes_last_before_the_reply() -> None:
    _, prompts = await conversation(JSON_OBJECT)

    assert prompts[0].endswith(f"{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n")


async def test_control_tokens_in_a_schema_are_text() -> None:
    schema = {"type": "object", "description": "<|im_end|>"}
    wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    trajectory, _ = await conversation({"response_format": wrapped})
    plain, _ = await conversation(JSON_OBJECT)

    def ends(played: Trajectory) -> int:
        tokens: list[int] = played.transitions[0].ob.to_ints()
        return tokens.count(played.transitions[0].ac.tokens[-1])

    assert ends(trajectory) == ends(plain)


async def test_blocking_agents_are_served_alike() -> None:
    def agent(client: BlockingAgentClient) -> float:
        completion = client.chat.completions.create(messages=[user("Hi")], **JSON_SCHEMA)
        return float(completion.choices[0].message.content == '{"x": 1}')

    trajectory = await do_single_rollout(ScriptedPolicy(["No.", '{"x": 1}']), ChatAgentEnv(agent))

    assert errors(trajectory) == [True, False]
    assert trajectory.transitions[-1].reward == 1.0
