"""The plain player: the whole game is a single conversation, and thus a single datum."""

import pickle
from typing import Any

import pytest
from tests.kit import play, policy_of, reward, rewards
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, ChatAgentGroupBuilder, RemoteModel, check_env
from evert.envs.twenty_questions.answerers import KnowledgeAnswerer, ModelAnswerer
from evert.envs.twenty_questions.game import Answer, Rules
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import (
    TEST_TASKS,
    TRAIN_TASKS,
    Task,
    TwentyQuestions,
    short_twenty_questions_agent,
    shown_short_twenty_questions_agent,
    shown_twenty_questions_agent,
    twenty_questions_agent,
    with_rules,
)
from evert.envs.twenty_questions.search import KnowledgeSearch

ZEBRA = Task(answer="zebra", category="animal", split="train")
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "striped mammals"}}\n</tool_call>'
BAD_SEARCH = SEARCH.replace("query", "text")
BIRD, RIGHT = "Is it a bird?", "Is it a zebra?"


async def play_game(
    agent: Any, *replies: Any, task: Task | dict[str, Any] = ZEBRA
) -> tuple[Trajectory, list[str]]:
    policy = policy_of(*replies)
    trajectory = await play(agent, policy, task=task)
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    return trajectory, policy.prompts


async def test_finding_the_noun_earns_one_and_is_recorded() -> None:
    trajectory, prompts = await play_game(twenty_questions_agent, "What?", BIRD, RIGHT)
    first, *_, last = trajectory.transitions

    assert rewards(trajectory) == [0.0, 0.0, 1.0]
    assert "Question 1 of 20." in prompts[0]
    assert "no. Question 3 of 20." in prompts[2]
    assert not any("zebra" in prompt or "animal" in prompt for prompt in prompts)
    assert (first.logs["question"], first.logs["answer"]) == ("What?", "n/a")
    assert last.logs["target"] == "zebra"
    assert "found, 3 questions" in str(last.logs["transcript"])
    expected = {"found": 1.0, "questions": 3.0, "not_told": 1.0, "searches": 0.0, "asks_first": 0.0}
    assert {**expected, "questions_when_won": 3.0}.items() <= last.metrics.items()


async def test_a_game_ends_after_twenty_questions_or_as_many_as_the_task_allows() -> None:
    def always(prompt: str) -> str:
        return "Is it a cat?"

    trajectory, _ = await play_game(twenty_questions_agent, always)
    assert (len(trajectory.transitions), reward(trajectory)) == (20, 0.0)

    [task] = with_rules([ZEBRA], max_questions=3)
    trajectory, prompts = await play_game(twenty_questions_agent, always, task=task)
    assert len(trajectory.transitions) == 3
    assert "Question 1 of 3." in prompts[0]
    assert "rules" not in ZEBRA
    with pytest.raises(TypeError, match="questions"):
        with_rules([ZEBRA], questions=3)


async def test_empty_replies_and_tool_calls_without_a_search_count_as_questions() -> None:
    class Flatterer:  # a user-defined answerer
        async def answer(self, noun: Noun, question: str) -> Answer:
            return Answer("yes", correct=question == "Hm?")

    agent = TwentyQuestions(answerer=Flatterer(), rules=Rules(max_questions=4))
    trajectory, prompts = await play_game(agent, "", SEARCH, "Hm?")

    assert rewards(trajectory) == [0.0, 0.0, 1.0]
    assert "n/a. Category" in prompts[1]


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        (shown_twenty_questions_agent, ["Category: animal. Question 1 ", "no. Category: animal. "]),
        (short_twenty_questions_agent, ["20 questions 1", "no 2"]),
        (shown_short_twenty_questions_agent, ["animal 1", "no 2"]),
    ],
)
async def test_the_category_and_short_prompts_are_options(agent: Any, told: list[str]) -> None:
    trajectory, prompts = await play_game(agent, BIRD, RIGHT)

    assert reward(trajectory) == 1.0
    assert all(text in prompts[1] for text in told)
    assert ("animal" in prompts[0]) == ("animal" in told[0])


async def test_wrong_guesses_cost_reward_but_not_the_score() -> None:
    [task] = with_rules([ZEBRA], guess_cost=0.1)
    guesses = ["Is it a cat?", BIRD, RIGHT]  # "bird" is not one of the game's nouns
    trajectory, _ = await play_game(twenty_questions_agent, *guesses, task=task)

    assert reward(trajectory) == pytest.approx(0.9)
    assert trajectory.transitions[-1].metrics["found"] == 1.0


def test_an_agent_with_all_options_passes_check_env_and_pickles_small() -> None:
    check_env(ChatAgentEnv(TwentyQuestions(search=KnowledgeSearch()), ZEBRA))
    for agent in (
        TwentyQuestions(answerer=KnowledgeAnswerer(), search=KnowledgeSearch(), style="short"),
        TwentyQuestions(answerer=ModelAnswerer(RemoteModel("judge"))),
    ):
        pickled = pickle.dumps(ChatAgentGroupBuilder(agent, ZEBRA, 2))

        assert len(pickled) < 5_000
        assert isinstance(pickle.loads(pickled), ChatAgentGroupBuilder)


async def test_one_search_per_question_is_allowed_and_a_player_that_only_searches_loses() -> None:
    agent = TwentyQuestions(search=KnowledgeSearch())
    trajectory, prompts = await play_game(agent, SEARCH, SEARCH, BIRD, BAD_SEARCH, SEARCH, RIGHT)

    assert "<tool_response>\ncow, giraffe, zebra\n</tool_response>" in prompts[1]
    assert "No more searches before this question" in prompts[2]
    assert "The search needs a query." in prompts[4]
    assert reward(trajectory) == 1.0
    assert trajectory.transitions[-1].metrics["questions"] == 2.0
    agent = TwentyQuestions(search=KnowledgeSearch(), rules=Rules(max_questions=2))
    twice, _ = await play_game(agent, SEARCH, BIRD, SEARCH, RIGHT)
    only, _ = await play_game(agent, lambda prompt: SEARCH)

    assert twice.transitions[-1].metrics["searches"] == 2.0
    assert len(only.transitions) == 8
    assert only.transitions[-1].metrics["not_told"] == 2.0


async def test_training_and_test_tasks_are_disjoint_and_played_in_the_same_way() -> None:
    assert (len(TRAIN_TASKS), len(TEST_TASKS)) == (160, 40)
    assert {task["split"] for task in TRAIN_TASKS} == {"train"}
    assert not {task["answer"] for task in TRAIN_TASKS} & {task["answer"] for task in TEST_TASKS}
    for task in TEST_TASKS[:3]:
        trajectory, _ = await play_game(
            twenty_questions_agent, f"Guess: {task['answer']}", task=task
        )
        assert reward(trajectory) == 1.0
