"""ScienceWorld's thirty tasks: experiments in a text-based house.

    evert train tasks=scienceworld:find-animal tasks.simplifications=easy model_name=smollm2

The simulator, a Java program, scores them. Requires Java and the ``scienceworld`` extra.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from evert.bridge.episode.agent import Outcome
from evert.bridge.off_loop import acquire, finished
from evert.envs.games import Game, GameError, Metric
from evert.envs.tasksets.common import game_of_agent, needed, no_such

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "find-animal": {"max_tokens": 16, "limits.max_turns": 10},
}

SIMPLIFICATIONS = (
    *("easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors"),
    "noElectricalAction",
)

PROMPT = (
    "You act in a house of words. Reply with one action, in a line of its own, and nothing else. "
    "OBJ stands for a thing that you see. Actions: "
)

CLOSING = 10.0
"""Seconds to wait for a simulator to exit."""


def scienceworld(names: str, *, simplifications: str = "", steps: int = 100) -> Game:
    """Return the game for one or more ScienceWorld tasks.

    Args:
        names: Comma-separated names of tasks, such as "boil" or "1-1", or "all".
        simplifications: Comma-separated names of simplifications, such as "easy".
        steps: Maximum number of actions per episode.

    Raises:
        GameError: A task or simplification does not exist, or Java is not installed.
    """
    package = needed("scienceworld", "scienceworld.constants", "pip install 'evert[scienceworld]'")
    by_id: dict[str, str] = package.ID2TASK
    choices = [*by_id.values(), *by_id, "all"]
    for name in names.split(","):
        if name not in choices:
            raise no_such("ScienceWorld", "task", name, choices, [*by_id.values(), "all"])
    for name in filter(None, simplifications.split(",")):
        if name not in SIMPLIFICATIONS:
            raise no_such("ScienceWorld", "simplification", name, SIMPLIFICATIONS)
    if shutil.which("java") is None:
        raise GameError(
            "tasks=scienceworld requires Java 8 or newer, but there is no java on the PATH. "
            "Install it with: apt install default-jre-headless."
        )
    chosen = [by_id.get(name, name) for name in names.split(",")]
    agent = ScienceWorld(
        ",".join(by_id.values() if "all" in chosen else chosen), simplifications, steps
    )
    return game_of_agent(
        f"scienceworld/{names}",
        agent,
        recipe={"batch_size": 4, "group_size": 8, "max_tokens": 256},
        metrics={
            "solved": Metric("Tasks with the full score", "share", drawn=("train", "test")),
            "failed": Metric("Tasks ended by a wrong choice", "share"),
        },
    )


@dataclass(frozen=True)
class ScienceWorld:
    """An agent that acts in ScienceWorld.

    A task consists of a name and a variation, like "boil/3". The reward is the simulator's final
    score, from -1 (a wrong choice ended the episode) to 1. The last line of a reply is the action.

    Args:
        names: Comma-separated names of tasks.
        simplifications: Comma-separated names of simplifications.
        steps: Maximum number of actions per episode.

    Attributes:
        train_tasks: The benchmark's training variations.
        test_tasks: The benchmark's test variations. The development variations are not used.
    """

    names: str
    simplifications: str = ""
    steps: int = 100

    from_path: ClassVar = True

    @property
    def train_tasks(self) -> list[str]:
        """The training variations."""
        return _tasks(self.names)[0]

    @property
    def test_tasks(self) -> list[str]:
        """The held-out variations."""
        return _tasks(self.names)[1]

    async def __call__(self, client: "AgentClient", task: str) -> Outcome:
        """Play a variation."""
        name, _, variation = task.partition("/")
        starting = asyncio.to_thread(started, self.steps)
        env = await acquire(starting, lambda env: asyncio.to_thread(end, env))
        try:
            await asyncio.to_thread(env.load, name, int(variation), self.simplifications)
            seen, info = await asyncio.to_thread(env.reset)
            actions = await asyncio.to_thread(env.get_possible_actions)
            system = PROMPT + ", ".join(actions) + "."
            messages = [{"role": "system", "content": system}]
            seen, over = f"{info['taskDesc'].strip()}\n\n{seen}", False
            while not over:
                messages.append({"role": "user", "content": seen})
                completion = await client.chat.completions.create(messages=messages)
                reply = completion.choices[0].message.content or ""
                messages.append({"role": "assistant", "content": reply})
                action = (reply.strip().splitlines() or [""])[-1]
                seen, _, over, info = await asyncio.to_thread(env.step, action)
        finally:
            await finished(asyncio.to_thread(end, env))
        score = info["score"] / 100
        return Outcome(score, {"solved": float(score >= 1), "failed": float(score < 0)})


def started(steps: int) -> Any:
    """Start a simulator in a separate process."""
    from scienceworld import ScienceWorldEnv

    env = ScienceWorldEnv("", envStepLimit=steps)
    # By default, every step fetches thousands of strings one by one for an unused info entry.
    env.get_valid_action_object_combinations = list
    return env


def end(env: Any) -> None:
    """Stop a simulator and clean up the process, pipe and folder that ``close`` leaves behind."""
    process = env._gateway.java_process
    env.close()
    try:
        process.wait(CLOSING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
    env._obj_tree_tempdir.cleanup()


@cache
def _tasks(names: str) -> tuple[list[str], list[str]]:
    """Return the training and test tasks, which have to be queried from the simulator."""
    env = started(1)
    train, test = list[str](), list[str]()
    try:
        for name in names.split(","):
            env.load(name)
            train += [f"{name}/{variation}" for variation in env.get_variations_train()]
            test += [f"{name}/{variation}" for variation in env.get_variations_test()]
    finally:
        end(env)
    return train, test
