"""Notes: rewards, metrics and logs that an agent records for its transitions between calls."""

import asyncio
import threading
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary


class Note(NamedTuple):
    """A reward, metric or log that an agent recorded."""

    kind: Literal["reward", "metric", "log"]
    key: str  # "" for a reward
    value: Any
    turn: int | None = None  # number of the action that it belongs to; None: the next transition's


class Notes:
    """The notes of one trained role. ``add`` is safe from any thread."""

    __slots__ = ("_late", "_turns", "_waiting", "rewarded")

    def __init__(self) -> None:
        self._waiting: list[Note] = []
        self._late: list[Note] = []
        self._turns: tuple[WeakKeyDictionary[object, int], int] | None = None
        self.rewarded = False  # whether the agent recorded a reward

    def add(self, kind: Literal["reward", "metric", "log"], key: str, value: Any) -> None:
        """Add a note. If calls overlap, the note belongs to the caller's latest reply."""
        turn = None
        if self._turns is not None:
            by_speaker, latest = self._turns
            turn = by_speaker.get(speaker(), latest)
        self.rewarded = self.rewarded or kind == "reward"
        self._waiting.append(Note(kind, key, value, turn))

    def note_reply(self, task: object, turn: int) -> None:
        """Remember the task or thread that action ``turn`` answers; used when calls overlap."""
        by_speaker = WeakKeyDictionary[object, int]() if self._turns is None else self._turns[0]
        by_speaker[task] = turn
        self._turns = by_speaker, turn

    def take(self, turn: int) -> list[Note]:
        """Remove and return the notes on action ``turn``, whose transition is about to return."""
        due: list[Note] = []
        notes = self._waiting[:]
        del self._waiting[: len(notes)]  # not all: a thread may just have added notes
        for note in notes:
            (due if note.turn in (None, turn) else self._late).append(note)
        return due

    def take_late(self) -> list[Note]:
        """Remove and return the notes on transitions that have already been returned.

        Until the next ``note_reply``, new notes are for the next transition.
        """
        late = [*self._late, *(note for note in self._waiting if note.turn is not None)]
        self._late.clear()
        self._turns = None
        self._waiting[:] = [note for note in self._waiting if note.turn is None]
        return late


def speaker() -> object:
    """Return the current task, or the current thread outside of tasks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        task = None
    return task or threading.current_thread()
