"""Measure the overhead of a model call for each type of client, without a model.

In process, microseconds per call of the real OpenAI SDK in a growing conversation:

    nothing    the SDK with a transport that replies immediately: the cost of the SDK itself
    evert      the SDK with evert's transport, including the Cookbook's runner and the policy
    echo       the SDK against an HTTP server in another process that returns a fixed response

Over HTTP, milliseconds per conversation with the same aiohttp client, renderer and replies:

    evert      evert's loopback server, including the Cookbook's runner
    cookbook   the Cookbook's chat proxy

Finally, the benchmark plays 1,000 concurrent rollouts over HTTP. Lost or mixed-up calls are errors.
Files, threads and tasks left over at the end are counted.

    python benchmarks/faces.py [--quick] [--sdk-turns 1 3 10] [--turns 10 100] [--repeats 5]
                               [--rollouts 1000]

Rows show the median over the repeats; the spread is (max - min) / median.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import openai
import psutil
from aiohttp import web
from rich.console import Console
from rich.table import Table
from tinker_cookbook.capture.proxy.app import ProxyDeps, make_app
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.clients.dialects.api import ApiResponse
from evert.bridge.clients.httpx_transport import response_for
from evert.bridge.tokens.bases import default_renderer

SYSTEM = "You are a player in a game of questions. Ask one question at a time, and keep it short."
REPLY = "Is it something that people keep in the kitchen?"
FEEDBACK = "No, it is not, think of a place where people go to work instead."

WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "created": 0,
    "model": "policy",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": REPLY},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
BODY = json.dumps(WHOLE).encode()


# -- in process ------------------------------------------------------------------------------------


class Scripted(TokenCompleter):
    """A policy that always samples the same pre-tokenized text."""

    def __init__(self, text: str = REPLY) -> None:
        tokens = default_renderer().tokenizer.encode(f"{text}<|im_end|>")
        self._answer = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-1.0] * len(tokens))

    async def __call__(self, *_: Any, **__: Any) -> TokensWithLogprobs:
        """Return the reply."""
        return self._answer


class Nothing:
    """A transport that replies immediately."""

    async def handle_async_request(self, request: Any) -> Any:
        """Return the same response for every request."""
        await request.aread()
        return response_for(request, ApiResponse(200, BODY))

    async def aclose(self) -> None:
        """Do nothing."""

    async def __aenter__(self) -> "Nothing":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


async def converse(client: openai.AsyncOpenAI, turns: int) -> float:
    """Have a conversation; return the seconds spent in calls."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    spent = 0.0
    for _ in range(turns):
        start = time.perf_counter()
        completion = await client.chat.completions.create(model="policy", messages=messages)
        spent += time.perf_counter() - start
        reply = completion.choices[0].message.content
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": FEEDBACK},
        ]
    return spent


async def over_nothing(turns: int, url: str) -> float:
    """Measure the cost of the SDK itself."""
    transport: Any = Nothing()
    http = openai.DefaultAsyncHttpxClient(transport=transport, trust_env=False)
    async with openai.AsyncOpenAI(api_key="x", base_url="http://x/v1", http_client=http) as client:
        return await converse(client, turns)


async def over_evert(turns: int, url: str) -> float:
    """Play an episode; return the seconds that the agent spent in calls."""
    spent = 0.0

    async def agent(client: AgentClient) -> float:
        nonlocal spent
        spent = await converse(client.openai, turns)
        return 0.0

    await do_single_rollout(Scripted(), ChatAgentEnv(agent))
    return spent


async def over_echo(turns: int, url: str) -> float:
    """Measure the same SDK over loopback HTTP."""
    async with openai.AsyncOpenAI(api_key="x", base_url=url) as client:
        await converse(client, 1)  # connect
        return await converse(client, turns)


def echo_server(port: Any) -> None:
    """Serve the same response for every request. Runs in a separate process."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=BODY, content_type="application/json")

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


# -- over HTTP -------------------------------------------------------------------------------------


async def chat(session: aiohttp.ClientSession, url: str, key: str, turns: int, text: str) -> None:
    """Have a conversation with a plain HTTP client, and check that the replies belong to it."""
    headers = {"authorization": f"Bearer {key}"}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    for _ in range(turns):
        body = {"model": "policy", "messages": messages, "max_tokens": 64}
        async with session.post(f"{url}/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
        content = answer["choices"][0]["message"]["content"]
        if not content.endswith(text):
            raise RuntimeError(f"the rollout of {text!r} received {content!r}")
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": FEEDBACK},
        ]


async def http_evert(turns: int) -> float:
    """Return the duration of a conversation over evert's loopback server."""
    spent = 0.0

    async def agent(client: AgentClient) -> float:
        nonlocal spent
        async with aiohttp.ClientSession() as session:
            start = time.perf_counter()
            await chat(session, client.base_url, client.api_key, turns, "one")
            spent = time.perf_counter() - start
        return 0.0

    await do_single_rollout(Scripted(f"{REPLY} one"), ChatAgentEnv(agent))
    return spent


