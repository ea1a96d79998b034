"""What ``evert export format=atif`` writes is read by Harbor's own models."""

import asyncio
import json
from pathlib import Path
from typing import Any

from harbor.models.trajectories import Trajectory
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import ChatAgentGroupBuilder, Recorder, ScriptedPolicy, read_records
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
