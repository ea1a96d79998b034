"""Test ``evert serve`` under load: exact tokens, CPU time, memory and scores.

    python benchmarks/served_load.py [--quick] [--only exact|cpu|memory|score] [--requests 200000]

exact   Prompts contain the exact token ids that were sampled before: with SmolLM2 (``make
        .models/smollm2``) at temperature 1, in 40 turns with tools through the OpenAI SDK, and with
        random ids that the tokenizer would never produce, through three SDKs. At most 20% of
        SmolLM2's prompt tokens are computed; the rest are cached.
cpu     A chat request takes at most 0.5 ms more CPU time on the server than a request with the same
        prompt as token ids, even after twenty turns or with 3,000 conversations.
memory  Clients use five APIs; a third of their requests are aborted or hostile. The server's memory
        does not grow after the first tenth of the requests, there are no 5xx responses, and no
        client receives another client's text.
score   Two trained agents each play 480 episodes with ``evert evaluate``, and 480 with a program
        that calls ``evert serve`` through the OpenAI SDK. An agent's two mean rewards differ by at
        most two standard errors.

``cpu`` and ``memory`` measure a server in another process that uses a scripted model. For
``memory``, the server's limits are so low that it drops conversations even during the first tenth
of the requests. Exits with status 1 if a result misses its target.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import tinker
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tinker import types

from evert.bridge.tokens.bases import model_renderer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.serving import chat
from evert.trainers.serving.service import PolicyService
from evert.trainers.serving.wire import CompletionRequest, write_request

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for the two modules below

from benchmarks.served_programs import (  # noqa: E402
    AT_ONCE,
    SECRET,
    TOOL,
    Client,
    at_once,
    by_anthropic,
    by_gemini,
    by_openai,
    hostile,
)
from benchmarks.served_script import Script, odd  # noqa: E402

SCRIPT, PROGRAMS = (ROOT / "benchmarks" / f"served_{name}.py" for name in ("script", "programs"))
EVERT = str(Path(sys.executable).with_name("evert"))
SMOLLM2 = ROOT / ".models" / "smollm2"

TURNS = 40
MOST_COMPUTED = 0.2
MOST_MILLISECONDS = 0.5
KEPT_AT_ONCE = 3000
MOST_MORE = 0.2  # extra milliseconds allowed with many conversations; about the noise level
MOST_GROWTH = 1.03
ERRORS = Console(stderr=True)

Bars = list[tuple[str, str, str, bool]]  # description, measured value, target, whether it is met


class Server:
    """A server in another process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.url, self.key = json.loads(self._line())
        self.root = self.url.removesuffix("/v1")
        self.headers = {"authorization": f"Bearer {self.key}"}

    def figures(self, what: str = "cpu") -> dict[str, float]:
        """Return the CPU seconds and cached tokens. ``what="memory"`` adds the resident bytes."""
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        figures: dict[str, float] = json.loads(self._line())
        return figures

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def served(script: str) -> Iterator[Server]:
    """Run a server with a scripted model in another process."""
    command = [sys.executable, str(SCRIPT), script]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


# -- exact -----------------------------------------------------------------------------------------

Sampled = list[tuple[list[int], list[int]]]
"""Prompt and reply tokens of each turn."""


@contextmanager
def logged(client: Any, renderer: Any, context: int) -> Iterator[tuple[PolicyService, Sampled]]:
    """Serve a sampling client; yield the service and a log of what is sampled."""
    log: Sampled = []
    with PolicyService() as service:
        sample = service.sample(client)

        async def logging(prompt: Any, params: Any, watch: Any = None) -> Any:
            sampled = await sample(prompt, params, watch)
            log.append((prompt.to_ints(), [*sampled.tokens]))
            return sampled

        service.chat({"m": chat.ChatModel(logging, renderer, context=context, max_tokens=48)})
        yield service, log


def differing(log: Sampled) -> int:
    """Count the prompt and reply ids that differ in the next prompt."""
    count = 0
    for (before, reply), (after, _) in itertools.pairwise(log):
        whole = before + reply
        count += sum(old != new for old, new in zip(whole, after, strict=False))
        count += max(0, len(whole) - len(after))
    return count


