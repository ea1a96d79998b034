"""What ``evert-tiny-20q`` is trained on: riddles and games of Twenty Questions.

A large language model knows the world before it plays; this base learns facts here. A *riddle* is a
game with short prompts whose questions are not learned. The base learns which nouns fit the answers
so far, as odds of the nouns before every question, and within a guess how a noun's name continues.
So it learns facts about all 200 nouns, including held-out ones, and their names, but not what to
ask or when to guess. Most riddles ask the most informative question: with these, the base learns in
a third of the time, since few sequences of questions occur.

A *game* is played by one of the players of ``habits.py``, most of them weak, on a training noun,
and names no held-out one. The base learns the probabilities of everything that the player might
have said, not only what was drawn, so the draw adds no noise, and a held-out noun is as likely a
guess as any other. So the base learns how good and bad players play, and RL has something to choose
from. The category is hidden in half of the riddles and games. In order: the text its tokenizer is
made for, :class:`RiddleCorpus`.
"""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bases.dialogues import DialogueBatch, DialogueExample, Encoder
from evert.envs.twenty_questions.answerers import shipped_answerer
from evert.envs.twenty_questions.game import QuestionGame, Rules
from evert.envs.twenty_questions.habits import HabitPlayer, players
from evert.envs.twenty_questions.information import GUESS, Knowledge, guess, informative_attributes
from evert.envs.twenty_questions.nouns import Noun, of_split, shipped_nouns
from evert.envs.twenty_questions.player import turn_prompt

SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
"""Sizes of the model. Three wide layers need a third of the steps of four narrow ones."""

VOCAB_SIZE = 1536
"""Size of its tokenizer: nearly every word of the game is a token."""


def tokenizer_text() -> str:
    """Return the game's words; those in every turn are repeated most."""
    nouns = shipped_nouns()
    guesses = [f"{noun.answer}\n{guess(noun.answer)}" for noun in nouns]
    categories = dict.fromkeys(noun.category for noun in nouns)
    openings = [f"{category} 1" for category in categories] + ["20 questions 1"] * 3
    turns = "yes 2\nno 3\nn/a 4\n5 6 7 system\nuser\nassistant"
    questions = [*Knowledge().questions.values()]
    return "\n".join(guesses * 6 + questions * 6 + openings * 20 + [turns] * 50)


# -- the corpus ----------------------------------------------------------------------------------

TELLING = 40
"""Attributes that the base knows and its players ask about: enough to tell the nouns apart."""

SHOWN_RATE = 0.5
"""Share of riddles and games that show the category."""

TELLING_RATES = (0.0, 0.8, 1.0, 1.0, 1.0)
"""Shares of most informative questions; each riddle has one of these shares."""

FEW = 4
"""While more nouns than this are left, a riddle guesses only at its end.

So an early guess with more questions after it marks a player's game: there the base learns to guess
what players guess, not what it knows to fit.
"""

GUESS_RATE = 0.6
"""Share of guesses in a riddle where few nouns are left; wrong guesses are not repeated."""


