"""Features specific to one SDK. ``test_sdks.py`` tests what they have in common."""

import asyncio
import contextvars
import gc
import importlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Any

import anthropic
import lm15
import openai
import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel
from tests.bridge.clients.conftest import LONG, assert_one_lineage
from tests.bridge.clients.genai_calls import assert_genai_typed, genai_events, genai_whole
from tests.bridge.clients.sdk_calls import LM15
from tests.kit import Patch, as_agent, asks, calling, play, play_without_a_call, reward, start, user

from evert import AgentClient, BlockingAgentClient, ScriptedPolicy
from evert.bridge.errors import MissingPackageError
from evert.bridge.tokens.bases import base_tokenizer

CALLS = f"{calling('add', x=1)}\n{calling('add', x=2, why='it')}"


def tokens_of(response: types.GenerateContentResponse) -> list[tuple[Any, Any]]:
    assert_genai_typed(response)
    [candidate] = response.candidates or []
    result = candidate.logprobs_result
    chosen = (result and result.chosen_candidates) or []
    return [(candidate.token, candidate.log_probability) for candidate in chosen]


@as_agent(LONG, LONG)
async def test_googles_log_probabilities_are_those_of_the_sampled_tokens(
    client: AgentClient,
) -> None:
    tokens = tokens_of(await genai_whole(client, response_logprobs=True))
    *earlier, last = await genai_events(client, response_logprobs=True)
    assert tokens[-1] == ("<|im_end|>", -1.0)
    assert {logprob for _, logprob in tokens} == {-1.0}
    assert tokens_of(last) == tokens
    assert not any(map(tokens_of, earlier))


async def test_anthropics_async_tool_runner_works() -> None:
    @anthropic.beta_async_tool
    async def add(x: int) -> str:
        """Add one."""
        return str(x + 1)

    messages: Any = [user("1 + 1?")]

    async def agent(client: AgentClient) -> float:
        runner = client.anthropic.beta.messages.tool_runner(
            model=client.model, max_tokens=100, tools=[add], messages=messages
        )
        message = await runner.until_done()
        return float(message.content[0].type == "text" and message.content[0].text == "It is 2.")

    trajectory = await play(agent, calling("add", x=1), "It is 2.")
    assert [turn.reward for turn in trajectory.transitions] == [0.0, 1.0]
    assert_one_lineage(trajectory)


class Sum(BaseModel):
    x: int
    of: list[int] = []


class Word(Enum):
    YES = "yes"
    NO = "no"


async def test_googles_sdk_calls_functions_automatically() -> None:
    arguments: list[tuple[int, str]] = []

    def add(x: int, why: str = "so") -> int:
        """Add one."""
        arguments.append((x, why))
        return x + 1

    async def agent(client: AgentClient) -> bool:
        chat = client.genai.aio.chats.create(model=client.model, config={"tools": [add]})
        return (await chat.send_message("What comes after 1 and 2?")).text == "2 and 3."

    trajectory = await play(agent, CALLS, "2 and 3.")
    assert trajectory.transitions[-1].reward == 1.0
    assert arguments == [(1, "so"), (2, "it")]
    assert_one_lineage(trajectory, drift="retokenised")
    assert '{"result": 2}' in base_tokenizer().decode(trajectory.transitions[1].ob.to_ints())


async def test_googles_response_schema_returns_the_agents_class() -> None:
    rows: list[tuple[dict[str, Any], str, Any]] = [
        ({"response_schema": Sum}, '{"x": 1, "of": [2]}', Sum(x=1, of=[2])),
        ({"response_schema": list[Sum]}, '```json\n[{"x": 1}]\n```', [Sum(x=1)]),
        ({"response_json_schema": Sum.model_json_schema()}, '{"x": 3}', {"x": 3}),
        ({"response_schema": Word}, '"yes"', Word.YES),
    ]

    async def agent(client: AgentClient) -> float:
        json_mode: dict[str, Any] = {"response_mime_type": "application/json", "tools": None}
        for config, _, parsed in rows:
            assert (await genai_whole(client, **config, **json_mode)).parsed == parsed
        assert json.loads((await genai_whole(client, **json_mode)).text) == [1, "two"]
        return 1.0

    trajectory = await play(agent, *[reply for _, reply, _ in rows], '[1, "two"]')
    assert len(trajectory.transitions) == 5


