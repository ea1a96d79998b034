"""Frozen models, which agents call by name. ``tests/faults`` covers models that fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import openai
import pytest
from tests.kit import (
    Patch,
    as_agent,
    ask,
    ask_blocking,
    call,
    calling,
    play,
    play_without_a_call,
    reward,
    tool,
    user,
)
from tests.kit.serving import Elsewhere
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, EnvClosedError, ScriptedPolicy
from evert.bridge.errors import AgentError, InvalidModelError
from evert.bridge.models.remote import RemoteModel

HELLO: Any = [user("Hello?")]
ADD = tool("add")
AS_OBJECT: Any = {"response_format": {"type": "json_object"}}
CALL = calling("add", x=1)


class Judge(MessageCompleter):
    """A model that repeats the last message in upper case."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.append(messages)
        return {"role": "assistant", "content": str(messages[-1]["content"]).upper()}


async def hello(client: AgentClient, model: str = "judge", **fields: Any) -> Any:
    return await call(client, *HELLO, model=model, **fields)


async def test_calls_answered_by_a_message_completer_are_not_transitions() -> None:
    judge = Judge()

    async def agent(client: AgentClient) -> float:
        names = ["policy", "judge", "policy", "judge"]
        texts = await asyncio.gather(*(ask(client, *HELLO, model=name) for name in names))
        assert [model.id async for model in client.openai.models.list()] == ["policy", "judge"]
        with pytest.raises(openai.BadRequestError, match="does not support tools. Use a Token"):
            await hello(client, tools=[ADD])
        return float(texts == ["Fine.", "HELLO?"] * 2)

    trajectory = await play(agent, models={"judge": judge})

    assert (len(trajectory.transitions), reward(trajectory)) == (2, 1.0)
    assert judge.asked == [HELLO] * 2


async def test_replies_of_a_token_completer_are_parsed_with_the_envs_renderer() -> None:
    helper = ScriptedPolicy([CALL, "One. Two.", "Long enough to be cut.", CALL, "{}"])
    judge, completions = Judge(), list[Any]()

    async def agent(client: AgentClient) -> float:
        with_tools = {"tools": [ADD]}
        for fields in (with_tools, {"stop": "Two"}, {"max_tokens": 2}, with_tools, AS_OBJECT):
            completions.append(await hello(client, "other", **fields))
        await hello(client, **AS_OBJECT)
        return 1.0

    await play_without_a_call(agent, models={"other": helper, "judge": judge})

    called, stopped, cut, second_call, _ = (completion.choices[0] for completion in completions)
    assert called.message.tool_calls[0].function.name == "add"
    assert called.message.tool_calls[0].id != second_call.message.tool_calls[0].id
    assert completions[0].model == "other"
    assert stopped.message.content == "One. "
    assert cut.finish_reason == "length"
    assert [completion.usage.completion_tokens for completion in completions] == [
        len(a) for a in helper.actions
    ]
    assert "# Tools" in helper.prompts[0]
    instruction = "Answer with one JSON object and nothing else."
    assert instruction in helper.prompts[-1]
    assert judge.asked[0][-1]["content"] == instruction


async def test_a_sync_or_async_function_can_be_a_frozen_model() -> None:
    def now(messages: list[Message]) -> str:
        return str(messages[-1]["content"]).upper()

    async def soon(messages: list[Message]) -> str:
        return now(messages)

    async def agent(client: AgentClient) -> float:
        texts = [await ask(client, *HELLO, model=name) for name in ("now", "soon")]
        return float(texts == ["HELLO?"] * 2)

    await play_without_a_call(agent, models={"now": now, "soon": soon})


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def as_schema(name: str) -> Any:
    schema = {"name": name, "schema": SCHEMA}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


@pytest.fixture
def models(elsewhere: Elsewhere, monkeypatch: Patch) -> dict[str, Any]:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    return {"judge": RemoteModel("gpt-judge", elsewhere.url, "JUDGE_KEY")}


