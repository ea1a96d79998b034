"""``Recorder`` writes rollouts as lines of JSON, a whole group at a time.

    recorder = Recorder("rollouts.jsonl")
    builder = ChatAgentGroupBuilder(agent, task, group_size=8, record=recorder)

If a killed process cut off a file's last line, readers skip the line and writers begin a new one.
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
        path: A file ``*.jsonl``, to which rollouts are appended, or a folder with a file per
            iteration. Recording an iteration again overwrites its file.
        share: Fraction of each ``AgentDataset`` batch's groups to write, above 0. The first group
            of a batch is always written.

    In a ``PoolRollouts`` process, a pickled recorder collects its rows; they return with the group,
    and this process writes them. Other executors lose them.
    """

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path = Path(path)
        self.share = share
        self._groups = Counter[Path]()

    def __reduce__(self) -> tuple[Any, ...]:
        return Gathering, (self.path,)

    def takes(self, place: int) -> bool:
        """Return whether to write a group; ``place`` is its index in the batch."""
        return math.ceil((place + 1) * self.share) > math.ceil(place * self.share)

    def watch(self, env: E) -> E:
        """Make an unused Env keep its agent's requests, give it a seed, and return it."""
        if isinstance(env, ChatAgentEnv):
            env.transcript = env.transcript or Transcript()
            owner = getattr(env, "table", env)  # a seat has its table's seed
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
            trajectories: The trajectories, in the order of play.
            envs: The watched Env of each trajectory; Envs that are not evert's are left out.
            rewards: The reward that the group adds to each trajectory; empty if it adds none.
            metrics: The metrics that the group adds to each trajectory; empty if it adds none.
            split: "train" or "test".
            iteration: The iteration of the training, or 0.
            tags: The group's tags.
            about: More information about each rollout.

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
        """Write the rows of a group. Raises an OSError if the file cannot be written."""
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
        """Prepare a file for its first write; return an unused number for the next group."""
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
    """A recorder in another process; it keeps each group's ``rows``, to send them back."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rows: list[Sequence[Row]] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Keep the rows of a group."""
        self.rows.append(rows)
