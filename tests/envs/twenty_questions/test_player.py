"""The plain player under the bridge.

1. A game is played to its end; the reward is 1 for the noun, else 0.
2. The player sees category, number and answers, and never the noun.
3. Search is used at most once a question; more is refused, and patience ends.
4. The whole game is one conversation, hence one datum.
5. Transitions carry logs and metrics.
"""

import pickle
import re
from typing import Any

import pytest
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, ChatAgentGroupBuilder, RemoteModel, ScriptedPolicy, check_env
from evert.envs.twenty_questions.answerers import KnowledgeAnswerer, ModelAnswerer
from evert.envs.twenty_questions.baselines import OraclePlayer
from evert.envs.twenty_questions.game import Answer, Game, Rules
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import (
    HIDDEN,
    TEST_TASKS,
    TRAIN_TASKS,
    Task,
    TwentyQuestions,
    noun_of,
    short_twenty_questions_agent,
    shown_short_twenty_questions_agent,
    shown_twenty_questions_agent,
    twenty_questions_agent,
    with_rules,
)
from evert.envs.twenty_questions.search import KnowledgeSearch

ZEBRA = Task(answer="zebra", category="animal", split="train")
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "striped mammals"}}\n</tool_call>'
BAD_SEARCH = '<tool_call>\n{"name": "search", "arguments": {"text": "stripes"}}\n</tool_call>'


async def played(replies: Any, agent: Any, task: Task = ZEBRA) -> tuple[Trajectory, ScriptedPolicy]:
    policy = ScriptedPolicy(replies)
    return await do_single_rollout(policy, ChatAgentEnv(agent, task)), policy


def total(trajectory: Trajectory) -> float:
    return sum(transition.reward for transition in trajectory.transitions)


# -- the game ------------------------------------------------------------------------------------


async def test_finding_the_noun_pays_one() -> None:
    trajectory, policy = await played(["Is it a bird?", "Is it a zebra?"], twenty_questions_agent)

    assert [transition.reward for transition in trajectory.transitions] == [0.0, 1.0]
    assert "Question 1 of 20." in policy.prompts[0]
    assert "no. Question 2 of 20." in policy.prompts[1]
    assert not any("zebra" in prompt or "animal" in prompt for prompt in policy.prompts)


async def test_twenty_questions_and_no_more_may_be_asked() -> None:
    trajectory, _ = await played(lambda _: "Is it a cat?", twenty_questions_agent)

    assert len(trajectory.transitions) == 20
    assert total(trajectory) == 0.0


async def test_empty_replies_count_as_questions() -> None:
    agent = TwentyQuestions(rules=Rules(max_questions=2))
    trajectory, policy = await played(["", " "], agent)

    assert len(trajectory.transitions) == 2
    assert "n/a. Category" in policy.prompts[1]


async def test_the_category_may_be_told_to_the_player() -> None:
    _, policy = await played(["Is it a bird?", "Is it a zebra?"], shown_twenty_questions_agent)

    assert "Category: animal. Question 1 of 20." in policy.prompts[0]
    assert "no. Category: animal. Question 2 of 20." in policy.prompts[1]


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        (short_twenty_questions_agent, ["20 questions 1", "no 2"]),
        (shown_short_twenty_questions_agent, ["animal 1", "no 2"]),
    ],
    ids=["hidden", "shown"],
)
async def test_short_prompts_are_a_few_words(agent: Any, told: list[str]) -> None:
    replies = ["Is it a bird?", "Is it a zebra?"]
    trajectory, policy = await played(replies, agent)

    assert total(trajectory) == 1.0
    assert re.findall(r"animal 1|20 questions 1|no 2", policy.prompts[1]) == told
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_a_task_may_have_rules_of_its_own() -> None:
    task = with_rules([ZEBRA], max_questions=3)[0]
    trajectory, policy = await played(lambda _: "Is it a cat?", twenty_questions_agent, task)

    assert len(trajectory.transitions) == 3
    assert "Question 1 of 3." in policy.prompts[0]
    assert "rules" not in ZEBRA


def test_rules_that_there_are_not_are_an_error() -> None:
    with pytest.raises(TypeError, match="questions"):
        with_rules([ZEBRA], questions=3)


async def test_guesses_in_vain_cost_reward_and_no_score() -> None:
    task = with_rules([ZEBRA], guess_cost=0.1)[0]
    questions = ["Is it a cat?", "Is it a bird?", "Is it a zebra?"]
    trajectory, _ = await played(questions, twenty_questions_agent, task)

    assert total(trajectory) == pytest.approx(
        0.9
    )  # a bird is no noun of the game's, but a question
    assert trajectory.transitions[-1].metrics["found"] == 1.0


async def test_another_answerer_may_be_given() -> None:
    class Flatterer:
        async def answer(self, noun: Noun, question: str) -> Answer:
            return Answer("yes", correct=True)

    trajectory, _ = await played(["Hm?"], TwentyQuestions(answerer=Flatterer()))

    assert total(trajectory) == 1.0


