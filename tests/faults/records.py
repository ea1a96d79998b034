"""The table of damages: what is done to a line of a recorded file, and what reading it ends with.

The file holds two rollouts, and the second line is damaged. Each error names the line and the field
that is amiss; ``…`` stands for anything.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evert import AgentClient, RolloutRecord

Row = dict[str, Any]

READ = ""
"""What reading ends with where the damage does no harm."""

ADD: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def agent(client: AgentClient, task: str) -> float:
    """Calls a tool, goes on from its result, and asks two things at the same time."""
    messages: list[Any] = [{"role": "system", "content": "Add."}, {"role": "user", "content": task}]
    for number in range(2):
        completion = await client.chat.completions.create(messages=messages, tools=[ADD])
        said = completion.choices[0].message
        calls = said.tool_calls or []
        results = [{"role": "tool", "tool_call_id": one.id, "content": "2"} for one in calls]
        messages += [said, *(results or [{"role": "user", "content": "And?"}])]
        client.metric("asked", number)
        client.log(number=number)

    async def ask(text: str) -> None:
        await client.chat.completions.create(messages=[{"role": "user", "content": text}])
        client.reward(0.25)

    await asyncio.gather(ask("one"), ask("two"))
    return 1.0


def reply(prompt: str) -> str:
    """What the policy says to a prompt."""
    return "Fine." if "tool_response" in prompt or "add" not in prompt else CALL


def worth(record: RolloutRecord) -> float:
    """A reward that looks at all of a rollout."""
    said = sum(len(record.messages(turn)) for turn in range(record.turns))
    return float(said) + sum(record.metrics.values())


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A row of the table.

    Attributes:
        name: What is damaged.
        sees: What reading ends with.
        replays: What a replay ends with, where the line is read; "": with the same rewards.
        row: Damages the fields of the line.
        line: Damages its bytes.
    """

    name: str
    sees: str
    replays: str = ""
    row: Callable[[Row], object] = lambda row: None
    line: Callable[[bytes], bytes] = lambda line: line

    def __str__(self) -> str:
        return self.name

    def done(self, line: bytes) -> bytes:
        """The line, damaged."""
        row = json.loads(line)
        self.row(row)
        return self.line(json.dumps(row).encode())


def amiss(what: str) -> str:
    """The error of a field that is amiss."""
    return f"…, line 2: A record is damaged: {what}. Take its line out, or record anew."


def field(path: str, value: Any) -> Callable[[Row], object]:
    """Gives a field another value: ``steps.1.call.after``."""
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]

    def change(row: Row) -> None:
        at: Any = row
        for key in way:
            at = at[key]
        at[last] = value

    return change


