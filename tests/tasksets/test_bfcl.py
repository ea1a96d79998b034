"""BFCL under evert: the same calls get the same verdict as from the package's own checker.

The checker evaluates calls as Python code, but here it only sees scripted calls. Under evert, a
call can only call a method of the API by name, in a separate process.
"""

import ast
import asyncio
import os
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from tests.kit import play, reward
from tests.tasksets.conftest import Call, as_text, check_lines_of_the_page
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets import task_game
from evert.envs.tasksets.bfcl import CATEGORIES, Bfcl, _docs, _rows

Turns = list[list[list[Call]]]
"""Calls by turn and step."""

ROWS = 50
"""Number of rows per category."""


def golden(row: dict[str, Any]) -> Turns:
    """Return the calls expected by the benchmark, one per step."""
    docs = _docs(row)
    turns: Turns = []
    for written in row["ground_truth"]:
        turns.append([])
        for one in written:
            call: Any = ast.parse(one, mode="eval").body
            order = docs[call.func.id]["function"]["parameters"]["properties"]
            args = dict(zip(order, map(ast.literal_eval, call.args), strict=False))
            args |= {given.arg: ast.literal_eval(given.value) for given in call.keywords}
            turns[-1].append([(call.func.id, args)])
    return turns


def whole(turns: Turns) -> Turns:
    return turns


def without_the_last(turns: Turns) -> Turns:
    last = max(n for n, turn in enumerate(turns) if turn)
    return [turn[:-1] if n == last else turn for n, turn in enumerate(turns)]


def mistaken(turns: Turns) -> Turns:
    """Change a string argument in the last call that has one."""
    changed = [[*turn] for turn in turns]
    for turn in reversed(changed):
        for place, [(name, args)] in reversed([*enumerate(turn)]):
            if texts := [key for key, value in args.items() if isinstance(value, str)]:
                turn[place] = [(name, {**args, texts[0]: "other"})]
                return changed
    return changed


def wild(turns: Turns) -> Turns:
    """Start with an unknown function, missing arguments and too many arguments."""
    bad: list[list[Call]] = [[("no_such", {})], [("cd", {}), ("pwd", {"x": 1})]]
    return [bad + turns[0], *turns[1:]]


def all_at_once(turns: Turns) -> Turns:
    return [[[call for step in turn for call in step]] if turn else [] for turn in turns]


def none(turns: Turns) -> Turns:
    return [[] for _ in turns]


RIGHT: list[Callable[[Turns], Turns]] = [whole, all_at_once]
BROKEN: list[Callable[[Turns], Turns]] = [without_the_last, mistaken, wild, none]

MARK = Path(tempfile.gettempdir()) / f"evert-bfcl-{os.getpid()}"
"""A file that must never be created by a call."""

names = count()


def by_bfcl(row: dict[str, Any], turns: Turns) -> bool:
    """Return the checker's verdict. The checker keeps state per model, so use a new model name."""
    decoded = [[[_written(*call) for call in step] for step in turn] for turn in turns]
    category = row["id"].rpartition("_")[0]
    truth = row["ground_truth"]
    return bool(multi_turn_checker(decoded, truth, row, category, f"m{next(names)}")["valid"])


def _written(name: str, given: Any) -> str:
    return f"{name}({','.join(f'{key}={value!r}' for key, value in given.items())})"


async def played(row: dict[str, Any], turns: Turns, limit: asyncio.Semaphore) -> Trajectory:
    said = [as_text(reply) for turn in turns for reply in [*turn, "Done."]]
    async with limit:
        return await play(Bfcl(row["id"].rpartition("_")[0]), *said, task=row["id"])


