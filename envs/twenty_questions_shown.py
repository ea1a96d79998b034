"""Twenty Questions with the category shown: the second experiment; the game is the same.

Who is told the category may find a noun by naming ten, and mostly does: the random player wins four
games in five. So the games that are trained on have six questions, and a guess in vain costs.
"""

from dataclasses import replace

from evert.envs import twenty_questions

_PLAYER = "evert.envs.twenty_questions.player"
_BASELINES = "evert.envs.twenty_questions.baselines"

GAME = replace(
    twenty_questions.GAME,
    id="evert/TwentyQuestionsShown-v0",
    agent=f"{_PLAYER}:shown_twenty_questions_agent",
    recipe={
        **twenty_questions.GAME.recipe,
        "agent": f"{_PLAYER}:shown_short_twenty_questions_agent",
        "train_tasks": f"{_PLAYER}:SHOWN_TRAIN_TASKS",
        "steps": 150,
        "kl_penalty": 0.02,  # keeps the nouns that training does not show
        "eval_every": 50,
    },
    full_size={
        **twenty_questions.GAME.full_size,
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
