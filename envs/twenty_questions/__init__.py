"""Twenty Questions: the data, who answers, the game, and who plays.

Read in this order:

    nouns.py           what is to be found: 200 nouns, any CSV, any list of words
    facts.py           what is true of the shipped ones: yes, no, n/a
    understanding/     a question in plain English -> what it asks
    particulars.py     what is known beside the facts: trunks and tusks, lengths and weights
    game.py            state, rules, scoring, transcript; shared by all players
    answerers.py       who answers: the facts, or a model
    search.py          what a player may look things up in: the facts, a model, an address
    knowledge.py       what follows from the facts: what fits the answers, what a question tells
    measures.py        what a game says of its player: does it ask, tell, repeat
    player.py          the player as an agent function; the tasks
    baselines.py       players without a model: random, and the most informative question
    habits.py          players that keep to a habit, most of them poor
    demonstrations.py  games to learn the form of the game from
    errors.py          what can be wrong with all this

The data lie beside the code: ``nouns.csv``, ``facts.csv``, ``particulars.toml``, ``measures.csv``,
``understanding/lexicon.toml``, and where they come from, ``PROVENANCE.md``. Importing this
package loads none of it: here is the recipe only.
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
        # An adapter of low rank has no room to unlearn the nouns that training does not show.
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
            about="Bits say what an answer was undecided about before it was given, over all that "
            "fitted until then: a question that is known to be answered yes tells none.",
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
            "kl_penalty": 0.02,  # keeps the nouns that training does not show
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

Who is told the category may find a noun by naming ten, and mostly does: the random player wins four
games in five. So the games that are trained on have six questions, and a guess in vain costs.
"""
