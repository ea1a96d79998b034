"""The game that all examples play, and a way to play it without a model.

``Game`` is one round: find a number in eight guesses; the feedback is "Too low" or "Too high".
``play`` runs an episode of an example with the Cookbook's ``do_single_rollout`` and a script
instead of a model, and prints the conversation.
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
"""Guesses that count; bisection finds one of a hundred numbers in seven."""


class Game:
    """One round: ``check`` a number, and ask for the ``reward`` at the end."""

    def __init__(self, task: dict[str, int]) -> None:
        self.target = task["target"]
        self.guesses: list[int] = []
        self.rules = (
            f"Find the number between {task['low']} and {task['high']}. You have {TURNS} guesses, "
            "and are told after each one which way to go."
        )

    def check(self, number: int) -> str:
        """Record a guess, and return the feedback."""
        self.guesses.append(number)
        if number == self.target:
            return "Correct"
        return "Too low" if number < self.target else "Too high"

    @property
    def found(self) -> bool:
        """Whether the number is among the guesses that count."""
        return self.target in self.guesses[:TURNS]

    @property
    def reward(self) -> float:
        """1.0 if the number was found, else 0.0."""
        return float(self.found)


# -- the script that stands in for the model -----------------------------------------------------


def next_guess(prompt: str) -> int | None:
    """Return the next guess of a bisection from the feedback in a prompt; None if found."""
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", prompt)[-1])
    for feedback in re.findall("Too low|Too high|Correct", prompt):
        middle = (low + high) // 2
        if feedback == "Correct":
            return None
        low, high = (middle + 1, high) if feedback == "Too low" else (low, middle - 1)
    return (low + high) // 2


def tool_call(name: str, **arguments: Any) -> str:
    """Return a tool call in the format of the default renderer."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def guess_with_tool(prompt: str) -> str:
    """Act as a model: bisect by calling ``check_guess``, then say that it is done."""
    number = next_guess(prompt)
    return "Found it." if number is None else tool_call("check_guess", number=number)


def play(
    agent: Callable[..., Any], model: Callable[[str], str] = guess_with_tool, task: Any = TASK
) -> Trajectory:
    """Play an episode, print it and return it."""
    policy = ScriptedPolicy(model)
    trajectory = asyncio.run(do_single_rollout(policy, ChatAgentEnv(agent, task)))
    print(policy.prompts[-1] + model(policy.prompts[-1]))
    print("\nmodel calls:", len(trajectory.transitions))
    print("reward:", sum(transition.reward for transition in trajectory.transitions))
    print("training data:", len(trajectory_to_data(trajectory, 1.0)))
    return trajectory
