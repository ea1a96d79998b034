"""Rollouts written as traces, and traces from other programs read as records."""

import asyncio
import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.faults.test_records import damaged, no_hang
from tests.kit import Patch, ask, call, policy_of, system, tool, user
from tests.trainers.commands.test_records import CALL, HERE, record_groups
from tests.trainers.kit import Cli
from tests.trainers.reporting.test_view import opened
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import ChatAgentGroupBuilder, Recorder, RolloutRecord, read_records
from evert.bridge.env.pending import UNTRAINED
from evert.bridge.errors import RecordError
from evert.bridge.records import traces
from evert.trainers.cli import main
from evert.trainers.rundir.export_formats import FORMATS
from evert.trainers.system.files import read_jsonl
from evert.trainers.viewing.lines import entries, page_row

FOREIGN: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {
        "name": "other", "version": "2", "model_name": "gpt-9",
        "tool_definitions": [tool("add")],
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Add."},
        {"step_id": 2, "source": "user", "message": "1 + 1?", "timestamp": "2026-01-01T00:00:00Z"},
        {"step_id": 3, "source": "agent", "message": "", "reasoning_content": "Easy.",
         "tool_calls": [{"tool_call_id": "1", "function_name": "add", "arguments": {"a": 1}}],
         "observation": {"results": [{"source_call_id": "1", "content": "2"}]},
         "metrics": {"prompt_tokens": 7, "completion_tokens": 3}},
        {"step_id": 4, "source": "agent", "message": "Two.", "model_name": "gpt-9-mini",
         "observation": {"results": [{"content": "Right."}]}},
    ],
    "subagent_trajectories": [
        {"schema_version": "ATIF-v1.7", "trajectory_id": "t",
         "agent": {"name": "helper", "version": "1"},
         "steps": [{"step_id": 1, "source": "user", "message": "Help."},
                   {"step_id": 2, "source": "agent", "message": "Done."}]},
    ],
}  # fmt: skip
"""A trajectory from another program, without token ids or a reward."""


