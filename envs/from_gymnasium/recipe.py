"""Gymnasium environments as a taskset: ``evert train tasks=gymnasium:Blackjack-v1``.

Each has a recipe: a warm-up on random actions, to show a tiny model how to reply, then RL on seeds.
A game that a shipped base knows needs no warm-up. The shipped bases get no rules, since they would
not understand them; other models do.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evert.envs.games import Game, GameError

if TYPE_CHECKING:
    from evert.envs.from_gymnasium.agent import GymAgent

OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "Blackjack-v1": {"max_tokens": 16},
    "FrozenLake-v1": {"tasks.is_slippery": False, "limits.max_turns": 20, "max_tokens": 16},
}
"""The environments in ``evert evaluate tasks=all-offline``, with their settings."""

TRAIN_TASKS = range(10_000)
TEST_TASKS = range(10_000, 10_200)
"""Seeds for ``reset``."""

ILLEGAL = -1.0
"""Reward of an episode that ends with an illegal reply. With 0, a policy that loses most games
learns to reply illegally, as Blackjack's did."""

KNOWN: Mapping[str, Mapping[str, Any]] = {
    # Many deals with few hands each: rewards vary more between deals than between hands.
    "Blackjack-v1": {
        "model_name": "evert-tiny-moves",
        "warm_up_steps": 0,
        "steps": 150,
        "batch_size": 128,
        "group_size": 4,
        "learning_rate": 3e-4,
        "kl_penalty": 0.05,
        "eval_every": 50,
    },
}
"""Changes to the recipe for games that a shipped base knows."""


def gymnasium(id: str, **arguments: Any) -> Game:
    """Return the game of a Gymnasium environment.

    Args:
        id: Id of the environment.
        **arguments: Arguments of ``GymAgent`` and of ``gymnasium.make``.

    Raises:
        GameError: No environment has this id, or it does not take one of the arguments.
    """
    arguments = {"illegal": ILLEGAL, **arguments}
    agent = _agent(id, arguments)
    short = f"evert:{type(agent)(id, **{'prompt': '', **arguments})!r}"
    return Game(
        id,
        agent=short,
        train_tasks=f"{__name__}:TRAIN_TASKS",
        test_tasks=f"{__name__}:TEST_TASKS",
        recipe={
            "demonstrations": f"{short}.demonstrations",
            "warm_up_steps": 20,
            "warm_up_batch": 32,
            "steps": 100,
            "batch_size": 32,
            "group_size": 8,
            "learning_rate": 5e-4,
            # Keeps the policy near the warm-up's random play: without it, or at a higher
            # learning rate, Blackjack's policy soon always chose to stick.
            "kl_penalty": 0.3,
            "max_tokens": 8,
            "limits": {"max_turns": 200},
            "eval_every": 20,
            "save_every": 20,
            **KNOWN.get(id, {}),
        },
        full_size={
            "agent": f"evert:{agent!r}",
            "demonstrations": "",
            "warm_up_steps": 0,
            "learning_rate": 4e-5,
            "kl_penalty": 0.0,
            "max_tokens": 512,
        },
    )


def _agent(id: str, arguments: Mapping[str, Any]) -> "GymAgent":
    from evert.envs.from_gymnasium.agent import GymAgent

    try:
        agent = GymAgent(id, **arguments)
        env = agent.make()
        agent.actions(env)
        env.close()
    except Exception as error:
        raise GameError(
            f"tasks=gymnasium:{id} could not be made with {dict(arguments)}: "
            f"{type(error).__name__}: {error} Give a Gymnasium id, and arguments that it takes: "
            "tasks=gymnasium:FrozenLake-v1 tasks.is_slippery=False."
        ) from error
    return agent
