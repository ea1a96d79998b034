"""Agents that the verl tests refer to by import path. verl's own processes import them, too."""

import asyncio
from typing import Any, ClassVar

from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import AgentClient
from evert.bridge.env.options import EnvOptions


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def ask(client: AgentClient, messages: list[Any]) -> Any:
    return (await client.chat.completions.create(messages=messages)).choices[0].message


async def two_talks(client: AgentClient, task: int) -> float:
    """Alternate between two conversations, which gives two lineages."""
    talks: list[list[Any]] = [[user(f"I am A{task}")], [user(f"I am B{task}")]]
    for _ in range(2):
        for messages in talks:
            messages += [await ask(client, messages), user("Go on")]
    client.reward(0.25)
    return float(task % 2)


async def calls_at_once(client: AgentClient, task: int) -> float:
    """Make two concurrent calls, which gives two lineages."""
    await asyncio.gather(*[ask(client, [user(f"I am {name}{task}")]) for name in "AB"])
    client.reward(0.25)
    return float(task % 2)


async def short_and_long(client: AgentClient, task: int) -> float:
    """Play two conversations. The second prompt is longer than an episode's first prompt may be."""
    await ask(client, [user("Hi")])
    await ask(client, [user("Why? " * task)])
    return 1.0


async def stops_at_lines(client: AgentClient) -> float:
    completion = await client.chat.completions.create(messages=[user("Hi")], stop=["\n"])
    return float(completion.choices[0].finish_reason == "stop")


async def odd_tasks_fail(client: AgentClient, task: int) -> float:
    await ask(client, [user(f"Task {task}")])
    if task % 2:
        raise KeyError(task)
    return 1.0


async def silent(client: AgentClient, task: int) -> float:
    await asyncio.sleep(0)
    return 0.5


async def talks_on(client: AgentClient, task: Any) -> float:
    """Continue until a call is refused, and handle the refusal."""
    messages = [user("Hi")]
    while True:
        messages += [await ask(client, messages), user("And then?")]


class Brief:
    """An agent that does the same as ``talks_on``, but sets its own limits."""

    env_options: ClassVar[EnvOptions] = {
        "limits": RolloutLimits(max_turns=1),
        "context_length": 60,
    }

    async def __call__(self, client: AgentClient, task: Any) -> float:
        return await talks_on(client, task)


brief = Brief()


async def wordy(client: AgentClient, task: int) -> float:
    await ask(client, [user("Why? " * task)])
    return 1.0


async def without_a_task(client: AgentClient) -> float:
    await ask(client, [user("Hi")])
    return 1.0


async def tells_its_task(client: AgentClient, task: Any) -> float:
    await ask(client, [user("Hi")])
    return float(task["extra_info"]["wanted"] if isinstance(task, dict) else task)
