"""An agent built with the OpenAI Agents SDK, which calls the model through ``client.openai``."""

from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from tasks import prompt, reward

set_tracing_disabled(True)  # otherwise, traces are sent to OpenAI if OPENAI_API_KEY is set


async def agent(client, task):
    """Run the agent once and return the reward."""
    model = OpenAIResponsesModel(model=client.model, openai_client=client.openai)
    result = await Runner.run(Agent(name="Player", model=model), prompt(task))
    return reward(result.final_output, task)
