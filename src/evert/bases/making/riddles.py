"""What ``evert-tiny-20q`` is trained on: riddles and games of Twenty Questions.

A language model brings what it knows of the world to a game; this one gets it here. A *riddle* is a
game with short prompts whose questions are not learned. Before every question the odds of all nouns
that fit the answers so far are, as the odds that nouns have among themselves: so the base learns
what is true of all 200 nouns, held-out ones too, and neither what to ask nor when to guess.

A *game* is one of the players of ``habits.py``, most of them poor, on a training noun, and names no
other. Its questions are learned as they were asked; of a guess, that it was one, with every noun
that the player might have guessed as probable as the others. So the base learns how the game is
played by players good and bad, each as frequent, and RL has something to choose among.

The category is hidden in two of three. In order: the text its tokenizer is made for,
:class:`RiddleCorpus`.
"""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from evert.bases.making.dialogues import Batch, Encoder, Example
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.habits import HabitPlayer, players
from evert.envs.twenty_questions.knowledge import GUESS, Knowledge, guess, telling
from evert.envs.twenty_questions.nouns import Noun, of_split, shipped_nouns
from evert.envs.twenty_questions.player import said, shipped_answerer

VOCAB_SIZE = 1536
"""Tokens of its tokenizer: nearly every word of the game is one."""

SHOWN_RATE = 1 / 3
"""Share of riddles and games that tell the category."""


def tokenizer_text() -> str:
    """The game's words, those that every turn has the most often."""
    nouns = shipped_nouns()
    guesses = [f"{noun.answer}\n{guess(noun.answer)}" for noun in nouns]
    categories = dict.fromkeys(noun.category for noun in nouns)
    openings = [f"{category} 1" for category in categories] + ["20 questions 1"] * 3
    turns = "yes 2\nno 3\nn/a 4\n5 6 7 system\nuser\nassistant"
    questions = [*Knowledge().questions.values()]
    return "\n".join(guesses * 6 + questions * 6 + openings * 20 + [turns] * 50)


# -- the corpus ----------------------------------------------------------------------------------

TELLING = 48
"""Attributes that most questions of a riddle are about: what the base knows best."""

TELLING_RATES = (0.3, 0.6, 0.9)
"""Shares of questions in a riddle that tell much, one of them a riddle."""

ANY_RATE = 0.1
"""Share of questions in a riddle that are about anything; the base learns to look past them."""

GUESS_RATES = (0.0, 0.1, 0.3)
"""Shares of guesses in a riddle, one of them a riddle."""


class RiddleCorpus:
    """Draws riddles and games, a training step's after the other, the same ones for a seed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Start at the first step of ``seed``."""
        self.encoder = Encoder(tokenizer)
        self.known = Knowledge()
        self._telling = {self.known.questions[name] for name in telling(self.known, TELLING)}
        self._rng = random.Random(seed)
        opening = GUESS.partition(" {}")[0]
        self.opening = self.encoder.text(opening)
        self._names = {
            noun.answer: [
                *self.encoder.text(guess(noun.answer))[len(self.opening) :],
                self.encoder.stop,
            ]
            for noun in self.known.nouns
        }
        self.target_tokens = sorted({token for name in self._names.values() for token in name})
        self._train = of_split(self.known.nouns, "train")
        self.players = players(self.known, self._rng, self.known.set_of(self._train))

    def step(self, *, whole_games: bool) -> list[Batch]:
        """Draw a step's batches; without ``whole_games`` only riddles of one to four questions."""
        if not whole_games:
            return [
                Batch("riddles", 1.0, [self.riddle(self._rng.randint(1, 4)) for _ in range(64)])
            ]
        riddles = sorted((self.riddle(self._rng.randint(1, 14)) for _ in range(20)), key=_length)
        games = sorted((self.game(next(self.players)) for _ in range(12)), key=_length)
        return [
            Batch("short riddles", 0.5, riddles[:10]),
            Batch("long riddles", 0.5, riddles[10:]),
            Batch("short games", 0.25, games[:6]),
            Batch("long games", 0.25, games[6:]),
        ]

    def riddle(self, length: int) -> Example:
        """A riddle about any noun, of so many questions at most, and a guess."""
        game = self._new_game(self.known.nouns, length + 1)
        telling, guesses = self._rng.choice(TELLING_RATES), self._rng.choice(GUESS_RATES)
        example = Example()
        while not game.over:
            left = self._tell(example, game)
            if len(game.turns) == length or self._rng.random() < guesses:
                question = guess(self._rng.choice(self.known.names(left)))
                self._guess(example, question, left, example.odds)
            else:
                question = self._asked(game, left, telling)
                example.add([*self.encoder.text(question), self.encoder.stop])
            game.record(question, shipped_answerer().answer_now(game.noun, question))
        return example

    def game(self, player: HabitPlayer) -> Example:
        """A player's game on a training noun, up to one of its questions."""
        game, last = self._new_game(self._train), self._rng.randint(6, 20)
        example = Example()
        while not game.over and len(game.turns) < last:
            self._tell(example, game)
            question = player.question(game)
            if question in self.known.questions.values():
                example.add([*self.encoder.text(question), self.encoder.stop], reply=True)
            else:
                left = player.thinks_of(game)
                self._guess(example, question, left, example.soft_targets, reply=True)
            game.record(question, shipped_answerer().answer_now(game.noun, question))
        return example

    def _new_game(self, nouns: Sequence[Noun], questions: int = 20) -> Game:
        shown = self._rng.random() < SHOWN_RATE
        return Game(self._rng.choice(nouns), Rules(questions, show_category=shown))

    def _tell(self, example: Example, game: Game) -> int:
        """Write down what is told before a question, and the odds of nouns; those that fit."""
        example.add(self.encoder.header("user", first=not game.turns))
        example.add([*self.encoder.text(said(game, "short")), self.encoder.stop])
        example.add(self.encoder.header("assistant"))
        left = self.known.fitting(game)
        firsts = [self._names[name][0] for name in self.known.names(left)]
        example.odds[len(example.tokens) - 1] = self._probabilities(firsts)
        return left

    def _asked(self, game: Game, left: int, telling: float) -> str:
        asked = {turn.question for turn in game.turns}
        pool = self.known.questions.values() if self._rng.random() < ANY_RATE else self._telling
        told = [
            (bits, text)
            for bits, name in self.known.best(left)
            if (text := self.known.questions[name]) in pool and text not in asked
        ]
        if self._rng.random() < telling:
            told = [each for each in told if each[0] and each[0] >= told[0][0] / 2] or told
        return self._rng.choice(told)[1]

    def _guess(
        self,
        example: Example,
        question: str,
        left: int,
        targets: dict[int, NDArray[np.float32]],
        *,
        reply: bool = False,
    ) -> None:
        """Write a guess down, its noun every noun of a set as probable a target."""
        example.add(self.opening, reply=reply)
        names = [self._names[name] for name in self.known.names(left)]
        tokens = [*self.encoder.text(question)[len(self.opening) :], self.encoder.stop]
        for place, token in enumerate(tokens):
            alike = [name[place] for name in names if name[:place] == tokens[:place]]
            targets[len(example.tokens)] = self._probabilities(alike)
            example.add([token])

    def _probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        counts = Counter(tokens)
        return np.array([counts[c] / len(tokens) for c in self.target_tokens], np.float32)


def _length(example: Example) -> int:
    return len(example.tokens)
