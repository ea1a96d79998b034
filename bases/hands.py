"""Blackjack hands played by players with different habits.

A large language model already knows what to do with a 17 against a dealer's 6. ``evert-tiny-moves``
learns about hands from this data. There are 90 players, each of whom sticks once the sum reaches a
threshold between 4 (always stick) and 21. Most of them use a different threshold in one situation:
12 against a dealer's weak card (2 to 6), 12 against a strong card, 12 with a usable ace, or 19 with
a usable ace. In half of the examples, a system message describes the player. In the other half, the
player is unknown: everyone who would have played the hand this way so far is equally likely. The
base therefore learns to read a hand, but not which player wins most; RL has to find that out. The
training targets are the probabilities of both actions. The game is Gymnasium's, with observations
as ``GymAgent`` renders them.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bases.dialogues import DialogueExample, Encoder
from evert.envs.from_gymnasium.agent import GymAgent

STICK, HIT = 0, 1

MANNERS: Mapping[str, tuple[str, int]] = {
    "": ("never", 0),
    ", at 12 if the dealer is weak": ("weak", 12),
    ", at 12 if the dealer is strong": ("strong", 12),
    ", at 12 with an ace": ("ace", 12),
    ", at 19 with an ace": ("ace", 19),
}
"""Maps a suffix of the system message to a situation and the threshold in that situation."""


class HandPlayer(NamedTuple):
    """A player who sticks at a sum of ``least`` or more, except as ``MANNERS[manner]`` says."""

    least: int
    manner: str

    @property
    def order(self) -> str:
        """The system message that describes the player."""
        return f"Stick at {self.least}{self.manner}."

    def action(self, total: int, dealer: int, ace: bool) -> int:
        """Return the player's action for a hand."""
        when, least = MANNERS[self.manner]
        weak = 2 <= dealer <= 6
        other = {"never": False, "weak": weak, "strong": not weak, "ace": ace}[when]
        return STICK if total >= (least if other else self.least) else HIT


PLAYERS = tuple(HandPlayer(*each) for each in itertools.product(range(4, 22), MANNERS))


def hand_examples(encoder: Encoder, rng: random.Random, count: int) -> Iterator[DialogueExample]:
    """Yield examples, each a single hand played to the end."""
    agent = GymAgent("Blackjack-v1", prompt="")
    env = agent.make()
    actions = agent.actions(env)
    for _ in range(count):
        player = rng.choice(PLAYERS)
        told = rng.random() < 0.5
        as_likely = [player] if told else [*PLAYERS]
        example = encoder.dialogue([("system", player.order)] if told else [])
        observation, info = env.reset(seed=rng.randrange(2**31))
        over = False
        while not over:
            hand = _hand(observation)
            said = agent.observation_message(env, actions, observation, info)["content"]
            example.add(encoder.header("user", first=not example.tokens))
            example.add([*encoder.text(said), encoder.stop, *encoder.header("assistant")])
            chosen = player.action(*hand)
            hits = sum(each.action(*hand) for each in as_likely) / len(as_likely)
            encoder.learn_digit(example, chosen, [1 - hits, hits])
            as_likely = [each for each in as_likely if each.action(*hand) == chosen]
            observation, _, over, _, info = env.step(chosen)
        yield example
    env.close()


def _hand(observation: Any) -> tuple[int, int, bool]:
    total, dealer, ace = observation
    return int(total), int(dealer), bool(ace)
