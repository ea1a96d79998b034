"""Importing evert registers the games, and any agent can be registered under an id."""

import copy
import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from tests.kit import ask, asks, asks_blocking

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.errors import InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.kept import Kept
from evert.bridge.tokens.bases import default_renderer
from evert.envs.as_gymnasium.env import AgentGymEnv
from evert.envs.as_gymnasium.registration import import_path, register_games, wrap
from evert.envs.games import games

Register = Callable[..., EnvSpec]


def python(code: str, *options: str) -> str:
    """Run ``code`` in a subprocess in which warnings are errors, and return its output."""
    command = [sys.executable, "-W", "error", *options, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_importing_evert_registers_the_games_once() -> None:
    ids = " ".join(game.id for game in games().values())
    output = python(
        "import sys, gymnasium; print('evert' in sys.modules)\n"
        "import evert; print(*[id for id in gymnasium.registry if id.startswith('evert/')])\n"
        "print(any('evert' in type(finder).__module__ for finder in sys.meta_path))\n"
    )
    assert output.splitlines() == ["False", ids, "False"]
    second = python("import evert, gymnasium; print(gymnasium.spec('evert/Identity-v0').id)")
    assert second == "evert/Identity-v0\n"
    before = dict(gymnasium.registry)
    register_games()
    assert dict(gymnasium.registry) == before


async def echo_agent(client: AgentClient, task: str) -> bool:
    """Repeat a word.

    More about it.
    """
    return await ask(client, task) == task


def blocking_agent(client: BlockingAgentClient) -> float:
    return 2 * asks_blocking(client)


class LockedAgent:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def __call__(self, client: AgentClient) -> float:
        return 3 * await asks(client)


def test_a_users_agent_becomes_an_environment_with_its_docstring(register: Register) -> None:
    spec = register("test/Echo-v0", echo_agent, tasks=["one", "two"])
    assert spec is gymnasium.spec("test/Echo-v0")
    env = gymnasium.make("test/Echo-v0")
    observation, info = env.reset(seed=1)
    assert info["task"] in ("one", "two")
    assert observation == ({"role": "user", "content": info["task"]},)
    assert env.step(info["task"])[1:4] == (1.0, True, False)
    assert env.unwrapped.__doc__ == "Repeat a word.\n\nMore about it."
    env.close()
    without = gymnasium.make(register("test/Blocking-v0", blocking_agent))
    assert without.unwrapped.__doc__ == AgentGymEnv.__doc__


@pytest.mark.parametrize(
    ("agent", "reward"),
    [
        (blocking_agent, 2.0),
        (LockedAgent(), 3.0),
        (lambda client: blocking_agent(client) + 2, 4.0),
        (functools.partial(blocking_agent), 2.0),
    ],
    ids=["function", "instance", "lambda", "partial"],
)
def test_any_type_of_agent_and_its_copy_can_be_run(
    register: Register, agent: Any, reward: float
) -> None:
    env = gymnasium.make(register("test/Any-v0", agent))
    env_itself = env.unwrapped
    assert isinstance(env_itself, AgentGymEnv)
    copied = copy.deepcopy(AgentGymEnv(agent, renderer=default_renderer()))
    assert env_itself._agent is copied._agent is agent
    assert copied._options.get("renderer") is default_renderer()
    for copy_of_env in (env, copied):
        assert "task" not in copy_of_env.reset()[1]
        assert copy_of_env.step("x")[1] == reward
        copy_of_env.close()


def test_objects_with_an_import_path_are_stored_by_it_and_may_be_passed_by_it(
    register: Register,
) -> None:
    from evert.envs.identity import identity_agent

    assert import_path(identity_agent) == "evert.envs.identity:identity_agent"
    assert import_path(lambda client: 0.0) is None
    assert import_path(LockedAgent()) is None
    assert wrap(["a", 1, None]) == ["a", 1, None]
    assert isinstance(wrap([{"a": 1}]), Kept)
    assert pickle.loads(pickle.dumps(wrap(range(3)))).value == range(3)
    register("test/Path-v0", "evert.envs.identity:identity_agent", "evert.envs.identity:TEST_TASKS")
    assert gymnasium.make("test/Path-v0").reset()[1]["task"] >= 1000


def test_options_reach_the_episode_and_gymnasiums_own_step_limit_works(register: Register) -> None:
    register("test/Short-v0", "evert.envs.guess_number:guess_number_agent", [5], max_turns=2)
    for env in (
        gymnasium.make("test/Short-v0"),
        gymnasium.make("evert/GuessNumber-v0", tasks=[5], max_episode_steps=2),
    ):
        env.reset()
        assert env.step("Guess: 1")[2:4] == (False, False)
        assert env.step("Guess: 1")[2:4] == (False, True)
        assert env.reset(options={"task": 5})[1]["task"] == 5
        env.close()


def test_the_error_for_a_malformed_or_duplicate_id_says_what_to_do(register: Register) -> None:
    id: Any
    for id in ("", "NoVersion", "my/NoVersion", "my/Env-v", "my/Env v0", "a/b/C-v0", None, 3):
        with pytest.raises(gymnasium.error.RegistrationError, match="like 'my/Env-v0'"):
            register(id, blocking_agent)
    register("test/Twice-v0", echo_agent, ["a"])
    message = r"'test/Twice-v0' is already taken by .*echo_agent.*test/Twice-v1.*replace=True"
    with pytest.raises(gymnasium.error.RegistrationError, match=message):
        register("test/Twice-v0", blocking_agent)
    with pytest.raises(gymnasium.error.RegistrationError, match="CartPoleEnv.*CartPole-v2"):
        register("CartPole-v1", blocking_agent)
    with pytest.raises(InvalidAgentError):
        register("test/Twice-v0", 5, replace=True)
    assert gymnasium.make("test/Twice-v0").reset()[1]["task"] == "a"
    register("test/Twice-v0", blocking_agent, replace=True)
    assert "task" not in gymnasium.make("test/Twice-v0").reset()[1]


BAD_AGENTS: list[tuple[Any, Any, str]] = [
    (None, None, "must be callable"),
    (5, None, "must be callable"),
    (LockedAgent, None, "got the class"),
    (echo_agent, None, r"cannot be called with \(client\)"),
    (blocking_agent, [1], "it has no parameter for the task"),
    (
        "evert.envs.identity",
        None,
        "Got 'evert.envs.identity' for the agent; expected 'package.module:name'",
    ),
]
BAD_TASKS: list[tuple[Any, str]] = [
    ([], "tasks is empty"),
    (range(0), "tasks is empty"),
    *((none, "expected a sequence") for none in (5, {1, 2}, {"a": 1})),
    ((n for n in range(3)), "Convert it to a list"),
    ("no path", r"Got 'no path' for tasks; expected 'package\.module:name'"),
]


def test_invalid_agents_and_tasks_are_refused_and_the_error_names_a_wrong_path(
    register: Register,
) -> None:
    for agent, tasks, message in BAD_AGENTS:
        with pytest.raises(InvalidAgentError, match=message):
            register("test/Bad-v0", agent, tasks)
    for tasks, message in BAD_TASKS:
        with pytest.raises(InvalidDatasetError, match=message):
            register("test/Bad-v0", echo_agent, tasks)
    assert "test/Bad-v0" not in gymnasium.registry
    for agent, tasks, error, message in (
        ("no.such:agent", None, InvalidAgentError, r"No agent at 'no\.such:agent'"),
        (
            "evert.envs.identity:identity_agent",
            "string:digits",
            InvalidDatasetError,
            "is the string",
        ),
        ("evert.envs.identity:identity_agent", "no.such:TASKS", InvalidDatasetError, "No tasks at"),
    ):
        register("test/Nowhere-v0", agent, tasks, replace=True)
        with pytest.raises(error, match=message):
            gymnasium.make("test/Nowhere-v0")
