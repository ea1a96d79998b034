"""``VerifiersAgent``: an environment of verifiers as an agent.

    agent = VerifiersAgent({"taskset": {"id": "gsm8k"}, "agent": {"harness": {"id": "null"}}})

verifiers plays the episode with its own harness, tools and judges. It calls its model at an
endpoint, which is the URL of the agent's client, so the trainer samples the replies.
"""

# pyright: reportMissingImports=false

import asyncio
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import verifiers.v1 as vf

from evert.agents.cookbook import ENV_STOP
from evert.bridge.clients.client import AgentClient
from evert.bridge.episode.agent import Outcome
from evert.bridge.errors import InvalidDatasetError, RewardError
from evert.bridge.ownership import left_alone


class VerifiersAgent:
    """An environment of verifiers, played as an agent.

    Args:
        env: Its configuration, like the ``env`` block of a configuration of verifiers: a dict, or a
            ``vf.EnvConfig``.

    A task is a number in the taskset, or a ``vf.Task``. The reward is the trace's; its parts are
    the metrics ``reward/NAME``, beside verifiers' own metrics. If a limit of verifiers ended the
    episode, ``stop/truncated`` is set. In a multi-agent environment the policy plays all agents
    that do not name their own model; exactly one of them must have a trainable trace.

    Raises (when it plays):
        InvalidDatasetError: There is no such task.
        RewardError: No trace is trainable, or several are.
        RuntimeError: The episode failed; the message has verifiers' error.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def config(self) -> Any:
        """Return the configuration as verifiers reads it."""
        return vf.resolve_env_config(dict(self.env) if isinstance(self.env, Mapping) else self.env)

    def tasks(self, limit: int | None = None) -> list[int]:
        """Return the numbers of the first ``limit`` tasks (None: of all), for a dataset.

        Raises:
            InvalidDatasetError: The taskset has no end, and there is no limit.
        """
        taskset = vf.load_environment(self.config()).taskset
        if limit is None and not taskset.bounded:
            raise InvalidDatasetError(
                f"{type(taskset).__name__} has endless tasks; say how many: tasks(limit=1000)."
            )
        return [number for number, _ in enumerate(itertools.islice(iter(taskset), limit))]

    async def __call__(self, client: AgentClient, task: Any = 0) -> Outcome:
        """Play one episode."""
        env = await asyncio.to_thread(vf.load_environment, self.config())
        if not isinstance(task, vf.Task):
            task = await asyncio.to_thread(_task_of, env.taskset, task)
        with _key_in_environment(client.api_key) as name, left_alone():
            endpoint = vf.EvalClientConfig(base_url=client.base_url, api_key_var=name)
            async with env.serving():
                context = vf.ModelContext(model=client.model, client=endpoint)
                episode = await env.run_episode(task, context)
        return _outcome(episode)


def _task_of(taskset: Any, number: object) -> Any:
    if isinstance(number, int) and number >= 0:
        for task in itertools.islice(iter(taskset), number, number + 1):
            return task
    raise InvalidDatasetError(
        f"{type(taskset).__name__} has no task {number!r}; expected a vf.Task or the number of one "
        "in the taskset: VerifiersAgent(...).tasks()."
    )


@contextmanager
def _key_in_environment(key: str) -> Iterator[str]:
    """Set an environment variable to the key: verifiers takes a key only from there."""
    name = f"EVERT_KEY_{secrets.token_hex(8)}"
    os.environ[name] = key
    try:
        yield name
    finally:
        del os.environ[name]


def _outcome(episode: Any) -> Outcome:
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    failed = episode.last_error or next((t.last_error for t in episode.traces if not t.ok), None)
    if not episode.ok:
        said = "no error" if failed is None else f"{failed.type}: {failed.message}"
        raise RuntimeError(f"The episode of verifiers' {episode.env.id!r} failed: {said}")
    if len(trained) != 1:
        raise RewardError(
            f"The episode of verifiers' {episode.env.id!r} has {len(trained)} trainable traces; "
            "expected one, which has the reward. Make the others untrainable in its setup()."
        )
    [trace] = trained
    metrics = {f"reward/{name}": reward.score for name, reward in trace.rewards.items()}
    metrics |= {name: float(value) for name, value in trace.metrics.items()}
    if trace.stop_condition is not None:
        metrics[f"{ENV_STOP}{trace.stop_condition}"] = 1.0
    return Outcome(float(trace.reward), metrics, truncated=bool(trace.is_truncated))
