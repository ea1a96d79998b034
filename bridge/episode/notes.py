"""What an agent records between calls, for the transition that it belongs to."""

import asyncio
import threading
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary


class Note(NamedTuple):
    """What an agent recorded."""

    kind: Literal["reward", "metric", "log"]
    key: str  # "" of a reward
    value: Any
    turn: int | None = None  # number of its action; None: the next one to be handed in


class Notes:
    """The notes of one trained role. ``add`` is safe from any thread."""

    __slots__ = ("_late", "_turns", "_waiting", "rewarded")

    def __init__(self) -> None:
        self._waiting: list[Note] = []
        self._late: list[Note] = []
        self._turns: tuple[WeakKeyDictionary[object, int], int] | None = None
        self.rewarded = False

    def add(self, kind: Literal["reward", "metric", "log"], key: str, value: Any) -> None:
        """Record something: of the latest reply to whoever says so, if several get replies at once.

        ``rewarded`` says from then on whether a reward was ever given.
        """
        turn = None
        if self._turns is not None:
            by_speaker, latest = self._turns
            turn = by_speaker.get(speaker(), latest)
        self.rewarded = self.rewarded or kind == "reward"
        self._waiting.append(Note(kind, key, value, turn))

    def reached(self, who: object, turn: int) -> None:
        """The action number ``turn`` answers a call of a task or thread, one of several at once."""
        by_speaker = WeakKeyDictionary[object, int]() if self._turns is None else self._turns[0]
        by_speaker[who] = turn
        self._turns = by_speaker, turn

    def take(self, turn: int) -> list[Note]:
        """The notes of the transition of action number ``turn``, which is handed out now."""
        taken: list[Note] = []
        notes = self._waiting[:]
        del self._waiting[: len(notes)]  # a thread may add some meanwhile: the next one's
        for note in notes:
            (taken if note.turn in (None, turn) else self._late).append(note)
        return taken

    def take_late(self) -> list[Note]:
        """The notes of transitions that were handed out before they were added; once."""
        late = [*self._late, *(note for note in self._waiting if note.turn is not None)]
        self._late.clear()
        self._waiting[:] = [note for note in self._waiting if note.turn is None]
        return late


def speaker() -> object:
    """Who runs this: the task, or the thread where there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        task = None
    return task or threading.current_thread()
