"""NeMo Gym: a ``SimpleResponsesAPIAgent`` that runs an agent against the model server."""

from chat_agent import agent
from fastapi import Body
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseOutputMessageForTraining
from nemo_gym.server_utils import get_server_url
from openai import AsyncOpenAI
from pydantic import ConfigDict

TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class AgentConfig(BaseResponsesAPIAgentConfig):
    """Configures which model server the agent uses."""

    model_server: ModelServerRef


class TaskRequest(BaseRunRequest):
    """A dataset row, which includes the agent's ``task``."""

    model_config = ConfigDict(extra="allow")


class EvertAgent(SimpleResponsesAPIAgent):
    """Plays one episode per row. The agent scores itself, so no resources server is needed."""

    config: AgentConfig

    async def run(self, body: TaskRequest = Body()) -> BaseVerifyResponse:  # noqa: B008
        """Play an episode; return all replies with their token ids from the model server."""
        replies = []

        async def keep(response):
            await response.aread()
            replies.append(response.json()["choices"][0]["message"])

        url = get_server_url(self.config.model_server.name)
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            client._client.event_hooks["response"].append(keep)
            reward = await agent(client, body.task)
        output = [
            NeMoGymResponseOutputMessageForTraining(
                id=f"msg_{number}",
                content=[{"type": "output_text", "text": said["content"] or "", "annotations": []}],
                **{name: said[name] for name in TOKENS},
            )
            for number, said in enumerate(replies)
        ]
        response = NeMoGymResponse(
            id="evert", created_at=0, model="policy", object="response", output=output,
            parallel_tool_calls=False, tool_choice="none", tools=[],
        )  # fmt: skip
        params = body.responses_create_params
        return BaseVerifyResponse(
            responses_create_params=params, response=response, reward=float(reward)
        )

    async def responses(self, body=Body()):  # noqa: B008
        """Not supported, since the agent creates its own conversation."""
        raise NotImplementedError


if __name__ == "__main__":
    EvertAgent.run_webserver()
