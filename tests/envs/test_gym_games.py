"""Gymnasium's games as agents: described and played in words, with unchanged rules."""

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from tests.kit import Patch, play, rewards, start
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

import evert
from evert import ChatAgentEnv, EnvArgumentError, GameError, GymAgent, ScriptedPolicy
from evert.bridge.import_paths import resolve
from evert.bridge.records.sequences import dialogue
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.envs.from_gymnasium import recipe
from evert.envs.from_gymnasium.actions import Actions
from evert.envs.from_gymnasium.agent import DEMONSTRATED, start_of
from evert.envs.from_gymnasium.observations import minigrid_in_words, plainly

TOY_TEXT = sorted(
    id for id, spec in gymnasium.registry.items() if "toy_text" in str(spec.entry_point)
)
"""Installed: Blackjack, cliff walking (also slippery), frozen lake in two sizes, and taxi."""

MINIGRID = [
    f"minigrid:MiniGrid-{name}-v0"
    for name in ("Empty-5x5", "DoorKey-5x5", "Fetch-5x5-N2", "LavaGapS5")
]
"""The missions are to reach a place, open a door, fetch an object and avoid lava."""

LONGEST = 40


def rollout(agent: Any, replies: list[str], task: Any = 7) -> Trajectory:
    return asyncio.run(play(agent, *replies, task=task))


def opening(agent: GymAgent, seed: int = 7) -> list[str]:
    env = agent.make()
    observation, info = env.reset(seed=seed)
    messages = agent.opening(env, agent.actions(env), observation, info)
    env.close()
    return [message["content"] for message in messages]


def ending(trajectory: Trajectory) -> str:
    metrics = trajectory.transitions[-1].metrics
    return next(key for key in metrics if key.startswith("stop/")).removeprefix("stop/")


# -- the original rules -----------------------------------------------------------------------


@pytest.mark.parametrize("id", TOY_TEXT + MINIGRID)
def test_actions_earn_the_same_as_in_gymnasium(id: str, register: Callable[..., EnvSpec]) -> None:
    register("there/AndBack-v0", GymAgent(id, max_episode_steps=LONGEST), tasks=[3, 11])
    back, there = gymnasium.make("there/AndBack-v0"), gymnasium.make(id, max_episode_steps=LONGEST)
    actions = GymAgent(id).actions(there)
    for seed in (3, 11):
        back.reset(options={"task": seed})
        there.reset(seed=seed)
        there.action_space.seed(seed)
        over = False
        while not over:
            action = there.action_space.sample()
            _, reward, terminated, truncated, _ = there.step(action)
            expected = (float(reward), terminated, truncated)
            assert back.step(actions.name(action))[1:4] == expected
            over = terminated or truncated
    back.close()
    there.close()
    assert len(TOY_TEXT) >= 5


def test_rewards_belong_to_their_turn_and_truncation_is_passed_on() -> None:
    trajectory = rollout(GymAgent("CliffWalking-v1", max_episode_steps=2), ["right", "up"])

    assert rewards(trajectory) == [-100.0, -1.0]
    assert ending(trajectory) == "truncated"
    over = rollout(GymAgent("Blackjack-v1", max_episode_steps=1), ["stick"])
    assert ending(over) == "completed"  # terminated takes precedence over truncated


def test_the_task_sets_the_seed_and_options_of_reset() -> None:
    assert start_of(7, 1) == start_of(np.int64(7), 1) == {"seed": 7}
    assert start_of(None, 1) == {"seed": 1}
    assert start_of({"options": {"x": 2}}, 1) == {"seed": 1, "options": {"x": 2}}
    assert rollout(GymAgent("Blackjack-v1"), ["0"], {"seed": 5}).transitions[0].reward in (-1, 0, 1)
    for task in ("seven", -1, 1.5, {"sed": 3}, [1]):
        with pytest.raises(EnvArgumentError, match=r"Cannot reset the environment with the "):
            start_of(task, 1)


# -- descriptions -----------------------------------------------------------------------------


def test_the_prompt_has_the_rules_from_the_docstring_and_names_the_actions() -> None:
    rules, seen = opening(GymAgent("Blackjack-v1"))

    assert rules.startswith("Blackjack is a card game where the goal is to beat the dealer")
    assert "Rewards:\n- win game: +1" in rules
    assert rules.endswith("number: 0 (Stick), 1 (Hit). Say nothing else.")
    assert "<a" not in rules
    assert "Observation" not in rules  # evert describes observations itself
    assert seen == "Sum 19, dealer 10."
    assert any("usable ace" in opening(GymAgent("Blackjack-v1"), seed)[1] for seed in range(30))


