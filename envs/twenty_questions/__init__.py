"""Twenty Questions: the data, the answerers, the game and its players.

Read in this order:

    nouns.py           the 200 nouns to find
    facts.py           facts about the nouns: yes, no, n/a
    understanding/     parses questions in plain English
    particulars.py     more facts, for the answerer: trunks and tusks, lengths and weights
    game.py            state, rules, scoring, transcript; shared by all players
    answerers.py       answers from the facts, or from a model
    search.py          search tools: the facts, a model, a URL
    information.py     which nouns fit the answers so far, and how many bits a question gives
    measures.py        metrics of a game: first question, repeats, bits
    player.py          the player as an agent function; the tasks
    baselines.py       players without a model: random, and the most informative question
    habits.py          players with fixed habits, most of them poor
    demonstrations.py  games that show the format of the game
    errors.py          classes of errors

The data are ``nouns.csv``, ``facts.csv``, ``particulars.toml``, ``measures.csv`` and
``understanding/lexicon.toml``; ``PROVENANCE.md`` has their sources. This file loads none of them.
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
        # A low-rank adapter cannot unlearn the nouns that are not in training.
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
        "asks_first": Metric("First turns that ask", "share of episodes", ("train", "test")),
        "repeats": Metric("Repeats", "questions an episode"),
        "bits": Metric(
            "Bits a question",
            "bits",
            about="Bits are the entropy of an answer over the nouns that fit so far: a "
            "question whose answer is already known gives none.",
        ),
        "bits_of_best": Metric(
            "Bits, of the best question's", "share of the bits", ("train", "test")
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
            "kl_penalty": 0.02,  # preserves the nouns that are not in training
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
"""The game with the category shown: the second experiment.

A player that knows the category can guess its ten nouns one by one: the random player wins four
games in five. So training games have six questions, and a wrong guess costs reward.
"""
