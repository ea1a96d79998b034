"""Notes: rewards, metrics and logs that an agent records between its calls."""

import asyncio
import threading
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary


class Note(NamedTuple):
    """A reward, metric or log that an agent recorded."""

    kind: Literal["reward", "metric", "log"]
    key: str  # "" for a reward
    value: Any
    turn: int | None = None  # index of the action it belongs to (None: the next transition)


class Notes:
    """The notes of one trained role. ``add`` is thread-safe."""

    __slots__ = ("_late", "_turns", "_waiting", "rewarded")

    def __init__(self) -> None:
        self._waiting: list[Note] = []
        self._late: list[Note] = []
        self._turns: tuple[WeakKeyDictionary[object, int], int] | None = None
        self.rewarded = False  # whether the agent recorded a reward

    def add(self, kind: Literal["reward", "metric", "log"], key: str, value: Any) -> None:
        """Add a note. If calls overlap, the note belongs to the current caller's latest reply."""
        turn = None
        if self._turns is not None:
            by_speaker, latest = self._turns
            turn = by_speaker.get(speaker(), latest)
        self.rewarded = self.rewarded or kind == "reward"
        self._waiting.append(Note(kind, key, value, turn))

    def note_reply(self, task: object, turn: int) -> None:
        """Record which task or thread received action ``turn``. Used when calls overlap."""
        by_speaker = WeakKeyDictionary[object, int]() if self._turns is None else self._turns[0]
        by_speaker[task] = turn
        self._turns = by_speaker, turn

    def take(self, turn: int) -> list[Note]:
        """Remove and return the notes for action ``turn``, whose transition is being returned."""
        due: list[Note] = []
        notes = self._waiting[:]
        del self._waiting[: len(notes)]  # not clear(), since a thread may have just added a note
        for note in notes:
            (due if note.turn in (None, turn) else self._late).append(note)
        return due

    def take_late(self) -> list[Note]:
        """Remove and return the notes for transitions that have already been returned.

        Notes added after this, until the next ``note_reply``, belong to the next transition.
        """
        late = [*self._late, *(note for note in self._waiting if note.turn is not None)]
        self._late.clear()
        self._turns = None
        self._waiting[:] = [note for note in self._waiting if note.turn is None]
        return late


def speaker() -> object:
    """Return the current asyncio task or, outside of a task, the current thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # this thread has no event loop
        task = None
    return task or threading.current_thread()
