"""OpenEnv servers under evert: its template, its quick start, and other kinds of servers."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from rich.console import Console
from tests.kit import calling, free_port, play, reward, rewards

import evert
from evert import AgentError, ChatAgentEnv, EnvClosedError
from evert.bridge.import_paths import resolve
from evert.bridge.tokens.renderer import prompt_renderer
from evert.envs.games import GameError
from evert.envs.tasksets.openenv import OpenEnv, openenv

TEMPLATE = Path(find_spec("openenv.cli").origin).parent / "templates" / "openenv_env"
SERVERS = Path(__file__).with_name("openenv_servers.py")
NAMES = {
    "__ENV_NAME__": "words",
    "__ENV_CLASS_NAME__": "Words",
    "__ENV_TITLE_NAME__": "Words",
    "max_concurrent_envs=1": "max_concurrent_envs=2",
}
SEEDS = range(40)


def filled(text: str) -> str:
    for name, value in NAMES.items():
        text = text.replace(name, value)
    return text


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start ``openenv_servers.py``; yield its address."""
    folder = tmp_path_factory.mktemp("words")
    for path in TEMPLATE.rglob("*.py"):
        to = folder / filled(str(path.relative_to(TEMPLATE)))
        to.parent.mkdir(exist_ok=True)
        to.write_text(filled(path.read_text()))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(SERVERS), str(port)], cwd=folder, stdout=log, stderr=log
        )
    try:
        _await_answer(f"http://127.0.0.1:{port}/words/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the server ended with {process.poll()}, or never answered")


def words(seed: int) -> list[Any]:
    return ["Hello", "Hello, world", "", "x" * seed]


def echo(seed: int) -> list[Any]:
    return [("echo_message", {"message": "Hi"}), ("no_such_tool", {})]


def sums(seed: int) -> list[Any]:
    calls = [("add", {"a": 3, "b": seed}), ("add", {"a": "three"})]
    return [*calls, ("answer", {"number": seed % 19}), ("add", {"a": 0, "b": 0})]


def walk(seed: int) -> list[Any]:
    moves = [{"direction": "left"}, {"direction": "right", "steps": 1 + seed % 3}]
    return [("step", move) for move in moves * 4]


SCRIPTS = {"words": words, "echo": echo, "sums": sums, "walk": walk}


async def in_their_loop(url: str, name: str, seed: int) -> list[float]:
    """Return the rewards OpenEnv's clients see. The first one includes the reset's reward."""
    tools = name in ("echo", "sums")
    async with (MCPToolClient if tools else GenericEnvClient)(f"{url}/{name}") as env:
        results = [await env.reset(seed=seed)]
        for action in SCRIPTS[name](seed):
            if results[-1].done:
                break
            if name == "words":
                action = {"message": action}
            elif tools:
                action = CallToolAction(tool_name=action[0], arguments=action[1])
            else:
                action = action[1]
            results.append(await env.step(action))
    numbers = [result.reward or 0.0 for result in results]
    return [numbers[0] + numbers[1], *numbers[2:]]


async def under_evert(url: str, name: str, seed: int) -> list[float]:
    script = SCRIPTS[name](seed)
    agent = OpenEnv(f"{url}/{name}", "message" if name == "words" else "", len(script))
    replies = [
        reply if isinstance(reply, str) else calling(reply[0], **reply[1]) for reply in script
    ]
    return rewards(await play(agent, *replies, task=seed))


@pytest.mark.parametrize("name", SCRIPTS)
async def test_forty_episodes_earn_the_same_rewards_as_with_openenvs_own_client(
    root: str, name: str
) -> None:
    theirs = [await in_their_loop(root, name, seed) for seed in SEEDS]
    assert [await under_evert(root, name, seed) for seed in SEEDS] == [
        pytest.approx(numbers) for numbers in theirs
    ]
    assert len({str(numbers) for numbers in theirs}) > (1 if name != "echo" else 0)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_type_of_environment_is_trained_for_two_steps(
    root: str, name: str, tmp_path: Path
) -> None:
    run = evert.train(
        tasks=f"openenv:{root}/{name}", model_name="evert-tiny", steps=2, batch_size=1,
        group_size=2, max_tokens=8, test_tasks="", device="cpu",
        log_path=str(tmp_path / "run"), console=Console(quiet=True), **{"limits.max_turns": 2},
    )  # fmt: skip
    assert [row["step"] for row in run.steps()] == [0, 1]


async def test_the_policy_sees_the_servers_tools_and_their_results(root: str) -> None:
    requests: list[Any] = []

    class Client:
        """A client that records and forwards the agent's requests."""

        def __init__(self, client: Any) -> None:
            self.chat = self.completions = self
            self.client, self.reward = client, client.reward

        async def create(self, **request: Any) -> Any:
            requests.append({**request, "messages": [*request["messages"]]})
            return await self.client.chat.completions.create(**request)

    async def agent(client: Any, task: int) -> Any:
        return await OpenEnv(f"{root}/sums", "", 4)(Client(client), task)

    calls = [calling("add", a=3, b=4), calling("add", a="three"), calling("answer", number=7)]
    await play(agent, *calls, task=0)
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == ["add", "answer"]
    assert requests[0]["tools"][0]["function"]["parameters"]["required"] == ["a", "b"]
    assert requests[0]["messages"][0]["content"] == "metadata: question: 6 + 6?"
    added, failed = requests[1]["messages"][-1], requests[2]["messages"][-1]
    assert (added["role"], added["content"]) == ("tool", "7")
    assert failed["content"].startswith("Error: ")
    assert "three" in failed["content"]


