"""Requests and responses as they appear in SDK READMEs and examples and in agent frameworks.

1. A table of requests and how evert reads each. What evert cannot honour is rejected or listed.
2. A table of responses: fields that SDK users access without checking for None.
"""

import json
from typing import Any

import httpx
import pytest
from tests.bridge.clients.dialects.apis import APIS, HI, HI_PARTS, SCHEMA, reply
from tests.kit import ask, assert_says, call, calling, play, policy_of, rewards, tool, user
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.chat.messages import read_message
from evert.bridge.chat.request import ChatRequest

CHAT_TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA, "strict": True}}
FLAT_TOOL = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
ANTHROPIC_TOOL = {"name": "add", "input_schema": SCHEMA, "strict": True}


def chat_call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}


def chat_history(*messages: Any) -> dict[str, Any]:
    return {"messages": [HI, *messages]}


def function_response(role: str) -> dict[str, Any]:
    call = {"functionCall": {"name": "add", "args": None}}
    result = {"functionResponse": {"name": "add", "response": {"result": "1"}}}
    contents = [HI_PARTS, {"role": "model", "parts": [call]}, {"role": role, "parts": [result]}]
    return {"contents": contents}


def roles(request: ChatRequest) -> list[str]:
    return [message["role"] for message in request.messages]


def arguments(request: ChatRequest) -> str:
    [call] = read_message(request.messages[1], 1, {})["tool_calls"]
    return call.function.arguments


def text(request: ChatRequest) -> object:
    return read_message(request.messages[1], 1, {})["content"]


def parameters(request: ChatRequest) -> object:
    return [offered["function"]["parameters"] for offered in request.tools or ()]


def schema(request: ChatRequest) -> object:
    return None if request.format is None else json.loads(request.format.schema or "null")


def strict(request: ChatRequest) -> object:
    return None if request.format is None else request.format.strict


IN_CAPITALS = {"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}}
STRICT = (("add", SCHEMA),)
REFUSAL = {"role": "assistant", "content": None, "refusal": "No."}
REFUSAL_PART = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
REFUSAL_ITEM = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "refusal", "refusal": "No."}],
}
ONE = {"disable_parallel_tool_use": True}
USE = {"type": "tool_use", "id": "c", "name": "add"}

REQUESTS: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "a developer's message": ("chat", {"messages": [{"role": "developer", "content": "Be."}, HI]},
        lambda request: roles(request), ["developer", "user"]),
    'arguments ""': ("chat", chat_history({"role": "assistant", "tool_calls": [chat_call("")]}),
        arguments, "{}"),
    "arguments null": ("chat", chat_history({"role": "assistant", "tool_calls": [chat_call(None)]}),
        arguments, "{}"),
    "a refusal": ("chat", chat_history(REFUSAL), text, "No."),
    "a refusal as a part": ("chat", chat_history(REFUSAL_PART), text, "No."),
    "a strict tool": ("chat", {"tools": [CHAT_TOOL]}, strict, STRICT),
    "one call at a time": ("chat", {"tools": [CHAT_TOOL], "parallel_tool_calls": False},
        lambda request: request.one_call, True),
    "calls at the same time": ("chat", {"tools": [CHAT_TOOL], "parallel_tool_calls": True},
        lambda request: request.one_call, False),
    "an item's arguments": ("responses", {"input": [HI, {"type": "function_call", "call_id": "c",
        "name": "add", "arguments": ""}]}, arguments, "{}"),
    "an item's refusal": ("responses", {"input": [HI, REFUSAL_ITEM]}, text, "No."),
    "a strict function": ("responses", {"tools": [FLAT_TOOL]}, strict, STRICT),
    "one item at a time": ("responses", {"tools": [FLAT_TOOL], "parallel_tool_calls": False},
        lambda request: request.one_call, True),
    "tools that the agent runs": ("responses",
        {"tools": [FLAT_TOOL, {"type": "shell"}, {"type": "apply_patch"}]},
        lambda request: request.left_out, ("shell", "apply_patch")),
    "a program that calls tools": ("responses",
        {"tools": [FLAT_TOOL, {"type": "programmatic_tool_calling"}]},
        lambda request: request.left_out, ("programmatic_tool_calling",)),
    "a tool use without an input": ("anthropic",
        chat_history({"role": "assistant", "content": [{**USE, "input": None}]}), arguments, "{}"),
    "a strict tool of Anthropic": ("anthropic", {"tools": [ANTHROPIC_TOOL]}, strict, STRICT),
    "one use at a time": ("anthropic", {"tools": [ANTHROPIC_TOOL], "tool_choice":
        {"type": "auto", **ONE}}, lambda request: request.one_call, True),
    "one use of any tool": ("anthropic", {"tools": [ANTHROPIC_TOOL], "tool_choice":
        {"type": "any", **ONE}}, lambda request: (request.one_call, request.format.must_call),
        (True, ("add",))),
    "a JSON schema with types in capitals": ("gemini", {"generationConfig":
        {"responseMimeType": "application/json", "responseJsonSchema": IN_CAPITALS}},
        schema, SCHEMA),
    "parameters with types in capitals": ("gemini", {"tools": [{"functionDeclarations":
        [{"name": "add", "parametersJsonSchema": IN_CAPITALS}]}]}, parameters, [SCHEMA]),
    "calls that build on each other": ("gemini", {"toolConfig": {"functionCallingConfig":
        {"mode": "COMPOSITIONAL"}}}, lambda request: request.may_call, True),
    **{
        f"a result of role {role}": ("gemini", function_response(role), roles,
            ["user", "assistant", "tool"])
        for role in ("user", "function", "tool")
    },
}  # fmt: skip


