"""Soak test: play many mixed episodes in one process, checking memory, leaks and loop stalls.

    python benchmarks/soak.py [--quick] [--episodes 100000] [--workers 8]

One event loop plays async agents, threads, SDKs, loopback HTTP, tools, branches, seats, groups,
frozen models, errors, cancellations, timeouts, commands, and 2 MB strings in every type of message
part. Resident memory is measured every second, excluding free memory that the allocator retains. A
heartbeat on the same loop measures how long the loop is blocked.

First, each type of episode is played alone, to measure how long one agent can block the loop. Then
all types are mixed, with several concurrent episodes, at most one of which has long strings.

The benchmark fails if memory grows by 2% after the first minute, if a task, thread, descriptor,
child process or folder is left, or if one agent blocks the loop for 100 ms. Only CPU time of this
process, in any of its threads, counts as a stall, because other processes were running during the
rest of the time.
"""

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import psutil
from rich.console import Console
from rich.table import Table
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout

from evert import ChatAgentEnv, ChatAgentGroupBuilder, ProcessAgent, ScriptedPolicy
from evert.bridge.tokens.renderer import prompt_renderer

GROWTH = 0.02
"""Maximum relative memory growth after the warm-up."""

STALL = 0.1
"""Maximum time that one agent may block the loop, in seconds."""

BEAT = 0.005
"""Seconds between heartbeats."""

WINDOW = 15
"""Number of memory samples behind each of the medians being compared."""

ALONE = 3
"""Number of episodes of each type that are played alone."""

SHOWN = 4
"""Number of stalls to print."""

LONG = 2_000_000
"""Length of a long string in characters."""


def user(content: Any) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": content}


def saying(*texts: str) -> TokenCompleter:
    """Return a policy that replies with these texts, and then with "Fine."."""
    rest = iter(texts)
    return ScriptedPolicy(lambda prompt: next(rest, "Fine."))


# -- agents ----------------------------------------------------------------------------------------


async def talks(client: Any) -> float:
    """Have a conversation of three turns."""
    messages: list[Any] = [user("Hi")]
    for turn in range(3):
        completion = await client.chat.completions.create(messages=messages)
        messages += [completion.choices[0].message, user(f"and {turn}?")]
    return 1.0


def talks_in_a_thread(client: Any) -> float:
    """Have the same conversation with blocking calls."""
    messages: list[Any] = [user("Hi")]
    for turn in range(3):
        completion = client.chat.completions.create(messages=messages)
        messages += [completion.choices[0].message, user(f"and {turn}?")]
    return 1.0


async def talks_by_sdk(client: Any) -> float:
    """Make two calls through the OpenAI SDK, the second one streamed."""
    await client.openai.chat.completions.create(model="policy", messages=[user("Hi")])
    stream = await client.openai.chat.completions.create(
        model="policy", messages=[user("Hi")], stream=True
    )
    async for _ in stream:
        pass
    return 1.0


async def talks_by_http(client: Any) -> float:
    """Make a call over the loopback server, as another process would."""
    url = urlsplit(client.base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    body = json.dumps({"model": "policy", "messages": [user("Hi")]}).encode()
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n"
        f"Authorization: Bearer {client.api_key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)
    status = await reader.readline()
    await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return float(b"200" in status)


def tool(**further: Any) -> dict[str, Any]:
    """Return a tool with extra fields."""
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": "add", "parameters": parameters, **further}}


CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'


async def uses_tools(client: Any) -> float:
    """Get a tool call, send the result and get a reply."""
    messages: list[Any] = [user("Add!")]
    completion = await client.chat.completions.create(messages=messages, tools=[tool()])
    messages.append(completion.choices[0].message)
    for call in completion.choices[0].message.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "1"})
    await client.chat.completions.create(messages=messages, tools=[tool()])
    return 1.0


async def branches(client: Any) -> float:
    """Continue the same reply with three concurrent calls."""
    messages: list[Any] = [user("Hi")]
    completion = await client.chat.completions.create(messages=messages)
    messages.append(completion.choices[0].message)
    ways = [[*messages, user(f"way {way}")] for way in range(3)]
    await asyncio.gather(*(client.chat.completions.create(messages=way) for way in ways))
    return 1.0


async def raises(client: Any) -> float:
    """Raise an error after some calls."""
    await talks(client)
    raise ValueError("boom")


async def hangs(client: Any) -> float:
    """Make a call, then hang forever."""
    await client.chat.completions.create(messages=[user("Hi")])
    await asyncio.Event().wait()
    return 1.0


async def is_refused(client: Any) -> float:
    """Send three bad requests followed by valid ones."""
    for messages in ([], [{"role": "oracle", "content": "Hi"}], [user(5)]):
        with contextlib.suppress(Exception):
            await client.chat.completions.create(messages=messages)
    return await talks(client)


