"""Export formats that represent a rollout as a trace of the whole episode.

training_trace   OpenEnv's ``TrainingTrace``: every call with its tokens, loss mask and
                 log-probabilities
otel             an OTLP request in JSON with spans that follow OpenTelemetry's GenAI conventions,
                 for Langfuse, Phoenix and the collector's file receiver
"""

import json
import math
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from evert.bridge.errors import RecordError
from evert.bridge.records.chats import text_of
from evert.bridge.records.record import RolloutRecord
from evert.bridge.records.sequences import is_trained
from evert.bridge.records.trace_models import RolloutTrace
from evert.bridge.redaction import redacted_tree

Row = dict[str, Any]

INTERNAL, CLIENT = 1, 3
"""OTLP span kinds."""


def place(record: RolloutRecord) -> str:
    """Return a rollout's name, which is unique within its run."""
    return "-".join(str(record.row[key]) for key in ("split", "iteration", "group_idx", "traj_idx"))


def rollout(record: RolloutRecord) -> Row:
    """Return the fields of ``RolloutTrace``. evert needs them to read its own traces back."""
    return {key: record.row[key] for key in RolloutTrace.model_fields if key in record.row}


# -- training_trace ------------------------------------------------------------------------------


def training_trace(record: RolloutRecord) -> Row:
    """Return the rollout as a TrainingTrace. A call's ``parent_id`` names the call it continues.

    Raises:
        RecordError: There are no calls, or a TrainingTrace cannot represent one of them.
    """
    _check_called(record)
    turns = [_training_turn(record, turn) for turn in range(record.turns)]
    turns[0]["metadata"]["evert"] = rollout(record)
    return {"schema_version": 1, "turns": turns}


def _check_called(record: RolloutRecord) -> None:
    if not record.turns:
        raise RecordError("An episode has no model calls.")


def _training_turn(record: RolloutRecord, turn: int) -> Row:
    step, prompt, action = record.row["steps"][turn], record.prompts[turn], record.action(turn)
    logprobs = action.maybe_logprobs
    if not all(isinstance(token, int) for token in prompt):
        raise RecordError(
            f"The prompt of turn {turn} contains images, but a TrainingTrace only has token ids."
        )
    if logprobs is None or not all(map(math.isfinite, logprobs)):
        raise RecordError(f"Turn {turn} has no log-probabilities, which a TrainingTrace requires.")
    call, parent = step.get("call", {}), step["prompt"]["after"]
    sampling = {key: call[key] for key in ("max_tokens", "stop") if key in call}
    return {
        "node_id": f"turn-{turn}",
        "prompt_token_ids": prompt,
        "completion_token_ids": [*action.tokens],
        "per_token_logps": [min(0.0, logprob) for logprob in logprobs],
        "loss_mask": [0] * len(prompt) + [int(is_trained(step["metrics"]))] * len(action.tokens),
        "request": _request(record, turn) if call else {},
        "response": {"choices": [{"message": _reply(record, turn), "finish_reason": _end(step)}]},
        "metadata": {
            "index": turn,
            "parent_id": None if parent is None else f"turn-{parent}",
            "model": call.get("model"),
            "n_tools": len(record.tools(turn)) if call else 0,
            "harness_session_id": place(record),
            "sampling_params": sampling,
            "reward": step["reward"],
        },
    }


def _request(record: RolloutRecord, turn: int) -> Row:
    return {"messages": record.asked(turn), "tools": record.tools(turn) or None}


def _reply(record: RolloutRecord, turn: int) -> Row:
    step = record.row["steps"][turn]
    return step.get("reply") or {"role": "assistant", "content": step["text"]}


def _end(step: Row) -> str:
    calls = (step.get("reply") or {}).get("tool_calls")
    return "tool_calls" if calls else str(step["stop_reason"])


# -- otel ----------------------------------------------------------------------------------------


def otel(record: RolloutRecord) -> Row:
    """Return the rollout as a trace, with a span for the agent and child spans for its calls.

    Records have no timestamps, so the spans start at the time of the export, one millisecond apart.
    The same record always gets the same ids.

    Raises:
        RecordError: There are no calls, or their messages were not recorded.
    """
    _check_called(record)
    row, now = record.row, time.time_ns()
    about = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": row["agent"],
        "gen_ai.conversation.id": place(record),
        "evert.reward": record.reward,
        "evert.seat": row["seat"],
        "evert.task": json.dumps(redacted_tree(row.get("task", row.get("task_repr")))),
    }
    calls = [_chat(record, turn) for turn in range(record.turns)]
    spans = [_span(f"invoke_agent {row['agent']}", INTERNAL, about)]
    spans += [_span(f"chat {of.get(MODEL) or ''}".rstrip(), CLIENT, of) for of in calls]
    trace = _digest(json.dumps(row), 16)
    for number, span in enumerate(spans):
        begin, end = (number, number + 1) if number else (0, len(spans))
        span |= {"traceId": trace, "spanId": _digest(f"{trace} {number}", 8)}
        span |= {"parentSpanId": spans[0]["spanId"]} if number else {}
        span["startTimeUnixNano"] = str(now + begin * 10**6)
        span["endTimeUnixNano"] = str(now + end * 10**6)
    scope = {"name": "evert", "version": row["versions"].get("evert", "")}
    resource = {"attributes": _attributes({"service.name": "evert"})}
    return {
        "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]
    }


MODEL = "gen_ai.request.model"


def _chat(record: RolloutRecord, turn: int) -> Row:
    step, call, tools = record.row["steps"][turn], record.call(turn), record.tools(turn)
    reply = _reply(record, turn)
    output = {**_message(reply), "finish_reason": _end(step).replace("tool_calls", "tool_call")}
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "evert",
        MODEL: call.get("model"),
        "gen_ai.request.max_tokens": call.get("max_tokens"),
        "gen_ai.request.stop_sequences": call.get("stop"),
        "gen_ai.response.finish_reasons": [output["finish_reason"]],
        "gen_ai.usage.input_tokens": step["ob_len"],
        "gen_ai.usage.output_tokens": step["ac_len"],
        "gen_ai.conversation.id": place(record),
        "gen_ai.input.messages": _json([*map(_message, record.asked(turn))]),
        "gen_ai.output.messages": _json([output]),
        "gen_ai.tool.definitions": _json(
            [{"type": "function", **tool["function"]} for tool in tools] or None
        ),
        "evert.reward": step["reward"],
    }


def _message(message: Mapping[str, Any]) -> Row:
    """Convert a message to the JSON schema of the GenAI conventions."""
    text, thought = text_of(message), message.get("reasoning_content")
    if message["role"] == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}
        return {"role": "tool", "parts": [answer]}
    parts: list[Row] = [{"type": "reasoning", "content": thought}] if thought else []
    parts += [{"type": "text", "content": text}] if text else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = _parsed(function["arguments"])
        part = {"type": "tool_call", "id": call.get("id"), "name": function["name"]}
        parts.append({**part, "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(redacted_tree(value))


def _span(name: str, kind: int, attributes: Mapping[str, Any]) -> Row:
    return {"name": name, "kind": kind, "attributes": _attributes(attributes)}


def _attributes(values: Mapping[str, Any]) -> list[Row]:
    return [
        {"key": key, "value": _value(value)} for key, value in values.items() if value is not None
    ]


def _value(value: Any) -> Row:
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(_value, value)]}}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()
