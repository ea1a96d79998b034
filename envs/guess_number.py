"""Guess the number: find an integer between 0 and 1024 in ten guesses.

The prompt, bounds, replies, rewards and train/test split are the same as in the Tinker Cookbook's
recipe (``tinker_cookbook.recipes.multiplayer_rl.guess_number``), so that results are comparable.
The reward is 1 for the correct guess, -1 for each reply that is not a guess, and 0 otherwise. 90%
of the numbers are training tasks. Guessing at random within the known bounds wins 33% of games,
bisection 99.8%.
"""

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from evert.envs.games import Game

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

GAME = Game(
    "evert/GuessNumber-v0",
    agent="evert.envs.guess_number:guess_number_agent",
    train_tasks="evert.envs.guess_number:TRAIN_TASKS",
    test_tasks="evert.envs.guess_number:TEST_TASKS",
    recipe={
        "steps": 40,
        "batch_size": 32,
        "group_size": 8,
        "learning_rate": 5e-4,
        "max_tokens": 16,
        "eval_every": 10,
        "save_every": 10,
        "demonstrations": "evert.envs.guess_number:demonstrations",
    },
)

UPPER_BOUND = 1024
MAX_TURNS = 10
SYSTEM_PROMPT = (
    f"Your job is to guess a integer between 0 and {UPPER_BOUND}. You can output your guess with "
    "the format Guess: <guess> (without the angle brackets), and say nothing else. Then we will "
    "tell you whether you guess is too high, too low, or correct."
)
FAIL_TO_PARSE = (
    "Failed to parse. Please output in the format Guess: <guess> (without the angle brackets), "
    "and say nothing else."
)
FORMAT_PENALTY = -1.0


_NUMBERS = random.Random(0).sample(range(UPPER_BOUND), UPPER_BOUND)  # the Cookbook's order
_TRAIN_SIZE = int(0.9 * UPPER_BOUND)
TRAIN_TASKS, TEST_TASKS = _NUMBERS[:_TRAIN_SIZE], _NUMBERS[_TRAIN_SIZE:]


async def guess_number_agent(client: "AgentClient", task: int) -> float:
    """Find an integer between 0 and 1024 in ten guesses.

    ## Action Space
    A guess: ``Text`` that starts with "Guess: " and an integer, or its tokens with
    ``level="tokens"``, ``Sequence(Discrete(vocabulary))``.

    ## Observation Space
    The rules and all guesses so far, each followed by "Too low", "Too high" or a message that it is
    not a valid guess: a ``Sequence`` of messages, or of token ids with ``level="tokens"``.

    ## Starting State
    The rules. The number is drawn from ``TRAIN_TASKS``, which is 90% of 0..1023, using the Tinker
    Cookbook's split; ``TEST_TASKS`` are held out.

    ## Reward
    1 for the correct guess, -1 for a reply that is not a guess, 0 otherwise.

    ## Episode End
    Terminated after the correct guess or ten replies; truncated only by limits on turns or tokens.

    ## Information
    As in ``AgentGymEnv``. ``task`` is the number to find, and ``logs`` contains ``guess``,
    ``feedback`` and ``target``. Hide them from the policy.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    ``recipes.multiplayer_rl.guess_number`` in
    https://github.com/thinking-machines-lab/tinker-cookbook.

    ## Version History
    v0: first version.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM_PROMPT}]
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(messages=messages)
        answer = completion.choices[0].message.content or ""
        feedback, reward = judge(answer, task)
        client.log(guess=answer, feedback=feedback, target=task)
        if reward == 1.0:
            return 1.0
        client.reward(reward)
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": feedback},
        ]
    return 0.0


def judge(answer: str, target: int) -> tuple[str, float]:
    """Return the feedback for an answer and its reward."""
    match = re.match(r"Guess: (.*)", answer)
    try:
        guess = int(match.group(1)) if match else None
    except ValueError:
        guess = None
    if guess is None:
        return FAIL_TO_PARSE, FORMAT_PENALTY
    if guess == target:
        return "Correct", 1.0
    return ("Too low", 0.0) if guess < target else ("Too high", 0.0)


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield an endless stream of games whose player guesses at random within the known bounds.

    The same seed gives the same games. Held-out numbers are never the target.
    """
    rng = random.Random(seed)
    while True:
        target, low, high = rng.choice(TRAIN_TASKS), 0, UPPER_BOUND - 1
        game: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM_PROMPT}]
        for _ in range(MAX_TURNS):
            guess = rng.randint(low, high)
            feedback, reward = judge(f"Guess: {guess}", target)
            game.append({"role": "assistant", "content": f"Guess: {guess}"})
            if reward == 1.0:
                break
            game.append({"role": "user", "content": feedback})
            low, high = (guess + 1, high) if guess < target else (low, guess - 1)
        yield game
