"""Twenty Questions in CrewAI and LangGraph: the same game as the plain agent's, and as trainable.

The same script makes the same game, and trains on what was sampled; the player is told category,
number and history, and never the noun. What an answerer is told is tested in ``tests/envs``.
No test opens a socket.
"""

import asyncio
import json
import pickle
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
from twenty_questions_langgraph import TwentyQuestionsGraph

from evert import AgentError, ChatAgentEnv, ChatAgentGroupBuilder, ScriptedPolicy
from evert.envs.twenty_questions.game import Answer, Rules
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import TRAIN_TASKS, Task, TwentyQuestions
from evert.envs.twenty_questions.search import KnowledgeSearch

pytestmark = [
    pytest.mark.usefixtures("no_sockets"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the frameworks' own
    pytest.mark.filterwarnings("ignore::ImportWarning"),
]

ZEBRA = Task(answer="zebra", category="animal", split="train")
STRIPED = tool_call("search", query="striped mammals")
BIG = tool_call("search", query="big animals")

GAMES: dict[str, list[str] | Callable[[str], str]] = {
    "won by who knows every fact": ask,
    "won with the first question": ["Is it a zebra?"],
    "lost": lambda prompt: "Is it a bird?",
    "with all three answers": ["Is it alive?", "Is it a bird?", "Why?", "Guess: zebra"],
    "with thoughts": ["It may be big.\nIs it bigger than a car?\nI hope so.", "Is it a zebra?"],
    "with an empty reply": ["", "Is it a zebra?"],
    "with white space": ["  Is it a bird? \n", "Is it a zebra?"],
}
SEARCHED = {
    "not used": ["Is it a bird?", "Is it a zebra?"],
    "once": [STRIPED, "Is it a zebra?"],
    "twice, refused": [STRIPED, BIG, "Is it a zebra?"],
    "once a question": [STRIPED, "Is it a bird?", STRIPED, "Is it a zebra?"],
    "two at once, one refused": [f"{STRIPED}\n{BIG}", "Is it a zebra?"],
    "refused, and allowed again": [STRIPED, STRIPED, "Is it a bird?", STRIPED, "Is it a zebra?"],
    "six at once, until patience ends": [f"{STRIPED}\n" * 6, "Is it a zebra?"],
    "with a thought": [f"Let me look.\n{STRIPED}", "Is it a zebra?"],
}


def player_of(module: ModuleType, **options: Any) -> Any:
    """A player of the module with other parts than the shipped ones."""
    return type(module.agent)(**options)


async def played(agent: Any, replies: Any, task: Task = ZEBRA) -> tuple[Trajectory, ScriptedPolicy]:
    policy = ScriptedPolicy(replies)
    return await do_single_rollout(policy, ChatAgentEnv(agent, task)), policy


def game_of(trajectory: Trajectory) -> dict[str, Any]:
    """All that is noted of a game: transcript, score, numbers, and each question as it was put."""
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


@pytest.mark.parametrize("replies", GAMES.values(), ids=GAMES)
async def test_the_same_script_makes_the_same_game(player: ModuleType, replies: Any) -> None:
    plain, _ = await played(TwentyQuestions(), replies)

    here, _ = await played(player.agent, replies)

    assert game_of(here) == game_of(plain)


@pytest.mark.parametrize("replies", SEARCHED.values(), ids=SEARCHED)
async def test_the_same_searches_make_the_same_game(player: ModuleType, replies: list[str]) -> None:
    plain, _ = await played(TwentyQuestions(search=KnowledgeSearch()), replies)

    here, _ = await played(player_of(player, search=KnowledgeSearch()), replies)

    assert game_of(here) == game_of(plain)


async def test_the_player_is_told_category_number_and_history_and_never_the_noun(
    player: ModuleType,
) -> None:
    _, policy = await played(player.agent, ["Is it a bird?", "Is it alive?", "Is it a zebra?"])

    for number, prompt in enumerate(policy.prompts, 1):
        assert f"Category: animal. Question {number} of 20." in prompt
        assert "zebra" not in prompt
    told = policy.prompts[-1]
    assert told.index("Is it a bird?") < told.index("no. Category")
    assert told.index("no. Category") < told.index("Is it alive?") < told.index("yes. Category")


async def test_other_rules_may_be_given(player: ModuleType) -> None:
    rules = Rules(max_questions=2, show_category=False)

    trajectory, policy = await played(player_of(player, rules=rules), lambda _: "Is it a bird?")

    assert len(trajectory.transitions) == 2
    assert reward(trajectory) == 0.0
    assert "Question 2 of 2." in policy.prompts[1]
    assert "animal" not in policy.prompts[1]


async def test_a_prompt_that_is_too_long_ends_the_game_alone(player: ModuleType) -> None:
    limits = RolloutLimits(max_trajectory_tokens=400)
    env = ChatAgentEnv(player.agent, ZEBRA, limits=limits, on_agent_error=-1.0)
    # CrewAI ends with a SystemExit that does not say where it comes from: an error of the agent.
    hides_the_cause = player.__name__ == "twenty_questions_crewai"

    trajectory = await do_single_rollout(ScriptedPolicy(lambda _: "Is it a bird?"), env)

    assert len(trajectory.transitions) < 20
    assert reward(trajectory) < 0.0
    assert trajectory.stop_reason == ("agent_error" if hides_the_cause else "max_tokens")


async def test_another_answerer_may_be_given(player: ModuleType) -> None:
    class Flatterer:
        async def answer(self, noun: Noun, question: str) -> Answer:
            return Answer("yes", correct=True, brief_reason=f"{noun.answer}, {question}")

    trajectory, _ = await played(player_of(player, answerer=Flatterer()), ["Hm?"])

    assert reward(trajectory) == 1.0
    assert "Hm?  yes  (zebra, Hm?)" in str(trajectory.transitions[-1].logs["transcript"])


def test_a_player_with_its_parts_pickles(player: ModuleType) -> None:
    agent = player_of(player, search=KnowledgeSearch(), rules=Rules(max_questions=3))

    builder = pickle.loads(pickle.dumps(ChatAgentGroupBuilder(agent, ZEBRA, 2)))

    assert isinstance(builder, ChatAgentGroupBuilder)


# -- search -----------------------------------------------------------------------------------


class Counted:
    """A search tool that remembers what it was asked."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    async def search(self, query: str) -> str:
        self.queries.append(query)
        return "cow, zebra"


async def test_search_serves_one_query_a_question(player: ModuleType) -> None:
    search = Counted()
    replies = [STRIPED, BIG, "Is it a bird?", f"{BIG}\n{STRIPED}", "Is it a zebra?"]

    trajectory, policy = await played(player_of(player, search=search), replies)

    assert search.queries == ["striped mammals", "big animals"]
    assert "cow, zebra" in policy.prompts[1]
    assert policy.prompts[-1].count("cow, zebra") == 2
    assert trajectory.transitions[-1].metrics["searches"] == 2.0


async def test_a_player_that_only_searches_loses_its_questions(player: ModuleType) -> None:
    search = Counted()
    agent = player_of(player, search=search, rules=Rules(max_questions=2))

    def only_search(prompt: str) -> str:  # as long as it may: CrewAI takes the tool away at last
        return "" if "absolute BEST Final answer" in prompt[-300:] else STRIPED

    trajectory, _ = await played(agent, only_search)

    assert reward(trajectory) == 0.0
    assert len(search.queries) == 2
    assert trajectory.transitions[-1].metrics["not_told"] == 2.0


async def test_without_search_no_tool_is_offered(player: ModuleType) -> None:
    without, policy = await played(player.agent, ["Is it a zebra?"])
    with_search, _ = await played(player_of(player, search=Counted()), ["Is it a zebra?"])

    assert "search" not in policy.prompts[0]
    assert "tools/offered" not in without.transitions[-1].metrics
    assert with_search.transitions[-1].metrics["tools/offered"] == 1


# -- tokens -----------------------------------------------------------------------------------


def assert_grows(trajectory: Trajectory, policy: ScriptedPolicy) -> None:
    """Each prompt begins with the one before and the tokens sampled for it, untouched."""
    seen = [turn.ob.to_ints() for turn in trajectory.transitions]
    for before, action, after in zip(seen, policy.actions, seen[1:], strict=False):
        assert after[: len(before) + len(action)] == before + action


@pytest.mark.parametrize(
    "replies", [ask, [STRIPED, BIG, "It is no cow.\nA bird? \n", STRIPED, "Is it a zebra?"]]
)
async def test_a_game_is_one_datum_of_exactly_what_was_sampled(
    player: ModuleType, replies: Any
) -> None:
    policy = ScriptedPolicy(replies)
    env = ChatAgentEnv(player_of(player, search=KnowledgeSearch()), ZEBRA)

    trajectory = await do_single_rollout(policy, env)

    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert_grows(trajectory, policy)
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert not env.drift


async def test_langgraph_shows_the_very_prompts_of_the_plain_agent() -> None:
    replies = [STRIPED, BIG, "Is it a bird?", STRIPED, "Is it a zebra?"]
    _, plain = await played(TwentyQuestions(search=KnowledgeSearch()), replies)

    _, here = await played(TwentyQuestionsGraph(search=KnowledgeSearch()), replies)

    assert here.prompts == plain.prompts


EDITS = {
    "an empty reply is left out": ["", "Is it a zebra?"],
    "so is what is said beside a search": [f"Let me look.\n{STRIPED}", "Is it a zebra?"],
}
"""What CrewAI does to its history."""


@pytest.mark.parametrize("replies", EDITS.values(), ids=EDITS)
async def test_what_crewai_edits_begins_another_datum(
    player: ModuleType, replies: list[str]
) -> None:
    data = 2 if player.__name__ == "twenty_questions_crewai" else 1

    trajectory, policy = await played(player_of(player, search=KnowledgeSearch()), replies)

    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert len(trajectory_to_data(trajectory, 1.0)) == data


# -- training ---------------------------------------------------------------------------------


def test_the_cookbook_trains_it(player: ModuleType, tmp_path: Path) -> None:
    row = train_one_step(f"{player.__name__}:agent", TRAIN_TASKS[:2], tmp_path)

    assert row["env/all/total_episodes"] == 4
    assert row["env/all/total_ac_tokens"] > 0
    assert row["optim/grad_norm"] > 0


# -- giving up, and many at once --------------------------------------------------------------


@pytest.mark.parametrize("reply", ["Is it a bird?", STRIPED], ids=["in a question", "in a search"])
async def test_a_game_given_up_at_its_second_call_leaves_nothing(
    player: ModuleType, reply: str
) -> None:
    await played(player.agent, ["Is it a zebra?"])  # what the framework keeps for good is there
    before = set(threading.enumerate())
    env = ChatAgentEnv(player_of(player, search=KnowledgeSearch()), ZEBRA)

    await give_up_at_the_second_call(env, ScriptedPolicy([reply]))

    for _ in range(500):
        left = [t.name for t in set(threading.enumerate()) - before if not serves_all(t)]
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left


def serves_all(thread: threading.Thread) -> bool:
    """Whether a thread is of the event bus that CrewAI has once a process."""
    return thread.name.startswith("CrewAI")


async def test_games_at_once_do_not_mix(player: ModuleType) -> None:
    tasks = TRAIN_TASKS[::20]

    games = await play_in_lockstep(player.agent, ask, tasks)

    for (trajectory, policy), task in zip(games, tasks, strict=True):
        plain, _ = await played(TwentyQuestions(), ask, task)
        assert game_of(trajectory) == game_of(plain)
        assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions


# -- a chat model that answers ----------------------------------------------------------------


class Judge(MessageCompleter):
    """A frozen model that says what it is told to, and remembers what it was shown."""

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


async def test_a_frozen_chat_model_answers_and_is_no_transition(player: ModuleType) -> None:
    judge = Judge(verdict("It has no wings.", "no"), verdict("Named.", "yes", correct=True))

    trajectory = await judged(player, judge, ["Is it a bird?", "Is it a zebra?"])

    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == len(judge.shown) == 2
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    assert trajectory.transitions[-1].logs["transcript"] == (
        "zebra (animal, train)\n"
        "  1. Is it a bird?  no  (It has no wings.)\n"
        "  2. Is it a zebra?  yes  (Named.)\n"
        "found, 2 questions"
    )


async def test_a_chat_model_that_does_not_answer_as_asked_is_an_error(player: ModuleType) -> None:
    with pytest.raises(AgentError, match="validation error for Said"):
        await judged(player, Judge("No."), ["Is it a bird?"])
