"""Export formats for recorded rollouts (``evert export``).

Each format is a function that converts rollouts to the rows of a file.

    sft     conversations for supervised fine-tuning: ``{"messages": [...], "tools": [...]}``. The
            Cookbook's chat_sl and TRL's SFTTrainer render them to the tokens that were sampled.
    pairs   the best and worst rollout of each group, up to the first reply that differs, for TRL's
            DPOTrainer: ``{"prompt": [...], "chosen": [...], "rejected": [...]}``
    atif    one trajectory per conversation, including the sampled tokens, in Harbor's Agent
            Trajectory Interchange Format
    training_trace, otel
            see ``trace_formats.py``
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from evert.bridge.chat.fields import json_object
from evert.bridge.env.pending import GIVEN_UP
from evert.bridge.errors import RecordError
from evert.bridge.records.chats import chat, form_of, text_of
from evert.bridge.records.record import RolloutRecord
from evert.trainers.rundir.trace_formats import otel, place, rollout, training_trace

Row = dict[str, Any]
Report = Callable[[str], None]
"""Called with the reason whenever a rollout or conversation is skipped."""

ATIF = "ATIF-v1.8"


def sft(records: Iterable[RolloutRecord], left_out: Report) -> Iterator[Row]:
    """Yield one row per conversation."""
    for record in records:
        for turn in record.last_turns():
            with _errors_to(left_out):
                yield chat(record, turn, form_of(record, turn))


def pairs(records: Iterable[RolloutRecord], left_out: Report) -> Iterator[Row]:
    """For each group whose rewards differ, yield a row made of its best and worst rollouts."""
    ends: dict[tuple[Any, ...], list[RolloutRecord]] = defaultdict(list)
    for record in records:
        with _errors_to(left_out):
            if record.last_turns():
                group = ends[_group(record)]
                group.append(record)
                group.sort(key=lambda member: -member.reward)
                del group[1:-1]
    for best, *lower in ends.values():
        for worst in lower:
            with _errors_to(left_out):
                if best.reward > worst.reward:
                    yield _pair(best, worst)


def _group(record: RolloutRecord) -> tuple[Any, ...]:
    row, about = record.row, record.row["about"]
    if "task_number" in about:  # recorded by an evaluation
        return row["split"], about["model"], about["task_number"], row["seat"]
    return row["iteration"], row["group_idx"], row["seat"]


@contextmanager
def _errors_to(left_out: Report) -> Iterator[None]:
    """Pass errors in the block to ``left_out``, because records from elsewhere may be damaged."""
    try:
        yield
    except RecordError as error:
        left_out(str(error))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        left_out(f"A record is damaged: {type(error).__name__}: {error}.")


def _pair(best: RolloutRecord, worst: RolloutRecord) -> Row:
    form = form_of(best, best.last_turns()[-1])
    rows = [chat(record, record.last_turns()[-1], form) for record in (best, worst)]
    chosen, rejected = (row.pop("messages") for row in rows)
    places = range(min(len(chosen), len(rejected)))
    first = next((place for place in places if chosen[place] != rejected[place]), None)
    if first is None or {chosen[first]["role"], rejected[first]["role"]} != {"assistant"}:
        raise RecordError(
            "The best and the worst conversation of a group first differ in a message from the "
            "agent, not from the model, so they are not a preference pair."
        )
    scores = {"chosen_reward": best.reward, "rejected_reward": worst.reward}
    replies = {"chosen": [chosen[first]], "rejected": [rejected[first]]}
    return {**rows[0], "prompt": chosen[:first], **replies, **scores}


def atif(records: Iterable[RolloutRecord], left_out: Report) -> Iterator[Row]:
    """Yield one trajectory per conversation, and one per call that the agent gave up on."""
    for record in records:
        given_up = [*filter(record.is_given_up, range(record.turns))]
        for turn in [*record.last_turns(), *given_up]:
            with _errors_to(left_out):
                yield _trajectory(record, turn)


def _trajectory(record: RolloutRecord, last: int) -> Row:
    row, steps = record.row, list[Row]()
    for turn in record.path(last):
        call = row["steps"][turn]["call"]
        messages = call["messages"] if "again" not in call else []
        for message in [*messages, *call.get("added", ())]:
            _add_step(message, steps)
        steps.append(_sampled_step(record, turn))
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    tools, session = record.tools(last), place(record)
    agent = {"name": row["agent"], "version": next(iter(row["versions"].values()), "unknown")}
    about = {"reward": record.reward, "seat": row["seat"], "about": row["about"]}
    return {
        "schema_version": ATIF,
        "session_id": session,
        "trajectory_id": f"{session}-{last}",
        "agent": agent | ({"tool_definitions": tools} if tools else {}),
        "steps": steps,
        "extra": about | {"evert": rollout(record)},
    }


def _add_step(message: Mapping[str, Any], steps: list[Row]) -> None:
    """Add a message as a new step. Tool results are added to the step that made the call."""
    role = message["role"]
    if role == "tool":
        called = message.get("tool_call_id")
        for step in reversed(steps):
            if any(call["tool_call_id"] == called for call in step.get("tool_calls", ())):
                results = step.setdefault("observation", {"results": []})["results"]
                results.append({"source_call_id": called, "content": text_of(message)})
                return
    sources = {"assistant": "agent", "system": "system", "developer": "system"}
    step = {"source": sources.get(role, "user"), "message": text_of(message)}
    if step["source"] == "agent":  # written by the agent, not sampled
        step |= {"llm_call_count": 0, **_calls(message)}
    steps.append(step)


def _sampled_step(record: RolloutRecord, turn: int) -> Row:
    message = record.messages(turn)[-1]
    thought = message.get("reasoning_content")
    metrics = record.row["steps"][turn]["metrics"]
    extra = {name: True for name in (GIVEN_UP, "format_error", "parse_error") if metrics.get(name)}
    return {
        "source": "agent",
        "message": text_of(message),
        "llm_call_count": 1,
        "metrics": _metrics(record, turn),
        **({"extra": extra} if extra else {}),
        **({"reasoning_content": thought} if thought else {}),
        **_calls(message),
    }


def _metrics(record: RolloutRecord, turn: int) -> Row:
    step = record.row["steps"][turn]
    metrics = {"prompt_tokens": step["ob_len"], "completion_tokens": step["ac_len"]}
    if not record.has_tokens:
        return {key: value for key, value in metrics.items() if value is not None}
    prompt, action = record.prompts[turn], record.action(turn)
    prompt_ids = (
        {"prompt_token_ids": prompt} if all(isinstance(token, int) for token in prompt) else {}
    )
    ids = {"completion_token_ids": action.tokens, "logprobs": action.maybe_logprobs}
    return {**metrics, **prompt_ids, **ids}


def _calls(message: Mapping[str, Any]) -> Row:
    calls = [
        {
            "tool_call_id": call["id"],
            "function_name": call["function"]["name"],
            "arguments": _arguments(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or ()
    ]
    return {"tool_calls": calls} if calls else {}


def _arguments(text: str) -> Row:
    arguments = json_object(text)
    return {"text": text} if arguments is None else arguments


Format = Callable[[Iterable[RolloutRecord], Report], Iterator[Row]]


def _one_each(trace_of: Callable[[RolloutRecord], Row]) -> Format:
    def rows(records: Iterable[RolloutRecord], left_out: Report) -> Iterator[Row]:
        for record in records:
            with _errors_to(left_out):
                yield trace_of(record)

    return rows


FORMATS: Mapping[str, Format] = {
    "sft": sft,
    "pairs": pairs,
    "atif": atif,
    "training_trace": _one_each(training_trace),
    "otel": _one_each(otel),
}
