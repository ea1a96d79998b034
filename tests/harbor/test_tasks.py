"""Task folders and options: names, held-out tasks, and errors raised before heavy imports."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harbor.agents.factory import AgentFactory
from harbor.models.agent.name import AgentName
from rich.console import Console
from tests.harbor.conftest import TASKS
from tests.kit import play

import evert
from evert import AgentError, InvalidAgentError, InvalidDatasetError
from evert.bridge.clients.http.server import Address
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.harbor import HarborAgent, TaskFolders
from evert.trainers.commands import train
from evert.trainers.config.train import as_record, read_train_settings
from evert.trainers.integrations.harbor.agent import _connection

GIVEN = {"id": f"harbor:{TASKS}", "environment": "bubblewrap", "held_out": 2}


def test_the_held_out_tasks_are_reproducible() -> None:
    folders = TaskFolders(str(TASKS), held_out=2)
    assert folders.all == sorted(map(str, TASKS.iterdir())) == HarborAgent.tasks(TASKS)
    assert [len(folders.train), len(folders.test)] == [8, 2]
    assert sorted([*folders.train, *folders.test]) == folders.all
    assert {*folders.test} < {*TaskFolders(str(TASKS), held_out=3).test}
    assert len(TaskFolders(str(TASKS)).test) == 2
    assert HarborAgent.tasks(TASKS / "sum-csv") == [str(TASKS / "sum-csv")]


def test_a_run_refers_to_its_agent_and_tasks_by_path_and_can_be_resumed() -> None:
    agent = {"name": "terminus-2", "kwargs": {"max_turns": 3}}
    more: dict[str, Any] = {"agent": agent, "timeout_multiplier": 2.0}
    settings = read_train_settings({"tasks": {**GIVEN, **more}}, {})
    assert isinstance(resolve(settings.agent, "agent", GameError), HarborAgent)
    for path, count in ((settings.train_tasks, 8), (settings.test_tasks, 2)):
        assert len(resolve(str(path), "tasks", GameError)) == count
    typed = {f"tasks.{key}": str(value) for key, value in {**GIVEN, **more}.items() if key != "id"}
    assert read_train_settings({"tasks": GIVEN["id"], **typed}, {}).agent == settings.agent
    before = {k: tuple(v) if isinstance(v, list) else v for k, v in as_record(settings).items()}
    assert as_record(read_train_settings({"steps": "9"}, before)) == {
        **as_record(settings),
        "steps": 9,
    }


def test_a_run_trains_on_harbor_trials(tmp_path: Path) -> None:
    agent = {"name": "terminus-2", "kwargs": {"max_turns": 1}}
    run = evert.train(
        tasks={**GIVEN, "agent": agent}, console=Console(quiet=True), log_path=tmp_path / "run",
        steps=1, batch_size=1, group_size=2, max_tokens=8, test_tasks="", eval_every=0,
    )  # fmt: skip
    [step] = run.steps()
    assert step["env/all/solved"] == 0.0
    assert step["env/all/stop/completed"] == 1.0


def test_the_command_lines_of_the_harbor_page_are_valid() -> None:
    page = (TASKS.parent.parent / "docs/harbor.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("evert train")]
    assert len(lines) > 2
    for line in lines:
        assert train.parse(shlex.split(line)[2:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agent": "terminus-3"}, r"no agent 'terminus-3'. Did you mean 'terminus-2'\? Avail"),
        ({"environment": "dokcer"}, r"no environment 'dokcer'. Did you mean 'docker'\? Avail"),
        ({"agent": {"nam": "terminus-2"}}, "no field of AgentConfig 'nam'. Did you mean 'name'"),
        ({"environment": {"type": "dokcer"}}, "no environment 'dokcer'"),
        ({"timeout": 3}, "no field of TrialConfig 'timeout'. Did you mean 'timeout_multiplier'"),
        ({"trial_name": "mine"}, "no field of TrialConfig 'trial_name'"),
        ({"serve_address": "trainer:8443"}, "expected a URL that agents can use to reach this"),
        ({"timeout_multiplier": "often"}, "timeout_multiplier: Input should be a valid number"),
        ({"agent": {"name": "aider", "env": 3}}, "env: Input should be a valid dictionary"),
    ],
)
def test_unknown_agents_and_options_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidAgentError, match=message):
        HarborAgent(**given)


@pytest.mark.parametrize(
    ("path", "held_out", "message"),
    [
        ("nowhere", None, "There is no folder 'nowhere' with Harbor tasks"),
        ("docs", None, r"docs has no Harbor tasks; expected folders that contain a task\.toml"),
        (TASKS, 10, "held_out=10: .* has 10 tasks; expected at least 0 and less"),
        (TASKS, "two", "held_out='two'"),
    ],
)
def test_invalid_task_folders_are_refused(path: Any, held_out: Any, message: str) -> None:
    with pytest.raises(InvalidDatasetError, match=message):
        TaskFolders(str(path), held_out=held_out)


CHECK = """
import sys
from evert.envs.tasksets import task_game
try:
    task_game({given})
except Exception as error:
    print(type(error).__name__, error)
heavy = {{"torch", "transformers", "litellm", "tinker_cookbook"}}
print("loaded", *heavy & {{*sys.modules}})
"""


def test_a_typo_is_reported_before_heavy_imports() -> None:
    for wrong in ({"id": "harbor:nowhere"}, {**GIVEN, "agent": "terminus"}, {**GIVEN, "turns": 3}):
        code = CHECK.format(given=wrong)
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        assert said.startswith("GameError tasks=harbor:"), said
        assert said.splitlines()[-1] == "loaded"


UNLED = {
    "acp": "is made of a registry", "cortex-code": None, "cursor-cli": None, "devin": None,
    "eve": "needs a package", "nop": None, "oracle": None, "fabric": "needs an extra",
    "langgraph": "needs a graph", "rovodev-cli": None,
}  # fmt: skip
"""Harbor agents that need more than a name to connect to an endpoint, and what they need.
None means that an agent accepts no endpoint."""


@pytest.mark.parametrize("name", [n for n in AgentFactory.registered_names() if n not in UNLED])
def test_each_of_harbors_agents_receives_the_address_of_the_episode(
    name: str, tmp_path: Path
) -> None:
    from harbor.models.trial.config import AgentConfig

    address = Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1", "the key")
    agent_class = AgentFactory.get_agent_class(AgentName(name))
    fields = _connection(agent_class, address, "policy")
    config = AgentConfig(name=name, **fields)
    connection = AgentFactory.create_agent_from_config(config, tmp_path).model_connection

    is_rooted = {"anthropic", "gemini"} & {connection.provider}
    assert connection.execution_base_url == (address.root_url if is_rooted else address.base_url)
    assert connection.api_key == "the key"


@pytest.mark.parametrize(
    ("agent", "options", "message"),
    [
        ("devin", {}, "The Harbor agent 'devin' only supports its vendor's models"),
        ("mini-swe-agent", {}, "Pass an address of this machine, such as host='172.17.0.1'"),
    ],
)
async def test_an_agent_that_cannot_reach_the_episode_is_refused(
    agent: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AgentError, match=message):
        await play(HarborAgent(agent, "docker", **options), task=str(TASKS / "sum-csv"))
