"""verifiers, and prime-rl over it: any agent, as a taskset and a harness.

verifiers hands each rollout an endpoint and a key, and keeps the tokens itself: the agent is called
with a client of that endpoint, and nothing of evert is between.
"""

from pkgutil import resolve_name
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI


class AgentTaskData(vf.TaskData):
    """One task, as the agent takes it; it has to survive JSON."""

    task: Any


class AgentTasksetConfig(vf.TasksetConfig):
    """Where the tasks are."""

    tasks: str = "game:TASKS"


class AgentTaskset(vf.Taskset[vf.Task[AgentTaskData], AgentTasksetConfig]):
    """The tasks of an import path."""

    def load(self):
        """One task of verifiers for each."""
        for task in resolve_name(self.config.tasks):
            yield vf.Task(AgentTaskData(prompt="the agent's own", task=task), vf.TaskConfig())


class AgentHarnessConfig(vf.HarnessConfig):
    """Which agent plays."""

    agent: str = "chat_agent:agent"


class AgentHarness(vf.Harness[AgentHarnessConfig]):
    """Calls the agent in this process; its reward is the rollout's."""

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        """Run the agent once."""
        agent = resolve_name(self.config.agent)
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            trace.record_reward("agent", await agent(client, data.task))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["AgentHarness", "AgentTaskset"]
