"""``evert export run=RUN min_reward=1 out=sft.jsonl``: conversations to learn from by imitation.

Each line is ``{"messages": [...]}`` with texts as sampled, thinking and the markup of tool
calls included, as the Cookbook's ``chat_sl`` recipe reads them; tools are in the system message.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz
from rich.console import Console

from evert.bridge.errors import RecordError
from evert.trainers.config.command import Command
from evert.trainers.config.fields import setting
from evert.trainers.rundir.recorded import progress
from evert.trainers.system.files import write_whole

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord

USAGE = """\
Usage: evert export run=RUN [min_reward=1] [out=sft.jsonl] [key=value ...]

Writes the conversations of the recorded rollouts of a run or an evaluation (record=True) for
supervised training, a JSON line each, as the Cookbook's chat_sl recipe reads them.

"""


@chz.chz
class ExportSettings:
    """Which conversations to write, and where to."""

    run: str = chz.field(doc="folder of a run or an evaluation, or a file of a Recorder's")
    min_reward: float | None = setting(
        None, "least reward of a rollout, what its group added included; None: any"
    )
    out: str = setting("sft.jsonl", "file to write")
    unique: bool = setting(True, "whether of equal conversations one is written")


def export(settings: ExportSettings) -> None:
    """Write the conversations, and say how many."""
    console = Console(highlight=False, markup=False)
    read = kept = 0
    lines, left_out = list[str](), list[str]()
    with progress(settings.run, "exporting", console) as records:
        for record in records:
            read += 1
            if settings.min_reward is not None and record.reward < settings.min_reward:
                continue
            kept += 1
            for turn in record.last_turns():
                try:
                    lines.append(json.dumps({"messages": conversation(record, turn)}))
                except RecordError as error:
                    left_out.append(str(error))
    lines = [*dict.fromkeys(lines)] if settings.unique else lines
    if not lines:
        raise RecordError(_none(settings, read, kept, left_out))
    out = Path(settings.out).expanduser()
    write_whole(out, "".join(f"{line}\n" for line in lines).encode())
    said = f"{out}: {len(lines)} conversations of {kept} rollouts ({read} on record)"
    console.print(said, soft_wrap=True)
    if left_out:
        console.print(f"left out: {len(left_out)}. The first: {left_out[0]}", soft_wrap=True)


def _none(settings: ExportSettings, read: int, kept: int, left_out: Sequence[str]) -> str:
    if left_out:
        return f"No conversation of {kept} rollouts can be written. {left_out[0]}"
    if not kept and read:
        return f"None of {read} rollouts earned min_reward={settings.min_reward:g}. Lower it."
    return f"There is no conversation in {settings.run}: no model was called."


def conversation(record: "RolloutRecord", turn: int) -> list[dict[str, str]]:
    """The conversation that a turn ended, each message a role and a text."""
    return [_as_text(message) for message in record.sampled_messages(turn)]


def _as_text(message: Mapping[str, Any]) -> dict[str, str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    if any(part.get("type") != "text" for part in parts) or message.get("tool_calls"):
        raise RecordError(
            f"A conversation has a message of the {message['role']} with tool calls of the agent's "
            f"own, or with more than text: {message!s:.200}. chat_sl reads texts; leave it out."
        )
    role = "system" if message["role"] == "developer" else str(message["role"])
    return {"role": role, "content": "".join(str(part.get("text", "")) for part in parts)}


COMMAND = Command(ExportSettings, USAGE, export, "run")
main, parse = COMMAND.main, COMMAND.parse