class Sampling:
    """Makes the scripted policy a sampling client for the Cookbook's proxy."""

    def __init__(self) -> None:
        renderer = default_renderer()
        self._tokens = renderer.tokenizer.encode(f"{REPLY} one<|im_end|>")

    async def sample_async(self, **_: Any) -> Any:
        """Return the same tokens."""
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=self._tokens, stop_reason="stop")])


async def http_cookbook(turns: int) -> float:
    """Return the duration of the same conversation over the Cookbook's chat proxy."""
    deps = ProxyDeps(default_renderer(), Sampling(), "policy")  # type: ignore[arg-type]
    runner = web.AppRunner(make_app(deps), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    async with aiohttp.ClientSession() as session:
        start = time.perf_counter()
        await chat(session, url, "x", turns, "one")
        spent = time.perf_counter() - start
    await runner.cleanup()
    return spent


async def many(rollouts: int, turns: int = 3) -> dict[str, float]:
    """Play concurrent rollouts over HTTP; return the seconds and what is left afterwards."""
    process = psutil.Process()
    connector = aiohttp.TCPConnector(limit=0)

    async def agent(client: AgentClient, task: str) -> float:
        await chat(session, client.base_url, client.api_key, turns, task)
        return 1.0

    async def one(number: int) -> int:
        task = f"rollout {number}."
        policy = ScriptedPolicy(lambda prompt: f"{REPLY} {_asked(prompt)}")
        trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, task))
        return len(trajectory.transitions)

    def _asked(prompt: str) -> str:
        return "rollout" + prompt.split("rollout")[1].split(".")[0] + "."

    before = process.num_fds(), process.num_threads()
    start = time.perf_counter()
    async with aiohttp.ClientSession(connector=connector) as session:
        lengths = await asyncio.gather(*map(one, range(rollouts)))
    seconds = time.perf_counter() - start
    await asyncio.sleep(0.3)
    if lengths != [turns] * rollouts:
        raise RuntimeError("a rollout lost a call")
    after = process.num_fds(), process.num_threads()
    return {
        "seconds": seconds,
        "files left": after[0] - before[0],
        "threads left": after[1] - before[1],
        "tasks left": len(asyncio.all_tasks()) - 1,
    }


# -- the tables ------------------------------------------------------------------------------------


Measure = Callable[[], Awaitable[float]]


async def alternate(rows: dict[str, Measure], repeats: int) -> dict[str, list[float]]:
    """Interleave the measurements so that background load affects all rows equally."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(repeats + 1):  # the first repeat is a warm-up
        for name, measure in rows.items():
            seconds = await measure()
            if number:
                times[name].append(seconds)
    return times


def show(title: str, unit: float, columns: dict[str, dict[str, list[float]]]) -> Table:
    """Return a table of medians, spreads and ratios to evert, with one column per length."""
    table = Table(title=title)
    table.add_column("row")
    for column in columns:
        table.add_column(column, justify="right")
    for name in next(iter(columns.values())):
        cells = []
        for times in columns.values():
            median = statistics.median(times[name])
            spread = (max(times[name]) - min(times[name])) / median
            ratio = median / statistics.median(times["evert"])
            cells.append(f"{median * unit:,.1f} ±{spread:.0%}  x{ratio:.2f}")
        table.add_row(name, *cells)
    return table


async def run(options: argparse.Namespace, url: str, console: Console) -> None:
    """Run all measurements and print the results."""
    sdk: dict[str, dict[str, list[float]]] = {}
    for turns in options.sdk_turns:
        count = max(1, options.calls // turns)

        def calls(over: Callable[[int, str], Awaitable[float]], turns: int, count: int) -> Measure:
            async def measure() -> float:
                seconds = [await over(turns, url) for _ in range(count)]
                return sum(seconds) / (count * turns)

            return measure

        rows = {"nothing": over_nothing, "evert": over_evert, "echo": over_echo}
        measures = {name: calls(over, turns, count) for name, over in rows.items()}
        sdk[f"{turns} turns"] = await alternate(measures, options.repeats)
    console.print(show("One OpenAI SDK call, microseconds (ratio to evert)", 1e6, sdk))
    for column, times in sdk.items():
        share = statistics.median(times["evert"]) - statistics.median(times["nothing"])
        console.print(f"added by evert at {column}: {share * 1e6:.0f} us")

    http: dict[str, dict[str, list[float]]] = {}
    for turns in options.turns:
        repeats = max(options.repeats, 100 // turns)
        conversations: dict[str, Measure] = {
            "evert": partial(http_evert, turns),
            "cookbook": partial(http_cookbook, turns),
        }
        http[f"{turns} turns"] = await alternate(conversations, repeats)
    console.print(show("A conversation over HTTP, milliseconds (ratio to evert)", 1e3, http))

    left = await many(options.rollouts)
    found = ", ".join(f"{name} {value:.4g}" for name, value in left.items())
    console.print(f"{options.rollouts} concurrent rollouts of 3 turns over HTTP: {found}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sdk-turns", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=500, help="calls per repeat")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="two repeats, few calls and rollouts")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.calls, options.rollouts = 2, 100, 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * options.rollouts + 500  # both ends of each connection are in this process
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
    port: Any = multiprocessing.Queue()
    server = multiprocessing.Process(target=echo_server, args=(port,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{port.get(timeout=60)}/v1"
        asyncio.run(run(options, url, Console()))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
