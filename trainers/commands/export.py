"""``evert export run=RUN min_reward=1 out=sft.jsonl``: write recorded rollouts for other programs.

``rundir/exports.py`` has the formats.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import chz
from rich.console import Console

from evert.bridge.errors import RecordError
from evert.trainers.config.command import Command
from evert.trainers.config.fields import setting
from evert.trainers.rundir.recorded import progress
from evert.trainers.system.files import write_whole

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord
    from evert.trainers.rundir.exports import Row

USAGE = """\
Usage: evert export run=RUN [format=sft] [min_reward=1] [out=sft.jsonl] [key=value ...]

Writes the recorded rollouts of a run or an evaluation (record=) for other programs, one JSON
object a line:

  format=sft     conversations for the Cookbook's chat_sl or TRL's SFTTrainer, with their tools
  format=pairs   the best and the worst episode of each group, for TRL's DPOTrainer
  format=atif    trajectories with the sampled tokens, in Harbor's interchange format

An out= without .jsonl is a folder that datasets.load_dataset reads; atif writes a file for each
trajectory.

"""


@chz.chz
class ExportSettings:
    """The rollouts to write, the format, and the output."""

    run: str = chz.field(doc="folder of a run or an evaluation, or a file of a Recorder")
    format: Literal["sft", "pairs", "atif"] = setting("sft", "what to write")
    min_reward: float | None = setting(
        None, "lowest reward of a rollout, group reward included; None: any"
    )
    out: str | None = setting(
        None, "file or folder to write; None: sft.jsonl, pairs.jsonl or the folder atif"
    )
    unique: bool = setting(True, "whether equal conversations, or pairs, are written once")


class _Chosen:
    """Selects the rollouts to write, and counts them."""

    def __init__(self, settings: ExportSettings) -> None:
        self.least = settings.min_reward
        self.read = self.kept = 0

    def of(self, records: Iterable["RolloutRecord"]) -> Iterator["RolloutRecord"]:
        for record in records:
            self.read += 1
            if self.least is None or record.reward >= self.least:
                self.kept += 1
                yield record


def export(settings: ExportSettings) -> None:
    """Write the rows, and print how many there are."""
    from evert.trainers.rundir.exports import FORMATS

    console = Console(highlight=False, markup=False)
    chosen, left_out = _Chosen(settings), list[str]()
    with progress(settings.run, "exporting", console) as records:
        rows = [*FORMATS[settings.format](chosen.of(records), left_out.append)]
    if settings.unique and settings.format != "atif":
        rows = [*{json.dumps(row): row for row in rows}.values()]
    if not rows:
        raise RecordError(_why_nothing(settings, chosen, left_out))
    out = _write(settings, rows)
    said = {"sft": "conversations", "pairs": "pairs", "atif": "trajectories"}[settings.format]
    of = f"of {chosen.kept} rollouts ({chosen.read} on record)"
    console.print(f"{out}: {len(rows)} {said} {of}", soft_wrap=True)
    if left_out:
        console.print(f"left out: {len(left_out)}. The first: {left_out[0]}", soft_wrap=True)


def _write(settings: ExportSettings, rows: Sequence["Row"]) -> Path:
    is_atif = settings.format == "atif"
    out = Path(settings.out or (settings.format + ".jsonl" * (not is_atif))).expanduser()
    if is_atif:
        out.mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(rows):
            write_whole(out / f"{number:06}.json", f"{json.dumps(row, indent=2)}\n".encode())
        for old in [*out.glob(f"{'[0-9]' * 6}.json")]:  # of an export that had more
            if int(old.stem) >= len(rows):
                old.unlink()
        return out
    file = out if out.suffix == ".jsonl" else out / "train.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    return out


def _why_nothing(settings: ExportSettings, chosen: _Chosen, left_out: Sequence[str]) -> str:
    if left_out:
        what = {"sft": "conversation", "pairs": "pair", "atif": "trajectory"}[settings.format]
        return f"No {what} of {chosen.kept} rollouts can be written. {left_out[0]}"
    if not chosen.kept and chosen.read:
        return (
            f"None of {chosen.read} rollouts earned min_reward={settings.min_reward:g}. Lower it."
        )
    if chosen.kept and settings.format == "pairs":
        return f"{settings.run} has no group whose rewards differ, so there are no pairs."
    return f"There is no conversation in {settings.run}: no model was called."


COMMAND = Command(ExportSettings, USAGE, export, "run")
main, parse = COMMAND.main, COMMAND.parse