TABLE: list[Damage] = [
    Damage(
        name="nothing",
        sees=READ,
    ),
    Damage(
        name="the reward is missing",
        row=lambda row: row.pop("total_reward"),
        sees=amiss("total_reward is missing"),
    ),
    Damage(
        name="the reward is a text",
        row=field("total_reward", "1.0"),
        sees=amiss("total_reward is '1.0'; Input should be a valid number"),
    ),
    Damage(
        name="the reward is no number at all",
        row=field("total_reward", float("nan")),
        sees=amiss("total_reward is nan; Input should be a finite number"),
    ),
    Damage(
        name="the steps are an object",
        row=field("steps", {}),
        sees=amiss("steps is {}; Input should be a valid list"),
    ),
    Damage(
        name="a step is null",
        row=field("steps.1", None),
        sees=amiss("steps[1] is None; Input should be a valid dictionary"),
    ),
    Damage(
        name="a step's text is missing",
        row=lambda row: row["steps"][2].pop("text"),
        sees=amiss("steps[2].text is missing"),
    ),
    Damage(
        name="a token id is negative",
        row=field("steps.1.tokens.0", -1),
        sees=amiss("steps[1].tokens[0] is -1; Input should be greater than or equal to 0"),
    ),
    Damage(
        name="a token id is larger than any",
        row=field("steps.1.tokens.0", 2**40),
        sees=amiss(f"steps[1].tokens[0] is {2**40}; Input should be less than or equal to …"),
    ),
    Damage(
        name="a token id is true",
        row=field("steps.0.prompt.tokens.2", True),
        sees=amiss("steps[0].prompt.tokens[2] is True; Input should be a valid integer"),
    ),
    Damage(
        name="an image in a prompt is empty",
        row=field("steps.0.prompt.tokens.0", {"type": "image"}),
        sees=amiss("steps[0].prompt.tokens[0] is {'type': 'image'}; …no chunk of a prompt"),
    ),
    Damage(
        name="a sampled token is gone",
        row=lambda row: row["steps"][1]["tokens"].pop(),
        sees=amiss("steps[1].logprobs has … values; expected one for each of … tokens"),
    ),
    Damage(
        name="a prompt goes on from its own step",
        row=field("steps.1.prompt.after", 1),
        sees=amiss("steps[1].prompt.after is 1; expected null or a step before 1"),
    ),
    Damage(
        name="a prompt goes on from a text",
        row=field("steps.1.prompt.after", "0"),
        sees=amiss("steps[1].prompt.after is '0'; Input should be a valid integer"),
    ),
    Damage(
        name="a call goes on from itself",
        row=field("steps.1.call.after", 1),
        sees=amiss("steps[1].call.after is 1; expected null or a step before 1"),
    ),
    Damage(
        name="a call goes on from one that comes later",
        row=field("steps.0.call.after", 3),
        sees=amiss("steps[0].call.after is 3; expected null or a step before 0"),
    ),
    Damage(
        name="a call goes on from the last but one",
        row=field("steps.1.call.after", -1),
        sees=amiss("steps[1].call.after is -1; Input should be greater than or equal to 0"),
    ),
    Damage(
        name="a call goes on from a step without one",
        row=lambda row: row["steps"][0].pop("call"),
        sees=amiss("steps[1].call.after is 0, and that step has no call"),
    ),
    Damage(
        name="a message has no role",
        row=lambda row: row["steps"][0]["call"]["messages"][0].pop("role"),
        sees=amiss("steps[0].call.messages[0].role is missing"),
    ),
    Damage(
        name="a message's content is a number",
        row=field("steps.0.call.messages.0.content", 7),
        sees=amiss("steps[0].call.messages[0].content is 7; Input should be a valid string"),
    ),
    Damage(
        name="a part of a content is a text",
        row=field("steps.0.call.messages.0.content", ["Add."]),
        sees=amiss("steps[0].call.messages[0].content… is …"),
    ),
    Damage(
        name="the tools are one tool",
        row=field("steps.0.call.tools", ADD),
        sees=amiss("steps[0].call.tools is {'type': 'function'…; Input should be a valid list"),
    ),
    Damage(
        name="a reply is a list",
        row=field("steps.0.reply", []),
        sees=amiss("steps[0].reply is []; Input should be a valid dictionary"),
    ),
    Damage(
        name="the metrics are pairs",
        row=field("steps.0.metrics", [["asked", 1]]),
        sees=amiss("steps[0].metrics is [['asked', 1]]; Input should be a valid dictionary"),
    ),
    Damage(
        name="a metric is a text",
        row=field("steps.0.metrics.asked", "once"),
        sees=amiss("steps[0].metrics.asked is 'once'; Input should be a valid number"),
    ),
    Damage(
        name="the seed is a text",
        row=field("seed", "seven"),
        sees=amiss("seed is 'seven'; Input should be a valid integer"),
    ),
    Damage(
        name="the seat is missing",
        row=lambda row: row.pop("seat"),
        sees=amiss("seat is missing"),
    ),
    Damage(
        name="the version is another",
        row=field("evert_schema", 2),
        sees="…, line 2: A record has evert_schema=2; this version of evert reads 1. …",
    ),
    Damage(
        name="the version is missing",
        row=lambda row: row.pop("evert_schema"),
        sees="…, line 2: A line holds no rollout of evert's: …",
    ),
    Damage(
        name="the line is a list",
        line=lambda line: b"[" + line + b"]",
        sees="…, line 2: The line is [{…; expected a rollout. Take it out.",
    ),
    Damage(
        name="a brace became a parenthesis",
        line=lambda line: line.replace(b"}", b")", 1),
        sees="…, line 2: The line is no JSON: …. Take it out.",
    ),
    Damage(
        name="a block of the disk was lost",
        line=lambda line: line[:100] + bytes(50) + line[150:],
        sees="…, line 2: The line is no JSON: …. Take it out.",
    ),
    Damage(
        name="it is nested without end",
        line=lambda line: b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        sees="…, line 2: The line is no JSON: …. Take it out.",
    ),
    Damage(
        name="a kill cut it off",
        line=lambda line: line[: len(line) // 2],
        sees=READ,
    ),
    Damage(
        name="its first characters are all there is",
        line=lambda line: line[:3],
        sees=READ,
    ),
    Damage(
        name="a reply has other tokens",
        row=lambda row: row["steps"][0]["tokens"].reverse(),
        sees=READ,
        replays="ReplayError: The agent differs from its record at turn 1 (of 4): …",
    ),
    Damage(
        name="the last turn is gone",
        row=lambda row: row["steps"].pop(),
        sees=READ,
        replays="ReplayError: The agent differs from its record at turn 3: it calls the model once "
        "more, …",
    ),
    Damage(
        name="a turn more was played",
        row=lambda row: row["steps"].append(row["steps"][-1]),
        sees=READ,
        replays="ReplayError: The agent differs from its record at turn 4: it ended, …",
    ),
]
