"""Hands of Blackjack, by players with every habit.

A large language model knows what 17 against a dealer's 6 means; ``evert-tiny-moves`` learns it
here, from players who stick at some sum or more (at 4: always). Some of them stick at 12 against a
weak dealer (2 to 6), some against a strong one; some at 12 with a usable ace, some at 19. In half
of the examples a system message says who plays; in the others, all of the 90 players who would have
played the hand so far are equally likely. So the base can read a hand, but does not know who wins
most: RL has to find that. The training targets are the probabilities of both actions. The game is
Gymnasium's, as ``GymAgent`` describes it.
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
"""End of the system message -> when a player sticks at another sum, and which sum."""


class HandPlayer(NamedTuple):
    """A player who sticks at ``least`` or more."""

    least: int
    manner: str

    @property
    def order(self) -> str:
        """The system message that describes the player."""
        return f"Stick at {self.least}{self.manner}."

    def action(self, total: int, dealer: int, ace: bool) -> int:
        """Return the player's action on a hand."""
        when, least = MANNERS[self.manner]
        weak = 2 <= dealer <= 6
        other = {"never": False, "weak": weak, "strong": not weak, "ace": ace}[when]
        return STICK if total >= (least if other else self.least) else HIT


PLAYERS = tuple(HandPlayer(*each) for each in itertools.product(range(4, 22), MANNERS))


def hand_examples(encoder: Encoder, rng: random.Random, count: int) -> Iterator[DialogueExample]:
    """Yield examples of one hand each, played to its end."""
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
