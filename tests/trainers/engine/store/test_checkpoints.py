"""A checkpoint is complete or absent, and replaced atomically. Errors name the damaged file."""

import json
import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from safetensors.torch import save_file
from tests.kit import Patch
from tinker_cookbook.checkpoint_utils import get_last_checkpoint

from evert.trainers.engine.common.errors import CheckpointError
from evert.trainers.engine.store.checkpoint_log import repair_checkpoint_log
from evert.trainers.engine.store.checkpoints import (
    MANIFEST,
    CheckpointInfo,
    CheckpointStore,
    RunInfo,
    default_root,
)

NOW = time.time()
INFO = CheckpointInfo("base", None, 0, NOW)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "store")


@pytest.fixture
def run_id(store: CheckpointStore) -> str:
    return store.new_run(RunInfo("base", None, {"renderer_name": "r"}, 1.0))


def save(store: CheckpointStore, run_id: str, name: str, text: str = "weights") -> str:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(text)
        (folder / "config.json").write_text("{}")

    info = CheckpointInfo("base", 8, 3, NOW, NOW + 60, {"a": "b"})
    return store.save(run_id, "weights", name, info, write)


def test_a_run_is_found_by_any_of_its_paths(store: CheckpointStore, run_id: str) -> None:
    info = store.run_info(f"tinker://{run_id}/sampler_weights/never-saved")
    assert info.user_metadata == {"renderer_name": "r"}
    with pytest.raises(CheckpointError, match="was not found: .*EVERT_HOME"):
        store.run_info("tinker://another/weights/x")
    info = RunInfo("base", None, {}, 1.0)
    assert len({store.new_run(info) for _ in range(20)}) == 20


PATHS = [
    "", "weights/000010", "tinker://run/weights", "tinker://run/other/x", "tinker://run/weights/..",
    "tinker://../weights/x", "tinker://run/weights/a/b", "tinker://run/weights/.hidden",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_an_invalid_path_is_refused(path: str, store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint path; expected tinker://"):
        store.folder(path)


def test_a_failed_write_keeps_earlier_checkpoints(store: CheckpointStore, run_id: str) -> None:
    path = save(store, run_id, "same")

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(
        CheckpointError, match="No space left.*Earlier checkpoints are not affected"
    ):
        store.save(run_id, "weights", "same", INFO, write)
    assert (store.folder(path) / "model.safetensors").read_text() == "weights"
    assert store.is_intact(path)
    assert [f.name for f in store.folder(path).parent.iterdir()] == ["same"]

    def broken(folder: Path) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):  # not reported as a full disk
        store.save(run_id, "weights", "x", INFO, broken)


def test_a_checkpoints_files_follow_the_umask(store: CheckpointStore, run_id: str) -> None:
    before = os.umask(0o027)
    try:
        path = store.save(
            run_id, "weights", "x", INFO, lambda folder: save_file({}, folder / "x.safetensors")
        )
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in store.folder(path).iterdir()}
    assert modes == {"x.safetensors": 0o640, MANIFEST: 0o640}


def test_an_error_names_a_root_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Could not write .*file"):
        CheckpointStore(tmp_path / "file").new_run(RunInfo("base", None, {}, 1.0))


def test_a_checkpoint_is_replaced_unless_forbidden(store: CheckpointStore, run_id: str) -> None:
    save(store, run_id, "final", "first")
    path = save(store, run_id, "final", "second")
    with pytest.raises(CheckpointError, match="Checkpoint .* already exists.*overwrite=True"):
        store.save(run_id, "weights", "final", INFO, lambda folder: None, overwrite=False)
    assert (store.folder(path) / "model.safetensors").read_text() == "second"
    assert store.is_intact(path)
    (store.folder(path) / "model.safetensors").write_text("wei")
    store.save(run_id, "weights", "final", INFO, lambda folder: None, overwrite=False)
    assert store.is_intact(path)


