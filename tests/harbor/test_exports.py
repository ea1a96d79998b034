"""ATIF: Harbor's classes can read evert's files, and evert can read those of Harbor's agents."""

import asyncio
import json
from pathlib import Path
from typing import Any

from harbor.models.trajectories import Trajectory
from tests.harbor.conftest import TASKS, TYPED, solver
from tests.kit import play
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import ChatAgentGroupBuilder, Recorder, ScriptedPolicy, read_records
from evert.harbor import HarborAgent
from evert.trainers import cli

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def agent(client: Any, task: int) -> float:
    messages: list[Any] = [{"role": "system", "content": "Add."}, {"role": "user", "content": "?"}]
    for _ in range(2):
        completion = await client.chat.completions.create(messages=messages, tools=[ADD])
        said = completion.choices[0].message
        results = [
            {"role": "tool", "tool_call_id": one.id, "content": "2"} for one in said.tool_calls
        ]
        messages += [said, *results]
    return 1.0


def test_harbor_reads_the_trajectories_and_their_tokens(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rollouts.jsonl")
    builder = ChatAgentGroupBuilder(agent, 1, 2, record=recorder)
    asyncio.run(do_group_rollout(builder, ScriptedPolicy(lambda prompt: CALL)))
    out = tmp_path / "atif"
    assert cli.main(["export", f"run={tmp_path}", "format=atif", f"out={out}"]) == 0
    files = sorted(out.iterdir())
    assert len(files) == 2
    for file, record in zip(files, read_records(tmp_path), strict=True):
        found = Trajectory.model_validate(json.loads(file.read_text()))
        assert [step.source for step in found.steps] == ["system", "user", "agent", "agent"]
        assert found.steps[2].tool_calls[0].arguments == {"a": 1}
        assert found.steps[2].observation.results[0].content == "2"
        for turn, step in enumerate(found.steps[2:]):
            assert step.metrics.completion_token_ids == [*record.action(turn).tokens]
            assert step.metrics.prompt_token_ids == record.prompts[turn]


def test_a_trajectory_of_harbors_own_agent_is_a_record_without_tokens(tmp_path: Path) -> None:
    [task] = [path for path in TASKS.iterdir() if path.name == "count-lines"]
    agent = HarborAgent("terminus-2", "bubblewrap", trials_dir=tmp_path)
    played = asyncio.run(play(agent, solver, task=str(task)))
    [file] = tmp_path.rglob("trajectory.json")
    Trajectory.model_validate(json.loads(file.read_text()))
    [record] = read_records(file)
    assert record.turns == len(played.transitions)
    assert record.row["trace"]["has_tokens"] is False
    assert (record.row["agent"], TYPED in record.messages(0)[-1]["content"]) == ("terminus-2", True)
    for turn, transition in enumerate(played.transitions):
        step = record.row["steps"][turn]
        assert (step["ob_len"], step["ac_len"]) == (
            transition.ob.length, len(transition.ac.tokens),
        )  # fmt: skip
    out = tmp_path / "again"
    assert cli.main(["export", f"run={file}", "format=atif", f"out={out}"]) == 0
    Trajectory.model_validate(json.loads((out / "000000.json").read_text()))
