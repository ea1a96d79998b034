"""Twenty Questions in CrewAI and LangGraph plays and trains just as with the plain agent."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from episodes import give_up_at_the_second_call, play_in_lockstep, reward, train_one_step
from game import tool_call
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory
from twenty_questions import ask

from evert import AgentError, ChatAgentEnv, ScriptedPolicy
from evert.envs.twenty_questions.game import Answer, Rules
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import TRAIN_TASKS, Task, TwentyQuestions
from evert.envs.twenty_questions.search import KnowledgeSearch

pytestmark = [
    pytest.mark.usefixtures("no_sockets"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from the frameworks
    pytest.mark.filterwarnings("ignore::ImportWarning"),
]

RIGHT = "Is it a zebra?"
ZEBRA = Task(answer="zebra", category="animal", split="train")
STRIPED = tool_call("search", query="striped mammals")
BIG = tool_call("search", query="big animals")
SEARCH: dict[str, Any] = {"search": KnowledgeSearch()}

GAMES: dict[str, tuple[dict[str, Any], list[str] | Callable[[str], str]]] = {
    "won by who knows every fact": ({}, ask),
    "with all three answers": ({}, ["Is it alive?", "Is it a bird?", "Why?", "Guess: zebra"]),
    "with thoughts": ({}, ["Maybe.\nIs it bigger than a car?\nI hope so.", RIGHT]),
    "with an empty reply": ({}, ["", RIGHT]),
    "with white space": ({}, ["  Is it a bird? \n", RIGHT]),
    "lost by other rules": (
        {"rules": Rules(max_questions=2, show_category=False)}, lambda prompt: "Is it a bird?"
    ),
    "no search": (SEARCH, ["Is it a bird?", RIGHT]),
    "a search": (SEARCH, [STRIPED, RIGHT]),
    "two searches, one refused": (SEARCH, [STRIPED, BIG, RIGHT]),
    "a search a question": (SEARCH, [STRIPED, "Is it a bird?", STRIPED, RIGHT]),
    "two searches at once": (SEARCH, [f"{STRIPED}\n{BIG}", RIGHT]),
    "a search refused, and allowed again": (
        SEARCH, [STRIPED, STRIPED, "Is it a bird?", STRIPED, RIGHT]
    ),
    "six searches at once, until patience ends": (SEARCH, [f"{STRIPED}\n" * 6, RIGHT]),
    "a search with a thought": (SEARCH, [f"Let me look.\n{STRIPED}", RIGHT]),
}  # fmt: skip
"""A player's options, and its model's replies."""

EDITED = (
    "with an empty reply", "a search with a thought", "six searches at once, until patience ends"
)  # fmt: skip
"""Games in which CrewAI drops something from its history, which starts another datum."""


def player_of(module: ModuleType, **options: Any) -> Any:
    """Return a player of the module with different components."""
    return type(module.agent)(**options)


async def played(agent: Any, replies: Any, task: Task = ZEBRA) -> tuple[Trajectory, ScriptedPolicy]:
    policy = ScriptedPolicy(replies)
    return await do_single_rollout(policy, ChatAgentEnv(agent, task)), policy


def game_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return everything logged about a game: transcript, score, counts, and each question."""
    last = trajectory.transitions[-1]
    notes = [turn.logs["question"] for turn in trajectory.transitions if "question" in turn.logs]
    numbers = ("found", "questions", "not_told", "searches")
    return {
        "reward": reward(trajectory),
        "transcript": last.logs["transcript"],
        "target": last.logs["target"],
        "questions": notes,
        **{name: last.metrics[name] for name in numbers},
    }


# -- the same game ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", GAMES)
async def test_a_script_plays_the_same_game_as_the_plain_agent(
    player: ModuleType, name: str
) -> None:
    options, replies = GAMES[name]
    plain, shown = await played(TwentyQuestions(**options), replies)
    here, policy = await played(player_of(player, **options), replies)

    assert game_of(here) == game_of(plain)
    assert [turn.ac.tokens for turn in here.transitions] == policy.actions
    langgraph = player.__name__ == "twenty_questions_langgraph"
    assert len(trajectory_to_data(here, 1.0)) == (1 if langgraph or name not in EDITED else 2)
    assert not langgraph or policy.prompts == shown.prompts


async def test_the_prompt_has_the_category_number_and_history_but_never_the_noun(
    player: ModuleType,
) -> None:
    _, policy = await played(player.agent, ["Is it a bird?", "Is it alive?", RIGHT])

    for number, prompt in enumerate(policy.prompts, 1):
        assert f"Category: animal. Question {number} of 20." in prompt
        assert "zebra" not in prompt
    told = policy.prompts[-1]
    assert told.index("Is it a bird?") < told.index("no. Category")
    assert told.index("no. Category") < told.index("Is it alive?") < told.index("yes. Category")


