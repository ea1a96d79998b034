"""What ``evert-tiny-20q`` is trained on: riddles about the nouns of Twenty Questions.

A language model brings what it knows of the world to a game; this one gets it here. A riddle has
the form of a game with short prompts: some questions with their answers, and then "Is it X?", where
*only the noun* is learned, and its target is every noun of the category that fits the answers so
far, each as probable as the others. So the base learns what is true of all 200 nouns, held-out ones
too, and neither what to ask nor when to guess. Apart from the game it learns how questions are
worded.

It knows the most telling facts, a few a category (``telling``); what else is asked in a riddle, it
has to look past.

In a second stage it also sees whole games, of players that ask legal and poor questions
(``demonstrations.py``), so that it knows how the game is played, if not well. Riddles go on beside
them, now normalised over the tokens of nouns only: how often to guess is the players' matter.

In order: the facts, the text its tokenizer is made for, :class:`RiddleCorpus`.
"""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from evert.bases.making.dialogues import Batch, Encoder, Example
from evert.envs.twenty_questions.baselines import CasualPlayer, guess
from evert.envs.twenty_questions.demonstrations import casual_player, demonstration
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.game import Answer, Game
from evert.envs.twenty_questions.lexicon import load_lexicon
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.player import said

VOCAB_SIZE = 1536
"""Tokens of its tokenizer: nearly every word of the game is one."""

ASK_PROMPT = "Ask about {category}."

# -- the facts -----------------------------------------------------------------------------------


@cache
def questions() -> dict[str, str]:
    """Attribute -> how it is asked about."""
    known = shipped_facts().attributes
    return {name: text for name, text in load_lexicon().questions.items() if name in known}


@cache
def categories() -> dict[str, list[str]]:
    """Category -> its nouns."""
    found: dict[str, list[str]] = {}
    for noun in shipped_nouns():
        found.setdefault(noun.category, []).append(noun.answer)
    return found


@cache
def varying(category: str) -> list[str]:
    """The attributes that do not hold alike for all nouns of a category."""
    return [name for name in questions() if _splits(name, categories()[category])]


def _splits(attribute: str, nouns: Sequence[str]) -> bool:
    return len({shipped_facts().of(noun, attribute) for noun in nouns}) > 1


@cache
def telling(category: str) -> list[str]:
    """The most telling attributes of a category: together they set nearly every noun apart.

    Chosen one after the other, each to tell as many pairs of nouns apart as it can; a pair that n
    of them tell apart already counts 1 / (n + 1) ** 2.
    """
    nouns = categories()[category]
    apart = {(one, other): 0 for index, one in enumerate(nouns) for other in nouns[:index]}
    chosen: list[str] = []

    def worth(name: str) -> float:
        return sum(1 / (1 + apart[pair]) ** 2 for pair in apart if _tells(name, pair))

    for _ in range(10 if len(nouns) > 10 else 8):
        best = max((name for name in varying(category) if name not in chosen), key=worth)
        chosen.append(best)
        for pair in apart:
            apart[pair] += _tells(best, pair)
    return chosen


def _tells(attribute: str, pair: tuple[str, str]) -> bool:
    return {shipped_facts().of(noun, attribute) for noun in pair} == {"yes", "no"}


def tokenizer_text() -> str:
    """The game's words, those that every turn has the most often."""
    guesses = [f"{noun.answer}\n{guess(noun.answer)}" for noun in shipped_nouns()]
    openings = [f"{category} 1" for category in categories()]
    turns = f"yes 2 no 3 n/a 4 5 6 7 system user assistant {ASK_PROMPT.format(category='animal')}"
    return "\n".join(guesses * 6 + [*questions().values()] * 6 + openings * 20 + [turns] * 50)


# -- the corpus ----------------------------------------------------------------------------------


GUESS_RATES = (0.1, 0.25, 0.5)
"""Shares of guesses in the games, one of them a game."""

TELLING_RATES = (0.3, 0.6, 0.9)
"""Shares of questions that tell something, one of them a game; the others are about anything."""


