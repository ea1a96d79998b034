"""Reverse-text, based on prime-rl's example, with short words for a small model.

    python benchmarks/experiments.py --only reverse_text

The agent asks for the letters of a word in reverse order. The reward is a similarity ratio: twice
the length of the longest common subsequence of the answer and the reply, divided by their total
length.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from evert import AgentClient

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


def words(seed: int) -> Iterator[str]:
    """Yield an endless stream of pronounceable words with three to five letters."""
    draw = random.Random(seed)
    while True:
        kinds = [CONSONANTS, VOWELS] if draw.random() < 0.5 else [VOWELS, CONSONANTS]
        yield "".join(draw.choice(kinds[place % 2]) for place in range(draw.randint(3, 5)))


TEST = [*dict.fromkeys(islice(words(0), 200))][:100]
TRAIN = [word for word in dict.fromkeys(islice(words(1), 5000)) if word not in TEST][:2000]


def question(word: str) -> dict[str, str]:
    """Return the user message, in which the word is spelled out: "b a k o"."""
    return {"role": "user", "content": f"Write these letters in reverse order: {' '.join(word)}"}


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)
    for item in first:
        diagonal = 0
        for place, other in enumerate(second, start=1):
            longest = diagonal + 1 if item == other else max(lengths[place - 1 : place + 1])
            diagonal, lengths[place] = lengths[place], longest
    return lengths[-1]


def ratio(answer: Sequence[str], reply: Sequence[str]) -> float:
    """Return the similarity of two sequences, from 0 to 1."""
    return 2 * common_subsequence(answer, reply) / max(len(answer) + len(reply), 1)


async def agent(client: AgentClient, word: str) -> float:
    """Ask for a word's letters in reverse order and return the ratio as the reward."""
    completion = await client.chat.completions.create(messages=[question(word)])
    reward = ratio(word[::-1], "".join((completion.choices[0].message.content or "").split()))
    client.metric("right", float(reward == 1))
    return reward


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield warm-up conversations for random training words."""
    draw = random.Random(seed)
    while True:
        word = draw.choice(TRAIN)
        yield [question(word), {"role": "assistant", "content": " ".join(reversed(word))}]
