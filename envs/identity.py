"""Identity: say who you are told to be.

The hello-world of Agent-lightning (its "identity" example): the prompt is "Let's play a game. Say
you are {task}.", the reward 1 for "I am {task}" or "I'm {task}", -1 for "not {task}", else 0. Tasks
are numbers; training uses 0..999, and 1000..1023 are held out.
"""

from evert.bridge.client import AgentClient

TRAIN_TASKS = range(1000)
TEST_TASKS = range(1000, 1024)


async def identity_agent(client: AgentClient, task: int) -> float:
    """One question, one answer; the reward is -1, 0 or 1."""
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": f"Let's play a game. Say you are {task}."}],
    )
    return score(completion.choices[0].message.content or "", task)


def score(answer: str, task: int) -> float:
    """1 if the answer claims to be ``task``, -1 if it denies it, else 0."""
    if f"I am {task}" in answer or f"I'm {task}" in answer:
        return 1.0
    if f"not {task}" in answer:
        return -1.0
    return 0.0
