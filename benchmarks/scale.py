"""What limits rollouts on 1, 10, 100 and 1,000 machines: costs of one core, in a queueing model.

Measured here, each on one core (CPU seconds, so that a busy machine changes little):

    turn      an agent's turn in a worker: tokens in and out, Env and runner
    client    one request to sample, in the worker
    service   the same request, in the trainer's process (the engine's own work is not in it)
    group     unpickling what a worker sends back, in the trainer's process; by turn

The model is the oldest there is: episodes circulate between a worker's core, the trainer's process
(its service and its loop share one core, since they share Python's lock) and the sampler, where
they wait for a reply. ``throughput`` solves it exactly (mean value analysis). What is not measured
is assumed, and can be given: the agent's own work, how long a reply takes, how often machines die.

    python benchmarks/scale.py [--quick] [--plot scale.png]
"""

import argparse
import asyncio
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tinker
from rich.console import Console
from rich.table import Table
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import TrajectoryGroup

from evert import ChatAgentGroupBuilder, ScriptedPolicy
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.figures.style import head, new_figure
from evert.trainers.serving.service import PolicyService
from evert.trainers.serving.wire import Answered, Asked, Dialect, write_answer, write_request

MACHINES = (1, 10, 100, 1000)
PROMPT, REPLY = 500, 100
"""Tokens of a request and of its answer."""
HEADERS = 400
"""Bytes of a request's and an answer's headers together, about."""

CLIENT = f"""
import asyncio, pickle, sys, time
import tinker
client, count = pickle.load(sys.stdin.buffer)
prompt = tinker.ModelInput.from_ints(list(range({PROMPT})))
params = tinker.SamplingParams(max_tokens={REPLY})
async def ask(times):
    for _ in range(times):
        await client.sample_async(prompt, 1, params)
async def all_of_them():
    await ask(20)
    began = time.process_time()
    await asyncio.gather(*(ask(count // 16) for _ in range(16)))
    print((time.process_time() - began) / (count // 16 * 16))
asyncio.run(all_of_them())
"""


@dataclass(frozen=True)
class Costs:
    """Of one turn. Seconds of one core, and bytes."""

    turn: float
    client: float
    service: float
    group: float
    request_bytes: int
    """Of a request and its answer."""
    group_bytes: float
    """Of what a worker sends back, by turn."""
    task_bytes: int
    """Of what a worker is sent, by group."""


@dataclass(frozen=True)
class Assumed:
    """What depends on the user."""

    cores: int = 16
    """Of a machine."""
    episodes: int = 16
    """At once, on each core."""
    agent: float = 0.02
    """Seconds of a core that the agent itself works in a turn."""
    reply: float = 2.0
    """Seconds until a reply, from a sampler that has room."""
    turns: int = 10
    """Of an episode."""
    group_size: int = 8
    deaths: float = 0.05
    """Of a machine, a day."""


# -- measuring -----------------------------------------------------------------------------------


async def agent(client: Any, task: int) -> float:
    """Ten turns of chat, as many tokens as ``PROMPT`` and ``REPLY`` at the end."""
    messages: list[dict[str, str]] = []
    for _ in range(Assumed.turns):
        messages.append({"role": "user", "content": "and then? " * 8})
        completion = await client.chat.completions.create(messages=messages)
        said = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
    return 1.0


def measure_turn(times: int) -> tuple[float, TrajectoryGroup, int]:
    """CPU seconds of a turn, a group of episodes, and the bytes of its builder."""
    builder = ChatAgentGroupBuilder(f"{__name__}:agent", 1, Assumed.group_size)
    policy = ScriptedPolicy(lambda prompt: "so it went on " * 7)
    group = asyncio.run(do_group_rollout(builder, policy))  # what is loaded once
    began = time.process_time()
    for _ in range(times):
        asyncio.run(do_group_rollout(builder, policy))
    turns = times * Assumed.group_size * Assumed.turns
    return (time.process_time() - began) / turns, group, len(pickle.dumps(builder))


def measure_group(group: TrajectoryGroup, times: int) -> tuple[float, float]:
    """CPU seconds to unpickle a turn of a group, and its bytes."""
    data = pickle.dumps(group)
    turns = sum(len(each.transitions) for each in group.trajectories_G)
    began = time.process_time()
    for _ in range(times):
        pickle.loads(data)
    return (time.process_time() - began) / times / turns, len(data) / turns


SEQUENCE = tinker.SampledSequence(
    "length", "1", np.full(REPLY, 7, np.int32), np.full(REPLY, -1.25, np.float32)
)


class Instant:
    """A sampling client that answers at once: what is left is the service."""

    def sample(self, prompt: Any, count: int, params: Any) -> Any:
        """The same reply."""
        future: Future[tinker.SampleResponse] = Future()
        future.set_result(tinker.SampleResponse([SEQUENCE]))
        return SimpleNamespace(future=lambda: future)

    def get_base_model(self) -> str:
        """The default base."""
        return "evert-tiny"


