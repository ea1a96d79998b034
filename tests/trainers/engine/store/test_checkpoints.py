"""Checkpoints: whole or not there, and damage is named.

1. A path maps to a folder under the root, and nowhere else.
2. Writing is atomic: a failure leaves what was there before, and no draft.
3. Every kind of damage is found, and the message names the file.
4. The newest whole checkpoint is found, and the Cookbook's list can be repaired.
"""

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tinker_cookbook.checkpoint_utils import get_last_checkpoint

from evert.bridge.errors import EvertError
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


def test_what_was_saved_can_be_read(store: CheckpointStore, run_id: str) -> None:
    path = save(store, run_id, "000010")
    info = store.read(path)
    assert path == f"tinker://{run_id}/weights/000010"
    assert store.folder(path) == store.root / run_id / "weights" / "000010"
    assert (info.base_model, info.lora_rank, info.steps) == ("base", 8, 3)
    assert (info.user_metadata, set(info.files)) == (
        {"a": "b"},
        {"config.json", "model.safetensors"},
    )
    assert info.expires is not None
    assert info.expires - info.created == pytest.approx(60)


def test_a_run_is_known_by_any_of_its_paths(store: CheckpointStore, run_id: str) -> None:
    info = store.run_info(f"tinker://{run_id}/sampler_weights/never-saved")
    assert info.user_metadata == {"renderer_name": "r"}
    with pytest.raises(CheckpointError, match="not known here"):
        store.run_info("tinker://another/weights/x")


