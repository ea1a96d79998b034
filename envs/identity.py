"""Identity: the policy has to say that it is a given number.

This is Agent-lightning's "identity" example. The prompt is "Let's play a game. Say you are
{task}." The reward is 1 for "I am {task}" or "I'm {task}", -1 for "not {task}", and 0 otherwise.
Tasks are numbers: 0..999 for training, and 1000..1023 held out.
"""

import re
from typing import TYPE_CHECKING

from evert.envs.games import Game

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

GAME = Game(
    "evert/Identity-v0",
    agent="evert.envs.identity:identity_agent",
    train_tasks="evert.envs.identity:TRAIN_TASKS",
    test_tasks="evert.envs.identity:TEST_TASKS",
    recipe={
        "steps": 30,
        "batch_size": 32,
        "group_size": 8,
        "learning_rate": 3e-4,
        "max_tokens": 16,
        "test_group_size": 4,
        "eval_every": 10,
        "save_every": 10,
    },
)

TRAIN_TASKS = range(1000)
TEST_TASKS = range(1000, 1024)


async def identity_agent(client: "AgentClient", task: int) -> float:
    """Ask the policy to say that it is the number ``task``, and score its answer.

    ## Action Space
    The answer: ``Text``, or ``Sequence(Discrete(vocabulary))`` with ``level="tokens"``.

    ## Observation Space
    The question, "Let's play a game. Say you are {task}.": a ``Sequence`` of messages, or of
    token ids with ``level="tokens"``. The final observation also includes the answer.

    ## Starting State
    A number drawn from ``TRAIN_TASKS`` (0..999); ``TEST_TASKS`` (1000..1023) are held out.

    ## Reward
    1 for "I am {task}" or "I'm {task}" anywhere in the answer, -1 for "not {task}", 0 otherwise.

    ## Episode End
    Terminated after one answer; truncated only by a token limit.

    ## Information
    As in ``AgentGymEnv``. ``task`` is the number.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    The "identity" example of Agent-lightning, https://github.com/microsoft/agent-lightning.

    ## Version History
    v0: first version.
    """
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": f"Let's play a game. Say you are {task}."}],
    )
    return score(completion.choices[0].message.content or "", task)


def score(answer: str, task: int) -> float:
    """Return 1 if the answer claims to be ``task``, -1 if it denies it, and 0 otherwise."""
    number = rf"{task}(?![.,]?\d)"  # "I am 1000" is not "I am 10"
    if re.search(rf"I(?: am|'m) {number}", answer):
        return 1.0
    return -1.0 if re.search(f"not {number}", answer) else 0.0
