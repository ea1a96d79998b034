"""Lists a store's runs and checkpoints, using the SDK's types.

Each call reads the folders again, so it also finds checkpoints that other processes have saved.
Only the manifests are read, not the weights.
"""

import time
from contextlib import suppress
from datetime import UTC, datetime

from tinker import types

from evert.trainers.engine.common.errors import CheckpointError
from evert.trainers.engine.store.checkpoints import KINDS, MANIFEST, CheckpointStore, parse_path

_URL_SECONDS = 24 * 3600
"""Reported lifetime of URLs. In fact, a ``file://`` URL is valid as long as its file exists."""


def training_run(store: CheckpointStore, path: str) -> types.TrainingRun:
    """Return the training run that a path belongs to, including its latest checkpoints."""
    info, run_id = store.run_info(path), parse_path(path)[0]
    saved = checkpoints(store, run_id)
    last = {checkpoint.checkpoint_type: checkpoint for checkpoint in reversed(saved)}
    return types.TrainingRun(
        training_run_id=run_id,
        base_model=info.base_model,
        model_owner="local",
        is_lora=info.lora_rank is not None,
        lora_rank=info.lora_rank,
        last_request_time=saved[0].time if saved else _moment(info.created),
        last_checkpoint=last.get("training"),
        last_sampler_checkpoint=last.get("sampler"),
        user_metadata=info.user_metadata,
    )


def checkpoints(store: CheckpointStore, run_id: str = "*") -> list[types.Checkpoint]:
    """List the checkpoints of one or all runs, newest first, skipping damaged ones."""
    entries = []
    for kind in KINDS:
        for file in store.root.glob(f"{run_id}/{kind}/[!.]*/{MANIFEST}"):
            path = f"tinker://{file.parents[2].name}/{kind}/{file.parent.name}"
            with suppress(CheckpointError):
                entries.append(_checkpoint(store, path))
    return sorted(entries, key=lambda checkpoint: checkpoint.time, reverse=True)


def _checkpoint(store: CheckpointStore, path: str) -> types.Checkpoint:
    info = store.info(path)
    parsed = types.ParsedCheckpointTinkerPath.from_tinker_path(path)
    return types.Checkpoint(
        checkpoint_id=parsed.checkpoint_id,
        checkpoint_type=parsed.checkpoint_type,
        time=_moment(info.created),
        tinker_path=path,
        size_bytes=sum(size for size, _ in info.files.values()),
        user_metadata=info.user_metadata or None,
        expires_at=None if info.expires is None else _moment(info.expires),
    )


def file_urls(store: CheckpointStore, path: str) -> types.ExternalWeightsUrlsResponse:
    """Return a ``file://`` URL for each file in a checkpoint."""
    folder = store.folder(path).absolute()
    urls = {name: (folder / name).as_uri() for name in store.info(path).files}
    expires = _moment(time.time() + _URL_SECONDS)
    return types.ExternalWeightsUrlsResponse(urls=urls, expires=expires)


def page_of_runs(store: CheckpointStore, offset: int, limit: int) -> types.TrainingRunsResponse:
    """Return one page of the list of runs, newest first, skipping runs that can't be read."""
    runs = []
    for file in store.root.glob("*/run.json"):
        with suppress(CheckpointError):
            runs.append(training_run(store, f"tinker://{file.parent.name}/weights/any"))
    runs.sort(key=lambda run: run.last_request_time, reverse=True)
    cursor = types.Cursor(offset=offset, limit=limit, total_count=len(runs))
    return types.TrainingRunsResponse(training_runs=runs[offset:][:limit], cursor=cursor)


def page_of_checkpoints(
    store: CheckpointStore, offset: int, limit: int
) -> types.CheckpointsListResponse:
    """Return one page of the list of all runs' checkpoints."""
    entries = checkpoints(store)
    cursor = types.Cursor(offset=offset, limit=limit, total_count=len(entries))
    return types.CheckpointsListResponse(checkpoints=entries[offset:][:limit], cursor=cursor)


def checkpoints_of(store: CheckpointStore, run_id: str) -> types.CheckpointsListResponse:
    """List a run's checkpoints. Raise ``NoCheckpointError`` if the run doesn't exist."""
    store.run_info(f"tinker://{run_id}/weights/any")
    return types.CheckpointsListResponse(checkpoints=checkpoints(store, run_id))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
