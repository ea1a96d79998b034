"""An OpenEnv server under evert: the one whose files ``openenv init`` writes."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openenv.core.generic_client import GenericEnvClient
from tests.kit import play, reward, rewards

from evert import AgentError
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets.openenv import OpenEnv, openenv

TEMPLATE = Path(find_spec("openenv.cli").origin).parent / "templates" / "openenv_env"
NAMES = {
    "__ENV_NAME__": "words",
    "__ENV_CLASS_NAME__": "Words",
    "__ENV_TITLE_NAME__": "Words",
    "max_concurrent_envs=1": "max_concurrent_envs=2",
}
REPLIES = ["Hello", "Hello, world", "", "So long."]


def filled(text: str) -> str:
    for name, value in NAMES.items():
        text = text.replace(name, value)
    return text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that echoes, and pays a tenth for each sign."""
    folder = tmp_path_factory.mktemp("words")
    for path in TEMPLATE.rglob("*.py"):
        to = folder / filled(str(path.relative_to(TEMPLATE)))
        to.parent.mkdir(exist_ok=True)
        to.write_text(filled(path.read_text()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield _awaited(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait(20)


def _awaited(url: str, process: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        try:
            openenv(url)
        except GameError:
            time.sleep(0.2)
        else:
            return url
    raise AssertionError(f"the server ended with {process.poll()}, or never answered")


async def in_their_loop(url: str, replies: list[str]) -> list[float | None]:
    """Rewards by OpenEnv's own client."""
    async with GenericEnvClient(url) as env:
        await env.reset(seed=1)
        return [(await env.step({"message": reply})).reward for reply in replies]


async def test_replies_earn_at_their_turn_what_openenvs_own_client_is_given(server: str) -> None:
    agent = resolve(openenv(server, turns=4).agent, "agent", GameError)
    assert agent == OpenEnv(server, "message", 4)
    theirs = await in_their_loop(server, REPLIES)
    trajectory = await play(agent, *REPLIES, task=1)
    assert rewards(trajectory) == pytest.approx(theirs)
    assert reward(trajectory) == pytest.approx(2.5)
    assert trajectory.transitions[-1].metrics["stop/truncated"] == 1.0


async def test_episodes_at_once_have_a_session_each_and_a_full_server_says_so(server: str) -> None:
    agent = OpenEnv(server, "message", 2)
    pair = await asyncio.gather(*(play(agent, text, text, task=1) for text in ("a", "four")))
    assert [reward(trajectory) for trajectory in pair] == pytest.approx([0.2, 0.8])
    async with GenericEnvClient(server) as one, GenericEnvClient(server) as other:
        await one.reset()
        await other.reset()
        with pytest.raises(AgentError, match="The server refused reset .*parallel=1"):
            await play(agent, "a", "a", task=1)


async def test_a_server_that_closes_the_connection_is_said_with_its_code() -> None:
    async def closes(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close(code=1011)
        return socket

    app = web.Application()
    app.router.add_get("/ws", closes)
    async with TestServer(app) as server:
        agent = OpenEnv(str(server.make_url("")).rstrip("/"), "message")
        with pytest.raises(AgentError, match=r"closed the connection at reset \(code 1011\)"):
            await play(agent, "a", task=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "is not a URL; expected one like http://HOST:8000"),
        ({"url": "http://127.0.0.1:9"}, "no OpenEnv server answers there .* Start one"),
        ({"field": "massage"}, "no text 'massage'. Did you mean message\\? It has message"),
    ],
)
def test_what_cannot_be_played_is_said(server: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(GameError, match=message):
        openenv(**{"url": server, **given})
