"""Demonstrations: conversations to learn from, in a file or from a function.

These formats are converted to a ``Demonstration``. Only the last one needs torch.

    {"messages": [...], "tools": [...]}     OpenAI fine-tuning format; weight: 0 excludes a reply
    {"conversations": [...]}                ShareGPT; messages with "from" and "value"
    {"prompt": ..., "completion": ...}      TRL; strings or messages; trains only on the completion
    a folder of recorded rollouts           the policy's replies in rollouts with enough reward
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from evert.bridge.errors import repr_of
from evert.bridge.records.row_files import holds_records, read_rows
from evert.trainers.config.fields import DemonstrationsError

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord

SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
}
"""Roles by ShareGPT speaker."""

FIELDS = frozenset(
    {"role", "content", "reasoning_content", "reasoning", "refusal", "name", "weight"}
    | {"tool_calls", "tool_call_id", "function_call"}
)
"""Allowed message fields."""


class Demonstration(NamedTuple):
    """A conversation in OpenAI's format.

    Attributes:
        place: Where the conversation comes from, as in error messages ("FILE, line 3").
        messages: The messages, without their weights. Every tool call has an id.
        learned: For each message, whether to train on it.
        tools: The tools offered to the model, or [].
        unread: Names of the row's fields that we ignore.
    """

    place: str
    messages: list[dict[str, Any]]
    learned: list[bool]
    tools: list[Any]
    unread: list[str]


def read_demonstrations(path: str, min_reward: float | None) -> list[Demonstration]:
    """Read a file or folder of demonstrations.

    Args:
        path: See ``evert.bridge.records.row_files``.
        min_reward: Skip recorded rollouts whose total reward is lower than this.

    Raises:
        DemonstrationsError: A row is invalid, or no row contains a reply to learn from.
        RecordError: The folder contains neither a dataset nor records.
    """
    if holds_records(path, DemonstrationsError):
        demonstrations = [*_from_records(path, min_reward)]
    else:
        demonstrations = [demonstration(place, row) for place, row in _rows(path)]
    if not any(any(row.learned) for row in demonstrations):
        raise DemonstrationsError(
            f"{path} has {len(demonstrations)} rows, but none of them contains a reply to learn "
            "from. Expected assistant messages without weight: 0."
        )
    return demonstrations


def describe(demonstrations: Sequence[Demonstration]) -> str:
    """Summarize how many demonstrations there are, and what may be wrong with them."""
    texts = Counter(json.dumps(row[1:4], default=repr) for row in demonstrations)
    ends = [row for row in demonstrations if any(row.learned) and not row.learned[-1]]
    unread = Counter(name for row in demonstrations for name in row.unread)
    counts = {
        "skipped (nothing to learn)": sum(not any(row.learned) for row in demonstrations),
        "repeated": len(demonstrations) - len(texts),
        "with messages after the last reply to learn from": len(ends),
        "that call a tool missing from their list of tools": sum(
            map(_calls_others, demonstrations)
        ),
        **{f"with the field {name!r}, which is ignored": count for name, count in unread.items()},
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return "; ".join([f"{len(demonstrations):,} conversations", *parts])


def _calls_others(conversation: Demonstration) -> bool:
    offered = {tool["function"]["name"] for tool in conversation.tools}
    calls = (call for message in conversation.messages for call in message.get("tool_calls") or ())
    return any(call["function"].get("name") not in offered for call in calls)


def demonstration(place: str, row: Any) -> Demonstration:
    """Convert a row to a demonstration.

    Raises:
        DemonstrationsError: A field is invalid. The message includes the field and ``place``.
    """
    if not isinstance(row, Mapping):
        _refuse(place, "the row", row, "an object with messages")
    fields = {key: value for key, value in row.items() if value is not None}
    prompted, form_fields = 0, {"messages"}
    if "messages" in fields:
        messages = fields["messages"]
    elif "conversations" in fields:
        form_fields = {"conversations", "system"}
        messages = [*_texts(place, "system", fields), *_sharegpt(place, fields["conversations"])]
    elif "prompt" in fields and "completion" in fields:
        form_fields = {"prompt", "completion"}
        prompt = _texts(place, "prompt", fields)
        prompted, messages = len(prompt), [*prompt, *_texts(place, "completion", fields)]
    else:
        expected = "messages, conversations, or prompt and completion"
        raise DemonstrationsError(f"{place} has the fields {', '.join(row)}; expected {expected}.")
    if not isinstance(messages, list | tuple) or not messages:
        _refuse(place, "messages", messages, "a list of messages")
    plain_messages, learned, waiting = list[dict[str, Any]](), list[bool](), list[str]()
    for at, message in enumerate(messages):
        plain, weight = _message(place, f"messages[{at}]", message, waiting)
        plain_messages.append(plain)
        learned.append(at >= prompted and weight != 0 and plain.get("role") == "assistant")
    unread = fields.keys() - form_fields - {"tools", "functions", "parallel_tool_calls"}
    return Demonstration(place, plain_messages, learned, _tools(place, fields), sorted(unread))


def _refuse(place: str, field: str, value: object, expected: str) -> NoReturn:
    raise DemonstrationsError(f"{place}: {field} is {repr_of(value)}; expected {expected}.")


def _message(
    place: str, at: str, message: Any, waiting: list[str]
) -> tuple[dict[str, Any], float | None]:
    """Separate a message from its weight. ``waiting``: ids of the calls that lack a result."""
    if not isinstance(message, Mapping):
        _refuse(place, at, message, "an object with role and content")
    plain = {key: value for key, value in message.items() if value is not None}
    for key in plain.keys() - FIELDS:
        _refuse(place, f"{at}.{key}", plain[key], f"one of {', '.join(sorted(FIELDS))}")
    weight, role = plain.pop("weight", None), plain.get("role")
    if weight not in (None, 0, 1) or (weight and role != "assistant"):
        _refuse(place, f"{at}.weight", weight, "0 or 1, and 1 only for the assistant")
    if old_call := plain.pop("function_call", None):  # deprecated API format
        plain["tool_calls"] = [{"function": _json(place, f"{at}.function_call", old_call)}]
    if role == "assistant":
        if calls := plain.get("tool_calls"):
            plain["tool_calls"] = _calls(place, f"{at}.tool_calls", calls, waiting)
        elif not {"content", "refusal"} & plain.keys():
            _refuse(place, f"{at}.content", None, "a string, or tool_calls")
    elif role in ("tool", "function"):
        call_id = plain.setdefault("tool_call_id", waiting[0] if waiting else None)
        if call_id not in waiting:
            ids = ", ".join(waiting) or "no result here, because all calls have a result"
            _refuse(place, f"{at}.tool_call_id", call_id, ids)
        waiting.remove(call_id)
        plain["role"] = "tool"
    return plain, weight


def _calls(place: str, at: str, calls: Any, waiting: list[str]) -> list[Any]:
    """Add missing ids to the calls, and convert their arguments to strings."""
    if not isinstance(calls, list | tuple):
        _refuse(place, at, calls, "a list of calls")
    calls_with_ids = list[Any]()
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            expected = "an object with function: {'name': ..., 'arguments': ...}"
            _refuse(place, f"{at}[{number}]", call, expected)
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments)
        call_id = str(call.get("id") or f"call_{len(waiting)}")
        waiting.append(call_id)
        calls_with_ids.append(
            {"id": call_id, "type": "function", "function": {**function, "arguments": arguments}}
        )
    return calls_with_ids


def _tools(place: str, fields: Mapping[str, Any]) -> list[Any]:
    name = "functions" if fields.get("functions") else "tools"  # deprecated API format
    tools = _json(place, name, fields.get(name) or [])
    if not isinstance(tools, list):
        _refuse(place, name, tools, "a list")
    is_old = name == "functions"
    return [{"type": "function", "function": tool} if is_old else tool for tool in tools]


def _json(place: str, field: str, value: Any) -> Any:
    """Parse a value if it is a JSON string."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        _refuse(place, field, value, "JSON")


