"""An agent that uses the Anthropic SDK: ``client.anthropic`` is an ``AsyncAnthropic`` client."""

from tasks import prompt, reward


async def agent(client, task):
    """Call the model once and return the reward."""
    message = await client.anthropic.messages.create(
        model=client.model,
        max_tokens=64,
        messages=[{"role": "user", "content": prompt(task)}],
    )
    answer = "".join(block.text for block in message.content if block.type == "text")
    return reward(answer, task)