async def two_roles(client: Any) -> float:
    """Play two seats: a player and a judge."""
    for role in ("player", "judge"):
        await talks(client.seat(role))
    return 1.0


async def asks_a_judge(client: Any) -> float:
    """Call the policy and then a frozen model."""
    await talks(client)
    await client.chat.completions.create(model="judge", messages=[user("Right?")])
    return 1.0


def long_requests(length: int) -> dict[str, dict[str, Any]]:
    """Return one request per message part, with a string of ``length`` characters in that part."""
    text, many = "word " * (length // 5), length // 100
    properties = {f"field_{n}": {"type": "string"} for n in range(many)}
    schema = {"type": "object", "properties": properties}
    formatted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    told, small = [user("Hi")], {"role": "tool", "tool_call_id": "1", "content": "1"}
    return {
        "message": {"messages": [user(text)]},
        "part": {"messages": [user([{"type": "text", "text": text}])]},
        "system": {"messages": [{"role": "system", "content": text}, *told]},
        "thinking": {"messages": [*told, {"role": "assistant", "reasoning_content": text}, *told]},
        "description": {"messages": told, "tools": [tool(description=text)]},
        "parameters": {"messages": told, "tools": [tool(parameters=schema)]},
        "arguments": {"messages": [*told, called({"x": text}), small]},
        "result": {"messages": [*told, called({}), {**small, "content": text}]},
        "format": {"messages": told, "response_format": formatted},
        "messages": {"messages": [user(f"line {n}") for n in range(many)]},
    }


def called(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a message with a tool call."""
    function = {"name": "add", "arguments": json.dumps(arguments)}
    call = {"id": "1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class LongReplies(TokenCompleter):
    """A policy that returns a pre-tokenized long reply."""

    def __init__(self, text: str) -> None:
        renderer = prompt_renderer(None)
        self._tokens = renderer.encode(text) + renderer.end_tokens[:1]

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        """Return the reply."""
        await asyncio.sleep(0)
        return TokensWithLogprobs(list(self._tokens), [-1.0] * len(self._tokens))


async def sends_much(client: Any, request: dict[str, Any]) -> float:
    """Send a long request, then the same conversation with one more turn."""
    messages, rest = request["messages"], {k: v for k, v in request.items() if k != "messages"}
    completion = await client.chat.completions.create(messages=messages, **rest)
    again = [*messages, completion.choices[0].message, user("and?")]
    await client.chat.completions.create(messages=again, **rest)
    return 1.0


async def sends_much_by_sdk(client: Any, request: dict[str, Any]) -> float:
    """Send a long request through the OpenAI SDK, as one long JSON body."""
    await client.openai.chat.completions.create(model="policy", **request)
    return 1.0


# -- episodes --------------------------------------------------------------------------------------


async def rollout(agent: Callable[..., Any], *task: Any, policy: Any = None, **options: Any) -> int:
    """Play an episode with the Cookbook's runner; return 1."""
    env = ChatAgentEnv(agent, *task, **options)
    try:
        await do_single_rollout(policy or saying(), env)
    finally:
        await env.close()
    return 1


async def cancelled(rng: random.Random) -> int:
    """Play an episode and cancel it at a random point; return 1."""
    env = ChatAgentEnv(rng.choice([talks, talks_in_a_thread, talks_by_sdk]))
    task = asyncio.create_task(do_single_rollout(saying(), env))
    for _ in range(rng.randrange(30)):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await env.close()
    return 1


async def grouped(agent: Callable[..., Any], size: int, **options: Any) -> int:
    """Play a group of episodes; return its size."""
    builder = ChatAgentGroupBuilder(agent, group_size=size, **options)
    await do_group_rollout(builder, saying(), RetryOnFailure(max_retries=1))
    return size


COMMAND = """
import json, os, urllib.request as r
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}).encode()
key = "Bearer " + os.environ["OPENAI_API_KEY"]
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
r.urlopen(r.Request(url, body, {"Authorization": key})).read()
"""


@dataclass(frozen=True)
class Kind:
    """A type of episode.

    Attributes:
        share: Relative frequency. The values add up to roughly ten thousand.
        play: Function that plays episodes of this type and returns how many it played.
        fails: Whether an exception is expected.
    """

    share: float
    play: Callable[[random.Random], Awaitable[int]]
    fails: bool = False


def kinds(length: int) -> dict[str, Kind]:
    """Return all types of episodes by name, with long strings of ``length`` characters."""
    replies, alone = LongReplies("word " * 20_000), asyncio.Lock()
    command = ProcessAgent([sys.executable, "-S", "-c", COMMAND])
    return {
        "async": Kind(3500, lambda rng: rollout(talks)),
        "thread": Kind(1000, lambda rng: rollout(talks_in_a_thread)),
        "sdk": Kind(600, lambda rng: rollout(talks_by_sdk)),
        "http": Kind(700, lambda rng: rollout(talks_by_http)),
        "tools": Kind(1000, lambda rng: rollout(uses_tools, policy=saying(CALL))),
        "branches": Kind(600, lambda rng: rollout(branches)),
        "refused": Kind(400, lambda rng: rollout(is_refused)),
        "frozen": Kind(300, lambda rng: rollout(asks_a_judge, models={"judge": saying("Yes.")})),
        "error": Kind(400, lambda rng: rollout(raises), fails=True),
        "scored": Kind(200, lambda rng: rollout(raises, on_agent_error=-1.0)),
        "timeout": Kind(150, lambda rng: rollout(hangs, agent_timeout=0.02, on_agent_error=-1.0)),
        "cancelled": Kind(600, cancelled),
        "group": Kind(100, lambda rng: grouped(talks, 4)),
        "seats": Kind(60, lambda rng: grouped(two_roles, 2, seats=("player", "judge"))),
        "command": Kind(2, lambda rng: rollout(command)),
        **{
            f"long {part}{way}": Kind(0.2, partial(long, agent, request, replies, alone))
            for part, request in long_requests(length).items()
            for way, agent in ((", handle", sends_much), (", sdk", sends_much_by_sdk))
            if (part, way) != ("messages", ", sdk")  # the SDK takes seconds just to copy them
        },
        "long reply": Kind(1, lambda rng: rollout(talks, policy=replies)),
        "long reply, http": Kind(1, lambda rng: rollout(talks_by_http, policy=replies)),
    }


async def long(
    agent: Any, request: Any, policy: Any, alone: asyncio.Lock, rng: random.Random
) -> int:
    """Play an episode whose long request the policy ignores. Such episodes run one at a time."""
    async with alone:
        return await rollout(agent, request, policy=policy)


# -- watching --------------------------------------------------------------------------------------


def trim() -> None:
    """Make glibc's allocator return free memory to the system. Other allocators can't."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class Watch:
    """Measurements of the process while episodes are played.

    Attributes:
        began: Start time.
        memory: Pairs of seconds since the start and resident MB.
        stalls: For each stall, its CPU seconds, its wall-clock seconds, the seconds since the
            start, and the types of episodes that were running.
        going: Number of running episodes of each type.
    """

    began: float = field(default_factory=time.perf_counter)
    memory: list[tuple[float, float]] = field(default_factory=list)
    stalls: list[tuple[float, float, float, str]] = field(default_factory=list)
    going: Counter[str] = field(default_factory=Counter)

    async def beat(self) -> None:
        """Measure stalls with a heartbeat, and memory every second."""
        process, looked = psutil.Process(), 0.0
        while True:
            before, worked = time.perf_counter(), time.process_time()
            already = {*+self.going}
            await asyncio.sleep(BEAT)
            now = time.perf_counter()
            wall = now - before - BEAT
            stall = min(wall, time.process_time() - worked)
            if stall > STALL / 4:
                going = " + ".join(sorted(already | {*+self.going}))
                self.stalls.append((stall, wall, now - self.began, going))
            if now - looked >= 1:
                looked = now
                trim()
                self.memory.append((now - self.began, process.memory_info().rss / 2**20))

    def longest(self) -> float:
        """Return the duration of the longest stall in seconds."""
        return max((stall for stall, *_ in self.stalls), default=0.0)

    def growth(self, warm_up: float) -> float:
        """Return the relative growth of memory since the warm-up."""
        sizes = [size for when, size in self.memory if when >= warm_up]
        if len(sizes) < 2:
            return 0.0
        window = max(1, min(WINDOW, len(sizes) // 2))
        return median(sizes[-window:]) / median(sizes[:window]) - 1


POOLS = ("asyncio_", "evert off loop")
"""Name prefixes of shared threads, which do not belong to an episode."""


def held() -> dict[str, int]:
    """Count everything that an episode could leave behind, except pool threads."""
    process = psutil.Process()
    own = [one for one in threading.enumerate() if not one.name.startswith(POOLS)]
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": len(own),
        "descriptors": process.num_fds(),
        "children": len(process.children(recursive=True)),
        "folders": len([*Path(tempfile.gettempdir()).glob("evert-*")]),
    }


async def work(todo: list[str], table: dict[str, Kind], watch: Watch, rng: random.Random) -> int:
    """Play episodes until the list is empty; return how many were played."""
    played = 0
    while todo:
        name = todo.pop()
        kind = table[name]
        watch.going[name] += 1
        try:
            played += await kind.play(rng)
        except Exception:
            if not kind.fails:
                raise
            played += 1
        finally:
            watch.going[name] -= 1
        if todo and len(todo) % 10_000 == 0 and watch.memory:
            when, size = watch.memory[-1]
            print(f"{when:,.0f} s: {len(todo):,} to go, {size:,.0f} MB", file=sys.stderr)
    return played


async def alone(table: dict[str, Kind], rng: random.Random) -> Watch:
    """Play each type of episode alone; return the measurements."""
    watch = Watch()
    beating = asyncio.create_task(watch.beat())
    for name in table:
        await work([name] * ALONE, table, watch, rng)
        await asyncio.sleep(2 * BEAT)
    beating.cancel()
    await asyncio.wait({beating})
    return watch


@dataclass
class Seen:
    """Results for each type alone and for all types mixed; ``held()`` before and after."""

    alone: Watch
    mixed: Watch
    played: int
    before: dict[str, int]
    after: dict[str, int]


async def soak(options: argparse.Namespace) -> Seen:
    """Play all episodes; return the results."""
    rng = random.Random(options.seed)
    every = kinds(options.length)
    table = {name: kind for name, kind in every.items() if options.only in name}
    for name, kind in table.items():  # warm up
        if not name.startswith("long"):
            with contextlib.suppress(Exception):
                await kind.play(rng)
    todo = [*table]  # play each at least once
    shares = [kind.share for kind in table.values()]
    todo += rng.choices([*table], shares, k=options.episodes - len(todo))
    rng.shuffle(todo)
    await asyncio.sleep(1)
    gc.collect()
    gc.freeze()  # as evert train does
    by_one = await alone(table, rng)
    gc.collect()
    before, watch = held(), Watch()
    beating = asyncio.create_task(watch.beat())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(todo, table, watch, rng)) for _ in range(options.workers)]
    beating.cancel()
    await asyncio.wait({beating})
    await asyncio.sleep(1)
    gc.collect()
    played = sum(task.result() for task in tasks)
    return Seen(by_one, watch, played, before, held())


def report(seen: Seen, warm_up: float) -> bool:
    """Print the table; return whether all targets are met."""
    watch = seen.mixed
    seconds, growth = watch.memory[-1][0], watch.growth(warm_up)
    stall, mixed = seen.alone.longest(), watch.longest()
    sizes = [size for when, size in watch.memory if when >= warm_up] or [0.0]
    bars = {
        "memory": (
            f"{growth:+.1%} ({sizes[0]:,.0f} to {sizes[-1]:,.0f} MB, peak {max(sizes):,.0f})",
            f"< {GROWTH:.0%}",
            growth < GROWTH,
        ),
        "longest stall caused by one agent": (
            f"{stall * 1e3:,.0f} ms",
            f"< {STALL * 1e3:,.0f} ms",
            stall < STALL,
        ),
        "longest stall with all types mixed": (f"{mixed * 1e3:,.0f} ms", "none", True),
    }
    for name, before in seen.before.items():
        after = seen.after[name]
        bars[name] = f"{before} to {after}", "flat", after <= before
    table = Table(
        title=f"{seen.played:,} episodes in {seconds:,.0f} s, {seen.played / seconds:,.0f} per s"
    )
    for column in ("what", "measured", "target", ""):
        table.add_column(column)
    for name, (found, bar, holds) in bars.items():
        table.add_row(name, found, bar, "met" if holds else "MISSED")
    console = Console(width=100)
    console.print(table)
    stalls = sorted(seen.alone.stalls, reverse=True)[:SHOWN]
    stalls += sorted(watch.stalls, reverse=True)[:SHOWN]
    for length, wall, when, going in stalls:
        lengths = f"{length * 1e3:,.0f} ms ({wall * 1e3:,.0f} ms wall-clock)"
        console.print(f"  {lengths} at {when:,.0f} s, during {going}", style="dim")
    return all(holds for _, _, holds in bars.values())


def main() -> None:
    """Run the benchmark; exit with 1 if a result misses its target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=8, help="concurrent episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up", type=float, default=60.0, help="warm-up in seconds")
    parser.add_argument("--length", type=int, default=LONG, help="length of long texts")
    parser.add_argument("--only", default="", help="only types with this in their name")
    parser.add_argument("--quick", action="store_true", help="3000 episodes, shorter texts")
    options = parser.parse_args()
    if options.quick:
        options.episodes, options.warm_up, options.length = 3_000, 5.0, 100_000
    seen = asyncio.run(soak(options))
    if not report(seen, options.warm_up):
        sys.exit("A result misses its target; see the table.")


if __name__ == "__main__":
    main()
