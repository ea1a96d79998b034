"""Environments for verifiers 0.4 ("v1"): a taskset and the harnesses that play it.

    agent = VerifiersAgent({"taskset": {"id": "gsm8k"}, "agent": {"harness": {"id": "null"}}})

verifiers plays the episode with its own harness, tools and judges. The model endpoint that it calls
is the base URL of the agent's client, so the trainer samples the replies.
"""

# pyright: reportMissingImports=false

import asyncio
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import harness_class, taskset_class

from evert.bridge.clients.client import AgentClient
from evert.bridge.episode.agent import ENV_STOP, Outcome
from evert.bridge.errors import InvalidDatasetError, RewardError
from evert.bridge.ownership import left_alone
from evert.envs.games import GameError

EVAL = "eval."
"""Prefix of options that apply to held-out tasks only."""

ENDLESS = 1_000
"""Number of tasks to use from an infinite taskset."""


class V1Environment:
    """A verifiers taskset with the agents that play it.

    If the taskset or the environment declares a harness, that harness is used; otherwise,
    verifiers' chat loop without a shell ("null") is used. Programs run on this machine, so
    harnesses that execute the policy's code are rejected.

    Args:
        name: Name of the taskset.
        options: As in ``evert.envs.tasksets.verifiers.verifiers``.

    Raises:
        GameError: The environment requires a container.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        held_out = {k.removeprefix(EVAL): v for k, v in options.items() if k.startswith(EVAL)}
        train = {key: value for key, value in options.items() if not key.startswith(EVAL)}
        blocks = {"train": _block(name, train)}
        if held_out:
            blocks["eval"] = _block(name, {**train, **held_out})
        self.agents = {key: VerifiersAgent(block) for key, block in blocks.items()}
        configs = {key: agent.config() for key, agent in self.agents.items()}
        self.splits: Mapping[str, Sequence[Any]] = {
            key: _Tasks(vf.load_taskset(config.taskset)) for key, config in configs.items()
        }
        self._served = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Served]]()
        _check(name, configs["train"], options, self.splits["train"][0])

    async def play(self, client: AgentClient, split: str, number: int) -> Outcome:
        """Play a task in the same way as ``VerifiersAgent``."""
        task = await asyncio.to_thread(self.splits[split].__getitem__, number)
        served = self._served.setdefault(asyncio.get_running_loop(), {})
        with left_alone():
            async with served.setdefault(split, _Served(self.agents[split]))() as env:
                return await _played(env, client, task)


class VerifiersAgent:
    """A verifiers environment as an agent.

    Args:
        env: The environment's configuration, as in the ``env`` block of a verifiers config: a dict
            or a ``vf.EnvConfig``.

    A task is an index into the taskset or a ``vf.Task``. The reward is the reward of the trace, and
    its components are logged as ``reward/NAME`` next to verifiers' own metrics. If one of
    verifiers' limits ended the episode, ``stop/truncated`` is set. In a multi-agent environment,
    the policy plays all agents that do not specify a model, and exactly one of them must have a
    trainable trace.

    Raises (while playing):
        InvalidDatasetError: There is no such task.
        RewardError: There is not exactly one trainable trace.
        RuntimeError: The episode failed; the message quotes verifiers' error.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def config(self) -> Any:
        """Return the configuration as verifiers parses it."""
        return vf.resolve_env_config(dict(self.env) if isinstance(self.env, Mapping) else self.env)

    def tasks(self, limit: int | None = None) -> list[int]:
        """Return the indices of the first ``limit`` tasks (default: all tasks), for a dataset.

        Raises:
            InvalidDatasetError: The taskset is infinite, and ``limit`` is None.
        """
        taskset = vf.load_environment(self.config()).taskset
        if limit is None and not taskset.bounded:
            raise InvalidDatasetError(
                f"{type(taskset).__name__} is infinite; set a limit, such as tasks(limit=1000)."
            )
        return [number for number, _ in enumerate(itertools.islice(iter(taskset), limit))]

    async def __call__(self, client: AgentClient, task: Any = 0) -> Outcome:
        """Play one episode."""
        env = await asyncio.to_thread(vf.load_environment, self.config())
        if not isinstance(task, vf.Task):
            task = await asyncio.to_thread(_task_of, env.taskset, task)
        with left_alone():
            async with env.serving():
                return await _played(env, client, task)


async def _played(env: Any, client: AgentClient, task: Any) -> Outcome:
    with _key_in_environment(client.api_key) as name:
        endpoint = vf.EvalClientConfig(base_url=client.base_url, api_key_var=name)
        context = vf.ModelContext(model=client.model, client=endpoint)
        return _outcome(await env.run_episode(task, context))