@pytest.mark.parametrize("row", REQUESTS)
def test_a_request_from_sdk_examples_is_read(row: str) -> None:
    api, fields, read, expected = REQUESTS[row]
    assert read(APIS[api].read(**fields)) == expected


ANSWERS: dict[str, list[str]] = {
    "chat": ["service_tier", "usage.prompt_tokens_details.cached_tokens",
        "usage.prompt_tokens_details.audio_tokens",
        "usage.completion_tokens_details.reasoning_tokens",
        "usage.completion_tokens_details.accepted_prediction_tokens"],
    "responses": ["parallel_tool_calls", "tool_choice", "text.format.type",
        "usage.input_tokens_details.cached_tokens", "usage.output_tokens_details.reasoning_tokens"],
    "anthropic": ["usage.cache_read_input_tokens", "usage.cache_creation_input_tokens",
        "usage.cache_creation.ephemeral_5m_input_tokens", "usage.service_tier"],
    "gemini": ["usageMetadata.promptTokenCount", "usageMetadata.candidatesTokenCount",
        "usageMetadata.promptTokensDetails.0.tokenCount"],
}  # fmt: skip


@pytest.mark.parametrize("api", ANSWERS)
def test_a_response_has_the_fields_that_sdk_users_read(api: str) -> None:
    body = APIS[api].least
    dialect = APIS[api].dialect("policy")
    answer = dialect.write(reply(), dialect.read(body), "1", body)
    for path in ANSWERS[api]:
        value: Any = answer
        for step in path.split("."):
            value = value[int(step)] if step.isdecimal() else value[step]
        assert value is not None, path


# -- whole episodes --------------------------------------------------------------------------------

TWO = f"{calling('north')}\n{calling('south')}"


async def by_chat(client: AgentClient) -> list[str]:
    create: Any = client.openai.chat.completions.create
    completion = await create(
        model=client.model,
        messages=[user("Go.")],
        tools=[tool("north"), tool("south")],
        parallel_tool_calls=False,
    )
    return [call.function.name for call in completion.choices[0].message.tool_calls or ()]


async def by_responses(client: AgentClient) -> list[str]:
    functions: Any = [
        {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}
        for name in ("north", "south")
    ]
    response = await client.openai.responses.create(
        model=client.model, input="Go.", tools=functions, parallel_tool_calls=False
    )
    return [item.name for item in response.output if item.type == "function_call"]