async def test_a_reply_without_a_call_ends_the_episode_and_a_wrong_action_is_explained(
    root: str,
) -> None:
    agent = OpenEnv(f"{root}/walk", "", 9)
    wrong = [calling("step", direction="up"), calling("run")]
    trajectory = await play(agent, *wrong, "I give up.", task=1)
    assert rewards(trajectory) == [0.0, 0.0, 0.0]
    texts = [prompt_renderer(None).decode(turn.ob.to_ints()) for turn in trajectory.transitions]
    assert 'Error: $.direction: "up" is not one of "left" or "right"' in texts[1]
    assert "Error: there is no tool 'run'; call step" in texts[2]


async def test_several_calls_in_a_reply_are_several_actions(root: str) -> None:
    agent = OpenEnv(f"{root}/sums", "", 4)
    reply = "\n".join([calling("add", a=1, b=1), calling("answer", number=12), calling("add")])
    trajectory = await play(agent, reply, task=0)
    assert rewards(trajectory) == pytest.approx([1.1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mute", r"/mute gave no reward on reset .* set Observation\.reward to a number"),
        ("mutetools", r"/mutetools gave no reward on reset or within 8 actions"),
    ],
)
def test_an_environment_without_rewards_is_refused_before_a_run_starts(
    root: str, name: str, message: str
) -> None:
    with pytest.raises(GameError, match=message):
        openenv(f"{root}/{name}")
    openenv(f"{root}/{name}", probe=0)


def test_a_server_is_probed_once_even_if_a_command_makes_its_game_repeatedly(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, check = list[int](), OpenEnv.check

    async def counted(agent: OpenEnv, probe: int) -> None:
        probes.append(probe)
        await check(agent, probe)

    monkeypatch.setattr(OpenEnv, "check", counted)
    for _ in range(3):
        openenv(f"{root}/words", turns=99)
    assert probes == [8]


async def test_an_episode_that_ends_without_a_reward_is_an_error(root: str) -> None:
    with pytest.raises(AgentError, match="gave no reward until the end of an episode"):
        await play(OpenEnv(f"{root}/mute", "text"), *"abc", task=1)
    with pytest.raises(AgentError, match="the environment's own words"):
        await play(OpenEnv(f"{root}/mute", "text"), "raise", task=1)


async def test_a_reward_at_the_end_is_enough(root: str) -> None:
    agent = resolve(openenv(f"{root}/late").agent, "agent", GameError)
    assert agent == OpenEnv(f"{root}/late", "text")
    for seed in range(5):
        assert rewards(await play(agent, *"abc", task=seed)) == [0.0, 0.0, 1.0]


async def test_concurrent_episodes_have_sessions_until_a_server_is_full(root: str) -> None:
    agent = OpenEnv(f"{root}/words", "message", 2)
    pair = await asyncio.gather(*(play(agent, text, text, task=1) for text in ("a", "four")))
    assert [reward(trajectory) for trajectory in pair] == pytest.approx([0.2, 0.8])
    url = f"{root}/words"
    async with GenericEnvClient(url) as first, GenericEnvClient(url) as second:
        await first.reset()
        await second.reset()
        with pytest.raises(AgentError, match="failed during reset: .*parallel=1"):
            await play(agent, "a", "a", task=1)


SCHEMA = {"action": {"properties": {"message": {"type": "string"}}, "required": ["message"]}}
START = {"type": "observation", "data": {"observation": {"text": "Go."}, "reward": 0.0}}
HOSTILE = {
    "nothing": (None, r"failed during reset: ConnectionClosed.*1011"),
    "bytes": (b"\xff", "failed during reset: UnicodeDecodeError"),
    "text": ("no JSON", "failed during reset: JSONDecodeError"),
    "a list": ("[]", "failed during reset: AttributeError"),
    "too much": ("x" * (17 * 2**20), "failed during reset: ConnectionClosed.*1009"),
    "a reward in words": (
        json.dumps({"data": {"reward": "much"}}),
        "The reward passed to client.reward is 'much'",
    ),
    "the first answer alone": (json.dumps(START), r"it closed the connection \(1011\)"),
}


async def schemas(request: web.Request) -> web.Response:
    return web.json_response(SCHEMA)


@pytest.mark.parametrize("case", HOSTILE)
async def test_the_error_describes_a_hostile_servers_message(case: str) -> None:
    first, message = HOSTILE[case]

    async def answers(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        if isinstance(first, bytes):
            await socket.send_bytes(first)
        elif first is not None:
            await socket.send_str(first)
        await socket.close(code=1011)
        return socket

    app = web.Application()
    app.router.add_get("/ws", answers)
    app.router.add_get("/schema", schemas)
    async with TestServer(app) as server:
        agent = OpenEnv(str(server.make_url("")).rstrip("/"), "message")

        with pytest.raises(AgentError, match=message):
            await play(agent, "a", "a", task=1)


async def test_an_abandoned_episode_closes_its_session_even_if_the_server_is_silent() -> None:
    closed = asyncio.Event()

    async def waits(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        closed.set()
        return socket

    app = web.Application()
    app.router.add_get("/ws", waits)
    app.router.add_get("/schema", schemas)
    async with TestServer(app) as server:
        env = ChatAgentEnv(OpenEnv(str(server.make_url("")).rstrip("/"), "message"), 1)
        starting = asyncio.ensure_future(env.initial_observation())
        await asyncio.sleep(0.5)
        await env.close()
        with pytest.raises(EnvClosedError):
            await starting
        await closed.wait()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "is not a URL; expected one like http://HOST:8000"),
        ({"url": "http://127.0.0.1:9"}, "there is no OpenEnv server at this URL .* Start one"),
        ({"field": "massage"}, "no text field 'massage'. Did you mean message\\? Available: m"),
    ],
)
def test_an_unplayable_server_is_refused(root: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(GameError, match=message):
        openenv(**{"url": f"{root}/words", **given})
