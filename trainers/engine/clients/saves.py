"""Tracks pending saves. On closing, the engine writes them all, or logs the ones that are lost."""

import logging
from concurrent.futures import wait
from typing import Any

from evert.trainers.engine.clients.futures import AcceptedCall
from evert.trainers.engine.store.checkpoints import parse_path

logger = logging.getLogger(__name__)


class Saves:
    """The engine's pending saves. Finished saves are dropped once their outcome has been read."""

    def __init__(self) -> None:
        self.interrupted = False
        """Whether ``finish`` was interrupted. If so, saves that have not started are dropped."""
        self._paths: dict[AcceptedCall[Any], str] = {}

    def accept(self, path: str) -> AcceptedCall[Any]:
        """Register a save to a checkpoint path and return its future."""
        for earlier in self._paths.copy():
            if earlier.done() and earlier.unread_error is None:
                self._paths.pop(earlier, None)
        save = AcceptedCall[Any]()
        self._paths[save] = path
        return save

    def awaits_run(self, run_id: str) -> bool:
        """Return whether the run has a save that has not been written yet."""
        return any(parse_path(path)[0] == run_id for path in self._unwritten())

    def finish(self) -> None:
        """Wait until all saves are written. An interrupt drops saves that have not started."""
        try:
            if unwritten := self._unwritten():
                logger.info("Writing %s before the engine closes.", ", ".join(unwritten))
            wait(self._paths.copy())
        except BaseException:  # mostly Ctrl-C
            self.interrupted = True
            wait(self._paths.copy())
            raise

    def report_lost(self) -> None:
        """Log dropped saves, and failed saves whose error nobody has read."""
        for save, path in self._paths.copy().items():
            if not save.done() or save.unread_error:
                logger.error("%s was not saved: %s", path, save.unread_error or "interrupted")
        self._paths.clear()

    def _unwritten(self) -> list[str]:
        return [path for save, path in self._paths.copy().items() if not save.done()]
