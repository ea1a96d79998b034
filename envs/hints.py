"""Hints: two seats share a reward. One hints at a word without saying it, the other names it.

There are eight words. The hinter sees one and gives a short hint that does not contain it. The
guesser sees only the hint. Both get the same reward, so they must come to agree on what each hint
means (a signalling game: D. Lewis, "Convention", 1969). In the demonstrations the hint is a random
letter and the guess a random word, so they teach only the format.
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
        "batch_size": 8,  # each step has all words; else guessing only the step's words would pay
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
    """Hint at a word, then name it from the hint alone.

    ## Action Space
    First the hint, then the word: ``Text``, or their tokens, ``Sequence(Discrete(vocabulary))``, at
    ``level="tokens"``.

    ## Observation Space
    One message, first "Word: sun. Hint?", then "Hint: A. Word?" with the hint that was given: a
    ``Sequence`` of messages, or of token ids at ``level="tokens"``.

    ## Starting State
    One of the eight words of ``WORDS``.

    ## Reward
    1 if the guess is the word; 0 if it is not, or if the hint contains the word.

    ## Episode End
    Terminated after the guess, or after a hint that contains the word.

    ## Information
    As in ``AgentGymEnv``; ``task`` is the word. Hide it from the guesser.

    ## Arguments
    As in ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    D. Lewis, "Convention", 1969.

    ## Version History
    v0: first version.
    """
    return await _play(client, client, task)


async def seated_hints_agent(client: "AgentClient", task: str) -> float:
    """Play with a seat for each player; both get the same reward."""
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
    """Yield endless random hints and guesses, which show a reply's format, not its meaning."""
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
