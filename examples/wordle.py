"""Wordle, based on TextArena's game and prime-rl's example, with our own word list.

    python benchmarks/experiments.py --only wordle

TextArena's game downloads its word list, so this file has its own list of 112 words. Words are
spelled out ("c r a n e"). After each guess, the agent gets a mark for each letter: correct (G), in
a different position (Y) or not in the word (X). Solving the game earns 1 + 1 / turns. Otherwise,
the reward comes only from partial credit for the last guess: 0.2 for each G and 0.1 for each Y.
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
    """Return the marks for a guess, such as "GYXXX"."""
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
    """Yield warm-up games by a player whose guesses are consistent with all marks."""
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
