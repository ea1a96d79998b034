"""Harbor trials as agents: their tokens, their rewards and how they end.

1. Rewards match those of Harbor's own runner with the same scripted model.
2. Each call is a transition with the sampled tokens, and a conversation is one lineage.
3. Harbor's time limits and errors keep their messages.
4. A cancelled episode stops its trial and leaves nothing behind.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from harbor.job import Job
from harbor.models.job.config import JobConfig
from tests.harbor.agents import Elsewhere
from tests.harbor.conftest import SCRIPTS, TASKS, idler, instruction, solution, solver, turn
from tests.kit import free_port, play, reward, rewards
from tests.more_trainers.conftest import served_chat
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentError, ChatAgentEnv, InvalidDatasetError, ScriptedPolicy
from evert.harbor import HarborAgent

ALL = sorted(path.name for path in TASKS.iterdir())
TERMINUS = HarborAgent("terminus-2", environment="bubblewrap")

IN_PART = {"rank-scores": 0.5, "replace-address": 0.67, "search-log": 0.5}
"""The reward of each partial solution that earns something."""

PARTS = ("target_tokens", "mask")


async def by_harbor(say: Any, folder: Path) -> dict[str, dict[str, float]]:
    """Return the rewards of all tasks in a Harbor job, with the script served at an endpoint."""
    with served_chat(say) as url:
        agent = {
            "name": "terminus-2", "model_name": "openai/policy", "base_url": url,
            "env": {"OPENAI_API_KEY": "none"}, "kwargs": {"record_terminal_session": False},
        }  # fmt: skip
        job = await Job.create(
            JobConfig(
                jobs_dir=folder, quiet=True, n_concurrent_trials=len(ALL), agents=[agent],
                tasks=[{"path": TASKS / name} for name in ALL],
                environment={"import_path": "evert.harbor:Bubblewrap"},
            )
        )  # fmt: skip
        result = await job.run()
    return {
        trial.task_name.removeprefix("evert/"): trial.verifier_result.rewards
        for trial in result.trial_results
    }


async def by_evert(say: Any, name: str) -> tuple[Trajectory, ScriptedPolicy]:
    """Play a trial under evert; return the trajectory and its policy."""
    policy = ScriptedPolicy(say)
    return await do_single_rollout(policy, ChatAgentEnv(TERMINUS, str(TASKS / name))), policy


@pytest.mark.parametrize("script", SCRIPTS)
async def test_rewards_equal_those_of_harbors_runner_and_tokens_are_the_sampled_ones(
    script: str, tmp_path: Path
) -> None:
    theirs = await by_harbor(SCRIPTS[script], tmp_path)
    ours = await asyncio.gather(*(by_evert(SCRIPTS[script], name) for name in ALL))

    earned = {name: reward(played) for name, (played, _) in zip(ALL, ours, strict=True)}
    assert earned == {name: theirs[name]["reward"] for name in ALL}
    expected = IN_PART if script == "half right" else {}
    assert earned == {name: expected.get(name, float(script == "right")) for name in ALL}
    for name, (played, policy) in zip(ALL, ours, strict=True):
        last = played.transitions[-1].metrics
        assert (last["lineages"], last["drift"], last["solved"]) == (1, 0, earned[name] == 1)
        several = {f"reward/{part}": value for part, value in theirs[name].items()}
        noted = {key: value for key, value in last.items() if key.startswith("reward/")}
        assert noted == (several if len(several) > 1 else {})
        [datum] = trajectory_to_data(played, 1.0)
        tokens = zip(*(datum.loss_fn_inputs[key].tolist() for key in PARTS), strict=True)
        assert [token for token, mask in tokens if mask] == [*chain(*policy.actions)]


async def test_each_call_is_a_transition_with_the_sampled_tokens() -> None:
    played, policy = await by_evert(solver, "sum-csv")

    assert [step.ac.tokens for step in played.transitions] == policy.actions
    assert rewards(played) == [0.0, 0.0, 1.0]
    assert instruction(TASKS / "sum-csv") in policy.prompts[0]
    for step, after in pairwise(played.transitions):
        before = [*step.ob.to_ints(), *step.ac.tokens]
        assert after.ob.to_ints()[: len(before)] == before


async def test_an_agent_outside_the_environment_uses_the_public_address() -> None:
    port = free_port()
    public = f"http://127.0.0.2:{port}"
    agent = HarborAgent(
        "tests.harbor.agents:Elsewhere", "bubblewrap",
        host=f"0.0.0.0:{port}", serve_address=f"{public}/",
    )  # fmt: skip
    for _ in range(2):  # the second episode reuses the port
        played = await play(agent, solution(TASKS / "sum-csv"), task=str(TASKS / "sum-csv"))
        assert (reward(played), Elsewhere.asked) == (1.0, [f"{public}/v1"])


async def test_a_single_part_of_harbors_reward_can_be_the_reward_of_the_episode() -> None:
    half = HarborAgent("terminus-2", environment="bubblewrap", reward="host")
    said = [turn("echo dog 7 > answer.txt"), turn(done=True), turn(done=True)]
    played = await play(half, *said, task=str(TASKS / "search-log"))

    last = played.transitions[-1].metrics
    assert (reward(played), last["reward/host"], last["reward/reward"]) == (1.0, 1.0, 0.5)
    other = HarborAgent("terminus-2", environment="bubblewrap", reward="hosts")
    with pytest.raises(AgentError, match=r"returned the rewards \['reward', 'host'\]; exp"):
        await play(other, *said, task=str(TASKS / "search-log"))


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_harbors_time_limit_ends_an_agent_and_its_work_is_still_verified(
    tmp_path: Path,
) -> None:
    slow = json.loads(turn(*solution(TASKS / "sum-csv").splitlines(), "sleep 60"))
    slow["commands"][-1]["duration"] = 60
    agent = HarborAgent(
        {"name": "terminus-2", "override_timeout_sec": 2}, "bubblewrap", trials_dir=tmp_path
    )
    played = await play(agent, json.dumps(slow), task=str(TASKS / "sum-csv"))

    last = played.transitions[-1]
    assert (reward(played), last.metrics["stop/truncated"]) == (1.0, 1.0)
    assert last.metrics["exception/AgentTimeoutError"] == 1.0
    assert last.logs["exception"] == "Agent execution timed out after 2.0 seconds"
    [kept] = [content for name, content in files_in(tmp_path).items() if name == "result.json"]
    assert json.loads(kept)["verifier_result"]["rewards"] == {"reward": 1.0}


async def test_no_file_of_a_kept_trial_contains_the_key(tmp_path: Path) -> None:
    agent, keys = HarborAgent("terminus-2", "bubblewrap", trials_dir=tmp_path), []

    async def noting(client: Any, task: str) -> Any:
        keys.append(client.api_key.encode())
        return await agent(client, task)

    await play(noting, idler, task=str(TASKS / "sum-csv"))
    files = files_in(tmp_path)
    assert len(files) > 5
    assert not [name for name, content in files.items() if keys[0] in content]


def broken(folder: Path, name: str, content: str | None) -> str:
    """Copy a task with one file replaced or removed."""
    shutil.copytree(TASKS / "sum-csv", folder, dirs_exist_ok=True)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("task.toml", "[agent", "The task .*/broken is invalid: TOMLDecodeError"),
        (
            "tests/test.sh",
            None,
            r"is invalid: FileNotFoundError: .* does not contain tests/test\.sh",
        ),
    ],
)
async def test_a_broken_task_is_reported_immediately(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    folder = broken(tmp_path / "tasks/broken", name, content)
    with pytest.raises(InvalidDatasetError, match=f"(?s){message}"):
        HarborAgent.tasks(tmp_path / "tasks")
    with pytest.raises(AgentError, match=f"(?s){message}"):
        await play(TERMINUS, idler, task=folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tests/test.sh", "#!/bin/sh\n", "ended without a reward: RewardFileNotFoundError: "),
        ("tests/test.sh", "#!/bin/sh\necho many > /logs/verifier/reward.txt\n",
         "ended without a reward: VerifierOutputParseError: Failed to parse rewards"),
        ("tests/test.sh", "#!/bin/sh\nsleep 60\n", "VerifierTimeoutError: Verifier execution"),
        ("environment/Dockerfile", "FROM debian\nRUN apt-get install -y gcc\n",
         r"The task sum-csv needs an image \(RUN apt-get install -y gcc\), but bubblewrap"),
    ],
)  # fmt: skip
async def test_harbors_errors_keep_their_messages(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    agent = HarborAgent("terminus-2", "bubblewrap", verifier={"override_timeout_sec": 3})
    with pytest.raises(AgentError, match=message):
        await play(agent, idler, task=broken(tmp_path / "broken", name, content))


async def test_a_prompt_that_is_too_long_ends_the_trial_as_a_context_overflow() -> None:
    agent = HarborAgent({"name": "terminus-2", "kwargs": {"enable_summarize": False}}, "bubblewrap")
    task = str(TASKS / "sum-csv")
    played = await play(agent, lambda _: turn("seq 3000"), task=task, context_length=6000)

    assert played.transitions[-1].metrics["stop/context_overflow"] == 1.0
    assert reward(played) == -0.1


async def test_a_truncated_reply_is_retried_until_a_limit_ends_the_episode() -> None:
    limits = RolloutLimits(max_turns=3, max_turn_tokens=8)
    task = str(TASKS / "sum-csv")
    played = await play(TERMINUS, lambda _: "Let me think. " * 9, task=task, limits=limits)

    assert [len(step.ac.tokens) for step in played.transitions] == [8, 8, 8]
    assert played.transitions[-1].metrics["stop/max_turns"] == 1.0


def left(temporary: Path) -> tuple[set[str], set[int], set[str]]:
    """Return the current folders, processes and asyncio tasks."""
    folders = {path.name for path in temporary.iterdir()}
    children = {each.pid for each in psutil.Process().children(recursive=True)}
    tasks = {each.get_name() for each in asyncio.all_tasks() if "LoggingWorker" not in repr(each)}
    return folders, children, tasks


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_cancelled_trial_leaves_nothing_behind(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await play(TERMINUS, idler, task=str(TASKS / "sum-csv"))  # loads everything that stays loaded
    before = left(tmp_path)
    env = ChatAgentEnv(TERMINUS, str(TASKS / "sum-csv"))
    observation, stop = await env.initial_observation()
    folders, processes, _ = left(tmp_path)
    assert len(folders - before[0]) == 2
    assert processes - before[1]
    for _ in range(turns):
        reply = await ScriptedPolicy([turn("sleep 1000 & setsid sleep 1000 &")])(observation, stop)
        await env.step(reply.tokens)
    await env.close()

    assert left(tmp_path) == before


def test_the_example_of_the_harbor_page_is_solved() -> None:
    example = TASKS.parent / "harbor_trial.py"
    said = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert said.stdout.endswith("3 turns, reward 1, completed; 1 datum\nreward 1.0\n")