def test_runs_have_ids_of_their_own(store: CheckpointStore) -> None:
    info = RunInfo("base", None, {}, 1.0)
    assert len({store.new_run(info) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    "path",
    [
        "",
        "weights/000010",
        "tinker://run/weights",
        "tinker://run/other/x",
        "tinker://run/weights/..",
        "tinker://../weights/x",
        "tinker://run/weights/a/b",
        "tinker://run/weights/.hidden",
    ],
)
def test_a_path_of_another_form_is_refused(store: CheckpointStore, path: str) -> None:
    with pytest.raises(CheckpointError, match="is no checkpoint path; expected tinker://"):
        store.folder(path)


def test_a_failed_write_leaves_the_earlier_checkpoint_and_no_draft(
    store: CheckpointStore, run_id: str
) -> None:
    path = save(store, run_id, "same")

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left.*Earlier checkpoints are untouched"):
        store.save(run_id, "weights", "same", CheckpointInfo("base", None, 0, NOW), write)
    assert (store.folder(path) / "model.safetensors").read_text() == "weights"
    assert store.is_intact(path)
    assert [f.name for f in store.folder(path).parent.iterdir()] == ["same"]


def test_a_bug_while_writing_is_not_called_a_full_disk(store: CheckpointStore, run_id: str) -> None:
    def write(folder: Path) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        store.save(run_id, "weights", "x", INFO, write)


def test_a_root_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Could not write .*file"):
        CheckpointStore(tmp_path / "file").new_run(RunInfo("base", None, {}, 1.0))


def test_saving_under_a_name_again_replaces_it(store: CheckpointStore, run_id: str) -> None:
    save(store, run_id, "final", "first")
    path = save(store, run_id, "final", "second")
    assert (store.folder(path) / "model.safetensors").read_text() == "second"
    assert store.is_intact(path)


def test_what_is_there_is_kept_where_overwriting_was_not_asked_for(
    store: CheckpointStore, run_id: str
) -> None:
    path = save(store, run_id, "final", "first")
    info = CheckpointInfo("base", None, 0, NOW)
    with pytest.raises(CheckpointError, match="There is a checkpoint .* already.*overwrite=True"):
        store.save(run_id, "weights", "final", info, lambda folder: None, overwrite=False)
    assert (store.folder(path) / "model.safetensors").read_text() == "first"
    _truncate(store.folder(path))
    info = CheckpointInfo("base", None, 0, NOW)
    store.save(run_id, "weights", "final", info, lambda folder: None, overwrite=False)
    assert store.is_intact(path)


def test_a_crash_while_one_is_replaced_loses_nothing(
    store: CheckpointStore, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(store, run_id, "rolling", "first")
    renamed: list[str] = []
    rename = Path.rename

    def crash(self: Path, target: Path) -> Path:
        renamed.append(self.name)
        if len(renamed) == 2:
            raise KeyboardInterrupt  # as a kill would: no OSError
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            save(store, run_id, "rolling", "second")
    assert not store.folder(path).exists()
    assert store.is_intact(path)
    assert (store.folder(path) / "model.safetensors").read_text() == "first"
    assert save(store, run_id, "rolling", "third") == path
    assert (store.folder(path) / "model.safetensors").read_text() == "third"
    assert [folder.name for folder in store.folder(path).parent.iterdir()] == ["rolling"]


def test_tidying_keeps_what_is_named_and_nothing_that_crashes_left(
    store: CheckpointStore, run_id: str
) -> None:
    kept, moved, lost = (save(store, run_id, name) for name in ("kept", "moved", "lost"))
    place = store.folder(kept).parent
    store.folder(moved).rename(place / ".old-moved")  # cut off between its two moves
    (place / ".draft-1").mkdir()
    another = store.new_run(RunInfo("base", None, {}, 1.0))
    store.tidy([kept, moved])
    assert store.is_intact(kept)
    assert store.is_intact(moved)
    assert not store.folder(lost).exists()
    assert sorted(folder.name for folder in place.iterdir()) == ["kept", "moved"]
    assert not (store.root / another).exists()


def _truncate(folder: Path) -> None:
    (folder / "model.safetensors").write_text("wei")


def _flip(folder: Path) -> None:
    (folder / "model.safetensors").write_text("weightZ")


def _remove(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _remove_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def _garble_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("{")


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_truncate, "model.safetensors: it has 3 bytes instead of 7"),
    "flipped": (_flip, "model.safetensors: its content does not match"),
    "removed": (_remove, "model.safetensors: it cannot be read"),
    "no manifest": (_remove_manifest, "evert.json: it cannot be read"),
    "bad manifest": (_garble_manifest, "evert.json: it cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_file_is_named(
    store: CheckpointStore, run_id: str, kind: str
) -> None:
    path = save(store, run_id, "x")
    damage, text = DAMAGE[kind]
    damage(store.folder(path))
    with pytest.raises(CheckpointError, match=f"is damaged: .*{text}.*Resume from an earlier one"):
        store.read(path)
    assert not store.is_intact(path)


def test_a_missing_checkpoint_is_missing_and_not_damaged(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint tinker://run/weights/x"):
        store.read("tinker://run/weights/x")


def test_a_deleted_checkpoint_is_gone_and_cannot_be_deleted_twice(
    store: CheckpointStore, run_id: str
) -> None:
    path = save(store, run_id, "x")
    store.delete(path)
    assert not store.folder(path).exists()
    with pytest.raises(CheckpointError, match="no checkpoint .* to delete"):
        store.delete(path)


def test_repair_makes_the_cookbook_resume_from_the_newest_whole_one(
    store: CheckpointStore, run_id: str, tmp_path: Path
) -> None:
    paths = [save(store, run_id, name) for name in ("1", "2", "3")]
    lines = [{"name": str(i), "batch": i, "state_path": path} for i, path in enumerate(paths)]
    lines.insert(0, {"name": "elsewhere", "batch": 0, "state_path": "tinker://hosted/weights/x"})
    log = tmp_path / "checkpoints.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert repair_checkpoint_log(tmp_path, store) == []
    _flip(store.folder(paths[2]))
    assert repair_checkpoint_log(tmp_path, store) == [paths[2]]
    last = get_last_checkpoint(str(tmp_path))
    assert last is not None
    assert last.state_path == paths[1]
    assert "hosted" in log.read_text()
    assert paths[2] in log.with_suffix(".jsonl.damaged").read_text()


def test_where_all_checkpoints_are_here_one_of_an_unknown_run_is_gone(
    store: CheckpointStore, run_id: str, tmp_path: Path
) -> None:
    line = {"name": "x", "batch": 1, "state_path": "tinker://deleted/weights/x"}
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps(line) + "\n")
    assert repair_checkpoint_log(tmp_path, store) == []
    assert repair_checkpoint_log(tmp_path, store, all_here=True) == [line["state_path"]]


def test_a_run_without_a_list_needs_no_repair(store: CheckpointStore, tmp_path: Path) -> None:
    assert repair_checkpoint_log(tmp_path, store) == []


def test_the_default_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERT_HOME", "/somewhere")
    assert default_root() == Path("/somewhere")
    monkeypatch.delenv("EVERT_HOME")
    assert default_root().parts[-3:] == (".cache", "evert", "checkpoints")


def test_checkpoint_errors_are_os_errors_and_pickle() -> None:
    error = pickle.loads(pickle.dumps(CheckpointError("text")))
    assert isinstance(error, OSError)
    assert isinstance(error, EvertError)
    assert str(error) == "text"
