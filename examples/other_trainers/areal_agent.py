"""AReaL calls the ``async run`` of any class, serves the model to it and records the tokens."""

from chat_agent import agent
from openai import AsyncOpenAI


class AgentWorkflow:
    """An evert agent as a workflow. Use it with ``workflow="areal_agent.AgentWorkflow"``."""

    async def run(self, data, *, base_url, api_key, http_client=None, **_):
        """Play a dataset row's task and return the reward."""
        client = AsyncOpenAI(
            base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0
        )
        return float(await agent(client, data["task"]))
