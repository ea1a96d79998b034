"""``evert.open_log`` and ``evert.log``: curves of a loop of one's own.

1. Names keep numbers apart: in ``metrics.jsonl``, in TensorBoard and in any other logger.
2. What is logged goes to the log that was opened last, from whatever thread.
3. No log and no number are errors.

Weights & Biases: ``test_tracking.py``.
"""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from tinker_cookbook.utils import ml_log

import evert
from evert import LogError, MissingPackageError
from evert.trainers.loop import logs


class Kept(ml_log.Logger):
    """A logger of a user's own, which keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def log_hparams(self, config: Any) -> None:
        self.told.append(config)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.told.append((step, metrics))

    def close(self) -> None:
        self.told.append("closed")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# -- 1. names --------------------------------------------------------------------------------------


def test_the_numbers_of_two_models_stay_apart_wherever_they_go(tmp_path: Path) -> None:
    kept = Kept()
    with evert.open_log(tmp_path / "run", tensorboard=True, config={"rank": 4}, loggers=[kept]):
        for step in range(2):
            evert.log(step, compressor={"reward": step}, reconstructor={"reward": -step})

    rows = [{"compressor/reward": step, "reconstructor/reward": -step} for step in range(2)]
    assert rows_of(tmp_path / "run") == [{"step": step, **row} for step, row in enumerate(rows)]
    assert kept.told == [{"rank": 4}, *enumerate(rows), "closed"]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [e.value for e in events.Scalars("reconstructor/reward")] == [0, -1]
    assert [e.step for e in events.Scalars("compressor/reward")] == [0, 1]


def test_a_number_of_any_kind_is_one_and_alone_keeps_its_name(tmp_path: Path) -> None:
    with evert.open_log(tmp_path):
        evert.log(
            np.int64(3),  # type: ignore[arg-type]
            seconds=0.5,
            model={"a": np.float32(0.25), "b": torch.tensor(2.0), "c": True, "step": 7},
        )

    assert rows_of(tmp_path) == [
        {"step": 3, "seconds": 0.5, "model/a": 0.25, "model/b": 2.0, "model/c": 1, "model/step": 7}
    ]


# -- 2. from anywhere ------------------------------------------------------------------------------


def test_the_log_that_was_opened_last_gets_it_and_then_the_one_before(tmp_path: Path) -> None:
    outer = evert.open_log(tmp_path / "outer")
    with evert.open_log(tmp_path / "inner"):
        evert.log(0, model={"reward": 1})
    evert.log(1, model={"reward": 2})
    outer.close()
    outer.close()

    assert [row["step"] for row in rows_of(tmp_path / "inner")] == [0]
    assert [row["step"] for row in rows_of(tmp_path / "outer")] == [1]


def test_threads_log_whole_rows(tmp_path: Path) -> None:
    def work(thread: int) -> None:
        for step in range(20):
            evert.log(step, **{f"model{thread}": {"reward": 1.0}})

    with evert.open_log(tmp_path):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(rows_of(tmp_path)) == 80


# -- 3. errors -------------------------------------------------------------------------------------


def test_no_log_and_no_number_are_errors_that_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"and no log is open\. Put the loop into `with evert\.open"):
        evert.log(0, model={"reward": 1})
    with evert.open_log(tmp_path):
        for value in ("high", None, np.zeros(2), [1.0]):
            with pytest.raises(LogError, match="got model/reward=.*; expected one number"):
                evert.log(0, model={"reward": value})

    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("tracker", [{"tensorboard": True}, {"wandb_project": "games"}])
def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: Any
) -> None:
    monkeypatch.setattr(logs, "find_spec", lambda package: None)

    with pytest.raises(MissingPackageError, match="which is not installed. Install it with pip"):
        evert.open_log(tmp_path, **tracker)
