"""The models beside the policy: frozen ones, by name.

1. A Cookbook completer, a sampling client or a remote endpoint answers the calls to its name;
   they are no transitions.
2. It answers wherever the agent calls from: natively, blocking, over SDKs, by take-over.
3. What goes wrong reaches the agent that called; closing tells whoever waits.
4. What is no model, or has the policy's name, is refused when the Env is made.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
import tinker
from aiohttp import web
from tinker_cookbook.completers import MessageCompleter, StopCondition, TokenCompleter
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import (
    AgentClient,
    BlockingAgentClient,
    ChatAgentEnv,
    EnvClosedError,
    ScriptedPolicy,
)
from evert.bridge.errors import AgentError, InvalidModelError
from evert.bridge.models.remote import RemoteModel
from evert.bridge.tokens.bases import BASE_MODEL

HELLO: Any = [{"role": "user", "content": "Hello?"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'


class Judge(MessageCompleter):
    """Says what it was asked, in capitals."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.append(messages)
        return {"role": "assistant", "content": str(messages[-1]["content"]).upper()}


async def play(agent: Any, **options: Any) -> Trajectory:
    return await do_single_rollout(
        ScriptedPolicy(lambda prompt: "Policy."), ChatAgentEnv(agent, **options)
    )


async def ask(client: AgentClient, model: str, **fields: Any) -> Any:
    return await client.chat.completions.create(model=model, **{"messages": HELLO, **fields})


def content(completion: Any) -> str:
    return str(completion.choices[0].message.content)


# -- 1. kinds of models --------------------------------------------------------------------------


async def test_a_message_completer_answers_and_its_calls_are_no_transitions() -> None:
    judge = Judge()

    async def agent(client: AgentClient) -> float:
        assert content(await ask(client, "judge")) == "HELLO?"
        assert content(await ask(client, "policy")) == "Policy."
        assert content(await ask(client, "judge")) == "HELLO?"
        return 1.0

    trajectory = await play(agent, models={"judge": judge})

    assert len(trajectory.transitions) == 1
    assert judge.asked == [[{"role": "user", "content": "Hello?"}]] * 2


async def test_an_episode_of_frozen_calls_alone_has_no_transition() -> None:
    async def agent(client: AgentClient) -> float:
        return float(content(await ask(client, "judge")) == "HELLO?")

    result: Any = await ChatAgentEnv(agent, models={"judge": Judge()}).initial_observation()
    assert result.reward == 1.0


async def test_a_message_completer_takes_no_tools_and_says_what_does() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="takes no tools. Give the Env a Token"):
            await ask(client, "judge", tools=[TOOL])
        return 1.0

    await ChatAgentEnv(agent, models={"judge": Judge()}).initial_observation()


async def test_a_token_completer_is_read_with_the_envs_renderer() -> None:
    helper = ScriptedPolicy([f"{CALL}", "One. Two.", "Long enough to be cut."])
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.append(await ask(client, "other", tools=[TOOL]))
        got.append(await ask(client, "other", stop="Two"))
        got.append(await ask(client, "other", max_tokens=2))
        return 1.0

    await ChatAgentEnv(agent, models={"other": helper}).initial_observation()

    called, stopped, cut = got
    assert called.choices[0].message.tool_calls[0].function.name == "add"
    assert called.model == "other"
    assert content(stopped) == "One. "
    assert cut.choices[0].finish_reason == "length"
    assert [one.usage.completion_tokens for one in got] == [len(a) for a in helper.actions]
    assert "# Tools" in helper.prompts[0]


