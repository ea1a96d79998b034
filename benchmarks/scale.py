"""What limits rollouts on 1, 10, 100 and 1,000 machines: measured costs in a queueing model.

These costs are measured, each on one core (in CPU seconds, so that other load changes little):

    turn      an agent's turn in a worker: tokens in and out, Env and runner
    client    one sampling request, in the worker
    service   the same request, in the trainer's process (without the engine's own work)
    group     unpickling a worker's results in the trainer's process, per turn

In the model episodes circulate between a worker's core, the trainer's process (its service and its
loop share one core, since they share Python's lock) and the sampler, where they wait for a reply.
``throughput`` solves this closed queueing network exactly (mean value analysis). The rest is
assumed, and can be set: the agent's own work, the time of a reply, how often machines fail.

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
from evert.trainers.serving.wire import (
    CompletionAnswer,
    CompletionRequest,
    ServerKind,
    write_answer,
    write_request,
)

MACHINES = (1, 10, 100, 1000)
PROMPT, REPLY = 500, 100
"""Tokens of a request and of its reply."""
HEADERS = 400
"""Approximate bytes of a request's and a response's headers together."""

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
    """The measured costs, in seconds of one core per turn, and in bytes."""

    turn: float
    client: float
    service: float
    group: float
    request_bytes: int
    """A request and its response."""
    group_bytes: float
    """A worker's results, per turn."""
    task_bytes: int
    """A worker's task, per group."""


@dataclass(frozen=True)
class Assumed:
    """The assumptions, which depend on the user."""

    cores: int = 16
    """Cores per machine."""
    episodes: int = 16
    """Episodes at once on each core."""
    agent: float = 0.02
    """Core seconds of the agent's own work per turn."""
    reply: float = 2.0
    """Seconds until a reply, from a sampler that has room."""
    turns: int = 10
    """Turns per episode."""
    group_size: int = 8
    deaths: float = 0.05
    """Failures per machine and day."""


# -- measuring -----------------------------------------------------------------------------------


async def agent(client: Any, task: int) -> float:
    """Make ten turns of chat; the last has about ``PROMPT`` and ``REPLY`` tokens."""
    messages: list[dict[str, str]] = []
    for _ in range(Assumed.turns):
        messages.append({"role": "user", "content": "and then? " * 8})
        completion = await client.chat.completions.create(messages=messages)
        said = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
    return 1.0


def measure_turn(times: int) -> tuple[float, TrajectoryGroup, int]:
    """Return the CPU seconds of a turn, a group of episodes, and the bytes of its builder."""
    builder = ChatAgentGroupBuilder(f"{__name__}:agent", 1, Assumed.group_size)
    policy = ScriptedPolicy(lambda prompt: "so it went on " * 7)
    group = asyncio.run(do_group_rollout(builder, policy))  # loads everything once
    began = time.process_time()
    for _ in range(times):
        asyncio.run(do_group_rollout(builder, policy))
    turns = times * Assumed.group_size * Assumed.turns
    return (time.process_time() - began) / turns, group, len(pickle.dumps(builder))


def measure_group(group: TrajectoryGroup, times: int) -> tuple[float, float]:
    """Return the CPU seconds to unpickle a turn of a group, and its bytes."""
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
    """A sampling client that replies at once, so that only the service is measured."""

    def sample(self, prompt: Any, count: int, params: Any) -> Any:
        """Return the same reply."""
        future: Future[tinker.SampleResponse] = Future()
        future.set_result(tinker.SampleResponse([SEQUENCE]))
        return SimpleNamespace(future=lambda: future)

    def get_base_model(self) -> str:
        """Return the default base."""
        return "evert-tiny"