class RiddleCorpus:
    """Draws the riddles of one training step after the other, the same ones for a seed."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, seed: int, *, players: bool = False
    ) -> None:
        """Start at the first step of ``seed``; ``players`` as of the module."""
        self.encoder = Encoder(tokenizer)
        self.target_tokens = list(range(len(tokenizer)))
        self._rng = random.Random(seed)
        self._player = casual_player(seed) if players else None
        self._opening = self.encoder.text("Is it")
        self._names = {
            noun.answer: [
                *self.encoder.text(guess(noun.answer))[len(self._opening) :],
                self.encoder.stop,
            ]
            for noun in shipped_nouns()
        }
        self.renormalise = players
        if players:
            self.target_tokens = sorted({token for name in self._names.values() for token in name})

    def step(self, *, whole_games: bool) -> list[Batch]:
        """Draw a step's batches; without ``whole_games`` only riddles of one to three questions."""
        if self._player is not None:
            return self._with_players(self._player)
        lengths = (1, 1, 2, 3, 4, 5) if whole_games else (1, 1, 1, 2, 2, 3)
        count = 60 if whole_games else 180
        halves = _halves("riddles", [self.riddle(lengths) for _ in range(count)])
        if whole_games:
            halves |= _halves("games", [self.riddle() for _ in range(22)])
        learned = {name: sum(sum(e.loss_mask) for e in half) for name, half in halves.items()}
        batches = [
            Batch(name, 2.0 * learned[name] / sum(learned.values()), half)
            for name, half in halves.items()
        ]
        return [*batches, Batch("questions", 0.3, [self.wording() for _ in range(32)])]

    def _with_players(self, player: CasualPlayer) -> list[Batch]:
        """A step of the second stage."""
        riddles = [self.riddle((1, 2, 3, 4, 5)) for _ in range(32)]
        games = sorted((self.riddle() for _ in range(14)), key=lambda each: len(each.tokens))
        played = [self.play(player) for _ in range(12)]
        return [
            Batch("riddles", 1.0, riddles),
            Batch("short games", 0.5, games[:7]),
            Batch("long games", 1.0, games[7:]),
            Batch("players", 1.0, played),
        ]

    def play(self, player: CasualPlayer) -> Example:
        """A game of a player's, all of whose questions are learned."""
        messages = demonstration(player, self._rng.choice(shipped_nouns()))
        return self.encoder.dialogue([(m["role"], m["content"]) for m in messages])

    def riddle(self, lengths: Sequence[int] = ()) -> Example:
        """A riddle of one of some lengths, in questions; without lengths, a whole game."""
        noun = self._rng.choice(shipped_nouns())
        guess_rate, telling_rate = self._rng.choice(GUESS_RATES), self._rng.choice(TELLING_RATES)
        length = self._rng.choice(lengths) if lengths else None
        example, game, left = Example(), Game(noun), list(categories()[noun.category])
        while not game.over:
            self._tell(example, said(game, "short"), first=not game.turns)
            example.add(self.encoder.header("assistant"))
            telling_now = self._rng.random() < (telling_rate if length is None else 1.0)
            pool = _askable(game, left if telling_now else ())
            if length is None:
                guesses = not pool or self._rng.random() < guess_rate
            else:
                guesses = not pool or len(game.turns) >= length
            if not guesses:
                self._ask(example, game, left, self._rng.choice(pool))
                continue
            self._guess(example, game, left)
            if length is not None:
                break
        return example

    def wording(self) -> Example:
        """How a question is worded, one that tells something of a category half of the time."""
        category = self._rng.choice(list(categories()))
        half = self._rng.random() < 0.5
        attribute = self._rng.choice(varying(category) if half else list(questions()))
        prompt = ASK_PROMPT.format(category=category)
        return self.encoder.dialogue([("user", prompt), ("assistant", questions()[attribute])])

    def _ask(self, example: Example, game: Game, left: list[str], attribute: str) -> None:
        """Write a question down, and drop the nouns that its answer rules out."""
        fact = shipped_facts().of(game.noun.answer, attribute)
        example.add([*self.encoder.text(questions()[attribute]), self.encoder.stop])
        game.record(questions()[attribute], Answer(fact))
        left[:] = [noun for noun in left if shipped_facts().of(noun, attribute) == fact]

    def _guess(self, example: Example, game: Game, left: list[str]) -> None:
        """Write a guess down, its noun every noun left as probable a target, and drop that noun."""
        noun = self._rng.choice(left)
        example.add(self._opening)
        tokens = self._names[noun]
        for place, token in enumerate(tokens):
            alike = [
                name[place] for n in left if (name := self._names[n])[:place] == tokens[:place]
            ]
            example.soft_targets[len(example.tokens)] = self._probabilities(alike)
            example.add([token], reply=True)
        correct = noun == game.noun.answer
        game.record(guess(noun), Answer("yes" if correct else "no", correct))
        left.remove(noun)

    def _probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        counts = Counter(tokens)
        return np.array([counts[c] / len(tokens) for c in self.target_tokens], np.float32)

    def _tell(self, example: Example, text: str, *, first: bool) -> None:
        example.add(self.encoder.header("user", first=first))
        example.add([*self.encoder.text(text), self.encoder.stop])


def _askable(game: Game, left: Sequence[str]) -> list[str]:
    """Attributes not asked about yet: telling ones that split what is left, if that is given."""
    asked = {turn.question for turn in game.turns}
    pool = telling(game.noun.category) if left else questions()
    open_ones = [name for name in pool if questions()[name] not in asked]
    return [name for name in open_ones if _splits(name, left)] if left else open_ones


def _halves(name: str, examples: list[Example]) -> dict[str, list[Example]]:
    """The shorter and the longer half, since a batch is padded to its longest."""
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    middle = len(ordered) // 2
    return {f"short {name}": ordered[:middle], f"long {name}": ordered[middle:]}
