"""ScienceWorld's tasks under evert get the same scores as in the package's own loop."""

import asyncio
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import psutil
import pytest
from scienceworld.constants import ID2TASK
from tests.kit import play, reward

from evert.envs.games import GameError
from evert.envs.tasksets.scienceworld import OFFLINE, ScienceWorld, end, scienceworld, started

STEPS = 30
WRONG = ["look around", "open the sky", "focus on agent", "reset the world", "inventory", "wait1"]
"""More than ``FEW`` actions, some of which are invalid."""

FEW = 5


@pytest.fixture(scope="module")
def simulator() -> Iterator[Any]:
    env = started(STEPS)
    yield env
    end(env)


def in_their_loop(env: Any, actions: list[str]) -> tuple[list[str], float]:
    """Play in the package's own loop; return the actions and the score."""
    _, info = env.reset()
    taken, over = list[str](), False
    for action in chain(actions, repeat("wait1")):
        if over:
            break
        taken.append(action)
        _, _, over, info = env.step(action)
    return taken, info["score"] / 100


@pytest.mark.parametrize("name", ID2TASK.values())
async def test_a_task_gets_the_same_score_as_in_scienceworlds_own_loop(
    name: str, simulator: Any
) -> None:
    easy = "" if "power" in name or "conductivity" in name else "easy"
    simulator.load(name, 0, easy, generateGoldPath=True)
    simulator.reset()
    gold = simulator.get_gold_action_sequence()
    scores = []
    for actions, steps in ((gold[:STEPS], STEPS), (WRONG, FEW)):
        simulator.envStepLimit = steps
        taken, theirs = in_their_loop(simulator, actions)
        trajectory = await play(ScienceWorld(name, easy, steps), *taken, task=f"{name}/0")
        assert len(trajectory.transitions) == len(taken)
        assert reward(trajectory) == pytest.approx(theirs)
        scores.append(theirs)
    if len(gold) < STEPS:
        assert scores[0] == 1 > scores[1]


def test_the_variations_are_split_as_in_the_benchmark(simulator: Any) -> None:
    agent = ScienceWorld("find-plant,identify-life-stages-2")
    expected = {"train": list[str](), "test": list[str]()}
    for name in agent.names.split(","):
        simulator.load(name)
        expected["train"] += [f"{name}/{n}" for n in simulator.get_variations_train()]
        expected["test"] += [f"{name}/{n}" for n in simulator.get_variations_test()]
    assert (agent.train_tasks, agent.test_tasks) == (expected["train"], expected["test"])
    assert not {*agent.train_tasks} & {*agent.test_tasks}


async def test_an_episode_leaves_no_simulator_behind() -> None:
    before = set(psutil.Process().children(recursive=True))
    trajectory = await play(
        ScienceWorld("find-plant", steps=1), "inventory", "wait1", task="find-plant/0"
    )
    assert len(trajectory.transitions) == 2
    assert set(psutil.Process().children(recursive=True)) == before


async def test_cancelling_an_episode_while_its_simulator_starts_leaves_no_simulator_behind() -> (
    None
):
    before = set(psutil.Process().children(recursive=True))
    client: Any = None  # not used before the simulator has started
    playing = asyncio.ensure_future(ScienceWorld("find-plant")(client, "find-plant/0"))
    await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ("bole", {}, r"no task 'bole'\. Did you mean boil\? Available: boil, melt, "),
        ("boil", {"simplifications": "easi"}, "no simplification 'easi'. Did you mean easy"),
    ],
)
def test_unknown_tasks_are_refused(names: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(GameError, match=message):
        scienceworld(names, **given)


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [scienceworld(name).id for name in OFFLINE] == [f"scienceworld/{n}" for n in OFFLINE]
    assert "ScienceWorld(names='boil,melt'" in scienceworld("1-1,melt").agent
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GameError, match="requires Java 8 or newer"):
        scienceworld("boil")
