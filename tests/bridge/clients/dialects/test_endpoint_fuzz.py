"""Whatever an agent sends, it gets a response.

1. ``Endpoint.read`` turns a request into a call, or into a 400 or 404 response in the error format
   of the requested API. It never raises.
2. Whatever the policy replies to such a call, the response has status 200, streamed or not.
3. A call accepted by ``read`` is either sampled or rejected with a 400. It never breaks the Env.
"""

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.renderers import MakeRenderer
from tests.nightly import draws
from tinker_cookbook.renderers.base import Message, ToolCall
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.chat.reply import Reply
from evert.bridge.clients.dialects.api import ApiCall, ApiResponse
from evert.bridge.clients.dialects.bodies import MAX_DEPTH
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.episode.agent import inspect_agent
from evert.bridge.episode.episode import Episode
from evert.bridge.tokens.renderer import prompt_renderer

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

CHAT: dict[str, Any] = {
    "model": "policy",
    "messages": [{"role": "system", "content": "You add."},
        {"role": "user", "content": [{"type": "text", "text": "What is"}], "name": "Ann"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c", "type": "function",
                "function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "5"}, {"role": "user", "content": "So?"}],
    "tools": [{"type": "function",
        "function": {"name": "add", "description": "", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "add"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    "max_completion_tokens": 20,
    "stop": ["END"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1.0,
    "n": 1,
    "logprobs": False,
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "policy",
    "instructions": "You add.",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "What is"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "run", "input": "ls"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "5"}]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "5"},
        {"role": "developer", "content": "So?"}],
    "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": True},
        {"type": "custom", "name": "run", "format": {"type": "text"}}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "add"},
    "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
    "max_output_tokens": 20,
    "stream": True,
    "reasoning": {"effort": "low"},
    "previous_response_id": None,
}  # fmt: skip
ANTHROPIC: dict[str, Any] = {
    "model": "policy",
    "system": [{"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "What is"}]},
        {"role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c", "name": "add", "input": {"x": 1}}]},
        {"role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c",
                    "content": [{"type": "text", "text": "5"}]}, {"type": "text", "text": "So?"}]}],
    "tools": [{"name": "add", "description": "", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "add"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["END"],
    "max_tokens": 20,
    "stream": True,
    "thinking": {"type": "disabled"},
}  # fmt: skip
GEMINI: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "You add."}]},
    "contents": [{"role": "user", "parts": [{"text": "What is"}]},
        {"role": "model",
            "parts": [{"text": "Hm.", "thought": True},
                {"text": "Let me see.", "thoughtSignature": "cw=="},
                {"functionCall": {"id": "c", "name": "add", "args": {"x": 1}}}]},
        {"role": "user",
            "parts": [{"functionResponse": {"id": "c", "name": "add", "response": {"result": "5"}}},
                {"text": "So?"}]}],
    "tools": [{"functionDeclarations": [{"name": "add", "description": "",
        "parameters": {"type": "OBJECT", "properties": {"x": {"type": "INTEGER", "nullable": True}},
            "required": ["x"]}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
    "generationConfig": {"responseMimeType": "application/json",
        "responseSchema": {"type": "ARRAY",
            "items": {"anyOf": [{"type": "STRING", "enum": ["a"]}, {"type": "NUMBER"}]},
            "minItems": "1"},
        "maxOutputTokens": 20, "stopSequences": ["END"], "temperature": 1.0, "candidateCount": 1,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 100}},
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}],
    "model": "models/policy",
}  # fmt: skip
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/v1beta/models/policy:streamGenerateContent": GEMINI,
}
WHOLE = {"/v1beta/models/policy:streamGenerateContent": "/v1beta/models/policy:generateContent"}
"""Maps a path to its non-streaming counterpart, for APIs whose paths select streaming."""
COUNTS = {"/v1/messages/count_tokens": ANTHROPIC, "/v1beta/models/policy:countTokens": GEMINI}
every_api = pytest.mark.parametrize("path", BODIES)


# -- strategies ----------------------------------------------------------------------------------

WORDS = ["", "user", "assistant", "tool", "text", "function", "null", "{}", "["]
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(
    [*WORDS, "<|im_start|>", "\ud800"]
)
ODD_NUMBERS = [10**400, -1, 2**63, 1e308, float("nan"), float("inf")]
LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from(ODD_NUMBERS) | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a (container, key) pair for each key and index in the value, recursively."""
    if isinstance(value, list):
        keys: list[Any] = [*range(len(value))]
    else:
        keys = [*value] if isinstance(value, dict) else []
    for key in keys:
        yield value, key
        yield from places(value[key])


@st.composite
def mutated(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """Draw a body in which some values are replaced, removed, wrapped in a list, or added."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from([*places(body), (body, "model")]))
        way = draw(st.integers(0, 5))
        if way == 0:
            del container[key]
            body.setdefault("model", "policy")
        elif way == 1:
            container[key] = [container[key]]
        elif way == 2 and isinstance(container, dict):
            container[draw(TEXTS)] = draw(VALUES)
        else:
            container[key] = draw(VALUES)
    return body