def test_observations_use_the_users_prompt_or_the_default_one() -> None:
    lake = opening(GymAgent("FrozenLake-v1"))[1]
    taxi = opening(GymAgent(TOY_TEXT[-1]))[1]

    assert lake == "Row 0, column 0. Lake: SFFF FHFH FFFH HFFG."
    assert taxi.startswith("Row 3, column 0. Passenger: Yellow. Destination: Green.")
    assert "\nActions left: Move south (down), Move north (up)" in taxi
    assert opening(GymAgent("CliffWalking-v1", prompt="")) == ["Row 3, column 0."]
    assert opening(GymAgent("CliffWalking-v1", prompt="Walk."))[0] == "Walk."
    rules, seen = opening(GymAgent("CartPole-v1"))

    assert "Observation Space:\n" in rules
    assert "0 (Push cart to the left), 1 (Push cart to the right)" in rules
    assert seen == "[0.0125, 0.0397, 0.0276, -0.0275]"
    assert plainly({"a": (1, "two"), "b": np.int64(3)}) == "a: 1, two\nb: 3"


def test_an_action_is_parsed_from_the_last_line_of_a_reply_and_arrays_from_json() -> None:
    actions = GymAgent("FrozenLake-v1").actions(gymnasium.make("FrozenLake-v1"))
    meant = {
        "Move left": 0, "left": 0, "I go DOWN!": 1, "2": 2, "Action: 3.": 3,
        "left is bad\nright": 2, "left or right": None, "move": None, "4": None, "1 or 2": None,
        "": None,
    }  # fmt: skip
    assert {reply: actions.read(reply)[0] for reply in meant} == meant
    assert all(bool(actions.read(reply)[1]) == (meant[reply] is None) for reply in meant)
    box = Actions(spaces.Box(-2, 2, (2,), np.float32))
    text = Actions(spaces.Text(5))

    assert box.read("So:\n[1, -0.5]")[0].tolist() == [1.0, -0.5]
    assert box.read(box.name(np.array([1.0, 2.0])))[1] == ""
    assert "as a JSON list of shape (2,)." in box.read("[3, 0]")[1]
    assert "is not an action (Expecting value" in box.read("up")[1]
    for actions, reply in (
        (Actions(spaces.MultiDiscrete([3, 3])), "[99999999999999999999, 0]"),
        (Actions(spaces.Box(0, 255, (1,), np.uint8)), "[300]"),
        (box, "[" * 3_000),
    ):
        assert "is not an action" in actions.read(reply)[1]
    assert text.read("north") == ("north", "")
    assert "Reply with 1 to 5 characters of text." in text.read("northwards")[1]


def before_one(kind: str, color: int = 0, state: int = 0) -> str:
    """Return the text of an observation with a single MiniGrid object ahead and nothing else."""
    image = np.full((3, 3, 3), (OBJECT_TO_IDX["empty"], 0, 0), np.uint8)
    image[1, 1] = (OBJECT_TO_IDX[kind], color, state)
    return minigrid_in_words({"mission": "look", "image": image}).removeprefix("Mission: look. ")


def test_minigrids_objects_have_their_own_names_and_nearby_walls_are_mentioned() -> None:
    things = product(("door", "key", "ball", "box", "goal", "lava"), COLOR_TO_IDX, STATE_TO_IDX)
    for kind, color, state in things:
        text = f"{state} {color} {kind}" if kind == "door" else f"{color} {kind}"
        seen = before_one(kind, COLOR_TO_IDX[color], STATE_TO_IDX[state])

        assert seen == f"You see: {text} 1 ahead."
    assert before_one("wall") == "A wall is before you. You see: nothing."
    for kind in ("floor", "unseen", "empty"):
        assert before_one(kind) == "You see: nothing."


def test_minigrid_is_described_and_played_in_words() -> None:
    rules, seen = opening(GymAgent("minigrid:MiniGrid-Empty-5x5-v0"))
    replies = ["forward", "2", "I turn right", "forward", "forward"]
    trajectory = rollout(GymAgent("minigrid:MiniGrid-Empty-5x5-v0"), replies)

    assert "0 (left), 1 (right), 2 (forward), 3 (pickup), 4 (drop), 5 (toggle), 6 (done)" in rules
    assert seen == (
        "Mission: get to the green goal square. You face east. You see: green goal 2 ahead and 2 "
        "to the right."
    )
    assert rewards(trajectory) == [0, 0, 0, 0, pytest.approx(0.955)]
    assert ending(trajectory) == "completed"
    image = np.full((7, 7, 3), (1, 0, 0), np.uint8)
    image[3, 6], image[3, 5], image[1, 4], image[5, 6] = (5, 4, 0), (2, 5, 0), (4, 2, 2), (6, 0, 0)
    seen = minigrid_in_words({"mission": "open the door", "direction": 3, "image": image})

    assert seen == (
        "Mission: open the door. You face north. You carry a yellow key. A wall is before you. "
        "You see: red ball 2 to the right, locked blue door 2 ahead and 2 to the left."
    )


