"""``Recorder`` writes rollouts to JSON Lines files, one group at a time.

    recorder = Recorder("rollouts.jsonl")
    builder = ChatAgentGroupBuilder(agent, task, group_size=8, record=recorder)

If the last line of a file was truncated because a process was killed, readers skip it and writers
start a new line.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
from tinker_cookbook.rl.types import Env, Metrics, Trajectory, TrajectoryGroup

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.transcript import Transcript
from evert.bridge.episode.seeds import random_seed
from evert.bridge.records.chats import note_forms
from evert.bridge.records.rows import Recorded, Row, completed
from evert.bridge.redaction import redacted

E = TypeVar("E", bound=Env)


class Recorder:
    """Writes rollouts to files.

    Args:
        path: A ``*.jsonl`` file to append to, or a folder with one file per iteration. If an
            iteration is recorded again, its file is overwritten.
        share: Fraction of the groups in each ``AgentDataset`` batch to write. Must be greater than
            0. The first group of a batch is always written.

    When a recorder is sent to a ``PoolRollouts`` process, it collects the rows there. The rows are
    sent back with the group, and this process writes them. With other executors, the rows are lost.
    """

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path = Path(path)
        self.share = share
        self._groups = Counter[Path]()

    def __reduce__(self) -> tuple[Any, ...]:
        return Gathering, (self.path,)

    def takes(self, place: int) -> bool:
        """Return whether to write the group at index ``place`` of its batch."""
        return math.ceil((place + 1) * self.share) > math.ceil(place * self.share)

    def watch(self, env: E) -> E:
        """Make an unused Env keep its agent's requests, seed it if needed, and return it."""
        if isinstance(env, ChatAgentEnv):
            env.transcript = env.transcript or Transcript()
            owner = getattr(env, "table", env)  # all seats share one seed
            if owner.seed is None:
                owner.seed = random_seed()
        return env

    def add(
        self,
        trajectories: Sequence[Trajectory],
        envs: Sequence[Env | Recorded],
        *,
        rewards: Sequence[float] = (),
        metrics: Sequence[Metrics] = (),
        split: str = "train",
        iteration: int = 0,
        tags: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a group.

        Args:
            trajectories: The trajectories, with their turns in the order of play.
            envs: The watched Env of each trajectory. Envs from other libraries are skipped.
            rewards: The group reward of each trajectory, or empty if there is none.
            metrics: Additional metrics of each trajectory, or empty if there are none.
            split: "train" or "test".
            iteration: The training iteration (0 outside of training).
            tags: The tags of the group.
            about: Additional information to store with each rollout.

        Raises:
            OSError: The file cannot be written.
        """
        added = rewards or [0.0] * len(envs), metrics or [{}] * len(envs)
        members = zip(trajectories, envs, *added, strict=True)
        watched = [(t, env, r, m) for t, env, r, m in members if isinstance(env, Recorded)]
        group = TrajectoryGroup(
            [o[0] for o in watched], [o[2] for o in watched], [o[3] for o in watched]
        )
        rows = serialize_rollout_summaries(
            split=split, iteration=iteration, trajectory_groups_P=[group], taglist_P=[[*tags]]
        )
        about = {"about": dict(about or {})}
        for number, (trajectory, env, _, _) in enumerate(watched):
            rows[number] = completed(rows[number], trajectory, env) | about
            note_forms(rows[number], env.renderer)
        self.write(rows)

    def write(self, rows: Sequence[Row]) -> None:
        """Write the rows of a group. Raises OSError if the file cannot be written."""
        if not rows:
            return
        name = f"{rows[0]['iteration']:06}.jsonl"
        file = self.path if self.path.suffix == ".jsonl" else self.path / name
        if file not in self._groups:
            self._groups[file] = self._prepare(file)
        number = self._groups[file]
        lines = (json.dumps({**row, "group_idx": number}) for row in rows)
        with file.open("a", encoding="utf-8") as out:
            out.write(redacted("".join(f"{line}\n" for line in lines)))
        self._groups[file] += 1

    def _prepare(self, file: Path) -> int:
        """Prepare a file for the first write, and return an unused number for the next group."""
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file != self.path:
            file.write_bytes(b"")
            return 0
        with file.open("r+b") as stream:
            count = sum(1 for _ in stream)
            stream.seek(max(0, stream.tell() - 1))
            if count and stream.read(1) != b"\n":
                stream.write(b"\n")
        return count


class Gathering(Recorder):
    """A recorder in a worker process. It collects ``rows`` so that they can be sent back."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rows: list[Sequence[Row]] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Keep the rows of a group."""
        self.rows.append(rows)