@pytest.mark.timeout(900)  # plays a hundred episodes
@pytest.mark.parametrize("category", CATEGORIES)
async def test_every_row_gets_the_verdict_of_the_packages_own_checker(category: str) -> None:
    rows = [*_rows(category).values()][:: 200 // ROWS]
    limit = asyncio.Semaphore(4)
    for ways in (RIGHT, BROKEN):
        scripts = [ways[n % len(ways)](golden(row)) for n, row in enumerate(rows)]
        each = [*zip(rows, scripts, strict=True)]
        theirs = [by_bfcl(row, turns) for row, turns in each]
        trajectories = await asyncio.gather(*(played(row, turns, limit) for row, turns in each))
        assert [bool(reward(trajectory)) for trajectory in trajectories] == theirs
        assert all(theirs) if ways is RIGHT else False in theirs


# -- what the policy sees ------------------------------------------------------------------------


async def test_a_row_is_one_datum_unless_the_policy_gets_additional_tools() -> None:
    limit = asyncio.Semaphore(1)
    for category, data in (("multi_turn_base", 1), ("multi_turn_miss_func", 2)):
        row = _rows(category)[f"{category}_0"]
        trajectory = await played(row, golden(row), limit)
        assert len(trajectory_to_data(trajectory, 1.0)) == data
        last = trajectory.transitions[-1]
        assert last.metrics["solved"] == reward(trajectory) == 1
        assert last.logs["ended"] == "solved"


async def test_a_missing_tool_is_offered_once_the_user_mentions_it() -> None:
    prompts: list[str] = []

    def says(prompt: str) -> str:
        prompts.append(prompt)
        return "I cannot."

    trajectory = await play(Bfcl("multi_turn_miss_func"), says, task="multi_turn_miss_func_0")
    assert ['"name": "sort"' in prompt for prompt in prompts] == [False, False, False, True, True]
    news = DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    assert [news in prompt for prompt in prompts] == [False, False, False, True, True]
    assert trajectory.transitions[-1].logs["ended"] == "multi_turn:empty_turn_model_response"


async def test_too_many_steps_in_a_turn_end_the_episode() -> None:
    said = as_text([("pwd", {})])
    trajectory = await play(Bfcl("multi_turn_base"), lambda prompt: said, task="multi_turn_base_0")
    assert trajectory.transitions[-1].logs["ended"] == "too many steps"
    assert [len(trajectory.transitions), reward(trajectory)] == [21, 0]


# -- what a policy may try to do -----------------------------------------------------------------

MATHS = next(
    row["id"] for row in _rows("multi_turn_base").values() if "MathAPI" in row["involved_classes"]
)


@pytest.mark.parametrize(
    ("call", "ended"),
    [
        ((f"__import__('pathlib').Path({str(MARK)!r}).touch() or print", {}), "multi_turn:"),
        (("pwd", {f"x=open({str(MARK)!r}, 'w'), y": 1}), "multi_turn:"),
        (("_load_scenario", {"scenario": {}}), "multi_turn:"),
        (("power", {"base": 9, "exponent": 10**9}), "an API took too long"),
    ],
)
async def test_a_call_can_only_call_an_api_within_limits(call: Call, ended: str) -> None:
    trajectory = await play(Bfcl("multi_turn_base"), as_text([call]), *["No."] * 9, task=MATHS)
    assert reward(trajectory) == 0
    assert trajectory.transitions[-1].logs["ended"].startswith(ended)
    assert not MARK.exists()


async def test_a_cancelled_episode_leaves_no_process_behind() -> None:
    env = ChatAgentEnv(Bfcl("multi_turn_base"), "multi_turn_base_0")
    await env.initial_observation()
    [server] = psutil.Process().children()
    [process] = server.children()
    await env.close()
    process.wait(30)


# -- names ---------------------------------------------------------------------------------------


def test_held_out_rows_have_other_scenarios() -> None:
    agent = Bfcl(",".join(CATEGORIES))
    trained, held_out = (
        {task.rpartition("_")[2] for task in tasks}
        for tasks in (agent.train_tasks, agent.test_tasks)
    )
    assert not trained & held_out
    assert [len(agent.train_tasks), len(agent.test_tasks)] == [640, 160]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"id": "bfcl:multi_turn_bse"},
            r"no category 'multi_turn_bse'\. Did you mean multi_turn_base",
        ),
        ({"id": "bfcl:live_simple"}, "no category 'live_simple'.* Available: multi_turn_b"),
        (
            {"id": "bfcl:multi_turn_base", "seed": 1},
            "'seed'.* Its signature is .categories: str.",
        ),
    ],
)
def test_unknown_categories_and_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GameError, match=message):
        task_game(given)


def test_a_bfcl_game_names_its_agent_and_tasks() -> None:
    game = task_game({"id": "bfcl:multi_turn_base,multi_turn_miss_param"})
    assert resolve(game.agent, "agent", GameError) == Bfcl("multi_turn_base,multi_turn_miss_param")
    assert len(resolve(game.train_tasks, "tasks", GameError)) == 320
    ways = {"solved", "solved_multi_turn_base", "solved_multi_turn_miss_param", "scorer_stopped"}
    assert ways == set(game.metrics)


def test_the_command_lines_of_the_bfcl_page_are_valid() -> None:
    check_lines_of_the_page("bfcl")
