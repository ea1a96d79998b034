"""``check_row`` validates the names and types of the fields that evert reads from a row.

Additional fields are ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

import tinker
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from evert.bridge.errors import RecordError
from evert.bridge.records.checks import wrong_field
from evert.bridge.tokens.actions import LARGEST_ID

CHUNK: TypeAdapter[tinker.ModelInputChunk] = TypeAdapter(tinker.ModelInputChunk)

_Token = Annotated[int, Field(ge=0, le=LARGEST_ID)]
_Chunk = Annotated[dict[str, Any], AfterValidator(lambda chunk: _check_chunk(chunk))]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Earlier = Annotated[int, Field(ge=0)] | None


class _RecordedMessage(TypedDict):
    role: str
    content: NotRequired[str | list[dict[str, Any]] | None]
    tool_calls: NotRequired[list[dict[str, Any]] | None]


class _Prompt(TypedDict):
    after: _Earlier
    tokens: list[_Token | _Chunk]


class _RecordedCall(TypedDict):
    after: _Earlier
    messages: list[_RecordedMessage]
    tools: NotRequired[list[dict[str, Any]]]
    prefix: NotRequired[list[_RecordedMessage]]
    again: NotRequired[Annotated[int, Field(ge=0)]]
    added: NotRequired[list[_RecordedMessage]]
    prefill: NotRequired[str]
    met: NotRequired[bool]


class _PlainStep(TypedDict):
    reward: _Number
    episode_done: bool
    metrics: dict[str, float | bool]
    logs: dict[str, Any]
    stop_reason: str
    text: str
    call: NotRequired[_RecordedCall]
    reply: NotRequired[_RecordedMessage | None]


class _TextStep(_PlainStep):
    ob_len: int | None
    ac_len: int | None


class _RecordedStep(_PlainStep):
    ob_len: int
    ac_len: int
    prompt: _Prompt
    tokens: list[_Token]
    logprobs: list[float] | None


class _PlainRow(TypedDict):
    iteration: int
    group_idx: int
    traj_idx: int
    total_reward: _Number
    agent: str
    renderer: str
    tokenizer: str | None
    seat: str | None
    seed: int | None
    stop_reason: str | None
    task_repr: NotRequired[str]
    task_literal: NotRequired[str]


class _TextRow(_PlainRow):
    steps: list[_TextStep]


class _RecordedRollout(_PlainRow):
    steps: list[_RecordedStep]


_ROW, _TEXT_ROW = TypeAdapter(_RecordedRollout), TypeAdapter(_TextRow)


def has_tokens(row: Mapping[str, Any]) -> bool:
    """Return whether a row has token ids. Rows read from a trace may lack them (``traces.py``)."""
    trace = row.get("trace")
    return not isinstance(trace, dict) or trace.get("has_tokens") is not False


def check_row(row: Mapping[str, Any]) -> None:
    """Validate a row. Raises a RecordError that describes the first invalid field."""
    schema: TypeAdapter[Any] = _ROW if has_tokens(row) else _TEXT_ROW
    try:
        schema.validate_python(row, strict=True)
    except ValidationError as error:
        raise _damaged(wrong_field(row, error)) from None
    for number, step in enumerate(row["steps"]):
        for field, key in (("prompt", "after"), ("call", "after"), ("call", "again")):
            before = step.get(field, {}).get(key)
            if before is None:
                continue
            place = f"steps[{number}].{field}.{key} is {before}"
            if before >= number:
                raise _damaged(f"{place}; expected null or a step before {number}")
            if field == "call" and "call" not in row["steps"][before]:
                raise _damaged(f"{place}, but that step has no call")
        count, logprobs = len(step.get("tokens", ())), step.get("logprobs")
        if logprobs is not None and len(logprobs) != count:
            what = f"has {len(logprobs)} values; expected one for each of the {count} tokens"
            raise _damaged(f"steps[{number}].logprobs {what}")


def _check_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    try:
        CHUNK.validate_python(chunk)
    except ValidationError:
        raise ValueError("it is not a prompt chunk") from None
    return chunk


def _damaged(what: str) -> RecordError:
    return RecordError(f"A record is damaged: {what}. Delete its line, or record the run again.")
