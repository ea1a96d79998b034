"""``evert export format=training_trace`` writes OpenEnv's ``TrainingTrace`` format."""

import asyncio
from pathlib import Path
from typing import Any

from openenv.core.harness.capture.graph import RolloutGraph, TurnNode
from openenv.core.harness.training import TrainingTrace
from tests.kit import assistant, call, policy_of, user
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import ChatAgentGroupBuilder, Recorder, RolloutRecord, read_records
from evert.trainers import cli


async def agent(client: Any, task: str) -> float:
    """Play a conversation, a branch of it, and a separate conversation."""
    messages = [user(task)]
    for _ in range(3):
        reply = (await call(client, *messages)).choices[0].message
        messages += [assistant(reply.content), user("Sure?")]
    await call(client, *messages[:2], user("Really?"))
    await call(client, "Who?")
    return 1.0


def exported(folder: Path) -> list[tuple[TrainingTrace, RolloutRecord]]:
    recorder = Recorder(folder / "rollouts.jsonl")
    builder = ChatAgentGroupBuilder(agent, "1 + 1?", 2, record=recorder)
    asyncio.run(do_group_rollout(builder, policy_of(lambda prompt: "Two.")))
    out = folder / "traces.jsonl"
    assert cli.main(["export", f"run={folder}", "format=training_trace", f"out={out}"]) == 0
    lines = out.read_text().splitlines()
    return [*zip(map(TrainingTrace.model_validate_json, lines), read_records(folder), strict=True)]


def test_openenv_can_read_the_traces_with_their_tokens(tmp_path: Path) -> None:
    for trace, record in exported(tmp_path):
        assert len(trace.turns) == record.turns == 5
        for number, turn in enumerate(trace.turns):
            action = record.action(number)
            assert turn.prompt_token_ids == record.prompts[number]
            assert turn.completion_token_ids == [*action.tokens]
            assert turn.per_token_logps == action.maybe_logprobs
            assert sum(turn.loss_mask) == len(action.tokens)
            assert turn.request["messages"] == record.asked(number)


def test_openenvs_token_graph_has_the_parents_given_in_the_trace(tmp_path: Path) -> None:
    for trace, _ in exported(tmp_path):
        graph = RolloutGraph()
        for turn in trace.turns:
            ids = turn.prompt_token_ids, turn.completion_token_ids, turn.per_token_logps
            node = graph.add_turn(TurnNode(turn.node_id, *ids))
            assert node.parent_id == turn.metadata["parent_id"]
        assert graph.stats()["n_roots"] == 2
        assert graph.forks() == [("turn-0", ["turn-1", "turn-3"])]


def test_a_trace_written_by_openenv_is_read_with_its_tokens(tmp_path: Path) -> None:
    [(trace, record), *_] = exported(tmp_path)
    file = tmp_path / "trace.json"
    file.write_text(trace.model_dump_json(indent=2))
    [back] = read_records(file)
    assert back.prompts == record.prompts
    assert [back.action(turn) for turn in range(5)] == [record.action(turn) for turn in range(5)]
    assert back.messages() == record.messages()
