"""``HarborAgent``: a trial of Harbor's as an agent.

    agent = HarborAgent("terminus-2", environment="docker")
    env = ChatAgentEnv(agent, "tasks/hello-world")

Harbor plays the trial itself, in this process: it starts the environment, sets up its agent, runs
it, and verifies. The agent's model is the address of the episode, given in the way that Harbor
gives one, so that what it asks is the trainer's to sample. What the verifier says is the reward.
"""

# pyright: reportMissingImports=false

import asyncio
import logging
import os
import tempfile
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

from evert.agents.commands import read_left
from evert.agents.supervisor import remove
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
"""What an agent may speak, the best first -> such a provider's name, and where it is served."""

PROVIDERS = {"opencode": "evert"}
"""Agents that would take "openai" for another protocol -> the provider's name for them."""

LAY = 'mkdir -p "$(dirname "$FILE")" && printf %s "$TEXT" > "$FILE"'
"""A line that lays a file into an environment."""

WITHOUT_MODEL = {"oracle", "nop"}
"""Agents of Harbor's that ask no model."""

REWARD = "reward"
"""What Harbor calls the reward of a verifier that says no name."""

LOGGED_OUTPUT = 4000
"""Characters of the end of the verifier's output that go to the transition's logs."""


class TrialError(EvertError, RuntimeError):
    """A trial of Harbor's has no reward of the policy's; the message has Harbor's own error."""


class HarborAgent:
    """A trial of Harbor's, played as an agent. A task is the path of a task's folder.

    Args:
        agent: Harbor's name of it, or an import path 'package.module:Class' of one; or the fields
            of Harbor's ``AgentConfig``: ``{"name": "terminus-2", "kwargs": {"max_turns": 20}}``.
        environment: Where the task is: Harbor's name of it ("docker", "modal"), "bubblewrap" for
            evert's sandbox, or an import path; or the fields of Harbor's ``EnvironmentConfig``.
        reward: Which of the verifier's rewards is the episode's; where there is one, that one.
        installed: A folder of this machine with the agent's program, or several, for a sandbox: it
            shows them and what they need, the agent finds them, and Harbor installs nothing.
        lean: Whether to leave out most of what makes the agent's first prompt long, where there
            are switches for it (``docs/harbor.md`` has the lengths).
        host: Interface on which the model is served, "0.0.0.0:8443" with its port. An agent that
            runs in a container needs another than loopback; Harbor's that run outside of it
            (terminus-2) do not.
        serve_address: The URL under which the agent reaches ``host``, where that is another: of a
            tunnel's end, or of a proxy with TLS. None: the interface and its port.
        trials_dir: Where Harbor's folders of trials stay. None: they are removed.
        **options: Further fields of Harbor's ``TrialConfig``: ``timeout_multiplier=2.0``,
            ``verifier={"max_timeout_sec": 60}``.

    Several rewards are metrics too, ``reward/NAME``, and so is the exception that Harbor recorded.
    An agent that Harbor stopped at its time limit is verified; the episode is ``stop/truncated``.

    Raises:
        InvalidAgentError: There is no such agent, environment or field; when it plays: the agent
            takes no other model than its maker's.
        InvalidDatasetError: The task is broken (when it plays).
        RewardError: The verifier has several rewards, and none is called ``reward`` (so, too).
        TrialError: The trial ended without a reward, or with an error before any call (so, too).
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
        # Harbor's phases have limits of their own, and containers take time to stop.
        self.env_options = EnvOptions(
            agent_timeout=None,
            close_timeout=30.0,
            keep_completed_arguments=self._trial.completes_arguments,
        )

    async def __call__(self, client: AgentClient, task: str) -> Outcome:
        """Play one trial."""
        await asyncio.to_thread(read_task, task)
        own = self._trial.config(task, "trials")
        agent_class, trial_class = await asyncio.to_thread(_classes, own, self._url or self._host)
        is_inside = self._trial.is_sandbox and issubclass(agent_class, BaseInstalledAgent)
        folder = tempfile.mkdtemp(prefix="evert-trial-")
        try:
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
            said = _output(trial.paths.test_stdout_path)
        finally:
            await asyncio.to_thread(remove, folder)
        _check_end(result, client)
        return self._outcome(result, said)

    def _installer(self, harbors: Callable[[Any], Awaitable[None]]) -> Callable[..., Any]:
        """What Harbor calls before an agent's first run, to install it in the environment."""

        async def install(environment: Any) -> None:
            if not self._trial.programs:
                await harbors(environment)
            for path, text in self._trial.files.items():
                await environment.exec(LAY, env={"FILE": path, "TEXT": text})

        return install

    def _outcome(self, result: Any, said: str) -> Outcome:
        rewards = result.verifier_result.rewards
        is_one = self._reward == REWARD and len(rewards) == 1
        name = next(iter(rewards)) if is_one else self._reward
        if name not in rewards:
            raise RewardError(
                f"The verifier of {result.task_name} gave the rewards {[*rewards]!r:.300}; "
                f"expected one called {name!r}. Say which it is: HarborAgent(reward=NAME)."
            )
        reward = float(rewards[name])
        metrics = {"solved": float(reward >= 1)}
        if len(rewards) > 1:
            metrics |= {f"reward/{name}": float(value) for name, value in rewards.items()}
        logs = {"task": result.task_name, "verifier": said}
        if (error := result.exception_info) is not None:
            metrics[f"exception/{error.exception_type}"] = 1.0
            logs["exception"] = redacted_end(error.exception_message, LOGGED_OUTPUT)
        exhausted = result.failure_cause is FailureCause.AGENT_EXHAUSTED_BUDGET
        return Outcome(reward, metrics, logs, truncated=exhausted)