def _texts(place: str, name: str, fields: Mapping[str, Any]) -> list[Any]:
    """Return the messages in a field that contains a string or a list of messages."""
    value = fields.get(name, [])
    if isinstance(value, str):
        role = {"system": "system", "prompt": "user", "completion": "assistant"}[name]
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        _refuse(place, name, value, "a string or a list of messages")
    return value


def _sharegpt(place: str, messages: Any) -> Iterator[Any]:
    for at, message in enumerate(messages if isinstance(messages, list) else [messages]):
        where = f"conversations[{at}]"
        speaker = str(message.get("from")) if isinstance(message, Mapping) else ""
        if speaker not in SHAREGPT:
            expected = f"an object with value, and from: {', '.join(SHAREGPT)}"
            _refuse(place, where, message, expected)
        extras = {key: value for key, value in message.items() if key not in ("from", "value")}
        field = "function_call" if speaker == "function_call" else "content"
        yield {"role": SHAREGPT[speaker], field: message.get("value"), **extras}


def _rows(path: str) -> Iterator[tuple[str, Any]]:
    is_table = not path.endswith((".jsonl", ".csv"))
    for place, row in read_rows(path, DemonstrationsError):
        yield place, _without_nulls(row) if is_table else row


def _without_nulls(value: Any) -> Any:
    """Remove nulls at any depth. In a table file, the fields that a row lacks are null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value


def _from_records(path: str, min_reward: float | None) -> Iterator[Demonstration]:
    """Yield the conversations of all rollouts with a reward of at least ``min_reward``.

    If a conversation is invalid, yield an empty demonstration in its place.
    """
    from evert.bridge.records.record import read_records

    least, best = -math.inf if min_reward is None else min_reward, -math.inf
    for number, record in enumerate(read_records(path), 1):
        best = max(best, record.reward)
        for turn in record.last_turns() if record.reward >= least else ():
            place = f"{path}, rollout {number}"
            try:
                yield demonstration(place, _conversation(record, turn))
            except DemonstrationsError:
                yield Demonstration(place, [], [], [], [])
    if best < least:
        raise DemonstrationsError(
            f"{path}: no rollout reaches warm_up_min_reward={least:g} (the highest reward is "
            f"{best:g}). Lower warm_up_min_reward."
        )


def _conversation(record: "RolloutRecord", turn: int) -> dict[str, Any]:
    """Return the conversation up to a turn's reply.

    Assistant messages that are not the policy's replies get weight 0.
    """
    steps = [step for step in record.path(turn) if record.row["steps"][step].get("reply")]
    replies = {len(record.asked(step)) for step in steps}
    messages = list[dict[str, Any]]()
    for at, message in enumerate(record.messages(turn)):
        weight = {"weight": 0} if message["role"] == "assistant" and at not in replies else {}
        messages.append({key: message[key] for key in message.keys() & FIELDS} | weight)
    return {"messages": messages, "tools": record.tools(turn)}
