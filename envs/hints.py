"""Hints: a cooperative game in which one seat hints at a word and the other guesses it.

There are eight words. The hinter sees one of them and gives a short hint that must not contain it.
The guesser sees only the hint. Both get the same reward, so they have to agree on what each hint
means (a signalling game: D. Lewis, "Convention", 1969). In the demonstrations, hints are random
letters and guesses are random words, so they teach only the format.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from evert.envs.games import Game

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

GAME = Game(
    "evert/Hints-v0",
    agent="evert.envs.hints:hints_agent",
    train_tasks="evert.envs.hints:WORDS",
    test_tasks="evert.envs.hints:WORDS",
    recipe={
        "agent": "evert.envs.hints:seated_hints_agent",
        "seats": ("hinter", "guesser"),
        "demonstrations": "evert.envs.hints:demonstrations",
        "warm_up_steps": 40,
        "steps": 80,
        # Every step uses all eight words. Otherwise, it would pay off to guess only the words in
        # use.
        "batch_size": 8,
        "group_size": 16,
        "test_group_size": 8,
        "learning_rate": 1e-3,
        "max_tokens": 6,
        "eval_every": 20,
        "save_every": 20,
    },
)

WORDS: Sequence[str] = ("sun", "sea", "tree", "bird", "stone", "house", "road", "bread")
LETTERS = "ABCDEFGH"


async def hints_agent(client: "AgentClient", task: str) -> float:
    """Hint at a word, then guess it given only the hint.

    ## Action Space
    First the hint, then the word: ``Text``, or its tokens with ``level="tokens"``,
    ``Sequence(Discrete(vocabulary))``.

    ## Observation Space
    A single message: first "Word: sun. Hint?", then "Hint: A. Word?" with the hint that was given.
    This is a ``Sequence`` of messages, or of token ids with ``level="tokens"``.

    ## Starting State
    One of the eight words in ``WORDS``.

    ## Reward
    1 if the guess is correct; 0 if it is wrong, or if the hint contains the word.

    ## Episode End
    Terminated after the guess, or after a hint that contains the word.

    ## Information
    As in ``AgentGymEnv``. ``task`` is the word. Hide it from the guesser.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    D. Lewis, "Convention", 1969.

    ## Version History
    v0: first version.
    """
    return await _play(client, client, task)


async def seated_hints_agent(client: "AgentClient", task: str) -> float:
    """Play with one seat per player. Both seats get the same reward."""
    return await _play(client.seat("hinter"), client.seat("guesser"), task)


async def _play(hinter: "AgentClient", guesser: "AgentClient", word: str) -> float:
    hint = await _ask(hinter, hint_question(word))
    if word in re.sub("[^a-z]", "", hint.lower()):  # "S-U-N" contains "sun"
        hinter.metric("told", 1.0)
        return 0.0
    guess = await _ask(guesser, word_question(hint))
    hinter.log(word=word, hint=hint, guess=guess)
    return float(guess.strip() == word)


async def _ask(client: "AgentClient", question: str) -> str:
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": question}]
    )
    return completion.choices[0].message.content or ""


def hint_question(word: str) -> str:
    """Return the hinter's prompt."""
    return f"Word: {word}. Hint?"


def word_question(hint: str) -> str:
    """Return the guesser's prompt."""
    return f"Hint: {hint}. Word?"


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield an endless stream of random hints and guesses, which teach only the reply format."""
    rng = random.Random(seed)
    while True:
        hint = rng.choice(LETTERS)
        for question, answer in (
            (hint_question(rng.choice(WORDS)), hint),
            (word_question(rng.choice(LETTERS)), rng.choice(WORDS)),
        ):
            yield [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