def test_a_crash_during_a_replacement_loses_nothing(store: CheckpointStore, run_id: str) -> None:
    path = save(store, run_id, "rolling", "first")
    renamed: list[str] = []
    rename = Path.rename

    def crash(self: Path, target: Path) -> Path:
        renamed.append(self.name)
        if len(renamed) == 2:
            raise KeyboardInterrupt  # like a kill, this is not an OSError
        return rename(self, target)

    with patch.object(Path, "rename", crash), pytest.raises(KeyboardInterrupt):
        save(store, run_id, "rolling", "second")
    assert not store.folder(path).exists()
    assert store.is_intact(path)
    assert (store.folder(path) / "model.safetensors").read_text() == "first"
    assert save(store, run_id, "rolling", "third") == path
    assert (store.folder(path) / "model.safetensors").read_text() == "third"
    assert [folder.name for folder in store.folder(path).parent.iterdir()] == ["rolling"]


def test_tidying_removes_leftovers_of_crashes(store: CheckpointStore, run_id: str) -> None:
    listed, moved, lost = (save(store, run_id, name) for name in ("kept", "moved", "lost"))
    place = store.folder(listed).parent
    store.folder(moved).rename(place / ".old-moved")  # as if interrupted between the two renames
    (place / ".draft-1").mkdir()
    another = store.new_run(RunInfo("base", None, {}, 1.0))
    store.tidy([listed, moved])
    assert store.is_intact(listed)
    assert store.is_intact(moved)
    assert not store.folder(lost).exists()
    assert sorted(folder.name for folder in place.iterdir()) == ["kept", "moved"]
    assert not (store.root / another).exists()


DAMAGE: list[tuple[str, str | None, str]] = [
    ("model.safetensors", "wei", "it has 3 bytes instead of 7"),
    ("model.safetensors", "weightZ", "its content does not match"),
    ("model.safetensors", None, "it can't be read"),
    (MANIFEST, None, "it can't be read"),
    (MANIFEST, "{", "it can't be read"),
]


@pytest.mark.parametrize(("name", "content", "text"), DAMAGE)
def test_damage_is_detected_and_the_error_names_the_file(
    name: str, content: str | None, text: str, store: CheckpointStore, run_id: str
) -> None:
    path = save(store, run_id, "x")
    file = store.folder(path) / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=f"damaged: .*{name}: {text}.*Resume from an earl"):
        store.read(path)
    assert not store.is_intact(path)


@pytest.mark.parametrize("place", [0, 2**20 - 1, 2**20, 2**20 + 8])
def test_damage_of_a_large_file_is_detected(
    place: int, store: CheckpointStore, run_id: str
) -> None:
    path = save(store, run_id, "x", "w" * (2**20 + 9))
    assert store.is_intact(path)
    with (store.folder(path) / "model.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"Z")
    assert not store.is_intact(path)


def test_a_missing_checkpoint_is_not_reported_as_damaged(
    store: CheckpointStore, run_id: str
) -> None:
    with pytest.raises(CheckpointError, match="Checkpoint tinker://run/weights/x was not found"):
        store.read("tinker://run/weights/x")
    path = save(store, run_id, "x")
    store.delete(path)
    assert not store.folder(path).exists()
    with pytest.raises(CheckpointError, match="Checkpoint .* can't be deleted"):
        store.delete(path)


def test_repair_makes_the_cookbook_resume_from_the_newest_intact_checkpoint(
    store: CheckpointStore, run_id: str, tmp_path: Path
) -> None:
    paths = [save(store, run_id, name) for name in ("1", "2", "3")]
    lines = [{"name": str(i), "batch": i, "state_path": path} for i, path in enumerate(paths)]
    log = tmp_path / "checkpoints.jsonl"
    assert repair_checkpoint_log(tmp_path, store) == []  # the run has no checkpoint list
    torn = '{"name": "3", "ba'  # the end of a file after a crash
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    assert repair_checkpoint_log(tmp_path, store) == []
    (store.folder(paths[2]) / "model.safetensors").write_text("weightZ")
    assert repair_checkpoint_log(tmp_path, store) == [paths[2]]
    last = get_last_checkpoint(str(tmp_path))
    assert last is not None
    assert last.state_path == paths[1]
    assert paths[2] in log.with_suffix(".jsonl.damaged").read_text()


def test_the_default_root_comes_from_the_environment(monkeypatch: Patch) -> None:
    monkeypatch.setenv("EVERT_HOME", "/somewhere")
    assert default_root() == Path("/somewhere")
    monkeypatch.delenv("EVERT_HOME")
    assert default_root().parts[-3:] == (".cache", "evert", "checkpoints")