async def test_a_prompt_that_is_too_long_ends_only_its_game(player: ModuleType) -> None:
    limits = RolloutLimits(max_trajectory_tokens=400)
    env = ChatAgentEnv(player.agent, ZEBRA, limits=limits, on_agent_error=-1.0)
    # CrewAI raises a SystemExit that hides its cause, so this counts as an agent error.
    hides_the_cause = player.__name__ == "twenty_questions_crewai"
    trajectory = await do_single_rollout(ScriptedPolicy(lambda _: "Is it a bird?"), env)

    assert len(trajectory.transitions) < 20
    assert reward(trajectory) < 0.0
    assert trajectory.stop_reason == ("agent_error" if hides_the_cause else "max_tokens")


async def test_another_answerer_can_be_used(player: ModuleType) -> None:
    class Flatterer:
        async def answer(self, noun: Noun, question: str) -> Answer:
            return Answer("yes", correct=True, brief_reason=f"{noun.answer}, {question}")

    trajectory, _ = await played(player_of(player, answerer=Flatterer()), ["Hm?"])

    assert reward(trajectory) == 1.0
    assert "Hm?  yes  (zebra, Hm?)" in str(trajectory.transitions[-1].logs["transcript"])


async def test_a_player_that_only_searches_loses_its_questions(player: ModuleType) -> None:
    agent = player_of(player, **SEARCH, rules=Rules(max_questions=2))

    def only_search(prompt: str) -> str:  # until CrewAI takes the tool away
        return "" if "absolute BEST Final answer" in prompt[-300:] else STRIPED

    trajectory, _ = await played(agent, only_search)

    metrics = trajectory.transitions[-1].metrics
    assert (reward(trajectory), metrics["searches"], metrics["not_told"]) == (0.0, 2.0, 2.0)


async def test_without_search_no_tool_is_offered(player: ModuleType) -> None:
    without, policy = await played(player.agent, [RIGHT])
    with_search, _ = await played(player_of(player, **SEARCH), [RIGHT])

    assert "search" not in policy.prompts[0]
    assert "tools/offered" not in without.transitions[-1].metrics
    assert with_search.transitions[-1].metrics["tools/offered"] == 1


# -- training ---------------------------------------------------------------------------------


def test_the_cookbook_trains_the_player(player: ModuleType, tmp_path: Path) -> None:
    train_one_step(f"{player.__name__}:agent", TRAIN_TASKS[:2], tmp_path)


# -- cancellation and concurrency -------------------------------------------------------------


@pytest.mark.parametrize("reply", ["Is it a bird?", STRIPED], ids=["in a question", "in a search"])
async def test_cancelling_a_game_at_its_second_call_leaves_nothing_behind(
    player: ModuleType, reply: str
) -> None:
    await played(player.agent, [RIGHT])  # creates everything that the framework never releases
    before = set(threading.enumerate())
    env = ChatAgentEnv(player_of(player, **SEARCH), ZEBRA)
    await give_up_at_the_second_call(env, ScriptedPolicy([reply]))

    for _ in range(500):
        names = [thread.name for thread in set(threading.enumerate()) - before]
        left = [name for name in names if not name.startswith("CrewAI")]  # CrewAI's event bus
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left


async def test_concurrent_games_are_not_mixed_up(player: ModuleType) -> None:
    tasks = TRAIN_TASKS[::20]
    games = await play_in_lockstep(player.agent, ask, tasks)

    for (trajectory, policy), task in zip(games, tasks, strict=True):
        plain, _ = await played(TwentyQuestions(), ask, task)
        assert game_of(trajectory) == game_of(plain)
        assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions


# -- a chat model as the answerer -------------------------------------------------------------


class Judge(MessageCompleter):
    """A frozen model with scripted replies that records the requests it receives."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.shown: list[str] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.shown.append("\n".join(str(message["content"]) for message in messages))
        return Message(role="assistant", content=self.replies[len(self.shown) - 1])


def verdict(reason: str, yes_or_no: str, *, correct: bool = False) -> str:
    return json.dumps({"brief_reason": reason, "yes_or_no": yes_or_no, "correct": correct})


async def judged(player: ModuleType, judge: Judge, replies: list[str]) -> Trajectory:
    env = ChatAgentEnv(player_of(player, answerer="judge"), ZEBRA, models={"judge": judge})
    return await do_single_rollout(ScriptedPolicy(replies), env)


async def test_the_answers_of_a_frozen_chat_model_are_not_transitions(player: ModuleType) -> None:
    judge = Judge(verdict("It has no wings.", "no"), verdict("Named.", "yes", correct=True))
    trajectory = await judged(player, judge, ["Is it a bird?", RIGHT])

    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == len(judge.shown) == 2
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert trajectory.transitions[-1].logs["transcript"] == (
        "zebra (animal, train)\n"
        "  1. Is it a bird?  no  (It has no wings.)\n"
        "  2. Is it a zebra?  yes  (Named.)\n"
        "found, 2 questions"
    )


async def test_an_answer_in_the_wrong_format_is_an_error(player: ModuleType) -> None:
    with pytest.raises(AgentError, match="validation error for Said"):
        await judged(player, Judge("No."), ["Is it a bird?"])
