"""``evert export run=RUN min_reward=1 out=sft.jsonl``: export recorded rollouts.

The formats are defined in ``rundir/export_formats.py``.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import chz
from rich.console import Console

from evert.bridge.errors import RecordError
from evert.bridge.records.files import TRACES, record_files
from evert.trainers.config.command import Command
from evert.trainers.config.fields import setting
from evert.trainers.rundir.recorded import progress
from evert.trainers.system.files import write_whole

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord
    from evert.trainers.rundir.export_formats import Row

NOUNS = {
    "sft": ("conversation", "conversations"),
    "pairs": ("pair", "pairs"),
    "atif": ("trajectory", "trajectories"),
    "training_trace": ("trace", "traces"),
    "otel": ("trace", "traces"),
}
USAGE = """\
Usage: evert export run=RUN [format=sft] [min_reward=1] [out=sft.jsonl] [key=value ...]

Exports the recorded rollouts of a run, or of an evaluation with record=True, for use in other
programs. Writes one JSON object per line:

  format=sft     conversations and their tools, for the Cookbook's chat_sl or TRL's SFTTrainer
  format=pairs   the best and worst episode of each group, for TRL's DPOTrainer
  format=atif    trajectories with their tokens, in Harbor's interchange format
  format=training_trace   calls with tokens, masks and log-probabilities: OpenEnv's TrainingTrace
  format=otel    spans in OpenTelemetry's GenAI conventions (OTLP), for Langfuse, Phoenix, ...

If out= does not end in .jsonl, it is a folder that datasets.load_dataset can read. atif writes one
file per trajectory. run= can also be a trace from another program, in ATIF or TrainingTrace format.

"""


@chz.chz
class ExportSettings:
    """The rollouts to export, the format, and the output path."""

    run: str = chz.field(doc="run or evaluation folder, or a Recorder's file")
    format: Literal["sft", "pairs", "atif", "training_trace", "otel"] = setting(
        "sft", "output format"
    )
    min_reward: float | None = setting(
        None, "skip rollouts whose total reward, including the group reward, is lower than this"
    )
    out: str | None = setting(
        None, "output file or folder (default: FORMAT.jsonl, or the folder `atif`)"
    )
    unique: bool = setting(True, "skip duplicate conversations or pairs")


class _Selection:
    """Filters rollouts by reward, and counts rollouts and rows."""

    def __init__(self, settings: ExportSettings) -> None:
        self.min_reward = settings.min_reward
        self.total = self.selected = self.rows = 0

    def of(self, records: Iterable["RolloutRecord"]) -> Iterator["RolloutRecord"]:
        for record in records:
            self.total += 1
            if self.min_reward is None or record.reward >= self.min_reward:
                self.selected += 1
                yield record


def export(settings: ExportSettings) -> None:
    """Write the rollouts in the chosen format, and print how many rows were written."""
    record_files(settings.run)  # report a wrong path before the slow import of the formats
    from evert.trainers.rundir.export_formats import FORMATS

    console = Console(highlight=False, markup=False)
    selection, left_out = _Selection(settings), list[str]()
    with progress(settings.run, "exporting", console) as records:
        rows = FORMATS[settings.format](selection.of(records), left_out.append)
        lines = _lines(settings, rows, selection)
        if (first := next(lines, None)) is None:
            raise RecordError(_why_nothing(settings, selection, left_out))
        out = _write(settings, chain([first], lines))
    count = f"{selection.rows} {NOUNS[settings.format][1]}"
    of = f"from {selection.selected} rollouts ({selection.total} recorded)"
    console.print(f"{out}: {count} {of}", soft_wrap=True)
    if left_out:
        console.print(f"skipped: {len(left_out)}. First reason: {left_out[0]}", soft_wrap=True)


def _lines(
    settings: ExportSettings, rows: Iterable["Row"], selection: _Selection
) -> Iterator[bytes]:
    """Yield rows as JSON with known secrets redacted.

    With ``unique``, duplicate rows in the sft and pairs formats are skipped.
    """
    from evert.bridge.redaction import redacted

    indent = 2 if settings.format == "atif" else None
    is_unique, digests = settings.unique and settings.format in ("sft", "pairs"), set[bytes]()
    for row in rows:
        line = redacted(json.dumps(row, indent=indent)).encode() + b"\n"
        if is_unique:
            if (digest := blake2b(line, digest_size=16).digest()) in digests:
                continue
            digests.add(digest)
        selection.rows += 1
        yield line


def _write(settings: ExportSettings, lines: Iterable[bytes]) -> Path:
    is_atif = settings.format == "atif"
    out = Path(settings.out or (settings.format + ".jsonl" * (not is_atif))).expanduser()
    if is_atif:
        out.mkdir(parents=True, exist_ok=True)
        number = 0
        for number, line in enumerate(lines):
            write_whole(out / f"{number:06}.json", line)
        for old in [*out.glob(TRACES)]:  # left over from an earlier, larger export
            if int(old.stem) > number:
                old.unlink()
        return out
    file = out if out.suffix == ".jsonl" else out / "train.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lines)
    return out


def _why_nothing(settings: ExportSettings, selection: _Selection, left_out: Sequence[str]) -> str:
    if left_out:
        what = NOUNS[settings.format][0]
        return f"Could not make a {what} from any of {selection.selected} rollouts. {left_out[0]}"
    if not selection.selected and selection.total:
        least = f"min_reward={settings.min_reward:g}"
        return f"None of the {selection.total} rollouts reaches {least}. Lower min_reward."
    if selection.selected and settings.format == "pairs":
        return f"There are no pairs to export: rewards are equal in every group of {settings.run}."
    return f"{settings.run} contains no conversations, because no model was called."


COMMAND = Command(ExportSettings, USAGE, export, "run")
main, parse = COMMAND.main, COMMAND.parse