@st.composite
def subset(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(body))))
    return {name: body[name] if draw(st.booleans()) else draw(VALUES) for name in names}


def deep(kind: str, depth: int) -> str:
    opening, closing = ("[", "]") if kind == "lists" else ('{"x":', "}")
    return f"{opening * depth}1{closing * depth}"


ARGUMENTS = (
    TEXTS | VALUES.map(json.dumps) | st.just(deep("lists", 3000)) | st.just('{"input": "x"}')
)
FUNCTIONS = st.builds(
    ToolCall.FunctionBody, name=st.sampled_from(["add", "run", ""]), arguments=ARGUMENTS
)
CALLS = st.builds(ToolCall, id=st.just("c"), function=FUNCTIONS)
REPLIES = st.builds(
    lambda text, reasoning, calls, reason: Reply(
        Message(role="assistant", content=text), text, reasoning, tuple(calls), (), reason, 3, 4
    ),
    TEXTS,
    st.none() | TEXTS,
    st.lists(CALLS, max_size=2),
    st.sampled_from(["stop", "length", "tool_calls"]),
)


# -- reading and answering requests --------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    loop = asyncio.new_event_loop()
    episode = Episode(inspect_agent(lambda client: 0.0), loop, [["policy"]])
    yield Endpoint(episode, "policy", prompt_renderer(None))
    loop.close()


def check(endpoint: Endpoint, path: str, content: bytes, reply: Reply | None = None) -> None:
    answer = endpoint.read(endpoint.route("POST", path, content))
    if isinstance(answer, ApiCall):
        assert answer.request.messages
        answer = answer.answered(REPLY if reply is None else reply)
        assert answer.status == 200
    if answer.status != 200:
        check_error(answer, path)
    elif answer.content_type == "application/json":
        assert isinstance(json.loads(answer.content), dict)
    else:
        assert answer.content_type == "text/event-stream"


def check_error(answer: ApiResponse, path: str) -> None:
    assert answer.status == 400
    assert len(answer.content) < 3000
    body = json.loads(answer.content)
    error = body["error"]
    if path.startswith("/v1/messages"):
        assert body.pop("type") == "error"
        assert set(error) == {"type", "message"}
    elif path.startswith("/v1beta"):
        assert set(error) == {"code", "message", "status", "details"}
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    else:
        assert set(error) == {"type", "message", "param", "code"}
    assert set(body) == {"error"}
    assert error.get("type", "invalid_request_error") == "invalid_request_error"
    assert isinstance(error["message"], str)


REPLY = Reply(Message(role="assistant", content="Hi"), "Hi", None, (), (), "stop", 3, 4)


