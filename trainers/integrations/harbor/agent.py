"""``HarborAgent``: a trial of Harbor as an agent.

    agent = HarborAgent("terminus-2", environment="docker")
    env = ChatAgentEnv(agent, "tasks/hello-world")

Harbor runs the trial in this process: it starts the environment, installs and runs its agent, and
verifies the result. Harbor configures the agent with this episode's URL as its model, so the
trainer samples the replies. The verifier's reward becomes the episode's reward.
"""

# pyright: reportMissingImports=false

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.environment_type import EnvironmentType
from harbor.models.model_api_format import ModelApiFormat
from harbor.models.trial.error_policy import FailureCause

from evert.agents.commands import LOGGED_OUTPUT, new_folder, read_left
from evert.agents.variables import addresses
from evert.bridge.clients.client import AgentClient
from evert.bridge.clients.http.server import Address
from evert.bridge.env.options import EnvOptions
from evert.bridge.episode.agent import Outcome
from evert.bridge.errors import EvertError, InvalidAgentError, RewardError
from evert.bridge.redaction import redacted_end
from evert.trainers.integrations.harbor.folders import read_task, task_folders
from evert.trainers.integrations.harbor.options import TrialOptions, checked_url

LOOPBACK = "127.0.0.1"

PROTOCOLS = {
    ModelApiFormat.OPENAI_CHAT_COMPLETIONS: ("openai", "base_url"),
    ModelApiFormat.OPENAI_RESPONSES: ("openai", "base_url"),
    ModelApiFormat.ANTHROPIC_MESSAGES: ("anthropic", "root_url"),
    ModelApiFormat.GOOGLE_GENERATE_CONTENT: ("gemini", "root_url"),
}
"""The agents' APIs, in order of preference -> the provider's name, and the ``Address`` field."""

PROVIDERS = {"opencode": "evert"}
"""Agents that use another API for the provider "openai" -> the provider's name to use instead."""

LAY = 'mkdir -p "$(dirname "$FILE")" && printf %s "$TEXT" > "$FILE"'
"""A shell command that writes a file in an environment."""

WITHOUT_MODEL = {"oracle", "nop"}
"""Harbor's agents that call no model."""

REWARD = "reward"
"""Harbor's name for a reward that the verifier did not name."""


class TrialError(EvertError, RuntimeError):
    """A Harbor trial gave the policy no reward; the message quotes Harbor's error."""