async def test_a_sampling_client_answers(tmp_path: Path) -> None:
    from evert.trainers.engine.embedded import embedded_engine

    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.append(await ask(client, "base", max_tokens=4))
        got.append(await asyncio.to_thread(in_thread, client.blocking))
        return 1.0

    def in_thread(client: BlockingAgentClient) -> Any:
        return client.openai_sync.chat.completions.create(
            model="base", messages=HELLO, max_tokens=4
        )

    with embedded_engine(tmp_path / "store", device="cpu"):
        sampler = tinker.ServiceClient().create_sampling_client(base_model=BASE_MODEL)
        await ChatAgentEnv(agent, models={"base": sampler}).initial_observation()

    assert len(got) == 2
    assert all(1 <= one.usage.completion_tokens <= 4 for one in got)


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
AS_OBJECT: Any = {"response_format": {"type": "json_object"}}
AS_SCHEMA: Any = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
}


async def test_a_completer_is_told_the_format_of_the_reply() -> None:
    judge, other = Judge(), ScriptedPolicy(["{}"])

    async def agent(client: AgentClient) -> float:
        await ask(client, "judge", **AS_OBJECT)
        await ask(client, "other", **AS_OBJECT)
        return 1.0

    models: dict[str, Any] = {"judge": judge, "other": other}
    await ChatAgentEnv(agent, models=models).initial_observation()

    assert judge.asked[0][-1]["content"] == "Answer with one JSON object and nothing else."
    assert "Answer with one JSON object and nothing else." in other.prompts[0]


