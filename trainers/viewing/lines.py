"""Parse lines in a run's files into ``IndexRow``s for the index and rows for the page.

Lines are untrusted. If a field has the wrong type, the line is considered broken. These files
contain episodes:

    rollouts/*.jsonl, rollouts.jsonl   "recorded": with all tokens (``bridge/records/rows.py``)
    000000.json, other programs' files "recorded": traces (``bridge/records/traces.py``)
    *_rollout_summaries.jsonl          "summary": the Cookbook's lengths and rewards of all episodes
    samples.jsonl                      "sample": texts of held-out tasks before and after training
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from evert.bridge.errors import RecordError
from evert.bridge.records.traces import rows_of
from evert.bridge.redaction import redacted

Row = dict[str, Any]

PREVIEW = 200
"""Maximum length of a task or last reply that is shown in a list."""
BEFORE, AFTER = -1, 2**31
"""Step numbers for samples taken before the first step and after the last step."""
WRONG = (LookupError, ArithmeticError, AttributeError, TypeError, ValueError, RecursionError)
"""Errors from fields that have the wrong type or are nested too deeply."""
RECORDED, SUMMARY, SAMPLE = "recorded", "summary", "sample"


class IndexRow(NamedTuple):
    """An episode in the index, with secrets redacted. All fields except ``text`` are columns."""

    kind: str
    split: str
    model: str
    """The player in an evaluation, or "" in training."""
    step: int
    grp: int
    """Index of the task in the step or in the evaluation."""
    traj: int
    seat: str
    part: str
    """Which of the line's episodes: "before", "after", a subagent's number, or "" (the first)."""
    reward: float
    turns: int
    tokens: int | None
    """Number of sampled tokens, or None if not recorded."""
    length: int | None
    """Total length of the prompts and replies of all calls, or None if not recorded."""
    trained: int | None
    """Tokens trained on (the total length of all lineages), or None if not recorded."""
    lineages: int
    breaks: int
    """Number of turns with drift."""
    ending: str
    task: str
    same: int
    """Hash of the task, or 0 if the task is unknown."""
    said: str
    text: str
    """Text of all messages, for full-text search."""


def entries(line: bytes) -> list[IndexRow]:
    """Return the episodes in a line, or raise a ValueError if the line is invalid."""
    try:
        row = orjson.loads(line)
        if "before" in row or "after" in row:
            parts = [(part, row[part]) for part in ("before", "after") if row.get(part)]
            return [_sample(row, part, sample) for part, sample in parts]
        first, *inside = rows_of(row)
        entries = [_episode(trace)._replace(part=str(at)) for at, trace in enumerate(inside, 1)]
        return [_episode(first), *entries]
    except (*WRONG, RecordError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _episode(row: Row) -> IndexRow:
    steps, about = row["steps"], row.get("about") or {}
    logs = [step.get("logs") or {} for step in steps]
    lengths = [step["ac_len"] for step in steps]
    last: Row = (steps[-1].get("metrics") or {}) if steps else {}
    is_recorded = "evert_schema" in row
    task, same = _task(row.get("task", row.get("task_repr")))
    length, trained = _lengths(steps, logs)
    reply = steps[-1].get("text", logs[-1].get("said", "")) if steps else ""
    return IndexRow(
        kind=RECORDED if is_recorded else SUMMARY,
        split="train" if row["split"] == "train" else "test",
        model=_preview(about.get("model", "")),
        step=_as_int(row["iteration"]),
        grp=_as_int(about.get("task_number", row["group_idx"])),
        traj=_as_int(row["traj_idx"]),
        seat=_preview(row.get("seat") or ""),
        part="",
        reward=float(row["total_reward"]),
        turns=len(steps),
        tokens=None if None in lengths else sum(map(_as_int, lengths)),
        length=length,
        trained=trained,
        lineages=_as_int(last.get("lineages", 0)),
        breaks=sum("drift" in log for log in logs),
        ending=_preview(_ending(row, last)),
        task=task,
        same=same,
        said=_preview(reply),
        text=redacted("\n".join(_texts(steps, logs))),
    )


def _sample(row: Row, part: str, sample: Row) -> IndexRow:
    turns = sample["dialogue"]
    task, same = _task(row.get("task"))
    texts = [turn.get(name, "") for turn in turns for name in ("told", "said")]
    return IndexRow(
        kind=SAMPLE,
        split="test",
        model="",
        step=BEFORE if part == "before" else AFTER,
        grp=_as_int(sample.get("task", 0)),
        traj=0,
        seat="",
        part=part,
        reward=float(sample.get("reward") or 0.0),
        turns=len(turns),
        tokens=_as_int(sample.get("tokens", 0)),
        length=None,
        trained=None,
        lineages=0,
        breaks=0,
        ending=_preview(sample.get("failure") or ""),
        task=task,
        same=same,
        said=_preview(texts[-1]) if texts else "",
        text=redacted("\n".join(map(str, texts))),
    )


def _lengths(steps: list[Row], logs: list[Row]) -> tuple[int | None, int | None]:
    """Return the total length of all calls, and of all lineages (the tokens trained on)."""
    lengths = [(step.get("ob_len"), step["ac_len"]) for step in steps]
    if any(None in pair for pair in lengths):
        return None, None
    totals = [_as_int(prompt) + _as_int(reply) for prompt, reply in lengths]
    names = [log.get("lineage") for log in logs]
    ends = {str(name): total for name, total in zip(names, totals, strict=True)}
    return _as_int(sum(totals)), None if None in names else _as_int(sum(ends.values()))


def _preview(text: Any) -> str:
    return redacted(str(text))[:PREVIEW]  # redact first: a truncated secret would not match


def _as_int(value: Any) -> int:
    number = int(value)
    if abs(number) >= 2**62:
        raise ValueError(f"the number {number} is too large")
    return number


def _task(task: Any) -> tuple[str, int]:
    if task is None:
        return "", 0
    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=7).digest()
    return _preview(text), int.from_bytes(digest)


def _ending(row: Row, last: Row) -> str:
    reasons = [name for name in last if name.startswith("stop/") and name != "stop/length"]
    stops = [name.removeprefix("stop/") for name in reasons]
    return str(row.get("stop_reason") or "") or ", ".join(stops)


def _texts(steps: list[Row], logs: list[Row]) -> Iterator[str]:
    for step, log in zip(steps, logs, strict=True):
        for message in (step.get("call") or {}).get("messages") or ():
            content = message.get("content")
            if isinstance(content, str):
                yield content
            elif isinstance(content, list):
                yield from (str(part["text"]) for part in content if "text" in part)
        yield from (str(log[key]) for key in ("told", "said") if key in log and "call" not in step)
        yield str(step.get("text", ""))


def page_row(line: bytes, part: str) -> Row:
    """Return the episode ``part`` of a line for the page, in the Cookbook's format."""
    row: Row = orjson.loads(line)
    if not part or part.isdigit():
        return rows_of(row)[int(part or 0)]
    sample = row[part]
    steps = [{"logs": turn, "metrics": {}, "reward": 0.0} for turn in sample["dialogue"]]
    if steps:
        steps[-1] |= {"reward": sample.get("reward"), "metrics": sample.get("metrics")}
    return {"steps": steps, "total_reward": sample.get("reward"), "final_reward": 0.0,
            "task": row.get("task"), "about": {"error": sample.get("error") or None}}  # fmt: skip