async def two_conversations(client: Any, task: str) -> float:
    """Make two calls in one conversation and one in another."""
    messages: list[Any] = [system("Add."), user(task)]
    completion = await call(client, *messages, tools=[tool("add")], max_tokens=64)
    reply = completion.choices[0].message
    result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "2"}
    await call(client, *messages, reply, result, tools=[tool("add")])
    client.reward(0.25)
    await ask(client, "Who?")
    return 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record two groups of two rollouts. Tests share the folder, so they must not change it."""
    recorder = Recorder(tmp_path_factory.mktemp("run") / "rollouts.jsonl")
    policy = policy_of(lambda prompt: CALL if prompt.count("add") < 5 and "?" in prompt else "Two.")
    for task in ("1 + 1?", "2 + 2?"):
        group = ChatAgentGroupBuilder(two_conversations, task, 2, record=recorder)
        asyncio.run(do_group_rollout(group, policy))
    return recorder.path.parent


@pytest.fixture(scope="module")
def records(run: Path) -> list[RolloutRecord]:
    return [*read_records(run)]


def export(run: Path, form: str, out: Path) -> list[Any]:
    assert main(["export", f"run={run}", f"format={form}", f"out={out}"]) == 0
    return read_jsonl(out)


def test_a_training_trace_is_read_back_as_the_original_record(
    run: Path, records: list[RolloutRecord], tmp_path: Path
) -> None:
    rows = export(run, "training_trace", tmp_path / "traces" / "out.jsonl")
    again = [*read_records(tmp_path / "traces" / "out.jsonl")]
    assert len(rows) == len(again) == len(records) == 4
    for row, back, record in zip(rows, again, records, strict=True):
        parents = [turn["metadata"]["parent_id"] for turn in row["turns"]]
        assert parents == [None, "turn-0", None]
        assert_same_tokens(back, record)
        assert (back.reward, back.task) == (record.reward, record.task)
        for turn in range(record.turns):
            assert back.messages(turn) == record.messages(turn)
            assert back.tools(turn) == record.tools(turn)
        for key in ("agent", "seed", "renderer", "tokenizer", "iteration", "group_idx"):
            assert back.row[key] == record.row[key]
        assert field("reward", back) == field("reward", record)


def field(name: str, record: RolloutRecord) -> list[Any]:
    return [step[name] for step in record.row["steps"]]


def assert_same_tokens(first: RolloutRecord, second: RolloutRecord) -> None:
    assert first.prompts == second.prompts
    assert field("prompt", first) == field("prompt", second)
    for turn in range(first.turns):
        assert first.action(turn) == second.action(turn)


async def test_trajectories_are_read_back_with_tokens_and_calls(tmp_path: Path, cli: Cli) -> None:
    records, out = [*read_records(await record_groups(tmp_path))], tmp_path / "atif"
    cli(f"export run={tmp_path} format=atif out={out}")
    for back, record in zip(read_records(out), records, strict=True):
        assert back.prompts == record.prompts
        assert [*back.action(1).tokens] == [*record.action(1).tokens]
        assert (back.reward, back.task, back.text) == (record.reward, record.task, record.text)
        assert roles(back.messages()) == roles(record.messages())
        assert back.tools(1) == record.tools(1)
        assert json.loads(back.messages()[2]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


def spans_of(row: Any) -> list[Span]:
    request = json_format.ParseDict(row, ExportTraceServiceRequest())
    [resource] = request.resource_spans
    [scope] = resource.scope_spans
    return [*scope.spans]


def values(span: Span) -> dict[str, Any]:
    to_dict = json_format.MessageToDict
    return {pair.key: to_dict(pair.value).popitem()[1] for pair in span.attributes}


def roles(messages: list[Any]) -> list[str]:
    return [message["role"] for message in messages]


def test_opentelemetry_reads_the_spans_with_the_records_tokens(
    run: Path, records: list[RolloutRecord], tmp_path: Path
) -> None:
    rows, again = (export(run, "otel", tmp_path / name) for name in ("a.jsonl", "again.jsonl"))
    for row, later, record in zip(rows, again, records, strict=True):
        root, *calls = spans_of(row)
        assert [s.span_id for s in spans_of(later)] == [s.span_id for s in (root, *calls)]
        assert len(calls) == record.turns
        assert {call.parent_span_id for call in calls} == {root.span_id}
        assert {call.trace_id for call in calls} == {root.trace_id}
        # The ids in the file have 32 hexadecimal digits, which protobuf decodes as base64.
        assert len(base64.b64encode(root.trace_id)) == 32
        assert values(root)["gen_ai.operation.name"] == "invoke_agent"
        assert values(root)["evert.reward"] == record.reward
        for turn, span in enumerate(calls):
            attributes = values(span)
            assert (span.name, span.kind) == ("chat policy", Span.SPAN_KIND_CLIENT)
            assert attributes["gen_ai.request.model"] == "policy"
            assert int(attributes["gen_ai.usage.input_tokens"]) == len(record.prompts[turn])
            assert int(attributes["gen_ai.usage.output_tokens"]) == len(record.action(turn).tokens)
            messages = json.loads(attributes["gen_ai.input.messages"])
            assert roles(messages) == roles(record.asked(turn))
            assert root.start_time_unix_nano < span.start_time_unix_nano < root.end_time_unix_nano
        [message] = json.loads(values(calls[0])["gen_ai.output.messages"])
        [part] = message["parts"]
        assert (part["type"], part["name"], part["arguments"]) == ("tool_call", "add", {"a": 1})
        answer = json.loads(values(calls[1])["gen_ai.input.messages"])[-1]["parts"][0]
        assert (answer["type"], answer["response"]) == ("tool_call_response", "2")


def test_no_known_secret_is_exported(run: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    text = (run / "rollouts.jsonl").read_text()
    (tmp_path / "rollouts.jsonl").write_text(text.replace("2 + 2?", "s3cretvalue42 2?").replace(
        '\\"a\\": 1', '\\"a\\": 1, \\"password\\": \\"correcthorsebattery\\"'))  # fmt: skip
    monkeypatch.setenv("MY_API_KEY", "s3cretvalue42")
    for form in ("sft", "training_trace", "otel"):
        export(tmp_path, form, tmp_path / "out.jsonl")
        text = (tmp_path / "out.jsonl").read_text()
        assert "[MY_API_KEY]" in text
        assert "s3cretvalue42" not in text
    assert "correcthorsebattery" not in text  # recognised by the variable's name


@pytest.mark.parametrize("form", ["training_trace", "otel", "atif"])
def test_rollouts_are_exported_one_at_a_time(form: str, records: list[RolloutRecord]) -> None:
    rest = iter(records)
    next(FORMATS[form](rest, print))
    assert len([*rest]) == len(records) - 1


@pytest.mark.parametrize("mask", [[0, 0], [0, 1]])
def test_a_masked_turn_stays_masked_in_a_trace(mask: list[int]) -> None:
    assert traces.UNTRAINED == UNTRAINED
    turn = {"node_id": "a", "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4],
        "per_token_logps": [-1.0, -1.0], "loss_mask": [0, 0, *mask]}  # fmt: skip
    [row] = traces.rows_of({"turns": [turn]})
    record = RolloutRecord(row)
    assert record.row["steps"][0]["metrics"] == UNTRAINED
    [again] = FORMATS["training_trace"]([record], print)
    assert again["turns"][0]["loss_mask"] == [0, 0, 0, 0]
    assert record.row["trace"]["has_reward"] is False
    with pytest.raises(RecordError, match="they were not recorded"):
        record.messages()


async def test_a_trace_without_tokens_is_marked_and_can_be_viewed(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(FOREIGN, indent=2))
    record, helper = read_records(file)
    assert record.row["trace"] == {"format": "ATIF-v1.6", "has_tokens": False, "has_reward": False}
    assert (record.turns, record.text, record.reward, helper.text) == (2, "Two.", 0.0, "Done.")
    assert roles(record.messages()) == ["system", "user", "assistant", "tool", "assistant"]
    for read in (lambda: record.prompts, lambda: record.action(0), record.trajectory):
        with pytest.raises(RecordError, match="ATIF-v1.6. without token ids"):
            read()
    async with opened(file, database=tmp_path / "index") as page:
        [listed] = (await page.get("runs"))["runs"]
        matches = await page.get("search", words="Right Two")
        step = await page.get("step", run=listed["id"], split="train", model="", step=0)
        first = await page.get("episode", id=step["episodes"][0]["id"])
        texts = [episode["said"] for episode in step["episodes"]]
    assert (listed["episodes"], listed["broken"], sorted(texts)) == (2, 0, ["Done.", "Two."])
    assert not matches["episodes"]
    assert first["pieces"] is None
    for step in first["row"]["steps"]:
        assert not {"prompt", "tokens", "logprobs"} & step.keys()
        assert step["call"]["messages"]
    cli(f"rescore run={file} reward={HERE}:length")
    shown = cli(f"rescore run={file} reward={HERE}:length replace=True", status=1)
    assert "replace=true only works with records written by evert" in shown


def test_a_trace_without_tokens_is_exported_as_text(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(FOREIGN))
    row, _ = export(file, "sft", tmp_path / "sft.jsonl")
    assert row["tools"] == [tool("add")]
    assert row["messages"][2]["reasoning_content"] == "Easy."
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert row["messages"][3] == {
        "role": "tool", "content": "2", "tool_call_id": "1", "name": "add",
    }  # fmt: skip
    request, _ = export(file, "otel", tmp_path / "otel.jsonl")
    attributes = [values(span) for span in spans_of(request)[1:]]
    assert [span.get("gen_ai.usage.output_tokens") for span in attributes] == ["3", None]
    models = [span["gen_ai.request.model"] for span in attributes]
    assert models == ["gpt-9", "gpt-9-mini"]
    out = tmp_path / "atif"
    cli(f"export run={file} format=atif out={out}")
    [first, _] = [json.loads(file.read_text()) for file in sorted(out.iterdir())]
    assert first["agent"] == {k: v for k, v in FOREIGN["agent"].items() if k != "model_name"}
    assert first["steps"][2]["metrics"] == {"prompt_tokens": 7, "completion_tokens": 3}
    shown = cli(f"export run={file} format=training_trace out={out}.jsonl", status=1)
    assert "Could not make a trace from any of 2 rollouts. The record was read" in shown


def turn_with(**fields: Any) -> dict[str, Any]:
    turn = {"prompt_token_ids": [1], "completion_token_ids": [2], "per_token_logps": [-1.0],
        "loss_mask": [0, 1]}  # fmt: skip
    return {"turns": [{**turn, **fields}]}


WRONG: list[tuple[Any, str]] = [
    ({**FOREIGN, "steps": 3}, "trace is not a valid Trajectory: steps is 3; Input should be a"),
    ({**FOREIGN, "agent": {}}, "agent.name is missing"),
    ({**FOREIGN, "steps": [{"source": "agent", "message": 1}]}, "steps[0].message is 1; "),
    ({**FOREIGN, "subagent_trajectories": [[]]}, "subagent_trajectories[0] is []; "),
    (turn_with(prompt_token_ids=[-1]), "turns[0].prompt_token_ids[0] is -1; "),
    (turn_with(prompt_token_ids=["1"]), "turns[0].prompt_token_ids[0] is '1'; "),
    (turn_with(loss_mask=[1]), "loss_mask has 1 values; expected 2"),
    (turn_with(loss_mask=[0, 2]), "turns[0].loss_mask[1] is 2; "),
    (turn_with(per_token_logps=[]), "per_token_logps has 0 values; expected 1"),
    (turn_with(per_token_logps=[float("nan")]), "turns[0].per_token_logps[0] is nan; "),
    (turn_with(request={"messages": [{}]}), "turns[0].request.messages[0].role is missing"),
    ({"schema_version": 2, "turns": []}, "schema_version is 2; Input should be 1"),
]


@pytest.mark.parametrize(("trace", "error"), WRONG, ids=[error for _, error in WRONG])
def test_an_error_names_the_invalid_field_of_a_trace(
    trace: Any, error: str, tmp_path: Path, cli: Cli
) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(f"{json.dumps(turn_with())}\n{json.dumps(trace)}\n")
    printed = " ".join(cli(f"export run={file} out={tmp_path}/out.jsonl", status=1).split())
    assert f"{file}, line 2: " in printed
    assert error in printed
    assert not entries_of(json.dumps(trace).encode())


def entries_of(line: bytes) -> list[Any]:
    with suppress(ValueError):
        return [*entries(line)]
    return []


def test_a_truncated_or_oversized_trace_file_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(FOREIGN)[:-9])
    with pytest.raises(RecordError, match="trajectory.json: The file is empty or truncated"):
        [*read_records(file)]
    monkeypatch.setattr("evert.bridge.records.record.LARGEST", 100)
    with pytest.raises(RecordError, match="is larger than 100 bytes; expected a trace"):
        [*read_records(file)]


def test_a_trace_file_is_read_again_after_it_was_rewritten(tmp_path: Path) -> None:
    async def look() -> list[int]:
        counts = []
        async with opened(file, database=tmp_path / "index") as page:
            for steps in (3, 4):
                file.write_text(json.dumps({**FOREIGN, "steps": FOREIGN["steps"][:steps]}))
                page.viewer.index.look(asyncio.Event())  # type: ignore[arg-type]
                rows = page.viewer.index.ask("SELECT turns FROM episodes ORDER BY id")
                counts.append(rows[0]["turns"])
        return counts

    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(FOREIGN)[:50])
    assert asyncio.run(look()) == [1, 2]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_trace_is_reported_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    messages = [user("?"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "function": {"name": "add", "arguments": "{}"}}]}]  # fmt: skip
    training = turn_with(
        request={"messages": messages, "tools": [tool("add")]},
        metadata={"reward": 1.0, "model": "m"},
        response={"choices": [{"message": messages[1], "finish_reason": "stop"}]},
    )  # fmt: skip
    whole = json.dumps(data.draw(st.sampled_from([FOREIGN, training]))).encode()
    path = tmp_path_factory.mktemp("damaged") / "traces.jsonl"
    line = damaged(data, whole)
    path.write_bytes(line + b"\n")
    with no_hang(), suppress(RecordError):
        for record in read_records(path):
            for turn in range(record.turns):
                assert isinstance(record.text, str)
                with suppress(RecordError):
                    record.messages(turn)
            for rows in FORMATS.values():
                assert json.dumps([*rows([record, record], lambda why: None)])
    for entry in entries_of(line):
        assert page_row(line, entry.part)["steps"] is not None
