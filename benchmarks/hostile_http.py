"""Attack the loopback server with hostile HTTP while rollouts use it.

    python benchmarks/hostile_http.py [--quick] [--requests 10000] [--idle 600] [--seed 1]

The attackers run in another process. They open hundreds of idle connections and send random bytes,
mutated requests, wrong keys, another rollout's key, partial requests, several requests in a single
write, and bodies that are compressed, truncated or of the wrong length. Some don't read the
response, and some reset the connection. Meanwhile, rollouts of ten turns use the same server. Each
reply in a rollout contains the turn number. The benchmark fails if an attacker receives a 5xx or a
reply that belongs to one of these rollouts, if a rollout's call fails or receives the wrong reply,
or if a socket is left at the end.
"""

import argparse
import asyncio
import collections
import gzip
import json
import random
import re
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import aiohttp
import psutil
from rich.console import Console
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy

TURNS = 10
PLAYED_AT_ONCE = 4
ATTACKERS = 16
"""Number of concurrent attacking connections."""
PATHS = [
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models", "/v1/models/policy",
    "/v1/messages/count_tokens", "/v1beta/models/policy:generateContent", "/", "*", "/v1/../x%00",
]  # fmt: skip
BODIES = [
    {"messages": [{"role": "user", "content": "attack"}]},
    {"input": "attack", "stream": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}]},
    {"messages": [], "tools": [[[]]], "n": 10**30, "stop": {"a": None}},
    {"contents": [{"parts": [{"text": "attack"}]}]},
    {"input": "attack", "previous_response_id": "resp_evert_0"},
]
HEADERS = [
    "Transfer-Encoding: chunked", "Content-Length: 3", "Expect: 100-continue", "Upgrade: websocket",
    "Connection: Upgrade", "Content-Encoding: gzip", "x-stainless-retry-count: 1", "Host: evil",
    "Connection: close", "x: \0", "x : y", f"x: {'y' * 9000}", "Origin: http://evil.example",
]  # fmt: skip
SECRET = "private-"
"""Prefix of every reply that the rollouts receive."""


# -- the rollouts ----------------------------------------------------------------------------------


async def play(session: aiohttp.ClientSession, number: int, keys: list[str]) -> None:
    """Play one rollout, checking that each reply belongs to the right rollout and turn."""

    async def agent(client: AgentClient) -> float:
        keys.append(client.api_key)
        messages = [{"role": "user", "content": f"task {number}."}]
        for turn in range(TURNS):
            async with session.post(
                f"{client.base_url}/chat/completions",
                json={"model": "any", "messages": messages},
                headers={"authorization": f"Bearer {client.api_key}"},
            ) as response:
                assert response.status == 200, await response.text()
                message = (await response.json())["choices"][0]["message"]
            assert message["content"] == f"{SECRET}{number}-{turn}", message
            messages += [message, {"role": "user", "content": "more"}]
        return 1.0

    def reply(prompt: str) -> str:
        number = re.findall(r"task (\d+)\.", prompt)[0]
        return f"{SECRET}{number}-{prompt.count('more')}"

    trajectory = await do_single_rollout(ScriptedPolicy(reply), ChatAgentEnv(agent))
    assert trajectory.transitions[-1].reward == 1.0
    assert len(trajectory.transitions) == TURNS


async def victim(keys: list[str], ready: "asyncio.Future[str]", over: asyncio.Event) -> None:
    """Play the rollout whose key the attackers use. The rollout itself keeps making valid calls."""

    async def agent(client: AgentClient) -> float:
        keys.append(client.api_key)
        ready.set_result(client.base_url)
        while not over.is_set():  # too many bad requests in a row would end the episode
            await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
            await asyncio.sleep(0.02)
        return 1.0

    await do_single_rollout(ScriptedPolicy(lambda _: "attacked"), ChatAgentEnv(agent))


# -- the attackers, in another process -------------------------------------------------------------