class Remote:
    """A loopback endpoint that speaks OpenAI's chat completions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.url = ""
        self.message: dict[str, Any] = {"role": "assistant", "content": "Remote."}
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.headers["authorization"], await request.json()))
        if self.status != 200:
            error = {"message": "No such key.", "type": "t", "param": None, "code": "bad_key"}
            return web.json_response({"error": error}, status=self.status)
        choice = {"index": 0, "finish_reason": "stop", "message": self.message}
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        return web.json_response({**whole, "choices": [choice], "usage": usage})


@pytest_asyncio.fixture
async def remote() -> AsyncIterator[Remote]:
    server = Remote()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()


async def test_a_remote_model_is_asked_with_the_fields_that_count(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    model = RemoteModel("gpt-judge", remote.url, "JUDGE_KEY")

    async def agent(client: AgentClient) -> float:
        completion = await ask(
            client, "judge", tools=[TOOL], max_tokens=7, stop="END", temperature=0.5, seed=1
        )
        assert content(completion) == "Remote."
        assert completion.usage.prompt_tokens == 5
        assert completion.usage.completion_tokens == 6
        return 1.0

    result: Any = await ChatAgentEnv(agent, models={"judge": model}).initial_observation()

    assert result.reward == 1.0
    assert remote.asked == [
        (
            "Bearer secret",
            {
                "model": "gpt-judge",
                "messages": HELLO,
                "tools": [TOOL],
                "max_completion_tokens": 7,
                "stop": ["END"],
            },
        )
    ]
    assert "secret" not in repr(model)


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "add"}}
FORMATS: dict[str, tuple[Any, Any]] = {
    "json_object": (AS_OBJECT, AS_OBJECT),
    "json_schema": (
        AS_SCHEMA,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": SCHEMA},
            }
        },
    ),
    "a tool": ({"tools": [TOOL, LOOK], "tool_choice": NAMED}, {"tool_choice": NAMED}),
    "any tool": ({"tools": [TOOL, LOOK], "tool_choice": "required"}, {"tool_choice": "required"}),
    "nothing": ({"tools": [TOOL], "tool_choice": "auto"}, {}),
}


@pytest.mark.parametrize(("fields", "expected"), FORMATS.values(), ids=FORMATS)
async def test_a_remote_model_is_asked_for_the_format_by_its_own_fields(
    remote: Remote, fields: Any, expected: Any
) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, "judge", **fields)
        return 1.0

    models = {"judge": RemoteModel("m", remote.url)}
    await ChatAgentEnv(agent, models=models).initial_observation()

    [(_, sent)] = remote.asked
    for name in ("response_format", "tool_choice"):
        assert sent.get(name) == expected.get(name)


async def test_the_tool_calls_and_the_reasoning_of_a_remote_model_are_kept(remote: Remote) -> None:
    call = {"id": "c7", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    remote.message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [call],
    }

    async def agent(client: AgentClient) -> float:
        message: Any = (await ask(client, "judge", tools=[TOOL])).choices[0].message
        assert message.reasoning_content == "Hm."
        assert [one.id for one in message.tool_calls] == ["c7"]
        history = [*HELLO, message, {"role": "tool", "tool_call_id": "c7", "content": "5"}]
        await ask(client, "judge", messages=history)
        return 1.0

    models = {"judge": RemoteModel("m", remote.url)}
    await ChatAgentEnv(agent, models=models).initial_observation()

    _, sent = remote.asked[1]
    assert sent["messages"][1]["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("status", "error"), [(401, openai.AuthenticationError), (404, openai.NotFoundError)]
)
async def test_a_remote_models_own_refusal_reaches_the_agent(
    remote: Remote, status: int, error: type[openai.APIStatusError]
) -> None:
    remote.status = status

    async def agent(client: AgentClient) -> float:
        with pytest.raises(error) as caught:
            await ask(client, "judge")
        assert caught.value.code == "bad_key"
        with pytest.raises(error) as caught:
            await client.openai.chat.completions.create(model="judge", messages=HELLO)
        assert caught.value.code == "bad_key"
        return 1.0

    models = {"judge": RemoteModel("m", remote.url)}
    await ChatAgentEnv(agent, models=models).initial_observation()


# -- 2. from wherever the agent calls ------------------------------------------------------------


async def natively(client: AgentClient) -> str:
    return content(await ask(client, "judge"))


async def blocking(client: AgentClient) -> str:
    create = client.blocking.chat.completions.create
    return content(await asyncio.to_thread(create, model="judge", messages=HELLO))


async def over_chat(client: AgentClient) -> str:
    return content(
        await client.openai.chat.completions.create(model="judge", messages=HELLO, stream=False)
    )


async def over_responses(client: AgentClient) -> str:
    async with client.openai.responses.stream(model="judge", input="Hello?") as stream:
        return (await stream.get_final_response()).output_text


async def over_anthropic(client: AgentClient) -> str:
    said: Any = await client.anthropic.messages.create(model="judge", messages=HELLO, max_tokens=99)
    return str(said.content[0].text)


async def by_take_over(client: AgentClient) -> str:
    async with openai.AsyncOpenAI(api_key="x") as sdk:
        return content(await sdk.chat.completions.create(model="judge", messages=HELLO))


def _own_client() -> str:
    with openai.OpenAI(api_key="x") as sdk:
        return content(sdk.chat.completions.create(model="judge", messages=HELLO))


async def by_take_over_in_a_thread(client: AgentClient) -> str:
    return await asyncio.to_thread(_own_client)


WAYS = [
    natively,
    blocking,
    over_chat,
    over_responses,
    over_anthropic,
    by_take_over,
    by_take_over_in_a_thread,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_frozen_model_answers_from_everywhere(way: Callable[..., Any]) -> None:
    async def agent(client: AgentClient) -> float:
        return float(await way(client) == "HELLO?")

    result: Any = await ChatAgentEnv(agent, models={"judge": Judge()}).initial_observation()
    assert result.reward == 1.0


async def test_a_plain_agent_may_call_it_too() -> None:
    def agent(client: BlockingAgentClient) -> float:
        said = content(client.chat.completions.create(model="judge", messages=HELLO))
        return float(said == "HELLO?" == _own_client())

    result: Any = await ChatAgentEnv(agent, models={"judge": Judge()}).initial_observation()
    assert result.reward == 1.0


async def test_frozen_models_answer_while_the_policy_is_asked() -> None:
    async def agent(client: AgentClient) -> float:
        said = await asyncio.gather(
            *(ask(client, model) for model in ["policy", "judge", "policy", "judge"])
        )
        return float([*map(content, said)] == ["Policy.", "HELLO?"] * 2)

    trajectory = await play(agent, models={"judge": Judge()})

    assert len(trajectory.transitions) == 2
    assert trajectory.transitions[-1].reward == 1.0


async def test_the_names_are_listed() -> None:
    async def agent(client: AgentClient) -> float:
        names = [model.id async for model in client.openai.models.list()]
        return float(names == ["policy", "judge"])

    result: Any = await ChatAgentEnv(agent, models={"judge": Judge()}).initial_observation()
    assert result.reward == 1.0


# -- 3. what goes wrong --------------------------------------------------------------------------


class Broken(MessageCompleter):
    async def __call__(self, messages: list[Message]) -> Message:
        raise LookupError("The judge is out.")


class Stuck(MessageCompleter):
    """Never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = False

    async def __call__(self, messages: list[Message]) -> Message:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


