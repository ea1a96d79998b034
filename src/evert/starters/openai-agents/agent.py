"""An agent with OpenAI's Agents SDK, whose model calls through ``client.openai``."""

from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from tasks import prompt, reward

set_tracing_disabled(True)  # else it sends traces to OpenAI if OPENAI_API_KEY is set


async def agent(client, task):
    """Run the agent once, and return the reward."""
    model = OpenAIResponsesModel(model=client.model, openai_client=client.openai)
    result = await Runner.run(Agent(name="Player", model=model), prompt(task))
    return reward(result.final_output, task)
