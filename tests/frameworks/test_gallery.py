"""Public agents, unchanged except for glue code, play and are trained from the command line."""

import importlib
import json
import os
import pkgutil
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import PUBLIC
from gallery_scripts import SCRIPTS
from gallery_table import GALLERY, ROOT, rows
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentGroupBuilder, ScriptedPolicy

pytestmark = [  # warnings of the agents and their frameworks
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ImportWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

PROGRAMS = ("programs/node_modules/.bin", "aider/bin")
"""Folders in .frameworks that contain the program-based agents."""
PATH = os.pathsep.join(
    [*(str(ROOT / ".frameworks" / folder) for folder in PROGRAMS), os.environ["PATH"]]
)
TASKS = "train_tasks="
QUICK = (
    "steps=2 batch_size=1 group_size=2 max_tokens=24 eval_every=0 device=cpu "
    # This makes rewards differ, whatever the model says.
    "cookbook.dataset_builder.group_reward=episodes:by_rank"
)


def command(module: ModuleType) -> list[str]:
    """Return the words of the command at the top of an agent's file."""
    lines = (module.__doc__ or "").replace("\\\n", " ").splitlines()
    [line] = [line for line in lines if "evert train" in line]
    return shlex.split(line)


def options(module: ModuleType) -> dict[str, Any]:
    """Return the ``policy_names`` of that command as an Env option."""
    names = [word.split("policy_names=")[1] for word in command(module) if "policy_names=" in word]
    return {"policy_names": names[0].split(",")} if names else {}


async def play(module: ModuleType) -> tuple[Trajectory, float, ScriptedPolicy]:
    """Play the first task the way training does."""
    policy = ScriptedPolicy(SCRIPTS[module.__name__])
    [tasks] = [word.removeprefix(TASKS) for word in command(module) if word.startswith(TASKS)]
    task = pkgutil.resolve_name(tasks)[0]
    builder = ChatAgentGroupBuilder(module.agent, task, **options(module))
    group = await do_group_rollout(builder, policy)
    await builder.cleanup()
    return group.trajectories_G[0], group.get_total_rewards()[0], policy


async def test_a_public_agent_makes_the_calls_and_data_listed_in_the_table(
    public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if public not in PUBLIC["programs"]:
        request.getfixturevalue("no_sockets")
    monkeypatch.chdir(tmp_path)  # some agents write files
    monkeypatch.setenv("PATH", PATH)
    module = importlib.import_module(public)
    trajectory, reward, policy = await play(module)

    assert reward == 1.0
    assert len(policy.actions) == len(SCRIPTS[public])
    sampled = [turn.ac.tokens for turn in trajectory.transitions]
    assert sorted(sampled) == sorted(policy.actions)
    calls, data = len(sampled), len(trajectory_to_data(trajectory, 1.0))
    assert rows()[public]["calls, data"] == f"{calls}, {data}"
    metrics = trajectory.transitions[-1].metrics  # handoffs and calls by other agents are not drift
    rewritten = sum(metrics.get(f"drift/{cause}", 0) for cause in ("history", "tools"))
    assert rewritten == (public == "text_to_sql")  # this agent rephrases its history


def test_the_command_trains_a_public_agent_for_two_steps(public: str, tmp_path: Path) -> None:
    program, *words = command(importlib.import_module(public))
    here = os.pathsep.join([str(GALLERY), str(Path(__file__).parent)])
    left_out = ("OPENAI_API_KEY", "PYTHONDONTWRITEBYTECODE")  # a new user has not set these
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    run = subprocess.run(
        [str(Path(sys.executable).parent / program), *words, *QUICK.split(), "log_path=run"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": here, "PATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert "Traceback" not in run.stdout, run.stdout
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [row for row in rows if "optim/grad_norm" in row]
    assert len(steps) == 2
    for step in steps:
        assert min(step["env/all/total_ac_tokens"], step["optim/grad_norm"]) > 0