@pytest.mark.parametrize("way", [natively, blocking], ids=lambda way: way.__name__)
async def test_an_error_of_a_frozen_model_reaches_the_agent(way: Callable[..., Any]) -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(LookupError, match="The judge is out"):
            await way(client)
        return 1.0

    result: Any = await ChatAgentEnv(agent, models={"judge": Broken()}).initial_observation()
    assert result.reward == 1.0


@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
async def test_closing_tells_whoever_waits_for_a_frozen_model(sync: bool) -> None:
    stuck = Stuck()
    told: list[BaseException] = []

    async def agent(client: AgentClient) -> float:
        try:
            await ask(client, "judge")
        except BaseException as error:
            told.append(error)
            raise
        return 1.0

    def plain(client: BlockingAgentClient) -> float:
        try:
            client.chat.completions.create(model="judge", messages=HELLO)
        except BaseException as error:
            told.append(error)
            raise
        return 1.0

    env = ChatAgentEnv(plain if sync else agent, models={"judge": stuck})
    observing = asyncio.create_task(env.initial_observation())
    await stuck.asked.wait()
    await env.close()
    with pytest.raises(EnvClosedError):
        await observing

    assert stuck.cancelled
    assert not env.is_running
    assert len(told) == 1
    assert isinstance(told[0], EnvClosedError | asyncio.CancelledError)


async def test_a_frozen_call_that_the_agent_leaves_behind_is_cancelled() -> None:
    stuck = Stuck()

    async def agent(client: AgentClient) -> float:
        left = asyncio.create_task(ask(client, "judge"))
        await stuck.asked.wait()
        left.cancel()
        return 1.0

    result: Any = await ChatAgentEnv(agent, models={"judge": stuck}).initial_observation()
    await asyncio.sleep(0)

    assert result.reward == 1.0
    assert stuck.cancelled


async def test_a_name_that_nobody_has_is_the_policys_where_there_is_nothing_else() -> None:
    """Agents name the model they were written for."""

    async def agent(client: AgentClient) -> float:
        return float(content(await ask(client, "gpt-4o")) == "Policy.")

    trajectory = await play(agent)
    assert trajectory.transitions[-1].reward == 1.0


async def test_a_mistyped_name_beside_other_models_is_a_400_with_the_nearest_one() -> None:
    async def agent(client: AgentClient) -> float:
        for each in (client, client.openai):
            with pytest.raises(openai.BadRequestError, match="Did you mean 'judge'") as caught:
                await ask(each, "jugde")  # type: ignore[arg-type]
            assert caught.value.code == "model_not_found"
        return float(content(await ask(client, "policy")) == "Policy.")

    trajectory = await play(agent, models={"judge": Judge()})
    assert len(trajectory.transitions) == 1
    assert trajectory.transitions[-1].reward == 1.0


# -- 4. what is refused --------------------------------------------------------------------------


async def agent_of_none(client: AgentClient) -> float:
    return 0.0


def test_the_policys_own_name_is_refused() -> None:
    with pytest.raises(InvalidModelError, match=r"models=\{'policy': ...\} has the policy's own"):
        ChatAgentEnv(agent_of_none, models={"policy": Judge()})
    ChatAgentEnv(agent_of_none, models={"policy": Judge()}, policy_names="student")


