"""Damaged records: each row damages a line of a recorded file and states the result of reading it.

The file contains two rollouts, and the second line is damaged. Each error states the line and the
invalid field. ``…`` matches anything.
"""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evert import AgentClient, RolloutRecord

Row = dict[str, Any]

READ = ""
"""The result of reading a file whose damage is harmless."""

ADD: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def agent(client: AgentClient, task: str) -> float:
    """Call a tool, continue with its result, and make two concurrent calls."""
    messages: list[Any] = [{"role": "system", "content": "Add."}, {"role": "user", "content": task}]
    for number in range(2):
        completion = await client.chat.completions.create(messages=messages, tools=[ADD])
        message = completion.choices[0].message
        calls = message.tool_calls or []
        results = [{"role": "tool", "tool_call_id": call.id, "content": "2"} for call in calls]
        messages += [message, *(results or [{"role": "user", "content": "And?"}])]
        client.metric("asked", number)
        client.log(number=number)

    async def ask(text: str) -> None:
        await client.chat.completions.create(messages=[{"role": "user", "content": text}])
        client.reward(0.25)

    await asyncio.gather(ask("one"), ask("two"))
    return 1.0


def reply(prompt: str) -> str:
    return "Fine." if "tool_response" in prompt or "add" not in prompt else CALL


def worth(record: RolloutRecord) -> float:
    """Compute a reward from the whole rollout."""
    count = sum(len(record.messages(turn)) for turn in range(record.turns))
    return float(count) + sum(record.metrics.values())


@dataclass(frozen=True)
class Damage:
    """A row of the table: the damage and the result of reading the file."""

    name: str
    sees: str
    replays: str = ""  # if the line can be read, the error of a replay ("": same rewards)
    row: Callable[[Row], object] = lambda row: None  # damages the line's fields
    line: Callable[[bytes], bytes] = lambda line: line  # damages the line's bytes

    def __str__(self) -> str:
        return self.name

    def done(self, line: bytes) -> bytes:
        row = json.loads(line)
        self.row(row)
        return self.line(json.dumps(row).encode())


NO_JSON = "…, line 2: The line is not valid JSON: …. Remove the line."
DIFFERS = "ReplayError: The agent differs from its record at turn"


def amiss(what: str) -> str:
    """Return the error for an invalid field."""
    return f"…, line 2: A record is damaged: {what}. Delete its line, or record the run again."


def place(path: str) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", path)


def _holder(row: Row, path: str) -> tuple[Any, Any]:
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    at: Any = row
    for key in way:
        at = at[key]
    return at, last


def field(path: str, value: Any) -> Callable[[Row], object]:
    """Return a function that sets a field, such as ``steps.1.call.after``."""

    def change(row: Row) -> None:
        at, last = _holder(row, path)
        at[last] = value

    return change


def gone(path: str) -> Callable[[Row], object]:
    def change(row: Row) -> None:
        at, last = _holder(row, path)
        del at[last]

    return change


TABLE: list[Damage] = [
    Damage("nothing", READ),
    # a field is missing or has a wrong value
    Damage("the reward is missing", amiss("total_reward is missing"), row=gone("total_reward")),
    Damage("a step's text is missing", amiss("steps[2].text is missing"), row=gone("steps.2.text")),
    Damage("the seat is missing", amiss("seat is missing"), row=gone("seat")),
    Damage("a message has no role", amiss("steps[0].call.messages[0].role is missing"),
        row=gone("steps.0.call.messages.0.role")),
    Damage("the version is missing", "…, line 2: A line is not an evert rollout …",
        row=gone("evert_schema")),
    Damage("the version is different",
        "…, line 2: A record has evert_schema=2, but this version of evert reads 1. …",
        row=field("evert_schema", 2)),
    *(
        Damage(name, amiss(f"{place(path)} is {says}"), row=field(path, value))
        for name, path, value, says in (
            ("the reward is a string", "total_reward", "1.0", "'1.0'; …valid number"),
            ("the reward is NaN", "total_reward", float("nan"), "nan; …finite number"),
            ("the steps are an object", "steps", {}, "{}; …valid list"),
            ("a step is null", "steps.1", None, "None; …valid dictionary"),
            ("a token id is negative", "steps.1.tokens.0", -1, "-1; …greater than or equal to 0"),
            ("a token id is too large", "steps.1.tokens.0", 2**40,
                f"{2**40}; …less than or equal to …"),
            ("a token id is true", "steps.0.prompt.tokens.2", True, "True; …valid integer"),
            ("an image in a prompt is empty", "steps.0.prompt.tokens.0", {"type": "image"},
                "{'type': 'image'}; …not a prompt chunk"),
            ("a prompt continues its own step", "steps.1.prompt.after", 1,
                "1; expected null or a step before 1"),
            ("a prompt continues a string", "steps.1.prompt.after", "0", "'0'; …valid integer"),
            ("a call continues itself", "steps.1.call.after", 1,
                "1; expected null or a step before 1"),
            ("a call continues a later one", "steps.0.call.after", 3,
                "3; expected null or a step before 0"),
            ("a call continues a negative step", "steps.1.call.after", -1,
                "-1; …greater than or equal to 0"),
            ("a message's content is a number", "steps.0.call.messages.0.content", 7,
                "7; …valid string"),
            ("the tools are not a list", "steps.0.call.tools", ADD,
                "{'type': 'function'…; …valid list"),
            ("a reply is a list", "steps.0.reply", [], "[]; …valid dictionary"),
            ("the metrics are pairs", "steps.0.metrics", [["asked", 1]],
                "[['asked', 1]]; …valid dictionary"),
            ("a metric is a string", "steps.0.metrics.asked", "once", "'once'; …valid number"),
            ("the seed is a string", "seed", "seven", "'seven'; …valid integer"),
        )
    ),
    Damage("a content part is a string",
        amiss("steps[0].call.messages[0].content… is …"),
        row=field("steps.0.call.messages.0.content", ["Add."])),
    Damage("a sampled token is missing",
        amiss("steps[1].logprobs has … values; expected one for each of the … tokens"),
        row=lambda row: row["steps"][1]["tokens"].pop()),
    Damage("a call continues a step without a call",
        amiss("steps[1].call.after is 0, but that step has no call"), row=gone("steps.0.call")),
    # the line is damaged
    Damage("the line is a list", "…, line 2: The line is [{…; expected a rollout. Remove the line.",
        line=lambda line: b"[" + line + b"]"),
    Damage("a brace became a parenthesis", NO_JSON,
        line=lambda line: line.replace(b"}", b")", 1)),
    Damage("a block of bytes was zeroed", NO_JSON,
        line=lambda line: line[:100] + bytes(50) + line[150:]),
    Damage("it is nested too deeply", NO_JSON,
        line=lambda line: b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    Damage("it was truncated by a kill", READ, line=lambda line: line[: len(line) // 2]),
    Damage("only its first characters are left", READ, line=lambda line: line[:3]),
    # the record is valid but different
    Damage("a reply has different tokens", READ,
        f"{DIFFERS} 1 (of 4): …", row=lambda row: row["steps"][0]["tokens"].reverse()),
    Damage("the last turn is missing", READ,
        f"{DIFFERS} 3: it called the model again…", row=lambda row: row["steps"].pop()),
    Damage("there is an additional turn", READ,
        f"{DIFFERS} 4: it finished. …", row=lambda row: row["steps"].append(row["steps"][-1])),
]  # fmt: skip