async def test_log_probabilities_come_from_the_endpoint(elsewhere: Elsewhere, models: Any) -> None:
    tokens = [("A", [65]), ("bytes:\\xf0\\x9f", [0xF0, 0x9F]), ("<|im_end|>", None)]
    logprobs = [
        {"token": text, "bytes": raw, "logprob": -0.5, "top_logprobs": []} for text, raw in tokens
    ]

    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="this model's endpoint did not"):
            await hello(client, logprobs=True)
        elsewhere.choice["logprobs"] = {"content": logprobs, "refusal": None}
        result = (await hello(client, logprobs=True)).choices[0].logprobs
        return float([token.model_dump() for token in result.content] == logprobs)

    await play_without_a_call(agent, models=models)
    assert [body["logprobs"] for *_, body in elsewhere.asked] == [True, True]


BOTH = {"tools": [ADD, tool("look")]}
NAMED = {"type": "function", "function": {"name": "add"}}
FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tools": [ADD], "max_tokens": 7, "stop": "END", "temperature": 0.5, "seed": 1},
        {"tools": [ADD], "max_completion_tokens": 7, "stop": ["END"]}),
    (AS_OBJECT, AS_OBJECT),
    (as_schema("s"), as_schema("reply")),
    *(({**BOTH, "tool_choice": choice}, {**BOTH, "tool_choice": choice}) for choice in (NAMED,
        "required")),
    ({"tools": [ADD], "tool_choice": "auto"}, {"tools": [ADD]}),
]  # fmt: skip


async def test_an_endpoint_receives_the_relevant_fields(elsewhere: Elsewhere, models: Any) -> None:
    async def agent(client: AgentClient) -> float:
        for fields, expected in FIELDS:
            completion = await hello(client, **fields)
            usage = completion.usage
            assert completion.choices[0].message.content == "From elsewhere."
            assert (usage.prompt_tokens, usage.completion_tokens) == (5, 6)
            body = {"model": "gpt-judge", "messages": HELLO, **expected}
            assert elsewhere.asked[-1][2] == body
        return 1.0

    await play_without_a_call(agent, models=models)
    assert elsewhere.keys == ["Bearer secret"] * len(FIELDS)
    assert "secret" not in repr(models)


async def test_tool_calls_in_a_remote_models_text_are_parsed_if_tools_were_offered(
    elsewhere: Elsewhere, models: Any
) -> None:
    text = 'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'

    async def agent(client: AgentClient) -> float:
        elsewhere.choice["message"] = {"role": "assistant", "content": text}
        message = (await hello(client, tools=[ADD])).choices[0].message
        assert (message.content, message.tool_calls[0].function.name) == ("Well.", "add")
        return float((await hello(client)).choices[0].message.content == text)

    await play_without_a_call(agent, models=models)


async def test_a_remote_models_tool_calls_and_reasoning_are_kept(
    elsewhere: Elsewhere, models: Any
) -> None:
    made = {"id": "c7", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [made], "reasoning_content": "Hm."}
    elsewhere.choice["message"] = said

    async def agent(client: AgentClient) -> float:
        message: Any = (await hello(client, tools=[ADD])).choices[0].message
        assert message.reasoning_content == "Hm."
        assert [call.id for call in message.tool_calls] == ["c7"]
        result = {"role": "tool", "tool_call_id": "c7", "content": "5"}
        await call(client, *HELLO, message, result, model="judge")
        return 1.0

    await play_without_a_call(agent, models=models)

    assert elsewhere.asked[1][2]["messages"][1]["tool_calls"] == [made]


async def test_an_endpoints_error_is_raised_in_the_agent(elsewhere: Elsewhere, models: Any) -> None:
    refusals = {401: openai.AuthenticationError, 404: openai.NotFoundError}

    async def agent(client: AgentClient) -> float:
        for elsewhere.status, error in refusals.items():
            for handle in (client, client.openai):
                with pytest.raises(error) as caught:
                    await hello(handle)  # type: ignore[arg-type]
                assert caught.value.code == "bad_key"
        return 1.0

    await play_without_a_call(agent, models=models)


