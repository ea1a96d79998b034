"""Stores checkpoints on disk, with ``tinker://`` paths, atomic writes and checksums.

A path consists of a run, a type and a name, and maps to a folder under the store's root:

    tinker://<run>/weights/<name>           <root>/<run>/weights/<name>/
    tinker://<run>/sampler_weights/<name>   <root>/<run>/sampler_weights/<name>/
    tinker://<run>/external_weights/<name>  <root>/<run>/external_weights/<name>/

When reading, you can also pass the folder itself, for example to load a checkpoint from another
store. The folder contains the weights in Hugging Face format (or a peft adapter), the optimizer
state if training can be resumed from it, and ``evert.json``, with metadata about the weights and
the size and CRC-32 of every other file.

Checkpoints are written to a draft folder, which is moved into place once it is complete. They are
therefore never incomplete, and the checksums reveal later damage. A crash may leave drafts
(``.draft-...``), which ``tidy`` deletes, or a checkpoint that was being replaced (``.old-NAME``).
The next time the checkpoint's path is used, the old checkpoint is deleted if the new one is in
place; otherwise, the old one is moved back.
"""

import json
import os
import re
import shutil
import threading
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast, get_args

from safetensors import SafetensorError

from evert.trainers.engine.common.errors import (
    CheckpointError,
    CheckpointExistsError,
    NoCheckpointError,
)
from evert.trainers.system.files import fsync, write_whole

Kind = Literal["weights", "sampler_weights", "external_weights"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MANIFEST = "evert.json"
OPTIMIZER = "optimizer.safetensors"
_OLD = ".old-"
"""Prefix of a checkpoint folder's name while the checkpoint is being replaced."""
_MOVING = threading.RLock()
"""Held while checkpoints are being moved, so that readers don't undo another thread's move."""

_PART = r"([A-Za-z0-9_][A-Za-z0-9_.+=-]*)"
PATH = re.compile(rf"tinker://{_PART}/({'|'.join(KINDS)})/{_PART}")
"""Matches a checkpoint's path, with groups for its run, type and name."""
_HOSTED = re.compile(r"tinker://[^/:]+:\w+:\d+/")


def default_root() -> Path:
    """Return the default root: ``$EVERT_HOME``, or else ``~/.cache/evert/checkpoints``."""
    home = os.environ.get("EVERT_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "evert" / "checkpoints"


@dataclass(frozen=True)
class CheckpointInfo:
    """The contents of a checkpoint's ``evert.json``."""

    base_model: str
    """The base model's name as requested or, if a stand-in replaced it, the stand-in's name."""
    lora_rank: int | None
    """Rank of the adapter in the folder, or None if the folder contains a full model."""
    steps: int
    """Number of optimizer steps taken before the checkpoint was saved."""
    created: float
    """Unix time."""
    expires: float | None = None
    """Unix time when the checkpoint expires (None: never). This is only recorded; checkpoints on a
    local disk are never deleted automatically."""
    user_metadata: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[int]] = field(default_factory=dict)
    """Maps the names of all other files to [size in bytes, CRC-32]."""


@dataclass(frozen=True)
class RunInfo:
    """The contents of a training run's ``run.json``."""

    base_model: str
    lora_rank: int | None
    user_metadata: dict[str, str]
    created: float
    """Unix time."""


class CheckpointStore:
    """All checkpoints under one root folder."""

    def __init__(self, root: Path | None = None) -> None:
        """Use ``root``, or the default root if it is None. The folder is created when needed."""
        self.root = (root or default_root()).expanduser()

    def new_run(self, info: RunInfo) -> str:
        """Register a training run and return its id."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        run_id = f"run-{stamp}-{uuid.uuid4().hex[:8]}"
        with _writing(self.root / run_id):
            (self.root / run_id).mkdir(parents=True)
            _write_json(self.root / run_id / "run.json", asdict(info))
        return run_id

    def run_info(self, path: str) -> RunInfo:
        """Read the metadata of the run that a path belongs to."""
        file = self.root / parse_path(path)[0] / "run.json"
        try:
            return RunInfo(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise NoCheckpointError(
                f"The training run of {path} was not found: {file} can't be read ({error}). The "
                f"checkpoint folder is {self.root}. Set EVERT_HOME, or pass the root where the "
                "run was saved."
            ) from error

    def folder(self, path: str) -> Path:
        """Return the folder that a path refers to, whether or not it exists."""
        if (Path(path) / MANIFEST).is_file():
            return Path(path)
        return self.root.joinpath(*parse_path(path))

    def save(
        self,
        run_id: str,
        kind: Kind,
        name: str,
        info: CheckpointInfo,
        write: Callable[[Path], None],
        *,
        overwrite: bool = True,
    ) -> str:
        """Write a checkpoint and return its path. If this fails, the old checkpoint is kept."""
        path = checkpoint_path(run_id, kind, name)
        folder = self.folder(path)
        if not overwrite and self.is_intact(path):
            raise CheckpointExistsError(
                f"Checkpoint {path} already exists. Choose a different name, or pass "
                "overwrite=True to replace it."
            )
        draft = folder.parent / f".draft-{uuid.uuid4().hex[:8]}"
        with _writing(folder):
            try:
                draft.mkdir(parents=True)
                write(draft)
                _write_manifest(draft, info)
                _put_in_place(draft, folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return path

    def read(self, path: str) -> CheckpointInfo:
        """Read a checkpoint's manifest and verify all files against it."""
        info, folder = self.info(path), self.folder(path)
        for name, (size, checksum) in info.files.items():
            _check_file(path, folder / name, size, checksum)
        return info

    def info(self, path: str) -> CheckpointInfo:
        """Read a checkpoint's manifest, without verifying the files."""
        folder = self.folder(path)
        _put_back(folder)
        return _read_manifest(path, folder)

    def expire(self, path: str, expires: float | None) -> None:
        """Record the Unix time when a checkpoint expires (None: never)."""
        info, folder = self.info(path), self.folder(path)
        with _writing(folder):
            _write_json(folder / MANIFEST, {**asdict(info), "expires": expires})

    def is_intact(self, path: str) -> bool:
        """Return whether ``read`` would succeed."""
        try:
            self.read(path)
        except CheckpointError:
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete a checkpoint."""
        folder = self.folder(path)
        if not folder.is_dir():
            raise NoCheckpointError(
                f"Checkpoint {path} can't be deleted because {folder} does not exist."
            )
        with _writing(folder):
            shutil.rmtree(folder)

    def tidy(self, keep: Collection[str]) -> None:
        """Delete checkpoints that are not in ``keep``, empty runs, and leftovers from crashes."""
        for kind in self.root.glob("*/*weights/"):
            for folder in kind.iterdir():
                if folder.name.startswith(_OLD):
                    _put_back(kind / folder.name.removeprefix(_OLD))
            for folder in kind.iterdir():
                path = f"tinker://{kind.parent.name}/{kind.name}/{folder.name}"
                if path not in keep:
                    shutil.rmtree(folder, ignore_errors=True)
        for run in self.root.glob("*/"):
            if not any(run.glob("*weights/*/")):
                shutil.rmtree(run, ignore_errors=True)


def checkpoint_path(run_id: str, kind: Kind, name: str) -> str:
    """Return a checkpoint's path. Raise ``CheckpointError`` if the name is invalid."""
    path = f"tinker://{run_id}/{kind}/{name}"
    parse_path(path)
    return path


def parse_path(path: str) -> tuple[str, Kind, str]:
    """Split a ``tinker://`` path into run, type and name."""
    match = PATH.fullmatch(path)
    if match is None:
        raise _not_a_path(path)
    return match[1], cast(Kind, match[2]), match[3]


def _not_a_path(path: str) -> CheckpointError:
    if _HOSTED.match(path):
        return NoCheckpointError(
            f"{path!r} is a checkpoint on the hosted Tinker service, which the embedded engine "
            "can't access. Use it with the service (set TINKER_API_KEY, outside embedded_engine), "
            "or download and merge it (tinker_cookbook.weights.download, build_hf_model) and "
            "pass the folder as base_model."
        )
    if path and os.path.isdir(path):
        return CheckpointError(
            f"The folder {path!r} has no {MANIFEST}; expected a checkpoint saved by evert. "
            "To use a full Hugging Face model, pass it as base_model. If it is a PEFT adapter, "
            "merge it into its base model first (peft's merge_and_unload, then save_pretrained)."
        )
    return CheckpointError(
        f"{path!r} is not a checkpoint path; expected tinker://<run>/weights/<name> (or "
        "sampler_weights, or external_weights), where run and name consist of letters, digits and "
        ". _ + = -, or a checkpoint folder. Pass the path that was returned when you saved it."
    )


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"Could not write {folder}: {error}. Earlier checkpoints are not affected. "
            "Free some disk space, or choose a writable folder."
        ) from error


