"""What a run shows while it trains: a bar on a terminal, now and then a line elsewhere.

The Cookbook's loop offers no hook for progress, and stays unchanged. It does write a line a step
to ``metrics.jsonl``, which is its public record; ``follow_rows`` reads that file as it grows, with
the Cookbook's own incremental reader. So the display works with any engine, sees exactly what is
recorded, and cannot disturb the training.

``quiet_cookbook`` sends what the Cookbook prints to the run's ``logs.log``.
"""

import asyncio
import io
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from evert.trainers.runs.folder import (
    HELD_OUT_REWARD,
    LOGS,
    METRICS,
    TRAIN_REWARD,
    is_step,
    read_jsonl,
)

POLL_SECONDS = 0.2
LINES = 10
"""Most lines a run prints about its steps where there is no terminal."""


class Display(Protocol):
    """Shows how far a run is."""

    def show(self, step: int, reward: float | None, held_out: float | None) -> None:
        """``step`` steps are done; the scores are the latest ones, None before the first."""


class Bar:
    """A progress bar, for terminals."""

    def __init__(self, progress: Progress, total: int, done: int, doing: str) -> None:
        self._progress = progress
        self._task = progress.add_task(doing, total=total, completed=done, scores="")

    def show(self, step: int, reward: float | None, held_out: float | None) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step, scores=_scores(reward, held_out))


class Lines:
    """A line every few steps, for files and pipes."""

    def __init__(self, console: Console, total: int, doing: str) -> None:
        self._console = console
        self._total = total
        self._doing = doing
        self._every = max(1, -(-total // LINES))
        self._began = time.monotonic()

    def show(self, step: int, reward: float | None, held_out: float | None) -> None:
        """Print a line, if it is time for one."""
        if step % self._every == 0 or step == self._total:
            seconds = time.monotonic() - self._began
            done = f"{self._doing}: step {step}/{self._total}"
            self._console.print(
                f"{done}  {_scores(reward, held_out)}  {seconds:.0f} s", soft_wrap=True
            )


def _scores(reward: float | None, held_out: float | None) -> str:
    shown = [
        f"{name} {score:.2f}"
        for name, score in (("reward", reward), ("held-out", held_out))
        if score is not None
    ]
    return "  ".join(shown)


@contextmanager
def display(console: Console, total: int, done: int, doing: str = "training") -> Iterator[Display]:
    """The display that fits where ``console`` writes.

    Args:
        console: Of the command.
        total: Steps of the run.
        done: Steps done before, in a resumed run.
        doing: What the steps do, in a word or two.
    """
    if not console.is_terminal:
        yield Lines(console, total, doing)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[scores]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, total, done, doing)


@asynccontextmanager
async def follow(folder: Path, shown: Display) -> AsyncIterator[None]:
    """Keep a display up to date with a run folder's ``metrics.jsonl`` inside the block."""
    latest: dict[str, Any] = {}
    for row in read_jsonl(folder / METRICS):  # of before a resumption
        latest.update(row)

    def show(row: Mapping[str, Any]) -> None:
        latest.update(row)
        if is_step(row):
            shown.show(row["step"] + 1, latest.get(TRAIN_REWARD), latest.get(HELD_OUT_REWARD))

    async with follow_rows(folder, show):
        yield


@asynccontextmanager
async def follow_rows(
    folder: Path, take: Callable[[Mapping[str, Any]], None]
) -> AsyncIterator[None]:
    """Hand over each line that ``metrics.jsonl`` grows by inside the block, in order."""
    from tinker_cookbook.stores.storage import storage_from_uri
    from tinker_cookbook.stores.training_store import TrainingRunStore

    store = TrainingRunStore(storage_from_uri(str(folder)))
    store.read_metrics()  # of before a resumption

    def catch_up() -> None:
        for row in store.read_new_metrics():
            take(row)

    async def poll() -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            catch_up()

    polling = asyncio.create_task(poll(), name="follow metrics")
    try:
        yield
    finally:
        polling.cancel()
        with suppress(asyncio.CancelledError):
            await polling
        catch_up()


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Send log messages and warnings to the run's ``logs.log`` inside the block."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    handler = logging.FileHandler(folder / LOGS, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(name)s:%(lineno)d [%(levelname)s] %(message)s"))
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for ours in root.handlers:
            ours.close()
        root.handlers[:] = handlers
        root.setLevel(level)


@asynccontextmanager
async def quiet_cookbook(training: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """Start the Cookbook's ``main`` with its console log off; its ``logs.log`` has it all.

    ``main`` sets up logging before it first waits for anything, and its console handler keeps the
    ``sys.stderr`` of that moment. That moment gets a stream to nowhere; all else keeps stderr.
    """
    nowhere = _Nowhere()
    with redirect_stderr(nowhere):
        task = asyncio.create_task(training, name="rl.train.main")
        await asyncio.sleep(0)
    try:
        yield task
    finally:
        _drop_handler(nowhere)


class _Nowhere(io.TextIOBase):
    """Takes every text and keeps none."""

    def write(self, text: str) -> int:
        return len(text)


def _drop_handler(stream: _Nowhere) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            root.removeHandler(handler)


def quiet_progress_bars() -> None:
    """Turn off the Cookbook's own bars; works until ``tqdm`` is first imported."""
    if "tqdm" not in sys.modules:
        os.environ.setdefault("TQDM_DISABLE", "1")