class Named(gymnasium.Env[Any, Any]):
    """An environment that names its actions, like Atari's environments."""

    closed: ClassVar[list["Named"]] = []
    action_space = spaces.Discrete(2, start=5)
    observation_space = spaces.Discrete(3)

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.thread = threading.current_thread()

    def get_action_meanings(self) -> list[str]:
        return ["no"] * 5 + ["WAIT", "FIRE"]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if self.fails:
            raise RuntimeError("the gun is wet")
        return 1, float(action), True, False, {}

    def close(self) -> None:
        self.closed.append(self)


@pytest.fixture
def named() -> Iterator[str]:
    gymnasium.register("test/Named-v0", f"{__name__}:Named")
    Named.closed.clear()
    yield "test/Named-v0"
    del gymnasium.registry["test/Named-v0"]


def test_action_names_defined_by_an_environment_are_used(named: str) -> None:
    rules, seen = opening(GymAgent(named))

    assert rules.startswith("An environment that names its actions, like Atari's environments.")
    assert "5 (WAIT), 6 (FIRE)." in rules
    assert seen == "0\nActions left: FIRE."
    assert rollout(GymAgent(named), ["fire"]).transitions[0].reward == 6.0


def test_a_user_may_pass_describe_and_parse_functions() -> None:
    agent = GymAgent("Blackjack-v1", describe=as_sum, parse=f"{__name__}:one_word", prompt="")

    assert opening(agent) == ["19 in Blackjack-v1"]
    assert rollout(agent, ["enough"]).transitions[0].reward in (-1.0, 0.0, 1.0)
    assert ending(rollout(agent, ["what", "what", "what"])) == "truncated"
    with pytest.raises(EnvArgumentError, match=r"rejected '\d', .* write an action of Blackja"):
        next(GymAgent("Blackjack-v1", parse=one_word).demonstrations(0))


def as_sum(observation: Any, info: Mapping[str, Any], env: gymnasium.Env[Any, Any]) -> str:
    assert env.spec is not None
    return f"{observation[0]} in {env.spec.id}"


def one_word(reply: str) -> int:
    return ["enough", "more"].index(reply)


@pytest.mark.parametrize(
    ("illegal", "turns", "reward", "end"),
    [("explain", 3, 0.0, "truncated"), ("end", 1, 0.0, "completed"), (-2.5, 1, -2.5, "completed")],
)
def test_the_handling_of_illegal_replies_can_be_configured(
    illegal: Any, turns: int, reward: float, end: str
) -> None:
    trajectory = rollout(GymAgent("Blackjack-v1", illegal=illegal, prompt=""), ["double"] * 3)
    last = trajectory.transitions[-1]
    messages = dialogue(trajectory, prompt_renderer(default_renderer()).renderer.tokenizer)

    assert (len(messages), last.reward, ending(trajectory)) == (turns, reward, end)
    assert last.metrics["illegal"] == turns
    advice = "Reply with one action, its name or its number: 0 (Stick), 1 (Hit)."
    assert all(
        f"'double' is not an action. {advice}" in message["told"] for message in messages[1:]
    )


# -- opening and closing environments ---------------------------------------------------------


async def test_an_environment_is_closed_at_the_end_of_its_episode(named: str) -> None:
    envs = [ChatAgentEnv(GymAgent(named), seed) for seed in range(3)]
    await asyncio.gather(*(do_single_rollout(ScriptedPolicy(["6"]), env) for env in envs))
    assert len({id(env) for env in Named.closed}) == 3  # one environment per episode

    await play(GymAgent(named), "?", "?", "?", task=7)
    assert len(Named.closed) == 4

    with pytest.raises(evert.AgentError, match="the gun is wet"):
        await play(GymAgent(named, fails=True), "fire", task=7)
    assert len(Named.closed) == 5


@pytest.mark.parametrize("off_loop", [False, True])
async def test_a_game_is_closed_when_its_episode_is_cancelled(named: str, off_loop: bool) -> None:
    env = await start(GymAgent(named, off_loop=off_loop), 7)
    assert not Named.closed
    await env.close()

    [closed] = Named.closed
    assert (closed.thread is threading.current_thread()) != off_loop
    assert not [t for t in threading.enumerate() if t.name.startswith("evert test/Named-v0")]