class RiddleCorpus:
    """Draws each training step's riddles and games; equal seeds give the same ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Start at the first step of ``seed``."""
        self.encoder = Encoder(tokenizer)
        self.known = Knowledge(attributes=informative_attributes(Knowledge(), TELLING))
        self._rng = random.Random(seed)
        opening = GUESS.partition(" {}")[0]
        self.opening = self.encoder.text(opening)
        self._names = {
            noun.answer: self._reply(guess(noun.answer))[len(self.opening) :]
            for noun in self.known.nouns
        }
        self.odds_tokens = sorted({token for name in self._names.values() for token in name})
        said = [guess(noun.answer) for noun in self.known.nouns] + [*self.known.questions.values()]
        self.target_tokens = sorted({token for text in said for token in self._reply(text)})
        self._index = {token: place for place, token in enumerate(self.target_tokens)}
        self._train = of_split(self.known.nouns, "train")
        self.players = players(self.known, self._rng, self.known.set_of(self._train))

    def step(self, *, whole_games: bool) -> list[DialogueBatch]:
        """Draw a step's batches; without ``whole_games`` only plain riddles."""
        if not whole_games:
            plain = [self.riddle(self._rng.randint(2, 11), plain=True) for _ in range(32)]
            return [DialogueBatch("riddles", 1.0, plain)]
        riddles = sorted((self.riddle(self._rng.randint(2, 14)) for _ in range(20)), key=_length)
        games = sorted((self.game(next(self.players)) for _ in range(12)), key=_length)
        return [
            DialogueBatch("short riddles", 0.5, riddles[:10]),
            DialogueBatch("long riddles", 0.5, riddles[10:]),
            DialogueBatch("short games", 0.5, games[:6]),
            DialogueBatch("long games", 0.5, games[6:]),
        ]

    def riddle(self, length: int, *, plain: bool = False) -> DialogueExample:
        """Return a riddle about any noun, of at most ``length`` questions and a guess.

        A plain riddle always asks the most informative question.
        """
        game = self._new_game(self.known.nouns, length + 1)
        telling = 1.0 if plain else self._rng.choice(TELLING_RATES)
        example = DialogueExample()
        while not game.over:
            left = self._tell(example, game)
            few = left.bit_count() <= FEW
            if len(game.turns) == length or (few and self._rng.random() < GUESS_RATE):
                question = guess(self._rng.choice(self.known.names(left)))
                self._guess(example, question, left)
            else:
                question = self._asked(game, left, telling)
                example.add(self._reply(question))
            game.record(question, shipped_answerer().answer_now(game.noun, question))
        return example

    def game(self, player: HabitPlayer) -> DialogueExample:
        """Return a player's game on a training noun, up to one of its questions."""
        game, last = self._new_game(self._train), self._rng.randint(6, 20)
        example = DialogueExample()
        while not game.over and len(game.turns) < last:
            self._tell(example, game)
            question = player.question(game)
            self._learn(example, question, player.lists(game))
            game.record(question, shipped_answerer().answer_now(game.noun, question))
        return example

    def _new_game(self, nouns: Sequence[Noun], questions: int = 20) -> QuestionGame:
        shown = self._rng.random() < SHOWN_RATE
        return QuestionGame(self._rng.choice(nouns), Rules(questions, show_category=shown))

    def _tell(self, example: DialogueExample, game: QuestionGame) -> int:
        """Write what precedes a question, and the nouns' odds; return the nouns that fit."""
        example.add(self.encoder.header("user", first=not game.turns))
        example.add([*self.encoder.text(turn_prompt(game, "short")), self.encoder.stop])
        example.add(self.encoder.header("assistant"))
        left = self.known.candidates(game)
        firsts = [self._names[name][0] for name in self.known.names(left)]
        example.odds[len(example.tokens) - 1] = self._odds(firsts)
        return left

    def _asked(self, game: QuestionGame, left: int, telling: float) -> str:
        asked = {turn.question for turn in game.turns}
        told = [self.known.questions[name] for _, name in self.known.best(left)]
        told = [text for text in told if text not in asked]
        return told[0] if self._rng.random() < telling else self._rng.choice(told)

    def _guess(self, example: DialogueExample, question: str, left: int) -> None:
        """Write a riddle's guess: the odds of every noun in a set, and how names continue."""
        example.add(self.opening)
        name = self._reply(question)[len(self.opening) :]
        fitting = [self._names[noun] for noun in self.known.names(left)]
        example.odds[len(example.tokens)] = self._odds([each[0] for each in fitting])
        example.add(name[:1])
        alike = [(each[1:], 1.0) for each in fitting if each[0] == name[0]]
        self._learn_tokens(example, name[1:], alike)

    def _odds(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        counts = Counter(tokens)
        return np.array([counts[c] / len(tokens) for c in self.odds_tokens], np.float32)

    def _learn(
        self, example: DialogueExample, question: str, lists: Sequence[tuple[float, Sequence[str]]]
    ) -> None:
        """Write a player's question, with the probabilities of everything it might have said."""
        alike = [
            (self._reply(text), chance / len(texts)) for chance, texts in lists for text in texts
        ]
        self._learn_tokens(example, self._reply(question), alike)

    def _learn_tokens(
        self, example: DialogueExample, tokens: list[int], alike: list[tuple[list[int], float]]
    ) -> None:
        """Write tokens, with the probabilities of everything that might have been said instead."""
        for place, token in enumerate(tokens):
            target = np.zeros(len(self.target_tokens), np.float32)
            for reply, chance in alike:
                target[self._index[reply[place]]] += chance
            example.soft_targets[len(example.tokens)] = target / target.sum()
            example.add([token], reply=True)
            alike = [(reply, chance) for reply, chance in alike if reply[place] == token]

    def _reply(self, text: str) -> list[int]:
        return [*self.encoder.text(text), self.encoder.stop]


def _length(example: DialogueExample) -> int:
    return len(example.tokens)
