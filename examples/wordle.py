"""Wordle, after TextArena's game and prime-rl's example of that name, with its own word list.

    python benchmarks/experiments.py --only wordle

TextArena's game loads its words from the network. This file has 112, spelled: "c r a n e". After a
guess the agent gets a mark for each letter: right (G), elsewhere (Y) or absent (X). A solved game
earns 1 plus the reciprocal of its turns; any other game earns a fifth for each G and a tenth for
each Y of its last guess.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator

from evert import AgentClient

WORDS = re.findall(
    r"\w+",
    "about above actor adult after again agent agree alarm album alone angel anger apple arena "
    "armor aside award bacon badge basic beach beard begin below bench berry birth black blade "
    "blame blank block blood board boost bound brain brand bread break brick bride brief bring "
    "broad brown brush cabin cable candy canoe cargo chain chair chalk charm chart cheap check "
    "chest chief child chord civil claim class clean clear clock cloud coach coast coral count "
    "court cover crane crash cream crime cross crowd crown curve cycle daily dance depth diary "
    "dream dress drink drive eagle early earth eight elbow empty enemy enjoy entry equal error "
    "event exact extra faith fault fever field",
)
GUESSES = 6
ORDER = random.Random(0).sample(WORDS, len(WORDS))
TEST, TRAIN = ORDER[:32], ORDER[32:]
RULES = (
    "Guess a word of five letters, spelled like c r a n e. I answer with a mark for each letter: "
    "G right, Y elsewhere in the word, X not in the word."
)


def marks(secret: str, guess: str) -> str:
    """Return the marks of a guess: "GYXXX"."""
    rest = Counter(letter for letter, other in zip(secret, guess, strict=True) if letter != other)
    result = ""
    for letter, other in zip(secret, guess, strict=True):
        if letter == other:
            result += "G"
        elif rest[other]:
            rest[other] -= 1
            result += "Y"
        else:
            result += "X"
    return result


async def agent(client: AgentClient, secret: str) -> float:
    """Play a game."""
    messages = [{"role": "user", "content": RULES}]
    feedback = ""
    for turn in range(1, GUESSES + 1):
        completion = await client.chat.completions.create(messages=messages)
        reply = completion.choices[0].message.content or ""
        guess = "".join(reply.split()).lower()
        feedback = marks(secret, guess) if re.fullmatch("[a-z]{5}", guess) else ""
        if guess == secret:
            client.metric("solved", 1.0)
            return 1 + 1 / turn
        hint = " ".join(feedback) or "That is no word of five letters."
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": hint}]
    client.metric("solved", 0.0)
    return 0.2 * feedback.count("G") + 0.1 * feedback.count("Y")


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield games for a warm-up, by a player who guesses words that fit all marks."""
    draw = random.Random(seed)
    while True:
        secret, fitting = draw.choice(TRAIN), WORDS
        messages = [{"role": "user", "content": RULES}]
        for _ in range(GUESSES):
            guess = draw.choice(fitting)
            messages.append({"role": "assistant", "content": " ".join(guess)})
            if guess == secret:
                break
            feedback = marks(secret, guess)
            messages.append({"role": "user", "content": " ".join(feedback)})
            fitting = [word for word in fitting if marks(word, guess) == feedback]
        if messages[-1]["role"] == "user":
            del messages[-1]
        yield messages