def measure_service(times: int) -> tuple[float, float]:
    """Return the CPU seconds of a request in the serving process and in the calling process."""
    with PolicyService() as service:
        sent = pickle.dumps((service.offer(Instant()), times))
        began = time.process_time()
        asking = [sys.executable, "-c", CLIENT]
        done = subprocess.run(asking, input=sent, capture_output=True, check=True, timeout=600)
        spent = time.process_time() - began
    return spent / (times // 16 * 16 + 20), float(done.stdout)


def measure(quick: bool) -> Costs:
    """Measure all costs."""
    turn, group, task_bytes = measure_turn(2 if quick else 20)
    seconds, size = measure_group(group, 20 if quick else 200)
    service, client = measure_service(320 if quick else 8000)
    ids = [*range(PROMPT)]
    asked = CompletionRequest("policy-1", ids, tinker.SamplingParams(max_tokens=REPLY))
    answer = write_answer(asked, CompletionAnswer([SEQUENCE], None, ids), None)
    on_the_way = len(write_request(asked, ServerKind.EVERT)) + len(answer) + HEADERS
    return Costs(turn, client, service, seconds, on_the_way, size, task_bytes)


# -- the model -----------------------------------------------------------------------------------


def throughput(episodes: int, delay: float, demands: Sequence[float]) -> tuple[float, list[float]]:
    """Return turns per second of a closed network, and the mean number of episodes at each station.

    Exact mean value analysis: an episode that arrives at a station sees the mean state of the
    network with one episode fewer; the rest follows from Little's law.

    Args:
        episodes: How many circulate.
        delay: Seconds of a turn without waiting for others.
        demands: Seconds of a turn at each station, which serves one episode at a time.
    """
    rate, waiting = 0.0, [0.0] * len(demands)
    for count in range(1, episodes + 1):
        stays = [demand * (1 + others) for demand, others in zip(demands, waiting, strict=True)]
        rate = count / (delay + sum(stays))
        waiting = [rate * stay for stay in stays]
    return rate, waiting


@dataclass(frozen=True)
class Outcome:
    """The results for a number of machines."""

    turns: float
    """Turns per second."""
    busy: float
    """Busy share of the trainer's core."""
    megabytes: float
    """Megabytes per second through the trainer's network."""
    connections: float
    """Connections to the service at once."""
    lost: float
    """Groups per step that are played again; in a step each slot for an episode plays one."""


def simulate(machines: int, costs: Costs, assumed: Assumed, way: str = "service") -> Outcome:
    """Compute the results for a cluster.

    Args:
        machines: How many machines have workers.
        costs: The measured costs.
        assumed: The assumptions.
        way: "service": replies come through the trainer's process; "samplers": workers call other
            servers (vLLM), and the trainer gets only whole groups.
    """
    cores = machines * assumed.cores
    episodes = cores * assumed.episodes
    work = costs.turn + costs.client + assumed.agent
    through = costs.service if way == "service" else 0.0
    central = through + costs.group
    # Seidmann's approximation: N cores are one core that is N times as fast, plus a delay.
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
    """Plot turns per second by machines."""
    figure, [axes] = new_figure(6.5, 4.0)
    for colour, (way, found) in zip(COLOURS, results.items(), strict=False):
        x, y = [*found], [each.turns for each in found.values()]
        axes.plot(x, y, color=colour, marker="o", label=WAYS[way])
    axes.set(xscale="log", yscale="log", xlabel="machines")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8.5)
    head(axes, "Where rollouts stop growing", "turns per second, from costs of one core")
    figure.savefig(path)


def show(console: Console, costs: Costs, results: Mapping[str, Mapping[int, Outcome]]) -> None:
    """Print the costs and the table."""
    micro = {name: getattr(costs, name) * 1e6 for name in ("turn", "client", "service", "group")}
    said = ", ".join(f"{name} {value:.0f} us" for name, value in micro.items())
    console.print(f"one turn on one core: {said}; {PROMPT} tokens in, {REPLY} out")
    console.print(
        f"bytes per turn: {costs.request_bytes} to sample, {costs.group_bytes:.0f} of a group; "
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
    """Measure, compute, print; an impossible result is an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure only for seconds")
    parser.add_argument("--plot", type=Path, help="path of the figure")
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
        sys.exit("A core is busy for over 100 % of its time, or for none: the model is wrong.")


if __name__ == "__main__":
    main()