@pytest.mark.parametrize("model", ["gpt-4o", None, 5, object(), Judge])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(InvalidModelError, match=r"models\['judge'\] is .*; expected a Message"):
        ChatAgentEnv(agent_of_none, models={"judge": model})


def test_a_completer_of_the_users_own_is_a_model() -> None:
    class Own(TokenCompleter):
        async def __call__(
            self,
            model_input: tinker.ModelInput,
            stop: StopCondition,
            *,
            max_tokens: int | None = None,
        ) -> Any:
            raise NotImplementedError

    ChatAgentEnv(agent_of_none, models={"own": Own()})


# -- 5. clocks, ends and ids -----------------------------------------------------------------------


class Slow(MessageCompleter):
    """Takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, messages: list[Message]) -> Message:
        await asyncio.sleep(self._seconds)
        return {"role": "assistant", "content": "At last."}


async def test_a_judges_time_is_not_the_agents() -> None:
    async def agent(client: AgentClient) -> float:
        for _ in range(4):
            await ask(client, "judge")
        await ask(client, "policy")
        return 1.0

    trajectory = await play(agent, models={"judge": Slow(0.2)}, agent_timeout=0.4)
    assert trajectory.transitions[-1].reward == 1.0


class Stubborn(Slow):
    """Takes no notice of being cancelled, either."""

    async def __call__(self, messages: list[Message]) -> Message:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await super().__call__(messages)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("judge", [Slow(60), Stubborn(60)], ids=["slow", "stubborn"])
async def test_a_frozen_model_that_never_replies_is_an_error_that_names_it(
    sync: bool, judge: Slow
) -> None:
    async def asks(client: AgentClient) -> float:
        await ask(client, "judge")
        return 1.0

    def asks_in_a_thread(client: BlockingAgentClient) -> float:
        client.chat.completions.create(model="judge", messages=HELLO)
        return 1.0

    agent = asks_in_a_thread if sync else asks
    with pytest.raises(AgentError, match="'judge' gave no reply within 0.05 s") as caught:
        await play(agent, models={"judge": judge}, model_timeout=0.05, agent_timeout=0.01)

    cause = caught.value.__cause__
    assert isinstance(cause, openai.BadRequestError)
    assert cause.code == "model_timeout"


async def test_a_remote_model_that_never_replies_has_a_time_limit_of_its_own() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, "far")
        return 1.0

    async with dripping() as url:
        model = RemoteModel("far-away", url, timeout=0.2)
        with pytest.raises(AgentError, match="'far' gave no reply within 0.2 s"):
            await play(agent, models={"far": model}, model_timeout=None)


@asynccontextmanager
async def dripping() -> AsyncIterator[str]:
    """The address of a server that sends a header now and then, and never an answer."""
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


async def test_a_straggler_that_waits_for_a_judge_is_told_that_the_episode_is_over() -> None:
    told: list[str] = []
    stragglers: list[asyncio.Task[None]] = []

    async def agent(client: AgentClient) -> float:
        async def straggle() -> None:
            try:
                await ask(client, "judge")
            except Exception as error:
                told.append(type(error).__name__)

        stragglers.append(asyncio.create_task(straggle()))
        await ask(client, "policy")
        return 1.0

    await play(agent, models={"judge": Slow(60)})
    await asyncio.gather(*stragglers)
    assert told == ["EpisodeEndedError"]


async def test_tool_calls_of_a_frozen_model_have_ids_of_their_own() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    ids: list[str] = []

    async def agent(client: AgentClient) -> float:
        for _ in range(3):
            completion = await ask(client, "helper", tools=tools)
            ids.append(completion.choices[0].message.tool_calls[0].id)
        await ask(client, "policy")
        return 1.0

    await play(agent, models={"helper": ScriptedPolicy(lambda prompt: call)})
    assert len(set(ids)) == 3
