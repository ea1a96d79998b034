"""An agent that uses the OpenAI SDK: ``client`` works like ``openai.AsyncOpenAI``."""

from tasks import prompt, reward


async def agent(client, task):
    """Call the model once and return the reward."""
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": prompt(task)}]
    )
    return reward(completion.choices[0].message.content, task)
