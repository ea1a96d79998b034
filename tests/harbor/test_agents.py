"""Harbor's program-based agents, running the actual programs in the sandbox.

``frameworks/make_programs.py`` and ``frameworks/make_environment.py aider`` install the programs.
``make nightly`` runs all of them, and ``make harbor`` runs only two.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.harbor.conftest import TASKS, solution
from tests.kit import play, reward
from tests.nightly import each
from tinker_cookbook.rl.data_processing import trajectory_to_data

import evert
from evert import InvalidAgentError
from evert.harbor import HarborAgent
from evert.trainers.integrations.harbor.profiles import LEAN

FOLDERS = TASKS.parent.parent / ".frameworks"
NPM, AIDER, HERE = (
    FOLDERS / "programs/node_modules/.bin",
    FOLDERS / "aider/bin",
    f"{sys.prefix}/bin",
)
TASK = TASKS / "count-lines"

SHELLS = {
    "claude-code": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "gemini-cli": ("run_shell_command", "command"),
    "mini-swe-agent": ("bash", "command"),
    "opencode": ("bash", "command"),
    "qwen-coder": ("run_shell_command", "command"),
}
"""Agent -> its tool for running a command line, and the name of the tool's argument."""

AGENTS = ["aider", *SHELLS]
BY_DAY = ["claude-code", "mini-swe-agent"]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def options(name: str) -> dict[str, Any]:
    """Return options that select the agent's program, and its lean variant if it has one."""
    folder = {"aider": AIDER, "mini-swe-agent": HERE}.get(name, NPM)
    return {"installed": str(folder), "lean": name in LEAN}


def solving(name: str) -> list[str]:
    """Return replies that solve the task: a tool call, or a file for aider."""
    if name == "aider":
        return ["count.txt\n```\n4\n```"]
    tool, argument = SHELLS[name]
    lines = [solution(TASK).strip(), *([SUBMIT] if name == "mini-swe-agent" else [])]
    calls = [json.dumps({"name": tool, "arguments": {argument: line}}) for line in lines]
    return [*(f"<tool_call>\n{call}\n</tool_call>" for call in calls), "It is done."]


@pytest.mark.parametrize("name", each(AGENTS, by_day=BY_DAY))
async def test_a_real_agent_solves_a_task_in_one_conversation(name: str) -> None:
    agent = HarborAgent(name, "bubblewrap", **options(name))
    played = await play(agent, *solving(name), task=str(TASK), context_length=16384)

    last = played.transitions[-1]
    assert reward(played) == 1.0, last.logs
    assert (last.metrics["lineages"], last.metrics["drift"]) == (1, 0)
    assert len(trajectory_to_data(played, 1.0)) == 1
    assert not [name for name in last.metrics if name.startswith("exception/")]


def roomy(folder: Path) -> Path:
    """Copy the smallest base model and extend the copy's context window from 8k to 64k tokens."""
    shutil.copytree(Path(evert.__file__).parent / "bases/evert-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 65536
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", each(AGENTS, by_day=[]))
def test_a_real_agent_is_trained_for_two_steps(name: str, tmp_path: Path) -> None:
    tasks = {"id": f"harbor:{TASKS}", "environment": "bubblewrap", "agent": name}
    run = evert.train(
        tasks={**tasks, **options(name)},
        model_name=str(roomy(tmp_path / "roomy")), log_path=tmp_path / "run",
        console=Console(quiet=True), steps=2, batch_size=1, group_size=2, max_tokens=24,
        test_tasks="", eval_every=0, limits={"max_turns": 3},
    )  # fmt: skip
    steps = run.steps()
    assert [step["env/all/reward/total"] for step in steps] == [0.0, 0.0]
    assert all(step["env/all/total_ac_tokens"] > 0 for step in steps)
    assert all(step["env/all/by_group/frac_all_bad"] == 1.0 for step in steps)


@pytest.mark.parametrize(
    ("agent", "more", "message"),
    [
        ("codex", {"installed": "nowhere"}, "installed='.*/nowhere': this folder does not exist"),
        ("codex", {"installed": HERE, "environment": "docker"}, "requires environment=bubblewrap"),
        ("aider", {"lean": True}, "not supported by the agent 'aider', only by claude-code, c"),
    ],
)
def test_an_agent_whose_program_or_lean_variant_is_unavailable_is_refused(
    agent: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidAgentError, match=message):
        HarborAgent(agent, **{"environment": "bubblewrap", **more})
