"""``AgentTaskset`` and ``AgentHarness``: an agent and its tasks as verifiers plugins.

verifiers looks up plugins by module name, so you need a module that exports both:

    from evert.verifiers import AgentHarness, AgentTaskset

    __all__ = ["AgentHarness", "AgentTaskset"]

For each rollout, verifiers provides an endpoint and a key, and records all calls to the endpoint,
including token ids when training with prime-rl. The agent's calls are sent to this endpoint
(``answered_outside.py``), and its reward is added to the trace.
"""

# pyright: reportMissingImports=false

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf

from evert.bridge.errors import InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.group import load_agent
from evert.bridge.import_paths import resolve
from evert.bridge.models.remote import RemoteModel
from evert.trainers.integrations.verifiers.answered_outside import play_at


class AgentTaskData(vf.TaskData):  # type: ignore[misc]
    """A JSON-serializable task for the agent."""

    task: Any


class AgentTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Config for ``AgentTaskset``.

    Attributes:
        tasks: Import path of a sequence of tasks, 'package.module:NAME'.
    """

    tasks: str = ""


class AgentTaskset(vf.Taskset[vf.Task[AgentTaskData], AgentTasksetConfig]):  # type: ignore[misc]
    """A verifiers taskset that loads its tasks from an import path."""

    def load(self) -> Iterator[Any]:
        """Yield each task as a ``vf.Task``."""
        for task in resolve(self.config.tasks, "tasks", InvalidDatasetError):
            yield vf.Task(AgentTaskData(prompt="the agent's own", task=task), vf.TaskConfig())


class AgentHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Config for ``AgentHarness``.

    Attributes:
        agent: Import path of the agent, 'package.module:name'.
        policy_names: Model names that refer to the policy, as in ``ChatAgentEnv``.
        agent_timeout: Maximum seconds between two of the agent's calls. None disables the timeout.
    """

    agent: str = ""
    policy_names: str | list[str] = "policy"
    agent_timeout: float | None = 600.0


class AgentHarness(vf.Harness[AgentHarnessConfig]):  # type: ignore[misc]
    """A harness that runs an agent in this process and records its reward and metrics."""

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Run the agent once.

        Raises:
            AgentError, AgentTimeoutError, RewardError: The agent failed.
            InvalidAgentError: The agent does not exist, or the task has tool servers.
        """
        if mcp_urls:
            raise InvalidAgentError(
                f"This task has tool servers ({', '.join(mcp_urls)}), but evert agents bring their "
                "own tools. Use a verifiers harness for this task."
            )
        config = self.config
        outcome = await play_at(
            _KeyedModel(ctx.model, endpoint, secret=secret),
            load_agent(config.agent),
            data.task,
            policy_names=config.policy_names,
            agent_timeout=config.agent_timeout,
        )
        trace.record_reward("agent", outcome.reward)
        trace.record_metrics(outcome.metrics)
        if outcome.truncated:
            trace.stop("truncated")
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


@dataclass(frozen=True)
class _KeyedModel(RemoteModel):
    secret: str = field(default="", repr=False)

    @property
    def api_key(self) -> str:
        return self.secret
