"""``Recorder``: rollouts into JSON lines, whole groups at a time.

    recorder = Recorder("rollouts.jsonl")
    builder = ChatAgentGroupBuilder(agent, task, group_size=8, record=recorder)

A line is written in one piece. One that a kill cut off is the last of its file, and is left out
when the file is read; what is written behind it later begins on a line of its own.
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
from evert.bridge.episode.seeds import Draws
from evert.bridge.records.rows import Row, completed
from evert.bridge.redaction import redacted

E = TypeVar("E", bound=Env)


class Recorder:
    """Writes rollouts down.

    Args:
        path: A file ``*.jsonl``, written on at its end; or a folder, for a file an iteration, each
            begun anew by whoever does that iteration again.
        share: Of the groups of each batch of an ``AgentDataset`` that are written, above 0; the
            first of a batch always is.

    Pickled, as a group's that is played by ``PoolRollouts``, it gathers its rows, which come back
    with the group and are written here. Another executor's processes do not bring them back.
    """

    def __init__(self, path: str | Path, share: float = 1.0) -> None:
        self.path = Path(path)
        self.share = share
        self._groups = Counter[Path]()

    def __reduce__(self) -> tuple[Any, ...]:
        return Gathering, (self.path,)

    def takes(self, place: int) -> bool:
        """Whether a batch's group of that place, counted from 0, is one of the share."""
        return math.ceil((place + 1) * self.share) > math.ceil(place * self.share)

    def watch(self, env: E) -> E:
        """Have an Env keep what its agent asks; before it is played. Returns the Env.

        One without a seed gets one, to be written down.
        """
        if isinstance(env, ChatAgentEnv):
            env.transcript = env.transcript or Transcript()
            owner = getattr(env, "table", env)  # of seats it is their table's
            owner.seed = Draws(owner.seed).seed
        return env

    def add(
        self,
        trajectories: Sequence[Trajectory],
        envs: Sequence[Env],
        *,
        rewards: Sequence[float] = (),
        metrics: Sequence[Metrics] = (),
        split: str = "train",
        iteration: int = 0,
        tags: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a group down.

        Args:
            trajectories: Of the episodes, as they were played.
            envs: That were played, one a trajectory, watched; those that are none of evert's are
                left out.
            rewards: What the group adds to each; none: nothing.
            metrics: The same.
            split: "train" or "test".
            iteration: Of the training, or 0.
            tags: Of the group.
            about: What else is to be known of each.

        Raises:
            OSError: The file cannot be written.
        """
        added = rewards or [0.0] * len(envs), metrics or [{}] * len(envs)
        given = zip(trajectories, envs, *added, strict=True)
        ours = [(t, env, r, m) for t, env, r, m in given if isinstance(env, ChatAgentEnv)]
        group = TrajectoryGroup([o[0] for o in ours], [o[2] for o in ours], [o[3] for o in ours])
        rows = serialize_rollout_summaries(
            split=split, iteration=iteration, trajectory_groups_P=[group], taglist_P=[[*tags]]
        )
        pairs = zip(rows, ours, strict=True)
        own = {"about": dict(about or {})}
        self.write([completed(row, played, env) | own for row, (played, env, _, _) in pairs])

    def write(self, rows: Sequence[Row]) -> None:
        """Write the rows of a group; an OSError if the file cannot be written."""
        if not rows:
            return
        name = f"{rows[0]['iteration']:06}.jsonl"
        file = self.path if self.path.suffix == ".jsonl" else self.path / name
        if file not in self._groups:
            self._groups[file] = self._begun(file)
        number = self._groups[file]
        lines = (json.dumps({**row, "group_idx": number}) for row in rows)
        with file.open("a", encoding="utf-8") as out:
            out.write(redacted("".join(f"{line}\n" for line in lines)))
        self._groups[file] += 1

    def _begun(self, file: Path) -> int:
        """Prepare a file for the first write; a number for its next group, unlike the others."""
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file != self.path:
            file.write_bytes(b"")
            return 0
        with file.open("r+b") as there:
            count = sum(1 for _ in there)
            there.seek(max(0, there.tell() - 1))
            if count and there.read(1) != b"\n":
                there.write(b"\n")
        return count


class Gathering(Recorder):
    """A recorder in another process: what it is given goes back from there, by group (``rows``)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rows: list[Sequence[Row]] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Keep the rows of a group."""
        self.rows.append(rows)
