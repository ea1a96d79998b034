"""Writing rollout records and reading them back."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import tinker
from tests.kit import (
    Logs,
    Patch,
    ask,
    assistant,
    call,
    calling,
    play_group,
    play_recorded,
    policy_of,
    system,
    tool,
    user,
)
from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import TrajectoryGroup

from evert import (
    AgentClient,
    BranchEnv,
    ChatAgentEnv,
    ChatAgentGroupBuilder,
    Recorder,
    RolloutRecord,
    ScriptedPolicy,
    read_records,
    replay,
)
from evert.bridge.errors import RecordError

ADD = tool("add")
CALL = calling("add", a=1)
THREE = ("one", "two", "three")


async def chat(client: Any, task: Any) -> float:
    """Make three calls in one conversation, with logs, metrics and an intermediate reward."""
    messages = [system("Add.")]
    for number in range(3):
        messages.append(user(f"{task['a']} + {number}?"))
        messages.append(assistant(await ask(client, *messages)))
        client.log(number=number)
        client.metric("asked", 1)
    client.reward(0.5)
    return 1.0


async def calls_a_tool(client: Any) -> float:
    message = (await call(client, "1 + 1?", tools=[ADD])).choices[0].message
    [tool_call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": tool_call.id, "content": "2"}
    await call(client, user("1 + 1?"), message, result, tools=[ADD])
    return 1.0


async def compacts(client: Any) -> float:
    """Make a call, start a new conversation, then branch twice from the first one."""
    reply = await ask(client, "one")
    await ask(client, "anew")
    for word in ("left", "right"):
        await ask(client, user("one"), assistant(reply), user(word))
    return 0.0


async def test_a_row_contains_the_cookbooks_summary_and_each_message_once(tmp_path: Path) -> None:
    record, trajectory = await play_recorded(tmp_path, chat, *THREE, task={"a": 1})
    group = TrajectoryGroup([trajectory], [0.0], [{}])
    [summary] = serialize_rollout_summaries(
        split="train", iteration=0, trajectory_groups_P=[group], taglist_P=[[]]
    )

    steps = record.row["steps"]
    for ours, theirs in zip(steps, summary["steps"], strict=True):
        assert {name: ours[name] for name in theirs} == theirs
    assert {name: record.row[name] for name in summary} == {**summary, "steps": steps}
    assert (record.reward, record.metrics["asked"]) == (1.5, 3)
    assert record.row["renderer"] == "qwen3_instruct"
    assert {*record.row["versions"]} == {"evert", "tinker-cookbook"}
    assert [step["prompt"]["after"] for step in steps] == [None, 0, 1]
    new = sum(len(step["prompt"]["tokens"]) + len(step["tokens"]) for step in steps)
    last = trajectory.transitions[-1]
    assert new == last.ob.length + len(last.ac.tokens)
    assert [len(step["call"]["messages"]) for step in steps] == [2, 1, 1]


async def test_a_recorded_env_keeps_each_message_only_once() -> None:
    env = Recorder("nowhere.jsonl").watch(ChatAgentEnv(chat, {"a": 1}))
    await do_single_rollout(ScriptedPolicy(THREE), env)
    assert env.transcript is not None
    assert [len(call.messages) for call in env.transcript.calls] == [2, 1, 1]
    assert not any(call.request.messages for call in env.transcript.calls)


async def test_an_image_in_a_prompt_can_be_read_back(tmp_path: Path) -> None:
    image = tinker.types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=3)
    recorder = Recorder(tmp_path / "rollouts.jsonl")
    env = recorder.watch(ChatAgentEnv(chat, {"a": 1}))
    trajectory = await do_single_rollout(ScriptedPolicy(THREE), env)
    text = trajectory.transitions[0].ob
    trajectory.transitions[0].ob = tinker.ModelInput(chunks=[*text.chunks, image])
    recorder.add([trajectory], [env])
    [record] = read_records(tmp_path)

    assert record.prompts[0] == [*text.to_ints(), image]


async def test_tool_calls_can_be_read_back_as_messages_and_as_sampled(tmp_path: Path) -> None:
    record, _ = await play_recorded(tmp_path, calls_a_tool, CALL, "2")
    question, called, result, answer = record.messages()
    prefix, first, sampled, *_ = record.sampled_messages(1)

    assert called["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert result["tool_call_id"] == called["tool_calls"][0]["id"]
    assert answer == assistant("2")
    assert record.tools(1) == [ADD]
    assert prefix["role"] == "system"
    assert '"name": "add"' in prefix["content"]
    assert (first, sampled) == (question, assistant(CALL))


async def test_a_system_prompt_next_to_tools_is_sampled_from_only_once(tmp_path: Path) -> None:
    async def adds(client: Any) -> float:
        await call(client, system("Add."), user("1 + 1?"), tools=[ADD])
        return 1.0

    record, _ = await play_recorded(tmp_path, adds, "2")
    prefix, *others = record.sampled_messages(0)

    assert prefix["content"].startswith("Add.")
    assert '"name": "add"' in prefix["content"]
    assert others == [user("1 + 1?"), assistant("2")]


async def test_each_conversation_is_read_back_as_the_agent_saw_it(tmp_path: Path) -> None:
    record, _ = await play_recorded(tmp_path, chat, *THREE, task={"a": 1})
    turns = [[user(f"1 + {n}?"), assistant(word)] for n, word in enumerate(THREE)]
    assert record.messages() == [system("Add."), *turns[0], *turns[1], *turns[2]]
    assert record.messages(0) == record.messages()[:3]
    assert record.asked(1) == record.messages()[:4]

    record, _ = await play_recorded(tmp_path, compacts, "first", "second", "third", "fourth")
    assert record.last_turns() == [1, 2, 3]
    assert [m["content"] for m in record.messages(2)] == ["one", "first", "left", "third"]
    assert [m["content"] for m in record.messages(3)] == ["one", "first", "right", "fourth"]


async def test_a_reply_that_is_retried_is_not_part_of_the_conversation(tmp_path: Path) -> None:
    async def as_json(client: Any) -> float:
        await ask(client, "JSON?", response_format={"type": "json_object"})
        return 1.0

    record, _ = await play_recorded(tmp_path, as_json, "no", "{}")

    assert record.turns == 2
    assert record.row["steps"][0]["reply"] is None
    assert record.last_turns() == [1]
    assert record.messages() == [user("JSON?"), assistant("{}")]


async def test_missing_data_in_a_record_is_an_error(tmp_path: Path) -> None:
    async def idle(client: Any) -> float:
        return 1.0

    with pytest.raises(RecordError, match="contains no rollouts.*record=True"):
        next(read_records(tmp_path))
    recorder, env = Recorder(tmp_path / "rollouts.jsonl"), ChatAgentEnv(chat, {"a": 1})
    trajectory = await do_single_rollout(ScriptedPolicy(THREE), env)
    recorder.add([trajectory], [env])
    [record] = read_records(tmp_path)

    assert record.trajectory().transitions[2].ac == trajectory.transitions[2].ac
    with pytest.raises(RecordError, match=r"Turn 2 .* has no messages.*recorder\.watch\(env\)"):
        record.messages()
    record, _ = await play_recorded(tmp_path, chat, *THREE, task={"a": Path("x")})
    with pytest.raises(RecordError, match=r"The task of this record is \{'a': .*task=.*task_repr"):
        _ = record.task
    record, _ = await play_recorded(tmp_path, idle)
    assert (record.turns, record.text, record.reward) == (0, "", 1.0)


async def test_a_truncated_last_line_does_not_affect_other_lines(
    tmp_path: Path, caplog: Logs
) -> None:
    file = tmp_path / "rollouts.jsonl"
    await play_recorded(tmp_path, chat, *THREE, task={"a": 1})
    content = file.read_bytes()
    file.write_bytes(content + content[:-200])

    assert len([*read_records(tmp_path)]) == 1
    assert "skipped 1 truncated lines" in caplog.text
    record, _ = await play_recorded(tmp_path, chat, *THREE, task={"a": 2})
    assert len([*read_records(tmp_path)]) == 2
    assert record.task == {"a": 2}


async def test_secrets_are_not_written(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")
    await play_recorded(tmp_path, chat, *THREE, task={"a": "hunter2-hunter2"})

    assert "hunter2" not in (tmp_path / "rollouts.jsonl").read_text()


async def test_a_builder_records_its_group_in_the_order_it_was_played(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rollouts.jsonl")
    builder = ChatAgentGroupBuilder(compacts, group_size=2, record=recorder, tags=["game"])
    builder.group_reward = lambda group: [0.25, 0.75]
    group = await do_group_rollout(builder, policy_of())
    records = [*read_records(tmp_path)]

    assert [record.reward for record in records] == group.get_total_rewards() == [0.25, 0.75]
    assert [record.row["traj_idx"] for record in records] == [0, 1]
    assert records[0].row["tags"] == ["game"]
    assert [step["logs"]["lineage"] for step in records[0].row["steps"]] == [0, 1, 0, 2]
    turns = group.trajectories_G[0].transitions
    assert [turn.logs["lineage"] for turn in turns] == [1, 0, 0, 2], "turns are sorted afterwards"


async def test_group_numbers_continue_in_a_file_and_restart_in_a_run_folder(tmp_path: Path) -> None:
    for place, numbers in ((tmp_path / "r.jsonl", [0, 1, 2]), (tmp_path / "run-1.5", [0])):
        for groups in (2, 1):  # the second recorder simulates a process that repeats the batch
            recorder = Recorder(place)
            for _ in range(groups):
                await play_group(chat, 1, task={"a": 1}, record=recorder)

        assert [record.row["group_idx"] for record in read_records(place)] == numbers


@pytest.mark.parametrize("task", [("tea", 3), [("a" * 300, None)], {1: "one"}, {3, 4}, b"\x00"])
async def test_a_task_that_is_a_python_literal_is_read_back(tmp_path: Path, task: Any) -> None:
    async def agent(client: AgentClient, task: Any) -> float:
        await ask(client)
        return 1.0

    record, _ = await play_recorded(tmp_path, agent, *THREE, task=task)
    assert record.task == task
    assert type(record.task) is type(task)
    record = RolloutRecord({**record.row, "task_literal": "(" * 1000})
    with pytest.raises(RecordError, match="cannot be restored"):
        _ = record.task


async def test_the_record_of_each_seat_has_the_episodes_seed(tmp_path: Path) -> None:
    seen: list[int] = []

    async def agent(client: AgentClient) -> float:
        seen.append(client.seed)
        for name in ("one", "other"):
            await ask(client.seat(name))
        return 1.0

    recorder = Recorder(tmp_path / "r.jsonl")
    await play_group(agent, 1, seats=("one", "other"), record=recorder)
    [first, second] = read_records(recorder.path)
    assert [first.row["seed"], second.row["seed"]] == seen * 2
    with pytest.raises(RecordError, match="belongs to the seat 'one'.*cannot be replayed"):
        await replay(first, agent)
    with pytest.raises(RecordError, match="belongs to the seat 'other'.*branched"):
        BranchEnv(second, 0, agent)


async def test_a_pickled_recorder_returns_its_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rollouts.jsonl")
    received = pickle.loads(pickle.dumps(recorder))
    await play_group(chat, 1, task={"a": 1}, record=received)

    assert not recorder.path.exists()
    for rows in received.rows:
        recorder.write(rows)
    assert [record.task for record in read_records(recorder.path)] == [{"a": 1}]
