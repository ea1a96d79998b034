"""What a sampler was told, in a file: so that in a resumed run it knows what the whole one would.

A line ``{"step": 3, "task": 17, "rewards": [0.0, 1.0]}`` is what came of a group. After a line
``{"from": 2}`` what stands above it of that step or later ones does not count: it is done again.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evert.bridge.groups.curriculum import Sampler


class SamplerLog:
    """Tells a sampler what came of groups, and writes it down; without a path, nothing is."""

    def __init__(self, sampler: Sampler, path: str | Path | None) -> None:
        self.sampler = sampler
        self._path = None if path is None else Path(path)
        self._is_begun = False

    def begin(self, step: int) -> None:
        """Tell the sampler what is on file of the steps before the first one of this process."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._path is None or not self._path.is_file():
            return
        for record in read_sampler_log(self._path):
            if record["step"] < step:
                self.sampler.update(record["task"], record["rewards"])
        self._write({"from": step}, before="\n")  # the last line may lack its end

    def update(self, step: int, task: int, rewards: Sequence[float]) -> None:
        """Tell the sampler what came of a group of a step."""
        self.sampler.update(task, rewards)
        self._write({"step": step, "task": task, "rewards": list(rewards)})

    def _write(self, record: dict[str, Any], before: str = "") -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{before}{json.dumps(record)}\n")


def read_sampler_log(path: Path) -> list[dict[str, Any]]:
    """What counts of a file: a record a group."""
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
            if "from" in record:
                records = [each for each in records if each["step"] < record["from"]]
            else:
                records.append({key: record[key] for key in ("step", "task", "rewards")})
        except (ValueError, TypeError, KeyError):
            continue
    return records
