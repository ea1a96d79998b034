"""Gymnasium environments as a taskset: ``evert train tasks=gymnasium:Blackjack-v1``.

The training recipe starts with a warm-up on random actions, which shows a tiny model how to reply,
followed by RL with seeds as tasks. Games that a bundled base model already knows don't need a
warm-up. If any bundled base model plays, the prompt leaves out the rules, because the model would
not understand them.
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
"""The environments that ``evert evaluate tasks=all-offline`` includes, with their settings."""

TRAIN_TASKS = range(10_000)
TEST_TASKS = range(10_000, 10_200)
"""Seeds for ``reset``."""

ILLEGAL = -1.0
"""Reward for an episode that ends with an illegal reply. With 0, a policy that loses most of its
games would learn to reply illegally, as happened with Blackjack."""

KNOWN: Mapping[str, Mapping[str, Any]] = {
    # Many deals with a few hands each, because rewards vary more between deals than within a deal.
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
"""Overrides of the recipe for games that a bundled base model already knows."""


def gymnasium(id: str, **arguments: Any) -> Game:
    """Return the game for a Gymnasium environment.

    Args:
        id: The environment's id.
        **arguments: Arguments for ``GymAgent`` and ``gymnasium.make``.

    Raises:
        GameError: There is no environment with this id, or it does not accept the arguments.
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
            # Keeps the policy close to the random play of the warm-up. Without this penalty, or
            # with a higher learning rate, the Blackjack policy soon collapses to always sticking.
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
            f"Could not create tasks=gymnasium:{id} with {dict(arguments)}: "
            f"{type(error).__name__}: {error} Pass a Gymnasium id with arguments that it accepts, "
            "for example tasks=gymnasium:FrozenLake-v1 tasks.is_slippery=False."
        ) from error
    return agent
