"""Display the progress of a run: a progress bar in terminals, and otherwise a few lines."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from evert.bridge.redaction import redacted
from evert.trainers.rundir.folder import LOGS
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, TRAIN_REWARD, is_step
from evert.trainers.system.files import METRICS, read_jsonl
from evert.trainers.training.redaction import redacting

LINES = 10
"""Maximum number of progress lines to print if there is no terminal."""


OnRow: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Called with each row of metrics, in the format of ``metrics.jsonl``."""


@contextmanager
def display(console: Console, folder: Path, total: int, doing: str = "training") -> Iterator[OnRow]:
    """Display progress: a bar in terminals, and a line every few steps in files and pipes."""
    latest: dict[str, Any] = {}
    for row in read_jsonl(folder / METRICS):
        latest |= row if is_step(row) else {}
    texts = "{task.completed}/{task.total}", "{task.fields[scores]}"
    columns = ("{task.description}", BarColumn(), *texts, TimeElapsedColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    task = bar.add_task(doing, total=total, completed=latest.get("step", -1) + 1, scores="")
    every, began, held_out = max(1, -(-total // LINES)), time.monotonic(), ""

    def on_row(row: Mapping[str, Any]) -> None:
        nonlocal held_out
        latest.update(row)
        if HELD_OUT_REWARD in row:
            when = f"after {row['step']}" if row.get("step") else "before"
            held_out = f"held-out {row[HELD_OUT_REWARD]:.2f} {when}"
        if not is_step(row):
            return
        step = row["step"] + 1
        parts = [f"reward {latest[TRAIN_REWARD]:.2f}"] if TRAIN_REWARD in latest else []
        parts += [held_out] if held_out else []
        parts += [f"failed {latest[FAILED]:.0%}"] if latest.get(FAILED) else []
        scores = "  ".join(parts)
        bar.update(task, completed=step, scores=scores)
        if not console.is_terminal and (step % every == 0 or step == total):
            line = f"{doing}: step {step}/{total}  {scores}  {time.monotonic() - began:.0f} s"
            console.print(line, soft_wrap=True)
            held_out = ""  # show each score only once

    with bar:
        yield on_row


@contextmanager
def unsaved_shown(console: Console) -> Iterator[None]:
    """Report the first checkpoint that fails to save, since the Cookbook only logs it."""
    logger, messages = logging.getLogger("tinker_cookbook.checkpoint_utils"), list[str]()

    def show(record: logging.LogRecord) -> bool:
        if "checkpoint save failed" in record.getMessage() and not messages:
            error = record.exc_info[1] if record.exc_info else None
            messages.append(redacted(f"a checkpoint was not saved: {error or record.getMessage()}"))
            advice = "The run continues. If it stops, you can resume from the last checkpoint."
            console.print(f"{messages[0]}\n{advice}", soft_wrap=True, markup=False)
        return True

    logger.addFilter(show)
    try:
        yield
    finally:
        logger.removeFilter(show)


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Redirect log messages and warnings to the run's ``logs.log`` inside the block."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    handler = logging.FileHandler(folder / LOGS, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(name)s:%(lineno)d [%(levelname)s] %(message)s"))
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    raised, logging.raiseExceptions = logging.raiseExceptions, False  # the disk may be full
    try:
        with redacting():
            yield
    finally:
        logging.raiseExceptions = raised
        logging.captureWarnings(False)
        for log_handler in root.handlers:
            with suppress(OSError):
                log_handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


def quiet_progress_bars() -> None:
    """Disable the Cookbook's progress bars. Must be called before ``tqdm`` is first imported."""
    if "tqdm" not in sys.modules:
        os.environ.setdefault("TQDM_DISABLE", "1")