def _classes(config: Any, reached: str) -> tuple[Any, Any]:
    """The agent's class, and that of trials. Their modules take seconds to load.

    Args:
        config: The trial's.
        reached: The interface or the address that is to lead to the episode.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
    from harbor.trial.trial import Trial

    if (told := logging.getLogger("LiteLLM")).level == logging.NOTSET:
        told.setLevel(logging.WARNING)  # it has a handler of its own, for each call
    agent_class = AgentFactory.get_agent_class_from_config(config.agent)
    name = config.agent.name
    others = {*AgentFactory.registered_names()} - WITHOUT_MODEL
    if agent_class.MODEL_CONNECTION is None and name in others:
        raise InvalidAgentError(
            f"Harbor's agent {name!r} asks its maker's models and takes no other, so there is "
            "nothing to train. Take another, like terminus-2 or mini-swe-agent."
        )
    is_apart = config.environment.type not in (None, EnvironmentType.SINGULARITY)
    if issubclass(agent_class, BaseInstalledAgent) and is_apart and reached == LOOPBACK:
        raise InvalidAgentError(
            f"Harbor runs the agent {name!r} in the environment, from where {LOOPBACK} does not "
            "lead here. Name an address of this machine that does: host='172.17.0.1' for Docker. "
            "Agents that run outside, like terminus-2, need none."
        )
    return agent_class, Trial


def _connection(agent_class: Any, address: Address, model: str) -> dict[str, Any]:
    """An agent's fields that lead it to the episode."""
    spec = agent_class.MODEL_CONNECTION
    spoken = [each for each in PROTOCOLS if spec and each in spec.supported_api_formats]
    provider, where = PROTOCOLS[(spoken or [*PROTOCOLS])[0]]
    provider = PROVIDERS.get(agent_class.name(), provider)
    fields: dict[str, Any] = {"model_name": f"{provider}/{model}"}
    if spec is not None and agent_class.capabilities.base_url:
        fields |= {"base_url": getattr(address, where), "model_api_key_name": "OPENAI_API_KEY"}
        fields["model_api_format"] = spoken[0] if spoken else None
    return {**fields, "env": addresses(address, model, str(urlsplit(address.root_url).hostname))}


def _output(file: Path) -> str:
    """The end of what the verifier wrote, as far as it is a file of its own."""
    with suppress(OSError, ValueError):
        said = read_left(file.parent.resolve(), file.name).decode(errors="replace")
        return redacted_end(said, LOGGED_OUTPUT)
    return ""


def _check_end(result: Any, client: AgentClient) -> None:
    """Raise for a trial that says nothing of the policy: without a reward, or without a call."""
    error, inboxes = result.exception_info, client._endpoint.episode.inboxes
    latest = [inbox.latest for inbox in inboxes if inbox.latest is not None]
    is_rewarded = result.verifier_result is not None and bool(result.verifier_result.rewards)
    if is_rewarded and (latest or error is None):
        return
    for call in latest:
        if getattr(call.refusal, "code", None) == "context_length_exceeded":
            raise call.refusal  # type: ignore[misc]  # it did not cope
    ended = "before its agent asked the model" if is_rewarded else "without a reward"
    said = f"{error.exception_type}: {error.exception_message}" if error else "no verifier ran"
    raise TrialError(f"The trial of {result.task_name} ended {ended}: {said:.2000}")
