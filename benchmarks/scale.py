"""Model what limits rollouts on 1 to 1,000 machines, based on costs measured on one core.

These costs are measured on one core, in CPU seconds, so that other load makes little difference:

    turn      a turn of an agent in a worker: tokens in and out, Env and runner
    client    a sampling request, in the worker
    service   the same request in the trainer's process, without the engine
    group     unpickling a worker's results in the trainer's process, per turn

In the queueing model, episodes circulate between a worker's core, the trainer's process (its
service and its loop share one core because of the GIL) and the sampler, where they wait for a
reply. ``throughput`` solves this closed queueing network exactly, with mean value analysis. All
other inputs (such as the CPU time of the agent, the latency of a reply, and the failure rate of
machines) are assumptions, which options can change.

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
"""Number of tokens in a request and in the reply."""
HEADERS = 400
"""Approximate size of the request and response headers, in bytes."""

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
    """Measured costs: CPU seconds per turn, and bytes."""

    turn: float
    client: float
    service: float
    group: float
    request_bytes: int
    """Size of a request and its response."""
    group_bytes: float
    """Size of the results that a worker sends back, per turn."""
    task_bytes: int
    """Size of the task that is sent to a worker, per group."""


@dataclass(frozen=True)
class Assumed:
    """Assumptions that depend on the use case."""

    cores: int = 16
    """Cores per machine."""
    episodes: int = 16
    """Concurrent episodes per core."""
    agent: float = 0.02
    """CPU seconds that the agent itself needs per turn."""
    reply: float = 2.0
    """Latency of a reply in seconds, from a sampler with spare capacity."""
    turns: int = 10
    """Turns per episode."""
    group_size: int = 8
    deaths: float = 0.05
    """Failures per machine per day."""


# -- measuring -----------------------------------------------------------------------------------


async def agent(client: Any, task: int) -> float:
    """Chat for ten turns. The last prompt has about ``PROMPT`` tokens; a reply has ``REPLY``."""
    messages: list[dict[str, str]] = []
    for _ in range(Assumed.turns):
        messages.append({"role": "user", "content": "and then? " * 8})
        completion = await client.chat.completions.create(messages=messages)
        said = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
    return 1.0


def measure_turn(times: int) -> tuple[float, TrajectoryGroup, int]:
    """Return the CPU seconds per turn, a group of episodes, and the size of its pickled builder."""
    builder = ChatAgentGroupBuilder(f"{__name__}:agent", 1, Assumed.group_size)
    policy = ScriptedPolicy(lambda prompt: "so it went on " * 7)
    group = asyncio.run(do_group_rollout(builder, policy))  # warm up
    began = time.process_time()
    for _ in range(times):
        asyncio.run(do_group_rollout(builder, policy))
    turns = times * Assumed.group_size * Assumed.turns
    return (time.process_time() - began) / turns, group, len(pickle.dumps(builder))


def measure_group(group: TrajectoryGroup, times: int) -> tuple[float, float]:
    """Return the CPU seconds to unpickle a group and its size in bytes, both per turn."""
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
    """A sampling client that replies immediately, so that only the service is measured."""

    def sample(self, prompt: Any, count: int, params: Any) -> Any:
        """Return the same reply."""
        future: Future[tinker.SampleResponse] = Future()
        future.set_result(tinker.SampleResponse([SEQUENCE]))
        return SimpleNamespace(future=lambda: future)

    def get_base_model(self) -> str:
        """Return the name of the default base model."""
        return "evert-tiny"


def measure_service(times: int) -> tuple[float, float]:
    """Return the CPU seconds of a request in the server process and in the client process."""
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
    """Return the turns per second of a closed network and the mean queue length of each station.

    Uses exact mean value analysis: an episode that arrives at a station sees the mean state of a
    network with one episode fewer. The rest follows from Little's law.

    Args:
        episodes: Number of episodes in the network.
        delay: Seconds per turn that are spent without queueing.
        demands: Seconds per turn at each station. A station serves one episode at a time.
    """
    rate, waiting = 0.0, [0.0] * len(demands)
    for count in range(1, episodes + 1):
        stays = [demand * (1 + others) for demand, others in zip(demands, waiting, strict=True)]
        rate = count / (delay + sum(stays))
        waiting = [rate * stay for stay in stays]
    return rate, waiting


@dataclass(frozen=True)
class Outcome:
    """Results for a given number of machines."""

    turns: float
    """Turns per second."""
    busy: float
    """Utilization of the trainer's core."""
    megabytes: float
    """Megabytes per second through the trainer's network."""
    connections: float
    """Concurrent connections to the service."""
    lost: float
    """Groups lost and replayed per step, if each episode slot plays one episode per step."""


def simulate(machines: int, costs: Costs, assumed: Assumed, way: str = "service") -> Outcome:
    """Compute the results for a cluster.

    Args:
        machines: How many machines have workers.
        costs: The measured costs.
        assumed: The assumptions.
        way: With "service", replies go through the trainer's process. With "samplers", workers
            call other servers such as vLLM, and the trainer only receives finished groups.
    """
    cores = machines * assumed.cores
    episodes = cores * assumed.episodes
    work = costs.turn + costs.client + assumed.agent
    through = costs.service if way == "service" else 0.0
    central = through + costs.group
    # Seidmann's approximation: N cores behave like one core that is N times as fast, plus a delay.
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


# -- results -------------------------------------------------------------------------------------

WAYS = {"service": "from the trainer", "samplers": "from other servers"}


def plot(results: Mapping[str, Mapping[int, Outcome]], path: Path) -> None:
    """Plot turns per second against the number of machines."""
    figure, [axes] = new_figure(6.5, 4.0)
    for colour, (way, found) in zip(COLOURS, results.items(), strict=False):
        x, y = [*found], [each.turns for each in found.values()]
        axes.plot(x, y, color=colour, marker="o", label=WAYS[way])
    axes.set(xscale="log", yscale="log", xlabel="machines")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8.5)
    head(axes, "Where rollouts stop scaling", "turns per second, based on costs of one core")
    figure.savefig(path)


def show(console: Console, costs: Costs, results: Mapping[str, Mapping[int, Outcome]]) -> None:
    """Print the costs and the table."""
    micro = {name: getattr(costs, name) * 1e6 for name in ("turn", "client", "service", "group")}
    said = ", ".join(f"{name} {value:.0f} us" for name, value in micro.items())
    console.print(f"one turn on one core: {said}; {PROMPT} tokens in, {REPLY} out")
    console.print(
        f"bytes per turn: {costs.request_bytes} to sample, {costs.group_bytes:.0f} in a group; "
        f"{costs.task_bytes} per task"
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
    """Run the benchmark; exit with 1 if a result is impossible."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="measure for a few seconds only")
    parser.add_argument("--plot", type=Path, help="where to save the plot")
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
        sys.exit("The utilization of a core is not between 0 and 100%, so the model is wrong.")


if __name__ == "__main__":
    main()
