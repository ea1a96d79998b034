"""``rows_of`` converts a trace from another program to record rows.

    ATIF            Harbor's Agent Trajectory Interchange Format, including subagent trajectories
    TrainingTrace   OpenEnv's model calls, each with its tokens and loss mask

A trace is either a whole file or a line of a file, and contains less information than a record.
``row["trace"]`` contains the ``format`` and whether the trace ``has_tokens`` and ``has_reward``.
Without tokens, the steps have no ``prompt`` and ``tokens``; without a reward, the row's reward is
0. This module does not load torch, because it is used in the viewer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from pydantic import ValidationError

from evert.bridge.errors import RecordError
from evert.bridge.records.checks import wrong_field
from evert.bridge.records.trace_models import (
    Choice,
    Content,
    Extra,
    Fields,
    Message,
    Metrics,
    Result,
    RolloutTrace,
    Row,
    Step,
    TrainingTrace,
    TrainingTurn,
    Trajectory,
)

LARGEST = 32 * 2**20
"""Maximum size of a file that contains a single trace, in bytes."""

RECENT = 64
"""To find the turn that a turn continues, only this many preceding turns are searched."""

UNTRAINED = {"parse_error_masked": 1.0, "untrained": 1.0}
"""Metrics of an untrained turn. Copied from ``bridge/env/pending.py``, which loads torch."""

TASK = {"task", "task_repr", "task_literal"}

F = TypeVar("F", bound=Fields)
Ids = tuple[list[int], list[int], list[float] | None]
"""Prompt token ids, completion token ids, and log-probabilities of the completion."""


def is_trace_file(path: Path) -> bool:
    """Return whether a file is a single trace. Other files have one record or trace per line."""
    return path.suffix == ".json"


def rows_of(value: Row) -> list[Row]:
    """Convert a trace to record rows. Any other value is returned unchanged, as a single row.

    Raises:
        RecordError: A field of the trace is invalid.
    """
    if "evert_schema" in value:
        return [value]
    if "turns" in value and "steps" not in value:
        return [_training_row(_checked(TrainingTrace, value))]
    if str(value.get("schema_version")).startswith("ATIF-"):
        return [*_trajectory_rows(_checked(Trajectory, value))]
    return [value]


def _checked(model: type[F], value: Row) -> F:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RecordError(
            f"A trace is not a valid {model.__name__}: {wrong_field(value, error)}. Fix or remove "
            "it."
        ) from None


# -- ATIF ----------------------------------------------------------------------------------------


def _trajectory_rows(trace: Trajectory) -> Iterator[Row]:
    steps, messages = list[Row](), list[Row]()
    for step in trace.steps:
        message = _message(step)
        if step.is_sampled:
            call = _call(messages, len(steps) - 1 if steps else None)
            call |= {"model": model} if (model := step.model_name or trace.agent.model_name) else {}
            if not steps and trace.agent.tool_definitions:
                call["tools"] = trace.agent.tool_definitions
            steps.append(_step(call, message, step.metrics))
            messages = []
        else:
            messages.append(message)
        messages += map(_observed, step.observation.results if step.observation else ())
    if steps and messages:  # messages after the last model call
        steps[-1]["logs"]["observation"] = "\n".join(
            _text(message["content"]) for message in messages
        )
    sampled = [_ids(step.metrics) for step in trace.steps if step.is_sampled]
    ids = [turn_ids for turn_ids in sampled if turn_ids is not None]
    rollout = (trace.extra or Extra()).evert
    if steps and rollout.total_reward is not None:
        steps[-1]["reward"] = rollout.total_reward - rollout.final_reward
    agent = trace.agent.name, trace.agent.version
    yield _row(trace.schema_version, steps, ids if len(ids) == len(sampled) else [], rollout, agent)
    for inside in trace.subagent_trajectories or ():
        yield from _trajectory_rows(inside)


def _message(step: Step) -> Row:
    if step.source != "agent":
        return {"role": step.source, "content": step.message}
    message: Row = {"role": "assistant", "content": step.message}
    if step.reasoning_content:
        message["reasoning_content"] = step.reasoning_content
    pairs = [
        ({"name": call.function_name, "arguments": json.dumps(call.arguments)}, call.tool_call_id)
        for call in step.tool_calls or ()
    ]
    calls = [{"type": "function", "id": number, "function": function} for function, number in pairs]
    return message | ({"tool_calls": calls} if calls else {})


def _observed(result: Result) -> Row:
    content = result.content or ""
    if result.source_call_id is None:  # an agent without tools gets results as user messages
        return {"role": "user", "content": content}
    return {"role": "tool", "tool_call_id": result.source_call_id, "content": content}


def _ids(metrics: Metrics | None) -> Ids | None:
    if metrics is None or metrics.prompt_token_ids is None or metrics.completion_token_ids is None:
        return None
    return metrics.prompt_token_ids, metrics.completion_token_ids, metrics.logprobs


# -- TrainingTrace -------------------------------------------------------------------------------


def _training_row(trace: TrainingTrace) -> Row:
    steps, conversations = list[Row](), list[list[str]]()
    for turn in trace.turns:
        choice = (turn.response.choices or [Choice()])[0]
        reply = _fields(choice.message) if choice.message else None
        step = _step(_requested(turn, reply, conversations), reply, None)
        step["stop_reason"] = "length" if choice.finish_reason == "length" else "stop"
        step["reward"] = turn.metadata.reward or 0.0
        if not all(turn.loss_mask[len(turn.prompt_token_ids) :]):  # records can only mask turns
            step["metrics"] = dict(UNTRAINED)
        steps.append(step)
    ids = [(t.prompt_token_ids, t.completion_token_ids, t.per_token_logps) for t in trace.turns]
    rollout = trace.turns[0].metadata.evert if trace.turns else RolloutTrace()
    rewards = [turn.metadata.reward for turn in trace.turns if turn.metadata.reward is not None]
    if rollout.total_reward is None and rewards:
        rollout = rollout.model_copy(update={"total_reward": sum(rewards)})
    return _row(TrainingTrace.__name__, steps, ids, rollout, ("unknown", "unknown"))


def _requested(turn: TrainingTurn, reply: Row | None, conversations: list[list[str]]) -> Row | None:
    """Return the call of a turn, or None if the trace does not contain its messages."""
    if turn.request.messages is None:
        conversations.append([])
        return None
    messages, tools = [*map(_fields, turn.request.messages)], turn.request.tools or []
    identities = [json.dumps(tools), *map(_identity, messages)]
    after = _continued(identities, conversations)
    begin = 0 if after is None else len(conversations[after]) - 1  # item 0 is the tools
    conversations.append([*identities, _identity(reply or {})])
    call = _call(messages[begin:], after)
    call |= {"model": turn.metadata.model} if turn.metadata.model else {}
    return call | ({"tools": tools} if tools and after is None else {})


def _fields(message: Message) -> Row:
    return message.model_dump(exclude_unset=True)


def _identity(message: Mapping[str, Any]) -> str:
    """Return the fields of a reply that do not change when a later request repeats the reply."""
    calls = [call.get("function") for call in message.get("tool_calls") or ()]
    return json.dumps([message.get("role"), message.get("content") or "", calls])


# -- rows ----------------------------------------------------------------------------------------


def _call(messages: list[Row], after: int | None) -> Row:
    return {"after": after, "messages": messages, "form": "fields"}


def _step(call: Row | None, reply: Row | None, metrics: Metrics | None) -> Row:
    return {
        "ob_len": metrics and metrics.prompt_tokens,
        "ac_len": metrics and metrics.completion_tokens,
        "reward": 0.0,
        "metrics": {},
        "logs": {},
        "stop_reason": "unknown",
        "text": _text((reply or {}).get("content")),
        **({} if call is None else {"call": call, "reply": reply}),
    }


def _text(content: Content | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or ())


def _row(
    trace: str, steps: list[Row], ids: Sequence[Ids], rollout: RolloutTrace, agent: tuple[str, str]
) -> Row:
    """Create the row of a rollout. ``ids`` contains the token ids of all steps, or is empty."""
    sequences = list[list[int]]()
    for step, (prompt, completion, logprobs) in zip(steps, ids, strict=False):
        after = _continued(prompt, sequences)
        begin = 0 if after is None else len(sequences[after])
        step["prompt"] = {"after": after, "tokens": prompt[begin:]}
        step |= {"tokens": completion, "logprobs": logprobs}
        step |= {"ob_len": len(prompt), "ac_len": len(completion)}
        sequences.append([*prompt, *completion])
    row = rollout.model_dump(exclude=TASK) | rollout.model_dump(include=TASK, exclude_unset=True)
    if rollout.group_idx is None:  # traces of other programs have no groups
        row["group_idx"] = crc32(json.dumps(steps).encode())
    has_reward = rollout.total_reward is not None
    return row | {
        "evert_schema": 1,
        "versions": {agent[0]: agent[1]},
        "agent": rollout.agent or agent[0],
        "total_reward": rollout.total_reward or 0.0,
        "steps": [
            {"step_idx": number, **step, "episode_done": number == len(steps) - 1}
            for number, step in enumerate(steps)
        ],
        "trace": {"format": trace, "has_tokens": bool(ids), "has_reward": has_reward},
    }


def _continued(sequence: list[Any], earlier: Sequence[list[Any]]) -> int | None:
    """Return the index of the longest recent sequence that is a prefix of ``sequence``."""
    recent = range(max(0, len(earlier) - RECENT), len(earlier))
    begins = [n for n in recent if earlier[n] and sequence[: len(earlier[n])] == earlier[n]]
    return max(begins, key=lambda number: len(earlier[number]), default=None)
