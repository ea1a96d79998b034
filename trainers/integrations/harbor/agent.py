"""``HarborAgent``: a Harbor trial as an agent.

    agent = HarborAgent("terminus-2", environment="docker")
    env = ChatAgentEnv(agent, "tasks/hello-world")

Harbor runs the trial in this process: it starts the environment, installs and runs its own agent,
and verifies the result. The agent's model URL points to this episode, so the trainer samples all
replies. The verifier's reward becomes the reward of the episode.
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
"""Provider name and ``Address`` field for each API, in order of preference."""

PROVIDERS = {"opencode": "evert"}
"""Provider names for agents that would call a different API if the provider were "openai"."""

LAY = 'mkdir -p "$(dirname "$FILE")" && printf %s "$TEXT" > "$FILE"'
"""Shell command that writes a file in an environment."""

WITHOUT_MODEL = {"oracle", "nop"}
"""Harbor agents that don't call a model."""

REWARD = "reward"
"""Harbor's default name for a verifier's reward."""


class TrialError(EvertError, RuntimeError):
    """A Harbor trial ended without a reward for the policy. The message contains Harbor's error."""


class HarborAgent:
    """A Harbor trial as an agent. Each task is the path of a task folder.

    Args:
        agent: The name of a Harbor agent, an import path 'package.module:Class', or a dict of
            ``AgentConfig`` fields: ``{"name": "terminus-2", "kwargs": {"max_turns": 20}}``.
        environment: Where to run the task: the name of a Harbor environment ("docker", "modal"),
            "bubblewrap" for evert's sandbox, an import path, or a dict of
            ``EnvironmentConfig`` fields.
        reward: Name of the verifier's reward to use. By default, this is the only reward or, if
            there are several, the one named "reward".
        installed: Local folders that contain the agent's program, for use with the sandbox. The
            sandbox can read these folders and their dependencies, and Harbor installs nothing.
        lean: Whether to shorten the agent's first prompt, if the agent supports that (see
            ``docs/harbor.md`` for the lengths).
        host: Interface to serve the model on, optionally with a port: "0.0.0.0:8443". Agents in a
            container cannot reach loopback; agents that run outside it, like terminus-2, can.
        serve_address: URL to give the agent instead of ``host``, for example if it connects
            through a tunnel or a TLS proxy.
        trials_dir: Where to keep Harbor's trial folders. By default, they are removed.
        **options: Other fields of Harbor's ``TrialConfig``, such as ``timeout_multiplier=2.0`` or
            ``verifier={"max_timeout_sec": 60}``.

    If there are several rewards, each one is also logged as a metric (``reward/NAME``). Exceptions
    recorded by Harbor are logged as ``exception/TYPE``. If an agent hits its time limit, the trial
    is still verified, and the episode gets ``stop/truncated``.

    Raises:
        InvalidAgentError: The agent, environment or field does not exist. During an episode: the
            agent only supports its vendor's models, or cannot reach ``host``.
        InvalidDatasetError: During an episode: the task is invalid.
        RewardError: During an episode: the verifier returned no reward with the expected name.
        TrialError: During an episode: there is no reward, or the trial failed before calling the
            model.
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
        # Harbor has its own timeouts for each phase, and containers can be slow to stop.
        self.env_options = EnvOptions(
            agent_timeout=None,
            close_timeout=30.0,
            keep_completed_arguments=self._trial.completes_arguments,
        )

    async def __call__(self, client: AgentClient, task: str) -> Outcome:
        """Run one trial."""
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
        """Return a replacement for Harbor's ``install``, which is called before the agent runs."""

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
                f"The verifier of {result.task_name} returned the rewards {[*rewards]!r:.300}; "
                f"expected one called {name!r}. Choose one with HarborAgent(reward=NAME)."
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
    """Return the trial's agent class and Harbor's ``Trial``. Importing them takes seconds.

    ``reached`` is the interface or URL that the agent uses to connect to the episode.

    Raises:
        InvalidAgentError: The agent cannot use this model.
    """
    # stop LiteLLM from downloading model prices
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from harbor.trial.trial import Trial

    if (litellm_logger := logging.getLogger("LiteLLM")).level == logging.NOTSET:
        litellm_logger.setLevel(logging.WARNING)  # LiteLLM's own handler prints every call
    agent_class = AgentFactory.get_agent_class_from_config(config.agent)
    name = config.agent.name
    model_agents = {*AgentFactory.registered_names()} - WITHOUT_MODEL
    if agent_class.MODEL_CONNECTION is None and name in model_agents:
        raise InvalidAgentError(
            f"The Harbor agent {name!r} only supports its vendor's models, so it cannot be "
            "trained. Use a different agent, such as terminus-2 or mini-swe-agent."
        )
    is_apart = config.environment.type not in (None, EnvironmentType.SINGULARITY)
    if issubclass(agent_class, BaseInstalledAgent) and is_apart and reached == LOOPBACK:
        raise InvalidAgentError(
            f"Harbor runs the agent {name!r} inside the environment, where {LOOPBACK} does not "
            "refer to this machine. Pass an address of this machine, such as host='172.17.0.1' for "
            "Docker. This is not needed for agents that run outside, such as terminus-2."
        )
    return agent_class, Trial


def _connection(agent_class: Any, address: Address, model: str) -> dict[str, Any]:
    """Return the ``AgentConfig`` fields that connect the agent to the episode."""
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
    """Return the end of the verifier's output, or "" if it is missing or not a regular file."""
    with suppress(OSError, ValueError):
        text = read_left(file.parent.resolve(), file.name).decode(errors="replace")
        return redacted_end(text, LOGGED_OUTPUT)
    return ""


def _check_end(result: Any, client: AgentClient) -> None:
    """Raise an error if there is no reward, or if the trial failed before calling the model."""
    error, inboxes = result.exception_info, client._endpoint.episode.inboxes
    latest = [inbox.latest for inbox in inboxes if inbox.latest is not None]
    is_rewarded = result.verifier_result is not None and bool(result.verifier_result.rewards)
    if is_rewarded and (latest or error is None):
        return
    for call in latest:
        if getattr(call.refusal, "code", None) == "context_length_exceeded":
            raise call.refusal  # type: ignore[misc]  # not handled by the agent
    ended = "before its agent called the model" if is_rewarded else "without a reward"
    reason = f"{error.exception_type}: {error.exception_message}" if error else "no verifier ran"
    raise TrialError(f"The trial of {result.task_name} ended {ended}: {reason:.2000}")
