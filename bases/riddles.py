"""Training data for ``evert-tiny-20q``: riddles and games of Twenty Questions.

A large language model knows about the world before it plays; this base learns its facts from
*riddles*. A riddle is a game with short prompts whose questions are not training targets. Instead,
the base learns which nouns match the answers so far (as a distribution over nouns before every
question) and how a noun's name continues within a guess. In this way it learns the names of all 200
nouns, including the held-out nouns, and facts about them. It does not learn what to ask or when to
guess. Most riddles ask the most informative question. This limits the number of distinct question
sequences, so the base learns in a third of the time.

A *game* is played on a training noun by one of the players in ``habits.py``, most of them weak, and
never mentions a held-out noun. The training targets are the probabilities of everything that the
player might have said, rather than what was sampled. This removes the sampling noise, and makes
held-out nouns as likely to be guessed as any others. The base thus learns how good and bad players
play, which gives RL something to choose from. The category is hidden in half of the riddles and
games.
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
"""Model sizes. Three wide layers need a third of the training steps of four narrow layers."""

VOCAB_SIZE = 1536
"""Vocabulary size, large enough that nearly every word in the game is one token."""


def tokenizer_text() -> str:
    """Return the text to train the tokenizer on; words used in every turn are repeated most."""
    nouns = shipped_nouns()
    guesses = [f"{noun.answer}\n{guess(noun.answer)}" for noun in nouns]
    categories = dict.fromkeys(noun.category for noun in nouns)
    openings = [f"{category} 1" for category in categories] + ["20 questions 1"] * 3
    turns = "yes 2\nno 3\nn/a 4\n5 6 7 system\nuser\nassistant"
    questions = [*Knowledge().questions.values()]
    return "\n".join(guesses * 6 + questions * 6 + openings * 20 + [turns] * 50)


# -- the corpus ----------------------------------------------------------------------------------

TELLING = 40
"""Number of attributes that are taught and asked about. They are enough to tell all nouns apart."""

SHOWN_RATE = 0.5
"""Fraction of riddles and games that show the category."""

TELLING_RATES = (0.0, 0.8, 1.0, 1.0, 1.0)
"""Each riddle draws its fraction of maximally informative questions from these values."""

FEW = 4
"""While more nouns than this are possible, a riddle contains no guess except at its end.

If an early guess is followed by more questions, the base can therefore tell that it is in a
player's game. There it learns to guess what the player would guess, not what matches the answers.
"""

GUESS_RATE = 0.6
"""Probability of a guess in each turn of a riddle while few nouns are possible. Guesses are never
repeated."""


class RiddleCorpus:
    """Draws the riddles and games for each training step. The same seed gives the same draws."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Start at the first step."""
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
        """Draw the batches for one step. Without ``whole_games``, all of them are plain riddles."""
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
        """Return a riddle about a random noun, with up to ``length`` questions and a guess.

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
        """Return a player's game on a training noun, cut off after a random number of turns."""
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
        """Add a turn's prompt with the odds of the matching nouns. Return the nouns' bit mask."""
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
        """Add a guess.

        The targets for the first token of the name are the odds of the matching nouns. The targets
        for the other tokens are the continuations of all matching names with the same first token.
        """
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
        """Add a player's question, using the probabilities of all alternatives as targets."""
        alike = [
            (self._reply(text), chance / len(texts)) for chance, texts in lists for text in texts
        ]
        self._learn_tokens(example, self._reply(question), alike)

    def _learn_tokens(
        self, example: DialogueExample, tokens: list[int], alike: list[tuple[list[int], float]]
    ) -> None:
        """Add tokens, using the probabilities of all alternatives as targets."""
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
