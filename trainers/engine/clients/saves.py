"""Tracks an engine's accepted saves: it writes them before it closes, or logs them as lost."""

import logging
from concurrent.futures import wait
from typing import Any

from evert.trainers.engine.clients.futures import AcceptedCall
from evert.trainers.engine.store.checkpoints import parse_path

logger = logging.getLogger(__name__)


class Saves:
    """Accepted saves; a save may be forgotten after its outcome was read."""

    def __init__(self) -> None:
        self.interrupted = False
        """Whether ``finish`` was interrupted, so that saves that have not begun are dropped."""
        self._paths: dict[AcceptedCall[Any], str] = {}

    def accept(self, path: str) -> AcceptedCall[Any]:
        """Return the future of a save to a checkpoint's path."""
        for earlier in self._paths.copy():
            if earlier.done() and earlier.unread_error is None:
                self._paths.pop(earlier, None)
        save = AcceptedCall[Any]()
        self._paths[save] = path
        return save

    def awaits_run(self, run_id: str) -> bool:
        """Return whether a save of the run is not written yet."""
        return any(parse_path(path)[0] == run_id for path in self._unwritten())

    def finish(self) -> None:
        """Wait until all saves are written; an interrupt drops saves that have not begun."""
        try:
            if unwritten := self._unwritten():
                logger.info("Before the engine closes, it writes %s.", ", ".join(unwritten))
            wait(self._paths.copy())
        except BaseException:  # mostly Ctrl-C
            self.interrupted = True
            wait(self._paths.copy())
            raise

    def report_lost(self) -> None:
        """Log the dropped saves, and the failed saves whose error was not read."""
        for save, path in self._paths.copy().items():
            if not save.done() or save.unread_error:
                logger.error("%s was not saved: %s", path, save.unread_error or "interrupted")
        self._paths.clear()

    def _unwritten(self) -> list[str]:
        return [path for save, path in self._paths.copy().items() if not save.done()]
