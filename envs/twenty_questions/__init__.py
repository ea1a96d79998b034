"""Twenty Questions: the data, the answerers, the game and its players.

Suggested reading order:

    nouns.py           the 200 nouns to guess
    facts.py           facts about the nouns: yes, no, n/a
    understanding/     parses questions in plain English
    particulars.py     additional facts for the answerer: trunks and tusks, lengths and weights
    game.py            state, rules, scoring and transcript, shared by all players
    answerers.py       answers based on the facts, or from a model
    search.py          search tools: the facts, a model, or a URL
    information.py     which nouns match the answers so far, and how many bits a question gives
    measures.py        metrics of a game: first question, repeats, bits
    player.py          the player as an agent function, and the tasks
    baselines.py       scripted players: random, and the most informative question
    habits.py          scripted players with fixed habits, most of them weak
    demonstrations.py  games that demonstrate the format
    errors.py          exception classes

The data is in ``nouns.csv``, ``facts.csv``, ``particulars.toml``, ``measures.csv`` and
``understanding/lexicon.toml``; see ``PROVENANCE.md`` for its origin. Importing this package doesn't
load it.
"""

from dataclasses import replace

from evert.envs.games import Game, Metric

_PLAYER = "evert.envs.twenty_questions.player"
_BASELINES = "evert.envs.twenty_questions.baselines"

GAME = Game(
    "evert/TwentyQuestions-v0",
    agent=f"{_PLAYER}:twenty_questions_agent",
    train_tasks=f"{_PLAYER}:TRAIN_TASKS",
    test_tasks=f"{_PLAYER}:TEST_TASKS",
    recipe={
        "agent": f"{_PLAYER}:short_twenty_questions_agent",
        "model_name": "evert-tiny-20q",
        "demonstrations": "evert.envs.twenty_questions.demonstrations:demonstrations",
        # A low-rank adapter lacks the capacity to unlearn the held-out nouns.
        "full_parameter": False,
        "lora_rank": 4,
        "steps": 60,
        "batch_size": 16,
        "group_size": 8,
        "learning_rate": 3e-3,
        "max_tokens": 24,
        "test_group_size": 4,
        "eval_every": 15,
        "save_every": 20,
    },
    full_size={
        "agent": f"{_PLAYER}:twenty_questions_agent",
        "demonstrations": "",
        "full_parameter": None,
        "lora_rank": 32,
        "batch_size": 32,
        "learning_rate": 4e-5,
        "max_tokens": 256,
    },
    players={
        "random": f"{_BASELINES}:random_agent",
        "oracle": f"{_BASELINES}:oracle_agent",
    },
    searching={
        f"{_PLAYER}:{style}twenty_questions_agent": (
            f"{_PLAYER}:searching_{style}twenty_questions_agent"
        )
        for style in ("", "short_")
    },
    metrics={
        "asks_first": Metric("First turn is a question", "share of episodes", ("train", "test")),
        "repeats": Metric("Repeats", "questions per episode"),
        "bits": Metric(
            "Bits per question",
            "bits",
            about="A question's bits are the entropy of its answer over the nouns that are "
            "still possible. If the answer is already known, they are 0.",
        ),
        "bits_of_best": Metric(
            "Bits, relative to the best question", "share of the bits", ("train", "test")
        ),
        "questions_when_won": Metric("Questions when won", "questions", ("test",), tabled=False),
    },
)

VARIANTS = {
    "twenty_questions_shown": replace(
        GAME,
        id="evert/TwentyQuestionsShown-v0",
        agent=f"{_PLAYER}:shown_twenty_questions_agent",
        recipe={
            **GAME.recipe,
            "agent": f"{_PLAYER}:shown_short_twenty_questions_agent",
            "demonstrations": "evert.envs.twenty_questions.demonstrations:shown_demonstrations",
            "train_tasks": f"{_PLAYER}:SHOWN_TRAIN_TASKS",
            "steps": 150,
            "kl_penalty": 0.02,  # so that the held-out nouns are not unlearned
            "eval_every": 50,
        },
        full_size={
            **GAME.full_size,
            "agent": f"{_PLAYER}:shown_twenty_questions_agent",
            "train_tasks": f"{_PLAYER}:TRAIN_TASKS",
            "steps": 60,
            "kl_penalty": 0.0,
        },
        players={
            "random": f"{_BASELINES}:shown_random_agent",
            "oracle": f"{_BASELINES}:shown_oracle_agent",
        },
        searching={
            f"{_PLAYER}:shown_{style}twenty_questions_agent": (
                f"{_PLAYER}:shown_searching_{style}twenty_questions_agent"
            )
            for style in ("", "short_")
        },
    )
}
"""A variant of the game in which the category is shown.

A player that knows the category can simply guess its ten nouns one by one, so even the random
player wins 80% of the games. Training games therefore have only six questions, and wrong guesses
cost reward.
"""