async def test_the_whole_game_is_one_datum() -> None:
    replies = [f"Is it a {name}?" for name in ("dog", "cat", "owl", "zebra")]
    trajectory, _ = await played(replies, twenty_questions_agent)

    assert len(trajectory_to_data(trajectory, 1.0)) == 1


def test_the_agent_passes_the_checks_of_an_env() -> None:
    check_env(ChatAgentEnv(twenty_questions_agent, ZEBRA))
    check_env(ChatAgentEnv(TwentyQuestions(search=KnowledgeSearch()), ZEBRA))


async def test_the_oracle_wins_as_a_policy() -> None:
    oracle, game = OraclePlayer(), Game(noun_of(ZEBRA), HIDDEN)
    told = {"yes": "yes", "no": "no", "n/a": "n/a"}

    def reply(prompt: str) -> str:
        if game.number > 1 or asked:
            answer = re.findall(r"(yes|no|n/a)\. Question", prompt)[-1]
            game.record(asked[-1], Answer(told[answer]))  # type: ignore[arg-type]
        asked.append(oracle.question(game))
        return asked[-1]

    asked: list[str] = []
    trajectory, _ = await played(reply, twenty_questions_agent)

    assert total(trajectory) == 1.0
    assert asked[-1] == "Is it zebra?"


def test_an_agent_with_all_its_parts_pickles_small() -> None:
    agents = [
        TwentyQuestions(answerer=KnowledgeAnswerer(), search=KnowledgeSearch(), style="short"),
        TwentyQuestions(answerer=ModelAnswerer(RemoteModel("judge"))),
    ]
    for agent in agents:
        builder = ChatAgentGroupBuilder(agent, ZEBRA, 2)
        sent = pickle.dumps(builder)

        assert len(sent) < 5_000
        assert isinstance(pickle.loads(sent), ChatAgentGroupBuilder)


# -- notes ---------------------------------------------------------------------------------------


async def test_transitions_carry_logs_and_the_last_one_metrics() -> None:
    trajectory, _ = await played(["What?", "Is it a zebra?"], twenty_questions_agent)
    first, last = trajectory.transitions

    assert (first.logs["question"], first.logs["answer"]) == ("What?", "n/a")
    assert last.logs["target"] == "zebra"
    assert "found, 2 questions" in str(last.logs["transcript"])
    wanted = {"found": 1.0, "questions": 2.0, "not_told": 1.0, "searches": 0.0}
    assert wanted.items() <= last.metrics.items()
    assert last.metrics["asks_first"] == 0.0
    assert last.metrics["questions_when_won"] == 2.0


# -- search --------------------------------------------------------------------------------------


async def test_a_search_comes_before_a_question_and_is_none() -> None:
    agent = TwentyQuestions(search=KnowledgeSearch())
    trajectory, policy = await played([SEARCH, "Is it a zebra?"], agent)

    assert total(trajectory) == 1.0
    assert "<tool_response>\ncow, giraffe, zebra\n</tool_response>" in policy.prompts[1]
    assert trajectory.transitions[-1].metrics["searches"] == 1.0
    assert trajectory.transitions[-1].metrics["questions"] == 1.0
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_a_second_search_before_the_same_question_is_refused() -> None:
    agent = TwentyQuestions(search=KnowledgeSearch())
    replies = [SEARCH, SEARCH, "Is it a bird?", SEARCH, "Is it a zebra?"]
    trajectory, policy = await played(replies, agent)

    assert "No more searches before this question" in policy.prompts[2]
    assert trajectory.transitions[-1].metrics["searches"] == 2.0


async def test_a_player_that_only_searches_loses_its_questions() -> None:
    agent = TwentyQuestions(search=KnowledgeSearch(), rules=Rules(max_questions=2))
    trajectory, _ = await played(lambda _: SEARCH, agent)

    assert len(trajectory.transitions) == 8
    assert trajectory.transitions[-1].metrics["not_told"] == 2.0


async def test_a_search_without_a_query_is_told_so() -> None:
    agent = TwentyQuestions(search=KnowledgeSearch())
    _, policy = await played([BAD_SEARCH, "Is it a zebra?"], agent)

    assert "The search needs a query." in policy.prompts[1]


async def test_a_tool_call_in_a_game_without_search_is_a_question_like_any_other() -> None:
    agent = TwentyQuestions(rules=Rules(max_questions=1))
    trajectory, _ = await played([SEARCH], agent)

    assert len(trajectory.transitions) == 1
    assert total(trajectory) == 0.0


# -- tasks ---------------------------------------------------------------------------------------


def test_tasks_follow_the_split() -> None:
    assert (len(TRAIN_TASKS), len(TEST_TASKS)) == (160, 40)
    assert {task["split"] for task in TRAIN_TASKS} == {"train"}
    assert not {task["answer"] for task in TRAIN_TASKS} & {task["answer"] for task in TEST_TASKS}


@pytest.mark.parametrize("task", TEST_TASKS[:3], ids=lambda task: task["answer"])
async def test_held_out_nouns_are_played_alike(task: Task) -> None:
    trajectory, _ = await played([f"Guess: {task['answer']}"], twenty_questions_agent, task)

    assert total(trajectory) == 1.0