@pytest.mark.parametrize(
    ("during", "fails"), [("__init__", False), ("__init__", True), ("reset", False)]
)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_busy_environment_is_closed_later_without_blocking_the_loop(
    named: str, during: str, fails: bool, times: int, monkeypatch: Patch
) -> None:
    has_begun, go_on = threading.Event(), threading.Event()
    work = getattr(Named, during)

    @wraps(work)  # Gymnasium inspects the signature
    def slowly(self: Named, **options: Any) -> Any:
        result = work(self, **options)
        has_begun.set()
        go_on.wait(60)
        if fails:
            raise RuntimeError("there is no gun")
        return result

    monkeypatch.setattr(Named, during, slowly)
    agent: Any = GymAgent(named, off_loop=True)
    client: Any = SimpleNamespace(seed=0)
    playing = asyncio.ensure_future(agent(client, 7))
    await asyncio.to_thread(has_begun.wait)
    for _ in range(times):
        playing.cancel()
        await asyncio.sleep(0.01)
    asyncio.get_running_loop().call_later(0.05, go_on.set)  # runs only if the loop is not blocked
    with pytest.raises(asyncio.CancelledError):
        await playing

    assert len(Named.closed) == (not fails)


# -- pickling, demonstrations, recipes --------------------------------------------------------


def test_a_gym_agent_can_be_pickled_and_has_an_import_path() -> None:
    agent = GymAgent("FrozenLake-v1", illegal=-1.0, is_slippery=False)
    copies = [pickle.loads(pickle.dumps(agent)), resolve(f"evert:{agent!r}", "agent", GameError)]

    for copy in copies:
        assert repr(copy) == "GymAgent('FrozenLake-v1', illegal=-1.0, is_slippery=False)"
        trajectory = rollout(copy, ["1", "1", "2", "2", "1", "2"])
        assert rewards(trajectory) == [0.0] * 5 + [1.0]


def test_demonstrations_are_random_legal_actions_determined_by_the_seed(named: str) -> None:
    agent = GymAgent("Taxi-v4" if "Taxi-v4" in TOY_TEXT else "Taxi-v3", prompt="")
    first, second = (next(agent.demonstrations(seed)) for seed in (1, 1))

    assert first == second
    assert [m["role"] for m in first] == ["user", "assistant"] * DEMONSTRATED
    env = agent.make()
    for question, answer in zip(first[::2], first[1::2], strict=True):
        assert agent.actions(env).name(answer["content"]) in question["content"].split("left: ")[1]
    assert next(GymAgent(named).demonstrations(0))[-1]["content"] == "6"
    assert len(Named.closed) == 1


def test_every_environment_has_a_recipe_and_known_ones_skip_the_warm_up() -> None:
    settings = recipe.gymnasium("FrozenLake-v1").settings()
    known = recipe.gymnasium("Blackjack-v1").settings()

    assert not {*recipe.TRAIN_TASKS} & {*recipe.TEST_TASKS}
    for path in [*list(settings.values())[:3], settings["demonstrations"]]:
        assert resolve(path, "thing", GameError) is not None
    assert (known["model_name"], known["warm_up_steps"]) == ("evert-tiny-moves", 0)
    assert ("model_name" in settings, settings["warm_up_steps"] > 0) == (False, True)
    assert not recipe.gymnasium("FrozenLake-v1").settings(full_size=True)["warm_up_steps"]


def test_an_invalid_argument_is_explained() -> None:
    with pytest.raises(EnvArgumentError, match="expected 'explain', 'end' or a finite number"):
        GymAgent("Taxi-v4", illegal="ignore")  # type: ignore[arg-type]
    with pytest.raises(EnvArgumentError, match="Expected an environment id like 'Taxi-v4'"):
        GymAgent(gymnasium.make("Blackjack-v1"))  # type: ignore[arg-type]
    with pytest.raises(EnvArgumentError, match="No describe at 'nowhere:f'"):
        GymAgent("Taxi-v4", describe="nowhere:f")
    odd = gymnasium.Env[Any, Any]()
    odd.action_space = spaces.Dict({})
    with pytest.raises(EnvArgumentError, match=r"parse a reply as such an action\. Pass parse="):
        GymAgent("Odd-v0").actions(odd)


def test_the_error_for_an_environment_that_cannot_be_created_says_why() -> None:
    with pytest.raises(GameError, match=r"tasks=gymnasium:Blackjack-v1 .*'sap': True\}: TypeErr"):
        recipe.gymnasium("Blackjack-v1", sap=True)