async def test_the_error_for_an_unknown_model_lists_the_models() -> None:
    async def agent(client: AgentClient) -> float:
        models = client.genai.aio.models
        listed = [model.name async for model in await models.list()]
        assert listed == ["models/org/policy", "models/judge"]
        assert (await models.get(model=client.model)).name == "models/org/policy"
        with pytest.raises(errors.ClientError, match="There is no model 'gemini-2.5-fl") as caught:
            await models.get(model="gemini-2.5-flash")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
        with pytest.raises(openai.NotFoundError, match="models: org/policy, judge") as refusal:
            await client.openai.models.retrieve("gpt-5.2")
        assert refusal.value.code == "model_not_found"
        assert (await client.openai.models.retrieve("judge")).id == "judge"
        assert [model.id async for model in client.openai.models.list()] == ["org/policy", "judge"]
        with pytest.raises(errors.ClientError, match="Did you mean 'judge'"):
            await models.generate_content(model="jugde", contents="Hi")
        assert (await models.generate_content(model="judge", contents="Hi")).text == "Well."
        return 1.0

    judge = ScriptedPolicy(["Well."])
    await play_without_a_call(agent, policy_names="org/policy", models={"judge": judge})


async def test_client_genai_is_googles_own_client_and_leaves_no_tasks(monkeypatch: Patch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://elsewhere.invalid")
    monkeypatch.setenv("HTTPS_PROXY", "http://elsewhere.invalid")

    async def agent(client: AgentClient) -> bool:
        assert type(client.genai) is genai.Client
        assert client.genai is client.genai
        assert not client.genai.vertexai
        return bool((await genai_whole(client)).text == LONG)

    assert reward(await play(agent, LONG)) == 1.0
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@as_agent()
async def test_the_error_for_a_missing_package_has_the_install_command(
    client: AgentClient, monkeypatch: Patch
) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    with pytest.raises(MissingPackageError, match="pip install google-genai"):
        _ = client.genai


async def test_a_router_with_the_clients_transport_needs_no_context_variables() -> None:
    """The thread that makes the calls starts before the agent, as in some frameworks."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result()

        async def agent(client: AgentClient) -> bool:
            options: Any = {"model": "gpt-5.2", "transport": client.transport}
            outside: Any = contextvars.Context()
            texts: list[Any] = []
            for router in LM15.values():
                pending = outside.run(pool.submit, partial(router.ask_blocking, "Hi", **options))
                texts += [await asyncio.wrap_future(pending), await router.ask("Hi", **options)]
            return texts == ["Fine."] * 6

        assert reward(await play(agent)) == 1.0


@pytest.fixture
def not_imported() -> Iterator[None]:
    """Make lm15 look as if it had not been imported yet."""
    names = [name for name in sys.modules if name.partition(".")[0] == "lm15"]
    modules = {name: sys.modules.pop(name) for name in names}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm15"]:
        del sys.modules[name]
    sys.modules.update(modules)


@pytest.mark.usefixtures("not_imported")
async def test_evert_never_imports_lm15_but_works_if_an_agent_does() -> None:
    async def agent() -> bool:
        assert "lm15" not in sys.modules
        fresh: Any = importlib.import_module("lm15")
        assert fresh is not lm15
        messages = (fresh.Message.user("Hello?"),)
        config = fresh.router.RouterConfig(env={"OPENAI_API_KEY": "x"})
        async with fresh.AsyncLMRouter(config) as router:
            request = fresh.Request(model="openai-chat:policy", messages=messages)
            return str((await router.complete(request)).text) == "Fine."

    await play(asks)
    assert reward(await play(agent)) == 1.0


async def test_an_abandoned_rollout_answers_waiting_lm15_calls() -> None:
    refusals: list[lm15.InvalidRequestError] = []

    def agent(client: BlockingAgentClient) -> float:
        try:
            LM15["openai-chat"].ask_blocking("Hi", transport=client.transport)
        except lm15.InvalidRequestError as error:
            refusals.append(error)
        return 0.0

    env = await start(agent)
    await env.close()
    assert ["was closed: this rollout is over" in str(error) for error in refusals] == [True]
