"""The game used in all examples, and a function that plays it without a model.

``Game`` is one round, in which the agent has eight guesses to find a number and is told "Too low"
or "Too high". ``play`` runs an example's agent for one episode with the Cookbook's
``do_single_rollout`` and a scripted model, and prints the conversation.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, ScriptedPolicy

TASKS = [{"low": 1, "high": 100, "target": target} for target in range(1, 101)]
TASK = TASKS[39]
TURNS = 8
"""Number of guesses that count. Bisection finds any of a hundred numbers in seven guesses."""


class Game:
    """One round. Call ``check`` for each guess, and read ``reward`` at the end."""

    def __init__(self, task: dict[str, int]) -> None:
        self.target = task["target"]
        self.guesses: list[int] = []
        self.rules = (
            f"Find the number between {task['low']} and {task['high']}. You have {TURNS} guesses, "
            "and are told after each one which way to go."
        )

    def check(self, number: int) -> str:
        """Record a guess and return the feedback."""
        self.guesses.append(number)
        if number == self.target:
            return "Correct"
        return "Too low" if number < self.target else "Too high"

    @property
    def found(self) -> bool:
        """Whether the number was found within the allowed guesses."""
        return self.target in self.guesses[:TURNS]

    @property
    def reward(self) -> float:
        """1.0 if the number was found, else 0.0."""
        return float(self.found)


# -- the scripted model --------------------------------------------------------------------------


def next_guess(prompt: str) -> int | None:
    """Bisect based on the feedback in the prompt. Returns None once the number has been found."""
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", prompt)[-1])
    for feedback in re.findall("Too low|Too high|Correct", prompt):
        middle = (low + high) // 2
        if feedback == "Correct":
            return None
        low, high = (middle + 1, high) if feedback == "Too low" else (low, middle - 1)
    return (low + high) // 2


def tool_call(name: str, **arguments: Any) -> str:
    """Format a tool call for the default renderer."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def guess_with_tool(prompt: str) -> str:
    """Act as a model that bisects by calling ``check_guess`` until it has found the number."""
    number = next_guess(prompt)
    return "Found it." if number is None else tool_call("check_guess", number=number)


def play(
    agent: Callable[..., Any], model: Callable[[str], str] = guess_with_tool, task: Any = TASK
) -> Trajectory:
    """Play an episode, print it and return the trajectory."""
    policy = ScriptedPolicy(model)
    trajectory = asyncio.run(do_single_rollout(policy, ChatAgentEnv(agent, task)))
    print(policy.prompts[-1] + model(policy.prompts[-1]))
    print("\nmodel calls:", len(trajectory.transitions))
    print("reward:", sum(transition.reward for transition in trajectory.transitions))
    print("training data:", len(trajectory_to_data(trajectory, 1.0)))
    return trajectory