async def test_the_error_for_an_invalid_reply_names_the_model(
    elsewhere: Elsewhere, models: Any
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{bad"}}
    broken = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("judge", {}, "The model 'judge' returned no choices: .*'total_tokens': 11"),
        ("judge", {**elsewhere.choice, **broken}, "The model 'judge' returned an invalid rep"),
        ("none", {}, "returned None; expected the text of the reply"),
    ]

    async def agent(client: AgentClient) -> float:
        for name, elsewhere.choice, message in rows:
            with pytest.raises((openai.BadRequestError, InvalidModelError), match=message):
                await hello(client, name)
        return 1.0

    functions: Any = {"none": lambda messages: None}
    await play_without_a_call(agent, models={**models, **functions})


async def over_responses(client: AgentClient) -> str:
    async with client.openai.responses.stream(model="judge", input="Hello?") as stream:
        return (await stream.get_final_response()).output_text


async def over_anthropic(client: AgentClient) -> str:
    said: Any = await client.anthropic.messages.create(model="judge", messages=HELLO, max_tokens=99)
    return str(said.content[0].text)


def own_client() -> str:
    with openai.OpenAI(api_key="x") as sdk:
        return ask_blocking(sdk, *HELLO, model="judge")  # type: ignore[arg-type]


@as_agent(models={"judge": Judge()})
async def test_a_frozen_model_can_be_called_with_any_client_and_from_threads(
    client: AgentClient,
) -> None:
    def blocking(client: AgentClient) -> str:
        return ask_blocking(client.blocking, *HELLO, model="judge")

    texts = [await ask(client, *HELLO, model="judge")]
    texts += [await asyncio.to_thread(blocking, client), await asyncio.to_thread(own_client)]
    texts += [await over_responses(client), await over_anthropic(client)]
    assert texts == ["HELLO?"] * 5


class Stuck(MessageCompleter):
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


class Stubborn(MessageCompleter):
    """A model that never replies and ignores the first cancellation."""

    async def __call__(self, messages: list[Message]) -> Message:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)
        raise AssertionError


async def asks_the_judge(client: AgentClient) -> float:
    await hello(client)
    return 1.0


async def test_closing_the_env_releases_a_thread_that_waits_for_a_frozen_model() -> None:
    def agent(client: BlockingAgentClient) -> float:
        ask_blocking(client, *HELLO, model="judge")
        return 1.0

    stuck = Stuck()
    env = ChatAgentEnv(agent, models={"judge": stuck})
    observing = asyncio.create_task(env.initial_observation())
    await stuck.asked.wait()
    await env.close()
    with pytest.raises(EnvClosedError):
        await observing
    assert not env.is_running


@pytest.mark.parametrize("judge", [Stuck, Stubborn])
async def test_the_timeout_error_for_a_frozen_model_names_it(judge: Any) -> None:
    with pytest.raises(AgentError, match="'judge' did not reply within 0.5 s") as caught:
        await play(asks_the_judge, models={"judge": judge()}, model_timeout=0.5, agent_timeout=0.2)

    cause = caught.value.__cause__
    assert isinstance(cause, openai.BadRequestError)
    assert cause.code == "model_timeout"


async def test_a_frozen_models_time_does_not_count_towards_the_agents_timeout() -> None:
    class Slow(Judge):
        async def __call__(self, messages: list[Message]) -> Message:
            await asyncio.sleep(0.2)
            return await super().__call__(messages)

    async def agent(client: AgentClient) -> float:
        for _ in range(4):
            await hello(client)
        await ask(client)
        return 1.0

    assert reward(await play(agent, models={"judge": Slow()}, agent_timeout=0.4)) == 1.0


async def test_a_remote_model_has_its_own_timeout() -> None:
    async with dripping() as url:
        models = {"judge": RemoteModel("far-away", url, timeout=0.2)}
        with pytest.raises(AgentError, match="'judge' did not reply within 0.2 s"):
            await play(asks_the_judge, models=models, model_timeout=None)


@asynccontextmanager
async def dripping() -> AsyncIterator[str]:
    """Serve an endpoint that keeps sending headers but never finishes its response."""
    connections: list[asyncio.Task[None] | None] = []

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with closing(writer), suppress(ConnectionError):
            while True:
                writer.write(b"x-header: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.02)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.close()
        await asyncio.gather(*filter(None, connections))


def test_an_invalid_model_or_one_with_the_policys_name_is_rejected() -> None:
    with pytest.raises(InvalidModelError, match=r"models=\{'policy': ...\} uses the name"):
        ChatAgentEnv(asks_the_judge, models={"policy": Judge()})
    ChatAgentEnv(asks_the_judge, models={"policy": Judge()}, policy_names="student")
    wrong: list[Any] = ["gpt-4o", None, 5, object(), Judge]
    for model in wrong:
        with pytest.raises(InvalidModelError, match=r"models\['judge'\] is .*; expected a Message"):
            ChatAgentEnv(asks_the_judge, models={"judge": model})