def _write_manifest(folder: Path, info: CheckpointInfo) -> None:
    files = {
        file.name: [file.stat().st_size, _crc32(file)]
        for file in sorted(folder.iterdir())
        if file.is_file()
    }
    for name in files:
        fsync(folder / name)
    _write_json(folder / MANIFEST, {**asdict(info), "files": files})
    for name in files:
        # safetensors ignores the umask and creates files that only their owner can read.
        shutil.copymode(folder / MANIFEST, folder / name)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=1).encode())


def _read_manifest(path: str, folder: Path) -> CheckpointInfo:
    file = folder / MANIFEST
    if not folder.is_dir():
        raise NoCheckpointError(
            f"Checkpoint {path} was not found: {folder} does not exist. Check the path, or set "
            "EVERT_HOME (or the engine's root) to the folder where it was saved."
        )
    try:
        return CheckpointInfo(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise _damage_error(path, file, f"it can't be read ({error})") from error


def _check_file(path: str, file: Path, size: int, checksum: int) -> None:
    reason = ""
    try:
        actual = file.stat().st_size
        if actual != size:
            reason = f"it has {actual} bytes instead of {size}"
        elif _crc32(file) != checksum:
            reason = "its content does not match its checksum"
    except OSError as error:
        raise _damage_error(path, file, f"it can't be read ({error})") from error
    if reason:
        raise _damage_error(path, file, reason)


def _damage_error(path: str, file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"Checkpoint {path} is damaged: {file}: {reason}. Resume from an earlier one. To remove "
        "damaged checkpoints from a run's list, use "
        "evert.trainers.engine.store.checkpoint_log.repair_checkpoint_log."
    )


def _put_in_place(draft: Path, folder: Path) -> None:
    """Move the finished draft into place, then delete the checkpoint it replaces, if any."""
    old = folder.parent / f"{_OLD}{folder.name}"
    with _MOVING:
        _put_back(folder)
        if folder.exists():
            folder.rename(old)
        try:
            draft.rename(folder)
        except OSError:
            _put_back(folder)
            raise
        fsync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)


def _put_back(folder: Path) -> None:
    """Recover from an interrupted replacement of a checkpoint.

    If the new checkpoint is already in place, delete the old one. Otherwise, restore the old one.
    """
    old = folder.parent / f"{_OLD}{folder.name}"
    with _MOVING:
        if old.exists() and folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            old.rename(folder)


def _crc32(file: Path) -> int:
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return checksum
