"""``evert.mcp_tools``: agents use tools from MCP servers, which stop when the episode ends."""

import asyncio
import gc
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit import calling, free_port, play, reward

import evert
from evert import AgentClient, AgentError, ChatAgentEnv

SERVER = Path(__file__).with_name("mcp_server.py")
STDIO = [sys.executable, str(SERVER)]


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) == before
    assert [task for task in asyncio.all_tasks() if "evert" in task.get_name()] == []


@pytest.fixture
def url() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([*STDIO, str(port)], stderr=subprocess.DEVNULL)
    try:
        while not _answers(port):
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def agent_of(server: Any, seen: list[str] | None = None, **options: Any) -> Callable[..., Any]:
    """Return an agent that runs until the policy stops calling tools. Each call earns 1."""

    async def agent(client: AgentClient) -> float:
        tools = await evert.mcp_tools(server, **options)
        messages: list[Any] = [{"role": "user", "content": "Go on."}]
        calls = 0
        while True:
            completion = await client.chat.completions.create(messages=messages, tools=tools)
            message: Any = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return calls
            for call in message.tool_calls:
                text = await tools.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                calls += 1
                if seen is not None:
                    seen.append(text)

    return agent


async def check_calls(server: Any) -> None:
    seen: list[str] = []
    wrong = [calling("add", a="three", b=4), calling("fly")]
    trajectory = await play(agent_of(server, seen), calling("add", a=3, b=4), *wrong, "Done.")
    assert reward(trajectory) == 3.0
    assert seen[0] == "7"
    assert seen[1].startswith("Error:")
    assert "three" in seen[1] or "integer" in seen[1]
    assert seen[2] == "Error: there is no tool 'fly'. Available tools: add, die, sleep"


async def test_tools_of_a_stdio_server_are_offered_and_called() -> None:
    await check_calls(STDIO)


async def test_tools_of_an_http_server_are_offered_and_called(url: str) -> None:
    await check_calls(url)


async def test_concurrent_episodes_have_separate_sessions(url: str) -> None:
    for server in (STDIO, url):
        episodes = [play(agent_of(server), calling("add", a=n, b=1), "Done.") for n in range(3)]
        assert [reward(trajectory) for trajectory in await asyncio.gather(*episodes)] == [1.0] * 3


async def test_the_error_for_a_crashed_server_shows_its_last_output() -> None:
    death = calling("die", words="x" * 9000 + "The disk is full.")
    with pytest.raises(AgentError, match=r"The disk is full\.$"):
        await play(agent_of(STDIO), calling("add", a=1, b=1), death, "Done.")


async def test_the_error_for_a_server_that_fails_to_start_shows_its_output() -> None:
    with pytest.raises(AgentError, match="The server's own words: no configuration"):
        await play(agent_of([*STDIO, "0"]), "Done.")
    with pytest.raises(AgentError, match="No such file"):
        await play(agent_of(["no-such-program"]), "Done.")


async def test_a_dead_or_missing_http_server_is_an_error(url: str) -> None:
    with pytest.raises(AgentError, match=rf"The MCP server '{url}' failed"):
        await play(agent_of(url, timeout_s=5), calling("die", words="Bye."), "Done.")
    with pytest.raises(AgentError, match="failed"):
        await play(agent_of("http://127.0.0.1:9/mcp", timeout_s=5), "Done.")


async def test_a_tool_call_that_times_out_is_an_error() -> None:
    with pytest.raises(AgentError, match=r"TimeoutError"):
        await play(agent_of(STDIO, timeout_s=3), calling("sleep", seconds=60), "Done.")


@pytest.mark.parametrize("how", ["closed", "dropped", "while it starts", "deaf"])
async def test_an_abandoned_agent_leaves_no_server_running(how: str) -> None:
    deaf = [sys.executable, "-c", "import time; time.sleep(60)"]
    env = ChatAgentEnv(agent_of(deaf if how == "deaf" else STDIO))
    starting = asyncio.ensure_future(env.initial_observation())
    if how in ("while it starts", "deaf"):
        await asyncio.sleep(0.3)
        await env.close()
        with pytest.raises(evert.EnvClosedError):
            await starting
        return
    others = {*psutil.Process().children()}  # started by other tests, e.g. a fork server
    await starting
    [server] = {*psutil.Process().children()} - others
    if how == "closed":
        await env.close()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del env, starting
            gc.collect()
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("evert")]
        await asyncio.wait(tasks, timeout=20)
    assert not server.is_running()


async def test_outside_an_episode_the_caller_closes_the_session() -> None:
    tools = await evert.mcp_tools(STDIO)
    assert await tools.call("add", '{"a": 1, "b": 2}') == "3"
    for wrong in ("{", "[1]", "null", "[" * 100_000):
        answer = await tools.call("add", wrong)
        assert answer.startswith("Error: the arguments are not a JSON object: "), wrong
    await tools.close()
    await tools.close()


def test_a_sync_agent_can_open_a_session_in_its_own_event_loop() -> None:
    def agent(client: evert.BlockingAgentClient) -> float:
        async def whole() -> str:
            tools = await evert.mcp_tools(STDIO)
            return await tools.call("add", '{"a": 1, "b": 2}')

        client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return float(asyncio.run(whole()))

    assert reward(asyncio.run(play(agent))) == 3.0