def exact(quick: bool, _: int) -> Bars:
    """Run the part ``exact``."""
    bars: Bars = []
    turns = 4 if quick else TURNS
    for name, converse in (
        ("OpenAI", by_openai), ("Anthropic", by_anthropic), ("Gemini", by_gemini),
    ):  # fmt: skip
        with logged(Script(odd(len(name))), prompt_renderer(None), 2**20) as (service, log):
            converse(service, turns)
        count = differing(log)
        what = f"random ids with the {name} SDK, {len(log)} turns: ids that differ"
        bars.append((what, str(count), "0", count == 0 and len(log) == turns))
    with tempfile.TemporaryDirectory() as folder, embedded_engine(folder, device="cpu", threads=1):
        client: Any = tinker.ServiceClient().create_sampling_client(base_model=str(SMOLLM2))
        stats = client.sampler.stats
        renderer = prompt_renderer(model_renderer(str(SMOLLM2), "template_hermes"))
        with logged(client, renderer, 8192) as (service, log):
            by_openai(service, turns)
        prompts = sum(len(prompt) for prompt, _ in log)
        count, share = differing(log), stats.prompt_tokens / prompts
    sampled = sum(len(reply) for _, reply in log)
    what = f"SmolLM2, {len(log)} turns, {sampled:,} sampled ids: ids that differ"
    bars.append((what, str(count), "0", count == 0))
    what = f"computed fraction of its {prompts:,} prompt tokens"
    is_met = quick or share <= MOST_COMPUTED
    return [*bars, (what, f"{share:.1%}", f"{MOST_COMPUTED:.0%}", is_met)]


# -- cpu -------------------------------------------------------------------------------------------

SAY = {"role": "user", "content": "Where is it? Please look again, and tell me what you see."}
ANSWER = {"role": "assistant", "content": "I see."}


class Costs:
    """Measures the server's CPU time per request, in milliseconds."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session

    async def of(self, path: str, bodies: list[bytes]) -> float:
        """Send the bodies, eight concurrently; return the CPU time per request."""
        before = self._server.figures()["cpu"]
        await at_once((self.post(path, body) for body in bodies), 8)
        return (self._server.figures()["cpu"] - before) * 1000 / len(bodies)

    async def post(self, path: str, body: bytes) -> Any:
        """Send a request; return the response."""
        url = f"{self._server.url}{path}"
        async with self._session.post(url, data=body, headers=self._server.headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def turns(self, openings: list[str], turns: int) -> list[tuple[float, float]]:
        """Play conversations; return each turn's CPU times for chat and token-id requests."""
        times = []
        for turn in range(turns):
            chats = [conversation(opening, turn) for opening in openings]
            length = (await self.post("/chat/completions", chats[0]))["usage"]["prompt_tokens"]
            ids = types.ModelInput.from_ints([1 + index % 400 for index in range(length)])
            asked = CompletionRequest("model", ids.to_ints(), tinker.SamplingParams(max_tokens=64))
            chat_time = await self.of("/chat/completions", chats[1:])
            ids_time = await self.of("/completions", [write_request(asked)] * len(chats[1:]))
            times.append((chat_time, ids_time))
        return times


def conversation(opening: str, turn: int) -> bytes:
    """Return the request body for a turn of a conversation."""
    history = [message for _ in range(turn) for message in (ANSWER, SAY)]
    messages = [{"role": "user", "content": opening}, *history]
    return json.dumps({"model": "model", "messages": messages, "tools": [TOOL]}).encode()