async def by_messages(client: AgentClient) -> list[str]:
    tools: Any = [{"name": n, "input_schema": {"type": "object"}} for n in ("north", "south")]
    message = await client.anthropic.messages.create(
        model=client.model,
        max_tokens=99,
        messages=[{"role": "user", "content": "Go."}],
        tools=tools,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    return [block.name for block in message.content if block.type == "tool_use"]


@pytest.mark.parametrize("ask_for_one", [by_chat, by_responses, by_messages])
async def test_an_agent_that_turns_off_parallel_calls_gets_one_call(ask_for_one: Any) -> None:
    async def agent(client: AgentClient) -> float:
        return float(await ask_for_one(client) == ["north"])

    trajectory = await play(agent, TWO)

    assert rewards(trajectory) == [1.0]
    assert trajectory.transitions[0].metrics["parse_error"] == 1.0

    policy = ParseErrorPolicy(max_consecutive=1, penalty_per_error=0.5)
    env = ChatAgentEnv(agent, parse_error_policy=policy)
    trajectory = await do_single_rollout(policy_of(TWO, calling("north")), env)

    assert rewards(trajectory) == [-0.5, 1.0]


async def test_a_strict_tool_call_is_retried_until_its_arguments_match_the_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

    async def agent(client: AgentClient) -> float:
        completion = await call(client, tools=[tool("add", strict=True, parameters=schema)])
        [tool_call] = completion.choices[0].message.tool_calls
        return float(json.loads(tool_call.function.arguments).get("x") == 1)

    replies = calling("add", x="one"), calling("add", x=1)
    trajectory = await play(agent, *replies)

    assert rewards(trajectory) == [0.0, 1.0]
    assert_says(trajectory.transitions[0].logs["format_error"], "call of add", '$.x: "one"')
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    free = await play(agent, replies[1])
    # a strict tool adds no instruction to the prompt
    assert trajectory.transitions[0].ob == free.transitions[0].ob


@pytest.mark.parametrize("spaced", [True, False])
async def test_tool_ids_repeated_in_each_reply_are_not_drift(spaced: bool) -> None:
    call_text = calling("look") if spaced else calling("look").replace(": ", ":")

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [user("Look.")]
        for turn in range(3):
            completion = await call(client, *messages, tools=[tool("look")])
            [tool_call] = completion.choices[0].message.tool_calls
            echo = {"id": "call_0", "type": "function", "function": tool_call.function.model_dump()}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [echo]},
                {"role": "tool", "tool_call_id": "call_0", "content": f"room {turn}"},
            ]
        return 1.0

    trajectory = await play(agent, call_text, call_text, call_text)

    metrics = trajectory.transitions[-1].metrics
    assert metrics["lineages"] == len(trajectory_to_data(trajectory, 1.0)) == 1
    assert metrics["drift"] == metrics.get("drift/retokenised", 0)


@pytest.mark.parametrize("deferred", [True, False])
async def test_a_call_to_a_deferred_function_has_the_functions_namespace(deferred: bool) -> None:
    """Otherwise OpenAI's Agents SDK cannot find the tool for the call."""
    lookup = {**FLAT_TOOL, "defer_loading": True} if deferred else FLAT_TOOL
    tools: Any = [lookup, {"type": "tool_search"}]

    async def agent(client: AgentClient) -> float:
        create = client.openai.responses.create
        start: Any = [HI]
        first = await create(model=client.model, input=start, tools=tools)
        [tool_call] = [item for item in first.output if item.type == "function_call"]
        result: Any = {"type": "function_call_output", "call_id": tool_call.call_id, "output": "3"}
        history: Any = [*start, tool_call.model_dump(exclude_none=True), result]
        await create(model=client.model, input=history, tools=tools)
        return float((tool_call.name, tool_call.namespace) == ("add", "add" if deferred else None))

    trajectory = await play(agent, calling("add"), "3")

    assert rewards(trajectory) == [0.0, 1.0]
    assert len(trajectory_to_data(trajectory, 1.0)) == 1  # the echoed call matches the sampled one


async def test_an_azure_call_with_its_deployment_only_in_the_path_is_taken_over() -> None:
    async def agent(task: str) -> float:
        async with httpx.AsyncClient(base_url="https://example.openai.azure.com/openai") as client:
            response = await client.post(
                f"/deployments/{task}/chat/completions", json={"messages": [HI]}
            )
        return float(response.json()["choices"][0]["message"]["content"] == "yes")

    trajectory = await play(agent, "yes", task="gpt-5", policy_names="gpt-5")

    assert rewards(trajectory) == [1.0]


async def test_a_response_can_be_continued_without_new_input() -> None:
    async def agent(client: AgentClient) -> float:
        create = client.openai.responses.create
        first = await create(model=client.model, input="Hi.")
        second = await create(model=client.model, input=[], previous_response_id=first.id)
        return float(second.output_text == "two")

    trajectory = await play(agent, "one", "two")

    assert rewards(trajectory)[-1] == 1.0


async def test_quoting_another_agents_conversation_is_not_drift() -> None:
    """A guardrail request quotes the transcript of the agent it monitors."""

    async def agent(client: AgentClient) -> float:
        transcript: list[Any] = []
        rules = {"role": "system", "content": "Say whether this is harmless."}
        for text in ("One?", "Two?"):
            transcript.append(user(text))
            assert await ask(client, rules, *transcript) == "harmless"
            completion = await client.chat.completions.create(
                messages=[{"role": "system", "content": "Count."}, *transcript]
            )
            transcript.append(completion.choices[0].message.model_dump(exclude_none=True))
        return 1.0

    policy = ScriptedPolicy(["harmless", "1", "harmless", "2"])
    trajectory = await play(agent, policy)

    metrics = trajectory.transitions[-1].metrics
    assert (metrics["drift"], metrics["handoffs"]) == (0, 1)
    assert "1" in policy.prompts[2]