def measure_service(times: int) -> tuple[float, float]:
    """CPU seconds of a request: in the process that serves, in the process that asks."""
    with PolicyService() as service:
        sent = pickle.dumps((service.offer(Instant()), times))
        began = time.process_time()
        asking = [sys.executable, "-c", CLIENT]
        done = subprocess.run(asking, input=sent, capture_output=True, check=True, timeout=600)
        spent = time.process_time() - began
    return spent / (times // 16 * 16 + 20), float(done.stdout)


def measure(quick: bool) -> Costs:
    """All of it."""
    turn, group, task_bytes = measure_turn(2 if quick else 20)
    seconds, size = measure_group(group, 20 if quick else 200)
    service, client = measure_service(320 if quick else 8000)
    ids = [*range(PROMPT)]
    asked = Asked("policy-1", ids, tinker.SamplingParams(max_tokens=REPLY))
    answer = write_answer(asked, Answered([SEQUENCE], None, ids), None)
    on_the_way = len(write_request(asked, Dialect.OURS)) + len(answer) + HEADERS
    return Costs(turn, client, service, seconds, on_the_way, size, task_bytes)


# -- the model -----------------------------------------------------------------------------------


def throughput(episodes: int, delay: float, demands: Sequence[float]) -> tuple[float, list[float]]:
    """Turns a second of a closed network, and how many wait at each station (or are served there).

    Exact mean value analysis: an episode that comes to a station finds it as it would be with one
    episode less; Little's law does the rest.

    Args:
        episodes: That circulate.
        delay: Seconds of a turn in which nobody is in another's way.
        demands: Seconds of a turn at each station, which serves one at a time.
    """
    rate, waiting = 0.0, [0.0] * len(demands)
    for count in range(1, episodes + 1):
        stays = [demand * (1 + others) for demand, others in zip(demands, waiting, strict=True)]
        rate = count / (delay + sum(stays))
        waiting = [rate * stay for stay in stays]
    return rate, waiting


@dataclass(frozen=True)
class Outcome:
    """Of so many machines."""

    turns: float
    """A second."""
    busy: float
    """Share of the trainer's core."""
    megabytes: float
    """A second, through the trainer's network."""
    connections: float
    """To the service at once."""
    lost: float
    """Groups a step that are played again, a step being all episodes at once, once."""


def simulate(machines: int, costs: Costs, assumed: Assumed, way: str = "service") -> Outcome:
    """A cluster, a machine of it and all of the trainer's process.

    Args:
        machines: How many.
        costs: Measured.
        assumed: The rest.
        way: "service": replies come through the trainer's process; "samplers": workers ask servers
            of their own (vLLM), and the trainer sees whole groups alone.
    """
    cores = machines * assumed.cores
    episodes = cores * assumed.episodes
    work = costs.turn + costs.client + assumed.agent
    through = costs.service if way == "service" else 0.0
    central = through + costs.group
    # Many cores as one that is as much faster, and the rest of a core's time as delay (Seidmann).
    delay = assumed.reply + work * (cores - 1) / cores
    rate, (_, queue) = throughput(episodes, delay, [work / cores, central])
    step = episodes * assumed.turns / rate
    in_flight = assumed.cores * assumed.episodes / assumed.group_size
    wire = (costs.request_bytes if through else 0) + costs.group_bytes
    wire += costs.task_bytes / (assumed.turns * assumed.group_size)
    return Outcome(
        turns=rate,
        busy=rate * central,
        megabytes=rate * wire / 1e6,
        connections=(queue * through / central + rate * assumed.reply) if through else 0.0,
        lost=machines * assumed.deaths * step / 86400 * in_flight,
    )


# -- showing -------------------------------------------------------------------------------------

WAYS = {"service": "by the trainer", "samplers": "by other samplers"}


def plot(results: Mapping[str, Mapping[int, Outcome]], path: Path) -> None:
    """Turns a second by machines."""
    figure, [axes] = new_figure(6.5, 4.0)
    for colour, (way, found) in zip(COLOURS, results.items(), strict=False):
        x, y = [*found], [each.turns for each in found.values()]
        axes.plot(x, y, color=colour, marker="o", label=WAYS[way])
    axes.set(xscale="log", yscale="log", xlabel="machines")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8.5)
    head(axes, "Where rollouts stop growing", "turns a second, from costs of one core")
    figure.savefig(path)


def show(console: Console, costs: Costs, results: Mapping[str, Mapping[int, Outcome]]) -> None:
    """The costs and a table."""
    micro = {name: getattr(costs, name) * 1e6 for name in ("turn", "client", "service", "group")}
    said = ", ".join(f"{name} {value:.0f} us" for name, value in micro.items())
    console.print(f"one turn on one core: {said}; {PROMPT} tokens in, {REPLY} out")
    console.print(
        f"bytes a turn: {costs.request_bytes} to sample, {costs.group_bytes:.0f} of a group; "
        f"{costs.task_bytes} of a task"
    )
    table = Table("replies", "machines", "turns/s", "trainer", "MB/s", "links", "lost")
    for way, found in results.items():
        for machines, one in found.items():
            numbers = (one.turns, one.megabytes, one.connections)
            turns, megabytes, connections = (f"{number:,.0f}" for number in numbers)
            busy, lost = f"{one.busy:.0%}", f"{one.lost:.2g}"
            table.add_row(WAYS[way], str(machines), turns, busy, megabytes, connections, lost)
    console.print(table)


def main() -> None:
    """Measure, simulate, show; an impossible result is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure for seconds")
    parser.add_argument("--plot", type=Path, help="where to draw the figure")
    for field in fields(Assumed):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    given = vars(parser.parse_args())
    assumed = Assumed(**{field.name: given[field.name] for field in fields(Assumed)})
    costs = measure(given["quick"])
    results = {way: {n: simulate(n, costs, assumed, way) for n in MACHINES} for way in WAYS}
    show(Console(), costs, results)
    if given["plot"]:
        plot(results, given["plot"])
    found = [one for each in results.values() for one in each.values()]
    if not all(math.isfinite(one.turns) and 0 < one.busy < 1 + 1e-6 for one in found):
        sys.exit("A core is busy for more than all of its time, or for none: the model is wrong.")


if __name__ == "__main__":
    main()