async def _cpu(server: Server, quick: bool) -> Bars:
    count, turns, rounds = (20, 4, 1) if quick else (100, 20, 5)
    kept = 100 if quick else KEPT_AT_ONCE
    numbers = itertools.count()

    def new(number: int) -> list[str]:
        return [f"I am {next(numbers)}." for _ in range(number)]

    def alike(number: int) -> list[str]:
        return ["I am here."] * number

    bars: Bars = []
    async with aiohttp.ClientSession() as session:
        costs = Costs(server, session)
        await costs.turns(new(count), 2)  # warm up
        played = [
            await costs.turns(new(count), turns)
            for _ in track(range(rounds), "cpu: turns", console=ERRORS)
        ]
        for what, part in (("all turns", slice(None)), ("the last five", slice(-5, None))):
            extra = statistics.median(_extra(times[part]) for times in played)
            of_ids = statistics.median(ids for times in played for _, ids in times[part])
            figure = f"{extra:.2f} ms (ids: {of_ids:.2f})"
            name = f"chat request minus token-id request, {what} of {turns}"
            bars.append((name, figure, f"{MOST_MILLISECONDS}", extra <= MOST_MILLISECONDS))
        for name, make in (("different openings", new), ("the same opening", alike)):
            few = [_extra(await costs.turns(make(count), 3)) for _ in range(rounds)]
            bodies = [conversation(opening, turn) for opening in make(kept) for turn in range(2)]
            posts = (costs.post("/chat/completions", body) for body in bodies)
            await at_once(track([*posts], f"cpu: {name}", console=ERRORS), 8)
            many = [_extra(await costs.turns(make(count), 3)) for _ in range(rounds)]
            before, after = statistics.median(few), statistics.median(many)
            figure = f"{before:.2f} -> {after:.2f} ms"
            name = f"the same after {kept:,} more conversations, {name}"
            bars.append((name, figure, f"+{MOST_MORE}", after - before <= MOST_MORE))
    return bars


def _extra(times: list[tuple[float, float]]) -> float:
    """Return how much longer a chat request takes on average than one with token ids."""
    return statistics.mean(chat_time - ids_time for chat_time, ids_time in times)


def cpu(quick: bool, _: int) -> Bars:
    """Run the part ``cpu``."""
    with served("same") as server:
        return asyncio.run(_cpu(server, quick))


# -- memory ----------------------------------------------------------------------------------------


