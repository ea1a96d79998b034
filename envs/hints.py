"""Hints: two seats that earn together. One hints at a word without saying it, the other names it.

There are eight words. The hinter sees one, and says something short that does not contain it; the
guesser sees the hint alone. Right or wrong, both earn the same: they have to agree on what a hint
means, which neither knows at first (a signalling game: D. Lewis, "Convention", 1969). The
demonstrations hint by a letter and guess a word, both drawn at random: nothing but the form.
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
        "batch_size": 8,  # every word in each step: else guessing the words of the step would pay
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
    """One player hints at a word, and then names it by the hint alone.

    ## Action Space
    First the hint, then the word: ``Text``, or their tokens, ``Sequence(Discrete(vocabulary))``, at
    ``level="tokens"``.

    ## Observation Space
    One message: "Word: sun. Hint?", then "Hint: A. Word?" with what was said: a ``Sequence`` of
    messages, or of token ids at ``level="tokens"``.

    ## Starting State
    One of the eight words of ``WORDS``.

    ## Reward
    1 for the word, 0 for another one, or for a hint that contains it.

    ## Episode End
    Terminated after the guess, or after a hint that contains the word.

    ## Information
    That of ``AgentGymEnv``; ``task`` is the word. Keep it from the guesser.

    ## Arguments
    Those of ``AgentGymEnv``: ``level``, ``render_mode``, ``tasks``, ``max_turns``, ...

    ## References
    D. Lewis, "Convention", 1969.

    ## Version History
    v0: first version.
    """
    return await _play(client, client, task)


async def seated_hints_agent(client: "AgentClient", task: str) -> float:
    """The same with a seat for each: both earn what they reach together."""
    return await _play(client.seat("hinter"), client.seat("guesser"), task)


async def _play(hinter: "AgentClient", guesser: "AgentClient", word: str) -> float:
    hint = await _said(hinter, hint_question(word))
    if contains(hint, word):
        hinter.metric("told", 1.0)
        return 0.0
    guess = await _said(guesser, word_question(hint))
    hinter.log(word=word, hint=hint, guess=guess)
    return float(guess.strip() == word)


async def _said(client: "AgentClient", question: str) -> str:
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": question}]
    )
    return completion.choices[0].message.content or ""


def hint_question(word: str) -> str:
    """What the hinter is asked."""
    return f"Word: {word}. Hint?"


def word_question(hint: str) -> str:
    """What the guesser is asked."""
    return f"Hint: {hint}. Word?"


def contains(hint: str, word: str) -> bool:
    """Whether a hint says the word, whatever stands between its letters."""
    return word in re.sub("[^a-z]", "", hint.lower())


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Hints and guesses drawn at random, without end: their form, and nothing of what they mean."""
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