def examples(count: int) -> settings:
    return settings(
        max_examples=draws(count),
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def dumped(body: Any) -> bytes:
    return json.dumps(body).encode()


@every_api
def test_unmutated_bodies_are_calls(endpoint: Endpoint, path: str) -> None:
    assert isinstance(endpoint.read(endpoint.route("POST", path, dumped(BODIES[path]))), ApiCall)


@every_api
@examples(1500)
@given(data=st.data())
def test_a_mutated_body_gives_a_call_or_a_400(
    endpoint: Endpoint, path: str, data: st.DataObject
) -> None:
    check(endpoint, path, dumped(data.draw(mutated(BODIES[path]))))


@every_api
@examples(1200)
@given(data=st.data())
def test_arbitrary_field_values_give_a_call_or_a_400(
    endpoint: Endpoint, path: str, data: st.DataObject
) -> None:
    check(endpoint, path, dumped(data.draw(subset(BODIES[path]))))


@every_api
@examples(300)
@given(content=st.binary() | VALUES.map(dumped) | TEXTS.map(lambda t: t.encode(errors="replace")))
def test_random_bytes_give_a_call_or_a_400(endpoint: Endpoint, path: str, content: bytes) -> None:
    check(endpoint, path, content)


@pytest.mark.parametrize("path", COUNTS)
@examples(300)
@given(data=st.data())
def test_counting_tokens_gives_a_count_or_a_400(
    endpoint: Endpoint, path: str, data: st.DataObject
) -> None:
    check(endpoint, path, dumped(data.draw(mutated(COUNTS[path]) | subset(COUNTS[path]))))


@every_api
@pytest.mark.parametrize("kind", ["lists", "objects"])
@pytest.mark.parametrize("depth", [90, 100, 110, 200, 500, *range(900, 1000, 9), 5000, 100_000])
def test_nested_bodies_give_a_call_or_a_400(
    endpoint: Endpoint, path: str, depth: int, kind: str
) -> None:
    check(endpoint, path, deep(kind, depth).encode())
    for name in BODIES[path]:
        body = dumped({**BODIES[path], name: "deep"}).decode()
        check(endpoint, path, body.replace('"deep"', deep(kind, depth)).encode())


@every_api
def test_the_error_for_a_body_nested_too_deeply_states_the_limit(
    endpoint: Endpoint, path: str
) -> None:
    fine = {**BODIES[path], "metadata": json.loads(deep("objects", MAX_DEPTH - 1))}
    deeper = {**BODIES[path], "metadata": json.loads(deep("objects", MAX_DEPTH))}

    assert isinstance(endpoint.read(endpoint.route("POST", path, dumped(fine))), ApiCall)
    answer = endpoint.read(endpoint.route("POST", path, dumped(deeper)))
    assert isinstance(answer, ApiResponse)
    assert b"The body is nested more than 100 levels deep." in answer.content


@every_api
@examples(600)
@given(reply=REPLIES, stream=st.booleans())
def test_any_reply_is_written_as_a_200(
    endpoint: Endpoint, path: str, reply: Reply, stream: bool
) -> None:
    place = path if stream else WHOLE.get(path, path)
    check(endpoint, place, dumped({**BODIES[path], "stream": stream}), reply)


@examples(300)
@given(method=st.sampled_from(["GET", "PUT", "DELETE", "HEAD"]) | TEXTS, path=TEXTS)
def test_an_unknown_path_is_a_404(endpoint: Endpoint, method: str, path: str) -> None:
    for place in (path, f"/v1/{path}", f"/v1/models/{path}/", "/v1/files", *BODIES):
        answer = endpoint.read(endpoint.route(method, place, b""))
        assert isinstance(answer, ApiResponse)
        if method != "GET" or "/models" not in place:
            assert answer.status == 404
            error = json.loads(answer.content)["error"]
            assert (error["type"], error["code"]) == ("not_found_error", "not_found")
            assert error["message"].startswith(f"Unknown endpoint: {method} {place.rstrip('/')}. ")


# -- through an Env ------------------------------------------------------------------------------


async def play(bodies: list[tuple[str, bytes]], reply: str) -> None:
    answers: list[ApiResponse] = []

    async def agent(client: AgentClient) -> float:
        for path, content in bodies:
            request = client._endpoint.route("POST", path, content)
            answers.append(await client._endpoint.answer(request))
            if answers[-1].status != 200:
                check_error(answers[-1], path)
                # a valid call, because too many rejected calls in a row would end the episode
                await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    env = ChatAgentEnv(agent, agent_timeout=20, format_retries=1)
    await do_single_rollout(ScriptedPolicy(lambda prompt: reply), env)
    assert len(answers) == len(bodies)


FORCING = {"tool_choice", "response_format", "text", "toolConfig", "generationConfig"}
OPEN = {path: {name: body[name] for name in body.keys() - FORCING} for path, body in BODIES.items()}
"""The bodies, minus any fields that force a format or a tool call."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    path = draw(st.sampled_from(sorted(BODIES)))
    return path, dumped(draw(mutated(BODIES[path]) | subset(OPEN[path]) | mutated(OPEN[path])))


@examples(300)
@given(
    sent=st.lists(requests(), min_size=1, max_size=4),
    reply=st.text(max_size=8)
    | st.sampled_from(['{"x": 1}', "[" * 3000, "<tool_call>\n{}\n</tool_call>", "<tool_call>"])
    | st.just('<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'),
)
def test_a_valid_call_is_sampled_or_rejected(sent: list[tuple[str, bytes]], reply: str) -> None:
    asyncio.run(play(sent, reply))


async def test_a_request_with_an_unknown_multi_part_reply_is_sampled() -> None:
    parts = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    question = {"role": "user", "content": "Something else."}
    bodies = [dumped({"messages": messages}) for messages in ([question], [parts, question])]

    await play([("/v1/chat/completions", body) for body in bodies], "Fine.")


async def test_a_call_nested_too_deeply_to_parse_is_delivered_as_text() -> None:
    text = f'<tool_call>\n{{"name": "add", "arguments": {deep("lists", 3000)}}}\n</tool_call>'

    await play([("/v1/chat/completions", dumped({"messages": CHAT["messages"]}))], text)


TWO_PARTS = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "b")]}]
ANY_X = {"type": "object", "properties": {"x": True}}  # True is a schema that accepts any value
UNRENDERED = {
    "kimi_k2": {"messages": TWO_PARTS},
    "gpt_oss_no_sysprompt": {"messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": ANY_X}}]},
}  # fmt: skip


@pytest.mark.parametrize(("name", "body"), UNRENDERED.items(), ids=UNRENDERED)
async def test_a_request_that_the_renderer_cannot_render_gets_a_400(
    make_renderer: MakeRenderer, name: str, body: dict[str, Any]
) -> None:
    answers: list[ApiResponse] = []

    async def agent(client: AgentClient) -> float:
        request = client._endpoint.route("POST", "/v1/chat/completions", dumped(body))
        answers.append(await client._endpoint.answer(request))
        return 1.0

    renderer = make_renderer(name)
    env = ChatAgentEnv(agent, renderer=renderer)
    try:
        await env.initial_observation()
    finally:
        await env.close()
    assert not answers or answers[0].status == 400
