"""Queries against the index: steps, episodes of a step, single episodes, and full-text search."""

import os
from collections import Counter
from pathlib import Path

from evert.trainers.episodes.scores import half_of, mean_text
from evert.trainers.viewing.incremental_index import Index
from evert.trainers.viewing.lines import RECORDED, SUMMARY, Row

FOUND = 200
"""Maximum number of episodes to return for a search or a list."""


def counts(index: Index) -> dict[int, Row]:
    """Count the episodes, recorded episodes and broken lines of each run."""
    episodes = index.ask(
        "SELECT run, sum(kind = ?) AS recorded, max(sum(kind = ?), sum(kind = ?)) AS episodes "
        "FROM episodes GROUP BY run",
        RECORDED, RECORDED, SUMMARY,
    )  # fmt: skip
    broken = index.ask("SELECT run, sum(broken) AS broken FROM files GROUP BY run")
    by_run = {row["run"]: row for row in episodes}
    for row in broken:
        by_run.setdefault(row["run"], {"episodes": 0, "recorded": 0})["broken"] = row["broken"]
    return by_run


def steps(index: Index, run: int) -> list[Row]:
    """Return the steps of a run, or the models of an evaluation, with their rewards.

    If the Cookbook wrote summaries, rewards are computed over all episodes; otherwise, only over
    the recorded episodes. ``half`` is half the width of the 95% interval of the mean over groups.
    ``score`` contains the mean and its interval as text.
    """
    rows = index.ask(
        """
        WITH chosen AS (
            SELECT split, model, step, max(kind) AS kind, sum(kind = ?) AS recorded
            FROM episodes WHERE run = ? GROUP BY split, model, step
        ), groups AS (
            SELECT c.split, c.model, c.step, c.recorded, e.grp, count(*) AS n,
                sum(e.reward) AS total, avg(e.reward) AS mean,
                min(e.reward) AS low, max(e.reward) AS high
            FROM chosen c JOIN episodes e ON e.run = ? AND e.split = c.split
                AND e.model = c.model AND e.step = c.step AND e.kind = c.kind
            GROUP BY c.split, c.model, c.step, e.grp
        )
        SELECT split, model, step, recorded, count(*) AS groups, sum(n) AS episodes,
            sum(total) / sum(n) AS reward, min(low) AS low, max(high) AS high,
            sum(low < high) AS mixed, group_concat(mean) AS half
        FROM groups GROUP BY split, model, step ORDER BY split = 'train', model, step
        """,
        RECORDED, run, run,
    )  # fmt: skip
    halves = [half_of([[float(mean)] for mean in row["half"].split(",")]) for row in rows]
    return [
        row | {"half": half, "score": mean_text(row["reward"], half)}
        for row, half in zip(rows, halves, strict=True)
    ]


def lengths(index: Index, run: int) -> tuple[int, int | None]:
    """Return the number of tokens in a run's training episodes, and how many are trained on.

    Only indexed episodes count. The first number includes the prompt and the reply of every call.
    The second number is None unless lineages are recorded for all episodes.
    """
    [row] = index.ask(
        "SELECT total(length) AS length, total(trained) AS trained, "
        "sum(trained IS NULL) AS unknown FROM episodes WHERE run = ? AND split = 'train' "
        "AND kind = (SELECT max(kind) FROM episodes WHERE run = ? AND split = 'train')",
        run, run,
    )  # fmt: skip
    return int(row["length"]), None if row["unknown"] else int(row["trained"])


def episodes(index: Index, run: int, split: str, model: str, step: int) -> list[Row]:
    """Return the episodes of a step. Summaries, which only have lengths and rewards, come last."""
    rows = index.ask(
        "SELECT id, kind, grp, traj, seat, reward, turns, tokens, lineages, breaks, ending, task, "
        "said FROM episodes WHERE run = ? AND split = ? AND model = ? AND step = ? "
        "ORDER BY kind, grp, traj LIMIT ?",
        run, split, model, step, 20_000,
    )  # fmt: skip
    return _without_duplicates(rows)


def same_task(index: Index, episode: Row) -> list[Row]:
    """Return the run's earliest and latest episodes on the same task, in the order played."""
    if not episode["same"]:
        return []
    task_query = "SELECT id FROM episodes WHERE same = ? AND run = ? ORDER BY "
    return index.ask(
        "SELECT id, run, split, model, step, reward FROM episodes WHERE id IN ("
        f"SELECT * FROM ({task_query} step, id LIMIT ?) UNION "
        f"SELECT * FROM ({task_query} step DESC, id DESC LIMIT ?)) ORDER BY step, id",
        *2 * (episode["same"], episode["run"], FOUND // 2),
    )


def search(index: Index, words: str) -> list[Row]:
    """Return the newest episodes that contain the words as a phrase."""
    plain = words.replace("\0", " ").replace('"', '""')
    if not plain.strip():
        return []
    return index.ask(
        "SELECT e.id, e.run, e.split, e.model, e.step, e.reward, e.turns, e.task, e.said "
        "FROM texts t JOIN episodes e ON e.id = t.rowid "
        "WHERE texts MATCH ? ORDER BY t.rowid DESC LIMIT ?",
        f'"{plain}"', FOUND,
    )  # fmt: skip


def episode(index: Index, number: int) -> tuple[Row, bytes]:
    """Return an episode's index entry and its line in the file.

    Raises:
        LookupError: The episode no longer exists.
        OSError: The file no longer exists.
    """
    rows = index.ask(
        "SELECT e.*, f.path FROM episodes e JOIN files f ON f.id = e.file WHERE e.id = ?",
        number,
    )
    if not rows:
        raise LookupError(number)
    entry = rows[0]
    with Path(os.fsdecode(entry.pop("path"))).open("rb") as file:
        file.seek(entry["place"])
        return entry, file.read(entry["size"])


def _without_duplicates(rows: list[Row]) -> list[Row]:
    """Remove the Cookbook's summaries of groups that are also recorded.

    Groups are matched by the lengths of their episodes, because summaries and records number
    groups differently.
    """

    def lengths(grp: int, kind: str) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((row["turns"], row["tokens"] or 0) for row in by_group[kind, grp]))

    by_group: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_group.setdefault((row["kind"], row["grp"]), []).append(row)
    group_lengths = Counter(lengths(grp, kind) for kind, grp in by_group if kind == RECORDED)
    unique = list[Row]()
    for kind, grp in by_group:
        if kind == SUMMARY and group_lengths[key := lengths(grp, kind)]:
            group_lengths[key] -= 1
        else:
            unique += by_group[kind, grp]
    return unique