def attack_bytes(rng: random.Random, key: str) -> bytes:
    """Return what an attack sends: random bytes, a valid request or a malformed one."""
    if rng.random() < 0.15:
        return rng.randbytes(rng.randrange(1, 400))
    if rng.random() < 0.2:
        return good_bytes(key)
    body = json.dumps(rng.choice(BODIES)).encode()
    if rng.random() < 0.2:
        body = rng.choice([gzip.compress(body), b"[" * 5000, b"5\r\nabcde\r\n0\r\n\r\n", body[:-3]])
    key = rng.choice([key, key, "", f"{key}x", "evert-" + "A" * 32])
    method = rng.choice(["POST", "POST", "POST", "GET", "HEAD", "OPTIONS", "PUT", "CONNECT", "x y"])
    lines = [
        f"{method} {rng.choice(PATHS)} HTTP/{rng.choice(['1.1', '1.1', '1.0', '2.0'])}",
        f"Host: {rng.choice(['127.0.0.1', '127.0.0.1', 'localhost', 'evil.example', '['])}",
        f"Authorization: Bearer {key}",
        f"Content-Length: {len(body) + rng.choice([0, 0, 0, 0, 7, -5])}",
        *rng.choices(HEADERS, k=rng.choice([0, 0, 1, 2])),
    ]
    sent = "\r\n".join([*lines, "", ""]).encode(errors="replace") + body
    for _ in range(rng.choice([0, 0, 0, 1, 4])):
        place = rng.randrange(len(sent))
        sent = sent[:place] + rng.randbytes(rng.randrange(3)) + sent[place + rng.randrange(3) :]
    return sent * rng.choice([1, 1, 1, 1, 3]) if rng.random() < 0.9 else sent[: len(sent) // 2]


def good_bytes(key: str) -> bytes:
    """Return a valid request with a key that the attacker should not have."""
    body = json.dumps(BODIES[0]).encode()
    head = f"Host: localhost\r\nx-api-key: {key}\r\nx-stainless-retry-count: 1\r\n"
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}{length}".encode() + body


def attack_once(at: tuple[str, int], key: str, seed: int) -> bytes:
    """Send one attack; return what is received until nothing arrives for 0.1 seconds."""
    rng = random.Random(seed)
    received = b""
    with socket.create_connection(at, timeout=60) as one, suppress(OSError):
        one.settimeout(0.1)
        one.sendall(attack_bytes(rng, key))
        manner = rng.random()
        if manner < 0.1:
            one.shutdown(socket.SHUT_WR)
        elif manner < 0.2:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while manner < 0.7 and (chunk := one.recv(65536)):
            received += chunk
    return received


def attack(port: int, key: str, requests: int, idle: int, seed: int) -> None:
    """Send all attacks concurrently, with idle connections open; print the response counts."""
    at = ("127.0.0.1", port)
    with ThreadPoolExecutor(ATTACKERS) as threads, ExitStack() as idle_ones:
        for _ in range(idle):
            idle_ones.enter_context(socket.create_connection(at))
        seeds = range(seed * 10**6, seed * 10**6 + requests)
        received = [*threads.map(partial(attack_once, at, key), seeds)]
    answers = collections.Counter(
        status
        for one in received
        for status in re.findall(r"HTTP/1\.[01] (\d\d\d) ", one.decode("latin-1"))
    )
    leaked = sum(SECRET.encode() in one for one in received)
    print(json.dumps({"answers": answers, "leaked": leaked}), flush=True)


# -- together --------------------------------------------------------------------------------------


async def battle(options: argparse.Namespace) -> tuple[dict[str, dict[str, int]], int]:
    """Attack while rollouts are played; return the attackers' counts and how many were played."""
    keys: list[str] = []
    over = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    played = 0
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        attacked = tasks.create_task(victim(keys, address, over))
        port = int((await address).rpartition(":")[2].partition("/")[0])
        arguments = [port, keys[0], options.requests, options.idle, options.seed]
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--attack", *map(str, arguments), stdout=subprocess.PIPE
        )
        said = tasks.create_task(attacker.communicate())
        while not said.done():
            group = [play(session, played + one, keys) for one in range(PLAYED_AT_ONCE)]
            await asyncio.gather(*group)
            played += PLAYED_AT_ONCE
        over.set()
        await attacked
    return json.loads(said.result()[0]), played


def main() -> int:
    """Run the benchmark; return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 requests")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--idle", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        port, key, *numbers = options.attack
        attack(int(port), key, *map(int, numbers))
        return 0
    options.requests = 1000 if options.quick else options.requests
    before = len(psutil.Process().net_connections())
    told, played = asyncio.run(battle(options))
    left = len(psutil.Process().net_connections()) - before
    broken = sum(count for status, count in told["answers"].items() if status.startswith("5"))
    Console().print(
        f"{options.requests} hostile requests, {options.idle} idle connections: {broken} 5xx "
        f"responses, {told['leaked']} with a rollout's reply; {played} rollouts of {TURNS} turns "
        f"played meanwhile, all with the right replies; {left} sockets "
        f"left.\nResponses by status: {dict(sorted(told['answers'].items()))}"
    )
    return int(bool(broken or told["leaked"] or left) or played == 0)


if __name__ == "__main__":
    sys.exit(main())