class HarborAgent:
    """A Harbor trial as an agent. A task is the path of a task folder.

    Args:
        agent: Harbor's name of an agent, or an import path 'package.module:Class'; or the fields
            of Harbor's ``AgentConfig``: ``{"name": "terminus-2", "kwargs": {"max_turns": 20}}``.
        environment: Where the task runs: Harbor's name ("docker", "modal"), "bubblewrap" for
            evert's sandbox, or an import path; or the fields of Harbor's ``EnvironmentConfig``.
        reward: Name of the verifier's reward to use. By default, a single reward may have any name.
        installed: One or more folders of this machine with the agent's program, for the sandbox.
            The sandbox shows them and what they need, and Harbor installs nothing.
        lean: Whether to shorten the agent's first prompt, for agents that have options for it
            (``docs/harbor.md`` has the lengths).
        host: Interface on which the model is served, optionally with a port: "0.0.0.0:8443".
            Agents in a container cannot reach loopback; agents outside (terminus-2) can.
        serve_address: The URL at which the agent reaches ``host``, if it differs: that of a tunnel
            or of a TLS proxy. None: the interface and its port.
        trials_dir: Where to keep Harbor's trial folders. None: they are removed.
        **options: Further fields of Harbor's ``TrialConfig``: ``timeout_multiplier=2.0``,
            ``verifier={"max_timeout_sec": 60}``.

    If there are several rewards, each is a metric, too (``reward/NAME``). An exception that Harbor
    recorded is the metric ``exception/TYPE``. If Harbor stops an agent at its time limit, the trial
    is still verified, and the episode is ``stop/truncated``.

    Raises:
        InvalidAgentError: There is no such agent, environment or field. During an episode: the
            agent supports only its vendor's models, or cannot reach ``host``.
        InvalidDatasetError: During an episode: the task is broken.
        RewardError: During an episode: the verifier gave no reward with the expected name.
        TrialError: During an episode: there is no reward, or the trial failed before a model call.
    """

    from_path = True
    tasks = staticmethod(task_folders)

    def __init__(
        self,
        agent: str | Mapping[str, Any] = "terminus-2",
        environment: str | Mapping[str, Any] = "docker",
        *,
        reward: str = REWARD,
        installed: str | Sequence[str] = (),
        lean: bool = False,
        host: str = LOOPBACK,
        serve_address: str | None = None,
        trials_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        self._reward = reward
        self._host = host
        self._url = serve_address and checked_url(serve_address)
        self._trials_dir = str(trials_dir) if trials_dir else None
        self._trial = TrialOptions(agent, environment, installed, lean, **options)
        # Harbor's phases have their own time limits, and containers stop slowly.
        self.env_options = EnvOptions(
            agent_timeout=None,
            close_timeout=30.0,
            keep_completed_arguments=self._trial.completes_arguments,
        )

    async def __call__(self, client: AgentClient, task: str) -> Outcome:
        """Play one trial."""
        await asyncio.to_thread(read_task, task)
        draft = self._trial.config(task, "trials")
        agent_class, trial_class = await asyncio.to_thread(_classes, draft, self._url or self._host)
        is_inside = self._trial.is_sandbox and issubclass(agent_class, BaseInstalledAgent)
        async with new_folder() as folder:
            address = client.serve(f"{folder}/model" if is_inside else self._host)
            if self._url and not is_inside:
                address = replace(address, root_url=self._url, base_url=f"{self._url}/v1")
            connection = _connection(agent_class, address, client.model)
            config = self._trial.config(task, self._trials_dir or f"{folder}/trials", **connection)
            if is_inside:
                config.environment.kwargs["model"] = address.socket
            trial = await trial_class.create(config)
            if issubclass(agent_class, BaseInstalledAgent):
                trial.agent.install = self._installer(trial.agent.install)
            result = await trial.run()
            output = _output(trial.paths.test_stdout_path)
        _check_end(result, client)
        return self._outcome(result, output)

    def _installer(self, harbors: Callable[[Any], Awaitable[None]]) -> Callable[..., Any]:
        """Return a replacement for Harbor's ``install``, which runs before the agent."""

        async def install(environment: Any) -> None:
            if not self._trial.programs:
                await harbors(environment)
            for path, text in self._trial.files.items():
                await environment.exec(LAY, env={"FILE": path, "TEXT": text})

        return install

    def _outcome(self, result: Any, output: str) -> Outcome:
        rewards = result.verifier_result.rewards
        is_one = self._reward == REWARD and len(rewards) == 1
        name = next(iter(rewards)) if is_one else self._reward
        if name not in rewards:
            raise RewardError(
                f"The verifier of {result.task_name} gave the rewards {[*rewards]!r:.300}; "
                f"expected one called {name!r}. Name the reward: HarborAgent(reward=NAME)."
            )
        reward = float(rewards[name])
        metrics = {"solved": float(reward >= 1)}
        if len(rewards) > 1:
            metrics |= {f"reward/{name}": float(value) for name, value in rewards.items()}
        logs = {"task": result.task_name, "verifier": output}
        if (error := result.exception_info) is not None:
            metrics[f"exception/{error.exception_type}"] = 1.0
            logs["exception"] = redacted_end(error.exception_message, LOGGED_OUTPUT)
        exhausted = result.failure_cause is FailureCause.AGENT_EXHAUSTED_BUDGET
        return Outcome(reward, metrics, logs, truncated=exhausted)


def _classes(config: Any, reached: str) -> tuple[Any, Any]:
    """Return a trial's agent class and Harbor's ``Trial``. Importing them takes seconds.

    ``reached`` is the interface or URL at which the agent reaches the episode.

    Raises:
        InvalidAgentError: The agent cannot use this model.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else LiteLLM downloads prices
    from harbor.trial.trial import Trial

    if (litellm_logger := logging.getLogger("LiteLLM")).level == logging.NOTSET:
        litellm_logger.setLevel(logging.WARNING)  # its own handler prints a line per call
    agent_class = AgentFactory.get_agent_class_from_config(config.agent)
    name = config.agent.name
    model_agents = {*AgentFactory.registered_names()} - WITHOUT_MODEL
    if agent_class.MODEL_CONNECTION is None and name in model_agents:
        raise InvalidAgentError(
            f"Harbor's agent {name!r} supports only its vendor's models, so it cannot be "
            "trained. Use another agent, such as terminus-2 or mini-swe-agent."
        )
    is_apart = config.environment.type not in (None, EnvironmentType.SINGULARITY)
    if issubclass(agent_class, BaseInstalledAgent) and is_apart and reached == LOOPBACK:
        raise InvalidAgentError(
            f"Harbor runs the agent {name!r} in the environment, where {LOOPBACK} is not this "
            "machine. Give an address of this machine, such as host='172.17.0.1' for Docker. "
            "Agents that run outside, such as terminus-2, do not need it."
        )
    return agent_class, Trial


def _connection(agent_class: Any, address: Address, model: str) -> dict[str, Any]:
    """Return the fields of Harbor's ``AgentConfig`` that connect the agent to the episode."""
    spec = agent_class.MODEL_CONNECTION
    protocols = [
        protocol for protocol in PROTOCOLS if spec and protocol in spec.supported_api_formats
    ]
    provider, where = PROTOCOLS[(protocols or [*PROTOCOLS])[0]]
    provider = PROVIDERS.get(agent_class.name(), provider)
    fields: dict[str, Any] = {"model_name": f"{provider}/{model}"}
    if spec is not None and agent_class.capabilities.base_url:
        fields |= {"base_url": getattr(address, where), "model_api_key_name": "OPENAI_API_KEY"}
        fields["model_api_format"] = protocols[0] if protocols else None
    return {**fields, "env": addresses(address, model, str(urlsplit(address.root_url).hostname))}


def _output(file: Path) -> str:
    """Return the end of the verifier's output; "" if it is missing or not a regular file."""
    with suppress(OSError, ValueError):
        text = read_left(file.parent.resolve(), file.name).decode(errors="replace")
        return redacted_end(text, LOGGED_OUTPUT)
    return ""


def _check_end(result: Any, client: AgentClient) -> None:
    """Raise if a trial does not score the policy: no reward, or an error before any model call."""
    error, inboxes = result.exception_info, client._endpoint.episode.inboxes
    latest = [inbox.latest for inbox in inboxes if inbox.latest is not None]
    is_rewarded = result.verifier_result is not None and bool(result.verifier_result.rewards)
    if is_rewarded and (latest or error is None):
        return
    for call in latest:
        if getattr(call.refusal, "code", None) == "context_length_exceeded":
            raise call.refusal  # type: ignore[misc]  # the agent did not handle it
    ended = "before its agent called the model" if is_rewarded else "without a reward"
    reason = f"{error.exception_type}: {error.exception_message}" if error else "no verifier ran"
    raise TrialError(f"The trial of {result.task_name} ended {ended}: {reason:.2000}")