class _Served:
    """An agent's environment, whose servers run while any episode on the event loop needs them."""

    def __init__(self, agent: VerifiersAgent) -> None:
        self._agent, self._lock, self._users = agent, asyncio.Lock(), 0
        self._exits = AsyncExitStack()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        async with self._lock:
            if not self._users:
                self._env = await asyncio.to_thread(vf.load_environment, self._agent.config())
                await self._exits.enter_async_context(self._env.serving())
            self._users += 1
        try:
            yield self._env
        finally:
            async with self._lock:
                self._users -= 1
                if not self._users:
                    await self._exits.aclose()


class _Tasks(Sequence[Any]):
    """The tasks in a taskset. An infinite taskset is only read as far as needed."""

    def __init__(self, taskset: Any) -> None:
        self._iterator = iter(taskset)
        self._items = [*self._iterator] if taskset.bounded else []
        self._count = len(self._items) if taskset.bounded else ENDLESS
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        with self._lock:
            self._items += itertools.islice(self._iterator, max(0, number + 1 - len(self._items)))
        return self._items[number]


def _block(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``env`` block of a verifiers config as a dict."""
    block: dict[str, Any] = {"taskset": {"id": name}}
    taskset_class(name)  # raises if there is no such taskset, unlike the next line
    kind = vf.env_config_type(name)
    for key, value in options.items():
        *parents, last = key.split(".")
        place = block if key.partition(".")[0] in kind.model_fields else block["taskset"]
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    is_bare = vf.default_harness_id(name) == "bash"
    for role, declared in agent_config_fields(kind(taskset=block["taskset"])).items():
        agent = block.setdefault(role, {})
        if is_bare and declared.harness is None:
            agent["harness"] = {"id": "null", **agent.get("harness", {})}
        if "runtime" not in declared.model_fields_set:
            agent["runtime"] = {"type": "subprocess", **agent.get("runtime", {})}
    return block


def _check(name: str, config: Any, options: Mapping[str, Any], task: Any) -> None:
    """Reject environments that require a container, unless the options set the runtime."""
    for role, harness in config.agent_harnesses().items():
        kind, runtime = harness_class(harness.id), getattr(config, role).runtime.type
        if runtime != "subprocess":
            why = "" if f"{role}.runtime.type" in options else f"its {role} runs in {runtime}"
        elif kind.EXECUTES_CODE:
            why = f"its harness {harness.id} runs commands written by the policy"
        elif kind.NEEDS_CONTAINER or task.NEEDS_CONTAINER:
            why = "it requires a container"
        else:
            why = task.data.image and f"its tasks run in the image {task.data.image}"
        if why:
            raise GameError(
                f"tasks=verifiers:{name}: {why}, but evert does not start containers. If Docker is "
                f"available, set tasks.{role}.runtime.type=docker (or another verifiers runtime). "
                "Otherwise, choose an environment that doesn't require a container."
            )


def _task_of(taskset: Any, number: object) -> Any:
    if isinstance(number, int) and number >= 0:
        for task in itertools.islice(iter(taskset), number, number + 1):
            return task
    raise InvalidDatasetError(
        f"{type(taskset).__name__} has no task {number!r}; expected a vf.Task or an index from "
        "VerifiersAgent(...).tasks()."
    )


@contextmanager
def _key_in_environment(key: str) -> Iterator[str]:
    """Put the key in an environment variable, the only place that verifiers reads keys from."""
    name = f"EVERT_KEY_{secrets.token_hex(8)}"
    os.environ[name] = key
    try:
        yield name
    finally:
        del os.environ[name]


def _outcome(episode: Any) -> Outcome:
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    error = episode.last_error or next((t.last_error for t in episode.traces if not t.ok), None)
    if not episode.ok:
        reason = "no error" if error is None else f"{error.type}: {error.message}"
        raise RuntimeError(f"The verifiers episode of {episode.env.id!r} failed: {reason}")
    if len(trained) != 1:
        raise RewardError(
            f"The verifiers episode of {episode.env.id!r} has {len(trained)} trainable traces; "
            "expected exactly one, which provides the reward. Make the others untrainable in the "
            "environment's setup()."
        )
    [trace] = trained
    metrics = {f"reward/{name}": reward.score for name, reward in trace.rewards.items()}
    metrics |= {name: float(value) for name, value in trace.metrics.items()}
    if trace.stop_condition is not None:
        metrics[f"{ENV_STOP}{trace.stop_condition}"] = 1.0
    return Outcome(float(trace.reward), metrics, truncated=bool(trace.is_truncated))