class Load:
    """Clients that converse, disconnect and attack. Counts statuses and leaked text."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self._draw = random.Random(0)
        self._numbers = itertools.count()
        self.statuses: Counter[int | str] = Counter()
        self.leaks = 0
        self.sent = 0

    async def play(self, requests: int) -> None:
        """Send requests concurrently."""
        end = self.sent + requests
        await asyncio.gather(*[self._clients(end) for _ in range(AT_ONCE)])

    async def _clients(self, end: int) -> None:
        while self.sent < end:
            client = Client(next(self._numbers), self._draw)
            for _ in range(4):
                self.sent += 1
                kind = self._draw.random()
                if kind < 1 / 6:
                    await self.attack(client, self._draw.choice([10, 10, 10, 100_000]))
                    continue
                path, fields = client.request()
                leaves = self._draw.random() * 0.01 if kind < 2 / 6 else None
                answer = await self._send(client, path, json.dumps(fields).encode(), {}, leaves)
                if answer is None:
                    break
                client.hear(answer)

    async def attack(self, client: Client, length: int) -> None:
        """Send a hostile request with strings of the given length."""
        await self._send(client, *hostile(self._draw, client.mark, length))

    async def _send(
        self, client: Client, path: str, body: bytes, headers: dict[str, str],
        leaves: float | None = None,
    ) -> str | None:  # fmt: skip
        """Return the response text, or None if the client disconnected or got an error."""
        headers = {**self._server.headers, "content-type": "application/json", **headers}
        try:
            async with (
                asyncio.timeout(leaves),
                self._session.post(
                    f"{self._server.root}{path}", data=body, headers=headers
                ) as answer,
            ):
                text = await answer.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            self.statuses["left" if leaves else type(error).__name__] += 1
            return None
        self.statuses[answer.status] += 1
        self.leaks += bool({*SECRET.findall(text)} - {client.mark})
        return text if answer.status == 200 else None


async def _memory(server: Server, requests: int) -> Bars:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        load, sizes, start = Load(server, session), list[float](), time.perf_counter()
        # Send the longest strings first. The allocator then keeps enough memory for later peaks, so
        # that these don't count as growth.
        first = Client(0, random.Random(0))
        await at_once([load.attack(first, 100_000) for _ in range(requests // 100)])
        for _ in track(range(10), "memory", console=ERRORS):
            await load.play(requests // 10)
            sizes.append(server.figures("memory")["memory"] / 1e6)
            ERRORS.print(f"{load.sent:,} requests: {sizes[-1]:.0f} MB")
        seconds = time.perf_counter() - start
    failed = sum(count for status, count in load.statuses.items() if str(status)[0] == "5")
    growth = statistics.median(sizes[-3:]) / sizes[0]
    trend = ", ".join(f"{size:.0f}" for size in sizes)
    ERRORS.print(f"{load.sent / seconds:.0f} requests per second; {dict(load.statuses)}")
    name = f"memory after each tenth of {load.sent:,} requests (MB): {trend}; last to first"
    return [
        (name, f"{growth:.3f}", f"{MOST_GROWTH}", growth <= MOST_GROWTH),
        ("5xx responses", str(failed), "0", failed == 0),
        ("responses with another client's text", str(load.leaks), "0", load.leaks == 0),
    ]


def memory(quick: bool, requests: int) -> Bars:
    """Run the part ``memory``."""
    with served("marks") as server:
        return asyncio.run(_memory(server, 2000 if quick else requests))


# -- score -----------------------------------------------------------------------------------------

RUNS = {
    "evert-tiny": ["steps=8"],
    "SmolLM2": [
        f"model_name={SMOLLM2}", "steps=2", "batch_size=12", "group_size=8", "max_tokens=12",
        "learning_rate=3e-4", "eval_every=0",
    ],
}  # fmt: skip
"""Base -> training settings for identity, which has 24 held-out tasks."""

EPISODES = 20  # per task


def evert(*arguments: str) -> None:
    """Run an ``evert`` command."""
    command = [EVERT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"evert {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def by_program(run: Path, episodes: int) -> list[float]:
    """Return the rewards of the program that calls ``evert serve``."""
    command = [EVERT, "serve", f"model={run}"]
    with subprocess.Popen(command, stdout=-1, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            export = next(line for line in lines if "OPENAI_BASE_URL" in line)
            variables = dict(pair.split("=", 1) for pair in export.split()[1:])
            done = subprocess.run(
                [sys.executable, PROGRAMS, str(episodes)],
                stdout=-1, text=True, check=True, env={**os.environ, **variables},
            )  # fmt: skip
        finally:
            process.kill()
    rewards: list[float] = json.loads(done.stdout.splitlines()[-1])
    return rewards


def score(quick: bool, _: int) -> Bars:
    """Run the part ``score``."""
    bars: Bars = []
    episodes = 1 if quick else EPISODES
    with tempfile.TemporaryDirectory() as folder:
        for name, training in track(RUNS.items(), "score", console=ERRORS):
            run, out = Path(folder, name), Path(folder, f"{name}-evaluated")
            settings = [*training, *(["steps=1"] if quick else ())]
            evert("train", "env=identity", f"log_path={run}", *settings)
            settings = [f"models={run}", f"seeds={episodes}", "split=test", f"out={out}"]
            evert("evaluate", "env=identity", *settings)
            lines = (out / "episodes.jsonl").read_text().splitlines()
            ours = [json.loads(line)["reward"] for line in lines]
            theirs = by_program(run, episodes)
            means = statistics.mean(ours), statistics.mean(theirs)
            error = math.sqrt(sum(statistics.variance(side) / len(side) for side in (ours, theirs)))
            apart = abs(means[0] - means[1]) / error if error else 0.0
            figure = f"{means[0]:.3f}, {means[1]:.3f}: {apart:.1f} standard errors"
            is_met = apart <= 2 and len(ours) == len(theirs)
            bars.append((f"{name}, {len(ours)} episodes: evaluate, program", figure, "2", is_met))
            ERRORS.print(*bars[-1])
    return bars


# -- all -------------------------------------------------------------------------------------------

PARTS = {"exact": exact, "cpu": cpu, "memory": memory, "score": score}


def main() -> int:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--only", choices=PARTS, help="run only this part (default: all)")
    parser.add_argument("--requests", type=int, default=200_000, help="requests of the memory part")
    args = parser.parse_args()
    table = Table("", "measured", "target", title="evert serve under load")
    is_met = True
    for name in [args.only] if args.only else PARTS:
        for what, figure, bar, is_good in PARTS[name](args.quick, args.requests):
            table.add_row(what, figure, bar, style=None if is_good else "bold red")
            is_met &= is_good
    Console(width=120).print(table)
    return 0 if is_met or args.quick else 1


if __name__ == "__main__":
    sys.exit(main())
